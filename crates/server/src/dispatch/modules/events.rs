//! Keyspace events of modules, the messages that they publish, and the cluster's nodes as they see them.

use weft_base::SlotIndex;
use weft_base::clock::unix_ms;
use weft_cluster::node::{NodeFlags, NodeId};
use weft_cluster::slot_tags::tag_for_slot;
use weft_config::{id, keyspace_events as event_flags};
use weft_modules::module::cluster_messages::flags as cluster_flags;
use weft_modules::module::keyspace_events::{self, KeyEvent};
use weft_modules::objects::context::Caller;
use weft_modules::session::events::{EventHost, EventSession, NodeInfo, node_flags};

use super::{ModuleHost, ModuleSession};
use crate::notify::messages::{NotificationSender, update_event_hook};
use crate::notify::pubsub::ChannelNamespace;

impl ModuleSession<'_, '_> {
    /// Sends what is recorded, before a message that is sent at once.
    pub(super) fn send_recorded_effects(&mut self) {
        let by = Some(self.client.id).filter(|id| id.get() != 0);
        let (server, thread_index) = (&self.thread.server, self.thread.thread_index);
        NotificationSender::new(server, &mut self.thread.effects, thread_index).send_recorded_effects(by);
    }

    /// Lets modules have an event of a slot-safe command later, on the home worker.
    fn send_key_event_home(&self, event: &KeyEvent<'_>) {
        if keyspace_events::subscribed_classes() & event.class == 0 {
            return;
        }
        let (class, db) = (event.class, event.db);
        let (name, key): (Box<str>, Box<[u8]>) = (event.name.into(), event.key.into());
        self.thread.server.run_session_at_home(move |session| {
            let (name, key) = (&*name, &*key);
            keyspace_events::deliver(session, &KeyEvent { class, name, db, key }, &Caller::none());
        });
    }
}

impl EventSession for ModuleSession<'_, '_> {
    fn notify_key_event(&mut self, flags: i32, name: &[u8], db: u32, key: &[u8]) {
        self.send_recorded_effects();
        let name = String::from_utf8_lossy(name);
        // As in Valkey, flags may contain several classes, but modules do not get those that stand for channels.
        let channels = (event_flags::KEYSPACE | event_flags::KEYEVENT) as i32;
        let event = KeyEvent {
            class: flags & !channels,
            name: &name,
            db,
            key,
        };
        match self.access.is_exclusive() {
            true => self.deliver_key_event(&event),
            false => self.send_key_event_home(&event),
        }
        let (server, thread_index) = (&self.thread.server, self.thread.thread_index);
        NotificationSender::new(server, &mut self.thread.effects, thread_index)
            .publish_event_of_module(&event, i64::from(flags));
    }

    fn publish(&mut self, channel: &[u8], message: &[u8], is_sharded: bool) -> usize {
        self.send_recorded_effects();
        let namespace = match is_sharded {
            true => ChannelNamespace::ShardChannels,
            false => ChannelNamespace::Channels,
        };
        let (server, thread_index) = (&self.thread.server, self.thread.thread_index);
        let receivers = NotificationSender::new(server, &mut self.thread.effects, thread_index)
            .publish_message(namespace, channel, message);
        if let Some(cluster) = &server.cluster {
            cluster.queue_published(is_sharded, channel, message);
        }
        receivers
    }
}

impl EventHost for ModuleHost {
    fn note_event_subscriptions(&self) {
        update_event_hook(&self.server);
    }

    fn note_server_event_subscriptions(&self) {
        update_event_hook(&self.server);
    }

    fn published_event_classes(&self) -> i32 {
        self.server.config.integer(id::NOTIFY_KEYSPACE_EVENTS) as i32
    }

    fn own_node_id(&self) -> Option<[u8; 40]> {
        let cluster = self.server.cluster.as_ref()?;
        Some(id_bytes(&cluster.lock(&self.server.config).myself.to_string()))
    }

    fn node_ids(&self) -> Vec<[u8; 40]> {
        let Some(cluster) = &self.server.cluster else {
            return Vec::new();
        };
        let state = cluster.lock(&self.server.config);
        let known = state
            .nodes
            .values()
            .filter(|node| !node.flags.intersects(NodeFlags::HANDSHAKE | NodeFlags::NO_ADDRESS));
        known.map(|node| id_bytes(&node.id.to_string())).collect()
    }

    fn send_cluster_message(&self, target: Option<&[u8]>, module: u64, kind: u8, payload: &[u8]) -> bool {
        let Some(cluster) = &self.server.cluster else {
            return false;
        };
        let mut state = cluster.lock(&self.server.config);
        let target = match target.map(NodeId::parse) {
            None => None,
            Some(None) => return false,
            Some(known) => known,
        };
        let is_sent = state.send_module_message(target, module, kind, payload, unix_ms());
        drop(state);
        cluster.wake_bus();
        is_sent
    }

    fn set_cluster_flags(&self, all: u64) {
        if let Some(cluster) = &self.server.cluster {
            let mut state = cluster.lock(&self.server.config);
            state.is_failover_off = all & cluster_flags::NO_FAILOVER != 0;
            state.ignores_claims = all & cluster_flags::NO_REDIRECTION != 0;
        }
    }

    fn slot_tag(&self, slot: usize) -> &'static str {
        tag_for_slot(SlotIndex::from_index(slot))
    }

    fn node(&self, id: &[u8]) -> Option<NodeInfo> {
        let cluster = self.server.cluster.as_ref()?;
        let state = cluster.lock(&self.server.config);
        let myself = state.myself;
        let node = state.nodes.values().find(|node| node.id.to_string().as_bytes() == id)?;
        let flag_if = |has: bool, flag: i32| if has { flag } else { 0 };
        let role = match node.primary {
            Some(_) => node_flags::REPLICA,
            None => node_flags::PRIMARY,
        };
        let flags = flag_if(node.id == myself, node_flags::MYSELF)
            | role
            | flag_if(node.flags.contains(NodeFlags::PFAIL), node_flags::SUSPECTED)
            | flag_if(node.flags.contains(NodeFlags::FAIL), node_flags::FAILED)
            | flag_if(node.flags.contains(NodeFlags::NO_FAILOVER), node_flags::NO_FAILOVER);
        Some(NodeInfo {
            ip: node.address.ip.clone(),
            port: node.address.tcp_port,
            primary: node.primary.map(|primary| id_bytes(&primary.to_string())),
            flags,
        })
    }
}

/// Returns the text of an id, which always has 40 characters.
fn id_bytes(text: &str) -> [u8; 40] {
    text.as_bytes().try_into().unwrap_or([b'0'; 40])
}

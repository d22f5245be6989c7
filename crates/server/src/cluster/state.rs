//! All that this node knows of the cluster, and the changes that slots, epochs and health go through.
//!
//! Plain data behind one lock, without sockets, files or keys: what is to be done outside after a change is noted in
//! [`Todo`] and [`Action`], and whoever held the lock sees to it.

use std::collections::BTreeMap;

use super::election::Election;
use super::manual_failover::Manual;
use super::node::{LinkId, Node, NodeFlags, NodeId};
use super::open_slots::OpenSlot;
use super::settings::Settings;
use crate::keyspace::SLOTS;
use crate::observability::log;

/// How long a primary waits after the start before it takes commands, ms: others may have replaced it.
const WRITABLE_DELAY_MS: u64 = 2000;
/// The least and the most time for which a primary that was cut off takes no commands once it is back, ms.
const REJOIN_DELAY_MS: (u64, u64) = (500, 5000);

/// What is to be done once the lock is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferredActions {
    /// The file no longer says what is so.
    pub save: bool,
    /// It must be on the disk before anybody hears of it.
    pub sync: bool,
    /// What commands go by has changed.
    pub publish: bool,
}

/// What the bus is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes over a link.
    Send(LinkId, Vec<u8>),
    /// End a link.
    Close(LinkId),
    /// Make a link to a node.
    Connect {
        /// The node.
        node: NodeId,
        /// Its address.
        ip: String,
        /// Its port for nodes.
        port: u16,
    },
    /// Nothing is to be written before this time, ms: a replica is about to take over.
    HoldWrites(u64),
    /// Writes may go on.
    LetWrites,
    /// This node has lost these slots to somebody else: keys in them are to be deleted.
    DropKeys(Vec<u16>),
    /// Hand a message on to subscribers here.
    Publish {
        /// Whether the channel is a shard channel.
        sharded: bool,
        /// The channel.
        channel: Vec<u8>,
        /// The message.
        payload: Vec<u8>,
    },
}

/// Messages of each type, sent and received.
pub const MESSAGE_TYPES: usize = 11;

/// Counters.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Messages sent, by type.
    pub sent: [u64; MESSAGE_TYPES],
    /// Messages received, by type.
    pub received: [u64; MESSAGE_TYPES],
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes of published messages sent.
    pub pubsub_bytes_sent: u64,
    /// Bytes of published messages received.
    pub pubsub_bytes_received: u64,
    /// Links that were ended because too much was queued.
    pub links_over_limit: u64,
}

/// A link as CLUSTER LINKS shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFigures {
    /// Whether the other side made it.
    pub inbound: bool,
    /// The node at the other end, if known.
    pub node: Option<NodeId>,
    /// When it was made, ms.
    pub created_ms: u64,
    /// Bytes that wait to be sent, and the room taken for them.
    pub queued_bytes: usize,
    /// Whether the socket is full.
    pub blocked: bool,
}

/// What DEBUG makes go wrong, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Messages of this type are passed over.
    pub dropped: Option<usize>,
    /// ... and their links are ended.
    pub ends_links: bool,
    /// No random node is greeted.
    pub no_random_ping: bool,
    /// Links that broke are not made anew.
    pub no_reconnection: bool,
}

/// What this node's data is: whoever has both the lock and the data tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataState {
    /// How long ago the primary was heard, ms.
    pub age_ms: u64,
    /// Whether the data is none that the primary ever had: it is to come, or is on its way.
    pub hollow: bool,
}

/// What this node knows.
pub struct State {
    /// This node's name.
    pub myself: NodeId,
    /// All known nodes, this one among them.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Whose each slot is.
    pub owners: Vec<Option<NodeId>>,
    /// Slots on their way to other nodes.
    pub migrating: BTreeMap<u16, NodeId>,
    /// Slots on their way from other nodes.
    pub importing: BTreeMap<u16, NodeId>,
    /// Slots on their way of which this node's primary has told, and whose nodes are not known yet.
    pub unopened: Vec<OpenSlot>,
    /// Slots whose owner has stopped to claim them: nobody is told that they are its.
    pub unclaimed: super::slot_set::SlotSet,
    /// The newest version of anything.
    pub current_epoch: u64,
    /// The last version that this node voted for.
    pub last_vote_epoch: u64,
    /// Whether commands are taken.
    pub up: bool,
    /// Primaries with slots.
    pub size: usize,
    /// What this node's data is.
    pub data: DataState,
    /// The replica's part in an election.
    pub election: Election,
    /// The manual failover under way.
    pub manual: Manual,
    /// Whether the data of the primary must be taken over as a whole: what is here has another history.
    pub resync: bool,
    /// Whether all nodes are to be told at once what this one has become.
    pub announce: bool,
    /// Nodes that are not to be taken in again, and until when, ms.
    pub forgotten: BTreeMap<NodeId, u64>,
    /// Parameters.
    pub settings: Settings,
    /// What is to be done outside.
    pub todo: DeferredActions,
    /// What the bus is to do.
    pub actions: Vec<Action>,
    /// Counters.
    pub statistics: Statistics,
    /// Links, as the bus last saw them.
    pub links: BTreeMap<LinkId, LinkFigures>,
    /// What is to go wrong.
    pub faults: Faults,
    /// Rounds so far.
    pub rounds: u64,
    /// Whether health may have changed.
    pub look: bool,
    /// When health was first looked at, ms.
    first_look_ms: Option<u64>,
    /// When this node was last on the side of a minority, ms.
    minority_ms: u64,
    /// The reason in the log for the cluster being down, so that it is there once.
    last_reason: &'static str,
}

impl State {
    /// A cluster of this node alone.
    pub fn new(settings: Settings, now_ms: u64) -> Self {
        let id = NodeId::random();
        let flags = NodeFlags::MYSELF.with(NodeFlags::PRIMARY);
        let mut state = State::empty(id, settings);
        state.nodes.insert(id, Node::new(id, flags, now_ms));
        state.describe_myself();
        state.todo.save = true;
        state
    }

    /// No nodes at all, for whoever reads them from a file.
    pub fn empty(myself: NodeId, settings: Settings) -> Self {
        State {
            myself,
            nodes: BTreeMap::new(),
            owners: vec![None; SLOTS],
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            unopened: Vec::new(),
            unclaimed: Default::default(),
            current_epoch: 0,
            last_vote_epoch: 0,
            up: false,
            size: 0,
            data: DataState::default(),
            election: Election::default(),
            manual: Manual::default(),
            resync: false,
            announce: false,
            forgotten: BTreeMap::new(),
            settings,
            todo: DeferredActions::default(),
            actions: Vec::new(),
            statistics: Statistics::default(),
            links: BTreeMap::new(),
            faults: Faults::default(),
            rounds: 0,
            look: false,
            first_look_ms: None,
            minority_ms: 0,
            last_reason: "",
        }
    }

    /// This node.
    pub fn me(&self) -> &Node {
        match self.nodes.get(&self.myself) {
            Some(node) => node,
            None => unreachable!("this node is always among the nodes"),
        }
    }

    /// This node, to change.
    pub fn me_mut(&mut self) -> &mut Node {
        match self.nodes.get_mut(&self.myself) {
            Some(node) => node,
            None => unreachable!("this node is always among the nodes"),
        }
    }

    /// The primary of this node's shard: itself, or the one that it replicates.
    pub fn my_primary(&self) -> NodeId {
        let me = self.me();
        match me.primary {
            Some(primary) if me.is_replica() => primary,
            _ => self.myself,
        }
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<NodeId> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    /// The replicas of a node.
    pub fn replicas(&self, of: NodeId) -> impl Iterator<Item = &Node> {
        self.nodes
            .values()
            .filter(move |node| node.is_replica() && node.primary == Some(of))
    }

    /// The offset of a node as others are told: 0 stands for data that is still to come.
    pub fn told_offset(&self, node: &Node) -> u64 {
        let has_data = node.id == self.myself && node.is_replica() && !self.data.hollow;
        node.offset.max(u64::from(has_data))
    }

    /// Where the primary is that this node follows, if that is known.
    pub fn followed(&self) -> Option<(String, u16)> {
        let me = self.me();
        let primary = me.primary.filter(|_| me.is_replica())?;
        let address = &self.nodes.get(&primary)?.address;
        let port = match self.settings.tls_replication {
            true => address.tls_port,
            false => address.tcp_port,
        };
        (!address.ip.is_empty() && port != 0).then(|| (address.ip.clone(), port))
    }

    /// The version of a node's slots: a replica's is that of its primary.
    pub fn epoch_of(&self, node: &Node) -> u64 {
        match node.primary.and_then(|primary| self.nodes.get(&primary)) {
            Some(primary) if node.is_replica() => primary.config_epoch,
            _ => node.config_epoch,
        }
    }

    /// Takes over parameters that have changed.
    pub fn configure(&mut self, settings: Settings) {
        if settings == self.settings {
            return;
        }
        self.settings = settings;
        self.describe_myself();
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Lets this node's own entry say what is configured.
    pub fn describe_myself(&mut self) {
        let settings = self.settings.clone();
        let me = self.me_mut();
        if settings.announced_ip.is_some() || me.flags.has_any(NodeFlags::MYSELF) && settings.forgets_ip {
            me.address.ip = settings.announced_ip.clone().unwrap_or_default();
        }
        me.address.tcp_port = settings.tcp_port;
        me.address.tls_port = settings.tls_port;
        me.address.bus_port = settings.bus_port;
        me.announced = settings.announced;
        me.flags.put(NodeFlags::NO_FAILOVER, settings.replica_no_failover);
        me.flags.put(NodeFlags::EXTENSIONS.with(NodeFlags::LIGHT_HEADERS), true);
        self.settings.forgets_ip = false;
    }

    // ---- slots -------------------------------------------------------------------------------------

    /// Gives a slot that nobody has to a node; whether that was so.
    pub fn add_slot(&mut self, to: NodeId, slot: u16) -> bool {
        if self.owner(slot).is_some() {
            return false;
        }
        let Some(node) = self.nodes.get_mut(&to) else {
            return false;
        };
        if node.slots.is_empty() && node.slots.put(slot, true) {
            // A primary that never had slots may be given replicas of others, once others have some.
            let any_replicas = self
                .nodes
                .values()
                .any(|other| other.is_replica() && other.primary.is_some());
            if any_replicas && let Some(node) = self.nodes.get_mut(&to) {
                node.flags.put(NodeFlags::MIGRATE_TO, true);
            }
        } else {
            node.slots.put(slot, true);
        }
        self.owners[usize::from(slot)] = Some(to);
        self.unclaimed.put(slot, false);
        self.todo.publish = true;
        true
    }

    /// Takes a slot from its owner; whether it had one.
    pub fn delete_slot(&mut self, slot: u16) -> bool {
        let Some(owner) = self.owner(slot) else {
            return false;
        };
        if let Some(node) = self.nodes.get_mut(&owner) {
            node.slots.put(slot, false);
        }
        self.owners[usize::from(slot)] = None;
        self.unclaimed.put(slot, false);
        self.todo.publish = true;
        true
    }

    /// Takes all slots from a node.
    pub fn delete_slots_of(&mut self, node: NodeId) -> usize {
        let slots: Vec<u16> = match self.nodes.get(&node) {
            Some(node) => node.slots.iter().collect(),
            None => Vec::new(),
        };
        for slot in &slots {
            self.delete_slot(*slot);
        }
        slots.len()
    }

    /// Says that a slot is on its way to a node, or is not any more.
    pub fn set_migrating(&mut self, slot: u16, to: Option<NodeId>) {
        match to {
            Some(node) => self.migrating.insert(slot, node),
            None => self.migrating.remove(&slot),
        };
        self.todo.publish = true;
    }

    /// Says that a slot is on its way from a node, or is not any more.
    pub fn set_importing(&mut self, slot: u16, from: Option<NodeId>) {
        match from {
            Some(node) => self.importing.insert(slot, node),
            None => self.importing.remove(&slot),
        };
        self.todo.publish = true;
    }

    /// No slot is on its way any more.
    pub fn close_slots(&mut self) {
        self.migrating.clear();
        self.importing.clear();
        self.unopened.clear();
        self.todo.publish = true;
    }

    // ---- nodes -------------------------------------------------------------------------------------

    /// Removes a node and all that refers to it.
    pub fn delete_node(&mut self, id: NodeId) {
        self.delete_slots_of(id);
        self.migrating.retain(|_, to| *to != id);
        self.importing.retain(|_, from| *from != id);
        self.let_go(id);
        for node in self.nodes.values_mut() {
            node.reports.retain(|(reporter, _)| *reporter != id);
            if node.primary == Some(id) {
                node.primary = None;
            }
        }
        let links = self.nodes.get(&id).map(|node| [node.link, node.inbound_link]);
        for link in links.into_iter().flatten().flatten() {
            self.close_link(link);
        }
        self.nodes.remove(&id);
        self.todo.publish = true;
    }

    /// Gives a node another name: that of a node being met becomes known with its first message.
    pub fn rename_node(&mut self, from: NodeId, to: NodeId) {
        if let Some(mut node) = self.nodes.remove(&from) {
            node.id = to;
            self.nodes.insert(to, node);
            for figures in self.links.values_mut() {
                if figures.node == Some(from) {
                    figures.node = Some(to);
                }
            }
        }
    }

    /// Does not take a node in again for a while.
    pub fn forget(&mut self, id: NodeId, seconds: u64, now_ms: u64) {
        self.forgotten
            .insert(id, now_ms.saturating_add(seconds.saturating_mul(1000)));
    }

    /// Whether a node is not to be taken in.
    pub fn is_forgotten(&mut self, id: &NodeId, now_ms: u64) -> bool {
        self.forgotten.retain(|_, until_ms| *until_ms > now_ms);
        self.forgotten.contains_key(id)
    }

    /// Turns a node into a primary.
    pub fn make_primary(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_none_or(Node::is_primary) {
            return;
        }
        let had_primary = self.let_go(id);
        let is_me = id == self.myself;
        if let Some(node) = self.nodes.get_mut(&id) {
            if had_primary && !is_me {
                node.flags.put(NodeFlags::MIGRATE_TO, true);
            }
            node.flags.put(NodeFlags::REPLICA, false);
            node.flags.put(NodeFlags::PRIMARY, true);
            (self.todo.save, self.todo.publish, self.look) = (true, true, true);
        }
    }

    /// How many nodes find a node failing at the moment.
    pub fn failure_reports(&self, node: &Node, now_ms: u64) -> usize {
        let valid_ms = self.settings.node_timeout_ms.saturating_mul(2);
        let fresh = |(_, since_ms): &&(NodeId, u64)| now_ms.saturating_sub(*since_ms) <= valid_ms;
        node.reports.iter().filter(fresh).count()
    }

    // ---- epochs ------------------------------------------------------------------------------------

    /// The newest version of anything.
    pub fn newest_epoch(&self) -> u64 {
        let of_nodes = self.nodes.values().map(|node| node.config_epoch).max();
        of_nodes.unwrap_or(0).max(self.current_epoch)
    }

    /// Gives this node the newest version, without asking anybody; whether it did not have it.
    pub fn bump_epoch(&mut self) -> bool {
        let newest = self.newest_epoch();
        let mine = self.me().config_epoch;
        if mine != 0 && mine == newest {
            return false;
        }
        self.current_epoch += 1;
        let epoch = self.current_epoch;
        self.me_mut().config_epoch = epoch;
        self.todo.save = true;
        self.todo.sync = true;
        log::notice!("New configEpoch set to {epoch}");
        true
    }

    /// Forgets the whole cluster; `hard` means to be another node afterwards.
    pub fn reset(&mut self, hard: bool, now_ms: u64) {
        let me = self.myself;
        self.make_primary(me);
        self.close_slots();
        self.reset_manual();
        self.election = Election::default();
        self.resync = false;
        for slot in 0..SLOTS as u16 {
            self.delete_slot(slot);
        }
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|id| *id != me).collect();
        for id in others {
            self.delete_node(id);
        }
        self.forgotten.clear();
        if hard {
            (self.current_epoch, self.last_vote_epoch) = (0, 0);
            self.me_mut().config_epoch = 0;
            log::notice!("configEpoch set to 0 via CLUSTER RESET HARD");
            let id = NodeId::random();
            self.rename_node(me, id);
            self.myself = id;
            log::notice!("Node hard reset, now I'm {id}");
        }
        let shard = NodeId::random();
        self.me_mut().shard = shard;
        log::notice!("Moving myself to a new shard {shard}.");
        (self.todo.save, self.todo.sync, self.todo.publish) = (true, true, true);
        self.update_health(now_ms);
    }

    // ---- health ------------------------------------------------------------------------------------

    /// Finds out whether commands are taken.
    pub fn update_health(&mut self, now_ms: u64) {
        let first_look_ms = *self.first_look_ms.get_or_insert(now_ms);
        let is_primary = self.me().is_primary();
        if is_primary && !self.up && now_ms.saturating_sub(first_look_ms) < WRITABLE_DELAY_MS {
            return;
        }
        let mut reason = "";
        if self.settings.full_coverage && !self.covers_all_slots() {
            reason = "At least one hash slot is not served by any available node. Please check the 'cluster-require-full-coverage' configuration.";
        }
        self.size = self.nodes.values().filter(|node| node.votes()).count();
        let silent = NodeFlags::FAIL.with(NodeFlags::PFAIL);
        let reachable = self
            .nodes
            .values()
            .filter(|node| node.votes() && !node.flags.has_any(silent))
            .count();
        if reachable < self.size / 2 + 1 {
            reason = "I am part of a minority partition.";
            self.minority_ms = now_ms;
        }
        let up = reason.is_empty();
        if up != self.up {
            let (least, most) = REJOIN_DELAY_MS;
            let delay = self.settings.node_timeout_ms.clamp(least, most);
            if up && is_primary && now_ms.saturating_sub(self.minority_ms) < delay {
                return;
            }
            match up {
                true => log::notice!("Cluster state changed: ok"),
                false => log::warning!("Cluster state changed: fail"),
            }
            self.up = up;
            self.todo.publish = true;
        }
        if !up && reason != self.last_reason {
            log::warning!("Cluster is currently down: {reason}");
        }
        self.last_reason = reason;
    }

    fn covers_all_slots(&self) -> bool {
        let mut last: Option<(NodeId, bool)> = None;
        self.owners.iter().all(|owner| {
            let Some(owner) = owner else {
                return false;
            };
            if let Some((id, alive)) = last
                && id == *owner
            {
                return alive;
            }
            let alive = self.nodes.get(owner).is_some_and(|node| !node.has_failed());
            last = Some((*owner, alive));
            alive
        })
    }
}

#[cfg(test)]
mod tests;

//! The periodic work of a node: connects to nodes, pings them, and detects failures.

use super::message::{
    BusMessage, Extensions, GossipEntry, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MODULE_FIELDS_BYTES, MessageType,
    PUBLISHED_LENGTHS_BYTES, encode, switch,
};
use super::node::{LinkId, Node, NodeFlags, NodeId};
use super::nodes_text::MESSAGE_NAMES;
use super::state::{BusAction, ClusterState, LinkInfo};

/// The number of rounds, at ten per second, after which a random node is pinged.
const ROUNDS_PER_RANDOM_PING: u64 = 10;
/// The number of random nodes among which the one with the oldest answer is pinged.
const RANDOM_PING_CANDIDATES: usize = 5;
/// The minimum number of gossip entries in a message.
const MIN_GOSSIP_ENTRIES: usize = 3;
/// The minimum timeout of a handshake, in milliseconds.
const MIN_HANDSHAKE_TIMEOUT_MS: u64 = 1000;

impl ClusterState {
    /// Performs one round. Called ten times a second.
    pub fn run_round(&mut self, now_ms: u64) {
        self.rounds += 1;
        self.end_overdue_hand_over(now_ms);
        self.close_overfull_links();
        self.connect(now_ms);
        if self.rounds.is_multiple_of(ROUNDS_PER_RANDOM_PING) && !self.faults.no_random_ping {
            self.ping_random_node(now_ms);
        }
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|id| *id != self.myself).collect();
        for id in others {
            self.meet_again(id, now_ms);
            self.check_node(id, now_ms);
        }
        self.advance_manual_failover(now_ms);
        self.advance_failover(now_ms);
        self.consider_replica_migration(now_ms);
        self.apply_known_migrations();
        self.announce_change(now_ms);
        if self.health_may_have_changed || !self.is_up {
            self.health_may_have_changed = false;
            self.update_health(now_ms);
        }
    }

    fn close_overfull_links(&mut self) {
        let limit = self.settings.link_limit;
        if limit == 0 {
            return;
        }
        // A queue takes memory even if it is empty.
        let is_over = |queued: usize| (size_of::<LinkInfo>() + queued) as u64 > limit;
        let links: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, figures)| is_over(figures.queued_bytes))
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            log::warn!("Freeing a cluster link due to exceeding send buffer memory limit.");
            self.statistics.links_over_limit += 1;
            self.close_link(link);
        }
    }

    /// Returns the time after which a handshake has failed, in milliseconds.
    pub(super) fn handshake_timeout_ms(&self) -> u64 {
        self.settings.node_timeout_ms.max(MIN_HANDSHAKE_TIMEOUT_MS)
    }

    /// Sends a MEET to a node that has had no link to this one for long: it probably does not know this node.
    fn meet_again(&mut self, id: NodeId, now_ms: u64) {
        let timeout_ms = self.handshake_timeout_ms();
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        match (node.inbound_link, node.inbound_missing_since_ms) {
            (Some(_), _) => node.inbound_missing_since_ms = 0,
            (None, 0) => node.inbound_missing_since_ms = now_ms,
            (None, _) => {}
        }
        let unusual = NodeFlags::HANDSHAKE | NodeFlags::MEET | NodeFlags::PFAIL | NodeFlags::FAIL;
        let is_due = |since_ms: u64| now_ms.saturating_sub(since_ms) > timeout_ms;
        if node.inbound_link.is_some()
            || node.flags.intersects(unusual)
            || !node.flags.intersects(NodeFlags::MULTI_MEET)
            || !is_due(node.inbound_missing_since_ms)
            || !is_due(node.meet_sent_ms)
        {
            return;
        }
        let Some(link) = node.link else {
            return;
        };
        node.flags.set(NodeFlags::MEET, true);
        log::info!(
            "Sending MEET packet to node {} because there is no inbound link for it",
            node.log_name()
        );
        self.send_ping(link, MessageType::Meet, now_ms);
    }

    fn connect(&mut self, now_ms: u64) {
        let patience_ms = self.handshake_timeout_ms();
        let old = |node: &Node| node.is_in_handshake() && now_ms.saturating_sub(node.created_ms) > patience_ms;
        let gone: Vec<NodeId> = self
            .nodes
            .values()
            .filter(|node| old(node))
            .map(|node| node.id)
            .collect();
        for id in gone {
            self.delete_node(id);
        }
        if self.faults.no_reconnection {
            return;
        }
        let unreachable = NodeFlags::MYSELF.union(NodeFlags::NO_ADDRESS);
        for node in self.nodes.values() {
            if node.link.is_none() && !node.flags.intersects(unreachable) {
                self.actions.push(BusAction::Connect {
                    node: node.id,
                    ip: node.address.ip.clone(),
                    port: node.address.bus_port,
                });
            }
        }
    }

    /// Pings, among a few random nodes, the one with the oldest answer.
    fn ping_random_node(&mut self, now_ms: u64) {
        let left_out = NodeFlags::MYSELF.union(NodeFlags::HANDSHAKE);
        let fit = |node: &&Node| node.link.is_some() && node.ping_sent_ms == 0 && !node.flags.intersects(left_out);
        let mut fit: Vec<(u64, LinkId)> = self
            .nodes
            .values()
            .filter(fit)
            .filter_map(|node| Some((node.pong_received_ms, node.link?)))
            .collect();
        fastrand::shuffle(&mut fit);
        fit.truncate(RANDOM_PING_CANDIDATES);
        if let Some((_, link)) = fit.into_iter().min() {
            self.send_ping(link, MessageType::Ping, now_ms);
        }
    }

    /// Checks if a node answers.
    fn check_node(&mut self, id: NodeId, now_ms: u64) {
        let timeout_ms = self.settings.node_timeout_ms;
        let passed_over = NodeFlags::NO_ADDRESS.union(NodeFlags::HANDSHAKE);
        let Some(node) = self.nodes.get(&id).filter(|node| !node.flags.intersects(passed_over)) else {
            return;
        };
        let since = |at_ms: u64| now_ms.saturating_sub(at_ms);
        let (ping_ms, data_ms) = (since(node.ping_sent_ms), since(node.data_received_ms));
        let waiting = node.ping_sent_ms != 0;
        if let Some(link) = node.link {
            let made_ms = self.links.get(&link).map_or(now_ms, |figures| figures.created_ms);
            if waiting && since(made_ms) > timeout_ms && ping_ms > timeout_ms / 2 && data_ms > timeout_ms / 2 {
                // Possibly only the link is broken.
                self.close_link(link);
            }
        }
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        if !waiting {
            let interval_ms = self.settings.ping_interval_ms.unwrap_or(timeout_ms / 2);
            if let Some(link) = node.link.filter(|_| since(node.pong_received_ms) > interval_ms) {
                self.send_ping(link, MessageType::Ping, now_ms);
            }
            return;
        }
        let silent = NodeFlags::FAIL.union(NodeFlags::PFAIL);
        if ping_ms.min(data_ms) > timeout_ms && !node.flags.intersects(silent) {
            log::info!("NODE {} possibly failing.", node.log_name());
            if let Some(node) = self.nodes.get_mut(&id) {
                node.flags.set(NodeFlags::PFAIL, true);
            }
            self.health_may_have_changed = true;
            if self.me().has_vote() {
                // The reports of the other nodes may have come before.
                self.mark_failing(id, now_ms);
            }
        }
    }

    // ---- sending ----------------------------------------------------------------------------------------------------
    /// Returns the header that describes this node in every message.
    pub fn header(&self) -> Header {
        let me = self.me();
        let speaks_for = self.nodes.get(&self.my_primary()).unwrap_or(me);
        let mut flags = me.flags;
        flags.set(NodeFlags::PRIMARY_FAILED, me.is_replica() && speaks_for.has_failed());
        let paused = match me.is_primary() && self.manual.has_stopped {
            true => switch::PAUSED,
            false => 0,
        };
        let (port, other_port) = self
            .settings
            .swap_ports_for_tls(me.address.tcp_port, me.address.tls_port);
        Header {
            sender: self.myself,
            current_epoch: self.current_epoch,
            config_epoch: speaks_for.config_epoch,
            offset: self.announced_offset(me),
            slots: speaks_for.slots.clone(),
            primary: me.primary,
            ip: self.settings.announced_ip.clone().unwrap_or_default(),
            port,
            other_port,
            bus_port: me.address.bus_port,
            flags,
            is_down: !self.is_up,
            switches: switch::EXTENSIONS | paused,
        }
    }

    /// Sends a message over a link.
    pub fn send(&mut self, link: LinkId, message: &BusMessage) {
        let bytes = encode(message);
        self.send_bytes(link, bytes);
    }

    fn send_bytes(&mut self, link: LinkId, bytes: Vec<u8>) {
        if !self.links.contains_key(&link) {
            return;
        }
        if let Some(kind) = super::message::kind(&bytes) {
            self.statistics.sent[kind.number()] += 1;
        }
        self.statistics.bytes_sent += bytes.len() as u64;
        if let Some(end_ms) = self.pause_end_ms() {
            let earliest_ms = self.queued_pause_end_ms.unwrap_or(u64::MAX).min(end_ms);
            self.queued_pause_end_ms = Some(earliest_ms);
        }
        self.actions.push(BusAction::Send(link, bytes));
    }

    /// Returns the links to all nodes except those in handshake.
    fn links_to_peers(&self) -> Vec<(NodeId, LinkId)> {
        let known = |node: &&Node| !node.is_in_handshake() && node.id != self.myself;
        let nodes = self.nodes.values().filter(known);
        nodes.filter_map(|node| Some((node.id, node.link?))).collect()
    }

    /// Sends a message to all nodes.
    pub fn broadcast(&mut self, message: &BusMessage) {
        let bytes = encode(message);
        for (_, link) in self.links_to_peers() {
            self.send_bytes(link, bytes.clone());
        }
    }

    /// Sends a PONG to all nodes, because this node has changed.
    pub fn broadcast_pong(&mut self, now_ms: u64) {
        for (_, link) in self.links_to_peers() {
            self.send_ping(link, MessageType::Pong, now_ms);
        }
    }

    /// Sends a PONG to all nodes if this node's role has changed.
    pub fn announce_change(&mut self, now_ms: u64) {
        if std::mem::take(&mut self.must_announce) {
            self.broadcast_pong(now_ms);
        }
    }

    /// Sends a published message to all other nodes, or to those of this shard if it is `sharded`.
    pub fn propagate(&mut self, sharded: bool, channel: &[u8], payload: &[u8], now_ms: u64) {
        self.end_overdue_hand_over(now_ms);
        if HEADER_BYTES + PUBLISHED_LENGTHS_BYTES + channel.len() + payload.len() > MAX_MESSAGE_BYTES {
            log::warn!("A published message is too long for the cluster bus.");
            return;
        }
        let message = |header| BusMessage::Publish {
            header,
            is_sharded: sharded,
            channel: channel.to_vec(),
            payload: payload.to_vec(),
        };
        let (light, whole) = (encode(&message(None)), encode(&message(Some(self.header()))));
        let shard = self.me().shard;
        for (id, link) in self.links_to_peers() {
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            if sharded && node.shard != shard {
                continue;
            }
            let bytes = match node.flags.intersects(NodeFlags::LIGHT_HEADERS) {
                true => light.clone(),
                false => whole.clone(),
            };
            self.statistics.pubsub_bytes_sent += (channel.len() + payload.len()) as u64;
            self.send_bytes(link, bytes);
        }
    }

    /// Sends a message of a module to a node, or to all other nodes. Returns `false` if there is no link to the node.
    pub fn send_module_message(
        &mut self,
        target: Option<NodeId>,
        module: u64,
        kind: u8,
        payload: &[u8],
        now_ms: u64,
    ) -> bool {
        self.end_overdue_hand_over(now_ms);
        if HEADER_BYTES + MODULE_FIELDS_BYTES + payload.len() > MAX_MESSAGE_BYTES {
            return false;
        }
        let message = |header| BusMessage::Module {
            header,
            module,
            kind,
            payload: payload.to_vec(),
        };
        let (light, whole) = (encode(&message(None)), encode(&message(Some(self.header()))));
        let mut peers = self.links_to_peers();
        if let Some(target) = target {
            peers.retain(|(id, _)| *id == target);
            if peers.is_empty() {
                return false;
            }
        }
        for (id, link) in peers {
            let accepts_light = self
                .nodes
                .get(&id)
                .is_some_and(|node| node.flags.intersects(NodeFlags::MULTI_MEET));
            let bytes = if accepts_light { light.clone() } else { whole.clone() };
            self.statistics.module_bytes_sent += bytes.len() as u64;
            self.send_bytes(link, bytes);
        }
        true
    }

    /// Sends an UPDATE message with the slots of the node `about`.
    pub fn send_update(&mut self, link: LinkId, about: NodeId) {
        let Some(node) = self.nodes.get(&about) else {
            return;
        };
        let mut slots = node.slots.clone();
        for slot in self.unclaimed.iter() {
            slots.set(slot, false);
        }
        let message = BusMessage::Update {
            header: self.header(),
            id: about,
            config_epoch: node.config_epoch,
            slots,
        };
        self.send(link, &message);
    }

    /// Sends a further PING to a node over the link to it. An earlier one that was not answered still counts.
    pub(super) fn ping_again(&mut self, id: NodeId, link: LinkId, now_ms: u64) {
        let unanswered_since = self.nodes.get(&id).map_or(0, |node| node.ping_sent_ms);
        self.send_ping(link, MessageType::Ping, now_ms);
        if let Some(node) = self.nodes.get_mut(&id).filter(|_| unanswered_since > 0) {
            node.ping_sent_ms = unanswered_since;
        }
    }

    /// Sends a PING, PONG or MEET over a link.
    pub fn send_ping(&mut self, link: LinkId, kind: MessageType, now_ms: u64) {
        self.end_overdue_hand_over(now_ms);
        let receiver = self.links.get(&link).and_then(|figures| figures.node);
        let inbound = self.links.get(&link).is_none_or(|figures| figures.is_inbound);
        let node = receiver.and_then(|id| self.nodes.get_mut(&id));
        let extends = node
            .as_ref()
            .is_some_and(|node| node.flags.intersects(NodeFlags::EXTENSIONS));
        if let Some(node) = &node {
            log::trace!(
                "Sending {} packet to node {} on {} link",
                MESSAGE_NAMES[kind.number()],
                node.log_name(),
                if inbound { "inbound" } else { "outbound" }
            );
        }
        if let Some(node) = node.filter(|_| !inbound) {
            match kind {
                MessageType::Ping => node.ping_sent_ms = now_ms,
                MessageType::Meet => node.meet_sent_ms = now_ms,
                _ => {}
            }
        }
        if kind != MessageType::Pong
            && let Some(figures) = self.links.get_mut(&link).filter(|figures| !figures.is_inbound)
        {
            figures.pings_sent += 1;
        }
        let gossip = self.gossip_entries(receiver);
        let extensions = match extends {
            true => self.extensions(now_ms),
            false => Extensions::default(),
        };
        let message = BusMessage::Ping {
            kind,
            header: self.header(),
            gossip,
            extensions,
        };
        self.send(link, &message);
    }

    fn extensions(&self, now_ms: u64) -> Extensions {
        let me = self.me();
        let left = |until_ms: u64| until_ms.saturating_sub(now_ms) / 1000;
        Extensions {
            announced: me.announced.clone(),
            shard: Some(me.shard),
            forgotten: self
                .forgotten
                .iter()
                .map(|(id, until_ms)| (*id, left(*until_ms)))
                .filter(|(_, seconds)| *seconds > 0)
                .collect(),
        }
    }

    /// Returns gossip entries for some random nodes and for all nodes that do not answer.
    fn gossip_entries(&self, receiver: Option<NodeId>) -> Vec<GossipEntry> {
        let nameless = NodeFlags::HANDSHAKE.union(NodeFlags::NO_ADDRESS);
        let wanted = (self.nodes.len() * self.settings.gossip_percent as usize / 100).max(MIN_GOSSIP_ENTRIES);
        let named = self.nodes.values().filter(|node| !node.flags.intersects(nameless));
        let (silent, others): (Vec<&Node>, Vec<&Node>) = named
            .filter(|node| node.id != self.myself)
            .partition(|node| node.has_timed_out());
        let mut others: Vec<&Node> = others
            .into_iter()
            .filter(|node| Some(node.id) != receiver && (node.link.is_some() || !node.slots.is_empty()))
            .collect();
        fastrand::shuffle(&mut others);
        others.truncate(wanted);
        others
            .into_iter()
            .chain(silent)
            .map(|node| self.gossip_entry(node))
            .collect()
    }
}

impl ClusterState {
    fn gossip_entry(&self, node: &Node) -> GossipEntry {
        let seconds = |ms: u64| (ms / 1000) as u32;
        let (port, other_port) = self
            .settings
            .swap_ports_for_tls(node.address.tcp_port, node.address.tls_port);
        GossipEntry {
            id: node.id,
            ping_sent_s: seconds(node.ping_sent_ms),
            pong_received_s: seconds(node.pong_received_ms),
            ip: node.address.ip.clone(),
            port,
            other_port,
            bus_port: node.address.bus_port,
            flags: node.flags,
        }
    }
}

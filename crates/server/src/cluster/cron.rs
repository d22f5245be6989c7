//! The periodic work of a node: connects to nodes, pings them, and detects failures.

use super::message::{Extensions, Gossip, Header, Kind, Message, encode, switch};
use super::node::{LinkId, Node, NodeFlags, NodeId};
use super::state::{Action, State};
use crate::observability::log;

/// The number of rounds, at ten per second, after which a random node is pinged.
const ROUNDS_A_GREETING: u64 = 10;
/// The number of random nodes among which the one with the oldest answer is pinged.
const CANDIDATES: usize = 5;
/// The minimum number of gossip entries in a message.
const LEAST_GOSSIP: usize = 3;
/// The minimum timeout of a handshake, in milliseconds.
const LEAST_HANDSHAKE_MS: u64 = 1000;

impl State {
    /// Performs one round. Called ten times a second.
    pub fn round(&mut self, now_ms: u64) {
        self.rounds += 1;
        self.end_overfull_links();
        self.connect(now_ms);
        if self.rounds.is_multiple_of(ROUNDS_A_GREETING) && !self.faults.no_random_ping {
            self.greet_random(now_ms);
        }
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|id| *id != self.myself).collect();
        for id in others {
            self.watch(id, now_ms);
        }
        self.advance_manual(now_ms);
        self.advance_failover(now_ms);
        self.consider_migration(now_ms);
        self.open_slots();
        self.announce_change(now_ms);
        if self.look || !self.up {
            self.look = false;
            self.update_health(now_ms);
        }
    }

    fn end_overfull_links(&mut self) {
        let limit = self.settings.link_limit;
        if limit == 0 {
            return;
        }
        let over = |queued: usize| queued as u64 > limit;
        let links: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, figures)| over(figures.queued_bytes))
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            log::warning!("Freeing a cluster link due to exceeding send buffer memory limit.");
            self.statistics.links_over_limit += 1;
            self.close_link(link);
        }
    }

    fn connect(&mut self, now_ms: u64) {
        let patience_ms = self.settings.node_timeout_ms.max(LEAST_HANDSHAKE_MS);
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
        let unreachable = NodeFlags::MYSELF.with(NodeFlags::NO_ADDRESS);
        for node in self.nodes.values() {
            if node.link.is_none() && !node.flags.has_any(unreachable) {
                self.actions.push(Action::Connect {
                    node: node.id,
                    ip: node.address.ip.clone(),
                    port: node.address.bus_port,
                });
            }
        }
    }

    /// Pings, among a few random nodes, the one with the oldest answer.
    fn greet_random(&mut self, now_ms: u64) {
        let left_out = NodeFlags::MYSELF.with(NodeFlags::HANDSHAKE);
        let fit = |node: &&Node| node.link.is_some() && node.ping_sent_ms == 0 && !node.flags.has_any(left_out);
        let mut fit: Vec<(u64, LinkId)> = self
            .nodes
            .values()
            .filter(fit)
            .filter_map(|node| Some((node.pong_received_ms, node.link?)))
            .collect();
        fastrand::shuffle(&mut fit);
        fit.truncate(CANDIDATES);
        if let Some((_, link)) = fit.into_iter().min() {
            self.greet(link, Kind::Ping, now_ms);
        }
    }

    /// Checks if a node answers.
    fn watch(&mut self, id: NodeId, now_ms: u64) {
        let timeout_ms = self.settings.node_timeout_ms;
        let passed_over = NodeFlags::NO_ADDRESS.with(NodeFlags::HANDSHAKE);
        let Some(node) = self.nodes.get(&id).filter(|node| !node.flags.has_any(passed_over)) else {
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
                self.greet(link, Kind::Ping, now_ms);
            }
            return;
        }
        let silent = NodeFlags::FAIL.with(NodeFlags::PFAIL);
        if ping_ms.min(data_ms) > timeout_ms && !node.flags.has_any(silent) {
            log::notice!("NODE {} possibly failing.", node.named());
            if let Some(node) = self.nodes.get_mut(&id) {
                node.flags.put(NodeFlags::PFAIL, true);
            }
            self.look = true;
            if self.size == 1 && self.me().votes() {
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
        flags.put(NodeFlags::PRIMARY_FAILED, me.is_replica() && speaks_for.has_failed());
        let paused = match me.is_primary() && self.manual.still {
            true => switch::PAUSED,
            false => 0,
        };
        let (port, other_port) = self.settings.in_order((me.address.tcp_port, me.address.tls_port));
        Header {
            sender: self.myself,
            current_epoch: self.current_epoch,
            config_epoch: speaks_for.config_epoch,
            offset: self.told_offset(me),
            slots: speaks_for.slots.clone(),
            primary: me.primary,
            ip: self.settings.announced_ip.clone().unwrap_or_default(),
            port,
            other_port,
            bus_port: me.address.bus_port,
            flags,
            down: !self.up,
            switches: switch::EXTENSIONS | paused,
        }
    }

    /// Sends a message over a link.
    pub fn send(&mut self, link: LinkId, message: &Message) {
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
        self.actions.push(Action::Send(link, bytes));
    }

    /// Returns the links to all nodes except those in handshake.
    fn links_to_others(&self) -> Vec<(NodeId, LinkId)> {
        let known = |node: &&Node| !node.is_in_handshake() && node.id != self.myself;
        let nodes = self.nodes.values().filter(known);
        nodes.filter_map(|node| Some((node.id, node.link?))).collect()
    }

    /// Sends a message to all nodes.
    pub fn broadcast(&mut self, message: &Message) {
        let bytes = encode(message);
        for (_, link) in self.links_to_others() {
            self.send_bytes(link, bytes.clone());
        }
    }

    /// Sends a PONG to all nodes, because this node has changed.
    pub fn broadcast_pong(&mut self, now_ms: u64) {
        for (_, link) in self.links_to_others() {
            self.greet(link, Kind::Pong, now_ms);
        }
    }

    /// Sends a PONG to all nodes if this node's role has changed.
    pub fn announce_change(&mut self, now_ms: u64) {
        if std::mem::take(&mut self.announce) {
            self.broadcast_pong(now_ms);
        }
    }

    /// Sends a published message to all other nodes, or to those of this shard if it is `sharded`.
    pub fn propagate(&mut self, sharded: bool, channel: &[u8], payload: &[u8]) {
        let message = |header| Message::Publish {
            header,
            sharded,
            channel: channel.to_vec(),
            payload: payload.to_vec(),
        };
        let (light, whole) = (encode(&message(None)), encode(&message(Some(self.header()))));
        let shard = self.me().shard;
        for (id, link) in self.links_to_others() {
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            if sharded && node.shard != shard {
                continue;
            }
            let bytes = match node.flags.has_any(NodeFlags::LIGHT_HEADERS) {
                true => light.clone(),
                false => whole.clone(),
            };
            self.statistics.pubsub_bytes_sent += (channel.len() + payload.len()) as u64;
            self.send_bytes(link, bytes);
        }
    }

    /// Sends an UPDATE message with the slots of the node `about`.
    pub fn send_update(&mut self, link: LinkId, about: NodeId) {
        let Some(node) = self.nodes.get(&about) else {
            return;
        };
        let mut slots = node.slots.clone();
        for slot in self.unclaimed.iter() {
            slots.put(slot, false);
        }
        let message = Message::Update {
            header: self.header(),
            id: about,
            config_epoch: node.config_epoch,
            slots,
        };
        self.send(link, &message);
    }

    /// Sends a PING, PONG or MEET over a link.
    pub fn greet(&mut self, link: LinkId, kind: Kind, now_ms: u64) {
        let receiver = self.links.get(&link).and_then(|figures| figures.node);
        let inbound = self.links.get(&link).is_none_or(|figures| figures.inbound);
        let node = receiver.and_then(|id| self.nodes.get_mut(&id));
        let extends = node
            .as_ref()
            .is_some_and(|node| node.flags.has_any(NodeFlags::EXTENSIONS));
        if let Some(node) = node.filter(|_| !inbound && kind == Kind::Ping) {
            node.ping_sent_ms = now_ms;
        }
        let gossip = self.gossip(receiver);
        let extensions = match extends {
            true => self.extensions(now_ms),
            false => Extensions::default(),
        };
        let message = Message::Greeting {
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
    fn gossip(&self, receiver: Option<NodeId>) -> Vec<Gossip> {
        let nameless = NodeFlags::HANDSHAKE.with(NodeFlags::NO_ADDRESS);
        let wanted = (self.nodes.len() * self.settings.gossip_percent as usize / 100).max(LEAST_GOSSIP);
        let named = self.nodes.values().filter(|node| !node.flags.has_any(nameless));
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
            .map(|node| self.entry_of(node))
            .collect()
    }
}

impl State {
    fn entry_of(&self, node: &Node) -> Gossip {
        let seconds = |ms: u64| (ms / 1000) as u32;
        let (port, other_port) = self.settings.in_order((node.address.tcp_port, node.address.tls_port));
        Gossip {
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

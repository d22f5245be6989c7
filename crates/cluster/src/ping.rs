//! Processes PING, PONG and MEET: the sender, its address, and the information that the message carries.

use super::links::LinkAddresses;
use super::message::{Extensions, GossipEntry, Header, MessageType, switch};
use super::node::{Address, LinkId, Node, NodeFlags, NodeId};
use super::state::ClusterState;

/// The time after a node was marked as failed before the mark may be cleared, in node timeouts.
const FAIL_UNDO_TIMEOUTS: u64 = 2;

/// A PING, PONG or MEET.
pub(super) struct PingMessage {
    pub kind: MessageType,
    pub header: Header,
    pub gossip: Vec<GossipEntry>,
    pub extensions: Extensions,
}

impl ClusterState {
    pub(super) fn receive_ping(
        &mut self,
        link: LinkId,
        sender: Option<NodeId>,
        ping: &PingMessage,
        ends: &LinkAddresses,
        now_ms: u64,
    ) {
        let PingMessage { kind, header, .. } = ping;
        if *kind != MessageType::Pong {
            self.find_own_address(*kind, ends);
            match sender {
                None if *kind == MessageType::Meet => {
                    // Otherwise it is a further MEET of a handshake.
                    if self.node_of(link).is_none() {
                        self.add_meeting_node(link, header, ends, now_ms);
                    }
                    self.process_gossip(None, &ping.gossip, true, now_ms);
                }
                Some(id) if *kind == MessageType::Meet => self.call_again(id, link, now_ms),
                _ => {}
            }
            self.send_ping(link, MessageType::Pong, now_ms);
        }
        if let Some(node) = sender.and_then(|id| self.nodes.get_mut(&id))
            && node.flags.intersects(NodeFlags::MEET)
        {
            node.flags.set(NodeFlags::MEET, false);
            log::info!("Successfully completed handshake with {}", node.log_name());
        }
        if !self.is_inbound(link) && !self.complete_outgoing_handshake(link, sender, header, ends, now_ms) {
            return;
        }
        // A handshake that has just completed has made the sender known.
        let of_link = || self.node_of(link).and_then(|id| self.known_node(&id));
        let sender = sender.or_else(|| of_link().map(|node| node.id).filter(|id| *id == header.sender));
        let Some(id) = sender else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.flags
            .set(NodeFlags::NO_FAILOVER, header.flags.intersects(NodeFlags::NO_FAILOVER));
        if *kind == MessageType::Ping && !node.is_in_handshake() {
            self.update_address(id, link, header, ends);
        }
        if !self.is_inbound(link) && *kind == MessageType::Pong {
            self.record_pong(link, now_ms);
        }
        if !self.apply_announced_role_and_slots(id, header) {
            return;
        }
        self.process_gossip(Some(id), &ping.gossip, false, now_ms);
        self.apply_extensions(id, &ping.extensions, now_ms);
    }

    /// Learns this node's own address: the one at which another node has reached it.
    fn find_own_address(&mut self, kind: MessageType, ends: &LinkAddresses) {
        let announced = self.settings.announced_ip.is_some();
        let me = self.me_mut();
        let unknown = kind == MessageType::Meet || me.address.ip.is_empty();
        if unknown && !announced && !ends.local.is_empty() && me.address.ip != ends.local {
            me.address.ip.clone_from(&ends.local);
            log::info!("IP address for this node updated to {}", ends.local);
            (self.todo.save, self.todo.publish) = (true, true);
        }
    }

    /// Replaces the link to a known node that has sent a MEET: it does not consider the link as one from this node. The
    /// PING on the new link tells it otherwise. The link to a node that became known just now stays: its handshake may
    /// not have ended.
    fn call_again(&mut self, id: NodeId, link: LinkId, now_ms: u64) {
        let timeout_ms = self.handshake_timeout_ms();
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let is_new = now_ms.saturating_sub(node.created_ms) <= timeout_ms;
        if let Some(outbound) = node.link.filter(|outbound| !is_new && *outbound != link) {
            log::info!(
                "Freeing outbound link to node {} after receiving a MEET packet from this known node",
                node.log_name()
            );
            self.close_link(outbound);
        }
    }

    /// Adds a node that sent MEET, in handshake. Its ID becomes known when it answers.
    fn add_meeting_node(&mut self, link: LinkId, header: &Header, ends: &LinkAddresses, now_ms: u64) {
        let mut node = Node::new(NodeId::random(), NodeFlags::HANDSHAKE, now_ms);
        let id = node.id;
        node.address.ip = announced_or_seen(header, ends);
        (node.address.tcp_port, node.address.tls_port) =
            self.settings.swap_ports_for_tls(header.port, header.other_port);
        node.address.bus_port = header.bus_port;
        node.flags
            .set(NodeFlags::EXTENSIONS, header.switches & switch::EXTENSIONS != 0);
        self.nodes.insert(id, node);
        self.assign_link(link, id);
        self.todo.save = true;
    }

    /// Returns `true` if the node at the other end of an outgoing link is the expected one. Completes its handshake.
    fn complete_outgoing_handshake(
        &mut self,
        link: LinkId,
        sender: Option<NodeId>,
        header: &Header,
        ends: &LinkAddresses,
        now_ms: u64,
    ) -> bool {
        let Some(called) = self.node_of(link) else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(&called) else {
            return false;
        };
        if node.is_in_handshake() {
            if let Some(known) = sender {
                self.update_address(known, link, header, ends);
                self.delete_node(called);
                return false;
            }
            node.flags.set(NodeFlags::HANDSHAKE, false);
            let roles = NodeFlags::PRIMARY.union(NodeFlags::REPLICA);
            node.flags |= header.flags & roles;
            if node.flags.intersects(NodeFlags::MEET) {
                node.flags.set(NodeFlags::MEET, false);
                log::info!("Successfully completed handshake with {}", header.sender);
            }
            self.rename_node(called, header.sender);
            (self.todo.save, self.todo.publish) = (true, true);
            return true;
        }
        if called != header.sender {
            log::info!(
                "PONG contains mismatching sender ID. About node {} in shard {}",
                node.log_name(),
                node.shard
            );
            node.flags.set(NodeFlags::NO_ADDRESS, true);
            node.address = Default::default();
            let had_failed = node.has_failed();
            (self.todo.save, self.todo.publish) = (true, true);
            self.close_link(link);
            if !had_failed {
                // This node never connects to it again, and no other node hears of it.
                self.declare_failed(called, now_ms);
            }
            return false;
        }
        true
    }

    fn update_address(&mut self, id: NodeId, link: LinkId, header: &Header, ends: &LinkAddresses) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (tcp_port, tls_port) = self.settings.swap_ports_for_tls(header.port, header.other_port);
        let address = Address {
            ip: announced_or_seen(header, ends),
            tcp_port,
            tls_port,
            bus_port: header.bus_port,
        };
        if node.link == Some(link) || address.ip.is_empty() || node.address == address || id == self.myself {
            return;
        }
        self.change_address(id, address);
        self.health_may_have_changed = true;
    }

    /// Updates the address of a node.
    pub(super) fn change_address(&mut self, id: NodeId, address: Address) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        log::info!(
            "Address updated for node {}, now {}:{}",
            node.log_name(),
            address.ip,
            address.port()
        );
        node.address = address;
        node.flags.set(NodeFlags::NO_ADDRESS, false);
        let link = node.link;
        (self.todo.save, self.todo.publish) = (true, true);
        if let Some(link) = link {
            self.close_link(link);
        }
    }

    /// Records that a node has answered a ping.
    fn record_pong(&mut self, link: LinkId, now_ms: u64) {
        let Some(node) = self.node_of(link).and_then(|id| self.nodes.get_mut(&id)) else {
            return;
        };
        (node.pong_received_ms, node.ping_sent_ms) = (now_ms, 0);
        if node.has_timed_out() {
            node.flags.set(NodeFlags::PFAIL, false);
            (self.todo.save, self.health_may_have_changed) = (true, true);
        } else if node.has_failed() {
            let undo_ms = self.settings.node_timeout_ms.saturating_mul(FAIL_UNDO_TIMEOUTS);
            let old = now_ms.saturating_sub(node.failed_ms) > undo_ms;
            if !node.has_vote() || old {
                log::info!("Clear FAIL state for node {}: it is reachable again.", node.log_name());
                node.flags.set(NodeFlags::FAIL, false);
                (self.todo.save, self.health_may_have_changed) = (true, true);
            }
        }
    }
}

/// Returns the address that a node announces, or else the one of its link.
fn announced_or_seen(header: &Header, ends: &LinkAddresses) -> String {
    match header.ip.is_empty() {
        true => ends.peer.clone(),
        false => header.ip.clone(),
    }
}

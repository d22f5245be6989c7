//! Processes gossip: what nodes report about other nodes, their addresses and failures.

use super::message::{BusMessage, Extensions, GossipEntry};
use super::node::{Address, Node, NodeFlags, NodeId};
use super::state::ClusterState;

impl ClusterState {
    /// Processes the gossip of a node. Unknown nodes are added only if the sender is known or is being met.
    pub(super) fn process_gossip(
        &mut self,
        sender: Option<NodeId>,
        gossip: &[GossipEntry],
        meeting: bool,
        now_ms: u64,
    ) {
        for entry in gossip {
            if entry.id == self.myself {
                continue;
            }
            if self.nodes.contains_key(&entry.id) {
                self.process_gossip_entry(sender, entry, now_ms);
            } else if (sender.is_some() || meeting)
                && !entry.flags.intersects(NodeFlags::NO_ADDRESS)
                && !self.is_forgotten(&entry.id, now_ms)
            {
                self.add_gossiped_node(entry, now_ms);
            }
        }
    }

    /// Processes what a known node reports about another one. Only a node with a vote reports a failure that counts;
    /// any node takes its earlier report back.
    fn process_gossip_entry(&mut self, sender: Option<NodeId>, entry: &GossipEntry, now_ms: u64) {
        let silent = NodeFlags::FAIL.union(NodeFlags::PFAIL);
        let fails = entry.flags.intersects(silent);
        if let Some(sender) = sender {
            match fails {
                true => {
                    if self.nodes.get(&sender).is_some_and(Node::has_vote) {
                        self.record_failure_report(entry.id, sender, now_ms);
                    }
                    self.mark_failing(entry.id, now_ms);
                }
                false => {
                    if let Some(node) = self.nodes.get_mut(&entry.id) {
                        node.failure_reports.retain(|(reporter, _)| *reporter != sender);
                    }
                }
            }
        }
        let Some(node) = self.nodes.get(&entry.id) else {
            return;
        };
        let reports = self.failure_reports(node, now_ms);
        let address = self.address_of(entry);
        let Some(node) = self.nodes.get_mut(&entry.id) else {
            return;
        };
        let unusual = silent.union(NodeFlags::HANDSHAKE).union(NodeFlags::MEET);
        if !fails && !node.flags.intersects(unusual) && node.ping_sent_ms == 0 && reports == 0 {
            let pong_ms = u64::from(entry.pong_received_s) * 1000;
            if pong_ms <= now_ms + 500 && pong_ms > node.pong_received_ms {
                node.pong_received_ms = pong_ms;
            }
        }
        if node.flags.intersects(silent)
            && !fails
            && !entry.flags.intersects(NodeFlags::NO_ADDRESS)
            && node.address != address
        {
            self.change_address(entry.id, address);
        }
    }

    fn add_gossiped_node(&mut self, entry: &GossipEntry, now_ms: u64) {
        let own = NodeFlags::MYSELF.union(NodeFlags::MEET).union(NodeFlags::HANDSHAKE);
        let mut flags = entry.flags;
        flags.set(own, false);
        let mut node = Node::new(entry.id, flags, now_ms);
        node.address = self.address_of(entry);
        self.nodes.insert(entry.id, node);
        (self.todo.save, self.todo.publish) = (true, true);
    }

    /// Records a failure report of a voting node. Once the other node counts as failed, no further report matters.
    fn record_failure_report(&mut self, failing: NodeId, by: NodeId, now_ms: u64) {
        let reporter = self.nodes.get(&by).map(Node::log_name).unwrap_or_default();
        let Some(node) = self.nodes.get_mut(&failing).filter(|node| !node.has_failed()) else {
            return;
        };
        match node.failure_reports.iter_mut().find(|(reporter, _)| *reporter == by) {
            Some((_, at_ms)) => *at_ms = now_ms,
            None => {
                log::debug!("Node {reporter} reported node {} as not reachable.", node.log_name());
                node.failure_reports.push((by, now_ms));
            }
        }
    }

    /// Marks a node as failed if it does not answer this node and a majority reports it.
    pub fn mark_failing(&mut self, id: NodeId, now_ms: u64) {
        let Some(node) = self
            .nodes
            .get(&id)
            .filter(|node| node.has_timed_out() && !node.has_failed())
        else {
            return;
        };
        let votes = self.failure_reports(node, now_ms) + usize::from(self.me().has_vote());
        if votes < self.quorum() {
            return;
        }
        self.declare_failed(id, now_ms);
    }

    /// Marks a node as failed, and tells all other nodes.
    pub(super) fn declare_failed(&mut self, id: NodeId, now_ms: u64) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        log::info!("Marking node {} as failing (quorum reached).", node.log_name());
        if let Some(node) = self.nodes.get_mut(&id) {
            node.flags.set(NodeFlags::PFAIL, false);
            node.flags.set(NodeFlags::FAIL, true);
            node.failed_ms = now_ms;
        }
        self.broadcast(&BusMessage::Fail(self.header(), id));
        (self.todo.save, self.health_may_have_changed) = (true, true);
    }

    pub(super) fn apply_extensions(&mut self, id: NodeId, extensions: &Extensions, now_ms: u64) {
        for (forgotten, seconds) in &extensions.forgotten {
            let needed = *forgotten == self.myself || (self.me().is_replica() && self.me().primary == Some(*forgotten));
            if !needed && self.nodes.contains_key(forgotten) {
                self.forget(*forgotten, *seconds, now_ms);
                self.delete_node(*forgotten);
                (self.todo.save, self.health_may_have_changed) = (true, true);
            }
        }
        let of_primary = self.nodes.get(&id).and_then(|node| self.shard_of(&node.primary?));
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.announced != extensions.announced {
            node.announced = extensions.announced.clone();
            (self.todo.save, self.todo.publish) = (true, true);
        }
        let shard = of_primary.or(extensions.shard).unwrap_or(node.shard);
        if node.shard != shard {
            self.move_to_shard(id, shard);
            self.todo.save = true;
        }
        if self.my_primary() == id && self.me().shard != shard {
            // This node may have been assigned a shard by its former primary.
            self.me_mut().shard = shard;
            (self.todo.save, self.todo.sync) = (true, true);
        }
    }
}

impl ClusterState {
    /// Changes the shard of a node, and of its replicas, which are always in its shard: a cluster configuration file in
    /// which they are not is refused at the next start. This node's own shard is changed by the caller.
    fn move_to_shard(&mut self, id: NodeId, shard: NodeId) {
        let myself = self.myself;
        let moved = |node: &&mut Node| node.id == id || (node.primary == Some(id) && node.id != myself);
        for node in self.nodes.values_mut().filter(moved) {
            node.shard = shard;
        }
    }

    fn address_of(&self, entry: &GossipEntry) -> Address {
        let (tcp_port, tls_port) = self.settings.swap_ports_for_tls(entry.port, entry.other_port);
        Address {
            ip: entry.ip.clone(),
            tcp_port,
            tls_port,
            bus_port: entry.bus_port,
        }
    }
}

//! Processes gossip: what nodes report about other nodes, their addresses and failures.

use super::message::{Extensions, Gossip, Message};
use super::node::{Address, Node, NodeFlags, NodeId};
use super::state::State;
use crate::observability::log;

impl State {
    /// Processes the gossip of a node. Unknown nodes are added only if the sender is known or is being met.
    pub(super) fn hear_of_others(&mut self, sender: Option<NodeId>, gossip: &[Gossip], meeting: bool, now_ms: u64) {
        let votes = sender.and_then(|id| self.nodes.get(&id)).is_some_and(Node::votes);
        for entry in gossip {
            if entry.id == self.myself {
                continue;
            }
            if self.nodes.contains_key(&entry.id) {
                self.hear_of(sender.filter(|_| votes), entry, now_ms);
            } else if (sender.is_some() || meeting)
                && !entry.flags.has_any(NodeFlags::NO_ADDRESS)
                && !self.is_forgotten(&entry.id, now_ms)
            {
                self.learn(entry, now_ms);
            }
        }
    }

    fn hear_of(&mut self, voter: Option<NodeId>, entry: &Gossip, now_ms: u64) {
        let silent = NodeFlags::FAIL.with(NodeFlags::PFAIL);
        let fails = entry.flags.has_any(silent);
        if let Some(voter) = voter {
            match fails {
                true => {
                    self.report(entry.id, voter, now_ms);
                    self.mark_failing(entry.id, now_ms);
                }
                false => {
                    if let Some(node) = self.nodes.get_mut(&entry.id) {
                        node.reports.retain(|(reporter, _)| *reporter != voter);
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
        if !fails && node.ping_sent_ms == 0 && reports == 0 {
            let pong_ms = u64::from(entry.pong_received_s) * 1000;
            if pong_ms <= now_ms + 500 && pong_ms > node.pong_received_ms {
                node.pong_received_ms = pong_ms;
            }
        }
        if node.flags.has_any(silent)
            && !fails
            && !entry.flags.has_any(NodeFlags::NO_ADDRESS)
            && node.address != address
        {
            self.move_to(entry.id, address);
        }
    }

    fn learn(&mut self, entry: &Gossip, now_ms: u64) {
        let own = NodeFlags::MYSELF.with(NodeFlags::MEET).with(NodeFlags::HANDSHAKE);
        let mut flags = entry.flags;
        flags.put(own, false);
        let mut node = Node::new(entry.id, flags, now_ms);
        node.address = self.address_of(entry);
        self.nodes.insert(entry.id, node);
        (self.todo.save, self.todo.publish) = (true, true);
    }

    /// Records a failure report of a voting node.
    fn report(&mut self, failing: NodeId, by: NodeId, now_ms: u64) {
        let reporter = self.nodes.get(&by).map(Node::named).unwrap_or_default();
        let Some(node) = self.nodes.get_mut(&failing) else {
            return;
        };
        match node.reports.iter_mut().find(|(reporter, _)| *reporter == by) {
            Some((_, at_ms)) => *at_ms = now_ms,
            None => {
                log::notice!("Node {reporter} reported node {} as not reachable.", node.named());
                node.reports.push((by, now_ms));
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
        let votes = self.failure_reports(node, now_ms) + usize::from(self.me().votes());
        if votes < self.size / 2 + 1 {
            return;
        }
        log::notice!("Marking node {} as failing (quorum reached).", node.named());
        if let Some(node) = self.nodes.get_mut(&id) {
            node.flags.put(NodeFlags::PFAIL, false);
            node.flags.put(NodeFlags::FAIL, true);
            node.failed_ms = now_ms;
        }
        self.broadcast(&Message::Fail(self.header(), id));
        (self.todo.save, self.look) = (true, true);
    }

    pub(super) fn note_extensions(&mut self, id: NodeId, extensions: &Extensions, now_ms: u64) {
        for (forgotten, seconds) in &extensions.forgotten {
            let needed = *forgotten == self.myself || (self.me().is_replica() && self.me().primary == Some(*forgotten));
            if !needed && self.nodes.contains_key(forgotten) {
                self.forget(*forgotten, *seconds, now_ms);
                self.delete_node(*forgotten);
                (self.todo.save, self.look) = (true, true);
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
            node.shard = shard;
            self.todo.save = true;
        }
        if self.my_primary() == id && self.me().shard != shard {
            // This node may have been assigned a shard by its former primary.
            self.me_mut().shard = shard;
            (self.todo.save, self.todo.sync) = (true, true);
        }
    }
}

impl State {
    fn address_of(&self, entry: &Gossip) -> Address {
        let (tcp_port, tls_port) = self.settings.in_order((entry.port, entry.other_port));
        Address {
            ip: entry.ip.clone(),
            tcp_port,
            tls_port,
            bus_port: entry.bus_port,
        }
    }
}

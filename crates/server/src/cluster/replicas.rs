//! Who follows whom: ties between replicas and primaries, whom this node follows, and replicas that move to primaries
//! which have lost theirs.

use std::collections::BTreeMap;

use super::node::{Node, NodeFlags, NodeId};
use super::state::State;
use crate::observability::log;

/// How long a primary must have been without replicas before another's moves to it, ms: after a failover its own ones
/// come back by themselves.
const MIGRATION_DELAY_MS: u64 = 5000;

impl State {
    /// A node follows another one from now on.
    pub(super) fn tie(&mut self, replica: NodeId, primary: NodeId) {
        if self
            .nodes
            .get(&replica)
            .is_some_and(|node| node.primary == Some(primary))
        {
            return;
        }
        self.let_go(replica);
        if let Some(node) = self.nodes.get_mut(&replica) {
            node.primary = Some(primary);
        }
        if let Some(node) = self.nodes.get_mut(&primary) {
            // It shall get other replicas if it loses this one.
            node.flags.put(NodeFlags::MIGRATE_TO, true);
        }
    }

    /// A node follows nobody any more; whether it did.
    pub(super) fn let_go(&mut self, replica: NodeId) -> bool {
        let Some(primary) = self.nodes.get_mut(&replica).and_then(|node| node.primary.take()) else {
            return false;
        };
        let has_others = self.replicas(primary).next().is_some();
        if let Some(node) = self.nodes.get_mut(&primary).filter(|_| !has_others) {
            node.flags.put(NodeFlags::MIGRATE_TO, false);
        }
        true
    }

    /// This node follows another one from now on. It has no slots of its own. `resync` tells that its data is no part of
    /// that node's history.
    pub(super) fn set_primary(&mut self, id: NodeId, close_slots: bool, resync: bool) {
        assert!(self.me().slots.is_empty(), "a node with slots follows nobody");
        let myself = self.myself;
        let me = self.me_mut();
        me.flags.put(NodeFlags::PRIMARY.with(NodeFlags::MIGRATE_TO), false);
        me.flags.put(NodeFlags::REPLICA, true);
        if close_slots {
            self.close_slots();
        }
        self.tie(myself, id);
        if let Some(shard) = self.shard_of(&id) {
            self.me_mut().shard = shard;
        }
        self.resync |= resync;
        // Nobody votes for a node that is a primary in his eyes.
        self.announce = true;
        self.reset_manual();
        self.election = Default::default();
        (self.todo.save, self.todo.publish, self.look) = (true, true, true);
    }

    /// A primary that has become a replica leaves its own replicas to the node that it follows.
    pub(super) fn leave_chain(&mut self) {
        let above = |id: NodeId| self.nodes.get(&id).and_then(|node| node.primary);
        let Some(primary) = self.me().primary else {
            return;
        };
        let Some(top) = above(primary).filter(|top| *top != self.myself) else {
            return;
        };
        log::notice!("I'm a sub-replica! Reconfiguring myself as a replica of {top} from {primary}");
        let resync = self.shard_of(&top) != Some(self.me().shard);
        self.set_primary(top, true, resync);
        self.todo.sync = true;
    }

    /// Moves this replica to a primary that has lost its replicas, if there is one, and it is this replica's turn.
    pub(super) fn consider_migration(&mut self, now_ms: u64) {
        let Some(mine) = self.me().primary.filter(|_| self.me().is_replica()) else {
            return;
        };
        let mut working: BTreeMap<NodeId, usize> = BTreeMap::new();
        for node in self
            .nodes
            .values()
            .filter(|node| node.is_replica() && !node.has_failed())
        {
            *working.entry(node.primary.unwrap_or(node.id)).or_default() += 1;
        }
        let figures: Vec<(NodeId, usize, bool)> = self
            .nodes
            .values()
            .filter(|node| node.is_primary() && !node.has_failed())
            .map(|node| {
                let working = working.get(&node.id).copied().unwrap_or(0);
                let orphaned = working == 0 && !node.slots.is_empty() && node.flags.has_any(NodeFlags::MIGRATE_TO);
                (node.id, working, orphaned)
            })
            .collect();
        for node in self.nodes.values_mut() {
            let orphaned = figures.iter().any(|(id, _, orphaned)| *id == node.id && *orphaned);
            match (orphaned, node.orphaned_ms) {
                (true, 0) => node.orphaned_ms = now_ms,
                (false, _) => node.orphaned_ms = 0,
                _ => {}
            }
        }
        let most = figures.iter().map(|(_, working, _)| *working).max().unwrap_or(0);
        let of_mine = figures
            .iter()
            .find(|(id, ..)| *id == mine)
            .map_or(0, |(_, working, _)| *working);
        if !self.settings.replica_migration || !self.up || most < 2 || of_mine != most {
            return;
        }
        let silent = NodeFlags::FAIL.with(NodeFlags::PFAIL);
        let staying = self.replicas(mine).filter(|node| !node.flags.has_any(silent)).count() as u64;
        if staying <= self.settings.migration_barrier {
            return;
        }
        let richest = figures.iter().filter(|(_, working, _)| *working == most);
        let first = richest
            .flat_map(|(id, ..)| self.replicas(*id))
            .map(|node| node.id)
            .min();
        let target = figures.iter().find(|(.., orphaned)| *orphaned).map(|(id, ..)| *id);
        let ripe = |node: &&Node| now_ms.saturating_sub(node.orphaned_ms) > MIGRATION_DELAY_MS;
        let Some(target) = target.filter(|target| self.nodes.get(target).as_ref().is_some_and(ripe)) else {
            return;
        };
        if first == Some(self.myself) {
            log::notice!("Migrating to orphaned primary {target}");
            self.set_primary(target, true, true);
        }
    }
}

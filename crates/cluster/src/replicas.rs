//! The relations between replicas and primaries: the primary of this node, and the migration of replicas to primaries
//! that have lost theirs.

use std::collections::BTreeMap;

use super::node::{Node, NodeFlags, NodeId};
use super::state::ClusterState;

/// The time for which a primary must have been without replicas before a replica of another primary migrates to it, in
/// milliseconds. After a failover, its own replicas return by themselves.
const MIGRATION_DELAY_MS: u64 = 5000;

impl ClusterState {
    /// Records that a node replicates another one.
    pub(super) fn set_primary_of(&mut self, replica: NodeId, primary: NodeId) {
        if self
            .nodes
            .get(&replica)
            .is_some_and(|node| node.primary == Some(primary))
        {
            return;
        }
        self.clear_primary_of(replica);
        if let Some(node) = self.nodes.get_mut(&replica) {
            node.primary = Some(primary);
        }
        if let Some(node) = self.nodes.get_mut(&primary) {
            // It may receive other replicas if it loses this one.
            node.flags.set(NodeFlags::MIGRATE_TO, true);
        }
    }

    /// Records that a node replicates no primary any more. Returns `true` if it did.
    pub(super) fn clear_primary_of(&mut self, replica: NodeId) -> bool {
        let Some(primary) = self.nodes.get_mut(&replica).and_then(|node| node.primary.take()) else {
            return false;
        };
        let has_others = self.replicas(primary).next().is_some();
        if let Some(node) = self.nodes.get_mut(&primary).filter(|_| !has_others) {
            node.flags.set(NodeFlags::MIGRATE_TO, false);
        }
        true
    }

    /// Makes this node, which has no slots, a replica of another node. `resync` is `true` if its data does not belong
    /// to that node's history.
    ///
    /// # Panics
    /// If this node has slots.
    pub(super) fn set_primary(&mut self, id: NodeId, close_slots: bool, resync: bool) {
        assert!(self.me().slots.is_empty(), "a node with slots follows nobody");
        let myself = self.myself;
        let me = self.me_mut();
        me.flags.set(NodeFlags::PRIMARY.union(NodeFlags::MIGRATE_TO), false);
        me.flags.set(NodeFlags::REPLICA, true);
        if close_slots {
            self.end_slot_migrations();
        }
        self.set_primary_of(myself, id);
        if let Some(shard) = self.shard_of(&id) {
            self.me_mut().shard = shard;
        }
        self.needs_full_sync |= resync;
        // If this node becomes a primary later, it collects the slots with keys again.
        self.unclaimed_with_keys = Default::default();
        // A node gets no vote from a node that still considers it a primary.
        self.must_announce = true;
        self.end_manual_failover();
        self.election = Default::default();
        (self.todo.save, self.todo.publish, self.health_may_have_changed) = (true, true, true);
    }

    /// If this node's primary has become a replica, makes this node a replica of that replica's primary.
    pub(super) fn leave_replica_chain(&mut self) {
        let above = |id: NodeId| self.nodes.get(&id).and_then(|node| node.primary);
        let Some(primary) = self.me().primary else {
            return;
        };
        let Some(top) = above(primary).filter(|top| *top != self.myself) else {
            return;
        };
        log::info!("I'm a sub-replica! Reconfiguring myself as a replica of {top} from {primary}");
        let resync = self.shard_of(&top) != Some(self.me().shard);
        self.set_primary(top, true, resync);
        self.todo.sync = true;
    }

    /// Migrates this replica to a primary that has lost its replicas, if there is one and this replica is the one to
    /// migrate.
    pub(super) fn consider_replica_migration(&mut self, now_ms: u64) {
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
                let orphaned = working == 0 && !node.slots.is_empty() && node.flags.intersects(NodeFlags::MIGRATE_TO);
                (node.id, working, orphaned)
            })
            .collect();
        let is_orphaned = |node: &Node| figures.iter().any(|(id, _, orphaned)| *id == node.id && *orphaned);
        for node in self.nodes.values_mut().filter(|node| !is_orphaned(node)) {
            node.orphaned_since_ms = 0;
        }
        let most = figures.iter().map(|(_, working, _)| *working).max().unwrap_or(0);
        let of_mine = figures
            .iter()
            .find(|(id, ..)| *id == mine)
            .map_or(0, |(_, working, _)| *working);
        if !self.settings.allows_replica_migration || !self.is_up || most < 2 || of_mine != most {
            return;
        }
        let silent = NodeFlags::FAIL.union(NodeFlags::PFAIL);
        let staying = self
            .replicas(mine)
            .filter(|node| !node.flags.intersects(silent))
            .count() as u64;
        if staying <= self.settings.migration_barrier {
            return;
        }
        // As in Valkey, the delay begins when a migration is possible, for instance once the cluster is up again.
        for node in self.nodes.values_mut().filter(|node| is_orphaned(node)) {
            if node.orphaned_since_ms == 0 {
                node.orphaned_since_ms = now_ms;
            }
        }
        let richest = figures.iter().filter(|(_, working, _)| *working == most);
        let first = richest
            .flat_map(|(id, ..)| self.replicas(*id))
            .map(|node| node.id)
            .min();
        let target = figures.iter().find(|(.., orphaned)| *orphaned).map(|(id, ..)| *id);
        let ripe = |node: &&Node| now_ms.saturating_sub(node.orphaned_since_ms) > MIGRATION_DELAY_MS;
        let Some(target) = target.and_then(|target| self.nodes.get(&target)).filter(ripe) else {
            return;
        };
        if first == Some(self.myself) {
            log::info!(
                "Migrating to orphaned primary {} in shard {}",
                target.log_name(),
                target.shard
            );
            let target = target.id;
            self.set_primary(target, true, true);
        }
    }
}

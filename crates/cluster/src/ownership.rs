//! Processes the role and the slots that a node announces, as far as they are newer than the known state, and the
//! changes of this node's own role that follow from it.

use super::message::Header;
use super::node::{Node, NodeFlags, NodeId};
use super::slot_set::SlotSet;
use super::state::ClusterState;
use super::view::ClusterView;
use weft_base::SlotIndex;

/// The slots that a node has taken by claiming them.
struct ClaimedSlots {
    /// The primary of this node's shard.
    from: NodeId,
    /// The slots in which keys may be left: those that this node owned, those that its primary owned and another shard
    /// has now, and those of [`ClusterState::unclaimed_with_keys`] that another shard has now. A replica that is
    /// promoted before their keys are deleted goes on with that.
    leftover: Vec<SlotIndex>,
    /// The slots that belonged to other shards, with their former owners.
    from_other_shards: Vec<(SlotIndex, NodeId)>,
    /// `true` if any of the slots belonged to that primary.
    any_from_primary: bool,
    /// `true` if the node claims slots that this node has taken over from it.
    is_outdated: bool,
}

impl ClusterState {
    /// Returns `false` if the message is older than the known state, so that the rest of it does not count either.
    pub(super) fn apply_announced_role_and_slots(&mut self, id: NodeId, header: &Header) -> bool {
        let Some(node) = self.nodes.get(&id) else {
            return true;
        };
        if id == self.myself {
            return true;
        }
        let was_replica = node.is_replica();
        match header.primary {
            None => self.make_primary(id),
            Some(primary) if self.is_stale(id, primary, header.config_epoch) => return false,
            Some(primary) => self.record_replica(id, primary, header.config_epoch),
        }
        self.confirm_takeovers(id, header);
        let Some(node) = self.nodes.get(&id) else {
            return true;
        };
        let is_different = was_replica || node.slots != header.slots;
        if header.primary.is_none() && (is_different || self.claims_unclaimed(id, &header.slots)) {
            self.update_slots(id, header.config_epoch, &header.slots);
            self.send_update_if_outdated(id, header);
        }
        self.resolve_epoch_collision(id, header);
        true
    }

    /// Returns `true` if a node claims slots again that it had stopped claiming, or slots with kept keys. The slots
    /// known of the node need not differ then.
    fn claims_unclaimed(&self, id: NodeId, slots: &SlotSet) -> bool {
        let any = |set: &SlotSet, is_meant: &dyn Fn(SlotIndex) -> bool| {
            !set.is_empty() && set.iter().any(|slot| slots.contains(slot) && is_meant(slot))
        };
        any(&self.unclaimed, &|slot| self.owner(slot) == Some(id)) || any(&self.unclaimed_with_keys, &|_| true)
    }

    /// Returns `true` if a primary that announces itself as the replica of a node of its shard did so before what is
    /// known of them: it was stopped, or the message came over another connection than later ones.
    fn is_stale(&self, id: NodeId, primary: NodeId, epoch: u64) -> bool {
        let (Some(node), Some(claimed)) = (self.nodes.get(&id), self.known_node(&primary)) else {
            return false;
        };
        let known = self.epoch_of(node).max(self.epoch_of(claimed));
        let is_stale = !node.is_replica() && node.shard == claimed.shard && known > epoch;
        if is_stale {
            log::info!("Ignore stale message from {id}; gossip config epoch: {epoch}, current config epoch: {known}");
        }
        is_stale
    }

    fn record_replica(&mut self, id: NodeId, primary: NodeId, epoch: u64) {
        let known = self.known_node(&primary).map(|node| node.shard);
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (was_primary, same_shard, followed) = (!node.is_replica(), known == Some(node.shard), node.primary);
        if was_primary {
            match same_shard {
                true => self.record_failover(id, primary, epoch),
                false => {
                    let slots = self.delete_slots_of(id);
                    log::info!("Node {id} is no longer primary; removed all {slots} slot(s) it used to own");
                }
            }
            if let Some(node) = self.nodes.get_mut(&id) {
                node.flags.set(NodeFlags::PRIMARY.union(NodeFlags::MIGRATE_TO), false);
                node.flags.set(NodeFlags::REPLICA, true);
            }
            (self.todo.save, self.todo.publish, self.health_may_have_changed) = (true, true, true);
        }
        let Some(shard) = known.filter(|_| followed != Some(primary)) else {
            return;
        };
        log::info!("Node {id} is now a replica of node {primary} in shard {shard}");
        self.set_primary_of(id, primary);
        // This comes before this node's shard is changed, because the shard decides if a full synchronisation is
        // needed.
        self.leave_replica_chain();
        if let Some(node) = self.nodes.get_mut(&id) {
            node.shard = shard;
        }
        (self.todo.save, self.todo.publish) = (true, true);
    }

    /// Records that a primary has become a replica of another node of its shard.
    fn record_failover(&mut self, id: NodeId, to: NodeId, epoch: u64) {
        let was_replica = self.nodes.get(&to).is_some_and(Node::is_replica);
        if to == self.myself || !was_replica {
            // This node knows its own role best. A primary announces its slots itself.
            return;
        }
        self.make_primary(to);
        let slots: Vec<SlotIndex> = match self.nodes.get(&id) {
            Some(node) => node.slots.iter().collect(),
            None => Vec::new(),
        };
        for slot in &slots {
            self.delete_slot(*slot);
            self.add_slot(to, *slot);
        }
        if let Some(node) = self.nodes.get_mut(&to) {
            node.config_epoch = node.config_epoch.max(epoch);
        }
        (self.todo.save, self.todo.sync) = (true, true);
        let name = |id: &NodeId| self.nodes.get(id).map(Node::log_name).unwrap_or_default();
        log::info!(
            "A failover occurred in shard {}; node {} lost {} slot(s) and failed over to node {} with a config epoch of \
             {epoch}",
            self.nodes
                .get(&id)
                .map(|node| node.shard.to_string())
                .unwrap_or_default(),
            name(&id),
            slots.len(),
            name(&to)
        );
        self.move_open_slots(id, to);
    }

    /// Continues the migrations from and to a node with the one that has taken over its slots.
    fn move_open_slots(&mut self, old: NodeId, new: NodeId) {
        let Some(node) = self.nodes.get(&new) else {
            return;
        };
        let place = format!("{} in shard {}", node.log_name(), node.shard);
        let (mut sources, mut targets) = (0, 0);
        for (slot, node) in self.importing.iter_mut().filter(|(_, node)| **node == old) {
            *node = new;
            sources += 1;
            log::info!(
                "Failover occurred in migration source. Update importing source for slot {slot} to node {place}."
            );
        }
        for (slot, node) in self.migrating.iter_mut().filter(|(_, node)| **node == old) {
            *node = new;
            targets += 1;
            log::info!("Failover occurred in migration target. Slot {slot} is now being migrated to node {place}.");
        }
        if sources > 0 {
            log::info!(
                "A failover occurred in migration source. Update importing source of {sources} slot(s) to node {place}."
            );
        }
        if targets > 0 {
            log::info!(
                "A failover occurred in migration target. Update migrating target of {targets} slot(s) to node {place}."
            );
        }
        (self.todo.save, self.todo.publish) = (true, true);
    }

    /// Sends the current owner to a node that claims slots with an old configuration epoch.
    fn send_update_if_outdated(&mut self, id: NodeId, header: &Header) {
        let newer = header.slots.iter().find_map(|slot| {
            let owner = self.owner(slot).filter(|owner| *owner != id)?;
            let claimed = !self.unclaimed.contains(slot);
            let node = self.nodes.get(&owner)?;
            (claimed && node.config_epoch > header.config_epoch).then_some(owner)
        });
        let link = self.nodes.get(&id).and_then(|node| node.link);
        if let (Some(owner), Some(link)) = (newer, link) {
            self.send_update(link, owner);
        }
    }

    /// Resolves a collision of configuration epochs: of two primaries with the same epoch, the one with the smaller ID
    /// takes a new one.
    fn resolve_epoch_collision(&mut self, id: NodeId, header: &Header) {
        let me = self.me();
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let collides = node.is_primary()
            && me.is_primary()
            && header.config_epoch == me.config_epoch
            && node.config_epoch == me.config_epoch;
        if collides && id > self.myself {
            self.current_epoch += 1;
            let epoch = self.current_epoch;
            log::info!(
                "configEpoch collision with node {}. configEpoch set to {epoch}",
                node.log_name()
            );
            self.me_mut().config_epoch = epoch;
            (self.todo.save, self.todo.sync) = (true, true);
            self.must_announce = true;
        }
    }

    /// Applies the slots that a node announces, as far as they are newer than the known state. If this node's shard has
    /// lost all slots to that node, this node becomes its replica.
    pub fn update_slots(&mut self, id: NodeId, epoch: u64, slots: &SlotSet) {
        if id == self.myself {
            log::info!("Discarding UPDATE message about myself.");
            return;
        }
        if self.ignores_claims {
            return;
        }
        let same_shard = self.shard_of(&id) == Some(self.me().shard);
        let mut taken = ClaimedSlots {
            from: self.my_primary(),
            leftover: Vec::new(),
            from_other_shards: Vec::new(),
            any_from_primary: false,
            is_outdated: false,
        };
        for slot in SlotIndex::all() {
            match slots.contains(slot) {
                true => self.process_claimed_slot(id, epoch, slot, &mut taken),
                false => self.process_unclaimed_slot(id, epoch, slot),
            }
        }
        self.log_migrated_slots(id, &taken.from_other_shards);
        if taken.is_outdated {
            self.outdo_epoch(epoch);
        }
        let is_bare = |node: NodeId| self.nodes.get(&node).is_none_or(|node| node.slots.is_empty());
        let outdated = self.epoch_of(self.me()) < epoch;
        let replaced =
            same_shard && outdated && slots.is_empty() && self.me().slots.is_empty() && self.me().primary != Some(id);
        if (taken.any_from_primary || replaced) && is_bare(taken.from) {
            if self.settings.allows_replica_migration || same_shard {
                log::info!(
                    "Configuration change detected. Reconfiguring myself as a replica of node {}",
                    self.name_with_shard(id)
                );
                self.set_primary(id, !same_shard, !same_shard);
                self.todo.sync = true;
                return;
            }
            if self.me().is_primary() {
                log::info!(
                    "My last slot was migrated to node {}. I am now an empty primary.",
                    self.name_with_shard(id)
                );
            }
        }
        for slot in taken.leftover {
            self.leftover.set(slot, true);
        }
    }

    /// Returns the name and the shard of a node for the log.
    fn name_with_shard(&self, id: NodeId) -> String {
        let node = self.nodes.get(&id);
        node.map_or_else(String::new, |node| {
            format!("{} in shard {}", node.log_name(), node.shard)
        })
    }

    /// Takes the slots out of [`ClusterState::leftover`] that can get new keys under the next view: this node's shard
    /// owns them again, or imports them key by key. Returns those whose keys have to be deleted before that view is
    /// published. `settled` is the view under which commands have run so far.
    pub fn take_reopened(&mut self, settled: &ClusterView) -> SlotSet {
        let mut to_empty = SlotSet::default();
        if self.leftover.is_empty() {
            return to_empty;
        }
        let primary = self.my_primary();
        // The primary of a replica deletes the keys before it lets new ones in, and logs that.
        let is_in_charge = self.me().is_primary() && !settled.is_replica;
        for slot in self.leftover.clone().iter() {
            let is_owned = self.owner(slot) == Some(primary);
            if !is_owned && !self.importing.contains_key(&slot) {
                continue;
            }
            self.leftover.set(slot, false);
            // No command has ever found a slot gone that is back before a view without it was published.
            let was_away = !(is_owned && settled.is_mine(slot));
            to_empty.set(slot, is_in_charge && was_away);
        }
        to_empty
    }

    /// Adds those of the slots with keys to [`ClusterState::leftover`] that another shard owns and that this node,
    /// which has become a primary, does not import key by key: it has them from its former primary, which had not
    /// deleted them yet. A slot that no node claims is added when another shard claims it.
    pub fn add_leftover(&mut self, occupied: impl Iterator<Item = SlotIndex>) {
        for slot in occupied {
            if self.owner(slot) == Some(self.my_primary()) || self.importing.contains_key(&slot) {
                continue;
            }
            // Its last owner has given it up: these may be the only keys.
            if self.has_no_claimant(slot) {
                self.todo.save |= self.unclaimed_with_keys.set(slot, true);
            } else {
                self.leftover.set(slot, true);
            }
        }
    }

    /// Returns `true` if no primary claims the slot, as far as this node knows: it has no owner, or its owner has given
    /// it up.
    pub fn has_no_claimant(&self, slot: SlotIndex) -> bool {
        let owner = self.owner(slot).and_then(|id| self.nodes.get(&id));
        owner.is_none_or(|owner| owner.is_replica()) || self.unclaimed.contains(slot)
    }

    /// Returns `true` if the keys of this slot are kept until another shard claims it: these may be the only ones.
    pub fn keeps_keys_of(&self, slot: SlotIndex) -> bool {
        self.unclaimed_with_keys.contains(slot)
    }

    /// Takes slots out of [`ClusterState::leftover`]: they are about to get new keys, by an import of the whole slots.
    pub fn forget_leftover(&mut self, slots: &SlotSet) {
        for slot in slots.iter() {
            self.leftover.set(slot, false);
            self.todo.save |= self.unclaimed_with_keys.set(slot, false);
        }
    }

    /// Takes a slot that a node claims out of [`ClusterState::unclaimed_with_keys`]. Returns `true` if it was there and
    /// the node belongs to another shard, so that the keys here are left over. They are not if this node imports the
    /// slot: new keys may have come, which no other node has.
    fn take_unclaimed_with_keys(&mut self, id: NodeId, slot: SlotIndex) -> bool {
        let was_kept = self.unclaimed_with_keys.set(slot, false);
        self.todo.save |= was_kept;
        was_kept && !self.importing.contains_key(&slot) && self.shard_of(&id) != Some(self.me().shard)
    }

    pub(super) fn shard_of(&self, id: &NodeId) -> Option<NodeId> {
        self.nodes.get(id).map(|node| node.shard)
    }

    /// Logs which ranges of slots have come to a node from other shards.
    fn log_migrated_slots(&self, id: NodeId, slots: &[(SlotIndex, NodeId)]) {
        let place = |node: &NodeId| {
            let node = self.nodes.get(node)?;
            Some(format!("{} in shard {}", node.log_name(), node.shard))
        };
        let is_one_range = |(slot, owner): &(SlotIndex, NodeId), (next, other): &(SlotIndex, NodeId)| {
            owner == other && slot.index() + 1 == next.index()
        };
        for range in slots.chunk_by(is_one_range) {
            if let [(first, owner), ..] = range
                && let [.., (last, _)] = range
                && let (Some(from), Some(to)) = (place(owner), place(&id))
            {
                log::info!("Slot range [{first}, {last}] is migrated from node {from} to node {to}.");
            }
        }
    }

    /// Processes a slot that a node claims.
    fn process_claimed_slot(&mut self, id: NodeId, epoch: u64, slot: SlotIndex, taken: &mut ClaimedSlots) {
        let owner = self.owner(slot);
        if owner == Some(id) {
            self.todo.save |= self.unclaimed.set(slot, false);
            if self.take_unclaimed_with_keys(id, slot) {
                taken.leftover.push(slot);
            }
            return;
        }
        let epoch_of_owner = owner
            .and_then(|owner| self.nodes.get(&owner))
            .map(|node| node.config_epoch);
        let free = owner.is_none() || self.unclaimed.contains(slot);
        // The epoch of a takeover may be older than the one of this node, which may have taken over slots, too.
        let is_granted = self.may_take_over(id, slot);
        if !free && !is_granted && epoch_of_owner.is_some_and(|known| known >= epoch) {
            return;
        }
        if !is_granted && self.taken_over.get(&slot) == Some(&id) {
            taken.is_outdated = true;
            return;
        }
        let leaves_shard = self.shard_of(&id) != Some(self.me().shard);
        // This replica may hear of the loss only when its primary imports the slot's keys already.
        let is_importing = self.importing.contains_key(&slot);
        let was_unclaimed = self.take_unclaimed_with_keys(id, slot);
        if owner == Some(self.myself) || (owner == Some(taken.from) && leaves_shard && !is_importing) || was_unclaimed {
            taken.leftover.push(slot);
        }
        taken.any_from_primary |= owner == Some(taken.from);
        if let Some(owner) = owner.filter(|owner| self.shard_of(owner) != self.shard_of(&id)) {
            taken.from_other_shards.push((slot, owner));
        }
        if self.migrating.contains_key(&slot) && self.shard_of(&id) != Some(self.me().shard) {
            self.set_migrating(slot, None);
        }
        if let Some(source) = self.importing.get(&slot).copied().filter(|source| *source != id) {
            let same = self.shard_of(&source) == self.shard_of(&id);
            self.set_importing(slot, same.then_some(id));
        }
        self.delete_slot(slot);
        self.add_slot(id, slot);
        (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
    }

    /// Processes a slot that a node does not claim.
    fn process_unclaimed_slot(&mut self, id: NodeId, epoch: u64, slot: SlotIndex) {
        if self.owner(slot) == Some(id) {
            // The node stays the owner until another node claims the slot. An additional redirect does less harm than
            // no owner.
            self.todo.save |= self.unclaimed.set(slot, true);
        }
        if let Some(target) = self.migrating.get(&slot).copied().filter(|target| *target != id) {
            let behind = self
                .nodes
                .get(&target)
                .is_some_and(|node| node.config_epoch < epoch || node.is_replica());
            if behind && self.shard_of(&target) == self.shard_of(&id) {
                self.set_migrating(slot, Some(id));
                (self.todo.save, self.todo.sync) = (true, true);
            }
        }
        if self.me().is_primary() && self.importing.get(&slot) == Some(&id) {
            // The old owner has released the slot, so the migration is complete. The last step was missed here.
            self.set_importing(slot, None);
            if self.owner(slot) != Some(self.myself) {
                let myself = self.myself;
                self.delete_slot(slot);
                self.add_slot(myself, slot);
                self.bump_epoch_unannounced();
                self.must_announce = true;
                (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;

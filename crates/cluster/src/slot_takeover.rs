//! The end of an atomic slot migration: the importing node becomes the owner of the slots at once.

use super::node::NodeId;
use super::slot_set::SlotSet;
use super::state::ClusterState;

impl ClusterState {
    /// Returns the node that owns all of these slots, or `None` if there is no such node.
    pub fn owner_of_slots(&self, slots: &SlotSet) -> Option<NodeId> {
        let mut owners = slots.iter().map(|slot| self.owner(slot));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Makes this node the owner of slots that it has imported, under a new configuration epoch, and announces that.
    pub fn take_over_slots(&mut self, slots: &SlotSet, now_ms: u64) {
        self.bump_epoch();
        let myself = self.myself;
        for slot in slots.iter() {
            self.set_importing(slot, None);
            self.delete_slot(slot);
            self.add_slot(myself, slot);
        }
        (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
        self.broadcast_pong(now_ms);
    }
}

#[cfg(test)]
mod tests {
    //! Tests of owners and takeovers.

    use super::*;
    use crate::node::{Node, NodeFlags};
    use crate::settings::ClusterSettings;
    use weft_base::SlotIndex;

    #[test]
    fn a_takeover_moves_all_slots_under_a_new_epoch() {
        let settings = ClusterSettings::read(&weft_config::Config::defaults(), None);
        let mut state = ClusterState::new(settings, 1);
        let other = Node::new(NodeId::random(), NodeFlags::PRIMARY, 1);
        let other_id = other.id;
        state.nodes.insert(other_id, other);
        let mut slots = SlotSet::default();
        for slot in [3, 4, 900] {
            slots.set(SlotIndex::from_index(slot), true);
            assert!(state.add_slot(other_id, SlotIndex::from_index(slot)));
        }
        assert_eq!(state.owner_of_slots(&slots), Some(other_id));
        let before = state.me().config_epoch;
        state.take_over_slots(&slots, 2);
        assert_eq!(state.owner_of_slots(&slots), Some(state.myself));
        assert!(state.me().config_epoch > before && state.todo.save && state.todo.publish);
        state.delete_slot(SlotIndex::from_index(4));
        assert_eq!(state.owner_of_slots(&slots), None, "one slot has no owner");
        assert_eq!(state.owner_of_slots(&SlotSet::default()), None);
    }
}

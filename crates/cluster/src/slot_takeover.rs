//! The end of an atomic slot migration: the importing node becomes the owner of the slots at once. What the target does
//! holds for CLUSTER SETSLOT NODE, too, by which a slot moves whose keys were moved one by one.
//!
//! No vote decides between the two nodes, and each may get a new configuration epoch at that time because of another
//! migration. So epochs alone do not tell which of them is the owner:
//!
//! 1. The source records whom it has permitted to take the slots over. It accepts that node's claim under any epoch.
//!    Before it withdraws the permission, it asks that node ([`TakeoverInquiry`]): the announcement may have arrived
//!    unread, if this process was stopped meanwhile. PONG names the slots of its sender.
//! 2. The target ignores claims of the source until the source has once announced itself without the slots. If the
//!    source's epoch is newer, the target gets a newer one, because third nodes compare the epochs.

use super::message::Header;
use super::node::{LinkId, NodeId};
use super::slot_set::SlotSet;
use super::state::ClusterState;
use weft_base::SlotIndex;

/// The rounds in which a node may answer if it has taken slots over. A round takes 100 ms in which this process runs:
/// unlike a time, their number does not grow while the process is stopped.
const MAX_INQUIRY_ROUNDS: u64 = 20;

/// The question to a node if it has taken slots over.
#[derive(Clone, Copy, Debug, Default)]
pub struct TakeoverInquiry {
    /// The link over which the node was asked, and the number of answers up to the one that counts.
    asked: Option<(LinkId, u64)>,
    /// The number of the round in which the inquiry began.
    begun_at_round: Option<u64>,
}

impl ClusterState {
    /// Returns the node that owns all of these slots, or `None` if there is no such node.
    pub fn owner_of_slots(&self, slots: &SlotSet) -> Option<NodeId> {
        let mut owners = slots.iter().map(|slot| self.owner(slot));
        let first = owners.next()??;
        owners.all(|owner| owner == Some(first)).then_some(first)
    }

    /// Makes this node the owner of slots that it has imported, under a new configuration epoch. The caller stores the
    /// state, and then announces it with [`Self::broadcast_pong`], or returns the slots.
    pub fn take_over_slots(&mut self, slots: &SlotSet) {
        self.bump_epoch_unannounced();
        let myself = self.myself;
        for slot in slots.iter() {
            let source = self.owner(slot).filter(|source| *source != myself);
            self.set_importing(slot, None);
            self.delete_slot(slot);
            self.add_slot(myself, slot);
            if let Some(source) = source {
                self.taken_over.insert(slot, source);
            }
        }
        (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
    }

    /// Returns slots that this node has just taken over to their former owner, because it is too late to announce that.
    /// No other node has heard of it.
    pub fn return_slots(&mut self, slots: &SlotSet, source: NodeId) {
        for slot in slots.iter() {
            self.delete_slot(slot);
            self.add_slot(source, slot);
        }
        (self.todo.save, self.todo.sync, self.health_may_have_changed) = (true, true, true);
    }

    /// Permits a node to take over slots of this node. Returns `false` if this node does not own all of them.
    pub fn grant_takeover(&mut self, slots: &SlotSet, target: NodeId) -> bool {
        if self.me().is_replica() || self.owner_of_slots(slots) != Some(self.myself) {
            return false;
        }
        self.granted.extend(slots.iter().map(|slot| (slot, target)));
        true
    }

    /// Withdraws the permission to take slots over, because this node writes to them again.
    pub fn withdraw_grant(&mut self, slots: &SlotSet) {
        self.granted.retain(|slot, _| !slots.contains(*slot));
    }

    /// Forgets the takeovers that their former owner knows: it announces itself without the slots.
    pub(super) fn confirm_takeovers(&mut self, id: NodeId, header: &Header) {
        let before = self.taken_over.len();
        let claims = |slot: &SlotIndex| header.primary.is_none() && header.slots.contains(*slot);
        self.taken_over.retain(|slot, source| *source != id || claims(slot));
        if self.taken_over.len() < before {
            // An older message of that node may still arrive over another link.
            self.outdo_epoch(header.config_epoch);
        }
    }

    /// Gives this node a newer epoch than a node from which it has taken over slots, so that third nodes do not believe
    /// the former owner's claim.
    pub(super) fn outdo_epoch(&mut self, epoch: u64) {
        if epoch > self.me().config_epoch {
            self.bump_epoch();
        }
    }

    /// Returns `true` once it is certain if a node has taken over slots that it may take over no longer: an answer that
    /// it has sent since the first call is processed, or none has come for [`MAX_INQUIRY_ROUNDS`]. Otherwise the caller
    /// wakes the bus and calls again later. If the node has become a replica, its primary is asked.
    pub fn has_answered(&mut self, target: NodeId, inquiry: &mut TakeoverInquiry, now_ms: u64) -> bool {
        let begun_at = *inquiry.begun_at_round.get_or_insert(self.rounds);
        // The answer of a replica does not name the slots of its primary.
        let primary = self.nodes.get(&target).and_then(|node| node.primary);
        let target = primary.unwrap_or(target);
        let link = self.nodes.get(&target).and_then(|node| node.link);
        let figures = link.and_then(|link| Some((link, self.links.get(&link)?.pongs_received)));
        match (figures, inquiry.asked) {
            (Some((link, pongs)), Some((asked, expected))) if link == asked => {
                if pongs >= expected {
                    return true;
                }
            }
            (Some((link, _)), _) => {
                self.ping_again(target, link, now_ms);
                // Messages over a link are answered in order.
                inquiry.asked = self.links.get(&link).map(|figures| (link, figures.pings_sent));
            }
            (None, _) => {}
        }
        self.rounds - begun_at > MAX_INQUIRY_ROUNDS
    }

    /// Returns `true` if this node has permitted that node, or a node of its shard, to take the slot over.
    pub(super) fn may_take_over(&self, id: NodeId, slot: SlotIndex) -> bool {
        let target = self.granted.get(&slot);
        target.is_some_and(|target| *target == id || self.shard_of(target) == self.shard_of(&id))
    }
}

#[cfg(test)]
mod tests {
    //! Tests of owners and takeovers.

    use super::*;
    use crate::changes::SlotChange;
    use crate::manual_failover::FailoverMode;
    use crate::node::{Node, NodeFlags};
    use crate::receive::tests::SimulatedCluster;
    use crate::settings::ClusterSettings;

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
        state.take_over_slots(&slots);
        assert_eq!(state.owner_of_slots(&slots), Some(state.myself));
        assert!(state.me().config_epoch > before && state.todo.save && state.todo.publish);
        state.delete_slot(SlotIndex::from_index(4));
        assert_eq!(state.owner_of_slots(&slots), None, "one slot has no owner");
        assert_eq!(state.owner_of_slots(&SlotSet::default()), None);
    }

    fn slots_of(range: std::ops::Range<usize>) -> SlotSet {
        let mut slots = SlotSet::default();
        for slot in range {
            slots.set(SlotIndex::from_index(slot), true);
        }
        slots
    }

    fn take_over(net: &mut SimulatedCluster, node: usize, slots: &SlotSet, now_ms: u64) {
        net.nodes[node].take_over_slots(slots);
        net.nodes[node].broadcast_pong(now_ms);
    }

    #[test]
    fn a_takeover_that_was_not_announced_can_be_undone() {
        let mut net = SimulatedCluster::formed(3);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let given = slots_of(0..10);
        assert!(net.nodes[0].grant_takeover(&given, ids[1]));
        net.nodes[1].take_over_slots(&given);
        let target = &net.nodes[1];
        assert!(
            target.actions.is_empty() && !target.must_announce,
            "nothing is announced yet"
        );
        net.nodes[1].todo.save = false;
        net.nodes[1].return_slots(&given, ids[0]);
        assert!(net.nodes[1].todo.save && net.nodes[1].taken_over.is_empty());
        net.nodes[0].withdraw_grant(&given);
        assert_owner(&net, &given, ids[0]);
        net.rounds(100);
        assert_owner(&net, &given, ids[0]);
        // The next attempt succeeds.
        assert!(net.nodes[0].grant_takeover(&given, ids[1]));
        let now_ms = net.now_ms;
        take_over(&mut net, 1, &given, now_ms);
        net.settle();
        net.rounds(100);
        assert_owner(&net, &given, ids[1]);
    }

    fn assert_owner(net: &SimulatedCluster, slots: &SlotSet, owner: NodeId) {
        for state in &net.nodes {
            assert_eq!(state.owner_of_slots(slots), Some(owner), "as {} sees it", state.myself);
        }
    }

    #[test]
    fn the_target_of_a_grant_is_asked_before_the_source_writes_again() {
        let mut net = SimulatedCluster::formed(3);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let (now_ms, given) = (net.now_ms, slots_of(0..10));
        let mut inquiry = TakeoverInquiry::default();
        assert!(net.nodes[0].grant_takeover(&given, ids[1]));
        net.nodes[1].take_over_slots(&given);
        assert!(
            !net.nodes[0].has_answered(ids[1], &mut inquiry, now_ms),
            "it was asked only now"
        );
        assert!(!net.nodes[0].has_answered(ids[1], &mut inquiry, now_ms));
        assert_eq!(net.nodes[0].owner_of_slots(&given), Some(ids[0]));
        net.settle();
        assert!(net.nodes[0].has_answered(ids[1], &mut inquiry, now_ms));
        assert_eq!(net.nodes[0].owner_of_slots(&given), Some(ids[1]), "the answer says so");
    }

    #[test]
    fn the_primary_of_a_target_that_has_become_a_replica_is_asked() {
        let mut net = SimulatedCluster::with_replicas(3, &[1]);
        let (target, primary) = (net.nodes[1].myself, net.nodes[3].myself);
        let (now_ms, source) = (net.now_ms, &mut net.nodes[0]);
        let mut inquiry = TakeoverInquiry::default();
        assert!(!source.has_answered(target, &mut inquiry, now_ms));
        // It answers after it has failed over.
        source.nodes.get_mut(&target).expect("is known").primary = Some(primary);
        let link = source.nodes[&target].link.expect("has a link");
        source.links.get_mut(&link).expect("has a link").pongs_received += 100;
        assert!(!source.has_answered(target, &mut inquiry, now_ms));
        assert_eq!(
            inquiry.asked.map(|(link, _)| Some(link)),
            Some(source.nodes[&primary].link)
        );
    }

    #[test]
    fn a_target_that_does_not_answer_is_waited_for_in_rounds() {
        let mut net = SimulatedCluster::formed(3);
        let target = net.nodes[1].myself;
        net.unreachable = vec![1];
        let mut inquiry = TakeoverInquiry::default();
        let mut rounds = 0;
        loop {
            let now_ms = net.now_ms;
            if net.nodes[0].has_answered(target, &mut inquiry, now_ms) {
                break;
            }
            // However long each of them takes.
            net.now_ms += 1_000_000;
            net.rounds(1);
            rounds += 1;
        }
        assert_eq!(rounds, MAX_INQUIRY_ROUNDS + 1);
    }

    #[test]
    fn two_takeovers_at_a_time_keep_both_new_owners() {
        // The first node gives slots to the second one and gets slots of the third one. Each node may have the newest
        // epoch before.
        for newest in 0..3 {
            let mut net = SimulatedCluster::formed(3);
            net.nodes[newest].bump_epoch();
            net.settle();
            net.rounds(30);
            let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
            let (given, received) = (slots_of(0..10), slots_of(16000..16010));
            assert!(net.nodes[0].grant_takeover(&given, ids[1]));
            assert!(net.nodes[2].grant_takeover(&received, ids[0]));
            let now_ms = net.now_ms;
            // Neither message has arrived when the other takeover happens.
            take_over(&mut net, 0, &received, now_ms);
            take_over(&mut net, 1, &given, now_ms);
            net.settle();
            assert_eq!(net.nodes[0].owner_of_slots(&given), Some(ids[1]), "it is told at once");
            net.rounds(100);
            assert_owner(&net, &given, ids[1]);
            assert_owner(&net, &received, ids[0]);
            assert!(net.nodes.iter().all(|state| state.granted.is_empty()));
            assert!(net.nodes.iter().all(|state| state.taken_over.is_empty()));
        }
    }

    #[test]
    fn a_source_that_did_not_hear_of_the_takeover_does_not_take_the_slots_back() {
        let mut net = SimulatedCluster::formed(3);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let given = slots_of(0..10);
        assert!(net.nodes[0].grant_takeover(&given, ids[1]));
        let now_ms = net.now_ms;
        take_over(&mut net, 1, &given, now_ms);
        // The announcement is lost, and the source gets a newer epoch for another reason.
        net.nodes[1].actions.clear();
        net.nodes[0].current_epoch += 1;
        net.nodes[0].bump_epoch();
        net.nodes[0].broadcast_pong(now_ms);
        net.settle();
        assert_eq!(net.nodes[1].owner_of_slots(&given), Some(ids[1]));
        net.rounds(100);
        assert_owner(&net, &given, ids[1]);
    }

    fn change_slot(net: &mut SimulatedCluster, node: usize, change: &SlotChange) {
        let changed = net.nodes[node].change_slot(SlotIndex::from_index(3), change, 0);
        changed.expect("the slot may change");
    }

    #[test]
    fn a_source_does_not_take_back_a_slot_that_was_assigned_to_its_target() {
        let mut net = SimulatedCluster::formed(3);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let word = |node: usize| ids[node].to_string().into_bytes();
        let given = slots_of(3..4);
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            change_slot(&mut net, to, &SlotChange::Importing(word(from)));
            change_slot(&mut net, from, &SlotChange::Migrating(word(to)));
            change_slot(&mut net, to, &SlotChange::Node(word(to)));
            // The announcement is lost, and the source gets a newer epoch before it is told of the new owner.
            net.nodes[to].actions.clear();
            net.nodes[from].current_epoch += 10;
            net.nodes[from].bump_epoch();
            let now_ms = net.now_ms;
            net.nodes[from].broadcast_pong(now_ms);
            net.settle();
            assert_eq!(net.nodes[to].owner_of_slots(&given), Some(ids[to]));
            change_slot(&mut net, from, &SlotChange::Node(word(to)));
            net.rounds(100);
            assert_owner(&net, &given, ids[to]);
            assert!(net.nodes.iter().all(|state| state.taken_over.is_empty()));
        }
    }

    #[test]
    fn slots_return_to_their_former_owner() {
        let mut net = SimulatedCluster::formed(3);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let given = slots_of(0..10);
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            assert!(net.nodes[from].grant_takeover(&given, ids[to]));
            let now_ms = net.now_ms;
            take_over(&mut net, to, &given, now_ms);
            net.settle();
            assert_eq!(net.nodes[from].owner_of_slots(&given), Some(ids[to]));
        }
        net.rounds(30);
        assert_owner(&net, &given, ids[1]);
    }

    #[test]
    fn a_replica_does_not_take_over_while_another_node_may_take_slots_over() {
        for takes_over in [false, true] {
            let mut net = SimulatedCluster::with_replicas(3, &[0]);
            let (target, replica, now_ms) = (net.nodes[1].myself, net.nodes[3].myself, net.now_ms);
            let given = slots_of(0..10);
            assert!(net.nodes[0].grant_takeover(&given, target));
            let begun = net.nodes[3].begin_failover(FailoverMode::Coordinated, "", now_ms);
            begun.expect("it is a replica");
            net.settle();
            net.rounds(10);
            assert!(net.writes_paused[0] && net.nodes[0].is_handing_over() && net.nodes[0].is_stopping());
            assert_eq!(net.nodes[3].manual.primary_offset, None, "the offset is not announced");
            assert!(net.nodes[3].me().is_replica());
            let now_ms = net.now_ms;
            match takes_over {
                true => take_over(&mut net, 1, &given, now_ms),
                false => net.nodes[0].withdraw_grant(&given),
            }
            net.rounds(20);
            assert!(net.nodes[3].me().has_vote() && net.nodes[0].me().is_replica());
            assert_owner(&net, &given, if takes_over { target } else { replica });
        }
    }

    #[test]
    fn only_a_present_owner_grants_a_takeover() {
        let mut net = SimulatedCluster::formed(2);
        let ids: Vec<NodeId> = net.nodes.iter().map(|state| state.myself).collect();
        let given = slots_of(0..10);
        assert!(!net.nodes[1].grant_takeover(&given, ids[0]));
        assert!(net.nodes[0].grant_takeover(&given, ids[1]));
        net.nodes[0].withdraw_grant(&slots_of(3..20));
        assert_eq!(net.nodes[0].granted.len(), 3);
        net.nodes[0].delete_slot(SlotIndex::from_index(0));
        assert_eq!(net.nodes[0].granted.len(), 2, "it is another node's now");
    }
}

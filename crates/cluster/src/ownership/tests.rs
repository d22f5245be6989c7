//! Tests of the slots in which keys may be left.

use super::*;
use crate::changes::SlotChange;
use crate::receive::tests::SimulatedCluster;

fn slot() -> SlotIndex {
    SlotIndex::from_index(5)
}

/// Makes the second node claim a slot of the first one, as the first one or its replica hears of it.
fn lose_slot(net: &mut SimulatedCluster, hearer: usize) {
    announce(net, 1, true, hearer);
}

/// Makes a node announce its own slots, and the slot of the tests if it claims that, to another one.
fn announce(net: &mut SimulatedCluster, from: usize, claims: bool, hearer: usize) {
    let (id, epoch) = (net.nodes[from].myself, net.nodes[from].me().config_epoch + 100);
    let mut slots = net.nodes[from].me().slots.clone();
    slots.set(slot(), claims);
    net.nodes[hearer].update_slots(id, epoch, &slots);
}

fn change(net: &mut SimulatedCluster, change: &SlotChange) {
    net.nodes[0].change_slot(slot(), change, 0).expect("it is permitted");
}

#[test]
fn a_lost_slot_is_emptied_before_it_gets_new_keys() {
    for returns in [false, true] {
        let mut net = SimulatedCluster::formed(2);
        let [first, second] = [0, 1].map(|index: usize| net.nodes[index].myself.as_bytes().to_vec());
        lose_slot(&mut net, 0);
        assert!(net.nodes[0].leftover.contains(slot()));
        let settled = ClusterView::from_state(&net.nodes[0]);
        assert!(net.nodes[0].take_reopened(&settled).is_empty(), "it is still away");
        change(
            &mut net,
            &match returns {
                true => SlotChange::Node(first),
                false => SlotChange::Importing(second),
            },
        );
        let reopened: Vec<SlotIndex> = net.nodes[0].take_reopened(&settled).iter().collect();
        assert_eq!(reopened, [slot()]);
        assert!(net.nodes[0].leftover.is_empty(), "later keys are new");
    }
}

#[test]
fn a_slot_that_no_command_has_missed_keeps_its_keys() {
    let mut net = SimulatedCluster::formed(2);
    let settled = ClusterView::from_state(&net.nodes[0]);
    lose_slot(&mut net, 0);
    let first = net.nodes[0].myself.as_bytes().to_vec();
    change(&mut net, &SlotChange::Node(first));
    assert!(net.nodes[0].take_reopened(&settled).is_empty());
    assert!(net.nodes[0].leftover.is_empty());
}

#[test]
fn a_replica_leaves_the_deletion_to_the_primary_that_lets_new_keys_in() {
    let mut net = SimulatedCluster::with_replicas(2, &[0]);
    lose_slot(&mut net, 2);
    assert!(net.nodes[2].leftover.contains(slot()));
    let settled = ClusterView::from_state(&net.nodes[2]);
    let second = net.nodes[1].myself;
    net.nodes[2].set_importing(slot(), Some(second));
    assert!(net.nodes[2].take_reopened(&settled).is_empty());
    assert!(net.nodes[2].leftover.is_empty());
    // The bus may tell it later than the stream.
    let mut net = SimulatedCluster::with_replicas(2, &[0]);
    let second = net.nodes[1].myself;
    net.nodes[2].set_importing(slot(), Some(second));
    lose_slot(&mut net, 2);
    assert_eq!(net.nodes[2].owner(slot()), Some(second));
    assert!(net.nodes[2].leftover.is_empty());
}

#[test]
fn a_promoted_replica_finds_the_keys_that_its_primary_has_not_deleted() {
    let mut net = SimulatedCluster::formed(2);
    lose_slot(&mut net, 0);
    net.nodes[0].leftover = SlotSet::default();
    let own = net.nodes[0].me().slots.iter().next().expect("has slots");
    net.nodes[0].add_leftover([own, slot()].into_iter());
    assert_eq!(net.nodes[0].leftover.iter().collect::<Vec<_>>(), [slot()]);
    let second = net.nodes[1].myself.as_bytes().to_vec();
    change(&mut net, &SlotChange::Importing(second));
    net.nodes[0].leftover = SlotSet::default();
    net.nodes[0].add_leftover([slot()].into_iter());
    assert!(net.nodes[0].leftover.is_empty(), "its keys are new");
}

/// Returns a cluster whose first node has been promoted with keys of a slot that its owner, the second node, does not
/// claim any more.
fn with_keys_of_an_unclaimed_slot() -> SimulatedCluster {
    let mut net = SimulatedCluster::formed(3);
    lose_slot(&mut net, 0);
    announce(&mut net, 1, false, 0);
    net.nodes[0].leftover = SlotSet::default();
    net.nodes[0].add_leftover([slot()].into_iter());
    assert!(net.nodes[0].leftover.is_empty(), "these may be the only keys");
    net
}

#[test]
fn the_keys_of_an_unclaimed_slot_are_deleted_once_another_shard_claims_it() {
    let mut net = with_keys_of_an_unclaimed_slot();
    announce(&mut net, 2, true, 0);
    assert_eq!(net.nodes[0].owner(slot()), Some(net.nodes[2].myself));
    assert!(net.nodes[0].leftover.contains(slot()));
    assert!(net.nodes[0].unclaimed_with_keys.is_empty());
    // The owner claims the slot again: the first node knows all slots that it announces.
    let mut net = with_keys_of_an_unclaimed_slot();
    let second = net.nodes[1].myself.as_bytes().to_vec();
    let assigned = net.nodes[1].change_slot(slot(), &SlotChange::Node(second), 0);
    assigned.expect("it is permitted");
    net.nodes[1].bump_epoch();
    net.settle();
    net.rounds(30);
    assert_eq!(net.nodes[0].owner(slot()), Some(net.nodes[1].myself));
    assert!(net.nodes[0].leftover.contains(slot()));
}

#[test]
fn kept_keys_are_known_after_a_restart_and_after_an_import_that_was_given_up() {
    for restarts in [false, true] {
        let mut net = with_keys_of_an_unclaimed_slot();
        let third = net.nodes[2].myself.as_bytes().to_vec();
        change(&mut net, &SlotChange::Importing(third));
        change(&mut net, &SlotChange::Stable);
        if restarts {
            net.settle();
            net.restart(0);
        }
        assert!(net.nodes[0].keeps_keys_of(slot()) && net.nodes[0].has_no_claimant(slot()));
        announce(&mut net, 2, true, 0);
        assert!(net.nodes[0].leftover.contains(slot()));
        assert!(!net.nodes[0].keeps_keys_of(slot()) && net.nodes[0].todo.save);
    }
}

#[test]
fn the_keys_of_an_unclaimed_slot_stay_where_it_is_imported_or_owned() {
    let mut net = with_keys_of_an_unclaimed_slot();
    let third = net.nodes[2].myself.as_bytes().to_vec();
    change(&mut net, &SlotChange::Importing(third));
    announce(&mut net, 2, true, 0);
    assert_eq!(net.nodes[0].owner(slot()), Some(net.nodes[2].myself));
    assert!(net.nodes[0].leftover.is_empty(), "its keys are new");
    let mut net = with_keys_of_an_unclaimed_slot();
    let first = net.nodes[0].myself.as_bytes().to_vec();
    change(&mut net, &SlotChange::Node(first));
    assert!(net.nodes[0].unclaimed_with_keys.is_empty());
    let mut net = with_keys_of_an_unclaimed_slot();
    let mut slots = SlotSet::default();
    slots.set(slot(), true);
    net.nodes[0].forget_leftover(&slots);
    announce(&mut net, 2, true, 0);
    assert!(
        net.nodes[0].leftover.is_empty(),
        "the slot is being imported as a whole"
    );
}

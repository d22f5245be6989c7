//! Tests of the slots in which keys may be left.

use super::*;
use crate::changes::SlotChange;
use crate::receive::tests::SimulatedCluster;

fn slot() -> SlotIndex {
    SlotIndex::from_index(5)
}

/// Makes the second node claim a slot of the first one, as the first one or its replica hears of it.
fn lose_slot(net: &mut SimulatedCluster, hearer: usize) {
    let (id, epoch) = (net.nodes[1].myself, net.nodes[1].me().config_epoch + 100);
    let mut slots = net.nodes[1].me().slots.clone();
    slots.set(slot(), true);
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

//! Tests that migrations are passed from a primary to its replica.

use weft_base::SlotIndex;

use crate::receive::tests::SimulatedCluster;

#[test]
fn slots_in_migration_are_passed_to_the_replica() {
    let mut net = SimulatedCluster::new(3);
    let [source, target, replica] = [0, 1, 2].map(|index: usize| net.nodes[index].myself);
    let known = net.nodes[1].nodes[&target].clone();
    net.nodes[0].nodes.insert(target, known.clone());
    net.nodes[0].set_migrating(SlotIndex::from_index(7), Some(target));
    net.nodes[0].set_migrating(SlotIndex::from_index(13), Some(target));
    net.nodes[0].set_importing(SlotIndex::from_index(609), Some(target));
    let note = net.nodes[0].slots_in_migration_field().expect("slots are on their way");
    assert_eq!(note, format!("609<{target},7>{target},13>{target},"));

    let taker = &mut net.nodes[2];
    taker.apply_slots_in_migration(note.as_bytes());
    assert!(taker.migrating.is_empty(), "nobody knows that node here");
    taker.nodes.insert(target, known);
    taker.apply_known_migrations();
    assert_eq!(taker.slots_in_migration_field(), Some(note));
    assert!(taker.todo.save && taker.todo.publish);
    assert_ne!(source, replica);

    taker.end_slot_migrations();
    assert_eq!(taker.slots_in_migration_field(), None);
}

#[test]
fn invalid_entries_are_ignored() {
    let mut net = SimulatedCluster::new(2);
    let other = net.nodes[1].myself;
    let known = net.nodes[1].nodes[&other].clone();
    let state = &mut net.nodes[0];
    state.nodes.insert(other, known);
    for note in [
        "",
        ",",
        "7",
        "7>",
        "x>y,",
        &format!("16384>{other},"),
        &format!("-1<{other},"),
    ] {
        state.apply_slots_in_migration(note.as_bytes());
    }
    assert_eq!(state.slots_in_migration_field(), None);
    state.apply_slots_in_migration(format!("junk,5>{other},").as_bytes());
    assert_eq!(state.slots_in_migration_field(), Some(format!("5>{other},")));
}

//! Tests that migrations are passed from a primary to its replica.

use crate::cluster::receive::tests::Net;

#[test]
fn what_is_on_its_way_is_told_and_taken_over() {
    let mut net = Net::new(3);
    let [source, target, replica] = [0, 1, 2].map(|index: usize| net.nodes[index].myself);
    let known = net.nodes[1].nodes[&target].clone();
    net.nodes[0].nodes.insert(target, known.clone());
    net.nodes[0].set_migrating(7, Some(target));
    net.nodes[0].set_migrating(13, Some(target));
    net.nodes[0].set_importing(609, Some(target));
    let note = net.nodes[0].open_slots_note().expect("slots are on their way");
    assert_eq!(note, format!("609<{target},7>{target},13>{target},"));

    let taker = &mut net.nodes[2];
    taker.take_open_slots(note.as_bytes());
    assert!(taker.migrating.is_empty(), "nobody knows that node here");
    taker.nodes.insert(target, known);
    taker.open_slots();
    assert_eq!(taker.open_slots_note(), Some(note));
    assert!(taker.todo.save && taker.todo.publish);
    assert_ne!(source, replica);

    taker.close_slots();
    assert_eq!(taker.open_slots_note(), None);
}

#[test]
fn what_makes_no_sense_is_passed_over() {
    let mut net = Net::new(2);
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
        state.take_open_slots(note.as_bytes());
    }
    assert_eq!(state.open_slots_note(), None);
    state.take_open_slots(format!("junk,5>{other},").as_bytes());
    assert_eq!(state.open_slots_note(), Some(format!("5>{other},")));
}

use super::*;

const PLACE: (u64, u16) = (7, 7);

#[test]
fn a_change_marks_those_who_watch_the_key_in_that_database() {
    let (counts, mut slot) = (Counts::default(), Watching::default());
    let (mut one, mut other) = (Watches::default(), Watches::default());
    slot.add(one.add(0, b"k", PLACE, 1, false), &counts);
    slot.add(other.add(1, b"k", PLACE, 2, false), &counts);
    assert_eq!(counts.keys(), 2);
    slot.touch(0, b"other", true);
    assert!(!one.is_dirty());
    slot.touch(0, b"k", true);
    assert!(one.is_dirty() && !other.is_dirty());
}

#[test]
fn the_end_of_a_key_that_was_expired_before_is_no_change_but_what_follows_is() {
    let (counts, mut slot) = (Counts::default(), Watching::default());
    let mut watches = Watches::default();
    slot.add(watches.add(0, b"k", PLACE, 1, true), &counts);
    slot.touch(0, b"k", false);
    assert!(!watches.is_dirty());
    slot.touch(0, b"k", true);
    assert!(watches.is_dirty());
}

#[test]
fn watches_that_are_taken_out_leave_nothing() {
    let (counts, mut slot) = (Counts::default(), Watching::default());
    let (mut one, mut other) = (Watches::default(), Watches::default());
    slot.add(one.add(0, b"k", PLACE, 1, false), &counts);
    slot.add(other.add(0, b"k", PLACE, 2, false), &counts);
    assert_eq!(counts.keys(), 1);
    slot.remove(&one.keys[0], &counts);
    slot.touch(0, b"k", true);
    assert!(other.is_dirty() && !one.is_dirty());
    slot.remove(&one.keys[0], &counts);
    slot.remove(&other.keys[0], &counts);
    assert!(slot.is_empty());
    assert_eq!(counts.keys(), 0);
}

#[test]
fn many_changes_at_once_mark_what_was_there() {
    let (counts, mut slot) = (Counts::default(), Watching::default());
    let (mut there, mut missing) = (Watches::default(), Watches::default());
    slot.add(there.add(0, b"there", PLACE, 1, false), &counts);
    slot.add(missing.add(0, b"missing", PLACE, 2, false), &counts);
    slot.touch_database(0, |_, name| (name == b"there").then_some(false));
    assert!(there.is_dirty() && !missing.is_dirty());
}

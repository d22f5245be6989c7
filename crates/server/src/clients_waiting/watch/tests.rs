//! Watches of one slot: who is marked by what, and that nothing stays behind.

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
fn what_a_database_becomes_marks_watches_unless_missing_and_expired_keys_change_places() {
    use KeyPresence::{Expired, Live, Missing};
    for (began_expired, before, after, dirty) in [
        (false, Missing, Missing, false),
        (false, Missing, Expired, false),
        (false, Missing, Live, true),
        (false, Live, Missing, true),
        (false, Live, Live, true),
        (true, Expired, Missing, false),
        (true, Expired, Expired, false),
        (true, Expired, Live, true),
    ] {
        let (counts, mut slot) = (Counts::default(), Watching::default());
        let mut watches = Watches::default();
        slot.add(watches.add(0, b"k", PLACE, 1, began_expired), &counts);
        slot.touch_database(1, |_, _| (Live, Missing));
        assert!(!watches.is_dirty(), "another database changed");
        slot.touch_database(0, |_, _| (before, after));
        assert_eq!(watches.is_dirty(), dirty, "{began_expired} {before:?} {after:?}");
    }
}

//! Tests of the watches of one slot: which watches a change marks, and that no memory stays allocated.

use weft_base::{DbIndex, SlotIndex};

use super::*;

const HASH: u64 = 7;
const SLOT: SlotIndex = SlotIndex::from_index(7);

#[test]
fn a_change_marks_the_watches_of_the_key_in_that_database() {
    let (counts, mut slot) = (WatchCounts::default(), SlotWatches::default());
    let (mut one, mut other) = (Watches::default(), Watches::default());
    slot.add(one.add(DbIndex::FIRST, b"k", HASH, SLOT, 1, false), &counts);
    slot.add(other.add(DbIndex::new(1), b"k", HASH, SLOT, 2, false), &counts);
    assert_eq!(counts.watched_keys(), 2);
    slot.mark_key(DbIndex::FIRST, b"other", true);
    assert!(!one.is_dirty());
    slot.mark_key(DbIndex::FIRST, b"k", true);
    assert!(one.is_dirty() && !other.is_dirty());
}

#[test]
fn deleting_an_already_expired_key_is_no_change_but_later_writes_are() {
    let (counts, mut slot) = (WatchCounts::default(), SlotWatches::default());
    let mut watches = Watches::default();
    slot.add(watches.add(DbIndex::FIRST, b"k", HASH, SLOT, 1, true), &counts);
    slot.mark_key(DbIndex::FIRST, b"k", false);
    assert!(!watches.is_dirty());
    slot.mark_key(DbIndex::FIRST, b"k", true);
    assert!(watches.is_dirty());
}

/// The hashes of several of the keys are the same.
#[test]
fn each_of_many_watched_keys_is_found() {
    let mut watches = Watches::default();
    for number in 0..100_u64 {
        let name = number.to_string();
        let contains = |watches: &Watches, db| watches.contains(db, number % 50, name.as_bytes());
        assert!(!contains(&watches, DbIndex::FIRST));
        watches.add(DbIndex::FIRST, name.as_bytes(), number % 50, SLOT, number, false);
        assert!(contains(&watches, DbIndex::FIRST) && !contains(&watches, DbIndex::new(1)));
        assert!((0..=number).all(|added| watches.contains(DbIndex::FIRST, added % 50, added.to_string().as_bytes())));
    }
    assert_eq!(watches.keys.len(), 100);
}

#[test]
fn removed_watches_leave_no_entries() {
    let (counts, mut slot) = (WatchCounts::default(), SlotWatches::default());
    let (mut one, mut other) = (Watches::default(), Watches::default());
    slot.add(one.add(DbIndex::FIRST, b"k", HASH, SLOT, 1, false), &counts);
    slot.add(other.add(DbIndex::FIRST, b"k", HASH, SLOT, 2, false), &counts);
    assert_eq!(counts.watched_keys(), 1);
    slot.remove(&one.keys[0], &counts);
    slot.mark_key(DbIndex::FIRST, b"k", true);
    assert!(other.is_dirty() && !one.is_dirty());
    slot.remove(&one.keys[0], &counts);
    slot.remove(&other.keys[0], &counts);
    assert!(slot.is_empty());
    assert_eq!(counts.watched_keys(), 0);
}

#[test]
fn replacing_a_database_marks_watches_unless_the_key_stays_absent() {
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
        let (counts, mut slot) = (WatchCounts::default(), SlotWatches::default());
        let mut watches = Watches::default();
        slot.add(watches.add(DbIndex::FIRST, b"k", HASH, SLOT, 1, began_expired), &counts);
        slot.mark_database(DbIndex::new(1), |_, _| (Live, Missing));
        assert!(!watches.is_dirty(), "another database changed");
        slot.mark_database(DbIndex::FIRST, |_, _| (before, after));
        assert_eq!(watches.is_dirty(), dirty, "{began_expired} {before:?} {after:?}");
    }
}

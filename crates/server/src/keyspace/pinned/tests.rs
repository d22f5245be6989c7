//! Tests of pins and of the writers that wait for their end.

use std::sync::Arc;

use weft_base::{DbIndex, SlotIndex};

use super::{MEMORY_TIME, MIN_RESERVATION_TIME, PinnedSlots};
use crate::keyspace::{Keyspace, SlotHeader};

fn keyspace() -> Keyspace {
    Keyspace::new(1, 1)
}

fn header(keyspace: &Keyspace, slot: SlotIndex) -> &SlotHeader {
    keyspace.slots.header(slot.index())
}

#[test]
fn a_slot_is_marked_from_the_first_pin_to_the_end_of_the_last() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let marked = |slot| header(&keyspace, slot).has_pinned_values();
    let first = pinned
        .pin(&keyspace.slots, [7, 9, 7].map(SlotIndex::from_index).to_vec())
        .expect("nobody wants it");
    let second = pinned
        .pin(&keyspace.slots, vec![SlotIndex::from_index(9)])
        .expect("nobody wants it");
    assert!(marked(SlotIndex::from_index(7)) && marked(SlotIndex::from_index(9)) && !marked(SlotIndex::from_index(8)));
    drop(first);
    assert!(!marked(SlotIndex::from_index(7)) && marked(SlotIndex::from_index(9)));
    drop(second);
    assert!(!marked(SlotIndex::from_index(9)));
}

#[test]
fn a_reserved_slot_grants_no_pins_for_a_while() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let pin = pinned
        .pin(&keyspace.slots, vec![SlotIndex::from_index(7)])
        .expect("nobody wants it");
    assert!(pinned.reserve_briefly(SlotIndex::from_index(7), 1));
    assert!(
        !pinned.reserve_briefly(SlotIndex::from_index(8), 1),
        "a slot without pins"
    );
    assert!(
        pinned
            .pin(&keyspace.slots, [7, 9].map(SlotIndex::from_index).to_vec())
            .is_none()
    );
    assert!(
        !header(&keyspace, SlotIndex::from_index(9)).has_pinned_values(),
        "a refused pin leaves no mark behind"
    );
    assert!(
        pinned.pin(&keyspace.slots, vec![SlotIndex::from_index(8)]).is_some(),
        "a slot without pins is not reserved"
    );
    drop(pin);
    assert!(
        header(&keyspace, SlotIndex::from_index(7)).has_pinned_values(),
        "the mark leads the waiting writer to the record"
    );
    assert!(
        pinned.pin(&keyspace.slots, vec![SlotIndex::from_index(7)]).is_none(),
        "after the pin the slot is reserved for the waiting writer"
    );
    std::thread::sleep(MIN_RESERVATION_TIME);
    assert!(pinned.pin(&keyspace.slots, vec![SlotIndex::from_index(7)]).is_some());
}

/// On a busy machine a writer takes longer to try again than the shortest reservation lasts.
#[test]
fn a_slow_writer_gets_a_longer_reservation() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let slot = SlotIndex::from_index(7);
    let pin = || pinned.pin(&keyspace.slots, vec![slot]);
    let first = pin().expect("nothing is reserved");
    assert!(pinned.reserve_briefly(slot, 1));
    std::thread::sleep(2 * MIN_RESERVATION_TIME);
    pinned.end_expired_reservations(&keyspace.slots);
    let second = pin().expect("the writer is late");
    assert!(pinned.reserve_briefly(slot, 1));
    drop((first, second));
    std::thread::sleep(2 * MIN_RESERVATION_TIME);
    assert!(pin().is_none(), "the next attempt may come as late as the last one");
    assert!(!pinned.reserve_briefly(slot, 1), "the writer has its turn");
}

/// Writers of two keys that try in turn must not make the server forget how slow each of them is.
#[test]
fn slow_writers_of_two_keys_get_longer_reservations() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let slot = SlotIndex::from_index(7);
    let pin = || pinned.pin(&keyspace.slots, vec![slot]);
    let first = pin().expect("nothing is reserved");
    assert!(pinned.reserve_briefly(slot, 1) && pinned.reserve_briefly(slot, 2));
    std::thread::sleep(2 * MIN_RESERVATION_TIME);
    let second = pin().expect("the writers are late");
    assert!(pinned.reserve_briefly(slot, 1) && pinned.reserve_briefly(slot, 2));
    drop((first, second));
    std::thread::sleep(2 * MIN_RESERVATION_TIME);
    assert!(pin().is_none(), "the next attempts may come as late as the last ones");
    pinned.end_brief_reservation(&keyspace.slots, slot, 1);
    assert!(pin().is_none(), "the other writer has not had its turn");
    pinned.end_brief_reservation(&keyspace.slots, slot, 2);
    assert!(pin().is_some());
}

#[test]
fn many_writers_of_a_slot_are_remembered_up_to_a_limit() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let slot = SlotIndex::from_index(7);
    let _pin = pinned.pin(&keyspace.slots, vec![slot]).expect("nothing is reserved");
    for key_hash in 0..100 {
        assert!(pinned.reserve_briefly(slot, key_hash));
    }
    assert_eq!(pinned.records.lock()[&slot].reservations.len(), super::MAX_RESERVATIONS);
}

#[test]
fn a_slot_is_no_longer_reserved_when_a_writer_has_its_turn() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let (slots, marked) = (&keyspace.slots, || {
        header(&keyspace, SlotIndex::from_index(7)).has_pinned_values()
    });
    let pin = pinned
        .pin(slots, vec![SlotIndex::from_index(7)])
        .expect("nothing is reserved");
    assert!(pinned.reserve_briefly(SlotIndex::from_index(7), 1));
    pinned.end_brief_reservation(slots, SlotIndex::from_index(7), 1);
    let other = pinned
        .pin(slots, vec![SlotIndex::from_index(7)])
        .expect("the reservation has ended");
    assert!(pinned.reserve_briefly(SlotIndex::from_index(7), 1));
    drop((pin, other));
    assert!(
        !pinned.reserve_briefly(SlotIndex::from_index(7), 1),
        "the slot has no pins any more"
    );
    pinned.end_brief_reservation(slots, SlotIndex::from_index(7), 2);
    assert!(marked(), "the writer of another key ends no reservation");
    pinned.end_brief_reservation(slots, SlotIndex::from_index(7), 1);
    assert!(!marked() && pinned.records.lock().is_empty());
    drop(
        pinned
            .pin(slots, vec![SlotIndex::from_index(7)])
            .expect("the reservation has ended"),
    );
    assert!(!marked() && pinned.records.lock().is_empty());
}

#[test]
fn the_reservation_of_a_writer_that_does_not_come_back_ends() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let (slots, marked) = (&keyspace.slots, || {
        header(&keyspace, SlotIndex::from_index(7)).has_pinned_values()
    });
    let pin = pinned
        .pin(slots, vec![SlotIndex::from_index(7)])
        .expect("nothing is reserved");
    assert!(pinned.reserve_briefly(SlotIndex::from_index(7), 1));
    drop(pin);
    pinned.end_expired_reservations(slots);
    assert!(marked(), "the writer may still come");
    std::thread::sleep(MIN_RESERVATION_TIME + MEMORY_TIME);
    pinned.end_expired_reservations(slots);
    assert!(!marked() && pinned.records.lock().is_empty());
}

#[test]
fn databases_are_added_and_removed_in_a_slot_with_pinned_values() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let header = header(&keyspace, SlotIndex::from_index(7));
    header.mark_database(DbIndex::FIRST, true);
    let pin = pinned
        .pin(&keyspace.slots, vec![SlotIndex::from_index(7)])
        .expect("nobody wants it");
    header.mark_database(DbIndex::new(3), true);
    header.mark_database(DbIndex::FIRST, false);
    assert!(header.has_pinned_values() && header.may_hold(DbIndex::new(3)) && !header.may_hold(DbIndex::FIRST));
    header.mark_database(DbIndex::new(3), false);
    assert!(
        header.has_pinned_values() && !header.may_hold_any(),
        "the mark of a pin does not count as a key"
    );
    header.mark_database(DbIndex::new(500), true);
    drop(pin);
    assert!(!header.has_pinned_values() && header.may_hold(DbIndex::new(400)) && !header.may_hold(DbIndex::new(11)));
}

#[test]
fn writers_take_no_lock_when_no_key_is_frozen() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let pin = pinned
        .pin(&keyspace.slots, vec![SlotIndex::from_index(7)])
        .expect("nobody wants it");
    let records = pinned.records.lock();
    // This would deadlock if it locked the records.
    assert!(!pinned.is_frozen(SlotIndex::from_index(7), DbIndex::FIRST, b"key"));
    drop(records);
    drop(pin);
    let frozen = pinned.freeze(
        &keyspace.slots,
        vec![(SlotIndex::from_index(7), (DbIndex::new(2), b"key"[..].into()))],
    );
    assert!(pinned.is_frozen(SlotIndex::from_index(7), DbIndex::new(2), b"key"));
    assert!(
        !pinned.is_frozen(SlotIndex::from_index(7), DbIndex::FIRST, b"key")
            && pinned.is_frozen_in_any_database(SlotIndex::from_index(7), b"key")
    );
    assert!(
        !pinned.is_frozen_in_any_database(SlotIndex::from_index(7), b"other")
            && !pinned.is_frozen_in_any_database(SlotIndex::from_index(8), b"key")
    );
    drop(frozen);
    assert!(!pinned.is_frozen(SlotIndex::from_index(7), DbIndex::new(2), b"key"));
}

#[test]
fn what_waits_for_a_thaw_runs_once_keys_cease_to_be_frozen_and_never_later() {
    let keyspace = keyspace();
    let pinned = Arc::new(PinnedSlots::default());
    let freeze = |name: &[u8]| {
        pinned.freeze(
            &keyspace.slots,
            vec![(SlotIndex::from_index(7), (DbIndex::FIRST, name.into()))],
        )
    };
    let ran = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || {
        let ran = ran.clone();
        move || {
            ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    };
    let runs = || ran.load(std::sync::atomic::Ordering::SeqCst);
    let before = pinned.thaws();
    let pin = freeze(b"k").expect("nothing is frozen");
    pinned.run_after_thaw(before, count());
    drop(pinned.pin(&keyspace.slots, vec![SlotIndex::from_index(7)]));
    assert_eq!(runs(), 0, "a pin that freezes no key has ended");
    drop(pin);
    assert_eq!(runs(), 1);
    // The key was found frozen, and ceased to be frozen before the command could wait.
    pinned.run_after_thaw(before, count());
    assert_eq!(runs(), 2);
    drop(freeze(b"k").expect("nothing is frozen"));
    assert_eq!(runs(), 2, "each runs once");
}

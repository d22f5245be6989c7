//! Tests of pins and of the writers that wait for their end.

use std::sync::Arc;

use super::{PinnedSlots, RESERVED};
use crate::keyspace::{Keyspace, SlotHeader};

fn keyspace() -> Keyspace {
    Keyspace::new(1, 1)
}

fn header(keyspace: &Keyspace, slot: u16) -> &SlotHeader {
    keyspace.slots.header(usize::from(slot))
}

#[test]
fn a_slot_is_marked_from_the_first_loan_to_the_end_of_the_last() {
    let keyspace = keyspace();
    let lent = Arc::new(PinnedSlots::default());
    let marked = |slot| header(&keyspace, slot).is_lent();
    let first = lent.lend(&keyspace.slots, vec![7, 9, 7]).expect("nobody wants it");
    let second = lent.lend(&keyspace.slots, vec![9]).expect("nobody wants it");
    assert!(marked(7) && marked(9) && !marked(8));
    drop(first);
    assert!(!marked(7) && marked(9));
    drop(second);
    assert!(!marked(9));
}

#[test]
fn a_wanted_slot_lends_nothing_for_a_while() {
    let keyspace = keyspace();
    let lent = Arc::new(PinnedSlots::default());
    let pin = lent.lend(&keyspace.slots, vec![7]).expect("nobody wants it");
    lent.want(7);
    lent.want(8);
    assert!(lent.lend(&keyspace.slots, vec![7, 9]).is_none());
    assert!(!header(&keyspace, 9).is_lent(), "a refused loan leaves nothing behind");
    assert!(
        lent.lend(&keyspace.slots, vec![8]).is_some(),
        "what is not lent needs not be wanted"
    );
    drop(pin);
    assert!(!header(&keyspace, 7).is_lent());
    assert!(
        lent.lend(&keyspace.slots, vec![7]).is_none(),
        "the end of the loan is for who waited"
    );
    std::thread::sleep(RESERVED);
    assert!(lent.lend(&keyspace.slots, vec![7]).is_some());
}

#[test]
fn databases_come_and_go_in_a_slot_that_lends() {
    let keyspace = keyspace();
    let lent = Arc::new(PinnedSlots::default());
    let header = header(&keyspace, 7);
    header.mark(0, true);
    let pin = lent.lend(&keyspace.slots, vec![7]).expect("nobody wants it");
    header.mark(3, true);
    header.mark(0, false);
    assert!(header.is_lent() && header.may_hold(3) && !header.may_hold(0));
    header.mark(3, false);
    assert!(header.is_lent() && !header.may_hold_any(), "a mark of a loan is no key");
    header.mark(500, true);
    drop(pin);
    assert!(!header.is_lent() && header.may_hold(400) && !header.may_hold(12));
}

#[test]
fn writers_lock_nothing_to_learn_that_no_key_is_frozen() {
    let keyspace = keyspace();
    let lent = Arc::new(PinnedSlots::default());
    let pin = lent.lend(&keyspace.slots, vec![7]).expect("nobody wants it");
    let records = lent.records.lock().expect("nobody has panicked");
    // This would deadlock if it locked the records.
    assert!(!lent.is_frozen(7, 0, b"key"));
    drop(records);
    drop(pin);
    let frozen = lent.freeze(&keyspace.slots, vec![(7, (2, b"key"[..].into()))]);
    assert!(lent.is_frozen(7, 2, b"key"));
    assert!(!lent.is_frozen(7, 0, b"key") && lent.is_frozen_anywhere(7, b"key"));
    assert!(!lent.is_frozen_anywhere(7, b"other") && !lent.is_frozen_anywhere(8, b"key"));
    drop(frozen);
    assert!(!lent.is_frozen(7, 2, b"key"));
}

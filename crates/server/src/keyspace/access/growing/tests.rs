//! Tests of leases that are added one by one.

use super::{ScriptLeases, WholeKeyspace};
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::{GatePassage, Keyspace};
use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex};

fn take_write_lease<'p>(pass: &'p GatePassage<'p>, slot: usize) -> Lease<'p> {
    pass.write_spinning(slot).map(Lease::Write).expect("the slot is free")
}

#[test]
fn indices_stay_while_leases_are_added_in_any_order() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let mut leases = ScriptLeases::new(vec![take_write_lease(&pass, 7), take_write_lease(&pass, 90)]);
    assert_eq!(leases.add(take_write_lease(&pass, 12)), 2);
    assert_eq!(leases.add(take_write_lease(&pass, 3)), 3);
    let found: Vec<Option<u32>> = [3, 7, 12, 90, 8]
        .into_iter()
        .map(|slot| leases.index_of(SlotIndex::from_index(slot)))
        .collect();
    assert_eq!(found, [Some(3), Some(0), Some(2), Some(1), None]);
    assert!(leases.slots().eq([3, 7, 12, 90].map(SlotIndex::from_index)));
    assert!(pass.write_spinning(12).is_none(), "it is held");
    let mut held = HeldLeases::Script(&mut leases);
    assert!(
        held.writable_slot(SlotIndex::from_index(3)).is_some()
            && held.writable_slot(SlotIndex::from_index(8)).is_none()
    );
    assert!(!held.holds_all_slots() && held.whole_keyspace().is_none());
}

#[test]
fn leases_of_all_slots_give_the_whole_keyspace() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let mut leases = ScriptLeases::new(vec![take_write_lease(&pass, SLOTS - 1)]);
    for slot in 0..SLOTS - 1 {
        leases.add(take_write_lease(&pass, slot));
    }
    let mut held = HeldLeases::Script(&mut leases);
    assert!(held.holds_all_slots());
    let mut whole = held.whole_keyspace().expect("every slot is held");
    assert!(matches!(whole, WholeKeyspace::Leased(_)));
    for slot in [0, 5, SLOTS - 1] {
        assert!(!whole.header(slot).may_hold_any());
        assert!(
            whole
                .parts_mut(slot)
                .1
                .table(DbIndex::FIRST)
                .is_some_and(weft_table::Table::is_empty)
        );
    }
}

#[test]
fn a_read_lease_gives_no_writable_slot() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let reading = pass.read_spinning(5).map(Lease::Read).expect("the slot is free");
    let mut leases = ScriptLeases::new(vec![reading]);
    assert!(leases.cell(5).is_some());
    assert!(
        HeldLeases::Script(&mut leases)
            .writable_slot(SlotIndex::from_index(5))
            .is_none()
    );
}

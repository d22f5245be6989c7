//! Tests of leases that are added one by one.

use super::{GrowingLeases, WholeKeyspace};
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::{GatePassage, Keyspace, SLOTS};

fn write<'p>(pass: &'p GatePassage<'p>, slot: usize) -> Lease<'p> {
    pass.write_spinning(slot).map(Lease::Write).expect("the slot is free")
}

#[test]
fn indices_stay_while_leases_are_added_in_any_order() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let mut leases = GrowingLeases::new(vec![write(&pass, 7), write(&pass, 90)]);
    assert_eq!(leases.add(write(&pass, 12)), 2);
    assert_eq!(leases.add(write(&pass, 3)), 3);
    let found: Vec<Option<u32>> = [3, 7, 12, 90, 8]
        .into_iter()
        .map(|slot| leases.index_of(slot))
        .collect();
    assert_eq!(found, [Some(3), Some(0), Some(2), Some(1), None]);
    assert!(leases.slots().eq([3, 7, 12, 90]));
    assert!(pass.write_spinning(12).is_none(), "it is held");
    let mut held = HeldLeases::Growing(&mut leases);
    assert!(held.written_slot(3).is_some() && held.written_slot(8).is_none());
    assert!(!held.is_everything() && held.whole().is_none());
}

#[test]
fn with_all_slots_the_keyspace_is_whole() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let mut leases = GrowingLeases::new(vec![write(&pass, SLOTS - 1)]);
    for slot in 0..SLOTS - 1 {
        leases.add(write(&pass, slot));
    }
    let mut held = HeldLeases::Growing(&mut leases);
    assert!(held.is_everything());
    let mut whole = held.whole().expect("every slot is held");
    assert!(matches!(whole, WholeKeyspace::Leased(_)));
    for slot in [0, 5, SLOTS - 1] {
        assert!(!whole.header(slot).may_hold_any());
        assert!(
            whole
                .parts_mut(slot)
                .1
                .table(0)
                .is_some_and(weft_table::Table::is_empty)
        );
    }
}

#[test]
fn a_readers_lease_is_not_written_under() {
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().unwrap();
    let pass = seat.enter();
    let reading = pass.read_spinning(5).map(Lease::Read).expect("the slot is free");
    let mut leases = GrowingLeases::new(vec![reading]);
    assert!(leases.cell(5).is_some());
    assert!(HeldLeases::Growing(&mut leases).written_slot(5).is_none());
}

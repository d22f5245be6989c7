//! Tests of visits to slots of which another thread has leased some.

use weft_config::Config;

use super::*;
use crate::start::create_idle_server;

#[test]
fn items_of_leased_slots_delay_no_others_and_are_left() {
    let server = create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut other = server.keyspace.slots.join().expect("a seat");
    let held = SlotIndex::from_index(7);
    // More items of the leased slot than one call handles are in front of and behind those of free slots.
    let mut items = vec![held; 2 * MAX_VISITS];
    items.splice(MAX_VISITS..MAX_VISITS, (100..200).map(SlotIndex::from_index));
    let mut visited = Vec::new();
    {
        let pass = other.enter();
        let _lease = pass.try_write(held.index()).expect("the slot is free");
        for _ in 0..3 {
            visit_free_slots(
                &mut seat,
                &mut items,
                |slot| *slot,
                |slot, _| visited.push(slot.index()),
            );
        }
    }
    visited.sort_unstable();
    assert_eq!(visited, (100..200).collect::<Vec<usize>>());
    assert!(items.len() == 2 * MAX_VISITS && items.iter().all(|slot| *slot == held));
    let mut calls = 0;
    while !items.is_empty() {
        visit_free_slots(&mut seat, &mut items, |slot| *slot, |_, _| {});
        calls += 1;
    }
    assert_eq!(calls, 2, "the work of one call is bounded");
}

#[test]
fn few_leased_slots_are_attempted_at_once() {
    let server = create_idle_server(Config::defaults());
    let mut seat = server.keyspace.slots.join().expect("a seat");
    let mut other = server.keyspace.slots.join().expect("a seat");
    let slots = 3 * MAX_REFUSED_SLOTS;
    let mut items: Vec<SlotIndex> = (0..slots).map(SlotIndex::from_index).collect();
    let free = SlotIndex::from_index(slots);
    items.insert(0, free);
    let mut visited = Vec::new();
    let pass = other.enter();
    let leases: Vec<_> = (0..slots)
        .map(|slot| pass.try_write(slot).expect("the slot is free"))
        .collect();
    for _ in 0..=slots / MAX_REFUSED_SLOTS {
        visit_free_slots(&mut seat, &mut items, |slot| *slot, |slot, _| visited.push(*slot));
    }
    assert_eq!(visited, [free], "its turn comes");
    assert_eq!(items.len(), slots);
    drop(leases);
}

//! Tests of the deletion of the keys of many slots.

use std::time::Duration;

use weft_base::DbIndex;
use weft_config::Config;
use weft_table::{Blob, NewValue};

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::publish_header;

#[test]
fn the_deletion_of_many_slots_stops_in_time_and_continues() {
    let server = crate::start::create_idle_server(Config::defaults());
    let keyspace = &server.keyspace;
    let mut seat = keyspace.slots.join().expect("a seat");
    let mut slots = SlotSet::default();
    for number in 0..500 {
        let name = format!("key:{number}").into_bytes();
        let hash = keyspace.hasher.hash(&name);
        let pass = seat.enter();
        let mut lease = pass
            .try_write(KeyHasher::slot(hash))
            .expect("no other thread holds a lease");
        let (header, slot) = lease.parts_mut();
        let value = NewValue::Blob(Blob::from_slice(b"value"));
        drop(slot.table_mut(DbIndex::FIRST).insert(hash, &name, value, None, 0));
        publish_header(header, slot);
        slots.set(SlotIndex::from_index(KeyHasher::slot(hash)), true);
    }
    let has_keys = |slot: &SlotIndex| keyspace.slots.header(slot.index()).may_hold_any();
    let count = slots.iter().count();
    let mut next_slot = 0;
    let mut delete = |until, next_slot: &mut usize| {
        delete_keys_of_slots(
            &server,
            &mut seat,
            &slots,
            next_slot,
            ImportMark::Set,
            until,
            |_: &Server, _: SlotIndex, _: &SlotHeader| true,
        )
    };
    assert!(!delete(Instant::now(), &mut next_slot), "no time is left");
    assert_eq!(slots.iter().filter(has_keys).count(), count);
    assert_eq!(slots.iter_from(next_slot).count(), count, "none is passed over");
    let mut turns = 0;
    while !delete(Instant::now() + Duration::from_micros(20), &mut next_slot) {
        turns += 1;
        assert!(slots.iter().filter(has_keys).eq(slots.iter_from(next_slot)), "in order");
    }
    assert!(turns > 0, "one turn does not suffice for {count} slots");
    assert_eq!(slots.iter().filter(has_keys).count(), 0);
    assert!(
        slots
            .iter()
            .all(|slot| keyspace.slots.header(slot.index()).is_importing())
    );

    // A slot in use is not waited for beyond that time.
    let busy = slots.iter().next().expect("a slot");
    let mut other = keyspace.slots.join().expect("a seat");
    let pass = other.enter();
    let lease = pass.try_write(busy.index()).expect("no other thread holds a lease");
    next_slot = 0;
    assert!(!delete(Instant::now() + Duration::from_millis(20), &mut next_slot));
    assert_eq!(next_slot, busy.index(), "it is the next one");
    drop(lease);
    drop(pass);
    assert!(delete(Instant::now() + Duration::from_secs(600), &mut next_slot));
    drop(seat);
}

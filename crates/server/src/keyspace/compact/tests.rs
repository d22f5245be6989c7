//! Tests that compaction preserves contents and headers.

use weft_base::DbIndex;
use weft_table::{Hint, NewValue};

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{GatePassage, Keyspace};

const DATABASES: usize = 3;

fn name(db: DbIndex, number: u32) -> String {
    format!("{db}:{number}")
}

fn fill(keyspace: &Keyspace, pass: &GatePassage<'_>, keys: u32) {
    for db in DbIndex::all(DATABASES) {
        for number in 0..keys {
            let name = name(db, number);
            let hash = keyspace.hasher.hash(name.as_bytes());
            let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
            let (header, slot) = lease.parts_mut();
            let (value, expire_at_ms) = (NewValue::Int(i64::from(number)), (number % 3 == 0).then_some(1 << 40));
            drop(
                slot.table_mut(db)
                    .insert(hash, name.as_bytes(), value, expire_at_ms, number),
            );
            publish_header(header, slot);
        }
    }
}

/// The address in a hint, as its debug output shows it.
fn array_of(hint: &Hint) -> String {
    let shown = format!("{hint:?}");
    shown.split("due").next().unwrap_or_default().to_owned()
}

/// Fails unless the slots' headers point to the current arrays of the tables.
fn assert_published(pass: &GatePassage<'_>) {
    for index in 0..SLOTS {
        let lease = pass.try_read(index).expect("nobody writes");
        let table = lease
            .table(DbIndex::FIRST)
            .expect("database 0 has a table in every slot");
        let (published, actual) = (
            array_of(&pass.domain().header(index).hint),
            array_of(&table.prefetch_hint()),
        );
        assert_eq!(published, actual, "slot {index}");
    }
}

/// Fails unless all keys exist with their value, expiry and clock.
fn assert_filled(keyspace: &Keyspace, pass: &GatePassage<'_>, keys: u32) {
    for db in DbIndex::all(DATABASES) {
        for number in 0..keys {
            let name = name(db, number);
            let hash = keyspace.hasher.hash(name.as_bytes());
            let lease = pass.try_read(KeyHasher::slot(hash)).expect("nobody writes");
            let entry = lease.table(db).and_then(|table| table.find(hash, name.as_bytes()));
            let entry = entry.unwrap_or_else(|| panic!("{name} is gone"));
            assert!(matches!(entry.value(), weft_table::ValueRef::Int(value) if value == i64::from(number)));
            assert_eq!(entry.expire_at_ms(), (number % 3 == 0).then_some(1 << 40));
            assert_eq!(entry.clock(), number);
        }
    }
}

#[test]
fn every_key_of_every_database_survives_compaction() {
    for keys in [0, 1, 20_000] {
        let keyspace = Keyspace::new(DATABASES, 1);
        let mut seat = keyspace.slots.join().expect("a seat is free");
        fill(&keyspace, &seat.enter(), keys);
        for _ in 0..2 {
            compact(&mut seat);
            assert_published(&seat.enter());
            assert_filled(&keyspace, &seat.enter(), keys);
        }
        fill(&keyspace, &seat.enter(), keys + 5000);
        assert_filled(&keyspace, &seat.enter(), keys + 5000);
    }
}

#[test]
fn leased_slots_are_skipped_without_waiting() {
    let keyspace = Keyspace::new(DATABASES, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let mut other = keyspace.slots.join().expect("a second seat is free");
    fill(&keyspace, &seat.enter(), 1000);
    let pass = other.enter();
    let hash = keyspace.hasher.hash(name(DbIndex::FIRST, 7).as_bytes());
    let held = pass.try_read(KeyHasher::slot(hash)).expect("nobody else is here");
    let entry = held
        .table(DbIndex::FIRST)
        .and_then(|table| table.find(hash, name(DbIndex::FIRST, 7).as_bytes()));
    let entry = entry.expect("the key was put there");
    compact(&mut seat);
    assert_eq!(
        entry.key(),
        name(DbIndex::FIRST, 7).as_bytes(),
        "a reader's view does not move"
    );
    drop(held);
    drop(pass);
    compact(&mut seat);
    assert_filled(&keyspace, &seat.enter(), 1000);
}

#[test]
fn empty_tables_of_databases_above_the_first_are_freed() {
    let keyspace = Keyspace::new(DATABASES, 1);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    {
        let pass = seat.enter();
        fill(&keyspace, &pass, 3000);
        for index in 0..SLOTS {
            let mut lease = pass.try_write(index).expect("nobody else is here");
            // Database 1 keeps its keys in half of the slots, database 2 in none.
            drop(lease.take_database(DbIndex::new(2)));
            if index % 2 == 0 {
                drop(lease.take_database(DbIndex::new(1)));
            } else {
                lease.table_mut(DbIndex::new(2));
            }
        }
    }
    free_empty_tables(&mut seat);
    let pass = seat.enter();
    for index in 0..SLOTS {
        let slot = pass.try_read(index).expect("nobody writes");
        let has_keys = slot.table(DbIndex::new(1)).is_some_and(|table| !table.is_empty());
        assert_eq!(slot.databases(), if has_keys { 2 } else { 1 });
        assert_eq!(slot.extra.is_some(), has_keys);
    }
    assert!(!keyspace.counts.take_has_empty_tables(), "no slot was leased");
}

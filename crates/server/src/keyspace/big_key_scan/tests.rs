//! Tests of the walk for big keys over a keyspace of all types, also beside a writer that holds a slot.

use weft_base::ThreadIndex;
use weft_table::NewValue;
use weft_values::list::{List, ListEnd};
use weft_values::set::{Set, SetLimits};

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Keyspace, publish_header};
use crate::observability::big_keys::{BigKeyReport, BigKeys, ScanPhase};

const NOW_MS: u64 = 1_700_000_000_000;
const DATABASES: usize = 4;

fn put(keyspace: &Keyspace, pass: &GatePassage<'_>, db: DbIndex, name: &str, value: NewValue<'_, Value>) {
    let hash = keyspace.hasher.hash(name.as_bytes());
    let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let (header, slot) = lease.parts_mut();
    drop(slot.table_mut(db).insert(hash, name.as_bytes(), value, None, 0));
    publish_header(header, slot);
    keyspace.counts.add(ThreadIndex::new(0), db, 1, 0);
}

fn list_of(elements: usize) -> NewValue<'static, Value> {
    let mut list = List::quicklist(-2, 0);
    (0..elements).for_each(|_| list.push(ListEnd::Tail, b"element"));
    NewValue::Object(Value::List(list))
}

fn set_of(members: usize) -> NewValue<'static, Value> {
    let limits = SetLimits {
        integers: 8,
        run_members: 8,
        run_member_bytes: 64,
    };
    let mut set = Set::new_table(members, members * 8);
    for member in 0..members {
        set.add(format!("m{member}").as_bytes(), limits);
    }
    NewValue::Object(Value::Set(set))
}

/// Runs steps without a budget until the scan is complete. Returns their number and the report.
fn scan(seat: &mut Seat, keyspace: &Keyspace) -> (usize, BigKeyReport) {
    let big_keys = BigKeys::default();
    assert!(big_keys.start(2, 5, NOW_MS, 0));
    let mut steps = 0;
    while big_keys.take_step_turn() {
        let mut step = big_keys.begin_step(Duration::ZERO).expect("it runs");
        run_step(seat, &keyspace.counts, &mut step);
        big_keys.end_step(step, NOW_MS);
        steps += 1;
    }
    (steps, big_keys.report(NOW_MS))
}

/// Returns name, database and elements of the biggest keys of a type.
fn biggest(report: &BigKeyReport, kind: &str) -> Vec<(String, usize, u64)> {
    let index = TYPES.iter().position(|known| *known == kind).expect("a type");
    let keys = report.types[index].biggest().iter();
    keys.map(|key| {
        (
            String::from_utf8_lossy(&key.name).into_owned(),
            key.db.get(),
            key.elements,
        )
    })
    .collect()
}

#[test]
fn the_biggest_keys_of_all_types_and_databases_are_found() {
    let keyspace = Keyspace::new(DATABASES, 1);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    let (first, third) = (DbIndex::FIRST, DbIndex::new(2));
    for number in 0..2000_usize {
        let value = vec![b'v'; 20 + number % 700];
        put(
            &keyspace,
            &pass,
            first,
            &format!("string:{number}"),
            NewValue::Bytes(&value),
        );
    }
    put(&keyspace, &pass, third, "number", NewValue::Int(-1234));
    let long = vec![b'v'; 5000];
    put(&keyspace, &pass, third, "long", NewValue::Bytes(&long));
    put(&keyspace, &pass, first, "short list", list_of(3));
    put(&keyspace, &pass, first, "list", list_of(3000));
    put(&keyspace, &pass, third, "longer list", list_of(4000));
    put(&keyspace, &pass, third, "set", set_of(500));
    let measured = {
        let hash = keyspace.hasher.hash(b"set");
        let lease = pass.try_read(KeyHasher::slot(hash)).expect("nobody writes");
        let entry = lease.table(third).and_then(|table| table.find(hash, b"set"));
        entry.map(allocated_bytes).expect("it exists")
    };
    drop(pass);
    let (steps, report) = scan(&mut seat, &keyspace);
    assert!(steps > 10, "a step without a budget visits some keys: {steps}");
    assert_eq!((report.phase, report.skipped_slots), (ScanPhase::Complete, 0));
    assert_eq!(biggest(&report, "string")[0], ("long".to_owned(), 2, 5000));
    let lists = [("longer list".to_owned(), 2, 4000), ("list".to_owned(), 0, 3000)];
    assert_eq!(biggest(&report, "list"), lists);
    assert_eq!(biggest(&report, "set"), [("set".to_owned(), 2, 500)]);
    assert_eq!(biggest(&report, "stream"), []);
    let set = &report.types[2];
    assert_eq!((set.keys, set.bytes, set.biggest()[0].bytes), (1, measured, measured));
    assert_eq!(report.types[0].keys, 2002);
    assert_eq!(report.types[1].keys, 3);
}

#[test]
fn an_empty_keyspace_needs_one_step() {
    let keyspace = Keyspace::new(DATABASES, 1);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let (steps, report) = scan(&mut seat, &keyspace);
    assert_eq!((steps, report.phase), (1, ScanPhase::Complete));
}

#[test]
fn a_slot_that_another_thread_writes_all_the_time_is_left_out() {
    let keyspace = Keyspace::new(DATABASES, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let mut writer = keyspace.slots.join().expect("a seat is free");
    {
        let pass = seat.enter();
        for number in 0..500 {
            put(
                &keyspace,
                &pass,
                DbIndex::FIRST,
                &format!("key:{number}"),
                NewValue::Int(1),
            );
        }
    }
    let slot = KeyHasher::slot(keyspace.hasher.hash(b"key:7"));
    let pass = writer.enter();
    let held = pass.try_write(slot).expect("nobody else is here");
    let in_slot = held.table(DbIndex::FIRST).map_or(0, |table| table.len() as u64);
    let (_, report) = scan(&mut seat, &keyspace);
    assert_eq!((report.phase, report.skipped_slots), (ScanPhase::Complete, 1));
    assert_eq!(report.types[0].keys, 500 - in_slot);
    drop(held);
}

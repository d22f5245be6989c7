//! Tests of copying keys into a scratch keyspace.

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::{NewValue, Shared, ValueRef};
use weft_values::Value;

use super::CopiedKeys;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Keyspace, publish_header};

fn put(keyspace: &Keyspace, db: DbIndex, name: &[u8], value: NewValue<'_, Value>, expire_at_ms: Option<u64>) -> u64 {
    let mut seat = keyspace.slots.join().expect("a seat");
    let mut all = seat.exclusive();
    let hash = keyspace.hasher.hash(name);
    let (header, slot) = all.parts_mut(KeyHasher::slot(hash));
    drop(slot.table_mut(db).insert(hash, name, value, expire_at_ms, 7));
    publish_header(header, slot);
    hash
}

fn list() -> Value {
    Value::List(weft_values::list::List::quicklist(-2, 0))
}

#[test]
fn copies_are_independent_values_in_all_databases() {
    let keyspace = Keyspace::new(3, 2);
    let hash = put(&keyspace, DbIndex::FIRST, b"key", NewValue::Bytes(b"one"), Some(5_000));
    put(
        &keyspace,
        DbIndex::new(2),
        b"key",
        NewValue::Shared(Shared::new(list())),
        None,
    );
    put(&keyspace, DbIndex::FIRST, b"other", NewValue::Int(3), None);
    let beside = keyspace.new_scratch_keyspace();
    assert_eq!(beside.hasher.hash(b"key"), hash);
    let mut seat = beside.slots.join().expect("a seat");
    let mut all = seat.exclusive();
    {
        let mut key_copier = keyspace.slots.join().expect("a seat");
        let pass = key_copier.enter();
        let number = KeyHasher::slot(hash);
        let lease = pass.try_read(number).expect("nobody else is here");
        let mut copies = CopiedKeys::default();
        copies
            .take(&keyspace, &lease, hash, b"key")
            .expect("values can be copied");
        assert!(keyspace.slots.header(number).has_pinned_values(), "until it is copied");
        drop(lease);
        copies.put(&beside, &mut all, ThreadIndex::new(0));
        assert!(!keyspace.slots.header(number).has_pinned_values());
    }
    let slot = all.cell(KeyHasher::slot(hash));
    let first = slot
        .table(DbIndex::FIRST)
        .and_then(|table| table.find(hash, b"key"))
        .expect("a copy");
    assert!(matches!(first.value(), ValueRef::Bytes(b"one")));
    assert_eq!((first.expire_at_ms(), first.clock()), (Some(5_000), 7));
    let third = slot
        .table(DbIndex::new(2))
        .and_then(|table| table.find(hash, b"key"))
        .expect("a copy");
    assert!(matches!(third.value(), ValueRef::Object(Value::List(_))));
    assert!(!third.is_shared(), "the copy is not shared");
    assert_eq!(
        (
            beside.counts.keys(DbIndex::FIRST),
            beside.counts.with_expiry(DbIndex::FIRST),
            beside.counts.keys(DbIndex::new(2))
        ),
        (1, 1, 1)
    );
}

#[test]
fn all_keys_of_a_slot_are_taken_but_for_known_ones() {
    let keyspace = Keyspace::new(1, 2);
    let names: Vec<Vec<u8>> = (0..2000).map(|number| format!("key:{number}").into_bytes()).collect();
    for name in &names {
        put(&keyspace, DbIndex::FIRST, name, NewValue::Int(1), None);
    }
    let beside = keyspace.new_scratch_keyspace();
    let mut seat = beside.slots.join().expect("a seat");
    let mut all = seat.exclusive();
    let mut key_copier = keyspace.slots.join().expect("a seat");
    let pass = key_copier.enter();
    for number in 0..weft_base::slots::SLOTS {
        let lease = pass.try_read(number).expect("nobody else is here");
        let mut copies = CopiedKeys::default();
        let known = |name: &[u8]| name.ends_with(b"0");
        copies
            .take_all(&keyspace, SlotIndex::from_index(number), &lease, known)
            .expect("nothing is large");
        drop(lease);
        copies.put(&beside, &mut all, ThreadIndex::new(0));
    }
    assert_eq!(beside.counts.keys(DbIndex::FIRST), 1800);
    let found = |name: &[u8]| {
        let hash = beside.hasher.hash(name);
        let table = all.cell(KeyHasher::slot(hash)).table(DbIndex::FIRST);
        table.is_some_and(|table| table.find(hash, name).is_some())
    };
    assert!(found(b"key:1") && !found(b"key:10"));
}

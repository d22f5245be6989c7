//! Tests of staging data that replaces the contents of a keyspace.

use weft_base::{DbIndex, ThreadIndex};
use weft_table::NewValue;

use super::StagedDatabases;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::walk::{Cursor, WalkAccess, walk};
use crate::keyspace::{Keyspace, Seat, publish_header};

fn put(keyspace: &Keyspace, seat: &mut Seat, db: DbIndex, name: &str) {
    let hash = keyspace.hasher.hash(name.as_bytes());
    let thread_index = ThreadIndex::new(seat.index());
    let mut all = seat.exclusive();
    let (header, slot) = all.parts_mut(KeyHasher::slot(hash));
    drop(
        slot.table_mut(db)
            .insert(hash, name.as_bytes(), NewValue::Int(1), None, 0),
    );
    keyspace.counts.add(thread_index, db, 1, 0);
    publish_header(header, slot);
}

fn stage(keyspace: &Keyspace, apart: &mut StagedDatabases, db: DbIndex, name: &str, expire_at_ms: Option<u64>) {
    let hash = keyspace.hasher.hash(name.as_bytes());
    let (slots, counts) = apart.parts_mut();
    let table = slots[KeyHasher::slot(hash)].table_mut(db);
    drop(table.insert(hash, name.as_bytes(), NewValue::Int(2), expire_at_ms, 0));
    counts[db.get()][0] += 1;
    counts[db.get()][1] += i64::from(expire_at_ms.is_some());
}

fn names(seat: &mut Seat, db: DbIndex) -> Vec<String> {
    let pass = seat.enter();
    let mut names = Vec::new();
    walk(
        &WalkAccess::Pass(&pass),
        db,
        Cursor::START,
        usize::MAX,
        &mut |_, entry| {
            names.push(String::from_utf8_lossy(entry.key()).into_owned());
        },
    );
    names.sort();
    names
}

#[test]
fn staged_data_replaces_all_databases_and_the_old_data_is_returned() {
    let keyspace = Keyspace::new(4, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    for name in ["a", "b", "c"] {
        put(&keyspace, &mut seat, DbIndex::FIRST, name);
    }
    put(&keyspace, &mut seat, DbIndex::new(2), "d");
    let mut apart = StagedDatabases::new(4);
    stage(&keyspace, &mut apart, DbIndex::FIRST, "b", None);
    stage(&keyspace, &mut apart, DbIndex::new(3), "e", Some(99));
    let thread_index = ThreadIndex::new(seat.index());
    let taken = apart.install(&mut seat.exclusive(), &keyspace.counts, thread_index, 1000);
    assert_eq!((taken.keys, taken.tables.len()), (4, 4));
    let found: Vec<Vec<String>> = (0..4).map(|db| names(&mut seat, DbIndex::new(db))).collect();
    assert_eq!(found, [vec!["b"], vec![], vec![], vec!["e"]]);
    let counts: Vec<(u64, u64)> = (0..4)
        .map(|db| {
            (
                keyspace.counts.keys(DbIndex::new(db)),
                keyspace.counts.with_expiry(DbIndex::new(db)),
            )
        })
        .collect();
    assert_eq!(counts, [(1, 0), (0, 0), (0, 0), (1, 1)]);
}

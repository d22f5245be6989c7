//! Handles of objects: they show the object as it was, whatever happens to the key, and the last one frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weft_table::{NewValue, OwnedValue, Shared, Table, ValueRef};

/// A value that counts its living instances.
#[derive(Debug)]
struct Counted {
    number: u64,
    alive: Arc<AtomicUsize>,
}

impl Counted {
    fn new(number: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted {
            number,
            alive: alive.clone(),
        }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Counted::new(self.number, &self.alive)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

const KEY: &[u8] = b"key";
const HASH: u64 = 0x1234_5678_9abc_def0;

fn table_with(object: Counted) -> Table<Counted> {
    let mut table = Table::new();
    drop(table.insert(HASH, KEY, NewValue::Object(object), None, 0));
    table
}

fn number(table: &Table<Counted>) -> Option<u64> {
    match table.find(HASH, KEY)?.value() {
        ValueRef::Object(object) => Some(object.number),
        _ => None,
    }
}

fn share(table: &Table<Counted>) -> Shared<Counted> {
    table
        .find(HASH, KEY)
        .and_then(|entry| entry.share())
        .expect("an object")
}

#[test]
fn an_unshared_object_is_changed_in_place() {
    let alive = Arc::default();
    let mut table = table_with(Counted::new(1, &alive));
    drop(share(&table));
    let mut entry = table.find_mut(HASH, KEY).expect("the key");
    assert!(!entry.as_ref().is_shared());
    let before: *const Counted = entry.object_mut().expect("an object");
    entry.object_mut().expect("an object").number = 2;
    let after: *const Counted = entry.object_mut().expect("an object");
    assert_eq!((before, number(&table)), (after, Some(2)));
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(table);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_handle_shows_the_old_object_after_a_change_or_removal() {
    type Change = fn(&mut Table<Counted>, &Arc<AtomicUsize>);
    let changes: [(&str, Change, usize, Option<u64>); 5] = [
        (
            "change",
            |table, _| {
                let mut entry = table.find_mut(HASH, KEY).expect("the key");
                entry.object_mut().expect("an object").number = 2;
            },
            2,
            Some(2),
        ),
        (
            "replacement",
            |table, alive| drop(table.insert(HASH, KEY, NewValue::Object(Counted::new(3, alive)), None, 0)),
            2,
            Some(3),
        ),
        ("removal", |table, _| drop(table.remove(HASH, KEY)), 1, None),
        (
            "expiry",
            |table, _| drop(table.find_mut(HASH, KEY).map(|mut entry| entry.set_expire(Some(9)))),
            1,
            Some(1),
        ),
        ("end of the table", |table, _| drop(table.take()), 1, None),
    ];
    for (what, change, alive_then, seen_then) in changes {
        let alive = Arc::default();
        let mut table = table_with(Counted::new(1, &alive));
        let handle = share(&table);
        let other = handle.clone();
        change(&mut table, &alive);
        assert_eq!((handle.number, other.number), (1, 1), "{what}");
        assert_eq!(number(&table), seen_then, "{what}");
        assert_eq!(alive.load(Ordering::SeqCst), alive_then, "{what}");
        drop((handle, table));
        assert_eq!(alive.load(Ordering::SeqCst), 1, "{what}: the last handle keeps it");
        drop(other);
        assert_eq!(alive.load(Ordering::SeqCst), 0, "{what}: and frees it");
    }
}

#[test]
fn an_entry_can_be_created_from_a_handle() {
    let alive = Arc::default();
    let mut one = table_with(Counted::new(1, &alive));
    let mut other = Table::new();
    drop(other.insert(HASH, KEY, NewValue::Shared(share(&one)), Some(77), 5));
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    let handle = share(&one);
    let is_same = |table: &Table<Counted>| share(table).is_same(&handle);
    assert!(is_same(&one) && is_same(&other));
    assert!(matches!(one.find(HASH, KEY).expect("the key").value(), ValueRef::Object(object) if handle.is_of(object)));
    other
        .find_mut(HASH, KEY)
        .expect("the key")
        .object_mut()
        .expect("an object")
        .number = 2;
    assert!(is_same(&one) && !is_same(&other));
    assert_eq!((number(&one), number(&other)), (Some(1), Some(2)));
    // Moved to the other table, it is still the same object.
    let removed = one.remove(HASH, KEY).expect("the key");
    drop(other.insert_removed(HASH, KEY, removed));
    assert!(is_same(&other));
    match other.remove(HASH, KEY).expect("the key").into_value() {
        OwnedValue::Object(object) => {
            assert!(object.is_same(&handle) && !object.is_unique());
            drop(handle);
            assert!(object.is_unique());
            let alone = object.into_inner();
            assert_eq!((alone.number, alive.load(Ordering::SeqCst)), (1, 1));
        }
        other => panic!("an object became {other:?}"),
    }
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn shared_due_objects_are_copied_before_they_are_examined() {
    let alive = Arc::default();
    let mut table = table_with(Counted::new(1, &alive));
    table.find_mut(HASH, KEY).expect("the key").note_value_due(1000);
    let handle = share(&table);
    let mut removed = Vec::new();
    table.expire_due(2000, 10, &mut removed, &mut |_, object| {
        object.number += 1;
        weft_table::ValueDue::At(None)
    });
    assert_eq!((handle.number, number(&table), removed.len()), (1, Some(2), 0));
    drop((handle, table));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn readers_keep_their_handles_while_the_writer_changes_the_object() {
    let alive = Arc::default();
    let table = table_with(Counted::new(0, &alive));
    let table = std::sync::RwLock::new(table);
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut kept = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let handle = share(&table.read().expect("no panic"));
                    kept.push((handle.number, handle));
                    if kept.len() > 8 {
                        kept.swap_remove(fastrand::usize(..kept.len()));
                    }
                    assert!(kept.iter().all(|(number, handle)| handle.number == *number));
                }
            });
        }
        for round in 1..3000 {
            let mut table = table.write().expect("no panic");
            match round % 10 {
                0 => drop(table.insert(HASH, KEY, NewValue::Object(Counted::new(round, &alive)), None, 0)),
                _ => {
                    table
                        .find_mut(HASH, KEY)
                        .expect("the key")
                        .object_mut()
                        .expect("an object")
                        .number = round
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(number(&table.read().expect("no panic")), Some(2999));
    drop(table);
    assert_eq!(alive.load(Ordering::SeqCst), 0, "each was freed exactly once");
}

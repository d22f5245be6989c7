//! Tests that no key is lost or changed while it is moved, whatever other threads do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weft_table::{Garbage, NewValue, ValueRef};
use weft_values::hash::{FieldExpiry, Hash, HashEncoding};
use weft_values::list::{List, ListEnd};
use weft_values::set::{Set, SetLimits};
use weft_values::sorted_set::{SortedSet, SortedSetEncoding};
use weft_values::stream::{BlockLimits, Stream, StreamId};

use super::*;
use crate::keyspace::{Keyspace, WriteLease};
use weft_os::atomic::{AtomicBool, Ordering};

const SET_LIMITS: SetLimits = SetLimits {
    integers: 10,
    run_members: 10,
    run_member_bytes: 64,
};

/// Creates a value whose contents follow from a number, with up to thousands of parts.
fn value_of(number: u32) -> NewValue<'static, Value> {
    let size = match number % 50 {
        0 => 3000,
        rest => u64::from(rest * 4),
    };
    let name = |index: u64| format!("{number}:{index}").into_bytes();
    NewValue::Object(match number % 5 {
        0 => {
            let mut list = List::quicklist(8, i64::from(number % 2));
            (0..size).for_each(|index| list.push(ListEnd::Tail, &name(index)));
            Value::List(list)
        }
        1 => {
            let mut hash = Hash::new(HashEncoding::Hashtable);
            for index in 0..size {
                hash.set(&name(index), &name(index + 1), FieldExpiry::Never, 0);
            }
            Value::Hash(hash)
        }
        2 => {
            let mut set = Set::new_table(0, 0);
            for index in 0..size {
                set.add(&name(index), SET_LIMITS);
            }
            Value::Set(set)
        }
        3 => {
            let mut set = SortedSet::new(SortedSetEncoding::Skiplist);
            (0..size).for_each(|index| set.insert(&name(index), (index % 7) as f64));
            Value::SortedSet(set)
        }
        _ => {
            let mut stream = Stream::new();
            let limits = BlockLimits { bytes: 300, entries: 0 };
            for index in 0..size {
                let (field, content) = (name(index), name(index + 1));
                let pairs: [(&[u8], &[u8]); 1] = [(&field, &content)];
                stream
                    .append(StreamId::new(1, index + 1), pairs.into_iter(), limits)
                    .expect("the IDs ascend");
            }
            Value::Stream(stream)
        }
    })
}

/// Returns the string under a number.
fn string_of(number: u32) -> Vec<u8> {
    vec![number as u8; [10, 100, 700, 5000, 20_000][number as usize % 5]]
}

/// Returns the contents of a value as text.
fn text_of(value: &Value) -> String {
    match value {
        Value::List(list) => {
            let mut text = String::new();
            list.visit(0, weft_values::list::Direction::Forward, |element| {
                text.push_str(&format!("{element:?} "));
                std::ops::ControlFlow::Continue(())
            });
            text
        }
        Value::Hash(hash) => format!("{:?}", hash.iter(0).collect::<Vec<_>>()),
        Value::Set(set) => {
            let mut text = String::new();
            set.view().for_each(|member| text.push_str(&format!("{member:?} ")));
            text
        }
        Value::SortedSet(set) => format!("{:?}", set.iter_ranks(0..set.len(), false).collect::<Vec<_>>()),
        Value::Stream(stream) => {
            let entries = stream.entries(StreamId::MIN, StreamId::MAX);
            let pairs = entries.map(|entry| format!("{:?}", entry.pairs().collect::<Vec<_>>()));
            pairs.collect()
        }
        Value::Module(value) => unreachable!("the test has no value of a module: {value:?}"),
    }
}

fn db_of(number: u32) -> DbIndex {
    DbIndex::new(number as usize % 2)
}

/// Calls `change` with the table of a key, under a lease. Waits for the lease.
fn with_table<R>(
    keyspace: &Keyspace,
    pass: &GatePassage<'_>,
    number: u32,
    key: &[u8],
    change: impl FnOnce(&mut crate::keyspace::SlotTable, u64) -> R,
) -> R {
    let hash = keyspace.hasher.hash(key);
    let mut lease: WriteLease<'_> = loop {
        match pass.try_write(KeyHasher::slot(hash)) {
            Some(lease) => break lease,
            None => std::thread::yield_now(),
        }
    };
    let (header, slot) = lease.parts_mut();
    let result = change(slot.table_mut(db_of(number)), hash);
    publish_header(header, slot);
    result
}

/// Stores the value, or the string, of a number.
fn store(keyspace: &Keyspace, pass: &GatePassage<'_>, number: u32, key: &[u8], is_string: bool) {
    let string = string_of(number);
    let value = match is_string {
        true => NewValue::Bytes(&string),
        false => value_of(number),
    };
    let expire_at_ms = number.is_multiple_of(3).then_some(1 << 41);
    let garbage: Garbage<Value> = with_table(keyspace, pass, number, key, |table, hash| {
        table.insert(hash, key, value, expire_at_ms, number)
    });
    drop(garbage);
}

/// Fails unless a key has the value of a number.
fn assert_stored(keyspace: &Keyspace, pass: &GatePassage<'_>, number: u32, key: &[u8], is_string: bool) {
    with_table(keyspace, pass, number, key, |table, hash| {
        let entry = table.find(hash, key).expect("the key exists");
        match (entry.value(), value_of(number)) {
            (ValueRef::Object(found), NewValue::Object(expected)) if !is_string => {
                assert_eq!(text_of(found), text_of(&expected), "{number}");
                assert_eq!(found.allocated_bytes(), expected.allocated_bytes());
            }
            (ValueRef::Bytes(found), _) if is_string => assert!(found == string_of(number)),
            (ValueRef::Blob(found), _) if is_string => assert!(found[..] == string_of(number)),
            (found, _) => panic!("{number}: {found:?}"),
        }
        assert_eq!(entry.expire_at_ms(), number.is_multiple_of(3).then_some(1 << 41));
        assert_eq!(entry.clock(), number);
    });
}

/// Walks over the whole keyspace in small steps. Returns the number of moved allocations.
fn walk_to_end(keyspace: &Keyspace, seat: &mut Seat, units: u32) -> u64 {
    let mut mover = Mover::of_everything();
    let mut walk = DefragWalk::new();
    loop {
        let deadline = Instant::now() + Duration::from_micros(100);
        if walk.walk_until(seat, &keyspace.hasher, &mut mover, units, deadline) == WalkProgress::Finished {
            return mover.take_counts().moved;
        }
    }
}

#[test]
fn values_of_all_types_stay_equal() {
    const KEYS: u32 = 400;
    let keyspace = Keyspace::new(2, 1);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let key = |number: u32| format!("key:{number}").into_bytes();
    (0..KEYS).for_each(|number| store(&keyspace, &seat.enter(), number, &key(number), number % 2 == 0));
    for units in [1, 50, 100_000] {
        let moved = walk_to_end(&keyspace, &mut seat, units);
        assert!(moved > u64::from(KEYS), "{moved}");
        let pass = seat.enter();
        (0..KEYS).for_each(|number| assert_stored(&keyspace, &pass, number, &key(number), number % 2 == 0));
    }
}

#[test]
fn shared_values_stay_where_they_are() {
    let keyspace = Keyspace::new(2, 1);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    store(&keyspace, &seat.enter(), 51, b"hash", false);
    store(&keyspace, &seat.enter(), 54, b"blob", true);
    let (object, blob) = {
        let pass = seat.enter();
        let object = with_table(&keyspace, &pass, 51, b"hash", |table, hash| {
            table.find(hash, b"hash").and_then(|entry| entry.share())
        });
        let blob = with_table(&keyspace, &pass, 54, b"blob", |table, hash| {
            match table.find(hash, b"blob").map(|entry| entry.value()) {
                Some(ValueRef::Blob(blob)) => Some(blob.clone()),
                _ => None,
            }
        });
        (object.expect("an object"), blob.expect("a blob"))
    };
    let before = (text_of(&object), blob.to_vec());
    walk_to_end(&keyspace, &mut seat, 10);
    assert_eq!((text_of(&object), blob.to_vec()), before);
    let pass = seat.enter();
    with_table(&keyspace, &pass, 51, b"hash", |table, hash| {
        match table.find(hash, b"hash").map(|entry| entry.value()) {
            Some(ValueRef::Object(found)) => assert!(object.is_of(found)),
            found => panic!("{found:?}"),
        }
    });
}

/// The share of a CPU that the walk takes would otherwise be that of the one who has closed the gate.
#[test]
fn a_walk_does_not_work_while_the_gate_is_closed() {
    const CLOSED: Duration = Duration::from_millis(200);
    let keyspace = Keyspace::new(2, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let mut other = keyspace.slots.join().expect("a second seat is free");
    store(&keyspace, &seat.enter(), 1, b"key", true);
    let (is_closed, closed) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let exclusive = other.exclusive();
            is_closed.send(()).expect("the test waits");
            std::thread::sleep(CLOSED);
            drop(exclusive);
        });
        closed.recv().expect("the gate is closed");
        let (mut walk, mut mover) = (DefragWalk::new(), Mover::of_everything());
        let began = Instant::now();
        walk.walk_until(&mut seat, &keyspace.hasher, &mut mover, 1000, began);
        assert!(began.elapsed() > CLOSED / 2, "the walk has waited");
        let worked = walk.take_worked();
        assert!(worked < CLOSED / 4, "{worked:?}");
    });
}

#[test]
fn slots_that_are_leased_are_visited_at_the_end() {
    let keyspace = Keyspace::new(2, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let mut other = keyspace.slots.join().expect("a second seat is free");
    let key = |number: u32| format!("key:{number}").into_bytes();
    (0..100).for_each(|number| store(&keyspace, &seat.enter(), number, &key(number), true));
    let pass = other.enter();
    let held = pass
        .try_read(KeyHasher::slot(keyspace.hasher.hash(&key(7))))
        .expect("it is free");
    let (mut walk, mut mover) = (DefragWalk::new(), Mover::of_everything());
    let mut step = |walk: &mut DefragWalk| {
        let progress = walk.walk_until(&mut seat, &keyspace.hasher, &mut mover, 1000, Instant::now());
        (progress, mover.take_counts().moved_entries)
    };
    let mut moved = 0;
    let progress = loop {
        let (progress, entries) = step(&mut walk);
        moved += entries;
        if progress != WalkProgress::Unfinished {
            break progress;
        }
    };
    assert_eq!(progress, WalkProgress::SlotLeased);
    assert!((90..100).contains(&moved), "{moved}");
    drop(held);
    while walk.slot < SLOTS || !walk.leased.is_empty() {
        moved += step(&mut walk).1;
    }
    assert_eq!(moved, 100);
    assert_eq!(step(&mut walk), (WalkProgress::Finished, 0));
    // A slot that is never free does not keep the walk from its end.
    let _held = pass
        .try_read(KeyHasher::slot(keyspace.hasher.hash(&key(7))))
        .expect("it is free");
    let mut walk = DefragWalk::new();
    assert!((0..10_000).any(|_| step(&mut walk).0 == WalkProgress::Finished));
}

/// Writers change their own keys, and one thread deletes everything in exclusive mode now and then.
#[test]
fn concurrent_writers_find_what_they_have_written() {
    const WRITERS: u32 = 3;
    let keyspace = Arc::new(Keyspace::new(2, WRITERS as usize + 1));
    let has_ended = AtomicBool::new(false);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (keyspace, mut seat) = (keyspace.clone(), keyspace.slots.join().expect("a seat"));
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed ^ u64::from(writer));
                    let mut stored = HashMap::new();
                    for round in 0..800 {
                        let key = format!("{writer}:{}", random.u32(..100)).into_bytes();
                        if random.u32(..4) > 0 {
                            // All values of a key are in one database.
                            let number = random.u32(..500) * 2 + u32::from(key[key.len() - 1] % 2);
                            store(&keyspace, &seat.enter(), number, &key, round % 2 == 0);
                            stored.insert(key, (number, round % 2 == 0));
                        } else if let Some((number, is_string)) = stored.remove(&key) {
                            let pass = seat.enter();
                            assert_stored(&keyspace, &pass, number, &key, is_string);
                            drop(with_table(&keyspace, &pass, number, &key, |table, hash| {
                                table.remove(hash, &key).expect("the key exists")
                            }));
                        }
                        if writer == 0 && round % 200 == 199 {
                            // What other threads do in exclusive mode (FLUSHALL does more) must not disturb the walk.
                            drop(seat.exclusive());
                        }
                    }
                    let pass = seat.enter();
                    for (key, (number, is_string)) in stored {
                        assert_stored(&keyspace, &pass, number, &key, is_string);
                    }
                })
            })
            .collect();
        let walker = scope.spawn(|| {
            let mut seat = keyspace.slots.join().expect("a seat");
            let mut moved = 0;
            while !has_ended.load(Ordering::Relaxed) {
                moved += walk_to_end(&keyspace, &mut seat, 20);
            }
            moved
        });
        for writer in writers {
            writer.join().expect("a writer ends well");
        }
        has_ended.store(true, Ordering::Relaxed);
        assert!(walker.join().expect("the walker ends well") > 1000);
    });
}

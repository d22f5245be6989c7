//! Tests of the guarantees of a walk over the slots while the keyspace changes.

use std::collections::BTreeSet;

use weft_base::DbIndex;
use weft_table::NewValue;

use super::*;
use crate::keyspace::{Keyspace, hash::KeyHasher, publish_header};

fn put(keyspace: &Keyspace, pass: &GatePassage<'_>, db: DbIndex, name: &str) {
    let hash = keyspace.hasher.hash(name.as_bytes());
    let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let (header, slot) = lease.parts_mut();
    drop(
        slot.table_mut(db)
            .insert(hash, name.as_bytes(), NewValue::Int(1), None, 0),
    );
    publish_header(header, slot);
}

fn remove(keyspace: &Keyspace, pass: &GatePassage<'_>, db: DbIndex, name: &str) {
    let hash = keyspace.hasher.hash(name.as_bytes());
    let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let (header, slot) = lease.parts_mut();
    assert!(
        slot.table_mut(db).remove(hash, name.as_bytes()).is_some(),
        "{name} exists"
    );
    publish_header(header, slot);
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}:{index}")).collect()
}

/// Performs one call of a client that continues from the number it received.
fn step(reach: &WalkAccess<'_, '_>, db: DbIndex, number: u64, count: usize, seen: &mut Vec<String>) -> u64 {
    let stop = walk(reach, db, Cursor::from_number(number), count, &mut |_, entry| {
        seen.push(String::from_utf8_lossy(entry.key()).into_owned());
    });
    match stop {
        WalkEnd::End => 0,
        WalkEnd::Paused(next) => next.to_number(),
        WalkEnd::Contended(_) => panic!("no writer holds the slot"),
    }
}

#[test]
fn every_key_is_visited_exactly_once_while_nothing_changes() {
    for (keys, count) in [(0, 10), (1, 1), (100, 1), (5000, 10), (5000, 1000), (50_000, 7)] {
        let keyspace = Keyspace::new(4, 2);
        let mut seat = keyspace.slots.join().expect("a seat is free");
        let pass = seat.enter();
        let expected = names("key", keys);
        expected
            .iter()
            .for_each(|name| put(&keyspace, &pass, DbIndex::new(3), name));
        put(&keyspace, &pass, DbIndex::FIRST, "of another database");
        let reach = WalkAccess::Pass(&pass);
        let (mut seen, mut number) = (Vec::new(), 0);
        loop {
            let before = seen.len();
            number = step(&reach, DbIndex::new(3), number, count, &mut seen);
            if number == 0 {
                break;
            }
            assert!(
                seen.len() - before >= count,
                "a call that is not the last visits enough"
            );
        }
        let set: BTreeSet<&String> = seen.iter().collect();
        assert_eq!((seen.len(), set.len()), (keys, keys), "{keys} keys, {count} at a time");
    }
}

#[test]
fn keys_that_stay_are_visited_despite_insertions_and_removals() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let keyspace = Keyspace::new(1, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    let staying = names("stay", 3000);
    staying
        .iter()
        .for_each(|name| put(&keyspace, &pass, DbIndex::FIRST, name));
    let (mut seen, mut number, mut guests) = (Vec::new(), 0, Vec::new());
    let mut round = 0;
    loop {
        for index in 0..random.usize(..300) {
            let name = format!("guest:{round}:{index}");
            put(&keyspace, &pass, DbIndex::FIRST, &name);
            guests.push(name);
        }
        for _ in 0..random.usize(..=guests.len()) {
            remove(
                &keyspace,
                &pass,
                DbIndex::FIRST,
                &guests.swap_remove(random.usize(..guests.len())),
            );
        }
        number = step(&WalkAccess::Pass(&pass), DbIndex::FIRST, number, 10, &mut seen);
        round += 1;
        if number == 0 {
            break;
        }
    }
    let seen: BTreeSet<String> = seen.into_iter().collect();
    let missed = staying.iter().filter(|name| !seen.contains(*name)).count();
    assert_eq!(missed, 0, "seed {seed}");
}

#[test]
fn a_slot_under_a_writer_is_reported_and_the_walk_continues_there() {
    let keyspace = Keyspace::new(1, 4);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    names("key", 1000)
        .iter()
        .for_each(|name| put(&keyspace, &pass, DbIndex::FIRST, name));
    let hash = keyspace.hasher.hash(b"key:17");
    let lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
    let mut visited = 0;
    let stop = walk(
        &WalkAccess::Pass(&pass),
        DbIndex::FIRST,
        Cursor::START,
        usize::MAX,
        &mut |_, _| visited += 1,
    );
    let WalkEnd::Contended(here) = stop else {
        panic!("the walk passed a leased slot: {stop:?}");
    };
    assert_eq!(here, Cursor::at_slot(KeyHasher::slot(hash)));
    drop(lease);
    let stop = walk(
        &WalkAccess::Pass(&pass),
        DbIndex::FIRST,
        here,
        usize::MAX,
        &mut |_, _| visited += 1,
    );
    assert_eq!((stop, visited), (WalkEnd::End, 1000));
}

#[test]
fn a_blocking_walk_waits_for_writers_and_admits_exclusive_mode() {
    let keyspace = Keyspace::new(1, 4);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    {
        let pass = seat.enter();
        names("key", 20_000)
            .iter()
            .for_each(|name| put(&keyspace, &pass, DbIndex::FIRST, name));
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| {
            let mut seat = keyspace.slots.join().expect("a seat is free");
            let mut visited = 0;
            for _ in 0..20 {
                let stop = walk_blocking(
                    &mut seat,
                    &|_| false,
                    DbIndex::FIRST,
                    Cursor::START,
                    usize::MAX,
                    &mut |_, _| visited += 1,
                );
                assert_eq!(stop, WalkEnd::End);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            visited
        });
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            {
                let pass = seat.enter();
                let lease = pass.try_write(fastrand::usize(..SLOTS));
                std::thread::yield_now();
                drop(lease);
            }
            drop(seat.exclusive());
        }
        assert_eq!(walker.join().expect("the walker ends"), 20 * 20_000);
    });
}

#[test]
fn a_blocking_walk_stops_after_enough_keys() {
    let keyspace = Keyspace::new(1, 4);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    {
        let pass = seat.enter();
        names("key", 5000)
            .iter()
            .for_each(|name| put(&keyspace, &pass, DbIndex::FIRST, name));
    }
    let mut visited = 0;
    let stop = walk_blocking(
        &mut seat,
        &|_| false,
        DbIndex::FIRST,
        Cursor::START,
        2000,
        &mut |_, _| visited += 1,
    );
    let WalkEnd::Paused(next) = stop else {
        panic!("there are more: {stop:?}");
    };
    assert!((2000..2100).contains(&visited), "{visited} visited");
    let stop = walk_blocking(&mut seat, &|_| false, DbIndex::FIRST, next, usize::MAX, &mut |_, _| {
        visited += 1
    });
    assert_eq!((stop, visited), (WalkEnd::End, 5000));
}

#[test]
fn any_number_is_a_cursor() {
    let keyspace = Keyspace::new(1, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    names("key", 100)
        .iter()
        .for_each(|name| put(&keyspace, &pass, DbIndex::FIRST, name));
    for number in [1, u64::from(u32::MAX), 1 << 32, (SLOTS as u64) << 32, 1 << 63, u64::MAX] {
        let mut seen = Vec::new();
        let next = step(&WalkAccess::Pass(&pass), DbIndex::FIRST, number, usize::MAX, &mut seen);
        assert_eq!(next, 0, "{number}");
    }
    assert_eq!(Cursor::START.to_number(), 0);
    assert!(Cursor::at_slot(SLOTS - 1).to_number() < 1 << 63);
}

#[test]
fn headers_record_which_databases_have_keys() {
    let keyspace = Keyspace::new(80, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    let slot = KeyHasher::slot(keyspace.hasher.hash(b"key"));
    let header = keyspace.slots.header(slot);
    assert!(!header.may_hold_any());
    for db in [0, 5, 11, 12, 79] {
        put(&keyspace, &pass, DbIndex::new(db), "key");
        assert!(
            header.may_hold(DbIndex::new(db)) && header.may_hold_any(),
            "database {db}"
        );
    }
    assert!(!header.may_hold(DbIndex::new(4)));
    remove(&keyspace, &pass, DbIndex::new(79), "key");
    assert!(header.may_hold(DbIndex::new(12)), "databases 12 and 79 share a bit");
    for db in [0, 5, 11, 12] {
        remove(&keyspace, &pass, DbIndex::new(db), "key");
        assert!(!header.may_hold(DbIndex::new(db)), "database {db}");
    }
    header.mark_database(DbIndex::new(3), true);
    assert!(header.may_hold(DbIndex::new(3)));
    header.mark_database(DbIndex::new(3), false);
    assert!(!header.may_hold_any());
    header.mark_database(DbIndex::new(70), true);
    header.mark_database(DbIndex::new(70), false);
    assert!(
        header.may_hold(DbIndex::new(63)),
        "one database alone cannot clear the shared bit"
    );
}

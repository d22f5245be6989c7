//! Tests that every live key has the same probability.

use std::collections::HashMap;

use weft_base::DbIndex;
use weft_table::NewValue;

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::{Keyspace, publish_header};

/// Returns a keyspace with keys `0`, `1`, …; those below `expired` expired long ago.
fn keyspace_of(keys: usize, expired: usize) -> Keyspace {
    let keyspace = Keyspace::new(1, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    for index in 0..keys {
        let name = index.to_string();
        let hash = keyspace.hasher.hash(name.as_bytes());
        let mut lease = pass.try_write(KeyHasher::slot(hash)).expect("nobody else is here");
        let (header, slot) = lease.parts_mut();
        let expiry = (index < expired).then_some(1000);
        drop(
            slot.table_mut(DbIndex::FIRST)
                .insert(hash, name.as_bytes(), NewValue::Int(1), expiry, 0),
        );
        publish_header(header, slot);
    }
    drop(pass);
    drop(seat);
    keyspace
}

fn count_draws(keyspace: &Keyspace, keys: usize, count: usize) -> HashMap<usize, usize> {
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    let search = RandomKeySearch {
        access: WalkAccess::Pass(&pass),
        db: DbIndex::FIRST,
        keys: keys as u64,
        alive_at_ms: 2000,
        expired: RefCell::default(),
        skipped_slot: Cell::default(),
    };
    let mut drawn = HashMap::new();
    for _ in 0..count {
        if let Some(name) = search.find_random_key() {
            let name = String::from_utf8_lossy(&name).parse().expect("keys are numbers");
            *drawn.entry(name).or_default() += 1;
        }
    }
    drawn
}

#[test]
fn every_key_is_drawn_about_equally_often() {
    for keys in [2, 30, 2000] {
        let keyspace = keyspace_of(keys, 0);
        let mean = 200;
        let drawn = count_draws(&keyspace, keys, mean * keys);
        assert_eq!(drawn.len(), keys, "all of {keys} keys come up");
        let (least, most) = (drawn.values().min(), drawn.values().max());
        assert!(
            least > Some(&(mean / 3)) && most < Some(&(mean * 2)),
            "{keys} keys: from {least:?} to {most:?} times instead of {mean}"
        );
    }
}

#[test]
fn an_expired_key_is_never_drawn() {
    for (keys, expired) in [(10, 9), (3000, 1500), (900, 899)] {
        let keyspace = keyspace_of(keys, expired);
        let drawn = count_draws(&keyspace, keys, 300);
        assert!(!drawn.is_empty(), "{} of {keys} keys are alive", keys - expired);
        assert!(
            drawn.keys().all(|name| *name >= expired),
            "{keys} keys, {expired} expired"
        );
    }
}

#[test]
fn an_empty_database_yields_no_key() {
    assert!(count_draws(&keyspace_of(0, 0), 0, 10).is_empty());
    assert!(
        count_draws(&keyspace_of(0, 0), 100_000, 10).is_empty(),
        "the count may be out of date"
    );
    assert!(count_draws(&keyspace_of(50, 50), 50, 10).is_empty());
    assert!(count_draws(&keyspace_of(5000, 5000), 5000, 3).is_empty());
}

/// Expired keys found by a search are reported, so that the caller deletes them.
#[test]
fn expired_keys_found_by_a_search_are_reported_once() {
    let keyspace = keyspace_of(2, 2);
    let mut seat = keyspace.slots.join().expect("a seat is free");
    let pass = seat.enter();
    let search = RandomKeySearch {
        access: WalkAccess::Pass(&pass),
        db: DbIndex::FIRST,
        keys: 2,
        alive_at_ms: 2000,
        expired: RefCell::default(),
        skipped_slot: Cell::default(),
    };
    assert_eq!(search.find_random_key(), None);
    let names: Vec<Vec<u8>> = search.expired.into_inner().into_iter().collect();
    assert_eq!(names, [b"0", b"1"]);
}

/// The command runs again if it has skipped a slot, unless it has examined as many keys as it may.
#[test]
fn a_skipped_slot_is_reported_unless_the_search_has_reached_its_limit() {
    for (keys, expired, is_reported) in [(1, 0, true), (5000, 5000, false)] {
        let keyspace = keyspace_of(keys, expired);
        let slot = KeyHasher::slot(keyspace.hasher.hash(b"0"));
        let (mut seat, mut other) = (
            keyspace.slots.join().expect("a seat is free"),
            keyspace.slots.join().expect("a seat is free"),
        );
        let other_pass = other.enter();
        let held = other_pass.try_write(slot).expect("nobody else is here");
        let pass = seat.enter();
        let search = RandomKeySearch {
            access: WalkAccess::Pass(&pass),
            db: DbIndex::FIRST,
            keys: keys as u64,
            alive_at_ms: 2000,
            expired: RefCell::default(),
            skipped_slot: Cell::default(),
        };
        assert_eq!(search.find_random_key(), None);
        let skipped = search.skipped_slot.get().map(SlotIndex::index);
        assert_eq!(skipped, is_reported.then_some(slot), "{keys} keys");
        let mut draws = 0;
        let drawn = search.draw_key(|| {
            draws += 1;
            slot
        });
        assert_eq!(
            (drawn, draws),
            (None, MAX_REFUSED_DRAWS),
            "a held slot is not drawn for long"
        );
        drop(held);
    }
}

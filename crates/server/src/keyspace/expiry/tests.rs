//! Tests of active expiry when slots cannot be leased, of its limits per lease, and of the permission to delete keys.

use parking_lot::Mutex;
use std::cell::Cell;
use std::time::Duration;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::NewValue;
use weft_values::Value;
use weft_values::hash::{FieldExpiry, Hash, HashEncoding};

use super::{ExpirySlice, FIELDS_PER_LEASE, delete_keys_found_expired, queue_due, run_slice};
use crate::clients_waiting::watch::{WatchCounts, Watches};
use crate::keyspace::access::{AccessContext, ExpiryUpdate, KeyWrite};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::{Effects, ExpiredKey};
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::{Keyspace, Seat};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The time at which the keys of a scene expire, and a later time.
const EXPIRES_MS: u64 = 1000;
const LATER_MS: u64 = 2000;
/// The number of keys in a scene, each in a slot of its own.
const KEYS: u64 = 20;

struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    effects: Effects,
    queue: Mutex<Vec<SlotIndex>>,
}

impl Fixture {
    /// Creates a keyspace with expired keys whose slots are queued.
    fn new() -> Self {
        let keyspace = Keyspace::new(1, 2);
        let mut scene = Fixture {
            seat: keyspace.slots.join().expect("has a seat"),
            effects: Effects::for_keyspace(&keyspace),
            queue: Mutex::default(),
            keyspace,
        };
        for number in 0..KEYS {
            scene.add(&key(number));
        }
        let queued = queue_due(&scene.keyspace.slots, &scene.queue, LATER_MS);
        assert_eq!(queued as u64, KEYS);
        scene
    }

    fn add(&mut self, key: &ExpiredKey) {
        self.add_value(key, NewValue::Int(1), ExpiryUpdate::SetTo(EXPIRES_MS));
    }

    fn add_value(&mut self, key: &ExpiredKey, value: NewValue<'_, Value>, expiry: ExpiryUpdate) {
        let clock = AccessClock::default();
        let access = AccessContext {
            now_ms: 1,
            clock: &clock,
            counts: &self.keyspace.counts,
            thread_index: ThreadIndex::new(0),
            should_touch: true,
        };
        let named = NamedKey {
            name: &key.name,
            hash: key.hash,
            slot: key.slot,
        };
        let pass = self.seat.enter();
        let mut lease = pass.try_write(key.slot.index()).expect("nobody else is here");
        let (header, slot) = lease.parts_mut();
        let mut write = KeyWrite::new(header, slot, named, DbIndex::FIRST, &access, &mut self.effects);
        write.set(value, expiry);
        write.changed(KeyspaceEvent::NO_EVENT);
    }

    /// Runs a slice. Returns `true` if slots are left.
    fn run(&mut self, may_delete: &dyn Fn() -> bool) -> bool {
        let slice = ExpirySlice {
            queue: &self.queue,
            now_ms: LATER_MS,
            budget: Duration::from_secs(60),
            may_delete,
        };
        run_slice(&self.keyspace, &mut self.seat, &slice, &mut self.effects, &mut |_| {})
    }
}

fn key(number: u64) -> ExpiredKey {
    let slot = SlotIndex::from_index(number as usize * 7);
    ExpiredKey {
        db: DbIndex::FIRST,
        slot,
        hash: u64::from(slot.get()) << 50 | number,
        name: format!("key-{number}").into_bytes(),
        should_publish_miss: false,
    }
}

#[test]
fn a_leased_slot_does_not_delay_the_expiry_of_other_slots() {
    let mut scene = Fixture::new();
    let mut other = scene.keyspace.slots.join().expect("has a seat");
    {
        let pass = other.enter();
        let _held = pass.try_write(key(3).slot.index()).expect("nobody else is here");
        assert!(!scene.run(&|| true), "no work is left that can be done");
        assert_eq!(scene.effects.expired_keys, KEYS - 1);
    }
    assert_eq!(queue_due(&scene.keyspace.slots, &scene.queue, LATER_MS), 1);
    assert!(!scene.run(&|| true));
    assert_eq!(scene.effects.expired_keys, KEYS);
}

/// The slot may have been queued before the import of its keys began.
#[test]
fn keys_that_are_being_imported_expire_at_the_source_only() {
    let mut scene = Fixture::new();
    let imported = key(3).slot.index();
    scene.keyspace.slots.header(imported).set_importing(true);
    assert!(!scene.run(&|| true));
    assert_eq!(scene.effects.expired_keys, KEYS - 1);
    assert_eq!(queue_due(&scene.keyspace.slots, &scene.queue, LATER_MS), 0);
    scene.keyspace.slots.header(imported).set_importing(false);
    assert_eq!(queue_due(&scene.keyspace.slots, &scene.queue, LATER_MS), 1);
    assert!(!scene.run(&|| true));
    assert_eq!(scene.effects.expired_keys, KEYS);
}

#[test]
fn a_server_demoted_during_a_slice_deletes_no_more_keys() {
    let mut scene = Fixture::new();
    let left = Cell::new(5);
    let may_delete = || {
        left.set(left.get() - 1);
        left.get() > 0
    };
    assert!(!scene.run(&may_delete), "a replica has nothing to do");
    assert_eq!(scene.effects.expired_keys, 4);
}

#[test]
fn keys_found_expired_stay_if_they_may_not_be_deleted() {
    for (may_delete, deleted) in [(false, 0), (true, 1)] {
        let mut scene = Fixture::new();
        scene.effects.expired.push(key(3));
        delete_keys_found_expired(
            &scene.keyspace,
            &mut scene.seat,
            LATER_MS,
            &|| may_delete,
            &mut scene.effects,
            &mut |_| {},
        );
        assert!(scene.effects.expired.is_empty());
        assert_eq!(scene.effects.expired_keys, deleted);
    }
}

/// Returns a hash with this number of fields that expire, and one that does not.
fn hash_with_expiring_fields(count: usize) -> Hash {
    let mut hash = Hash::new(HashEncoding::Hashtable);
    hash.set(b"live", b"value", FieldExpiry::Never, 0);
    for number in 0..count {
        hash.set(number.to_string().as_bytes(), b"value", FieldExpiry::At(EXPIRES_MS), 0);
    }
    hash
}

/// More fields have expired than are removed under one lease, of one hash and of all hashes together.
#[test]
fn all_expired_fields_of_a_slot_are_removed_and_the_watches_of_their_hashes_marked() {
    const HASHES: u64 = 5;
    const FIELDS: usize = FIELDS_PER_LEASE + FIELDS_PER_LEASE / 2;
    let mut scene = Fixture::new();
    let (counts, mut watches) = (WatchCounts::default(), Vec::new());
    for number in 0..HASHES {
        // In the slot of another key.
        let first = key(1);
        let hash_key = ExpiredKey {
            hash: first.hash + 1000 + number,
            name: format!("hash-{number}").into_bytes(),
            ..first
        };
        let value = Value::Hash(hash_with_expiring_fields(FIELDS));
        scene.add_value(&hash_key, NewValue::Object(value), ExpiryUpdate::Remove);
        let mut watching = Watches::default();
        let (hash, slot) = (hash_key.hash, hash_key.slot);
        let watch = watching.add(DbIndex::FIRST, &hash_key.name, hash, slot, number, false);
        let pass = scene.seat.enter();
        let mut lease = pass.try_write(slot.index()).expect("nobody else is here");
        let (_, data) = lease.parts_mut();
        data.change_watching(hash, |of_slot| of_slot.add(watch, &counts));
        watches.push(watching);
    }
    assert!(!scene.run(&|| true), "nothing that is due is left");
    assert_eq!(scene.effects.expired_fields, HASHES * FIELDS as u64);
    assert_eq!(scene.effects.expired_keys, KEYS);
    assert_eq!(scene.keyspace.counts.volatile_values(DbIndex::FIRST), 0);
    assert!(watches.iter().all(Watches::is_dirty));
}

//! Tests of undone changes: values, expiries, counts and messages are as before.

use std::sync::Arc;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::{EntryRef, NewValue, ValueRef};
use weft_values::Value;
use weft_values::set::{Set, SetLimits};

use super::{ChangeCounts, undo_changes};
use crate::keyspace::access::{AccessContext, ExpiryUpdate, HeldLeases, KeyWrite};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::{ClientNotification, Effects, Hooks};
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::{Keyspace, Seat};
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::notify::tracking::{InvalidKeys, Invalidation};

const NOW_MS: u64 = 1_800_000_000_000;

struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    effects: Effects,
    counts: Option<ChangeCounts>,
}

impl Fixture {
    fn new() -> Self {
        let keyspace = Keyspace::new(2, 2);
        let seat = keyspace.slots.join().expect("a seat");
        Fixture {
            keyspace,
            seat,
            effects: Effects::default(),
            counts: None,
        }
    }

    fn named<'k>(&self, name: &'k [u8]) -> NamedKey<'k> {
        let hash = self.keyspace.hasher.hash(name);
        NamedKey {
            name,
            hash,
            slot: SlotIndex::from_index(crate::keyspace::hash::KeyHasher::slot(hash)),
        }
    }

    /// Changes a key as a command does.
    fn write(&mut self, db: DbIndex, name: &[u8], change: impl FnOnce(&mut KeyWrite<'_>)) {
        let named = self.named(name);
        let clock = AccessClock::default();
        let mut all = self.seat.exclusive();
        let mut held = HeldLeases::Exclusive(&mut all);
        let (header, slot) = held.writable_slot(named.slot).expect("all slots are held");
        let access = access(&clock, &self.keyspace);
        let mut write = KeyWrite::new(header, slot, named, db, &access, &mut self.effects);
        change(&mut write);
        write.changed(KeyspaceEvent::NO_EVENT);
    }

    fn set(&mut self, db: DbIndex, name: &[u8], value: NewValue<'_, Value>, expiry: ExpiryUpdate) {
        self.write(db, name, |write| write.set(value, expiry));
    }

    fn read<R>(&mut self, db: DbIndex, name: &[u8], read: impl FnOnce(Option<EntryRef<'_, Value>>) -> R) -> R {
        let named = self.named(name);
        let all = self.seat.exclusive();
        let table = all.cell(named.slot.index()).table(db);
        read(table.and_then(|table| table.find(named.hash, name)))
    }

    fn begin(&mut self) {
        self.counts = Some(ChangeCounts::of_effects(&self.effects));
        self.effects.undo = Some(Box::default());
    }

    fn undo(&mut self) {
        let (undo, counts) = self
            .effects
            .undo
            .take()
            .zip(self.counts.take())
            .expect("a log was begun");
        let clock = AccessClock::default();
        let mut all = self.seat.exclusive();
        let mut held = HeldLeases::Exclusive(&mut all);
        let access = access(&clock, &self.keyspace);
        undo_changes(*undo, counts, &mut held, &access, &mut self.effects);
    }
}

fn access<'a>(clock: &'a AccessClock, keyspace: &'a Keyspace) -> AccessContext<'a> {
    AccessContext {
        now_ms: NOW_MS,
        clock,
        counts: &keyspace.counts,
        thread_index: ThreadIndex::FIRST,
        should_touch: true,
    }
}

const LIMITS: SetLimits = SetLimits {
    integers: 0,
    run_members: 128,
    run_member_bytes: 64,
};

fn set_of(members: &[&[u8]]) -> Value {
    let mut set = Set::new_run();
    for member in members {
        set.add(member, LIMITS);
    }
    Value::Set(set)
}

const FIRST: DbIndex = DbIndex::FIRST;

#[test]
fn changed_created_and_deleted_keys_are_as_before() {
    let mut fixture = Fixture::new();
    let second = DbIndex::all(2).nth(1).expect("there are two databases");
    fixture.set(FIRST, b"number", NewValue::Int(7), ExpiryUpdate::SetTo(NOW_MS + 1000));
    fixture.set(FIRST, b"text", NewValue::Bytes(b"before"), ExpiryUpdate::Remove);
    fixture.set(second, b"number", NewValue::Int(8), ExpiryUpdate::Remove);
    let dirty = fixture.effects.dirty;

    fixture.begin();
    fixture.set(FIRST, b"number", NewValue::Int(9), ExpiryUpdate::Remove);
    fixture.set(FIRST, b"number", NewValue::Int(10), ExpiryUpdate::SetTo(NOW_MS + 1));
    fixture.write(FIRST, b"text", |write| _ = write.delete());
    fixture.set(second, b"number", NewValue::Bytes(b"after"), ExpiryUpdate::Keep);
    fixture.set(second, b"new", NewValue::Int(1), ExpiryUpdate::SetTo(NOW_MS + 5));
    assert_eq!(fixture.keyspace.counts.keys(FIRST), 1);
    fixture.undo();

    let is_int = |number| {
        move |entry: Option<EntryRef<'_, Value>>| match entry.map(|entry| (entry.value(), entry.expire_at_ms())) {
            Some((ValueRef::Int(found), at)) if found == number => at,
            other => panic!("{other:?} instead of {number}"),
        }
    };
    assert_eq!(fixture.read(FIRST, b"number", is_int(7)), Some(NOW_MS + 1000));
    assert_eq!(fixture.read(second, b"number", is_int(8)), None);
    fixture.read(FIRST, b"text", |entry| {
        assert!(matches!(
            entry.map(|entry| entry.value()),
            Some(ValueRef::Bytes(b"before"))
        ));
    });
    assert!(fixture.read(second, b"new", |entry| entry.is_none()));
    let counts = &fixture.keyspace.counts;
    assert_eq!((counts.keys(FIRST), counts.with_expiry(FIRST)), (2, 1));
    assert_eq!((counts.keys(second), counts.with_expiry(second)), (1, 0));
    assert_eq!(fixture.effects.dirty, dirty);
}

#[test]
fn a_collection_changed_in_place_is_as_before() {
    let mut fixture = Fixture::new();
    fixture.set(FIRST, b"set", NewValue::Object(set_of(&[b"a"])), ExpiryUpdate::Remove);
    fixture.begin();
    for member in [&b"b"[..], b"c"] {
        fixture.write(FIRST, b"set", |write| {
            let mut entry = write.entry_mut().expect("the key exists");
            let Some(Value::Set(set)) = entry.object_mut() else {
                panic!("the value is a set");
            };
            set.add(member, LIMITS);
        });
    }
    let members = |entry: Option<EntryRef<'_, Value>>| match entry.map(|entry| entry.value()) {
        Some(ValueRef::Object(Value::Set(set))) => set.len(),
        _ => panic!("the value is a set"),
    };
    assert_eq!(fixture.read(FIRST, b"set", members), 3);
    fixture.undo();
    assert_eq!(fixture.read(FIRST, b"set", members), 1);
}

#[test]
fn a_key_that_had_expired_is_there_again() {
    let mut fixture = Fixture::new();
    fixture.set(FIRST, b"old", NewValue::Int(1), ExpiryUpdate::SetTo(NOW_MS - 1));
    let expired = fixture.effects.expired_keys;
    fixture.begin();
    fixture.set(FIRST, b"old", NewValue::Int(2), ExpiryUpdate::Remove);
    assert_eq!(fixture.effects.expired_keys, expired + 1);
    fixture.undo();
    let expiry = fixture.read(FIRST, b"old", |entry| entry.and_then(|entry| entry.expire_at_ms()));
    assert_eq!(expiry, Some(NOW_MS - 1));
    assert_eq!(fixture.effects.expired_keys, expired);
}

/// A writable replica would delete the key at a time that the primary set, and not when the primary deletes it.
#[test]
fn an_undone_expiry_is_not_registered_for_local_expiry() {
    let mut fixture = Fixture::new();
    fixture.effects.hooks = Hooks::LOCAL_EXPIRY;
    fixture.set(FIRST, b"earlier", NewValue::Int(1), ExpiryUpdate::SetTo(NOW_MS + 1));
    fixture.set(FIRST, b"key", NewValue::Int(1), ExpiryUpdate::Remove);
    fixture.begin();
    fixture.write(FIRST, b"key", |write| write.set_expiry(Some(NOW_MS + 2)));
    fixture.set(FIRST, b"new", NewValue::Int(1), ExpiryUpdate::SetTo(NOW_MS + 3));
    assert_eq!(fixture.effects.local_expiries.len(), 3);
    fixture.undo();
    let registered = fixture.effects.local_expiries.iter().map(|expiry| &*expiry.name);
    assert_eq!(registered.collect::<Vec<_>>(), [b"earlier"]);
}

#[test]
fn invalidations_of_an_abandoned_run_are_sent_and_its_lines_only_if_it_was_killed() {
    for is_killed in [false, true] {
        let mut effects = Effects::default();
        let invalidation = Invalidation {
            clients: Vec::new(),
            invalid: InvalidKeys::Everything,
        };
        effects.held_notifications = vec![
            (
                ThreadIndex::FIRST,
                ClientNotification::MonitorLine(Arc::from(&b"+line\r\n"[..])),
            ),
            (
                ThreadIndex::FIRST,
                ClientNotification::Invalidated(Arc::new(invalidation)),
            ),
        ];
        effects.discard_held_notifications(is_killed);
        let has_line = effects
            .held_notifications
            .iter()
            .any(|(_, notification)| matches!(notification, ClientNotification::MonitorLine(_)));
        assert_eq!(has_line, is_killed);
        assert!(matches!(
            effects.held_notifications.last(),
            Some((_, ClientNotification::Invalidated(_)))
        ));
    }
}

#[test]
fn a_log_of_many_bytes_is_full() {
    let mut fixture = Fixture::new();
    let value = vec![b'v'; 10_000];
    for number in 0..200 {
        let name = format!("key:{number}");
        fixture.set(FIRST, name.as_bytes(), NewValue::Bytes(&value), ExpiryUpdate::Remove);
    }
    fixture.begin();
    let is_full = |fixture: &Fixture| {
        fixture
            .effects
            .undo
            .as_ref()
            .is_some_and(|undo| !undo.has_room_for(0, 0))
    };
    assert!(!is_full(&fixture));
    for number in 0..200 {
        fixture.write(FIRST, format!("key:{number}").as_bytes(), |write| _ = write.delete());
    }
    assert!(is_full(&fixture));
    fixture.undo();
    assert_eq!(fixture.keyspace.counts.keys(FIRST), 200);
}

//! Tests of what snapshots show, when they stop being current, and how their writes are applied to the real keys.

use std::sync::Arc;

use weft_base::{DbIndex, ThreadIndex};
use weft_resp::Args;
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::set::{Set, SetLimits};

use super::{KeySnapshot, KeyUse, SnapshotAttempt};
use crate::keyspace::access::{AccessContext, ExpiryUpdate, HeldLeases, Keys};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::{ChangeKind, Effects, Hooks};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Keyspace, Seat};
use crate::notify::keyspace_event::KeyspaceEvent;

const NOW_MS: u64 = 1_800_000_000_000;

/// A keyspace and the keys of a command: `source` and `destination`.
struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    effects: Effects,
    planned: Vec<PlannedKey>,
}

const REQUEST: &[u8] = b"sourcedestination";
const RANGES: [weft_resp::ArgRange; 2] = [
    weft_resp::ArgRange { start: 0, len: 6 },
    weft_resp::ArgRange { start: 6, len: 11 },
];
const USES: [KeyUse; 2] = [KeyUse::Read, KeyUse::Replace];

impl Fixture {
    fn new() -> Self {
        let keyspace = Keyspace::new(2, 2);
        let seat = keyspace.slots.join().expect("a seat");
        let args = Args::new(REQUEST, &RANGES);
        let planned = (0..2).map(|argument| {
            let hash = keyspace.hasher.hash(args.argument(argument));
            PlannedKey::from_argument(argument, hash, argument == 1)
        });
        Fixture {
            planned: planned.collect(),
            keyspace,
            seat,
            effects: Effects::default(),
        }
    }

    /// Runs `work` on the real keys at the given time.
    fn run_at<R>(&mut self, now_ms: u64, work: impl FnOnce(&mut Keys<'_, '_>, &Keyspace) -> R) -> R {
        let clock = AccessClock::default();
        let mut all = self.seat.exclusive();
        let mut keys = Keys {
            args: Args::new(REQUEST, &RANGES),
            planned: &self.planned,
            held: HeldLeases::Exclusive(&mut all),
            db: DbIndex::FIRST,
            context: access(&clock, &self.keyspace, now_ms),
            effects: &mut self.effects,
            prefetch_policy: None,
        };
        work(&mut keys, &self.keyspace)
    }

    fn run_now<R>(&mut self, work: impl FnOnce(&mut Keys<'_, '_>, &Keyspace) -> R) -> R {
        self.run_at(NOW_MS, work)
    }

    fn set(&mut self, index: usize, value: NewValue<'_, Value>, expiry: ExpiryUpdate) {
        self.run_now(|keys, _| {
            let mut key = keys.write(index);
            key.set(value, expiry);
            key.changed(KeyspaceEvent::NO_EVENT);
        });
    }

    fn delete(&mut self, index: usize) {
        self.run_now(|keys, _| {
            let mut key = keys.write(index);
            key.delete();
            key.changed(KeyspaceEvent::NO_EVENT);
        });
    }

    fn snapshot(&mut self) -> Box<KeySnapshot> {
        match self.run_now(|keys, keyspace| keys.snapshot(&USES, keyspace, NOW_MS)) {
            SnapshotAttempt::Taken(snapshot) => snapshot,
            SnapshotAttempt::NotPossible | SnapshotAttempt::Deferred => panic!("there is no reason to refuse"),
        }
    }

    fn is_current(&mut self, snapshot: &KeySnapshot) -> bool {
        self.run_now(|keys, _| snapshot.is_current(keys))
    }

    /// Runs `work` on a snapshot's keys, as a handler would. Returns the record of its effects.
    fn run_on_snapshot(&mut self, snapshot: &mut KeySnapshot, work: impl FnOnce(&mut Keys<'_, '_>)) -> Effects {
        let clock = AccessClock::default();
        let mut effects = Effects {
            hooks: Hooks::ON_SNAPSHOT,
            ..Effects::default()
        };
        let access = access(&clock, &self.keyspace, NOW_MS);
        let (held, counts) = snapshot.writable_slots();
        let mut keys = Keys {
            args: Args::new(REQUEST, &RANGES),
            planned: &self.planned,
            held,
            db: DbIndex::FIRST,
            context: AccessContext {
                counts,
                thread_index: ThreadIndex::new(0),
                ..access
            },
            effects: &mut effects,
            prefetch_policy: None,
        };
        work(&mut keys);
        effects
    }
}

fn access<'a>(clock: &'a AccessClock, keyspace: &'a Keyspace, now_ms: u64) -> AccessContext<'a> {
    AccessContext {
        now_ms,
        clock,
        counts: &keyspace.counts,
        thread_index: ThreadIndex::new(1),
        should_touch: true,
    }
}

fn large_set(members: usize) -> NewValue<'static, Value> {
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

fn members(value: Option<ValueRef<'_, Value>>) -> Option<usize> {
    match value? {
        ValueRef::Object(Value::Set(set)) => Some(set.len()),
        _ => Some(0),
    }
}

type Change = fn(&mut Fixture);

#[test]
fn a_snapshot_is_current_until_a_seen_value_differs() {
    let cases: [(&str, Change, Change, bool); 13] = [
        ("nothing", |_| (), |_| (), true),
        (
            "a missing source comes",
            |_| (),
            |scene| scene.set(0, NewValue::Int(1), ExpiryUpdate::Remove),
            false,
        ),
        (
            "a missing destination comes",
            |_| (),
            |scene| scene.set(1, NewValue::Int(1), ExpiryUpdate::Remove),
            false,
        ),
        (
            "a destination changes",
            |scene| scene.set(1, NewValue::Int(1), ExpiryUpdate::Remove),
            |scene| scene.set(1, large_set(100), ExpiryUpdate::Remove),
            true,
        ),
        (
            "a destination is deleted",
            |scene| scene.set(1, NewValue::Int(1), ExpiryUpdate::Remove),
            |scene| scene.delete(1),
            false,
        ),
        (
            "the same number",
            |scene| scene.set(0, NewValue::Int(1), ExpiryUpdate::Remove),
            |scene| scene.set(0, NewValue::Int(1), ExpiryUpdate::Remove),
            true,
        ),
        (
            "another number",
            |scene| scene.set(0, NewValue::Int(1), ExpiryUpdate::Remove),
            |scene| scene.set(0, NewValue::Int(2), ExpiryUpdate::Remove),
            false,
        ),
        (
            "other bytes",
            |scene| scene.set(0, NewValue::Bytes(b"bytes"), ExpiryUpdate::Remove),
            |scene| scene.set(0, NewValue::Bytes(b"other"), ExpiryUpdate::Remove),
            false,
        ),
        (
            "a string in place of a packed value of the same bytes",
            |scene| scene.set(0, NewValue::Packed(b"bytes"), ExpiryUpdate::Remove),
            |scene| scene.set(0, NewValue::Bytes(b"bytes"), ExpiryUpdate::Remove),
            false,
        ),
        (
            "an object with the same contents",
            |scene| scene.set(0, large_set(100), ExpiryUpdate::Remove),
            |scene| scene.set(0, large_set(100), ExpiryUpdate::Remove),
            false,
        ),
        (
            "an object is changed",
            |scene| scene.set(0, large_set(100), ExpiryUpdate::Remove),
            |scene| {
                scene.run_now(|keys, _| {
                    let mut key = keys.write(0);
                    assert!(
                        key.entry_mut()
                            .and_then(|mut entry| entry.object_mut().map(|_| ()))
                            .is_some()
                    );
                    key.changed(KeyspaceEvent::NO_EVENT);
                });
            },
            false,
        ),
        (
            "a shared string is changed",
            |scene| scene.set(0, NewValue::Bytes(&[b'x'; 20_000]), ExpiryUpdate::Remove),
            |scene| {
                scene.run_now(|keys, _| {
                    let mut key = keys.write(0);
                    assert!(key.entry_mut().map(|mut entry| entry.append(b"y")).is_some());
                    key.changed(KeyspaceEvent::NO_EVENT);
                });
            },
            false,
        ),
        (
            "a source gets an expiry",
            |scene| scene.set(0, large_set(100), ExpiryUpdate::Remove),
            |scene| {
                scene.run_now(|keys, _| {
                    let mut key = keys.write(0);
                    key.set_expiry(Some(NOW_MS + 1000));
                    key.changed(KeyspaceEvent::NO_EVENT);
                });
            },
            false,
        ),
    ];
    for (what, before, change, wanted) in cases {
        let mut scene = Fixture::new();
        before(&mut scene);
        let snapshot = scene.snapshot();
        assert!(scene.is_current(&snapshot), "{what}: at first");
        change(&mut scene);
        assert_eq!(scene.is_current(&snapshot), wanted, "{what}");
    }
}

#[test]
fn a_snapshot_is_not_current_after_its_keys_expire() {
    let mut scene = Fixture::new();
    scene.set(0, large_set(100), ExpiryUpdate::SetTo(NOW_MS + 10));
    let snapshot = scene.snapshot();
    assert!(scene.run_at(NOW_MS + 10, |keys, _| snapshot.is_current(keys)));
    assert!(!scene.run_at(NOW_MS + 11, |keys, _| snapshot.is_current(keys)));
}

/// A reader does not see such a source. Such a destination would be deleted before it is replaced, with an event of its
/// own.
#[test]
fn a_snapshot_is_not_current_after_a_missing_destination_has_come_and_expired() {
    for (index, is_current) in [(0, true), (1, false)] {
        let mut scene = Fixture::new();
        let snapshot = scene.snapshot();
        scene.set(index, NewValue::Int(1), ExpiryUpdate::SetTo(NOW_MS - 1));
        assert_eq!(scene.is_current(&snapshot), is_current, "key {index}");
    }
}

#[test]
fn handlers_read_the_snapshot_and_write_into_it_only() {
    let mut scene = Fixture::new();
    scene.set(0, large_set(100), ExpiryUpdate::Remove);
    scene.set(1, NewValue::Int(7), ExpiryUpdate::SetTo(NOW_MS + 5000));
    let mut snapshot = scene.snapshot();
    scene.delete(0);
    let keys_before = scene.keyspace.counts.keys(DbIndex::FIRST);
    let record = scene.run_on_snapshot(&mut snapshot, |keys| {
        assert_eq!(members(keys.read(0).map(|entry| entry.value())), Some(100));
        let mut key = keys.write(1);
        assert!(key.exists());
        key.set(large_set(30), ExpiryUpdate::Remove);
        key.changed_times(KeyspaceEvent::set("sunionstore"), 5);
    });
    assert_eq!((record.changes.len(), record.dirty), (1, 5));
    assert_eq!(
        scene.keyspace.counts.keys(DbIndex::FIRST),
        keys_before,
        "private keys are not counted"
    );
    let is_number = scene.run_now(|keys, _| matches!(keys.read(1).map(|entry| entry.value()), Some(ValueRef::Int(7))));
    assert!(is_number, "nothing has been stored yet");
}

#[test]
fn changes_of_a_snapshot_are_applied_to_the_keys() {
    let mut scene = Fixture::new();
    scene.set(0, large_set(100), ExpiryUpdate::Remove);
    scene.set(1, NewValue::Int(7), ExpiryUpdate::SetTo(NOW_MS + 5000));
    let mut snapshot = scene.snapshot();
    let record = scene.run_on_snapshot(&mut snapshot, |keys| {
        let mut key = keys.write(1);
        key.set(large_set(30), ExpiryUpdate::Remove);
        key.changed_times(KeyspaceEvent::set("sunionstore"), 5);
    });
    let dirty_before = scene.effects.dirty;
    scene.run_now(|keys, _| snapshot.apply_changes(keys, &record.changes, record.dirty));
    assert_eq!(scene.effects.dirty - dirty_before, 5);
    let stored = scene.run_now(|keys, _| {
        keys.read(1)
            .map(|entry| (members(Some(entry.value())), entry.expire_at_ms()))
    });
    assert_eq!(stored, Some((Some(30), None)));
    assert_eq!(
        (
            scene.keyspace.counts.keys(DbIndex::FIRST),
            scene.keyspace.counts.with_expiry(DbIndex::FIRST)
        ),
        (2, 0)
    );

    // A deletion is stored as well.
    let mut snapshot = scene.snapshot();
    let record = scene.run_on_snapshot(&mut snapshot, |keys| {
        let mut key = keys.write(1);
        assert!(key.delete());
        key.changed(KeyspaceEvent::generic("del"));
    });
    scene.run_now(|keys, _| snapshot.apply_changes(keys, &record.changes, record.dirty));
    assert_eq!(scene.keyspace.counts.keys(DbIndex::FIRST), 1);
}

#[test]
fn an_expired_destination_is_replaced_like_a_missing_one_and_deleted_like_a_stored_one() {
    let cases = [
        (true, &["del"][..], 1),
        (false, &["expired", "new", "sunionstore"][..], 2),
    ];
    for (is_result_empty, expected, keys_after) in cases {
        let mut scene = Fixture::new();
        scene.set(0, large_set(100), ExpiryUpdate::Remove);
        scene.set(1, NewValue::Int(7), ExpiryUpdate::SetTo(NOW_MS - 1000));
        let mut snapshot = scene.snapshot();
        assert!(scene.is_current(&snapshot));
        let record = scene.run_on_snapshot(&mut snapshot, |keys| {
            let mut key = keys.write_destination(1, is_result_empty);
            if is_result_empty {
                assert!(key.delete());
                key.changed(KeyspaceEvent::generic("del"));
            } else {
                assert!(!key.exists());
                key.set(large_set(30), ExpiryUpdate::Remove);
                key.changed(KeyspaceEvent::set("sunionstore"));
            }
        });
        scene.effects.hooks = Hooks::EVENTS;
        scene.run_now(|keys, _| snapshot.apply_changes(keys, &record.changes, record.dirty));
        let names = scene.effects.changes.iter().map(|change| match change.kind {
            ChangeKind::Event(event) | ChangeKind::DeliveredEvent(event) => event.name,
            ChangeKind::ModuleEvent(_) | ChangeKind::Value => "",
        });
        assert_eq!(names.collect::<Vec<&str>>(), expected);
        assert_eq!(scene.keyspace.counts.keys(DbIndex::FIRST), keys_after);
    }
}

#[test]
fn slots_are_marked_while_large_values_are_pinned() {
    let mut scene = Fixture::new();
    let slot = scene.planned[0].slot.index();
    let slots = scene.keyspace.slots.clone();
    let is_marked = || slots.header(slot).has_pinned_values();
    scene.set(0, NewValue::Int(1), ExpiryUpdate::Remove);
    let snapshot = scene.snapshot();
    assert!(!is_marked(), "small values are copied");
    drop(snapshot);
    scene.set(0, large_set(100), ExpiryUpdate::Remove);
    let snapshot = scene.snapshot();
    assert!(is_marked());
    assert!(scene.keyspace.pinned.reserve_briefly(scene.planned[0].slot, 0));
    let again = scene.run_now(|keys, keyspace| keys.snapshot(&USES, keyspace, NOW_MS));
    assert!(matches!(again, SnapshotAttempt::Deferred));
    drop(snapshot);
    assert!(is_marked(), "the mark leads the waiting writer to its reservation");
    scene
        .keyspace
        .pinned
        .end_brief_reservation(&slots, scene.planned[0].slot, 0);
    assert!(!is_marked());
}

#[test]
fn commands_that_change_in_place_or_copy_much_get_no_snapshot() {
    let mut scene = Fixture::new();
    let long = vec![b'x'; 15_000];
    scene.set(0, NewValue::Bytes(&long), ExpiryUpdate::Remove);
    let attempt = |scene: &mut Fixture, uses: &[KeyUse; 2]| {
        matches!(
            scene.run_now(|keys, keyspace| keys.snapshot(uses, keyspace, NOW_MS)),
            SnapshotAttempt::Taken(_)
        )
    };
    assert!(attempt(&mut scene, &USES));
    assert!(!attempt(&mut scene, &[KeyUse::Read, KeyUse::Change]));
    // The same long string, twenty times.
    scene.planned = vec![scene.planned[0]; 20];
    let uses = vec![KeyUse::Read; 20];
    assert!(matches!(
        scene.run_now(|keys, keyspace| keys.snapshot(&uses, keyspace, NOW_MS)),
        SnapshotAttempt::NotPossible
    ));
    assert!(Arc::strong_count(&scene.keyspace.pinned) == 1, "no pin is left behind");
}

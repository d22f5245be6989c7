//! Tests of what snapshots show, when they stop being current, and how their writes are applied to the real keys.

use std::sync::Arc;

use weft_resp::Args;
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::set::{Set, SetLimits};

use super::{KeyUse, Snapshot, SnapshotAttempt};
use crate::keyspace::access::{AccessContext, Expiry, HeldLeases, Keys, PlannedKey};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::{Effects, Hooks};
use crate::keyspace::{Keyspace, Seat};
use crate::notify::keyspace_event::Event;

const NOW_MS: u64 = 1_800_000_000_000;

/// A keyspace and the keys of a command: `source` and `destination`.
struct Scene {
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

impl Scene {
    fn new() -> Self {
        let keyspace = Keyspace::new(2, 2);
        let seat = keyspace.slots.join().expect("a seat");
        let args = Args::new(REQUEST, &RANGES);
        let planned = (0..2).map(|argument| {
            let hash = keyspace.hasher.hash(args.argument(argument));
            PlannedKey::of_argument(argument, hash, argument == 1)
        });
        Scene {
            planned: planned.collect(),
            keyspace,
            seat,
            effects: Effects::default(),
        }
    }

    /// Runs `work` on the real keys at the given time.
    fn at<R>(&mut self, now_ms: u64, work: impl FnOnce(&mut Keys<'_, '_>, &Keyspace) -> R) -> R {
        let clock = AccessClock::default();
        let mut all = self.seat.exclusive();
        let mut keys = Keys {
            args: Args::new(REQUEST, &RANGES),
            planned: &self.planned,
            held: HeldLeases::Everything(&mut all),
            db: 0,
            access: access(&clock, &self.keyspace, now_ms),
            effects: &mut self.effects,
            reach: None,
        };
        work(&mut keys, &self.keyspace)
    }

    fn now<R>(&mut self, work: impl FnOnce(&mut Keys<'_, '_>, &Keyspace) -> R) -> R {
        self.at(NOW_MS, work)
    }

    fn set(&mut self, index: usize, value: NewValue<'_, Value>, expiry: Expiry) {
        self.now(|keys, _| {
            let mut key = keys.write(index);
            key.set(value, expiry);
            key.changed(Event::SILENT);
        });
    }

    fn delete(&mut self, index: usize) {
        self.now(|keys, _| {
            let mut key = keys.write(index);
            key.delete();
            key.changed(Event::SILENT);
        });
    }

    fn snapshot(&mut self) -> Box<Snapshot> {
        match self.now(|keys, keyspace| keys.snapshot(&USES, keyspace)) {
            SnapshotAttempt::Taken(snapshot) => snapshot,
            SnapshotAttempt::Unfit | SnapshotAttempt::Wanted => panic!("there is no reason to refuse"),
        }
    }

    fn holds(&mut self, snapshot: &Snapshot) -> bool {
        self.now(|keys, _| snapshot.still_holds(keys))
    }

    /// Runs `work` on a snapshot's keys, as a handler would. Returns the record of its effects.
    fn draft(&mut self, snapshot: &mut Snapshot, work: impl FnOnce(&mut Keys<'_, '_>)) -> Effects {
        let clock = AccessClock::default();
        let mut effects = Effects {
            hooks: Hooks::REPEAT,
            ..Effects::default()
        };
        let access = access(&clock, &self.keyspace, NOW_MS);
        let (held, counts) = snapshot.writable();
        let mut keys = Keys {
            args: Args::new(REQUEST, &RANGES),
            planned: &self.planned,
            held,
            db: 0,
            access: AccessContext {
                counts,
                seat: 0,
                ..access
            },
            effects: &mut effects,
            reach: None,
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
        seat: 1,
        touch: true,
        sees_expired: false,
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

type Change = fn(&mut Scene);

#[test]
fn a_snapshot_holds_until_something_that_was_seen_is_different() {
    let cases: [(&str, Change, Change, bool); 13] = [
        ("nothing", |_| (), |_| (), true),
        (
            "a missing source comes",
            |_| (),
            |scene| scene.set(0, NewValue::Int(1), Expiry::Never),
            false,
        ),
        (
            "a missing destination comes",
            |_| (),
            |scene| scene.set(1, NewValue::Int(1), Expiry::Never),
            false,
        ),
        (
            "a destination changes",
            |scene| scene.set(1, NewValue::Int(1), Expiry::Never),
            |scene| scene.set(1, large_set(100), Expiry::Never),
            true,
        ),
        (
            "a destination goes",
            |scene| scene.set(1, NewValue::Int(1), Expiry::Never),
            |scene| scene.delete(1),
            false,
        ),
        (
            "the same number",
            |scene| scene.set(0, NewValue::Int(1), Expiry::Never),
            |scene| scene.set(0, NewValue::Int(1), Expiry::Never),
            true,
        ),
        (
            "another number",
            |scene| scene.set(0, NewValue::Int(1), Expiry::Never),
            |scene| scene.set(0, NewValue::Int(2), Expiry::Never),
            false,
        ),
        (
            "other bytes",
            |scene| scene.set(0, NewValue::Bytes(b"bytes"), Expiry::Never),
            |scene| scene.set(0, NewValue::Bytes(b"other"), Expiry::Never),
            false,
        ),
        (
            "a string in place of a packed value of the same bytes",
            |scene| scene.set(0, NewValue::Packed(b"bytes"), Expiry::Never),
            |scene| scene.set(0, NewValue::Bytes(b"bytes"), Expiry::Never),
            false,
        ),
        (
            "an object with the same contents",
            |scene| scene.set(0, large_set(100), Expiry::Never),
            |scene| scene.set(0, large_set(100), Expiry::Never),
            false,
        ),
        (
            "an object is changed",
            |scene| scene.set(0, large_set(100), Expiry::Never),
            |scene| {
                scene.now(|keys, _| {
                    let mut key = keys.write(0);
                    assert!(
                        key.entry_mut()
                            .and_then(|mut entry| entry.object_mut().map(|_| ()))
                            .is_some()
                    );
                    key.changed(Event::SILENT);
                });
            },
            false,
        ),
        (
            "a shared string is changed",
            |scene| scene.set(0, NewValue::Bytes(&[b'x'; 20_000]), Expiry::Never),
            |scene| {
                scene.now(|keys, _| {
                    let mut key = keys.write(0);
                    assert!(key.entry_mut().map(|mut entry| entry.append(b"y")).is_some());
                    key.changed(Event::SILENT);
                });
            },
            false,
        ),
        (
            "a source gets an expiry",
            |scene| scene.set(0, large_set(100), Expiry::Never),
            |scene| {
                scene.now(|keys, _| {
                    let mut key = keys.write(0);
                    key.set_expiry(Some(NOW_MS + 1000));
                    key.changed(Event::SILENT);
                });
            },
            false,
        ),
    ];
    for (what, before, change, wanted) in cases {
        let mut scene = Scene::new();
        before(&mut scene);
        let snapshot = scene.snapshot();
        assert!(scene.holds(&snapshot), "{what}: at first");
        change(&mut scene);
        assert_eq!(scene.holds(&snapshot), wanted, "{what}");
    }
}

#[test]
fn a_snapshot_holds_no_longer_than_its_keys_live() {
    let mut scene = Scene::new();
    scene.set(0, large_set(100), Expiry::At(NOW_MS + 10));
    let snapshot = scene.snapshot();
    assert!(scene.at(NOW_MS + 10, |keys, _| snapshot.still_holds(keys)));
    assert!(!scene.at(NOW_MS + 11, |keys, _| snapshot.still_holds(keys)));
}

#[test]
fn handlers_see_the_moment_of_the_snapshot_and_write_beside_it() {
    let mut scene = Scene::new();
    scene.set(0, large_set(100), Expiry::Never);
    scene.set(1, NewValue::Int(7), Expiry::At(NOW_MS + 5000));
    let mut snapshot = scene.snapshot();
    scene.delete(0);
    let keys_before = scene.keyspace.counts.keys(0);
    let record = scene.draft(&mut snapshot, |keys| {
        assert_eq!(members(keys.read(0).map(|entry| entry.value())), Some(100));
        let mut key = keys.write(1);
        assert!(key.exists());
        key.set(large_set(30), Expiry::Never);
        key.changed_times(Event::set("sunionstore"), 5);
    });
    assert_eq!((record.changes.len(), record.dirty), (1, 5));
    assert_eq!(
        scene.keyspace.counts.keys(0),
        keys_before,
        "private keys are not counted"
    );
    let is_number = scene.now(|keys, _| matches!(keys.read(1).map(|entry| entry.value()), Some(ValueRef::Int(7))));
    assert!(is_number, "nothing has been stored yet");
}

#[test]
fn what_was_done_to_a_snapshot_is_done_to_the_keys() {
    let mut scene = Scene::new();
    scene.set(0, large_set(100), Expiry::Never);
    scene.set(1, NewValue::Int(7), Expiry::At(NOW_MS + 5000));
    let mut snapshot = scene.snapshot();
    let record = scene.draft(&mut snapshot, |keys| {
        let mut key = keys.write(1);
        key.set(large_set(30), Expiry::Never);
        key.changed_times(Event::set("sunionstore"), 5);
    });
    let dirty_before = scene.effects.dirty;
    scene.now(|keys, _| snapshot.store(keys, &record.changes, record.dirty));
    assert_eq!(scene.effects.dirty - dirty_before, 5);
    let stored = scene.now(|keys, _| {
        keys.read(1)
            .map(|entry| (members(Some(entry.value())), entry.expire_at_ms()))
    });
    assert_eq!(stored, Some((Some(30), None)));
    assert_eq!(
        (scene.keyspace.counts.keys(0), scene.keyspace.counts.with_expiry(0)),
        (2, 0)
    );

    // A deletion is stored as well.
    let mut snapshot = scene.snapshot();
    let record = scene.draft(&mut snapshot, |keys| {
        let mut key = keys.write(1);
        assert!(key.delete());
        key.changed(Event::generic("del"));
    });
    scene.now(|keys, _| snapshot.store(keys, &record.changes, record.dirty));
    assert_eq!(scene.keyspace.counts.keys(0), 1);
}

#[test]
fn slots_are_marked_while_large_values_are_lent() {
    let mut scene = Scene::new();
    let slot = usize::from(scene.planned[0].slot);
    let slots = scene.keyspace.slots.clone();
    let is_lent = || slots.header(slot).is_lent();
    scene.set(0, NewValue::Int(1), Expiry::Never);
    let snapshot = scene.snapshot();
    assert!(!is_lent(), "small values are copied");
    drop(snapshot);
    scene.set(0, large_set(100), Expiry::Never);
    let snapshot = scene.snapshot();
    assert!(is_lent());
    scene.keyspace.lent.want(scene.planned[0].slot);
    let again = scene.now(|keys, keyspace| keys.snapshot(&USES, keyspace));
    assert!(matches!(again, SnapshotAttempt::Wanted));
    drop(snapshot);
    assert!(!is_lent());
}

#[test]
fn commands_that_change_in_place_or_copy_much_get_none() {
    let mut scene = Scene::new();
    let long = vec![b'x'; 15_000];
    scene.set(0, NewValue::Bytes(&long), Expiry::Never);
    let attempt = |scene: &mut Scene, uses: &[KeyUse; 2]| {
        matches!(
            scene.now(|keys, keyspace| keys.snapshot(uses, keyspace)),
            SnapshotAttempt::Taken(_)
        )
    };
    assert!(attempt(&mut scene, &USES));
    assert!(!attempt(&mut scene, &[KeyUse::Read, KeyUse::Change]));
    // The same long string, twenty times.
    scene.planned = vec![scene.planned[0]; 20];
    let uses = vec![KeyUse::Read; 20];
    assert!(matches!(
        scene.now(|keys, keyspace| keys.snapshot(&uses, keyspace)),
        SnapshotAttempt::Unfit
    ));
    assert!(Arc::strong_count(&scene.keyspace.lent) == 1, "no loan is left behind");
}

//! Compares a snapshot with a naive copy of all data at its moment, while random changes happen during the walk.

use std::collections::BTreeMap;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::{NewValue, ValueRef};
use weft_values::Value;
use weft_values::list::{List, ListEnd};

use super::*;
use crate::keyspace::access::{AccessContext, ExpiryUpdate, KeyWrite, WholeKeyspace};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::Effects;
use crate::keyspace::flush::take_databases;
use crate::keyspace::{Keyspace, Seat, publish_header};
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::observability::memory;

const DATABASES: usize = 4;

/// The keys of all databases with their values as text.
type Contents = BTreeMap<(DbIndex, Vec<u8>), String>;

struct Fixture {
    keyspace: Keyspace,
    seat: Seat,
    effects: Effects,
    random: fastrand::Rng,
}

/// Collects the visited keys.
struct ContentsCollector<'s> {
    database: DbIndex,
    contents: &'s mut Contents,
}

impl SnapshotVisitor for ContentsCollector<'_> {
    fn visit_key(&mut self, _slot: SlotIndex, entry: EntryRef<'_, Value>) {
        let key = (self.database, entry.key().to_vec());
        let before = self.contents.insert(key, text(entry));
        assert!(before.is_none(), "a key is visited once");
    }

    fn visit_record(&mut self, record: &[u8]) {
        let (name, text) = record.split_at(record.iter().position(|byte| *byte == b'=').expect("a record"));
        let key = (self.database, name.to_vec());
        let before = self
            .contents
            .insert(key, String::from_utf8_lossy(&text[1..]).into_owned());
        assert!(before.is_none(), "a key is visited once");
    }
}

fn text(entry: EntryRef<'_, Value>) -> String {
    let value = match entry.value() {
        ValueRef::Int(number) => number.to_string(),
        ValueRef::Bytes(bytes) | ValueRef::Packed(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Blob(blob) => format!("{} bytes, last {:?}", blob.len(), blob.last()),
        ValueRef::Object(Value::List(list)) => format!("list of {}", list.len()),
        ValueRef::Object(_) => "other".to_owned(),
    };
    format!("{value} until {:?}", entry.expire_at_ms())
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let keyspace = Keyspace::new(DATABASES, 2);
        let seat = keyspace.slots.join().expect("has a seat");
        Fixture {
            effects: Effects::for_keyspace(&keyspace),
            seat,
            keyspace,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns one of few names, so that slots have several keys and names are used again. The caller chooses the slot.
    fn name(&mut self) -> Vec<u8> {
        format!("key:{}", self.random.u32(..600)).into_bytes()
    }

    fn write<R>(&mut self, db: DbIndex, name: &[u8], change: impl FnOnce(&mut KeyWrite<'_>) -> R) -> R {
        let hash = self.keyspace.hasher.hash(name);
        // Few slots are used, so that they have many keys.
        let slot = (KeyHasher::slot(hash) % 8) * 2048;
        let clock = AccessClock::default();
        let access = AccessContext {
            now_ms: 1000,
            clock: &clock,
            counts: &self.keyspace.counts,
            thread_index: ThreadIndex::new(0),
            should_touch: true,
        };
        let key = NamedKey {
            name,
            hash,
            slot: SlotIndex::from_index(slot),
        };
        let pass = self.seat.enter();
        let mut lease = pass.try_write(slot).expect("nobody else is here");
        let (header, data) = lease.parts_mut();
        let mut write = KeyWrite::new(header, data, key, db, &access, &mut self.effects);
        let result = change(&mut write);
        write.changed(KeyspaceEvent::NO_EVENT);
        drop(lease);
        self.effects.garbage.clear();
        self.effects.removed.clear();
        result
    }

    /// Performs a random change on one key or on a whole database.
    fn change(&mut self) {
        let (db, name) = (DbIndex::new(self.random.usize(..DATABASES)), self.name());
        let number = self.random.i64(..1_000_000);
        match self.random.u32(..1000) {
            0..300 => self.write(db, &name, |key| key.set(NewValue::Int(number), ExpiryUpdate::Remove)),
            300..400 => {
                let bytes = vec![b'a'; number as usize % 30_000];
                self.write(db, &name, |key| key.set(NewValue::Bytes(&bytes), ExpiryUpdate::Keep));
            }
            400..500 => {
                let mut list = List::quicklist(-2, 0);
                for _ in 0..number % 50 {
                    list.push(ListEnd::Tail, b"element");
                }
                let value = NewValue::Object(Value::List(list));
                self.write(db, &name, |key| key.set(value, ExpiryUpdate::SetTo(5000)));
            }
            500..600 => self.write(db, &name, |key| {
                if let Some(mut entry) = key.entry_mut()
                    && let Some(Value::List(list)) = entry.object_mut()
                {
                    list.push(ListEnd::Tail, b"more");
                }
            }),
            600..700 => self.write(db, &name, |key| {
                if let Some(mut entry) = key.entry_mut()
                    && let ValueRef::Blob(_) = entry.value()
                {
                    entry.append(b"z");
                }
            }),
            700..800 => self.write(db, &name, |key| key.set_expiry(Some(900 + number as u64 % 300))),
            800..990 => {
                self.write(db, &name, |key| key.delete());
            }
            990..994 => self.empty(db),
            _ => self.swap(db, DbIndex::new((db.get() + 1) % DATABASES)),
        }
    }

    fn empty(&mut self, db: DbIndex) {
        let thread_index = ThreadIndex::new(self.seat.index());
        let taken = take_databases(
            &mut WholeKeyspace::Exclusive(&mut self.seat.exclusive()),
            std::iter::once(db),
            &self.keyspace,
            thread_index,
        );
        drop(taken);
    }

    fn swap(&mut self, one: DbIndex, other: DbIndex) {
        let mut all = self.seat.exclusive();
        for index in 0..SLOTS {
            let (header, slot) = all.parts_mut(index);
            slot.swap_databases(one, other);
            publish_header(header, slot);
        }
        self.keyspace.before_images.record_swapped(one, other);
    }

    fn contents(&mut self) -> Contents {
        let all = self.seat.exclusive();
        let mut contents = Contents::new();
        for slot in all.iter() {
            for db in DbIndex::all(slot.databases()) {
                let entries = slot.table(db).into_iter().flat_map(|table| table.iter());
                contents.extend(entries.map(|entry| ((db, entry.key().to_vec()), text(entry))));
            }
        }
        contents
    }

    /// Requests an in-place change of a large value, so that it is saved out of turn. The contents of its record are
    /// checked like the rest.
    fn request_change(&mut self, db: DbIndex, name: &[u8]) {
        let hash = self.keyspace.hasher.hash(name);
        let slot = (KeyHasher::slot(hash) % 8) * 2048;
        let key = NamedKey {
            name,
            hash,
            slot: SlotIndex::from_index(slot),
        };
        let pass = self.seat.enter();
        let before_images = &self.keyspace.before_images;
        {
            let lease = pass.try_write(slot).expect("nobody else is here");
            let entry = lease.table(db).and_then(|table| table.find(hash, name));
            let Some(entry) = entry.filter(|entry| is_large(entry.value())) else {
                return;
            };
            if !before_images.must_save_first(db, key, entry) {
                return;
            }
        }
        let wanted = before_images.next_urgent_key().expect("it was wanted");
        let record = before_images.save_urgent_key(&pass, &wanted, |_, entry| {
            let mut record = entry.key().to_vec();
            record.push(b'=');
            record.extend(text(entry).bytes());
            Some(record)
        });
        let record = record.expect("no writer holds the slot").expect("it is not saved");
        before_images.add_record(&wanted, record);
        let lease = pass.try_write(slot).expect("nobody else is here");
        if let Some(entry) = lease.table(db).and_then(|table| table.find(hash, name)) {
            assert!(!before_images.must_save_first(db, key, entry), "now it may be changed");
        }
    }
}

/// Takes a snapshot with up to `changes` changes between two steps.
fn snapshot(scene: &mut Fixture, changes: usize) -> (Contents, Contents) {
    let expected = scene.contents();
    let databases: Vec<DbIndex> = DbIndex::all(DATABASES)
        .filter(|db| expected.keys().any(|key| key.0 == *db))
        .collect();
    scene.keyspace.before_images.prepare(&scene.keyspace.slots, None);
    scene.keyspace.before_images.begin(&scene.seat.exclusive(), &databases);
    let mut saved = Contents::new();
    let before_images = scene.keyspace.before_images.clone();
    for (index, database) in databases.iter().enumerate() {
        let hasher = &scene.keyspace.hasher.clone();
        let is_last = index + 1 == databases.len();
        let walker = |part| SnapshotWalker::new(&before_images, hasher, *database, part, is_last);
        // Several threads walk over different parts.
        let mut walkers: Vec<SnapshotWalker<'_>> = (0..PARTS).map(walker).collect();
        while !walkers.is_empty() {
            for _ in 0..scene.random.usize(..=changes) {
                scene.change();
                let (db, name) = (DbIndex::new(scene.random.usize(..DATABASES)), scene.name());
                scene.request_change(db, &name);
            }
            let keyspace = &scene.keyspace;
            let mut seen = ContentsCollector {
                database: *database,
                contents: &mut saved,
            };
            let lend = |slot| keyspace.pinned.pin_for_snapshot(&keyspace.slots, slot);
            let chosen = scene.random.usize(..walkers.len());
            match walkers[chosen].step(&scene.seat.enter(), &lend, &mut seen) {
                WalkerStep::End => drop(walkers.swap_remove(chosen)),
                WalkerStep::Images(left) => walkers[chosen].visit_images(&left, &mut seen),
                WalkerStep::More => {}
                WalkerStep::Contended => panic!("nobody else is here"),
            }
        }
    }
    let unmarked = (0..SLOTS).all(|slot| !scene.keyspace.slots.header(slot).is_unsaved());
    assert!(
        unmarked || databases.is_empty(),
        "the walk over the last database has passed every slot"
    );
    before_images.end(&scene.keyspace.slots);
    (expected, saved)
}

#[test]
fn a_snapshot_is_all_data_at_one_moment() {
    let seed = std::env::var("WEFT_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("WEFT_SEED={seed}");
    let mut scene = Fixture::new(seed);
    for round in 0..40 {
        for _ in 0..500 {
            scene.change();
        }
        let (expected, saved) = snapshot(&mut scene, round % 5 * 8);
        let missing = expected.iter().find(|(key, value)| saved.get(*key) != Some(value));
        if let Some((key, value)) = missing {
            panic!(
                "round {round}: {key:?} was {value:?} and is saved as {:?}",
                saved.get(key)
            );
        }
        let surplus = saved.keys().find(|key| !expected.contains_key(key));
        assert_eq!(surplus, None, "round {round}: no key is saved that did not exist");
    }
}

#[test]
fn no_images_are_kept_without_a_snapshot() {
    let mut scene = Fixture::new(7);
    let is_empty = |scene: &Fixture| {
        let all = scene.keyspace.before_images.slots();
        all.iter().all(|images| images.lock().0.is_empty())
    };
    for _ in 0..200 {
        scene.change();
    }
    assert!(is_empty(&scene));
    let (expected, saved) = snapshot(&mut scene, 20);
    assert_eq!(expected, saved);
    for _ in 0..200 {
        scene.change();
    }
    assert!(is_empty(&scene));
}

#[test]
fn a_cancelled_snapshot_keeps_no_more_images() {
    let mut scene = Fixture::new(8);
    for _ in 0..500 {
        scene.change();
    }
    let before_images = scene.keyspace.before_images.clone();
    before_images.prepare(&scene.keyspace.slots, None);
    before_images.begin(&scene.seat.exclusive(), &DbIndex::all(4).collect::<Vec<_>>());
    before_images.cancel();
    for _ in 0..200 {
        scene.change();
    }
    assert!(before_images.slots().iter().all(|images| images.lock().0.is_empty()));
    let mut contents = Contents::new();
    let keyspace = &scene.keyspace;
    let mut seen = ContentsCollector {
        database: DbIndex::FIRST,
        contents: &mut contents,
    };
    let lend = |slot| keyspace.pinned.pin_for_snapshot(&keyspace.slots, slot);
    for part in 0..PARTS {
        let mut walker = SnapshotWalker::new(&before_images, &keyspace.hasher, DbIndex::FIRST, part, true);
        let _ = walker.step(&scene.seat.enter(), &lend, &mut seen);
    }
    let is_at_end = |cursor: &AtomicU64| cursor.load(Ordering::Relaxed) == END_OF_SNAPSHOT;
    assert!(before_images.cursors.iter().all(is_at_end), "the cursors stay");
}

#[test]
fn a_walker_waits_for_a_key_that_another_thread_saves() {
    let mut scene = Fixture::new(9);
    let name = b"large";
    let bytes = vec![b'a'; 2 * LARGE_BYTES];
    scene.write(DbIndex::FIRST, name, |key| {
        key.set(NewValue::Bytes(&bytes), ExpiryUpdate::Remove)
    });
    let keyspace = &scene.keyspace;
    let before_images = keyspace.before_images.clone();
    before_images.prepare(&keyspace.slots, None);
    before_images.begin(&scene.seat.exclusive(), &[DbIndex::FIRST]);
    let hash = keyspace.hasher.hash(name);
    let slot = (KeyHasher::slot(hash) % 8) * 2048;
    let key = NamedKey {
        name,
        hash,
        slot: SlotIndex::from_index(slot),
    };
    let pass = scene.seat.enter();
    let wanted = {
        let lease = pass.try_write(slot).expect("nobody else is here");
        let entry = lease.table(DbIndex::FIRST).and_then(|table| table.find(hash, name));
        assert!(before_images.must_save_first(DbIndex::FIRST, key, entry.expect("it was written")));
        before_images.next_urgent_key().expect("it was wanted")
    };
    let saved = before_images.save_urgent_key(&pass, &wanted, |_, entry| Some(text(entry)));
    let value = saved.expect("no writer holds the slot").expect("it is not saved");
    let mut contents = Contents::new();
    let mut seen = ContentsCollector {
        database: DbIndex::FIRST,
        contents: &mut contents,
    };
    let lend = |slot| keyspace.pinned.pin_for_snapshot(&keyspace.slots, slot);
    let part = slot / PART_SLOTS;
    let mut walker = SnapshotWalker::new(&before_images, &keyspace.hasher, DbIndex::FIRST, part, true);
    let mut waited = 0;
    while waited < 3 {
        match walker.step(&pass, &lend, &mut seen) {
            WalkerStep::Contended => waited += 1,
            WalkerStep::More => {}
            WalkerStep::Images(_) | WalkerStep::End => panic!("the walker passes a key that has no record"),
        }
    }
    before_images.add_record(&wanted, format!("large={value}").into_bytes());
    loop {
        match walker.step(&pass, &lend, &mut seen) {
            WalkerStep::Images(left) => walker.visit_images(&left, &mut seen),
            WalkerStep::More => {}
            WalkerStep::End => break,
            WalkerStep::Contended => panic!("nobody else is here"),
        }
    }
    before_images.end(&keyspace.slots);
    assert_eq!(contents.get(&(DbIndex::FIRST, name.to_vec())), Some(&value));
}

#[test]
fn save_positions_order_by_database_slot_and_position() {
    let places = [
        save_position(0, 0, 0),
        save_position(0, 0, 1),
        save_position(0, 1, 0),
        save_position(0, SLOTS - 1, (1 << POSITION_BITS) - 1),
        save_position(0, SLOTS, 0),
        save_position(1, 0, 1),
        save_position(1, SLOTS, 0),
        save_position(2, 0, 1),
        save_position(MAX_DATABASES as u32 - 1, 0, 0),
    ];
    assert!(places.is_sorted_by(|one, other| one < other));
}

#[test]
fn an_urgent_key_is_queued_once_until_it_is_taken() {
    let key = |number: u32| AwaitedKey {
        database: number % 2,
        slot: SlotIndex::from_index(number as usize % 3),
        // Keys whose hashes are equal are different keys.
        hash: u64::from(number / 100),
        name: number.to_string().into_bytes().into(),
    };
    let mut urgent = UrgentKeys::default();
    for number in 0..1000 {
        assert!(urgent.add(key(number)));
        assert!(!urgent.add(key(number / 2)), "it is queued");
        assert_eq!(urgent.order.len(), urgent.queued.len());
    }
    for number in 0..1000 {
        assert_eq!(urgent.take(), Some(key(number)), "in the order of the requests");
        assert!(
            number < 500 || urgent.add(key(number - 500)),
            "it may be requested again"
        );
    }
    assert_eq!(std::iter::from_fn(|| urgent.take()).count(), 500);
    assert!(urgent.is_empty() && urgent.queued.is_empty());
}

/// Such keys have no old state. What is kept for a slot is for one database.
#[test]
fn images_of_new_keys_take_little_memory() {
    const KEYS: usize = 1000;
    let keyspace = Keyspace::new(1, 1);
    let mut seat = keyspace.slots.join().expect("has a seat");
    let before_images = &keyspace.before_images;
    before_images.prepare(&keyspace.slots, None);
    before_images.begin(&seat.exclusive(), &[DbIndex::FIRST]);
    let no_keys = SlotTable::new();
    let before = memory::thread_balance();
    for slot in 0..KEYS {
        let name = format!("key:{slot:05}");
        let key = NamedKey {
            name: name.as_bytes(),
            hash: keyspace.hasher.hash(name.as_bytes()),
            slot: SlotIndex::from_index(slot),
        };
        before_images.keep_before_image(DbIndex::FIRST, key, &no_keys);
    }
    let each = (memory::thread_balance() - before) / KEYS as i64;
    assert!((100..400).contains(&each), "{each} bytes for each slot");
    before_images.end(&keyspace.slots);
}

//! Before-images: the old states of keys that have changed since a snapshot's moment, left by their writers.
//!
//! A snapshot contains all data as of one moment, and is written while clients go on. Nothing is copied in advance:
//!
//! ```text
//!   exclusive mode, µs      a thread walks over the slots as a reader                      writers
//!   ──────────────────      ─────────────────────────────────────────                      ───────
//!   cursor = start      ┌──────────┬──────────┬──────────┬──────────┐
//!                       │  saved   │  saved   │ in parts │ unsaved  │ ◀─ write lease, key not saved yet:
//!                       └──────────┴──────────┴────▲─────┴──────────┘    its old state becomes an *image* of the slot,
//!                                                cursor                  once per key; then the key changes as usual
//! ```
//!
//! The walker skips keys that have an image, and writes the images of a slot when it reaches the slot's end.
//!
//! 1. The cursor is a database, a slot and a position in the slot's hash order. It advances under a read lease of its
//!    slot. So the holder of the slot's write lease knows for certain which of its keys are saved.
//! 2. The headers of slots are marked before the snapshot's moment and unmarked when they are saved. Without a mark a
//!    write checks nothing else: that one bit, in the cache line of the lease word, is the whole cost of a write while
//!    no snapshot runs.
//! 3. An image is a copy of a small value or a handle of a large one, with expiry and clock. Of a key that did not
//!    exist, it says that there is nothing to save. Memory is bounded by the changes, and freed slot by slot.
//! 4. A large value that is to be changed in place would have to be copied because of the handle. So the writer is put
//!    off, and the value is *requested*: the snapshot's thread saves it out of turn ([`BeforeImages::next_wanted`]).
//! 5. A database that is emptied hands over its unsaved tables unchanged; its later contents are not part of the
//!    snapshot. Databases that are swapped are tracked by number. Neither operation waits for the snapshot.
//! 6. A slot's images are behind a lock of their own, which is uncontended: writers hold the slot's write lease, and
//!    the walker a read lease.
//!
//! Expired keys are not deleted in unsaved slots, because their old states would have to be kept anyway.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use weft_table::{EntryRef, NewValue, ValueRef, scan_position};
use weft_values::Value;

use super::access::NamedKey;
use super::hash::KeyHasher;
use super::pinned::Pin;
use super::{Exclusive, GatePassage, SLOTS, SlotTable, Slots};
use crate::observability::lock;

/// The number of keys visited under one lease.
const KEYS_A_STEP: usize = 16;
/// A larger value is not written under a lease, but by its handle.
pub const LARGE_BYTES: usize = 16 << 10;
/// The cursor when everything is saved, or no snapshot runs.
const BEHIND_EVERYTHING: u64 = u64::MAX;
/// A database that is no part of the snapshot.
const NONE: u32 = u32::MAX;

/// Bits of a place for the position in a slot, and for the slot.
const POSITION_BITS: u32 = 27;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// The number of databases that a cursor can distinguish.
pub const MOST_DATABASES: usize = 1 << (u64::BITS - POSITION_BITS - SLOT_BITS);

/// A place in the order in which a snapshot is saved.
const fn place(database: u32, slot: usize, position: u32) -> u64 {
    // The end of the last slot is the start of the next database.
    (((database as u64) << SLOT_BITS) + slot as u64) << POSITION_BITS | position as u64
}

/// Returns `true` if a value is too large to be copied or written while other threads wait.
pub fn is_large(value: ValueRef<'_, Value>) -> bool {
    match value {
        ValueRef::Int(_) => false,
        ValueRef::Bytes(bytes) | ValueRef::Packed(bytes) => bytes.len() > LARGE_BYTES,
        ValueRef::Blob(blob) => blob.len() > LARGE_BYTES,
        ValueRef::Object(object) => object.allocated_bytes() > LARGE_BYTES,
    }
}

/// The images of one database of a slot.
#[derive(Default)]
struct DatabaseImages {
    /// The database, by its number at the snapshot's moment.
    database: u32,
    /// Keys as they were.
    before: SlotTable,
    /// Keys that need nothing more: they were not there, or are among the records. Their values mean nothing.
    settled: SlotTable,
    /// Keys that were saved out of turn, ready to be written.
    records: Vec<Vec<u8>>,
    /// The rest of the table, if the database was emptied.
    whole: SlotTable,
    /// The bytes that the old states take.
    weight: ImageBytes,
}

/// Bytes that images take, as a part of what all take.
#[derive(Default)]
struct ImageBytes {
    all: Option<Arc<AtomicU64>>,
    bytes: u64,
}

impl ImageBytes {
    fn add(&mut self, all: &Arc<AtomicU64>, bytes: u64) {
        self.bytes += bytes;
        self.all
            .get_or_insert_with(|| all.clone())
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for ImageBytes {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl DatabaseImages {
    fn has(&self, hash: u64, name: &[u8]) -> bool {
        self.before.find(hash, name).is_some() || self.settled.find(hash, name).is_some()
    }

    fn any(&self) -> bool {
        !self.before.is_empty() || !self.settled.is_empty()
    }

    fn settle(&mut self, hash: u64, name: &[u8]) {
        drop(self.settled.insert(hash, name, NewValue::Int(0), None, 0));
    }

    fn keep(&mut self, hash: u64, name: &[u8], entry: Option<EntryRef<'_, Value>>) {
        let Some(entry) = entry else {
            return self.settle(hash, name);
        };
        let value = match (entry.value(), entry.share()) {
            (_, Some(object)) => NewValue::Shared(object),
            (ValueRef::Int(number), _) => NewValue::Int(number),
            (ValueRef::Bytes(bytes), _) => NewValue::Bytes(bytes),
            (ValueRef::Packed(bytes), _) => NewValue::Packed(bytes),
            (ValueRef::Blob(blob), _) => NewValue::Blob(blob.clone()),
            (ValueRef::Object(_), None) => unreachable!("every object can be shared"),
        };
        drop(
            self.before
                .insert(hash, name, value, entry.expire_at_ms(), entry.clock()),
        );
    }
}

/// A slot's images, by database; few slots have more than one.
#[derive(Default)]
struct SlotImages(Vec<DatabaseImages>);

impl SlotImages {
    fn of(&self, database: u32) -> Option<&DatabaseImages> {
        self.0.iter().find(|images| images.database == database)
    }

    fn of_mut(&mut self, database: u32) -> &mut DatabaseImages {
        let found = self.0.iter().position(|images| images.database == database);
        let index = found.unwrap_or_else(|| {
            self.0.push(DatabaseImages {
                database,
                ..DatabaseImages::default()
            });
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    fn take(&mut self, database: u32) -> Option<DatabaseImages> {
        let index = self.0.iter().position(|images| images.database == database)?;
        let images = self.0.swap_remove(index);
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
        Some(images)
    }
}

/// A key whose value a writer wants to change and that must be saved first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedKey {
    database: u32,
    slot: u16,
    hash: u64,
    name: Box<[u8]>,
}

/// The images of all slots, and how far the snapshot is.
pub struct BeforeImages {
    cursor: AtomicU64,
    /// For each current database, its number at the snapshot's moment.
    origins: Box<[AtomicU32]>,
    /// For each database of the snapshot, its current number.
    places: Box<[AtomicU32]>,
    /// Made for the first snapshot.
    slots: OnceLock<Box<[Mutex<SlotImages>]>>,
    wanted: Mutex<VecDeque<AwaitedKey>>,
    any_wanted: AtomicBool,
    kept_bytes: AtomicU64,
    /// Bytes that are kept at the moment, values that only a handle keeps included.
    held_bytes: Arc<AtomicU64>,
}

impl BeforeImages {
    /// None, for so many databases.
    pub fn new(databases: usize) -> Self {
        let none = || (0..databases).map(|_| AtomicU32::new(NONE)).collect();
        BeforeImages {
            cursor: AtomicU64::new(BEHIND_EVERYTHING),
            origins: none(),
            places: none(),
            slots: OnceLock::new(),
            wanted: Mutex::default(),
            any_wanted: AtomicBool::new(false),
            kept_bytes: AtomicU64::new(0),
            held_bytes: Arc::default(),
        }
    }

    // ---- for writers ------------------------------------------------------------------------------------------------

    /// Keeps what a key of a marked slot is, if that is not saved. For the holder of the slot's write lease, before the
    /// key changes in any way.
    #[cold]
    pub fn keep(&self, db: usize, key: NamedKey<'_>, table: &SlotTable) {
        let Some(database) = self.unsaved(db, key.slot.into(), key.hash) else {
            return;
        };
        let mut images = self.lock(key.slot.into());
        // The end of a snapshot takes this lock, too.
        if self.unsaved(db, key.slot.into(), key.hash).is_none() {
            return;
        }
        let images = images.of_mut(database);
        if !images.has(key.hash, key.name) {
            let entry = table.find(key.hash, key.name);
            let bytes = entry.map_or(key.name.len(), |entry| entry.allocated_bytes());
            self.kept_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            if let Some(entry) = entry {
                let behind = match entry.value() {
                    ValueRef::Object(object) => object.allocated_bytes(),
                    _ => 0,
                };
                images
                    .weight
                    .add(&self.held_bytes, (entry.allocated_bytes() + behind) as u64);
            }
            images.keep(key.hash, key.name, entry);
        }
    }

    /// Bytes that are kept for a snapshot at the moment, about. To delete keys for them would add to them.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes kept for the snapshot that is being written, including those freed already. Of a large value
    /// only the handle counts.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Returns `true` if a large value in a marked slot must be saved before it may be changed in place; then it is
    /// requested.
    #[cold]
    pub fn must_save_first(&self, db: usize, key: NamedKey<'_>, entry: EntryRef<'_, Value>) -> bool {
        let Some(database) = self.unsaved(db, key.slot.into(), key.hash) else {
            return false;
        };
        if let Some(images) = self.lock(key.slot.into()).of(database) {
            let is_settled = images.settled.find(key.hash, key.name).is_some();
            // The value may have been replaced since its image was made; then it is not shared.
            let is_free = images.before.find(key.hash, key.name).is_some() && !entry.is_shared();
            if is_settled || is_free {
                return false;
            }
        }
        let key = AwaitedKey {
            database,
            slot: key.slot,
            hash: key.hash,
            name: key.name.into(),
        };
        let mut wanted = lock(&self.wanted);
        if !wanted.contains(&key) {
            wanted.push_back(key);
            self.any_wanted.store(true, Ordering::Release);
        }
        true
    }

    /// Takes over the table of a slot of database `db`, which is being emptied. Returns the table if all of it is
    /// saved, or it is not part of a snapshot.
    pub fn take_over(&self, db: usize, slot: usize, table: SlotTable) -> Option<SlotTable> {
        // The cursor may be in the middle of the slot.
        let Some(database) = self.unsaved_slot(db, slot) else {
            return Some(table);
        };
        self.lock(slot).of_mut(database).whole = table;
        None
    }

    /// Database `db` was emptied, and its tables taken over. What it gets from now on is no part of a snapshot.
    pub fn emptied(&self, db: usize) {
        let database = self.origins[db].swap(NONE, Ordering::Relaxed);
        if let Some(place) = self.places.get(database as usize) {
            place.store(NONE, Ordering::Relaxed);
        }
    }

    /// Two databases changed places.
    pub fn swapped(&self, one: usize, other: usize) {
        let database = self.origins[one].load(Ordering::Relaxed);
        let database = self.origins[other].swap(database, Ordering::Relaxed);
        self.origins[one].store(database, Ordering::Relaxed);
        for db in [one, other] {
            let database = self.origins[db].load(Ordering::Relaxed);
            if let Some(place) = self.places.get(database as usize) {
                place.store(db as u32, Ordering::Relaxed);
            }
        }
    }

    /// There is no need to keep anything any more: the snapshot is called off.
    pub fn abandon(&self) {
        self.cursor.store(BEHIND_EVERYTHING, Ordering::Release);
    }

    /// The number that a database had at the snapshot's moment, if a key of it is not saved.
    fn unsaved(&self, db: usize, slot: usize, hash: u64) -> Option<u32> {
        let database = self.origins[db].load(Ordering::Relaxed);
        let is_unsaved = place(database, slot, scan_position(hash)) >= self.cursor.load(Ordering::Acquire);
        (database != NONE && is_unsaved).then_some(database)
    }

    /// Like [`Self::unsaved`], for any key of the slot.
    fn unsaved_slot(&self, db: usize, slot: usize) -> Option<u32> {
        let database = self.origins[db].load(Ordering::Relaxed);
        let is_unsaved = place(database, slot + 1, 0) > self.cursor.load(Ordering::Acquire);
        (database != NONE && is_unsaved).then_some(database)
    }

    fn lock(&self, slot: usize) -> MutexGuard<'_, SlotImages> {
        lock(&self.all()[slot])
    }

    fn all(&self) -> &[Mutex<SlotImages>] {
        self.slots
            .get_or_init(|| (0..SLOTS).map(|_| Mutex::default()).collect())
    }

    // ---- for the snapshot's thread ---------------------------------------------------------------------------------

    /// Marks all slots, so that writers check for images from now on. Called before the snapshot's moment.
    pub fn prepare(&self, slots: &Slots) {
        self.all();
        for slot in 0..SLOTS {
            slots.header(slot).set_unsaved(true);
        }
    }

    /// This is the snapshot's moment: from now on everything in these databases is kept until it is saved.
    pub fn begin(&self, _alone: &Exclusive<'_>, databases: &[usize]) {
        for number in self.origins.iter().chain(&*self.places) {
            number.store(NONE, Ordering::Relaxed);
        }
        for db in databases {
            self.origins[*db].store(*db as u32, Ordering::Relaxed);
            self.places[*db].store(*db as u32, Ordering::Relaxed);
        }
        self.kept_bytes.store(0, Ordering::Relaxed);
        self.cursor.store(0, Ordering::Release);
    }

    /// The snapshot is over, whatever came of it.
    pub fn end(&self, slots: &Slots) {
        self.abandon();
        for slot in 0..SLOTS {
            slots.header(slot).set_unsaved(false);
            // Freed behind the lock, whose guard ends with this statement.
            let images = std::mem::take(&mut *self.lock(slot));
            drop(images);
        }
        let wanted = std::mem::take(&mut *lock(&self.wanted));
        drop(wanted);
        self.any_wanted.store(false, Ordering::Relaxed);
        self.kept_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns a key that must be saved out of turn.
    pub fn next_wanted(&self) -> Option<AwaitedKey> {
        if !self.any_wanted.load(Ordering::Acquire) {
            return None;
        }
        let mut wanted = lock(&self.wanted);
        let next = wanted.pop_front();
        self.any_wanted.store(!wanted.is_empty(), Ordering::Relaxed);
        next
    }

    /// Passes the state of a requested key at the snapshot's moment to `share`, under a lease of its slot. If `share`
    /// takes a handle, the key counts as saved from then on. Returns `None` if a writer holds the slot.
    pub fn settle_wanted<R>(
        &self,
        pass: &GatePassage<'_>,
        wanted: &AwaitedKey,
        share: impl FnOnce(u16, EntryRef<'_, Value>) -> Option<R>,
    ) -> Option<Option<R>> {
        let AwaitedKey {
            database,
            slot,
            hash,
            name,
        } = wanted;
        let lease = pass.read_spinning(usize::from(*slot))?;
        let place_now = place(*database, usize::from(*slot), scan_position(*hash));
        if place_now < self.cursor.load(Ordering::Acquire) {
            return Some(None);
        }
        let mut guard = self.lock(usize::from(*slot));
        let images = guard.of_mut(*database);
        if images.settled.find(*hash, name).is_some() {
            return Some(None);
        }
        let table = self.table_now(*database, &lease);
        let image = images.before.find(*hash, name);
        let entry = image.or_else(|| table.and_then(|table| table.find(*hash, name)));
        let shared = entry.and_then(|entry| share(*slot, entry));
        let mut removed = None;
        if shared.is_some() {
            removed = images.before.remove(*hash, name);
            images.settle(*hash, name);
        }
        // Freed after the lock and the lease.
        drop(guard);
        drop(lease);
        drop(removed);
        Some(shared)
    }

    /// Adds the record of a requested key, which is written when it is its slot's turn.
    pub fn add_record(&self, wanted: &AwaitedKey, record: Vec<u8>) {
        let mut images = self.lock(usize::from(wanted.slot));
        images.of_mut(wanted.database).records.push(record);
    }

    /// The table of a database of the snapshot as it is now, in a slot of which the caller has a lease.
    fn table_now<'s>(&self, database: u32, slot: &'s super::Slot) -> Option<&'s SlotTable> {
        match self.places[database as usize].load(Ordering::Relaxed) {
            NONE => None,
            db => slot.table(db as usize),
        }
    }
}

/// The callbacks of a walker. Those under a lease must return quickly.
pub trait SnapshotVisitor {
    /// A key, under a lease of its slot or owned by the walker.
    fn key(&mut self, slot: u16, entry: EntryRef<'_, Value>);
    /// A key that was written out of turn.
    fn record(&mut self, record: &[u8]);
}

/// The outcome of a step.
pub enum Step {
    /// There is more.
    More,
    /// The images of a slot that is done, to be visited outside the gate.
    Left(Box<RemainingImages>),
    /// Somebody is writing the slot.
    Contended,
    /// The database is saved.
    End,
}

/// Walks over one database of a snapshot. Databases come in the order of their numbers.
pub struct Walker<'w> {
    before_images: &'w BeforeImages,
    hasher: &'w KeyHasher,
    database: u32,
    slot: usize,
    position: u32,
    /// `true` if slots are saved when they are passed.
    is_last: bool,
}

/// The images of a slot that is done, which only the walker owns.
pub struct RemainingImages {
    slot: u16,
    images: DatabaseImages,
    /// The walker's position when the rest of the table was taken over.
    position: u32,
    /// Images may share values with keys that the slot's mark guards no longer.
    _loan: Option<Pin>,
}

impl<'w> Walker<'w> {
    /// Creates a walker at the start of a database.
    pub fn new(before_images: &'w BeforeImages, hasher: &'w KeyHasher, database: usize, is_last: bool) -> Self {
        Walker {
            before_images,
            hasher,
            database: database as u32,
            slot: 0,
            position: 0,
            is_last,
        }
    }

    /// Visits the next keys. `lend` pins values of a slot.
    pub fn step(&mut self, pass: &GatePassage<'_>, lend: &dyn Fn(u16) -> Pin, visit: &mut dyn SnapshotVisitor) -> Step {
        let mut visited = 0;
        while self.slot < SLOTS {
            match self.step_in_slot(pass, lend, visit, &mut visited) {
                None => return Step::Contended,
                Some(Some(left)) => return Step::Left(left),
                Some(None) if visited >= KEYS_A_STEP || pass.gate_is_closing() => return Step::More,
                Some(None) => {}
            }
        }
        Step::End
    }

    /// Visits some keys of a slot; `None` if it is being written. At its end, images that it has.
    fn step_in_slot(
        &mut self,
        pass: &GatePassage<'_>,
        lend: &dyn Fn(u16) -> Pin,
        visit: &mut dyn SnapshotVisitor,
        visited: &mut usize,
    ) -> Option<Option<Box<RemainingImages>>> {
        let (before_images, slot) = (self.before_images, self.slot);
        let header = pass.domain().header(slot);
        let lease = if header.may_hold_any() {
            Some(pass.read_spinning(slot)?)
        } else {
            None
        };
        let mut all = before_images.lock(slot);
        let table = lease
            .as_deref()
            .and_then(|slot| before_images.table_now(self.database, slot));
        let images = all.of(self.database).filter(|images| images.any());
        let next = table.and_then(|table| {
            table.scan(self.position, KEYS_A_STEP, &mut |entry| {
                *visited += 1;
                if images.is_none_or(|images| !images.has(self.hasher.hash(entry.key()), entry.key())) {
                    visit.key(slot as u16, entry);
                }
            })
        });
        if let Some(position) = next {
            self.position = position;
            self.move_cursor(place(self.database, slot, position));
            return Some(None);
        }
        let left = all.take(self.database).map(|images| {
            let any_large = images.before.iter().any(|image| is_large(image.value()));
            Box::new(RemainingImages {
                _loan: any_large.then(|| lend(slot as u16)),
                slot: slot as u16,
                images,
                position: self.position,
            })
        });
        self.slot += 1;
        self.position = 0;
        self.move_cursor(place(self.database, self.slot, 0));
        if self.is_last {
            header.set_unsaved(false);
        }
        Some(left)
    }

    /// Unless the snapshot was called off: then nothing is kept any more.
    fn move_cursor(&self, to: u64) {
        let forward = |cursor| (cursor < to).then_some(to);
        let cursor = &self.before_images.cursor;
        let _ = cursor.fetch_update(Ordering::AcqRel, Ordering::Acquire, forward);
    }

    /// Visits what a step has left.
    pub fn visit_left(&self, left: &RemainingImages, visit: &mut dyn SnapshotVisitor) {
        let images = &left.images;
        let mut position = Some(left.position);
        while let Some(from) = position {
            position = images.whole.scan(from, KEYS_A_STEP, &mut |entry| {
                if !images.has(self.hasher.hash(entry.key()), entry.key()) {
                    visit.key(left.slot, entry);
                }
            });
        }
        images.before.iter().for_each(|entry| visit.key(left.slot, entry));
        images.records.iter().for_each(|record| visit.record(record));
    }
}

#[cfg(test)]
mod tests;

//! Before-images: the states of changed keys that a running snapshot still has to save. The thread that changes a key
//! stores its old state.
//!
//! A snapshot is all data at one moment, written while clients continue. Nothing is copied for it in advance:
//!
//! ```text
//!   exclusive mode, µs      a thread walks over the slots as a reader                      all other threads
//!   ──────────────────      ─────────────────────────────────────────                      ─────────────────
//!   cursor = start      ┌──────────┬──────────┬──────────┬──────────┐
//!                       │  saved   │  saved   │ in parts │ unsaved  │ ◀─ write lease, key not saved yet:
//!                       └──────────┴──────────┴────▲─────┴──────────┘    its old state becomes an *image* of the slot,
//!                                                cursor                  once per key; then the key changes as usual
//! ```
//!
//! The walker skips keys that have an image. It writes the images of a slot when it reaches the slot's end.
//!
//! 1. The slots are divided into [`PARTS`], and each part has a cursor: a database, a slot and a position in the slot's
//!    hash order. One thread at a time walks over a part. Its cursor moves forward under a read lease of its slot. So a
//!    holder of the slot's write lease knows for certain which of its keys are saved.
//! 2. Headers of the snapshot's slots are marked before its moment and unmarked when they are saved. Without a mark no
//!    write looks any further. Checking that one bit, in the cache line of the lease word, is all that a write costs
//!    when no snapshot runs.
//! 3. An image is a copy of a small value or a handle of a large one, with expiry and clock. For a key that did not
//!    exist, the image records that there is nothing to save. The memory is bounded by what changes, and is freed slot
//!    by slot.
//! 4. A large value that is about to be changed in place would have to be copied because of the handle. So the writer
//!    is deferred, and the value becomes *urgent*: one of the snapshot's threads saves it out of turn
//!    ([`BeforeImages::next_urgent_key`]). The walker of its slot waits until that is done.
//!    Values of modules are saved at the snapshot's moment, because their modules may change them at any time.
//! 5. A database that is emptied hands over its unsaved tables as they are. Keys added to it from then on are not part
//!    of the snapshot. Databases that are swapped are tracked by number. Neither operation waits for the snapshot.
//! 6. A slot's images are protected by a lock of their own. Writers and the walker do not contend for it: a writer
//!    holds the slot's write lease, and the walker a read lease.
//!
//! Expired keys are not deleted in slots that are not saved, because their old states would have to be kept anyway.

use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use weft_base::{DbIndex, SlotIndex};
use weft_table::{EntryRef, NewValue, ValueRef, scan_position};
use weft_values::Value;

use super::hash::KeyHasher;
use super::key_identity::NamedKey;
use super::pinned::Pin;
use super::{Exclusive, GatePassage, SlotTable, Slots};
use weft_base::slots::SLOTS;
use weft_cluster::slot_set::SlotSet;
use weft_os::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use weft_os::sync::{Mutex, MutexGuard};

/// The number of keys visited under one lease.
const KEYS_PER_STEP: usize = if cfg!(feature = "simulated") { 1 } else { 16 };
/// The size above which a value is not written under a lease but through its handle, in bytes.
pub const LARGE_BYTES: usize = if cfg!(feature = "simulated") { 100 } else { 16 << 10 };
/// The number of parts into which the slots are divided.
pub const PARTS: usize = if cfg!(feature = "simulated") { 4 } else { 64 };
/// The number of slots of a part.
const PART_SLOTS: usize = SLOTS / PARTS;
/// A cursor when everything is saved, or when there is no snapshot.
const END_OF_SNAPSHOT: u64 = u64::MAX;
/// Marks a database that is not part of the snapshot.
const NOT_IN_SNAPSHOT: u32 = u32::MAX;

/// The numbers of bits of a position for the place in a slot, and for the slot.
const POSITION_BITS: u32 = 27;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// The number of databases that a cursor can distinguish.
pub const MAX_DATABASES: usize = 1 << (u64::BITS - POSITION_BITS - SLOT_BITS);

/// A position in the order in which a snapshot is saved.
const fn save_position(database: u32, slot: usize, position: u32) -> u64 {
    // The end of the last slot equals the start of the next database.
    (((database as u64) << SLOT_BITS) + slot as u64) << POSITION_BITS | position as u64
}

/// Returns `true` if a value is too large to be copied or written while writers wait.
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
    /// The number that the database had at the snapshot's moment.
    database: u32,
    /// The old states of keys.
    before: SlotTable,
    /// Keys that need no further saving: they did not exist, or are among the records. Their values are placeholders.
    done: SlotTable,
    /// The serialized records of keys that were saved out of turn.
    records: Vec<Vec<u8>>,
    /// The number of keys that are being saved out of turn, and have no record yet.
    awaited_records: usize,
    /// The rest of the table, if the database was emptied.
    rest_of_table: SlotTable,
    /// The bytes that the old states take.
    weight: ImageBytes,
}

/// The memory used by one set of images, which is part of a shared total.
#[derive(Default)]
struct ImageBytes {
    total: Option<Arc<AtomicU64>>,
    bytes: u64,
}

impl ImageBytes {
    fn add(&mut self, all: &Arc<AtomicU64>, bytes: u64) {
        self.bytes += bytes;
        self.total
            .get_or_insert_with(|| all.clone())
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for ImageBytes {
    fn drop(&mut self) {
        if let Some(all) = &self.total {
            all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl DatabaseImages {
    fn contains(&self, hash: u64, name: &[u8]) -> bool {
        self.before.find(hash, name).is_some() || self.done.find(hash, name).is_some()
    }

    fn has_keys(&self) -> bool {
        !self.before.is_empty() || !self.done.is_empty()
    }

    fn mark_done(&mut self, hash: u64, name: &[u8]) {
        drop(self.done.insert(hash, name, NewValue::Int(0), None, 0));
    }

    fn keep(&mut self, hash: u64, name: &[u8], entry: Option<EntryRef<'_, Value>>) {
        let Some(entry) = entry else {
            return self.mark_done(hash, name);
        };
        insert_copy(&mut self.before, hash, name, entry);
    }
}

/// Inserts an entry of another table, with its expiry and clock. An object is not copied: the tables share it.
pub(super) fn insert_copy(table: &mut SlotTable, hash: u64, name: &[u8], entry: EntryRef<'_, Value>) {
    let value = match (entry.value(), entry.share()) {
        (_, Some(object)) => NewValue::Shared(object),
        (ValueRef::Int(number), _) => NewValue::Int(number),
        (ValueRef::Bytes(bytes), _) => NewValue::Bytes(bytes),
        (ValueRef::Packed(bytes), _) => NewValue::Packed(bytes),
        (ValueRef::Blob(blob), _) => NewValue::Blob(blob.clone()),
        (ValueRef::Object(_), None) => unreachable!("every object can be shared"),
    };
    drop(table.insert(hash, name, value, entry.expire_at_ms(), entry.clock()));
    if entry.is_raw()
        && let Some(mut copy) = table.find_mut(hash, name)
    {
        copy.mark_raw();
    }
}

/// A slot's images, by database. Few slots have more than one.
#[derive(Default)]
struct BeforeImagesOfSlot(Vec<DatabaseImages>);

impl BeforeImagesOfSlot {
    fn of(&self, database: u32) -> Option<&DatabaseImages> {
        self.0.iter().find(|images| images.database == database)
    }

    fn of_mut(&mut self, database: u32) -> &mut DatabaseImages {
        let found = self.0.iter().position(|images| images.database == database);
        let index = found.unwrap_or_else(|| {
            // A vector would begin with space for four.
            self.0.reserve_exact(1);
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

/// A key whose value a command wants to change, and that has to be saved first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedKey {
    database: u32,
    slot: SlotIndex,
    hash: u64,
    name: Box<[u8]>,
}

impl Hash for AwaitedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The keys that wait to be saved, in the order in which they were requested. Every attempt of a deferred writer looks
/// for its key here.
#[derive(Default)]
struct UrgentKeys {
    order: VecDeque<Arc<AwaitedKey>>,
    queued: HashSet<Arc<AwaitedKey>, ahash::RandomState>,
}

impl UrgentKeys {
    /// Adds a key. Returns `false` if it was added before.
    fn add(&mut self, key: AwaitedKey) -> bool {
        if self.queued.contains(&key) {
            return false;
        }
        let key = Arc::new(key);
        self.order.push_back(key.clone());
        self.queued.insert(key)
    }

    /// Removes and returns the key that was added first.
    fn take(&mut self) -> Option<AwaitedKey> {
        let key = self.order.pop_front()?;
        self.queued.remove(&key);
        Some(Arc::unwrap_or_clone(key))
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// The before-images of all slots, and the progress of the snapshot.
pub struct BeforeImages {
    /// The cursor of each part.
    cursors: [AtomicU64; PARTS],
    /// For each current database, its number at the snapshot's moment.
    origins: Box<[AtomicU32]>,
    /// For each database of the snapshot, its current number.
    current_numbers: Box<[AtomicU32]>,
    /// Allocated for the first snapshot.
    slots: OnceLock<Box<[Mutex<BeforeImagesOfSlot>]>>,
    urgent: Mutex<UrgentKeys>,
    has_urgent: AtomicBool,
    kept_bytes: AtomicU64,
    /// The number of bytes kept at the moment, including values that only a handle keeps alive.
    held_bytes: Arc<AtomicU64>,
}

impl BeforeImages {
    /// Creates an empty store for `databases` databases.
    pub fn new(databases: usize) -> Self {
        let none = || {
            DbIndex::all(databases)
                .map(|_| AtomicU32::new(NOT_IN_SNAPSHOT))
                .collect()
        };
        BeforeImages {
            cursors: [const { AtomicU64::new(END_OF_SNAPSHOT) }; PARTS],
            origins: none(),
            current_numbers: none(),
            slots: OnceLock::new(),
            urgent: Mutex::default(),
            has_urgent: AtomicBool::new(false),
            kept_bytes: AtomicU64::new(0),
            held_bytes: Arc::default(),
        }
    }

    // ---- for writers -----------------------------------------------------------------------------------------------
    /// Stores the before-image of a key in a marked slot, if the key is not saved yet. The caller holds the slot's
    /// write lease and has not changed the key yet.
    #[cold]
    pub fn keep_before_image(&self, db: DbIndex, key: NamedKey<'_>, table: &SlotTable) {
        let Some(database) = self.unsaved_database(db, key.slot.index(), key.hash) else {
            return;
        };
        let mut images = self.lock(key.slot.index());
        // The check is repeated because the end of a snapshot takes this lock, too.
        if self.unsaved_database(db, key.slot.index(), key.hash).is_none() {
            return;
        }
        let images = images.of_mut(database);
        if !images.contains(key.hash, key.name) {
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

    /// The approximate number of bytes kept for a snapshot at the moment. Evicting keys because of these bytes would
    /// increase them.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// The number of bytes kept for the snapshot that is being written, including those that were freed since. Of a
    /// large value only the handle counts.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Returns `true` if a large value in a marked slot must be saved before it may be changed in place. It is queued
    /// for saving then.
    #[cold]
    pub fn must_save_first(&self, db: DbIndex, key: NamedKey<'_>, entry: EntryRef<'_, Value>) -> bool {
        let Some(database) = self.unsaved_database(db, key.slot.index(), key.hash) else {
            return false;
        };
        if let Some(images) = self.lock(key.slot.index()).of(database) {
            let is_settled = images.done.find(key.hash, key.name).is_some();
            // The value may have been replaced since its image was stored. Then no handle shares it.
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
        if self.urgent.lock().add(key) {
            self.has_urgent.store(true, Ordering::Release);
        }
        true
    }

    /// Takes over the table of a slot of database `db`, which is being emptied. Returns the table if it is saved
    /// already or is not part of a snapshot.
    pub fn take_over(&self, db: DbIndex, slot: usize, table: SlotTable) -> Option<SlotTable> {
        // The cursor may be in the middle of the slot.
        let Some(database) = self.unsaved_database_of_slot(db, slot) else {
            return Some(table);
        };
        let mut images = self.lock(slot);
        // The check is repeated because the end of a snapshot takes this lock, too. A table that is left behind would
        // be part of the next snapshot.
        if self.unsaved_database_of_slot(db, slot).is_none() {
            return Some(table);
        }
        let images = images.of_mut(database);
        assert!(
            images.rest_of_table.is_empty(),
            "the table of database {db} in slot {slot} is taken over once for a snapshot"
        );
        images.rest_of_table = table;
        None
    }

    /// Records that database `db` was emptied and its tables were taken over. Keys added from now on are not part of a
    /// snapshot.
    pub fn record_emptied(&self, db: DbIndex) {
        let database = self.origins[db.get()].swap(NOT_IN_SNAPSHOT, Ordering::Relaxed);
        if let Some(place) = self.current_numbers.get(database as usize) {
            let current = place.swap(NOT_IN_SNAPSHOT, Ordering::Relaxed);
            assert_eq!(
                current,
                db.get() as u32,
                "database {db} is database {database} of the snapshot, and the snapshot knows it by its number"
            );
        }
    }

    /// Records that two databases were swapped.
    pub fn record_swapped(&self, one: DbIndex, other: DbIndex) {
        let database = self.origins[one.get()].load(Ordering::Relaxed);
        let database = self.origins[other.get()].swap(database, Ordering::Relaxed);
        self.origins[one.get()].store(database, Ordering::Relaxed);
        for db in [one, other] {
            let database = self.origins[db.get()].load(Ordering::Relaxed);
            if let Some(place) = self.current_numbers.get(database as usize) {
                let before = place.swap(db.get() as u32, Ordering::Relaxed);
                assert!(
                    [one, other].contains(&DbIndex::new(before as usize)),
                    "a database of the snapshot was one of those that are swapped"
                );
            }
        }
    }

    /// Stops keeping before-images, because the snapshot is cancelled.
    pub fn cancel(&self) {
        for cursor in &self.cursors {
            cursor.store(END_OF_SNAPSHOT, Ordering::Release);
        }
    }

    /// The cursor of the part that a slot belongs to.
    fn cursor(&self, slot: usize) -> u64 {
        self.cursors[slot / PART_SLOTS].load(Ordering::Acquire)
    }

    /// The number that a database had at the snapshot's moment, if this key of it is not saved.
    fn unsaved_database(&self, db: DbIndex, slot: usize, hash: u64) -> Option<u32> {
        let database = self.origins[db.get()].load(Ordering::Relaxed);
        let is_unsaved = save_position(database, slot, scan_position(hash)) >= self.cursor(slot);
        (database != NOT_IN_SNAPSHOT && is_unsaved).then_some(database)
    }

    /// Like [`Self::unsaved_database`], for any key of the slot.
    fn unsaved_database_of_slot(&self, db: DbIndex, slot: usize) -> Option<u32> {
        let database = self.origins[db.get()].load(Ordering::Relaxed);
        let is_unsaved = save_position(database, slot + 1, 0) > self.cursor(slot);
        (database != NOT_IN_SNAPSHOT && is_unsaved).then_some(database)
    }

    fn lock(&self, slot: usize) -> MutexGuard<'_, BeforeImagesOfSlot> {
        self.slots()[slot].lock()
    }

    fn slots(&self) -> &[Mutex<BeforeImagesOfSlot>] {
        self.slots
            .get_or_init(|| (0..SLOTS).map(|_| Mutex::default()).collect())
    }

    // ---- for the snapshot's threads --------------------------------------------------------------------------------
    /// Marks the slots of the snapshot, so that writers check for unsaved keys: those in `only`, or all. Called before
    /// the snapshot's moment.
    pub fn prepare(&self, slots: &Slots, only: Option<&SlotSet>) {
        self.slots();
        for slot in SlotIndex::all().filter(|slot| only.is_none_or(|only| only.contains(*slot))) {
            slots.header(slot.index()).set_unsaved(true);
        }
    }

    /// Starts the snapshot. From this moment on, the state of everything in these databases is kept until it is saved.
    pub fn begin(&self, _alone: &Exclusive<'_>, databases: &[DbIndex]) {
        assert!(
            self.cursors
                .iter()
                .all(|cursor| cursor.load(Ordering::Acquire) == END_OF_SNAPSHOT),
            "a snapshot begins after the one before has ended"
        );
        assert_eq!(self.held_bytes(), 0, "a snapshot begins without before-images");
        debug_assert!(
            self.slots().iter().all(|images| images.lock().0.is_empty()),
            "a snapshot begins without before-images"
        );
        // A writer that met the end of the last snapshot may have queued a key after the queue was cleared.
        *self.urgent.lock() = UrgentKeys::default();
        self.has_urgent.store(false, Ordering::Relaxed);
        for number in self.origins.iter().chain(&*self.current_numbers) {
            number.store(NOT_IN_SNAPSHOT, Ordering::Relaxed);
        }
        for db in databases {
            self.origins[db.get()].store(db.get() as u32, Ordering::Relaxed);
            self.current_numbers[db.get()].store(db.get() as u32, Ordering::Relaxed);
        }
        self.kept_bytes.store(0, Ordering::Relaxed);
        for cursor in &self.cursors {
            cursor.store(0, Ordering::Release);
        }
    }

    /// Stores the record of a key that was saved at the snapshot's moment, before any other thread could change it.
    pub fn add_record_of_moment(&self, _alone: &Exclusive<'_>, db: DbIndex, key: NamedKey<'_>, record: Vec<u8>) {
        let mut images = self.lock(key.slot.index());
        let images = images.of_mut(db.get() as u32);
        images.mark_done(key.hash, key.name);
        self.kept_bytes.fetch_add(record.len() as u64, Ordering::Relaxed);
        images.weight.add(&self.held_bytes, record.len() as u64);
        images.records.push(record);
    }

    /// Ends the snapshot, whether it succeeded or failed.
    pub fn end(&self, slots: &Slots) {
        self.cancel();
        for slot in 0..SLOTS {
            slots.header(slot).set_unsaved(false);
            // Freed after the lock is released. The guard ends with this statement.
            let images = std::mem::take(&mut *self.lock(slot));
            drop(images);
        }
        let wanted = std::mem::take(&mut *self.urgent.lock());
        drop(wanted);
        self.has_urgent.store(false, Ordering::Relaxed);
        self.kept_bytes.store(0, Ordering::Relaxed);
        assert_eq!(self.held_bytes(), 0, "no before-image outlives its snapshot");
    }

    /// Removes and returns a key that has to be saved out of turn.
    pub fn next_urgent_key(&self) -> Option<AwaitedKey> {
        if !self.has_urgent.load(Ordering::Acquire) {
            return None;
        }
        let mut wanted = self.urgent.lock();
        let next = wanted.take();
        self.has_urgent.store(!wanted.is_empty(), Ordering::Relaxed);
        next
    }

    /// Passes a wanted key as it was at the snapshot's moment to `share`, under a lease of its slot. If `share` takes a
    /// handle, the key counts as saved from then on, and the walker of its slot waits for [`Self::add_record`]. Returns
    /// `None` if another thread is writing the slot.
    pub fn save_urgent_key<R>(
        &self,
        pass: &GatePassage<'_>,
        wanted: &AwaitedKey,
        share: impl FnOnce(SlotIndex, EntryRef<'_, Value>) -> Option<R>,
    ) -> Option<Option<R>> {
        let AwaitedKey {
            database,
            slot,
            hash,
            name,
        } = wanted;
        let lease = pass.read_spinning(slot.index())?;
        let place_now = save_position(*database, slot.index(), scan_position(*hash));
        if place_now < self.cursor(slot.index()) {
            return Some(None);
        }
        let mut guard = self.lock(slot.index());
        let images = guard.of_mut(*database);
        if images.done.find(*hash, name).is_some() {
            return Some(None);
        }
        let table = self.current_table(*database, &lease);
        let image = images.before.find(*hash, name);
        let entry = image.or_else(|| table.and_then(|table| table.find(*hash, name)));
        let shared = entry.and_then(|entry| share(*slot, entry));
        let mut removed = None;
        if shared.is_some() {
            removed = images.before.remove(*hash, name);
            images.mark_done(*hash, name);
            images.awaited_records += 1;
        }
        // The image is freed after the lock and the lease are released.
        drop(guard);
        drop(lease);
        drop(removed);
        Some(shared)
    }

    /// Adds the record of a wanted key, which is written together with its slot.
    pub fn add_record(&self, wanted: &AwaitedKey, record: Vec<u8>) {
        let mut images = self.lock(wanted.slot.index());
        let images = images.of_mut(wanted.database);
        assert!(
            images.done.find(wanted.hash, &wanted.name).is_some(),
            "a key that has a record counts as saved"
        );
        assert!(
            images.awaited_records > 0,
            "a key is saved out of turn before it has a record"
        );
        images.awaited_records -= 1;
        images.records.push(record);
    }

    /// The current table of a database of the snapshot, in a slot that the caller has leased.
    fn current_table<'s>(&self, database: u32, slot: &'s super::Slot) -> Option<&'s SlotTable> {
        match self.current_numbers[database as usize].load(Ordering::Relaxed) {
            NOT_IN_SNAPSHOT => None,
            db => slot.table(DbIndex::new(db as usize)),
        }
    }
}

/// The callbacks of a walker. Those under a lease must return quickly.
pub trait SnapshotVisitor {
    /// Receives a key, under a lease of its slot or when no other thread can reach it.
    fn visit_key(&mut self, slot: SlotIndex, entry: EntryRef<'_, Value>);
    /// Receives the record of a key that was saved out of turn.
    fn visit_record(&mut self, record: &[u8]);
}

/// The outcome of a step.
pub enum WalkerStep {
    /// There are more keys.
    More,
    /// The images of a slot that was passed. They are visited outside the pass.
    Images(Box<RemainingImages>),
    /// Another thread is writing the slot, or saves one of its keys out of turn.
    Contended,
    /// The part is saved.
    End,
}

/// Walks over one part of one database of a snapshot. The databases of a part are walked in ascending order of their
/// numbers.
pub struct SnapshotWalker<'w> {
    before_images: &'w BeforeImages,
    hasher: &'w KeyHasher,
    database: u32,
    slot: usize,
    /// The end of the part's slots.
    end_slot: usize,
    position: u32,
    /// `true` for the last database: slots are saved when the walker has passed them.
    is_last: bool,
}

/// The images of a slot that was passed. No other thread can reach them.
pub struct RemainingImages {
    slot: SlotIndex,
    images: DatabaseImages,
    /// The walker's position when the rest of the table was taken over.
    position: u32,
    /// Keeps the values pinned: images may share them with keys that the slot's mark no longer protects.
    _pin: Option<Pin>,
}

impl<'w> SnapshotWalker<'w> {
    /// Creates a walker at the start of part number `part` of a database.
    pub fn new(
        before_images: &'w BeforeImages,
        hasher: &'w KeyHasher,
        database: DbIndex,
        part: usize,
        is_last: bool,
    ) -> Self {
        assert!(part < PARTS, "there is a part {part}");
        SnapshotWalker {
            before_images,
            hasher,
            database: database.get() as u32,
            slot: part * PART_SLOTS,
            end_slot: (part + 1) * PART_SLOTS,
            position: 0,
            is_last,
        }
    }

    /// Visits the next keys. `lend` pins values of a slot.
    pub fn step(
        &mut self,
        pass: &GatePassage<'_>,
        pin: &dyn Fn(SlotIndex) -> Pin,
        visit: &mut dyn SnapshotVisitor,
    ) -> WalkerStep {
        let mut visited = 0;
        while self.slot < self.end_slot {
            match self.step_in_slot(pass, pin, visit, &mut visited) {
                None => return WalkerStep::Contended,
                Some(Some(left)) => return WalkerStep::Images(left),
                Some(None) if visited >= KEYS_PER_STEP || pass.gate_is_closing() => return WalkerStep::More,
                Some(None) => {}
            }
        }
        WalkerStep::End
    }

    /// Visits some keys of a slot. Returns `None` if the slot is being written, or a key is being saved out of turn. At
    /// the slot's end, returns the images that it has.
    fn step_in_slot(
        &mut self,
        pass: &GatePassage<'_>,
        lend: &dyn Fn(SlotIndex) -> Pin,
        visit: &mut dyn SnapshotVisitor,
        visited: &mut usize,
    ) -> Option<Option<Box<RemainingImages>>> {
        let (before_images, slot) = (self.before_images, self.slot);
        let header = pass.domain().header(slot);
        if !header.is_unsaved() {
            // The slot is not part of the snapshot: slots of the snapshot are unmarked when its last database is saved.
            self.move_to_next_slot();
            return Some(None);
        }
        let lease = if header.may_hold_any() {
            Some(pass.read_spinning(slot)?)
        } else {
            None
        };
        let mut all = before_images.lock(slot);
        if all.of(self.database).is_some_and(|images| images.awaited_records > 0) {
            return None;
        }
        let table = lease
            .as_deref()
            .and_then(|slot| before_images.current_table(self.database, slot));
        let images = all.of(self.database).filter(|images| images.has_keys());
        let next = table.and_then(|table| {
            table.scan(self.position, KEYS_PER_STEP, &mut |entry| {
                *visited += 1;
                if images.is_none_or(|images| !images.contains(self.hasher.hash(entry.key()), entry.key())) {
                    visit.visit_key(SlotIndex::from_index(slot), entry);
                }
            })
        });
        if let Some(position) = next {
            assert!(
                position > self.position,
                "the walk of a snapshot moves forward in slot {slot}"
            );
            self.position = position;
            self.move_cursor();
            return Some(None);
        }
        let left = all.take(self.database).map(|images| {
            let any_large = images.before.iter().any(|image| is_large(image.value()));
            Box::new(RemainingImages {
                _pin: any_large.then(|| lend(SlotIndex::from_index(slot))),
                slot: SlotIndex::from_index(slot),
                images,
                position: self.position,
            })
        });
        self.move_to_next_slot();
        if self.is_last {
            header.set_unsaved(false);
        }
        Some(left)
    }

    fn move_to_next_slot(&mut self) {
        self.slot += 1;
        self.position = 0;
        self.move_cursor();
    }

    /// Moves the part's cursor to the walker. If the snapshot was cancelled, it is already past the end and stays.
    fn move_cursor(&self) {
        let to = save_position(self.database, self.slot, self.position);
        let forward = |cursor| (cursor < to).then_some(to);
        let cursor = &self.before_images.cursors[(self.end_slot - 1) / PART_SLOTS];
        let _ = cursor.fetch_update(Ordering::AcqRel, Ordering::Acquire, forward);
    }

    /// Visits the images that a step returned.
    pub fn visit_images(&self, left: &RemainingImages, visit: &mut dyn SnapshotVisitor) {
        let images = &left.images;
        let mut position = Some(left.position);
        while let Some(from) = position {
            position = images.rest_of_table.scan(from, KEYS_PER_STEP, &mut |entry| {
                if !images.contains(self.hasher.hash(entry.key()), entry.key()) {
                    visit.visit_key(left.slot, entry);
                }
            });
        }
        images.before.iter().for_each(|entry| visit.visit_key(left.slot, entry));
        images.records.iter().for_each(|record| visit.visit_record(record));
    }
}

#[cfg(test)]
mod tests;

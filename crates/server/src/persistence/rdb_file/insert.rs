//! Decodes the keys of a batch and inserts them.

use std::ops::Range;

use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex};
use weft_os::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::Mutex;
use weft_rdb::EncodingLimits;
use weft_rdb::dump_payload::{self, RestoredValue};
use weft_rdb::strings::RdbReader;
use weft_sync::{SharedExclusive, SharedPassage};
use weft_table::ValueRef;
use weft_values::Value;

use super::batch::{Batch, KeyAttributes, RawKey};
use super::error::RdbFault;
use super::module_records::DecodedKey;
use super::source::decode_string;
use super::value_length::is_empty_value;
use crate::keyspace::access::value_due_ms;
use crate::keyspace::before_image::BeforeImages;
use crate::keyspace::clock::AccessClock;
use crate::keyspace::hash::KeyHasher;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::staging::KeyCountChanges;
use crate::keyspace::string_encoding::encode_string;
use crate::keyspace::{Slot, SlotHeader};

/// The maximum number of empty keys that are logged.
const EMPTY_KEYS_LOGGED: usize = 10;
/// The number of keys between the one whose slot is prefetched and the one that is inserted.
const SLOT_PREFETCH_KEYS: usize = 16;
/// The number of keys between the one whose bucket is prefetched and the one that is inserted.
const BUCKET_PREFETCH_KEYS: usize = 8;
/// The number of keys that a thread inserts without letting a pause begin.
const KEYS_PER_PASSAGE: usize = 128;
/// The number of keys per slot below which tables grow quickly enough without a reservation.
const MIN_RESERVED_KEYS: usize = 8;

/// The keyspace, shared by the loader threads.
pub(super) type SharedSlots<'a> = SharedExclusive<'a, SlotHeader, Slot>;

/// The slots that a loader thread may change.
pub(super) enum SlotAccess<'a> {
    /// Slots of the keyspace, under leases.
    Keyspace(&'a SharedSlots<'a>),
    /// Every n-th slot of a staging keyspace, where n is the number of loader threads.
    Staging(Vec<&'a mut Slot>, usize),
}

/// What all loader threads need to insert keys.
pub(super) struct InsertContext<'l> {
    /// The before-images of a running snapshot.
    pub before_images: &'l BeforeImages,
    /// Sets the access clock of new entries.
    pub clock: AccessClock,
    /// Keys that expired before this time are dropped, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// `true` if a key of the file replaces an existing one.
    pub should_replace: bool,
    /// `true` if the names of dropped keys are reported.
    pub reports_dropped_keys: bool,
    /// The limits of compact encodings.
    pub limits: EncodingLimits,
    /// The number of keys that the file states for each database.
    pub expected_keys: Vec<AtomicUsize>,
    /// What the threads have done.
    pub progress: LoadProgress,
}

/// What loader threads have done so far.
pub(super) struct LoadProgress {
    /// The offset of the first fault, or `u64::MAX`.
    fault_offset: AtomicU64,
    tally: Mutex<LoadTally>,
}

/// The offset, the database and the name of a key that was dropped.
pub(super) type DroppedKey = (u64, DbIndex, Vec<u8>);

/// The counts and findings of a part of a load.
#[derive(Default)]
pub(super) struct LoadTally {
    /// The number of keys loaded.
    pub keys: u64,
    /// The number of keys that had expired.
    pub expired: u64,
    /// The number of keys without elements.
    pub empty_keys: u64,
    /// The number of hashes all of whose fields had expired.
    pub expired_hashes: u64,
    /// The offsets and names of the first keys without elements.
    pub empty_names: Vec<(u64, Vec<u8>)>,
    /// The dropped keys that were not reported yet.
    pub dropped: Vec<DroppedKey>,
    /// The changes of the counts of each database that were not counted yet.
    pub changes: Vec<KeyCountChanges>,
    /// The first fault, and the offset at which the record with the fault ends.
    pub fault: Option<(u64, RdbFault)>,
}

impl LoadProgress {
    /// Creates the progress of a load into `databases` databases.
    pub fn new(databases: usize) -> LoadProgress {
        LoadProgress {
            fault_offset: AtomicU64::new(u64::MAX),
            tally: Mutex::new(LoadTally::new(databases)),
        }
    }

    /// Returns `true` if a key was found to be damaged.
    pub fn has_fault(&self) -> bool {
        self.fault_offset.load(Ordering::Relaxed) != u64::MAX
    }

    /// Takes the dropped keys and the changes of counts since the last call.
    pub fn take_changes(&self) -> (Vec<DroppedKey>, Vec<KeyCountChanges>) {
        let mut tally = self.tally.lock();
        let databases = tally.changes.len();
        let mut dropped = std::mem::take(&mut tally.dropped);
        dropped.sort_unstable_by_key(|(offset, ..)| *offset);
        (dropped, std::mem::replace(&mut tally.changes, vec![[0; 3]; databases]))
    }

    /// Returns the sums over the whole load.
    pub fn into_tally(self) -> LoadTally {
        self.tally.into_inner()
    }

    pub fn add(&self, part: LoadTally) {
        let mut sum = self.tally.lock();
        if let Some((offset, _)) = &part.fault {
            self.fault_offset.fetch_min(*offset, Ordering::Relaxed);
        }
        sum.add(part);
    }
}

impl LoadTally {
    /// Creates the counts of a part, for `databases` databases.
    pub fn new(databases: usize) -> LoadTally {
        LoadTally {
            changes: vec![[0; 3]; databases],
            ..LoadTally::default()
        }
    }

    fn add(&mut self, other: LoadTally) {
        self.keys += other.keys;
        self.expired += other.expired;
        self.empty_keys += other.empty_keys;
        self.expired_hashes += other.expired_hashes;
        self.dropped.extend(other.dropped);
        for (sum, change) in self.changes.iter_mut().zip(other.changes) {
            for (figure, change) in sum.iter_mut().zip(change) {
                *figure += change;
            }
        }
        if !other.empty_names.is_empty() {
            self.empty_names.extend(other.empty_names);
            self.empty_names.sort_unstable();
            self.empty_names.truncate(EMPTY_KEYS_LOGGED);
        }
        let is_first = |(offset, _): &(u64, RdbFault)| self.fault.as_ref().is_none_or(|(first, _)| offset < first);
        if other.fault.as_ref().is_some_and(is_first) {
            self.fault = other.fault;
        }
    }
}

/// Inserts the keys of one loader thread.
pub(super) struct KeyInserter<'a> {
    /// What all threads share.
    pub context: &'a InsertContext<'a>,
    /// The slots.
    pub access: SlotAccess<'a>,
}

impl KeyInserter<'_> {
    /// Inserts keys of a batch, up to the first fault that any thread has found.
    pub fn insert_keys(&mut self, batch: &Batch<'_>, keys: &[RawKey]) {
        let mut part = LoadTally::new(self.context.expected_keys.len());
        match &mut self.access {
            SlotAccess::Keyspace(shared) => {
                for first in (0..keys.len()).step_by(KEYS_PER_PASSAGE) {
                    let slots = LeasedSlots {
                        shared,
                        passage: shared.enter(),
                    };
                    let end = keys.len().min(first + KEYS_PER_PASSAGE);
                    self.context.insert_keys(slots, batch, keys, first..end, &mut part);
                }
            }
            SlotAccess::Staging(slots, threads) => {
                let slots = OwnedSlots {
                    slots,
                    threads: *threads,
                };
                self.context.insert_keys(slots, batch, keys, 0..keys.len(), &mut part);
            }
        }
        self.context.progress.add(part);
    }
}

/// Slots that keys are inserted into.
trait SlotSource {
    /// Prefetches a slot.
    fn prefetch_slot(&self, slot: usize);
    /// Prefetches the bucket for a key of a slot that was prefetched.
    fn prefetch_bucket(&self, slot: usize, key: &RawKey);
    /// Calls `change` with the slot, and with its header if the slot is part of the keyspace.
    fn change<R>(&mut self, slot: usize, change: impl FnOnce(Option<&SlotHeader>, &mut Slot) -> R) -> R;
}

struct LeasedSlots<'a> {
    shared: &'a SharedSlots<'a>,
    passage: SharedPassage<'a, SlotHeader, Slot>,
}

impl SlotSource for LeasedSlots<'_> {
    #[inline]
    fn prefetch_slot(&self, slot: usize) {
        self.shared.domain().prefetch(slot);
    }

    #[inline]
    fn prefetch_bucket(&self, slot: usize, key: &RawKey) {
        self.shared.domain().header(slot).hint.prefetch_bucket(key.hash);
    }

    #[inline]
    fn change<R>(&mut self, slot: usize, change: impl FnOnce(Option<&SlotHeader>, &mut Slot) -> R) -> R {
        let mut lease = self.passage.write(slot);
        let (header, slot) = lease.parts_mut();
        change(Some(header), slot)
    }
}

struct OwnedSlots<'a, 's> {
    slots: &'a mut Vec<&'s mut Slot>,
    threads: usize,
}

impl SlotSource for OwnedSlots<'_, '_> {
    #[inline]
    fn prefetch_slot(&self, slot: usize) {
        weft_sync::prefetch_read(&*self.slots[slot / self.threads]);
    }

    #[inline]
    fn prefetch_bucket(&self, slot: usize, key: &RawKey) {
        if let Some(table) = self.slots[slot / self.threads].table(key.db) {
            table.prefetch_hint().prefetch_bucket(key.hash);
        }
    }

    #[inline]
    fn change<R>(&mut self, slot: usize, change: impl FnOnce(Option<&SlotHeader>, &mut Slot) -> R) -> R {
        change(None, self.slots[slot / self.threads])
    }
}

impl InsertContext<'_> {
    /// Inserts the keys in `range`, unless a fault was found before them.
    fn insert_keys(
        &self,
        mut slots: impl SlotSource,
        batch: &Batch<'_>,
        keys: &[RawKey],
        range: Range<usize>,
        part: &mut LoadTally,
    ) {
        for index in range {
            if let Some(later) = keys.get(index + SLOT_PREFETCH_KEYS) {
                slots.prefetch_slot(KeyHasher::slot(later.hash));
            }
            if let Some(later) = keys.get(index + BUCKET_PREFETCH_KEYS) {
                slots.prefetch_bucket(KeyHasher::slot(later.hash), later);
            }
            let end_offset = batch.end_offset(&keys[index]);
            // This or another thread may have found a fault in an earlier key.
            if part.fault.is_some() || end_offset > self.progress.fault_offset.load(Ordering::Relaxed) {
                return;
            }
            if let Err(fault) = self.load_key(&mut slots, batch, &keys[index], part) {
                part.fault = Some((end_offset, fault));
                return;
            }
        }
    }

    fn load_key(
        &self,
        slots: &mut impl SlotSource,
        batch: &Batch<'_>,
        key: &RawKey,
        part: &mut LoadTally,
    ) -> Result<(), RdbFault> {
        let (name, body) = (decode_string(batch.name(key))?, batch.value(key));
        let Some(value) = dump_payload::parse_value(key.kind, &mut RdbReader::new(body), &self.limits) else {
            if !is_empty_value(key.kind, body) {
                return Err(RdbFault::damaged(format!(
                    "Integrity check of a value of type {} failed.",
                    key.kind
                )));
            }
            if part.empty_names.len() < EMPTY_KEYS_LOGGED {
                part.empty_names.push((batch.end_offset(key), name.into_owned()));
            }
            part.empty_keys += 1;
            return Ok(());
        };
        let has_expired = |at_ms: i64| at_ms < self.now_ms as i64;
        if key.attributes.expire_at_ms.is_some_and(has_expired) {
            part.expired += 1;
        } else if has_only_expired_fields(&value, self.now_ms) {
            part.expired_hashes += 1;
        } else {
            let changes = slots.change(KeyHasher::slot(key.hash), |header, slot| {
                self.insert(header, slot, key, &name, value)
            })?;
            for (sum, change) in part.changes[key.db.get()].iter_mut().zip(changes) {
                *sum += change;
            }
            part.keys += 1;
            return Ok(());
        }
        if self.reports_dropped_keys {
            part.dropped.push((batch.end_offset(key), key.db, name.into_owned()));
        }
        Ok(())
    }

    /// Inserts a key whose value a module has decoded, unless it has expired. Returns `true` if it was inserted.
    pub fn insert_decoded(
        &self,
        header: Option<&SlotHeader>,
        slot: &mut Slot,
        decoded: DecodedKey,
        part: &mut LoadTally,
    ) -> Result<bool, RdbFault> {
        let DecodedKey { end_offset, key, value } = decoded;
        let has_expired = |at_ms: i64| at_ms < self.now_ms as i64;
        if key.attributes.expire_at_ms.is_some_and(has_expired) {
            part.expired += 1;
            if self.reports_dropped_keys {
                part.dropped.push((end_offset, key.db, key.name));
            }
            return Ok(false);
        }
        let raw = RawKey {
            kind: dump_payload::TYPE_MODULE,
            db: key.db,
            attributes: key.attributes,
            hash: key.hash,
            name_start: 0,
            value_start: 0,
            end: 0,
        };
        let value = RestoredValue::Object(Value::Module(value));
        let changes = self.insert(header, slot, &raw, &key.name, value)?;
        for (sum, change) in part.changes[key.db.get()].iter_mut().zip(changes) {
            *sum += change;
        }
        part.keys += 1;
        Ok(true)
    }

    /// Inserts a key into its slot. Returns the changes of the counts.
    fn insert(
        &self,
        header: Option<&SlotHeader>,
        slot: &mut Slot,
        key: &RawKey,
        name: &[u8],
        value: RestoredValue<'_>,
    ) -> Result<KeyCountChanges, RdbFault> {
        let (hash, db) = (key.hash, key.db);
        if header.is_some_and(SlotHeader::is_unsaved) {
            let slot_number = SlotIndex::from_index(KeyHasher::slot(hash));
            let named = NamedKey {
                name,
                hash,
                slot: slot_number,
            };
            self.before_images.keep_before_image(db, named, slot.table_mut(db));
        }
        let table = slot.table_mut(db);
        let (keys, expiring) = (table.len() as i64, table.with_expiry() as i64);
        let mut volatile = 0;
        if table.is_empty() {
            let keys = self.expected_keys[db.get()].load(Ordering::Relaxed) / SLOTS;
            if keys >= MIN_RESERVED_KEYS {
                table.reserve(keys);
            }
        } else if table.find(hash, name).is_some() {
            if !self.should_replace {
                return Err(RdbFault::Duplicate(db));
            }
            if let Some(removed) = table.remove(hash, name) {
                volatile -= i64::from(value_due_ms(removed.value()).is_some());
            }
        }
        let due_ms = match &value {
            RestoredValue::Object(object) => value_due_ms(ValueRef::Object(object)),
            _ => None,
        };
        let expire_at_ms = key.attributes.expire_at_ms.and_then(|at_ms| u64::try_from(at_ms).ok());
        let clock = self.clock_of(key.attributes);
        value.insert_with(encode_string, |value| {
            table.insert_new(hash, name, value, expire_at_ms, clock)
        });
        if let Some(due_ms) = due_ms
            && let Some(mut entry) = table.find_mut(hash, name)
        {
            entry.note_value_due(due_ms);
            volatile += 1;
        }
        let (keys, expiring) = (table.len() as i64 - keys, table.with_expiry() as i64 - expiring);
        debug_assert!(
            (0..=1).contains(&keys) && (-1..=1).contains(&expiring) && (-1..=1).contains(&volatile),
            "a loaded key is one key"
        );
        if db == DbIndex::FIRST
            && let Some(header) = header
        {
            // Prefetches of further keys need the address.
            table.publish(&header.hint);
        }
        Ok([keys, expiring, volatile])
    }

    fn clock_of(&self, attributes: KeyAttributes) -> u32 {
        match attributes {
            KeyAttributes {
                frequency: Some(uses), ..
            } if self.clock.is_lfu => self.clock.with_frequency(uses),
            KeyAttributes {
                idle_s: Some(idle_s), ..
            } if !self.clock.is_lfu => self.clock.with_idle(idle_s),
            _ => self.clock.for_new_entry(),
        }
    }
}

/// Returns `true` if the value is a hash all of whose fields have expired.
///
/// Other hashes keep their expired fields. Replicas that continue from the file's replication offset still have these
/// fields. They receive the deletions when the fields are deleted here.
fn has_only_expired_fields(value: &RestoredValue<'_>, now_ms: u64) -> bool {
    match value {
        RestoredValue::Object(Value::Hash(hash)) => {
            hash.has_expired_fields(now_ms) && hash.iter(now_ms).next().is_none()
        }
        _ => false,
    }
}

//! Selects keys for eviction and deletes them.
//!
//! The algorithm is Valkey's: a few keys are sampled, the best candidates of this sample and of earlier ones are kept
//! in a pool, and the best of these is evicted. Each thread has its own pool. Threads that evict at the same time
//! conflict only if they select the same slot, and then take another key.
//!
//! ```text
//!   from a random slot ─▶ read lease, a few keys ─▶ pool (16, best last) ─▶ write lease of its slot ─▶ deleted
//!                         by try: busy slots are skipped                     by try, too
//! ```
//!
//! Nothing here waits, and nothing reads more than the headers of all slots. A selected key may have been used, changed
//! or deleted since it was sampled. A key that no longer exists is skipped.
//!
//! Slots that a running snapshot has not saved yet are skipped as long as other slots have keys: the before-image of a
//! key deleted there would have to be kept, which frees no memory. Keys that MIGRATE is moving stay, and so do those of
//! slots that are being imported.

use std::ops::Deref;

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::EntryRef;
use weft_values::Value;

use super::access::{TableCounts, value_due_ms};
use super::clock::AccessClock;
use super::effects::{Effects, Hooks, RemovalCause};
use super::expiry::{OnExpired, queue_blocked_clients_of_slot};
use super::key_identity::NamedKey;
use super::module_values::note_unlinked;
use super::{Exclusive, GatePassage, Keyspace, ReadLease, Slot, SlotHeader, SlotTable, WriteLease, publish_header};
use crate::notify::keyspace_event::KeyspaceEvent;
use weft_base::slots::SLOTS;

/// The number of candidates in a thread's pool.
const POOL_SIZE: usize = 16;
/// The number of consecutive busy slots after which sampling ends without a key.
const MAX_BUSY_SLOTS: usize = 64;

/// The criterion by which keys are selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionOrder {
    /// At random.
    #[default]
    Random,
    /// The least recently used key.
    Lru,
    /// The least frequently used key.
    Lfu,
    /// The key with the earliest expiry.
    Ttl,
}

/// A value of `maxmemory-policy` except `noeviction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// The criterion.
    pub order: EvictionOrder,
    /// `true` if only keys with an expiry are evicted.
    pub is_volatile_only: bool,
}

impl EvictionPolicy {
    /// The policy with this name; `None` for `noeviction`.
    pub fn from_name(name: &str) -> Option<EvictionPolicy> {
        let (keys, order) = name.split_once('-')?;
        let order = match order {
            "lru" => EvictionOrder::Lru,
            "lfu" => EvictionOrder::Lfu,
            "ttl" => EvictionOrder::Ttl,
            _ => EvictionOrder::Random,
        };
        Some(EvictionPolicy {
            order,
            is_volatile_only: keys == "volatile",
        })
    }

    /// Returns the score of a key; the highest is evicted first.
    fn score(self, entry: EntryRef<'_, Value>, clock: &AccessClock) -> u64 {
        match self.order {
            EvictionOrder::Random => 0,
            EvictionOrder::Lru => clock.idle_s(entry.clock()),
            EvictionOrder::Lfu => 255 - u64::from(clock.frequency(entry.clock())),
            EvictionOrder::Ttl => u64::MAX - entry.expire_at_ms().unwrap_or(u64::MAX),
        }
    }
}

/// A key that may be evicted.
#[derive(Debug)]
struct EvictionCandidate {
    score: u64,
    db: DbIndex,
    slot: SlotIndex,
    hash: u64,
    name: Box<[u8]>,
}

/// The eviction pool of one thread.
#[derive(Debug, Default)]
pub struct EvictionPool {
    policy: EvictionPolicy,
    /// Candidates in ascending order of score.
    pool: Vec<EvictionCandidate>,
    next_db: usize,
}

/// The result of an attempt to evict a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionAttempt {
    /// A key was evicted.
    Evicted,
    /// There may be keys to evict, but their slots are in use.
    Busy,
    /// There is no key that may be evicted.
    NoCandidate,
}

/// The access of a thread that evicts keys.
pub enum EvictionAccess<'a, 'p> {
    /// A passage of the gate. The thread holds no lease.
    Passage(&'a GatePassage<'p>),
    /// Exclusive mode. The caller ends the unit of each key.
    Exclusive(&'a mut Exclusive<'p>),
}

/// A slot whose keys can be read.
enum ReadableSlot<'l> {
    Leased(ReadLease<'l>),
    Owned(&'l Slot),
}

impl Deref for ReadableSlot<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        match self {
            ReadableSlot::Leased(lease) => lease,
            ReadableSlot::Owned(slot) => slot,
        }
    }
}

/// A slot whose keys can be deleted.
enum WritableSlot<'l> {
    Leased(WriteLease<'l>),
    Owned(&'l SlotHeader, &'l mut Slot),
}

impl WritableSlot<'_> {
    fn parts_mut(&mut self) -> (&SlotHeader, &mut Slot) {
        match self {
            WritableSlot::Leased(lease) => lease.parts_mut(),
            WritableSlot::Owned(header, slot) => (header, slot),
        }
    }
}

impl EvictionAccess<'_, '_> {
    fn try_read(&self, slot: usize) -> Option<ReadableSlot<'_>> {
        match self {
            EvictionAccess::Passage(pass) => pass.try_read(slot).map(ReadableSlot::Leased),
            EvictionAccess::Exclusive(all) => Some(ReadableSlot::Owned(all.cell(slot))),
        }
    }

    fn try_write(&mut self, slot: usize) -> Option<WritableSlot<'_>> {
        match self {
            EvictionAccess::Passage(pass) => pass.try_write(slot).map(WritableSlot::Leased),
            EvictionAccess::Exclusive(all) => {
                let (header, slot) = all.parts_mut(slot);
                Some(WritableSlot::Owned(header, slot))
            }
        }
    }

    /// Returns `true` if another thread waits for exclusive mode.
    pub fn gate_is_closing(&self) -> bool {
        match self {
            EvictionAccess::Passage(pass) => pass.gate_is_closing(),
            EvictionAccess::Exclusive(_) => false,
        }
    }
}

/// The parameters of an eviction.
pub struct EvictionContext<'a> {
    /// The keys.
    pub keyspace: &'a Keyspace,
    /// The thread's row of the counters.
    pub thread_index: ThreadIndex,
    /// The access clock.
    pub clock: AccessClock,
    /// The number of keys to compare.
    pub samples: usize,
    /// `true` if values are freed in the background. The log then gets UNLINK instead of DEL.
    pub is_lazy: bool,
}

impl EvictionPool {
    /// Deletes the best candidate of a few sampled keys. Its memory is passed to the effects.
    pub fn evict(
        &mut self,
        policy: EvictionPolicy,
        context: &EvictionContext<'_>,
        access: &mut EvictionAccess<'_, '_>,
        effects: &mut Effects,
        notify: OnExpired<'_>,
    ) -> EvictionAttempt {
        if self.policy != policy {
            self.pool.clear();
            self.policy = policy;
        }
        if !has_candidates(policy, context.keyspace) {
            self.pool.clear();
            return EvictionAttempt::NoCandidate;
        }
        if policy.order == EvictionOrder::Random {
            self.pool.clear();
        }
        for only_saved in [true, false] {
            let any_slot_serves = self.sample_slots(context, access, only_saved);
            if !only_saved && !any_slot_serves {
                // All keys that count are being imported, and no client can access them.
                self.pool.clear();
                return EvictionAttempt::NoCandidate;
            }
            while let Some(candidate) = self.pool.pop() {
                if evict_candidate(&candidate, policy, context, access, effects, notify) {
                    return EvictionAttempt::Evicted;
                }
            }
        }
        EvictionAttempt::Busy
    }

    /// Samples a few keys, starting at a random slot. Returns `true` if there is a slot from which keys may be evicted,
    /// even if it is busy.
    fn sample_slots(
        &mut self,
        context: &EvictionContext<'_>,
        access: &EvictionAccess<'_, '_>,
        only_saved: bool,
    ) -> bool {
        let slots = &context.keyspace.slots;
        let start = fastrand::usize(..SLOTS);
        let wanted = match self.policy.order {
            EvictionOrder::Random => 1,
            _ => context.samples,
        };
        let (mut found, mut busy, mut any_slot_serves) = (0, 0, false);
        for slot in (start..SLOTS).chain(0..start) {
            let header = slots.header(slot);
            let may_serve = match self.policy.is_volatile_only {
                true => header.hint.due_ms().is_some(),
                false => header.may_hold_any(),
            };
            if !may_serve || (only_saved && header.is_unsaved()) || header.is_importing() {
                continue;
            }
            let Some(lease) = access.try_read(slot) else {
                any_slot_serves = true;
                busy += 1;
                if busy == MAX_BUSY_SLOTS {
                    return true;
                }
                continue;
            };
            let databases = lease.databases();
            self.next_db = (self.next_db + 1) % databases;
            for turn in 0..databases {
                let db = DbIndex::new((self.next_db + turn) % databases);
                if let Some(table) = lease.table(db) {
                    // The header may still have the due time of a key that was evicted.
                    any_slot_serves |= match self.policy.is_volatile_only {
                        true => table.with_expiry() > 0,
                        false => !table.is_empty(),
                    };
                    found += self.sample_table(table, db, slot, wanted, context);
                }
                if found >= wanted && self.policy.order == EvictionOrder::Random {
                    return true;
                }
            }
            if found >= wanted {
                return true;
            }
        }
        any_slot_serves
    }

    /// Samples a few keys of one table. Returns the number of keys sampled.
    fn sample_table(
        &mut self,
        table: &SlotTable,
        db: DbIndex,
        slot: usize,
        wanted: usize,
        context: &EvictionContext<'_>,
    ) -> usize {
        let policy = self.policy;
        table.sample(fastrand::u64(..), wanted, policy.is_volatile_only, &mut |entry| {
            let score = policy.score(entry, &context.clock);
            self.add_candidate(score, || EvictionCandidate {
                score,
                db,
                slot: SlotIndex::from_index(slot),
                hash: context.keyspace.hasher.hash(entry.key()),
                name: entry.key().into(),
            });
        })
    }

    /// Adds a key to the pool if the pool is not full or the key is better than the worst one there.
    fn add_candidate(&mut self, score: u64, candidate: impl FnOnce() -> EvictionCandidate) {
        let place = self.pool.partition_point(|other| other.score < score);
        if self.pool.len() < POOL_SIZE {
            self.pool.insert(place, candidate());
        } else if place > 0 {
            self.pool.remove(0);
            self.pool.insert(place - 1, candidate());
        }
    }
}

/// Returns `true` if any key may be evicted.
fn has_candidates(policy: EvictionPolicy, keyspace: &Keyspace) -> bool {
    let counts = &keyspace.counts;
    DbIndex::all(counts.databases()).any(|db| match policy.is_volatile_only {
        true => counts.with_expiry(db) > 0,
        false => counts.keys(db) > 0,
    })
}

/// Deletes a key and records the deletion. Returns `true` if it existed and could be deleted.
fn evict_candidate(
    candidate: &EvictionCandidate,
    policy: EvictionPolicy,
    context: &EvictionContext<'_>,
    access: &mut EvictionAccess<'_, '_>,
    effects: &mut Effects,
    notify: OnExpired<'_>,
) -> bool {
    let EvictionCandidate {
        db, slot, hash, name, ..
    } = candidate;
    let (db, slot, hash) = (*db, *slot, *hash);
    let keyspace = context.keyspace;
    let is_unit = matches!(access, EvictionAccess::Passage(_));
    let Some(mut lease) = access.try_write(slot.index()) else {
        return false;
    };
    effects.hooks = keyspace.hooks.current();
    let (header, data) = lease.parts_mut();
    if header.is_importing() {
        return false;
    }
    if header.has_pinned_values() && keyspace.pinned.is_frozen(slot, db, name) {
        return false;
    }
    if db.get() >= data.databases() {
        return false;
    }
    let table = data.table_mut(db);
    let before = TableCounts::of_table(table);
    let serves = |entry: EntryRef<'_, Value>| !policy.is_volatile_only || entry.expire_at_ms().is_some();
    if !table.find(hash, name).is_some_and(serves) {
        return false;
    }
    if header.is_unsaved() {
        keyspace
            .before_images
            .keep_before_image(db, NamedKey { name, hash, slot }, table);
    }
    let Some(removed) = table.remove(hash, name) else {
        return false;
    };
    note_unlinked(removed.value(), db, name);
    let key = NamedKey { name, hash, slot };
    effects.note_removed_key(db, key, removed.as_ref(), RemovalCause::Eviction.removal(), false);
    let after = TableCounts::of_table(table);
    let counts = &keyspace.counts;
    counts.add_volatile(
        context.thread_index,
        db,
        -i64::from(value_due_ms(removed.value()).is_some()),
    );
    counts.add_difference(context.thread_index, db, before, after);
    if !effects.hooks.is_empty() {
        record_eviction(effects, db, name, context.is_lazy);
    }
    if is_unit {
        effects.log_writer.commit();
        notify(effects);
    }
    publish_header(header, data);
    if let Some(watching) = data.watching() {
        watching.mark_key(db, name, false);
    }
    queue_blocked_clients_of_slot(keyspace, data, slot, effects);
    if db != DbIndex::FIRST && after.keys == 0 {
        // With few keys per slot, the empty tables take more memory than the key itself.
        data.shrink_tables();
    }
    drop(lease);
    effects.discard_removed(removed, RemovalCause::Eviction);
    true
}

/// Records the deletion for the log and for the hooks that are on.
#[cold]
fn record_eviction(effects: &mut Effects, db: DbIndex, name: &[u8], lazy: bool) {
    if effects.is_logging() {
        let word: &[u8] = if lazy { b"UNLINK" } else { b"DEL" };
        effects.log_also(db, &[word, name]);
    }
    if effects.hooks.intersects(Hooks::EVENTS) {
        effects.record_event(db, name, KeyspaceEvent::EVICTED);
    }
    if effects.hooks.intersects(Hooks::TRACKING) {
        effects.record_invalidation(db, name);
    }
}

#[cfg(test)]
mod tests;

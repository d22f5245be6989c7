//! The keyspace: 16384 slots, each with one table per database, shared by all workers under leases.
//!
//! A slot is the unit of leasing. Its header can be read without a lease and holds what prefetching and the active
//! expiry cycle need. Its data can be reached only through a lease or in exclusive mode.

pub mod access;
pub mod before_image;
pub mod big_key_scan;
pub mod clock;
pub mod compact;
pub mod defragmentation;
pub mod effects;
pub mod encoding_limits;
pub mod eviction;
pub mod expiry;
pub mod flush;
pub mod hash;
pub mod key_filter;
pub mod key_identity;
pub mod lazyfree;
pub mod module_values;
pub mod pinned;
pub mod prefetch_policy;
pub mod ready_keys;
pub mod removed_keys;
pub mod scratch_keyspace;
pub mod slot_drop;
pub mod staging;
pub mod string_encoding;
pub mod undo;
pub mod undo_changes;
pub mod walk;
pub mod writable_replica_keys;

use std::sync::Arc;
use std::time::Duration;

use weft_base::DbIndex;
use weft_base::slots::SLOTS;
use weft_sync::Domain;
use weft_table::{Hint, Table};
use weft_values::Value;

use self::key_filter::KeyFilter;
use crate::clients_waiting::blocking::SlotWaiters;
use crate::clients_waiting::watch::SlotWatches;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

/// The interval between two attempts of a temporary thread to join the keyspace.
const JOIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The table of one slot and database.
pub type SlotTable = Table<Value>;
/// The leased slots of the whole keyspace.
pub type Slots = Domain<SlotHeader, Slot>;
/// A thread's registration at the gate of the keyspace.
pub type Seat = weft_sync::ThreadSeat<SlotHeader, Slot>;
/// A passage of the gate, for one batch.
pub type GatePassage<'a> = weft_sync::GatePassage<'a, SlotHeader, Slot>;
/// A read lease of one slot.
pub type ReadLease<'a> = weft_sync::ReadLease<'a, SlotHeader, Slot>;
/// A writer's lease of one slot.
pub type WriteLease<'a> = weft_sync::WriteLease<'a, SlotHeader, Slot>;
/// Exclusive ownership of every slot.
pub type Exclusive<'a> = weft_sync::Exclusive<'a, SlotHeader, Slot>;

/// Leases every slot for good: once the gate is open, no command accesses a key any more. Called when the process ends,
/// with data that no client may see.
pub fn lease_all_for_good(all: &mut Exclusive<'_>) {
    let shared = all.share();
    let passage = shared.enter();
    for slot in 0..SLOTS {
        // A slot that cannot be leased has such a lease already.
        std::mem::forget(passage.try_write(slot));
    }
}

/// The part of a slot that can be read without a lease.
pub struct SlotHeader {
    /// The address of database 0's buckets, for prefetching, and the time at which the next key of any database is due.
    ///
    /// Its mark bits record which databases have keys here, one bit per database. The last of these bits stands for all
    /// databases from there on. A walk over the keyspace skips empty slots without taking a lease. Three more bits
    /// record that values of the slot are pinned (see [`pinned`]), that a running snapshot has not saved the slot yet
    /// (see [`before_image`]), and that the slot is being imported: its keys are hidden until this node owns it.
    pub hint: Hint,
}

impl SlotHeader {
    fn new() -> Self {
        SlotHeader { hint: Hint::new() }
    }

    /// Returns `true` if database `db` may have keys here. `false` is certain.
    #[inline]
    pub fn may_hold(&self, db: DbIndex) -> bool {
        self.hint.marks.load(Ordering::Acquire) & database_bit(db) != 0
    }

    /// Returns `true` if any database may have keys here. `false` is certain.
    #[inline]
    pub fn may_hold_any(&self) -> bool {
        self.hint.marks.load(Ordering::Acquire) & OCCUPIED != 0
    }

    /// Records whether database `db` has keys here. The caller holds the slot's write lease.
    #[inline]
    pub fn mark_database(&self, db: DbIndex, occupied: bool) {
        let bit = database_bit(db);
        // Other databases may share the last bit. `publish` recomputes it.
        if occupied || bit != LAST_BIT {
            self.set_occupied(if occupied { bit } else { 0 }, bit);
        }
    }

    /// Sets the mark bits among `which` to their value in `occupied`. The other two marks may change concurrently.
    #[inline]
    fn set_occupied(&self, occupied: u16, which: u16) {
        let wrong = (self.hint.marks.load(Ordering::Relaxed) ^ occupied) & which;
        if wrong != 0 {
            self.hint.marks.fetch_xor(wrong, Ordering::Release);
        }
    }

    /// Returns `true` if values of the slot are pinned. The holder of the slot's write lease may rely on `false`.
    #[inline]
    pub fn has_pinned_values(&self) -> bool {
        self.hint.marks.load(Ordering::Relaxed) & PINNED != 0
    }

    /// Sets or clears the mark for pinned values.
    fn set_pinned(&self, is_pinned: bool) {
        self.set_mark(PINNED, is_pinned);
    }

    /// Returns `true` if a running snapshot has not saved the slot yet. The holder of the slot's write lease may rely
    /// on `false`.
    #[inline]
    pub fn is_unsaved(&self) -> bool {
        self.hint.marks.load(Ordering::Relaxed) & UNSAVED != 0
    }

    /// Returns `true` if some large values of the slot may not be changed at once, because they are pinned or must be
    /// saved first. The holder of the slot's write lease may rely on `false`.
    #[inline]
    pub fn has_pinned_or_unsaved_values(&self) -> bool {
        self.hint.marks.load(Ordering::Relaxed) & (PINNED | UNSAVED) != 0
    }

    fn set_unsaved(&self, unsaved: bool) {
        self.set_mark(UNSAVED, unsaved);
    }

    /// Returns `true` if the slot is being imported by an atomic slot migration. Its keys are neither shown nor expired
    /// nor evicted.
    #[inline]
    pub fn is_importing(&self) -> bool {
        self.hint.marks.load(Ordering::Acquire) & IMPORTING != 0
    }

    /// Sets or clears the mark for an import.
    pub fn set_importing(&self, is_importing: bool) {
        self.set_mark(IMPORTING, is_importing);
    }

    /// Returns `true` if database `db` may have keys here that clients may see.
    #[inline]
    pub fn may_show(&self, db: DbIndex) -> bool {
        self.hint.marks.load(Ordering::Acquire) & (database_bit(db) | IMPORTING) == database_bit(db)
    }

    fn set_mark(&self, mark: u16, on: bool) {
        if on {
            self.hint.marks.fetch_or(mark, Ordering::Relaxed);
        } else {
            self.hint.marks.fetch_and(!mark, Ordering::Release);
        }
    }
}

/// The number of databases with a bit of their own.
const DATABASES_WITH_BIT: usize = 12;
/// The bit shared by the other databases.
const LAST_BIT: u16 = 1 << DATABASES_WITH_BIT;
/// The bits that stand for databases.
const OCCUPIED: u16 = !(UNSAVED | PINNED | IMPORTING);
/// The bit that is set while the slot is being imported.
const IMPORTING: u16 = 1 << 13;
/// The bit that is set while a snapshot has not saved the slot yet.
const UNSAVED: u16 = 1 << 14;
/// The bit for pinned values.
const PINNED: u16 = 1 << 15;

#[inline]
const fn database_bit(db: DbIndex) -> u16 {
    let index = db.get();
    if index < DATABASES_WITH_BIT {
        1 << index
    } else {
        LAST_BIT
    }
}

/// The data of one slot: the table of database 0, and boxed data that few slots have.
pub struct Slot {
    first: SlotTable,
    /// Boxed, so that a slot's lease word, header and table share a cache line.
    extra: Option<Box<SlotExtension>>,
}

/// Data that few slots have: further databases, clients blocked on keys, and clients that watch keys.
#[derive(Default)]
struct SlotExtension {
    further_tables: Vec<SlotTable>,
    interested_clients: InterestedClients,
}

/// The clients that are affected by changes to keys of a slot.
#[derive(Default)]
pub struct InterestedClients {
    /// Filters the names of keys that a client waits for or watches.
    filter: KeyFilter,
    /// Clients blocked on keys of the slot.
    pub blocked: SlotWaiters,
    /// Clients that watch keys of the slot.
    pub watching: SlotWatches,
}

impl InterestedClients {
    #[inline]
    fn is_empty(&self) -> bool {
        self.blocked.is_empty() && self.watching.is_empty()
    }

    /// Updates the filter after a change of interest in a key with this hash.
    fn update_filter(&mut self, hash: u64) {
        let keys = self.blocked.len() + self.watching.len();
        if self.filter.record_change(hash, keys) {
            self.filter.rebuild(self.blocked.hashes().chain(self.watching.hashes()));
        }
    }
}

// A slot's lease word, number, hint and data are one cache line, so a lookup has one cold read for all of them.
const _: () = assert!(size_of::<SlotHeader>() == 16 && size_of::<Slot>() == 40);

impl Slot {
    const fn new() -> Self {
        Slot {
            first: Table::new(),
            extra: None,
        }
    }

    /// The table of database `db`; `None` if that database was never written to in this slot.
    #[inline]
    pub fn table(&self, db: DbIndex) -> Option<&SlotTable> {
        match db.get() {
            0 => Some(&self.first),
            index => self.extra.as_ref()?.further_tables.get(index - 1),
        }
    }

    /// The table of database `db`, created if it is missing.
    #[inline]
    pub fn table_mut(&mut self, db: DbIndex) -> &mut SlotTable {
        if db == DbIndex::FIRST {
            return &mut self.first;
        }
        &mut self.further_tables_mut(db)[db.get() - 1]
    }

    /// The tables of the databases above 0, extended to include database `db`.
    fn further_tables_mut(&mut self, db: DbIndex) -> &mut Vec<SlotTable> {
        let others = &mut self.extra.get_or_insert_default().further_tables;
        if others.len() < db.get() {
            others.resize_with(db.get(), Table::new);
        }
        others
    }

    /// Returns the table of database `db`, and the clients that wait for or watch keys of this slot if any of them may
    /// name a key of this hash.
    #[inline]
    pub fn table_and_interested_clients(
        &mut self,
        db: DbIndex,
        hash: u64,
    ) -> (&mut SlotTable, Option<&InterestedClients>) {
        if db != DbIndex::FIRST {
            self.further_tables_mut(db);
        }
        let Some(extra) = self.extra.as_deref_mut() else {
            return (&mut self.first, None);
        };
        let table = match db.get() {
            0 => &mut self.first,
            index => &mut extra.further_tables[index - 1],
        };
        (
            table,
            Some(&extra.interested_clients).filter(|interested| interested.filter.may_contain(hash)),
        )
    }

    /// Returns `true` if some client may watch or wait for the key with this hash.
    #[inline]
    pub fn has_interested_clients(&self, hash: u64) -> bool {
        let extra = self.extra.as_deref();
        extra.is_some_and(|extra| extra.interested_clients.filter.may_contain(hash))
    }

    /// The clients blocked on keys of this slot; `None` if there are none.
    #[inline]
    pub fn blocked(&self) -> Option<&SlotWaiters> {
        let extra = self.extra.as_deref()?;
        Some(&extra.interested_clients.blocked).filter(|waiting| !waiting.is_empty())
    }

    /// Changes the set of clients blocked on a key of this slot. `hash` is the hash of the key.
    pub fn change_blocked<R>(&mut self, hash: u64, change: impl FnOnce(&mut SlotWaiters) -> R) -> R {
        self.change_interested_clients(hash, |interested| change(&mut interested.blocked))
    }

    /// The keys of this slot that clients watch; `None` if there are none.
    #[inline]
    pub fn watching(&self) -> Option<&SlotWatches> {
        let extra = self.extra.as_deref()?;
        Some(&extra.interested_clients.watching).filter(|watching| !watching.is_empty())
    }

    /// Changes the set of clients that watch a key of this slot. `hash` is the hash of the key.
    pub fn change_watching<R>(&mut self, hash: u64, change: impl FnOnce(&mut SlotWatches) -> R) -> R {
        self.change_interested_clients(hash, |interested| change(&mut interested.watching))
    }

    fn change_interested_clients<R>(&mut self, hash: u64, change: impl FnOnce(&mut InterestedClients) -> R) -> R {
        let extra = self.extra.get_or_insert_default();
        let result = change(&mut extra.interested_clients);
        extra.interested_clients.update_filter(hash);
        if extra.interested_clients.is_empty() && extra.further_tables.is_empty() {
            self.extra = None;
        }
        result
    }

    /// Returns the number of databases with a table here.
    pub fn databases(&self) -> usize {
        1 + self.extra.as_ref().map_or(0, |extra| extra.further_tables.len())
    }

    /// Returns `true` if no database has keys here.
    pub fn is_empty(&self) -> bool {
        DbIndex::all(self.databases()).all(|db| self.table(db).is_none_or(Table::is_empty))
    }

    /// The earliest time at which a key of any database may expire (a lower bound).
    pub fn next_due_ms(&self) -> Option<u64> {
        DbIndex::all(self.databases())
            .filter_map(|db| self.table(db).and_then(Table::next_due_ms))
            .min()
    }

    /// Frees the tables of trailing databases that no longer have keys here.
    pub fn shrink_tables(&mut self) {
        let Some(extra) = &mut self.extra else {
            return;
        };
        let used = extra.further_tables.iter().rposition(|table| !table.is_empty());
        let used = used.map_or(0, |last| last + 1);
        if used < extra.further_tables.len() {
            extra.further_tables.truncate(used);
            extra.further_tables.shrink_to_fit();
        }
        if used == 0 && extra.interested_clients.is_empty() {
            self.extra = None;
        }
    }

    /// Removes and returns every key of database `db` in the slot.
    pub fn take_database(&mut self, db: DbIndex) -> SlotTable {
        if db.get() >= self.databases() {
            return Table::new();
        }
        self.table_mut(db).take()
    }

    /// Swaps the contents of two databases.
    pub fn swap_databases(&mut self, one: DbIndex, other: DbIndex) {
        if one == other {
            return;
        }
        let taken = self.take_database(one);
        let second = std::mem::replace(self.table_mut(other), taken);
        *self.table_mut(one) = second;
    }
}

/// Publishes the header's facts about the slot's data. Called after each change of the slot, under its lease.
#[inline]
pub fn publish_header(header: &SlotHeader, slot: &Slot) {
    slot.first.publish(&header.hint);
    let occupied = DbIndex::all(slot.databases())
        .filter(|db| slot.table(*db).is_some_and(|table| !table.is_empty()))
        .fold(0, |bits, db| bits | database_bit(db));
    header.set_occupied(occupied, OCCUPIED);
}

/// Recomputes the header's due time after many keys were removed at once.
pub fn publish_due_time(header: &SlotHeader, slot: &Slot) {
    header.hint.set_due(slot.next_due_ms());
}

/// The keyspace and the hash key that distributes keys over its slots.
pub struct Keyspace {
    /// The slots.
    pub slots: Arc<Slots>,
    /// The keyed hash function of this process.
    pub hasher: hash::KeyHasher,
    /// The numbers of keys and of keys with an expiry per database, striped by thread.
    pub counts: access::KeyCounts,
    /// The hooks that are set.
    pub hooks: effects::SharedHooks,
    /// Keys that a writable replica expires by itself.
    pub local_expiry: writable_replica_keys::LocalExpiries,
    /// The slots with pinned values.
    pub pinned: Arc<pinned::PinnedSlots>,
    /// The before-images for a snapshot.
    pub before_images: Arc<before_image::BeforeImages>,
}

impl Keyspace {
    /// Creates an empty keyspace for `databases` databases and at most `seats` threads.
    #[cfg(test)]
    pub fn new(databases: usize, seats: usize) -> Self {
        Keyspace::with_slots(databases, seats, hash::KeyHasher::from_os(false))
    }

    /// Like [`Self::new`], with the slots that `hasher` computes.
    pub fn with_slots(databases: usize, seats: usize, hasher: hash::KeyHasher) -> Self {
        Keyspace {
            slots: Arc::new(Domain::new(SLOTS, seats, |_| (SlotHeader::new(), Slot::new()))),
            hasher,
            counts: access::KeyCounts::new(seats, databases),
            hooks: effects::SharedHooks::default(),
            local_expiry: writable_replica_keys::LocalExpiries::default(),
            pinned: Arc::default(),
            before_images: Arc::new(before_image::BeforeImages::new(databases)),
        }
    }

    /// Joins the keyspace for a temporary thread. If no thread index is free, it waits until another temporary thread
    /// has ended, for at most `timeout`. The caller must not be inside the gate.
    pub fn join_within(&self, timeout: Duration) -> Option<Seat> {
        let since = Instant::now();
        loop {
            let seat = self.slots.join();
            if seat.is_some() || since.elapsed() >= timeout {
                return seat;
            }
            weft_os::thread::sleep(JOIN_RETRY_INTERVAL);
        }
    }
}

//! Access of command handlers to keys under the leases that the dispatcher took.
//!
//! A handler never sees a slot. It asks for the n-th key of its plan and gets either a view of the entry or a
//! [`KeyWrite`], which it closes with [`KeyWrite::changed`] after a change; a dropped [`KeyWrite`] means that nothing
//! changed. The dirty count and every hook (watch, event, blocked clients, tracking, propagation log) follow from that
//! one record: see [`super::effects`].

mod counts;
mod growing;
mod seen_expiry;
mod snapshot;
mod undeclared;
mod write;

pub use counts::{KeyCounts, TableCounts};
pub use growing::{ScriptLeases, WholeKeyspace};
pub use snapshot::{KeySnapshot, KeyUse, PrivateSlot, SnapshotAttempt, has_written, record_misses};
pub use undeclared::{Contended, FurtherLeases};
pub use write::{ExpiryUpdate, KeyWrite};

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_resp::Args;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use super::clock::AccessClock;
use super::effects::{Effects, Hooks};
use super::key_identity::{NamedKey, PlannedKey};
use super::prefetch_policy::PrefetchPolicy;
use super::{Exclusive, ReadLease, Slot, SlotHeader, WriteLease};
use crate::notify::keyspace_event::KeyspaceEvent;

/// One held lease.
pub enum Lease<'a> {
    /// A lease shared with other readers.
    Read(ReadLease<'a>),
    /// An exclusive lease.
    Write(WriteLease<'a>),
}

impl Lease<'_> {
    #[inline]
    fn slot(&self) -> &Slot {
        match self {
            Lease::Read(lease) => lease,
            Lease::Write(lease) => lease,
        }
    }

    /// Returns `true` if the slot is held for writing and some of its values are pinned, or must be saved before they
    /// change.
    #[inline]
    pub fn has_pinned_or_unsaved_values(&self) -> bool {
        match self {
            Lease::Read(_) => false,
            Lease::Write(lease) => lease.header().has_pinned_or_unsaved_values(),
        }
    }

    /// Returns the number of the slot.
    pub fn cell(&self) -> usize {
        match self {
            Lease::Read(lease) => lease.cell(),
            Lease::Write(lease) => lease.cell(),
        }
    }
}

/// A command with more keys than this prefetches keys itself while it iterates over them.
pub const PREFETCH_WINDOW_KEYS: usize = if cfg!(feature = "simulated") { 16 } else { 64 };
/// The distance in keys at which such a command prefetches values; entries are prefetched at twice the distance.
const PREFETCH_DISTANCE: usize = 12;

/// The leases that a command holds while it runs.
pub enum HeldLeases<'a, 'p> {
    /// No lease: the command has no keys.
    Nothing,
    /// The lease of the only slot.
    One(&'a mut Lease<'p>),
    /// The leases of several slots, in ascending order of slots.
    Many(&'a mut Vec<Lease<'p>>),
    /// The leases of a script, which adds leases while it runs.
    Script(&'a mut ScriptLeases<'p>),
    /// Every slot, in exclusive mode.
    Exclusive(&'a mut Exclusive<'p>),
    /// A private copy of the command's keys.
    Private(&'a mut PrivateSlot),
}

impl HeldLeases<'_, '_> {
    /// The slot of a key; `None` if it is not held.
    #[inline]
    pub fn slot(&self, key: &PlannedKey) -> Option<&Slot> {
        match self {
            HeldLeases::One(lease) => Some(lease.slot()),
            HeldLeases::Many(leases) => leases.get(key.lease as usize).map(Lease::slot),
            HeldLeases::Script(leases) => leases.lease_at(key.lease).map(Lease::slot),
            HeldLeases::Exclusive(all) => Some(all.cell(key.slot.index())),
            HeldLeases::Private(private) => Some(private.slot()),
            HeldLeases::Nothing => None,
        }
    }

    #[inline]
    fn slot_mut(&mut self, key: &PlannedKey) -> Option<(&SlotHeader, &mut Slot)> {
        match self {
            HeldLeases::One(Lease::Write(lease)) => Some(lease.parts_mut()),
            HeldLeases::Many(leases) => match leases.get_mut(key.lease as usize) {
                Some(Lease::Write(lease)) => Some(lease.parts_mut()),
                _ => None,
            },
            HeldLeases::Script(leases) => leases.writable_slot_at(key.lease),
            HeldLeases::Exclusive(all) => Some(all.parts_mut(key.slot.index())),
            HeldLeases::Private(private) => Some(private.parts_mut()),
            HeldLeases::One(Lease::Read(_)) | HeldLeases::Nothing => None,
        }
    }

    /// The slot if its write lease is held, even if no key of the command lies in it.
    pub fn writable_slot(&mut self, slot: SlotIndex) -> Option<(&SlotHeader, &mut Slot)> {
        let number = slot.index();
        match self {
            HeldLeases::One(Lease::Write(lease)) if lease.cell() == number => Some(lease.parts_mut()),
            HeldLeases::Many(leases) => {
                let at = leases.binary_search_by_key(&number, Lease::cell).ok()?;
                match leases.get_mut(at) {
                    Some(Lease::Write(lease)) => Some(lease.parts_mut()),
                    _ => None,
                }
            }
            HeldLeases::Script(leases) => leases.writable_slot(slot),
            HeldLeases::Exclusive(all) => Some(all.parts_mut(number)),
            HeldLeases::One(_) | HeldLeases::Private(_) | HeldLeases::Nothing => None,
        }
    }

    /// Returns `true` if the leases are those of the slots of these keys. A command without leases accesses no key.
    pub fn covers(&self, keys: &[PlannedKey]) -> bool {
        let is_lease_of =
            |lease: Option<&Lease<'_>>, key: &PlannedKey| lease.is_some_and(|lease| lease.cell() == key.slot.index());
        match self {
            HeldLeases::One(lease) => keys.iter().all(|key| is_lease_of(Some(lease), key)),
            HeldLeases::Many(leases) => keys.iter().all(|key| is_lease_of(leases.get(key.lease as usize), key)),
            HeldLeases::Script(leases) => keys.iter().all(|key| is_lease_of(leases.lease_at(key.lease), key)),
            HeldLeases::Exclusive(_) | HeldLeases::Private(_) | HeldLeases::Nothing => true,
        }
    }

    /// Returns `true` if every slot is held.
    pub fn holds_all_slots(&self) -> bool {
        match self {
            HeldLeases::Exclusive(_) => true,
            HeldLeases::Script(leases) => leases.holds_all_slots(),
            HeldLeases::Nothing | HeldLeases::One(_) | HeldLeases::Many(_) | HeldLeases::Private(_) => false,
        }
    }
}

impl<'p> HeldLeases<'_, 'p> {
    /// Borrows the leases for a shorter time.
    pub fn reborrow(&mut self) -> HeldLeases<'_, 'p> {
        match self {
            HeldLeases::Nothing => HeldLeases::Nothing,
            HeldLeases::One(lease) => HeldLeases::One(lease),
            HeldLeases::Many(leases) => HeldLeases::Many(leases),
            HeldLeases::Script(leases) => HeldLeases::Script(leases),
            HeldLeases::Exclusive(all) => HeldLeases::Exclusive(all),
            HeldLeases::Private(private) => HeldLeases::Private(private),
        }
    }

    /// The whole keyspace, for changes; `None` if some slot is not held.
    pub fn whole_keyspace<'h>(&'h mut self) -> Option<WholeKeyspace<'h, 'p>> {
        match self {
            HeldLeases::Exclusive(all) => Some(WholeKeyspace::Exclusive(all)),
            HeldLeases::Script(leases) if leases.holds_all_slots() => Some(WholeKeyspace::Leased(leases)),
            HeldLeases::Nothing
            | HeldLeases::One(_)
            | HeldLeases::Many(_)
            | HeldLeases::Script(_)
            | HeldLeases::Private(_) => None,
        }
    }
}

/// The time at which the first part of a value expires, in ms since the Unix epoch; `None` if no part of it expires.
#[inline]
pub fn value_due_ms(value: ValueRef<'_, Value>) -> Option<u64> {
    match value {
        ValueRef::Object(object) => object_due_ms(object),
        _ => None,
    }
}

#[inline]
fn object_due_ms(object: &Value) -> Option<u64> {
    match object {
        Value::Hash(hash) => hash.next_expiry_ms(),
        _ => None,
    }
}

/// The time and the client settings that access to keys depends on. They are fixed for one command.
#[derive(Clone, Copy)]
pub struct AccessContext<'a> {
    /// The time at which keys and fields expire, in milliseconds since the Unix epoch. It is 0, at which nothing has
    /// expired, for a server that decides about expiry itself: the primary, or the source of an import.
    pub now_ms: u64,
    /// The access clock that advances entries on use.
    pub clock: &'a AccessClock,
    /// The key counts to update.
    pub counts: &'a KeyCounts,
    /// The row of `counts` that belongs to this thread.
    pub thread_index: ThreadIndex,
    /// `true` if a read advances the entry's access clock (unset by CLIENT NO-TOUCH).
    pub should_touch: bool,
}

/// The keys of one command.
pub struct Keys<'a, 'p> {
    /// The command's arguments.
    pub args: Args<'a>,
    /// The keys, in the order of the key walker.
    pub planned: &'a [PlannedKey],
    /// The leases that are held.
    pub held: HeldLeases<'a, 'p>,
    /// The client's database.
    pub db: DbIndex,
    /// The time, the access clock and the counters.
    pub context: AccessContext<'a>,
    /// The record of the command's effects.
    pub effects: &'a mut Effects,
    /// The prefetch policy of its lookups. Set once the command is known to have many keys.
    pub prefetch_policy: Option<PrefetchPolicy>,
}

/// Returns `true` if an entry with this expiry has expired at `now_ms`.
#[inline]
pub fn is_expired(expire_at_ms: Option<u64>, now_ms: u64) -> bool {
    expire_at_ms.is_some_and(|at| now_ms > at)
}

/// Controls how a lookup for reading updates hit counts and the access clock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LookupStatistics {
    /// An ordinary read.
    Yes,
    /// The entry's access clock is not advanced (TYPE, TTL).
    No,
    /// No effect, and a missing key causes no event (OBJECT).
    NoEvent,
    /// As an ordinary read, regardless of CLIENT NO-TOUCH (TOUCH).
    Always,
}

impl<'a> Keys<'a, '_> {
    /// The number of keys.
    pub fn len(&self) -> usize {
        self.planned.len()
    }

    /// The name of the n-th key.
    #[inline]
    pub fn name(&self, index: usize) -> &'a [u8] {
        self.planned
            .get(index)
            .map_or(&[][..], |key| self.args.argument(key.argument as usize))
    }

    /// The n-th key's entry for reading; `None` if it is missing or expired.
    #[inline]
    pub fn read(&mut self, index: usize) -> Option<EntryRef<'_, Value>> {
        self.read_with(index, self.db, LookupStatistics::Yes)
    }

    /// The n-th key's entry in database `db` for reading.
    #[inline]
    pub fn read_with(&mut self, index: usize, db: DbIndex, touch: LookupStatistics) -> Option<EntryRef<'_, Value>> {
        let key = self.planned.get(index)?;
        let name = self.args.argument(key.argument as usize);
        let found = self
            .held
            .slot(key)
            .and_then(|slot| slot.table(db))
            .and_then(|table| table.find(key.hash, name));
        visible_entry(found, &self.context, self.effects, touch, db, key, name)
    }

    /// Returns the n-th key's entry again, without counting a use: the command has read it before, and that counted.
    #[inline]
    pub fn peek(&self, index: usize) -> Option<EntryRef<'_, Value>> {
        let entry = self.stored(index)?;
        (!is_expired(entry.expire_at_ms(), self.context.now_ms)).then_some(entry)
    }

    /// Prefetches the memory of keys after the n-th. It does so only for commands with so many keys that the batch did
    /// not prefetch them.
    #[inline]
    pub fn prefetch_ahead(&mut self, index: usize) {
        if self.planned.len() > PREFETCH_WINDOW_KEYS {
            self.prefetch_window(index);
        }
    }

    fn prefetch_window(&mut self, index: usize) {
        // Entries are prefetched two distances ahead, values one. At the start both windows are filled at once.
        let (near, far) = (PREFETCH_DISTANCE, 2 * PREFETCH_DISTANCE);
        let (entries, values) = if index == 0 {
            (0, 0)
        } else {
            (index + far - 1, index + near - 1)
        };
        let mut reach = self.prefetch_policy.take().unwrap_or_default();
        for number in entries..(index + far).min(self.planned.len()) {
            let key = &self.planned[number];
            if let Some(table) = self.held.slot(key).and_then(|slot| slot.table(self.db)) {
                table.entry_place(key.hash, reach.head()).prefetch();
            }
        }
        let values = if reach.needs_values() { values } else { usize::MAX };
        for number in values..(index + near).min(self.planned.len()) {
            let key = &self.planned[number];
            if let Some(table) = self.held.slot(key).and_then(|slot| slot.table(self.db)) {
                reach.value_location(table, key.hash).prefetch();
            }
        }
        self.prefetch_policy = Some(reach);
    }

    /// The n-th key for writing.
    #[inline]
    pub fn write(&mut self, index: usize) -> KeyWrite<'_> {
        self.write_in(index, self.db)
    }

    /// The n-th key of database `db` for writing. An expired entry is deleted first.
    #[inline]
    pub fn write_in(&mut self, index: usize, db: DbIndex) -> KeyWrite<'_> {
        let (named, header, slot) = open_for_write(&mut self.held, self.args, self.planned, index);
        KeyWrite::new(header, slot, named, db, &self.context, self.effects)
    }

    /// Counts a lookup of the n-th key as a miss if the key has expired and stays, because another server deletes what
    /// has expired (`keeps_expired`). Returns `true` if it did: a command that looks its key up as a reader before it
    /// writes then finds no key.
    pub fn misses_kept_key(&mut self, index: usize, keeps_expired: bool) -> bool {
        let misses = keeps_expired && self.has_expired(index);
        if misses {
            self.effects.misses += 1;
            if self.effects.hooks.intersects(Hooks::RECORDS_EVENTS) {
                self.effects
                    .record_event(self.db, self.name(index), KeyspaceEvent::MISSED);
            }
        }
        misses
    }

    /// The n-th key for writing, for a command that reads it first. Counts the lookup of the reader. If another server
    /// deletes what has expired (`keeps_expired`), the reader misses such a key before the writer deletes it.
    pub fn write_after_read(&mut self, index: usize, keeps_expired: bool) -> KeyWrite<'_> {
        match self.misses_kept_key(index, keeps_expired) {
            true => self.write(index),
            false => self.write(index).counted(),
        }
    }

    /// The n-th key for writing, with an entry that may have expired: the command deletes what is stored, and does not
    /// look it up before.
    pub fn write_stored(&mut self, index: usize) -> KeyWrite<'_> {
        let (named, header, slot) = open_for_write(&mut self.held, self.args, self.planned, index);
        KeyWrite::with_expired(header, slot, named, self.db, &self.context, self.effects)
    }

    /// The n-th key for storing the result of a command. If the result is empty, the command deletes the key without
    /// looking it up.
    pub fn write_destination(&mut self, index: usize, is_result_empty: bool) -> KeyWrite<'_> {
        match is_result_empty {
            true => self.write_stored(index),
            false => self.write(index),
        }
    }

    /// The n-th key's entry even if it has expired. This is no lookup: nothing is counted, and nothing expires.
    pub fn stored(&self, index: usize) -> Option<EntryRef<'_, Value>> {
        let key = self.planned.get(index)?;
        self.held.slot(key)?.table(self.db)?.find(key.hash, self.name(index))
    }

    /// Returns `true` if the n-th key is stored and has expired. This is no lookup, either.
    fn has_expired(&self, index: usize) -> bool {
        let entry = self.stored(index);
        entry.is_some_and(|entry| is_expired(entry.expire_at_ms(), self.context.now_ms))
    }

    /// Deletes the expired keys that the command only reads, as far as their slots are held for writing. The command's
    /// own effects are logged after these deletions. `are_read_only` returns for each key if the command only reads it;
    /// one that it writes is left to [`KeyWrite`].
    #[inline]
    pub fn delete_expired(&mut self, are_read_only: impl FnOnce() -> Vec<bool>) {
        if self.planned.len() > 1 {
            let expired = self.expired_keys_held_for_writing();
            if !expired.is_empty() {
                self.delete_expired_keys(&expired, &are_read_only());
            }
        }
    }

    fn expired_keys_held_for_writing(&mut self) -> Vec<usize> {
        let mut expired = Vec::new();
        for (index, key) in self.planned.iter().enumerate() {
            let name = self.args.argument(key.argument as usize);
            let named = NamedKey {
                name,
                hash: key.hash,
                slot: key.slot,
            };
            if let Some((_, slot)) = self.held.slot_mut(key)
                && write::has_expired_in(slot, &named, self.db, &self.context)
            {
                expired.push(index);
            }
        }
        expired
    }

    #[cold]
    fn delete_expired_keys(&mut self, expired: &[usize], are_read_only: &[bool]) {
        for index in expired {
            if are_read_only.get(*index).copied().unwrap_or_default() {
                drop(self.write(*index));
            }
        }
    }

    /// Returns `true` if the n-th key may be written under the held leases.
    pub fn is_writable(&mut self, index: usize) -> bool {
        self.planned
            .get(index)
            .is_some_and(|key| self.held.slot_mut(key).is_some())
    }
}

/// Returns the n-th of the planned keys with its slot.
#[inline]
fn open_for_write<'h, 'a>(
    held: &'h mut HeldLeases<'_, '_>,
    args: Args<'a>,
    planned: &[PlannedKey],
    index: usize,
) -> (NamedKey<'a>, &'h SlotHeader, &'h mut Slot) {
    let key = &planned[index];
    let named = NamedKey {
        name: args.argument(key.argument as usize),
        hash: key.hash,
        slot: key.slot,
    };
    let Some((header, slot)) = held.slot_mut(key) else {
        unreachable!("the handler writes key {index}, which its key specifications declare as read-only");
    };
    (named, header, slot)
}

/// Returns the entry of a key in a held slot, as [`Keys::read`] does for the keys of a command: `None` if the key is
/// missing or has expired. Counts the lookup, and queues an expired key for deletion.
pub fn read_entry<'e>(
    slot: &'e Slot,
    key: &NamedKey<'_>,
    db: DbIndex,
    access: &AccessContext<'_>,
    effects: &mut Effects,
) -> Option<EntryRef<'e, Value>> {
    let found = slot.table(db).and_then(|table| table.find(key.hash, key.name));
    let planned = PlannedKey::unnamed(key.hash);
    debug_assert_eq!(planned.slot, key.slot, "the hash of a key determines its slot");
    visible_entry(found, access, effects, LookupStatistics::Yes, db, &planned, key.name)
}

/// Returns the entry if a reader may see it. Counts the lookup, and queues an expired key for deletion.
#[inline]
fn visible_entry<'e>(
    found: Option<EntryRef<'e, Value>>,
    access: &AccessContext<'_>,
    effects: &mut Effects,
    touch: LookupStatistics,
    db: DbIndex,
    key: &PlannedKey,
    name: &[u8],
) -> Option<EntryRef<'e, Value>> {
    let Some(entry) = found else {
        effects.misses += 1;
        if effects.hooks.intersects(Hooks::RECORDS_EVENTS) && touch != LookupStatistics::NoEvent {
            effects.record_event(db, name, KeyspaceEvent::MISSED);
        }
        return None;
    };
    if is_expired(entry.expire_at_ms(), access.now_ms) {
        effects.misses += 1;
        access.counts.seen_expiry.note(access.now_ms);
        effects.queue_expired(db, key, name, touch != LookupStatistics::NoEvent);
        return None;
    }
    // The command may find expired fields, too, which it cannot delete.
    if value_due_ms(entry.value()).is_some_and(|due_ms| access.now_ms > due_ms) {
        access.counts.seen_expiry.note(access.now_ms);
    }
    effects.hits += 1;
    let advance = match touch {
        LookupStatistics::Yes => access.should_touch,
        LookupStatistics::No | LookupStatistics::NoEvent => false,
        LookupStatistics::Always => true,
    };
    if advance {
        access.clock.touch(entry);
    }
    Some(entry)
}

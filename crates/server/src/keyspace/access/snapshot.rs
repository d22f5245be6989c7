//! Keys as of one moment, in a table of their own: a long command works on it without leases.
//!
//! ```text
//!   under the command's leases                              without leases
//!   ──────────────────────────                              ──────────────
//!   slot 7     key a ──▶ large set ◀── handle ──┐
//!   slot 90    key b ──▶ number 5   ── copied ──┤           a private table, in which the handler finds its keys,
//!   slot 300   key c ──▶ anything   ── "exists" ┴──▶        and into which it writes
//! ```
//!
//! 1. Large values are pinned ([`crate::keyspace::pinned`]), small ones are copied: a snapshot takes microseconds.
//! 2. Of a key that the command only replaces, the snapshot records whether it exists, and nothing else. A command that
//!    needs more reads the key, and says so in its key specifications.
//! 3. The handler's writes stay in the private table. [`Snapshot::still_holds`] checks under the command's leases that
//!    everything it has seen is unchanged, and [`Snapshot::store`] then makes the same changes to the real keys.
//! 4. Seeing the same value again means seeing the same object: while it has a handle it is neither changed nor freed,
//!    so no other object can have its address.

use weft_resp::Args;
use weft_table::{Blob, EntryRef, NewValue, Shared, ValueRef};
use weft_values::Value;

use super::{HeldLeases, KeyCounts, Keys, PlannedKey, Slot, SlotHeader};
use crate::keyspace::Keyspace;
use crate::keyspace::effects::{Change, ChangeKind, Effects, Hooks};
use crate::keyspace::pinned::Pin;
use crate::notify::keyspace_event::Event;

/// A snapshot of more keys would take too long.
const MOST_KEYS: usize = 64;
/// Copying more would take too long, bytes.
const MOST_COPIED_BYTES: usize = 256 << 10;

/// The use that a command makes of one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// It reads the value.
    Read,
    /// It replaces the value, whatever it was.
    Replace,
    /// It changes the value in place.
    Change,
}

/// A slot that belongs to one command.
pub struct PrivateSlot {
    header: SlotHeader,
    slot: Slot,
}

impl PrivateSlot {
    pub(super) fn slot(&self) -> &Slot {
        &self.slot
    }

    pub(super) fn parts_mut(&mut self) -> (&SlotHeader, &mut Slot) {
        (&self.header, &mut self.slot)
    }
}

/// The observed state of a key.
#[derive(Debug)]
enum SeenKey {
    Missing,
    /// The key existed; its value was not read.
    Something,
    Int(i64),
    Bytes(Vec<u8>),
    Packed(Vec<u8>),
    Blob(Blob),
    Object(Shared<Value>),
}

impl SeenKey {
    fn of(entry: EntryRef<'_, Value>) -> Self {
        match (entry.value(), entry.share()) {
            (_, Some(object)) => SeenKey::Object(object),
            (ValueRef::Int(number), _) => SeenKey::Int(number),
            (ValueRef::Bytes(bytes), _) => SeenKey::Bytes(bytes.to_vec()),
            (ValueRef::Packed(bytes), _) => SeenKey::Packed(bytes.to_vec()),
            (ValueRef::Blob(blob), _) => SeenKey::Blob(blob.clone()),
            (ValueRef::Object(_), None) => unreachable!("every object can be shared"),
        }
    }

    /// Returns the bytes that a copy of the value takes, or `None` if the value is pinned instead.
    fn copied_bytes(value: ValueRef<'_, Value>) -> Option<usize> {
        match value {
            ValueRef::Int(_) => Some(0),
            ValueRef::Bytes(bytes) | ValueRef::Packed(bytes) => Some(bytes.len()),
            ValueRef::Blob(_) | ValueRef::Object(_) => None,
        }
    }

    /// The value, for the private table.
    fn value(&self) -> Option<NewValue<'_, Value>> {
        Some(match self {
            SeenKey::Missing => return None,
            // Any value will do.
            SeenKey::Something => NewValue::Int(0),
            SeenKey::Int(number) => NewValue::Int(*number),
            SeenKey::Bytes(bytes) => NewValue::Bytes(bytes),
            SeenKey::Packed(bytes) => NewValue::Packed(bytes),
            SeenKey::Blob(blob) => NewValue::Blob(blob.clone()),
            SeenKey::Object(object) => NewValue::Shared(object.clone()),
        })
    }

    fn is(&self, now: Option<ValueRef<'_, Value>>) -> bool {
        match (self, now) {
            (SeenKey::Missing, now) => now.is_none(),
            (SeenKey::Something, now) => now.is_some(),
            (SeenKey::Int(seen), Some(ValueRef::Int(now))) => *seen == now,
            (SeenKey::Bytes(seen), Some(ValueRef::Bytes(now))) => seen == now,
            (SeenKey::Packed(seen), Some(ValueRef::Packed(now))) => seen == now,
            (SeenKey::Blob(seen), Some(ValueRef::Blob(now))) => seen.is_same(now),
            (SeenKey::Object(seen), Some(ValueRef::Object(now))) => seen.is_of(now),
            _ => false,
        }
    }
}

/// The keys of one command as of one moment.
pub struct Snapshot {
    private: PrivateSlot,
    /// The observed state of each key of the plan, with its expiry if it was read.
    seen: Vec<(SeenKey, Option<u64>)>,
    /// Counts what the command does in its private table, which is of no interest.
    counts: KeyCounts,
    /// The moment, ms since the epoch.
    now_ms: u64,
    // Behind all handles: they are dropped first.
    _loan: Pin,
}

/// The key and the event of a change that was made, and not only missed.
fn written(change: &Change) -> Option<(&[u8], Event)> {
    match change.what {
        ChangeKind::Event(event) if event != Event::MISSED => Some((&change.name, event)),
        ChangeKind::Event(_) | ChangeKind::Value => None,
    }
}

/// Returns `true` if the changes include one of a key.
pub fn has_written(changes: &[Change]) -> bool {
    changes.iter().any(|change| written(change).is_some())
}

/// Records the keys that a command on a snapshot did not find.
pub fn note_misses(effects: &mut Effects, changes: &[Change]) {
    if effects.hooks.has(Hooks::EVENTS) {
        let misses = changes.iter().filter(|change| written(change).is_none());
        effects.changes.extend(misses.cloned());
    }
}

/// The outcome of an attempt to take a snapshot.
pub enum SnapshotAttempt {
    /// Here it is.
    Taken(Box<Snapshot>),
    /// These keys, or their uses, do not permit a snapshot.
    Unfit,
    /// A writer waits for the end of earlier pins: the command must be tried later.
    Wanted,
}

impl Keys<'_, '_> {
    /// A snapshot of the command's keys under the leases that it has. `uses` says what it does with each.
    pub fn snapshot(&self, uses: &[KeyUse], keyspace: &Keyspace) -> SnapshotAttempt {
        debug_assert_eq!(uses.len(), self.planned.len());
        if uses.is_empty() || uses.len() > MOST_KEYS || uses.contains(&KeyUse::Change) {
            return SnapshotAttempt::Unfit;
        }
        let entries: Vec<Option<EntryRef<'_, Value>>> = (0..uses.len()).map(|index| self.peek(index)).collect();
        let read = || {
            entries
                .iter()
                .zip(uses)
                .zip(self.planned)
                .filter(|((_, used), _)| **used == KeyUse::Read)
        };
        let copied_bytes = |entry: &EntryRef<'_, Value>| SeenKey::copied_bytes(entry.value());
        let copied: usize = read().filter_map(|((entry, _), _)| copied_bytes(entry.as_ref()?)).sum();
        if copied > MOST_COPIED_BYTES {
            return SnapshotAttempt::Unfit;
        }
        let is_lent = |entry: &Option<EntryRef<'_, Value>>| entry.is_some_and(|entry| copied_bytes(&entry).is_none());
        let lending = read().filter(|((entry, _), _)| is_lent(entry)).map(|(_, key)| key.slot);
        let Some(pin) = keyspace.lent.lend(&keyspace.slots, lending.collect()) else {
            return SnapshotAttempt::Wanted;
        };
        let mut snapshot = Box::new(Snapshot {
            private: PrivateSlot {
                header: SlotHeader::new(),
                slot: Slot::new(),
            },
            seen: Vec::with_capacity(uses.len()),
            counts: KeyCounts::new(1, self.access.counts.databases()),
            now_ms: self.access.now_ms,
            _loan: pin,
        });
        for (index, (entry, used)) in entries.into_iter().zip(uses).enumerate() {
            snapshot.add(self, index, entry, *used);
        }
        SnapshotAttempt::Taken(snapshot)
    }
}

impl Snapshot {
    fn add(&mut self, keys: &Keys<'_, '_>, index: usize, entry: Option<EntryRef<'_, Value>>, used: KeyUse) {
        let (key, name) = (&keys.planned[index], keys.name(index));
        let seen = match (entry, used) {
            (None, _) => SeenKey::Missing,
            (Some(_), KeyUse::Replace) => SeenKey::Something,
            (Some(entry), _) => SeenKey::of(entry),
        };
        let table = self.private.slot.table_mut(keys.db);
        // A key may be named twice: to be read and to be replaced. The read state serves both.
        let is_better = used != KeyUse::Replace || table.find(key.hash, name).is_none();
        if is_better && let (Some(value), Some(entry)) = (seen.value(), entry) {
            drop(table.insert(key.hash, name, value, entry.expire_at_ms(), entry.clock()));
        }
        let expire_at_ms = entry
            .filter(|_| used == KeyUse::Read)
            .and_then(|entry| entry.expire_at_ms());
        self.seen.push((seen, expire_at_ms));
    }

    /// The moment of which it is, ms since the epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns the leases of a command that works on the snapshot.
    pub fn held<'s, 'p>(&'s mut self) -> HeldLeases<'s, 'p> {
        HeldLeases::Private(&mut self.private)
    }

    /// Returns the leases of a command that also writes into the snapshot, and its key counts, which use the first row.
    pub fn writable<'s, 'p>(&'s mut self) -> (HeldLeases<'s, 'p>, &'s KeyCounts) {
        (HeldLeases::Private(&mut self.private), &self.counts)
    }

    /// Returns `true` if everything that was observed of the command's keys still holds.
    pub fn still_holds(&self, keys: &Keys<'_, '_>) -> bool {
        let is_so = |(index, (seen, expire_at_ms)): (usize, &(SeenKey, Option<u64>))| {
            let entry = keys.peek(index);
            let is_read = !matches!(seen, SeenKey::Missing | SeenKey::Something);
            let expires_then = || entry.and_then(|entry| entry.expire_at_ms()) == *expire_at_ms;
            seen.is(entry.map(|entry| entry.value())) && (!is_read || expires_then())
        };
        self.seen.iter().enumerate().all(is_so)
    }

    /// Does to the real keys what the command has done to those of the snapshot: these changes, in all so many. The
    /// keys are held, those that are replaced for writing.
    pub fn store(&mut self, keys: &mut Keys<'_, '_>, changes: &[Change], dirty: u64) {
        note_misses(keys.effects, changes);
        let events: Vec<(&[u8], Event)> = changes.iter().filter_map(written).collect();
        let mut stored = 0;
        for (number, (name, event)) in events.iter().enumerate() {
            if events[number + 1..].iter().any(|(other, _)| other == name) {
                continue;
            }
            let is_it = |index: &usize| keys.planned[*index].write && keys.name(*index) == *name;
            let Some(index) = (0..keys.len()).find(is_it) else {
                unreachable!("a command on a snapshot changes keys of its plan");
            };
            let hash = keys.planned[index].hash;
            let result = self.private.slot.table_mut(keys.db).remove(hash, name);
            let mut write = keys.write(index);
            match result {
                Some(removed) => write.replace(removed),
                None => drop(write.delete()),
            }
            let earlier = events[..number].iter().filter(|(other, _)| other == name);
            earlier.for_each(|(_, event)| write.note(*event));
            write.changed(*event);
            stored += 1;
        }
        keys.effects.dirty += dirty.saturating_sub(stored);
    }
}

impl HeldLeases<'_, '_> {
    /// Returns the entry of a key, expired or not, for decisions before a command runs.
    pub fn entry(&self, key: &PlannedKey, db: usize, args: Args<'_>) -> Option<EntryRef<'_, Value>> {
        let name = args.argument(key.argument as usize);
        self.slot(key)?.table(db)?.find(key.hash, name)
    }
}

#[cfg(test)]
mod tests;

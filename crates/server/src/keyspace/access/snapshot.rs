//! Copies of a command's keys at one moment, in a private table, so that a long command can run without leases.
//!
//! ```text
//!   under the command's leases                              without any
//!   ──────────────────────────                              ───────────
//!   slot 7     key a ──▶ large set ◀── handle ──┐
//!   slot 90    key b ──▶ number 5   ── copied ──┤           a private table, in which the handler finds its keys,
//!   slot 300   key c ──▶ anything   ── "exists" ┴──▶        and into which it writes
//! ```
//!
//! 1. Large values are pinned ([`crate::keyspace::pinned`]), small ones are copied. A snapshot takes microseconds.
//! 2. For a key that the command only replaces, the snapshot records only whether it exists, and has expired. A command
//!    that needs more reads the key, and declares so in its key specifications.
//! 3. The handler's writes stay in the private table. [`KeySnapshot::is_current`] checks, under the command's leases,
//!    that every value that was seen is unchanged. [`KeySnapshot::store`] then applies the writes to the real keys.
//! 4. An unchanged value is recognized by the identity of its object. While a handle to an object exists, the object
//!    neither changes nor is freed, so no other object can have its address.

use weft_base::DbIndex;
use weft_resp::Args;
use weft_table::{Blob, EntryRef, NewValue, Shared, ValueRef};
use weft_values::Value;

use super::{HeldLeases, KeyCounts, Keys, Slot, SlotHeader};
use crate::keyspace::Keyspace;
use crate::keyspace::effects::{Change, ChangeKind, Effects, Hooks};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::pinned::Pin;
use crate::notify::keyspace_event::KeyspaceEvent;

/// The largest number of keys. A snapshot of more keys would take too long.
const MAX_KEYS: usize = 64;
/// The largest number of bytes to copy. Copying more would take too long.
const MAX_COPIED_BYTES: usize = 256 << 10;

/// The way in which a command uses one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// Reads the value.
    Read,
    /// Replaces the value without reading it.
    Replace,
    /// Changes the value in place.
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

/// The state in which a key was seen.
#[derive(Debug)]
enum SeenKey {
    Missing,
    /// The key existed; its value was not read.
    Exists,
    /// The key existed and had expired. The command replaces it.
    Expired,
    Int(i64),
    Bytes(Vec<u8>),
    Packed(Vec<u8>),
    Blob(Blob),
    Object(Shared<Value>),
}

impl SeenKey {
    fn from_entry(entry: EntryRef<'_, Value>) -> Self {
        match (entry.value(), entry.share()) {
            (_, Some(object)) => SeenKey::Object(object),
            (ValueRef::Int(number), _) => SeenKey::Int(number),
            (ValueRef::Bytes(bytes), _) => SeenKey::Bytes(bytes.to_vec()),
            (ValueRef::Packed(bytes), _) => SeenKey::Packed(bytes.to_vec()),
            (ValueRef::Blob(blob), _) => SeenKey::Blob(blob.clone()),
            (ValueRef::Object(_), None) => unreachable!("every object can be shared"),
        }
    }

    /// The number of bytes that copying the value takes; `None` if the value is pinned instead.
    fn copied_bytes(value: ValueRef<'_, Value>) -> Option<usize> {
        match value {
            ValueRef::Int(_) => Some(0),
            ValueRef::Bytes(bytes) | ValueRef::Packed(bytes) => Some(bytes.len()),
            ValueRef::Blob(_) | ValueRef::Object(_) => None,
        }
    }

    /// The value to store in the private table.
    fn value(&self) -> Option<NewValue<'_, Value>> {
        Some(match self {
            SeenKey::Missing => return None,
            // A placeholder. The command does not read it.
            SeenKey::Exists | SeenKey::Expired => NewValue::Int(0),
            SeenKey::Int(number) => NewValue::Int(*number),
            SeenKey::Bytes(bytes) => NewValue::Bytes(bytes),
            SeenKey::Packed(bytes) => NewValue::Packed(bytes),
            SeenKey::Blob(blob) => NewValue::Blob(blob.clone()),
            SeenKey::Object(object) => NewValue::Shared(object.clone()),
        })
    }

    fn is_same_as(&self, now: Option<ValueRef<'_, Value>>) -> bool {
        match (self, now) {
            (SeenKey::Missing, now) => now.is_none(),
            (SeenKey::Exists, now) => now.is_some(),
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
pub struct KeySnapshot {
    private: PrivateSlot,
    /// For each key of the plan, its state when it was seen, and its expiry if it was read.
    seen: Vec<(SeenKey, Option<u64>)>,
    /// Counts of the command's writes to its private table. They are discarded.
    counts: KeyCounts,
    /// The time of the snapshot in ms since the Unix epoch.
    now_ms: u64,
    // Declared after all handles, so that it is dropped after them.
    _pin: Pin,
}

/// A lookup that found no key.
const MISS: ChangeKind = ChangeKind::Event(KeyspaceEvent::MISSED);
/// The deletion of a key because it had expired. It happens again when the write that found the key is applied.
const EXPIRY: ChangeKind = ChangeKind::Event(KeyspaceEvent::EXPIRED);

/// The key and the event of a write; `None` for any other change.
fn written_event(change: &Change) -> Option<(&[u8], KeyspaceEvent)> {
    match change.kind {
        MISS | EXPIRY | ChangeKind::ModuleEvent(_) | ChangeKind::Value => None,
        ChangeKind::Event(event) | ChangeKind::DeliveredEvent(event) => Some((&change.name, event)),
    }
}

/// Returns `true` if a key was written among the changes.
pub fn has_written(changes: &[Change]) -> bool {
    changes.iter().any(|change| written_event(change).is_some())
}

/// Records the events of keys that a command on a snapshot did not find.
pub fn record_misses(effects: &mut Effects, changes: &[Change]) {
    if effects.hooks.intersects(Hooks::EVENTS) {
        let misses = changes.iter().filter(|change| change.kind == MISS);
        effects.changes.extend(misses.cloned());
    }
}

/// The result of an attempt to take a snapshot.
pub enum SnapshotAttempt {
    /// The snapshot was taken.
    Taken(Box<KeySnapshot>),
    /// The keys, or the command's use of them, do not permit a snapshot.
    NotPossible,
    /// Another command waits until earlier snapshots end. This command is deferred.
    Deferred,
}

impl Keys<'_, '_> {
    /// Takes a snapshot of the command's keys under the leases that it holds. `uses` states how it uses each key, and
    /// is empty if a snapshot cannot stand for them. `now_ms` is the time that the command sees; for a client that
    /// brings data in import mode, keys expire at another one.
    pub fn snapshot(&self, uses: &[KeyUse], keyspace: &Keyspace, now_ms: u64) -> SnapshotAttempt {
        debug_assert!(uses.is_empty() || uses.len() == self.planned.len());
        if uses.is_empty() || uses.len() > MAX_KEYS || uses.contains(&KeyUse::Change) {
            return SnapshotAttempt::NotPossible;
        }
        let look = |(index, used): (usize, &KeyUse)| match used {
            KeyUse::Replace => self.stored(index),
            KeyUse::Read | KeyUse::Change => self.peek(index),
        };
        let entries: Vec<Option<EntryRef<'_, Value>>> = uses.iter().enumerate().map(look).collect();
        let read = || {
            entries
                .iter()
                .zip(uses)
                .zip(self.planned)
                .filter(|((_, used), _)| **used == KeyUse::Read)
        };
        // A module may change its value while there are handles of it.
        let is_of_module = |entry: &EntryRef<'_, Value>| matches!(entry.value(), ValueRef::Object(Value::Module(_)));
        if entries.iter().flatten().any(is_of_module) {
            return SnapshotAttempt::NotPossible;
        }
        let copied_bytes = |entry: &EntryRef<'_, Value>| SeenKey::copied_bytes(entry.value());
        let copied: usize = read().filter_map(|((entry, _), _)| copied_bytes(entry.as_ref()?)).sum();
        if copied > MAX_COPIED_BYTES {
            return SnapshotAttempt::NotPossible;
        }
        let is_lent = |entry: &Option<EntryRef<'_, Value>>| entry.is_some_and(|entry| copied_bytes(&entry).is_none());
        let lending = read().filter(|((entry, _), _)| is_lent(entry)).map(|(_, key)| key.slot);
        let Some(pin) = keyspace.pinned.pin(&keyspace.slots, lending.collect()) else {
            return SnapshotAttempt::Deferred;
        };
        let mut snapshot = Box::new(KeySnapshot {
            private: PrivateSlot {
                header: SlotHeader::new(),
                slot: Slot::new(),
            },
            seen: Vec::with_capacity(uses.len()),
            counts: KeyCounts::new(1, self.context.counts.databases()),
            now_ms,
            _pin: pin,
        });
        for (index, (entry, used)) in entries.into_iter().zip(uses).enumerate() {
            snapshot.add(self, index, entry, *used);
        }
        SnapshotAttempt::Taken(snapshot)
    }
}

impl KeySnapshot {
    fn add(&mut self, keys: &Keys<'_, '_>, index: usize, entry: Option<EntryRef<'_, Value>>, used: KeyUse) {
        let (key, name) = (&keys.planned[index], keys.name(index));
        let seen = match (entry, used) {
            (None, _) => SeenKey::Missing,
            (Some(_), KeyUse::Replace) if keys.has_expired(index) => SeenKey::Expired,
            (Some(_), KeyUse::Replace) => SeenKey::Exists,
            (Some(entry), _) => SeenKey::from_entry(entry),
        };
        let table = self.private.slot.table_mut(keys.db);
        // A key may be named twice, once for reading and once for replacing. The value that is read is stored for both.
        let is_better = used != KeyUse::Replace || table.find(key.hash, name).is_none();
        if is_better && let (Some(value), Some(entry)) = (seen.value(), entry) {
            drop(table.insert(key.hash, name, value, entry.expire_at_ms(), entry.clock()));
        }
        let expire_at_ms = entry
            .filter(|_| used == KeyUse::Read)
            .and_then(|entry| entry.expire_at_ms());
        self.seen.push((seen, expire_at_ms));
    }

    /// The time of the snapshot in ms since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The held slots of a command that only reads the snapshot.
    pub fn held_slots<'s, 'p>(&'s mut self) -> HeldLeases<'s, 'p> {
        HeldLeases::Private(&mut self.private)
    }

    /// The held slots of a command that also writes into the snapshot, and the counters for its keys. It uses the first
    /// row of the counters.
    pub fn writable_slots<'s, 'p>(&'s mut self) -> (HeldLeases<'s, 'p>, &'s KeyCounts) {
        (HeldLeases::Private(&mut self.private), &self.counts)
    }

    /// Returns `true` if every state that was seen of the command's keys is still current.
    pub fn is_current(&self, keys: &Keys<'_, '_>) -> bool {
        let is_so = |(index, (seen, expire_at_ms)): (usize, &(SeenKey, Option<u64>))| {
            if matches!(seen, SeenKey::Expired) {
                return keys.has_expired(index);
            }
            if matches!(seen, SeenKey::Missing) && keys.planned[index].is_write {
                // A key that has come and has expired would be deleted before the result is stored.
                return keys.stored(index).is_none();
            }
            let entry = keys.peek(index);
            let is_read = !matches!(seen, SeenKey::Missing | SeenKey::Exists);
            let expires_then = || entry.and_then(|entry| entry.expire_at_ms()) == *expire_at_ms;
            seen.is_same_as(entry.map(|entry| entry.value())) && (!is_read || expires_then())
        };
        self.seen.iter().enumerate().all(is_so)
    }

    /// Applies to the real keys what the command did to those of the snapshot. `changes` are its changes and `dirty` is
    /// its dirty count. The keys are held, those that are replaced for writing.
    pub fn apply_changes(&mut self, keys: &mut Keys<'_, '_>, changes: &[Change], dirty: u64) {
        record_misses(keys.effects, changes);
        let events: Vec<(&[u8], KeyspaceEvent)> = changes.iter().filter_map(written_event).collect();
        let mut stored = 0;
        for (number, (name, event)) in events.iter().enumerate() {
            if events[number + 1..].iter().any(|(other, _)| other == name) {
                continue;
            }
            let is_it = |index: &usize| keys.planned[*index].is_write && keys.name(*index) == *name;
            let Some(index) = (0..keys.len()).find(is_it) else {
                unreachable!("a command on a snapshot changes keys of its plan");
            };
            let hash = keys.planned[index].hash;
            let result = self.private.slot.table_mut(keys.db).remove(hash, name);
            let is_expiry = |change: &Change| change.kind == EXPIRY && *change.name == **name;
            let mut write = match changes.iter().any(is_expiry) {
                true => keys.write(index),
                // What is stored is replaced, even if it has expired.
                false => keys.write_stored(index),
            };
            match result {
                Some(removed) => {
                    write.note_overwritten();
                    write.replace_with_removed(removed);
                }
                None => drop(write.delete()),
            }
            let earlier = events[..number].iter().filter(|(other, _)| other == name);
            earlier.for_each(|(_, event)| write.record_event(*event));
            write.changed(*event);
            stored += 1;
        }
        keys.effects.dirty += dirty.saturating_sub(stored);
    }
}

impl HeldLeases<'_, '_> {
    /// The entry of a key, expired or not, for decisions that are made before a command runs.
    pub fn entry(&self, key: &PlannedKey, db: DbIndex, args: Args<'_>) -> Option<EntryRef<'_, Value>> {
        let name = args.argument(key.argument as usize);
        self.slot(key)?.table(db)?.find(key.hash, name)
    }
}

#[cfg(test)]
mod tests;

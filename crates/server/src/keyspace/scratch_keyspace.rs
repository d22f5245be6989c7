//! A scratch keyspace: it starts empty and receives copies of keys of the real keyspace on request. Changes of the
//! copies have no effect outside it.
//!
//! Large values are taken as handles under the leases of their slots and copied afterwards. A command that wants to
//! change such a value is deferred only until it is copied ([`super::pinned`]).

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_table::{Blob, EntryRef, NewValue, Shared, ValueRef};
use weft_values::Value;

use super::hash::KeyHasher;
use super::pinned::Pin;
use super::{Exclusive, Keyspace, Slot, publish_due_time, publish_header};
use crate::keyspace::access::value_due_ms;

impl Keyspace {
    /// Creates an empty keyspace with the same databases and the same hash function, for one thread.
    pub fn new_scratch_keyspace(&self) -> Keyspace {
        Keyspace::with_slots(self.counts.databases(), 1, self.hasher.clone())
    }
}

/// A value as it was read.
enum CopiedValue {
    Int(i64),
    Bytes(Vec<u8>),
    Packed(Vec<u8>),
    Blob(Blob),
    Object(Shared<Value>),
}

/// A key as it was read.
struct CopiedKey {
    db: DbIndex,
    name: Box<[u8]>,
    hash: u64,
    value: CopiedValue,
    expire_at_ms: Option<u64>,
    clock: u32,
}

/// Keys on their way from one keyspace into another.
#[derive(Default)]
pub struct CopiedKeys {
    keys: Vec<CopiedKey>,
    pins: Vec<Pin>,
}

impl CopiedKeys {
    /// Takes a key of a slot that is held, in all databases. Returns `None` if values of the slot cannot be pinned at
    /// the moment.
    pub fn take(&mut self, keyspace: &Keyspace, slot: &Slot, hash: u64, name: &[u8]) -> Option<()> {
        let before = self.keys.len();
        for db in DbIndex::all(slot.databases()) {
            let entry = slot.table(db).and_then(|table| table.find(hash, name));
            self.keys.extend(
                entry
                    .filter(can_copy)
                    .map(|entry| CopiedKey::from_entry(db, hash, entry)),
            );
        }
        self.pin_large_values(keyspace, SlotIndex::from_index(KeyHasher::slot(hash)), before)
    }

    /// Takes all keys of a slot that is held except those for which `is_known` returns `true`. Returns `None` if values
    /// of the slot cannot be pinned at the moment.
    pub fn take_all(
        &mut self,
        keyspace: &Keyspace,
        number: SlotIndex,
        slot: &Slot,
        is_known: impl Fn(&[u8]) -> bool,
    ) -> Option<()> {
        let before = self.keys.len();
        for db in DbIndex::all(slot.databases()) {
            let entries = slot.table(db).into_iter().flat_map(|table| table.iter());
            let unknown = entries.filter(|entry| !is_known(entry.key())).filter(can_copy);
            self.keys
                .extend(unknown.map(|entry| CopiedKey::from_entry(db, keyspace.hasher.hash(entry.key()), entry)));
        }
        self.pin_large_values(keyspace, number, before)
    }

    /// Pins the slot if one of its taken values is large. A command that wants to change a large value waits until it
    /// has been copied.
    fn pin_large_values(&mut self, keyspace: &Keyspace, number: SlotIndex, from: usize) -> Option<()> {
        let any_large = self.keys[from..]
            .iter()
            .any(|key| matches!(key.value, CopiedValue::Blob(_) | CopiedValue::Object(_)));
        if any_large {
            let pin = keyspace.pinned.pin(&keyspace.slots, vec![number]);
            let Some(pin) = pin else {
                self.keys.truncate(from);
                return None;
            };
            self.pins.push(pin);
        }
        Some(())
    }

    /// Stores copies of all keys in another keyspace, which the caller holds in exclusive mode.
    pub fn put(mut self, keyspace: &Keyspace, all: &mut Exclusive<'_>, thread_index: ThreadIndex) {
        for key in self.keys.drain(..) {
            key.put(keyspace, all, thread_index);
        }
    }
}

/// Returns `true` if a value can be copied. What seems to be a copy of a module's value is a handle of the same one.
fn can_copy(entry: &EntryRef<'_, Value>) -> bool {
    !matches!(entry.value(), ValueRef::Object(Value::Module(_)))
}

impl CopiedKey {
    fn from_entry(db: DbIndex, hash: u64, entry: EntryRef<'_, Value>) -> Self {
        let value = match (entry.value(), entry.share()) {
            (_, Some(object)) => CopiedValue::Object(object),
            (ValueRef::Int(number), _) => CopiedValue::Int(number),
            (ValueRef::Bytes(bytes), _) => CopiedValue::Bytes(bytes.to_vec()),
            (ValueRef::Packed(bytes), _) => CopiedValue::Packed(bytes.to_vec()),
            (ValueRef::Blob(blob), _) => CopiedValue::Blob(blob.clone()),
            (ValueRef::Object(_), None) => unreachable!("every object can be shared"),
        };
        CopiedKey {
            db,
            name: entry.key().into(),
            hash,
            value,
            expire_at_ms: entry.expire_at_ms(),
            clock: entry.clock(),
        }
    }

    fn put(self, keyspace: &Keyspace, all: &mut Exclusive<'_>, thread_index: ThreadIndex) {
        let (header, slot) = all.parts_mut(KeyHasher::slot(self.hash));
        let value = match &self.value {
            CopiedValue::Int(number) => NewValue::Int(*number),
            CopiedValue::Bytes(bytes) => NewValue::Bytes(bytes),
            CopiedValue::Packed(bytes) => NewValue::Packed(bytes),
            CopiedValue::Blob(blob) => NewValue::Blob(Blob::from_slice(blob)),
            CopiedValue::Object(object) => NewValue::Shared(Shared::new(Value::clone(object))),
        };
        let table = slot.table_mut(self.db);
        drop(table.insert(self.hash, &self.name, value, self.expire_at_ms, self.clock));
        let entry = table.find(self.hash, &self.name);
        let is_volatile = entry.is_some_and(|entry| value_due_ms(entry.value()).is_some());
        keyspace.counts.mark_used(self.db);
        keyspace
            .counts
            .add(thread_index, self.db, 1, i64::from(self.expire_at_ms.is_some()));
        keyspace
            .counts
            .add_volatile(thread_index, self.db, i64::from(is_volatile));
        publish_header(header, slot);
        publish_due_time(header, slot);
    }
}

#[cfg(test)]
mod tests;

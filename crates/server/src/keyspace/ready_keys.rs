//! Keys that clients are blocked on and that have changed to a value these clients may be served from.
//!
//! A thread that changes a key under its slot's write lease adds it to this list if a client waits for it; see the
//! module documentation of [`crate::clients_waiting::blocking`]. An entry is a hint: the thread that serves it checks
//! the key again.

use weft_base::{DbIndex, SlotIndex};
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::packed::PackedKind;

use super::Slot;
use crate::clients_waiting::blocking::WaitedKind;

/// A key whose blocked clients may be served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadyKey {
    /// The key's database.
    pub db: DbIndex,
    /// The key's slot.
    pub slot: SlotIndex,
    /// The key's hash.
    pub hash: u64,
    /// The key's name.
    pub name: Box<[u8]>,
    /// `true` if modules learn of the change that have blocked clients on the key: it was created or deleted, or
    /// entries were added to a stream. As in Valkey, they do not learn of other changes.
    pub reaches_modules: bool,
}

impl ReadyKey {
    /// Creates the entry for a key.
    pub fn new(db: DbIndex, slot: SlotIndex, hash: u64, name: &[u8]) -> Self {
        ReadyKey {
            db,
            slot,
            hash,
            name: name.into(),
            reaches_modules: true,
        }
    }
}

/// Returns the kind of an entry as waiters distinguish it.
pub fn blocking_kind_of(entry: Option<EntryRef<'_, Value>>) -> WaitedKind {
    match entry.map(|entry| entry.value()) {
        Some(ValueRef::Packed(packed)) => match PackedKind::of(packed) {
            PackedKind::List => WaitedKind::List,
            PackedKind::SortedSet => WaitedKind::SortedSet,
            PackedKind::Hash | PackedKind::Set | PackedKind::IntegerSet => WaitedKind::NotWaited,
        },
        Some(ValueRef::Object(value)) => match value {
            Value::List(_) => WaitedKind::List,
            Value::SortedSet(_) => WaitedKind::SortedSet,
            Value::Stream(_) => WaitedKind::Stream,
            Value::Hash(_) | Value::Set(_) | Value::Module(_) => WaitedKind::NotWaited,
        },
        Some(ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Blob(_)) => WaitedKind::NotWaited,
        None => WaitedKind::Missing,
    }
}

/// Adds a key unless it equals the last one added.
pub fn add_ready_key(ready: &mut Vec<ReadyKey>, key: ReadyKey) {
    if ready.last() != Some(&key) {
        ready.push(key);
    }
}

/// Adds every key of a database in this slot that a client waits for. Used after many keys changed at once. `slot` is
/// the number of the slot. `hash` returns the hash of a name.
pub fn add_ready_keys_of_slot(
    data: &Slot,
    db: DbIndex,
    slot: SlotIndex,
    hash: impl Fn(&[u8]) -> u64,
    ready: &mut Vec<ReadyKey>,
) {
    let Some(waiting) = data.blocked() else {
        return;
    };
    for name in waiting.names(db) {
        let hash = hash(name);
        let kind = blocking_kind_of(data.table(db).and_then(|table| table.find(hash, name)));
        if waiting.has_waiter_for(db, name, kind) {
            add_ready_key(ready, ReadyKey::new(db, slot, hash, name));
        }
    }
}

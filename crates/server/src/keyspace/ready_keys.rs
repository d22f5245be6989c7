//! Keys with waiters that have changed so that a waiter may be served.
//!
//! A writer notes a changed key here, under its slot's write lease, if a client waits for it; see the essay of
//! [`crate::clients_waiting::blocking`]. A note is a hint: the serving code checks the key again.

use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::packed::PackedKind;

use super::Slot;
use crate::clients_waiting::blocking::Kind;

/// A key whose waiters may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyKey {
    /// The database.
    pub db: usize,
    /// The slot.
    pub slot: u16,
    /// The hash.
    pub hash: u64,
    /// The name.
    pub name: Box<[u8]>,
}

impl ReadyKey {
    /// A key by its name.
    pub fn new(db: usize, slot: u16, hash: u64, name: &[u8]) -> Self {
        ReadyKey {
            db,
            slot,
            hash,
            name: name.into(),
        }
    }
}

/// Returns the kind of an entry as waiters distinguish it.
pub fn kind_of(entry: Option<EntryRef<'_, Value>>) -> Kind {
    match entry.map(|entry| entry.value()) {
        Some(ValueRef::Packed(packed)) => match PackedKind::of(packed) {
            PackedKind::List => Kind::List,
            PackedKind::SortedSet => Kind::SortedSet,
            PackedKind::Hash | PackedKind::Set | PackedKind::IntegerSet => Kind::Other,
        },
        Some(ValueRef::Object(value)) => match value {
            Value::List(_) => Kind::List,
            Value::SortedSet(_) => Kind::SortedSet,
            Value::Stream(_) => Kind::Stream,
            Value::Hash(_) | Value::Set(_) => Kind::Other,
        },
        Some(ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Blob(_)) | None => Kind::Other,
    }
}

/// Adds a note, unless the last one is of the same key.
pub fn note(ready: &mut Vec<ReadyKey>, key: ReadyKey) {
    if ready.last() != Some(&key) {
        ready.push(key);
    }
}

/// Notes every key of a database in this slot that a client waits for, after a change of many keys at once. `slot` is
/// the number of the slot, `hash` returns the hash of a name.
pub fn note_all(data: &Slot, db: usize, slot: u16, hash: impl Fn(&[u8]) -> u64, ready: &mut Vec<ReadyKey>) {
    let Some(waiting) = data.waiting() else {
        return;
    };
    for name in waiting.names(db) {
        let hash = hash(name);
        let kind = kind_of(data.table(db).and_then(|table| table.find(hash, name)));
        if waiting.has_waiter_for(db, name, kind) {
            note(ready, ReadyKey::new(db, slot, hash, name));
        }
    }
}

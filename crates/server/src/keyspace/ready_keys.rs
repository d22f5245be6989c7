//! Keys that clients wait for and that have become something they may be served from.
//!
//! Whoever changes a key under its slot's write lease notes it here if somebody waits for it; see the essay of
//! [`crate::clients_waiting::blocking`]. A note is a hint: who acts upon it looks at the key again.

use weft_table::{EntryRef, ValueRef};
use weft_values::Value;
use weft_values::packed::PackedKind;

use super::Slot;
use crate::clients_waiting::blocking::Kind;

/// A key whose waiters may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyKey {
    /// Its database.
    pub db: usize,
    /// Its slot.
    pub slot: u16,
    /// Its hash.
    pub hash: u64,
    /// Its name.
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

/// What an entry is to those who wait for it.
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

/// Notes every key of a database in this slot that somebody waits for: for who changed many keys at once. `slot` is
/// the number of the slot, `hash` the hash of a name.
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

//! Keys that were removed, for modules that look at a key before it is removed.
//!
//! A key is removed deep within a command, where no module can be called. So a copy of the entry is kept: a handle of
//! an object, or a copy of a small value. Once the command has ended, and before anything else runs, the entry is put
//! back for as long as the modules look at it ([`exchange`]).

use weft_base::{DbIndex, SlotIndex, ThreadIndex};
use weft_modules::module::server_events::KeyRemoval;
use weft_table::{EntryRef, NewValue, Removed, ValueRef};
use weft_values::Value;
use weft_values::hash::{Hash, HashEncoding};
use weft_values::list::List;
use weft_values::packed::PackedKind;
use weft_values::set::Set;
use weft_values::sorted_set::{SortedSet, SortedSetEncoding};

use super::access::{TableCounts, value_due_ms};
use super::before_image::insert_copy;
use super::key_identity::NamedKey;
use super::{Exclusive, Keyspace, SlotTable, publish_due_time, publish_header};

/// A key that was removed, or whose value was replaced.
pub struct RemovedKey {
    /// Its database.
    pub db: DbIndex,
    /// Its slot.
    pub slot: SlotIndex,
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub name: Box<[u8]>,
    /// The reason.
    pub removal: KeyRemoval,
    /// The entry as it was.
    entry: SlotTable,
}

/// Returns an empty collection of the kind of a value; `None` if it is no collection.
fn emptied(value: ValueRef<'_, Value>) -> Option<Value> {
    let list = || Value::List(List::listpack(&[], 0));
    let hash = || Value::Hash(Hash::new(HashEncoding::Listpack));
    let set = || Value::Set(Set::new_run());
    let sorted_set = || Value::SortedSet(SortedSet::new(SortedSetEncoding::Listpack));
    match value {
        ValueRef::Packed(packed) => Some(match PackedKind::of(packed) {
            PackedKind::List => list(),
            PackedKind::Hash => hash(),
            PackedKind::Set | PackedKind::IntegerSet => set(),
            PackedKind::SortedSet => sorted_set(),
        }),
        ValueRef::Object(Value::List(_)) => Some(list()),
        ValueRef::Object(Value::Hash(_)) => Some(hash()),
        ValueRef::Object(Value::Set(_)) => Some(set()),
        ValueRef::Object(Value::SortedSet(_)) => Some(sorted_set()),
        _ => None,
    }
}

impl RemovedKey {
    /// Copies an entry that is about to be removed, or was. With `is_emptied`, a command has removed its last element.
    pub fn new(
        db: DbIndex,
        key: NamedKey<'_>,
        entry: EntryRef<'_, Value>,
        removal: KeyRemoval,
        is_emptied: bool,
    ) -> RemovedKey {
        let mut copy = SlotTable::new();
        match emptied(entry.value()).filter(|_| is_emptied) {
            Some(value) => {
                let (value, expiry) = (NewValue::Object(value), entry.expire_at_ms());
                drop(copy.insert(key.hash, key.name, value, expiry, entry.clock()));
            }
            None => insert_copy(&mut copy, key.hash, key.name, entry),
        }
        RemovedKey {
            db,
            slot: key.slot,
            hash: key.hash,
            name: key.name.into(),
            removal,
            entry: copy,
        }
    }

    /// Takes the entry.
    pub fn take_entry(&mut self) -> Option<Removed<Value>> {
        self.entry.remove(self.hash, &self.name)
    }
}

/// Replaces what is stored under the name of a key by an entry, or by nothing, and returns it. This is no change of the
/// key that anybody hears of. The caller changes it back before it leaves exclusive mode.
pub fn exchange(
    all: &mut Exclusive<'_>,
    keyspace: &Keyspace,
    thread_index: ThreadIndex,
    key: &RemovedKey,
    entry: Option<Removed<Value>>,
) -> Option<Removed<Value>> {
    let counts = &keyspace.counts;
    let (header, data) = all.parts_mut(key.slot.index());
    let table = data.table_mut(key.db);
    let before = TableCounts::of_table(table);
    let is_volatile = |entry: &Removed<Value>| i64::from(value_due_ms(entry.value()).is_some());
    let former = table.remove(key.hash, &key.name);
    let mut volatile = -former.as_ref().map_or(0, is_volatile);
    if let Some(entry) = entry {
        volatile += is_volatile(&entry);
        drop(table.insert_removed(key.hash, &key.name, entry));
    }
    let after = TableCounts::of_table(table);
    counts.add_volatile(thread_index, key.db, volatile);
    counts.add_difference(thread_index, key.db, before, after);
    publish_header(header, data);
    publish_due_time(header, data);
    former
}

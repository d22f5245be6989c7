//! Values of modules in the keyspace: where they are, and telling their modules that they are no value any more.
//!
//! Only the module can encode such a value, and it may change it at any time. So a snapshot has all of them encoded at
//! its moment. To find them without a look at every key, each slot that has got one is noted.

use std::sync::Arc;

use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex};
use weft_cluster::slot_set::SlotSet;
use weft_modules::objects::value::{ModuleValue, of_object};
use weft_os::atomic::{AtomicU64, Ordering};
use weft_table::ValueRef;
use weft_values::Value;

use super::{Exclusive, Keyspace, Slot};

/// The slots that may have values of modules.
pub struct ModuleSlots {
    words: Box<[AtomicU64]>,
}

impl Default for ModuleSlots {
    fn default() -> Self {
        ModuleSlots {
            words: (0..SLOTS.div_ceil(u64::BITS as usize))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }
}

impl ModuleSlots {
    fn word_and_bit(&self, slot: SlotIndex) -> (&AtomicU64, u64) {
        let bits = u64::BITS as usize;
        (&self.words[slot.index() / bits], 1 << (slot.index() % bits))
    }

    /// Notes the slot if an object that is stored there is a value of a module.
    #[inline]
    pub fn note_object(&self, slot: SlotIndex, object: &Value) {
        if let Value::Module(_) = object {
            self.add(slot);
        }
    }

    /// Notes a slot that has got a value of a module.
    #[cold]
    pub fn add(&self, slot: SlotIndex) {
        let (word, bit) = self.word_and_bit(slot);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Notes that a slot has no value of a module. The caller holds the slot for writing, or all slots.
    pub fn remove(&self, slot: SlotIndex) {
        let (word, bit) = self.word_and_bit(slot);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Returns the noted slots.
    pub fn iter(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        SlotIndex::all().filter(|slot| {
            let (word, bit) = self.word_and_bit(*slot);
            word.load(Ordering::Relaxed) & bit != 0
        })
    }
}

/// A key whose value is that of a module.
pub struct ModuleKey {
    /// Its database.
    pub db: DbIndex,
    /// Its slot.
    pub slot: SlotIndex,
    /// The hash of its name.
    pub hash: u64,
    /// Its name.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Arc<ModuleValue>,
    /// Its expiry, in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<u64>,
    /// Its access clock.
    pub clock: u32,
}

/// Returns the keys with values of modules in these slots, or in all. Slots that have none any more are forgotten.
pub fn find_module_keys(all: &Exclusive<'_>, keyspace: &Keyspace, slots: Option<&SlotSet>) -> Vec<ModuleKey> {
    let mut found = Vec::new();
    let noted = &keyspace.counts.module_slots;
    for number in noted
        .iter()
        .filter(|slot| slots.is_none_or(|slots| slots.contains(*slot)))
    {
        let before = found.len();
        collect_keys_of_slot(keyspace, number, all.cell(number.index()), &mut found);
        if found.len() == before {
            noted.remove(number);
        }
    }
    found
}

fn collect_keys_of_slot(keyspace: &Keyspace, number: SlotIndex, slot: &Slot, found: &mut Vec<ModuleKey>) {
    for db in DbIndex::all(slot.databases()) {
        for entry in slot.table(db).into_iter().flat_map(|table| table.iter()) {
            let object = match entry.value() {
                ValueRef::Object(object) => Some(object),
                _ => None,
            };
            if let Some(value) = object.and_then(of_object) {
                found.push(ModuleKey {
                    db,
                    slot: number,
                    hash: keyspace.hasher.hash(entry.key()),
                    name: entry.key().into(),
                    value,
                    expire_at_ms: entry.expire_at_ms(),
                    clock: entry.clock(),
                });
            }
        }
    }
}

/// Notes that a value is removed from its key, if it is a value of a module.
#[inline]
pub fn note_unlinked(value: ValueRef<'_, Value>, db: DbIndex, name: &[u8]) {
    if let ValueRef::Object(object) = value {
        note_object_unlinked(object, db, name);
    }
}

/// Does the same for an object.
#[inline]
pub fn note_object_unlinked(object: &Value, db: DbIndex, name: &[u8]) {
    if let Value::Module(value) = object {
        value.clone().note_unlinked(db.get() as u32, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_noted_once_and_forgotten() {
        let slots = ModuleSlots::default();
        let numbers = [0, 63, 64, SLOTS - 1];
        for number in numbers.into_iter().chain([64]) {
            slots.add(SlotIndex::from_index(number));
        }
        assert!(slots.iter().map(SlotIndex::index).eq(numbers));
        slots.remove(SlotIndex::from_index(64));
        assert_eq!(slots.iter().count(), 3);
    }
}

//! Staging data: what a full synchronization loads while clients still see the old data, or none.
//!
//! It has the same slots as the keyspace, so installing it moves tables and not keys. That takes as long as emptying a
//! database, regardless of the number of keys.

use super::access::KeyCounts;
use super::flush::{DetachedTables, touch_watchers_before_replacement};
use super::{Exclusive, Slot, publish_due_time, publish_header};
use weft_base::slots::SLOTS;
use weft_base::{DbIndex, SlotIndex, ThreadIndex};

/// The numbers of keys, keys with an expiry and volatile values of a database.
pub type KeyCountChanges = [i64; 3];

/// Databases that are not part of a keyspace yet.
pub struct StagedDatabases {
    slots: Vec<Slot>,
    counts: Vec<KeyCountChanges>,
    /// The slots with values of modules.
    module_slots: Vec<SlotIndex>,
}

impl StagedDatabases {
    /// Creates `databases` empty databases.
    pub fn new(databases: usize) -> Self {
        StagedDatabases {
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
            counts: vec![[0; 3]; databases],
            module_slots: Vec::new(),
        }
    }

    /// Notes that a slot has a value of a module.
    pub fn note_module_value(&mut self, slot: SlotIndex) {
        if self.module_slots.last() != Some(&slot) {
            self.module_slots.push(slot);
        }
    }

    /// The slots, and the counts of each database.
    pub fn parts_mut(&mut self) -> (&mut [Slot], &mut [KeyCountChanges]) {
        (&mut self.slots, &mut self.counts)
    }

    /// Replaces the contents of the keyspace with all of this, and returns the old contents. `seat` is the row of
    /// counts that this thread writes.
    pub fn install(
        mut self,
        all: &mut Exclusive<'_>,
        counts: &KeyCounts,
        thread_index: ThreadIndex,
        now_ms: u64,
    ) -> DetachedTables {
        let mut tables = Vec::new();
        let mut before = vec![[0i64; 3]; self.counts.len()];
        for (index, new) in self.slots.iter_mut().enumerate() {
            let (header, slot) = all.parts_mut(index);
            let databases = slot.databases().max(new.databases());
            if new.is_empty() && !header.may_hold_any() {
                continue;
            }
            for (db, figures) in DbIndex::all(databases).zip(&mut before) {
                touch_watchers_before_replacement(slot, db, new.table(db), now_ms);
                let old = std::mem::replace(slot.table_mut(db), new.take_database(db));
                if !old.is_empty() {
                    figures[0] += old.len() as i64;
                    figures[1] += old.with_expiry() as i64;
                    tables.push(old);
                }
            }
            publish_header(header, slot);
            publish_due_time(header, slot);
        }
        for (db, (new, old)) in DbIndex::all(self.counts.len()).zip(self.counts.iter().zip(&before)) {
            counts.add(thread_index, db, new[0] - old[0], new[1] - old[1]);
            counts.add_volatile(thread_index, db, new[2] - counts.volatile_values(db) as i64);
        }
        self.module_slots.iter().for_each(|slot| counts.module_slots.add(*slot));
        let keys = before.iter().map(|figures| figures[0] as u64).sum();
        DetachedTables { tables, keys }
    }
}

#[cfg(test)]
mod tests;

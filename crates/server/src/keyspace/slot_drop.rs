//! Deletion of all keys of one slot at once, after the slot moved to another node or for FLUSHSLOT.

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, SlotIndex, ThreadIndex};

use super::access::value_due_ms;
use super::effects::{Effects, Hooks};
use super::flush::touch_watchers_before_swap;
use super::key_identity::NamedKey;
use super::{Keyspace, Slot, SlotHeader, SlotTable, publish_due_time, publish_header, ready_keys};
use crate::notify::keyspace_event::KeyspaceEvent;

/// The cause of the deletion of a slot's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionCause {
    /// A command. There is a keyspace event for each key.
    Command,
    /// Another node owns the keys, so they are not deleted as clients see it. As in Valkey, only modules get keyspace
    /// events: the keys are no longer here.
    SlotOfOtherNode,
}

/// Removes all keys of all databases from a slot that is held for writing. `row` is the thread's row of counts. Returns
/// the tables, their databases and the number of keys. The caller frees the tables.
pub fn take_all_keys(
    keyspace: &Keyspace,
    thread_index: ThreadIndex,
    number: SlotIndex,
    header: &SlotHeader,
    slot: &mut Slot,
    cause: DeletionCause,
    effects: &mut Effects,
) -> (Vec<SlotTable>, Vec<DbIndex>, u64) {
    let now_ms = unix_ms();
    let (mut tables, mut databases, mut keys) = (Vec::new(), Vec::new(), 0);
    for db in DbIndex::all(slot.databases()) {
        touch_watchers_before_swap(slot, db, None, now_ms);
        if header.is_unsaved() {
            keep_before_images(keyspace, db, number, slot);
        }
        let table = slot.take_database(db);
        if table.is_empty() {
            continue;
        }
        record_deletions(effects, db, &table, cause);
        let volatile = match keyspace.counts.volatile_values(db) {
            0 => 0,
            _ => table
                .iter()
                .filter(|entry| value_due_ms(entry.value()).is_some())
                .count(),
        };
        keyspace.counts.add_volatile(thread_index, db, -(volatile as i64));
        keyspace
            .counts
            .add(thread_index, db, -(table.len() as i64), -(table.with_expiry() as i64));
        keys += table.len() as u64;
        effects.dirty += table.len() as u64;
        tables.push(table);
        databases.push(db);
    }
    publish_header(header, slot);
    publish_due_time(header, slot);
    if slot.blocked().is_some() {
        for db in DbIndex::all(slot.databases()) {
            ready_keys::add_ready_keys_of_slot(slot, db, number, |name| keyspace.hasher.hash(name), &mut effects.ready);
        }
    }
    (tables, databases, keys)
}

/// Stores the before-images of all keys of a database for a snapshot that has not saved them.
#[cold]
fn keep_before_images(keyspace: &Keyspace, db: DbIndex, number: SlotIndex, slot: &Slot) {
    let Some(table) = slot.table(db) else {
        return;
    };
    for entry in table.iter() {
        let key = NamedKey {
            name: entry.key(),
            hash: keyspace.hasher.hash(entry.key()),
            slot: number,
        };
        keyspace.before_images.keep_before_image(db, key, table);
    }
}

/// Logs the deletion of each key of these tables. `databases` holds the database of each table.
pub fn log_deletions(effects: &mut Effects, tables: &[SlotTable], databases: &[DbIndex]) {
    if !effects.is_logging() {
        return;
    }
    for (table, db) in tables.iter().zip(databases) {
        for entry in table.iter() {
            effects.log_also(*db, &[b"DEL", entry.key()]);
        }
    }
}

/// Records the event and the invalidation of each deleted key.
fn record_deletions(effects: &mut Effects, db: DbIndex, table: &SlotTable, cause: DeletionCause) {
    let noted = effects.hooks.intersects(match cause {
        DeletionCause::Command => Hooks::RECORDS_EVENTS,
        DeletionCause::SlotOfOtherNode => Hooks::MODULE_EVENTS,
    });
    let tracked = effects.hooks.intersects(Hooks::TRACKING);
    if !noted && !tracked {
        return;
    }
    for entry in table.iter() {
        if noted {
            let event = KeyspaceEvent::generic("del");
            match cause {
                DeletionCause::Command => effects.record_event(db, entry.key(), event),
                DeletionCause::SlotOfOtherNode => effects.record_module_event(db, entry.key(), event),
            }
        }
        if tracked {
            effects.record_invalidation(db, entry.key());
        }
    }
}

/// The number of keys of a slot in all databases.
pub fn count_keys_of_slot(slot: &Slot) -> usize {
    DbIndex::all(slot.databases())
        .filter_map(|db| slot.table(db))
        .map(SlotTable::len)
        .sum()
}

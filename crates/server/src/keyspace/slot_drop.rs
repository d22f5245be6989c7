//! Deletion of all keys of one slot at once, after the slot moved to another node or for FLUSHSLOT.

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, SlotIndex, ThreadIndex};

use weft_table::Removed;
use weft_values::Value;

use super::access::{TableCounts, value_due_ms};
use super::effects::{Effects, Hooks, RemovalCause};
use super::flush::touch_watchers_before_swap;
use super::key_identity::NamedKey;
use super::module_values::note_unlinked;
use super::{Exclusive, Keyspace, Slot, SlotHeader, SlotTable, publish_due_time, publish_header, ready_keys};
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

/// Returns the names and databases of the keys of a slot.
pub fn names_of_keys(slot: &Slot) -> Vec<(DbIndex, Box<[u8]>)> {
    let names_in = |db| slot.table(db).into_iter().flat_map(SlotTable::iter);
    DbIndex::all(slot.databases())
        .flat_map(|db| names_in(db).map(move |entry| (db, entry.key().into())))
        .collect()
}

/// Deletes one key of a slot that another node owns, as a part of the caller's unit. Only modules get the event.
/// Returns `true` if the key was there.
pub fn delete_key_in_unit(
    keyspace: &Keyspace,
    thread_index: ThreadIndex,
    all: &mut Exclusive<'_>,
    (db, name, slot): (DbIndex, &[u8], SlotIndex),
    is_lazy: bool,
    effects: &mut Effects,
) -> bool {
    let key = NamedKey {
        name,
        hash: keyspace.hasher.hash(name),
        slot,
    };
    let (header, data) = all.parts_mut(slot.index());
    let Some(removed) = take_key(keyspace, thread_index, (db, key), header, data, effects) else {
        return false;
    };
    effects.dirty += 1;
    if effects.is_logging() {
        effects.log_also(db, &[deletion_word(is_lazy), name]);
    }
    if effects.hooks.intersects(Hooks::RECORDS_EVENTS) {
        effects.record_module_event(db, name, KeyspaceEvent::generic("del"));
    }
    if effects.hooks.intersects(Hooks::TRACKING) {
        effects.record_invalidation(db, name);
    }
    effects.discard_removed(removed, RemovalCause::Unlink);
    true
}

/// Removes a key from its table, with everything that belongs to the slot.
fn take_key(
    keyspace: &Keyspace,
    thread_index: ThreadIndex,
    (db, key): (DbIndex, NamedKey<'_>),
    header: &SlotHeader,
    data: &mut Slot,
    effects: &mut Effects,
) -> Option<Removed<Value>> {
    let table = data.table_mut(db);
    let before = TableCounts::of_table(table);
    if header.is_unsaved() {
        keyspace.before_images.keep_before_image(db, key, table);
    }
    let removed = table.remove(key.hash, key.name)?;
    note_unlinked(removed.value(), db, key.name);
    effects.note_removed_key(db, key, removed.as_ref(), RemovalCause::Unlink.removal(), false);
    let after = TableCounts::of_table(table);
    let volatile = i64::from(value_due_ms(removed.value()).is_some());
    keyspace.counts.add_volatile(thread_index, db, -volatile);
    keyspace.counts.add_difference(thread_index, db, before, after);
    if let Some(watching) = data.watching() {
        watching.mark_key(db, key.name, false);
    }
    publish_header(header, data);
    publish_due_time(header, data);
    if data.blocked().is_some() {
        let hash = |name: &[u8]| keyspace.hasher.hash(name);
        ready_keys::add_ready_keys_of_slot(data, db, key.slot, hash, &mut effects.ready);
    }
    Some(removed)
}

/// Returns the command that deletes a key elsewhere, too.
fn deletion_word(is_lazy: bool) -> &'static [u8] {
    if is_lazy { b"UNLINK" } else { b"DEL" }
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
pub fn log_deletions(effects: &mut Effects, tables: &[SlotTable], databases: &[DbIndex], is_lazy: bool) {
    if !effects.is_logging() {
        return;
    }
    for (table, db) in tables.iter().zip(databases) {
        for entry in table.iter() {
            effects.log_also(*db, &[deletion_word(is_lazy), entry.key()]);
        }
    }
}

/// Records the event and the invalidation of each deleted key.
fn record_deletions(effects: &mut Effects, db: DbIndex, table: &SlotTable, cause: DeletionCause) {
    let noted = effects.hooks.intersects(Hooks::RECORDS_EVENTS);
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

//! Emptying databases. Their tables are only moved out of the slots, which takes microseconds regardless of the number
//! of keys. The caller frees the tables.

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ThreadIndex};

use super::access::{WholeKeyspace, is_expired};
use super::{Keyspace, Slot, SlotTable, publish_due_time, publish_header};
use crate::clients_waiting::watch::KeyPresence;
use weft_base::slots::SLOTS;

/// Marks the watches of database `db`, which is about to become empty or to get the contents of database `by`.
pub fn touch_watchers_before_swap(slot: &Slot, db: DbIndex, by: Option<DbIndex>, now_ms: u64) {
    let Some(watching) = slot.watching() else {
        return;
    };
    let presence = |db: DbIndex, hash: u64, name: &[u8]| {
        let entry = slot.table(db).and_then(|table| table.find(hash, name));
        match entry {
            None => KeyPresence::Missing,
            Some(entry) if is_expired(entry.expire_at_ms(), now_ms) => KeyPresence::Expired,
            Some(_) => KeyPresence::Live,
        }
    };
    watching.mark_database(db, |hash, name| {
        let after = by.map_or(KeyPresence::Missing, |by| presence(by, hash, name));
        (presence(db, hash, name), after)
    });
}

/// Marks the watches of database `db`, whose contents are about to be replaced by a table.
pub fn touch_watchers_before_replacement(slot: &Slot, db: DbIndex, by: Option<&SlotTable>, now_ms: u64) {
    let Some(watching) = slot.watching() else {
        return;
    };
    let presence =
        |table: Option<&SlotTable>, hash: u64, name: &[u8]| match table.and_then(|table| table.find(hash, name)) {
            None => KeyPresence::Missing,
            Some(entry) if is_expired(entry.expire_at_ms(), now_ms) => KeyPresence::Expired,
            Some(_) => KeyPresence::Live,
        };
    watching.mark_database(db, |hash, name| {
        (presence(slot.table(db), hash, name), presence(by, hash, name))
    });
}

/// The removed contents of some databases.
pub struct DetachedTables {
    /// The removed tables.
    pub tables: Vec<SlotTable>,
    /// The number of removed keys.
    pub keys: u64,
}

/// Empties databases. `seat` is the row of counts that this thread writes. The before-images of a running snapshot keep
/// the tables that it has not saved.
pub fn take_databases(
    all: &mut WholeKeyspace<'_, '_>,
    databases: impl ExactSizeIterator<Item = DbIndex> + Clone,
    keyspace: &Keyspace,
    thread_index: ThreadIndex,
) -> DetachedTables {
    let Keyspace {
        counts, before_images, ..
    } = keyspace;
    let now_ms = unix_ms();
    let mut tables = Vec::new();
    let mut figures = vec![(0i64, 0i64); databases.len()];
    for index in 0..SLOTS {
        if !all.header(index).may_hold_any() {
            continue;
        }
        let (header, slot) = all.parts_mut(index);
        for db in databases.clone() {
            touch_watchers_before_swap(slot, db, None, now_ms);
        }
        for (db, figure) in databases.clone().zip(&mut figures) {
            let table = slot.take_database(db);
            if !table.is_empty() {
                figure.0 += table.len() as i64;
                figure.1 += table.with_expiry() as i64;
                let kept = header.is_unsaved();
                tables.extend(if kept {
                    before_images.take_over(db, index, table)
                } else {
                    Some(table)
                });
            }
        }
        publish_header(header, slot);
        publish_due_time(header, slot);
    }
    for (db, (keys, expiring)) in databases.zip(&figures) {
        before_images.record_emptied(db);
        counts.add(thread_index, db, -keys, -expiring);
        let volatile = counts.volatile_values(db) as i64;
        counts.add_volatile(thread_index, db, -volatile);
    }
    let keys = figures.iter().map(|(keys, _)| *keys as u64).sum();
    DetachedTables { tables, keys }
}

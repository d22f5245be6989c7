//! Emptying databases: their tables are merely taken out of the slots, which costs microseconds however many keys there
//! are. Whoever took them frees them.

use std::ops::Range;

use super::access::KeyCounts;
use super::{Exclusive, SLOTS, Slot, SlotTable, publish, publish_due_of};

/// Tells those who watch keys of database `db` that it is about to become what database `by` is, or empty.
pub fn touch_watched(slot: &Slot, db: usize, by: usize, swapped: bool) {
    let Some(watching) = slot.watching() else {
        return;
    };
    let has = |db: usize, hash: u64, name: &[u8]| slot.table(db).is_some_and(|table| table.find(hash, name).is_some());
    watching.touch_database(db, |hash, name| {
        let after = swapped && has(by, hash, name);
        (after || has(db, hash, name)).then_some(after)
    });
}

/// What was in some databases.
pub struct Taken {
    /// Its tables.
    pub tables: Vec<SlotTable>,
    /// Its keys.
    pub keys: u64,
}

/// Empties databases; `seat` is the row of counts that this thread writes.
pub fn take(all: &mut Exclusive<'_>, databases: Range<usize>, counts: &KeyCounts, seat: usize) -> Taken {
    let mut tables = Vec::new();
    let mut figures = vec![(0i64, 0i64); databases.len()];
    for index in 0..SLOTS {
        if !all.header(index).may_hold_any() {
            continue;
        }
        let (header, slot) = all.parts_mut(index);
        for db in databases.clone() {
            touch_watched(slot, db, db, false);
        }
        for db in databases.start..databases.end.min(slot.databases()) {
            let table = slot.take(db);
            if !table.is_empty() {
                let figure = &mut figures[db - databases.start];
                figure.0 += table.len() as i64;
                figure.1 += table.with_expiry() as i64;
                tables.push(table);
            }
        }
        publish(header, slot);
        publish_due_of(header, slot);
    }
    for (db, (keys, expiring)) in databases.zip(&figures) {
        counts.add(seat, db, -keys, -expiring);
        let volatile = counts.volatile(db) as i64;
        counts.add_volatile(seat, db, -volatile);
    }
    let keys = figures.iter().map(|(keys, _)| *keys as u64).sum();
    Taken { tables, keys }
}

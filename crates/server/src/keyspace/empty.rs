//! Emptying databases: their tables are merely taken out of the slots, which costs microseconds however many keys there
//! are. Whoever took them frees them.

use std::ops::Range;

use super::access::KeyCounts;
use super::{Exclusive, SLOTS, SlotTable, publish, publish_due_of};

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

//! Deletes all keys of one slot at once: it has gone to another node, or FLUSHSLOT was called.

use weft_reactor::unix_ms;

use super::access::value_due_ms;
use super::effects::{Effects, Hooks};
use super::empty::touch_watched;
use super::event::Event;
use super::{Keyspace, Slot, SlotHeader, SlotTable, publish, publish_due_of, ready};

/// Takes all keys of all databases out of a slot that is held for writing; whoever gets the tables frees them. `row` is
/// where the thread counts. Returns the number of keys, too.
pub fn take_all(
    keyspace: &Keyspace,
    row: usize,
    number: u16,
    (header, slot): (&SlotHeader, &mut Slot),
    effects: &mut Effects,
) -> (Vec<SlotTable>, u64) {
    let now_ms = unix_ms();
    let (mut tables, mut keys) = (Vec::new(), 0);
    for db in 0..slot.databases() {
        touch_watched(slot, db, None, now_ms);
        let table = slot.take(db);
        if table.is_empty() {
            continue;
        }
        note(effects, db, &table);
        let volatile = match keyspace.counts.volatile(db) {
            0 => 0,
            _ => table
                .iter()
                .filter(|entry| value_due_ms(entry.value()).is_some())
                .count(),
        };
        keyspace.counts.add_volatile(row, db, -(volatile as i64));
        keyspace
            .counts
            .add(row, db, -(table.len() as i64), -(table.with_expiry() as i64));
        keys += table.len() as u64;
        effects.dirty += table.len() as u64;
        tables.push(table);
    }
    publish(header, slot);
    publish_due_of(header, slot);
    if slot.waiting().is_some() {
        for db in 0..slot.databases() {
            ready::note_all(slot, db, number, |name| keyspace.hasher.hash(name), &mut effects.ready);
        }
    }
    (tables, keys)
}

/// Tells whoever listens that each key is gone.
fn note(effects: &mut Effects, db: usize, table: &SlotTable) {
    let (noted, tracked) = (effects.hooks.has(Hooks::NOTED), effects.hooks.has(Hooks::TRACKING));
    if !noted && !tracked {
        return;
    }
    for entry in table.iter() {
        if noted {
            effects.note(db, entry.key(), Event::generic("del"));
        }
        if tracked {
            effects.note_value(db, entry.key());
        }
    }
}

/// Keys of a slot in all databases.
pub fn count(slot: &Slot) -> usize {
    (0..slot.databases())
        .filter_map(|db| slot.table(db))
        .map(SlotTable::len)
        .sum()
}

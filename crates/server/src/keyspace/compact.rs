//! Compaction of the tables' arrays, so that the holes that growing tables leave in the heap become whole free pages.
//! And the end of empty tables: each slot has a vector of those of databases above 0, up to the highest one in use.

use weft_base::DbIndex;
use weft_table::{OldArrays, Table};

use super::{GatePassage, Seat, Slot, publish_header};
use weft_base::slots::SLOTS;

/// The number of old arrays that are collected before they are dropped. Dropped one by one, each would be the
/// allocator's choice for the next array.
const MAX_OLD_ARRAYS: usize = 512;

/// The number of slots moved in one passage of the gate, so that a worker in exclusive mode is seldom delayed.
const SLOTS_PER_PASS: usize = 64;

/// Moves the arrays of all tables, slot by slot. Slots that are leased at the moment are skipped.
pub fn compact(seat: &mut Seat) {
    let mut old = Vec::with_capacity(MAX_OLD_ARRAYS);
    for first in (0..SLOTS).step_by(SLOTS_PER_PASS) {
        let pass = seat.enter();
        for index in first..first + SLOTS_PER_PASS {
            compact_slot(&pass, index, &mut old);
        }
        drop(pass);
        if old.len() >= MAX_OLD_ARRAYS {
            old.clear();
        }
    }
}

/// Frees the empty tables of databases above 0 in all slots. Slots that are leased at the moment are left out until a
/// table becomes empty again: a slot that is always in use must not cause a walk over all slots every few seconds.
pub fn free_empty_tables(seat: &mut Seat) {
    for first in (0..SLOTS).step_by(SLOTS_PER_PASS) {
        let pass = seat.enter();
        for index in first..first + SLOTS_PER_PASS {
            if let Some(mut slot) = pass.try_write(index) {
                slot.shrink_tables();
            }
        }
    }
}

fn compact_slot(pass: &GatePassage<'_>, index: usize, old: &mut Vec<OldArrays>) {
    if !pass.domain().header(index).may_hold_any() {
        return;
    }
    let Some(mut lease) = pass.try_write(index) else {
        return;
    };
    let (header, slot): (_, &mut Slot) = lease.parts_mut();
    for db in DbIndex::all(slot.databases()) {
        // One step: a table larger than that has outgrown the sizes that leave many holes.
        let _ = Table::relocate(slot.table_mut(db), 0, old);
    }
    publish_header(header, slot);
}

const _: () = assert!(SLOTS.is_multiple_of(SLOTS_PER_PASS));

#[cfg(test)]
mod tests;

//! Moves the tables' arrays together, so that the holes that growing left in the heap become whole free pages.

use weft_table::Table;

use super::{SLOTS, Seat, Slot, publish};

/// Old arrays are dropped when so many are together: one by one, each would be the allocator's next answer.
const OLD_ARRAYS: usize = 512;

/// Moves the arrays of all tables, slot by slot; slots that are leased at the moment are left out.
pub fn compact(seat: &mut Seat) {
    let mut old = Vec::with_capacity(OLD_ARRAYS);
    for index in 0..SLOTS {
        let pass = seat.enter();
        if !pass.domain().header(index).may_hold_any() {
            continue;
        }
        let Some(mut lease) = pass.try_write(index) else {
            continue;
        };
        let (header, slot): (_, &mut Slot) = lease.parts_mut();
        for db in 0..slot.databases() {
            // One step: a table that is larger than that has grown past what leaves many holes.
            let _ = Table::relocate(slot.table_mut(db), 0, &mut old);
        }
        publish(header, slot);
        drop(lease);
        drop(pass);
        if old.len() >= OLD_ARRAYS {
            old.clear();
        }
    }
}

#[cfg(test)]
mod tests;

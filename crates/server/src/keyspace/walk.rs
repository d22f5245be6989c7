//! Walks over the keys of one database, slot by slot, without blocking other threads.
//!
//! A walk holds one read lease at a time. Its state is a [`Cursor`]: a slot and a position in the slot's hash order.
//! Every key before the cursor has been visited. A key never changes its position in that order. So every key that
//! exists from the first step to the last is visited, regardless of how tables grow and shrink in between.
//!
//! Empty slots cost no lease: their headers show that they are empty. Slots that are being imported are skipped.

use std::time::Duration;

use weft_base::{DbIndex, SlotIndex};
use weft_table::EntryRef;
use weft_values::Value;

use super::access::{HeldLeases, ScriptLeases, TableCounts};
use super::{Exclusive, GatePassage, Seat, Slot, SlotHeader};
use weft_base::slots::SLOTS;

/// The time that a patient walk sleeps when a slot is being written.
const RETRY_INTERVAL: Duration = Duration::from_micros(50);
/// The number of keys after which a patient walk checks if a thread waits for exclusive mode.
const KEYS_PER_STEP: usize = 256;

/// The position of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    slot: u32,
    position: u32,
}

impl Cursor {
    /// The start of the keyspace.
    pub const START: Cursor = Cursor { slot: 0, position: 0 };

    /// The position before the first key of a slot.
    pub const fn at_slot(slot: usize) -> Self {
        Cursor {
            slot: slot as u32,
            position: 0,
        }
    }

    /// The slot of the cursor.
    pub const fn slot(self) -> SlotIndex {
        SlotIndex::from_index(self.slot as usize)
    }

    /// The position after the last key of the slot.
    pub const fn next_slot(self) -> Self {
        Cursor::at_slot(self.slot as usize + 1)
    }

    /// The position within its slot.
    pub const fn position(self) -> u32 {
        self.position
    }

    /// A position in a slot; it may lie after the last key.
    pub const fn in_slot(slot: SlotIndex, position: u32) -> Self {
        Cursor {
            slot: slot.get() as u32,
            position,
        }
    }

    /// The cursor as clients see it: below 2^46, and 0 only for the start.
    pub const fn to_number(self) -> u64 {
        (self.slot as u64) << 32 | self.position as u64
    }

    /// The cursor for a number that a client sent. A number that no walk returned is a valid position too. It may lie
    /// after the last key.
    pub const fn from_number(number: u64) -> Self {
        let slot = number >> 32;
        Cursor {
            slot: if slot < SLOTS as u64 { slot as u32 } else { SLOTS as u32 },
            position: number as u32,
        }
    }
}

/// The part of the keyspace that a walk visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkRange {
    /// The position of the first key.
    pub from: Cursor,
    /// The last slot.
    pub last: SlotIndex,
}

impl From<Cursor> for WalkRange {
    /// The rest of the keyspace.
    fn from(from: Cursor) -> WalkRange {
        WalkRange {
            from,
            last: SlotIndex::LAST,
        }
    }
}

/// The means by which a walk reaches slots.
pub enum WalkAccess<'r, 'p> {
    /// A passage of the gate, one lease at a time.
    Pass(&'r GatePassage<'p>),
    /// Under leases of all slots.
    Leases(&'r ScriptLeases<'p>),
    /// Exclusive mode.
    Exclusive(&'r Exclusive<'p>),
    /// Exclusive mode, including slots that are being imported.
    Everything(&'r Exclusive<'p>),
}

impl<'r, 'p> WalkAccess<'r, 'p> {
    /// The access of a command that holds `held`. It goes through the gate unless the command holds every slot.
    pub fn for_command(held: &'r HeldLeases<'_, 'p>, pass: Option<&'r GatePassage<'p>>) -> Self {
        match (held, pass) {
            (HeldLeases::Exclusive(all), _) => WalkAccess::Exclusive(all),
            (HeldLeases::Script(leases), _) if leases.holds_all_slots() => WalkAccess::Leases(leases),
            (_, Some(pass)) => WalkAccess::Pass(pass),
            (_, None) => unreachable!("a command runs behind the gate or in exclusive mode"),
        }
    }

    /// The access of a command that holds every slot; `None` if it does not.
    pub fn for_whole_keyspace(held: &'r HeldLeases<'_, 'p>) -> Option<Self> {
        held.holds_all_slots().then(|| WalkAccess::for_command(held, None))
    }
}

impl WalkAccess<'_, '_> {
    /// The header of a slot.
    #[inline]
    pub fn header(&self, slot: usize) -> &SlotHeader {
        match self {
            WalkAccess::Pass(pass) => pass.domain().header(slot),
            WalkAccess::Leases(leases) => leases.header(slot),
            WalkAccess::Exclusive(all) | WalkAccess::Everything(all) => all.header(slot),
        }
    }

    /// Visits every non-empty slot, if all are accessible; none can be contended.
    pub fn for_each_slot(&self, visit: &mut dyn FnMut(&Slot)) {
        for slot in 0..SLOTS {
            if self.header(slot).may_hold_any() {
                let seen = self.read_slot(slot, &mut *visit);
                debug_assert!(seen.is_some(), "every slot is held");
            }
        }
    }

    /// Passes a slot to `look`. Returns `None` if another thread writes it.
    #[inline]
    pub fn read_slot<R>(&self, slot: usize, look: impl FnOnce(&Slot) -> R) -> Option<R> {
        match self {
            WalkAccess::Pass(pass) => pass.read_spinning(slot).map(|lease| look(&lease)),
            WalkAccess::Leases(leases) => leases.cell(slot).map(look),
            WalkAccess::Exclusive(all) | WalkAccess::Everything(all) => Some(look(all.cell(slot))),
        }
    }

    /// Returns `true` if a slot may have keys of a database that the walk visits.
    #[inline]
    fn may_visit(&self, slot: usize, db: DbIndex) -> bool {
        match self {
            WalkAccess::Everything(all) => all.header(slot).may_hold(db),
            _ => self.header(slot).may_show(db),
        }
    }
}

/// Returns the numbers of keys of database `db` in slots that are being imported, which no walk visits.
///
/// # Errors
/// Such a slot, if it is being written.
pub fn count_hidden_keys(access: &WalkAccess<'_, '_>, db: DbIndex) -> Result<TableCounts, SlotIndex> {
    let mut hidden = TableCounts {
        keys: 0,
        with_expiry: 0,
    };
    for slot in 0..SLOTS {
        let header = access.header(slot);
        if !header.is_importing() || !header.may_hold(db) {
            continue;
        }
        let counts = access.read_slot(slot, |slot| slot.table(db).map(TableCounts::of_table));
        if let Some(counts) = counts.ok_or(SlotIndex::from_index(slot))? {
            hidden.keys += counts.keys;
            hidden.with_expiry += counts.with_expiry;
        }
    }
    Ok(hidden)
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// No keys are left.
    End,
    /// Enough keys were visited. The walk continues from this cursor.
    Paused(Cursor),
    /// The slot at this cursor is being written.
    Contended(Cursor),
}

/// Visits keys of database `db` in `range`, until at least `at_least` keys were visited.
pub fn walk(
    reach: &WalkAccess<'_, '_>,
    db: DbIndex,
    range: impl Into<WalkRange>,
    at_least: usize,
    visit: &mut dyn FnMut(SlotIndex, EntryRef<'_, Value>),
) -> WalkEnd {
    let WalkRange { from, last } = range.into();
    let mut position = from.position;
    let mut visited = 0;
    for slot in from.slot as usize..=last.index() {
        if reach.may_visit(slot, db) {
            let rest = at_least.saturating_sub(visited);
            let scanned = reach.read_slot(slot, |data| {
                data.table(db)?.scan(position, rest, &mut |entry| {
                    visited += 1;
                    visit(SlotIndex::from_index(slot), entry);
                })
            });
            let here = Cursor {
                slot: slot as u32,
                position,
            };
            match scanned {
                None => return WalkEnd::Contended(here),
                Some(Some(position)) => return WalkEnd::Paused(Cursor { position, ..here }),
                Some(None) if visited >= at_least => {
                    let mut rest = slot + 1..=last.index();
                    let next = rest.find(|slot| reach.may_visit(*slot, db));
                    return next.map_or(WalkEnd::End, |slot| WalkEnd::Paused(Cursor::at_slot(slot)));
                }
                Some(None) => {}
            }
        }
        position = 0;
    }
    WalkEnd::End
}

/// Visits keys of one slot only, starting at `from`.
pub fn walk_slot(
    reach: &WalkAccess<'_, '_>,
    db: DbIndex,
    only: SlotIndex,
    from: Cursor,
    at_least: usize,
    visit: &mut dyn FnMut(SlotIndex, EntryRef<'_, Value>),
) -> WalkEnd {
    let slot = u32::from(only.get());
    let position = match slot.cmp(&from.slot) {
        std::cmp::Ordering::Less => return WalkEnd::End,
        std::cmp::Ordering::Equal => from.position,
        std::cmp::Ordering::Greater => 0,
    };
    if !reach.may_visit(only.index(), db) {
        return WalkEnd::End;
    }
    let scanned = reach.read_slot(only.index(), |data| {
        data.table(db)?
            .scan(position, at_least, &mut |entry| visit(only, entry))
    });
    match scanned {
        None => WalkEnd::Contended(Cursor { slot, position }),
        Some(Some(position)) => WalkEnd::Paused(Cursor { slot, position }),
        Some(None) => WalkEnd::End,
    }
}

/// [`walk`] for a thread that may sleep: it waits for contended slots, unless `should_give_up` returns `true` for one,
/// and leaves the gate for threads that want exclusive mode.
pub fn walk_blocking(
    seat: &mut Seat,
    should_give_up: &dyn Fn(SlotIndex) -> bool,
    db: DbIndex,
    range: impl Into<WalkRange>,
    at_least: usize,
    visit: &mut dyn FnMut(SlotIndex, EntryRef<'_, Value>),
) -> WalkEnd {
    let WalkRange { from: mut cursor, last } = range.into();
    let mut rest = at_least;
    loop {
        let pass = seat.enter();
        let reach = WalkAccess::Pass(&pass);
        let contended = loop {
            let mut visited = 0;
            let range = WalkRange { from: cursor, last };
            let stop = walk(&reach, db, range, rest.min(KEYS_PER_STEP), &mut |slot, entry| {
                visited += 1;
                visit(slot, entry);
            });
            rest = rest.saturating_sub(visited);
            match stop {
                WalkEnd::Paused(next) if rest > 0 => cursor = next,
                WalkEnd::Contended(here) => {
                    cursor = here;
                    break true;
                }
                WalkEnd::Paused(_) | WalkEnd::End => return stop,
            }
            if pass.gate_is_closing() {
                break false;
            }
        };
        drop(pass);
        if contended && should_give_up(cursor.slot()) {
            return WalkEnd::Contended(cursor);
        }
        if contended {
            weft_os::thread::sleep(RETRY_INTERVAL);
        }
    }
}

/// Visits every non-empty slot, and leaves the gate for threads that want exclusive mode. It waits for a slot that is
/// being written, unless `should_give_up` returns `true` for one.
pub fn for_each_slot_blocking(
    seat: &mut Seat,
    should_give_up: &dyn Fn(SlotIndex) -> bool,
    visit: &mut dyn FnMut(&Slot),
) -> WalkEnd {
    let mut slot = 0;
    while slot < SLOTS {
        let mut is_refused = false;
        let pass = seat.enter();
        while slot < SLOTS && !pass.gate_is_closing() {
            if pass.domain().header(slot).may_hold_any() {
                let Some(lease) = pass.read_spinning(slot) else {
                    is_refused = true;
                    break;
                };
                visit(&lease);
            }
            slot += 1;
        }
        drop(pass);
        if is_refused && should_give_up(SlotIndex::from_index(slot)) {
            return WalkEnd::Contended(Cursor::at_slot(slot));
        }
        weft_os::thread::yield_now();
    }
    WalkEnd::End
}

#[cfg(test)]
mod tests;

//! Leases the slots of a command's keys: all, or none. Also visits slots that are free, for work that can wait.

use std::collections::HashSet;

use weft_base::SlotIndex;

use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, Seat, WriteLease};

/// The number of failed attempts after which a writer makes the slot refuse new readers.
pub const ANNOUNCE_AFTER_FAILURES: u32 = 3;
/// The number of failed attempts after which a reader considers the announcement of a writer on a free slot abandoned.
/// A writer that still waits has tried as often by then.
const IGNORE_ANNOUNCEMENT_AFTER_FAILURES: u32 = 12;

/// Leases the slots of the keys: all, or none. Returns `None` if a lease is refused. Otherwise returns `true` if a slot
/// to be written has pinned values, or values that a snapshot has to save before they change.
pub(super) fn lease_slots<'p>(
    pass: &'p GatePassage<'p>,
    keys: &mut [PlannedKey],
    order: &mut Vec<(SlotIndex, bool, u32)>,
    many: &mut Vec<Lease<'p>>,
    failures: u32,
) -> Option<bool> {
    debug_assert!(
        many.is_empty(),
        "a thread that holds leases takes no others in this way"
    );
    if let [key] = keys {
        let held = lease_slot(pass, key.slot.index(), key.is_write, failures)?;
        key.lease = 0;
        let has_marked_slots = held.has_pinned_or_unsaved_values();
        many.push(held);
        return Some(has_marked_slots);
    }
    order.clear();
    order.extend(
        keys.iter()
            .enumerate()
            .map(|(index, key)| (key.slot, key.is_write, index as u32)),
    );
    // Slots ascend. Within a slot the writers sort behind the readers, so the last entry decides the kind of lease.
    order.sort_unstable();
    let slots = pass.domain();
    for (slot, _, index) in order.iter() {
        slots
            .header(slot.index())
            .hint
            .prefetch_bucket(keys[*index as usize].hash);
    }
    let (mut at, mut has_marked_slots) = (0, false);
    while at < order.len() {
        let slot = order[at].0;
        let mut end = at + 1;
        while end < order.len() && order[end].0 == slot {
            end += 1;
        }
        let write = order[end - 1].1;
        let Some(held) = lease_slot(pass, slot.index(), write, failures) else {
            many.clear();
            return None;
        };
        for (_, _, index) in &order[at..end] {
            keys[*index as usize].lease = many.len() as u32;
        }
        debug_assert!(
            many.last().is_none_or(|last| last.cell() < held.cell()),
            "leases are taken in the order of their slots, one of each"
        );
        has_marked_slots |= held.has_pinned_or_unsaved_values();
        many.push(held);
        at = end;
    }
    debug_assert!(HeldLeases::Many(many).covers(keys), "all slots of the keys are held");
    Some(has_marked_slots)
}

/// Leases one slot, with a bounded number of attempts.
#[inline]
pub(super) fn lease_slot<'p>(pass: &'p GatePassage<'p>, slot: usize, write: bool, failures: u32) -> Option<Lease<'p>> {
    let held = if write {
        pass.write_spinning(slot).map(Lease::Write)
    } else {
        pass.read_spinning(slot).map(Lease::Read)
    };
    if held.is_none() && failures >= ANNOUNCE_AFTER_FAILURES {
        update_announcement(pass, slot, write, failures);
    }
    held
}

/// Announces a writer that keeps being refused. For a reader, ends the announcement of a writer that has given up.
#[cold]
fn update_announcement(pass: &GatePassage<'_>, slot: usize, write: bool, failures: u32) {
    if write {
        pass.announce_writer(slot);
    } else if failures >= IGNORE_ANNOUNCEMENT_AFTER_FAILURES {
        pass.end_announcement(slot);
    }
}

/// The maximum number of items that [`visit_free_slots`] handles at once.
const MAX_VISITS: usize = 4096;
/// The number of items that it handles in one passage of the gate.
const VISITS_PER_PASSAGE: usize = 128;
/// The maximum number of slots that other threads may refuse it at once. Each costs about a microsecond.
const MAX_REFUSED_SLOTS: usize = 64;

/// Calls `visit` for items, the last ones first, under the write lease of each item's slot, and removes them from the
/// list. The items of slots that other threads have leased move to the front of the list. They and those beyond a bound
/// are left for another call.
pub(super) fn visit_free_slots<T>(
    seat: &mut Seat,
    items: &mut Vec<T>,
    slot_of: impl Fn(&T) -> SlotIndex,
    mut visit: impl FnMut(&T, &mut WriteLease<'_>),
) {
    // Thousands of items may belong to a slot that a script holds. One attempt per slot is enough.
    let mut refused: HashSet<SlotIndex> = HashSet::new();
    let mut left = Vec::new();
    let mut rest = MAX_VISITS;
    while rest > 0 && !items.is_empty() && refused.len() < MAX_REFUSED_SLOTS {
        let count = rest.min(VISITS_PER_PASSAGE).min(items.len());
        rest -= count;
        let pass = seat.enter();
        for item in items.drain(items.len() - count..) {
            let slot = slot_of(&item);
            if refused.contains(&slot) || refused.len() >= MAX_REFUSED_SLOTS {
                left.push(item);
            } else if let Some(mut lease) = pass.write_spinning(slot.index()) {
                visit(&item, &mut lease);
            } else {
                refused.insert(slot);
                left.push(item);
            }
        }
    }
    items.splice(0..0, left);
}

#[cfg(test)]
mod tests;

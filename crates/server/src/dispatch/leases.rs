//! Leases the slots of a command's keys: all, or none.

use weft_base::SlotIndex;

use crate::keyspace::GatePassage;
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::key_identity::PlannedKey;

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

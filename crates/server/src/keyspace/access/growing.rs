//! The leases of a script: those of its declared keys, and one more for each slot that it needs while it runs.
//!
//! ```text
//!   leases    [ slot 7 ][ slot 90 ]│[ slot 12 ][ slot 3 ]      in the order in which they were taken
//!   order     3→3  7→0  12→2  90→1                             by slot
//! ```
//!
//! A lease keeps its index, so that an index stays valid while more leases are added. With the leases of all slots the
//! holder has exclusive access to the keyspace ([`WholeKeyspace`]), but no thread is stopped at the gate.

use super::Lease;
use crate::keyspace::{Exclusive, Slot, SlotHeader};
use weft_base::SlotIndex;
use weft_base::slots::SLOTS;

/// The leases that are held until a script ends. More can be added.
#[derive(Default)]
pub struct ScriptLeases<'p> {
    leases: Vec<Lease<'p>>,
    /// The slot and the index of each lease, sorted by slot.
    index_by_slot: Vec<(SlotIndex, u32)>,
}

impl<'p> ScriptLeases<'p> {
    /// Starts with leases that are sorted by slot. Their indices stay the same.
    pub fn new(leases: Vec<Lease<'p>>) -> Self {
        Self::in_memory_of(leases, Vec::new())
    }

    /// Does the same as [`Self::new`] with memory that [`Self::into_memory`] has returned.
    pub fn in_memory_of(leases: Vec<Lease<'p>>, mut index_by_slot: Vec<(SlotIndex, u32)>) -> Self {
        index_by_slot.clear();
        let indexed = (0u32..).zip(&leases);
        index_by_slot.extend(indexed.map(|(index, lease)| (SlotIndex::from_index(lease.cell()), index)));
        debug_assert!(
            index_by_slot.is_sorted(),
            "planned leases are taken in the order of their slots"
        );
        ScriptLeases { leases, index_by_slot }
    }

    /// Ends all leases.
    pub fn end(&mut self) {
        self.leases.clear();
        self.index_by_slot.clear();
    }

    /// Ends all leases. Returns the memory that they were in.
    pub fn into_memory(mut self) -> (Vec<Lease<'p>>, Vec<(SlotIndex, u32)>) {
        self.end();
        (self.leases, self.index_by_slot)
    }

    /// The index of the lease of a slot, if it is held.
    #[inline]
    pub fn index_of(&self, slot: SlotIndex) -> Option<u32> {
        let at = self.index_by_slot.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(self.index_by_slot[at].1)
    }

    /// Adds the lease of a slot that is not held yet. Returns its index.
    pub fn add(&mut self, lease: Lease<'p>) -> u32 {
        let (slot, index) = (SlotIndex::from_index(lease.cell()), self.leases.len() as u32);
        let at = self.index_by_slot.partition_point(|(other, _)| *other < slot);
        debug_assert!(
            self.index_by_slot.get(at).is_none_or(|(other, _)| *other != slot),
            "the slot is held already"
        );
        self.index_by_slot.insert(at, (slot, index));
        self.leases.push(lease);
        index
    }

    /// Returns `true` if every slot is held.
    pub fn holds_all_slots(&self) -> bool {
        self.leases.len() == SLOTS
    }

    /// The slots that are held, in ascending order.
    pub fn slots(&self) -> impl Iterator<Item = SlotIndex> {
        self.index_by_slot.iter().map(|(slot, _)| *slot)
    }

    #[inline]
    pub(super) fn lease_at(&self, index: u32) -> Option<&Lease<'p>> {
        self.leases.get(index as usize)
    }

    #[inline]
    pub(super) fn writable_slot_at(&mut self, index: u32) -> Option<(&SlotHeader, &mut Slot)> {
        match self.leases.get_mut(index as usize) {
            Some(Lease::Write(lease)) => Some(lease.parts_mut()),
            Some(Lease::Read(_)) | None => None,
        }
    }

    pub(super) fn writable_slot(&mut self, slot: SlotIndex) -> Option<(&SlotHeader, &mut Slot)> {
        let index = self.index_of(slot)?;
        self.writable_slot_at(index)
    }

    /// The header of a slot that is held.
    ///
    /// # Panics
    /// If the slot is not held.
    pub fn header(&self, slot: usize) -> &SlotHeader {
        match self
            .index_of(SlotIndex::from_index(slot))
            .and_then(|index| self.lease_at(index))
        {
            Some(Lease::Read(lease)) => lease.header(),
            Some(Lease::Write(lease)) => lease.header(),
            None => panic!("slot {slot} is not held"),
        }
    }

    /// The data of a slot; `None` if it is not held.
    pub fn cell(&self, slot: usize) -> Option<&Slot> {
        self.index_of(SlotIndex::from_index(slot))
            .and_then(|index| self.lease_at(index))
            .map(Lease::slot)
    }
}

/// Access to the whole keyspace, for commands that change it as a whole.
pub enum WholeKeyspace<'h, 'p> {
    /// Exclusive mode.
    Exclusive(&'h mut Exclusive<'p>),
    /// Under leases of all slots.
    Leased(&'h mut ScriptLeases<'p>),
}

impl WholeKeyspace<'_, '_> {
    /// The header of a slot.
    pub fn header(&self, slot: usize) -> &SlotHeader {
        match self {
            WholeKeyspace::Exclusive(all) => all.header(slot),
            WholeKeyspace::Leased(leases) => leases.header(slot),
        }
    }

    /// The data of a slot.
    pub fn cell(&self, slot: usize) -> &Slot {
        match self {
            WholeKeyspace::Exclusive(all) => all.cell(slot),
            WholeKeyspace::Leased(leases) => {
                let Some(slot) = leases.cell(slot) else {
                    unreachable!("all slots are held");
                };
                slot
            }
        }
    }

    /// The header and the data of a slot, for changes.
    pub fn parts_mut(&mut self, slot: usize) -> (&SlotHeader, &mut Slot) {
        match self {
            WholeKeyspace::Exclusive(all) => all.parts_mut(slot),
            WholeKeyspace::Leased(leases) => {
                let Some(parts) = leases.writable_slot(SlotIndex::from_index(slot)) else {
                    unreachable!("all slots are held for writing");
                };
                parts
            }
        }
    }
}

#[cfg(test)]
mod tests;

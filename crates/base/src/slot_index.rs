//! Numbers of slots.

use std::fmt;

use crate::slots::SLOTS;

/// The number of a slot of the keyspace, from 0 to 16383. In a cluster it is also the number of the hash slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SlotIndex(u16);

impl SlotIndex {
    /// The first slot.
    pub const FIRST: SlotIndex = SlotIndex(0);
    /// The last slot.
    pub const LAST: SlotIndex = SlotIndex(SLOTS as u16 - 1);

    /// Accepts the number of a slot. Returns `None` if there is no such slot.
    pub const fn new(number: u16) -> Option<SlotIndex> {
        if number <= Self::LAST.0 {
            Some(SlotIndex(number))
        } else {
            None
        }
    }

    /// Accepts the number of a slot that a client, a file or another server states. Returns `None` if there is no such
    /// slot.
    pub fn parse(number: i64) -> Option<SlotIndex> {
        SlotIndex::new(u16::try_from(number).ok()?)
    }

    /// Creates the number of the slot at this index of all slots. The caller has checked that there is such a slot.
    #[inline]
    pub const fn from_index(index: usize) -> SlotIndex {
        debug_assert!(index < SLOTS, "there is no such slot");
        SlotIndex(index as u16)
    }

    /// Returns all slots, in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = SlotIndex> + ExactSizeIterator + Clone {
        (0..SLOTS as u16).map(SlotIndex)
    }

    /// Returns the slots from this one to `last`, which is included, in ascending order.
    pub fn to(self, last: SlotIndex) -> impl DoubleEndedIterator<Item = SlotIndex> + Clone {
        (self.0..=last.0).map(SlotIndex)
    }

    /// Returns `true` if `next` is the slot after this one.
    pub const fn is_before(self, next: SlotIndex) -> bool {
        self.0 + 1 == next.0
    }

    /// Returns the number as an index of all slots.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for SlotIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the limits of slot numbers.

    use super::*;

    #[test]
    fn there_are_16384_slots() {
        assert_eq!(SlotIndex::all().len(), 16384);
        assert_eq!(
            (SlotIndex::all().next(), SlotIndex::all().next_back()),
            (Some(SlotIndex::FIRST), Some(SlotIndex::LAST))
        );
        for refused in [16384, u16::MAX] {
            assert_eq!(SlotIndex::new(refused), None, "{refused}");
        }
        for refused in [-1, 16384, 65536, i64::MIN, i64::MAX] {
            assert_eq!(SlotIndex::parse(refused), None, "{refused}");
        }
        assert_eq!(SlotIndex::parse(16383), Some(SlotIndex::LAST));
    }
}

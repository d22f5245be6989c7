//! A set of slots, stored as the bitmap that nodes send each other.

use weft_base::SlotIndex;
use weft_base::slots::SLOTS;

/// The size of the bitmap in bytes.
pub const BITMAP_BYTES: usize = SLOTS / 8;

/// A set of slots with one bit per slot. Slot 0 is the lowest bit of the first byte.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet {
    bits: Box<[u8; BITMAP_BYTES]>,
    count: usize,
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.ranges())
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        SlotSet {
            bits: Box::new([0; BITMAP_BYTES]),
            count: 0,
        }
    }
}

impl SlotSet {
    /// Creates a set from a bitmap. Returns `None` if the length is wrong.
    pub fn from_bitmap(bitmap: &[u8]) -> Option<Self> {
        let bits: [u8; BITMAP_BYTES] = bitmap.try_into().ok()?;
        Some(SlotSet {
            count: bits.iter().map(|byte| byte.count_ones() as usize).sum(),
            bits: Box::new(bits),
        })
    }

    /// Returns the bitmap.
    pub fn bitmap(&self) -> &[u8] {
        &self.bits[..]
    }

    /// Returns `true` if the slot is in the set.
    pub fn contains(&self, slot: SlotIndex) -> bool {
        let slot = slot.index();
        self.bits.get(slot / 8).is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
    }

    /// Adds or removes a slot. Returns `true` if the set has changed.
    pub fn set(&mut self, slot: SlotIndex, on: bool) -> bool {
        if self.contains(slot) == on {
            return false;
        }
        let slot = slot.index();
        self.bits[slot / 8] ^= 1 << (slot % 8);
        if on {
            self.count += 1;
        } else {
            self.count -= 1;
        }
        true
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        SlotIndex::all().filter(|slot| self.contains(*slot))
    }

    /// Returns the slots from the one with the number `first` on, in ascending order.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = SlotIndex> + '_ {
        (first..SLOTS)
            .map(SlotIndex::from_index)
            .filter(|slot| self.contains(*slot))
    }

    /// Returns the slots as ranges, with the first and the last slot of each.
    pub fn ranges(&self) -> Vec<(SlotIndex, SlotIndex)> {
        let mut ranges: Vec<(SlotIndex, SlotIndex)> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.is_before(slot) => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    //! Tests of bits and ranges.

    use super::*;

    #[test]
    fn slots_are_added_and_removed() {
        let mut set = SlotSet::default();
        assert!(set.is_empty() && set.ranges().is_empty());
        for slot in [0, 1, 2, 9, 16382, 16383] {
            assert!(set.set(SlotIndex::from_index(slot), true));
            assert!(!set.set(SlotIndex::from_index(slot), true), "it is there already");
        }
        assert_eq!(set.len(), 6);
        let ranges = set.ranges().into_iter().map(|(first, last)| (first.get(), last.get()));
        assert_eq!(ranges.collect::<Vec<_>>(), [(0, 2), (9, 9), (16382, 16383)]);
        assert_eq!(set.bitmap()[0], 0b111);
        let copy = SlotSet::from_bitmap(set.bitmap()).expect("a whole bitmap");
        assert!(copy == set && copy.len() == 6);
        assert!(set.set(SlotIndex::from_index(1), false) && !set.contains(SlotIndex::from_index(1)));
        assert!(SlotSet::from_bitmap(&[0; 7]).is_none());
        assert_eq!(SlotIndex::new(u16::MAX), None, "there is no such slot");
    }
}

//! A bucket: one cache line with seven entries, their tags, and the number of entries that passed over it.
//!
//! ```text
//!   0        8        16                          56       63  64
//!   +--------+--------+-- ... --------------------+--------+---+
//!   | word 0 | word 1 |                    word 6 | 7 tags | o |
//!   +--------+--------+-- ... --------------------+--------+---+
//!
//!   word:  [ placement bits 8..27 | address of the entry / 8 ]      null when the slot is free
//!            63                45   44                     0
//!   tag:   placement bits 0..8
//!   o:     number of entries that passed over this bucket when they were inserted; 255 is permanent
//! ```
//!
//! A [`Placement`] is 27 bits of the hash, and tag and word together store all of them. So a lookup dereferences an
//! entry only if all 27 bits match, and growing, shrinking, splitting and merging need neither the entries (cold
//! memory) nor the hash function.

use crate::shape::ALIGNMENT;

/// The number of hash bits that place an entry, all of which its bucket stores.
pub(crate) const PLACEMENT_BITS: u32 = 27;
/// One more than the greatest placement.
pub(crate) const PLACEMENTS: u32 = 1 << PLACEMENT_BITS;
/// The number of slots in a bucket.
pub(crate) const SLOTS: usize = 7;

/// The lowest hash bit that the placement uses; the 14 bits above its 27 may choose the slot of the keyspace.
const LOWEST_HASH_BIT: u32 = 23;
const TAG_BITS: u32 = 8;
const HIGH_SHIFT: u32 = 45;
/// Entries are aligned to this power of two.
const ALIGNMENT_BITS: u32 = 3;
/// All entries have addresses below this power of two.
const ADDRESS_BITS: u32 = 48;
const OVERFLOW: usize = 7;
const STICKY: u8 = u8::MAX;

const _: () = assert!(size_of::<Bucket>() == 64 && align_of::<Bucket>() == 64);
const _: () = assert!(size_of::<usize>() == 8, "a word holds an address and 19 hash bits");
const _: () = assert!(ALIGNMENT == 1 << ALIGNMENT_BITS && HIGH_SHIFT + ALIGNMENT_BITS == ADDRESS_BITS);
const _: () = assert!(PLACEMENT_BITS - TAG_BITS + HIGH_SHIFT == u64::BITS);

/// The hash bits that place an entry: a number that increases with the position in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placement(u32);

impl Placement {
    #[inline]
    pub(crate) fn of_hash(hash: u64) -> Self {
        Self((hash >> LOWEST_HASH_BIT) as u32 & (PLACEMENTS - 1))
    }

    #[inline]
    pub(crate) fn new(number: u32) -> Self {
        debug_assert!(number < PLACEMENTS);
        Self(number)
    }

    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    #[inline]
    fn tag(self) -> u8 {
        self.0 as u8
    }

    #[inline]
    fn high(self) -> usize {
        (self.0 >> TAG_BITS) as usize
    }

    /// Returns the bucket where the probe for this placement starts, in a segment of `buckets` buckets whose first
    /// `depth` bits the directory has used up. Monotone in the placement.
    #[inline]
    pub(crate) fn home(self, depth: u8, buckets: usize) -> usize {
        let rest = (u64::from(self.0) << depth) & u64::from(PLACEMENTS - 1);
        ((rest * buckets as u64) >> PLACEMENT_BITS) as usize
    }

    /// Returns `true` if a split at `depth` sends this placement to the upper half.
    #[inline]
    pub(crate) fn is_upper_half(self, depth: u8) -> bool {
        self.0 >> (PLACEMENT_BITS - 1 - u32::from(depth)) & 1 == 1
    }

    /// Returns the position of this placement in a directory of 2^`depth` segments.
    #[inline]
    pub(crate) fn directory_index(self, depth: u8) -> usize {
        (self.0 >> (PLACEMENT_BITS - u32::from(depth))) as usize
    }
}

/// One cache line of the table.
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [*mut u8; SLOTS],
    tags: [u8; 8],
}

impl Bucket {
    /// Returns the entry in `slot`, null if the slot is free.
    #[inline]
    pub(crate) fn entry(&self, slot: usize) -> *mut u8 {
        self.words[slot].map_addr(|word| word << (u64::BITS - HIGH_SHIFT) >> (u64::BITS - ADDRESS_BITS))
    }

    /// Returns the placement of the entry in `slot`, which is not free.
    #[inline]
    pub(crate) fn placement(&self, slot: usize) -> Placement {
        debug_assert!(!self.words[slot].is_null());
        let high = (self.words[slot].addr() >> HIGH_SHIFT) as u32;
        Placement(high << TAG_BITS | u32::from(self.tags[slot]))
    }

    /// Stores `entry` in `slot`.
    #[inline]
    pub(crate) fn set(&mut self, slot: usize, entry: *mut u8, placement: Placement) {
        let address = entry.addr();
        assert!(
            address != 0 && address.is_multiple_of(ALIGNMENT) && address >> ADDRESS_BITS == 0,
            "an entry lies at a multiple of 8 below 2^48"
        );
        self.words[slot] = entry.map_addr(|a| a >> ALIGNMENT_BITS | placement.high() << HIGH_SHIFT);
        self.tags[slot] = placement.tag();
    }

    #[inline]
    pub(crate) fn clear(&mut self, slot: usize) {
        self.words[slot] = std::ptr::null_mut();
        self.tags[slot] = 0;
    }

    #[inline]
    pub(crate) fn free_slot(&self) -> Option<usize> {
        self.words.iter().position(|word| word.is_null())
    }

    /// Returns the slots whose tag matches `placement`, and perhaps a few others: check with [`Bucket::agrees`].
    #[inline]
    pub(crate) fn tag_matches(&self, placement: Placement) -> TagMatches {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const SEVEN_TOPS: u64 = 0x0080_8080_8080_8080;
        let differences = u64::from_le_bytes(self.tags) ^ (ONES * u64::from(placement.tag()));
        TagMatches(differences.wrapping_sub(ONES) & !differences & SEVEN_TOPS)
    }

    /// Returns `true` if `slot` holds an entry with all bits of `placement`.
    #[inline]
    pub(crate) fn agrees(&self, slot: usize, placement: Placement) -> bool {
        let word = self.words[slot].addr();
        word != 0 && word >> HIGH_SHIFT == placement.high() && self.tags[slot] == placement.tag()
    }

    /// Returns `true` if an entry whose home is this bucket or an earlier one may be stored after this bucket.
    #[inline]
    pub(crate) fn is_overflowed(&self) -> bool {
        self.tags[OVERFLOW] != 0
    }

    /// Records that an entry passed over this full bucket.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.tags[OVERFLOW] = self.tags[OVERFLOW].saturating_add(1);
    }

    /// Undoes one [`Bucket::pass`]; a count that once saturated stays.
    #[inline]
    pub(crate) fn unpass(&mut self) {
        if self.tags[OVERFLOW] != STICKY {
            self.tags[OVERFLOW] -= 1;
        }
    }
}

/// The slots of a bucket whose tag matched, ascending.
pub(crate) struct TagMatches(u64);

impl Iterator for TagMatches {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = (self.0.trailing_zeros() / 8) as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

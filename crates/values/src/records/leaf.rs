//! A leaf of the index: the ids of the records in one range of hashes, sorted by a tag.
//!
//! ```text
//!   hash of a record:  | depth bits, the same in all of the leaf | ...
//!                      |<- base, a multiple of 4 ->|<----------- tag, 16 bits ----------->| not kept |
//!
//!   entries:           | tag id | tag id | tag id | ...         an id takes as few bytes as the leaf's ids need
//! ```
//!
//! Hashes are uniformly distributed, so the position of a tag can be computed almost exactly. The remaining search
//! takes a few steps, mostly within a cache line. When a leaf is split, its entries keep their tags. At every fourth
//! split the base advances; the records must then be read in order to hash them again.

use crate::relocation::PartMover;
use crate::size_class::{shrink_to_size_class, size_class};

/// The maximum number of entries of a leaf. A full leaf is split in two.
pub(super) const MAX_ENTRIES: usize = 256;
/// The maximum depth of a leaf. Beyond this number of equal leading bits of the hashes, a leaf grows instead of being
/// split.
pub(super) const MAX_DEPTH: u8 = 32;

const TAG_BYTES: usize = 2;
const TAG_BITS: u32 = 16;
/// The number of bytes that are prefetched before and after the computed position of an entry.
const PREFETCH_BYTES: usize = 48;

/// The range of the hashes that begin with the top `depth` bits of `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HashRange {
    pub(super) prefix: u32,
    pub(super) depth: u8,
}

impl HashRange {
    pub(super) const ALL: HashRange = HashRange { prefix: 0, depth: 0 };

    /// Returns the first hash of the range.
    pub(super) fn start(self) -> u64 {
        u64::from(self.prefix) << 32
    }

    /// Returns the first hash after the range, if there is one.
    pub(super) fn end(self) -> Option<u64> {
        match self.depth {
            0 => None,
            depth => self.start().checked_add(1 << (64 - depth)),
        }
    }

    pub(super) fn halves(self) -> [HashRange; 2] {
        let depth = self.depth + 1;
        let upper = self.prefix | 1 << (32 - depth);
        [self.prefix, upper].map(|prefix| HashRange { prefix, depth })
    }

    /// Returns the range of which this is a half.
    pub(super) fn parent(self) -> HashRange {
        let depth = self.depth - 1;
        HashRange {
            prefix: self.prefix & !(1 << (31 - depth)),
            depth,
        }
    }

    fn base(self) -> u32 {
        u32::from(self.depth & !3)
    }
}

/// Returns the allocation size for `bytes` bytes of a leaf with entries of `stride` bytes: half, two thirds or all of a
/// full leaf. The allocator has more size classes. But all leaves grow at the same time, and each additional class
/// would leave slabs behind that only a few late leaves use, one per slab.
fn leaf_class(bytes: usize, stride: usize) -> usize {
    let full = MAX_ENTRIES * stride;
    let two_thirds = full * 2 / 3;
    size_class(match bytes {
        _ if bytes <= full / 2 || bytes > full => bytes,
        _ if bytes <= two_thirds => two_thirds,
        _ => full,
    })
}

#[derive(Clone, Debug)]
pub(super) struct Leaf {
    entries: Vec<u8>,
    pub(super) stretch: HashRange,
    /// The number of entries. It is stored in order to save a division in every lookup.
    len: u32,
    /// The size of an id in bytes.
    width: u8,
}

// An index has one leaf for every 128 to 256 records.
const _: () = assert!(size_of::<Leaf>() <= 40);

impl Leaf {
    pub(super) fn new(stretch: HashRange) -> Self {
        Leaf {
            entries: Vec::new(),
            stretch,
            len: 0,
            width: 2,
        }
    }

    #[inline]
    fn stride(&self) -> usize {
        TAG_BYTES + usize::from(self.width)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.entries.capacity()
    }

    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.vec(&mut self.entries);
    }

    #[inline]
    fn tag_of(&self, hash: u64) -> u16 {
        (hash >> (64 - TAG_BITS - self.stretch.base())) as u16
    }

    #[inline]
    fn tag(&self, entry: usize) -> u16 {
        let at = entry * self.stride();
        u16::from_le_bytes([self.entries[at], self.entries[at + 1]])
    }

    #[inline]
    pub(super) fn id(&self, entry: usize) -> u64 {
        let at = entry * self.stride();
        if let Some(bytes) = self.entries.get(at..at + 8) {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            return u64::from_le_bytes(word) >> TAG_BITS & (u64::MAX >> (64 - 8 * self.width));
        }
        let mut word = [0; 8];
        word[..usize::from(self.width)].copy_from_slice(&self.entries[at + TAG_BYTES..at + self.stride()]);
        u64::from_le_bytes(word)
    }

    /// Returns the first entry whose tag is `tag` or greater.
    #[inline]
    fn lower_bound(&self, tag: u16) -> usize {
        let len = self.len();
        let mut entry = self.estimate_position(tag);
        if let Some(last) = len.checked_sub(1) {
            // The tag at the computed position shows how far off it is, except for a few entries.
            let seen = self.tag(entry.min(last));
            let off = (i64::from(tag) - i64::from(seen)) << self.fixed_bits();
            let by = (off * len as i64) >> TAG_BITS;
            entry = entry.saturating_add_signed(by as isize).min(len);
        }
        while entry < len && self.tag(entry) < tag {
            entry += 1;
        }
        while entry > 0 && self.tag(entry - 1) >= tag {
            entry -= 1;
        }
        entry
    }

    /// The number of leading bits of a tag that are the same in the whole leaf.
    #[inline]
    fn fixed_bits(&self) -> u32 {
        u32::from(self.stretch.depth) - self.stretch.base()
    }

    /// Returns the approximate position of the entry with this tag, assuming a uniform distribution of tags.
    #[inline]
    fn estimate_position(&self, tag: u16) -> usize {
        let within = usize::from(tag << self.fixed_bits());
        (within * self.len()) >> TAG_BITS
    }

    /// Returns the memory near the position of the entries with this hash.
    pub(super) fn search_memory(&self, hash: u64) -> &[u8] {
        let at = self.estimate_position(self.tag_of(hash)) * self.stride();
        let end = self.entries.len().min(at + PREFETCH_BYTES);
        &self.entries[at.saturating_sub(PREFETCH_BYTES)..end]
    }

    /// Returns the first entry that may have this hash and for whose id `is_it` returns `true`.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u64) -> bool) -> Option<usize> {
        let tag = self.tag_of(hash);
        let mut entry = self.lower_bound(tag);
        while entry < self.len() && self.tag(entry) == tag {
            if is_it(self.id(entry)) {
                return Some(entry);
            }
            entry += 1;
        }
        None
    }

    pub(super) fn insert(&mut self, hash: u64, id: u64) {
        self.widen_for(id);
        let tag = self.tag_of(hash);
        let stride = self.stride();
        let at = self.lower_bound(tag) * stride;
        self.reserve(self.len() + 1);
        let end = self.entries.len();
        self.entries.resize(end + stride, 0);
        self.entries.copy_within(at..end, at + stride);
        self.len += 1;
        self.write(at, tag, id);
    }

    /// Ensures that the leaf has capacity for `entries` entries.
    #[inline]
    fn reserve(&mut self, entries: usize) {
        let (stride, used) = (self.stride(), self.entries.len());
        if entries * stride > self.entries.capacity() {
            self.entries.reserve_exact(leaf_class(entries * stride, stride) - used);
        }
    }

    fn append(&mut self, tag: u16, id: u64) {
        self.widen_for(id);
        let end = self.entries.len();
        self.entries.resize(end + self.stride(), 0);
        self.len += 1;
        self.write(end, tag, id);
    }

    fn write(&mut self, at: usize, tag: u16, id: u64) {
        let end = at + self.stride();
        self.entries[at..at + TAG_BYTES].copy_from_slice(&tag.to_le_bytes());
        self.entries[at + TAG_BYTES..end].copy_from_slice(&id.to_le_bytes()[..usize::from(self.width)]);
    }

    #[inline]
    fn widen_for(&mut self, id: u64) {
        if id >> (8 * self.width) != 0 {
            self.widen((8 - id.leading_zeros() / 8) as u8);
        }
    }

    fn widen(&mut self, width: u8) {
        assert!(width <= 6, "an id has six bytes at most");
        let mut wider = Leaf {
            entries: Vec::new(),
            stretch: self.stretch,
            len: 0,
            width,
        };
        wider.reserve(self.len());
        for entry in 0..self.len() {
            wider.append(self.tag(entry), self.id(entry));
        }
        *self = wider;
    }

    pub(super) fn set_id(&mut self, entry: usize, id: u64) {
        self.widen_for(id);
        let tag = self.tag(entry);
        self.write(entry * self.stride(), tag, id);
    }

    pub(super) fn remove(&mut self, entry: usize) {
        let at = entry * self.stride();
        self.entries.drain(at..at + self.stride());
        self.len -= 1;
        if self.entries.capacity() > 2 * self.entries.len() {
            shrink_to_size_class(&mut self.entries);
        }
    }

    /// Splits the entries by the next bit of their hashes. `hash_of` returns the hash of an id.
    pub(super) fn split(self, hash_of: impl Fn(u64) -> u64) -> [Leaf; 2] {
        let upper_from = self.lower_bound(self.tag_of(self.stretch.halves()[1].start()));
        let [lower, upper] = self.stretch.halves();
        [
            self.split_part(lower, 0..upper_from, &hash_of),
            self.split_part(upper, upper_from..self.len(), &hash_of),
        ]
    }

    fn split_part(&self, stretch: HashRange, entries: std::ops::Range<usize>, hash_of: &impl Fn(u64) -> u64) -> Leaf {
        let mut leaf = Leaf::new(stretch);
        leaf.width = self.width;
        leaf.reserve(entries.len());
        if stretch.base() == self.stretch.base() {
            let bytes = entries.start * self.stride()..entries.end * self.stride();
            leaf.len = entries.len() as u32;
            leaf.entries.extend_from_slice(&self.entries[bytes]);
            return leaf;
        }
        let mut tags: Vec<(u16, u64)> = entries
            .map(|entry| self.id(entry))
            .map(|id| (leaf.tag_of(hash_of(id)), id))
            .collect();
        tags.sort_unstable();
        tags.into_iter().for_each(|(tag, id)| leaf.append(tag, id));
        leaf
    }

    /// Merges the leaves of the two halves of a range.
    pub(super) fn merge(lower: &Leaf, upper: &Leaf) -> Leaf {
        let mut leaf = Leaf::new(lower.stretch.parent());
        leaf.width = lower.width.max(upper.width);
        let len = lower.len() + upper.len();
        leaf.reserve(len);
        let shift = lower.stretch.base() - leaf.stretch.base();
        for half in [lower, upper] {
            let fixed = leaf.tag_of(half.stretch.start());
            for entry in 0..half.len() {
                // The bits that leave the base are taken from the range, and the last bits of the tag are dropped.
                let tag = if shift == 0 {
                    half.tag(entry)
                } else {
                    fixed & !(u16::MAX >> shift) | half.tag(entry) >> shift
                };
                leaf.append(tag, half.id(entry));
            }
        }
        leaf
    }

    /// Visits the entries from hash `from` on, at least `at_least` of them if available. Returns the hash from which to
    /// continue, or `None` at the end of the leaf.
    pub(super) fn scan(&self, from: u64, at_least: usize, visit: &mut dyn FnMut(u64)) -> Option<u64> {
        let first = if from <= self.stretch.start() {
            0
        } else {
            self.lower_bound(self.tag_of(from))
        };
        for entry in first..self.len() {
            let tag = self.tag(entry);
            if entry - first >= at_least && entry > first && self.tag(entry - 1) != tag {
                let base = self.stretch.base();
                let fixed = self.stretch.start() & !(u64::MAX >> base);
                return Some(fixed | u64::from(tag) << (64 - TAG_BITS - base));
            }
            visit(self.id(entry));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the size of a leaf.

    use super::*;

    #[test]
    fn a_leaf_passes_through_two_sizes_on_its_way_from_half_full_to_full() {
        for width in 2..=6 {
            let stride = TAG_BYTES + width;
            let full = MAX_ENTRIES * stride;
            let mut sizes: Vec<usize> = (MAX_ENTRIES / 2 + 1..=MAX_ENTRIES)
                .map(|entries| leaf_class(entries * stride, stride))
                .collect();
            sizes.dedup();
            assert_eq!(sizes, [size_class(full * 2 / 3), size_class(full)]);
        }
        for bytes in [4, 100, 700, 5000] {
            assert_eq!(
                leaf_class(bytes, 6),
                size_class(bytes),
                "few entries, or more than a full leaf has"
            );
        }
    }
}

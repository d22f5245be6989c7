//! A leaf of the index: the ids of the records in one stretch of hashes, sorted by a tag.
//!
//! ```text
//!   hash of a record:  | depth bits, the same in all of the leaf | ...
//!                      |<- base, a multiple of 4 ->|<----------- tag, 16 bits ----------->| not kept |
//!
//!   entries:           | tag id | tag id | tag id | ...         an id takes as few bytes as the leaf's ids need
//! ```
//!
//! Hashes are as good as random, so where a tag is can be computed nearly exactly; the rest is a step or a few to the
//! side, mostly within a cache line. A leaf in two halves keeps the tags of its entries, except that every fourth
//! time, when the base moves on, the records are read to hash them again.

use crate::size_class::{shrink_to_class, size_class};

/// A leaf of more entries is split in two.
pub(super) const MAX_ENTRIES: usize = 256;
/// No leaf is split further; beyond this many equal bits of a hash, a leaf grows instead.
pub(super) const MAX_DEPTH: u8 = 32;

const TAG_BYTES: usize = 2;
const TAG_BITS: u32 = 16;
/// How far from its computed place an entry is looked for in advance, bytes.
const PLACE_BYTES: usize = 48;

/// The hashes that begin with the top `depth` bits of `prefix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) prefix: u32,
    pub(super) depth: u8,
}

impl Stretch {
    pub(super) const EVERYTHING: Stretch = Stretch { prefix: 0, depth: 0 };

    /// The first hash.
    pub(super) fn start(self) -> u64 {
        u64::from(self.prefix) << 32
    }

    /// The first hash behind, if there are any.
    pub(super) fn end(self) -> Option<u64> {
        match self.depth {
            0 => None,
            depth => self.start().checked_add(1 << (64 - depth)),
        }
    }

    pub(super) fn halves(self) -> [Stretch; 2] {
        let depth = self.depth + 1;
        let upper = self.prefix | 1 << (32 - depth);
        [self.prefix, upper].map(|prefix| Stretch { prefix, depth })
    }

    /// The stretch of which this is a half.
    pub(super) fn parent(self) -> Stretch {
        let depth = self.depth - 1;
        Stretch {
            prefix: self.prefix & !(1 << (31 - depth)),
            depth,
        }
    }

    fn base(self) -> u32 {
        u32::from(self.depth & !3)
    }
}

/// What so many bytes of a leaf take, with entries of `stride` bytes: a half, two thirds or all of a full leaf. The
/// allocator has more classes, but leaves grow all at the same time, and each class that they pass through is left to the few
/// that come late, one in every slab.
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
    pub(super) stretch: Stretch,
    /// How many entries there are: a division less for every look.
    len: u32,
    /// Bytes of an id.
    width: u8,
}

// An index has one for every 128 to 256 records.
const _: () = assert!(size_of::<Leaf>() <= 40);

impl Leaf {
    pub(super) fn new(stretch: Stretch) -> Self {
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

    /// The first entry whose tag is `tag` or greater.
    #[inline]
    fn lower_bound(&self, tag: u16) -> usize {
        let len = self.len();
        let mut entry = self.computed(tag);
        if let Some(last) = len.checked_sub(1) {
            // What is there tells how far off that was, but for a few entries.
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

    /// How many of a tag's bits are the same in all of the leaf.
    #[inline]
    fn fixed_bits(&self) -> u32 {
        u32::from(self.stretch.depth) - self.stretch.base()
    }

    /// About which entry has this tag, if tags are spread evenly.
    #[inline]
    fn computed(&self, tag: u16) -> usize {
        let within = usize::from(tag << self.fixed_bits());
        (within * self.len()) >> TAG_BITS
    }

    /// About where the entries with this hash are.
    pub(super) fn place(&self, hash: u64) -> &[u8] {
        let at = self.computed(self.tag_of(hash)) * self.stride();
        let end = self.entries.len().min(at + PLACE_BYTES);
        &self.entries[at.saturating_sub(PLACE_BYTES)..end]
    }

    /// The first entry that may have this hash and for whose id `is_it` holds.
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
        self.make_room(self.len() + 1);
        let end = self.entries.len();
        self.entries.resize(end + stride, 0);
        self.entries.copy_within(at..end, at + stride);
        self.len += 1;
        self.write(at, tag, id);
    }

    /// Sees to it that so many entries have room.
    #[inline]
    fn make_room(&mut self, entries: usize) {
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
        wider.make_room(self.len());
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
            shrink_to_class(&mut self.entries);
        }
    }

    /// Divides the entries by the next bit of their hashes; `hash_of` tells the hash of an id.
    pub(super) fn split(self, hash_of: impl Fn(u64) -> u64) -> [Leaf; 2] {
        let upper_from = self.lower_bound(self.tag_of(self.stretch.halves()[1].start()));
        let [lower, upper] = self.stretch.halves();
        [
            self.part(lower, 0..upper_from, &hash_of),
            self.part(upper, upper_from..self.len(), &hash_of),
        ]
    }

    fn part(&self, stretch: Stretch, entries: std::ops::Range<usize>, hash_of: &impl Fn(u64) -> u64) -> Leaf {
        let mut leaf = Leaf::new(stretch);
        leaf.width = self.width;
        leaf.make_room(entries.len());
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

    /// Makes one leaf of the two halves of a stretch.
    pub(super) fn merge(lower: &Leaf, upper: &Leaf) -> Leaf {
        let mut leaf = Leaf::new(lower.stretch.parent());
        leaf.width = lower.width.max(upper.width);
        let len = lower.len() + upper.len();
        leaf.make_room(len);
        let shift = lower.stretch.base() - leaf.stretch.base();
        for half in [lower, upper] {
            let fixed = leaf.tag_of(half.stretch.start());
            for entry in 0..half.len() {
                // The bits that leave the base come from the stretch, and push out the tag's last ones.
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

    /// Visits the entries from hash `from` on, `at_least` of them if there are so many; `None` when the leaf is
    /// through, else the hash to go on from.
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
    //! Tests of a leaf's size.

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

//! The index from the hash of a member to the number of the leaf that contains it.
//!
//! ```text
//!   directory   by the hash's first bits     00     01     10     11
//!                                             |      |       \    /
//!   segments    up to 2048 members each      [0]    [1]       [2]          extendible hashing
//!
//!   a segment   [ . | 41>7 | 43>2 | 58>7 | . | 90>4 | ... ]                hash > leaf, in hash order
//! ```
//!
//! A segment is a table with linear probing in which the entries are in hash order. The home slot of an entry is
//! proportional to its hash, and an insertion moves the entries with larger hashes up by one. So growing a segment is
//! one sequential pass, and the whole index is in hash order however it has grown: a scan that remembers the last hash
//! visits every member that stays. A full segment is split in two, and two that are nearly empty are merged. No
//! operation ever rehashes more than one segment.
//!
//! An entry contains 32 bits of the hash. The search in the leaf decides if a member with such a hash is the requested
//! one.

use std::ops::Range;

use super::room::{allocated_bytes, shrink_if_sparse};
use crate::relocation::{PartCursor, PartMover, relocate_parts};
use crate::size_class::size_class;

/// An entry: 32 bits of the hash and 32 bits of the leaf number plus one. 0 is an empty slot.
type IndexEntry = u64;

const EMPTY: IndexEntry = 0;
/// The number of entries at which a segment is split.
const MAX_SEGMENT_ENTRIES: usize = 2048;
/// The number of slots after the last home slot.
const OVERFLOW_SLOTS: usize = 32;
/// The number of slots that a search usually reads.
const PREFETCHED_SLOTS: usize = 4;
/// The minimum number of entries for which a segment has capacity.
const MIN_SEGMENT_ENTRIES: usize = 96;
/// Two segments are merged once they have fewer entries together.
const MERGED_SEGMENT_ENTRIES: usize = MIN_SEGMENT_ENTRIES * 3 / 4;

#[inline]
fn entry(hash: u32, leaf: u32) -> IndexEntry {
    u64::from(hash) << 32 | (u64::from(leaf) + 1)
}

#[inline]
fn hash_of(entry: IndexEntry) -> u32 {
    (entry >> 32) as u32
}

#[inline]
fn leaf_of(entry: IndexEntry) -> u32 {
    (entry as u32).wrapping_sub(1)
}

/// A part of the index: the entries whose hashes begin with the same bits.
#[derive(Clone, Debug)]
struct Segment {
    slots: Box<[IndexEntry]>,
    len: u32,
    /// The number of leading bits that the hashes of all entries share.
    depth: u32,
    /// These bits, followed by zeros.
    prefix: u32,
}

impl Segment {
    fn with_capacity(entries: usize, depth: u32, prefix: u32) -> Self {
        // Seven entries per eight slots, and the rest of the size class.
        let wanted = entries.max(MIN_SEGMENT_ENTRIES) * 8 / 7 + OVERFLOW_SLOTS;
        let places = size_class(wanted * size_of::<IndexEntry>()) / size_of::<IndexEntry>();
        Self {
            slots: vec![EMPTY; places].into_boxed_slice(),
            len: 0,
            depth,
            prefix,
        }
    }

    fn allocated_bytes(&self) -> usize {
        self.slots.len() * size_of::<IndexEntry>()
    }

    /// Returns the home slot of an entry with this hash.
    #[inline]
    fn home_slot(&self, hash: u32) -> usize {
        let homes = (self.slots.len() - OVERFLOW_SLOTS) as u64;
        // The shared bits are removed.
        let own = u64::from(hash) << self.depth & 0xFFFF_FFFF;
        ((own * homes) >> 32) as usize
    }

    /// Returns `true` if one more entry would make searches slow.
    fn is_full(&self) -> bool {
        (self.len as usize + 1) * 8 > (self.slots.len() - OVERFLOW_SLOTS) * 7
    }

    /// Inserts an entry. Returns `false` if there is no slot for it.
    fn insert(&mut self, new: IndexEntry) -> bool {
        let hash = hash_of(new);
        let mut at = self.home_slot(hash);
        while self
            .slots
            .get(at)
            .is_some_and(|found| *found != EMPTY && hash_of(*found) <= hash)
        {
            at += 1;
        }
        let free = self.slots[at.min(self.slots.len())..]
            .iter()
            .position(|found| *found == EMPTY);
        let Some(distance) = free else {
            return false;
        };
        self.slots.copy_within(at..at + distance, at + 1);
        self.slots[at] = new;
        self.len += 1;
        true
    }

    /// Returns the slots of the entries with a hash.
    #[inline]
    fn slots_of(&self, hash: u32) -> impl Iterator<Item = usize> {
        let home = self.home_slot(hash);
        self.slots[home..]
            .iter()
            .enumerate()
            .take_while(move |(_, found)| **found != EMPTY && hash_of(**found) <= hash)
            .filter(move |(_, found)| hash_of(**found) == hash)
            .map(move |(distance, _)| home + distance)
    }

    fn remove(&mut self, hash: u32, leaf: u32) -> bool {
        let wanted = entry(hash, leaf);
        let Some(at) = self.slots_of(hash).find(|at| self.slots[*at] == wanted) else {
            return false;
        };
        let mut end = at + 1;
        while end < self.slots.len() && self.slots[end] != EMPTY && self.home_slot(hash_of(self.slots[end])) < end {
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = EMPTY;
        self.len -= 1;
        true
    }

    /// Iterates over the entries in hash order.
    fn entries(&self) -> impl Iterator<Item = IndexEntry> + Clone {
        self.slots.iter().copied().filter(|found| *found != EMPTY)
    }

    /// Returns a segment with the same entries and capacity for `room` entries, or for more if the entries are too
    /// close together for that.
    fn resized(&self, room: usize) -> Self {
        Self::of(self.entries(), room, self.depth, self.prefix)
    }

    fn of(entries: impl Iterator<Item = IndexEntry> + Clone, room: usize, depth: u32, prefix: u32) -> Self {
        let mut room = room;
        loop {
            let mut segment = Self::with_capacity(room, depth, prefix);
            if entries.clone().all(|entry| segment.insert(entry)) {
                return segment;
            }
            room += room / 2;
        }
    }
}

/// The index of a sorted set.
#[derive(Clone, Debug)]
pub(super) struct Index {
    directory: Vec<u32>,
    segments: Vec<Segment>,
    depth: u32,
    /// The number of segments that have as many shared bits as the directory distinguishes.
    segments_at_full_depth: usize,
    allocated: usize,
}

impl Index {
    /// Creates an index with capacity for `members` members.
    pub(super) fn with_capacity(members: usize) -> Self {
        let depth = (members / (MAX_SEGMENT_ENTRIES / 4 * 3))
            .next_power_of_two()
            .trailing_zeros();
        let count = 1 << depth;
        let segments: Vec<Segment> = (0..count as u64)
            .map(|number| Segment::with_capacity(members / count, depth, (number << 32 >> depth) as u32))
            .collect();
        Self {
            directory: (0..count as u32).collect(),
            segments_at_full_depth: count,
            allocated: segments.iter().map(Segment::allocated_bytes).sum(),
            segments,
            depth,
        }
    }

    /// The number of bytes allocated in addition to the index itself.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.allocated + allocated_bytes(&self.directory) + allocated_bytes(&self.segments)
    }

    /// Moves the directory and the segments, which are the parts of this kind.
    pub(super) fn move_parts<M: PartMover>(&mut self, kind: u8, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        if from <= PartCursor::of_kind(kind) {
            mover.vec(&mut self.directory);
            mover.vec(&mut self.segments);
        }
        relocate_parts(&mut self.segments, kind, from, mover, |segment, mover| {
            mover.boxed_slice(&mut segment.slots);
        })
    }

    #[inline]
    fn segment_of(&self, hash: u32) -> usize {
        let slot = (u64::from(hash) << self.depth >> 32) as usize;
        self.directory[slot] as usize
    }

    /// Returns the address and length of the memory that a search for this hash reads first.
    pub(super) fn search_memory(&self, hash: u32) -> (*const u8, usize) {
        let segment = &self.segments[self.segment_of(hash)];
        let home = segment.slots.as_ptr().wrapping_add(segment.home_slot(hash));
        (home.cast(), PREFETCHED_SLOTS * size_of::<IndexEntry>())
    }

    /// Returns the numbers of the leaves that may contain a member with this hash.
    #[inline]
    pub(super) fn leaves(&self, hash: u32) -> impl Iterator<Item = u32> {
        let segment = &self.segments[self.segment_of(hash)];
        segment.slots_of(hash).map(|at| leaf_of(segment.slots[at]))
    }

    /// Adds the entry of a member with this hash in a leaf.
    pub(super) fn insert(&mut self, hash: u32, leaf: u32) {
        loop {
            let at = self.segment_of(hash);
            if !self.segments[at].is_full() && self.segments[at].insert(entry(hash, leaf)) {
                return;
            }
            self.grow(at);
        }
    }

    /// Removes the entry of a member with this hash in a leaf.
    ///
    /// # Panics
    ///
    /// Panics if there is no such entry.
    pub(super) fn remove(&mut self, hash: u32, leaf: u32) {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        assert!(
            segment.remove(hash, leaf),
            "a member of the sorted set is not in its index"
        );
        let room = segment.slots.len() - OVERFLOW_SLOTS;
        if (segment.len as usize) < room / 4 && room > 2 * MIN_SEGMENT_ENTRIES {
            self.replace(at, self.segments[at].resized(room / 2));
        } else if (segment.len as usize) < MERGED_SEGMENT_ENTRIES {
            self.merge_with_sibling(at);
        }
    }

    /// Changes the leaf of a member with this hash.
    ///
    /// # Panics
    ///
    /// Panics if there is no entry for the leaf `from`.
    pub(super) fn relocate(&mut self, hash: u32, from: u32, to: u32) {
        let at = self.segment_of(hash);
        let segment = &mut self.segments[at];
        let wanted = entry(hash, from);
        let place = segment.slots_of(hash).find(|place| segment.slots[*place] == wanted);
        let place = place.expect("every member of the sorted set is in its index");
        segment.slots[place] = entry(hash, to);
    }

    fn grow(&mut self, at: usize) {
        let segment = &self.segments[at];
        let len = segment.len as usize;
        if len < MAX_SEGMENT_ENTRIES || segment.depth >= 31 {
            self.replace(at, segment.resized(len + len / 4 + 1));
            return;
        }
        self.split(at);
    }

    fn replace(&mut self, at: usize, segment: Segment) {
        self.allocated -= self.segments[at].allocated_bytes();
        self.allocated += segment.allocated_bytes();
        self.segments[at] = segment;
    }

    fn split(&mut self, at: usize) {
        let depth = self.segments[at].depth + 1;
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth = depth;
            self.segments_at_full_depth = 0;
        }
        if depth == self.depth {
            self.segments_at_full_depth += 2;
        }
        let old = &self.segments[at];
        let prefixes = [old.prefix, old.prefix | 1 << (32 - depth)];
        let is_upper = |entry: &IndexEntry| hash_of(*entry) >> (32 - depth) & 1 == 1;
        let upper = old.entries().filter(is_upper);
        let lower = old.entries().filter(|entry| !is_upper(entry));
        let room = |count: usize| count + count / 4;
        let upper = Segment::of(upper.clone(), room(upper.count()), depth, prefixes[1]);
        let lower = Segment::of(lower.clone(), room(lower.count()), depth, prefixes[0]);
        let number = self.segments.len() as u32;
        self.allocated += upper.allocated_bytes();
        self.replace(at, lower);
        self.segments.push(upper);
        self.point_to(number);
    }

    /// Returns the directory entries of a segment.
    fn run_of(&self, segment: &Segment) -> Range<usize> {
        let start = (u64::from(segment.prefix) << self.depth >> 32) as usize;
        start..start + (1 << (self.depth - segment.depth))
    }

    /// Sets the directory entries of a segment to its number.
    fn point_to(&mut self, number: u32) {
        let run = self.run_of(&self.segments[number as usize]);
        self.directory[run].fill(number);
    }

    /// Merges a segment with the one whose hashes differ in the last of the bits that are shared, if both have few
    /// entries. Otherwise an index that has shrunk would consist of nearly empty segments.
    fn merge_with_sibling(&mut self, at: usize) {
        let segment = &self.segments[at];
        if segment.depth == 0 {
            return;
        }
        let sibling_prefix = segment.prefix ^ 1 << (32 - segment.depth);
        let sibling_at = self.segment_of(sibling_prefix);
        let sibling = &self.segments[sibling_at];
        let entries = (segment.len + sibling.len) as usize;
        if sibling.depth != segment.depth || entries >= MERGED_SEGMENT_ENTRIES {
            return;
        }
        let (lower, upper) = match segment.prefix < sibling.prefix {
            true => (segment, sibling),
            false => (sibling, segment),
        };
        let depth = segment.depth - 1;
        let both = lower.entries().chain(upper.entries());
        let merged = Segment::of(both, entries, depth, lower.prefix);
        let was_at_full_depth = segment.depth == self.depth;
        self.replace(at, merged);
        self.point_to(at as u32);
        self.remove_segment(sibling_at);
        if was_at_full_depth {
            self.segments_at_full_depth -= 2;
            self.shrink_directory();
        }
    }

    /// Removes a segment that the directory no longer contains. The last segment gets its number.
    fn remove_segment(&mut self, at: usize) {
        let removed = self.segments.swap_remove(at);
        self.allocated -= removed.allocated_bytes();
        if at < self.segments.len() {
            self.point_to(at as u32);
        }
        shrink_if_sparse(&mut self.segments);
    }

    /// Halves the directory as long as no segment needs its last bit.
    fn shrink_directory(&mut self) {
        while self.segments_at_full_depth == 0 && self.depth > 0 {
            self.directory = self.directory.iter().copied().step_by(2).collect();
            self.depth -= 1;
            let is_at_full_depth = |segment: &&Segment| segment.depth == self.depth;
            self.segments_at_full_depth = self.segments.iter().filter(is_at_full_depth).count();
        }
    }

    /// Iterates over the entries from a hash on, in order, as pairs of hash and leaf number.
    pub(super) fn entries_from(&self, hash: u32) -> impl Iterator<Item = (u32, u32)> {
        let mut slot = (u64::from(hash) << self.depth >> 32) as usize;
        let mut place = self.segments[self.directory[slot] as usize].home_slot(hash);
        std::iter::from_fn(move || {
            loop {
                let number = *self.directory.get(slot)?;
                let segment = &self.segments[number as usize];
                while let Some(found) = segment.slots.get(place) {
                    place += 1;
                    if *found != EMPTY && hash_of(*found) >= hash {
                        return Some((hash_of(*found), leaf_of(*found)));
                    }
                }
                place = 0;
                let run = 1 << (self.depth - segment.depth);
                slot = (slot / run + 1) * run;
            }
        })
    }
}

#[cfg(test)]
mod tests;

//! A leaf: up to 128 members of a sorted set in order.
//!
//! ```text
//!   slot       0     1     2     3
//!   scores   [1.0] [1.0] [2.5] [7.0]      sorted by (score, member)
//!   tags     [3f]  [a0]  [11]  [3f]       8 bits of the member's hash
//!   offsets  [ 9]  [ 0]  [ 4]  [14]       start of its record
//!   bytes    3 "abd"  4 "pear" 4 "kiwi" 1 "z"     records: length, member
//! ```
//!
//! A member is found by its tag, and its slot is its rank within the leaf, so no second search is needed. Insertions
//! and removals only shift the three narrow arrays. Records are appended, and leave holes when they are removed. When
//! holes take a quarter of the records' space, or when the records need more capacity, they are rewritten in order, so
//! that an iteration over the members reads memory sequentially.

use std::cmp::Ordering;

use super::member_hash::member_hash;
use super::room::{allocated_bytes, reserve, shrink};
use crate::relocation::PartMover;
use crate::scan_page::visit_page;

/// The maximum number of members of a leaf.
pub(super) const MAX_MEMBERS: usize = 128;
/// The size of the records, in bytes, above which a leaf of more than one member is split.
pub(super) const MAX_BYTES: usize = 16 * 1024;
/// The length byte of a long record. Lengths from this value on are written in four bytes after it.
const LONG: u8 = 0xFF;
/// The total size of holes, in bytes, up to which they are not removed.
const HOLES_MIN_BYTES: usize = 128;

/// Members in order, with their scores.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    scores: Vec<f64>,
    offsets: Vec<u32>,
    tags: Vec<u8>,
    bytes: Vec<u8>,
    holes: u32,
    /// The number of the parent node, in a tree of more than one leaf.
    pub(super) parent: u32,
    /// The number of the previous leaf in the order of the members.
    pub(super) previous: u32,
    /// The number of the next leaf.
    pub(super) next: u32,
}

/// Returns the size of a member's record in bytes.
pub(super) fn record_bytes(member: &[u8]) -> usize {
    header_bytes(member.len()) + member.len()
}

fn header_bytes(length: usize) -> usize {
    if length < usize::from(LONG) { 1 } else { 5 }
}

/// Returns the start of the member in the record at an offset, and its length.
#[inline]
fn record_at(bytes: &[u8], at: usize) -> (usize, usize) {
    match bytes[at] {
        LONG => {
            let mut length = [0; 4];
            length.copy_from_slice(&bytes[at + 1..at + 5]);
            (at + 5, u32::from_le_bytes(length) as usize)
        }
        length => (at + 1, usize::from(length)),
    }
}

impl Leaf {
    /// Creates an empty leaf with capacity for `members` members and `bytes` bytes of records.
    pub(super) fn with_capacity(members: usize, bytes: usize) -> Self {
        let mut leaf = Self::default();
        reserve(&mut leaf.scores, members);
        reserve(&mut leaf.offsets, members);
        reserve(&mut leaf.tags, members);
        reserve(&mut leaf.bytes, bytes);
        leaf
    }

    /// The number of members.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    /// The size of the records in bytes, without holes.
    #[inline]
    pub(super) fn record_bytes(&self) -> usize {
        self.bytes.len() - self.holes as usize
    }

    /// Returns `true` if the leaf must be split.
    #[inline]
    pub(super) fn is_too_large(&self) -> bool {
        self.len() > MAX_MEMBERS || (self.bytes.len() > MAX_BYTES && self.len() > 1 && self.record_bytes() > MAX_BYTES)
    }

    /// The number of bytes allocated in addition to the leaf itself.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        allocated_bytes(&self.scores)
            + allocated_bytes(&self.offsets)
            + allocated_bytes(&self.tags)
            + allocated_bytes(&self.bytes)
    }

    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.vec(&mut self.scores);
        mover.vec(&mut self.offsets);
        mover.vec(&mut self.tags);
        mover.vec(&mut self.bytes);
    }

    /// Returns the score in a slot.
    #[inline]
    pub(super) fn score(&self, slot: usize) -> f64 {
        self.scores[slot]
    }

    /// Returns the member in a slot.
    #[inline]
    pub(super) fn member(&self, slot: usize) -> &[u8] {
        let at = self.offsets[slot] as usize;
        let (start, length) = record_at(&self.bytes, at);
        &self.bytes[start..start + length]
    }

    /// Returns the slot of a member whose hash has this tag.
    #[inline]
    pub(super) fn find(&self, tag: u8, member: &[u8]) -> Option<usize> {
        memchr::memchr_iter(tag, &self.tags).find(|slot| self.member(*slot) == member)
    }

    /// Returns the tags, which a search for a member reads first.
    pub(super) fn tags(&self) -> &[u8] {
        &self.tags
    }

    /// Iterates over the slots of the members whose hashes have this tag.
    pub(super) fn slots_of_tag(&self, tag: u8) -> impl Iterator<Item = usize> {
        memchr::memchr_iter(tag, &self.tags)
    }

    /// Calls `visit` for the members from hash prefix `from` on, as
    /// [`SortedSet::scan`](super::SortedSet::scan) does for a tree of leaves.
    pub(super) fn scan<'l>(&'l self, from: u32, count: usize, mut visit: impl FnMut(&'l [u8], f64)) -> u64 {
        let mut left: Vec<(u64, usize)> = (0..self.len())
            .map(|slot| (member_hash(self.member(slot)).prefix(), slot))
            .filter(|(prefix, _)| *prefix >= from)
            .map(|(prefix, slot)| (u64::from(prefix), slot))
            .collect();
        visit_page(&mut left, count, |slot| visit(self.member(slot), self.score(slot))).unwrap_or(0)
    }

    /// Returns the first slot for which `precedes(score, member)` returns `false`. It must return `true` for all slots
    /// before.
    #[inline]
    pub(super) fn partition<'l, P>(&'l self, mut precedes: P) -> usize
    where
        P: FnMut(f64, &mut dyn FnMut() -> &'l [u8]) -> bool,
    {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if precedes(self.scores[middle], &mut || self.member(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Inserts a member at a slot.
    pub(super) fn insert(&mut self, slot: usize, score: f64, member: &[u8], tag: u8) {
        reserve(&mut self.scores, 1);
        reserve(&mut self.offsets, 1);
        reserve(&mut self.tags, 1);
        if self.bytes.capacity() - self.bytes.len() < record_bytes(member) {
            self.compact(record_bytes(member));
        }
        let offset = self.append_record(member);
        self.scores.insert(slot, score);
        self.offsets.insert(slot, offset);
        self.tags.insert(slot, tag);
    }

    fn append_record(&mut self, member: &[u8]) -> u32 {
        let offset = self.bytes.len() as u32;
        reserve(&mut self.bytes, record_bytes(member));
        if member.len() < usize::from(LONG) {
            self.bytes.push(member.len() as u8);
        } else {
            self.bytes.push(LONG);
            self.bytes.extend((member.len() as u32).to_le_bytes());
        }
        self.bytes.extend_from_slice(member);
        offset
    }

    /// Removes the member in a slot.
    pub(super) fn remove(&mut self, slot: usize) {
        self.drop_record(slot);
        self.scores.remove(slot);
        self.offsets.remove(slot);
        self.tags.remove(slot);
        self.compact_if_sparse();
    }

    /// Removes the members in a range of slots.
    pub(super) fn remove_range(&mut self, slots: std::ops::Range<usize>) {
        for slot in slots.clone() {
            self.drop_record(slot);
        }
        self.scores.drain(slots.clone());
        self.offsets.drain(slots.clone());
        self.tags.drain(slots);
        self.compact_if_sparse();
    }

    fn drop_record(&mut self, slot: usize) {
        let at = self.offsets[slot] as usize;
        let (start, length) = record_at(&self.bytes, at);
        let end = start + length;
        if end == self.bytes.len() {
            self.bytes.truncate(at);
        } else {
            self.holes += (end - at) as u32;
        }
    }

    /// Rewrites the records if more than a quarter of their space is holes.
    fn compact_if_sparse(&mut self) {
        let holes = self.holes as usize;
        if holes > self.bytes.len() / 4 && holes > HOLES_MIN_BYTES {
            self.compact(0);
        }
    }

    /// Rewrites the records in the order of their members, with capacity for `more` more bytes.
    fn compact(&mut self, more: usize) {
        let mut bytes = Vec::new();
        reserve(&mut bytes, self.record_bytes() + more);
        for offset in &mut self.offsets {
            let at = *offset as usize;
            let (start, length) = record_at(&self.bytes, at);
            *offset = bytes.len() as u32;
            bytes.extend_from_slice(&self.bytes[at..start + length]);
        }
        self.bytes = bytes;
        self.holes = 0;
    }

    /// Copies some of the members to a new leaf without spare capacity, with the same parent and neighbours.
    fn copy_of(&self, slots: std::ops::Range<usize>) -> Self {
        let bytes = slots.clone().map(|slot| record_bytes(self.member(slot))).sum();
        let mut copy = Self {
            parent: self.parent,
            previous: self.previous,
            next: self.next,
            ..Self::with_capacity(slots.len(), bytes)
        };
        copy.scores.extend_from_slice(&self.scores[slots.clone()]);
        copy.tags.extend_from_slice(&self.tags[slots.clone()]);
        for slot in slots {
            let offset = copy.append_record(self.member(slot));
            copy.offsets.push(offset);
        }
        copy
    }

    /// Moves a member to another slot and changes its score. The slots between shift by one.
    pub(super) fn move_slot(&mut self, from: usize, to: usize, score: f64) {
        self.scores[from] = score;
        if from < to {
            self.scores[from..=to].rotate_left(1);
            self.offsets[from..=to].rotate_left(1);
            self.tags[from..=to].rotate_left(1);
        } else {
            self.scores[to..=from].rotate_right(1);
            self.offsets[to..=from].rotate_right(1);
            self.tags[to..=from].rotate_right(1);
        }
    }

    /// Splits off the members from a slot on.
    pub(super) fn split_off(&mut self, slot: usize) -> Self {
        let upper = self.copy_of(slot..self.len());
        if slot + 1 == self.len() {
            // Members are added in ascending order: the remaining leaf is full and will not grow.
            self.remove(slot);
            shrink(&mut self.bytes);
        } else {
            *self = self.copy_of(0..slot);
        }
        upper
    }

    /// Appends the members of the next leaf.
    pub(super) fn append(&mut self, other: &Self) {
        reserve(&mut self.scores, other.len());
        reserve(&mut self.offsets, other.len());
        reserve(&mut self.tags, other.len());
        reserve(&mut self.bytes, other.record_bytes());
        self.scores.extend_from_slice(&other.scores);
        self.tags.extend_from_slice(&other.tags);
        for slot in 0..other.len() {
            let offset = self.append_record(other.member(slot));
            self.offsets.push(offset);
        }
    }

    /// Returns the slot at which to split: the middle by number or by bytes, or the last member if members are added in
    /// ascending order.
    pub(super) fn split_slot(&self, inserted: usize) -> usize {
        let last = self.len() - 1;
        if inserted == last && self.next == super::tree::NO_NODE {
            return last;
        }
        if self.len() > MAX_MEMBERS {
            return self.len() / 2;
        }
        let half = self.record_bytes() / 2;
        let mut bytes = 0;
        let middle = (0..last).find(|slot| {
            bytes += record_bytes(self.member(*slot));
            bytes >= half
        });
        middle.map_or(last, |slot| slot + 1)
    }
}

/// The order of scores, none of which is NaN. -0 equals 0.
pub(super) trait ScoreOrder {
    /// Compares two scores.
    fn cmp_score(self, other: f64) -> Ordering;
}

impl ScoreOrder for f64 {
    #[inline]
    fn cmp_score(self, other: f64) -> Ordering {
        if self < other {
            Ordering::Less
        } else if self > other {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

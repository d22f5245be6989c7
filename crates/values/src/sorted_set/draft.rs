//! A sorted set that is built or changed outside the keyspace, and that changes from packed to large when necessary.

use std::ops::Range;

use crate::packed::MAX_PACKED_BYTES;

use super::packed::{PackedSortedSet, PackedSortedSetBuf};
use super::view::SortedSetView;
use super::{SortedSet, SortedSetEncoding};

/// The limits within which a sorted set reports the listpack encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedSetLimits {
    /// `zset-max-listpack-entries`.
    pub members: usize,
    /// `zset-max-listpack-value`, in bytes.
    pub member_bytes: usize,
}

impl SortedSetLimits {
    /// Returns `true` if a set of `members` members, whose longest has `longest_bytes` bytes, reports the listpack
    /// encoding.
    pub fn admits(&self, members: usize, longest_bytes: usize) -> bool {
        members <= self.members && longest_bytes <= self.member_bytes
    }
}

/// The effect of an upsert on a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpsertOutcome {
    /// No change: the member keeps its score or is not added.
    Unchanged,
    /// The member was added.
    Added,
    /// The score of the member was changed.
    Changed,
}

/// A sorted set that is not stored under a key yet, or a copy of a packed one.
#[derive(Clone, Debug)]
pub enum DetachedSortedSet {
    /// A packed sorted set.
    Packed(PackedSortedSetBuf),
    /// A large sorted set.
    Large(SortedSet),
}

impl DetachedSortedSet {
    /// Creates an empty set for `members` members, whose longest has `longest_bytes` bytes.
    pub fn new(members: usize, longest_bytes: usize, limits: SortedSetLimits) -> Self {
        if limits.admits(members, longest_bytes) {
            DetachedSortedSet::Packed(PackedSortedSetBuf::empty())
        } else {
            DetachedSortedSet::Large(SortedSet::new(SortedSetEncoding::Skiplist))
        }
    }

    /// Copies a packed set.
    pub fn from_packed(bytes: &[u8]) -> Self {
        DetachedSortedSet::Packed(PackedSortedSetBuf::copy_of(bytes))
    }

    /// Copies a packed set in order to add `more` members, whose longest has `longest_bytes` bytes.
    pub fn from_packed_with_more(bytes: &[u8], more: usize, longest_bytes: usize, limits: SortedSetLimits) -> Self {
        let packed = PackedSortedSet::new(bytes);
        if limits.admits(more, longest_bytes) {
            DetachedSortedSet::Packed(PackedSortedSetBuf::copy_of(bytes))
        } else {
            DetachedSortedSet::Large(SortedSet::from_packed(packed, SortedSetEncoding::Skiplist))
        }
    }

    /// Creates a set from distinct sorted members, with the encoding that the result of a command gets.
    pub fn from_sorted(members: &[(&[u8], f64)], limits: SortedSetLimits) -> Self {
        let longest_bytes = members.iter().map(|(member, _)| member.len()).max().unwrap_or(0);
        if !limits.admits(members.len(), longest_bytes) {
            return DetachedSortedSet::Large(SortedSet::from_sorted(members, SortedSetEncoding::Skiplist));
        }
        let bytes: usize = members.iter().map(|(member, _)| member.len() + 4).sum();
        if bytes > MAX_PACKED_BYTES {
            return DetachedSortedSet::Large(SortedSet::from_sorted(members, SortedSetEncoding::Listpack));
        }
        let mut packed = PackedSortedSetBuf::empty();
        for (member, score) in members {
            packed.push(member, *score);
        }
        let mut draft = DetachedSortedSet::Packed(packed);
        draft.convert_to_large_if_needed();
        draft
    }

    /// Returns a read-only view of the set.
    pub fn view(&self) -> SortedSetView<'_> {
        match self {
            DetachedSortedSet::Packed(packed) => SortedSetView::Packed(packed.view()),
            DetachedSortedSet::Large(set) => SortedSetView::Large(set),
        }
    }

    /// Adds a member or changes its score; see [`SortedSet::upsert`].
    pub fn upsert(
        &mut self,
        member: &[u8],
        limits: SortedSetLimits,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> UpsertOutcome {
        let packed = match self {
            DetachedSortedSet::Large(set) => return set.upsert(member, limits, decide),
            DetachedSortedSet::Packed(packed) => packed,
        };
        let before = packed.view().score(member);
        match (before, decide(before)) {
            (_, None) => UpsertOutcome::Unchanged,
            (Some(before), Some(score)) if before == score => UpsertOutcome::Unchanged,
            (Some(_), Some(score)) => {
                packed.change_score(member, score);
                self.convert_to_large_if_needed();
                UpsertOutcome::Changed
            }
            (None, Some(score)) => {
                if limits.admits(packed.view().len() + 1, member.len()) {
                    packed.insert(member, score);
                    self.convert_to_large_if_needed();
                } else {
                    let mut set = SortedSet::from_packed(packed.view(), SortedSetEncoding::Skiplist);
                    set.insert(member, score);
                    *self = DetachedSortedSet::Large(set);
                }
                UpsertOutcome::Added
            }
        }
    }

    fn convert_to_large_if_needed(&mut self) {
        if let DetachedSortedSet::Packed(packed) = self
            && packed.bytes().len() > MAX_PACKED_BYTES
        {
            *self = DetachedSortedSet::Large(SortedSet::from_packed(packed.view(), SortedSetEncoding::Listpack));
        }
    }

    /// Removes a member. Returns `true` if it was present.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            DetachedSortedSet::Packed(packed) => packed.remove(member),
            DetachedSortedSet::Large(set) => set.remove(member).is_some(),
        }
    }

    /// Removes the members in a range of ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        match self {
            DetachedSortedSet::Packed(packed) => packed.remove_ranks(ranks),
            DetachedSortedSet::Large(set) => set.remove_ranks(ranks),
        }
    }
}

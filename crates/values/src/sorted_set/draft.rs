//! A sorted set that is built or changed outside the keyspace, and that changes from packed to large when necessary.

use std::ops::Range;

use crate::packed::LARGEST_BYTES;

use super::packed::{Packed, PackedBytes};
use super::view::View;
use super::{Encoding, SortedSet};

/// The limits within which a sorted set reports the listpack encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `zset-max-listpack-entries`.
    pub members: usize,
    /// `zset-max-listpack-value`, in bytes.
    pub member_bytes: usize,
}

impl Limits {
    /// Returns `true` if a set of `members` members, whose longest has `longest_bytes` bytes, reports the listpack
    /// encoding.
    pub fn admit(&self, members: usize, longest_bytes: usize) -> bool {
        members <= self.members && longest_bytes <= self.member_bytes
    }
}

/// The effect of an upsert on a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Upsert {
    /// No change: the member keeps its score or is not added.
    Left,
    /// The member was added.
    Added,
    /// The score of the member was changed.
    Changed,
}

/// A sorted set that is not stored under a key yet, or a copy of a packed one.
#[derive(Clone, Debug)]
pub enum Draft {
    /// A packed sorted set.
    Packed(PackedBytes),
    /// A large sorted set.
    Large(SortedSet),
}

impl Draft {
    /// Creates an empty set for `members` members, whose longest has `longest_bytes` bytes.
    pub fn new(members: usize, longest_bytes: usize, limits: Limits) -> Self {
        if limits.admit(members, longest_bytes) {
            Draft::Packed(PackedBytes::empty())
        } else {
            Draft::Large(SortedSet::new(Encoding::Skiplist))
        }
    }

    /// Copies a packed set.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Draft::Packed(PackedBytes::copy_of(bytes))
    }

    /// Copies a packed set in order to add `more` members, whose longest has `longest_bytes` bytes.
    pub fn of_packed(bytes: &[u8], more: usize, longest_bytes: usize, limits: Limits) -> Self {
        let packed = Packed::new(bytes);
        if limits.admit(more, longest_bytes) {
            Draft::Packed(PackedBytes::copy_of(bytes))
        } else {
            Draft::Large(SortedSet::of_packed(packed, Encoding::Skiplist))
        }
    }

    /// Creates a set from distinct sorted members, with the encoding that the result of a command gets.
    pub fn of_sorted(members: &[(&[u8], f64)], limits: Limits) -> Self {
        let longest_bytes = members.iter().map(|(member, _)| member.len()).max().unwrap_or(0);
        if !limits.admit(members.len(), longest_bytes) {
            return Draft::Large(SortedSet::of_sorted(members, Encoding::Skiplist));
        }
        let bytes: usize = members.iter().map(|(member, _)| member.len() + 4).sum();
        if bytes > LARGEST_BYTES {
            return Draft::Large(SortedSet::of_sorted(members, Encoding::Listpack));
        }
        let mut packed = PackedBytes::empty();
        for (member, score) in members {
            packed.push(member, *score);
        }
        let mut draft = Draft::Packed(packed);
        draft.unpack_if_too_large();
        draft
    }

    /// Returns a read-only view of the set.
    pub fn view(&self) -> View<'_> {
        match self {
            Draft::Packed(packed) => View::Packed(packed.view()),
            Draft::Large(set) => View::Large(set),
        }
    }

    /// Adds a member or changes its score; see [`SortedSet::upsert`].
    pub fn upsert(&mut self, member: &[u8], limits: Limits, decide: impl FnOnce(Option<f64>) -> Option<f64>) -> Upsert {
        let packed = match self {
            Draft::Large(set) => return set.upsert(member, limits, decide),
            Draft::Packed(packed) => packed,
        };
        let before = packed.view().score(member);
        match (before, decide(before)) {
            (_, None) => Upsert::Left,
            (Some(before), Some(score)) if before == score => Upsert::Left,
            (Some(_), Some(score)) => {
                packed.change(member, score);
                self.unpack_if_too_large();
                Upsert::Changed
            }
            (None, Some(score)) => {
                if limits.admit(packed.view().len() + 1, member.len()) {
                    packed.insert(member, score);
                    self.unpack_if_too_large();
                } else {
                    let mut set = SortedSet::of_packed(packed.view(), Encoding::Skiplist);
                    set.insert(member, score);
                    *self = Draft::Large(set);
                }
                Upsert::Added
            }
        }
    }

    fn unpack_if_too_large(&mut self) {
        if let Draft::Packed(packed) = self
            && packed.bytes().len() > LARGEST_BYTES
        {
            *self = Draft::Large(SortedSet::of_packed(packed.view(), Encoding::Listpack));
        }
    }

    /// Removes a member. Returns `true` if it was present.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            Draft::Packed(packed) => packed.remove(member),
            Draft::Large(set) => set.remove(member).is_some(),
        }
    }

    /// Removes the members in a range of ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        match self {
            Draft::Packed(packed) => packed.remove_ranks(ranks),
            Draft::Large(set) => set.remove_ranks(ranks),
        }
    }
}

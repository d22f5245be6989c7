//! A sorted set being made or changed away from its key, which turns from packed to large when it must.

use std::ops::Range;

use crate::packed::LARGEST_BYTES;

use super::packed::{Packed, PackedBytes};
use super::view::View;
use super::{Encoding, SortedSet};

/// Up to which size a sorted set is reported as a listpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `zset-max-listpack-entries`.
    pub members: usize,
    /// `zset-max-listpack-value`, bytes.
    pub member_bytes: usize,
}

impl Limits {
    /// Whether a set of so many members, the longest of so many bytes, is reported as a listpack.
    pub fn admit(&self, members: usize, longest_bytes: usize) -> bool {
        members <= self.members && longest_bytes <= self.member_bytes
    }
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Upsert {
    /// Nothing: the score stays, or the member stays out.
    Left,
    /// The member is new.
    Added,
    /// The member has another score.
    Changed,
}

/// A sorted set that has no key yet, or is a copy of a packed one.
#[derive(Clone, Debug)]
pub enum Draft {
    /// A packed one.
    Packed(PackedBytes),
    /// A large one.
    Large(SortedSet),
}

impl Draft {
    /// An empty set that is about to get so many members, the longest of so many bytes.
    pub fn new(members: usize, longest_bytes: usize, limits: Limits) -> Self {
        if limits.admit(members, longest_bytes) {
            Draft::Packed(PackedBytes::empty())
        } else {
            Draft::Large(SortedSet::new(Encoding::Skiplist))
        }
    }

    /// A copy of a packed set.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Draft::Packed(PackedBytes::copy_of(bytes))
    }

    /// A copy of a packed set that is about to get so many more members, the longest of so many bytes.
    pub fn of_packed(bytes: &[u8], more: usize, longest_bytes: usize, limits: Limits) -> Self {
        let packed = Packed::new(bytes);
        if limits.admit(more, longest_bytes) {
            Draft::Packed(PackedBytes::copy_of(bytes))
        } else {
            Draft::Large(SortedSet::of_packed(packed, Encoding::Skiplist))
        }
    }

    /// A set of members that are in order and differ, under the encoding that a result gets.
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

    /// The set for reading.
    pub fn view(&self) -> View<'_> {
        match self {
            Draft::Packed(packed) => View::Packed(packed.view()),
            Draft::Large(set) => View::Large(set),
        }
    }

    /// As [`SortedSet::upsert`].
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

    /// Takes a member out. Whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            Draft::Packed(packed) => packed.remove(member),
            Draft::Large(set) => set.remove(member).is_some(),
        }
    }

    /// Takes the members of a range of ranks out.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        match self {
            Draft::Packed(packed) => packed.remove_ranks(ranks),
            Draft::Large(set) => set.remove_ranks(ranks),
        }
    }
}

//! A read-only view of a sorted set in any form.

use std::ops::Range;

use crate::listpack::Element;

use super::packed::{Packed, PackedWalk};
use super::range::{LexRange, ScoreRange};
use super::{SortedSet, Walk};

/// A read-only view of a sorted set.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// A packed sorted set.
    Packed(Packed<'a>),
    /// A large sorted set.
    Large(&'a SortedSet),
}

impl<'a> View<'a> {
    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            View::Packed(set) => set.len(),
            View::Large(set) => set.len(),
        }
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            View::Packed(set) => set.score(member),
            View::Large(set) => set.score(member),
        }
    }

    /// Returns the rank of a member and its score.
    #[inline]
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            View::Packed(set) => set.rank(member),
            View::Large(set) => set.rank(member),
        }
    }

    /// Returns the ranks of the members whose scores are in a range.
    pub fn ranks_of_scores(&self, range: &ScoreRange) -> Range<usize> {
        match self {
            View::Packed(set) => set.ranks_of_scores(range),
            View::Large(set) => set.ranks_of_scores(range),
        }
    }

    /// Returns the ranks of the members in a range. The result is only meaningful if all members have the same score.
    pub fn ranks_of_lex(&self, range: &LexRange<'_>) -> Range<usize> {
        match self {
            View::Packed(set) => set.ranks_of_lex(range),
            View::Large(set) => set.ranks_of_lex(range),
        }
    }

    /// Iterates over the members in a range of ranks with their scores, in ascending order or, with `reverse`, in
    /// descending order.
    #[inline]
    pub fn walk(&self, ranks: Range<usize>, reverse: bool) -> ViewWalk<'a> {
        match self {
            View::Packed(set) => ViewWalk::Packed(set.walk(ranks, reverse)),
            View::Large(set) => ViewWalk::Large(set.walk(ranks, reverse)),
        }
    }

    /// Iterates over all members with their scores.
    pub fn iter(&self) -> ViewWalk<'a> {
        self.walk(0..self.len(), false)
    }

    /// Calls `show` for members from a cursor on (0 at first), for `count` of them or somewhat more. Returns the next
    /// cursor, which is 0 at the end. A member that is present from the first call to the last is shown, whatever
    /// changes happen in between.
    pub fn scan(&self, cursor: u64, count: usize, mut show: impl FnMut(Element<'a>, f64)) -> u64 {
        match self {
            View::Packed(set) => {
                set.walk(0..set.len(), false)
                    .for_each(|(member, score)| show(member, score));
                0
            }
            View::Large(set) => set.scan(cursor, count, |member, score| show(Element::Bytes(member), score)),
        }
    }
}

/// An iterator over members and their scores, in order.
#[derive(Clone, Debug)]
pub enum ViewWalk<'a> {
    /// The members of a packed set.
    Packed(PackedWalk<'a>),
    /// The members of a large set.
    Large(Walk<'a>),
}

impl<'a> Iterator for ViewWalk<'a> {
    type Item = (Element<'a>, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            ViewWalk::Packed(walk) => walk.next(),
            ViewWalk::Large(walk) => walk.next().map(|(member, score)| (Element::Bytes(member), score)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            ViewWalk::Packed(walk) => walk.size_hint(),
            ViewWalk::Large(walk) => walk.size_hint(),
        }
    }
}

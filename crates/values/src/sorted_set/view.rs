//! A read-only view of a sorted set in any form.

use std::ops::Range;

use crate::listpack::Element;

use super::packed::{PackedSortedSet, PackedSortedSetIter};
use super::range::{LexRange, ScoreRange};
use super::{LargeSortedSetIter, SortedSet};

/// A read-only view of a sorted set.
#[derive(Clone, Copy, Debug)]
pub enum SortedSetView<'a> {
    /// A packed sorted set.
    Packed(PackedSortedSet<'a>),
    /// A large sorted set.
    Large(&'a SortedSet),
}

impl<'a> SortedSetView<'a> {
    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            SortedSetView::Packed(set) => set.len(),
            SortedSetView::Large(set) => set.len(),
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
            SortedSetView::Packed(set) => set.score(member),
            SortedSetView::Large(set) => set.score(member),
        }
    }

    /// Returns the rank of a member and its score.
    #[inline]
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            SortedSetView::Packed(set) => set.rank(member),
            SortedSetView::Large(set) => set.rank(member),
        }
    }

    /// Returns the ranks of the members whose scores are in a range.
    pub fn ranks_of_scores(&self, range: &ScoreRange) -> Range<usize> {
        match self {
            SortedSetView::Packed(set) => set.ranks_of_scores(range),
            SortedSetView::Large(set) => set.ranks_of_scores(range),
        }
    }

    /// Returns the ranks of the members in a range. The result is only meaningful if all members have the same score.
    pub fn ranks_of_lex(&self, range: &LexRange<'_>) -> Range<usize> {
        match self {
            SortedSetView::Packed(set) => set.ranks_of_lex(range),
            SortedSetView::Large(set) => set.ranks_of_lex(range),
        }
    }

    /// Iterates over the members in a range of ranks with their scores, in ascending order or, with `reverse`, in
    /// descending order.
    #[inline]
    pub fn iter_ranks(&self, ranks: Range<usize>, reverse: bool) -> SortedSetIter<'a> {
        match self {
            SortedSetView::Packed(set) => SortedSetIter::Packed(set.iter_ranks(ranks, reverse)),
            SortedSetView::Large(set) => SortedSetIter::Large(set.iter_ranks(ranks, reverse)),
        }
    }

    /// Iterates over all members with their scores.
    pub fn iter(&self) -> SortedSetIter<'a> {
        self.iter_ranks(0..self.len(), false)
    }

    /// Calls `visit` for members from a cursor on (0 at first), for `count` of them or somewhat more. Returns the next
    /// cursor, which is 0 at the end. A member that is present from the first call to the last is shown, whatever
    /// changes happen in between.
    pub fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Element<'a>, f64)) -> u64 {
        match self {
            SortedSetView::Packed(set) => {
                set.iter_ranks(0..set.len(), false)
                    .for_each(|(member, score)| visit(member, score));
                0
            }
            SortedSetView::Large(set) => set.scan(cursor, count, |member, score| visit(Element::Bytes(member), score)),
        }
    }
}

/// An iterator over members and their scores, in order.
#[derive(Clone, Debug)]
pub enum SortedSetIter<'a> {
    /// The members of a packed set.
    Packed(PackedSortedSetIter<'a>),
    /// The members of a large set.
    Large(LargeSortedSetIter<'a>),
}

impl<'a> Iterator for SortedSetIter<'a> {
    type Item = (Element<'a>, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            SortedSetIter::Packed(walk) => walk.next(),
            SortedSetIter::Large(walk) => walk.next().map(|(member, score)| (Element::Bytes(member), score)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            SortedSetIter::Packed(walk) => walk.size_hint(),
            SortedSetIter::Large(walk) => walk.size_hint(),
        }
    }
}

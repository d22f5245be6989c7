//! A sorted set for reading, in whichever form it is.

use std::ops::Range;

use crate::listpack::Element;

use super::packed::{Packed, PackedWalk};
use super::range::{LexRange, ScoreRange};
use super::{SortedSet, Walk};

/// A sorted set that is read.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// A packed one.
    Packed(Packed<'a>),
    /// A large one.
    Large(&'a SortedSet),
}

impl<'a> View<'a> {
    /// How many members there are.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            View::Packed(set) => set.len(),
            View::Large(set) => set.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            View::Packed(set) => set.score(member),
            View::Large(set) => set.score(member),
        }
    }

    /// The rank of a member, and its score.
    #[inline]
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            View::Packed(set) => set.rank(member),
            View::Large(set) => set.rank(member),
        }
    }

    /// The ranks of the members whose scores are in a range.
    pub fn ranks_of_scores(&self, range: &ScoreRange) -> Range<usize> {
        match self {
            View::Packed(set) => set.ranks_of_scores(range),
            View::Large(set) => set.ranks_of_scores(range),
        }
    }

    /// The ranks of the members in a range; sensible where all members have one score.
    pub fn ranks_of_lex(&self, range: &LexRange<'_>) -> Range<usize> {
        match self {
            View::Packed(set) => set.ranks_of_lex(range),
            View::Large(set) => set.ranks_of_lex(range),
        }
    }

    /// The members of a range of ranks with their scores, from its first or, in `reverse`, from its last.
    #[inline]
    pub fn walk(&self, ranks: Range<usize>, reverse: bool) -> ViewWalk<'a> {
        match self {
            View::Packed(set) => ViewWalk::Packed(set.walk(ranks, reverse)),
            View::Large(set) => ViewWalk::Large(set.walk(ranks, reverse)),
        }
    }

    /// Every member with its score.
    pub fn iter(&self) -> ViewWalk<'a> {
        self.walk(0..self.len(), false)
    }

    /// Shows members from a cursor on, `count` or somewhat more; returns the next cursor, 0 at the end. A member that is
    /// there from the first call to the last is shown, whatever happens in between.
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

/// Members with their scores, in order.
#[derive(Clone, Debug)]
pub enum ViewWalk<'a> {
    /// Of a packed set.
    Packed(PackedWalk<'a>),
    /// Of a large one.
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

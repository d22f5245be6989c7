//! The blocks of a stream, by the ID of their first entry, with the last one in place.
//!
//! Entries are added to the last block and nowhere else. So that adding one does not walk down a tree, the last block
//! lies beside the tree of the others.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Chain;
use std::option::IntoIter;

use super::StreamId;
use super::block::Block;

/// A stream's blocks.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// All but the last; empty if there is no last.
    earlier: BTreeMap<StreamId, Block>,
    /// The one with the largest ID.
    last: Option<(StreamId, Block)>,
}

/// Some blocks that follow each other, and their IDs.
pub type BlockRange<'a> = Chain<Range<'a, StreamId, Block>, IntoIter<(&'a StreamId, &'a Block)>>;

impl Blocks {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.earlier.len() + usize::from(self.last.is_some())
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// All of them.
    #[inline]
    pub fn iter(&self) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        self.earlier.range(..).chain(last)
    }

    /// The block to which entries are added.
    #[inline]
    pub(super) fn last(&self) -> Option<&Block> {
        self.last.as_ref().map(|(_, block)| block)
    }

    /// The same, to be changed, and its ID.
    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<(StreamId, &mut Block)> {
        self.last.as_mut().map(|(base, block)| (*base, block))
    }

    /// The first one.
    pub(super) fn first_mut(&mut self) -> Option<(StreamId, &mut Block)> {
        let first = self.earlier.iter_mut().next();
        let last = self.last.as_mut();
        first
            .map(|(&base, block)| (base, block))
            .or_else(|| last.map(|(base, block)| (*base, block)))
    }

    /// The last one whose ID is not larger than `id`: it has the entry of this ID if there is one.
    #[inline]
    pub(super) fn holding(&self, id: StreamId) -> Option<(StreamId, &Block)> {
        match &self.last {
            Some((base, block)) if *base <= id => Some((*base, block)),
            _ => self
                .earlier
                .range(..=id)
                .next_back()
                .map(|(&base, block)| (base, block)),
        }
    }

    /// The same, to be changed.
    pub(super) fn holding_mut(&mut self, id: StreamId) -> Option<(StreamId, &mut Block)> {
        match &mut self.last {
            Some((base, block)) if *base <= id => Some((*base, block)),
            _ => self
                .earlier
                .range_mut(..=id)
                .next_back()
                .map(|(&base, block)| (base, block)),
        }
    }

    /// Those from the one in which `start` would be on.
    #[inline]
    pub(super) fn from(&self, start: StreamId) -> BlockRange<'_> {
        match self.holding(start) {
            Some((base, _)) => self.based_from(base),
            None => self.iter(),
        }
    }

    /// Those whose IDs are not smaller than `base`.
    #[inline]
    pub(super) fn based_from(&self, base: StreamId) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        match last {
            // The usual place of whoever reads what is new: no way down the tree.
            Some((last_base, _)) if *last_base <= base => {
                Range::default().chain(last.filter(|(last_base, _)| **last_base == base))
            }
            _ => self.earlier.range(base..).chain(last),
        }
    }

    /// Those up to the one in which `end` would be.
    #[inline]
    pub(super) fn up_to(&self, end: StreamId) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        self.earlier.range(..=end).chain(last.filter(|(base, _)| **base <= end))
    }

    /// Adds one behind the others.
    pub(super) fn push(&mut self, base: StreamId, block: Block) {
        if let Some((base, block)) = self.last.replace((base, block)) {
            debug_assert!(self.last.as_ref().is_some_and(|(last, _)| base < *last));
            self.earlier.insert(base, block);
        }
    }

    /// Takes the one of this ID out.
    pub(super) fn remove(&mut self, base: StreamId) -> Option<Block> {
        match self.last.take_if(|(last, _)| *last == base) {
            Some((_, block)) => {
                self.last = self.earlier.pop_last();
                Some(block)
            }
            None => self.earlier.remove(&base),
        }
    }
}

impl<'a> IntoIterator for &'a Blocks {
    type Item = (&'a StreamId, &'a Block);
    type IntoIter = BlockRange<'a>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// No blocks.
#[inline]
pub(super) fn none<'a>() -> BlockRange<'a> {
    Range::default().chain(None)
}

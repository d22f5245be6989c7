//! The blocks of a stream, ordered by the ID of their first entry. The last block is stored separately.
//!
//! Entries are only added to the last block. It is stored outside the tree of the other blocks, so that adding an entry
//! does not require a tree lookup.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Chain;
use std::option::IntoIter;

use super::StreamId;
use super::block::StreamBlock;
use crate::relocation::{PartCursor, PartMover};

/// The blocks of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamBlocks {
    /// All blocks except the last; empty if there is no last block.
    earlier: BTreeMap<StreamId, StreamBlock>,
    /// The block with the largest ID.
    last: Option<(StreamId, StreamBlock)>,
}

/// An iterator over consecutive blocks and their IDs.
pub type BlockRange<'a> = Chain<Range<'a, StreamId, StreamBlock>, IntoIter<(&'a StreamId, &'a StreamBlock)>>;

impl StreamBlocks {
    /// The number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        self.earlier.len() + usize::from(self.last.is_some())
    }

    /// Returns `true` if there are no blocks.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Iterates over all blocks.
    #[inline]
    pub fn iter(&self) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        self.earlier.range(..).chain(last)
    }

    /// Returns the block to which entries are added.
    #[inline]
    pub(super) fn last(&self) -> Option<&StreamBlock> {
        self.last.as_ref().map(|(_, block)| block)
    }

    /// Returns the block to which entries are added, for modification, and its ID.
    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<(StreamId, &mut StreamBlock)> {
        self.last.as_mut().map(|(base, block)| (*base, block))
    }

    /// Returns the first block for modification, and its ID.
    pub(super) fn first_mut(&mut self) -> Option<(StreamId, &mut StreamBlock)> {
        let first = self.earlier.iter_mut().next();
        let last = self.last.as_mut();
        first
            .map(|(&base, block)| (base, block))
            .or_else(|| last.map(|(base, block)| (*base, block)))
    }

    /// Returns the last block whose ID is not larger than `id`. It contains the entry with this ID if that exists.
    #[inline]
    pub(super) fn containing(&self, id: StreamId) -> Option<(StreamId, &StreamBlock)> {
        match &self.last {
            Some((base, block)) if *base <= id => Some((*base, block)),
            _ => self
                .earlier
                .range(..=id)
                .next_back()
                .map(|(&base, block)| (base, block)),
        }
    }

    /// Returns the last block whose ID is not larger than `id`, for modification.
    pub(super) fn containing_mut(&mut self, id: StreamId) -> Option<(StreamId, &mut StreamBlock)> {
        match &mut self.last {
            Some((base, block)) if *base <= id => Some((*base, block)),
            _ => self
                .earlier
                .range_mut(..=id)
                .next_back()
                .map(|(&base, block)| (base, block)),
        }
    }

    /// Iterates over the blocks from the one that would contain `start` on.
    #[inline]
    pub(super) fn range_from(&self, start: StreamId) -> BlockRange<'_> {
        match self.containing(start) {
            Some((base, _)) => self.range_from_base(base),
            None => self.iter(),
        }
    }

    /// Iterates over the blocks whose IDs are not smaller than `base`.
    #[inline]
    pub(super) fn range_from_base(&self, base: StreamId) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        match last {
            // The usual case of a reader of new entries, which needs no tree lookup.
            Some((last_base, _)) if *last_base <= base => {
                Range::default().chain(last.filter(|(last_base, _)| **last_base == base))
            }
            _ => self.earlier.range(base..).chain(last),
        }
    }

    /// Iterates over the blocks up to the one that would contain `end`.
    #[inline]
    pub(super) fn range_up_to(&self, end: StreamId) -> BlockRange<'_> {
        let last = self.last.as_ref().map(|(base, block)| (base, block));
        self.earlier.range(..=end).chain(last.filter(|(base, _)| **base <= end))
    }

    /// Moves the blocks, which are the parts of this kind; their positions are their IDs.
    pub(super) fn move_parts<M: PartMover>(&mut self, kind: u8, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        let first = StreamId::from_bytes(from.within(kind)?.to_be_bytes());
        let last = self.last.iter_mut().map(|(base, block)| (&*base, block));
        let last = last.filter(|(base, _)| **base >= first);
        for (base, block) in self.earlier.range_mut(first..).chain(last) {
            block.move_parts(mover);
            if mover.is_exhausted() {
                let at = u128::from_be_bytes(base.to_bytes()).checked_add(1)?;
                return Some(PartCursor { kind, at });
            }
        }
        None
    }

    /// Appends a block.
    pub(super) fn push(&mut self, base: StreamId, block: StreamBlock) {
        if let Some((base, block)) = self.last.replace((base, block)) {
            debug_assert!(self.last.as_ref().is_some_and(|(last, _)| base < *last));
            self.earlier.insert(base, block);
        }
    }

    /// Removes the block with this ID and returns it.
    pub(super) fn remove(&mut self, base: StreamId) -> Option<StreamBlock> {
        match self.last.take_if(|(last, _)| *last == base) {
            Some((_, block)) => {
                self.last = self.earlier.pop_last();
                Some(block)
            }
            None => self.earlier.remove(&base),
        }
    }
}

impl<'a> IntoIterator for &'a StreamBlocks {
    type Item = (&'a StreamId, &'a StreamBlock);
    type IntoIter = BlockRange<'a>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns an iterator over no blocks.
#[inline]
pub(super) fn empty_range<'a>() -> BlockRange<'a> {
    Range::default().chain(None)
}

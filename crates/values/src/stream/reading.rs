//! Access to the entries of a stream: by ID, in either direction, and from the position of a group.

use std::ops::Range;

use super::blocks::{self, BlockRange, StreamBlocks};
use super::group::ReadPosition;
use super::{ConsumerGroup, StreamBlock, StreamEntry, StreamId};

/// A lookup of entries by ID. It is faster if the IDs are ascending.
#[derive(Clone, Debug)]
pub struct EntryLookup<'a> {
    blocks: &'a StreamBlocks,
    /// The block ID, the ID and the offset of the last entry that was found.
    last: Option<(StreamId, StreamId, usize)>,
}

impl<'a> EntryLookup<'a> {
    pub(super) fn new(blocks: &'a StreamBlocks) -> Self {
        EntryLookup { blocks, last: None }
    }

    /// Returns the entry with this ID.
    #[inline]
    pub fn find(&mut self, id: StreamId) -> Option<StreamEntry<'a>> {
        let (base, block) = self.blocks.containing(id)?;
        let start = match self.last {
            Some((last_base, last_id, offset)) if last_base == base && last_id <= id => offset,
            _ => block.live_start(),
        };
        let found = block.find(base, id, start)?;
        self.last = Some((base, id, found.offset));
        Some(found.entry)
    }
}

/// The part of a block that an iterator walks over.
#[derive(Clone, Copy, Debug)]
struct BlockWalk<'a> {
    base: StreamId,
    block: &'a StreamBlock,
    /// The offsets of the part's start and end in the run. The iterator moves one of them to the other.
    start: usize,
    end: usize,
}

impl<'a> BlockWalk<'a> {
    #[inline]
    fn new(base: StreamId, block: &'a StreamBlock, range: Range<usize>) -> Self {
        BlockWalk {
            base,
            block,
            start: range.start,
            end: range.end,
        }
    }

    /// Returns an empty part, after which the walk continues with the part that follows an offset.
    #[inline]
    fn at_offset(base: StreamId, block: &'a StreamBlock, offset: usize) -> Self {
        BlockWalk::new(base, block, offset..offset)
    }

    #[inline]
    fn is_finished(&self) -> bool {
        self.start >= self.end
    }
}

/// Returns the entries that a group has not read yet.
#[inline]
pub(super) fn unread_entries<'a>(blocks: &'a StreamBlocks, group: &ConsumerGroup, removals: u64) -> StreamEntries<'a> {
    let end = StreamId::MAX;
    if let Some(position) = group.position
        && position.removals == removals
        && position.last_delivered_id == group.last_id
    {
        let mut blocks = blocks.range_from_base(position.block);
        let current = blocks
            .next()
            .map(|(&base, block)| BlockWalk::at_offset(base, block, position.offset));
        return StreamEntries {
            blocks,
            current,
            start: StreamId::MIN,
            end,
        };
    }
    match group.last_id.next() {
        Some(start) => StreamEntries::between(blocks, start, end),
        None => StreamEntries {
            blocks: blocks::empty_range(),
            current: None,
            start: StreamId::MAX,
            end: StreamId::MIN,
        },
    }
}

/// An iterator over entries in ascending order.
#[derive(Clone, Debug)]
pub struct StreamEntries<'a> {
    blocks: BlockRange<'a>,
    /// The part of the current block that begins with the next entry.
    current: Option<BlockWalk<'a>>,
    start: StreamId,
    end: StreamId,
}

impl<'a> StreamEntries<'a> {
    #[inline]
    pub(super) fn between(blocks: &'a StreamBlocks, start: StreamId, end: StreamId) -> Self {
        StreamEntries {
            blocks: blocks.range_from(start),
            current: None,
            start,
            end,
        }
    }

    /// Returns the position of the next entry. `behind` is the ID of the entry before it.
    pub(super) fn position(&self, behind: StreamId, removals: u64) -> Option<ReadPosition> {
        self.current.map(|walk| ReadPosition {
            block: walk.base,
            offset: walk.start,
            removals,
            last_delivered_id: behind,
        })
    }
}

impl<'a> Iterator for StreamEntries<'a> {
    type Item = StreamEntry<'a>;

    #[inline]
    fn next(&mut self) -> Option<StreamEntry<'a>> {
        loop {
            let mut walk = match self.current {
                Some(current) => current,
                None => {
                    let (&base, block) = self.blocks.next()?;
                    BlockWalk::new(base, block, block.live_range_since(self.start))
                }
            };
            let (base, block) = (walk.base, walk.block);
            if walk.is_finished() {
                walk = BlockWalk::new(base, block, block.live_range_from(walk.start));
            }
            let Some(found) = block.entry_at(base, walk.start) else {
                self.current = None;
                continue;
            };
            walk.start = found.end;
            self.current = Some(walk);
            if found.deleted || found.entry.id < self.start {
                continue;
            }
            if found.entry.id > self.end {
                self.current = Some(BlockWalk::at_offset(base, block, block.end()));
                self.blocks = blocks::empty_range();
                return None;
            }
            return Some(found.entry);
        }
    }
}

/// An iterator over entries in descending order.
#[derive(Clone, Debug)]
pub struct StreamEntriesBackward<'a> {
    blocks: BlockRange<'a>,
    /// The part of the current block that ends with the next entry.
    current: Option<BlockWalk<'a>>,
    start: StreamId,
    end: StreamId,
}

impl<'a> StreamEntriesBackward<'a> {
    #[inline]
    pub(super) fn between(blocks: &'a StreamBlocks, start: StreamId, end: StreamId) -> Self {
        StreamEntriesBackward {
            blocks: blocks.range_up_to(end),
            current: None,
            start,
            end,
        }
    }
}

impl<'a> Iterator for StreamEntriesBackward<'a> {
    type Item = StreamEntry<'a>;

    #[inline]
    fn next(&mut self) -> Option<StreamEntry<'a>> {
        loop {
            let mut walk = match self.current {
                Some(current) => current,
                None => {
                    let (&base, block) = self.blocks.next_back()?;
                    BlockWalk::new(base, block, block.live_range_until(self.end))
                }
            };
            let (base, block) = (walk.base, walk.block);
            if walk.is_finished() {
                walk = BlockWalk::new(base, block, block.live_range_before(walk.end));
            }
            let found = match walk.is_finished() {
                true => None,
                false => block.entry_before(base, walk.end),
            };
            let Some(found) = found else {
                self.current = None;
                continue;
            };
            walk.end = found.offset;
            self.current = Some(walk);
            if found.deleted || found.entry.id > self.end {
                continue;
            }
            if found.entry.id < self.start {
                self.blocks = blocks::empty_range();
                self.current = None;
                return None;
            }
            return Some(found.entry);
        }
    }
}

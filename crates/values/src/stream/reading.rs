//! Access to the entries of a stream: by ID, in either direction, and from the position of a group.

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

/// Returns the entries that a group has not read yet.
#[inline]
pub(super) fn unread_entries<'a>(blocks: &'a StreamBlocks, group: &ConsumerGroup, removals: u64) -> StreamEntries<'a> {
    let end = StreamId::MAX;
    if let Some(position) = group.position
        && position.removals == removals
        && position.last_delivered_id == group.last_id
    {
        let mut blocks = blocks.range_from_base(position.block);
        let current = blocks.next().map(|(&base, block)| (base, block, position.offset));
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
    /// The current block, and the offset of its next entry.
    current: Option<(StreamId, &'a StreamBlock, usize)>,
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
        self.current.map(|(block, _, offset)| ReadPosition {
            block,
            offset,
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
            let (base, block, offset) = match self.current {
                Some(current) => current,
                None => {
                    let (&base, block) = self.blocks.next()?;
                    (base, block, block.live_start())
                }
            };
            let Some(found) = block.entry_at(base, offset) else {
                self.current = None;
                continue;
            };
            self.current = Some((base, block, found.end));
            if found.deleted || found.entry.id < self.start {
                continue;
            }
            if found.entry.id > self.end {
                self.current = Some((base, block, block.end()));
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
    /// The current block, and the offset at which its next entry ends.
    current: Option<(StreamId, &'a StreamBlock, usize)>,
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
            let (base, block, end) = match self.current {
                Some(current) => current,
                None => {
                    let (&base, block) = self.blocks.next_back()?;
                    (base, block, block.end())
                }
            };
            let Some(found) = block.entry_before(base, end) else {
                self.current = None;
                continue;
            };
            self.current = Some((base, block, found.offset));
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

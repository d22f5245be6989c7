//! Access to the entries of a stream: by ID, in either direction, and from the position of a group.

use super::blocks::{self, BlockRange, Blocks};
use super::group::Position;
use super::{Block, Entry, Group, StreamId};

/// A lookup of entries by ID. It is faster if the IDs are ascending.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    blocks: &'a Blocks,
    /// The block ID, the ID and the offset of the last entry that was found.
    last: Option<(StreamId, StreamId, usize)>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(blocks: &'a Blocks) -> Self {
        Lookup { blocks, last: None }
    }

    /// Returns the entry with this ID.
    #[inline]
    pub fn find(&mut self, id: StreamId) -> Option<Entry<'a>> {
        let (base, block) = self.blocks.holding(id)?;
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
pub(super) fn entries_behind<'a>(blocks: &'a Blocks, group: &Group, removals: u64) -> Entries<'a> {
    let end = StreamId::MAX;
    if let Some(position) = group.position
        && position.removals == removals
        && position.behind == group.last_id
    {
        let mut blocks = blocks.based_from(position.block);
        let current = blocks.next().map(|(&base, block)| (base, block, position.offset));
        return Entries {
            blocks,
            current,
            start: StreamId::MIN,
            end,
        };
    }
    match group.last_id.next() {
        Some(start) => Entries::between(blocks, start, end),
        None => Entries {
            blocks: blocks::none(),
            current: None,
            start: StreamId::MAX,
            end: StreamId::MIN,
        },
    }
}

/// An iterator over entries in ascending order.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    blocks: BlockRange<'a>,
    /// The current block, and the offset of its next entry.
    current: Option<(StreamId, &'a Block, usize)>,
    start: StreamId,
    end: StreamId,
}

impl<'a> Entries<'a> {
    #[inline]
    pub(super) fn between(blocks: &'a Blocks, start: StreamId, end: StreamId) -> Self {
        Entries {
            blocks: blocks.from(start),
            current: None,
            start,
            end,
        }
    }

    /// Returns the position of the next entry. `behind` is the ID of the entry before it.
    pub(super) fn position(&self, behind: StreamId, removals: u64) -> Option<Position> {
        self.current.map(|(block, _, offset)| Position {
            block,
            offset,
            removals,
            behind,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
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
                self.blocks = blocks::none();
                return None;
            }
            return Some(found.entry);
        }
    }
}

/// An iterator over entries in descending order.
#[derive(Clone, Debug)]
pub struct EntriesBackwards<'a> {
    blocks: BlockRange<'a>,
    /// The current block, and the offset at which its next entry ends.
    current: Option<(StreamId, &'a Block, usize)>,
    start: StreamId,
    end: StreamId,
}

impl<'a> EntriesBackwards<'a> {
    #[inline]
    pub(super) fn between(blocks: &'a Blocks, start: StreamId, end: StreamId) -> Self {
        EntriesBackwards {
            blocks: blocks.up_to(end),
            current: None,
            start,
            end,
        }
    }
}

impl<'a> Iterator for EntriesBackwards<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
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
                self.blocks = blocks::none();
                self.current = None;
                return None;
            }
            return Some(found.entry);
        }
    }
}

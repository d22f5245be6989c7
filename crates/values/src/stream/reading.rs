//! Ways to the entries of a stream: by ID, in either direction, and from where a group stopped.

use super::blocks::{self, BlockRange, Blocks};
use super::group::Position;
use super::{Block, Entry, Group, StreamId};

/// Finds entries by their IDs; quicker if these ascend.
#[derive(Clone, Debug)]
pub struct Lookup<'a> {
    blocks: &'a Blocks,
    /// The block of the last entry that was found, and its ID and offset.
    last: Option<(StreamId, StreamId, usize)>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(blocks: &'a Blocks) -> Self {
        Lookup { blocks, last: None }
    }

    /// The entry of an ID.
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

/// The entries that a group has not read yet.
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

/// Entries in ascending order.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    blocks: BlockRange<'a>,
    /// The block that is being walked, and where its next entry begins.
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

    /// Where the next entry begins.
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

/// Entries in descending order.
#[derive(Clone, Debug)]
pub struct EntriesBackwards<'a> {
    blocks: BlockRange<'a>,
    /// The block that is being walked, and where the entry before ends.
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

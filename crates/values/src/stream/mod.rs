//! Streams: entries ordered by ID, packed into blocks, and the consumer groups that read them.
//!
//! ```text
//!   ID of its first entry -> block            1526919030474-55 -> [ entry entry entry ... ]
//!                                             1526985054069-0  -> [ entry entry ... ]      <- entries are added here
//! ```
//!
//! The boundaries and bytes of blocks equal those of Valkey: see [`block`]. Deleting an entry marks it as deleted. A
//! block without live entries is removed. Large blocks are divided into segments: see [`segments`].

mod block;
mod blocks;
mod group;
mod id;
mod radix;
mod reading;
mod segments;
mod sorted_chunks;

pub use block::{FieldValuePairs, StreamBlock, StreamEntry};
pub use blocks::{BlockRange, StreamBlocks};
pub use group::{ConsumerGroup, ConsumerNumber, NEVER_ACTIVE, PendingEntry, StreamConsumer};
pub use id::StreamId;
pub use reading::{EntryLookup, StreamEntries, StreamEntriesBackward};

use reading::unread_entries;
use sorted_chunks::{ChunkPosition, SortedChunks};

use crate::relocation::{PartCursor, PartMover};

/// The maximum size of a block in bytes, and the maximum total size of an entry's names and values.
const BLOCK_MAX_BYTES: usize = 1 << 30;
/// The approximate overhead of a block in addition to its run, in bytes.
const BLOCK_OVERHEAD_BYTES: usize = 88;

/// A stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    inner: Box<StreamData>,
}

#[derive(Clone, Debug, Default)]
struct StreamData {
    blocks: StreamBlocks,
    counters: StreamMetadata,
    /// The groups, sorted by name.
    groups: SortedChunks<Box<ConsumerGroup>>,
    /// The total allocated size of all runs in bytes.
    run_bytes: usize,
    /// The number of blocks ever removed. A position recorded before the last removal is invalid.
    removals: u64,
}

/// The metadata of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMetadata {
    /// The number of entries.
    pub length: u64,
    /// The ID of the last added entry.
    pub last_id: StreamId,
    /// The ID of the first entry, or [`StreamId::MIN`] if there are no entries.
    pub first_id: StreamId,
    /// The largest ID of a deleted entry. Trimmed entries do not count.
    pub max_deleted_id: StreamId,
    /// The number of entries ever added.
    pub entries_added: u64,
}

impl StreamMetadata {
    /// Returns `true` if entries with an ID of `start` or larger were deleted.
    fn has_deleted_entries_from(&self, start: StreamId) -> bool {
        self.length > 0 && self.max_deleted_id != StreamId::MIN && start <= self.max_deleted_id
    }

    /// Returns the number of entries up to `id` that were ever added, or `None` if it cannot be determined.
    pub fn entries_added_up_to(&self, id: StreamId) -> Option<i64> {
        let added = self.entries_added as i64;
        if self.entries_added == 0 {
            return Some(0);
        }
        if id == self.last_id || (self.length == 0 && id < self.last_id) {
            return Some(added);
        }
        if id > self.last_id || (id != StreamId::MIN && id < self.max_deleted_id) {
            return None;
        }
        if self.max_deleted_id != StreamId::MIN && self.max_deleted_id >= self.first_id {
            return None;
        }
        let before_first = added.wrapping_sub(self.length as i64);
        match id.cmp(&self.first_id) {
            std::cmp::Ordering::Less => Some(before_first),
            std::cmp::Ordering::Equal => Some(before_first.wrapping_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Returns the number of entries that a group has not read yet, or `None` if it cannot be determined.
    pub fn lag(&self, group: &ConsumerGroup) -> Option<i64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        let read = match group.entries_read {
            Some(read) if !self.has_deleted_entries_from(group.last_id) => read,
            _ => self.entries_added_up_to(group.last_id)?,
        };
        Some((self.entries_added as i64).wrapping_sub(read))
    }

    /// Returns the number of entries that a group will have read after the entry `id`, or `None` if it cannot be
    /// determined.
    fn entries_read_after(&self, group: &ConsumerGroup, id: StreamId) -> Option<i64> {
        match group.entries_read {
            Some(read) if group.last_id >= self.first_id && !self.has_deleted_entries_from(group.last_id) => {
                Some(read.wrapping_add(1))
            }
            known if self.entries_added == 0 => known,
            _ => self.entries_added_up_to(id),
        }
    }
}

/// The limits of a block. A block that reaches one is full, and a new block is started.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// The maximum size of a block in bytes; 0 for no limit.
    pub bytes: usize,
    /// The maximum number of entries of a block; 0 for no limit.
    pub entries: i64,
}

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// The ID is not larger than the last ID.
    IdTooSmall,
    /// The names and values are too large.
    TooLarge,
}

/// The entries that a trim operation keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTarget {
    /// Keeps at most this number of entries.
    MaxLength(u64),
    /// Keeps the entries with this ID or larger.
    MinId(StreamId),
}

/// The parameters of a trim operation.
#[derive(Clone, Copy, Debug)]
pub struct TrimOptions {
    /// The entries to keep.
    pub strategy: TrimTarget,
    /// `true` if only whole blocks are removed (approximate trimming).
    pub is_approximate: bool,
    /// The maximum number of entries to remove; 0 for no limit.
    pub limit: u64,
}

/// The work of a trim operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimWork {
    /// The number of blocks that are removed.
    pub blocks: u64,
    /// The approximate number of elements of the entries that are marked as deleted in a block that is not removed.
    pub elements: u64,
}

impl Stream {
    /// Creates a stream without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        let inner = &*self.inner;
        let groups: usize = inner.groups.iter().map(|group| group.allocated_bytes()).sum();
        size_of::<StreamData>() + inner.run_bytes + inner.blocks.len() * BLOCK_OVERHEAD_BYTES + groups
    }

    /// Moves the groups, which are the parts of kind 0, and the blocks, of kind 1. See
    /// [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        if from == PartCursor::default() {
            mover.boxed(&mut self.inner);
        }
        let inner = &mut *self.inner;
        let next = inner.groups.move_parts(0, from, mover, |group, mover| {
            mover.boxed(group);
            group.move_parts(mover);
        });
        next.or_else(|| inner.blocks.move_parts(1, from, mover))
    }

    /// The metadata of the stream.
    #[inline]
    pub fn metadata(&self) -> &StreamMetadata {
        &self.inner.counters
    }

    /// The number of entries.
    #[inline]
    pub fn length(&self) -> u64 {
        self.inner.counters.length
    }

    /// The ID of the last added entry.
    #[inline]
    pub fn last_id(&self) -> StreamId {
        self.inner.counters.last_id
    }

    /// Returns the address and length of the memory that adding an entry reads first, apart from the stream itself. The
    /// caller prefetches it together with that of other streams.
    pub fn metadata_memory(&self) -> (*const u8, usize) {
        (std::ptr::from_ref(&*self.inner).cast(), size_of::<StreamData>())
    }

    /// Returns the address and length of the memory that adding an entry reads and writes next: the end of the last
    /// block. It should be called once the memory of [`Self::metadata_memory`] is in the cache.
    pub fn end_memory(&self) -> Option<(*const u8, usize)> {
        self.inner.blocks.last().map(StreamBlock::end_memory)
    }

    /// The blocks, by the ID of their first entry.
    pub fn blocks(&self) -> &StreamBlocks {
        &self.inner.blocks
    }

    /// The approximate number of allocations that freeing the stream would involve in Valkey. As in Valkey, all groups
    /// are assumed to be like the first.
    pub fn free_effort(&self) -> usize {
        let of_a_group = self.groups().next().map_or(0, |group| 1 + group.pending().len());
        self.blocks().len() + self.groups().len() * of_a_group
    }

    /// The number of nodes of the radix tree in which Valkey would store the blocks.
    pub fn radix_nodes(&self) -> u64 {
        radix::node_count(self.inner.blocks.iter().map(|(base, _)| *base))
    }

    /// Sets the last ID, as XSETID does. `entries_added` and `max_deleted_id` are only changed if given.
    pub fn set_last_id(&mut self, id: StreamId, entries_added: Option<u64>, max_deleted_id: Option<StreamId>) {
        let counters = &mut self.inner.counters;
        counters.last_id = id;
        counters.entries_added = entries_added.unwrap_or(counters.entries_added);
        counters.max_deleted_id = max_deleted_id.unwrap_or(counters.max_deleted_id);
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// Returns an error if the ID is not larger than the last ID, or if the entry is too large.
    pub fn append<'n>(
        &mut self,
        id: StreamId,
        pairs: impl ExactSizeIterator<Item = (&'n [u8], &'n [u8])> + Clone,
        limits: BlockLimits,
    ) -> Result<(), AppendError> {
        let inner = &mut *self.inner;
        if id <= inner.counters.last_id {
            return Err(AppendError::IdTooSmall);
        }
        let content_bytes: usize = pairs.clone().map(|(name, value)| name.len() + value.len()).sum();
        if content_bytes > BLOCK_MAX_BYTES {
            return Err(AppendError::TooLarge);
        }
        inner.append(id, pairs, content_bytes, limits);
        let counters = &mut inner.counters;
        counters.length += 1;
        counters.entries_added = counters.entries_added.wrapping_add(1);
        counters.last_id = id;
        if counters.length == 1 {
            counters.first_id = id;
        }
        Ok(())
    }

    /// Deletes the entry with this ID. Returns `true` if it existed. After a series of calls, the caller must call
    /// [`Self::update_first_id`].
    pub fn delete(&mut self, id: StreamId) -> bool {
        let inner = &mut *self.inner;
        let Some((base, block)) = inner.blocks.containing_mut(id) else {
            return false;
        };
        let Some(found) = block.find(base, id, block.live_start()) else {
            return false;
        };
        let offset = found.offset;
        if block.live() == 1 {
            inner.remove_block(base);
        } else {
            block.mark_deleted(offset);
        }
        let counters = &mut inner.counters;
        counters.length -= 1;
        counters.max_deleted_id = counters.max_deleted_id.max(id);
        true
    }

    /// Recomputes the ID of the first entry after deletions.
    pub fn update_first_id(&mut self) {
        let first = self.entries(StreamId::MIN, StreamId::MAX).next();
        self.inner.counters.first_id = first.map_or(StreamId::MIN, |entry| entry.id);
    }

    /// Removes entries from the front. Returns the number of removed entries.
    pub fn trim(&mut self, trim: TrimOptions) -> u64 {
        let removed = self.inner.trim(trim);
        if removed > 0 {
            self.update_first_id();
        }
        removed
    }

    /// Iterates over the entries from `start` to `end`, both inclusive.
    #[inline]
    pub fn entries(&self, start: StreamId, end: StreamId) -> StreamEntries<'_> {
        self.inner.entries(start, end)
    }

    /// Iterates over the entries from `end` down to `start`, both inclusive.
    #[inline]
    pub fn entries_backwards(&self, start: StreamId, end: StreamId) -> StreamEntriesBackward<'_> {
        StreamEntriesBackward::between(&self.inner.blocks, start, end)
    }

    /// Returns the entry with this ID.
    pub fn entry(&self, id: StreamId) -> Option<StreamEntry<'_>> {
        EntryLookup::new(&self.inner.blocks).find(id)
    }

    /// Returns the ID of the last entry, or [`StreamId::MIN`] if there are no entries.
    #[inline]
    pub fn last_entry_id(&self) -> StreamId {
        self.entries_backwards(StreamId::MIN, StreamId::MAX)
            .next()
            .map_or(StreamId::MIN, |entry| entry.id)
    }

    /// Returns the total size in bytes of the blocks that contain the entries from `start` to `end`. Counting stops
    /// once `limit` is reached.
    pub fn bytes_between(&self, start: StreamId, end: StreamId, limit: usize) -> usize {
        let mut bytes = 0;
        for (_, block) in self
            .inner
            .blocks
            .range_from(start)
            .take_while(|(base, _)| **base <= end)
        {
            bytes += block.run_bytes();
            if bytes >= limit {
                break;
            }
        }
        bytes
    }

    /// Returns the approximate number of elements in blocks that are read in order to visit up to `count` entries with
    /// IDs from `start` to `end`, beginning with the last ones if `is_reverse` is set. Deleted entries count if they
    /// are read. Counting stops once `limit` is reached.
    pub fn elements_to_read(&self, start: StreamId, end: StreamId, count: u64, is_reverse: bool, limit: u64) -> u64 {
        let (mut elements, mut left, mut is_first) = (0, count, true);
        let mut visit = |part: u64, live: u64| {
            elements += 1;
            if is_first {
                // The first entry is searched, on average in half of the part. It may be the last one there.
                elements += part / 2;
                is_first = false;
            } else if live > left {
                elements += part * left / live;
                left = 0;
            } else {
                elements += part;
                left -= live;
            }
            left > 0 && elements < limit
        };
        let (blocks, ids) = (&self.inner.blocks, [start, end]);
        if is_reverse {
            for (base, block) in blocks.range_up_to(end).rev() {
                if !block.visit_sizes(ids, true, &mut visit) || *base <= start {
                    break;
                }
            }
        } else {
            for (_, block) in blocks.range_from(start).take_while(|(base, _)| **base <= end) {
                if !block.visit_sizes(ids, false, &mut visit) {
                    break;
                }
            }
        }
        elements
    }

    /// Returns the approximate number of elements that are read in order to find the entry with this ID.
    pub fn elements_to_find(&self, id: StreamId) -> u64 {
        self.inner
            .blocks
            .containing(id)
            .map_or(0, |(_, block)| block.search_elements(id))
    }

    /// Returns the approximate work of a trim operation. At most `max_blocks` blocks are counted.
    pub fn trim_work(&self, trim: TrimOptions, max_blocks: usize) -> TrimWork {
        let blocks = &self.inner.blocks;
        let mut work = TrimWork::default();
        match trim.strategy {
            TrimTarget::MaxLength(count) => {
                let surplus = self.length().saturating_sub(count);
                let mut left = if trim.limit > 0 {
                    surplus.min(trim.limit)
                } else {
                    surplus
                };
                for (_, block) in blocks.iter().take(max_blocks) {
                    if left < block.live() {
                        work.elements = block.elements_of(left);
                        break;
                    }
                    if left == 0 {
                        break;
                    }
                    left -= block.live();
                    work.blocks += 1;
                }
            }
            TrimTarget::MinId(id) => {
                let older = blocks.iter().take_while(|(base, _)| **base < id);
                work.blocks = older.take(max_blocks).count() as u64;
                work.elements = blocks.containing(id).map_or(0, |(_, block)| block.elements_before(id));
            }
        }
        if trim.is_approximate {
            work.elements = 0;
        }
        work
    }

    /// The groups, sorted by name.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &ConsumerGroup> {
        self.inner.groups.iter().map(|group| &**group)
    }

    fn find_group(&self, name: &[u8]) -> Result<ChunkPosition, ChunkPosition> {
        self.inner.groups.find(|group| group.name().cmp(name))
    }

    /// Returns the group with this name.
    pub fn group(&self, name: &[u8]) -> Option<&ConsumerGroup> {
        let place = self.find_group(name).ok()?;
        Some(self.inner.groups.item(place))
    }

    /// Returns the group with this name for modification.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut ConsumerGroup> {
        let place = self.find_group(name).ok()?;
        Some(self.inner.groups.item_mut(place))
    }

    /// Returns the group with this name for modification, and a lookup for the entries.
    pub fn group_and_entries(&mut self, name: &[u8]) -> Option<(&mut ConsumerGroup, EntryLookup<'_>)> {
        let place = self.find_group(name).ok()?;
        let inner = &mut *self.inner;
        Some((inner.groups.item_mut(place), EntryLookup::new(&inner.blocks)))
    }

    /// Creates a group. Returns `None` if a group with this name already exists.
    pub fn create_group(
        &mut self,
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<i64>,
    ) -> Option<&mut ConsumerGroup> {
        let place = self.find_group(name).err()?;
        let group = Box::new(ConsumerGroup::new(name, last_id, entries_read));
        let place = self.inner.groups.insert(place, group);
        Some(self.inner.groups.item_mut(place))
    }

    /// Removes a group. Returns `true` if it existed.
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        let place = self.find_group(name);
        if let Ok(place) = place {
            self.inner.groups.remove(place);
        }
        place.is_ok()
    }

    /// Delivers up to `delivery.count` entries that a group has not read yet to one of its consumers, and calls `visit`
    /// for each. The entries become pending unless `delivery.acknowledged` is set. Returns the number of delivered
    /// entries.
    pub fn deliver(
        &mut self,
        group: &[u8],
        consumer: ConsumerNumber,
        delivery: DeliveryOptions,
        mut visit: impl FnMut(StreamEntry<'_>),
    ) -> usize {
        let Ok(place) = self.find_group(group) else {
            return 0;
        };
        let StreamData {
            blocks,
            counters,
            groups,
            removals,
            ..
        } = &mut *self.inner;
        let group = groups.item_mut(place);
        let mut entries = unread_entries(blocks, group, *removals);
        let mut delivered = 0;
        while delivered < delivery.count
            && let Some(entry) = entries.next()
        {
            group.entries_read = counters.entries_read_after(group, entry.id);
            group.last_id = entry.id;
            group.position = entries.position(entry.id, *removals);
            visit(entry);
            if !delivery.no_ack {
                let pending = PendingEntry {
                    delivered_ms: delivery.now_ms,
                    deliveries: 1,
                    consumer,
                };
                group.set_pending(entry.id, pending);
            }
            delivered += 1;
        }
        if delivered > 0 && !delivery.no_ack {
            group.consumer_mut(consumer).active_ms = delivery.now_ms;
        }
        delivered
    }
}

/// The parameters of a delivery.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryOptions {
    /// The maximum number of entries.
    pub count: usize,
    /// `true` if the entries are acknowledged immediately (NOACK).
    pub no_ack: bool,
    /// The current time in milliseconds since the Unix epoch.
    pub now_ms: i64,
}

impl StreamData {
    #[inline]
    fn append<'n>(
        &mut self,
        id: StreamId,
        pairs: impl ExactSizeIterator<Item = (&'n [u8], &'n [u8])> + Clone,
        content_bytes: usize,
        limits: BlockLimits,
    ) {
        let mut room = content_bytes;
        if let Some((base, block)) = self.blocks.last_mut() {
            let before = block.allocated_bytes();
            let full = is_full(block, content_bytes, limits);
            if full {
                block.release_spare_capacity();
                // The next block will probably become as large.
                room = room.max(block.run_bytes().min(4096));
            } else {
                block.append(base, id, pairs.clone(), content_bytes);
            }
            self.run_bytes += block.allocated_bytes();
            self.run_bytes -= before;
            if !full {
                return;
            }
        }
        let mut block = StreamBlock::new(pairs.clone().map(|(name, _)| name), room);
        block.append(id, id, pairs, content_bytes);
        self.run_bytes += block.allocated_bytes();
        self.blocks.push(id, block);
    }

    fn remove_block(&mut self, base: StreamId) {
        if let Some(block) = self.blocks.remove(base) {
            self.run_bytes -= block.allocated_bytes();
            self.removals += 1;
        }
    }

    fn trim(&mut self, trim: TrimOptions) -> u64 {
        let mut removed = 0;
        while let Some((base, block)) = self.blocks.first_mut() {
            let (length, live) = (self.counters.length, block.live());
            if let TrimTarget::MaxLength(count) = trim.strategy
                && length <= count
            {
                break;
            }
            if trim.limit > 0 && removed + live > trim.limit {
                break;
            }
            let whole = match trim.strategy {
                TrimTarget::MaxLength(count) => length - live >= count,
                TrimTarget::MinId(id) => block.last_id(base) < id,
            };
            if whole {
                self.remove_block(base);
                self.counters.length -= live;
                removed += live;
                continue;
            }
            if trim.is_approximate {
                break;
            }
            let marked = block.mark_deleted_while(base, |id, marked| match trim.strategy {
                TrimTarget::MaxLength(count) => length - marked > count,
                TrimTarget::MinId(first) => id < first,
            });
            self.counters.length -= marked;
            removed += marked;
            break;
        }
        removed
    }

    fn entries(&self, start: StreamId, end: StreamId) -> StreamEntries<'_> {
        StreamEntries::between(&self.blocks, start, end)
    }
}

/// Returns `true` if an entry must go into a new block.
#[inline]
fn is_full(block: &StreamBlock, content_bytes: usize, limits: BlockLimits) -> bool {
    let max_bytes = match limits.bytes {
        0 => BLOCK_MAX_BYTES,
        bytes => bytes.min(BLOCK_MAX_BYTES),
    };
    block.listpack_bytes() + content_bytes >= max_bytes
        || (limits.entries != 0 && block.entries() as i64 >= limits.entries)
}

/// A builder of a stream from the contents of a file.
#[derive(Debug, Default)]
pub struct StreamBuilder {
    stream: Stream,
    /// The last ID of all entries so far, including deleted ones.
    last_entry_id: StreamId,
}

impl StreamBuilder {
    /// Adds a block. Returns `None` if the bytes are not a valid block, or if its ID is not after the last entry so
    /// far.
    pub fn add_block(&mut self, base: StreamId, whole: &[u8]) -> Option<()> {
        let block = StreamBlock::read_listpack(base, whole)?;
        let inner = &mut *self.stream.inner;
        if !inner.blocks.is_empty() && base <= self.last_entry_id {
            return None;
        }
        self.last_entry_id = self.last_entry_id.max(base).max(block.last_id(base));
        inner.counters.length += block.live();
        inner.run_bytes += block.allocated_bytes();
        inner.blocks.push(base, block);
        Some(())
    }

    /// Returns the stream. Its length, its first ID and the lower bound of its last ID are derived from the entries;
    /// the other metadata is that of `known`.
    pub fn finish(mut self, known: StreamMetadata) -> Stream {
        let length = self.stream.inner.counters.length;
        self.stream.inner.counters = StreamMetadata {
            length,
            last_id: known.last_id.max(self.last_entry_id),
            ..known
        };
        self.stream.update_first_id();
        self.stream
    }
}

#[cfg(test)]
mod tests;

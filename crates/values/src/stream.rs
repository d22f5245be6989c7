//! Streams: entries in the order of their IDs, packed into blocks, and the groups that read them.
//!
//! ```text
//!   ID of its first entry -> block            1526919030474-55 -> [ entry entry entry ... ]
//!                                             1526985054069-0  -> [ entry entry ... ]      <- entries are added here
//! ```
//!
//! Blocks have the borders, and the bytes, that Valkey's have: see [`block`]. Deleting an entry marks it; a block of
//! which nothing is left goes away.

mod block;
mod blocks;
mod group;
mod id;
mod radix;
mod reading;

pub use block::{Block, Entry, Pairs};
pub use blocks::{BlockRange, Blocks};
pub use group::{Consumer, ConsumerNumber, Group, NEVER_ACTIVE, Pending};
pub use id::StreamId;
pub use reading::{Entries, EntriesBackwards, Lookup};

use reading::entries_behind;

/// No block takes more bytes, and no entry's names and values together do.
const BLOCK_MAX_BYTES: usize = 1 << 30;
/// What a block takes beside its run, roughly, bytes.
const BLOCK_OVERHEAD_BYTES: usize = 80;

/// A stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    inner: Box<StreamData>,
}

#[derive(Clone, Debug, Default)]
struct StreamData {
    blocks: Blocks,
    counters: Counters,
    groups: Vec<Group>,
    /// Bytes of all runs.
    run_bytes: usize,
    /// Blocks that went away, ever: positions in older ones are void.
    removals: u64,
}

/// What a stream remembers beside its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Entries.
    pub length: u64,
    /// The last ID that was given to an entry.
    pub last_id: StreamId,
    /// The first entry; [`StreamId::MIN`] if there is none.
    pub first_id: StreamId,
    /// The largest ID of which an entry was deleted (not trimmed).
    pub max_deleted_id: StreamId,
    /// Entries that were ever added.
    pub entries_added: u64,
}

impl Counters {
    /// Whether entries were deleted from `start` on.
    fn has_gaps_from(&self, start: StreamId) -> bool {
        self.length > 0 && self.max_deleted_id != StreamId::MIN && start <= self.max_deleted_id
    }

    /// How many entries up to `id` there ever were; `None` if that cannot be told.
    pub fn entries_up_to(&self, id: StreamId) -> Option<i64> {
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
            std::cmp::Ordering::Equal => Some(before_first + 1),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// How many entries a group has yet to read; `None` if that cannot be told.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        let read = match group.entries_read {
            Some(read) if !self.has_gaps_from(group.last_id) => read,
            _ => self.entries_up_to(group.last_id)?,
        };
        Some((self.entries_added as i64).wrapping_sub(read))
    }

    /// How many entries a group has read once it has read the one of `id` as well; `None` if that cannot be told.
    fn read_by(&self, group: &Group, id: StreamId) -> Option<i64> {
        match group.entries_read {
            Some(read) if group.last_id >= self.first_id && !self.has_gaps_from(group.last_id) => {
                Some(read.wrapping_add(1))
            }
            known if self.entries_added == 0 => known,
            _ => self.entries_up_to(id),
        }
    }
}

/// When a new block is begun.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// Bytes of a block; 0 for no limit.
    pub bytes: usize,
    /// Entries of a block; 0 for no limit.
    pub entries: i64,
}

/// Why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// Its ID is not larger than the last.
    IdTooSmall,
    /// Its names and values are too large.
    TooLarge,
}

/// What trimming leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTarget {
    /// At most so many entries.
    Last(u64),
    /// The entries from this ID on.
    From(StreamId),
}

/// How trimming goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    /// What it leaves.
    pub keep: TrimTarget,
    /// Whether it takes whole blocks only.
    pub whole_blocks: bool,
    /// How many entries it takes at most; 0 for any number.
    pub limit: u64,
}

impl Stream {
    /// A stream without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        let inner = &*self.inner;
        let groups: usize = inner.groups.iter().map(Group::allocated_bytes).sum();
        size_of::<StreamData>() + inner.run_bytes + inner.blocks.len() * BLOCK_OVERHEAD_BYTES + groups
    }

    /// What it remembers beside its entries.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Entries.
    #[inline]
    pub fn length(&self) -> u64 {
        self.inner.counters.length
    }

    /// The last ID that was given to an entry.
    #[inline]
    pub fn last_id(&self) -> StreamId {
        self.inner.counters.last_id
    }

    /// The memory that adding an entry reads first, behind the stream itself: an address and a length. To be fetched in
    /// advance, together with that of other streams.
    pub fn counters_place(&self) -> (*const u8, usize) {
        (std::ptr::from_ref(&*self.inner).cast(), size_of::<StreamData>())
    }

    /// The memory that it reads and writes next, once the first is near: the end of the last block.
    pub fn end_place(&self) -> Option<(*const u8, usize)> {
        self.inner.blocks.last().map(Block::end_place)
    }

    /// Its blocks, by the ID of their first entry.
    pub fn blocks(&self) -> &Blocks {
        &self.inner.blocks
    }

    /// About how many allocations there would be to free in Valkey; like there, the first group stands for all.
    pub fn free_effort(&self) -> usize {
        let groups = self.groups();
        let of_a_group = groups.first().map_or(0, |group| 1 + group.pending().len());
        self.blocks().len() + groups.len() * of_a_group
    }

    /// Nodes of the radix tree in which Valkey would keep the blocks.
    pub fn radix_nodes(&self) -> u64 {
        radix::node_count(self.inner.blocks.iter().map(|(base, _)| *base))
    }

    /// Says that the last ID is another, as a replica must; `entries_added` and `max_deleted_id` stay if not given.
    pub fn set_last_id(&mut self, id: StreamId, entries_added: Option<u64>, max_deleted_id: Option<StreamId>) {
        let counters = &mut self.inner.counters;
        counters.last_id = id;
        counters.entries_added = entries_added.unwrap_or(counters.entries_added);
        counters.max_deleted_id = max_deleted_id.unwrap_or(counters.max_deleted_id);
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// If its ID is not larger than the last, or if it is too large.
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

    /// Deletes the entry of an ID. Whether there was one. The caller ends a series of these with
    /// [`Self::deleted_some`].
    pub fn delete(&mut self, id: StreamId) -> bool {
        let inner = &mut *self.inner;
        let Some((base, block)) = inner.blocks.holding_mut(id) else {
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

    /// Finds out anew which entry is the first.
    pub fn deleted_some(&mut self) {
        let first = self.entries(StreamId::MIN, StreamId::MAX).next();
        self.inner.counters.first_id = first.map_or(StreamId::MIN, |entry| entry.id);
    }

    /// Removes entries from the front. Returns how many.
    pub fn trim(&mut self, trim: Trim) -> u64 {
        let removed = self.inner.trim(trim);
        if removed > 0 {
            self.deleted_some();
        }
        removed
    }

    /// The entries from `start` to `end`, both included.
    #[inline]
    pub fn entries(&self, start: StreamId, end: StreamId) -> Entries<'_> {
        self.inner.entries(start, end)
    }

    /// The entries from `end` down to `start`, both included.
    #[inline]
    pub fn entries_backwards(&self, start: StreamId, end: StreamId) -> EntriesBackwards<'_> {
        EntriesBackwards::between(&self.inner.blocks, start, end)
    }

    /// The entry of an ID.
    pub fn entry(&self, id: StreamId) -> Option<Entry<'_>> {
        Lookup::new(&self.inner.blocks).find(id)
    }

    /// The ID of the last entry; [`StreamId::MIN`] if there is none.
    #[inline]
    pub fn top_id(&self) -> StreamId {
        self.entries_backwards(StreamId::MIN, StreamId::MAX)
            .next()
            .map_or(StreamId::MIN, |entry| entry.id)
    }

    /// The bytes of the blocks in which the entries from `start` to `end` are; counted up to `enough`.
    pub fn bytes_between(&self, start: StreamId, end: StreamId, enough: usize) -> usize {
        let mut bytes = 0;
        for (_, block) in self.inner.blocks.from(start).take_while(|(base, _)| **base <= end) {
            bytes += block.run_bytes();
            if bytes >= enough {
                break;
            }
        }
        bytes
    }

    /// The groups, by name.
    pub fn groups(&self) -> &[Group] {
        &self.inner.groups
    }

    fn group_place(&self, name: &[u8]) -> Result<usize, usize> {
        self.inner.groups.binary_search_by(|group| group.name().cmp(name))
    }

    /// The group of this name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.group_place(name).ok().map(|place| &self.inner.groups[place])
    }

    /// The group of this name.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        let place = self.group_place(name).ok()?;
        Some(&mut self.inner.groups[place])
    }

    /// The group of this name, to be changed, and beside it the entries.
    pub fn group_and_entries(&mut self, name: &[u8]) -> Option<(&mut Group, Lookup<'_>)> {
        let place = self.group_place(name).ok()?;
        let inner = &mut *self.inner;
        Some((&mut inner.groups[place], Lookup::new(&inner.blocks)))
    }

    /// Adds a group; `None` if there is one of this name.
    pub fn create_group(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<i64>) -> Option<&mut Group> {
        let place = self.group_place(name).err()?;
        self.inner.groups.insert(place, Group::new(name, last_id, entries_read));
        self.inner.groups.get_mut(place)
    }

    /// Takes a group out. Whether there was one.
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        let place = self.group_place(name);
        if let Ok(place) = place {
            self.inner.groups.remove(place);
        }
        place.is_ok()
    }

    /// Delivers up to `count` entries that a group has not read yet to one of its consumers, and shows each to `visit`.
    /// They become pending unless `acknowledged` says that they count as acknowledged at once. Returns how many.
    pub fn deliver(
        &mut self,
        group: &[u8],
        consumer: ConsumerNumber,
        delivery: Delivery,
        mut visit: impl FnMut(Entry<'_>),
    ) -> usize {
        let Ok(place) = self.group_place(group) else {
            return 0;
        };
        let StreamData {
            blocks,
            counters,
            groups,
            removals,
            ..
        } = &mut *self.inner;
        let group = &mut groups[place];
        let mut entries = entries_behind(blocks, group, *removals);
        let mut delivered = 0;
        while delivered < delivery.count
            && let Some(entry) = entries.next()
        {
            group.entries_read = counters.read_by(group, entry.id);
            group.last_id = entry.id;
            group.position = entries.position(entry.id, *removals);
            visit(entry);
            if !delivery.acknowledged {
                let pending = Pending {
                    delivered_ms: delivery.now_ms,
                    deliveries: 1,
                    consumer,
                };
                group.assign(entry.id, pending);
            }
            delivered += 1;
        }
        if delivered > 0 && !delivery.acknowledged {
            group.consumer_mut(consumer).active_ms = delivery.now_ms;
        }
        delivered
    }
}

/// How entries are delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// How many at most.
    pub count: usize,
    /// Whether they count as acknowledged at once.
    pub acknowledged: bool,
    /// The time, in ms since the Unix epoch.
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
                block.seal();
                // The next one will likely become as large.
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
        let mut block = Block::new(pairs.clone().map(|(name, _)| name), room);
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

    fn trim(&mut self, trim: Trim) -> u64 {
        let mut removed = 0;
        while let Some((base, block)) = self.blocks.first_mut() {
            let (length, live) = (self.counters.length, block.live());
            if let TrimTarget::Last(count) = trim.keep
                && length <= count
            {
                break;
            }
            if trim.limit > 0 && removed + live > trim.limit {
                break;
            }
            let whole = match trim.keep {
                TrimTarget::Last(count) => length - live >= count,
                TrimTarget::From(id) => block.last_id(base) < id,
            };
            if whole {
                self.remove_block(base);
                self.counters.length -= live;
                removed += live;
                continue;
            }
            if trim.whole_blocks {
                break;
            }
            let marked = block.mark_first(base, |id, marked| match trim.keep {
                TrimTarget::Last(count) => length - marked > count,
                TrimTarget::From(first) => id < first,
            });
            self.counters.length -= marked;
            removed += marked;
            break;
        }
        removed
    }

    fn entries(&self, start: StreamId, end: StreamId) -> Entries<'_> {
        Entries::between(&self.blocks, start, end)
    }
}

/// Whether an entry has to go into a new block.
#[inline]
fn is_full(block: &Block, content_bytes: usize, limits: BlockLimits) -> bool {
    let max_bytes = match limits.bytes {
        0 => BLOCK_MAX_BYTES,
        bytes => bytes.min(BLOCK_MAX_BYTES),
    };
    block.whole_bytes() + content_bytes >= max_bytes
        || (limits.entries != 0 && block.entries() as i64 >= limits.entries)
}

/// Builds a stream from what a file holds.
#[derive(Debug, Default)]
pub struct StreamBuilder {
    stream: Stream,
    /// The last ID of any entry so far, deleted ones included.
    top: StreamId,
}

impl StreamBuilder {
    /// Adds a block; `None` if it is not one, or does not come behind the last.
    pub fn add_block(&mut self, base: StreamId, whole: &[u8]) -> Option<()> {
        let block = Block::read_whole(base, whole)?;
        let inner = &mut *self.stream.inner;
        if !inner.blocks.is_empty() && base <= self.top {
            return None;
        }
        self.top = self.top.max(block.last_id(base));
        inner.counters.length += block.live();
        inner.run_bytes += block.allocated_bytes();
        inner.blocks.push(base, block);
        Some(())
    }

    /// The stream. What its entries tell is taken from them: its length, its first ID, and the least that its last can be.
    pub fn finish(mut self, known: Counters) -> Stream {
        let length = self.stream.inner.counters.length;
        self.stream.inner.counters = Counters {
            length,
            last_id: known.last_id.max(self.top),
            ..known
        };
        self.stream.deleted_some();
        self.stream
    }
}

#[cfg(test)]
mod tests;

//! A consumer group: its read position, and the entries that its consumers have not acknowledged yet.
//!
//! Every pending entry is recorded twice: in the group with all its metadata, and by ID in the consumer to which it was
//! delivered. Pending entries refer to consumers by number. The number of a removed consumer is reused, because no
//! entry refers to it any more.

use std::collections::{BTreeMap, BTreeSet};

use super::StreamId;
use super::sorted_chunks::{ChunkPosition, SortedChunks};
use crate::relocation::PartMover;

/// An entry that was delivered but not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// The time of the last delivery in milliseconds since the Unix epoch.
    pub delivered_ms: i64,
    /// The number of deliveries.
    pub deliveries: u64,
    /// The number of the consumer to which it was delivered.
    pub consumer: ConsumerNumber,
}

/// The number of a consumer within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerNumber(u32);

/// A consumer of a group.
#[derive(Clone, Debug)]
pub struct StreamConsumer {
    name: Box<[u8]>,
    /// The time of the last attempt to read or claim entries, in milliseconds since the Unix epoch.
    pub seen_ms: i64,
    /// The time of the last successful read or claim, in milliseconds since the Unix epoch; [`NEVER_ACTIVE`] if there
    /// was none.
    pub active_ms: i64,
    pending: BTreeSet<StreamId>,
}

/// The active time of a consumer that never received an entry.
pub const NEVER_ACTIVE: i64 = -1;

impl StreamConsumer {
    /// The name of the consumer.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The IDs of the entries that the consumer has not acknowledged.
    pub fn pending(&self) -> &BTreeSet<StreamId> {
        &self.pending
    }
}

/// The position in a stream after the last delivered entry. It is valid as long as no block is removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPosition {
    /// The ID of the block.
    pub block: StreamId,
    /// The offset in the run of the block.
    pub offset: usize,
    /// The number of blocks that had been removed when the position was recorded.
    pub removals: u64,
    /// The ID of the last delivered entry.
    pub last_delivered_id: StreamId,
}

/// What has a number in a group.
#[derive(Clone, Debug)]
enum ConsumerPlace {
    Used(StreamConsumer),
    /// The number is unused. Unused numbers form a list.
    Free(Option<ConsumerNumber>),
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct ConsumerGroup {
    name: Box<[u8]>,
    /// The ID of the last delivered entry.
    pub last_id: StreamId,
    /// The number of entries up to `last_id` that were ever added, or `None` if unknown.
    pub entries_read: Option<i64>,
    pending: BTreeMap<StreamId, PendingEntry>,
    /// The consumers by number.
    consumers: Vec<ConsumerPlace>,
    /// The number that the next consumer gets, if there are unused ones.
    first_free: Option<ConsumerNumber>,
    /// The numbers of the consumers, sorted by name.
    order: SortedChunks<ConsumerNumber>,
    /// The position from which the next read continues.
    pub(super) position: Option<ReadPosition>,
}

/// The approximate memory of a pending entry in group and consumer, and of a consumer, in bytes.
const PENDING_BYTES: usize = 96;
const CONSUMER_BYTES: usize = 96;

impl ConsumerGroup {
    /// Creates a group without consumers.
    pub(super) fn new(name: &[u8], last_id: StreamId, entries_read: Option<i64>) -> Self {
        ConsumerGroup {
            name: name.into(),
            last_id,
            entries_read,
            pending: BTreeMap::new(),
            consumers: Vec::new(),
            first_free: None,
            order: SortedChunks::default(),
            position: None,
        }
    }

    /// The name of the group.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The approximate number of allocated bytes.
    pub(super) fn allocated_bytes(&self) -> usize {
        let consumers = self.consumers.len() * CONSUMER_BYTES;
        size_of::<Self>() + self.name.len() + self.pending.len() * PENDING_BYTES + consumers
    }

    /// Moves the name and the consumers, but neither their names nor the pending entries.
    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.boxed_slice(&mut self.name);
        mover.vec(&mut self.consumers);
    }

    /// The entries that have not been acknowledged yet.
    pub fn pending(&self) -> &BTreeMap<StreamId, PendingEntry> {
        &self.pending
    }

    /// Iterates over the consumers and their numbers, sorted by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = (ConsumerNumber, &StreamConsumer)> {
        self.order.iter().map(|&number| (number, self.consumer(number)))
    }

    /// Returns a consumer by its number.
    ///
    /// # Panics
    ///
    /// Panics if the group has no consumer with this number.
    pub fn consumer(&self, number: ConsumerNumber) -> &StreamConsumer {
        match self.consumers.get(number.0 as usize) {
            Some(ConsumerPlace::Used(consumer)) => consumer,
            _ => unreachable!("no consumer has the number {}", number.0),
        }
    }

    /// Returns a consumer by its number, for modification.
    ///
    /// # Panics
    ///
    /// Panics if the group has no consumer with this number.
    pub fn consumer_mut(&mut self, number: ConsumerNumber) -> &mut StreamConsumer {
        match self.consumers.get_mut(number.0 as usize) {
            Some(ConsumerPlace::Used(consumer)) => consumer,
            _ => unreachable!("no consumer has the number {}", number.0),
        }
    }

    fn find_in_order(&self, name: &[u8]) -> Result<ChunkPosition, ChunkPosition> {
        self.order.find(|&number| (*self.consumer(number).name).cmp(name))
    }

    /// Returns the number of the consumer with this name.
    pub fn find_consumer(&self, name: &[u8]) -> Option<ConsumerNumber> {
        self.find_in_order(name).ok().map(|place| *self.order.item(place))
    }

    /// Returns the number of the consumer with this name, and `true` if it was created by this call.
    pub fn find_or_create_consumer(&mut self, name: &[u8], now_ms: i64) -> (ConsumerNumber, bool) {
        let place = match self.find_in_order(name) {
            Ok(place) => return (*self.order.item(place), false),
            Err(place) => place,
        };
        let consumer = StreamConsumer {
            name: name.into(),
            seen_ms: now_ms,
            active_ms: NEVER_ACTIVE,
            pending: BTreeSet::new(),
        };
        let number = self.add_consumer(consumer);
        self.order.insert(place, number);
        (number, true)
    }

    /// Adds a consumer under an unused number.
    fn add_consumer(&mut self, consumer: StreamConsumer) -> ConsumerNumber {
        let Some(number) = self.first_free else {
            self.consumers.push(ConsumerPlace::Used(consumer));
            return ConsumerNumber(self.consumers.len() as u32 - 1);
        };
        let free = std::mem::replace(&mut self.consumers[number.0 as usize], ConsumerPlace::Used(consumer));
        let ConsumerPlace::Free(next) = free else {
            unreachable!("the number {} is not free", number.0);
        };
        self.first_free = next;
        number
    }

    /// Removes a consumer and its pending entries. Returns the number of these entries, or `None` if there is no such
    /// consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.order.remove(self.find_in_order(name).ok()?);
        let free = ConsumerPlace::Free(self.first_free.replace(number));
        let removed = std::mem::replace(&mut self.consumers[number.0 as usize], free);
        let ConsumerPlace::Used(consumer) = removed else {
            unreachable!("no consumer has the number {}", number.0);
        };
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// Makes an entry pending for a consumer. If it was pending for another consumer, it is removed from that one.
    #[inline]
    pub fn set_pending(&mut self, id: StreamId, pending: PendingEntry) {
        let before = self.pending.insert(id, pending);
        if let Some(before) = before
            && before.consumer != pending.consumer
        {
            self.consumer_mut(before.consumer).pending.remove(&id);
        }
        self.consumer_mut(pending.consumer).pending.insert(id);
    }

    /// Removes an entry from the pending entries. Returns `true` if it was pending.
    #[inline]
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else {
            return false;
        };
        self.consumer_mut(pending.consumer).pending.remove(&id);
        true
    }

    /// Records that a pending entry was delivered again to the same consumer.
    #[inline]
    pub fn record_redelivery(&mut self, id: StreamId, now_ms: i64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.delivered_ms = now_ms;
            pending.deliveries = pending.deliveries.saturating_add(1);
        }
    }

    /// Asserts that group and consumers have the same pending entries.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for (id, pending) in &self.pending {
            assert!(self.consumer(pending.consumer).pending.contains(id));
        }
        let theirs: usize = self.consumers().map(|(_, consumer)| consumer.pending.len()).sum();
        assert_eq!(theirs, self.pending.len());
        let names: Vec<_> = self.consumers().map(|(_, consumer)| consumer.name()).collect();
        assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

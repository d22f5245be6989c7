//! A consumer group: how far it has read, and which entries its consumers have not acknowledged yet.
//!
//! Every pending entry is known twice: to the group with all there is to tell of it, and by its ID to the consumer that
//! has it. Consumers have numbers, by which pending entries name them; a number is used again once its consumer is gone,
//! when no entry names it any more.

use std::collections::{BTreeMap, BTreeSet};

use super::StreamId;

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// When it was delivered last, in ms since the Unix epoch.
    pub delivered_ms: i64,
    /// How often it was delivered.
    pub deliveries: u64,
    /// The number of the consumer that has it.
    pub consumer: ConsumerNumber,
}

/// Names a consumer within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerNumber(u32);

/// One who reads on behalf of a group.
#[derive(Clone, Debug)]
pub struct Consumer {
    name: Box<[u8]>,
    /// When it last tried to read or claim, in ms since the Unix epoch.
    pub seen_ms: i64,
    /// When it last did, in ms since the Unix epoch; [`NEVER_ACTIVE`] if it never did.
    pub active_ms: i64,
    pending: BTreeSet<StreamId>,
}

/// The active time of a consumer that never got an entry.
pub const NEVER_ACTIVE: i64 = -1;

impl Consumer {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The IDs of the entries that it has not acknowledged.
    pub fn pending(&self) -> &BTreeSet<StreamId> {
        &self.pending
    }
}

/// Where in a stream the entry behind the last delivered one begins; good as long as no block went away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The block.
    pub block: StreamId,
    /// Offset in its run.
    pub offset: usize,
    /// How many blocks had gone away by then.
    pub removals: u64,
    /// The ID of the last delivered entry.
    pub behind: StreamId,
}

/// A group of consumers.
#[derive(Clone, Debug)]
pub struct Group {
    name: Box<[u8]>,
    /// The ID of the last entry that was delivered.
    pub last_id: StreamId,
    /// How many entries up to that one the stream ever had; `None` if that is not known.
    pub entries_read: Option<i64>,
    pending: BTreeMap<StreamId, Pending>,
    /// Consumers by number; `None` is a number that is free.
    consumers: Vec<Option<Consumer>>,
    /// The numbers of consumers, by name.
    order: Vec<ConsumerNumber>,
    /// Where reading goes on.
    pub(super) position: Option<Position>,
}

/// What pending entries and consumers take, roughly, in the group and with the consumer, bytes.
const PENDING_BYTES: usize = 96;
const CONSUMER_BYTES: usize = 96;

impl Group {
    /// A group without consumers.
    pub(super) fn new(name: &[u8], last_id: StreamId, entries_read: Option<i64>) -> Self {
        Group {
            name: name.into(),
            last_id,
            entries_read,
            pending: BTreeMap::new(),
            consumers: Vec::new(),
            order: Vec::new(),
            position: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Bytes allocated, roughly.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.pending.len() * PENDING_BYTES + self.consumers.len() * CONSUMER_BYTES
    }

    /// The entries that nobody acknowledged yet.
    pub fn pending(&self) -> &BTreeMap<StreamId, Pending> {
        &self.pending
    }

    /// Its consumers with their numbers, by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = (ConsumerNumber, &Consumer)> {
        self.order.iter().map(|&number| (number, self.consumer(number)))
    }

    /// A consumer by its number.
    ///
    /// # Panics
    /// If there is none of this number in this group.
    pub fn consumer(&self, number: ConsumerNumber) -> &Consumer {
        match self.consumers.get(number.0 as usize) {
            Some(Some(consumer)) => consumer,
            _ => unreachable!("no consumer has the number {}", number.0),
        }
    }

    /// A consumer by its number.
    ///
    /// # Panics
    /// If there is none of this number in this group.
    pub fn consumer_mut(&mut self, number: ConsumerNumber) -> &mut Consumer {
        match self.consumers.get_mut(number.0 as usize) {
            Some(Some(consumer)) => consumer,
            _ => unreachable!("no consumer has the number {}", number.0),
        }
    }

    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.order
            .binary_search_by(|&number| (*self.consumer(number).name).cmp(name))
    }

    /// The number of the consumer of this name.
    pub fn find_consumer(&self, name: &[u8]) -> Option<ConsumerNumber> {
        self.place(name).ok().map(|place| self.order[place])
    }

    /// The number of the consumer of this name, and whether it had to be made.
    pub fn find_or_create_consumer(&mut self, name: &[u8], now_ms: i64) -> (ConsumerNumber, bool) {
        let place = match self.place(name) {
            Ok(place) => return (self.order[place], false),
            Err(place) => place,
        };
        let consumer = Consumer {
            name: name.into(),
            seen_ms: now_ms,
            active_ms: NEVER_ACTIVE,
            pending: BTreeSet::new(),
        };
        let number = match self.consumers.iter().position(Option::is_none) {
            Some(free) if self.consumers.len() > self.order.len() => free,
            _ => {
                self.consumers.push(None);
                self.consumers.len() - 1
            }
        };
        self.consumers[number] = Some(consumer);
        let number = ConsumerNumber(number as u32);
        self.order.insert(place, number);
        (number, true)
    }

    /// Takes a consumer out, with what it has pending. Returns how many entries that were; `None` without the consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.order.remove(self.place(name).ok()?);
        let consumer = self.consumers[number.0 as usize].take()?;
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// Makes an entry pending, whoever had it before.
    #[inline]
    pub fn assign(&mut self, id: StreamId, pending: Pending) {
        let before = self.pending.insert(id, pending);
        if let Some(before) = before
            && before.consumer != pending.consumer
        {
            self.consumer_mut(before.consumer).pending.remove(&id);
        }
        self.consumer_mut(pending.consumer).pending.insert(id);
    }

    /// Makes an entry pending no more. Whether it was.
    #[inline]
    pub fn release(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else {
            return false;
        };
        self.consumer_mut(pending.consumer).pending.remove(&id);
        true
    }

    /// Notes that a consumer got an entry again that it already has.
    #[inline]
    pub fn redeliver(&mut self, id: StreamId, now_ms: i64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.delivered_ms = now_ms;
            pending.deliveries += 1;
        }
    }

    /// Checks that consumers and group know of the same pending entries.
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

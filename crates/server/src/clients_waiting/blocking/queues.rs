//! The waiters of one slot: for each key, queues of waiters in the order of their park ids.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::operation::{WaitQueueKind, WaitedKind};
use super::waiter::{WaitKey, Waiter};

use weft_base::{DbIndex, ParkId};
use weft_os::atomic::{AtomicUsize, Ordering};

/// The numbers of keys with waiters and of timeouts, in the whole process.
#[derive(Default)]
pub struct WaitCounts {
    keys: AtomicUsize,
    group_keys: AtomicUsize,
    timeouts: AtomicUsize,
}

impl WaitCounts {
    /// Returns the number of keys with waiters.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of keys with waiters that also end when the key is deleted.
    pub fn group_keys(&self) -> usize {
        self.group_keys.load(Ordering::Relaxed)
    }

    /// Returns the number of waits with a timeout.
    pub fn timeouts(&self) -> usize {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// Counts the start of a wait with a timeout.
    pub fn add_timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a wait with a timeout.
    pub fn remove_timeout(&self) {
        self.timeouts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waiters by park id, which is the order of their arrival.
type WaitQueue = BTreeMap<ParkId, Arc<Waiter>>;

/// The queues of one key of one database.
#[derive(Default)]
struct KeyQueues {
    queues: BTreeMap<WaitQueueKind, WaitQueue>,
    group_count: usize,
}

/// The queues of one name.
struct AwaitedName {
    hash: u64,
    /// The queues, by database.
    queues_by_db: BTreeMap<DbIndex, KeyQueues>,
}

/// The waiters of one slot. Changed under its write lease.
#[derive(Default)]
pub struct SlotWaiters {
    /// By name first, so that a lookup needs no owned key.
    keys: HashMap<Box<[u8]>, AwaitedName>,
}

impl SlotWaiters {
    /// Returns `true` if there are no waiters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys with waiters. The same name in several databases counts as one.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the hashes of the keys with waiters.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.keys.values().map(|awaited| awaited.hash)
    }

    /// Returns `true` if a client waits for the key to become of this kind.
    pub fn has_waiter_for(&self, db: DbIndex, name: &[u8], kind: WaitedKind) -> bool {
        self.key_queues(db, name)
            .is_some_and(|lines| lines.queues.keys().any(|line| line.matches_kind(kind)))
    }

    /// Returns the queues of a key that a value of this kind affects.
    pub fn affected_queues(&self, db: DbIndex, name: &[u8], kind: WaitedKind) -> Vec<WaitQueueKind> {
        self.key_queues(db, name).map_or(Vec::new(), |lines| {
            lines
                .queues
                .keys()
                .filter(|line| line.matches_kind(kind))
                .cloned()
                .collect()
        })
    }

    /// Returns the first waiter of a queue after this park id.
    pub fn next_waiter(
        &self,
        db: DbIndex,
        name: &[u8],
        line: &WaitQueueKind,
        after_park_id: ParkId,
    ) -> Option<&Arc<Waiter>> {
        let queue = self.key_queues(db, name)?.queues.get(line)?;
        queue
            .range((Bound::Excluded(after_park_id), Bound::Unbounded))
            .next()
            .map(|(_, waiter)| waiter)
    }

    /// Returns the names of a database's keys with waiters.
    pub fn names(&self, db: DbIndex) -> impl Iterator<Item = &[u8]> {
        self.keys
            .iter()
            .filter(move |(_, awaited)| awaited.queues_by_db.contains_key(&db))
            .map(|(name, _)| &**name)
    }

    /// Adds a waiter to the end of its queue for one of its keys.
    pub fn add_waiter(&mut self, key: &WaitKey, waiter: &Arc<Waiter>, counts: &WaitCounts) {
        let awaited = self.keys.entry(key.name.clone()).or_insert_with(|| AwaitedName {
            hash: key.hash,
            queues_by_db: BTreeMap::new(),
        });
        let lines = awaited.queues_by_db.entry(waiter.db).or_insert_with(|| {
            counts.keys.fetch_add(1, Ordering::Relaxed);
            KeyQueues::default()
        });
        let line = waiter.operation.queue_kind();
        let of_group = line.includes_deletion();
        let before = lines
            .queues
            .entry(line)
            .or_default()
            .insert(waiter.park_id, waiter.clone());
        // A waiter may name a key twice.
        if of_group && before.is_none() {
            lines.group_count += 1;
            if lines.group_count == 1 {
                counts.group_keys.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Removes a waiter from its queue for one of its keys. Returns `true` if it was present.
    pub fn remove_waiter(&mut self, name: &[u8], waiter: &Waiter, counts: &WaitCounts) -> bool {
        let Some(awaited) = self.keys.get_mut(name) else {
            return false;
        };
        let Some(lines) = awaited.queues_by_db.get_mut(&waiter.db) else {
            return false;
        };
        let line = waiter.operation.queue_kind();
        let Some(queue) = lines.queues.get_mut(&line) else {
            return false;
        };
        if queue.remove(&waiter.park_id).is_none() {
            return false;
        }
        if queue.is_empty() {
            lines.queues.remove(&line);
        }
        if line.includes_deletion() {
            lines.group_count -= 1;
            if lines.group_count == 0 {
                counts.group_keys.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if lines.queues.is_empty() {
            counts.keys.fetch_sub(1, Ordering::Relaxed);
            awaited.queues_by_db.remove(&waiter.db);
            if awaited.queues_by_db.is_empty() {
                self.keys.remove(name);
            }
        }
        true
    }

    fn key_queues(&self, db: DbIndex, name: &[u8]) -> Option<&KeyQueues> {
        self.keys.get(name)?.queues_by_db.get(&db)
    }
}

#[cfg(test)]
mod tests;

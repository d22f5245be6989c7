//! The waiters of one slot: for each key, queues of waiters in the order of their park ids.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::operation::{Kind, Line};
use super::waiter::{WaitKey, Waiter};

/// The numbers of keys with waiters and of timeouts, in the whole process.
#[derive(Default)]
pub struct Counts {
    keys: AtomicUsize,
    keys_of_groups: AtomicUsize,
    timeouts: AtomicUsize,
}

impl Counts {
    /// Returns the number of keys with waiters.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of keys with waiters that also end when the key is deleted.
    pub fn keys_of_groups(&self) -> usize {
        self.keys_of_groups.load(Ordering::Relaxed)
    }

    /// Waits that end by themselves.
    pub fn timeouts(&self) -> usize {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// A wait that ends by itself has begun.
    pub fn add_timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    /// A wait that would have ended by itself is over.
    pub fn remove_timeout(&self) {
        self.timeouts.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waiters by park id, which is the order of their arrival.
type Queue = BTreeMap<u64, Arc<Waiter>>;

/// The queues of one key of one database.
#[derive(Default)]
struct KeyLines {
    lines: BTreeMap<Line, Queue>,
    groups: usize,
}

/// The queues of one name.
struct AwaitedName {
    hash: u64,
    /// The queues, by database.
    lines: BTreeMap<usize, KeyLines>,
}

/// The waiters of one slot. Changed under its write lease.
#[derive(Default)]
pub struct Waiting {
    /// By name first, so that a lookup needs no owned key.
    keys: HashMap<Box<[u8]>, AwaitedName>,
}

impl Waiting {
    /// Returns `true` if there are no waiters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys with waiters. The same name in several databases counts as one.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The hashes of the keys that are waited for.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        self.keys.values().map(|awaited| awaited.hash)
    }

    /// Returns `true` if a client waits for the key to become of this kind.
    pub fn has_waiter_for(&self, db: usize, name: &[u8], kind: Kind) -> bool {
        self.lines(db, name)
            .is_some_and(|lines| lines.lines.keys().any(|line| line.is_served_by(kind)))
    }

    /// The lines of a key that its being of this kind concerns.
    pub fn affected_queues(&self, db: usize, name: &[u8], kind: Kind) -> Vec<Line> {
        self.lines(db, name).map_or(Vec::new(), |lines| {
            lines
                .lines
                .keys()
                .filter(|line| line.is_served_by(kind))
                .cloned()
                .collect()
        })
    }

    /// Returns the first waiter of a queue after this park id.
    pub fn next(&self, db: usize, name: &[u8], line: &Line, behind: u64) -> Option<&Arc<Waiter>> {
        let queue = self.lines(db, name)?.lines.get(line)?;
        queue.range(behind + 1..).next().map(|(_, waiter)| waiter)
    }

    /// Returns the names of a database's keys with waiters.
    pub fn names(&self, db: usize) -> impl Iterator<Item = &[u8]> {
        self.keys
            .iter()
            .filter(move |(_, awaited)| awaited.lines.contains_key(&db))
            .map(|(name, _)| &**name)
    }

    /// Puts a waiter at the end of its queue for one of its keys.
    pub fn add(&mut self, key: &WaitKey, waiter: &Arc<Waiter>, counts: &Counts) {
        let awaited = self.keys.entry(key.name.clone()).or_insert_with(|| AwaitedName {
            hash: key.hash,
            lines: BTreeMap::new(),
        });
        let lines = awaited.lines.entry(waiter.db).or_insert_with(|| {
            counts.keys.fetch_add(1, Ordering::Relaxed);
            KeyLines::default()
        });
        let line = waiter.operation.line();
        let of_group = matches!(line, Line::Group(_));
        let before = lines
            .lines
            .entry(line)
            .or_default()
            .insert(waiter.ticket, waiter.clone());
        // A waiter may name a key twice.
        if of_group && before.is_none() {
            lines.groups += 1;
            if lines.groups == 1 {
                counts.keys_of_groups.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Removes a waiter from its queue for one of its keys. Returns `true` if it was there.
    pub fn remove(&mut self, name: &[u8], waiter: &Waiter, counts: &Counts) -> bool {
        let Some(awaited) = self.keys.get_mut(name) else {
            return false;
        };
        let Some(lines) = awaited.lines.get_mut(&waiter.db) else {
            return false;
        };
        let line = waiter.operation.line();
        let Some(queue) = lines.lines.get_mut(&line) else {
            return false;
        };
        if queue.remove(&waiter.ticket).is_none() {
            return false;
        }
        if queue.is_empty() {
            lines.lines.remove(&line);
        }
        if matches!(line, Line::Group(_)) {
            lines.groups -= 1;
            if lines.groups == 0 {
                counts.keys_of_groups.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if lines.lines.is_empty() {
            counts.keys.fetch_sub(1, Ordering::Relaxed);
            awaited.lines.remove(&waiter.db);
            if awaited.lines.is_empty() {
                self.keys.remove(name);
            }
        }
        true
    }

    fn lines(&self, db: usize, name: &[u8]) -> Option<&KeyLines> {
        self.keys.get(name)?.lines.get(&db)
    }
}

#[cfg(test)]
mod tests;

//! Watched keys (WATCH), and how a change of one of them reaches the client.
//!
//! A watch lies in the slot of its key, where it is added and removed under the slot's write lease. A writer of the key
//! holds that lease, too, and marks all its watches. The mark is an atomic that the client's next EXEC checks. So a
//! change costs its writer nothing when no client watches, and no mail when one does.
//!
//! ```text
//!   client A ── Watches ─┬─ dirty ◀──────────────────┐
//!                        └─ keys: Watch, Watch ...    │ marks
//!                                  │                  │
//!   slot 4711 ── Watching: "k" ── Watch ◀── KeyWrite of client B
//! ```
//!
//! 1. EXEC checks the mark under write leases of all keys that it watches or accesses, so its decision holds until it
//!    is done.
//! 2. A key that exists but has expired at the time of WATCH counts as missing. Its later deletion is not a change.
//! 3. A watch that is no longer needed is removed when its slot is free. Until then its mark has no effect.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weft_base::{DbIndex, SlotIndex};
use weft_os::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of watched keys in the whole process.
#[derive(Default)]
pub struct WatchCounts(AtomicUsize);

impl WatchCounts {
    /// Returns the number of watched keys.
    pub fn watched_keys(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPresence {
    /// There is no key.
    Missing,
    /// There is a key, which has expired.
    Expired,
    /// There is a key, which has not expired.
    Live,
}

/// One client's watch of one key.
pub struct Watch {
    /// The key's database.
    pub db: DbIndex,
    /// The hash of its name.
    pub hash: u64,
    /// The slot.
    pub slot: SlotIndex,
    /// The name.
    pub name: Box<[u8]>,
    /// Distinguishes the watches of a key.
    pub id: u64,
    /// `true` while the key exists and has been expired since before the watch began.
    was_expired: AtomicBool,
    is_dirty: Arc<AtomicBool>,
}

impl Watch {
    /// Marks the watch because the key was changed.
    fn mark_changed(&self, exists: bool) {
        if !exists && self.was_expired.swap(false, Ordering::Relaxed) {
            return;
        }
        self.is_dirty.store(true, Ordering::Release);
    }

    /// Marks the watch because the key's database was emptied or swapped.
    fn mark_replaced(&self, before: KeyPresence, after: KeyPresence) {
        let expired = self.was_expired_at_watch();
        match (before, after) {
            (KeyPresence::Missing, KeyPresence::Missing) => {}
            (_, KeyPresence::Missing) if expired => self.was_expired.store(false, Ordering::Relaxed),
            (_, KeyPresence::Expired) if expired => {}
            (KeyPresence::Missing, KeyPresence::Expired) => self.was_expired.store(true, Ordering::Relaxed),
            _ => self.is_dirty.store(true, Ordering::Release),
        }
    }

    /// Returns `true` if the key was expired already when the watch began, and still exists.
    pub fn was_expired_at_watch(&self) -> bool {
        self.was_expired.load(Ordering::Relaxed)
    }
}

/// The number of watched keys of a client up to which they are searched one after the other.
const FEW_KEYS: usize = 16;

/// The watched keys of a client.
#[derive(Default)]
pub struct Watches {
    is_dirty: Arc<AtomicBool>,
    /// The keys.
    pub keys: Vec<Arc<Watch>>,
    /// The indexes of the keys by hash, if there are more than [`FEW_KEYS`].
    indexes: HashMap<u64, Vec<usize>>,
}

impl Watches {
    /// Returns `true` if one of the keys has changed.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Returns `true` if the key is watched.
    pub fn contains(&self, db: DbIndex, hash: u64, name: &[u8]) -> bool {
        let same = |watch: &Arc<Watch>| watch.hash == hash && watch.db == db && *watch.name == *name;
        if self.keys.len() <= FEW_KEYS {
            return self.keys.iter().any(same);
        }
        let indexes = self.indexes.get(&hash);
        indexes.is_some_and(|indexes| indexes.iter().any(|index| same(&self.keys[*index])))
    }

    /// Adds a key and returns its watch, which must be added to the key's slot. `expired` is `true` if the key
    /// exists but has expired.
    pub fn add(&mut self, db: DbIndex, name: &[u8], hash: u64, slot: SlotIndex, id: u64, expired: bool) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            db,
            hash,
            slot,
            name: name.into(),
            id,
            was_expired: AtomicBool::new(expired),
            is_dirty: self.is_dirty.clone(),
        });
        self.keys.push(watch.clone());
        if self.keys.len() > FEW_KEYS {
            let first = if self.indexes.is_empty() {
                0
            } else {
                self.keys.len() - 1
            };
            for (index, watch) in self.keys.iter().enumerate().skip(first) {
                self.indexes.entry(watch.hash).or_default().push(index);
            }
        }
        watch
    }
}

/// The watches of one key, by database and id.
type WatchesByDatabase = BTreeMap<DbIndex, BTreeMap<u64, Arc<Watch>>>;

/// The watches of one slot. Changed under its write lease.
#[derive(Default)]
pub struct SlotWatches {
    /// By name first, so that a lookup needs no owned key.
    keys: HashMap<Box<[u8]>, WatchesByDatabase>,
}

impl SlotWatches {
    /// Returns `true` if nothing is watched.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of watched keys. The same name in several databases counts as one.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the hashes of the watched keys.
    pub fn hashes(&self) -> impl Iterator<Item = u64> {
        let watches = |databases: &'_ WatchesByDatabase| Some(databases.values().next()?.values().next()?.hash);
        self.keys.values().filter_map(watches)
    }

    /// Adds a watch.
    pub fn add(&mut self, watch: Arc<Watch>, counts: &WatchCounts) {
        let watches = self.keys.entry(watch.name.clone()).or_default().entry(watch.db);
        let watches = watches.or_insert_with(|| {
            counts.0.fetch_add(1, Ordering::Relaxed);
            BTreeMap::new()
        });
        watches.insert(watch.id, watch);
    }

    /// Removes a watch.
    pub fn remove(&mut self, watch: &Watch, counts: &WatchCounts) {
        let Some(databases) = self.keys.get_mut(&watch.name) else {
            return;
        };
        let Some(watches) = databases.get_mut(&watch.db) else {
            return;
        };
        watches.remove(&watch.id);
        if watches.is_empty() {
            counts.0.fetch_sub(1, Ordering::Relaxed);
            databases.remove(&watch.db);
            if databases.is_empty() {
                self.keys.remove(&watch.name);
            }
        }
    }

    /// Marks the watches of a key that has changed; `exists` is `true` if the key exists now.
    pub fn mark_key(&self, db: DbIndex, name: &[u8], exists: bool) {
        let watches = self.keys.get(name).and_then(|databases| databases.get(&db));
        for watch in watches.into_iter().flat_map(BTreeMap::values) {
            watch.mark_changed(exists);
        }
    }

    fn database_watches(&self, db: DbIndex) -> impl Iterator<Item = &Arc<Watch>> {
        self.keys
            .values()
            .filter_map(move |databases| databases.get(&db))
            .flat_map(BTreeMap::values)
    }

    /// Marks the watches of a database's keys before the whole database changes. `presences` returns the state before
    /// and after for the hash and the name of a key.
    pub fn mark_database(&self, db: DbIndex, presences: impl Fn(u64, &[u8]) -> (KeyPresence, KeyPresence)) {
        for watch in self.database_watches(db) {
            let (before, after) = presences(watch.hash, &watch.name);
            watch.mark_replaced(before, after);
        }
    }
}

#[cfg(test)]
mod tests;

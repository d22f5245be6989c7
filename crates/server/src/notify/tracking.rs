//! Client-side caching: which clients may hold copies of which keys, and what they are told when keys change.
//!
//! ```text
//!   GET k by client 7 (CLIENT TRACKING ON)       SET k, on any worker
//!   ──────────────────────────────────────       ────────────────────
//!   reader's lease of k's slot                   writer's lease of k's slot
//!     table: k ─▶ 7                                table: k is taken out ─▶ 7
//!   the lease ends                                 Invalidation(k, 7) ──mail──▶ worker of 7
//!   reply: the value                             the lease ends
//! ```
//!
//! 1. A key is remembered, and taken out again, under the lease of its slot. So whoever read a value and keeps a copy
//!    stands in the table when the value changes, and the reply that carried the value leaves its worker before the
//!    invalidation does.
//! 2. Whether anybody tracks is one bit of the keyspace's hooks, looked at under the lease. Without it the table is not
//!    touched.
//! 3. The table knows ids, not clients: a client that is gone or tracks no more is found out when it is to be told.
//! 4. Names count, not databases, as in Valkey: a change of `k` in one database invalidates `k` of every other.
//! 5. Broadcasts (BCAST) need no table. Changed keys are gathered for a batch of commands and compared with the prefixes
//!    at its end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shards of the table.
const SHARDS: usize = 256;

/// The name of the channel of invalidations for clients of RESP2 that others redirect to.
pub const CHANNEL: &[u8] = b"__redis__:invalidate";

/// How a client tracks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// The client that gets the messages; 0: this one.
    pub redirect: u64,
    /// All keys with these prefixes, not those that were read.
    pub broadcast: bool,
    /// Only keys of commands behind CLIENT CACHING YES.
    pub opt_in: bool,
    /// All keys but those of commands behind CLIENT CACHING NO.
    pub opt_out: bool,
    /// Not what the client changes itself.
    pub no_loop: bool,
    /// CLIENT CACHING was the last command.
    pub caching: bool,
    /// The client that messages are redirected to is gone.
    pub broken_redirect: bool,
    /// The prefixes of a broadcast.
    pub prefixes: BTreeSet<Box<[u8]>>,
}

impl Tracking {
    /// Whether the keys of the next command are remembered.
    pub fn remembers(&self) -> bool {
        if self.broadcast {
            false
        } else if self.opt_in {
            self.caching
        } else {
            !(self.opt_out && self.caching)
        }
    }
}

/// A key that changed, and the client that changed it; 0 for none.
pub type ChangedKey = (Box<[u8]>, u64);

/// What has become invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A key that somebody read.
    Key(ChangedKey),
    /// Keys with a prefix, in order.
    Prefixed(Arc<Vec<ChangedKey>>),
    /// Everything: a database was emptied.
    Everything,
}

/// What one client is told in place of another: these keys, or all there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectedInvalidation {
    /// The client.
    pub client: u64,
    /// The keys.
    pub keys: Option<Vec<Box<[u8]>>>,
}

/// A message to clients that keep copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// Who keeps copies, all on one worker.
    pub clients: Vec<u64>,
    /// Of what.
    pub invalid: Invalid,
}

impl Invalid {
    /// The keys that a client is told about; `None` for all keys there are, nothing if it need not be told.
    pub fn keys_for(&self, client: u64, tracking: &Tracking) -> Option<Vec<&[u8]>> {
        let concerns = |(_, by): &&ChangedKey| !tracking.no_loop || *by != client;
        match self {
            Invalid::Everything => None,
            // A key that was read before the client changed over to broadcasts.
            Invalid::Key(_) if tracking.broadcast => Some(Vec::new()),
            Invalid::Key(key) => Some(
                Some(key)
                    .filter(concerns)
                    .map(|(name, _)| &**name)
                    .into_iter()
                    .collect(),
            ),
            Invalid::Prefixed(keys) => Some(keys.iter().filter(concerns).map(|(name, _)| &**name).collect()),
        }
    }
}

type Shard = HashMap<Box<[u8]>, BTreeSet<u64>, ahash::RandomState>;

/// The keys that are remembered, and the clients that track.
pub struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: ahash::RandomState,
    keys: AtomicUsize,
    items: AtomicUsize,
    prefixes: Mutex<BTreeMap<Box<[u8]>, BTreeSet<u64>>>,
    prefix_count: AtomicUsize,
    clients: Mutex<BTreeSet<u64>>,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: ahash::RandomState::new(),
            keys: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            prefixes: Mutex::default(),
            prefix_count: AtomicUsize::new(0),
            clients: Mutex::default(),
        }
    }
}

impl Table {
    /// Remembers that a client read a key.
    pub fn remember(&self, name: &[u8], client: u64) {
        let mut shard = lock(self.shard(name));
        let added = match shard.get_mut(name) {
            Some(clients) => clients.insert(client),
            None => {
                self.keys.fetch_add(1, Ordering::Relaxed);
                shard.insert(name.into(), BTreeSet::from([client]));
                true
            }
        };
        self.items.fetch_add(usize::from(added), Ordering::Relaxed);
    }

    /// Takes a key out that changed; returns who read it.
    pub fn take(&self, name: &[u8]) -> BTreeSet<u64> {
        let clients = lock(self.shard(name)).remove(name);
        self.count_removed(clients.as_ref());
        clients.unwrap_or_default()
    }

    /// Takes any key out.
    pub fn take_any(&self) -> Option<(Box<[u8]>, BTreeSet<u64>)> {
        let first = fastrand::usize(..SHARDS);
        for index in (first..SHARDS).chain(0..first) {
            let mut shard = lock(&self.shards[index]);
            if let Some(name) = shard.keys().next().cloned() {
                let clients = shard.remove(&name);
                self.count_removed(clients.as_ref());
                return clients.map(|clients| (name, clients));
            }
        }
        None
    }

    fn count_removed(&self, clients: Option<&BTreeSet<u64>>) {
        if let Some(clients) = clients {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            self.items.fetch_sub(clients.len(), Ordering::Relaxed);
        }
    }

    /// Forgets all keys.
    pub fn clear(&self) {
        for shard in &self.shards {
            let forgotten = std::mem::take(&mut *lock(shard));
            self.keys.fetch_sub(forgotten.len(), Ordering::Relaxed);
            let items: usize = forgotten.values().map(BTreeSet::len).sum();
            self.items.fetch_sub(items, Ordering::Relaxed);
        }
    }

    /// A client tracks from now on, or in another way. `changed` is called when it is the first one.
    pub fn enable(&self, client: u64, before: Option<&Tracking>, after: &Tracking, first: impl FnOnce()) {
        let mut clients = lock(&self.clients);
        let mut prefixes = lock(&self.prefixes);
        let none = BTreeSet::new();
        let known = before.map_or(&none, |before| &before.prefixes);
        for prefix in after.prefixes.difference(known) {
            prefixes.entry(prefix.clone()).or_default().insert(client);
        }
        self.prefix_count.store(prefixes.len(), Ordering::Release);
        let is_first = clients.is_empty();
        clients.insert(client);
        if is_first {
            first();
        }
    }

    /// A client tracks no more. What it read stays remembered, for it may track again. `idle` is called when nobody
    /// tracks and nothing is remembered.
    pub fn disable(&self, client: u64, tracking: &Tracking, idle: impl FnOnce()) {
        let mut clients = lock(&self.clients);
        {
            let mut prefixes = lock(&self.prefixes);
            for prefix in &tracking.prefixes {
                if let Some(clients) = prefixes.get_mut(prefix) {
                    clients.remove(&client);
                    if clients.is_empty() {
                        prefixes.remove(prefix);
                    }
                }
            }
            self.prefix_count.store(prefixes.len(), Ordering::Release);
        }
        clients.remove(&client);
        if clients.is_empty() && self.keys() == 0 {
            idle();
        }
    }

    /// Looks whether nobody tracks and nothing is remembered; `idle` is called if so.
    pub fn settle(&self, idle: impl FnOnce()) {
        let clients = lock(&self.clients);
        if clients.is_empty() && self.keys() == 0 {
            idle();
        }
    }

    /// For each prefix that fits some of these keys: those keys, and who wants to know about them. Keys are in order,
    /// each once.
    pub fn broadcasts(&self, keys: &BTreeMap<Box<[u8]>, u64>) -> Vec<(Arc<Vec<ChangedKey>>, Vec<u64>)> {
        let prefixes = lock(&self.prefixes);
        let matching = |prefix: &[u8]| -> Vec<ChangedKey> {
            let from_prefix = keys.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
            let with_prefix = from_prefix.take_while(|(name, _)| name.starts_with(prefix));
            with_prefix.map(|(name, by)| (name.clone(), *by)).collect()
        };
        prefixes
            .iter()
            .map(|(prefix, clients)| (matching(prefix), clients))
            .filter(|(keys, _)| !keys.is_empty())
            .map(|(keys, clients)| (Arc::new(keys), clients.iter().copied().collect()))
            .collect()
    }

    /// Whether anybody wants broadcasts.
    pub fn has_prefixes(&self) -> bool {
        self.prefix_count.load(Ordering::Acquire) > 0
    }

    /// Everybody who tracks.
    pub fn clients(&self) -> Vec<u64> {
        lock(&self.clients).iter().copied().collect()
    }

    /// How many track.
    pub fn client_count(&self) -> usize {
        lock(&self.clients).len()
    }

    /// Keys that are remembered.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Clients of all remembered keys together.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// Prefixes that somebody wants broadcasts of.
    pub fn prefixes(&self) -> usize {
        self.prefix_count.load(Ordering::Relaxed)
    }

    fn shard(&self, name: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(name) as usize % SHARDS]
    }
}

// A panic aborts the process, so a poisoned lock is one that nobody will ask for.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

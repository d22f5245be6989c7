//! Client-side caching: the clients that may hold copies of keys, and the invalidations that they get when keys change.
//!
//! ```text
//!   GET k by client 7 (CLIENT TRACKING ON)       SET k, on any worker
//!   ──────────────────────────────────────       ────────────────────
//!   reader's lease of k's slot                   writer's lease of k's slot
//!     table: k ─▶ 7                                table: k is removed ─▶ 7
//!   the lease ends                                 Invalidation(k, 7) ──mail──▶ worker of 7
//!   reply: the value                             the lease ends
//! ```
//!
//! 1. A key is added to the table, and removed from it, under the lease of its slot. So a client that has read a value
//!    is in the table when the value changes. The reply with the value leaves its worker before the invalidation does.
//!    The command that serves a blocked client adds the keys that it reads for that client, after the invalidation.
//! 2. One bit of the keyspace's hooks, read under the lease, is set while any client tracks keys. Without it the table
//!    is not accessed.
//! 3. The table contains ids, not clients. A client that has disconnected or no longer tracks keys is detected when an
//!    invalidation is to be sent to it.
//! 4. The database is ignored, as in Valkey: a change of `k` in one database invalidates `k` of every database.
//! 5. An invalidation that is redirected is sent to the worker of the client that gets it, without a stop at the worker
//!    of the client that tracks the key. So that client gets it before any later message of the client that changed the
//!    key, and a full mailbox holds up the latter.
//! 6. Broadcasts (BCAST) need no table. Changed keys are collected for a batch of commands and compared with the
//!    prefixes at its end, before blocked clients are served, and before a wait for exclusive mode. Until then other
//!    workers may send the new value to their clients: these can have it before the broadcast, which none of the
//!    worker's own replies precedes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use weft_base::ClientId;
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::{Mutex, RwLock};

/// The number of shards of the table.
const SHARD_COUNT: usize = 256;

/// The channel on which a client of RESP2 gets the invalidations that are redirected to it.
pub const INVALIDATION_CHANNEL: &[u8] = b"__redis__:invalidate";

/// The tracking options and state of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackingOptions {
    /// The client that gets the invalidations; `None` for this client itself.
    pub redirect: Option<ClientId>,
    /// `true` to get invalidations for all keys with the prefixes instead of those that were read (BCAST).
    pub is_broadcast: bool,
    /// `true` to track only the keys of commands after CLIENT CACHING YES (OPTIN).
    pub is_opt_in: bool,
    /// `true` to track all keys except those of commands after CLIENT CACHING NO (OPTOUT).
    pub is_opt_out: bool,
    /// `true` to get no invalidations for changes by the client itself (NOLOOP).
    pub is_no_loop: bool,
    /// Set if CLIENT CACHING was the last command.
    pub caching_was_called: bool,
    /// Set once the client to which invalidations are redirected has disconnected.
    pub is_redirect_broken: bool,
    /// The prefixes of a broadcast. Clients that track the same prefix share its name, see
    /// [`TrackingTable::shared_prefix`].
    pub prefixes: BTreeSet<Arc<[u8]>>,
}

impl TrackingOptions {
    /// Returns `true` if the keys of the next command are added to the table.
    pub fn should_track_next_command(&self) -> bool {
        if self.is_broadcast {
            false
        } else if self.is_opt_in {
            self.caching_was_called
        } else {
            !(self.is_opt_out && self.caching_was_called)
        }
    }

    /// Returns what decides which invalidations the client gets.
    pub fn filter(&self) -> InvalidationFilter {
        InvalidationFilter {
            is_broadcast: self.is_broadcast,
            is_no_loop: self.is_no_loop,
        }
    }
}

/// The options that decide which invalidations a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidationFilter {
    is_broadcast: bool,
    is_no_loop: bool,
}

/// The invalidations of a client that another client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// The client that gets them.
    pub target: ClientId,
    /// Which they are.
    pub filter: InvalidationFilter,
}

/// A key that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedKey {
    /// The name of the key.
    pub name: Box<[u8]>,
    /// The client that has changed it; `None` for a change without a client.
    pub changed_by: Option<ClientId>,
}

/// The keys that have become invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidKeys {
    /// A key that a client has read.
    Key(ChangedKey),
    /// Keys with a prefix, sorted.
    Prefixed(Arc<Vec<ChangedKey>>),
    /// All keys: a database was emptied.
    Everything,
}

/// A redirected invalidation: these keys, or all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectedInvalidation {
    /// The clients that receive it, all on one worker; one that receives those of several clients is repeated.
    pub clients: Vec<ClientId>,
    /// The keys; `None` for all keys.
    pub keys: Option<Vec<Box<[u8]>>>,
}

impl RedirectedInvalidation {
    /// Creates an invalidation of these keys, or of all keys, for clients.
    pub fn new(clients: Vec<ClientId>, keys: Option<&[&[u8]]>) -> RedirectedInvalidation {
        let keys = keys.map(|keys| keys.iter().map(|key| (*key).into()).collect());
        RedirectedInvalidation { clients, keys }
    }

    /// Returns the length of the names of the keys, in bytes.
    pub fn bytes(&self) -> usize {
        self.keys.iter().flatten().map(|name| name.len()).sum()
    }
}

/// An invalidation for clients that hold copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The clients that hold copies, all on one worker.
    pub clients: Vec<ClientId>,
    /// The keys that have become invalid.
    pub invalid: InvalidKeys,
}

impl InvalidKeys {
    /// Returns the length of the names of the keys, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            InvalidKeys::Key(key) => key.name.len(),
            InvalidKeys::Prefixed(keys) => keys.iter().map(|key| key.name.len()).sum(),
            InvalidKeys::Everything => 0,
        }
    }

    /// Returns the keys for which a client gets an invalidation: `None` for all keys, an empty list if it gets none.
    pub fn keys_for(&self, client: ClientId, filter: InvalidationFilter) -> Option<Vec<&[u8]>> {
        let concerns = |key: &&ChangedKey| !filter.is_no_loop || key.changed_by != Some(client);
        match self {
            InvalidKeys::Everything => None,
            // A key that was read before the client changed to broadcast mode.
            InvalidKeys::Key(_) if filter.is_broadcast => Some(Vec::new()),
            InvalidKeys::Key(key) => Some(Some(key).filter(concerns).map(|key| &*key.name).into_iter().collect()),
            InvalidKeys::Prefixed(keys) => Some(keys.iter().filter(concerns).map(|key| &*key.name).collect()),
        }
    }
}

type TrackingShard = HashMap<Box<[u8]>, BTreeSet<ClientId>, ahash::RandomState>;

/// The table of the keys that clients have read, and the clients that track keys.
pub struct TrackingTable {
    shards: Box<[Mutex<TrackingShard>]>,
    hasher: ahash::RandomState,
    keys: AtomicUsize,
    pair_count: AtomicUsize,
    prefixes: Mutex<BTreeMap<Arc<[u8]>, BTreeSet<ClientId>>>,
    prefix_count: AtomicUsize,
    clients: Mutex<BTreeSet<ClientId>>,
    redirections: RwLock<HashMap<ClientId, Redirection, ahash::RandomState>>,
    redirection_count: AtomicUsize,
}

impl Default for TrackingTable {
    fn default() -> Self {
        TrackingTable {
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            hasher: ahash::RandomState::new(),
            keys: AtomicUsize::new(0),
            pair_count: AtomicUsize::new(0),
            prefixes: Mutex::default(),
            prefix_count: AtomicUsize::new(0),
            clients: Mutex::default(),
            redirections: RwLock::default(),
            redirection_count: AtomicUsize::new(0),
        }
    }
}

impl TrackingTable {
    /// Records that a client has read a key.
    pub fn add_reader(&self, name: &[u8], client: ClientId) {
        let mut shard = self.shard(name).lock();
        let added = match shard.get_mut(name) {
            Some(clients) => clients.insert(client),
            None => {
                self.keys.fetch_add(1, Ordering::Relaxed);
                shard.insert(name.into(), BTreeSet::from([client]));
                true
            }
        };
        self.pair_count.fetch_add(usize::from(added), Ordering::Relaxed);
    }

    /// Records that a client has read a key on a thread other than its worker. Does nothing if the client does not
    /// track keys any more: its worker may have ended that meanwhile.
    pub fn add_reader_elsewhere(&self, name: &[u8], client: ClientId) {
        let clients = self.clients.lock();
        if clients.contains(&client) {
            self.add_reader(name, client);
        }
    }

    /// Removes a key that has changed. Returns the clients that have read it.
    pub fn remove(&self, name: &[u8]) -> BTreeSet<ClientId> {
        let clients = self.shard(name).lock().remove(name);
        self.count_removed(clients.as_ref());
        clients.unwrap_or_default()
    }

    /// Removes an arbitrary key. Returns it and the clients that have read it.
    pub fn remove_any(&self) -> Option<(Box<[u8]>, BTreeSet<ClientId>)> {
        let first = fastrand::usize(..SHARD_COUNT);
        for index in (first..SHARD_COUNT).chain(0..first) {
            let mut shard = self.shards[index].lock();
            if let Some(name) = shard.keys().next().cloned() {
                let clients = shard.remove(&name);
                self.count_removed(clients.as_ref());
                return clients.map(|clients| (name, clients));
            }
        }
        None
    }

    fn count_removed(&self, clients: Option<&BTreeSet<ClientId>>) {
        if let Some(clients) = clients {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            self.pair_count.fetch_sub(clients.len(), Ordering::Relaxed);
        }
    }

    /// Removes all keys.
    pub fn clear(&self) {
        for shard in &self.shards {
            let forgotten = std::mem::take(&mut *shard.lock());
            self.keys.fetch_sub(forgotten.len(), Ordering::Relaxed);
            let items: usize = forgotten.values().map(BTreeSet::len).sum();
            self.pair_count.fetch_sub(items, Ordering::Relaxed);
        }
    }

    /// Returns a prefix. If a client tracks it already, the name is that client's.
    pub fn shared_prefix(&self, name: &[u8]) -> Arc<[u8]> {
        let prefixes = self.prefixes.lock();
        let known = prefixes.get_key_value(name);
        known.map_or_else(|| name.into(), |(prefix, _)| prefix.clone())
    }

    /// Enables tracking for a client, or changes its options from `before` to `after`. Calls `first` if it is the first
    /// client.
    pub fn enable(
        &self,
        client: ClientId,
        before: Option<&TrackingOptions>,
        after: &TrackingOptions,
        first: impl FnOnce(),
    ) {
        let mut clients = self.clients.lock();
        let mut prefixes = self.prefixes.lock();
        let none = BTreeSet::new();
        let known = before.map_or(&none, |before| &before.prefixes);
        for prefix in after.prefixes.difference(known) {
            prefixes.entry(prefix.clone()).or_default().insert(client);
        }
        self.prefix_count.store(prefixes.len(), Ordering::Release);
        self.set_redirection(client, after);
        let is_first = clients.is_empty();
        clients.insert(client);
        if is_first {
            first();
        }
    }

    /// Disables tracking for a client. The keys that it has read stay in the table, since the client may enable
    /// tracking again. Calls `idle` if no client tracks keys and the table is empty.
    pub fn disable(&self, client: ClientId, tracking: &TrackingOptions, idle: impl FnOnce()) {
        let mut clients = self.clients.lock();
        {
            let mut prefixes = self.prefixes.lock();
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
        self.set_redirection(client, &TrackingOptions::default());
        clients.remove(&client);
        if clients.is_empty() && self.key_count() == 0 {
            idle();
        }
    }

    fn set_redirection(&self, client: ClientId, options: &TrackingOptions) {
        if options.redirect.is_none() && self.redirection_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut redirections = self.redirections.write();
        match options.redirect {
            Some(target) => {
                let filter = options.filter();
                redirections.insert(client, Redirection { target, filter });
            }
            None => {
                redirections.remove(&client);
            }
        }
        self.redirection_count.store(redirections.len(), Ordering::Release);
    }

    /// Returns how the invalidations of a client are redirected; `None` if the client gets them itself.
    pub fn redirection(&self, client: ClientId) -> Option<Redirection> {
        if self.redirection_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.redirections.read().get(&client).copied()
    }

    /// Calls `idle` if no client tracks keys and the table is empty.
    pub fn check_idle(&self, idle: impl FnOnce()) {
        let clients = self.clients.lock();
        if clients.is_empty() && self.key_count() == 0 {
            idle();
        }
    }

    /// Returns, for each prefix that matches some of the changed keys, those keys and the clients that track the
    /// prefix. The keys are sorted and unique.
    pub fn match_prefixes(
        &self,
        keys: &BTreeMap<Box<[u8]>, Option<ClientId>>,
    ) -> Vec<(Arc<Vec<ChangedKey>>, Vec<ClientId>)> {
        let prefixes = self.prefixes.lock();
        let matching = |prefix: &[u8]| -> Vec<ChangedKey> {
            let from_prefix = keys.range::<[u8], _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
            let with_prefix = from_prefix.take_while(|(name, _)| name.starts_with(prefix));
            with_prefix
                .map(|(name, changed_by)| ChangedKey {
                    name: name.clone(),
                    changed_by: *changed_by,
                })
                .collect()
        };
        prefixes
            .iter()
            .map(|(prefix, clients)| (matching(prefix), clients))
            .filter(|(keys, _)| !keys.is_empty())
            .map(|(keys, clients)| (Arc::new(keys), clients.iter().copied().collect()))
            .collect()
    }

    /// Returns `true` if any client tracks a prefix.
    pub fn has_prefixes(&self) -> bool {
        self.prefix_count.load(Ordering::Acquire) > 0
    }

    /// Returns all clients that track keys.
    pub fn clients(&self) -> Vec<ClientId> {
        self.clients.lock().iter().copied().collect()
    }

    /// Returns the number of clients that track keys.
    pub fn client_count(&self) -> usize {
        self.clients.lock().len()
    }

    /// Returns the number of keys in the table.
    pub fn key_count(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of pairs of a key and a client in the table.
    pub fn pair_count(&self) -> usize {
        self.pair_count.load(Ordering::Relaxed)
    }

    /// Returns the number of tracked prefixes.
    pub fn prefix_count(&self) -> usize {
        self.prefix_count.load(Ordering::Relaxed)
    }

    fn shard(&self, name: &[u8]) -> &Mutex<TrackingShard> {
        &self.shards[self.hasher.hash_one(name) as usize % SHARD_COUNT]
    }
}

#[cfg(test)]
mod tests;

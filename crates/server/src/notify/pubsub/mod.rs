//! Publish/subscribe: who listens to which channels and patterns, and the messages on their way to them.
//!
//! ```text
//!   PUBLISH ch m, on worker 1                               worker 2, owner of clients 7 and 9
//!   ─────────────────────────                               ──────────────────────────────────
//!   registry.prepare("ch", m)
//!     shard of "ch", for reading ──▶ 3 receivers on 1 and 2
//!     patterns, for reading
//!   one Arc<Publication> ───────────── mailbox ───────────▶ registry.recipients(worker 2, message)
//!   reply: 3                                                the bytes, appended to the outputs of 7 and 9
//! ```
//!
//! The registry is the only index. It is read by whoever publishes and by whoever delivers, and written by SUBSCRIBE,
//! UNSUBSCRIBE and the end of a connection, each on the worker that owns the client.
//!
//! 1. A subscription has a *stamp* of the registry's clock, which advances with each of them. A message carries the
//!    clock of the moment when its receivers were counted, and is delivered to older subscriptions only. So who
//!    subscribes while a message is on its way gets it exactly if PUBLISH has counted them.
//! 2. Clock and index change together under the lock of a shard (channels) or of all patterns.
//! 3. Messages for a worker go through its mailbox, in the order in which they were published. The worker that publishes
//!    delivers to its own clients at once, but only while its mailbox is empty, else by mail like everybody else: what
//!    is mailed already was published earlier. So the messages of one publisher, and the events of one key (which are
//!    mailed under the lease of its slot), reach a subscriber in their order.
//! 4. A connection with subscriptions stays with its worker, for mail that followed it could be overtaken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use weft_resp::glob;

mod publication;

pub use publication::{Publication, Recipient, Space};

/// Shards of the index of channels.
const SHARDS: usize = 64;

/// What a client is subscribed to.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// Channels.
    pub channels: BTreeSet<Arc<[u8]>>,
    /// Patterns.
    pub patterns: BTreeSet<Arc<[u8]>>,
    /// Shard channels.
    pub shard_channels: BTreeSet<Arc<[u8]>>,
}

impl Subscriptions {
    /// The names of one kind.
    pub fn of(&self, kind: Kind) -> &BTreeSet<Arc<[u8]>> {
        match kind {
            Kind::Channel => &self.channels,
            Kind::Pattern => &self.patterns,
            Kind::ShardChannel => &self.shard_channels,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut BTreeSet<Arc<[u8]>> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::ShardChannel => &mut self.shard_channels,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }
}

/// What one can subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
    /// A shard channel.
    ShardChannel,
}

/// A client, and the worker that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// Its id.
    pub client: u64,
    /// Its worker.
    pub worker: usize,
}

/// Who is subscribed to one name: clients with their stamps, by worker.
#[derive(Debug, Default)]
struct Listeners(Vec<(usize, BTreeMap<u64, u64>)>);

impl Listeners {
    fn count(&self) -> usize {
        self.0.iter().map(|(_, clients)| clients.len()).sum()
    }

    fn add(&mut self, subscriber: Subscriber, stamp: u64) {
        let at = self.0.iter().position(|(worker, _)| *worker == subscriber.worker);
        let at = at.unwrap_or_else(|| {
            self.0.push((subscriber.worker, BTreeMap::new()));
            self.0.len() - 1
        });
        self.0[at].1.insert(subscriber.client, stamp);
    }

    fn remove(&mut self, subscriber: Subscriber) {
        for (worker, clients) in &mut self.0 {
            if *worker == subscriber.worker {
                clients.remove(&subscriber.client);
            }
        }
        self.0.retain(|(_, clients)| !clients.is_empty());
    }

    /// Clients of a worker whose stamp is at most `stamp`.
    fn of_worker(&self, worker: usize, stamp: u64) -> impl Iterator<Item = u64> {
        let of_worker = self.0.iter().filter(move |(owner, _)| *owner == worker);
        let clients = of_worker.flat_map(|(_, clients)| clients.iter());
        clients.filter(move |(_, at)| **at <= stamp).map(|(client, _)| *client)
    }

    fn workers(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(worker, _)| *worker)
    }
}

type Channels = HashMap<Arc<[u8]>, Listeners, ahash::RandomState>;

/// An index of names, split so that different channels do not meet.
struct Index {
    shards: Box<[RwLock<Channels>]>,
    hasher: ahash::RandomState,
    /// Names that somebody is subscribed to.
    names: AtomicUsize,
}

impl Default for Index {
    fn default() -> Self {
        Index {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            hasher: ahash::RandomState::new(),
            names: AtomicUsize::new(0),
        }
    }
}

impl Index {
    fn shard(&self, name: &[u8]) -> &RwLock<Channels> {
        &self.shards[self.hasher.hash_one(name) as usize % SHARDS]
    }
}

/// Who listens to what.
#[derive(Default)]
pub struct Registry {
    channels: Index,
    shard_channels: Index,
    patterns: RwLock<BTreeMap<Arc<[u8]>, Listeners>>,
    pattern_names: AtomicUsize,
    clock: AtomicU64,
    /// Clients with subscriptions.
    pub clients: AtomicUsize,
}

/// A message that has receivers.
pub struct RoutedMessage {
    /// How many receive it.
    pub receivers: usize,
    /// The workers that own them, each once.
    pub workers: Vec<usize>,
    /// The message.
    pub publication: Publication,
}

impl Registry {
    fn index(&self, space: Space) -> &Index {
        match space {
            Space::Channels => &self.channels,
            Space::ShardChannels => &self.shard_channels,
        }
    }

    /// Subscribes a client. Whether it was not before.
    pub fn subscribe(
        &self,
        subscriptions: &mut Subscriptions,
        kind: Kind,
        name: &[u8],
        subscriber: Subscriber,
    ) -> bool {
        if subscriptions.of(kind).contains(name) {
            return false;
        }
        let name: Arc<[u8]> = match kind.space() {
            Some(space) => {
                let index = self.index(space);
                let mut shard = write(index.shard(name));
                let shared = shard.get_key_value(name).map(|(known, _)| known.clone());
                let shared = shared.unwrap_or_else(|| {
                    index.names.fetch_add(1, Ordering::Release);
                    name.into()
                });
                shard.entry(shared.clone()).or_default().add(subscriber, self.stamp());
                shared
            }
            None => {
                let mut patterns = write(&self.patterns);
                let shared = patterns.get_key_value(name).map(|(known, _)| known.clone());
                let shared = shared.unwrap_or_else(|| {
                    self.pattern_names.fetch_add(1, Ordering::Release);
                    name.into()
                });
                patterns
                    .entry(shared.clone())
                    .or_default()
                    .add(subscriber, self.stamp());
                shared
            }
        };
        if subscriptions.is_empty() {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        subscriptions.of_mut(kind).insert(name);
        true
    }

    /// Ends a subscription. Whether there was one.
    pub fn unsubscribe(
        &self,
        subscriptions: &mut Subscriptions,
        kind: Kind,
        name: &[u8],
        subscriber: Subscriber,
    ) -> bool {
        if !subscriptions.of_mut(kind).remove(name) {
            return false;
        }
        match kind.space() {
            Some(space) => {
                let index = self.index(space);
                let mut shard = write(index.shard(name));
                if let Some(listeners) = shard.get_mut(name) {
                    listeners.remove(subscriber);
                    if listeners.0.is_empty() {
                        shard.remove(name);
                        index.names.fetch_sub(1, Ordering::Release);
                    }
                }
            }
            None => {
                let mut patterns = write(&self.patterns);
                if let Some(listeners) = patterns.get_mut(name) {
                    listeners.remove(subscriber);
                    if listeners.0.is_empty() {
                        patterns.remove(name);
                        self.pattern_names.fetch_sub(1, Ordering::Release);
                    }
                }
            }
        }
        if subscriptions.is_empty() {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    /// Ends all subscriptions of a client.
    pub fn leave(&self, subscriptions: &mut Subscriptions, subscriber: Subscriber) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::ShardChannel] {
            let names: Vec<Arc<[u8]>> = subscriptions.of(kind).iter().cloned().collect();
            for name in names {
                self.unsubscribe(subscriptions, kind, &name, subscriber);
            }
        }
    }

    /// The next stamp; for who holds the lock of what it subscribes to.
    fn stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether a message could have receivers; `false` is certain.
    pub fn may_reach_anybody(&self, space: Space) -> bool {
        let patterns = space == Space::Channels && self.pattern_names.load(Ordering::Acquire) > 0;
        patterns || self.index(space).names.load(Ordering::Acquire) > 0
    }

    /// Makes a message of a channel and a payload; `None` if nobody receives it.
    pub fn prepare(&self, space: Space, channel: &[u8], payload: &[u8]) -> Option<RoutedMessage> {
        let mut receivers = 0;
        let mut workers = Vec::new();
        let mut publication = Publication::new(space);
        let index = self.index(space);
        if index.names.load(Ordering::Acquire) > 0 {
            let shard = read(index.shard(channel));
            publication.channel_stamp = self.clock.load(Ordering::Relaxed);
            if let Some(listeners) = shard.get(channel) {
                receivers += listeners.count();
                add_new(&mut workers, listeners.workers());
            }
        }
        if space == Space::Channels && self.pattern_names.load(Ordering::Acquire) > 0 {
            let patterns = read(&self.patterns);
            publication.pattern_stamp = self.clock.load(Ordering::Relaxed);
            for (pattern, listeners) in patterns.iter() {
                if glob::matches(pattern, channel, false) {
                    receivers += listeners.count();
                    add_new(&mut workers, listeners.workers());
                    publication.patterns.push(pattern.clone());
                }
            }
        }
        if workers.is_empty() {
            return None;
        }
        publication.fill(channel, payload);
        Some(RoutedMessage {
            receivers,
            workers,
            publication,
        })
    }

    /// The clients of a worker that receive a message: those of the channel, then those of each pattern.
    pub fn recipients(&self, worker: usize, publication: &Publication, out: &mut Vec<Recipient>) {
        let add = |listeners: &Listeners, pattern: Option<usize>, stamp: u64, out: &mut Vec<Recipient>| {
            let clients = listeners.of_worker(worker, stamp);
            out.extend(clients.map(|client| Recipient { client, pattern }));
        };
        if let Some(listeners) =
            read(self.index(publication.space).shard(&publication.channel)).get(&*publication.channel)
        {
            add(listeners, None, publication.channel_stamp, out);
        }
        if publication.patterns.is_empty() {
            return;
        }
        let patterns = read(&self.patterns);
        for (index, pattern) in publication.patterns.iter().enumerate() {
            if let Some(listeners) = patterns.get(pattern) {
                add(listeners, Some(index), publication.pattern_stamp, out);
            }
        }
    }

    /// Channels that somebody is subscribed to and that match a pattern, if one is given.
    pub fn active(&self, space: Space, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let wanted = |name: &Arc<[u8]>| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
        let shards = self.index(space).shards.iter();
        shards
            .flat_map(|shard| {
                read(shard)
                    .keys()
                    .filter(|name| wanted(name))
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Subscribers of a channel, those of patterns left out.
    pub fn subscribers(&self, space: Space, channel: &[u8]) -> usize {
        read(self.index(space).shard(channel))
            .get(channel)
            .map_or(0, Listeners::count)
    }

    /// Channels that somebody is subscribed to.
    pub fn channels(&self, space: Space) -> usize {
        self.index(space).names.load(Ordering::Relaxed)
    }

    /// Patterns that somebody is subscribed to.
    pub fn patterns(&self) -> usize {
        self.pattern_names.load(Ordering::Relaxed)
    }
}

impl Kind {
    /// Where its names lie; `None` for patterns.
    fn space(self) -> Option<Space> {
        match self {
            Kind::Channel => Some(Space::Channels),
            Kind::ShardChannel => Some(Space::ShardChannels),
            Kind::Pattern => None,
        }
    }
}

fn add_new(workers: &mut Vec<usize>, more: impl Iterator<Item = usize>) {
    for worker in more {
        if !workers.contains(&worker) {
            workers.push(worker);
        }
    }
}

// A panic aborts the process, so a poisoned lock is one that nobody will ask for.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

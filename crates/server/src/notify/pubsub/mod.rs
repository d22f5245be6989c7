//! Publish/subscribe: the registry of subscriptions to channels and patterns, and the delivery of messages.
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
//! The registry is the only index. Publishing and delivering workers read it. SUBSCRIBE, UNSUBSCRIBE and the end of a
//! connection write it, each on the worker that owns the client.
//!
//! 1. A subscription has a *stamp* of the registry's clock, which advances with each subscription. A message carries
//!    the clock of the moment when its receivers were counted, and is delivered to older subscriptions only. So a
//!    client that subscribes while a message is being delivered gets it exactly if PUBLISH has counted that client.
//! 2. The clock and the index change together under the lock of a shard (channels) or of all patterns.
//! 3. Messages for a worker go through its mailbox, in the order in which they were published. The publishing worker
//!    delivers to its own clients directly only while its mailbox is empty. Otherwise it uses its mailbox too, since
//!    the messages in it were published earlier. So the messages of one publisher, and the events of one key (which are
//!    sent under the lease of its slot), reach a subscriber in order.
//! 4. A connection with subscriptions stays with its worker, since later messages could overtake messages that are
//!    forwarded to a new worker.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use weft_base::{ClientId, ThreadIndex};
use weft_os::atomic::{AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use weft_resp::glob;

mod publication;

pub use publication::{ChannelNamespace, DELIVERY_OVERHEAD_BYTES, PublishedMessage, Recipient};

/// The number of shards of the channel index.
const SHARD_COUNT: usize = 64;

/// The subscriptions of a client.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// The channels.
    pub channels: BTreeSet<Arc<[u8]>>,
    /// The patterns.
    pub patterns: BTreeSet<Arc<[u8]>>,
    /// The shard channels.
    pub shard_channels: BTreeSet<Arc<[u8]>>,
}

impl Subscriptions {
    /// Returns the names of one kind.
    pub fn names(&self, kind: SubscriptionKind) -> &BTreeSet<Arc<[u8]>> {
        match kind {
            SubscriptionKind::Channel => &self.channels,
            SubscriptionKind::Pattern => &self.patterns,
            SubscriptionKind::ShardChannel => &self.shard_channels,
        }
    }

    fn names_mut(&mut self, kind: SubscriptionKind) -> &mut BTreeSet<Arc<[u8]>> {
        match kind {
            SubscriptionKind::Channel => &mut self.channels,
            SubscriptionKind::Pattern => &mut self.patterns,
            SubscriptionKind::ShardChannel => &mut self.shard_channels,
        }
    }

    /// Returns `true` if there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionKind {
    /// A channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
    /// A shard channel.
    ShardChannel,
}

/// A client and the worker that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// The client's id.
    pub client: ClientId,
    /// The worker's index.
    pub worker: ThreadIndex,
}

/// The subscribers of one name: clients with their stamps, by worker.
#[derive(Debug, Default)]
struct NameSubscribers(Vec<(ThreadIndex, BTreeMap<ClientId, u64>)>);

impl NameSubscribers {
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

    /// Returns the clients of a worker whose stamp is at most `stamp`.
    fn clients_of_worker(&self, worker: ThreadIndex, stamp: u64) -> impl Iterator<Item = ClientId> {
        let of_worker = self.0.iter().filter(move |(owner, _)| *owner == worker);
        let clients = of_worker.flat_map(|(_, clients)| clients.iter());
        clients.filter(move |(_, at)| **at <= stamp).map(|(client, _)| *client)
    }

    /// Returns the workers of the subscribers, with the numbers of theirs.
    fn workers(&self) -> impl Iterator<Item = (ThreadIndex, usize)> {
        self.0.iter().map(|(worker, clients)| (*worker, clients.len()))
    }
}

type Channels = HashMap<Arc<[u8]>, NameSubscribers, ahash::RandomState>;

/// An index of names, split into shards so that operations on different channels rarely contend.
struct ChannelIndex {
    shards: Box<[RwLock<Channels>]>,
    hasher: ahash::RandomState,
    /// The number of names with subscribers.
    names: AtomicUsize,
}

impl Default for ChannelIndex {
    fn default() -> Self {
        ChannelIndex {
            shards: (0..SHARD_COUNT).map(|_| RwLock::default()).collect(),
            hasher: ahash::RandomState::new(),
            names: AtomicUsize::new(0),
        }
    }
}

impl ChannelIndex {
    fn shard(&self, name: &[u8]) -> &RwLock<Channels> {
        &self.shards[self.hasher.hash_one(name) as usize % SHARD_COUNT]
    }
}

/// The registry of all subscriptions.
#[derive(Default)]
pub struct PubSubRegistry {
    channels: ChannelIndex,
    shard_channels: ChannelIndex,
    patterns: RwLock<BTreeMap<Arc<[u8]>, NameSubscribers>>,
    pattern_names: AtomicUsize,
    clock: AtomicU64,
    /// The number of clients with subscriptions.
    pub clients: AtomicUsize,
}

/// A message that has receivers.
pub struct RoutedMessage {
    /// The number of receivers.
    pub receivers: usize,
    /// The workers that own the receivers, each once, with the number of theirs.
    pub workers: Vec<(ThreadIndex, usize)>,
    /// The message.
    pub publication: PublishedMessage,
}

impl PubSubRegistry {
    fn index(&self, namespace: ChannelNamespace) -> &ChannelIndex {
        match namespace {
            ChannelNamespace::Channels => &self.channels,
            ChannelNamespace::ShardChannels => &self.shard_channels,
        }
    }

    /// Subscribes a client. Returns `true` if the subscription is new.
    pub fn subscribe(
        &self,
        subscriptions: &mut Subscriptions,
        kind: SubscriptionKind,
        name: &[u8],
        subscriber: Subscriber,
    ) -> bool {
        if subscriptions.names(kind).contains(name) {
            return false;
        }
        let name: Arc<[u8]> = match kind.namespace() {
            Some(space) => {
                let index = self.index(space);
                let mut shard = write_lock(index.shard(name));
                let shared = shard.get_key_value(name).map(|(known, _)| known.clone());
                let shared = shared.unwrap_or_else(|| {
                    index.names.fetch_add(1, Ordering::Release);
                    name.into()
                });
                shard
                    .entry(shared.clone())
                    .or_default()
                    .add(subscriber, self.next_stamp());
                shared
            }
            None => {
                let mut patterns = write_lock(&self.patterns);
                let shared = patterns.get_key_value(name).map(|(known, _)| known.clone());
                let shared = shared.unwrap_or_else(|| {
                    self.pattern_names.fetch_add(1, Ordering::Release);
                    name.into()
                });
                patterns
                    .entry(shared.clone())
                    .or_default()
                    .add(subscriber, self.next_stamp());
                shared
            }
        };
        if subscriptions.is_empty() {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        subscriptions.names_mut(kind).insert(name);
        true
    }

    /// Removes a subscription. Returns `true` if it was present.
    pub fn unsubscribe(
        &self,
        subscriptions: &mut Subscriptions,
        kind: SubscriptionKind,
        name: &[u8],
        subscriber: Subscriber,
    ) -> bool {
        if !subscriptions.names_mut(kind).remove(name) {
            return false;
        }
        match kind.namespace() {
            Some(space) => {
                let index = self.index(space);
                let mut shard = write_lock(index.shard(name));
                if let Some(listeners) = shard.get_mut(name) {
                    listeners.remove(subscriber);
                    if listeners.0.is_empty() {
                        shard.remove(name);
                        index.names.fetch_sub(1, Ordering::Release);
                    }
                }
            }
            None => {
                let mut patterns = write_lock(&self.patterns);
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

    /// Removes all subscriptions of a client.
    pub fn unsubscribe_all(&self, subscriptions: &mut Subscriptions, subscriber: Subscriber) {
        for kind in [
            SubscriptionKind::Channel,
            SubscriptionKind::Pattern,
            SubscriptionKind::ShardChannel,
        ] {
            let names: Vec<Arc<[u8]>> = subscriptions.names(kind).iter().cloned().collect();
            for name in names {
                self.unsubscribe(subscriptions, kind, &name, subscriber);
            }
        }
    }

    /// Returns the next stamp. The caller holds the lock of the shard or of the patterns.
    fn next_stamp(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns `true` if a message may have receivers. The result `false` is exact.
    pub fn may_have_receivers(&self, space: ChannelNamespace) -> bool {
        let patterns = space == ChannelNamespace::Channels && self.pattern_names.load(Ordering::Acquire) > 0;
        patterns || self.index(space).names.load(Ordering::Acquire) > 0
    }

    /// Creates a message from a channel and a payload; `None` if it has no receivers.
    pub fn prepare(&self, space: ChannelNamespace, channel: &[u8], payload: &[u8]) -> Option<RoutedMessage> {
        let mut receivers = 0;
        let mut workers = Vec::new();
        let mut publication = PublishedMessage::new(space);
        let index = self.index(space);
        if index.names.load(Ordering::Acquire) > 0 {
            let shard = read_lock(index.shard(channel));
            publication.channel_stamp = self.clock.load(Ordering::Relaxed);
            if let Some(listeners) = shard.get(channel) {
                receivers += listeners.count();
                add_receivers(&mut workers, listeners.workers());
            }
        }
        if space == ChannelNamespace::Channels && self.pattern_names.load(Ordering::Acquire) > 0 {
            let patterns = read_lock(&self.patterns);
            publication.pattern_stamp = self.clock.load(Ordering::Relaxed);
            for (pattern, listeners) in patterns.iter() {
                if glob::matches(pattern, channel, false) {
                    receivers += listeners.count();
                    add_receivers(&mut workers, listeners.workers());
                    publication.patterns.push(pattern.clone());
                }
            }
        }
        if workers.is_empty() {
            return None;
        }
        publication.set_content(channel, payload);
        Some(RoutedMessage {
            receivers,
            workers,
            publication,
        })
    }

    /// Appends the clients of a worker that receive a message: those of the channel, then those of each pattern.
    pub fn recipients(&self, worker: ThreadIndex, publication: &PublishedMessage, out: &mut Vec<Recipient>) {
        let add = |listeners: &NameSubscribers, pattern: Option<usize>, stamp: u64, out: &mut Vec<Recipient>| {
            let clients = listeners.clients_of_worker(worker, stamp);
            out.extend(clients.map(|client| Recipient { client, pattern }));
        };
        if let Some(listeners) =
            read_lock(self.index(publication.namespace).shard(&publication.channel)).get(&*publication.channel)
        {
            add(listeners, None, publication.channel_stamp, out);
        }
        if publication.patterns.is_empty() {
            return;
        }
        let patterns = read_lock(&self.patterns);
        for (index, pattern) in publication.patterns.iter().enumerate() {
            if let Some(listeners) = patterns.get(pattern) {
                add(listeners, Some(index), publication.pattern_stamp, out);
            }
        }
    }

    /// Returns the channels with subscribers, restricted to those that match the pattern if there is one.
    pub fn active_channels(&self, space: ChannelNamespace, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let wanted = |name: &Arc<[u8]>| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
        let shards = self.index(space).shards.iter();
        shards
            .flat_map(|shard| {
                read_lock(shard)
                    .keys()
                    .filter(|name| wanted(name))
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the number of subscribers of a channel, without those of patterns.
    pub fn subscriber_count(&self, space: ChannelNamespace, channel: &[u8]) -> usize {
        read_lock(self.index(space).shard(channel))
            .get(channel)
            .map_or(0, NameSubscribers::count)
    }

    /// Returns the number of channels with subscribers.
    pub fn channel_count(&self, space: ChannelNamespace) -> usize {
        self.index(space).names.load(Ordering::Relaxed)
    }

    /// Returns the number of patterns with subscribers.
    pub fn pattern_count(&self) -> usize {
        self.pattern_names.load(Ordering::Relaxed)
    }
}

impl SubscriptionKind {
    /// Returns the namespace of the kind's names; `None` for patterns.
    fn namespace(self) -> Option<ChannelNamespace> {
        match self {
            SubscriptionKind::Channel => Some(ChannelNamespace::Channels),
            SubscriptionKind::ShardChannel => Some(ChannelNamespace::ShardChannels),
            SubscriptionKind::Pattern => None,
        }
    }
}

fn add_receivers(workers: &mut Vec<(ThreadIndex, usize)>, more: impl Iterator<Item = (ThreadIndex, usize)>) {
    for (worker, receivers) in more {
        match workers.iter_mut().find(|(known, _)| *known == worker) {
            Some((_, count)) => *count += receivers,
            None => workers.push((worker, receivers)),
        }
    }
}

// A panic aborts the process, so a poisoned lock is never taken again.
fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read()
}

fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write()
}

#[cfg(test)]
mod tests;

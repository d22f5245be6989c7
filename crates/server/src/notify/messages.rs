//! What others are told of a command: messages to subscribers, keyspace events, invalidations, lines of monitors.
//!
//! Everything here runs on the thread of the command, most of it under the leases of its keys, and ends in notices for
//! the workers that own the clients concerned. Mail for others is put into their mailboxes at once, for its order must
//! be that of the changes; they are woken after the leases. What is for the thread's own clients waits in the outbox
//! until the command has its reply, unless the thread's own mailbox holds something: that was sent earlier.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_resp::{Protocol, Reply};

use crate::keyspace::effects::{Change, ChangeKind, ClientNotification, Effects, Hooks};
use crate::net::client::{Client, ClientFlags};
use crate::notify::keyspace_event::{Event, EventClass};
use crate::notify::pubsub::{ChannelNamespace, Subscriber};
use crate::notify::tracking::{InvalidKeys, Invalidation};
use crate::observability::slot_stats::SlotFigure;
use crate::state::{Server, WorkerId};
use weft_base::slots::cluster_slot;
use weft_config::{id, keyspace_events};

/// Keys that are forgotten in one turn when too many are remembered.
const FORGOTTEN_A_TURN: usize = 100;

/// Sends notices from one thread.
pub struct NotificationSender<'a> {
    server: &'a Server,
    effects: &'a mut Effects,
    /// The row of this thread.
    seat: usize,
    /// The worker that this thread is; none for others.
    own: Option<WorkerId>,
}

impl<'a> NotificationSender<'a> {
    /// The post of the thread in row `seat`.
    pub fn new(server: &'a Server, effects: &'a mut Effects, seat: usize) -> Self {
        // Workers took the first seats.
        let own = Some(seat).filter(|seat| *seat < server.workers.len());
        NotificationSender {
            server,
            effects,
            seat,
            own,
        }
    }

    /// Whether the thread tells its own clients itself.
    fn tells_itself(&self, worker: WorkerId) -> bool {
        self.own == Some(worker) && self.server.workers[worker].mailbox.is_empty_hint()
    }

    fn send(&mut self, worker: WorkerId, notice: ClientNotification) {
        if self.tells_itself(worker) {
            self.effects.outbox.push(notice);
            return;
        }
        let link = &self.server.workers[worker];
        if link.post(notice) {
            self.effects.wakes.push(worker);
        }
        if self.own != Some(worker) && link.is_mailbox_full() {
            self.effects.full_mailbox = Some(worker);
        }
    }

    /// Publishes a message; returns how many receive it.
    pub fn publish(&mut self, space: ChannelNamespace, channel: &[u8], payload: &[u8]) -> usize {
        if !self.server.clients.pubsub.may_have_receivers(space) {
            return 0;
        }
        let Some(prepared) = self.server.clients.pubsub.prepare(space, channel, payload) else {
            return 0;
        };
        let publication = Arc::new(prepared.publication);
        for worker in prepared.workers {
            if self.tells_itself(worker) {
                let mut recipients = Vec::new();
                self.server
                    .clients
                    .pubsub
                    .recipients(worker, &publication, &mut recipients);
                let received = ClientNotification::PublishedTo(Box::new((publication.clone(), recipients)));
                self.effects.outbox.push(received);
            } else {
                self.send(worker, ClientNotification::Published(publication.clone()));
            }
        }
        if space == ChannelNamespace::ShardChannels && self.server.config.boolean(id::CLUSTER_SLOT_STATS_ENABLED) {
            self.count_for_slot(channel, payload, prepared.receivers);
        }
        prepared.receivers
    }

    /// Books what the receivers of a message of a shard channel get on the channel's slot.
    #[cold]
    fn count_for_slot(&self, channel: &[u8], payload: &[u8], receivers: usize) {
        if self.server.cluster.is_none() {
            return;
        }
        let mut message = Vec::new();
        let mut reply = Reply::new(&mut message, Protocol::Resp2);
        reply.array(3);
        for word in [&b"smessage"[..], channel, payload] {
            reply.bulk(word);
        }
        let bytes = message.len() * receivers;
        let (stats, slot) = (&self.server.stats.slots, cluster_slot(channel));
        stats.add(self.seat, slot, SlotFigure::BytesOut, bytes as u64);
    }

    /// Publishes an event, to the channel of its key and to that of its name.
    fn event(&mut self, classes: i64, db: usize, name: &[u8], event: Event) {
        if classes & letter(event.class) == 0
            || !self
                .server
                .clients
                .pubsub
                .may_have_receivers(ChannelNamespace::Channels)
        {
            return;
        }
        if classes & keyspace_events::KEYSPACE != 0 {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(name);
            self.publish(ChannelNamespace::Channels, &channel, event.name.as_bytes());
        }
        if classes & keyspace_events::KEYEVENT != 0 {
            let channel = format!("__keyevent@{db}__:{}", event.name);
            self.publish(ChannelNamespace::Channels, channel.as_bytes(), name);
        }
    }

    /// Tells those who keep copies of a key. `by` is the client that changed it; 0 for none.
    fn invalidate(&mut self, name: Box<[u8]>, by: u64) {
        let table = &self.server.clients.tracking;
        let clients = table.remove(&name);
        if !clients.is_empty() && table.key_count() == 0 {
            let hooks = &self.server.keyspace.hooks;
            table.check_idle(|| hooks.set(Hooks::TRACKING, false));
        }
        if self.server.clients.tracking.has_prefixes() {
            self.effects.broadcast.insert(name.clone(), by);
        }
        self.invalidate_for(clients, &InvalidKeys::Key((name, by)));
    }

    fn invalidate_for(&mut self, clients: impl IntoIterator<Item = u64>, invalid: &InvalidKeys) {
        let mut by_worker: BTreeMap<WorkerId, Vec<u64>> = BTreeMap::new();
        for client in clients {
            if let Some(worker) = self.server.clients.directory.worker_of(client) {
                by_worker.entry(worker).or_default().push(client);
            }
        }
        for (worker, clients) in by_worker {
            let invalid = invalid.clone();
            self.send(
                worker,
                ClientNotification::Invalidated(Arc::new(Invalidation { clients, invalid })),
            );
        }
    }

    /// Tells others what was recorded of a command by client `by`, or of nobody's doing. For the holder of the leases
    /// under which it happened.
    #[inline]
    pub fn tell(&mut self, by: u64) {
        if !self.effects.changes.is_empty() {
            self.tell_changes(by);
        }
    }

    #[cold]
    fn tell_changes(&mut self, by: u64) {
        let classes = self.server.config.integer(id::NOTIFY_KEYSPACE_EVENTS);
        let mut changes = std::mem::take(&mut self.effects.changes);
        for Change { db, name, kind: what } in changes.drain(..) {
            match what {
                ChangeKind::Event(event) => self.event(classes, db, &name, event),
                ChangeKind::Value => self.invalidate(name, by),
            }
        }
        self.effects.changes = changes;
    }

    /// Tells everybody who keeps copies to drop them all: a database was emptied.
    pub fn invalidate_everything(&mut self) {
        if !self.server.keyspace.hooks.current().intersects(Hooks::TRACKING) {
            return;
        }
        self.server.clients.tracking.clear();
        self.invalidate_for(self.server.clients.tracking.clients(), &InvalidKeys::Everything);
    }

    /// Ends a batch: sends the broadcasts of keys that its commands changed.
    pub fn broadcast(&mut self) {
        if self.effects.broadcast.is_empty() {
            return;
        }
        let keys = std::mem::take(&mut self.effects.broadcast);
        for (keys, clients) in self.server.clients.tracking.match_prefixes(&keys) {
            self.invalidate_for(clients, &InvalidKeys::Prefixed(keys));
        }
    }

    /// Forgets remembered keys while there are too many, as if they had changed. Whether some are left that are too
    /// many.
    pub fn forget_surplus(&mut self) -> bool {
        let limit = self.server.config.unsigned(id::TRACKING_TABLE_MAX_KEYS) as usize;
        let table = &self.server.clients.tracking;
        for _ in 0..FORGOTTEN_A_TURN {
            if limit == 0 || table.key_count() <= limit {
                return false;
            }
            let Some((name, clients)) = table.remove_any() else {
                return false;
            };
            self.invalidate_for(clients, &InvalidKeys::Key((name, 0)));
        }
        table.key_count() > limit
    }

    /// Shows a line to all monitors.
    pub fn show(&mut self, line: Vec<u8>) {
        let line: Arc<[u8]> = line.into();
        for worker in self.server.clients.monitors.workers() {
            self.send(worker, ClientNotification::MonitorLine(line.clone()));
        }
    }

    /// Gives one of this thread's own clients something that is no reply.
    pub fn push(&mut self, client: u64, bytes: Vec<u8>) {
        self.effects
            .outbox
            .push(ClientNotification::Push(Box::new((client, bytes))));
    }
}

/// Wakes the workers that got mail. The leases have ended: this calls the kernel.
pub fn wake(server: &Server, effects: &mut Effects) {
    for worker in effects.wakes.drain(..) {
        server.workers[worker].wake();
    }
}

/// The letter of `notify-keyspace-events` that wants a class.
fn letter(class: EventClass) -> i64 {
    match class {
        EventClass::Generic => keyspace_events::GENERIC,
        EventClass::String => keyspace_events::STRING,
        EventClass::Hash => keyspace_events::HASH,
        EventClass::Set => keyspace_events::SET,
        EventClass::SortedSet => keyspace_events::ZSET,
        EventClass::List => keyspace_events::LIST,
        EventClass::Stream => keyspace_events::STREAM,
        EventClass::Expired => keyspace_events::EXPIRED,
        EventClass::Evicted => keyspace_events::EVICTED,
        EventClass::New => keyspace_events::NEW,
        EventClass::Missed => keyspace_events::KEY_MISS,
        EventClass::Silent => 0,
    }
}

/// How the registry of subscriptions knows a client.
pub fn subscriber(client: &Client) -> Subscriber {
    Subscriber {
        client: client.id,
        worker: client.worker,
    }
}

/// A client listens to nothing any more: no channel, no key, no other client.
pub fn leave(server: &Server, client: &mut Client) {
    let who = subscriber(client);
    if let Some(mut subscriptions) = client.subscriptions.take() {
        server.clients.pubsub.unsubscribe_all(&mut subscriptions, who);
    }
    stop_tracking(server, client);
    if client.flags.contains(ClientFlags::MONITOR) {
        let hooks = &server.keyspace.hooks;
        server
            .clients
            .monitors
            .remove(client.id, || hooks.set(Hooks::MONITOR, false));
    }
    client.flags.set(ClientFlags::PUBSUB.union(ClientFlags::MONITOR), false);
}

/// A client tracks no keys any more.
pub fn stop_tracking(server: &Server, client: &mut Client) {
    if let Some(tracking) = client.tracking.take() {
        let hooks = &server.keyspace.hooks;
        let idle = || hooks.set(Hooks::TRACKING, false);
        server.clients.tracking.disable(client.id, &tracking, idle);
    }
}

/// Looks at which events are to be published.
pub fn refresh_event_hook(server: &Server) {
    let classes = server.config.integer(id::NOTIFY_KEYSPACE_EVENTS);
    server.keyspace.hooks.set(Hooks::EVENTS, classes != 0);
}

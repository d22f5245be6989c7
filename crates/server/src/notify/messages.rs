//! Delivers a command's messages to other clients: published messages, keyspace events, invalidations, MONITOR lines.
//!
//! This code runs on the thread of the command, mostly under the leases of its keys, and produces notifications for the
//! workers that own the receiving clients. Notifications for other workers are put into their mailboxes immediately,
//! because their order must be that of the changes; the workers are woken after the leases. Notifications for the
//! thread's own clients wait in the outbox until the command has its reply, unless the thread's own mailbox is not
//! empty: its messages were sent earlier and must be delivered first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{ClientId, DbIndex, ThreadIndex};
use weft_resp::{Protocol, Reply};

use crate::keyspace::effects::{Change, ChangeKind, ClientNotification, Effects, HeldEvent, Hooks};
use crate::net::client::{Client, ClientFlags};
use crate::notify::keyspace_event::{EventClass, KeyspaceEvent};
use crate::notify::pubsub::{ChannelNamespace, Subscriber};
use crate::notify::tracking::{ChangedKey, InvalidKeys, Invalidation, RedirectedInvalidation, Redirection};
use crate::observability::slot_stats::SlotFigure;
use crate::state::Server;
use weft_base::slots::cluster_slot;
use weft_config::{id, keyspace_events};
use weft_modules::module::home_commands::{self, HomeReason};
use weft_modules::module::keyspace_events::{self as module_events, KeyEvent};
use weft_modules::objects::context::Caller;
use weft_os::time::Instant;

/// The longest time for which a thread that is no worker waits for a full mailbox before it goes on.
pub const MAX_FULL_MAILBOX_WAIT: Duration = Duration::from_millis(10);
/// The names of invalid keys; `None` for all keys.
type KeyNames<'k> = Option<Vec<&'k [u8]>>;

/// The interval between two checks of a full mailbox.
const FULL_MAILBOX_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Sends the notifications of one thread.
pub struct NotificationSender<'a> {
    server: &'a Server,
    effects: &'a mut Effects,
    /// The row of this thread.
    counter_row: ThreadIndex,
    /// The index of this worker; `None` for a thread that is not a worker.
    own_worker: Option<ThreadIndex>,
}

impl<'a> NotificationSender<'a> {
    /// Creates the sender of the thread whose counters are in this row.
    pub fn new(server: &'a Server, effects: &'a mut Effects, counter_row: ThreadIndex) -> Self {
        // Workers have the first thread indexes.
        let own = Some(counter_row).filter(|index| index.get() < server.workers.len());
        NotificationSender {
            server,
            effects,
            counter_row,
            own_worker: own,
        }
    }

    /// Returns `true` if the thread delivers to its own clients directly.
    fn can_deliver_directly(&self, worker: ThreadIndex) -> bool {
        !self.effects.is_held_back
            && self.own_worker == Some(worker)
            && self.server.worker(worker).mailbox.is_empty_hint()
    }

    /// Sends a notification to a worker, in the order of the changes if the caller holds their leases.
    pub fn send_notification(&mut self, worker: ThreadIndex, notification: ClientNotification) {
        if self.effects.is_held_back {
            self.effects.held_delivery_bytes += notification.delivery_bytes();
            self.effects.held_notifications.push((worker, notification));
            return;
        }
        if self.can_deliver_directly(worker) {
            self.effects.outbox.push(notification);
            return;
        }
        let link = self.server.worker(worker);
        if link.post_notification(notification) {
            self.effects.wakes.push(worker);
        }
        if link.is_mailbox_full() {
            self.effects.full_mailbox = Some(worker);
        }
    }

    /// Sends the notifications that were held back.
    pub fn send_held_notifications(&mut self) {
        debug_assert!(!self.effects.is_held_back, "notifications are held back only once");
        self.effects.held_delivery_bytes = 0;
        for (worker, notification) in std::mem::take(&mut self.effects.held_notifications) {
            self.send_notification(worker, notification);
        }
        for held in std::mem::take(&mut self.effects.held_events) {
            let event = KeyEvent {
                class: held.class,
                name: &held.name,
                db: held.db,
                key: &held.key,
            };
            module_events::deliver_slot_safe(&event, &caller_with_id(held.caller));
        }
    }

    /// Calls the modules that have a slot-safe subscription to an event.
    #[cold]
    fn deliver_slot_safe(&mut self, event: &KeyEvent<'_>, caller: Option<ClientId>) {
        match self.effects.is_held_back {
            true => self.effects.held_events.push(HeldEvent {
                db: event.db,
                key: event.key.into(),
                class: event.class,
                name: event.name.into(),
                caller,
            }),
            false => module_events::deliver_slot_safe(event, &caller_with_id(caller)),
        }
    }

    /// Publishes a message. Returns the number of receivers.
    pub fn publish_message(&mut self, namespace: ChannelNamespace, channel: &[u8], payload: &[u8]) -> usize {
        if !self.server.clients.pubsub.may_have_receivers(namespace) {
            return 0;
        }
        let Some(prepared) = self.server.clients.pubsub.prepare(namespace, channel, payload) else {
            return 0;
        };
        // Counted first: a receiver may ask for the figures as soon as it has the message.
        if namespace == ChannelNamespace::ShardChannels && self.server.config.boolean(id::CLUSTER_SLOT_STATS_ENABLED) {
            self.count_published_bytes(channel, payload, prepared.receivers);
        }
        let publication = Arc::new(prepared.publication);
        for (worker, receivers) in prepared.workers {
            if self.can_deliver_directly(worker) {
                let mut recipients = Vec::new();
                self.server
                    .clients
                    .pubsub
                    .recipients(worker, &publication, &mut recipients);
                let received = ClientNotification::PublishedTo(Box::new((publication.clone(), recipients)));
                self.effects.outbox.push(received);
            } else {
                self.send_notification(worker, ClientNotification::Published(publication.clone(), receivers));
            }
        }
        prepared.receivers
    }

    /// Counts the bytes that the receivers of a shard channel's message get for the channel's slot.
    #[cold]
    fn count_published_bytes(&self, channel: &[u8], payload: &[u8], receivers: usize) {
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
        stats.add(self.counter_row, slot, SlotFigure::BytesOut, bytes as u64);
    }

    /// Publishes an event of a module. `flags` may contain several classes; one that is enabled is enough.
    pub fn publish_event_of_module(&mut self, event: &KeyEvent<'_>, flags: i64) {
        let classes = self.server.config.integer(id::NOTIFY_KEYSPACE_EVENTS);
        self.publish_event(classes, (DbIndex::new(event.db as usize), event.key), flags, event.name);
        if module_events::slot_safe_classes() & event.class != 0 {
            self.deliver_slot_safe(event, None);
        }
    }

    /// Sends events to the home worker, for modules that have subscribed to their classes. Only for events that no
    /// command on that worker has caused.
    #[cold]
    fn send_to_modules(&self, events: Vec<(DbIndex, Box<[u8]>, KeyspaceEvent)>) {
        self.server.run_session_at_home(move |session| {
            for (db, key, event) in &events {
                module_events::deliver(session, &module_event(*db, key, *event), &Caller::none());
            }
        });
    }

    /// Publishes an event, to the channel of its key and to that of its name.
    fn publish_event(&mut self, classes: i64, (db, key): (DbIndex, &[u8]), flags: i64, event: &str) {
        if classes & flags == 0
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
            channel.extend_from_slice(key);
            self.publish_message(ChannelNamespace::Channels, &channel, event.as_bytes());
        }
        if classes & keyspace_events::KEYEVENT != 0 {
            let channel = format!("__keyevent@{db}__:{event}");
            self.publish_message(ChannelNamespace::Channels, channel.as_bytes(), key);
        }
    }

    /// Invalidates a key for the clients that have cached it. `changed_by` is the client that changed it, if any.
    fn invalidate_key(&mut self, name: Box<[u8]>, changed_by: Option<ClientId>) {
        let table = &self.server.clients.tracking;
        let clients = table.remove(&name);
        if !clients.is_empty() && table.key_count() == 0 {
            let hooks = &self.server.keyspace.hooks;
            table.check_idle(|| hooks.set(Hooks::TRACKING, false));
        }
        if self.server.clients.tracking.has_prefixes() {
            self.effects.broadcast.insert(name.clone(), changed_by);
        }
        self.send_invalidations(clients, &InvalidKeys::Key(ChangedKey { name, changed_by }));
    }

    fn send_invalidations(&mut self, clients: impl IntoIterator<Item = ClientId>, invalid: &InvalidKeys) {
        let mut by_worker: BTreeMap<ThreadIndex, Vec<ClientId>> = BTreeMap::new();
        let mut redirected: BTreeMap<(ThreadIndex, KeyNames<'_>), Vec<ClientId>> = BTreeMap::new();
        for client in clients {
            if let Some((redirection, worker)) = self.redirection(client) {
                let keys = invalid.keys_for(client, redirection.filter);
                if keys.as_ref().is_none_or(|keys| !keys.is_empty()) {
                    redirected.entry((worker, keys)).or_default().push(redirection.target);
                }
            } else if let Some(worker) = self.server.clients.directory.worker_of(client) {
                by_worker.entry(worker).or_default().push(client);
            }
        }
        for (worker, clients) in by_worker {
            let invalid = invalid.clone();
            self.send_notification(
                worker,
                ClientNotification::Invalidated(Arc::new(Invalidation { clients, invalid })),
            );
        }
        for ((worker, keys), clients) in redirected {
            let redirected = RedirectedInvalidation::new(clients, keys.as_deref());
            self.send_notification(worker, ClientNotification::Redirected(redirected.into()));
        }
    }

    /// Returns the client that gets the invalidations of `client`, its worker, and which it gets. `None` if there is no
    /// such client: then `client` gets them, or hears that its redirection is broken.
    fn redirection(&self, client: ClientId) -> Option<(Redirection, ThreadIndex)> {
        let redirection = self.server.clients.tracking.redirection(client)?;
        let worker = self.server.clients.directory.worker_of(redirection.target)?;
        Some((redirection, worker))
    }

    /// Sends the messages recorded for a command by client `changed_by`, or for a change without a client. The caller
    /// holds the leases under which the change happened.
    #[inline]
    pub fn send_recorded_effects(&mut self, changed_by: Option<ClientId>) {
        if !self.effects.changes.is_empty() {
            self.send_changes(changed_by);
        }
    }

    #[cold]
    fn send_changes(&mut self, changed_by: Option<ClientId>) {
        let classes = self.server.config.integer(id::NOTIFY_KEYSPACE_EVENTS);
        let of_modules = i64::from(module_events::subscribed_classes());
        let slot_safe = i64::from(module_events::slot_safe_classes());
        let mut for_modules = Vec::new();
        let mut changes = std::mem::take(&mut self.effects.changes);
        for Change { db, name, kind: what } in changes.drain(..) {
            match what {
                ChangeKind::Event(event) | ChangeKind::DeliveredEvent(event) => {
                    self.publish_event(classes, (db, &name), class_flag(event.class), event.name);
                }
                ChangeKind::ModuleEvent(_) => {}
                ChangeKind::Value => {
                    self.invalidate_key(name, changed_by);
                    continue;
                }
            }
            if let ChangeKind::Event(event) | ChangeKind::DeliveredEvent(event) | ChangeKind::ModuleEvent(event) = what
                && slot_safe & class_flag(event.class) != 0
            {
                self.deliver_slot_safe(&module_event(db, &name, event), changed_by);
            }
            match what {
                ChangeKind::Event(event) | ChangeKind::ModuleEvent(event)
                    if of_modules & class_flag(event.class) != 0 =>
                {
                    for_modules.push((db, name, event));
                }
                _ => {}
            }
        }
        self.effects.changes = changes;
        if !for_modules.is_empty() {
            self.send_to_modules(for_modules);
        }
    }

    /// Invalidates all keys for all tracking clients, because a database was emptied.
    pub fn invalidate_all_keys(&mut self) {
        if !self.server.keyspace.hooks.current().intersects(Hooks::TRACKING) {
            return;
        }
        self.server.clients.tracking.clear();
        self.send_invalidations(self.server.clients.tracking.clients(), &InvalidKeys::Everything);
    }

    /// Ends a batch: sends the broadcasts of keys that its commands changed. Returns the clients that changed them if a
    /// mailbox is full now: they must wait.
    pub fn send_broadcasts(&mut self) -> Vec<ClientId> {
        if self.effects.broadcast.is_empty() {
            return Vec::new();
        }
        self.effects.set_full_mailbox_aside();
        let changed = std::mem::take(&mut self.effects.broadcast);
        for (keys, clients) in self.server.clients.tracking.match_prefixes(&changed) {
            self.send_invalidations(clients, &InvalidKeys::Prefixed(keys));
        }
        let changed_by = changed.into_values().flatten();
        self.effects
            .full_mailbox
            .map_or_else(Vec::new, |_| changed_by.collect())
    }

    /// Drops keys from the tracking table while it exceeds its limit, at most so many, as if they had changed. Returns
    /// `true` if it still exceeds the limit.
    pub fn evict_excess_tracked_keys(&mut self, most: usize) -> bool {
        let limit = self.server.config.unsigned(id::TRACKING_TABLE_MAX_KEYS) as usize;
        let table = &self.server.clients.tracking;
        for _ in 0..most {
            if limit == 0 || table.key_count() <= limit {
                return false;
            }
            let Some((name, clients)) = table.remove_any() else {
                return false;
            };
            let key = ChangedKey { name, changed_by: None };
            self.send_invalidations(clients, &InvalidKeys::Key(key));
        }
        table.key_count() > limit
    }

    /// Sends a line to all monitors.
    pub fn send_monitor_line(&mut self, line: Vec<u8>) {
        let line: Arc<[u8]> = line.into();
        for worker in self.server.clients.monitors.workers() {
            self.send_notification(worker, ClientNotification::MonitorLine(line.clone()));
        }
    }

    /// Sends bytes that are not a reply to one of this thread's own clients.
    pub fn push_to_own_client(&mut self, client: ClientId, bytes: Vec<u8>) {
        self.effects
            .outbox
            .push(ClientNotification::Push(Box::new((client, bytes))));
    }
}

/// Invalidates all keys for all tracking clients, because the whole keyspace is emptied or replaced. `row` is the row
/// of counters of this thread, which is not a worker. The caller must hold exclusive mode, so that the invalidations
/// are in the mail before any client reads the new data.
pub fn invalidate_replaced_data(server: &Server, thread_index: ThreadIndex) {
    let mut effects = Effects::default();
    NotificationSender::new(server, &mut effects, thread_index).invalidate_all_keys();
    wake_workers(server, &mut effects);
}

/// Wakes the workers that got mail. The leases must have ended, because this calls the kernel.
pub fn wake_workers(server: &Server, effects: &mut Effects) {
    for worker in effects.wakes.drain(..) {
        server.worker(worker).wake();
    }
}

/// Waits for a worker that has more mail than it can read, if this thread has sent mail to such a one. So a thread that
/// is no worker does not send more than workers deliver. The leases must have ended, and the wait has a limit, because
/// that worker may wait for something that this thread does next.
pub fn wait_for_full_mailbox(server: &Server, effects: &mut Effects, limit: Duration) {
    effects.set_full_mailbox_aside();
    if let Some(worker) = effects.overloaded_worker.take() {
        wait_until_read(server, worker, limit, &|| false);
    }
}

/// Waits until a worker's mailbox is not full any more, `must_stop` returns `true`, or the time is over.
#[cold]
pub fn wait_until_read(server: &Server, worker: ThreadIndex, limit: Duration, must_stop: &dyn Fn() -> bool) {
    let start = Instant::now();
    while server.worker(worker).is_mailbox_full() && start.elapsed() < limit && !must_stop() {
        weft_os::thread::sleep(FULL_MAILBOX_POLL_INTERVAL);
    }
}

/// Returns an event as modules get it.
pub fn module_event(db: DbIndex, key: &[u8], event: KeyspaceEvent) -> KeyEvent<'_> {
    KeyEvent {
        class: class_flag(event.class) as i32,
        name: event.name,
        db: db.get() as u32,
        key,
    }
}

/// Returns the client whose command has caused an event, as modules see it.
fn caller_with_id(client: Option<ClientId>) -> Caller {
    Caller {
        client_id: client.map_or(0, ClientId::get),
        ..Caller::none()
    }
}

/// Returns the letter of `notify-keyspace-events` that enables a class.
pub fn class_flag(class: EventClass) -> i64 {
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

/// Returns a client as the registry of subscriptions identifies it.
pub fn subscriber(client: &Client) -> Subscriber {
    Subscriber {
        client: client.id,
        worker: client.worker,
    }
}

/// Removes all registrations of a client: subscriptions, tracking and MONITOR.
pub fn remove_all_registrations(server: &Server, client: &mut Client) {
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
            .remove_monitor(client.id, || hooks.set(Hooks::MONITOR, false));
    }
    client.flags.set(ClientFlags::PUBSUB.union(ClientFlags::MONITOR), false);
}

/// Ends the tracking of keys for a client.
pub fn stop_tracking(server: &Server, client: &mut Client) {
    if let Some(tracking) = client.tracking.take() {
        let hooks = &server.keyspace.hooks;
        let idle = || hooks.set(Hooks::TRACKING, false);
        server.clients.tracking.disable(client.id, &tracking, idle);
    }
}

/// Updates the hooks for keyspace events and removed keys to the configured classes and what modules have subscribed
/// to.
pub fn update_event_hook(server: &Server) {
    let classes = server.config.integer(id::NOTIFY_KEYSPACE_EVENTS);
    let has_modules = module_events::subscribed_classes() != 0;
    let has_slot_safe = module_events::slot_safe_classes() != 0;
    let shows_removed = home_commands::are_required_for(HomeReason::RemovedKeys);
    let hooks = &server.keyspace.hooks;
    hooks.set(Hooks::EVENTS, classes != 0 || has_modules || has_slot_safe);
    hooks.set(Hooks::REMOVED_KEYS, shows_removed);
    hooks.set(Hooks::MODULE_EVENTS, has_modules || shows_removed);
}

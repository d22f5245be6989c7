//! The effects of a command on the keyspace, recorded while it runs and processed before its leases end.

use weft_base::{ClientId, DbIndex, SlotIndex, ThreadIndex};
use weft_modules::module::server_events::KeyRemoval;
use weft_table::{EntryRef, Garbage, Removed};
use weft_values::Value;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::before_image::BeforeImages;
use super::key_identity::LocalExpiry;
use super::key_identity::NamedKey;
use super::key_identity::PlannedKey;
use super::ready_keys::ReadyKey;
use super::removed_keys::RemovedKey;
use super::undo::UndoLog;
use super::{Keyspace, SlotTable};
use crate::clients_waiting::blocking::Waiter;
use crate::clients_waiting::watch::Watch;
use crate::notify::keyspace_event::KeyspaceEvent;
use crate::notify::pubsub::{DELIVERY_OVERHEAD_BYTES, PublishedMessage, Recipient};
use crate::notify::tracking::{Invalidation, RedirectedInvalidation};
use crate::observability::metrics::{Counter, Metrics};
use crate::propagation::{LogTarget, LogWriter};
use weft_os::atomic::{AtomicU32, Ordering};

bitflags::bitflags! {
    /// The hooks that are set. Without a hook nothing is recorded for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Hooks: u32 {
        /// Keyspace events are published.
        const EVENTS = 1;
        /// A client is in MONITOR mode.
        const MONITOR = 1 << 1;
        /// Some client tracks keys.
        const TRACKING = 1 << 2;
        /// The command works on a snapshot. Its writes are applied to the real keys afterwards.
        const ON_SNAPSHOT = 1 << 3;
        /// The append-only file is on.
        const LOG_FILE = 1 << 4;
        /// There are replicas, or there may be again.
        const LOG_REPLICAS = 1 << 5;
        /// Clients may write here although this server is a replica. It deletes the keys that they let expire.
        const LOCAL_EXPIRY = 1 << 6;
        /// Slots are being exported: the target of the migration gets their writes.
        const LOG_EXPORTS = 1 << 7;
        /// Modules have subscribed to keyspace events: commands that may cause them run on the home worker.
        const MODULE_EVENTS = 1 << 9;
        /// Modules look at keys that are removed.
        const REMOVED_KEYS = 1 << 8;
        /// Writes are logged for at least one target.
        const LOG = Self::LOG_FILE.bits() | Self::LOG_REPLICAS.bits() | Self::LOG_EXPORTS.bits();
        /// Other clients are notified of what commands do.
        const NOTIFIES_CLIENTS = Self::EVENTS.bits() | Self::MONITOR.bits() | Self::TRACKING.bits() | Self::ON_SNAPSHOT.bits();
        /// Events are recorded.
        const RECORDS_EVENTS = Self::EVENTS.bits() | Self::ON_SNAPSHOT.bits();
    }
}

impl Hooks {
    /// The targets that writes are logged for.
    pub fn log_target(self) -> LogTarget {
        let part = |hook, target| {
            if self.intersects(hook) {
                target
            } else {
                LogTarget::empty()
            }
        };
        let replicas = Hooks::LOG_REPLICAS.union(Hooks::LOG_EXPORTS);
        part(Hooks::LOG_FILE, LogTarget::FILE).union(part(replicas, LogTarget::REPLICAS))
    }
}

/// The hooks that all threads share. Threads read them under leases. So a client that switches one on and then reads or
/// subscribes receives every later change of what it read.
#[derive(Default)]
pub struct SharedHooks(AtomicU32);

impl SharedHooks {
    /// The hooks at this moment.
    #[inline]
    pub fn current(&self) -> Hooks {
        Hooks::from_bits_retain(self.0.load(Ordering::Acquire))
    }

    /// Switches a hook on or off.
    pub fn set(&self, hook: Hooks, on: bool) {
        if on {
            self.0.fetch_or(hook.bits(), Ordering::AcqRel);
        } else {
            self.0.fetch_and(!hook.bits(), Ordering::AcqRel);
        }
    }
}

/// A recorded change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key's database.
    pub db: DbIndex,
    /// The key's name.
    pub name: Box<[u8]>,
    /// The kind of change.
    pub kind: ChangeKind,
}

/// An event that modules with slot-safe subscriptions get once the script that has caused it does not restart any more.
pub struct HeldEvent {
    /// The key's database.
    pub db: u32,
    /// The key's name.
    pub key: Box<[u8]>,
    /// The class of the event, as modules see it.
    pub class: i32,
    /// The name of the event.
    pub name: Box<str>,
    /// The client whose command has caused it, if any.
    pub caller: Option<ClientId>,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// An event to publish. The modules that have subscribed to it do not have it yet.
    Event(KeyspaceEvent),
    /// An event to publish, which modules have got.
    DeliveredEvent(KeyspaceEvent),
    /// An event that modules get, and clients do not.
    ModuleEvent(KeyspaceEvent),
    /// Cached copies of the key become invalid.
    Value,
}

/// A notification for clients, on its way to their worker.
#[derive(Clone)]
pub enum ClientNotification {
    /// A message for subscribers, and how many of them the worker had when it was published.
    Published(Arc<PublishedMessage>, usize),
    /// A message for these subscribers of the thread's own. They receive it even if they unsubscribe meanwhile.
    PublishedTo(Box<(Arc<PublishedMessage>, Vec<Recipient>)>),
    /// Tracking clients must drop their copies.
    Invalidated(Arc<Invalidation>),
    /// The invalidation messages of clients, redirected to others.
    Redirected(Box<RedirectedInvalidation>),
    /// A line for monitors.
    MonitorLine(Arc<[u8]>),
    /// Bytes for one client, regardless of its CLIENT REPLY mode.
    Push(Box<(ClientId, Vec<u8>)>),
    /// The operation of a blocked client is about to be performed. The client gets what follows after its reply.
    Served(Arc<Waiter>),
}

impl ClientNotification {
    /// Estimates what the delivery takes, as the number of bytes that could be copied in the same time. It is the same
    /// when the notification is sent and when it is received.
    pub fn delivery_bytes(&self) -> usize {
        match self {
            ClientNotification::Published(message, receivers) => message.delivery_bytes(*receivers),
            ClientNotification::Invalidated(invalidation) => {
                invalidation.clients.len() * (DELIVERY_OVERHEAD_BYTES + invalidation.invalid.bytes())
            }
            ClientNotification::Redirected(redirected) => {
                redirected.clients.len() * (DELIVERY_OVERHEAD_BYTES + redirected.bytes())
            }
            ClientNotification::MonitorLine(line) => DELIVERY_OVERHEAD_BYTES + line.len(),
            ClientNotification::PublishedTo(_) | ClientNotification::Push(_) | ClientNotification::Served(_) => 0,
        }
    }

    /// Returns `true` if the notification is sent although the run that caused it has had no effect.
    fn outlasts_abandoned_run(&self, keeps_lines: bool) -> bool {
        match self {
            ClientNotification::Invalidated(_) | ClientNotification::Redirected(_) => true,
            ClientNotification::MonitorLine(_) => keeps_lines,
            ClientNotification::Published(..)
            | ClientNotification::PublishedTo(_)
            | ClientNotification::Push(_)
            | ClientNotification::Served(_) => false,
        }
    }
}

/// A key that a reader found expired. Only a writer may delete it.
pub struct ExpiredKey {
    /// The key's database.
    pub db: DbIndex,
    /// The key's slot.
    pub slot: SlotIndex,
    /// The key's hash.
    pub hash: u64,
    /// The key's name.
    pub name: Vec<u8>,
    /// `true` if the reader's miss of the key is to be published.
    pub should_publish_miss: bool,
}

/// The cause for which an entry or a value was removed; parameters decide by it on which thread large values are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// DEL.
    Del,
    /// UNLINK.
    Unlink,
    /// Another command replaced it, or removed its last element.
    Command,
    /// Expiry.
    Expiry,
    /// It was evicted because memory was short.
    Eviction,
}

/// The record of the running command, and the work that waits for the end of its leases. Each thread reuses one record.
#[derive(Default)]
pub struct Effects {
    /// The consumers of changes.
    pub hooks: Hooks,
    /// The undo log of the running script, if its changes may have to be undone.
    pub undo: Option<Box<UndoLog>>,
    /// `true` while a script runs that may have to restart: no other thread learns of what it does.
    pub is_held_back: bool,
    /// The notifications for workers that are held back meanwhile.
    pub held_notifications: Vec<(ThreadIndex, ClientNotification)>,
    /// The events for slot-safe subscriptions of modules that are held back meanwhile.
    pub held_events: Vec<HeldEvent>,
    /// What the delivery of these takes, as [`ClientNotification::delivery_bytes`] estimates it.
    pub held_delivery_bytes: usize,
    /// The number of changes made (Valkey's `rdb_changes_since_last_save`).
    pub dirty: u64,
    /// The number of lookups that found their key.
    pub hits: u64,
    /// The number of lookups that did not find their key.
    pub misses: u64,
    /// The number of keys deleted because they had expired.
    pub expired_keys: u64,
    /// The number of hash fields deleted because they had expired.
    pub expired_fields: u64,
    /// The thread's writer of the propagation log.
    pub log_writer: LogWriter,
    /// All changes, while a hook needs them.
    pub changes: Vec<Change>,
    /// Changed keys that may have to be broadcast at the end of the batch, and the clients that changed them, if any.
    pub broadcast: BTreeMap<Box<[u8]>, Option<ClientId>>,
    /// Deliveries to this worker's own clients, made after the reply of the command.
    pub outbox: Vec<ClientNotification>,
    /// Workers that have mail and are woken once the leases have ended.
    pub wakes: Vec<ThreadIndex>,
    /// A worker to which the running command has sent more mail than it can read at the moment: its client must wait.
    pub full_mailbox: Option<ThreadIndex>,
    /// The same for what no command has sent.
    pub overloaded_worker: Option<ThreadIndex>,
    /// Keys whose blocked clients may be served now.
    pub ready: Vec<ReadyKey>,
    /// `true` if another server deletes what has expired, as of the last passage of the gate. A key that a reader finds
    /// expired is a missing one then.
    pub keeps_expired: bool,
    /// Keys that readers found expired.
    pub expired: Vec<ExpiredKey>,
    /// Keys that clients of a writable replica gave an expiry.
    pub local_expiries: Vec<LocalExpiry>,
    /// Watches that are no longer needed and are still listed in their slots.
    pub removed_watches: Vec<Arc<Watch>>,
    /// Memory to free after the leases end.
    pub garbage: Vec<Garbage<Value>>,
    /// Entries to free after the leases end, and the reasons for their removal.
    pub removed: Vec<(Removed<Value>, RemovalCause)>,
    /// Copies of keys that were removed, for modules.
    pub removed_keys: Vec<RemovedKey>,
    /// `true` while the thread delivers these itself, after the command.
    pub delivers_removed_keys: bool,
    /// The store of before-images for a snapshot; `None` for threads that write no keys visible to others.
    pub before_images: Option<Arc<BeforeImages>>,
}

impl RemovalCause {
    /// Returns the cause as modules see it.
    pub fn removal(self) -> KeyRemoval {
        match self {
            RemovalCause::Del | RemovalCause::Unlink | RemovalCause::Command => KeyRemoval::Deleted,
            RemovalCause::Expiry => KeyRemoval::Expired,
            RemovalCause::Eviction => KeyRemoval::Evicted,
        }
    }
}

impl Effects {
    /// Creates the record of a thread that works on this keyspace.
    pub fn for_keyspace(keyspace: &Keyspace) -> Self {
        Effects {
            before_images: Some(keyspace.before_images.clone()),
            ..Effects::default()
        }
    }

    /// Stores the before-image of a key in a slot that a snapshot has not saved yet, before the key changes.
    #[cold]
    pub fn keep_before_image(&self, db: DbIndex, key: NamedKey<'_>, table: &SlotTable) {
        match &self.before_images {
            Some(before_images) => before_images.keep_before_image(db, key, table),
            None => unreachable!("a thread that writes keys of the keyspace has a store of before-images"),
        }
    }

    /// Keeps a copy of an entry that is removed or replaced, if modules look at such keys. With `is_emptied`, a command
    /// has removed its last element.
    #[inline]
    pub fn note_removed_key(
        &mut self,
        db: DbIndex,
        key: NamedKey<'_>,
        entry: EntryRef<'_, Value>,
        removal: KeyRemoval,
        is_emptied: bool,
    ) {
        if self.hooks.contains(Hooks::REMOVED_KEYS) && !self.hooks.contains(Hooks::ON_SNAPSHOT) {
            self.keep_removed_key(RemovedKey::new(db, key, entry, removal, is_emptied));
        }
    }

    #[cold]
    fn keep_removed_key(&mut self, key: RemovedKey) {
        self.removed_keys.push(key);
    }

    /// Stores the state of a key before it changes, if the change may have to be undone.
    #[cold]
    pub fn keep_former_state(&mut self, db: DbIndex, key: NamedKey<'_>, table: &SlotTable) {
        if let Some(undo) = &mut self.undo {
            undo.keep_former_state(db, key, table);
        }
    }

    /// Records that no client waits for the worker with the full mailbox.
    pub fn set_full_mailbox_aside(&mut self) {
        self.overloaded_worker = self.full_mailbox.take().or(self.overloaded_worker);
    }

    /// Keeps memory until the leases have ended, and frees it then.
    #[inline]
    pub fn discard(&mut self, garbage: Garbage<Value>) {
        if !garbage.is_none() {
            self.garbage.push(garbage);
        }
    }

    /// Keeps a removed entry until the leases have ended, and frees it then.
    pub fn discard_removed(&mut self, removed: Removed<Value>, cause: RemovalCause) {
        self.removed.push((removed, cause));
    }

    /// Queues a key for deletion by a writer, unless another server deletes it. `is_miss_published` is `true` if the
    /// reader's miss of the key is an event. That follows the event of the deletion.
    #[cold]
    pub fn queue_expired(&mut self, db: DbIndex, key: &PlannedKey, name: &[u8], is_miss_published: bool) {
        if self.keeps_expired {
            if is_miss_published && self.hooks.intersects(Hooks::RECORDS_EVENTS) {
                self.record_event(db, name, KeyspaceEvent::MISSED);
            }
            return;
        }
        self.expired.push(ExpiredKey {
            db,
            slot: key.slot,
            hash: key.hash,
            name: name.to_vec(),
            should_publish_miss: is_miss_published && self.hooks.intersects(Hooks::EVENTS),
        });
    }

    /// Drops the events of the misses of the queued keys, except for the first `kept`: the command that met the others
    /// runs again.
    #[cold]
    pub fn withdraw_misses(&mut self, kept: usize) {
        for key in self.expired.iter_mut().skip(kept) {
            key.should_publish_miss = false;
        }
    }

    /// Returns `true` if writes are logged. A handler that has to be logged as another command then records that
    /// command.
    #[inline]
    pub fn is_logging(&self) -> bool {
        self.hooks.intersects(Hooks::LOG)
    }

    /// Logs this command instead of the command that runs.
    pub fn log_instead(&mut self, words: &[&[u8]]) {
        if self.is_logging() {
            self.log_writer.propagate_instead(words);
        }
    }

    /// Propagates nothing of the command that runs, except commands added with [`Self::log_also`].
    pub fn log_nothing(&mut self) {
        if self.is_logging() {
            self.log_writer.propagate_nothing();
        }
    }

    /// Logs, instead of the command that runs, the deletion of a key whose new expiry is in the past.
    pub fn log_past_expiry(&mut self, name: &[u8]) {
        let word = self.expiry_command();
        self.log_instead(&[word, name]);
    }

    fn expiry_command(&self) -> &'static [u8] {
        if self.log_writer.lazy_expire { b"UNLINK" } else { b"DEL" }
    }

    /// Logs the command that runs for the given targets even if it changes nothing.
    pub fn log_for(&mut self, target: LogTarget) {
        if self.is_logging() {
            self.log_writer.force_propagation(target);
        }
    }

    /// Logs this command before the command that runs.
    pub fn log_also(&mut self, db: DbIndex, words: &[&[u8]]) {
        if self.is_logging() {
            self.log_writer.propagate_before(self.hooks.log_target(), db, words);
        }
    }

    /// Logs the deletion of something that has expired, before the command that runs.
    pub fn log_expiry(&mut self, db: DbIndex, words: &[&[u8]]) {
        if self.is_logging() {
            self.log_writer.propagate_expiry(self.hooks.log_target(), db, words);
        }
    }

    /// Propagates the expiry of a key.
    #[cold]
    pub fn log_expired(&mut self, db: DbIndex, name: &[u8]) {
        if self.hooks.intersects(Hooks::ON_SNAPSHOT) {
            // This deletes a copy of the key. The deletion of the real key is logged when it happens.
            return;
        }
        let word = self.expiry_command();
        self.log_expiry(db, &[word, name]);
    }

    /// Records an event of a key.
    #[cold]
    pub fn record_event(&mut self, db: DbIndex, name: &[u8], event: KeyspaceEvent) {
        self.changes.push(Change {
            db,
            name: name.into(),
            kind: ChangeKind::Event(event),
        });
    }

    /// Records an event of a key for modules only.
    #[cold]
    pub fn record_module_event(&mut self, db: DbIndex, name: &[u8], event: KeyspaceEvent) {
        self.changes.push(Change {
            db,
            name: name.into(),
            kind: ChangeKind::ModuleEvent(event),
        });
    }

    /// Records the event that a reader has not found a key.
    pub fn record_missed_event(&mut self, db: DbIndex, name: &[u8]) {
        if self.hooks.intersects(Hooks::RECORDS_EVENTS) {
            self.record_event(db, name, KeyspaceEvent::MISSED);
        }
    }

    /// Records that cached copies of a key are invalid.
    #[cold]
    pub fn record_invalidation(&mut self, db: DbIndex, name: &[u8]) {
        self.changes.push(Change {
            db,
            name: name.into(),
            kind: ChangeKind::Value,
        });
    }

    /// Drops the notifications that were held back for a run that has had no effect. Invalidations of cached keys stay:
    /// the clients are no longer registered as readers of these keys. The lines for monitors stay if `keeps_lines`.
    #[cold]
    pub fn discard_held_notifications(&mut self, keeps_lines: bool) {
        self.held_events.clear();
        self.held_notifications
            .retain(|(_, notification)| notification.outlasts_abandoned_run(keeps_lines));
        let held = self.held_notifications.iter();
        self.held_delivery_bytes = held.map(|(_, notification)| notification.delivery_bytes()).sum();
    }

    /// Adds the counts of this record to the thread's row of the metrics.
    pub fn add_to_metrics(&mut self, keyspace: &Keyspace, metrics: &Metrics, thread_index: ThreadIndex) {
        metrics.add(thread_index, Counter::KeyspaceHits, std::mem::take(&mut self.hits));
        metrics.add(thread_index, Counter::KeyspaceMisses, std::mem::take(&mut self.misses));
        metrics.add(
            thread_index,
            Counter::ExpiredKeys,
            std::mem::take(&mut self.expired_keys),
        );
        metrics.add(
            thread_index,
            Counter::ExpiredFields,
            std::mem::take(&mut self.expired_fields),
        );
        metrics.add(thread_index, Counter::Dirty, std::mem::take(&mut self.dirty));
        if !self.local_expiries.is_empty() {
            keyspace.local_expiry.add(self.local_expiries.drain(..));
        }
    }

    /// Returns `true` if events are recorded that modules do not have yet, or expired keys whose deletion is an event.
    pub fn has_new_events(&self) -> bool {
        let is_new = |change: &Change| matches!(change.kind, ChangeKind::Event(_));
        !self.expired.is_empty() || self.changes.iter().any(is_new)
    }

    /// Returns `true` if there are deliveries to make, or workers to wake, after the reply.
    #[inline]
    pub fn has_deliveries(&self) -> bool {
        !self.outbox.is_empty() || !self.wakes.is_empty()
    }
}

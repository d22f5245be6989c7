//! What a command did to the keyspace, recorded while it runs and acted upon before its leases end.

use weft_table::{Garbage, Removed};
use weft_values::Value;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::access::{NamedKey, PlannedKey};
use super::before_image::BeforeImages;
use super::ready_keys::ReadyKey;
use super::writable_replica_keys::LocalKey;
use super::{Keyspace, SlotTable};
use crate::clients_waiting::watch::Watch;
use crate::notify::keyspace_event::Event;
use crate::notify::pubsub::{Publication, Recipient};
use crate::notify::tracking::{Invalidation, RedirectedInvalidation};
use crate::observability::metrics::{Counter, Metrics};
use crate::propagation::{LogTarget, LogWriter};

/// Which consumers of what commands do are switched on; with none, nothing is recorded for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks(u32);

impl Hooks {
    /// Keyspace events are published.
    pub const EVENTS: Hooks = Hooks(1);
    /// Some client shows what others do (MONITOR).
    pub const MONITOR: Hooks = Hooks(1 << 1);
    /// Some client tracks keys.
    pub const TRACKING: Hooks = Hooks(1 << 2);
    /// The command works on a snapshot: what it does there is then done to the real keys.
    pub const REPEAT: Hooks = Hooks(1 << 3);
    /// There is an append-only file.
    pub const LOG_FILE: Hooks = Hooks(1 << 4);
    /// There are replicas, or may be again.
    pub const LOG_REPLICAS: Hooks = Hooks(1 << 5);
    /// Clients may write here though this is a replica: it deletes the keys that they let expire.
    pub const LOCAL_EXPIRY: Hooks = Hooks(1 << 6);
    /// Writes are logged, for one or the other.
    pub const LOG: Hooks = Hooks(Hooks::LOG_FILE.0 | Hooks::LOG_REPLICAS.0);
    /// Other clients are told what commands do.
    pub const TELLS: Hooks = Hooks(Hooks::EVENTS.0 | Hooks::MONITOR.0 | Hooks::TRACKING.0 | Hooks::REPEAT.0);
    /// Events are recorded, for one or the other.
    pub const NOTED: Hooks = Hooks(Hooks::EVENTS.0 | Hooks::REPEAT.0);

    /// Whether anything listens.
    #[inline]
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Whether that listens.
    #[inline]
    pub const fn has(self, other: Hooks) -> bool {
        self.0 & other.0 != 0
    }

    /// What is in either.
    pub const fn or(self, other: Hooks) -> Hooks {
        Hooks(self.0 | other.0)
    }

    /// What is in both.
    pub const fn and(self, other: Hooks) -> Hooks {
        Hooks(self.0 & other.0)
    }

    /// For whom writes are logged.
    pub fn log_target(self) -> LogTarget {
        let part = |hook, target| if self.has(hook) { target } else { LogTarget::NONE };
        part(Hooks::LOG_FILE, LogTarget::FILE).union(part(Hooks::LOG_REPLICAS, LogTarget::REPLICAS))
    }
}

/// The hooks that all threads share. They are looked at under leases, so whoever switches one on and then reads or
/// subscribes is known to every later change of what it read.
#[derive(Default)]
pub struct SharedHooks(AtomicU32);

impl SharedHooks {
    /// The hooks at this moment.
    #[inline]
    pub fn now(&self) -> Hooks {
        Hooks(self.0.load(Ordering::Acquire))
    }

    /// Switches a consumer on or off.
    pub fn put(&self, hook: Hooks, on: bool) {
        if on {
            self.0.fetch_or(hook.0, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!hook.0, Ordering::AcqRel);
        }
    }
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its database.
    pub db: usize,
    /// Its name.
    pub name: Box<[u8]>,
    /// What.
    pub what: ChangeKind,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Something to be published.
    Event(Event),
    /// Copies of the key are invalid.
    Value,
}

/// What clients are to be told, on its way to the worker that owns them.
#[derive(Clone)]
pub enum ClientNotification {
    /// Subscribers get a message.
    Published(Arc<Publication>),
    /// These subscribers of the thread's own get a message, though they may end their subscription meanwhile.
    Received(Box<(Arc<Publication>, Vec<Recipient>)>),
    /// Clients that keep copies are told to drop them.
    Invalidated(Arc<Invalidation>),
    /// A client gets the invalidations of another.
    Redirected(Box<RedirectedInvalidation>),
    /// Monitors get a line.
    Line(Arc<[u8]>),
    /// A client gets these bytes, whatever it said about replies.
    Push(Box<(u64, Vec<u8>)>),
}

/// A key that a reader found expired; only a writer may delete it.
pub struct ExpiredKey {
    /// Its database.
    pub db: usize,
    /// Its slot.
    pub slot: u16,
    /// Its hash.
    pub hash: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// Whether its reader has missed it, and that is to be published.
    pub missed: bool,
}

/// Why an entry or a value went away; parameters decide by it who frees what takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// DEL.
    Del,
    /// UNLINK.
    Unlink,
    /// Another command replaced it, or took the last element out.
    Command,
    /// Its time was up.
    Expiry,
    /// Memory was short.
    Eviction,
}

/// The record of the command that runs, and what waits for the end of its leases. One per thread, reused.
#[derive(Default)]
pub struct Effects {
    /// Consumers of changes.
    pub hooks: Hooks,
    /// Changes made (Valkey's `rdb_changes_since_last_save`).
    pub dirty: u64,
    /// Lookups that found their key.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Keys deleted because they were expired.
    pub expired_keys: u64,
    /// Fields of hashes deleted because they were expired.
    pub expired_fields: u64,
    /// What the log is to repeat.
    pub log_writer: LogWriter,
    /// Every change, when somebody listens.
    pub changes: Vec<Change>,
    /// Changed keys that may have to be broadcast at the end of the batch, and who changed them.
    pub broadcast: BTreeMap<Box<[u8]>, u64>,
    /// What this worker's own clients are to be told behind the reply of the command.
    pub outbox: Vec<ClientNotification>,
    /// Workers that have mail and are to be woken once the leases have ended.
    pub wakes: Vec<usize>,
    /// A worker that was sent more mail than it can read at the moment.
    pub crowded: Option<usize>,
    /// Keys whose waiting clients may be served now.
    pub ready: Vec<ReadyKey>,
    /// Keys that readers found expired.
    pub expired: Vec<ExpiredKey>,
    /// Keys that clients of a writable replica have given an expiry.
    pub local: Vec<LocalKey>,
    /// Watches that nobody needs any more and that still lie in their slots.
    pub unwatched: Vec<Arc<Watch>>,
    /// Memory to free after the leases.
    pub garbage: Vec<Garbage<Value>>,
    /// Entries to free after the leases, and why they went away.
    pub removed: Vec<(Removed<Value>, Cause)>,
    /// Where old states of keys are kept for a snapshot. Who has none writes no keys that others can see.
    pub before_images: Option<Arc<BeforeImages>>,
}

impl Effects {
    /// The record of a thread that works on this keyspace.
    pub fn of(keyspace: &Keyspace) -> Self {
        Effects {
            before_images: Some(keyspace.before_images.clone()),
            ..Effects::default()
        }
    }

    /// Keeps what a key of a slot is that a snapshot has not saved yet, before it changes.
    #[cold]
    pub fn keep(&self, db: usize, key: NamedKey<'_>, table: &SlotTable) {
        match &self.before_images {
            Some(before_images) => before_images.keep(db, key, table),
            None => unreachable!("who writes keys of the keyspace knows where their old states are kept"),
        }
    }

    /// Keeps freed memory until the leases have ended.
    #[inline]
    pub fn discard(&mut self, garbage: Garbage<Value>) {
        if !garbage.is_none() {
            self.garbage.push(garbage);
        }
    }

    /// Keeps a removed entry until the leases have ended.
    pub fn discard_removed(&mut self, removed: Removed<Value>, cause: Cause) {
        self.removed.push((removed, cause));
    }

    /// Remembers a key for deletion by a writer; `noticed` tells whether it is an event that its reader missed it.
    #[cold]
    pub fn queue_expired(&mut self, db: usize, key: &PlannedKey, name: &[u8], noticed: bool) {
        self.expired.push(ExpiredKey {
            db,
            slot: key.slot,
            hash: key.hash,
            name: name.to_vec(),
            missed: noticed && self.hooks.has(Hooks::EVENTS),
        });
    }

    /// Whether writes are logged: a handler that is to be repeated as another command says so then.
    #[inline]
    pub fn logs(&self) -> bool {
        self.hooks.has(Hooks::LOG)
    }

    /// Has the log repeat this instead of the command that runs.
    pub fn log_instead(&mut self, words: &[&[u8]]) {
        if self.logs() {
            self.log_writer.propagate_instead(words);
        }
    }

    /// Has the log repeat nothing of the command that runs but what was said beside it.
    pub fn log_nothing(&mut self) {
        if self.logs() {
            self.log_writer.propagate_nothing();
        }
    }

    /// Has the log repeat, instead of the command that runs, that a key was deleted as its new expiry has passed.
    pub fn log_passed(&mut self, name: &[u8]) {
        let word = self.expiry_word();
        self.log_instead(&[word, name]);
    }

    fn expiry_word(&self) -> &'static [u8] {
        if self.log_writer.lazy_expire { b"UNLINK" } else { b"DEL" }
    }

    /// Has the log repeat the command that runs for some, even if it changes nothing.
    pub fn log_for(&mut self, target: LogTarget) {
        if self.logs() {
            self.log_writer.force_propagation(target);
        }
    }

    /// Has the log repeat this before the command that runs.
    pub fn log_also(&mut self, db: usize, words: &[&[u8]]) {
        if self.logs() {
            self.log_writer.propagate_before(self.hooks.log_target(), db, words);
        }
    }

    /// Has the log repeat that a key has expired.
    #[cold]
    pub fn log_expired(&mut self, db: usize, name: &[u8]) {
        if self.hooks.has(Hooks::REPEAT) {
            // A copy of the key is deleted; the key itself will be.
            return;
        }
        let word = self.expiry_word();
        self.log_also(db, &[word, name]);
    }

    /// Records an event of a key.
    #[cold]
    pub fn note(&mut self, db: usize, name: &[u8], event: Event) {
        self.changes.push(Change {
            db,
            name: name.into(),
            what: ChangeKind::Event(event),
        });
    }

    /// Records that copies of a key are invalid.
    #[cold]
    pub fn note_value(&mut self, db: usize, name: &[u8]) {
        self.changes.push(Change {
            db,
            name: name.into(),
            what: ChangeKind::Value,
        });
    }

    /// Adds what was counted to the counters that all threads' figures are summed from.
    pub fn count(&mut self, keyspace: &Keyspace, metrics: &Metrics, row: usize) {
        metrics.add(row, Counter::KeyspaceHits, std::mem::take(&mut self.hits));
        metrics.add(row, Counter::KeyspaceMisses, std::mem::take(&mut self.misses));
        metrics.add(row, Counter::ExpiredKeys, std::mem::take(&mut self.expired_keys));
        metrics.add(row, Counter::ExpiredFields, std::mem::take(&mut self.expired_fields));
        metrics.add(row, Counter::Dirty, std::mem::take(&mut self.dirty));
        if !self.local.is_empty() {
            keyspace.local.note(self.local.drain(..));
        }
    }

    /// Whether there is something to be done for other clients behind the reply.
    #[inline]
    pub fn has_notices(&self) -> bool {
        !self.outbox.is_empty() || !self.wakes.is_empty()
    }
}

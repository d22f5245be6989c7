//! What a command did to the keyspace, recorded while it runs and acted upon before its leases end.

use weft_table::{Garbage, Removed};
use weft_values::Value;

use std::sync::Arc;

use super::access::PlannedKey;
use super::event::Event;
use super::ready::ReadyKey;
use crate::watch::Watch;

/// Which consumers of changes are switched on; with none, changes are not even recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks(u32);

#[expect(
    dead_code,
    reason = "each is for one consumer of changes: events, WATCH, tracking, log"
)]
impl Hooks {
    /// Keyspace events are published.
    pub const EVENTS: Hooks = Hooks(1);
    /// Some client watches keys.
    pub const WATCH: Hooks = Hooks(1 << 1);
    /// Some client tracks keys.
    pub const TRACKING: Hooks = Hooks(1 << 3);
    /// A log (append-only file or replicas) takes writes.
    pub const LOG: Hooks = Hooks(1 << 4);
}

impl Hooks {
    /// Whether anything listens.
    #[inline]
    pub const fn any(self) -> bool {
        self.0 != 0
    }
}

/// One change of one key.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "read by the consumers that `Hooks` names")]
pub struct Change {
    /// Index of the key in the plan; [`Change::UNPLANNED`] for one that a blocked client's command changed.
    pub key: u32,
    /// Its slot.
    pub slot: u16,
    /// Its database.
    pub db: u32,
    /// What happened.
    pub event: Event,
}

impl Change {
    /// The key is not one of the command that runs.
    pub const UNPLANNED: u32 = u32::MAX;
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
    /// Every change, when somebody listens.
    pub changes: Vec<Change>,
    /// Keys whose waiting clients may be served now.
    pub ready: Vec<ReadyKey>,
    /// Keys that readers found expired.
    pub expired: Vec<ExpiredKey>,
    /// Watches that nobody needs any more and that still lie in their slots.
    pub unwatched: Vec<Arc<Watch>>,
    /// Memory to free after the leases.
    pub garbage: Vec<Garbage<Value>>,
    /// Entries to free after the leases, and why they went away.
    pub removed: Vec<(Removed<Value>, Cause)>,
}

impl Effects {
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

    /// Remembers a key for deletion by a writer.
    #[cold]
    pub fn queue_expired(&mut self, db: usize, key: &PlannedKey, name: &[u8]) {
        self.expired.push(ExpiredKey {
            db,
            slot: key.slot,
            hash: key.hash,
            name: name.to_vec(),
        });
    }
}

//! Copies keys into the scratch keyspace of a session when its script accesses them.
//!
//! The keys of one command are copied together, under leases of all their slots, so a command sees them as of one
//! moment. From then on the copies belong to the session. A command that accesses keys that no plan names gets all
//! keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{SlotIndex, ThreadIndex};
use weft_resp::Args;

use crate::dispatch::leases::lease_slots;
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::scratch_keyspace::CopiedKeys;
use crate::keyspace::{Exclusive, GatePassage, Seat};
use crate::state::Server;
use weft_base::slots::SLOTS;

/// The pause after a refused slot.
const RETRY_PAUSE: Duration = Duration::from_micros(100);
/// The row of counters that the session's thread uses in the scratch keyspace.
const COUNTER_ROW: ThreadIndex = ThreadIndex::FIRST;

/// Copies keys from the keyspace into a session's scratch keyspace.
pub struct KeyCopier {
    server: Arc<Server>,
    /// The names of keys that were copied, or found missing.
    copied_names: HashSet<Box<[u8]>, ahash::RandomState>,
    /// `true` if all keys were copied.
    has_copied_all: bool,
}

impl KeyCopier {
    /// Creates a copier that has copied nothing yet.
    pub fn new(server: Arc<Server>) -> Self {
        KeyCopier {
            server,
            copied_names: HashSet::default(),
            has_copied_all: false,
        }
    }

    fn join_keyspace(&self) -> Seat {
        loop {
            match self.server.keyspace.slots.join() {
                Some(seat) => return seat,
                None => weft_os::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Copies the keys of a command that are not in the scratch keyspace yet, in all databases.
    pub fn copy_keys(&mut self, planned: &[PlannedKey], args: Args<'_>, scratch: &Server, all: &mut Exclusive<'_>) {
        let name = |key: &PlannedKey| args.argument(key.argument as usize);
        let unknown = planned.iter().filter(|key| !self.copied_names.contains(name(key)));
        let mut keys: Vec<PlannedKey> = unknown
            .map(|key| PlannedKey {
                is_write: false,
                ..*key
            })
            .collect();
        if self.has_copied_all || keys.is_empty() {
            return;
        }
        keys.sort_by_key(|key| name(key));
        keys.dedup_by_key(|key| name(key));
        self.copied_names.extend(keys.iter().map(|key| Box::from(name(key))));
        let mut seat = self.join_keyspace();
        loop {
            let pass = seat.enter();
            if let Some(copies) = self.copy_atomically(&pass, &mut keys, args) {
                drop(pass);
                return copies.put(&scratch.keyspace, all, COUNTER_ROW);
            }
            drop(pass);
            weft_os::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Copies all of these keys as of one moment, unless a slot is refused.
    fn copy_atomically<'p>(
        &self,
        pass: &'p GatePassage<'p>,
        keys: &mut [PlannedKey],
        args: Args<'_>,
    ) -> Option<CopiedKeys> {
        let mut many: Vec<Lease<'p>> = Vec::new();
        lease_slots(pass, keys, &mut Vec::new(), &mut many, 0)?;
        let held = HeldLeases::Many(&mut many);
        assert!(held.covers(keys), "the keys of a command are copied as of one moment");
        let mut copies = CopiedKeys::default();
        for key in keys {
            let slot = held.slot(key)?;
            copies.take(
                &self.server.keyspace,
                slot,
                key.hash,
                args.argument(key.argument as usize),
            )?;
        }
        Some(copies)
    }

    /// Copies all remaining keys, slot by slot.
    pub fn copy_all_keys(&mut self, scratch: &Server, all: &mut Exclusive<'_>) {
        if std::mem::replace(&mut self.has_copied_all, true) {
            return;
        }
        let keyspace = &self.server.keyspace;
        let mut seat = self.join_keyspace();
        let known = std::mem::take(&mut self.copied_names);
        for slot in 0..SLOTS {
            if !keyspace.slots.header(slot).may_hold_any() {
                continue;
            }
            loop {
                let pass = seat.enter();
                let mut copies = CopiedKeys::default();
                let taken = pass.read_spinning(slot).and_then(|lease| {
                    copies.take_all(keyspace, SlotIndex::from_index(slot), &lease, |name| {
                        known.contains(name)
                    })
                });
                drop(pass);
                if taken.is_some() {
                    copies.put(&scratch.keyspace, all, COUNTER_ROW);
                    break;
                }
                weft_os::thread::sleep(RETRY_PAUSE);
            }
        }
    }
}

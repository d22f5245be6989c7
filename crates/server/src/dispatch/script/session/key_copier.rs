//! Copies keys into the scratch keyspace of a session when its script accesses them.
//!
//! The keys of one command are copied together, under leases of all their slots, so a command sees them as of one
//! moment. From then on the copies belong to the session. A command that accesses keys that no plan names gets all
//! keys.
//!
//! The keys come from the live keyspace, so the present users decide if a command may read them. A command is admitted
//! by the present rules, and its keys are copied within a passage of the gate in which the users are still the same.
//! Otherwise it is admitted again. A command that would have to wait for an overdue script, which may never end, is
//! refused.

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
use crate::net::kill_mark::KillMark;
use crate::state::Server;
use weft_acl::Login;
use weft_base::slots::SLOTS;
use weft_scripting::ScriptRun;

/// The pause after a refused slot.
const RETRY_PAUSE: Duration = Duration::from_micros(100);
/// The row of counters that the session's thread uses in the scratch keyspace.
const COUNTER_ROW: ThreadIndex = ThreadIndex::FIRST;

/// Copies keys from the keyspace into a session's scratch keyspace.
pub struct KeyCopier {
    server: Arc<Server>,
    /// Set once the session's client is killed.
    kill_mark: Arc<KillMark>,
    /// The version of the users by which the running command was admitted.
    acl_version: u64,
    /// The overdue script because of which keys were not copied.
    overdue_run: Option<Arc<ScriptRun>>,
    /// The names of keys that were copied, or found missing.
    copied_names: HashSet<Box<[u8]>, ahash::RandomState>,
    /// The number of the first slot of which not all keys were copied.
    next_slot: usize,
}

impl KeyCopier {
    /// Creates a copier that has copied nothing yet, for a session of a client that shares `kill_mark`.
    pub fn new(server: Arc<Server>, kill_mark: Arc<KillMark>) -> Self {
        KeyCopier {
            server,
            kill_mark,
            acl_version: 0,
            overdue_run: None,
            copied_names: HashSet::default(),
            next_slot: 0,
        }
    }

    /// Begins a command, which the caller admits by the rules that its login has afterwards. Returns `false` if the
    /// client was killed or its ACL user was deleted.
    pub fn begin_command(&mut self, login: &mut Login) -> bool {
        // Read first: rules that are newer than that are found to have changed.
        self.acl_version = self.server.acl.version();
        login.refresh(&self.server.acl) && !self.kill_mark.is_killed()
    }

    /// Returns `true` if the command that was admitted last may read keys. Users change in exclusive mode, so the
    /// answer holds until the caller leaves the gate.
    fn may_copy(&self, _pass: &GatePassage<'_>) -> bool {
        self.server.acl.version() == self.acl_version && !self.kill_mark.is_killed()
    }

    /// Returns the overdue script because of which the last keys were not copied, if that is the reason. It is
    /// forgotten then.
    pub fn take_overdue_run(&mut self) -> Option<Arc<ScriptRun>> {
        self.overdue_run.take()
    }

    /// Records if an overdue script holds one of these slots, one of which was refused. Returns `true` if so.
    fn note_overdue_holder(&mut self, mut slots: impl Iterator<Item = SlotIndex>) -> bool {
        let running = &self.server.scripting.running;
        if running.has_overdue() {
            self.overdue_run = slots.find_map(|slot| running.overdue_holder(Some(slot.get())));
        }
        self.overdue_run.is_some()
    }

    fn join_keyspace(&self) -> Seat {
        loop {
            match self.server.keyspace.slots.join() {
                Some(seat) => return seat,
                None => weft_os::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Copies the keys of a command that are not in the scratch keyspace yet, in all databases. Returns `false` if the
    /// users have changed since the command was admitted, or the client was killed, or an overdue script holds a slot
    /// ([`Self::take_overdue_run`]).
    #[must_use]
    pub fn copy_keys(
        &mut self,
        planned: &[PlannedKey],
        args: Args<'_>,
        scratch: &Server,
        all: &mut Exclusive<'_>,
    ) -> bool {
        let name = |key: &PlannedKey| args.argument(key.argument as usize);
        let is_copied = |key: &PlannedKey| key.slot.index() < self.next_slot || self.copied_names.contains(name(key));
        let unknown = planned.iter().filter(|key| !is_copied(key));
        let mut keys: Vec<PlannedKey> = unknown
            .map(|key| PlannedKey {
                is_write: false,
                ..*key
            })
            .collect();
        if keys.is_empty() {
            return true;
        }
        keys.sort_by_key(|key| name(key));
        keys.dedup_by_key(|key| name(key));
        let mut seat = self.join_keyspace();
        loop {
            let pass = seat.enter();
            if !self.may_copy(&pass) {
                return false;
            }
            if let Some(copies) = self.copy_atomically(&pass, &mut keys, args) {
                drop(pass);
                self.copied_names.extend(keys.iter().map(|key| Box::from(name(key))));
                copies.put(&scratch.keyspace, all, COUNTER_ROW);
                return true;
            }
            drop(pass);
            if self.note_overdue_holder(keys.iter().map(|key| key.slot)) {
                return false;
            }
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

    /// Copies all remaining keys, slot by slot. Returns `false` in the same cases as [`Self::copy_keys`]: the next call
    /// continues.
    #[must_use]
    pub fn copy_all_keys(&mut self, scratch: &Server, all: &mut Exclusive<'_>) -> bool {
        if self.next_slot == SLOTS {
            return true;
        }
        let server = self.server.clone();
        let keyspace = &server.keyspace;
        let mut seat = self.join_keyspace();
        while self.next_slot < SLOTS {
            let slot = self.next_slot;
            if !keyspace.slots.header(slot).may_hold_any() {
                self.next_slot += 1;
                continue;
            }
            let pass = seat.enter();
            if !self.may_copy(&pass) {
                return false;
            }
            let mut copies = CopiedKeys::default();
            let taken = pass.read_spinning(slot).and_then(|lease| {
                copies.take_all(keyspace, SlotIndex::from_index(slot), &lease, |name| {
                    self.copied_names.contains(name)
                })
            });
            drop(pass);
            if taken.is_some() {
                copies.put(&scratch.keyspace, all, COUNTER_ROW);
                self.next_slot += 1;
            } else if self.note_overdue_holder(std::iter::once(SlotIndex::from_index(slot))) {
                return false;
            } else {
                weft_os::thread::sleep(RETRY_PAUSE);
            }
        }
        self.copied_names = HashSet::default();
        true
    }
}

#[cfg(test)]
mod tests;

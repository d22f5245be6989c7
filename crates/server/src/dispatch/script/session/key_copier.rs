//! Copies keys into the scratch keyspace of a session when its script asks for them.
//!
//! The keys of one command are copied together, under leases of all their slots, so a command sees them as of one
//! moment. From then on they belong to the session. A command that reaches keys that no plan names gets all keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use weft_resp::Args;

use crate::dispatch::leases::lease;
use crate::keyspace::access::{HeldLeases, Lease};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::scratch_keyspace::CopiedKeys;
use crate::keyspace::{Exclusive, GatePassage, Seat};
use crate::state::Server;
use weft_base::slots::SLOTS;

/// Pause after a slot was refused.
const PAUSE: Duration = Duration::from_micros(100);
/// The row of counts that the session's thread writes in the scratch keyspace.
const ROW: usize = 0;

/// Copies keys from the keyspace into a session's scratch keyspace.
pub struct KeyCopier {
    server: Arc<Server>,
    /// Names of keys that were brought, or found missing.
    known: HashSet<Box<[u8]>, ahash::RandomState>,
    /// `true` if all keys were copied.
    is_whole: bool,
}

impl KeyCopier {
    /// Nothing was brought yet.
    pub fn new(server: Arc<Server>) -> Self {
        KeyCopier {
            server,
            known: HashSet::default(),
            is_whole: false,
        }
    }

    fn seat(&self) -> Seat {
        loop {
            match self.server.keyspace.slots.join() {
                Some(seat) => return seat,
                None => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Brings the keys of a command that are not there yet, in all databases.
    pub fn bring(&mut self, planned: &[PlannedKey], args: Args<'_>, beside: &Server, all: &mut Exclusive<'_>) {
        let name = |key: &PlannedKey| args.argument(key.argument as usize);
        let unknown = planned.iter().filter(|key| !self.known.contains(name(key)));
        let mut wanted: Vec<PlannedKey> = unknown
            .map(|key| PlannedKey {
                is_write: false,
                ..*key
            })
            .collect();
        if self.is_whole || wanted.is_empty() {
            return;
        }
        wanted.sort_by_key(|key| name(key));
        wanted.dedup_by_key(|key| name(key));
        self.known.extend(wanted.iter().map(|key| Box::from(name(key))));
        let mut seat = self.seat();
        loop {
            let pass = seat.enter();
            if let Some(copies) = self.copies(&pass, &mut wanted, args) {
                drop(pass);
                return copies.put(&beside.keyspace, all, ROW);
            }
            drop(pass);
            std::thread::sleep(PAUSE);
        }
    }

    /// Copies all of these keys as of one moment, unless a slot is refused.
    fn copies<'p>(&self, pass: &'p GatePassage<'p>, wanted: &mut [PlannedKey], args: Args<'_>) -> Option<CopiedKeys> {
        let mut many: Vec<Lease<'p>> = Vec::new();
        lease(pass, wanted, &mut Vec::new(), &mut many, 0)?;
        let held = HeldLeases::Many(&mut many);
        let mut copies = CopiedKeys::default();
        for key in wanted {
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

    /// Brings everything that is not there yet, slot by slot.
    pub fn bring_everything(&mut self, beside: &Server, all: &mut Exclusive<'_>) {
        if std::mem::replace(&mut self.is_whole, true) {
            return;
        }
        let keyspace = &self.server.keyspace;
        let mut seat = self.seat();
        let known = std::mem::take(&mut self.known);
        for slot in 0..SLOTS {
            if !keyspace.slots.header(slot).may_hold_any() {
                continue;
            }
            loop {
                let pass = seat.enter();
                let mut copies = CopiedKeys::default();
                let taken = pass
                    .read_spinning(slot)
                    .and_then(|lease| copies.take_all(keyspace, (slot as u16, &lease), |name| known.contains(name)));
                drop(pass);
                if taken.is_some() {
                    copies.put(&beside.keyspace, all, ROW);
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

//! Checks a command that holds its leases for values that are pinned ([`crate::keyspace::pinned`]), or that a snapshot
//! has to save first ([`crate::keyspace::before_image`]).
//!
//! Almost always the slots that the command writes have no pinned values and are saved, and nothing here is called.
//! Otherwise these functions determine which keys the command changes in place. Changing a small value costs a cheap
//! copy. For a large value the command is put off, as if another thread held the slot's lease.

use weft_base::{DbIndex, SlotIndex};
use weft_resp::Args;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use crate::keyspace::Keyspace;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::connection::Connection;
use weft_command_table::keys::{KeyPosition, walk_keys};
use weft_command_table::spec::{Group, KeyFlags};

use super::admit::REPLAYING_CLIENTS;
use super::request::{CommandCall, Request};

/// The size in bytes above which a collection takes long to copy.
const LARGE_COLLECTION_BYTES: usize = if cfg!(feature = "simulated") { 100 } else { 64 << 10 };
/// The size in bytes above which a string takes long to copy.
const LARGE_STRING_BYTES: usize = 512 << 10;

/// What a request waits for that may not change its keys yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinWait {
    /// The end of MIGRATE: the value of `PinnedSlots::thaws` before a key was found frozen.
    Thaw(u64),
    /// Large values that are pinned or not saved yet. Each is registered as wanted.
    Values,
}

impl PinWait {
    /// Returns the value of `PinnedSlots::thaws` that has to change first, if the request waits for the end of MIGRATE.
    pub fn awaited_thaw(self) -> Option<u64> {
        match self {
            PinWait::Thaw(thaws) => Some(thaws),
            PinWait::Values => None,
        }
    }
}

/// Returns what a request has to wait for: the end of a MIGRATE that sends one of its keys, or values that are pinned
/// or not saved. At least one slot that it may write is marked.
#[cold]
pub fn find_wait(
    keyspace: &Keyspace,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> Option<PinWait> {
    let call = request.call(&connection.input, connection.client.db);
    let is_replay = connection.client.flags.intersects(REPLAYING_CLIENTS);
    if !is_replay && let Some(thaws) = awaited_thaw(keyspace, call, keys) {
        return Some(PinWait::Thaw(thaws));
    }
    let mut changes = PlannedChanges::new(is_replay, connection.was_refused_before_pause);
    changes.examine(keyspace, call, keys, held);
    changes.must_wait(keyspace).then_some(PinWait::Values)
}

/// The changes of a command or a transaction to large values in place.
///
/// A command that also waits for the end of MIGRATE is not examined: a reservation would only keep another MIGRATE from
/// the slot. A replayed command does not wait for MIGRATE, which a client may delay for long: it copies the value, and
/// MIGRATE fails.
pub struct PlannedChanges {
    is_replay: bool,
    /// `true` if pinned values may be copied.
    may_copy: bool,
    /// `true` if a large value that changes in place is pinned or not saved yet. It is registered as wanted.
    waits_for_value: bool,
    /// The slots and hashes of keys whose large values change in place and are not pinned.
    free_values: Vec<(SlotIndex, u64)>,
}

impl PlannedChanges {
    /// No changes yet. `is_replay` is `true` if the commands are replayed, and `may_copy` if they need not wait for
    /// pinned values.
    pub fn new(is_replay: bool, may_copy: bool) -> PlannedChanges {
        PlannedChanges {
            is_replay,
            may_copy,
            waits_for_value: false,
            free_values: Vec::new(),
        }
    }

    /// Adds the changes of a command. Every value that it has to wait for is registered as wanted, not only the first
    /// one: otherwise a command that changes several values might find another one in use each time.
    pub fn examine(
        &mut self,
        keyspace: &Keyspace,
        call: CommandCall<'_>,
        keys: &[PlannedKey],
        held: &HeldLeases<'_, '_>,
    ) {
        let CommandCall { command, args, db } = call;
        if command.spec.group == Group::Generic {
            // These commands move, delete and expire values. They change none in place.
            return;
        }
        let mut flags: Vec<KeyFlags> = Vec::with_capacity(keys.len());
        walk_keys(command.spec, &args, &mut |position: KeyPosition| {
            flags.push(position.flags)
        });
        assert_eq!(
            flags.len(),
            keys.len(),
            "the plan of a command has the keys that its specification names"
        );
        let in_place = |flags: &KeyFlags| !flags.is_overwrite() && !flags.is_removal();
        let is_changed = |(key, flags): &(&PlannedKey, &KeyFlags)| key.is_write && in_place(flags);
        for (key, _) in keys.iter().zip(&flags).filter(is_changed) {
            // SWAPDB may have moved the value to another database, so the name says nothing.
            if self.is_replay && keyspace.pinned.has_frozen_keys_in(key.slot) {
                continue;
            }
            if let Some(entry) = held.entry(key, db, args).filter(|entry| is_large(*entry)) {
                self.examine_value(keyspace, key, args, entry, db);
            }
        }
    }

    /// Registers that a writer waits for a large value, if it has to be unpinned or saved before it changes.
    fn examine_value(
        &mut self,
        keyspace: &Keyspace,
        key: &PlannedKey,
        args: Args<'_>,
        entry: EntryRef<'_, Value>,
        db: DbIndex,
    ) {
        let header = keyspace.slots.header(key.slot.index());
        if header.has_pinned_values() {
            if entry.is_shared() && !self.may_copy && keyspace.pinned.reserve_briefly(key.slot, key.hash) {
                self.waits_for_value = true;
                return;
            }
            self.free_values.push((key.slot, key.hash));
        }
        let named = NamedKey {
            name: args.argument(key.argument as usize),
            hash: key.hash,
            slot: key.slot,
        };
        self.waits_for_value |= header.is_unsaved() && keyspace.before_images.must_save_first(db, named, entry);
    }

    /// Returns `true` if the changes have to wait. If not, their values are no longer reserved.
    pub fn must_wait(self, keyspace: &Keyspace) -> bool {
        if self.waits_for_value {
            return true;
        }
        for (slot, key_hash) in self.free_values {
            keyspace.pinned.end_brief_reservation(&keyspace.slots, slot, key_hash);
        }
        false
    }
}

/// Returns the value of `PinnedSlots::thaws` that has to change before a command can write its keys, or `None` if
/// MIGRATE is sending none of them. The caller holds the slots of the keys; otherwise the answer is a hint.
pub fn awaited_thaw(keyspace: &Keyspace, call: CommandCall<'_>, keys: &[PlannedKey]) -> Option<u64> {
    // Read before the keys: MIGRATE may end at any time. If a key is found frozen, this value has yet to change.
    let thaws = keyspace.pinned.thaws();
    (keyspace.pinned.has_frozen_keys() && writes_frozen_key(keyspace, call, keys)).then_some(thaws)
}

#[cold]
fn writes_frozen_key(keyspace: &Keyspace, call: CommandCall<'_>, keys: &[PlannedKey]) -> bool {
    let CommandCall { command, args, db } = call;
    let spec = command.spec;
    // These commands access other databases.
    let anywhere = spec.group == Group::Generic && matches!(spec.name, "copy" | "move");
    keys.iter().filter(|key| key.is_write).any(|key| {
        let name = args.argument(key.argument as usize);
        match anywhere {
            true => keyspace.pinned.is_frozen_in_any_database(key.slot, name),
            false => keyspace.pinned.is_frozen(key.slot, db, name),
        }
    })
}

fn is_large(entry: EntryRef<'_, Value>) -> bool {
    match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes() > LARGE_COLLECTION_BYTES,
        ValueRef::Blob(blob) => blob.len() > LARGE_STRING_BYTES,
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_) => false,
    }
}

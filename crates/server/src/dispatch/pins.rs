//! Checks a command that holds its leases for values that are pinned ([`crate::keyspace::pinned`]), or that a snapshot
//! has to save first ([`crate::keyspace::before_image`]).
//!
//! Almost always the slots that the command writes have no pinned values and are saved, and nothing here is called.
//! Otherwise these functions determine which keys the command changes in place. Changing a small value costs a cheap
//! copy. For a large value the command is put off, as if another thread held the slot's lease.

use weft_resp::Args;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use crate::keyspace::Keyspace;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::key_identity::NamedKey;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::connection::Connection;
use weft_command_table::keys::{KeyPosition, walk_keys};
use weft_command_table::spec::{CommandSpec, Group, KeyFlags};

use super::request::Request;

/// The size in bytes above which a collection takes long to copy.
const LARGE_COLLECTION_BYTES: usize = 64 << 10;
/// The size in bytes above which a string takes long to copy.
const LARGE_STRING_BYTES: usize = 512 << 10;

/// Returns `true` if a request has to wait until values are no longer pinned, or until they are saved. At least one
/// slot that it may write is marked.
#[cold]
pub fn must_wait_for_pins(
    keyspace: &Keyspace,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> bool {
    let args = request.args(&connection.input);
    changes_pinned_value(keyspace, request.command.spec, args, keys, held, connection.client.db)
}

/// Returns `true` if a command would change a large value in place that is pinned or not saved yet. The value is then
/// marked as wanted.
#[cold]
pub fn changes_pinned_value(
    keyspace: &Keyspace,
    spec: &CommandSpec,
    args: Args<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    db: usize,
) -> bool {
    if writes_frozen_key(keyspace, spec, args, keys, db) {
        return true;
    }
    if spec.group == Group::Generic {
        // These commands move, delete and expire values. They change none in place.
        return false;
    }
    let mut flags: Vec<KeyFlags> = Vec::with_capacity(keys.len());
    walk_keys(spec, &args, &mut |position: KeyPosition| flags.push(position.flags));
    assert_eq!(
        flags.len(),
        keys.len(),
        "the plan of a command has the keys that its specification names"
    );
    let in_place = |flags: &KeyFlags| !flags.is_overwrite() && !flags.is_removal();
    let changed = keys
        .iter()
        .zip(&flags)
        .filter(|(key, flags)| key.is_write && in_place(flags));
    let waits = |key: &PlannedKey| {
        let entry = held.entry(key, db, args).filter(|entry| is_large(*entry));
        entry.is_some_and(|entry| must_wait_for_value(keyspace, key, args, entry, db))
    };
    changed.map(|(key, _)| key).any(waits)
}

/// Returns `true` if a command writes a key that MIGRATE is sending. The caller holds the slots of the keys.
#[cold]
pub fn writes_frozen_key(
    keyspace: &Keyspace,
    spec: &CommandSpec,
    args: Args<'_>,
    keys: &[PlannedKey],
    db: usize,
) -> bool {
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

/// Returns `true` if a large value has to be unpinned or saved before it changes, and registers that a writer waits for
/// it.
fn must_wait_for_value(
    keyspace: &Keyspace,
    key: &PlannedKey,
    args: Args<'_>,
    entry: EntryRef<'_, Value>,
    db: usize,
) -> bool {
    let header = keyspace.slots.header(usize::from(key.slot));
    if header.has_pinned_values() {
        if entry.is_shared() && keyspace.pinned.reserve_briefly(key.slot, key.hash) {
            return true;
        }
        keyspace
            .pinned
            .end_brief_reservation(&keyspace.slots, key.slot, key.hash);
    }
    let named = NamedKey {
        name: args.argument(key.argument as usize),
        hash: key.hash,
        slot: key.slot,
    };
    header.is_unsaved() && keyspace.before_images.must_save_first(db, named, entry)
}

fn is_large(entry: EntryRef<'_, Value>) -> bool {
    match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes() > LARGE_COLLECTION_BYTES,
        ValueRef::Blob(blob) => blob.len() > LARGE_STRING_BYTES,
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_) => false,
    }
}

//! Whether a command that has its leases has to wait for the end of loans: see [`crate::keyspace::lent`].
//!
//! Nearly always the slots that it writes have lent nothing, and nothing here is called. If one has, it is found out
//! which keys the command changes where they are. Changing a small value costs a copy, which is little; for a large one
//! the command is put off, as it would be if somebody had the slot's lease.

use weft_resp::Args;
use weft_table::{EntryRef, ValueRef};
use weft_values::Value;

use crate::commands::keys::{KeyPosition, walk};
use crate::commands::spec::{CommandSpec, Group, KeyFlags};
use crate::keyspace::Keyspace;
use crate::keyspace::access::{Held, PlannedKey};
use crate::net::connection::Connection;

use super::execute::Request;

/// A collection of more bytes takes long to copy.
const LONG_COLLECTION_BYTES: usize = 64 << 10;
/// A string of more bytes takes long to copy.
const LONG_STRING_BYTES: usize = 512 << 10;

/// Whether a request is to be put off until loans end. Some slot that it may write has lent values.
#[cold]
pub fn must_wait(
    keyspace: &Keyspace,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &Held<'_, '_>,
    connection: &Connection,
) -> bool {
    let args = request.args(&connection.input);
    changes_lent(keyspace, request.command.spec, args, keys, held, connection.client.db)
}

/// Whether a command would change a large value in place that is lent; if so, its slot is wanted.
#[cold]
pub fn changes_lent(
    keyspace: &Keyspace,
    spec: &CommandSpec,
    args: Args<'_>,
    keys: &[PlannedKey],
    held: &Held<'_, '_>,
    db: usize,
) -> bool {
    let is_frozen = |key: &PlannedKey| {
        let name = args.at(key.argument as usize);
        key.write && keyspace.lent.is_frozen(key.slot, db, name)
    };
    if keys.iter().any(is_frozen) {
        return true;
    }
    if spec.group == Group::Generic {
        // They move, delete and expire values, and change none.
        return false;
    }
    let mut flags: Vec<KeyFlags> = Vec::with_capacity(keys.len());
    walk(spec, &args, &mut |position: KeyPosition| flags.push(position.flags));
    let in_place = |flags: &KeyFlags| !flags.replaces() && !flags.removes();
    let changed = keys
        .iter()
        .zip(&flags)
        .filter(|(key, flags)| key.write && in_place(flags));
    let is_lent = |key: &PlannedKey| held.entry(key, db, args).is_some_and(is_shared_and_large);
    match changed.map(|(key, _)| key).find(|key| is_lent(key)) {
        Some(key) => {
            keyspace.lent.want(key.slot);
            true
        }
        None => false,
    }
}

fn is_shared_and_large(entry: EntryRef<'_, Value>) -> bool {
    let is_large = match entry.value() {
        ValueRef::Object(object) => object.allocated_bytes() > LONG_COLLECTION_BYTES,
        ValueRef::Blob(blob) => blob.len() > LONG_STRING_BYTES,
        ValueRef::Int(_) | ValueRef::Bytes(_) | ValueRef::Packed(_) => false,
    };
    is_large && entry.is_shared()
}

//! Deletes the expired keys that a writing command only reads.
//!
//! A command that stores data it has read is repeated by replicas, and when the append-only file is loaded. For both,
//! keys do not expire by themselves. A key that the command found expired must therefore be deleted before the command
//! in the order of the log, in the same unit:
//!
//! ```text
//!   leases: src to read, dst to write ─▶ src has expired? ── no ──▶ handler
//!                                            │ yes
//!                              the leases end; src and dst to write
//!                                            │
//!                              src is deleted, and logged ─▶ handler ─▶ MULTI, UNLINK src, SUNIONSTORE dst src …, EXEC
//! ```
//!
//! 1. Only a writer may delete, so the command leases the slots of expired keys for writing. It has had no effect by
//!    then. If a slot is refused, the command starts over.
//! 2. Keys that the command writes are deleted by [`KeyWrite`](crate::keyspace::access::KeyWrite).
//! 3. Keys that are not in the plan are only read. SORT logs the stored result if one of them had expired.
//! 4. A replica deletes no key by itself.

use weft_base::DbIndex;
use weft_resp::Args;

use crate::commands::context::Binding;
use crate::keyspace::GatePassage;
use crate::keyspace::access::{HeldLeases, Lease, is_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::net::transaction::Transaction;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;

use super::leases::lease_slots;
use super::request::CommandCall;
use super::thread::ThreadState;

/// Facts about the leases that [`lease_command`] has taken.
#[derive(Clone, Copy)]
pub(super) struct SourceLeases {
    /// `true` if a slot that may be written has pinned values, or values that a snapshot has to save before they
    /// change.
    pub has_marked_slots: bool,
    /// `true` if a key that the command only reads has expired. Its slot is held for writing.
    pub has_expired_source: bool,
}

/// Returns `true` if the command may write and therefore has to delete the expired keys that it finds.
#[inline]
pub(super) fn must_delete_expired(thread: &ThreadState, command: &Command<Binding>) -> bool {
    command.spec.flags.contains(CommandFlags::WRITE) && !thread.replication_state.expiry_is_remote()
}

/// Leases a command's keys as [`lease_slots`] does, and the slots of expired keys for writing.
pub(super) fn lease_command<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    call: CommandCall<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    failures: u32,
) -> Option<SourceLeases> {
    let has_marked_slots = lease_slots(pass, keys, &mut thread.order, many, failures)?;
    thread.catch_up_with_seen_expiry();
    let mut expired = Vec::new();
    if keys.iter().any(|key| !key.is_write) && must_delete_expired(thread, call.command) {
        let held = HeldLeases::Many(many);
        let is_found = |key| has_expired(&held, key, call.args, call.db, thread.expiry_ms);
        expired.extend((0..keys.len()).filter(|index| is_found(&keys[*index])));
    }
    if expired.is_empty() {
        return Some(SourceLeases {
            has_marked_slots,
            has_expired_source: false,
        });
    }
    Some(SourceLeases {
        has_marked_slots: lease_expired_for_writing(thread, pass, keys, &expired, many, failures)?,
        has_expired_source: true,
    })
}

/// Leases a transaction's keys as [`lease_slots`] does. The slots of expired keys that its writing commands read are
/// leased for writing.
pub(super) fn lease_transaction<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    transaction: &mut Transaction,
    many: &mut Vec<Lease<'p>>,
    failures: u32,
) -> Option<bool> {
    let has_marked_slots = lease_slots(pass, &mut transaction.keys, &mut thread.order, many, failures)?;
    thread.catch_up_with_seen_expiry();
    let commands = crate::commands::registry().commands();
    let held = HeldLeases::Many(many);
    let mut expired = Vec::new();
    for queued in &transaction.commands {
        let command = commands.get(queued.command);
        if command.is_some_and(|command| must_delete_expired(thread, command)) {
            let args = transaction.args(queued);
            let is_found = |key| has_expired(&held, key, args, queued.db, thread.expiry_ms);
            expired.extend(queued.key_indices().filter(|index| is_found(&transaction.keys[*index])));
        }
    }
    if expired.is_empty() {
        return Some(has_marked_slots);
    }
    lease_expired_for_writing(thread, pass, &mut transaction.keys, &expired, many, failures)
}

/// Returns `true` if a key that is only read exists and has expired.
fn has_expired(held: &HeldLeases<'_, '_>, key: &PlannedKey, args: Args<'_>, db: DbIndex, now_ms: u64) -> bool {
    if key.is_write {
        return false;
    }
    let table = held.slot(key).and_then(|slot| slot.table(db));
    table.filter(|table| table.with_expiry() > 0).is_some_and(|table| {
        let entry = table.find(key.hash, args.argument(key.argument as usize));
        entry.is_some_and(|entry| is_expired(entry.expire_at_ms(), now_ms))
    })
}

/// Leases the keys again, the `expired` ones for writing. The plan stays unchanged.
#[cold]
fn lease_expired_for_writing<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    keys: &mut [PlannedKey],
    expired: &[usize],
    many: &mut Vec<Lease<'p>>,
    failures: u32,
) -> Option<bool> {
    debug_assert!(
        expired.iter().all(|index| !keys[*index].is_write),
        "an expired source is a key that the command only reads"
    );
    many.clear();
    expired.iter().for_each(|index| keys[*index].is_write = true);
    let leased = lease_slots(pass, keys, &mut thread.order, many, failures);
    expired.iter().for_each(|index| keys[*index].is_write = false);
    debug_assert!(
        leased.is_none()
            || expired
                .iter()
                .all(|index| matches!(many.get(keys[*index].lease as usize), Some(Lease::Write(_)))),
        "the slots of expired sources are held for writing"
    );
    leased
}

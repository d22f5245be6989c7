//! Blocking commands: how clients wait for keys, and how they are served when a key becomes ready.
//!
//! Both halves meet in [`BlockingOperation`]: a handler that finds no element puts an operation into the queues of its
//! keys, and the command that makes a key ready performs it. See the essay of [`crate::clients_waiting::blocking`].

use std::ops::Range;
use std::sync::Arc;

use weft_base::{ClientId, DbIndex};
use weft_resp::number::LongDouble;
use weft_table::EntryRef;
use weft_values::Value;

use super::context::{Context, NextStep};
use super::error::CommandError;
use crate::clients_waiting::blocking::{BlockingOperation, WaitKey, Waiter, WaiterParameters, WaiterPermission};
use crate::keyspace::access::KeyWrite;
use crate::keyspace::effects::Effects;
use crate::net::client::ClientFlags;
use crate::state::BlockedCommand;
use weft_command_table::spec::CommandFlags;
use weft_config::Config;

/// Access to keys for the thread that serves a waiting client.
pub trait WaiterKeyAccess {
    /// Returns a key of database `db` for writing. The thread must hold the key's slot, which is that of the ready key
    /// or that of the operation's destination.
    fn open_for_write<'k>(&'k mut self, db: DbIndex, key: &'k WaitKey) -> KeyWrite<'k>;
    /// Returns a key's entry for an operation that reads it, and counts the lookup. An expired key counts as missing
    /// and stays: on a replica only the primary deletes it. The thread must hold the key's slot.
    fn read<'k>(&'k mut self, db: DbIndex, key: &WaitKey) -> Option<EntryRef<'k, Value>>;
    /// Returns a key's entry like [`Self::read`], without any effect.
    fn peek<'k>(&'k mut self, db: DbIndex, key: &WaitKey) -> Option<EntryRef<'k, Value>>;
    /// Returns `true` if the thread holds a key's slot. Other slots are not accessed, because their keys are not the
    /// ready ones.
    fn is_leased(&mut self, key: &WaitKey) -> bool;
    /// Returns the record of effects, for propagation.
    fn effects(&mut self) -> &mut Effects;
    /// Returns the time in milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64;
    /// Returns the configuration.
    fn config(&self) -> &Config;
}

/// Makes the client wait for the first of some keys (by index in the plan) on which `operation` can be performed. The
/// handler must have changed nothing, and returns at once. If it ran under read leases, it runs again under write
/// leases.
///
/// If blocking is not possible ([`Context::may_block`] is `false`), the client gets the reply of the non-blocking form
/// of the command.
pub fn wait_for_keys(
    ctx: &mut Context<'_, '_>,
    operation: BlockingOperation,
    keys: Range<usize>,
    deadline_ms: Option<u64>,
) {
    if !ctx.may_block {
        match operation {
            BlockingOperation::ListMove { .. } => ctx.reply.null(),
            _ => ctx.reply.null_array(),
        }
        return;
    }
    if !keys.clone().all(|index| ctx.keys.is_writable(index)) {
        ctx.next_step = NextStep::RetryAsWriter;
        return;
    }
    let is_read_of_replica =
        ctx.client.flags.contains(ClientFlags::READONLY) && !ctx.command.spec.flags.contains(CommandFlags::WRITE);
    let is_module_call = ctx.client.flags.contains(ClientFlags::MODULE_CALL);
    let names = keys.map(|index| wait_key(ctx, index)).collect();
    let tracking = ctx.client.tracking.as_deref();
    let tracks_reads = ctx.command.spec.flags.contains(CommandFlags::READONLY)
        && tracking.is_some_and(|tracking| tracking.should_track_next_command());
    let waiter = Arc::new(Waiter::new(WaiterParameters {
        // A call of a module goes on when the client disconnects that has caused it.
        client: if is_module_call {
            ClientId::new(0)
        } else {
            ctx.client.id
        },
        worker: ctx.client.worker,
        // Drawn under the leases, so that park ids ascend in each queue.
        park_id: ctx.server.clients.next_park_id(),
        db: ctx.keys.db,
        protocol: ctx.client.protocol,
        keys: names,
        operation,
        deadline_ms,
        // The module ends its calls itself.
        demotions: (!is_read_of_replica && !is_module_call).then(|| ctx.server.replication.demotions()),
        tracks_reads: tracks_reads && !is_module_call,
        is_module_call,
        permission: WaiterPermission {
            account: ctx.client.login.account().clone(),
            acl_version: ctx.server.acl.version(),
            command: ctx.command.id,
            first_argument: ctx.arg(1).into(),
        },
    }));
    for key in &waiter.keys {
        let Some((_, slot)) = ctx.keys.held.writable_slot(key.slot) else {
            unreachable!("the slot was found to be held for writing");
        };
        slot.change_blocked(key.hash, |waiting| {
            waiting.add_waiter(key, &waiter, &ctx.server.clients.blocked)
        });
    }
    ctx.next_step = NextStep::Block(Box::new(BlockedCommand {
        waiter,
        command: ctx.command.id as usize,
        nanoseconds: 0,
        request_bytes: 0,
        logged_command: None,
        slot: None,
    }));
}

/// Returns the n-th key of the plan as an owned value.
pub fn wait_key(ctx: &Context<'_, '_>, index: usize) -> WaitKey {
    let planned = ctx.keys.planned[index];
    WaitKey {
        hash: planned.hash,
        slot: planned.slot,
        name: ctx.keys.name(index).into(),
    }
}

/// Returns the end of a wait of this many seconds, which may have a fraction, in milliseconds since the Unix epoch. A
/// timeout of 0 gives `None`, a wait without an end.
///
/// # Errors
/// If the argument is not a number, is negative, or is out of range.
pub fn parse_deadline_ms(seconds: &[u8], now_ms: u64) -> Result<Option<u64>, CommandError> {
    let not_a_float = CommandError::constant("ERR timeout is not a float or out of range");
    let timeout_ms = LongDouble::parse(seconds)
        .ok_or(not_a_float)?
        .multiply(LongDouble::from_i64(1000));
    match timeout_ms.ceil_to_i64() {
        Some(timeout_ms) => parse_end_ms(timeout_ms, now_ms),
        None if timeout_ms.is_negative() => Err(NEGATIVE_TIMEOUT),
        None => Err(TIMEOUT_OUT_OF_RANGE),
    }
}

/// Returns the end of a wait of this many milliseconds, in milliseconds since the Unix epoch. A timeout of 0 gives
/// `None`, a wait without an end.
///
/// # Errors
/// If the timeout is negative or out of range.
pub fn parse_end_ms(timeout_ms: i64, now_ms: u64) -> Result<Option<u64>, CommandError> {
    if timeout_ms == 0 {
        return Ok(None);
    }
    let timeout_ms = u64::try_from(timeout_ms).map_err(|_| NEGATIVE_TIMEOUT)?;
    now_ms
        .checked_add(timeout_ms)
        .filter(|end_ms| i64::try_from(*end_ms).is_ok())
        .map(Some)
        .ok_or(TIMEOUT_OUT_OF_RANGE)
}

const NEGATIVE_TIMEOUT: CommandError = CommandError::constant("ERR timeout is negative");
const TIMEOUT_OUT_OF_RANGE: CommandError = CommandError::constant("ERR timeout is out of range");

#[cfg(test)]
mod tests;

//! Selects the slot that a command's time and bytes are counted for, if `cluster-slot-stats-enabled` is set.
//!
//! A command counts for the slot that contains all its keys. Shard channels count as keys. A command without keys, or
//! with keys of several slots, counts for none. In particular, as in Valkey:
//!
//! 1. The request counts when its command has ended, also if it was refused, or queued for EXEC. It does not count if a
//!    wait for keys timed out. EXEC adds the bytes of its MULTI.
//! 2. The reply counts unless the command was refused or queued. After each command of a transaction the whole reply so
//!    far counts, and once more after EXEC.
//! 3. The time of a transaction or a script is the time of EXEC, EVAL or FCALL. It counts for the slot of the last
//!    command in it. A script that may use keys of several slots counts for none once it has called a command, even a
//!    failing one. The replies to its commands count for their own slots.
//! 4. The bytes sent to each replica count for the slot of the command that caused them.
//! 5. A command from the primary gets no reply.
//!
//! Nothing here runs while the parameter is off.

use weft_base::{SlotIndex, ThreadIndex};
use weft_resp::Args;

use crate::commands::context::Binding;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::net::transaction::Transaction;
use crate::observability::slot_stats::SlotFigure;
use crate::state::{BlockedCommand, Server};
use weft_base::slots::cluster_slot;
use weft_command_table::keys;
use weft_command_table::registry::Command;

use super::accounting::CommandEnd;
use super::request::Request;
use super::thread::ThreadState;

/// The size of `MULTI`, in the form that clients are assumed to have sent.
const MULTI_BYTES: usize = b"*1\r\n$5\r\nmulti\r\n".len();

/// Returns the slot of the keys or channels that a command names, if they have exactly one.
pub fn command_slot(command: &Command<Binding>, args: Args<'_>, planned: &[PlannedKey]) -> Option<SlotIndex> {
    if let Some((first, others)) = planned.split_first() {
        return others
            .iter()
            .all(|other| other.slot == first.slot)
            .then_some(first.slot);
    }
    if !command.spec.has_slot_arguments() {
        return None;
    }
    let (mut slot, mut crosses) = (None, false);
    keys::walk_routed_arguments(command.spec, &args, &mut |position: keys::KeyPosition| {
        let this = cluster_slot(args.argument(position.index));
        crosses |= slot.is_some_and(|slot| slot != this);
        slot = Some(this);
    });
    slot.filter(|_| !crosses)
}

/// Returns the slot of a transaction: the slot of its last command that has one. The commands of a client are all of
/// one slot; those of a primary need not be.
pub fn transaction_slot(transaction: &Transaction) -> Option<SlotIndex> {
    let commands = crate::commands::registry().commands();
    transaction.commands.iter().rev().find_map(|queued| {
        let command = commands.get(queued.command)?;
        command_slot(command, transaction.args(queued), transaction.keys_of(queued))
    })
}

/// Returns the size of a request in bytes. Repeated spaces of an inline command count once.
pub fn request_bytes(request: &[u8], args: Args<'_>) -> usize {
    match request.first() {
        Some(b'*') => request.len(),
        _ => args.iter().map(|word| word.len() + 1).sum::<usize>() + 1,
    }
}

/// Returns `true` if a client's commands are charged to slots. Replayed commands are not.
pub fn is_charged_to_slots(client: &Client) -> bool {
    !client.flags.contains(ClientFlags::REPLAY)
}

/// Returns `true` if the client receives the reply of its command.
fn receives_replies(client: &Client) -> bool {
    let deaf = ClientFlags::PRIMARY
        .union(ClientFlags::REPLY_OFF)
        .union(ClientFlags::REPLY_SKIP);
    !client.flags.intersects(deaf)
}

/// The cost of a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandCost {
    /// The time in nanoseconds.
    pub nanoseconds: u64,
    /// The size of the request, in bytes.
    pub request_bytes: usize,
    /// The size of the reply, in bytes.
    pub reply_bytes: usize,
    /// The number of bytes that each replica receives.
    pub propagated_bytes: usize,
}

impl CommandCost {
    /// Returns the cost of a command that has ended.
    pub fn from_command_end(ending: &CommandEnd, request_bytes: usize, propagated_bytes: usize) -> Self {
        CommandCost {
            nanoseconds: ending.nanoseconds,
            request_bytes,
            reply_bytes: ending.reply_bytes,
            propagated_bytes,
        }
    }
}

/// Returns the slot that a command will be counted for at its end; `None` if slot statistics are disabled.
#[inline]
pub fn accounting_slot(
    thread: &ThreadState,
    command: &Command<Binding>,
    args: Args<'_>,
    planned: &[PlannedKey],
) -> Option<SlotIndex> {
    match thread.tunables.slot_stats {
        true => command_slot(command, args, planned),
        false => None,
    }
}

/// Counts a plan that has run. `input` is the client's input.
#[cold]
pub fn count_plan(
    thread: &mut ThreadState,
    request: &Request<'_>,
    planned: &[PlannedKey],
    client: &Client,
    input: &[u8],
    ending: &CommandEnd,
) {
    let args = request.args(input);
    let slot = command_slot(request.command, args, planned);
    let bytes = request_bytes(&input[request.plan.start..request.plan.end], args);
    let cost = CommandCost::from_command_end(ending, bytes, thread.effects.log_writer.take_measured());
    count_command(thread, client, request.command, slot, cost);
}

/// Counts a command that has run for `slot`.
pub fn count_command(
    thread: &ThreadState,
    client: &Client,
    command: &Command<Binding>,
    slot: Option<SlotIndex>,
    cost: CommandCost,
) {
    let Some(slot) = slot.filter(|_| is_charged_to_slots(client)) else {
        return;
    };
    debug_assert!(
        thread.tunables.slot_stats,
        "slots are counted for while that is enabled"
    );
    let ThreadState {
        server,
        thread_index: seat,
        ..
    } = thread;
    count_time(server, *seat, slot, command.id as usize, cost.nanoseconds);
    let stats = &server.stats.slots;
    stats.add(*seat, slot, SlotFigure::BytesIn, cost.request_bytes as u64);
    if receives_replies(client) {
        stats.add(*seat, slot, SlotFigure::BytesOut, cost.reply_bytes as u64);
    }
    if cost.propagated_bytes > 0 {
        let replicas = server.replication.replicas.infos().len();
        let bytes = cost.propagated_bytes * replicas;
        stats.add(*seat, slot, SlotFigure::BytesOut, bytes as u64);
    }
}

/// Adds a command's time to its slot. Slots count whole microseconds, so the time that the command's own counter
/// already has is corrected to agree.
fn count_time(server: &Server, thread_index: ThreadIndex, slot: SlotIndex, command: usize, nanoseconds: u64) {
    let counted = server.stats.slots.add_time(thread_index, slot, nanoseconds);
    let correction = (counted as i64).wrapping_sub(nanoseconds as i64);
    server.stats.metrics.correct_time(thread_index, command, correction);
}

/// Counts EXEC. The replies of its commands have been counted after each of them.
#[cold]
pub fn count_exec(thread: &ThreadState, client: &Client, command: &Command<Binding>, cost: CommandCost) {
    let request_bytes = cost.request_bytes + MULTI_BYTES;
    count_command(
        thread,
        client,
        command,
        thread.slot,
        CommandCost { request_bytes, ..cost },
    );
}

/// Counts the reply so far of a transaction, after one of its commands.
#[cold]
pub fn count_partial_reply(thread: &ThreadState, client: &Client, reply_bytes: usize) {
    if let Some(slot) = thread
        .slot
        .filter(|_| is_charged_to_slots(client) && receives_replies(client))
    {
        let stats = &thread.server.stats.slots;
        stats.add(thread.thread_index, slot, SlotFigure::BytesOut, reply_bytes as u64);
    }
}

/// Counts the request of a command that was refused or queued.
#[cold]
pub fn count_request(
    thread: &ThreadState,
    client: &Client,
    command: &Command<Binding>,
    request: &[u8],
    args: Args<'_>,
    planned: &[PlannedKey],
) {
    let slot = command_slot(command, args, planned).filter(|_| is_charged_to_slots(client));
    if let Some(slot) = slot {
        let bytes = request_bytes(request, args) as u64;
        let stats = &thread.server.stats.slots;
        stats.add(thread.thread_index, slot, SlotFigure::BytesIn, bytes);
    }
}

/// Counts a command that has waited for keys. `reply_bytes` is the size of its reply, if it got what it waited for.
#[cold]
pub fn count_blocked_command(
    server: &Server,
    thread_index: ThreadIndex,
    blocked: &BlockedCommand,
    nanoseconds: u64,
    reply_bytes: Option<usize>,
) {
    let Some(slot) = blocked.slot else {
        return;
    };
    count_time(server, thread_index, slot, blocked.command, nanoseconds);
    if let Some(reply_bytes) = reply_bytes {
        let stats = &server.stats.slots;
        stats.add(thread_index, slot, SlotFigure::BytesIn, blocked.request_bytes as u64);
        stats.add(thread_index, slot, SlotFigure::BytesOut, reply_bytes as u64);
    }
}

/// Counts a command that ran in the background, outside the keyspace.
#[cold]
pub fn count_background_command(
    server: &Server,
    thread_index: ThreadIndex,
    command: usize,
    slot: SlotIndex,
    cost: CommandCost,
) {
    count_time(server, thread_index, slot, command, cost.nanoseconds);
    let stats = &server.stats.slots;
    stats.add(thread_index, slot, SlotFigure::BytesIn, cost.request_bytes as u64);
    stats.add(thread_index, slot, SlotFigure::BytesOut, cost.reply_bytes as u64);
}

/// Counts the request of a command that is refused or queued, if slot statistics are enabled.
#[inline]
pub(super) fn book_refused(thread: &ThreadState, request: &Request<'_>, keys: &[PlannedKey], connection: &Connection) {
    if thread.tunables.slot_stats {
        let bytes = &connection.input[request.plan.start..request.plan.end];
        let args = request.args(&connection.input);
        count_request(thread, &connection.client, request.command, bytes, args, keys);
    }
}

//! Runs the plans of many connections together, so that their cache misses overlap.

use std::sync::atomic::Ordering;

use weft_resp::Args;

use crate::commands::context::{Binding, Mode, NextStep};
use crate::commands::error::CommandError;
use crate::commands::permission;
use crate::keyspace::access::Lease;
use crate::keyspace::effects::Effects;
use crate::keyspace::expiry::{delete_keys_found_expired_in_pass, discard_keys_found_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, Seat};
use crate::net::client::ClientFlags;
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::{Counter, Maximum};
use weft_command_table::registry::{Command, Lookup};
use weft_command_table::spec::Flags as CommandFlags;

use super::accounting::write_error;
use super::admit::{Admission, NOT_LOGGED_IN, admit, explain_unknown, is_http, must_log_in};
use super::effects::release;
use super::leased::{run_exclusive, run_leased};
use super::leases::PATIENCE;
use super::memory_limit;
use super::plan::{Kind, Plan, Plans};
use super::prefetch::Prefetcher;
use super::redirect;
use super::request::{Outcome, Request};
use super::script_flags;
use super::slot_stats;
use super::thread::Thread;
use super::transaction::{self, Role};

/// The number of batches between two samples of the prefetch policy.
const BATCHES_A_SAMPLE: u32 = 64;

/// Gives access to connections by token while a batch runs.
pub trait Connections {
    /// Returns the connection, or `None` if it is gone.
    fn connection(&mut self, token: usize) -> Option<&mut Connection>;
    /// Runs the next step of a command whose connection waits.
    fn after(&mut self, token: usize, after: NextStep);
    /// Sends the notifications that a command has caused.
    fn notify(&mut self, thread: &mut Thread);
    /// Called before the passage of the gate ends. A thread that takes exclusive mode next must find the results of all
    /// commands that have run.
    fn pass_ends(&mut self) {}
}

/// Runs every plan, in order. A plan is left unexecuted once its connection is no longer ready.
pub fn run(thread: &mut Thread, seat: &mut Seat, plans: &mut Plans, connections: &mut dyn Connections) {
    let mut next = 0;
    while next < plans.list.len() {
        next = run_until_exclusive(thread, seat, plans, connections, next);
        if next < plans.list.len() {
            run_one_exclusive(thread, seat, plans, connections, next);
            next += 1;
        }
    }
    thread.effects.log_writer.wake();
    let server = &thread.server;
    thread
        .effects
        .add_to_metrics(&server.keyspace, &server.stats.metrics, thread.seat);
    thread.batches = thread.batches.wrapping_add(1);
    if thread.batches.is_multiple_of(BATCHES_A_SAMPLE) {
        thread.reach.start_sample();
    }
    let metrics = &thread.server.stats.metrics;
    metrics.add(thread.seat, Counter::Batches, 1);
    metrics.raise(Maximum::FullestBatch, plans.list.len() as u64);
    if plans.probes.len() > 1 {
        metrics.add(thread.seat, Counter::PrefetchBatches, 1);
        metrics.add(thread.seat, Counter::PrefetchEntries, plans.probes.len() as u64);
    }
}

/// Runs plans within one passage of the gate. Returns the index of the first plan that needs exclusive mode, or the
/// number of plans.
fn run_until_exclusive(
    thread: &mut Thread,
    seat: &mut Seat,
    plans: &mut Plans,
    connections: &mut dyn Connections,
    first: usize,
) -> usize {
    // While only one worker is active, it hardly ever meets another thread at the gate.
    let pass = match thread.server.lifecycle.active_workers.load(Ordering::Relaxed) {
        1 => seat.enter_alone(),
        _ => seat.enter(),
    };
    thread.begin_passage();
    // Waiting at the gate does not count as the time of a command.
    thread.ticks = thread.timer.raw();
    let mut many: Vec<Lease<'_>> = Vec::new();
    let asked_for = first
        .checked_sub(1)
        .map_or(0, |last| plans.list[last].probes_end as usize);
    let mut prefetcher = Prefetcher::new(&plans.probes, asked_for, thread.tunables.prefetch_depth, thread.reach);
    let log_behind = thread.effects.log_writer.is_backlogged();
    let feeds_replicas = thread.server.replication.log_feeds_backlog.load(Ordering::Relaxed);
    let lone = plans.probes.len() < 2;
    let limited = thread.tunables.max_memory != 0;
    for index in first..plans.list.len() {
        let plan = &plans.list[index];
        if limited {
            make_room(thread, &pass, connections);
        }
        if !lone {
            prefetcher.advance(&pass, &plans.probes, plan.probes_end as usize);
        }
        let Some(connection) = connections.connection(plan.token) else {
            continue;
        };
        if !is_runnable(connection) {
            continue;
        }
        let Kind::Command(command, binding) = plan.kind else {
            refuse(thread, plan, &plans.ranges, connection);
            continue;
        };
        let role = Role::of(&connection.client, command);
        if needs_everything(&role, binding) {
            thread.reach = prefetcher.reach;
            connections.pass_ends();
            return index;
        }
        let keys = &mut plans.keys[plan.keys.0 as usize..plan.keys.1 as usize];
        if !admitted(thread, plan, (&plans.ranges, keys), connection) {
            continue;
        }
        let request = Request {
            plan,
            command,
            binding,
            ranges: &plans.ranges,
        };
        if (log_behind && must_wait_for_log(&role, command))
            || (feeds_replicas && binding.tells_offset && must_wait_for_offset(thread, &role, connection))
        {
            settle(plan, connection, Outcome::Contended);
            continue;
        }
        let outcome = match role {
            Role::Alone => run_leased(thread, &pass, &request, keys, &mut many, connection),
            Role::Queued => transaction::queue_here(thread, &pass, &request, keys, connection),
            Role::Exec { .. } => transaction::run_leased(thread, &pass, &request, &mut many, connection),
        };
        many.clear();
        if !thread.effects.expired.is_empty() {
            // This happens before the next command, because that command may count keys.
            delete_expired(thread, &pass);
        }
        let outcome = match outcome {
            Outcome::Contended => refused_by_script(thread, &request, keys, connection),
            other => other,
        };
        if let Some(after) = settle(plan, connection, outcome) {
            connections.after(plan.token, after);
        }
        if thread.effects.has_deliveries() {
            connections.notify(thread);
        }
    }
    thread.reach = prefetcher.reach;
    connections.pass_ends();
    plans.list.len()
}

/// Deletes the expired keys that a command found, or forgets them while deleting is not permitted.
#[cold]
fn delete_expired(thread: &mut Thread, pass: &GatePassage<'_>) {
    let server = &thread.server;
    let row = thread.seat;
    let tell = &mut |effects: &mut Effects| NotificationSender::new(server, effects, row).tell(0);
    if thread.standing.expiry_is_remote() || server.clients.pause.holds_writes(thread.now_ms) {
        discard_keys_found_expired(&mut thread.effects, tell);
    }
    delete_keys_found_expired_in_pass(&server.keyspace, pass, row, thread.now_ms, &mut thread.effects, tell);
    release(&mut thread.effects, server);
    thread.keep_ready();
}

/// Frees memory for the next command if it is above the limit. Clients get invalidations of evicted keys before that
/// command's reply.
#[cold]
fn make_room(thread: &mut Thread, pass: &GatePassage<'_>, connections: &mut dyn Connections) {
    memory_limit::evict_to_limit(thread, pass);
    if thread.effects.has_deliveries() {
        connections.notify(thread);
    }
}

/// Runs one plan in exclusive mode.
fn run_one_exclusive(
    thread: &mut Thread,
    seat: &mut Seat,
    plans: &mut Plans,
    connections: &mut dyn Connections,
    index: usize,
) {
    let plan = &plans.list[index];
    let Kind::Command(command, binding) = plan.kind else {
        return;
    };
    let Some(connection) = connections.connection(plan.token) else {
        return;
    };
    thread.begin_passage();
    let keys = &plans.keys[plan.keys.0 as usize..plan.keys.1 as usize];
    if !is_runnable(connection) || !admitted(thread, plan, (&plans.ranges, keys), connection) {
        return;
    }
    let request = Request {
        plan,
        command,
        binding,
        ranges: &plans.ranges,
    };
    if transaction::must_ask(thread, &connection.client) {
        // The request stays in the input. It runs once the answers of the other workers have arrived.
        connections.after(plan.token, NextStep::Gather);
        return;
    }
    let server = thread.server.clone();
    if !server.scripting.running.try_exclude_runs() {
        transaction::forget_answer(&mut connection.client);
        // A worker does not wait at the gate for a script of unknown duration.
        let outcome = match script_flags::busy(&server, std::iter::empty(), true) {
            Some(error) if !connection.client.flags.contains(ClientFlags::PRIMARY) => {
                refuse_busy(thread, &request, connection, error)
            }
            _ => Outcome::Contended,
        };
        settle(plan, connection, outcome);
        return;
    }
    let mut all = seat.exclusive();
    let admitted_by = (thread.acl_version, thread.standing, thread.view_version);
    thread.begin_passage();
    let changed = (thread.acl_version, thread.standing, thread.view_version) != admitted_by;
    // A connection to a primary that is no longer followed is gone as well.
    let Some(connection) = connections.connection(plan.token) else {
        drop(all);
        server.scripting.running.end_exclusion();
        return;
    };
    if changed && !admitted(thread, plan, (&plans.ranges, keys), connection) {
        drop(all);
        server.scripting.running.end_exclusion();
        return;
    }
    thread.ticks = thread.timer.raw();
    let outcome = match Role::of(&connection.client, command) {
        Role::Exec { .. } => transaction::run_exclusive(thread, &mut all, &request, connection),
        Role::Alone | Role::Queued => run_exclusive(thread, &mut all, &request, keys, connection),
    };
    if let Some(after) = settle(plan, connection, outcome) {
        connections.after(plan.token, after);
    }
    connections.pass_ends();
    drop(all);
    server.scripting.running.end_exclusion();
    if thread.effects.has_deliveries() {
        connections.notify(thread);
    }
}

/// Handles a plan that was refused a slot. Returns a BUSY error if an overdue script holds the slot.
#[cold]
fn refused_by_script(
    thread: &mut Thread,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    if !thread.server.scripting.running.has_overdue() || connection.client.flags.contains(ClientFlags::PRIMARY) {
        return Outcome::Contended;
    }
    let queued = connection.client.transaction.as_deref();
    let runs_script = request.binding.mode == Mode::Script || queued.is_some_and(|transaction| transaction.runs_script);
    // The plan may also have been refused the script token.
    let any = runs_script && connection.lease_failures > PATIENCE;
    let queued = queued.map_or(&[][..], |transaction| &transaction.keys);
    let slots = keys.iter().chain(queued).map(|key| key.slot);
    match script_flags::busy(&thread.server, slots, any) {
        Some(error) => refuse_busy(thread, request, connection, error),
        None => Outcome::Contended,
    }
}

fn refuse_busy(
    thread: &mut Thread,
    request: &Request<'_>,
    connection: &mut Connection,
    error: CommandError,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.seat, request.command.id as usize);
    let error = transaction::refused(thread, &mut connection.client, Some(request.command), error);
    reply_error(thread, connection, &error);
    Outcome::Done
}

/// Returns `true` if a command that may write is to be put off because the log is far behind this thread's writes.
#[cold]
fn must_wait_for_log(role: &Role, command: &Command<Binding>) -> bool {
    let runs = !matches!(role, Role::Queued);
    let reads = command.spec.flags.contains(CommandFlags::READONLY);
    runs && !reads
}

/// Returns `true` if a command that reports the replication offset is to be put off.
///
/// Writes that were acknowledged before the command arrived may not be in the backlog yet. A client that compares the
/// offsets of a primary and a replica would find them equal too early.
#[cold]
fn must_wait_for_offset(thread: &Thread, role: &Role, connection: &mut Connection) -> bool {
    if matches!(role, Role::Queued) {
        return false;
    }
    let server = &thread.server;
    let ticket = &mut connection.client.last_write_sequence;
    if connection.lease_failures == 0 {
        *ticket = server.propagation.last_sequence().max(*ticket);
    }
    let is_behind = server
        .replication
        .replicas
        .backlog()
        .offset_of_sequence(*ticket)
        .is_none();
    if is_behind {
        server.propagation.wake();
    }
    is_behind
}

/// Returns `true` if a plan needs exclusive mode.
#[inline]
fn needs_everything(role: &Role, binding: Binding) -> bool {
    match role {
        Role::Alone => binding.mode == Mode::Exclusive,
        Role::Queued => false,
        Role::Exec { exclusive } => *exclusive,
    }
}

fn is_runnable(connection: &Connection) -> bool {
    connection.state == ConnectionState::Ready
        && !connection
            .client
            .flags
            .intersects(ClientFlags::CLOSE_ASAP.union(ClientFlags::CLOSE_AFTER_REPLY))
}

/// Returns `true` if the plan may run. Otherwise the refusal has been written, or the connection waits.
fn admitted(
    thread: &mut Thread,
    plan: &Plan,
    (ranges, keys): (&[weft_resp::ArgRange], &[PlannedKey]),
    connection: &mut Connection,
) -> bool {
    let Kind::Command(command, binding) = plan.kind else {
        return false;
    };
    if thread.view.is_some() {
        redirect::forget_asking(connection, command);
    }
    let Connection { client, input, .. } = &mut *connection;
    let mut admission = admit(thread, client, command, (|| args_of(plan, ranges, input), keys));
    if binding.mode == Mode::Script {
        let args = args_of(plan, ranges, &connection.input);
        admission = super::admit::of_script(thread, admission, command, args);
    }
    match admission {
        Admission::Run => true,
        Admission::Paused => {
            connection.state = ConnectionState::Paused;
            transaction::forget_answer(&mut connection.client);
            connection.client.flags.set(ClientFlags::ASKED, false);
            connection.client.flags.set(ClientFlags::BLOCKED, true);
            connection.client.last_command = command.full_name;
            false
        }
        Admission::Redirected(error) => {
            thread
                .server
                .stats
                .metrics
                .record_rejection(thread.seat, command.id as usize);
            book_refused(thread, plan, command, (ranges, keys), connection);
            connection.client.last_command = command.full_name;
            transaction::redirected(thread, &mut connection.client, command);
            reply_error(thread, connection, &error);
            connection.consumed = plan.end;
            false
        }
        Admission::Refused(error) => {
            book_refused(thread, plan, command, (ranges, keys), connection);
            reject(thread, plan, command, connection, error);
            false
        }
        Admission::Denied(denial) => {
            book_refused(thread, plan, command, (ranges, keys), connection);
            connection.client.last_command = command.full_name;
            let args = args_of(plan, ranges, &connection.input);
            let error = permission::refuse(
                (&thread.server, thread.seat, thread.now_ms),
                (&connection.client, connection.buffers(0)),
                (command, &args),
                denial,
            );
            reject(thread, plan, command, connection, error);
            false
        }
        Admission::Unwelcome => {
            connection.client.flags.set(ClientFlags::CLOSE_ASAP, true);
            false
        }
    }
}

/// Counts the request of a command that is not admitted, if slot statistics are enabled.
fn book_refused(
    thread: &Thread,
    plan: &Plan,
    command: &'static Command<Binding>,
    (ranges, keys): (&[weft_resp::ArgRange], &[PlannedKey]),
    connection: &Connection,
) {
    if thread.tunables.slot_stats {
        let request = &connection.input[plan.start..plan.end];
        let args = args_of(plan, ranges, &connection.input);
        slot_stats::book_request(thread, &connection.client, command, (request, args), keys);
    }
}

/// Replies with an error to a command that was not admitted.
fn reject(
    thread: &mut Thread,
    plan: &Plan,
    command: &'static Command<Binding>,
    connection: &mut Connection,
    error: CommandError,
) {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.seat, command.id as usize);
    connection.client.last_command = command.full_name;
    let error = transaction::refused(thread, &mut connection.client, Some(command), error);
    reply_error(thread, connection, &error);
    connection.consumed = plan.end;
}

fn args_of<'a>(plan: &Plan, ranges: &'a [weft_resp::ArgRange], input: &'a [u8]) -> Args<'a> {
    Args::new(
        &input[plan.start..plan.end],
        &ranges[plan.args.0 as usize..plan.args.1 as usize],
    )
}

/// Replies to a request that is not a valid command.
fn refuse(thread: &mut Thread, plan: &Plan, ranges: &[weft_resp::ArgRange], connection: &mut Connection) {
    match plan.kind {
        Kind::Malformed(error) => {
            let mut text = b"ERR ".to_vec();
            text.extend_from_slice(&error.message());
            reply_error(thread, connection, &CommandError::bytes(text));
            connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
        }
        Kind::Unknown | Kind::Command(..) => {
            let commands = crate::commands::registry();
            let args = args_of(plan, ranges, &connection.input);
            if is_http(args) {
                crate::observability::log::warning!(
                    "Closing a connection that sent a line of HTTP: {}",
                    connection.client.address
                );
                connection.client.flags.set(ClientFlags::CLOSE_ASAP, true);
                return;
            }
            let error = if must_log_in(&thread.server, &connection.client) {
                NOT_LOGGED_IN
            } else {
                explain_unknown(commands, args)
            };
            let command = match commands.lookup(&args) {
                Lookup::Found(command) => Some(command),
                Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
            };
            if let Some(command) = command {
                thread
                    .server
                    .stats
                    .metrics
                    .record_rejection(thread.seat, command.id as usize);
            }
            let error = transaction::refused(thread, &mut connection.client, command, error);
            reply_error(thread, connection, &error);
        }
    }
    connection.consumed = plan.end;
}

fn reply_error(thread: &Thread, connection: &mut Connection, error: &CommandError) {
    let before = connection.output.mark();
    write_error(thread, error, &mut connection.output.bytes);
    connection.apply_reply_mode(before);
}

/// Records the end of an execution in the connection. Returns the next step that the connection waits for.
fn settle(plan: &Plan, connection: &mut Connection, outcome: Outcome) -> Option<NextStep> {
    match outcome {
        Outcome::Contended => {
            connection.lease_failures += 1;
            connection.state = ConnectionState::Deferred;
            None
        }
        Outcome::Done => {
            connection.lease_failures = 0;
            connection.consumed = plan.end;
            connection.client.commands += 1;
            None
        }
        Outcome::After(after) => {
            connection.lease_failures = 0;
            connection.consumed = plan.end;
            Some(after)
        }
    }
}

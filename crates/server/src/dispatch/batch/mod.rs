//! Runs the plans of many connections together, so that their cache misses overlap.

mod exclusive;
mod filtering;

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::commands::error::CommandError;
use crate::dispatch::command_events;
use crate::keyspace::access::Lease;
use crate::keyspace::effects::Effects;
use crate::keyspace::expiry::{UnitOfExpired, delete_keys_found_expired_in_pass, discard_keys_found_expired};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{GatePassage, Seat};
use crate::net::client::{Client, ClientFlags, ScriptRefusal};
use crate::net::connection::{Connection, ConnectionState, FullMailbox, MAX_HOLD_UP_MS};
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::{Counter, DeferralReason, Maximum};
use weft_command_table::registry::{Command, Lookup};
use weft_command_table::spec::CommandFlags;
use weft_os::atomic::Ordering;
use weft_resp::Args;

use crate::dispatch::accounting::{record_denial, write_error};
use crate::dispatch::admit::{
    AUTHENTICATION_REQUIRED, Admission, admit, admit_script, admits_every_script, is_http_request, must_authenticate,
    unknown_command_error,
};
use crate::dispatch::deferral;
use crate::dispatch::effects::free_removed_values;
use crate::dispatch::exclusion::withdraw_from_exclusive_mode;
use crate::dispatch::exec_detached;
use crate::dispatch::leased::run_leased;
use crate::dispatch::memory_limit;
use crate::dispatch::plan::{CommandPlan, Plans, RequestKind};
use crate::dispatch::prefetch::Prefetcher;
use crate::dispatch::protocol_error;
use crate::dispatch::queueing::{self, TransactionRole};
use crate::dispatch::request::{Outcome, Request};
use crate::dispatch::script_flags;
use crate::dispatch::slot_stats;
use crate::dispatch::thread::{IdleTurns, ThreadState};
use crate::dispatch::transaction;

/// The number of batches between two samples of the prefetch policy.
const BATCHES_PER_SAMPLE: u32 = 64;

/// Gives access to connections by token while a batch runs.
pub trait BatchConnections {
    /// Returns the connection, or `None` if it is gone.
    fn connection(&mut self, token: usize) -> Option<&mut Connection>;
    /// Runs the next step of a command whose connection waits.
    fn start_next_step(&mut self, token: usize, after: NextStep);
    /// Sends the notifications that a command has caused.
    fn notify(&mut self, thread: &mut ThreadState);
    /// Takes a connection out while its command runs, if the others can be served meanwhile ([`Self::idle_turns`]).
    fn lend(&mut self, _token: usize) -> Option<Box<Connection>> {
        None
    }
    /// Takes back what [`Self::lend`] has returned.
    fn give_back(&mut self, _token: usize, _connection: Box<Connection>) {}
    /// Returns the worker that can serve its other connections.
    fn idle_turns(&mut self) -> Option<&mut dyn IdleTurns> {
        None
    }
    /// Called before the passage of the gate ends. A thread that takes exclusive mode next must find the results of all
    /// commands that have run.
    fn before_gate_release(&mut self) {}
}

/// Runs every plan, in order. A plan is left unexecuted once its connection is no longer ready.
pub fn run_plans(thread: &mut ThreadState, seat: &mut Seat, plans: &mut Plans, connections: &mut dyn BatchConnections) {
    run_plans_from(thread, seat, plans, 0, connections);
}

/// Does the same as [`run_plans`] for the plans from the one with the index `first` on.
pub fn run_plans_from(
    thread: &mut ThreadState,
    seat: &mut Seat,
    plans: &mut Plans,
    first: usize,
    connections: &mut dyn BatchConnections,
) {
    let mut next = first;
    debug_assert!(
        plans.plans.is_sorted_by_key(|plan| plan.probes_end),
        "the probes of the plans are in the order of the plans"
    );
    while next < plans.plans.len() {
        next = run_until_exclusive(thread, seat, plans, connections, next);
        if next < plans.plans.len() {
            next = exclusive::run_plans_exclusively(thread, seat, plans, connections, next);
        }
    }
    finish_plans(thread, plans);
}

/// Runs the plans from the one with the index `first` on in a passage of the gate that the caller holds. None of them
/// needs exclusive mode.
pub fn run_plans_within(
    thread: &mut ThreadState,
    pass: &GatePassage<'_>,
    plans: &mut Plans,
    first: usize,
    connections: &mut dyn BatchConnections,
) {
    let end = run_within(thread, pass, plans, connections, first);
    assert_eq!(end, plans.plans.len(), "no command needs exclusive mode");
    finish_plans(thread, plans);
}

/// Wakes the log thread and counts the batch.
fn finish_plans(thread: &mut ThreadState, plans: &Plans) {
    thread.effects.log_writer.wake();
    let server = &thread.server;
    thread
        .effects
        .add_to_metrics(&server.keyspace, &server.stats.metrics, thread.thread_index);
    thread.batches = thread.batches.wrapping_add(1);
    if thread.batches.is_multiple_of(BATCHES_PER_SAMPLE) {
        thread.prefetch_policy.start_sample();
    }
    let metrics = &thread.server.stats.metrics;
    metrics.add(thread.thread_index, Counter::Batches, 1);
    metrics.raise(Maximum::FullestBatch, plans.plans.len() as u64);
    if plans.probes.len() > 1 {
        metrics.add(thread.thread_index, Counter::PrefetchBatches, 1);
        metrics.add(thread.thread_index, Counter::PrefetchEntries, plans.probes.len() as u64);
    }
}

/// Runs plans within one passage of the gate. Returns the index of the first plan that needs exclusive mode, or the
/// number of plans.
fn run_until_exclusive(
    thread: &mut ThreadState,
    seat: &mut Seat,
    plans: &mut Plans,
    connections: &mut dyn BatchConnections,
    first: usize,
) -> usize {
    // While only one worker is active, it rarely shares the gate with another thread.
    let pass = match thread.server.lifecycle.active_workers.load(Ordering::Relaxed) {
        1 => seat.enter_alone(),
        _ => seat.enter(),
    };
    run_within(thread, &pass, plans, connections, first)
}

/// Does the same as [`run_until_exclusive`] in a passage that has begun.
#[inline]
fn run_within<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    plans: &mut Plans,
    connections: &mut dyn BatchConnections,
    first: usize,
) -> usize {
    thread.begin_passage();
    thread.effects.set_full_mailbox_aside();
    // Waiting at the gate does not count as the time of a command.
    thread.ticks = thread.timer.raw();
    let mut many: Vec<Lease<'p>> = Vec::new();
    let mut prefetcher = prefetcher_from(thread, plans, first);
    let log_behind = !thread.is_in_round && thread.effects.log_writer.is_backlogged();
    let feeds_replicas = thread.server.replication.log_feeds_backlog();
    let mut end = plans.plans.len();
    for index in first..plans.plans.len() {
        let plan = &plans.plans[index];
        if thread.tunables.max_memory != 0 {
            evict_if_over_limit(thread, pass, connections);
        }
        if plans.probes.len() > 1 {
            prefetcher.advance(pass, &plans.probes, plan.probes_end as usize);
        }
        let connection = connections.connection(plan.token);
        let Some(connection) = connection.filter(|connection| may_run_next(thread, connection)) else {
            continue;
        };
        debug_assert_eq!(
            connection.consumed, plan.start,
            "the requests of a connection run in their order, each once"
        );
        if filtering::must_filter(thread, plan, connection) {
            if filtering::send_home(thread, connection) {
                continue;
            }
            end = index;
            break;
        }
        let RequestKind::Command(command, binding) = plan.kind else {
            reply_invalid_request(thread, plan, &plans.ranges, connection);
            continue;
        };
        let role = role_of(thread, connection, command);
        let args = || plan.args_of(&plans.ranges, &connection.input);
        if needs_exclusive_mode(thread, &role, command, binding, &connection.client, args) {
            if exclusive::send_home(thread, plan, plans, &role, connection) {
                continue;
            }
            end = index;
            break;
        }
        let keys = &mut plans.keys[plan.key_range()];
        if !admit_plan(thread, plan, &plans.ranges, keys, connection) {
            continue;
        }
        let request = Request {
            plan,
            command,
            binding,
            ranges: &plans.ranges,
        };
        let waits_for_log = log_behind && should_wait_for_log(&role, command);
        let needs_offset = feeds_replicas && binding.must_report_exact_offset;
        if waits_for_log || (needs_offset && should_wait_for_offset(thread, &role, connection)) {
            deferral::put_off(thread, connection, DeferralReason::Log);
            continue;
        }
        let outcome = run_admitted(thread, pass, &request, keys, &mut many, role, connection);
        if let Some(after) = apply_outcome(thread, plan, connection, outcome) {
            connections.start_next_step(plan.token, after);
        }
        if thread.effects.has_deliveries() {
            connections.notify(thread);
        }
    }
    thread.prefetch_policy = prefetcher.policy;
    connections.before_gate_release();
    end
}

/// Returns `true` if the next plan of a connection may run.
#[inline]
fn may_run_next(thread: &ThreadState, connection: &Connection) -> bool {
    is_runnable(connection) && !is_killed(thread, connection)
}

/// Creates the prefetcher for the plans from `first` on.
#[inline]
fn prefetcher_from(thread: &ThreadState, plans: &Plans, first: usize) -> Prefetcher {
    let asked_for = first
        .checked_sub(1)
        .map_or(0, |last| plans.plans[last].probes_end as usize);
    let (depth, policy) = (thread.tunables.prefetch_depth, thread.prefetch_policy);
    Prefetcher::new(&plans.probes, asked_for, depth, policy)
}

/// Runs or queues an admitted command, and handles the refusal of a lease.
#[inline]
fn run_admitted<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    role: TransactionRole,
    connection: &mut Connection,
) -> Outcome {
    debug_assert!(many.is_empty(), "a command begins without leases");
    let permissions = (thread.may_leave, thread.may_block);
    let outcome = match role {
        TransactionRole::RunNow => run_leased(thread, pass, request, keys, many, connection),
        TransactionRole::Queued => queueing::queue_unless_redirected(thread, request, keys, connection),
        TransactionRole::Exec { .. } => exec_detached::exec_leased(thread, pass, request, many, connection),
    };
    debug_assert_eq!(
        (thread.may_leave, thread.may_block),
        permissions,
        "a transaction or a script restores what it has forbidden its commands"
    );
    many.clear();
    if !thread.effects.expired.is_empty() {
        // This happens before the next command, because that command may count keys.
        delete_expired(thread, pass, UnitOfExpired::of_command(request.command.spec.flags));
    }
    match outcome {
        Outcome::Contended => handle_refused_slot(thread, request, keys, connection),
        other => other,
    }
}

/// Deletes the expired keys that a command found, or discards the list while deleting is not permitted.
#[cold]
fn delete_expired(thread: &mut ThreadState, pass: &GatePassage<'_>, unit: UnitOfExpired) {
    if thread.home_events.include_changes() {
        return thread.leave_expired_to_home();
    }
    let server = &thread.server;
    let thread_index = thread.thread_index;
    let notify =
        &mut |effects: &mut Effects| NotificationSender::new(server, effects, thread_index).send_recorded_effects(None);
    if thread.replication_state.expiry_is_remote() || server.clients.pause.are_writes_paused(thread.now_ms) {
        discard_keys_found_expired(&mut thread.effects, notify);
    }
    delete_keys_found_expired_in_pass(
        &server.keyspace,
        pass,
        (thread_index, unit),
        thread.now_ms,
        &mut thread.effects,
        notify,
    );
    free_removed_values(&mut thread.effects, server);
    thread.collect_ready_keys();
    debug_assert!(
        thread.effects.expired.is_empty() && !thread.effects.log_writer.has_pending_ops(),
        "the keys that a command found expired are deleted, and that is logged, before the next command"
    );
}

/// Frees memory for the next command if it is above the limit. Clients get invalidations of evicted keys before that
/// command's reply.
#[cold]
fn evict_if_over_limit(thread: &mut ThreadState, pass: &GatePassage<'_>, connections: &mut dyn BatchConnections) {
    memory_limit::evict_to_limit(thread, pass);
    thread.effects.set_full_mailbox_aside();
    if thread.effects.has_deliveries() {
        connections.notify(thread);
    }
}

/// Handles a plan that was refused a slot. Returns a BUSY error if an overdue script holds the slot.
#[cold]
fn handle_refused_slot(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    let client = &mut connection.client;
    let runs_script = request.binding.mode == HandlerMode::Script
        || (client.transaction.as_deref()).is_some_and(|transaction| transaction.runs_script);
    let script_failures = runs_script.then_some(connection.lease_failures);
    match script_flags::busy_error_of_refused(&thread.server, client, keys, script_failures) {
        Some(error) if !client.flags.contains(ClientFlags::PRIMARY) => {
            queueing::refuse_command(thread, request, connection, error)
        }
        _ => Outcome::Contended,
    }
}

/// Returns `true` if a command that may write is to be put off because the log is far behind this thread's writes.
#[cold]
fn should_wait_for_log(role: &TransactionRole, command: &Command<Binding>) -> bool {
    let runs = !matches!(role, TransactionRole::Queued);
    let reads = command.spec.flags.contains(CommandFlags::READONLY);
    runs && !reads
}

/// Returns `true` if a command that needs the exact replication offset is to be put off.
///
/// Writes that were acknowledged before the command arrived may not be in the backlog yet. A client that compares the
/// offsets of a primary and a replica would find them equal too early, and PSYNC would accept an offset that these
/// writes remove from the backlog.
#[cold]
fn should_wait_for_offset(thread: &ThreadState, role: &TransactionRole, connection: &mut Connection) -> bool {
    !matches!(role, TransactionRole::Queued) && is_backlog_behind(thread, connection)
}

/// Returns `true` if the backlog lacks a write that was made before the first attempt of the connection's request.
fn is_backlog_behind(thread: &ThreadState, connection: &mut Connection) -> bool {
    let server = &thread.server;
    let own_sequence = &mut connection.client.last_write_sequence;
    let sequence = *connection
        .awaited_sequence
        .get_or_insert_with(|| server.propagation.last_sequence().max(*own_sequence));
    *own_sequence = sequence;
    let backlog = server.replication.replicas.backlog();
    let is_behind = backlog.offset_of_sequence(sequence).is_none();
    drop(backlog);
    if is_behind {
        server.propagation.wake();
    }
    is_behind
}

/// Returns the role of a connection's next command. A transaction whose events modules get will run on the home worker.
#[inline]
fn role_of(thread: &ThreadState, connection: &mut Connection, command: &Command<Binding>) -> TransactionRole {
    let transaction = connection.client.transaction.as_deref_mut();
    thread.home_events.mark_transaction(transaction);
    TransactionRole::for_command(&connection.client, command)
}

/// Returns `true` if a command runs on the home worker because modules have a part in all commands.
#[inline]
fn runs_at_home(thread: &ThreadState, role: &TransactionRole, command: &Command<Binding>) -> bool {
    thread.commands_run_at_home && !matches!(role, TransactionRole::Queued) && !acts_on_overdue_script(thread, command)
}

/// Returns `true` if a script is overdue, and the command is one that may run meanwhile, such as SCRIPT KILL: it does
/// not wait for the end of the script.
#[cold]
fn acts_on_overdue_script(thread: &ThreadState, command: &Command<Binding>) -> bool {
    command.spec.flags.contains(CommandFlags::ALLOW_BUSY) && thread.server.scripting.running.has_overdue()
}

/// Returns `true` if a plan needs exclusive mode.
#[inline]
fn needs_exclusive_mode<'a>(
    thread: &ThreadState,
    role: &TransactionRole,
    command: &Command<Binding>,
    binding: Binding,
    client: &Client,
    args: impl FnOnce() -> Args<'a>,
) -> bool {
    if runs_at_home(thread, role, command) {
        return true;
    }
    match role {
        TransactionRole::RunNow => match binding.mode {
            HandlerMode::Leased => binding.needs_modules() || causes_home_events(thread, command),
            HandlerMode::Script => client.script_refusal == Some(ScriptRefusal::Home),
            HandlerMode::Exclusive => true,
            HandlerMode::Module => binding.runs_at_home() || causes_home_events(thread, command),
            HandlerMode::ExclusiveForSleep => {
                binding.needs_modules() || args().argument(1).eq_ignore_ascii_case(b"sleep")
            }
        },
        TransactionRole::Queued => false,
        TransactionRole::Exec {
            needs_exclusive_mode: exclusive,
        } => *exclusive,
    }
}

/// Returns `true` if a command runs on the home worker because modules get its keyspace events there. A round that has
/// begun before they have subscribed goes on: its commands need no exclusive mode.
#[inline]
fn causes_home_events(thread: &ThreadState, command: &Command<Binding>) -> bool {
    thread.home_events.concern(command.spec.flags) && !thread.is_in_round
}

fn is_runnable(connection: &Connection) -> bool {
    connection.state == ConnectionState::Ready && !connection.client.flags.intersects(ClientFlags::CLOSING)
}

/// Returns `true` if a transaction has killed the client, as of this passage of the gate. Its worker is about to read
/// that and to close the connection.
fn is_killed(thread: &ThreadState, connection: &Connection) -> bool {
    thread.has_killed_clients && thread.server.clients.directory.is_killed(connection.client.id)
}

/// Ends a request that was executed or refused, or goes on elsewhere. If it was announced as waiting for exclusive
/// mode, it waits no longer, however it came to its end: an announcement that stays delays the scripts of others.
fn end_request(thread: &ThreadState, plan: &CommandPlan, connection: &mut Connection) {
    withdraw_from_exclusive_mode(thread, connection);
    connection.end_request(plan.end, || plan.is_asking());
}

/// Returns `true` if the plan may run. Otherwise the refusal has been written, or the connection waits.
fn admit_plan(
    thread: &mut ThreadState,
    plan: &CommandPlan,
    ranges: &[weft_resp::ArgRange],
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> bool {
    let RequestKind::Command(command, binding) = plan.kind else {
        return false;
    };
    let Connection { client, input, .. } = &mut *connection;
    let mut admission = admit(thread, client, command, || plan.args_of(ranges, input), keys);
    if binding.mode == HandlerMode::Script && !(matches!(admission, Admission::Run) && admits_every_script(thread)) {
        let args = plan.args_of(ranges, &connection.input);
        admission = admit_script(thread, &connection.client, admission, command, args);
    }
    if !matches!(admission, Admission::Run) {
        withdraw_from_exclusive_mode(thread, connection);
    }
    match admission {
        Admission::Run => true,
        Admission::Paused => {
            connection.state = ConnectionState::Paused;
            connection.was_refused_before_pause |= connection.lease_failures > 0;
            transaction::discard_client_snapshots(&mut connection.client);
            connection.client.flags.set(ClientFlags::BLOCKED, true);
            connection.client.last_command = command.full_name;
            false
        }
        Admission::PutOff => {
            deferral::put_off(thread, connection, DeferralReason::Lease);
            false
        }
        Admission::Redirected(error) => {
            thread
                .server
                .stats
                .metrics
                .record_rejection(thread.thread_index, command.id as usize);
            count_refused_request(thread, plan, command, ranges, keys, connection);
            connection.client.last_command = command.full_name;
            command_events::send_redirection(command, plan.args_of(ranges, &connection.input), &connection.client);
            queueing::note_redirection(thread, &mut connection.client, command);
            reply_error(thread, connection, &error);
            connection.client.reset_caching_after(Some(command.full_name));
            end_request(thread, plan, connection);
            false
        }
        Admission::Refused(error) => {
            count_refused_request(thread, plan, command, ranges, keys, connection);
            let args = plan.args_of(ranges, &connection.input);
            command_events::send_rejection(Some(command), args, &connection.client, &error);
            reject_command(thread, plan, command, connection, error);
            false
        }
        Admission::Denied(denial) => {
            count_refused_request(thread, plan, command, ranges, keys, connection);
            connection.client.last_command = command.full_name;
            let args = plan.args_of(ranges, &connection.input);
            let error = record_denial(thread, connection, command, args, denial);
            reject_command(thread, plan, command, connection, error);
            false
        }
        Admission::ClientClosing => {
            connection.client.kill();
            false
        }
    }
}

/// Counts the request of a command that is not admitted, if slot statistics are enabled.
fn count_refused_request(
    thread: &ThreadState,
    plan: &CommandPlan,
    command: &'static Command<Binding>,
    ranges: &[weft_resp::ArgRange],
    keys: &[PlannedKey],
    connection: &Connection,
) {
    if thread.tunables.slot_stats {
        let request = &connection.input[plan.start..plan.end];
        let args = plan.args_of(ranges, &connection.input);
        slot_stats::count_request(thread, &connection.client, command, request, args, keys);
    }
}

/// Replies with an error to a command that was not admitted.
fn reject_command(
    thread: &mut ThreadState,
    plan: &CommandPlan,
    command: &'static Command<Binding>,
    connection: &mut Connection,
    error: CommandError,
) {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.thread_index, command.id as usize);
    connection.client.last_command = command.full_name;
    let error = queueing::note_refusal(thread, &mut connection.client, Some(command), error);
    reply_error(thread, connection, &error);
    connection.client.reset_caching_after(Some(command.full_name));
    end_request(thread, plan, connection);
}

/// Replies to a request that is not a valid command.
fn reply_invalid_request(
    thread: &mut ThreadState,
    plan: &CommandPlan,
    ranges: &[weft_resp::ArgRange],
    connection: &mut Connection,
) {
    match plan.kind {
        RequestKind::Malformed(error) => {
            protocol_error::log_protocol_error(thread, connection, plan.start..plan.end, error);
            let mut text = b"ERR ".to_vec();
            text.extend_from_slice(&error.message());
            reply_error(thread, connection, &CommandError::from_bytes(text));
            connection.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
        }
        RequestKind::Unknown | RequestKind::Command(..) => {
            let commands = crate::commands::registry();
            let args = plan.args_of(ranges, &connection.input);
            if is_http_request(args) {
                crate::observability::log::warning!(
                    "Closing a connection that sent a line of HTTP: {}",
                    connection.client.address
                );
                connection.client.flags.set(ClientFlags::CLOSE_ASAP, true);
                return;
            }
            let error = if must_authenticate(&thread.server, &connection.client) {
                AUTHENTICATION_REQUIRED
            } else {
                unknown_command_error(commands, args)
            };
            let command = match commands.lookup(&args) {
                Lookup::Found(command) => Some(command),
                Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
            };
            command_events::send_rejection(command, args, &connection.client, &error);
            if let Some(command) = command {
                thread
                    .server
                    .stats
                    .metrics
                    .record_rejection(thread.thread_index, command.id as usize);
            }
            let error = queueing::note_refusal(thread, &mut connection.client, command, error);
            reply_error(thread, connection, &error);
            connection
                .client
                .reset_caching_after(command.map(|command| command.full_name));
        }
    }
    end_request(thread, plan, connection);
}

fn reply_error(thread: &mut ThreadState, connection: &mut Connection, error: &CommandError) {
    let before = connection.output.mark();
    write_error(thread, error, &mut connection.output.bytes);
    thread.note_failure(connection.client.last_command);
    connection.apply_reply_mode(before);
}

/// Records the end of an execution in the connection. Returns the next step that the connection waits for.
fn apply_outcome(
    thread: &mut ThreadState,
    plan: &CommandPlan,
    connection: &mut Connection,
    outcome: Outcome,
) -> Option<NextStep> {
    connection.client.commands += std::mem::take(&mut thread.ended_commands);
    debug_assert!(
        connection.consumed <= plan.start && plan.end <= connection.input.len(),
        "a request lies in the input behind those that have run"
    );
    if thread.effects.full_mailbox.is_some() {
        hold_up_sender(thread, connection, &outcome);
    }
    match outcome {
        Outcome::Contended => {
            let reason = deferral::reason_of(thread, plan, connection);
            deferral::put_off(thread, connection, reason);
            None
        }
        Outcome::Done => {
            end_request(thread, plan, connection);
            None
        }
        Outcome::After(after) => {
            end_request(thread, plan, connection);
            Some(after)
        }
    }
}

/// Puts off the further requests of a connection that has sent a message to a worker with too much mail.
#[cold]
fn hold_up_sender(thread: &mut ThreadState, connection: &mut Connection, outcome: &Outcome) {
    let Some(worker) = thread.effects.full_mailbox else {
        return;
    };
    if matches!(outcome, Outcome::Contended) || thread.is_in_round {
        return thread.effects.set_full_mailbox_aside();
    }
    if thread.replays {
        // The thread of the stream waits between its batches, so this one ends here.
        thread.effects.set_full_mailbox_aside();
        if connection.state == ConnectionState::Ready {
            connection.state = ConnectionState::Deferred;
        }
        return;
    }
    thread.effects.full_mailbox = None;
    let until_ms = thread.now_ms + MAX_HOLD_UP_MS;
    let full_mailbox = FullMailbox { worker, until_ms };
    match outcome {
        Outcome::Done => connection.hold_up(full_mailbox),
        // Once it has its reply.
        _ => connection.full_mailbox = Some(full_mailbox),
    }
    deferral::count(thread, DeferralReason::Mailbox);
}

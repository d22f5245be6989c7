//! Runs plans in exclusive mode: commands that need the whole keyspace, and those that run code of modules.

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::commands::error::CommandError;
use crate::dispatch::admit::must_authenticate;
use crate::dispatch::deferral;
use crate::dispatch::exclusion::{try_exclude_runs, withdraw_from_exclusive_mode};
use crate::dispatch::exec_detached;
use crate::dispatch::exec_libraries;
use crate::dispatch::leased::run_exclusive_serving;
use crate::dispatch::memory_limit;
use crate::dispatch::modules::{self, command_results, key_events};
use crate::dispatch::notifications::send_early_broadcasts;
use crate::dispatch::plan::{CommandPlan, Plans, RequestKind};
use crate::dispatch::queueing::{self, TransactionRole};
use crate::dispatch::request::{Outcome, Request};
use crate::dispatch::script_flags;
use crate::dispatch::thread::{IdleTurns, ThreadState};
use crate::dispatch::transaction;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, Seat};
use crate::net::client::{Client, ClientFlags, ScriptRefusal};
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::wake_workers;
use crate::observability::metrics::DeferralReason;
use weft_base::clock::unix_ms;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_modules::module::home_commands;

use super::filtering;
use super::{
    BatchConnections, admit_plan, apply_outcome, causes_home_events, is_backlog_behind, is_killed, is_runnable,
    prefetcher_from, reject_command, should_wait_for_log, should_wait_for_offset,
};

/// Runs the plan with the index `first` in exclusive mode. If it runs code of a module, runs the plans behind it that
/// do so, too, without opening the gate in between. Returns the index of the first plan that did not have its turn.
pub(super) fn run_plans_exclusively(
    thread: &mut ThreadState,
    seat: &mut Seat,
    plans: &mut Plans,
    connections: &mut dyn BatchConnections,
    first: usize,
) -> usize {
    let next = first + 1;
    let plan = &plans.plans[first];
    if let Some(connection) = connections.connection(plan.token)
        && filtering::must_filter(thread, plan, connection)
    {
        return filtering::filter_plan(thread, seat, plans, connections, first);
    }
    let RequestKind::Command(command, binding) = plan.kind else {
        return next;
    };
    let Some(connection) = connections.connection(plan.token) else {
        return next;
    };
    thread.begin_passage();
    // Others see what the batch has changed so far, and exclusive mode may be long in coming.
    send_early_broadcasts(thread);
    wake_workers(&thread.server, &mut thread.effects);
    thread.effects.set_full_mailbox_aside();
    let keys = &plans.keys[plan.key_range()];
    if !is_runnable(connection) || !admit_plan(thread, plan, &plans.ranges, keys, connection) {
        return next;
    }
    let request = Request {
        plan,
        command,
        binding,
        ranges: &plans.ranges,
    };
    let server = thread.server.clone();
    if leaves_before_gate(thread, &request, connections) {
        return next;
    }
    let Some(connection) = connections.connection(plan.token) else {
        return next;
    };
    let runs_at_home = must_run_at_home(thread, &request, connection);
    let Some(exclusion) = try_exclude_runs(&server.scripting.running, &request, connection, runs_at_home) else {
        put_off_behind_scripts(thread, &request, connection);
        return next;
    };
    if runs_at_home && !server.is_home(thread.thread_index) {
        thread.home_standby = server.summon_home();
        if thread.home_standby.is_none() {
            // The server ends.
            return next;
        }
    }
    let mut all = seat.exclusive();
    let mut must_admit_again = begins_changed_passage(thread);
    if !runs_at_home && must_run_at_home_now(thread, &request, connections) {
        drop(all);
        drop(exclusion);
        if let Some(connection) = connections.connection(plan.token) {
            put_off_before_gate(thread, plan, connection);
        }
        return next;
    }
    must_admit_again |= evicts_for_modules(thread, &mut all);
    run_first_plan(thread, &mut all, &request, keys, connections, must_admit_again);
    let goes_on = binding.mode == HandlerMode::Module || causes_home_events(thread, command);
    let next = match goes_on || home_commands::are_required() {
        true => run_further_module_plans(thread, &mut all, plans, connections, next),
        false => next,
    };
    connections.before_gate_release();
    drop(all);
    thread.home_standby = None;
    drop(exclusion);
    if thread.effects.has_deliveries() {
        connections.notify(thread);
    }
    next
}

/// Returns `true` if a plan does not run in this turn: it has to wait, or other threads have to do something first.
fn leaves_before_gate(thread: &mut ThreadState, request: &Request<'_>, connections: &mut dyn BatchConnections) -> bool {
    let plan = request.plan;
    let Some(connection) = connections.connection(plan.token) else {
        return true;
    };
    if must_wait_before_gate(thread, request, connection) {
        put_off_before_gate(thread, plan, connection);
        return true;
    }
    if let Some(step) = step_before_exec(thread, &mut connection.client) {
        withdraw_before_step(thread, connection, &step);
        // The request stays in the input. It runs once other threads have done that.
        connections.start_next_step(plan.token, step);
        return true;
    }
    let must_leave = exec_libraries::must_leave_worker(thread, &mut connection.client);
    if must_leave {
        move_exec(thread, request, connections);
    }
    must_leave
}

/// Puts off a plan that has not run, and gives up its place among those that wait for exclusive mode.
fn put_off_before_gate(thread: &mut ThreadState, plan: &CommandPlan, connection: &mut Connection) {
    withdraw_from_exclusive_mode(thread, connection);
    apply_outcome(thread, plan, connection, Outcome::Contended);
}

/// Does the same as [`must_run_at_home`] in exclusive mode, for a request that could run elsewhere before: a module was
/// loaded, or has subscribed to events, while this thread waited at the gate.
fn must_run_at_home_now(thread: &ThreadState, request: &Request<'_>, connections: &mut dyn BatchConnections) -> bool {
    let connection = connections.connection(request.plan.token);
    connection.is_some_and(|connection| must_run_at_home(thread, request, connection))
}

/// Returns `true` if a request runs at home, or with the home worker summoned, as far as modules are known now.
fn must_run_at_home(thread: &ThreadState, request: &Request<'_>, connection: &Connection) -> bool {
    thread.commands_run_at_home || runs_module(thread, request, connection)
}

/// Returns `true` if a request runs code of a module.
fn runs_module(thread: &ThreadState, request: &Request<'_>, connection: &Connection) -> bool {
    let client = &connection.client;
    let transaction = client.transaction.as_deref();
    request.binding.needs_modules()
        || causes_home_events(thread, request.command)
        || client.script_refusal == Some(ScriptRefusal::Home)
        || transaction.is_some_and(|transaction| transaction.runs_modules)
}

/// Runs the plan for which exclusive mode was entered, unless its connection has gone meanwhile or it is refused now.
fn run_first_plan(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connections: &mut dyn BatchConnections,
    must_admit_again: bool,
) {
    let plan = request.plan;
    // The connection to a primary that is no longer followed is closed as well.
    let connection = connections.connection(plan.token);
    let Some(connection) = connection.filter(|connection| !is_killed(thread, connection)) else {
        return;
    };
    if must_admit_again && !admit_plan(thread, plan, request.ranges, keys, connection) {
        return;
    }
    debug_assert_eq!(
        connection.consumed, plan.start,
        "the requests of a connection run in their order, each once"
    );
    run_and_apply(thread, all, request, keys, connections);
}

/// Runs an admitted command, and applies its outcome.
fn run_and_apply(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connections: &mut dyn BatchConnections,
) {
    thread.ticks = thread.timer.raw();
    thread.recorded_end = None;
    thread.effects.delivers_removed_keys = true;
    let dirty = thread.effects.dirty;
    let plan = request.plan;
    let lent = match may_serve_meanwhile(thread, request, connections) {
        true => connections.lend(plan.token),
        false => None,
    };
    let after = if let Some(mut connection) = lent {
        let outcome = run_admitted_exclusively(thread, all, request, keys, &mut connection, connections.idle_turns());
        deliver_end(thread, all, request, &mut connection, dirty);
        let after = apply_outcome(thread, plan, &mut connection, outcome);
        connections.give_back(plan.token, connection);
        after
    } else if let Some(connection) = connections.connection(plan.token) {
        let outcome = run_admitted_exclusively(thread, all, request, keys, connection, None);
        deliver_end(thread, all, request, connection, dirty);
        apply_outcome(thread, plan, connection, outcome)
    } else {
        None
    };
    if let Some(after) = after {
        connections.start_next_step(plan.token, after);
    }
}

/// Returns `true` if the code that a request runs may let other connections be served.
fn may_serve_meanwhile(thread: &ThreadState, request: &Request<'_>, connections: &mut dyn BatchConnections) -> bool {
    match request.binding.mode {
        HandlerMode::Module => true,
        HandlerMode::Script => connections.connection(request.plan.token).is_some_and(|connection| {
            let args = request.args(&connection.input);
            script_flags::runs_in_engine(&thread.server, request.command, args)
        }),
        HandlerMode::Leased | HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep => false,
    }
}

/// Lets modules look at the keys that a command has removed, and know how it has ended. `dirty` is the number of
/// changes before it.
fn deliver_end(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    connection: &mut Connection,
    dirty: u64,
) {
    let Connection { client, input, .. } = connection;
    modules::deliver_removed_keys(thread, all, client);
    thread.effects.delivers_removed_keys = false;
    let Some(end) = thread.recorded_end.take() else {
        return;
    };
    let changes = thread.effects.dirty.saturating_sub(dirty);
    let call = (request.command, request.args(input));
    command_results::deliver(thread, all, client, call, end, changes);
}

/// Runs the plans from the one with the index `next` on, as long as they run code of modules. Returns the index of the
/// first one that does not.
fn run_further_module_plans(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    plans: &Plans,
    connections: &mut dyn BatchConnections,
    mut next: usize,
) -> usize {
    let mut prefetcher = prefetcher_from(thread, plans, next);
    while let Some(plan) = plans.plans.get(next) {
        let RequestKind::Command(command, binding) = plan.kind else {
            break;
        };
        let runs_module = match binding.mode {
            HandlerMode::Module => binding.module_command.is_some(),
            HandlerMode::Leased => {
                causes_home_events(thread, command)
                    || (home_commands::are_required() && !binding.must_report_exact_offset)
            }
            HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep | HandlerMode::Script => false,
        };
        // Keys are evicted before a command, for which the gate has to be open.
        // A writer may have to wait for the log.
        let is_behind = thread.effects.log_writer.is_backlogged();
        if !runs_module || is_behind || memory_limit::must_check(thread) {
            break;
        }
        prefetcher.advance(all, &plans.probes, plan.probes_end as usize);
        let Some(connection) = connections.connection(plan.token) else {
            next += 1;
            continue;
        };
        if is_runnable(connection) && filtering::must_filter(thread, plan, connection) {
            break;
        }
        if !matches!(
            TransactionRole::for_command(&connection.client, command),
            TransactionRole::RunNow
        ) {
            break;
        }
        next += 1;
        let keys = &plans.keys[plan.key_range()];
        if !is_runnable(connection)
            || is_killed(thread, connection)
            || !admit_plan(thread, plan, &plans.ranges, keys, connection)
        {
            continue;
        }
        let request = Request {
            plan,
            command,
            binding,
            ranges: &plans.ranges,
        };
        run_and_apply(thread, all, &request, keys, connections);
        if thread.effects.has_deliveries() {
            connections.notify(thread);
        }
    }
    thread.prefetch_policy = prefetcher.policy;
    next
}

/// The error for a command of which only a module knows the keys, if it can be asked only on the home worker, and the
/// connection cannot move there.
const UNKNOWN_KEYS: CommandError = CommandError::constant(
    "NOPERM The keys of this command cannot be checked while the client is subscribed to channels or monitors commands",
);

/// Puts off a command that runs code of a module, so that its connection moves to the home worker. Returns `false` if
/// it runs here. A command that is refused is answered here.
#[cold]
pub(super) fn send_home(
    thread: &mut ThreadState,
    plan: &CommandPlan,
    plans: &Plans,
    role: &TransactionRole,
    connection: &mut Connection,
) -> bool {
    let RequestKind::Command(command, binding) = plan.kind else {
        return false;
    };
    // Only at home can a module be asked for the keys and channels that the permissions of the client are about.
    let asks = command
        .spec
        .flags
        .intersects(CommandFlags::MODULE_GETKEYS.union(CommandFlags::MODULE_GETCHANNELS));
    if !must_move_home(thread, role, command, binding, connection) {
        let is_uncertain = asks
            && matches!(role, TransactionRole::RunNow)
            && !thread.server.is_home(thread.thread_index)
            && !thread.replays
            && !connection.client.login.is_unrestricted(thread.acl_version);
        if is_uncertain {
            reject_command(thread, plan, command, connection, UNKNOWN_KEYS);
        }
        return is_uncertain;
    }
    let is_admitted_at_home = asks && !must_authenticate(&thread.server, &connection.client);
    if is_admitted_at_home || admit_plan(thread, plan, &plans.ranges, &plans.keys[plan.key_range()], connection) {
        transaction::discard_client_snapshots(&mut connection.client);
        connection.is_moving_home = true;
        connection.state = ConnectionState::Deferred;
    }
    true
}

/// Returns `true` if a plan that needs exclusive mode runs code of a module, and its connection has to move to the home
/// worker before.
fn must_move_home(
    thread: &ThreadState,
    role: &TransactionRole,
    command: &Command<Binding>,
    binding: Binding,
    connection: &Connection,
) -> bool {
    let runs_module = match role {
        TransactionRole::Queued => false,
        _ if thread.commands_run_at_home => true,
        TransactionRole::RunNow => {
            binding.mode == HandlerMode::Script || binding.needs_modules() || causes_home_events(thread, command)
        }
        TransactionRole::Exec { .. } => {
            let transaction = connection.client.transaction.as_deref();
            transaction.is_some_and(|transaction| transaction.runs_modules && !transaction.is_refused)
        }
    };
    // A connection that cannot move has the home worker summoned instead.
    let may_move = !thread.replays
        && !connection
            .client
            .flags
            .intersects(ClientFlags::PUBSUB.union(ClientFlags::MONITOR));
    runs_module && may_move && !thread.server.is_home(thread.thread_index)
}

/// Returns what has to be done on other threads before the EXEC of a client.
fn step_before_exec(thread: &ThreadState, client: &mut Client) -> Option<NextStep> {
    if exec_libraries::must_prepare(thread, client) {
        return Some(NextStep::PrepareLibraries);
    }
    transaction::needs_client_snapshots(thread, client).then_some(NextStep::CollectClients)
}

/// Withdraws EXEC from the wait for exclusive mode before a step after which it may be refused.
fn withdraw_before_step(thread: &ThreadState, connection: &Connection, step: &NextStep) {
    if matches!(step, NextStep::PrepareLibraries) {
        withdraw_from_exclusive_mode(thread, connection);
    }
}

/// Lets a script thread run EXEC.
#[cold]
fn move_exec(thread: &mut ThreadState, request: &Request<'_>, connections: &mut dyn BatchConnections) {
    let token = request.plan.token;
    let Some(connection) = connections.connection(token) else {
        return;
    };
    // It announces itself again, or is refused.
    withdraw_from_exclusive_mode(thread, connection);
    let outcome = exec_detached::exec_after_libraries(thread, request, connection);
    if let Some(after) = apply_outcome(thread, request.plan, connection, outcome) {
        connections.start_next_step(token, after);
    }
}

/// Runs or queues an admitted command in exclusive mode, or puts it off until the backlog has all earlier writes. Once
/// the data have a part of a transaction, it is put off for good: the process is about to end.
fn run_admitted_exclusively(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    idle: Option<&mut dyn IdleTurns>,
) -> Outcome {
    if thread.server.scripting.running.has_unfinished_unit() {
        return Outcome::Contended;
    }
    let role = TransactionRole::for_command(&connection.client, request.command);
    // Checked in exclusive mode: a transaction may have written while this thread waited at the gate.
    if request.binding.must_report_exact_offset
        && thread.server.replication.log_feeds_backlog()
        && should_wait_for_offset(thread, &role, connection)
    {
        return Outcome::Contended;
    }
    match role {
        TransactionRole::Exec { .. } => transaction::exec_exclusive(thread, all, request, connection),
        TransactionRole::RunNow | TransactionRole::Queued => {
            run_exclusive_serving(thread, all, request, keys, connection, idle)
        }
    }
}

/// Begins a passage of the gate for a command that was admitted before it waited there. Returns `true` if it has to be
/// admitted again: its permissions, the role of this server or the cluster have changed, or clients are paused.
fn begins_changed_passage(thread: &mut ThreadState) -> bool {
    let admitted_by = (thread.acl_version, thread.replication_state, thread.view_version);
    thread.begin_passage();
    (thread.acl_version, thread.replication_state, thread.view_version) != admitted_by
        || thread.server.clients.pause.are_writes_paused(unix_ms())
        || thread.server.clients.pause.held_slots.is_any()
}

/// Evicts keys if modules get the events of that. Returns `true` if the limit of memory was checked.
fn evicts_for_modules(thread: &mut ThreadState, all: &mut Exclusive<'_>) -> bool {
    thread.home_events.include_changes() && memory_limit::evict_for_modules(thread, all, key_events::end_deletion)
}

/// Puts off a command that needs exclusive mode while scripts run on script threads. A worker does not wait at the gate
/// for a script of unknown duration. Replies with a BUSY error if one is overdue.
#[cold]
fn put_off_behind_scripts(thread: &mut ThreadState, request: &Request<'_>, connection: &mut Connection) {
    transaction::discard_client_snapshots(&mut connection.client);
    match script_flags::busy_error(&thread.server) {
        Some(error) if !connection.client.flags.contains(ClientFlags::PRIMARY) => {
            let outcome = queueing::refuse_command(thread, request, connection, error);
            apply_outcome(thread, request.plan, connection, outcome);
        }
        _ => deferral::put_off(thread, connection, DeferralReason::Script),
    }
}

/// Returns `true` if a request waits for something that is checked again in exclusive mode: repeated attempts should
/// neither close the gate nor collect snapshots of clients.
fn must_wait_before_gate(thread: &ThreadState, request: &Request<'_>, connection: &mut Connection) -> bool {
    let server = &thread.server;
    connection.awaited_thaw = transaction::awaited_thaw(server, &connection.client, request.command);
    if connection.awaited_thaw.is_some() {
        transaction::discard_client_snapshots(&mut connection.client);
        return true;
    }
    // As in `run_within`. Few other commands of exclusive mode write.
    if (thread.commands_run_at_home || causes_home_events(thread, request.command))
        && !thread.is_in_round
        && thread.effects.log_writer.is_backlogged()
        && should_wait_for_log(&TransactionRole::RunNow, request.command)
    {
        return true;
    }
    // The request has begun to wait for this write in an earlier attempt.
    request.binding.must_report_exact_offset
        && connection.awaited_sequence.is_some()
        && server.replication.log_feeds_backlog()
        && is_backlog_behind(thread, connection)
}

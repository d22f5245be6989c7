//! Runs scripts and functions, under the leases of their declared keys and of all further keys that they reach.
//!
//! ```text
//!   EVAL ─▶ prepare: find or compile ─▶ long?  ── yes ──▶ a script thread runs the same from the start
//!                                       │ no
//!                     leases of the declared keys, all or none
//!                                       │
//!   Lua ─▶ redis.call ─▶ admitted? ─▶ slots held? ── no ──▶ lease them too ─▶ the command's handler
//!                                       │
//!            blocked clients are served, the leases end, the token is released
//! ```
//!
//! A script is atomic: it keeps every lease until it ends. No thread that holds leases waits for one, so a script that
//! is refused must release everything and restart. But a script that has written cannot restart. Hence the *token*:
//!
//! 1. One script at a time has the token. Only its holder may wait for a slot while it holds others. All other threads
//!    release their leases when they are refused one, or when they end, so the holder gets the slot.
//! 2. A script takes the token before its first write, without waiting. If another script has the token, it writes
//!    under an undo log (rule 11), or releases its leases and restarts later if it cannot. So scripts run in parallel
//!    with all commands and scripts on other slots. On a worker, a script with loops writes under an undo log even if
//!    the token is free.
//! 3. Before it has the token, a script that is refused a slot restarts once that slot is free. After
//!    [`ANNOUNCE_AFTER_FAILURES`] failures it takes the token, at its start or when it is refused a slot, and waits, so
//!    that it makes progress. If another script has the token, it runs without it as before.
//! 4. The counts and log records of a script are buffered until it is certain that the script does not restart.
//! 5. A command that needs the whole keyspace gets the leases of all slots, under the token. Scripts never wait at the
//!    gate, because a script that waits there could not be killed. In return, no thread closes the gate while a script
//!    runs on a script thread (`RunRegistry::try_exclude_runs`).
//! 6. A script with loops runs on a script thread until it has proved to be short. A script that turns out to be long
//!    on a worker moves to a script thread if it has not written, or under an undo log; otherwise it stays. The
//!    coordinator places no connections on a worker that is stalled for this or another reason, and makes one more
//!    worker active if all are. If there is only one worker, a script with loops makes no lasting changes on it.
//! 7. In a transaction the token is taken first, so that no script in it restarts.
//! 8. A worker does not wait for scripts on other threads: they may take long, and they may wait for the answer of this
//!    worker (CLIENT LIST, INFO). A script on a worker that has the token and is refused a slot for more than a moment
//!    moves to a script thread. If it has written, or is part of a transaction, it stops the slot's holder instead. The
//!    holder restarts: without the token it has not written, or under an undo log.
//! 9. Only the end of the process stops a script that has written with the token. Its unit of the log is discarded, so
//!    that the next start, and replicas, see nothing of it. Its leases and the token never end, so that no other
//!    command sees a part of it and no such command is logged. No command uses the data in exclusive mode any more, and
//!    nothing saves them or loads a file over them (`RunRegistry::has_unfinished_unit`). A transaction, or the script
//!    of a debugger session, that was stopped in exclusive mode leases all slots for good before it opens the gate. A
//!    stopped script gets no reply and holds its client's further requests back. The connection of a stopped
//!    transaction is closed after the earlier replies.
//! 10. A script does not start while MIGRATE sends one of its declared keys, and restarts if its first write is to such
//!     a key. So MIGRATE ends, however many scripts change its keys. The restart waits until some MIGRATE has ended.
//! 11. Under an undo log ([`crate::keyspace::undo`]) a script may write without the token. No other thread sees its
//!     changes before it ends, because it keeps its leases; its log records, messages and counts are held back. Until
//!     it ends it can be stopped at any time, by SCRIPT KILL, too, and its changes are undone. If it needs to wait for
//!     a slot, to change a large value, or to do what cannot be undone, it takes the token, and from then on its
//!     changes last. If another script has the token, it is undone and restarts. A script that has needed the token for
//!     another reason than a slot begins with it for a while.
//! 12. A script whose client was killed before it had leased a slot stops, and CLIENT KILL waits for one that cannot be
//!     stopped any more ([`crate::net::kill_mark`]).
//! 13. The notifications of a script that may have to restart (MONITOR, keyspace events) and its entries in logs are
//!     held back, and discarded if it restarts. So clients see each command once.
//! 14. A thread that calls a function for the first time loads its library before it takes leases. That counts as a run
//!     of the function, which moves to a script thread if it is too long for a worker, and can be killed there. In a
//!     transaction the thread has leases already, which count as held by that run. A transaction that changes libraries
//!     is an exception ([`super::exec_detached`]).

pub(in crate::dispatch) mod prepared;
mod runner;
mod session;

use std::sync::Arc;
use std::time::Duration;

use weft_reactor::{Output, OutputMark};
use weft_resp::{Args, Reply};

use crate::commands::context::{Binding, NextStep};
use crate::commands::error::CommandError;
use crate::keyspace::access::{HeldLeases, Lease, ScriptLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage, lease_all_for_good};
use crate::net::client::{Client, ClientFlags, ScriptRefusal};
use crate::net::connection::Connection;
use crate::notify::messages::NotificationSender;
use crate::state::{Server, UnservedKeys};
use weft_command_table::registry::Command;
use weft_scripting as scripting;
use weft_scripting::{ScriptProfile, ScriptRun, StopReason};

use super::accounting::{CommandEnd, write_error};
use super::admit::REPLAYING_CLIENTS;
use super::background::DetachedCommand;
use super::effects::free_removed_values;
use super::execute::{check_migrating_slot, reply_redirection};
use super::leases::{ANNOUNCE_AFTER_FAILURES, lease_slot, lease_slots};
use super::notifications::monitor_line_of_unit;
use super::plan::plan_write_keys;
use super::record::{self, CommandLogThresholds};
use super::request::{Outcome, Request};
use super::script_flags::{busy_error, runs_in_engine};
use super::slot_stats::{self, CommandCost};
use super::thread::{IdleTurns, ThreadState};
use super::{execution_order, memory_limit, modules, pins, serve};
use prepared::{PrepareError, PreparedScript, prepare_script};
use runner::{Runner, ScriptAccess, ScriptOutcome};

pub(super) use prepared::{is_too_long_to_load, prepare_libraries};
pub(super) use runner::query_workers;

// ---- one command ---------------------------------------------------------------------------------------------------

/// Runs a plan that runs a script.
pub fn run_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    if session::must_run_in_session(&connection.client, request.command) {
        return session::begin_session(thread, request, connection);
    }
    if runs_in_engine(&thread.server, request.command, request.args(&connection.input)) {
        return refuse_elsewhere(connection);
    }
    evict_on_script_thread(thread, pass);
    if connection.awaited_thaw == Some(thread.server.keyspace.pinned.thaws()) {
        return Outcome::Contended;
    }
    connection.awaited_thaw = None;
    let args = request.args(&connection.input);
    if thread.tunables.slot_stats {
        thread.slot = slot_stats::command_slot(request.command, args, keys);
    }
    let prepared = match prepare_script(
        thread,
        request.command,
        args,
        connection.client.flags.contains(ClientFlags::PRIMARY),
        &|_| {},
    ) {
        Ok(prepared) => prepared,
        Err(PrepareError::Refused(error)) => return reply_error(thread, request, connection, &error),
        Err(PrepareError::Stopped(StopReason::TooLong)) => {
            return move_to_script_thread(thread, request, keys, connection);
        }
        Err(PrepareError::Stopped(_)) => return Outcome::Contended,
    };
    if modules::scripts::must_run_at_home(thread, &prepared.program, prepared.is_read_only) {
        return refuse_elsewhere(connection);
    }
    let profile = prepared.program.profile();
    if thread.may_leave && (profile.is_long() || profile.queries_workers() || must_leave_only_worker(thread, profile)) {
        return move_to_script_thread(thread, request, keys, connection);
    }
    for key in keys.iter_mut() {
        key.is_write = !prepared.is_read_only;
    }
    if connection.lease_failures == 0 {
        connection.client.script_refusal = None;
    }
    let Some(has_marked_slots) = lease_slots(pass, keys, &mut thread.order, many, connection.lease_failures) else {
        connection
            .client
            .script_refusal
            .take_if(|refused| *refused == ScriptRefusal::Token);
        return Outcome::Contended;
    };
    thread.catch_up_with_seen_expiry();
    if let Some(outcome) = check_under_leases(thread, request, keys, many, has_marked_slots, connection) {
        return outcome;
    }
    let impatient = connection.lease_failures >= ANNOUNCE_AFTER_FAILURES;
    let stays_undoable = thread.may_leave && profile.may_run_forever() && profile.is_undoable();
    let writes = !prepared.is_read_only && profile.has_written() && !stays_undoable;
    let has_token = (impatient || writes) && thread.server.scripting.try_take_token();
    if !has_token && let Some(refusal) = find_refusal(pass, many, &prepared, connection) {
        connection.client.script_refusal = Some(refusal);
        many.clear();
        return Outcome::Contended;
    }
    let index_buffer = std::mem::take(&mut thread.script_lease_indices);
    let mut leases = ScriptLeases::in_memory_of(std::mem::take(many), index_buffer);
    let held = ScriptAccess::Leased(&mut leases);
    let outcome = run_under_leases(thread, pass, request, prepared, held, has_token, connection);
    if let Some(mark) = connection.client.kill_mark.as_deref().filter(|_| thread.for_script) {
        thread.server.end_lasting(mark);
    }
    (*many, thread.script_lease_indices) = leases.into_memory();
    outcome
}

/// Evicts keys until memory is below its limit, on a script thread.
fn evict_on_script_thread(thread: &mut ThreadState, pass: &GatePassage<'_>) {
    if thread.for_script && thread.tunables.max_memory != 0 {
        // A worker ensured this before it admitted the command; this may be much later.
        memory_limit::evict_to_limit(thread, pass);
    }
}

/// Returns `true` if a script that may not end is expected to make lasting changes on the only worker, which could
/// serve nobody then.
fn must_leave_only_worker(thread: &ThreadState, profile: &ScriptProfile) -> bool {
    thread.server.workers.len() == 1 && profile.may_run_forever() && profile.has_written() && !profile.is_undoable()
}

/// Makes the checks that need the leases of the declared keys. Returns the outcome if the script must not run, and ends
/// the leases then.
fn check_under_leases(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'_>>,
    has_marked_slots: bool,
    connection: &mut Connection,
) -> Option<Outcome> {
    if thread.for_script && thread.server.clients.directory.was_killed(&connection.client) {
        many.clear();
        return Some(Outcome::Done);
    }
    if thread.moving.is_some() {
        let outcome = check_migrating_slot(thread, request, keys, &HeldLeases::Many(many), connection);
        if let Err(error) = outcome {
            many.clear();
            return Some(reply_redirection(thread, request, keys, connection, error));
        }
    }
    if has_marked_slots && !connection.client.flags.intersects(REPLAYING_CLIENTS) {
        let call = request.call(&connection.input, connection.client.db);
        connection.awaited_thaw = pins::awaited_thaw(&thread.server.keyspace, call, keys);
        if connection.awaited_thaw.is_some() {
            many.clear();
            return Some(Outcome::Contended);
        }
    }
    None
}

/// Returns what a script without the token would be refused, as far as that is known before it runs. `leases` are those
/// of its declared keys.
fn find_refusal<'p>(
    pass: &'p GatePassage<'p>,
    leases: &[Lease<'p>],
    prepared: &PreparedScript,
    connection: &Connection,
) -> Option<ScriptRefusal> {
    let profile = prepared.program.profile();
    if !prepared.is_read_only && profile.has_written() && !profile.is_undoable() {
        return Some(ScriptRefusal::Token);
    }
    let Some(ScriptRefusal::Slot(slot)) = connection.client.script_refusal else {
        return None;
    };
    let is_held = leases.iter().any(|lease| lease.cell() == slot.index());
    let can_lease = || lease_slot(pass, slot.index(), !prepared.is_read_only, connection.lease_failures).is_some();
    (!is_held && !can_lease()).then_some(ScriptRefusal::Slot(slot))
}

/// Puts off a script that calls commands of modules until it runs on the home worker.
fn refuse_elsewhere(connection: &mut Connection) -> Outcome {
    connection.client.script_refusal = Some(ScriptRefusal::Home);
    Outcome::Contended
}

/// Runs a script in exclusive mode, because it calls commands of modules.
pub fn run_exclusive(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    connection: &mut Connection,
    idle: Option<&mut dyn IdleTurns>,
) -> Outcome {
    let Connection {
        client, input, output, ..
    } = &mut *connection;
    client.script_refusal = None;
    let args = request.args(input);
    thread.begin_command(client, request.command);
    let (before, length_before) = (output.mark(), output.len());
    let (start, permissions) = (thread.ticks, (thread.may_leave, thread.may_block));
    (thread.may_leave, thread.may_block) = (false, false);
    thread.unit_time = None;
    thread.is_unit_unfinished &= thread.replays;
    let mut held = HeldLeases::Exclusive(all);
    let run_by_engine = modules::engines::run(thread, request.command, args, &mut held, client, output, idle);
    let failed = match run_by_engine {
        Some(failed) => failed,
        None => run_in_transaction(thread, None, request.command, args, held, client, output),
    };
    if thread.is_unit_unfinished {
        abandon_transaction(thread, connection, before);
    }
    modules::key_events::run_jobs(thread, HeldLeases::Exclusive(all), &mut connection.client);
    let held = HeldLeases::Exclusive(all);
    let unserved = modules::serving::serve_unit(thread, None, held, &mut connection.client);
    (thread.may_leave, thread.may_block) = permissions;
    if thread.is_unit_unfinished && !connection.client.flags.contains(ClientFlags::REPLAY) {
        // Rule 9: no command may see a part of this script once the gate is open.
        lease_all_for_good(all);
    }
    free_removed_values(&mut thread.effects, &thread.server);
    serve::notify_served_clients(thread);
    thread.ticks = start;
    record_script_command(thread, request, connection, length_before, failed);
    complete_script_reply(connection, before, unserved)
}

/// Returns the duration of a run that began at `start_ticks` of the thread's timer and has ended.
fn duration_since(thread: &ThreadState, start_ticks: u64, run: &scripting::ScriptRun) -> Duration {
    match cfg!(feature = "simulated") {
        // The timer of a simulation stands still.
        true => run.elapsed(),
        false => Duration::from_nanos(thread.timer.delta_as_nanos(start_ticks, thread.ticks)),
    }
}

/// Runs a script under the leases of its keys, and ends them.
fn run_under_leases<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    prepared: PreparedScript,
    held: ScriptAccess<'_, 'p>,
    has_token: bool,
    connection: &mut Connection,
) -> Outcome {
    let (start, lookups) = (thread.ticks, (thread.effects.hits, thread.effects.misses));
    let expired_before = thread.effects.expired.len();
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    thread.begin_command(client, request.command);
    let (before, length_before) = (output.mark(), output.len());
    let (may_leave, may_block) = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    let kill_mark = client.kill_mark.as_ref().filter(|_| thread.for_script).cloned();
    let mut runner = Runner::new(thread, Some(pass), held, client, &prepared, may_leave, args);
    (runner.has_token, runner.may_restart, runner.kill_mark) = (has_token, true, kill_mark);
    runner.takes_token_to_wait = connection.lease_failures >= ANNOUNCE_AFTER_FAILURES;
    runner.hold_notifications_back();
    let listed = runner.register();
    let mut reply = Reply::new(&mut output.bytes, client.protocol);
    let ended = runner.run_script(&prepared, args, &mut reply, listed);
    runner.settle_writes(&ended);
    let is_stopped = matches!(ended, ScriptOutcome::Stopped(_));
    // A script that was killed while it stopped for MIGRATE does not start again.
    connection.awaited_thaw = runner.awaited_thaw.filter(|_| is_stopped);
    let (has_token, start_ticks, refusal) = (runner.has_token, runner.start_ticks, runner.refusal);
    let (mut held, run) = runner.end();
    assert!(
        has_token || !run.has_written(),
        "what a script writes lasts only if it has the token or has ended"
    );
    thread.server.scripting.running.end_run(&run, listed);
    if !is_stopped {
        execution_order::note_script(client, args.iter());
    }
    if is_stopped && run.has_written() {
        output.truncate(before);
        (thread.may_leave, thread.may_block) = (may_leave, may_block);
        return abandon_script(thread, held);
    }
    let unserved = serve::serve_unit(thread, Some(pass), held.as_held_leases(), client);
    debug_assert!(
        !thread.effects.log_writer.has_pending_ops() && thread.effects.ready.is_empty(),
        "the effects of a script are recorded before its leases end"
    );
    held.release();
    if has_token {
        thread.server.scripting.release_token();
    }
    (thread.may_leave, thread.may_block) = (may_leave, may_block);
    free_removed_values(&mut thread.effects, &thread.server);
    serve::notify_served_clients(thread);
    let failed = match ended {
        ScriptOutcome::Done { failed, .. } => failed,
        ScriptOutcome::Stopped(stop) => {
            assert!(!run.has_written(), "a script that has written does not start again");
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            // The next run finds these keys again, and publishes that it misses them.
            thread.effects.expired.truncate(expired_before);
            connection.client.script_refusal = refusal;
            return restart_script(thread, request, &prepared, connection, stop);
        }
    };
    if has_token {
        prepared.program.profile().note_run_with_token();
    }
    thread.ticks = start;
    record_script_command(thread, request, connection, length_before, failed);
    let duration = duration_since(thread, start_ticks, &run);
    prepared.program.profile().note_duration(duration);
    keep_ended_run(thread, run);
    complete_script_reply(connection, before, unserved)
}

/// Keeps the memory of a run for the next one. A run on a script thread has a copy of its command, which may be large.
fn keep_ended_run(thread: &mut ThreadState, run: Arc<scripting::ScriptRun>) {
    if !thread.for_script
        && let Some(buffers) = &mut thread.script_buffers
    {
        buffers.ended_run = Some(run);
    }
}

/// Lets a script that was stopped before it had written start again: here, or on a script thread if it runs for too
/// long.
fn restart_script(
    thread: &mut ThreadState,
    request: &Request<'_>,
    prepared: &PreparedScript,
    connection: &mut Connection,
    stop: StopReason,
) -> Outcome {
    if stop != StopReason::TooLong {
        return Outcome::Contended;
    }
    connection.client.script_refusal = None;
    prepared.program.profile().note_long();
    let keys = plan_keys_again(&thread.server, request, connection);
    move_to_script_thread(thread, request, &keys, connection)
}

/// Completes the reply of a script, which begins at `before`. It is withheld until the clients are served that waited
/// for the script's writes.
fn complete_script_reply(
    connection: &mut Connection,
    before: OutputMark,
    unserved: Option<Box<UnservedKeys>>,
) -> Outcome {
    match unserved {
        None => {
            connection.apply_reply_mode(before);
            Outcome::Done
        }
        Some(unserved) => {
            let reply = connection.output.split_off(before);
            Outcome::After(NextStep::AwaitServing(Box::new((*unserved, reply))))
        }
    }
}

/// Ends a script that has written and was stopped by the end of the process (rule 9). Its leases and the token stay.
#[cold]
fn abandon_script(thread: &mut ThreadState, held: ScriptAccess<'_, '_>) -> Outcome {
    abandon_unit(thread);
    if let ScriptAccess::Leased(leases) = held {
        std::mem::forget(std::mem::take(leases));
    }
    Outcome::Contended
}

/// Ends a transaction that was stopped by the end of the process (rule 9). Its reply, which begins at `before`, is
/// discarded. The connection is closed after the earlier replies: the client would take the reply to a later request
/// for that of EXEC.
#[cold]
pub(super) fn abandon_transaction(thread: &mut ThreadState, connection: &mut Connection, before: OutputMark) {
    abandon_unit(thread);
    connection.output.truncate(before);
    // Nobody reads the replies of replaying clients.
    if !connection.client.flags.intersects(REPLAYING_CLIENTS) {
        connection.client.flags.insert(ClientFlags::CLOSE_AFTER_REPLY);
    }
}

/// Discards what an unfinished unit would have propagated and made ready (rule 9).
#[cold]
fn abandon_unit(thread: &mut ThreadState) {
    thread.server.scripting.running.note_unfinished_unit();
    thread.effects.log_writer.clear();
    thread.effects.ready.clear();
    free_removed_values(&mut thread.effects, &thread.server);
}

/// Plans the keys of a request again, for a copy of the request.
fn plan_keys_again(server: &Server, request: &Request<'_>, connection: &Connection) -> Vec<PlannedKey> {
    let mut planned = Vec::new();
    let args = request.args(&connection.input);
    plan_write_keys(&server.keyspace, request.command, &args, &mut planned);
    planned
}

/// Replies with an error without running anything.
fn reply_error(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    error: &CommandError,
) -> Outcome {
    let before = connection.output.mark();
    let length_before = connection.output.len();
    connection.client.last_command = request.command.full_name;
    write_error(thread, error, &mut connection.output.bytes);
    notify_monitors_of_failure(thread, &connection.client, request.args(&connection.input));
    record_script_command(thread, request, connection, length_before, true);
    connection.apply_reply_mode(before);
    Outcome::Done
}

/// Sends monitors a command whose script did not run.
fn notify_monitors_of_failure(thread: &mut ThreadState, client: &Client, args: Args<'_>) {
    if thread.server.keyspace.hooks.current().intersects(Hooks::MONITOR) {
        let line = monitor_line_of_unit(&thread.server, client, args.iter());
        NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_monitor_line(line);
    }
}

/// Records a command that ran a script. `length_before` is the length of the output before its reply.
fn record_script_command(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    length_before: usize,
    failed: bool,
) {
    connection.client.reset_caching();
    let ending = CommandEnd {
        nanoseconds: super::accounting::record_command(thread, request.command, failed),
        request_bytes: request.plan.end - request.plan.start,
        reply_bytes: connection.output.len() - length_before,
    };
    let thresholds = CommandLogThresholds::from_tunables(&thread.tunables);
    let args = request.args(&connection.input);
    record::log_if_exceeded(&thread.server, request.command, thresholds, &ending, || {
        record::logged_command(request.command, args, &connection.client)
    });
    if thread.tunables.slot_stats {
        let request_bytes = slot_stats::request_bytes(&connection.input[request.plan.start..request.plan.end], args);
        let cost = CommandCost::from_command_end(&ending, request_bytes, thread.effects.log_writer.take_measured());
        slot_stats::count_command(thread, &connection.client, request.command, thread.slot, cost);
    }
}

/// Returns the error for a script that would have to wait for scripts that may never end, because they occupy all
/// script threads.
pub(super) fn busy_error_without_thread(thread: &ThreadState) -> Option<CommandError> {
    let running = &thread.server.scripting.running;
    let is_full = running.has_overdue() && running.on_script_threads() >= scripting::SCRIPT_THREADS;
    is_full.then(|| busy_error(&thread.server))?
}

/// Makes a script thread run the script from its start.
#[cold]
fn move_to_script_thread(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    if let Some(error) = busy_error_without_thread(thread) {
        return reply_error(thread, request, connection, &error);
    }
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let command = DetachedCommand::new(request, keys, None, connection, run_leased);
    Outcome::After(NextStep::AwaitScript(Box::new(Box::new(|requester| {
        command.into_script_job(requester)
    }))))
}

// ---- as a part of a transaction ------------------------------------------------------------------------------------

/// Runs a command of a transaction that runs a script. Returns `true` if it failed.
pub fn run_in_transaction<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    command: &'static Command<Binding>,
    args: Args<'_>,
    held: HeldLeases<'_, 'p>,
    client: &mut Client,
    output: &mut Output,
) -> bool {
    let mut held = held;
    if let Some(failed) = modules::engines::run(thread, command, args, &mut held, client, output, None) {
        return failed;
    }
    let before = output.mark();
    let held = match held {
        HeldLeases::Script(leases) => ScriptAccess::Leased(leases),
        HeldLeases::Exclusive(all) => ScriptAccess::Everything(all),
        HeldLeases::Nothing | HeldLeases::One(_) | HeldLeases::Many(_) | HeldLeases::Private(_) => {
            unreachable!("a transaction with scripts can take further leases")
        }
    };
    let note_held_slots = |run: &ScriptRun| held.note_held_slots(run);
    let is_primary = client.flags.contains(ClientFlags::PRIMARY);
    let prepared = match prepare_script(thread, command, args, is_primary, &note_held_slots) {
        Ok(prepared) => prepared,
        Err(error) => {
            thread.is_unit_unfinished |= matches!(error, PrepareError::Stopped(_));
            write_error(thread, &error.into_error(), &mut output.bytes);
            notify_monitors_of_failure(thread, client, args);
            return true;
        }
    };
    let start = thread.ticks;
    debug_assert!(
        !thread.may_leave && !thread.may_block,
        "a script in a transaction replies at once"
    );
    let is_on_worker = !thread.for_script && !client.flags.intersects(ClientFlags::PRIMARY.union(ClientFlags::REPLAY));
    let unit_time = thread.time_of_unit();
    let mut runner = Runner::new(thread, pass, held, client, &prepared, false, args);
    runner.shown_time = Some(unit_time);
    // The transaction holds the token, so no other script does.
    runner.has_token = true;
    if is_on_worker {
        // No client might reach this worker, or any worker in exclusive mode, to kill the script.
        runner.run.end_when_overdue();
    }
    let listed = runner.register();
    let ended = runner.run_script(
        &prepared,
        args,
        &mut Reply::new(&mut output.bytes, client.protocol),
        listed,
    );
    let (_, run) = runner.end();
    thread.server.scripting.running.end_run(&run, listed);
    thread.ticks = start;
    prepared.program.profile().note_duration(run.elapsed());
    match ended {
        ScriptOutcome::Done { failed, .. } => failed,
        ScriptOutcome::Stopped(_) => {
            thread.is_unit_unfinished = true;
            output.truncate(before);
            let error = CommandError::constant("ERR The server is about to end");
            write_error(thread, &error, &mut output.bytes);
            true
        }
    }
}

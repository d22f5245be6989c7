//! EXEC: runs the commands that were queued after MULTI ([`super::queueing`]).
//!
//! ```text
//!   MULTI      client.transaction is created
//!   SET k v    admitted as if it ran, then copied with its keys; a refusal makes EXEC fail
//!   EXEC       leases of all slots of all keys, and of all watched keys: all or none
//!              a watched key changed or expired?  ── yes ──▶ nothing runs
//!              the watches are removed
//!              each command runs under those leases, in order
//!              blocked clients are served, once
//!              the leases end
//! ```
//!
//! 1. From the check of the watches to the last command all leases are held. So no client sees a part of a transaction,
//!    and no watched key changes before it.
//! 2. If a lease is refused, nothing has happened. The connection is put off and EXEC starts over.
//! 3. A command that accesses or counts keys that are in no plan (SCAN, DBSIZE, SORT with patterns), or that needs the
//!    whole keyspace anyway, makes EXEC run in exclusive mode. So no command of a transaction ever needs a lease that
//!    the transaction does not hold, and none is refused half-way.
//! 4. Commands of a transaction neither leave the worker nor block: they reply immediately. A transaction with a script
//!    that may never end leaves its worker as a whole ([`super::exec_detached`]).
//! 5. A transaction with commands that report on all clients (CLIENT LIST, INFO) runs in exclusive mode, after
//!    snapshots of all clients were collected ([`NextStep::CollectClients`]). So its commands see the state at their
//!    position.
//! 6. A transaction that changes the configuration begins that change before it takes leases, or starts over. The
//!    thread of another change (CONFIG SET appendonly) may wait for exclusive mode, and would wait forever for a worker
//!    that waits for it within the gate.
//! 7. The code of libraries that a transaction loads runs on background threads, before EXEC takes its leases
//!    ([`crate::net::library_loads`]): it may take long. If it also calls their functions, and the code is too long for
//!    a worker, a script thread runs that code and then EXEC ([`super::exec_detached`]).
//! 8. Work for background threads (MIGRATE, changes of the cluster) is done after the leases. Its reply keeps its
//!    position: the output is split there, and sent once every part is complete ([`NextStep::TransactionParts`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_reactor::{Output, OutputMark};
use weft_resp::{Args, Reply};

use crate::clients_waiting::watch::Watches;
use crate::commands::context::{Binding, CommandResult, Context, HandlerMode, NextStep};
use crate::commands::error::CommandError;
use crate::commands::permission::{self, CommandPermission};
use crate::commands::server::time;
use crate::keyspace::access::{HeldLeases, Lease, ScriptLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage, Keyspace, lease_all_for_good};
use crate::net::client::{BufferFigures, Client, ClientFlags, ScriptRefusal};
use crate::net::connection::Connection;
use crate::net::transaction::{QueuedCommand, Transaction};
use crate::notify::messages::NotificationSender;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::state::{Server, UnservedKeys, close_killed_clients};
use weft_acl::DenialContext;
use weft_command_table::registry::Command;

use super::accounting::{CommandEnd, record_command, write_error};
use super::admit::REPLAYING_CLIENTS;
use super::exec_detached;
use super::exec_queries::answer_query;
use super::execute::{apply_effects, reply_redirection};
use super::execution_order;
use super::expired_sources;
use super::hot_keys;
use super::modules;
use super::modules::command_results;
use super::notifications::{self, Caller};
use super::pins::{self, PinWait, PlannedChanges};
use super::propagate;
use super::queueing::{end_transaction, note_redirection};
use super::record::{self, CommandLogThresholds};
use super::redirect;
use super::request::{CommandCall, Outcome, Request};
use super::script;
use super::slot_stats::{self, CommandCost};
use super::thread::{LeasedCall, ThreadState};
use super::watches::{has_expired_watch, planned_key_of_watch, remove_own_watches};

/// Returns `true` if the EXEC of a client needs snapshots of all clients first.
pub fn needs_client_snapshots(thread: &ThreadState, client: &Client) -> bool {
    let unknown = |transaction: &Transaction| transaction.reports_clients && transaction.client_snapshots.is_none();
    // Other threads cannot wait for snapshots.
    thread.may_leave && exec_refusal(client).is_none() && client.transaction.as_deref().is_some_and(unknown)
}

/// Discards the snapshots because EXEC must wait: they will be outdated when it runs.
pub fn discard_client_snapshots(client: &mut Client) {
    if let Some(transaction) = &mut client.transaction {
        transaction.client_snapshots = None;
    }
}

/// Runs EXEC under the leases of all keys that it needs.
pub fn exec_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    lease_buffer: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let server = server_to_configure(thread, &connection.client);
    match server.as_ref().map(|server| server.config.try_begin_change()) {
        Some(None) => Outcome::Contended,
        // The change ends after the transaction.
        Some(Some(_change)) => exec_with_leases(thread, pass, request, lease_buffer, connection),
        None => exec_with_leases(thread, pass, request, lease_buffer, connection),
    }
}

/// Returns the server if the client's transaction changes the configuration.
fn server_to_configure(thread: &ThreadState, client: &Client) -> Option<Arc<Server>> {
    let transaction = client.transaction.as_deref();
    let changes = transaction.is_some_and(|transaction| transaction.changes_config);
    changes.then(|| thread.server.clone())
}

fn exec_with_leases<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    lease_buffer: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let start = thread.ticks;
    if let Some(refusal) = exec_refusal(&connection.client) {
        return abort_transaction(thread, request, connection, start, refusal);
    }
    let (failures, may_copy) = (connection.lease_failures, connection.was_refused_before_pause);
    let client = &mut connection.client;
    let Some(transaction) = client.transaction.as_deref_mut() else {
        unreachable!("EXEC runs here only inside a transaction");
    };
    add_watched_keys(transaction, client.watches.as_deref());
    let scripts = transaction.runs_script;
    if scripts {
        // Their writes in a slot are not known in advance, and a read lease cannot be upgraded.
        transaction.keys.iter_mut().for_each(|key| key.is_write = true);
        let has_token = thread.server.scripting.try_take_token();
        client.script_refusal = (!has_token).then_some(ScriptRefusal::Token);
        if !has_token {
            return Outcome::Contended;
        }
    }
    let leased = match expired_sources::lease_transaction(thread, pass, transaction, lease_buffer, failures) {
        Some(true) => {
            let wait = find_wait(&thread.server, transaction, lease_buffer, client.flags, may_copy);
            connection.awaited_thaw = wait.and_then(PinWait::awaited_thaw);
            wait.is_none()
        }
        Some(false) => true,
        None => false,
    };
    let outcome = match (leased, scripts) {
        (false, _) => Outcome::Contended,
        (true, false) => exec_commands(
            thread,
            Some(pass),
            request,
            HeldLeases::Many(lease_buffer),
            connection,
            start,
        ),
        (true, true) => {
            let mut leases = ScriptLeases::new(std::mem::take(lease_buffer));
            let outcome = exec_commands(
                thread,
                Some(pass),
                request,
                HeldLeases::Script(&mut leases),
                connection,
                start,
            );
            if thread.is_unit_unfinished {
                // Rule 9 of scripts: no command may see a part of this transaction.
                std::mem::forget(leases);
            }
            outcome
        }
    };
    lease_buffer.clear();
    if scripts && !thread.is_unit_unfinished {
        thread.server.scripting.release_token();
    }
    debug_assert!(
        leased || connection.client.transaction.is_some(),
        "EXEC that was refused a lease has had no effect"
    );
    if leased {
        apply_effects(thread);
    }
    outcome
}

/// Appends the watched keys to those of the commands.
fn add_watched_keys(transaction: &mut Transaction, watches: Option<&Watches>) {
    debug_assert!(
        transaction.command_key_count() <= transaction.keys.len(),
        "the keys of a transaction begin with those of its commands"
    );
    transaction.keys.truncate(transaction.command_key_count());
    if let Some(watches) = watches {
        let keys = watches.keys.iter().map(|watch| planned_key_of_watch(watch));
        transaction.keys.extend(keys);
    }
}

/// Runs EXEC with exclusive access to the keyspace.
pub fn exec_exclusive(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    connection: &mut Connection,
) -> Outcome {
    let server = thread.server.clone();
    let metrics = &server.stats.metrics;
    metrics.add(thread.thread_index, Counter::ExclusiveCommands, 1);
    connection.awaited_thaw = awaited_thaw(&server, &connection.client, request.command);
    if connection.awaited_thaw.is_some() {
        discard_client_snapshots(&mut connection.client);
        return Outcome::Contended;
    }
    let change = server_to_configure(thread, &connection.client).map(|_| server.config.try_begin_change());
    if matches!(change, Some(None)) {
        discard_client_snapshots(&mut connection.client);
        return Outcome::Contended;
    }
    thread.catch_up_with_seen_expiry();
    let start = thread.ticks;
    let keep_back = |keeps_back| {
        if let Some(cluster) = &server.cluster {
            cluster.hold_published(keeps_back);
        }
    };
    keep_back(true);
    let outcome = exec_commands(thread, None, request, HeldLeases::Exclusive(all), connection, start);
    if thread.is_unit_unfinished && !connection.client.flags.contains(ClientFlags::REPLAY) {
        // Rule 9 of scripts: no command may see a part of this transaction once the gate is open.
        lease_all_for_good(all);
    }
    apply_effects(thread);
    keep_back(false);
    outcome
}

/// Returns what EXEC has to wait for: the end of a MIGRATE that sends one of its keys, or large values that are pinned
/// or not saved. Every such value is registered before this returns, so that all of them become free.
#[cold]
pub(super) fn find_wait(
    server: &Server,
    transaction: &Transaction,
    leases: &mut Vec<Lease<'_>>,
    flags: ClientFlags,
    may_copy: bool,
) -> Option<PinWait> {
    let is_replay = flags.intersects(REPLAYING_CLIENTS);
    if !is_replay && let Some(thaws) = transaction_thaw(&server.keyspace, transaction) {
        return Some(PinWait::Thaw(thaws));
    }
    let held = HeldLeases::Many(leases);
    let commands = crate::commands::registry().commands();
    let mut changes = PlannedChanges::new(is_replay, may_copy);
    for queued in &transaction.commands {
        if let Some(command) = commands.get(queued.command) {
            let call = CommandCall {
                command,
                args: transaction.args(queued),
                db: queued.db,
            };
            changes.examine(&server.keyspace, call, transaction.keys_of(queued), &held);
        }
    }
    changes.must_wait(&server.keyspace).then_some(PinWait::Values)
}

/// Returns the value of `PinnedSlots::thaws` that has to change before EXEC can write its keys, if the command is EXEC
/// and MIGRATE is sending one of them. The stream of a primary and a file that is loaded do not wait. Without leases of
/// the keys the answer is only a hint.
pub fn awaited_thaw(server: &Server, client: &Client, command: &Command<Binding>) -> Option<u64> {
    if !server.keyspace.pinned.has_frozen_keys() {
        return None;
    }
    let may_wait = command.full_name == "exec" && !client.flags.intersects(REPLAYING_CLIENTS);
    if !may_wait || exec_refusal(client).is_some() {
        return None;
    }
    let transaction = client.transaction.as_deref()?;
    transaction_thaw(&server.keyspace, transaction)
}

fn transaction_thaw(keyspace: &Keyspace, transaction: &Transaction) -> Option<u64> {
    // Read first: if a key is found frozen, this value has yet to change.
    let thaws = keyspace.pinned.thaws();
    if !keyspace.pinned.has_frozen_keys() {
        return None;
    }
    if transaction.has_uncertain_databases && transaction.may_write {
        return Some(thaws);
    }
    let commands = crate::commands::registry().commands();
    transaction.commands.iter().find_map(|queued| {
        let command = commands.get(queued.command)?;
        let call = CommandCall {
            command,
            args: transaction.args(queued),
            db: queued.db,
        };
        pins::awaited_thaw(keyspace, call, transaction.keys_of(queued))
    })
}

/// The reason for which EXEC executes nothing.
#[derive(Clone, Copy)]
pub(super) enum ExecRefusal {
    QueueingFailed,
    WatchedKeyChanged,
}

pub(super) fn exec_refusal(client: &Client) -> Option<ExecRefusal> {
    if client
        .transaction
        .as_ref()
        .is_some_and(|transaction| transaction.is_refused)
    {
        Some(ExecRefusal::QueueingFailed)
    } else if client.is_dirty() {
        Some(ExecRefusal::WatchedKeyChanged)
    } else {
        None
    }
}

/// Ends a transaction without running it.
pub(super) fn abort_transaction(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    start: u64,
    refusal: ExecRefusal,
) -> Outcome {
    end_transaction(thread, &mut connection.client);
    let before = connection.output.mark();
    let failed = match refusal {
        ExecRefusal::QueueingFailed => {
            let error = CommandError::constant("EXECABORT Transaction discarded because of previous errors.");
            write_error(thread, &error, &mut connection.output.bytes);
            true
        }
        ExecRefusal::WatchedKeyChanged => {
            Reply::new(&mut connection.output.bytes, connection.client.protocol).null_array();
            false
        }
    };
    record_exec(thread, request, connection, start, failed);
    connection.apply_reply_mode(before);
    Outcome::Done
}

/// Records EXEC itself; its time is that of all its commands, and of the code of their libraries. Returns this time in
/// nanoseconds.
fn record_exec(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    start: u64,
    failed: bool,
) -> u64 {
    connection.client.last_command = request.command.full_name;
    connection.client.reset_caching();
    if thread.server.keyspace.hooks.current().intersects(Hooks::MONITOR) {
        let word = connection.input[request.plan.start..request.plan.end].to_vec();
        let ranges = request.plan.ranges_of(request.ranges);
        let word = std::iter::once(Args::new(&word, ranges).argument(0));
        let line = notifications::monitor_line_of_unit(&thread.server, &connection.client, word);
        NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_monitor_line(line);
    }
    thread.ticks = match connection.client.library_loads.take() {
        Some(loads) => thread.ticks_before(start, loads.total_time()),
        None => start,
    };
    record_command(thread, request.command, failed)
}

pub(super) fn exec_commands<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    mut held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
    start: u64,
) -> Outcome {
    if thread.for_script && !exec_detached::try_begin_lasting(thread, &connection.client) {
        // Under the leases: no other client has seen yet that the transaction does not run.
        end_transaction(thread, &mut connection.client);
        return Outcome::Done;
    }
    let watches = connection.client.watches.as_deref();
    let expired = watches.is_some_and(|watches| has_expired_watch(watches, &mut held, thread.now_ms));
    let refusal = exec_refusal(&connection.client).or(expired.then_some(ExecRefusal::WatchedKeyChanged));
    if let Some(refusal) = refusal {
        return abort_transaction(thread, request, connection, start, refusal);
    }
    if thread.moving.is_some()
        && let Some(transaction) = connection.client.transaction.as_deref()
        && let Err(error) = redirect::check_transaction(thread, &connection.client, transaction, &held)
    {
        note_redirection(thread, &mut connection.client, request.command);
        return reply_redirection(thread, request, &[], connection, error);
    }
    if let Some(watches) = connection.client.watches.take() {
        remove_own_watches(&watches, &mut held, &thread.server);
    }
    let Some(mut transaction) = end_transaction(thread, &mut connection.client) else {
        unreachable!("EXEC runs here only inside a transaction");
    };
    thread.client_snapshots = transaction.client_snapshots.take();
    connection.client.library_loads = transaction.library_loads.take();
    let (may_leave, may_block) = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    let slot_stats = thread.tunables.slot_stats;
    thread.slot = slot_stats.then(|| slot_stats::transaction_slot(&transaction)).flatten();
    let before = connection.output.mark();
    let length_before = connection.output.len();
    thread.unit_time = None;
    // Before this one, the end of the process may have stopped another transaction on this worker.
    thread.is_unit_unfinished &= thread.replays;
    let mut parts = run_queued_commands(thread, pass, &transaction, &mut held, connection);
    debug_assert!(
        connection.client.transaction.is_none() && !connection.client.flags.contains(ClientFlags::MULTI),
        "no command of a transaction begins another one"
    );
    debug_assert_eq!(
        (thread.may_leave, thread.may_block),
        (false, false),
        "a command of a transaction neither leaves the thread nor blocks"
    );
    if let Some(client_snapshots) = thread.client_snapshots.take() {
        let closed = close_killed_clients(&thread.server, &client_snapshots);
        parts.extend(closed.map(|step| (connection.output.mark(), step)));
    }
    if thread.is_unit_unfinished {
        script::abandon_transaction(thread, connection, before);
        parts.clear();
    }
    modules::key_events::run_jobs(thread, held.reborrow(), &mut connection.client);
    let unserved = modules::serving::serve_unit(thread, pass, held, &mut connection.client);
    (thread.may_leave, thread.may_block) = (may_leave, may_block);
    let nanoseconds = record_exec(thread, request, connection, start, false);
    if slot_stats {
        let args = request.args(&connection.input);
        let bytes = &connection.input[request.plan.start..request.plan.end];
        let cost = CommandCost {
            nanoseconds,
            request_bytes: slot_stats::request_bytes(bytes, args),
            reply_bytes: connection.output.len() - length_before,
            propagated_bytes: thread.effects.log_writer.take_measured(),
        };
        slot_stats::count_exec(thread, &connection.client, request.command, cost);
    }
    build_outcome(thread, connection, before, parts, unserved)
}

/// Borrows the leases of a transaction for one of its commands.
fn reborrow<'r, 'p>(held: &'r mut HeldLeases<'_, 'p>) -> HeldLeases<'r, 'p> {
    match held {
        HeldLeases::Many(leases) => HeldLeases::Many(leases),
        HeldLeases::Script(leases) => HeldLeases::Script(leases),
        HeldLeases::Exclusive(all) => HeldLeases::Exclusive(all),
        HeldLeases::One(_) | HeldLeases::Private(_) | HeldLeases::Nothing => HeldLeases::Nothing,
    }
}

/// Runs every command. Returns the positions in the output where parts are missing, and the steps that produce them.
fn run_queued_commands<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    transaction: &Transaction,
    held: &mut HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Vec<(OutputMark, NextStep)> {
    let (mut parts, mut last) = (Vec::new(), None);
    let protocol = connection.client.protocol;
    let length_before = connection.output.len();
    Reply::new(&mut connection.output.bytes, protocol).array(transaction.commands.len());
    for queued in &transaction.commands {
        let ticks_before = thread.ticks;
        let dirty = thread.effects.dirty;
        thread.recorded_end = None;
        let next_step = run_queued_command(thread, pass, transaction, queued, reborrow(held), connection);
        if let Some(end) = thread.recorded_end.take() {
            let (command, _) = resolve_queued(queued);
            let changes = thread.effects.dirty.saturating_sub(dirty);
            let call = (command, transaction.args(queued));
            command_results::deliver_within(thread, reborrow(held), &mut connection.client, call, end, changes);
        }
        if thread.is_unit_unfinished {
            break;
        }
        if thread.hot_key_sampler.is_on() {
            hot_keys::sample_queued_keys(thread, transaction, queued, connection.client.db, ticks_before);
        }
        if thread.tunables.slot_stats {
            let so_far = connection.output.len() - length_before;
            slot_stats::count_partial_reply(thread, &connection.client, so_far);
        }
        if !matches!(next_step, NextStep::Reply) {
            parts.push((connection.output.mark(), next_step));
        }
        if last.is_none() && connection.client.flags.contains(ClientFlags::CLOSE_AFTER_REPLY) {
            last = Some((connection.output.mark(), parts.len()));
        }
    }
    if let Some((mark, count)) = last
        && parts.len() == count
    {
        // A client that has ended its own connection gets no reply to later commands.
        connection.output.truncate(mark);
    }
    parts
}

/// Runs one command of a transaction.
fn run_queued_command<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    transaction: &Transaction,
    queued: &QueuedCommand,
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> NextStep {
    let (command, binding) = resolve_queued(queued);
    let binding = modules::binding_in_transaction(transaction, command, binding);
    let buffers = match binding.queries_workers {
        true => connection.buffers(0),
        false => BufferFigures::default(),
    };
    let Connection { client, output, .. } = connection;
    let args = transaction.args(queued);
    let (before, length_before) = (output.mark(), output.len());
    thread.begin_command(client, command);
    if let Err(error) = check_permission_again(thread, client, command, args) {
        write_error(thread, &error, &mut output.bytes);
        return NextStep::Reply;
    }
    if matches!(binding.mode, HandlerMode::Script | HandlerMode::Module) {
        let keys = transaction.keys_of(queued);
        let failed = match binding.mode {
            HandlerMode::Script => script::run_in_transaction(thread, pass, command, args, held, client, output),
            _ => modules::command::run_in_transaction(thread, (command, binding), args, keys, held, client, output),
        };
        let length = output.len() - length_before;
        record_queued_command(thread, command, queued, args, client, failed, length);
        return NextStep::Reply;
    }
    let keys = transaction.keys_of(queued);
    let (result, next_step) = call_handler(thread, pass, (command, binding), (args, keys), held, client, output);
    let failed = result.is_err();
    if let Err(error) = result {
        output.truncate(before);
        write_error(thread, &error, &mut output.bytes);
    }
    let next_step = match next_step {
        NextStep::QueryWorkers(query) => {
            output.truncate(before);
            output
                .bytes
                .extend(answer_query(thread, transaction, *query, client, buffers));
            NextStep::Reply
        }
        other => other,
    };
    if let NextStep::Background(work) = next_step {
        output.truncate(before);
        thread.ticks = thread.timer.raw();
        // The time of work after the leases does not count as the time of EXEC either.
        let work = record::with_command_accounting(command, args, client, queued.request_bytes(), None, *work);
        return NextStep::Background(Box::new(work));
    }
    let length = output.len() - length_before;
    record_queued_command(thread, command, queued, args, client, failed, length);
    into_exec_step(next_step, command)
}

/// Calls the handler of a command, propagates the command, and queues its notifications. Returns its result and the
/// next step.
#[inline]
fn call_handler<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    (command, binding): (&'static Command<Binding>, Binding),
    (args, planned): (Args<'_>, &[PlannedKey]),
    mut held: HeldLeases<'_, 'p>,
    client: &mut Client,
    output: &mut Output,
) -> (CommandResult, NextStep) {
    debug_assert!(held.covers(planned), "the leases cover the keys");
    let call = LeasedCall {
        command,
        args,
        planned,
        held: held.reborrow(),
        pass,
    };
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let dirty = thread.effects.dirty;
    let deletes_expired = expired_sources::must_delete_expired(thread, command);
    let shown_time = (command.full_name == "time").then(|| thread.time_of_unit());
    let mut context = thread.split_frame().0.context(call, client, output);
    if deletes_expired {
        context.delete_expired_sources();
    }
    let (result, next_step) = run_handler(binding, &mut context, shown_time);
    execution_order::note_call(context.client, &next_step, args.iter());
    if modules::key_events::are_due(&context.keys) {
        drop(context);
        modules::key_events::deliver_in_transaction(thread, held.reborrow(), client);
        let call = LeasedCall {
            command,
            args,
            planned,
            held,
            pass,
        };
        context = thread.split_frame().0.context(call, client, output);
    }
    publish_call(&mut context, &next_step, dirty);
    (result, next_step)
}

/// Propagates a command that has run, and queues its notifications. `dirty` is the number of changes before it.
#[inline]
fn publish_call(context: &mut Context<'_, '_>, next_step: &NextStep, dirty: u64) {
    if context.keys.effects.is_logging() {
        propagate::propagate_call(&mut context.keys, next_step, dirty);
    }
    if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
        notifications::queue_notifications(context, next_step.is_restarted(), Caller::Transaction);
    }
}

/// Runs the handler of a command. Returns its result and the next step. `shown_time` is the time of the transaction if
/// the command is TIME.
fn run_handler(
    binding: Binding,
    context: &mut Context<'_, '_>,
    shown_time: Option<Duration>,
) -> (CommandResult, NextStep) {
    let result = match shown_time {
        Some(time) => time::show(context, time),
        None => (binding.handler)(context),
    };
    let next_step = std::mem::take(&mut context.next_step);
    debug_assert!(
        !next_step.is_restarted(),
        "'{}' needs a lease that its transaction does not hold",
        context.command.full_name
    );
    match next_step.is_restarted() {
        true => (Err(restart_error(context.command)), NextStep::Reply),
        false => (result, next_step),
    }
}

/// Returns the error of a command that would have to run again. It has changed nothing, but earlier commands of the
/// transaction may have taken effect, so the transaction goes on without it.
#[cold]
fn restart_error(command: &Command<Binding>) -> CommandError {
    log::warning!(
        "'{}' was refused in a transaction that does not hold all leases that it needs",
        command.full_name
    );
    CommandError::constant("TRYAGAIN Another client is changing data that the command needs")
}

/// Returns a queued command and its handler.
fn resolve_queued(queued: &QueuedCommand) -> (&'static Command<Binding>, Binding) {
    let Some(command) = crate::commands::registry().commands().get(queued.command) else {
        unreachable!("a queued command is one of the registry's");
    };
    let Some(binding) = command.handler else {
        unreachable!("a queued command has a handler");
    };
    (command, binding)
}

/// Returns the next step of a command in a transaction. Commands with other steps cannot be queued.
fn into_exec_step(next_step: NextStep, command: &Command<Binding>) -> NextStep {
    match next_step {
        NextStep::Reply | NextStep::ReplyAt(..) => next_step,
        NextStep::Background(_)
        | NextStep::QueryWorkers(_)
        | NextStep::CollectClients
        | NextStep::PrepareLibraries
        | NextStep::Defer
        | NextStep::RunInBackground(_)
        | NextStep::AwaitBackground(_)
        | NextStep::AwaitSnapshotCommand(_)
        | NextStep::AwaitScript(_)
        | NextStep::RetryAsWriter
        | NextStep::Block(_)
        | NextStep::BlockByModule(_)
        | NextStep::AwaitLog(_)
        | NextStep::TransactionParts(..)
        | NextStep::Sync(_)
        | NextStep::TakeConnection(_)
        | NextStep::AwaitReplicas(_)
        | NextStep::AwaitServing(..) => unreachable!("'{}' does not fit into a transaction", command.full_name),
    }
}

/// Checks that the client's user may still run a command of its transaction. Rules may have changed since it was
/// queued, even by another command of the transaction.
///
/// # Errors
/// If the user lacks the permission.
#[inline]
fn check_permission_again(
    thread: &mut ThreadState,
    client: &mut Client,
    command: &'static Command<Binding>,
    args: Args<'_>,
) -> Result<(), CommandError> {
    thread.acl_version = thread.server.acl.version();
    if client.login.is_unrestricted(thread.acl_version) {
        return Ok(());
    }
    let server = &thread.server;
    // A client whose user is deleted is closed later; until then its last permissions hold.
    client.login.refresh(&server.acl);
    let permission = CommandPermission {
        command,
        args: &args,
        db: client.db,
        databases: permission::database_count(server),
    };
    permission::check_permission(client.login.rules(), &permission).map_err(|denial| {
        let refusal = permission::denied_access(client, DenialContext::Transaction, command, &args, denial);
        client.last_command = "exec";
        let line = client.list_line(thread.now_ms, BufferFigures::default());
        permission::log_denial(server, thread.thread_index, thread.now_ms, refusal, line);
        permission::exec_denial_error(denial.reason)
    })
}

/// Records a command of a transaction.
fn record_queued_command(
    thread: &mut ThreadState,
    command: &'static Command<Binding>,
    queued: &QueuedCommand,
    args: Args<'_>,
    client: &mut Client,
    failed: bool,
    reply_bytes: usize,
) {
    if let Some(loads) = &mut client.library_loads {
        // The code of its libraries has run before EXEC.
        thread.ticks = thread.ticks_before(thread.ticks, loads.take_time());
    }
    let ending = CommandEnd {
        nanoseconds: record_command(thread, command, failed),
        request_bytes: queued.request_bytes(),
        reply_bytes,
    };
    let thresholds = CommandLogThresholds::from_tunables(&thread.tunables);
    record::log_if_exceeded(&thread.server, command, thresholds, &ending, || {
        record::logged_command(command, args, client)
    });
}

/// Ends EXEC: collects the steps that precede the client's reply.
fn build_outcome(
    thread: &mut ThreadState,
    connection: &mut Connection,
    output_start: OutputMark,
    parts: Vec<(OutputMark, NextStep)>,
    unserved: Option<Box<UnservedKeys>>,
) -> Outcome {
    if parts.is_empty() {
        return match unserved {
            None => {
                connection.apply_reply_mode(output_start);
                Outcome::Done
            }
            Some(unserved) => {
                let reply = connection.output.split_off(output_start);
                Outcome::After(NextStep::AwaitServing(Box::new((*unserved, reply))))
            }
        };
    }
    thread.unserved.extend(unserved.map(|unserved| *unserved));
    let mut pieces: VecDeque<(NextStep, Output)> = VecDeque::with_capacity(parts.len());
    for (mark, after) in parts.into_iter().rev() {
        pieces.push_front((after, connection.output.split_off(mark)));
    }
    let done = connection.output.split_off(output_start);
    Outcome::After(NextStep::TransactionParts(Box::new((done, pieces))))
}

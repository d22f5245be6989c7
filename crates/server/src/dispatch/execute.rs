//! Executes one plan whose leases are held: handler, effects, counters.

use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::dispatch::command_events::RecordedEnd;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::Client;
use crate::net::connection::Connection;
use crate::state::{DeferredReply, ModuleWait, UnservedKeys};
use weft_command_table::spec::CommandFlags;
use weft_reactor::OutputMark;

use super::accounting::{CommandEnd, record_command, write_error};
use super::admit::WRITE_FLAGS;
use super::effects::free_removed_values;
use super::hot_keys;
use super::notifications::{Caller, queue_notifications};
use super::record::{self, CommandLogThresholds};
use super::request::{Outcome, Request};
use super::thread::{LeasedCall, ThreadState};
use super::{execution_order, modules, propagate, redirect, serve, slot_stats};

/// The commands without one of these flags change nothing.
const CHANGING_FLAGS: CommandFlags = WRITE_FLAGS.union(CommandFlags::ADMIN);

/// Frees memory and replies to served clients after the leases of a command have ended. In exclusive mode it runs just
/// before that mode ends.
#[inline]
pub(super) fn apply_effects(thread: &mut ThreadState) {
    debug_assert!(
        !thread.effects.log_writer.has_pending_ops(),
        "every op of a command has a sequence number when its leases end"
    );
    debug_assert!(
        thread.effects.ready.is_empty(),
        "the clients that wait for the keys of a command are served, or put off, before its leases end"
    );
    free_removed_values(&mut thread.effects, &thread.server);
    serve::notify_served_clients(thread);
}

/// Checks which keys of a command are on this node, if its slot is migrating.
#[cold]
pub(super) fn check_migrating_slot(
    thread: &ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> Result<(), CommandError> {
    let (Some(moving), Some(view)) = (thread.moving, &thread.view) else {
        return Ok(());
    };
    let args = request.args(&connection.input);
    let keys = keys.iter().map(|key| (args, connection.client.db, key));
    redirect::check_migrating_keys(thread, view, &connection.client, moving, held, keys)
}

/// Replies with a redirection or refusal to a command that already holds its leases.
#[cold]
pub(super) fn reply_redirection(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    error: CommandError,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.thread_index, request.command.id as usize);
    slot_stats::book_refused(thread, request, keys, connection);
    connection.client.last_command = request.command.full_name;
    let before = connection.output.mark();
    write_error(thread, &error, &mut connection.output.bytes);
    connection.apply_reply_mode(before);
    Outcome::Done
}

/// Runs a plan's handler under the leases. The caller runs [`apply_effects`] after the leases have ended.
#[inline]
pub(super) fn run_handler<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    run_with_handler(thread, pass, request, keys, held, connection, request.binding.handler)
}

/// Deletes the expired keys that the command would read, then runs its handler; see [`run_handler`].
#[cold]
pub(super) fn delete_expired_and_run<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    let handler = request.binding.handler;
    run_with_handler(thread, pass, request, keys, held, connection, |context| {
        context.delete_expired_sources();
        handler(context)
    })
}

/// The state after a handler has run.
struct HandlerEnd {
    result: CommandResult,
    next_step: NextStep,
    /// Ready keys whose waiting clients could not be served under the leases.
    unserved: Option<Box<UnservedKeys>>,
}

/// Runs `handler` in place of the plan's own handler; see [`run_handler`].
#[inline]
pub(super) fn run_with_handler<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
    handler: impl FnOnce(&mut Context<'_, 'p>) -> CommandResult,
) -> Outcome {
    let command = request.command;
    let before = connection.output.mark();
    let length_before = connection.output.len();
    let lookups = (thread.effects.hits, thread.effects.misses);
    let expired_before = thread.effects.expired.len();
    let end = call_handler(thread, pass, request, keys, held, connection, handler);
    let HandlerEnd {
        result,
        next_step,
        unserved,
    } = end;
    let failed = result.is_err();
    debug_assert!(
        connection.output.len() >= length_before,
        "a handler does not take back the replies of earlier commands"
    );
    if let Err(error) = result {
        connection.output.truncate(before);
        write_error(thread, &error, &mut connection.output.bytes);
        thread.note_failure(command.full_name);
    }
    if next_step.is_unfinished() {
        if let NextStep::BlockByModule(wait) = next_step {
            thread.unserved.extend(unserved.map(|unserved| *unserved));
            return leave_blocked_by_module(thread, request, connection, wait, (before, failed));
        }
        if !matches!(next_step, NextStep::Background(_) | NextStep::Block(_)) {
            // The run that produces the reply is the one that is counted.
            connection.output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            thread.effects.withdraw_misses(expired_before);
        }
        return leave_unfinished(thread, request, keys, connection, next_step);
    }
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    let ending = CommandEnd {
        nanoseconds: record_command(thread, command, failed),
        request_bytes: request.plan.end - request.plan.start,
        reply_bytes: output.len() - length_before,
    };
    let thresholds = CommandLogThresholds::from_tunables(&thread.tunables);
    record::log_if_exceeded(&thread.server, command, thresholds, &ending, || {
        record::logged_command(command, args, client)
    });
    if thread.counts_keys && must_count_keys(thread, keys.len()) {
        count_keys(thread, request, keys, client, input, &ending);
    }
    match next_step {
        NextStep::Reply => {
            // There is nothing to drop. The call that finds this out would cost more than everything else here.
            std::mem::forget(next_step);
            let Some(unserved) = unserved else {
                connection.apply_reply_mode(before);
                return Outcome::Done;
            };
            let reply = connection.output.split_off(before);
            Outcome::After(NextStep::AwaitServing(Box::new((*unserved, reply))))
        }
        other => {
            thread.unserved.extend(unserved.map(|unserved| *unserved));
            Outcome::After(other)
        }
    }
}

/// Returns `true` if a command is counted for its slot, or one of its keys is sampled.
#[inline]
fn must_count_keys(thread: &mut ThreadState, keys: usize) -> bool {
    thread.tunables.slot_stats || !thread.hot_key_sampler.pass_over(keys)
}

/// Counts a command that has run for the slot of its keys, and samples the keys, if that is enabled.
#[cold]
fn count_keys(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    client: &Client,
    input: &[u8],
    ending: &CommandEnd,
) {
    if thread.tunables.slot_stats {
        slot_stats::count_plan(thread, request, keys, client, input, ending);
    }
    if thread.hot_key_sampler.is_on() {
        hot_keys::sample_keys(thread, request.call(input, client.db), keys, ending.nanoseconds);
    }
}

/// Calls a handler under its leases. Propagates its changes, serves blocked clients and records notifications.
#[inline]
fn call_handler<'p>(
    thread: &mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
    handler: impl FnOnce(&mut Context<'_, 'p>) -> CommandResult,
) -> HandlerEnd {
    let Connection {
        client, input, output, ..
    } = connection;
    thread.begin_command(client, request.command);
    let dirty = thread.effects.dirty;
    // Read under the leases: a client that registered interest in one of the keys did so under leases, too.
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let held = match held {
        HeldLeases::Exclusive(all) if thread.effects.hooks.intersects(Hooks::MODULE_EVENTS) => {
            return call_handler_for_modules(thread, request, keys, all, connection, handler);
        }
        held => held,
    };
    let (frame, served) = thread.split_frame();
    let server = frame.server;
    let call = LeasedCall {
        command: request.command,
        args: request.args(input),
        planned: keys,
        held,
        pass,
    };
    debug_assert!(call.held.covers(keys), "a command runs under the leases of its keys");
    let mut context = frame.context(call, client, output);
    let result = handler(&mut context);
    execution_order::note_call(context.client, &context.next_step, context.args.iter());
    // INFO adds the changes so far to the sum over all threads.
    debug_assert!(
        context.keys.effects.dirty <= dirty || context.command.spec.flags.intersects(CHANGING_FLAGS),
        "'{}' is declared as a command that changes nothing",
        context.command.full_name
    );
    if context.keys.effects.is_logging() {
        propagate::propagate_call(&mut context.keys, &context.next_step, dirty);
        context.keys.effects.log_writer.end_measured_unit();
    }
    // They end after the unit is logged, as do those of the context.
    let mut further_leases = Vec::new();
    let unserved = if context.keys.effects.ready.is_empty() {
        None
    } else {
        let client = context.client.id;
        serve::serve_blocked_clients(&mut context.keys, pass, client, server, served, &mut further_leases)
    };
    if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
        let runs_again = context.next_step.is_restarted();
        queue_notifications(&mut context, runs_again, Caller::Client);
    }
    if context.keys.effects.log_writer.has_pending_ops() {
        let sequence = propagate::commit_unit(context.keys.effects);
        context.client.record_write(sequence);
    }
    HandlerEnd {
        result,
        next_step: context.next_step,
        unserved,
    }
}

/// Calls a handler in exclusive mode, and lets modules have its keyspace events within the unit; see [`call_handler`].
#[cold]
fn call_handler_for_modules<'p>(
    thread: &mut ThreadState,
    request: &Request<'_>,
    planned: &[PlannedKey],
    all: &mut Exclusive<'p>,
    connection: &mut Connection,
    handler: impl FnOnce(&mut Context<'_, 'p>) -> CommandResult,
) -> HandlerEnd {
    let Connection {
        client, input, output, ..
    } = connection;
    let (command, args, dirty) = (request.command, request.args(input), thread.effects.dirty);
    let db = client.db;
    let call = LeasedCall {
        command,
        args,
        planned,
        held: HeldLeases::Exclusive(all),
        pass: None,
    };
    let mut context = thread.split_frame().0.context(call, client, output);
    let result = handler(&mut context);
    let mut next_step = std::mem::take(&mut context.next_step);
    drop(context);
    execution_order::note_call(client, &next_step, args.iter());
    let runs_again = next_step.is_restarted();
    let mut unserved = None;
    if runs_again {
        thread.effects.log_writer.discard_call();
    } else {
        modules::key_events::end_command(thread, all, client, (db, args), &mut next_step, dirty);
        thread.effects.log_writer.end_measured_unit();
        unserved = modules::serving::serve_after_command(thread, all, client);
    }
    let call = LeasedCall {
        command,
        args,
        planned,
        held: HeldLeases::Exclusive(all),
        pass: None,
    };
    let mut context = thread.split_frame().0.context(call, client, output);
    queue_notifications(&mut context, runs_again, Caller::Client);
    if context.keys.effects.log_writer.has_pending_ops() {
        let sequence = propagate::commit_unit(context.keys.effects);
        context.client.record_write(sequence);
    }
    HandlerEnd {
        result,
        next_step,
        unserved,
    }
}

/// Ends the run of a command during which a module has blocked its client. The reply, which begins at a mark and may be
/// an error, is withheld until the module unblocks the client. The command is counted then.
#[cold]
fn leave_blocked_by_module(
    thread: &mut ThreadState,
    request: &Request<'_>,
    connection: &mut Connection,
    mut wait: Box<ModuleWait>,
    (before, failed): (OutputMark, bool),
) -> Outcome {
    connection.apply_reply_mode(before);
    let now = thread.timer.raw();
    wait.nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
    thread.ticks = now;
    wait.command = request.command.id as usize;
    wait.request_bytes = request.plan.end - request.plan.start;
    let args = request.args(&connection.input);
    wait.logged_command = Some(record::logged_command(request.command, args, &connection.client));
    wait.withheld = Some(DeferredReply {
        output: connection.output.split_off(before),
        failed,
    });
    Outcome::After(NextStep::BlockByModule(wait))
}

/// Ends the run of a command that has not replied: it runs again, elsewhere or later.
#[cold]
fn leave_unfinished(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &Connection,
    next_step: NextStep,
) -> Outcome {
    let (command, client) = (request.command, &connection.client);
    let args = request.args(&connection.input);
    let request_bytes = request.plan.end - request.plan.start;
    match next_step {
        NextStep::Defer => Outcome::Contended,
        NextStep::Background(work) => {
            thread.ticks = thread.timer.raw();
            let slot = slot_stats::accounting_slot(thread, command, args, keys);
            let work = record::with_command_accounting(command, args, client, request_bytes, slot, *work);
            Outcome::After(NextStep::Background(Box::new(work)))
        }
        NextStep::Block(mut blocked) => {
            let now = thread.timer.raw();
            blocked.nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
            thread.ticks = now;
            if thread.commands_run_at_home {
                // As in Valkey, modules hear of the attempt.
                let (nanoseconds, failed) = (blocked.nanoseconds, false);
                thread.recorded_end = Some(RecordedEnd { nanoseconds, failed });
            }
            blocked.request_bytes = request_bytes;
            blocked.slot = slot_stats::accounting_slot(thread, command, args, keys);
            if thread.hot_key_sampler.is_on() {
                let call = request.call(&connection.input, client.db);
                hot_keys::sample_keys(thread, call, keys, blocked.nanoseconds);
            }
            let subject = || record::logged_command(command, args, client);
            blocked.logged_command = record::may_exceed_thresholds(&thread.tunables, &blocked).then(subject);
            Outcome::After(NextStep::Block(blocked))
        }
        other => Outcome::After(other),
    }
}

//! Executes one plan whose leases are held: handler, effects, counters.

use crate::commands::context::{CommandResult, Context, NextStep};
use crate::commands::error::CommandError;
use crate::keyspace::GatePassage;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::connection::Connection;

use super::accounting::{CommandEnd, finish_command, write_error};
use super::effects::release;
use super::notifications::{Caller, announce};
use super::record::{self, Thresholds};
use super::request::{Outcome, Request};
use super::thread::{Call, Thread};
use super::{propagate, redirect, serve, slot_stats};

/// Frees memory and replies to served clients after the leases of a command have ended. In exclusive mode it runs just
/// before that mode ends.
#[inline]
pub(super) fn settle_effects(thread: &mut Thread) {
    release(&mut thread.effects, &thread.server);
    serve::mail(thread);
}

/// Checks which keys of a command are on this node, if its slot is migrating.
#[cold]
pub(super) fn settle_moving(
    thread: &Thread,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> Result<(), CommandError> {
    let (Some(moving), Some(view)) = (thread.moving, &thread.view) else {
        return Ok(());
    };
    let args = request.args(&connection.input);
    let keys = keys.iter().map(|key| (args, key));
    redirect::settle_moving(thread, view, &connection.client, moving, held, keys)
}

/// Replies with a redirection or refusal to a command that already holds its leases.
#[cold]
pub(super) fn refuse_moving(
    thread: &mut Thread,
    (request, keys): (&Request<'_>, &[PlannedKey]),
    connection: &mut Connection,
    error: CommandError,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .record_rejection(thread.seat, request.command.id as usize);
    slot_stats::book_refused(thread, request, keys, connection);
    connection.client.last_command = request.command.full_name;
    let before = connection.output.mark();
    write_error(thread, &error, &mut connection.output.bytes);
    connection.apply_reply_mode(before);
    Outcome::Done
}

/// Runs a plan's handler under the leases. The caller runs [`settle_effects`] after the leases have ended.
#[inline]
pub(super) fn run<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    run_as(thread, pass, request, keys, held, connection, request.binding.run)
}

/// Deletes the expired keys that the command would read, then runs its handler; see [`run`].
#[cold]
pub(super) fn run_without_expired<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
) -> Outcome {
    let handler = request.binding.run;
    run_as(thread, pass, request, keys, held, connection, |context| {
        context.keys.delete_expired();
        handler(context)
    })
}

/// Runs `handler` in place of the plan's own handler; see [`run`].
#[inline]
pub(super) fn run_as<'p>(
    thread: &mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    connection: &mut Connection,
    handler: impl FnOnce(&mut Context<'_, 'p>) -> CommandResult,
) -> Outcome {
    let command = request.command;
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    client.last_command = command.full_name;
    let before = output.mark();
    let length_before = output.len();
    let lookups = (thread.effects.hits, thread.effects.misses);
    let dirty = thread.effects.dirty;
    // Read under the leases: a client that registered interest in one of the keys did so under leases, too.
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let (frame, served) = thread.split();
    let server = frame.server;
    let call = Call {
        command,
        args,
        planned: keys,
        held,
        pass,
    };
    // A block ends the context, because `drop(context)` would move it.
    let (result, after, unserved) = {
        let mut context = frame.context(call, client, output);
        let result = handler(&mut context);
        if context.keys.effects.is_logging() {
            propagate::end_call(&mut context.keys, &context.after, dirty);
            context.keys.effects.log_writer.end_measured_unit();
        }
        let unserved = if context.keys.effects.ready.is_empty() {
            None
        } else {
            serve::serve_ready(&mut context.keys, pass, server, served)
        };
        if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
            let runs_again = context.after.is_restarted();
            announce(&mut context, runs_again, Caller::Client);
        }
        if context.keys.effects.log_writer.has_pending_ops() {
            context.client.last_write_sequence = propagate::commit(context.keys.effects);
        }
        (result, context.after, unserved)
    };
    let failed = result.is_err();
    if let Err(error) = result {
        output.truncate(before);
        write_error(thread, &error, &mut output.bytes);
    }
    let request_bytes = request.plan.end - request.plan.start;
    let after = match after {
        NextStep::Nothing => NextStep::Nothing,
        NextStep::Defer => {
            output.truncate(before);
            // The run that produces the reply is the one that is counted.
            (thread.effects.hits, thread.effects.misses) = lookups;
            return Outcome::Contended;
        }
        NextStep::Leave(snapshot) => {
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            return Outcome::After(NextStep::Leave(snapshot));
        }
        NextStep::Background(work) => {
            thread.ticks = thread.timer.raw();
            let slot = slot_stats::slot_if_counted(thread, command, args, keys);
            let work = record::counted((command, args), client, request_bytes, slot, *work);
            return Outcome::After(NextStep::Background(Box::new(work)));
        }
        NextStep::AsWriter => {
            output.truncate(before);
            (thread.effects.hits, thread.effects.misses) = lookups;
            return Outcome::After(NextStep::AsWriter);
        }
        NextStep::Block(mut blocked) => {
            let now = thread.timer.raw();
            blocked.nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
            thread.ticks = now;
            blocked.request_bytes = request_bytes;
            blocked.slot = slot_stats::slot_if_counted(thread, command, args, keys);
            let subject = || record::subject_of(command, args, client);
            blocked.subject = record::might_be_remembered(&thread.tunables, &blocked).then(subject);
            return Outcome::After(NextStep::Block(blocked));
        }
        other => other,
    };
    let ending = CommandEnd {
        nanoseconds: finish_command(thread, command, failed),
        request_bytes,
        reply_bytes: output.len() - length_before,
    };
    let thresholds = Thresholds::of(&thread.tunables);
    record::remember(&thread.server, command, thresholds, &ending, || {
        record::subject_of(command, args, client)
    });
    if thread.tunables.slot_stats {
        slot_stats::book_run(thread, (request, keys), (client, input), &ending);
    }
    match after {
        NextStep::Nothing => {
            // There is nothing to drop. The call that finds this out would cost more than everything else here.
            std::mem::forget(after);
            let Some(unserved) = unserved else {
                connection.apply_reply_mode(before);
                return Outcome::Done;
            };
            let reply = connection.output.split_off(before);
            Outcome::After(NextStep::Serve(Box::new((*unserved, reply))))
        }
        other => {
            thread.unserved.extend(unserved.map(|unserved| *unserved));
            Outcome::After(other)
        }
    }
}

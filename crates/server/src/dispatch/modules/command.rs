//! Commands that run code of modules: those that modules have registered, and those that load and unload modules.

use weft_reactor::Output;
use weft_resp::Args;

use super::{ModuleCall, ModuleSession, SessionAccess, apply_unit_effects, reborrow_idle};
use super::{home, lifecycle};
use crate::commands::context::{Binding, NextStep};
use crate::dispatch::accounting::{CommandEnd, record_command};
use crate::dispatch::command_events::{RecordedEnd, are_heard};
use crate::dispatch::execute::{check_migrating_slot, reply_redirection};
use crate::dispatch::leases::lease_slots;
use crate::dispatch::notifications::{self, is_shown_to_monitors};
use crate::dispatch::record::{self, CommandLogThresholds};
use crate::dispatch::request::{Outcome, Request};
use crate::dispatch::thread::{IdleTurns, ThreadState};
use crate::dispatch::{execution_order, hot_keys, pins, slot_stats};
use crate::keyspace::access::{HeldLeases, Lease, ScriptLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::Counter;
use crate::state::Server;
use weft_base::{DbIndex, ThreadIndex};
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_modules::module::command::{Concurrency, ModuleCommand, run_command};
use weft_modules::objects::context::Caller;
use weft_modules::objects::reply::{FinishedReply, ReplyError};
use weft_modules::session::Session;

/// Runs a command of a client in exclusive mode, on the home worker.
pub fn run(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    idle: Option<&mut dyn IdleTurns>,
) -> Outcome {
    // AUTH may run code of modules, too, without that the connection uses them from then on.
    connection.has_used_modules |= request.binding.module_command.is_some();
    let access = (SessionAccess::Exclusive(all), None);
    run_with_access(thread, access, request, keys, connection, idle)
}

/// Runs a serial or slot-safe command under the leases of its keys.
///
/// A serial command holds the [`Permit`](crate::state::permit::Permit) of such commands, too. The permit and the leases
/// are both attempted, and a refused one gives the other back: no thread waits for one while it holds the other.
pub fn run_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let failures = connection.lease_failures;
    let is_serial = |command: &ModuleCommand| command.concurrency() == Concurrency::Serial;
    let server;
    // Held until the command has ended.
    let mut held_permit = None;
    if request.binding.module_command.is_some_and(is_serial) {
        server = thread.server.clone();
        let permit = &server.modules.serial_permit;
        held_permit = permit.try_take(thread.thread_index, failures, thread.now_ms);
        if held_permit.is_none() {
            return Outcome::Contended;
        }
    }
    let Some(has_marked_slots) = lease_slots(pass, keys, &mut thread.order, many, failures) else {
        return Outcome::Contended;
    };
    thread.catch_up_with_seen_expiry();
    if has_marked_slots || thread.moving.is_some() {
        let held = HeldLeases::Many(many);
        let wait = pins::find_wait(&thread.server.keyspace, request, keys, &held, connection);
        if let Some(wait) = wait.filter(|_| has_marked_slots) {
            connection.awaited_thaw = wait.awaited_thaw();
            many.clear();
            return Outcome::Contended;
        }
        if let Err(error) = check_migrating_slot(thread, request, keys, &held, connection) {
            many.clear();
            return reply_redirection(thread, request, keys, connection, error);
        }
    }
    let index_buffer = std::mem::take(&mut thread.script_lease_indices);
    let mut leases = ScriptLeases::in_memory_of(std::mem::take(many), index_buffer);
    let access = (SessionAccess::Leased(&mut leases), Some(pass));
    let outcome = run_with_access(thread, access, request, keys, connection, None);
    (*many, thread.script_lease_indices) = leases.into_memory();
    drop(held_permit);
    outcome
}

/// Runs a command with these slots. Leases end with it.
fn run_with_access<'p>(
    thread: &mut ThreadState,
    (access, pass): (SessionAccess<'_, 'p>, Option<&'p GatePassage<'p>>),
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    mut idle: Option<&mut dyn IdleTurns>,
) -> Outcome {
    let Connection {
        client, input, output, ..
    } = connection;
    let args = request.args(input);
    thread.begin_command(client, request.command);
    let (before, length_before) = (output.mark(), output.len());
    let permissions = (thread.may_leave, thread.may_block);
    (thread.may_leave, thread.may_block) = (false, false);
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    let mut call = ModuleCall {
        may_block: permissions.1,
        next_step: NextStep::Reply,
    };
    let mut session = ModuleSession {
        thread,
        access,
        pass,
        client,
        call: Some(&mut call),
        idle: reborrow_idle(&mut idle),
    };
    let mut reply = FinishedReply::default();
    run_code(&mut session, request.command, request.binding, &args, &mut reply);
    finish_call(&mut session, request.command, args, keys);
    let unserved = session.end_unit();
    if let SessionAccess::Leased(leases) = &mut session.access {
        leases.end();
    }
    (thread.may_leave, thread.may_block) = permissions;
    apply_unit_effects(thread);
    execution_order::note_call(client, &call.next_step, args.iter());
    let failed = append_reply(thread, reply, output);
    if let NextStep::BlockByModule(mut wait) = call.next_step {
        // The command ends with its wait.
        let now = thread.timer.raw();
        wait.nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
        thread.ticks = now;
        if thread.commands_run_at_home {
            let nanoseconds = wait.nanoseconds;
            thread.recorded_end = Some(RecordedEnd { nanoseconds, failed });
        }
        wait.command = request.command.id as usize;
        wait.request_bytes = request.plan.end - request.plan.start;
        wait.logged_command = Some(record::logged_command(request.command, args, client));
        client.redacted_arguments.clear();
        thread.unserved.extend(unserved.map(|unserved| *unserved));
        return Outcome::After(NextStep::BlockByModule(wait));
    }
    record_end(
        thread,
        request,
        keys,
        (client, input),
        failed,
        output.len() - length_before,
    );
    client.redacted_arguments.clear();
    match (call.next_step, unserved) {
        (NextStep::Reply, None) => {
            connection.apply_reply_mode(before);
            Outcome::Done
        }
        (NextStep::Reply, Some(unserved)) => {
            let reply = connection.output.split_off(before);
            Outcome::After(NextStep::AwaitServing(Box::new((*unserved, reply))))
        }
        (next_step, unserved) => {
            thread.unserved.extend(unserved.map(|unserved| *unserved));
            Outcome::After(next_step)
        }
    }
}

/// Counts a command that has ended, and logs it if it was slow or large.
fn record_end(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    (client, input): (&mut Client, &[u8]),
    failed: bool,
    reply_bytes: usize,
) {
    let args = request.args(input);
    let ending = CommandEnd {
        nanoseconds: record_command(thread, request.command, failed),
        request_bytes: request.plan.end - request.plan.start,
        reply_bytes,
    };
    if are_heard() {
        // The module may have subscribed within this command.
        let nanoseconds = ending.nanoseconds;
        thread.recorded_end = Some(RecordedEnd { nanoseconds, failed });
    }
    let thresholds = CommandLogThresholds::from_tunables(&thread.tunables);
    record::log_if_exceeded(&thread.server, request.command, thresholds, &ending, || {
        record::logged_command(request.command, args, client)
    });
    if thread.tunables.slot_stats {
        slot_stats::count_plan(thread, request, keys, client, input, &ending);
    }
    if thread.hot_key_sampler.is_on() && !thread.hot_key_sampler.pass_over(keys.len()) {
        hot_keys::sample_keys(thread, request.call(input, client.db), keys, ending.nanoseconds);
    }
}

/// Runs a command of a transaction, which holds exclusive mode. Returns `true` if the command has replied with an
/// error.
pub fn run_in_transaction<'p>(
    thread: &mut ThreadState,
    command: (&'static Command<Binding>, Binding),
    args: Args<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    client: &mut Client,
    output: &mut Output,
) -> bool {
    let (command, binding) = command;
    let access = match held {
        HeldLeases::Exclusive(all) => SessionAccess::Exclusive(all),
        HeldLeases::Script(leases) => SessionAccess::Leased(leases),
        HeldLeases::Nothing | HeldLeases::One(_) | HeldLeases::Many(_) | HeldLeases::Private(_) => {
            unreachable!("a transaction with commands of modules runs in exclusive mode")
        }
    };
    thread.effects.hooks = thread.server.keyspace.hooks.current();
    client.flags.set(ClientFlags::EXECUTING, true);
    let mut call = ModuleCall::default();
    let mut session = ModuleSession {
        thread,
        access,
        pass: None,
        client,
        call: Some(&mut call),
        idle: None,
    };
    let mut reply = FinishedReply::default();
    run_code(&mut session, command, binding, &args, &mut reply);
    finish_call(&mut session, command, args, keys);
    client.flags.set(ClientFlags::EXECUTING, false);
    execution_order::note_call(client, &NextStep::Reply, args.iter());
    client.redacted_arguments.clear();
    append_reply(thread, reply, output)
}

/// Calls the module, or loads or unloads one. The reply gets into `reply`, which is empty.
pub fn run_code(
    session: &mut ModuleSession<'_, '_>,
    command: &'static Command<Binding>,
    binding: Binding,
    args: &Args<'_>,
    reply: &mut FinishedReply,
) {
    let Some(module_command) = binding.module_command else {
        *reply = lifecycle::run(session, command, *args);
        return;
    };
    let caller = Caller {
        client_id: session.client.id.get(),
        db: session.client.db.get() as u32,
        protocol: session.client.protocol,
    };
    let run = |session: &mut dyn Session| run_command(module_command, session, caller, args, reply);
    if let Some(db) = home::run_there(session, run) {
        // As in Valkey, a database that the module has selected is the client's from now on.
        session.client.db = DbIndex::new(db as usize);
    }
}

/// Ends a call: shows it to monitors, sends the events that it has caused, and tracks the keys that it has read.
pub fn finish_call(
    session: &mut ModuleSession<'_, '_>,
    command: &'static Command<Binding>,
    args: Args<'_>,
    keys: &[PlannedKey],
) {
    session.thread.effects.log_writer.discard_call();
    if !session.thread.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
        return;
    }
    let (thread, client) = (&mut *session.thread, &mut *session.client);
    let shows = thread.effects.hooks.intersects(Hooks::MONITOR) && is_shown_to_monitors(command.spec.flags);
    let line = shows.then(|| notifications::monitor_line_of_unit(&thread.server, client, args.iter()));
    let mut sender = NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index);
    sender.send_recorded_effects(Some(client.id));
    if let Some(line) = line {
        sender.send_monitor_line(line);
    }
    track_read_keys(&thread.server, client, command, args, keys);
    client.reset_caching_after(Some(command.full_name));
}

/// Tracks the keys of a command that reads, if its client uses client-side caching.
fn track_read_keys(server: &Server, client: &Client, command: &Command<Binding>, args: Args<'_>, keys: &[PlannedKey]) {
    let reads = command.spec.flags.contains(CommandFlags::READONLY);
    let tracking = client.tracking.as_deref().filter(|_| reads);
    if tracking.is_some_and(|tracking| tracking.should_track_next_command()) {
        for key in keys {
            let name = args.argument(key.argument as usize);
            server.clients.tracking.add_reader(name, client.id);
        }
    }
}

/// Appends a reply to an output, and counts its errors. Returns `true` if there are some.
pub fn append_reply(thread: &ThreadState, reply: FinishedReply, output: &mut Output) -> bool {
    output.bytes.extend_from_slice(&reply.bytes);
    count_errors(&thread.server, thread.thread_index, &reply.errors);
    let failed = !reply.errors.is_empty();
    reply.recycle();
    failed
}

/// Counts the errors of a reply.
pub fn count_errors(server: &Server, thread_index: ThreadIndex, errors: &[ReplyError]) {
    for error in errors.iter().filter(|error| error.is_counted) {
        server.stats.metrics.add(thread_index, Counter::ErrorReplies, 1);
        match error.is_custom {
            true => server.stats.errors.count_from_script(&error.code),
            false => server.stats.errors.count(&error.code),
        }
    }
}

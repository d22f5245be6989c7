//! Runs plans under the leases of their keys, or in exclusive mode; moves long commands to background threads.

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::keyspace::access::{HeldLeases, KeySnapshot, Lease, PREFETCH_WINDOW_KEYS};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::connection::Connection;
use crate::observability::metrics::Counter;
use weft_command_table::registry::Command;
use weft_command_table::spec::{CommandFlags, Group};

use super::background::DetachedCommand;
use super::execute::{apply_effects, check_migrating_slot, delete_expired_and_run, reply_redirection, run_handler};
use super::expired_sources::{self, SourceLeases};
use super::leases::lease_slot;
use super::pins::{self, PinWait};
use super::request::{Outcome, Request};
use super::thread::{IdleTurns, ThreadState};
use super::{modules, script};

/// The number of keys above which commands leave the worker. Leasing and looking up one key takes about 40 ns.
const MAX_KEYS_ON_WORKER: usize = if cfg!(feature = "simulated") { 20 } else { 5000 };

/// Runs a plan under the leases of its keys.
pub fn run_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    match request.binding.mode {
        HandlerMode::Script => return script::run_leased(thread, pass, request, keys, many, connection),
        HandlerMode::Module => return modules::command::run_leased(thread, pass, request, keys, many, connection),
        HandlerMode::Leased | HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep => {}
    }
    let outcome = attempt_leased(thread, pass, request, keys, many, connection);
    if matches!(outcome, Outcome::After(NextStep::RetryAsWriter)) {
        for key in keys.iter_mut() {
            key.is_write = true;
        }
        return attempt_leased(thread, pass, request, keys, many, connection);
    }
    outcome
}

#[inline]
fn attempt_leased<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let outcome = match keys {
        [key] => {
            let mut lease = lease_slot(pass, key.slot.index(), key.is_write, connection.lease_failures);
            // Borrowed in place, not moved: see `HeldLeases::One`.
            let Some(lease) = &mut lease else {
                return Outcome::Contended;
            };
            thread.catch_up_with_seen_expiry();
            let leased = SourceLeases {
                has_marked_slots: lease.has_pinned_or_unsaved_values(),
                has_expired_source: false,
            };
            run_under_leases(thread, pass, request, keys, HeldLeases::One(lease), leased, connection)
        }
        [] => {
            let leased = SourceLeases {
                has_marked_slots: false,
                has_expired_source: false,
            };
            run_under_leases(thread, pass, request, keys, HeldLeases::Nothing, leased, connection)
        }
        _ if keys.len() > PREFETCH_WINDOW_KEYS && has_many_keys(thread, request.command, keys.len()) => {
            return detach_command(thread, request, keys, None, connection);
        }
        _ => {
            let call = request.call(&connection.input, connection.client.db);
            let leased = expired_sources::lease_command(thread, pass, call, keys, many, connection.lease_failures);
            let Some(leased) = leased else {
                return Outcome::Contended;
            };
            let held = HeldLeases::Many(many);
            let outcome = run_under_leases(thread, pass, request, keys, held, leased, connection);
            many.clear();
            outcome
        }
    };
    debug_assert!(
        many.is_empty(),
        "the leases of a command end before its effects are applied"
    );
    apply_effects(thread);
    outcome
}

/// Runs a plan under its leases, unless a pinned value or a migrating slot prevents it.
#[inline]
fn run_under_leases<'p>(
    thread: &mut ThreadState,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: HeldLeases<'_, 'p>,
    leased: SourceLeases,
    connection: &mut Connection,
) -> Outcome {
    if !thread.may_leave && thread.server.clients.directory.was_killed(&connection.client) {
        // Under the leases: no other client has seen yet that the command does not run.
        return Outcome::Done;
    }
    if leased.has_marked_slots | thread.moving.is_some() {
        // The thread that unpins or saves the value may sleep at the gate. The value is copied then.
        let may_wait = !(thread.is_in_round && pass.gate_is_closing());
        if leased.has_marked_slots
            && may_wait
            && let Some(wait) = pins::find_wait(&thread.server.keyspace, request, keys, &held, connection)
        {
            connection.awaited_thaw = wait.awaited_thaw();
            return Outcome::Contended;
        }
        if let Err(error) = check_migrating_slot(thread, request, keys, &held, connection) {
            return reply_redirection(thread, request, keys, connection, error);
        }
    }
    let outcome = match leased.has_expired_source {
        true => delete_expired_and_run(thread, Some(pass), request, keys, held, connection),
        false => run_handler(thread, Some(pass), request, keys, held, connection),
    };
    match outcome {
        Outcome::After(NextStep::RunInBackground(snapshot)) => {
            detach_command(thread, request, keys, snapshot, connection)
        }
        outcome => outcome,
    }
}

/// Runs a plan in exclusive mode.
pub fn run_exclusive(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    run_exclusive_serving(thread, all, request, keys, connection, None)
}

/// Runs a plan in exclusive mode. A module that runs for long can let `idle` serve other connections.
pub fn run_exclusive_serving(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
    idle: Option<&mut dyn IdleTurns>,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .add(thread.thread_index, Counter::ExclusiveCommands, 1);
    thread.catch_up_with_seen_expiry();
    let held = HeldLeases::Exclusive(all);
    if let Err(error) = check_migrating_slot(thread, request, keys, &held, connection) {
        return reply_redirection(thread, request, keys, connection, error);
    }
    match request.binding.mode {
        HandlerMode::Module => return modules::command::run(thread, all, request, keys, connection, idle),
        HandlerMode::Script => return script::run_exclusive(thread, all, request, connection, idle),
        HandlerMode::Leased | HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep => {}
    }
    let outcome = attempt_exclusive(thread, all, request, keys, connection);
    if matches!(outcome, Outcome::After(NextStep::RetryAsWriter)) {
        let mut keys = keys.to_vec();
        keys.iter_mut().for_each(|key| key.is_write = true);
        return attempt_exclusive(thread, all, request, &keys, connection);
    }
    outcome
}

/// Runs the handler of a plan in exclusive mode.
fn attempt_exclusive(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    let held = HeldLeases::Exclusive(all);
    if let Some(wait) = find_wait_of_leased_command(thread, request, keys, &held, connection) {
        connection.awaited_thaw = wait.awaited_thaw();
        return Outcome::Contended;
    }
    let outcome = match expired_sources::must_delete_expired(thread, request.command) {
        true => delete_expired_and_run(thread, None, request, keys, held, connection),
        false => run_handler(thread, None, request, keys, held, connection),
    };
    apply_effects(thread);
    outcome
}

/// Returns what a command in exclusive mode has to wait for that would run under leases if modules did not get its
/// keyspace events: the end of a MIGRATE, or large values that are pinned or not saved.
#[inline]
fn find_wait_of_leased_command(
    thread: &ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    held: &HeldLeases<'_, '_>,
    connection: &Connection,
) -> Option<PinWait> {
    let is_leased = request.binding.mode == HandlerMode::Leased && !request.binding.needs_modules();
    if !is_leased || !thread.home_events.concern(request.command.spec.flags) {
        return None;
    }
    let keyspace = &thread.server.keyspace;
    let is_marked =
        |key: &PlannedKey| key.is_write && keyspace.slots.header(key.slot.index()).has_pinned_or_unsaved_values();
    match keys.iter().any(is_marked) {
        true => pins::find_wait(keyspace, request, keys, held, connection),
        false => None,
    }
}

/// Returns `true` if a command leaves the worker because of its number of keys. Only commands on data do: blocking
/// commands, and those of connections and scripts, need their client.
#[cold]
fn has_many_keys(thread: &ThreadState, command: &Command<Binding>, keys: usize) -> bool {
    let flags = command.spec.flags;
    let on_data = flags.intersects(CommandFlags::WRITE.union(CommandFlags::READONLY))
        && !flags.contains(CommandFlags::BLOCKING)
        && !matches!(command.spec.group, Group::Scripting | Group::Connection | Group::Server);
    thread.may_leave && keys > MAX_KEYS_ON_WORKER && on_data
}

/// Moves the command to a background thread.
#[cold]
fn detach_command(
    thread: &mut ThreadState,
    request: &Request<'_>,
    keys: &[PlannedKey],
    snapshot: Option<Box<KeySnapshot>>,
    connection: &mut Connection,
) -> Outcome {
    assert!(
        thread.may_leave,
        "'{}' leaves a thread that it may not leave",
        request.command.full_name
    );
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let has_snapshot = snapshot.is_some();
    let command = DetachedCommand::new(request, keys, snapshot, connection, run_leased);
    let create_job: Box<Box<dyn FnOnce(_) -> _ + Send>> = Box::new(Box::new(|requester| command.into_job(requester)));
    Outcome::After(match has_snapshot {
        true => NextStep::AwaitSnapshotCommand(create_job),
        false => NextStep::AwaitBackground(create_job),
    })
}

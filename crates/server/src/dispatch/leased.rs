//! Runs plans under the leases of their keys, or in exclusive mode; moves long commands to background threads.

use crate::commands::context::{Binding, Mode, NextStep};
use crate::keyspace::access::{HeldLeases, KeySnapshot, Lease, PREFETCH_WINDOW_KEYS};
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::connection::Connection;
use crate::observability::metrics::Counter;
use weft_command_table::registry::Command;
use weft_command_table::spec::{Flags, Group};

use super::background::DetachedCommand;
use super::execute::{refuse_moving, run, run_without_expired, settle_effects, settle_moving};
use super::expired_sources::{self, SourceLeases};
use super::leases::lease_one;
use super::request::{Outcome, Request};
use super::thread::Thread;
use super::{pins, script};

/// Commands with more keys than this leave the worker. Leasing and looking up one key takes some 40 ns.
const MANY_KEYS: usize = 5000;

/// Runs a plan under the leases of its keys.
pub fn run_leased<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    if request.binding.mode == Mode::Script {
        return script::run_leased(thread, pass, request, keys, many, connection);
    }
    let outcome = run_leased_once(thread, pass, request, keys, many, connection);
    if matches!(outcome, Outcome::After(NextStep::AsWriter)) {
        for key in keys.iter_mut() {
            key.is_write = true;
        }
        return run_leased_once(thread, pass, request, keys, many, connection);
    }
    outcome
}

#[inline]
fn run_leased_once<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &mut [PlannedKey],
    many: &mut Vec<Lease<'p>>,
    connection: &mut Connection,
) -> Outcome {
    let outcome = match keys {
        [key] => {
            let mut lease = lease_one(pass, key.slot as usize, key.is_write, connection.lease_failures);
            // Borrowed in its place, not moved: see `HeldLeases::One`.
            let Some(lease) = &mut lease else {
                return Outcome::Contended;
            };
            let leased = SourceLeases {
                meets_loans: lease.has_pinned_or_unsaved_values(),
                finds_expired: false,
            };
            run_held(
                thread,
                pass,
                request,
                keys,
                (HeldLeases::One(lease), leased),
                connection,
            )
        }
        [] => {
            let leased = SourceLeases {
                meets_loans: false,
                finds_expired: false,
            };
            run_held(thread, pass, request, keys, (HeldLeases::Nothing, leased), connection)
        }
        _ if keys.len() > PREFETCH_WINDOW_KEYS && has_many_keys(thread, request.command, keys.len()) => {
            return detach(thread, request, keys, None, connection);
        }
        _ => {
            let command = (request.command, request.args(&connection.input), connection.client.db);
            let leased = expired_sources::lease_sources(thread, pass, command, keys, many, connection.lease_failures);
            let Some(leased) = leased else {
                return Outcome::Contended;
            };
            let held = (HeldLeases::Many(many), leased);
            let outcome = run_held(thread, pass, request, keys, held, connection);
            many.clear();
            outcome
        }
    };
    settle_effects(thread);
    outcome
}

/// Runs a plan under its leases, unless a pinned value or a migrating slot prevents it.
#[inline]
fn run_held<'p>(
    thread: &mut Thread,
    pass: &'p GatePassage<'p>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    (held, leased): (HeldLeases<'_, 'p>, SourceLeases),
    connection: &mut Connection,
) -> Outcome {
    if leased.meets_loans | thread.moving.is_some() {
        if leased.meets_loans && pins::must_wait(&thread.server.keyspace, request, keys, &held, connection) {
            return Outcome::Contended;
        }
        if let Err(error) = settle_moving(thread, request, keys, &held, connection) {
            return refuse_moving(thread, (request, keys), connection, error);
        }
    }
    let outcome = match leased.finds_expired {
        true => run_without_expired(thread, Some(pass), request, keys, held, connection),
        false => run(thread, Some(pass), request, keys, held, connection),
    };
    match outcome {
        Outcome::After(NextStep::Leave(snapshot)) => detach(thread, request, keys, snapshot, connection),
        outcome => outcome,
    }
}

/// Runs a plan in exclusive mode.
pub fn run_exclusive(
    thread: &mut Thread,
    all: &mut Exclusive<'_>,
    request: &Request<'_>,
    keys: &[PlannedKey],
    connection: &mut Connection,
) -> Outcome {
    thread
        .server
        .stats
        .metrics
        .add(thread.seat, Counter::ExclusiveCommands, 1);
    let held = HeldLeases::Exclusive(all);
    if let Err(error) = settle_moving(thread, request, keys, &held, connection) {
        return refuse_moving(thread, (request, keys), connection, error);
    }
    let outcome = match expired_sources::deletes_expired(thread, request.command) {
        true => run_without_expired(thread, None, request, keys, held, connection),
        false => run(thread, None, request, keys, held, connection),
    };
    settle_effects(thread);
    outcome
}

/// Returns `true` if a command leaves the worker because of its number of keys. Only commands on data do: blocking
/// commands, and those of connections and scripts, need their client.
#[cold]
fn has_many_keys(thread: &Thread, command: &Command<Binding>, keys: usize) -> bool {
    let flags = command.spec.flags;
    let on_data = flags.intersects(Flags::WRITE.with(Flags::READONLY))
        && !flags.contains(Flags::BLOCKING)
        && !matches!(command.spec.group, Group::Scripting | Group::Connection | Group::Server);
    thread.may_leave && keys > MANY_KEYS && on_data
}

/// Moves the command to a background thread.
#[cold]
fn detach(
    thread: &mut Thread,
    request: &Request<'_>,
    keys: &[PlannedKey],
    snapshot: Option<Box<KeySnapshot>>,
    connection: &mut Connection,
) -> Outcome {
    connection.client.last_command = request.command.full_name;
    thread.ticks = thread.timer.raw();
    let command = DetachedCommand::new(request, keys, snapshot, connection, run_leased);
    Outcome::After(NextStep::Detached(Box::new(Box::new(|origin| {
        command.into_job(origin)
    }))))
}

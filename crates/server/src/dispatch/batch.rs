//! Runs the plans of many connections together, so that their cache misses overlap.

use weft_resp::Args;

use crate::commands::context::{After, Binding, Mode};
use crate::commands::error::CommandError;
use crate::commands::registry::Lookup;
use crate::keyspace::Seat;
use crate::keyspace::access::Lease;
use crate::keyspace::expiry::delete_found_within;
use crate::net::client::Flags;
use crate::net::connection::{Connection, State};
use crate::observe::metrics::{Counter, Maximum};

use super::admit::{Admission, NOT_LOGGED_IN, admit, explain_unknown, is_http, must_log_in};
use super::effects::{count, release};
use super::execute::{Outcome, Request, Thread, run_exclusive, run_leased, write_error};
use super::plan::{Kind, Plan, Plans};
use super::prefetch::Prefetcher;
use super::transaction::{self, Role};

/// Gives out connections by token while a batch runs.
pub trait Connections {
    /// The connection; `None` if it is gone.
    fn connection(&mut self, token: usize) -> Option<&mut Connection>;
    /// Takes over what a command left to be done for a connection that waits.
    fn after(&mut self, token: usize, after: After);
}

/// Runs every plan, in order. Plans of a connection that stopped being ready are left unexecuted.
pub fn run(thread: &mut Thread, seat: &mut Seat, plans: &mut Plans, connections: &mut dyn Connections) {
    let mut next = 0;
    while next < plans.list.len() {
        next = run_until_exclusive(thread, seat, plans, connections, next);
        if next < plans.list.len() {
            run_one_exclusive(thread, seat, plans, connections, next);
            next += 1;
        }
    }
    count(&mut thread.effects, &thread.server, thread.seat);
    let metrics = &thread.server.metrics;
    metrics.add(thread.seat, Counter::Batches, 1);
    metrics.raise(Maximum::FullestBatch, plans.list.len() as u64);
    if plans.probes.len() > 1 {
        metrics.add(thread.seat, Counter::PrefetchBatches, 1);
        metrics.add(thread.seat, Counter::PrefetchEntries, plans.probes.len() as u64);
    }
}

/// Runs plans behind one passage of the gate; returns the index of the first that needs exclusive mode.
fn run_until_exclusive(
    thread: &mut Thread,
    seat: &mut Seat,
    plans: &mut Plans,
    connections: &mut dyn Connections,
    first: usize,
) -> usize {
    let pass = seat.enter();
    // Waiting at the gate is no command's time.
    thread.ticks = thread.timer.raw();
    let mut many: Vec<Lease<'_>> = Vec::new();
    let mut prefetcher = Prefetcher::new(&plans.probes);
    let depth = thread.tunables.prefetch_depth;
    let lone = plans.probes.len() < 2;
    for index in first..plans.list.len() {
        let plan = &plans.list[index];
        if !lone {
            prefetcher.advance(&pass, &plans.probes, plan.probes_end as usize, depth);
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
            return index;
        }
        if !admitted(thread, plan, connection) {
            continue;
        }
        let request = Request {
            plan,
            command,
            binding,
            ranges: &plans.ranges,
        };
        let keys = &mut plans.keys[plan.keys.0 as usize..plan.keys.1 as usize];
        let outcome = match role {
            Role::Alone => run_leased(thread, &pass, &request, keys, &mut many, connection),
            Role::Queued => transaction::queue(thread, &request, keys, connection),
            Role::Exec { .. } => transaction::run_leased(thread, &pass, &request, &mut many, connection),
        };
        many.clear();
        if !thread.effects.expired.is_empty() {
            // Before the next command looks, for it may count keys.
            let server = &thread.server;
            delete_found_within(&server.keyspace, &pass, thread.seat, thread.now_ms, &mut thread.effects);
            release(&mut thread.effects, server);
            thread.keep_ready();
        }
        if let Some(after) = settle(plan, connection, outcome) {
            connections.after(plan.token, after);
        }
    }
    plans.list.len()
}

/// Runs one plan with the whole keyspace to itself.
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
    if !is_runnable(connection) || !admitted(thread, plan, connection) {
        return;
    }
    let request = Request {
        plan,
        command,
        binding,
        ranges: &plans.ranges,
    };
    let keys = &plans.keys[plan.keys.0 as usize..plan.keys.1 as usize];
    let mut all = seat.exclusive();
    thread.ticks = thread.timer.raw();
    let outcome = match Role::of(&connection.client, command) {
        Role::Exec { .. } => transaction::run_exclusive(thread, &mut all, &request, connection),
        Role::Alone | Role::Queued => run_exclusive(thread, &mut all, &request, keys, connection),
    };
    drop(all);
    if let Some(after) = settle(plan, connection, outcome) {
        connections.after(plan.token, after);
    }
}

/// Whether a plan needs the whole keyspace.
#[inline]
fn needs_everything(role: &Role, binding: Binding) -> bool {
    match role {
        Role::Alone => binding.mode == Mode::Exclusive,
        Role::Queued => false,
        Role::Exec { exclusive } => *exclusive,
    }
}

fn is_runnable(connection: &Connection) -> bool {
    connection.state == State::Ready
        && !connection
            .client
            .flags
            .has_any(Flags::CLOSE_ASAP.with(Flags::CLOSE_AFTER_REPLY))
}

/// Whether the plan may run; if not, the refusal is written or the connection waits.
fn admitted(thread: &mut Thread, plan: &Plan, connection: &mut Connection) -> bool {
    let Kind::Command(command, _) = plan.kind else {
        return false;
    };
    let admission = admit(
        &thread.server,
        &connection.client,
        command,
        &thread.tunables,
        thread.now_ms,
    );
    match admission {
        Admission::Run => true,
        Admission::Paused => {
            connection.state = State::Paused;
            connection.client.flags.put(Flags::BLOCKED, true);
            connection.client.last_command = command.full_name;
            false
        }
        Admission::Refused(error) => {
            thread.server.metrics.rejected(thread.seat, command.id as usize);
            let error = transaction::refused(thread, &mut connection.client, Some(command), error);
            reply_error(thread, connection, &error);
            connection.consumed = plan.end;
            false
        }
    }
}

fn args_of<'a>(plan: &Plan, ranges: &'a [weft_resp::ArgRange], input: &'a [u8]) -> Args<'a> {
    Args::new(
        &input[plan.start..plan.end],
        &ranges[plan.args.0 as usize..plan.args.1 as usize],
    )
}

/// Answers a request that is no command.
fn refuse(thread: &mut Thread, plan: &Plan, ranges: &[weft_resp::ArgRange], connection: &mut Connection) {
    match plan.kind {
        Kind::Malformed(error) => {
            let mut text = b"ERR ".to_vec();
            text.extend_from_slice(&error.message());
            reply_error(thread, connection, &CommandError::bytes(text));
            connection.client.flags.put(Flags::CLOSE_AFTER_REPLY, true);
        }
        Kind::Unknown | Kind::Command(..) => {
            let commands = crate::commands::registry();
            let args = args_of(plan, ranges, &connection.input);
            if is_http(args) {
                crate::observe::log::warning!(
                    "Closing a connection that sent a line of HTTP: {}",
                    connection.client.address
                );
                connection.client.flags.put(Flags::CLOSE_ASAP, true);
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
                thread.server.metrics.rejected(thread.seat, command.id as usize);
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
    connection.settle_reply(before);
}

/// Books the end of an execution; returns what the connection now waits for.
fn settle(plan: &Plan, connection: &mut Connection, outcome: Outcome) -> Option<After> {
    match outcome {
        Outcome::Contended => {
            connection.lease_failures += 1;
            connection.state = State::Deferred;
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

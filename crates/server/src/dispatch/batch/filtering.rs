//! Lets the filters of modules see requests before these are looked up.
//!
//! ```text
//!   plan ─▶ filtered? ── no ──▶ home worker, exclusive mode ─▶ filters ─▶ unchanged: the plan has its turn
//!              │ yes                                             └─▶ changed: the request is replaced in the input,
//!              ▼                                                     and planned again
//!        it has its turn
//! ```
//!
//! A request is filtered once, however often it is put off and planned again ([`Connection::is_filtered`]).

use super::{BatchConnections, is_killed, is_runnable};
use crate::dispatch::deferral;
use crate::dispatch::exclusion::requester_for;
use crate::dispatch::modules::filters;
use crate::dispatch::notifications::send_early_broadcasts;
use crate::dispatch::plan::{CommandPlan, Plans, RequestKind};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Seat;
use crate::net::client::ClientFlags;
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::wake_workers;
use crate::observability::metrics::DeferralReason;
use weft_resp::command::write_command;

/// Returns `true` if filters have to see a request first. They see no commands of a primary or of a file, and none
/// while a script is overdue.
#[inline]
pub(super) fn must_filter(thread: &ThreadState, plan: &CommandPlan, connection: &Connection) -> bool {
    thread.commands_run_at_home && is_unfiltered(thread, plan, connection)
}

#[cold]
fn is_unfiltered(thread: &ThreadState, plan: &CommandPlan, connection: &Connection) -> bool {
    !connection.is_filtered
        && filters::exist()
        && !thread.replays
        && !matches!(plan.kind, RequestKind::Malformed(_))
        && !thread.server.scripting.running.has_overdue()
}

/// Puts off a request that is to be filtered, so that its connection moves to the home worker. Returns `false` if it is
/// filtered here.
#[cold]
pub(super) fn send_home(thread: &ThreadState, connection: &mut Connection) -> bool {
    let stays = ClientFlags::PUBSUB.union(ClientFlags::MONITOR);
    let moves = !thread.server.is_home(thread.thread_index) && !connection.client.flags.intersects(stays);
    if moves {
        connection.is_moving_home = true;
        connection.state = ConnectionState::Deferred;
    }
    moves
}

/// Filters the request of the plan with the index `index`. Returns the index of the plan that is next: the same one if
/// the request has not changed.
#[cold]
pub(super) fn filter_plan(
    thread: &mut ThreadState,
    seat: &mut Seat,
    plans: &Plans,
    connections: &mut dyn BatchConnections,
    index: usize,
) -> usize {
    let plan = &plans.plans[index];
    let Some(connection) = connections.connection(plan.token) else {
        return index + 1;
    };
    if !is_runnable(connection) || is_killed(thread, connection) {
        return index + 1;
    }
    let server = thread.server.clone();
    let running = &server.scripting.running;
    if !running.try_exclude_runs(requester_for(connection)) {
        deferral::put_off(thread, connection, DeferralReason::Script);
        return index + 1;
    }
    thread.begin_passage();
    // Others see what the batch has changed so far, and exclusive mode may be long in coming.
    send_early_broadcasts(thread);
    wake_workers(&server, &mut thread.effects);
    if !server.is_home(thread.thread_index) {
        thread.home_standby = server.summon_home();
    }
    let mut all = seat.exclusive();
    thread.begin_passage();
    let mut next = index;
    if let Some(connection) = connections.connection(plan.token)
        && !running.has_unfinished_unit()
    {
        let Connection { client, input, .. } = &mut *connection;
        let changed = filters::apply(thread, &mut all, client, plan.args_of(&plans.ranges, input));
        connection.is_filtered = true;
        if let Some(words) = changed {
            let mut request = Vec::new();
            write_command(words.args().iter(), &mut request);
            connection.replace_request(plan.start..plan.end, request);
            connection.state = ConnectionState::Deferred;
            next += 1;
        }
    }
    drop(all);
    thread.home_standby = None;
    running.end_exclusion();
    thread.effects.log_writer.wake();
    if thread.effects.has_deliveries() {
        connections.notify(thread);
    }
    next
}

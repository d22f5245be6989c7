//! The thread "weft-modules": enters exclusive mode for threads of modules that lock a thread-safe context, and lends
//! them its session.

use std::sync::Arc;
use std::time::Duration;

use super::home;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::Seat;
use crate::notify::messages::wake_workers;
use crate::observability::log;
use crate::state::{HOME_WORKER, Message, Server};
use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_modules::session::lending;
use weft_os::atomic::{AtomicBool, Ordering};

/// The interval at which the thread checks if the server has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The interval at which the thread tries again if no session may be lent.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time for which the thread waits for an index among the users of the keyspace.
const MAX_SEAT_WAIT: Duration = Duration::from_secs(5);

/// `true` once the thread was started.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Starts the thread, unless it runs.
pub(super) fn start(server: &Arc<Server>) {
    if IS_STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let server = server.clone();
    let spawned = weft_os::thread::Builder::new()
        .name("weft-modules".to_owned())
        .spawn(move || lend_sessions(&server));
    if let Err(error) = spawned {
        log::warning!("Threads of modules get no access to the data: {error}");
    }
}

fn lend_sessions(server: &Arc<Server>) {
    let Some(mut seat) = server.keyspace.join_within(MAX_SEAT_WAIT) else {
        log::warning!("Threads of modules get no access to the data: the keyspace has no free thread index");
        return;
    };
    let thread_index = ThreadIndex::new(seat.index());
    server
        .stats
        .activities
        .set_name(thread_index, "weft-modules".to_owned());
    let mut thread = ThreadState::new(server.clone(), thread_index);
    (thread.may_leave, thread.may_block) = (false, false);
    while !server.worker(HOME_WORKER).has_ended() {
        if let Some(loan) = lending::next_request(POLL_INTERVAL) {
            lend_once(server, &mut thread, &mut seat, &loan);
        }
    }
}

/// Returns `true` if no thread of a module gets a session: data are being loaded, or a module gives way to clients in
/// the middle of a command. The result holds until the thread passes the gate again.
pub(super) fn is_lock_withheld(server: &Server) -> bool {
    server.lacks_data() || server.is_module_giving_way()
}

/// Lends a session as soon as possible, and ends the unit that was made with it.
fn lend_once(server: &Arc<Server>, thread: &mut ThreadState, seat: &mut Seat, loan: &lending::Loan) {
    while !try_lend(server, thread, seat, loan) {
        if server.worker(HOME_WORKER).has_ended() {
            return;
        }
        weft_os::thread::sleep(RETRY_INTERVAL);
    }
    wake_workers(server, &mut thread.effects);
    thread.effects.log_writer.wake();
    let index = thread.thread_index;
    thread
        .effects
        .add_to_metrics(&server.keyspace, &server.stats.metrics, index);
    for unserved in thread.unserved.drain(..) {
        server.worker(HOME_WORKER).send(Message::ServeWaiters(unserved));
    }
}

/// Lends a session unless that is withheld. Returns `false` then, and if the server ends.
///
/// The home worker stands by, so that calls of the session into modules run there without that the gate is opened for
/// it: the data that the lock protects would change. Scripts are waited for before: a client of the home worker may
/// have to stop one.
fn try_lend(server: &Arc<Server>, thread: &mut ThreadState, seat: &mut Seat, loan: &lending::Loan) -> bool {
    let running = &server.scripting.running;
    running.exclude_runs();
    thread.home_standby = server.summon_home();
    let mut is_lent = false;
    if thread.home_standby.is_some() {
        let mut all = seat.exclusive();
        if !is_lock_withheld(server) {
            thread.begin_batch(unix_ms());
            thread.begin_passage();
            home::run_unit(thread, &mut all, |session| {
                session.thread.is_for_locks = true;
                loan.lend(session);
                session.thread.is_for_locks = false;
            });
            is_lent = true;
        }
    }
    thread.home_standby = None;
    running.end_exclusion();
    is_lent
}

//! Sessions with scripts of a module's engine (SYNC only): the script runs on the home worker, which this thread has
//! summoned, in exclusive mode. Its engine reads the commands of the user, through the session of this thread.

use std::sync::Arc;

use super::{DebuggerSession, RETRY_PAUSE, end_unit};
use crate::dispatch::accounting::{record_denial, write_error};
use crate::dispatch::admit::Admission;
use crate::dispatch::engine_script::EngineDebugger;
use crate::dispatch::modules;
use crate::dispatch::script_flags::{busy_error, runs_in_engine};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::HeldLeases;
use crate::net::connection::Connection;
use crate::observability::log;
use weft_base::ThreadIndex;
use weft_reactor::Output;
use weft_scripting::{Console, Debugger};

/// The error of a session on copies.
const ONLY_SYNC: &[u8] = b"-ERR Scripts of this engine can only be debugged with SCRIPT DEBUG SYNC\r\n";

/// Sends bytes after the replies to earlier commands.
fn send(console: &mut dyn Console, mut output: Output, reply: &[u8]) {
    output.bytes.extend_from_slice(reply);
    output.copy_shared();
    console.send(&output.bytes);
}

/// Runs the session of a script of an engine.
pub(super) fn run(session: &DebuggerSession, mut console: Box<dyn Console>, output: Output, is_sync: bool) {
    if !is_sync {
        return send(&mut *console, output, ONLY_SYNC);
    }
    log::notice!("Weft synchronous debugging eval session started");
    run_synchronously(session, console, output);
    log::notice!("Weft synchronous debugging eval session ended");
}

/// Excludes runs on script threads. Returns `false` if the session is over. A script that may never end is an error for
/// the client.
fn exclude_runs(session: &DebuggerSession, console: &mut dyn Console, reply: &mut Vec<u8>) -> bool {
    let running = &session.server.scripting.running;
    let requester = running.new_requester();
    while !running.try_exclude_runs(requester) {
        let busy = busy_error(&session.server);
        let is_over = session.is_revoked() || console.is_over(false);
        if busy.is_some() || is_over {
            running.withdraw(requester);
            if let Some(error) = busy {
                error.append_to(reply);
            }
            return false;
        }
        weft_os::thread::sleep(RETRY_PAUSE);
    }
    true
}

fn run_synchronously(session: &DebuggerSession, mut console: Box<dyn Console>, output: Output) {
    let server = session.server.clone();
    let running = &server.scripting.running;
    let Some(mut seat) = session.join_keyspace() else {
        return;
    };
    let mut reply = Vec::new();
    if !exclude_runs(session, &mut *console, &mut reply) {
        return send(&mut *console, output, &reply);
    }
    let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
    let mut connection = Connection::new(session.client.handler_view());
    thread.home_standby = server.summon_home();
    if thread.home_standby.is_none() {
        return running.end_exclusion();
    }
    let mut all = seat.exclusive();
    if running.has_unfinished_unit() {
        drop(all);
        return running.end_exclusion();
    }
    let mut debugger = Debugger::new(console, session.args().argument(1));
    match session.admit_again(&mut thread, &mut connection.client) {
        Admission::Run => {
            (thread.may_leave, thread.may_block) = (false, false);
            thread.engine_debugger = Some(Box::new(EngineDebugger(debugger)));
            let (mut held, mut written) = (HeldLeases::Exclusive(&mut all), Output::new());
            let args = session.args();
            let client = &mut connection.client;
            modules::engines::run(
                &mut thread,
                session.command,
                args,
                &mut held,
                client,
                &mut written,
                None,
            );
            written.copy_shared();
            reply.extend_from_slice(&written.bytes);
            match thread.engine_debugger.take() {
                Some(used) => debugger = used.0,
                None => unreachable!("the debugger is taken only here"),
            }
        }
        Admission::ClientClosing | Admission::Paused | Admission::PutOff => {
            drop(all);
            thread.home_standby = None;
            return running.end_exclusion();
        }
        Admission::Refused(error) | Admission::Redirected(error) => write_error(&thread, &error, &mut reply),
        Admission::Denied(denial) => {
            let error = record_denial(&thread, &connection, session.command, session.args(), denial);
            write_error(&thread, &error, &mut reply);
        }
    }
    let client = &mut connection.client;
    let unserved = end_unit(&mut thread, &mut all, client, false);
    drop(all);
    thread.home_standby = None;
    running.end_exclusion();
    session.send_notifications(&mut thread, &mut seat, unserved.map(|unserved| *unserved));
    if session.await_certainty(client) {
        let mut output = output;
        output.bytes.extend_from_slice(&reply);
        output.copy_shared();
        debugger.end(&output.bytes);
    }
}

/// Returns `true` if the script of a session is one of a module's engine.
pub(super) fn is_for_engine(session: &DebuggerSession) -> bool {
    let server: &Arc<_> = &session.server;
    runs_in_engine(server, session.command, session.args())
}

//! Debugger sessions: the connection of a client in debug mode leaves its worker, with its script, for a separate
//! thread.
//!
//! ```text
//!   worker                             session thread
//!   ──────                             ──────────────
//!   SCRIPT DEBUG YES  +OK
//!   EVAL ... the connection leaves ──▶ YES:  a second server, with copies of the keys that the script asks for
//!                                      SYNC: exclusive mode; all clients wait, and writes are kept
//!                                      the script runs and stops at breakpoints
//!                                      "<endsession>", the reply, and the connection is closed
//! ```
//!
//! 1. The script and its user have the connection to themselves: the thread reads and writes it, and may wait.
//! 2. The second server (YES) takes the role of the process that Valkey forks. It holds only copies, and has no blocked
//!    clients, no channels and no log. A key is copied when a command names it for the first time. A command that
//!    accesses all keys has all of them copied first ([`KeyCopier`]).
//! 3. When its user disconnects, a session continues without stops (SYNC), or ends, since its writes have no effect
//!    (YES). The same happens when its client is killed, or its ACL user is deleted. A SYNC session that has not begun
//!    does not begin then.
//! 4. Other clients change users during a session on copies. As its script gets copies of keys that are read when they
//!    are first accessed, the present rules of its ACL user apply to each command ([`KeyCopier`]).
//! 5. The permission is checked again when the connection leaves, which may wait for earlier replies. A SYNC session is
//!    admitted again in exclusive mode: permissions, the role of this server and the owners of slots may have changed
//!    since its worker has admitted it, and clients may be paused.
//! 6. Sessions end with the process. A SYNC session does not wait for its user while a shutdown is prepared, because
//!    all clients wait for it. If its script has not written, it ends; otherwise it continues without stops. A script
//!    that has written and does not end is stopped by the end of the process only, and then nothing of it remains (rule
//!    9 of [`super`]).
//! 7. No session waits for a script that is overdue and may never end. A SYNC session ends with the BUSY error instead
//!    of beginning. A session on copies gets that error for a command whose keys cannot be copied.

mod console;
mod engine;
mod key_copier;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_reactor::Output;
use weft_resp::{ArgRange, Args, Protocol, Reply};

use super::prepared::PrepareError;
use super::runner::{Runner, ScriptAccess, ScriptOutcome};
use super::{abandon_unit, prepare_script, record_script_command, reply_error};
use crate::commands::context::{Binding, NextStep};
use crate::commands::error::CommandError;
use crate::commands::permission;
use crate::commands::scripting::script::NO_SCRIPT;
use crate::dispatch::accounting::{record_denial, write_error};
use crate::dispatch::admit::{Admission, admit, admit_script, unknown_command_error};
use crate::dispatch::background::finish_batch;
use crate::dispatch::effects::free_removed_values;
use crate::dispatch::execute::apply_effects;
use crate::dispatch::notifications::monitor_line_of_unit;
use crate::dispatch::plan::plan_write_keys;
use crate::dispatch::request::{Outcome, Request};
use crate::dispatch::script_flags::busy_error;
use crate::dispatch::serve;
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::Hooks;
use crate::keyspace::{Exclusive, Seat, lease_all_for_good};
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::Connection;
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::observability::log;
use crate::observability::used_memory::UsedMemory;
use crate::replication::ReplicationState;
use crate::state::{
    ConnectionReceiver, Message, PermissionCheck, Server, ServerParts, SessionRegistration, UnservedKeys,
};
use console::DebuggerConnection;
pub(super) use key_copier::KeyCopier;
use weft_acl::Acl;
use weft_cluster::WriteFate;
use weft_command_table::registry::{Command, Lookup};
use weft_config::id;
use weft_os::sync::mpsc::channel;
use weft_scripting as scripting;
use weft_scripting::{CallResult, Debugger, Host, ScriptKind};

/// The interval between two attempts to get a resource that a session needs.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// The length of a script's digest.
const DIGEST_LEN: usize = 40;

/// A session that is about to start.
struct DebuggerSession {
    server: Arc<Server>,
    command: &'static Command<Binding>,
    request: Vec<u8>,
    ranges: Vec<ArgRange>,
    client: Client,
    registration: SessionRegistration,
}

/// The outcome of waiting for the scripts on script threads.
enum ExclusionOutcome {
    /// None runs, and none starts until the exclusion is ended.
    Excluded,
    /// The session is over.
    SessionOver,
    /// A script is overdue; this is the error for the client.
    ScriptBusy(CommandError),
}

/// Returns `true` if a client's script must run in a session: the client is in debug mode, and the script is not a
/// function.
#[inline]
pub(super) fn must_run_in_session(client: &Client, command: &Command<Binding>) -> bool {
    client.flags.contains(ClientFlags::DEBUG_SCRIPTS) && command.full_name.starts_with("eval")
}

/// Starts a session: the connection leaves its worker.
#[cold]
pub(super) fn begin_session(thread: &mut ThreadState, request: &Request<'_>, connection: &mut Connection) -> Outcome {
    let args = request.args(&connection.input);
    if request.command.full_name.starts_with("evalsha") {
        let error = match args.argument(1).len() {
            DIGEST_LEN => CommandError::constant("ERR Please use EVAL instead of EVALSHA for debugging"),
            _ => NO_SCRIPT,
        };
        return reply_error(thread, request, connection, &error);
    }
    if connection.client.flags.contains(ClientFlags::DEBUG_SCRIPTS_SYNC)
        && let Some(error) = busy_error(&thread.server)
    {
        return reply_error(thread, request, connection, &error);
    }
    connection.client.last_command = request.command.full_name;
    if thread.server.keyspace.hooks.current().intersects(Hooks::MONITOR) {
        let line = monitor_line_of_unit(&thread.server, &connection.client, args.iter());
        NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_monitor_line(line);
    }
    let plan = request.plan;
    let (server, command) = (thread.server.clone(), request.command);
    let words = connection.input[plan.start..plan.end].to_vec();
    let ranges = plan.ranges_of(request.ranges).to_vec();
    let arguments: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
    let client = connection.client.handler_view();
    let length = connection.output.len();
    record_script_command(thread, request, connection, length, false);
    let mut checked = connection.client.detached_view();
    let permission: PermissionCheck = Box::new(move |server, thread_index| {
        permission::check_queued_command(server, thread_index, &mut checked, command, &arguments)
    });
    let begin: ConnectionReceiver = Box::new(move |connection| {
        // Not earlier: until then the worker has the client, and closes it if it is killed.
        let registration = SessionRegistration::new(&server, &connection.client);
        let session = DebuggerSession {
            server,
            command,
            request: words,
            ranges,
            client,
            registration,
        };
        session.start_thread(connection);
    });
    Outcome::After(NextStep::TakeConnection(Box::new((permission, begin))))
}

impl DebuggerSession {
    /// Starts the session's thread. Without a thread the connection is closed.
    fn start_thread(self, connection: Box<Connection>) {
        let spawned = weft_os::thread::Builder::new()
            .name("weft-debug".to_owned())
            .stack_size(weft_scripting::SCRIPT_STACK_BYTES)
            .spawn(move || self.run_session(*connection));
        if let Err(error) = spawned {
            log::warning!("A debugging session has no thread: {error}");
        }
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.request, &self.ranges)
    }

    fn run_session(self, mut connection: Connection) {
        let is_sync = self.client.flags.contains(ClientFlags::DEBUG_SCRIPTS_SYNC);
        let Some(registered) = connection.in_transit.take() else {
            return;
        };
        let mark = self.registration.kill_mark().clone();
        let account = self.client.login.account().clone();
        let line = match DebuggerConnection::open(registered, self.server.clone(), mark, account, is_sync) {
            Ok(line) => line,
            Err(error) => {
                log::warning!("cannot watch the connection of a debugging session: {error}");
                return;
            }
        };
        if engine::is_for_engine(&self) {
            return engine::run(&self, Box::new(line), connection.output, is_sync);
        }
        let debugger = Rc::new(RefCell::new(Debugger::new(Box::new(line), self.args().argument(1))));
        match is_sync {
            true => {
                log::notice!("Weft synchronous debugging eval session started");
                self.run_synchronously(&debugger, connection.output);
                log::notice!("Weft synchronous debugging eval session ended");
            }
            false => {
                log::notice!("Weft debugging session begins, on copies of keys");
                self.run_on_scratch_keyspace(&debugger, connection.output);
                log::notice!("Weft debugging session ends");
            }
        }
    }

    /// Sends the reply, after the replies to earlier commands.
    fn send_reply(&self, debugger: &scripting::DebugSession, mut output: Output, reply: &[u8]) {
        output.bytes.extend_from_slice(reply);
        output.copy_shared();
        debugger.borrow_mut().end(&output.bytes);
    }

    // ---- SYNC ------------------------------------------------------------------------------------------------------

    /// Runs the script with exclusive access to the keyspace.
    fn run_synchronously(&self, debugger: &scripting::DebugSession, output: Output) {
        let server = &self.server;
        let running = &server.scripting.running;
        let Some(mut seat) = self.join_keyspace() else {
            return;
        };
        let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
        let mut connection = Connection::new(self.client.handler_view());
        let mut reply = Vec::new();
        let (mut all, admission) = loop {
            match self.exclude_runs(debugger) {
                ExclusionOutcome::Excluded => {}
                ExclusionOutcome::SessionOver => return,
                ExclusionOutcome::ScriptBusy(error) => {
                    write_error(&thread, &error, &mut reply);
                    return self.send_reply(debugger, output, &reply);
                }
            }
            let all = seat.exclusive();
            if running.has_unfinished_unit() {
                drop(all);
                running.end_exclusion();
                return;
            }
            let resumptions = server.clients.pause.resumptions();
            let admission = self.admit_again(&mut thread, &mut connection.client);
            if !matches!(admission, Admission::Paused) {
                break (all, admission);
            }
            drop(all);
            running.end_exclusion();
            if !self.await_resumption(resumptions, debugger) {
                return;
            }
        };
        let mut is_unfinished = false;
        match admission {
            Admission::Run => {
                let held = ScriptAccess::Everything(&mut all);
                is_unfinished = self.debug_script(&mut thread, held, &mut connection.client, debugger, &mut reply);
            }
            Admission::ClientClosing | Admission::Paused | Admission::PutOff => {
                drop(all);
                running.end_exclusion();
                return;
            }
            Admission::Refused(error) | Admission::Redirected(error) => write_error(&thread, &error, &mut reply),
            Admission::Denied(denial) => {
                let error = record_denial(&thread, &connection, self.command, self.args(), denial);
                write_error(&thread, &error, &mut reply);
            }
        }
        let client = &mut connection.client;
        let unserved = end_unit(&mut thread, &mut all, client, is_unfinished);
        drop(all);
        running.end_exclusion();
        scripting::drop_interpreter(&server.scripting, ScriptKind::Eval);
        self.send_notifications(&mut thread, &mut seat, unserved.map(|unserved| *unserved));
        if self.await_certainty(client) {
            self.send_reply(debugger, output, &reply);
        }
    }

    /// Waits until it is certain that the writes of the script are not lost. Returns `false` if they may be.
    fn await_certainty(&self, client: &Client) -> bool {
        let (server, running) = (&self.server, &self.server.scripting.running);
        // Before the session, the client had the replies to all its earlier writes.
        let is_unlogged = || server.propagation.must_withhold_reply(client.last_write_sequence);
        let fate = || match &server.cluster {
            Some(cluster) if !client.unacknowledged_write.is_none() => {
                cluster.fate_of_write(client.unacknowledged_write)
            }
            _ => WriteFate::Kept,
        };
        while (is_unlogged() || fate() == WriteFate::Doubtful) && !running.is_shutting_down() {
            weft_os::thread::sleep(RETRY_PAUSE);
        }
        !is_unlogged() && fate() == WriteFate::Kept
    }

    /// Returns `true` if the client was killed or its ACL user was deleted.
    fn is_revoked(&self) -> bool {
        self.registration.kill_mark().is_killed() || self.client.login.account().is_deleted()
    }

    /// Returns `true` if a script that has not begun does not begin any more.
    fn is_over(&self, debugger: &scripting::DebugSession) -> bool {
        self.is_revoked() || debugger.borrow_mut().is_over(false)
    }

    /// Excludes runs on script threads. A script that does not end can be killed meanwhile, until it is overdue.
    fn exclude_runs(&self, debugger: &scripting::DebugSession) -> ExclusionOutcome {
        let running = &self.server.scripting.running;
        let requester = running.new_requester();
        while !running.try_exclude_runs(requester) {
            let outcome = match self.is_over(debugger) {
                true => Some(ExclusionOutcome::SessionOver),
                false => busy_error(&self.server).map(ExclusionOutcome::ScriptBusy),
            };
            if let Some(outcome) = outcome {
                running.withdraw(requester);
                return outcome;
            }
            weft_os::thread::sleep(RETRY_PAUSE);
        }
        ExclusionOutcome::Excluded
    }

    /// Waits until clients continue after a pause. `resumptions` was read before the pause was found. Returns `false`
    /// if the session is over.
    fn await_resumption(&self, resumptions: u64, debugger: &scripting::DebugSession) -> bool {
        while self.server.clients.pause.resumptions() == resumptions {
            if self.is_over(debugger) {
                return false;
            }
            weft_os::thread::sleep(RETRY_PAUSE);
        }
        true
    }

    /// Admits the script again, in exclusive mode.
    fn admit_again(&self, thread: &mut ThreadState, client: &mut Client) -> Admission {
        thread.begin_batch(unix_ms());
        thread.begin_passage();
        if self.is_revoked() {
            return Admission::ClientClosing;
        }
        // The script was admitted before one ran for too long.
        thread.replication_state = thread.replication_state.difference(ReplicationState::SCRIPT_BUSY);
        let (args, mut keys) = (self.args(), Vec::new());
        plan_write_keys(&self.server.keyspace, self.command, &args, &mut keys);
        let admission = admit(thread, client, self.command, || args, &keys);
        admit_script(thread, client, admission, self.command, args)
    }

    /// Joins the keyspace once a thread seat is free. Returns `None` if the process ends.
    fn join_keyspace(&self) -> Option<Seat> {
        loop {
            let seat = self.server.keyspace.slots.join();
            if seat.is_some() || self.server.scripting.running.is_shutting_down() {
                return seat;
            }
            weft_os::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Sends the notifications of the script's commands, as the end of a batch does.
    fn send_notifications(&self, thread: &mut ThreadState, seat: &mut Seat, unserved: Option<UnservedKeys>) {
        let server = &self.server;
        finish_batch(thread, seat);
        NotificationSender::new(server, &mut thread.effects, thread.thread_index).send_broadcasts();
        let left: Vec<_> = thread.unserved.drain(..).chain(unserved).collect();
        for (unserved, worker) in left.into_iter().zip(server.workers.iter().cycle()) {
            worker.send(Message::ServeWaiters(unserved));
        }
        wake_workers(server, &mut thread.effects);
        thread.effects.log_writer.wake();
    }

    // ---- YES -------------------------------------------------------------------------------------------------------

    /// Runs the script on the scratch keyspace.
    fn run_on_scratch_keyspace(&self, debugger: &scripting::DebugSession, output: Output) {
        let scratch = create_scratch_server(&self.server);
        let Some(mut seat) = scratch.keyspace.slots.join() else {
            unreachable!("it has a seat, and nobody else knows of it");
        };
        let mut thread = ThreadState::new(scratch.clone(), ThreadIndex::new(seat.index()));
        // Reads the current permissions, topology and replication state.
        thread.begin_batch(unix_ms());
        let server = &self.server;
        thread.replication_state = server.replication.state_bits();
        thread.view = server.cluster.as_ref().map(weft_cluster::Cluster::view);
        let limit = server.config.unsigned(id::MAXMEMORY);
        thread.memory_limit.is_full = limit != 0 && server.counted_memory() > limit;
        let mut client = self.client.handler_view();
        let mut reply = Vec::new();
        let mut all = seat.exclusive();
        let mut key_copier = KeyCopier::new(self.server.clone(), self.registration.kill_mark().clone());
        let held = ScriptAccess::Scratch(&mut all, &mut key_copier);
        self.debug_script(&mut thread, held, &mut client, debugger, &mut reply);
        free_removed_values(&mut thread.effects, &scratch);
        self.send_reply(debugger, output, &reply);
    }

    // ---- both ------------------------------------------------------------------------------------------------------

    /// Runs the script. Appends its reply, or the error because of which it does not run, to `reply`. Returns `true` if
    /// the end of the process has stopped the script after it had written.
    fn debug_script(
        &self,
        thread: &mut ThreadState,
        held: ScriptAccess<'_, '_>,
        client: &mut Client,
        debugger: &scripting::DebugSession,
        reply: &mut Vec<u8>,
    ) -> bool {
        (thread.may_leave, thread.may_block) = (false, false);
        let args = self.args();
        let server = thread.server.clone();
        let debugging = scripting::begin_debugging(&server.scripting, debugger);
        let prepared = debugging
            .map_err(|text| CommandError::from_bytes([b"ERR ", &text[..]].concat()))
            .and_then(|()| {
                prepare_script(thread, self.command, args, false, &|_| {}).map_err(PrepareError::into_error)
            });
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                write_error(thread, &error, reply);
                return false;
            }
        };
        let mut runner = Runner::new(thread, None, held, client, &prepared, false, args);
        runner.debugger = Some(debugger.clone());
        let ended = runner.run_script(&prepared, args, &mut Reply::new(reply, client.protocol), false);
        let (_, run) = runner.end();
        let is_stopped = matches!(ended, ScriptOutcome::Stopped(_));
        if is_stopped {
            reply.clear();
        }
        is_stopped && run.has_written()
    }
}

/// Logs the writes of a script in exclusive mode, and serves the clients that wait for them. If the script is
/// unfinished, its writes are discarded instead, and no command sees them (rule 9 of scripts).
fn end_unit(
    thread: &mut ThreadState,
    all: &mut Exclusive<'_>,
    client: &mut Client,
    is_unfinished: bool,
) -> Option<Box<UnservedKeys>> {
    if is_unfinished {
        abandon_unit(thread);
    }
    let unserved = serve::serve_unit(thread, None, HeldLeases::Exclusive(all), client);
    assert!(
        !thread.effects.log_writer.has_pending_ops(),
        "the writes of a debugged script are logged before other clients continue"
    );
    if is_unfinished {
        lease_all_for_good(all);
    }
    apply_effects(thread);
    unserved
}

/// Creates a server that shares only the parameters and the number of databases.
fn create_scratch_server(server: &Server) -> Arc<Server> {
    let scratch = Arc::new(Server::new(ServerParts {
        config: server.config.snapshot(),
        acl: Acl::new(permission::command_catalogue()),
        keyspace: server.keyspace.new_scratch_keyspace(),
        cluster: None,
        workers: 0,
        metrics: crate::commands::module_commands::new_metrics(1),
        lazyfree: server.background.lazyfree.clone(),
        // There is no receiver, so work for other threads is discarded.
        background: channel().0,
        script_jobs: channel().0,
        supply: channel().0,
        orders: channel().0,
        run_id: server.lifecycle.run_id.clone(),
        started: server.lifecycle.started,
        started_unix_s: server.lifecycle.started_unix_s,
        memory: Arc::new(UsedMemory::new(0)),
    }));
    let myself: Weak<Server> = Arc::downgrade(&scratch);
    let _ = scratch.lifecycle.server.set(myself);
    scratch
}

/// The host of a script in a session. It reports each call and its result to the debugger.
pub(super) struct DebuggedHost<'o> {
    pub(super) host: &'o mut dyn Host,
    pub(super) debugger: &'o RefCell<Debugger>,
}

impl Host for DebuggedHost<'_> {
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> CallResult<'_> {
        let args = Args::new(request, ranges);
        let words: Vec<&[u8]> = args.iter().collect();
        self.debugger.borrow_mut().log_command(words.into_iter());
        let answer = self.host.call(request, ranges);
        let mut debugger = self.debugger.borrow_mut();
        match &answer {
            CallResult::Reply(reply) => {
                debugger.log_reply(reply);
                if reply.starts_with(b"-") {
                    debugger.log_error(reply);
                }
            }
            CallResult::Refused(text) => {
                let (reply, error) = refusal_texts(args, text);
                debugger.log_reply(&[b"-", &reply[..], b"\r\n"].concat());
                debugger.log_error(&error);
            }
            CallResult::Stop => {}
        }
        answer
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.host.set_protocol(protocol);
    }

    fn reply_bytes_max(&self) -> usize {
        self.host.reply_bytes_max()
    }

    fn set_replication(&mut self, parts: u8) {
        self.host.set_replication(parts);
    }

    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool> {
        self.host.may_call(request, ranges)
    }

    fn note_malformed(&mut self, error: &str) {
        let plain = error.strip_prefix("ERR ").unwrap_or(error);
        self.debugger.borrow_mut().log_error(plain.as_bytes());
    }
}

/// Returns a refusal as Valkey's debugger shows it: the server's reply, and the error that the script gets.
fn refusal_texts(args: Args<'_>, text: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let commands = crate::commands::registry();
    let plain = text
        .strip_prefix(b"ERR ")
        .filter(|_| !text.starts_with(permission::SCRIPT_DENIAL));
    let of_acl = text.strip_prefix(permission::SCRIPT_DENIAL);
    match (commands.lookup(&args), plain, of_acl) {
        (Lookup::UnknownCommand, Some(plain), _) => {
            (unknown_command_error(commands, args).0.into_owned(), plain.to_vec())
        }
        (Lookup::Found(command), Some(plain), _) if !command.spec.accepts_arg_count(args.len()) => {
            (unknown_command_error(commands, args).0.into_owned(), plain.to_vec())
        }
        (Lookup::Found(command), Some(plain), _) if plain.ends_with(b"not allowed from script") => {
            let reply = format!("ERR command '{}' is not allowed on script mode", command.full_name);
            (reply.into_bytes(), plain.to_vec())
        }
        (_, _, Some(reason)) => (
            [b"NOPERM ", reason].concat(),
            [b"ACL failure in script: ", reason, b"\r\n"].concat(),
        ),
        _ => (text.to_vec(), [b"-", text, b"\r\n"].concat()),
    }
}

#[cfg(test)]
mod tests;

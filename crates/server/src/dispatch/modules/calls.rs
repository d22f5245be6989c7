//! Commands that modules call and propagate.
//!
//! A call runs in the session of its caller: under the same leases, and as a part of the same unit. Its client is a
//! view of the session's client, as for a command of a script, so that SELECT and AUTH affect nothing else.
//!
//! ```text
//!   words ─▶ user ─▶ command, arguments ─▶ flags of the call ─▶ permission ─▶ slots of a cluster ─▶ server's state
//!     each of them may refuse the call, with an error number for the module
//!   ─▶ handler, script or module ─▶ ops of the log, notifications ─▶ reply
//! ```
//!
//! 1. Blocked clients are served when the unit ends, not after each call.
//! 2. A call without `!` mutes the log: neither its command is propagated, nor what that calls in turn. Deletions of
//!    expired keys are propagated all the same.
//! 3. A command replies at once. One that would need another thread, or wait for the workers, gets an error, or replies
//!    from what this thread knows.
//! 4. An error of a call does not count in the statistics, unless the module passes it on to a client.

use std::sync::Arc;

use weft_base::{ClientId, DbIndex, ParkId};
use weft_reactor::Output;
use weft_resp::{Args, Protocol};

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::commands::error::CommandError;
use crate::commands::permission::{self, CommandPermission};
use crate::dispatch::accounting::{CommandEnd, record_command};
use crate::dispatch::admit::{REPLAYING_CLIENTS, aof_write_error, rdb_save_error, unknown_command_error};
use crate::dispatch::command_events::RecordedEnd;
use crate::dispatch::engine_script::EngineScript;
use crate::dispatch::notifications::{Caller as NotificationCaller, queue_notifications};
use crate::dispatch::plan::plan_write_keys;
use crate::dispatch::record::{self, CommandLogThresholds};
use crate::dispatch::script_flags::{has_too_few_replicas, is_read_only, is_stale};
use crate::dispatch::thread::LeasedCall;
use crate::dispatch::watches::remove_own_watches;
use crate::dispatch::{expired_sources, propagate, redirect, script, script_flags};
use crate::keyspace::access::HeldLeases;
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::net::client::{BufferFigures, Client, ClientFlags};
use crate::observability::metrics::Counter;
use crate::propagation::LogTarget;
use crate::state::blocked_calls::{BlockedCall, CallWait};
use crate::state::{ClientVisitorHost, WorkerQuery};
use weft_acl::{DenialContext, Login};
use weft_command_table::registry::{Command, Lookup};
use weft_command_table::spec::CommandFlags;
use weft_modules::objects::arguments::{CallFlags, CommandWords};
use weft_modules::objects::context::Context;
use weft_modules::objects::promise::Promise;
use weft_modules::objects::reply::FinishedReply;
use weft_modules::session::calls::{
    CallErrno, CallHost, CallOutcome, CallRefusal, CallRequest, CallSession, NO_USER, PropagationTarget,
};
use weft_scripting::ScriptFlags;

use super::{ModuleCall, ModuleHost, ModuleSession, SessionAccess, command, filters, key_events};

/// The size of replies up to which their buffer is used again, in bytes.
const MAX_COPIED_REPLY_BYTES: usize = 16 << 10;

/// A command that was admitted.
#[derive(Clone, Copy)]
struct AdmittedCall<'a> {
    command: &'static Command<Binding>,
    binding: Binding,
    args: Args<'a>,
    flags: CallFlags,
    /// `true` if a script of a scripting engine calls it.
    is_for_script: bool,
}

/// The error for the module, and the text for a client.
struct Refusal(CallErrno, Vec<u8>);

impl Refusal {
    /// Creates a refusal whose text gets the code `ERR`.
    fn new(errno: CallErrno, text: impl Into<Vec<u8>>) -> Refusal {
        Refusal(errno, text.into())
    }

    /// Creates a refusal with the text of an error, which has a code.
    fn with_error(errno: CallErrno, error: &CommandError) -> Refusal {
        Refusal(errno, [b"-", &*error.0].concat())
    }
}

impl CallSession for ModuleSession<'_, '_> {
    fn call(&mut self, request: &CallRequest<'_>) -> CallOutcome {
        let changed = match filters::exist() {
            true => self.filter_call(request.words.args()),
            false => None,
        };
        let request = &CallRequest {
            words: changed.as_ref().unwrap_or(request.words),
            ..*request
        };
        let mut buffers = self.thread.script_buffers.take().unwrap_or_default();
        let mut client = match buffers.client.take() {
            None => Box::new(self.client.handler_view()),
            Some(mut earlier) => {
                self.client.update_handler_view(&mut earlier);
                earlier
            }
        };
        prepare_client(&mut client, request);
        let flags = self.effective_flags(request);
        let is_superuser = !flags.contains(CallFlags::RUN_AS_USER);
        if is_superuser {
            // Exchanged, not copied: workers would share the counters of its holders.
            std::mem::swap(&mut client.login, self.superuser_login(&mut buffers.superuser));
        }
        let outcome = match self.admit_call(&mut client, request, flags) {
            Err((command, Refusal(errno, text))) => {
                if request.flags.contains(CallFlags::SCRIPT_MODE)
                    && let Some(command) = command
                {
                    let metrics = &self.thread.server.stats.metrics;
                    metrics.record_rejection(self.thread.thread_index, command.id as usize);
                }
                let text = request.flags.contains(CallFlags::ERRORS_AS_REPLIES).then_some(text);
                CallOutcome::Refused(CallRefusal { errno, text })
            }
            Ok(_) if request.flags.contains(CallFlags::DRY_RUN) => CallOutcome::Replied(Vec::new()),
            Ok(call) => {
                buffers.output.clear();
                let blocked = self.run_call(call, &mut client, &mut buffers.planned, &mut buffers.output);
                match blocked {
                    None => CallOutcome::Replied(take_reply(&mut buffers.output)),
                    Some((park_id, wait, at_ms)) => {
                        CallOutcome::Blocked(self.begin_wait(request, call, park_id, wait, at_ms))
                    }
                }
            }
        };
        if let Some(login) = buffers.superuser.as_mut().filter(|_| is_superuser) {
            std::mem::swap(&mut client.login, login);
        }
        buffers.client = Some(client).filter(|client| client.may_become_other_view());
        buffers.shrink();
        self.thread.script_buffers = Some(buffers);
        outcome
    }

    fn has_user(&self, context: &Context) -> bool {
        // The view of a client has the login of the session's one. That of a call for no user has none.
        let has_client =
            ClientId::new(context.caller.borrow().client_id) == self.client.id && self.client.id.get() != 0;
        context.users.chosen.borrow().is_some() || (has_client && !self.client.login.is_superuser())
    }

    fn abort_call(&mut self, promise: &Promise) -> bool {
        self.abort_blocked_call(promise)
    }

    fn replicate(&mut self, db: u32, words: &CommandWords, target: PropagationTarget) {
        if let Some(target) = self.begin_propagation(target) {
            self.propagate(target, db, words);
        }
    }

    fn replicate_verbatim(&mut self, context: &Context) {
        if context.strings.count() > 0
            && let Some(target) = self.begin_propagation(PropagationTarget::ALL)
            && let Some(words) = context.strings.words()
        {
            let db = context.caller.borrow().db;
            self.propagate(target, db, &words);
        }
    }
}

impl CallHost for ModuleHost {
    fn has_command(&self, name: &[u8]) -> bool {
        let mut words = CommandWords::default();
        words.push(name);
        !matches!(
            crate::commands::registry().lookup(&words.args()),
            Lookup::UnknownCommand
        )
    }
}

/// Returns the consumers in the log.
fn log_target(target: PropagationTarget) -> LogTarget {
    let mut consumers = LogTarget::empty();
    consumers.set(LogTarget::FILE, target.aof);
    consumers.set(LogTarget::REPLICAS, target.replicas);
    consumers
}

/// Turns a view of the session's client into the client of a call.
fn prepare_client(client: &mut Client, request: &CallRequest<'_>) {
    let caller = request.context.caller.borrow();
    client.id = ClientId::new(caller.client_id);
    client.db = DbIndex::new(caller.db as usize);
    client.protocol = if request.flags.contains(CallFlags::RESP_3) {
        Protocol::Resp3
    } else if request.flags.contains(CallFlags::RESP_AUTO) {
        caller.protocol
    } else {
        Protocol::Resp2
    };
    client.flags.set(ClientFlags::MULTI, false);
    client.flags.set(ClientFlags::MODULE_CALL, true);
}

/// Takes the reply of a call. The memory of a small one is used again.
fn take_reply(output: &mut Output) -> Vec<u8> {
    output.copy_shared();
    match output.bytes.len() {
        length @ ..=MAX_COPIED_REPLY_BYTES => {
            // The reply object appends a byte.
            let mut bytes = Vec::with_capacity(length + 1);
            bytes.extend_from_slice(&output.bytes);
            bytes
        }
        _ => std::mem::take(&mut output.bytes),
    }
}

/// The park id of a command that is blocked, what it waits for, and when the wait ends in milliseconds since the Unix
/// epoch.
type BegunWait = (ParkId, CallWait, Option<u64>);

/// The end of a command: its wait if it is blocked, or the error that it replies with.
type CallResult = Result<Option<BegunWait>, CommandError>;

type CommandRefusal = (Option<&'static Command<Binding>>, Refusal);

impl ModuleSession<'_, '_> {
    // ---- propagation -----------------------------------------------------------------------------------------------

    /// Counts a change that is propagated. Returns those of the consumers that the log has; `None` if there are none.
    fn begin_propagation(&mut self, target: PropagationTarget) -> Option<LogTarget> {
        let effects = &mut self.thread.effects;
        effects.dirty += 1;
        let target = log_target(target).intersection(effects.hooks.log_target());
        (!target.is_empty()).then_some(target)
    }

    /// Propagates the words of a command.
    fn propagate(&mut self, target: LogTarget, db: u32, words: &CommandWords) {
        let words: Vec<&[u8]> = words.args().iter().collect();
        let writer = &mut self.thread.effects.log_writer;
        writer.propagate_before(target, DbIndex::new(db as usize), &words);
    }

    // ---- admission -------------------------------------------------------------------------------------------------

    /// Applies all checks that can refuse a call, in order.
    fn admit_call<'a>(
        &mut self,
        client: &mut Client,
        request: &CallRequest<'a>,
        flags: CallFlags,
    ) -> Result<AdmittedCall<'a>, CommandRefusal> {
        if flags.contains(CallFlags::RUN_AS_USER) {
            self.set_login(client, request).map_err(|refusal| (None, refusal))?;
        }
        let args = request.words.args();
        let commands = crate::commands::registry();
        let unknown = |errno| Refusal::with_error(errno, &unknown_command_error(commands, args));
        let Lookup::Found(command) = commands.lookup(&args) else {
            return Err((None, unknown(CallErrno::UnknownCommand)));
        };
        let binding = match command.handler {
            Some(binding) if command.spec.accepts_arg_count(args.len()) => binding,
            _ => return Err((Some(command), unknown(CallErrno::WrongArity))),
        };
        let call = AdmittedCall {
            command,
            binding,
            args,
            flags,
            is_for_script: flags.contains(CallFlags::SCRIPT_MODE) && self.script_of(request.context).is_some(),
        };
        let refusal = self.refusal_by_flags(call);
        let refusal = refusal.or_else(|| self.refusal_by_permission(call, client));
        let refusal = refusal.or_else(|| self.refusal_by_cluster(call, client));
        let refusal = refusal.or_else(|| self.refusal_by_server_state(call, client));
        match refusal {
            Some(refusal) => Err((Some(command), refusal)),
            None => Ok(call),
        }
    }

    /// Returns the flags of a call with those that follow from the script that calls it. A script calls commands as its
    /// client's user, and memory may be short for it once it has written.
    fn effective_flags(&self, request: &CallRequest<'_>) -> CallFlags {
        let mut flags = request.flags;
        let Some(script) = self
            .script_of(request.context)
            .filter(|_| flags.contains(CallFlags::SCRIPT_MODE))
        else {
            return flags;
        };
        flags.insert(CallFlags::RUN_AS_USER);
        if script.allows_oom || script.run.has_written() {
            flags.remove(CallFlags::RESPECT_DENY_OOM);
        }
        flags
    }

    /// Returns the script that a context is for.
    fn script_of(&self, context: &Context) -> Option<&EngineScript> {
        self.thread.engine_script.as_deref().filter(|_| context.is_script.get())
    }

    /// Returns a thread's login above all users, which calls of modules have unless they run as a user.
    fn superuser_login<'l>(&self, kept: &'l mut Option<Login>) -> &'l mut Login {
        let acl = &self.thread.server.acl;
        let login = kept.get_or_insert_with(|| acl.superuser_login());
        acl.make_superuser(login);
        login
    }

    /// Sets the user for whom the command runs.
    fn set_login(&self, client: &mut Client, request: &CallRequest<'_>) -> Result<(), Refusal> {
        let acl = &self.thread.server.acl;
        if let Some(account) = request.context.users.chosen.borrow().as_ref() {
            client.login = acl.login_of(account.clone(), None);
            return Ok(());
        }
        match self.has_user(request.context) {
            true => Ok(()),
            false => Err(Refusal::new(CallErrno::NoUser, NO_USER)),
        }
    }

    /// Returns the flags of a command. A script that declares what it does has those that follow from that.
    fn flags_of(&self, call: AdmittedCall<'_>) -> CommandFlags {
        let mut flags = call.command.spec.flags;
        if call.binding.mode != HandlerMode::Script {
            return flags;
        }
        let scripts = &self.thread.server.scripting;
        if let Some(declared) = script_flags::script_flags(scripts, call.command, call.args) {
            let writes = !declared.contains(ScriptFlags::NO_WRITES);
            flags.set(CommandFlags::WRITE, writes);
            flags.set(
                CommandFlags::DENYOOM,
                writes && !declared.contains(ScriptFlags::ALLOW_OOM),
            );
            flags.set(CommandFlags::STALE, declared.contains(ScriptFlags::ALLOW_STALE));
        }
        flags
    }

    /// Applies the checks that the module has asked for by flags.
    fn refusal_by_flags(&self, call: AdmittedCall<'_>) -> Option<Refusal> {
        let name = call.command.full_name;
        let command_flags = self.flags_of(call);
        let permits_all = call.is_for_script && self.thread.server.scripting.permits_denied_commands();
        if call.flags.contains(CallFlags::SCRIPT_MODE) && command_flags.contains(CommandFlags::NOSCRIPT) && !permits_all
        {
            let text = format!("command '{name}' is not allowed on script mode");
            return Some(Refusal::new(CallErrno::NotForScripts, text));
        }
        let respects_limit = call.flags.contains(CallFlags::RESPECT_DENY_OOM);
        if respects_limit && command_flags.contains(CommandFlags::DENYOOM) && self.thread.memory_limit.is_full {
            let text = "-OOM command not allowed when used memory > 'maxmemory'.";
            return Some(Refusal::new(CallErrno::NotAllowed, text));
        }
        if call.flags.contains(CallFlags::NO_WRITES) && command_flags.contains(CommandFlags::WRITE) {
            let text = format!("Write command '{name}' was called while write is not allowed.");
            return Some(Refusal::new(CallErrno::NotAllowed, text));
        }
        None
    }

    /// Checks that the user may run the command, if it runs for a user.
    fn refusal_by_permission(&mut self, call: AdmittedCall<'_>, client: &mut Client) -> Option<Refusal> {
        if !call.flags.contains(CallFlags::RUN_AS_USER) {
            return None;
        }
        let server = &self.thread.server;
        if client.login.is_unrestricted(server.acl.version()) {
            return None;
        }
        let AdmittedCall { command, args, .. } = call;
        let permission = CommandPermission {
            command,
            args: &args,
            db: client.db,
            databases: permission::database_count(server),
        };
        let denial = permission::check_permission(client.login.rules(), &permission).err()?;
        let (thread_index, now_ms) = (self.thread.thread_index, self.thread.now_ms);
        let context = match call.is_for_script {
            true => DenialContext::EngineScript,
            false => DenialContext::Module,
        };
        let denied = permission::denied_access(client, context, command, &args, denial);
        let line = self.client.list_line(now_ms, BufferFigures::default());
        permission::log_denial(server, thread_index, now_ms, denied, line);
        let error = permission::denial_error(denial.reason, client.login.name(), command);
        Some(Refusal::with_error(CallErrno::Denied, &error))
    }

    /// Checks that this node of a cluster has the keys.
    fn refusal_by_cluster(&self, call: AdmittedCall<'_>, client: &Client) -> Option<Refusal> {
        let view = self.thread.view.as_ref()?;
        if self.client.flags.intersects(REPLAYING_CLIENTS) {
            return None;
        }
        let name = call.command.full_name;
        let text = redirect::script_routing_error(view, &self.thread.server, client, call.command, call.args, None)?;
        // The texts are those for scripts; the ones for modules name the command.
        Some(match text {
            redirect::CLUSTER_IS_READ_ONLY => Refusal::new(
                CallErrno::ClusterReadOnly,
                format!("Can not execute a write command '{name}' while the cluster is down and readonly"),
            ),
            redirect::CLUSTER_IS_DOWN => Refusal::new(
                CallErrno::ClusterDown,
                format!("Can not execute a command '{name}' while the cluster is down"),
            ),
            other => Refusal::new(CallErrno::ForeignKey, other),
        })
    }

    /// Applies the checks that a write needs in script mode.
    fn refusal_by_server_state(&self, call: AdmittedCall<'_>, client: &Client) -> Option<Refusal> {
        if !call.flags.contains(CallFlags::SCRIPT_MODE) {
            return None;
        }
        let (thread, command_flags) = (&*self.thread, self.flags_of(call));
        let script = thread.engine_script.as_deref().filter(|_| call.is_for_script);
        let changes = CommandFlags::WRITE.union(CommandFlags::MAY_REPLICATE);
        if script.is_some_and(|script| script.is_read_only) && command_flags.intersects(changes) {
            let text = "Write commands are not allowed from read-only scripts.";
            return Some(Refusal::new(CallErrno::NotAllowed, text));
        }
        // Once it has written, a script is not refused a write because of the state of the server.
        let has_written = script.is_some_and(|script| script.run.has_written());
        let refuse = |error: &CommandError| Some(Refusal::with_error(CallErrno::NotForScripts, error));
        if command_flags.contains(CommandFlags::WRITE) && !has_written {
            let must_obey = client.flags.intersects(REPLAYING_CLIENTS);
            if has_too_few_replicas(thread) {
                return refuse(&CommandError::constant("NOREPLICAS Not enough good replicas to write."));
            }
            if thread.tunables.refuses_writes && !must_obey {
                return refuse(&CommandError::from_text(rdb_save_error(&thread.server.config)));
            }
            if thread.tunables.is_aof_failing && !must_obey {
                return refuse(&aof_write_error(&thread.server));
            }
            if is_read_only(thread) && !must_obey {
                return refuse(&CommandError::constant(
                    "READONLY You can't write against a read only replica.",
                ));
            }
        }
        if let Some(script) = script.filter(|_| command_flags.contains(CommandFlags::WRITE)) {
            script.run.try_note_write();
        }
        if is_stale(thread) && !command_flags.contains(CommandFlags::STALE) {
            return refuse(&CommandError::constant(
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            ));
        }
        None
    }

    // ---- execution -------------------------------------------------------------------------------------------------

    /// Runs a command that was admitted, and writes its reply to `output`. Returns its wait if it is blocked.
    fn run_call(
        &mut self,
        call: AdmittedCall<'_>,
        client: &mut Client,
        planned: &mut Vec<PlannedKey>,
        output: &mut Output,
    ) -> Option<BegunWait> {
        let (start, dirty) = (self.thread.ticks, self.thread.effects.dirty);
        self.thread.ticks = self.thread.timer.raw();
        let last_command = client.last_command;
        self.thread.begin_command(client, call.command);
        if call.binding.mode == HandlerMode::Script {
            // Logs show the command of the client, if one of the script's is denied.
            client.last_command = last_command;
        }
        let was_muted = self.thread.effects.log_writer.is_muted;
        self.thread.effects.log_writer.is_muted |= !call.flags.contains(CallFlags::REPLICATE);
        let permissions = (self.thread.may_leave, self.thread.may_block);
        // Other commands that take the permission to block would leave the thread.
        let may_block = call.flags.contains(CallFlags::ALLOW_BLOCK) && self.access.is_exclusive();
        let is_blocking = call.command.spec.flags.contains(CommandFlags::BLOCKING);
        (self.thread.may_leave, self.thread.may_block) = (false, may_block && is_blocking);
        planned.clear();
        let result = match self.plan_call(call, planned) {
            Err(error) => Err(error),
            Ok(()) => match call.binding.mode {
                HandlerMode::Script => self.run_script(call, client, output),
                HandlerMode::Module => self.run_module(call, client, planned, output),
                HandlerMode::Leased | HandlerMode::Exclusive | HandlerMode::ExclusiveForSleep => {
                    self.run_handler(call, client, planned, output)
                }
            },
        };
        let blocked = result.unwrap_or_else(|error| {
            output.clear();
            error.append_to(&mut output.bytes);
            None
        });
        let failed = output.bytes.first() == Some(&b'-');
        if failed && call.is_for_script {
            let code = output.bytes[1..].split(|byte| matches!(byte, b' ' | b'\r')).next();
            let server = &self.thread.server;
            server
                .stats
                .metrics
                .add(self.thread.thread_index, Counter::ErrorReplies, 1);
            server.stats.errors.count(code.unwrap_or_default());
        }
        (self.thread.may_leave, self.thread.may_block) = permissions;
        self.thread.effects.log_writer.is_muted = was_muted;
        if let Some(watches) = client.watches.take() {
            remove_own_watches(&watches, &mut self.access.as_held_leases(), &self.thread.server);
        }
        if blocked.is_none() {
            let nanoseconds = self.record_call(call, client, output.len(), failed);
            let changes = self.thread.effects.dirty.saturating_sub(dirty);
            let end = RecordedEnd { nanoseconds, failed };
            self.deliver_end_of_call(client, (call.command, call.args), end, changes);
        }
        self.thread.ticks = start;
        blocked
    }

    /// Starts the wait of a command that is blocked, and returns the promise of its reply.
    fn begin_wait(
        &mut self,
        request: &CallRequest<'_>,
        call: AdmittedCall<'_>,
        park_id: ParkId,
        wait: CallWait,
        at_ms: Option<u64>,
    ) -> Arc<Promise> {
        let (module, db) = (request.context.module.clone(), request.context.caller.borrow().db);
        let promise = Promise::new(module, park_id.get(), db);
        let blocked = BlockedCall {
            promise: promise.clone(),
            wait,
            is_propagated: call.flags.contains(CallFlags::REPLICATE) && !self.thread.effects.log_writer.is_muted,
            command: call.command.id as usize,
        };
        self.begin_blocked_call(park_id, blocked, at_ms);
        promise
    }

    /// Plans the keys of a command. In a slot-safe session, their slots must be leased.
    fn plan_call(&mut self, call: AdmittedCall<'_>, planned: &mut Vec<PlannedKey>) -> Result<(), CommandError> {
        plan_write_keys(&self.thread.server.keyspace, call.command, &call.args, planned);
        let SessionAccess::Leased(leases) = &mut self.access else {
            return Ok(());
        };
        let needs_all = !matches!(call.binding.mode, HandlerMode::Leased) || call.binding.has_undeclared_keys;
        if needs_all && !leases.holds_all_slots() {
            return Err(CommandError::from_text(format!(
                "ERR A slot-safe command of a module cannot call '{}', which may access any key",
                call.command.full_name
            )));
        }
        let writes = call.command.spec.flags.contains(CommandFlags::WRITE) || call.binding.writes_all_keys;
        for key in planned {
            let Some(lease) = leases.index_of(key.slot) else {
                return Err(CommandError::constant(
                    "ERR A slot-safe command of a module cannot access a key that it has not declared",
                ));
            };
            if writes && HeldLeases::Script(leases).writable_slot(key.slot).is_none() {
                return Err(CommandError::constant(
                    "ERR A slot-safe command of a module cannot write a key that it has declared as read-only",
                ));
            }
            key.lease = lease;
        }
        Ok(())
    }

    /// Runs a command that runs a script.
    fn run_script(&mut self, call: AdmittedCall<'_>, client: &mut Client, output: &mut Output) -> CallResult {
        let flags = script_flags::script_flags(&self.thread.server.scripting, call.command, call.args);
        if let Some(flags) = flags
            && !client.flags.intersects(REPLAYING_CLIENTS)
        {
            script_flags::check_script_of_module(self.thread, flags)?;
        }
        let held = self.access.as_held_leases();
        let is_full = self.thread.memory_limit.is_full;
        // A script that the module calls without respect to the limit of memory may exceed it.
        self.thread.memory_limit.is_full &= call.flags.contains(CallFlags::RESPECT_DENY_OOM);
        script::run_in_transaction(self.thread, self.pass, call.command, call.args, held, client, output);
        self.thread.memory_limit.is_full = is_full;
        Ok(None)
    }

    /// Runs a command of a module, or one that loads or unloads a module.
    fn run_module(
        &mut self,
        call: AdmittedCall<'_>,
        client: &mut Client,
        planned: &[PlannedKey],
        output: &mut Output,
    ) -> CallResult {
        let mut module_call = ModuleCall {
            may_block: call.flags.contains(CallFlags::ALLOW_BLOCK) && self.access.is_exclusive(),
            next_step: NextStep::Reply,
        };
        let mut session = self.reborrow_for(client);
        session.call = Some(&mut module_call);
        let mut reply = FinishedReply::default();
        command::run_code(&mut session, call.command, call.binding, &call.args, &mut reply);
        command::finish_call(&mut session, call.command, call.args, planned);
        output.bytes.extend_from_slice(&reply.bytes);
        let NextStep::BlockByModule(wait) = module_call.next_step else {
            return Ok(None);
        };
        let deadline_ms = wait.deadline_ms;
        Ok(Some((
            wait.park_id,
            CallWait::Module(wait.blocked, wait.waiter),
            deadline_ms,
        )))
    }

    /// Runs the handler of a command.
    fn run_handler(
        &mut self,
        call: AdmittedCall<'_>,
        client: &mut Client,
        planned: &[PlannedKey],
        output: &mut Output,
    ) -> CallResult {
        // The command may publish, and the events of the module's own accesses come before.
        self.send_recorded_effects();
        let (thread, pass) = (&mut *self.thread, self.pass);
        if matches!(call.command.full_name, "subscribe" | "psubscribe") {
            return Err(CommandError::from_text(format!(
                "ERR {} isn't allowed for a DENY BLOCKING client",
                call.command.full_name.to_uppercase()
            )));
        }
        if let Some(view) = &thread.view
            && let Err(error) = redirect::check_script_keys(
                view,
                client,
                call.command,
                (call.args, planned),
                &self.access.as_held_leases(),
                thread.now_ms,
            )
        {
            return Err(error);
        }
        thread.effects.hooks = thread.server.keyspace.hooks.current();
        let dirty = thread.effects.dirty;
        let deletes_expired = expired_sources::must_delete_expired(thread, call.command);
        let leased = LeasedCall {
            command: call.command,
            args: call.args,
            planned,
            held: self.access.as_held_leases(),
            pass,
        };
        debug_assert!(leased.held.covers(planned), "a call runs under the leases of its keys");
        let mut context = thread.split_frame().0.context(leased, client, output);
        if deletes_expired {
            context.delete_expired_sources();
        }
        let result = (call.binding.handler)(&mut context);
        let next_step = std::mem::take(&mut context.next_step);
        if key_events::are_due(&context.keys) && !next_step.is_restarted() {
            drop(context);
            self.reborrow_for(client).deliver_events_of_call();
            let leased = LeasedCall {
                command: call.command,
                args: call.args,
                planned,
                held: self.access.as_held_leases(),
                pass,
            };
            context = self.thread.split_frame().0.context(leased, client, output);
        }
        if context.keys.effects.is_logging() {
            let target = match call.flags.contains(CallFlags::REPLICATE) {
                true => log_target(PropagationTarget::from_flags(call.flags)),
                false => LogTarget::empty(),
            };
            propagate::propagate_call_to(&mut context.keys, &next_step, dirty, target);
        }
        if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
            queue_notifications(&mut context, next_step.is_restarted(), NotificationCaller::Module);
        }
        drop(context);
        result?;
        self.complete_reply(call, next_step, client, output)
    }

    /// Completes a reply that other threads would produce, as far as this thread can, or lets the command wait.
    fn complete_reply(
        &mut self,
        call: AdmittedCall<'_>,
        next_step: NextStep,
        client: &mut Client,
        output: &mut Output,
    ) -> CallResult {
        match next_step {
            NextStep::Reply => {}
            NextStep::Block(blocked) => {
                let waiter = blocked.waiter;
                return Ok(Some((
                    waiter.park_id,
                    CallWait::Keys(waiter.clone()),
                    waiter.deadline_ms,
                )));
            }
            NextStep::AwaitReplicas(wait) => {
                let (at_ms, required_acks) = *wait;
                let park_id = self.thread.server.clients.next_park_id();
                let wait = CallWait::Replicas(self.begin_replica_wait(park_id, required_acks));
                return Ok(Some((park_id, wait, (at_ms != u64::MAX).then_some(at_ms))));
            }
            NextStep::QueryWorkers(query) => {
                output.clear();
                output.bytes = self.answer_query(&query, client);
            }
            NextStep::ReplyAt(reply) => {
                output.clear();
                output.bytes = reply.1;
            }
            _ => return Err(cannot_be_called(call.command)),
        }
        Ok(None)
    }

    /// Answers a query about all clients from what this thread knows: the caller, and the snapshots of the others, if
    /// the call is part of a transaction that has collected them.
    fn answer_query(&mut self, query: &WorkerQuery, client: &mut Client) -> Vec<u8> {
        let mut client_snapshots = self.thread.client_snapshots.take();
        let part = (query.task)(&mut ClientVisitorHost {
            server: &self.thread.server,
            client_snapshots: client_snapshots.as_mut().unwrap_or(&mut Vec::new()),
            requesting_client: client,
            requesting_client_buffers: BufferFigures::default(),
        });
        self.thread.client_snapshots = client_snapshots;
        (query.combine)(vec![part])
    }

    /// Counts a call, and logs it if it was slow or large.
    fn record_call(&mut self, call: AdmittedCall<'_>, client: &Client, reply_bytes: usize, failed: bool) -> u64 {
        let ending = CommandEnd {
            nanoseconds: record_command(self.thread, call.command, failed),
            request_bytes: call.args.request_len(),
            reply_bytes,
        };
        let thresholds = CommandLogThresholds::from_tunables(&self.thread.tunables);
        record::log_if_exceeded(&self.thread.server, call.command, thresholds, &ending, || {
            record::logged_command(call.command, call.args, client)
        });
        let thread = &mut *self.thread;
        thread.unfreed_by_modules.limit(&mut thread.effects, &thread.server);
        // This is not the end of the command whose code has made the call.
        self.thread.recorded_end = None;
        ending.nanoseconds
    }
}

/// Returns the error of a command that needs another thread.
#[cold]
fn cannot_be_called(command: &Command<Binding>) -> CommandError {
    CommandError::from_text(format!("ERR '{}' cannot be called by a module", command.full_name))
}

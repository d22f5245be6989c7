//! Commands of scripts: admission, the handler, and accounting.

use std::borrow::Cow;
use std::time::Duration;

use weft_resp::{Args, Reply};

use crate::commands::context::{Binding, HandlerMode, NextStep};
use crate::commands::error::{CommandError, printable_name};
use crate::commands::permission::{self, CommandPermission};
use crate::commands::scripting::script::busy_error_of_run;
use crate::commands::server::time;
use crate::dispatch::accounting::CommandEnd;
use crate::dispatch::admit::{WRITE_FLAGS, aof_write_error, rdb_save_error};
use crate::dispatch::command_events::{self, RecordedEnd};
use crate::dispatch::notifications::{Caller, queue_notifications};
use crate::dispatch::record::{self, CommandLogThresholds};
use crate::dispatch::request::CommandCall;
use crate::dispatch::script_flags::{has_too_few_replicas, is_read_only, is_stale};
use crate::dispatch::thread::LeasedCall;
use crate::dispatch::{expired_sources, hot_keys, modules, propagate, redirect, slot_stats};
use crate::keyspace::effects::Hooks;
use crate::net::client::{BufferFigures, ClientFlags};
use crate::notify::messages::{wait_until_read, wake_workers};
use crate::state::{ClientVisitorHost, QueryRequester, Server, WorkerQuery};
use weft_acl::{Denial, DenialContext};
use weft_command_table::registry::{Command, Lookup};
use weft_command_table::spec::CommandFlags;
use weft_os::sync::mpsc::{RecvTimeoutError, sync_channel};
use weft_os::time::{SystemTime, UNIX_EPOCH};
use weft_scripting::StopReason;

use super::{Runner, ScriptAccess};
use crate::dispatch::script_buffers::ScriptCallOutcome;

/// The interval at which a script that waits for workers checks if it must stop.
const QUERY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time for which a script waits, after one command, for a worker with a full mailbox.
const MAX_SCRIPT_WAIT: Duration = Duration::from_secs(1);
/// The same for a script in exclusive mode: workers may wait at the gate, and read nothing, until it is overdue.
const MAX_EXCLUSIVE_SCRIPT_WAIT: Duration = Duration::from_micros(100);
/// The time of commands after which the run is checked, in nanoseconds.
const MAX_UNCHECKED_NS: u64 = 100_000;
/// The maximum number of expired keys that are remembered per script; further ones are found again later.
const MAX_EXPIRED_KEYS: usize = 1024;

impl Runner<'_, '_, '_> {
    /// Applies all checks that can refuse a command, in order.
    #[inline]
    pub(super) fn admit(&mut self, args: &Args<'_>) -> Result<(&'static Command<Binding>, Binding), Vec<u8>> {
        let commands = crate::commands::registry();
        let refuse = |text: &'static str| text.as_bytes().to_vec();
        let (command, text) = match commands.lookup(args) {
            Lookup::UnknownCommand => (None, refuse("ERR Unknown command called from script")),
            Lookup::UnknownSubcommand { parent } => {
                let name = parent.full_name.to_uppercase();
                let text = [
                    b"ERR unknown subcommand '",
                    printable_name(args.argument(1)),
                    b"'. Try ",
                    name.as_bytes(),
                    b" HELP.",
                ]
                .concat();
                (None, text)
            }
            Lookup::Found(command) => match self.refusal_text(command, args) {
                Some(text) => (Some(command), text.into_owned()),
                None => match command.handler {
                    Some(binding) => return Ok((command, binding)),
                    None => (
                        Some(command),
                        refuse("ERR Wrong number of args calling command from script"),
                    ),
                },
            },
        };
        let code = match text.starts_with(permission::SCRIPT_DENIAL) {
            true => b"NOPERM".to_vec(),
            false => text.split(|byte| *byte == b' ').next().unwrap_or_default().to_vec(),
        };
        self.record_failure(command, ScriptCallOutcome::Rejected(code));
        if !self.must_use_one_slot {
            self.thread.slot = None;
        }
        Err(text)
    }

    fn refusal_text(&mut self, command: &'static Command<Binding>, args: &Args<'_>) -> Option<Cow<'static, [u8]>> {
        let refuse = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        let flags = command.spec.flags;
        if !command.spec.accepts_arg_count(args.len()) {
            return refuse("ERR Wrong number of args calling command from script");
        }
        let runs_script = command
            .handler
            .is_some_and(|binding| binding.mode == HandlerMode::Script);
        let permitted = self.thread.server.scripting.permits_denied_commands() && !runs_script;
        if flags.contains(CommandFlags::NOSCRIPT) && !permitted {
            return refuse("ERR This Valkey command is not allowed from script");
        }
        if let Err(denial) = self.check_permission(command, args) {
            let (client, thread_index, now_ms) = (&self.client, self.thread.thread_index, self.thread.now_ms);
            let refusal = permission::denied_access(client, DenialContext::Script, command, args, denial);
            let line = client.list_line(now_ms, BufferFigures::default());
            let text = permission::script_denial_error(denial.reason, client.login.name(), command);
            self.record_log(Box::new(move |server| {
                permission::log_denial(server, thread_index, now_ms, refusal, line);
            }));
            return Some(Cow::Owned(text));
        }
        if let Some(view) = &self.thread.view {
            let mut slot = self.slot.get();
            let bound = self.must_use_one_slot.then_some(&mut slot);
            let (server, client) = (&self.thread.server, &self.client);
            let refusal = redirect::script_routing_error(view, server, client, command, *args, bound);
            self.slot.set(slot);
            if let Some(refusal) = refusal {
                return Some(Cow::Owned(format!("ERR {refusal}").into_bytes()));
            }
        }
        if self.is_read_only && flags.intersects(WRITE_FLAGS) {
            return refuse("ERR Write commands are not allowed from read-only scripts.");
        }
        if !self.thread.replication_state.is_empty() && !self.client.flags.contains(ClientFlags::PRIMARY) {
            if flags.contains(CommandFlags::WRITE) && is_read_only(self.thread) {
                return refuse("READONLY You can't write against a read only replica.");
            }
            if flags.contains(CommandFlags::WRITE) && has_too_few_replicas(self.thread) && !self.has_written() {
                return refuse("NOREPLICAS Not enough good replicas to write.");
            }
            if !flags.contains(CommandFlags::STALE) && is_stale(self.thread) {
                return refuse("ERR Can not execute the command on a stale replica");
            }
        }
        let is_first_write = flags.contains(CommandFlags::WRITE) && !self.has_written();
        if is_first_write && !self.client.flags.contains(ClientFlags::PRIMARY) {
            if self.thread.tunables.refuses_writes {
                return Some(Cow::Owned(rdb_save_error(&self.thread.server.config).into_bytes()));
            }
            if self.thread.tunables.is_aof_failing {
                return Some(Cow::Owned(aof_write_error(&self.thread.server).0.into_owned()));
            }
        }
        if !self.may_exceed_memory && flags.contains(CommandFlags::DENYOOM) && !self.has_written() {
            return refuse("OOM command not allowed when used memory > 'maxmemory'.");
        }
        None
    }

    /// Gets the present rules of the caller's user, if the script is debugged on copies of keys: other clients change
    /// users meanwhile. Returns `false` if the session must end.
    #[inline]
    pub(super) fn refresh_permissions(&mut self) -> bool {
        match &mut self.access {
            ScriptAccess::Scratch(_, key_copier) => key_copier.begin_command(&mut self.client.login),
            ScriptAccess::Leased(_) | ScriptAccess::Everything(_) => true,
        }
    }

    /// Returns the error for a command that was refused copies of its keys because an overdue script holds a slot.
    #[cold]
    pub(super) fn refusal_of_copies(&mut self, command: &'static Command<Binding>) -> Option<Vec<u8>> {
        let ScriptAccess::Scratch(_, key_copier) = &mut self.access else {
            return None;
        };
        let run = key_copier.take_overdue_run()?;
        let error = busy_error_of_run(&self.thread.server.config, &run);
        let code = error.code().to_vec();
        self.record_failure(Some(command), ScriptCallOutcome::Rejected(code));
        Some(error.0.into_owned())
    }

    /// Returns `true` if a command was refused copies of its keys because users have changed since it was admitted.
    #[cold]
    pub(super) fn must_admit_again(&self) -> bool {
        matches!(self.access, ScriptAccess::Scratch(..)) && self.run.stop_reason().is_none()
    }

    /// Checks that the caller has the permission for a command.
    pub(super) fn check_permission(&self, command: &'static Command<Binding>, args: &Args<'_>) -> Result<(), Denial> {
        let (server, login) = (&self.thread.server, &self.client.login);
        if login.is_unrestricted(server.acl.version()) {
            return Ok(());
        }
        let permission = CommandPermission {
            command,
            args,
            db: self.client.db,
            databases: permission::database_count(server),
        };
        permission::check_permission(login.rules(), &permission)
    }

    // ---- execution -------------------------------------------------------------------------------------------------

    pub(super) fn execute_command(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: &Args<'_>,
    ) -> Option<()> {
        self.thread.ticks = self.thread.timer.raw();
        self.send_monitor_line();
        self.command_count += 1;
        self.dirty_before_call = self.thread.effects.dirty;
        if let Some(view) = &self.thread.view
            && let Err(error) = redirect::check_script_keys(
                view,
                &self.client,
                command,
                (*args, &self.buffers.planned),
                &self.access.as_held_leases(),
                self.thread.now_ms,
            )
        {
            self.end_call(command, args, Some(error), NextStep::Reply);
            return self.run.stop_reason().is_none().then_some(());
        }
        let (error, after) = self.run_handler(command, binding, args);
        if matches!(after, NextStep::QueryWorkers(_)) && self.restart_on_script_thread() {
            return None;
        }
        if matches!(after, NextStep::Defer) {
            // A slot that the command reads is held by another thread; with all slots held the attempt succeeds.
            self.lease_all_slots()?;
            let (error, after) = self.run_handler(command, binding, args);
            self.end_call(command, args, error, after);
        } else {
            self.end_call(command, args, error, after);
        }
        // The script may have been stopped while it waited for workers.
        self.run.stop_reason().is_none().then_some(())
    }

    fn run_handler(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: &Args<'_>,
    ) -> (Option<CommandError>, NextStep) {
        self.buffers.output.clear();
        if command.full_name == "time" {
            let start = || {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                now.saturating_sub(self.run.elapsed())
            };
            let shown = match self.run.time_when_overdue() {
                Some(time) => time,
                None => *self.shown_time.get_or_insert_with(start),
            };
            time::reply_time(
                &mut Reply::new(&mut self.buffers.output.bytes, self.client.protocol),
                shown,
            );
            return (None, NextStep::Reply);
        }
        debug_assert!(
            !command.spec.flags.intersects(WRITE_FLAGS) || self.has_written(),
            "the first write of a script is noted before it happens"
        );
        if binding.mode == HandlerMode::Module {
            return (self.run_module_command(command, binding, args), NextStep::Reply);
        }
        self.thread.effects.hooks = self.thread.server.keyspace.hooks.current();
        let dirty = self.thread.effects.dirty;
        let call = LeasedCall {
            command,
            args: *args,
            planned: &self.buffers.planned,
            held: self.access.as_held_leases(),
            pass: self.pass,
        };
        debug_assert!(
            call.held.covers(&self.buffers.planned),
            "a command of a script runs under the leases of its keys"
        );
        let deletes_expired = expired_sources::must_delete_expired(self.thread, command);
        let mut context = self
            .thread
            .split_frame()
            .0
            .context(call, &mut self.client, &mut self.buffers.output);
        if deletes_expired {
            context.delete_expired_sources();
        }
        let result = (binding.handler)(&mut context);
        if modules::key_events::are_due(&context.keys) && !context.next_step.is_restarted() {
            let next_step = std::mem::take(&mut context.next_step);
            drop(context);
            modules::key_events::deliver(self.thread, self.access.as_held_leases(), &mut self.client, None);
            let call = LeasedCall {
                command,
                args: *args,
                planned: &self.buffers.planned,
                held: self.access.as_held_leases(),
                pass: self.pass,
            };
            let frame = self.thread.split_frame().0;
            context = frame.context(call, &mut self.client, &mut self.buffers.output);
            context.next_step = next_step;
        }
        if context.keys.effects.is_logging() {
            propagate::propagate_call_to(&mut context.keys, &context.next_step, dirty, self.log_target);
        }
        if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
            let runs_again = context.next_step.is_restarted();
            queue_notifications(&mut context, runs_again, Caller::Script);
        }
        (result.err(), context.next_step)
    }

    /// Runs a command of a module. Returns the error with which it has replied, if it has.
    fn run_module_command(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: &Args<'_>,
    ) -> Option<CommandError> {
        let held = self.access.as_held_leases();
        let reply = modules::scripts::run_for_script(self.thread, held, &mut self.client, (command, binding), *args);
        let error = reply
            .bytes
            .strip_prefix(b"-")
            .map(|text| text.trim_ascii_end().to_vec());
        if error.is_none() {
            modules::command::count_errors(&self.thread.server, self.thread.thread_index, &reply.errors);
            self.buffers.output.bytes.extend_from_slice(&reply.bytes);
        }
        error.map(CommandError::from_bytes)
    }

    /// Records a command, and completes its reply.
    fn end_call(
        &mut self,
        command: &'static Command<Binding>,
        args: &Args<'_>,
        error: Option<CommandError>,
        next_step: NextStep,
    ) {
        let error = match next_step {
            NextStep::Reply => {
                // There is nothing to drop, and finding this out takes a call.
                std::mem::forget(next_step);
                error
            }
            _ => error.or_else(|| self.complete_reply(next_step)),
        };
        let now = self.thread.timer.raw();
        let nanoseconds = self.thread.timer.delta_as_nanos(self.thread.ticks, now);
        self.thread.ticks = now;
        self.buffers.output.copy_shared();
        if let Some(error) = &error {
            self.buffers.output.clear();
            error.append_to(&mut self.buffers.output.bytes);
        }
        let ending = CommandEnd {
            nanoseconds,
            request_bytes: args.request_len(),
            reply_bytes: self.buffers.output.len(),
        };
        let thresholds = CommandLogThresholds::from_tunables(&self.thread.tunables);
        if thresholds.is_exceeded_by(&ending) {
            let subject = record::logged_command(command, *args, &self.client);
            self.record_log(Box::new(move |server| {
                record::log_excess(server, command, thresholds, &ending, subject);
            }));
        }
        if self.thread.tunables.slot_stats {
            self.count_reply_for_slot(command, *args);
        }
        let sampler = &mut self.thread.hot_key_sampler;
        if sampler.is_on() && !sampler.pass_over(self.buffers.planned.len()) {
            let db = self.client.db;
            let args = *args;
            let call = CommandCall { command, args, db };
            hot_keys::sample_keys(self.thread, call, &self.buffers.planned, nanoseconds);
        }
        if command_events::are_heard() {
            self.deliver_end(command, *args, nanoseconds, error.is_some());
        }
        match error {
            None => self.record_success(command, nanoseconds),
            Some(error) => {
                let end = ScriptCallOutcome::Failed(nanoseconds, error.code().to_vec());
                self.record_failure(Some(command), end);
            }
        }
        self.check_time(nanoseconds);
        self.unfreed.limit(&mut self.thread.effects, &self.thread.server);
        self.thread.effects.expired.truncate(MAX_EXPIRED_KEYS);
        // The worker may sleep without this mail, and this script may run for long.
        wake_workers(&self.thread.server, &mut self.thread.effects);
        if self.thread.for_script {
            self.wait_for_full_mailbox();
        }
    }

    /// Lets modules know how a command has ended.
    #[cold]
    fn deliver_end(&mut self, command: &'static Command<Binding>, args: Args<'_>, nanoseconds: u64, failed: bool) {
        let end = RecordedEnd { nanoseconds, failed };
        let held = self.access.as_held_leases();
        let changes = self.thread.effects.dirty.saturating_sub(self.dirty_before_call);
        let call = (command, args);
        modules::command_results::deliver_within(self.thread, held, &mut self.client, call, end, changes);
    }

    /// Checks the run after commands that take long: between two checks by Lua's hook there may be hundreds of them.
    #[inline]
    fn check_time(&mut self, nanoseconds: u64) {
        self.unchecked_ns += nanoseconds;
        if self.unchecked_ns >= MAX_UNCHECKED_NS && self.debugger.is_none() {
            self.unchecked_ns = 0;
            let running = &self.thread.server.scripting.running;
            running.update_run(&self.run, self.thread.for_script);
        }
    }

    /// Waits for a worker that has more mail than it can read, so that a script does not send more than is delivered.
    /// On a worker, the connection of the script's client is held up instead.
    fn wait_for_full_mailbox(&mut self) {
        if let Some(worker) = self.thread.effects.full_mailbox.take() {
            let running = &self.thread.server.scripting.running;
            let must_stop = || running.check_run(&self.run, true, || None);
            let limit = match self.access {
                ScriptAccess::Leased(_) => MAX_SCRIPT_WAIT,
                ScriptAccess::Everything(_) | ScriptAccess::Scratch(..) => MAX_EXCLUSIVE_SCRIPT_WAIT,
            };
            wait_until_read(&self.thread.server, worker, limit, &must_stop);
        }
    }

    /// Counts the reply of a command for its slot. From then on the script counts for that slot, or for none.
    #[cold]
    fn count_reply_for_slot(&mut self, command: &'static Command<Binding>, args: Args<'_>) {
        let slot = slot_stats::command_slot(command, args, &self.buffers.planned);
        if let Some(slot) = slot.filter(|_| slot_stats::is_charged_to_slots(&self.client)) {
            self.buffers.pending_slot_bytes.push((slot, self.buffers.output.len()));
        }
        self.thread.slot = slot.filter(|_| self.must_use_one_slot);
    }

    /// Completes a reply that other threads would produce, as far as that is possible within a script.
    fn complete_reply(&mut self, next_step: NextStep) -> Option<CommandError> {
        match next_step {
            NextStep::Reply => None,
            NextStep::QueryWorkers(query) => {
                self.buffers.output.clear();
                self.buffers.output.bytes = match self.thread.for_script {
                    true => {
                        let running = &self.thread.server.scripting.running;
                        let must_stop = || running.check_run(&self.run, true, || None);
                        query_workers(&self.thread.server, *query, must_stop)
                            .unwrap_or_else(|| b"-ERR The script is about to end\r\n".to_vec())
                    }
                    false => self.answer_query_locally(&query),
                };
                None
            }
            NextStep::ReplyAt(reply) => {
                self.buffers.output.clear();
                self.buffers.output.bytes = reply.1;
                None
            }
            _ => Some(CommandError::constant("ERR This command cannot be run by a script")),
        }
    }

    /// Restarts a script that runs on a worker on a thread that can wait for workers. Returns `false` once the script
    /// has written.
    fn restart_on_script_thread(&mut self) -> bool {
        if self.thread.for_script || self.thread.client_snapshots.is_some() {
            return false;
        }
        self.program.profile().note_query();
        self.run.may_move_to_script_thread() && !self.run.has_written() && self.run.stop(StopReason::TooLong)
    }

    /// Answers a query on a worker, which cannot wait for itself. A transaction has collected all snapshots before;
    /// otherwise only the caller is visited.
    fn answer_query_locally(&mut self, query: &WorkerQuery) -> Vec<u8> {
        let mut client_snapshots = self.thread.client_snapshots.take();
        let part = (query.task)(&mut ClientVisitorHost {
            server: &self.thread.server,
            client_snapshots: client_snapshots.as_mut().unwrap_or(&mut Vec::new()),
            requesting_client: &mut self.client,
            requesting_client_buffers: BufferFigures::default(),
        });
        self.thread.client_snapshots = client_snapshots;
        (query.combine)(vec![part])
    }
}

/// Queries all workers and waits. Returns the combined reply, or `None` once `must_stop` returns `true`. The workers
/// answer: none of them waits at the gate for a script on a script thread, and a worker whose own script waits for a
/// slot that this thread holds stops this thread's script (rule 8 of [`super::super`]).
pub(in crate::dispatch) fn query_workers(
    server: &Server,
    mut query: WorkerQuery,
    must_stop: impl Fn() -> bool,
) -> Option<Vec<u8>> {
    // The command of a killed client that cannot be stopped may be this one.
    query.awaits_killed_commands = false;
    let (sender, answer) = sync_channel(1);
    server.query_all_workers(query, QueryRequester::Thread(sender));
    loop {
        match answer.recv_timeout(QUERY_POLL_INTERVAL) {
            Ok(reply) => return Some(reply),
            Err(RecvTimeoutError::Timeout) if !must_stop() => {}
            Err(_) => return None,
        }
    }
}

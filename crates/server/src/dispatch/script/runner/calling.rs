//! Commands of scripts: admission, the handler, and accounting.

use std::borrow::Cow;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use weft_resp::{Args, Reply};

use crate::commands::context::{Binding, Mode, NextStep};
use crate::commands::error::{CommandError, shown_name};
use crate::commands::permission::{self, CommandPermission};
use crate::commands::server::time;
use crate::dispatch::accounting::CommandEnd;
use crate::dispatch::admit::{CHANGES, NOT_SAVED, not_appended};
use crate::dispatch::effects::release;
use crate::dispatch::notifications::{Caller, announce};
use crate::dispatch::record::{self, Thresholds};
use crate::dispatch::script::prepared::{is_read_only, is_stale, lacks_replicas};
use crate::dispatch::thread::Call;
use crate::dispatch::{expired_sources, propagate, redirect, slot_stats};
use crate::keyspace::effects::Hooks;
use crate::net::client::{BufferFigures, ClientFlags};
use crate::notify::messages::wake;
use crate::state::{ClientVisitorHost, WorkerQuery};
use weft_acl::{Denial, DenialContext};
use weft_command_table::registry::{Command, Lookup};
use weft_command_table::spec::Flags as CommandFlags;
use weft_scripting::StopReason;

use super::{CallEnd, Runner};

/// The interval at which a script that waits for workers checks if it must stop.
const ASKING: Duration = Duration::from_millis(5);
/// Memory that a script's commands leave is freed when there are so many pieces.
const GARBAGE_MAX: usize = 1024;
/// Expired keys that a script's commands found are remembered up to this number; they are found again.
const EXPIRED_MAX: usize = 1024;

impl Runner<'_, '_, '_> {
    /// Every refusal, in order.
    pub(super) fn admit(&mut self, args: Args<'_>) -> Result<(&'static Command<Binding>, Binding), Vec<u8>> {
        let commands = crate::commands::registry();
        let refuse = |text: &'static str| text.as_bytes().to_vec();
        let (command, text) = match commands.lookup(&args) {
            Lookup::UnknownCommand => (None, refuse("ERR Unknown command called from script")),
            Lookup::UnknownSubcommand { parent } => {
                let name = parent.full_name.to_uppercase();
                let text = [
                    b"ERR unknown subcommand '",
                    shown_name(args.argument(1)),
                    b"'. Try ",
                    name.as_bytes(),
                    b" HELP.",
                ]
                .concat();
                (Some(parent), text)
            }
            Lookup::Found(command) => match self.refusal(command, args) {
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
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default().to_vec();
        self.tally(command, CallEnd::Rejected(code));
        if !self.one_slot {
            self.thread.slot = None;
        }
        Err(text)
    }

    fn refusal(&self, command: &'static Command<Binding>, args: Args<'_>) -> Option<Cow<'static, [u8]>> {
        let refuse = |text: &'static str| Some(Cow::Borrowed(text.as_bytes()));
        let flags = command.spec.flags;
        if !command.spec.accepts_arg_count(args.len()) {
            return refuse("ERR Wrong number of args calling command from script");
        }
        let runs_script = command.handler.is_some_and(|binding| binding.mode == Mode::Script);
        let permitted = self.thread.server.scripting.permits_denied_commands() && !runs_script;
        if flags.contains(CommandFlags::NOSCRIPT) && !permitted {
            return refuse("ERR This Valkey command is not allowed from script");
        }
        if let Err(denial) = self.permits(command, args) {
            let (thread, client) = (&*self.thread, &self.client);
            let refusal = permission::refusal(client, DenialContext::Script, (command, &args), denial);
            let line = client.list_line(thread.now_ms, BufferFigures::default());
            permission::note((&thread.server, thread.seat, thread.now_ms), refusal, line);
            let text = permission::refused_in_script(denial.reason, client.login.name(), command);
            return Some(Cow::Owned(text));
        }
        if let Some(view) = &self.thread.view {
            let mut slot = self.slot.get();
            let bound = self.one_slot.then_some(&mut slot);
            let (server, client) = (&self.thread.server, &self.client);
            let refusal = redirect::refusal_in_script(view, server, client, command, args, bound);
            self.slot.set(slot);
            if let Some(refusal) = refusal {
                return Some(Cow::Owned(format!("ERR {refusal}").into_bytes()));
            }
        }
        if self.read_only && flags.intersects(CHANGES) {
            return refuse("ERR Write commands are not allowed from read-only scripts.");
        }
        if !self.thread.standing.is_plain() && !self.client.flags.contains(ClientFlags::PRIMARY) {
            if flags.contains(CommandFlags::WRITE) && is_read_only(self.thread) {
                return refuse("READONLY You can't write against a read only replica.");
            }
            if flags.contains(CommandFlags::WRITE) && lacks_replicas(self.thread) && !self.run.has_written() {
                return refuse("NOREPLICAS Not enough good replicas to write.");
            }
            if !flags.contains(CommandFlags::STALE) && is_stale(self.thread) {
                return refuse("ERR Can not execute the command on a stale replica");
            }
        }
        let is_first_write = flags.contains(CommandFlags::WRITE) && !self.run.has_written();
        if is_first_write && !self.client.flags.contains(ClientFlags::PRIMARY) {
            if self.thread.tunables.refuses_writes {
                return refuse(NOT_SAVED);
            }
            if self.thread.tunables.aof_fails {
                return Some(Cow::Owned(not_appended(&self.thread.server).0.into_owned()));
            }
        }
        if !self.may_lack_memory && flags.contains(CommandFlags::DENYOOM) && !self.run.has_written() {
            return refuse("OOM command not allowed when used memory > 'maxmemory'.");
        }
        None
    }

    /// Checks that the caller has the permission for a command.
    pub(super) fn permits(&self, command: &'static Command<Binding>, args: Args<'_>) -> Result<(), Denial> {
        let (server, login) = (&self.thread.server, &self.client.login);
        if login.is_unrestricted(server.acl.version()) {
            return Ok(());
        }
        let permission = CommandPermission {
            command,
            args: &args,
            db: self.client.db,
            databases: permission::databases(server),
        };
        permission::check(login.rules(), &permission)
    }

    // ---- execution -------------------------------------------------------------------------------------------------

    pub(super) fn execute(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: Args<'_>,
    ) -> Option<()> {
        self.thread.ticks = self.thread.timer.raw();
        self.show_line();
        self.commands += 1;
        let (error, after) = self.handle(command, binding, args);
        if matches!(after, NextStep::Ask(_)) && self.begins_elsewhere() {
            return None;
        }
        if matches!(after, NextStep::Defer) {
            // A slot that it reads on the way is held by another thread; with all slots held the attempt succeeds.
            self.hold_everything()?;
            let (error, after) = self.handle(command, binding, args);
            self.end_call(command, args, error, after);
        } else {
            self.end_call(command, args, error, after);
        }
        // The script may have been stopped while it waited for workers.
        self.run.stop_reason().is_none().then_some(())
    }

    fn handle(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
        args: Args<'_>,
    ) -> (Option<CommandError>, NextStep) {
        self.output.clear();
        if command.full_name == "time" {
            time::write(
                &mut Reply::new(&mut self.output.bytes, self.client.protocol),
                self.began,
            );
            return (None, NextStep::Nothing);
        }
        self.thread.effects.hooks = self.thread.server.keyspace.hooks.current();
        let dirty = self.thread.effects.dirty;
        let call = Call {
            command,
            args,
            planned: &self.planned,
            held: self.held.as_held(),
            pass: self.pass,
        };
        let deletes_expired = expired_sources::deletes_expired(self.thread, command);
        let mut context = self.thread.split().0.context(call, &mut self.client, &mut self.output);
        if deletes_expired {
            context.keys.delete_expired();
        }
        let result = (binding.run)(&mut context);
        let after = std::mem::take(&mut context.after);
        if context.keys.effects.is_logging() {
            propagate::end_call_for(&mut context.keys, &after, dirty, self.logged_for);
        }
        if context.keys.effects.hooks.intersects(Hooks::NOTIFIES_CLIENTS) {
            announce(&mut context, after.is_restarted(), Caller::Script);
        }
        (result.err(), after)
    }

    /// Books a command, and completes its reply.
    fn end_call(
        &mut self,
        command: &'static Command<Binding>,
        args: Args<'_>,
        error: Option<CommandError>,
        after: NextStep,
    ) {
        let error = error.or_else(|| self.complete(after));
        let now = self.thread.timer.raw();
        let nanoseconds = self.thread.timer.delta_as_nanos(self.thread.ticks, now);
        self.thread.ticks = now;
        self.output.copy_shared();
        let end = match &error {
            None => CallEnd::Done(nanoseconds),
            Some(error) => CallEnd::Failed(nanoseconds, error.code().to_vec()),
        };
        if let Some(error) = &error {
            self.output.clear();
            error.write(&mut self.output.bytes);
        }
        let ending = CommandEnd {
            nanoseconds,
            request_bytes: args.request_len(),
            reply_bytes: self.output.len(),
        };
        let thresholds = Thresholds::of(&self.thread.tunables);
        record::remember(&self.thread.server, command, thresholds, &ending, || {
            record::subject_of(command, args, &self.client)
        });
        if self.thread.tunables.slot_stats {
            self.count_for_slot(command, args);
        }
        self.tally(Some(command), end);
        let effects = &mut self.thread.effects;
        if effects.garbage.len() + effects.removed.len() > GARBAGE_MAX {
            release(effects, &self.thread.server);
        }
        self.thread.effects.expired.truncate(EXPIRED_MAX);
        // A worker that has mail and sleeps gets no other mail either, and this script may have long to go.
        wake(&self.thread.server, &mut self.thread.effects);
    }

    /// Books what a command replied on its slot. The script is of that slot from now on, or of none.
    #[cold]
    fn count_for_slot(&mut self, command: &'static Command<Binding>, args: Args<'_>) {
        let slot = slot_stats::slot_of(command, args, &self.planned);
        if let Some(slot) = slot.filter(|_| slot_stats::counts(&self.client)) {
            self.slot_tally.push((slot, self.output.len()));
        }
        self.thread.slot = slot.filter(|_| self.one_slot);
    }

    /// Completes a reply that other threads would give, as far as that is possible within a script.
    fn complete(&mut self, after: NextStep) -> Option<CommandError> {
        match after {
            NextStep::Nothing => None,
            NextStep::Ask(make) => {
                let query = make((0, self.client.id, 0));
                self.output.clear();
                self.output.bytes = match self.thread.for_script {
                    true => self.ask(query),
                    false => self.answer_here(&query),
                };
                None
            }
            NextStep::ReplyAt(reply) => {
                self.output.clear();
                self.output.bytes = reply.1;
                None
            }
            _ => Some(CommandError::constant("ERR This command cannot be run by a script")),
        }
    }

    /// Restarts a script that runs on a worker on a thread that can wait for workers. Not once the script has written.
    fn begins_elsewhere(&mut self) -> bool {
        if self.thread.for_script || self.thread.client_snapshots.is_some() {
            return false;
        }
        self.program.profile().note_query();
        self.run.may_move_to_script_thread() && !self.run.has_written() && self.run.stop(StopReason::TooLong)
    }

    /// Answers a query on a worker, which cannot wait for itself. A transaction has collected all answers before;
    /// otherwise only the caller is known.
    fn answer_here(&mut self, query: &WorkerQuery) -> Vec<u8> {
        let mut client_snapshots = self.thread.client_snapshots.take();
        let part = (query.ask)(&mut ClientVisitorHost {
            server: &self.thread.server,
            client_snapshots: client_snapshots.as_mut().unwrap_or(&mut Vec::new()),
            own: (&mut self.client, BufferFigures::default()),
        });
        self.thread.client_snapshots = client_snapshots;
        (query.combine)(vec![part])
    }

    /// Queries all workers and waits. They answer: no worker waits at the gate for a script on a script thread, and a
    /// worker whose own script waits for a slot that this one holds stops this one (rule 8 of [`super::super`]).
    fn ask(&mut self, mut query: WorkerQuery) -> Vec<u8> {
        let server = self.thread.server.clone();
        let (sender, answer) = sync_channel(1);
        query.waits = Some(sender);
        server.query_all_workers(query);
        loop {
            match answer.recv_timeout(ASKING) {
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Timeout) if !server.scripting.running.check_run(&self.run, true, || None) => {}
                Err(_) => return b"-ERR The script is about to end\r\n".to_vec(),
            }
        }
    }
}

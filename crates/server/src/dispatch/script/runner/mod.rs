//! One run of a script: its leases, the counts of its commands, and the host functions for its Lua code.

mod calling;
mod leases;
mod undoing;

pub(in crate::dispatch) use calling::query_workers;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_base::SlotIndex;
use weft_resp::{ArgRange, Args, Protocol, Reply};

use crate::commands::context::Binding;
use crate::commands::reply_limit::UNCHECKED_OUTPUT_BYTES;
use crate::commands::scripting::module_calls;
use crate::dispatch::modules::filters;
use crate::dispatch::notifications::monitor_line_of_unit;
use crate::dispatch::script::prepared::{PreparedScript, first_slot, is_out_of_memory, run_parameters};
use crate::dispatch::script::session::{DebuggedHost, KeyCopier};
use crate::dispatch::script_buffers::{ScriptBuffers, ScriptCallOutcome};
use crate::dispatch::thread::ThreadState;
use crate::keyspace::access::{HeldLeases, ScriptLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::undo_changes::ChangeCounts;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::{Client, ClientFlags, ScriptRefusal};
use crate::net::kill_mark::KillMark;
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::Counter;
use crate::observability::slot_stats::SlotFigure;
use crate::propagation::LogTarget;
use crate::state::Server;
use weft_command_table::registry::{Command, Lookup};
use weft_modules::module::loading;
use weft_modules::objects::arguments::CommandWords;
use weft_os::time::Instant;
use weft_scripting as scripting;
use weft_scripting::{
    CallResult, CurrentRun, Host, Program, RunOutcome as Ended, RunParameters, ScriptRun, ScriptWords, StopReason,
};

use crate::dispatch::unfreed_values::UnfreedValues;

/// The interval at which a script of a file that is being loaded lets other threads pass the gate.
const GATE_RELEASE_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum number of records that are held back until a script has written. In a simulation, which may stall a
/// thread at each of them, it is lower, because a script that was killed cannot end while it applies them.
const MAX_PENDING_RECORDS: usize = if cfg!(feature = "simulated") { 128 } else { 4096 };
/// The limit of what the delivery of the notifications takes that a script holds back, in bytes that could be copied.
const MAX_HELD_DELIVERY_BYTES: usize = 32 << 20;

/// Makes an entry in a log of the server.
type PendingLog = Box<dyn FnOnce(&Server)>;

/// The leases that a script holds.
pub enum ScriptAccess<'r, 'p> {
    Leased(&'r mut ScriptLeases<'p>),
    Everything(&'r mut Exclusive<'p>),
    /// The whole scratch keyspace of a session, into which keys are copied when they are accessed.
    Scratch(&'r mut Exclusive<'p>, &'r mut KeyCopier),
}

impl<'p> ScriptAccess<'_, 'p> {
    pub fn as_held_leases(&mut self) -> HeldLeases<'_, 'p> {
        match self {
            ScriptAccess::Leased(leases) => HeldLeases::Script(leases),
            ScriptAccess::Everything(all) | ScriptAccess::Scratch(all, _) => HeldLeases::Exclusive(all),
        }
    }

    /// Returns the slots that are held; `None` for all slots.
    fn slots(&self) -> Option<impl Iterator<Item = u16>> {
        match self {
            ScriptAccess::Leased(leases) if !leases.holds_all_slots() => Some(leases.slots().map(SlotIndex::get)),
            ScriptAccess::Leased(_) | ScriptAccess::Everything(_) | ScriptAccess::Scratch(..) => None,
        }
    }

    /// Records in a run that it holds these slots.
    pub fn note_held_slots(&self, run: &ScriptRun) {
        match self.slots() {
            Some(slots) => run.note_held_slots(slots),
            None => run.note_all_slots_held(),
        }
    }

    /// Ends the leases.
    pub fn release(self) {
        if let ScriptAccess::Leased(leases) = self {
            leases.end();
        }
    }
}

/// The end of a run, with its errors counted.
pub enum ScriptOutcome {
    /// The script has ended, or it was killed.
    Done {
        failed: bool,
        is_killed: bool,
    },
    Stopped(StopReason),
}

/// The state of a run; the host of its script.
pub struct Runner<'r, 'h, 'p> {
    thread: &'r mut ThreadState,
    pass: Option<&'p GatePassage<'p>>,
    pub(super) access: ScriptAccess<'h, 'p>,
    /// The script's own client, so that SELECT does not affect the caller.
    client: Box<Client>,
    /// Memory that the thread's scripts share: for the reply and the keys of a command, and for the outcomes of
    /// commands, which are held back until it is certain that they count.
    buffers: Box<ScriptBuffers>,
    pub(super) run: Arc<ScriptRun>,
    program: Rc<Program>,
    /// The debugger session that the script runs in.
    pub(super) debugger: Option<scripting::DebugSession>,
    is_read_only: bool,
    /// That of the caller, if this is a script thread and the script may restart.
    pub(super) kill_mark: Option<Arc<KillMark>>,
    may_exceed_memory: bool,
    /// The maximum size of the caller's output in bytes.
    max_reply_bytes: usize,
    pub(super) has_token: bool,
    /// `true` if it has written without the token: `effects.undo` has the former states of the keys.
    is_undoable: bool,
    /// The counts of the effects before the first of these writes.
    counts_before_writes: Option<ChangeCounts>,
    /// `true` if it may start again before it has written. It is not part of a transaction.
    pub(super) may_restart: bool,
    /// Set when it stops because of a key that MIGRATE is sending: the value of `PinnedSlots::thaws` at that time.
    pub(super) awaited_thaw: Option<u64>,
    /// `true` if it takes the token when it is refused a slot, rather than restart.
    pub(super) takes_token_to_wait: bool,
    /// Set when it stops because it was refused a slot or the token.
    pub(super) refusal: Option<ScriptRefusal>,
    /// `true` if its keys must be in one slot of a cluster.
    must_use_one_slot: bool,
    /// That slot, once it is known.
    slot: Cell<Option<SlotIndex>>,
    /// The consumers for which its commands are logged.
    log_target: LogTarget,
    /// The time that the script sees until it is overdue, since the Unix epoch, once it has asked: that of its start.
    pub(super) shown_time: Option<Duration>,
    /// The last time at which the run let other threads pass the gate.
    last_gate_release: Instant,
    /// The line that is sent to monitors before those of the script's commands.
    monitor_line: Option<Vec<u8>>,
    /// The number of commands that it has run.
    pub(super) command_count: u64,
    /// The number of changes before the command that runs.
    pub(super) dirty_before_call: u64,
    /// The time that its commands have taken since the run was last checked between two of them.
    unchecked_ns: u64,
    /// The values that its commands have left to be freed.
    unfreed: UnfreedValues,
    /// Entries of the command log and of ACL LOG, held back like the outcomes of commands.
    pending_logs: Vec<PendingLog>,
    /// The reading of the thread's timer at the start of the run.
    pub(super) start_ticks: u64,
}

/// Returns the maximum output of a client in bytes, as its worker applies it.
fn max_reply_bytes(thread: &ThreadState, caller: &Client) -> usize {
    let limit = match caller.flags.contains(ClientFlags::PUBSUB) {
        true => &thread.tunables.pubsub_output_limit,
        false => &thread.tunables.output_limit,
    };
    match usize::try_from(limit.hard_bytes) {
        Ok(bytes) if bytes > 0 && !caller.flags.contains(ClientFlags::PRIMARY) => bytes.max(UNCHECKED_OUTPUT_BYTES),
        _ => usize::MAX,
    }
}

impl<'r, 'h, 'p> Runner<'r, 'h, 'p> {
    pub fn new(
        thread: &'r mut ThreadState,
        pass: Option<&'p GatePassage<'p>>,
        held: ScriptAccess<'h, 'p>,
        caller: &Client,
        prepared: &PreparedScript,
        may_leave: bool,
        args: Args<'_>,
    ) -> Self {
        let mut buffers = thread.script_buffers.take().unwrap_or_default();
        let mut client = match (&thread.client_snapshots, buffers.client.take()) {
            (Some(_), _) => Box::new(caller.client_snapshot()),
            (None, None) => Box::new(caller.handler_view()),
            (None, Some(mut earlier)) => {
                caller.update_handler_view(&mut earlier);
                earlier
            }
        };
        client.protocol = Protocol::Resp2;
        client.flags.set(ClientFlags::MULTI, false);
        client.flags.set(ClientFlags::SCRIPT, true);
        let program = prepared.program.clone();
        let earlier = buffers.ended_run.take();
        let start_ticks = thread.timer.raw();
        let started = buffers.clock.at(&thread.timer, start_ticks);
        let is_function = program.kind == scripting::ScriptKind::Function;
        let parameters = RunParameters {
            started: Some(started),
            ..run_parameters(thread, program.name(), is_function, may_leave, args)
        };
        let run = ScriptRun::start(earlier, parameters, held.slots());
        Runner {
            pass,
            access: held,
            client,
            buffers,
            last_gate_release: started,
            start_ticks,
            run,
            program,
            debugger: None,
            is_read_only: prepared.is_read_only,
            kill_mark: None,
            may_exceed_memory: prepared.allows_oom || !is_out_of_memory(thread),
            max_reply_bytes: max_reply_bytes(thread, caller),
            has_token: false,
            is_undoable: false,
            counts_before_writes: None,
            may_restart: false,
            awaited_thaw: None,
            takes_token_to_wait: false,
            refusal: None,
            must_use_one_slot: prepared.must_use_one_slot,
            slot: Cell::new(first_slot(prepared, args)),
            log_target: LogTarget::all(),
            shown_time: None,
            monitor_line: None,
            command_count: 0,
            dirty_before_call: 0,
            unchecked_ns: 0,
            unfreed: UnfreedValues::left_before(&thread.effects),
            pending_logs: Vec::new(),
            thread,
        }
    }

    /// Ends the use of the thread's buffers.
    pub fn end(self) -> (ScriptAccess<'h, 'p>, Arc<ScriptRun>) {
        let mut buffers = self.buffers;
        buffers.client = Some(self.client).filter(|client| client.may_become_other_view());
        buffers.shrink();
        self.thread.script_buffers = Some(buffers);
        (self.access, self.run)
    }

    /// Registers the run, if it is on a script thread.
    pub fn register(&mut self) -> bool {
        if self.thread.for_script {
            self.thread.server.scripting.running.list(&self.run);
        }
        self.thread.for_script
    }

    pub fn run_script(
        &mut self,
        prepared: &PreparedScript,
        args: Args<'_>,
        reply: &mut Reply<'_>,
        is_registered: bool,
    ) -> ScriptOutcome {
        if self.debugger.is_none() && self.thread.server.keyspace.hooks.current().intersects(Hooks::MONITOR) {
            self.monitor_line = Some(monitor_line_of_unit(&self.thread.server, &self.client, args.iter()));
        }
        let current = CurrentRun {
            run: self.run.clone(),
            is_listed: is_registered,
        };
        let debugger = self.debugger.clone();
        let mut observed;
        let host: &mut dyn Host = match &debugger {
            None => self,
            Some(debugger) => {
                observed = DebuggedHost { host: self, debugger };
                &mut observed
            }
        };
        let words = ScriptWords {
            command: args,
            key_count: prepared.key_count,
        };
        let ended = scripting::run(&prepared.program, current, words, host, reply);
        let scripts = &self.thread.server.scripting;
        scripting::count_memory(scripts, prepared.program.kind);
        if let Some(script) = prepared.program.script() {
            scripts.cache.touch(script);
        }
        if !matches!(ended, Ended::Stopped(_)) {
            self.send_monitor_line();
        }
        match ended {
            Ended::Stopped(stop) if stop != StopReason::Shutdown => {
                assert!(
                    !self.run.has_written(),
                    "a script that has written does not start again"
                );
                self.buffers.pending_outcomes.clear();
                self.pending_logs.clear();
                self.buffers.pending_slot_bytes.clear();
                ScriptOutcome::Stopped(stop)
            }
            Ended::Stopped(stop) => ScriptOutcome::Stopped(stop),
            Ended::Done {
                errors,
                is_returned: invented,
                is_error: failed,
                is_killed,
            } => {
                self.flush_pending_records();
                self.thread.ended_commands += self.command_count;
                for code in errors {
                    self.count_error(&code, invented);
                }
                debug_assert!(
                    self.buffers.pending_outcomes.is_empty() && self.buffers.pending_slot_bytes.is_empty(),
                    "the commands of a script that has ended are counted"
                );
                ScriptOutcome::Done { failed, is_killed }
            }
        }
    }

    /// Opens the gate briefly. Other threads may not read the data, but reply `-LOADING`.
    #[cold]
    fn release_gate_briefly(&mut self) {
        if let ScriptAccess::Everything(all) = &mut self.access
            && self.last_gate_release.elapsed() >= GATE_RELEASE_INTERVAL
        {
            all.pause();
            self.last_gate_release = Instant::now();
        }
    }

    /// Sends the script's line to monitors before its first command, or at its end.
    fn send_monitor_line(&mut self) {
        if let Some(line) = self.monitor_line.take() {
            let thread = &mut *self.thread;
            NotificationSender::new(&thread.server, &mut thread.effects, thread.thread_index).send_monitor_line(line);
        }
    }

    fn count_error(&self, code: &[u8], is_custom_code: bool) {
        let server = &self.thread.server;
        server
            .stats
            .metrics
            .add(self.thread.thread_index, Counter::ErrorReplies, 1);
        match is_custom_code {
            true => server.stats.errors.count_from_script(code),
            false => server.stats.errors.count(code),
        }
    }

    /// Applies the records that were held back.
    fn flush_pending_records(&mut self) {
        for log in self.pending_logs.drain(..) {
            log(&self.thread.server);
        }
        for (slot, bytes) in self.buffers.pending_slot_bytes.drain(..) {
            let ThreadState {
                server,
                thread_index: seat,
                ..
            } = &*self.thread;
            server.stats.slots.add(*seat, slot, SlotFigure::BytesOut, bytes as u64);
        }
        for (command, end) in &self.buffers.pending_outcomes {
            self.count_outcome(*command, end);
        }
        self.buffers.pending_outcomes.clear();
    }

    /// Counts the outcome of a command.
    #[inline]
    fn count_outcome(&self, command: Option<&'static Command<Binding>>, end: &ScriptCallOutcome) {
        match (command, end) {
            (Some(command), ScriptCallOutcome::Done(nanoseconds)) => {
                self.count_execution(command, *nanoseconds, false);
            }
            (Some(command), ScriptCallOutcome::Failed(nanoseconds, _)) => {
                self.count_execution(command, *nanoseconds, true);
            }
            (Some(command), ScriptCallOutcome::Rejected(_)) => {
                let metrics = &self.thread.server.stats.metrics;
                metrics.record_rejection(self.thread.thread_index, command.id as usize);
            }
            (None, _) => {}
        }
        if let ScriptCallOutcome::Failed(_, code) | ScriptCallOutcome::Rejected(code) = end {
            self.count_error(code, false);
        }
    }

    /// Counts a command that has run.
    #[inline]
    fn count_execution(&self, command: &'static Command<Binding>, nanoseconds: u64, failed: bool) {
        let ThreadState {
            server,
            thread_index: seat,
            tunables,
            counts_commands: true,
            ..
        } = &*self.thread
        else {
            return;
        };
        let metrics = &server.stats.metrics;
        metrics.record_execution(*seat, command.id as usize, nanoseconds, failed);
        if tunables.latency_tracking {
            metrics.record_latency(*seat, command.id as usize, nanoseconds);
        }
    }

    /// Makes an entry in a log once it is certain that the run does not restart.
    fn record_log(&mut self, log: PendingLog) {
        match self.may_restart && !self.run.has_written() {
            true => self.pending_logs.push(log),
            false => log(&self.thread.server),
        }
    }

    /// Returns `true` if the outcome of a command counts at once: what was held back before the first write has been
    /// applied then.
    #[inline]
    fn counts_at_once(&self) -> bool {
        let has_nothing_pending =
            self.buffers.pending_outcomes.is_empty() && self.buffers.pending_slot_bytes.is_empty();
        let counts = self.run.has_written() && has_nothing_pending;
        debug_assert!(
            !counts || self.pending_logs.is_empty(),
            "a script that has written holds no entry back"
        );
        counts
    }

    /// Records a command that has succeeded.
    #[inline]
    fn record_success(&mut self, command: &'static Command<Binding>, nanoseconds: u64) {
        if self.counts_at_once() {
            return self.count_execution(command, nanoseconds, false);
        }
        let end = ScriptCallOutcome::Done(nanoseconds);
        self.buffers.pending_outcomes.push((Some(command), end));
        self.limit_pending_records();
    }

    /// Records a command that has failed, or did not run.
    #[cold]
    fn record_failure(&mut self, command: Option<&'static Command<Binding>>, end: ScriptCallOutcome) {
        if self.counts_at_once() {
            return self.count_outcome(command, &end);
        }
        self.buffers.pending_outcomes.push((command, end));
        self.limit_pending_records();
    }

    /// Applies the records that were held back if they are many, or need not be held back any more.
    #[inline]
    fn limit_pending_records(&mut self) {
        if self.run.has_written() || self.buffers.pending_outcomes.len() >= MAX_PENDING_RECORDS {
            self.flush_pending_records();
        }
    }
}

impl Runner<'_, '_, '_> {
    /// Lets the filters of modules see a command. Returns its words if they have changed them.
    #[cold]
    fn filter_call(&mut self, args: Args<'_>) -> Option<CommandWords> {
        let held = self.access.as_held_leases();
        filters::apply_in_script(self.thread, held, &mut self.client, args)
    }

    /// Stops the script if it calls a command of a module that needs more than it holds: the script restarts on the
    /// home worker, in exclusive mode. If it has made lasting changes already, the command is refused.
    #[inline]
    fn refuse_module_command(
        &mut self,
        command: &'static Command<Binding>,
        binding: Binding,
    ) -> Option<CallResult<'static>> {
        match binding.needs_modules() {
            true => self.refuse_at_foreign_place(command),
            false => None,
        }
    }

    #[cold]
    fn refuse_at_foreign_place(&mut self, command: &'static Command<Binding>) -> Option<CallResult<'static>> {
        match &self.access {
            ScriptAccess::Everything(_) => return None,
            ScriptAccess::Scratch(..) => {
                let text = b"ERR This Valkey command is not allowed from script".to_vec();
                return Some(CallResult::Refused(text));
            }
            ScriptAccess::Leased(_) if !module_calls::runs_at_home(command) => return None,
            ScriptAccess::Leased(_) => {}
        }
        self.program.profile().note_module_call(loading::generation());
        if !self.may_restart || self.run.has_written() {
            let text =
                "ERR A command of a module cannot be called after writes in the first run of a script; run it again";
            return Some(CallResult::Refused(text.as_bytes().to_vec()));
        }
        self.restart_for(ScriptRefusal::Home);
        Some(CallResult::Stop)
    }
}

impl Host for Runner<'_, '_, '_> {
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> CallResult<'_> {
        if self.run.stop_reason().is_some() {
            return CallResult::Stop;
        }
        if self.thread.opens_gate_in_scripts && self.run.is_overdue() {
            self.release_gate_briefly();
        }
        let args = Args::new(request, ranges);
        let changed = match filters::exist() {
            true => self.filter_call(args),
            false => None,
        };
        let args = changed.as_ref().map_or(args, CommandWords::args);
        let done = loop {
            if !self.refresh_permissions() {
                self.run.stop(StopReason::Shutdown);
                return CallResult::Stop;
            }
            let (command, binding) = match self.admit(&args) {
                Ok(found) => found,
                Err(text) => return CallResult::Refused(text),
            };
            if let Some(refused) = self.refuse_module_command(command, binding) {
                return refused;
            }
            match self.lease_command(command, binding, &args) {
                Some(()) => break self.execute_command(command, binding, &args),
                None => {
                    if let Some(text) = self.refusal_of_copies(command) {
                        return CallResult::Refused(text);
                    }
                    if !self.must_admit_again() {
                        break None;
                    }
                }
            }
        };
        match done {
            Some(()) => CallResult::Reply(&self.buffers.output.bytes),
            None => CallResult::Stop,
        }
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.client.protocol = protocol;
    }

    fn set_replication(&mut self, parts: u8) {
        self.log_target = LogTarget::from_bits_truncate(parts);
    }

    fn reply_bytes_max(&self) -> usize {
        self.max_reply_bytes
    }

    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool> {
        let args = Args::new(request, ranges);
        match crate::commands::registry().lookup(&args) {
            Lookup::Found(command) => Some(self.refresh_permissions() && self.check_permission(command, &args).is_ok()),
            Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
        }
    }
}

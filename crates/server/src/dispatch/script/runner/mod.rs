//! One run of a script: the leases it holds, the counts of its commands, and the host that its Lua code calls.

mod calling;
mod leases;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_reactor::Output;
use weft_resp::{ArgRange, Args, Protocol, Reply};

use crate::commands::context::Binding;
use crate::commands::reply_limit::FREE_OUTPUT_BYTES;
use crate::dispatch::notifications::line_of_whole;
use crate::dispatch::script::prepared::{PreparedScript, first_slot, is_out_of_memory};
use crate::dispatch::script::session::{DebuggedHost, KeyCopier};
use crate::dispatch::thread::Thread;
use crate::keyspace::access::{HeldLeases, ScriptLeases};
use crate::keyspace::effects::Hooks;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::{Exclusive, GatePassage};
use crate::net::client::{Client, ClientFlags};
use crate::notify::messages::NotificationSender;
use crate::observability::metrics::Counter;
use crate::observability::slot_stats::SlotFigure;
use crate::propagation::LogTarget;
use weft_command_table::registry::{Command, Lookup};
use weft_config::id;
use weft_scripting as scripting;
use weft_scripting::{CallResult, Host, Program, RunOutcome as Ended, RunParameters, ScriptRun, StopReason};

/// The run time after which a script is too long for a worker.
const LEAVES_AFTER: Duration = Duration::from_micros(500);
/// The interval at which a script of a file that is being loaded lets other threads pass the gate.
const LET_IN_EVERY: Duration = Duration::from_millis(10);
/// Figures that are kept back until a script has written.
const TALLY_MAX: usize = 4096;

/// The leases that a script holds.
pub enum Slots<'r, 'p> {
    Leased(&'r mut ScriptLeases<'p>),
    Everything(&'r mut Exclusive<'p>),
    /// Everything of the keyspace of a session, into which keys are brought as they are asked for.
    Beside(&'r mut Exclusive<'p>, &'r mut KeyCopier),
}

impl<'p> Slots<'_, 'p> {
    pub fn as_held(&mut self) -> HeldLeases<'_, 'p> {
        match self {
            Slots::Leased(leases) => HeldLeases::Script(leases),
            Slots::Everything(all) | Slots::Beside(all, _) => HeldLeases::Exclusive(all),
        }
    }

    /// Ends the leases.
    pub fn end(self) {
        if let Slots::Leased(leases) = self {
            *leases = ScriptLeases::default();
        }
    }
}

/// The end of a run, with its errors counted.
pub enum RunEnd {
    Done { failed: bool },
    Stopped(StopReason),
}

/// The end of a script's command.
enum CallEnd {
    Done(u64),
    Failed(u64, Vec<u8>),
    Rejected(Vec<u8>),
}

/// The state of a run; the host of its script.
pub struct Runner<'r, 'h, 'p> {
    thread: &'r mut Thread,
    pass: Option<&'p GatePassage<'p>>,
    pub(super) held: Slots<'h, 'p>,
    /// The script's own client, so that SELECT does not affect the caller.
    client: Client,
    output: Output,
    planned: Vec<PlannedKey>,
    pub(super) run: Arc<ScriptRun>,
    program: Program,
    /// The debugger session that the script runs in.
    pub(super) debugger: Option<scripting::DebugSession>,
    read_only: bool,
    may_lack_memory: bool,
    /// The most bytes that the caller's output may have.
    most_reply_bytes: usize,
    pub(super) has_token: bool,
    /// `true` if its keys must be in one slot of a cluster.
    one_slot: bool,
    /// That slot, once it is known.
    slot: Cell<Option<u16>>,
    /// For whom its commands are logged.
    logged_for: LogTarget,
    /// The start of the run, since the Unix epoch. Time does not advance for a script.
    began: Duration,
    /// The last time at which it let other threads pass the gate.
    let_in_at: Instant,
    /// The line that monitors are shown before those of the script's commands.
    line: Option<Vec<u8>>,
    /// Commands that it has run.
    pub(super) commands: u64,
    /// Figures of commands, until it is certain that they count.
    tally: Vec<(Option<&'static Command<Binding>>, CallEnd)>,
    /// Bytes of replies, by slot.
    slot_tally: Vec<(u16, usize)>,
}

/// The most bytes of output that a client may have, as its worker will see it.
fn most_reply_bytes(thread: &Thread, caller: &Client) -> usize {
    let limit = match caller.flags.contains(ClientFlags::PUBSUB) {
        true => &thread.tunables.pubsub_output_limit,
        false => &thread.tunables.output_limit,
    };
    match usize::try_from(limit.hard_bytes) {
        Ok(bytes) if bytes > 0 && !caller.flags.contains(ClientFlags::PRIMARY) => bytes.max(FREE_OUTPUT_BYTES),
        _ => usize::MAX,
    }
}

impl<'r, 'h, 'p> Runner<'r, 'h, 'p> {
    pub fn new(
        thread: &'r mut Thread,
        pass: Option<&'p GatePassage<'p>>,
        held: Slots<'h, 'p>,
        caller: &Client,
        prepared: &PreparedScript,
        (may_leave, args): (bool, Args<'_>),
    ) -> Self {
        let mut client = match thread.client_snapshots {
            Some(_) => caller.client_snapshot(),
            None => caller.handler_view(),
        };
        client.protocol = Protocol::Resp2;
        client.flags.set(ClientFlags::MULTI, false);
        client.flags.set(ClientFlags::SCRIPT, true);
        let threshold_ms = thread.server.config.unsigned(id::BUSY_REPLY_THRESHOLD);
        let command = match thread.for_script {
            true => args.iter().map(<[u8]>::to_vec).collect(),
            false => Vec::new(),
        };
        let program = prepared.program.clone();
        let run = ScriptRun::new(RunParameters {
            name: program.name().to_vec(),
            is_function: program.kind == scripting::ScriptKind::Function,
            command,
            leaves_after: may_leave.then_some(LEAVES_AFTER),
            overdue_after: (threshold_ms > 0).then(|| Duration::from_millis(threshold_ms)),
        });
        Runner {
            pass,
            held,
            client,
            output: Output::new(),
            planned: Vec::new(),
            run: Arc::new(run),
            program,
            debugger: None,
            read_only: prepared.read_only,
            may_lack_memory: prepared.allow_oom || !is_out_of_memory(thread),
            most_reply_bytes: most_reply_bytes(thread, caller),
            has_token: false,
            one_slot: prepared.one_slot,
            slot: Cell::new(first_slot(prepared, args)),
            logged_for: LogTarget::ALL,
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            let_in_at: Instant::now(),
            line: None,
            commands: 0,
            tally: Vec::new(),
            slot_tally: Vec::new(),
            thread,
        }
    }

    /// Lists the run, if it is on a script thread.
    pub fn list(&mut self) -> bool {
        match &self.held {
            Slots::Leased(leases) => self.run.note_held_slots(leases.slots()),
            Slots::Everything(_) | Slots::Beside(..) => self.run.note_all_slots_held(),
        }
        if self.thread.for_script {
            self.thread.server.scripting.running.list(&self.run);
        }
        self.thread.for_script
    }

    pub fn run(&mut self, prepared: &PreparedScript, args: Args<'_>, reply: &mut Reply<'_>, listed: bool) -> RunEnd {
        if self.debugger.is_none() && self.thread.server.keyspace.hooks.current().intersects(Hooks::MONITOR) {
            self.line = Some(line_of_whole(&self.thread.server, &self.client, args.iter()));
        }
        let words: Vec<&[u8]> = args.iter().skip(3).collect();
        let (keys, arguments) = words.split_at(prepared.keys);
        let server = self.thread.server.clone();
        let run = self.run.clone();
        let debugger = self.debugger.clone();
        let mut observed;
        let host: &mut dyn Host = match &debugger {
            None => self,
            Some(debugger) => {
                observed = DebuggedHost { host: self, debugger };
                &mut observed
            }
        };
        let words = (keys, arguments);
        let ended = scripting::run(&server.scripting, &prepared.program, (&run, listed), words, host, reply);
        if let Some(script) = prepared.program.script() {
            server.scripting.cache.touch(script);
        }
        if !matches!(ended, Ok(Ended::Stopped(_))) {
            self.show_line();
        }
        match ended {
            Ok(Ended::Stopped(stop)) if stop != StopReason::Shutdown => {
                debug_assert!(!run.has_written(), "a script that has written does not begin anew");
                self.tally.clear();
                self.slot_tally.clear();
                RunEnd::Stopped(stop)
            }
            Ok(Ended::Stopped(stop)) => RunEnd::Stopped(stop),
            Ok(Ended::Done {
                errors,
                is_returned: invented,
                is_error: failed,
            }) => {
                self.settle_tally();
                for code in errors {
                    self.count_error(&code, invented);
                }
                RunEnd::Done { failed }
            }
            Err(text) => {
                self.settle_tally();
                reply.error_bytes(&text);
                self.count_error(b"ERR", false);
                RunEnd::Done { failed: true }
            }
        }
    }

    /// Opens the gate for a moment. Other threads may not read the data, but reply `-LOADING`.
    #[cold]
    fn let_others_in(&mut self) {
        if let Slots::Everything(all) = &mut self.held
            && self.let_in_at.elapsed() >= LET_IN_EVERY
        {
            all.pause();
            self.let_in_at = Instant::now();
        }
    }

    /// Shows monitors the script before its first command, or at its end.
    fn show_line(&mut self) {
        if let Some(line) = self.line.take() {
            let thread = &mut *self.thread;
            NotificationSender::new(&thread.server, &mut thread.effects, thread.seat).show(line);
        }
    }

    fn count_error(&self, code: &[u8], invented: bool) {
        let server = &self.thread.server;
        server.stats.metrics.add(self.thread.seat, Counter::ErrorReplies, 1);
        match invented {
            true => server.stats.errors.count_from_script(code),
            false => server.stats.errors.count(code),
        }
    }

    /// Books what was kept back.
    fn settle_tally(&mut self) {
        for (slot, bytes) in self.slot_tally.drain(..) {
            let Thread { server, seat, .. } = &*self.thread;
            server.stats.slots.add(*seat, slot, SlotFigure::BytesOut, bytes as u64);
        }
        for (command, end) in std::mem::take(&mut self.tally) {
            let Thread {
                server, seat, tunables, ..
            } = &*self.thread;
            let metrics = &server.stats.metrics;
            match (command, &end) {
                (Some(command), CallEnd::Done(nanoseconds) | CallEnd::Failed(nanoseconds, _)) => {
                    let failed = matches!(end, CallEnd::Failed(..));
                    metrics.record_execution(*seat, command.id as usize, *nanoseconds, failed);
                    if tunables.latency_tracking {
                        metrics.record_latency(*seat, command.id as usize, *nanoseconds);
                    }
                }
                (Some(command), CallEnd::Rejected(_)) => metrics.record_rejection(*seat, command.id as usize),
                (None, _) => {}
            }
            if let CallEnd::Failed(_, code) | CallEnd::Rejected(code) = end {
                self.count_error(&code, false);
            }
        }
    }

    fn tally(&mut self, command: Option<&'static Command<Binding>>, end: CallEnd) {
        self.tally.push((command, end));
        if self.run.has_written() || self.tally.len() >= TALLY_MAX {
            self.settle_tally();
        }
    }
}

impl Host for Runner<'_, '_, '_> {
    fn call(&mut self, request: &[u8], ranges: &[ArgRange]) -> CallResult<'_> {
        if self.run.stop_reason().is_some() {
            return CallResult::Stop;
        }
        if self.thread.lets_in && self.run.is_overdue() {
            self.let_others_in();
        }
        let args = Args::new(request, ranges);
        let (command, binding) = match self.admit(args) {
            Ok(found) => found,
            Err(text) => return CallResult::Refused(text),
        };
        let done = match self.hold(command, binding, args) {
            Some(()) => self.execute(command, binding, args),
            None => None,
        };
        match done {
            Some(()) => CallResult::Reply(&self.output.bytes),
            None => CallResult::Stop,
        }
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.client.protocol = protocol;
    }

    fn set_replication(&mut self, parts: u8) {
        self.logged_for = LogTarget::from_bits(parts);
    }

    fn reply_bytes_max(&self) -> usize {
        self.most_reply_bytes
    }

    fn may_call(&mut self, request: &[u8], ranges: &[ArgRange]) -> Option<bool> {
        let args = Args::new(request, ranges);
        match crate::commands::registry().lookup(&args) {
            Lookup::Found(command) => Some(self.permits(command, args).is_ok()),
            Lookup::UnknownCommand | Lookup::UnknownSubcommand { .. } => None,
        }
    }
}

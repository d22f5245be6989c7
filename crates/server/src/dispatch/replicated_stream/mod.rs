//! Runs the stream of a primary: its commands, in order, as one client that is never refused.
//!
//! One thread owns the stream. Its commands take the path of all commands (plan, batch, leases, handler), so their
//! effects on local clients that watch, block and listen need no further code. While many writes have arrived, other
//! threads run a part of them, in rounds (`apply_threads.rs`). The differences to a client:
//!
//! 1. Nothing is refused except by CLIENT PAUSE, and nothing leaves its thread, because the next command must not
//!    overtake.
//! 2. A command that is refused is tried again until it succeeds. If that takes long, the link acknowledges and
//!    receives between two attempts. A round that has begun waits for its slots, and the link only acknowledges then.
//! 3. For a primary's commands nothing has expired: the primary sends a DEL instead (see [`ThreadState::expiry_ms`]).
//! 4. An offset of the stream counts as reached when the command before it has run and no transaction is open. A link
//!    that is re-established continues from there, so nothing runs twice and no transaction runs in halves. Within a
//!    round no offset counts as reached.
//! 5. The end of the role epoch ends the stream, between two commands or rounds.
//! 6. The bytes that were run go into the backlog unchanged, before the passage of the gate in which they ran ends. So
//!    a thread in exclusive mode finds data and offset in agreement, and replicas of this server follow the stream of
//!    its primary.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, LogSequence, ParkId, ReplicationOffset, RoleEpoch, ThreadIndex};

use crate::commands::context::NextStep;
use crate::keyspace::Seat;
use crate::keyspace::access::KeyCounts;
use crate::keyspace::effects::Hooks;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::{wait_for_full_mailbox, wake_workers};
use crate::observability::log;
use crate::propagation::{LogMilestone, MAX_UNREAD_BYTES};
use crate::state::{Server, WorkerLink};
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

use super::apply_threads::{
    self, ApplyThreads, MAX_RETRY_PAUSE, MIN_RETRY_PAUSE, PartRunner, StreamPart, finish_batch, replicated_thread,
    selected_db, send_unserved,
};
use super::batch::{self, BatchConnections};
use super::plan::{CommandPlan, InputRest, Planner, Plans, RequestKind};
use super::thread::ThreadState;

mod libraries;
mod rounds;
#[cfg(test)]
mod tests;

use rounds::{Round, RoundPlanned, take_round};

/// The number of writes in a row with which a round begins. They are what is planned at a time.
const MIN_ROUND_COMMANDS: usize = if cfg!(feature = "simulated") {
    2
} else {
    super::plan::MAX_REQUESTS_PER_TURN
};

/// The time for which the stream waits, for whatever reason, until it lets the link acknowledge and receive.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The minimum interval between two log lines about a failing disk.
const DISK_WARNING_PERIOD: Duration = Duration::from_secs(10);

/// The maximum number of log positions that are kept until the disk has them.
const MAX_WRITE_POSITIONS: usize = 4096;

/// The reason for which a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// This server follows another primary, or none.
    RoleChanged,
    /// A command has closed the connection. The stream continues behind it.
    Closed,
    /// The input is malformed, or its next command closes the connection.
    Protocol,
    /// The process is about to end, and a script that it has stopped may keep the slots of the next commands for good.
    /// A round may have run in part, behind the position that was reached.
    ShuttingDown,
}

/// The stream of one link.
pub struct ReplicatedStream {
    thread: ThreadState,
    connection: PrimaryConnection,
    plans: Plans,
    /// Log sequence numbers, ascending, with the stream offset after each. Entries that are on disk are removed.
    write_positions: VecDeque<(LogSequence, ReplicationOffset)>,
    /// The offset up to which the stream is on disk here.
    fsynced_offset: ReplicationOffset,
    /// The time of the last warning that the disk fails.
    last_disk_warning: Option<Instant>,
    /// The last position in the propagation log that was taken for a command of the stream.
    last_sequence: LogSequence,
    /// The number of threads that may apply the stream, with the link's thread.
    thread_count: usize,
    /// The apply threads, from the first round on.
    threads: Option<ApplyThreads>,
    /// Runs the parts of rounds that this thread takes.
    runner: Option<PartRunner>,
    /// Memory for the next two rounds.
    spare_rounds: (Round, Round),
    /// The time for which [`ReplicatedStream::run_commands`] may still wait until it has to return.
    patience: Duration,
    /// `true` if the stream has sent a worker more mail than it can read, and a mailbox was full when last looked at.
    has_overloaded_worker: bool,
}

/// The stream's only connection, as a batch sees it.
struct PrimaryConnection {
    connection: Connection,
    role_epoch: RoleEpoch,
    /// Bytes of the stream before those in the input.
    discarded_bytes: u64,
    /// Bytes of the stream up to the last position that counts as reached.
    applied_bytes: u64,
    /// The offset of the history at which the stream began.
    start_offset: ReplicationOffset,
    /// Bytes of the stream that are in the backlog.
    relayed_bytes: u64,
    /// Bytes that were removed from the input and are not in the backlog yet.
    unrelayed_bytes: Vec<u8>,
    next_step: Option<NextStep>,
}

impl PrimaryConnection {
    /// Records the position that the stream has reached.
    fn update_applied_offset(&mut self) {
        if self.connection.client.transaction.is_none() {
            let applied = self.discarded_bytes + self.connection.consumed as u64;
            assert!(applied >= self.applied_bytes, "the stream does not go back");
            self.applied_bytes = applied;
        }
    }

    /// Returns the error of a stream whose client is to be closed (QUIT, a line of HTTP): no further command would run.
    fn closing_error(&self) -> Option<StreamError> {
        let client = &self.connection.client;
        if !client.flags.intersects(ClientFlags::CLOSING) {
            return None;
        }
        // A link that continued before the command would end at once again.
        match client.flags.contains(ClientFlags::CLOSE_ASAP) || client.transaction.is_some() {
            true => Some(StreamError::Protocol),
            false => Some(StreamError::Closed),
        }
    }
}

impl PrimaryConnection {
    /// Appends the bytes of the stream from `relayed_bytes` up to `applied_bytes` to the backlog.
    ///
    /// `db` is the database that is selected there.
    fn append_to_backlog(&mut self, server: &Server, db: DbIndex) {
        assert!(
            self.applied_bytes >= self.relayed_bytes,
            "no byte of the stream goes into the backlog before it counts as reached"
        );
        if self.applied_bytes == self.relayed_bytes {
            return;
        }
        let mut bytes = std::mem::take(&mut self.unrelayed_bytes);
        let from = self.relayed_bytes.max(self.discarded_bytes) - self.discarded_bytes;
        if self.applied_bytes > self.discarded_bytes {
            bytes.extend_from_slice(
                &self.connection.input[from as usize..(self.applied_bytes - self.discarded_bytes) as usize],
            );
        }
        let kept = (self.applied_bytes - self.relayed_bytes) as usize;
        assert!(
            kept <= bytes.len(),
            "the bytes up to the place that counts as reached are there"
        );
        // Behind a place in what was cut lies what the next place brings.
        self.unrelayed_bytes = bytes.split_off(kept);
        self.relayed_bytes = self.applied_bytes;
        self.assert_unrelayed_bytes();
        let repl = &server.replication;
        let most_bytes = server.config.integer(id::REPL_BACKLOG_SIZE);
        let end = repl.replicas.backlog().append(&bytes, most_bytes);
        let offset = self.start_offset.advanced_by(self.applied_bytes);
        assert!(
            end.is_none_or(|end| end == offset),
            "the backlog ends at {end:?}, and the data of this replica has the offset {offset}"
        );
        repl.stream_db.store(db.get(), Ordering::Relaxed);
        repl.set_offset(offset);
        if repl.replicas.has_readers.load(Ordering::Relaxed) {
            server.background.wake_primary_thread();
        }
    }

    /// Discards the executed input. Returns `true` if there was any.
    fn discard_executed(&mut self) -> bool {
        let executed = self.connection.consumed;
        let end = self.discarded_bytes + executed as u64;
        if end > self.relayed_bytes {
            let from = (self.relayed_bytes.max(self.discarded_bytes) - self.discarded_bytes) as usize;
            self.unrelayed_bytes
                .extend_from_slice(&self.connection.input[from..executed]);
        }
        self.discarded_bytes = end;
        self.assert_unrelayed_bytes();
        self.connection.discard_consumed();
        executed > 0
    }

    /// Checks that the bytes that were cut from the input and are not in the backlog are kept.
    fn assert_unrelayed_bytes(&self) {
        assert_eq!(
            self.unrelayed_bytes.len() as u64,
            self.discarded_bytes.saturating_sub(self.relayed_bytes),
            "no byte of the stream is lost between the input and the backlog"
        );
    }
}

/// The connections of a batch, of which there is only one.
struct SingleConnection<'a> {
    connection: &'a mut PrimaryConnection,
    server: &'a Arc<Server>,
}

impl BatchConnections for SingleConnection<'_> {
    fn connection(&mut self, _: usize) -> Option<&mut Connection> {
        if self.server.replication.role_epoch() != self.connection.role_epoch {
            return None;
        }
        // Before the next command of the batch runs.
        self.connection.update_applied_offset();
        Some(&mut self.connection.connection)
    }

    fn start_next_step(&mut self, _: usize, after: NextStep) {
        // Later commands wait until that is done.
        self.connection.connection.state = ConnectionState::Parked(ParkId::NONE);
        self.connection.next_step = Some(after);
    }

    fn before_gate_release(&mut self) {
        if self.server.replication.role_epoch() == self.connection.role_epoch {
            self.connection.update_applied_offset();
            let db = self.connection.connection.client.db;
            self.connection.append_to_backlog(self.server, db);
        }
    }

    fn notify(&mut self, thread: &mut ThreadState) {
        // This thread has no clients of its own, so everything is sent by mail.
        wake_workers(&thread.server, &mut thread.effects);
    }
}

impl ReplicatedStream {
    /// Creates the stream of a link that was made for the role epoch `role_epoch` and has selected database `db`.
    /// `client` represents the primary.
    pub fn new(server: &Arc<Server>, seat: &Seat, role_epoch: RoleEpoch, mut client: Client, db: DbIndex) -> Self {
        let thread = replicated_thread(server, ThreadIndex::new(seat.index()));
        client.login = server.acl.superuser_login();
        client.flags.set(ClientFlags::PRIMARY, true);
        let first_sequence = server.propagation.last_sequence();
        client.db = db.min(DbIndex::new(key_counts(server).databases() - 1));
        ReplicatedStream {
            thread,
            connection: PrimaryConnection {
                connection: Connection::new(client),
                role_epoch,
                discarded_bytes: 0,
                applied_bytes: 0,
                start_offset: server.replication.offset(),
                relayed_bytes: 0,
                unrelayed_bytes: Vec::new(),
                next_step: None,
            },
            plans: Plans::default(),
            write_positions: VecDeque::from([(first_sequence, server.replication.offset())]),
            fsynced_offset: ReplicationOffset::ZERO,
            last_disk_warning: None,
            last_sequence: first_sequence,
            thread_count: apply_threads::count(&server.config, server.workers.len()),
            threads: None,
            runner: None,
            spare_rounds: Default::default(),
            patience: MAX_WAIT,
            has_overloaded_worker: false,
        }
    }

    /// Returns the offset up to which the append-only file is on disk, or `None` without an append-only file that has
    /// everything.
    pub fn fsynced_offset(&mut self) -> Option<ReplicationOffset> {
        let server = &self.thread.server;
        if !server.persistence.aof.is_complete() {
            return None;
        }
        let reached = server.propagation.milestone_sequence(LogMilestone::Synced);
        while let Some((_, offset)) = self
            .write_positions
            .front()
            .filter(|(sequence, _)| *sequence <= reached)
        {
            self.fsynced_offset = *offset;
            self.write_positions.pop_front();
        }
        Some(self.fsynced_offset)
    }

    /// Records the stream offset after the last sequence number.
    fn record_write_position(&mut self) {
        let server = &self.thread.server;
        let offset = server.replication.offset();
        self.last_sequence = self.last_sequence.max(self.thread.effects.log_writer.last_sequence());
        let sequence = self.last_sequence;
        let is_full = self.write_positions.len() == MAX_WRITE_POSITIONS;
        assert!(
            self.write_positions
                .back()
                .is_none_or(|(last, at)| *last <= sequence && *at <= offset),
            "a later write of the stream has a later sequence number and offset"
        );
        match self.write_positions.back_mut() {
            Some(last) if last.0 == sequence => last.1 = offset,
            // With a full list, only the latest offset is kept.
            Some(last) if is_full => *last = (sequence, offset),
            _ => self.write_positions.push_back((sequence, offset)),
        }
    }

    /// Returns the buffer for input.
    pub fn input_mut(&mut self) -> &mut Vec<u8> {
        &mut self.connection.connection.input
    }

    /// Returns the primary as a client.
    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.connection.connection.client
    }

    /// Returns the connection.
    pub fn connection(&self) -> &Connection {
        &self.connection.connection
    }

    /// Returns `true` if several threads apply the stream.
    pub fn has_apply_threads(&self) -> bool {
        self.thread_count > 1 && self.threads.is_some()
    }

    /// Returns the database that the stream has selected.
    pub fn db(&self) -> DbIndex {
        self.connection.connection.client.db
    }

    /// Runs all complete commands that have arrived. Returns `true` if it has not run all of them, because it has
    /// waited for [`MAX_WAIT`] in all: for workers with too much mail, for the log, for the code of libraries, or for a
    /// command that a pause or the holder of a lease refuses. The caller acknowledges what has run, and calls again. A
    /// round may wait longer; it calls `while_waiting` again and again, inside the gate, so that function must not
    /// wait.
    ///
    /// # Errors
    /// When the stream ends. The position that was reached by then counts.
    pub fn run_commands(&mut self, seat: &mut Seat, while_waiting: &mut dyn FnMut()) -> Result<bool, StreamError> {
        let mut pause = MIN_RETRY_PAUSE;
        self.patience = MAX_WAIT;
        loop {
            let began = Instant::now();
            self.begin_batch();
            let mut rest = self.plan_commands();
            let mut first = 0;
            if self.may_begin_round() {
                (first, rest) = self.run_rounds(seat, rest, while_waiting)?;
                self.begin_batch();
            }
            let planned = first < self.plans.plans.len();
            let malformed =
                matches!(self.plans.plans.last(), Some(plan) if matches!(plan.kind, RequestKind::Malformed(_)));
            if planned {
                if self.has_disk_errors() && self.plans.plans[first..].iter().any(is_write) {
                    self.handle_disk_errors();
                }
                let server = self.thread.server.clone();
                let mut only = SingleConnection {
                    connection: &mut self.connection,
                    server: &server,
                };
                batch::run_plans_from(&mut self.thread, seat, &mut self.plans, first, &mut only);
            }
            self.plans.clear();
            self.connection.connection.is_in_batch = false;
            let next_step = self.connection.next_step.take();
            // Commands behind it have been received, and must be planned again.
            let held_up = next_step.is_some();
            if let Some(after) = next_step {
                self.run_next_step(seat, after);
            }
            finish_batch(&mut self.thread, &mut self.connection.connection);
            self.thread.server.stats.activities.end(self.thread.thread_index);
            self.record_write_position();
            // No passage of the gate is open here, which workers could need to read their mail.
            self.await_deliveries();
            let advanced = self.connection.discard_executed();
            if self.thread.server.replication.role_epoch() != self.connection.role_epoch {
                return Err(StreamError::RoleChanged);
            }
            if malformed {
                return Err(StreamError::Protocol);
            }
            if let Some(closed) = self.connection.closing_error() {
                return Err(closed);
            }
            let connection = &mut self.connection.connection;
            let refused = connection.state != ConnectionState::Ready;
            connection.state = ConnectionState::Ready;
            if self.awaits_libraries() && !self.patience.is_zero() {
                if !self.prepare_libraries()? {
                    return Ok(true);
                }
                // The command runs before this call returns. If the link broke meanwhile, the next one would otherwise
                // continue before the command, and run the code again.
                self.patience = self.patience.saturating_sub(began.elapsed());
                continue;
            }
            match refused && !advanced {
                true => {
                    weft_os::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_RETRY_PAUSE);
                    self.patience = self.patience.saturating_sub(began.elapsed());
                }
                false => pause = MIN_RETRY_PAUSE,
            }
            if !refused && !held_up && rest != InputRest::More {
                return Ok(false);
            }
            if self.patience.is_zero() {
                return Ok(true);
            }
        }
    }

    /// Waits for a worker that the stream has sent more mail than it can read. The caller is outside of the gate, which
    /// that worker may need to read on.
    fn await_deliveries(&mut self) {
        let began = Instant::now();
        let thread = &mut self.thread;
        thread.effects.set_full_mailbox_aside();
        self.has_overloaded_worker |= thread.effects.overloaded_worker.is_some();
        wait_for_full_mailbox(&thread.server, &mut thread.effects, self.patience);
        self.patience = self.patience.saturating_sub(began.elapsed());
    }

    /// Returns `true` if the stream has sent a worker more mail than it can read, and a mailbox is still full. No round
    /// begins then. A batch on this thread may: it ends with the first command that sends mail to a full mailbox.
    fn is_mailbox_full(&mut self) -> bool {
        let workers = &self.thread.server.workers;
        self.has_overloaded_worker = self.has_overloaded_worker && workers.iter().any(WorkerLink::is_mailbox_full);
        self.has_overloaded_worker
    }

    fn begin_batch(&mut self) {
        self.thread.begin_batch(unix_ms());
        // The primary limits the memory, not this server.
        self.thread.tunables.max_memory = 0;
        let server = &self.thread.server;
        self.connection.connection.client.login.refresh(&server.acl);
    }

    fn plan_commands(&mut self) -> InputRest {
        let prefetches = self.thread.tunables.prefetch_depth > 1;
        plan_input(&self.thread.server, prefetches, &mut self.connection, &mut self.plans)
    }

    /// Returns `true` if the plans begin with enough commands for a round, and there are apply threads.
    fn may_begin_round(&mut self) -> bool {
        if self.thread_count < 2 || self.plans.plans.len() < MIN_ROUND_COMMANDS || self.is_mailbox_full() {
            return false;
        }
        let client = &self.connection.connection.client;
        let input = &self.connection.connection.input;
        let is_part = |plan: &CommandPlan| {
            self.plans.runs_in_round(plan) || selected_db(&self.thread.server, plan, &self.plans, input).is_some()
        };
        if client.transaction.is_some()
            || !self.plans.plans[..MIN_ROUND_COMMANDS].iter().all(is_part)
            || !self.admits_rounds()
        {
            return false;
        }
        if self.threads.is_none() {
            self.start_threads();
        }
        self.thread_count > 1
    }

    /// Returns `true` if rounds of this stream may run now. In a passage of the gate, the answer holds until its end:
    /// the role and killed clients change in exclusive mode, and a round does not mind a pause that begins while it
    /// runs. MONITOR shows the order of the stream.
    fn admits_rounds(&self) -> bool {
        let server = &self.thread.server;
        let pause = &server.clients.pause;
        server.replication.role_epoch() == self.connection.role_epoch
            && !pause.are_writes_paused(self.thread.now_ms)
            && !pause.held_slots.is_any()
            && !server.is_module_giving_way()
            && !server.keyspace.hooks.current().intersects(Hooks::MONITOR)
            && !server.clients.directory.is_killed(self.connection.connection.client.id)
            && self.connection.closing_error().is_none()
            && !server.scripting.running.has_unfinished_unit()
    }

    #[cold]
    fn start_threads(&mut self) {
        let server = &self.thread.server;
        let primary = &self.connection.connection.client;
        let client = || {
            let mut client = primary.link_snapshot();
            client.login = server.acl.superuser_login();
            client.flags = ClientFlags::PRIMARY;
            client.commands = 0;
            client
        };
        let threads = ApplyThreads::start(server, self.thread_count, client);
        if threads.part_count() == 0 {
            self.thread_count = 1;
        }
        self.runner = Some(PartRunner::new(client()));
        self.threads = Some(threads);
    }

    /// Runs rounds, beginning with the plans. Returns the index of the first plan that is still to be run, and the
    /// state of the input behind the plans.
    ///
    /// # Errors
    /// [`StreamError::ShuttingDown`]. The position does not count what has run of the last round.
    fn run_rounds(
        &mut self,
        seat: &mut Seat,
        rest: InputRest,
        while_waiting: &mut dyn FnMut(),
    ) -> Result<(usize, InputRest), StreamError> {
        let server = self.thread.server.clone();
        let (mut round, mut following) = std::mem::take(&mut self.spare_rounds);
        let mut planned = self.plan_round(&mut round, rest);
        loop {
            self.begin_batch();
            if self.has_disk_errors() {
                self.handle_disk_errors();
            }
            let may_begin = self.await_log() && !self.is_mailbox_full();
            let pass = seat.enter();
            if !may_begin || !self.admits_rounds() {
                drop(pass);
                self.give_up_round(&mut round);
                self.spare_rounds = (round, following);
                return Ok((0, InputRest::More));
            }
            let ReplicatedStream {
                thread,
                connection,
                plans,
                threads,
                runner,
                ..
            } = self;
            let (Some(threads), Some(runner)) = (threads, runner) else {
                unreachable!("rounds are planned when the threads are started");
            };
            let prefetches = thread.tunables.prefetch_depth > 1;
            following.parts.resize_with(round.parts.len(), StreamPart::default);
            let mut next = None;
            let plan_next = || {
                if planned.is_full {
                    let rest = plan_input(&server, prefetches, connection, plans);
                    next = Some(take_round(&server, prefetches, connection, plans, &mut following, rest));
                }
            };
            let parts = (&mut round.parts, round.commands);
            let figures = threads.run_round(&pass, parts, (thread, runner), plan_next, while_waiting);
            if figures.is_incomplete {
                return Err(StreamError::ShuttingDown);
            }
            let (end, db) = round.end;
            connection.applied_bytes = end;
            connection.append_to_backlog(&server, db);
            drop(pass);
            let client = &mut connection.connection.client;
            client.commands += figures.commands;
            client.last_command = round.last_command;
            self.last_sequence = self.last_sequence.max(figures.last_sequence);
            self.thread.effects.overloaded_worker = figures.overloaded_worker;
            self.record_write_position();
            self.await_deliveries();
            std::mem::swap(&mut round, &mut following);
            match next {
                Some(next) => planned = next,
                None => break,
            }
            if round.commands == 0 {
                break;
            }
        }
        self.spare_rounds = (round, following);
        Ok((planned.next, planned.rest))
    }

    /// Takes a round from the plans, and plans further commands for it.
    fn plan_round(&mut self, round: &mut Round, rest: InputRest) -> RoundPlanned {
        let parts = self.threads.as_ref().map_or(1, ApplyThreads::part_count);
        round.parts.resize_with(parts, StreamPart::default);
        let prefetches = self.thread.tunables.prefetch_depth > 1;
        let server = &self.thread.server;
        take_round(server, prefetches, &mut self.connection, &mut self.plans, round, rest)
    }

    /// Waits until the log thread is not far behind. Returns `false` if the role epoch or the patience has ended.
    fn await_log(&mut self) -> bool {
        let server = &self.thread.server;
        let mut pause = MIN_RETRY_PAUSE;
        while server.keyspace.hooks.current().intersects(Hooks::LOG)
            && server.propagation.unread_bytes() > MAX_UNREAD_BYTES
        {
            if server.replication.role_epoch() != self.connection.role_epoch || self.patience.is_zero() {
                return false;
            }
            let began = Instant::now();
            server.propagation.wake();
            weft_os::thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_PAUSE);
            self.patience = self.patience.saturating_sub(began.elapsed());
        }
        !self.patience.is_zero()
    }

    /// Forgets the plans of a round that may not run now. Its commands are planned again.
    fn give_up_round(&mut self, round: &mut Round) {
        round.parts.iter_mut().for_each(StreamPart::clear);
        self.plans.clear();
        let connection = &mut self.connection.connection;
        (connection.consumed, connection.client.db) = round.start;
        connection.planned_to = connection.consumed;
        connection.parser.reset();
    }

    fn has_disk_errors(&self) -> bool {
        self.thread.tunables.refuses_writes || self.thread.tunables.is_aof_failing
    }

    /// Executes the primary's writes even while the disk fails, unless this server is configured to end then.
    fn handle_disk_errors(&mut self) {
        if !self.thread.server.config.boolean(id::REPLICA_IGNORE_DISK_WRITE_ERRORS) {
            log::warning!("Replica was unable to write command to disk.");
            panic!("Replica was unable to write command to disk.");
        }
        if self
            .last_disk_warning
            .is_none_or(|told| told.elapsed() > DISK_WARNING_PERIOD)
        {
            self.last_disk_warning = Some(Instant::now());
            log::warning!("Replica is applying a command even though it is unable to write to disk.");
        }
    }

    /// Executes the next step of a command.
    fn run_next_step(&mut self, seat: &mut Seat, next_step: NextStep) {
        let server = self.thread.server.clone();
        match next_step {
            NextStep::Background(work) => {
                self.connection
                    .connection
                    .output
                    .bytes
                    .extend_from_slice(&work.run_to_end(&server, seat));
            }
            NextStep::AwaitServing(withheld) => send_unserved(&server, withheld.0),
            NextStep::TransactionParts(parts) => {
                for (after, _) in parts.1 {
                    self.run_next_step(seat, after);
                }
            }
            // Replies that no client receives, and waits that the stream must not make.
            NextStep::Reply
            | NextStep::QueryWorkers(_)
            | NextStep::CollectClients
            | NextStep::PrepareLibraries
            | NextStep::Defer
            | NextStep::RunInBackground(_)
            | NextStep::AwaitBackground(_)
            | NextStep::AwaitSnapshotCommand(_)
            | NextStep::AwaitScript(_)
            | NextStep::ReplyAt(_)
            | NextStep::AwaitLog(_)
            | NextStep::Sync(_)
            | NextStep::TakeConnection(_)
            | NextStep::AwaitReplicas(_)
            | NextStep::RetryAsWriter
            | NextStep::Block(_)
            | NextStep::BlockByModule(_) => {}
        }
        self.connection.connection.state = ConnectionState::Ready;
    }
}

fn key_counts(server: &Server) -> &KeyCounts {
    &server.keyspace.counts
}

fn is_write(plan: &CommandPlan) -> bool {
    match plan.kind {
        RequestKind::Command(command, _) => command.spec.flags.contains(CommandFlags::WRITE),
        _ => false,
    }
}

/// Plans the requests in the input that are in no plan or round yet.
fn plan_input(server: &Server, prefetches: bool, connection: &mut PrimaryConnection, plans: &mut Plans) -> InputRest {
    let planner = Planner {
        keyspace: &server.keyspace,
        max_bulk_len: i64::MAX as u64,
        must_authenticate: false,
        is_prefetch_enabled: prefetches,
        commands: crate::commands::registry(),
    };
    planner.plan(0, &mut connection.connection, plans)
}

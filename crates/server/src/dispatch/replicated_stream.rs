//! Runs the stream of a primary: its commands, in order, as one client that is never refused.
//!
//! One thread owns the stream. Its commands take the path of all commands (plan, batch, leases, handler), so their
//! effects on local clients that watch, block and listen need no further code. The differences:
//!
//! 1. Nothing is refused except by CLIENT PAUSE, and nothing leaves the thread, because the next command must not
//!    overtake.
//! 2. A command that is refused a slot is tried again until it succeeds.
//! 3. For a primary's commands nothing has expired: the primary sends a DEL instead (see [`ThreadState::expiry_ms`]).
//! 4. An offset of the stream counts as reached when the command before it has run and no transaction is open. A link
//!    that is re-established continues from there, so nothing runs twice and no transaction runs in halves.
//! 5. The end of the role epoch ends the stream, between two commands.
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
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::{NotificationSender, wake_workers};
use crate::observability::log;
use crate::propagation::LogMilestone;
use crate::state::{Message, Server};
use weft_command_table::spec::CommandFlags;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

use super::batch::{self, BatchConnections};
use super::plan::{CommandPlan, InputRest, Planner, Plans, RequestKind};
use super::thread::ThreadState;

/// The first pause after a refusal; it doubles up to [`MAX_RETRY_PAUSE`].
const MIN_RETRY_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause after a refusal.
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The minimum interval between two log lines about a failing disk.
const DISK_WARNING_PERIOD: Duration = Duration::from_secs(10);

/// The maximum number of log positions that are kept until the disk has them.
const MAX_WRITE_POSITIONS: usize = 4096;

/// The reason for which a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// This server follows another primary, or none.
    RoleChanged,
    /// The input is malformed.
    Protocol,
}

/// The stream of one link.
pub struct ReplicatedStream {
    thread: ThreadState,
    connection: PrimaryConnection,
    plans: Plans,
    /// Log sequence numbers, ascending, with the stream offset after each. Entries that are on disk are removed.
    write_positions: VecDeque<(LogSequence, ReplicationOffset)>,
    /// Sequence numbers before this one were taken before this link, and say nothing about its offsets.
    first_sequence: LogSequence,
    /// The offset up to which the stream is on disk here.
    fsynced_offset: ReplicationOffset,
    /// The time of the last warning that the disk fails.
    last_disk_warning: Option<Instant>,
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
}

impl PrimaryConnection {
    /// Appends the bytes of the stream from `relayed_bytes` up to `applied_bytes` to the backlog.
    fn append_to_backlog(&mut self, server: &Server) {
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
        repl.stream_db.store(self.connection.client.db.get(), Ordering::Relaxed);
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
            self.connection.append_to_backlog(self.server);
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
        let mut thread = ThreadState::new(server.clone(), ThreadIndex::new(seat.index()));
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
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
            first_sequence,
            fsynced_offset: ReplicationOffset::ZERO,
            last_disk_warning: None,
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
        let sequence = self.thread.effects.log_writer.last_sequence().max(self.first_sequence);
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

    /// Returns the database that the stream has selected.
    pub fn db(&self) -> DbIndex {
        self.connection.connection.client.db
    }

    /// Runs all complete commands that have arrived.
    ///
    /// # Errors
    /// When the stream ends. The position that was reached by then counts.
    pub fn run_commands(&mut self, seat: &mut Seat) -> Result<(), StreamError> {
        let mut pause = MIN_RETRY_PAUSE;
        loop {
            self.begin_batch();
            let rest = self.plan_commands();
            let planned = !self.plans.plans.is_empty();
            let malformed =
                matches!(self.plans.plans.last(), Some(plan) if matches!(plan.kind, RequestKind::Malformed(_)));
            if planned {
                self.handle_disk_errors();
                let server = self.thread.server.clone();
                let mut only = SingleConnection {
                    connection: &mut self.connection,
                    server: &server,
                };
                batch::run_plans(&mut self.thread, seat, &mut self.plans, &mut only);
            }
            self.plans.clear();
            self.connection.connection.is_in_batch = false;
            let next_step = self.connection.next_step.take();
            // Commands behind it have been received, and must be planned again.
            let held_up = next_step.is_some();
            if let Some(after) = next_step {
                self.run_next_step(seat, after);
            }
            self.finish_batch();
            self.record_write_position();
            let advanced = self.connection.discard_executed();
            if self.thread.server.replication.role_epoch() != self.connection.role_epoch {
                return Err(StreamError::RoleChanged);
            }
            if malformed {
                return Err(StreamError::Protocol);
            }
            let connection = &mut self.connection.connection;
            let refused = connection.state != ConnectionState::Ready;
            connection.state = ConnectionState::Ready;
            match refused && !advanced {
                true => {
                    weft_os::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_RETRY_PAUSE);
                }
                false => pause = MIN_RETRY_PAUSE,
            }
            if !refused && !held_up && rest != InputRest::More {
                return Ok(());
            }
        }
    }

    fn begin_batch(&mut self) {
        self.thread.begin_batch(unix_ms());
        // The primary limits the memory, not this server.
        self.thread.tunables.max_memory = 0;
        let server = &self.thread.server;
        self.connection.connection.client.login.refresh(&server.acl);
    }

    fn plan_commands(&mut self) -> InputRest {
        let planner = Planner {
            keyspace: &self.thread.server.keyspace,
            max_bulk_len: i64::MAX as u64,
            is_prefetch_enabled: self.thread.tunables.prefetch_depth > 1,
            commands: crate::commands::registry(),
        };
        planner.plan(0, &mut self.connection.connection, &mut self.plans)
    }

    /// Executes the primary's writes even while the disk fails, unless this server is configured to end then.
    fn handle_disk_errors(&mut self) {
        let tunables = &self.thread.tunables;
        if !tunables.refuses_writes && !tunables.is_aof_failing {
            return;
        }
        let writes = |plan: &CommandPlan| match plan.kind {
            RequestKind::Command(command, _) => command.spec.flags.contains(CommandFlags::WRITE),
            _ => false,
        };
        if !self.plans.plans.iter().any(writes) {
            return;
        }
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

    /// Completes a batch after its leases have ended.
    fn finish_batch(&mut self) {
        let ReplicatedStream {
            thread,
            connection: lane,
            ..
        } = self;
        let server = thread.server.clone();
        // Includes keys whose waiters could not be served immediately.
        thread.collect_ready_keys();
        for unserved in thread.unserved.drain(..) {
            server.worker(ThreadIndex::FIRST).send(Message::ServeWaiters(unserved));
        }
        NotificationSender::new(&server, &mut thread.effects, thread.thread_index).send_broadcasts();
        wake_workers(&server, &mut thread.effects);
        thread.effects.outbox.clear();
        thread.effects.expired.clear();
        let output = &mut lane.connection.output;
        if let Some(error) = first_error(&output.bytes) {
            server.replication.unexpected_errors.fetch_add(1, Ordering::Relaxed);
            log::warning!(
                "== CRITICAL == This replica is sending an error to its primary: '{}' after processing the command '{}'",
                String::from_utf8_lossy(error),
                lane.connection.client.last_command
            );
            let is_copy = server.config.boolean(id::REPLICA_READ_ONLY);
            assert!(
                !is_copy || server.config.choice(id::PROPAGATION_ERROR_BEHAVIOR) == "ignore",
                "This replica panicked sending an error to its primary after processing the command '{}'",
                lane.connection.client.last_command
            );
        }
        output.clear();
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
                    .extend_from_slice(&(work.run)(&server, seat));
            }
            NextStep::AwaitServing(withheld) => server
                .worker(ThreadIndex::FIRST)
                .send(Message::ServeWaiters(withheld.0)),
            NextStep::TransactionParts(parts) => {
                for (after, _) in parts.1 {
                    self.run_next_step(seat, after);
                }
            }
            // Replies that no client receives, and waits that the stream must not make.
            NextStep::Reply
            | NextStep::QueryWorkers(_)
            | NextStep::CollectClients
            | NextStep::Defer
            | NextStep::RunInBackground(_)
            | NextStep::AwaitBackground(_)
            | NextStep::AwaitScript(_)
            | NextStep::ReplyAt(_)
            | NextStep::AwaitLog(_)
            | NextStep::Sync(_)
            | NextStep::TakeConnection(_)
            | NextStep::AwaitReplicas(_)
            | NextStep::RetryAsWriter
            | NextStep::Block(_) => {}
        }
        self.connection.connection.state = ConnectionState::Ready;
    }
}

fn key_counts(server: &Server) -> &KeyCounts {
    &server.keyspace.counts
}

/// Returns the first error among some replies, without its type byte.
pub(super) fn first_error(replies: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    while let Some(reply) = replies.get(at..).filter(|reply| !reply.is_empty()) {
        if let Some(error) = reply.strip_prefix(b"-") {
            return error.split(|byte| *byte == b'\r').next();
        }
        at += first_reply_len(reply)?;
    }
    None
}

/// Returns the length of the first of some replies.
fn first_reply_len(replies: &[u8]) -> Option<usize> {
    let line = 2 + replies.windows(2).position(|window| window == b"\r\n")?;
    let number = || weft_resp::number::parse_i64(replies.get(1..line - 2)?);
    match replies.first()? {
        b'$' | b'=' => {
            let body = usize::try_from(number()?).map_or(0, |length| length + 2);
            Some(line + body)
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let elements = number()?.max(0) * if *kind == b'%' { 2 } else { 1 };
            (0..elements).try_fold(line, |at, _| Some(at + first_reply_len(replies.get(at..)?)?))
        }
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests;

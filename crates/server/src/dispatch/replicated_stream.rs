//! Runs the stream of a primary: its commands, in order, as one client that is never refused.
//!
//! One thread owns the stream. Its commands go the way of all commands (plan, batch, leases, handler), so their effects
//! on local clients that watch, block and listen follow without further code. The differences:
//!
//! 1. Nothing is refused except by CLIENT PAUSE, and nothing leaves the thread, because the next command must not
//!    overtake.
//! 2. A command that is refused a slot is tried again until it succeeds.
//! 3. Nothing has expired for a primary: it sends a DEL instead (see `Thread::access`).
//! 4. An offset of the stream counts as reached when the command before it has run and no transaction is open. A link
//!    that is re-established continues from there, so nothing runs twice and no transaction runs in halves.
//! 5. The end of the role epoch ends the stream, between two commands.
//! 6. The bytes that were run go into the backlog unchanged, before the passage of the gate in which they ran ends. So
//!    a thread in exclusive mode finds data and offset in agreement, and replicas of this server follow the stream of
//!    its primary.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weft_base::clock::unix_ms;

use crate::commands::context::NextStep;
use crate::keyspace::Seat;
use crate::keyspace::access::KeyCounts;
use crate::net::client::{Client, ClientFlags};
use crate::net::connection::{Connection, ConnectionState};
use crate::notify::messages::{NotificationSender, wake};
use crate::observability::log;
use crate::propagation::LogMilestone;
use crate::state::{Message, Server};
use weft_command_table::spec::Flags as CommandFlags;
use weft_config::id;

use super::batch::{self, Connections};
use super::plan::{InputRest, Kind, Plan, Planner, Plans};
use super::thread::Thread;

/// The first pause after a refusal; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// The longest pause after a refusal.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Between two lines of the log about a disk that fails.
const TELL_PERIOD: Duration = Duration::from_secs(10);

/// Places of the log that are kept until the disk has them.
const WRITTEN_PLACES: usize = 4096;

/// The reason for which a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// Another primary is followed, or none.
    TermOver,
    /// The input is malformed.
    Protocol,
}

/// The stream of one link.
pub struct Stream {
    thread: Thread,
    lane: PrimaryConnection,
    plans: Plans,
    /// Log sequence numbers, ascending, with the stream offset after each. Entries that are on disk are removed.
    written: VecDeque<(u64, i64)>,
    /// Sequence numbers before this one were taken before this link, and say nothing about its offsets.
    first_ticket: u64,
    /// The offset up to which the stream is on disk here.
    synced: i64,
    /// The time of the last warning that the disk fails.
    disk_told: Option<Instant>,
}

/// The stream's only connection, as a batch sees it.
struct PrimaryConnection {
    connection: Connection,
    term: u64,
    /// Bytes of the stream before those in the input.
    base: u64,
    /// Bytes of the stream up to the last place that counts as reached.
    reached: u64,
    /// The offset of the history at which the stream began.
    origin: i64,
    /// Bytes of the stream that are in the backlog.
    relayed: u64,
    /// Bytes that were cut from the input and are not in the backlog yet.
    held: Vec<u8>,
    after: Option<NextStep>,
}

impl PrimaryConnection {
    /// Notes how far the stream is.
    fn note_place(&mut self) {
        if self.connection.client.transaction.is_none() {
            self.reached = self.base + self.connection.consumed as u64;
        }
    }
}

impl PrimaryConnection {
    /// Appends the bytes of the stream from `relayed` up to `until` to the backlog.
    fn relay(&mut self, server: &Server) {
        if self.reached == self.relayed {
            return;
        }
        let mut bytes = std::mem::take(&mut self.held);
        let from = self.relayed.max(self.base) - self.base;
        if self.reached > self.base {
            bytes.extend_from_slice(&self.connection.input[from as usize..(self.reached - self.base) as usize]);
        }
        let kept = (self.reached - self.relayed) as usize;
        // Behind a place in what was cut lies what the next place brings.
        self.held = bytes.split_off(kept.min(bytes.len()));
        self.relayed = self.reached;
        let repl = &server.replication;
        let most_bytes = server.config.integer(id::REPL_BACKLOG_SIZE);
        repl.replicas.backlog().append(&bytes, most_bytes);
        repl.stream_db.store(self.connection.client.db, Ordering::Relaxed);
        repl.set_offset(self.origin + self.reached as i64);
        if repl.replicas.has_readers.load(Ordering::Relaxed) {
            server.background.wake_primary_thread();
        }
    }

    /// Forgets what was executed; whether that was something.
    fn cut(&mut self) -> bool {
        let executed = self.connection.consumed;
        let end = self.base + executed as u64;
        if end > self.relayed {
            let from = (self.relayed.max(self.base) - self.base) as usize;
            self.held.extend_from_slice(&self.connection.input[from..executed]);
        }
        self.base = end;
        self.connection.discard_consumed();
        executed > 0
    }
}

/// The connections of a batch: only one.
struct SingleConnection<'a> {
    lane: &'a mut PrimaryConnection,
    server: &'a Arc<Server>,
}

impl Connections for SingleConnection<'_> {
    fn connection(&mut self, _: usize) -> Option<&mut Connection> {
        if self.server.replication.role_epoch() != self.lane.term {
            return None;
        }
        // Before the next command of the batch runs.
        self.lane.note_place();
        Some(&mut self.lane.connection)
    }

    fn after(&mut self, _: usize, after: NextStep) {
        // Commands behind it wait until that is done.
        self.lane.connection.state = ConnectionState::Parked(0);
        self.lane.after = Some(after);
    }

    fn pass_ends(&mut self) {
        if self.server.replication.role_epoch() == self.lane.term {
            self.lane.note_place();
            self.lane.relay(self.server);
        }
    }

    fn notify(&mut self, thread: &mut Thread) {
        // This thread has no clients of its own, so everything is sent by mail.
        wake(&thread.server, &mut thread.effects);
    }
}

impl Stream {
    /// Creates the stream of a link that was made for the role epoch `term` and has selected database `db`. `client`
    /// stands for the primary.
    pub fn new(server: &Arc<Server>, seat: &Seat, term: u64, mut client: Client, db: usize) -> Self {
        let mut thread = Thread::new(server.clone(), seat.index());
        (thread.may_leave, thread.may_block, thread.replays) = (false, false, true);
        client.login = server.acl.superuser_login();
        client.flags.set(ClientFlags::PRIMARY, true);
        let first_ticket = server.propagation.last_sequence();
        client.db = db.min(counts(server).databases() - 1);
        Stream {
            thread,
            lane: PrimaryConnection {
                connection: Connection::new(client),
                term,
                base: 0,
                reached: 0,
                origin: server.replication.offset(),
                relayed: 0,
                held: Vec::new(),
                after: None,
            },
            plans: Plans::default(),
            written: VecDeque::from([(first_ticket, server.replication.offset())]),
            first_ticket,
            synced: 0,
            disk_told: None,
        }
    }

    /// Returns the offset up to which the append-only file is on disk, or `None` without an append-only file that has
    /// everything.
    pub fn synced(&mut self) -> Option<i64> {
        let server = &self.thread.server;
        if !server.persistence.aof.is_complete() {
            return None;
        }
        let reached = server.propagation.milestone_sequence(LogMilestone::Synced);
        while let Some((_, offset)) = self.written.front().filter(|(ticket, _)| *ticket <= reached) {
            self.synced = *offset;
            self.written.pop_front();
        }
        Some(self.synced)
    }

    /// Records the stream offset after the last sequence number.
    fn note_written(&mut self) {
        let server = &self.thread.server;
        let offset = server.replication.offset();
        let ticket = self.thread.effects.log_writer.last_sequence().max(self.first_ticket);
        let is_full = self.written.len() == WRITTEN_PLACES;
        match self.written.back_mut() {
            Some(last) if last.0 == ticket => last.1 = offset,
            // With a full list, only the latest offset is kept.
            Some(last) if is_full => *last = (ticket, offset),
            _ => self.written.push_back((ticket, offset)),
        }
    }

    /// Returns the buffer for input.
    pub fn input(&mut self) -> &mut Vec<u8> {
        &mut self.lane.connection.input
    }

    /// The primary as a client.
    pub fn client(&mut self) -> &mut Client {
        &mut self.lane.connection.client
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.lane.connection
    }

    /// The database that the stream has selected.
    pub fn db(&self) -> usize {
        self.lane.connection.client.db
    }

    /// Runs all complete commands that have arrived.
    ///
    /// # Errors
    /// When the stream ends. What was reached by then counts.
    pub fn run(&mut self, seat: &mut Seat) -> Result<(), StreamError> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.begin();
            let rest = self.plan();
            let planned = !self.plans.list.is_empty();
            let malformed = matches!(self.plans.list.last(), Some(plan) if matches!(plan.kind, Kind::Malformed(_)));
            if planned {
                self.heed_disk();
                let server = self.thread.server.clone();
                let mut only = SingleConnection {
                    lane: &mut self.lane,
                    server: &server,
                };
                batch::run(&mut self.thread, seat, &mut self.plans, &mut only);
            }
            self.plans.clear();
            self.lane.connection.is_in_batch = false;
            let after = self.lane.after.take();
            // Commands behind it have been received, and must be planned again.
            let held_up = after.is_some();
            if let Some(after) = after {
                self.finish(seat, after);
            }
            self.conclude();
            self.note_written();
            let advanced = self.lane.cut();
            if self.thread.server.replication.role_epoch() != self.lane.term {
                return Err(StreamError::TermOver);
            }
            if malformed {
                return Err(StreamError::Protocol);
            }
            let connection = &mut self.lane.connection;
            let refused = connection.state != ConnectionState::Ready;
            connection.state = ConnectionState::Ready;
            match refused && !advanced {
                true => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                false => pause = FIRST_PAUSE,
            }
            if !refused && !held_up && rest != InputRest::More {
                return Ok(());
            }
        }
    }

    fn begin(&mut self) {
        self.thread.begin_batch(unix_ms());
        // Memory is the primary's responsibility.
        self.thread.tunables.max_memory = 0;
        let server = &self.thread.server;
        self.lane.connection.client.login.refresh(&server.acl);
    }

    fn plan(&mut self) -> InputRest {
        let planner = Planner {
            keyspace: &self.thread.server.keyspace,
            max_bulk_len: i64::MAX as u64,
            prefetch: self.thread.tunables.prefetch_depth > 1,
            commands: crate::commands::registry(),
        };
        planner.plan(0, &mut self.lane.connection, &mut self.plans)
    }

    /// The primary's writes are executed here even while the disk fails, unless this server is configured to end then.
    fn heed_disk(&mut self) {
        let tunables = &self.thread.tunables;
        if !tunables.refuses_writes && !tunables.aof_fails {
            return;
        }
        let writes = |plan: &Plan| match plan.kind {
            Kind::Command(command, _) => command.spec.flags.contains(CommandFlags::WRITE),
            _ => false,
        };
        if !self.plans.list.iter().any(writes) {
            return;
        }
        if !self.thread.server.config.boolean(id::REPLICA_IGNORE_DISK_WRITE_ERRORS) {
            log::warning!("Replica was unable to write command to disk.");
            panic!("Replica was unable to write command to disk.");
        }
        if self.disk_told.is_none_or(|told| told.elapsed() > TELL_PERIOD) {
            self.disk_told = Some(Instant::now());
            log::warning!("Replica is applying a command even though it is unable to write to disk.");
        }
    }

    /// The work after the leases of a batch have ended.
    fn conclude(&mut self) {
        let Stream { thread, lane, .. } = self;
        let server = thread.server.clone();
        // Waiters that could not be served at once, and what they are made of.
        thread.keep_ready();
        for unserved in thread.unserved.drain(..) {
            server.workers[0].send(Message::Serve(unserved));
        }
        NotificationSender::new(&server, &mut thread.effects, thread.seat).broadcast();
        wake(&server, &mut thread.effects);
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
    fn finish(&mut self, seat: &mut Seat, after: NextStep) {
        let server = self.thread.server.clone();
        match after {
            NextStep::Background(work) => {
                self.lane
                    .connection
                    .output
                    .bytes
                    .extend_from_slice(&work(&server, seat));
            }
            NextStep::Serve(withheld) => server.workers[0].send(Message::Serve(withheld.0)),
            NextStep::Several(parts) => {
                for (after, _) in parts.1 {
                    self.finish(seat, after);
                }
            }
            // Replies that no client receives, and waits that the stream must not make.
            NextStep::Nothing
            | NextStep::Ask(_)
            | NextStep::Gather
            | NextStep::Defer
            | NextStep::Leave(_)
            | NextStep::Detached(_)
            | NextStep::Script(_)
            | NextStep::ReplyAt(_)
            | NextStep::AwaitLog(_)
            | NextStep::Supply(_)
            | NextStep::Take(_)
            | NextStep::Replicas(_)
            | NextStep::AsWriter
            | NextStep::Block(_) => {}
        }
        self.lane.connection.state = ConnectionState::Ready;
    }
}

fn counts(server: &Server) -> &KeyCounts {
    &server.keyspace.counts
}

/// The first of some replies that is an error, without its mark.
pub(super) fn first_error(replies: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    while let Some(reply) = replies.get(at..).filter(|reply| !reply.is_empty()) {
        if let Some(error) = reply.strip_prefix(b"-") {
            return error.split(|byte| *byte == b'\r').next();
        }
        at += length_of(reply)?;
    }
    None
}

/// Bytes of the first of some replies.
fn length_of(replies: &[u8]) -> Option<usize> {
    let line = 2 + replies.windows(2).position(|window| window == b"\r\n")?;
    let number = || weft_resp::number::parse_i64(replies.get(1..line - 2)?);
    match replies.first()? {
        b'$' | b'=' => {
            let body = usize::try_from(number()?).map_or(0, |length| length + 2);
            Some(line + body)
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let elements = number()?.max(0) * if *kind == b'%' { 2 } else { 1 };
            (0..elements).try_fold(line, |at, _| Some(at + length_of(replies.get(at..)?)?))
        }
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests;

//! Serves replicas: one thread owns their connections, sends each a full synchronisation if necessary, and then the
//! stream from the backlog.
//!
//! ```text
//!   worker: PSYNC ─▶ the connection moves here ─┬─ the backlog has what it misses ───────────────▶ Online
//!                                               └─▶ WaitsForDump ─▶ GetsDump (dump.rs) ─▶ its ACK ─▶ Online
//!
//!   log thread ─▶ backlog ─▶ this thread: from each replica's offset, as much as its socket accepts
//!   replica: REPLCONF ACK ─▶ its public state (`repl::ReplicaInfo`) ─▶ clients blocked in WAIT
//! ```
//!
//! With `dual-channel-replication-enabled` the dump may use a separate connection (`rdb_channel.rs`).
//!
//! 1. A replica's offset in the backlog is pinned from the moment of its dump on, so nothing is lost while it receives
//!    the dump.
//! 2. While a dump is being sent, only the dump's thread writes to the sockets that receive it. A dump file is sent to
//!    each replica by a thread of its own, while the next dump may begin.
//! 3. A replica whose unsent bytes exceed the limits of `client-output-buffer-limit` is disconnected.
//! 4. No worker ever waits for a replica. Clients blocked in WAIT are parked, and are answered by a message to their
//!    worker.
//! 5. This thread never waits for a script, since the stream of all replicas would wait as well. What it does in
//!    exclusive mode it tries again until no script runs (`exclusion.rs`).

mod exclusion;
mod full_sync;
mod psync;
mod rdb_channel;
mod requests;
mod sync_batch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, LogSequence, ReplicationOffset};
use weft_reactor::{Event, Output, Reactor, ReceiveOutcome, SendOutcome};

use crate::keyspace::Seat;
use crate::net::client::{BufferFigures, ReplicaHandshake};
use crate::net::connection::Connection;
use crate::observability::log;
use crate::persistence::aof_files::AofState;
use crate::replication::backlog_writer;
use crate::replication::role;
use crate::replication::role::FailoverStep;
use crate::replication::{ReplicaInfo, ReplicaSyncState, WAITAOF_DISABLED_REPLY};
use crate::state::{PrimaryThreadCommand, Server};
use exclusion::ExclusionAttempts;
use rdb_channel::AwaitedMainChannel;
use sync_batch::DumpInProgress;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc;
use weft_os::time::Instant;
use weft_scripting::Requester;

/// The maximum number of events processed per turn.
const MAX_EVENTS_PER_TURN: usize = 128;
/// The number of backlog bytes passed to a socket at a time.
const SEND_CHUNK_BYTES: usize = 256 * 1024;
/// The number of copies of a chunk in memory while it is encrypted: the chunk, the records of the session, and those
/// for the socket.
const ENCRYPTED_CHUNK_COPIES: u64 = 3;
/// The buffer space reserved for each receive, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 16 * 1024;
/// The interval of the time-driven work.
const TICK: Duration = Duration::from_millis(100);
/// The interval while a client waits for this server's disk.
const DISK_WAIT_TICK: Duration = Duration::from_millis(5);

/// Starts the thread.
///
/// # Errors
/// When the operating system refuses to create it, or the keyspace has no free thread index.
pub fn start(server: &Arc<Server>, orders: mpsc::Receiver<PrimaryThreadCommand>) -> std::io::Result<()> {
    let mut supplier = PrimaryThread::new(server, orders)?;
    supplier
        .server
        .replication
        .update_too_few_replicas(&supplier.server.config);
    weft_os::thread::Builder::new()
        .name("weft-supply".into())
        .spawn(move || supplier.run())?;
    Ok(())
}

/// One replica.
struct Replica {
    connection: Box<Connection>,
    handshake: ReplicaHandshake,
    name: String,
    progress: ReplicaSyncState,
    /// `true` if the replica used PSYNC.
    is_psync: bool,
    /// Set until the replica acknowledges that it has loaded the dump. The stream begins only then.
    awaits_ack: bool,
    /// The time since which it has been waiting for a dump.
    waiting_since: Instant,
    last_heard: Instant,
    over_soft_limit_since: Option<Instant>,
}

impl Replica {
    fn id(&self) -> ClientId {
        self.connection.client.id
    }

    /// Returns `true` if its user is deleted, and it is about to be closed.
    fn has_deleted_user(&self) -> bool {
        self.connection.client.login.account().is_deleted()
    }

    fn receives_stream(&self) -> bool {
        matches!(self.progress, ReplicaSyncState::Online | ReplicaSyncState::LoadingDump) && !self.awaits_ack
    }
}

/// The state of the thread.
struct PrimaryThread {
    server: Arc<Server>,
    seat: Seat,
    reactor: Reactor,
    orders: mpsc::Receiver<PrimaryThreadCommand>,
    replicas: HashMap<usize, Replica>,
    next_token: usize,
    /// The dump under way.
    dump: Option<DumpInProgress>,
    /// The attempts to begin the next dump.
    exclusion_for_dump: ExclusionAttempts,
    /// The attempts to advance a failover.
    exclusion_for_failover: ExclusionAttempts,
    /// What this thread excludes scripts as when it closes the backlog.
    backlog_closer: Requester,
    /// The bytes kept for main channels that may still arrive.
    grace_periods: Vec<AwaitedMainChannel>,
    last_tick: Instant,
    /// The time since which there has been no replica.
    no_replica_since: Option<Instant>,
}

impl PrimaryThread {
    fn new(server: &Arc<Server>, orders: mpsc::Receiver<PrimaryThreadCommand>) -> std::io::Result<PrimaryThread> {
        let seat = server
            .keyspace
            .slots
            .join()
            .ok_or_else(|| std::io::Error::other("the keyspace has no free thread index"))?;
        let reactor = Reactor::new()?;
        server.background.set_primary_thread_waker(reactor.waker());
        Ok(PrimaryThread {
            server: server.clone(),
            seat,
            reactor,
            orders,
            replicas: HashMap::new(),
            next_token: 0,
            dump: None,
            exclusion_for_dump: ExclusionAttempts::new(server),
            exclusion_for_failover: ExclusionAttempts::new(server),
            backlog_closer: server.scripting.running.new_requester(),
            grace_periods: Vec::new(),
            last_tick: Instant::now(),
            no_replica_since: None,
        })
    }

    fn run(&mut self) {
        let mut events = Vec::new();
        let mut memory_cell = self.server.memory.primary_cell();
        loop {
            events.clear();
            self.server.memory.store_balance(&mut memory_cell);
            self.server
                .replication
                .replicas
                .settle_stream_bytes(self.in_flight_memory());
            self.server.replication.sleep_if_requested();
            let timeout = self.timeout();
            if let Err(error) = self.reactor.wait(timeout, &mut events, MAX_EVENTS_PER_TURN) {
                panic!("serving replicas: waiting for events failed: {error}");
            }
            for event in events.drain(..) {
                match event {
                    Event::Readable(token) => self.receive(token),
                    Event::Writable(token) => self.on_sent(token),
                    Event::Closed(token) | Event::SendFailed(token) => self.close_replica(token),
                    // This thread has no listeners.
                    Event::Accepted(..) | Event::AcceptFailed(..) => {}
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                // The order before may have started a dump during which this thread sleeps.
                self.server.replication.sleep_if_requested();
                self.handle_order(order);
            }
            self.send_backlog_to_all();
            self.answer_waits();
            if self.exclusion_for_dump.is_pending() {
                self.begin_dump_if_due();
            }
            self.advance_failover();
            if self.last_tick.elapsed() >= TICK {
                self.last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Returns the maximum time to wait for events. It is long while there are no replicas.
    fn timeout(&self) -> Option<Duration> {
        let for_disk = |wait: &crate::replication::ReplicaWait| wait.required_acks.local_disks.is_some();
        if self.server.replication.replicas.waits().iter().any(for_disk) {
            return Some(DISK_WAIT_TICK);
        }
        let idle = self.replicas.is_empty() && self.no_replica_since.is_none();
        let until_tick = if idle { Duration::from_secs(1) } else { TICK };
        let attempts = [&self.exclusion_for_dump, &self.exclusion_for_failover];
        let until_attempt = attempts.into_iter().filter_map(ExclusionAttempts::time_left).min();
        Some(until_attempt.map_or(until_tick, |left| left.min(until_tick)))
    }

    fn handle_order(&mut self, order: PrimaryThreadCommand) {
        match order {
            PrimaryThreadCommand::AdoptReplica(connection, request) => self.adopt_connection(connection, &request),
            PrimaryThreadCommand::DumpEnded {
                replicas,
                served_replicas: served,
                has_failed,
                has_eof_mark: with_mark,
            } => self.end_dump(&replicas, &served, has_failed, with_mark),
            PrimaryThreadCommand::DumpFileSent(replica, is_complete) => self.end_file_transfer(replica, is_complete),
            PrimaryThreadCommand::DisconnectAll => {
                let awaited = self.server.replication.replicas.awaited_dumps().clone();
                awaited.into_iter().for_each(|client| self.release_awaited_dump(client));
                let tokens: Vec<usize> = self.replicas.keys().copied().collect();
                tokens.into_iter().for_each(|token| self.close_replica(token));
                self.server.replication.replicas.end_disconnection();
            }
            PrimaryThreadCommand::Disconnect(id) => {
                if let Some(token) = self.token_of(id) {
                    self.close_replica(token);
                }
            }
            PrimaryThreadCommand::ConfirmDump { requester, dump } => self.confirm_dump(requester, dump),
            // The rest of the turn checks everything.
            PrimaryThreadCommand::CheckReplicas => {}
        }
    }

    fn token_of(&self, id: ClientId) -> Option<usize> {
        let found = self.replicas.iter().find(|(_, replica)| replica.id() == id);
        found.map(|(token, _)| *token)
    }

    // ---- receiving and sending --------------------------------------------------------------------------------------

    fn receive(&mut self, token: usize) {
        let Some(replica) = self.replicas.get_mut(&token) else {
            return;
        };
        let connection = &mut *replica.connection;
        let received = match &connection.tls {
            None => self.reactor.receive(token, &mut connection.input, RECEIVE_BUFFER_BYTES),
            Some(tls) => tls.receive(&mut self.reactor, token, &mut connection.input, RECEIVE_BUFFER_BYTES),
        };
        match received {
            Ok(ReceiveOutcome::Bytes { count, .. }) => {
                connection.client.net_input_bytes += count as u64;
                connection.client.last_interaction_ms = unix_ms();
                replica.last_heard = Instant::now();
            }
            Ok(ReceiveOutcome::WouldBlock) => return,
            Ok(ReceiveOutcome::Closed) | Err(_) => return self.close_replica(token),
        }
        self.process_input(token);
    }

    /// Sends bytes to a replica. Returns `false` if the connection is broken.
    fn send(&mut self, token: usize, output: &mut Output) -> bool {
        let length = output.len();
        if length == 0 {
            return true;
        }
        let tls = self
            .replicas
            .get(&token)
            .and_then(|replica| replica.connection.tls.as_ref());
        let sent = match tls {
            None => self.reactor.send(token, output),
            Some(tls) => tls.send(&mut self.reactor, token, output),
        };
        output.clear();
        let replicas = &self.server.replication.replicas;
        replicas.output_bytes.fetch_add(length as u64, Ordering::Relaxed);
        if let Some(replica) = self.replicas.get_mut(&token) {
            replica.connection.client.net_output_bytes += length as u64;
        }
        match sent {
            Ok(SendOutcome::Done | SendOutcome::InFlight(_)) => true,
            Err(_) => {
                self.close_replica(token);
                false
            }
        }
    }

    /// Continues after the bytes in flight have been sent.
    fn on_sent(&mut self, token: usize) {
        let tls = self
            .replicas
            .get(&token)
            .and_then(|replica| replica.connection.tls.clone());
        match tls.map(|tls| tls.continue_sending(&mut self.reactor, token)) {
            None | Some(Ok(_)) => self.send_backlog(token),
            Some(Err(_)) => self.close_replica(token),
        }
    }

    /// Returns the number of bytes in flight to a replica.
    fn in_flight(&self, token: usize) -> usize {
        let replica = self.replicas.get(&token);
        self.reactor.in_flight(token) + replica.map_or(0, |replica| replica.connection.unencrypted_bytes())
    }

    /// Returns the memory of what is in flight to all replicas, in bytes.
    fn in_flight_memory(&self) -> u64 {
        let bytes = |(token, replica): (&usize, &Replica)| {
            self.reactor.in_flight_memory(*token) + replica.connection.unencrypted_bytes()
        };
        self.replicas.iter().map(bytes).sum::<usize>() as u64
    }

    fn send_backlog_to_all(&mut self) {
        debug_assert_eq!(
            self.replicas.len(),
            self.server.replication.replicas.infos().len(),
            "every replica of this thread is published"
        );
        let tokens: Vec<usize> = self.replicas.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.send_backlog(token));
    }

    /// Sends a replica the part of the backlog that it misses, as much as its socket accepts.
    fn send_backlog(&mut self, token: usize) {
        let server = self.server.clone();
        loop {
            let Some(replica) = self.replicas.get(&token).filter(|replica| replica.receives_stream()) else {
                return;
            };
            if self.in_flight(token) > 0 {
                return;
            }
            let id = replica.id();
            let copies = match &replica.connection.tls {
                None => 1,
                Some(_) => ENCRYPTED_CHUNK_COPIES,
            };
            let mut output = Output::new();
            {
                let mut backlog = server.replication.replicas.backlog();
                if server.replication.replicas.is_disconnecting_all() {
                    // The backlog may have bytes of a new history, in which the replica is not.
                    return;
                }
                if replica.has_deleted_user() || server.replication.replicas.is_killed(id) {
                    // The backlog may have writes that were made after that.
                    drop(backlog);
                    return self.close_replica(token);
                }
                let Some(place) = backlog.reader_offset(id) else {
                    drop(backlog);
                    return self.close_replica(token);
                };
                backlog.read(place, SEND_CHUNK_BYTES, &mut output.bytes);
                let in_flight = self.in_flight_memory() + copies * output.bytes.capacity() as u64;
                server.replication.replicas.raise_in_flight_bytes(in_flight);
                assert!(
                    !output.is_empty() || backlog.range().is_none_or(|range| range.end == place),
                    "the backlog has every byte that a replica misses"
                );
                backlog.pin(id, place.advanced_by(output.bytes.len() as u64));
            }
            if output.is_empty() || !self.send(token, &mut output) {
                return;
            }
        }
    }

    // ---- publishing -------------------------------------------------------------------------------------------------
    /// Changes the public state of a replica.
    fn update_info(&self, token: usize, change: impl FnOnce(&mut ReplicaInfo)) {
        let Some(replica) = self.replicas.get(&token) else {
            return;
        };
        let id = replica.id();
        let mut known = self.server.replication.replicas.infos();
        if let Some(known) = known.iter_mut().find(|known| known.id == id) {
            change(known);
        }
    }

    /// Replies to the clients whose replicas have acknowledged their writes.
    fn answer_waits(&self) {
        let server = &self.server;
        let replicas = &server.replication.replicas;
        let mut waits = replicas.waits();
        if waits.is_empty() {
            return;
        }
        waits.retain(|wait| {
            let required = wait.required_acks;
            if matches!(required.local_disks, Some(1..)) && server.persistence.aof.state() == AofState::Off {
                server.send_reply(wait.client, WAITAOF_DISABLED_REPLY.to_vec(), LogSequence::NONE);
                return false;
            }
            let Some(offset) = replicas.backlog().offset_of_sequence(required.log_sequence) else {
                return true;
            };
            let bytes = match required.local_disks {
                None => {
                    let having = replicas.acknowledged_count(offset);
                    (having >= required.replicas).then(|| format!(":{having}\r\n").into_bytes())
                }
                Some(disk) => {
                    let having = replicas.synced_count(offset);
                    let local = i64::from(server.is_on_disk(required.log_sequence));
                    let enough = having >= required.replicas && local >= disk;
                    enough.then(|| format!("*2\r\n:{local}\r\n:{having}\r\n").into_bytes())
                }
            };
            let Some(bytes) = bytes else {
                return true;
            };
            server.send_reply(wait.client, bytes, LogSequence::NONE);
            false
        });
    }

    /// Publishes the replicas for CLIENT LIST.
    fn publish_clients(&self) {
        let backlog = self.server.replication.replicas.backlog();
        let end = backlog.range().map_or(ReplicationOffset::ZERO, |extent| extent.end);
        let places: HashMap<ClientId, ReplicationOffset> = backlog.reader_offsets().collect();
        drop(backlog);
        let links = self.replicas.iter().map(|(token, replica)| {
            let client = &replica.connection.client;
            // The bytes that the backlog keeps for the replica are in no buffer of its own, but are reported as if they
            // were.
            let behind = places.get(&client.id).map_or(0, |place| end.bytes_since(*place));
            let unsent = self.reactor.in_flight(*token) + usize::try_from(behind).unwrap_or(0);
            let buffers = BufferFigures {
                // The stream is allocated once for all replicas, and what is on its way to them is counted for all.
                allocated: replica.connection.allocated_bytes(0),
                ..replica.connection.buffers(unsent)
            };
            (client.link_snapshot(), buffers)
        });
        self.server.publish_links(links);
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    fn tick(&mut self) {
        self.server.replication.update_too_few_replicas(&self.server.config);
        self.publish_clients();
        self.close_timed_out();
        self.close_over_limit();
        self.end_grace_periods();
        self.send_keepalives();
        self.begin_dump_if_due();
        self.drop_unused_backlog();
    }

    /// Disconnects the replicas that have sent nothing for `repl-timeout`.
    fn close_timed_out(&mut self) {
        let timeout = Duration::from_secs(self.server.config.unsigned(id::REPL_TIMEOUT));
        let streams = |replica: &Replica| {
            matches!(
                replica.progress,
                ReplicaSyncState::Online | ReplicaSyncState::LoadingDump
            )
        };
        let late = |replica: &Replica| streams(replica) && replica.last_heard.elapsed() > timeout;
        let tokens: Vec<usize> = self
            .replicas
            .iter()
            .filter(|(_, replica)| late(replica) && replica.is_psync)
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(replica) = self.replicas.get(&token) {
                log::warning!("Disconnecting timedout replica (streaming sync): {}", replica.name);
            }
            self.close_replica(token);
        }
    }

    /// Sends a keepalive newline to the replicas that wait for a dump.
    fn send_keepalives(&mut self) {
        let period = Duration::from_secs(1);
        let waiting = |replica: &Replica| {
            replica.progress == ReplicaSyncState::WaitingForDump && replica.last_heard.elapsed() > period
        };
        let tokens: Vec<usize> = self
            .replicas
            .iter()
            .filter(|(_, replica)| waiting(replica))
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(replica) = self.replicas.get_mut(&token) {
                replica.last_heard = Instant::now();
            }
            let mut output = Output::new();
            output.bytes.push(b'\n');
            self.send(token, &mut output);
        }
    }

    /// Drops the backlog when there has been no replica for `repl-backlog-ttl`.
    fn drop_unused_backlog(&mut self) {
        let ttl_s = self.server.config.unsigned(id::REPL_BACKLOG_TTL);
        let is_kept =
            !self.server.replication.is_replica() && self.server.replication.replicas.backlog().range().is_some();
        if is_kept && self.replicas.is_empty() {
            // A backlog restored from a dump exists before any replica has connected.
            self.no_replica_since.get_or_insert_with(Instant::now);
        }
        let unused = self
            .no_replica_since
            .is_some_and(|since| since.elapsed() > Duration::from_secs(ttl_s));
        if ttl_s == 0 || !unused || self.server.replication.is_replica() {
            return;
        }
        let server = &self.server;
        // The next tick tries again.
        if !server.scripting.running.try_exclude_runs_per_tick(self.backlog_closer) {
            return;
        }
        self.no_replica_since = None;
        let all = self.seat.exclusive();
        if !server.replication.is_replica() {
            backlog_writer::close(server, &all);
            log::notice!("Replication backlog freed after {ttl_s} seconds without connected replicas.");
        }
        drop(all);
        server.scripting.running.end_exclusion();
    }

    /// Advances a coordinated failover: hands over if a replica has all writes, aborts if the deadline has passed.
    fn advance_failover(&mut self) {
        let server = &self.server;
        if !server.replication.is_failing_over() || role::next_failover_step(server) == FailoverStep::Wait {
            return self.exclusion_for_failover.give_up(server);
        }
        if !self.exclusion_for_failover.try_exclude(server) {
            return;
        }
        let all = self.seat.exclusive();
        // Check again in exclusive mode: everything written before this moment must have reached the replica.
        match role::next_failover_step(server) {
            FailoverStep::Wait => {}
            FailoverStep::Abort => {
                role::abort_failover(server, "Replica never caught up before timeout");
            }
            FailoverStep::HandOverTo { replica, is_synced } => {
                role::fail_over_to(server, replica, is_synced);
            }
        }
        drop(all);
        server.scripting.running.end_exclusion();
    }
}

#[cfg(test)]
mod tests;

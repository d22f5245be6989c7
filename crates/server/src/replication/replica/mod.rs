//! Follows a primary: one thread establishes the link, performs the full synchronisation, and executes the replication
//! stream.
//!
//! ```text
//!   wait for a primary ─▶ connect ─▶ handshake ─▶ PSYNC ─┬─ +CONTINUE ────────────────┬─▶ stream ─┐
//!            ▲                                           ├─ +FULLRESYNC ─▶ transfer ──┤           │
//!            ▲                                           └─ +DUALCHANNELSYNC ─▶ dual ─┘           │
//!            └─ 1 second later; at once if the link was up ◀─ link broken, or role epoch over ◀───┘
//! ```
//!
//! This thread alone reads from the link. It sleeps in the kernel until data arrives or the next acknowledgement is
//! due. A change of role shuts the socket down, so the thread soon stops following the old primary. Every change that
//! it makes is bound to its role epoch, and commands of an old epoch are not executed
//! (`dispatch/replicated_stream`).
//!
//! The dump of a full synchronisation is loaded into staging (`keyspace/staging.rs`), so no worker waits for it.
//! `repl-diskless-load` decides what clients see meanwhile (see `transfer.rs`).

mod connect;
mod handshake;
mod libraries;
mod link;
mod load_plan;
mod rdb_channel;
mod replaced_data;
mod temporary_dump;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{DbIndex, ReplicationOffset, RoleEpoch, ThreadIndex};

use crate::dispatch::replicated_stream::{ReplicatedStream, StreamError};
use crate::keyspace::Seat;
use crate::net::client::{BufferFigures, Client};
use crate::observability::{log, memory};
use crate::replication::role;
use crate::replication::{CoordinatedFailoverState, Endpoint, LinkState, Replication, ReplicationState};
use crate::state::Server;
use handshake::PsyncReply;
use link::{LinkFailure, PrimaryLink};
use rdb_channel::BufferedStream;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;
use weft_scripting::Requester;

/// The time between two attempts to connect to a primary.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The interval at which the offset is acknowledged to the primary.
const ACK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum age of the primary's entry in CLIENT LIST.
const CLIENT_LIST_MAX_AGE: Duration = Duration::from_millis(20);
/// The maximum number of bytes per receive.
const MAX_RECEIVE_BYTES: usize = 64 * 1024;
/// The same while more than that waits, and several threads apply the stream: the next commands are planned while the
/// first ones run.
const MAX_RECEIVE_BYTES_AHEAD: usize = 512 * 1024;

/// The interval at which this server checks if its disk has reached an owed offset.
const FSYNC_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum time for which it checks.
const FSYNC_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// An acknowledgement that the primary requested while the disk was behind the data. It is repeated once the disk has
/// reached `offset`.
struct PendingAck {
    offset: ReplicationOffset,
    since: Instant,
}

/// Starts the thread.
///
/// # Errors
/// When the operating system refuses to create it, or the keyspace has no free thread index.
pub fn start(server: &Arc<Server>) -> std::io::Result<()> {
    let seat = server
        .keyspace
        .slots
        .join()
        .ok_or_else(|| std::io::Error::other("the keyspace has no free thread index"))?;
    let server = server.clone();
    let spawned = weft_os::thread::Builder::new()
        .name("weft-replica".into())
        .stack_size(weft_scripting::SCRIPT_STACK_BYTES);
    spawned.spawn(move || {
        ReplicaThread {
            server,
            seat,
            db: DbIndex::FIRST,
        }
        .run()
    })?;
    Ok(())
}

/// Follows a primary on the calling thread, for the fuzz targets.
pub struct Follower(ReplicaThread);

impl Follower {
    /// Creates a follower; `None` if the keyspace has no free thread index.
    pub fn new(server: &Arc<Server>) -> Option<Follower> {
        let seat = server.keyspace.slots.join()?;
        let server = server.clone();
        Some(Follower(ReplicaThread {
            server,
            seat,
            db: DbIndex::FIRST,
        }))
    }

    /// Follows the configured primary until the link breaks. Returns `true` if a stream was established.
    pub fn follow(&mut self) -> bool {
        let (primary, role_epoch) = self.0.server.replication.wait_for_primary();
        let end = self.0.follow_until_broken(&primary, role_epoch);
        self.0.server.replication.drop_sockets(role_epoch);
        matches!(end, LinkEnd::StreamBroken)
    }
}

/// The result of a synchronisation, with which the stream begins.
#[derive(Default)]
struct StreamStart {
    /// `true` if the replication ID has changed, which the replicas of this server do not know yet.
    is_id_changed: bool,
    /// The stream that was buffered while the dump was loaded over a separate connection.
    buffered: Option<BufferedStream>,
}

/// How far a link got before it ended.
enum LinkEnd {
    /// The primary did not agree to synchronise.
    NotSynchronised,
    /// The full synchronisation failed.
    TransferFailed,
    /// A stream was established.
    StreamBroken,
}

/// The state of the thread.
struct ReplicaThread {
    server: Arc<Server>,
    seat: Seat,
    /// The database that the stream has selected. A resumed link continues with it.
    db: DbIndex,
}

impl ReplicaThread {
    fn run(mut self) {
        loop {
            let (primary, role_epoch) = self.server.replication.wait_for_primary();
            memory::use_own_arena();
            // A dump loaded after this thread was started may have recorded the selected database.
            self.db = DbIndex::new(self.server.replication.stream_db.load(Ordering::Relaxed));
            let end = self.follow_until_broken(&primary, role_epoch);
            let repl = &self.server.replication;
            repl.drop_sockets(role_epoch);
            if self.server.scripting.running.has_unfinished_unit() {
                // A round may have run in part, behind the offset of the data: another link would bring it again.
                return;
            }
            let again = repl
                .in_role_epoch(role_epoch, |state| state.phase = LinkState::Connect)
                .is_some();
            if !again {
                continue;
            }
            let Endpoint { host, port } = &primary;
            match end {
                // No dump can be loaded while this server loads a file of its own.
                LinkEnd::TransferFailed if !self.server.is_loading() => {
                    log::notice!("Reconnecting to PRIMARY {host}:{port} after failure");
                }
                LinkEnd::NotSynchronised | LinkEnd::TransferFailed => {
                    repl.sleep_in_role_epoch(role_epoch, RECONNECT_DELAY);
                }
                LinkEnd::StreamBroken => log::notice!("Reconnecting to PRIMARY {host}:{port}"),
            }
        }
    }

    /// Follows a primary until the link breaks.
    fn follow_until_broken(&mut self, primary: &Endpoint, role_epoch: RoleEpoch) -> LinkEnd {
        let mut link = match self.establish_link(primary, role_epoch) {
            Ok(link) => link,
            Err(failure) => {
                failure.log();
                return LinkEnd::NotSynchronised;
            }
        };
        let reply = match self.request_synchronisation(&mut link) {
            Ok(reply) => reply,
            Err(failure) => {
                failure.log();
                self.mark_link_down(role_epoch);
                return LinkEnd::NotSynchronised;
            }
        };
        let begun = match self.synchronise(&mut link, primary, reply) {
            Ok(begun) => begun,
            Err(failure) => {
                failure.log();
                self.mark_link_down(role_epoch);
                return LinkEnd::TransferFailed;
            }
        };
        if begun.buffered.is_none() && self.mark_link_up(role_epoch).is_none() {
            return LinkEnd::NotSynchronised;
        }
        if begun.is_id_changed {
            // The replicas reconnect and learn the new ID. They are not disconnected earlier, because they would be
            // rejected while there is no link.
            role::disconnect_replicas(&self.server);
        }
        let failure = self.stream(&mut link, role_epoch, begun.buffered);
        failure.log();
        // A change of the role logs the end of the link itself, before what follows, unless it leaves the link open.
        if let Some(is_cached) = self.server.replication.end_established_link(role_epoch) {
            role::log_lost_link(is_cached);
        }
        self.mark_link_down(role_epoch);
        LinkEnd::StreamBroken
    }

    fn establish_link(&self, primary: &Endpoint, role_epoch: RoleEpoch) -> Result<PrimaryLink, LinkFailure> {
        let server = &self.server;
        let repl = &server.replication;
        log::notice!("PRIMARY <-> REPLICA sync started");
        repl.sleep_if_requested();
        let enter = |phase| {
            repl.in_role_epoch(role_epoch, |state| state.phase = phase)
                .ok_or(LinkFailure::EpochOver)
        };
        enter(LinkState::Connecting)?;
        let socket = connect::connect(server, primary, role_epoch)?;
        log::notice!("Non blocking connect for SYNC fired the event.");
        let mut link = PrimaryLink::new(socket, server.clone(), role_epoch, &primary.host)?;
        enter(LinkState::Handshake)?;
        handshake::perform_handshake(&mut link)?;
        // Writes made while this server was a primary are still on their way into the backlog.
        while repl.log_feeds_backlog() {
            if repl.role_epoch() != role_epoch {
                return Err(LinkFailure::EpochOver);
            }
            server.propagation.wake();
            weft_os::thread::sleep(Duration::from_millis(1));
        }
        Ok(link)
    }

    /// Sends PSYNC, and ends a coordinated failover by the reply.
    fn request_synchronisation(&mut self, link: &mut PrimaryLink) -> Result<PsyncReply, LinkFailure> {
        self.server.replication.sleep_if_requested();
        let answer = handshake::send_psync(link);
        if self.server.replication.failover().state == CoordinatedFailoverState::InProgress {
            let (server, role_epoch) = (&self.server, link.role_epoch());
            // The failover may be aborted before this thread holds exclusive mode.
            server.run_exclusive(&mut self.seat, |_| match &answer {
                Ok(_) => role::complete_failover(server, role_epoch),
                Err(_) => role::end_refused_failover(server, role_epoch),
            });
        }
        answer
    }

    /// Continues the stream, or performs a full synchronisation if the primary demands one.
    fn synchronise(
        &mut self,
        link: &mut PrimaryLink,
        primary: &Endpoint,
        reply: PsyncReply,
    ) -> Result<StreamStart, LinkFailure> {
        let role_epoch = link.role_epoch();
        match reply {
            PsyncReply::Continue(id) => {
                log::notice!("Successful partial resynchronization with primary.");
                let repl = &self.server.replication;
                let offset = repl.offset();
                let renamed = repl
                    .in_role_epoch(role_epoch, |state| {
                        repl.awaits_full_sync.store(false, Ordering::Release);
                        let mut backlog = repl.replicas.backlog();
                        if backlog.range().is_none() {
                            backlog.open(offset);
                        }
                        drop(backlog);
                        let history = &mut state.history;
                        let id = id.filter(|id| *id != history.id)?;
                        log::notice!("Primary replication ID changed to {id}");
                        history.second_id = std::mem::replace(&mut history.id, id);
                        history.second_end = Some(offset);
                        Some(())
                    })
                    .ok_or(LinkFailure::EpochOver)?;
                log::notice!("PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization.");
                Ok(StreamStart {
                    is_id_changed: renamed.is_some(),
                    buffered: None,
                })
            }
            PsyncReply::FullResync { id, offset } => {
                log::notice!("Full resync from primary: {id}:{offset}");
                self.db = transfer::receive(&self.server, &mut self.seat, link, &id, offset)?;
                log::notice!("PRIMARY <-> REPLICA sync: Finished with success");
                Ok(StreamStart::default())
            }
            PsyncReply::DualChannelSync => {
                let (db, held) = rdb_channel::receive(&self.server, &mut self.seat, link, primary)?;
                self.db = db;
                Ok(StreamStart {
                    is_id_changed: false,
                    buffered: Some(held),
                })
            }
        }
    }

    /// Marks the link as up, so that clients may rely on the data. Returns `None` if the role epoch is over.
    fn mark_link_up(&self, role_epoch: RoleEpoch) -> Option<()> {
        let repl = &self.server.replication;
        repl.last_heard_s.store(unix_ms() / 1000, Ordering::Relaxed);
        repl.in_role_epoch(role_epoch, |state| {
            assert!(
                !repl.awaits_full_sync.load(Ordering::Acquire),
                "a link is up when the data is that of the primary"
            );
            state.phase = LinkState::Connected;
            state.resumable = true;
            state.down_since_s = None;
            repl.set_state_bits(ReplicationState::LINK_DOWN, false);
            state.announce_link_up();
        })
    }

    /// Marks the link as down.
    fn mark_link_down(&self, role_epoch: RoleEpoch) {
        let repl = &self.server.replication;
        // In a newer role epoch this state is no longer ours to change.
        let _ = repl.in_role_epoch(role_epoch, |state| {
            state.announce_link_down();
            state.phase = LinkState::Connect;
            state.down_since_s.get_or_insert(unix_ms() / 1000);
            repl.set_state_bits(ReplicationState::LINK_DOWN, true);
        });
    }

    /// Executes the buffered stream and the stream from the link until the link breaks. Returns the reason.
    fn stream(&mut self, link: &mut PrimaryLink, role_epoch: RoleEpoch, held: Option<BufferedStream>) -> LinkFailure {
        let server = self.server.clone();
        let repl = &server.replication;
        let base = repl.offset();
        {
            let range = repl.replicas.backlog().range();
            assert!(
                range.is_none_or(|range| range.end == base) || repl.role_epoch() != role_epoch,
                "the stream continues at offset {base}, where the backlog ends: {range:?}"
            );
        }
        repl.set_received_offset(base);
        let mut stream = ReplicatedStream::new(&server, &self.seat, role_epoch, self.client(link), self.db);
        stream.input_mut().append(&mut link.unread);
        let mut received = stream.input_mut().len() as u64;
        let begun = match held {
            Some(held) => self.execute_buffered(link, &mut stream, base, &mut received, held),
            None => Ok(()),
        };
        let failure = match begun {
            Ok(()) => self.run_stream(link, &mut stream, base, &mut received),
            Err(failure) => failure,
        };
        let id = stream.client_mut().id;
        server.scripting.running.withdraw(Requester::Client(id.get()));
        server.forget_link(id);
        self.db = stream.db();
        if matches!(failure, LinkFailure::Protocol(_)) {
            // The offset at which the stream became invalid is unknown.
            let _ = repl.in_role_epoch(role_epoch, |state| state.resumable = false);
        }
        // Bytes that were received and not executed are requested again.
        repl.set_received_offset(repl.offset());
        failure
    }

    /// Executes the stream that was buffered while the dump was loaded. The link is up only after that.
    fn execute_buffered(
        &mut self,
        link: &mut PrimaryLink,
        stream: &mut ReplicatedStream,
        base: ReplicationOffset,
        received: &mut u64,
        mut held: BufferedStream,
    ) -> Result<(), LinkFailure> {
        let mut beaten = Instant::now();
        while let Some(mut block) = held.pop_block() {
            *received += block.len() as u64;
            self.server.replication.set_received_offset(base.advanced_by(*received));
            stream.input_mut().append(&mut block);
            loop {
                let has_more = self.execute_received(stream, &mut || {
                    send_during_round(link, &mut beaten, |link| link.send_raw(b"\n"));
                })?;
                if beaten.elapsed() >= ACK_INTERVAL {
                    beaten = Instant::now();
                    link.send_raw(b"\n")?;
                }
                if !has_more {
                    break;
                }
            }
        }
        drop(held);
        log::notice!("Dual channel replication: Successfully streamed replication data into memory");
        log::notice!("PRIMARY <-> REPLICA sync: Finished with success");
        self.mark_link_up(link.role_epoch()).ok_or(LinkFailure::EpochOver)
    }

    /// Executes the received commands, and calls `while_waiting` while a round waits. Returns `true` if some are left.
    fn execute_received(
        &mut self,
        stream: &mut ReplicatedStream,
        while_waiting: &mut dyn FnMut(),
    ) -> Result<bool, LinkFailure> {
        let executed = stream.run_commands(&mut self.seat, while_waiting);
        executed.map_err(|broken| match broken {
            StreamError::RoleChanged => LinkFailure::EpochOver,
            StreamError::ShuttingDown => LinkFailure::ShuttingDown,
            StreamError::Closed => LinkFailure::Other("A command from primary closed the connection".into()),
            StreamError::Protocol => LinkFailure::Protocol("Protocol error from primary, discarding its input".into()),
        })
    }

    /// Does the same, and acknowledges the offset of the data while a round waits.
    fn execute_and_acknowledge(
        &mut self,
        link: &mut PrimaryLink,
        stream: &mut ReplicatedStream,
        acknowledged: &mut Instant,
    ) -> Result<bool, LinkFailure> {
        let server = self.server.clone();
        self.execute_received(stream, &mut || {
            send_during_round(link, acknowledged, |link| {
                let offset = server.replication.offset().to_string();
                link.send(&[b"REPLCONF", b"ACK", offset.as_bytes()])
            });
        })
    }

    fn run_stream(
        &mut self,
        link: &mut PrimaryLink,
        stream: &mut ReplicatedStream,
        base: ReplicationOffset,
        received: &mut u64,
    ) -> LinkFailure {
        let server = self.server.clone();
        let repl = &server.replication;
        let mut acknowledged = Instant::now();
        let mut shown = Instant::now();
        let mut owed: Option<PendingAck> = None;
        let mut max_bytes = MAX_RECEIVE_BYTES;
        self.publish_client(stream);
        if let Err(failure) = self.acknowledge(link, stream) {
            return failure;
        }
        loop {
            let received_offset = base.advanced_by(*received);
            assert!(
                received_offset >= repl.offset() || repl.role_epoch() != link.role_epoch(),
                "no byte of the stream is executed before it was received"
            );
            repl.set_received_offset(received_offset);
            let has_more = match self.execute_and_acknowledge(link, stream, &mut acknowledged) {
                Ok(has_more) => has_more,
                Err(failure) => return failure,
            };
            if shown.elapsed() >= CLIENT_LIST_MAX_AGE {
                shown = Instant::now();
                self.publish_client(stream);
            }
            let asked = repl.ack_requested.swap(false, Ordering::AcqRel);
            let is_paid = owed
                .as_ref()
                .is_some_and(|owed| stream.fsynced_offset() >= Some(owed.offset));
            if asked || is_paid || acknowledged.elapsed() >= ACK_INTERVAL {
                acknowledged = Instant::now();
                if let Err(failure) = self.acknowledge(link, stream) {
                    return failure;
                }
            }
            assert!(
                stream.fsynced_offset().is_none_or(|synced| synced <= repl.offset())
                    || repl.role_epoch() != link.role_epoch(),
                "the disk is not ahead of the data"
            );
            if asked && stream.fsynced_offset().is_some_and(|synced| synced < repl.offset()) {
                owed = Some(PendingAck {
                    offset: repl.offset(),
                    since: Instant::now(),
                });
            }
            owed = owed.filter(|owed| !is_paid && owed.since.elapsed() < FSYNC_CHECK_TIMEOUT);
            if has_more && stream.input_mut().len() >= MAX_RECEIVE_BYTES {
                // What has arrived earlier shows that the primary is there.
                repl.last_heard_s.store(unix_ms() / 1000, Ordering::Relaxed);
                continue;
            }
            let patience = match (has_more, &owed) {
                (true, _) => Duration::ZERO,
                (false, Some(_)) => FSYNC_CHECK_INTERVAL,
                (false, None) => ACK_INTERVAL,
            };
            let patience = patience.min(ACK_INTERVAL.saturating_sub(acknowledged.elapsed()));
            let received_bytes = link.receive(stream.input_mut(), max_bytes, patience);
            max_bytes = receive_limit(&received_bytes, stream);
            match received_bytes {
                Ok(0) if is_primary_silent(&server) => {
                    return LinkFailure::Timeout("PRIMARY timeout: no data nor PING received...");
                }
                Ok(0) => {}
                Ok(bytes) => {
                    *received += bytes as u64;
                    note_received(repl, stream.client_mut(), bytes);
                }
                Err(failure) => return failure,
            }
        }
    }

    /// Acknowledges the offset of the data to the primary, and the offset on disk if there is an append-only file.
    fn acknowledge(&self, link: &mut PrimaryLink, stream: &mut ReplicatedStream) -> Result<(), LinkFailure> {
        let offset = self.server.replication.offset().to_string();
        let synced = stream.fsynced_offset().map(|synced| synced.to_string());
        // Checked after the offsets were read: an offset of a later role epoch means nothing to this primary.
        if link.is_over() {
            return Err(LinkFailure::EpochOver);
        }
        match synced {
            None => link.send(&[b"REPLCONF", b"ACK", offset.as_bytes()]),
            Some(synced) => link.send(&[b"REPLCONF", b"ACK", offset.as_bytes(), b"FACK", synced.as_bytes()]),
        }
    }

    /// Creates the client that represents the primary.
    fn client(&self, link: &PrimaryLink) -> Client {
        let id = self.server.clients.next_client_id();
        // The link has a thread of its own. CLIENT LIST shows it as Valkey does, where the first thread serves it.
        let mut client = Client::new(id, unix_ms(), ThreadIndex::FIRST);
        client.address = link.peer().into();
        client.local_address = link.local().into();
        client.fd = link.fd();
        client
    }

    /// Publishes the primary for CLIENT LIST. CLIENT KILL on it shuts the link down.
    fn publish_client(&self, stream: &mut ReplicatedStream) {
        let buffers: BufferFigures = stream.connection().buffers(0);
        let view = stream.client_mut().link_snapshot();
        self.server.publish_links(std::iter::once((view, buffers)));
    }
}

/// Sends the primary a message if the last one was sent `ACK_INTERVAL` ago, and if the socket takes it at once. The
/// caller is inside the gate.
fn send_during_round(
    link: &mut PrimaryLink,
    last_sent: &mut Instant,
    send: impl FnOnce(&mut PrimaryLink) -> Result<(), LinkFailure>,
) {
    if last_sent.elapsed() >= ACK_INTERVAL && link.is_writable() {
        *last_sent = Instant::now();
        // A broken link is noticed when the round is over.
        let _ = send(link);
    }
}

/// Returns `true` if nothing has come from the primary for `repl-timeout`.
fn is_primary_silent(server: &Server) -> bool {
    let heard_s = server.replication.last_heard_s.load(Ordering::Relaxed);
    (unix_ms() / 1000).saturating_sub(heard_s) > server.config.unsigned(id::REPL_TIMEOUT)
}

/// Records that bytes have come from the primary, which `client` represents.
fn note_received(repl: &Replication, client: &mut Client, bytes: usize) {
    repl.last_heard_s.store(unix_ms() / 1000, Ordering::Relaxed);
    client.last_interaction_ms = unix_ms();
    client.net_input_bytes += bytes as u64;
}

/// Returns the maximum number of bytes of the receive after one with this result.
fn receive_limit(received: &Result<usize, LinkFailure>, stream: &ReplicatedStream) -> usize {
    let is_more_waiting = matches!(received, Ok(bytes) if *bytes >= MAX_RECEIVE_BYTES);
    match is_more_waiting && stream.has_apply_threads() {
        true => MAX_RECEIVE_BYTES_AHEAD,
        false => MAX_RECEIVE_BYTES,
    }
}

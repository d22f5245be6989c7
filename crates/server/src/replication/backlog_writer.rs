//! Feeds the replication backlog from the propagation log, and opens and closes the backlog.
//!
//! | this server | filled by |
//! |---|---|
//! | a primary that never had a replica | no thread: there is no backlog |
//! | a primary | the log thread, through [`BacklogWriter`]; it adds the pings and the requests for acknowledgements |
//! | a replica | the thread of the primary link, with the bytes that it executes (`dispatch/replicated_stream`) |
//!
//! The hook of the log and the consumer are switched in exclusive mode. The log thread removes the consumer when it has
//! passed that position in the log. Until then [`Replication::log_feeds_backlog`](crate::replication::Replication)
//! returns `true`, since the offset still advances. If the position of the data is requested meanwhile, it returns
//! `true` until the log thread has determined that position. The thread of the primary link waits for all this before
//! it changes the offset.

use std::sync::Arc;
use std::time::Duration;

use crate::keyspace::Exclusive;
use crate::keyspace::effects::Hooks;
use crate::observability::log;
use crate::propagation::{self, ConsumerStreams, LogConsumer, LogTarget, clear_buffer};
use crate::replication::{REPLICATION_ID_DIGITS, ReplicationHistory, ReplicationId};
use crate::state::Server;
use weft_base::{DbIndex, LogSequence, ReplicationOffset};
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::sync::mpsc;
use weft_os::time::Instant;
use weft_resp::command::write_command;

/// The name of the consumer in the propagation log.
pub const CONSUMER_NAME: &str = "replicas";
/// The number of bytes collected before they are appended to the backlog.
const BATCH_BYTES: usize = 256 * 1024;

/// Fills the backlog on the log thread.
struct BacklogWriter {
    server: Arc<Server>,
    batch: Vec<u8>,
    last_ping: Instant,
}

impl BacklogWriter {
    /// Appends the batch to the backlog. Its first `write_bytes` bytes are writes. If they complete everything up to
    /// `sequence`, the offset behind them covers that. A thread that finds the sequence covered also finds the rest of
    /// the batch in the backlog, and all of it in the replication offset.
    fn append_batch(&mut self, write_bytes: usize, sequence: Option<LogSequence>) {
        let repl = &self.server.replication;
        let most_bytes = self.server.config.integer(id::REPL_BACKLOG_SIZE);
        let (writes, requests) = self.batch.split_at(write_bytes);
        let was_empty = {
            let mut backlog = repl.replicas.backlog();
            let was_empty = backlog.memory_bytes() == 0;
            let mut end = backlog.append(writes, most_bytes);
            if let Some(sequence) = sequence {
                backlog.record_sequence(sequence);
            }
            if !requests.is_empty() {
                end = backlog.append(requests, most_bytes);
            }
            if let Some(end) = end {
                assert!(
                    end >= repl.offset(),
                    "the replication offset of a primary does not go back"
                );
                repl.set_offset(end);
            }
            was_empty
        };
        clear_buffer(&mut self.batch);
        if was_empty {
            for dump in repl.replicas.awaited_dumps().iter() {
                log::debug!("Dual channel replication: Attach replica rdb client {dump} to repl buf block");
            }
        }
        if repl.replicas.has_readers.load(Ordering::Relaxed) {
            self.server.background.wake_primary_thread();
        }
    }

    /// Adds PING and REPLCONF GETACK to the stream. Never called within a transaction.
    fn append_pings_and_ack_requests(&mut self) {
        let server = self.server.clone();
        let replicas = &server.replication.replicas;
        // Nothing is added during a failover, since the replica that takes over must have everything, nor after the
        // last dump of a server that shuts down.
        let ends = server.replication.is_shutting_down.load(Ordering::SeqCst);
        let stops =
            ends || server.replication.is_failing_over() || server.replication.suppresses_pings.load(Ordering::SeqCst);
        if stops || !replicas.has_readers.load(Ordering::Relaxed) {
            return;
        }
        let period = Duration::from_secs(server.config.unsigned(id::REPL_PING_REPLICA_PERIOD));
        if self.last_ping.elapsed() >= period {
            self.last_ping = Instant::now();
            write_command([&b"PING"[..]].into_iter(), &mut self.batch);
        }
        if replicas.ack_requested.swap(false, Ordering::SeqCst) {
            let words: [&[u8]; 3] = [b"REPLCONF", b"GETACK", b"*"];
            write_command(words.into_iter(), &mut self.batch);
        }
    }
}

impl LogConsumer for BacklogWriter {
    fn target(&self) -> LogTarget {
        LogTarget::REPLICAS
    }

    fn append(&mut self, _offset: u64, bytes: &[u8]) {
        self.batch.extend_from_slice(bytes);
        if self.batch.len() >= BATCH_BYTES {
            self.append_batch(self.batch.len(), None);
        }
    }

    fn flush(&mut self, sequence: LogSequence) -> Option<Duration> {
        let write_bytes = self.batch.len();
        self.append_pings_and_ack_requests();
        if self.batch.is_empty() {
            self.server.replication.replicas.backlog().record_sequence(sequence);
        } else {
            // A Valkey replica acknowledges a GETACK with the offset in front of it, so no write is covered only by the
            // offset behind the GETACK.
            self.append_batch(write_bytes, Some(sequence));
        }
        let period = Duration::from_secs(self.server.config.unsigned(id::REPL_PING_REPLICA_PERIOD));
        let left = period.saturating_sub(self.last_ping.elapsed());
        Some(left.clamp(Duration::from_millis(10), Duration::from_secs(1)))
    }
}

/// Creates a backlog, and with it a history that replicas can follow. Not called on a replica.
///
/// # Errors
/// When the log thread cannot be started.
pub fn open(server: &Arc<Server>, _all: &Exclusive<'_>) -> std::io::Result<()> {
    assert!(
        !server.replication.is_replica() && server.replication.replicas.backlog().range().is_none(),
        "only a primary without a backlog opens one"
    );
    propagation::start(&server.propagation)?;
    let repl = &server.replication;
    let history = ReplicationHistory::default();
    {
        let mut state = repl.state();
        repl.replicas.backlog().open(repl.offset());
        state.history = history.clone();
    }
    log::notice!(
        "Replication backlog created, my new replication IDs are '{}' and '{}'",
        history.id,
        history.second_id
    );
    attach_to_log(server);
    Ok(())
}

/// A position in the replication history from which a replica can continue.
#[derive(Clone, Debug)]
pub struct HistoryPosition {
    /// The replication ID.
    pub id: ReplicationId,
    /// The replication offset.
    pub offset: ReplicationOffset,
    /// The database that the stream has selected there.
    pub db: DbIndex,
}

impl HistoryPosition {
    /// Returns the auxiliary fields that record this position in a dump.
    pub fn aux_fields(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("repl-stream-db", self.db.to_string().into_bytes()),
            ("repl-id", self.id.clone().into_bytes()),
            ("repl-offset", self.offset.to_string().into_bytes()),
        ]
    }
}

/// The position of the data in the history. It may become known only later, when the log thread has reached it.
pub struct PendingPosition(Option<mpsc::Receiver<HistoryPosition>>);

impl PendingPosition {
    /// Waits for the position. Returns `None` if the data belongs to no history.
    pub fn wait(self) -> Option<HistoryPosition> {
        self.0?.recv().ok()
    }

    /// Waits for the position, and returns the auxiliary fields that record it in a dump.
    pub fn aux_fields(self) -> Vec<(&'static str, Vec<u8>)> {
        self.wait().map(|place| place.aux_fields()).unwrap_or_default()
    }
}

/// Returns the position of the data in the history. Called in exclusive mode. `then` is called once the position is
/// known, on the log thread or at once, and must not block.
pub fn position_then(
    server: &Server,
    then: impl FnOnce(&mut ConsumerStreams, &HistoryPosition) + Send + 'static,
) -> PendingPosition {
    let repl = &server.replication;
    let follows = repl.is_replica();
    let (id, resumable) = {
        let state = repl.state();
        (state.history.id.clone(), state.resumable)
    };
    let nowhere = if follows {
        !resumable
    } else {
        repl.replicas.backlog().range().is_none()
    };
    let Some(myself) = server.self_handle().filter(|_| !nowhere) else {
        return PendingPosition(None);
    };
    assert_eq!(id.len(), REPLICATION_ID_DIGITS, "a history has a replication ID");
    let (told, place) = mpsc::sync_channel(1);
    // After a demotion, the offset is known when the log has left the backlog, and must not advance before it is read.
    let is_extended = follows && repl.extend_attachment();
    let notify = move |consumers: &mut ConsumerStreams, db: DbIndex| {
        let place = HistoryPosition {
            id,
            offset: myself.replication.offset(),
            db,
        };
        let range = myself.replication.replicas.backlog().range();
        // On a replica another thread may continue to append.
        assert!(
            myself.replication.is_replica() || range.is_none_or(|range| range.end == place.offset),
            "the data at offset {} ends where the backlog ends: {range:?}",
            place.offset
        );
        then(consumers, &place);
        if is_extended {
            myself.replication.end_attachment();
        }
        // The receiver may have given up.
        let _ = told.send(place);
    };
    if follows && !is_extended {
        // On a replica the stream's offset is exactly that of the data (see `dispatch/replicated_stream`).
        notify(
            &mut ConsumerStreams::default(),
            DbIndex::new(server.replication.stream_db.load(Ordering::Relaxed)),
        );
    } else {
        server.propagation.schedule_mark(move |consumers| {
            let db = consumers.selected_database(CONSUMER_NAME).unwrap_or(0);
            notify(consumers, DbIndex::new(db as usize));
        });
    }
    PendingPosition(Some(place))
}

/// Returns the position of the data in the history, without a callback. Called in exclusive mode.
pub fn current_position(server: &Server) -> PendingPosition {
    position_then(server, |_, _| {})
}

/// Creates the backlog of a primary that starts, before data is loaded. Deletions of expired keys during the load go
/// into it.
pub fn open_for_load(server: &Server) {
    server.replication.replicas.backlog().open(ReplicationOffset::ZERO);
}

/// Continues, on a primary that starts, the history recorded in its dump: under a new replication ID, with the recorded
/// one as its second ID. The backlog contains the deletions made while the dump was loaded.
///
/// # Errors
/// When the log thread cannot be started.
pub fn resume_as_primary(server: &Arc<Server>, id: ReplicationId, offset: ReplicationOffset) -> std::io::Result<()> {
    propagation::start(&server.propagation)?;
    let repl = &server.replication;
    assert_eq!(
        repl.offset(),
        ReplicationOffset::ZERO,
        "a server resumes a history before it has one"
    );
    let end = {
        let mut state = repl.state();
        let end = repl.replicas.backlog().rebase(offset);
        let history = &mut state.history;
        (history.second_id, history.second_end) = (id, Some(offset));
        end
    };
    repl.set_offset(end);
    attach_to_log(server);
    Ok(())
}

/// Prepares a replica that starts with the data of a known position, so that it requests the stream from there.
pub fn resume_as_replica(server: &Server, place: &HistoryPosition) {
    let repl = &server.replication;
    {
        let mut state = repl.state();
        repl.replicas.backlog().open(place.offset);
        state.history.id.clone_from(&place.id);
    }
    repl.set_offset(place.offset);
    repl.set_received_offset(place.offset);
    repl.stream_db.store(place.db.get(), Ordering::Relaxed);
}

/// Attaches the backlog to the propagation log from the current log position on.
fn attach_to_log(server: &Arc<Server>) {
    let backlog_writer = BacklogWriter {
        server: server.clone(),
        batch: Vec::new(),
        last_ping: Instant::now(),
    };
    let repl = &server.replication;
    repl.attach_backlog();
    // Its stream counts as beginning here; pings and requests for acknowledgements are added to it later.
    server
        .propagation
        .schedule_mark(move |consumers| consumers.add(CONSUMER_NAME, Box::new(backlog_writer), 0));
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, true);
}

/// Detaches the backlog from the propagation log from the current log position on.
fn detach_from_log(server: &Arc<Server>) {
    server.keyspace.hooks.set(Hooks::LOG_REPLICAS, false);
    if !server.replication.detach_backlog() {
        return;
    }
    let told = server.clone();
    server.propagation.schedule_mark(move |consumers| {
        let writer = consumers.remove(CONSUMER_NAME);
        assert!(
            writer.is_some(),
            "the propagation log fills the backlog up to this position"
        );
        told.replication.end_attachment();
    });
}

/// Detaches the backlog because this server starts to follow a primary. Called in exclusive mode.
pub fn on_demotion(server: &Arc<Server>) {
    detach_from_log(server);
}

/// Attaches the backlog because this server has become a primary. Called in exclusive mode.
pub fn on_promotion(server: &Arc<Server>) {
    if server.replication.replicas.backlog().range().is_none() {
        return;
    }
    match propagation::start(&server.propagation) {
        Ok(()) => attach_to_log(server),
        Err(error) => {
            log::warning!("Cannot serve replicas any more, because the log thread could not be started: {error}");
            server.replication.replicas.backlog().close();
        }
    }
}

/// Drops the backlog after no replica has been connected for long (`repl-backlog-ttl`). Later writes belong to no
/// history. Called in exclusive mode.
pub fn close(server: &Arc<Server>, _all: &Exclusive<'_>) {
    detach_from_log(server);
    let mut state = server.replication.state();
    server.replication.replicas.backlog().close();
    state.history = ReplicationHistory::default();
}

#[cfg(test)]
mod tests;

//! Feeds the replication backlog from the propagation log, and opens and closes the backlog.
//!
//! | this server | filled by |
//! |---|---|
//! | a primary that never had a replica | no thread: there is no backlog |
//! | a primary | the log thread, through [`BacklogWriter`]; it adds the pings and the requests for acknowledgements |
//! | a replica | the thread of the primary link, with the bytes that it executes (`dispatch/stream.rs`) |
//!
//! The hook of the log and the consumer are switched in exclusive mode. The log thread removes the consumer when it has
//! passed that position in the log. Until then [`Replication::feeds`](crate::repl::Replication) stays set, since the
//! offset still advances.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::config::id;
use crate::keyspace::Exclusive;
use crate::keyspace::effects::Hooks;
use crate::observability::log;
use crate::propagation::{self, ConsumerStreams, LogConsumer, Target, write_command};
use crate::replication::{ReplicationHistory, ReplicationId};
use crate::state::Server;

/// The name of the consumer in the propagation log.
pub const NAME: &str = "replicas";
/// The number of bytes collected before they are appended to the backlog.
const GATHERED_BYTES: usize = 256 * 1024;

/// Fills the backlog on the log thread.
struct BacklogWriter {
    server: Arc<Server>,
    gathered: Vec<u8>,
    last_ping: Instant,
}

impl BacklogWriter {
    fn put(&mut self) {
        let repl = &self.server.repl;
        let most_bytes = self.server.config.integer(id::REPL_BACKLOG_SIZE);
        let end = repl.replicas.backlog().append(&self.gathered, most_bytes);
        self.gathered.clear();
        if let Some(end) = end {
            repl.set_offset(end);
        }
        if repl.replicas.has_readers.load(Ordering::Relaxed) {
            self.server.wake_primary_thread();
        }
    }

    /// Adds PING and REPLCONF GETACK to the stream. Never called within a transaction.
    fn remark(&mut self) {
        let server = self.server.clone();
        let replicas = &server.repl.replicas;
        // Nothing is added during a failover, since the replica that takes over must have everything, nor after the
        // last dump of a server that shuts down.
        let ends = server.repl.ends.load(Ordering::SeqCst);
        let stops = ends || server.repl.is_handing_over() || server.repl.holds_still.load(Ordering::SeqCst);
        if stops || !replicas.has_readers.load(Ordering::Relaxed) {
            return;
        }
        let period = Duration::from_secs(server.config.unsigned(id::REPL_PING_REPLICA_PERIOD));
        if self.last_ping.elapsed() >= period {
            self.last_ping = Instant::now();
            write_command([&b"PING"[..]].into_iter(), &mut self.gathered);
        }
        if replicas.asks.swap(false, Ordering::SeqCst) {
            let words: [&[u8]; 3] = [b"REPLCONF", b"GETACK", b"*"];
            write_command(words.into_iter(), &mut self.gathered);
        }
    }
}

impl LogConsumer for BacklogWriter {
    fn target(&self) -> Target {
        Target::REPLICAS
    }

    fn append(&mut self, _offset: u64, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= GATHERED_BYTES {
            self.put();
        }
    }

    fn settle(&mut self, ticket: u64) -> Option<Duration> {
        self.remark();
        if !self.gathered.is_empty() {
            self.put();
        }
        self.server.repl.replicas.backlog().note_ticket(ticket);
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
    propagation::start(&server.propagation)?;
    let repl = &server.repl;
    let history = ReplicationHistory::default();
    repl.replicas.backlog().open(repl.offset());
    repl.state().history = history.clone();
    log::notice!(
        "Replication backlog created, my new replication IDs are '{}' and '{}'",
        history.id,
        history.second_id
    );
    attach(server);
    Ok(())
}

/// A position in the replication history from which a replica can continue.
#[derive(Clone, Debug)]
pub struct HistoryPosition {
    /// The replication ID.
    pub id: ReplicationId,
    /// The replication offset.
    pub offset: i64,
    /// The database that the stream has selected there.
    pub db: usize,
}

impl HistoryPosition {
    /// Returns the auxiliary fields that record this position in a dump.
    pub fn notes(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("repl-stream-db", self.db.to_string().into_bytes()),
            ("repl-id", self.id.clone().into_bytes()),
            ("repl-offset", self.offset.to_string().into_bytes()),
        ]
    }
}

/// The position of the data in the history. It may become known only later, when the log thread has reached it.
pub struct Pending(Option<mpsc::Receiver<HistoryPosition>>);

impl Pending {
    /// Waits for the position. Returns `None` if the data belongs to no history.
    pub fn wait(self) -> Option<HistoryPosition> {
        self.0?.recv().ok()
    }

    /// Waits for the position, and returns the auxiliary fields that record it in a dump.
    pub fn notes(self) -> Vec<(&'static str, Vec<u8>)> {
        self.wait().map(|place| place.notes()).unwrap_or_default()
    }
}

/// Returns the position of the data in the history. Called in exclusive mode. `then` is called once the position is
/// known, on the log thread or at once, and must not block.
pub fn place_then(
    server: &Server,
    then: impl FnOnce(&mut ConsumerStreams, &HistoryPosition) + Send + 'static,
) -> Pending {
    let repl = &server.repl;
    let (follows, feeds_backlog) = (repl.follows(), repl.feeds.load(Ordering::SeqCst));
    let (id, resumable) = {
        let state = repl.state();
        (state.history.id.clone(), state.resumable)
    };
    let nowhere = if follows {
        !resumable
    } else {
        repl.replicas.backlog().extent().is_none()
    };
    let Some(myself) = server.self_handle().filter(|_| !nowhere) else {
        return Pending(None);
    };
    let (told, place) = mpsc::sync_channel(1);
    let tell = move |feeds: &mut ConsumerStreams, db: usize| {
        let place = HistoryPosition {
            id,
            offset: myself.repl.offset(),
            db,
        };
        then(feeds, &place);
        // The receiver may have given up.
        let _ = told.send(place);
    };
    if follows && !feeds_backlog {
        // On a replica the stream's offset is exactly that of the data (see `dispatch/stream.rs`).
        tell(
            &mut ConsumerStreams::default(),
            server.repl.stream_db.load(Ordering::Relaxed),
        );
    } else {
        server.propagation.schedule_mark(move |feeds| {
            let db = feeds.selected_database(NAME).unwrap_or(0);
            tell(feeds, db as usize);
        });
    }
    Pending(Some(place))
}

/// Returns the position of the data in the history, without a callback. Called in exclusive mode.
pub fn place(server: &Server) -> Pending {
    place_then(server, |_, _| {})
}

/// Creates the backlog of a primary that starts, before data is loaded. Deletions of expired keys during the load go
/// into it.
pub fn prepare(server: &Server) {
    server.repl.replicas.backlog().open(0);
}

/// Continues, on a primary that starts, the history recorded in its dump: under a new replication ID, with the recorded
/// one as its second ID. The backlog contains the deletions made while the dump was loaded.
///
/// # Errors
/// When the log thread cannot be started.
pub fn resume(server: &Arc<Server>, id: ReplicationId, offset: i64) -> std::io::Result<()> {
    propagation::start(&server.propagation)?;
    let repl = &server.repl;
    let end = repl.replicas.backlog().rebase(offset);
    {
        let history = &mut repl.state().history;
        (history.second_id, history.second_offset) = (id, offset + 1);
    }
    repl.set_offset(end);
    attach(server);
    Ok(())
}

/// Prepares a replica that starts with the data of a known position, so that it requests the stream from there.
pub fn resume_as_replica(server: &Server, place: &HistoryPosition) {
    let repl = &server.repl;
    repl.replicas.backlog().open(place.offset);
    repl.state().history.id.clone_from(&place.id);
    repl.set_offset(place.offset);
    repl.set_received(place.offset);
    repl.stream_db.store(place.db, Ordering::Relaxed);
}

/// Attaches the backlog to the propagation log from the current log position on.
fn attach(server: &Arc<Server>) {
    let backlog_writer = BacklogWriter {
        server: server.clone(),
        gathered: Vec::new(),
        last_ping: Instant::now(),
    };
    let repl = &server.repl;
    repl.feeds.store(true, Ordering::SeqCst);
    let offset = repl.offset() as u64;
    server
        .propagation
        .schedule_mark(move |feeds| feeds.add(NAME, Box::new(backlog_writer), offset));
    server.keyspace.hooks.put(Hooks::LOG_REPLICAS, true);
}

/// Detaches the backlog from the propagation log from the current log position on.
fn detach(server: &Arc<Server>) {
    server.keyspace.hooks.put(Hooks::LOG_REPLICAS, false);
    if !server.repl.feeds.load(Ordering::SeqCst) {
        return;
    }
    let told = server.clone();
    server.propagation.schedule_mark(move |feeds| {
        drop(feeds.remove(NAME));
        told.repl.feeds.store(false, Ordering::SeqCst);
    });
}

/// Detaches the backlog because this server starts to follow a primary. Called in exclusive mode.
pub fn on_follow(server: &Arc<Server>) {
    detach(server);
}

/// Attaches the backlog because this server has become a primary. Called in exclusive mode.
pub fn on_unfollow(server: &Arc<Server>) {
    if server.repl.replicas.backlog().extent().is_none() {
        return;
    }
    match propagation::start(&server.propagation) {
        Ok(()) => attach(server),
        Err(error) => {
            log::warning!("Replicas cannot be served any more, as there is no thread for the log: {error}");
            server.repl.replicas.backlog().close();
        }
    }
}

/// Drops the backlog after no replica has been connected for long (`repl-backlog-ttl`). Later writes belong to no
/// history. Called in exclusive mode.
pub fn close(server: &Arc<Server>, _all: &Exclusive<'_>) {
    detach(server);
    server.repl.replicas.backlog().close();
    server.repl.state().history = ReplicationHistory::default();
}

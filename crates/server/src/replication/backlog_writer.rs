//! The log's way to the replicas: a consumer that fills the backlog, and when it is there.
//!
//! | this server | who fills the backlog |
//! |---|---|
//! | a primary that never had a replica | nobody: there is none |
//! | a primary | the log thread, through [`Feeder`]; it adds the pings and the questions how far replicas are |
//! | a replica | the link's thread, with the bytes that it runs (`dispatch/replicated_stream.rs`) |
//!
//! The hook of the log and the consumer are switched in exclusive mode. The log thread lets the consumer go when it has
//! passed that place; until then [`Replication::feeds`](crate::repl::Replication) says that the offset still moves.

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

/// The name under which the log knows it.
pub const NAME: &str = "replicas";
/// Bytes gathered before they go into the backlog.
const GATHERED_BYTES: usize = 256 * 1024;

/// Fills the backlog, on the log thread.
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

    /// Adds what replicas are told beside the log: never within a transaction.
    fn remark(&mut self) {
        let server = self.server.clone();
        let replicas = &server.repl.replicas;
        // Who is to take over must have everything: nothing is added then, nor behind the last dump of a server that ends.
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

/// Begins a backlog, and with it a history that replicas can follow. Not on a replica.
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

/// A place in the history, for who goes on from there.
#[derive(Clone, Debug)]
pub struct HistoryPosition {
    /// The name of the history.
    pub id: ReplicationId,
    /// Bytes of it.
    pub offset: i64,
    /// The database that its stream has selected.
    pub db: usize,
}

impl HistoryPosition {
    /// What a dump says of it.
    pub fn notes(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("repl-stream-db", self.db.to_string().into_bytes()),
            ("repl-id", self.id.clone().into_bytes()),
            ("repl-offset", self.offset.to_string().into_bytes()),
        ]
    }
}

/// The place where the data is, which may be known in a moment only: when the log thread has got there.
pub struct Pending(Option<mpsc::Receiver<HistoryPosition>>);

impl Pending {
    /// Waits for it; `None` if the data is part of no history.
    pub fn wait(self) -> Option<HistoryPosition> {
        self.0?.recv().ok()
    }

    /// Waits, and tells what a dump says of it.
    pub fn notes(self) -> Vec<(&'static str, Vec<u8>)> {
        self.wait().map(|place| place.notes()).unwrap_or_default()
    }
}

/// Where the data is. In exclusive mode; `then` is called when that is known, by who must do nothing slow.
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
        // Who waits for it may have given up.
        let _ = told.send(place);
    };
    if follows && !feeds_backlog {
        // The stream has got exactly so far (see `dispatch/replicated_stream.rs`).
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

/// The same, for who has nothing to do there.
pub fn place(server: &Server) -> Pending {
    place_then(server, |_, _| {})
}

/// Begins the backlog of a primary that starts, before it has loaded anything: what has expired is deleted in it.
pub fn prepare(server: &Server) {
    server.repl.replicas.backlog().open(0);
}

/// A primary that starts goes on with the history that its dump tells of: under a new name, with the old one as its
/// second. Its backlog has what was deleted when the dump was loaded.
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

/// A replica that starts has the data of a place: it asks for what follows.
pub fn resume_as_replica(server: &Server, place: &HistoryPosition) {
    let repl = &server.repl;
    repl.replicas.backlog().open(place.offset);
    repl.state().history.id.clone_from(&place.id);
    repl.set_offset(place.offset);
    repl.set_received(place.offset);
    repl.stream_db.store(place.db, Ordering::Relaxed);
}

/// From this place of the order on, the log fills the backlog.
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

/// From this place of the order on, the log does not.
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

/// This server follows another from now on. In exclusive mode.
pub fn on_follow(server: &Arc<Server>) {
    detach(server);
}

/// This server follows nobody any more. In exclusive mode.
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

/// Drops the backlog, as nobody has followed for long: what is written from now on is part of no history. In exclusive
/// mode.
pub fn close(server: &Arc<Server>, _all: &Exclusive<'_>) {
    detach(server);
    server.repl.replicas.backlog().close();
    server.repl.state().history = ReplicationHistory::default();
}

//! The log's way to the replicas: a consumer that fills the backlog, and when it is there.
//!
//! | this server | who fills the backlog |
//! |---|---|
//! | a primary that never had a replica | nobody: there is none |
//! | a primary | the log thread, through [`Feeder`]; it adds the pings and the questions how far replicas are |
//! | a replica | the link's thread, with the bytes that it runs (`dispatch/stream.rs`) |
//!
//! The hook of the log and the consumer are switched in exclusive mode. The log thread lets the consumer go when it has
//! passed that place; until then [`Replication::feeds`](crate::repl::Replication) says that the offset still moves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::config::id;
use crate::journal::{self, Consumer, Target, write_command};
use crate::keyspace::Exclusive;
use crate::keyspace::effects::Hooks;
use crate::observe::log;
use crate::repl::History;
use crate::state::Server;

/// The name under which the log knows it.
pub const NAME: &str = "replicas";
/// Bytes gathered before they go into the backlog.
const GATHERED_BYTES: usize = 256 * 1024;

/// Fills the backlog, on the log thread.
struct Feeder {
    server: Arc<Server>,
    gathered: Vec<u8>,
    last_ping: Instant,
}

impl Feeder {
    fn put(&mut self) {
        let repl = &self.server.repl;
        let most_bytes = self.server.config.integer(id::REPL_BACKLOG_SIZE);
        let end = repl.replicas.shelf().append(&self.gathered, most_bytes);
        self.gathered.clear();
        if let Some(end) = end {
            repl.set_offset(end);
        }
        if repl.replicas.has_readers.load(Ordering::Relaxed) {
            self.server.wake_supply();
        }
    }

    /// Adds what replicas are told beside the log: never within a transaction.
    fn remark(&mut self) {
        let server = self.server.clone();
        let replicas = &server.repl.replicas;
        // Who is to take over must have everything: nothing is added then.
        let stops = server.repl.is_handing_over() || server.repl.holds_still.load(Ordering::SeqCst);
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

impl Consumer for Feeder {
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
        self.server.repl.replicas.shelf().note_ticket(ticket);
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
    journal::start(&server.journal)?;
    let repl = &server.repl;
    let history = History::default();
    repl.replicas.shelf().open(repl.offset());
    repl.state().history = history.clone();
    log::notice!(
        "Replication backlog created, my new replication IDs are '{}' and '{}'",
        history.id,
        history.second_id
    );
    attach(server);
    Ok(())
}

/// From this place of the order on, the log fills the backlog.
fn attach(server: &Arc<Server>) {
    let feeder = Feeder {
        server: server.clone(),
        gathered: Vec::new(),
        last_ping: Instant::now(),
    };
    let repl = &server.repl;
    repl.feeds.store(true, Ordering::SeqCst);
    let offset = repl.offset() as u64;
    server
        .journal
        .mark(move |feeds| feeds.add(NAME, Box::new(feeder), offset));
    server.keyspace.hooks.put(Hooks::LOG_REPLICAS, true);
}

/// From this place of the order on, the log does not.
fn detach(server: &Arc<Server>) {
    server.keyspace.hooks.put(Hooks::LOG_REPLICAS, false);
    if !server.repl.feeds.load(Ordering::SeqCst) {
        return;
    }
    let told = server.clone();
    server.journal.mark(move |feeds| {
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
    if server.repl.replicas.shelf().extent().is_none() {
        return;
    }
    match journal::start(&server.journal) {
        Ok(()) => attach(server),
        Err(error) => {
            log::warning!("Replicas cannot be served any more, as there is no thread for the log: {error}");
            server.repl.replicas.shelf().close();
        }
    }
}

/// Drops the backlog, as nobody has followed for long: what is written from now on is part of no history. In exclusive
/// mode.
pub fn close(server: &Arc<Server>, _all: &Exclusive<'_>) {
    detach(server);
    server.repl.replicas.shelf().close();
    server.repl.state().history = History::default();
}

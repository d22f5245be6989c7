//! What everybody may know about the replicas of this server, and the backlog that they read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::backlog::ReplicationBacklog;
use crate::observability::lock;

/// For how many seconds what follows a dump is kept when the connection that it went over is gone.
const GRACE_S: u64 = 60;

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for a dump to begin.
    WaitsForDump,
    /// A dump is being written for it.
    DumpBegun,
    /// It gets the dump.
    GetsDump,
    /// It gets the stream, and the dump over another connection.
    LoadsDump,
    /// It gets the stream.
    Online,
}

impl Progress {
    /// The word that INFO has for it.
    pub const fn word(self) -> &'static str {
        match self {
            Progress::WaitsForDump | Progress::DumpBegun => "wait_bgsave",
            Progress::GetsDump => "send_bulk",
            Progress::LoadsDump => "bg_transfer",
            Progress::Online => "online",
        }
    }
}

/// What goes over a replica's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The dump and the stream.
    Only,
    /// The dump.
    Dump,
    /// The stream, while the dump goes over another one.
    Main,
}

/// A replica as others see it.
#[derive(Clone, Debug)]
pub struct ReplicaInfo {
    /// The id of its client.
    pub id: u64,
    /// Where it is reached.
    pub host: String,
    /// The port that it listens on.
    pub port: i64,
    /// Which node of the cluster it is; empty if it has not said.
    pub node: String,
    /// How far it is.
    pub progress: Progress,
    /// What goes over this connection.
    pub channel: Channel,
    /// The offset that it has said it has.
    pub acknowledged: i64,
    /// The offset up to which its append-only file is on the disk; -1 if it has not said.
    pub synced: i64,
    /// When it was heard last, seconds since the epoch.
    pub heard_s: u64,
}

impl ReplicaInfo {
    /// The word that INFO has for what this connection is for.
    pub fn kind(&self) -> &'static str {
        match (self.channel, self.progress) {
            (Channel::Dump, _) => "rdb-channel",
            (Channel::Main, Progress::LoadsDump) => "main-channel",
            (Channel::Only | Channel::Main, _) => "replica",
        }
    }
}

/// What clients get that wait for this server's disk when the append-only file is switched off.
pub const NO_LOG: &[u8] = b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n";

/// A client that waits for replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Its worker.
    pub worker: usize,
    /// Its id.
    pub client: u64,
    /// The ticket that its connection is parked under.
    pub ticket: u64,
    /// The ticket of its last write in the log.
    pub log_ticket: u64,
    /// How many replicas it waits for.
    pub replicas: i64,
    /// For WAITAOF: whether it waits for this server's disk too, as 0 or 1; `None` for WAIT.
    pub disk: Option<i64>,
}

/// The replicas of this server.
pub struct Replicas {
    backlog: Mutex<ReplicationBacklog>,
    backlog_bytes: AtomicU64,
    /// What is on its way between the log, the backlog and the sockets of replicas, bytes.
    pub under_way_bytes: AtomicU64,
    known: Mutex<Vec<ReplicaInfo>>,
    waits: Mutex<Vec<Wait>>,
    /// The clients that get or got a dump alone, and whose other connection has not asked for the stream yet.
    awaited: Mutex<BTreeSet<u64>>,
    /// For how many seconds what follows such a dump is kept when its connection is gone.
    pub grace_s: AtomicU64,
    /// Whether all replicas shall be asked how far they are.
    pub asks: AtomicBool,
    /// Whether somebody reads the stream, so that it is worth waking who sends it.
    pub has_readers: AtomicBool,
    /// Full synchronisations.
    pub full: AtomicU64,
    /// Partial ones.
    pub partial: AtomicU64,
    /// Partial ones that were refused.
    pub partial_refused: AtomicU64,
    /// Bytes sent to replicas.
    pub output_bytes: AtomicU64,
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas {
            backlog: Mutex::default(),
            backlog_bytes: AtomicU64::new(0),
            under_way_bytes: AtomicU64::new(0),
            known: Mutex::default(),
            waits: Mutex::default(),
            awaited: Mutex::default(),
            grace_s: AtomicU64::new(GRACE_S),
            asks: AtomicBool::new(false),
            has_readers: AtomicBool::new(false),
            full: AtomicU64::new(0),
            partial: AtomicU64::new(0),
            partial_refused: AtomicU64::new(0),
            output_bytes: AtomicU64::new(0),
        }
    }
}

impl Replicas {
    /// The backlog. Held for moments only.
    pub fn backlog(&self) -> MutexGuard<'_, ReplicationBacklog> {
        lock(&self.backlog)
    }

    /// Bytes that the backlog holds. Nobody waits for it: this may be a moment old.
    pub fn backlog_bytes(&self) -> u64 {
        if let Ok(backlog) = self.backlog.try_lock() {
            self.backlog_bytes.store(backlog.held_bytes(), Ordering::Relaxed);
        }
        self.backlog_bytes.load(Ordering::Relaxed)
    }

    /// The replicas. Held for moments only.
    pub fn known(&self) -> MutexGuard<'_, Vec<ReplicaInfo>> {
        lock(&self.known)
    }

    /// The dumps whose streams nobody has asked for yet, by the ids of their clients. Held for moments only.
    pub fn awaited(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        lock(&self.awaited)
    }

    /// The clients that wait.
    pub fn waits(&self) -> MutexGuard<'_, Vec<Wait>> {
        lock(&self.waits)
    }

    /// How many replicas get the stream.
    pub fn online(&self) -> i64 {
        self.count(|_| true)
    }

    /// The node that is furthest on of those that get the stream, and its offset.
    pub fn furthest_node(&self) -> Option<(String, i64)> {
        let known = self.known();
        known
            .iter()
            .filter(|replica| replica.progress == Progress::Online && !replica.node.is_empty())
            .max_by_key(|replica| replica.acknowledged)
            .map(|replica| (replica.node.clone(), replica.acknowledged))
    }

    /// How many replicas have everything up to an offset.
    pub fn having(&self, offset: i64) -> i64 {
        self.count(|replica| replica.acknowledged >= offset)
    }

    /// How many have it on their disks.
    pub fn having_synced(&self, offset: i64) -> i64 {
        self.count(|replica| replica.synced >= offset)
    }

    /// How many replicas have what has this ticket of the log.
    pub fn having_ticket(&self, ticket: u64) -> i64 {
        // What is not in the backlog yet nobody has.
        let offset = self.backlog().offset_of(ticket);
        offset.map_or(0, |offset| self.having(offset))
    }

    /// How many have it on their disks.
    pub fn having_synced_ticket(&self, ticket: u64) -> i64 {
        let offset = self.backlog().offset_of(ticket);
        offset.map_or(0, |offset| self.having_synced(offset))
    }

    fn count(&self, counts: impl Fn(&ReplicaInfo) -> bool) -> i64 {
        let known = self.known();
        known
            .iter()
            .filter(|replica| replica.progress == Progress::Online && counts(replica))
            .count() as i64
    }

    /// How many replicas keep up: online, and heard within so many seconds.
    pub fn good(&self, now_s: u64, most_lag_s: u64) -> i64 {
        self.count(|replica| now_s.saturating_sub(replica.heard_s) <= most_lag_s)
    }

    /// Has all replicas asked how far they are.
    pub fn ask(&self) {
        self.asks.store(true, Ordering::SeqCst);
    }
}

//! The parts of a `Server` that differ between one that serves clients and one that only a debugged script sees.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;

use super::{CoordinatorCommand, Job, Pause, PrimaryThreadCommand, Server, WorkerLink};
use crate::acl::Acl;
use crate::cluster::Cluster;
use crate::config::{Config, id};
use crate::keyspace::lazyfree::LazyFree;
use crate::keyspace::{Keyspace, SLOTS};
use crate::net::usage::ClientMemory;
use crate::observability::metrics::Metrics;
use crate::observability::slot_stats::SlotStats;
use crate::observability::used_memory::UsedMemory;
use crate::persistence::rdb_file::SaveStatus;
use crate::propagation::PropagationLog;
use crate::runtime::shutdown::ShutdownRequest;

/// The parts of a server. The fields are those of [`Server`].
pub struct ServerParts {
    /// Parameters.
    pub config: Config,
    /// Users.
    pub acl: Acl,
    /// Data.
    pub keyspace: Keyspace,
    /// The cluster, in cluster mode.
    pub cluster: Option<Cluster>,
    /// The number of workers.
    pub workers: usize,
    /// Counters.
    pub metrics: Metrics,
    /// Frees in the background.
    pub lazyfree: LazyFree,
    /// Takes long commands.
    pub background: mpsc::Sender<Job>,
    /// Takes scripts that may be long.
    pub script_jobs: mpsc::Sender<Job>,
    /// The way to the thread that serves replicas.
    pub supply: mpsc::Sender<PrimaryThreadCommand>,
    /// The coordinator's commands.
    pub orders: mpsc::Sender<CoordinatorCommand>,
    /// 40 hexadecimal digits.
    pub run_id: String,
    /// The start of the process, and the same in seconds since the Unix epoch.
    pub started: (Instant, u64),
    /// Bytes in use.
    pub memory: Arc<UsedMemory>,
}

impl Server {
    /// Creates a server that no thread knows yet.
    pub fn new(parts: ServerParts) -> Server {
        let seats = parts.keyspace.slots.seats();
        Server {
            acl: parts.acl,
            keyspace: parts.keyspace,
            cluster: parts.cluster,
            propagation: Arc::new(PropagationLog::new(parts.workers, parts.memory.clone())),
            workers: (0..parts.workers).map(|_| WorkerLink::new()).collect(),
            metrics: parts.metrics,
            slot_stats: SlotStats::new(seats, SLOTS),
            acknowledgements: Mutex::default(),
            errors: Default::default(),
            observed: Default::default(),
            lazyfree: parts.lazyfree,
            blocked: Default::default(),
            watched: Default::default(),
            pubsub: Default::default(),
            tracking: Default::default(),
            monitors: Default::default(),
            directory: Default::default(),
            moves: Default::default(),
            background: parts.background,
            script_jobs: parts.script_jobs,
            scripts: Default::default(),
            repl: Default::default(),
            linked_clients: Mutex::default(),
            supply: parts.supply,
            tls: Default::default(),
            supply_waker: OnceLock::new(),
            myself: OnceLock::new(),
            pause: Pause::default(),
            active_expire: AtomicBool::new(true),
            next_client_id: AtomicU64::new(1),
            next_ticket: AtomicU64::new(1),
            connections: AtomicUsize::new(0),
            due_slots: Mutex::new(Vec::new()),
            run_id: parts.run_id,
            started: parts.started.0,
            started_unix_s: parts.started.1,
            shutdown: ShutdownRequest::default(),
            dumps: SaveStatus::default(),
            aof: Arc::default(),
            aof_files: Mutex::default(),
            replay: OnceLock::new(),
            snapshot: Default::default(),
            orders: parts.orders,
            coordinator: OnceLock::new(),
            // Without workers no client is counted.
            client_memory: ClientMemory::new(parts.workers.max(1)),
            memory: parts.memory,
            active_workers: AtomicUsize::new(active_at_start(&parts.config, parts.workers)),
            tunings: AtomicU64::new(0),
            config: parts.config,
        }
    }
}

/// Returns the number of workers that take part when the server starts.
fn active_at_start(config: &Config, workers: usize) -> usize {
    match config.boolean(id::IO_THREADS_ALWAYS_ACTIVE) {
        true => workers.max(1),
        false => 1,
    }
}

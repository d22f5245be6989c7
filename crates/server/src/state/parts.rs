//! The parts of a `Server` that differ between one that serves clients and one that only a debugged script sees.

use std::sync::Arc;

use super::{
    Background, BackgroundJob, Clients, CoordinatorCommand, Lifecycle, Persistence, PrimaryThreadCommand, Server,
    Stats, WorkerLink,
};
use crate::keyspace::Keyspace;
use crate::keyspace::lazyfree::LazyFree;
use crate::observability::activity::ThreadActivities;
use crate::observability::hot_keys::HotKeys;
use crate::observability::metrics::Metrics;
use crate::observability::slot_stats::SlotStats;
use crate::observability::used_memory::UsedMemory;
use crate::propagation::PropagationLog;
use weft_acl::Acl;
use weft_base::slots::SLOTS;
use weft_cluster::Cluster;
use weft_config::{Config, id};
use weft_os::sync::mpsc;
use weft_os::time::Instant;

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
    /// The freeing thread.
    pub lazyfree: LazyFree,
    /// The queue of long commands.
    pub background: mpsc::Sender<BackgroundJob>,
    /// The queue of scripts that may be long.
    pub script_jobs: mpsc::Sender<BackgroundJob>,
    /// The queue of the thread that serves replicas.
    pub supply: mpsc::Sender<PrimaryThreadCommand>,
    /// The queue of the coordinator's commands.
    pub orders: mpsc::Sender<CoordinatorCommand>,
    /// 40 hexadecimal digits.
    pub run_id: String,
    /// The start of the process.
    pub started: Instant,
    /// The start of the process, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// Bytes in use.
    pub memory: Arc<UsedMemory>,
}

impl Server {
    /// Creates a server that no thread uses yet.
    pub fn new(parts: ServerParts) -> Server {
        let seats = parts.keyspace.slots.seats();
        let active_workers = initial_active_workers(&parts.config, parts.workers);
        Server {
            config: parts.config,
            acl: parts.acl,
            tls: Default::default(),
            keyspace: parts.keyspace,
            cluster: parts.cluster,
            propagation: Arc::new(PropagationLog::new(parts.workers, parts.memory.clone())),
            workers: (0..parts.workers).map(|_| WorkerLink::new()).collect(),
            memory: parts.memory,
            clients: Clients::new(parts.workers),
            replication: Default::default(),
            slot_migrations: Default::default(),
            persistence: Persistence::default(),
            scripting: Default::default(),
            modules: Default::default(),
            background: Background::new(
                parts.background,
                parts.script_jobs,
                parts.lazyfree,
                parts.supply,
                parts.orders,
            ),
            stats: Stats {
                metrics: parts.metrics,
                slots: SlotStats::new(seats, SLOTS),
                errors: Default::default(),
                history: Default::default(),
                activities: ThreadActivities::new(seats),
                hot_keys: HotKeys::new(seats),
                big_keys: Default::default(),
                stalls: Default::default(),
                defragmentation: Default::default(),
            },
            lifecycle: Lifecycle::new(
                parts.run_id,
                parts.started,
                parts.started_unix_s,
                active_workers,
                parts.workers,
            ),
        }
    }
}

/// Returns the number of workers that take part when the server starts.
fn initial_active_workers(config: &Config, workers: usize) -> usize {
    match config.boolean(id::IO_THREADS_ALWAYS_ACTIVE) {
        true => workers.max(1),
        false => 1,
    }
}

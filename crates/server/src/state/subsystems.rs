//! The subsystems of a [`Server`], each of which is one field of it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use weft_base::{ClientId, ParkId, SlotIndex};
use weft_reactor::{Socket, Waker};

use super::permit::Permit;
use super::{
    BackgroundJob, CallModulesFn, ClientDirectory, CoordinatorCommand, DebuggedClients, MovingConnections, Pause,
    PendingAcknowledgement, PrimaryThreadCommand, ReplayFn, Server, SlotMigrationCommand,
};
use crate::clients_waiting::{blocking, watch};
use crate::keyspace::Seat;
use crate::keyspace::lazyfree::LazyFree;
use crate::net::client::{BufferFigures, Client};
use crate::net::usage::ClientMemory;
use crate::notify::monitor::Monitors;
use crate::notify::pubsub::PubSubRegistry;
use crate::notify::tracking::TrackingTable;
use crate::observability::ObservedHistory;
use crate::observability::activity::ThreadActivities;
use crate::observability::big_keys::BigKeys;
use crate::observability::defragmentation::DefragFigures;
use crate::observability::errors::ErrorCounts;
use crate::observability::hot_keys::HotKeys;
use crate::observability::metrics::Metrics;
use crate::observability::slot_stats::SlotStats;
use crate::observability::stalls::StallCounts;
use crate::persistence::aof_files::{self, AofFiles};
use crate::persistence::rdb_file::SaveStatus;
use crate::persistence::snapshot_state::SnapshotState;
use crate::runtime::shutdown::ShutdownRequest;
use weft_os::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc;
use weft_os::time::Instant;

/// The clients of all workers: their workers, waits, watched keys and subscriptions.
pub struct Clients {
    /// The counts of waits for keys.
    pub blocked: blocking::WaitCounts,
    /// The permit to serve clients that wait for keys in several slots.
    pub multi_slot_service: Permit,
    /// The counts of watched keys.
    pub watched: watch::WatchCounts,
    /// The subscriptions.
    pub pubsub: PubSubRegistry,
    /// The keys that tracking clients may have cached.
    pub tracking: TrackingTable,
    /// The clients in MONITOR mode.
    pub monitors: Monitors,
    /// The worker of each client.
    pub directory: ClientDirectory,
    /// The connections that move between two workers.
    pub moving: MovingConnections,
    /// The primary, the replicas and the peers of slot migrations as clients, by ID, for commands that report on all
    /// clients.
    pub linked: Mutex<BTreeMap<ClientId, (Client, BufferFigures)>>,
    /// Further handles of the connections of replicas, with which another thread shuts them down.
    pub link_sockets: Mutex<BTreeMap<ClientId, Socket>>,
    /// The clients in debugging sessions.
    pub debugged: DebuggedClients,
    /// The pause of clients.
    pub pause: Pause,
    /// The memory of the clients, counted while `maxmemory-clients` sets a limit.
    pub memory: ClientMemory,
    /// The number of connections.
    pub connections: AtomicUsize,
    next_client_id: AtomicU64,
    next_park_id: AtomicU64,
    next_watch_id: AtomicU64,
}

impl Clients {
    /// Creates the state for this number of workers.
    pub(super) fn new(workers: usize) -> Clients {
        Clients {
            blocked: Default::default(),
            multi_slot_service: Permit::default(),
            watched: Default::default(),
            pubsub: Default::default(),
            tracking: Default::default(),
            monitors: Default::default(),
            directory: Default::default(),
            moving: Default::default(),
            linked: Mutex::default(),
            link_sockets: Mutex::default(),
            debugged: DebuggedClients::default(),
            pause: Pause::default(),
            // Without workers no client is counted.
            memory: ClientMemory::new(workers.max(1)),
            connections: AtomicUsize::new(0),
            next_client_id: AtomicU64::new(1),
            next_park_id: AtomicU64::new(1),
            next_watch_id: AtomicU64::new(1),
        }
    }

    /// Returns the id of a new client.
    pub fn next_client_id(&self) -> ClientId {
        ClientId::new(self.next_client_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a new ID for a connection that parks.
    pub fn next_park_id(&self) -> ParkId {
        ParkId::new(self.next_park_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a number that no other watch of a key has.
    pub fn next_watch_id(&self) -> u64 {
        self.next_watch_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// RDB files, the append-only file and snapshots.
#[derive(Default)]
pub struct Persistence {
    /// The status of RDB files.
    pub dumps: SaveStatus,
    /// The status of the append-only file.
    pub aof: Arc<aof_files::AofStatus>,
    /// The files of the append-only file.
    pub aof_files: Mutex<AofFiles>,
    /// Executes the commands of a file. Set at the start, since command execution is a layer above.
    pub replay: OnceLock<ReplayFn>,
    /// Calls modules. Set at the start, since the sessions of modules are a layer above.
    pub call_modules: OnceLock<CallModulesFn>,
    /// The snapshot that is being written.
    pub snapshot: SnapshotState,
}

impl Persistence {
    /// Resets what CONFIG RESETSTAT resets: the numbers of saves, rewrites and snapshots, and the last one's pause.
    pub fn reset_statistics(&self) {
        let snapshot = &self.snapshot;
        for figure in [
            &self.dumps.saves,
            &self.aof.rewrites,
            &snapshot.snapshots_started,
            &snapshot.pause_us,
        ] {
            figure.store(0, Ordering::Relaxed);
        }
    }
}

/// Work for the threads that are not workers.
pub struct Background {
    /// Takes long commands that need leases, and work in exclusive mode.
    pub long_commands: JobQueue,
    /// Takes long commands that work on a snapshot of their keys, without leases.
    pub snapshot_commands: JobQueue,
    /// The receiving end of `snapshot_commands`, until the threads start.
    snapshot_jobs: Mutex<Option<mpsc::Receiver<BackgroundJob>>>,
    /// Takes scripts that may be long.
    pub scripts: JobQueue,
    /// Takes work that waits for another server, for as long as a client has allowed.
    pub exchanges: JobQueue,
    /// The receiving end of `exchanges`, until the threads start.
    exchange_jobs: Mutex<Option<mpsc::Receiver<BackgroundJob>>>,
    /// Frees large values.
    pub lazyfree: LazyFree,
    /// The slots with due keys, in the order in which they were found.
    pub due_slots: Mutex<Vec<SlotIndex>>,
    /// Set while keys expire without being accessed (`DEBUG SET-ACTIVE-EXPIRE`).
    pub active_expire: AtomicBool,
    /// Commands that wait for the acknowledgement of replicas.
    pub acknowledgements: Mutex<Vec<PendingAcknowledgement>>,
    primary_thread: ThreadLink<PrimaryThreadCommand>,
    migration_thread: ThreadLink<SlotMigrationCommand>,
    /// The receiving end of the commands for the thread that migrates slots, until it starts.
    migration_commands: Mutex<Option<mpsc::Receiver<SlotMigrationCommand>>>,
    coordinator: ThreadLink<CoordinatorCommand>,
    /// Set while the thread of active defragmentation exists.
    pub has_defragmenter: AtomicBool,
}

/// The sending end of a queue of jobs, and the number of jobs that have not ended.
pub struct JobQueue {
    jobs: mpsc::Sender<BackgroundJob>,
    unfinished: Arc<AtomicUsize>,
}

impl JobQueue {
    fn new(jobs: mpsc::Sender<BackgroundJob>) -> Self {
        JobQueue {
            jobs,
            unfinished: Arc::default(),
        }
    }

    /// Appends a job. Returns `false` if the threads have ended.
    pub fn send(&self, job: BackgroundJob) -> bool {
        self.jobs.send(self.count(job)).is_ok()
    }

    /// Returns a function that appends a job. The job counts as waiting from now on.
    pub fn send_later(&self, job: BackgroundJob) -> impl FnOnce() + Send + 'static {
        let (jobs, counted) = (self.jobs.clone(), self.count(job));
        // Sending fails only while the process ends.
        move || drop(jobs.send(counted))
    }

    fn count(&self, job: BackgroundJob) -> BackgroundJob {
        let unfinished = self.unfinished.clone();
        unfinished.fetch_add(1, Ordering::Relaxed);
        Box::new(move |server: &Arc<Server>, seat: &mut Seat| {
            job(server, seat);
            unfinished.fetch_sub(1, Ordering::Release);
        })
    }

    /// Returns the number of jobs that wait or run.
    pub fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Acquire)
    }
}

/// The sending end of a thread's commands, and its waker once it runs.
struct ThreadLink<Command> {
    commands: mpsc::Sender<Command>,
    waker: OnceLock<Waker>,
}

impl<Command> ThreadLink<Command> {
    fn new(commands: mpsc::Sender<Command>) -> Self {
        ThreadLink {
            commands,
            waker: OnceLock::new(),
        }
    }

    /// Sends a command and wakes the thread. Returns `false` if the thread ended.
    fn send(&self, command: Command) -> bool {
        let is_sent = self.commands.send(command).is_ok();
        self.wake();
        is_sent
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

impl Background {
    /// Creates the links to the threads with these receivers.
    pub(super) fn new(
        long_commands: mpsc::Sender<BackgroundJob>,
        scripts: mpsc::Sender<BackgroundJob>,
        lazyfree: LazyFree,
        primary_thread: mpsc::Sender<PrimaryThreadCommand>,
        coordinator: mpsc::Sender<CoordinatorCommand>,
    ) -> Background {
        let (snapshot_commands, snapshot_jobs) = mpsc::channel();
        let (exchanges, exchange_jobs) = mpsc::channel();
        let (migration_thread, migration_commands) = mpsc::channel();
        Background {
            long_commands: JobQueue::new(long_commands),
            snapshot_commands: JobQueue::new(snapshot_commands),
            snapshot_jobs: Mutex::new(Some(snapshot_jobs)),
            scripts: JobQueue::new(scripts),
            exchanges: JobQueue::new(exchanges),
            exchange_jobs: Mutex::new(Some(exchange_jobs)),
            lazyfree,
            due_slots: Mutex::default(),
            active_expire: AtomicBool::new(true),
            acknowledgements: Mutex::default(),
            primary_thread: ThreadLink::new(primary_thread),
            migration_thread: ThreadLink::new(migration_thread),
            migration_commands: Mutex::new(Some(migration_commands)),
            coordinator: ThreadLink::new(coordinator),
            has_defragmenter: AtomicBool::new(false),
        }
    }

    /// Returns the number of jobs that wait or run on background, script and exchange threads.
    pub fn unfinished_jobs(&self) -> usize {
        // In this order: a command on a snapshot joins the long commands before it leaves.
        let queues = [
            &self.snapshot_commands,
            &self.long_commands,
            &self.scripts,
            &self.exchanges,
        ];
        queues.into_iter().map(JobQueue::unfinished).sum()
    }

    /// Takes the receiving end of `snapshot_commands`; `None` if it was taken before.
    pub fn take_snapshot_jobs(&self) -> Option<mpsc::Receiver<BackgroundJob>> {
        self.snapshot_jobs.lock().take()
    }

    /// Takes the receiving end of `exchanges`; `None` if it was taken before.
    pub fn take_exchange_jobs(&self) -> Option<mpsc::Receiver<BackgroundJob>> {
        self.exchange_jobs.lock().take()
    }

    /// Takes the receiving end of the commands for the thread that migrates slots; `None` if it was taken before.
    pub fn take_migration_commands(&self) -> Option<mpsc::Receiver<SlotMigrationCommand>> {
        self.migration_commands.lock().take()
    }

    /// Sends a command to the thread that migrates slots, and wakes it.
    pub fn send_to_migration_thread(&self, command: SlotMigrationCommand) {
        // The thread ends only at shutdown.
        self.migration_thread.send(command);
    }

    /// Wakes the thread that migrates slots.
    pub fn wake_migration_thread(&self) {
        self.migration_thread.wake();
    }

    /// Sets the waker of the thread that migrates slots. Called once, by that thread.
    pub fn set_migration_thread_waker(&self, waker: Waker) {
        let _ = self.migration_thread.waker.set(waker);
    }

    /// Sends a command to the thread that serves replicas, and wakes it.
    pub fn send_to_primary_thread(&self, command: PrimaryThreadCommand) {
        // The thread ends only at shutdown.
        self.primary_thread.send(command);
    }

    /// Sends the coordinator a command, and wakes it. Returns `false` if the coordinator ended.
    pub fn send_to_coordinator(&self, command: CoordinatorCommand) -> bool {
        self.coordinator.send(command)
    }

    /// Wakes the thread that serves replicas.
    pub fn wake_primary_thread(&self) {
        self.primary_thread.wake();
    }

    /// Wakes the coordinator.
    pub fn wake_coordinator(&self) {
        self.coordinator.wake();
    }

    /// Sets the waker of the thread that serves replicas. Called once, by that thread.
    pub fn set_primary_thread_waker(&self, waker: Waker) {
        let _ = self.primary_thread.waker.set(waker);
    }

    /// Sets the waker of the coordinator. Called once, at the start.
    pub fn set_coordinator_waker(&self, waker: Waker) {
        let _ = self.coordinator.waker.set(waker);
    }
}

/// Counters and recorded history.
pub struct Stats {
    /// The counters.
    pub metrics: Metrics,
    /// The costs of the cluster's slots.
    pub slots: SlotStats,
    /// The error replies, by code.
    pub errors: ErrorCounts,
    /// The command log, latency events and rates.
    pub history: ObservedHistory,
    /// The command that each thread runs at the moment.
    pub activities: ThreadActivities,
    /// The most used keys.
    pub hot_keys: HotKeys,
    /// The keys that take the most memory.
    pub big_keys: BigKeys,
    /// The counts of what has taken too long.
    pub stalls: StallCounts,
    /// The figures of active defragmentation.
    pub defragmentation: DefragFigures,
}

/// The process: its identity, start, active workers and shutdown.
pub struct Lifecycle {
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// The start of the process.
    pub started: Instant,
    /// The start of the process, in seconds since the Unix epoch.
    pub started_unix_s: u64,
    /// The request to end the process.
    pub shutdown: ShutdownRequest,
    /// The number of workers that take connections.
    pub active_workers: AtomicUsize,
    /// The number of workers that may be active, as the log has it.
    pub logged_worker_limit: AtomicUsize,
    /// The number of changes of `active_workers`.
    pub tunings: AtomicU64,
    /// This server, for closures that outlive a call.
    pub server: OnceLock<Weak<Server>>,
}

impl Lifecycle {
    /// Creates the state of a process that started at this time, with so many workers.
    pub(super) fn new(
        run_id: String,
        started: Instant,
        started_unix_s: u64,
        active_workers: usize,
        workers: usize,
    ) -> Lifecycle {
        Lifecycle {
            run_id,
            started,
            started_unix_s,
            shutdown: ShutdownRequest::default(),
            active_workers: AtomicUsize::new(active_workers),
            logged_worker_limit: AtomicUsize::new(workers),
            tunings: AtomicU64::new(0),
            server: OnceLock::new(),
        }
    }
}

//! The server's shared state: the data that all threads may access, and the messages between threads.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weft_base::{ClientId, DbIndex, LogSequence, ParkId, ParkedClient, SlotIndex, ThreadIndex};
use weft_reactor::Output;

use crate::clients_waiting::blocking::{HeldUpWaiters, Waiter};
use crate::clients_waiting::watch::Watch;
use crate::keyspace::access::KeySnapshot;
use crate::keyspace::effects::ClientNotification;
use crate::keyspace::ready_keys::ReadyKey;
use crate::keyspace::{Exclusive, Keyspace, Seat};
use crate::net::client::{BufferFigures, Client};
use crate::net::client_snapshot::{ClientSnapshot, WaitState};
use crate::net::connection::Connection;
use crate::net::library_loads::LibraryLoads;
use crate::net::listeners::AcceptedConnection;
use crate::observability::commandlog::LoggedCommand;
use crate::observability::used_memory::UsedMemory;
use crate::persistence::aof_files::reader::{AofReadError, AofReader};
use crate::persistence::rdb_file::UnfinishedImport;
use crate::propagation::PropagationLog;
use crate::replication::{Replication, RequiredAcks, ResumePosition};
use crate::runtime::shutdown::ShutdownOptions;
use crate::slot_migration::SlotMigrations;
use crate::slot_migration::job::{JobKind, JobProgress, MigrationJob};
use directory::ClientDirectory;
use links::LinkVisitor;
use weft_acl::{Acl, AclAccount};
use weft_cluster::Cluster;
use weft_config::Config;
use weft_modules::session::lending::LentJob;
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::Mutex;
use weft_os::sync::mpsc::{self, SyncSender};
use weft_scripting::{ScriptRun, Scripts};
use weft_tls::TlsState;

mod acknowledgement;
mod background_work;
pub mod blocked_calls;
mod collect_clients;
mod directory;
mod durability;
mod home;
pub mod idle_clock;
mod links;
mod memory;
mod module_waits;
mod modules;
mod moving_connections;
mod parts;
mod pause;
pub mod permit;
mod server_events;
pub mod spare_cores;
mod subsystems;
mod worker_link;

pub use acknowledgement::{AcknowledgementLimits, PendingAcknowledgement};
pub use background_work::{
    BackgroundJob, BackgroundRun, BackgroundStep, BackgroundWork, PermissionCheck, PermissionLoss,
};
pub use collect_clients::{ClientCollection, ClientVisitorHost, close_killed_clients};
pub use home::{HOME_WORKER, HomeJob, HomeThread};
pub use links::{DebuggedClients, SessionRegistration};
pub use module_waits::{BlockedClientEvent, DeferredReply, EndedModuleWait, ModuleWait};
pub use modules::{HomeStandby, Modules, StandbyJobs};
pub use moving_connections::MovingConnections;
pub use parts::ServerParts;
pub use pause::{Pause, PauseReason};
pub use subsystems::{Background, Clients, JobQueue, Lifecycle, Persistence, Stats};
pub use worker_link::WorkerLink;

/// The reason of migrations that ended because a file was loaded.
pub const NEW_DATA: &str = "A new RDB is being loaded";

/// The result of a command that ran outside its client's worker.
pub struct DetachedResult {
    /// The reply.
    pub output: Output,
    /// The remaining steps before the client continues.
    pub next_step: NextStep,
    /// The log sequence number of the client's last write.
    pub log_sequence: LogSequence,
    /// The database that the client has selected.
    pub db: DbIndex,
    /// The number of commands of the client that have ended.
    pub commands: u64,
    /// `true` if the end of the process has stopped the command: it has no reply, and the connection is to be closed.
    pub is_abandoned: bool,
}

/// A message to a worker.
pub enum Message {
    /// A connection that was accepted and assigned to this worker.
    NewConnection(AcceptedConnection),
    /// A connection that moves to this worker with its state, including its wait for keys.
    AdoptConnection(Box<Connection>, Option<Box<BlockedCommand>>),
    /// Move connections to the workers `target_workers` in turn, until `kept_connections` are left.
    MoveConnections {
        /// The workers that get the connections.
        target_workers: Range<usize>,
        /// The number of connections that stay.
        kept_connections: usize,
    },
    /// The reply of a command that ran elsewhere.
    Reply {
        /// The client that waits.
        client: ClientId,
        /// The park id under which the connection waits.
        park_id: ParkId,
        /// The reply.
        bytes: Vec<u8>,
        /// The position in the log of the command's first write, or none.
        first_write: LogSequence,
        /// The position in the log that counts as its last write from now on.
        log_sequence: LogSequence,
    },
    /// The reply of a command that ran on a background thread.
    CommandDone {
        /// The client that waits.
        client: ClientId,
        /// The park id under which the connection waits.
        park_id: ParkId,
        /// The result of the command.
        result: Box<DetachedResult>,
    },
    /// Remove these watches from the slots of their keys.
    RemoveWatches(Vec<Arc<Watch>>),
    /// A blocked client has been served: the waiter has its reply.
    WaiterServed(Arc<Waiter>),
    /// Waiters to serve that no command of a worker can serve.
    ServeWaiters(UnservedKeys),
    /// Notifications for clients of this worker about other clients' commands.
    Notify(ClientNotification),
    /// A query about this worker's clients.
    Query(Arc<SentQuery>),
    /// A request for snapshots of this worker's clients.
    CollectClients(Arc<ClientCollection>),
    /// The client snapshots that a transaction waits for.
    ClientsCollected {
        /// The client that waits.
        client: ClientId,
        /// The park id under which the connection waits.
        park_id: ParkId,
        /// The other clients.
        client_snapshots: Vec<ClientSnapshot>,
    },
    /// The code of the libraries that a transaction loads has run.
    LibrariesPrepared {
        /// The client that waits.
        client: ClientId,
        /// The park id under which the connection waits.
        park_id: ParkId,
        /// The libraries.
        loads: Box<LibraryLoads>,
    },
    /// A transaction has closed this client's connection.
    CloseClient(ClientId),
    /// A module gives this client a name.
    RenameClient(ClientId, Box<[u8]>),
    /// There are modules now: describe the clients for them.
    DescribeClients,
    /// A transaction has ended a client's wait. A wait for keys is claimed already.
    EndWait {
        /// The client that waits.
        client: ClientId,
        /// The event that the client waits for.
        wait_state: WaitState,
        /// `true` if the client gets an error.
        with_error: bool,
    },
    /// Run this in exclusive mode, between two batches. Only the home worker gets such messages.
    RunAtHome(HomeJob),
    /// Run this at once: a thread in exclusive mode lends its session. Only the home worker gets such messages.
    RunLent(LentJob),
    /// Run only these jobs until the sender is dropped. Only the home worker gets such messages.
    StandBy(StandbyJobs),
    /// The wait of a client that a module has blocked has ended.
    ModuleWaitEnded(Box<EndedModuleWait>),
    /// A call of a module waits until this time. Only the home worker gets such messages.
    BeginCallTimer {
        /// The time, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// The park id of the call.
        park_id: ParkId,
    },
    /// Slots with due keys are queued.
    ExpireDue,
    /// The worker must read the allocator's count at the end of this turn.
    SampleMemory,
    /// Memory is above its limit.
    EvictDue,
    /// Recount the clients' memory: the limit has changed, or the largest clients are on this worker.
    RecountClients,
    /// Users were changed or deleted.
    UsersChanged {
        /// The users that may use fewer channels than before.
        lost_channels: Arc<[Arc<AclAccount>]>,
        /// The client that has changed them: it gets its reply before its connection is closed.
        changed_by: Option<ClientId>,
    },
    /// All scripts or all libraries were flushed: drop the interpreters from before.
    ScriptsFlushed,
    /// Return the free memory that the allocator keeps for the thread: slabs are going to be emptied.
    ReturnFreeMemory,
    /// This server has begun to follow a primary: clients that wait for keys are no longer served.
    Demoted,
    /// The shutdown was aborted: reply to the clients that requested it.
    ShutdownAborted,
    /// A pause has ended: paused clients continue.
    ResumePaused,
    /// Slots have left this node: inform clients that wait for their keys or are subscribed to their channels.
    SlotsLeft,
    /// The log has advanced: send the replies that waited for it.
    LogAdvanced,
    /// End the thread, once clients have received their replies or the grace period is over.
    Stop {
        /// The time that clients have.
        grace_period: Duration,
    },
}

/// One worker's part of an answer.
pub type WorkerAnswer = Vec<u8>;

/// The part of a query that a worker runs over its clients.
pub type QueryTask = Box<dyn Fn(&mut dyn ClientVisitor) -> WorkerAnswer + Send + Sync>;

/// Combines the workers' answers into a reply.
pub type CombineAnswers = Box<dyn Fn(Vec<WorkerAnswer>) -> Vec<u8> + Send + Sync>;

/// A query to all workers.
pub struct WorkerQuery {
    /// Runs on each worker and returns that worker's part. At last it runs on the links, which belong to no worker.
    pub task: QueryTask,
    /// Combines the parts into the reply.
    pub combine: CombineAnswers,
    /// `true` if the answer of a worker waits for commands of clients that the task has killed and that cannot be
    /// stopped. No script sends such a query: it might wait for itself.
    pub awaits_killed_commands: bool,
}

/// The receiver of the reply to a query.
pub enum QueryRequester {
    /// A parked client, whose worker gets the reply as [`Message::Reply`].
    Client(ParkedClient),
    /// A thread that waits for the reply.
    Thread(SyncSender<Vec<u8>>),
}

/// A query that was sent to all workers. The last worker to answer completes the reply.
pub struct SentQuery {
    query: WorkerQuery,
    /// The parts so far.
    answers: Mutex<Vec<WorkerAnswer>>,
    /// The number of workers that have not answered.
    pending_workers: AtomicUsize,
    requester: QueryRequester,
}

/// Visits the clients of one worker.
pub trait ClientVisitor {
    /// Calls `visit` for each client with its buffer figures.
    fn visit_clients(&mut self, visit: &mut dyn FnMut(&mut Client, BufferFigures));
    /// Calls `visit` for each client in a debugging session. Replies about clients do not show these.
    fn visit_sessions(&mut self, _visit: &mut dyn FnMut(&mut Client)) {}
    /// Ends a client's wait. Returns `true` if it was waiting.
    fn unblock_client(&mut self, id: ClientId, with_error: bool) -> bool;
    /// Returns the number of clients that have disconnected but are not closed yet.
    fn closing_count(&self) -> u64 {
        0
    }
}

/// The step that follows after the handler has returned and its leases have ended.
#[derive(Default)]
pub enum NextStep {
    /// Send the reply.
    #[default]
    Reply,
    /// Park the connection and query all workers.
    QueryWorkers(Box<WorkerQuery>),
    /// Park the connection until there are snapshots of all clients, and run the request then.
    CollectClients,
    /// Park the connection until the code of the libraries that its transaction loads has run, and run the request
    /// then.
    PrepareLibraries,
    /// Park the connection and run this on a background thread; its bytes are the reply.
    Background(Box<BackgroundWork>),
    /// A slot was leased by another thread: run the command again in a later turn.
    Defer,
    /// The work takes long: run the handler again, on a background thread (see `Context::detach_if_long`), on these
    /// keys if there are any.
    RunInBackground(Option<Box<KeySnapshot>>),
    /// Park the connection until a background thread has run its command, for which this creates the job.
    AwaitBackground(Box<Box<dyn FnOnce(ParkedClient) -> BackgroundJob + Send>>),
    /// Like [`NextStep::AwaitBackground`], for a thread that runs commands on snapshots.
    AwaitSnapshotCommand(Box<Box<dyn FnOnce(ParkedClient) -> BackgroundJob + Send>>),
    /// Like [`NextStep::AwaitBackground`], for a script thread.
    AwaitScript(Box<Box<dyn FnOnce(ParkedClient) -> BackgroundJob + Send>>),
    /// Park the connection until this time (ms since the epoch), then reply with the bytes.
    ReplyAt(Box<(u64, Vec<u8>)>),
    /// Park the connection until its writes are on the disk, or the time is over.
    AwaitLog(Box<LogWait>),
    /// Run the handler again, under writers' leases of all its keys.
    RetryAsWriter,
    /// Park the connection: it waits for keys, and is in their queues already.
    Block(Box<BlockedCommand>),
    /// Park the connection: a module has blocked its client.
    BlockByModule(Box<ModuleWait>),
    /// The steps of a transaction, in order. Each reply follows the output before it, and the output of the pair
    /// follows the reply.
    TransactionParts(Box<(Output, VecDeque<(NextStep, Output)>)>),
    /// The connection is that of a replica: it moves to the thread that serves them, once its replies are sent. The
    /// check is made right before that.
    Sync(Box<(SyncRequest, PermissionCheck)>),
    /// The connection leaves its worker for good once its replies are sent: this closure takes it. The check is made
    /// right before that. Both are dropped if the connection is closed, or the command refused, before.
    TakeConnection(Box<(PermissionCheck, ConnectionReceiver)>),
    /// Park the connection until its writes are acknowledged, or until this time (milliseconds since the Unix epoch).
    AwaitReplicas(Box<(u64, RequiredAcks)>),
    /// Park the connection and withhold its reply until these waiters have been served.
    AwaitServing(Box<(UnservedKeys, Output)>),
}

impl NextStep {
    /// Returns `true` if the command has not replied and runs again, elsewhere or later.
    #[inline]
    pub fn is_unfinished(&self) -> bool {
        matches!(
            self,
            NextStep::Defer
                | NextStep::RunInBackground(_)
                | NextStep::Background(_)
                | NextStep::RetryAsWriter
                | NextStep::Block(_)
                | NextStep::BlockByModule(_)
        )
    }

    /// Returns `true` if the command runs again from its start, so that nothing of this run counts.
    pub fn is_restarted(&self) -> bool {
        matches!(
            self,
            NextStep::Defer | NextStep::RunInBackground(_) | NextStep::RetryAsWriter
        )
    }
}

// A value of this type is moved with the outcome of every command, in two registers; therefore the nested boxes.
const _: () = assert!(size_of::<NextStep>() <= 16);

/// A wait for the log (WAITAOF).
#[derive(Clone, Copy)]
pub struct LogWait {
    /// The sequence number of the last write to wait for.
    pub sequence: LogSequence,
    /// `true` if replicas must have the write as well.
    pub needs_replicas: bool,
    /// The end of the wait, in milliseconds since the Unix epoch.
    pub deadline_ms: u64,
}

/// A blocked connection's side of its wait.
pub struct BlockedCommand {
    /// The waiter in the queues.
    pub waiter: Arc<Waiter>,
    /// The index of its command, which ends with the wait.
    pub command: usize,
    /// The run time of the command so far, in nanoseconds.
    pub nanoseconds: u64,
    /// The size of its request in bytes.
    pub request_bytes: usize,
    /// The form in which logs show the command, if a log may need it.
    pub logged_command: Option<LoggedCommand>,
    /// The slot of its keys, if slot statistics are counted.
    pub slot: Option<SlotIndex>,
}

/// Keys whose waiters could not be served at once.
pub struct UnservedKeys {
    /// The keys, in the order in which they are attempted.
    pub keys: VecDeque<UnservedKey>,
    /// The number of consecutive attempts that served no waiter.
    pub failures: u32,
}

impl UnservedKeys {
    /// Creates the list for keys of which it is only known that they are ready.
    pub fn new(ready: VecDeque<ReadyKey>) -> Self {
        let unserved = |key: ReadyKey| UnservedKey {
            slots: vec![key.slot],
            key,
            held_up: HeldUpWaiters::default(),
            awaits_writes: false,
        };
        UnservedKeys {
            keys: ready.into_iter().map(unserved).collect(),
            failures: 0,
        }
    }
}

/// A key whose waiters could not be served at once, because a slot was leased by another thread or clients are paused.
pub struct UnservedKey {
    /// The key.
    pub key: ReadyKey,
    /// The slots that serving it needs.
    pub slots: Vec<SlotIndex>,
    /// Its waiters in the queues that were refused.
    pub held_up: HeldUpWaiters,
    /// `true` if these waiters write, and a pause holds writes back. It has no other waiters that may be served.
    pub awaits_writes: bool,
}

/// Runs the commands of a file with exclusive access to the keyspace; the number is the thread's row of counters.
pub type ReplayFn = fn(&Arc<Server>, &mut Exclusive<'_>, ThreadIndex, &mut AofReader<File>) -> ReplayOutcome;

/// Calls a function where the code of modules may run, while the calling thread has exclusive mode; the number is the
/// thread's row of counters. That is the home worker if it was summoned ([`Server::summon_home`]).
pub type CallModulesFn =
    fn(&Arc<Server>, &mut Exclusive<'_>, ThreadIndex, &mut Option<HomeStandby>, &mut (dyn FnMut() + Send));

/// The outcome of replaying the commands of a file.
pub enum ReplayOutcome {
    /// The file was replayed to its end.
    Complete,
    /// The file ends inside a transaction that starts at this offset.
    UnfinishedTransaction(u64),
    /// An error; the last complete command ends at this offset.
    Failed(AofReadError, u64),
    /// A command does not exist, or does not take that many arguments. This is the error that a client would get.
    InvalidCommand(String),
}

/// Takes a connection that leaves its worker for good.
pub type ConnectionReceiver = Box<dyn FnOnce(Box<Connection>) + Send>;

/// The synchronization that a replica requests.
pub struct SyncRequest {
    /// The position from which the replica wants to resume; `None` for a full synchronisation.
    pub resume: Option<ResumePosition>,
    /// `true` if the replica sent PSYNC and so expects the offset at which the stream continues.
    pub is_psync: bool,
    /// `true` if the replica sent PSYNC with an offset that is no number. The request is refused for that after all
    /// checks that come first.
    pub has_invalid_offset: bool,
    /// The index of the command.
    pub command: usize,
    /// The value of [`Replicas::disconnection_count`](crate::replication::Replicas::disconnection_count) when the
    /// replica was accepted. A disconnection that begins later includes this replica.
    pub disconnection_count: u64,
}

/// A command for the thread that serves replicas.
pub enum PrimaryThreadCommand {
    /// Serve a replica.
    AdoptReplica(Box<Connection>, Box<SyncRequest>),
    /// A dump for these replicas has ended; some of them have it.
    DumpEnded {
        /// The replicas for which it was made.
        replicas: Vec<ClientId>,
        /// The ids of the replicas that have the dump, or that are being sent its file if it has no EOF mark.
        served_replicas: Vec<ClientId>,
        /// `true` if the dump was not completed.
        has_failed: bool,
        /// `true` if the dump ended with an EOF mark; then a replica reports when it is ready for the stream.
        has_eof_mark: bool,
    },
    /// The replica with this client id is no longer being sent a dump file. The flag is `true` if it has all of it.
    DumpFileSent(ClientId, bool),
    /// Disconnect all replicas.
    DisconnectAll,
    /// Disconnect the replica with this client id.
    Disconnect(ClientId),
    /// Reply to a parked replica that has named the client to which a dump is sent: is the dump awaited?
    ConfirmDump {
        /// The replica that waits for the reply.
        requester: ParkedClient,
        /// The client to which the dump is sent.
        dump: ClientId,
    },
    /// A state that matters to replicas has changed: check them.
    CheckReplicas,
}

/// A command for the thread that migrates slots.
pub enum SlotMigrationCommand {
    /// The connection of the source of an import, whose job exists. It has not been answered.
    AdoptSource(Box<Connection>, Arc<JobProgress>),
    /// Close the connection with this client id.
    Disconnect(ClientId),
}

/// A command that only the coordinator can execute.
pub enum CoordinatorCommand {
    /// Listen on the addresses and the port of the current configuration. The answer is `true` on success.
    Listen(mpsc::SyncSender<bool>),
    /// Start, move or stop the metrics endpoint as the current configuration says. The answer is `true` on success.
    ListenForMetrics(mpsc::SyncSender<bool>),
}

/// The state that the whole process shares, by subsystem.
pub struct Server {
    /// The parameters.
    pub config: Config,
    /// The users.
    pub acl: Acl,
    /// The TLS contexts.
    pub tls: TlsState,
    /// The data.
    pub keyspace: Keyspace,
    /// The cluster, in cluster mode.
    pub cluster: Option<Cluster>,
    /// The log of writes.
    pub propagation: Arc<PropagationLog>,
    /// The workers.
    pub workers: Vec<WorkerLink>,
    /// The memory in use.
    pub memory: Arc<UsedMemory>,
    /// The clients of all workers.
    pub clients: Clients,
    /// The state of replication.
    pub replication: Replication,
    /// The slot migrations.
    pub slot_migrations: SlotMigrations,
    /// RDB files, the append-only file and snapshots.
    pub persistence: Persistence,
    /// Scripts and functions.
    pub scripting: Scripts,
    /// Modules.
    pub modules: Modules,
    /// Work for the threads that are not workers.
    pub background: Background,
    /// Counters and recorded history.
    pub stats: Stats,
    /// The process: its identity, start, active workers and shutdown.
    pub lifecycle: Lifecycle,
}

impl Server {
    /// Returns `true` if this server deletes expired keys: it follows no primary, imports nothing, no pause holds
    /// writes back, and no module gives way to clients in the middle of a command. The result holds until the thread
    /// passes the gate again.
    pub fn may_delete_expired(&self, now_ms: u64) -> bool {
        let is_held_back = self.replication.state_bits().expiry_is_remote() || self.is_module_giving_way();
        !is_held_back && !self.clients.pause.are_writes_paused(now_ms)
    }

    /// Returns `true` while a module gives way to clients in the middle of a command. Nothing changes the data then.
    /// The result holds until the thread passes the gate again.
    pub fn is_module_giving_way(&self) -> bool {
        let state = self.replication.state_bits();
        state.contains(crate::replication::ReplicationState::MODULE_BUSY)
    }

    /// Returns the number of workers that may be active: `io-threads`, or all if fewer were started.
    pub fn usable_workers(&self) -> usize {
        let wanted = self.config.integer(weft_config::id::IO_THREADS).max(1) as usize;
        wanted.min(self.workers.len())
    }

    /// Returns the link to a worker.
    ///
    /// # Panics
    /// If the thread is not a worker.
    #[inline]
    pub fn worker(&self, index: ThreadIndex) -> &WorkerLink {
        &self.workers[index.get()]
    }

    /// Ends the process once shutdown is prepared. Returns `false` if the shutdown was aborted.
    pub fn request_shutdown(&self, shutdown: ShutdownOptions) -> bool {
        let counts = self.lifecycle.shutdown.try_complete(shutdown);
        if counts {
            self.background.wake_coordinator();
        }
        counts
    }

    /// Returns a handle of this server for closures that outlive a call; `None` while it is being created.
    pub fn self_handle(&self) -> Option<Arc<Server>> {
        self.lifecycle.server.get()?.upgrade()
    }

    /// Tracks the imports of a file that was loaded, or is being installed. An import that this node has not completed
    /// yet stays as it is. The caller is in exclusive mode.
    pub fn track_imports(&self, imports: &[UnfinishedImport]) {
        for import in imports.iter().filter(|_| self.cluster.is_some()) {
            let job = MigrationJob::new(import.name, JobKind::Import, import.ranges.clone(), None);
            for slot in job.slots.iter() {
                self.keyspace.slots.header(slot.index()).set_importing(true);
            }
            let mut jobs = self.slot_migrations.lock();
            let is_known = |known: &MigrationJob| {
                known.kind == JobKind::Import && known.name == job.name && !known.state.is_finished()
            };
            if !jobs.iter().any(is_known) {
                jobs.add(job);
            }
        }
    }

    /// Ends all imports without a cleanup, and clears the marks of their slots, because all data of this node is being
    /// replaced.
    pub fn forget_imports(&self, all: &mut Exclusive<'_>, message: &str) {
        for slots in self.slot_migrations.forget_imports(message) {
            for slot in slots.iter() {
                all.header(slot.index()).set_importing(false);
            }
        }
    }

    /// Ends the imports of a file that was loaded. On a primary no source continues them. The caller is in exclusive
    /// mode.
    pub fn end_loaded_imports(&self, message: &str) {
        if !self.replication.is_replica() {
            self.slot_migrations.fail_all(Some(JobKind::Import), message, true);
            self.background.wake_migration_thread();
        }
    }

    /// Ends the slot migrations of this node, because a file replaces its data.
    pub fn end_migrations_for_load(&self) {
        let should_clean_up = !self.replication.is_replica();
        self.slot_migrations.fail_all(None, NEW_DATA, should_clean_up);
        self.background.wake_migration_thread();
    }

    /// Runs `change` with exclusive access to the keyspace, without running scripts. For a thread that is not a worker.
    pub fn run_exclusive<R>(&self, seat: &mut Seat, change: impl FnOnce(&mut Exclusive<'_>) -> R) -> R {
        self.scripting.running.exclude_runs();
        let result = change(&mut seat.exclusive());
        self.scripting.running.end_exclusion();
        result
    }

    /// Does the same for a command of a client, which does not wait for a script that may never end.
    ///
    /// # Errors
    /// An overdue run of a script.
    pub fn run_exclusive_for_client<R>(
        &self,
        seat: &mut Seat,
        change: impl FnOnce(&mut Exclusive<'_>) -> R,
    ) -> Result<R, Arc<ScriptRun>> {
        self.scripting.running.exclude_runs_for_client()?;
        let result = change(&mut seat.exclusive());
        self.scripting.running.end_exclusion();
        Ok(result)
    }

    /// Queries all workers. The requester gets the combined reply.
    pub fn query_all_workers(&self, query: WorkerQuery, requester: QueryRequester) {
        let query = Arc::new(SentQuery {
            query,
            answers: Mutex::default(),
            pending_workers: AtomicUsize::new(self.workers.len()),
            requester,
        });
        self.begin_query(moving_connections::AllWorkersQuery::WorkerQuery(query));
    }

    /// Sends a reply to a parked client, whose command has written nothing. `log_sequence` counts as its last write
    /// from then on.
    pub fn send_reply(&self, parked: ParkedClient, bytes: Vec<u8>, log_sequence: LogSequence) {
        self.worker(parked.worker).send(Message::Reply {
            client: parked.client,
            park_id: parked.park_id,
            bytes,
            first_write: LogSequence::NONE,
            log_sequence,
        });
    }
}

impl SentQuery {
    /// Returns `true` if the answer of a worker waits for commands of clients that the task has killed.
    pub fn awaits_killed_commands(&self) -> bool {
        self.query.awaits_killed_commands
    }

    /// Returns the part of one worker, or of the links.
    pub fn run_task(&self, clients: &mut dyn ClientVisitor) -> WorkerAnswer {
        (self.query.task)(clients)
    }

    /// Adds a worker's part. After the last one the links are visited, and the reply is completed and sent.
    pub fn add_answer(&self, server: &Server, part: WorkerAnswer) {
        let mut parts = {
            let mut parts = self.answers.lock();
            parts.push(part);
            if self.pending_workers.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            std::mem::take(&mut *parts)
        };
        server.end_query();
        parts.push(self.run_task(&mut LinkVisitor(server)));
        let reply = (self.query.combine)(parts);
        match &self.requester {
            QueryRequester::Client(parked) => server.send_reply(*parked, reply, LogSequence::NONE),
            QueryRequester::Thread(sender) => {
                // The waiting thread may have given up.
                let _ = sender.send(reply);
            }
        }
    }
}

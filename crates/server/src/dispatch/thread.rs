//! The state that a thread keeps while it executes commands: the lowest layer of this folder.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use weft_base::clock::unix_ms;
use weft_base::{ClientId, SlotIndex, ThreadIndex};
use weft_reactor::Output;
use weft_resp::{Args, Reply};

use crate::clients_waiting::blocking::{ServeResult, Waiter};
use crate::commands::context::{Binding, Context, NextStep};
use crate::dispatch::command_events::RecordedEnd;
use crate::keyspace::GatePassage;
use crate::keyspace::access::{AccessContext, HeldLeases, Keys};
use crate::keyspace::clock::AccessClock;
use crate::keyspace::effects::Effects;
use crate::keyspace::eviction::EvictionPool;
use crate::keyspace::key_identity::PlannedKey;
use crate::keyspace::prefetch_policy::PrefetchPolicy;
use crate::net::client::{Client, ClientFlags};
use crate::net::client_snapshot::ClientSnapshot;
use crate::observability::hot_keys::HotKeySampler;
use crate::observability::used_memory::ThreadBalance;
use crate::replication::ReplicationState;
use crate::state::{EndedModuleWait, HomeStandby, Server, UnservedKeys};
use weft_cluster::Cluster;
use weft_cluster::view::ClusterView;
use weft_command_table::registry::Command;
use weft_modules::module::home_commands;
#[cfg(not(feature = "simulated"))]
use weft_os::sync::OnceLock;
use weft_os::time::{SystemTime, UNIX_EPOCH};

use super::engine_script::{EngineDebugger, EngineScript};
use super::home_events::HomeEvents;
use super::script_buffers::ScriptBuffers;
use super::tunables::Tunables;
use super::unfreed_values::UnfreedValues;

pub use weft_modules::session::idle::IdleTurns;

/// The state that a worker keeps from command to command.
pub struct ThreadState {
    /// The server.
    pub server: Arc<Server>,
    /// The index of this thread's row of counters.
    pub thread_index: ThreadIndex,
    /// The effects of the running command.
    pub effects: Effects,
    /// Milliseconds since the Unix epoch, at the start of the batch.
    pub now_ms: u64,
    /// The access clock at the start of the batch.
    pub clock: AccessClock,
    /// The reading of the timer at the end of the last command.
    pub ticks: u64,
    /// The clock that `ticks` is read from.
    pub timer: quanta::Clock,
    /// The version of the users at the last passage of the gate. No permission changes within a passage.
    pub acl_version: u64,
    /// The cluster view at the last passage of the gate; `None` outside cluster mode.
    pub view: Option<Arc<ClusterView>>,
    /// The version of that view.
    pub view_version: u64,
    /// `true` if clients that a transaction has killed are not closed yet. None is killed within a passage.
    pub has_killed_clients: bool,
    /// The events that modules get on the home worker, as of the last passage of the gate.
    pub home_events: HomeEvents,
    /// `true` if all commands of clients run on the home worker, in exclusive mode, as of the last passage of the gate.
    pub commands_run_at_home: bool,
    /// The end of the last command, while modules have a part in all commands.
    pub recorded_end: Option<RecordedEnd>,
    /// The direction in which the slot of the admitted command moves, if it does.
    pub moving: Option<SlotMigration>,
    /// The home worker, while this thread is in exclusive mode and runs code of modules there.
    pub home_standby: Option<HomeStandby>,
    /// `true` while the home worker uses this state, because this thread has lent it.
    pub is_lent_to_home: bool,
    /// `true` while a thread of a module that holds the lock of a thread-safe context uses this state.
    pub is_for_locks: bool,
    /// The script of a module's engine that runs; `None` for none.
    pub engine_script: Option<Box<EngineScript>>,
    /// The debugger of that script, in a session.
    pub engine_debugger: Option<Box<EngineDebugger>>,
    /// The replication state bits at the last passage of the gate.
    pub replication_state: ReplicationState,
    /// A copy of the configuration parameters that commands read.
    pub tunables: Tunables,
    /// `true` if long commands may leave this thread. Commands of a background thread and parts of transactions and
    /// scripts may not.
    pub may_leave: bool,
    /// `true` if clients may block for keys. Parts of transactions and scripts may not.
    pub may_block: bool,
    /// `true` on a script thread.
    pub for_script: bool,
    /// Set if a command that left its worker is held back by a pause: the value of `Pause::resumptions` that has to
    /// change first.
    pub awaited_resumption: Option<u64>,
    /// `true` if the thread replays commands, for which no key expires.
    pub replays: bool,
    /// `false` if the commands of the thread do not count in the statistics: those of a file that is loaded.
    pub(super) counts_commands: bool,
    /// The first command of the current batch that has failed, if the thread replays commands.
    pub(super) failed_command: Option<&'static str>,
    /// The values that commands called by modules have left to be freed.
    pub(super) unfreed_by_modules: UnfreedValues,
    /// `true` while the thread runs commands of a round (`dispatch/apply_threads.rs`). Other threads may sleep at the
    /// gate until the round is over, so the thread waits for nothing that they do behind it.
    pub is_in_round: bool,
    /// The time for the expiry of keys, in milliseconds since the Unix epoch. It stays 0 while `replays` is set.
    pub expiry_ms: u64,
    /// `true` if a long script opens the gate at intervals, so that clients get `-LOADING`.
    pub opens_gate_in_scripts: bool,
    /// Snapshots of the other clients, while a transaction runs that reads them.
    pub client_snapshots: Option<Vec<ClientSnapshot>>,
    /// Set once the end of the process has stopped a script of the running transaction.
    pub is_unit_unfinished: bool,
    /// The blocked clients that the running command has served.
    pub served: Vec<(Arc<Waiter>, ServeResult)>,
    /// The waiters whose connections belong to this thread, which replies to them without mail.
    pub served_here: Vec<Arc<Waiter>>,
    /// The ended waits of clients of this worker that modules had blocked.
    pub ended_module_waits: Vec<EndedModuleWait>,
    /// Clients of this worker whose changes were broadcast in the middle of the batch, and the workers that had too
    /// much mail then.
    pub early_broadcasters: Vec<(ClientId, ThreadIndex)>,
    /// Ready keys that are still to be served and belong to no connection.
    pub unserved: Vec<UnservedKeys>,
    /// The memory that the thread may still take.
    pub memory_limit: MemoryLimit,
    /// The prefetch policy.
    pub prefetch_policy: PrefetchPolicy,
    /// The number of batches that have run.
    pub batches: u32,
    /// The number of commands that have ended since they were last added to those of their client. Commands of scripts
    /// and transactions count, too.
    pub ended_commands: u64,
    /// The time that TIME shows within the running transaction, since the Unix epoch, once a command has asked.
    pub unit_time: Option<Duration>,
    /// The slot that the current transaction or script is counted for, if slot statistics are enabled.
    pub(super) slot: Option<SlotIndex>,
    /// The sampling of hot keys.
    pub(super) hot_key_sampler: HotKeySampler,
    /// `true` if the keys of commands matter for statistics: of slots, or of hot keys.
    pub(super) counts_keys: bool,
    /// Scratch memory: the slots to lease.
    pub(super) order: Vec<(SlotIndex, bool, u32)>,
    /// Scratch memory: the leases of a script by slot.
    pub(super) script_lease_indices: Vec<(SlotIndex, u32)>,
    /// Memory for the next script; `None` before the first one, and while a script runs.
    pub(super) script_buffers: Option<Box<ScriptBuffers>>,
}

/// Returns the clock of commands' durations. There is one, because a new one asks the processor for its features, and
/// on a virtual machine each of these questions stops the processor for microseconds: too long for a thread that runs
/// one command.
#[cfg(not(feature = "simulated"))]
fn create_timer() -> quanta::Clock {
    static TIMER: OnceLock<quanta::Clock> = OnceLock::new();
    TIMER.get_or_init(quanta::Clock::new).clone()
}

/// Returns a clock that stands still: the durations of commands are all zero in a simulation.
#[cfg(feature = "simulated")]
fn create_timer() -> quanta::Clock {
    quanta::Clock::mock().0
}

impl ThreadState {
    /// Creates the state of a thread that counts in row `seat`.
    pub fn new(server: Arc<Server>, thread_index: ThreadIndex) -> Self {
        let tunables = Tunables::from_server(&server);
        let timer = create_timer();
        let effects = Effects {
            log_writer: server.propagation.log_writer(),
            ..Effects::for_keyspace(&server.keyspace)
        };
        ThreadState {
            thread_index,
            effects,
            now_ms: 0,
            clock: tunables.clock,
            ticks: timer.raw(),
            timer,
            acl_version: server.acl.version(),
            view: server.cluster.as_ref().map(Cluster::view),
            view_version: 0,
            has_killed_clients: false,
            commands_run_at_home: false,
            recorded_end: None,
            unit_time: None,
            home_events: HomeEvents::default(),
            moving: None,
            home_standby: None,
            is_lent_to_home: false,
            is_for_locks: false,
            engine_script: None,
            engine_debugger: None,
            replication_state: server.replication.state_bits(),
            tunables,
            may_leave: true,
            may_block: true,
            for_script: false,
            awaited_resumption: None,
            replays: false,
            counts_commands: true,
            failed_command: None,
            unfreed_by_modules: UnfreedValues::default(),
            is_in_round: false,
            expiry_ms: 0,
            opens_gate_in_scripts: false,
            client_snapshots: None,
            is_unit_unfinished: false,
            served: Vec::new(),
            served_here: Vec::new(),
            ended_module_waits: Vec::new(),
            early_broadcasters: Vec::new(),
            unserved: Vec::new(),
            memory_limit: MemoryLimit::default(),
            prefetch_policy: PrefetchPolicy::default(),
            batches: 0,
            ended_commands: 0,
            slot: None,
            hot_key_sampler: HotKeySampler::default(),
            counts_keys: false,
            order: Vec::new(),
            script_lease_indices: Vec::new(),
            script_buffers: None,
            server,
        }
    }

    /// Starts a batch: sets its time and copies parameters that have changed.
    pub fn begin_batch(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.expiry_ms = if self.replays { 0 } else { now_ms };
        self.refresh_tunables();
        self.hot_key_sampler.follow(&self.server.stats.hot_keys, now_ms);
        self.counts_keys = self.tunables.slot_stats | self.hot_key_sampler.is_on();
        self.effects.log_writer.lazy_expire = self.tunables.lazy_expire;
        self.effects.log_writer.measures_units = self.tunables.slot_stats;
        self.clock = self.tunables.clock;
        self.clock.now_s = now_ms / 1000;
        self.ticks = self.timer.raw();
    }

    /// Copies parameters that have changed. A message that requests an action because of a change may arrive after the
    /// batch has begun: its handler calls this, too.
    #[inline]
    pub fn refresh_tunables(&mut self) {
        if self.tunables.refresh(&self.server) {
            self.adapt_memory_limit();
        }
    }

    /// Refreshes the state that does not change within a passage of the gate. Call it at the start of a passage.
    #[inline]
    pub fn begin_passage(&mut self) {
        debug_assert!(
            !self.effects.log_writer.has_pending_ops() && self.served.is_empty(),
            "a thread enters the gate when the effects of earlier commands are applied"
        );
        let acl_version = self.server.acl.version();
        debug_assert!(
            acl_version >= self.acl_version,
            "the version of the users does not go back"
        );
        self.acl_version = acl_version;
        self.replication_state = self.server.replication.state_bits();
        self.effects.keeps_expired = self.replication_state.expiry_is_remote();
        self.home_events = HomeEvents::current();
        self.has_killed_clients = self.server.clients.directory.has_killed_clients();
        self.commands_run_at_home = home_commands::are_required() && !self.is_in_round;
        self.refresh_cluster_view();
    }

    /// Gives what has been written so far its place in the log, because other threads are about to see it.
    pub fn begin_visible_part(&mut self) {
        if self.effects.log_writer.has_pending_ops() {
            self.effects.log_writer.commit();
        }
    }

    /// Records in the client, and for the watchdog, that a command is about to run.
    #[inline]
    pub(super) fn begin_command(&self, client: &mut Client, command: &Command<Binding>) {
        client.last_command = command.full_name;
        let activities = &self.server.stats.activities;
        activities.begin(self.thread_index, command.id, client.id);
    }

    /// Returns the time that TIME shows within the running transaction, since the Unix epoch.
    pub fn time_of_unit(&mut self) -> Duration {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        *self.unit_time.get_or_insert_with(now)
    }

    /// Returns the reading of the timer at this time before it was `ticks`.
    #[cold]
    pub fn ticks_before(&self, ticks: u64, time: Duration) -> u64 {
        const SAMPLE_TICKS: u64 = 1 << 20;
        let sample_ns = self.timer.delta_as_nanos(0, SAMPLE_TICKS).max(1);
        let passed_ticks = time.as_nanos() * u128::from(SAMPLE_TICKS) / u128::from(sample_ns);
        ticks.saturating_sub(u64::try_from(passed_ticks).unwrap_or(u64::MAX))
    }

    /// Records that a command of a stream has failed, for the log.
    #[cold]
    pub(super) fn note_failure(&mut self, command: &'static str) {
        if self.replays {
            self.failed_command.get_or_insert(command);
        }
    }

    /// Takes the time again if another thread has found an expired key at a later time than that of this batch. Call it
    /// once a command, a transaction or a script has its leases: within it the time does not change.
    #[inline]
    pub fn catch_up_with_seen_expiry(&mut self) {
        let seen_ms = self.server.keyspace.counts.seen_expiry.latest_ms();
        if seen_ms > self.expiry_ms && !self.replays {
            self.take_time_again();
        }
    }

    #[cold]
    fn take_time_again(&mut self) {
        // Not the recorded time: the system's clock may have been set back since.
        let now_ms = unix_ms();
        (self.now_ms, self.expiry_ms) = (self.now_ms.max(now_ms), self.expiry_ms.max(now_ms));
    }

    /// Returns `true` if the thread, in exclusive mode, can call modules without opening the gate. A file is loaded
    /// while other threads read nothing.
    pub fn can_call_modules(&self) -> bool {
        self.server.is_home(self.thread_index)
            || self.is_lent_to_home
            || self.is_for_locks
            || self.home_standby.is_some()
            || self.replays
    }

    /// Lets the home worker delete the expired keys that commands have found, if modules get the events of that there.
    #[cold]
    pub fn leave_expired_to_home(&mut self) {
        if HomeEvents::current().include_changes() && !self.effects.expired.is_empty() {
            let keys = std::mem::take(&mut self.effects.expired);
            self.server
                .run_at_home(Box::new(move |home| home.delete_found_expired(keys)));
        }
    }

    /// Takes over keys that became ready by changes without a command (expiry). They are served later, under separate
    /// leases.
    #[inline]
    pub fn collect_ready_keys(&mut self) {
        if !self.effects.ready.is_empty() {
            let ready = VecDeque::from(std::mem::take(&mut self.effects.ready));
            self.unserved.push(UnservedKeys::new(ready));
        }
    }

    /// Splits the thread into the parts that a command uses and the waiters that it has served.
    #[inline]
    pub(super) fn split_frame(&mut self) -> (ThreadFrame<'_>, &mut Vec<(Arc<Waiter>, ServeResult)>) {
        let frame = ThreadFrame {
            server: &self.server,
            clock: &self.clock,
            effects: &mut self.effects,
            now_ms: self.now_ms,
            expiry_ms: self.expiry_ms,
            thread_index: self.thread_index,
            may_leave: self.may_leave,
            may_block: self.may_block,
            min_shared_reply_bytes: self.tunables.min_shared_reply_bytes,
            home_standby: &mut self.home_standby,
        };
        (frame, &mut self.served)
    }

    /// Fetches the current cluster view at the start of a passage of the gate.
    #[inline]
    fn refresh_cluster_view(&mut self) {
        let Some(cluster) = &self.server.cluster else {
            return;
        };
        cluster.check_bus_progress();
        let version = cluster.version();
        if version != self.view_version {
            debug_assert!(version > self.view_version, "a cluster view is replaced by a later one");
            self.view = Some(cluster.view());
            self.view_version = version;
        }
    }

    /// Adapts to changed parameters, which may include the limit.
    #[cold]
    fn adapt_memory_limit(&mut self) {
        let room = &mut self.memory_limit;
        (room.is_full, room.is_evicting, room.look_at) = (false, false, i64::MIN);
        if self.tunables.max_memory == 0 {
            room.cell = None;
        } else if room.cell.is_none() {
            room.cell = self.server.memory.cell(self.thread_index);
        }
    }
}

/// The direction in which the slot of an admitted command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMigration {
    /// The slot is migrating away from this node, or from the primary of this replica.
    Out {
        /// The slot.
        slot: SlotIndex,
        /// `true` if the command may run on this node: it owns the slot, or the command does not write.
        runs_here: bool,
    },
    /// This node imports the slot, and the client was redirected here by ASK.
    In {
        /// `true` if the command has several different keys.
        many: bool,
    },
}

/// A thread's view of the memory limit.
#[derive(Default)]
pub struct MemoryLimit {
    /// The thread's count of memory taken; `None` while there is no limit.
    pub(super) cell: Option<ThreadBalance>,
    /// The bytes that evictions of a thread without a cell have added to the cell that such threads share.
    pub(super) shared_balance: i64,
    /// The thread's balance at which it checks again.
    pub(super) look_at: i64,
    /// The batch of the last check.
    pub(super) batch: u32,
    /// The time spent on eviction in that batch.
    pub(super) spent: Duration,
    pub(super) chooser: EvictionPool,
    /// Set while memory usage is above the limit and nothing can be evicted.
    pub is_full: bool,
    /// Set while memory usage is above the limit and eviction continues between batches.
    pub is_evicting: bool,
    /// The bytes of input buffers that were created in this turn. They belong to the worker, which keeps them
    /// afterwards, so no key is evicted for them.
    pub new_buffer_bytes: u64,
    /// The bytes that new messages have taken in the current period of [`MESSAGE_PERIOD_MS`], and in the one before.
    ///
    /// [`MESSAGE_PERIOD_MS`]: super::memory_limit::MESSAGE_PERIOD_MS
    pub(super) message_bytes: [i64; 2],
    /// The start of the current period, in milliseconds since the Unix epoch.
    pub(super) message_period_start_ms: u64,
}

/// The thread's part of the context of a command.
pub(super) struct ThreadFrame<'a> {
    /// The server.
    pub server: &'a Arc<Server>,
    clock: &'a AccessClock,
    effects: &'a mut Effects,
    now_ms: u64,
    expiry_ms: u64,
    thread_index: ThreadIndex,
    may_leave: bool,
    may_block: bool,
    min_shared_reply_bytes: usize,
    home_standby: &'a mut Option<HomeStandby>,
}

/// A command about to run, with its arguments and leases.
pub(super) struct LeasedCall<'a, 'p> {
    /// The command.
    pub command: &'static Command<Binding>,
    /// The arguments.
    pub args: Args<'a>,
    /// The keys.
    pub planned: &'a [PlannedKey],
    /// The leases that are held.
    pub held: HeldLeases<'a, 'p>,
    /// The passage of the gate.
    pub pass: Option<&'a GatePassage<'p>>,
}

impl<'a> ThreadFrame<'a> {
    /// Returns the settings with which keys are accessed on behalf of a client.
    #[inline]
    pub fn access_context(&self, client: &Client) -> AccessContext<'a> {
        AccessContext {
            now_ms: match self.is_import_source(client) {
                true => 0,
                false => self.expiry_ms,
            },
            clock: self.clock,
            counts: &self.server.keyspace.counts,
            thread_index: self.thread_index,
            should_touch: !client.flags.contains(ClientFlags::NO_TOUCH),
        }
    }

    /// Returns `true` if the client brings the data of another server, which decides when keys expire. On a replica
    /// the primary decides.
    #[inline]
    fn is_import_source(&self, client: &Client) -> bool {
        client.flags.contains(ClientFlags::IMPORT_SOURCE) && {
            let state = self.server.replication.state_bits();
            state.contains(ReplicationState::IMPORT_MODE) && !state.contains(ReplicationState::IS_REPLICA)
        }
    }

    /// Returns the record of effects, and the time of the command in milliseconds since the Unix epoch.
    #[inline]
    pub fn into_effects(self) -> (&'a mut Effects, u64) {
        (self.effects, self.now_ms)
    }

    /// Returns the access to the keys of a call.
    #[inline]
    pub fn keys<'p>(self, call: LeasedCall<'a, 'p>, client: &Client) -> Keys<'a, 'p> {
        self.keys_and_home(call, client).0
    }

    /// Returns the access to the keys of a call, and the home worker if it was summoned.
    #[inline]
    fn keys_and_home<'p>(
        self,
        call: LeasedCall<'a, 'p>,
        client: &Client,
    ) -> (Keys<'a, 'p>, &'a mut Option<HomeStandby>) {
        let keys = Keys {
            args: call.args,
            planned: call.planned,
            held: call.held,
            db: client.db,
            context: self.access_context(client),
            effects: self.effects,
            prefetch_policy: None,
        };
        (keys, self.home_standby)
    }

    /// Returns the context of a call by a client. It replies to `output`.
    #[inline]
    pub fn context<'p>(
        self,
        call: LeasedCall<'a, 'p>,
        client: &'a mut Client,
        output: &'a mut Output,
    ) -> Context<'a, 'p> {
        let (server, now_ms, may_block) = (self.server, self.now_ms, self.may_block);
        let min_shared_reply_bytes = self.min_shared_reply_bytes;
        let (args, command, pass) = (call.args, call.command, call.pass);
        let may_leave = self.may_leave && pass.is_some();
        let protocol = client.protocol;
        let (keys, home_standby) = self.keys_and_home(call, client);
        let (bytes, shared) = output.parts_mut(min_shared_reply_bytes);
        Context {
            args,
            keys,
            reply: Reply { out: bytes, protocol },
            shared,
            client,
            server,
            command,
            pass,
            now_ms,
            may_detach: may_leave,
            may_block,
            next_step: NextStep::Reply,
            further_leases: None,
            home_standby,
        }
    }
}

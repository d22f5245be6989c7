//! Cluster mode: the assignment of slots to nodes, and its effect on commands.
//!
//! ```text
//!   CLUSTER SETSLOT …             bus: a node's PING                     a command on a worker
//!   ─────────────────             ──────────────────                     ─────────────────────
//!   on a background thread        on the bus's thread                    view of this passage of the gate:
//!        └────────── lock ─────────────┘                                 owner of the slot of its keys?
//!                     │                                                     this node ─▶ run it
//!                   State ──▶ a new View ──▶ published in                   another   ─▶ MOVED
//!                     │        if anything     exclusive mode               migrating ─▶ under the leases:
//!                   nodes.conf  is different                                  are the keys here? run it, ASK, TRYAGAIN
//! ```
//!
//! 1. [`ClusterState`] is protected by one lock and uses neither sockets nor files nor keys. A thread that holds the
//!    lock waits for nothing else, neither for the gate nor for the disk. Workers take the lock only for CLUSTER NODES
//!    and similar commands.
//! 2. Commands use a [`ClusterView`], which is immutable and is published in exclusive mode. A worker reads the current
//!    view when it passes the gate, and it admits and runs a command within one passage. So no command runs with a view
//!    that has been replaced. A worker that has left the gate since its decision decides again.
//! 3. A slot in migration (MIGRATING, IMPORTING) has keys on both nodes. The decision depends on the keys, so it is
//!    made under their leases, right before the command runs.
//! 4. The cluster configuration file is written before a change is announced in a reply or in a message to other nodes.
//! 5. A primary accepts commands only as long as its bus makes progress. If the last complete turn of the bus began
//!    longer ago than the node timeout, for instance because the disk is slow, other nodes may have elected a replica,
//!    and the bus has not heard of it. Workers check this at each passage of the gate
//!    ([`Cluster::check_bus_progress`]), and again before they send the reply to a write ([`Cluster::fate_of_write`]).
#![forbid(unsafe_code)]

pub mod changes;
pub mod cron;
mod doubtful_writes;
mod election;
mod gossip;
pub mod links;
pub mod manual_failover;
pub mod message;
pub mod node;
pub mod nodes_conf;
pub mod nodes_text;
mod open_slots;
mod ownership;
mod ping;
mod receive;
pub mod refusal;
mod replicas;
pub mod settings;
mod slot_in_migration;
pub mod slot_set;
pub mod slot_tags;
pub mod slot_takeover;
pub mod state;
pub mod view;

pub use doubtful_writes::WriteFate;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use weft_base::clock::{monotonic_us, unix_ms};
use weft_base::slots::SLOTS;
use weft_base::{LogSequence, SlotIndex};

use doubtful_writes::DoubtfulWrites;
use nodes_conf::{NodesFile, NodesFileUnusable};
use settings::ClusterSettings;
use slot_set::SlotSet;
use state::ClusterState;
use view::ClusterView;
use weft_config::{Config, id};
use weft_os::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::{Mutex, MutexGuard};

/// The minimum interval between two log lines about a state that could not be stored, in seconds.
const UNSAVED_LOG_INTERVAL_S: u64 = 30;
/// The minimum time for which the bus may make no progress, in milliseconds. A turn may take 100 ms without any fault.
const MIN_BUS_SILENCE_MS: u64 = 500;

/// The cluster as seen by this process.
pub struct Cluster {
    state: Mutex<ClusterState>,
    file: NodesFile,
    /// Held while the file is written, so that an older text never replaces a newer one.
    file_write_lock: Mutex<()>,
    /// The time of the last log line about a state that could not be stored, in seconds since the Unix epoch.
    unsaved_logged_s: AtomicU64,
    views: Mutex<Views>,
    /// The version of the current view.
    version: AtomicU64,
    /// The version of the view that was published last in exclusive mode.
    settled_version: AtomicU64,
    /// The configuration generation that the state reflects.
    generation: AtomicU64,
    bus_waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Messages published on this node that have to be sent to the other nodes.
    published: Mutex<Vec<OutgoingPublication>>,
    /// Set while these messages are held back, because a thread is in exclusive mode.
    holds_published: AtomicBool,
    /// The number of other nodes, as the bus last saw it.
    peers: AtomicUsize,
    /// The monotonic time in microseconds until which commands are accepted even if the bus completes no turn;
    /// `u64::MAX` while they are accepted in any case, or have been refused for that reason already. Changed under the
    /// lock of the state.
    bus_deadline_us: AtomicU64,
    /// The writes that a replica may lack which has taken over.
    doubtful_writes: DoubtfulWrites,
}

/// The views of the cluster.
struct Views {
    /// The view by which commands are admitted.
    current: Arc<ClusterView>,
    /// The view that was published last in exclusive mode, if the current one is restricted.
    settled: Option<Arc<ClusterView>>,
    /// For each slot the number of times that this node has lost it: views in which it did not own the slot any more. A
    /// restricted view counts, and so does the one in exclusive mode that follows it.
    losses: Box<[u32]>,
}

impl Views {
    /// Counts the slots of this node in an older view that are not its own in the current one.
    fn count_losses(&mut self, before: &ClusterView) {
        for (slot, count) in SlotIndex::all().zip(&mut self.losses) {
            *count = count.wrapping_add(u32::from(before.is_mine(slot) && !self.current.is_mine(slot)));
        }
    }
}

/// What has to be published.
#[derive(Default)]
pub struct NextView {
    /// The view, if it differs from the current one.
    pub view: Option<ClusterView>,
    /// `true` if the primary that the view names requires a full synchronisation.
    pub needs_full_sync: bool,
    /// The slots whose keys have to be deleted first: they are left from before these slots left this node.
    pub to_empty: SlotSet,
    /// `true` if the fate of doubtful writes has changed, so that workers have to look at withheld replies.
    pub settles_writes: bool,
}

/// A message that was published on this node.
pub struct OutgoingPublication {
    /// `true` if the channel is a shard channel.
    pub is_sharded: bool,
    /// The channel.
    pub channel: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The turn to write the cluster configuration file. No other thread writes it meanwhile.
pub struct FileTurn<'c> {
    file: &'c NodesFile,
    _turn: MutexGuard<'c, ()>,
}

impl FileTurn<'_> {
    /// Writes the file, if it is out of date, while the state stays locked. So no other thread acts on a change before
    /// it is on disk.
    ///
    /// # Errors
    /// When writing fails. The reason has been logged.
    pub fn save(&self, state: &mut ClusterState) -> std::io::Result<()> {
        if !std::mem::take(&mut state.todo.save) {
            return Ok(());
        }
        let sync = std::mem::take(&mut state.todo.sync);
        let text = nodes_conf::nodes_file_text(state);
        // The file logs the reason.
        self.file.save(&text, sync).inspect_err(|_| {
            (state.todo.save, state.todo.sync) = (true, sync);
        })
    }
}

/// The locked cluster state.
pub type LockedState<'a> = MutexGuard<'a, ClusterState>;

impl Cluster {
    /// Loads the cluster configuration file, or creates a new node.
    ///
    /// # Errors
    /// When the file cannot be used. The reason has been logged.
    pub fn start(config: &Config) -> Result<Self, NodesFileUnusable> {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(
            config.text(id::CLUSTER_CONFIG_FILE).to_vec(),
        ));
        let file = NodesFile::lock(path)?;
        let (settings, now_ms) = (ClusterSettings::read(config, None), unix_ms());
        let state = match file.load(settings.clone(), now_ms)? {
            Some(state) => {
                log::info!("Node configuration loaded, I'm {}", state.myself);
                state
            }
            None => {
                let state = ClusterState::new(settings, now_ms);
                log::info!("No cluster configuration found, I'm {}", state.myself);
                state
            }
        };
        let peers = state.nodes.len().saturating_sub(1);
        let cluster = Cluster {
            views: Mutex::new(Views {
                current: Arc::new(ClusterView::from_state(&state)),
                settled: None,
                losses: vec![0; SLOTS].into(),
            }),
            state: Mutex::new(state),
            file,
            file_write_lock: Mutex::new(()),
            unsaved_logged_s: AtomicU64::new(0),
            version: AtomicU64::new(1),
            settled_version: AtomicU64::new(1),
            generation: AtomicU64::new(config.generation()),
            bus_waker: OnceLock::new(),
            published: Mutex::default(),
            holds_published: AtomicBool::new(false),
            peers: AtomicUsize::new(peers),
            bus_deadline_us: AtomicU64::new(u64::MAX),
            doubtful_writes: DoubtfulWrites::default(),
        };
        cluster.save(true).map_err(|_| NodesFileUnusable)?;
        Ok(cluster)
    }

    /// Locks the state after updating it with the current parameters.
    pub fn lock(&self, config: &Config) -> LockedState<'_> {
        let mut state = self.state.lock();
        let generation = config.generation();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            let settings = ClusterSettings::read(config, Some(&state.settings));
            state.configure(settings);
        }
        state
    }

    /// Returns the auxiliary field with the slots in migration for the dump of a replica: its name and its value.
    pub fn slots_in_migration_field(&self) -> Option<(&'static str, Vec<u8>)> {
        let text = self.state.lock().slots_in_migration_field()?;
        Some((open_slots::AUX_FIELD, text.into_bytes()))
    }

    /// Applies the auxiliary field with the slots in migration from the dump of this node's primary.
    pub fn apply_slots_in_migration(&self, note: &[u8]) {
        if !note.is_empty() {
            self.state.lock().apply_slots_in_migration(note);
            self.wake_bus();
        }
    }

    /// Returns the version of the current view.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the current view.
    pub fn view(&self) -> Arc<ClusterView> {
        self.views.lock().current.clone()
    }

    /// Returns the version of the view that was published last in exclusive mode.
    pub fn settled_version(&self) -> u64 {
        self.settled_version.load(Ordering::Acquire)
    }

    /// Returns the view that was published last in exclusive mode: no running command was admitted by an older one.
    pub fn settled_view(&self) -> Arc<ClusterView> {
        let views = self.views.lock();
        views.settled.as_ref().unwrap_or(&views.current).clone()
    }

    /// Returns the number of times that this node has lost a slot since it started; the number wraps around. If two
    /// passages of the gate see the same number, the slot has not left this node in between, not even for a while.
    pub fn times_lost(&self, slot: SlotIndex) -> u32 {
        self.views.lock().losses.get(slot.index()).copied().unwrap_or(0)
    }

    /// Restricts the current view to what this node still may do according to the state, outside of exclusive mode.
    /// Commands that were admitted before may still run.
    pub fn restrict_view(&self, state: &ClusterState) {
        let mut views = self.views.lock();
        let settled = views.settled.as_ref().unwrap_or(&views.current).clone();
        if state.me().is_replica() && !settled.is_replica {
            // What has been written since the other node took over is lost. The next view in exclusive mode decides.
            self.doubtful_writes.begin();
        }
        let restricted = settled.restricted_by(state).map(Arc::new);
        let is_restricted = restricted.is_some();
        let view = restricted.unwrap_or_else(|| settled.clone());
        if view != views.current {
            let before = std::mem::replace(&mut views.current, view);
            views.count_losses(&before);
            views.settled = is_restricted.then_some(settled);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Refuses commands if the bus makes no progress. Called by a thread at the start of a passage of the gate.
    #[inline]
    pub fn check_bus_progress(&self) {
        // With another deadline than the one that has passed, a thread sees that writes are doubtful.
        let deadline_us = self.bus_deadline_us.load(Ordering::Acquire);
        if deadline_us != u64::MAX && monotonic_us() > deadline_us {
            self.suspend_if_bus_is_late(&mut self.state.lock());
        }
    }

    /// Returns what is known about a write whose reply is to be sent now.
    #[inline]
    pub fn fate_of_write(&self, write: LogSequence) -> WriteFate {
        self.check_bus_progress();
        self.doubtful_writes.fate_of(write)
    }

    /// Records that the bus has completed a turn that began at this monotonic time: it has answered what had arrived by
    /// then. If that took too long, a failover may have happened that the bus has not heard of yet, so commands are
    /// accepted only after a delay.
    pub fn record_bus_turn(&self, began_us: u64) {
        let mut state = self.state.lock();
        self.suspend_if_bus_is_late(&mut state);
        if state.is_suspended() {
            state.end_suspension(unix_ms());
        }
        self.set_bus_deadline(&state, began_us);
    }

    /// Sets the time until which commands are accepted if the bus completes no turn that begins after this monotonic
    /// time.
    fn set_bus_deadline(&self, state: &ClusterState, began_us: u64) {
        let can_be_replaced = state.me().has_vote() && state.nodes.len() > 1;
        let silence_ms = state.settings.node_timeout_ms.max(MIN_BUS_SILENCE_MS);
        let deadline_us = match can_be_replaced {
            true => began_us.saturating_add(silence_ms.saturating_mul(1000)),
            false => u64::MAX,
        };
        self.bus_deadline_us.store(deadline_us, Ordering::Release);
    }

    #[cold]
    fn suspend_if_bus_is_late(&self, state: &mut ClusterState) {
        // Another thread may have done so, or the bus may have completed a turn since the caller looked.
        if monotonic_us() > self.bus_deadline_us.load(Ordering::Relaxed) {
            self.doubtful_writes.begin();
            state.suspend(unix_ms());
            self.restrict_view(state);
            self.bus_deadline_us.store(u64::MAX, Ordering::Release);
        }
    }

    /// Returns what has to be published. `last_sequence` is the last write in the propagation log. The caller must hold
    /// exclusive mode.
    pub fn next_view(&self, last_sequence: LogSequence) -> NextView {
        let mut state = self.state.lock();
        // The state may show a failover that this node has heard of too late.
        self.suspend_if_bus_is_late(&mut state);
        let settled = self.settled_view();
        let settles_writes = self.settle_writes(&state, &settled, last_sequence);
        if state.is_up && self.bus_deadline_us.load(Ordering::Relaxed) == u64::MAX {
            // A command may have made this node a voter, and the bus may make no progress.
            self.set_bus_deadline(&state, monotonic_us());
        }
        if !std::mem::take(&mut state.todo.publish) {
            return NextView {
                settles_writes,
                ..NextView::default()
            };
        }
        let to_empty = state.take_reopened(&settled);
        let (view, needs_full_sync) = (
            ClusterView::from_state(&state),
            std::mem::take(&mut state.needs_full_sync),
        );
        drop(state);
        let views = self.views.lock();
        let is_changed = views.settled.is_some() || view != *views.current;
        NextView {
            view: is_changed.then_some(view),
            needs_full_sync,
            to_empty,
            settles_writes,
        }
    }

    /// Decides about doubtful writes. Returns `true` if the fate of one may have changed.
    fn settle_writes(&self, state: &ClusterState, settled: &ClusterView, last_sequence: LogSequence) -> bool {
        if !self.doubtful_writes.has_any() {
            return false;
        }
        let is_lost = |slot: SlotIndex| settled.is_mine(slot) && state.owner(slot) != Some(state.myself);
        let is_replaced = state.me().is_replica() || SlotIndex::all().any(is_lost);
        if is_replaced {
            log::warn!("Another node has taken over while the cluster bus made no progress. Writes get no reply.");
        }
        let is_certain = state.is_up || !state.awaits_news();
        self.doubtful_writes.settle(last_sequence, is_replaced, is_certain)
    }

    /// Publishes a view and returns the one that was published before in this way. The caller must hold exclusive mode.
    pub fn publish_view(&self, view: ClusterView) -> Arc<ClusterView> {
        let mut views = self.views.lock();
        let current = std::mem::replace(&mut views.current, Arc::new(view));
        let version = self.version.fetch_add(1, Ordering::Release) + 1;
        self.settled_version.store(version, Ordering::Release);
        let before = views.settled.take().unwrap_or(current);
        views.count_losses(&before);
        before
    }

    /// Writes the file if it is out of date; with `always`, in any case.
    ///
    /// # Errors
    /// When writing fails. The reason has been logged.
    pub fn save(&self, always: bool) -> std::io::Result<()> {
        let _writing = self.file_write_lock.lock();
        let (text, sync) = {
            let mut state = self.state.lock();
            if !state.todo.save && !always {
                return Ok(());
            }
            state.todo.save = false;
            let sync = std::mem::take(&mut state.todo.sync);
            (nodes_conf::nodes_file_text(&state), sync || always)
        };
        self.file.save(&text, sync).inspect_err(|_| {
            // The file logs the reason.
            let todo = &mut self.state.lock().todo;
            (todo.save, todo.sync) = (true, todo.sync || sync);
        })
    }

    /// Takes the turn to write the file. It is taken before the state is locked.
    pub fn lock_file(&self) -> FileTurn<'_> {
        FileTurn {
            file: &self.file,
            _turn: self.file_write_lock.lock(),
        }
    }

    /// Logs that this node continues with a state that it could not store, at most once in a while.
    pub fn log_unsaved_state(&self) {
        let now_s = unix_ms() / 1000;
        let last_s = self.unsaved_logged_s.load(Ordering::Relaxed);
        if now_s.saturating_sub(last_s) > UNSAVED_LOG_INTERVAL_S {
            self.unsaved_logged_s.store(now_s, Ordering::Relaxed);
            log::warn!("Cluster config updated even though writing the cluster config file to disk failed.");
        }
    }

    /// Records the number of other nodes. Called by the bus.
    pub fn set_peer_count(&self, peers: usize) {
        self.peers.store(peers, Ordering::Relaxed);
    }

    /// Returns the number of connections of the bus as `maxclients` counts them: two for each other node, one in each
    /// direction, whether they are established or not.
    pub fn connection_count(&self) -> usize {
        self.peers.load(Ordering::Relaxed).saturating_mul(2)
    }

    /// Queues a published message for the other nodes.
    pub fn queue_published(&self, is_sharded: bool, channel: &[u8], payload: &[u8]) {
        if self.peers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut published = self.published.lock();
        let first = published.is_empty();
        published.push(OutgoingPublication {
            is_sharded,
            channel: channel.to_vec(),
            payload: payload.to_vec(),
        });
        drop(published);
        if first {
            self.wake_bus();
        }
    }

    /// Returns the messages published since the last call.
    pub fn take_published(&self) -> Vec<OutgoingPublication> {
        let mut published = self.published.lock();
        match self.holds_published.load(Ordering::Relaxed) {
            true => Vec::new(),
            false => std::mem::take(&mut *published),
        }
    }

    /// Holds published messages back or releases them. The messages of a transaction are sent when it is over.
    pub fn hold_published(&self, keeps_back: bool) {
        let published = self.published.lock();
        self.holds_published.store(keeps_back, Ordering::Relaxed);
        if !keeps_back && !published.is_empty() {
            drop(published);
            self.wake_bus();
        }
    }

    /// Returns the memory of links and of the messages that wait to be sent over them, in bytes.
    pub fn link_bytes(&self) -> usize {
        let bytes_of = |message: &OutgoingPublication| {
            size_of::<OutgoingPublication>() + message.channel.len() + message.payload.len()
        };
        let published: usize = self.published.lock().iter().map(bytes_of).sum();
        let state = self.state.lock();
        let links = state.links.values();
        let linked: usize = links.map(|link| size_of::<state::LinkInfo>() + link.queued_bytes).sum();
        published + linked
    }

    /// Sets the function that wakes the bus. Only the first call has an effect.
    pub fn set_bus_waker(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.bus_waker.set(Box::new(wake));
    }

    /// Wakes the bus to process new work.
    pub fn wake_bus(&self) {
        if let Some(wake) = self.bus_waker.get() {
            wake();
        }
    }
}

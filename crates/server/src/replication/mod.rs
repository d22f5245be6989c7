//! Replication state: the primary that this server follows, the replication offset of its data, and the replication IDs
//! of the data's history.
//!
//! ```text
//!             REPLICAOF host port, `replicaof`
//!   primary ──────────────────────────────────▶ Connect ─▶ Connecting ─▶ Handshake ─┬▶ Transfer ─▶ Connected
//!      ▲                                            ▲                               └───────────────▲ │
//!      └──────────── REPLICAOF NO ONE ──────────────┴──────────────── the link breaks ────────────────┘
//! ```
//!
//! Access rules:
//!
//! 1. A change of role (which primary to follow, or none) is made in exclusive mode, so that no command runs partly
//!    under the old role. Each change begins a new *role epoch*. The thread of the primary link acts for one epoch and
//!    drops its work when that epoch is over.
//! 2. The *replication state bits* ([`ReplicationState`]) are all that a command reads, once per passage of the gate.
//!    They are zero for a primary that has its data, so its commands take a single branch.
//! 3. Only the thread of the primary link advances the offset while this server follows a primary.
//! 4. A history is identified by a replication ID and an offset. A server that stops following keeps the old ID as its
//!    second ID, valid up to the offset it had reached, so that the other replicas of the same primary can continue
//!    with it.
//! 5. The backlog is that of the history. A thread that replaces both, or reads both, locks the state and then the
//!    backlog, so that no offset of one history is looked up in the backlog of another one.

pub mod backlog;
mod psync;
mod replicas;

pub use psync::ResumePosition;
pub use replicas::{
    ReplicaChannel, ReplicaInfo, ReplicaSyncState, ReplicaWait, Replicas, RequiredAcks, WAITAOF_DISABLED_REPLY,
};

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::observability::log;
use weft_base::clock::unix_ms;
use weft_base::{ReplicationOffset, RoleEpoch};
use weft_config::{Config, id};
use weft_modules::module::server_events::{self, EventKind, ServerEvent};
use weft_os::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use weft_os::descriptor;
use weft_os::sync::{Condvar, Mutex, MutexGuard};

/// The interval at which sleeping links are checked ([`Replication::sleep_if_requested`]).
const SLEEP_CHECK_INTERVAL: Duration = Duration::from_millis(10);

bitflags::bitflags! {
    /// The replication state bits: the server's role and the state of its data, as commands have to observe them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReplicationState: u32 {
        /// The server follows a primary.
        const IS_REPLICA = 1;
        /// The server has no link to its primary, so its data may be stale.
        const LINK_DOWN = 1 << 1;
        /// The server has no data yet: it is loading a dump.
        const LOADING = 1 << 2;
        /// The server serves its old data while it loads a dump into staging.
        const LOADING_IN_STAGING = 1 << 3;
        /// Too few replicas are up to date (`min-replicas-to-write`).
        const TOO_FEW_REPLICAS = 1 << 4;
        /// A script has run longer than `busy-reply-threshold`.
        const SCRIPT_BUSY = 1 << 5;
        /// As a cluster node, the server is about to follow another node and waits only for a script to end.
        const ROLE_CHANGE_PENDING = 1 << 6;
        /// The server imports the data of another server, which decides when keys expire (`import-mode`).
        const IMPORT_MODE = 1 << 7;
        /// A module runs for long, and gives way to clients, which get errors.
        const MODULE_BUSY = 1 << 8;
    }
}

impl ReplicationState {
    /// Returns `true` if another server deletes expired keys: the primary, or the server that data is imported from.
    #[inline]
    pub const fn expiry_is_remote(self) -> bool {
        self.intersects(ReplicationState::IS_REPLICA.union(ReplicationState::IMPORT_MODE))
    }
}

/// The state of the link to the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no primary.
    #[default]
    None,
    /// The link has to be established.
    Connect,
    /// The link is being established.
    Connecting,
    /// The replication handshake is under way.
    Handshake,
    /// The primary sends its dump.
    Transfer,
    /// The primary sends the replication stream.
    Connected,
}

impl LinkState {
    /// Returns the word that ROLE reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            LinkState::None => "none",
            LinkState::Connect => "connect",
            LinkState::Connecting => "connecting",
            LinkState::Handshake => "handshake",
            LinkState::Transfer => "sync",
            LinkState::Connected => "connected",
        }
    }
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host name or IP address.
    pub host: Arc<str>,
    /// The TCP port.
    pub port: u16,
}

/// A replication ID: 40 hexadecimal digits.
pub type ReplicationId = String;

/// The length of a replication ID.
pub const REPLICATION_ID_DIGITS: usize = 40;

/// Returns the placeholder of a missing second replication ID: 40 zeros.
pub fn zero_replication_id() -> ReplicationId {
    "0".repeat(REPLICATION_ID_DIGITS)
}

/// Returns a new random replication ID.
pub fn new_replication_id() -> ReplicationId {
    std::iter::repeat_with(|| format!("{:x}", fastrand::u8(..16)))
        .take(REPLICATION_ID_DIGITS)
        .collect()
}

/// The replication IDs of the data's history.
#[derive(Clone, Debug)]
pub struct ReplicationHistory {
    /// The current replication ID.
    pub id: ReplicationId,
    /// The replication ID that the history had before this server stopped following.
    pub second_id: ReplicationId,
    /// The last offset at which the second ID is valid; `None` if there is no second ID.
    pub second_end: Option<ReplicationOffset>,
}

impl ReplicationHistory {
    /// Returns the number of the first byte of the stream for which the second ID is no longer valid, as INFO reports
    /// it; -1 if there is no second ID.
    pub fn second_offset(&self) -> i64 {
        self.second_end.map_or(-1, ReplicationOffset::next_byte)
    }
}

impl Default for ReplicationHistory {
    fn default() -> Self {
        ReplicationHistory {
            id: new_replication_id(),
            second_id: zero_replication_id(),
            second_end: None,
        }
    }
}

/// The progress of receiving a dump from the primary.
#[derive(Clone, Copy, Debug)]
pub struct TransferProgress {
    /// The size of the dump in bytes; 0 if the primary does not know it, -1 if the primary has not announced it yet.
    pub total_bytes: i64,
    /// The number of bytes received.
    pub read_bytes: u64,
    /// The time of the last received data, in seconds since the Unix epoch.
    pub last_io_s: u64,
}

impl Default for TransferProgress {
    fn default() -> TransferProgress {
        TransferProgress {
            total_bytes: -1,
            read_bytes: 0,
            last_io_s: 0,
        }
    }
}

/// The replication state that changes rarely and that INFO and ROLE report.
#[derive(Default)]
pub struct RoleState {
    /// The primary that this server follows.
    pub primary: Option<Endpoint>,
    /// The state of the link.
    pub phase: LinkState,
    /// The replication IDs of the data.
    pub history: ReplicationHistory,
    /// Set while the data corresponds to an offset that a primary announced, so that the link may resume from there.
    pub resumable: bool,
    /// The time since which there has been no link, in seconds since the Unix epoch; `None` if there never was one.
    pub down_since_s: Option<u64>,
    /// The dump transfer under way.
    pub transfer: TransferProgress,
    /// `true` if modules know that the link goes down.
    is_link_down_announced: bool,
    /// The sockets of the link, kept so that another thread can shut them down.
    sockets: Vec<TcpStream>,
    /// The last link that a change of the role has left to its thread.
    link_left_open: Option<LinkLeftOpen>,
}

/// A link that was up when its role epoch ended, and that its thread ends later.
#[derive(Clone, Copy)]
struct LinkLeftOpen {
    /// The role epoch of the link.
    role_epoch: RoleEpoch,
    /// `true` if a partial synchronization might continue from the data of then.
    is_cached: bool,
}

impl RoleState {
    /// Lets modules know that the link, if it was up, goes down.
    pub fn announce_link_down(&mut self) {
        if self.phase == LinkState::Connected && !std::mem::replace(&mut self.is_link_down_announced, true) {
            server_events::send(EventKind::PrimaryLinkChange, || ServerEvent::PrimaryLinkChanged {
                is_up: false,
            });
        }
    }

    /// Lets modules know that the link is up.
    pub fn announce_link_up(&mut self) {
        self.is_link_down_announced = false;
        server_events::send(EventKind::PrimaryLinkChange, || ServerEvent::PrimaryLinkChanged {
            is_up: true,
        });
    }

    fn end_links(&self) {
        for socket in &self.sockets {
            // If the socket is closed already, its reader has seen that.
            let _ = socket.shutdown(Shutdown::Both);
        }
        descriptor::activity();
    }
}

/// The state of a coordinated failover to a replica (`FAILOVER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoordinatedFailoverState {
    /// No failover is under way.
    #[default]
    None,
    /// The server waits for a replica to acknowledge all writes.
    WaitForSync,
    /// This server follows the replica and asks it to take over.
    InProgress,
}

impl CoordinatedFailoverState {
    /// Returns the word that INFO reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            CoordinatedFailoverState::None => "no-failover",
            CoordinatedFailoverState::WaitForSync => "waiting-for-sync",
            CoordinatedFailoverState::InProgress => "failover-in-progress",
        }
    }
}

/// A coordinated failover to a replica (`FAILOVER`).
#[derive(Clone, Debug, Default)]
pub struct CoordinatedFailover {
    /// Its state.
    pub state: CoordinatedFailoverState,
    /// The replica to fail over to; `None` for any replica.
    pub target: Option<Endpoint>,
    /// The deadline for the replica to acknowledge all writes, in milliseconds since the Unix epoch.
    pub until_ms: Option<u64>,
    /// `true` if the replica takes over even if it misses the deadline.
    pub is_forced: bool,
}

/// The progress of a load under way, as INFO reports it.
#[derive(Default)]
pub struct LoadProgress {
    /// The time at which the load began, in seconds since the Unix epoch.
    pub started_s: AtomicU64,
    /// The total number of bytes to load; 0 if unknown.
    pub total_bytes: AtomicU64,
    /// The number of bytes loaded.
    pub loaded_bytes: AtomicU64,
    /// The used memory recorded by the server that wrote the dump, in bytes; 0 if the dump does not record it.
    pub used_memory_bytes: AtomicU64,
}

/// The replication part of a server's state.
#[derive(Default)]
pub struct Replication {
    state_bits: AtomicU32,
    role_epoch: AtomicU64,
    /// The number of times this server has begun to follow a primary.
    demotions: AtomicU64,
    state: Mutex<RoleState>,
    changed: Condvar,
    /// The replication offset of the data.
    offset: AtomicI64,
    /// The replication offset up to which the stream has been received.
    received_offset: AtomicI64,
    /// On a replica, the database that the stream has selected at the replication offset of the data.
    pub stream_db: AtomicUsize,
    /// The time of the last data from the primary, in seconds since the Unix epoch.
    pub last_heard_s: AtomicU64,
    /// Set when the primary requests an acknowledgement of the offset (`REPLCONF GETACK`).
    pub ack_requested: AtomicBool,
    /// Set while the data is none that the primary ever had: the dump is still to come or is being received.
    pub awaits_full_sync: AtomicBool,
    /// Set on a replica from the moment at which a full synchronization drops the old data until the new data is
    /// installed, also while no link is up. Changed in exclusive mode.
    pub is_data_given_up: AtomicBool,
    /// Set while only writes may be added to the stream, because a thread waits for the stream to end.
    pub suppresses_pings: AtomicBool,
    /// The number of bytes received over the link.
    pub input_bytes: AtomicU64,
    /// The number of error replies to commands of the primary.
    pub unexpected_errors: AtomicU64,
    /// The load under way.
    pub loading: LoadProgress,
    /// The number of bytes that were received over the link while the dump arrives over another connection, and that
    /// have not been executed.
    pub buffered_stream_bytes: AtomicU64,
    /// The peak of `held_bytes`, in bytes.
    pub buffered_stream_peak_bytes: AtomicU64,
    /// The replicas of this server.
    pub replicas: Replicas,
    /// `true` if the propagation log fills the backlog from its current position on. Changed in exclusive mode.
    is_backlog_attached: AtomicBool,
    /// The number of positions in the log from which on it fills the backlog and that it has not left again, and of
    /// extensions of them.
    backlog_attachments: AtomicU32,
    /// Set while this server is failing over to a replica.
    pub is_failing_over: AtomicBool,
    /// Set while this server shuts down, so that its history ends with its last write.
    pub is_shutting_down: AtomicBool,
    failover: Mutex<CoordinatedFailover>,
    /// Set if the process stops itself at the points where Valkey does after a fork, for tests.
    pub pauses_after_fork: AtomicBool,
    /// The time until which links sleep, for tests, in milliseconds since the Unix epoch.
    pub links_sleep_until_ms: AtomicU64,
    /// Set if the next change of the role leaves the link to the primary to its thread, for tests.
    pub leaves_link_open: AtomicBool,
}

impl Replication {
    /// Returns the replication state bits.
    #[inline]
    pub fn state_bits(&self) -> ReplicationState {
        ReplicationState::from_bits_retain(self.state_bits.load(Ordering::Acquire))
    }

    /// Sets or clears replication state bits.
    pub fn set_state_bits(&self, what: ReplicationState, on: bool) {
        if on {
            self.state_bits.fetch_or(what.bits(), Ordering::AcqRel);
        } else {
            self.state_bits.fetch_and(!what.bits(), Ordering::AcqRel);
        }
    }

    /// Updates [`ReplicationState::TOO_FEW_REPLICAS`] according to the number of replicas that are up to date
    /// (`min-replicas-to-write`).
    pub fn update_too_few_replicas(&self, config: &Config) {
        let wanted = config.integer(id::MIN_REPLICAS_TO_WRITE);
        let most_lag_s = config.unsigned(id::MIN_REPLICAS_MAX_LAG);
        let now_s = weft_base::clock::unix_ms() / 1000;
        let lacks = wanted > 0 && most_lag_s > 0 && self.replicas.up_to_date_count(now_s, most_lag_s) < wanted;
        self.set_state_bits(ReplicationState::TOO_FEW_REPLICAS, lacks);
    }

    /// Returns `true` if this server follows a primary.
    pub fn is_replica(&self) -> bool {
        self.state_bits().contains(ReplicationState::IS_REPLICA)
    }

    /// Returns `true` if data is being loaded, either in place of the existing data or into staging.
    pub fn is_loading(&self) -> bool {
        let replication_state = self.state_bits();
        replication_state.contains(ReplicationState::LOADING)
            || replication_state.contains(ReplicationState::LOADING_IN_STAGING)
    }

    /// Returns the current role epoch: the number of the last change of role.
    #[inline]
    pub fn role_epoch(&self) -> RoleEpoch {
        RoleEpoch::new(self.role_epoch.load(Ordering::Acquire))
    }

    /// Returns the number of times this server has begun to follow a primary for good, as a primary or as a replica of
    /// another one. A coordinated failover counts when the replica has taken over. Changes in exclusive mode.
    pub fn demotions(&self) -> u64 {
        self.demotions.load(Ordering::Acquire)
    }

    /// Counts a demotion. The waits of the clients that are blocked now end. The caller must hold exclusive mode.
    pub fn record_demotion(&self) {
        self.demotions.fetch_add(1, Ordering::AcqRel);
    }

    /// Locks the state that changes rarely. The lock must be held only briefly.
    pub fn state(&self) -> MutexGuard<'_, RoleState> {
        self.state.lock()
    }

    /// Returns the replication offset of the data.
    pub fn offset(&self) -> ReplicationOffset {
        ReplicationOffset::new(self.offset.load(Ordering::Acquire))
    }

    /// Sets the replication offset of the data. Called by the thread of the link or in exclusive mode.
    pub fn set_offset(&self, offset: ReplicationOffset) {
        self.offset.store(offset.get(), Ordering::Release);
    }

    /// Returns the replication offset up to which the stream has been received.
    pub fn received_offset(&self) -> ReplicationOffset {
        ReplicationOffset::new(self.received_offset.load(Ordering::Relaxed))
    }

    /// Sets the replication offset up to which the stream has been received.
    pub fn set_received_offset(&self, offset: ReplicationOffset) {
        self.received_offset.store(offset.get(), Ordering::Relaxed);
    }

    /// Returns the text of the error that redirects a client to the primary; `None` on a primary.
    pub fn redirection(&self) -> Option<String> {
        let state = self.state();
        let primary = state.primary.as_ref()?;
        Some(format!("REDIRECT {}:{}", primary.host, primary.port))
    }

    /// Returns the time since the primary was last heard, in milliseconds; `u64::MAX` if it never was.
    pub fn silence_ms(&self, now_ms: u64) -> u64 {
        let state = self.state();
        let heard_s = match state.phase {
            LinkState::Connected => Some(self.last_heard_s.load(Ordering::Relaxed)),
            _ => state.down_since_s,
        };
        heard_s.map_or(u64::MAX, |heard_s| now_ms.saturating_sub(heard_s.saturating_mul(1000)))
    }

    /// Starts to follow a primary. `is_new_history` is `true` if the primary cannot know the history of the data on
    /// this server. Called in exclusive mode, or before there are any clients.
    pub fn start_following(&self, primary: Endpoint, is_new_history: bool) {
        let mut state = self.state();
        self.assert_role(&state);
        if is_new_history {
            state.resumable = false;
            self.awaits_full_sync.store(true, Ordering::Release);
        } else if state.primary.is_none() {
            // Writes made without a backlog belong to no history that a primary could know.
            state.resumable = self.replicas.backlog().range().is_some();
            if state.resumable {
                log::notice!(
                    "Before turning into a replica, using my own primary parameters to synthesize a cached primary: I may \
                     be able to synchronize with the new primary with just a partial transfer."
                );
            }
        }
        if state.phase == LinkState::Connected {
            // The data is as recent as the link to the primary before.
            state.down_since_s = Some(unix_ms() / 1000);
        }
        log::notice!("Connecting to PRIMARY {}:{}", primary.host, primary.port);
        state.primary = Some(primary);
        state.phase = LinkState::Connect;
        state.transfer = TransferProgress::default();
        self.set_state_bits(ReplicationState::IS_REPLICA, true);
        self.set_state_bits(ReplicationState::LINK_DOWN, true);
        self.begin_role_epoch(state);
    }

    /// Becomes a primary (`REPLICAOF NO ONE`). The caller must hold exclusive mode. Returns the current and the second
    /// replication ID, or `None` if this server followed no primary.
    pub fn stop_following(&self) -> Option<ReplicationHistory> {
        let mut state = self.state();
        self.assert_role(&state);
        state.primary.take()?;
        state.phase = LinkState::None;
        state.resumable = false;
        self.awaits_full_sync.store(false, Ordering::Release);
        state.down_since_s = None;
        let old_id = std::mem::replace(&mut state.history.id, new_replication_id());
        assert_ne!(old_id, state.history.id, "a new history has another replication ID");
        state.history.second_id = old_id;
        state.history.second_end = Some(self.offset());
        let history = state.history.clone();
        self.set_state_bits(ReplicationState::IS_REPLICA, false);
        self.set_state_bits(ReplicationState::LINK_DOWN, false);
        self.begin_role_epoch(state);
        Some(history)
    }

    /// Checks that the state bits, which commands read, agree with the state behind the lock.
    fn assert_role(&self, state: &RoleState) {
        assert_eq!(
            self.is_replica(),
            state.primary.is_some(),
            "a replica is a server that follows a primary"
        );
        assert_eq!(
            state.primary.is_none(),
            state.phase == LinkState::None,
            "there is a link if and only if there is a primary"
        );
    }

    fn begin_role_epoch(&self, mut state: MutexGuard<'_, RoleState>) {
        self.assert_role(&state);
        let epoch = self.role_epoch();
        if state.link_left_open.is_none_or(|left| left.role_epoch != epoch) {
            state.end_links();
        }
        state.sockets.clear();
        let ended = self.role_epoch.fetch_add(1, Ordering::AcqRel);
        assert!(ended < u64::MAX, "role epochs ascend");
        drop(state);
        self.changed.notify_all();
    }

    /// Leaves the link, if it is up, to its thread, which notices by itself that the role epoch is over. Returns
    /// `false` unless DEBUG FORCE-FREE-PRIMARY-ASYNC has requested this. Called right before the role epoch ends, in
    /// exclusive mode.
    fn leave_link_open(&self, is_cached: bool) -> bool {
        let mut state = self.state();
        let is_up = state.phase == LinkState::Connected;
        if !is_up || !self.leaves_link_open.swap(false, Ordering::Relaxed) {
            return false;
        }
        state.link_left_open = Some(LinkLeftOpen {
            role_epoch: self.role_epoch(),
            is_cached,
        });
        true
    }

    /// Ends a link that was up. Returns `None` if a change of the role has logged its end, and otherwise `true` if a
    /// partial synchronization may continue from the data.
    fn end_established_link(&self, role_epoch: RoleEpoch) -> Option<bool> {
        let mut state = self.state();
        let left = state.link_left_open.take_if(|left| left.role_epoch == role_epoch);
        if let Some(left) = left {
            return Some(left.is_cached);
        }
        let is_current = self.role_epoch() == role_epoch;
        is_current.then(|| {
            self.leaves_link_open.store(false, Ordering::Relaxed);
            true
        })
    }

    /// Waits until there is a primary to follow. Returns its address and the role epoch.
    pub fn wait_for_primary(&self) -> (Endpoint, RoleEpoch) {
        let mut state = self.state();
        loop {
            if let Some(primary) = &state.primary {
                return (primary.clone(), self.role_epoch());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Sleeps for `duration`, or until the role epoch `term` is over.
    pub fn sleep_in_role_epoch(&self, role_epoch: RoleEpoch, duration: Duration) {
        let mut state = self.state();
        let is_current = |_: &mut RoleState| self.role_epoch() == role_epoch;
        self.changed.wait_while_for(&mut state, is_current, duration);
    }

    /// Changes the state on behalf of the role epoch `term`. Returns `None` if that epoch is over.
    pub fn in_role_epoch<R>(&self, role_epoch: RoleEpoch, change: impl FnOnce(&mut RoleState) -> R) -> Option<R> {
        let mut state = self.state();
        let epoch = self.role_epoch();
        assert!(
            role_epoch <= epoch,
            "work belongs to role epoch {role_epoch}, and the current one is {epoch}"
        );
        (epoch == role_epoch).then(|| {
            let result = change(&mut state);
            self.assert_role(&state);
            result
        })
    }

    /// Keeps a socket of the link, so that another thread can shut it down. Returns `false` if the role epoch is over.
    pub fn register_socket(&self, role_epoch: RoleEpoch, socket: TcpStream) -> bool {
        self.in_role_epoch(role_epoch, |state| state.sockets.push(socket))
            .is_some()
    }

    /// Shuts down the separate connection of the dump, because the dump is complete or no longer needed.
    pub fn drop_dump_socket(&self, role_epoch: RoleEpoch) {
        // In a newer role epoch the sockets are not those of this link.
        let _ = self.in_role_epoch(role_epoch, |state| {
            assert!(state.sockets.len() <= 2, "a link has at most two connections");
            for socket in state.sockets.split_off(state.sockets.len().min(1)) {
                // If the socket is closed already, no reader waits for it.
                let _ = socket.shutdown(Shutdown::Both);
            }
            descriptor::activity();
        });
    }

    /// Drops the sockets of the link after the link has ended.
    pub fn drop_sockets(&self, role_epoch: RoleEpoch) {
        // As above.
        let _ = self.in_role_epoch(role_epoch, |state| state.sockets.clear());
    }

    /// Shuts down the link. It is established again.
    pub fn shut_link_down(&self) {
        let mut state = self.state();
        if state.phase == LinkState::Connected {
            // The thread of the link finds out later.
            state.announce_link_down();
            state.phase = LinkState::Connect;
            state.down_since_s.get_or_insert(unix_ms() / 1000);
            self.set_state_bits(ReplicationState::LINK_DOWN, true);
        }
        state.end_links();
    }

    /// Locks the state of the coordinated failover. The lock must be held only briefly.
    pub fn failover(&self) -> MutexGuard<'_, CoordinatedFailover> {
        self.failover.lock()
    }

    /// Returns `true` if the propagation log fills the backlog, or has not passed the position from which on it no
    /// longer does, or a position of the data that was taken before that. Returns `false` while another server's stream
    /// fills it.
    #[inline]
    pub fn log_feeds_backlog(&self) -> bool {
        self.backlog_attachments.load(Ordering::SeqCst) > 0
    }

    /// Records that the log fills the backlog from its current position on. Called in exclusive mode.
    fn attach_backlog(&self) {
        let was_attached = self.is_backlog_attached.swap(true, Ordering::SeqCst);
        assert!(!was_attached, "the propagation log fills the backlog once");
        self.backlog_attachments.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that the log no longer fills the backlog from its current position on. Returns `false` if it did not
    /// fill it. Otherwise [`Self::end_attachment`] must be called when the log has reached that position. Called in
    /// exclusive mode.
    fn detach_backlog(&self) -> bool {
        self.is_backlog_attached.swap(false, Ordering::SeqCst)
    }

    /// Lets the log count as filling the backlog until [`Self::end_attachment`] is called once more, so that no other
    /// server's stream fills it before. Returns `false` if the log does not fill the backlog any more. Called in
    /// exclusive mode.
    fn extend_attachment(&self) -> bool {
        let extend = |count: u32| (count > 0).then_some(count + 1);
        let extended = self
            .backlog_attachments
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, extend);
        extended.is_ok()
    }

    /// Records that the log has reached a position from which on it does not fill the backlog.
    fn end_attachment(&self) {
        let before = self.backlog_attachments.fetch_sub(1, Ordering::SeqCst);
        assert!(
            before > 0,
            "the propagation log leaves the backlog as often as it was attached"
        );
    }

    /// Returns `true` if this server is failing over to a replica.
    pub fn is_failing_over(&self) -> bool {
        self.is_failing_over.load(Ordering::Acquire)
    }

    /// Resets the counters that INFO reports.
    pub fn reset_statistics(&self) {
        let replicas = &self.replicas;
        for count in [
            &self.input_bytes,
            &self.unexpected_errors,
            &replicas.full_syncs,
            &replicas.partial_syncs,
            &replicas.partial_syncs_refused,
            &replicas.output_bytes,
        ] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Returns `true` if the links sleep now ([`Replication::sleep_if_requested`]).
    pub fn do_links_sleep(&self) -> bool {
        self.links_sleep_until_ms.load(Ordering::Relaxed) > weft_base::clock::unix_ms()
    }

    /// Blocks until the time given by `links_sleep_until_ms`.
    pub fn sleep_if_requested(&self) {
        loop {
            let until_ms = self.links_sleep_until_ms.load(Ordering::Relaxed);
            let left_ms = until_ms.saturating_sub(weft_base::clock::unix_ms());
            if left_ms == 0 {
                return;
            }
            weft_os::thread::sleep(Duration::from_millis(left_ms).min(SLEEP_CHECK_INTERVAL));
        }
    }

    /// Stops the process with SIGSTOP if a test has requested it. The test resumes the process.
    pub fn pause_if_requested(&self) {
        if self.pauses_after_fork.load(Ordering::Relaxed) {
            log::warning!("Pausing for DEBUG PAUSE-AFTER-FORK");
            // If the signal fails, the test reports it.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGSTOP);
        }
    }

    /// Begins a new history with new replication IDs, for tests.
    pub fn change_replication_id(&self) {
        self.state().history = ReplicationHistory::default();
    }
}

pub mod backlog_writer;
pub mod primary;
pub mod replica;
pub mod role;
#[cfg(test)]
mod tests;

//! Replication: whom this server follows, how far it is in the history of the data, and what that history is called.
//!
//! ```text
//!             REPLICAOF host port, `replicaof`
//!   primary ──────────────────────────────────▶ Connect ─▶ Connecting ─▶ Handshake ─┬▶ Transfer ─▶ Connected
//!      ▲                                            ▲                               └───────────────▲ │
//!      └──────────── REPLICAOF NO ONE ──────────────┴──────────────── the link breaks ────────────────┘
//! ```
//!
//! Who may touch what:
//!
//! 1. A decision about whom to follow is made in exclusive mode, so that no command runs half by the old rule. It
//!    begins a new *term*; whatever the link's thread does it does for a term, and drops it when that is over.
//! 2. The *standing* is all that the path of a command looks at, once for each passage of the gate: zero for a primary
//!    that has its data, whose commands then pass one branch and no more.
//! 3. The link's thread alone advances the offset while it follows somebody.
//! 4. A history is a name (the replication ID) and an offset. A server that stops following keeps the old name as its
//!    second one, valid up to where it was, so that others who followed the same primary can go on with it.

pub mod backlog;
mod psync;
mod replicas;

pub use replicas::{Channel, NO_LOG, Progress, ReplicaInfo, Replicas, Wait};

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::{Config, id};
use crate::observability::{lock, log};

/// Between two looks at whether links stand still any longer.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// What a server's role in replication, and the state of its data, mean for commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationState(u32);

impl ReplicationState {
    /// It follows a primary.
    pub const FOLLOWS: ReplicationState = ReplicationState(1);
    /// It has no link to that primary: its data may be stale.
    pub const CUT_OFF: ReplicationState = ReplicationState(1 << 1);
    /// It has no data yet: a dump is being loaded.
    pub const LOADING: ReplicationState = ReplicationState(1 << 2);
    /// It has its old data while a dump is being loaded beside it.
    pub const LOADING_ASIDE: ReplicationState = ReplicationState(1 << 3);
    /// Too few replicas keep up (`min-replicas-to-write`).
    pub const LACKS_REPLICAS: ReplicationState = ReplicationState(1 << 4);
    /// A script runs for too long (`busy-reply-threshold`).
    pub const BUSY: ReplicationState = ReplicationState(1 << 5);
    /// It is about to follow another server, as a node of a cluster, and only waits for a script to end.
    pub const YIELDS: ReplicationState = ReplicationState(1 << 6);
    /// It takes in the data of another server, which decides about what expires (`import-mode`).
    pub const IMPORTS: ReplicationState = ReplicationState(1 << 7);

    /// Both.
    pub const fn with(self, other: ReplicationState) -> ReplicationState {
        ReplicationState(self.0 | other.0)
    }

    /// The first without the bits of the second.
    pub const fn without(self, other: ReplicationState) -> ReplicationState {
        ReplicationState(self.0 & !other.0)
    }

    /// Whether commands need not look any further.
    #[inline]
    pub const fn is_plain(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` holds.
    #[inline]
    pub const fn has(self, other: ReplicationState) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether somebody else decides about the end of what has expired: the primary, or the server that data is imported from.
    #[inline]
    pub const fn leaves_expired(self) -> bool {
        self.0 & ReplicationState::FOLLOWS.with(ReplicationState::IMPORTS).0 != 0
    }
}

/// How far the link to the primary is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is no primary.
    #[default]
    None,
    /// The link is to be made.
    Connect,
    /// It is being made.
    Connecting,
    /// The two introduce themselves.
    Handshake,
    /// The primary sends its data.
    Transfer,
    /// The primary sends what changes.
    Connected,
}

impl Phase {
    /// The word that ROLE has for it.
    pub const fn word(self) -> &'static str {
        match self {
            Phase::None => "none",
            Phase::Connect => "connect",
            Phase::Connecting => "connecting",
            Phase::Handshake => "handshake",
            Phase::Transfer => "sync",
            Phase::Connected => "connected",
        }
    }
}

/// Where a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

/// A replication ID: 40 hexadecimal digits.
pub type ReplicationId = String;

/// The second ID of who has none.
pub fn no_id() -> ReplicationId {
    "0".repeat(40)
}

/// A new replication ID.
pub fn new_id() -> ReplicationId {
    std::iter::repeat_with(|| format!("{:x}", fastrand::u8(..16)))
        .take(40)
        .collect()
}

/// What the history of the data is called.
#[derive(Clone, Debug)]
pub struct ReplicationHistory {
    /// Its name.
    pub id: ReplicationId,
    /// What it was called before this server stopped following.
    pub second_id: ReplicationId,
    /// The first offset at which the second name is wrong; -1 for none.
    pub second_offset: i64,
}

impl Default for ReplicationHistory {
    fn default() -> Self {
        ReplicationHistory {
            id: new_id(),
            second_id: no_id(),
            second_offset: -1,
        }
    }
}

/// A dump on its way here.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Its size, bytes; 0 if the primary does not know it either, -1 if it has not said anything yet.
    pub total_bytes: i64,
    /// What has arrived.
    pub read_bytes: u64,
    /// When something arrived last, seconds since the epoch.
    pub last_io_s: u64,
}

impl Default for Transfer {
    fn default() -> Transfer {
        Transfer {
            total_bytes: -1,
            read_bytes: 0,
            last_io_s: 0,
        }
    }
}

/// What changes rarely and is told by INFO and ROLE.
#[derive(Default)]
pub struct State {
    /// Whom this server follows.
    pub primary: Option<Endpoint>,
    /// How far the link is.
    pub phase: Phase,
    /// What the data's history is called.
    pub history: ReplicationHistory,
    /// Whether the data is at the offset of the history that a primary told: the link may go on from there.
    pub resumable: bool,
    /// Since when there has been no link, seconds since the epoch; `None` if there never was one.
    pub down_since_s: Option<u64>,
    /// The dump under way.
    pub transfer: Transfer,
    /// The link's sockets, so that others can end it.
    sockets: Vec<TcpStream>,
}

impl State {
    fn end_links(&self) {
        for socket in &self.sockets {
            // If it is closed already, its reader knows.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// How far a handover of this server's role to a replica is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandoverState {
    /// There is none.
    #[default]
    None,
    /// A replica has to get everything first.
    WaitForSync,
    /// This server follows the replica, which is asked to take over.
    InProgress,
}

impl HandoverState {
    /// The word that INFO has for it.
    pub const fn word(self) -> &'static str {
        match self {
            HandoverState::None => "no-failover",
            HandoverState::WaitForSync => "waiting-for-sync",
            HandoverState::InProgress => "failover-in-progress",
        }
    }
}

/// A handover of this server's role to a replica.
#[derive(Clone, Debug, Default)]
pub struct Handover {
    /// How far it is.
    pub state: HandoverState,
    /// To whom; anybody if that is not said.
    pub target: Option<Endpoint>,
    /// Until when the replica may take to get everything, ms since the epoch.
    pub until_ms: Option<u64>,
    /// Whether it takes over then all the same.
    pub force: bool,
}

/// A load under way, as INFO tells it.
#[derive(Default)]
pub struct Loading {
    /// When it began, seconds since the epoch.
    pub started_s: AtomicU64,
    /// Bytes in all; 0 if that is not known.
    pub total_bytes: AtomicU64,
    /// Bytes loaded.
    pub loaded_bytes: AtomicU64,
    /// The memory that the server used which wrote the dump; 0 if it does not say.
    pub used_memory_bytes: AtomicU64,
}

/// A server's part in replication.
#[derive(Default)]
pub struct Replication {
    standing: AtomicU32,
    term: AtomicU64,
    /// How often this server has become a replica.
    demotions: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// The offset of the history up to which the data is.
    offset: AtomicI64,
    /// Up to where the stream was received.
    received: AtomicI64,
    /// The database that the stream has selected there where the data is, on a replica.
    pub stream_db: AtomicUsize,
    /// When the primary was heard last, seconds since the epoch.
    pub heard_s: AtomicU64,
    /// Set by the primary's question how far this server is.
    pub asked: AtomicBool,
    /// Whether the data is none that the primary ever had: it is to come, or is on its way.
    pub hollow: AtomicBool,
    /// Whether nothing is to be added to the stream but writes: somebody waits for it to end.
    pub holds_still: AtomicBool,
    /// Bytes that came over the link.
    pub input_bytes: AtomicU64,
    /// Error replies to what the primary sent.
    pub unexpected_errors: AtomicU64,
    /// The load under way.
    pub loading: Loading,
    /// What came over the link while the dump was on its way over another connection, and has not run: bytes.
    pub held_bytes: AtomicU64,
    /// The most that there was, bytes.
    pub held_peak_bytes: AtomicU64,
    /// Those who follow this server.
    pub replicas: Replicas,
    /// Whether the log feeds the backlog: not while another server's stream does.
    pub feeds: AtomicBool,
    /// Whether this server is about to hand its role over.
    pub hands_over: AtomicBool,
    /// Whether this server is about to end: its history ends with what it writes last.
    pub ends: AtomicBool,
    handover: Mutex<Handover>,
    /// Whether the process stops itself where Valkey does after it has forked, for tests.
    pub pauses: AtomicBool,
    /// Until when links stand still, for tests, ms since the epoch.
    pub sleeps_until_ms: AtomicU64,
}

impl Replication {
    /// What commands have to heed.
    #[inline]
    pub fn standing(&self) -> ReplicationState {
        ReplicationState(self.standing.load(Ordering::Acquire))
    }

    /// Changes what commands have to heed.
    pub fn put(&self, what: ReplicationState, on: bool) {
        if on {
            self.standing.fetch_or(what.0, Ordering::AcqRel);
        } else {
            self.standing.fetch_and(!what.0, Ordering::AcqRel);
        }
    }

    /// Decides whether enough replicas keep up for writes to be accepted (`min-replicas-to-write`).
    pub fn judge_replicas(&self, config: &Config) {
        let wanted = config.integer(id::MIN_REPLICAS_TO_WRITE);
        let most_lag_s = config.unsigned(id::MIN_REPLICAS_MAX_LAG);
        let now_s = weft_reactor::unix_ms() / 1000;
        let lacks = wanted > 0 && most_lag_s > 0 && self.replicas.good(now_s, most_lag_s) < wanted;
        self.put(ReplicationState::LACKS_REPLICAS, lacks);
    }

    /// Whether this server follows another.
    pub fn follows(&self) -> bool {
        self.standing().has(ReplicationState::FOLLOWS)
    }

    /// Whether data is being loaded, in the place of what there is or beside it.
    pub fn is_loading(&self) -> bool {
        let standing = self.standing();
        standing.has(ReplicationState::LOADING) || standing.has(ReplicationState::LOADING_ASIDE)
    }

    /// The number of the last decision about whom to follow.
    #[inline]
    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// How often this server, being a primary, has become a replica. Changes in exclusive mode.
    pub fn demotions(&self) -> u64 {
        self.demotions.load(Ordering::Acquire)
    }

    /// What changes rarely. Held for moments only.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The offset of the history up to which the data is.
    pub fn offset(&self) -> i64 {
        self.offset.load(Ordering::Acquire)
    }

    /// Says how far the data is. For the link's thread, or in exclusive mode.
    pub fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::Release);
    }

    /// Up to where the stream was received.
    pub fn received(&self) -> i64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Says up to where the stream was received.
    pub fn set_received(&self, offset: i64) {
        self.received.store(offset, Ordering::Relaxed);
    }

    /// How long ago the primary was heard, ms; the longest time there is if it never was.
    pub fn silence_ms(&self, now_ms: u64) -> u64 {
        let state = self.state();
        let heard_s = match state.phase {
            Phase::Connected => Some(self.heard_s.load(Ordering::Relaxed)),
            _ => state.down_since_s,
        };
        heard_s.map_or(u64::MAX, |heard_s| now_ms.saturating_sub(heard_s.saturating_mul(1000)))
    }

    /// Follows a primary from now on; `anew` if it cannot know the history of the data that is here. In exclusive mode, or
    /// before there are any clients.
    pub fn follow(&self, primary: Endpoint, anew: bool) {
        let mut state = self.state();
        if anew {
            state.resumable = false;
            self.hollow.store(true, Ordering::Release);
        } else if state.primary.is_none() {
            // What was written without a backlog is part of no history that a primary could know.
            state.resumable = self.replicas.backlog().extent().is_some();
            if state.resumable {
                log::notice!(
                    "Before turning into a replica, using my own primary parameters to synthesize a cached primary: I may \
                     be able to synchronize with the new primary with just a partial transfer."
                );
            }
        }
        if state.primary.is_none() {
            self.demotions.fetch_add(1, Ordering::AcqRel);
        }
        state.primary = Some(primary);
        state.phase = Phase::Connect;
        state.transfer = Transfer::default();
        self.put(ReplicationState::FOLLOWS, true);
        self.put(ReplicationState::CUT_OFF, true);
        self.begin_term(state);
    }

    /// Follows nobody any more. In exclusive mode. The old and the new name of the history; `None` if this server did
    /// not follow anybody.
    pub fn unfollow(&self) -> Option<ReplicationHistory> {
        let mut state = self.state();
        state.primary.take()?;
        state.phase = Phase::None;
        state.resumable = false;
        self.hollow.store(false, Ordering::Release);
        state.down_since_s = None;
        let old_id = std::mem::replace(&mut state.history.id, new_id());
        state.history.second_id = old_id;
        state.history.second_offset = self.offset() + 1;
        let history = state.history.clone();
        self.put(ReplicationState::FOLLOWS, false);
        self.put(ReplicationState::CUT_OFF, false);
        self.begin_term(state);
        Some(history)
    }

    fn begin_term(&self, mut state: MutexGuard<'_, State>) {
        state.end_links();
        state.sockets.clear();
        self.term.fetch_add(1, Ordering::AcqRel);
        drop(state);
        self.changed.notify_all();
    }

    /// Whom to follow, once there is somebody; and the term.
    pub fn wait_for_primary(&self) -> (Endpoint, u64) {
        let mut state = self.state();
        loop {
            if let Some(primary) = &state.primary {
                return (primary.clone(), self.term());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps for that long, or until the term is over.
    pub fn sleep_in_term(&self, term: u64, duration: Duration) {
        let state = self.state();
        let over = |_: &mut State| self.term() == term;
        // A panic elsewhere does not change how long this sleeps.
        let _ = self.changed.wait_timeout_while(state, duration, over);
    }

    /// Changes the state for `term`; `None` if that is over.
    pub fn in_term<R>(&self, term: u64, change: impl FnOnce(&mut State) -> R) -> Option<R> {
        let mut state = self.state();
        (self.term() == term).then(|| change(&mut state))
    }

    /// Keeps a socket of the link for who wants to end it; false if the term is over.
    pub fn keep_socket(&self, term: u64, socket: TcpStream) -> bool {
        self.in_term(term, |state| state.sockets.push(socket)).is_some()
    }

    /// The dump that came over a connection of its own is there, or is not wanted any more.
    pub fn drop_dump_socket(&self, term: u64) {
        // A newer term has sockets of its own.
        let _ = self.in_term(term, |state| {
            for socket in state.sockets.split_off(state.sockets.len().min(1)) {
                // If it is closed already, nobody needs that.
                let _ = socket.shutdown(Shutdown::Both);
            }
        });
    }

    /// There is no link any more.
    pub fn drop_sockets(&self, term: u64) {
        // As above.
        let _ = self.in_term(term, |state| state.sockets.clear());
    }

    /// Ends the link; it is made again.
    pub fn sever(&self) {
        self.state().end_links();
    }

    /// The handover to a replica. Held for moments only.
    pub fn handover(&self) -> MutexGuard<'_, Handover> {
        lock(&self.handover)
    }

    /// Whether this server is about to hand its role over to a replica.
    pub fn is_handing_over(&self) -> bool {
        self.hands_over.load(Ordering::Acquire)
    }

    /// Sets what INFO counts back to zero.
    pub fn reset_statistics(&self) {
        let replicas = &self.replicas;
        for count in [
            &self.input_bytes,
            &self.unexpected_errors,
            &replicas.full,
            &replicas.partial,
            &replicas.partial_refused,
            &replicas.output_bytes,
        ] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Waits as long as links are to stand still.
    pub fn stand_still(&self) {
        loop {
            let until_ms = self.sleeps_until_ms.load(Ordering::Relaxed);
            let left_ms = until_ms.saturating_sub(weft_reactor::unix_ms());
            if left_ms == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(left_ms).min(LOOK_PERIOD));
        }
    }

    /// Stops the process, if tests want to see that; somebody else has it go on.
    pub fn pause_if_wanted(&self) {
        if self.pauses.load(Ordering::Relaxed) {
            log::warning!("Pausing for DEBUG PAUSE-AFTER-FORK");
            // If it fails, the test will tell.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGSTOP);
        }
    }

    /// Begins a new history, for tests: neither ID is valid any more.
    pub fn rename_history(&self) {
        self.state().history = ReplicationHistory::default();
    }
}

pub mod backlog_writer;
pub mod primary;
pub mod replica;
pub mod role;
#[cfg(test)]
mod tests;

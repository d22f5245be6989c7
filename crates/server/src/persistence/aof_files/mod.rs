//! The append-only file: a base and increments in a directory of their own, listed by a manifest.
//!
//! ```text
//!   appendonlydir/
//!     appendonly.aof.manifest      which files, in which order           manifest.rs
//!     appendonly.aof.2.base.rdb    everything at the last rewrite        a dump, or commands (rewrite.rs)
//!     appendonly.aof.5.incr.aof    what was written since                appender.rs, on the log thread
//! ```
//!
//! The increment under way belongs to the log thread: it appends, writes, and syncs (`appendfsync always`) or has
//! another thread sync (`everysec`). The manifest and everything else about files belongs to whoever starts or rewrites
//! the append-only file; the new increment of a rewrite is handed to the log thread at a mark.

mod appender;
pub mod manifest;
pub mod reader;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use appender::{Appender, AppenderConsumer, Links, open};

use manifest::Manifest;

use crate::observability::lock;
use crate::propagation::LogMilestone;

/// When what was written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// When the operating system likes.
    No,
    /// At least once a second.
    EverySecond,
    /// Before anybody gets a reply.
    Always,
}

/// Whether there is an append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Off,
    /// Its first base is being written.
    Waiting,
    /// There is one.
    On,
}

/// What can go wrong with the file. One does not heal the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AofFault {
    /// Giving bytes to the operating system.
    Write,
    /// Getting them onto the disk.
    Sync,
}

/// Parameters and figures of the append-only file, which every thread may read.
#[derive(Default)]
pub struct Status {
    fsync: AtomicU8,
    phase: AtomicU8,
    /// `aof-timestamp-enabled`.
    pub timestamps: AtomicBool,
    /// `no-appendfsync-on-rewrite`.
    pub spares_rewrites: AtomicBool,
    /// A snapshot is being written at this moment.
    pub snapshot_under_way: AtomicBool,
    /// Why writing and syncing go wrong at this moment, by [`Failing`].
    failing: Mutex<[Option<String>; 2]>,
    /// Whether one of them does.
    pub fails: AtomicBool,
    /// Bytes of base and increments.
    pub current_bytes: AtomicU64,
    /// The same behind the last rewrite.
    pub base_bytes: AtomicU64,
    /// Bytes that are not given to the operating system yet.
    pub buffered_bytes: AtomicU64,
    /// `DEBUG AOF-FLUSH-SLEEP`: how long a write is held up.
    pub flush_pause_us: AtomicU64,
    /// Syncs under way on another thread.
    pub pending_syncs: AtomicU64,
    /// Rewrites begun.
    pub rewrites: AtomicU64,
    /// Rewrites in a row that failed.
    pub failures: AtomicU64,
    /// A rewrite is under way since then, seconds since the epoch; 0 for none.
    pub rewriting_since_s: AtomicU64,
    /// How long the last one took, plus one; 0 for none yet.
    pub last_rewrite_s: AtomicI64,
    /// The last one failed.
    pub last_rewrite_failed: AtomicBool,
    /// A rewrite is to begin as soon as it can.
    pub scheduled: AtomicBool,
    /// A background thread is about to begin one.
    pub asked: AtomicBool,
    /// When rewrites may begin by themselves again, seconds since the epoch; 0 for now.
    pub retry_at_s: AtomicU64,
    /// How long they had to wait last time, seconds.
    pub retry_delay_s: AtomicU64,
    /// How often all data was replaced by that of a primary.
    replaced: AtomicU64,
    /// The same at the moment of the base that is being written.
    begun_on: AtomicU64,
    /// The same at the moment of the base that there is.
    stands_on: AtomicU64,
}

impl Status {
    /// `appendfsync`.
    pub fn fsync(&self) -> Fsync {
        match self.fsync.load(Ordering::Relaxed) {
            0 => Fsync::No,
            1 => Fsync::EverySecond,
            _ => Fsync::Always,
        }
    }

    /// Sets `appendfsync` by its name.
    pub fn set_fsync(&self, name: &str) {
        let number = match name {
            "no" => 0,
            "everysec" => 1,
            _ => 2,
        };
        self.fsync.store(number, Ordering::Relaxed);
    }

    /// Whether there is an append-only file.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Off,
            1 => Phase::Waiting,
            _ => Phase::On,
        }
    }

    /// Changes that.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// All data was replaced by that of a primary: the files that there are stay what they are, until a base of the new
    /// data takes their place. Whether there are some, to which nothing may be added any more. In exclusive mode.
    pub fn replace(&self) -> bool {
        self.replaced.fetch_add(1, Ordering::AcqRel);
        let is_written = self.phase() != Phase::Off;
        if is_written {
            self.set_phase(Phase::Waiting);
        }
        is_written
    }

    /// The moment of a new base. In exclusive mode.
    pub fn begin_base(&self) {
        self.begun_on
            .store(self.replaced.load(Ordering::Acquire), Ordering::Release);
    }

    /// The new base has taken its place.
    pub fn end_base(&self) {
        self.stands_on
            .store(self.begun_on.load(Ordering::Acquire), Ordering::Release);
    }

    /// Whether the files hold all data that there is: not before the first base is there, nor between a full
    /// synchronisation and the base that follows it.
    pub fn is_whole(&self) -> bool {
        let same = self.stands_on.load(Ordering::Acquire) == self.replaced.load(Ordering::Acquire);
        same && self.phase() == Phase::On
    }

    /// Notes that something goes wrong, or does not any more. Returns `true` if that changes whether writes are
    /// refused.
    pub fn set_failure(&self, what: AofFault, reason: Option<String>) -> bool {
        let mut failures = lock(&self.failing);
        failures[what as usize] = reason;
        let fails = failures.iter().any(Option::is_some);
        self.fails.swap(fails, Ordering::AcqRel) != fails
    }

    /// Returns `true` if this goes wrong at this moment.
    pub fn fails_to(&self, what: AofFault) -> bool {
        self.fails.load(Ordering::Acquire) && lock(&self.failing)[what as usize].is_some()
    }

    /// Nothing goes wrong any more, as nothing is written any more. Returns `true` if something did.
    pub fn forget_failures(&self) -> bool {
        *lock(&self.failing) = Default::default();
        self.fails.swap(false, Ordering::AcqRel)
    }

    /// Why writes are refused, if they are. A failed sync comes first, as in Valkey.
    #[cold]
    pub fn failure(&self) -> Option<String> {
        let failures = lock(&self.failing);
        let sync = failures[AofFault::Sync as usize].clone();
        sync.or_else(|| failures[AofFault::Write as usize].clone())
    }

    /// What replies to writes have to wait for: the disk with `appendfsync always`, else the operating system, so that
    /// the end of the process loses nothing that was answered. While nothing is synced for the sake of a snapshot
    /// (`no-appendfsync-on-rewrite`), nothing waits for the disk.
    pub fn replies_wait_for(&self) -> Option<LogMilestone> {
        let spares = self.spares_disk();
        match (self.phase(), self.fsync()) {
            (Phase::Off, _) => None,
            (_, Fsync::Always) if !spares => Some(LogMilestone::Synced),
            (Phase::On, _) => Some(LogMilestone::Written),
            // Nothing is lost yet that a file would have kept.
            (Phase::Waiting, _) => None,
        }
    }

    /// Returns `true` if syncs would only be in the way of a snapshot that is being written.
    pub fn spares_disk(&self) -> bool {
        self.spares_rewrites.load(Ordering::Relaxed) && self.snapshot_under_way.load(Ordering::Relaxed)
    }
}

/// The files, for whoever starts or rewrites the append-only file.
#[derive(Default)]
pub struct Files {
    /// Which there are.
    pub manifest: Manifest,
    /// Who appends to the last of them.
    pub appender: Option<Arc<Mutex<Appender>>>,
}

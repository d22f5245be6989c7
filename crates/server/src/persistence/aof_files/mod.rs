//! The append-only file: a base and increments in a directory of their own, listed by a manifest.
//!
//! ```text
//!   appendonlydir/
//!     appendonly.aof.manifest      the files, in order                   manifest.rs
//!     appendonly.aof.2.base.rdb    all data at the last rewrite          a dump, or commands
//!     appendonly.aof.5.incr.aof    the writes since                      appender.rs, on the log thread
//! ```
//!
//! The current increment belongs to the log thread: it appends, writes, and syncs (`appendfsync always`) or lets
//! another thread sync (`everysec`). The manifest and everything else about files belongs to the thread that opens or
//! rewrites the append-only file. The new increment of a rewrite is handed to the log thread at a mark.

mod appender;
pub mod manifest;
pub mod reader;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use appender::{Appender, AppenderConsumer, Links, open};

use manifest::Manifest;

use crate::observability::lock;
use crate::propagation::LogMilestone;

/// The time at which written bytes are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// When the operating system decides.
    No,
    /// At least once a second.
    EverySecond,
    /// Before a client gets a reply.
    Always,
}

/// The state of the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Off,
    /// Its first base is being written.
    Waiting,
    /// The file is in use.
    On,
}

/// A fault of the file. Success of one operation does not end the fault of the other.
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
    /// The reasons why writing and syncing fail at the moment, by [`AofFault`].
    failing: Mutex<[Option<String>; 2]>,
    /// `true` while one of them fails.
    pub fails: AtomicBool,
    /// Bytes of base and increments.
    pub current_bytes: AtomicU64,
    /// The size after the last rewrite, in bytes.
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
    /// The duration of the last rewrite in seconds, plus one; 0 before the first one.
    pub last_rewrite_s: AtomicI64,
    /// Set if the last rewrite failed.
    pub last_rewrite_failed: AtomicBool,
    /// A rewrite is to begin as soon as it can.
    pub scheduled: AtomicBool,
    /// Set while a background thread is about to start a rewrite.
    pub asked: AtomicBool,
    /// The time at which automatic rewrites may start again, in seconds since the Unix epoch; 0 for now.
    pub retry_at_s: AtomicU64,
    /// Their last delay in seconds.
    pub retry_delay_s: AtomicU64,
    /// The number of times that all data was replaced by a primary's.
    replaced: AtomicU64,
    /// That number at the moment of the base that is being written.
    begun_on: AtomicU64,
    /// That number at the moment of the current base.
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

    /// Returns the state of the append-only file.
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

    /// Returns `true` if the files contain all data: not before the first base is complete, nor between a full
    /// synchronization and the base that follows it.
    pub fn is_whole(&self) -> bool {
        let same = self.stands_on.load(Ordering::Acquire) == self.replaced.load(Ordering::Acquire);
        same && self.phase() == Phase::On
    }

    /// Records that an operation fails, or does not fail any more. Returns `true` if that changes whether writes are
    /// refused.
    pub fn set_failure(&self, what: AofFault, reason: Option<String>) -> bool {
        let mut failures = lock(&self.failing);
        failures[what as usize] = reason;
        let fails = failures.iter().any(Option::is_some);
        self.fails.swap(fails, Ordering::AcqRel) != fails
    }

    /// Returns `true` if this operation fails at the moment.
    pub fn fails_to(&self, what: AofFault) -> bool {
        self.fails.load(Ordering::Acquire) && lock(&self.failing)[what as usize].is_some()
    }

    /// Clears all faults, since nothing is written any more. Returns `true` if there was one.
    pub fn forget_failures(&self) -> bool {
        *lock(&self.failing) = Default::default();
        self.fails.swap(false, Ordering::AcqRel)
    }

    /// Returns the reason why writes are refused, if they are. A failed sync comes first, as in Valkey.
    #[cold]
    pub fn failure(&self) -> Option<String> {
        let failures = lock(&self.failing);
        let sync = failures[AofFault::Sync as usize].clone();
        sync.or_else(|| failures[AofFault::Write as usize].clone())
    }

    /// Returns the milestone that replies to writes must wait for: the disk with `appendfsync always`, otherwise the
    /// operating system, so that the end of the process loses nothing that was answered. While nothing is synced
    /// because of a snapshot (`no-appendfsync-on-rewrite`), no reply waits for the disk.
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

/// The files, for the thread that opens or rewrites the append-only file.
#[derive(Default)]
pub struct Files {
    /// The manifest.
    pub manifest: Manifest,
    /// The appender to the last file.
    pub appender: Option<Arc<Mutex<Appender>>>,
}

//! The append-only file: a base and increments in their own directory, listed by a manifest.
//!
//! ```text
//!   appendonlydir/
//!     appendonly.aof.manifest      the ordered list of the files         manifest.rs
//!     appendonly.aof.2.base.rdb    all data at the last rewrite          an RDB file, or commands
//!     appendonly.aof.5.incr.aof    the writes since then                 appender.rs, on the log thread
//! ```
//!
//! The current increment belongs to the log thread. It appends, writes, and syncs (`appendfsync always`), or lets
//! another thread sync (`everysec`). The manifest and all other files belong to the thread that starts or rewrites the
//! append-only file. It hands the new increment of a rewrite to the log thread at a mark.

mod appender;
pub mod manifest;
pub mod reader;

use std::sync::Arc;

pub use appender::{AofAppender, AppenderConsumer, AppenderLinks, open, sync_if_possible};

use crate::propagation::LogMilestone;
use manifest::Manifest;
use weft_os::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use weft_os::sync::Mutex;

/// The time at which written bytes are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncPolicy {
    /// The operating system decides.
    No,
    /// At least once a second.
    EverySecond,
    /// Before a client gets a reply.
    Always,
}

/// The state of the append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AofState {
    /// There is no append-only file.
    Off,
    /// The first base is being written.
    WritingBase,
    /// The file is in use.
    On,
}

/// A fault of the file. Success of one operation does not end the fault of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AofFault {
    /// Writing bytes to the operating system.
    Write,
    /// Syncing them to the disk.
    Sync,
}

/// Parameters and figures of the append-only file. Every thread may read them.
#[derive(Default)]
pub struct AofStatus {
    fsync: AtomicU8,
    phase: AtomicU8,
    /// `aof-timestamp-enabled`.
    pub writes_timestamps: AtomicBool,
    /// `no-appendfsync-on-rewrite`.
    pub no_fsync_on_rewrite: AtomicBool,
    /// Set while a snapshot is being written.
    pub is_snapshot_running: AtomicBool,
    /// The reasons why writing and syncing currently fail, indexed by [`AofFault`].
    failure_reasons: Mutex<[Option<String>; 2]>,
    /// `true` if one of them fails.
    pub is_failing: AtomicBool,
    /// The size of the base and the increments in bytes.
    pub current_bytes: AtomicU64,
    /// The size of the base and the increments after the last rewrite, in bytes.
    pub base_bytes: AtomicU64,
    /// The number of bytes that are not written to the operating system yet.
    pub buffered_bytes: AtomicU64,
    /// `DEBUG AOF-FLUSH-SLEEP`: the delay of each write in microseconds.
    pub flush_pause_us: AtomicU64,
    /// The number of syncs in progress on another thread.
    pub pending_syncs: AtomicU64,
    /// The number of rewrites started.
    pub rewrites: AtomicU64,
    /// The number of consecutive rewrites that failed.
    pub failures: AtomicU64,
    /// The start of the running rewrite, in seconds since the Unix epoch; 0 if there is none.
    pub rewriting_since_s: AtomicU64,
    /// The duration of the last rewrite in seconds, plus one; 0 before the first one.
    pub last_rewrite_s: AtomicI64,
    /// `true` if the last rewrite failed.
    pub last_rewrite_failed: AtomicBool,
    /// `true` if a rewrite should start as soon as possible.
    pub is_rewrite_scheduled: AtomicBool,
    /// `true` if a background thread is about to start a rewrite.
    pub is_rewrite_requested: AtomicBool,
    /// `true` while the rewrite that switches the file on ends. A client that waits for the disk goes on only when INFO
    /// says that the rewrite has ended.
    pub is_ending_first_rewrite: AtomicBool,
    /// `true` while the file is being switched off: set in exclusive mode, when the log stops feeding the file, until
    /// the state is [`AofState::Off`].
    pub is_switching_off: AtomicBool,
    /// The time from which automatic rewrites are allowed again, in seconds since the Unix epoch; 0 for now.
    pub retry_after_s: AtomicU64,
    /// Their last delay in seconds.
    pub retry_delay_s: AtomicU64,
    /// The number of times that all data was replaced by that of a primary.
    data_generation: AtomicU64,
    /// The value of `replaced` at the moment of the base that is being written.
    new_base_generation: AtomicU64,
    /// The value of `replaced` at the moment of the current base.
    base_generation: AtomicU64,
    /// Locked while the log begins to feed the file at the moment of a base, and while an attempt to switch the file on
    /// ends without success: only one of both happens.
    pub log_start: Mutex<()>,
    /// Locked while the milestone that replies to writes wait for is computed and set, so that the last result is of
    /// the latest parameters.
    pub reply_milestone_update: Mutex<()>,
}

impl AofStatus {
    /// `appendfsync`.
    pub fn fsync(&self) -> FsyncPolicy {
        match self.fsync.load(Ordering::Relaxed) {
            0 => FsyncPolicy::No,
            1 => FsyncPolicy::EverySecond,
            _ => FsyncPolicy::Always,
        }
    }

    /// Sets `appendfsync` from its name.
    pub fn set_fsync(&self, name: &str) {
        let number = match name {
            "no" => 0,
            "everysec" => 1,
            _ => 2,
        };
        self.fsync.store(number, Ordering::Relaxed);
    }

    /// Returns the state of the append-only file.
    pub fn state(&self) -> AofState {
        match self.phase.load(Ordering::Acquire) {
            0 => AofState::Off,
            1 => AofState::WritingBase,
            _ => AofState::On,
        }
    }

    /// Changes the state of the append-only file.
    pub fn set_state(&self, phase: AofState) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Records that all data was replaced by that of a primary. The existing files stay as they are until a base of the
    /// new data replaces them. Returns `true` if there are files, to which nothing may be appended any more. The caller
    /// holds exclusive mode.
    pub fn mark_data_replaced(&self) -> bool {
        self.data_generation.fetch_add(1, Ordering::AcqRel);
        // One step: the file may be switched off at the same time, and stays off then.
        let next = |phase| (phase != AofState::Off as u8).then_some(AofState::WritingBase as u8);
        self.phase
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .is_ok()
    }

    /// Records the moment of a new base. The caller holds exclusive mode.
    pub fn begin_base(&self) {
        self.new_base_generation
            .store(self.data_generation.load(Ordering::Acquire), Ordering::Release);
    }

    /// Records that the new base has been installed.
    pub fn finish_base(&self) {
        let installed = self.new_base_generation.load(Ordering::Acquire);
        let replaced = self.base_generation.swap(installed, Ordering::AcqRel);
        assert!(
            replaced <= installed && installed <= self.data_generation.load(Ordering::Acquire),
            "a base is of later data than the base that it replaces, and of data that the server had"
        );
    }

    /// Returns `true` if the files hold all data. They do not before the first base is complete, and not between a full
    /// synchronization and the base that follows it. The rewrite that wrote the base has ended.
    pub fn is_complete(&self) -> bool {
        self.has_base_of_present_data()
            && self.state() == AofState::On
            && !self.is_ending_first_rewrite.load(Ordering::Acquire)
    }

    /// Returns `true` if the data has not been replaced since the moment of the current base.
    pub fn has_base_of_present_data(&self) -> bool {
        self.base_generation.load(Ordering::Acquire) == self.data_generation.load(Ordering::Acquire)
    }

    /// Records that an operation fails, or no longer fails. Returns `true` if that changes whether writes are refused.
    pub fn set_failure(&self, what: AofFault, reason: Option<String>) -> bool {
        let mut failures = self.failure_reasons.lock();
        failures[what as usize] = reason;
        let fails = failures.iter().any(Option::is_some);
        self.is_failing.swap(fails, Ordering::AcqRel) != fails
    }

    /// Returns `true` if this operation currently fails.
    pub fn is_failing(&self, what: AofFault) -> bool {
        self.is_failing.load(Ordering::Acquire) && self.failure_reasons.lock()[what as usize].is_some()
    }

    /// Returns `true` if writes are refused because of a failure. While the file is off there is nothing to refuse them
    /// for: a sync that was requested earlier may still fail then.
    pub fn refuses_writes(&self) -> bool {
        self.state() != AofState::Off && self.is_failing.load(Ordering::Acquire)
    }

    /// Clears all failures, because nothing is written any more. Returns `true` if there was one.
    pub fn clear_failures(&self) -> bool {
        *self.failure_reasons.lock() = Default::default();
        self.is_failing.swap(false, Ordering::AcqRel)
    }

    /// The reason why writes are refused, if they are. A failed sync comes first, as in Valkey.
    #[cold]
    pub fn failure_reason(&self) -> Option<String> {
        let failures = self.failure_reasons.lock();
        let sync = failures[AofFault::Sync as usize].clone();
        sync.or_else(|| failures[AofFault::Write as usize].clone())
    }

    /// The milestone that replies to writes have to wait for. With `appendfsync always` it is the sync to the disk.
    /// Otherwise it is the write to the operating system, so that the end of the process loses no acknowledged write.
    /// While syncs are suspended during a snapshot (`no-appendfsync-on-rewrite`), no reply waits for the disk.
    pub fn replies_wait_for(&self) -> Option<LogMilestone> {
        let spares = self.suspends_fsync();
        match (self.state(), self.fsync()) {
            // Without a complete file no write that a file would have kept can be lost. Nothing may be logged to a file
            // either, if the base has yet to be begun.
            (AofState::Off | AofState::WritingBase, _) => None,
            (AofState::On, FsyncPolicy::Always) if !spares => Some(LogMilestone::Synced),
            (AofState::On, _) => Some(LogMilestone::Written),
        }
    }

    /// Returns `true` if syncs are suspended in favour of a snapshot that is being written.
    pub fn suspends_fsync(&self) -> bool {
        self.no_fsync_on_rewrite.load(Ordering::Relaxed) && self.is_snapshot_running.load(Ordering::Relaxed)
    }
}

/// The files, for the thread that starts or rewrites the append-only file.
#[derive(Default)]
pub struct AofFiles {
    /// The manifest.
    pub manifest: Manifest,
    /// The appender of the last increment.
    pub appender: Option<Arc<Mutex<AofAppender>>>,
}

#[cfg(test)]
mod tests;

//! The snapshot under way: its purpose, its progress, and its cancellation.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::observability::lock;

/// The interval at which a thread that waits for the end checks.
const LOOK: Duration = Duration::from_millis(1);

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A dump (BGSAVE).
    Dump,
    /// The base of an append-only file.
    LogBase,
    /// Replicas.
    Replicas,
}

/// The state of the one snapshot at a time; all threads read it.
#[derive(Debug, Default)]
pub struct Running {
    current: Mutex<Option<Current>>,
    /// Set if the current one was cancelled.
    cancelled: AtomicBool,
    /// The number of keys of the current or last one that are written.
    pub keys_done: AtomicU64,
    /// Keys that it has in all.
    pub keys_total: AtomicU64,
    /// The duration of exclusive mode of the last one, in µs.
    pub moment_us: AtomicU64,
    /// The number of snapshot moments so far.
    pub moments: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    purpose: Purpose,
    since_s: u64,
}

impl Running {
    /// Makes a snapshot the current one.
    ///
    /// # Errors
    /// If there is one already; returns its purpose.
    pub fn claim(&self, purpose: Purpose, now_s: u64) -> Result<(), Purpose> {
        let mut current = lock(&self.current);
        if let Some(current) = *current {
            return Err(current.purpose);
        }
        *current = Some(Current {
            purpose,
            since_s: now_s,
        });
        self.cancelled.store(false, Ordering::Relaxed);
        self.keys_done.store(0, Ordering::Relaxed);
        self.keys_total.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the current one.
    pub fn release(&self) {
        *lock(&self.current) = None;
        self.keys_done.store(0, Ordering::Relaxed);
        self.keys_total.store(0, Ordering::Relaxed);
    }

    /// Returns the purpose of the current one.
    pub fn purpose(&self) -> Option<Purpose> {
        lock(&self.current).map(|current| current.purpose)
    }

    /// Since when a snapshot for that purpose is being written, seconds since the epoch.
    pub fn since_s(&self, purpose: Purpose) -> Option<u64> {
        lock(&self.current)
            .filter(|current| current.purpose == purpose)
            .map(|current| current.since_s)
    }

    /// Cancels the current one if it has one of these purposes. Returns `true` if it was cancelled.
    pub fn cancel(&self, purposes: &[Purpose]) -> bool {
        let current = lock(&self.current);
        let meant = current.is_some_and(|current| purposes.contains(&current.purpose));
        if meant {
            self.cancelled.store(true, Ordering::Release);
        }
        meant
    }

    /// Returns `true` if the current one was cancelled. A consumer checks this before any step that is visible from
    /// outside, and at intervals while it waits.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Waits until none is current, for at most this time. Returns `true` if that is so.
    pub fn wait_for_end(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while self.purpose().is_some() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Waits for the end of a cancelled one.
    pub fn wait_for_cancelled(&self) {
        while self.purpose().is_some() && self.is_cancelled() {
            std::thread::sleep(LOOK);
        }
    }
}

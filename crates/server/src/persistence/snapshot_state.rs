//! The snapshot that is being written, if one is: what for, how far it is, and whether it shall end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::observability::lock;

/// How often somebody who waits for the end looks.
const LOOK: Duration = Duration::from_millis(1);

/// What a snapshot is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A dump (BGSAVE).
    Dump,
    /// The base of an append-only file.
    LogBase,
    /// Replicas.
    Replicas,
}

/// One snapshot at a time; all threads look at it.
#[derive(Debug, Default)]
pub struct Running {
    current: Mutex<Option<Current>>,
    /// Whether the current one shall end.
    cancelled: AtomicBool,
    /// Keys of the current or last one that are written.
    pub keys_done: AtomicU64,
    /// Keys that it has in all.
    pub keys_total: AtomicU64,
    /// How long the moment of the last one took, in which everybody stood still, µs.
    pub moment_us: AtomicU64,
    /// How many moments there have been.
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
    /// If there is one already; what that is for.
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

    /// The current one is over.
    pub fn release(&self) {
        *lock(&self.current) = None;
        self.keys_done.store(0, Ordering::Relaxed);
        self.keys_total.store(0, Ordering::Relaxed);
    }

    /// What the current one is for.
    pub fn purpose(&self) -> Option<Purpose> {
        lock(&self.current).map(|current| current.purpose)
    }

    /// Since when a snapshot for that purpose is being written, seconds since the epoch.
    pub fn since_s(&self, purpose: Purpose) -> Option<u64> {
        lock(&self.current)
            .filter(|current| current.purpose == purpose)
            .map(|current| current.since_s)
    }

    /// Has the current one end soon, if it is for one of these purposes; whether it is.
    pub fn cancel(&self, purposes: &[Purpose]) -> bool {
        let current = lock(&self.current);
        let meant = current.is_some_and(|current| purposes.contains(&current.purpose));
        if meant {
            self.cancelled.store(true, Ordering::Release);
        }
        meant
    }

    /// Whether the current one shall end. Whoever writes what it yields looks at this before anything that is visible
    /// from outside, and now and then while it waits.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Waits until none is current, at most so long; whether that is so.
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

    /// Waits for the end of one that was cancelled.
    pub fn wait_for_cancelled(&self) {
        while self.purpose().is_some() && self.is_cancelled() {
            std::thread::sleep(LOOK);
        }
    }
}

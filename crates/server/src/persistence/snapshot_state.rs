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
    /// An RDB file (BGSAVE).
    Dump,
    /// The base of an append-only file.
    LogBase,
    /// A full synchronization of replicas.
    Replicas,
}

/// The state of the running snapshot, shared by all threads. There is one snapshot at a time.
#[derive(Debug, Default)]
pub struct Running {
    current: Mutex<Option<Current>>,
    /// Set when the current snapshot should end.
    cancelled: AtomicBool,
    /// The number of keys written by the current snapshot.
    pub keys_done: AtomicU64,
    /// The total number of keys of the current snapshot.
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
    /// The purpose of the current snapshot, if there is one.
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

    /// The start of the current snapshot in seconds since the Unix epoch, if it has that purpose.
    pub fn since_s(&self, purpose: Purpose) -> Option<u64> {
        lock(&self.current)
            .filter(|current| current.purpose == purpose)
            .map(|current| current.since_s)
    }

    /// Cancels the current snapshot if it has one of these purposes. Returns `true` if it has.
    pub fn cancel(&self, purposes: &[Purpose]) -> bool {
        let current = lock(&self.current);
        let meant = current.is_some_and(|current| purposes.contains(&current.purpose));
        if meant {
            self.cancelled.store(true, Ordering::Release);
        }
        meant
    }

    /// Returns `true` if the current snapshot should end. A consumer of its bytes checks this before every externally
    /// visible change, and periodically while it waits.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Waits until there is no current snapshot, for at most this time. Returns `true` if there is none.
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

    /// Waits for the end of a cancelled snapshot.
    pub fn wait_for_cancelled(&self) {
        while self.purpose().is_some() && self.is_cancelled() {
            std::thread::sleep(LOOK);
        }
    }
}

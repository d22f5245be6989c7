//! The latest time at which a client was told that a key has expired.
//!
//! Every thread takes the time once per batch, so a thread that was interrupted has an older time than others. A reader
//! that finds an expired key leaves it in its table. Without more, a command with an older time could find that key
//! alive after another client saw that it has expired. So a reader records the time by which the key had expired, under
//! its lease, and a command whose time is older than that takes the time again once it has its leases.

use weft_os::atomic::{AtomicU64, Ordering};

/// The latest time at which a reader has found an expired key, in milliseconds since the Unix epoch.
#[derive(Debug, Default)]
pub struct SeenExpiry(AtomicU64);

impl SeenExpiry {
    /// Records that a key had expired at `now_ms`. The caller holds the lease of its slot.
    #[inline]
    pub fn note(&self, now_ms: u64) {
        // The cache line is shared by all threads, and changes at most once per millisecond.
        if self.0.load(Ordering::Relaxed) < now_ms {
            self.0.fetch_max(now_ms, Ordering::Relaxed);
        }
    }

    /// Returns the recorded time. What was recorded under a lease is visible to the next holder of a lease of that
    /// slot.
    #[inline]
    pub fn latest_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;

//! The current snapshot: its purpose, its progress, and its cancellation.

use std::time::Duration;

use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::{Mutex, MutexGuard};
use weft_os::time::Instant;

/// The interval at which a thread that waits for the end checks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotPurpose {
    /// An RDB file (BGSAVE).
    RdbFile,
    /// The base of an append-only file.
    AofBase,
    /// A full synchronization of replicas.
    Replicas,
    /// Slots that migrate to another node.
    SlotMigration,
}

/// The state of the running snapshot, shared by all threads. There is one snapshot at a time.
#[derive(Debug, Default)]
pub struct SnapshotState {
    current: Mutex<Option<CurrentSnapshot>>,
    /// Locked while a dump file gets its name or is removed, and while that must not happen.
    publication: Mutex<()>,
    /// Set when the current snapshot should end.
    is_cancelled: AtomicBool,
    /// The number of keys written by the current snapshot.
    pub keys_done: AtomicU64,
    /// The total number of keys of the current snapshot.
    pub keys_total: AtomicU64,
    /// The duration of exclusive mode of the last one, in µs.
    pub pause_us: AtomicU64,
    /// The number of snapshot moments so far.
    pub snapshots_started: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct CurrentSnapshot {
    purpose: SnapshotPurpose,
    started_s: u64,
}

impl SnapshotState {
    /// Makes a snapshot the current one.
    ///
    /// # Errors
    /// The purpose of the current snapshot, if there is one.
    pub fn claim(&self, purpose: SnapshotPurpose, now_s: u64) -> Result<(), SnapshotPurpose> {
        let mut current = self.current.lock();
        if let Some(current) = *current {
            return Err(current.purpose);
        }
        *current = Some(CurrentSnapshot {
            purpose,
            started_s: now_s,
        });
        self.is_cancelled.store(false, Ordering::Relaxed);
        self.keys_done.store(0, Ordering::Relaxed);
        self.keys_total.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the current one.
    pub fn release(&self) {
        // The lock is held until the figures are reset: they would be those of the next snapshot otherwise.
        let mut current = self.current.lock();
        let ended = current.take();
        self.keys_done.store(0, Ordering::Relaxed);
        self.keys_total.store(0, Ordering::Relaxed);
        drop(current);
        assert!(ended.is_some(), "the snapshot that ends is the current one");
    }

    /// Returns the purpose of the current one.
    pub fn purpose(&self) -> Option<SnapshotPurpose> {
        self.current.lock().map(|current| current.purpose)
    }

    /// The start of the current snapshot in seconds since the Unix epoch, if it has that purpose.
    pub fn started_s(&self, purpose: SnapshotPurpose) -> Option<u64> {
        self.current
            .lock()
            .filter(|current| current.purpose == purpose)
            .map(|current| current.started_s)
    }

    /// Cancels the current snapshot if it has one of these purposes. Returns `true` if it has.
    pub fn cancel(&self, purposes: &[SnapshotPurpose]) -> bool {
        let current = self.current.lock();
        let meant = current.is_some_and(|current| purposes.contains(&current.purpose));
        if meant {
            self.is_cancelled.store(true, Ordering::Release);
        }
        meant
    }

    /// Returns `true` if the current snapshot should end. A consumer of its bytes checks this before every externally
    /// visible change, and periodically while it waits.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits until there is no current snapshot, for at most this time. Returns `true` if there is none.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while self.purpose().is_some() {
            if Instant::now() >= until {
                return false;
            }
            weft_os::thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Keeps dump files from getting their name, or from being removed, until the guard is dropped. A thread that waits
    /// for that holds no lock and no lease, and is not inside the gate, unless it is in exclusive mode. A thread that
    /// has the guard does not wait for exclusive mode.
    pub fn hold_publication(&self) -> MutexGuard<'_, ()> {
        self.publication.lock()
    }

    /// Waits until the file of the current snapshot may get its name, which it may until the guard is dropped. Returns
    /// `None` if the snapshot was cancelled.
    pub fn begin_publication(&self) -> Option<MutexGuard<'_, ()>> {
        let publication = self.hold_publication();
        (!self.is_cancelled()).then_some(publication)
    }

    /// Waits for the end of a cancelled snapshot.
    pub fn wait_for_cancelled(&self) {
        while self.purpose().is_some() && self.is_cancelled() {
            weft_os::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_snapshot_does_not_reset_the_figures_of_the_next() {
        const SNAPSHOTS: usize = 5_000;
        let state = SnapshotState::default();
        let reset = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..SNAPSHOTS {
                        while state.claim(SnapshotPurpose::RdbFile, 0).is_err() {
                            std::hint::spin_loop();
                        }
                        state.keys_total.store(5, Ordering::Relaxed);
                        for _ in 0..5 {
                            state.keys_done.fetch_add(1, Ordering::Relaxed);
                        }
                        let figures =
                            [&state.keys_done, &state.keys_total].map(|figure| figure.load(Ordering::Relaxed));
                        reset.fetch_add(u64::from(figures != [5, 5]), Ordering::Relaxed);
                        state.release();
                    }
                });
            }
        });
        assert_eq!(
            reset.into_inner(),
            0,
            "snapshots whose figures were reset while they ran"
        );
    }
}

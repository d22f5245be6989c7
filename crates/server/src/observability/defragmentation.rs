//! The figures of active defragmentation that INFO shows.

use std::time::Duration;

use weft_os::atomic::{AtomicU32, AtomicU64, Ordering};
use weft_os::time::Instant;

/// The counters of active defragmentation, and its present state.
pub struct DefragFigures {
    /// `active_defrag_hits`: the allocations that were moved.
    pub moved: AtomicU64,
    /// `active_defrag_misses`: the allocations that were looked at and stayed.
    pub kept: AtomicU64,
    /// `active_defrag_key_hits`: the keys of which something was moved.
    pub moved_keys: AtomicU64,
    /// `active_defrag_key_misses`: the keys of which all stayed.
    pub kept_keys: AtomicU64,
    /// `active_defrag_running`: the share of a CPU that defragmentation takes, in percent; 0 while it does not run.
    running_percent: AtomicU32,
    started: Instant,
    /// The time since when defragmentation runs, in microseconds since `started`, plus one; 0 while it does not.
    running_since_us: AtomicU64,
    /// The time for which it ran before.
    total_us: AtomicU64,
}

impl Default for DefragFigures {
    fn default() -> Self {
        DefragFigures {
            moved: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            moved_keys: AtomicU64::new(0),
            kept_keys: AtomicU64::new(0),
            running_percent: AtomicU32::new(0),
            started: Instant::now(),
            running_since_us: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
        }
    }
}

impl DefragFigures {
    /// Returns the share of a CPU that defragmentation takes, in percent; 0 while it does not run.
    pub fn running_percent(&self) -> u32 {
        self.running_percent.load(Ordering::Relaxed)
    }

    /// Records that defragmentation runs with this share of a CPU, or that it has ended if the share is 0. Called by
    /// one thread only.
    pub fn set_running_percent(&self, percent: u32) {
        let before = self.running_percent.swap(percent, Ordering::Relaxed);
        match (before, percent) {
            (0, 1..) => self.running_since_us.store(self.now_us() + 1, Ordering::Relaxed),
            (1.., 0) => {
                let ran = self.current();
                self.running_since_us.store(0, Ordering::Relaxed);
                self.total_us.fetch_add(ran.as_micros() as u64, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Returns the time for which defragmentation has been running without an interruption.
    pub fn current(&self) -> Duration {
        match self.running_since_us.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_us => Duration::from_micros((self.now_us() + 1).saturating_sub(since_us)),
        }
    }

    /// Returns the time for which defragmentation has run in total.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.total_us.load(Ordering::Relaxed)) + self.current()
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Resets the counters and times (CONFIG RESETSTAT).
    pub fn reset(&self) {
        for counter in [
            &self.moved,
            &self.kept,
            &self.moved_keys,
            &self.kept_keys,
            &self.total_us,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        if self.running_percent() > 0 {
            self.running_since_us.store(self.now_us() + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_while_it_runs() {
        let figures = DefragFigures::default();
        assert_eq!((figures.total(), figures.current()), (Duration::ZERO, Duration::ZERO));
        figures.set_running_percent(5);
        figures.set_running_percent(7);
        assert_eq!(figures.running_percent(), 7);
        std::thread::sleep(Duration::from_millis(2));
        let current = figures.current();
        assert!(current >= Duration::from_millis(2) && figures.total() >= current);
        figures.set_running_percent(0);
        assert_eq!(figures.current(), Duration::ZERO);
        let total = figures.total();
        assert!(total >= current);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(figures.total(), total);
        figures.reset();
        assert_eq!(figures.total(), Duration::ZERO);
    }
}

//! The timeouts of a worker's waiting clients, earliest first.

use std::collections::BTreeMap;

use weft_base::ParkId;

/// Values with an end time, ordered by time and then by park id.
pub struct TimerQueue<T> {
    by_time: BTreeMap<(u64, ParkId), T>,
}

impl<T> Default for TimerQueue<T> {
    fn default() -> Self {
        TimerQueue {
            by_time: BTreeMap::new(),
        }
    }
}

impl<T> TimerQueue<T> {
    /// Adds a value that ends after the millisecond `at_ms` (since the Unix epoch), under a park id.
    pub fn add(&mut self, at_ms: u64, park_id: ParkId, value: T) {
        self.by_time.insert((at_ms, park_id), value);
    }

    /// Removes a value that was added with this time and park id.
    pub fn remove(&mut self, at_ms: u64, park_id: ParkId) -> Option<T> {
        self.by_time.remove(&(at_ms, park_id))
    }

    /// Removes and returns the earliest value that has ended at `now_ms`. A wait lasts through its last millisecond: it
    /// may have begun in the middle of one, and must not be too short.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<T> {
        let first = self.by_time.first_entry()?;
        (first.key().0 < now_ms).then(|| first.remove())
    }

    /// Returns the time at which [`pop_due`](Self::pop_due) will return the next value, in milliseconds since the Unix
    /// epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        let ((at_ms, _), _) = self.by_time.first_key_value()?;
        Some(at_ms.saturating_add(1))
    }

    /// Returns `true` if there are no values.
    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }
}

#[cfg(test)]
mod tests;

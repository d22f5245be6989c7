//! The latency monitor: for each kind of event, the latest spikes that exceeded `latency-monitor-threshold`.

use std::collections::BTreeMap;

use weft_os::sync::Mutex;

#[cfg(test)]
mod tests;

/// The maximum number of samples of each event.
pub const SAMPLES_MAX: usize = 160;

/// One sample: the longest spike of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySample {
    /// The time, in seconds since the Unix epoch.
    pub unix_s: u64,
    /// The duration, in milliseconds.
    pub ms: u64,
}

/// The recorded spikes of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencySeries {
    /// The samples, oldest first; at most [`SAMPLES_MAX`].
    pub samples: Vec<LatencySample>,
    /// The longest spike ever, in milliseconds.
    pub max_ms: u64,
    /// The sum of all spikes, in milliseconds.
    pub sum_ms: u64,
    /// The number of spikes; those of the same second count separately.
    pub count: u64,
}

impl LatencySeries {
    fn add(&mut self, unix_s: u64, ms: u64) {
        self.max_ms = self.max_ms.max(ms);
        self.sum_ms += ms;
        self.count += 1;
        if let Some(last) = self.samples.last_mut()
            && last.unix_s == unix_s
        {
            last.ms = last.ms.max(ms);
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.remove(0);
        }
        self.samples.push(LatencySample { unix_s, ms });
    }

    /// Returns the mean of the kept samples, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        let sum: u64 = self.samples.iter().map(|sample| sample.ms).sum();
        sum as f64 / self.samples.len().max(1) as f64
    }

    /// Returns the mean absolute deviation of the kept samples, in milliseconds.
    pub fn mean_deviation_ms(&self) -> f64 {
        let mean = self.mean_ms();
        let sum: f64 = self.samples.iter().map(|sample| (sample.ms as f64 - mean).abs()).sum();
        sum / self.samples.len().max(1) as f64
    }

    /// Returns the mean time between the kept samples until `now_s`, in seconds.
    pub fn period_s(&self, now_s: u64) -> f64 {
        let first = self.samples.first().map_or(now_s, |sample| sample.unix_s);
        let elapsed = now_s.saturating_sub(first).max(1);
        elapsed as f64 / self.samples.len().max(1) as f64
    }
}

/// The series of all events.
#[derive(Default)]
pub struct LatencyMonitor {
    events: Mutex<BTreeMap<&'static str, LatencySeries>>,
}

impl LatencyMonitor {
    /// Records that an event took `ms` milliseconds.
    pub fn add(&self, event: &'static str, unix_s: u64, ms: u64) {
        self.events.lock().entry(event).or_default().add(unix_s, ms);
    }

    /// Returns the name and the series of one event.
    pub fn series(&self, event: &[u8]) -> Option<(&'static str, LatencySeries)> {
        self.events
            .lock()
            .iter()
            .find(|(name, _)| name.as_bytes() == event)
            .map(|(name, series)| (*name, series.clone()))
    }

    /// Returns all events, sorted by name.
    pub fn all(&self) -> Vec<(&'static str, LatencySeries)> {
        self.events
            .lock()
            .iter()
            .map(|(name, series)| (*name, series.clone()))
            .collect()
    }

    /// Removes the series of one event. Returns `true` if there was one.
    pub fn reset(&self, event: &[u8]) -> bool {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|name, _| name.as_bytes() != event);
        events.len() != before
    }

    /// Removes the series of all events. Returns their number.
    pub fn reset_all(&self) -> usize {
        std::mem::take(&mut *self.events.lock()).len()
    }
}

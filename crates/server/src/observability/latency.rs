//! The latency monitor: for each kind of event that took longer than `latency-monitor-threshold`, its last spikes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::observability::lock;

#[cfg(test)]
mod tests;

/// Spikes kept of each event.
pub const SAMPLES: usize = 160;

/// One spike: the worst of its second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Seconds since the epoch.
    pub unix_s: u64,
    /// Milliseconds it took.
    pub ms: u64,
}

/// What is remembered of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Oldest first, at most [`SAMPLES`].
    pub samples: Vec<Sample>,
    /// The worst ever, ms.
    pub max_ms: u64,
    /// Sum over all spikes, ms.
    pub sum_ms: u64,
    /// Spikes, those of the same second counted one by one.
    pub count: u64,
}

impl Series {
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
        if self.samples.len() == SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push(Sample { unix_s, ms });
    }

    /// Mean of the kept samples, ms.
    pub fn mean_ms(&self) -> f64 {
        let sum: u64 = self.samples.iter().map(|sample| sample.ms).sum();
        sum as f64 / self.samples.len().max(1) as f64
    }

    /// Mean distance of the kept samples from their mean, ms.
    pub fn mean_deviation_ms(&self) -> f64 {
        let mean = self.mean_ms();
        let sum: f64 = self.samples.iter().map(|sample| (sample.ms as f64 - mean).abs()).sum();
        sum / self.samples.len().max(1) as f64
    }

    /// Mean time between the kept samples until `now_s`, seconds.
    pub fn period_s(&self, now_s: u64) -> f64 {
        let first = self.samples.first().map_or(now_s, |sample| sample.unix_s);
        let elapsed = now_s.saturating_sub(first).max(1);
        elapsed as f64 / self.samples.len().max(1) as f64
    }
}

/// All events.
#[derive(Default)]
pub struct LatencyMonitor {
    events: Mutex<BTreeMap<&'static str, Series>>,
}

impl LatencyMonitor {
    /// Notes that an event took `ms`.
    pub fn add(&self, event: &'static str, unix_s: u64, ms: u64) {
        lock(&self.events).entry(event).or_default().add(unix_s, ms);
    }

    /// One event's series.
    pub fn series(&self, event: &[u8]) -> Option<(&'static str, Series)> {
        lock(&self.events)
            .iter()
            .find(|(name, _)| name.as_bytes() == event)
            .map(|(name, series)| (*name, series.clone()))
    }

    /// All events by name.
    pub fn all(&self) -> Vec<(&'static str, Series)> {
        lock(&self.events)
            .iter()
            .map(|(name, series)| (*name, series.clone()))
            .collect()
    }

    /// Forgets one event; whether it was there.
    pub fn reset(&self, event: &[u8]) -> bool {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|name, _| name.as_bytes() != event);
        events.len() != before
    }

    /// Forgets all events; how many there were.
    pub fn reset_all(&self) -> usize {
        std::mem::take(&mut *lock(&self.events)).len()
    }
}

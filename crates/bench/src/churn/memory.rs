//! What `churn` observes of a server's memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Shrinking;
use crate::control::ControlConnection;
use crate::error::Result;
use crate::process;
use crate::report::median;

/// Resident memory has followed the data when it is at most this many times the used memory.
pub const FOLLOWED_RATIO: f64 = 1.5;

/// The memory of a server at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemorySample {
    /// The seconds since the beginning of the observation.
    pub seconds: f64,
    /// The resident memory of the process, in bytes.
    pub rss: u64,
    /// `used_memory` of INFO, in bytes.
    pub used: u64,
    /// The number of keys that were evicted since the start.
    pub evicted: u64,
    /// The number of keys that have expired since the start.
    pub expired: u64,
}

impl MemorySample {
    /// Reads the memory of the server with this process id.
    ///
    /// # Errors
    /// Fails if the process has ended or does not answer INFO.
    pub fn read(pid: u32, control: &mut ControlConnection, begin: Instant) -> Result<MemorySample> {
        let [used, evicted, expired] = control.info_numbers(["used_memory", "evicted_keys", "expired_keys"])?;
        Ok(MemorySample {
            seconds: begin.elapsed().as_secs_f64(),
            rss: process::rss_bytes(pid)?,
            used,
            evicted,
            expired,
        })
    }

    /// Formats it as a text about the progress of a run.
    pub fn text(&self, max_memory: u64) -> String {
        let ratio = |bytes: u64| bytes as f64 / max_memory as f64;
        format!(
            "RSS {:.2}x and used memory {:.2}x maxmemory, {} keys evicted, {} expired",
            ratio(self.rss),
            ratio(self.used),
            self.evicted,
            self.expired
        )
    }

    fn rss_to_used(&self) -> f64 {
        self.rss as f64 / self.used.max(1) as f64
    }

    fn json(&self) -> Value {
        json!([self.seconds, self.rss, self.used])
    }
}

/// The samples of a load.
#[derive(Debug, Default)]
pub struct LoadSamples {
    /// All samples, in order.
    pub samples: Vec<MemorySample>,
    /// The number of times that all keys were flushed.
    pub flushes: u64,
    /// `true` if the load ran to its end.
    pub is_complete: bool,
}

impl LoadSamples {
    /// Returns the samples after the warm-up: those since the server has evicted its first key.
    pub fn after_warmup(&self) -> &[MemorySample] {
        let warm = self.samples.iter().position(|sample| sample.evicted > 0);
        warm.and_then(|warm| self.samples.get(warm..)).unwrap_or_default()
    }

    /// Returns the largest ratio of resident memory to `bytes` after the warm-up.
    pub fn largest_rss_to(&self, bytes: u64) -> Option<f64> {
        let ratios = self
            .after_warmup()
            .iter()
            .map(|sample| sample.rss as f64 / bytes as f64);
        ratios.max_by(f64::total_cmp)
    }

    /// Returns the median ratio of resident memory to `bytes` after the warm-up.
    pub fn median_rss_to(&self, bytes: u64) -> Option<f64> {
        median(
            self.after_warmup()
                .iter()
                .map(|sample| sample.rss as f64 / bytes as f64),
        )
    }

    /// Returns the median ratio of resident to used memory after the warm-up.
    pub fn median_rss_to_used(&self) -> Option<f64> {
        median(self.after_warmup().iter().map(MemorySample::rss_to_used))
    }

    /// Returns the number of evicted keys per second.
    pub fn evicted_per_s(&self) -> Option<f64> {
        let last = self.samples.last()?;
        Some(last.evicted as f64 / last.seconds.max(f64::MIN_POSITIVE))
    }

    /// Formats all samples as JSON: seconds, resident and used bytes.
    pub fn json(&self) -> Value {
        samples_json(&self.samples)
    }
}

/// The samples after the data have shrunk.
#[derive(Debug)]
pub struct ShrinkSamples {
    /// How they were shrunk.
    pub how: Shrinking,
    /// The time that the clients took.
    pub shrink_time: Duration,
    /// The memory before.
    pub before: MemorySample,
    /// The samples since the last reply to the clients.
    pub after: Vec<MemorySample>,
    /// `true` if the server was observed to the end.
    pub is_complete: bool,
}

impl ShrinkSamples {
    /// Returns the seconds until resident memory has followed the used one; `None` if it has not.
    pub fn follow_s(&self) -> Option<f64> {
        let followed = |sample: &&MemorySample| sample.rss_to_used() <= FOLLOWED_RATIO;
        self.after.iter().find(followed).map(|sample| sample.seconds)
    }

    /// Returns the last sample.
    pub fn last(&self) -> Option<&MemorySample> {
        self.after.last()
    }

    /// Formats it as JSON.
    pub fn json(&self) -> Value {
        json!({
            "how": self.how.name(),
            "shrink_seconds": self.shrink_time.as_secs_f64(),
            "rss_before": self.before.rss,
            "used_before": self.before.used,
            "seconds_until_followed": self.follow_s(),
            "samples": samples_json(&self.after),
        })
    }
}

fn samples_json(samples: &[MemorySample]) -> Value {
    samples.iter().map(MemorySample::json).collect()
}

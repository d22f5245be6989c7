//! Durations that modules report to the latency monitor.

use weft_base::clock::unix_ms;
use weft_config::id;
use weft_modules::session::latency::LatencyHost;

use super::ModuleHost;

impl LatencyHost for ModuleHost {
    fn add_latency_sample(&self, event: &'static str, milliseconds: u64) {
        let threshold_ms = self.server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
        if threshold_ms > 0 && milliseconds >= threshold_ms {
            self.server
                .stats
                .history
                .latency
                .add(event, unix_ms() / 1000, milliseconds);
        }
    }
}

//! Observability: the log, counters, latencies and memory statistics.

pub mod activity;
pub mod big_keys;
pub mod commandlog;
pub mod defragmentation;
pub mod errors;
pub mod fragmentation;
pub mod hot_keys;
pub mod latency;
pub mod log;
pub mod log_line;
pub mod memory;
pub mod metrics;
#[cfg(not(feature = "jemalloc"))]
mod no_slab;
pub mod process;
pub mod rates;
pub mod slot_stats;
pub mod slow_library;
pub mod stalls;
pub mod syslog;
pub mod used_memory;

/// The recorded history, apart from counters.
#[derive(Default)]
pub struct ObservedHistory {
    /// The command log.
    pub commandlog: commandlog::CommandLog,
    /// The latency monitor.
    pub latency: latency::LatencyMonitor,
    /// The rates per second.
    pub rates: rates::Rates,
    /// The bytes in use when the server had started, before it loaded any data.
    pub startup_memory: weft_os::atomic::AtomicU64,
    /// Set while `DEBUG PAUSE-CRON` is in effect.
    pub is_cron_paused: weft_os::atomic::AtomicBool,
    /// Set while `DEBUG CLIENT-ENFORCE-REPLY-LIST` is in effect.
    pub enforces_reply_list: weft_os::atomic::AtomicBool,
}

//! What the server tells about itself: the log, counters, latencies.

pub mod commandlog;
pub mod errors;
pub mod latency;
pub mod log;
pub mod log_line;
pub mod memory;
pub mod metrics;
pub mod process;
pub mod rates;
pub mod slot_stats;
pub mod syslog;
pub mod used_memory;

/// Locks a mutex whose data stays valid whatever a panicking holder did.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What is remembered of the past beside counters.
#[derive(Default)]
pub struct Observations {
    /// Slow and large commands.
    pub commandlog: commandlog::CommandLog,
    /// Spikes.
    pub latency: latency::LatencyMonitor,
    /// Rates per second.
    pub rates: rates::Rates,
    /// Bytes allocated when the server was ready, before it had any client.
    pub startup_memory: std::sync::atomic::AtomicU64,
    /// `DEBUG PAUSE-CRON`.
    pub cron_paused: std::sync::atomic::AtomicBool,
}

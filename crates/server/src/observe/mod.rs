//! What the server tells about itself: the log, counters, latencies.

pub mod errors;
pub mod log;
pub mod log_line;
pub mod memory;
pub mod metrics;
pub mod syslog;

/// Locks a mutex whose data stays valid whatever a panicking holder did.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

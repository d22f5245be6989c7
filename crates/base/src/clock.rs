//! Clocks that need no system call.

use rustix::time::{ClockId, Timespec, clock_gettime};
use weft_os::time::{simulated_monotonic_us, simulated_unix_us};

/// Microseconds since an unspecified fixed point; never decreases. Needs no system call (vDSO).
pub fn monotonic_us() -> u64 {
    simulated_monotonic_us().unwrap_or_else(|| microseconds(clock_gettime(ClockId::Monotonic)))
}

/// Microseconds since the Unix epoch by the wall clock, which may jump. Needs no system call (vDSO).
pub fn unix_us() -> u64 {
    simulated_unix_us().unwrap_or_else(|| microseconds(clock_gettime(ClockId::Realtime)))
}

/// Milliseconds since the Unix epoch by the wall clock, which may jump. Needs no system call (vDSO).
pub fn unix_ms() -> u64 {
    unix_us() / 1000
}

fn microseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    //! Tests of the clocks against the standard library's.

    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn clocks_count_in_the_units_of_their_names() {
        let (monotonic, before) = (monotonic_us(), SystemTime::now());
        std::thread::sleep(Duration::from_millis(20));
        let passed = monotonic_us() - monotonic;
        assert!(
            (20_000..10_000_000).contains(&passed),
            "20 ms of sleep took {passed} us"
        );
        let wall = before.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!((wall..wall + 10_000).contains(&unix_ms()));
        assert!((wall..wall + 10_000).contains(&(unix_us() / 1000)));
    }
}

//! Clocks that show simulated time.

use std::ops::{Add, AddAssign, Sub, SubAssign};
pub use std::time::Duration;

use super::scheduler;

/// A moment of the simulated monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

#[allow(missing_docs)]
impl Instant {
    pub fn now() -> Instant {
        Instant(Duration::from_nanos(scheduler::now_ns()))
    }
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }
    pub fn elapsed(&self) -> Duration {
        Instant::now().duration_since(*self)
    }
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }
    pub fn checked_sub(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_sub(duration).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0 - duration)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        self.0 -= duration;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A moment of the simulated wall clock, as the time since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SystemTime(Duration);

/// The Unix epoch.
pub const UNIX_EPOCH: SystemTime = SystemTime(Duration::ZERO);

/// The error of a difference of times that would be negative.
#[derive(Clone, Debug)]
pub struct SystemTimeError(Duration);

#[allow(missing_docs)]
impl SystemTimeError {
    pub fn duration(&self) -> Duration {
        self.0
    }
}

impl std::fmt::Display for SystemTimeError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("second time provided was later than self")
    }
}

impl std::error::Error for SystemTimeError {}

#[allow(missing_docs)]
impl SystemTime {
    pub const UNIX_EPOCH: SystemTime = UNIX_EPOCH;

    pub fn now() -> SystemTime {
        SystemTime(Duration::from_nanos(scheduler::unix_ns()))
    }
    pub fn duration_since(&self, earlier: SystemTime) -> Result<Duration, SystemTimeError> {
        self.0
            .checked_sub(earlier.0)
            .ok_or_else(|| SystemTimeError(earlier.0.saturating_sub(self.0)))
    }
}

/// Returns the monotonic time in microseconds if a simulation decides about it.
pub fn simulated_monotonic_us() -> Option<u64> {
    Some(scheduler::now_ns() / 1000)
}

/// Returns the time since the Unix epoch in microseconds if a simulation decides about it.
pub fn simulated_unix_us() -> Option<u64> {
    Some(scheduler::unix_ns() / 1000)
}

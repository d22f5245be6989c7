//! Bounds within which something must happen under fair scheduling.
//!
//! Simulated time and steps do not go together: in some seeds a step takes little time, in others threads are stalled
//! for most of the time. A bound is exceeded if much of both has passed, or very much of one of them.

use weft_os::scheduler::{self, RunFigures};

/// The number of steps that must have passed together with the time.
const MIN_STEPS: u64 = 5_000_000;
/// The number of steps that exceeds every bound.
const MAX_STEPS: u64 = 100_000_000;
/// The time that exceeds every bound, in nanoseconds.
const MAX_NS: u64 = 40_000_000_000;

/// A bound.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    nanoseconds: u64,
}

impl Bound {
    /// A bound of simulated time.
    pub const fn of_ms(milliseconds: u64) -> Bound {
        Bound {
            nanoseconds: milliseconds * 1_000_000,
        }
    }

    /// Checks that it is not exceeded.
    ///
    /// # Errors
    /// With the time that has passed if it is.
    pub fn check(self, start: &RunFigures) -> Result<(), String> {
        let now = scheduler::figures();
        let (nanoseconds, steps) = (now.now_ns - start.now_ns, now.steps - start.steps);
        let is_exceeded =
            (nanoseconds > self.nanoseconds && steps > MIN_STEPS) || nanoseconds > MAX_NS || steps > MAX_STEPS;
        match is_exceeded {
            true => Err(format!("{} ms and {steps} steps", nanoseconds / 1_000_000)),
            false => Ok(()),
        }
    }
}

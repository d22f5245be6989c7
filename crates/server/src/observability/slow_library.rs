//! Reports code of function libraries that keeps other work waiting.
//!
//! Code that another server, or this one before, has loaded runs without a time limit. Nothing but this report shows
//! what waits for it.

use std::cell::Cell;
use std::time::Duration;

use super::log;
use weft_os::time::Instant;

/// The time after which code is reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// Writes one line to the log if the code of libraries takes long.
#[derive(Debug)]
pub struct SlowLibraryReport {
    waiting: &'static str,
    since: Instant,
    is_written: Cell<bool>,
}

impl SlowLibraryReport {
    /// Begins to measure the time of code that is about to run. `waiting` names what waits for it.
    pub fn new(waiting: &'static str) -> SlowLibraryReport {
        SlowLibraryReport {
            waiting,
            since: Instant::now(),
            is_written: Cell::new(false),
        }
    }

    /// Writes the line if it is due. Called while the code runs.
    pub fn write_if_due(&self) {
        if self.is_due(Instant::now()) {
            log::warning!(
                "{} waits for the code of function libraries, which has run for {} seconds",
                self.waiting,
                REPORT_AFTER.as_secs()
            );
        }
    }

    /// Returns `true` if the line is due and was not written yet.
    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= REPORT_AFTER && !self.is_written.replace(true)
    }
}

#[cfg(test)]
mod tests;

//! Signals that end a run early: its servers are stopped, and the finished results are kept.
//!
//! A terminal sends SIGINT to every process of its foreground group, so the measured servers end too. The next request
//! to one of them then fails. [`Interruption::explain`] turns such an error into [`Error::Interrupted`].
//!
//! A signal that is ignored when the program starts stays ignored: `nohup` does that with SIGHUP, so that a run of
//! hours survives its terminal, and shells do it with SIGINT for programs in the background of a script.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{Error, ErrorContext, INTERRUPTED_EXIT_CODE, Result};

#[cfg(test)]
mod tests;

/// The longest sleep without a check for a signal.
const SLEEP_SLICE: Duration = Duration::from_millis(50);

/// A request to end the run. Clones share it. The default value is a request that no signal makes.
#[derive(Debug, Clone, Default)]
pub struct Interruption {
    requested: Arc<AtomicBool>,
}

impl Interruption {
    /// Creates a request that SIGINT (Ctrl-C), SIGTERM and SIGHUP make, unless they are ignored. A second SIGINT ends
    /// the process at once.
    ///
    /// # Errors
    /// Fails if the system refuses the signal handlers.
    pub fn on_signals() -> Result<Interruption> {
        let interruption = Interruption::default();
        let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
        let signals = [SIGINT, SIGTERM, SIGHUP];
        for signal in signals.into_iter().filter(|signal| !is_ignored(&status, *signal)) {
            if signal == SIGINT {
                // The handlers of a signal run in the order of their registration. This one finds the flag set from
                // the second SIGINT on.
                let exit_code = i32::from(INTERRUPTED_EXIT_CODE);
                flag::register_conditional_shutdown(SIGINT, exit_code, Arc::clone(&interruption.requested))
                    .context("handling signals")?;
            }
            interruption.watch(signal)?;
        }
        Ok(interruption)
    }

    fn watch(&self, signal: i32) -> Result<()> {
        flag::register(signal, Arc::clone(&self.requested)).context("handling signals")?;
        Ok(())
    }

    /// Returns `true` once the end is requested.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Checks that the run may continue.
    ///
    /// # Errors
    /// Fails with [`Error::Interrupted`] once the end is requested.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// Sleeps until `instant`.
    ///
    /// # Errors
    /// Fails with [`Error::Interrupted`] soon after the end is requested.
    pub fn sleep_until(&self, instant: Instant) -> Result<()> {
        loop {
            self.check()?;
            let rest = instant.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            thread::sleep(rest.min(SLEEP_SLICE));
        }
    }

    /// Replaces an error by [`Error::Interrupted`] if the end is requested: the signal has also reached the servers.
    ///
    /// # Errors
    /// Fails if `outcome` is an error.
    pub fn explain<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| if self.is_requested() { Error::Interrupted } else { error })
    }
}

/// Returns `true` if a process with this text in `/proc/PID/status` ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}

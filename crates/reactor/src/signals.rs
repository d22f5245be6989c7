//! Signal handling: SIGTERM, SIGINT and SIGALRM become requests that the coordinator finds after a wait; SIGHUP and
//! SIGPIPE are ignored.
//!
//! The handler stores the signal in an atomic and writes to the coordinator's eventfd. It also runs while the
//! coordinator is busy (loading a file). A second SIGINT therefore ends the process immediately: a user who presses
//! Ctrl-C twice does not want to wait for a snapshot.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::emergency::EmergencyLog;
use crate::{Waker, signal_action};

/// A request to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// The signal's name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

static WAKER: OnceLock<Waker> = OnceLock::new();
/// The signal that was received and not yet taken; 0 for none.
static PENDING: AtomicI32 = AtomicI32::new(0);
/// Set while a SIGALRM is pending, which requests a report of what the process is doing.
static REPORT: AtomicBool = AtomicBool::new(false);
/// Set while a shutdown has been requested and not aborted.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);

/// The signal handling of the process. There is one instance.
#[derive(Debug)]
pub struct Signals(());

impl Signals {
    /// Routes signals to the reactor that `waker` belongs to.
    ///
    /// # Errors
    /// Fails with `AlreadyExists` on the second call, or if the system refuses a handler.
    pub fn install(waker: Waker) -> io::Result<Self> {
        WAKER
            .set(waker)
            .map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
        signal_action::ignore(libc::SIGHUP)?;
        signal_action::ignore(libc::SIGPIPE)?;
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: rule 2; see `note`.
            unsafe { signal_action::handle(signal, note, libc::SA_RESTART)? };
        }
        // SAFETY: rule 2; see `ask_for_report`.
        unsafe { signal_action::handle(libc::SIGALRM, ask_for_report, libc::SA_RESTART)? };
        Ok(Self(()))
    }

    /// Returns `true` if SIGALRM was received since the last call: it requests a report of what the process is doing.
    pub fn take_report(&self) -> bool {
        REPORT.load(Ordering::Relaxed) && REPORT.swap(false, Ordering::Acquire)
    }

    /// Returns the signal that was received since the last call, if any; of two signals, the later one. Costs an atomic
    /// load.
    pub fn take(&self) -> Option<Signal> {
        if PENDING.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match PENDING.swap(0, Ordering::Acquire) {
            libc::SIGINT => Some(Signal::Interrupt),
            libc::SIGTERM => Some(Signal::Terminate),
            _ => None,
        }
    }

    /// Records that a shutdown is in progress, or that it was aborted. While it is in progress, SIGINT ends the process
    /// immediately. A signal sets the flag by itself; the caller sets it for other shutdowns and clears it after an
    /// abort.
    pub fn set_shutting_down(&self, shutting_down: bool) {
        SHUTTING_DOWN.store(shutting_down, Ordering::Release);
    }
}

/// Handles SIGTERM and SIGINT. Rule 2 holds: it uses atomics, a `OnceLock` that is set before installation, `write` and
/// `_exit`. It does not touch `errno`, because rustix makes the system calls itself.
extern "C" fn note(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let insisting = SHUTTING_DOWN.swap(true, Ordering::AcqRel);
    if insisting && signal == libc::SIGINT {
        EmergencyLog::open().write(b"You insist... exiting now.\n");
        // SAFETY: rule 2; `_exit` is async-signal-safe and does not return.
        unsafe { libc::_exit(1) };
    }
    PENDING.store(signal, Ordering::Release);
    if let Some(waker) = WAKER.get() {
        waker.wake();
    }
}

/// Handles SIGALRM. Rule 2 holds, as above.
extern "C" fn ask_for_report(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    REPORT.store(true, Ordering::Release);
    if let Some(waker) = WAKER.get() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;

//! Signal handling: SIGTERM, SIGINT and SIGALRM become requests that the coordinator finds after a wait; SIGHUP and
//! SIGPIPE are ignored.
//!
//! The handler stores the signal in an atomic and writes to the coordinator's eventfd. It also runs while the
//! coordinator is busy (loading a file). A second SIGINT therefore ends the process immediately: a user who presses
//! Ctrl-C twice does not want to wait for a snapshot. The unfinished file of that snapshot is removed.

use std::ffi::{CString, c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::emergency::EmergencyLog;
use crate::{Waker, signal_action};

/// A request to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownSignal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl ShutdownSignal {
    /// The signal's name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

static SIGNAL_WAKER: OnceLock<Waker> = OnceLock::new();
/// The signal that was received and not yet taken; 0 for none.
static PENDING_SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Set while a SIGALRM is pending, which requests a report of what the process is doing.
static REPORT_REQUESTED: AtomicBool = AtomicBool::new(false);
/// Set while a shutdown has been requested and not aborted.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);
/// The file that a second SIGINT removes.
static UNFINISHED_FILE: OnceLock<CString> = OnceLock::new();

/// The signal handling of the process. There is one instance.
#[derive(Debug)]
pub struct SignalReceiver(());

impl SignalReceiver {
    /// Routes signals to the reactor that `waker` belongs to.
    ///
    /// # Errors
    /// Fails with `AlreadyExists` on the second call, or if the system refuses a handler.
    pub fn install(waker: Waker) -> io::Result<Self> {
        SIGNAL_WAKER
            .set(waker)
            .map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
        signal_action::ignore(libc::SIGHUP)?;
        signal_action::ignore(libc::SIGPIPE)?;
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: rule 2; see `note`.
            unsafe { signal_action::handle(signal, on_shutdown_signal, libc::SA_RESTART)? };
        }
        // SAFETY: rule 2; see `on_report_signal`.
        unsafe { signal_action::handle(libc::SIGALRM, on_report_signal, libc::SA_RESTART)? };
        Ok(Self(()))
    }

    /// Sets the name, in the working directory, of the file that a second SIGINT removes: the shutdown may be writing
    /// it. The first call counts.
    pub fn set_unfinished_file(&self, name: CString) {
        let _ = UNFINISHED_FILE.set(name);
    }

    /// Returns a receiver for a server that shares its process with others, as in a simulation. It installs no handler.
    pub fn detached() -> Self {
        Self(())
    }

    /// Returns `true` if SIGALRM was received since the last call: it requests a report of what the process is doing.
    pub fn take_report_request(&self) -> bool {
        REPORT_REQUESTED.load(Ordering::Relaxed) && REPORT_REQUESTED.swap(false, Ordering::Acquire)
    }

    /// Returns the signal that was received since the last call, if any; of two signals, the later one. Costs an atomic
    /// load.
    pub fn take(&self) -> Option<ShutdownSignal> {
        if PENDING_SIGNAL.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match PENDING_SIGNAL.swap(0, Ordering::Acquire) {
            libc::SIGINT => Some(ShutdownSignal::Interrupt),
            libc::SIGTERM => Some(ShutdownSignal::Terminate),
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

/// Handles SIGTERM and SIGINT. Rule 2 holds: it uses atomics, a `OnceLock` that is set before installation and another
/// one that it only reads, `write`, `unlink` and `_exit`. It does not touch `errno`, because rustix makes the system
/// calls itself.
extern "C" fn on_shutdown_signal(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let is_already_shutting_down = SHUTTING_DOWN.swap(true, Ordering::AcqRel);
    if is_already_shutting_down && signal == libc::SIGINT {
        EmergencyLog::open().write(b"You insist... exiting now.\n");
        if let Some(file) = UNFINISHED_FILE.get() {
            // Usually no dump is being written, and there is no such file.
            let _ = rustix::fs::unlink(file.as_c_str());
        }
        // SAFETY: rule 2; `_exit` is async-signal-safe and does not return.
        unsafe { libc::_exit(1) };
    }
    PENDING_SIGNAL.store(signal, Ordering::Release);
    if let Some(waker) = SIGNAL_WAKER.get() {
        waker.wake();
    }
}

/// Handles SIGALRM. Rule 2 holds, as above.
extern "C" fn on_report_signal(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    REPORT_REQUESTED.store(true, Ordering::Release);
    if let Some(waker) = SIGNAL_WAKER.get() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;

//! SIGTERM, SIGINT and SIGALRM as requests the coordinator finds after a wait; SIGHUP and SIGPIPE ignored.
//!
//! The handler notes the signal in an atomic and writes to the coordinator's eventfd. It runs also
//! while the coordinator is busy (loading a file), so a second SIGINT can end the process there and
//! then: somebody who presses Ctrl-C twice does not want to wait for a snapshot.

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
    /// Its name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

static WAKER: OnceLock<Waker> = OnceLock::new();
/// The signal nobody has taken yet; 0 for none.
static PENDING: AtomicI32 = AtomicI32::new(0);
/// Somebody wants to know what the process is doing.
static REPORT: AtomicBool = AtomicBool::new(false);
/// A shutdown was asked for and has not been called off.
static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);

/// The process's signals. There is one.
#[derive(Debug)]
pub struct Signals(());

impl Signals {
    /// Routes signals to the reactor `waker` belongs to. Fails with `AlreadyExists` the second time.
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

    /// Whether SIGALRM came since the last call: somebody wants to know what the process is doing.
    pub fn take_report(&self) -> bool {
        REPORT.load(Ordering::Relaxed) && REPORT.swap(false, Ordering::Acquire)
    }

    /// The signal that came since the last call, if any: the later of two. Costs an atomic load.
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

    /// Tells whether a shutdown is under way, whoever asked for it. While it is, SIGINT ends the
    /// process at once; a signal sets it by itself, and a shutdown that was called off clears it.
    pub fn set_shutting_down(&self, shutting_down: bool) {
        SHUTTING_DOWN.store(shutting_down, Ordering::Release);
    }
}

/// Rule 2 holds: atomics, a `OnceLock` that is set before installation, `write`, `_exit`; `errno` is
/// not touched, because rustix makes the system calls itself.
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

/// Rule 2 holds, as above.
extern "C" fn ask_for_report(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    REPORT.store(true, Ordering::Release);
    if let Some(waker) = WAKER.get() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;

//! Signal dispositions of the process: a safe wrapper of `sigaction`.

use std::ffi::{c_int, c_void};
use std::io;

/// A signal handler in the three-argument form.
pub(crate) type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs `handler` for `signal`, with `SA_SIGINFO` and `flags`. It runs on the thread's alternate stack if the
/// thread has one.
///
/// # Safety
///
/// `handler` obeys rule 2.
pub(crate) unsafe fn handle(signal: c_int, handler: Handler, flags: c_int) -> io::Result<()> {
    let flags = flags | libc::SA_SIGINFO | libc::SA_ONSTACK;
    set(signal, handler as *const () as libc::sighandler_t, flags)
}

/// Ignores `signal`.
pub(crate) fn ignore(signal: c_int) -> io::Result<()> {
    set(signal, libc::SIG_IGN, 0)
}

/// Restores the default action of `signal`. Async-signal-safe.
pub(crate) fn reset(signal: c_int) -> io::Result<()> {
    set(signal, libc::SIG_DFL, 0)
}

/// Sends `signal` to the calling thread. Async-signal-safe.
pub(crate) fn raise(signal: c_int) {
    // SAFETY: rule 2; `raise` takes any number and does not touch the program's memory.
    unsafe { libc::raise(signal) };
}

/// Unblocks `signal` in the calling thread. Async-signal-safe.
pub(crate) fn unblock(signal: c_int) -> io::Result<()> {
    // SAFETY: rule 1; a signal set consists of integers, and all zero is the empty set.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: rules 1 and 2; `signals` is live, and both calls are async-signal-safe.
    let result = unsafe {
        libc::sigaddset(&raw mut signals, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(result))
    }
}

fn set(signal: c_int, action: libc::sighandler_t, flags: c_int) -> io::Result<()> {
    // SAFETY: rule 1; sigaction consists of integers and pointers, and an all-zero mask is the empty set.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = action;
    new.sa_flags = flags;
    // SAFETY: rules 1 and 2; `new` is live, and `action` is a disposition or a handler for which the caller of `handle`
    // guarantees rule 2.
    match unsafe { libc::sigaction(signal, &raw const new, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! Waiting for sockets: system calls never wait, the scheduler does.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::scheduler::{self, Resource, Wakeup};
pub use crate::Interest;

/// The size of a write that a socket takes without blocking once it accepts output. The scheduler does not see a thread
/// that blocks in the kernel.
const MAX_BLOCKING_WRITE: usize = 32 * 1024;

/// Called before a system call that waits for `descriptor` at most for `timeout` (`None`: without a limit). Returns the
/// timeout for the system call. A simulation waits here, and the system call must not wait.
pub fn before_wait(descriptor: impl AsFd, interest: Interest, timeout: Option<Duration>) -> Option<Duration> {
    if !scheduler::is_simulated() {
        return timeout;
    }
    wait_until_ready(&descriptor, interest, timeout);
    Some(Duration::ZERO)
}

/// Returns `true` if the descriptor became ready in time.
fn wait_until_ready(descriptor: &impl AsFd, interest: Interest, timeout: Option<Duration>) -> bool {
    let flags = match interest {
        Interest::Input => PollFlags::IN,
        Interest::Output => PollFlags::OUT,
    };
    let start_ns = scheduler::now_ns();
    let mut is_over = false;
    loop {
        let seen = scheduler::activities();
        let mut polled = [PollFd::new(descriptor, flags)];
        // An error is found again, and reported, by the system call of the caller.
        if poll(&mut polled, Some(&Timespec::default())).unwrap_or(1) > 0 {
            scheduler::found_at_sockets();
            return true;
        }
        let left_ns = timeout.map(|timeout| {
            let passed = scheduler::now_ns() - start_ns;
            scheduler::nanoseconds(timeout).saturating_sub(passed)
        });
        if is_over || left_ns == Some(0) {
            return false;
        }
        // After the deadline, the descriptor is asked once more.
        is_over = scheduler::block(Resource::Sockets(seen), left_ns.map(Duration::from_nanos)) == Wakeup::TimedOut;
    }
}

/// Called before a read or write of a blocking socket. A simulation waits here for as long as the socket would.
///
/// # Errors
/// With `WouldBlock` if a simulation has waited for the socket's timeout.
pub fn before_blocking(socket: impl AsFd, interest: Interest) -> io::Result<()> {
    let option = match interest {
        Interest::Input => sockopt::Timeout::Recv,
        Interest::Output => sockopt::Timeout::Send,
    };
    let timeout = sockopt::socket_timeout(&socket, option).unwrap_or_default();
    if !scheduler::is_simulated() || wait_until_ready(&socket, interest, timeout) {
        return Ok(());
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Returns the part of `bytes` that may be written to a blocking socket at once after [`before_blocking`]. It is so
/// short that the write does not wait.
pub fn writable_part(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_BLOCKING_WRITE)]
}

/// Called around an operation on a socket that another thread may wait for, such as sending.
pub fn activity() {
    scheduler::activity();
}

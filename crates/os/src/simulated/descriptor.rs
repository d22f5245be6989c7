//! Waiting for sockets: system calls never wait, the scheduler does.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::scheduler::{self, Resource, Wakeup};
pub use crate::Interest;

/// Called before a system call that waits for `descriptor` at most for `timeout` (`None`: without a limit). Returns the
/// timeout for the system call. A simulation waits here, and the system call must not wait.
pub fn before_wait(descriptor: impl AsFd, interest: Interest, timeout: Option<Duration>) -> Option<Duration> {
    if !scheduler::is_simulated() {
        return timeout;
    }
    let flags = match interest {
        Interest::Input => PollFlags::IN,
        Interest::Output => PollFlags::OUT,
    };
    let start_ns = scheduler::now_ns();
    let mut is_over = false;
    loop {
        let seen = scheduler::activities();
        let mut polled = [PollFd::new(&descriptor, flags)];
        // An error is found again, and reported, by the system call of the caller.
        if poll(&mut polled, Some(&Timespec::default())).unwrap_or(1) > 0 {
            scheduler::found_at_sockets();
            break;
        }
        let left_ns = timeout.map(|timeout| {
            let passed = scheduler::now_ns() - start_ns;
            scheduler::nanoseconds(timeout).saturating_sub(passed)
        });
        if is_over || left_ns == Some(0) {
            break;
        }
        // After the deadline, the descriptor is asked once more.
        is_over = scheduler::block(Resource::Sockets(seen), left_ns.map(Duration::from_nanos)) == Wakeup::TimedOut;
    }
    Some(Duration::ZERO)
}

/// Called before a read or write of a blocking socket. A simulation waits here for as long as the socket would.
pub fn before_blocking(socket: impl AsFd, interest: Interest) {
    let option = match interest {
        Interest::Input => sockopt::Timeout::Recv,
        Interest::Output => sockopt::Timeout::Send,
    };
    let timeout = sockopt::socket_timeout(&socket, option).unwrap_or_default();
    before_wait(socket, interest, timeout);
}

/// Called around an operation on a socket that another thread may wait for, such as sending.
pub fn activity() {
    scheduler::activity();
}

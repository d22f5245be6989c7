//! A handle with which another thread ends a reactor's wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Wakes the [`Reactor`](crate::Reactor) from which it was taken. All clones wake the same reactor.
///
/// Each call is a system call, so a caller that sends many messages coalesces wake-ups: it wakes the reactor only if
/// the mailbox was empty. A wake-up that comes while the reactor is not waiting ends its next wait, so none is lost.
#[derive(Clone, Debug)]
pub struct Waker {
    eventfd: Arc<OwnedFd>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            eventfd: Arc::new(eventfd),
        })
    }

    /// Ends the reactor's current wait, or else its next one.
    ///
    /// The eventfd is watched for edges and never read: every write is an edge. Its counter would overflow after 2^64 -
    /// 2 writes, which no process reaches, so the write cannot fail.
    pub fn wake(&self) {
        let written = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        debug_assert!(written.is_ok(), "writing to an eventfd failed: {written:?}");
        weft_os::descriptor::activity();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

//! The command that each thread runs at the moment, for reports about threads that take long.
//!
//! A thread stores one number in its own cache line when a command begins. Only the watchdog reads it.

use std::sync::OnceLock;

use weft_base::{ClientId, ThreadIndex};
use weft_os::atomic::Ordering;
use weft_os::statistics::AtomicU64;

#[cfg(test)]
mod tests;

/// The bits of the number that hold the command's id plus one; the others hold the client's id.
const COMMAND_BITS: u32 = 16;

/// The activity of one thread. Two cache lines, because the adjacent-line prefetcher fetches lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct ThreadActivity {
    /// The running command and its client; 0 if there is none.
    running: AtomicU64,
    name: OnceLock<String>,
}

/// A command that a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningCommand {
    /// The id of the command.
    pub command: u16,
    /// The client that has sent it.
    pub client: ClientId,
}

/// The activities of all threads that have a seat at the keyspace.
pub struct ThreadActivities(Box<[ThreadActivity]>);

impl ThreadActivities {
    /// Creates the activities of `seats` threads that run nothing.
    pub fn new(seats: usize) -> Self {
        ThreadActivities((0..seats).map(|_| ThreadActivity::default()).collect())
    }

    /// Records that a thread begins a command. Only that thread calls this.
    #[inline]
    pub fn begin(&self, thread_index: ThreadIndex, command: u16, client: ClientId) {
        if let Some(activity) = self.0.get(thread_index.get()) {
            let number = client.get() << COMMAND_BITS | (u64::from(command) + 1);
            activity.running.store(number, Ordering::Relaxed);
        }
    }

    /// Records that a thread has ended its commands.
    #[inline]
    pub fn end(&self, thread_index: ThreadIndex) {
        if let Some(activity) = self.0.get(thread_index.get()) {
            activity.running.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the command that a thread runs, or the last one of several that it runs together.
    pub fn running(&self, thread_index: ThreadIndex) -> Option<RunningCommand> {
        let number = self.0.get(thread_index.get())?.running.load(Ordering::Relaxed);
        let command = (number & ((1 << COMMAND_BITS) - 1)).checked_sub(1)?;
        Some(RunningCommand {
            command: u16::try_from(command).ok()?,
            client: ClientId::new(number >> COMMAND_BITS),
        })
    }

    /// Gives a thread a name for reports. A thread keeps the first one.
    pub fn set_name(&self, thread_index: ThreadIndex, name: String) {
        if let Some(activity) = self.0.get(thread_index.get()) {
            let _ = activity.name.set(name);
        }
    }

    /// Returns the name of a thread, if it has one.
    pub fn name(&self, thread_index: ThreadIndex) -> Option<&str> {
        self.0.get(thread_index.get())?.name.get().map(String::as_str)
    }
}

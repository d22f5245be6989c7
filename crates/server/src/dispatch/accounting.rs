//! Counts commands and errors, and measures commands.

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::observability::metrics::Counter;
use weft_command_table::registry::Command;

use super::thread::ThreadState;

/// The measurements of a command that has ended.
#[derive(Clone, Copy, Debug)]
pub struct CommandEnd {
    /// The run time in nanoseconds.
    pub nanoseconds: u64,
    /// The size of the request, in bytes.
    pub request_bytes: usize,
    /// The size of the reply, in bytes.
    pub reply_bytes: usize,
}

/// Appends an error reply and counts it.
pub fn write_error(thread: &ThreadState, error: &CommandError, out: &mut Vec<u8>) {
    debug_assert!(!error.0.is_empty(), "an error reply has a text");
    error.append_to(out);
    thread
        .server
        .stats
        .metrics
        .add(thread.thread_index, Counter::ErrorReplies, 1);
    thread.server.stats.errors.count(error.code());
}

/// Adds a command to its counters. Returns its duration in nanoseconds.
#[inline]
pub(super) fn record_command(thread: &mut ThreadState, command: &'static Command<Binding>, failed: bool) -> u64 {
    let now = thread.timer.raw();
    let nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
    thread.ticks = now;
    thread.ended_commands += 1;
    let metrics = &thread.server.stats.metrics;
    metrics.record_execution(thread.thread_index, command.id as usize, nanoseconds, failed);
    if thread.tunables.latency_tracking {
        metrics.record_latency(thread.thread_index, command.id as usize, nanoseconds);
    }
    nanoseconds
}

//! Counts commands and errors, and measures commands.

use weft_resp::Args;

use crate::commands::context::Binding;
use crate::commands::error::CommandError;
use crate::commands::permission;
use crate::dispatch::command_events::{self, RecordedEnd};
use crate::net::connection::Connection;
use crate::observability::metrics::Counter;
use weft_acl::Denial;
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

/// Records that a client's command was denied, and returns the error.
#[cold]
pub(super) fn record_denial(
    thread: &ThreadState,
    connection: &Connection,
    command: &Command<Binding>,
    args: Args<'_>,
    denial: Denial,
) -> CommandError {
    let ThreadState {
        server,
        thread_index,
        now_ms,
        ..
    } = thread;
    let client = &connection.client;
    command_events::send_denial(command, args, client, denial);
    let refusal = permission::denied_access(client, permission::denial_context(client), command, &args, denial);
    let line = client.list_line(*now_ms, connection.buffers(0));
    permission::log_denial(server, *thread_index, *now_ms, refusal, line);
    permission::denial_error(denial.reason, client.login.name(), command)
}

/// Adds a command to its counters. Returns its duration in nanoseconds.
#[inline]
pub(super) fn record_command(thread: &mut ThreadState, command: &'static Command<Binding>, failed: bool) -> u64 {
    let now = thread.timer.raw();
    let nanoseconds = thread.timer.delta_as_nanos(thread.ticks, now);
    thread.ticks = now;
    thread.ended_commands += 1;
    if thread.commands_run_at_home {
        thread.recorded_end = Some(RecordedEnd { nanoseconds, failed });
    }
    if !thread.counts_commands {
        return nanoseconds;
    }
    let metrics = &thread.server.stats.metrics;
    metrics.record_execution(thread.thread_index, command.id as usize, nanoseconds, failed);
    if thread.tunables.latency_tracking {
        metrics.record_latency(thread.thread_index, command.id as usize, nanoseconds);
    }
    nanoseconds
}

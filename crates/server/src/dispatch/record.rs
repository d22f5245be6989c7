//! Records the end of a command: its counters, the command log, latency spikes.
//!
//! An ordinary command adds to its counters and compares three numbers with thresholds. Arguments are read and copied
//! only for a command that exceeds a threshold.

use std::sync::Arc;

use weft_base::{ClientId, SlotIndex, ThreadIndex};
use weft_resp::Args;

use crate::commands::context::{BackgroundRun, BackgroundStep, BackgroundWork, Binding};
use crate::dispatch::command_events::{AwaitedEnd, RecordedEnd};
use crate::keyspace::Seat;
use crate::net::client::Client;
use crate::observability::commandlog::{CommandLogKind, LoggedCommand, loggable_arguments};
use crate::observability::metrics::Counter;
use crate::state::{BlockedCommand, ModuleWait, Server};
use weft_base::clock::unix_ms;
use weft_command_table::registry::Command;
use weft_command_table::spec::CommandFlags;
use weft_config as config;
use weft_config::id;
use weft_modules::module::parameters;
use weft_os::time::Instant;

use super::accounting::CommandEnd;
use super::slot_stats::{self, CommandCost};
use super::thread::ThreadState;
use super::tunables::Tunables;

#[cfg(test)]
mod tests;

/// The thresholds above which a command is logged.
#[derive(Clone, Copy, Debug)]
pub struct CommandLogThresholds {
    slow_ns: u64,
    latency_event_ns: u64,
    request_bytes: usize,
    reply_bytes: usize,
}

impl CommandLogThresholds {
    /// Returns the thresholds of a worker.
    #[inline]
    pub fn from_tunables(tunables: &Tunables) -> Self {
        CommandLogThresholds {
            slow_ns: tunables.slow_ns,
            latency_event_ns: tunables.latency_event_ns,
            request_bytes: tunables.large_request_bytes,
            reply_bytes: tunables.large_reply_bytes,
        }
    }

    /// Returns `true` if a command exceeds a threshold.
    #[inline]
    pub fn is_exceeded_by(&self, ending: &CommandEnd) -> bool {
        ending.nanoseconds >= self.slow_ns.min(self.latency_event_ns)
            || ending.request_bytes >= self.request_bytes
            || ending.reply_bytes >= self.reply_bytes
    }
}

/// Logs a command if it exceeds a threshold.
#[inline]
pub fn log_if_exceeded(
    server: &Server,
    command: &Command<Binding>,
    thresholds: CommandLogThresholds,
    ending: &CommandEnd,
    subject: impl FnOnce() -> LoggedCommand,
) {
    if thresholds.is_exceeded_by(ending) {
        log_excess(server, command, thresholds, ending, subject());
    }
}

/// Logs a command that exceeds a threshold.
#[cold]
pub fn log_excess(
    server: &Server,
    command: &Command<Binding>,
    thresholds: CommandLogThresholds,
    ending: &CommandEnd,
    subject: LoggedCommand,
) {
    let flags = command.spec.flags;
    let unix_s = unix_ms() / 1000;
    if ending.nanoseconds >= thresholds.latency_event_ns {
        let event = if flags.contains(CommandFlags::FAST) {
            "fast-command"
        } else {
            "command"
        };
        server
            .stats
            .history
            .latency
            .add(event, unix_s, ending.nanoseconds / 1_000_000);
    }
    if flags.contains(CommandFlags::SKIP_COMMANDLOG) {
        return;
    }
    let excesses = [
        (
            CommandLogKind::Slow,
            ending.nanoseconds >= thresholds.slow_ns,
            ending.nanoseconds / 1000,
        ),
        (
            CommandLogKind::LargeRequest,
            ending.request_bytes >= thresholds.request_bytes,
            ending.request_bytes as u64,
        ),
        (
            CommandLogKind::LargeReply,
            ending.reply_bytes >= thresholds.reply_bytes,
            ending.reply_bytes as u64,
        ),
    ];
    for (kind, exceeded, size) in excesses {
        if exceeded {
            let max_len = server.config.unsigned(max_len_parameter(kind)) as usize;
            server
                .stats
                .history
                .commandlog
                .push(kind, max_len, unix_s, size, subject.clone());
        }
    }
}

fn max_len_parameter(kind: CommandLogKind) -> config::ParameterId {
    match kind {
        CommandLogKind::Slow => id::COMMANDLOG_SLOW_EXECUTION_MAX_LEN,
        CommandLogKind::LargeRequest => id::COMMANDLOG_LARGE_REQUEST_MAX_LEN,
        CommandLogKind::LargeReply => id::COMMANDLOG_LARGE_REPLY_MAX_LEN,
    }
}

/// Returns the command and its client as the command log shows them.
pub fn logged_command(command: &Command<Binding>, args: Args<'_>, client: &Client) -> LoggedCommand {
    LoggedCommand {
        arguments: loggable_arguments(args.iter(), |index| {
            is_redacted(command.full_name, args, index) || client.redacted_arguments.contains(&(index as u32))
        }),
        address: client.address.to_string(),
        name: client.name.clone(),
    }
}

/// Returns `true` if logs must not show this argument.
pub fn is_redacted(full_name: &str, args: Args<'_>, index: usize) -> bool {
    let word =
        |back: usize, word: &str| index > back && args.argument(index - back).eq_ignore_ascii_case(word.as_bytes());
    match full_name {
        "auth" => index >= 1,
        "hello" => (index > 2 && word(1, "auth")) || (index > 3 && word(2, "auth")),
        "migrate" => index > 5 && (word(1, "auth") || word(1, "auth2") || word(2, "auth2")),
        "acl|setuser" | "acl|getuser" | "acl|deluser" => index >= 2,
        "config|set" => {
            index >= 3
                && index % 2 == 1
                && match config::find(args.argument(index - 1)) {
                    Some(named) => named.id.parameter().flags.contains(config::ParameterFlags::SENSITIVE),
                    None => parameters::is_sensitive(args.argument(index - 1)),
                }
        }
        _ => false,
    }
}

/// Returns `true` if a command that begins to wait is likely to be logged at its end. Preparing for that is cheap
/// compared with the wait.
pub fn may_exceed_thresholds(tunables: &Tunables, blocked: &BlockedCommand) -> bool {
    let ending = CommandEnd {
        nanoseconds: blocked.nanoseconds + WAIT_END_ALLOWANCE_NS,
        request_bytes: blocked.request_bytes,
        reply_bytes: 0,
    };
    CommandLogThresholds::from_tunables(tunables).is_exceeded_by(&ending)
}

/// The time that the end of a wait may add to its command, in nanoseconds.
const WAIT_END_ALLOWANCE_NS: u64 = 100_000;

/// Records a command that has waited and ends with its wait. `nanoseconds` is the time that serving took, and
/// `reply_bytes` the size of the reply. `is_served` is `true` if the reply is what the client waited for.
pub fn record_blocked_command(
    thread: &ThreadState,
    blocked: &mut BlockedCommand,
    nanoseconds: u64,
    reply_bytes: usize,
    failed: bool,
    is_served: bool,
) {
    let ThreadState {
        server,
        thread_index,
        tunables,
        ..
    } = thread;
    let nanoseconds = blocked.nanoseconds + nanoseconds;
    debug_assert!(blocked.waiter.is_claimed(), "a wait that ends was claimed");
    server
        .stats
        .metrics
        .record_execution(*thread_index, blocked.command, nanoseconds, failed);
    if blocked.slot.is_some() {
        let served_bytes = is_served.then_some(reply_bytes);
        slot_stats::count_blocked_command(server, *thread_index, blocked, nanoseconds, served_bytes);
    }
    if tunables.latency_tracking {
        server
            .stats
            .metrics
            .record_latency(*thread_index, blocked.command, nanoseconds);
    }
    let command = crate::commands::registry().commands().get(blocked.command);
    let (Some(command), Some(subject)) = (command, blocked.logged_command.take()) else {
        return;
    };
    let ending = CommandEnd {
        nanoseconds,
        request_bytes: blocked.request_bytes,
        reply_bytes,
    };
    log_if_exceeded(
        server,
        command,
        CommandLogThresholds::from_tunables(tunables),
        &ending,
        || subject,
    );
}

/// Records a command that has waited for a module, like [`record_blocked_command`].
pub fn record_module_command(
    thread: &ThreadState,
    wait: &mut ModuleWait,
    nanoseconds: u64,
    reply_bytes: usize,
    failed: bool,
) {
    let (metrics, thread_index) = (&thread.server.stats.metrics, thread.thread_index);
    metrics.record_execution(thread_index, wait.command, nanoseconds, failed);
    if thread.tunables.latency_tracking {
        metrics.record_latency(thread_index, wait.command, nanoseconds);
    }
    let command = crate::commands::registry().commands().get(wait.command);
    let (Some(command), Some(subject)) = (command, wait.logged_command.take()) else {
        return;
    };
    let ending = CommandEnd {
        nanoseconds,
        request_bytes: wait.request_bytes,
        reply_bytes,
    };
    let thresholds = CommandLogThresholds::from_tunables(&thread.tunables);
    log_if_exceeded(&thread.server, command, thresholds, &ending, || subject);
}

/// Wraps the background work of a command so that it counts as the command: its time, its error, its entries in the
/// logs. `slot` is the slot of its keys, if slot statistics are enabled.
pub fn with_command_accounting(
    command: &'static Command<Binding>,
    args: Args<'_>,
    client: &Client,
    request_bytes: usize,
    slot: Option<SlotIndex>,
    work: BackgroundWork,
) -> BackgroundWork {
    let accounting = BackgroundAccounting {
        awaited: AwaitedEnd::of(command, args, client),
        command,
        client: client.id,
        subject: logged_command(command, args, client),
        request_bytes,
        slot,
        nanoseconds: 0,
    };
    BackgroundWork {
        run: accounting.wrap(work.run),
        ..work
    }
}

/// What is needed to count background work as a command.
struct BackgroundAccounting {
    /// What modules hear of the command; `None` if none hears of commands.
    awaited: Option<AwaitedEnd>,
    command: &'static Command<Binding>,
    client: ClientId,
    subject: LoggedCommand,
    request_bytes: usize,
    slot: Option<SlotIndex>,
    /// The time of the parts that have ended.
    nanoseconds: u64,
}

impl BackgroundAccounting {
    /// Wraps a part of the work. The time for which a pause holds the work back does not count.
    fn wrap(mut self, run: BackgroundRun) -> BackgroundRun {
        Box::new(move |server, seat| {
            let start = Instant::now();
            let (activities, thread_index) = (&server.stats.activities, ThreadIndex::new(seat.index()));
            activities.begin(thread_index, self.command.id, self.client);
            let step = run(server, seat);
            self.nanoseconds += start.elapsed().as_nanos() as u64;
            match step {
                BackgroundStep::Reply { bytes, first_write } => {
                    self.record(server, seat, &bytes);
                    BackgroundStep::Reply { bytes, first_write }
                }
                BackgroundStep::Continue(rest) => BackgroundStep::Continue(self.wrap(rest)),
                BackgroundStep::TakeEffect(rest) => BackgroundStep::TakeEffect(self.wrap(rest)),
                BackgroundStep::AwaitResumption(resumptions, rest) => {
                    BackgroundStep::AwaitResumption(resumptions, self.wrap(rest))
                }
            }
        })
    }

    fn record(self, server: &Arc<Server>, seat: &Seat, bytes: &[u8]) {
        let BackgroundAccounting {
            command,
            subject,
            request_bytes,
            slot,
            nanoseconds,
            awaited,
            ..
        } = self;
        let failed = bytes.first() == Some(&b'-');
        if let Some(awaited) = awaited {
            awaited.send(RecordedEnd { nanoseconds, failed });
        }
        let thread_index = ThreadIndex::new(seat.index());
        // Read now, so that a CONFIG SET of a threshold is measured by the new threshold.
        let tunables = Tunables::from_server(server);
        server
            .stats
            .metrics
            .record_execution(thread_index, command.id as usize, nanoseconds, failed);
        if tunables.latency_tracking {
            server
                .stats
                .metrics
                .record_latency(thread_index, command.id as usize, nanoseconds);
        }
        if let Some(slot) = slot {
            let cost = CommandCost {
                nanoseconds,
                request_bytes,
                reply_bytes: bytes.len(),
                propagated_bytes: 0,
            };
            slot_stats::count_background_command(server, thread_index, command.id as usize, slot, cost);
        }
        if failed {
            let code = bytes[1..].split(|byte| matches!(byte, b' ' | b'\r')).next();
            server.stats.metrics.add(thread_index, Counter::ErrorReplies, 1);
            server.stats.errors.count(code.unwrap_or_default());
        }
        let ending = CommandEnd {
            nanoseconds,
            request_bytes,
            reply_bytes: bytes.len(),
        };
        log_if_exceeded(
            server,
            command,
            CommandLogThresholds::from_tunables(&tunables),
            &ending,
            || subject,
        );
    }
}

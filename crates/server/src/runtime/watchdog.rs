//! The watchdog: a thread that observes the other threads, and reports what takes too long (`observability/stalls.rs`).
//!
//! It takes no lock that other threads hold for long, no lease, and does not pass the gate. So it also reports when all
//! other threads are stuck. It sleeps for a quarter of the threshold between two observations.

use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_base::ThreadIndex;
use weft_base::clock::unix_ms;
use weft_config::id;
use weft_os::atomic::Ordering;

use crate::commands::registry;
use crate::observability::activity::RunningCommand;
use crate::observability::log;
use crate::observability::metrics::Counter;
use crate::observability::stalls::{
    LineLimit, StallDetector, StallKind, StallPhase, StallReport, ThreadObservations, WorkerObservation,
};
use crate::state::Server;

#[cfg(test)]
mod tests;

/// The pause between two observations while reports are switched off, and the longest one otherwise. A changed
/// threshold takes effect after this time at the latest.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The shortest pause.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The shortest threshold, in milliseconds. With a shorter one, every observation would be too late to count.
const MIN_THRESHOLD_MS: u64 = 20;
/// The client id that commands of a stream or a file show: as much of the highest id as an activity holds.
const REPLAYING_CLIENT: u64 = u64::MAX >> 16;

/// Starts the thread. A simulation has none: what is slow there is slow on purpose.
///
/// # Errors
/// When the operating system refuses a thread.
pub fn start(server: &Arc<Server>) -> std::io::Result<()> {
    if cfg!(feature = "simulated") {
        return Ok(());
    }
    let server = Arc::downgrade(server);
    weft_os::thread::Builder::new()
        .name("weft-watchdog".to_owned())
        .spawn(move || watch(&server))
        .map(drop)
}

fn watch(server: &Weak<Server>) {
    let mut watchdog = Watchdog::default();
    while let Some(server) = server.upgrade() {
        if server.stats.stalls.is_stopped() {
            return;
        }
        let pause = watchdog.look(&server);
        drop(server);
        weft_os::thread::sleep(pause);
    }
}

/// The state of the watchdog.
///
/// A stall that is reported was there at the last observation, too. Its command is the one that the thread ran then:
/// the command of now may have begun after the end of the stall, or after that of the command that took long.
#[derive(Default)]
struct Watchdog {
    detector: StallDetector,
    limit: LineLimit,
    /// The command of each thread at the last observation.
    commands: Vec<Option<RunningCommand>>,
}

impl Watchdog {
    /// Observes all threads once, and reports what takes too long. Returns the pause until the next observation.
    fn look(&mut self, server: &Server) -> Duration {
        let threshold = threshold(server);
        if threshold.is_zero() {
            self.detector.clear(&server.stats.stalls);
            self.commands.clear();
            return MAX_PAUSE;
        }
        let seen = observe(server);
        // Read after the turns and passages to which they belong.
        let commands = running_commands(server);
        let threshold_ns = threshold.as_nanos() as u64;
        for report in self.detector.observe(&seen, threshold_ns, &server.stats.stalls) {
            self.report(server, &report, &commands, seen.now_ns);
        }
        self.commands = commands;
        if let Some(lines) = self.limit.take_suppressed(seen.now_ns) {
            log::warning!("The watchdog has suppressed {lines} lines");
        }
        (threshold / 4).clamp(MIN_PAUSE, MAX_PAUSE)
    }

    fn report(&mut self, server: &Server, report: &StallReport, commands: &[Option<RunningCommand>], now_ns: u64) {
        let age_ms = report.age_ns / 1_000_000;
        if self.limit.permits(now_ns) {
            match report.phase {
                StallPhase::Begun | StallPhase::Continues => {
                    log::warning!("{}", self.describe(server, report, commands));
                }
                StallPhase::Ended => log::notice!(
                    "{} is no longer stalled, after {age_ms} ms or a little more",
                    thread_name(server, report.thread)
                ),
            }
        }
        let threshold_ms = server.config.unsigned(id::LATENCY_MONITOR_THRESHOLD);
        if threshold_ms != 0 && age_ms >= threshold_ms {
            let history = &server.stats.history;
            history.latency.add(report.kind.event(), unix_ms() / 1000, age_ms);
        }
    }

    /// Describes a stall that had not ended when the threads were observed. `commands` are the commands of now. Names
    /// the command and the client's id, and nothing that the client has sent.
    fn describe(&self, server: &Server, report: &StallReport, commands: &[Option<RunningCommand>]) -> String {
        let name = thread_name(server, report.thread);
        let age_ms = report.age_ns / 1_000_000;
        let mut text = match report.kind {
            StallKind::Turn => format!("{name} has been in one turn for {age_ms} ms, and its other clients wait"),
            StallKind::Lease => format!("{name} may have held leases for {age_ms} ms"),
            StallKind::Exclusive => format!("{name} has had exclusive mode for {age_ms} ms, and all clients wait"),
            StallKind::Message => format!("{name} has slept for {age_ms} ms with unread messages"),
        };
        if report.kind != StallKind::Message {
            let command_in = |commands: &[Option<RunningCommand>]| commands.get(report.thread).copied().flatten();
            text.push_str(&describe_command(command_in(&self.commands), command_in(commands)));
        }
        if report.keeps_closer_waiting {
            text.push_str(". Another thread waits for exclusive mode, and all clients with it");
        }
        text
    }
}

/// Describes the command of a stall: what the thread ran when the stall was there already. `now` is what it runs now.
fn describe_command(during_stall: Option<RunningCommand>, now: Option<RunningCommand>) -> String {
    let (verb, when) = match during_stall == now {
        true => ("runs", ""),
        false => ("ran", " until a moment ago"),
    };
    let Some(running) = during_stall else {
        return format!(": it {verb} no command{when}");
    };
    let command = registry().commands().get(usize::from(running.command));
    let command = command.map_or("", |command| command.full_name);
    match running.client.get() {
        REPLAYING_CLIENT => format!(": it {verb} '{command}' of a stream or a file{when}"),
        client => format!(": it {verb} '{command}' of client id={client}{when}"),
    }
}

/// Returns the time after which something is reported; zero for never.
fn threshold(server: &Server) -> Duration {
    let ms = match server.config.unsigned(id::WATCHDOG_PERIOD) {
        0 => server.config.unsigned(id::STALL_REPORT_THRESHOLD),
        period_ms => period_ms,
    };
    match ms {
        0 => Duration::ZERO,
        ms => Duration::from_millis(ms.max(MIN_THRESHOLD_MS)),
    }
}

/// Reads the state of all threads.
fn observe(server: &Server) -> ThreadObservations {
    let (slots, metrics) = (&server.keyspace.slots, &server.stats.metrics);
    // The clock is read last: no observed state is later than it.
    let workers = server.workers.iter().enumerate();
    let workers = workers
        .map(|(index, link)| WorkerObservation {
            turn_started_ns: link.turn_started_ns.load(Ordering::Relaxed),
            finished_turns_ns: metrics.thread_sum(ThreadIndex::new(index), Counter::BusyNs),
            unread_messages: link.mailbox.len(),
        })
        .collect();
    ThreadObservations {
        workers,
        seats: (0..slots.seats()).map(|seat| slots.observe_seat(seat)).collect(),
        closing: slots.observe_closing(),
        now_ns: server.lifecycle.started.elapsed().as_nanos() as u64,
    }
}

/// Returns the command that each thread runs.
fn running_commands(server: &Server) -> Vec<Option<RunningCommand>> {
    let threads = 0..server.keyspace.slots.seats();
    threads
        .map(|thread| server.stats.activities.running(ThreadIndex::new(thread)))
        .collect()
}

/// Returns the name of a thread for the log.
fn thread_name(server: &Server, thread: usize) -> String {
    if thread < server.workers.len() {
        return format!("Worker {thread}");
    }
    match server.stats.activities.name(ThreadIndex::new(thread)) {
        Some(name) => format!("Thread {name}"),
        None => format!("Thread {thread}"),
    }
}

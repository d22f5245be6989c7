//! Metrics of commands: executions, times, latencies, errors. They come from the counters of INFO `commandstats` and of
//! LATENCY HISTOGRAM.
//!
//! Only commands that clients have called appear, so the number of series follows the use of the server.

use std::collections::BTreeMap;

use super::table::metrics;
use crate::commands::registry;
use crate::metrics_endpoint::exposition::{Distribution, Exposition, Metric, seconds};
use crate::observability::metrics::{CommandFigures, Counter};
use crate::state::Server;

metrics! {
    COMMANDS = Metric::counter("weft_commands_total", "Executions of the command.").labelled(&["command"]);
    COMMAND_TIME = Metric::counter("weft_command_seconds_total", "Time spent in the command's executions.")
        .labelled(&["command"]);
    REJECTED = Metric::counter("weft_rejected_commands_total", "Calls of the command that were refused before they ran.")
        .labelled(&["command"]);
    FAILED = Metric::counter("weft_failed_commands_total", "Executions of the command that ended with an error.")
        .labelled(&["command"]);
    DURATION = Metric::histogram("weft_command_duration_seconds", "Duration of the command's executions, while latency-tracking is on. Limits are powers of two of nanoseconds.")
        .labelled(&["command"]);
    ERRORS = Metric::counter("weft_error_replies_total", "Error replies.");
    ERRORS_BY_CODE = Metric::counter("weft_error_replies_by_code_total", "Error replies with that code, the first word of the error.")
        .labelled(&["code"]);
}

/// The limits of the histogram's buckets: each is 2 to the power of this, in nanoseconds. They are denser where
/// commands usually end: 256 ns, doubling up to 34 ms, then four times as much each up to 8.6 s.
const LIMIT_EXPONENTS: [u32; 22] = [
    8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 27, 29, 31, 33,
];

/// The maximum number of characters of an error code: scripts make up their own.
const MAX_CODE_CHARACTERS: usize = 64;

/// Returns a figure of a command.
type CommandFigure = fn(&CommandFigures) -> u64;

/// Writes the metrics.
pub(super) fn write(out: &mut Exposition, server: &Server) {
    let called = called_commands(server);
    let families: [(&Metric, CommandFigure); 3] = [
        (&COMMANDS, |figures| figures.calls),
        (&REJECTED, |figures| figures.rejected),
        (&FAILED, |figures| figures.failed),
    ];
    for (metric, count) in families {
        let mut family = out.family(metric);
        for (name, _, figures) in &called {
            family.add(&[name], count(figures));
        }
    }
    let mut time = out.family(&COMMAND_TIME);
    for (name, _, figures) in &called {
        time.add(&[name], seconds(figures.nanoseconds));
    }
    write_durations(out, server, &called);
    out.single(&ERRORS, server.stats.metrics.sum(Counter::ErrorReplies));
    write_error_codes(out, server);
}

/// Returns the commands that were called, with their names, indexes and figures.
fn called_commands(server: &Server) -> Vec<(&'static str, usize, CommandFigures)> {
    let all = registry().commands().iter().map(|command| {
        let index = command.id as usize;
        (command.full_name, index, server.stats.metrics.command(index))
    });
    all.filter(|(_, _, figures)| figures.calls + figures.rejected + figures.failed > 0)
        .collect()
}

fn write_durations(out: &mut Exposition, server: &Server, called: &[(&str, usize, CommandFigures)]) {
    let limits = LIMIT_EXPONENTS.map(|exponent| seconds(1 << exponent));
    let mut family = out.family(&DURATION);
    for (name, index, _) in called {
        let Some(histogram) = server.stats.metrics.histogram(*index) else {
            continue;
        };
        let distribution = Distribution {
            limits: &limits,
            counts: &histogram.counts_below_powers(&LIMIT_EXPONENTS),
            total: histogram.total,
            sum: seconds(histogram.nanoseconds),
        };
        family.add_histogram(&[name], &distribution);
    }
}

/// Codes that become equal, because they are shortened or are not UTF-8, are counted together.
fn write_error_codes(out: &mut Exposition, server: &Server) {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (code, count) in server.stats.errors.all() {
        let code = String::from_utf8_lossy(&code)
            .chars()
            .take(MAX_CODE_CHARACTERS)
            .collect();
        *counts.entry(code).or_default() += count;
    }
    let mut family = out.family(&ERRORS_BY_CODE);
    for (code, count) in &counts {
        family.add(&[code], *count);
    }
}

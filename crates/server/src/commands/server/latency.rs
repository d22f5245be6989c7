//! LATENCY: latency spikes of the latency monitor, and latency histograms of commands.

use std::fmt::Write as _;
use std::ops::Range;

use crate::commands::context::{Binding, CommandResult, Context, leased};
use crate::commands::error::CommandError;
use crate::commands::registry;
use crate::observability::latency::{LatencySample, LatencySeries};
use crate::observability::metrics::Metrics;
use crate::observability::stalls::StallKind;
use weft_command_table::registry::Command;
use weft_config::{Config, id};
use weft_resp::Reply;

#[cfg(test)]
mod tests;

/// The subcommands.
pub const BINDINGS: &[(&str, Binding)] = &[
    ("latency|doctor", leased(doctor)),
    ("latency|graph", leased(graph)),
    ("latency|help", leased(help)),
    ("latency|histogram", leased(histogram)),
    ("latency|history", leased(history)),
    ("latency|latest", leased(latest)),
    ("latency|reset", leased(reset)),
];

fn latest(ctx: &mut Context<'_, '_>) -> CommandResult {
    let events = ctx.server.stats.history.latency.all();
    ctx.reply.array(events.len());
    for (name, series) in events {
        let last = series
            .samples
            .last()
            .copied()
            .unwrap_or(LatencySample { unix_s: 0, ms: 0 });
        ctx.reply.array(6);
        ctx.reply.bulk(name.as_bytes());
        for number in [last.unix_s, last.ms, series.max_ms, series.sum_ms, series.count] {
            ctx.reply.integer(number as i64);
        }
    }
    Ok(())
}

fn history(ctx: &mut Context<'_, '_>) -> CommandResult {
    let samples = ctx
        .server
        .stats
        .history
        .latency
        .series(ctx.arg(2))
        .map_or_else(Vec::new, |(_, series)| series.samples);
    ctx.reply.array(samples.len());
    for sample in samples {
        ctx.reply.array(2);
        ctx.reply.integer(sample.unix_s as i64);
        ctx.reply.integer(sample.ms as i64);
    }
    Ok(())
}

fn reset(ctx: &mut Context<'_, '_>) -> CommandResult {
    let monitor = &ctx.server.stats.history.latency;
    let forgotten = match ctx.argc() {
        2 => monitor.reset_all(),
        _ => ctx.args.iter().skip(2).filter(|event| monitor.reset(event)).count(),
    };
    ctx.reply.integer(forgotten as i64);
    Ok(())
}

fn histogram(ctx: &mut Context<'_, '_>) -> CommandResult {
    let metrics = &ctx.server.stats.metrics;
    write_histograms(&mut ctx.reply, metrics, ctx.args.iter().skip(2));
    Ok(())
}

/// Writes the histograms of the named commands in the order of the names, also of one that is named again. The name of
/// a container stands for its subcommands. Names that do not exist are skipped. Without names, all commands are shown.
fn write_histograms<'n>(reply: &mut Reply<'_>, metrics: &Metrics, names: impl Iterator<Item = &'n [u8]>) {
    let registry = registry();
    let commands = registry.commands();
    let mut writer = HistogramWriter {
        metrics,
        parts: vec![None; commands.len()],
        shown: 0,
    };
    let begun = reply.begin_map();
    let mut names = names.peekable();
    if names.peek().is_none() {
        commands.iter().for_each(|command| writer.write(reply, command));
    }
    for name in names {
        if let Some(named) = registry.find_by_full_name(name) {
            writer.write(reply, named);
            for subcommand in registry.subcommands(named) {
                writer.write(reply, subcommand);
            }
        }
    }
    reply.end_map(begun, writer.shown);
}

/// Writes histograms. A request may name a command any number of times, so each histogram is computed only once.
struct HistogramWriter<'m> {
    metrics: &'m Metrics,
    /// The part of the output with a command's histogram, by the command's id. It is empty if the command has none.
    parts: Vec<Option<Range<usize>>>,
    /// The number of histograms written.
    shown: usize,
}

impl HistogramWriter<'_> {
    fn write(&mut self, reply: &mut Reply<'_>, command: &Command<Binding>) {
        let Some(part) = self.parts.get_mut(usize::from(command.id)) else {
            return;
        };
        match part.clone() {
            Some(written) => reply.out.extend_from_within(written),
            None => {
                let start = reply.len();
                write_histogram(reply, self.metrics, command);
                *part = Some(start..reply.len());
            }
        }
        self.shown += usize::from(part.as_ref().is_some_and(|part| !part.is_empty()));
    }
}

/// Writes a command's name and histogram, if it has one.
fn write_histogram(reply: &mut Reply<'_>, metrics: &Metrics, command: &Command<Binding>) {
    let Some(histogram) = metrics.histogram(usize::from(command.id)) else {
        return;
    };
    let rows = histogram.cumulative_us();
    reply.bulk(command.full_name.as_bytes());
    reply.map(2);
    reply.bulk(b"calls");
    reply.integer(histogram.total as i64);
    reply.bulk(b"histogram_usec");
    reply.map(rows.len());
    for (limit_us, count) in rows {
        reply.integer(limit_us as i64);
        reply.integer(count as i64);
    }
}

/// The width and height of a graph, in characters.
const GRAPH_SIZE: (usize, u64) = (80, 4);

fn graph(ctx: &mut Context<'_, '_>) -> CommandResult {
    let Some((name, series)) = ctx.server.stats.history.latency.series(ctx.arg(2)) else {
        return Err(CommandError::with_word(
            "ERR No samples available for event '",
            ctx.arg(2),
            "'",
        ));
    };
    let text = draw_graph(name, &series, ctx.now_ms / 1000);
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

/// Draws one column per sample, as high as its latency, with its age written downwards below it.
fn draw_graph(name: &str, series: &LatencySeries, now_s: u64) -> String {
    let shown = &series.samples[series.samples.len().saturating_sub(GRAPH_SIZE.0)..];
    let high = shown.iter().map(|sample| sample.ms).max().unwrap_or(0);
    let low = shown.iter().map(|sample| sample.ms).min().unwrap_or(0);
    let mut text = format!(
        "{name} - high {high} ms, low {low} ms (all time high {} ms)\n",
        series.max_ms
    );
    text.push_str(&"-".repeat(GRAPH_SIZE.0));
    text.push('\n');
    let range = (high - low).max(1);
    // Each row has three levels.
    let inks = GRAPH_SIZE.1 * 3;
    let heights: Vec<u64> = shown
        .iter()
        .map(|sample| (sample.ms - low) * (inks - 1) / range)
        .collect();
    for row in (0..GRAPH_SIZE.1).rev() {
        let line: String = heights
            .iter()
            .map(|height| match height.checked_sub(row * 3) {
                None => ' ',
                Some(0) => '_',
                Some(1) => 'o',
                Some(2) => '#',
                Some(_) => '|',
            })
            .collect();
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&" ".repeat(shown.len()));
    text.push('\n');
    let ages: Vec<String> = shown
        .iter()
        .map(|sample| format_age(now_s.saturating_sub(sample.unix_s)))
        .collect();
    for row in 0..ages.iter().map(String::len).max().unwrap_or(0) {
        let line: String = ages
            .iter()
            .map(|age| age.as_bytes().get(row).map_or(' ', |byte| char::from(*byte)))
            .collect();
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Formats an age in its largest unit.
fn format_age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn doctor(ctx: &mut Context<'_, '_>) -> CommandResult {
    let events = ctx.server.stats.history.latency.all();
    let text = latency_report(&events, &ctx.server.config, ctx.now_ms / 1000);
    ctx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn latency_report(events: &[(&'static str, LatencySeries)], config: &Config, now_s: u64) -> String {
    let threshold_ms = config.integer(id::LATENCY_MONITOR_THRESHOLD);
    if threshold_ms == 0 {
        return "The latency monitor is off, so there is nothing to look at. \
                Switch it on with \"CONFIG SET latency-monitor-threshold <milliseconds>\".\n"
            .to_owned();
    }
    if events.is_empty() {
        return "No latency spike was seen: nothing took longer than the threshold.\n".to_owned();
    }
    let mut text = "Latency spikes were seen:\n\n".to_owned();
    for (index, (name, series)) in events.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}. {name}: {} latency spikes (average {:.0}ms, mean deviation {:.0}ms, period {:.2} sec). \
             Worst all time event {}ms.",
            index + 1,
            series.samples.len(),
            series.mean_ms(),
            series.mean_deviation_ms(),
            series.period_s(now_s),
            series.max_ms,
        );
    }
    let has = |event: &str| events.iter().any(|(name, _)| *name == event);
    text.push_str("\nWhat may help:\n\n");
    if has("command") || has("fast-command") {
        let slower_than_us = config.integer(id::COMMANDLOG_EXECUTION_SLOWER_THAN);
        if slower_than_us < 0 || slower_than_us > threshold_ms.saturating_mul(1000) {
            let _ = writeln!(
                text,
                "- The command log misses some of these commands. Let it see them with \
                 'CONFIG SET commandlog-execution-slower-than {}'.",
                threshold_ms.saturating_mul(1000)
            );
        }
        text.push_str("- Look at 'COMMANDLOG GET 10 slow' for commands that are slow by nature.\n");
    }
    if has("fast-command") {
        text.push_str(
            "- Fast commands took long: look for a machine with too few free CPUs, for swapping, or for \
             commands that hold the whole keyspace.\n",
        );
    }
    if has("expire-cycle") {
        text.push_str("- Many keys expire at the same moment: spread their times.\n");
    }
    if StallKind::ALL.iter().any(|kind| has(kind.event())) {
        text.push_str("- The log names the commands and clients that have kept threads busy at the time of the watchdog's events.\n");
    }
    text
}

fn help(ctx: &mut Context<'_, '_>) -> CommandResult {
    super::reply_with_help(
        ctx,
        "LATENCY",
        &[
            ("DOCTOR", "Explain the latency spikes that were seen."),
            ("GRAPH <event>", "Draw the latency spikes of <event>."),
            (
                "HISTORY <event>",
                "List time and milliseconds of the latency spikes of <event>.",
            ),
            ("LATEST", "List the latest latency spike of every event."),
            (
                "RESET [<event> ...]",
                "Forget the latency spikes of some events, or of all.",
            ),
            (
                "HISTOGRAM [COMMAND ...]",
                "Show how the latencies of some commands, or of all, are distributed.",
            ),
        ],
    )
}

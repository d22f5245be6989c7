//! The results of `churn`, as Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::client::{ClientCounts, Shrinking};
use super::memory::{FOLLOWED_RATIO, LoadSamples, ShrinkSamples};
use super::values::{LARGEST_VALUE, SMALLEST_VALUE};
use super::{ChurnOptions, SHRINKINGS};
use crate::control::ControlConnection;
use crate::error::Result;
use crate::report::{Report, ReportTable, format_decimal, format_ratio, format_thousands, write_table};
use crate::server::ServerParameters;

/// The results of one server.
#[derive(Debug)]
pub struct ChurnRow {
    label: &'static str,
    /// The command that started it.
    command: String,
    /// The memory during the churn.
    pub load: LoadSamples,
    counts: ClientCounts,
    /// How it followed its data when they shrank.
    pub shrinks: Vec<ShrinkSamples>,
}

impl ChurnRow {
    /// Creates a row for the churn of a server.
    pub fn new(label: &'static str, command: String, load: LoadSamples, counts: ClientCounts) -> ChurnRow {
        ChurnRow {
            label,
            command,
            load,
            counts,
            shrinks: Vec::new(),
        }
    }

    fn requests_per_s(&self) -> Option<f64> {
        let seconds = self.load.samples.last()?.seconds;
        Some(self.counts.requests as f64 / seconds.max(f64::MIN_POSITIVE))
    }

    fn cells(&self, max_memory: u64, settle_s: f64) -> Vec<String> {
        let mut cells = vec![
            self.label.to_string(),
            format_thousands(self.requests_per_s()),
            format_thousands(self.load.evicted_per_s()),
            self.counts.refused.to_string(),
            self.load.flushes.to_string(),
            format_ratio(self.load.largest_rss_to(max_memory)),
            format_ratio(self.load.median_rss_to(max_memory)),
            format_ratio(self.load.median_rss_to_used()),
        ];
        for shrink in &self.shrinks {
            let within = format!("> {settle_s:.0} s");
            cells.push(shrink.follow_s().map_or(within, |seconds| format!("{seconds:.1} s")));
            let megabytes = |bytes: Option<u64>| format_decimal(bytes.map(|bytes| bytes as f64 / 1e6), 0);
            let last = shrink.last();
            cells.push(format!(
                "{} / {}",
                megabytes(last.map(|sample| sample.rss)),
                megabytes(last.map(|sample| sample.used))
            ));
        }
        cells
    }

    fn json(&self, max_memory: u64) -> Value {
        let last = self.load.samples.last();
        json!({
            "label": self.label,
            "command": self.command,
            "requests": self.counts.requests,
            "requests_per_s": self.requests_per_s(),
            "refused": self.counts.refused,
            "evicted": last.map(|sample| sample.evicted),
            "expired": last.map(|sample| sample.expired),
            "flushes": self.load.flushes,
            "samples_after_warmup": self.load.after_warmup().len(),
            "largest_rss_to_maxmemory": self.load.largest_rss_to(max_memory),
            "median_rss_to_maxmemory": self.load.median_rss_to(max_memory),
            "median_rss_to_used": self.load.median_rss_to_used(),
            "samples": self.load.json(),
            "shrinks": self.shrinks.iter().map(ShrinkSamples::json).collect::<Vec<Value>>(),
        })
    }
}

/// The results of all servers.
#[derive(Debug)]
pub struct ChurnReport {
    /// The machine and the versions. It has no sections.
    head: Report,
    max_memory: u64,
    keys: u64,
    connections: usize,
    seconds: f64,
    settle_s: f64,
    /// The servers that ran.
    pub rows: Vec<ChurnRow>,
    /// The servers that cannot run, with the reason.
    left_out: Vec<(&'static str, String)>,
}

impl ChurnReport {
    /// Creates a report without results.
    pub fn new(options: &ChurnOptions) -> ChurnReport {
        ChurnReport {
            head: options.compare.new_report(),
            max_memory: options.max_memory,
            keys: options.keys(),
            connections: options.compare.connections,
            seconds: options.duration.as_secs_f64(),
            settle_s: options.settle.as_secs_f64(),
            rows: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Records that a server cannot run, with the error of its reply.
    pub fn leave_out(&mut self, label: &'static str, reason: String) {
        self.left_out.push((label, reason));
    }

    /// Records the version of a server.
    ///
    /// # Errors
    /// Fails like [`Report::record_version`].
    pub fn record_version(
        &mut self,
        label: &str,
        recipe: &ServerParameters,
        control: &mut ControlConnection,
    ) -> Result<()> {
        self.head.record_version(label, recipe, control)
    }

    fn heads(&self) -> Vec<String> {
        let mut heads: Vec<String> = [
            "server",
            "req/s",
            "evicted keys/s",
            "refused",
            "FLUSHDB",
            "RSS / maxmemory, largest",
            "RSS / maxmemory, median",
            "RSS / used memory, median",
        ]
        .map(String::from)
        .to_vec();
        for how in SHRINKINGS.map(Shrinking::name) {
            heads.push(format!("{how}: RSS ≤ {FOLLOWED_RATIO} × used memory after"));
            heads.push(format!("{how}: RSS / used MB after {:.0} s", self.settle_s));
        }
        heads
    }

    /// Returns the table, in which a server that cannot run has a row without figures.
    fn table(&self) -> ReportTable {
        let heads = self.heads();
        let finished = self.rows.iter().map(|row| row.cells(self.max_memory, self.settle_s));
        let left_out = self.left_out.iter().map(|(label, _)| {
            let mut cells = vec!["-".to_string(); heads.len()];
            cells[0] = format!("{label}: left out, see below");
            cells
        });
        let rows = finished.chain(left_out).collect();
        ReportTable { heads, rows }
    }

    /// Formats the results as a Markdown table.
    pub fn markdown(&self) -> String {
        let mut text = self.head.head_markdown();
        for row in &self.rows {
            let _ = writeln!(text, "- {}: `{}`", row.label, row.command);
        }
        let _ = writeln!(
            text,
            "\n{} clients, {} keys, values of {SMALLEST_VALUE} B to {LARGEST_VALUE} B, maxmemory of {} MB, {:.0} s. \
             Ratios are of the samples after the first eviction.\n",
            self.connections,
            self.keys,
            self.max_memory / 1_000_000,
            self.seconds
        );
        write_table(&mut text, &self.table());
        for (label, reason) in &self.left_out {
            let _ = writeln!(text, "\n{label} is left out: {reason}.");
        }
        text
    }

    /// Formats the results, including every sample, as JSON.
    pub fn json(&self) -> Value {
        let mut json = self.head.json();
        let rows = self.rows.iter().map(|row| row.json(self.max_memory));
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(label, reason)| json!({ "label": label, "reason": reason }));
        json["churn"] = json!({
            "maxmemory": self.max_memory,
            "keys": self.keys,
            "connections": self.connections,
            "seconds": self.seconds,
            "settle_seconds": self.settle_s,
            "rows": rows.collect::<Vec<Value>>(),
            "left_out": left_out.collect::<Vec<Value>>(),
        });
        json
    }
}

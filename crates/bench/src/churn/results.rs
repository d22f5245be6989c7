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

/// The number of cells of a row for each way of shrinking.
const CELLS_PER_SHRINKING: usize = 2;

/// The results of one server.
#[derive(Debug)]
pub struct ChurnRow {
    label: &'static str,
    /// The command that started it.
    command: String,
    /// The memory during the churn.
    pub load: LoadSamples,
    /// The counts of the clients during the churn.
    pub counts: ClientCounts,
    /// How it followed its data when they shrank.
    pub shrinks: Vec<ShrinkSamples>,
    /// Remarks below the table.
    pub remarks: Vec<String>,
}

impl ChurnRow {
    /// Creates the row of a server without results.
    pub fn new(label: &'static str, command: String) -> ChurnRow {
        ChurnRow {
            label,
            command,
            load: LoadSamples::default(),
            counts: ClientCounts::default(),
            shrinks: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Adds what was observed so far after the data have shrunk. Returns it, so that more can be added.
    ///
    /// # Panics
    /// Never: there is at least the one that was added.
    pub fn begin_shrink(&mut self, shrink: ShrinkSamples) -> &mut ShrinkSamples {
        self.shrinks.push(shrink);
        self.shrinks.last_mut().expect("one was added")
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
            let observed_s = match shrink.is_complete {
                true => settle_s,
                false => shrink.last().map_or(0.0, |last| last.seconds),
            };
            let within = format!("> {observed_s:.0} s");
            cells.push(shrink.follow_s().map_or(within, |seconds| format!("{seconds:.1} s")));
            let megabytes = |bytes: Option<u64>| format_decimal(bytes.map(|bytes| bytes as f64 / 1e6), 0);
            let last = shrink.last();
            cells.push(format!(
                "{} / {}",
                megabytes(last.map(|sample| sample.rss)),
                megabytes(last.map(|sample| sample.used))
            ));
        }
        let missing = SHRINKINGS.len().saturating_sub(self.shrinks.len());
        cells.extend(vec!["-".to_string(); CELLS_PER_SHRINKING * missing]);
        cells
    }

    /// Returns the remarks below the table: those of the row, and those about what is missing.
    fn all_remarks(&self, seconds: f64, settle_s: f64) -> Vec<String> {
        let mut remarks = self.remarks.clone();
        let observed_s = self.load.samples.last().map_or(0.0, |last| last.seconds);
        if !self.load.is_complete {
            remarks.push(format!("only {observed_s:.0} of {seconds:.0} s of churn were observed"));
        }
        for shrink in self.shrinks.iter().filter(|shrink| !shrink.is_complete) {
            let observed_s = shrink.last().map_or(0.0, |last| last.seconds);
            let how = shrink.how.name();
            remarks.push(format!("{how}: only {observed_s:.0} of {settle_s:.0} s were observed"));
        }
        remarks
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
            "remarks": self.remarks,
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
    /// The parameters of the clients, as a text.
    load: String,
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
            load: load_text(options),
            seconds: options.duration.as_secs_f64(),
            settle_s: options.settle.as_secs_f64(),
            rows: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds the row of a server that begins. Returns it, so that results can be added.
    ///
    /// # Panics
    /// Never: there is at least the row that was added.
    pub fn begin_row(&mut self, label: &'static str, command: String) -> &mut ChurnRow {
        self.rows.push(ChurnRow::new(label, command));
        self.rows.last_mut().expect("one was added")
    }

    /// Ends the run, with the reason if it ended early. A server that was not observed at all gets no row.
    pub fn end(&mut self, early_end: Option<String>) {
        self.head.early_end = early_end;
        self.rows.retain(|row| !row.load.samples.is_empty());
    }

    /// Returns `true` if a server was observed.
    pub fn has_results(&self) -> bool {
        !self.rows.is_empty()
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
            "\n{}. Ratios are of the samples after the first eviction.\n",
            self.load
        );
        write_table(&mut text, &self.table());
        for (label, reason) in &self.left_out {
            let _ = writeln!(text, "\n{label} is left out: {reason}.");
        }
        for row in &self.rows {
            for remark in row.all_remarks(self.seconds, self.settle_s) {
                let _ = writeln!(text, "\n{}: {remark}.", row.label);
            }
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
            "load": self.load,
            "seconds": self.seconds,
            "settle_seconds": self.settle_s,
            "rows": rows.collect::<Vec<Value>>(),
            "left_out": left_out.collect::<Vec<Value>>(),
        });
        json
    }
}

/// Formats what the clients of all servers have in common.
fn load_text(options: &ChurnOptions) -> String {
    let flushes = options.flush_interval.map_or("never flushed".to_string(), |interval| {
        format!("flushed every {:.0} s", interval.as_secs_f64())
    });
    format!(
        "{} clients with {} requests each, {} keys, {flushes}, values of {SMALLEST_VALUE} B to {LARGEST_VALUE} B, \
         maxmemory of {} MB, {:.0} s, seed {}; {}",
        options.compare.connections,
        options.pipeline,
        options.keys(),
        options.max_memory / 1_000_000,
        options.duration.as_secs_f64(),
        options.seed,
        options.compare.pinning_text()
    )
}

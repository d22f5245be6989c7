//! Results, and their tables as Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::environment::RunEnvironment;
use crate::run::Measurement;

#[cfg(test)]
mod tests;

/// A server that uses at least this share of its core is limited by itself, not by the client.
const SATURATED_CORE_SHARE: f64 = 0.95;

/// One load on all sides, with one measurement per side and round.
#[derive(Debug)]
pub struct LoadRow {
    /// The name of the load.
    pub load: String,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// The number of outstanding requests per connection.
    pub pipeline: u64,
    /// The activity of the other clients in each round on each side.
    pub notes: Vec<String>,
    /// The measurements per side and round.
    pub sides: Vec<Vec<Measurement>>,
}

/// The memory that a key space takes on each server.
#[derive(Debug)]
pub struct MemoryRow {
    /// The counted item; empty for keys.
    pub what: &'static str,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// `true` if each key has an expiry.
    pub ttl: bool,
    /// The number of items.
    pub keys: u64,
    /// The growth of resident memory per item on each server, in bytes.
    pub bytes_per_key: Vec<f64>,
}

/// The CPU time of a server without load.
#[derive(Debug)]
pub struct IdleRow {
    /// The name of the server.
    pub label: String,
    /// The length of the measurement in seconds.
    pub seconds: f64,
    /// The CPU time that the server used, in milliseconds.
    pub cpu_ms: f64,
}

/// A server with a number of workers: one point of the curve that shows how it scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerPoint {
    /// The name of the server.
    pub server: &'static str,
    /// The number of its workers.
    pub workers: usize,
}

/// A table of formatted cells. The first column names the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportTable {
    /// The heads of the columns.
    pub heads: Vec<String>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// The results of one comparison.
#[derive(Debug)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The names of the sides; ratios are the first over each other one.
    pub labels: Vec<String>,
    /// The command that started the server of each side.
    pub commands: Vec<String>,
    /// Remarks about the sides.
    pub remarks: Vec<String>,
    /// `true` if server and client have a core each.
    pub pinned: bool,
    /// The results of the loads.
    pub loads: Vec<LoadRow>,
    /// The memory per key.
    pub memory: Vec<MemoryRow>,
    /// The server and its number of workers on each side, if the sides differ by them; otherwise empty.
    pub worker_points: Vec<WorkerPoint>,
}

/// All results of one run.
#[derive(Debug)]
pub struct Report {
    /// The machine and the time.
    pub environment: RunEnvironment,
    /// The command line of this program.
    pub command_line: String,
    /// The reason why the run ended before its time.
    pub early_end: Option<String>,
    /// The parameters of the loads.
    settings: Value,
    /// The version of each side.
    pub versions: Vec<(String, String)>,
    /// The comparisons.
    pub sections: Vec<Section>,
    /// The servers without load.
    pub idle: Vec<IdleRow>,
}

/// A figure of a [`Measurement`] with its name in JSON.
type ReportMetric = (&'static str, fn(&Measurement) -> Option<f64>);

const METRICS: &[ReportMetric] = &[
    ("requests_per_s", |measured| Some(measured.requests_per_s)),
    ("server_cpu_us_per_request", |measured| measured.server_cpu_us),
    ("server_busy_cores", |measured| measured.server_busy_cores),
    ("client_cpu_us_per_request", |measured| Some(measured.client_cpu_us)),
    ("p50_us", |measured| Some(measured.p50_us)),
    ("p99_us", |measured| Some(measured.p99_us)),
    ("p999_us", |measured| Some(measured.p999_us)),
    ("max_us", |measured| Some(measured.max_us)),
    ("server_cpu_us_per_delivery", |measured| {
        measured.server_cpu_us_per_delivery
    }),
];

/// The metric of [`LoadRow::median`]: requests per second.
pub const REQUESTS: usize = 0;
/// The metric of [`LoadRow::median`]: the CPU time of the server per request, in microseconds.
pub const SERVER_CPU: usize = 1;
const SERVER_BUSY: usize = 2;
/// The metrics of [`LoadRow::median`]: the median, the 99th and the 99.9th percentile of latency, in microseconds.
pub const LATENCIES: [usize; 3] = [4, 5, 6];
const SERVER_CPU_PER_DELIVERY: usize = 8;

/// Columns of a table of loads: one per side, and one per ratio.
struct ColumnGroup {
    unit: &'static str,
    /// Formats the value of a side. The flag is `true` if server and client have a core each.
    cell: fn(&LoadRow, usize, bool) -> String,
    /// Formats the ratio of the first side to another one.
    ratio: fn(&LoadRow, usize) -> String,
}

const COLUMN_GROUPS: &[ColumnGroup] = &[
    ColumnGroup {
        unit: "req/s",
        cell: LoadRow::requests_cell,
        ratio: |row, other| format_ratio(row.ratio(REQUESTS, other)),
    },
    ColumnGroup {
        unit: "CPU-µs/req",
        cell: |row, side, _| format_decimal(row.median(side, SERVER_CPU), 2),
        ratio: |row, other| format_ratio(row.ratio(SERVER_CPU, other)),
    },
    ColumnGroup {
        unit: DELIVERY_UNIT,
        cell: |row, side, _| format_decimal(row.median(side, SERVER_CPU_PER_DELIVERY), 3),
        ratio: |row, other| format_ratio(row.ratio(SERVER_CPU_PER_DELIVERY, other)),
    },
    ColumnGroup {
        unit: "p50 / p99 / p99.9 µs",
        cell: |row, side, _| row.latency_cell(side),
        ratio: |row, other| {
            LATENCIES
                .map(|metric| format_ratio(row.ratio(metric, other)))
                .join(" / ")
        },
    },
];

/// The unit of the columns that only tables with subscribers have.
const DELIVERY_UNIT: &str = "CPU-µs/delivery";

/// Returns the median of the values (the mean of the middle two); `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl LoadRow {
    /// Returns the median of a metric over the rounds of one side.
    pub fn median(&self, side: usize, metric: usize) -> Option<f64> {
        let rounds = self.sides.get(side)?;
        median(rounds.iter().filter_map(METRICS[metric].1))
    }

    /// Returns the median over the rounds of the first side's value divided by that of the side `other`.
    pub fn ratio(&self, metric: usize, other: usize) -> Option<f64> {
        self.ratio_between(metric, 0, other)
    }

    /// Returns the median over the rounds of the value of the side `side` divided by that of the side `other`.
    pub fn ratio_between(&self, metric: usize, side: usize, other: usize) -> Option<f64> {
        let (first, other) = (self.sides.get(side)?, self.sides.get(other)?);
        let value = METRICS[metric].1;
        let pairs = first.iter().zip(other);
        let ratios = pairs.filter_map(|(first, other)| Some(value(first)? / value(other)?));
        median(ratios.filter(|ratio| ratio.is_finite()))
    }

    /// The name in tables: the load, the size of its values, and the depth of the pipeline.
    pub fn name(&self) -> String {
        format!("{} {} B P{}", self.load, self.value_size, self.pipeline)
    }

    /// Formats the requests per second of a side, with a mark if its core was not fully used.
    fn requests_cell(&self, side: usize, pinned: bool) -> String {
        let idle = self
            .median(side, SERVER_BUSY)
            .is_some_and(|busy| busy < SATURATED_CORE_SHARE);
        format!(
            "{}{}",
            format_thousands(self.median(side, REQUESTS)),
            if pinned && idle { " †" } else { "" }
        )
    }

    fn latency_cell(&self, side: usize) -> String {
        LATENCIES
            .map(|metric| format_decimal(self.median(side, metric), 0))
            .join(" / ")
    }

    fn json(&self, labels: &[String]) -> Value {
        let side = |(number, label): (usize, &String)| {
            let medians = METRICS.iter().enumerate();
            let medians: serde_json::Map<String, Value> = medians
                .map(|(metric, (name, _))| (name.to_string(), json!(self.median(number, metric))))
                .collect();
            let rounds: Vec<Value> = self.sides[number].iter().map(measurement_json).collect();
            json!({ "label": label, "median": medians, "rounds": rounds })
        };
        let ratios = |other: usize| {
            let ratios = METRICS.iter().enumerate();
            ratios
                .map(|(metric, (name, _))| (name.to_string(), json!(self.ratio(metric, other))))
                .collect::<serde_json::Map<String, Value>>()
        };
        let others = labels.iter().enumerate().skip(1);
        let others = others.map(|(other, label)| json!({ "to": label, "ratio": ratios(other) }));
        json!({
            "load": self.load,
            "notes": self.notes,
            "value_size": self.value_size,
            "pipeline": self.pipeline,
            "sides": labels.iter().enumerate().map(side).collect::<Vec<Value>>(),
            "ratio": ratios(1),
            "ratios": others.collect::<Vec<Value>>(),
        })
    }
}

impl MemoryRow {
    /// The name in tables: the number of items, and the size of their values.
    pub fn name(&self) -> String {
        let expiry = if self.ttl { " with expiry" } else { "" };
        let what = if self.what.is_empty() {
            "keys".to_string()
        } else {
            format!("x {}", self.what)
        };
        format!("{} {what}, {} B{expiry}", self.keys, self.value_size)
    }

    /// Returns the first side's value divided by that of the side `other`.
    fn ratio(&self, other: usize) -> Option<f64> {
        Some(self.bytes_per_key.first()? / self.bytes_per_key.get(other)?)
    }
}

impl Section {
    fn markdown(&self, text: &mut String) {
        let _ = writeln!(text, "\n### {}\n", self.title);
        for (label, command) in self.labels.iter().zip(&self.commands) {
            let _ = writeln!(text, "- {label}: `{command}`");
        }
        for remark in &self.remarks {
            let _ = writeln!(text, "- {remark}.");
        }
        text.push('\n');
        if !self.loads.is_empty() {
            write_table(text, &self.loads_table());
            for note in self.notes() {
                let _ = writeln!(text, "\n{note}");
            }
            text.push('\n');
        }
        if !self.memory.is_empty() {
            write_table(text, &self.memory_table());
        }
    }

    /// Returns the table of the loads.
    pub fn loads_table(&self) -> ReportTable {
        let mut heads = vec!["load".to_string()];
        for group in self.column_groups() {
            heads.extend(self.labels.iter().map(|label| format!("{label} {}", group.unit)));
            heads.extend(self.ratio_heads(self.labels.len()));
        }
        let rows = self.loads.iter().map(|row| self.load_cells(row)).collect();
        ReportTable { heads, rows }
    }

    /// Returns the notes below the table of the loads.
    pub fn notes(&self) -> Vec<String> {
        let rows = self.loads.iter().filter(|row| !row.notes.is_empty());
        let note = |row: &LoadRow| format!("In the rounds of {}: {}.", row.name(), row.notes.join("; "));
        let mut notes: Vec<String> = rows.map(note).collect();
        let marked = |row: &LoadRow| {
            let mut sides = 0..self.labels.len();
            sides.any(|side| row.requests_cell(side, self.pinned).ends_with('†'))
        };
        if self.loads.iter().any(marked) {
            let share = SATURATED_CORE_SHARE * 100.0;
            notes.push(format!(
                "† The server used less than {share:.0}% of its core: requests/s show the limit of the \
                 client or of other work on the machine, CPU-µs per request the server's cost."
            ));
        }
        notes
    }

    /// The groups of columns of the table of loads.
    fn column_groups(&self) -> impl Iterator<Item = &'static ColumnGroup> + use<> {
        let mut sides = self.loads.iter().flat_map(|row| row.sides.iter().flatten());
        let has_deliveries = sides.any(|measured| measured.server_cpu_us_per_delivery.is_some());
        COLUMN_GROUPS
            .iter()
            .filter(move |group| has_deliveries || group.unit != DELIVERY_UNIT)
    }

    /// The heads of the columns of ratios among the first `sides` sides.
    fn ratio_heads(&self, sides: usize) -> Vec<String> {
        let others = self.labels.iter().take(sides).skip(1);
        match sides {
            0..=2 => others.map(|_| "ratio".to_string()).collect(),
            _ => others.map(|label| format!("ratio to {label}")).collect(),
        }
    }

    fn load_cells(&self, row: &LoadRow) -> Vec<String> {
        let sides = self.labels.len();
        let mut cells = vec![row.name()];
        for group in self.column_groups() {
            cells.extend((0..sides).map(|side| (group.cell)(row, side, self.pinned)));
            cells.extend((1..sides).map(|other| (group.ratio)(row, other)));
        }
        cells
    }

    /// Returns the table of the memory per key.
    pub fn memory_table(&self) -> ReportTable {
        let servers = self.memory.iter().map(|row| row.bytes_per_key.len()).max().unwrap_or(0);
        let mut heads = vec!["memory".to_string()];
        heads.extend(
            self.labels
                .iter()
                .take(servers)
                .map(|label| format!("{label} bytes each")),
        );
        heads.extend(self.ratio_heads(servers));
        let rows = self.memory.iter().map(|row| {
            let mut cells = vec![row.name()];
            cells.extend(row.bytes_per_key.iter().map(|bytes| format_decimal(Some(*bytes), 1)));
            cells.extend((1..servers).map(|other| format_ratio(row.ratio(other))));
            cells
        });
        let rows = rows.collect();
        ReportTable { heads, rows }
    }

    fn json(&self) -> Value {
        let memory = |row: &MemoryRow| {
            json!({
                "what": row.what,
                "value_size": row.value_size,
                "ttl": row.ttl,
                "keys": row.keys,
                "bytes_per_key": row.bytes_per_key,
                "ratio": row.ratio(1),
            })
        };
        json!({
            "title": self.title,
            "labels": self.labels,
            "commands": self.commands,
            "remarks": self.remarks,
            "pinned": self.pinned,
            "loads": self.loads.iter().map(|row| row.json(&self.labels)).collect::<Vec<Value>>(),
            "memory": self.memory.iter().map(memory).collect::<Vec<Value>>(),
        })
    }
}

impl Report {
    /// Creates a report without results, for a machine and the command line of this program.
    pub fn new(environment: RunEnvironment, command_line: String, settings: Value) -> Report {
        Report {
            environment,
            command_line,
            early_end: None,
            settings,
            versions: Vec::new(),
            sections: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Returns `true` if something was measured.
    pub fn has_rows(&self) -> bool {
        let has_rows = |section: &Section| !section.loads.is_empty() || !section.memory.is_empty();
        !self.idle.is_empty() || self.sections.iter().any(has_rows)
    }

    /// Returns each version once, with the labels of all sides that have it.
    pub fn distinct_versions(&self) -> Vec<(String, &str)> {
        let mut distinct: Vec<(String, &str)> = Vec::new();
        for (label, version) in &self.versions {
            match distinct.iter_mut().find(|(_, known)| known == version) {
                Some((labels, _)) => {
                    labels.push_str("; ");
                    labels.push_str(label);
                }
                None => distinct.push((label.clone(), version.as_str())),
            }
        }
        distinct
    }

    /// Formats the machine, the command line and the versions of the servers as Markdown, and the reason for an early
    /// end.
    pub fn head_markdown(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}.", self.environment.text());
        let _ = writeln!(text, "\nCommand line: `{}`.\n", self.command_line);
        for (labels, version) in self.distinct_versions() {
            let _ = writeln!(text, "- {labels}: {version}.");
        }
        if let Some(reason) = &self.early_end {
            let _ = writeln!(
                text,
                "\n**The run ended early: {reason}.** The tables have what was measured until then."
            );
        }
        text
    }

    /// Formats the report as Markdown tables.
    pub fn markdown(&self) -> String {
        let mut text = self.head_markdown();
        let _ = writeln!(
            text,
            "\nNumbers are medians over interleaved rounds; a ratio is the median of the rounds' \
             ratios, first side over each other one."
        );
        self.sections.iter().for_each(|section| section.markdown(&mut text));
        if !self.idle.is_empty() {
            let heads = ["idle server", "seconds", "CPU ms", "share of a core"];
            let heads = heads.map(String::from).to_vec();
            text.push('\n');
            let rows = self.idle.iter().map(|row| {
                let share = row.cpu_ms / 10.0 / row.seconds;
                let numbers = [format!("{:.0}", row.seconds), format!("{:.1}", row.cpu_ms)];
                [vec![row.label.clone()], numbers.to_vec(), vec![format!("{share:.3}%")]].concat()
            });
            let rows = rows.collect();
            write_table(&mut text, &ReportTable { heads, rows });
        }
        text
    }

    /// Formats the whole report, including every round, as JSON.
    pub fn json(&self) -> Value {
        let version = |(label, version): &(String, String)| json!({ "label": label, "version": version });
        let idle = |row: &IdleRow| json!({ "label": row.label, "seconds": row.seconds, "cpu_ms": row.cpu_ms });
        json!({
            "date": self.environment.date,
            "processor": self.environment.processor,
            "processors": self.environment.processors,
            "memory_bytes": self.environment.memory_bytes,
            "kernel": self.environment.kernel,
            "command_line": self.command_line,
            "early_end": self.early_end,
            "settings": self.settings,
            "versions": self.versions.iter().map(version).collect::<Vec<Value>>(),
            "sections": self.sections.iter().map(Section::json).collect::<Vec<Value>>(),
            "idle": self.idle.iter().map(idle).collect::<Vec<Value>>(),
        })
    }
}

/// Formats one run as text.
pub fn measurement_text(measured: &Measurement) -> String {
    let megabytes = measured.server_rss_bytes.map(|bytes| bytes as f64 / 1e6);
    let rows = [
        ("requests/s", format_thousands(Some(measured.requests_per_s))),
        ("server CPU-µs/request", format_decimal(measured.server_cpu_us, 3)),
        ("server cores busy", format_decimal(measured.server_busy_cores, 2)),
        ("client CPU-µs/request", format_decimal(Some(measured.client_cpu_us), 3)),
        ("latency p50 µs", format_decimal(Some(measured.p50_us), 1)),
        ("latency p99 µs", format_decimal(Some(measured.p99_us), 1)),
        ("latency p99.9 µs", format_decimal(Some(measured.p999_us), 1)),
        ("latency max µs", format_decimal(Some(measured.max_us), 1)),
        ("replies in the window", measured.replies.to_string()),
        ("misses", measured.misses.to_string()),
        ("unanswered", measured.unanswered.to_string()),
        ("server RSS MB", format_decimal(megabytes, 1)),
    ];
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<24}{value:>14}");
        text
    })
}

/// Formats one run as JSON.
pub fn measurement_json(measured: &Measurement) -> Value {
    let mut object: serde_json::Map<String, Value> = METRICS
        .iter()
        .map(|(name, value)| (name.to_string(), json!(value(measured))))
        .collect();
    object.insert("replies".into(), json!(measured.replies));
    object.insert("all_replies".into(), json!(measured.all_replies));
    object.insert("misses".into(), json!(measured.misses));
    object.insert("unanswered".into(), json!(measured.unanswered));
    object.insert("server_rss_bytes".into(), json!(measured.server_rss_bytes));
    Value::Object(object)
}

/// Appends a Markdown table: the first column is left-aligned, numbers are right-aligned.
pub fn write_table(text: &mut String, table: &ReportTable) {
    let _ = writeln!(text, "| {} |", table.heads.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(table.heads.len() - 1));
    for cells in &table.rows {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

/// Formats a number with `digits` decimals, or a dash if there is none.
pub fn format_decimal(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// Formats a ratio, or a dash if there is none.
pub fn format_ratio(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}x"))
}

/// Formats a whole number in groups of three digits, or a dash if there is none.
pub fn format_thousands(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".into();
    };
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

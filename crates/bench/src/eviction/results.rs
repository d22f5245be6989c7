//! The results of `eviction`, as Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::EvictionOptions;
use crate::report::{LoadRow, Report, ReportTable, Section, format_decimal, median, write_table};

/// One measurement of a hit rate.
#[derive(Debug, Clone, PartialEq)]
pub struct HitMeasurement {
    /// The share of reads that found their key.
    pub hit_rate: Option<f64>,
    /// The number of reads per second.
    pub reads_per_s: f64,
    /// The mean number of keys.
    pub keys: f64,
    /// The number of keys that were evicted per second.
    pub evicted_per_s: f64,
    /// The number of writes that the server refused because it was out of memory.
    pub refused: u64,
}

/// The measurements of one server.
#[derive(Debug)]
pub struct HitSide {
    /// The name of the server.
    pub label: &'static str,
    /// The command that starts it.
    pub command: String,
    /// Its `maxmemory`, in bytes.
    pub max_memory: u64,
    /// One measurement per round.
    pub rounds: Vec<HitMeasurement>,
}

impl HitSide {
    fn median(&self, figure: impl Fn(&HitMeasurement) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().filter_map(figure))
    }

    fn json(&self) -> Value {
        let round = |round: &HitMeasurement| {
            json!({
                "hit_rate": round.hit_rate,
                "reads_per_s": round.reads_per_s,
                "keys": round.keys,
                "evicted_per_s": round.evicted_per_s,
                "refused": round.refused,
            })
        };
        json!({
            "label": self.label,
            "command": self.command,
            "maxmemory": self.max_memory,
            "hit_rate": self.median(|round| round.hit_rate),
            "keys": self.median(|round| Some(round.keys)),
            "rounds": self.rounds.iter().map(round).collect::<Vec<Value>>(),
        })
    }
}

/// The hit rates of all servers with one policy and one exponent.
#[derive(Debug)]
pub struct HitRow {
    /// The policy.
    pub policy: String,
    /// The exponent of Zipf's law.
    pub exponent: f64,
    /// The hit rate of a cache that always holds the most popular keys.
    pub best: f64,
    /// The servers: Weft, Valkey, and Weft with the memory of Valkey.
    pub sides: Vec<HitSide>,
}

impl HitRow {
    /// Returns the median over the rounds of the difference between the hit rates of two sides.
    fn difference(&self, side: usize, other: usize) -> Option<f64> {
        let (side, other) = (self.sides.get(side)?, self.sides.get(other)?);
        let pairs = side.rounds.iter().zip(&other.rounds);
        median(pairs.filter_map(|(one, two)| Some(one.hit_rate? - two.hit_rate?)))
    }

    /// The pairs of sides whose difference the table shows: each Weft and Valkey.
    fn differences(&self) -> impl Iterator<Item = (usize, Option<f64>)> {
        let others = (0..self.sides.len()).filter(|side| *side != VALKEY);
        let has_valkey = self.sides.len() > VALKEY;
        others
            .filter(move |_| has_valkey)
            .map(move |side| (side, self.difference(side, VALKEY)))
    }

    /// The number of rounds that all sides have finished.
    fn finished_rounds(&self) -> usize {
        self.sides.iter().map(|side| side.rounds.len()).min().unwrap_or(0)
    }

    fn name(&self) -> String {
        format!("{}, s = {}", self.policy, self.exponent)
    }

    /// Returns remarks about rounds that are missing, rates that a server did not keep, and refused writes.
    fn remarks(&self, rounds: usize, rate: f64) -> Vec<String> {
        let (name, finished) = (self.name(), self.finished_rounds());
        let mut remarks = Vec::new();
        if finished < rounds {
            remarks.push(format!("{name}: {finished} of {rounds} rounds were finished"));
        }
        for side in &self.sides {
            let reads = side.median(|round| Some(round.reads_per_s)).unwrap_or(rate);
            if reads < KEPT_RATE_SHARE * rate {
                remarks.push(format!(
                    "{name}, {}: {reads:.0} and not {rate:.0} reads/s, so ages and counters of keys are not comparable",
                    side.label
                ));
            }
            let refused: u64 = side.rounds.iter().map(|round| round.refused).sum();
            if refused > 0 {
                remarks.push(format!("{name}, {}: {refused} writes were refused", side.label));
            }
        }
        remarks
    }

    fn cells(&self) -> Vec<String> {
        let percent = |share: Option<f64>| format_decimal(share.map(|share| 100.0 * share), 2);
        let mut cells = vec![self.name(), percent(Some(self.best))];
        cells.extend(
            self.sides
                .iter()
                .map(|side| percent(side.median(|round| round.hit_rate))),
        );
        cells.extend(self.differences().map(|(_, difference)| {
            let points = difference.map(|difference| 100.0 * difference);
            points.map_or("-".into(), |points| format!("{points:+.2}"))
        }));
        cells.push(self.join(|side| format_decimal(side.median(|round| Some(round.keys)), 0)));
        cells.push(self.join(|side| format_decimal(Some(side.max_memory as f64 / 1e6), 1)));
        cells.push(self.join(|side| format_decimal(side.median(|round| Some(round.reads_per_s)), 0)));
        cells
    }

    /// Formats a figure of each server.
    fn join(&self, figure: impl Fn(&HitSide) -> String) -> String {
        self.sides.iter().map(figure).collect::<Vec<String>>().join(" / ")
    }

    fn heads(&self) -> Vec<String> {
        let mut heads = vec!["policy and exponent".to_string(), "best possible %".to_string()];
        heads.extend(self.sides.iter().map(|side| format!("{} %", side.label)));
        let name = |(side, _): (usize, Option<f64>)| format!("{} − Valkey", self.sides[side].label);
        heads.extend(self.differences().map(name));
        heads.extend(["keys", "maxmemory MB", "reads/s"].map(String::from));
        heads
    }

    fn json(&self) -> Value {
        let difference = |(side, value): (usize, Option<f64>)| json!({ "of": self.sides[side].label, "value": value });
        json!({
            "policy": self.policy,
            "exponent": self.exponent,
            "best": self.best,
            "sides": self.sides.iter().map(HitSide::json).collect::<Vec<Value>>(),
            "differences_to_valkey": self.differences().map(difference).collect::<Vec<Value>>(),
        })
    }
}

/// The index of Valkey among the sides.
const VALKEY: usize = 1;

/// A server keeps the rate of reads if it reaches this share of it.
const KEPT_RATE_SHARE: f64 = 0.98;

/// The results of all policies.
#[derive(Debug)]
pub struct EvictionReport {
    /// The machine, the versions, and a section for each policy with the latencies.
    pub tables: Report,
    /// The hit rates.
    pub hits: Vec<HitRow>,
    /// Remarks below the hit rates.
    pub remarks: Vec<String>,
    /// What all measurements of hit rates have in common.
    settings: String,
    /// What all measurements of latencies have in common.
    latency_settings: String,
    /// `true` if servers and client have a core each.
    is_pinned: bool,
    rounds: usize,
    /// The number of reads per second that was asked for.
    rate: f64,
}

impl EvictionReport {
    /// Creates a report without results.
    pub fn new(options: &EvictionOptions) -> EvictionReport {
        EvictionReport {
            tables: options.compare.new_report(),
            hits: Vec::new(),
            remarks: Vec::new(),
            settings: format!(
                "{} keys of {} B of which {} fit, {} reads per second over {} connections, a write after each miss, \
                 {:.0} s after a warm-up of {:.0} s, maxmemory-samples {}, seed {}; {}",
                options.keys(),
                options.value_size,
                options.fit,
                options.rate,
                options.compare.connections,
                options.window.as_secs_f64(),
                options.warmup.as_secs_f64(),
                options.samples,
                options.seed,
                options.compare.pinning_text()
            ),
            latency_settings: format!(
                "{} per second, {} connections",
                options.write_rate, options.compare.connections
            ),
            is_pinned: !options.compare.server_cores.is_empty(),
            rounds: options.rounds,
            rate: options.rate,
        }
    }

    /// Adds the row of a policy and an exponent. Returns it, so that sides can be added.
    ///
    /// # Panics
    /// Never: there is at least the row that was added.
    pub fn begin_hits(&mut self, policy: &str, exponent: f64, best: f64) -> &mut HitRow {
        self.hits.push(HitRow {
            policy: policy.to_string(),
            exponent,
            best,
            sides: Vec::new(),
        });
        self.hits.last_mut().expect("one was added")
    }

    /// Adds the section with the latencies of a policy. Returns its only row, so that measurements can be added.
    ///
    /// # Panics
    /// Never: there is at least the row that was added.
    pub fn begin_latencies(
        &mut self,
        policy: &str,
        labels: Vec<String>,
        commands: Vec<String>,
        row: LoadRow,
    ) -> &mut LoadRow {
        self.tables.sections.push(Section {
            title: format!("Writes of new keys at maxmemory, {policy}, {}", self.latency_settings),
            labels,
            commands,
            remarks: vec!["The rate is fixed, and latencies are measured from the due time of each write".into()],
            pinned: self.is_pinned,
            loads: vec![row],
            memory: Vec::new(),
            worker_points: Vec::new(),
        });
        let section = self.tables.sections.last_mut();
        section
            .and_then(|section| section.loads.last_mut())
            .expect("one was added")
    }

    /// Ends the run, with the reason if it ended early. What was not measured at all gets no row.
    pub fn end(&mut self, early_end: Option<String>) {
        self.tables.early_end = early_end;
        self.hits
            .retain(|row| row.sides.iter().any(|side| !side.rounds.is_empty()));
        self.tables.sections.retain_mut(|section| {
            section
                .loads
                .retain(|row| row.sides.iter().any(|rounds| !rounds.is_empty()));
            !section.loads.is_empty()
        });
    }

    /// Returns `true` if something was measured.
    pub fn has_results(&self) -> bool {
        !self.hits.is_empty() || self.tables.has_rows()
    }

    /// Formats the results as Markdown tables.
    pub fn markdown(&self) -> String {
        let mut text = self.tables.markdown();
        let Some(first) = self.hits.first() else { return text };
        let _ = writeln!(text, "\n### Hit rates\n\n{}.\n", self.settings);
        for (policy, side) in self.servers() {
            let _ = writeln!(text, "- {policy}, {}: `{}`", side.label, side.command);
        }
        text.push('\n');
        let table = ReportTable {
            heads: first.heads(),
            rows: self.hits.iter().map(HitRow::cells).collect(),
        };
        write_table(&mut text, &table);
        let unit = "The last columns are in the order of the servers. Differences are percentage points.";
        let _ = writeln!(text, "\n{unit}");
        let of_rows = self.hits.iter().flat_map(|row| row.remarks(self.rounds, self.rate));
        for remark in self.remarks.iter().cloned().chain(of_rows) {
            let _ = writeln!(text, "\n{remark}.");
        }
        text
    }

    /// The servers of each policy. They are the same for all exponents.
    fn servers(&self) -> impl Iterator<Item = (&str, &HitSide)> {
        let is_first = move |place: usize| {
            let mut earlier = self.hits[..place].iter();
            earlier.all(|row| row.policy != self.hits[place].policy)
        };
        let rows = self.hits.iter().enumerate();
        let first_rows = rows.filter(move |(place, _)| is_first(*place));
        first_rows.flat_map(|(_, row)| row.sides.iter().map(move |side| (row.policy.as_str(), side)))
    }

    /// Formats the results, including every round, as JSON.
    pub fn json(&self) -> Value {
        let mut json = self.tables.json();
        json["hit_rates"] = self.hits.iter().map(HitRow::json).collect();
        json["hit_rate_settings"] = json!(self.settings);
        json["remarks"] = json!(self.remarks);
        json
    }
}

//! The results of `eviction`, as Markdown and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::EvictionOptions;
use crate::report::{Report, ReportTable, Section, format_decimal, median, write_table};
use crate::server::ServerParameters;

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

    fn cells(&self) -> Vec<String> {
        let percent = |share: Option<f64>| format_decimal(share.map(|share| 100.0 * share), 2);
        let mut cells = vec![
            format!("{}, s = {}", self.policy, self.exponent),
            percent(Some(self.best)),
        ];
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

/// The results of all policies.
#[derive(Debug)]
pub struct EvictionReport {
    /// The machine, the versions, and the section with the latencies.
    pub tables: Report,
    /// The hit rates.
    pub hits: Vec<HitRow>,
    /// What all measurements of hit rates have in common.
    settings: String,
}

impl EvictionReport {
    /// Creates a report without results.
    pub fn new(options: &EvictionOptions) -> EvictionReport {
        let mut tables = options.compare.new_report();
        tables.sections.push(Section {
            title: format!(
                "Writes of new keys at maxmemory, {} per second, {} connections",
                options.write_rate, options.compare.connections
            ),
            labels: Vec::new(),
            commands: Vec::new(),
            remarks: vec!["The rate is fixed, and latencies are measured from the due time of each write".into()],
            pinned: !options.compare.server_cores.is_empty(),
            loads: Vec::new(),
            memory: Vec::new(),
            worker_points: Vec::new(),
        });
        EvictionReport {
            tables,
            hits: Vec::new(),
            settings: format!(
                "{} keys of {} B of which {} fit, {} reads per second over {} connections, a write after each miss, \
                 {:.0} s after a warm-up of {:.0} s, maxmemory-samples {}",
                options.keys(),
                options.value_size,
                options.fit,
                options.rate,
                options.compare.connections,
                options.window.as_secs_f64(),
                options.warmup.as_secs_f64(),
                options.samples
            ),
        }
    }

    /// The section with the latencies.
    ///
    /// # Panics
    /// Never: [`EvictionReport::new`] creates it.
    pub fn latencies(&mut self) -> &mut Section {
        self.tables.sections.last_mut().expect("the report has a section")
    }

    /// Records a server whose latencies are measured, unless that was done for another policy already.
    pub fn add_latency_side(&mut self, label: &str, recipe: &ServerParameters) {
        let section = self.latencies();
        if !section.labels.iter().any(|known| known == label) {
            section.labels.push(label.to_string());
            section.commands.push(recipe.command_text());
        }
    }

    /// Formats the results as Markdown tables.
    pub fn markdown(&self) -> String {
        let mut text = self.tables.markdown();
        let Some(first) = self.hits.first() else { return text };
        let _ = writeln!(text, "\n### Hit rates\n\n{}.\n", self.settings);
        let table = ReportTable {
            heads: first.heads(),
            rows: self.hits.iter().map(HitRow::cells).collect(),
        };
        write_table(&mut text, &table);
        let unit = "The last columns are in the order of the servers. Differences are percentage points.";
        let _ = writeln!(text, "\n{unit}");
        text
    }

    /// Formats the results, including every round, as JSON.
    pub fn json(&self) -> Value {
        let mut json = self.tables.json();
        json["hit_rates"] = self.hits.iter().map(HitRow::json).collect();
        json["hit_rate_settings"] = json!(self.settings);
        json
    }
}

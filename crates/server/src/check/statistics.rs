//! Statistics of an RDB file: the number and the size of keys, by type and database.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;

use weft_resp::number::format_f64_shortest;
use weft_values::list::Direction;
use weft_values::listpack::{DECIMAL_MAX_BYTES, Element};
use weft_values::stream::StreamId;

use weft_rdb::dump_payload::PayloadContent;

/// The number of databases for which figures are printed even if they have no keys, provided that a later one has keys.
/// The numbers of databases come from the file, so the output must not grow with them.
const EMPTY_DATABASES_MAX: usize = 1024;

const TYPES: [&str; 7] = ["string", "list", "set", "zset", "hash", "module", "stream"];

/// The output format of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatisticsFormat {
    /// Columns.
    Table,
    /// A line per figure.
    Info,
    /// Comma-separated values.
    Csv,
}

impl StatisticsFormat {
    /// Returns the format with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "table" => Some(StatisticsFormat::Table),
            "info" => Some(StatisticsFormat::Info),
            "csv" => Some(StatisticsFormat::Csv),
            _ => None,
        }
    }
}

/// A key of the file.
pub struct CountedKey<'v> {
    /// The database of the key.
    pub db: usize,
    /// The length of its name in bytes.
    pub name_bytes: usize,
    /// Its value; `None` for a module value.
    pub content: Option<PayloadContent<'v>>,
    /// `true` if it has an expiry.
    pub has_expiry: bool,
    /// `true` if it has expired.
    pub is_expired: bool,
}

/// A histogram of numbers.
#[derive(Default)]
struct Histogram {
    counts: BTreeMap<u64, u64>,
    count: u64,
}

impl Histogram {
    fn add(&mut self, number: u64) {
        *self.counts.entry(number).or_default() += 1;
        self.count += 1;
    }

    fn largest(&self) -> u64 {
        self.counts.keys().next_back().copied().unwrap_or(0)
    }

    /// Returns the smallest number that at least `percent` per cent of the numbers do not exceed.
    fn percentile(&self, percent: f64) -> f64 {
        let wanted = ((percent / 100.0 * self.count as f64 + 0.5) as u64).max(1);
        let mut passed = 0;
        for (number, count) in &self.counts {
            passed += count;
            if passed >= wanted {
                return *number as f64;
            }
        }
        0.0
    }
}

/// The statistics of one type in one database.
#[derive(Default)]
struct TypeStatistics {
    keys: u64,
    expires: u64,
    expired: u64,
    name_bytes: u64,
    elements: u64,
    bytes: u64,
    numbers: Histogram,
    sizes: Histogram,
}

impl TypeStatistics {
    /// Counts an element of `bytes` bytes as `parts` elements.
    fn add_element(&mut self, parts: u64, bytes: usize) {
        self.elements += parts;
        self.bytes += bytes as u64;
        self.sizes.add(bytes as u64);
    }

    fn add(&mut self, found: &CountedKey<'_>) {
        self.keys += 1;
        self.expires += u64::from(found.has_expiry);
        self.expired += u64::from(found.is_expired);
        self.name_bytes += found.name_bytes as u64;
        let before = self.elements;
        if let Some(content) = &found.content {
            self.add_elements(content);
            self.numbers.add(self.elements - before);
        }
    }

    fn add_elements(&mut self, content: &PayloadContent<'_>) {
        match content {
            PayloadContent::String(bytes) => self.add_element(1, bytes.len()),
            PayloadContent::List(list) => list.visit(0, Direction::Forward, |element| {
                self.add_element(1, length(element));
                ControlFlow::Continue(())
            }),
            PayloadContent::Set(set) => set.iter().for_each(|member| self.add_element(1, length(member))),
            PayloadContent::SortedSet(set) => {
                let mut text = Vec::new();
                for (member, score) in set.iter() {
                    text.clear();
                    format_f64_shortest(score, &mut text);
                    // A member and its score count as two elements.
                    self.add_element(2, length(member) + text.len());
                }
            }
            PayloadContent::Hash(hash) => hash.for_each(0, |field| {
                self.add_element(1, length(field.name) + length(field.value));
            }),
            PayloadContent::Stream(stream) => {
                for entry in stream.entries(StreamId::MIN, StreamId::MAX) {
                    let bytes = entry.pairs().map(|(name, value)| length(name) + length(value));
                    self.add_element(1, bytes.sum());
                }
            }
        }
    }

    fn average(&self, sum: u64, count: u64) -> f64 {
        if count == 0 { 0.0 } else { sum as f64 / count as f64 }
    }
}

fn length(element: Element<'_>) -> usize {
    element.text(&mut [0; DECIMAL_MAX_BYTES]).len()
}

/// A function that returns a figure of a type as text.
type Figure = fn(&TypeStatistics) -> String;

/// The figures of each type, in the order in which they are printed.
const FIGURES: [(&str, Figure); 17] = [
    ("keys.total", |of| of.keys.to_string()),
    ("expire_keys.total", |of| of.expires.to_string()),
    ("already_expired.total", |of| of.expired.to_string()),
    ("keys.size", |of| of.name_bytes.to_string()),
    ("keys.value_size", |of| of.bytes.to_string()),
    ("elements.total", |of| of.elements.to_string()),
    ("elements.size", |of| of.bytes.to_string()),
    ("elements.num.max", |of| of.numbers.largest().to_string()),
    ("elements.num.avg", |of| {
        decimals(of.average(of.elements, of.numbers.count))
    }),
    ("elements.num.p99", |of| decimals(of.numbers.percentile(99.0))),
    ("elements.num.p90", |of| decimals(of.numbers.percentile(90.0))),
    ("elements.num.p50", |of| decimals(of.numbers.percentile(50.0))),
    ("elements.size.max", |of| of.sizes.largest().to_string()),
    ("elements.size.avg", |of| decimals(of.average(of.bytes, of.elements))),
    ("elements.size.p99", |of| decimals(of.sizes.percentile(99.0))),
    ("elements.size.p90", |of| decimals(of.sizes.percentile(90.0))),
    ("elements.size.p50", |of| decimals(of.sizes.percentile(50.0))),
];

fn decimals(number: f64) -> String {
    format!("{number:.2}")
}

/// The statistics of an RDB file.
#[derive(Default)]
pub struct RdbStatistics {
    /// The statistics by database. A database that does not occur in the file has no entry.
    databases: BTreeMap<usize, [TypeStatistics; 7]>,
}

impl RdbStatistics {
    /// Counts a key.
    pub fn add(&mut self, found: &CountedKey<'_>) {
        let place = match &found.content {
            Some(PayloadContent::String(_)) => 0,
            Some(PayloadContent::List(_)) => 1,
            Some(PayloadContent::Set(_)) => 2,
            Some(PayloadContent::SortedSet(_)) => 3,
            Some(PayloadContent::Hash(_)) => 4,
            None => 5,
            Some(PayloadContent::Stream(_)) => 6,
        };
        self.databases.entry(found.db).or_default()[place].add(found);
    }

    /// Prints the figures of the databases that have keys and, as Valkey does, of the empty ones between them, but of
    /// these only the first [`EMPTY_DATABASES_MAX`].
    pub fn print(&self, format: StatisticsFormat, out: &mut dyn Write) {
        let nothing: [TypeStatistics; 7] = Default::default();
        let last = self.databases.keys().next_back().copied().unwrap_or(0);
        for db in 0..=last.min(EMPTY_DATABASES_MAX - 1) {
            let types = self.databases.get(&db).unwrap_or(&nothing);
            // Failed writes are ignored, as in any program whose reader has exited.
            let _ = print_database(db, types, format, out);
        }
        for (db, types) in self.databases.range(EMPTY_DATABASES_MAX..) {
            let _ = print_database(*db, types, format, out);
        }
    }
}

fn print_database(
    db: usize,
    types: &[TypeStatistics; 7],
    format: StatisticsFormat,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if format != StatisticsFormat::Info {
        print_row(db, "type.name", &TYPES.map(str::to_owned), format, out)?;
    }
    for (name, figure) in FIGURES {
        let figures = types.each_ref().map(figure);
        if format != StatisticsFormat::Info {
            print_row(db, name, &figures, format, out)?;
            continue;
        }
        for (kind, figure) in TYPES.iter().zip(figures) {
            writeln!(out, "[info] db.{db}.type.{kind}.{name}:{figure}")?;
        }
    }
    Ok(())
}

fn print_row(
    db: usize,
    name: &str,
    row: &[String; 7],
    format: StatisticsFormat,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let name = format!("db.{db}.{name}");
    if format == StatisticsFormat::Csv {
        return writeln!(out, "{name},{}", row.join(","));
    }
    write!(out, "{name:<30}")?;
    for figure in row {
        write!(out, "\t{figure:<5}")?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests;

//! Writes metrics in the text format of Prometheus, version 0.0.4.
//!
//! A family is a metric with all its samples. HELP and TYPE precede its first sample; a family without samples is not
//! written at all. The labels are those that the metric declares, so every sample of a family has the same ones.

use std::fmt::Write as _;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that only grows, except that it starts over when the process starts or CONFIG RESETSTAT resets it.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// The distribution of samples.
    Histogram,
}

impl MetricKind {
    /// Returns the word for the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// The declaration of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in one line without backslashes.
    pub help: &'static str,
}

impl Metric {
    const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Metric {
        Metric {
            name,
            kind,
            labels: &[],
            help,
        }
    }

    /// Declares a counter.
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric::new(name, MetricKind::Counter, help)
    }

    /// Declares a gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric::new(name, MetricKind::Gauge, help)
    }

    /// Declares a histogram.
    pub const fn histogram(name: &'static str, help: &'static str) -> Metric {
        Metric::new(name, MetricKind::Histogram, help)
    }

    /// Adds the names of the labels.
    pub const fn labelled(self, labels: &'static [&'static str]) -> Metric {
        Metric { labels, ..self }
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue {
    /// A natural number.
    Unsigned(u64),
    /// An integer.
    Signed(i64),
    /// A real number.
    Float(f64),
}

impl From<u64> for SampleValue {
    fn from(number: u64) -> SampleValue {
        SampleValue::Unsigned(number)
    }
}

impl From<usize> for SampleValue {
    fn from(number: usize) -> SampleValue {
        SampleValue::Unsigned(number as u64)
    }
}

impl From<bool> for SampleValue {
    fn from(is_true: bool) -> SampleValue {
        SampleValue::Unsigned(u64::from(is_true))
    }
}

impl From<i64> for SampleValue {
    fn from(number: i64) -> SampleValue {
        SampleValue::Signed(number)
    }
}

impl From<f64> for SampleValue {
    fn from(number: f64) -> SampleValue {
        SampleValue::Float(number)
    }
}

/// Converts nanoseconds to seconds.
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// The text that is being written.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Creates an empty text with space for this many bytes.
    pub fn with_capacity(bytes: usize) -> Exposition {
        Exposition {
            text: String::with_capacity(bytes),
        }
    }

    /// Writes a metric that has one sample, without labels.
    pub fn single(&mut self, metric: &Metric, value: impl Into<SampleValue>) {
        self.family(metric).add(&[], value);
    }

    /// Begins a family.
    pub fn family<'e>(&'e mut self, metric: &'e Metric) -> MetricFamily<'e> {
        MetricFamily {
            text: &mut self.text,
            metric,
            has_head: false,
        }
    }

    /// Returns the text.
    pub fn into_text(self) -> Vec<u8> {
        self.text.into_bytes()
    }
}

/// A family that is being written.
pub struct MetricFamily<'e> {
    text: &'e mut String,
    metric: &'e Metric,
    has_head: bool,
}

/// The distribution of the samples of a histogram.
pub struct Distribution<'h> {
    /// The upper limits of the buckets, ascending, in the metric's unit.
    pub limits: &'h [f64],
    /// For each limit, the number of samples below it.
    pub counts: &'h [u64],
    /// The number of all samples.
    pub total: u64,
    /// The sum of all samples, in the metric's unit.
    pub sum: f64,
}

impl MetricFamily<'_> {
    /// Adds a sample with the values of the metric's labels.
    pub fn add(&mut self, labels: &[&str], value: impl Into<SampleValue>) {
        self.write_head();
        self.write_sample("", labels, None, value.into());
    }

    /// Adds a histogram with the values of the metric's labels.
    pub fn add_histogram(&mut self, labels: &[&str], distribution: &Distribution<'_>) {
        debug_assert_eq!(distribution.limits.len(), distribution.counts.len());
        self.write_head();
        for (limit, count) in distribution.limits.iter().zip(distribution.counts) {
            // A count that was read while samples arrived never exceeds the total.
            let count = (*count).min(distribution.total);
            self.write_sample("_bucket", labels, Some(*limit), SampleValue::Unsigned(count));
        }
        let total = SampleValue::Unsigned(distribution.total);
        self.write_sample("_bucket", labels, Some(f64::INFINITY), total);
        self.write_sample("_sum", labels, None, SampleValue::Float(distribution.sum));
        self.write_sample("_count", labels, None, total);
    }

    fn write_head(&mut self) {
        if std::mem::replace(&mut self.has_head, true) {
            return;
        }
        let Metric { name, kind, help, .. } = self.metric;
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str());
    }

    fn write_sample(&mut self, suffix: &str, labels: &[&str], limit: Option<f64>, value: SampleValue) {
        debug_assert_eq!(self.metric.labels.len(), labels.len(), "{}", self.metric.name);
        self.text.push_str(self.metric.name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, value) in self.metric.labels.iter().zip(labels) {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(self.text, value);
            self.text.push('"');
        }
        if let Some(limit) = limit {
            self.text.push(separator);
            separator = ',';
            self.text.push_str("le=\"");
            push_float(self.text, limit);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        match value {
            SampleValue::Unsigned(number) => self.text.push_str(itoa::Buffer::new().format(number)),
            SampleValue::Signed(number) => self.text.push_str(itoa::Buffer::new().format(number)),
            SampleValue::Float(number) => push_float(self.text, number),
        }
        self.text.push('\n');
    }
}

/// Appends the value of a label.
fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

fn push_float(text: &mut String, number: f64) {
    if number == f64::INFINITY {
        text.push_str("+Inf");
    } else if number == f64::NEG_INFINITY {
        text.push_str("-Inf");
    } else {
        // Writing to a string cannot fail.
        let _ = write!(text, "{number}");
    }
}

#[cfg(test)]
mod tests;

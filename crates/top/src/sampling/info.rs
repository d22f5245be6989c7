//! The fields of INFO, and the rates between two of its replies.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::escape::printable;

/// The largest number of fields that are kept.
const MAX_FIELDS: usize = 20_000;
/// The longest name or value that is kept, in characters.
const MAX_CHARACTERS: usize = 4096;

/// The fields of one reply to INFO.
#[derive(Debug, Clone)]
pub struct InfoFields {
    fields: BTreeMap<String, String>,
    /// The time of the reply.
    taken: Instant,
}

impl InfoFields {
    /// Parses the lines `name:value`. Other lines are skipped.
    pub fn parse(text: &[u8], taken: Instant) -> InfoFields {
        let mut fields = BTreeMap::new();
        for line in text.split(|byte| *byte == b'\n').take(MAX_FIELDS) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.starts_with(b"#") {
                continue;
            }
            if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                let name = printable(&line[..colon], MAX_CHARACTERS);
                fields.insert(name, printable(&line[colon + 1..], MAX_CHARACTERS));
            }
        }
        InfoFields { fields, taken }
    }

    /// The value of a field that is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The value of a field that is a finite number. A `%` at its end is ignored.
    pub fn number(&self, name: &str) -> Option<f64> {
        finite_number(self.text(name)?)
    }

    /// The value of a field that is a number of things.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The value of a field that is 0 or 1.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.count(name).map(|value| value != 0)
    }

    /// The fields whose names begin with `prefix`: the rest of each name, and the value.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.fields
            .range(prefix.to_owned()..)
            .map_while(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    /// All fields.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Parses a finite number. A `%` at its end is ignored.
pub fn finite_number(text: &str) -> Option<f64> {
    let number: f64 = text.trim_end_matches('%').parse().ok()?;
    number.is_finite().then_some(number)
}

/// Finds `name=value` in a value that has several such parts, separated by commas.
pub fn part<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value
        .split(',')
        .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Finds a count in such a value.
pub fn part_count(value: &str, name: &str) -> Option<u64> {
    part(value, name)?.parse().ok()
}

/// Two replies of the same run of the server, or one.
#[derive(Debug, Clone, Copy)]
pub struct InfoPair<'a> {
    /// The earlier reply, if there is one.
    pub earlier: Option<&'a InfoFields>,
    /// The later reply.
    pub later: &'a InfoFields,
}

impl<'a> InfoPair<'a> {
    /// Pairs the replies, unless the server was started again between them.
    pub fn new(earlier: Option<&'a InfoFields>, later: &'a InfoFields) -> InfoPair<'a> {
        let earlier = earlier.filter(|earlier| earlier.text("run_id") == later.text("run_id"));
        InfoPair { earlier, later }
    }

    /// The seconds between the replies: by the clock of the server if it says its time, which excludes delays of the
    /// network.
    pub fn seconds(&self) -> Option<f64> {
        let earlier = self.earlier?;
        let field = "server_time_usec";
        let by_server = match (earlier.number(field), self.later.number(field)) {
            (Some(before), Some(after)) => Some((after - before) / 1e6),
            _ => None,
        };
        let by_client = self.later.taken.saturating_duration_since(earlier.taken).as_secs_f64();
        // The clock of the server may be set, so it must agree with the clock here.
        let seconds = match by_server {
            Some(seconds) if (seconds - by_client).abs() < 1.0 + by_client / 2.0 => seconds,
            _ => by_client,
        };
        (seconds > 0.001).then_some(seconds)
    }

    /// The increase of a counter; `None` if it was reset.
    pub fn increase(&self, name: &str) -> Option<f64> {
        let before = self.earlier?.number(name)?;
        let increase = self.later.number(name)? - before;
        (increase >= 0.0).then_some(increase)
    }

    /// The increase of a counter per second.
    pub fn rate(&self, name: &str) -> Option<f64> {
        Some(self.increase(name)? / self.seconds()?)
    }
}

/// The increase of a counter per second; `None` without an earlier value or after a reset.
pub fn counter_rate(earlier: Option<u64>, later: Option<u64>, seconds: Option<f64>) -> Option<f64> {
    let increase = later?.checked_sub(earlier?)?;
    Some(increase as f64 / seconds?)
}

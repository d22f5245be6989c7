//! The common part of the models: operations, replies, and sizes.

use std::fmt;

use fastrand::Rng;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The words.
    pub words: Vec<String>,
}

impl Operation {
    /// Creates a command from its words.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Operation {
        let words = words.into_iter().map(str::to_string).collect();
        Operation { words }
    }

    /// Creates a command from a line of words that contain no blanks, and from further words.
    pub fn line(line: &str, more: impl IntoIterator<Item = String>) -> Operation {
        let mut operation = Operation::new(line.split_whitespace());
        operation.words.extend(more);
        operation
    }

    /// Formats the operation for the test output; long words are truncated.
    pub fn shown(&self) -> String {
        let word = |word: &String| match word.char_indices().nth(24) {
            Some((end, _)) => format!("{}…({})", &word[..end], word.len()),
            None => format!("{word:?}"),
        };
        self.words.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Returns the words as slices, to match on.
    pub fn parts(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// Nil, of a string or an array.
    Nil,
    /// An integer.
    Integer(i64),
    /// A status.
    Status(String),
    /// The code of an error.
    Error(String),
    /// A string.
    Text(String),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns `+OK`.
    pub fn ok() -> Reply {
        Reply::Status("OK".into())
    }

    /// Returns a string, or nil.
    pub fn text_or_nil(text: Option<&String>) -> Reply {
        text.map_or(Reply::Nil, |text| Reply::Text(text.clone()))
    }

    /// Returns an array of strings.
    pub fn texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> Reply {
        Reply::Array(texts.into_iter().map(|text| Reply::Text(text.clone())).collect())
    }

    /// Returns 1 or 0.
    pub fn flag(flag: bool) -> Reply {
        Reply::Integer(i64::from(flag))
    }

    /// Returns a count as an integer.
    pub fn count(count: usize) -> Reply {
        Reply::Integer(count as i64)
    }
}

/// The reply that a model expects.
#[derive(Debug)]
pub enum Expected {
    /// Exactly this reply.
    Exactly(Reply),
    /// An array of these groups in any order. Each group has this number of elements, which stay together.
    AnyOrder(usize, Vec<Reply>),
}

impl Expected {
    /// Returns `true` if the reply is the expected one.
    pub fn accepts(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Expected::Exactly(expected), _) => expected == reply,
            (Expected::AnyOrder(width, expected), Reply::Array(elements)) => {
                let sorted = |elements: &[Reply]| {
                    let mut groups: Vec<Vec<Reply>> = elements.chunks(*width).map(<[Reply]>::to_vec).collect();
                    groups.sort();
                    groups
                };
                sorted(expected) == sorted(elements)
            }
            _ => false,
        }
    }
}

impl From<Reply> for Expected {
    fn from(reply: Reply) -> Expected {
        Expected::Exactly(reply)
    }
}

/// A difference between the server and the model.
#[derive(Debug)]
pub struct Difference {
    /// The model's reply.
    pub expected: Expected,
    /// The server's reply.
    pub reply: Reply,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |text: String| text.chars().take(1500).collect::<String>();
        writeln!(out, "expected: {}", cut(format!("{:?}", self.expected)))?;
        write!(out, "got:      {}", cut(format!("{:?}", self.reply)))
    }
}

/// A naive implementation of a data type.
pub trait Model: Default {
    /// Creates a random operation of this type.
    fn operation(shape: &WorkloadShape, rng: &mut Rng) -> Operation;

    /// Executes the operation and returns the expected reply.
    fn apply(&mut self, operation: &Operation) -> Expected;
}

/// The sizes of a round: small values stay in their compact encodings, large ones outgrow them.
#[derive(Clone, Debug)]
pub struct WorkloadShape {
    /// The number of different elements.
    pub distinct_elements: usize,
    /// The size of most elements, in bytes. Some elements are integers, some are longer.
    pub bytes: usize,
    /// The maximum number of elements that one command adds.
    pub elements_per_command_max: usize,
}

impl WorkloadShape {
    /// Returns the shape of a round; the shapes alternate.
    pub fn of_round(round: usize) -> WorkloadShape {
        let (universe, bytes, burst) = [
            (8, 3, 2),
            (40, 10, 4),
            (200, 20, 20),
            (150, 70, 10),
            (3000, 8, 120),
            (3000, 300, 40),
            (12, 5000, 3),
            (2000, 0, 100),
        ][round % 8];
        WorkloadShape {
            distinct_elements: universe,
            bytes,
            elements_per_command_max: burst,
        }
    }

    /// Returns a random element; an integer if elements have no bytes.
    pub fn element(&self, rng: &mut Rng) -> String {
        let number = rng.usize(0..self.distinct_elements);
        match rng.u32(0..24) {
            _ if self.bytes == 0 => (number as i64 * 97 - 5000).to_string(),
            0 => (number as i64 - 5).to_string(),
            1 => format!("{number:0width$}", width = self.bytes + 40),
            _ => format!("e{number:0width$}", width = self.bytes),
        }
    }

    /// Returns random elements for a command that adds several.
    pub fn elements(&self, rng: &mut Rng) -> Vec<String> {
        (0..rng.usize(1..=self.elements_per_command_max))
            .map(|_| self.element(rng))
            .collect()
    }

    /// Returns a position of either sign, sometimes out of range.
    pub fn index(&self, rng: &mut Rng) -> String {
        let end = self.distinct_elements as i64;
        match rng.u32(0..4) {
            0 => rng.i64(-end..end).to_string(),
            _ => rng.i64(-6..6).to_string(),
        }
    }
}

/// Returns the range from `start` to `stop`, which count from the end if negative, as LRANGE and ZRANGE take them.
pub fn range(length: usize, start: &str, stop: &str) -> std::ops::Range<usize> {
    let length = length as i64;
    let from_front = |text: &str| {
        let index: i64 = text.parse().expect("an index");
        if index < 0 { index + length } else { index }
    };
    let start = from_front(start).max(0);
    let stop = from_front(stop).min(length - 1);
    if start > stop || start >= length {
        return 0..0;
    }
    start as usize..stop as usize + 1
}

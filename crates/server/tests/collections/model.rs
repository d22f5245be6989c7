//! What the models share: operations, replies, and how large things get.

use std::fmt;

use fastrand::Rng;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its words.
    pub words: Vec<String>,
}

impl Operation {
    /// A command of these words.
    pub fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Operation {
        let words = words.into_iter().map(str::to_string).collect();
        Operation { words }
    }

    /// A command of a line of words without blanks in them, and of further words.
    pub fn line(line: &str, more: impl IntoIterator<Item = String>) -> Operation {
        let mut operation = Operation::new(line.split_whitespace());
        operation.words.extend(more);
        operation
    }

    /// The operation for people; long words are cut.
    pub fn shown(&self) -> String {
        let word = |word: &String| match word.char_indices().nth(24) {
            Some((end, _)) => format!("{}…({})", &word[..end], word.len()),
            None => format!("{word:?}"),
        };
        self.words.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Its words as slices, to match on.
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
    /// An error's code.
    Error(String),
    /// A string.
    Text(String),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// `+OK`.
    pub fn ok() -> Reply {
        Reply::Status("OK".into())
    }

    /// A string, or nil.
    pub fn text_or_nil(text: Option<&String>) -> Reply {
        text.map_or(Reply::Nil, |text| Reply::Text(text.clone()))
    }

    /// An array of strings.
    pub fn texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> Reply {
        Reply::Array(texts.into_iter().map(|text| Reply::Text(text.clone())).collect())
    }

    /// 1 or 0.
    pub fn flag(flag: bool) -> Reply {
        Reply::Integer(i64::from(flag))
    }

    /// A number of things.
    pub fn count(count: usize) -> Reply {
        Reply::Integer(count as i64)
    }
}

/// What a model says the reply must be.
#[derive(Debug)]
pub enum Expected {
    /// This.
    Exactly(Reply),
    /// An array of these groups in any order; each group is so many elements long and stays together.
    AnyOrder(usize, Vec<Reply>),
}

impl Expected {
    /// Whether the reply is right.
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

/// What is wrong.
#[derive(Debug)]
pub struct Verdict {
    /// What the model says.
    pub expected: Expected,
    /// What the server said.
    pub reply: Reply,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |text: String| text.chars().take(1500).collect::<String>();
        writeln!(out, "expected: {}", cut(format!("{:?}", self.expected)))?;
        write!(out, "got:      {}", cut(format!("{:?}", self.reply)))
    }
}

/// A naive twin of a type of value.
pub trait Model: Default {
    /// A random operation of this type.
    fn operation(shape: &Shape, rng: &mut Rng) -> Operation;

    /// Does the operation and says what its reply must be.
    fn apply(&mut self, operation: &Operation) -> Expected;
}

/// How large things get in a round: small ones stay in their small encodings, others outgrow them.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many different elements there are.
    pub universe: usize,
    /// Bytes of most elements; some are integers, some longer.
    pub bytes: usize,
    /// Most elements that one command adds.
    pub burst: usize,
}

impl Shape {
    /// The shapes take turns.
    pub fn of_round(round: usize) -> Shape {
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
        Shape { universe, bytes, burst }
    }

    /// A random element. Of no bytes it is an integer.
    pub fn element(&self, rng: &mut Rng) -> String {
        let number = rng.usize(0..self.universe);
        match rng.u32(0..24) {
            _ if self.bytes == 0 => (number as i64 * 97 - 5000).to_string(),
            0 => (number as i64 - 5).to_string(),
            1 => format!("{number:0width$}", width = self.bytes + 40),
            _ => format!("e{number:0width$}", width = self.bytes),
        }
    }

    /// How many elements a command adds, and these.
    pub fn elements(&self, rng: &mut Rng) -> Vec<String> {
        (0..rng.usize(1..=self.burst)).map(|_| self.element(rng)).collect()
    }

    /// A position, of either sign, now and then outside.
    pub fn index(&self, rng: &mut Rng) -> String {
        let end = self.universe as i64;
        match rng.u32(0..4) {
            0 => rng.i64(-end..end).to_string(),
            _ => rng.i64(-6..6).to_string(),
        }
    }
}

/// The elements from `start` to `stop`, which count from the end if negative, as LRANGE and ZRANGE take them.
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

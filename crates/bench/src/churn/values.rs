//! The values that `churn` writes: of random types and sizes, and functions of key and version.

use crate::batch_connection::BatchConnection;
use crate::content::{NUMBER_DIGITS, ValuePool, digits};
use crate::draw::{Draw, scramble};

/// The size of the smallest value in bytes.
pub const SMALLEST_VALUE: u64 = 10;

/// The size of the largest value in bytes.
pub const LARGEST_VALUE: u64 = 100 * 1024;

/// The size of the largest element that a collection has, unless it would have too many of them.
const LARGEST_ELEMENT: u64 = 1024;

/// The largest number of elements of a collection. Small ones are stored as a whole, larger ones in tables and lists of
/// blocks.
const MOST_ELEMENTS: u64 = 1000;

/// A type of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    String,
    /// A hash.
    Hash,
    /// A list.
    List,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
}

impl ValueKind {
    /// Returns the type that a key of this type gets next.
    pub fn next(self) -> ValueKind {
        match self {
            ValueKind::String => ValueKind::Hash,
            ValueKind::Hash => ValueKind::List,
            ValueKind::List => ValueKind::Set,
            ValueKind::Set => ValueKind::SortedSet,
            ValueKind::SortedSet => ValueKind::String,
        }
    }

    /// The command that reads a string, or the number of elements of a collection.
    pub fn read_command(self) -> &'static str {
        match self {
            ValueKind::String => "GET",
            ValueKind::Hash => "HLEN",
            ValueKind::List => "LLEN",
            ValueKind::Set => "SCARD",
            ValueKind::SortedSet => "ZCARD",
        }
    }

    fn write_command(self) -> &'static [u8] {
        match self {
            ValueKind::String => b"SET",
            ValueKind::Hash => b"HSET",
            ValueKind::List => b"RPUSH",
            ValueKind::Set => b"SADD",
            ValueKind::SortedSet => b"ZADD",
        }
    }
}

/// A value: its type, its size, and the number from which its content follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChurnValue {
    /// The type.
    pub kind: ValueKind,
    /// The number of elements; 1 for a string.
    pub elements: u64,
    /// The bytes of each element, or of the string.
    pub element_bytes: u64,
    content: u64,
}

impl ChurnValue {
    /// Returns the value of a version of a key. The logarithm of its size is uniformly distributed.
    pub fn new(key: u64, version: u32, kind: ValueKind) -> ChurnValue {
        let mut draw = Draw::new(scramble(key), u64::from(version));
        let bytes = log_uniform(&mut draw, SMALLEST_VALUE, LARGEST_VALUE);
        let mut value = ChurnValue {
            kind,
            elements: 1,
            element_bytes: bytes,
            content: draw.bits(),
        };
        if kind != ValueKind::String {
            let wanted = log_uniform(&mut draw, SMALLEST_VALUE, LARGEST_ELEMENT);
            value.element_bytes = wanted.max(bytes.div_ceil(MOST_ELEMENTS)).min(bytes);
            value.elements = bytes / value.element_bytes;
        }
        value
    }

    /// Returns a value of the same type with a tenth of the bytes: fewer elements, or a shorter one.
    pub fn tenth(self) -> ChurnValue {
        let bytes = (self.elements * self.element_bytes / 10).max(SMALLEST_VALUE);
        let element_bytes = match self.kind {
            ValueKind::String => bytes,
            _ => self.element_bytes.min(bytes),
        };
        ChurnValue {
            elements: bytes / element_bytes,
            element_bytes,
            ..self
        }
    }

    /// Appends the command that creates it to the connection's batch. Unless it is a string, the key must not exist.
    pub fn append_write(&self, key: &[u8], values: &ValuePool, connection: &mut BatchConnection) {
        let words_per_element = match self.kind {
            ValueKind::Hash | ValueKind::SortedSet => 2,
            _ => 1,
        };
        connection.begin(2 + words_per_element * self.elements as usize);
        connection.word(self.kind.write_command());
        connection.word(key);
        if self.kind == ValueKind::String {
            connection.word(self.text(values));
            return;
        }
        let mut element = Vec::new();
        for number in 0..self.elements {
            match self.kind {
                ValueKind::Hash => connection.word(&digits::<NUMBER_DIGITS>(number)),
                ValueKind::SortedSet => connection.word(number.to_string().as_bytes()),
                _ => {}
            }
            // The digits make the elements of a set different.
            element.clear();
            element.extend_from_slice(&digits::<NUMBER_DIGITS>(number));
            let rest = self.element_bytes as usize - NUMBER_DIGITS;
            element.extend_from_slice(values.prefix(self.content.wrapping_add(number), rest));
            connection.word(&element);
        }
    }

    /// Returns the bytes of a string.
    pub fn text<'v>(&self, values: &'v ValuePool) -> &'v [u8] {
        values.prefix(self.content, self.element_bytes as usize)
    }
}

/// Returns the values' contents.
pub fn content() -> ValuePool {
    ValuePool::new(LARGEST_VALUE as usize)
}

/// Returns the mean size of a value in bytes.
pub fn mean_bytes() -> f64 {
    let (smallest, largest) = (SMALLEST_VALUE as f64, LARGEST_VALUE as f64);
    (largest - smallest) / (largest / smallest).ln()
}

/// Draws a number from `least` to `most` whose logarithm is uniformly distributed.
fn log_uniform(draw: &mut Draw, least: u64, most: u64) -> u64 {
    let ratio = most as f64 / least as f64;
    let number = least as f64 * ratio.powf(draw.unit_float());
    (number as u64).clamp(least, most)
}

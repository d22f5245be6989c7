//! What reply a request must have, and the check of a reply against it.
//!
//! The common kinds have replies of a known length: their check compares the header bytes and jumps
//! to the end, without looking at the payload. Anything that does not look as expected goes through
//! the general scanner, and then either fits after all (a miss) or stops the run.

use crate::content::Values;
use crate::error::{Error, Result};
use crate::reply::{Header, Scanner};

#[cfg(test)]
mod tests;

/// The kinds of `--expect`, for `--help`.
pub const KINDS: &[(&str, &str)] = &[
    ("ok", "+OK"),
    ("pong", "+PONG"),
    ("integer", "an integer"),
    ("value", "the value that belongs to the request's key"),
    ("value-or-nil", "the same, or nil, which is counted as a miss"),
    ("values:N", "an array of the values of the request's N keys"),
    ("bulk", "any string except nil"),
    (
        "elements:N",
        "an array, set or map with N elements (a map's pair counts as two)",
    ),
    ("any", "anything except an error"),
];

/// Bytes of a wrong reply shown in the error.
const SHOWN_BYTES: usize = 120;

/// The kind of reply a request must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Exactly these bytes.
    Exact(Vec<u8>),
    /// The value of the request's last key.
    Value {
        /// Whether nil is right, too.
        or_nil: bool,
    },
    /// An array of the values of all keys of the request.
    Values {
        /// Number of keys.
        count: usize,
    },
    /// An integer.
    Integer,
    /// A string that is not nil.
    Bulk,
    /// An array, set or map.
    Elements {
        /// Number of values in it.
        count: u64,
    },
    /// Anything that is not an error.
    Any,
}

impl Expect {
    /// Parses the declaration of `--expect`.
    pub fn parse(text: &str) -> Result<Expect> {
        let (kind, count) = match text.split_once(':') {
            Some((kind, count)) => (kind, count.parse::<u64>().ok()),
            None => (text, None),
        };
        match (kind, count) {
            ("ok", None) => Ok(Expect::Exact(b"+OK\r\n".to_vec())),
            ("pong", None) => Ok(Expect::Exact(b"+PONG\r\n".to_vec())),
            ("integer", None) => Ok(Expect::Integer),
            ("value", None) => Ok(Expect::Value { or_nil: false }),
            ("value-or-nil", None) => Ok(Expect::Value { or_nil: true }),
            ("values", Some(count)) => Ok(Expect::Values { count: count as usize }),
            ("bulk", None) => Ok(Expect::Bulk),
            ("elements", Some(count)) => Ok(Expect::Elements { count }),
            ("any", None) => Ok(Expect::Any),
            _ => Err(Error::Usage(format!("unknown kind of reply {text:?}"))),
        }
    }

    /// How many keys of a request this kind of reply needs to know.
    pub fn keys_needed(&self) -> usize {
        match self {
            Expect::Value { .. } => 1,
            Expect::Values { count } => *count,
            _ => 0,
        }
    }
}

/// A reply that was found complete and of the right type and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the reply.
    pub length: usize,
    /// Whether it is a nil where a value could have been.
    pub miss: bool,
}

/// An [`Expect`] together with the bytes it implies for one value size.
#[derive(Debug, Clone)]
pub struct Checker {
    expect: Expect,
    value_header: Vec<u8>,
    array_header: Vec<u8>,
    /// Length of the expected reply in bytes, where it is known beforehand.
    known_length: Option<usize>,
    value_size: usize,
}

impl Checker {
    /// The checker for replies whose values have `value_size` bytes.
    pub fn new(expect: Expect, value_size: usize) -> Checker {
        let value_header = format!("${value_size}\r\n").into_bytes();
        let bulk_length = value_header.len() + value_size + 2;
        let (array_header, known_length) = match &expect {
            Expect::Exact(bytes) => (bytes.clone(), Some(bytes.len())),
            Expect::Value { .. } => (value_header.clone(), Some(bulk_length)),
            Expect::Values { count } => {
                let header = format!("*{count}\r\n").into_bytes();
                let length = header.len() + count * bulk_length;
                (header, Some(length))
            }
            _ => (Vec::new(), None),
        };
        Checker {
            expect,
            value_header,
            array_header,
            known_length,
            value_size,
        }
    }

    /// Checks the reply at the start of `bytes` for its type and length; `None` if it is not
    /// complete yet. `scanner` keeps the progress between calls for one reply.
    #[inline]
    pub fn find(&self, bytes: &[u8], scanner: &mut Scanner) -> Result<Option<Found>> {
        if let Some(length) = self.known_length {
            let header = &self.array_header;
            if bytes.len() < header.len() {
                if header.starts_with(bytes) {
                    return Ok(None);
                }
            } else if bytes.starts_with(header) {
                match bytes.get(..length) {
                    Some(reply) if self.is_framed(reply) => {
                        *scanner = Scanner::default();
                        return Ok(Some(Found { length, miss: false }));
                    }
                    // The header fixes the length of one string, but not that of an array.
                    None if !matches!(self.expect, Expect::Values { .. }) => return Ok(None),
                    _ => {}
                }
            }
        }
        self.find_unusual(bytes, scanner)
    }

    /// Whether a reply of the expected header and length is framed as expected inside.
    #[inline]
    fn is_framed(&self, reply: &[u8]) -> bool {
        match self.expect {
            Expect::Exact(_) => true,
            Expect::Value { .. } => reply.ends_with(b"\r\n"),
            _ => self
                .elements(reply)
                .all(|element| element.starts_with(&self.value_header) && element.ends_with(b"\r\n")),
        }
    }

    /// The bulk strings of an array whose elements all have the expected value size.
    fn elements<'a>(&self, reply: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let inside = reply.get(self.array_header.len()..).unwrap_or_default();
        inside.chunks(self.value_header.len() + self.value_size + 2)
    }

    /// The general way: any reply, whole or in parts.
    fn find_unusual(&self, bytes: &[u8], scanner: &mut Scanner) -> Result<Option<Found>> {
        let broken = |text: &str| wrong(text, bytes);
        let Some(length) = scanner.advance(bytes).map_err(|error| broken(error.0))? else {
            return Ok(None);
        };
        let header = Header::parse(bytes).ok().flatten().ok_or_else(|| broken("no header"))?;
        let miss = header.null;
        let fits = match &self.expect {
            Expect::Exact(_) | Expect::Values { .. } | Expect::Value { or_nil: false } => false,
            Expect::Value { or_nil: true } => miss,
            Expect::Integer => header.kind == b':',
            Expect::Bulk => matches!(header.kind, b'$' | b'=') && !miss,
            Expect::Elements { count } => {
                matches!(header.kind, b'*' | b'~' | b'%') && !miss && header.children == *count
            }
            Expect::Any => !matches!(header.kind, b'-' | b'!'),
        };
        if !fits {
            let reply = bytes.get(..length).unwrap_or(bytes);
            return Err(wrong(&format!("expected {}", self.describe()), reply));
        }
        Ok(Some(Found { length, miss }))
    }

    /// Compares the payload of a reply that [`Checker::find`] accepted with the values of `ids`.
    pub fn compare(&self, reply: &[u8], ids: &[u64], values: &Values) -> Result<()> {
        let same = match self.expect {
            Expect::Value { .. } => ids.last().is_some_and(|id| self.payload(reply) == Some(values.of(*id))),
            Expect::Values { count } => {
                ids.len() == count
                    && self
                        .elements(reply)
                        .zip(ids)
                        .all(|(bulk, id)| self.payload(bulk) == Some(values.of(*id)))
            }
            _ => true,
        };
        if same {
            return Ok(());
        }
        Err(wrong(&format!("not the value that was stored (keys {ids:?})"), reply))
    }

    /// The payload of a bulk string of the expected value size.
    fn payload<'a>(&self, bulk: &'a [u8]) -> Option<&'a [u8]> {
        bulk.get(self.value_header.len()..)?.get(..self.value_size)
    }

    fn describe(&self) -> String {
        match &self.expect {
            Expect::Exact(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
            Expect::Value { or_nil: false } => format!("a string of {} bytes", self.value_size),
            Expect::Value { or_nil: true } => {
                format!("a string of {} bytes or nil", self.value_size)
            }
            Expect::Values { count } => format!("{count} strings of {} bytes", self.value_size),
            Expect::Integer => "an integer".into(),
            Expect::Bulk => "a string".into(),
            Expect::Elements { count } => format!("{count} elements"),
            Expect::Any => "no error".into(),
        }
    }
}

/// The error for a reply, with as much of it as a reader needs.
fn wrong(text: &str, reply: &[u8]) -> Error {
    let shown = reply.get(..SHOWN_BYTES).unwrap_or(reply);
    let more = if shown.len() < reply.len() { "..." } else { "" };
    Error::WrongReply(format!("{text}, but got \"{}{more}\"", shown.escape_ascii()))
}

//! The expected reply of a request, and the check of a reply against it.
//!
//! The common kinds have replies of a known length. Their check compares the header bytes and skips to the end, without
//! reading the payload. Any other reply goes through the general scanner. It is then either accepted after all (a miss)
//! or stops the run.

use crate::content::ValuePool;
use crate::error::{Error, Result};
use crate::reply::{self, ReplyHeader, ReplyScanner};
use crate::template::{DrawnValues, first_entry, parse_range};

#[cfg(test)]
mod tests;

/// The kinds of `--expect`, for `--help`.
pub const KINDS: &[(&str, &str)] = &[
    ("ok", "+OK"),
    ("pong", "+PONG"),
    ("integer", "an integer"),
    ("value", "the value that belongs to the request's key"),
    ("value-or-nil", "the same, or nil, which is counted as a miss"),
    (
        "prefix:MIN-MAX",
        "the value of the request's key in any length of MIN to MAX bytes; see {value:MIN-MAX}",
    ),
    ("values:N", "an array of the values of the request's N keys"),
    ("bulk", "any string except nil"),
    (
        "elements:N",
        "an array, set or map with N elements (a map's pair counts as two)",
    ),
    ("exactly:N", "the integer N"),
    ("below:N", "an integer from 0 to N-1"),
    (
        "value-multiple",
        "a positive integer that is a multiple of --value-size",
    ),
    ("number", "the integer that is the request's last number"),
    ("id", "the integer that is the number of the request's last key"),
    ("item", "the key's item for the request's last number or field"),
    ("name", "the name of any of the key's elements"),
    ("items:N", "the first N items of the key, in order"),
    ("names:N", "the names of the key's first N elements, in any order"),
    ("sorted-names:N", "the names of the key's first N elements, in order"),
    (
        "shared:FROM-TO",
        "the names of the shared elements FROM to TO-1, in any order; see {shared:FROM-TO}",
    ),
    ("fields:N", "N fields and the key's items for them, in any order"),
    (
        "scored:N",
        "the names of the key's first N elements and their scores, in order",
    ),
    (
        "idnames:N",
        "the names of the key's number and the following ones, N or as many as there are, in order",
    ),
    (
        "entries:N",
        "what XREADGROUP says about the N entries that are the request's turn; see {entries:N}",
    ),
    ("any", "anything except an error"),
];

/// The number of bytes of a wrong reply shown in the error.
const SHOWN_BYTES: usize = 120;

/// The kind of reply that a request must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedReply {
    /// Exactly these bytes.
    Exact(Vec<u8>),
    /// The value of the request's last key.
    Value {
        /// `true` if nil is also accepted.
        or_nil: bool,
    },
    /// The value of the request's last key in another length.
    ValuePrefix {
        /// The shortest accepted length in bytes.
        shortest: u64,
        /// The longest accepted length in bytes.
        longest: u64,
    },
    /// An array of the values of all keys of the request.
    Values {
        /// The number of keys.
        count: usize,
    },
    /// An integer.
    Integer,
    /// A string that is not nil.
    Bulk,
    /// An array, set or map.
    ElementCount {
        /// The number of elements in it.
        count: u64,
    },
    /// An integer that the request determines.
    IntegerFromRequest(IntegerSource),
    /// A string of the value size that belongs to the key.
    KeyString(KeyString),
    /// An array, set or map of the key's elements.
    ElementContents {
        /// The kind of elements.
        kind: ElementKind,
        /// The maximum number of elements.
        count: u64,
    },
    /// Anything that is not an error.
    Any,
}

/// The source of an expected integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntegerSource {
    /// The last number drawn.
    Number,
    /// The number of the last key.
    Id,
    /// Any integer from 0 that is smaller than this.
    Below(u64),
    /// Any positive multiple of the value size.
    ValueMultiple,
}

/// The string of a key that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyString {
    /// The item of the last number drawn.
    Item,
    /// The name of any element.
    Name,
}

/// The kind of elements of which a reply consists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementKind {
    /// Items in order.
    Items,
    /// Names in any order.
    Names,
    /// Names in order.
    SortedNames,
    /// Names of shared elements in any order.
    Shared {
        /// The number of the first element.
        first: u64,
    },
    /// Fields and items in any order.
    Fields,
    /// Names in order, each with its score.
    Scored,
    /// Names of consecutive keys in order.
    IdNames,
    /// Entries of a stream.
    Entries,
}

impl ElementKind {
    /// The number of RESP2 strings per element of the collection.
    fn strings_per_element(self) -> u64 {
        match self {
            ElementKind::Fields | ElementKind::Scored => 2,
            ElementKind::Items
            | ElementKind::Names
            | ElementKind::SortedNames
            | ElementKind::Shared { .. }
            | ElementKind::IdNames
            | ElementKind::Entries => 1,
        }
    }

    /// The size of the elements in RESP2 with their framing, in bytes, if it is known in advance.
    fn known_bytes(self, count: u64, bulk_bytes: usize) -> Option<usize> {
        let score_bytes = |score: u64| "$1\r\n\r\n".len() + score.to_string().len();
        let more: usize = match self {
            ElementKind::Items | ElementKind::Names | ElementKind::SortedNames | ElementKind::Shared { .. } => 0,
            ElementKind::Fields => count as usize * "$12\r\nfield:000000\r\n".len(),
            ElementKind::Scored => (0..count).map(score_bytes).sum(),
            ElementKind::IdNames | ElementKind::Entries => return None,
        };
        Some(more + count as usize * bulk_bytes)
    }
}

impl ExpectedReply {
    /// Parses the argument of `--expect`.
    ///
    /// # Errors
    /// Fails if the kind is unknown.
    pub fn parse(text: &str) -> Result<ExpectedReply> {
        let unknown = || Error::Usage(format!("unknown kind of reply {text:?}"));
        let (kind, count) = match text.split_once(':') {
            Some((kind @ ("prefix" | "shared"), range)) => {
                let (first, end) = parse_range(range).ok_or_else(unknown)?;
                return Ok(ExpectedReply::from_range(kind, first, end));
            }
            Some((kind, count)) => (kind, count.parse::<u64>().ok()),
            None => (text, None),
        };
        match (kind, count) {
            ("ok", None) => Ok(ExpectedReply::Exact(b"+OK\r\n".to_vec())),
            ("pong", None) => Ok(ExpectedReply::Exact(b"+PONG\r\n".to_vec())),
            ("integer", None) => Ok(ExpectedReply::Integer),
            ("value", None) => Ok(ExpectedReply::Value { or_nil: false }),
            ("value-or-nil", None) => Ok(ExpectedReply::Value { or_nil: true }),
            ("values", Some(count)) => Ok(ExpectedReply::Values { count: count as usize }),
            ("bulk", None) => Ok(ExpectedReply::Bulk),
            ("elements", Some(count)) => Ok(ExpectedReply::ElementCount { count }),
            ("exactly", Some(number)) => Ok(ExpectedReply::Exact(format!(":{number}\r\n").into_bytes())),
            ("below", Some(bound)) => Ok(ExpectedReply::IntegerFromRequest(IntegerSource::Below(bound))),
            ("value-multiple", None) => Ok(ExpectedReply::IntegerFromRequest(IntegerSource::ValueMultiple)),
            ("number", None) => Ok(ExpectedReply::IntegerFromRequest(IntegerSource::Number)),
            ("id", None) => Ok(ExpectedReply::IntegerFromRequest(IntegerSource::Id)),
            ("item", None) => Ok(ExpectedReply::KeyString(KeyString::Item)),
            ("name", None) => Ok(ExpectedReply::KeyString(KeyString::Name)),
            ("items" | "names" | "sorted-names" | "fields" | "scored" | "idnames" | "entries", Some(count)) => {
                let kind = match kind {
                    "items" => ElementKind::Items,
                    "names" => ElementKind::Names,
                    "sorted-names" => ElementKind::SortedNames,
                    "fields" => ElementKind::Fields,
                    "scored" => ElementKind::Scored,
                    "idnames" => ElementKind::IdNames,
                    _ => ElementKind::Entries,
                };
                Ok(ExpectedReply::ElementContents { kind, count })
            }
            ("any", None) => Ok(ExpectedReply::Any),
            _ => Err(unknown()),
        }
    }

    /// Creates a kind of reply that has a range: `prefix` or `shared`.
    fn from_range(kind: &str, first: u64, end: u64) -> ExpectedReply {
        match kind {
            "prefix" => ExpectedReply::ValuePrefix {
                shortest: first,
                longest: end,
            },
            _ => ExpectedReply::ElementContents {
                kind: ElementKind::Shared { first },
                count: end - first,
            },
        }
    }

    /// The number of keys of a request that this kind of reply refers to.
    pub fn keys_needed(&self) -> usize {
        match self {
            ExpectedReply::Value { .. }
            | ExpectedReply::ValuePrefix { .. }
            | ExpectedReply::IntegerFromRequest(IntegerSource::Id)
            | ExpectedReply::KeyString(_)
            | ExpectedReply::ElementContents { .. } => 1,
            ExpectedReply::Values { count } => *count,
            _ => 0,
        }
    }

    /// Returns `true` if a reply's content can be compared with the keys and numbers of its request.
    pub fn has_content(&self) -> bool {
        self.keys_needed() > 0 || matches!(self, ExpectedReply::IntegerFromRequest(_))
    }
}

/// A complete reply of the right type and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchedReply {
    /// The length of the reply in bytes.
    pub length: usize,
    /// `true` if it is a nil where a value was possible.
    pub is_miss: bool,
}

/// An [`ExpectedReply`] with the bytes it implies for one value size.
#[derive(Debug, Clone)]
pub struct ReplyChecker {
    expect: ExpectedReply,
    value_header: Vec<u8>,
    array_header: Vec<u8>,
    /// The length of the expected reply in bytes, if it is known in advance.
    known_length: Option<usize>,
    value_size: usize,
}

impl ReplyChecker {
    /// Creates the checker for replies whose values have `value_size` bytes.
    pub fn new(expect: ExpectedReply, value_size: usize) -> ReplyChecker {
        let value_header = format!("${value_size}\r\n").into_bytes();
        let bulk_length = value_header.len() + value_size + 2;
        let (array_header, known_length) = match &expect {
            ExpectedReply::Exact(bytes) => (bytes.clone(), Some(bytes.len())),
            ExpectedReply::Value { .. } => (value_header.clone(), Some(bulk_length)),
            ExpectedReply::Values { count } => {
                let header = format!("*{count}\r\n").into_bytes();
                let length = header.len() + count * bulk_length;
                (header, Some(length))
            }
            ExpectedReply::KeyString(_) => (value_header.clone(), Some(bulk_length)),
            ExpectedReply::ElementContents { kind, count } => {
                let header = format!("*{}\r\n", count * kind.strings_per_element()).into_bytes();
                let known = kind.known_bytes(*count, bulk_length);
                let length = known.map(|bytes| header.len() + bytes);
                (header, length)
            }
            _ => (Vec::new(), None),
        };
        ReplyChecker {
            expect,
            value_header,
            array_header,
            known_length,
            value_size,
        }
    }

    /// Checks the type and length of the reply at the start of `bytes`; `None` if it is not complete yet. `scanner`
    /// keeps the progress between calls for one reply.
    ///
    /// # Errors
    /// Fails if the reply is malformed or not of the expected kind.
    #[inline]
    pub fn check_header(&self, bytes: &[u8], scanner: &mut ReplyScanner) -> Result<Option<MatchedReply>> {
        if let Some(length) = self.known_length {
            let header = &self.array_header;
            if bytes.len() < header.len() {
                if header.starts_with(bytes) {
                    return Ok(None);
                }
            } else if bytes.starts_with(header) {
                match bytes.get(..length) {
                    Some(reply) if self.is_framed(reply) => {
                        *scanner = ReplyScanner::default();
                        return Ok(Some(MatchedReply { length, is_miss: false }));
                    }
                    // The header determines the length of one string, but not that of an array.
                    None if !matches!(
                        self.expect,
                        ExpectedReply::Values { .. } | ExpectedReply::ElementContents { .. }
                    ) =>
                    {
                        return Ok(None);
                    }
                    _ => {}
                }
            }
        }
        self.check_scanned(bytes, scanner)
    }

    /// Returns `true` if a reply with the expected header and length is framed as expected inside.
    #[inline]
    fn is_framed(&self, reply: &[u8]) -> bool {
        match self.expect {
            ExpectedReply::Exact(_) => true,
            // The elements of these kinds are checked when their content is compared.
            ExpectedReply::Value { .. } | ExpectedReply::KeyString(_) | ExpectedReply::ElementContents { .. } => {
                reply.ends_with(b"\r\n")
            }
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

    /// Checks any reply with the general scanner, whole or in parts.
    fn check_scanned(&self, bytes: &[u8], scanner: &mut ReplyScanner) -> Result<Option<MatchedReply>> {
        let broken = |text: &str| wrong_reply(text, bytes);
        let Some(length) = scanner.advance(bytes).map_err(|error| broken(error.0))? else {
            return Ok(None);
        };
        let header = ReplyHeader::parse(bytes)
            .ok()
            .flatten()
            .ok_or_else(|| broken("no header"))?;
        let miss = header.is_null;
        let fits = match &self.expect {
            ExpectedReply::Exact(_)
            | ExpectedReply::Values { .. }
            | ExpectedReply::Value { or_nil: false }
            | ExpectedReply::KeyString(_) => false,
            ExpectedReply::Value { or_nil: true } => miss,
            ExpectedReply::Integer | ExpectedReply::IntegerFromRequest(_) => header.kind == b':',
            ExpectedReply::ElementContents { kind, count } => self.has_element_count(*kind, *count, &header),
            ExpectedReply::Bulk => matches!(header.kind, b'$' | b'=') && !miss,
            ExpectedReply::ValuePrefix { shortest, longest } => {
                header.kind == b'$' && !miss && (*shortest..=*longest).contains(&header.string_len())
            }
            ExpectedReply::ElementCount { count } => {
                matches!(header.kind, b'*' | b'~' | b'%') && !miss && header.children == *count
            }
            ExpectedReply::Any => !matches!(header.kind, b'-' | b'!'),
        };
        if !fits {
            let reply = bytes.get(..length).unwrap_or(bytes);
            return Err(wrong_reply(&format!("expected {}", self.describe()), reply));
        }
        Ok(Some(MatchedReply { length, is_miss: miss }))
    }

    /// Returns `true` if an aggregate has the right kind and number of elements. In RESP3, a name and its score form an
    /// array.
    fn has_element_count(&self, kind: ElementKind, count: u64, header: &ReplyHeader) -> bool {
        let right_number = match kind {
            ElementKind::IdNames => header.children <= count,
            ElementKind::Entries => header.children == 1 || header.kind == b'%' && header.children == 2,
            ElementKind::Scored if header.children == count => true,
            _ => header.children == count * kind.strings_per_element(),
        };
        matches!(header.kind, b'*' | b'~' | b'%') && !header.is_null && right_number
    }

    /// Compares the content of a reply that [`ReplyChecker::find`] accepted with what its request drew from a keyspace
    /// of `keys` keys.
    ///
    /// # Errors
    /// Fails if the content differs from the stored data.
    pub fn compare(&self, reply: &[u8], drawn: &DrawnValues, keys: u64, values: &ValuePool) -> Result<()> {
        let ids = &drawn.ids;
        let last = ids.last().copied();
        let same = match self.expect {
            ExpectedReply::Value { .. } => last.is_some_and(|id| self.payload(reply) == Some(values.value(id))),
            ExpectedReply::Values { count } => {
                ids.len() == count
                    && self
                        .elements(reply)
                        .zip(ids)
                        .all(|(bulk, id)| self.payload(bulk) == Some(values.value(*id)))
            }
            ExpectedReply::ValuePrefix { .. } => last.is_some_and(|id| {
                let strings = reply::strings(reply);
                matches!(strings.as_slice(), [found] if *found == values.prefix(id, found.len()))
            }),
            ExpectedReply::IntegerFromRequest(told) => {
                let line = reply.get(1..reply.len().saturating_sub(2));
                let number = line.and_then(|line| std::str::from_utf8(line).ok()?.parse::<u64>().ok());
                match told {
                    IntegerSource::Number => number == Some(drawn.number),
                    IntegerSource::Id => number.is_some() && number == last,
                    IntegerSource::Below(bound) => number.is_some_and(|number| number < bound),
                    IntegerSource::ValueMultiple => {
                        let size = self.value_size.max(1) as u64;
                        number.is_some_and(|number| number > 0 && number.is_multiple_of(size))
                    }
                }
            }
            ExpectedReply::KeyString(own) => last.zip(self.payload(reply)).is_some_and(|(id, payload)| match own {
                KeyString::Item => payload == values.item(id, drawn.number),
                KeyString::Name => values.parse_name(id, payload).is_some(),
            }),
            ExpectedReply::ElementContents { kind, count } => last.is_some_and(|id| {
                let index = drawn.index;
                are_elements(
                    kind,
                    &reply::strings(reply),
                    &ExpectedElements { id, index, count, keys },
                    values,
                )
            }),
            _ => true,
        };
        if same {
            return Ok(());
        }
        Err(wrong_reply(
            &format!("not what was stored (keys {ids:?}, number {})", drawn.number),
            reply,
        ))
    }

    /// Returns the payload of a bulk string of the expected value size.
    fn payload<'a>(&self, bulk: &'a [u8]) -> Option<&'a [u8]> {
        bulk.get(self.value_header.len()..)?.get(..self.value_size)
    }

    fn describe(&self) -> String {
        match &self.expect {
            ExpectedReply::Exact(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
            ExpectedReply::Value { or_nil: false } => format!("a string of {} bytes", self.value_size),
            ExpectedReply::Value { or_nil: true } => {
                format!("a string of {} bytes or nil", self.value_size)
            }
            ExpectedReply::ValuePrefix { shortest, longest } => format!("a string of {shortest} to {longest} bytes"),
            ExpectedReply::Values { count } => format!("{count} strings of {} bytes", self.value_size),
            ExpectedReply::Integer | ExpectedReply::IntegerFromRequest(_) => "an integer".into(),
            ExpectedReply::KeyString(_) => format!("a string of {} bytes", self.value_size),
            ExpectedReply::ElementContents { kind, count } => format!("{count} {kind:?} of {} bytes", self.value_size),
            ExpectedReply::Bulk => "a string".into(),
            ExpectedReply::ElementCount { count } => format!("{count} elements"),
            ExpectedReply::Any => "no error".into(),
        }
    }
}

/// The elements of which a reply must consist.
struct ExpectedElements {
    /// The number of the request's last key.
    id: u64,
    /// The request's number on its connection.
    index: u64,
    /// The number of elements.
    count: u64,
    /// The number of keys in the keyspace.
    keys: u64,
}

/// Returns `true` if `strings` are the expected elements. `strings` are all strings of a reply at any nesting depth.
fn are_elements(kind: ElementKind, strings: &[&[u8]], wanted: &ExpectedElements, values: &ValuePool) -> bool {
    let ExpectedElements { id, index, count, keys } = *wanted;
    let name = |id: u64, number: u64| {
        let mut name = Vec::new();
        values.append_name(id, number, &mut name);
        name
    };
    match kind {
        ElementKind::Items => {
            let items = strings.iter().zip(0..);
            strings.len() as u64 == count && items.into_iter().all(|(item, number)| *item == values.item(id, number))
        }
        ElementKind::Names => {
            let numbers = strings.iter().map(|name| values.parse_name(id, name));
            is_permutation_below(numbers, count)
        }
        ElementKind::SortedNames => {
            let names = strings.iter().zip(0..);
            strings.len() as u64 == count && names.into_iter().all(|(found, number)| *found == name(id, number))
        }
        ElementKind::Shared { first } => {
            let numbers = strings
                .iter()
                .map(|name| values.parse_name(0, name)?.checked_sub(first));
            is_permutation_below(numbers, count)
        }
        ElementKind::Fields => {
            let numbers = strings.chunks(2).map(|pair| {
                let digits = pair.first()?.strip_prefix(b"field:")?;
                let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
                (pair.get(1) == Some(&values.item(id, number))).then_some(number)
            });
            is_permutation_below(numbers, count)
        }
        ElementKind::Scored => {
            let right = |(pair, number): (&[&[u8]], u64)| {
                pair.first() == Some(&name(id, number).as_slice())
                    && pair.get(1) == Some(&number.to_string().as_bytes())
            };
            strings.len() as u64 == 2 * count && strings.chunks(2).zip(0..).all(right)
        }
        ElementKind::IdNames => {
            let there = count.min(keys.saturating_sub(id));
            strings.len() as u64 == there
                && strings
                    .iter()
                    .zip(id..)
                    .all(|(found, number)| *found == name(0, number))
        }
        ElementKind::Entries => {
            let first = first_entry(index, count);
            let right = |(entry, number): (&[&[u8]], u64)| {
                let id_text = format!("{}-1", number + 1);
                entry == [id_text.as_bytes(), b"field:000000", values.item(number, 0)]
            };
            let entries = strings.get(1..).unwrap_or_default();
            entries.len() as u64 == 3 * count && entries.chunks(3).zip(first..).all(right)
        }
    }
}

/// Returns `true` if the numbers are those below `count`, each once.
fn is_permutation_below(numbers: impl Iterator<Item = Option<u64>>, count: u64) -> bool {
    let mut seen = vec![false; count as usize];
    for number in numbers {
        match number.and_then(|number| seen.get_mut(number as usize)) {
            Some(seen) if !*seen => *seen = true,
            _ => return false,
        }
    }
    seen.into_iter().all(|seen| seen)
}

/// Returns the error for a reply, with the beginning of the reply.
fn wrong_reply(text: &str, reply: &[u8]) -> Error {
    let shown = reply.get(..SHOWN_BYTES).unwrap_or(reply);
    let more = if shown.len() < reply.len() { "..." } else { "" };
    Error::WrongReply(format!("{text}, but got \"{}{more}\"", shown.escape_ascii()))
}

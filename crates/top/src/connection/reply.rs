//! Reads one RESP reply from a stream, within limits.
//!
//! The server is not trusted: a reply that announces more than it sends costs no memory for what did not arrive, and
//! one that exceeds a limit ends the connection. Both protocol versions are read; a map becomes an array of its names
//! and values in turn, as RESP2 sends it.

use std::io::{self, BufRead, Read};

#[cfg(test)]
mod tests;

/// The largest size of a reply, in bytes.
const MAX_REPLY_BYTES: u64 = 64 << 20;
/// The largest number of values in a reply.
const MAX_VALUES: u64 = 1 << 20;
/// The longest line of a reply: a type byte with a number or a message.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// The deepest nesting of arrays in a reply.
const MAX_DEPTH: usize = 8;
/// Memory is reserved for at most this many values that are announced and have not arrived.
const MAX_RESERVED_VALUES: u64 = 1024;

/// A reply. Texts and numbers of RESP3 that have no counterpart here are texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RespValue {
    /// A string of any kind.
    Text(Vec<u8>),
    /// An integer or a boolean.
    Integer(i64),
    /// A null of any kind.
    Null,
    /// An error with its message.
    Error(Vec<u8>),
    /// An array, a set, or a map as names and values in turn.
    Array(Vec<RespValue>),
}

impl RespValue {
    /// The bytes of a text.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            RespValue::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The elements of an array.
    pub fn elements(&self) -> Option<&[RespValue]> {
        match self {
            RespValue::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The value behind this name in a map, or in an array in which names and values alternate.
    pub fn field(&self, name: &str) -> Option<&RespValue> {
        let mut pairs = self.elements()?.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].bytes() == Some(name.as_bytes()))?;
        Some(&pair[1])
    }

    /// The finite number in an integer or in a text.
    pub fn number(&self) -> Option<f64> {
        let number = match self {
            RespValue::Integer(number) => *number as f64,
            RespValue::Text(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok()?,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    /// The number in an integer, or in a text that contains one.
    pub fn integer(&self) -> Option<i64> {
        match self {
            RespValue::Integer(number) => Some(*number),
            RespValue::Text(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// The rest of what one reply may still contain.
struct ReplyBudget {
    bytes: u64,
    values: u64,
}

impl ReplyBudget {
    fn take_bytes(&mut self, count: u64) -> io::Result<()> {
        self.bytes = self
            .bytes
            .checked_sub(count)
            .ok_or_else(|| malformed("a reply is too large"))?;
        Ok(())
    }

    fn take_value(&mut self) -> io::Result<()> {
        self.values = self
            .values
            .checked_sub(1)
            .ok_or_else(|| malformed("a reply has too many values"))?;
        Ok(())
    }
}

/// Reads one reply. Attributes and pushed messages are skipped.
///
/// # Errors
/// Fails with `InvalidData` if the bytes are not a reply or exceed a limit, with `UnexpectedEof` if the stream ends,
/// and with the errors of the stream.
pub fn read_reply(stream: &mut impl BufRead) -> io::Result<RespValue> {
    let mut budget = ReplyBudget {
        bytes: MAX_REPLY_BYTES,
        values: MAX_VALUES,
    };
    loop {
        if let Some(value) = read_value(stream, &mut budget, 0)? {
            return Ok(value);
        }
    }
}

/// Reads one value; `None` for an attribute or a pushed message, which belongs to no request.
fn read_value(stream: &mut impl BufRead, budget: &mut ReplyBudget, depth: usize) -> io::Result<Option<RespValue>> {
    budget.take_value()?;
    let line = read_line(stream, budget)?;
    let Some((kind, body)) = line.split_first() else {
        return Err(malformed("an empty line"));
    };
    let value = match kind {
        b'+' | b',' | b'(' => RespValue::Text(body.to_vec()),
        b'-' => RespValue::Error(body.to_vec()),
        b':' => RespValue::Integer(parse_integer(body)?),
        b'#' => RespValue::Integer(i64::from(body == b"t")),
        b'_' => RespValue::Null,
        b'$' | b'=' | b'!' => match parse_length(body)? {
            None => RespValue::Null,
            Some(length) => bulk_value(*kind, read_bulk(stream, length, budget)?),
        },
        b'*' | b'~' | b'>' | b'%' | b'|' => {
            let is_map = matches!(kind, b'%' | b'|');
            let Some(length) = parse_length(body)? else {
                return Ok(Some(RespValue::Null));
            };
            let length = if is_map { length.saturating_mul(2) } else { length };
            let elements = read_elements(stream, length, budget, depth)?;
            if matches!(kind, b'|' | b'>') {
                return Ok(None);
            }
            RespValue::Array(elements)
        }
        _ => return Err(malformed("an unknown type byte")),
    };
    Ok(Some(value))
}

/// Converts the bytes of a bulk of this kind. A verbatim string begins with its format, such as `txt:`.
fn bulk_value(kind: u8, mut bytes: Vec<u8>) -> RespValue {
    match kind {
        b'!' => RespValue::Error(bytes),
        b'=' if bytes.get(3) == Some(&b':') => RespValue::Text(bytes.split_off(4)),
        _ => RespValue::Text(bytes),
    }
}

fn read_elements(
    stream: &mut impl BufRead,
    length: u64,
    budget: &mut ReplyBudget,
    depth: usize,
) -> io::Result<Vec<RespValue>> {
    if depth >= MAX_DEPTH {
        return Err(malformed("a reply is nested too deeply"));
    }
    if length > budget.values {
        return Err(malformed("a reply has too many values"));
    }
    let mut elements = Vec::with_capacity(length.min(MAX_RESERVED_VALUES) as usize);
    while (elements.len() as u64) < length {
        elements.extend(read_value(stream, budget, depth + 1)?);
    }
    Ok(elements)
}

fn read_line(stream: &mut impl BufRead, budget: &mut ReplyBudget) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    Read::take(&mut *stream, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    budget.take_bytes(line.len() as u64)?;
    if line.ends_with(b"\r\n") {
        line.truncate(line.len() - 2);
        return Ok(line);
    }
    match line.len() as u64 {
        MAX_LINE_BYTES => Err(malformed("a line is too long")),
        _ if line.ends_with(b"\n") => Err(malformed("a line does not end in CR LF")),
        _ => Err(closed()),
    }
}

fn read_bulk(stream: &mut impl BufRead, length: u64, budget: &mut ReplyBudget) -> io::Result<Vec<u8>> {
    budget.take_bytes(length.saturating_add(2))?;
    let mut bytes = Vec::new();
    // Grows with what arrives, not with what is announced.
    Read::take(&mut *stream, length + 2).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length + 2 {
        return Err(closed());
    }
    if !bytes.ends_with(b"\r\n") {
        return Err(malformed("a string does not end where it says"));
    }
    bytes.truncate(length as usize);
    Ok(bytes)
}

/// Parses a length; `None` for the null of RESP2.
fn parse_length(text: &[u8]) -> io::Result<Option<u64>> {
    match parse_integer(text)? {
        -1 => Ok(None),
        number => u64::try_from(number)
            .map(Some)
            .map_err(|_| malformed("a negative length")),
    }
}

fn parse_integer(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed("a number cannot be read"))
}

fn malformed(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {reason}"))
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

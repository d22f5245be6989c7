//! Writes replies in RESP2 or RESP3 at the end of a connection's output buffer.
//!
//! Types that only RESP3 has are written in RESP2 as what Valkey sends there: a map as an array of
//! keys and values, a set as an array, a double or big number as a bulk string, and so on.
//!
//! Most replies are headers with small numbers, so those are appended as arrays of a fixed size,
//! which compile to one or two stores.

use crate::number::{F64_TEXT_MAX_LEN, LongDouble, write_f64};
use crate::request::ProtocolError;

/// The version of the protocol in which a connection gets its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// What a connection begins with.
    #[default]
    Resp2,
    /// What it may change to with `HELLO 3`.
    Resp3,
}

/// Appends replies to an output buffer.
#[derive(Debug)]
pub struct Reply<'a> {
    /// Where the replies go.
    pub out: &'a mut Vec<u8>,
    /// The protocol they are written in.
    pub protocol: Protocol,
}

/// Where the header of a collection goes whose length is not known yet. It must be given back to
/// the `end_` function that belongs to the `begin_` function it came from.
#[derive(Debug)]
#[must_use = "a collection that is begun must be ended"]
pub struct Deferred {
    position: usize,
}

impl<'a> Reply<'a> {
    /// A writer that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }
}

impl Reply<'_> {
    /// `OK`, the answer of a command that has nothing to say.
    #[inline]
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// `QUEUED`, the answer of a command inside MULTI.
    #[inline]
    pub fn queued(&mut self) {
        self.raw(b"+QUEUED\r\n");
    }

    /// A simple string. The text must be one line.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a simple string is one line");
        self.line(b'+', text.as_bytes());
    }

    /// An error. The text begins with its code, such as `ERR` or `WRONGTYPE`. Line ends at its end
    /// are dropped, others become spaces.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// An error, as [`Self::error`], for a text that may not be UTF-8, as it repeats what a client sent.
    pub fn error_bytes(&mut self, text: &[u8]) {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let trimmed = text.iter().rev().skip_while(|byte| is_line_end(byte)).count();
        let text = &text[..trimmed];
        self.out.reserve(text.len() + 3);
        self.out.push(b'-');
        self.out
            .extend(text.iter().map(|byte| if is_line_end(byte) { b' ' } else { *byte }));
        self.crlf();
    }

    /// The error for bytes that are not a request, after which the connection is closed.
    pub fn protocol_error(&mut self, error: &ProtocolError) {
        self.line(b'-', &[b"ERR ", &*error.message()].concat());
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        match usize::try_from(number) {
            Ok(number) => self.header(b':', number),
            Err(_) => self.negative_integer(number),
        }
    }

    fn negative_integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + HEADER_MAX_LEN + 2);
        self.bulk_header(bytes.len());
        self.raw(bytes);
        self.crlf();
    }

    /// An integer as a bulk string.
    #[inline]
    pub fn bulk_integer(&mut self, number: i64) {
        self.bulk(itoa::Buffer::new().format(number).as_bytes());
    }

    /// The header of a bulk string of `len` bytes, which must follow with [`Self::raw`], and then
    /// [`Self::crlf`].
    #[inline]
    pub fn bulk_header(&mut self, len: usize) {
        self.header(b'$', len);
    }

    /// Bytes as they are.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A line end.
    #[inline]
    pub fn crlf(&mut self) {
        self.raw(b"\r\n");
    }

    /// The null that stands for a missing value.
    #[inline]
    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"$-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// The null that stands for a missing collection. RESP3 does not tell it from [`Self::null`].
    #[inline]
    pub fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"*-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// The header of an array of `len` elements, which must follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// The header of a map of `len` pairs of a key and a value, which must follow.
    #[inline]
    pub fn map(&mut self, len: usize) {
        let (prefix, len) = self.map_header(len);
        self.header(prefix, len);
    }

    /// The header of a set of `len` elements, which must follow.
    #[inline]
    pub fn set(&mut self, len: usize) {
        self.header(self.set_prefix(), len);
    }

    /// The header of a message of `len` elements that answers no request. They must follow.
    #[inline]
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len),
            Protocol::Resp3 => self.header(b'>', len),
        }
    }

    /// The header of `len` pairs of attributes of the reply after them. Only in RESP3: clients of
    /// RESP2 cannot read it.
    pub fn attribute(&mut self, len: usize) {
        debug_assert!(self.protocol == Protocol::Resp3, "RESP2 has no attributes");
        self.header(b'|', len);
    }

    /// A floating point number.
    #[inline]
    pub fn double(&mut self, number: f64) {
        let mut text = [0; F64_TEXT_MAX_LEN];
        let len = write_f64(number, &mut text);
        self.number_text(&text[..len]);
    }

    /// A floating point number that is printed without exponent and without digits that come from
    /// rounding alone.
    pub fn long_double(&mut self, number: LongDouble) {
        let mut text = Vec::new();
        number.format_human(&mut text);
        self.number_text(&text);
    }

    #[inline]
    fn number_text(&mut self, text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => self.line(b',', text),
        }
    }

    /// An integer of any size, given in decimal.
    pub fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    /// A truth value.
    #[inline]
    pub fn boolean(&mut self, value: bool) {
        self.raw(match (self.protocol, value) {
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
        });
    }

    /// A text to be shown as it is. `extension` names its format in three characters, such as
    /// `txt`; a shorter one is filled with spaces, of a longer one the rest is ignored.
    pub fn verbatim(&mut self, extension: &str, text: &[u8]) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        let mut name = *b"   :";
        for (target, byte) in name[..3].iter_mut().zip(extension.bytes()) {
            *target = byte;
        }
        self.header(b'=', text.len() + name.len());
        self.raw(&name);
        self.raw(text);
        self.crlf();
    }

    /// Begins an array whose length is not known yet. Its elements must follow. Collections begun
    /// inside it must be ended first.
    pub fn begin_array(&mut self) -> Deferred {
        Deferred {
            position: self.out.len(),
        }
    }

    /// Ends an array of `len` elements.
    pub fn end_array(&mut self, begun: Deferred, len: usize) {
        self.insert_header(begun, b'*', len);
    }

    /// Begins a map whose length is not known yet, as [`Self::begin_array`].
    pub fn begin_map(&mut self) -> Deferred {
        Deferred {
            position: self.out.len(),
        }
    }

    /// Ends a map of `len` pairs.
    pub fn end_map(&mut self, begun: Deferred, len: usize) {
        let (prefix, len) = self.map_header(len);
        self.insert_header(begun, prefix, len);
    }

    /// Begins a set whose length is not known yet, as [`Self::begin_array`].
    pub fn begin_set(&mut self) -> Deferred {
        Deferred {
            position: self.out.len(),
        }
    }

    /// Ends a set of `len` elements.
    pub fn end_set(&mut self, begun: Deferred, len: usize) {
        self.insert_header(begun, self.set_prefix(), len);
    }

    /// Length of the output buffer in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes back what was appended since the output buffer had `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    #[inline]
    fn map_header(&self, len: usize) -> (u8, usize) {
        match self.protocol {
            Protocol::Resp2 => (b'*', len * 2),
            Protocol::Resp3 => (b'%', len),
        }
    }

    #[inline]
    fn set_prefix(&self) -> u8 {
        match self.protocol {
            Protocol::Resp2 => b'*',
            Protocol::Resp3 => b'~',
        }
    }

    /// A line of a type that is one line.
    fn line(&mut self, prefix: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(prefix);
        self.raw(text);
        self.crlf();
    }

    /// A line with a prefix and a number.
    #[inline]
    fn header(&mut self, prefix: u8, number: usize) {
        match number {
            0..10 => self.raw(&[prefix, ascii(number), b'\r', b'\n']),
            10..100 => self.raw(&[prefix, ascii(number / 10), ascii(number % 10), b'\r', b'\n']),
            100..1000 => self.raw(&[
                prefix,
                ascii(number / 100),
                ascii(number / 10 % 10),
                ascii(number % 10),
                b'\r',
                b'\n',
            ]),
            _ => self.long_header(prefix, number),
        }
    }

    fn long_header(&mut self, prefix: u8, number: usize) {
        self.line(prefix, itoa::Buffer::new().format(number).as_bytes());
    }

    /// Moves what follows the position of `begun` to make room for a header.
    fn insert_header(&mut self, begun: Deferred, prefix: u8, len: usize) {
        let end = self.out.len();
        assert!(
            begun.position <= end,
            "the output was cut below a collection that is open"
        );
        self.header(prefix, len);
        let mut header = [0; HEADER_MAX_LEN];
        let header_len = self.out.len() - end;
        header[..header_len].copy_from_slice(&self.out[end..]);
        self.out.copy_within(begun.position..end, begun.position + header_len);
        self.out[begun.position..][..header_len].copy_from_slice(&header[..header_len]);
    }
}

/// Length of the longest header: a prefix, 20 digits, a line end.
const HEADER_MAX_LEN: usize = 23;

/// The digit of a number below ten.
#[inline]
fn ascii(digit: usize) -> u8 {
    b'0' + digit as u8
}

#[cfg(test)]
mod tests;

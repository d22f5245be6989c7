//! Writes replies in RESP2 or RESP3 to the end of a connection's output buffer.
//!
//! Types that only RESP3 has are written in RESP2 in the form that Valkey uses there: a map as an array of keys and
//! values, a set as an array, a double or big number as a bulk string, and so on.
//!
//! Most replies are headers with small numbers. Those are appended as arrays of a fixed size, which compile to one or
//! two stores.

mod nested;

pub use nested::{NestedCollection, NestedLengths};

use crate::number::{F64_TEXT_MAX_LEN, LongDouble, write_f64};
use crate::request::ProtocolError;

/// The protocol version of a connection's replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, the initial protocol of a connection.
    #[default]
    Resp2,
    /// RESP3, which the client selects with `HELLO 3`.
    Resp3,
}

/// A writer that appends replies to an output buffer.
#[derive(Debug)]
pub struct Reply<'a> {
    /// The output buffer.
    pub out: &'a mut Vec<u8>,
    /// The protocol version of the replies.
    pub protocol: Protocol,
}

/// The position of a collection's header, which is written once the length is known. It must be passed to the `end_`
/// function that corresponds to the `begin_` function that returned it.
#[derive(Debug)]
#[must_use = "a collection that is begun must be ended"]
pub struct DeferredLength {
    position: usize,
}

impl<'a> Reply<'a> {
    /// Creates a writer that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }
}

impl Reply<'_> {
    /// Writes `OK`, the reply of a command that returns no data.
    #[inline]
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// Writes `QUEUED`, the reply to a command inside MULTI.
    #[inline]
    pub fn queued(&mut self) {
        self.raw(b"+QUEUED\r\n");
    }

    /// Writes a simple string. The text must be a single line.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a simple string is one line");
        self.write_line(b'+', text.as_bytes());
    }

    /// Writes an error. The text begins with its error code, such as `ERR` or `WRONGTYPE`. Trailing line breaks are
    /// removed; other CR and LF bytes become spaces.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// Writes an error like [`Self::error`]. The text may not be UTF-8, because it can repeat bytes that the client
    /// sent.
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

    /// Writes the error reply to malformed input. The connection is closed after it.
    pub fn protocol_error(&mut self, error: &ProtocolError) {
        self.write_line(b'-', &[b"ERR ", &*error.message()].concat());
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        match usize::try_from(number) {
            Ok(number) => self.write_header(b':', number),
            Err(_) => self.negative_integer(number),
        }
    }

    fn negative_integer(&mut self, number: i64) {
        self.write_line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes a bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + HEADER_MAX_LEN + 2);
        self.bulk_header(bytes.len());
        self.raw(bytes);
        self.crlf();
    }

    /// Writes an integer as a bulk string.
    #[inline]
    pub fn bulk_integer(&mut self, number: i64) {
        self.bulk(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes the header of a bulk string of `len` bytes. The bytes must follow with [`Self::raw`], then
    /// [`Self::crlf`].
    #[inline]
    pub fn bulk_header(&mut self, len: usize) {
        self.write_header(b'$', len);
    }

    /// Appends `bytes` unchanged.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Writes CR LF.
    #[inline]
    pub fn crlf(&mut self) {
        self.raw(b"\r\n");
    }

    /// Writes the null that stands for a missing value.
    #[inline]
    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"$-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// Writes the null that stands for a missing array. In RESP3 it is the same as [`Self::null`].
    #[inline]
    pub fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"*-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// Writes the header of an array of `len` elements, which must follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.write_header(b'*', len);
    }

    /// Writes the header of a map of `len` pairs of a key and a value, which must follow.
    #[inline]
    pub fn map(&mut self, len: usize) {
        let (prefix, len) = self.map_header(len);
        self.write_header(prefix, len);
    }

    /// Writes the header of a set of `len` elements, which must follow.
    #[inline]
    pub fn set(&mut self, len: usize) {
        self.write_header(self.set_prefix(), len);
    }

    /// Writes the header of an out-of-band message of `len` elements, which must follow.
    #[inline]
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.write_header(b'*', len),
            Protocol::Resp3 => self.write_header(b'>', len),
        }
    }

    /// Writes the header of `len` attribute pairs that describe the reply after them. Only valid in RESP3.
    pub fn attribute(&mut self, len: usize) {
        debug_assert!(self.protocol == Protocol::Resp3, "RESP2 has no attributes");
        self.write_header(b'|', len);
    }

    /// Writes a floating-point number.
    #[inline]
    pub fn double(&mut self, number: f64) {
        let mut text = [0; F64_TEXT_MAX_LEN];
        let len = write_f64(number, &mut text);
        self.number_text(&text[..len]);
    }

    /// Writes a floating-point number without an exponent, rounded so that digits that only result from binary rounding
    /// do not appear.
    pub fn long_double(&mut self, number: LongDouble) {
        let mut text = Vec::new();
        number.append_human_readable(&mut text);
        self.number_text(&text);
    }

    #[inline]
    fn number_text(&mut self, text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => self.write_line(b',', text),
        }
    }

    /// Writes an integer of any size, given in decimal.
    pub fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.write_line(b'(', digits.as_bytes()),
        }
    }

    /// Writes a Boolean.
    #[inline]
    pub fn boolean(&mut self, value: bool) {
        self.raw(match (self.protocol, value) {
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
        });
    }

    /// Writes a verbatim string. `extension` names its format in three characters, such as `txt`. A shorter name is
    /// padded with spaces, a longer one is truncated.
    pub fn verbatim(&mut self, extension: &str, text: &[u8]) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        let mut name = *b"   :";
        for (target, byte) in name[..3].iter_mut().zip(extension.bytes()) {
            *target = byte;
        }
        self.write_header(b'=', text.len() + name.len());
        self.raw(&name);
        self.raw(text);
        self.crlf();
    }

    /// Begins an array whose length is not known yet. Its elements must follow. Collections begun inside it must be
    /// ended first.
    pub fn begin_array(&mut self) -> DeferredLength {
        DeferredLength {
            position: self.out.len(),
        }
    }

    /// Ends an array of `len` elements.
    pub fn end_array(&mut self, deferred: DeferredLength, len: usize) {
        self.insert_header(deferred, b'*', len);
    }

    /// Begins a map whose length is not known yet. The rules of [`Self::begin_array`] apply.
    pub fn begin_map(&mut self) -> DeferredLength {
        DeferredLength {
            position: self.out.len(),
        }
    }

    /// Ends a map of `len` pairs.
    pub fn end_map(&mut self, deferred: DeferredLength, len: usize) {
        let (prefix, len) = self.map_header(len);
        self.insert_header(deferred, prefix, len);
    }

    /// Begins a set whose length is not known yet. The rules of [`Self::begin_array`] apply.
    pub fn begin_set(&mut self) -> DeferredLength {
        DeferredLength {
            position: self.out.len(),
        }
    }

    /// Ends a set of `len` elements.
    pub fn end_set(&mut self, deferred: DeferredLength, len: usize) {
        self.insert_header(deferred, self.set_prefix(), len);
    }

    /// Begins attributes whose number is not known yet. The rules of [`Self::begin_array`] apply. Only valid in RESP3.
    pub fn begin_attribute(&mut self) -> DeferredLength {
        debug_assert!(self.protocol == Protocol::Resp3, "RESP2 has no attributes");
        DeferredLength {
            position: self.out.len(),
        }
    }

    /// Ends attributes of `len` pairs.
    pub fn end_attribute(&mut self, deferred: DeferredLength, len: usize) {
        self.insert_header(deferred, b'|', len);
    }

    /// The length of the output buffer in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Shortens the output buffer to `len` bytes, which removes what was appended since it had that length.
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

    /// Writes a reply of a type that consists of one line.
    fn write_line(&mut self, prefix: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(prefix);
        self.raw(text);
        self.crlf();
    }

    /// Writes a line that consists of a prefix and a number.
    #[inline]
    fn write_header(&mut self, prefix: u8, number: usize) {
        match number {
            0..10 => self.raw(&[prefix, ascii_digit(number), b'\r', b'\n']),
            10..100 => self.raw(&[prefix, ascii_digit(number / 10), ascii_digit(number % 10), b'\r', b'\n']),
            100..1000 => self.raw(&[
                prefix,
                ascii_digit(number / 100),
                ascii_digit(number / 10 % 10),
                ascii_digit(number % 10),
                b'\r',
                b'\n',
            ]),
            _ => self.long_header(prefix, number),
        }
    }

    fn long_header(&mut self, prefix: u8, number: usize) {
        self.write_line(prefix, itoa::Buffer::new().format(number).as_bytes());
    }

    /// Inserts a header at the position of `begun` by moving the bytes after it.
    fn insert_header(&mut self, deferred: DeferredLength, prefix: u8, len: usize) {
        let end = self.out.len();
        assert!(
            deferred.position <= end,
            "the output was cut below a collection that is open"
        );
        self.write_header(prefix, len);
        let mut header = [0; HEADER_MAX_LEN];
        let header_len = self.out.len() - end;
        header[..header_len].copy_from_slice(&self.out[end..]);
        self.out
            .copy_within(deferred.position..end, deferred.position + header_len);
        self.out[deferred.position..][..header_len].copy_from_slice(&header[..header_len]);
    }
}

/// The length of the longest header in bytes: a prefix, 20 digits, CR LF.
const HEADER_MAX_LEN: usize = 23;

/// Returns the ASCII digit of a number below ten.
#[inline]
fn ascii_digit(digit: usize) -> u8 {
    b'0' + digit as u8
}

#[cfg(test)]
mod tests;

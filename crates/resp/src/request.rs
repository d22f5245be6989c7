//! Parses requests: RESP arrays of bulk strings, and inline lines.
//!
//! A connection keeps one [`Parser`] and one input buffer. It calls [`Parser::parse`] with the bytes
//! from the start of the current request to the end of what was received:
//!
//! ```text
//!            start of request            end of received bytes
//!                  v                           v
//!   ... done ... | *2\r\n $3\r\n GET\r\n $5\r\n he |
//!                                              ^
//!                                   the parser stopped here
//! ```
//!
//! A request that is not all there yet leaves its finished arguments, the place where the work
//! stopped and the count of arguments still to come inside the parser. The next call goes on from
//! there: a byte is looked at a bounded number of times, however small the pieces are in which it
//! arrives. Everything is an offset from the start of the request, so the buffer may move or grow
//! between two calls.
//!
//! The outcome depends on the bytes alone, never on how they were cut into pieces. For the 64 KiB
//! limit of a line this is stricter than Valkey, which applies the limit only to what happens to
//! be in its buffer when the line end is still missing.
//!
//! Lines end differently in the two forms. A count line of an array ends at the first `\r`, which
//! `\n` must follow. An inline line ends at `\n`, one `\r` before it is dropped, and it cannot be
//! seen through a zero byte: a line with one never ends, and fails once it passes 64 KiB.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use crate::number::parse_i64;
use crate::quote::{Plain, plain_arguments, split_arguments};

/// The longest line, in bytes before its line end: an inline request, or the count in front of an
/// array or a bulk string.
const LINE_MAX_LEN: usize = 64 * 1024;
/// The largest bulk string, in bytes, that a connection may send before it is authenticated.
const UNAUTHENTICATED_BULK_MAX_LEN: u64 = 16384;
/// The largest number of arguments that a connection may send before it is authenticated.
const UNAUTHENTICATED_MAX_ARGS: i64 = 10;
/// How many arguments' worth of memory a parser keeps between requests that arrive in pieces.
const KEPT_PARTIAL_ARGS: usize = 64;

/// One argument: a range relative to the start of its request in the connection's input buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgRange {
    /// Offset of the argument's first byte from the start of the request.
    pub start: u32,
    /// Length of the argument in bytes.
    pub len: u32,
}

impl ArgRange {
    /// The argument's bytes, where `request` begins at the start of the request this range came from.
    ///
    /// Panics if `request` is shorter than the request that was parsed.
    #[inline]
    pub fn of(self, request: &[u8]) -> &[u8] {
        &request[self.start as usize..][..self.len as usize]
    }
}

/// What a connection may send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest bulk string in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: u64,
    /// Whether the connection has authenticated, or need not. One that has not may send at most 10
    /// arguments of at most 16384 bytes.
    pub authenticated: bool,
}

/// Outcome of one call of [`Parser::parse`].
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed.
    Incomplete {
        /// How many bytes of the current bulk string, with its line end, are missing; 0 if unknown.
        wanted: usize,
    },
    /// A request of `consumed` bytes ended and its arguments were appended to `args`.
    Request {
        /// Length of the request in bytes.
        consumed: usize,
        /// Number of arguments; 0 for an empty line or an array without elements, which ask for nothing.
        argc: usize,
    },
    /// An inline request ended whose quotes had to be resolved, so that its arguments are not
    /// pieces of the buffer. It has at least one argument.
    Inline {
        /// Length of the request in bytes.
        consumed: usize,
        /// The arguments.
        args: Vec<Vec<u8>>,
    },
    /// The bytes are no request. The connection gets the error and is closed.
    Error(ProtocolError),
}

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline line is longer than 64 KiB.
    TooBigInlineRequest,
    /// The count of an array is longer than 64 KiB.
    TooBigArrayCount,
    /// The count of an array is not a number, or above `i32::MAX`.
    InvalidArrayLength,
    /// More than 10 arguments before authentication.
    UnauthenticatedArrayLength,
    /// The length of a bulk string is longer than 64 KiB.
    TooBigBulkCount,
    /// A bulk string was expected, but this byte came.
    ExpectedBulk(u8),
    /// The length of a bulk string is not a number, negative, or above `proto-max-bulk-len`.
    InvalidBulkLength,
    /// A bulk string above 16384 bytes before authentication.
    UnauthenticatedBulkLength,
    /// An inline line ends inside quotes.
    UnbalancedQuotes,
    /// A count or a bulk string is not followed by `\r\n`.
    InvalidLineEnd,
    /// The request is longer than 4 GiB.
    TooBigRequest,
}

impl ProtocolError {
    /// The text that follows `-ERR ` in the error reply. It can hold a byte that is not UTF-8: the
    /// one that the client sent where a bulk string should begin.
    pub fn message(&self) -> Cow<'static, [u8]> {
        let text: &'static [u8] = match self {
            Self::TooBigInlineRequest => b"Protocol error: too big inline request",
            Self::TooBigArrayCount => b"Protocol error: too big mbulk count string",
            Self::InvalidArrayLength => b"Protocol error: invalid multibulk length",
            Self::UnauthenticatedArrayLength => b"Protocol error: unauthenticated multibulk length",
            Self::TooBigBulkCount => b"Protocol error: too big bulk count string",
            Self::ExpectedBulk(got) => {
                let got = if matches!(got, b'\r' | b'\n') { b' ' } else { *got };
                let mut text = b"Protocol error: expected '$', got '".to_vec();
                text.extend_from_slice(&[got, b'\'']);
                return Cow::Owned(text);
            }
            Self::InvalidBulkLength => b"Protocol error: invalid bulk length",
            Self::UnauthenticatedBulkLength => b"Protocol error: unauthenticated bulk length",
            Self::UnbalancedQuotes => b"Protocol error: unbalanced quotes in request",
            Self::InvalidLineEnd => b"Protocol error: invalid CRLF in request",
            Self::TooBigRequest => b"Protocol error: too big request",
        };
        Cow::Borrowed(text)
    }
}

/// Why a step of the parser did not finish its piece.
enum ParseStop {
    Incomplete { wanted: usize },
    Error(ProtocolError),
}

impl From<ParseStop> for Parsed {
    #[inline]
    fn from(stop: ParseStop) -> Self {
        match stop {
            ParseStop::Incomplete { wanted } => Self::Incomplete { wanted },
            ParseStop::Error(error) => Self::Error(error),
        }
    }
}

/// Where a connection's current request stands. Keep one per connection.
#[derive(Debug, Default)]
pub struct Parser {
    /// Offset of the first byte that is not yet part of a finished piece of the request.
    position: usize,
    /// How many bytes from `position` on are known to hold no complete line end.
    scanned: usize,
    /// Arguments still to come; 0 while the first line is not complete.
    remaining: u32,
    /// The inline request holds a zero byte, so that it has no end.
    endless: bool,
    /// The length of the bulk string at `position`, once its header is parsed.
    bulk_len: Option<u32>,
    /// The finished arguments of a request that is not complete.
    partial: Vec<ArgRange>,
}

impl Parser {
    /// Parses one request, appending its arguments to `args`.
    ///
    /// `request` holds the bytes from the start of the current request to the end of what was
    /// received. After [`Parsed::Incomplete`] the next call must begin with the same bytes, though
    /// they may lie elsewhere; `args` is then as it was. After any other outcome the parser is idle.
    #[inline]
    pub fn parse(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &Limits) -> Parsed {
        if !self.is_idle() {
            return self.resume(request, args, limits);
        }
        match request.first() {
            Some(b'*') => self.array(request, args, limits),
            Some(_) => self.inline(request, args),
            None => Parsed::Incomplete { wanted: 0 },
        }
    }

    /// Whether no part of a request is held.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.position == 0 && self.scanned == 0
    }

    /// Forgets the partial request.
    pub fn reset(&mut self) {
        self.position = 0;
        self.scanned = 0;
        self.remaining = 0;
        self.endless = false;
        self.bulk_len = None;
        if self.partial.capacity() > KEPT_PARTIAL_ARGS {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
        }
    }

    /// Parses an array from its first byte. Its arguments go straight to `args`; they move into the
    /// parser only if the request turns out to be incomplete.
    #[inline]
    fn array(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &Limits) -> Parsed {
        let base = args.len();
        match self.elements(request, args, limits) {
            Ok(consumed) => Parsed::Request {
                consumed,
                argc: args.len() - base,
            },
            Err(stop) => {
                self.suspend(&stop, args, base);
                stop.into()
            }
        }
    }

    /// Takes back what an unfinished request appended to `args`.
    #[cold]
    fn suspend(&mut self, stop: &ParseStop, args: &mut Vec<ArgRange>, base: usize) {
        match stop {
            ParseStop::Incomplete { .. } => self.partial.extend_from_slice(&args[base..]),
            ParseStop::Error(_) => self.reset(),
        }
        args.truncate(base);
    }

    /// Goes on with a request of which a part was seen.
    fn resume(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &Limits) -> Parsed {
        assert!(
            request.len() >= self.position + self.scanned,
            "a resumed request must begin with the bytes of the call before"
        );
        if request[0] != b'*' {
            return self.inline(request, args);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let outcome = self.elements(request, &mut partial, limits);
        self.partial = partial;
        match outcome {
            Ok(consumed) => {
                let argc = self.partial.len();
                args.extend_from_slice(&self.partial);
                self.reset();
                Parsed::Request { consumed, argc }
            }
            Err(stop) => {
                if matches!(stop, ParseStop::Error(_)) {
                    self.reset();
                }
                stop.into()
            }
        }
    }

    /// Parses an array from where it stopped: the count if it is not known, then the bulk strings.
    /// Returns the length of the request and leaves the parser idle but for `partial`.
    #[inline]
    fn elements(&mut self, request: &[u8], sink: &mut Vec<ArgRange>, limits: &Limits) -> Result<usize, ParseStop> {
        if self.remaining == 0 {
            let (count, end) = self.array_count(request, limits)?;
            self.position = end;
            self.scanned = 0;
            self.remaining = count;
        }
        let mut position = self.position;
        while self.remaining > 0 {
            let len = match self.bulk_len.take() {
                Some(len) => len,
                None => {
                    let (len, end) = match short_bulk_len(request, position) {
                        Some((len, end)) if u64::from(len) <= limits.max_bulk_len => (len, end),
                        _ => {
                            self.position = position;
                            self.bulk_len(request, limits)?
                        }
                    };
                    self.scanned = 0;
                    position = end;
                    len
                }
            };
            let end = position + len as usize;
            let Some(line_end) = request.get(end..end + 2) else {
                self.position = position;
                self.bulk_len = Some(len);
                return Err(ParseStop::Incomplete {
                    wanted: end + 2 - request.len(),
                });
            };
            if line_end != b"\r\n" {
                return Err(ParseStop::Error(ProtocolError::InvalidLineEnd));
            }
            let start = u32::try_from(position).map_err(|_| too_big_request())?;
            sink.push(ArgRange { start, len });
            position = end + 2;
            self.remaining -= 1;
        }
        self.position = 0;
        Ok(position)
    }

    /// Parses `*<count>\r\n` at the start of the request. Returns the count and the line's end. A
    /// negative count is 0.
    #[inline]
    fn array_count(&mut self, request: &[u8], limits: &Limits) -> Result<(u32, usize), ParseStop> {
        if let [b'*', digit @ b'0'..=b'9', b'\r', b'\n', ..] = request {
            return Ok((u32::from(digit - b'0'), 4));
        }
        self.long_array_count(request, limits)
    }

    fn long_array_count(&mut self, request: &[u8], limits: &Limits) -> Result<(u32, usize), ParseStop> {
        let line = self.count_line(request, ProtocolError::TooBigArrayCount)?;
        if !line.ends_well {
            return Err(ParseStop::Error(ProtocolError::InvalidLineEnd));
        }
        let count = parse_i64(&line.text[1..])
            .filter(|&count| count <= i64::from(i32::MAX))
            .ok_or(ParseStop::Error(ProtocolError::InvalidArrayLength))?;
        if count > UNAUTHENTICATED_MAX_ARGS && !limits.authenticated {
            return Err(ParseStop::Error(ProtocolError::UnauthenticatedArrayLength));
        }
        Ok((u32::try_from(count).unwrap_or(0), line.end))
    }

    /// Parses `$<len>\r\n` at `self.position`. Returns the length and the line's end.
    fn bulk_len(&mut self, request: &[u8], limits: &Limits) -> Result<(u32, usize), ParseStop> {
        let line = self.count_line(request, ProtocolError::TooBigBulkCount)?;
        let first = line.text.first().copied().unwrap_or(b'\r');
        if first != b'$' {
            return Err(ParseStop::Error(ProtocolError::ExpectedBulk(first)));
        }
        if !line.ends_well {
            return Err(ParseStop::Error(ProtocolError::InvalidLineEnd));
        }
        let len = parse_i64(&line.text[1..])
            .and_then(|len| u64::try_from(len).ok())
            .filter(|&len| len <= limits.max_bulk_len)
            .ok_or(ParseStop::Error(ProtocolError::InvalidBulkLength))?;
        if len > UNAUTHENTICATED_BULK_MAX_LEN && !limits.authenticated {
            return Err(ParseStop::Error(ProtocolError::UnauthenticatedBulkLength));
        }
        let request_len = (line.end as u64).saturating_add(len).saturating_add(2);
        match u32::try_from(len) {
            Ok(len) if request_len <= u64::from(u32::MAX) => Ok((len, line.end)),
            _ => Err(too_big_request()),
        }
    }

    /// The line at `self.position`, which must end within 64 KiB or is `too_big`. The byte after
    /// its `\r` has been received.
    fn count_line<'b>(&mut self, request: &'b [u8], too_big: ProtocolError) -> Result<CountLine<'b>, ParseStop> {
        let rest = &request[self.position..];
        let Some(found) = memchr(b'\r', &rest[self.scanned..]) else {
            if rest.len() > LINE_MAX_LEN {
                return Err(ParseStop::Error(too_big));
            }
            self.scanned = rest.len();
            return Err(ParseStop::Incomplete { wanted: 0 });
        };
        let len = self.scanned + found;
        if len > LINE_MAX_LEN {
            return Err(ParseStop::Error(too_big));
        }
        let Some(&next) = rest.get(len + 1) else {
            self.scanned = len;
            return Err(ParseStop::Incomplete { wanted: 0 });
        };
        let end = self.position + len + 2;
        Ok(CountLine {
            text: &rest[..len],
            ends_well: next == b'\n',
            end,
        })
    }

    /// Parses an inline request.
    fn inline(&mut self, request: &[u8], args: &mut Vec<ArgRange>) -> Parsed {
        let newline = self.find_inline_end(request);
        if newline.unwrap_or(request.len()) > LINE_MAX_LEN {
            self.reset();
            return Parsed::Error(ProtocolError::TooBigInlineRequest);
        }
        let Some(newline) = newline else {
            self.scanned = request.len();
            return Parsed::Incomplete { wanted: 0 };
        };
        self.reset();
        let line = &request[..newline];
        inline_arguments(line.strip_suffix(b"\r").unwrap_or(line), newline + 1, args)
    }

    /// Offset of the `\n` that ends an inline request.
    fn find_inline_end(&mut self, request: &[u8]) -> Option<usize> {
        if self.endless {
            return None;
        }
        let found = self.scanned + memchr2(b'\n', 0, &request[self.scanned..])?;
        self.endless = request[found] == 0;
        (!self.endless).then_some(found)
    }
}

/// A line of a request in array form.
struct CountLine<'b> {
    /// The bytes before `\r`.
    text: &'b [u8],
    /// Whether `\n` follows the `\r`.
    ends_well: bool,
    /// Offset in the request of the byte after the line end.
    end: usize,
}

/// Splits the inline request `line`, of which `consumed` bytes belong to the buffer.
fn inline_arguments(line: &[u8], consumed: usize, args: &mut Vec<ArgRange>) -> Parsed {
    let base = args.len();
    let plain = plain_arguments(line, |start, len| {
        // A line is at most 64 KiB long.
        args.push(ArgRange {
            start: start as u32,
            len: len as u32,
        });
    });
    if plain == Plain::Yes {
        return Parsed::Request {
            consumed,
            argc: args.len() - base,
        };
    }
    match split_arguments(line) {
        None => Parsed::Error(ProtocolError::UnbalancedQuotes),
        Some(args) if args.is_empty() => Parsed::Request { consumed, argc: 0 },
        Some(args) => Parsed::Inline { consumed, args },
    }
}

/// The header `$<len>\r\n` at `position`, if all of it is there and has one to four digits: almost
/// every header there is. Returns the length and the header's end.
#[inline]
fn short_bulk_len(request: &[u8], position: usize) -> Option<(u32, usize)> {
    match *request.get(position..)? {
        [b'$', a @ b'0'..=b'9', b'\r', b'\n', ..] => Some((digit(a), position + 4)),
        [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ..] => Some((digit(a) * 10 + digit(b), position + 5)),
        [
            b'$',
            a @ b'1'..=b'9',
            b @ b'0'..=b'9',
            c @ b'0'..=b'9',
            b'\r',
            b'\n',
            ..,
        ] => Some((digit(a) * 100 + digit(b) * 10 + digit(c), position + 6)),
        [
            b'$',
            a @ b'1'..=b'9',
            b @ b'0'..=b'9',
            c @ b'0'..=b'9',
            d @ b'0'..=b'9',
            b'\r',
            b'\n',
            ..,
        ] => Some((
            digit(a) * 1000 + digit(b) * 100 + digit(c) * 10 + digit(d),
            position + 7,
        )),
        _ => None,
    }
}

#[inline]
fn digit(byte: u8) -> u32 {
    u32::from(byte - b'0')
}

#[cold]
fn too_big_request() -> ParseStop {
    ParseStop::Error(ProtocolError::TooBigRequest)
}

#[cfg(test)]
mod tests;

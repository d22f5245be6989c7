//! Parses requests: RESP arrays of bulk strings, and inline requests.
//!
//! A connection keeps one [`Parser`] and one input buffer. It calls [`Parser::parse`] with the bytes from the start of
//! the current request to the end of the received bytes:
//!
//! ```text
//!            start of request            end of received bytes
//!                  v                           v
//!   ... done ... | *2\r\n $3\r\n GET\r\n $5\r\n he |
//!                                              ^
//!                                   the parser stopped here
//! ```
//!
//! For an incomplete request, the parser keeps the complete arguments, the position at which it stopped and the number
//! of missing arguments. The next call continues from there. So each byte is examined a bounded number of times,
//! however small the pieces are in which the input arrives. All positions are offsets from the start of the request, so
//! the buffer may move or grow between two calls.
//!
//! The outcome depends only on the bytes, never on how they were cut into pieces. For the 64 KiB limit of a line, this
//! is stricter than Valkey, which applies the limit only to the bytes that happen to be in its buffer while the line
//! end is still missing.
//!
//! The two forms end their lines differently. A count line of an array ends at the first `\r`, which must be followed
//! by `\n`. An inline request ends at `\n`, and one `\r` before that is dropped. The search for the `\n` stops at a
//! zero byte: an inline request that contains one never ends, and fails once it exceeds 64 KiB.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use crate::number::parse_i64;
use crate::quote::{PlainSplit, split_arguments, split_plain_arguments};

/// The maximum length of a line in bytes, without its line end. It applies to an inline request and to the count of an
/// array or a bulk string.
const LINE_MAX_LEN: usize = 64 * 1024;
/// The maximum length of a bulk string, in bytes, before the connection is authenticated.
const UNAUTHENTICATED_BULK_MAX_LEN: u64 = 16384;
/// The maximum number of arguments of a request before the connection is authenticated.
const UNAUTHENTICATED_MAX_ARGS: i64 = 10;
/// The maximum capacity, in arguments, that a parser keeps between requests that arrive in pieces.
const MAX_KEPT_PARTIAL_ARGS: usize = 64;

/// One argument: a range of the connection's input buffer, relative to the start of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgRange {
    /// The offset of the argument's first byte from the start of the request.
    pub start: u32,
    /// The length of the argument in bytes.
    pub len: u32,
}

impl ArgRange {
    /// Returns the argument's bytes. `request` must begin at the start of the request that this range belongs to.
    ///
    /// # Panics
    ///
    /// Panics if `request` ends before the argument does.
    #[inline]
    pub fn of(self, request: &[u8]) -> &[u8] {
        &request[self.start as usize..][..self.len as usize]
    }
}

/// The limits on the input of a connection.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// The maximum length of a bulk string in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: u64,
    /// `true` if the connection is authenticated or no authentication is required. Otherwise an array may have at most
    /// 10 arguments of at most 16384 bytes. An inline request may be as long as any line.
    pub is_authenticated: bool,
}

/// The outcome of one call of [`Parser::parse`].
#[derive(Debug, PartialEq, Eq)]
pub enum ParseOutcome {
    /// More bytes are needed.
    Incomplete {
        /// The number of missing bytes of the current bulk string including its line end, or 0 if unknown.
        missing_bytes: usize,
    },
    /// A request of `consumed` bytes is complete and its arguments were appended to `args`.
    Request {
        /// The length of the request in bytes.
        consumed: usize,
        /// The number of arguments. It is 0 for an empty line or an empty array, which get no reply.
        argc: usize,
    },
    /// An inline request with quotes is complete. Its arguments are not slices of the buffer, because quotes and escape
    /// sequences were resolved. It has at least one argument.
    Inline {
        /// The length of the request in bytes.
        consumed: usize,
        /// The arguments.
        args: Vec<Vec<u8>>,
    },
    /// The bytes are not a valid request. The connection gets the error and is closed.
    Error(ProtocolError),
}

/// The reason why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline request is longer than 64 KiB.
    TooBigInlineRequest,
    /// The count of an array is longer than 64 KiB.
    TooBigArrayCount,
    /// The count of an array is not a number, or is above `i32::MAX`.
    InvalidArrayLength,
    /// A request has more than 10 arguments before authentication.
    UnauthenticatedArrayLength,
    /// The length line of a bulk string is longer than 64 KiB.
    TooBigBulkCount,
    /// This byte was found where a bulk string must begin.
    ExpectedBulk(u8),
    /// The length of a bulk string is not a number, is negative, or is above `proto-max-bulk-len`.
    InvalidBulkLength,
    /// A bulk string is longer than 16384 bytes before authentication.
    UnauthenticatedBulkLength,
    /// An inline request ends inside quotes.
    UnbalancedQuotes,
    /// A count or a bulk string is not followed by `\r\n`.
    InvalidLineEnd,
    /// The request is longer than 4 GiB.
    TooBigRequest,
}

impl ProtocolError {
    /// Returns the words by which the server log names the error.
    pub const fn log_reason(&self) -> &'static str {
        match self {
            Self::TooBigInlineRequest => "too big inline request",
            Self::TooBigArrayCount => "too big mbulk count string",
            Self::InvalidArrayLength => "invalid mbulk count",
            Self::UnauthenticatedArrayLength => "unauth mbulk count",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::ExpectedBulk(_) => "expected $ but got something else",
            Self::InvalidBulkLength => "invalid bulk length",
            Self::UnauthenticatedBulkLength => "unauth bulk length",
            Self::UnbalancedQuotes => "unbalanced quotes in inline request",
            Self::InvalidLineEnd => "invalid CRLF in request",
            Self::TooBigRequest => "too big request",
        }
    }

    /// The text that follows `-ERR ` in the error reply. It may not be UTF-8, because it can contain the byte that the
    /// client sent where a bulk string must begin.
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

/// The reason why a parsing step did not complete.
enum ParseStop {
    Incomplete { wanted: usize },
    Error(ProtocolError),
}

impl From<ParseStop> for ParseOutcome {
    #[inline]
    fn from(stop: ParseStop) -> Self {
        match stop {
            ParseStop::Incomplete { wanted } => Self::Incomplete { missing_bytes: wanted },
            ParseStop::Error(error) => Self::Error(error),
        }
    }
}

/// The state of a connection's current request. Each connection keeps one.
#[derive(Debug, Default)]
pub struct Parser {
    /// The offset of the first byte that is not yet part of a complete element of the request.
    position: usize,
    /// The number of bytes from `position` on that are known to contain no complete line end.
    scanned: usize,
    /// The number of missing arguments, or 0 while the first line is incomplete.
    remaining: u32,
    /// Set if the inline request contains a zero byte, so that it never ends.
    is_endless: bool,
    /// The length of the bulk string at `position`, once its header is parsed.
    bulk_len: Option<u32>,
    /// The complete arguments of an incomplete request.
    partial: Vec<ArgRange>,
    /// The total length of the arguments in `partial`.
    partial_bytes: usize,
}

impl Parser {
    /// Parses one request and appends its arguments to `args`.
    ///
    /// `request` holds the bytes from the start of the current request to the end of the received bytes. After
    /// [`ParseOutcome::Incomplete`], `args` is unchanged, and the next call must begin with the same bytes, though they
    /// may be at another address. After any other outcome the parser is idle.
    ///
    /// # Panics
    ///
    /// Panics if a call that continues a request passes fewer bytes than the parser has already examined.
    #[inline]
    pub fn parse(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &RequestLimits) -> ParseOutcome {
        if !self.is_idle() {
            return self.resume(request, args, limits);
        }
        match request.first() {
            Some(b'*') => self.parse_array(request, args, limits),
            Some(_) => self.parse_inline(request, args),
            None => ParseOutcome::Incomplete { missing_bytes: 0 },
        }
    }

    /// Returns `true` if the parser holds no part of a request.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.position == 0 && self.scanned == 0
    }

    /// The number of bytes of the incomplete request that are parsed. The rest waits for more input.
    pub fn parsed_bytes(&self) -> usize {
        self.position
    }

    /// The total length of the complete arguments of the incomplete request.
    pub fn argument_bytes(&self) -> usize {
        self.partial_bytes
    }

    /// Discards the partial request.
    pub fn reset(&mut self) {
        self.position = 0;
        self.scanned = 0;
        self.remaining = 0;
        self.is_endless = false;
        self.bulk_len = None;
        self.partial_bytes = 0;
        if self.partial.capacity() > MAX_KEPT_PARTIAL_ARGS {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
        }
    }

    /// Parses an array from its first byte. Its arguments go directly to `args`; they move into the parser only if the
    /// request turns out to be incomplete.
    #[inline]
    fn parse_array(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &RequestLimits) -> ParseOutcome {
        let base = args.len();
        match self.parse_elements(request, args, limits) {
            Ok(consumed) => ParseOutcome::Request {
                consumed,
                argc: args.len() - base,
            },
            Err(stop) => {
                self.suspend(&stop, args, base);
                stop.into()
            }
        }
    }

    /// Removes the arguments that an unfinished request appended to `args`. Keeps them in the parser if the request is
    /// incomplete.
    #[cold]
    fn suspend(&mut self, stop: &ParseStop, args: &mut Vec<ArgRange>, base: usize) {
        match stop {
            ParseStop::Incomplete { .. } => {
                self.partial.extend_from_slice(&args[base..]);
                self.partial_bytes += total_len(&args[base..]);
            }
            ParseStop::Error(_) => self.reset(),
        }
        args.truncate(base);
    }

    /// Continues a request of which a part was already parsed.
    fn resume(&mut self, request: &[u8], args: &mut Vec<ArgRange>, limits: &RequestLimits) -> ParseOutcome {
        assert!(
            request.len() >= self.position + self.scanned,
            "a resumed request must begin with the bytes of the call before"
        );
        if request[0] != b'*' {
            return self.parse_inline(request, args);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let known_args = partial.len();
        let outcome = self.parse_elements(request, &mut partial, limits);
        // A long request arrives in many pieces: only the new arguments are added up.
        self.partial_bytes += total_len(&partial[known_args..]);
        self.partial = partial;
        match outcome {
            Ok(consumed) => {
                let argc = self.partial.len();
                args.extend_from_slice(&self.partial);
                self.reset();
                ParseOutcome::Request { consumed, argc }
            }
            Err(stop) => {
                if matches!(stop, ParseStop::Error(_)) {
                    self.reset();
                }
                stop.into()
            }
        }
    }

    /// Parses an array from the position at which it stopped: the count if it is not known yet, then the bulk strings.
    /// Returns the length of the request and leaves the parser idle except for `partial`.
    #[inline]
    fn parse_elements(
        &mut self,
        request: &[u8],
        sink: &mut Vec<ArgRange>,
        limits: &RequestLimits,
    ) -> Result<usize, ParseStop> {
        if self.remaining == 0 {
            let (count, end) = self.parse_array_count(request, limits)?;
            self.position = end;
            self.scanned = 0;
            self.remaining = count;
        }
        let mut position = self.position;
        while self.remaining > 0 {
            let len = match self.bulk_len.take() {
                Some(len) => len,
                None => {
                    let (len, end) = match parse_short_bulk_len(request, position) {
                        Some((len, end)) if u64::from(len) <= limits.max_bulk_len => (len, end),
                        _ => {
                            self.position = position;
                            self.parse_bulk_len(request, limits)?
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

    /// Parses `*<count>\r\n` at the start of the request. Returns the count and the end of the line. A negative count
    /// is returned as 0.
    #[inline]
    fn parse_array_count(&mut self, request: &[u8], limits: &RequestLimits) -> Result<(u32, usize), ParseStop> {
        if let [b'*', digit @ b'0'..=b'9', b'\r', b'\n', ..] = request {
            return Ok((u32::from(digit - b'0'), 4));
        }
        self.parse_long_array_count(request, limits)
    }

    fn parse_long_array_count(&mut self, request: &[u8], limits: &RequestLimits) -> Result<(u32, usize), ParseStop> {
        let line = self.find_count_line(request, ProtocolError::TooBigArrayCount)?;
        if !line.has_crlf {
            return Err(ParseStop::Error(ProtocolError::InvalidLineEnd));
        }
        let count = parse_i64(&line.text[1..])
            .filter(|&count| count <= i64::from(i32::MAX))
            .ok_or(ParseStop::Error(ProtocolError::InvalidArrayLength))?;
        if count > UNAUTHENTICATED_MAX_ARGS && !limits.is_authenticated {
            return Err(ParseStop::Error(ProtocolError::UnauthenticatedArrayLength));
        }
        Ok((u32::try_from(count).unwrap_or(0), line.end))
    }

    /// Parses `$<len>\r\n` at `self.position`. Returns the length and the end of the line.
    fn parse_bulk_len(&mut self, request: &[u8], limits: &RequestLimits) -> Result<(u32, usize), ParseStop> {
        let line = self.find_count_line(request, ProtocolError::TooBigBulkCount)?;
        let first = line.text.first().copied().unwrap_or(b'\r');
        if first != b'$' {
            return Err(ParseStop::Error(ProtocolError::ExpectedBulk(first)));
        }
        if !line.has_crlf {
            return Err(ParseStop::Error(ProtocolError::InvalidLineEnd));
        }
        let len = parse_i64(&line.text[1..])
            .and_then(|len| u64::try_from(len).ok())
            .filter(|&len| len <= limits.max_bulk_len)
            .ok_or(ParseStop::Error(ProtocolError::InvalidBulkLength))?;
        if len > UNAUTHENTICATED_BULK_MAX_LEN && !limits.is_authenticated {
            return Err(ParseStop::Error(ProtocolError::UnauthenticatedBulkLength));
        }
        let request_len = (line.end as u64).saturating_add(len).saturating_add(2);
        match u32::try_from(len) {
            Ok(len) if request_len <= u64::from(u32::MAX) => Ok((len, line.end)),
            _ => Err(too_big_request()),
        }
    }

    /// Returns the line at `self.position` once the byte after its `\r` has been received. Fails with `too_big` if the
    /// line is longer than 64 KiB.
    fn find_count_line<'b>(&mut self, request: &'b [u8], too_big: ProtocolError) -> Result<CountLine<'b>, ParseStop> {
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
            has_crlf: next == b'\n',
            end,
        })
    }

    /// Parses an inline request.
    fn parse_inline(&mut self, request: &[u8], args: &mut Vec<ArgRange>) -> ParseOutcome {
        let newline = self.find_inline_end(request);
        if newline.unwrap_or(request.len()) > LINE_MAX_LEN {
            self.reset();
            return ParseOutcome::Error(ProtocolError::TooBigInlineRequest);
        }
        let Some(newline) = newline else {
            self.scanned = request.len();
            return ParseOutcome::Incomplete { missing_bytes: 0 };
        };
        self.reset();
        let line = &request[..newline];
        split_inline(line.strip_suffix(b"\r").unwrap_or(line), newline + 1, args)
    }

    /// Returns the offset of the `\n` that ends an inline request.
    fn find_inline_end(&mut self, request: &[u8]) -> Option<usize> {
        if self.is_endless {
            return None;
        }
        let found = self.scanned + memchr2(b'\n', 0, &request[self.scanned..])?;
        self.is_endless = request[found] == 0;
        (!self.is_endless).then_some(found)
    }
}

/// A count line of a request in array form.
struct CountLine<'b> {
    /// The bytes before `\r`.
    text: &'b [u8],
    /// `true` if `\n` follows the `\r`.
    has_crlf: bool,
    /// The offset in the request of the byte after the line end.
    end: usize,
}

/// Returns the total length of arguments in bytes.
fn total_len(args: &[ArgRange]) -> usize {
    args.iter().map(|arg| arg.len as usize).sum()
}

/// Splits the inline request `line`, which takes `consumed` bytes of the buffer.
fn split_inline(line: &[u8], consumed: usize, args: &mut Vec<ArgRange>) -> ParseOutcome {
    let base = args.len();
    let plain = split_plain_arguments(line, |start, len| {
        // A line is at most 64 KiB long.
        args.push(ArgRange {
            start: start as u32,
            len: len as u32,
        });
    });
    if plain == PlainSplit::Yes {
        return ParseOutcome::Request {
            consumed,
            argc: args.len() - base,
        };
    }
    match split_arguments(line) {
        None => ParseOutcome::Error(ProtocolError::UnbalancedQuotes),
        Some(args) if args.is_empty() => ParseOutcome::Request { consumed, argc: 0 },
        Some(args) => ParseOutcome::Inline { consumed, args },
    }
}

/// Parses the header `$<len>\r\n` at `position` if it is complete and has one to four digits, as almost every header
/// has. Returns the length and the end of the header.
#[inline]
fn parse_short_bulk_len(request: &[u8], position: usize) -> Option<(u32, usize)> {
    match *request.get(position..)? {
        [b'$', a @ b'0'..=b'9', b'\r', b'\n', ..] => Some((digit_value(a), position + 4)),
        [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((digit_value(a) * 10 + digit_value(b), position + 5))
        }
        [
            b'$',
            a @ b'1'..=b'9',
            b @ b'0'..=b'9',
            c @ b'0'..=b'9',
            b'\r',
            b'\n',
            ..,
        ] => Some((
            digit_value(a) * 100 + digit_value(b) * 10 + digit_value(c),
            position + 6,
        )),
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
            digit_value(a) * 1000 + digit_value(b) * 100 + digit_value(c) * 10 + digit_value(d),
            position + 7,
        )),
        _ => None,
    }
}

#[inline]
fn digit_value(byte: u8) -> u32 {
    u32::from(byte - b'0')
}

#[cold]
fn too_big_request() -> ParseStop {
    ParseStop::Error(ProtocolError::TooBigRequest)
}

#[cfg(test)]
mod tests;

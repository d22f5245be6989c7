//! Parses requests of a debugger's user: arrays of bulk strings, with the tolerance of Valkey's debugger.
/// The maximum number of words in a request.
const WORDS_MAX: i64 = 1024;
/// The maximum bytes of a word.
const WORD_BYTES_MAX: i64 = 1024;

/// The result of parsing a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedRequest {
    /// A complete request with these words.
    Words(Vec<Vec<u8>>),
    /// The request is incomplete.
    Incomplete,
    /// The bytes are not a request.
    Malformed,
}

/// Parses the first request in the input. Bytes before its `*` are skipped.
pub(super) fn parse(input: &[u8]) -> ParsedRequest {
    if input.is_empty() {
        return ParsedRequest::Incomplete;
    }
    let Some(star) = position(input, b"*") else {
        return ParsedRequest::Malformed;
    };
    let mut rest = &input[star + 1..];
    let Some(count) = take_number(&mut rest) else {
        return ParsedRequest::Incomplete;
    };
    if !(1..=WORDS_MAX).contains(&count) {
        return ParsedRequest::Malformed;
    }
    let mut words = Vec::new();
    for _ in 0..count {
        match rest.first() {
            None | Some(0) => return ParsedRequest::Incomplete,
            Some(b'$') => rest = &rest[1..],
            Some(_) => return ParsedRequest::Malformed,
        }
        let Some(bytes) = take_number(&mut rest) else {
            return ParsedRequest::Incomplete;
        };
        if !(1..=WORD_BYTES_MAX).contains(&bytes) {
            return ParsedRequest::Malformed;
        }
        let bytes = bytes as usize;
        let Some(end) = rest.get(bytes..bytes + 2) else {
            return ParsedRequest::Incomplete;
        };
        if end != b"\r\n" {
            return ParsedRequest::Malformed;
        }
        words.push(rest[..bytes].to_vec());
        rest = &rest[bytes + 2..];
    }
    ParsedRequest::Words(words)
}

/// Parses the number at the start of the line, and advances `rest` to the next line.
fn take_number(rest: &mut &[u8]) -> Option<i64> {
    let end = position(rest, b"\r\n")?;
    let number = super::leading_number(&rest[..end]);
    *rest = &rest[end + 2..];
    Some(number)
}

/// Returns the offset of `wanted` in the bytes before the first zero byte.
fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    super::until_zero(bytes)
        .windows(wanted.len())
        .position(|window| window == wanted)
}

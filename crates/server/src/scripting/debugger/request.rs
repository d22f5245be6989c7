//! Parses requests of a debugger's user: arrays of bulk strings, with the tolerance of Valkey's debugger.
/// The maximum number of words in a request.
const MOST_WORDS: i64 = 1024;
/// The maximum bytes of a word.
const MOST_BYTES: i64 = 1024;

/// The result of parsing a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A complete request with these words.
    Words(Vec<Vec<u8>>),
    /// The request is incomplete.
    Incomplete,
    /// The bytes are not a request.
    Broken,
}

/// Parses the first request in the input. Bytes before its `*` are skipped.
pub(super) fn parse(input: &[u8]) -> Parsed {
    if input.is_empty() {
        return Parsed::Incomplete;
    }
    let Some(star) = position(input, b"*") else {
        return Parsed::Broken;
    };
    let mut rest = &input[star + 1..];
    let Some(count) = take_number(&mut rest) else {
        return Parsed::Incomplete;
    };
    if !(1..=MOST_WORDS).contains(&count) {
        return Parsed::Broken;
    }
    let mut words = Vec::new();
    for _ in 0..count {
        match rest.first() {
            None | Some(0) => return Parsed::Incomplete,
            Some(b'$') => rest = &rest[1..],
            Some(_) => return Parsed::Broken,
        }
        let Some(bytes) = take_number(&mut rest) else {
            return Parsed::Incomplete;
        };
        if !(1..=MOST_BYTES).contains(&bytes) {
            return Parsed::Broken;
        }
        let bytes = bytes as usize;
        let Some(end) = rest.get(bytes..bytes + 2) else {
            return Parsed::Incomplete;
        };
        if end != b"\r\n" {
            return Parsed::Broken;
        }
        words.push(rest[..bytes].to_vec());
        rest = &rest[bytes + 2..];
    }
    Parsed::Words(words)
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

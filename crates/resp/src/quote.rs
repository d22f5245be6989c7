//! Splits a line into arguments as a shell does, and quotes bytes so that such a line can contain them.
//!
//! This module is used for inline requests, for lines of configuration files, and for replies that show bytes as text.
//! The rules are visible to clients and equal those of Valkey 9.1, byte for byte:
//!
//! - White space separates arguments. Before an argument, it includes vertical tab and form feed; after the first byte
//!   of an argument, those two belong to the argument.
//! - Quotes may begin and end anywhere: `a"b c"'d'` is the one argument `ab cd`.
//! - In double quotes, `\xHH`, `\n`, `\r`, `\t`, `\b` and `\a` stand for a byte, and any other `\c` for `c`. In single
//!   quotes, only `\'` is an escape sequence.
//! - A backslash just before the last byte of the line escapes nothing: `"a\"` is `a\`.
//! - Quotes that are not closed make the line invalid.
//! - A literal 0xff byte begins an argument but is not part of it. A zero byte ends the line.
/// Splits `line` into arguments. Returns `None` if its quotes are not balanced.
pub fn split_arguments(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let end = memchr::memchr(0, line).unwrap_or(line.len());
    let mut rest = &line[..end];
    let mut arguments = Vec::new();
    loop {
        rest = skip_blanks(rest);
        if rest.is_empty() {
            return Some(arguments);
        }
        let (argument, used) = read_argument(rest)?;
        arguments.push(argument);
        rest = &rest[used..];
    }
}

/// The outcome of [`split_plain_arguments`]: `Yes` if it could split the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainSplit {
    Yes,
    No,
}

/// Splits `line` if its arguments are slices of it, that is, if it contains no quotes, no 0xff and no zero byte. Calls
/// `argument` with the offset and length of each. Otherwise `argument` is not called.
pub(crate) fn split_plain_arguments(line: &[u8], mut argument: impl FnMut(usize, usize)) -> PlainSplit {
    if line.iter().any(|&byte| matches!(byte, b'"' | b'\'' | 0xff | 0)) {
        return PlainSplit::No;
    }
    let mut rest = skip_blanks(line);
    while !rest.is_empty() {
        let len = rest.iter().position(|&byte| ends_argument(byte)).unwrap_or(rest.len());
        argument(line.len() - rest.len(), len);
        rest = skip_blanks(&rest[len..]);
    }
    PlainSplit::Yes
}

/// Appends `bytes` to `out` in double quotes, so that [`split_arguments`] returns them unchanged.
pub fn append_quoted(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
        }
    }
    out.push(b'"');
}

/// Returns `true` if `bytes` must be quoted to be read back as one argument, that is, if they contain white space,
/// double quotes, a backslash or a byte that is not printable ASCII.
pub fn needs_quotes(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .any(|&byte| matches!(byte, b'\\' | b'"') || !byte.is_ascii_graphic())
}

fn skip_blanks(line: &[u8]) -> &[u8] {
    let blanks = line
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r'))
        .count();
    &line[blanks..]
}

/// Returns `true` for white space that ends an argument outside quotes.
fn ends_argument(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Reads the argument at the start of `line`. Returns it and the number of bytes of the line that it takes.
fn read_argument(line: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut argument = Vec::new();
    let mut quote = None;
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match quote {
            None if ends_argument(byte) => return Some((argument, at)),
            None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
            Some(open) if byte == open => quote = None,
            Some(open) if byte == b'\\' => {
                let (escaped, len) = read_escape(&line[at..], open);
                argument.extend(escaped);
                at += len;
                continue;
            }
            _ => argument.extend(literal_byte(byte)),
        }
        at += 1;
    }
    quote.is_none().then_some((argument, at))
}

/// Reads the escape sequence at the start of `line`, inside quotes opened by `quote`. Returns the byte it stands for
/// and the length of the sequence.
fn read_escape(line: &[u8], quote: u8) -> (Option<u8>, usize) {
    let double = quote == b'"';
    match *line {
        [_, b'x', high, low, ..] if double && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
            (Some(hex_value(high) << 4 | hex_value(low)), 4)
        }
        [_, next, _, ..] if double => {
            let byte = match next {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 0x08,
                b'a' => 0x07,
                other => return (literal_byte(other), 2),
            };
            (Some(byte), 2)
        }
        [_, b'\'', _, ..] => (Some(b'\''), 2),
        _ => (Some(b'\\'), 1),
    }
}

/// Returns the byte that an unescaped `byte` adds to an argument, which is none for 0xff.
fn literal_byte(byte: u8) -> Option<u8> {
    (byte != 0xff).then_some(byte)
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests;

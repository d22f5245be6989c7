//! Splits the lines of case files into words.

use super::parse_number;

/// A word or a bracket of a line.
pub(super) enum Token {
    /// A word without quotes.
    Plain(String),
    /// The bytes of a word in double quotes.
    Quoted(Vec<u8>),
    /// The bytes of a word in single quotes, in which nothing is replaced.
    Literal(Vec<u8>),
    /// `[`
    Open,
    /// `]`
    Close,
}

/// Splits a line into words, and into brackets where these have a meaning.
///
/// # Errors
/// Fails if a quote is not closed, or an escape or a repetition is malformed.
pub(super) fn tokenize(text: &str, brackets: bool) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '[' | ']' if brackets => {
                tokens.push(if first == '[' { Token::Open } else { Token::Close });
                1
            }
            '"' | '\'' => {
                let (mut bytes, mut used) = parse_quoted(rest.as_bytes(), first as u8)?;
                let (times, digits) = parse_repetition(&rest[used..])?;
                bytes = bytes.repeat(times);
                used += digits;
                tokens.push(if first == '"' {
                    Token::Quoted(bytes)
                } else {
                    Token::Literal(bytes)
                });
                used
            }
            _ => {
                let end = |c: char| c.is_whitespace() || (brackets && c == ']');
                let used = rest.find(end).unwrap_or(rest.len());
                tokens.push(Token::Plain(rest[..used].to_string()));
                used
            }
        };
        rest = rest[used..].trim_start();
    }
    Ok(tokens)
}

/// Parses `x100` directly after a quoted word. Returns the number of repetitions and the length of that text.
fn parse_repetition(rest: &str) -> Result<(usize, usize), String> {
    let Some(tail) = rest.strip_prefix('x') else {
        return Ok((1, 0));
    };
    let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
    Ok((parse_number(&tail[..digits])?, 1 + digits))
}

/// Parses a quoted word. Also returns its length including the quotes.
fn parse_quoted(text: &[u8], quote: u8) -> Result<(Vec<u8>, usize), String> {
    let mut bytes = Vec::new();
    let mut position = 1;
    loop {
        let byte = *text.get(position).ok_or("a quote is not closed")?;
        position += 1;
        if byte == quote {
            return Ok((bytes, position));
        }
        if byte != b'\\' || quote == b'\'' {
            bytes.push(byte);
            continue;
        }
        let escape = *text.get(position).ok_or("a quote is not closed")?;
        position += 1;
        match escape {
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'\\' | b'"' => bytes.push(escape),
            b'x' => {
                let digits = text.get(position..position + 2).unwrap_or_default();
                let digits = std::str::from_utf8(digits).unwrap_or_default();
                let byte = u8::from_str_radix(digits, 16);
                bytes.push(byte.map_err(|_| "\\x needs two hexadecimal digits")?);
                position += 2;
            }
            other => return Err(format!("unknown escape \\{}", char::from(other))),
        }
    }
}

/// Returns the position and the name of each `$name` in a word. A name begins with a letter.
pub(super) fn names_within(word: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let dollars = word.iter().enumerate().filter(|&(_, &byte)| byte == b'$');
    let names = dollars.map(|(position, _)| {
        let tail = &word[position + 1..];
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let length = tail.iter().take_while(is_part).count();
        (position, std::str::from_utf8(&tail[..length]).unwrap_or_default())
    });
    names.filter(|(_, name)| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

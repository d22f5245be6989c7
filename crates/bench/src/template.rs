//! Request templates: a command with placeholders, encoded once, patched for every request.
//!
//! `GET {key}` becomes the pieces
//!
//! ```text
//! Literal "*2\r\n$3\r\nGET\r\n$16\r\nkey:"   Id   Literal "\r\n"
//! ```
//!
//! so that a request costs two copies and twelve digits. Placeholders have a fixed width wherever
//! possible, because an argument's length stands before its text.

use crate::content::{ID_DIGITS, Values, digits};
use crate::draw::RequestDraw;
use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// Digits of a field's or member's number.
const MEMBER_DIGITS: usize = 6;

/// Largest count in a placeholder such as `{keys:100}`.
const COUNT_LIMIT: u64 = 1_000_000;

/// The placeholders, for `--help`.
pub const PLACEHOLDERS: &[(&str, &str)] = &[
    ("{key}", "a key drawn from the key space: key:000000000042"),
    (
        "{id}",
        "the twelve digits of a drawn key alone, for names such as counter:{id}",
    ),
    ("{value}", "the value that belongs to the key before it"),
    ("{keys:N}", "N keys"),
    ("{pairs:N}", "N times a key and its value"),
    ("{expire}", "EX and the seconds of --expire, or nothing without it"),
    ("{number:N}", "a random number below N"),
    ("{field:N}", "one of the fields field:000000 ... below N"),
    ("{member:N}", "one of the members member:000000 ... below N"),
    ("{fields:N}", "N times a field and a value of --value-size bytes"),
    ("{members:N}", "N members"),
    ("{scored:N}", "N times a score and a member"),
    ("{values:N}", "N values of --value-size bytes"),
];

/// One stretch of an encoded request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// Bytes that are the same in every request.
    Literal(Vec<u8>),
    /// The digits of a newly drawn key.
    Id,
    /// The value of the key drawn last.
    Value,
    /// The digits of a drawn field or member.
    Member {
        /// How many there are.
        below: u64,
    },
    /// A whole argument, length included: a random number without leading zeros.
    Number {
        /// The number's bound.
        below: u64,
    },
}

/// A command ready to be encoded again and again.
#[derive(Debug, Clone)]
pub struct Template {
    pieces: Vec<Piece>,
    keys: usize,
}

impl Template {
    /// Parses a command line such as `SET {key} {value} {expire}`. Words are separated by blanks.
    /// `expire_s` is what `{expire}` stands for.
    pub fn parse(text: &str, values: &Values, expire_s: Option<u64>) -> Result<Template> {
        let mut arguments: Vec<Vec<Piece>> = Vec::new();
        for word in text.split_whitespace() {
            match repeated(word, values, expire_s)? {
                Some(expansion) => arguments.extend(expansion),
                None => arguments.push(argument(word)?),
            }
        }
        if arguments.is_empty() {
            return Err(Error::Usage("an empty command".into()));
        }
        check_values_follow_keys(&arguments)?;
        let pieces = encode(&arguments, values.size());
        let keys = pieces.iter().filter(|piece| matches!(piece, Piece::Id)).count();
        Ok(Template { pieces, keys })
    }

    /// How many keys one request draws.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Appends one request to `out`.
    #[inline]
    pub fn append(&self, draw: &mut RequestDraw<'_>, values: &Values, out: &mut Vec<u8>) {
        let mut id = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Literal(bytes) => out.extend_from_slice(bytes),
                Piece::Id => {
                    id = draw.key();
                    out.extend_from_slice(&digits::<ID_DIGITS>(id));
                }
                Piece::Value => out.extend_from_slice(values.of(id)),
                Piece::Member { below } => {
                    out.extend_from_slice(&digits::<MEMBER_DIGITS>(draw.below(*below)));
                }
                Piece::Number { below } => append_bulk(draw.below(*below).to_string().as_bytes(), out),
            }
        }
    }

    /// The keys that [`Template::append`] drew from the same `draw`.
    pub fn ids(&self, draw: &mut RequestDraw<'_>) -> Vec<u64> {
        let mut ids = Vec::with_capacity(self.keys);
        for piece in &self.pieces {
            match piece {
                Piece::Id => ids.push(draw.key()),
                Piece::Member { below } | Piece::Number { below } => {
                    draw.below(*below);
                }
                Piece::Literal(_) | Piece::Value => {}
            }
        }
        ids
    }
}

/// The placeholders that stand for any number of whole arguments; `None` for any other word.
fn repeated(word: &str, values: &Values, expire_s: Option<u64>) -> Result<Option<Vec<Vec<Piece>>>> {
    if word == "{expire}" {
        let words = expire_s.map(|seconds| vec![literal("EX"), literal(&seconds.to_string())]);
        return Ok(Some(words.unwrap_or_default()));
    }
    let Some((name, count)) = counted(word)? else {
        return Ok(None);
    };
    let each = |row: &dyn Fn(u64) -> Vec<Vec<Piece>>| Some((0..count).flat_map(row).collect());
    let member = |kind: &str, number: u64| literal(&format!("{kind}:{number:06}"));
    let value = |number: u64| vec![Piece::Literal(values.of(number).to_vec())];
    Ok(match name {
        "keys" => each(&|_| vec![key()]),
        "pairs" => each(&|_| vec![key(), vec![Piece::Value]]),
        "fields" => each(&|number| vec![member("field", number), value(number)]),
        "members" => each(&|number| vec![member("member", number)]),
        "scored" => each(&|number| vec![literal(&number.to_string()), member("member", number)]),
        "values" => each(&|number| vec![value(number)]),
        "number" => Some(vec![vec![Piece::Number { below: count }]]),
        _ => None,
    })
}

/// Splits `{name:count}`; `None` if the word has another form.
fn counted(word: &str) -> Result<Option<(&str, u64)>> {
    let inner = word.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let Some((name, count)) = inner.and_then(|inner| inner.split_once(':')) else {
        return Ok(None);
    };
    match count.parse() {
        Ok(count) if (1..=COUNT_LIMIT).contains(&count) => Ok(Some((name, count))),
        _ => Err(Error::Usage(format!(
            "{word}: the count must be from 1 to {COUNT_LIMIT}"
        ))),
    }
}

/// One argument: literal text with fixed-width placeholders inside.
fn argument(word: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(open) = rest.find('{') {
        let close = rest.find('}').filter(|close| *close > open);
        let close = close.ok_or_else(|| Error::Usage(format!("{word}: unmatched brace")))?;
        pieces.extend(literal(&rest[..open]));
        pieces.extend(placeholder(&rest[open..=close])?);
        rest = &rest[close + 1..];
    }
    pieces.extend(literal(rest));
    Ok(pieces)
}

fn placeholder(word: &str) -> Result<Vec<Piece>> {
    match word {
        "{key}" => return Ok(key()),
        "{id}" => return Ok(vec![Piece::Id]),
        "{value}" => return Ok(vec![Piece::Value]),
        _ => {}
    }
    let unknown = || Error::Usage(format!("unknown placeholder {word}"));
    let (name, below) = counted(word)?.ok_or_else(unknown)?;
    match name {
        "field" | "member" => Ok([literal(&format!("{name}:")), vec![Piece::Member { below }]].concat()),
        _ => Err(unknown()),
    }
}

fn key() -> Vec<Piece> {
    vec![Piece::Literal(b"key:".to_vec()), Piece::Id]
}

fn literal(text: &str) -> Vec<Piece> {
    vec![Piece::Literal(text.as_bytes().to_vec())]
}

fn check_values_follow_keys(arguments: &[Vec<Piece>]) -> Result<()> {
    let first = arguments
        .iter()
        .flatten()
        .find(|piece| matches!(piece, Piece::Id | Piece::Value));
    if first == Some(&Piece::Value) {
        return Err(Error::Usage(
            "{value} belongs to a key: name a {key} or {id} before it".into(),
        ));
    }
    Ok(())
}

/// Puts the RESP framing around the arguments and joins neighbouring literals.
fn encode(arguments: &[Vec<Piece>], value_size: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    push_literal(&mut pieces, format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        if let [Piece::Number { below }] = argument.as_slice() {
            pieces.push(Piece::Number { below: *below });
            continue;
        }
        let length: usize = argument.iter().map(|piece| width(piece, value_size)).sum();
        push_literal(&mut pieces, format!("${length}\r\n").as_bytes());
        for piece in argument {
            match piece {
                Piece::Literal(bytes) => push_literal(&mut pieces, bytes),
                other => pieces.push(other.clone()),
            }
        }
        push_literal(&mut pieces, b"\r\n");
    }
    pieces
}

/// Bytes a piece adds to its argument.
fn width(piece: &Piece, value_size: usize) -> usize {
    match piece {
        Piece::Literal(bytes) => bytes.len(),
        Piece::Id => ID_DIGITS,
        Piece::Value => value_size,
        Piece::Member { .. } => MEMBER_DIGITS,
        Piece::Number { .. } => unreachable!("a number is always a whole argument"),
    }
}

fn push_literal(pieces: &mut Vec<Piece>, bytes: &[u8]) {
    match pieces.last_mut() {
        Some(Piece::Literal(last)) => last.extend_from_slice(bytes),
        _ => pieces.push(Piece::Literal(bytes.to_vec())),
    }
}

fn append_bulk(argument: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

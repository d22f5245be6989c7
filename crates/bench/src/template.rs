//! Request templates: a command with placeholders, encoded once, patched for every request.
//!
//! `GET {key}` becomes the pieces
//!
//! ```text
//! Literal "*2\r\n$3\r\nGET\r\n$16\r\nkey:"   Id   Literal "\r\n"
//! ```
//!
//! so that a request costs two copies and twelve digits. Placeholders have a fixed width where possible, because an
//! argument's length precedes its text.

use crate::content::{ID_DIGITS, LONGEST_PREFIX, NAME_BYTES, NUMBER_DIGITS, ValuePool, digits};
use crate::draw::{RequestDraw, stride_coprime_to};
use crate::error::{Error, Result};
use crate::scripts;

#[cfg(test)]
mod tests;

/// The largest count in a placeholder such as `{keys:100}`.
const COUNT_LIMIT: u64 = 1_000_000;

/// The placeholders, for `--help`.
pub const PLACEHOLDERS: &[(&str, &str)] = &[
    ("{key}", "a key drawn from the key space: key:000000000042"),
    (
        "{id}",
        "the twelve digits of a drawn key alone, for names such as counter:{id}",
    ),
    ("{same-id}", "the twelve digits of the key drawn before it"),
    (
        "{new-key}",
        "a key that no request named before, for a keyspace that grows",
    ),
    ("{value}", "the value that belongs to the key before it"),
    (
        "{value:MIN-MAX}",
        "the same value in a random length of MIN to MAX bytes",
    ),
    ("{keys:N}", "N keys"),
    ("{pairs:N}", "N times a key and its value"),
    ("{expire}", "EX and the seconds of --expire, or nothing without it"),
    ("{number:N}", "a random number below N"),
    ("{field:N}", "one of the fields field:000000 ... below N"),
    (
        "{item}",
        "the element of the key before it that belongs to the number or field before it",
    ),
    (
        "{name:N}",
        "the name of one of the key's elements below N: six digits, then letters up to --value-size",
    ),
    (
        "{idname}",
        "a drawn key's number as the name of an element, for one large collection",
    ),
    ("{scored-id}", "a drawn key's number as a score, and as a name"),
    ("{fields:N}", "N times a field and the key's item for it"),
    ("{values:N}", "the first N items of the key"),
    ("{names:N}", "the names of the key's first N elements"),
    ("{scored:N}", "N times a score, from 0 on, and the element's name"),
    ("{shuffled:N}", "the names of the key's first N elements, not in order"),
    (
        "{shared:FROM-TO}",
        "the names of the elements FROM to TO-1 that all collections share",
    ),
    ("{script:NAME}", "the source of a script, as one argument"),
    ("{sha:NAME}", "the SHA-1 digest of a script, for EVALSHA"),
    (
        "{entries:N}",
        "N ids of stream entries, 1-1 and on: those that the connection has just read in `group-read`",
    ),
];

/// A section of an encoded request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    /// Bytes that are the same in every request.
    Literal(Vec<u8>),
    /// The digits of a newly drawn key.
    Id,
    /// The digits of the key drawn last.
    SameId,
    /// The digits of a key that no other request names.
    NewId,
    /// The value of the key drawn last.
    Value,
    /// The digits of a drawn field.
    Field {
        /// The number of fields.
        below: u64,
    },
    /// The name of a drawn element of the key drawn last.
    Name {
        /// The number of names.
        below: u64,
    },
    /// The name of the element with this number, of the key drawn last.
    NameAt(u64),
    /// The name of the shared element with this number.
    SharedName(u64),
    /// A newly drawn key, written as a name.
    IdName,
    /// The key drawn last, written as a name.
    SameIdName,
    /// The item of the key and the number drawn last.
    Item,
    /// The item with this number, of the key drawn last.
    ItemAt(u64),
    /// A whole argument, including its length: the id of a stream entry, `place` positions after the turn's first
    /// entry.
    Entry {
        /// The position after the first entry.
        place: u64,
        /// The number of entries per turn.
        per_turn: u64,
    },
    /// A whole argument, including its length: the value of the key drawn last in a random length.
    SizedValue {
        /// The shortest length in bytes.
        shortest: u64,
        /// The longest length in bytes.
        longest: u64,
    },
    /// A whole argument, including its length: a random number without leading zeros.
    Number {
        /// The number's bound.
        below: u64,
    },
}

/// The number of entries of the stream that each connection reads in a cycle.
pub const STREAM_ENTRIES: u64 = 1000;

/// The number of requests of one cycle through the stream in steps of `per_turn` entries: one that begins it, and two
/// per turn.
pub const fn requests_per_cycle(per_turn: u64) -> u64 {
    1 + 2 * STREAM_ENTRIES / per_turn
}

/// Returns the first entry, from 0, to which request `index` of a connection refers.
///
/// ```text
/// index     0      1     2     3     4    ...   201    202
/// request   reset  read  ack   read  ack        reset  read     the two requests of a turn refer to the same entries
/// ```
pub fn first_entry(index: u64, per_turn: u64) -> u64 {
    let place = index % requests_per_cycle(per_turn);
    place.saturating_sub(1) / 2 * per_turn
}

/// The draws of one request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DrawnValues {
    /// The numbers of its keys.
    pub ids: Vec<u64>,
    /// The last number drawn that is not a key.
    pub number: u64,
    /// The request's number on its connection.
    pub index: u64,
}

/// A command that is encoded repeatedly.
#[derive(Debug, Clone)]
pub struct Template {
    pieces: Vec<TemplatePiece>,
    keys: usize,
    has_new_keys: bool,
}

impl Template {
    /// Parses a command line such as `SET {key} {value} {expire}`. Words are separated by blanks. `{expire}` is
    /// replaced by `EX` and `expire_s`.
    ///
    /// # Errors
    /// Fails if the command is empty, has an unknown or malformed placeholder, or names a value before a key.
    pub fn parse(text: &str, values: &ValuePool, expire_s: Option<u64>) -> Result<Template> {
        let mut arguments: Vec<Vec<TemplatePiece>> = Vec::new();
        for word in text.split_whitespace() {
            match expand_repeated(word, expire_s)? {
                Some(expansion) => arguments.extend(expansion),
                None => arguments.push(parse_argument(word)?),
            }
        }
        if arguments.is_empty() {
            return Err(Error::Usage("an empty command".into()));
        }
        check_values_follow_keys(&arguments)?;
        let named = |piece: &TemplatePiece| {
            matches!(
                piece,
                TemplatePiece::Name { .. }
                    | TemplatePiece::NameAt(_)
                    | TemplatePiece::SharedName(_)
                    | TemplatePiece::IdName
                    | TemplatePiece::SameIdName
            )
        };
        if values.size() < NAME_BYTES && arguments.iter().flatten().any(named) {
            return Err(Error::Usage(format!("names have {NAME_BYTES} bytes or more")));
        }
        let pieces = encode(&arguments, values.size());
        let is_key =
            |piece: &&TemplatePiece| matches!(piece, TemplatePiece::Id | TemplatePiece::NewId | TemplatePiece::IdName);
        let keys = pieces.iter().filter(is_key).count();
        let has_new_keys = pieces.contains(&TemplatePiece::NewId);
        Ok(Template {
            pieces,
            keys,
            has_new_keys,
        })
    }

    /// Returns `true` if each request names a key that no other request names.
    pub fn has_new_keys(&self) -> bool {
        self.has_new_keys
    }

    /// The number of keys that one request draws.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Appends one request to `out`.
    #[inline]
    pub fn append(&self, draw: &mut RequestDraw<'_>, values: &ValuePool, out: &mut Vec<u8>) {
        let mut id = 0;
        let mut number = 0;
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Literal(bytes) => out.extend_from_slice(bytes),
                TemplatePiece::Id => {
                    id = draw.next_key();
                    out.extend_from_slice(&digits::<ID_DIGITS>(id));
                }
                TemplatePiece::SameId => out.extend_from_slice(&digits::<ID_DIGITS>(id)),
                TemplatePiece::NewId => {
                    id = draw.new_key();
                    out.extend_from_slice(&digits::<ID_DIGITS>(id));
                }
                TemplatePiece::Value => out.extend_from_slice(values.value(id)),
                TemplatePiece::SizedValue { shortest, longest } => {
                    number = shortest + draw.below(longest - shortest + 1);
                    append_bulk(values.prefix(id, number as usize), out);
                }
                TemplatePiece::Field { below } => {
                    number = draw.below(*below);
                    out.extend_from_slice(&digits::<NUMBER_DIGITS>(number));
                }
                TemplatePiece::Name { below } => {
                    number = draw.below(*below);
                    values.append_name(id, number, out);
                }
                TemplatePiece::NameAt(number) => values.append_name(id, *number, out),
                TemplatePiece::SharedName(number) => values.append_name(0, *number, out),
                TemplatePiece::IdName => {
                    id = draw.next_key();
                    values.append_name(0, id, out);
                }
                TemplatePiece::SameIdName => values.append_name(0, id, out),
                TemplatePiece::Item => out.extend_from_slice(values.item(id, number)),
                TemplatePiece::ItemAt(number) => out.extend_from_slice(values.item(id, *number)),
                TemplatePiece::Number { below } => {
                    number = draw.below(*below);
                    append_bulk(number.to_string().as_bytes(), out);
                }
                TemplatePiece::Entry { place, per_turn } => {
                    let entry = first_entry(draw.index(), *per_turn) + place + 1;
                    append_bulk(format!("{entry}-1").as_bytes(), out);
                }
            }
        }
    }

    /// Returns the draws that [`Template::append`] made from the same `draw`.
    pub fn replay_draws(&self, draw: &mut RequestDraw<'_>) -> DrawnValues {
        let mut drawn = DrawnValues {
            ids: Vec::with_capacity(self.keys),
            number: 0,
            index: draw.index(),
        };
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Id | TemplatePiece::IdName => drawn.ids.push(draw.next_key()),
                TemplatePiece::NewId => drawn.ids.push(draw.new_key()),
                TemplatePiece::SizedValue { shortest, longest } => {
                    drawn.number = shortest + draw.below(longest - shortest + 1);
                }
                TemplatePiece::Field { below } | TemplatePiece::Name { below } | TemplatePiece::Number { below } => {
                    drawn.number = draw.below(*below);
                }
                TemplatePiece::Literal(_)
                | TemplatePiece::SameId
                | TemplatePiece::Value
                | TemplatePiece::NameAt(_)
                | TemplatePiece::SharedName(_)
                | TemplatePiece::SameIdName
                | TemplatePiece::Item
                | TemplatePiece::ItemAt(_)
                | TemplatePiece::Entry { .. } => {}
            }
        }
        drawn
    }
}

/// Expands a placeholder that stands for any number of whole arguments; `None` for any other word.
fn expand_repeated(word: &str, expire_s: Option<u64>) -> Result<Option<Vec<Vec<TemplatePiece>>>> {
    if word == "{scored-id}" {
        return Ok(Some(vec![vec![TemplatePiece::Id], vec![TemplatePiece::SameIdName]]));
    }
    if word == "{expire}" {
        let words = expire_s.map(|seconds| vec![literal_pieces("EX"), literal_pieces(&seconds.to_string())]);
        return Ok(Some(words.unwrap_or_default()));
    }
    if let Some((name, first, end)) = split_range(word)? {
        return match name {
            "value" if end as usize <= LONGEST_PREFIX => {
                let (shortest, longest) = (first, end);
                Ok(Some(vec![vec![TemplatePiece::SizedValue { shortest, longest }]]))
            }
            "shared" => Ok(Some(
                (first..end)
                    .map(|number| vec![TemplatePiece::SharedName(number)])
                    .collect(),
            )),
            _ => Err(Error::Usage(format!("unknown placeholder {word}"))),
        };
    }
    if let Some(name) = named_script(word, "script") {
        return Ok(Some(vec![literal_pieces(scripts::source_by_name(name)?)]));
    }
    if let Some(name) = named_script(word, "sha") {
        let digest = scripts::sha1_hex(scripts::source_by_name(name)?.as_bytes());
        return Ok(Some(vec![literal_pieces(&digest)]));
    }
    let Some((name, count)) = split_counted(word)? else {
        return Ok(None);
    };
    let each = |row: &dyn Fn(u64) -> Vec<Vec<TemplatePiece>>| Some((0..count).flat_map(row).collect());
    let field = |number: u64| literal_pieces(&format!("field:{number:06}"));
    let item = |number: u64| vec![TemplatePiece::ItemAt(number)];
    let name_at = |number: u64| vec![TemplatePiece::NameAt(number)];
    let entry = |place: u64| vec![TemplatePiece::Entry { place, per_turn: count }];
    Ok(match name {
        "keys" => each(&|_| vec![key_pieces()]),
        "pairs" => each(&|_| vec![key_pieces(), vec![TemplatePiece::Value]]),
        "fields" => each(&|number| vec![field(number), item(number)]),
        "values" => each(&|number| vec![item(number)]),
        "names" => each(&|number| vec![name_at(number)]),
        "shuffled" => {
            let stride = stride_coprime_to(count);
            each(&|number| vec![name_at(number * stride % count)])
        }
        "scored" => each(&|number| vec![literal_pieces(&number.to_string()), name_at(number)]),
        "entries" => each(&|place| vec![entry(place)]),
        "number" => Some(vec![vec![TemplatePiece::Number { below: count }]]),
        _ => None,
    })
}

/// Splits `{name:count}`; `None` if the word has another form.
fn split_counted(word: &str) -> Result<Option<(&str, u64)>> {
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

/// Splits `{name:first-end}`; `None` if the word has another form.
fn split_range(word: &str) -> Result<Option<(&str, u64, u64)>> {
    let inner = word.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let Some((name, range)) = inner.and_then(|inner| inner.split_once(':')) else {
        return Ok(None);
    };
    // The names of scripts contain hyphens, too.
    if !matches!(name, "value" | "shared") {
        return Ok(None);
    }
    match parse_range(range) {
        Some((first, end)) if end <= COUNT_LIMIT => Ok(Some((name, first, end))),
        _ => Err(Error::Usage(format!("{word}: the range must be such as 16-1024"))),
    }
}

/// Parses `first-end`, whose first number must be less than the second.
pub fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (first, end) = text.split_once('-')?;
    let (first, end) = (first.parse().ok()?, end.parse().ok()?);
    (first < end).then_some((first, end))
}

/// Returns the name in `{kind:name}`; `None` if the word has another form.
fn named_script<'a>(word: &'a str, kind: &str) -> Option<&'a str> {
    word.strip_prefix('{')?
        .strip_suffix('}')?
        .strip_prefix(kind)?
        .strip_prefix(':')
}

/// Parses one argument: literal text that contains fixed-width placeholders.
fn parse_argument(word: &str) -> Result<Vec<TemplatePiece>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(open) = rest.find('{') {
        let close = rest.find('}').filter(|close| *close > open);
        let close = close.ok_or_else(|| Error::Usage(format!("{word}: unmatched brace")))?;
        pieces.extend(literal_pieces(&rest[..open]));
        pieces.extend(parse_placeholder(&rest[open..=close])?);
        rest = &rest[close + 1..];
    }
    pieces.extend(literal_pieces(rest));
    Ok(pieces)
}

fn parse_placeholder(word: &str) -> Result<Vec<TemplatePiece>> {
    match word {
        "{key}" => return Ok(key_pieces()),
        "{id}" => return Ok(vec![TemplatePiece::Id]),
        "{same-id}" => return Ok(vec![TemplatePiece::SameId]),
        "{new-key}" => return Ok(vec![TemplatePiece::Literal(b"key:".to_vec()), TemplatePiece::NewId]),
        "{value}" => return Ok(vec![TemplatePiece::Value]),
        "{item}" => return Ok(vec![TemplatePiece::Item]),
        "{idname}" => return Ok(vec![TemplatePiece::IdName]),
        _ => {}
    }
    let unknown = || Error::Usage(format!("unknown placeholder {word}"));
    let (name, below) = split_counted(word)?.ok_or_else(unknown)?;
    match name {
        "field" => Ok([literal_pieces("field:"), vec![TemplatePiece::Field { below }]].concat()),
        "name" => Ok(vec![TemplatePiece::Name { below }]),
        _ => Err(unknown()),
    }
}

fn key_pieces() -> Vec<TemplatePiece> {
    vec![TemplatePiece::Literal(b"key:".to_vec()), TemplatePiece::Id]
}

fn literal_pieces(text: &str) -> Vec<TemplatePiece> {
    vec![TemplatePiece::Literal(text.as_bytes().to_vec())]
}

fn check_values_follow_keys(arguments: &[Vec<TemplatePiece>]) -> Result<()> {
    let first = arguments.iter().flatten().find(|piece| {
        matches!(
            piece,
            TemplatePiece::Id
                | TemplatePiece::NewId
                | TemplatePiece::SameId
                | TemplatePiece::Value
                | TemplatePiece::SizedValue { .. }
        )
    });
    match first {
        None | Some(TemplatePiece::Id | TemplatePiece::NewId) => Ok(()),
        Some(_) => Err(Error::Usage(
            "{value} and {same-id} need a {key} or {id} before them".into(),
        )),
    }
}

/// Adds the RESP framing around the arguments and joins adjacent literals.
fn encode(arguments: &[Vec<TemplatePiece>], value_size: usize) -> Vec<TemplatePiece> {
    let mut pieces = Vec::new();
    push_literal(&mut pieces, format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        let whole = argument.first().filter(|piece| is_whole_argument(piece));
        if let Some(whole) = whole {
            pieces.push(whole.clone());
            continue;
        }
        let length: usize = argument.iter().map(|piece| width(piece, value_size)).sum();
        push_literal(&mut pieces, format!("${length}\r\n").as_bytes());
        for piece in argument {
            match piece {
                TemplatePiece::Literal(bytes) => push_literal(&mut pieces, bytes),
                other => pieces.push(other.clone()),
            }
        }
        push_literal(&mut pieces, b"\r\n");
    }
    pieces
}

/// Returns `true` if a piece writes the length of its argument, too.
fn is_whole_argument(piece: &TemplatePiece) -> bool {
    matches!(
        piece,
        TemplatePiece::Number { .. } | TemplatePiece::Entry { .. } | TemplatePiece::SizedValue { .. }
    )
}

/// The number of bytes that a piece adds to its argument.
fn width(piece: &TemplatePiece, value_size: usize) -> usize {
    match piece {
        TemplatePiece::Literal(bytes) => bytes.len(),
        TemplatePiece::Id | TemplatePiece::SameId | TemplatePiece::NewId => ID_DIGITS,
        TemplatePiece::Field { .. } => NUMBER_DIGITS,
        TemplatePiece::Value | TemplatePiece::Item | TemplatePiece::ItemAt(_) => value_size,
        TemplatePiece::Name { .. }
        | TemplatePiece::NameAt(_)
        | TemplatePiece::SharedName(_)
        | TemplatePiece::IdName
        | TemplatePiece::SameIdName => value_size,
        TemplatePiece::Number { .. } | TemplatePiece::Entry { .. } | TemplatePiece::SizedValue { .. } => {
            unreachable!("it is always a whole argument")
        }
    }
}

fn push_literal(pieces: &mut Vec<TemplatePiece>, bytes: &[u8]) {
    match pieces.last_mut() {
        Some(TemplatePiece::Literal(last)) => last.extend_from_slice(bytes),
        _ => pieces.push(TemplatePiece::Literal(bytes.to_vec())),
    }
}

fn append_bulk(argument: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
    out.extend_from_slice(argument);
    out.extend_from_slice(b"\r\n");
}

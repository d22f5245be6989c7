//! Decodes JSON to Lua values.

use mlua::{Lua, Value};

use super::{DEPTH_MAX, NativeFailure, Options};
use crate::arguments::{Arguments, message, string};
use crate::number::parse_prefix;
use crate::run_checks::WorkMeter;

pub(super) fn decode(
    lua: &Lua,
    options: &Options,
    meter: WorkMeter<'_>,
    arguments: &Arguments<'_>,
) -> Result<Value, NativeFailure> {
    if arguments.len() != 1 {
        return Err(arguments.argument_error(0, "expected 1 argument").into());
    }
    let text = arguments.text(lua, 0)?;
    let text = text.as_bytes();
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err(b"JSON parser does not support UTF-16 or UTF-32".to_vec().into());
    }
    let mut decoder = Decoder {
        lua,
        options,
        meter,
        text: &text,
        position: 0,
        depth: 0,
    };
    let token = decoder.next_token();
    let value = decoder.value(token)?;
    let end = decoder.next_token();
    match end.token {
        Token::End => Ok(value),
        other => Err(unexpected("the end", &other, end.position)),
    }
}

/// A token of the JSON text.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Token {
    fn at(self, position: usize) -> PositionedToken {
        PositionedToken { token: self, position }
    }

    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Text(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Error(text) => text,
        }
    }
}

/// A token and its position in the text, in bytes.
struct PositionedToken {
    token: Token,
    position: usize,
}

fn unexpected(wanted: &str, found: &Token, position: usize) -> NativeFailure {
    format!(
        "Expected {wanted} but found {} at character {}",
        found.name(),
        position + 1
    )
    .into_bytes()
    .into()
}

struct Decoder<'d> {
    lua: &'d Lua,
    options: &'d Options,
    meter: WorkMeter<'d>,
    text: &'d [u8],
    position: usize,
    depth: i64,
}

impl Decoder<'_> {
    /// Returns the byte at `distance` from the current position; 0 beyond the end, as in a C string.
    fn byte_at(&self, distance: usize) -> u8 {
        self.text.get(self.position + distance).copied().unwrap_or(0)
    }

    fn next_token(&mut self) -> PositionedToken {
        while matches!(self.byte_at(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.position += 1;
        }
        let at = self.position;
        let single = match self.byte_at(0) {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            0 => return Token::End.at(at),
            b'"' => return self.quoted(),
            _ => return self.word(at),
        };
        self.position += 1;
        single.at(at)
    }

    fn word(&mut self, at: usize) -> PositionedToken {
        let rest = &self.text[at..];
        let first = rest[0];
        if first == b'-' || first.is_ascii_digit() {
            if !self.options.decode_invalid.get() && is_invalid_number(rest) {
                return Token::Error("invalid number").at(at);
            }
            return self.number(at);
        }
        for (word, token) in [
            (&b"true"[..], Token::Boolean(true)),
            (b"false", Token::Boolean(false)),
            (b"null", Token::Null),
        ] {
            if rest.starts_with(word) {
                self.position += word.len();
                return token.at(at);
            }
        }
        let may_be_number = matches!(first, b'i' | b'I' | b'n' | b'N' | b'+' | b'f' | b't');
        if may_be_number && self.options.decode_invalid.get() && is_invalid_number(rest) {
            return self.number(at);
        }
        Token::Error("invalid token").at(at)
    }

    fn number(&mut self, at: usize) -> PositionedToken {
        match parse_prefix(&self.text[at..]) {
            Some((number, len)) => {
                self.position += len;
                Token::Number(number).at(at)
            }
            None => Token::Error("invalid number").at(at),
        }
    }

    /// Reads a quoted string. The position of an error is the byte at which it was found; that of a string is its
    /// opening quote.
    fn quoted(&mut self) -> PositionedToken {
        let at = self.position;
        self.position += 1;
        let mut text = Vec::new();
        loop {
            match self.byte_at(0) {
                b'"' => break,
                0 => return Token::Error("unexpected end of string").at(self.position),
                b'\\' => match self.byte_at(1) {
                    b'u' => match self.unicode() {
                        Some((character, len)) => {
                            let mut bytes = [0; 4];
                            text.extend_from_slice(encode_utf8(character, &mut bytes));
                            self.position += len;
                        }
                        None => return Token::Error("invalid unicode escape code").at(self.position),
                    },
                    escaped => {
                        let byte = match escaped {
                            b'"' | b'\\' | b'/' => escaped,
                            b'b' => 0x08,
                            b't' => b'\t',
                            b'n' => b'\n',
                            b'f' => 0x0c,
                            b'r' => b'\r',
                            _ => return Token::Error("invalid escape code").at(self.position),
                        };
                        text.push(byte);
                        self.position += 2;
                    }
                },
                byte => {
                    text.push(byte);
                    self.position += 1;
                }
            }
        }
        self.position += 1;
        Token::Text(text).at(at)
    }

    /// Parses four hexadecimal digits at `distance` from the current position.
    fn hexadecimal(&self, distance: usize) -> Option<u32> {
        let digits = self.text.get(self.position + distance..self.position + distance + 4)?;
        digits
            .iter()
            .try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
    }

    /// Parses a `\u` escape, which may be a surrogate pair. Returns the code point and the length of the escape in
    /// bytes.
    fn unicode(&self) -> Option<(u32, usize)> {
        let code = self.hexadecimal(2)?;
        if code & 0xF800 != 0xD800 {
            return Some((code, 6));
        }
        if code & 0x400 != 0 || self.byte_at(6) != b'\\' || self.byte_at(7) != b'u' {
            return None;
        }
        let low = self.hexadecimal(8)?;
        if low & 0xFC00 != 0xDC00 {
            return None;
        }
        Some((((code & 0x3FF) << 10 | (low & 0x3FF)) + 0x10000, 12))
    }

    fn descend(&mut self) -> Result<(), NativeFailure> {
        self.depth += 1;
        if self.depth <= self.options.decode_depth.get().min(DEPTH_MAX) {
            return Ok(());
        }
        let text = format!(
            "Found too many nested data structures ({}) at character {}",
            self.depth, self.position
        );
        Err(text.into_bytes().into())
    }

    fn value(&mut self, PositionedToken { token, position }: PositionedToken) -> Result<Value, NativeFailure> {
        self.meter.check(self.position).map_err(NativeFailure::Stop)?;
        match token {
            Token::Text(text) => Ok(string(self.lua, &text)?),
            Token::Number(number) => Ok(Value::Number(number)),
            Token::Boolean(value) => Ok(Value::Boolean(value)),
            Token::Null => Ok(Value::NULL),
            Token::ObjectBegin => self.object(),
            Token::ArrayBegin => self.array(),
            other => Err(unexpected("value", &other, position)),
        }
    }

    fn object(&mut self) -> Result<Value, NativeFailure> {
        self.descend()?;
        let table = self.lua.create_table().map_err(message)?;
        let mut token = self.next_token();
        if !matches!(token.token, Token::ObjectEnd) {
            loop {
                let Token::Text(key) = token.token else {
                    return Err(unexpected("object key string", &token.token, token.position));
                };
                let colon = self.next_token();
                if !matches!(colon.token, Token::Colon) {
                    return Err(unexpected("colon", &colon.token, colon.position));
                }
                let token_of_value = self.next_token();
                let value = self.value(token_of_value)?;
                let key = string(self.lua, &key)?;
                table.raw_set(key, value).map_err(message)?;
                let end = self.next_token();
                match end.token {
                    Token::ObjectEnd => break,
                    Token::Comma => token = self.next_token(),
                    other => return Err(unexpected("comma or object end", &other, end.position)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    fn array(&mut self) -> Result<Value, NativeFailure> {
        self.descend()?;
        let table = self.lua.create_table().map_err(message)?;
        let mut token = self.next_token();
        if !matches!(token.token, Token::ArrayEnd) {
            for index in 1i64.. {
                let value = self.value(token)?;
                table.raw_set(index, value).map_err(message)?;
                let end = self.next_token();
                match end.token {
                    Token::ArrayEnd => break,
                    Token::Comma => token = self.next_token(),
                    other => return Err(unexpected("comma or array end", &other, end.position)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}

/// Returns `true` if a text begins with a number that JSON does not have: hexadecimal, infinite, not-a-number, or with
/// a superfluous leading zero.
fn is_invalid_number(text: &[u8]) -> bool {
    if text[0] == b'+' {
        return true;
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let begins = |word: &[u8]| {
        digits
            .get(..word.len())
            .is_some_and(|found| found.eq_ignore_ascii_case(word))
    };
    match digits.first() {
        Some(b'0') => matches!(digits.get(1), Some(b'x' | b'X' | b'0'..=b'9')),
        Some(byte) if *byte <= b'9' => false,
        _ => begins(b"inf") || begins(b"nan"),
    }
}

/// Encodes a code point as UTF-8, surrogates included.
fn encode_utf8(character: u32, bytes: &mut [u8; 4]) -> &[u8] {
    let low = |shift: u32| (character >> shift & 0x3F) as u8 | 0x80;
    match character {
        0..=0x7F => {
            bytes[0] = character as u8;
            &bytes[..1]
        }
        0x80..=0x7FF => {
            bytes[..2].copy_from_slice(&[(character >> 6) as u8 | 0xC0, low(0)]);
            &bytes[..2]
        }
        0x800..=0xFFFF => {
            bytes[..3].copy_from_slice(&[(character >> 12) as u8 | 0xE0, low(6), low(0)]);
            &bytes[..3]
        }
        _ => {
            *bytes = [(character >> 18) as u8 | 0xF0, low(12), low(6), low(0)];
            &bytes[..]
        }
    }
}

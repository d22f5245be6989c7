//! Parses the bytes of a reply into a tree.
//!
//! The bytes come from the server itself. If they are not a reply all the same, the result has the type "unknown".

use weft_resp::number::{parse_f64, parse_i64};

use super::{CallReply, Parsed, Slice, Value};

/// Parses a reply. `is_exact` keeps the types of simple strings and null arrays, but as in Valkey not those of nested
/// ones.
pub(super) fn parse(bytes: &[u8], is_exact: bool) -> Parsed {
    let mut parser = Parser {
        bytes,
        position: 0,
        is_exact,
    };
    parser.reply().unwrap_or(Parsed {
        value: Value::Unknown,
        attribute: None,
        is_resp3: false,
        proto: Slice::new(bytes),
    })
}

struct Parser<'a> {
    bytes: &'a [u8],
    position: usize,
    is_exact: bool,
}

impl<'a> Parser<'a> {
    /// Parses one reply. Returns `None` if there is none.
    fn reply(&mut self) -> Option<Parsed> {
        let start = self.position;
        let (mark, line) = self.line()?;
        let mut is_resp3 = matches!(mark, b'_' | b'#' | b',' | b'(' | b'=' | b'~' | b'%' | b'|');
        let value = match mark {
            b'$' => match parse_i64(line)? {
                -1 => Value::Null,
                length => Value::String(Slice::new(self.block(length)?)),
            },
            b'+' if self.is_exact => Value::SimpleString(Slice::new(line)),
            b'+' => Value::String(Slice::new(line)),
            b'-' => Value::Error(Slice::new(line)),
            b':' => Value::Integer(parse_i64(line)?),
            b'*' => match parse_i64(line)? {
                -1 if self.is_exact => Value::NullArray,
                -1 => Value::Null,
                length => Value::Array(self.elements(length, 1, &mut is_resp3)?),
            },
            b'_' => Value::Null,
            b'#' => Value::Bool(line == b"t"),
            b',' => Value::Double(parse_double(line)),
            b'(' => Value::BigNumber(Slice::new(line)),
            b'=' => {
                let block = self.block(parse_i64(line)?)?;
                Value::Verbatim(Slice::new(block), Slice::new(block.get(4..)?))
            }
            b'~' => Value::Set(self.elements(parse_i64(line)?, 1, &mut is_resp3)?),
            b'%' => Value::Map(self.elements(parse_i64(line)?, 2, &mut is_resp3)?),
            b'|' => return self.reply_with_attribute(start, parse_i64(line)?),
            _ => return None,
        };
        Some(Parsed {
            value,
            attribute: None,
            is_resp3,
            proto: Slice::new(&self.bytes[start..self.position]),
        })
    }

    /// Parses attributes, of which there are `length`, and the reply that has them.
    fn reply_with_attribute(&mut self, start: usize, length: i64) -> Option<Parsed> {
        let attribute = Parsed {
            value: Value::Attribute(self.elements(length, 2, &mut false)?),
            attribute: None,
            is_resp3: true,
            proto: Slice::new(&self.bytes[start..self.position]),
        };
        let reply = self.reply()?;
        Some(Parsed {
            attribute: Some(Box::new(CallReply::nested(attribute))),
            is_resp3: true,
            proto: Slice::new(&self.bytes[start..self.position]),
            ..reply
        })
    }

    /// Parses `length` elements, each of which consists of `replies_per_element` replies.
    fn elements(&mut self, length: i64, replies_per_element: usize, is_resp3: &mut bool) -> Option<Box<[CallReply]>> {
        let count = usize::try_from(length).ok()?.checked_mul(replies_per_element)?;
        // Each reply takes at least three bytes.
        let mut replies = Vec::with_capacity(count.min(self.bytes.len() / 3));
        let is_exact = std::mem::take(&mut self.is_exact);
        for _ in 0..count {
            let parsed = self.reply()?;
            *is_resp3 |= parsed.is_resp3;
            replies.push(CallReply::nested(parsed));
        }
        self.is_exact = is_exact;
        Some(replies.into_boxed_slice())
    }

    /// Returns the next byte and what follows it on its line.
    fn line(&mut self) -> Option<(u8, &'a [u8])> {
        let rest = self.bytes.get(self.position..)?;
        let (mark, text) = rest.split_first()?;
        let length = text.iter().position(|byte| *byte == b'\r')?;
        self.position += 1 + length + 2;
        (self.position <= self.bytes.len()).then_some((*mark, &text[..length]))
    }

    /// Returns the next `length` bytes, behind which the line ends.
    fn block(&mut self, length: i64) -> Option<&'a [u8]> {
        let length = usize::try_from(length).ok()?;
        let block = self.bytes.get(self.position..)?.get(..length)?;
        self.position += length + 2;
        (self.position <= self.bytes.len()).then_some(block)
    }
}

/// Parses a floating-point number, which may be infinite or no number.
fn parse_double(text: &[u8]) -> f64 {
    let lenient = || std::str::from_utf8(text).ok()?.parse().ok();
    parse_f64(text).or_else(lenient).unwrap_or(0.0)
}

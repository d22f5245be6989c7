//! Parses RESP2 and RESP3 replies into a tree and formats them as text.

use std::fmt::Write as _;

/// A reply: its type byte and its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reply {
    /// The first byte on the wire: `+ - : $ * _ # , ( = % ~ > | !`.
    pub kind: u8,
    /// The content.
    pub body: Body,
}

/// The content of a reply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Body {
    /// A null: `$-1` or `*-1`.
    Null,
    /// The text of a line or of a bulk string.
    Text(Vec<u8>),
    /// The elements; the keys and values of a map alternate.
    Items(Vec<Reply>),
}

/// The reason why bytes are not a complete reply.
#[derive(Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The reply is incomplete; read more bytes.
    Incomplete,
    /// The bytes violate the protocol.
    Malformed(&'static str),
}

impl Reply {
    /// Parses the reply at the start of `bytes`. Also returns its length in bytes.
    ///
    /// # Errors
    /// Fails if the reply is incomplete or malformed.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let end = bytes
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .ok_or(ParseError::Incomplete)?;
        let kind = bytes[0];
        let line = &bytes[1.min(end)..end];
        let used = end + 2;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {
                let body = Body::Text(line.to_vec());
                Ok((Self { kind, body }, used))
            }
            b'$' | b'=' | b'!' => Self::bulk(kind, line, bytes, used),
            b'*' | b'~' | b'>' => Self::aggregate(kind, line, 1, bytes, used),
            b'%' | b'|' => Self::aggregate(kind, line, 2, bytes, used),
            _ => Err(ParseError::Malformed("unknown reply type")),
        }
    }

    fn bulk(kind: u8, line: &[u8], bytes: &[u8], used: usize) -> Result<(Self, usize), ParseError> {
        let Some(length) = parse_length(line)? else {
            let body = Body::Null;
            return Ok((Self { kind, body }, used));
        };
        let end = used + length;
        if bytes.len() < end + 2 {
            return Err(ParseError::Incomplete);
        }
        if &bytes[end..end + 2] != b"\r\n" {
            return Err(ParseError::Malformed("bulk string without a terminator"));
        }
        let body = Body::Text(bytes[used..end].to_vec());
        Ok((Self { kind, body }, end + 2))
    }

    fn aggregate(
        kind: u8,
        line: &[u8],
        per_entry: usize,
        bytes: &[u8],
        mut used: usize,
    ) -> Result<(Self, usize), ParseError> {
        let Some(length) = parse_length(line)? else {
            let body = Body::Null;
            return Ok((Self { kind, body }, used));
        };
        let mut items = Vec::new();
        let mut missing = length * per_entry;
        while missing > 0 {
            let (item, item_used) = Self::parse(&bytes[used..])?;
            // Attributes precede an element, and are not counted.
            missing -= usize::from(item.kind != b'|');
            items.push(item);
            used += item_used;
        }
        let body = Body::Items(items);
        Ok((Self { kind, body }, used))
    }

    /// Returns `true` if the reply is an error.
    pub fn is_error(&self) -> bool {
        matches!(self.kind, b'-' | b'!')
    }

    /// The text of a reply with text content; empty for other replies.
    pub fn text(&self) -> &[u8] {
        match &self.body {
            Body::Text(text) => text,
            _ => b"",
        }
    }

    /// The elements of an aggregate; empty for other replies.
    pub fn items(&self) -> &[Reply] {
        match &self.body {
            Body::Items(items) => items,
            _ => &[],
        }
    }

    /// Returns the bytes of the reply on the wire.
    pub fn to_wire(&self) -> Vec<u8> {
        let kind = char::from(self.kind);
        match &self.body {
            Body::Null if self.kind == b'_' => b"_\r\n".to_vec(),
            Body::Null => format!("{kind}-1\r\n").into_bytes(),
            Body::Text(text) if matches!(self.kind, b'$' | b'=' | b'!') => {
                [format!("{kind}{}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
            }
            Body::Text(text) => [&[self.kind], text.as_slice(), b"\r\n"].concat(),
            Body::Items(items) => {
                let per_entry = if matches!(self.kind, b'%' | b'|') { 2 } else { 1 };
                let count = items.iter().filter(|item| item.kind != b'|').count();
                let head = format!("{kind}{}\r\n", count / per_entry).into_bytes();
                items.iter().fold(head, |wire, item| [wire, item.to_wire()].concat())
            }
        }
    }

    /// Formats the reply in one line.
    pub fn to_line(&self) -> String {
        let mut text = String::new();
        self.write_line(&mut text);
        text
    }

    fn write_line(&self, out: &mut String) {
        let kind = char::from(self.kind);
        match &self.body {
            Body::Null => {
                let _ = write!(out, "{kind}nil");
            }
            Body::Text(text) if self.kind == b'$' => {
                let _ = write!(out, "\"{}\"", text.escape_ascii());
            }
            Body::Text(text) => {
                let _ = write!(out, "{kind}{}", text.escape_ascii());
            }
            Body::Items(items) => {
                let _ = write!(out, "{kind}{}[", items.len());
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push_str(", ");
                    }
                    item.write_line(out);
                }
                out.push(']');
            }
        }
    }
}

/// Parses the number of a length line; `None` for `-1`.
fn parse_length(line: &[u8]) -> Result<Option<usize>, ParseError> {
    let text = std::str::from_utf8(line).map_err(|_| ParseError::Malformed("length is not a number"))?;
    if text == "-1" {
        return Ok(None);
    }
    match text.parse::<usize>() {
        Ok(length) if length <= 1 << 30 => Ok(Some(length)),
        _ => Err(ParseError::Malformed("length out of range")),
    }
}

#[cfg(test)]
mod tests;

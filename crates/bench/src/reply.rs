//! Finds the end of a RESP reply that may be split over several reads.

#[cfg(test)]
mod tests;

/// The longest header line (type byte, number or message) accepted. A longer one makes the reply malformed.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// The largest length or element count accepted in a header.
const MAX_COUNT: u64 = 1 << 32;

/// The error for bytes that are not a RESP reply. The text names the violation.
#[derive(Debug, PartialEq, Eq)]
pub struct MalformedReply(pub &'static str);

/// The scan of one reply. It keeps its progress, so that a long reply that arrives in many pieces is scanned only once.
///
/// ```text
/// *2\r\n $3\r\nfoo\r\n $5\r\nba…
///                      ^ cursor: start of the first value that is not complete
///                        open:   1 value is still missing
/// ```
#[derive(Debug)]
pub struct ReplyScanner {
    cursor: usize,
    missing_values: u64,
}

impl Default for ReplyScanner {
    fn default() -> ReplyScanner {
        ReplyScanner {
            cursor: 0,
            missing_values: 1,
        }
    }
}

impl ReplyScanner {
    /// Continues the scan. `bytes` starts at the reply's first byte and has grown since the last call. Returns the
    /// reply's length once it is complete; the scanner is then reset for the next reply.
    ///
    /// # Errors
    /// Fails if the bytes are not a RESP reply.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, MalformedReply> {
        while self.missing_values > 0 {
            let rest = bytes.get(self.cursor..).unwrap_or_default();
            let Some(header) = ReplyHeader::parse(rest)? else {
                return Ok(None);
            };
            let end = header.line_len + header.payload_len;
            if rest.len() < end {
                return Ok(None);
            }
            if header.payload_len > 0 && rest.get(end - 2..end) != Some(b"\r\n") {
                return Err(MalformedReply("a bulk string does not end where it says"));
            }
            self.cursor += end;
            self.missing_values = self.missing_values - 1 + header.children;
        }
        let length = self.cursor;
        *self = ReplyScanner::default();
        Ok(Some(length))
    }
}

/// Returns the payloads of all strings, numbers and lines of a complete reply in wire order, at any nesting depth.
pub fn strings(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Ok(Some(header)) = ReplyHeader::parse(bytes) {
        let end = header.line_len + header.payload_len;
        let payload = match header.kind {
            b'$' | b'=' | b'!' => bytes.get(header.line_len..end.saturating_sub(2)),
            _ => bytes.get(1..header.line_len - 2),
        };
        if !header.is_null && !matches!(header.kind, b'*' | b'~' | b'>' | b'%' | b'|') {
            found.extend(payload);
        }
        bytes = bytes.get(end..).unwrap_or_default();
    }
    found
}

/// The first line of a RESP value and the sizes it announces.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The type byte, such as `$`.
    pub kind: u8,
    /// `true` if it is a null of RESP2 (`$-1`, `*-1`) or RESP3 (`_`).
    pub is_null: bool,
    /// The number of values that follow and belong to this one. An attribute counts the value it decorates.
    pub children: u64,
    /// The length of the line in bytes, including its line end.
    line_len: usize,
    /// The number of bytes after the line, including their line end.
    payload_len: usize,
}

impl ReplyHeader {
    /// The number of bytes of the string that follows the line, without its line end.
    pub fn string_len(&self) -> u64 {
        self.payload_len.saturating_sub(2) as u64
    }

    /// Parses the line at the start of `bytes`; `None` if it is not complete yet.
    ///
    /// # Errors
    /// Fails if the line is too long or malformed.
    pub fn parse(bytes: &[u8]) -> Result<Option<ReplyHeader>, MalformedReply> {
        let Some(newline) = bytes.iter().take(MAX_LINE_BYTES).position(|byte| *byte == b'\n') else {
            let too_long = bytes.len() >= MAX_LINE_BYTES;
            return if too_long {
                Err(MalformedReply("a header line is too long"))
            } else {
                Ok(None)
            };
        };
        let [kind, body @ .., b'\r'] = &bytes[..newline] else {
            return Err(MalformedReply("a line does not end in CR LF"));
        };
        let mut header = ReplyHeader {
            kind: *kind,
            is_null: false,
            children: 0,
            line_len: newline + 1,
            payload_len: 0,
        };
        match kind {
            b'+' | b'-' | b':' | b',' | b'#' | b'(' => {}
            b'_' => header.is_null = true,
            b'$' | b'=' | b'!' => match parse_count(body)? {
                None => header.is_null = true,
                Some(length) => header.payload_len = length as usize + 2,
            },
            b'*' | b'~' | b'>' => match parse_count(body)? {
                None => header.is_null = true,
                Some(elements) => header.children = elements,
            },
            b'%' => header.children = 2 * parse_count(body)?.unwrap_or(0),
            b'|' => header.children = 2 * parse_count(body)?.unwrap_or(0) + 1,
            _ => return Err(MalformedReply("unknown type byte")),
        }
        Ok(Some(header))
    }
}

/// Parses the number in a header; `None` for -1.
fn parse_count(text: &[u8]) -> Result<Option<u64>, MalformedReply> {
    if text == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    match number {
        Some(number) if number <= MAX_COUNT => Ok(Some(number)),
        _ => Err(MalformedReply("a header's number cannot be read")),
    }
}

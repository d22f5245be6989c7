//! Finds the end of a RESP reply that may be split over several reads.

#[cfg(test)]
mod tests;

/// The longest header line (type byte, number or message) accepted. A longer one makes the reply malformed.
const LINE_LIMIT: usize = 64 * 1024;

/// The largest length or element count accepted in a header.
const COUNT_LIMIT: u64 = 1 << 32;

/// The error for bytes that are not a RESP reply. The text names the violation.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The scan of one reply. It keeps its progress, so that a long reply that arrives in many pieces is scanned only once.
///
/// ```text
/// *2\r\n $3\r\nfoo\r\n $5\r\nba…
///                      ^ cursor: start of the first value that is not complete
///                        open:   1 value is still missing
/// ```
#[derive(Debug)]
pub struct Scanner {
    cursor: usize,
    open: u64,
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner { cursor: 0, open: 1 }
    }
}

impl Scanner {
    /// Continues the scan. `bytes` starts at the reply's first byte and has grown since the last call. Returns the
    /// reply's length once it is complete; the scanner is then reset for the next reply.
    ///
    /// # Errors
    /// Fails if the bytes are not a RESP reply.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while self.open > 0 {
            let rest = bytes.get(self.cursor..).unwrap_or_default();
            let Some(header) = Header::parse(rest)? else {
                return Ok(None);
            };
            let end = header.line_len + header.payload_len;
            if rest.len() < end {
                return Ok(None);
            }
            if header.payload_len > 0 && rest.get(end - 2..end) != Some(b"\r\n") {
                return Err(Malformed("a bulk string does not end where it says"));
            }
            self.cursor += end;
            self.open = self.open - 1 + header.children;
        }
        let length = self.cursor;
        *self = Scanner::default();
        Ok(Some(length))
    }
}

/// Returns the payloads of all strings, numbers and lines of a complete reply in wire order, at any nesting depth.
pub fn strings(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Ok(Some(header)) = Header::parse(bytes) {
        let end = header.line_len + header.payload_len;
        let payload = match header.kind {
            b'$' | b'=' | b'!' => bytes.get(header.line_len..end.saturating_sub(2)),
            _ => bytes.get(1..header.line_len - 2),
        };
        if !header.null && !matches!(header.kind, b'*' | b'~' | b'>' | b'%' | b'|') {
            found.extend(payload);
        }
        bytes = bytes.get(end..).unwrap_or_default();
    }
    found
}

/// The first line of a RESP value and the sizes it announces.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    /// The type byte, such as `$`.
    pub kind: u8,
    /// `true` if it is a null of RESP2 (`$-1`, `*-1`) or RESP3 (`_`).
    pub null: bool,
    /// The number of values that follow and belong to this one. An attribute counts the value it decorates.
    pub children: u64,
    /// The length of the line in bytes, including its line end.
    line_len: usize,
    /// The number of bytes after the line, including their line end.
    payload_len: usize,
}

impl Header {
    /// Parses the line at the start of `bytes`; `None` if it is not complete yet.
    ///
    /// # Errors
    /// Fails if the line is too long or malformed.
    pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
        let Some(newline) = bytes.iter().take(LINE_LIMIT).position(|byte| *byte == b'\n') else {
            let too_long = bytes.len() >= LINE_LIMIT;
            return if too_long {
                Err(Malformed("a header line is too long"))
            } else {
                Ok(None)
            };
        };
        let [kind, body @ .., b'\r'] = &bytes[..newline] else {
            return Err(Malformed("a line does not end in CR LF"));
        };
        let mut header = Header {
            kind: *kind,
            null: false,
            children: 0,
            line_len: newline + 1,
            payload_len: 0,
        };
        match kind {
            b'+' | b'-' | b':' | b',' | b'#' | b'(' => {}
            b'_' => header.null = true,
            b'$' | b'=' | b'!' => match count(body)? {
                None => header.null = true,
                Some(length) => header.payload_len = length as usize + 2,
            },
            b'*' | b'~' | b'>' => match count(body)? {
                None => header.null = true,
                Some(elements) => header.children = elements,
            },
            b'%' => header.children = 2 * count(body)?.unwrap_or(0),
            b'|' => header.children = 2 * count(body)?.unwrap_or(0) + 1,
            _ => return Err(Malformed("unknown type byte")),
        }
        Ok(Some(header))
    }
}

/// Parses the number in a header; `None` for -1.
fn count(text: &[u8]) -> Result<Option<u64>, Malformed> {
    if text == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    match number {
        Some(number) if number <= COUNT_LIMIT => Ok(Some(number)),
        _ => Err(Malformed("a header's number cannot be read")),
    }
}

//! A strict parser for the commands of an append-only file, which reports the position and the reason of an error.
//!
//! It is stricter than the loader of the server. The loader accepts the leading digits of a line as a number; here
//! every line must end correctly.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};

/// The maximum length of a line in bytes, including its end.
const MAX_LINE_BYTES: usize = 127;
/// The maximum length of an annotation in bytes.
const MAX_ANNOTATION_BYTES: usize = 1023;
/// The size of the buffer of a number's line. Error reports show two bytes after the number.
const LINE_BUFFER: usize = MAX_LINE_BYTES + 3;

/// The result of reading one item.
#[derive(Debug)]
pub enum AofItem {
    /// An item was read, and there may be more.
    More,
    /// A timestamp annotation.
    Timestamp {
        /// The offset of its line.
        at: u64,
        /// The text after `#TS:`.
        text: Vec<u8>,
    },
    /// The end of the file, or an error that [`AofReader::error_text`] describes.
    End,
    /// The next byte begins no known item.
    Unknown,
    /// The file cannot be read.
    Unreadable,
}

/// Reads the commands of one file after another.
pub struct AofReader {
    input: Option<BufReader<File>>,
    at: u64,
    /// The offset at which the last read began.
    read_at: u64,
    valid_bytes: u64,
    line: u64,
    /// The number of open transactions.
    open_transactions: i64,
    is_at_end: bool,
    fault: Option<String>,
    /// The last line, written over the previous ones. Error reports show the rest of those, as Valkey's do.
    last_line: [u8; LINE_BUFFER],
}

impl AofReader {
    /// Creates a reader without a file.
    pub fn new() -> Self {
        AofReader {
            input: None,
            at: 0,
            read_at: 0,
            valid_bytes: 0,
            line: 1,
            open_transactions: 0,
            is_at_end: false,
            fault: None,
            last_line: [0; LINE_BUFFER],
        }
    }

    /// Continues with this file, which is positioned at `offset`.
    pub fn open(&mut self, file: &File, offset: u64) {
        self.input = file.try_clone().ok().map(BufReader::new);
        (self.at, self.valid_bytes) = (offset, offset);
        (self.open_transactions, self.is_at_end) = (0, false);
    }

    /// Returns the number of valid bytes: up to the end of the last command outside a transaction.
    pub fn valid_bytes(&self) -> u64 {
        self.valid_bytes
    }

    /// Returns the number of lines read from all files so far, plus one.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the error and its position, if there is one.
    pub fn error_text(&mut self) -> Option<String> {
        if self.fault.is_none() && self.is_at_end && self.open_transactions != 0 {
            self.record_error("Reached EOF before reading EXEC for MULTI".to_owned());
        }
        self.fault.clone()
    }

    fn record_error(&mut self, what: String) {
        self.fault = Some(format!("0x{:>16x}: {what}", self.read_at));
    }

    /// Reads a command or an annotation. `path` is used in error messages.
    pub fn next_item(&mut self, path: &str) -> AofItem {
        if self.open_transactions == 0 {
            self.valid_bytes = self.at;
        }
        let Some(input) = &mut self.input else {
            return AofItem::Unreadable;
        };
        let first = match input.fill_buf() {
            Ok(bytes) => bytes.first().copied(),
            Err(_) => return AofItem::Unreadable,
        };
        match first {
            None => {
                self.is_at_end = true;
                AofItem::End
            }
            Some(b'#') => {
                let at = self.at;
                let note = self.read_line(MAX_ANNOTATION_BYTES);
                match note.strip_prefix(b"#TS:") {
                    Some(text) => AofItem::Timestamp {
                        at,
                        text: text.to_vec(),
                    },
                    None => AofItem::More,
                }
            }
            Some(b'*') => match self.command(path) {
                Some(()) => AofItem::More,
                None => AofItem::End,
            },
            Some(_) => AofItem::Unknown,
        }
    }

    fn command(&mut self, path: &str) -> Option<()> {
        let count = self.read_number_line(b'*')?;
        for index in 0..count {
            let name = self.read_word()?;
            if index > 0 {
                continue;
            }
            let what = if name.eq_ignore_ascii_case(b"multi") {
                self.open_transactions += 1;
                (self.open_transactions != 1).then_some("MULTI")
            } else if name.eq_ignore_ascii_case(b"exec") {
                self.open_transactions -= 1;
                (self.open_transactions != 0).then_some("EXEC")
            } else {
                None
            };
            if let Some(what) = what {
                self.record_error(format!("Unexpected {what} in AOF {path}"));
                return None;
            }
        }
        Some(())
    }

    /// Reads a line that consists of a mark and a number.
    fn read_number_line(&mut self, mark: u8) -> Option<i64> {
        self.read_at = self.at;
        let line = self.read_line(MAX_LINE_BYTES);
        if line.is_empty() {
            return None;
        }
        self.last_line[..line.len()].copy_from_slice(&line);
        self.last_line[line.len()] = 0;
        if line[0] != mark {
            let (mark, found) = (char::from(mark), char::from(line[0]));
            self.record_error(format!("Expected prefix '{mark}', got: '{found}'"));
            return None;
        }
        let (number, length) = leading_number(&line[1..]);
        let end = [self.last_line[1 + length], self.last_line[2 + length]];
        self.check_line_end(end).then_some(number)
    }

    /// Reads a word and returns its first bytes.
    fn read_word(&mut self) -> Option<Vec<u8>> {
        const KEPT: usize = 8;
        let length = self.read_number_line(b'$')?;
        if !(0..=i64::MAX - 2).contains(&length) {
            self.record_error(format!(
                "Expected to read string of {length} bytes, which is not in the suitable range"
            ));
            return None;
        }
        self.read_at = self.at;
        let wanted = length as u64 + 2;
        let (mut start, mut end) = (Vec::new(), [0; 2]);
        let mut left = wanted;
        while left > 0 {
            let input = self.input.as_mut()?;
            let bytes = match input.fill_buf() {
                Ok(bytes) if !bytes.is_empty() => bytes,
                _ => break,
            };
            let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let bytes = &bytes[..taken];
            start.extend(bytes.iter().take(KEPT.saturating_sub(start.len())));
            match bytes {
                [.., first, second] => end = [*first, *second],
                [only] => end = [end[1], *only],
                [] => {}
            }
            input.consume(taken);
            left -= taken as u64;
            self.at += taken as u64;
        }
        if left > 0 {
            self.is_at_end = true;
            let got = wanted - left;
            self.record_error(format!("Expected to read {wanted} bytes, got {got} bytes"));
            return None;
        }
        start.truncate(usize::try_from(length).unwrap_or(KEPT));
        self.check_line_end(end).then_some(start)
    }

    fn check_line_end(&mut self, end: [u8; 2]) -> bool {
        if end == *b"\r\n" {
            self.line += 1;
            return true;
        }
        self.record_error(format!("Expected \\r\\n, got: {:02x}{:02x}", end[0], end[1]));
        false
    }

    /// Reads a line with its end, or its first `at_most` bytes.
    fn read_line(&mut self, at_most: usize) -> Vec<u8> {
        let mut line = Vec::new();
        if let Some(input) = &mut self.input {
            // On a read error the bytes are missing. The next step reports the reason.
            let _ = input.take(at_most as u64).read_until(b'\n', &mut line);
        }
        self.is_at_end = line.len() < at_most && line.last() != Some(&b'\n');
        self.at += line.len() as u64;
        line
    }
}

/// Returns the number at the beginning of a text, and its length in bytes.
fn leading_number(text: &[u8]) -> (i64, usize) {
    let blanks = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let signed = matches!(text.get(blanks), Some(b'-' | b'+'));
    let from = blanks + usize::from(signed);
    let digits = text[from..].iter().take_while(|byte| byte.is_ascii_digit());
    let count = digits.clone().count();
    if count == 0 {
        return (0, 0);
    }
    let number = digits.fold(0i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    let negative = signed && text[blanks] == b'-';
    (if negative { -number } else { number }, from + count)
}

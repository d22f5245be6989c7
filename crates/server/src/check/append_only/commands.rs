//! A strict parser for the commands of an append-only file, which reports the position and the reason of an error.
//!
//! It is stricter than the loader of the server. The loader accepts the leading digits of a line as a number; here
//! every line must end correctly.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};

/// The maximum length of a line in bytes, including its end.
const LINE_MAX: usize = 127;
/// The maximum length of an annotation in bytes.
const NOTE_MAX: usize = 1023;
/// The size of the buffer of a number's line. Error reports show two bytes after the number.
const LINE_BUFFER: usize = LINE_MAX + 3;

/// The result of reading one item.
#[derive(Debug)]
pub enum Step {
    /// An item was read, and there may be more.
    More,
    /// A timestamp annotation.
    Time {
        /// The offset of its line.
        at: u64,
        /// The text after `#TS:`.
        text: Vec<u8>,
    },
    /// The end of the file, or an error that [`Commands::fault`] describes.
    Done,
    /// The next byte begins no known item.
    Unknown,
    /// The file cannot be read.
    Unreadable,
}

/// Reads the commands of one file after another.
pub struct Commands {
    input: Option<BufReader<File>>,
    at: u64,
    /// The offset at which the last read began.
    read_at: u64,
    sound: u64,
    line: u64,
    /// The number of open transactions.
    open: i64,
    is_at_end: bool,
    fault: Option<String>,
    /// The last line, written over the previous ones. Error reports show the rest of those, as Valkey's do.
    last_line: [u8; LINE_BUFFER],
}

impl Commands {
    /// Creates a reader without a file.
    pub fn new() -> Self {
        Commands {
            input: None,
            at: 0,
            read_at: 0,
            sound: 0,
            line: 1,
            open: 0,
            is_at_end: false,
            fault: None,
            last_line: [0; LINE_BUFFER],
        }
    }

    /// Continues with this file, which is positioned at `offset`.
    pub fn begin(&mut self, file: &File, offset: u64) {
        self.input = file.try_clone().ok().map(BufReader::new);
        (self.at, self.sound) = (offset, offset);
        (self.open, self.is_at_end) = (0, false);
    }

    /// Returns the number of valid bytes: up to the end of the last command outside a transaction.
    pub fn sound_bytes(&self) -> u64 {
        self.sound
    }

    /// Returns the number of lines read from all files so far, plus one.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the error and its position, if there is one.
    pub fn fault(&mut self) -> Option<String> {
        if self.fault.is_none() && self.is_at_end && self.open != 0 {
            self.note("Reached EOF before reading EXEC for MULTI".to_owned());
        }
        self.fault.clone()
    }

    fn note(&mut self, what: String) {
        self.fault = Some(format!("0x{:>16x}: {what}", self.read_at));
    }

    /// Reads a command or an annotation. `path` is used in error messages.
    pub fn step(&mut self, path: &str) -> Step {
        if self.open == 0 {
            self.sound = self.at;
        }
        let Some(input) = &mut self.input else {
            return Step::Unreadable;
        };
        let first = match input.fill_buf() {
            Ok(bytes) => bytes.first().copied(),
            Err(_) => return Step::Unreadable,
        };
        match first {
            None => {
                self.is_at_end = true;
                Step::Done
            }
            Some(b'#') => {
                let at = self.at;
                let note = self.read_line(NOTE_MAX);
                match note.strip_prefix(b"#TS:") {
                    Some(text) => Step::Time {
                        at,
                        text: text.to_vec(),
                    },
                    None => Step::More,
                }
            }
            Some(b'*') => match self.command(path) {
                Some(()) => Step::More,
                None => Step::Done,
            },
            Some(_) => Step::Unknown,
        }
    }

    fn command(&mut self, path: &str) -> Option<()> {
        let count = self.number(b'*')?;
        for index in 0..count {
            let name = self.word()?;
            if index > 0 {
                continue;
            }
            let what = if name.eq_ignore_ascii_case(b"multi") {
                self.open += 1;
                (self.open != 1).then_some("MULTI")
            } else if name.eq_ignore_ascii_case(b"exec") {
                self.open -= 1;
                (self.open != 0).then_some("EXEC")
            } else {
                None
            };
            if let Some(what) = what {
                self.note(format!("Unexpected {what} in AOF {path}"));
                return None;
            }
        }
        Some(())
    }

    /// Reads a line that consists of a mark and a number.
    fn number(&mut self, mark: u8) -> Option<i64> {
        self.read_at = self.at;
        let line = self.read_line(LINE_MAX);
        if line.is_empty() {
            return None;
        }
        self.last_line[..line.len()].copy_from_slice(&line);
        self.last_line[line.len()] = 0;
        if line[0] != mark {
            let (mark, found) = (char::from(mark), char::from(line[0]));
            self.note(format!("Expected prefix '{mark}', got: '{found}'"));
            return None;
        }
        let (number, length) = leading_number(&line[1..]);
        let end = [self.last_line[1 + length], self.last_line[2 + length]];
        self.line_end(end).then_some(number)
    }

    /// Reads a word and returns its first bytes.
    fn word(&mut self) -> Option<Vec<u8>> {
        const KEPT: usize = 8;
        let length = self.number(b'$')?;
        if !(0..=i64::MAX - 2).contains(&length) {
            self.note(format!(
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
            self.note(format!("Expected to read {wanted} bytes, got {got} bytes"));
            return None;
        }
        start.truncate(usize::try_from(length).unwrap_or(KEPT));
        self.line_end(end).then_some(start)
    }

    fn line_end(&mut self, end: [u8; 2]) -> bool {
        if end == *b"\r\n" {
            self.line += 1;
            return true;
        }
        self.note(format!("Expected \\r\\n, got: {:02x}{:02x}", end[0], end[1]));
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

//! Reads the commands of an append-only file, and detects a truncated end.
//!
//! After a power failure the size of a file may be ahead of its data, since file systems that allocate late record both
//! at different times. The file ends with zeros then, from any byte on. Such an end counts as truncated.

use std::io::{ErrorKind, Read};

use weft_resp::{ArgRange, Args};

/// The number of bytes read from the file at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// The length of the longest accepted line: a length, or an annotation.
const MAX_LINE_BYTES: usize = 1023;

/// The reason why there is no further command.
#[derive(Debug)]
pub enum AofReadError {
    /// The file ends within a command, or with zeros in place of commands.
    Truncated,
    /// The bytes are not a command.
    Format,
    /// The file cannot be read.
    Read(std::io::Error),
}

/// A reader of commands.
pub struct AofReader<R> {
    input: R,
    buffer: Vec<u8>,
    /// The start of the current command in the buffer.
    start: usize,
    /// The position in the buffer up to which commands were parsed.
    position: usize,
    /// The number of file bytes before the buffer.
    buffer_offset: u64,
    ranges: Vec<ArgRange>,
}

impl<R: Read> AofReader<R> {
    /// Creates a reader that starts at `offset`. The bytes before it were read already.
    pub fn new(input: R, offset: u64) -> Self {
        AofReader {
            input,
            buffer: Vec::new(),
            start: 0,
            position: 0,
            buffer_offset: offset,
            ranges: Vec::new(),
        }
    }

    /// The number of file bytes that were read. After a command it is the offset of the command's end.
    pub fn offset(&self) -> u64 {
        self.buffer_offset + self.position as u64
    }

    /// The arguments of the last command read.
    pub fn args(&self) -> Args<'_> {
        Args::new(self.bytes(), &self.ranges)
    }

    /// The bytes of the last command read.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.position]
    }

    /// Returns the ranges of its arguments in the request.
    pub fn ranges(&self) -> &[ArgRange] {
        &self.ranges
    }

    /// Reads the next command. Returns `false` at the end.
    ///
    /// # Errors
    /// If there are bytes that are not a command.
    pub fn read(&mut self) -> Result<bool, AofReadError> {
        self.ranges.clear();
        let count = loop {
            self.start = self.position;
            let Some(line) = self.read_command_line()? else {
                return Ok(false);
            };
            match line.first() {
                // Bytes appended after an incomplete annotation would become a part of it.
                Some(b'#') if line.last() != Some(&b'\n') && line.len() < MAX_LINE_BYTES => {
                    return Err(AofReadError::Truncated);
                }
                Some(b'#') => {}
                Some(b'*') if line.len() == 1 => return Err(AofReadError::Truncated),
                Some(b'*') => break parse_leading_number(&line[1..]),
                _ => return Err(AofReadError::Format),
            }
        };
        if count < 1 {
            return Err(AofReadError::Format);
        }
        for _ in 0..count {
            let length = match self.read_command_line()? {
                None => return Err(AofReadError::Truncated),
                Some([b'$', digits @ ..]) => parse_leading_number(digits),
                Some(_) => return Err(AofReadError::Format),
            };
            let length = u32::try_from(length).map_err(|_| AofReadError::Format)?;
            let start = self.position - self.start;
            self.skip_bytes(length as usize + 2)?;
            let end = &self.buffer[self.position - 2..self.position];
            if end != b"\r\n" {
                self.refuse_zeros(self.position - 2)?;
            }
            self.ranges.push(ArgRange {
                start: u32::try_from(start).map_err(|_| AofReadError::Format)?,
                len: length,
            });
        }
        Ok(true)
    }

    /// Reads a line like `read_line`, and refuses one that is cut off by zeros up to the end of the file.
    fn read_command_line(&mut self) -> Result<Option<&[u8]>, AofReadError> {
        let length = match self.read_line()? {
            None => return Ok(None),
            Some(line) if line.last() == Some(&b'\n') => line.len(),
            Some(line) => {
                let length = line.len();
                if let Some(zero) = memchr::memchr(0, line) {
                    self.refuse_zeros(self.position - length + zero)?;
                }
                length
            }
        };
        Ok(Some(&self.buffer[self.position - length..self.position]))
    }

    /// Reads on to the end of the file if there is a zero within two bytes from this position in the buffer.
    ///
    /// # Errors
    /// [`AofReadError::Truncated`] if the file contains only zeros from there on.
    fn refuse_zeros(&mut self, from: usize) -> Result<(), AofReadError> {
        let Some(zero) = self.buffer[from..].iter().take(2).position(|byte| *byte == 0) else {
            return Ok(());
        };
        let mut at = from + zero - self.start;
        // The start of the buffer moves when it is filled.
        while self.buffer[self.start + at..].iter().all(|byte| *byte == 0) {
            at = self.buffer.len() - self.start;
            if !self.fill_buffer()? {
                return Err(AofReadError::Truncated);
            }
        }
        Ok(())
    }

    /// The next line, or the rest of the file without a line end; `None` at the end of the file.
    fn read_line(&mut self) -> Result<Option<&[u8]>, AofReadError> {
        let mut looked = 0;
        loop {
            let unread = &self.buffer[self.position..];
            if let Some(end) = memchr::memchr(b'\n', &unread[looked..]) {
                let from = self.position;
                self.position += looked + end + 1;
                return Ok(Some(&self.buffer[from..self.position]));
            }
            looked = unread.len();
            if looked >= MAX_LINE_BYTES {
                self.position += MAX_LINE_BYTES;
                return Ok(Some(&self.buffer[self.position - MAX_LINE_BYTES..self.position]));
            }
            if !self.fill_buffer()? {
                let from = self.position;
                self.position = self.buffer.len();
                return Ok((from < self.position).then(|| &self.buffer[from..self.position]));
            }
        }
    }

    fn skip_bytes(&mut self, count: usize) -> Result<(), AofReadError> {
        while self.buffer.len() - self.position < count {
            if !self.fill_buffer()? {
                return Err(AofReadError::Truncated);
            }
        }
        self.position += count;
        Ok(())
    }

    /// Reads more of the file. Returns `true` if there was more.
    fn fill_buffer(&mut self) -> Result<bool, AofReadError> {
        assert!(
            self.start <= self.position && self.position <= self.buffer.len(),
            "the current command lies in the buffer"
        );
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.buffer_offset += self.start as u64;
            self.position -= self.start;
            self.start = 0;
        }
        let length = self.buffer.len();
        // The buffer grows by doubling for a large argument. The length stated in the file is not trusted.
        let chunk = CHUNK_BYTES.max(length);
        self.buffer.resize(length + chunk, 0);
        let result = loop {
            match self.input.read(&mut self.buffer[length..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(length + result.as_ref().map_or(0, |count| *count));
        result.map(|count| count > 0).map_err(AofReadError::Read)
    }
}

/// Parses the leading digits of a text.
fn parse_leading_number(text: &[u8]) -> i64 {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0i64, |number, digit| {
        number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
    });
    if negative { -number } else { number }
}

#[cfg(test)]
mod tests;

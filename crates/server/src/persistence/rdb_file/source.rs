//! Reads a file through a window that holds the current record.
//!
//! ```text
//!            start of the record   read so far
//!                    │                 │
//!  ── discarded ─────▼─────────────────▼───────── read ahead ──── ▶ file
//!                    └──────────── window ──────────────┘
//! ```
//!
//! Positions are relative to the start of the record, so they stay valid when the window moves. Bytes that leave the
//! window have been added to the checksum.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use crc::{Digest, Table};

use super::error::Fault;
use crate::rdb::dump_payload::CRC;
use crate::rdb::strings::{Loaded, Reader};

/// The number of bytes read from the file at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// A file that is read through a window.
pub struct Source<R> {
    input: R,
    window: Vec<u8>,
    /// The start of the record.
    start: usize,
    /// The position in the window up to which it was read.
    at: usize,
    /// The number of file bytes before the window.
    before: u64,
    /// The position in the window up to which it was added to the checksum.
    summed: usize,
    digest: Option<Digest<'static, u64, Table<16>>>,
}

impl<R: Read> Source<R> {
    /// Creates a source at the start of a file. `checked` is `true` if its checksum is computed.
    pub fn new(input: R, checked: bool) -> Self {
        Source {
            input,
            window: Vec::new(),
            start: 0,
            at: 0,
            before: 0,
            summed: 0,
            digest: checked.then(|| CRC.digest()),
        }
    }

    /// The number of bytes of the file that were read.
    pub fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Starts a record. Earlier bytes are no longer needed.
    pub fn begin_record(&mut self) {
        self.start = self.at;
    }

    /// The position in the record.
    pub fn position(&self) -> usize {
        self.at - self.start
    }

    /// A part of the current record that was read.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        &self.window[self.start + range.start..self.start + range.end]
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// If the file is truncated or cannot be read.
    pub fn take(&mut self, count: usize) -> Result<&[u8], Fault> {
        while self.window.len() - self.at < count {
            self.fill()?;
        }
        let from = self.at;
        self.at += count;
        Ok(&self.window[from..self.at])
    }

    /// The next byte.
    ///
    /// # Errors
    /// As [`Source::take`].
    pub fn byte(&mut self) -> Result<u8, Fault> {
        self.array().map(|[byte]| byte)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// As [`Source::take`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// The next length.
    ///
    /// # Errors
    /// If the bytes are not a length, and as [`Source::take`].
    pub fn length(&mut self) -> Result<usize, Fault> {
        let from = self.position();
        let mark = self.byte()?;
        let more = match mark {
            0x40..0x80 => 1,
            0x80 => 4,
            0x81 => 8,
            _ => 0,
        };
        self.take(more)?;
        Reader::new(self.part(from..from + 1 + more))
            .length()
            .ok_or_else(|| Fault::damaged(format!("Unknown length encoding {mark} in rdbLoadLen()")))
    }

    /// Skips a string. Returns its range in the record.
    ///
    /// # Errors
    /// If the bytes are not a string, and as [`Source::take`].
    pub fn skip_string(&mut self) -> Result<Range<usize>, Fault> {
        let from = self.position();
        let mark = self.byte()?;
        match mark {
            0xc0..=0xc2 => {
                self.take(1 << (mark & 3))?;
            }
            0xc3 => {
                let packed = self.length()?;
                self.length()?;
                self.take(packed)?;
            }
            0xc4.. => {
                let encoding = mark & 0x3f;
                return Err(Fault::damaged(format!("Unknown RDB string encoding type {encoding}")));
            }
            _ => {
                self.at -= 1;
                let length = self.length()?;
                self.take(length)?;
            }
        }
        Ok(from..self.position())
    }

    /// The next string.
    ///
    /// # Errors
    /// If the bytes are not a string, and as [`Source::take`].
    pub fn string(&mut self) -> Result<Vec<u8>, Fault> {
        let range = self.skip_string()?;
        self.text(range)
    }

    /// Decodes the string at this range of the record.
    ///
    /// # Errors
    /// If the bytes are not a string.
    pub fn text(&self, range: Range<usize>) -> Result<Vec<u8>, Fault> {
        match Reader::new(self.part(range)).string() {
            Some(Loaded::Int(number)) => Ok(number.to_string().into_bytes()),
            Some(Loaded::Bytes(bytes)) => Ok(bytes.to_vec()),
            Some(Loaded::Unpacked(bytes)) => Ok(bytes),
            None => Err(Fault::damaged("Invalid LZF compressed string")),
        }
    }

    /// Returns the bytes that were read ahead, and the input.
    pub fn into_rest(mut self) -> (Vec<u8>, R) {
        (self.window.split_off(self.at), self.input)
    }

    /// The checksum of all bytes that were read; 0 if it is not computed.
    pub fn checksum(&mut self) -> u64 {
        self.sum_up();
        self.digest.clone().map_or(0, |digest| digest.finalize())
    }

    fn sum_up(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.update(&self.window[self.summed..self.at]);
        }
        self.summed = self.at;
    }

    /// Reads more of the file into the window.
    fn fill(&mut self) -> Result<(), Fault> {
        self.move_on();
        let filled = self.window.len();
        self.window.resize(filled + CHUNK_BYTES, 0);
        let read = loop {
            match self.input.read(&mut self.window[filled..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.window.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(Fault::Short),
            Ok(_) => Ok(()),
            Err(error) => Err(Fault::Read(error)),
        }
    }

    /// Discards the bytes before the record if they are most of the window. So each byte is moved at most once.
    fn move_on(&mut self) {
        if self.start < self.window.len() - self.start {
            return;
        }
        self.sum_up();
        self.window.drain(..self.start);
        if self.window.capacity() > 8 * CHUNK_BYTES {
            self.window.shrink_to(2 * CHUNK_BYTES);
        }
        self.before += self.start as u64;
        self.at -= self.start;
        self.summed -= self.start;
        self.start = 0;
    }
}

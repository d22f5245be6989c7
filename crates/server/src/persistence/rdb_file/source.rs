//! A file seen through a window that holds the record that is being read.
//!
//! ```text
//!            start of the record   read so far
//!                    │                 │
//!  ── given up ──────▼─────────────────▼───────── read ahead ──── ▶ file
//!                    └──────────── window ──────────────┘
//! ```
//!
//! Positions count from the start of the record, so they stay right when the window moves on. What leaves the window
//! has gone into the checksum.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use crc::{Digest, Table};

use super::error::Fault;
use crate::rdb::dump_payload::CRC;
use crate::rdb::strings::{Loaded, Reader};

/// Bytes read from the file at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// A file on its way through the window.
pub struct Source<R> {
    input: R,
    window: Vec<u8>,
    /// The start of the record.
    start: usize,
    /// Up to where it was read.
    at: usize,
    /// Bytes of the file in front of the window.
    before: u64,
    /// Up to where the window is in the checksum.
    summed: usize,
    digest: Option<Digest<'static, u64, Table<16>>>,
}

impl<R: Read> Source<R> {
    /// Creates a source at the start of a file; with `checked`, its checksum is computed.
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

    /// Bytes of the file that were read.
    pub fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Begins a record: what was read before is no longer needed.
    pub fn begin_record(&mut self) {
        self.start = self.at;
    }

    /// The place in the record.
    pub fn position(&self) -> usize {
        self.at - self.start
    }

    /// A part of the record that was read.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        &self.window[self.start + range.start..self.start + range.end]
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// When the file ends before, or cannot be read.
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

    /// A length.
    ///
    /// # Errors
    /// When there is none, and as [`Source::take`].
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

    /// Passes by a string; where it lies in the record.
    ///
    /// # Errors
    /// When there is none, and as [`Source::take`].
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

    /// A string.
    ///
    /// # Errors
    /// When there is none, and as [`Source::take`].
    pub fn string(&mut self) -> Result<Vec<u8>, Fault> {
        let range = self.skip_string()?;
        self.text(range)
    }

    /// The string that lies there in the record.
    ///
    /// # Errors
    /// When there is none.
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

    /// The checksum of all that was read; 0 if it is not wanted.
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

    /// Reads ahead.
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

    /// Gives up what is in front of the record, if that is most of the window, so that each byte moves once at most.
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

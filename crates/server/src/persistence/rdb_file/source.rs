//! Reads a file through a window that holds the current record, and the complete ones of the current batch.
//!
//! ```text
//!     start of the batch   start of the record   read so far
//!              │                   │                 │
//!  discarded ──▼───────────────────▼─────────────────▼───────── read ahead ──── ▶ file
//!              └─────────────────────── window ───────────────────────┘
//! ```
//!
//! Positions are relative to the start of the record, so they stay valid when the window moves. Bytes that leave the
//! window have been added to the checksum.
//!
//! A reader that takes one record after the other starts each with [`RdbSource::begin_record`], and no batch is kept.
//! The loader starts records with [`RdbSource::begin_record_of_batch`]. When the window must be filled, and the records
//! before the current one are long enough for a batch, the window itself becomes that batch, which the loader takes
//! with [`RdbSource::take_batch`]. Only the part of the current record that was read is copied to the next window.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use std::ops::Range;

use crc::{Digest, Table};

use super::error::RdbFault;
use weft_rdb::dump_payload::CRC;
use weft_rdb::strings::{ParsedString, RdbReader};

/// The number of bytes read from the file at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// A file that is read through a window.
pub struct RdbSource<R> {
    input: R,
    window: Vec<u8>,
    /// The start of the batch; that of the record if no batch is kept.
    start: usize,
    /// The start of the record.
    record: usize,
    /// The position in the window up to which it was read.
    position: usize,
    /// The number of file bytes before the window.
    window_offset: u64,
    /// The position in the window up to which it was added to the checksum.
    summed: usize,
    digest: Option<Digest<'static, u64, Table<16>>>,
    /// The minimum length of a batch in bytes.
    batch_bytes: usize,
    /// The batch that was complete when the window was filled.
    batch: Option<Vec<u8>>,
    /// Memory for the next window.
    spare: Vec<u8>,
}

impl<R: Read> RdbSource<R> {
    /// Creates a source at the start of a file. `checked` is `true` if its checksum is computed.
    pub fn new(input: R, checked: bool) -> Self {
        RdbSource {
            input,
            window: Vec::new(),
            start: 0,
            record: 0,
            position: 0,
            window_offset: 0,
            summed: 0,
            digest: checked.then(|| CRC.digest()),
            batch_bytes: usize::MAX,
            batch: None,
            spare: Vec::new(),
        }
    }

    /// Sets the minimum length of a batch in bytes.
    pub fn set_batch_bytes(&mut self, batch_bytes: usize) {
        self.batch_bytes = batch_bytes;
    }

    /// The number of bytes of the file that were read.
    pub fn offset(&self) -> u64 {
        self.window_offset + self.position as u64
    }

    /// Starts a record. Earlier bytes are no longer needed.
    pub fn begin_record(&mut self) {
        self.record = self.position;
        self.start = self.position;
    }

    /// Starts a record. Earlier ones of the batch are still needed.
    pub fn begin_record_of_batch(&mut self) {
        self.record = self.position;
    }

    /// The batch that was complete before the current record, if there is one. The positions of its records are those
    /// that [`Self::record_start`] returned, and `spare` is memory for a later window.
    pub fn take_batch(&mut self, spare: impl FnOnce() -> Vec<u8>) -> Option<Vec<u8>> {
        let batch = self.batch.take()?;
        self.spare = spare();
        Some(batch)
    }

    /// Returns the last batch: the bytes before the current record.
    pub fn take_last_batch(&mut self) -> Vec<u8> {
        assert!(self.batch.is_none(), "a complete batch is taken before the last one");
        self.move_batch_out();
        self.batch.take().unwrap_or_default()
    }

    /// The start of the current record in the batch that will contain it.
    pub fn record_start(&self) -> usize {
        self.record
    }

    /// The position in the record.
    pub fn position(&self) -> usize {
        debug_assert!(self.record <= self.position, "a record is read from its start");
        self.position - self.record
    }

    /// A part of the current record that was read.
    pub fn record_bytes(&self, range: Range<usize>) -> &[u8] {
        &self.window[self.record + range.start..self.record + range.end]
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// If the file is truncated or cannot be read.
    pub fn take(&mut self, count: usize) -> Result<&[u8], RdbFault> {
        while self.window.len() - self.position < count {
            self.fill_window()?;
        }
        let from = self.position;
        self.position += count;
        Ok(&self.window[from..self.position])
    }

    /// The next byte.
    ///
    /// # Errors
    /// As [`RdbSource::take`].
    pub fn byte(&mut self) -> Result<u8, RdbFault> {
        self.array().map(|[byte]| byte)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// As [`RdbSource::take`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], RdbFault> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// The next length.
    ///
    /// # Errors
    /// If the bytes are not a length, and as [`RdbSource::take`].
    pub fn length(&mut self) -> Result<usize, RdbFault> {
        let from = self.position();
        let mark = self.byte()?;
        let more = match mark {
            0x40..0x80 => 1,
            0x80 => 4,
            0x81 => 8,
            _ => 0,
        };
        self.take(more)?;
        RdbReader::new(self.record_bytes(from..from + 1 + more))
            .length()
            .ok_or_else(|| RdbFault::damaged(format!("Unknown length encoding {mark} in rdbLoadLen()")))
    }

    /// Skips a string. Returns its range in the record.
    ///
    /// # Errors
    /// If the bytes are not a string, and as [`RdbSource::take`].
    pub fn skip_string(&mut self) -> Result<Range<usize>, RdbFault> {
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
                return Err(RdbFault::damaged(format!(
                    "Unknown RDB string encoding type {encoding}"
                )));
            }
            _ => {
                self.position -= 1;
                let length = self.length()?;
                self.take(length)?;
            }
        }
        Ok(from..self.position())
    }

    /// The next string.
    ///
    /// # Errors
    /// If the bytes are not a string, and as [`RdbSource::take`].
    pub fn string(&mut self) -> Result<Vec<u8>, RdbFault> {
        let range = self.skip_string()?;
        self.decode_string(range)
    }

    /// Decodes the string at this range of the record.
    ///
    /// # Errors
    /// If the bytes are not a string.
    pub fn decode_string(&self, range: Range<usize>) -> Result<Vec<u8>, RdbFault> {
        decode_string(self.record_bytes(range)).map(Cow::into_owned)
    }

    /// Returns the bytes that were read ahead, and the input.
    pub fn into_remaining(mut self) -> (Vec<u8>, R) {
        (self.window.split_off(self.position), self.input)
    }

    /// The checksum of all bytes that were read; 0 if it is not computed.
    pub fn checksum(&mut self) -> u64 {
        self.update_checksum();
        self.digest.clone().map_or(0, |digest| digest.finalize())
    }

    fn update_checksum(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.update(&self.window[self.summed..self.position]);
        }
        self.summed = self.position;
    }

    /// Reads more of the file into the window.
    fn fill_window(&mut self) -> Result<(), RdbFault> {
        if self.record - self.start >= self.batch_bytes && self.batch.is_none() {
            self.move_batch_out();
        } else {
            self.discard_before_batch();
        }
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
            Ok(0) => Err(RdbFault::Truncated),
            Ok(_) => Ok(()),
            Err(error) => Err(RdbFault::Read(error)),
        }
    }

    /// Makes the window up to the current record a batch, and continues with a new window.
    fn move_batch_out(&mut self) {
        self.assert_order();
        self.update_checksum();
        let mut next = std::mem::take(&mut self.spare);
        next.clear();
        next.extend_from_slice(&self.window[self.record..]);
        let mut batch = std::mem::replace(&mut self.window, next);
        batch.truncate(self.record);
        self.batch = Some(batch);
        self.rebase(self.record);
    }

    /// Discards the bytes before the batch if they are most of the window. So each byte is moved at most once.
    fn discard_before_batch(&mut self) {
        self.assert_order();
        if self.start == 0 || self.start < self.window.len() - self.start {
            return;
        }
        self.update_checksum();
        self.window.drain(..self.start);
        if self.window.capacity() > 8 * CHUNK_BYTES {
            self.window.shrink_to(2 * CHUNK_BYTES);
        }
        self.rebase(self.start);
    }

    /// Records that the first `count` bytes have left the window, which begins with the batch now.
    fn rebase(&mut self, count: usize) {
        self.window_offset += count as u64;
        self.position -= count;
        self.summed -= count;
        self.record -= count;
        self.start = 0;
    }

    fn assert_order(&self) {
        assert!(
            self.summed <= self.position
                && self.start <= self.record
                && self.record <= self.position
                && self.position <= self.window.len(),
            "the position of an RDB file lies in its window, behind the checksum and the start of the record"
        );
    }
}

/// Decodes a string in the encoding of RDB files.
///
/// # Errors
/// If the bytes are not a string.
pub fn decode_string(bytes: &[u8]) -> Result<Cow<'_, [u8]>, RdbFault> {
    match RdbReader::new(bytes).string() {
        Some(ParsedString::Int(number)) => Ok(Cow::Owned(number.to_string().into_bytes())),
        Some(ParsedString::Bytes(bytes)) => Ok(Cow::Borrowed(bytes)),
        Some(ParsedString::Decompressed(bytes)) => Ok(Cow::Owned(bytes)),
        None => Err(RdbFault::damaged("Invalid LZF compressed string")),
    }
}

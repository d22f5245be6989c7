//! A file on its way to disk: bytes are gathered, summed up, written, and synced in steps.

use std::fs::File;
use std::io::{self, Write};

use crc::{Digest, Table};

use crate::persist::payload::CRC;

/// Bytes gathered before they are written.
const GATHERED_BYTES: usize = 256 * 1024;
/// Bytes written between two syncs, so that the last one is short.
const SYNC_BYTES: u64 = 32 * 1024 * 1024;

/// A file that is being written.
pub struct Sink {
    file: File,
    /// What is not written yet; whoever writes appends here.
    pub gathered: Vec<u8>,
    digest: Option<Digest<'static, u64, Table<16>>>,
    written: u64,
    synced: u64,
    incremental: bool,
}

impl Sink {
    /// A sink into an empty file; `checked` tells whether a checksum is made, `incremental` whether it is synced in
    /// steps.
    pub fn new(file: File, checked: bool, incremental: bool) -> Self {
        Sink {
            file,
            gathered: Vec::with_capacity(2 * GATHERED_BYTES),
            digest: checked.then(|| CRC.digest()),
            written: 0,
            synced: 0,
            incremental,
        }
    }

    /// Bytes that are in the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes what was gathered, if that is much.
    ///
    /// # Errors
    /// When the file takes no more.
    pub fn pass_on(&mut self) -> io::Result<()> {
        if self.gathered.len() < GATHERED_BYTES {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(digest) = &mut self.digest {
            digest.update(&self.gathered);
        }
        self.file.write_all(&self.gathered)?;
        self.written += self.gathered.len() as u64;
        self.gathered.clear();
        self.gathered.shrink_to(2 * GATHERED_BYTES);
        if self.incremental && self.written - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Writes the rest and the checksum of everything, which is 0 if none is made.
    ///
    /// # Errors
    /// When the file takes no more.
    pub fn seal(&mut self) -> io::Result<()> {
        self.flush()?;
        let checksum = self.digest.take().map_or(0, |digest| digest.finalize());
        self.gathered.extend(checksum.to_le_bytes());
        self.flush()
    }

    /// Has the file on disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

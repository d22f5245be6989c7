//! The output buffer of an RDB file, and its checksum.

use crc::{Digest, Table};

use super::opcode;
use weft_rdb::dump_payload::CRC;

/// The number of bytes that are collected before they are written.
const FLUSH_BYTES: usize = 256 * 1024;
/// The length of the end of a file in bytes: the end opcode and the checksum.
const END_BYTES: usize = 9;

/// The checksum of an RDB file while it is written.
pub struct RdbChecksum(Option<Digest<'static, u64, Table<16>>>);

impl RdbChecksum {
    /// Starts at the beginning of a file. Without `is_computed` the checksum is 0.
    pub fn new(is_computed: bool) -> Self {
        RdbChecksum(is_computed.then(|| CRC.digest()))
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    /// Returns the end of the file: the end opcode, and the checksum of everything.
    pub fn end(mut self) -> [u8; END_BYTES] {
        let mut end = [0; END_BYTES];
        end[0] = opcode::END;
        self.update(&end[..1]);
        let checksum: u64 = self.0.map_or(0, |digest| digest.finalize());
        end[1..].copy_from_slice(&checksum.to_le_bytes());
        end
    }
}

/// The bytes that are not written yet.
pub struct BufferedWriter {
    /// The buffer to append to.
    pub bytes: Vec<u8>,
    checksum: RdbChecksum,
}

impl BufferedWriter {
    /// Creates an empty buffer; with `has_checksum`, a checksum is computed.
    pub fn new(has_checksum: bool) -> Self {
        BufferedWriter {
            bytes: Vec::with_capacity(2 * FLUSH_BYTES),
            checksum: RdbChecksum::new(has_checksum),
        }
    }

    /// Returns `true` if the buffer is full enough to be passed on.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FLUSH_BYTES
    }

    /// Takes the bytes, to pass them on.
    pub fn take(&mut self) -> Vec<u8> {
        assert!(!self.bytes.is_empty(), "there are bytes to pass on");
        self.checksum.update(&self.bytes);
        std::mem::replace(&mut self.bytes, Vec::with_capacity(2 * FLUSH_BYTES))
    }

    /// Returns the remaining bytes with the end opcode and the checksum of everything, which is 0 if none is computed.
    pub fn finish(mut self) -> Vec<u8> {
        self.checksum.update(&self.bytes);
        self.bytes.extend(self.checksum.end());
        self.bytes
    }
}

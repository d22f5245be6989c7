//! The output buffer of an RDB file, which also computes the checksum.

use crc::{Digest, Table};

use super::opcode;
use weft_rdb::dump_payload::CRC;

/// The number of bytes that are collected before they are written.
const FLUSH_BYTES: usize = 256 * 1024;

/// The bytes that are not written yet.
pub struct BufferedWriter {
    /// The buffer to append to.
    pub bytes: Vec<u8>,
    digest: Option<Digest<'static, u64, Table<16>>>,
}

impl BufferedWriter {
    /// Creates an empty buffer; with `has_checksum`, a checksum is computed.
    pub fn new(has_checksum: bool) -> Self {
        BufferedWriter {
            bytes: Vec::with_capacity(2 * FLUSH_BYTES),
            digest: has_checksum.then(|| CRC.digest()),
        }
    }

    /// Returns `true` if the buffer is full enough to be passed on.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= FLUSH_BYTES
    }

    /// Takes the bytes, to pass them on.
    pub fn take(&mut self) -> Vec<u8> {
        assert!(!self.bytes.is_empty(), "there are bytes to pass on");
        if let Some(digest) = &mut self.digest {
            digest.update(&self.bytes);
        }
        std::mem::replace(&mut self.bytes, Vec::with_capacity(2 * FLUSH_BYTES))
    }

    /// Returns the remaining bytes with the end opcode and the checksum of everything, which is 0 if none is computed.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(opcode::END);
        let checksum = self.digest.map_or(0, |mut digest| {
            digest.update(&self.bytes);
            digest.finalize()
        });
        self.bytes.extend(checksum.to_le_bytes());
        self.bytes
    }
}

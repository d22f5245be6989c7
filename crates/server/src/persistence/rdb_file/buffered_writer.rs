//! Bytes of a dump on their way: gathered until they are worth a write, and summed up.

use crc::{Digest, Table};

use super::opcode;
use crate::rdb::dump_payload::CRC;

/// Bytes gathered before they are passed on.
const MUCH_BYTES: usize = 256 * 1024;

/// What is written and not passed on yet.
pub struct BufferedWriter {
    /// Whoever writes appends here.
    pub bytes: Vec<u8>,
    digest: Option<Digest<'static, u64, Table<16>>>,
}

impl BufferedWriter {
    /// Nothing yet; `checked` tells whether a checksum is made.
    pub fn new(checked: bool) -> Self {
        BufferedWriter {
            bytes: Vec::with_capacity(2 * MUCH_BYTES),
            digest: checked.then(|| CRC.digest()),
        }
    }

    /// Whether so much is gathered that it is to be passed on.
    pub fn is_much(&self) -> bool {
        self.bytes.len() >= MUCH_BYTES
    }

    /// What was gathered, to be passed on.
    pub fn take(&mut self) -> Vec<u8> {
        if let Some(digest) = &mut self.digest {
            digest.update(&self.bytes);
        }
        std::mem::replace(&mut self.bytes, Vec::with_capacity(2 * MUCH_BYTES))
    }

    /// The rest, with the mark of the end and the checksum of everything, which is 0 if none is made.
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

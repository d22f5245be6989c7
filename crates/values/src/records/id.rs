//! The identity of a record: its chunk and its offset in it.

/// The size of a chunk in bytes.
pub(super) const CHUNK_BYTES: usize = 1 << OFFSET_BITS;
const OFFSET_BITS: u32 = 15;

/// The identity of a record within its collection. It is valid until the record is reported as moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(u64);

impl RecordId {
    #[inline]
    pub(super) fn new(chunk: usize, offset: usize) -> Self {
        debug_assert!(offset < CHUNK_BYTES, "records begin within a chunk");
        RecordId((chunk as u64) << OFFSET_BITS | offset as u64)
    }

    #[inline]
    pub(super) fn chunk(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    #[inline]
    pub(super) fn offset(self) -> usize {
        self.0 as usize % CHUNK_BYTES
    }

    /// The number of the id. It is below 2^48, and below 2^32 while the records take less than about 4 GiB.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the id with this number.
    #[inline]
    pub fn from_number(number: u64) -> Self {
        RecordId(number)
    }
}

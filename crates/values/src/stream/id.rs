//! The ID of a stream entry: a time and a sequence number.
/// The ID of a stream entry, which determines its position in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Milliseconds since the Unix epoch, unless the clock went backwards.
    pub ms: u64,
    /// The sequence number that distinguishes entries of the same millisecond.
    pub seq: u64,
}

impl StreamId {
    /// The smallest ID. No entry has it.
    pub const MIN: StreamId = StreamId::new(0, 0);
    /// The largest ID.
    pub const MAX: StreamId = StreamId::new(u64::MAX, u64::MAX);

    /// Creates an ID from its parts.
    pub const fn new(ms: u64, seq: u64) -> Self {
        StreamId { ms, seq }
    }

    /// Returns the next larger ID, or `None` for the largest.
    pub const fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => match self.ms.checked_add(1) {
                Some(ms) => Some(StreamId::new(ms, 0)),
                None => None,
            },
        }
    }

    /// Returns the next smaller ID, or `None` for the smallest.
    pub const fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => match self.ms.checked_sub(1) {
                Some(ms) => Some(StreamId::new(ms, u64::MAX)),
                None => None,
            },
        }
    }

    /// Returns the ID in the form used in files: both parts are big-endian, so that the bytes sort like the IDs.
    pub fn to_bytes(self) -> [u8; 16] {
        let number = u128::from(self.ms) << 64 | u128::from(self.seq);
        number.to_be_bytes()
    }

    /// Creates an ID from the form used in files.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        StreamId::new((number >> 64) as u64, number as u64)
    }

    /// Returns the differences between the parts of this ID and `base`, as stored in blocks.
    #[inline]
    pub(super) fn deltas_from(self, base: StreamId) -> (i64, i64) {
        (
            self.ms.wrapping_sub(base.ms) as i64,
            self.seq.wrapping_sub(base.seq) as i64,
        )
    }

    /// Returns the ID with these differences to this one.
    #[inline]
    pub(super) fn plus(self, ms_delta: i64, seq_delta: i64) -> StreamId {
        StreamId::new(
            self.ms.wrapping_add(ms_delta as u64),
            self.seq.wrapping_add(seq_delta as u64),
        )
    }
}

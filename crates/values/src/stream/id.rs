//! The ID of a stream's entry: a time and a number within it.

/// Where an entry stands in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Milliseconds since the Unix epoch, as far as the clock never went backwards.
    pub ms: u64,
    /// Tells entries of the same millisecond apart.
    pub seq: u64,
}

impl StreamId {
    /// The smallest ID; no entry has it.
    pub const MIN: StreamId = StreamId::new(0, 0);
    /// The largest ID.
    pub const MAX: StreamId = StreamId::new(u64::MAX, u64::MAX);

    /// The ID of these parts.
    pub const fn new(ms: u64, seq: u64) -> Self {
        StreamId { ms, seq }
    }

    /// The ID right behind this one; `None` behind the largest.
    pub const fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => match self.ms.checked_add(1) {
                Some(ms) => Some(StreamId::new(ms, 0)),
                None => None,
            },
        }
    }

    /// The ID right before this one; `None` before the smallest.
    pub const fn previous(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId::new(self.ms, seq)),
            None => match self.ms.checked_sub(1) {
                Some(ms) => Some(StreamId::new(ms, u64::MAX)),
                None => None,
            },
        }
    }

    /// The ID as files have it: both parts big-endian, so that bytes sort as IDs do.
    pub fn to_bytes(self) -> [u8; 16] {
        let number = u128::from(self.ms) << 64 | u128::from(self.seq);
        number.to_be_bytes()
    }

    /// The ID that files have as these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_be_bytes(bytes);
        StreamId::new((number >> 64) as u64, number as u64)
    }

    /// How far this ID is from `base`, part by part, as blocks store it.
    #[inline]
    pub(super) fn deltas_from(self, base: StreamId) -> (i64, i64) {
        (
            self.ms.wrapping_sub(base.ms) as i64,
            self.seq.wrapping_sub(base.seq) as i64,
        )
    }

    /// The ID that far from this one.
    #[inline]
    pub(super) fn plus(self, ms_delta: i64, seq_delta: i64) -> StreamId {
        StreamId::new(
            self.ms.wrapping_add(ms_delta as u64),
            self.seq.wrapping_add(seq_delta as u64),
        )
    }
}

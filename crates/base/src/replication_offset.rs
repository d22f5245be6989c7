//! Positions in the stream of bytes that a primary sends to its replicas.

use std::fmt;

/// A position in a replication history: the number of bytes of its stream before that position.
///
/// An offset counts bytes, and a [`LogSequence`](crate::LogSequence) counts writes. Neither converts into the other.
/// The replication backlog records which offset covers which sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ReplicationOffset(i64);

impl ReplicationOffset {
    /// The start of a history.
    pub const ZERO: ReplicationOffset = ReplicationOffset(0);

    /// The greatest offset that another server or a file may state. It leaves room for more bytes than a server will
    /// ever replicate.
    const MAX_STATED: i64 = i64::MAX / 2;

    /// Creates the position behind this number of bytes.
    ///
    /// # Panics
    /// If the number is negative.
    pub const fn new(bytes: i64) -> ReplicationOffset {
        assert!(bytes >= 0, "a replication offset is not negative");
        ReplicationOffset(bytes)
    }

    /// Accepts an offset that another server or a file states. Returns `None` if it is negative, or so great that the
    /// stream behind it could overflow.
    pub const fn from_stated(bytes: i64) -> Option<ReplicationOffset> {
        if 0 <= bytes && bytes <= Self::MAX_STATED {
            Some(ReplicationOffset(bytes))
        } else {
            None
        }
    }

    /// Returns the position before the byte with this number. PSYNC counts the bytes of a history from 1. Returns
    /// `None` if no byte can have the number.
    pub const fn before_byte(number: i64) -> Option<ReplicationOffset> {
        match number.checked_sub(1) {
            Some(bytes) => Self::from_stated(bytes),
            None => None,
        }
    }

    /// Returns the number of bytes before this position.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Returns the number of the first byte behind this position, as PSYNC counts it.
    pub const fn next_byte(self) -> i64 {
        self.0 + 1
    }

    /// Returns the position behind `bytes` more bytes.
    ///
    /// # Panics
    /// If the offset overflows.
    pub const fn advanced_by(self, bytes: u64) -> ReplicationOffset {
        match self.0.checked_add_unsigned(bytes) {
            Some(sum) => ReplicationOffset(sum),
            None => panic!("the replication offset overflows"),
        }
    }

    /// Returns the number of bytes from `earlier` to this position; 0 if `earlier` is not before it.
    pub const fn bytes_since(self, earlier: ReplicationOffset) -> u64 {
        // The difference of two numbers that are not negative does not overflow.
        let bytes = self.0 - earlier.0;
        if bytes > 0 { bytes as u64 } else { 0 }
    }
}

impl fmt::Display for ReplicationOffset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the limits of offsets.

    use super::*;

    #[test]
    fn offsets_from_outside_are_limited() {
        for refused in [-1, i64::MIN, i64::MAX, i64::MAX / 2 + 1] {
            assert_eq!(ReplicationOffset::from_stated(refused), None, "{refused}");
        }
        for accepted in [0, 1, i64::MAX / 2] {
            let offset = ReplicationOffset::from_stated(accepted).expect("it is accepted");
            assert_eq!(offset.advanced_by(1).get(), accepted + 1);
        }
    }

    #[test]
    fn bytes_are_numbered_from_one() {
        assert_eq!(ReplicationOffset::before_byte(1), Some(ReplicationOffset::ZERO));
        assert_eq!(ReplicationOffset::new(41).next_byte(), 42);
        for refused in [0, -1, i64::MIN, i64::MAX] {
            assert_eq!(ReplicationOffset::before_byte(refused), None, "{refused}");
        }
    }

    #[test]
    fn distances_are_not_negative() {
        let (near, far) = (ReplicationOffset::new(5), ReplicationOffset::new(9));
        assert_eq!((far.bytes_since(near), near.bytes_since(far)), (4, 0));
    }
}

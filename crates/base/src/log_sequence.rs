//! Positions in the propagation log.

use std::fmt;

/// The position of a write in the propagation log: its number among all writes of the process, from 1 on. The value
/// before the first write is [`LogSequence::NONE`].
///
/// A sequence number counts writes, and a [`ReplicationOffset`](crate::ReplicationOffset) counts bytes. Neither
/// converts into the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LogSequence(u64);

impl LogSequence {
    /// No write. Every write is later.
    pub const NONE: LogSequence = LogSequence(0);

    /// Creates the sequence number of the write with this number, or [`LogSequence::NONE`] for 0.
    pub const fn new(number: u64) -> LogSequence {
        LogSequence(number)
    }

    /// Returns the number of the write; 0 if there is none.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sequence number of the next write.
    #[must_use]
    pub const fn next(self) -> LogSequence {
        LogSequence(self.0 + 1)
    }

    /// Returns `true` if there is no write.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for LogSequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

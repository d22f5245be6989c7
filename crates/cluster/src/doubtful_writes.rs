//! The writes whose replies are not sent yet although a replica may have taken over without them.
//!
//! ```text
//!   the bus is late, or ─▶ every write is doubtful ─▶ exclusive mode: only those made so far are
//!   says that this node                                ├ this node is a replica, or has lost a slot ─▶ they are lost
//!   is a replica now                                   └ it would have heard of a replacement ─▶ they are kept
//! ```
//!
//! A write is known by its position in the propagation log. Workers withhold the replies to doubtful writes, and close
//! the connections that wait for the replies to lost ones: the new primary may have such a write or not. Writes that
//! are made after the exclusive mode were admitted although commands on keys are refused, so their replies are sent.
//!
//! The fields change under the lock of the cluster state. Workers read them without it.

use weft_base::LogSequence;
use weft_os::atomic::{AtomicU64, Ordering};

/// What is known about a write whose reply is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// The reply may be sent.
    Kept,
    /// A replica may have taken over without it.
    Doubtful,
    /// Another node has taken over since it was made.
    Lost,
}

/// The doubtful and the lost writes of this node.
#[derive(Default)]
pub(crate) struct DoubtfulWrites {
    /// The last doubtful write: 0 if there is none, and `u64::MAX` while all are.
    last_doubtful: AtomicU64,
    /// The last lost write, or 0.
    last_lost: AtomicU64,
}

impl DoubtfulWrites {
    /// Makes all writes doubtful, also those of commands that still run.
    pub(crate) fn begin(&self) {
        self.last_doubtful.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns `true` if there may be doubtful writes.
    pub(crate) fn has_any(&self) -> bool {
        self.last_doubtful.load(Ordering::SeqCst) != 0
    }

    /// Returns what is known about a write.
    #[inline]
    pub(crate) fn fate_of(&self, write: LogSequence) -> WriteFate {
        // In this order: a write is lost before it stops being doubtful.
        let last_doubtful = self.last_doubtful.load(Ordering::SeqCst);
        if write.get() <= self.last_lost.load(Ordering::SeqCst) {
            WriteFate::Lost
        } else if write.get() <= last_doubtful {
            WriteFate::Doubtful
        } else {
            WriteFate::Kept
        }
    }

    /// Decides about the doubtful writes as far as possible. `last_sequence` is the last write in the log,
    /// `is_replaced` is `true` if another node has taken over from this one, and `is_certain` if none has unless that
    /// is set. Returns `true` if the fate of a write may have changed. The caller must hold exclusive mode.
    pub(crate) fn settle(&self, last_sequence: LogSequence, is_replaced: bool, is_certain: bool) -> bool {
        let before = self.last_doubtful.load(Ordering::SeqCst);
        let last = before.min(last_sequence.get());
        if is_replaced {
            self.last_lost.fetch_max(last, Ordering::SeqCst);
        }
        let after = match is_replaced || is_certain {
            true => 0,
            false => last,
        };
        self.last_doubtful.store(after, Ordering::SeqCst);
        after != before
    }
}

#[cfg(test)]
mod tests;

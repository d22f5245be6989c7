//! How much a run of a list may hold: `list-max-listpack-size`, and what follows from it.
//!
//! A negative size is a number of bytes, in five steps; a positive one is a number of elements, with a bound in bytes
//! for safety. Sizes count a run as the whole listpack that it is in files.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What sizes -1 to -5 stand for, bytes.
const STEPS_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The bound in bytes where the size is a number of elements.
const SAFETY_BYTES: usize = 8 << 10;
/// What an element is taken to need beside its own bytes.
const OVERHEAD_BYTES: usize = 8;

/// From how many bytes on an element stands alone (DEBUG QUICKLIST-PACKED-THRESHOLD); 0 leaves it to the limits.
static ALONE_FROM_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets from how many bytes on an element stands alone, in all lists; 0 leaves it to the limits.
pub fn set_alone_from(bytes: usize) {
    ALONE_FROM_BYTES.store(bytes, Ordering::Relaxed);
}

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    bytes: usize,
    count: usize,
}

impl Limits {
    /// The limits that `list-max-listpack-size` sets.
    #[inline]
    pub fn new(size: i64) -> Self {
        if size < 0 {
            let step = (size.unsigned_abs() as usize - 1).min(STEPS_BYTES.len() - 1);
            Limits {
                bytes: STEPS_BYTES[step],
                count: usize::MAX,
            }
        } else {
            Limits {
                bytes: usize::MAX,
                count: (size as usize).max(1),
            }
        }
    }

    /// Whether a run would be too large with so many bytes and elements.
    #[inline]
    pub fn exceeded(self, bytes: usize, count: usize) -> bool {
        if self.bytes == usize::MAX {
            bytes > SAFETY_BYTES || count > self.count
        } else {
            bytes > self.bytes
        }
    }

    /// Whether a run would be too large with one more element of `element_bytes`.
    #[inline]
    pub(super) fn exceeded_by(self, bytes: usize, count: usize, element_bytes: usize) -> bool {
        self.exceeded(bytes + element_bytes + OVERHEAD_BYTES, count + 1)
    }

    /// Whether an element stands alone.
    #[inline]
    pub(super) fn stands_alone(self, element_bytes: usize) -> bool {
        match ALONE_FROM_BYTES.load(Ordering::Relaxed) {
            0 if self.bytes == usize::MAX => element_bytes > SAFETY_BYTES,
            0 => element_bytes > self.bytes,
            from => element_bytes >= from,
        }
    }

    /// Whether a run is small enough for a list to be called a listpack again; `shrinking` asks for half as much, so
    /// that a list does not change its name at every step.
    pub(super) fn allow_listpack(self, bytes: usize, count: usize, shrinking: bool) -> bool {
        let share = if shrinking { 2 } else { 1 };
        bytes <= self.bytes / share && count <= self.count / share
    }
}

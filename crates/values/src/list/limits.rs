//! The limits of a run of a list: `list-max-listpack-size`, and what follows from it.
//!
//! A negative size selects one of five numbers of bytes. A positive size is a number of elements, combined with a
//! safety limit in bytes. Sizes refer to the whole listpack that a run is in files.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The numbers of bytes that the sizes -1 to -5 stand for.
const STEPS_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The limit in bytes if the size is a number of elements.
const SAFETY_BYTES: usize = 8 << 10;
/// The assumed overhead of an element in bytes.
const OVERHEAD_BYTES: usize = 8;

/// The size in bytes from which an element gets a plain node (DEBUG QUICKLIST-PACKED-THRESHOLD). 0 means that the
/// limits decide.
static PLAIN_THRESHOLD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets the size in bytes from which an element gets a plain node, for all lists. 0 means that the limits decide.
pub fn set_plain_threshold(bytes: usize) {
    PLAIN_THRESHOLD_BYTES.store(bytes, Ordering::Relaxed);
}

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    bytes: usize,
    count: usize,
}

impl ListLimits {
    /// Returns the limits that a value of `list-max-listpack-size` stands for.
    #[inline]
    pub fn new(size: i64) -> Self {
        if size < 0 {
            let step = (size.unsigned_abs() as usize - 1).min(STEPS_BYTES.len() - 1);
            ListLimits {
                bytes: STEPS_BYTES[step],
                count: usize::MAX,
            }
        } else {
            ListLimits {
                bytes: usize::MAX,
                count: (size as usize).max(1),
            }
        }
    }

    /// Returns `true` if a run of this number of bytes and elements would be too large.
    #[inline]
    pub fn is_exceeded(self, bytes: usize, count: usize) -> bool {
        if self.bytes == usize::MAX {
            bytes > SAFETY_BYTES || count > self.count
        } else {
            bytes > self.bytes
        }
    }

    /// Returns `true` if a run would be too large with one more element of `element_bytes` bytes.
    #[inline]
    pub(super) fn is_exceeded_with(self, bytes: usize, count: usize, element_bytes: usize) -> bool {
        self.is_exceeded(bytes + element_bytes + OVERHEAD_BYTES, count + 1)
    }

    /// Returns `true` if an element gets a plain node of its own.
    #[inline]
    pub(super) fn needs_plain_node(self, element_bytes: usize) -> bool {
        match PLAIN_THRESHOLD_BYTES.load(Ordering::Relaxed) {
            0 if self.bytes == usize::MAX => element_bytes > SAFETY_BYTES,
            0 => element_bytes > self.bytes,
            from => element_bytes >= from,
        }
    }

    /// Returns `true` if a run is small enough for a quicklist to become a listpack. With `shrinking`, the limits are
    /// halved, so that a list does not change its encoding at every step.
    pub(super) fn allows_listpack(self, bytes: usize, count: usize, shrinking: bool) -> bool {
        let share = if shrinking { 2 } else { 1 };
        bytes <= self.bytes / share && count <= self.count / share
    }
}

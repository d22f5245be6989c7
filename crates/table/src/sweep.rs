//! The progress of a sweep of the expiry index.

use crate::expiry_unit::NEVER;

/// The position of a sweep over a directory.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    /// The first placement that has not been examined yet.
    pub(crate) reached: u32,
    /// A lower bound of the bounds of the examined segments.
    pub(crate) earliest: u32,
    /// The time for which the sweep was started.
    pub(crate) began_ms: u64,
}

impl Sweep {
    pub(crate) const fn new() -> Self {
        Self {
            reached: 0,
            earliest: NEVER,
            began_ms: 0,
        }
    }
}

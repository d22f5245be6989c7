//! The progress of a sweep of the expiry index.

use crate::expiry_unit::NEVER;

/// How far a sweep over a directory has come.
#[derive(Clone, Copy)]
pub(crate) struct Sweep {
    /// The first placement that is still to be looked at.
    pub(crate) reached: u32,
    /// A lower bound of the segments behind.
    pub(crate) earliest: u32,
    /// The time for which the sweep began.
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

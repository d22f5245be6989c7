//! A claim that exactly one of several rivals wins.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::loom::AtomicBool;

#[cfg(test)]
mod tests;

/// Decided once by one compare-and-swap: of all callers of [`try_claim`](Self::try_claim) exactly one hears `true`.
///
/// A blocked client is served, timed out or disconnected by whoever claims it.
/// What the winner wrote before it claimed is visible to those who then fail to.
pub struct Claim(AtomicBool);

impl Claim {
    /// Nobody has claimed it.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether the caller is the one. Never `true` twice.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        self.0.compare_exchange(false, true, AcqRel, Acquire).is_ok()
    }

    /// Whether somebody has claimed it already; a `false` may be out of date at once.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.0.load(Acquire)
    }
}

impl Default for Claim {
    fn default() -> Self {
        Self::new()
    }
}

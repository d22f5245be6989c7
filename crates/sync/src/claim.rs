//! A claim that exactly one of several threads wins.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::loom::AtomicBool;

#[cfg(test)]
mod tests;

/// A claim, decided once by one compare-and-swap: of all callers of [`try_claim`](Self::try_claim) exactly one gets
/// `true`.
///
/// A blocked client is served, timed out or disconnected by the thread that claims it. The writes of the winner before
/// its claim are visible to the callers that fail afterwards.
pub struct Claim(AtomicBool);

impl Claim {
    /// Returns a claim that no thread has won yet.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Tries to win the claim. Returns `true` to exactly one caller.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        self.0.compare_exchange(false, true, AcqRel, Acquire).is_ok()
    }

    /// Returns `true` if the claim was won already; a `false` may be outdated at once.
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

//! The random numbers of `math.random`. They are the same on every machine, since scripts may rely on this after
//! `math.randomseed`.
//!
//! The generator is POSIX's `drand48`: 48 bits, linear congruential, of which the upper 31 are drawn. All threads share
//! one sequence, so no two scripts draw the same number of it. A script that calls `math.randomseed` continues with a
//! private sequence, which no other script advances. The private sequence becomes the shared one when the script ends.

use std::cell::Cell;
use std::sync::Arc;

use weft_os::atomic::{AtomicU64, Ordering};

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;
/// The initial state of the unseeded sequence.
const UNSEEDED: u64 = 0x1234_ABCD_330E;
/// The exclusive upper bound of the drawn integers.
const DRAWN_BELOW: u64 = i32::MAX as u64;

/// The sequence that all threads share.
pub struct SharedSequence(AtomicU64);

impl Default for SharedSequence {
    fn default() -> Self {
        SharedSequence(AtomicU64::new(UNSEEDED))
    }
}

/// A thread's random number generator.
pub struct Random {
    shared: Arc<SharedSequence>,
    /// The state of the private sequence, once the running script has seeded it.
    seeded: Cell<Option<u64>>,
}

const fn next_state(state: u64) -> u64 {
    state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK
}

impl Random {
    /// Creates a generator that draws from `shared`.
    pub fn new(shared: Arc<SharedSequence>) -> Self {
        Random {
            shared,
            seeded: Cell::new(None),
        }
    }

    /// Starts a private sequence from a seed.
    pub fn seed(&self, seed: i32) {
        self.seeded.set(Some(u64::from(seed as u32) << 16 | 0x330E));
    }

    /// Draws a number from 0 (inclusive) to 1 (exclusive).
    pub fn draw(&self) -> f64 {
        let next = match self.seeded.get() {
            Some(state) => {
                self.seeded.set(Some(next_state(state)));
                next_state(state)
            }
            None => {
                let step = |state| Some(next_state(state));
                let before = self.shared.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
                next_state(before.unwrap_or_default())
            }
        };
        ((next >> 17) % DRAWN_BELOW) as f64 / DRAWN_BELOW as f64
    }

    /// Ends the script's private sequence. It becomes the shared sequence, unless `is_restarted` is set because the
    /// script is restarted.
    pub fn end_script(&self, is_restarted: bool) {
        if let Some(state) = self.seeded.take()
            && !is_restarted
        {
            self.shared.0.store(state, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;

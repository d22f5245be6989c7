//! The random numbers of `math.random`: the same on every machine, as scripts may count on after `math.randomseed`.
//!
//! The generator is that of `drand48` in POSIX: 48 bits, linear congruential, of which the upper 31 are drawn. There is
//! one sequence for all threads, so that no two scripts draw the same number of it. A script that seeds goes on with a
//! sequence of its own, which nobody else disturbs; it becomes that of all when the script ends.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;
/// The state in which the sequence begins that nobody has seeded.
const UNSEEDED: u64 = 0x1234_ABCD_330E;
/// What is drawn is below this.
const DRAWN_BELOW: u64 = i32::MAX as u64;

/// The sequence of all threads.
pub struct Sequence(AtomicU64);

impl Default for Sequence {
    fn default() -> Self {
        Sequence(AtomicU64::new(UNSEEDED))
    }
}

/// A thread's way to random numbers.
pub struct Random {
    shared: Arc<Sequence>,
    /// The state since the script under way has seeded.
    seeded: Cell<Option<u64>>,
}

const fn after(state: u64) -> u64 {
    state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK
}

impl Random {
    /// Draws from a sequence.
    pub fn new(shared: Arc<Sequence>) -> Self {
        Random {
            shared,
            seeded: Cell::new(None),
        }
    }

    /// Begins the sequence of a seed.
    pub fn seed(&self, seed: i32) {
        self.seeded.set(Some(u64::from(seed as u32) << 16 | 0x330E));
    }

    /// A number from 0 to below 1.
    pub fn draw(&self) -> f64 {
        let next = match self.seeded.get() {
            Some(state) => {
                self.seeded.set(Some(after(state)));
                after(state)
            }
            None => {
                let step = |state| Some(after(state));
                let before = self.shared.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
                after(before.unwrap_or_default())
            }
        };
        ((next >> 17) % DRAWN_BELOW) as f64 / DRAWN_BELOW as f64
    }

    /// A script has ended, or begins anew if `forget`.
    pub fn end(&self, forget: bool) {
        if let Some(state) = self.seeded.take()
            && !forget
        {
            self.shared.0.store(state, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;

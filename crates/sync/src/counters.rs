//! Striped counters: each thread adds in its own cache lines, and a reader sums the stripes.

use std::sync::atomic::Ordering::Relaxed;
use weft_os::atomic::AtomicI64;

#[cfg(all(test, not(loom)))]
mod tests;

/// Two cache lines, because the adjacent-line prefetcher fetches lines in pairs.
const COUNTERS_PER_LINE: usize = 16;

#[repr(align(128))]
struct Line([AtomicI64; COUNTERS_PER_LINE]);

impl Line {
    fn zeroed() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(0)))
    }
}

/// `counters` signed sums, each spread over one stripe per thread.
///
/// All operations are relaxed: a sum that is read while other threads add lies between the values before and after, for
/// each stripe. Sums wrap around, like the atomics.
pub struct StripedCounters {
    /// `stripes` rows of `lines_per_stripe` lines.
    lines: Box<[Line]>,
    /// The sum of each counter's stripes at its last reset. Stripes are never set back, so a reset cannot be undone by
    /// an addition under way.
    baselines: Box<[AtomicI64]>,
    lines_per_stripe: usize,
    counters: usize,
}

impl StripedCounters {
    /// Returns counters that are all zero. Both sizes must be above zero.
    #[must_use]
    pub fn new(stripes: usize, counters_per_stripe: usize) -> Self {
        assert!(stripes > 0 && counters_per_stripe > 0, "striped counters of size zero");
        let lines_per_stripe = counters_per_stripe.div_ceil(COUNTERS_PER_LINE);
        Self {
            lines: (0..stripes * lines_per_stripe).map(|_| Line::zeroed()).collect(),
            baselines: (0..counters_per_stripe).map(|_| AtomicI64::new(0)).collect(),
            lines_per_stripe,
            counters: counters_per_stripe,
        }
    }

    /// Returns the number of stripes.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.lines.len() / self.lines_per_stripe
    }

    /// Adds to a counter. Any thread may use any stripe; it is fast if each thread uses its own.
    #[inline]
    pub fn add(&self, stripe: usize, index: usize, delta: i64) {
        self.at(stripe, index).fetch_add(delta, Relaxed);
    }

    /// Adds without a locked instruction. Correct only on a stripe to which no other thread adds at the same time
    /// (otherwise additions get lost); readers and resets may run in parallel.
    #[inline]
    pub fn add_as_only_writer(&self, stripe: usize, index: usize, delta: i64) {
        let counter = self.at(stripe, index);
        counter.store(counter.load(Relaxed).wrapping_add(delta), Relaxed);
    }

    /// Returns the counter's value since its last reset.
    #[must_use]
    pub fn sum(&self, index: usize) -> i64 {
        self.sum_of_stripes(index)
            .wrapping_sub(self.baselines[index].load(Relaxed))
    }

    /// Returns the sum of several counters since their last resets. Stripes are read one after the other, in the order
    /// of memory.
    #[must_use]
    pub fn sum_of(&self, indexes: impl Iterator<Item = usize> + Clone) -> i64 {
        let baselines = indexes
            .clone()
            .fold(0i64, |sum, index| sum.wrapping_add(self.baselines[index].load(Relaxed)));
        (0..self.stripes())
            .flat_map(|stripe| indexes.clone().map(move |index| (stripe, index)))
            .fold(0i64, |sum, (stripe, index)| {
                sum.wrapping_add(self.at(stripe, index).load(Relaxed))
            })
            .wrapping_sub(baselines)
    }

    /// Returns the sum that one stripe has added to the counter since its creation, regardless of resets.
    #[must_use]
    pub fn of_stripe(&self, stripe: usize, index: usize) -> i64 {
        self.at(stripe, index).load(Relaxed)
    }

    /// Starts the counter over at zero.
    pub fn reset(&self, index: usize) {
        self.baselines[index].store(self.sum_of_stripes(index), Relaxed);
    }

    fn sum_of_stripes(&self, index: usize) -> i64 {
        (0..self.stripes()).fold(0, |sum, stripe| sum.wrapping_add(self.at(stripe, index).load(Relaxed)))
    }

    #[inline]
    fn at(&self, stripe: usize, index: usize) -> &AtomicI64 {
        assert!(index < self.counters, "counter {index} of {}", self.counters);
        let line = stripe * self.lines_per_stripe + index / COUNTERS_PER_LINE;
        &self.lines[line].0[index % COUNTERS_PER_LINE]
    }
}

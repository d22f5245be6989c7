//! The random decisions of the scheduler in a run.

use std::collections::HashMap;
use std::panic::Location;

use fastrand::Rng;

/// The random decisions of one run. Each seed draws its own habits first, so that some seeds switch at nearly every
/// step, and others run a thread for long.
pub struct Strategy {
    random: Rng,
    /// The mean number of steps between two decisions.
    mean_quantum: u32,
    /// One in so many decisions stalls the chosen thread, as an operating system that runs something else does. Zero
    /// means never.
    stall_interval: u32,
    /// The maximum length of a stall, in nanoseconds.
    max_stall_ns: u64,
    /// The places in the source at which threads are stalled often.
    stall_places: Option<StallPlaces>,
    /// The number of steps at each of these places.
    place_visits: HashMap<u32, u32>,
    /// One in so many threads that wake another one is stalled right after that. Zero means none.
    preemption_interval: u32,
    /// One in so many threads that read the wall clock is stalled right after that. Zero means none.
    clock_interval: u32,
    /// The thread that is chosen rarely, as the index at its creation.
    slow_thread: Option<usize>,
    /// The priorities of the threads, if the runnable thread of the highest one is chosen (Burckhardt and others, "A
    /// randomized scheduler with probabilistic guarantees of finding bugs", 2010).
    priorities: Option<Priorities>,
    /// The longest time of a sync of a file, in nanoseconds.
    max_sync_ns: u64,
    /// The simulated time of one step, in nanoseconds.
    pub step_ns: u64,
}

/// The mean number of steps after which priorities change at the latest. Of a dozen threads that can always run, as
/// those of endless scripts can, one has the highest priority at a time. Each needs its turn within the steps after
/// which a bound may count as exceeded.
const MAX_STEPS_PER_PRIORITY: u32 = 50_000;

/// Random priorities of all threads, which change from time to time: a thread that waits actively holds up no other one
/// for ever.
struct Priorities {
    /// The mean number of decisions between two changes.
    change_interval: u32,
    salt: u64,
}

impl Priorities {
    fn of_thread(&self, thread: usize) -> u64 {
        Rng::with_seed(self.salt ^ thread as u64).u64(..)
    }
}

/// A few places in the source, drawn at random. A window between two steps that is passed rarely is hardly ever hit by
/// stalls that are drawn per step: it is, as soon as its place is among these.
#[derive(Clone, Copy, Debug)]
pub struct StallPlaces {
    salt: u32,
    /// One in so many places is among these.
    interval: u32,
    /// `true` if a place is told apart by the step before it, too: a step in a function that many call.
    by_two_steps: bool,
}

/// One in so many of the first steps at such a place stalls its thread. The more often the place is visited, the rarer
/// that becomes: otherwise a run would last for minutes of simulated time if a place is visited by every request.
const FIRST_STEPS_PER_STALL: u32 = 3;
/// After so many steps at a place, its stalls are half as frequent as at first.
const STEPS_PER_HALVING: u32 = 32;
/// The mean time that a step adds at a place that is visited all the time, in nanoseconds.
const STALL_NS_PER_STEP: u64 = 15_000;

/// The longest stall of a thread that has woken another one, in nanoseconds.
const MAX_PREEMPTION_NS: u64 = 2_000_000;

impl StallPlaces {
    /// Returns the number of a place. It depends on the source alone, so that a seed repeats a run.
    #[inline]
    pub fn number_of(place: &Location<'_>) -> u32 {
        (place.file().len() as u32)
            .wrapping_mul(31)
            .wrapping_add(place.line())
            .wrapping_mul(127)
            .wrapping_add(place.column())
    }

    /// Returns `true` if a step is at one of these places. `latest` is the place of the thread's step before.
    #[inline]
    pub fn contain(&self, latest: u32, place: u32) -> bool {
        let latest = if self.by_two_steps { latest } else { 0 };
        let mixed = (place ^ self.salt)
            .wrapping_mul(0x9e37_79b1)
            .wrapping_add(latest.wrapping_mul(0x85eb_ca77));
        (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae3d) < u32::MAX / self.interval
    }
}

impl Strategy {
    /// Draws the habits of a run.
    pub fn new(seed: u64) -> Strategy {
        let mut random = Rng::with_seed(seed);
        let mean_quantum = [2, 8, 30, 100, 400][random.usize(..5)];
        let stall_interval = [0, 40, 200, 1000][random.usize(..4)];
        let max_stall_ns = [200_000, 2_000_000, 20_000_000][random.usize(..3)];
        let slow_thread = random.bool().then(|| random.usize(..16));
        let step_ns = [20, 100, 400][random.usize(..3)];
        let priorities = (random.u32(..3) == 0).then(|| Priorities {
            change_interval: [50, 300, 2000][random.usize(..3)].min(MAX_STEPS_PER_PRIORITY / mean_quantum),
            salt: random.u64(..),
        });
        let stall_places = random.bool().then(|| StallPlaces {
            salt: random.u32(..),
            interval: [6, 20, 80][random.usize(..3)],
            by_two_steps: random.bool(),
        });
        let preemption_interval = [0, 0, 0, 3, 3, 20][random.usize(..6)];
        let clock_interval = [0, 0, 0, 4, 16, 64][random.usize(..6)];
        let max_sync_ns = [0, 100_000, 2_000_000, 10_000_000][random.usize(..4)];
        Strategy {
            random,
            preemption_interval,
            clock_interval,
            stall_places,
            place_visits: HashMap::new(),
            priorities,
            mean_quantum,
            stall_interval,
            max_stall_ns,
            slow_thread,
            max_sync_ns,
            step_ns,
        }
    }

    /// Returns the number of steps until the next decision.
    pub fn next_quantum(&mut self) -> u32 {
        self.random.u32(1..=2 * self.mean_quantum)
    }

    /// Chooses one of `runnable`, which is not empty.
    pub fn choose(&mut self, runnable: &[usize]) -> usize {
        if let Some(priorities) = &mut self.priorities {
            if self.random.u32(..priorities.change_interval) == 0 {
                priorities.salt = self.random.u64(..);
            }
            let highest = runnable
                .iter()
                .copied()
                .max_by_key(|thread| priorities.of_thread(*thread));
            return highest.unwrap_or(runnable[0]);
        }
        let first = runnable[self.random.usize(..runnable.len())];
        // A slow thread needs luck twice; it is never shut out.
        if self.slow_thread == Some(first) && self.random.u32(..8) > 0 {
            return runnable[self.random.usize(..runnable.len())];
        }
        first
    }

    /// Returns the length of a stall, in nanoseconds, if the next thread is to be stalled.
    pub fn next_stall_ns(&mut self) -> Option<u64> {
        if self.stall_interval == 0 || self.random.u32(..self.stall_interval) > 0 {
            return None;
        }
        Some(self.random.u64(..self.max_stall_ns))
    }

    /// Returns `true` if threads that wake another one may be stalled right after that.
    pub fn has_preemptions(&self) -> bool {
        self.preemption_interval > 0
    }

    /// Returns the length of a stall, in nanoseconds, if a thread that has woken another one is to be stalled.
    pub fn next_preemption_ns(&mut self) -> Option<u64> {
        if self.random.u32(..self.preemption_interval.max(1)) > 0 {
            return None;
        }
        Some(self.random.u64(..self.max_stall_ns.min(MAX_PREEMPTION_NS)))
    }

    /// Returns `true` if threads that read the wall clock may be stalled right after that.
    pub fn has_stalls_after_clock(&self) -> bool {
        self.clock_interval > 0
    }

    /// Returns the length of a stall, in nanoseconds, if a thread that has read the wall clock is to be stalled.
    pub fn next_stall_after_clock_ns(&mut self) -> Option<u64> {
        if self.random.u32(..self.clock_interval.max(1)) > 0 {
            return None;
        }
        Some(self.random.u64(..self.max_stall_ns))
    }

    /// Returns the length of a stall at one of the places that stall threads, in nanoseconds, if the thread is to be
    /// stalled.
    pub fn next_stall_at_place_ns(&mut self, place: u32) -> Option<u64> {
        let visits = self.place_visits.entry(place).or_default();
        *visits += 1;
        let rarest = (self.max_stall_ns / 2 / STALL_NS_PER_STEP) as u32;
        let steps_per_stall = (FIRST_STEPS_PER_STALL * (1 + *visits / STEPS_PER_HALVING)).min(rarest.max(16));
        (self.random.u32(..steps_per_stall) == 0).then(|| self.random.u64(..self.max_stall_ns))
    }

    /// Returns the time of a sync of a file, in nanoseconds.
    pub fn next_sync_ns(&mut self) -> u64 {
        self.random.u64(..=self.max_sync_ns)
    }

    /// Returns the places that stall threads, if the run has some.
    pub fn stall_places(&self) -> Option<StallPlaces> {
        self.stall_places
    }

    /// Returns a seed for the random numbers of a new thread.
    pub fn thread_seed(&mut self) -> u64 {
        self.random.u64(..)
    }

    /// Returns an index below `count`, which is not zero.
    pub fn index(&mut self, count: usize) -> usize {
        self.random.usize(..count)
    }
}

#[cfg(test)]
mod tests;

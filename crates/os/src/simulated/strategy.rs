//! The random decisions of the scheduler in a run.

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
    /// The thread that is chosen rarely, as the index at its creation.
    slow_thread: Option<usize>,
    /// The priorities of the threads, if the runnable thread of the highest one is chosen (Burckhardt and others, "A
    /// randomized scheduler with probabilistic guarantees of finding bugs", 2010).
    priorities: Option<Priorities>,
    /// The simulated time of one step, in nanoseconds.
    pub step_ns: u64,
}

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
            change_interval: [50, 300, 2000][random.usize(..3)],
            salt: random.u64(..),
        });
        Strategy {
            random,
            priorities,
            mean_quantum,
            stall_interval,
            max_stall_ns,
            slow_thread,
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

    /// Returns a seed for the random numbers of a new thread.
    pub fn thread_seed(&mut self) -> u64 {
        self.random.u64(..)
    }

    /// Returns an index below `count`, which is not zero.
    pub fn index(&mut self, count: usize) -> usize {
        self.random.usize(..count)
    }
}

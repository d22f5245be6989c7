//! The simulated build: see `scheduler` for how it runs threads.

pub mod atomic;
pub mod descriptor;
pub mod disk;
pub mod mpsc;
pub mod net;
pub mod scheduler;
mod strategy;
pub mod sync;
pub mod thread;
pub mod time;

/// Hints to the processor.
pub mod hint {
    /// Lets another thread run: the caller waits for one.
    pub fn spin_loop() {
        super::scheduler::yield_now();
    }
}

#[cfg(test)]
mod tests;

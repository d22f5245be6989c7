//! `weft-os`: threads, locks, atomics and clocks, from the operating system or from a simulation.
//!
//! Every thread of Weft takes what it shares with other threads, and the time, from here:
//!
//! | module | holds |
//! |---|---|
//! | [`atomic`] | atomic integers |
//! | [`sync`] | locks, condition variables and channels |
//! | [`thread`] | threads, sleeping and parking |
//! | [`time`] | clocks |
//! | [`descriptor`] | waiting for sockets |
//! | [`net`] | connections over loopback addresses |
//! | [`disk`] | syncing files |
//!
//! In an ordinary build all of these are re-exports of the standard library and of `parking_lot`, and cost nothing. A
//! build with the feature `simulated` replaces them by the `simulation`: only one thread runs at a time, every
//! operation on a shared object is a point at which a seeded scheduler may run another thread instead, the clocks show
//! simulated time, connections between servers are Unix sockets of the process, and what no sync has covered is lost
//! with the power. The same seed then gives the same run.
//!
//! A lock of the standard library may still be used where no thread reaches a scheduling point while it holds the lock.
#![forbid(unsafe_code)]

/// The event that a thread waits for at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Input, or the end of the stream.
    Input,
    /// Space for output.
    Output,
}

#[cfg(not(feature = "simulated"))]
mod real;
#[cfg(not(feature = "simulated"))]
pub use real::*;

#[cfg(feature = "simulated")]
mod simulated;
#[cfg(feature = "simulated")]
pub use simulated::*;

/// Atomic numbers of statistics. Nothing but figures depends on their order, and INFO reads thousands of them. So a
/// simulation stops no thread there.
pub mod statistics {
    pub use std::sync::atomic::AtomicU64;

    /// Reads numbers that are also used elsewhere, as if that were one step. `read` must not wait for anything.
    #[inline]
    pub fn read_in_one_step<T>(read: impl FnOnce() -> T) -> T {
        #[cfg(feature = "simulated")]
        return crate::simulated::scheduler::without_switches(read);
        #[cfg(not(feature = "simulated"))]
        read()
    }
}

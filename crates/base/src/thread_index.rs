//! Indexes of the threads that access the keyspace.

use std::fmt;

/// The index of a worker or of another thread that accesses the keyspace. No two living threads share one. The workers
/// have the first indexes, so the index of a worker is also its place in the list of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ThreadIndex(usize);

impl ThreadIndex {
    /// The first worker. Every server has one.
    pub const FIRST: ThreadIndex = ThreadIndex(0);

    /// Creates the index with this number.
    pub const fn new(index: usize) -> ThreadIndex {
        ThreadIndex(index)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for ThreadIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

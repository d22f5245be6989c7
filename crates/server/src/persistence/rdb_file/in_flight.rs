//! The bytes of a data file that are in flight during a load: read, and not loaded completely.

use weft_os::sync::{Condvar, Mutex};

/// The minimum limit of the bytes in flight.
const MIN_LIMIT_BYTES: usize = 4 * 1024 * 1024;
/// The limit may also be this part of what was read before, so that large values are loaded in parallel, too.
const LIMIT_PART: u64 = 32;

/// The number of bytes in flight. Only the reader of the file waits for it.
#[derive(Default)]
pub struct InFlightBytes {
    bytes: Mutex<usize>,
    released: Condvar,
}

/// Bytes in flight; dropping it ends their flight.
pub struct InFlightShare<'b> {
    all: &'b InFlightBytes,
    bytes: usize,
}

impl InFlightBytes {
    /// Adds bytes.
    pub fn add(&self, bytes: usize) -> InFlightShare<'_> {
        *self.bytes.lock() += bytes;
        InFlightShare { all: self, bytes }
    }

    /// Waits until so few bytes are in flight that the reader may continue at `offset` in the file. So the memory in
    /// flight is bounded by this limit and one batch, which is longer than the limit only if it is a single record.
    pub fn wait_for_reader(&self, offset: u64) {
        self.wait_until_at_most(MIN_LIMIT_BYTES.max((offset / LIMIT_PART) as usize));
    }

    /// Waits until nothing is in flight.
    pub fn wait_until_empty(&self) {
        self.wait_until_at_most(0);
    }

    fn wait_until_at_most(&self, limit: usize) {
        let mut bytes = self.bytes.lock();
        while *bytes > limit {
            self.released.wait(&mut bytes);
        }
    }
}

impl Drop for InFlightShare<'_> {
    fn drop(&mut self) {
        *self.all.bytes.lock() -= self.bytes;
        self.all.released.notify_one();
    }
}

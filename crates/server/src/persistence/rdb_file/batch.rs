//! Batches of records that the reader of an RDB file has split and not decoded, and the memory that they may take.

use weft_base::DbIndex;
use weft_os::sync::{Condvar, Mutex};

/// The minimum bytes of batches that may be in flight: read, and not inserted completely.
const MIN_IN_FLIGHT_BYTES: usize = 4 * 1024 * 1024;
/// The bytes in flight may also be this part of what was read before, so that large values are decoded in parallel.
const IN_FLIGHT_PART: u64 = 32;
/// The maximum capacity of a window that is used again, in bytes.
const MAX_SPARE_BYTES: usize = 1024 * 1024;
/// The maximum number of windows that are kept for use.
const MAX_SPARES: usize = 16;

/// The attributes that precede a key in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyAttributes {
    /// The expiry in milliseconds since the Unix epoch.
    pub expire_at_ms: Option<i64>,
    /// The idle time in seconds.
    pub idle_s: Option<u64>,
    /// The frequency of use.
    pub frequency: Option<u8>,
}

/// A key of the file that is not decoded.
#[derive(Debug)]
pub(super) struct RawKey {
    /// The type of the value.
    pub kind: u8,
    /// The database.
    pub db: DbIndex,
    /// The attributes.
    pub attributes: KeyAttributes,
    /// The hash of the name.
    pub hash: u64,
    /// The start of the encoded name in the batch.
    pub name_start: usize,
    /// The start of the encoded value in the batch, where the name ends.
    pub value_start: usize,
    /// The end of the record in the batch.
    pub end: usize,
}

/// The bytes of records. Dropping it returns their memory to the budget.
pub(super) struct Batch<'b> {
    bytes: Vec<u8>,
    /// The offset of the first byte in the file.
    offset: u64,
    /// What counts as in flight.
    weight: usize,
    budget: &'b BatchBudget,
}

impl Batch<'_> {
    /// The encoded name of a key.
    pub fn name(&self, key: &RawKey) -> &[u8] {
        &self.bytes[key.name_start..key.value_start]
    }

    /// The encoded value of a key, without its type.
    pub fn value(&self, key: &RawKey) -> &[u8] {
        &self.bytes[key.value_start..key.end]
    }

    /// The offset in the file at which the record of a key ends.
    pub fn end_offset(&self, key: &RawKey) -> u64 {
        self.offset + key.end as u64
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.budget.release(self.weight, std::mem::take(&mut self.bytes));
    }
}

/// The memory of the batches in flight. Only the reader of the file waits for it.
#[derive(Default)]
pub(super) struct BatchBudget {
    state: Mutex<BudgetState>,
    released: Condvar,
}

#[derive(Default)]
struct BudgetState {
    in_flight_bytes: usize,
    /// Windows for further use.
    spares: Vec<Vec<u8>>,
}

impl BatchBudget {
    /// Creates a batch that starts at `offset` in the file and has `keys` keys.
    pub fn create_batch(&self, bytes: Vec<u8>, offset: u64, keys: usize) -> Batch<'_> {
        let weight = bytes.len() + keys * size_of::<RawKey>();
        self.state.lock().in_flight_bytes += weight;
        Batch {
            bytes,
            offset,
            weight,
            budget: self,
        }
    }

    /// Waits until so few bytes are in flight that the reader may continue at `offset` in the file. So the memory in
    /// flight is bounded by this limit and one batch, which is longer than the limit only if it is a single key.
    pub fn wait(&self, offset: u64) {
        let limit = MIN_IN_FLIGHT_BYTES.max((offset / IN_FLIGHT_PART) as usize);
        let mut state = self.state.lock();
        while state.in_flight_bytes > limit {
            self.released.wait(&mut state);
        }
    }

    /// Returns memory for a window.
    pub fn spare(&self) -> Vec<u8> {
        self.state.lock().spares.pop().unwrap_or_default()
    }

    fn release(&self, weight: usize, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.in_flight_bytes -= weight;
        if bytes.capacity() <= MAX_SPARE_BYTES && state.spares.len() < MAX_SPARES {
            state.spares.push(bytes);
        }
        self.released.notify_one();
    }
}

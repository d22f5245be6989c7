//! Batches of records that the reader of an RDB file has split and not decoded, and the memory that they may take.

use weft_base::DbIndex;
use weft_os::sync::Mutex;

use super::in_flight::{InFlightBytes, InFlightShare};

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
    budget: &'b BatchBudget,
    _in_flight: InFlightShare<'b>,
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
        self.budget.keep_spare(std::mem::take(&mut self.bytes));
    }
}

/// The memory of the batches in flight.
#[derive(Default)]
pub(super) struct BatchBudget {
    in_flight: InFlightBytes,
    /// Windows for further use.
    spares: Mutex<Vec<Vec<u8>>>,
}

impl BatchBudget {
    /// Creates a batch that starts at `offset` in the file and has `keys` keys.
    pub fn create_batch(&self, bytes: Vec<u8>, offset: u64, keys: usize) -> Batch<'_> {
        let weight = bytes.len() + keys * size_of::<RawKey>();
        Batch {
            bytes,
            offset,
            budget: self,
            _in_flight: self.in_flight.add(weight),
        }
    }

    /// Waits until the reader may continue at `offset` in the file.
    pub fn wait(&self, offset: u64) {
        self.in_flight.wait_for_reader(offset);
    }

    /// Returns memory for a window.
    pub fn spare(&self) -> Vec<u8> {
        self.spares.lock().pop().unwrap_or_default()
    }

    fn keep_spare(&self, bytes: Vec<u8>) {
        let mut spares = self.spares.lock();
        if bytes.capacity() <= MAX_SPARE_BYTES && spares.len() < MAX_SPARES {
            spares.push(bytes);
        }
    }
}

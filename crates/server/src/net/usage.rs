//! The memory of all clients, and an index of the largest clients, for `maxmemory-clients`.
//!
//! Each worker counts its own clients in its own row: their bytes, and the number of its clients in each *bucket*. A
//! bucket holds clients of about the same size; each bucket covers twice the size of the one before. A reader adds up
//! the rows.

use weft_base::ThreadIndex;
use weft_sync::StripedCounters;

/// The binary digits of the client sizes of the first and of the last bucket. Smaller clients are in the first bucket,
/// larger ones in the last.
const BUCKET_DIGITS: (u32, u32) = (15, 33);
/// The number of buckets.
const BUCKETS: usize = (BUCKET_DIGITS.1 - BUCKET_DIGITS.0 + 1) as usize;

/// The memory with which one client was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientUsage {
    bytes: usize,
    /// The bucket; `None` if the client must not be evicted.
    bucket: Option<u8>,
}

impl ClientUsage {
    /// Creates the entry of a client that takes `bytes` bytes.
    pub fn new(bytes: usize, may_be_evicted: bool) -> Self {
        let digits = (usize::BITS - bytes.leading_zeros()).clamp(BUCKET_DIGITS.0, BUCKET_DIGITS.1);
        ClientUsage {
            bytes,
            bucket: may_be_evicted.then_some((digits - BUCKET_DIGITS.0) as u8),
        }
    }

    /// Returns `true` if the client is in that bucket.
    pub fn is_in(self, bucket: u8) -> bool {
        self.bucket == Some(bucket)
    }
}

/// The memory of all clients.
pub struct ClientMemory {
    /// One row per worker: the bytes, and the number of clients in each bucket.
    rows: StripedCounters,
}

impl ClientMemory {
    /// Creates the counters for this number of workers.
    pub fn new(workers: usize) -> Self {
        ClientMemory {
            rows: StripedCounters::new(workers, 1 + BUCKETS),
        }
    }

    /// Replaces the entry of a client of the calling worker.
    pub fn update(&self, worker: ThreadIndex, before: ClientUsage, after: ClientUsage) {
        let add = |index: usize, delta: i64| self.rows.add_as_only_writer(worker.get(), index, delta);
        add(0, after.bytes as i64 - before.bytes as i64);
        if before.bucket != after.bucket {
            if let Some(bucket) = before.bucket {
                add(1 + usize::from(bucket), -1);
            }
            if let Some(bucket) = after.bucket {
                add(1 + usize::from(bucket), 1);
            }
        }
    }

    /// Returns the bytes of all clients.
    pub fn bytes(&self) -> u64 {
        self.rows.sum(0).max(0) as u64
    }

    /// Returns the bucket of the largest clients that may be evicted.
    pub fn largest_bucket(&self) -> Option<u8> {
        (0..BUCKETS)
            .rev()
            .find(|bucket| self.rows.sum(1 + bucket) > 0)
            .map(|bucket| bucket as u8)
    }

    /// Returns the workers that have clients in a bucket.
    pub fn workers_in(&self, bucket: u8) -> impl Iterator<Item = ThreadIndex> {
        (0..self.rows.stripes())
            .filter(move |worker| self.rows.of_stripe(*worker, 1 + usize::from(bucket)) > 0)
            .map(ThreadIndex::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        let bucket = |bytes| ClientUsage::new(bytes, true).bucket;
        assert_eq!(bucket(0), Some(0));
        assert_eq!(bucket((1 << 15) - 1), Some(0));
        assert_eq!(bucket(1 << 15), Some(1));
        assert_eq!(bucket(1 << 40), Some(BUCKETS as u8 - 1));
        assert_eq!(ClientUsage::new(1 << 20, false).bucket, None);
    }

    #[test]
    fn the_largest_clients_are_found_on_any_worker() {
        let memory = ClientMemory::new(3);
        assert_eq!((memory.bytes(), memory.largest_bucket()), (0, None));
        let (small, large, kept) = (
            ClientUsage::new(100, true),
            ClientUsage::new(1 << 20, true),
            ClientUsage::new(1 << 25, false),
        );
        memory.update(ThreadIndex::new(0), ClientUsage::default(), small);
        memory.update(ThreadIndex::new(1), ClientUsage::default(), kept);
        memory.update(ThreadIndex::new(2), ClientUsage::default(), large);
        assert_eq!(memory.bytes(), 100 + (1 << 20) + (1 << 25));
        let bucket = memory.largest_bucket().expect("one may be evicted");
        assert!(large.is_in(bucket) && !small.is_in(bucket) && !kept.is_in(bucket));
        assert_eq!(memory.workers_in(bucket).collect::<Vec<_>>(), [ThreadIndex::new(2)]);
        memory.update(ThreadIndex::new(2), large, ClientUsage::default());
        assert!(memory.largest_bucket().is_some_and(|bucket| small.is_in(bucket)));
        memory.update(ThreadIndex::new(0), small, ClientUsage::default());
        assert_eq!((memory.bytes(), memory.largest_bucket()), (1 << 25, None));
    }
}

//! The memory of all clients, and an index of the largest clients, for `maxmemory-clients`.
//!
//! Each worker counts its own clients in its own row: their bytes, and the number of its clients in each *bucket*. A
//! bucket holds clients of about the same size; each bucket covers twice the size of the one before. A reader adds up
//! the rows.

use weft_sync::StripedCounters;

/// The binary digits of the client sizes of the first and of the last bucket. Smaller clients are in the first bucket,
/// larger ones in the last.
const DIGITS: (u32, u32) = (15, 33);
/// The number of buckets.
const BUCKETS: usize = (DIGITS.1 - DIGITS.0 + 1) as usize;

/// The memory with which one client was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    bytes: usize,
    /// The bucket; `None` if the client must not be evicted.
    bucket: Option<u8>,
}

impl Usage {
    /// Creates the entry of a client that takes `bytes` bytes.
    pub fn of(bytes: usize, may_be_evicted: bool) -> Self {
        let digits = (usize::BITS - bytes.leading_zeros()).clamp(DIGITS.0, DIGITS.1);
        Usage {
            bytes,
            bucket: may_be_evicted.then_some((digits - DIGITS.0) as u8),
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
    pub fn change(&self, worker: usize, before: Usage, after: Usage) {
        let add = |index: usize, delta: i64| self.rows.add_as_only_writer(worker, index, delta);
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
    pub fn fullest(&self) -> Option<u8> {
        (0..BUCKETS)
            .rev()
            .find(|bucket| self.rows.sum(1 + bucket) > 0)
            .map(|bucket| bucket as u8)
    }

    /// Returns the workers that have clients in a bucket.
    pub fn owners(&self, bucket: u8) -> impl Iterator<Item = usize> {
        (0..self.rows.stripes()).filter(move |worker| self.rows.of_stripe(*worker, 1 + usize::from(bucket)) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        let bucket = |bytes| Usage::of(bytes, true).bucket;
        assert_eq!(bucket(0), Some(0));
        assert_eq!(bucket((1 << 15) - 1), Some(0));
        assert_eq!(bucket(1 << 15), Some(1));
        assert_eq!(bucket(1 << 40), Some(BUCKETS as u8 - 1));
        assert_eq!(Usage::of(1 << 20, false).bucket, None);
    }

    #[test]
    fn the_largest_are_found_wherever_they_are() {
        let memory = ClientMemory::new(3);
        assert_eq!((memory.bytes(), memory.fullest()), (0, None));
        let (small, large, kept) = (
            Usage::of(100, true),
            Usage::of(1 << 20, true),
            Usage::of(1 << 25, false),
        );
        memory.change(0, Usage::default(), small);
        memory.change(1, Usage::default(), kept);
        memory.change(2, Usage::default(), large);
        assert_eq!(memory.bytes(), 100 + (1 << 20) + (1 << 25));
        let bucket = memory.fullest().expect("one may be evicted");
        assert!(large.is_in(bucket) && !small.is_in(bucket) && !kept.is_in(bucket));
        assert_eq!(memory.owners(bucket).collect::<Vec<_>>(), [2]);
        memory.change(2, large, Usage::default());
        assert!(memory.fullest().is_some_and(|bucket| small.is_in(bucket)));
        memory.change(0, small, Usage::default());
        assert_eq!((memory.bytes(), memory.fullest()), (1 << 25, None));
    }
}

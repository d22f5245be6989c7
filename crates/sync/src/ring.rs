//! A ring of records: one thread appends, one thread consumes, and neither ever waits for the other.
//!
//! ```text
//!   reader                                            writer
//!     │                                                 │
//!     ▼                                                 ▼
//!   ┌─────────────────────┐ next ┌──────────────────────────┐
//!   │ taken │ record │ re…│─────▶│ record │ record │  free  │
//!   └─────────────────────┘      └──────────────────────────┘
//!     taken ≤ read ≤ filled                    filled
//! ```
//!
//! A record is a sequence number and bytes. It lies in one chunk: a header of sixteen bytes (length, sequence number),
//! then the bytes. A writer that finds no room adds another chunk, so it never waits for the reader.
//! [`RingWriter::unread`] returns how much has not been read yet; the writer's owner throttles itself by it where it
//! can wait.
//!
//! 1. Bytes below `filled` are written and never change again; bytes above belong to the writer. `filled` grows by
//!    whole records, with a Release store after the bytes; the reader's load acquires it (rule 9 of the crate).
//! 2. `next` is set after the last change of `filled`, and `sealed` after that. So a reader that has seen `sealed` sees
//!    the last `filled`, and finds the mutex of `next` free: after the seal only the reader locks it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::loom::{AtomicBool, AtomicUsize, Mutex, UnsafeCell, lock};

#[cfg(test)]
mod tests;

/// Bytes of a chunk that holds more than one record. A chunk is allocated by one thread and freed by another. It is
/// larger than what the allocator keeps for a thread: there, freed chunks would pile up, and count as used.
const CHUNK_BYTES: usize = if cfg!(loom) {
    34
} else if cfg!(feature = "simulated") {
    256
} else {
    40 * 1024
};
/// The size of a record's own chunk up to which it stays until the next record.
const MAX_IDLE_CHUNK_BYTES: usize = 32 * CHUNK_BYTES;
/// The bytes of a record's length and sequence number.
const HEADER_BYTES: usize = 16;

struct Chunk {
    bytes: Box<[UnsafeCell<u8>]>,
    /// The number of bytes that hold records.
    filled: AtomicUsize,
    /// `next` is set, and no record will be added here.
    sealed: AtomicBool,
    next: Mutex<Option<Arc<Chunk>>>,
}

// SAFETY: rule 9. Only the writer writes bytes at or above `filled`; the reader reads those below.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Chunk {
            bytes: zeroed(size),
            filled: AtomicUsize::new(0),
            sealed: AtomicBool::new(false),
            next: Mutex::new(None),
        })
    }

    /// Returns the memory that the allocator takes for the bytes. It has four sizes per doubling.
    fn memory_bytes(&self) -> usize {
        let bytes = self.bytes.len();
        bytes.next_multiple_of(bytes.next_power_of_two() / 8)
    }

    /// Writes bytes that are not published to the reader yet.
    ///
    /// # Safety
    /// The caller is the only writer, and `at` is not below `filled`.
    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        let cells = &self.bytes[at..at + bytes.len()];
        #[cfg(not(loom))]
        // SAFETY: rule 9: only this writer accesses these cells, and cells of bytes are contiguous.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), cells.as_ptr().cast::<u8>().cast_mut(), cells.len());
        }
        #[cfg(loom)]
        for (cell, byte) in cells.iter().zip(bytes) {
            let access = cell.begin_write();
            // SAFETY: rule 9, which loom checks.
            unsafe { *access.pointer(cell) = *byte };
        }
    }

    /// Returns bytes that lie below `filled`.
    ///
    /// # Safety
    /// The caller has seen a `filled` of at least `end`.
    #[cfg(not(loom))]
    unsafe fn read(&self, start: usize, end: usize) -> Cow<'_, [u8]> {
        let cells = &self.bytes[start..end];
        // SAFETY: rule 9: bytes below `filled` do not change, and cells of bytes are contiguous.
        Cow::Borrowed(unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) })
    }

    #[cfg(loom)]
    unsafe fn read(&self, start: usize, end: usize) -> Cow<'_, [u8]> {
        let byte = |cell: &UnsafeCell<u8>| {
            let access = cell.begin_read();
            // SAFETY: rule 9, which loom checks.
            unsafe { *access.pointer(cell) }
        };
        self.bytes[start..end].iter().map(byte).collect::<Vec<u8>>().into()
    }
}

#[cfg(not(loom))]
fn zeroed(size: usize) -> Box<[UnsafeCell<u8>]> {
    // Filling one cell at a time would be slow for records of many megabytes; the compiler turns this into one fill.
    std::iter::repeat_with(|| UnsafeCell::new(0)).take(size).collect()
}

#[cfg(loom)]
fn zeroed(size: usize) -> Box<[UnsafeCell<u8>]> {
    (0..size).map(|_| UnsafeCell::new(0)).collect()
}

/// The counters that both ends share.
struct RingCounters {
    /// The number of bytes that the reader has consumed, headers included.
    taken: AtomicUsize,
    /// The memory of the chunks that the reader has freed, in bytes.
    freed: AtomicUsize,
    /// The memory of all chunks that the writer has allocated, in bytes.
    allocated: AtomicUsize,
    /// The number of bytes that the writer has appended.
    written: CacheAligned,
}

/// A counter on a cache line of its own, so that the writer's stores do not contend with the reader's.
#[repr(align(64))]
struct CacheAligned(AtomicUsize);

/// Reports to any thread how much of a ring is unread.
pub struct RingGauge(Arc<RingCounters>);

impl RingGauge {
    /// Returns the approximate number of bytes that the reader has not consumed yet.
    #[must_use]
    pub fn unread(&self) -> usize {
        // Loaded in this order, the difference is never negative.
        let taken = self.0.taken.load(Acquire);
        self.0.written.0.load(Relaxed).wrapping_sub(taken)
    }

    /// Returns the memory of the chunks if there are such bytes, otherwise 0. A chunk takes up to a quarter more than
    /// its record: the allocator has few sizes.
    #[must_use]
    pub fn held(&self) -> usize {
        if self.unread() == 0 {
            return 0;
        }
        // Loaded in this order, the difference is never negative.
        let freed = self.0.freed.load(Acquire);
        self.0.allocated.load(Relaxed).wrapping_sub(freed)
    }
}

/// The appending end of a ring.
pub struct RingWriter {
    tail: Arc<Chunk>,
    filled: usize,
    written: usize,
    /// The memory of all chunks that were allocated.
    allocated: usize,
    counts: Arc<RingCounters>,
}

/// The consuming end of a ring.
pub struct RingReader {
    head: Arc<Chunk>,
    /// The number of the head's bytes that were consumed.
    read: usize,
    /// The number of the head's bytes that are known to hold records.
    filled: usize,
    taken: usize,
    /// The memory of the chunks that were freed.
    freed: usize,
    counts: Arc<RingCounters>,
}

/// Returns the two ends of an empty ring.
#[must_use]
pub fn ring() -> (RingWriter, RingReader) {
    let chunk = Chunk::new(CHUNK_BYTES);
    let allocated = chunk.memory_bytes();
    let counts = Arc::new(RingCounters {
        taken: AtomicUsize::new(0),
        freed: AtomicUsize::new(0),
        allocated: AtomicUsize::new(allocated),
        written: CacheAligned(AtomicUsize::new(0)),
    });
    let writer = RingWriter {
        tail: chunk.clone(),
        filled: 0,
        written: 0,
        allocated,
        counts: counts.clone(),
    };
    let reader = RingReader {
        head: chunk,
        read: 0,
        filled: 0,
        taken: 0,
        freed: 0,
        counts,
    };
    (writer, reader)
}

impl RingWriter {
    /// Appends a record of any length.
    pub fn push(&mut self, sequence: u64, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let size = HEADER_BYTES + bytes.len();
        if self.tail.bytes.len() - self.filled < size {
            self.extend(size);
        }
        let at = self.filled;
        // SAFETY: `&mut self` makes this the only writer, and `filled` is where its records end.
        unsafe {
            self.tail.write(at, &length.to_le_bytes());
            self.tail.write(at + 8, &sequence.to_le_bytes());
            self.tail.write(at + HEADER_BYTES, bytes);
        }
        self.filled += size;
        self.written = self.written.wrapping_add(size);
        self.counts.written.0.store(self.written, Relaxed);
        self.tail.filled.store(self.filled, Release);
        if self.tail.bytes.len() > MAX_IDLE_CHUNK_BYTES {
            // Otherwise the chunk of a large record would stay allocated until this thread appends the next one.
            self.extend(CHUNK_BYTES);
        }
    }

    /// Returns a gauge of this ring.
    #[must_use]
    pub fn gauge(&self) -> RingGauge {
        RingGauge(self.counts.clone())
    }

    fn extend(&mut self, size: usize) {
        let chunk = Chunk::new(size.max(CHUNK_BYTES));
        self.allocated = self.allocated.wrapping_add(chunk.memory_bytes());
        self.counts.allocated.store(self.allocated, Relaxed);
        *lock(&self.tail.next) = Some(chunk.clone());
        self.tail.sealed.store(true, Release);
        self.tail = chunk;
        self.filled = 0;
    }

    /// Returns the approximate number of bytes that the reader has not consumed yet.
    #[inline]
    #[must_use]
    pub fn unread(&self) -> usize {
        self.written.wrapping_sub(self.counts.taken.load(Relaxed))
    }
}

impl RingReader {
    /// Returns the sequence number of the first record, if there is one.
    #[inline]
    pub fn head(&mut self) -> Option<u64> {
        if self.read == self.filled && !self.find_more() {
            return None;
        }
        let at = self.read + 8;
        // SAFETY: `filled` was loaded from the chunk, and a record begins at `read`.
        let bytes = unsafe { self.head.read(at, at + 8) };
        let mut sequence = [0; 8];
        sequence.copy_from_slice(&bytes);
        Some(u64::from_le_bytes(sequence))
    }

    /// Consumes the first record and passes its bytes to `with`. Returns `false` if there was none.
    pub fn take(&mut self, with: impl FnOnce(&[u8])) -> bool {
        if self.read == self.filled && !self.find_more() {
            return false;
        }
        let start = self.read + HEADER_BYTES;
        let mut length = [0; 8];
        // SAFETY: as in `head`.
        length.copy_from_slice(&unsafe { self.head.read(self.read, self.read + 8) });
        let end = start + u64::from_le_bytes(length) as usize;
        // SAFETY: below `filled` all records are complete.
        with(&unsafe { self.head.read(start, end) });
        self.taken = self.taken.wrapping_add(end - self.read);
        self.read = end;
        self.counts.taken.store(self.taken, Relaxed);
        true
    }

    /// Looks for records after the known ones.
    fn find_more(&mut self) -> bool {
        loop {
            // Loaded before `filled`: if the chunk is sealed, `filled` is final.
            let sealed = self.head.sealed.load(Acquire);
            self.filled = self.head.filled.load(Acquire);
            if self.read < self.filled {
                return true;
            }
            if !sealed {
                return false;
            }
            let next = lock(&self.head.next).take();
            let Some(next) = next else {
                unreachable!("a sealed chunk has a next one");
            };
            self.freed = self.freed.wrapping_add(self.head.memory_bytes());
            self.head = next;
            self.counts.freed.store(self.freed, Release);
            self.read = 0;
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        // Frees the chunks one after the other: a long chain must not be freed by recursion.
        loop {
            let next = lock(&self.head.next).take();
            match next {
                Some(next) => self.head = next,
                None => return,
            }
        }
    }
}

//! A ring of records: one thread appends, one takes out, and neither ever waits for the other.
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
//! A record is a ticket and bytes, and lies in one chunk: a header of sixteen bytes (length, ticket) and the bytes. A
//! writer that finds no room makes another chunk, so it never waits, whatever the reader does; how much is not read yet
//! it can ask ([`RingWriter::unread`]), and it is up to the writer's owner to do something about it when it can wait.
//!
//! 1. Bytes below `filled` are written and never change again; bytes above belong to the writer. `filled` grows by
//!    whole records, with a Release store behind the bytes; the reader's load acquires it (rule 9 of the crate).
//! 2. `next` is put in place after the last change of `filled`, and `sealed` behind it. A reader that has seen `sealed`
//!    therefore sees the last `filled`, and finds the mutex of `next` free: nobody locks it any more but the reader.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::loom::{AtomicBool, AtomicUsize, Mutex, UnsafeCell, lock};

#[cfg(test)]
mod tests;

/// Bytes of a chunk that holds more than one record.
const CHUNK_BYTES: usize = if cfg!(loom) { 34 } else { 32 * 1024 };
/// Length and ticket.
const HEADER_BYTES: usize = 16;

struct Chunk {
    bytes: Box<[UnsafeCell<u8>]>,
    /// Bytes that hold records.
    filled: AtomicUsize,
    /// Whether `next` is there, and nothing will be added here.
    sealed: AtomicBool,
    next: Mutex<Option<Arc<Chunk>>>,
}

// SAFETY: rule 9. The writer alone writes bytes at or above `filled`, the reader reads those below.
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

    /// Writes bytes that nobody reads yet.
    ///
    /// # Safety
    /// The caller is the only writer, and `at` is not below `filled`.
    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        let cells = &self.bytes[at..at + bytes.len()];
        #[cfg(not(loom))]
        // SAFETY: rule 9: these cells are this writer's alone, and cells of bytes lie one behind the other.
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

    /// Bytes that lie below `filled`.
    ///
    /// # Safety
    /// The caller has seen a `filled` of at least `end`.
    #[cfg(not(loom))]
    unsafe fn read(&self, start: usize, end: usize) -> Cow<'_, [u8]> {
        let cells = &self.bytes[start..end];
        // SAFETY: rule 9: bytes below `filled` do not change, and cells of bytes lie one behind the other.
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
    // One cell at a time would be slow for records of many megabytes; this becomes one fill.
    std::iter::repeat_with(|| UnsafeCell::new(0)).take(size).collect()
}

#[cfg(loom)]
fn zeroed(size: usize) -> Box<[UnsafeCell<u8>]> {
    (0..size).map(|_| UnsafeCell::new(0)).collect()
}

/// What both ends share beside the chunks.
struct Counts {
    /// Bytes that the reader has taken, headers included.
    taken: AtomicUsize,
    /// Bytes that the writer has appended.
    written: OwnLine,
}

/// A number on a cache line of its own: the writer does not wait for the reader's.
#[repr(align(64))]
struct OwnLine(AtomicUsize);

/// Tells anybody how much there is in a ring.
pub struct RingGauge(Arc<Counts>);

impl RingGauge {
    /// Bytes that the reader has not taken yet, more or less.
    #[must_use]
    pub fn unread(&self) -> usize {
        // In this order it is never less than nothing.
        let taken = self.0.taken.load(Acquire);
        self.0.written.0.load(Relaxed).wrapping_sub(taken)
    }
}

/// The end that appends.
pub struct RingWriter {
    tail: Arc<Chunk>,
    filled: usize,
    written: usize,
    counts: Arc<Counts>,
}

/// The end that takes out.
pub struct RingReader {
    head: Arc<Chunk>,
    /// Bytes of the head that were taken.
    read: usize,
    /// Bytes of the head that are known to hold records.
    filled: usize,
    taken: usize,
    counts: Arc<Counts>,
}

/// An empty ring.
#[must_use]
pub fn ring() -> (RingWriter, RingReader) {
    let chunk = Chunk::new(CHUNK_BYTES);
    let counts = Arc::new(Counts {
        taken: AtomicUsize::new(0),
        written: OwnLine(AtomicUsize::new(0)),
    });
    let writer = RingWriter {
        tail: chunk.clone(),
        filled: 0,
        written: 0,
        counts: counts.clone(),
    };
    let reader = RingReader {
        head: chunk,
        read: 0,
        filled: 0,
        taken: 0,
        counts,
    };
    (writer, reader)
}

impl RingWriter {
    /// Appends a record of any length.
    pub fn push(&mut self, ticket: u64, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let size = HEADER_BYTES + bytes.len();
        if self.tail.bytes.len() - self.filled < size {
            self.extend(size);
        }
        let at = self.filled;
        // SAFETY: `&mut self` makes this the only writer, and `filled` is where its records end.
        unsafe {
            self.tail.write(at, &length.to_le_bytes());
            self.tail.write(at + 8, &ticket.to_le_bytes());
            self.tail.write(at + HEADER_BYTES, bytes);
        }
        self.filled += size;
        self.written = self.written.wrapping_add(size);
        self.counts.written.0.store(self.written, Relaxed);
        self.tail.filled.store(self.filled, Release);
    }

    /// A gauge of this ring.
    #[must_use]
    pub fn gauge(&self) -> RingGauge {
        RingGauge(self.counts.clone())
    }

    fn extend(&mut self, size: usize) {
        let chunk = Chunk::new(size.max(CHUNK_BYTES));
        *lock(&self.tail.next) = Some(chunk.clone());
        self.tail.sealed.store(true, Release);
        self.tail = chunk;
        self.filled = 0;
    }

    /// Bytes that the reader has not taken yet, more or less.
    #[inline]
    #[must_use]
    pub fn unread(&self) -> usize {
        self.written.wrapping_sub(self.counts.taken.load(Relaxed))
    }
}

impl RingReader {
    /// The ticket of the first record, if there is one.
    #[inline]
    pub fn head(&mut self) -> Option<u64> {
        if self.read == self.filled && !self.find_more() {
            return None;
        }
        let at = self.read + 8;
        // SAFETY: `filled` was loaded from the chunk, and a record begins at `read`.
        let bytes = unsafe { self.head.read(at, at + 8) };
        let mut ticket = [0; 8];
        ticket.copy_from_slice(&bytes);
        Some(u64::from_le_bytes(ticket))
    }

    /// Takes the first record out; whether there was one.
    pub fn take(&mut self, with: impl FnOnce(&[u8])) -> bool {
        if self.read == self.filled && !self.find_more() {
            return false;
        }
        let start = self.read + HEADER_BYTES;
        let mut length = [0; 8];
        // SAFETY: as in `head`.
        length.copy_from_slice(&unsafe { self.head.read(self.read, self.read + 8) });
        let end = start + u64::from_le_bytes(length) as usize;
        // SAFETY: records are whole below `filled`.
        with(&unsafe { self.head.read(start, end) });
        self.taken = self.taken.wrapping_add(end - self.read);
        self.read = end;
        self.counts.taken.store(self.taken, Relaxed);
        true
    }

    /// Looks for records behind the known ones.
    fn find_more(&mut self) -> bool {
        loop {
            // Before the look at `filled`: if the chunk is sealed, that is the last `filled`.
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
            self.head = next;
            self.read = 0;
        }
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        // One after the other: a long chain of chunks must not be freed by recursion.
        loop {
            let next = lock(&self.head.next).take();
            match next {
                Some(next) => self.head = next,
                None => return,
            }
        }
    }
}

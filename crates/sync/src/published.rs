//! Published readers: readers of a hot cell enter themselves on their seat's cache line instead of counting in the
//! cell's word.
//!
//! Every reader of a cell changes its word twice. With one reading thread that costs two locked instructions. When
//! several threads read the same cell at once, the word's line travels between their cores, and all together are slower
//! than one of them would be. So a cell on which readers keep colliding gets the bit `HOT` in its word, and from then
//! on its readers leave the word unchanged (BRAVO by Dice and Kogan, 2019, uses the same idea):
//!
//! ```text
//!   seat 0's line  │ cell 7, 1 lease │ ─ │ ─ │ ...        word of cell 7:  HOT, no readers
//!   seat 1's line  │ cell 7, 3 leases │ ─ │ cell 2, 1 │ ...
//! ```
//!
//! | a reader | a writer |
//! |---|---|
//! | 1. sees `HOT` in the word | 1. sets the word to `WRITER`, which clears `HOT` |
//! | 2. publishes the cell on its line | 2. searches all lines for the cell |
//! | 3. reads the word again: still `HOT`, no writer, not announced? | 3. found: waits a bounded time, or gives up |
//! | 4. yes: it is admitted; no: it takes the publication back | 4. not found: it is admitted |
//!
//! Steps 2 and 3 of the reader and 1 and 2 of the writer are sequentially consistent: of a concurrent reader and writer
//! at least one sees the other (rule 8). A seat's line is written by its owner only, so a further lease of a cell that
//! is published already is a plain store. If the cell's entry on the line is used by another cell, the reader counts in
//! the word, which is always allowed.
//!
//! A writer pays with a search of every seat's line, so `HOT` must be rare on cells that are written: one seat must
//! collide [`COLLISIONS`] times to set it, and the first writer clears it.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::loom::{AtomicU32, AtomicU64, model_fence, spin_loop};

/// The number of cells that a seat can have published at a time. Each cell's number determines its entry.
const ENTRIES: usize = if cfg!(loom) { 1 } else { 8 };
/// The number of collisions of a seat with other readers after which it marks a cell as hot.
const COLLISIONS: u32 = if cfg!(any(loom, feature = "simulated")) { 1 } else { 32 };
/// The number of pauses in which a writer waits for published readers: about 1 µs.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// Returns a cell and the number of leases that the seat has of it in one word: cell + 1 above, leases below. 0 is an
/// unused entry.
#[inline]
fn encode(cell: u32, leases: u64) -> u64 {
    (u64::from(cell) + 1) << 32 | leases
}

/// The published leases of one seat. Two cache lines, because the adjacent-line prefetcher fetches lines in pairs.
#[repr(align(128))]
struct Line {
    entries: [AtomicU64; ENTRIES],
    collisions: AtomicU32,
}

/// The publications of all seats.
pub(crate) struct Publications {
    lines: Box<[Line]>,
}

impl Publications {
    /// Returns empty lines for `seats` seats.
    pub(crate) fn new(seats: usize) -> Self {
        let line = |_| Line {
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
            collisions: AtomicU32::new(0),
        };
        Self {
            lines: (0..seats).map(line).collect(),
        }
    }

    /// Publishes one more lease of `cell` by `seat`, and keeps it if `admitted` then returns `true`. Returns `None` if
    /// the entry is used by another cell or the reader was not admitted.
    #[inline]
    pub(crate) fn publish(&self, seat: usize, cell: u32, admitted: impl FnOnce() -> bool) -> Option<Publication<'_>> {
        let entry = &self.lines[seat].entries[cell as usize % ENTRIES];
        let seen = entry.load(Relaxed);
        if seen == 0 {
            entry.swap(encode(cell, 1), SeqCst);
            model_fence();
            if admitted() {
                return Some(Publication(entry));
            }
            entry.store(0, Release);
            return None;
        }
        if seen >> 32 != u64::from(cell) + 1 {
            return None;
        }
        // The cell is published already, and no writer is admitted as long as that lasts.
        entry.store(seen + 1, Relaxed);
        Some(Publication(entry))
    }

    /// Counts a collision of `seat` with other readers. Returns `true` if the cell should be marked as hot.
    #[cold]
    pub(crate) fn record_collision(&self, seat: usize) -> bool {
        let collisions = &self.lines[seat].collisions;
        let count = collisions.load(Relaxed) + 1;
        let is_hot = count >= COLLISIONS;
        collisions.store(if is_hot { 0 } else { count }, Relaxed);
        is_hot
    }

    /// Waits a bounded time until no seat has published `cell`. Returns `true` if none has. For a writer that has just
    /// cleared `HOT`.
    #[cold]
    pub(crate) fn wait_until_unpublished(&self, cell: u32) -> bool {
        model_fence();
        let mut pauses = 0;
        for line in &self.lines {
            let entry = &line.entries[cell as usize % ENTRIES];
            while entry.load(SeqCst) >> 32 == u64::from(cell) + 1 {
                if pauses == PAUSES {
                    return false;
                }
                pauses += 1;
                spin_loop();
            }
        }
        true
    }
}

/// A lease that is published instead of counted. Ended by [`Publication::end`].
#[derive(Clone, Copy)]
pub(crate) struct Publication<'a>(&'a AtomicU64);

impl Publication<'_> {
    /// Ends one lease. Its reads are ordered before a later writer's admission.
    #[inline]
    pub(crate) fn end(self) {
        let seen = self.0.load(Acquire);
        debug_assert!(seen & u64::from(u32::MAX) != 0, "a publication ended twice");
        let left = seen - 1;
        self.0
            .store(if left & u64::from(u32::MAX) == 0 { 0 } else { left }, Release);
    }
}

/// How a read lease was acquired, in one word: null if it is counted in the cell's word, [`BIASED_ADDRESS`] if it is
/// counted there by a biased passage, otherwise the address of the entry where it is published.
#[derive(Clone, Copy)]
pub(crate) struct ReadLeaseToken<'a>(*const AtomicU64, PhantomData<&'a AtomicU64>);

/// An address at which no entry can be, because entries are aligned.
const BIASED_ADDRESS: usize = 1;

impl<'a> ReadLeaseToken<'a> {
    /// A lease that is counted in the cell's word.
    pub(crate) const COUNTED: Self = ReadLeaseToken(std::ptr::null(), PhantomData);
    /// A lease that a biased passage has counted in the cell's word.
    pub(crate) const BIASED: Self = ReadLeaseToken(std::ptr::without_provenance(BIASED_ADDRESS), PhantomData);

    /// Returns `true` for a lease of a biased passage.
    #[inline]
    pub(crate) fn is_biased(self) -> bool {
        self.0.addr() == BIASED_ADDRESS
    }

    /// Returns the lease's publication, if it is published.
    #[inline]
    pub(crate) fn publication(self) -> Option<Publication<'a>> {
        if self.0.addr() <= BIASED_ADDRESS {
            return None;
        }
        // SAFETY: the address is neither of the two constants, so it came from a reference that lives for `'a`.
        Some(Publication(unsafe { &*self.0 }))
    }
}

impl<'a> From<Publication<'a>> for ReadLeaseToken<'a> {
    #[inline]
    fn from(publication: Publication<'a>) -> Self {
        ReadLeaseToken(publication.0, PhantomData)
    }
}

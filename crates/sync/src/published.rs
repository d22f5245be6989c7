//! Readers of a hot cell announce themselves on a cache line of their own instead of counting in the cell's word.
//!
//! Every reader of a cell changes its word twice. While one thread does that, it costs a locked instruction; when
//! several read the same cell at once, the word's line travels between their cores and all together are slower than one
//! of them would be. So a cell on which readers keep colliding gets the mark `SHARED` in its word, and from then on a
//! reader leaves the word alone:
//!
//! ```text
//!   seat 0's line  │ cell 7, 1 lease │ ─ │ ─ │ ...        word of cell 7:  SHARED, no readers
//!   seat 1's line  │ cell 7, 3 leases │ ─ │ cell 2, 1 │ ...
//! ```
//!
//! | a reader | a writer |
//! |---|---|
//! | 1. sees `SHARED` in the word | 1. makes the word `WRITER`, which takes `SHARED` out |
//! | 2. publishes the cell on its line | 2. looks for the cell on all lines |
//! | 3. reads the word again: still `SHARED`, no writer, not announced? | 3. found: waits a bounded time, or gives up |
//! | 4. yes: it is in; no: takes the publication back | 4. not found: it is alone |
//!
//! Steps 2 and 3 of the reader and 1 and 2 of the writer are sequentially consistent: of a reader and a writer at the
//! same time at least one sees the other (rule 8). A seat's line is written by its owner only, so a further lease of a
//! cell that is published already is a plain store. A cell whose place on the line is taken by another cell is read by
//! counting in the word, which is always allowed.
//!
//! A writer pays with a look at every seat's line, so the mark must be rare where there are writers: it takes
//! [`COLLISIONS`] collisions of one seat to set it, and the first writer removes it.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::loom::{AtomicU32, AtomicU64, model_fence, spin_loop};

/// Cells that a seat can have published at a time: one per place, chosen by the cell's number.
const PLACES: usize = if cfg!(loom) { 1 } else { 8 };
/// Times that a seat collides with other readers before the cell of the last collision is marked.
const COLLISIONS: u32 = if cfg!(loom) { 1 } else { 32 };
/// How long a writer waits for published readers, about 1 µs.
const PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// A cell and the number of leases that the seat has of it: cell + 1 above, leases below; 0 for none.
#[inline]
fn encode(cell: u32, leases: u64) -> u64 {
    (u64::from(cell) + 1) << 32 | leases
}

/// What one seat reads. Two cache lines, because the adjacent-line prefetcher ties neighbours together.
#[repr(align(128))]
struct Line {
    places: [AtomicU64; PLACES],
    collisions: AtomicU32,
}

/// The publications of all seats.
pub(crate) struct Publications {
    lines: Box<[Line]>,
}

impl Publications {
    /// None, for `seats` seats.
    pub(crate) fn new(seats: usize) -> Self {
        let line = |_| Line {
            places: std::array::from_fn(|_| AtomicU64::new(0)),
            collisions: AtomicU32::new(0),
        };
        Self {
            lines: (0..seats).map(line).collect(),
        }
    }

    /// Publishes one more lease of `cell` by `seat`, and keeps it if `admitted` still holds then. `None` if the place
    /// is taken by another cell or the reader was not admitted.
    #[inline]
    pub(crate) fn publish(&self, seat: usize, cell: u32, admitted: impl FnOnce() -> bool) -> Option<Publication<'_>> {
        let place = &self.lines[seat].places[cell as usize % PLACES];
        let seen = place.load(Relaxed);
        if seen == 0 {
            place.swap(encode(cell, 1), SeqCst);
            model_fence();
            if admitted() {
                return Some(Publication(place));
            }
            place.store(0, Release);
            return None;
        }
        if seen >> 32 != u64::from(cell) + 1 {
            return None;
        }
        // Published already: no writer is in as long as that lasts.
        place.store(seen + 1, Relaxed);
        Some(Publication(place))
    }

    /// Counts a collision of `seat` with other readers; whether the cell should be marked.
    #[cold]
    pub(crate) fn collided(&self, seat: usize) -> bool {
        let collisions = &self.lines[seat].collisions;
        let count = collisions.load(Relaxed) + 1;
        collisions.store(count % COLLISIONS, Relaxed);
        count >= COLLISIONS
    }

    /// Waits a bounded time until nobody has published `cell`; whether that came to be. For a writer that has just
    /// taken the mark out of the word.
    #[cold]
    pub(crate) fn are_gone(&self, cell: u32) -> bool {
        model_fence();
        let mut pauses = 0;
        for line in &self.lines {
            let place = &line.places[cell as usize % PLACES];
            while place.load(SeqCst) >> 32 == u64::from(cell) + 1 {
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
    /// Takes one lease back. What was read before is read before a writer gets in.
    #[inline]
    pub(crate) fn end(self) {
        let seen = self.0.load(Acquire);
        debug_assert!(seen & u64::from(u32::MAX) != 0, "a publication ended twice");
        let left = seen - 1;
        self.0
            .store(if left & u64::from(u32::MAX) == 0 { 0 } else { left }, Release);
    }
}

/// How a read lease was taken, in one word: null for one that is counted in the cell's word, [`ALONE_ADDRESS`] for one
/// of a pass that is alone, else the place where it is published.
#[derive(Clone, Copy)]
pub(crate) struct ReadLeaseToken<'a>(*const AtomicU64, PhantomData<&'a AtomicU64>);

/// Where no place can be: places are aligned.
const ALONE_ADDRESS: usize = 1;

impl<'a> ReadLeaseToken<'a> {
    /// Counted in the cell's word.
    pub(crate) const COUNTED: Self = ReadLeaseToken(std::ptr::null(), PhantomData);
    /// Counted there by a pass that is alone.
    pub(crate) const ALONE: Self = ReadLeaseToken(std::ptr::without_provenance(ALONE_ADDRESS), PhantomData);

    /// Whether it is that of a pass that is alone.
    #[inline]
    pub(crate) fn is_alone(self) -> bool {
        self.0.addr() == ALONE_ADDRESS
    }

    /// Where it is published, if it is.
    #[inline]
    pub(crate) fn publication(self) -> Option<Publication<'a>> {
        if self.0.addr() <= ALONE_ADDRESS {
            return None;
        }
        // SAFETY: neither of the two constants, so it was made from a reference that lives for `'a`.
        Some(Publication(unsafe { &*self.0 }))
    }
}

impl<'a> From<Publication<'a>> for ReadLeaseToken<'a> {
    #[inline]
    fn from(publication: Publication<'a>) -> Self {
        ReadLeaseToken(publication.0, PhantomData)
    }
}

//! The lease word: one `u32` that admits many readers or one writer, and lets a writer announce itself.
//!
//! ```text
//!   31       30       29 ........ 20   19 .............. 0
//! ┌────────┬────────┬────────────────┬─────────────────────┐
//! │ WRITER │ SHARED │    PATIENCE    │       readers       │
//! └────────┴────────┴────────────────┴─────────────────────┘
//! ```
//!
//! | state | word | a reader | a writer |
//! |---|---|---|---|
//! | free | all zero | gets in | gets in |
//! | read | readers > 0 | gets in | is refused |
//! | written | `WRITER` | is refused | is refused |
//! | announced | `PATIENCE` > 0, with any of the above | is refused and takes 1 off `PATIENCE` | as above |
//!
//! # The announcement
//!
//! A writer that was refused a few times fills `PATIENCE` with ones. Rules:
//!
//! * A. While `PATIENCE` is above zero no reader gets in. Readers that are in stay.
//! * B. A writer that gets in sets `PATIENCE` to zero: *a* writer has had its turn. One that announced itself while
//!   another one holds the word keeps its announcement, for the holder's release touches `WRITER` only.
//! * C. Each reader refused because of the announcement takes 1 off. Hence an announcement refuses at most
//!   [`LeaseWord::PATIENCE_MAX`] read attempts and then lapses, also if the writer's client hung up meanwhile and
//!   nobody ever comes for the lease. No clock, no owner, nothing to clean up.
//! * D. A writer that still wants the lease announces again at each failed retry, which fills the field again. As it
//!   spins right after announcing, it usually gets in before anybody has used up the announcement.
//! * E. A reader that was refused many times may end the announcement of a word that is free: a writer that still
//!   wanted the lease would have taken it, for it retries as often as the reader does.
//! * F. For a thread that is alone an announcement means nothing, and a reader ends it. No other thread can be in, so
//!   no reader keeps a writer out: the announcement was left by a writer that gave up.
//!
//! # The mark
//!
//! `SHARED` tells readers that they may publish themselves elsewhere instead of counting here: see `published`. A
//! reader sets it, a writer that gets in takes it out and then has to wait for those readers.
//!
//! # Why compare-and-swap, not fetch-and-add
//!
//! A reader that adds first and undoes on refusal shows a phantom reader to writers: a refused crowd of readers can
//! then keep a free word looking busy, which is the starvation that the announcement exists to prevent. The price of
//! the compare-and-swap is a retry when two readers meet on the same word in the same instant; an uncontended take is
//! one locked instruction either way.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::loom::{AtomicU32, spin_loop};

#[cfg(test)]
mod tests;

const READER: u32 = 1;
const READERS: u32 = (1 << 20) - 1;
const PATIENCE_SHIFT: u32 = 20;
const SHARED: u32 = 1 << 30;
const WRITER: u32 = 1 << 31;

/// In a model the announcement is short, so that loom sees it lapse.
const PATIENCE_BITS: u32 = if cfg!(loom) { 2 } else { 10 };
const PATIENCE_ONE: u32 = 1 << PATIENCE_SHIFT;
const PATIENCE: u32 = ((1 << PATIENCE_BITS) - 1) << PATIENCE_SHIFT;

const _: () = assert!(READERS & PATIENCE == 0 && (READERS | PATIENCE) & (WRITER | SHARED) == 0);

/// Pauses of one bounded spin. A pause takes 40–60 ns on current x86 cores, so a spin stays below 1 µs.
const SPIN_PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// Who holds a cell, and whether a writer wants it.
pub(crate) struct LeaseWord(AtomicU32);

impl LeaseWord {
    /// The read attempts that one announcement refuses before it lapses.
    #[cfg(test)]
    pub(crate) const PATIENCE_MAX: u32 = PATIENCE >> PATIENCE_SHIFT;

    /// A free word.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The word as it is: for the first look of a reader.
    #[inline]
    pub(crate) fn peek(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Adds a reader if the word still is what was seen and admits one.
    #[inline]
    pub(crate) fn try_read_at_once(&self, seen: u32) -> bool {
        admits_reader(seen)
            && self
                .0
                .compare_exchange_weak(seen, seen + READER, Acquire, Relaxed)
                .is_ok()
    }

    /// Adds a reader if no writer is in: for the thread that is alone, which needs no locked instruction. Ends an
    /// announcement (rule F).
    #[inline]
    pub(crate) fn try_read_alone(&self, seen: u32) -> bool {
        let unannounced = seen & !PATIENCE;
        let admitted = admits_reader(unannounced);
        if admitted {
            self.0.store(unannounced + READER, Relaxed);
        }
        admitted
    }

    /// Ends what [`Self::try_read_alone`] began.
    #[inline]
    pub(crate) fn release_read_alone(&self) {
        let before = self.0.load(Relaxed);
        debug_assert!(
            before & READERS != 0 && before & WRITER == 0,
            "released a read lease nobody had: {before:#x}"
        );
        self.0.store(before - READER, Relaxed);
    }

    /// Makes the thread that is alone the writer if it reads nothing there itself; takes back announcements and the
    /// mark.
    #[inline]
    pub(crate) fn try_write_alone(&self) -> bool {
        let admitted = admits_writer(self.0.load(Relaxed));
        if admitted {
            self.0.store(WRITER, Relaxed);
        }
        admitted
    }

    /// Ends what [`Self::try_write_alone`] began.
    #[inline]
    pub(crate) fn release_write_alone(&self) {
        let before = self.0.load(Relaxed);
        debug_assert!(
            before & WRITER != 0 && before & READERS == 0,
            "released a write lease nobody had: {before:#x}"
        );
        self.0.store(before & !WRITER, Relaxed);
    }

    /// Settles what the first look did not: gets in, or is refused by a holder, or is refused by the announcement and
    /// counts that (rule C). Each of these is one change of the word, so no refusal escapes the count. Also tells
    /// whether other readers came between.
    #[cold]
    pub(crate) fn try_read_slowly(&self) -> (bool, bool) {
        let mut seen = self.0.load(Relaxed);
        let mut collided = false;
        loop {
            let admitted = admits_reader(seen);
            let next = if admitted {
                seen + READER
            } else if seen & WRITER == 0 && seen & PATIENCE != 0 {
                seen - PATIENCE_ONE
            } else {
                return (false, collided);
            };
            match self.0.compare_exchange_weak(seen, next, Acquire, Relaxed) {
                Ok(_) => return (admitted, collided),
                Err(now) => seen = now,
            }
            collided |= admits_reader(seen);
        }
    }

    /// Lets readers publish themselves elsewhere, until a writer gets in. For a reader that is in.
    pub(crate) fn share(&self) {
        self.0.fetch_or(SHARED, Relaxed);
    }

    /// Whether a reader that has published itself is in. Comes after the publication in the order of all
    /// sequentially consistent operations.
    #[inline]
    pub(crate) fn admits_published(&self) -> bool {
        admits_published(self.0.load(SeqCst))
    }

    /// Makes the caller the writer if nobody is counted; takes back every announcement (rule B) and the mark. The mark
    /// is returned: with it, published readers may still be in.
    #[inline]
    pub(crate) fn try_write_unpublished(&self) -> Option<bool> {
        let mut seen = self.0.load(Relaxed);
        while admits_writer(seen) {
            match self.0.compare_exchange_weak(seen, WRITER, SeqCst, Relaxed) {
                Ok(_) => return Some(seen & SHARED != 0),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Waits at most about 1 µs for a word that admits readers.
    pub(crate) fn spin_for_read(&self) {
        self.spin_until(admits_reader);
    }

    /// Waits at most about 1 µs for a word that admits a writer.
    pub(crate) fn spin_for_write(&self) {
        self.spin_until(admits_writer);
    }

    /// Only loads, so that spinning threads share the line until it changes.
    fn spin_until(&self, admitted: fn(u32) -> bool) {
        for _ in 0..SPIN_PAUSES {
            if admitted(self.0.load(Relaxed)) {
                return;
            }
            spin_loop();
        }
    }

    /// Fills the announcement (rules A and D).
    pub(crate) fn announce_writer(&self) {
        self.0.fetch_or(PATIENCE, Relaxed);
    }

    /// Ends the announcement if the word is free (rule E).
    pub(crate) fn end_announcement(&self) {
        let seen = self.0.load(Relaxed);
        if admits_writer(seen) && seen & PATIENCE != 0 {
            // Fails if another thread got in or announced itself meanwhile: the next refusal comes back.
            let _ = self.0.compare_exchange(seen, seen & !PATIENCE, Relaxed, Relaxed);
        }
    }

    /// Ends what a successful `try_read` began.
    #[inline]
    pub(crate) fn release_read(&self) {
        let before = self.0.fetch_sub(READER, Release);
        debug_assert!(
            before & READERS != 0 && before & WRITER == 0,
            "released a read lease nobody had: {before:#x}"
        );
    }

    /// Ends what a successful taking for writing began, which took the mark out, with published readers still in: the
    /// mark comes back, so that the next writer looks for them too.
    #[cold]
    pub(crate) fn give_up_write(&self) {
        let before = self.0.fetch_xor(WRITER | SHARED, Release);
        debug_assert!(
            before & (WRITER | SHARED) == WRITER,
            "gave up a write lease nobody had: {before:#x}"
        );
    }

    /// Ends what a successful taking for writing began; an announcement made meanwhile stays.
    #[inline]
    pub(crate) fn release_write(&self) {
        let before = self.0.fetch_and(!WRITER, Release);
        debug_assert!(
            before & WRITER != 0 && before & READERS == 0,
            "released a write lease nobody had: {before:#x}"
        );
    }
}

/// Whether a reader may publish itself instead of counting.
#[inline]
pub(crate) fn admits_published(word: u32) -> bool {
    word & (WRITER | PATIENCE | SHARED) == SHARED
}

#[inline]
fn admits_reader(word: u32) -> bool {
    word & (WRITER | PATIENCE) == 0 && word & READERS != READERS
}

#[inline]
fn admits_writer(word: u32) -> bool {
    word & (WRITER | READERS) == 0
}

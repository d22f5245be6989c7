//! The lease word: one `u32` that admits many readers or one writer, and lets a writer announce itself.
//!
//! ```text
//!   31       30       29 ........ 20   19 .............. 0
//! ┌────────┬────────┬────────────────┬─────────────────────┐
//! │ WRITER │  HOT   │    REFUSALS    │       readers       │
//! └────────┴────────┴────────────────┴─────────────────────┘
//! ```
//!
//! | state | word | a reader | a writer |
//! |---|---|---|---|
//! | free | all zero | is admitted | is admitted |
//! | read | readers > 0 | is admitted | is refused |
//! | written | `WRITER` | is refused | is refused |
//! | announced | `REFUSALS` > 0, with any of the above | is refused and takes 1 off `REFUSALS` | as above |
//!
//! # Announcements
//!
//! A writer that was refused a few times fills `REFUSALS` with ones. Rules:
//!
//! * A. While `REFUSALS` is above zero, no reader is admitted. Current readers stay.
//! * B. A writer that is admitted sets `REFUSALS` to zero, whether or not it is the writer that announced itself. A
//!   writer that announced itself while another writer holds the word keeps its announcement, because the holder's
//!   release changes `WRITER` only.
//! * C. Each reader refused because of the announcement takes 1 off. So an announcement refuses at most
//!   [`LeaseWord::REFUSALS_MAX`] read attempts and then lapses, even if the writer's client has hung up and no writer
//!   returns for the lease. This needs no clock, no owner and no cleanup.
//! * D. A writer that still wants the lease announces itself again at each failed retry, which refills the field. As it
//!   spins right after announcing, it is usually admitted before readers have used up the announcement.
//! * E. A reader that was refused many times may end the announcement of a word that is free: a writer that still
//!   wanted the lease would have taken it, because it retries as often as the reader does.
//! * F. A biased passage ignores an announcement, and its reader ends it. No other thread can be inside, so no reader
//!   keeps a writer out: the announcement was left by a writer that gave up.
//!
//! # Hot cells
//!
//! `HOT` permits readers to publish themselves elsewhere instead of counting here: see `published`. A reader sets it; a
//! writer that is admitted clears it and then has to wait for those readers.
//!
//! # Why compare-and-swap, not fetch-and-add
//!
//! A reader that adds first and undoes on refusal is visible to writers as a phantom reader. Many refused readers could
//! then make a free word look busy, which is the starvation that the announcement exists to prevent. The price of the
//! compare-and-swap is a retry when two readers change the same word at the same time; an uncontended acquisition is
//! one locked instruction either way.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::loom::{AtomicU32, spin_loop};

#[cfg(test)]
mod tests;

const READER: u32 = 1;
const READERS: u32 = (1 << 20) - 1;
const REFUSALS_SHIFT: u32 = 20;
const HOT: u32 = 1 << 30;
const WRITER: u32 = 1 << 31;

/// The announcement is short under loom, so that the model reaches its end.
const REFUSALS_BITS: u32 = if cfg!(loom) { 2 } else { 10 };
const ONE_REFUSAL: u32 = 1 << REFUSALS_SHIFT;
const REFUSALS: u32 = ((1 << REFUSALS_BITS) - 1) << REFUSALS_SHIFT;

const _: () = assert!(READERS & REFUSALS == 0 && (READERS | REFUSALS) & (WRITER | HOT) == 0);

/// The number of pauses of one bounded spin. A pause takes 40–60 ns on current x86 cores, so a spin stays below 1 µs.
const SPIN_PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// The holders of a cell, and the announcement of a waiting writer.
pub(crate) struct LeaseWord(AtomicU32);

impl LeaseWord {
    /// The number of read attempts that one announcement refuses before it lapses.
    #[cfg(test)]
    pub(crate) const REFUSALS_MAX: u32 = REFUSALS >> REFUSALS_SHIFT;

    /// Returns a free word.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the current word, for a reader's first check.
    #[inline]
    pub(crate) fn peek(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Adds a reader if the word is still `seen` and `seen` admits one.
    #[inline]
    pub(crate) fn try_read_at_once(&self, seen: u32) -> bool {
        admits_reader(seen)
            && self
                .0
                .compare_exchange_weak(seen, seen + READER, Acquire, Relaxed)
                .is_ok()
    }

    /// Adds a reader if no writer is admitted. Only for a biased passage, which needs no locked instruction. Ends an
    /// announcement (rule F).
    #[inline]
    pub(crate) fn try_read_biased(&self, seen: u32) -> bool {
        let unannounced = seen & !REFUSALS;
        let admitted = admits_reader(unannounced);
        if admitted {
            self.0.store(unannounced + READER, Relaxed);
        }
        admitted
    }

    /// Releases what [`Self::try_read_biased`] acquired.
    #[inline]
    pub(crate) fn release_read_biased(&self) {
        let before = self.0.load(Relaxed);
        debug_assert!(
            before & READERS != 0 && before & WRITER == 0,
            "released a read lease that was not held: {before:#x}"
        );
        self.0.store(before - READER, Relaxed);
    }

    /// Makes the biased passage the writer unless it holds a read lease of the cell itself. Clears announcements and
    /// `HOT`.
    #[inline]
    pub(crate) fn try_write_biased(&self) -> bool {
        let admitted = admits_writer(self.0.load(Relaxed));
        if admitted {
            self.0.store(WRITER, Relaxed);
        }
        admitted
    }

    /// Releases what [`Self::try_write_biased`] acquired.
    #[inline]
    pub(crate) fn release_write_biased(&self) {
        let before = self.0.load(Relaxed);
        debug_assert!(
            before & WRITER != 0 && before & READERS == 0,
            "released a write lease that was not held: {before:#x}"
        );
        self.0.store(before & !WRITER, Relaxed);
    }

    /// Decides what the first check left open: the reader is admitted, or is refused by a holder, or is refused by the
    /// announcement and counts that (rule C). Each of these is one change of the word, so every refusal is counted.
    /// Returns whether the reader was admitted, and whether it collided with other readers.
    #[cold]
    pub(crate) fn try_read_slowly(&self) -> (bool, bool) {
        let mut seen = self.0.load(Relaxed);
        // A simulation has too few readers for two lost races of one of them.
        let mut collided = cfg!(feature = "simulated") && admits_reader(seen);
        loop {
            let admitted = admits_reader(seen);
            let next = if admitted {
                seen + READER
            } else if seen & WRITER == 0 && seen & REFUSALS != 0 {
                seen - ONE_REFUSAL
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

    /// Marks the cell as hot: readers may publish themselves until a writer is admitted. The caller holds a counted
    /// read lease.
    pub(crate) fn mark_hot(&self) {
        self.0.fetch_or(HOT, Relaxed);
    }

    /// Returns `true` if a reader that has published itself is admitted. Follows the publication in the order of all
    /// sequentially consistent operations.
    #[inline]
    pub(crate) fn admits_published(&self) -> bool {
        admits_published(self.0.load(SeqCst))
    }

    /// Makes the caller the writer if no holder is counted; clears every announcement (rule B) and `HOT`. Returns
    /// whether `HOT` was set: if so, published readers may still be inside.
    #[inline]
    pub(crate) fn try_write_unpublished(&self) -> Option<bool> {
        let mut seen = self.0.load(Relaxed);
        while admits_writer(seen) {
            match self.0.compare_exchange_weak(seen, WRITER, SeqCst, Relaxed) {
                Ok(_) => return Some(seen & HOT != 0),
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
        self.0.fetch_or(REFUSALS, Relaxed);
    }

    /// Ends the announcement if the word is free (rule E).
    pub(crate) fn end_announcement(&self) {
        let seen = self.0.load(Relaxed);
        if admits_writer(seen) && seen & REFUSALS != 0 {
            // Fails if another thread was admitted or announced itself meanwhile; the next refused reader tries again.
            let _ = self.0.compare_exchange(seen, seen & !REFUSALS, Relaxed, Relaxed);
        }
    }

    /// Releases what a successful counted read acquired.
    #[inline]
    pub(crate) fn release_read(&self) {
        let before = self.0.fetch_sub(READER, Release);
        debug_assert!(
            before & READERS != 0 && before & WRITER == 0,
            "released a read lease that was not held: {before:#x}"
        );
    }

    /// Releases the word after `try_write_unpublished` when published readers are still inside. Sets `HOT` again, so
    /// that the next writer looks for them too.
    #[cold]
    pub(crate) fn give_up_write(&self) {
        let before = self.0.fetch_xor(WRITER | HOT, Release);
        debug_assert!(
            before & (WRITER | HOT) == WRITER,
            "gave up a write lease that was not held: {before:#x}"
        );
    }

    /// Releases the word of an admitted writer; an announcement made meanwhile stays.
    #[inline]
    pub(crate) fn release_write(&self) {
        let before = self.0.fetch_and(!WRITER, Release);
        debug_assert!(
            before & WRITER != 0 && before & READERS == 0,
            "released a write lease that was not held: {before:#x}"
        );
    }
}

/// Returns `true` if a reader may publish itself instead of counting.
#[inline]
pub(crate) fn admits_published(word: u32) -> bool {
    word & (WRITER | REFUSALS | HOT) == HOT
}

#[inline]
fn admits_reader(word: u32) -> bool {
    word & (WRITER | REFUSALS) == 0 && word & READERS != READERS
}

#[inline]
fn admits_writer(word: u32) -> bool {
    word & (WRITER | READERS) == 0
}

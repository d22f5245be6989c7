//! Exclusive access that several threads share: its holder lets them lease cells while the gate stays closed.
//!
//! ```text
//!   Exclusive ── share ──► SharedExclusive ┬─ enter ──► SharedPassage ── write ──► WriteLease     (any thread)
//!                                          └─ pause     opens the gate while no passage exists
//! ```

use std::marker::PhantomData;

use super::{Domain, Exclusive, StaysOnThread, WriteLease};
use crate::loom::{Condvar, Mutex, back_off, lock, wait};

/// Exclusive access that is shared with other threads, for as long as its holder lends it.
pub struct SharedExclusive<'all, H, T> {
    domain: &'all Domain<H, T>,
    /// The seat of the holder of the exclusive access.
    seat: usize,
    passages: Mutex<Passages>,
    /// The last passage has ended, or a pause has.
    changed: Condvar,
}

/// The passages that exist.
struct Passages {
    inside: usize,
    is_pausing: bool,
}

impl<H: Sync, T: Send + Sync> Exclusive<'_, H, T> {
    /// Shares the access with other threads until the result is dropped.
    #[must_use]
    pub fn share(&mut self) -> SharedExclusive<'_, H, T> {
        SharedExclusive {
            domain: self.domain,
            seat: self.seat,
            passages: Mutex::new(Passages {
                inside: 0,
                is_pausing: false,
            }),
            changed: Condvar::new(),
        }
    }
}

impl<H: Sync, T: Send + Sync> SharedExclusive<'_, H, T> {
    /// Returns the domain.
    #[must_use]
    pub fn domain(&self) -> &Domain<H, T> {
        self.domain
    }

    /// Enters, and sleeps during a pause. A thread enters for a batch of work.
    #[must_use]
    pub fn enter(&self) -> SharedPassage<'_, H, T> {
        let mut passages = lock(&self.passages);
        while passages.is_pausing {
            passages = wait(&self.changed, passages);
        }
        passages.inside += 1;
        SharedPassage {
            shared: self,
            stays: PhantomData,
        }
    }

    /// Waits until no thread is inside, opens the gate, lets all waiting threads through and closes it again. The
    /// calling thread must not be inside.
    ///
    /// # Panics
    /// If another thread pauses at the same time.
    pub fn pause(&self) {
        let mut passages = lock(&self.passages);
        assert!(!passages.is_pausing, "one thread pauses at a time");
        passages.is_pausing = true;
        while passages.inside > 0 {
            passages = wait(&self.changed, passages);
        }
        drop(passages);
        self.domain.gate.open();
        self.domain.gate.close(self.seat);
        lock(&self.passages).is_pausing = false;
        self.changed.notify_all();
    }

    fn leave(&self) {
        let mut passages = lock(&self.passages);
        passages.inside -= 1;
        if passages.inside == 0 && passages.is_pausing {
            self.changed.notify_all();
        }
    }
}

/// The period in which a thread may lease cells of a [`SharedExclusive`].
pub struct SharedPassage<'shared, H: Sync, T: Send + Sync> {
    shared: &'shared SharedExclusive<'shared, H, T>,
    stays: StaysOnThread,
}

impl<H: Sync, T: Send + Sync> SharedPassage<'_, H, T> {
    /// Leases a cell for writing; waits while another thread inside holds it. A thread must not hold another lease
    /// when it calls this.
    #[inline]
    #[must_use]
    pub fn write(&self, cell: usize) -> WriteLease<'_, H, T> {
        let mut waits = 0;
        loop {
            if let Some(lease) = self.try_write(cell) {
                return lease;
            }
            back_off(waits);
            waits += 1;
        }
    }

    #[inline]
    fn try_write(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
        let domain = self.shared.domain;
        let cell = &domain.cells[cell];
        // A hot cell has no published reader, because no seat is inside the gate (rule 4).
        cell.word.try_write_unpublished()?;
        Some(WriteLease::new(cell, false))
    }
}

impl<H: Sync, T: Send + Sync> Drop for SharedPassage<'_, H, T> {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

//! Exclusive access that several threads share: its holder lets them lease cells while the gate stays closed.
//!
//! ```text
//!   Exclusive ── share ──► SharedExclusive ┬─ enter ──► SharedPassage ── write ──► WriteLease     (any thread)
//!                                          ├─ pause            opens the gate while no passage exists
//!                                          └─ with_exclusive   one thread has all cells while no passage exists
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
    /// `true` while a thread waits until none exists, or relies on that.
    is_reserved: bool,
}

/// The time in which no passage exists.
struct Reservation<'shared, H: Sync, T: Send + Sync>(&'shared SharedExclusive<'shared, H, T>);

impl<H: Sync, T: Send + Sync> Exclusive<'_, H, T> {
    /// Shares the access with other threads until the result is dropped.
    #[must_use]
    pub fn share(&mut self) -> SharedExclusive<'_, H, T> {
        SharedExclusive {
            domain: self.domain,
            seat: self.seat,
            passages: Mutex::new(Passages {
                inside: 0,
                is_reserved: false,
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

    /// Enters, and sleeps while another thread pauses or has exclusive access. A thread enters for a batch of work.
    #[must_use]
    pub fn enter(&self) -> SharedPassage<'_, H, T> {
        let mut passages = lock(&self.passages);
        while passages.is_reserved {
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
    /// If another thread pauses or has exclusive access at the same time.
    pub fn pause(&self) {
        self.pause_for(|| ());
    }

    /// Does the same, and calls `run` while the gate is open. `run` may enter the gate, or close it, with other seats,
    /// also on this thread.
    ///
    /// # Panics
    /// As [`Self::pause`].
    pub fn pause_for(&self, run: impl FnOnce()) {
        let _reservation = self.reserve();
        self.domain.gate.open();
        run();
        self.domain.gate.close(self.seat);
    }

    /// Waits until no thread is inside, and calls `run` with access to all cells. The calling thread must not be
    /// inside.
    ///
    /// # Panics
    /// As [`Self::pause`].
    pub fn with_exclusive<R>(&self, run: impl FnOnce(&mut Exclusive<'_, H, T>) -> R) -> R {
        let _reservation = self.reserve();
        let mut all = Exclusive {
            domain: self.domain,
            seat: self.seat,
            is_lent: true,
            stays: PhantomData,
        };
        run(&mut all)
    }

    fn reserve(&self) -> Reservation<'_, H, T> {
        let mut passages = lock(&self.passages);
        assert!(!passages.is_reserved, "one thread at a time keeps the others out");
        passages.is_reserved = true;
        while passages.inside > 0 {
            passages = wait(&self.changed, passages);
        }
        Reservation(self)
    }

    fn leave(&self) {
        let mut passages = lock(&self.passages);
        passages.inside -= 1;
        if passages.inside == 0 && passages.is_reserved {
            self.changed.notify_all();
        }
    }
}

impl<H: Sync, T: Send + Sync> Drop for Reservation<'_, H, T> {
    fn drop(&mut self) {
        lock(&self.0.passages).is_reserved = false;
        self.0.changed.notify_all();
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

    /// Leases a cell for writing, unless another lease of it exists.
    #[inline]
    #[must_use]
    pub fn try_write(&self, cell: usize) -> Option<WriteLease<'_, H, T>> {
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

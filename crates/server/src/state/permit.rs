//! Permits for what one thread at a time may do, whatever slots it leases: serial commands of modules, and the service
//! of clients that wait for keys in several slots.
//!
//! What does not get the permit is put off, as what does not get a lease, and its worker serves other connections. So
//! no thread waits for the permit, with leases or without, and the thread that has it is never held up by one that has
//! not. What was put off repeatedly reserves the permit for its worker: others do not begin then, until the worker has
//! had it, or has not come for it within a few milliseconds.

use weft_base::ThreadIndex;
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of failed attempts after which a worker reserves the permit.
const RESERVE_AFTER_FAILURES: u32 = 4;
/// The time for which a permit is reserved, in milliseconds.
const RESERVED_MS: u64 = 3;
/// The attempts that a worker makes before it puts its work off. Most holders end meanwhile.
const SPINS: usize = 100;
/// The part of a reservation that is the worker. The rest is the time of its end, in milliseconds.
const WORKER_BITS: u32 = 16;

/// The permit. It is free, or one thread has it.
#[derive(Debug, Default)]
pub struct Permit {
    is_taken: AtomicBool,
    /// The end of the reservation and the worker plus 1; 0 for none.
    reservation: AtomicU64,
}

/// The permit, which ends when this is dropped.
#[derive(Debug)]
pub struct HeldPermit<'t>(&'t Permit);

impl Drop for HeldPermit<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl Permit {
    /// Takes the permit for a worker whose attempts have failed so many times. Returns `None` if another one has it, or
    /// has reserved it.
    pub fn try_take(&self, worker: ThreadIndex, failures: u32, now_ms: u64) -> Option<HeldPermit<'_>> {
        let own = worker.get() as u64 + 1;
        let reservation = self.reservation.load(Ordering::Relaxed);
        let (reserved_for, until_ms) = (reservation & ((1 << WORKER_BITS) - 1), reservation >> WORKER_BITS);
        let is_reserved = reservation != 0 && now_ms < until_ms;
        if is_reserved && reserved_for != own {
            return None;
        }
        for _ in 0..SPINS {
            if !self.is_taken.swap(true, Ordering::Acquire) {
                if reservation != 0 {
                    self.reservation.store(0, Ordering::Relaxed);
                }
                return Some(HeldPermit(self));
            }
            std::hint::spin_loop();
        }
        if failures >= RESERVE_AFTER_FAILURES && !is_reserved {
            let until_ms = now_ms + RESERVED_MS;
            self.reservation.store(until_ms << WORKER_BITS | own, Ordering::Relaxed);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ThreadIndex = ThreadIndex::new(0);
    const B: ThreadIndex = ThreadIndex::new(1);

    #[test]
    fn one_thread_has_the_permit() {
        let permit = Permit::default();
        let held = permit.try_take(A, 0, 10);
        assert!(held.is_some());
        assert!(permit.try_take(B, 0, 10).is_none());
        drop(held);
        assert!(permit.try_take(B, 0, 10).is_some());
    }

    #[test]
    fn a_permit_is_reserved_for_a_worker_that_has_failed_often() {
        let permit = Permit::default();
        let held = permit.try_take(A, 0, 10);
        assert!(permit.try_take(B, RESERVE_AFTER_FAILURES, 10).is_none());
        drop(held);
        assert!(permit.try_take(A, 0, 11).is_none(), "it is reserved");
        drop(
            permit
                .try_take(B, RESERVE_AFTER_FAILURES + 1, 11)
                .expect("is reserved for it"),
        );
        assert!(permit.try_take(A, 0, 11).is_some());
    }

    #[test]
    fn a_reservation_ends() {
        let permit = Permit::default();
        let held = permit.try_take(A, 0, 10);
        assert!(permit.try_take(B, RESERVE_AFTER_FAILURES, 10).is_none());
        drop(held);
        assert!(permit.try_take(A, 0, 10 + RESERVED_MS).is_some());
    }
}

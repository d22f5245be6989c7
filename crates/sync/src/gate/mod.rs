//! The gate: a batch of work enters through its seat's own cache line; a closer keeps all seats out and has exclusive
//! access.
//!
//! Each seat has a word on its own cache lines:
//!
//! ```text
//!              enter                                enter sleeps
//!          ┌───────────► IN ────────┐             ┌──────┐
//!          │                        │ close       │      │
//!         0│◄─────────── IN         ▼             ▼      │
//!          │   leave            IN|CLOSED ─────► CLOSED ─┘
//!          │                            leave      │
//!          └───────────────────────────────────────┘
//!                          open
//! ```
//!
//! | bit | set by | cleared by |
//! |---|---|---|
//! | `IN` | the seat, by compare-and-swap from 0 | the seat |
//! | `CLOSED` | the closer | the closer |
//! | `BIASED` | the seat, together with `IN` | the seat |
//! | `TAKEN` (a variable of its own) | `take_seat` | `return_seat` |
//!
//! Because both bits are in *one* word, "set mine, then check yours" is a single read-modify-write: whichever of
//! `enter` and `close` comes second in the word's modification order sees the other. This costs the seat one locked
//! instruction to enter and one to leave, as much as the store-then-load fence that it replaces. The closer pays one
//! instruction per seat; closing is rare.
//!
//! # Sleeping threads
//!
//! Threads sleep under one mutex, which no thread takes while the gate is open:
//!
//! 1. `closed` is set before the first seat word gets `CLOSED` and cleared after the last one has lost it. So a thread
//!    that holds the mutex and reads `closed == false` finds its word without `CLOSED`, and its entry cannot fail.
//! 2. A closer sleeps until the last seat has left. A seat that leaves and saw `CLOSED` takes the mutex *after* it has
//!    cleared `IN`; the closer checks the words while it holds the mutex and releases it only by falling asleep. So of
//!    the seats that leave, the one that takes the mutex last finds all of them out and wakes the closer, once.
//! 3. Closers are served in order of arrival, as in a ticket lock. Those that arrive before the last seat has left form
//!    a *phase*: each hands the closed gate over to the next one. To open the gate for other threads and to close it
//!    again would take each of these threads' time slices, many times what most closers need the gate for.
//! 4. The first closer of a phase waits until every thread that slept through the last one has entered. So phases
//!    alternate with the other threads instead of keeping them out, as in a phase-fair lock (Brandenburg and Anderson,
//!    "Reader-writer synchronization for shared-memory multiprocessor real-time systems", 2009), but with all waiting
//!    closers in a phase.
//!
//! A thread that holds a passage of one seat and closes with another deadlocks: a thread must have one seat only.
//!
//! # Bias
//!
//! Where one seat does all the work there is no conflict, and yet every lease costs two locked instructions. So the
//! gate can be *biased* towards one seat (as in biased locking), whose passages then set `BIASED` together with `IN`
//! and take leases without locked instructions. Another seat may enter at any time and revokes the bias:
//!
//! ```text
//!   bias:   none ──acquire──► seat ──another seat enters──► revoking, seat ──its biased passage ends──► none
//! ```
//!
//! 1. A seat acquires the bias while it is inside as usual, and keeps it only if it then finds every other seat out.
//! 2. It enters through the bias by setting `IN | BIASED`, and the passage is biased only if it then still finds its
//!    bias. Otherwise it clears `BIASED` and is inside as usual.
//! 3. A seat that enters as usual checks for a bias after it has set `IN`. If it finds one, it revokes it and waits
//!    until that seat's `BIASED` is clear, even if another seat is revoking it already. Only then is it inside.
//!
//! All of these operations are sequentially consistent, so of two concurrent seats at least one sees the other: rules 1
//! and 3 for acquiring the bias and an entry, rules 2 and 3 for a biased entry and a revocation. The effects of a
//! biased passage are released with the seat's word and acquired by the seat that waits for it, which passes it on
//! through `bias`.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use weft_os::statistics;

use crate::loom::{AtomicBool, AtomicU32, Condvar, Mutex, back_off, lock, model_fence, spin_loop, wait};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// The seat is inside.
const IN: u32 = 1;
/// The gate is closed for the seat.
const CLOSED: u32 = 1 << 1;

/// The seat is inside through the bias, and no other seat is inside.
const BIASED: u32 = 1 << 2;

/// The gate is biased towards no seat. A bias is stored as the seat's number plus one.
const UNBIASED: u32 = 0;
/// The bias is being revoked.
const REVOKING: u32 = 1 << 31;
/// The number of passages after which a seat tries to acquire the bias again.
const PASSES_PER_BIAS_ATTEMPT: u32 = if cfg!(loom) {
    1
} else if cfg!(feature = "simulated") {
    2
} else {
    64
};

/// The number of pauses in which a closer polls for the last seat's leaving before it sleeps: about 1 µs.
const CLOSER_PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// The state of one seat. Two cache lines, because the adjacent-line prefetcher fetches lines in pairs.
#[repr(align(128))]
struct SeatLine {
    word: AtomicU32,
    taken: AtomicBool,
    /// Passages since the seat last tried to acquire the bias; accessed only by the seat's owner.
    passes: AtomicU32,
    /// The number of passages, for observers; changed only by the seat's owner. Nothing depends on its order.
    passages: statistics::AtomicU64,
}

impl SeatLine {
    #[inline]
    fn count_passage(&self) {
        self.passages
            .store(self.passages.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// What an observer sees of a seat. It may be out of date at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatObservation {
    /// `true` if the seat is inside.
    pub is_inside: bool,
    /// The number of passages so far. A seat that is inside at two observations with the same number has not left
    /// between them.
    pub passages: u64,
}

/// What an observer sees of a gate that is closed, or that a closer waits for. It may be out of date at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosingObservation {
    /// The closer's seat.
    pub seat: usize,
    /// A number that no other closing of the gate has.
    pub closing: u64,
}

/// The bits of [`Gate::closing`] that hold the closer's seat plus one; the others hold its ticket.
const CLOSER_BITS: u32 = 16;

/// The seat towards which the gate is biased. On a line of its own, since every entry reads it and few change it.
#[repr(align(128))]
struct BiasedSeat(AtomicU32);

/// The state of sleeping threads, under the gate's mutex.
struct WaitState {
    closed: bool,
    /// The closer sleeps until the last seat has left.
    closer_sleeps: bool,
    /// The number of threads that slept at the closed gate and have not entered yet.
    sleepers: usize,
    /// The ticket that the next closer takes.
    next_ticket: u64,
    /// The ticket of the closer whose turn it is.
    now_serving: u64,
    /// The first ticket that does not belong to the present phase of closers.
    phase_end: u64,
    /// The gate is closed and empty, and belongs to the closer whose turn it is.
    is_handed_over: bool,
}

/// Admits many seats at a time, or one closer.
///
/// Seats are numbers; [`Domain`](crate::Domain) wraps them in types that rule out misuse. Here misuse (entering twice,
/// leaving while out) is asserted.
pub struct Gate {
    seats: Box<[SeatLine]>,
    bias: BiasedSeat,
    waiting: Mutex<WaitState>,
    /// The gate was opened.
    opened: Condvar,
    /// The next closer may be due.
    turn: Condvar,
    /// The last seat has left.
    emptied: Condvar,
    /// The closer, for observers; 0 while the gate is open. Nothing depends on its order.
    closing: statistics::AtomicU64,
    /// The number of closings that have begun, for observers; changed only by the closer. Nothing depends on its order.
    closings: statistics::AtomicU64,
}

#[inline]
fn encode_bias(seat: usize) -> u32 {
    seat as u32 + 1
}

impl Gate {
    /// Returns an open gate with `seats` free seats.
    #[must_use]
    pub fn new(seats: usize) -> Self {
        let seat = |_| SeatLine {
            word: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            passes: AtomicU32::new(0),
            passages: statistics::AtomicU64::new(0),
        };
        Self {
            seats: (0..seats).map(seat).collect(),
            bias: BiasedSeat(AtomicU32::new(UNBIASED)),
            waiting: Mutex::new(WaitState {
                closed: false,
                closer_sleeps: false,
                sleepers: 0,
                next_ticket: 0,
                now_serving: 0,
                phase_end: 0,
                is_handed_over: false,
            }),
            opened: Condvar::new(),
            turn: Condvar::new(),
            emptied: Condvar::new(),
            closing: statistics::AtomicU64::new(0),
            closings: statistics::AtomicU64::new(0),
        }
    }

    /// Returns the number of seats, taken or not.
    #[must_use]
    pub fn seats(&self) -> usize {
        self.seats.len()
    }

    /// Takes the lowest free seat. Returns `None` if all are taken. Does not wait, even while the gate is closed.
    #[must_use]
    pub fn take_seat(&self) -> Option<usize> {
        let free = |seat: &SeatLine| seat.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        self.seats.iter().position(free)
    }

    /// Returns a seat to the gate. A seat that is still inside leaves first.
    pub fn return_seat(&self, seat: usize) {
        let line = &self.seats[seat];
        if line.word.load(Relaxed) & IN != 0 {
            self.leave(seat);
        }
        let was_taken = line.taken.swap(false, Release);
        assert!(was_taken, "seat {seat} was returned twice");
    }

    /// Enters the gate; sleeps while it is closed.
    #[inline]
    pub fn enter(&self, seat: usize) {
        let line = &self.seats[seat];
        if let Err(seen) = line.word.compare_exchange(0, IN, SeqCst, Relaxed) {
            self.enter_slowly(seat, seen);
        }
        line.count_passage();
        self.revoke_bias_of_others(seat);
    }

    /// Enters the gate, through the bias if no other seat has been inside for a while. Returns `true` if no other seat
    /// can be inside until this seat leaves. For seats that rarely share the gate with another one.
    #[inline]
    pub fn enter_biased(&self, seat: usize) -> bool {
        if self.bias.0.load(Relaxed) == encode_bias(seat) {
            let line = &self.seats[seat];
            let word = &line.word;
            if word.compare_exchange(0, IN | BIASED, SeqCst, Relaxed).is_ok() {
                line.count_passage();
                model_fence();
                if self.bias.0.load(SeqCst) == encode_bias(seat) {
                    return true;
                }
                word.fetch_and(!BIASED, SeqCst);
                self.revoke_bias_of_others(seat);
                return false;
            }
        }
        self.enter(seat);
        let passes = &self.seats[seat].passes;
        let count = passes.load(Relaxed) + 1;
        passes.store(count % PASSES_PER_BIAS_ATTEMPT, Relaxed);
        if count >= PASSES_PER_BIAS_ATTEMPT {
            self.acquire_bias(seat);
        }
        false
    }

    /// Tries to bias the gate towards the seat, which is inside.
    #[cold]
    fn acquire_bias(&self, seat: usize) {
        let own_bias = encode_bias(seat);
        if self
            .bias
            .0
            .compare_exchange(UNBIASED, own_bias, SeqCst, Relaxed)
            .is_err()
        {
            return;
        }
        model_fence();
        let mut others = self.seats.iter().enumerate().filter(|(other, _)| *other != seat);
        if others.any(|(_, other)| other.word.load(SeqCst) & IN != 0) {
            // Fails if another seat is revoking the bias; that seat then clears it.
            let _ = self.bias.0.compare_exchange(own_bias, UNBIASED, SeqCst, Relaxed);
        }
    }

    /// Revokes the bias of any other seat and waits for its biased passage to end.
    #[inline]
    fn revoke_bias_of_others(&self, seat: usize) {
        model_fence();
        let bias = self.bias.0.load(SeqCst);
        if bias != UNBIASED && bias & !REVOKING != encode_bias(seat) {
            self.revoke_bias(bias);
        }
    }

    #[cold]
    fn revoke_bias(&self, seen: u32) {
        let bias = seen & !REVOKING;
        let revoking = bias | REVOKING;
        // Fails if another seat is revoking the bias already.
        let _ = self.bias.0.compare_exchange(bias, revoking, SeqCst, SeqCst);
        model_fence();
        let word = &self.seats[bias as usize - 1].word;
        let mut waits = 0;
        while word.load(SeqCst) & BIASED != 0 {
            back_off(waits);
            waits += 1;
        }
        let _ = self.bias.0.compare_exchange(revoking, UNBIASED, SeqCst, SeqCst);
    }

    #[cold]
    fn enter_slowly(&self, seat: usize, seen: u32) {
        assert!(seen & IN == 0, "seat {seat} enters twice");
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            waiting.sleepers += 1;
            while waiting.closed {
                waiting = wait(&self.opened, waiting);
            }
            waiting.sleepers -= 1;
            if waiting.sleepers == 0 && waiting.next_ticket != waiting.now_serving {
                self.turn.notify_all();
            }
        }
        let entered = self.seats[seat].word.compare_exchange(0, IN, SeqCst, Relaxed);
        assert!(
            entered.is_ok(),
            "the gate is open, yet seat {seat} cannot enter: {entered:?}"
        );
    }

    /// Leaves the gate. Wakes the closer if it sleeps and this seat was the last.
    #[inline]
    pub fn leave(&self, seat: usize) {
        let before = self.seats[seat].word.fetch_and(!(IN | BIASED), Release);
        assert!(before & IN != 0, "seat {seat} leaves twice");
        if before & CLOSED != 0 {
            self.wake_closer_if_last();
        }
    }

    #[cold]
    fn wake_closer_if_last(&self) {
        let mut waiting = lock(&self.waiting);
        if waiting.closer_sleeps && self.is_empty() {
            waiting.closer_sleeps = false;
            self.emptied.notify_one();
        }
    }

    /// Returns `true` if a closer waits for the seats inside to leave. Costs one relaxed load of the seat's own line.
    #[inline]
    #[must_use]
    pub fn is_closing(&self, seat: usize) -> bool {
        self.seats[seat].word.load(Relaxed) & CLOSED != 0
    }

    /// Closes the gate and returns when every seat has left. Closers take turns in order of arrival. `seat` is the
    /// caller's own and must be out.
    pub fn close(&self, seat: usize) {
        let own = self.seats[seat].word.load(Relaxed);
        assert!(own & IN == 0, "seat {seat} is inside and would wait for itself");
        let (ticket, is_handed_over) = self.await_turn();
        self.closing.store(ticket << CLOSER_BITS | (seat as u64 + 1), Relaxed);
        self.closings.store(ticket + 1, Relaxed);
        if is_handed_over {
            return;
        }
        for seat in &self.seats {
            // The check that finds the seat out acquires its effects before it left.
            let before = seat.word.fetch_or(CLOSED, Relaxed);
            assert!(before & CLOSED == 0, "two closers at once");
        }
        self.await_empty();
    }

    /// Waits for the caller's turn to close the gate. Returns its ticket, and `true` if another closer has handed over
    /// the gate, which is closed and empty.
    fn await_turn(&self) -> (u64, bool) {
        let mut waiting = lock(&self.waiting);
        let ticket = waiting.next_ticket;
        waiting.next_ticket += 1;
        loop {
            if waiting.now_serving == ticket {
                if std::mem::take(&mut waiting.is_handed_over) {
                    return (ticket, true);
                }
                if !waiting.closed && waiting.sleepers == 0 {
                    waiting.closed = true;
                    waiting.phase_end = waiting.next_ticket;
                    return (ticket, false);
                }
            }
            waiting = wait(&self.turn, waiting);
        }
    }

    fn await_empty(&self) {
        for _ in 0..CLOSER_PAUSES {
            if self.is_empty() {
                return;
            }
            spin_loop();
        }
        let mut waiting = lock(&self.waiting);
        while !self.is_empty() {
            waiting.closer_sleeps = true;
            waiting = wait(&self.emptied, waiting);
        }
        waiting.closer_sleeps = false;
        waiting.phase_end = waiting.next_ticket;
    }

    /// Returns `true` if no seat is inside; acquires what every seat did before it left.
    fn is_empty(&self) -> bool {
        self.seats.iter().all(|seat| seat.word.load(Acquire) & IN == 0)
    }

    /// Returns the number of seats that sleep at the closed gate, and of closers that wait for their turn.
    #[cfg(all(test, loom))]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let waiting = lock(&self.waiting);
        (
            waiting.sleepers,
            waiting.next_ticket - waiting.now_serving - u64::from(waiting.closed),
        )
    }

    /// Returns what an observer sees of a seat. Waits for nothing.
    #[must_use]
    pub fn observe_seat(&self, seat: usize) -> SeatObservation {
        let line = &self.seats[seat];
        SeatObservation {
            is_inside: line.word.load(Relaxed) & IN != 0,
            passages: line.passages.load(Relaxed),
        }
    }

    /// Returns the closer of the gate, from its turn on until it opens the gate; `None` if there is none. Waits for
    /// nothing.
    #[must_use]
    pub fn observe_closing(&self) -> Option<ClosingObservation> {
        let closing = self.closing.load(Relaxed);
        let seat = (closing & ((1 << CLOSER_BITS) - 1)).checked_sub(1)?;
        Some(ClosingObservation {
            seat: seat as usize,
            closing: closing >> CLOSER_BITS,
        })
    }

    /// Returns the number of closings of the gate that have begun. Waits for nothing.
    #[must_use]
    pub fn closings(&self) -> u64 {
        self.closings.load(Relaxed)
    }

    /// Opens the gate again, or hands it over to the next closer of the phase. Only the closer may call it.
    pub fn open(&self) {
        self.closing.store(0, Relaxed);
        if self.hand_over() {
            return;
        }
        for seat in &self.seats {
            // Release: publishes what the closer did to the seats that enter.
            let before = seat.word.fetch_and(!CLOSED, Release);
            assert!(before == CLOSED, "the gate was not closed and empty: {before:#x}");
        }
        let mut waiting = lock(&self.waiting);
        waiting.closed = false;
        waiting.now_serving += 1;
        if waiting.sleepers > 0 {
            self.opened.notify_all();
        } else if waiting.next_ticket != waiting.now_serving {
            self.turn.notify_all();
        }
    }

    /// Hands the closed gate over to the next closer. Returns `false` if there is none in this phase. The mutex
    /// publishes to it what this closer, and the seats before, did.
    fn hand_over(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        assert!(waiting.closed, "an open gate was opened");
        let next = waiting.now_serving + 1;
        if next >= waiting.phase_end {
            return false;
        }
        waiting.now_serving = next;
        waiting.is_handed_over = true;
        self.turn.notify_all();
        true
    }
}

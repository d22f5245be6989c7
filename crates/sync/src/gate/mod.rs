//! The gate: batches pass it by touching only their own cache line; a closer shuts everybody out and is alone.
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
//! | `ALONE` | the seat, together with `IN` | the seat |
//! | `TAKEN` (a variable of its own) | who takes the seat | who gives it back |
//!
//! Because both bits live in *one* word, "set mine, then look at yours" is a single read-modify-write: whichever of
//! `enter` and `close` comes second in the word's order sees the other. That costs the seat one locked instruction to
//! enter and one to leave, as much as the store-then-load fence it replaces. The closer pays with one instruction per
//! seat, which is rare.
//!
//! # The waiting room
//!
//! Whoever has to sleep does so under one mutex, which nobody takes while the gate stands open:
//!
//! 1. `closed` is set before the first seat word gets `CLOSED` and cleared after the last one lost it. So a thread that
//!    holds the mutex and reads `closed == false` finds its word without `CLOSED`, and enters for certain.
//! 2. A closer sleeps until the last seat is out. A seat that leaves and saw `CLOSED` takes the mutex *after* it has
//!    cleared `IN`; the closer looks at the words while it holds the mutex and gives it up only by falling asleep. So
//!    of the seats that leave, the one that takes the mutex last sees all of them out and wakes the closer, once.
//! 3. Closers are served in order of arrival, by ticket.
//! 4. A new closer waits until everybody who slept through the last closing has entered. So a stream of exclusives
//!    alternates with everybody else instead of shutting them out.
//!
//! A thread that holds a pass of one seat and closes with another waits for itself, for ever: one seat per thread.
//!
//! # The sole seat
//!
//! Where one seat does all the work, nobody is there to exclude, and still every lease costs two locked instructions.
//! So a seat may *claim* to be the sole one, and then enters alone: `ALONE` beside `IN`. Others may come at any time:
//!
//! ```text
//!   sole:   nobody ──claim──► seat ──another seat enters──► ending, seat ──it is not alone any more──► nobody
//! ```
//!
//! 1. A seat claims while it is inside as usual, and keeps the claim only if it then finds every other seat out.
//! 2. It enters alone by setting `IN | ALONE`, and is alone only if it then still finds its claim. Else it takes
//!    `ALONE` back and is inside as usual.
//! 3. A seat that enters as usual looks for a claim after it has set `IN`. If it finds one, it ends it and waits until
//!    that seat's `ALONE` is clear; also if another is ending it already. Only then is it inside.
//!
//! All of these are sequentially consistent, so of two seats at the same time at least one sees the other: of a claim
//! and an entry by 1 and 3, of an entry alone and the end of its claim by 2 and 3. What was done alone is released with
//! the seat's word and acquired by who waits for it, who passes it on through `sole`.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::loom::{AtomicBool, AtomicU32, Condvar, Mutex, lock, model_fence, spin_loop, wait, wait_for_company};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// The seat is inside.
const IN: u32 = 1;
/// The gate is closed for the seat.
const CLOSED: u32 = 1 << 1;

/// The seat is inside, and no other seat is.
const ALONE: u32 = 1 << 2;

/// Nobody claims to be the sole seat. A claim is the seat's number and one.
const NOBODY: u32 = 0;
/// The claim is being ended.
const ENDING: u32 = 1 << 31;
/// A seat claims once in so many passes.
const PASSES_A_CLAIM: u32 = if cfg!(loom) { 1 } else { 64 };

/// How long a closer hopes that the others are out at once before it sleeps: about 1 µs.
const CLOSER_PAUSES: u32 = if cfg!(loom) { 1 } else { 16 };

/// Two cache lines, because the adjacent-line prefetcher ties neighbours together.
#[repr(align(128))]
struct SeatLine {
    word: AtomicU32,
    taken: AtomicBool,
    /// Passes since the seat last claimed to be the sole one; its owner's.
    passes: AtomicU32,
}

/// Which seat claims to be the sole one; on a line of its own, which everybody reads and hardly anybody changes.
#[repr(align(128))]
struct SoleSeat(AtomicU32);

/// What sleepers need to know, under the gate's mutex.
struct WaitingRoom {
    closed: bool,
    /// The closer sleeps until the last seat is out.
    closer_sleeps: bool,
    /// Threads that slept at the closed gate and have not entered yet.
    sleepers: usize,
    /// The ticket the next closer draws.
    next_ticket: u64,
    /// The ticket of the closer whose turn it is.
    serving: u64,
}

/// Lets many seats in at a time, or one closer alone.
///
/// Seats are numbers; [`Domain`](crate::Domain) wraps them in types that cannot be used wrongly. Here wrong use
/// (entering twice, leaving while out) is asserted.
pub struct Gate {
    seats: Box<[SeatLine]>,
    sole: SoleSeat,
    room: Mutex<WaitingRoom>,
    /// The gate was opened.
    opened: Condvar,
    /// A closer's turn may have come.
    turn: Condvar,
    /// The last seat is out.
    emptied: Condvar,
}

#[inline]
fn claim_of(seat: usize) -> u32 {
    seat as u32 + 1
}

impl Gate {
    /// Open, with `seats` free seats.
    #[must_use]
    pub fn new(seats: usize) -> Self {
        let seat = |_| SeatLine {
            word: AtomicU32::new(0),
            taken: AtomicBool::new(false),
            passes: AtomicU32::new(0),
        };
        Self {
            seats: (0..seats).map(seat).collect(),
            sole: SoleSeat(AtomicU32::new(NOBODY)),
            room: Mutex::new(WaitingRoom {
                closed: false,
                closer_sleeps: false,
                sleepers: 0,
                next_ticket: 0,
                serving: 0,
            }),
            opened: Condvar::new(),
            turn: Condvar::new(),
            emptied: Condvar::new(),
        }
    }

    /// How many seats there are, taken or not.
    #[must_use]
    pub fn seats(&self) -> usize {
        self.seats.len()
    }

    /// Takes the lowest free seat. `None` if all are taken. Does not wait, even while the gate is closed.
    #[must_use]
    pub fn take_seat(&self) -> Option<usize> {
        let free = |seat: &SeatLine| seat.taken.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        self.seats.iter().position(free)
    }

    /// Gives a seat back; one that is still inside leaves.
    pub fn return_seat(&self, seat: usize) {
        let line = &self.seats[seat];
        if line.word.load(Relaxed) & IN != 0 {
            self.leave(seat);
        }
        let was_taken = line.taken.swap(false, Release);
        assert!(was_taken, "seat {seat} was given back twice");
    }

    /// Goes in; sleeps while the gate is closed.
    #[inline]
    pub fn enter(&self, seat: usize) {
        let word = &self.seats[seat].word;
        if let Err(seen) = word.compare_exchange(0, IN, SeqCst, Relaxed) {
            self.enter_slowly(seat, seen);
        }
        self.end_claims_of_others(seat);
    }

    /// Goes in, alone if no other seat has been inside for a while; tells whether it is alone until it leaves. For
    /// seats that hardly ever have company.
    #[inline]
    pub fn enter_alone(&self, seat: usize) -> bool {
        if self.sole.0.load(Relaxed) == claim_of(seat) {
            let word = &self.seats[seat].word;
            if word.compare_exchange(0, IN | ALONE, SeqCst, Relaxed).is_ok() {
                model_fence();
                if self.sole.0.load(SeqCst) == claim_of(seat) {
                    return true;
                }
                word.fetch_and(!ALONE, SeqCst);
                self.end_claims_of_others(seat);
                return false;
            }
        }
        self.enter(seat);
        let passes = &self.seats[seat].passes;
        let count = passes.load(Relaxed) + 1;
        passes.store(count % PASSES_A_CLAIM, Relaxed);
        if count >= PASSES_A_CLAIM {
            self.claim(seat);
        }
        false
    }

    /// Claims that the seat, which is inside, is the sole one.
    #[cold]
    fn claim(&self, seat: usize) {
        let claim = claim_of(seat);
        if self.sole.0.compare_exchange(NOBODY, claim, SeqCst, Relaxed).is_err() {
            return;
        }
        model_fence();
        let mut others = self.seats.iter().enumerate().filter(|(other, _)| *other != seat);
        if others.any(|(_, other)| other.word.load(SeqCst) & IN != 0) {
            // Fails if somebody is ending the claim, who then ends it.
            let _ = self.sole.0.compare_exchange(claim, NOBODY, SeqCst, Relaxed);
        }
    }

    /// Makes sure that no other seat is alone inside.
    #[inline]
    fn end_claims_of_others(&self, seat: usize) {
        model_fence();
        let sole = self.sole.0.load(SeqCst);
        if sole != NOBODY && sole & !ENDING != claim_of(seat) {
            self.end_claim(sole);
        }
    }

    #[cold]
    fn end_claim(&self, seen: u32) {
        let claim = seen & !ENDING;
        let ending = claim | ENDING;
        // Fails if another one ends it.
        let _ = self.sole.0.compare_exchange(claim, ending, SeqCst, SeqCst);
        model_fence();
        let word = &self.seats[claim as usize - 1].word;
        let mut waits = 0;
        while word.load(SeqCst) & ALONE != 0 {
            wait_for_company(waits);
            waits += 1;
        }
        let _ = self.sole.0.compare_exchange(ending, NOBODY, SeqCst, SeqCst);
    }

    #[cold]
    fn enter_slowly(&self, seat: usize, seen: u32) {
        assert!(seen & IN == 0, "seat {seat} enters twice");
        let mut room = lock(&self.room);
        if room.closed {
            room.sleepers += 1;
            while room.closed {
                room = wait(&self.opened, room);
            }
            room.sleepers -= 1;
            if room.sleepers == 0 && room.next_ticket != room.serving {
                self.turn.notify_all();
            }
        }
        let entered = self.seats[seat].word.compare_exchange(0, IN, SeqCst, Relaxed);
        assert!(
            entered.is_ok(),
            "the gate is open, yet seat {seat} cannot enter: {entered:?}"
        );
    }

    /// Goes out. Wakes the closer if it sleeps and this seat was the last.
    #[inline]
    pub fn leave(&self, seat: usize) {
        let before = self.seats[seat].word.fetch_and(!(IN | ALONE), Release);
        assert!(before & IN != 0, "seat {seat} leaves twice");
        if before & CLOSED != 0 {
            self.wake_closer_if_last();
        }
    }

    #[cold]
    fn wake_closer_if_last(&self) {
        let mut room = lock(&self.room);
        if room.closer_sleeps && self.everybody_is_out() {
            room.closer_sleeps = false;
            self.emptied.notify_one();
        }
    }

    /// Whether somebody waits for the seats inside to leave. One relaxed load of the seat's own line.
    #[inline]
    #[must_use]
    pub fn is_closing(&self, seat: usize) -> bool {
        self.seats[seat].word.load(Relaxed) & CLOSED != 0
    }

    /// Closes the gate and returns when every seat is out. Waits its turn behind other closers. `seat` is the
    /// caller's own, and out.
    pub fn close(&self, seat: usize) {
        let own = self.seats[seat].word.load(Relaxed);
        assert!(own & IN == 0, "seat {seat} is inside and would wait for itself");
        self.await_turn();
        for seat in &self.seats {
            // What the seat did before it left is acquired by the look that finds it out.
            let before = seat.word.fetch_or(CLOSED, Relaxed);
            assert!(before & CLOSED == 0, "two closers at once");
        }
        self.await_everybody_out();
    }

    fn await_turn(&self) {
        let mut room = lock(&self.room);
        let ticket = room.next_ticket;
        room.next_ticket += 1;
        while room.closed || room.sleepers > 0 || room.serving != ticket {
            room = wait(&self.turn, room);
        }
        room.closed = true;
    }

    fn await_everybody_out(&self) {
        for _ in 0..CLOSER_PAUSES {
            if self.everybody_is_out() {
                return;
            }
            spin_loop();
        }
        let mut room = lock(&self.room);
        while !self.everybody_is_out() {
            room.closer_sleeps = true;
            room = wait(&self.emptied, room);
        }
        room.closer_sleeps = false;
    }

    /// Acquires what every seat did before it left.
    fn everybody_is_out(&self) -> bool {
        self.seats.iter().all(|seat| seat.word.load(Acquire) & IN == 0)
    }

    /// How many sleep at the closed gate: seats that want to enter, and closers whose turn comes later.
    #[cfg(all(test, loom))]
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let room = lock(&self.room);
        (room.sleepers, room.next_ticket - room.serving - u64::from(room.closed))
    }

    /// Opens the gate again. Only who closed it may.
    pub fn open(&self) {
        for seat in &self.seats {
            // Release: what the closer did, for the seats that enter.
            let before = seat.word.fetch_and(!CLOSED, Release);
            assert!(before == CLOSED, "the gate was not closed and empty: {before:#x}");
        }
        let mut room = lock(&self.room);
        assert!(room.closed, "an open gate was opened");
        room.closed = false;
        room.serving += 1;
        if room.sleepers > 0 {
            self.opened.notify_all();
        } else if room.next_ticket != room.serving {
            self.turn.notify_all();
        }
    }
}

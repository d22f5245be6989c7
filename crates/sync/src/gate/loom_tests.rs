//! The gate in every interleaving: exclusion, visibility, and that no thread sleeps for ever.
//!
//! loom fails a scenario in which all threads sleep, so each of these also shows that no wake-up is lost.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::Gate;
use crate::loom::{Occurrences, explore};

/// A gate and the data it guards: seats inside read it, the closer writes it; loom checks each access.
struct Guarded {
    gate: Gate,
    data: UnsafeCell<usize>,
}

// SAFETY: rule 4: the data is written only between `close` and `open`, and read only between `enter` and `leave`.
unsafe impl Sync for Guarded {}
// SAFETY: a number may be sent to any thread.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new(seats: usize) -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(seats),
            data: UnsafeCell::new(0),
        })
    }

    fn read_inside(&self, seat: usize) -> usize {
        self.gate.enter(seat);
        // SAFETY: rule 4: inside.
        let value = self.data.with(|data| unsafe { *data });
        self.gate.leave(seat);
        value
    }

    fn add_closed(&self, seat: usize) {
        self.gate.close(seat);
        // SAFETY: rule 4: no seat is inside.
        self.data.with_mut(|data| unsafe { *data += 1 });
        self.gate.open();
    }
}

fn spawn(guarded: &Arc<Guarded>, work: impl FnOnce(&Guarded) + 'static) -> thread::JoinHandle<()> {
    let guarded = Arc::clone(guarded);
    thread::spawn(move || work(&guarded))
}

#[test]
fn a_batch_and_a_closer_exclude_each_other() {
    explore(4, || {
        let guarded = Guarded::new(2);
        let closer = spawn(&guarded, |guarded| guarded.add_closed(1));
        let first = guarded.read_inside(0);
        let second = guarded.read_inside(0);
        assert!(first <= second);
        closer.join().unwrap();
        assert_eq!(guarded.read_inside(0), 1);
    });
}

#[test]
fn two_batches_and_a_closer_exclude_each_other() {
    explore(2, || {
        let guarded = Guarded::new(3);
        let closer = spawn(&guarded, |guarded| guarded.add_closed(1));
        let other = spawn(&guarded, |guarded| assert!(guarded.read_inside(2) <= 1));
        assert!(guarded.read_inside(0) <= 1);
        closer.join().unwrap();
        other.join().unwrap();
        assert_eq!(guarded.read_inside(0), 1);
    });
}

#[test]
fn two_closers_take_turns() {
    explore(3, || {
        let guarded = Guarded::new(2);
        let other = spawn(&guarded, |guarded| guarded.add_closed(1));
        guarded.add_closed(0);
        other.join().unwrap();
        assert_eq!(guarded.read_inside(0), 2);
    });
}

#[test]
fn two_closers_and_a_batch_let_each_other_through() {
    explore(2, || {
        let guarded = Guarded::new(3);
        let closer = spawn(&guarded, |guarded| guarded.add_closed(1));
        let batch = spawn(&guarded, |guarded| assert!(guarded.read_inside(2) <= 2));
        guarded.add_closed(0);
        closer.join().unwrap();
        batch.join().unwrap();
        assert_eq!(guarded.read_inside(0), 2);
    });
}

#[test]
fn a_seat_taken_while_the_gate_is_closed_waits_like_the_others() {
    explore(3, || {
        let guarded = Guarded::new(2);
        let own = guarded.gate.take_seat().unwrap();
        let late = spawn(&guarded, |guarded| {
            let seat = guarded.gate.take_seat().unwrap();
            assert!(guarded.read_inside(seat) <= 1);
            guarded.gate.return_seat(seat);
        });
        guarded.add_closed(own);
        late.join().unwrap();
        assert_eq!(guarded.read_inside(own), 1);
    });
}

#[test]
fn a_biased_seat_excludes_other_seats() {
    static BIASED: Occurrences = Occurrences::new();
    explore(4, || {
        let guarded = Guarded::new(2);
        let other = spawn(&guarded, |guarded| {
            guarded.read_inside(1);
            guarded.read_inside(1);
        });
        for _ in 0..3 {
            if BIASED.count_if(guarded.gate.enter_biased(0)) {
                // SAFETY: rule 10: no other seat is inside.
                guarded.data.with_mut(|data| unsafe { *data += 1 });
            }
            guarded.gate.leave(0);
        }
        other.join().unwrap();
    });
    BIASED.assert_any("a biased passage");
}

#[test]
fn two_biased_seats_and_a_closer_exclude_each_other() {
    static BIASED: [Occurrences; 2] = [const { Occurrences::new() }; 2];
    explore(2, || {
        let guarded = Guarded::new(3);
        let increment_if_biased = |guarded: &Guarded, seat: usize| {
            for _ in 0..2 {
                if BIASED[seat].count_if(guarded.gate.enter_biased(seat)) {
                    // SAFETY: rule 10: no other seat is inside.
                    guarded.data.with_mut(|data| unsafe { *data += 1 });
                }
                guarded.gate.leave(seat);
            }
        };
        let other = spawn(&guarded, move |guarded| increment_if_biased(guarded, 1));
        let closer = spawn(&guarded, |guarded| guarded.add_closed(2));
        increment_if_biased(&guarded, 0);
        other.join().unwrap();
        closer.join().unwrap();
    });
    for (seat, biased) in BIASED.iter().enumerate() {
        biased.assert_any(&format!("a biased passage of seat {seat}"));
    }
}

//! The gate with real threads: seats, misuse, sleeping, taking turns.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use super::{ClosingObservation, Gate};

/// Long enough for a thread to fall asleep where that is expected.
const NAP: Duration = Duration::from_millis(30);

#[test]
fn seats_are_taken_lowest_first_and_returned() {
    let gate = Gate::new(2);
    assert_eq!(
        (gate.take_seat(), gate.take_seat(), gate.take_seat()),
        (Some(0), Some(1), None)
    );
    gate.return_seat(0);
    assert_eq!((gate.take_seat(), gate.take_seat()), (Some(0), None));
}

#[test]
fn an_observer_sees_who_is_inside_and_who_closes() {
    let gate = Gate::new(2);
    let (one, other) = (gate.take_seat().unwrap(), gate.take_seat().unwrap());
    assert!(!gate.observe_seat(one).is_inside);
    gate.enter(one);
    let first = gate.observe_seat(one);
    assert!(first.is_inside);
    assert_eq!(gate.observe_seat(one), first, "the same passage");
    gate.leave(one);
    gate.enter(one);
    assert_ne!(gate.observe_seat(one), first, "another passage");
    gate.leave(one);
    assert!(!gate.observe_seat(one).is_inside);
    for _ in 0..200 {
        let before = gate.observe_seat(one).passages;
        gate.enter_biased(one);
        assert_eq!(gate.observe_seat(one).passages, before + 1);
        gate.leave(one);
    }

    assert_eq!((gate.observe_closing(), gate.closings()), (None, 0));
    gate.close(other);
    assert_eq!(gate.closings(), 1);
    let closing = gate.observe_closing().expect("it is closed");
    assert_eq!(closing.seat, other);
    gate.open();
    assert_eq!((gate.observe_closing(), gate.closings()), (None, 1));
    gate.close(one);
    assert_eq!(gate.closings(), 2);
    let later = gate.observe_closing();
    assert_eq!(later.map(|later| later.seat), Some(one));
    assert_ne!(
        later.map(|ClosingObservation { closing, .. }| closing),
        Some(closing.closing)
    );
    gate.open();
}

#[test]
fn a_seat_returned_while_inside_leaves() {
    let gate = Gate::new(2);
    let (leaked, own) = (gate.take_seat().unwrap(), gate.take_seat().unwrap());
    gate.enter(leaked);
    gate.return_seat(leaked);
    gate.close(own);
    gate.open();
}

#[test]
#[should_panic(expected = "enters twice")]
fn entering_twice_is_refused() {
    let gate = Gate::new(1);
    gate.enter(0);
    gate.enter(0);
}

#[test]
#[should_panic(expected = "leaves twice")]
fn leaving_twice_is_refused() {
    let gate = Gate::new(1);
    gate.enter(0);
    gate.leave(0);
    gate.leave(0);
}

#[test]
#[should_panic(expected = "would wait for itself")]
fn closing_from_inside_is_refused() {
    let gate = Gate::new(1);
    gate.enter(0);
    gate.close(0);
}

#[test]
fn a_closer_sleeps_until_the_last_seat_has_left_and_the_seats_inside_see_it() {
    let gate = Gate::new(3);
    let inside = AtomicUsize::new(2);
    gate.enter(0);
    gate.enter(1);
    assert!(!gate.is_closing(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            gate.close(2);
            assert_eq!(inside.load(SeqCst), 0);
            gate.open();
        });
        for seat in [0, 1] {
            while !gate.is_closing(seat) {
                thread::yield_now();
            }
            thread::sleep(NAP);
            inside.fetch_sub(1, SeqCst);
            gate.leave(seat);
        }
    });
    gate.enter(0);
    assert!(!gate.is_closing(0));
}

#[test]
fn a_seat_that_finds_the_gate_closed_sleeps_until_it_opens() {
    let gate = Gate::new(3);
    let entered = AtomicUsize::new(0);
    gate.close(0);
    thread::scope(|scope| {
        for seat in [1, 2] {
            let (gate, entered) = (&gate, &entered);
            scope.spawn(move || {
                gate.enter(seat);
                entered.fetch_add(1, SeqCst);
                gate.leave(seat);
            });
        }
        thread::sleep(NAP);
        assert_eq!(entered.load(SeqCst), 0);
        gate.open();
    });
    assert_eq!(entered.load(SeqCst), 2);
}

#[test]
fn a_stream_of_closers_alternates_with_the_sleepers() {
    let gate = Gate::new(3);
    let entered = AtomicUsize::new(0);
    gate.close(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            gate.enter(1);
            entered.store(1, SeqCst);
            gate.leave(1);
        });
        // The sleeper is counted before the next closer arrives.
        while crate::loom::lock(&gate.waiting).sleepers == 0 {
            thread::yield_now();
        }
        scope.spawn(|| {
            gate.close(2);
            assert_eq!(
                entered.load(SeqCst),
                1,
                "a thread that slept through the first closing entered before the second"
            );
            gate.open();
        });
        while crate::loom::lock(&gate.waiting).next_ticket < 2 {
            thread::yield_now();
        }
        gate.open();
    });
}

#[test]
fn closers_are_served_in_order_of_arrival() {
    const CLOSERS: usize = 6;
    let gate = Gate::new(CLOSERS + 1);
    let served = AtomicUsize::new(1);
    gate.close(0);
    thread::scope(|scope| {
        for seat in 1..=CLOSERS {
            let (gate, served) = (&gate, &served);
            scope.spawn(move || {
                gate.close(seat);
                assert_eq!(served.fetch_add(1, SeqCst), seat);
                gate.open();
            });
            while crate::loom::lock(&gate.waiting).next_ticket <= seat as u64 {
                thread::yield_now();
            }
        }
        gate.open();
    });
    assert_eq!(served.load(SeqCst), CLOSERS + 1);
}

#[test]
fn closers_that_wait_for_the_last_seat_follow_each_other_before_the_gate_opens() {
    let gate = Gate::new(4);
    let (sections, entered_after) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tickets = || crate::loom::lock(&gate.waiting).next_ticket;
    gate.enter(0);
    thread::scope(|scope| {
        for seat in [1, 2] {
            let (gate, sections) = (&gate, &sections);
            scope.spawn(move || {
                gate.close(seat);
                sections.fetch_add(1, SeqCst);
                gate.open();
            });
            while tickets() < seat as u64 {
                thread::yield_now();
            }
        }
        while !crate::loom::lock(&gate.waiting).closer_sleeps {
            thread::yield_now();
        }
        scope.spawn(|| {
            gate.enter(3);
            entered_after.store(sections.load(SeqCst), SeqCst);
            gate.leave(3);
        });
        while crate::loom::lock(&gate.waiting).sleepers == 0 {
            thread::yield_now();
        }
        gate.leave(0);
    });
    assert_eq!(
        entered_after.load(SeqCst),
        2,
        "the gate did not open between the closers"
    );
    gate.enter(0);
    gate.leave(0);
}

//! Leases and exclusive access in every interleaving; loom checks each access to a cell's data.

use std::sync::Arc;

use loom::thread;

use super::{Domain, Exclusive, GatePassage, PassageLoan, SharedExclusive, ThreadSeat};
use crate::loom::{Occurrences, explore};

type Counts = Domain<(), (usize, usize)>;
type CountsSeat = ThreadSeat<(), (usize, usize)>;

fn counts(cells: usize, seats: usize) -> Arc<Counts> {
    Arc::new(Domain::new(cells, seats, |_| ((), (0, 0))))
}

fn spawn<R: 'static>(domain: &Arc<Counts>, work: impl FnOnce(CountsSeat) -> R + 'static) -> thread::JoinHandle<R> {
    let seat = domain.join().unwrap();
    thread::spawn(move || work(seat))
}

/// Enters through the bias if the gate has it for this seat, and counts these passages.
fn enter_alone<'a>(seat: &'a mut CountsSeat, biased: &Occurrences) -> GatePassage<'a, (), (usize, usize)> {
    let pass = seat.enter_alone();
    biased.count_if(pass.biased);
    pass
}

/// Tries once to increment both halves of a cell; returns how often it did.
fn try_increment(seat: &mut CountsSeat, cell: usize) -> usize {
    let pass = seat.enter();
    let Some(mut lease) = pass.try_write(cell) else {
        return 0;
    };
    lease.0 += 1;
    lease.1 += 1;
    1
}

/// Tries once to read a cell, whose halves must never differ to a reader.
fn try_look(seat: &mut CountsSeat, cell: usize) -> Option<usize> {
    let pass = seat.enter();
    let lease = pass.try_read(cell)?;
    assert_eq!(lease.0, lease.1);
    Some(lease.0)
}

#[test]
fn writers_exclude_each_other_and_see_each_others_work() {
    explore(4, || {
        let domain = counts(1, 3);
        let other = spawn(&domain, |mut seat| {
            try_increment(&mut seat, 0) + try_increment(&mut seat, 0)
        });
        let mut seat = domain.join().unwrap();
        let raised = try_increment(&mut seat, 0) + try_increment(&mut seat, 0);
        let all = raised + other.join().unwrap();
        assert!(all >= 2, "one of two writers is always admitted");
        assert_eq!(try_look(&mut seat, 0), Some(all));
    });
}

#[test]
fn a_reader_never_sees_half_a_write() {
    explore(4, || {
        let domain = counts(1, 3);
        let writer = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let mut seat = domain.join().unwrap();
        let (first, second) = (try_look(&mut seat, 0), try_look(&mut seat, 0));
        if let (Some(first), Some(second)) = (first, second) {
            assert!(first <= second);
        }
        let raised = writer.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn two_readers_and_a_writer_exclude_each_other() {
    explore(2, || {
        let domain = counts(1, 3);
        let writer = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let reader = spawn(&domain, |mut seat| try_look(&mut seat, 0));
        let mut seat = domain.join().unwrap();
        let _ = try_look(&mut seat, 0);
        reader.join().unwrap();
        let raised = writer.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn readers_never_exclude_each_other() {
    explore(4, || {
        let domain = counts(1, 2);
        let other = spawn(&domain, |mut seat| try_look(&mut seat, 0).is_some());
        let mut seat = domain.join().unwrap();
        assert!(try_look(&mut seat, 0).is_some());
        assert!(other.join().unwrap());
    });
}

#[test]
fn an_announced_writer_is_admitted_before_new_readers() {
    static UNANNOUNCED: Occurrences = Occurrences::new();
    static REFUSED: Occurrences = Occurrences::new();
    static ENDED: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 2);
        let mut seat = domain.join().unwrap();
        let pass = seat.enter();
        let reading = pass.try_read(0).unwrap();
        let writer = spawn(&domain, |mut seat| {
            let pass = seat.enter();
            let Some(mut lease) = pass.try_write(0) else {
                pass.announce_writer(0);
                return false;
            };
            *lease = (1, 1);
            true
        });
        drop(reading);
        let wrote = writer.join().unwrap();
        if UNANNOUNCED.count_if(wrote) {
            assert_eq!(*pass.try_read(0).unwrap(), (1, 1));
        } else {
            let is_refused = REFUSED.count_if(pass.try_read(0).is_none());
            assert!(is_refused, "the announcement outlives the reader");
            assert!(pass.try_write(0).is_some(), "and any writer is admitted");
            let has_ended = ENDED.count_if(pass.try_read(0).is_some());
            assert!(has_ended, "the writer's admission ends the announcement");
        }
    });
    UNANNOUNCED.assert_any("a writer that is admitted without an announcement");
    REFUSED.assert_any("a reader that an announcement refuses");
    ENDED.assert_any("an announcement that a writer's admission ends");
}

#[test]
fn a_batch_with_leases_and_exclusive_access_exclude_each_other() {
    explore(3, || {
        let domain = counts(2, 2);
        let batch = spawn(&domain, |mut seat| {
            let pass = seat.enter();
            let (mut from, mut to) = (pass.try_write(0).unwrap(), pass.try_write(1).unwrap());
            from.0 += 1;
            to.0 += 1;
        });
        let mut seat = domain.join().unwrap();
        {
            let mut alone = seat.exclusive();
            assert_eq!(alone.cell(0), alone.cell(1), "the batch is done or has not begun");
            alone.iter_mut().for_each(|cell| cell.0 += 10);
        }
        batch.join().unwrap();
        assert_eq!(*seat.exclusive().cell(1), (11, 0));
    });
}

#[test]
fn two_exclusive_accesses_take_turns() {
    explore(3, || {
        let domain = counts(1, 2);
        let other = spawn(&domain, |mut seat| seat.exclusive().cell_mut(0).0 += 1);
        let mut seat = domain.join().unwrap();
        seat.exclusive().cell_mut(0).0 += 1;
        other.join().unwrap();
        assert_eq!(seat.exclusive().cell(0).0, 2);
    });
}

/// Pauses exclusive access whose holder has left a cell half changed before. No other thread may see that half, and
/// after the pause the holder sees the work of all threads that waited. Returns how often the cell was incremented so
/// far.
fn increment_and_pause(alone: &mut Exclusive<'_, (), (usize, usize)>, before: usize) -> usize {
    alone.cell_mut(0).0 += 1;
    assert_eq!(
        *alone.cell(0),
        (before + 1, before),
        "no other thread was inside meanwhile"
    );
    alone.cell_mut(0).1 += 1;
    let (seats, closers) = alone.domain.gate.waiting();
    alone.pause();
    let (raised, halves) = *alone.cell(0);
    assert_eq!(raised, halves, "the holder has exclusive access again");
    let waited = seats + usize::try_from(closers).unwrap();
    assert!(
        raised > before + waited,
        "{waited} waited, and not all were let through"
    );
    raised
}

/// Increments a cell with all other seats out.
fn increment_exclusively(seat: &mut CountsSeat) {
    let mut alone = seat.exclusive();
    let cell = alone.cell_mut(0);
    cell.0 += 1;
    cell.1 += 1;
}

#[test]
fn a_pause_lets_a_waiting_batch_through() {
    explore(4, || {
        let domain = counts(1, 2);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        let batch = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let raised = increment_and_pause(&mut alone, 0);
        drop(alone);
        assert_eq!(batch.join().unwrap(), 1, "the batch has no rival inside");
        assert!(raised <= 2);
        assert_eq!(try_look(&mut seat, 0), Some(2));
    });
}

#[test]
fn pauses_and_batches_take_turns() {
    explore(3, || {
        let domain = counts(1, 2);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        let batches = spawn(&domain, |mut seat| {
            try_increment(&mut seat, 0) + try_increment(&mut seat, 0)
        });
        let raised = increment_and_pause(&mut alone, 0);
        increment_and_pause(&mut alone, raised);
        drop(alone);
        assert_eq!(batches.join().unwrap(), 2);
        assert_eq!(try_look(&mut seat, 0), Some(4));
    });
}

#[test]
fn a_pause_lets_two_waiting_batches_through() {
    explore(2, || {
        let domain = counts(2, 3);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        // Each has its own cell, because they would refuse each other.
        let batch = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let other = spawn(&domain, |mut seat| try_increment(&mut seat, 1));
        let before = alone.domain.gate.waiting().0;
        alone.pause();
        let raised = alone.cell(0).0 + alone.cell(1).0;
        assert!(raised >= before, "{before} waited, {raised} were let through");
        drop(alone);
        assert_eq!(batch.join().unwrap() + other.join().unwrap(), 2);
        assert_eq!((try_look(&mut seat, 0), try_look(&mut seat, 1)), (Some(1), Some(1)));
    });
}

#[test]
fn a_pause_hands_the_gate_to_a_waiting_closer_and_gets_it_back() {
    explore(3, || {
        let domain = counts(1, 2);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        let rival = spawn(&domain, |mut seat| increment_exclusively(&mut seat));
        let raised = increment_and_pause(&mut alone, 0);
        drop(alone);
        rival.join().unwrap();
        assert!(raised <= 2);
        assert_eq!(try_look(&mut seat, 0), Some(2));
    });
}

#[test]
fn a_pause_lets_a_batch_and_another_closer_through() {
    explore(2, || {
        let domain = counts(1, 3);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        let rival = spawn(&domain, |mut seat| increment_exclusively(&mut seat));
        let batch = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        increment_and_pause(&mut alone, 0);
        drop(alone);
        rival.join().unwrap();
        assert_eq!(batch.join().unwrap(), 1);
        assert_eq!(try_look(&mut seat, 0), Some(3));
    });
}

#[test]
fn two_closers_that_pause_hand_the_gate_to_each_other() {
    /// Increments the halves separately, so that a concurrent thread would see them differ, and again after a pause.
    fn increment_twice(seat: &mut CountsSeat) {
        let mut alone = seat.exclusive();
        for round in 0..2 {
            if round > 0 {
                alone.pause();
            }
            let cell = alone.cell_mut(0);
            assert_eq!(cell.0, cell.1);
            cell.0 += 1;
            alone.cell_mut(0).1 += 1;
        }
    }
    explore(3, || {
        let domain = counts(1, 2);
        let other = spawn(&domain, |mut seat| increment_twice(&mut seat));
        let mut seat = domain.join().unwrap();
        increment_twice(&mut seat);
        other.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(4));
    });
}

#[test]
fn a_pause_lets_a_biased_seat_through() {
    static BIASED: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 2);
        let mut seat = domain.join().unwrap();
        let mut alone = seat.exclusive();
        let biased = spawn(&domain, |mut seat| {
            for _ in 0..3 {
                let pass = enter_alone(&mut seat, &BIASED);
                let mut lease = pass.try_write(0).expect("no other thread takes leases");
                lease.0 += 1;
                lease.1 += 1;
            }
        });
        let raised = increment_and_pause(&mut alone, 0);
        increment_and_pause(&mut alone, raised);
        drop(alone);
        biased.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(5));
    });
    BIASED.assert_any("a biased passage");
}

/// Marks a cell as hot, as readers that collide do.
fn mark_hot(domain: &Arc<Counts>, cell: usize) {
    domain.cells[cell].word.mark_hot();
}

#[test]
fn a_published_reader_and_a_writer_exclude_each_other() {
    explore(3, || {
        let domain = counts(1, 3);
        mark_hot(&domain, 0);
        let writer = spawn(&domain, |mut seat| {
            try_increment(&mut seat, 0) + try_increment(&mut seat, 0)
        });
        let mut seat = domain.join().unwrap();
        let _ = try_look(&mut seat, 0);
        let _ = try_look(&mut seat, 0);
        let raised = writer.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn a_writer_that_gave_up_leaves_published_readers_protected() {
    // The first try clears `HOT` and finds the reader; the second must look for it again.
    explore(3, || {
        let domain = counts(1, 3);
        mark_hot(&domain, 0);
        let mut seat = domain.join().unwrap();
        let pass = seat.enter();
        let first = pass.try_read(0).expect("no writer is there yet");
        let writer = spawn(&domain, |mut seat| {
            try_increment(&mut seat, 0) + try_increment(&mut seat, 0)
        });
        let second = pass.try_read(0);
        assert_eq!(first.0, first.1);
        drop(first);
        if let Some(second) = &second {
            assert_eq!(second.0, second.1);
        }
        drop(second);
        drop(pass);
        let raised = writer.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn two_published_readers_and_a_writer_exclude_each_other() {
    explore(2, || {
        let domain = counts(1, 3);
        mark_hot(&domain, 0);
        let writer = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let reader = spawn(&domain, |mut seat| try_look(&mut seat, 0));
        let mut seat = domain.join().unwrap();
        let _ = try_look(&mut seat, 0);
        reader.join().unwrap();
        let raised = writer.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn two_writers_and_a_published_reader_exclude_each_other() {
    explore(2, || {
        let domain = counts(1, 3);
        mark_hot(&domain, 0);
        let one = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let other = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let mut seat = domain.join().unwrap();
        let _ = try_look(&mut seat, 0);
        let raised = one.join().unwrap() + other.join().unwrap();
        assert_eq!(try_look(&mut seat, 0), Some(raised));
    });
}

#[test]
fn leases_of_a_biased_passage_exclude_those_of_later_passages() {
    static BIASED: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 2);
        let other = spawn(&domain, |mut seat| {
            try_increment(&mut seat, 0) + usize::from(try_look(&mut seat, 0).is_some())
        });
        let mut seat = domain.join().unwrap();
        let mut raised = 0;
        for _ in 0..3 {
            let pass = enter_alone(&mut seat, &BIASED);
            if let Some(mut lease) = pass.try_write(0) {
                lease.0 += 1;
                lease.1 += 1;
                raised += 1;
            }
            if let Some(lease) = pass.try_read(0) {
                assert!(pass.try_write(0).is_none(), "its own reader holds the cell");
                assert_eq!(lease.0, lease.1);
            }
        }
        other.join().unwrap();
        assert!(try_look(&mut seat, 0).unwrap() >= raised);
    });
    BIASED.assert_any("a biased passage");
}

/// What readers in passages that may be biased come upon.
struct BiasedLooks {
    /// A biased passage.
    biased: Occurrences,
    /// An announced cell whose reader is refused.
    refused: Occurrences,
    /// An announcement that the reader of a biased passage ends.
    ended: Occurrences,
}

impl BiasedLooks {
    const fn new() -> Self {
        Self {
            biased: Occurrences::new(),
            refused: Occurrences::new(),
            ended: Occurrences::new(),
        }
    }
}

/// Reads a cell through a passage that may be biased, and checks that no writer is admitted meanwhile.
fn look_biased(seat: &mut CountsSeat, cell: usize, looks: &BiasedLooks) -> Option<usize> {
    let pass = enter_alone(seat, &looks.biased);
    let word = &pass.domain.cells[cell].word;
    let was_announced = word.is_announced();
    let lease = pass.try_read(cell);
    looks.refused.count_if(was_announced && lease.is_none());
    looks
        .ended
        .count_if(was_announced && pass.biased && lease.is_some() && !word.is_announced());
    let lease = lease?;
    assert!(pass.try_write(cell).is_none(), "its own reader holds the cell");
    assert_eq!(lease.0, lease.1);
    Some(lease.0)
}

#[test]
fn an_abandoned_announcement_does_not_starve_a_biased_seat() {
    static LOOKS: BiasedLooks = BiasedLooks::new();
    explore(3, || {
        let domain = counts(1, 2);
        let other = spawn(&domain, |mut seat| {
            // A writer that announces itself and never returns.
            seat.enter().announce_writer(0);
        });
        let mut seat = domain.join().unwrap();
        let _ = look_biased(&mut seat, 0, &LOOKS);
        other.join().unwrap();
        // The other seat has left for good. The first passage may still find its bias revoked; the next acquires it
        // again.
        let looks: Vec<_> = (0..3).map(|_| look_biased(&mut seat, 0, &LOOKS)).collect();
        assert_eq!(looks.last(), Some(&Some(0)), "{looks:?}");
    });
    LOOKS.biased.assert_any("a biased passage");
    LOOKS.refused.assert_any("a reader that the announcement refuses");
    LOOKS
        .ended
        .assert_any("an announcement that the reader of a biased passage ends");
}

#[test]
fn a_writer_that_announces_itself_to_a_biased_seat_is_admitted() {
    static LOOKS: BiasedLooks = BiasedLooks::new();
    static ANNOUNCED: Occurrences = Occurrences::new();
    static ADMITTED: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 2);
        let writer = spawn(&domain, |mut seat| {
            let mut raised = 0;
            let mut has_announced = false;
            for _ in 0..2 {
                let pass = seat.enter();
                match pass.try_write(0) {
                    Some(mut lease) => {
                        lease.0 += 1;
                        lease.1 += 1;
                        raised += 1;
                        ADMITTED.count_if(has_announced);
                    }
                    None => {
                        pass.announce_writer(0);
                        has_announced = ANNOUNCED.count_if(true);
                    }
                }
            }
            raised
        });
        let mut seat = domain.join().unwrap();
        let seen: Vec<_> = (0..3).filter_map(|_| look_biased(&mut seat, 0, &LOOKS)).collect();
        assert!(seen.is_sorted());
        let raised = writer.join().unwrap();
        let looks: Vec<_> = (0..3).map(|_| look_biased(&mut seat, 0, &LOOKS)).collect();
        assert_eq!(looks.last(), Some(&Some(raised)), "{looks:?}");
    });
    LOOKS.biased.assert_any("a biased passage");
    ANNOUNCED.assert_any("a writer that announces itself");
    ADMITTED.assert_any("an announced writer that is admitted");
    LOOKS
        .ended
        .assert_any("an announcement that the reader of a biased passage ends");
}

#[test]
fn a_reader_that_ends_an_announcement_does_not_admit_two_writers() {
    static ENDED: Occurrences = Occurrences::new();
    static WRITER_FIRST: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 3);
        let mut seat = domain.join().unwrap();
        seat.enter().announce_writer(0);
        let writer = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let pass = seat.enter();
        pass.end_announcement(0);
        let lease = pass.try_read(0);
        if let Some(lease) = &lease {
            assert_eq!(lease.0, lease.1);
        }
        // Only the reader can have ended the announcement of a cell that no writer has changed.
        ENDED.count_if(lease.as_ref().is_some_and(|lease| lease.0 == 0));
        WRITER_FIRST.count_if(lease.is_none_or(|lease| lease.0 == 1));
        drop(pass);
        let raised = writer.join().unwrap();
        assert!(try_look(&mut seat, 0).is_none_or(|seen| seen == raised));
    });
    ENDED.assert_any("an announcement that the reader ends");
    WRITER_FIRST.assert_any("a writer that is admitted before the reader");
}

/// Increments both halves of a cell.
fn increment_shared(shared: &SharedExclusive<'_, (), (usize, usize)>, cell: usize) {
    let pass = shared.enter();
    let mut lease = pass.write(cell);
    assert_eq!(lease.0, lease.1);
    lease.0 += 1;
    lease.1 += 1;
}

#[test]
fn threads_that_share_exclusive_access_exclude_each_other_and_every_seat() {
    explore(2, || {
        let domain = counts(1, 2);
        let batch = spawn(&domain, |mut seat| try_increment(&mut seat, 0));
        let mut seat = domain.join().unwrap();
        let mut all = seat.exclusive();
        // The threads of a model need references without an end.
        let shared: *mut SharedExclusive<'_, (), (usize, usize)> = Box::into_raw(Box::new(all.share()));
        let address = shared as usize;
        let sharer = thread::spawn(move || {
            // SAFETY: the box is freed after this thread has ended.
            let shared = unsafe { &*(address as *const SharedExclusive<'_, (), (usize, usize)>) };
            increment_shared(shared, 0);
        });
        // SAFETY: the box is freed below.
        let borrowed = unsafe { &*shared };
        borrowed.pause();
        borrowed.with_exclusive(|all| {
            let cell = all.cell_mut(0);
            (cell.0, cell.1) = (cell.0 + 1, cell.1 + 1);
        });
        sharer.join().unwrap();
        // SAFETY: it was made above, and no reference to it is used any more.
        drop(unsafe { Box::from_raw(shared) });
        assert!(all.cell(0).0 >= 2, "both sharers are done");
        drop(all);
        let entered = batch.join().unwrap();
        assert_eq!(seat.exclusive().cell(0).0, 2 + entered);
    });
}

/// Increments both halves of a cell in a passage, if the lease is granted; returns how often it did.
fn increment_within(pass: &GatePassage<'_, (), (usize, usize)>) -> usize {
    let Some(mut lease) = pass.try_write(0) else {
        return 0;
    };
    lease.0 += 1;
    lease.1 += 1;
    1
}

#[test]
fn exclusive_access_waits_for_the_passages_under_a_loan() {
    explore(3, || {
        let domain = counts(1, 3);
        let loan = Arc::new(PassageLoan::new(&domain));
        let lent = loan.clone();
        let helper = spawn(&domain, move |mut seat| match seat.enter_lent(&lent) {
            Some(pass) => increment_within(&pass),
            None => 0,
        });
        let closer = spawn(&domain, |mut seat| {
            let mut all = seat.exclusive();
            let cell = all.cell_mut(0);
            assert_eq!(cell.0, cell.1);
            cell.0 += 10;
            cell.1 += 10;
        });
        let mut seat = domain.join().unwrap();
        let own = {
            let pass = seat.enter();
            pass.lend(&loan, || increment_within(&pass))
        };
        let (helped, ()) = (helper.join().unwrap(), closer.join().unwrap());
        let count = 10 + own + helped;
        assert_eq!(*seat.exclusive().cell(0), (count, count));
    });
}

#[test]
fn a_seat_under_a_loan_does_not_wait_for_a_closer() {
    explore(3, || {
        let domain = counts(1, 3);
        let loan = Arc::new(PassageLoan::new(&domain));
        let closer = spawn(&domain, |mut seat| seat.exclusive().cell_mut(0).0 += 10);
        let mut seat = domain.join().unwrap();
        let pass = seat.enter();
        pass.lend(&loan, || {
            let lent = loan.clone();
            let helper = spawn(&domain, move |mut seat| {
                let pass = seat.enter_lent(&lent).expect("the loan is open until this thread ends");
                increment_within(&pass)
            });
            assert_eq!(helper.join().unwrap(), 1);
        });
        drop(pass);
        closer.join().unwrap();
        assert_eq!(*seat.exclusive().cell(0), (11, 1));
    });
}

#[test]
fn a_seat_under_a_loan_and_a_biased_seat_exclude_each_other() {
    static BIASED: Occurrences = Occurrences::new();
    explore(3, || {
        let domain = counts(1, 3);
        let loan = Arc::new(PassageLoan::new(&domain));
        let biased = spawn(&domain, |mut seat| {
            let mut raised = 0;
            for _ in 0..2 {
                let pass = enter_alone(&mut seat, &BIASED);
                raised += increment_within(&pass);
            }
            raised
        });
        let lent = loan.clone();
        let helper = spawn(&domain, move |mut seat| match seat.enter_lent(&lent) {
            Some(pass) => increment_within(&pass),
            None => 0,
        });
        let mut seat = domain.join().unwrap();
        let pass = seat.enter();
        pass.lend(&loan, || ());
        drop(pass);
        let raised = biased.join().unwrap() + helper.join().unwrap();
        assert_eq!(*seat.exclusive().cell(0), (raised, raised));
    });
    BIASED.assert_any("a biased passage");
}

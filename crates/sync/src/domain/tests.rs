//! Guarantees of the types: leases, passages, seats, exclusive access, and which of them may cross threads.

use std::cell::Cell as StdCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{
    Domain, Exclusive, GatePassage, PassageLoan, ReadLease, SharedExclusive, SharedPassage, ThreadSeat, WriteLease,
};

/// Compiles only if the type lacks the trait: otherwise two implementations match and the `_` is ambiguous.
macro_rules! assert_lacks {
    ($type:ty: $($lacking:ident),+) => {$(
        const _: fn() = || {
            trait Answers<Which> {
                fn answer() {}
            }
            struct HasIt;
            impl<T: ?Sized> Answers<()> for T {}
            impl<T: ?Sized + $lacking> Answers<HasIt> for T {}
            let _ = <$type as Answers<_>>::answer;
        };
    )+};
}

assert_lacks!(ReadLease<'static, (), u8>: Send, Sync);
assert_lacks!(WriteLease<'static, (), u8>: Send, Sync);
assert_lacks!(GatePassage<'static, (), u8>: Send, Sync);
assert_lacks!(Exclusive<'static, (), u8>: Send, Sync);
assert_lacks!(SharedPassage<'static, (), u8>: Send, Sync);
assert_lacks!(SharedExclusive<'static, (), Rc<u8>>: Send, Sync);
assert_lacks!(Domain<(), Rc<u8>>: Send, Sync);
assert_lacks!(Domain<(), StdCell<u8>>: Sync);
assert_lacks!(Domain<(), MutexGuard<'static, u8>>: Send, Sync);
assert_lacks!(Domain<StdCell<u8>, u8>: Sync);

const _: fn() = || {
    fn crosses_threads<T: Send + Sync>() {}
    crosses_threads::<Domain<AtomicU64, Vec<u8>>>();
    crosses_threads::<Arc<Domain<AtomicU64, Vec<u8>>>>();
    crosses_threads::<SharedExclusive<'static, AtomicU64, Vec<u8>>>();
    fn moves<T: Send>() {}
    moves::<ThreadSeat<AtomicU64, Vec<u8>>>();
};

fn numbers(cells: usize, seats: usize) -> Arc<Domain<AtomicU64, usize>> {
    Arc::new(Domain::new(cells, seats, |cell| (AtomicU64::new(0), cell * 10)))
}

#[test]
fn cells_are_made_in_order_and_know_their_numbers() {
    let domain = numbers(5, 1);
    let mut seat = domain.join().unwrap();
    assert_eq!(
        (domain.len(), domain.is_empty(), domain.seats(), seat.index()),
        (5, false, 1, 0)
    );
    let pass = seat.enter();
    for cell in 0..5 {
        let lease = pass.try_read(cell).unwrap();
        assert_eq!((lease.cell(), *lease), (cell, cell * 10));
    }
    for cell in 0..5 {
        let mut lease = pass.try_write(cell).unwrap();
        *lease += 1;
        assert_eq!((lease.cell(), *lease), (cell, cell * 10 + 1));
    }
}

#[test]
fn a_header_is_reached_with_and_without_a_lease() {
    let domain = numbers(2, 1);
    let mut seat = domain.join().unwrap();
    {
        let pass = seat.enter();
        let lease = pass.try_write(1).unwrap();
        domain.header(1).fetch_add(1, Relaxed);
        lease.header().fetch_add(1, Relaxed);
        drop(lease);
        pass.try_read(1).unwrap().header().fetch_add(1, Relaxed);
        pass.domain().header(1).fetch_add(1, Relaxed);
    }
    let alone = seat.exclusive();
    assert_eq!((alone.header(0).load(Relaxed), alone.header(1).load(Relaxed)), (0, 4));
}

#[test]
fn one_pass_holds_many_leases_and_conflicts_show_within_it() {
    let domain = numbers(100, 1);
    let mut seat = domain.join().unwrap();
    let pass = seat.enter();
    let reads: Vec<_> = (0..100).map(|cell| pass.try_read(cell).unwrap()).collect();
    let again: Vec<_> = (0..100).map(|cell| pass.read_spinning(cell).unwrap()).collect();
    assert!((0..100).all(|cell| pass.try_write(cell).is_none()));
    drop(reads);
    assert!((0..100).all(|cell| pass.write_spinning(cell).is_none()));
    drop(again);
    let writes: Vec<_> = (0..100).map(|cell| pass.try_write(cell).unwrap()).collect();
    assert!((0..100).all(|cell| pass.try_read(cell).is_none() && pass.try_write(cell).is_none()));
    drop(writes);
    assert!((0..100).all(|cell| pass.write_spinning(cell).is_some()));
}

#[test]
fn an_announced_writer_keeps_new_readers_out() {
    let domain = numbers(2, 1);
    let mut seat = domain.join().unwrap();
    let pass = seat.enter();
    let reading = pass.try_read(0).unwrap();
    pass.announce_writer(0);
    assert!(pass.try_read(0).is_none());
    assert!(pass.try_read(1).is_some(), "other cells are not affected");
    drop(reading);
    assert!(pass.read_spinning(0).is_none());
    assert!(pass.try_write(0).is_some());
    assert!(pass.try_read(0).is_some());
}

#[test]
fn seats_run_out_and_come_back() {
    let domain = numbers(1, 2);
    let first = domain.join().unwrap();
    let second = domain.join().unwrap();
    assert!(domain.join().is_none());
    drop(first);
    let third = domain.join().unwrap();
    assert_eq!((second.index(), third.index()), (1, 0));
}

#[test]
fn a_seat_keeps_the_domain_alive() {
    let domain = numbers(3, 1);
    let mut seat = domain.join().unwrap();
    drop(domain);
    assert_eq!(*seat.enter().try_read(2).unwrap(), 20);
    assert_eq!(seat.domain().len(), 3);
}

#[test]
fn exclusive_access_reaches_every_cell_and_opens_the_gate_on_drop() {
    let domain = numbers(4, 2);
    let mut seat = domain.join().unwrap();
    let mut other = domain.join().unwrap();
    {
        let mut alone = seat.exclusive();
        alone.iter_mut().for_each(|number| *number += 1);
        *alone.cell_mut(3) = 7;
        assert_eq!(alone.iter().copied().collect::<Vec<_>>(), [1, 11, 21, 7]);
        assert_eq!((*alone.cell(1), alone.domain().len()), (11, 4));
    }
    let pass = other.enter();
    assert!(!pass.gate_is_closing());
    assert_eq!((*pass.try_read(3).unwrap(), pass.seat()), (7, 1));
}

#[test]
fn a_panic_under_a_write_lease_releases_cell_and_gate() {
    let domain = numbers(1, 2);
    let mut seat = domain.join().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let pass = seat.enter();
        let mut lease = pass.try_write(0).unwrap();
        *lease = 1;
        panic!("in the middle of it");
    }));
    assert!(caught.is_err());
    assert_eq!(*seat.enter().try_read(0).unwrap(), 1);
    assert_eq!(*seat.exclusive().cell(0), 1);
}

#[test]
fn a_forgotten_lease_blocks_its_cell_but_not_exclusive_access() {
    let domain = numbers(2, 1);
    let mut seat = domain.join().unwrap();
    std::mem::forget(seat.enter().try_write(0));
    assert!(seat.enter().try_read(0).is_none());
    *seat.exclusive().cell_mut(0) = 5;
}

#[test]
fn any_number_may_be_prefetched() {
    let domain = numbers(2, 1);
    for cell in [0, 1, 2, usize::MAX] {
        domain.prefetch(cell);
    }
    crate::prefetch(std::ptr::null());
    crate::prefetch_for_write(std::ptr::without_provenance(usize::MAX));
    crate::prefetch_read("text");
}

#[test]
fn a_hot_cell_is_read_through_publications_and_written_after_them() {
    let domain = std::sync::Arc::new(Domain::new(64, 2, |cell| ((), cell)));
    let (mut one, mut other) = (domain.join().unwrap(), domain.join().unwrap());
    let (one, other) = (one.enter(), other.enter());
    for cell in [3, 3 + 8] {
        domain.cells[cell].word.mark_hot();
    }
    let hot = domain.cells[3].word.peek();
    let leases: Vec<_> = (0..5).map(|_| one.try_read(3).unwrap()).collect();
    assert_eq!(domain.cells[3].word.peek(), hot, "no reader changed the word");
    let counted = one
        .try_read(3 + 8)
        .expect("the entry is used, so this reader counts in the word");
    assert_ne!(domain.cells[3 + 8].word.peek(), hot);
    assert!(
        other.try_write(3).is_none() && other.try_write(3).is_none(),
        "published readers hold the cell"
    );
    assert!(other.try_write(3 + 8).is_none());
    assert!(one.try_write(3).is_none(), "the seat's own readers count as well");
    assert!(
        other.try_read(3).is_some(),
        "a writer that gave up lets readers in again"
    );
    drop((leases, counted));
    *other.try_write(3).expect("all readers have left") += 1;
    assert_eq!(domain.cells[3].word.peek(), 0, "the writer cleared `HOT`");
    assert_eq!(*one.try_read(3).unwrap(), 4);
}

#[test]
fn shared_exclusive_access_keeps_seats_out_except_in_a_pause() {
    const ROUNDS: usize = 200;
    let domain = numbers(3, 2);
    let mut seat = domain.join().unwrap();
    let mut other = domain.join().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (domain, is_over) = (&domain, &is_over);
        let mut all = seat.exclusive();
        let batches = scope.spawn(move || {
            let mut batches = 0;
            while !is_over.load(Relaxed) {
                let pass = other.enter();
                let before = domain.header(0).load(Relaxed);
                *pass.try_write(0).unwrap() += 1;
                std::thread::yield_now();
                assert_eq!(domain.header(0).load(Relaxed), before, "a sharer is inside with a seat");
                batches += 1;
            }
            batches
        });
        let shared = all.share();
        std::thread::scope(|sharers| {
            for _ in 0..2 {
                sharers.spawn(|| {
                    for round in 0..ROUNDS {
                        let pass = shared.enter();
                        domain.header(0).fetch_add(1, Relaxed);
                        *pass.write(1 + round % 2) += 1;
                    }
                });
            }
            for _ in 0..20 {
                shared.pause();
                shared.with_exclusive(|all| {
                    let before = all.header(0).load(Relaxed);
                    *all.cell_mut(1) += 1;
                    assert_eq!(all.header(0).load(Relaxed), before, "a sharer is inside");
                });
            }
        });
        assert_eq!(*all.cell(1) + *all.cell(2), 10 + 20 + 20 + 2 * ROUNDS);
        drop(all);
        is_over.store(true, Relaxed);
        assert_eq!(*seat.exclusive().cell(0), batches.join().unwrap());
    });
}

#[test]
fn a_loan_lets_other_seats_in_until_it_ends() {
    let domain = Arc::new(Domain::new(2, 2, |_| ((), 0_u8)));
    let loan = PassageLoan::new(&domain);
    let (mut lender, mut other) = (domain.join().unwrap(), domain.join().unwrap());
    assert!(other.enter_lent(&loan).is_none(), "nothing is lent");
    {
        let pass = lender.enter();
        let lease = pass.try_write(0);
        pass.lend(&loan, || {
            let lent = other.enter_lent(&loan).expect("a passage is lent");
            assert!(lent.try_write(0).is_none(), "the lender's leases hold");
            *lent.try_write(1).expect("cell 1 is free") = 1;
        });
        drop(lease);
        assert!(other.enter_lent(&loan).is_none(), "the loan has ended");
    }
    assert_eq!(*other.exclusive().cell(1), 1);
}

#[test]
fn a_loan_ends_when_its_lender_panics() {
    let domain = Arc::new(Domain::new(1, 2, |_| ((), 0_u8)));
    let loan = PassageLoan::new(&domain);
    let (mut lender, mut other) = (domain.join().unwrap(), domain.join().unwrap());
    let lend = std::panic::AssertUnwindSafe(|| lender.enter().lend(&loan, || panic!("as the test wants")));
    assert!(std::panic::catch_unwind(lend).is_err());
    assert!(other.enter_lent(&loan).is_none());
    assert_eq!(*other.exclusive().cell(0), 0);
    lender.enter().lend(&loan, || ());
}

#[test]
#[should_panic(expected = "only a seat that is inside as usual lends its passage")]
fn a_biased_passage_is_not_lent() {
    let domain = Arc::new(Domain::new(1, 1, |_| ((), 0_u8)));
    let loan = PassageLoan::new(&domain);
    let mut seat = domain.join().unwrap();
    for _ in 0..1000 {
        seat.enter_alone().lend(&loan, || ());
    }
}

#[test]
#[should_panic(expected = "a passage is lent to seats of its own domain")]
fn a_passage_is_not_lent_to_another_domain() {
    let domains = [(); 2].map(|()| Arc::new(Domain::new(1, 1, |_| ((), 0_u8))));
    let loan = PassageLoan::new(&domains[0]);
    let mut seat = domains[1].join().unwrap();
    seat.enter().lend(&loan, || ());
}

//! Prints the cost of a lease, a passage and exclusive access in nanoseconds: uncontended, and with two threads on one
//! cell.
//!
//! `cargo run --release -p weft-sync --example lease_cost`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use weft_sync::{Domain, Mailbox, StripedCounters, ThreadSeat};

/// The number of cells, equal to the number of slots of a keyspace.
const CELLS: usize = 16384;
const ROUNDS: usize = 7;

type Sample = Domain<AtomicU64, u64>;

fn main() {
    let domain = Arc::new(Sample::new(CELLS, 4, |_| (AtomicU64::new(0), 0)));
    let mut seat = domain.join().expect("a seat is free");
    floor();
    one_cell(&mut seat);
    all_cells(&mut seat);
    gate(&mut seat);
    two_readers(&domain, &mut seat);
    messages_and_counters();
}

/// Measures the lower bound of a lease: one locked instruction to acquire it and one to release it.
fn floor() {
    let word = AtomicU64::new(0);
    measure("two locked instructions on one hot word", 5_000_000, |_| {
        black_box(&word).fetch_add(1, Relaxed);
        black_box(&word).fetch_sub(1, Relaxed);
    });
}

/// Prints the best and the median time per operation of some rounds.
fn measure(name: &str, operations: usize, mut work: impl FnMut(usize)) {
    let mut round_ns = [0.0; ROUNDS];
    for elapsed_ns in &mut round_ns {
        let begin = Instant::now();
        for operation in 0..operations {
            work(operation);
        }
        *elapsed_ns = begin.elapsed().as_nanos() as f64 / operations as f64;
    }
    round_ns.sort_by(f64::total_cmp);
    println!(
        "{name:<52}{:>9.1} ns best {:>9.1} ns median",
        round_ns[0],
        round_ns[ROUNDS / 2]
    );
}

fn one_cell(seat: &mut ThreadSeat<AtomicU64, u64>) {
    let pass = seat.enter();
    measure("read lease, one hot cell", 5_000_000, |_| {
        black_box(pass.try_read(black_box(7)).map(|lease| *lease));
    });
    measure("write lease, one hot cell", 5_000_000, |_| {
        if let Some(mut lease) = pass.try_write(black_box(7)) {
            *lease += 1;
        }
    });
}

fn all_cells(seat: &mut ThreadSeat<AtomicU64, u64>) {
    let pass = seat.enter();
    let order: Vec<usize> = (0..CELLS).map(|number| number * 6151 % CELLS).collect();
    measure("read lease, all cells in a scattered order", 10 * CELLS, |number| {
        black_box(pass.try_read(order[number % CELLS]).map(|lease| *lease));
    });
    measure("read lease, the same, prefetched 8 ahead", 10 * CELLS, |number| {
        pass.domain().prefetch(order[(number + 8) % CELLS]);
        black_box(pass.try_read(order[number % CELLS]).map(|lease| *lease));
    });
}

fn gate(seat: &mut ThreadSeat<AtomicU64, u64>) {
    measure("enter and leave", 5_000_000, |_| {
        black_box(seat.enter().gate_is_closing());
    });
    measure("exclusive, no other seat inside", 200_000, |_| {
        *seat.exclusive().cell_mut(0) += 1;
    });
}

/// Measures while a second thread reads the same cell without a pause.
fn two_readers(domain: &Arc<Sample>, seat: &mut ThreadSeat<AtomicU64, u64>) {
    let stop = AtomicBool::new(false);
    let mut other = domain.join().expect("a seat is free");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let pass = other.enter();
                for _ in 0..64 {
                    black_box(pass.try_read(7).map(|lease| *lease));
                }
            }
        });
        {
            let pass = seat.enter();
            measure("read lease, a second thread reads the same cell", 2_000_000, |_| {
                black_box(pass.try_read(black_box(7)).map(|lease| *lease));
            });
        }
        measure("exclusive, a second thread in short passages", 20_000, |_| {
            *seat.exclusive().cell_mut(0) += 1;
        });
        stop.store(true, Relaxed);
    });
}

fn messages_and_counters() {
    let mailbox = Mailbox::new();
    let mut taken = Vec::new();
    measure("message pushed and drained, batches of 64", 1_000_000, |number| {
        black_box(mailbox.push(number));
        if number % 64 == 63 {
            taken.clear();
            mailbox.drain(&mut taken, 64);
        }
    });
    let counters = StripedCounters::new(4, 20);
    measure("counter, any writer", 5_000_000, |number| {
        counters.add(1, black_box(number % 20), 1)
    });
    measure("counter, only writer", 5_000_000, |number| {
        counters.add_as_only_writer(1, black_box(number % 20), 1)
    });
}

//! Many more threads than cores on few cells: transfers, readers and exclusives must conserve the total.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use super::{Domain, GatePassage, ThreadSeat};

const THREADS: usize = 16;
const START: i64 = 1000;

/// The header counts the writes of its cell; the data carries the same count and an amount of money.
type Bank = Domain<AtomicU64, Account>;

struct Account {
    amount: i64,
    /// A copy on the heap, so that a torn write shows as more than a wrong sum.
    copy: Box<i64>,
    writes: u64,
}

impl Account {
    fn check(&self) -> i64 {
        assert_eq!(self.amount, *self.copy, "a write overlapped this read");
        self.amount
    }

    fn change(&mut self, by: i64) {
        self.check();
        self.amount += by;
        *self.copy = self.amount;
        self.writes += 1;
    }
}

fn bank(cells: usize) -> Arc<Bank> {
    let account = |_| {
        (
            AtomicU64::new(0),
            Account {
                amount: START,
                copy: Box::new(START),
                writes: 0,
            },
        )
    };
    Arc::new(Domain::new(cells, THREADS, account))
}

/// Runs `work` on every seat, each with its own random numbers, and returns the sum of the results.
fn on_all_seats(bank: &Arc<Bank>, work: impl Fn(ThreadSeat<AtomicU64, Account>, fastrand::Rng) -> u64 + Sync) -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let seat = bank.join().unwrap();
                let work = &work;
                scope.spawn(move || work(seat, fastrand::Rng::with_seed(seed ^ thread)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Transfers money between two cells under both leases, or not at all. Returns `true` if it got both leases.
fn transfer(pass: &GatePassage<'_, AtomicU64, Account>, from: usize, to: usize, amount: i64) -> bool {
    let (Some(mut from), Some(mut to)) = (pass.try_write(from), pass.write_spinning(to)) else {
        return false;
    };
    from.change(-amount);
    to.change(amount);
    from.header().fetch_add(1, Relaxed);
    to.header().fetch_add(1, Relaxed);
    true
}

fn two_cells(random: &mut fastrand::Rng, cells: usize) -> (usize, usize) {
    let from = random.usize(0..cells);
    (from, (from + random.usize(1..cells)) % cells)
}

/// Checks the whole bank with exclusive access: no money is missing, and every write was counted.
fn audit(seat: &mut ThreadSeat<AtomicU64, Account>) {
    let alone = seat.exclusive();
    assert_eq!(
        alone.iter().map(Account::check).sum::<i64>(),
        START * alone.domain().len() as i64
    );
    for cell in 0..alone.domain().len() {
        assert_eq!(alone.header(cell).load(Relaxed), alone.cell(cell).writes);
    }
}

#[test]
fn transfers_reads_and_exclusives_conserve_the_total() {
    for (cells, batches) in [(2, 1500), (16, 1500), (4096, 400)] {
        let bank = bank(cells);
        let transfers = on_all_seats(&bank, |mut seat, mut random| {
            let mut done = 0;
            for batch in 0..batches {
                if batch % 100 == seat.index() * 6 {
                    audit(&mut seat);
                }
                let pass = seat.enter();
                for _ in 0..16 {
                    let (from, to) = two_cells(&mut random, cells);
                    bank.prefetch(to);
                    if random.bool() {
                        done += u64::from(transfer(&pass, from, to, random.i64(-50..50)));
                    } else if let Some(account) = pass.read_spinning(from) {
                        account.check();
                    }
                }
            }
            done
        });
        audit(&mut bank.join().unwrap());
        assert!(transfers > 0);
        let writes: u64 = (0..cells).map(|cell| bank.header(cell).load(Relaxed)).sum();
        assert_eq!(writes, 2 * transfers);
    }
}

#[test]
fn a_writer_that_announces_itself_is_admitted_among_readers_that_never_pause() {
    const WRITES: u64 = 200;
    let bank = bank(1);
    let written = on_all_seats(&bank, |mut seat, _| {
        let mut done = 0;
        let writes = seat.index() == 0;
        while bank.header(0).load(Relaxed) < WRITES {
            let pass = seat.enter();
            if !writes {
                // Overlapping reads: without announcements the cell is hardly ever free.
                let first = pass.try_read(0);
                let second = pass.try_read(0);
                drop(first);
                thread::yield_now();
                drop(second);
            } else if let Some(mut account) = pass.write_spinning(0) {
                account.change(1);
                account.header().fetch_add(1, Relaxed);
                done += 1;
            } else {
                pass.announce_writer(0);
            }
        }
        done
    });
    assert_eq!(written, WRITES);
}

#[test]
fn exclusives_from_every_thread_pass_one_another_and_the_batches() {
    let bank = bank(4);
    let alone = on_all_seats(&bank, |mut seat, mut random| {
        for turn in 0..200 {
            if turn % 2 == 0 {
                seat.exclusive().cell_mut(0).writes += 1;
            } else {
                let pass = seat.enter();
                let (from, to) = two_cells(&mut random, 4);
                let (_first, _second) = (pass.try_read(from), pass.try_write(to));
                if turn % 10 == 1 {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        }
        100
    });
    assert_eq!(bank.join().unwrap().exclusive().cell(0).writes, alone);
}

#[test]
fn long_work_that_polls_the_gate_yields() {
    let bank = bank(1);
    let mut worker = bank.join().unwrap();
    let mut closer = bank.join().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            while bank.header(0).load(Relaxed) == 0 {
                let pass = worker.enter();
                let lease = pass.try_read(0);
                assert!(lease.is_some());
                while !pass.gate_is_closing() && bank.header(0).load(Relaxed) == 0 {
                    thread::yield_now();
                }
            }
        });
        thread::sleep(Duration::from_millis(5));
        let alone = closer.exclusive();
        alone.header(0).store(1, Relaxed);
    });
}

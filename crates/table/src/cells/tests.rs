//! Runs, depots and magazines, alone and used by many threads.

use std::collections::HashSet;
use std::sync::{Mutex, mpsc};
use std::thread;

use super::run::{Plan, RUN_BYTES};
use super::slab_pool::SlabPool;
use super::*;
use crate::size_class::entry_class;

/// Tests that look at figures of all threads run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number_of(bytes: usize) -> Number {
    Number::of_class(bytes).expect("a class of cells")
}

/// Cells in use of a class, and its runs.
fn figures_of(number: Number) -> (u64, u64) {
    let figures = figures()[number.index()];
    (
        figures.used_bytes / figures.cell_bytes,
        figures.run_bytes / RUN_BYTES as u64,
    )
}

#[test]
fn every_class_is_a_cell_or_one_of_the_allocator() {
    let mut cells = 0;
    for bytes in 0..=600 {
        let class = entry_class(bytes);
        match Number::of_class(class) {
            Some(number) => {
                assert_eq!(number.bytes(), class);
                assert_ne!(size_class(class), class);
                cells += usize::from(bytes == class);
            }
            None => assert_eq!(size_class(class), class),
        }
    }
    assert_eq!(cells, CLASSES);
    for number in Number::all() {
        let bytes = number.capacity() as usize * number.bytes();
        assert!(bytes <= MAGAZINE_BYTES && number.capacity().is_multiple_of(2) && number.capacity() >= 16);
    }
}

#[test]
fn cells_fill_their_run_and_are_found_again() {
    for number in Number::all() {
        let (class, plan) = (number.bytes(), Plan::new(number.bytes()));
        let slab_pool = SlabPool::new(class);
        let mut cells = vec![ptr::null_mut(); plan.cells];
        assert_eq!(slab_pool.take(&mut cells), 1);
        let addresses: Vec<usize> = cells.iter().map(|cell| cell.addr()).collect();
        let run = addresses[0] & !(RUN_BYTES - 1);
        assert!(addresses.windows(2).all(|pair| pair[1] == pair[0] + class));
        assert!(addresses[0] > run && addresses[plan.cells - 1] + class <= run + RUN_BYTES);
        assert!(addresses[0].is_multiple_of(8));
        let wasted = RUN_BYTES - plan.cells * class;
        assert!(wasted < RUN_BYTES / 100 + class, "{wasted} of {class}");
        // The whole run is ours, so this touches no other memory.
        for &cell in &cells {
            // SAFETY: a cell of this class that this test owns.
            unsafe { cell.write_bytes(0xff, class) };
        }
        // SAFETY: all were taken above, and are not used again.
        assert_eq!(unsafe { slab_pool.put(&cells) }, 0, "one empty run stays");
        assert_eq!(slab_pool.figures(), (1, 0));
        // SAFETY: a test that gives back what is free; the depot looks before it does anything.
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { slab_pool.put(&cells[..1]) }));
        assert!(again.is_err(), "nothing is freed twice");
    }
}

#[test]
fn runs_go_back_when_they_are_empty_and_the_first_ones_are_filled_first() {
    let slab_pool = SlabPool::new(88);
    let count = Plan::new(88).cells;
    let mut cells = vec![ptr::null_mut(); 10 * count];
    assert_eq!(slab_pool.take(&mut cells), 10);
    assert_eq!(
        cells.iter().map(|cell| cell.addr()).collect::<HashSet<_>>().len(),
        10 * count
    );
    // Three of the later runs become empty; the first two have one free cell each.
    let mut freed: Vec<*mut u8> = cells[7 * count..].to_vec();
    freed.push(cells[count]);
    freed.push(cells[5]);
    // SAFETY: taken above, and not used again.
    assert_eq!(unsafe { slab_pool.put(&freed) }, 2, "one stays");
    assert_eq!(slab_pool.figures(), (8, 7 * count as u64 - 2));
    let mut two = [ptr::null_mut(); 2];
    assert_eq!(slab_pool.take(&mut two), 0);
    assert_eq!(two, [cells[5], cells[count]]);
    let mut more = vec![ptr::null_mut(); count];
    assert_eq!(slab_pool.take(&mut more), 0, "the one that stayed");
    let mut rest = cells[..7 * count].to_vec();
    rest.extend(&more);
    // SAFETY: taken above, and not used again.
    assert_eq!(unsafe { slab_pool.put(&rest) }, 7);
    assert_eq!(slab_pool.figures(), (1, 0));
}

#[test]
fn many_runs_are_found_by_number() {
    let slab_pool = SlabPool::new(248);
    let count = Plan::new(248).cells;
    // More than a word of words has.
    let runs = 64 * 64 + 70;
    let mut cells = vec![ptr::null_mut(); runs * count];
    assert_eq!(slab_pool.take(&mut cells), runs as isize);
    for run in [64 * 64 + 3, 64 * 64 - 1, 130, 63] {
        // SAFETY: taken above, and taken again below.
        unsafe { slab_pool.put(&[cells[run * count + 7]]) };
        let mut again = [ptr::null_mut()];
        assert_eq!(slab_pool.take(&mut again), 0);
        assert_eq!(again[0], cells[run * count + 7]);
    }
    // SAFETY: taken above, and not used again.
    assert_eq!(unsafe { slab_pool.put(&cells) }, runs as isize - 1);
}

#[test]
fn magazines_hold_few_bytes_and_a_thread_that_ends_gives_them_back() {
    let _alone = alone();
    let number = number_of(232);
    let (used, runs) = figures_of(number);
    thread::spawn(move || {
        let before = balance();
        let cells: Vec<_> = (0..1000).map(|_| allocate(number)).collect();
        assert_eq!(figures_of(number).0, used + 1000);
        for cell in cells {
            // SAFETY: taken above, and not used again.
            unsafe { free(cell.as_ptr(), number) };
        }
        let kept = figures()[number.index()];
        assert!(kept.kept_bytes <= MAGAZINE_BYTES as u64);
        assert_eq!(figures_of(number).0, used);
        assert_eq!(taken_bytes(), 0);
        // What is left of it are runs, of which the thread took more than it gave back.
        assert_eq!((before - balance()) % RUN_BYTES as i64, 0);
    })
    .join()
    .expect("ends");
    let after = figures()[number.index()];
    assert_eq!(after.kept_bytes, 0);
    assert!(figures_of(number).1 <= runs + 1);
}

#[test]
fn entries_may_be_freed_while_a_thread_ends() {
    struct Late(Cell<*mut u8>);
    impl Drop for Late {
        fn drop(&mut self) {
            let number = number_of(248);
            // SAFETY: taken by this thread, and not used again.
            unsafe { free(self.0.get(), number) };
            let cell = allocate(number);
            // SAFETY: taken above, and not used again.
            unsafe { free(cell.as_ptr(), number) };
        }
    }
    thread_local! {
        static EARLY: Late = const { Late(Cell::new(ptr::null_mut())) };
        static LATE: Late = const { Late(Cell::new(ptr::null_mut())) };
    }
    let _alone = alone();
    let used = figures_of(number_of(248)).0;
    thread::spawn(|| {
        // One is dropped after the magazines are given back, the other before.
        EARLY.with(|late| late.0.set(allocate(number_of(248)).as_ptr()));
        LATE.with(|late| late.0.set(allocate(number_of(248)).as_ptr()));
    })
    .join()
    .expect("ends");
    assert_eq!(figures_of(number_of(248)).0, used);
}

/// A cell with what was written into it.
struct Written {
    cell: NonNull<u8>,
    number: Number,
    seed: u8,
}

// SAFETY: a cell that the test owns is freed by any thread.
unsafe impl Send for Written {}

impl Written {
    fn new(number: Number, seed: u8) -> Self {
        let cell = allocate(number);
        // SAFETY: the cell has so many bytes, and is this function's.
        unsafe { cell.as_ptr().write_bytes(seed, number.bytes()) };
        Self { cell, number, seed }
    }

    fn check_and_free(self) {
        // SAFETY: the cell is owned, initialised, and not used again.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.cell.as_ptr(), self.number.bytes());
            assert!(bytes.iter().all(|byte| *byte == self.seed), "somebody wrote into it");
            free(self.cell.as_ptr(), self.number);
        }
    }
}

/// Classes that no other test of this crate uses: those run at the same time.
const STORM: &[usize] = &[136, 144, 152, 168, 176, 184, 200, 208, 240];

#[test]
fn a_storm_of_threads_loses_no_byte() {
    const THREADS: usize = 6;
    const STEPS: usize = 30_000;
    let _alone = alone();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let before = figures();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Written>()).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(thread, receiver)| {
            let senders = senders.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ thread as u64);
                let (mut kept, mut model) = (Vec::new(), 0i64);
                for step in 0..STEPS {
                    let growing = (step / (STEPS / 6)).is_multiple_of(2);
                    if random.u8(0..10) < if growing { 7 } else { 3 } {
                        let number = number_of(random.choice(STORM).copied().expect("a class"));
                        model += number.bytes() as i64;
                        kept.push(Written::new(number, random.u8(..)));
                    } else if !kept.is_empty() {
                        let written = kept.swap_remove(random.usize(0..kept.len()));
                        if random.bool() {
                            model -= written.number.bytes() as i64;
                            written.check_and_free();
                        } else {
                            let _ = senders[random.usize(0..THREADS)].send(written);
                        }
                    }
                    for written in receiver.try_iter().take(2) {
                        model -= written.number.bytes() as i64;
                        written.check_and_free();
                    }
                    assert_eq!(taken_bytes(), model);
                }
                drop(senders);
                for written in kept.drain(..).chain(receiver.iter()) {
                    model -= written.number.bytes() as i64;
                    written.check_and_free();
                }
                assert_eq!(taken_bytes(), model);
                let runs = LOCAL.with(|local| local.runs.get());
                (model, runs as i64 / RUN_BYTES as i64)
            })
        })
        .collect();
    drop(senders);
    let sums: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("ends")).collect();
    assert_eq!(sums.iter().map(|(cells, _)| cells).sum::<i64>(), 0);
    let after = figures();
    let mut made = 0;
    for (before, after) in before.iter().zip(&after) {
        if !STORM.contains(&(after.cell_bytes as usize)) {
            continue;
        }
        assert_eq!(after.used_bytes, before.used_bytes, "cells of {}", after.cell_bytes);
        assert!(
            after.run_bytes <= before.run_bytes.max(RUN_BYTES as u64),
            "empty runs are given back"
        );
        made += (after.run_bytes as i64 - before.run_bytes as i64) / RUN_BYTES as i64;
    }
    // What threads give back when they end is not in their sums, which were taken before.
    assert!(sums.iter().map(|(_, runs)| runs).sum::<i64>() >= made);
}

//! Runs, slab pools and magazines, each in isolation and used by many threads.

use std::collections::HashSet;
use std::sync::{Mutex, mpsc};
use std::thread;

use super::run::{RUN_BYTES, RunLayout};
use super::slab_pool::SlabPool;
use super::*;
use crate::size_class::entry_class;

/// Serialises the tests that read figures of all threads.
static SERIALISED: Mutex<()> = Mutex::new(());

fn serialise() -> std::sync::MutexGuard<'static, ()> {
    SERIALISED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cell_class_of(bytes: usize) -> CellClass {
    CellClass::of_size_class(bytes).expect("a class of cells")
}

/// Returns the cell_class of cells in use of a class, and of its runs.
fn figures_of(cell_class: CellClass) -> (u64, u64) {
    let figures = figures()[cell_class.index()];
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
        match CellClass::of_size_class(class) {
            Some(cell_class) => {
                assert_eq!(cell_class.bytes(), class);
                assert_ne!(size_class(class), class);
                cells += usize::from(bytes == class);
            }
            None => assert_eq!(size_class(class), class),
        }
    }
    assert_eq!(cells, CLASSES);
    for cell_class in CellClass::all() {
        let bytes = cell_class.capacity() as usize * cell_class.bytes();
        assert!(bytes <= MAGAZINE_BYTES && cell_class.capacity().is_multiple_of(2) && cell_class.capacity() >= 16);
    }
}

#[test]
fn cells_fill_their_run_and_are_found_again() {
    for cell_class in CellClass::all() {
        let (class, layout) = (cell_class.bytes(), RunLayout::new(cell_class.bytes()));
        let slab_pool = SlabPool::new(class);
        let mut cells = vec![ptr::null_mut(); layout.cells];
        assert_eq!(slab_pool.take(&mut cells), 1);
        let addresses: Vec<usize> = cells.iter().map(|cell| cell.addr()).collect();
        let run = addresses[0] & !(RUN_BYTES - 1);
        assert!(addresses.windows(2).all(|pair| pair[1] == pair[0] + class));
        assert!(addresses[0] > run && addresses[layout.cells - 1] + class <= run + RUN_BYTES);
        assert!(addresses[0].is_multiple_of(8));
        let wasted = RUN_BYTES - layout.cells * class;
        assert!(wasted < RUN_BYTES / 100 + class, "{wasted} of {class}");
        // The test owns the whole run, so this writes no other memory.
        for &cell in &cells {
            // SAFETY: a cell of this class that this test owns.
            unsafe { cell.write_bytes(0xff, class) };
        }
        // SAFETY: all were taken above, and are not used again.
        assert_eq!(unsafe { slab_pool.put(&cells) }, 0, "one empty run is retained");
        assert_eq!(slab_pool.figures(), (1, 0));
        // SAFETY: frees a free cell on purpose; the pool checks before it changes anything.
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { slab_pool.put(&cells[..1]) }));
        assert!(again.is_err(), "a second free is refused");
    }
}

#[test]
fn empty_runs_are_returned_and_low_numbers_are_filled_first() {
    let slab_pool = SlabPool::new(88);
    let count = RunLayout::new(88).cells;
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
    assert_eq!(unsafe { slab_pool.put(&freed) }, 2, "one is retained");
    assert_eq!(slab_pool.figures(), (8, 7 * count as u64 - 2));
    let mut two = [ptr::null_mut(); 2];
    assert_eq!(slab_pool.take(&mut two), 0);
    assert_eq!(two, [cells[5], cells[count]]);
    let mut more = vec![ptr::null_mut(); count];
    assert_eq!(slab_pool.take(&mut more), 0, "the retained run is used");
    let mut rest = cells[..7 * count].to_vec();
    rest.extend(&more);
    // SAFETY: taken above, and not used again.
    assert_eq!(unsafe { slab_pool.put(&rest) }, 7);
    assert_eq!(slab_pool.figures(), (1, 0));
}

#[test]
fn runs_beyond_one_summary_word_are_found_by_number() {
    let slab_pool = SlabPool::new(248);
    let count = RunLayout::new(248).cells;
    // More runs than one word of the second bitmap covers.
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
fn magazines_hold_few_bytes_and_are_returned_at_thread_exit() {
    let _serialised = serialise();
    let cell_class = cell_class_of(232);
    let (used, runs) = figures_of(cell_class);
    thread::spawn(move || {
        let before = balance();
        let cells: Vec<_> = (0..1000).map(|_| allocate(cell_class)).collect();
        assert_eq!(figures_of(cell_class).0, used + 1000);
        for cell in cells {
            // SAFETY: taken above, and not used again.
            unsafe { free(cell.as_ptr(), cell_class) };
        }
        let kept = figures()[cell_class.index()];
        assert!(kept.kept_bytes <= MAGAZINE_BYTES as u64);
        assert_eq!(figures_of(cell_class).0, used);
        assert_eq!(taken_bytes(), 0);
        // The remaining difference is runs, of which the thread took more than it returned.
        assert_eq!((before - balance()) % RUN_BYTES as i64, 0);
    })
    .join()
    .expect("ends");
    let after = figures()[cell_class.index()];
    assert_eq!(after.kept_bytes, 0);
    assert!(figures_of(cell_class).1 <= runs + 1);
}

#[test]
fn entries_may_be_freed_during_thread_exit() {
    struct Late(Cell<*mut u8>);
    impl Drop for Late {
        fn drop(&mut self) {
            let cell_class = cell_class_of(248);
            // SAFETY: taken by this thread, and not used again.
            unsafe { free(self.0.get(), cell_class) };
            let cell = allocate(cell_class);
            // SAFETY: taken above, and not used again.
            unsafe { free(cell.as_ptr(), cell_class) };
        }
    }
    thread_local! {
        static EARLY: Late = const { Late(Cell::new(ptr::null_mut())) };
        static LATE: Late = const { Late(Cell::new(ptr::null_mut())) };
    }
    let _serialised = serialise();
    let used = figures_of(cell_class_of(248)).0;
    thread::spawn(|| {
        // One is dropped after the magazines are returned, the other before.
        EARLY.with(|late| late.0.set(allocate(cell_class_of(248)).as_ptr()));
        LATE.with(|late| late.0.set(allocate(cell_class_of(248)).as_ptr()));
    })
    .join()
    .expect("ends");
    assert_eq!(figures_of(cell_class_of(248)).0, used);
}

/// A cell and the byte that fills it.
struct Written {
    cell: NonNull<u8>,
    cell_class: CellClass,
    seed: u8,
}

// SAFETY: a cell that the test owns is freed by any thread.
unsafe impl Send for Written {}

impl Written {
    fn new(cell_class: CellClass, seed: u8) -> Self {
        let cell = allocate(cell_class);
        // SAFETY: the cell has this many bytes, and this function owns it.
        unsafe { cell.as_ptr().write_bytes(seed, cell_class.bytes()) };
        Self { cell, cell_class, seed }
    }

    fn check_and_free(self) {
        // SAFETY: the cell is owned, initialised, and not used again.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.cell.as_ptr(), self.cell_class.bytes());
            assert!(
                bytes.iter().all(|byte| *byte == self.seed),
                "another thread wrote into it"
            );
            free(self.cell.as_ptr(), self.cell_class);
        }
    }
}

/// Classes that no other test of this crate uses, because tests run concurrently.
const STRESSED_CLASSES: &[usize] = &[136, 144, 152, 168, 176, 184, 200, 208, 240];

#[test]
fn many_threads_allocate_and_free_without_losing_bytes() {
    const THREADS: usize = 6;
    const STEPS: usize = 30_000;
    let _serialised = serialise();
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
                        let cell_class = cell_class_of(random.choice(STRESSED_CLASSES).copied().expect("a class"));
                        model += cell_class.bytes() as i64;
                        kept.push(Written::new(cell_class, random.u8(..)));
                    } else if !kept.is_empty() {
                        let written = kept.swap_remove(random.usize(0..kept.len()));
                        if random.bool() {
                            model -= written.cell_class.bytes() as i64;
                            written.check_and_free();
                        } else {
                            let _ = senders[random.usize(0..THREADS)].send(written);
                        }
                    }
                    for written in receiver.try_iter().take(2) {
                        model -= written.cell_class.bytes() as i64;
                        written.check_and_free();
                    }
                    assert_eq!(taken_bytes(), model);
                }
                drop(senders);
                for written in kept.drain(..).chain(receiver.iter()) {
                    model -= written.cell_class.bytes() as i64;
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
        if !STRESSED_CLASSES.contains(&(after.cell_bytes as usize)) {
            continue;
        }
        assert_eq!(after.used_bytes, before.used_bytes, "cells of {}", after.cell_bytes);
        assert!(
            after.run_bytes <= before.run_bytes.max(RUN_BYTES as u64),
            "empty runs are given back"
        );
        made += (after.run_bytes as i64 - before.run_bytes as i64) / RUN_BYTES as i64;
    }
    // The cells that threads return at exit are not in their sums, which were taken before.
    assert!(sums.iter().map(|(_, runs)| runs).sum::<i64>() >= made);
}

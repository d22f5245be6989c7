//! A depot: the runs of one class, and among them those with free cells.
//!
//! Runs have numbers, small ones first, and cells are taken from the run with free cells that has the smallest. A
//! bitmap has a bit for each of these runs, and a second one a bit for each word of the first: a depot with a million
//! runs finds one by looking at a few hundred words at most. Neither has anything to do with the memory of the runs, so
//! runs that are not used are not touched.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::run::{Plan, SlabRun};

/// Room for so many runs is made at the beginning.
const FIRST_RUNS: usize = 256;
const WORD_BITS: usize = u64::BITS as usize;

pub(super) struct SlabPool {
    plan: Plan,
    shelves: Mutex<Shelves>,
    /// Runs in all; changed under the mutex.
    runs: AtomicUsize,
    /// Cells that are not in the depot; changed under the mutex.
    given: AtomicUsize,
}

struct Shelves {
    /// The runs by their numbers.
    runs: Vec<Option<SlabRun>>,
    /// Numbers that are free again.
    vacant: Vec<u32>,
    /// Runs with free cells.
    open: Vec<u64>,
    /// Words of `open` with bits.
    words: Vec<u64>,
    /// Whether there is a run of which all cells are free.
    has_empty: bool,
}

impl SlabPool {
    pub(super) const fn new(class: usize) -> Self {
        SlabPool {
            plan: Plan::new(class),
            shelves: Mutex::new(Shelves {
                runs: Vec::new(),
                vacant: Vec::new(),
                open: Vec::new(),
                words: Vec::new(),
                has_empty: false,
            }),
            runs: AtomicUsize::new(0),
            given: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `cells`. Returns how many runs were made.
    pub(super) fn take(&self, cells: &mut [*mut u8]) -> isize {
        let mut shelves = self.lock();
        let (mut taken, mut made) = (0, 0);
        while taken < cells.len() {
            let run = shelves.first_open().unwrap_or_else(|| {
                made += 1;
                shelves.add(&self.plan)
            });
            if run.free() == self.plan.cells {
                shelves.has_empty = false;
            }
            taken += run.take(&self.plan, &mut cells[taken..]);
            if run.free() == 0 {
                shelves.close(run.number());
            }
        }
        self.given.store(self.given.load(Relaxed) + taken, Relaxed);
        self.runs.store(self.runs.load(Relaxed) + made, Relaxed);
        made as isize
    }

    /// Takes cells back. Returns how many runs became empty and were given to the allocator.
    ///
    /// # Safety
    /// Rule 10: they are cells of this class, the caller owned them, and nobody uses them again.
    pub(super) unsafe fn put(&self, cells: &[*mut u8]) -> isize {
        for &cell in cells {
            // SAFETY: rule 10: a cell that somebody owns keeps its run alive.
            unsafe { SlabRun::of_cell(cell) }.prefetch(&self.plan, cell);
        }
        let mut shelves = self.lock();
        let mut gone = 0;
        for &cell in cells {
            // SAFETY: as above.
            let run = unsafe { SlabRun::of_cell(cell) };
            let free = run.put(&self.plan, cell);
            if free == 1 {
                shelves.open(run.number());
            }
            if free < self.plan.cells {
                continue;
            }
            if shelves.has_empty {
                shelves.remove(run.number());
                // SAFETY: rule 10: none of its cells is in use, and the depot has forgotten it.
                unsafe { run.destroy() };
                gone += 1;
            }
            shelves.has_empty = true;
        }
        self.given.store(self.given.load(Relaxed) - cells.len(), Relaxed);
        self.runs.store(self.runs.load(Relaxed) - gone, Relaxed);
        gone as isize
    }

    /// How many runs there are, and how many cells are elsewhere.
    pub(super) fn figures(&self) -> (u64, u64) {
        let _shelves = self.lock();
        (self.runs.load(Relaxed) as u64, self.given.load(Relaxed) as u64)
    }
}

/// Depots of the program are never dropped; those of tests give back the run that stays.
#[cfg(test)]
impl Drop for SlabPool {
    fn drop(&mut self) {
        assert_eq!(self.given.load(Relaxed), 0, "cells are in use");
        for run in self.lock().runs.iter().flatten() {
            // SAFETY: rule 10: none of its cells is in use, and nobody has the depot any more.
            unsafe { run.destroy() };
        }
    }
}

impl Shelves {
    /// The run with free cells that has the smallest number.
    fn first_open(&self) -> Option<SlabRun> {
        let high = self.words.iter().position(|word| *word != 0)?;
        let word = high * WORD_BITS + self.words[high].trailing_zeros() as usize;
        let number = word * WORD_BITS + self.open[word].trailing_zeros() as usize;
        self.runs[number]
    }

    fn add(&mut self, plan: &Plan) -> SlabRun {
        if self.runs.is_empty() {
            self.runs.reserve(FIRST_RUNS);
            self.vacant.reserve(FIRST_RUNS);
            self.open.reserve(FIRST_RUNS / WORD_BITS);
            self.words.reserve(1);
        }
        let number = self.vacant.pop().unwrap_or_else(|| {
            let number = self.runs.len();
            self.runs.push(None);
            if self.open.len() * WORD_BITS == number {
                self.open.push(0);
            }
            if self.words.len() * WORD_BITS * WORD_BITS == number {
                self.words.push(0);
            }
            u32::try_from(number).expect("fewer runs than would fill the address space")
        });
        let run = SlabRun::create(plan, number);
        self.runs[number as usize] = Some(run);
        self.open(number);
        run
    }

    fn remove(&mut self, number: u32) {
        self.close(number);
        self.runs[number as usize] = None;
        self.vacant.push(number);
    }

    fn open(&mut self, number: u32) {
        let word = number as usize / WORD_BITS;
        self.open[word] |= 1 << (number as usize % WORD_BITS);
        self.words[word / WORD_BITS] |= 1 << (word % WORD_BITS);
    }

    fn close(&mut self, number: u32) {
        let word = number as usize / WORD_BITS;
        self.open[word] &= !(1 << (number as usize % WORD_BITS));
        if self.open[word] == 0 {
            self.words[word / WORD_BITS] &= !(1 << (word % WORD_BITS));
        }
    }
}

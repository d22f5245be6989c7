//! A slab pool: the runs of one class, and an index of those with free cells.
//!
//! Runs are numbered, low numbers first, and cells are taken from the available run with the lowest number. A bitmap
//! has a bit for each available run, and a second one a bit for each non-zero word of the first: a pool with a million
//! runs finds one by reading a few hundred words at most. Neither is stored in the runs, so searching does not touch
//! unused runs.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::run::{RunLayout, SlabRun};
#[cfg(feature = "jemalloc-memory")]
use crate::sparse::is_sparse;

/// The number of runs for which space is reserved at first use.
const FIRST_RUNS: usize = 256;
const WORD_BITS: usize = u64::BITS as usize;

pub(super) struct SlabPool {
    layout: RunLayout,
    index: Mutex<RunIndex>,
    /// The number of runs; changed under the mutex.
    runs: AtomicUsize,
    /// The number of cells that are not in the pool; changed under the mutex.
    cells_out: AtomicUsize,
}

struct RunIndex {
    /// The runs by number.
    runs: Vec<Option<SlabRun>>,
    /// Numbers that are free for reuse.
    free_numbers: Vec<u32>,
    /// A bitmap of the runs with free cells.
    available: Vec<u64>,
    /// A bitmap of the non-zero words of `available`.
    available_words: Vec<u64>,
    /// There is a run of which all cells are free.
    has_empty: bool,
}

impl SlabPool {
    pub(super) const fn new(class: usize) -> Self {
        SlabPool {
            layout: RunLayout::new(class),
            index: Mutex::new(RunIndex {
                runs: Vec::new(),
                free_numbers: Vec::new(),
                available: Vec::new(),
                available_words: Vec::new(),
                has_empty: false,
            }),
            runs: AtomicUsize::new(0),
            cells_out: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `cells`. Returns the number of runs that were created.
    pub(super) fn take(&self, cells: &mut [*mut u8]) -> isize {
        let mut index = self.lock();
        let (mut taken, mut created) = (0, 0);
        while taken < cells.len() {
            let run = index.first_available().unwrap_or_else(|| {
                created += 1;
                index.add(&self.layout)
            });
            taken += index.take_from(run, &self.layout, &mut cells[taken..]);
        }
        self.cells_out.store(self.cells_out.load(Relaxed) + taken, Relaxed);
        self.runs.store(self.runs.load(Relaxed) + created, Relaxed);
        created as isize
    }

    /// Takes a free cell to which the contents of a cell should be moved. It is the first cell of the available run
    /// with the lowest number, if that is lower than the number of the cell's own run, and if the own run is sparse.
    ///
    /// # Safety
    /// Rule 10: the caller owns the cell, which is of this class.
    #[cfg(feature = "jemalloc-memory")]
    pub(super) unsafe fn take_for_relocation(&self, cell: *mut u8) -> Option<*mut u8> {
        let mut index = self.lock();
        let target = index.first_available()?;
        // SAFETY: rule 10: a cell that has an owner keeps its run alive; the pool is locked.
        let run = unsafe { SlabRun::of_cell(cell) };
        let cells = self.layout.cells;
        let used = (cells - run.free()) as u64;
        let all_cells = (self.runs.load(Relaxed) * cells) as u64;
        let is_sparse = is_sparse(used, cells as u64, self.cells_out.load(Relaxed) as u64, all_cells);
        if target.number() >= run.number() || !is_sparse {
            return None;
        }
        let mut taken = [std::ptr::null_mut()];
        index.take_from(target, &self.layout, &mut taken);
        self.cells_out.store(self.cells_out.load(Relaxed) + 1, Relaxed);
        Some(taken[0])
    }

    /// Takes cells back. Returns the number of runs that became empty and were returned to the allocator.
    ///
    /// # Safety
    /// Rule 10: they are cells of this class, the caller owned them, and they are not used again.
    pub(super) unsafe fn put(&self, cells: &[*mut u8]) -> isize {
        for &cell in cells {
            // SAFETY: rule 10: a cell that has an owner keeps its run alive.
            unsafe { SlabRun::of_cell(cell) }.prefetch(&self.layout, cell);
        }
        let mut index = self.lock();
        let mut freed = 0;
        for &cell in cells {
            // SAFETY: as above.
            let run = unsafe { SlabRun::of_cell(cell) };
            let free = run.put(&self.layout, cell);
            if free == 1 {
                index.mark_available(run.number());
            }
            if free < self.layout.cells {
                continue;
            }
            if index.has_empty {
                index.remove(run.number());
                // SAFETY: rule 10: none of its cells is in use, and the pool has removed it.
                unsafe { run.destroy() };
                freed += 1;
            }
            index.has_empty = true;
        }
        self.cells_out
            .store(self.cells_out.load(Relaxed) - cells.len(), Relaxed);
        self.runs.store(self.runs.load(Relaxed) - freed, Relaxed);
        freed as isize
    }

    /// Returns the number of runs, and of cells that are not in the pool.
    pub(super) fn figures(&self) -> (u64, u64) {
        let _index = self.lock();
        (self.runs.load(Relaxed) as u64, self.cells_out.load(Relaxed) as u64)
    }
}

/// The program's pools are never dropped; those of tests free the run that they retained.
#[cfg(test)]
impl Drop for SlabPool {
    fn drop(&mut self) {
        assert_eq!(self.cells_out.load(Relaxed), 0, "cells are in use");
        for run in self.lock().runs.iter().flatten() {
            // SAFETY: rule 10: none of its cells is in use, and the pool is not used any more.
            unsafe { run.destroy() };
        }
    }
}

impl RunIndex {
    /// Returns the available run with the lowest number.
    fn first_available(&self) -> Option<SlabRun> {
        let high = self.available_words.iter().position(|word| *word != 0)?;
        let word = high * WORD_BITS + self.available_words[high].trailing_zeros() as usize;
        let number = word * WORD_BITS + self.available[word].trailing_zeros() as usize;
        self.runs[number]
    }

    /// Takes free cells of a run that has some. Returns their number.
    fn take_from(&mut self, run: SlabRun, layout: &RunLayout, cells: &mut [*mut u8]) -> usize {
        if run.free() == layout.cells {
            self.has_empty = false;
        }
        let taken = run.take(layout, cells);
        if run.free() == 0 {
            self.mark_full(run.number());
        }
        taken
    }

    fn add(&mut self, layout: &RunLayout) -> SlabRun {
        if self.runs.is_empty() {
            self.runs.reserve(FIRST_RUNS);
            self.free_numbers.reserve(FIRST_RUNS);
            self.available.reserve(FIRST_RUNS / WORD_BITS);
            self.available_words.reserve(1);
        }
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            let number = self.runs.len();
            self.runs.push(None);
            if self.available.len() * WORD_BITS == number {
                self.available.push(0);
            }
            if self.available_words.len() * WORD_BITS * WORD_BITS == number {
                self.available_words.push(0);
            }
            u32::try_from(number).expect("fewer runs than would fill the address space")
        });
        let run = SlabRun::create(layout, number);
        self.runs[number as usize] = Some(run);
        self.mark_available(number);
        run
    }

    fn remove(&mut self, number: u32) {
        self.mark_full(number);
        self.runs[number as usize] = None;
        self.free_numbers.push(number);
    }

    fn mark_available(&mut self, number: u32) {
        let word = number as usize / WORD_BITS;
        self.available[word] |= 1 << (number as usize % WORD_BITS);
        self.available_words[word / WORD_BITS] |= 1 << (word % WORD_BITS);
    }

    fn mark_full(&mut self, number: u32) {
        let word = number as usize / WORD_BITS;
        self.available[word] &= !(1 << (number as usize % WORD_BITS));
        if self.available[word] == 0 {
            self.available_words[word / WORD_BITS] &= !(1 << (word % WORD_BITS));
        }
    }
}

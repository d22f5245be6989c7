//! How many bytes are in use, cheaply enough to be asked before every command.
//!
//! The allocator's own count is exact, and dear: it walks over all arenas. But each thread can see, with two loads, what it
//! has itself taken and given back. So:
//!
//! ```text
//!   used  =  base  +  cell of worker 0  +  ...  +  log thread's  +  freeing thread's  -  leaving  -  kept
//!             |          |                                                                 |           |
//!             |          each thread's own balance, put there by itself                    |           buffers for reuse
//!             |                                                                            handed to the freeing thread
//!             the allocator's count less all cells, taken several times a second: it has
//!             what threads without a cell did, and what happened while nobody counted
//! ```
//!
//! 1. A cell has one writer. Workers put their balances there before they read the sum, and only while there is a limit:
//!    one that begins to count begins at what its cell says, so nothing jumps.
//! 2. What is to be freed by the freeing thread counts as free at once; that thread puts its cell right before it takes the
//!    bytes out of what is leaving. So nobody evicts for memory that is about to be free.
//! 3. The log thread frees what workers took for their records, so it puts its cell after each round: else all that was
//!    logged between two calibrations would seem to be in use.
//! 4. Buffers that a worker keeps for its connections are part of the server, like what the allocator keeps for threads: how
//!    many there are changes with the load, and nobody evicts for them.
//! 5. The allocator's count and the cells must be those of one moment. So while there is a limit a worker calibrates, at the
//!    end of a turn, when its own cell is exact; and not while the freeing thread is at work, unless that takes long.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use weft_sync::StripedCounters;

use super::memory;

/// Calibrations that are left out in a row, at most.
const PATIENCE: u64 = 10;

/// Threads with cells that are no workers.
const OTHERS: usize = 2;

/// Used memory, and for how long it has been more than allowed.
pub struct UsedMemory {
    cells: StripedCounters,
    /// What workers keep for reuse, bytes.
    kept: StripedCounters,
    base: AtomicI64,
    leaving: AtomicI64,
    /// Whether the freeing thread is at work.
    freeing: AtomicBool,
    /// Calibrations in a row that were left out because of that.
    put_off: AtomicU64,
    peak: AtomicU64,
    started: Instant,
    /// Since when eviction cannot keep up, in us since the start, and one more; 0 while it can.
    exceeded_since_us: AtomicU64,
    exceeded_us: AtomicU64,
}

/// What one thread has put into its cell.
#[derive(Debug, Default)]
pub struct Cell {
    number: usize,
    last: i64,
}

impl UsedMemory {
    /// Cells for so many workers, and for the threads that free and that log.
    pub fn new(workers: usize) -> Self {
        UsedMemory {
            cells: StripedCounters::new(workers + OTHERS, 1),
            // A debugging session's server has no workers.
            kept: StripedCounters::new(workers.max(1), 1),
            base: AtomicI64::new(0),
            leaving: AtomicI64::new(0),
            freeing: AtomicBool::new(false),
            put_off: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            started: Instant::now(),
            exceeded_since_us: AtomicU64::new(0),
            exceeded_us: AtomicU64::new(0),
        }
    }

    /// The cell of the calling thread, worker `worker`; threads that are none have none. It counts from now on.
    pub fn cell(&self, worker: usize) -> Option<Cell> {
        let is_worker = worker + OTHERS < self.cells.stripes();
        is_worker.then(|| Cell {
            number: worker,
            last: memory::balance(),
        })
    }

    /// The cell of the calling thread, which takes the rings' records and frees what they lay in.
    pub fn log_cell(&self) -> Cell {
        Cell {
            number: self.cells.stripes() - 2,
            last: memory::balance(),
        }
    }

    /// The cell of the calling thread, which frees what others hand to it.
    pub fn freeing_cell(&self) -> Cell {
        Cell {
            number: self.cells.stripes() - 1,
            last: memory::balance(),
        }
    }

    /// Puts the calling thread's balance into its cell.
    #[inline]
    pub fn put(&self, cell: &mut Cell) {
        let balance = memory::balance();
        self.cells.add_as_only_writer(cell.number, 0, balance - cell.last);
        cell.last = balance;
    }

    /// Bytes in use, without those that are about to be freed.
    #[inline]
    pub fn now(&self) -> u64 {
        let base = self.base.load(Ordering::Relaxed);
        (base + self.cells.sum(0) - self.leaving.load(Ordering::Relaxed) - self.kept.sum(0)).max(0) as u64
    }

    /// What workers keep for reuse, bytes. It does not count as used.
    pub fn kept(&self) -> u64 {
        self.kept.sum(0).max(0) as u64
    }

    /// The calling worker keeps so many bytes more than before.
    pub fn keep(&self, worker: usize, bytes: i64) {
        self.kept.add_as_only_writer(worker, 0, bytes);
    }

    /// Takes the allocator's count; `None` if it has none.
    pub fn calibrate(&self) -> Option<u64> {
        let before = self.cells.sum(0);
        let used = memory::used()?;
        let cells = (before + self.cells.sum(0)) / 2;
        self.base.store(used as i64 - cells, Ordering::Relaxed);
        self.note_peak(used.saturating_sub(self.kept()));
        Some(used)
    }

    /// The same, unless the freeing thread is in the middle of something that this count would have in part.
    pub fn calibrate_if_calm(&self) {
        let is_calm = !self.freeing.load(Ordering::Relaxed);
        if is_calm || self.put_off.fetch_add(1, Ordering::Relaxed) >= PATIENCE {
            self.put_off.store(0, Ordering::Relaxed);
            let _ = self.calibrate();
        }
    }

    /// The most bytes that were ever in use, if these are not more.
    pub fn note_peak(&self, used: u64) -> u64 {
        self.peak.fetch_max(used, Ordering::Relaxed).max(used)
    }

    /// Bytes are handed to the freeing thread.
    pub fn leave(&self, bytes: usize) {
        self.leaving.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// The freeing thread begins to free something.
    pub fn begins_to_free(&self) {
        self.freeing.store(true, Ordering::Relaxed);
    }

    /// The freeing thread has freed what so many bytes stood for.
    pub fn left(&self, bytes: usize, cell: &mut Cell) {
        self.put(cell);
        self.leaving.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.freeing.store(false, Ordering::Relaxed);
    }

    // ---- for how long it was too much ------------------------------------------------------------------------------

    /// Eviction has kept up, or not.
    pub fn note_limit(&self, keeps_up: bool) {
        let since_us = self.exceeded_since_us.load(Ordering::Relaxed);
        if keeps_up == (since_us == 0) {
            return;
        }
        let now_us = self.started.elapsed().as_micros() as u64 + 1;
        let next_us = if keeps_up { 0 } else { now_us };
        let changed = self
            .exceeded_since_us
            .compare_exchange(since_us, next_us, Ordering::Relaxed, Ordering::Relaxed);
        if changed.is_ok() && keeps_up {
            let us = now_us.saturating_sub(since_us);
            self.exceeded_us.fetch_add(us, Ordering::Relaxed);
        }
    }

    /// For how long eviction has not kept up: in all, and this time, us.
    pub fn exceeded_us(&self) -> (u64, u64) {
        let current_us = match self.exceeded_since_us.load(Ordering::Relaxed) {
            0 => 0,
            since_us => (self.started.elapsed().as_micros() as u64 + 1).saturating_sub(since_us),
        };
        (self.exceeded_us.load(Ordering::Relaxed) + current_us, current_us)
    }

    /// Forgets for how long it was too much (CONFIG RESETSTAT).
    pub fn reset_statistics(&self) {
        self.exceeded_us.store(0, Ordering::Relaxed);
        self.exceeded_since_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

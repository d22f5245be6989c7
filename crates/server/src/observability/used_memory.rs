//! The used memory, cheap enough to be read before every command.
//!
//! The allocator's own count is exact but expensive: it visits all arenas. But each thread can read, with two loads,
//! how much it has itself allocated and freed. Therefore:
//!
//! ```text
//!   used = base + cell of worker 0 + ... + log writer's + primary's + freeing thread's + shared - leaving - kept
//!           |        |                                                                              |        |
//!           |        each thread's own balance, stored by itself                                    |     for reuse
//!           |                                                                     handed to the freeing thread
//!           the allocator's count less all cells, taken several times a second: it includes
//!           threads without a cell, and everything that happened while no thread counted
//! ```
//!
//! 1. A cell has one writer. Workers store their balances before they read the sum, and only while there is a limit. A
//!    worker that begins to count continues from its cell's value, so the sum does not jump.
//! 2. Memory that is handed to the freeing thread counts as free at once. That thread updates its cell before it
//!    subtracts the bytes from `leaving`. So no key is evicted for memory that is about to be freed.
//! 3. The log writer frees the memory that workers allocated for their log records, and the thread that serves the
//!    replicas frees blocks of the backlog. Each updates its cell after each round. Otherwise everything written
//!    between two calibrations would count as in use.
//! 4. Buffers that a worker keeps for its connections are part of the server, like the allocator's thread caches. Their
//!    number changes with the load, and no key is evicted for them.
//! 5. Messages take memory until they are sent, which other workers do in their next turn. For some milliseconds no key
//!    is evicted for them: a key that many clients have cached would evict the next ones, until none is left.
//! 6. A thread without a cell that frees all data of a database subtracts that from the base. Until then the data
//!    counts in `leaving`. Otherwise writes would evict keys for memory that is free, or is being freed.
//! 7. The allocator's count and the cells must be of the same moment. So while there is a limit, a worker calibrates at
//!    the end of a turn, when its own cell is exact. It does not calibrate while the freeing thread is active, unless
//!    that takes long. [`UsedMemory::calibrate_unless_freeing`] says how far off the base is nevertheless.

use weft_base::ThreadIndex;
use weft_os::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use weft_os::time::Instant;
use weft_sync::StripedCounters;

use super::memory;

/// The maximum number of calibrations skipped in a row.
const SKIPPED_CALIBRATIONS_MAX: u64 = 10;

/// Two readings of the base agree if they differ by at most this much, in bytes.
const AGREEMENT_BYTES: u64 = 32 << 10;

/// The number of cells that do not belong to workers: three of single threads, and the shared one.
const NON_WORKER_CELLS: usize = 4;

/// The used memory, and the time for which it has exceeded the limit.
pub struct UsedMemory {
    cells: StripedCounters,
    /// The bytes that workers keep for reuse.
    kept: StripedCounters,
    /// The bytes of messages that have just been created.
    message_bytes: StripedCounters,
    base: AtomicI64,
    queued_for_freeing: AtomicI64,
    /// The number of threads that free much memory: the freeing thread, or others that free all data of a database.
    freeing_threads: AtomicUsize,
    /// The number of calibrations skipped in a row for that reason.
    skipped_calibrations: AtomicU64,
    peak: AtomicU64,
    started: Instant,
    /// The time since when eviction cannot keep up, in microseconds since the start, plus one; 0 while it can.
    exceeded_since_us: AtomicU64,
    exceeded_us: AtomicU64,
}

/// The calling thread's cell, and the balance last stored there.
#[derive(Debug, Default)]
pub struct ThreadBalance {
    number: usize,
    last: i64,
}

/// A reading of the base, and the allocator's count from which it follows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BaseReading {
    base: i64,
    used: u64,
}

/// Returns the base that the readings show. The base rarely changes, so one reading is enough if it agrees with the
/// present base. Otherwise two readings must agree, or else the middle one of three counts. So a single reading that is
/// far off changes nothing. Returns `None` if the allocator has no count.
fn agreed_reading(present: i64, mut read: impl FnMut() -> Option<BaseReading>) -> Option<BaseReading> {
    let agree = |one: i64, other: i64| one.abs_diff(other) <= AGREEMENT_BYTES;
    let first = read()?;
    if agree(present, first.base) {
        return Some(first);
    }
    let second = read()?;
    if agree(first.base, second.base) {
        return Some(second);
    }
    let mut readings = [first, second, read()?];
    readings.sort_unstable_by_key(|reading| reading.base);
    Some(readings[1])
}

impl UsedMemory {
    /// Creates cells for this number of workers, for the freeing thread, for the log writer, and for the thread that
    /// serves the replicas.
    pub fn new(workers: usize) -> Self {
        UsedMemory {
            cells: StripedCounters::new(workers + NON_WORKER_CELLS, 1),
            // The server of a debugging session has no workers.
            kept: StripedCounters::new(workers.max(1), 1),
            message_bytes: StripedCounters::new(workers.max(1), 1),
            base: AtomicI64::new(0),
            queued_for_freeing: AtomicI64::new(0),
            freeing_threads: AtomicUsize::new(0),
            skipped_calibrations: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            started: Instant::now(),
            exceeded_since_us: AtomicU64::new(0),
            exceeded_us: AtomicU64::new(0),
        }
    }

    /// Returns the cell of the calling thread, worker `worker`; `None` if it is not a worker. Counting starts from the
    /// present balance.
    pub fn cell(&self, worker: ThreadIndex) -> Option<ThreadBalance> {
        let is_worker = worker.get() + NON_WORKER_CELLS < self.cells.stripes();
        is_worker.then(|| ThreadBalance {
            number: worker.get(),
            last: memory::thread_balance(),
        })
    }

    /// Returns the cell of the calling thread, the log writer, which frees the memory of log records.
    pub fn log_cell(&self) -> ThreadBalance {
        self.non_worker_cell(0)
    }

    /// Returns the cell of the calling thread, which serves the replicas and frees blocks of the backlog.
    pub fn primary_cell(&self) -> ThreadBalance {
        self.non_worker_cell(1)
    }

    /// Returns the cell of the calling thread, the freeing thread.
    pub fn freeing_cell(&self) -> ThreadBalance {
        self.non_worker_cell(2)
    }

    fn non_worker_cell(&self, index: usize) -> ThreadBalance {
        ThreadBalance {
            number: self.number_of_non_worker(index),
            last: memory::thread_balance(),
        }
    }

    fn number_of_non_worker(&self, index: usize) -> usize {
        self.cells.stripes() - NON_WORKER_CELLS + index
    }

    /// Stores the calling thread's balance in its cell.
    #[inline]
    pub fn store_balance(&self, cell: &mut ThreadBalance) {
        let balance = memory::thread_balance();
        self.cells.add_as_only_writer(cell.number, 0, balance - cell.last);
        cell.last = balance;
    }

    /// Returns the bytes in use, without those that are about to be freed.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        let base = self.base.load(Ordering::Relaxed);
        let queued = self.queued_for_freeing.load(Ordering::Relaxed);
        (base + self.cells.sum(0) - queued - self.kept.sum(0) - self.message_bytes.sum(0)).max(0) as u64
    }

    /// Returns the bytes that workers keep for reuse. They do not count as used.
    pub fn reusable_bytes(&self) -> u64 {
        self.kept.sum(0).max(0) as u64
    }

    /// Records that the calling worker keeps this many more bytes than before.
    pub fn add_reusable(&self, worker: ThreadIndex, bytes: i64) {
        self.kept.add_as_only_writer(worker.get(), 0, bytes);
    }

    /// Records that new messages of the calling worker take this many more bytes than before.
    pub fn add_message_bytes(&self, worker: ThreadIndex, bytes: i64) {
        self.message_bytes.add_as_only_writer(worker.get(), 0, bytes);
    }

    /// Sets the base from one count of the allocator, and returns that count; `None` if the allocator has none. While
    /// there is a limit and clients are served, [`UsedMemory::calibrate_unless_freeing`] is more exact.
    pub fn calibrate(&self) -> Option<u64> {
        let present = self.base.load(Ordering::Relaxed);
        let reading = self.read_base()?;
        self.set_base(present, reading);
        Some(reading.used)
    }

    /// Calibrates unless a thread is freeing much memory, since the count would include only a part of its work.
    ///
    /// The base is exact if no thread allocates or frees meanwhile. Under load it is off by the sum of the following,
    /// and so is the used memory until the next calibration:
    ///
    /// - What each other worker has allocated since it last stored its balance. The count has it and the cell does not,
    ///   so it counts twice once it is stored. That is at most the worker's share between two checks of the limit
    ///   (`dispatch::memory_limit`), and one command. The shares of all workers together are at most half of the memory
    ///   that was left, or 1 KiB each, and none is above 1 MiB. So the error is small near the limit.
    /// - What each other worker has freed since then. It is subtracted twice once it is stored. That is at most what
    ///   the commands of one batch free by themselves: values above 1 MiB are handed to the freeing thread.
    /// - About half of what threads store in their cells during the count, which takes some 10 to 100 µs.
    /// - What moves between the caches of threads and the arenas while the allocator visits these one after the other,
    ///   and new runs of the slab. A size class moves up to some 300 KiB at once, and a run has 64 KiB. Such moves are
    ///   rare, so a reading that one of them changes by more than `AGREEMENT_BYTES` is outvoted (`agreed_reading`).
    pub fn calibrate_unless_freeing(&self) {
        let is_overdue = self.skipped_calibrations.load(Ordering::Relaxed) >= SKIPPED_CALIBRATIONS_MAX;
        let may_calibrate = || is_overdue || self.freeing_threads.load(Ordering::Relaxed) == 0;
        if may_calibrate() && self.calibrate_from(may_calibrate, || self.read_base()) {
            self.skipped_calibrations.store(0, Ordering::Relaxed);
        } else {
            self.skipped_calibrations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the base from the readings that `read` returns, unless `may_calibrate` returns `false` afterwards: a thread
    /// that began to free memory meanwhile may have changed the count. Returns `true` if the readings were used.
    fn calibrate_from(&self, may_calibrate: impl Fn() -> bool, read: impl FnMut() -> Option<BaseReading>) -> bool {
        let present = self.base.load(Ordering::Relaxed);
        match agreed_reading(present, read) {
            Some(reading) if may_calibrate() => {
                self.set_base(present, reading);
                true
            }
            _ => false,
        }
    }

    /// Sets the base, which was `present` before the reading.
    fn set_base(&self, present: i64, reading: BaseReading) {
        // This fails if a thread without a cell has freed memory meanwhile, or another one has calibrated. The reading
        // may be from before that, and the base is good.
        let _ = self
            .base
            .compare_exchange(present, reading.base, Ordering::Relaxed, Ordering::Relaxed);
        self.note_peak(reading.used.saturating_sub(self.reusable_bytes()));
    }

    /// Reads the base once.
    fn read_base(&self) -> Option<BaseReading> {
        let before = self.cells.sum(0);
        let used = memory::used()?;
        let cells = (before + self.cells.sum(0)) / 2;
        Some(BaseReading {
            base: used as i64 - cells,
            used,
        })
    }

    /// Updates the peak with `used`, and returns the peak, in bytes.
    pub fn note_peak(&self, used: u64) -> u64 {
        self.peak.fetch_max(used, Ordering::Relaxed).max(used)
    }

    /// Records that bytes are handed to the freeing thread, or to another one that calls
    /// [`UsedMemory::free_without_cell`].
    pub fn queue_for_freeing(&self, bytes: usize) {
        self.queued_for_freeing.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Records that a thread begins to free what takes no calibration meanwhile.
    pub fn note_freeing_started(&self) {
        self.freeing_threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the freeing thread has freed the value that it began to free. `bytes` bytes were counted for it.
    pub fn note_freed(&self, bytes: usize, cell: &mut ThreadBalance) {
        self.store_balance(cell);
        self.end_freeing(bytes);
    }

    /// Calls `free`, which frees memory on a thread without a cell, and counts what it has freed as free at once.
    /// `bytes` bytes of it were handed over ([`UsedMemory::queue_for_freeing`]) and count as free before.
    ///
    /// A calibration meanwhile would find a part of it freed already, so none takes place, unless `free` takes long.
    pub fn free_without_cell(&self, bytes: usize, free: impl FnOnce()) {
        let before = memory::thread_balance();
        self.note_freeing_started();
        free();
        self.base
            .fetch_add(memory::thread_balance() - before, Ordering::Relaxed);
        self.end_freeing(bytes);
    }

    /// Counts bytes that a thread without a cell of its own has just allocated, or freed if they are negative. They are
    /// in a cell that such threads share, so that a calibration meanwhile counts them once.
    pub fn add_to_shared_cell(&self, bytes: i64) {
        self.cells.add(self.number_of_non_worker(3), 0, bytes);
    }

    fn end_freeing(&self, bytes: usize) {
        self.queued_for_freeing.fetch_sub(bytes as i64, Ordering::Relaxed);
        let threads = self.freeing_threads.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(threads > 0, "a thread ends what it has begun");
    }

    // ---- for how long it was too much ------------------------------------------------------------------------------
    /// Records whether eviction keeps up with the limit.
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

    /// Returns the time for which eviction has not kept up, in microseconds: in total, and in the present period.
    pub fn exceeded_us(&self) -> (u64, u64) {
        let current_us = match self.exceeded_since_us.load(Ordering::Relaxed) {
            0 => 0,
            since_us => (self.started.elapsed().as_micros() as u64 + 1).saturating_sub(since_us),
        };
        (self.exceeded_us.load(Ordering::Relaxed) + current_us, current_us)
    }

    /// Resets the times above (CONFIG RESETSTAT).
    pub fn reset_statistics(&self) {
        self.exceeded_us.store(0, Ordering::Relaxed);
        self.exceeded_since_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

//! The resource use of each cluster slot: the time of its commands, and the bytes received and sent for it.
//!
//! As with all counters, each thread adds to its own row, and readers sum up the rows. A row is created when its thread
//! counts for the first time, so a server that does not count has none. Rows are never reset: a reset stores the
//! present sums as baselines, so that an addition in progress cannot undo it.

use weft_base::{SlotIndex, ThreadIndex};
use weft_os::sync::OnceLock;

use weft_os::atomic::AtomicU64;
use weft_os::atomic::Ordering::Relaxed;

/// The figures of a slot, with their names in CLUSTER SLOT-STATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SlotFigure {
    /// `cpu-usec`
    CpuUs,
    /// `network-bytes-in`
    BytesIn,
    /// `network-bytes-out`
    BytesOut,
}

const FIGURES: usize = SlotFigure::BytesOut as usize + 1;

/// The counters of one thread.
struct ThreadRow {
    figures: Box<[AtomicU64]>,
    /// The time that has not added up to a whole microsecond, in nanoseconds.
    rest_ns: AtomicU64,
}

/// The figures of all slots.
pub struct SlotStats {
    slots: usize,
    rows: Box<[OnceLock<ThreadRow>]>,
    /// The sums of the rows at the last reset, for each figure; none before the first reset.
    baselines: OnceLock<Box<[AtomicU64]>>,
}

fn zeroes(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl SlotStats {
    /// Creates zeroed counters for `seats` threads and `slots` slots.
    pub fn new(seats: usize, slots: usize) -> Self {
        SlotStats {
            slots,
            rows: (0..seats).map(|_| OnceLock::new()).collect(),
            baselines: OnceLock::new(),
        }
    }

    /// Returns the row of a thread, to which no other thread adds.
    fn row(&self, thread_index: ThreadIndex) -> Option<&ThreadRow> {
        let row = self.rows.get(thread_index.get())?;
        Some(row.get_or_init(|| ThreadRow {
            figures: zeroes(self.slots * FIGURES),
            rest_ns: AtomicU64::new(0),
        }))
    }

    /// Adds to a figure, in the row of a thread. Only that thread may call this.
    pub fn add(&self, thread_index: ThreadIndex, slot: SlotIndex, figure: SlotFigure, delta: u64) {
        if delta == 0 {
            return;
        }
        let cell = self
            .row(thread_index)
            .and_then(|row| row.figures.get(index_of(slot, figure)));
        if let Some(cell) = cell {
            cell.store(cell.load(Relaxed).wrapping_add(delta), Relaxed);
        }
    }

    /// Adds a time to `cpu-usec`. Returns the counted part, in nanoseconds: whole microseconds. The rest is counted
    /// with the thread's next time, so no time is lost however short commands are.
    pub fn add_time(&self, thread_index: ThreadIndex, slot: SlotIndex, nanoseconds: u64) -> u64 {
        let Some(row) = self.row(thread_index) else {
            return nanoseconds;
        };
        let all = nanoseconds + row.rest_ns.load(Relaxed);
        row.rest_ns.store(all % 1000, Relaxed);
        self.add(thread_index, slot, SlotFigure::CpuUs, all / 1000);
        all - all % 1000
    }

    fn total(&self, index: usize) -> u64 {
        let rows = self.rows.iter().filter_map(OnceLock::get);
        let cells = rows.filter_map(|row| row.figures.get(index));
        cells.fold(0, |sum, cell| sum.wrapping_add(cell.load(Relaxed)))
    }

    /// Returns a figure since its last reset.
    pub fn sum(&self, slot: SlotIndex, figure: SlotFigure) -> u64 {
        let index = index_of(slot, figure);
        let baseline = self.baselines.get().and_then(|all| all.get(index));
        self.total(index)
            .wrapping_sub(baseline.map_or(0, |baseline| baseline.load(Relaxed)))
    }

    /// Resets the figures of these slots.
    pub fn reset(&self, slots: impl Iterator<Item = SlotIndex>) {
        if self.rows.iter().all(|row| row.get().is_none()) {
            return;
        }
        let baselines = self.baselines.get_or_init(|| zeroes(self.slots * FIGURES));
        for slot in slots {
            for figure in [SlotFigure::CpuUs, SlotFigure::BytesIn, SlotFigure::BytesOut] {
                let index = index_of(slot, figure);
                if let Some(baseline) = baselines.get(index) {
                    baseline.store(self.total(index), Relaxed);
                }
            }
        }
    }

    /// Resets the figures of all slots.
    pub fn reset_all(&self) {
        self.reset(SlotIndex::all().take(self.slots));
    }
}

fn index_of(slot: SlotIndex, figure: SlotFigure) -> usize {
    slot.index() * FIGURES + figure as usize
}

#[cfg(test)]
mod tests;

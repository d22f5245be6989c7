//! Returns free pages to the operating system where that is worthwhile.
//!
//! The allocator could return them by itself some time after they became free. But each hole breaks up a huge page,
//! which makes every lookup there walk the page tables longer (measured: a quarter of a GET). So the allocator keeps
//! its free pages for reuse. This module checks them once a second, when the heap has stopped growing.
//!
//! The arrays of the tables lie in an arena of their own (`weft_table::arrays`). When they have grown, many pages are
//! free there: the arrays are compacted and the rest is returned, which does not affect the entries. In other arenas
//! all free pages are returned, and only if there are many in relation to the used ones.
//!
//! Long commands have an arena of their own, too ([`memory::use_long_command_arena`]). Its free pages stay for the next
//! long command, and are returned when none has run for a while.

use std::time::Duration;

use crate::observability::memory::{self, AllocatorError, AllocatorFigures};
use weft_os::time::Instant;

/// The interval between two checks.
pub const PERIOD: Duration = Duration::from_secs(1);
/// The minimum interval between two purges; a heap that grows and shrinks keeps its free pages.
const MIN_PURGE_INTERVAL: Duration = Duration::from_secs(10);
/// Free pages that are less than this fraction of the used ones stay.
const MIN_FREE_FRACTION: u64 = 16;
/// The same for the arena of the tables' arrays.
const MIN_FREE_FRACTION_OF_ARRAYS: u64 = 8;
/// Free pages of less than this many bytes stay.
const MIN_FREE_BYTES: u64 = 4 << 20;
/// The time after the last long command until its free pages are returned.
const LONG_COMMAND_IDLE_TIME: Duration = Duration::from_secs(20);
/// A heap that grew by less than this fraction of itself in a period has stopped growing.
const GROWTH_FRACTION: u64 = 100;

/// The observations of the last check.
pub struct Reclaimer {
    active_bytes: u64,
    next_allowed: Instant,
    /// The number of allocations of long commands.
    long_allocations: u64,
    /// The time at which that number was seen first.
    last_long_allocation: Instant,
}

impl Reclaimer {
    /// Creates a reclaimer without observations.
    pub fn new() -> Self {
        Reclaimer {
            active_bytes: 0,
            next_allowed: Instant::now(),
            long_allocations: 0,
            last_long_allocation: Instant::now(),
        }
    }

    /// Returns the free pages to return now, if any. None in a simulation, where what the allocator keeps differs from
    /// run to run.
    pub fn next_reclaim(&mut self, now: Instant) -> Option<Reclaim> {
        if cfg!(feature = "simulated") {
            return None;
        }
        let figures = memory::figures()?;
        let grown = figures.active.saturating_sub(self.active_bytes);
        self.active_bytes = figures.active;
        if self.are_long_commands_idle(memory::long_command_allocations().unwrap_or(0), now)
            && figures.long_commands.free > MIN_FREE_BYTES
        {
            return Some(Reclaim::LongCommands);
        }
        if now < self.next_allowed || grown > figures.active / GROWTH_FRACTION {
            return None;
        }
        let reclaim = select_reclaim(&figures)?;
        self.next_allowed = now + MIN_PURGE_INTERVAL;
        Some(reclaim)
    }

    /// Returns `true` if no long command has allocated memory for a while; `requests` is the number of their
    /// allocations so far.
    fn are_long_commands_idle(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.long_allocations {
            (self.long_allocations, self.last_long_allocation) = (requests, now);
        }
        now >= self.last_long_allocation + LONG_COMMAND_IDLE_TIME
    }
}

/// The free pages to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Free pages among the arrays of the tables.
    Arrays,
    /// Free pages left by long commands.
    LongCommands,
    /// All free pages except those of the tables' arrays and of long commands.
    Everything,
}

impl Reclaim {
    /// Returns `true` if values should be compacted first, so that more pages are free.
    pub fn needs_compaction(self) -> bool {
        self != Reclaim::LongCommands
    }

    /// Returns the pages to the operating system.
    ///
    /// # Errors
    /// The allocator's reason.
    pub fn purge(self) -> Result<(), AllocatorError> {
        match self {
            Reclaim::Arrays => memory::purge_arrays(),
            Reclaim::LongCommands => memory::purge_long_command_arena(),
            Reclaim::Everything => memory::purge_common_arenas(),
        }
    }
}

fn select_reclaim(figures: &AllocatorFigures) -> Option<Reclaim> {
    let is_wasteful = |free: u64, active: u64, part: u64| free > MIN_FREE_BYTES && free > active / part;
    let arrays = figures.arrays;
    let free = figures
        .resident
        .saturating_sub(figures.active + figures.metadata + arrays.free + figures.long_commands.free);
    if is_wasteful(free, figures.active, MIN_FREE_FRACTION) {
        Some(Reclaim::Everything)
    } else if is_wasteful(arrays.free, arrays.active, MIN_FREE_FRACTION_OF_ARRAYS) {
        Some(Reclaim::Arrays)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observability::memory::ArenaFigures;

    #[test]
    fn few_free_pages_are_kept_and_many_are_returned() {
        let figures = |active: u64, free: u64| AllocatorFigures {
            allocated: active,
            used: active,
            active: active << 20,
            metadata: 5 << 20,
            resident: (active + free + 5) << 20,
            ..AllocatorFigures::default()
        };
        assert_eq!(select_reclaim(&figures(1000, 50)), None);
        assert_eq!(select_reclaim(&figures(1000, 70)), Some(Reclaim::Everything));
        assert_eq!(select_reclaim(&figures(10, 3)), None);
        assert_eq!(select_reclaim(&figures(10, 900)), Some(Reclaim::Everything));
    }

    #[test]
    fn free_pages_of_long_commands_are_kept_while_such_commands_run() {
        let figures = AllocatorFigures {
            active: 200 << 20,
            resident: 700 << 20,
            long_commands: ArenaFigures {
                active: 100 << 20,
                free: 490 << 20,
            },
            ..AllocatorFigures::default()
        };
        assert_eq!(select_reclaim(&figures), None);
        let mut reclaimer = Reclaimer::new();
        let begin = Instant::now();
        let mut rests = |requests, second| reclaimer.are_long_commands_idle(requests, begin + second * PERIOD);
        assert!((1..60).all(|second| !rests(u64::from(second / 10), second)));
        assert!(!rests(6, 60) && !rests(6, 79));
        assert!(rests(6, 80));
        assert!(!rests(7, 81));
    }

    #[test]
    fn free_pages_among_the_arrays_do_not_cost_the_entries_their_huge_pages() {
        let figures = |arrays: u64, free: u64| AllocatorFigures {
            allocated: 320 << 20,
            used: 320 << 20,
            active: 320 << 20,
            metadata: 5 << 20,
            resident: (320 + 5 + free) << 20,
            arrays: ArenaFigures {
                active: arrays << 20,
                free: free << 20,
            },
            ..AllocatorFigures::default()
        };
        assert_eq!(select_reclaim(&figures(32, 30)), Some(Reclaim::Arrays));
        assert_eq!(select_reclaim(&figures(200, 24)), None, "less than an eighth");
        assert_eq!(select_reclaim(&figures(8, 4)), None, "too few to matter");
    }
}

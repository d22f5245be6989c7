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
//!
//! Returned pages can become resident again without being used (`weft_table::unused_pages`). The allocator does not
//! count them, so their bytes are estimated ([`HiddenPages`]): the process has more resident memory than the allocator
//! counts. They are wasted like free pages, so the sum of both decides, and both are returned together.

use std::time::Duration;

use crate::observability::memory::{self, AllocatorError, AllocatorFigures};
use crate::observability::{log, process};
use weft_os::time::Instant;

/// The interval between two checks.
pub const PERIOD: Duration = Duration::from_secs(1);
/// The minimum interval between two purges; a heap that grows and shrinks keeps its free pages.
const MIN_PURGE_INTERVAL: Duration = Duration::from_secs(10);
/// The same with `maxmemory` while there are more free pages than [`MANY_FREE_FRACTION`]: such a server should not take
/// much more than its limit, however fast its data change.
const MIN_PURGE_INTERVAL_IF_LIMITED: Duration = Duration::from_secs(2);
/// Free pages that are less than this fraction of the used ones stay.
const MIN_FREE_FRACTION: u64 = 16;
/// More free pages than this fraction of the used ones are returned sooner.
const MANY_FREE_FRACTION: u64 = 12;
/// The same for the arena of the tables' arrays.
const MIN_FREE_FRACTION_OF_ARRAYS: u64 = 8;
/// Free pages of less than this many bytes stay.
const MIN_FREE_BYTES: u64 = 4 << 20;
/// The time after the last long command until its free pages are returned.
const LONG_COMMAND_IDLE_TIME: Duration = Duration::from_secs(20);
/// A heap that grew by less than this fraction of itself in a period has stopped growing.
const GROWTH_FRACTION: u64 = 100;
/// Resident memory of this many bytes may belong to something else than the allocator: the program, and stacks.
const OTHER_RESIDENT_BYTES: u64 = 16 << 20;

/// The observations of the last check.
pub struct Reclaimer {
    active_bytes: u64,
    last_purge: Option<Instant>,
    /// The time of the last one that was not sooner because memory is limited.
    last_usual_purge: Option<Instant>,
    /// The number of allocations of long commands.
    long_allocations: u64,
    /// The time at which that number was seen first.
    last_long_allocation: Instant,
    hidden_pages: HiddenPages,
}

impl Reclaimer {
    /// Creates a reclaimer without observations.
    pub fn new() -> Self {
        Reclaimer {
            active_bytes: 0,
            last_purge: None,
            last_usual_purge: None,
            long_allocations: 0,
            last_long_allocation: Instant::now(),
            hidden_pages: HiddenPages::new(),
        }
    }

    /// Returns the free pages to return now, if any. None in a simulation, where what the allocator keeps differs from
    /// run to run. `is_limited` is `true` if `maxmemory` is set.
    pub fn next_reclaim(&mut self, now: Instant, is_limited: bool) -> Option<Reclaim> {
        if cfg!(feature = "simulated") {
            return None;
        }
        let figures = memory::figures()?;
        let grown = figures.active.saturating_sub(self.active_bytes);
        self.active_bytes = figures.active;
        let uncounted = process::resident_bytes().map_or(0, |resident| resident.saturating_sub(figures.resident));
        let hidden = self.hidden_pages.estimate(uncounted, now);
        if self.are_long_commands_idle(memory::long_command_allocations().unwrap_or(0), now)
            && figures.long_commands.free > MIN_FREE_BYTES
        {
            return Some(Reclaim::LongCommands);
        }
        let is_over = |last: Option<Instant>, interval| last.is_none_or(|last| now >= last + interval);
        if !is_over(self.last_purge, MIN_PURGE_INTERVAL_IF_LIMITED) || grown > figures.active / GROWTH_FRACTION {
            return None;
        }
        let is_usual = is_over(self.last_usual_purge, MIN_PURGE_INTERVAL);
        let hidden = match hidden > 0 {
            true => hidden.min(memory::unused_page_bytes()),
            false => 0,
        };
        let reclaim = match is_usual {
            true => select_reclaim(&figures, hidden)?,
            false if is_limited && has_many_free_pages(&figures, hidden) => Reclaim::FreePages,
            false => return None,
        };
        self.last_purge = Some(now);
        if is_usual {
            self.last_usual_purge = Some(now);
        }
        if reclaim.returns_hidden_pages() {
            self.hidden_pages.will_be_returned(now + MIN_PURGE_INTERVAL);
        }
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

/// The estimate of unused pages that are resident: the resident memory of the process that the allocator does not
/// count, beyond what a return leaves.
///
/// Something else may have this memory, or the system may not take it back. Then a return changes nothing. So the least
/// that is there within some time after a return does not count any more, until the memory becomes less.
struct HiddenPages {
    /// The uncounted bytes that are not hidden pages.
    other: u64,
    /// The time until which a return that was requested has its effect, and the least number of uncounted bytes since.
    after_return: Option<(Instant, u64)>,
}

impl HiddenPages {
    fn new() -> Self {
        HiddenPages {
            other: OTHER_RESIDENT_BYTES,
            after_return: None,
        }
    }

    /// Returns the bytes of hidden pages if the process has `uncounted` bytes of resident memory that the allocator
    /// does not count.
    fn estimate(&mut self, uncounted: u64, now: Instant) -> u64 {
        if let Some((until, least)) = &mut self.after_return {
            *least = uncounted.min(*least);
            if now >= *until {
                self.other = *least;
                self.after_return = None;
            }
        }
        self.other = self.other.min(uncounted).max(OTHER_RESIDENT_BYTES);
        uncounted.saturating_sub(self.other)
    }

    /// Records that hidden pages are returned, which takes until `until` at most. Further returns until then do not
    /// put that off: they may change nothing.
    fn will_be_returned(&mut self, until: Instant) {
        let until = self.after_return.map_or(until, |(earlier, _)| earlier);
        self.after_return = Some((until, u64::MAX));
    }
}

/// The free pages to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Free pages among the arrays of the tables.
    Arrays,
    /// Free pages left by long commands.
    LongCommands,
    /// All free pages except those of long commands, and resident pages that are not used, of all arenas.
    FreePages,
    /// The same after values were compacted, which takes longer.
    Everything,
}

impl Reclaim {
    /// Returns `true` if values should be compacted first, so that more pages are free.
    pub fn needs_compaction(self) -> bool {
        matches!(self, Reclaim::Arrays | Reclaim::Everything)
    }

    /// Returns `true` if pages that became resident again without being used are returned, too.
    fn returns_hidden_pages(self) -> bool {
        matches!(self, Reclaim::FreePages | Reclaim::Everything)
    }

    /// Returns the pages to the operating system.
    ///
    /// # Errors
    /// The allocator's reason.
    pub fn purge(self) -> Result<(), AllocatorError> {
        match self {
            Reclaim::Arrays => memory::purge_arrays(),
            Reclaim::LongCommands => memory::purge_long_command_arena(),
            Reclaim::FreePages | Reclaim::Everything => {
                memory::purge_common_arenas()?;
                let bytes = memory::return_unused_pages();
                log::debug!("{bytes} bytes of pages that the allocator had returned before were resident");
                Ok(())
            }
        }
    }
}

/// Returns the bytes of free pages, except those of the tables' arrays and of long commands.
fn common_free_bytes(figures: &AllocatorFigures) -> u64 {
    let others = figures.metadata + figures.arrays.free + figures.long_commands.free;
    figures.resident.saturating_sub(figures.active + others)
}

/// Returns `true` if free pages are so many that they are returned sooner.
fn has_many_free_pages(figures: &AllocatorFigures, hidden: u64) -> bool {
    is_wasteful(common_free_bytes(figures) + hidden, figures.active, MANY_FREE_FRACTION)
}

/// Returns `true` if free pages are worth returning: they are more than this fraction of the active ones.
fn is_wasteful(free: u64, active: u64, fraction: u64) -> bool {
    free > MIN_FREE_BYTES && free > active / fraction
}

/// Returns the pages to return, if the allocator has `figures` and `hidden` bytes of unused pages are resident.
fn select_reclaim(figures: &AllocatorFigures, hidden: u64) -> Option<Reclaim> {
    let arrays = figures.arrays;
    if is_wasteful(common_free_bytes(figures) + hidden, figures.active, MIN_FREE_FRACTION) {
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
        assert_eq!(select_reclaim(&figures(1000, 50), 0), None);
        assert_eq!(select_reclaim(&figures(1000, 70), 0), Some(Reclaim::Everything));
        assert_eq!(select_reclaim(&figures(10, 3), 0), None);
        assert_eq!(select_reclaim(&figures(10, 900), 0), Some(Reclaim::Everything));
    }

    #[test]
    fn many_free_pages_are_returned_sooner() {
        let figures = AllocatorFigures {
            active: 1200 << 20,
            resident: 1290 << 20,
            ..AllocatorFigures::default()
        };
        assert!(!has_many_free_pages(&figures, 0));
        assert!(has_many_free_pages(&figures, 20 << 20));
    }

    #[test]
    fn hidden_pages_count_like_free_ones() {
        let figures = AllocatorFigures {
            active: 1000 << 20,
            resident: 1030 << 20,
            ..AllocatorFigures::default()
        };
        assert_eq!(select_reclaim(&figures, 30 << 20), None);
        assert_eq!(select_reclaim(&figures, 40 << 20), Some(Reclaim::Everything));
    }

    /// Returns the estimate for some megabytes of uncounted memory, in megabytes.
    fn estimate(hidden_pages: &mut HiddenPages, uncounted: u64, now: Instant) -> u64 {
        hidden_pages.estimate(uncounted << 20, now) >> 20
    }

    #[test]
    fn memory_that_a_return_does_not_reduce_is_not_returned_again() {
        let mut pages = HiddenPages::new();
        let begin = Instant::now();
        assert_eq!(estimate(&mut pages, 10, begin), 0, "the program and its stacks");
        assert_eq!(estimate(&mut pages, 116, begin), 100);
        let returned = begin + MIN_PURGE_INTERVAL;
        pages.will_be_returned(returned);
        assert_eq!(estimate(&mut pages, 116, begin + PERIOD), 100, "not yet");
        assert!((0..600).all(|second| estimate(&mut pages, 116, returned + second * PERIOD) == 0));
        assert_eq!(
            estimate(&mut pages, 216, returned + 600 * PERIOD),
            100,
            "more than before"
        );
    }

    #[test]
    fn frequent_returns_that_change_nothing_end() {
        let mut pages = HiddenPages::new();
        let begin = Instant::now();
        let is_hidden = |second: u32| {
            let now = begin + second * PERIOD;
            let hidden = estimate(&mut pages, 116, now) > 0;
            pages.will_be_returned(now + MIN_PURGE_INTERVAL);
            hidden
        };
        assert!((0..60).map(is_hidden).filter(|hidden| *hidden).count() <= 10);
    }

    #[test]
    fn pages_that_become_resident_soon_after_a_return_count() {
        let mut pages = HiddenPages::new();
        let begin = Instant::now();
        let returned = begin + MIN_PURGE_INTERVAL;
        pages.will_be_returned(returned);
        assert_eq!(estimate(&mut pages, 16, begin + PERIOD), 0);
        assert_eq!(estimate(&mut pages, 60, returned), 44);
        assert_eq!(estimate(&mut pages, 70, returned + PERIOD), 54);
    }

    #[test]
    fn pages_that_become_resident_after_a_return_count_again() {
        let mut pages = HiddenPages::new();
        let begin = Instant::now();
        pages.will_be_returned(begin + MIN_PURGE_INTERVAL);
        assert_eq!(estimate(&mut pages, 116, begin), 100);
        assert_eq!(estimate(&mut pages, 20, begin + MIN_PURGE_INTERVAL), 0);
        assert_eq!(estimate(&mut pages, 120, begin + 20 * PERIOD), 100);
        // A return that takes longer than the interval.
        pages.will_be_returned(begin + 30 * PERIOD);
        assert_eq!(estimate(&mut pages, 120, begin + 30 * PERIOD), 0);
        assert_eq!(estimate(&mut pages, 17, begin + 31 * PERIOD), 0);
        assert_eq!(estimate(&mut pages, 117, begin + 60 * PERIOD), 100);
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
        assert_eq!(select_reclaim(&figures, 0), None);
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
        assert_eq!(select_reclaim(&figures(32, 30), 0), Some(Reclaim::Arrays));
        assert_eq!(select_reclaim(&figures(200, 24), 0), None, "less than an eighth");
        assert_eq!(select_reclaim(&figures(8, 4), 0), None, "too few to matter");
    }
}

//! Gives free pages back to the operating system when that is worth it.
//!
//! The allocator could do it by itself, a while after pages became free. But each hole that is given back takes a huge page
//! apart, which costs every lookup there a longer walk through the page tables (measured: a quarter of a GET). So the
//! allocator keeps its free pages for reuse, and this looks at them once a second, when the heap has stopped growing.
//!
//! The arrays of the tables lie apart, in an arena of their own (`weft_table::arrays`). When they have grown, many pages are
//! free there: the arrays are moved together and the rest is given back, which does not touch the entries. Elsewhere
//! it takes many free pages, beside what is in use, until all are given back.
//!
//! Long commands have an arena of their own, too ([`memory::allocate_apart`]). What they leave stays for the next one; when
//! none has come for a while, it goes.

use std::time::{Duration, Instant};

use crate::observability::memory::{self, AllocatorFigures};

/// How often the figures are looked at.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Between two times of giving back, so that a heap that breathes keeps its breath.
const PAUSE: Duration = Duration::from_secs(10);
/// Free pages below this part of the used ones stay.
const KEPT_PART: u64 = 16;
/// The same where the arrays of the tables are.
const KEPT_PART_OF_ARRAYS: u64 = 8;
/// Free pages below this many bytes stay.
const KEPT_BYTES: u64 = 4 << 20;
/// Pages that long commands left stay for so long after the last one.
const LONG_REST: Duration = Duration::from_secs(20);
/// A heap that grew by less than this part of itself in a period has stopped growing.
const QUIET_PART: u64 = 100;

/// What was seen the last time.
pub struct Reclaimer {
    active: u64,
    not_before: Instant,
    /// How often long commands had taken memory, and when that was seen first.
    long: (u64, Instant),
}

impl Reclaimer {
    /// Has seen nothing yet.
    pub fn new() -> Self {
        Reclaimer {
            active: 0,
            not_before: Instant::now(),
            long: (0, Instant::now()),
        }
    }

    /// Which free pages should be given back now.
    pub fn next_reclaim(&mut self, now: Instant) -> Option<Reclaim> {
        let figures = memory::figures()?;
        let grown = figures.active.saturating_sub(self.active);
        self.active = figures.active;
        if self.are_long_commands_idle(memory::long_command_allocations().unwrap_or(0), now)
            && figures.long_commands.free > KEPT_BYTES
        {
            return Some(Reclaim::OfLongCommands);
        }
        if now < self.not_before || grown > figures.active / QUIET_PART {
            return None;
        }
        let reclaim = worthwhile_reclaim(&figures)?;
        self.not_before = now + PAUSE;
        Some(reclaim)
    }

    /// Whether no long command has taken memory for a while; `requests` is how often they ever did.
    fn are_long_commands_idle(&mut self, requests: u64, now: Instant) -> bool {
        if requests != self.long.0 {
            self.long = (requests, now);
        }
        now >= self.long.1 + LONG_REST
    }
}

/// What is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Free pages among the arrays of the tables.
    Arrays,
    /// Free pages that long commands left.
    OfLongCommands,
    /// All free pages but those.
    Everything,
}

impl Reclaim {
    /// Whether values should be moved together first, so that more pages are free.
    pub fn needs_compaction(self) -> bool {
        self != Reclaim::OfLongCommands
    }

    /// Gives the pages back.
    ///
    /// # Errors
    /// The allocator's reason.
    pub fn run(self) -> Result<(), String> {
        match self {
            Reclaim::Arrays => memory::purge_arrays(),
            Reclaim::OfLongCommands => memory::purge_long_command_arena(),
            Reclaim::Everything => memory::purge_common_arenas(),
        }
    }
}

fn worthwhile_reclaim(figures: &AllocatorFigures) -> Option<Reclaim> {
    let is_wasteful = |free: u64, active: u64, part: u64| free > KEPT_BYTES && free > active / part;
    let arrays = figures.arrays;
    let free = figures
        .resident
        .saturating_sub(figures.active + figures.metadata + arrays.free + figures.long_commands.free);
    if is_wasteful(free, figures.active, KEPT_PART) {
        Some(Reclaim::Everything)
    } else if is_wasteful(arrays.free, arrays.active, KEPT_PART_OF_ARRAYS) {
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
    fn a_few_free_pages_stay_and_many_go() {
        let figures = |active: u64, free: u64| AllocatorFigures {
            allocated: active,
            used: active,
            active: active << 20,
            metadata: 5 << 20,
            resident: (active + free + 5) << 20,
            ..AllocatorFigures::default()
        };
        assert_eq!(worthwhile_reclaim(&figures(1000, 50)), None);
        assert_eq!(worthwhile_reclaim(&figures(1000, 70)), Some(Reclaim::Everything));
        assert_eq!(worthwhile_reclaim(&figures(10, 3)), None);
        assert_eq!(worthwhile_reclaim(&figures(10, 900)), Some(Reclaim::Everything));
    }

    #[test]
    fn what_long_commands_left_stays_while_they_come() {
        let figures = AllocatorFigures {
            active: 200 << 20,
            resident: 700 << 20,
            long_commands: ArenaFigures {
                active: 100 << 20,
                free: 490 << 20,
            },
            ..AllocatorFigures::default()
        };
        assert_eq!(worthwhile_reclaim(&figures), None);
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
        assert_eq!(worthwhile_reclaim(&figures(32, 30)), Some(Reclaim::Arrays));
        assert_eq!(worthwhile_reclaim(&figures(200, 24)), None, "less than an eighth");
        assert_eq!(worthwhile_reclaim(&figures(8, 4)), None, "too few to matter");
    }
}

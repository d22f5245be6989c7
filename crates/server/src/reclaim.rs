//! Gives free pages back to the operating system when that is worth it.
//!
//! The allocator could do it by itself, a while after pages became free. But the growing tables leave
//! small holes all over the heap, and each hole that is given back takes a huge page apart, which costs
//! every lookup there a longer walk through the page tables (measured: a quarter of a GET). So the
//! allocator keeps its free pages for reuse, and this looks at them once a second: when they are many,
//! beside what is in use, and the heap has stopped growing, the tables are moved together and the free pages given
//! back at once.

use std::time::{Duration, Instant};

use crate::observe::memory::{self, Figures};

/// How often the figures are looked at.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Between two times of giving back, so that a heap that breathes keeps its breath.
const PAUSE: Duration = Duration::from_secs(10);
/// Free pages below this part of the used ones stay.
const KEPT_PART: u64 = 16;
/// Free pages below this many bytes stay.
const KEPT_BYTES: u64 = 4 << 20;
/// A heap that grew by less than this part of itself in a period has stopped growing.
const QUIET_PART: u64 = 100;

/// What was seen the last time.
pub struct Reclaimer {
    active: u64,
    not_before: Instant,
}

impl Reclaimer {
    /// Has seen nothing yet.
    pub fn new() -> Self {
        Reclaimer {
            active: 0,
            not_before: Instant::now(),
        }
    }

    /// Whether free pages should be given back now.
    pub fn is_worth_it(&mut self, now: Instant) -> bool {
        let Some(figures) = memory::figures() else {
            return false;
        };
        let grown = figures.active.saturating_sub(self.active);
        self.active = figures.active;
        let worth_it = now >= self.not_before && grown <= figures.active / QUIET_PART && is_wasteful(&figures);
        if worth_it {
            self.not_before = now + PAUSE;
        }
        worth_it
    }
}

fn is_wasteful(figures: &Figures) -> bool {
    let free = figures.resident.saturating_sub(figures.active + figures.metadata);
    free > KEPT_BYTES && free > figures.active / KEPT_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_free_pages_stay_and_many_go() {
        let figures = |active: u64, free: u64| Figures {
            allocated: active,
            active: active << 20,
            metadata: 5 << 20,
            resident: (active + free + 5) << 20,
        };
        assert!(!is_wasteful(&figures(1000, 50)));
        assert!(is_wasteful(&figures(1000, 70)));
        assert!(!is_wasteful(&figures(10, 3)));
        assert!(is_wasteful(&figures(10, 900)));
    }
}

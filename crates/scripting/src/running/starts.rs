//! The starts of runs on script threads, and the turn of those that were delayed.

use std::time::Duration;
use weft_os::atomic::{AtomicUsize, Ordering};
use weft_os::sync::Mutex;

use super::RunRegistry;

/// After the last exclusive section of a turn, the time during which delayed runs may start before the next one.
pub(super) const DELAYED_RUNS_TURN: Duration = Duration::from_millis(3);
/// The limit of that time while there are delayed runs whose threads have not tried again: on a busy machine it takes
/// them longer than usual.
pub(super) const LONG_DELAYED_RUNS_TURN: Duration = Duration::from_millis(100);

/// The delayed runs that will be tried again. A turn of runs waits for those that were refused before it began, not for
/// those that come later: they have the next turn.
#[derive(Default)]
pub(super) struct DelayedRuns {
    counts: Mutex<DelayedCounts>,
    /// The number of awaited runs, so that the others need no lock.
    awaited: AtomicUsize,
}

#[derive(Default)]
struct DelayedCounts {
    /// The number of turns of runs that have begun.
    turns: u64,
    /// The number of runs that were refused since the last turn began.
    of_next_turn: usize,
    /// The number of runs that were refused before, and have neither begun nor given up.
    awaited: usize,
}

/// The start of a run on a script thread. It is known to be delayed from its first failed attempt until it begins or is
/// dropped.
pub struct RunStart<'r> {
    running: &'r RunRegistry,
    /// The number of turns of runs before its first failed attempt, while it is delayed.
    delayed_in: Option<u64>,
}

impl RunRegistry {
    /// Returns the start of a run on a script thread, which tries to begin until it succeeds or is dropped.
    pub fn start_on_script_thread(&self) -> RunStart<'_> {
        RunStart {
            running: self,
            delayed_in: None,
        }
    }

    /// Returns `true` during the turn of delayed runs. It lasts longer while some of them have not tried again.
    pub(super) fn is_turn_of_runs(&self) -> bool {
        let since_us = self.delayed_runs_since_us.load(Ordering::Relaxed);
        if since_us == 0 {
            return false;
        }
        let lasted_us = self.now_us().saturating_sub(since_us);
        lasted_us < DELAYED_RUNS_TURN.as_micros() as u64
            || (lasted_us < LONG_DELAYED_RUNS_TURN.as_micros() as u64
                && self.delayed_runs.awaited.load(Ordering::Relaxed) > 0)
    }

    /// Begins the turn of the runs that are delayed.
    pub(super) fn begin_turn_of_runs(&self) {
        let mut counts = self.delayed_runs.counts.lock();
        counts.turns += 1;
        counts.awaited += std::mem::take(&mut counts.of_next_turn);
        self.delayed_runs.awaited.store(counts.awaited, Ordering::Relaxed);
        self.delayed_runs_since_us
            .store(self.now_us().max(1), Ordering::Relaxed);
    }
}

impl RunStart<'_> {
    /// Does the same as [`RunRegistry::try_begin_on_script_thread`].
    pub fn try_begin(&mut self) -> bool {
        let begins = self.running.try_begin_on_script_thread();
        self.set_delayed(!begins);
        begins
    }

    fn set_delayed(&mut self, is_delayed: bool) {
        if is_delayed == self.delayed_in.is_some() {
            return;
        }
        let delayed = &self.running.delayed_runs;
        let mut counts = delayed.counts.lock();
        match self.delayed_in.take() {
            None => {
                counts.of_next_turn += 1;
                self.delayed_in = Some(counts.turns);
            }
            Some(turn) if turn == counts.turns => counts.of_next_turn -= 1,
            Some(_) => {
                counts.awaited -= 1;
                delayed.awaited.store(counts.awaited, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for RunStart<'_> {
    fn drop(&mut self) {
        self.set_delayed(false);
    }
}

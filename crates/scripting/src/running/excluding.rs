//! Exclusive use of the keyspace excludes runs on script threads: its beginning, also for several threads together, and
//! its end.

use std::sync::Arc;
use std::time::Duration;

use weft_os::atomic::Ordering;

use super::{RunRegistry, ScriptRun};
use crate::exclusion::{AttemptKind, ExclusionQueue, Requester};

/// Stands for the number of runs while a thread has exclusive use of the keyspace, and no other may wait for its end at
/// the gate.
pub(super) const ALONE: i64 = -1;
/// Stands for the number of runs while a thread has exclusive use of the keyspace, or waits for it at the gate, and
/// other threads may join it there. The number is lower by one for each thread that has joined.
const FIRST_SHARER: i64 = -2;

/// The threads that may exclude runs together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExclusionHolders {
    /// One thread.
    One,
    /// Threads that wait for each other at the gate.
    Several,
}

/// Returns the number that stands for the runs once one of the threads that exclude them has ended its part.
fn without_holder(runs: i64) -> i64 {
    debug_assert!(runs < 0, "only a thread that excludes runs ends the exclusion");
    match runs {
        ALONE | FIRST_SHARER => 0,
        more => more + 1,
    }
}

impl RunRegistry {
    /// Excludes runs on script threads. Returns `false` if there is one: no thread may wait at the gate for as long as
    /// a script chooses to run. The caller ends the exclusion with [`Self::end_exclusion`].
    ///
    /// A failed call announces the requester, which must try again within milliseconds: until then no run starts. So it
    /// succeeds once the present runs have ended, and then the others that waited as well ([`crate::exclusion`]). After
    /// that, delayed runs have their turn ([`super::starts::DELAYED_RUNS_TURN`]).
    pub fn try_exclude_runs(&self, requester: Requester) -> bool {
        self.try_exclude(requester, AttemptKind::Usual, ExclusionHolders::One)
    }

    /// Does the same for a short command of a worker, which may wait at the gate together with others of its kind. They
    /// have their sections one after the other, so that the gate need not be closed again for each of them. The caller
    /// ends the exclusion with [`Self::end_shared_exclusion`].
    pub fn try_share_exclusion(&self, requester: Requester) -> bool {
        self.try_exclude(requester, AttemptKind::Usual, ExclusionHolders::Several)
    }

    /// Does the same as [`Self::try_exclude_runs`] for a thread or client that will keep the others from their sections
    /// for long. It succeeds after those that wait.
    pub fn try_exclude_runs_last(&self, requester: Requester) -> bool {
        self.try_exclude(requester, AttemptKind::Last, ExclusionHolders::One)
    }

    /// Does the same for a thread that tries again at the next tick of the cluster bus.
    pub fn try_exclude_runs_per_tick(&self, requester: Requester) -> bool {
        self.try_exclude(requester, AttemptKind::Tick, ExclusionHolders::One)
    }

    /// Does the same without an announcement: new runs may start after a failed call. It is for a caller that tries
    /// often and can do without.
    pub fn try_exclude_runs_unannounced(&self, requester: Requester) -> bool {
        self.try_begin_section(requester, AttemptKind::Usual, ExclusionHolders::One)
    }

    fn try_exclude(&self, requester: Requester, kind: AttemptKind, holders: ExclusionHolders) -> bool {
        let is_excluded = self.try_begin_section(requester, kind, holders);
        if !is_excluded {
            self.change_queue(|queue, now_us| queue.note_failure(requester, kind, now_us));
        }
        is_excluded
    }

    /// Makes the attempt, and records a success.
    fn try_begin_section(&self, requester: Requester, kind: AttemptKind, holders: ExclusionHolders) -> bool {
        let is_excluded = self.try_set_exclusion(requester, kind, holders);
        if is_excluded {
            self.change_queue_if_waiting(|queue, now_us| queue.begin_section(requester, now_us));
        }
        is_excluded
    }

    /// Makes the attempt, without a change of the queue.
    fn try_set_exclusion(&self, requester: Requester, kind: AttemptKind, holders: ExclusionHolders) -> bool {
        let runs = self.on_script_threads.load(Ordering::Relaxed);
        let with_requester = match holders {
            ExclusionHolders::One if runs == 0 => ALONE,
            ExclusionHolders::Several if runs == 0 => FIRST_SHARER,
            ExclusionHolders::Several if runs <= FIRST_SHARER && self.may_join_sharers(requester) => runs - 1,
            ExclusionHolders::One | ExclusionHolders::Several => return false,
        };
        let must_yield = || {
            self.waiting_requesters.load(Ordering::Relaxed) > 0
                && self.exclusion_queue.lock().must_yield(requester, kind, self.now_us())
        };
        let is_excluded = !self.is_turn_of_runs()
            && !must_yield()
            && self
                .on_script_threads
                .compare_exchange(runs, with_requester, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if is_excluded && self.is_turn_of_runs() {
            // Another section has ended since the first check.
            self.remove_holder();
            return false;
        }
        is_excluded
    }

    /// Returns `true` if a requester may join those that share the exclusion. Once a run is delayed, only a requester
    /// may that has its turn before the run.
    fn may_join_sharers(&self, requester: Requester) -> bool {
        !self.was_run_delayed.load(Ordering::Relaxed) || self.exclusion_queue.lock().is_member(requester)
    }

    /// Removes one of the threads that exclude runs. Returns `true` if it was the last one.
    fn remove_holder(&self) -> bool {
        let before = self
            .on_script_threads
            .fetch_update(Ordering::Release, Ordering::Relaxed, |runs| Some(without_holder(runs)));
        before.is_ok_and(|runs| without_holder(runs) == 0)
    }

    /// Withdraws the announcement of a requester that does not try again.
    pub fn withdraw(&self, requester: Requester) {
        self.change_queue_if_waiting(|queue, _| queue.withdraw(requester));
    }

    /// Changes the queue unless nothing is in it.
    fn change_queue_if_waiting(&self, change: impl FnOnce(&mut ExclusionQueue, u64)) {
        if self.waiting_requesters.load(Ordering::Relaxed) > 0 {
            self.change_queue(change);
        }
    }

    /// Changes the queue and publishes its announcements. `change` gets the time.
    pub(super) fn change_queue<R>(&self, change: impl FnOnce(&mut ExclusionQueue, u64) -> R) -> R {
        let mut queue = self.exclusion_queue.lock();
        let result = change(&mut queue, self.now_us());
        self.waiting_requesters.store(queue.len(), Ordering::Relaxed);
        self.exclusion_announced_until_us
            .store(queue.announced_until_us(), Ordering::Relaxed);
        result
    }

    /// Waits until the present runs on script threads have ended, and excludes new ones.
    pub fn exclude_runs(&self) {
        let requester = self.new_requester();
        while !self.try_exclude_runs(requester) {
            weft_os::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Does the same for a command of a client, which does not wait for a script that may never end.
    ///
    /// # Errors
    /// An overdue run. Runs are not excluded then.
    pub fn exclude_runs_for_client(&self) -> Result<(), Arc<ScriptRun>> {
        let requester = self.new_requester();
        while !self.try_exclude_runs(requester) {
            if let Some(run) = self.overdue_holder(None) {
                self.withdraw(requester);
                return Err(run);
            }
            weft_os::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the exclusion of runs on script threads.
    pub fn end_exclusion(&self) {
        self.end_section();
        self.remove_holder();
    }

    /// Ends the part of one thread in an exclusion that threads share. Delayed runs have their turn after the last one.
    pub fn end_shared_exclusion(&self) {
        let is_last = self.on_script_threads.load(Ordering::Relaxed) == FIRST_SHARER;
        if is_last {
            self.end_section();
        }
        if self.remove_holder() && !is_last {
            // The last ones have ended their parts at the same time.
            self.end_section();
        }
    }

    /// Records the end of an exclusive section, and begins the turn of the delayed runs if it is due.
    fn end_section(&self) {
        let is_turn_over = self.waiting_requesters.load(Ordering::Relaxed) == 0
            || self.change_queue(|queue, now_us| queue.end_section(now_us));
        if is_turn_over && self.was_run_delayed.swap(false, Ordering::Relaxed) {
            self.begin_turn_of_runs();
        }
    }
}

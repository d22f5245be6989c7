//! The register of script runs: used by SCRIPT KILL, by FUNCTION STATS, and by threads that wait for slots that a
//! script holds.
//!
//! A run on a script thread is listed from its start. A run on a worker is listed once it is overdue, since no other
//! thread needs to query it before.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::observability::lock;

/// The reason why a script is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// A key it needs is leased by another thread; the script is restarted later.
    Contended = 1,
    /// The script takes too long for a worker; it is restarted on a script thread.
    Leave,
    /// The script was killed by SCRIPT KILL or FUNCTION KILL.
    Killed,
    /// The process is shutting down.
    Shutdown,
}

impl Stop {
    fn of(number: u8) -> Option<Stop> {
        [Stop::Contended, Stop::Leave, Stop::Killed, Stop::Shutdown]
            .into_iter()
            .find(|stop| *stop as u8 == number)
    }
}

/// The state bit of a run that has written.
const WROTE: u8 = 1 << 7;

/// After a failed attempt to exclude runs, the time during which no new run may start. It is longer than the interval
/// of the cluster bus, which tries once per tick.
const ANNOUNCED: Duration = Duration::from_millis(150);
/// After an exclusive section has ended, the time during which delayed runs may start before the next exclusive
/// section.
const LET_IN: Duration = Duration::from_millis(3);

/// The part of the keyspace that a run holds.
#[derive(Debug, Default)]
struct Holding {
    slots: Vec<u16>,
    everything: bool,
}

/// One run of a script.
#[derive(Debug)]
pub struct Run {
    /// The name of the function, or the digest of the script.
    pub name: Vec<u8>,
    /// `true` if the run is of a function.
    pub is_function: bool,
    /// The command that started the run; empty if the run was not listed from its start.
    pub command: Vec<Vec<u8>>,
    started: Instant,
    /// The run time after which the run is too long for a worker; `None` if it cannot move to a script thread.
    leaves_after: Option<Duration>,
    /// The run time after which the run counts as busy; `None` for never.
    overdue_after: Option<Duration>,
    /// The reason to stop, and [`WROTE`] if the run has written. Both are in one word, so that a run is not killed
    /// while it starts to write.
    state: AtomicU8,
    overdue: AtomicBool,
    holding: Mutex<Holding>,
    /// The source and line at which the run was stopped.
    place: Mutex<Option<(String, usize)>>,
}

/// The parameters of a new run.
pub struct Beginning {
    /// The name of the function, or the digest of the script.
    pub name: Vec<u8>,
    /// `true` if the run is of a function.
    pub is_function: bool,
    /// The command that starts the run.
    pub command: Vec<Vec<u8>>,
    /// The run time after which the run is too long for a worker; `None` if it cannot move to a script thread.
    pub leaves_after: Option<Duration>,
    /// The run time after which the run counts as busy; `None` for never.
    pub overdue_after: Option<Duration>,
}

impl Run {
    /// Creates a run that starts now.
    pub fn new(beginning: Beginning) -> Self {
        Run {
            name: beginning.name,
            is_function: beginning.is_function,
            command: beginning.command,
            started: Instant::now(),
            leaves_after: beginning.leaves_after,
            overdue_after: beginning.overdue_after,
            state: AtomicU8::new(0),
            overdue: AtomicBool::new(false),
            holding: Mutex::default(),
            place: Mutex::default(),
        }
    }

    /// Returns the time since the start of the run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the reason to stop, or `None` if the run may continue.
    #[inline]
    pub fn stopped(&self) -> Option<Stop> {
        match self.state.load(Ordering::Relaxed) & !WROTE {
            0 => None,
            number => Stop::of(number),
        }
    }

    /// Requests that the run stop. The first reason counts. A run that has written can be stopped only by
    /// [`Stop::Shutdown`]. Returns `true` if the request was accepted.
    pub fn stop(&self, why: Stop) -> bool {
        let stop = |state| match (state, why) {
            (0, _) => Some(why as u8),
            (WROTE, Stop::Shutdown) => Some(WROTE | why as u8),
            _ => None,
        };
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stop);
        changed.is_ok()
    }

    /// Returns `true` if the run may be restarted on a script thread.
    pub fn may_leave(&self) -> bool {
        self.leaves_after.is_some()
    }

    /// Returns `true` if the run has written.
    pub fn wrote(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WROTE != 0
    }

    /// Records that the run is about to write. Returns `false` if the run is to stop and so must not write.
    pub fn try_note_write(&self) -> bool {
        let changed = self
            .state
            .compare_exchange(0, WROTE, Ordering::Relaxed, Ordering::Relaxed);
        matches!(changed, Ok(_) | Err(WROTE))
    }

    /// Returns `true` if the run counts as busy.
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Records that the run holds these slots.
    pub fn holds(&self, slots: impl Iterator<Item = u16>) {
        lock(&self.holding).slots.extend(slots);
    }

    /// Records that the run holds one more slot.
    pub fn holds_also(&self, slot: u16) {
        lock(&self.holding).slots.push(slot);
    }

    /// Records that the run holds every slot.
    pub fn holds_everything(&self) {
        lock(&self.holding).everything = true;
    }

    fn is_holding(&self, slot: u16) -> bool {
        let holding = lock(&self.holding);
        holding.everything || holding.slots.contains(&slot)
    }

    /// Returns the source and line at which the run was stopped.
    pub fn place(&self) -> Option<(String, usize)> {
        lock(&self.place).clone()
    }
}

/// The reason why no run was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotKill {
    /// No script is running.
    NoneRuns,
    /// The run has written.
    Wrote,
    /// The running script is of the other kind: a function instead of a script, or the reverse.
    OtherKind,
}

/// The register of the runs that other threads may query.
#[derive(Default)]
pub struct Running {
    runs: Mutex<Vec<Arc<Run>>>,
    /// The number of listed runs that are overdue.
    overdue: AtomicUsize,
    /// The number of runs on script threads; -1 while another thread has exclusive use of the keyspace.
    on_own_threads: AtomicI64,
    /// The time until which no run starts on a script thread, because another thread waits for exclusive use of the
    /// keyspace. In microseconds, see [`Running::now_us`].
    announced_until_us: AtomicU64,
    /// The time until which delayed runs may start all the same, in microseconds.
    let_in_until_us: AtomicU64,
    /// Set if a run was delayed since the last exclusive use of the keyspace.
    was_kept_out: AtomicBool,
    /// The origin of the times above.
    since: OnceLock<Instant>,
    /// Set once the process is shutting down: every run stops.
    ending: AtomicBool,
    /// The callback that is called with `true` when the first run becomes overdue, and with `false` when the last such
    /// run ends.
    tells: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
}

impl Running {
    /// Adds a run to the register.
    pub fn list(&self, run: &Arc<Run>) {
        lock(&self.runs).push(run.clone());
    }

    /// Removes a run from the register.
    pub fn unlist(&self, run: &Arc<Run>) {
        let mut runs = lock(&self.runs);
        runs.retain(|other| !Arc::ptr_eq(other, run));
        if run.is_overdue() && self.overdue.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.tell(false);
        }
    }

    /// Sets the callback that is called whenever the result of [`Running::any_overdue`] changes. Only the first call
    /// has an effect.
    pub fn tell_changes(&self, tells: Box<dyn Fn(bool) + Send + Sync>) {
        let _ = self.tells.set(tells);
    }

    /// Calls the callback. The caller holds the lock of the list, so that calls come in order.
    fn tell(&self, overdue: bool) {
        if let Some(tells) = self.tells.get() {
            tells(overdue);
        }
    }

    /// Stops every other run that holds a slot and has not written. Such a run is restarted later.
    pub fn preempt(&self, slot: u16, by: &Arc<Run>) {
        for run in lock(&self.runs).iter() {
            if !Arc::ptr_eq(run, by) && run.is_holding(slot) {
                run.stop(Stop::Contended);
            }
        }
    }

    /// Returns `true` if any run is overdue.
    #[inline]
    pub fn any_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed) > 0
    }

    /// Returns an overdue run that holds the slot, or any overdue run if `slot` is `None`.
    pub fn overdue_holder(&self, slot: Option<u16>) -> Option<Arc<Run>> {
        let runs = lock(&self.runs);
        let mut overdue = runs.iter().filter(|run| run.is_overdue());
        overdue
            .find(|run| slot.is_none_or(|slot| run.is_holding(slot)))
            .cloned()
    }

    /// Returns the run that has lasted longest.
    pub fn longest(&self) -> Option<Arc<Run>> {
        lock(&self.runs).iter().max_by_key(|run| run.elapsed()).cloned()
    }

    /// Kills the longest of those runs that can be killed.
    ///
    /// # Errors
    /// The reason if there is no such run.
    pub fn kill(&self, functions: bool) -> Result<(), CannotKill> {
        let runs = lock(&self.runs);
        if runs.is_empty() {
            return Err(CannotKill::NoneRuns);
        }
        let mut mine: Vec<&Arc<Run>> = runs.iter().filter(|run| run.is_function == functions).collect();
        mine.sort_by_key(|run| std::cmp::Reverse(run.elapsed()));
        match mine
            .iter()
            .find(|run| run.stop(Stop::Killed) || run.stopped() == Some(Stop::Killed))
        {
            Some(_) => Ok(()),
            None if runs.iter().any(|run| run.wrote()) => Err(CannotKill::Wrote),
            None => Err(CannotKill::OtherKind),
        }
    }

    /// Updates the state of a run, which calls this from its own thread at intervals. Returns `true` if the run is to
    /// stop. `place` returns the source and line that are being executed.
    pub fn look_at(&self, run: &Arc<Run>, listed: bool, place: impl FnOnce() -> Option<(String, usize)>) -> bool {
        let elapsed = run.elapsed();
        if self.ending.load(Ordering::Relaxed) {
            run.stop(Stop::Shutdown);
        }
        if run.leaves_after.is_some_and(|after| elapsed > after) && !run.wrote() {
            run.stop(Stop::Leave);
        }
        if run.overdue_after.is_some_and(|after| elapsed >= after) && !run.overdue.swap(true, Ordering::Relaxed) {
            self.note_overdue(run, elapsed, listed);
        }
        if run.stopped().is_none() {
            return false;
        }
        let mut known = lock(&run.place);
        if known.is_none() {
            *known = place();
        }
        true
    }

    #[cold]
    fn note_overdue(&self, run: &Arc<Run>, elapsed: Duration, listed: bool) {
        let command = if run.is_function {
            "FUNCTION KILL"
        } else {
            "SCRIPT KILL"
        };
        crate::observability::log::warning!(
            "Slow script detected: still in execution after {} milliseconds. You can try killing the script using the \
             {command} command. Script name is: {}.",
            elapsed.as_millis(),
            String::from_utf8_lossy(&run.name)
        );
        let mut runs = lock(&self.runs);
        if !listed {
            runs.push(run.clone());
        }
        if self.overdue.fetch_add(1, Ordering::Relaxed) == 0 {
            self.tell(true);
        }
    }

    /// Registers a run on a script thread. Returns `false` while a thread has exclusive use of the keyspace, and while
    /// one waits for it. Waiting threads are ignored if a run is overdue, since its end may be far away.
    pub fn try_begin_on_own_thread(&self) -> bool {
        let now_us = self.now_us();
        let is_turn_of_runs = now_us < self.let_in_until_us.load(Ordering::Relaxed);
        let is_announced = now_us < self.announced_until_us.load(Ordering::Relaxed);
        let add = |runs: i64| (runs >= 0).then_some(runs + 1);
        let begins = (is_turn_of_runs || !is_announced || self.any_overdue())
            && self
                .on_own_threads
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, add)
                .is_ok();
        if !begins {
            self.was_kept_out.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Returns the number of runs on script threads.
    pub fn on_own_threads(&self) -> usize {
        usize::try_from(self.on_own_threads.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Records that a run on a script thread has ended.
    pub fn end_on_own_thread(&self) {
        self.on_own_threads.fetch_sub(1, Ordering::Release);
    }

    /// Excludes runs on script threads. Returns `false` if there is one: no thread may wait at the gate for as long as
    /// a script chooses to run. The caller ends the exclusion with [`Self::let_in`].
    ///
    /// A failed call announces the caller. For [`ANNOUNCED`] no run starts, so a caller that tries again within that
    /// time succeeds once the present runs have ended. After an exclusion, delayed runs have [`LET_IN`] to start.
    pub fn try_keep_out(&self) -> bool {
        let now_us = self.now_us();
        let is_turn_of_runs =
            self.was_kept_out.load(Ordering::Relaxed) && now_us < self.let_in_until_us.load(Ordering::Relaxed);
        let keeps = !is_turn_of_runs
            && self
                .on_own_threads
                .compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if keeps {
            self.was_kept_out.store(false, Ordering::Relaxed);
        } else {
            let until_us = now_us + ANNOUNCED.as_micros() as u64;
            self.announced_until_us.store(until_us, Ordering::Relaxed);
        }
        keeps
    }

    /// Waits until the present runs on script threads have ended, and excludes new ones.
    pub fn keep_out(&self) {
        while !self.try_keep_out() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the exclusion of runs on script threads.
    pub fn let_in(&self) {
        let until_us = self.now_us() + LET_IN.as_micros() as u64;
        self.let_in_until_us.store(until_us, Ordering::Relaxed);
        self.announced_until_us.store(0, Ordering::Relaxed);
        self.on_own_threads.store(0, Ordering::Release);
    }

    /// Returns the microseconds since the first call of this function.
    fn now_us(&self) -> u64 {
        self.since.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    /// Requests that every run stop, since the process is shutting down.
    pub fn end_all(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the process is shutting down.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;

//! Runs that others may ask about: SCRIPT KILL, FUNCTION STATS, and who waits for what a script holds.
//!
//! A run on a thread of its own is listed from its beginning; one on a worker from the time on at which it is overdue,
//! for until then nobody has reason to ask.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::observability::lock;

/// Why a script is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// Something it needs is held by somebody else: it begins anew later.
    Contended = 1,
    /// It takes too long for a worker: it begins anew elsewhere.
    Leave,
    /// Somebody killed it.
    Killed,
    /// The process ends.
    Shutdown,
}

impl Stop {
    fn of(number: u8) -> Option<Stop> {
        [Stop::Contended, Stop::Leave, Stop::Killed, Stop::Shutdown]
            .into_iter()
            .find(|stop| *stop as u8 == number)
    }
}

/// The bit of a run that has written.
const WROTE: u8 = 1 << 7;

/// How long a refused try to keep runs out keeps new ones from beginning; longer than the pause between two rounds of the
/// cluster bus, which tries once a round.
const ANNOUNCED: Duration = Duration::from_millis(150);
/// How long runs that were kept out may begin after the keyspace is free again.
const LET_IN: Duration = Duration::from_millis(3);

/// What a run holds of the keyspace.
#[derive(Debug, Default)]
struct Holding {
    slots: Vec<u16>,
    everything: bool,
}

/// One run of a script.
#[derive(Debug)]
pub struct Run {
    /// The function's name, or the script's digest.
    pub name: Vec<u8>,
    /// Whether it is a function.
    pub is_function: bool,
    /// The command that started it, if the run was listed from its beginning.
    pub command: Vec<Vec<u8>>,
    started: Instant,
    /// When it is too long for a worker; `None` if it cannot leave.
    leaves_after: Option<Duration>,
    /// When it counts as busy; `None` for never.
    overdue_after: Option<Duration>,
    /// Why it is to stop, and whether it has written ([`WROTE`]): one word, so that it is not killed while it begins to
    /// write.
    state: AtomicU8,
    overdue: AtomicBool,
    holding: Mutex<Holding>,
    /// Where it was when it was stopped.
    place: Mutex<Option<(String, usize)>>,
}

/// How a run is begun.
pub struct Beginning {
    /// The function's name, or the script's digest.
    pub name: Vec<u8>,
    /// Whether it is a function.
    pub is_function: bool,
    /// The command that starts it.
    pub command: Vec<Vec<u8>>,
    /// When it is too long for a worker.
    pub leaves_after: Option<Duration>,
    /// When it counts as busy.
    pub overdue_after: Option<Duration>,
}

impl Run {
    /// A run that begins now.
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

    /// How long it has run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Why it is to stop, if it is.
    #[inline]
    pub fn stopped(&self) -> Option<Stop> {
        match self.state.load(Ordering::Relaxed) & !WROTE {
            0 => None,
            number => Stop::of(number),
        }
    }

    /// Has it stop; the first reason counts. What has written stops only with the process. Whether it does.
    pub fn stop(&self, why: Stop) -> bool {
        let stop = |state| match (state, why) {
            (0, _) => Some(why as u8),
            (WROTE, Stop::Shutdown) => Some(WROTE | why as u8),
            _ => None,
        };
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stop);
        changed.is_ok()
    }

    /// Whether it may begin anew on a thread of its own.
    pub fn may_leave(&self) -> bool {
        self.leaves_after.is_some()
    }

    /// Whether it has written.
    pub fn wrote(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WROTE != 0
    }

    /// It is about to write, unless it is to stop; whether it may.
    pub fn try_note_write(&self) -> bool {
        let changed = self
            .state
            .compare_exchange(0, WROTE, Ordering::Relaxed, Ordering::Relaxed);
        matches!(changed, Ok(_) | Err(WROTE))
    }

    /// Whether it counts as busy.
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed)
    }

    /// It holds these slots.
    pub fn holds(&self, slots: impl Iterator<Item = u16>) {
        lock(&self.holding).slots.extend(slots);
    }

    /// It holds one slot more.
    pub fn holds_also(&self, slot: u16) {
        lock(&self.holding).slots.push(slot);
    }

    /// It holds every slot.
    pub fn holds_everything(&self) {
        lock(&self.holding).everything = true;
    }

    fn is_holding(&self, slot: u16) -> bool {
        let holding = lock(&self.holding);
        holding.everything || holding.slots.contains(&slot)
    }

    /// Where it was when it was stopped: source and line.
    pub fn place(&self) -> Option<(String, usize)> {
        lock(&self.place).clone()
    }
}

/// Why a run was not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotKill {
    /// None is under way.
    NoneRuns,
    /// It has written.
    Wrote,
    /// It is of the other kind.
    OtherKind,
}

/// The runs that others may ask about.
#[derive(Default)]
pub struct Running {
    runs: Mutex<Vec<Arc<Run>>>,
    /// How many of them are overdue.
    overdue: AtomicUsize,
    /// Runs on threads of their own; -1 while somebody is alone with the keyspace.
    on_own_threads: AtomicI64,
    /// Until when no run begins on a thread of its own, because a thread waits to have the keyspace to itself.
    announced_until_us: AtomicU64,
    /// Until when runs that were kept out may begin all the same.
    let_in_until_us: AtomicU64,
    /// Whether a run was kept out since the last thread had the keyspace to itself.
    was_kept_out: AtomicBool,
    /// What those times count from.
    since: OnceLock<Instant>,
    /// The process ends: whatever runs stops.
    ending: AtomicBool,
    /// Is told when the first run becomes overdue, and when the last such run ends.
    tells: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
}

impl Running {
    /// Lists a run.
    pub fn list(&self, run: &Arc<Run>) {
        lock(&self.runs).push(run.clone());
    }

    /// Takes a run off the list.
    pub fn unlist(&self, run: &Arc<Run>) {
        let mut runs = lock(&self.runs);
        runs.retain(|other| !Arc::ptr_eq(other, run));
        if run.is_overdue() && self.overdue.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.tell(false);
        }
    }

    /// From now on `tells` learns whether some run is overdue, whenever that changes. Only the first call counts.
    pub fn tell_changes(&self, tells: Box<dyn Fn(bool) + Send + Sync>) {
        let _ = self.tells.set(tells);
    }

    /// Runs under the lock of the list, so that news come in order.
    fn tell(&self, overdue: bool) {
        if let Some(tells) = self.tells.get() {
            tells(overdue);
        }
    }

    /// Stops every other run that holds a slot and has not written: it begins anew later.
    pub fn preempt(&self, slot: u16, by: &Arc<Run>) {
        for run in lock(&self.runs).iter() {
            if !Arc::ptr_eq(run, by) && run.is_holding(slot) {
                run.stop(Stop::Contended);
            }
        }
    }

    /// Whether some run is overdue.
    #[inline]
    pub fn any_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed) > 0
    }

    /// The overdue run that holds a slot; `None` for the slot asks for any.
    pub fn overdue_holder(&self, slot: Option<u16>) -> Option<Arc<Run>> {
        let runs = lock(&self.runs);
        let mut overdue = runs.iter().filter(|run| run.is_overdue());
        overdue
            .find(|run| slot.is_none_or(|slot| run.is_holding(slot)))
            .cloned()
    }

    /// The run that has lasted longest.
    pub fn longest(&self) -> Option<Arc<Run>> {
        lock(&self.runs).iter().max_by_key(|run| run.elapsed()).cloned()
    }

    /// Kills the run that has lasted longest of those that can be killed.
    ///
    /// # Errors
    /// When there is none.
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

    /// Looks at a run from inside, now and then; whether it is to stop. `place` tells where it is.
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

    /// Returns `true` if a run may begin on a thread of its own: not while a thread has the keyspace to itself, nor while one
    /// waits for that, unless a run is overdue, whose end may be far.
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

    /// Runs on threads of their own.
    pub fn on_own_threads(&self) -> usize {
        usize::try_from(self.on_own_threads.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// It has ended.
    pub fn end_on_own_thread(&self) {
        self.on_own_threads.fetch_sub(1, Ordering::Release);
    }

    /// Keeps runs on threads of their own out, unless there is one: no thread may stand at the gate for as long as a script
    /// pleases. The caller lets them in again ([`Self::let_in`]).
    ///
    /// A refused caller has announced itself: for [`ANNOUNCED`] no run begins, so that a caller who tries again within that
    /// time gets its turn when those under way have ended. After a turn, runs that were kept out have [`LET_IN`] to begin.
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

    /// Keeps runs out once those under way have ended.
    pub fn keep_out(&self) {
        while !self.try_keep_out() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets them in again.
    pub fn let_in(&self) {
        let until_us = self.now_us() + LET_IN.as_micros() as u64;
        self.let_in_until_us.store(until_us, Ordering::Relaxed);
        self.announced_until_us.store(0, Ordering::Relaxed);
        self.on_own_threads.store(0, Ordering::Release);
    }

    /// Microseconds since the first call.
    fn now_us(&self) -> u64 {
        self.since.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    /// The process ends.
    pub fn end_all(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the process ends.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;

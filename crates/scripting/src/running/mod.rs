//! The register of script runs: used by SCRIPT KILL, by FUNCTION STATS, and by threads that wait for slots that a
//! script holds.
//!
//! A run on a script thread is listed from its start. A run on a worker is listed once it is overdue, since no other
//! thread needs to query it before.

use std::sync::Arc;
use std::time::Duration;
use weft_os::sync::OnceLock;

use weft_os::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use weft_os::sync::Mutex;
use weft_os::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::exclusion::{ExclusionQueue, Requester};
use starts::DelayedRuns;

/// The reason why a script is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StopReason {
    /// A key it needs is leased by another thread; the script is restarted later.
    Contended = 1,
    /// The script takes too long for a worker; it is restarted on a script thread.
    TooLong,
    /// The script was killed by SCRIPT KILL or FUNCTION KILL.
    Killed,
    /// The script is overdue, and no client could kill it.
    Overdue,
    /// The process is shutting down.
    Shutdown,
}

impl StopReason {
    fn of(number: u8) -> Option<StopReason> {
        [
            StopReason::Contended,
            StopReason::TooLong,
            StopReason::Killed,
            StopReason::Overdue,
            StopReason::Shutdown,
        ]
        .into_iter()
        .find(|stop| *stop as u8 == number)
    }

    /// Returns `true` if a script that is stopped for this reason starts again.
    pub fn is_restart(self) -> bool {
        matches!(self, StopReason::Contended | StopReason::TooLong)
    }
}

/// The state bit of a run that has written.
const WROTE: u8 = 1 << 7;
/// The state bit of a run that has ended and whose script starts again: nothing can stop this run any more.
const RESTARTS: u8 = 1 << 6;

/// The part of the keyspace that a run holds.
#[derive(Debug, Default)]
struct HeldSlots {
    slots: Vec<u16>,
    all_slots: bool,
}

impl HeldSlots {
    /// Replaces the slots; `None` stands for all slots.
    fn set(&mut self, slots: Option<impl Iterator<Item = u16>>) {
        self.all_slots = slots.is_none();
        self.slots.clear();
        if let Some(slots) = slots {
            self.slots.extend(slots);
        }
    }
}

/// One run of a script.
#[derive(Debug)]
pub struct ScriptRun {
    /// The name of the function, or the digest of the script.
    pub name: Vec<u8>,
    /// `true` if the run is of a function.
    pub is_function: bool,
    /// The command that started the run; empty if the run was not listed from its start.
    pub command: Vec<Vec<u8>>,
    started: Instant,
    /// The run time after which the run is too long for a worker; `None` if it cannot move to a script thread.
    too_long_after: Option<Duration>,
    /// The run time after which the run counts as busy; `None` for never.
    overdue_after: Option<Duration>,
    /// The reason to stop, and the bits [`WROTE`] and [`RESTARTS`]. They are in one word, so that a run is not killed
    /// while it starts to write, nor once its script is certain to start again.
    state: AtomicU8,
    is_overdue: AtomicBool,
    /// `true` if the run counts as one on a script thread although it is on a worker.
    is_counted: AtomicBool,
    ends_when_overdue: AtomicBool,
    /// The time of the last check since the run is overdue, in microseconds since the Unix epoch; 0 before.
    checked_at_us: AtomicU64,
    held: Mutex<HeldSlots>,
    /// The source and line at which the run was stopped.
    stopped_at: Mutex<Option<(String, usize)>>,
}

/// The parameters of a new run.
#[derive(Default)]
pub struct RunParameters<'a> {
    /// The name of the function, or the digest of the script.
    pub name: &'a [u8],
    /// `true` if the run is of a function.
    pub is_function: bool,
    /// The command that starts the run.
    pub command: Vec<Vec<u8>>,
    /// The run time after which the run is too long for a worker; `None` if it cannot move to a script thread.
    pub leaves_after: Option<Duration>,
    /// The run time after which the run counts as busy; `None` for never.
    pub overdue_after: Option<Duration>,
    /// The start of the run; `None` for now.
    pub started: Option<Instant>,
}

impl ScriptRun {
    /// Creates a run.
    pub fn new(beginning: RunParameters<'_>) -> Self {
        ScriptRun {
            name: beginning.name.to_vec(),
            is_function: beginning.is_function,
            command: beginning.command,
            started: beginning.started.unwrap_or_else(Instant::now),
            too_long_after: beginning.leaves_after,
            overdue_after: beginning.overdue_after,
            state: AtomicU8::new(0),
            is_overdue: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            ends_when_overdue: AtomicBool::new(false),
            checked_at_us: AtomicU64::new(0),
            held: Mutex::default(),
            stopped_at: Mutex::default(),
        }
    }

    /// Creates a run that holds these slots, where `None` stands for all slots. It is in the memory of an earlier run
    /// unless something else still refers to that.
    pub fn start(
        earlier: Option<Arc<ScriptRun>>,
        beginning: RunParameters<'_>,
        slots: Option<impl Iterator<Item = u16>>,
    ) -> Arc<ScriptRun> {
        if let Some(mut run) = earlier
            && let Some(this) = Arc::get_mut(&mut run)
        {
            this.begin_again(beginning, slots);
            return run;
        }
        let mut run = ScriptRun::new(beginning);
        run.held.get_mut().set(slots);
        Arc::new(run)
    }

    /// Makes this another run, in the same memory.
    fn begin_again(&mut self, beginning: RunParameters<'_>, slots: Option<impl Iterator<Item = u16>>) {
        // Every field is named: none may stay as the run before has left it.
        let ScriptRun {
            name,
            is_function,
            command,
            started,
            too_long_after,
            overdue_after,
            state,
            is_overdue,
            is_counted,
            ends_when_overdue,
            checked_at_us,
            held,
            stopped_at,
        } = self;
        name.clear();
        name.extend_from_slice(beginning.name);
        (*is_function, *command) = (beginning.is_function, beginning.command);
        *started = beginning.started.unwrap_or_else(Instant::now);
        (*too_long_after, *overdue_after) = (beginning.leaves_after, beginning.overdue_after);
        *state = AtomicU8::new(0);
        *is_overdue = AtomicBool::new(false);
        *is_counted = AtomicBool::new(false);
        *ends_when_overdue = AtomicBool::new(false);
        *checked_at_us = AtomicU64::new(0);
        held.get_mut().set(slots);
        *stopped_at.get_mut() = None;
    }

    /// Lets the run end when it is overdue, unless it has written. For a run that keeps clients from killing it.
    pub fn end_when_overdue(&self) {
        self.ends_when_overdue.store(true, Ordering::Relaxed);
    }

    /// Returns the start of the run.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time since the start of the run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the reason to stop, or `None` if the run may continue.
    #[inline]
    pub fn stop_reason(&self) -> Option<StopReason> {
        match self.state.load(Ordering::Relaxed) & !(WROTE | RESTARTS) {
            0 => None,
            number => StopReason::of(number),
        }
    }

    /// Returns the reason to stop, once the script's code has ended. If the script starts again for that reason, the
    /// run accepts no further request: a kill would be lost.
    pub fn settle_stop_reason(&self) -> Option<StopReason> {
        let settle = |state| {
            let reason = StopReason::of(state)?;
            reason.is_restart().then_some(state | RESTARTS)
        };
        let settled = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settle);
        let (Ok(state) | Err(state)) = settled;
        StopReason::of(state & !(WROTE | RESTARTS))
    }

    /// Requests that the run stop. The first reason counts, but [`StopReason::Killed`] replaces a reason for which the
    /// script would start again. A run that has written can be stopped only by [`StopReason::Shutdown`]. Returns `true`
    /// if the request was accepted.
    pub fn stop(&self, reason: StopReason) -> bool {
        let stop = |state| match (state, reason) {
            (0, _) => Some(reason as u8),
            (WROTE, StopReason::Shutdown) => Some(WROTE | reason as u8),
            (_, StopReason::Killed) => {
                let earlier = StopReason::of(state)?;
                earlier.is_restart().then_some(reason as u8)
            }
            _ => None,
        };
        let changed = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, stop);
        changed.is_ok()
    }

    /// Returns `true` if the run ends because it was killed, or for another reason for which it does not start again.
    fn is_ending(&self) -> bool {
        !self.has_written() && self.stop_reason().is_some_and(|reason| !reason.is_restart())
    }

    /// Returns `true` if the thread of the run has to leave work that takes `time` to a script thread.
    pub fn is_too_long(&self, time: Duration) -> bool {
        self.too_long_after.is_some_and(|after| time > after)
    }

    /// Returns `true` if the run may be restarted on a script thread.
    pub fn may_move_to_script_thread(&self) -> bool {
        self.too_long_after.is_some()
    }

    /// Returns `true` if the run has written what cannot be undone.
    pub fn has_written(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WROTE != 0
    }

    /// Records that the run is about to write what cannot be undone. Returns `false` if the run is to stop and so must
    /// not write.
    pub fn try_note_write(&self) -> bool {
        let changed = self
            .state
            .compare_exchange(0, WROTE, Ordering::Relaxed, Ordering::Relaxed);
        matches!(changed, Ok(_) | Err(WROTE))
    }

    /// Returns `true` if the run counts as busy.
    pub fn is_overdue(&self) -> bool {
        self.is_overdue.load(Ordering::Relaxed)
    }

    /// Returns the time that TIME shows to the script once the run is overdue, since the Unix epoch: that of the last
    /// check. Before that the script sees the time of its start.
    pub fn time_when_overdue(&self) -> Option<Duration> {
        match self.checked_at_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    /// Records that the run holds these slots.
    pub fn note_held_slots(&self, slots: impl Iterator<Item = u16>) {
        self.held.lock().slots.extend(slots);
    }

    /// Records that the run holds one more slot.
    pub fn note_held_slot(&self, slot: u16) {
        self.held.lock().slots.push(slot);
    }

    /// Records that the run holds every slot.
    pub fn note_all_slots_held(&self) {
        self.held.lock().all_slots = true;
    }

    fn is_holding(&self, slot: u16) -> bool {
        let holding = self.held.lock();
        holding.all_slots || holding.slots.contains(&slot)
    }

    /// Returns the source and line at which the run was stopped.
    pub fn stopped_at(&self) -> Option<(String, usize)> {
        self.stopped_at.lock().clone()
    }

    /// Records where the script is, if it is to stop and this is not recorded yet.
    pub fn note_place_of_stop(&self, place: impl FnOnce() -> Option<(String, usize)>) {
        if self.stop_reason().is_none() {
            return;
        }
        let mut known = self.stopped_at.lock();
        if known.is_none() {
            *known = place();
        }
    }
}

/// The reason why no run was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillError {
    /// No script is running.
    NotRunning,
    /// The run has written.
    HasWritten,
    /// All running scripts are of the other kind: functions instead of scripts, or the reverse.
    OtherKind,
}

/// The register of the runs that other threads may query.
#[derive(Default)]
pub struct RunRegistry {
    runs: Mutex<Vec<Arc<ScriptRun>>>,
    /// The number of listed runs that are overdue.
    overdue: AtomicUsize,
    /// The number of runs on script threads, and of those on workers that are too long and have written, so that they
    /// cannot leave. It is [`excluding::ALONE`] while another thread has exclusive use of the keyspace, and less while
    /// threads share that.
    on_script_threads: AtomicI64,
    /// The requesters that wait for exclusive use of the keyspace.
    exclusion_queue: Mutex<ExclusionQueue>,
    /// Their number, so that the queue is not locked if there is none.
    waiting_requesters: AtomicUsize,
    /// The time until which no run starts on a script thread, because of them. In microseconds, see
    /// [`RunRegistry::now_us`].
    exclusion_announced_until_us: AtomicU64,
    /// The number of names that were given to threads.
    named_requesters: AtomicU64,
    /// The beginning of the last turn of delayed runs, in microseconds, or 0: in it they may start all the same, and
    /// nothing else has exclusive use of the keyspace.
    delayed_runs_since_us: AtomicU64,
    /// Set if a run was delayed since the last turn of delayed runs.
    was_run_delayed: AtomicBool,
    /// The delayed runs that will be tried again.
    delayed_runs: DelayedRuns,
    /// The origin of the times above.
    epoch: OnceLock<Instant>,
    /// Set once the process is shutting down: every run stops.
    is_shutting_down: AtomicBool,
    /// Set once the end of the process has stopped a script or a transaction that has written.
    has_unfinished_unit: AtomicBool,
    /// The callback that is called with `true` when the first run becomes overdue, and with `false` when the last such
    /// run ends.
    on_overdue_change: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
}

impl RunRegistry {
    /// Adds a run to the register.
    pub fn list(&self, run: &Arc<ScriptRun>) {
        self.runs.lock().push(run.clone());
    }

    /// Removes a run from the register.
    pub fn unlist(&self, run: &Arc<ScriptRun>) {
        let mut runs = self.runs.lock();
        runs.retain(|other| !Arc::ptr_eq(other, run));
        if run.is_overdue() && self.overdue.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.notify_overdue(false);
        }
    }

    /// Sets the callback that is called whenever the result of [`RunRegistry::has_overdue`] changes. Only the first
    /// call has an effect.
    pub fn set_overdue_callback(&self, tells: Box<dyn Fn(bool) + Send + Sync>) {
        let _ = self.on_overdue_change.set(tells);
    }

    /// Calls the callback. The caller holds the lock of the list, so that calls come in order.
    fn notify_overdue(&self, overdue: bool) {
        if let Some(tells) = self.on_overdue_change.get() {
            tells(overdue);
        }
    }

    /// Stops every other run that holds a slot and can be stopped. Such a run is restarted later.
    pub fn preempt(&self, slot: u16, by: &Arc<ScriptRun>) {
        for run in self.runs.lock().iter() {
            if !Arc::ptr_eq(run, by) && run.is_holding(slot) {
                run.stop(StopReason::Contended);
            }
        }
    }

    /// Returns `true` if any run is overdue.
    #[inline]
    pub fn has_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed) > 0
    }

    /// Returns an overdue run that holds the slot, or any overdue run if `slot` is `None`.
    pub fn overdue_holder(&self, slot: Option<u16>) -> Option<Arc<ScriptRun>> {
        let runs = self.runs.lock();
        let mut overdue = runs.iter().filter(|run| run.is_overdue());
        overdue
            .find(|run| slot.is_none_or(|slot| run.is_holding(slot)))
            .cloned()
    }

    /// Returns the run that has lasted longest.
    pub fn longest_run(&self) -> Option<Arc<ScriptRun>> {
        self.runs.lock().iter().max_by_key(|run| run.elapsed()).cloned()
    }

    /// Kills the longest of those runs of a kind that can be killed. If runs of that kind are overdue, only these
    /// count.
    ///
    /// # Errors
    /// The reason if there is no such run. The other kind is reported only if no run of this kind is listed.
    pub fn kill(&self, functions: bool) -> Result<(), KillError> {
        let runs = self.runs.lock();
        let mut mine: Vec<&Arc<ScriptRun>> = runs.iter().filter(|run| run.is_function == functions).collect();
        if mine.is_empty() {
            return Err(match runs.iter().all(|run| run.has_written()) {
                true if runs.is_empty() => KillError::NotRunning,
                true => KillError::HasWritten,
                false => KillError::OtherKind,
            });
        }
        if mine.iter().any(|run| run.is_overdue()) {
            mine.retain(|run| run.is_overdue());
        }
        mine.sort_by_key(|run| std::cmp::Reverse(run.elapsed()));
        match mine.iter().any(|run| run.stop(StopReason::Killed) || run.is_ending()) {
            true => Ok(()),
            false if mine.iter().any(|run| run.has_written()) => Err(KillError::HasWritten),
            // Each of them has ended, and its script is about to start again.
            false => Err(KillError::NotRunning),
        }
    }

    /// Updates the state of a run, which calls this from its own thread at intervals. Returns `true` if the run is to
    /// stop. `place` returns the source and line that are being executed.
    pub fn check_run(
        &self,
        run: &Arc<ScriptRun>,
        listed: bool,
        place: impl FnOnce() -> Option<(String, usize)>,
    ) -> bool {
        self.update_run(run, listed);
        if run.stop_reason().is_none() {
            return false;
        }
        run.note_place_of_stop(place);
        true
    }

    /// Updates the state of a run between two of its commands. If it is to stop, it does so at the next check of its
    /// code, or at its next command.
    pub fn update_run(&self, run: &Arc<ScriptRun>, listed: bool) {
        let elapsed = run.elapsed();
        if self.is_shutting_down.load(Ordering::Relaxed) {
            run.stop(StopReason::Shutdown);
        }
        if run.too_long_after.is_some_and(|after| elapsed > after) {
            match run.has_written() {
                true => self.count_long_run(run),
                false => drop(run.stop(StopReason::TooLong)),
            }
        }
        if run.overdue_after.is_some_and(|after| elapsed >= after) && !run.is_overdue.swap(true, Ordering::Relaxed) {
            self.note_overdue(run, elapsed, listed);
            if run.ends_when_overdue.load(Ordering::Relaxed) {
                run.stop(StopReason::Overdue);
            }
        }
        if run.is_overdue() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            run.checked_at_us.store(now.as_micros() as u64, Ordering::Relaxed);
        }
    }

    /// Counts a run on a worker, which cannot leave it, among those on script threads: no thread may wait at the gate
    /// for its end. A thread that waits there already has to wait.
    fn count_long_run(&self, run: &ScriptRun) {
        let add = |runs: i64| (runs >= 0).then_some(runs + 1);
        if !run.is_counted.load(Ordering::Relaxed)
            && self
                .on_script_threads
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, add)
                .is_ok()
        {
            run.is_counted.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a run has ended. `is_listed` is `true` if it was added to the register at its start.
    #[inline]
    pub fn end_run(&self, run: &Arc<ScriptRun>, is_listed: bool) {
        if is_listed || run.is_overdue() {
            self.unlist(run);
        }
        if run.is_counted.load(Ordering::Relaxed) {
            run.is_counted.store(false, Ordering::Relaxed);
            self.end_on_script_thread();
        }
    }

    #[cold]
    fn note_overdue(&self, run: &Arc<ScriptRun>, elapsed: Duration, listed: bool) {
        let command = if run.is_function {
            "FUNCTION KILL"
        } else {
            "SCRIPT KILL"
        };
        log::warn!(
            "Slow script detected: still in execution after {} milliseconds. You can try killing the script using the \
             {command} command. Script name is: {}.",
            elapsed.as_millis(),
            String::from_utf8_lossy(&run.name)
        );
        let mut runs = self.runs.lock();
        if !listed {
            runs.push(run.clone());
        }
        if self.overdue.fetch_add(1, Ordering::Relaxed) == 0 {
            self.notify_overdue(true);
        }
    }

    /// Registers a run on a script thread. Returns `false` while a thread has exclusive use of the keyspace, and while
    /// one waits for it. Waiting threads are ignored if a run is overdue, since its end may be far away.
    pub fn try_begin_on_script_thread(&self) -> bool {
        let is_turn_of_runs = self.is_turn_of_runs();
        let is_announced = self.is_exclusion_announced();
        let add = |runs: i64| (runs >= 0).then_some(runs + 1);
        let may_begin = (is_turn_of_runs || !is_announced || self.has_overdue())
            && self
                .on_script_threads
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, add)
                .is_ok();
        if !may_begin {
            self.was_run_delayed.store(true, Ordering::Relaxed);
        }
        may_begin
    }

    /// Returns `true` while a thread that could not exclude runs waits for its next attempt.
    fn is_exclusion_announced(&self) -> bool {
        self.now_us() < self.exclusion_announced_until_us.load(Ordering::Relaxed)
    }

    /// Returns the number of runs on script threads, and of long ones on workers that cannot leave.
    pub fn on_script_threads(&self) -> usize {
        usize::try_from(self.on_script_threads.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Records that a run on a script thread has ended.
    pub fn end_on_script_thread(&self) {
        self.on_script_threads.fetch_sub(1, Ordering::Release);
    }

    /// Returns a name for a thread that will try to exclude runs.
    pub fn new_requester(&self) -> Requester {
        Requester::Thread(self.named_requesters.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the microseconds since the first call of this function.
    fn now_us(&self) -> u64 {
        self.epoch.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    /// Requests that every run stop, since the process is shutting down.
    pub fn stop_all(&self) {
        self.is_shutting_down.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the process is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        self.is_shutting_down.load(Ordering::Relaxed)
    }

    /// Records that the end of the process has stopped a script or a transaction that has written: the data in memory
    /// have a part of it, and no log has. Called before its thread leaves the gate, or opens it.
    pub fn note_unfinished_unit(&self) {
        self.has_unfinished_unit.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the data in memory have a part of a script or of a transaction. From then on, nothing may use
    /// them: the process is about to end. In exclusive mode the answer holds.
    pub fn has_unfinished_unit(&self) -> bool {
        self.has_unfinished_unit.load(Ordering::Relaxed)
    }
}

mod excluding;
mod starts;
#[cfg(test)]
mod tests;

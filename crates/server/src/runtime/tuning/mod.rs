//! Self-tuning: the number of active workers.
//!
//! Every [`WINDOW`] the coordinator reads the busy share of the active workers, how long they waited for a CPU, and the
//! number of requests they executed. If they are too busy for a while, with half a core idle, one more worker becomes
//! active and gets its share of the connections. That is a trial: if the server then does not execute clearly more
//! requests, the worker is deactivated, and the next trial waits twice as long. If the workers are idle enough that one
//! fewer would do, the last worker's connections move to the others.
//!
//! A past decision may become wrong, and a trial may have been misled by a load that grew independently. So from time
//! to time the server also tries one worker fewer: if throughput stays the same, the worker was not needed.
//!
//! ```text
//!            busy ≥ 85% for 20 windows,
//!            run delay ≤ 10%, half a core
//!            idle meanwhile                          gain ≥ 8%
//!   Steady ───────────────────────────▶ Trial ───────────────────▶ Steady (backoff reset)
//!     ▲  │ busy of n−1 would be ≤ 50%     │ no gain, or an early loss
//!     │  └──────▶ one worker fewer        └──────▶ back to what it was, backoff doubled ──┐
//!     └───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! `io-threads` limits the number of active workers, also when it is changed at run time: the workers above it give
//! their connections away. So does the number of CPUs that the threads may use.
//!
//! A harmful trial shows in the slowest requests, as its threads compete with each other and with clients on the same
//! machine. Hence the check for idle cores before a trial, and its early end.
//!
//! # Many workers
//!
//! The picture shows up to [`FEW_WORKERS`] workers. A second worker can double the throughput, but a 14th one can raise
//! it by 7.7% at most, and a 65th one by 1.6%, which is hard to tell from noise. So with more workers, several are
//! added or removed at once, and the limits are shares of the proportional change (`steps.rs`). From 40 to 50 workers,
//! the proportional gain is 25%.
//!
//! 1. A trial adds or removes at least an eighth of the workers, [`smallest_step`]. One that removes workers has no
//!    other step, except in doubt (rule 3 of the next section).
//! 2. Further workers stay if they bring a quarter of the proportional gain. Fewer workers stay if they cost at most an
//!    eighth of the proportional loss. The distance between these limits keeps the number from going up and down.
//! 3. A trial after one that was kept adds four times as many workers, but at most as many as are active. One after a
//!    trial that failed adds a quarter. It waits for the backoff only if the larger trial gained less than the smallest
//!    step must.
//! 4. The windows of a trial that was kept are also those before the next one. So a load that uses all CPUs has 2, 3,
//!    4, 8, 16, 32 and 64 workers after 0.2, 0.65, 1.1, 1.4, 1.6, 1.9 and 2.1 s.
//! 5. The smallest step needs half an idle core for each worker. A larger one needs a whole core for each, because
//!    clients on the same machine will need more CPU time, too.
//! 6. If fewer workers are busy and clearly faster, still fewer are tried at once. Such a series pauses growth once.
//!    Fewer workers that are not busy pause it not at all: when they become busy, that is another load.
//! 7. Idle workers are deactivated one at a time or, from eight on, up to a quarter at once. They need no trial: it
//!    would succeed, and pause growth when the load returns.
//!
//! # Other programs on the machine
//!
//! Busy shares and rates are measured by the wall clock, so other programs distort them. A worker that waits for a CPU
//! in the middle of its turn looks busy. Clients that wait for that worker leave their own core idle. If the other
//! program ends during a trial, the rate rises by itself. All of this looks like a load that needs one more worker. But
//! when the other program has ended, that worker and the clients on the same machine compete for the cores, and the
//! server executes fewer requests than with one worker. The kernel counts the time that a thread waits for a CPU, the
//! run delay, and other programs can only increase it. Hence these rules:
//!
//! 1. No trial with further workers begins while the workers wait for more than [`MAX_RUN_DELAY`] of their time. They
//!    are not short of workers but of CPUs.
//! 2. Such a trial is compared with the rate that the workers would have had without waiting. What they lost to another
//!    program is not gained by further workers.
//! 3. The rate of fewer workers is remembered. The workers are in doubt if they execute less than that although they
//!    are busy or delayed as in rule 1. They are also in doubt if they are delayed and wait for half a core together.
//!    After half a second of doubt fewer workers are tried, although the pause between such trials may be a minute: as
//!    many as were faster, or the smallest step fewer. Other programs cause doubt, too. So the pause after a trial that
//!    failed doubles, up to [`MAX_DOUBT_PAUSE`].
//!
//! A trial with fewer workers compares the rates as they are: with a program that never ends, two workers get more of
//! the CPUs than one. Where the kernel does not report run delays, they count as zero.
//!
//! # What is observed
//!
//! A window is longer than [`WINDOW`] if the coordinator gets no CPU in time, for instance because the process has used
//! up its quota. The workers get none then, either. So each window counts by its length.
//!
//! The observations are forgotten, and a trial under way ends, if something else has changed the number of active
//! workers, if there are no clients, and after a window that was much too long. If such a trial has added workers,
//! fewer are tried soon.

use std::collections::VecDeque;
use std::time::Duration;

use crate::observability::metrics::Counter;
use crate::state::idle_clock::{IdleClock, idle_clock};
use crate::state::spare_cores::{BUSY_SHARE, busy_ns, smallest_step};
use crate::state::{Message, Server, WorkerLink};
use weft_base::ThreadIndex;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

mod run_delay;
mod steps;
#[cfg(test)]
mod tests;

use run_delay::RunDelays;
use steps::{FEW_WORKERS, GrowthStep, MIN_IDLE_CORES, min_gain, min_kept};

/// The length of a window.
pub const WINDOW: Duration = Duration::from_millis(10);
/// The busy share up to which fewer workers may do the work of all.
const IDLE_SHARE: f64 = 0.5;
/// The number of windows in a row with the same result that lead to a change.
const WINDOWS_BEFORE_CHANGE: u32 = 5;
/// The number of windows ignored after a change, until connections have moved.
const WINDOWS_IGNORED_AFTER_CHANGE: u32 = 5;
/// The number of windows of a trial.
const TRIAL_WINDOWS: u32 = 20;
/// A trial ends early if, after this number of windows, throughput is below this fraction of the rate before.
const EARLY_LOSS: (u32, f64) = (4, 0.9);
/// The share of its time that a worker may wait for a CPU before a trial with a further worker. A worker that shares
/// its core with a busy program waits for half of its time. One with a core of its own waits only for threads that need
/// this core for moments. The limit is far from both.
const MAX_RUN_DELAY: f64 = 0.1;
/// The number of cores for which the workers must wait together to be in doubt: as many as one more worker needs.
const DOUBTFUL_RUN_DELAY: f64 = MIN_IDLE_CORES;
/// The longest pause between trials with fewer workers while the workers are in doubt. A trial that halves the
/// throughput ends after 90 ms, so these trials cost less than 1% of it.
const MAX_DOUBT_PAUSE: Duration = Duration::from_secs(8);
/// The largest run delay that is deducted. A rate under a longer delay says little about the rate without it.
const MAX_DEDUCTED_DELAY: f64 = 0.5;
/// The time between two orders to the inactive workers to give away connections that they kept because these were busy.
/// The CPUs that the threads may use are counted as often.
const CLEARING_PERIOD: Duration = Duration::from_secs(1);
/// The first and the longest pause between unsuccessful trials.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

#[derive(Clone, Copy)]
struct Trial {
    windows: u32,
    /// The rate with which the trial is compared, in requests per nanosecond.
    reference_rate: f64,
    /// The rate from which on the trial is kept.
    min_rate: f64,
    /// The number of workers that the trial added or removed.
    step: usize,
    /// `true` if the trial removed workers.
    removes_workers: bool,
}

/// What fewer workers executed when that was measured last.
struct FewerWorkers {
    /// The number of active workers that it is compared with.
    active: usize,
    fewer: usize,
    /// The rate of the fewer workers if they had not waited for CPUs.
    undelayed_rate: f64,
}

#[derive(Clone, Copy)]
enum TuningPhase {
    Steady,
    Trial(Trial),
}

/// The observations of one window.
#[derive(Clone, Copy, Debug)]
struct WindowSample {
    /// The length of the window, as a multiple of [`WINDOW`].
    length: f64,
    /// The number of active workers.
    active: usize,
    /// The number of workers that may be active.
    workers: usize,
    /// The number of connected clients.
    connections: usize,
    /// The sum of the busy shares of the active workers.
    busy_share: f64,
    /// The sum of the shares of the time in which the active workers waited for a CPU. A wait counts when it ends, so
    /// only the mean of several windows is exact.
    run_delay: f64,
    /// Requests per nanosecond.
    rate: f64,
}

/// Decides from the windows alone, without access to the server.
struct TuningPolicy {
    phase: TuningPhase,
    busy_windows: u32,
    idle_windows: u32,
    doubtful_windows: u32,
    ignored_windows: u32,
    backoff: Duration,
    next_trial: Instant,
    removal_backoff: Duration,
    next_removal: Instant,
    /// The earliest time of a trial with fewer workers because of doubt.
    next_doubt: Instant,
    growth_step: GrowthStep,
    fewer_workers: Option<FewerWorkers>,
    /// The last windows with the present number of active workers, at most as many as a trial has.
    windows: VecDeque<WindowSample>,
    /// The number of active workers that the next window should have, if that is known.
    expected_active: Option<usize>,
    idle_clock: IdleClock,
    /// The idle clock and the time when the workers became busy.
    busy_since: Option<(u64, Instant)>,
}

impl TuningPolicy {
    fn new(idle_clock: IdleClock, now: Instant) -> Self {
        TuningPolicy {
            phase: TuningPhase::Steady,
            busy_windows: 0,
            idle_windows: 0,
            doubtful_windows: 0,
            ignored_windows: 0,
            backoff: BACKOFF.0,
            next_trial: now,
            removal_backoff: BACKOFF.0,
            next_removal: now,
            next_doubt: now,
            growth_step: GrowthStep::new(),
            fewer_workers: None,
            windows: VecDeque::with_capacity(TRIAL_WINDOWS as usize),
            expected_active: None,
            idle_clock,
            busy_since: None,
        }
    }

    /// Evaluates one window. Returns the new number of active workers if it changes.
    fn observe_window(&mut self, sample: WindowSample, now: Instant) -> Option<usize> {
        let expected_active = self.expected_active.replace(sample.active);
        if expected_active.is_some_and(|active| active != sample.active) {
            self.forget_windows(now);
            return None;
        }
        if self.ignored_windows > 0 {
            self.ignored_windows -= 1;
            return None;
        }
        if self.has_enough_windows() {
            self.windows.pop_front();
        }
        self.windows.push_back(sample);
        let active = match self.phase {
            TuningPhase::Steady => self.observe_steady(sample, now),
            TuningPhase::Trial(trial) => self.observe_trial(sample, trial, now),
        }?;
        // Fewer workers may be usable than when the trial began.
        let active = active.clamp(1, sample.workers);
        self.clear_windows();
        self.expected_active = Some(active);
        Some(active)
    }

    /// Forgets what was observed, and ends a trial under way, because something other than this policy has changed the
    /// load or the number of active workers.
    fn forget_windows(&mut self, now: Instant) {
        if matches!(self.phase, TuningPhase::Trial(trial) if !trial.removes_workers) {
            // What the trial has added stays, although nothing has shown that it is worth it.
            self.next_removal = now;
        }
        self.phase = TuningPhase::Steady;
        self.clear_windows();
        self.expected_active = None;
    }

    /// Removes all windows. Those that follow are ignored until connections have moved.
    fn clear_windows(&mut self) {
        self.busy_windows = 0;
        self.idle_windows = 0;
        self.doubtful_windows = 0;
        self.ignored_windows = WINDOWS_IGNORED_AFTER_CHANGE;
        self.windows.clear();
    }

    fn observe_steady(&mut self, sample: WindowSample, now: Instant) -> Option<usize> {
        let active = sample.active;
        self.count_busy_window(sample, now);
        let fewer = sample.busy_share / (active.max(2) - 1) as f64;
        self.idle_windows = if active > 1 && fewer <= IDLE_SHARE {
            self.idle_windows + 1
        } else {
            0
        };
        self.doubtful_windows = if self.is_doubtful(active) {
            self.doubtful_windows + 1
        } else {
            0
        };
        // At least as many windows as a trial has, so that the rate before it is not that of a load that just began.
        if self.busy_windows >= TRIAL_WINDOWS {
            let Some(step) = self.workers_to_add(sample, now) else {
                self.busy_windows = 0;
                return None;
            };
            let reference_rate = self.undelayed_rate(active);
            Some(self.begin_trial(active, active + step, reference_rate))
        } else if self.idle_windows >= 10 * WINDOWS_BEFORE_CHANGE {
            Some(self.workers_for_idle_load(active))
        } else if active > 1 && self.idle_windows == 0 && self.has_enough_windows() && self.is_removal_due(now) {
            let reference_rate = self.mean(|window| window.rate);
            Some(self.begin_trial(active, self.fewer_to_try(sample), reference_rate))
        } else {
            None
        }
    }

    /// Counts the windows in a row in which more workers may become active and those that are active are busy.
    fn count_busy_window(&mut self, sample: WindowSample, now: Instant) {
        let WindowSample { active, workers, .. } = sample;
        let per_worker = sample.busy_share / active as f64;
        let may_grow = active < workers && active < sample.connections && now >= self.next_trial;
        if per_worker >= BUSY_SHARE && may_grow {
            if self.busy_windows == 0 {
                self.busy_since = (self.idle_clock)().map(|idle_ms| (idle_ms, now));
            }
            self.busy_windows += 1;
        } else {
            self.busy_windows = 0;
        }
    }

    /// Returns how many workers the next trial adds, or `None` if the active ones do not have the CPUs that they need,
    /// or further ones would not.
    fn workers_to_add(&mut self, sample: WindowSample, now: Instant) -> Option<usize> {
        let active = sample.active;
        if self.is_delayed(active) {
            return None;
        }
        let room = sample.workers.min(sample.connections).saturating_sub(active);
        let idle_cores = self.idle_cores(now);
        self.growth_step.workers_to_add(active, room, idle_cores)
    }

    /// Returns the number of workers for a load of which one worker fewer would be idle: at most a quarter fewer.
    fn workers_for_idle_load(&self, active: usize) -> usize {
        let needed = (self.mean(|window| window.busy_share) / IDLE_SHARE).ceil() as usize;
        needed.max(active - (active / 4).max(1)).min(active - 1)
    }

    /// Returns how many workers the next trial with fewer workers has. No more than these may be active.
    fn fewer_to_try(&self, sample: WindowSample) -> usize {
        let active = sample.active;
        let fewer = match &self.fewer_workers {
            // These have executed more than all do now.
            Some(known) if self.is_in_doubt() && self.is_slower_than(known, active) => known.fewer,
            Some(_) | None => active - smallest_step(active),
        };
        fewer.min(sample.workers).max(1)
    }

    /// Returns `true` if there are as many windows with the present number of workers as a trial has.
    fn has_enough_windows(&self) -> bool {
        self.windows.len() >= TRIAL_WINDOWS as usize
    }

    /// Returns `true` if it is time to try fewer workers.
    fn is_removal_due(&self, now: Instant) -> bool {
        now >= self.next_removal || (self.is_in_doubt() && now >= self.next_doubt)
    }

    /// Returns `true` if fewer workers might have executed more for half a second.
    fn is_in_doubt(&self) -> bool {
        self.doubtful_windows >= 10 * WINDOWS_BEFORE_CHANGE
    }

    /// Returns `true` if the workers wait for CPUs so long that a further worker would only wait, too.
    fn is_delayed(&self, active: usize) -> bool {
        self.mean(|window| window.run_delay) > MAX_RUN_DELAY * active as f64
    }

    /// Returns `true` if fewer workers might execute more: see rule 3 at the top.
    fn is_doubtful(&self, active: usize) -> bool {
        if active == 1 || !self.has_enough_windows() {
            return false;
        }
        let known = self.fewer_workers.as_ref();
        let is_slower = known.is_some_and(|known| self.is_slower_than(known, active));
        if self.is_delayed(active) {
            is_slower || self.mean(|window| window.run_delay) >= DOUBTFUL_RUN_DELAY
        } else {
            is_slower && self.is_busy(active)
        }
    }

    /// Returns `true` if the workers execute less than fewer workers did.
    fn is_slower_than(&self, known: &FewerWorkers, active: usize) -> bool {
        known.active == active && self.mean(|window| window.rate) < known.undelayed_rate
    }

    /// Returns `true` if the workers were busy in the last windows.
    fn is_busy(&self, active: usize) -> bool {
        self.mean(|window| window.busy_share) >= BUSY_SHARE * active as f64
    }

    /// Returns the mean number of idle cores since the workers became busy, if the system reports it.
    fn idle_cores(&mut self, now: Instant) -> Option<f64> {
        let (idle_before_ms, since) = self.busy_since?;
        let idle_ms = (self.idle_clock)()?;
        let elapsed_ms = now.duration_since(since).as_millis().max(1) as f64;
        Some(idle_ms.saturating_sub(idle_before_ms) as f64 / elapsed_ms)
    }

    /// Begins a trial with `after` instead of `before` workers. Returns `after`.
    fn begin_trial(&mut self, before: usize, after: usize, reference_rate: f64) -> usize {
        let removes_workers = after < before;
        let factor = match removes_workers {
            true => min_kept(before, after),
            false => min_gain(before, after),
        };
        self.phase = TuningPhase::Trial(Trial {
            windows: 0,
            reference_rate,
            min_rate: reference_rate * factor,
            step: before.abs_diff(after),
            removes_workers,
        });
        after
    }

    fn observe_trial(&mut self, sample: WindowSample, trial: Trial, now: Instant) -> Option<usize> {
        let active = sample.active;
        // With many workers, the windows of this trial are also those before the next one.
        if active >= FEW_WORKERS && !trial.removes_workers {
            self.count_busy_window(sample, now);
        }
        let windows = trial.windows + 1;
        let rate = self.mean(|window| window.rate);
        let harmful = windows >= EARLY_LOSS.0 && rate < trial.reference_rate * EARLY_LOSS.1;
        if windows < TRIAL_WINDOWS && !harmful {
            self.phase = TuningPhase::Trial(Trial { windows, ..trial });
            return None;
        }
        self.phase = TuningPhase::Steady;
        let before = match trial.removes_workers {
            true => active + trial.step,
            false => active.saturating_sub(trial.step).max(1),
        };
        match (trial.removes_workers, rate >= trial.min_rate) {
            (true, true) => self.keep_removal(active, trial, rate, now),
            (true, false) => self.revoke_removal(before, active, now),
            (false, true) => self.keep_growth(before, active, trial, now),
            (false, false) => self.revoke_growth(before, trial, rate, now),
        }
        (rate < trial.min_rate).then_some(before)
    }

    fn keep_growth(&mut self, before: usize, active: usize, trial: Trial, now: Instant) {
        self.backoff = BACKOFF.0;
        self.growth_step.enlarge(trial.step);
        self.fewer_workers = Some(FewerWorkers {
            active,
            fewer: before,
            undelayed_rate: trial.reference_rate,
        });
        self.next_doubt = now;
        self.next_removal = now + self.removal_backoff;
    }

    fn revoke_growth(&mut self, before: usize, trial: Trial, rate: f64, now: Instant) {
        self.growth_step.reduce(trial.step);
        let smallest = smallest_step(before);
        let min_rate = trial.reference_rate * min_gain(before, before + smallest);
        // The step was too large, but a smaller one may be worth it. It follows without a pause.
        if trial.step > smallest && rate >= min_rate {
            return;
        }
        self.pause_growth(now);
    }

    fn keep_removal(&mut self, active: usize, trial: Trial, rate: f64, now: Instant) {
        self.removal_backoff = BACKOFF.0;
        self.next_removal = now + self.removal_backoff;
        if active < FEW_WORKERS {
            return self.pause_growth(now);
        }
        // Workers that are not busy do not get help anyway. If they become busy, that is another load.
        if !self.is_busy(active) {
            return;
        }
        // The further trials of a series do not prolong the pause.
        if now >= self.next_trial {
            self.pause_growth(now);
        }
        // The rate is as far above the one before as the limit is below it, so still fewer workers may be still faster.
        if rate - trial.reference_rate > trial.reference_rate - trial.min_rate {
            self.next_removal = now;
        }
    }

    fn revoke_removal(&mut self, before: usize, active: usize, now: Instant) {
        self.fewer_workers = Some(FewerWorkers {
            active: before,
            fewer: active,
            undelayed_rate: self.undelayed_rate(active),
        });
        self.next_doubt = now + self.removal_backoff.min(MAX_DOUBT_PAUSE);
        self.removal_backoff = doubled_backoff(self.removal_backoff);
        self.next_removal = now + self.removal_backoff;
    }

    /// Delays the next trial with further workers, and the one after it twice as long.
    fn pause_growth(&mut self, now: Instant) {
        self.next_trial = now + self.backoff;
        self.backoff = doubled_backoff(self.backoff);
    }

    /// Returns the mean of a value over the time of the last windows.
    fn mean(&self, value: impl Fn(&WindowSample) -> f64) -> f64 {
        let (mut sum, mut length) = (0.0, 0.0);
        for window in &self.windows {
            sum += value(window) * window.length;
            length += window.length;
        }
        if length > 0.0 { sum / length } else { 0.0 }
    }

    /// Returns the mean rate that the busy workers would have had if they had not waited for CPUs.
    fn undelayed_rate(&self, active: usize) -> f64 {
        let delay = self.mean(|window| window.run_delay) / active as f64;
        self.mean(|window| window.rate) / (1.0 - delay.min(MAX_DEDUCTED_DELAY))
    }
}

fn doubled_backoff(backoff: Duration) -> Duration {
    (backoff * 2).min(BACKOFF.1)
}

/// Samples the workers and applies the decisions of the policy.
pub struct Tuner {
    policy: TuningPolicy,
    /// The number of CPUs that the threads may use.
    cpus: usize,
    /// Counts these CPUs.
    count_cpus: fn() -> usize,
    run_delays: RunDelays,
    last_busy_ns: Vec<u64>,
    last_executed_commands: u64,
    last_sample: Instant,
    next_clearing: Instant,
}

impl Tuner {
    /// Creates a tuner without observations.
    pub fn new(server: &Server) -> Self {
        let now = Instant::now();
        Tuner {
            policy: TuningPolicy::new(idle_clock(), now),
            cpus: usable_cpus(),
            count_cpus: usable_cpus,
            run_delays: RunDelays::new(server.workers.len(), now),
            last_busy_ns: vec![0; server.workers.len()],
            last_executed_commands: 0,
            last_sample: now,
            next_clearing: now,
        }
    }

    /// Returns `true` if there is anything to tune. With one worker or without clients the coordinator sleeps.
    pub fn is_active(&self, server: &Server) -> bool {
        server.workers.len() > 1 && server.clients.connections.load(Ordering::Relaxed) > 0
    }

    /// Forgets what was observed, because the next window does not follow the last one.
    pub fn forget_windows(&mut self, now: Instant) {
        self.policy.forget_windows(now);
    }

    /// Evaluates one window and acts on it.
    pub fn sample_and_apply(&mut self, server: &Server, now: Instant) {
        let elapsed_ns = now.duration_since(self.last_sample).as_nanos().max(1) as f64;
        self.last_sample = now;
        let active = server.lifecycle.active_workers.load(Ordering::Relaxed);
        let now_ns = now.duration_since(server.lifecycle.started).as_nanos() as u64;
        let busy_share = self.busy_share(server, active, now_ns, elapsed_ns);
        let executed: u64 = server
            .workers
            .iter()
            .map(|worker| worker.executed_commands.load(Ordering::Relaxed))
            .sum();
        let rate = executed.wrapping_sub(self.last_executed_commands) as f64 / elapsed_ns;
        self.last_executed_commands = executed;
        let usable = server.usable_workers();
        let mut active_workers = server.workers.iter().take(active);
        let is_stalled = active_workers.any(|worker| worker.is_stalled(now_ns));
        if now >= self.next_clearing {
            self.next_clearing = now + CLEARING_PERIOD;
            self.cpus = (self.count_cpus)();
            if !is_stalled {
                clear_inactive_workers(server, active);
            }
        }
        if active > usable || server.config.boolean(id::IO_THREADS_ALWAYS_ACTIVE) {
            // A trial under way would end with a count that no longer fits.
            self.forget_windows(now);
            // Workers may have been activated for new clients, which must not be moved to a stalled one.
            if active < usable || (active > usable && !is_stalled) {
                set_active_workers(server, usable);
            }
            return;
        }
        // A long sleep of the coordinator does not count as a window.
        let length = elapsed_ns / WINDOW.as_nanos() as f64;
        if length > 10.0 {
            self.forget_windows(now);
            return;
        }
        // A worker that is alone and not busy needs no decision. So an idle server does not read the file.
        let run_delay = match active == 1 && busy_share < BUSY_SHARE {
            true => 0.0,
            false => self.run_delays.share_since_last_call(&server.workers[..active], now),
        };
        let seen = WindowSample {
            length,
            active,
            workers: usable.min(self.cpus),
            connections: server.clients.connections.load(Ordering::Relaxed),
            busy_share,
            run_delay,
            rate,
        };
        let Some(next) = self.policy.observe_window(seen, now) else {
            return;
        };
        if is_stalled && next < active {
            // Workers may have been activated for new clients, which must not be moved to a stalled one.
            self.forget_windows(now);
            return;
        }
        set_active_workers(server, next);
    }

    /// Returns the sum of the busy shares of the active workers since the last call.
    fn busy_share(&mut self, server: &Server, active: usize, now_ns: u64, elapsed_ns: f64) -> f64 {
        let mut busy_share = 0.0;
        for (index, last) in self.last_busy_ns.iter_mut().enumerate() {
            // Workers joined the keyspace first, so a worker's thread index is its worker index.
            let finished_ns = server
                .stats
                .metrics
                .thread_sum(ThreadIndex::new(index), Counter::BusyNs);
            let busy = busy_ns(&server.workers[index], finished_ns, now_ns);
            if index < active {
                // The two parts are not read at the same moment, so a turn that ends in between may count twice.
                busy_share += (busy.saturating_sub(*last) as f64 / elapsed_ns).min(1.0);
            }
            *last = busy.max(*last);
        }
        busy_share
    }
}

/// Returns the number of CPUs that this thread, and with it the workers, may use. A simulation sets no limit.
fn usable_cpus() -> usize {
    if cfg!(feature = "simulated") {
        return usize::MAX;
    }
    weft_reactor::allowed_cpus().map_or(usize::MAX, |cpus| cpus.len().max(1))
}

/// Sets the number of active workers to `active`, and distributes the connections over them.
pub fn set_active_workers(server: &Server, active: usize) {
    let before = server.lifecycle.active_workers.swap(active, Ordering::Relaxed);
    if active == before {
        return;
    }
    server.lifecycle.tunings.fetch_add(1, Ordering::Relaxed);
    let total = server.clients.connections.load(Ordering::Relaxed);
    if active > before {
        let keep = total.div_ceil(active);
        for worker in &server.workers[..before] {
            worker.send(Message::MoveConnections {
                target_workers: before..active,
                kept_connections: keep,
            });
        }
    } else {
        clear_workers(active, server.workers[active..before].iter());
    }
}

/// Orders all inactive workers that have connections to give them to the `active` ones.
fn clear_inactive_workers(server: &Server, active: usize) {
    let inactive = server.workers[active..].iter();
    clear_workers(
        active,
        inactive.filter(|worker| worker.connections.load(Ordering::Relaxed) > 0),
    );
}

/// Orders inactive workers to give all connections that they can to the `active` first ones.
fn clear_workers<'w>(active: usize, inactive: impl Iterator<Item = &'w WorkerLink>) {
    for worker in inactive {
        worker.send(Message::MoveConnections {
            target_workers: 0..active,
            kept_connections: 0,
        });
    }
}

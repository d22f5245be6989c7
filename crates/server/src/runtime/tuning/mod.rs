//! Self-tuning: the number of active workers.
//!
//! Every [`WINDOW`] the coordinator reads the busy share of the active workers and the number of requests they
//! executed. If they are too busy for a while, with half a core idle, one more worker becomes active and gets its share
//! of the connections. That is a trial: if the server then does not execute clearly more requests, the worker is
//! deactivated, and the next trial waits twice as long. If the workers are idle enough that one fewer would do, the
//! last worker's connections move to the others.
//!
//! A past decision may become wrong, and a trial may have been misled by a load that grew independently. So from time
//! to time the server also tries one worker fewer: if throughput stays the same, the worker was not needed.
//!
//! ```text
//!            busy ≥ 85% for 20 windows,
//!            half a core idle meanwhile              gain ≥ 8%
//!   Steady ───────────────────────────▶ Trial ───────────────────▶ Steady (backoff reset)
//!     ▲  │ busy of n−1 would be ≤ 50%     │ no gain, or an early loss
//!     │  └──────▶ one worker fewer        └──────▶ back to what it was, backoff doubled ──┐
//!     └───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! `io-threads` limits the number of active workers, also when it is changed at run time: the workers above it give
//! their connections away.
//!
//! A harmful trial shows in the slowest requests, as its threads compete with each other and with clients on the same
//! machine. Hence the check for idle cores before a trial, and its early end.

use std::time::Duration;

use crate::observability::metrics::Counter;
use crate::state::idle_clock::{IdleClock, idle_clock};
use crate::state::spare_cores::{BUSY_SHARE, busy_ns};
use crate::state::{Message, Server, WorkerLink};
use weft_base::ThreadIndex;
use weft_config::id;
use weft_os::atomic::Ordering;
use weft_os::time::Instant;

#[cfg(test)]
mod tests;

/// The length of a window.
pub const WINDOW: Duration = Duration::from_millis(10);
/// The busy share up to which n − 1 workers may do the work of n.
const IDLE_SHARE: f64 = 0.5;
/// The number of windows in a row with the same result that lead to a change.
const WINDOWS_BEFORE_CHANGE: u32 = 5;
/// The number of windows ignored after a change, until connections have moved.
const WINDOWS_IGNORED_AFTER_CHANGE: u32 = 5;
/// The number of windows of a trial.
const TRIAL_WINDOWS: u32 = 20;
/// A trial ends early if, after this number of windows, throughput is below this fraction of the rate before.
const EARLY_LOSS: (u32, f64) = (4, 0.9);
/// The number of idle cores that one more worker needs.
const MIN_IDLE_CORES: f64 = 0.5;
/// The factor by which a trial must raise throughput.
const MIN_TRIAL_GAIN: f64 = 1.08;
/// The fraction of the throughput that must remain with one worker fewer.
const MIN_KEPT_THROUGHPUT: f64 = 0.95;
/// The time between two orders to the inactive workers to give away connections that they kept because these were busy.
const CLEARING_PERIOD: Duration = Duration::from_secs(1);
/// The first and the longest pause between unsuccessful trials.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

#[derive(Clone, Copy)]
struct Trial {
    windows: u32,
    executed_before: f64,
    /// `true` if the trial removed a worker.
    removes_worker: bool,
}

#[derive(Clone, Copy)]
enum TuningPhase {
    Steady,
    Trial(Trial),
}

/// The observations of one window.
#[derive(Clone, Copy, Debug)]
struct WindowSample {
    /// The number of active workers.
    active: usize,
    /// The number of workers that may be active.
    workers: usize,
    /// The number of connected clients.
    connections: usize,
    /// The sum of the busy shares of the active workers.
    busy_share: f64,
    /// Requests per nanosecond.
    rate: f64,
}

/// Decides from the windows alone, without access to the server.
struct TuningPolicy {
    phase: TuningPhase,
    busy_windows: u32,
    idle_windows: u32,
    ignored_windows: u32,
    backoff: Duration,
    next_trial: Instant,
    removal_backoff: Duration,
    next_removal: Instant,
    rates: [f64; TRIAL_WINDOWS as usize],
    rate_count: usize,
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
            ignored_windows: 0,
            backoff: BACKOFF.0,
            next_trial: now,
            removal_backoff: BACKOFF.0,
            next_removal: now,
            rates: [0.0; TRIAL_WINDOWS as usize],
            rate_count: 0,
            idle_clock,
            busy_since: None,
        }
    }

    /// Evaluates one window. Returns the new number of active workers if it changes.
    fn observe_window(&mut self, sample: WindowSample, now: Instant) -> Option<usize> {
        if self.ignored_windows > 0 {
            self.ignored_windows -= 1;
            return None;
        }
        self.rates[self.rate_count % self.rates.len()] = sample.rate;
        self.rate_count += 1;
        let active = match self.phase {
            TuningPhase::Steady => self.observe_steady(sample, now),
            TuningPhase::Trial(trial) => self.observe_trial(sample.active, trial, now),
        }?;
        // Parameters may have changed the number of active workers since the trial began.
        let active = active.clamp(1, sample.workers);
        self.busy_windows = 0;
        self.idle_windows = 0;
        self.ignored_windows = WINDOWS_IGNORED_AFTER_CHANGE;
        self.rate_count = 0;
        Some(active)
    }

    fn observe_steady(&mut self, sample: WindowSample, now: Instant) -> Option<usize> {
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
        let fewer = sample.busy_share / (active.max(2) - 1) as f64;
        self.idle_windows = if active > 1 && fewer <= IDLE_SHARE {
            self.idle_windows + 1
        } else {
            0
        };
        // At least as many windows as a trial has, so that the rate before it is not that of a load that just began.
        if self.busy_windows >= TRIAL_WINDOWS {
            if self.has_no_idle_core(now) {
                self.busy_windows = 0;
                return None;
            }
            Some(self.begin_trial(active + 1, false))
        } else if self.idle_windows >= 10 * WINDOWS_BEFORE_CHANGE {
            Some(active - 1)
        } else if active > 1 && now >= self.next_removal && self.rate_count >= self.rates.len() {
            Some(self.begin_trial(active - 1, true))
        } else {
            None
        }
    }

    /// Returns `true` if there was less than half an idle core since the workers became busy.
    fn has_no_idle_core(&mut self, now: Instant) -> bool {
        let (Some((idle_before_ms, since)), Some(idle_ms)) = (self.busy_since, (self.idle_clock)()) else {
            return false;
        };
        let elapsed_ms = now.duration_since(since).as_millis().max(1) as f64;
        (idle_ms.saturating_sub(idle_before_ms) as f64) < MIN_IDLE_CORES * elapsed_ms
    }

    fn begin_trial(&mut self, active: usize, removes_worker: bool) -> usize {
        self.phase = TuningPhase::Trial(Trial {
            windows: 0,
            executed_before: self.mean_rate(),
            removes_worker,
        });
        active
    }

    fn observe_trial(&mut self, active: usize, trial: Trial, now: Instant) -> Option<usize> {
        let windows = trial.windows + 1;
        let rate = self.mean_rate();
        let harmful = windows >= EARLY_LOSS.0 && rate < trial.executed_before * EARLY_LOSS.1;
        if windows < TRIAL_WINDOWS && !harmful {
            self.phase = TuningPhase::Trial(Trial { windows, ..trial });
            return None;
        }
        self.phase = TuningPhase::Steady;
        if trial.removes_worker {
            let keeps = rate >= trial.executed_before * MIN_KEPT_THROUGHPUT;
            if keeps {
                self.removal_backoff = BACKOFF.0;
                self.next_trial = now + self.backoff;
                self.backoff = doubled_backoff(self.backoff);
            } else {
                self.removal_backoff = doubled_backoff(self.removal_backoff);
            }
            self.next_removal = now + self.removal_backoff;
            (!keeps).then_some(active + 1)
        } else {
            let gains = rate >= trial.executed_before * MIN_TRIAL_GAIN;
            if gains {
                self.backoff = BACKOFF.0;
                self.next_removal = now + self.removal_backoff;
            } else {
                self.next_trial = now + self.backoff;
                self.backoff = doubled_backoff(self.backoff);
            }
            (!gains).then_some(active - 1)
        }
    }

    fn mean_rate(&self) -> f64 {
        let seen = self.rate_count.min(self.rates.len());
        self.rates[..seen].iter().sum::<f64>() / seen.max(1) as f64
    }
}

fn doubled_backoff(backoff: Duration) -> Duration {
    (backoff * 2).min(BACKOFF.1)
}

/// Samples the workers and applies the decisions of the policy.
pub struct Tuner {
    policy: TuningPolicy,
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

    /// Evaluates one window and acts on it.
    pub fn sample_and_apply(&mut self, server: &Server, now: Instant) {
        let elapsed_ns = now.duration_since(self.last_sample).as_nanos().max(1) as f64;
        self.last_sample = now;
        let active = server.lifecycle.active_workers.load(Ordering::Relaxed);
        let now_ns = now.duration_since(server.lifecycle.started).as_nanos() as u64;
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
        if usable < server.workers.len() && !is_stalled && now >= self.next_clearing {
            self.next_clearing = now + CLEARING_PERIOD;
            let inactive = server.workers[active..].iter();
            clear_workers(
                active,
                inactive.filter(|worker| worker.connections.load(Ordering::Relaxed) > 0),
            );
        }
        if active > usable || server.config.boolean(id::IO_THREADS_ALWAYS_ACTIVE) {
            // A trial under way would end with a count that no longer fits.
            self.policy.phase = TuningPhase::Steady;
            // Workers may have been activated for new clients, which must not be moved to a stalled one.
            if active < usable || (active > usable && !is_stalled) {
                set_active_workers(server, usable);
            }
            return;
        }
        // A long sleep of the coordinator does not count as a window.
        if elapsed_ns > 10.0 * WINDOW.as_nanos() as f64 {
            return;
        }
        let seen = WindowSample {
            active,
            workers: usable,
            connections: server.clients.connections.load(Ordering::Relaxed),
            busy_share,
            rate,
        };
        let Some(next) = self.policy.observe_window(seen, now) else {
            return;
        };
        if is_stalled && next < active {
            // Workers may have been activated for new clients, which must not be moved to a stalled one.
            self.policy.phase = TuningPhase::Steady;
            return;
        }
        set_active_workers(server, next);
    }
}

/// Sets the number of active workers to `active`, and distributes the connections over them.
pub fn set_active_workers(server: &Server, active: usize) {
    let before = server.lifecycle.active_workers.swap(active, Ordering::Relaxed);
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

/// Orders inactive workers to give all connections that they can to the `active` first ones.
fn clear_workers<'w>(active: usize, inactive: impl Iterator<Item = &'w WorkerLink>) {
    for worker in inactive {
        worker.send(Message::MoveConnections {
            target_workers: 0..active,
            kept_connections: 0,
        });
    }
}

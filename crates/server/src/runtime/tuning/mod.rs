//! Self-tuning: the number of active workers.
//!
//! Every [`WINDOW`] the coordinator reads the busy share of the active workers and the number of requests they
//! executed. If they are too busy for a while, with half a core idle, one more worker becomes active and gets its share
//! of the connections. That is a trial: if the server then does not execute clearly more requests, the worker is
//! deactivated, and the next trial waits twice as long. If the workers are idle enough that one fewer would do, the
//! last worker's connections move to the others.
//!
//! A past decision need not stay right, and a trial may have been misled by a load that grew on its own. So from time
//! to time one worker fewer is tried as well: if throughput holds, the worker was not needed.
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
//! A harmful trial shows in the slowest requests, as its threads compete with each other and with clients on the same
//! machine. Hence the check for idle cores before a trial, and its early end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::observability::metrics::Counter;
use crate::state::{Message, Server, WorkerLink};
use weft_config::id;

mod idle;

#[cfg(test)]
mod tests;

/// The length of a window.
pub const WINDOW: Duration = Duration::from_millis(10);
/// Busy share above which another worker is tried.
const BUSY: f64 = 0.85;
/// The busy share up to which n − 1 workers may do the work of n.
const IDLE: f64 = 0.5;
/// Windows in a row before anything happens.
const PATIENCE: u32 = 5;
/// Windows left out after a change, until connections have moved.
const SETTLE: u32 = 5;
/// Windows of a trial.
const TRIAL: u32 = 20;
/// Windows after which a trial that lost this part of the throughput ends at once.
const FIRST_SIGHT: (u32, f64) = (4, 0.9);
/// Idle cores that a further worker needs.
const SPARE_CORES: f64 = 0.5;
/// A trial must raise throughput by this factor.
const GAIN: f64 = 1.08;
/// The part of the throughput that one worker fewer must keep.
const KEEP: f64 = 0.95;
/// First and longest pause between trials that brought nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

#[derive(Clone, Copy)]
struct Trial {
    windows: u32,
    executed_before: f64,
    /// `true` if the trial removed a worker.
    fewer: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Steady,
    Trial(Trial),
}

/// The observations of one window.
#[derive(Clone, Copy, Debug)]
struct WindowSample {
    /// Workers that take part.
    active: usize,
    /// Workers there are.
    workers: usize,
    /// Clients connected.
    connections: usize,
    /// Busy shares of the active workers, added up.
    busy_share: f64,
    /// Requests per nanosecond.
    rate: f64,
}

/// Returns the summed idle time of the CPUs in this process's affinity mask since the machine started, in milliseconds,
/// or `None` if the system does not report it.
type IdleClock = Box<dyn FnMut() -> Option<u64> + Send>;

/// Decides from what the windows show. Knows nothing of servers.
struct WorkerTuner {
    phase: Phase,
    busy_windows: u32,
    idle_windows: u32,
    settle: u32,
    backoff: Duration,
    no_trial_before: Instant,
    fewer_backoff: Duration,
    no_fewer_before: Instant,
    rates: [f64; TRIAL as usize],
    rate_count: usize,
    idle_clock: IdleClock,
    /// The idle clock and the time when the workers became busy.
    busy_since: Option<(u64, Instant)>,
}

impl WorkerTuner {
    fn new(idle_clock: IdleClock, now: Instant) -> Self {
        WorkerTuner {
            phase: Phase::Steady,
            busy_windows: 0,
            idle_windows: 0,
            settle: 0,
            backoff: BACKOFF.0,
            no_trial_before: now,
            fewer_backoff: BACKOFF.0,
            no_fewer_before: now,
            rates: [0.0; TRIAL as usize],
            rate_count: 0,
            idle_clock,
            busy_since: None,
        }
    }

    /// Evaluates one window. Returns the new number of active workers if it changes.
    fn observe_window(&mut self, seen: WindowSample, now: Instant) -> Option<usize> {
        if self.settle > 0 {
            self.settle -= 1;
            return None;
        }
        self.rates[self.rate_count % self.rates.len()] = seen.rate;
        self.rate_count += 1;
        let active = match self.phase {
            Phase::Steady => self.steady(seen, now),
            Phase::Trial(trial) => self.trial(seen.active, trial, now),
        }?;
        // Workers may have been activated by the parameter since the trial began.
        let active = active.clamp(1, seen.workers);
        self.busy_windows = 0;
        self.idle_windows = 0;
        self.settle = SETTLE;
        self.rate_count = 0;
        Some(active)
    }

    fn steady(&mut self, seen: WindowSample, now: Instant) -> Option<usize> {
        let WindowSample { active, workers, .. } = seen;
        let per_worker = seen.busy_share / active as f64;
        let may_grow = active < workers && active < seen.connections && now >= self.no_trial_before;
        if per_worker >= BUSY && may_grow {
            if self.busy_windows == 0 {
                self.busy_since = (self.idle_clock)().map(|idle_ms| (idle_ms, now));
            }
            self.busy_windows += 1;
        } else {
            self.busy_windows = 0;
        }
        let fewer = seen.busy_share / (active.max(2) - 1) as f64;
        self.idle_windows = if active > 1 && fewer <= IDLE {
            self.idle_windows + 1
        } else {
            0
        };
        // As many windows as a trial has, so that the rate before it is not that of a load that just began.
        if self.busy_windows >= TRIAL {
            if self.no_core_to_spare(now) {
                self.busy_windows = 0;
                return None;
            }
            Some(self.begin_trial(active + 1, false))
        } else if self.idle_windows >= 10 * PATIENCE {
            Some(active - 1)
        } else if active > 1 && now >= self.no_fewer_before && self.rate_count >= self.rates.len() {
            Some(self.begin_trial(active - 1, true))
        } else {
            None
        }
    }

    /// Returns `true` if there was less than half an idle core since the workers became busy.
    fn no_core_to_spare(&mut self, now: Instant) -> bool {
        let (Some((idle_before_ms, since)), Some(idle_ms)) = (self.busy_since, (self.idle_clock)()) else {
            return false;
        };
        let elapsed_ms = now.duration_since(since).as_millis().max(1) as f64;
        (idle_ms.saturating_sub(idle_before_ms) as f64) < SPARE_CORES * elapsed_ms
    }

    fn begin_trial(&mut self, active: usize, fewer: bool) -> usize {
        self.phase = Phase::Trial(Trial {
            windows: 0,
            executed_before: self.mean_rate(),
            fewer,
        });
        active
    }

    fn trial(&mut self, active: usize, trial: Trial, now: Instant) -> Option<usize> {
        let windows = trial.windows + 1;
        let rate = self.mean_rate();
        let harmful = windows >= FIRST_SIGHT.0 && rate < trial.executed_before * FIRST_SIGHT.1;
        if windows < TRIAL && !harmful {
            self.phase = Phase::Trial(Trial { windows, ..trial });
            return None;
        }
        self.phase = Phase::Steady;
        if trial.fewer {
            let keeps = rate >= trial.executed_before * KEEP;
            if keeps {
                self.fewer_backoff = BACKOFF.0;
                self.no_trial_before = now + self.backoff;
                self.backoff = longer(self.backoff);
            } else {
                self.fewer_backoff = longer(self.fewer_backoff);
            }
            self.no_fewer_before = now + self.fewer_backoff;
            (!keeps).then_some(active + 1)
        } else {
            let gains = rate >= trial.executed_before * GAIN;
            if gains {
                self.backoff = BACKOFF.0;
                self.no_fewer_before = now + self.fewer_backoff;
            } else {
                self.no_trial_before = now + self.backoff;
                self.backoff = longer(self.backoff);
            }
            (!gains).then_some(active - 1)
        }
    }

    fn mean_rate(&self) -> f64 {
        let seen = self.rate_count.min(self.rates.len());
        self.rates[..seen].iter().sum::<f64>() / seen.max(1) as f64
    }
}

fn longer(backoff: Duration) -> Duration {
    (backoff * 2).min(BACKOFF.1)
}

/// Samples the workers and does what is decided.
pub struct Tuner {
    decider: WorkerTuner,
    last_busy_ns: Vec<u64>,
    last_executed: u64,
    last_sample: Instant,
}

impl Tuner {
    /// A tuner that has seen nothing.
    pub fn new(server: &Server) -> Self {
        let now = Instant::now();
        Tuner {
            decider: WorkerTuner::new(idle::clock(), now),
            last_busy_ns: vec![0; server.workers.len()],
            last_executed: 0,
            last_sample: now,
        }
    }

    /// Returns `true` if there is anything to tune. With one worker or without clients the coordinator sleeps.
    pub fn is_active(&self, server: &Server) -> bool {
        server.workers.len() > 1 && server.clients.connections.load(Ordering::Relaxed) > 0
    }

    /// Evaluates one window and acts on it.
    pub fn sample(&mut self, server: &Server, now: Instant) {
        let elapsed_ns = now.duration_since(self.last_sample).as_nanos().max(1) as f64;
        self.last_sample = now;
        let active = server.lifecycle.active_workers.load(Ordering::Relaxed);
        let now_ns = now.duration_since(server.lifecycle.started).as_nanos() as u64;
        let mut busy_share = 0.0;
        for (index, last) in self.last_busy_ns.iter_mut().enumerate() {
            // Workers joined the keyspace first, so a worker's seat is its index.
            let finished_ns = server.stats.metrics.thread_sum(index, Counter::BusyNs);
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
            .map(|worker| worker.executed.load(Ordering::Relaxed))
            .sum();
        let rate = executed.wrapping_sub(self.last_executed) as f64 / elapsed_ns;
        self.last_executed = executed;
        if server.config.boolean(id::IO_THREADS_ALWAYS_ACTIVE) {
            // A trial under way would end with a count that no longer fits.
            self.decider.phase = Phase::Steady;
            if active < server.workers.len() {
                change(server, server.workers.len());
            }
            return;
        }
        // A long sleep of the coordinator is no window.
        if elapsed_ns > 10.0 * WINDOW.as_nanos() as f64 {
            return;
        }
        let seen = WindowSample {
            active,
            workers: server.workers.len(),
            connections: server.clients.connections.load(Ordering::Relaxed),
            busy_share,
            rate,
        };
        if let Some(active) = self.decider.observe_window(seen, now) {
            change(server, active);
        }
    }
}

/// Returns how long a worker has been busy since the server started, the turn under way included, in nanoseconds. A
/// batch of slow commands may last longer than a window; without its part the worker would look idle in between.
fn busy_ns(link: &WorkerLink, finished_turns_ns: u64, now_ns: u64) -> u64 {
    match link.turn_began_ns.load(Ordering::Relaxed) {
        0 => finished_turns_ns,
        began_ns => finished_turns_ns + now_ns.saturating_sub(began_ns),
    }
}

/// Sets the number of active workers to `active`, and distributes the connections over them.
fn change(server: &Server, active: usize) {
    let before = server.lifecycle.active_workers.swap(active, Ordering::Relaxed);
    server.lifecycle.tunings.fetch_add(1, Ordering::Relaxed);
    let total = server.clients.connections.load(Ordering::Relaxed);
    if active > before {
        let keep = total.div_ceil(active);
        for worker in &server.workers[..before] {
            worker.send(Message::Shed {
                to: before..active,
                keep,
            });
        }
    } else {
        for worker in &server.workers[active..before] {
            worker.send(Message::Shed { to: 0..active, keep: 0 });
        }
    }
}

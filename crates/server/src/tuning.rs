//! Self-tuning: how many of the workers take part.
//!
//! Every [`WINDOW`] the coordinator looks at the busy share of the active workers and at the requests
//! they executed. Too busy for a while → one more worker takes part and gets its share of the
//! connections. That is a trial: if after it the server does not execute clearly more requests, the
//! machine has no core to spare, and the worker is given up again; the next trial waits twice as long.
//! Idle enough that one fewer would do → the last worker's connections go to the others.
//!
//! What was right once need not stay so, and a trial may have been misled by a load that grew by itself. So
//! now and then one worker fewer is tried as well: if throughput holds, the worker was not needed.
//!
//! ```text
//!            busy ≥ 85% for 20 windows               gain ≥ 8%
//!   Steady ───────────────────────────▶ Trial ───────────────────▶ Steady (backoff reset)
//!     ▲  │ busy of n−1 would be ≤ 50%     │ no gain
//!     │  └──────▶ one worker fewer        └──────▶ one worker fewer, backoff doubled ──┐
//!     └────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::observe::metrics::Counter;
use crate::state::{Message, Server};

/// How often the workers are looked at.
pub const WINDOW: Duration = Duration::from_millis(10);
/// Busy share above which another worker is tried.
const BUSY: f64 = 0.85;
/// Busy share that n − 1 workers may reach for the n-th to be given up.
const IDLE: f64 = 0.5;
/// Windows in a row before anything happens.
const PATIENCE: u32 = 5;
/// Windows left out after a change, until connections have moved.
const SETTLE: u32 = 5;
/// Windows of a trial.
const TRIAL: u32 = 20;
/// A trial must raise throughput by this factor.
const GAIN: f64 = 1.08;
/// One worker fewer must keep this part of the throughput.
const KEEP: f64 = 0.95;
/// First and longest pause between trials that brought nothing.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

#[derive(Clone, Copy)]
struct Trial {
    windows: u32,
    executed_before: f64,
    /// Whether a worker was taken away, not added.
    fewer: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    Steady,
    Trial(Trial),
}

/// The tuner's memory.
pub struct Tuner {
    phase: Phase,
    busy_windows: u32,
    idle_windows: u32,
    settle: u32,
    backoff: Duration,
    no_trial_before: Instant,
    fewer_backoff: Duration,
    no_fewer_before: Instant,
    last_busy_ns: Vec<u64>,
    last_executed: u64,
    last_sample: Instant,
    rates: [f64; TRIAL as usize],
    rate_count: usize,
}

impl Tuner {
    /// A tuner that has seen nothing.
    pub fn new(server: &Server) -> Self {
        Tuner {
            phase: Phase::Steady,
            busy_windows: 0,
            idle_windows: 0,
            settle: 0,
            backoff: BACKOFF.0,
            no_trial_before: Instant::now(),
            fewer_backoff: BACKOFF.0,
            no_fewer_before: Instant::now(),
            last_busy_ns: vec![0; server.workers.len()],
            last_executed: 0,
            last_sample: Instant::now(),
            rates: [0.0; TRIAL as usize],
            rate_count: 0,
        }
    }

    /// Whether there is anything to tune: with one worker, or nobody connected, the coordinator sleeps.
    pub fn is_active(&self, server: &Server) -> bool {
        server.workers.len() > 1 && server.connections.load(Ordering::Relaxed) > 0
    }

    /// Looks at one window and acts.
    pub fn sample(&mut self, server: &Server, now: Instant) {
        let elapsed_ns = now.duration_since(self.last_sample).as_nanos().max(1) as f64;
        self.last_sample = now;
        let active = server.active_workers.load(Ordering::Relaxed);
        let mut busy_share = 0.0;
        for (index, last) in self.last_busy_ns.iter_mut().enumerate() {
            // Workers joined the keyspace first, so a worker's seat is its index.
            let busy = server.metrics.of_thread(index, Counter::BusyNs);
            if index < active {
                busy_share += busy.saturating_sub(*last) as f64 / elapsed_ns;
            }
            *last = busy;
        }
        let executed: u64 = server
            .workers
            .iter()
            .map(|worker| worker.executed.load(Ordering::Relaxed))
            .sum();
        let rate = executed.wrapping_sub(self.last_executed) as f64 / elapsed_ns;
        self.last_executed = executed;
        // A long sleep of the coordinator is no window.
        if elapsed_ns > 10.0 * WINDOW.as_nanos() as f64 {
            return;
        }
        if self.settle > 0 {
            self.settle -= 1;
            return;
        }
        self.rates[self.rate_count % self.rates.len()] = rate;
        self.rate_count += 1;
        match self.phase {
            Phase::Steady => self.steady(server, active, busy_share, now),
            Phase::Trial(trial) => self.trial(server, active, trial, now),
        }
    }

    fn steady(&mut self, server: &Server, active: usize, busy_share: f64, now: Instant) {
        let per_worker = busy_share / active as f64;
        let connections = server.connections.load(Ordering::Relaxed);
        let may_grow = active < server.workers.len() && active < connections && now >= self.no_trial_before;
        self.busy_windows = if per_worker >= BUSY && may_grow {
            self.busy_windows + 1
        } else {
            0
        };
        let fewer = busy_share / (active.max(2) - 1) as f64;
        self.idle_windows = if active > 1 && fewer <= IDLE {
            self.idle_windows + 1
        } else {
            0
        };
        // As many windows as a trial has, so that the rate before it is not that of a load that just began.
        if self.busy_windows >= TRIAL {
            self.begin_trial(server, active + 1, false);
        } else if self.idle_windows >= 10 * PATIENCE {
            self.change(server, active - 1);
        } else if active > 1 && now >= self.no_fewer_before && self.rate_count >= self.rates.len() {
            self.begin_trial(server, active - 1, true);
        }
    }

    fn begin_trial(&mut self, server: &Server, active: usize, fewer: bool) {
        let executed_before = self.mean_rate(TRIAL as usize);
        self.phase = Phase::Trial(Trial {
            windows: 0,
            executed_before,
            fewer,
        });
        self.change(server, active);
    }

    fn trial(&mut self, server: &Server, active: usize, trial: Trial, now: Instant) {
        if trial.windows + 1 < TRIAL {
            self.phase = Phase::Trial(Trial {
                windows: trial.windows + 1,
                ..trial
            });
            return;
        }
        self.phase = Phase::Steady;
        let executed = self.mean_rate(TRIAL as usize);
        if trial.fewer {
            if executed >= trial.executed_before * KEEP {
                self.fewer_backoff = BACKOFF.0;
                self.no_trial_before = now + self.backoff;
                self.backoff = (self.backoff * 2).min(BACKOFF.1);
            } else {
                self.fewer_backoff = (self.fewer_backoff * 2).min(BACKOFF.1);
                self.change(server, active + 1);
            }
            self.no_fewer_before = now + self.fewer_backoff;
        } else if executed >= trial.executed_before * GAIN {
            self.backoff = BACKOFF.0;
            self.no_fewer_before = now + self.fewer_backoff;
        } else {
            self.no_trial_before = now + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF.1);
            self.change(server, active - 1);
        }
    }

    fn mean_rate(&self, windows: usize) -> f64 {
        let seen = self.rate_count.min(self.rates.len()).min(windows).max(1);
        let last = (0..seen).map(|back| self.rates[(self.rate_count - 1 - back) % self.rates.len()]);
        last.sum::<f64>() / seen as f64
    }

    /// Lets `active` workers take part and spreads the connections over them.
    fn change(&mut self, server: &Server, active: usize) {
        let before = server.active_workers.swap(active, Ordering::Relaxed);
        server.tunings.fetch_add(1, Ordering::Relaxed);
        self.busy_windows = 0;
        self.idle_windows = 0;
        self.settle = SETTLE;
        self.rate_count = 0;
        let total = server.connections.load(Ordering::Relaxed);
        let share = total.div_ceil(active);
        if active > before {
            for worker in &server.workers[..before] {
                worker.send(Message::Shed {
                    to: active - 1,
                    keep: share,
                });
            }
        } else {
            for (index, worker) in server.workers[active..before].iter().enumerate() {
                worker.send(Message::Shed {
                    to: index % active,
                    keep: 0,
                });
            }
        }
    }
}

//! Tests of decisions from windows of simulated loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A machine whose workers are always busy, and on which `useful` workers contribute to the throughput.
struct SimulatedMachine {
    policy: TuningPolicy,
    active: usize,
    now: Instant,
    idle_ms: Arc<AtomicU64>,
    idle_cores: f64,
    changes: Vec<usize>,
}

impl SimulatedMachine {
    fn new(idle_cores: f64) -> Self {
        let idle_ms = Arc::new(AtomicU64::new(0));
        let clock = idle_ms.clone();
        let now = Instant::now();
        SimulatedMachine {
            policy: TuningPolicy::new(Box::new(move || Some(clock.load(Ordering::Relaxed))), now),
            active: 1,
            now,
            idle_ms,
            idle_cores,
            changes: Vec::new(),
        }
    }

    /// Runs windows. `load` returns the busy share and the rate for a number of active workers.
    fn run_windows(&mut self, windows: u32, load: impl Fn(usize) -> (f64, f64)) {
        for _ in 0..windows {
            self.now += WINDOW;
            let idle_ms = (self.idle_cores * WINDOW.as_millis() as f64) as u64;
            self.idle_ms.fetch_add(idle_ms, Ordering::Relaxed);
            let (busy_share, rate) = load(self.active);
            let seen = WindowSample {
                active: self.active,
                workers: 8,
                connections: 50,
                busy_share,
                rate,
            };
            if let Some(active) = self.policy.observe_window(seen, self.now) {
                self.active = active;
                self.changes.push(active);
            }
        }
    }
}

#[test]
fn workers_are_added_while_throughput_grows() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(200, |active| (active as f64, active.min(3) as f64));
    assert_eq!(machine.changes, [2, 3, 4, 3], "the fourth brought nothing");
}

#[test]
fn without_an_idle_core_no_trial_starts() {
    let mut machine = SimulatedMachine::new(0.2);
    machine.run_windows(2000, |active| (active as f64, active as f64));
    assert_eq!(machine.changes, []);
    machine.idle_cores = 0.8;
    machine.run_windows(60, |active| (active as f64, active as f64));
    assert_eq!(machine.changes[0], 2, "when a core is free, it is used");
}

#[test]
fn a_harmful_trial_ends_early() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(TRIAL_WINDOWS, |_| (1.0, 1.0));
    assert_eq!(machine.active, 2);
    machine.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + EARLY_LOSS.0, |active| {
        (active as f64, 1.0 / active as f64)
    });
    assert_eq!(machine.active, 1);
}

#[test]
fn trials_without_gain_become_less_frequent() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(6000, |active| (active as f64, 1.0));
    let trials = machine.changes.len() / 2;
    assert!((2..=6).contains(&trials), "{trials} trials in a minute");
    assert_eq!(machine.active, 1);
}

#[test]
fn idle_workers_are_deactivated() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(TRIAL_WINDOWS + WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS, |active| {
        (active as f64, active as f64)
    });
    assert!(machine.active >= 2);
    machine.run_windows(400, |_| (0.1, 0.1));
    assert_eq!(machine.active, 1);
    assert_eq!(machine.changes.last(), Some(&1));
}

#[test]
fn a_worker_added_because_of_a_growing_load_is_removed_again() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(TRIAL_WINDOWS, |_| (1.0, 1.0));
    // The load grew by itself during the trial.
    machine.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS, |active| {
        (active as f64, 2.0)
    });
    assert_eq!(machine.active, 2, "the trial seemed to succeed");
    machine.run_windows(400, |active| (active as f64, 2.0));
    assert_eq!(machine.active, 1);
}

#[test]
fn a_batch_longer_than_its_window_counts_as_busy() {
    let link = crate::state::WorkerLink::new();
    assert_eq!(
        busy_ns(&link, 500, 1_000),
        500,
        "between turns only finished ones count"
    );
    link.turn_started_ns.store(1_000, Ordering::Relaxed);
    assert_eq!(busy_ns(&link, 500, 16_000), 15_500);
    link.turn_started_ns.store(0, Ordering::Relaxed);
    assert_eq!(
        busy_ns(&link, 15_700, 16_300),
        15_700,
        "the same turn once it has ended"
    );
}

/// The parameter that keeps all workers active may be set while a trial with fewer workers runs.
#[test]
fn a_trial_never_ends_with_more_workers_than_exist() {
    let mut machine = SimulatedMachine::new(8.0);
    machine.active = 8;
    machine.run_windows(100, |active| (active as f64 * 0.5, active as f64));
    let at_trial = machine.changes.iter().position(|active| *active == 7);
    assert_eq!(at_trial, Some(0), "a trial with fewer workers");
    let mut machine = SimulatedMachine::new(8.0);
    machine.active = 8;
    while machine.changes.is_empty() {
        machine.run_windows(1, |active| (active as f64 * 0.5, active as f64));
    }
    machine.active = 8;
    machine.run_windows(20, |_| (4.0, 1.0));
    assert!(
        machine.changes.iter().all(|active| *active <= 8),
        "{:?}",
        machine.changes
    );
}

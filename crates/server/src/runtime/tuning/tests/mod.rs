//! Tests of decisions from windows of simulated loads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

mod tuner;

/// A machine on which the busy share and the throughput depend on the number of active workers.
struct SimulatedMachine {
    policy: TuningPolicy,
    active: usize,
    now: Instant,
    idle_ms: Arc<AtomicU64>,
    idle_cores: f64,
    /// If this is set, as many cores are idle as have no worker.
    cores: Option<usize>,
    workers: usize,
    connections: usize,
    run_delay: f64,
    /// The length of the windows, as a multiple of [`WINDOW`].
    length: f64,
    /// By how much the measured rate of a window differs from the real one at most, in millionths.
    noise_ppm: u64,
    random: u64,
    changes: Vec<usize>,
    /// The requests that were executed, and the sum of the active workers of all windows.
    executed: f64,
    worker_windows: usize,
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
            cores: None,
            workers: 8,
            connections: 50,
            run_delay: 0.0,
            length: 1.0,
            noise_ppm: 0,
            random: 1,
            changes: Vec::new(),
            executed: 0.0,
            worker_windows: 0,
        }
    }

    /// Creates a machine with a worker for each core, and with many connections from other machines.
    fn with_cores(cores: usize) -> Self {
        SimulatedMachine {
            cores: Some(cores),
            workers: cores,
            connections: 1000,
            ..SimulatedMachine::new(0.0)
        }
    }

    /// Creates such a machine whose measurements differ from the real rates by up to 3%. Without a seed, they are
    /// exact.
    fn with_noise(cores: usize, seed: Option<u64>) -> Self {
        SimulatedMachine {
            noise_ppm: seed.map_or(0, |_| 30_000),
            random: seed.unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..SimulatedMachine::with_cores(cores)
        }
    }

    /// Runs windows. Returns the means of the rate and of the number of active workers, and the number of changes.
    fn measure_windows(&mut self, windows: u32, load: impl Fn(usize) -> (f64, f64)) -> (f64, f64, usize) {
        let (executed, worker_windows, changes) = (self.executed, self.worker_windows, self.changes.len());
        self.run_windows(windows, load);
        let rate = (self.executed - executed) / f64::from(windows);
        let active = (self.worker_windows - worker_windows) as f64 / f64::from(windows);
        (rate, active, self.changes.len() - changes)
    }

    /// Runs windows. `load` returns the busy share and the rate for a number of active workers.
    fn run_windows(&mut self, windows: u32, load: impl Fn(usize) -> (f64, f64)) {
        for _ in 0..windows {
            self.now += WINDOW.mul_f64(self.length);
            let unused = |cores: usize| (cores - self.active) as f64;
            let idle_cores = self.cores.map_or(self.idle_cores, unused);
            let idle_ms = (idle_cores * WINDOW.as_millis() as f64 * self.length) as u64;
            self.idle_ms.fetch_add(idle_ms, Ordering::Relaxed);
            let (busy_share, rate) = load(self.active);
            self.executed += rate * self.length;
            self.worker_windows += self.active;
            let noise_ppm = draw(&mut self.random, 2 * self.noise_ppm + 1) as f64 - self.noise_ppm as f64;
            let seen = WindowSample {
                length: self.length,
                active: self.active,
                workers: self.workers,
                connections: self.connections,
                busy_share,
                run_delay: self.run_delay,
                rate: rate * (1.0 + noise_ppm / 1e6),
            };
            if let Some(active) = self.policy.observe_window(seen, self.now) {
                self.active = active;
                self.changes.push(active);
            }
        }
    }
}

/// Returns a random number below `bound` (xorshift64).
fn draw(random: &mut u64, bound: u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random % bound
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

#[test]
fn workers_that_wait_for_cpus_get_no_help() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_delay = 0.5;
    machine.run_windows(2000, |active| (active as f64, active as f64));
    assert_eq!(machine.changes, []);
}

/// The worker waited for 8% of its time, and does not any more.
#[test]
fn the_end_of_another_program_is_no_gain() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_delay = 0.08;
    machine.run_windows(TRIAL_WINDOWS, |_| (1.0, 0.92));
    assert_eq!(machine.active, 2);
    machine.run_delay = 0.0;
    machine.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS, |_| (2.0, 1.0));
    assert_eq!(machine.active, 1);
}

/// Two workers use up the quota of the process together, and then neither they nor the coordinator run for 50 ms.
#[test]
fn a_window_counts_by_its_length() {
    for fast_windows in 0..6 {
        let mut machine = SimulatedMachine::new(1.0);
        machine.run_windows(TRIAL_WINDOWS, |_| (1.0, 1.0));
        assert_eq!(machine.active, 2);
        for window in fast_windows..fast_windows + WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS {
            let is_throttled = window % 6 == 5;
            machine.length = if is_throttled { 5.0 } else { 1.0 };
            let load = |_: usize| (2.0, if is_throttled { 0.0 } else { 2.0 });
            if machine.active == 2 {
                machine.run_windows(1, load);
            }
        }
        assert_eq!(machine.changes, [2, 1], "{fast_windows}");
    }
}

/// Another worker became active because all others were stalled.
#[test]
fn what_was_observed_with_another_number_of_workers_is_forgotten() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(TRIAL_WINDOWS - 1, scaling);
    machine.active = 2;
    machine.run_windows(1, scaling);
    assert!(machine.policy.windows.is_empty());
    machine.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS - 1, scaling);
    assert_eq!(machine.changes, []);
    machine.run_windows(1, scaling);
    assert_eq!(machine.changes, [3]);
}

#[test]
fn a_number_that_changes_during_a_trial_ends_it() {
    let mut machine = SimulatedMachine::new(1.0);
    machine.run_windows(TRIAL_WINDOWS, scaling);
    assert_eq!(machine.active, 2);
    // Windows are still ignored.
    machine.run_windows(1, scaling);
    machine.active = 3;
    machine.run_windows(1, scaling);
    assert!(matches!(machine.policy.phase, TuningPhase::Steady));
    assert!(
        machine.policy.next_removal == machine.now,
        "no trial has shown that they are worth it"
    );
}

/// The process may use fewer CPUs than before.
#[test]
fn a_trial_with_fewer_workers_has_no_more_than_may_be_active() {
    let mut machine = SimulatedMachine::new(1.0);
    (machine.active, machine.workers) = (8, 2);
    machine.run_windows(TRIAL_WINDOWS, scaling);
    assert_eq!(machine.changes, [2]);
    let TuningPhase::Trial(trial) = machine.policy.phase else {
        panic!("no trial is under way");
    };
    assert_eq!((trial.step, trial.removes_workers), (6, true));
    assert!(trial.min_rate == trial.reference_rate * min_kept(8, 2));
    machine.run_windows(100, scaling);
    assert_eq!(machine.active, 2);
}

/// A load of which each worker executes as much as one alone.
fn scaling(active: usize) -> (f64, f64) {
    (active as f64, active as f64)
}

/// Exact measurements, and several sequences of noisy ones.
fn seeds() -> impl Iterator<Item = Option<u64>> {
    std::iter::once(None).chain((1..=5).map(Some))
}

#[test]
fn all_workers_of_a_large_machine_are_active_after_about_two_seconds() {
    for (cores, windows) in [(16, 162), (32, 188), (64, 214)] {
        let mut machine = SimulatedMachine::with_cores(cores);
        machine.run_windows(windows - 1, scaling);
        assert!(machine.active < cores);
        machine.run_windows(1, scaling);
        let path = [2, 3, 4, 8, 16, 32, 64].into_iter().filter(|active| *active <= cores);
        assert_eq!(machine.changes, path.collect::<Vec<_>>());
    }
}

/// One worker more than 13 can bring at most 7.7%.
#[test]
fn the_number_of_cores_need_not_be_a_power_of_two() {
    for cores in 2..64 {
        let mut machine = SimulatedMachine::with_cores(cores);
        machine.run_windows(230, scaling);
        assert_eq!(machine.active, cores, "{:?}", machine.changes);
    }
}

/// From 20 workers on, one fewer costs at most 5% of the throughput.
#[test]
fn a_load_that_uses_all_workers_keeps_them() {
    for cores in [16, 32, 64] {
        for seed in seeds() {
            let mut machine = SimulatedMachine::with_noise(cores, seed);
            machine.run_windows(300, scaling);
            assert_eq!(machine.active, cores);
            let (rate, active, changes) = machine.measure_windows(18_000, scaling);
            assert!(active > cores as f64 * 0.999, "{cores}, {seed:?}: {active}");
            assert!(rate > cores as f64 * 0.999, "{cores}, {seed:?}: {rate}");
            assert!(changes <= 16, "{cores}, {seed:?}: {changes} changes in three minutes");
            assert_eq!(machine.active, cores);
        }
    }
}

/// The network or the clients limit the throughput to what `useful` workers execute. If further ones are needless, they
/// may be idle for a part of the time or, if they contend for something, always be busy.
#[test]
fn a_load_that_saturates_gets_no_more_workers_than_it_uses() {
    let cases = [(16, 10), (32, 10), (64, 10), (32, 24), (64, 24)];
    for ((cores, useful), always_busy) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        for seed in seeds() {
            let load = |active: usize| {
                let busy = if always_busy { active } else { active.min(useful) };
                (busy as f64, active.min(useful) as f64)
            };
            let mut machine = SimulatedMachine::with_noise(cores, seed);
            machine.run_windows(1000, load);
            let (rate, active, changes) = machine.measure_windows(6000, load);
            let case = format!("{cores}, {useful}, {always_busy}, {seed:?}");
            assert_eq!(machine.active, useful, "{case}");
            assert!(active < useful as f64 * 1.02, "{case}: {active}");
            assert!(rate > useful as f64 * 0.98, "{case}: {rate}");
            assert!(changes <= 20, "{case}: {changes} changes in a minute");
        }
    }
}

/// The second hardware thread of a core executes less than the first one.
#[test]
fn all_hardware_threads_are_used_if_they_execute_more() {
    let load = |active: usize| (active as f64, active as f64 - 0.7 * active.saturating_sub(32) as f64);
    for seed in seeds() {
        let mut machine = SimulatedMachine::with_noise(64, seed);
        machine.run_windows(6000, load);
        let (_, active, _) = machine.measure_windows(6000, load);
        assert!(active > 63.0, "{seed:?}: {active}");
    }
}

#[test]
fn no_more_workers_are_active_than_there_are_connections() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.connections = 5;
    machine.run_windows(200, scaling);
    assert_eq!(machine.changes, [2, 3, 4, 5]);
}

/// The clients are on the same machine, and need as much CPU time as the workers.
#[test]
fn the_cores_of_clients_on_the_same_machine_are_left_to_them() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.cores = None;
    for _ in 0..1000 {
        machine.idle_cores = 64.0 - 2.0 * machine.active.min(32) as f64;
        machine.run_windows(1, |active| (active as f64, active.min(32) as f64));
        assert!(machine.active <= 32, "{:?}", machine.changes);
    }
    assert_eq!(machine.active, 32);
}

/// All workers were worth it for three minutes, so the pause between trials with fewer workers is a minute.
#[test]
fn many_workers_that_a_new_load_makes_harmful_are_removed_within_two_seconds() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.run_windows(18_000, scaling);
    assert_eq!((machine.active, machine.policy.removal_backoff), (64, BACKOFF.1));
    let load = |active: usize| (active as f64, (active as f64).min(1024.0 / active as f64));
    machine.run_windows(100, load);
    assert!(machine.active < 64, "doubt");
    machine.run_windows(100, load);
    let (rate, active, changes) = machine.measure_windows(6000, load);
    assert!((30.0..34.0).contains(&active), "{active}: {:?}", machine.changes);
    assert!(rate > 30.0, "{rate}");
    assert!(changes <= 20, "{changes} changes in a minute");
}

/// The trial with 32 workers more was misled: the load became harmful when it had ended.
#[test]
fn in_doubt_the_number_that_was_faster_is_tried() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.run_windows(240, scaling);
    assert_eq!(machine.changes.last(), Some(&64));
    machine.run_windows(100, |active| (active as f64, if active <= 32 { 32.0 } else { 20.0 }));
    let at_64 = machine.changes.iter().position(|active| *active == 64);
    assert_eq!(at_64.and_then(|index| machine.changes.get(index + 1)), Some(&32));
}

/// Another program uses eight cores, and never ends.
#[test]
fn trials_of_many_workers_because_of_doubt_cost_little() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.run_windows(18_000, scaling);
    machine.run_delay = 8.0;
    let (rate, _, changes) = machine.measure_windows(6000, scaling);
    assert!(rate > 64.0 * 0.99, "{rate}");
    assert!((4..=20).contains(&changes), "{changes} changes in a minute");
    assert_eq!(machine.active, 64);
}

/// No trial ran meanwhile that would delay the first one under the next load.
#[test]
fn many_idle_workers_are_deactivated_in_steps_and_return_with_the_load() {
    let mut machine = SimulatedMachine::with_cores(64);
    machine.run_windows(300, scaling);
    let before = machine.changes.len();
    machine.run_windows(800, |_| (0.1, 0.1));
    let steps = [48, 36, 27, 21, 16, 12, 9, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(machine.changes[before..], steps);
    machine.run_windows(214, scaling);
    assert_eq!(machine.active, 64);
}

/// The CPU time that a request costs, with one worker and with two. One worker executes one request per unit of time
/// and core.
struct Load {
    server_cost: [f64; 2],
    /// Zero for clients on other machines.
    client_cost: [f64; 2],
}

/// The figures of docs/BENCHMARKS.md for GET at pipeline 1, "More threads than cores": with two workers the clients on
/// the same machine and the server find fewer requests at a time. The throughput is 0.64 of that with one worker, and
/// the CPU time of the server per request 1.34 times as long.
const NEARBY_CLIENTS: Load = Load {
    server_cost: [1.0, 1.34],
    client_cost: [1.0, 1.78],
};
const REMOTE_CLIENTS: Load = Load {
    server_cost: [1.0, 1.05],
    client_cost: [0.0, 0.0],
};

/// What happens in one window.
struct Outcome {
    busy_share: f64,
    run_delay: f64,
    rate: f64,
    idle_cores: f64,
}

impl Load {
    /// Returns what happens on two cores while other programs use `foreign` of each core. A single worker is on the
    /// first core, and clients of this machine are on the second one. Two workers and such clients are on both.
    fn serve(&self, active: usize, foreign: [f64; 2]) -> Outcome {
        let (server_cost, client_cost) = (self.server_cost[active - 1], self.client_cost[active - 1]);
        // The kernel divides a core fairly.
        let share = foreign.map(|used| (1.0 - used).max(0.5));
        let rate = match (active, client_cost > 0.0) {
            (1, false) => share[0] / server_cost,
            (1, true) => (share[0] / server_cost).min(share[1] / client_cost),
            (_, false) => (share[0] + share[1]) / server_cost,
            (_, true) => (2.0 - foreign[0] - foreign[1]) / (server_cost + client_cost),
        };
        let used = rate * server_cost;
        let busy_share = match active {
            1 => (used / share[0]).min(1.0),
            _ => 1.8,
        };
        let idle_cores = match active {
            1 => (1.0 - foreign[0] - used).max(0.0) + (1.0 - foreign[1] - rate * client_cost).max(0.0),
            _ => 0.0,
        };
        Outcome {
            busy_share,
            run_delay: (busy_share - used).max(0.0),
            rate,
            idle_cores,
        }
    }
}

/// What other programs use of the two cores, from nothing to one and a half cores.
const FOREIGN_LOADS: [[f64; 2]; 9] = [
    [0.0, 0.0],
    [0.0, 0.0],
    [1.0, 0.0],
    [1.0, 0.5],
    [0.5, 0.0],
    [0.5, 0.5],
    [0.5, 1.0],
    [0.0, 1.0],
    [0.0, 0.5],
];

/// A machine of two cores, with other programs.
struct NoisyMachine {
    policy: TuningPolicy,
    load: Load,
    active: usize,
    now: Instant,
    idle_ms: Arc<AtomicU64>,
    exact_idle_ms: f64,
    /// The requests that were executed, and that one worker or two would have executed.
    executed: f64,
    executed_by: [f64; 2],
    changes: Vec<usize>,
    random: u64,
    foreign: [f64; 2],
    foreign_until: Instant,
}

impl NoisyMachine {
    fn new(load: Load, seed: u64) -> Self {
        let idle_ms = Arc::new(AtomicU64::new(0));
        let clock = idle_ms.clone();
        let now = Instant::now();
        NoisyMachine {
            policy: TuningPolicy::new(Box::new(move || Some(clock.load(Ordering::Relaxed))), now),
            load,
            active: 1,
            now,
            idle_ms,
            exact_idle_ms: 0.0,
            executed: 0.0,
            executed_by: [0.0; 2],
            changes: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            foreign: [0.0; 2],
            foreign_until: now,
        }
    }

    fn run_windows(&mut self, windows: u32, foreign: [f64; 2]) {
        for _ in 0..windows {
            self.run_window(foreign);
        }
    }

    /// Runs windows during which other programs begin and end at random, for 50 to 1040 ms each.
    fn run_noisy_windows(&mut self, windows: u32) {
        for _ in 0..windows {
            if self.now >= self.foreign_until {
                self.foreign = FOREIGN_LOADS[self.draw(FOREIGN_LOADS.len() as u64) as usize];
                self.foreign_until = self.now + Duration::from_millis(50 + 10 * self.draw(100));
            }
            self.run_window(self.foreign);
        }
    }

    fn run_window(&mut self, foreign: [f64; 2]) {
        self.now += WINDOW;
        let outcome = self.load.serve(self.active, foreign);
        self.exact_idle_ms += outcome.idle_cores * WINDOW.as_millis() as f64;
        self.idle_ms.store(self.exact_idle_ms as u64, Ordering::Relaxed);
        self.executed += outcome.rate;
        for (index, executed) in self.executed_by.iter_mut().enumerate() {
            *executed += self.load.serve(index + 1, foreign).rate;
        }
        let seen = WindowSample {
            length: 1.0,
            active: self.active,
            workers: 2,
            connections: 50,
            busy_share: outcome.busy_share,
            run_delay: outcome.run_delay,
            rate: outcome.rate,
        };
        if let Some(active) = self.policy.observe_window(seen, self.now) {
            self.active = active;
            self.changes.push(active);
        }
    }

    /// Returns a random number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        draw(&mut self.random, bound)
    }
}

/// A round is two seconds, as in the benchmark. With decisions by the wall clock, some rounds are at 0.65.
#[test]
fn beside_other_programs_no_round_is_slower_than_with_one_worker() {
    for seed in 1..=20 {
        let mut machine = NoisyMachine::new(NEARBY_CLIENTS, seed);
        for round in 0..30 {
            let (executed, by_one) = (machine.executed, machine.executed_by[0]);
            machine.run_noisy_windows(200);
            let ratio = (machine.executed - executed) / (machine.executed_by[0] - by_one);
            assert!(ratio > 0.95, "seed {seed}, round {round}: {ratio}");
        }
    }
}

#[test]
fn two_workers_that_are_worth_it_stay_faster_beside_other_programs() {
    for seed in 1..=20 {
        let mut machine = NoisyMachine::new(REMOTE_CLIENTS, seed);
        machine.run_noisy_windows(6000);
        let ratio = machine.executed / machine.executed_by[0];
        assert!(ratio > 1.5, "seed {seed}: {ratio}");
    }
}

#[test]
fn two_free_cores_are_used_after_200_ms() {
    let mut machine = NoisyMachine::new(REMOTE_CLIENTS, 1);
    machine.run_windows(20, [0.0, 0.0]);
    assert_eq!(machine.changes, [2]);
    machine.run_windows(200, [0.0, 0.0]);
    assert_eq!(machine.changes, [2], "it has stayed");
}

#[test]
fn two_free_cores_are_used_as_soon_as_other_programs_have_ended() {
    let mut machine = NoisyMachine::new(REMOTE_CLIENTS, 1);
    machine.run_windows(1000, [1.0, 0.5]);
    assert_eq!(machine.changes, []);
    machine.run_windows(60, [0.0, 0.0]);
    assert_eq!(machine.changes, [2]);
}

/// The second worker was worth it for three minutes, so the pause between trials with one worker is a minute.
#[test]
fn a_worker_that_a_new_load_makes_harmful_is_removed_within_a_second() {
    let mut machine = NoisyMachine::new(REMOTE_CLIENTS, 1);
    machine.run_windows(18_000, [0.0, 0.0]);
    assert_eq!((machine.active, machine.policy.removal_backoff), (2, BACKOFF.1));
    machine.load = NEARBY_CLIENTS;
    machine.run_windows(100, [0.0, 0.0]);
    assert_eq!(machine.active, 1);
}

/// With a program that never ends, two workers get more of the cores than one.
#[test]
fn trials_because_of_doubt_cost_little() {
    let mut machine = NoisyMachine::new(REMOTE_CLIENTS, 1);
    machine.run_windows(300, [0.0, 0.0]);
    assert_eq!(machine.active, 2);
    let (executed, by_two, changes) = (machine.executed, machine.executed_by[1], machine.changes.len());
    machine.run_windows(6000, [1.0, 0.5]);
    let ratio = (machine.executed - executed) / (machine.executed_by[1] - by_two);
    assert!(ratio > 0.98, "{ratio}");
    let trials = (machine.changes.len() - changes) / 2;
    assert!((2..=10).contains(&trials), "{trials} trials in a minute");
}

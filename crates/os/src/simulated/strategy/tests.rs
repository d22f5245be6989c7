//! Tests that every thread has its turns.

use super::Strategy;

/// The number of threads that can always run.
const THREADS: usize = 12;
/// The number of steps within which each of them must run. Bounds of the simulation assume it.
const STEPS: u64 = 5_000_000;

/// Returns the number of steps after which all threads have run.
fn steps_until_all_have_run(seed: u64) -> u64 {
    let mut strategy = Strategy::new(seed);
    let runnable: Vec<usize> = (0..THREADS).collect();
    let (mut steps, mut waiting) = (0, [true; THREADS]);
    while waiting.contains(&true) {
        waiting[strategy.choose(&runnable)] = false;
        steps += u64::from(strategy.next_quantum());
    }
    steps
}

#[test]
fn every_thread_that_can_run_does_so_within_the_steps_of_a_bound() {
    for seed in 0..2000 {
        let steps = steps_until_all_have_run(seed);
        assert!(steps < STEPS, "seed {seed}: {steps} steps");
    }
}

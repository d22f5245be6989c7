//! Tests of a tuner with a server none of whose threads runs.

use std::ffi::OsString;

use super::*;
use weft_config::{Config, SetPermissions, StartAction};

/// A tuner and a server. The system does not report idle cores.
struct TunedServer {
    server: Arc<Server>,
    tuner: Tuner,
    now: Instant,
    /// The largest number of active workers so far.
    most: usize,
}

impl TunedServer {
    /// Creates a server with this number of workers, one of which is active, and with 50 clients.
    fn new(workers: usize, count_cpus: fn() -> usize) -> Self {
        let count = workers.to_string();
        let arguments = ["weft-server", "--io-threads", count.as_str()].map(OsString::from);
        let config = match StartAction::parse(&arguments) {
            Ok(StartAction::RunServer(command_line)) => Config::load(&command_line).expect("the options are fine"),
            other => panic!("{other:?}"),
        };
        let server = crate::start::create_idle_server_with_workers(config, workers);
        server.clients.connections.store(50, Ordering::Relaxed);
        let mut tuner = Tuner::new(&server);
        tuner.count_cpus = count_cpus;
        tuner.policy.idle_clock = Box::new(|| None);
        let now = tuner.last_sample;
        TunedServer {
            server,
            tuner,
            now,
            most: 0,
        }
    }

    fn active(&self) -> usize {
        self.server.lifecycle.active_workers.load(Ordering::Relaxed)
    }

    /// Runs windows in which all active workers are busy, and execute `requests(active)` requests together.
    fn run_windows(&mut self, windows: u32, requests: impl Fn(usize) -> u64) {
        for _ in 0..windows {
            let active = self.active();
            self.most = self.most.max(active);
            for index in 0..active {
                let busy_ns = WINDOW.as_nanos() as u64;
                let metrics = &self.server.stats.metrics;
                metrics.add(ThreadIndex::new(index), Counter::BusyNs, busy_ns);
            }
            self.server.workers[0]
                .executed_commands
                .fetch_add(requests(active), Ordering::Relaxed);
            self.run_idle(WINDOW);
        }
    }

    /// Runs a window of this length in which nothing happens.
    fn run_idle(&mut self, length: Duration) {
        self.now += length;
        self.tuner.sample_and_apply(&self.server, self.now);
    }

    fn set_io_threads(&self, count: &str) {
        let permissions = SetPermissions {
            may_set_protected: true,
            is_loading: false,
        };
        let pairs: [(&[u8], &[u8]); 1] = [(b"io-threads", count.as_bytes())];
        let changed = self.server.config.set(&pairs, permissions, &mut |_| Ok(()));
        assert_eq!(changed.map(|changed| changed.len()), Ok(1));
    }

    /// Asserts that no trial is under way and that nothing is remembered.
    fn assert_forgotten(&self) {
        let policy = &self.tuner.policy;
        assert!(matches!(policy.phase, TuningPhase::Steady));
        assert!(policy.windows.is_empty());
        assert_eq!(policy.ignored_windows, WINDOWS_IGNORED_AFTER_CHANGE);
    }
}

/// Each worker executes as much as one alone.
fn scaling(active: usize) -> u64 {
    1000 * active as u64
}

/// What all workers execute together does not depend on their number.
fn saturated(_active: usize) -> u64 {
    1000
}

#[test]
fn no_more_workers_are_active_than_there_are_cpus() {
    let mut tuned = TunedServer::new(8, || 2);
    tuned.run_windows(300, scaling);
    assert_eq!(tuned.most, 2, "each worker is busy, and each one more executes more");
}

/// The affinity of the process may change while it runs.
#[test]
fn the_cpus_are_counted_again() {
    let mut tuned = TunedServer::new(8, || 2);
    tuned.run_windows(300, scaling);
    assert_eq!(tuned.most, 2);
    tuned.tuner.count_cpus = || 4;
    tuned.run_windows(300, scaling);
    assert_eq!(tuned.most, 4);
}

/// All of them may be usable.
#[test]
fn inactive_workers_with_clients_are_cleared_each_second() {
    let mut tuned = TunedServer::new(3, || 3);
    assert_eq!(tuned.active(), 1);
    tuned.server.workers[1].connections.store(1, Ordering::Relaxed);
    for seconds in 1..=3 {
        for _ in 0..100 {
            tuned.run_idle(WINDOW);
        }
        let mail = [1, 2].map(|index: usize| tuned.server.workers[index].mailbox.len());
        assert_eq!(mail, [seconds, 0]);
    }
}

#[test]
fn io_threads_lowered_during_a_trial_end_it() {
    let mut tuned = TunedServer::new(2, || 2);
    tuned.run_windows(TRIAL_WINDOWS, scaling);
    assert_eq!(tuned.active(), 2);
    tuned.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + 5, scaling);
    tuned.set_io_threads("1");
    tuned.run_windows(1, scaling);
    assert_eq!(tuned.active(), 1);
    tuned.assert_forgotten();
    tuned.set_io_threads("2");
    tuned.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS - 1, scaling);
    assert_eq!(
        tuned.active(),
        1,
        "the load of one worker is observed from the beginning"
    );
    tuned.run_windows(1, scaling);
    assert_eq!(tuned.active(), 2);
}

/// The coordinator did something else for long. Whether the second worker was worth it is not known.
#[test]
fn workers_of_a_trial_that_a_gap_ends_are_checked_soon() {
    let mut tuned = TunedServer::new(2, || 2);
    tuned.run_windows(TRIAL_WINDOWS, saturated);
    assert_eq!(tuned.active(), 2);
    tuned.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + 5, saturated);
    tuned.run_idle(11 * WINDOW);
    tuned.assert_forgotten();
    assert!(tuned.tuner.policy.next_removal == tuned.now);
    tuned.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS - 1, saturated);
    assert_eq!(tuned.active(), 2);
    tuned.run_windows(1, saturated);
    assert_eq!(tuned.active(), 1);
}

#[test]
fn what_was_observed_before_the_last_client_left_is_forgotten() {
    let mut tuned = TunedServer::new(2, || 2);
    tuned.run_windows(TRIAL_WINDOWS - 1, scaling);
    tuned.tuner.forget_windows(tuned.now);
    tuned.assert_forgotten();
    tuned.run_windows(WINDOWS_IGNORED_AFTER_CHANGE + TRIAL_WINDOWS - 1, scaling);
    assert_eq!(tuned.active(), 1);
    tuned.run_windows(1, scaling);
    assert_eq!(tuned.active(), 2);
}

#[test]
fn a_number_that_stays_the_same_is_no_tuning() {
    let tuned = TunedServer::new(2, || 2);
    let tunings = || tuned.server.lifecycle.tunings.load(Ordering::Relaxed);
    set_active_workers(&tuned.server, 1);
    assert_eq!(tunings(), 0);
    set_active_workers(&tuned.server, 2);
    assert_eq!(tunings(), 1);
    set_active_workers(&tuned.server, 2);
    assert_eq!(tunings(), 1);
}

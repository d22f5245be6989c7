//! Runs the scenarios of a part: starts their threads and the watchdog, and checks all invariants at the end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::run::{SharedRun, StressRun};
use super::scenarios::Scenario;
use super::watchdog::{self, WatchedServer};
use crate::server_process::ServerProcess;

/// The stack of a scenario's thread, in bytes.
const STACK_BYTES: usize = 256 * 1024;

/// The time by which a part is longer on a machine that is so busy that something has not been achieved before its end.
const MAX_EXTENSION: Duration = Duration::from_secs(60);

/// Scenarios that run at the same time.
pub struct Part {
    title: String,
    duration: Duration,
    shared: Arc<SharedRun>,
    scenarios: Vec<(&'static Scenario, Arc<StressRun>)>,
}

impl Part {
    /// A part without scenarios.
    pub fn new(title: String, seed: u64, duration: Duration) -> Part {
        Part {
            title,
            duration,
            shared: SharedRun::new(seed),
            scenarios: Vec::new(),
        }
    }

    /// Adds scenarios that use the servers at these addresses.
    pub fn add_scenarios(&mut self, scenarios: &'static [Scenario], addresses: &[SocketAddr]) {
        self.add(scenarios, addresses, false);
    }

    /// Adds scenarios that use the nodes of a cluster at these addresses.
    pub fn add_cluster_scenarios(&mut self, scenarios: &'static [Scenario], addresses: &[SocketAddr]) {
        self.add(scenarios, addresses, true);
    }

    fn add(&mut self, scenarios: &'static [Scenario], addresses: &[SocketAddr], is_cluster: bool) {
        for scenario in scenarios {
            let run = StressRun {
                addresses: addresses.to_vec(),
                is_cluster,
                shared: self.shared.clone(),
                successes: AtomicU64::new(0),
                kinds: scenario.kinds.iter().map(|kind| (*kind, AtomicU64::new(0))).collect(),
                unblockable: Mutex::default(),
            };
            self.scenarios.push((scenario, Arc::new(run)));
        }
    }

    /// Runs all scenarios, and checks their invariants.
    ///
    /// # Errors
    /// Fails if an invariant does not hold, if a scenario achieves nothing, or if a server ends or hangs.
    pub fn run(&self, servers: &mut [ServerProcess]) -> Result<(), String> {
        self.check_active_workers(servers)?;
        let is_done = AtomicBool::new(false);
        let watched: Vec<WatchedServer> = servers
            .iter()
            .map(|server| WatchedServer {
                address: server.address,
                pid: server.pid(),
            })
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if let Some(story) = watchdog::watch(&self.shared.requests, &watched, &is_done) {
                    self.shared.fail(story);
                }
            });
            let connections = self.run_threads(servers);
            // The checks at the end are watched, too.
            let checked = connections.and_then(|connections| self.check(servers, connections));
            is_done.store(true, Ordering::Relaxed);
            checked
        })?;
        self.check_active_workers(servers)
    }

    /// Runs the threads of all scenarios until the time is over. Returns the number of threads.
    fn run_threads(&self, servers: &mut [ServerProcess]) -> Result<usize, String> {
        let mut threads = Vec::new();
        // Before the load begins, under which this would take long.
        for (scenario, run) in &self.scenarios {
            (scenario.prepare)(run)?;
        }
        for (index, (scenario, run)) in self.scenarios.iter().enumerate() {
            for thread in 0..scenario.threads {
                threads.push(self.spawn(index, (scenario, run.clone()), thread)?);
            }
        }
        let deadline = Instant::now() + self.duration;
        let has_time = || Instant::now() < deadline || Instant::now() < deadline + MAX_EXTENSION && self.lacks_any();
        while self.shared.is_running() && has_time() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        let count = threads.len();
        for thread in threads {
            if thread.join().is_err() {
                self.shared.fail("the thread of a scenario panicked".to_owned());
            }
        }
        for server in servers {
            if let Some(ended) = server.exit_status() {
                self.shared
                    .fail(format!("a server ended: {ended}\n{}", server.log_tail()));
            }
        }
        Ok(count)
    }

    fn spawn(
        &self,
        index: usize,
        (scenario, run): (&'static Scenario, Arc<StressRun>),
        thread: usize,
    ) -> Result<JoinHandle<()>, String> {
        std::thread::Builder::new()
            .name(format!("{}-{thread}", scenario.name))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let rng = fastrand::Rng::with_seed(run.shared.seed ^ ((index as u64) << 32) ^ thread as u64);
                if let Err(story) = (scenario.work)(&run, thread, rng) {
                    run.shared.fail(format!("{}: {story}", scenario.name));
                }
            })
            .map_err(|error| error.to_string())
    }

    fn check(&self, servers: &[ServerProcess], connections: usize) -> Result<(), String> {
        let counts = self.counts();
        for (scenario, run) in &self.scenarios {
            if let Err(story) = (scenario.check)(run) {
                self.shared.fail(format!("{} at the end: {story}", scenario.name));
            }
        }
        for (name, _) in counts.iter().filter(|(_, count)| *count == 0) {
            self.shared.fail(format!("{name}: never achieved"));
        }
        let shown: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!(
            "{}: {connections} threads, {} commands in {:.0} s; successes: {}; longest waits: {}",
            self.title,
            self.shared.commands.load(Ordering::Relaxed),
            self.shared.begin.elapsed().as_secs_f64(),
            shown.join(", "),
            self.shared.requests.longest_waits()
        );
        let failures = self.shared.failures.lock().map_err(|error| error.to_string())?;
        if failures.is_empty() {
            return Ok(());
        }
        let logs: Vec<String> = servers.iter().map(ServerProcess::log_tail).collect();
        Err(format!(
            "{}: {}\nserver logs:\n{}",
            self.title,
            failures.join("\n"),
            logs.join("\n---\n")
        ))
    }

    /// Returns `true` if a scenario has not achieved what it is for.
    fn lacks_any(&self) -> bool {
        self.counts().iter().any(|(_, count)| *count == 0)
    }

    /// Returns the number of achievements of each scenario, and of each kind that it names.
    fn counts(&self) -> Vec<(String, u64)> {
        let mut counts = Vec::new();
        for (scenario, run) in &self.scenarios {
            counts.push((scenario.name.to_owned(), run.successes.load(Ordering::Relaxed)));
            counts.extend(run.kinds.iter().map(|(kind, count)| {
                let name = format!("{}/{kind}", scenario.name);
                (name, count.load(Ordering::Relaxed))
            }));
        }
        counts
    }

    /// Checks that all workers of all servers are active, and at the end that connections have moved.
    fn check_active_workers(&self, servers: &[ServerProcess]) -> Result<(), String> {
        let mut has_moved = false;
        for server in servers {
            let info = self.info(server.address, "weft")?;
            let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
            let field = |name: &str| fields.get(name).copied().unwrap_or_default();
            let (workers, active) = (field("weft_workers"), field("weft_workers_active"));
            if workers.is_empty() || workers != active {
                return Err(format!("{active} of {workers} workers are active"));
            }
            has_moved |= field("weft_moved_connections") != "0";
        }
        // One server by itself need not have moved any: a replica may have a single connection.
        if !self.shared.is_running() && !has_moved {
            return Err("no connection has moved".to_owned());
        }
        Ok(())
    }

    /// Returns a section of INFO.
    ///
    /// # Errors
    /// Fails if the server does not reply.
    pub fn info(&self, address: SocketAddr, section: &str) -> Result<String, String> {
        let run = StressRun {
            addresses: vec![address],
            is_cluster: false,
            shared: self.shared.clone(),
            successes: AtomicU64::new(0),
            kinds: Vec::new(),
            unblockable: Mutex::default(),
        };
        Ok(run.connect()?.call(&format!("INFO {section}"))?.text())
    }
}

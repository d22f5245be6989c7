//! The state that the threads of a run share, and the clients of its scenarios.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::{CallError, StressClient, StressReply};
use super::watchdog::RequestRegistry;

/// The time that a scenario waits for a reply, longer than the watchdog's bound: the watchdog has the better report.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The state that all scenarios of a run share.
pub struct SharedRun {
    pub(super) stop: AtomicBool,
    pub(super) commands: AtomicU64,
    pub(super) failures: Mutex<Vec<String>>,
    pub(super) seed: u64,
    pub(super) begin: Instant,
    pub(super) requests: RequestRegistry,
}

impl SharedRun {
    /// Creates the state of a run that begins now.
    pub fn new(seed: u64) -> Arc<SharedRun> {
        Arc::new(SharedRun {
            stop: AtomicBool::new(false),
            commands: AtomicU64::new(0),
            failures: Mutex::new(Vec::new()),
            seed,
            begin: Instant::now(),
            requests: RequestRegistry::default(),
        })
    }

    /// Returns `true` while the scenarios should continue.
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    /// Records a broken invariant and ends the run.
    pub fn fail(&self, story: String) {
        self.stop.store(true, Ordering::SeqCst);
        if let Ok(mut failures) = self.failures.lock() {
            failures.push(story);
        }
    }
}

/// A scenario's view of the run.
pub struct StressRun {
    /// The server, or the nodes among which the scenario chooses.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) shared: Arc<SharedRun>,
    /// The number of times that the scenario has achieved what it is for.
    pub(super) successes: AtomicU64,
    /// The number of achievements of each kind that the scenario names.
    pub(super) kinds: Vec<(&'static str, AtomicU64)>,
    /// The ids of clients that the scenario's threads may unblock.
    pub(super) unblockable: Mutex<Vec<u64>>,
}

impl StressRun {
    /// Returns `true` while the scenario should continue.
    pub fn is_running(&self) -> bool {
        self.shared.is_running()
    }

    /// Returns the time when the run began.
    pub fn begin(&self) -> Instant {
        self.shared.begin
    }

    /// Opens a connection. A scenario opens a new one when CLIENT KILL has closed its connection.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect(&self) -> Result<StressClient, String> {
        self.connect_to(0)
    }

    /// Opens a connection to one of the servers.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect_to(&self, server: usize) -> Result<StressClient, String> {
        let address = self.addresses.get(server).ok_or("there is no such server")?;
        StressClient::connect(*address, HANG_TIMEOUT, &self.shared.requests)
    }

    /// Opens a connection that the scenario `hostile` does not kill, because of its name.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect_lasting(&self) -> Result<StressClient, CallError> {
        loop {
            let mut client = self.connect().map_err(CallError::Protocol)?;
            match client.call("CLIENT SETNAME lasting") {
                // It was killed before it had its name.
                Err(CallError::Closed) => {}
                named => return named.map(|_| client),
            }
        }
    }

    /// Adds to the number of commands in the report.
    pub fn count_commands(&self, commands: u64) {
        self.shared.commands.fetch_add(commands, Ordering::Relaxed);
    }

    /// Counts one achievement of the scenario. A scenario without any fails.
    pub fn succeed(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one achievement of a kind. A scenario that names a kind and has no such achievement fails.
    ///
    /// # Panics
    /// Panics if the scenario does not name the kind.
    pub fn succeed_in(&self, kind: &str) {
        let count = self.kinds.iter().find(|(name, _)| *name == kind);
        let Some((_, count)) = count else {
            panic!("the scenario does not require '{kind}'");
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.succeed();
    }

    /// Returns the number of achievements of a kind.
    pub fn achieved(&self, kind: &str) -> u64 {
        let count = self.kinds.iter().find(|(name, _)| *name == kind);
        count.map_or(0, |(_, count)| count.load(Ordering::Relaxed))
    }
}

/// A connection that reconnects after CLIENT KILL has closed it.
pub struct ReconnectingClient<'a> {
    pub(super) run: &'a StressRun,
    client: StressClient,
    db: usize,
}

impl<'a> ReconnectingClient<'a> {
    pub fn new(run: &'a StressRun, db: usize) -> Result<Self, String> {
        let client = Self::open(run, db)?;
        Ok(ReconnectingClient { run, client, db })
    }

    fn open(run: &StressRun, db: usize) -> Result<StressClient, String> {
        for _ in 0..20 {
            let mut client = run.connect()?;
            match client.call(&format!("SELECT {db}")) {
                Ok(_) => return Ok(client),
                Err(CallError::Closed) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err("connections are closed repeatedly".to_owned())
    }

    /// Sends a command and returns its reply; `None` if the connection was closed. It is then unknown whether the
    /// command ran.
    pub fn call(&mut self, command: &str) -> Result<Option<StressReply>, String> {
        self.call_words(command.split(' ').map(str::to_owned).collect())
    }

    /// Does the same as [`Self::call`] with words that may contain blanks.
    pub fn call_words(&mut self, words: Vec<String>) -> Result<Option<StressReply>, String> {
        self.run.count_commands(1);
        let text = words.join(" ");
        match self.client.call_words(words) {
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::Closed) => {
                self.client = Self::open(self.run, self.db)?;
                Ok(None)
            }
            Err(other) => Err(format!("{text}: {}", String::from(other))),
        }
    }
}

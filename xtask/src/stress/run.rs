//! The state that the threads of a run share, and the clients of its scenarios.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::client::{CallError, StressClient, StressReply};

/// The time that a scenario waits for a reply. After it, the server counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that the threads of a run share.
pub struct StressRun {
    pub(super) address: std::net::SocketAddr,
    pub(super) stop: AtomicBool,
    pub(super) commands: AtomicU64,
    pub(super) failures: Mutex<Vec<String>>,
    pub(super) seed: u64,
    pub(super) begin: Instant,
}

impl StressRun {
    /// Returns `true` while the scenarios should continue.
    pub fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Records a broken invariant and ends the run.
    pub fn fail(&self, story: String) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(mut failures) = self.failures.lock() {
            failures.push(story);
        }
    }

    /// Opens a connection. A scenario opens a new one when CLIENT KILL has closed its connection.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect(&self) -> Result<StressClient, String> {
        StressClient::connect(self.address, HANG_TIMEOUT)
    }

    /// Adds to the number of commands in the report.
    pub fn count_commands(&self, commands: u64) {
        self.commands.fetch_add(commands, Ordering::Relaxed);
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
        self.run.count_commands(1);
        match self.client.call(command) {
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::Closed) => {
                self.client = Self::open(self.run, self.db)?;
                Ok(None)
            }
            Err(other) => Err(format!("{command}: {}", String::from(other))),
        }
    }
}

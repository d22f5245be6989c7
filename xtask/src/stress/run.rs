//! The state that the threads of a run share, and the clients of its scenarios.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::{CallError, StressClient, StressReply};
use super::tags;
use super::watchdog::{self, RequestRegistry};

/// The time that a scenario waits for a reply, longer than the watchdog's bound: the watchdog has the better report.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause before a command is sent again that the nodes of a cluster do not execute at the moment.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The number of redirections that a client follows without a pause.
const PROMPT_REDIRECTIONS: usize = 8;

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
    /// `true` if the servers are the nodes of one cluster.
    pub(super) is_cluster: bool,
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

    /// Returns the number of servers that a [`ReconnectingClient`] uses: all nodes of a cluster, or the first server.
    pub fn servers(&self) -> usize {
        if self.is_cluster { self.addresses.len() } else { 1 }
    }

    /// Returns the name of a key. In a cluster it begins with the tag of this number.
    pub fn key(&self, tag: usize, name: &str) -> String {
        match self.is_cluster {
            true => format!("{}{name}", tags::tag(tag)),
            false => name.to_owned(),
        }
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
    /// Fails if the server does not accept the connection or the name.
    pub fn connect_lasting(&self) -> Result<StressClient, CallError> {
        self.connect_lasting_to(0)
    }

    /// Opens such a connection to one of the servers.
    ///
    /// # Errors
    /// Fails if the server does not accept the connection.
    pub fn connect_lasting_to(&self, server: usize) -> Result<StressClient, CallError> {
        loop {
            let mut client = self.connect_to(server).map_err(CallError::Protocol)?;
            match client.execute("CLIENT SETNAME lasting") {
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

/// Returns `true` for the errors by which a node of a cluster redirects a client, or asks it to try again.
pub fn is_redirection(error: &str) -> bool {
    let codes = ["MOVED ", "ASK ", "TRYAGAIN"];
    codes.iter().any(|code| error.starts_with(code))
}

/// What became of a command that was sent to one server.
pub enum CallOutcome {
    /// The server executed or refused the command.
    Answered(StressReply),
    /// The connection was closed. It is unknown whether the command ran.
    Closed,
    /// A node of the cluster did not execute the command. The next attempt goes to the node that should.
    Redirected,
}

/// A connection that reconnects after CLIENT KILL has closed it. In a cluster it is a connection to each node, and
/// follows redirections. There all keys of its commands must have one slot, unless no slot moves that they have.
pub struct ReconnectingClient<'a> {
    pub(super) run: &'a StressRun,
    /// One connection to each server that it uses.
    clients: Vec<StressClient>,
    db: usize,
    /// `true` if no client may kill the connections.
    is_lasting: bool,
    /// The server that executes the commands.
    server: usize,
    /// The node that executes the next command only, after ASKING.
    asked: Option<usize>,
}

impl<'a> ReconnectingClient<'a> {
    pub fn new(run: &'a StressRun, db: usize) -> Result<Self, String> {
        Self::connect(run, db, false)
    }

    /// Returns a client of connections that the scenario `hostile` does not kill. Their end is an error.
    pub fn lasting(run: &'a StressRun) -> Result<Self, String> {
        Self::connect(run, 0, true)
    }

    fn connect(run: &'a StressRun, db: usize, is_lasting: bool) -> Result<Self, String> {
        let clients = (0..run.servers())
            .map(|server| Self::open(run, server, db, is_lasting))
            .collect::<Result<_, _>>()?;
        Ok(ReconnectingClient {
            run,
            clients,
            db,
            is_lasting,
            server: 0,
            asked: None,
        })
    }

    fn open(run: &StressRun, server: usize, db: usize, is_lasting: bool) -> Result<StressClient, String> {
        for _ in 0..20 {
            let mut client = match is_lasting {
                true => run.connect_lasting_to(server)?,
                false => run.connect_to(server)?,
            };
            match client.execute(&format!("SELECT {db}")) {
                Ok(_) => return Ok(client),
                Err(CallError::Closed) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Err("connections are closed repeatedly".to_owned())
    }

    /// Returns the server that has the keys of the last command, as far as this client knows.
    pub fn server(&self) -> usize {
        self.server
    }

    /// Returns the server that gets the next command.
    pub fn next_server(&self) -> usize {
        self.asked.unwrap_or(self.server)
    }

    /// Sends the next command to this server.
    pub fn go_to(&mut self, server: usize) {
        (self.server, self.asked) = (server, None);
    }

    /// Sends a command and returns its reply; `None` if the connection was closed. It is then unknown whether the
    /// command ran.
    pub fn call(&mut self, command: &str) -> Result<Option<StressReply>, String> {
        self.call_words(command.split(' ').map(str::to_owned).collect())
    }

    /// Does the same as [`Self::call`] for a command that a healthy server executes: an error is a failure.
    pub fn execute(&mut self, command: &str) -> Result<Option<StressReply>, String> {
        match self.call(command)? {
            Some(StressReply::Error(error)) => Err(format!("{command} was answered by {error}")),
            reply => Ok(reply),
        }
    }

    /// Does the same as [`Self::call`] with words that may contain blanks.
    pub fn call_words(&mut self, words: Vec<String>) -> Result<Option<StressReply>, String> {
        self.run.count_commands(1);
        let (begin, bound) = (Instant::now(), watchdog::bound());
        let mut redirections = 0;
        loop {
            match self.attempt(&words)? {
                CallOutcome::Answered(reply) => return Ok(Some(reply)),
                CallOutcome::Closed => return Ok(None),
                CallOutcome::Redirected => redirections += 1,
            }
            if begin.elapsed() > bound {
                let text = words.join(" ");
                return Err(format!(
                    "{text} was redirected {redirections} times in {} s",
                    bound.as_secs()
                ));
            }
            if redirections > PROMPT_REDIRECTIONS {
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }

    /// Sends a command to one server only, and returns its reply; `None` if the connection was closed.
    pub fn call_at(&mut self, server: usize, command: &str) -> Result<Option<StressReply>, String> {
        self.run.count_commands(1);
        self.send(server, command.split(' ').map(str::to_owned).collect())
    }

    /// Sends a command to [`Self::next_server`].
    pub fn attempt(&mut self, words: &[String]) -> Result<CallOutcome, String> {
        let server = self.next_server();
        if self.asked.take().is_some() && self.send(server, vec!["ASKING".to_owned()])?.is_none() {
            return Ok(CallOutcome::Closed);
        }
        match self.send(server, words.to_vec())? {
            None => Ok(CallOutcome::Closed),
            Some(StressReply::Error(error)) if self.run.is_cluster && is_redirection(&error) => {
                self.follow(&error)?;
                Ok(CallOutcome::Redirected)
            }
            Some(reply) => Ok(CallOutcome::Answered(reply)),
        }
    }

    fn send(&mut self, server: usize, words: Vec<String>) -> Result<Option<StressReply>, String> {
        let text = words.join(" ");
        match self.clients[server].call_words(words) {
            Ok(reply) => Ok(Some(reply)),
            Err(CallError::Closed) if !self.is_lasting => {
                self.clients[server] = Self::open(self.run, server, self.db, false)?;
                Ok(None)
            }
            Err(other) => Err(format!("{text}: {}", String::from(other))),
        }
    }

    /// Notes where a redirection leads.
    fn follow(&mut self, error: &str) -> Result<(), String> {
        if error.starts_with("TRYAGAIN") {
            // Some keys of the command have moved and others have not.
            std::thread::sleep(RETRY_PAUSE);
            return Ok(());
        }
        let port = error.rsplit(':').next().and_then(|port| port.trim().parse().ok());
        let mut addresses = self.run.addresses.iter();
        let node = addresses
            .position(|address| Some(address.port()) == port)
            .ok_or_else(|| format!("{error} leads nowhere"))?;
        match error.starts_with("ASK ") {
            true => self.asked = Some(node),
            false => self.server = node,
        }
        Ok(())
    }
}

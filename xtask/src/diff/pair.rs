//! The two servers under comparison, and a client that sends to both in lockstep.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::case::CaseArgument;
use super::connection::{Alteration, ServerAnswer, ServerConnection, split_words};
use super::reply::Reply;
use crate::server_process::ServerProcess;

/// The time without input after which a connection counts as quiet.
const QUIET_INTERVAL: Duration = Duration::from_millis(40);
/// The time limit for the slower server. After it, two byte streams count as different.
const SLOW_SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit for the end of a section's clients. After it, the whole run fails.
const CLIENTS_GONE_TIMEOUT: Duration = Duration::from_secs(20);

/// A value for each server.
pub struct ServerPair<T> {
    /// The value of Weft.
    pub weft: T,
    /// The value of Valkey.
    pub valkey: T,
}

impl<T> ServerPair<T> {
    /// Returns a pair with the results of calling `make` for each value.
    pub fn map<U>(&mut self, mut make: impl FnMut(&mut T) -> U) -> ServerPair<U> {
        ServerPair {
            weft: make(&mut self.weft),
            valkey: make(&mut self.valkey),
        }
    }
}

/// The parameters of a server, by name.
type Parameters = BTreeMap<Vec<u8>, Vec<u8>>;

fn read_parameters(connection: &mut ServerConnection) -> Parameters {
    let ServerAnswer::Reply(received) = connection.call(&split_words("CONFIG GET *")) else {
        return Parameters::new();
    };
    let texts = received.reply.items().chunks_exact(2);
    texts
        .map(|pair| (pair[0].text().to_vec(), pair[1].text().to_vec()))
        .collect()
}

/// Sets the parameters that a section has changed back to `values`.
fn restore_parameters(connection: &mut ServerConnection, values: &Parameters) {
    let current = read_parameters(connection);
    for (name, value) in values {
        if current.get(name) != Some(value) {
            let command = [b"CONFIG".to_vec(), b"SET".to_vec(), name.clone(), value.clone()];
            connection.call(&command);
        }
    }
}

/// The binaries of the two servers.
pub struct ServerBinaries {
    /// The path of Weft's server.
    pub weft: PathBuf,
    /// Additional arguments for Weft.
    pub weft_arguments: Vec<String>,
    /// The path of Valkey's server.
    pub valkey: PathBuf,
}

/// Two running servers, with a control connection to each that the cases do not use.
pub struct ComparedServers {
    processes: ServerPair<ServerProcess>,
    control: ServerPair<ServerConnection>,
    /// All parameters as they were at the start.
    parameters: ServerPair<Parameters>,
    /// The difference that the self-check plants in Weft's replies on each new connection.
    planted: Option<Alteration>,
}

impl ComparedServers {
    /// Starts both servers with `arguments` in addition to their own.
    ///
    /// # Errors
    /// Fails if a server cannot be started or reached.
    pub fn start(binaries: &ServerBinaries, arguments: &[String]) -> Result<Self, String> {
        let start = |binary: &Path, own: &[String]| ServerProcess::start(binary, &[arguments, own].concat());
        let processes = ServerPair {
            weft: start(&binaries.weft, &binaries.weft_arguments)?,
            valkey: start(&binaries.valkey, &[])?,
        };
        let mut control = ServerPair {
            weft: ServerConnection::open(processes.weft.address)?,
            valkey: ServerConnection::open(processes.valkey.address)?,
        };
        let mut pairs = arguments.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0] == "--requirepass") {
            let command = split_words(&format!("AUTH {}", pair[1]));
            control.map(|connection| connection.call(&command));
        }
        let parameters = control.map(read_parameters);
        Ok(Self {
            processes,
            control,
            parameters,
            planted: None,
        })
    }

    /// Deletes all data of both servers and restores their parameters, which the commands of a section may have
    /// changed.
    ///
    /// # Errors
    /// Fails if clients do not end, or if FLUSHALL fails.
    pub fn reset(&mut self) -> Result<(), String> {
        self.await_no_clients()?;
        restore_parameters(&mut self.control.weft, &self.parameters.weft);
        restore_parameters(&mut self.control.valkey, &self.parameters.valkey);
        let flushed = self
            .control
            .map(|connection| connection.call(&split_words("FLUSHALL SYNC")));
        for (answer, who) in [(flushed.weft, "weft"), (flushed.valkey, "valkey")] {
            if answer.to_line() != "+OK" {
                let gone = self.exit_report();
                return Err(format!("{who}: FLUSHALL: {}{gone}", answer.to_line()));
            }
        }
        Ok(())
    }

    /// Sets a parameter on both servers until the next `reset`. Returns the answers to CONFIG SET.
    pub fn configure(&mut self, name: &str, value: &str) -> ServerPair<ServerAnswer> {
        self.control.map(|connection| {
            let command = ["CONFIG", "SET", name, value].map(|word| word.as_bytes().to_vec());
            connection.call(&command)
        })
    }

    /// Waits until `count` clients are blocked on both servers. Returns the line of INFO with that number, or with the
    /// number after a timeout.
    pub fn await_blocked(&mut self, count: u64) -> ServerPair<ServerAnswer> {
        self.await_clients("blocked_clients", &blocked_clients(count), SLOW_SERVER_TIMEOUT)
    }

    /// Waits until both servers answer `wanted`, the line of `field` in INFO. Returns their last answers, also after a
    /// timeout. Both execute INFO equally often, since it is counted too.
    fn await_clients(&mut self, field: &str, wanted: &ServerAnswer, timeout: Duration) -> ServerPair<ServerAnswer> {
        let deadline = Instant::now() + timeout;
        let prefix = format!("{field}:");
        loop {
            let answers = self
                .control
                .map(|connection| match connection.call(&split_words("INFO clients")) {
                    ServerAnswer::Reply(received) => {
                        let info = String::from_utf8_lossy(received.reply.text()).into_owned();
                        let line = info.lines().find(|line| line.starts_with(&prefix));
                        ServerAnswer::Bytes(line.unwrap_or_default().into(), false)
                    }
                    other => other,
                });
            let is_reached = answers.weft == *wanted && answers.valkey == *wanted;
            if is_reached || Instant::now() > deadline {
                return answers;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until both servers have noticed that all clients but this program's own are gone: one that still waits for
    /// a key would otherwise take what the next section writes.
    fn await_no_clients(&mut self) -> Result<(), String> {
        let wanted = ServerAnswer::Bytes(b"connected_clients:1".to_vec(), false);
        let answers = self.await_clients("connected_clients", &wanted, CLIENTS_GONE_TIMEOUT);
        for (answer, who) in [(answers.weft, "weft"), (answers.valkey, "valkey")] {
            if answer != wanted {
                let gone = self.exit_report();
                return Err(format!("{who}: clients do not end: {}{gone}", answer.to_line()));
            }
        }
        Ok(())
    }

    /// Returns those of `commands` that Weft does not have.
    ///
    /// # Errors
    /// Fails if Valkey does not have a command either: its name is then a typing error.
    pub fn missing_commands(&mut self, commands: &[String]) -> Result<Vec<String>, String> {
        let mut lacking = Vec::new();
        for command in commands {
            let known = self.control.map(|connection| {
                let ServerAnswer::Reply(received) = connection.call(&split_words(&format!("COMMAND INFO {command}")))
                else {
                    return false;
                };
                let description = received.reply.items().first();
                description.is_some_and(|description| !description.items().is_empty())
            });
            match (known.weft, known.valkey) {
                (_, false) => return Err(format!("@needs: Valkey has no command {command}")),
                (false, true) => lacking.push(command.clone()),
                (true, true) => {}
            }
        }
        Ok(lacking)
    }

    /// Plants a difference in Weft's replies on each connection that is opened from now on; `None` plants none.
    pub fn plant(&mut self, alteration: Option<Alteration>) {
        self.planted = alteration;
    }

    /// Returns the names of all commands and subcommands of each server.
    ///
    /// # Errors
    /// Fails if a server does not list its commands.
    pub fn command_names(&mut self) -> Result<ServerPair<BTreeSet<String>>, String> {
        let mut answers = self.control.map(|connection| connection.call(&split_words("COMMAND")));
        let mut failed = None;
        let names = answers.map(|answer| {
            let mut names = BTreeSet::new();
            match answer {
                ServerAnswer::Reply(received) => add_command_names(&received.reply, &mut names),
                other => failed = Some(format!("COMMAND: {}", other.to_line())),
            }
            names
        });
        match failed {
            None => Ok(names),
            Some(why) => Err(why),
        }
    }

    /// Sends a command to both servers over the control connections.
    pub fn call_control(&mut self, command: &[Vec<u8>]) -> ServerPair<ServerAnswer> {
        self.control.map(|connection| connection.call(command))
    }

    /// Opens a connection to each server and switches it to `protocol`.
    ///
    /// # Errors
    /// Fails if a server does not accept the connection.
    pub fn connect(&self, protocol: u8) -> Result<PairedClient, String> {
        let open = |address: SocketAddr| -> Result<ServerConnection, String> {
            let mut connection = ServerConnection::open(address)?;
            if protocol == 3 {
                connection.call(&split_words("HELLO 3"));
            }
            Ok(connection)
        };
        let mut connections = ServerPair {
            weft: open(self.processes.weft.address)?,
            valkey: open(self.processes.valkey.address)?,
        };
        if let Some(alteration) = self.planted {
            connections.weft.alter(alteration);
        }
        Ok(PairedClient { connections })
    }

    /// Returns the exit status and the log of the servers that have ended; empty if both are running.
    pub fn exit_report(&mut self) -> String {
        let mut text = String::new();
        for (process, who) in [
            (&mut self.processes.weft, "weft"),
            (&mut self.processes.valkey, "valkey"),
        ] {
            if let Some(status) = process.exit_status() {
                text += &format!("\n{who} ended ({status}):\n{}", process.log_tail());
            }
        }
        text
    }
}

/// Adds the names in a list of command descriptions, and those of their subcommands.
fn add_command_names(descriptions: &Reply, names: &mut BTreeSet<String>) {
    /// The place of the subcommands in a description.
    const SUBCOMMANDS: usize = 9;
    for description in descriptions.items() {
        if let Some(name) = description.items().first() {
            names.insert(String::from_utf8_lossy(name.text()).to_lowercase());
        }
        if let Some(subcommands) = description.items().get(SUBCOMMANDS) {
            add_command_names(subcommands, names);
        }
    }
}

/// One client of the comparison: a connection to each server.
pub struct PairedClient {
    connections: ServerPair<ServerConnection>,
}

impl PairedClient {
    /// Sends each server its command and reads one reply from each.
    pub fn call(&mut self, command: &ServerPair<Vec<Vec<u8>>>) -> ServerPair<ServerAnswer> {
        self.send(command);
        self.read_answers()
    }

    /// Sends each server its command.
    pub fn send(&mut self, command: &ServerPair<Vec<Vec<u8>>>) {
        self.connections.weft.send(&command.weft);
        self.connections.valkey.send(&command.valkey);
    }

    /// Sends both servers the same bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.connections.weft.send_bytes(bytes);
        self.connections.valkey.send_bytes(bytes);
    }

    /// Reads the next reply of each server.
    pub fn read_answers(&mut self) -> ServerPair<ServerAnswer> {
        self.connections.map(ServerConnection::read_answer)
    }

    /// Reads from both servers until both are quiet. Gives a slower server time to catch up.
    pub fn read_until_quiet(&mut self) -> ServerPair<ServerAnswer> {
        let deadline = Instant::now() + SLOW_SERVER_TIMEOUT;
        loop {
            self.connections
                .map(|connection| connection.read_until_quiet(QUIET_INTERVAL));
            let ServerPair { weft, valkey } = &self.connections;
            if weft.buffered() == valkey.buffered() || Instant::now() > deadline {
                return self.connections.map(ServerConnection::take_buffered);
            }
        }
    }
}

/// Returns what [`ComparedServers::await_blocked`] returns of a server on which `count` clients are blocked.
pub fn blocked_clients(count: u64) -> ServerAnswer {
    ServerAnswer::Bytes(format!("blocked_clients:{count}").into_bytes(), false)
}

/// The stored replies of both servers to earlier commands, by name.
pub type Bindings = BTreeMap<String, ServerPair<Vec<u8>>>;

/// Replaces names and times by values. Returns the command for each server.
pub fn resolve_arguments(arguments: &[CaseArgument], bindings: &Bindings) -> ServerPair<Vec<Vec<u8>>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let mut command = ServerPair {
        weft: Vec::new(),
        valkey: Vec::new(),
    };
    for argument in arguments {
        let same = |word: Vec<u8>| (word.clone(), word);
        let bound = |name: &String| match bindings.get(name) {
            Some(both) => (both.weft.clone(), both.valkey.clone()),
            None => same(Vec::new()),
        };
        let (weft, valkey) = match argument {
            CaseArgument::Literal(word) => same(word.clone()),
            CaseArgument::StoredReply(name) => bound(name),
            CaseArgument::OtherStoredReply(name) => {
                let (weft, valkey) = bound(name);
                (valkey, weft)
            }
            CaseArgument::NowSeconds(offset) => same((now_ms / 1000 + offset).to_string().into_bytes()),
            CaseArgument::NowMs(offset) => same((now_ms + offset).to_string().into_bytes()),
        };
        command.weft.push(weft);
        command.valkey.push(valkey);
    }
    command
}

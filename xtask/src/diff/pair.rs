//! The two servers under comparison, and a client that sends to both in lockstep.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::case::Argument;
use super::connection::{Answer, Connection, words};
use crate::server_process::ServerProcess;

/// The time without input after which a connection counts as quiet.
const QUIET: Duration = Duration::from_millis(40);
/// The time limit for the slower server. After it, two byte streams count as different.
const PATIENCE: Duration = Duration::from_secs(2);

/// A value for each server.
pub struct Both<T> {
    /// The value of Weft.
    pub weft: T,
    /// The value of Valkey.
    pub valkey: T,
}

impl<T> Both<T> {
    /// Returns a pair with the results of calling `make` for each value.
    pub fn map<U>(&mut self, mut make: impl FnMut(&mut T) -> U) -> Both<U> {
        Both {
            weft: make(&mut self.weft),
            valkey: make(&mut self.valkey),
        }
    }
}

/// The binaries of the two servers.
pub struct Binaries {
    /// The path of Weft's server.
    pub weft: PathBuf,
    /// Additional arguments for Weft.
    pub weft_arguments: Vec<String>,
    /// The path of Valkey's server.
    pub valkey: PathBuf,
}

/// Two running servers, with a control connection to each that the cases do not use.
pub struct Servers {
    processes: Both<ServerProcess>,
    control: Both<Connection>,
    /// Parameters to restore after the section, with each server's old value.
    changed: Vec<(String, Both<Vec<u8>>)>,
}

impl Servers {
    /// Starts both servers with `arguments` in addition to their own.
    ///
    /// # Errors
    /// Fails if a server cannot be started or reached.
    pub fn start(binaries: &Binaries, arguments: &[String]) -> Result<Self, String> {
        let start = |binary: &Path, own: &[String]| ServerProcess::start(binary, &[arguments, own].concat());
        let processes = Both {
            weft: start(&binaries.weft, &binaries.weft_arguments)?,
            valkey: start(&binaries.valkey, &[])?,
        };
        let mut control = Both {
            weft: Connection::open(processes.weft.address)?,
            valkey: Connection::open(processes.valkey.address)?,
        };
        let mut pairs = arguments.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0] == "--requirepass") {
            let command = words(&format!("AUTH {}", pair[1]));
            control.map(|connection| connection.call(&command));
        }
        Ok(Self {
            processes,
            control,
            changed: Vec::new(),
        })
    }

    /// Deletes all data of both servers and restores their parameters.
    ///
    /// # Errors
    /// Fails if FLUSHALL does.
    pub fn reset(&mut self) -> Result<(), String> {
        for (name, mut old) in std::mem::take(&mut self.changed).into_iter().rev() {
            let set = |connection: &mut Connection, value: &mut Vec<u8>| {
                let mut command = words("CONFIG SET");
                command.push(name.clone().into_bytes());
                command.push(std::mem::take(value));
                connection.call(&command)
            };
            set(&mut self.control.weft, &mut old.weft);
            set(&mut self.control.valkey, &mut old.valkey);
        }
        let flushed = self.control.map(|connection| connection.call(&words("FLUSHALL SYNC")));
        for (answer, who) in [(flushed.weft, "weft"), (flushed.valkey, "valkey")] {
            if answer.shown() != "+OK" {
                let gone = self.ended();
                return Err(format!("{who}: FLUSHALL: {}{gone}", answer.shown()));
            }
        }
        Ok(())
    }

    /// Sets a parameter on both servers until the next `reset`. Returns the answers to CONFIG SET.
    pub fn configure(&mut self, name: &str, value: &str) -> Both<Answer> {
        let old = self.control.map(|connection| {
            let mut command = words("CONFIG GET");
            command.push(name.as_bytes().to_vec());
            match connection.call(&command) {
                Answer::Reply(received) => received.reply.items().get(1).cloned(),
                _ => None,
            }
            .map(|value| value.text().to_vec())
            .unwrap_or_default()
        });
        self.changed.push((name.to_string(), old));
        self.control.map(|connection| {
            let command = ["CONFIG", "SET", name, value].map(|word| word.as_bytes().to_vec());
            connection.call(&command)
        })
    }

    /// Waits until `count` clients are blocked on both servers. Returns the line of INFO with that number, or with the
    /// number after a timeout.
    pub fn await_blocked(&mut self, count: u64) -> Both<Answer> {
        let deadline = Instant::now() + PATIENCE;
        let wanted = format!("blocked_clients:{count}");
        self.control.map(|connection| {
            loop {
                let info = match connection.call(&words("INFO clients")) {
                    Answer::Reply(received) => String::from_utf8_lossy(received.reply.text()).into_owned(),
                    other => return other,
                };
                let line = info.lines().find(|line| line.starts_with("blocked_clients:"));
                let line = line.unwrap_or_default().to_owned();
                if line == wanted || Instant::now() > deadline {
                    return Answer::Bytes(line.into_bytes(), false);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    }

    /// Returns those of `commands` that Weft does not have.
    ///
    /// # Errors
    /// Fails if Valkey does not have a command either: its name is then a typing error.
    pub fn lacking(&mut self, commands: &[String]) -> Result<Vec<String>, String> {
        let mut lacking = Vec::new();
        for command in commands {
            let known = self.control.map(|connection| {
                let Answer::Reply(received) = connection.call(&words(&format!("COMMAND INFO {command}"))) else {
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

    /// Sends a command to both servers over the control connections.
    pub fn ask(&mut self, command: &[Vec<u8>]) -> Both<Answer> {
        self.control.map(|connection| connection.call(command))
    }

    /// Opens a connection to each server and switches it to `protocol`.
    ///
    /// # Errors
    /// Fails if a server does not accept the connection.
    pub fn connect(&self, protocol: u8) -> Result<Client, String> {
        let open = |address: SocketAddr| -> Result<Connection, String> {
            let mut connection = Connection::open(address)?;
            if protocol == 3 {
                connection.call(&words("HELLO 3"));
            }
            Ok(connection)
        };
        Ok(Client {
            connections: Both {
                weft: open(self.processes.weft.address)?,
                valkey: open(self.processes.valkey.address)?,
            },
        })
    }

    /// Returns the exit status and the log of the servers that have ended; empty if both are running.
    pub fn ended(&mut self) -> String {
        let mut text = String::new();
        for (process, who) in [
            (&mut self.processes.weft, "weft"),
            (&mut self.processes.valkey, "valkey"),
        ] {
            if let Some(status) = process.ended() {
                text += &format!("\n{who} ended ({status}):\n{}", process.log_tail());
            }
        }
        text
    }
}

/// One client of the comparison: a connection to each server.
pub struct Client {
    connections: Both<Connection>,
}

impl Client {
    /// Sends each server its command and reads one reply from each.
    pub fn call(&mut self, command: &Both<Vec<Vec<u8>>>) -> Both<Answer> {
        self.send(command);
        self.answers()
    }

    /// Sends each server its command.
    pub fn send(&mut self, command: &Both<Vec<Vec<u8>>>) {
        self.connections.weft.send(&command.weft);
        self.connections.valkey.send(&command.valkey);
    }

    /// Sends both servers the same bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.connections.weft.send_bytes(bytes);
        self.connections.valkey.send_bytes(bytes);
    }

    /// Reads the next reply of each server.
    pub fn answers(&mut self) -> Both<Answer> {
        self.connections.map(Connection::answer)
    }

    /// Reads from both servers until both are quiet. Gives a slower server time to catch up.
    pub fn drained(&mut self) -> Both<Answer> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.connections.map(|connection| connection.read_until_quiet(QUIET));
            let Both { weft, valkey } = &self.connections;
            if weft.seen() == valkey.seen() || Instant::now() > deadline {
                return self.connections.map(Connection::taken);
            }
        }
    }
}

/// The stored replies of both servers to earlier commands, by name.
pub type Bindings = BTreeMap<String, Both<Vec<u8>>>;

/// Replaces names and times by values. Returns the command for each server.
pub fn resolve(arguments: &[Argument], bindings: &Bindings) -> Both<Vec<Vec<u8>>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let mut command = Both {
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
            Argument::Literal(word) => same(word.clone()),
            Argument::Own(name) => bound(name),
            Argument::Other(name) => {
                let (weft, valkey) = bound(name);
                (valkey, weft)
            }
            Argument::NowSeconds(offset) => same((now_ms / 1000 + offset).to_string().into_bytes()),
            Argument::NowMs(offset) => same((now_ms + offset).to_string().into_bytes()),
        };
        command.weft.push(weft);
        command.valkey.push(valkey);
    }
    command
}

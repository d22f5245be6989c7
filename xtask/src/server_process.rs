//! A server under test: started on a free loopback port, killed when its handle is dropped.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use rustls::ClientConfig;

use crate::tls::TlsConnection;

/// The time limit for the start. A node of a cluster replies only once it has loaded its append-only file.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for a reply to PING, after which the server is asked again.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The exit status of a server that was asked to end.
const SUCCESS: &str = "exit status: 0";

/// The configuration file of a node that was started from one.
pub const CONFIGURATION_FILE: &str = "server.conf";

/// A running server with its own directory, which is removed when the handle is dropped.
pub struct ServerProcess {
    child: Child,
    /// The address on which it listens.
    pub address: SocketAddr,
    directory: PathBuf,
    /// The program and its arguments.
    command_line: Vec<String>,
    /// The configuration of clients, if it listens with TLS only.
    tls: Option<Arc<ClientConfig>>,
}

impl ServerProcess {
    /// Starts `binary` with `arguments`, without persistence and with DEBUG allowed, and waits until it replies.
    ///
    /// # Errors
    /// Fails if the process cannot be started, ends, or does not reply in time.
    pub fn start(binary: &Path, arguments: &[String]) -> Result<Self, String> {
        let directory = new_directory()?;
        let address = unused_address()?;
        // The default port of the cluster bus would be out of range for the higher ones of these ports.
        let bus_port = match arguments.iter().any(|word| word == "--cluster-enabled") {
            true => vec!["--cluster-port".to_owned(), unused_address()?.port().to_string()],
            false => Vec::new(),
        };
        let mut command_line = vec![binary.display().to_string()];
        let port = address.port().to_string();
        command_line.extend(["--port", &port, "--bind", "127.0.0.1", "--save", ""].map(str::to_owned));
        command_line.extend(["--appendonly", "no", "--enable-debug-command", "yes", "--dir"].map(str::to_owned));
        command_line.push(directory.display().to_string());
        command_line.extend(bus_port);
        command_line.extend_from_slice(arguments);
        Self::start_exactly(directory, address, command_line, None)
    }

    /// Starts a node of a cluster that listens with TLS only, from a configuration file, and waits until it replies.
    /// Its addresses, its directory and its log are added to `configuration`. The log is written by the server itself,
    /// to the same file as its output.
    ///
    /// # Errors
    /// Fails like [`Self::start`].
    pub fn start_tls_node(binary: &Path, configuration: &str, tls: &Arc<ClientConfig>) -> Result<Self, String> {
        let directory = new_directory()?;
        let (address, bus) = (unused_address()?, unused_address()?);
        let text = format!(
            "port 0\ntls-port {}\ncluster-port {}\nbind 127.0.0.1\ndir {}\nlogfile log\n{configuration}",
            address.port(),
            bus.port(),
            directory.display()
        );
        let file = directory.join(CONFIGURATION_FILE);
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let command_line = vec![binary.display().to_string(), file.display().to_string()];
        Self::start_exactly(directory, address, command_line, Some(Arc::clone(tls)))
    }

    /// Starts a Sentinel with this configuration, to which `port`, `bind` and `dir` are added, and waits until it
    /// replies. `arguments` follow the name of the configuration file.
    ///
    /// # Errors
    /// Fails like [`Self::start`].
    pub fn start_sentinel(binary: &Path, arguments: &[&str], configuration: &str) -> Result<Self, String> {
        let directory = new_directory()?;
        let address = unused_address()?;
        let file = directory.join("sentinel.conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\n{configuration}",
            address.port(),
            directory.display()
        );
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut command_line = vec![binary.display().to_string(), file.display().to_string()];
        command_line.extend(arguments.iter().map(|word| (*word).to_owned()));
        Self::start_exactly(directory, address, command_line, None)
    }

    fn start_exactly(
        directory: PathBuf,
        address: SocketAddr,
        command_line: Vec<String>,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, String> {
        let mut server = Self {
            child: spawn(&command_line, &directory)?,
            address,
            directory,
            command_line,
            tls,
        };
        server.await_start()?;
        Ok(server)
    }

    /// Starts the process again, with the same arguments and directory, after it has ended.
    ///
    /// # Errors
    /// Fails like [`Self::start`], and if the process does not end.
    pub fn start_again(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.exit_status().is_none() {
            if Instant::now() > deadline {
                return Err(format!("the server does not end\n{}", self.log_tail()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.child = spawn(&self.command_line, &self.directory)?;
        self.await_start()
    }

    /// Waits until the process has ended because it was asked to, which it must do with success.
    ///
    /// # Errors
    /// Fails if it does not end in time, or with another exit status.
    pub fn await_success(&mut self, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.exit_status() {
                Some(status) if status == SUCCESS => return Ok(()),
                Some(status) => return Err(format!("the server has ended with {status}\n{}", self.log_tail())),
                None if Instant::now() > deadline => {
                    return Err(format!("the server does not end\n{}", self.log_tail()));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Ends the process at once, as `kill -9` does.
    ///
    /// # Errors
    /// Fails if the process cannot be waited for.
    pub fn kill(&mut self) -> Result<(), String> {
        // Fails if the process has already ended, which is the desired state.
        let _ = self.child.kill();
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }

    /// Sends a signal to the process, such as `STOP` or `CONT`.
    ///
    /// # Errors
    /// Fails if the signal cannot be sent.
    pub fn signal(&self, name: &str) -> Result<(), String> {
        let command = format!("kill -{name} {}", self.child.id());
        match Command::new("sh").args(["-c", &command]).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{command}: {status}")),
            Err(error) => Err(format!("{command}: {error}")),
        }
    }

    /// Copies the log to `target`.
    ///
    /// # Errors
    /// Fails if the file cannot be copied.
    pub fn copy_log(&self, target: &Path) -> Result<(), String> {
        fs::copy(self.directory.join("log"), target)
            .map(drop)
            .map_err(|error| format!("{}: {error}", target.display()))
    }

    /// Returns `true` if the program has this file name.
    pub fn is_program(&self, name: &str) -> bool {
        Path::new(&self.command_line[0])
            .file_name()
            .is_some_and(|file| file == name)
    }

    /// Returns the program and its arguments.
    pub fn command_line(&self) -> &[String] {
        &self.command_line
    }

    /// Returns the directory in which the server runs. It contains the file `log`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn await_start(&mut self) -> Result<(), String> {
        self.wait_until_ready()
            .map_err(|why| format!("{} {why}\n{}", self.command_line[0], self.log_tail()))
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("stopped at once ({status}); its log ends with:"));
            }
            if responds_to_ping(self.address, self.tls.as_ref()) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("does not answer PING; its log ends with:".to_string())
    }

    /// Returns the last lines of the server's log, for error messages.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.directory.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Returns `true` if the process has ended, and leaves its exit status to [`Self::exit_status`].
    pub fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let id = Id::Pid(Pid::from_raw(self.child.id().cast_signed()));
        // Nothing is left to wait for once the exit status has been read.
        !matches!(waitid(id, flags), Ok(WaitStatus::StillAlive))
    }

    /// Returns the lines of the log that say why the process has ended itself, without times and process ids.
    pub fn crash_lines(&self) -> Vec<String> {
        let text = fs::read(self.directory.join("log")).unwrap_or_default();
        crash_lines(&String::from_utf8_lossy(&text))
    }

    /// Returns the exit status of the process, if it has ended.
    pub fn exit_status(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            _ => None,
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended, which is the desired state.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the lines of a log that name a failed assertion or a fatal signal.
fn crash_lines(log: &str) -> Vec<String> {
    let is_reason =
        |line: &&str| line.contains("==> ") || line.contains("crashed by signal") || line.contains("panicked");
    let text = |line: &str| line.split_once(" # ").map_or(line, |(_, text)| text).to_owned();
    log.lines().filter(is_reason).map(text).collect()
}

/// Starts a program whose output is appended to the file `log` in its directory.
fn spawn(command_line: &[String], directory: &Path) -> Result<Child, String> {
    let log = OpenOptions::new().create(true).append(true).open(directory.join("log"));
    let log = log.map_err(|error| error.to_string())?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    Command::new(&command_line[0])
        .args(&command_line[1..])
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", command_line[0]))
}

/// Returns `true` if a server on `address` replies to a PING, even with an error.
fn responds_to_ping(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> bool {
    if let Some(config) = tls {
        return TlsConnection::connect(address, PING_TIMEOUT, config).is_ok_and(ping);
    }
    let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
        return false;
    };
    stream.set_read_timeout(Some(PING_TIMEOUT)).is_ok() && ping(stream)
}

/// Returns `true` if PING gets a reply over this connection.
fn ping(mut stream: impl Read + Write) -> bool {
    let mut reply = [0u8; 1];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok() && matches!(reply[0], b'+' | b'-')
}

/// Returns an address that is not in use and was not returned before. The kernel may give a port that was just released
/// to the next caller, so two servers started at the same time would share it.
///
/// # Errors
/// Fails if no loopback port is free.
pub fn unused_address() -> Result<SocketAddr, String> {
    static RETURNED: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());
    loop {
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|error| format!("no free loopback port: {error}"))?;
        let mut given = RETURNED.lock().unwrap_or_else(PoisonError::into_inner);
        if !given.contains(&address) {
            given.push(address);
            return Ok(address);
        }
    }
}

fn new_directory() -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("weft-xtask-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(script: &str) -> ServerProcess {
        let directory = new_directory().expect("a directory");
        let command_line = ["sh", "-c", script].map(str::to_owned).to_vec();
        ServerProcess {
            child: spawn(&command_line, &directory).expect("a shell"),
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            directory,
            command_line,
            tls: None,
        }
    }

    fn wait_for_end(process: &ServerProcess) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !process.has_ended() {
            assert!(Instant::now() < deadline, "the process does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_ended_process_keeps_its_exit_status() {
        let mut running = started("exec sleep 600");
        assert!(!running.has_ended());
        running.kill().expect("kill");
        assert!(running.has_ended());

        let mut ended = started("exit 3");
        wait_for_end(&ended);
        assert!(ended.has_ended(), "it has not been waited for");
        assert_eq!(ended.exit_status().as_deref(), Some("exit status: 3"));
        assert!(ended.has_ended(), "it has been waited for");
    }

    #[test]
    fn a_process_that_was_asked_to_end_must_do_so_with_success() {
        let await_success = |script: &str, timeout| started(script).await_success(timeout);
        assert_eq!(await_success("exit 0", START_TIMEOUT), Ok(()));
        for (script, status) in [("exit 1", "exit status: 1"), ("kill -9 $$", "signal: 9")] {
            let why = await_success(script, START_TIMEOUT).expect_err("another status");
            assert!(why.contains(status), "{script}: {why}");
        }
        let why = await_success("exec sleep 600", Duration::ZERO).expect_err("it goes on");
        assert!(why.contains("does not end"), "{why}");
    }

    #[test]
    fn a_log_says_why_its_process_has_ended_itself() {
        let process =
            started("echo '7:M 28 Nov 2026 10:00:00.000 # ==> server.c:1 '\"'x > 0'\"' is not true'; echo fine");
        wait_for_end(&process);
        assert_eq!(process.crash_lines(), ["==> server.c:1 'x > 0' is not true"]);
        assert_eq!(
            crash_lines("1:M 1 # valkey 9.1.2 crashed by signal: 11"),
            ["valkey 9.1.2 crashed by signal: 11"]
        );
        assert!(crash_lines("1:M 28 Nov 2026 10:00:00.000 * Ready").is_empty());
    }
}

//! A server for a test, on a free port of the loopback interface.

use super::client::Client;
use super::port::free_port;
use super::wait_until;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time limit for any step of a test. It only ends a test that would hang, so it is long: a slow machine may need
/// most of it for a step that takes milliseconds elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Makes four workers active, over which connections are spread. Without this, self-tuning keeps one worker active on a
/// machine with few cores.
pub const MANY_WORKERS: [&str; 4] = ["--io-threads", "4", "--io-threads-always-active", "yes"];

/// Makes each worker hand random connections to random other workers every millisecond.
pub const MOVES: [&str; 2] = ["--connection-move-interval", "1"];

/// A running server in its own directory; killed at the end of the test.
pub struct Server {
    child: Child,
    /// The directory of its files.
    pub directory: PathBuf,
    arguments: Vec<String>,
    /// The limit of the address space in KiB.
    limit_kib: Option<u64>,
    /// The port of the server.
    pub port: u16,
    /// The port of the cluster bus.
    pub bus_port: String,
}

impl Server {
    /// Starts a server with these arguments, and waits until it listens. Unless they say otherwise, it has four
    /// workers, all of which are active.
    pub fn start(arguments: &[&str]) -> Server {
        Server::start_from(None, arguments)
    }

    /// Returns the last value of an option among the arguments.
    fn option(&self, name: &str) -> Option<&str> {
        let position = self.arguments.iter().rposition(|word| word == name)?;
        self.arguments.get(position + 1).map(String::as_str)
    }

    /// Checks that as many workers are active as `--io-threads` says, unless the test leaves that to self-tuning.
    /// Every start of a server does this, so no test is about fewer workers than it was written for.
    fn assert_all_workers_active(&self, active: &str) {
        if self.option("--io-threads-always-active") == Some("yes") {
            assert_eq!(Some(active), self.option("--io-threads"), "active workers");
        }
    }

    /// Starts a server whose address space has this many KiB, and waits until it listens.
    pub fn start_limited(limit_kib: u64, arguments: &[&str]) -> Server {
        Server::start_with(None, Some(limit_kib), arguments)
    }

    /// Starts a cluster node with a node timeout of one minute. On a busy machine nodes may be silent for seconds, and
    /// a node that is declared failed meanwhile would break the test.
    pub fn start_node(arguments: &[&str]) -> Server {
        // The default is the port plus 10000, which is too high for many free ports.
        let bus_port = free_port().to_string();
        let node = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus_port,
            "--cluster-node-timeout",
            "60000",
        ];
        let mut server = Server::start(&[&node, arguments].concat());
        server.bus_port = bus_port;
        server
    }

    /// Waits until the process has ended by itself, and returns its exit code.
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the end of the server", || {
            status = self.child.try_wait().expect("waits");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("sends a signal");
        // The signal is delivered to each thread on its own, and until then the thread goes on.
        if signal == Signal::SIGSTOP {
            wait_until("the server stops", || self.is_stopped());
        }
    }

    /// Sends a request that runs a script on a script thread, and waits until the script has run for a while: what
    /// stands before its first long loop is done. Returns early if a reply arrives before that. No command reports a
    /// script of EVAL that is not overdue, so this observes the processor time of the threads. No other script may run.
    pub fn run_script(&self, client: &mut Client, words: &[&str]) {
        assert!(client.is_waiting(), "an earlier reply would be taken for the script's");
        const SCRIPT_THREADS: &str = "weft-script";
        let before = self.thread_ticks(SCRIPT_THREADS);
        client.send(words);
        wait_until("the script runs", || {
            self.thread_ticks(SCRIPT_THREADS) >= before + 2 || !client.is_waiting()
        });
    }

    /// Returns the processor time that the threads whose names begin with `name` have used, in clock ticks
    /// (`proc_pid_stat(5)`, fields `utime` and `stime`).
    pub fn thread_ticks(&self, name: &str) -> u64 {
        let shown_name = format!("({name}");
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("lists the threads");
        let lines = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        let of_name = lines.filter(|line| line.contains(&shown_name));
        of_name
            .flat_map(|line| {
                // The state is the field behind the name, which is in parentheses.
                let fields = line.rsplit_once(')').map_or("", |(_, fields)| fields);
                let times = fields.split_whitespace().skip(11).take(2);
                times.filter_map(|time| time.parse::<u64>().ok()).collect::<Vec<u64>>()
            })
            .sum()
    }

    /// Returns `true` if every thread of the process is stopped by a signal (`proc_pid_stat(5)`, state `T`).
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("lists the threads");
        threads.flatten().all(|thread| {
            // The state follows the name, which is in parentheses.
            let line = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            line.rsplit_once(')')
                .is_none_or(|(_, state)| state.trim_start().starts_with('T'))
        })
    }

    /// Starts the process again after it was killed, with the same port and directory.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.arguments, self.limit_kib);
        assert!(self.listens(), "the server does not listen");
    }

    /// Starts a server with these arguments and an optional configuration file, and waits until it listens. With a
    /// file, the number of workers is left to the file and the arguments.
    pub fn start_from(file: Option<&str>, arguments: &[&str]) -> Server {
        Server::start_with(file, None, arguments)
    }

    fn start_with(file: Option<&str>, limit_kib: Option<u64>, arguments: &[&str]) -> Server {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weft-server-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("makes a directory");
        let start = Instant::now();
        loop {
            let port = free_port();
            let all = file.into_iter().chain(["--bind", "127.0.0.1", "--port"]);
            let mut all: Vec<String> = all.map(str::to_owned).collect();
            all.push(port.to_string());
            if file.is_none() {
                all.extend(MANY_WORKERS.map(str::to_owned));
            }
            all.extend(["--save".into(), String::new(), "--dir".into()]);
            all.push(directory.to_string_lossy().into_owned());
            all.extend(arguments.iter().map(|word| (*word).to_owned()));
            let mut server = Server {
                child: spawn(&all, limit_kib),
                directory: directory.clone(),
                arguments: all,
                limit_kib,
                port,
                bus_port: String::new(),
            };
            if server.listens() {
                return server;
            }
            drop(server);
            std::fs::create_dir_all(&directory).expect("makes a directory");
            assert!(start.elapsed() < PATIENCE, "the server does not listen");
        }
    }

    /// Starts the process again after it has ended, with other arguments in addition to the port and the directory.
    pub fn start_again_with(&mut self, arguments: &[&str]) {
        let ended = self.child.wait();
        assert!(ended.is_ok(), "the server does not end");
        let directory = self
            .arguments
            .iter()
            .position(|word| word == "--dir")
            .expect("it has one");
        self.arguments.truncate(directory + 2);
        self.arguments.extend(arguments.iter().map(|word| (*word).to_owned()));
        self.start_again();
    }

    /// Waits until the server listens. Returns `false` if another process got the port first.
    fn listens(&mut self) -> bool {
        let start = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            assert!(start.elapsed() < PATIENCE, "the server neither listens nor ends");
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
                stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
                stream.write_all(b"INFO server\r\nINFO weft\r\n").expect("sends");
                let own = format!("process_id:{}", self.child.id());
                let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
                let mut process = lines.by_ref().take_while(|line| !line.starts_with("config_file:"));
                let is_own = process.any(|line| line == own);
                if is_own {
                    let active = lines.find_map(|line| line.strip_prefix("weft_workers_active:").map(str::to_owned));
                    self.assert_all_workers_active(&active.expect("INFO has the number of active workers"));
                }
                return is_own;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// Returns the path of the server under test: the one just built, or the one that `WEFT_SERVER` names.
pub fn binary() -> String {
    std::env::var("WEFT_SERVER").unwrap_or_else(|_| env!("CARGO_BIN_EXE_weft-server").into())
}

fn spawn(arguments: &[String], limit_kib: Option<u64>) -> Child {
    let mut command = match limit_kib {
        None => Command::new(binary()),
        Some(limit) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &limit.to_string(), &binary()]);
            shell
        }
    };
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

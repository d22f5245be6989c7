//! A server with an append-only file, and a client for it.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use crate::harness::client::Client;
use crate::harness::port::free_port;
use crate::harness::server::MANY_WORKERS;
pub use crate::harness::server::PATIENCE;

/// Returns the path of the program under test: the one just built, or the one that `WEFT_SERVER` names.
pub fn weft() -> PathBuf {
    std::env::var_os("WEFT_SERVER").map_or_else(|| env!("CARGO_BIN_EXE_weft-server").into(), PathBuf::from)
}

/// A temporary directory for one test, removed at its end.
pub struct TestDirectory(pub PathBuf);

impl TestDirectory {
    pub fn new() -> TestDirectory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-append-only-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("creates a directory");
        TestDirectory(path)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Returns the path of a file in the directory of the append-only file.
    pub fn part(&self, name: &str) -> PathBuf {
        self.0.join("appendonlydir").join(name)
    }

    /// Returns the path of the last increment.
    pub fn increment(&self) -> PathBuf {
        let manifest = fs::read_to_string(self.part("appendonly.aof.manifest")).expect("there is a manifest");
        let last = manifest
            .lines()
            .rfind(|line| line.ends_with("type i"))
            .expect("there is an increment");
        self.part(last.split(' ').nth(1).expect("a name"))
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server; killed at the end of the test.
pub struct Server {
    pub child: Child,
    pub port: u16,
}

impl Server {
    /// Starts a program in a directory, and waits until it serves clients.
    pub fn start(program: &Path, place: &TestDirectory, arguments: &[&str]) -> Server {
        let start = Instant::now();
        loop {
            let mut server = Server::spawn(program, place, arguments);
            if server.wait_until_ready() {
                if program == Path::new(env!("CARGO_BIN_EXE_weft-server")) {
                    server.assert_all_workers_active(arguments);
                }
                return server;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not serve: {}", place.log());
        }
    }

    /// Checks that as many workers are active as the arguments say.
    fn assert_all_workers_active(&self, arguments: &[&str]) {
        let all = [&MANY_WORKERS[..], arguments].concat();
        let option = |name: &str| {
            let place = all.iter().rposition(|word| *word == name).expect("MANY_WORKERS has it");
            all[place + 1]
        };
        assert_eq!(option("--io-threads-always-active"), "yes");
        assert_eq!(self.client().info("weft_workers_active"), option("--io-threads"));
    }

    /// Starts a program that may end early.
    pub fn spawn(program: &Path, place: &TestDirectory, arguments: &[&str]) -> Server {
        let port = free_port();
        let child = Command::new(program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(MANY_WORKERS)
            .args(["--appendonly", "yes", "--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(&place.0)
            .arg("--logfile")
            .arg(place.0.join("log"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        Server { child, port }
    }

    /// Waits until the server serves clients. Returns `false` if it ended.
    fn wait_until_ready(&mut self) -> bool {
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let listens = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if listens && self.client().call(&["PING"]) == "PONG" {
                return true;
            }
            sleep(Duration::from_millis(5));
        }
        false
    }

    /// Waits for the end of the process and returns its status.
    pub fn wait_for_end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        let _ = self.child.wait();
    }

    pub fn client(&self) -> Client {
        Client::connect(self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

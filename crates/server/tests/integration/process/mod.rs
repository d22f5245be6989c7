//! End-to-end tests of the life of the process: each server runs in its own directory.

mod ending;
mod log;
mod restarting;
mod settings;
mod starting;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::port::free_port;
use crate::harness::server::PATIENCE;
use crate::harness::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SERVER: &str = env!("CARGO_BIN_EXE_weft-server");

/// A temporary directory for one test, removed at its end.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> TestDirectory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-process-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("creates a directory");
        TestDirectory(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn command(&self, port: u16, options: &[&str]) -> Command {
        let mut command = Command::new(SERVER);
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--io-threads", "2"])
            .args(["--dir", &self.0.display().to_string()])
            .args(options)
            .stdin(Stdio::null());
        command
    }

    /// Starts a server whose log is the file `log`, and waits until it is ready.
    fn start(&self, options: &[&str]) -> Server {
        let port = free_port();
        let child = self.spawn(&mut self.command(port, options));
        let server = Server { child, port };
        wait_until("the server", || {
            self.read("log").contains("Ready to accept connections")
        });
        server
    }

    fn spawn(&self, command: &mut Command) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.file("log"));
        command.stdout(log.expect("opens the log")).spawn().expect("starts")
    }

    /// Runs a server that must fail to start.
    fn fail(&self, port: u16, options: &[&str]) -> Output {
        let output = self.command(port, options).output().expect("runs");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        output
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server; killed at the end of a failed test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn connect(&self) -> TcpStream {
        with_timeouts(TcpStream::connect(("127.0.0.1", self.port)).expect("connects"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("sends a signal");
    }

    fn wait(mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the server", || {
            status = self.child.try_wait().expect("waits");
            status.is_some()
        });
        status.expect("has ended")
    }

    fn stop(self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    stream
}

/// Sends a request and compares as many reply bytes as are expected.
fn exchange(stream: &mut (impl Read + Write), request: &[u8], expected: &[u8]) {
    stream.write_all(request).expect("sends");
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).expect("receives");
    assert_eq!(String::from_utf8_lossy(&reply), String::from_utf8_lossy(expected));
}

fn ping(stream: &mut (impl Read + Write)) {
    exchange(stream, b"PING\r\n", b"+PONG\r\n");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails unless lines of `log` contain `expected` in this order.
fn assert_in_order(log: &str, expected: &[&str]) {
    let mut lines = log.lines();
    for part in expected {
        assert!(
            lines.any(|line| line.contains(part)),
            "no {part:?} at its place in\n{log}"
        );
    }
}

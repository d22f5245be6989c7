//! Runs a real Valkey for a test.
//!
//! Tests that need one are marked `#[ignore]`, so that a run without Valkey names them. `cargo xtask ci` installs
//! Valkey and runs them.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::server::PATIENCE;

/// A Valkey server, killed at the end of the test.
pub struct Valkey {
    child: Child,
    directory: PathBuf,
    /// The port of the server.
    pub port: u16,
}

impl Drop for Valkey {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns the path of the Valkey that `WEFT_ORACLE` names.
///
/// # Panics
/// Panics if the variable is not set: a test that needs Valkey cannot pass without it.
pub fn valkey_program() -> PathBuf {
    match std::env::var_os("WEFT_ORACLE") {
        Some(path) => path.into(),
        None => {
            panic!("set WEFT_ORACLE to the path of a Valkey server, which `cargo xtask oracle` installs and prints")
        }
    }
}

impl Valkey {
    /// Starts a server.
    pub fn start(arguments: &[&str]) -> Valkey {
        let program = valkey_program();
        let port = super::port::free_port();
        let directory = std::env::temp_dir().join(format!("weft-valkey-test-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("makes a directory");
        let child = Command::new(program)
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--dir",
            ])
            .arg(&directory)
            .args(["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let valkey = Valkey { child, directory, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "Valkey does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        valkey
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

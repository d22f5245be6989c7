//! Runs a real Valkey for a test, if one is installed.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
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

/// Returns the path of Valkey, if it is installed: `VALKEY_SERVER` or the environment of the differential tests.
fn valkey_program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("VALKEY_SERVER") {
        return Some(named.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pending = vec![root.join(".venv/lib")];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).ok()?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if entry.file_name() == "valkey-server" {
                return Some(path);
            }
        }
    }
    None
}

impl Valkey {
    /// Starts a server; `None` if Valkey is not installed.
    pub fn start(arguments: &[&str]) -> Option<Valkey> {
        let Some(program) = valkey_program() else {
            eprintln!("no Valkey is installed: nothing is compared");
            return None;
        };
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
        Some(valkey)
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Starts a server as a fresh process with its own port and data directory, and ends it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::control::ControlConnection;
use crate::error::{Error, ErrorContext, Result};
use crate::process;
use crate::progress::log_line;
use crate::tls::TlsIdentity;

#[cfg(test)]
mod tests;

/// The time limit for a server's first reply to PING.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of log lines shown when a server does not start.
const SHOWN_LOG_LINES: usize = 15;

/// The parameters for starting a server.
#[derive(Debug, Clone)]
pub struct ServerParameters {
    /// The binary.
    pub program: PathBuf,
    /// Arguments besides address, port, directory and persistence.
    pub arguments: Vec<String>,
    /// The library for LD_PRELOAD.
    pub preload: Option<PathBuf>,
    /// Further variables of its environment.
    pub environment: &'static [(&'static str, &'static str)],
    /// The certificate for a second port with TLS.
    pub tls: Option<Arc<TlsIdentity>>,
    /// The cores on which it may run; if empty, it is not pinned.
    pub cores: Vec<usize>,
}

impl ServerParameters {
    /// Returns the command that starts the server, without address, directory and certificate. The port for TLS is
    /// shown as `PORT`.
    pub fn command_text(&self) -> String {
        let preload = self
            .preload
            .iter()
            .map(|library| format!("LD_PRELOAD={} ", library.display()));
        let environment = self.environment.iter().map(|(name, value)| format!("{name}={value} "));
        let mut text: String = preload.chain(environment).collect();
        text.push_str(&self.program.display().to_string());
        for argument in self.persistence_arguments().into_iter().chain(self.own_arguments()) {
            text.push(' ');
            text.push_str(if argument.is_empty() { "\"\"" } else { argument });
        }
        if self.tls.is_some() {
            for argument in tls_arguments("PORT") {
                text.push(' ');
                text.push_str(argument);
            }
        }
        text
    }

    fn own_arguments(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().map(String::as_str)
    }

    /// Returns the arguments that switch off persistence, except those that the server's own arguments set.
    fn persistence_arguments(&self) -> Vec<&'static str> {
        let defaults = [("--save", ""), ("--appendonly", "no")];
        let is_unset = |(name, _): &(&str, &str)| self.own_arguments().all(|argument| argument != *name);
        let unset = defaults.into_iter().filter(is_unset);
        unset.flat_map(|(name, value)| [name, value]).collect()
    }
}

/// A running server, which ends when this value is dropped.
#[derive(Debug)]
pub struct BenchServer {
    child: Child,
    folder: PathBuf,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// The address on which it listens with TLS.
    pub tls_address: Option<SocketAddr>,
}

impl BenchServer {
    /// Starts a server on a free loopback port, and waits until it replies. It has no persistence unless its arguments
    /// say so, and a data directory of its own, which is removed when it ends.
    ///
    /// # Errors
    /// Fails if the server does not start or reply in time, or if it runs without the preloaded library.
    pub fn start(recipe: &ServerParameters) -> Result<BenchServer> {
        let port = free_port()?;
        let folder = std::env::temp_dir().join(format!("weft-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).context(format!("creating {}", folder.display()))?;
        let tls_port = recipe.tls.as_ref().map(|_| free_port()).transpose()?;
        let child = spawn(recipe, port, tls_port, &folder).inspect_err(|_| remove_directory(&folder))?;
        let on_loopback = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = BenchServer {
            child,
            folder,
            address: on_loopback(port),
            tls_address: tls_port.map(on_loopback),
        };
        server.wait_until_ready()?;
        if let Some(library) = &recipe.preload {
            server.check_preloaded(library)?;
        }
        Ok(server)
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a new control connection.
    ///
    /// # Errors
    /// Fails if the server refuses the connection.
    pub fn control(&self) -> Result<ControlConnection> {
        ControlConnection::connect(self.address, 2)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            let answer = self.control().and_then(|mut control| control.call(&["PING"]));
            if answer.is_ok_and(|reply| reply == "+PONG") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().context("watching the server")? {
                return Err(Error::Server(format!(
                    "the server ended, {status}\n{}",
                    self.log_tail()
                )));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(Error::Server(format!(
            "the server does not answer PING\n{}",
            self.log_tail()
        )))
    }

    /// Verifies that the preloaded library is mapped. The dynamic loader only warns about a library that it cannot
    /// preload, and a static binary ignores the request completely.
    fn check_preloaded(&self, library: &Path) -> Result<()> {
        let path = format!("/proc/{}/maps", self.pid());
        let maps = fs::read_to_string(&path).context(format!("reading {path}"))?;
        let name = library.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // The mapped file may have another name than a symbolic link to it.
        let target = fs::canonicalize(library).context(format!("resolving {}", library.display()))?;
        let target = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_mapped = |line: &str| line.ends_with(name) || line.ends_with(target);
        if maps.lines().any(is_mapped) {
            return Ok(());
        }
        Err(Error::Server(format!("the server runs without {}", library.display())))
    }

    fn log_tail(&self) -> String {
        let text = fs::read(self.folder.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LOG_LINES)..].join("\n")
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        // The server's data is discarded, so a kill loses nothing. Errors mean that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_directory(&self.folder);
    }
}

fn remove_directory(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        log_line(format_args!("weft-bench: cannot remove {}: {error}", folder.display()));
    }
}

/// Returns the arguments of a server with TLS, except for those with its certificate.
fn tls_arguments(port: &str) -> [&str; 4] {
    ["--tls-port", port, "--tls-auth-clients", "no"]
}

/// Starts the process. A child inherits the affinity of the thread that starts it, so all its threads are pinned from
/// their first instruction.
fn spawn(recipe: &ServerParameters, port: u16, tls_port: Option<u16>, folder: &Path) -> Result<Child> {
    let log = File::create(folder.join("log")).context("creating the server's log")?;
    let log_too = log.try_clone().context("creating the server's log")?;
    let mut command = Command::new(&recipe.program);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(folder)
        .args(recipe.persistence_arguments())
        .args(&recipe.arguments)
        .envs(recipe.environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    if let Some(library) = &recipe.preload {
        command.env("LD_PRELOAD", library);
    }
    if let Some((port, identity)) = tls_port.zip(recipe.tls.as_ref()) {
        command
            .args(tls_arguments(&port.to_string()))
            .arg("--tls-cert-file")
            .arg(&identity.certificate)
            .arg("--tls-key-file")
            .arg(&identity.key)
            .arg("--tls-ca-cert-file")
            .arg(&identity.certificate);
    }
    let allowed = process::allowed_cores()?;
    if !recipe.cores.is_empty() {
        process::pin_this_thread(&recipe.cores)?;
    }
    let child = command
        .spawn()
        .context(format!("starting {}", recipe.program.display()));
    process::pin_this_thread(&allowed)?;
    child
}

/// Returns a port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr().context("looking for a free port")?.port())
}

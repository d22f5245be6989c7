//! Starts a server as a fresh process with its own port and data folder, and ends it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::error::{Error, ErrorContext, Result};
use crate::process;

/// How long a server may take to answer its first PING.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Lines of a server's log shown when it does not start.
const SHOWN_LINES: usize = 15;

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The binary.
    pub program: PathBuf,
    /// Arguments besides address, port, folder and persistence.
    pub arguments: Vec<String>,
    /// LD_PRELOAD.
    pub preload: Option<PathBuf>,
    /// Cores it may run on; none leaves it free.
    pub cores: Vec<usize>,
}

/// A running server, ended with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts a server on a free loopback port without persistence, and waits until it answers.
    pub fn start(recipe: &Recipe) -> Result<Server> {
        let port = free_port()?;
        let folder = std::env::temp_dir().join(format!("weft-bench-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).doing(format!("creating {}", folder.display()))?;
        let child = spawn(recipe, port, &folder).inspect_err(|_| remove(&folder))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { child, folder, address };
        server.wait_until_ready()?;
        if let Some(library) = &recipe.preload {
            server.check_preloaded(library)?;
        }
        Ok(server)
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A new control connection.
    pub fn control(&self) -> Result<Control> {
        Control::connect(self.address, 2)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < START_TIMEOUT {
            let answer = self.control().and_then(|mut control| control.call(&["PING"]));
            if answer.is_ok_and(|reply| reply == "+PONG") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().doing("watching the server")? {
                return Err(Error::Server(format!("the server ended, {status}\n{}", self.log_end())));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(Error::Server(format!(
            "the server does not answer PING\n{}",
            self.log_end()
        )))
    }

    /// The dynamic loader only warns about a library it cannot preload, and a static binary ignores
    /// the wish altogether.
    fn check_preloaded(&self, library: &Path) -> Result<()> {
        let path = format!("/proc/{}/maps", self.pid());
        let maps = fs::read_to_string(&path).doing(format!("reading {path}"))?;
        let name = library.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // The mapped file may have another name than a symbolic link to it.
        let target = fs::canonicalize(library).doing(format!("resolving {}", library.display()))?;
        let target = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_mapped = |line: &str| line.ends_with(name) || line.ends_with(target);
        if maps.lines().any(is_mapped) {
            return Ok(());
        }
        Err(Error::Server(format!("the server runs without {}", library.display())))
    }

    fn log_end(&self) -> String {
        let text = fs::read(self.folder.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data is thrown away, so nothing is lost by not asking politely. Errors mean that it
        // has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("weft-bench: cannot remove {}: {error}", folder.display());
    }
}

/// Starts the process. A child inherits the affinity of the thread that starts it, so that all its
/// threads are pinned from their first instruction.
fn spawn(recipe: &Recipe, port: u16, folder: &Path) -> Result<Child> {
    let log = File::create(folder.join("log")).doing("creating the server's log")?;
    let log_too = log.try_clone().doing("creating the server's log")?;
    let mut command = Command::new(&recipe.program);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "no", "--dir"])
        .arg(folder)
        .args(&recipe.arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    if let Some(library) = &recipe.preload {
        command.env("LD_PRELOAD", library);
    }
    let allowed = process::allowed_cores()?;
    if !recipe.cores.is_empty() {
        process::pin_this_thread(&recipe.cores)?;
    }
    let child = command.spawn().doing(format!("starting {}", recipe.program.display()));
    process::pin_this_thread(&allowed)?;
    child
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("looking for a free port")?;
    Ok(listener.local_addr().doing("looking for a free port")?.port())
}

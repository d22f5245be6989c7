//! A server on a given directory, with or without the preload library.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{self, WaitPidFlag};
use nix::unistd::Pid;

use crate::stress::client::{StressClient, StressReply};
use crate::workspace;

/// The time that a start, an end or a reply may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of the preload library.
#[derive(Clone, Debug, Default)]
pub struct Preload {
    pub library: PathBuf,
    /// The file to which operations are recorded.
    pub recording: Option<PathBuf>,
    /// The file with the faults to inject.
    pub control: Option<PathBuf>,
    /// The longest random delay of a sync in microseconds.
    pub sync_us: u32,
    /// The kind of syncs that have no effect.
    pub ignored: Option<&'static str>,
}

/// Compiles the preload library.
///
/// # Errors
/// Fails if the C compiler does.
pub fn compile_preload() -> Result<PathBuf, String> {
    let directory = workspace::root().join("target/faults");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let library = directory.join("faults.so");
    // Under another name first: a server of another run may be using the library.
    let fresh = directory.join(format!("faults-{}.so", std::process::id()));
    let arguments = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O2",
        "-shared",
        "-fPIC",
        "tests/faults/faults.c",
        "-o",
    ];
    let mut command = workspace::command("cc", &arguments);
    workspace::run(command.arg(&fresh).args(["-ldl", "-lpthread"]))?;
    fs::rename(&fresh, &library).map_err(|error| format!("{}: {error}", library.display()))?;
    Ok(library)
}

/// A running server. It is killed when the handle is dropped.
pub struct Server {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts a server on `directory` and waits until it serves clients. Its socket and its log lie beside the
    /// directory.
    ///
    /// # Errors
    /// Fails if it ends, or does not reply in time. The error contains the end of its log.
    pub fn start(
        binary: &Path,
        directory: &Path,
        arguments: &[&str],
        preload: Option<&Preload>,
    ) -> Result<Self, String> {
        let mut server = Self::spawn(binary, directory, arguments, preload)?;
        match server.wait_until_ready() {
            Ok(()) => Ok(server),
            Err(why) => Err(format!("{why}\n{}", server.log_tail(25))),
        }
    }

    /// Starts a server without waiting for it.
    ///
    /// # Errors
    /// Fails if the process cannot be created.
    pub fn spawn(
        binary: &Path,
        directory: &Path,
        arguments: &[&str],
        preload: Option<&Preload>,
    ) -> Result<Self, String> {
        let (socket, log) = (directory.with_extension("socket"), directory.with_extension("log"));
        let file = File::options().append(true).create(true).open(&log);
        let file = file.map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(binary);
        command
            .args(["--port", "0", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(directory)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        if let Some(preload) = preload {
            command
                .env("LD_PRELOAD", &preload.library)
                .env("FAULTS_DIR", directory)
                .env("FAULTS_SYNC_US", preload.sync_us.to_string());
            let files = [("FAULTS_LOG", &preload.recording), ("FAULTS_CONTROL", &preload.control)];
            for (name, path) in files {
                if let Some(path) = path {
                    command.env(name, path);
                }
            }
            if let Some(kind) = preload.ignored {
                command.env("FAULTS_IGNORE", kind);
            }
        }
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        Ok(Self { child, socket, log })
    }

    /// Waits until the server serves clients.
    ///
    /// # Errors
    /// Fails if it ends, or does not reply in time.
    pub fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server does not start ({status})"));
            }
            if let Ok(mut client) = self.connect()
                && matches!(client.call("PING"), Ok(StressReply::Simple(_)))
            {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err("the server does not reply".to_owned())
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// Fails if the server does not accept it.
    pub fn connect(&self) -> Result<StressClient, String> {
        StressClient::connect_unix(&self.socket, PATIENCE)
    }

    /// The ID of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        // Both calls fail if the process has ended already, which is the desired state.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the process between two system calls. A kill within one would cut the recording in the middle of a record.
    pub fn kill_between_calls(&mut self) {
        let pid = Pid::from_raw(self.id().cast_signed());
        // A stopped process has no thread within a system call. The calls fail if the process has ended already.
        if signal::kill(pid, Signal::SIGSTOP).is_ok() {
            let _ = wait::waitpid(pid, Some(WaitPidFlag::WUNTRACED));
        }
        self.kill();
    }

    /// Ends the process by SIGTERM, and waits until it has ended.
    ///
    /// # Errors
    /// Fails if it does not end in time.
    pub fn terminate(&mut self) -> Result<ExitStatus, String> {
        workspace::run(&mut workspace::command(
            "sh",
            &["-c", &format!("kill -TERM {}", self.id())],
        ))?;
        self.wait_for_exit(PATIENCE)
            .ok_or_else(|| "the server does not end after SIGTERM".to_owned())
    }

    /// Waits for the end of the process.
    pub fn wait_for_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() > deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a field in the text of INFO.
pub fn info_field<'t>(text: &'t str, field: &str) -> Option<&'t str> {
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}

//! Restarts the process in place: the program is executed again with the arguments of this process.
//!
//! Executing it ends all threads and closes all sockets and files at once, because each of them is opened with
//! `O_CLOEXEC`. A delay passes in the new process, before it does anything else.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use crate::observability::log;

/// The environment variable that tells the new process how long to wait, in milliseconds.
const DELAY_VARIABLE: &str = "WEFT_RESTART_DELAY_MS";

/// How this process was started. The arguments are copied because the process title replaces them.
struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
    directory: Option<PathBuf>,
}

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// Records how this process was started, and waits if it was restarted with a delay. It must run before the directory
/// or the title changes.
pub fn record_invocation(arguments: &[OsString]) {
    let _ = INVOCATION.set(Invocation {
        program: std::env::current_exe().unwrap_or_default(),
        arguments: arguments.to_vec(),
        directory: std::env::current_dir().ok(),
    });
    let delay = std::env::var(DELAY_VARIABLE).ok().and_then(|text| text.parse().ok());
    if let Some(delay_ms) = delay {
        weft_os::thread::sleep(Duration::from_millis(delay_ms));
    }
}

/// Returns `true` if the program is still there and may be executed; otherwise the reason was logged.
pub fn is_possible() -> bool {
    let program = INVOCATION.get().map(|invocation| &invocation.program);
    let is_executable = program.is_some_and(|program| access(program, AccessFlags::X_OK).is_ok());
    if !is_executable {
        let program = program.cloned().unwrap_or_default();
        log::warning!(
            "Can't restart: this process has no permissions to execute {}",
            program.display()
        );
    }
    is_executable
}

/// Replaces this process by a new one of the same program, with the same arguments and directory.
///
/// # Errors
/// If the program cannot be executed.
pub fn execute_again(delay: Duration) -> std::io::Result<Infallible> {
    let invocation = INVOCATION
        .get()
        .ok_or_else(|| std::io::Error::other("the arguments of the process are not known"))?;
    let mut command = Command::new(&invocation.program);
    if let [name, arguments @ ..] = invocation.arguments.as_slice() {
        command.arg0(name).args(arguments);
    }
    if let Some(directory) = &invocation.directory {
        command.current_dir(directory);
    }
    if delay.is_zero() {
        command.env_remove(DELAY_VARIABLE);
    } else {
        command.env(DELAY_VARIABLE, delay.as_millis().to_string());
    }
    Err(command.exec())
}

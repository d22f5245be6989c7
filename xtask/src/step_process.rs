//! Runs a step of CI in a process of its own, with a time limit.
//!
//! The process is the leader of a process group, to which everything belongs that the step starts: compilers, tests,
//! servers. When the time limit has passed, the whole group is killed. The step's standard input is a pipe from CI:
//! when CI itself is killed, the step reads the end of the pipe and kills its own group.
//!
//! A step passes the parts that it leaves out to CI by a file, one line for each part: its name and the reason.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgrp};

use crate::workspace;

/// The interval at which CI looks if a step has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The result of a step's process.
#[derive(Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// The process exited with 0.
    Passed,
    /// The process failed, with this status.
    Failed(String),
    /// The process did not end within the time limit, and its group was killed.
    TimedOut,
}

/// The file that receives a step's output.
pub fn log_path(step: &str) -> PathBuf {
    file(step, "log")
}

/// The file that lists what a step has left out.
fn skipped_path(step: &str) -> PathBuf {
    file(step, "skipped")
}

fn file(step: &str, extension: &str) -> PathBuf {
    workspace::root().join("target/ci").join(format!("{step}.{extension}"))
}

/// Runs `command` as the process of `step`, for at most `limit`. With `captures`, its output goes to [`log_path`].
///
/// # Errors
/// Fails if the process cannot be started or its files cannot be made.
pub fn run(step: &str, command: &mut Command, captures: bool, limit: Duration) -> Result<StepEnd, String> {
    use std::os::unix::process::CommandExt;
    let log = log_path(step);
    let describe = |error: std::io::Error| format!("{}: {error}", log.display());
    fs::create_dir_all(log.with_file_name("")).map_err(describe)?;
    let _ = fs::remove_file(skipped_path(step));
    if captures {
        let output = File::create(&log).map_err(describe)?;
        let errors = output.try_clone().map_err(describe)?;
        command.stdout(output).stderr(errors);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start the step: {error}"))?;
    let end = wait_for_end(&mut child, limit);
    // Processes that the step has left running would otherwise disturb the steps after it.
    kill_group(&child);
    let _ = child.wait();
    end
}

fn wait_for_end(child: &mut Child, limit: Duration) -> Result<StepEnd, String> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(judge(status));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(StepEnd::TimedOut)
}

fn judge(status: ExitStatus) -> StepEnd {
    if status.success() {
        StepEnd::Passed
    } else {
        StepEnd::Failed(status.to_string())
    }
}

/// Kills the group of a step. The call fails if all its processes have ended, which is the desired state.
fn kill_group(leader: &Child) {
    if let Ok(id) = i32::try_from(leader.id()) {
        let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
    }
}

/// Kills this process and its group when the process that started it has ended. Called in the process of a step.
pub fn end_with_parent() {
    thread::spawn(|| {
        let mut bytes = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut bytes);
        let _ = killpg(getpgrp(), Signal::SIGKILL);
    });
}

/// Records what this step has left out. Called in the process of a step.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn record_skipped(step: &str, parts: &[String]) -> Result<(), String> {
    let path = skipped_path(step);
    fs::write(&path, parts.join("\n")).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns what a step has left out.
pub fn recorded_skipped(step: &str) -> Vec<String> {
    let text = fs::read_to_string(skipped_path(step)).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

#[cfg(test)]
mod tests;

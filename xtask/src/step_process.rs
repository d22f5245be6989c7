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

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::{TimeVal, TimeValLike};
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
    let _ = fs::remove_file(file(step, "seconds"));
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

/// Records the processor time of the processes that this step has started and waited for. Called in the process of a
/// step.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn record_processor_time(step: &str) -> Result<(), String> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| error.to_string())?;
    let seconds = |time: TimeVal| time.num_milliseconds() as f64 / 1e3;
    let total = seconds(usage.user_time()) + seconds(usage.system_time());
    let path = file(step, "seconds");
    fs::write(&path, total.to_string()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the processor time of a step's processes in seconds, if it has got so far as to record it.
pub fn recorded_processor_time(step: &str) -> Option<f64> {
    fs::read_to_string(file(step, "seconds")).ok()?.parse().ok()
}

/// Returns what a step has left out.
pub fn recorded_skipped(step: &str) -> Vec<String> {
    let text = fs::read_to_string(skipped_path(step)).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

#[cfg(test)]
mod tests;

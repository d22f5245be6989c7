//! The workspace's directory, and execution of programs in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory that contains the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Creates a command that runs `program` in the workspace root with `arguments`.
pub fn command(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Runs `command` with its output on the terminal.
///
/// # Errors
/// Fails if the command cannot be started or does not exit with 0.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = command_line(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {shown}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{shown} failed ({status})"))
    }
}

/// Returns `true` if `program` can be started with `arguments` and exits with 0. Its output is discarded.
pub fn succeeds(program: &str, arguments: &[&str]) -> bool {
    command(program, arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns every file that git tracks, or would track if it were added, relative to the root.
///
/// # Errors
/// Fails if git does.
pub fn tracked_files() -> Result<Vec<PathBuf>, String> {
    let output = command("git", &["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err("git ls-files failed".to_string());
    }
    let mut files: Vec<PathBuf> = output
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
        .filter(|name| root().join(name).is_file())
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the path of a file called `name` below `directory`.
pub fn find_file(directory: &Path, name: &str) -> Option<PathBuf> {
    let mut pending = vec![directory.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).ok()?.flatten() {
            let path = entry.path();
            let kind = entry.file_type().ok()?;
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() && entry.file_name() == name {
                return Some(path);
            }
        }
    }
    None
}

fn command_line(command: &Command) -> String {
    let mut text = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            text += &format!("{}={} ", name.to_string_lossy(), value.to_string_lossy());
        }
    }
    text += &command.get_program().to_string_lossy();
    for argument in command.get_args() {
        text.push(' ');
        text += &argument.to_string_lossy();
    }
    text
}

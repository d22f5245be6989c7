//! `cargo xtask book`: runs the checks of `tests/book/check.py`, which execute the examples of `docs/book`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::{oracle, workspace};

/// Runs the checks. `words` are options of the program.
///
/// # Errors
/// Fails if a check fails or the program cannot be started.
pub fn main(words: &[String]) -> Result<(), String> {
    run_all(words).map(|_| ())
}

/// Runs the checks. Returns those that are skipped, each with the reason.
///
/// # Errors
/// Fails like [`main`].
pub fn run_all(words: &[String]) -> Result<Vec<String>, String> {
    let oracle = oracle::ensure_installed()?;
    let mut command = workspace::command(&oracle.python, &["tests/book/check.py", "--valkey"]);
    command.arg(&oracle.server);
    let mut child = command
        .args(words)
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run Python: {error}"))?;
    let output = child.stdout.take().ok_or("the output is not piped")?;
    let mut skipped = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("the output of the checks: {error}"))?;
        println!("{line}");
        if let Some(check) = line.strip_prefix("skipped ") {
            skipped.push(format!("check {check}"));
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(skipped)
    } else {
        Err(format!("tests/book/check.py failed ({status})"))
    }
}

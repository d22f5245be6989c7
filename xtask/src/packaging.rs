//! `cargo xtask packaging`: runs the checks of `tests/packaging/check.py`, which are about everything in `packaging/`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::workspace;

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
    let mut command = workspace::command("python3", &["tests/packaging/check.py"]);
    let mut child = command
        .args(words)
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run python3: {error}"))?;
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
        Err(format!("tests/packaging/check.py failed ({status})"))
    }
}

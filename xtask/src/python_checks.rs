//! Runs a program in Python that makes checks and prints which of them it skips.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs the program, whose name is `name` in errors, and shows its output. Returns the checks that it skips, each with
/// the reason.
///
/// # Errors
/// Fails if a check fails or the program cannot be started.
pub fn run(name: &str, mut program: Command) -> Result<Vec<String>, String> {
    let mut child = program
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run Python: {error}"))?;
    let output = child.stdout.take().ok_or("the output is not piped")?;
    let mut skipped = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| format!("the output of {name}: {error}"))?;
        println!("{line}");
        if let Some(check) = line.strip_prefix("skipped ") {
            skipped.push(format!("check {check}"));
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(skipped),
        false => Err(format!("{name} failed ({status})")),
    }
}

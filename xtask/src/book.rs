//! `cargo xtask book`: runs the checks of `tests/book/check.py`, which execute the examples of `docs/book`.

use crate::{oracle, python_checks, workspace};

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
    let mut program = workspace::command(&oracle.python, &["tests/book/check.py", "--valkey"]);
    program.arg(&oracle.server).args(words);
    python_checks::run("tests/book/check.py", program)
}

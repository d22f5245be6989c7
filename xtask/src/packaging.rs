//! `cargo xtask packaging`: runs the checks of `tests/packaging/check.py`, which are about everything in `packaging/`.

use crate::{python_checks, workspace};

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
    let mut program = workspace::command("python3", &["tests/packaging/check.py"]);
    program.args(words);
    python_checks::run("tests/packaging/check.py", program)
}

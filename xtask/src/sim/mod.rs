//! `cargo xtask sim`: runs the simulation with many seeds, or shows how soon it finds planted faults.

pub mod planted;
mod seeds;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::options::Options;
use crate::workspace;
use seeds::{SeedRuns, TimeLimit};

/// The number of seconds for which seeds are tried if nothing else is said.
const DEFAULT_SECONDS: u64 = 180;

/// Runs new seeds for a time (`--seconds`, `--from`), one seed (`--seed`), or the planted faults (`--planted all` or a
/// list of names).
///
/// # Errors
/// Fails if a seed fails, if a planted fault is not found, or if the simulation cannot be built.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["seed", "seconds", "from", "jobs", "planted"], &[])?;
    let jobs = options.number("jobs", default_jobs())?;
    let limit = Duration::from_secs(options.number("seconds", DEFAULT_SECONDS)?);
    if let Some(names) = options.value("planted") {
        return planted::run(names, jobs, limit);
    }
    let program = build(&workspace::root(), Path::new("target"))?;
    if options.is_given("seed") {
        return seeds::run_one(&program, options.number("seed", 1)?);
    }
    let first = options.number("from", seeds::new_seed())?;
    println!("seeds from {first}, for {} s on {jobs} processes", limit.as_secs());
    let found = SeedRuns {
        program,
        first,
        jobs,
        limit: TimeLimit::Elapsed(limit),
    }
    .run()?;
    println!("{}", found.summary());
    match found.failure {
        None if found.passed == 0 => Err("no seed was run".to_owned()),
        None => found.check_given_up(),
        Some(failure) => Err(failure.describe()),
    }
}

fn default_jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Builds the simulation of the sources in `root`, and returns the program.
fn build(root: &Path, target: &Path) -> Result<PathBuf, String> {
    let mut command = workspace::command(
        "cargo",
        &["build", "--quiet", "-p", "weft-sim", "--features", "simulated"],
    );
    let target = workspace::root().join(target);
    command.current_dir(root).env("CARGO_TARGET_DIR", &target);
    workspace::run(&mut command)?;
    Ok(target.join("debug/weft-sim"))
}

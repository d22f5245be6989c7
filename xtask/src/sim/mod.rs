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
/// The same for a planted fault, in seconds of the processors. Nearly all are found within two minutes.
const DEFAULT_SECONDS_PER_FAULT: u64 = 480;
/// The number of seeds that are run twice first, and must repeat their runs.
const REPEATED_SEEDS: u64 = 3;

/// Runs new seeds for a time (`--seconds`, `--from`), the first ones twice, or one seed (`--seed`), or the planted
/// faults (`--planted all` or a list of names).
///
/// # Errors
/// Fails if a seed fails or does not repeat its run, if a planted fault is not found, or if the simulation cannot be
/// built.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["seed", "seconds", "from", "jobs", "planted"], &[])?;
    let jobs = options.number("jobs", default_jobs())?;
    if let Some(names) = options.value("planted") {
        let limit = options.number("seconds", DEFAULT_SECONDS_PER_FAULT)?;
        return planted::run(names, jobs, Duration::from_secs(limit));
    }
    let limit = Duration::from_secs(options.number("seconds", DEFAULT_SECONDS)?);
    let program = build_here()?;
    if options.is_given("seed") {
        return seeds::run_one(&program, options.number("seed", 1)?);
    }
    let first = options.number("from", seeds::new_seed())?;
    println!("seeds from {first}, for {} s on {jobs} processes", limit.as_secs());
    seeds::check_repeatability(&program, first..first + REPEATED_SEEDS)?;
    let found = SeedRuns {
        program,
        first,
        jobs,
        limit: TimeLimit::Elapsed(limit),
        environment: Vec::new(),
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

/// Builds the simulation of this work tree, and returns the program.
///
/// # Errors
/// Fails if the sources cannot be built.
pub fn build_here() -> Result<PathBuf, String> {
    build(&workspace::root(), Path::new("target"))
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

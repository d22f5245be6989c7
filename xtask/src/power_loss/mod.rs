//! `cargo xtask power-loss`: what is left of acknowledged writes after power losses, disk errors and kills.
//!
//! ```text
//!   losses.rs   the server runs under load with a preload library that records its file operations (recording.rs);
//!               disk.rs makes the disks that power losses at random points leave; the server loads each (check.rs)
//!   planted.rs  defects that the checks must find (--self-check)
//!   kills.rs    the server is killed under load and started again (--kills)
//!   errors.rs   writes, syncs, renames and opens fail; the behaviour is compared with Valkey's (--errors)
//!   every_fault.rs  each single operation fails in turn (--errors)
//! ```
//!
//! `appendfsync always` must lose no acknowledged write, `everysec` none that is older than two seconds. What survives
//! is a prefix of the order of writes, and operations, transactions and scripts survive as a whole or not at all.

mod check;
mod disk;
mod error_scenarios;
mod errors;
mod every_fault;
mod history;
mod kills;
mod losses;
mod model;
mod operations;
mod planted;
mod readback;
mod recording;
mod run;
mod server;

use std::path::PathBuf;
use std::time::Instant;

use crate::options::Options;
use disk::DataFate;
use losses::{Counts, Series};
use planted::Plant;

/// The number of losses with which a planted defect must be found.
const LOSSES_PER_PLANT: usize = 400;

/// Runs power losses: `--server PATH`, `--losses N`, `--seed N`, `--data FATE`, `--policy POLICY`; or `--self-check`,
/// `--kills N`, or `--errors` with `--valkey PATH`, `--filter TEXT` and `--stride N`.
///
/// # Errors
/// Fails if acknowledged data is lost, or if a planted defect is not found.
pub fn main(words: &[String]) -> Result<(), String> {
    let valued = [
        "server", "losses", "seed", "data", "policy", "kills", "valkey", "filter", "stride",
    ];
    let options = Options::parse(words, &valued, &["self-check", "errors"])?;
    let binary = options.value("server").map_or_else(
        || crate::workspace::root().join("target/release/weft-server"),
        PathBuf::from,
    );
    let seed = options.number("seed", fastrand::u64(..))?;
    let losses = options.number("losses", 300)?;
    println!("seed {seed}");
    let library = server::compile_preload()?;
    let directory = losses::new_directory()?;
    let series = Series {
        binary: &binary,
        library: &library,
        directory: &directory,
        seed,
        losses,
        losses_per_run: 100,
        plant: None,
        data_fate: options.value("data").and_then(DataFate::named),
        policy: options.value("policy").map(policy_named).transpose()?,
    };
    let outcome = match () {
        () if options.is_given("self-check") => self_check(&series),
        () if options.is_given("kills") => kill(&series, options.number("kills", 0)?),
        () if options.is_given("errors") => fail(&series, &options),
        () => {
            let start = Instant::now();
            losses::run_series(&series).map(|counts| print_counts(&counts, start))
        }
    };
    // The remaining data lies in memory.
    let _ = std::fs::remove_dir_all(&directory);
    outcome
}

/// The values of `appendfsync`.
const POLICIES: &[&str] = &["always", "everysec", "no"];

fn policy_named(name: &str) -> Result<&'static str, String> {
    let known = POLICIES.iter().find(|policy| **policy == name);
    known
        .copied()
        .ok_or_else(|| format!("--policy is one of {}", POLICIES.join(", ")))
}

fn print_counts(counts: &Counts, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} power losses in {} runs ({} of them on the disk of a loss), {} acknowledged operations, {} records, \
         {} AOF loads ({} truncated), {} dump loads, {} disks with holes ({} needed valkey-check-aof --fix, {} \
         refused, {} with damaged values that were not acknowledged), {seconds:.0} s",
        counts.losses,
        counts.runs,
        counts.chained_runs,
        counts.acknowledged,
        counts.records,
        counts.aof_loads,
        counts.truncated_loads,
        counts.dump_loads,
        counts.holes,
        counts.holes_fixed,
        counts.holes_refused,
        counts.holes_damaged
    );
}

/// Kills the server.
fn kill(series: &Series<'_>, kills: u64) -> Result<(), String> {
    let start = Instant::now();
    let counts = kills::run_kills(series, kills)?;
    if counts.acknowledged == 0 {
        return Err("no operation was acknowledged".to_owned());
    }
    println!(
        "{} kills, {} acknowledged operations, none lost, {:.0} s",
        counts.kills,
        counts.acknowledged,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Lets operations fail.
fn fail(series: &Series<'_>, options: &Options) -> Result<(), String> {
    let start = Instant::now();
    let valkey = match options.value("valkey") {
        Some(path) => PathBuf::from(path),
        None => crate::oracle::ensure_installed()?.server,
    };
    let filter = options.value("filter").unwrap_or_default();
    let stride: usize = options.number("stride", 1)?;
    let counts = match filter {
        "" => every_fault::run(series.binary, series.library, series.directory, stride.max(1))?,
        _ => every_fault::EveryFaultCounts::default(),
    };
    let scenarios = errors::compare(series.binary, &valkey, series.library, series.directory, filter)?;
    if scenarios == 0 {
        return Err(format!("no scenario has '{filter}' in its name"));
    }
    if filter.is_empty() && (counts.faults == 0 || counts.exits == 0) {
        return Err("no operation of the server has failed: the preload library has no effect".to_owned());
    }
    println!(
        "{scenarios} scenarios of disk errors as in Valkey; {} single faults ({} ended the process, as they must), no \
         acknowledged write lost, {:.0} s",
        counts.faults,
        counts.exits,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Checks that every planted defect is found.
fn self_check(series: &Series<'_>) -> Result<(), String> {
    for plant in Plant::ALL {
        let planted = Series {
            plant: Some(plant),
            policy: Some("always"),
            losses: LOSSES_PER_PLANT,
            ..*series
        };
        match losses::run_series(&planted) {
            Err(why) => println!("{plant:?}: found: {}", why.lines().next().unwrap_or_default()),
            Ok(_) => return Err(format!("{plant:?} was not found in {LOSSES_PER_PLANT} losses")),
        }
    }
    Ok(())
}

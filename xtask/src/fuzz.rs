//! `cargo xtask fuzz`: builds all fuzz targets at once and runs each for some seconds, as many at a time as there are
//! cores.
//!
//! It builds them as `cargo fuzz build -s none` does, with the toolchain of the project: the instrumentation of LLVM
//! that libFuzzer needs is available in every compiler, and only the sanitizers need a nightly one. What a target finds
//! lies in `fuzz/artifacts/TARGET`; what it learns, in `fuzz/corpus/TARGET`.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use crate::options::Options;
use crate::workspace;

#[cfg(test)]
mod tests;

/// The coverage instrumentation of libFuzzer: counters per edge, the table of their places, and comparisons. Edges must
/// not be folded into each other before they are counted.
const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                               -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                               -Cllvm-args=-sanitizer-coverage-pc-table \
                               -Cllvm-args=-sanitizer-coverage-trace-compares \
                               -Cllvm-args=-simplifycfg-branch-fold-threshold=0";
/// The only platform on which the targets are built. Naming it keeps build scripts without instrumentation.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// The seconds that a target runs in CI.
const DEFAULT_SECONDS: u64 = 30;
/// The memory that a target may use, in MiB.
const MEMORY_MIB: u64 = 2048;
/// The longest input, in bytes. The messages of the cluster bus have 2256 at least.
const LONGEST_INPUT: &[(&str, u32)] = &[("cluster_bus", 9500), ("restore", 600)];
const LONGEST_INPUT_ELSEWHERE: u32 = 4096;

/// How a target is run.
struct RunLimits {
    seconds: u64,
    /// The seed of the mutations; 0 lets libFuzzer choose one.
    seed: u64,
}

/// Runs the targets, or those named by `--only`, for `--seconds` each; with `--seed` the mutations begin alike each
/// time.
///
/// # Errors
/// Fails if a target finds a fault or runs no input, or none can be built.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["only", "seconds", "seed"], &[])?;
    let limits = RunLimits {
        seconds: options.number("seconds", DEFAULT_SECONDS)?,
        seed: options.number("seed", 0)?,
    };
    let targets = select_targets(&options.list("only"))?;
    if let Some(reason) = why_impossible() {
        return Err(reason.to_owned());
    }
    let start = Instant::now();
    build(&targets)?;
    println!("built in {:.0} s", start.elapsed().as_secs_f64());
    run_targets(&targets, &limits)
}

/// Returns the reason if this machine cannot build the targets.
pub fn why_impossible() -> Option<&'static str> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("only on x86-64 Linux");
    }
    let has_compiler = workspace::succeeds("c++", &["--version"]);
    (!has_compiler).then_some("libFuzzer needs a C++ compiler (package g++)")
}

fn build(targets: &[String]) -> Result<(), String> {
    let folder = workspace::root().join("fuzz");
    let mut command = workspace::command(
        "cargo",
        &["build", "--quiet", "--features", "libfuzzer", "--target", PLATFORM],
    );
    for target in targets {
        command.args(["--bin", target]);
    }
    command
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("RUSTFLAGS", INSTRUMENTATION);
    workspace::run(&mut command)
}

fn select_targets(names: &[&str]) -> Result<Vec<String>, String> {
    let folder = workspace::root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let mut targets: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    if let Some(unknown) = names.iter().find(|name| !targets.iter().any(|target| target == *name)) {
        return Err(format!("there is no target '{unknown}'"));
    }
    targets.retain(|target| names.is_empty() || names.contains(&target.as_str()));
    Ok(targets)
}

/// Runs the targets, as many at a time as there are cores.
fn run_targets(targets: &[String], limits: &RunLimits) -> Result<(), String> {
    let (queue, failed) = (Mutex::new(targets.iter()), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().map_or(None, |mut queue| queue.next());
                    let Some(target) = next else {
                        return;
                    };
                    if let Err(error) = run_target(target, limits)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(error);
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(failed) if failed.is_empty() => Ok(()),
        Ok(failed) => Err(failed.join("\n")),
        Err(_) => Err("a thread that runs targets failed".to_owned()),
    }
}

/// Returns the last line of a report, which says how many inputs the target has run: `Done N runs in S second(s)`.
/// `None` if the report has no such line, or if no input was run.
fn final_line(report: &str) -> Option<&str> {
    let line = report.lines().rev().find(|line| line.starts_with("Done "))?;
    let runs: u64 = line.split(' ').nth(1)?.parse().ok()?;
    (runs > 0).then_some(line)
}

/// Runs one target. Its report is shown if it fails; otherwise its last line.
fn run_target(target: &str, limits: &RunLimits) -> Result<(), String> {
    let root = workspace::root();
    let folder = |kind: &str| root.join("fuzz").join(kind).join(target);
    let (corpus, artifacts) = (folder("corpus"), folder("artifacts"));
    // Files that a target writes lie here.
    let scratch = std::env::temp_dir().join(format!("weft-fuzz-{}-{target}", std::process::id()));
    for folder in [&corpus, &artifacts, &scratch] {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    }
    let longest = LONGEST_INPUT
        .iter()
        .find(|(name, _)| *name == target)
        .map_or(LONGEST_INPUT_ELSEWHERE, |(_, bytes)| *bytes);
    let output = Command::new(root.join("fuzz/target").join(PLATFORM).join("debug").join(target))
        .args([&corpus, &folder("seeds")])
        .arg(format!("-max_total_time={}", limits.seconds))
        .arg(format!("-seed={}", limits.seed))
        .arg(format!("-max_len={longest}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg("-timeout=30")
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .current_dir(&scratch)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run the fuzz target {target}: {error}"))?;
    // It may hold what the target has written, and is of no use.
    let _ = std::fs::remove_dir_all(&scratch);
    let report = String::from_utf8_lossy(&output.stderr);
    let last = final_line(&report);
    println!("{target}: {}", last.unwrap_or("no input was run to its end"));
    match (output.status.success(), last) {
        (true, Some(_)) => Ok(()),
        (true, None) => {
            println!("{report}");
            Err(format!("the fuzz target {target} has run no input"))
        }
        (false, _) => {
            println!("{report}");
            Err(format!("the fuzz target {target} found a fault ({})", output.status))
        }
    }
}

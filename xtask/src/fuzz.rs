//! `cargo xtask fuzz`: builds all fuzz targets at once and runs each for some seconds, as many at a time as there are
//! cores.
//!
//! It needs a nightly toolchain. `cargo-fuzz` is installed below `target/tools` if there is none. What a target finds
//! lies in `fuzz/artifacts/TARGET`; what it learns, in `fuzz/corpus/TARGET`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use crate::options::Options;
use crate::workspace;

/// The version of cargo-fuzz that is installed.
const CARGO_FUZZ: &str = "0.13.2";
/// The only platform on which the targets are built.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// The seconds that a target runs in CI.
const DEFAULT_SECONDS: u64 = 30;
/// The memory that a target may use, in MiB.
const MEMORY_MIB: u64 = 2048;
/// The longest input, in bytes. The messages of the cluster bus have 2256 at least.
const LONGEST_INPUT: &[(&str, u32)] = &[("cluster_bus", 9500), ("restore", 600)];
const LONGEST_INPUT_ELSEWHERE: u32 = 4096;

/// The outcome of a run.
enum FuzzOutcome {
    /// No target has found a fault.
    Passed,
    /// The targets cannot be built on this machine. Contains the reason.
    Skipped(&'static str),
}

/// Runs the targets, or those named by `--only`, for `--seconds` each.
///
/// # Errors
/// Fails if a target finds a fault, or none can be built.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["only", "seconds"], &[])?;
    let seconds = options.number("seconds", DEFAULT_SECONDS)?;
    match run(&options.list("only"), seconds)? {
        FuzzOutcome::Passed => Ok(()),
        FuzzOutcome::Skipped(why) => Err(why.to_owned()),
    }
}

fn run(names: &[&str], seconds: u64) -> Result<FuzzOutcome, String> {
    let targets = select_targets(names)?;
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(FuzzOutcome::Skipped("only on x86-64 Linux"));
    }
    if !workspace::succeeds("rustup", &["run", "nightly", "rustc", "-V"]) {
        return Ok(FuzzOutcome::Skipped("no nightly toolchain"));
    }
    if !ensure_cargo_fuzz() {
        return Ok(FuzzOutcome::Skipped("cargo-fuzz cannot be installed"));
    }
    let start = Instant::now();
    workspace::run(&mut nightly(&["cargo", "fuzz", "build", "-s", "none"]))?;
    println!("built in {:.0} s", start.elapsed().as_secs_f64());
    run_targets(&targets, seconds)?;
    Ok(FuzzOutcome::Passed)
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

fn tools() -> PathBuf {
    workspace::root().join("target/tools/bin")
}

fn ensure_cargo_fuzz() -> bool {
    let is_installed = tools().join("cargo-fuzz").exists() || workspace::succeeds("cargo", &["fuzz", "--version"]);
    let arguments = [
        "install",
        "cargo-fuzz",
        "--version",
        CARGO_FUZZ,
        "--locked",
        "--root",
        "target/tools",
    ];
    is_installed || workspace::run(&mut workspace::command("cargo", &arguments)).is_ok()
}

/// Creates a command of the nightly toolchain that finds cargo-fuzz.
fn nightly(arguments: &[&str]) -> Command {
    let mut command = workspace::command("rustup", &[&["run", "nightly"], arguments].concat());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(tools()).chain(std::env::split_paths(&path));
    if let Ok(paths) = std::env::join_paths(paths) {
        command.env("PATH", paths);
    }
    command
        // `cargo xtask` runs under the stable toolchain and sets it in the environment.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

/// Runs the targets, as many at a time as there are cores.
fn run_targets(targets: &[String], seconds: u64) -> Result<(), String> {
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
                    if let Err(error) = run_target(target, seconds)
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

/// Runs one target. Its report is shown if it fails; otherwise its last line.
fn run_target(target: &str, seconds: u64) -> Result<(), String> {
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
    let output = Command::new(root.join("fuzz/target").join(PLATFORM).join("release").join(target))
        .args([&corpus, &folder("seeds")])
        .arg(format!("-max_total_time={seconds}"))
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
    let last = report
        .lines()
        .rev()
        .find(|line| line.starts_with("Done "))
        .unwrap_or("");
    println!("{target}: {last}");
    if output.status.success() {
        return Ok(());
    }
    println!("{report}");
    Err(format!("the fuzz target {target} found a fault ({})", output.status))
}

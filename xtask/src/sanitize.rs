//! `cargo xtask sanitize`: builds the server with a sanitizer and runs the stress test on it. CI also tests the table.
//!
//! The sanitizers need a nightly toolchain. The server is built without jemalloc: the address sanitizer replaces the
//! system's allocator, and finds errors only in memory that comes from there. The thread sanitizer must see the locks
//! and channels of the standard library, too, so the library is built from its source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::options::Options;
use crate::workspace;

const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The seconds of the stress run.
const DEFAULT_SECONDS: u64 = 60;

/// The thread sanitizer is not built into jemalloc, which is C. The server does not allocate from it then, but reads
/// its figures, and jemalloc's first use maps memory that holds its locks.
const SUPPRESSIONS: &str = "race:_rjem_\n";

/// A sanitizer of the compiler.
struct Sanitizer {
    name: &'static str,
    /// The flags of the compiler.
    flags: &'static str,
    /// `true` if the standard library is built with the same flags.
    builds_std: bool,
    /// The variable with the sanitizer's options, and the options: the server ends at the first error.
    options: (&'static str, &'static str),
}

const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    flags: "-Zsanitizer=address",
    builds_std: false,
    // What lives until the end of the process is no leak.
    options: ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1"),
};

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    flags: "-Zsanitizer=thread --cfg thread_sanitizer",
    builds_std: true,
    // Stacks of both threads need a history.
    options: ("TSAN_OPTIONS", "halt_on_error=1:exitcode=66:history_size=4"),
};

/// Runs the stress test under the address sanitizer, or with `--threads` under the thread sanitizer, for `--seconds`.
///
/// # Errors
/// Fails if the sanitizer finds an error, an invariant does not hold, or the server cannot be built.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["seconds"], &["threads"])?;
    let seconds = options.number("seconds", DEFAULT_SECONDS)?;
    let sanitizer = if options.is_given("threads") { &THREAD } else { &ADDRESS };
    match stress_under(sanitizer, seconds)? {
        None => Ok(()),
        Some(reason) => Err(reason.to_owned()),
    }
}

/// Returns the reason if this machine cannot use the sanitizer.
fn why_impossible(sanitizer: &Sanitizer) -> Option<&'static str> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Some("only on x86-64 Linux");
    }
    let has_nightly = workspace::succeeds("rustup", &["run", "nightly", "rustc", "-V"]);
    if !has_nightly {
        return Some("no nightly toolchain");
    }
    (sanitizer.builds_std && !has_library_source()).then_some("no component rust-src of the nightly toolchain")
}

/// Returns `true` if the source of the nightly toolchain's standard library is installed.
fn has_library_source() -> bool {
    let mut command = workspace::command("rustup", &["run", "nightly", "rustc", "--print", "sysroot"]);
    let Ok(output) = command.output() else {
        return false;
    };
    let root = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Path::new(&root)
        .join("lib/rustlib/src/rust/library/Cargo.lock")
        .exists()
}

/// Runs the tests of the table under the address sanitizer. Returns the reason if that is impossible here.
///
/// # Errors
/// Fails if a test fails.
pub fn test_table() -> Result<Option<&'static str>, String> {
    if let Some(reason) = why_impossible(&ADDRESS) {
        return Ok(Some(reason));
    }
    workspace::run(&mut cargo(
        &ADDRESS,
        &["test", "-p", "weft-table", "--target", PLATFORM],
    ))?;
    Ok(None)
}

/// Builds the server with the address sanitizer and runs the stress test on it. Returns the reason if that is
/// impossible here.
///
/// # Errors
/// Fails like [`main`].
pub fn stress_server() -> Result<Option<&'static str>, String> {
    stress_under(&ADDRESS, DEFAULT_SECONDS)
}

/// Does the same with the thread sanitizer.
///
/// # Errors
/// Fails like [`main`].
pub fn find_data_races() -> Result<Option<&'static str>, String> {
    stress_under(&THREAD, DEFAULT_SECONDS)
}

fn stress_under(sanitizer: &Sanitizer, seconds: u64) -> Result<Option<&'static str>, String> {
    if let Some(reason) = why_impossible(sanitizer) {
        return Ok(Some(reason));
    }
    let build = [
        "build",
        "--quiet",
        "-p",
        "weft-server",
        "--no-default-features",
        "--target",
        PLATFORM,
    ];
    workspace::run(&mut cargo(sanitizer, &build))?;
    let server = target(sanitizer).join(PLATFORM).join("debug/weft-server");
    let reports = target(sanitizer).join("report");
    let (variable, value) = sanitizer.options;
    let mut value = format!("{value}:log_path={}", reports.display());
    // The address sanitizer would take the file for one of its own kind.
    if sanitizer.builds_std {
        let file = target(sanitizer).join("suppressions");
        fs::write(&file, SUPPRESSIONS).map_err(|error| format!("{}: {error}", file.display()))?;
        value += &format!(":suppressions={}", file.display());
    }
    let program = std::env::current_exe().map_err(|error| format!("the path of xtask: {error}"))?;
    let words = ["stress", "--only", "workers", "--workers", "8", "--seconds"];
    let mut command = workspace::command(program, &words);
    command.arg(seconds.to_string());
    command.arg("--server").arg(server).env(variable, value);
    let outcome = workspace::run(&mut command);
    print_reports(&reports)?;
    outcome.map(|()| None)
}

/// Prints and removes the reports of the sanitizer, one file for each process that had an error.
fn print_reports(reports: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", reports.display());
    let name = reports.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let entries = fs::read_dir(reports.with_file_name("")).map_err(failed)?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_report = path
            .file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(&name));
        if is_report {
            println!("{}", fs::read_to_string(&path).map_err(failed)?);
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}

fn target(sanitizer: &Sanitizer) -> PathBuf {
    workspace::root().join("target/sanitized").join(sanitizer.name)
}

/// Returns a command of the nightly toolchain's cargo that builds with a sanitizer.
fn cargo(sanitizer: &Sanitizer, arguments: &[&str]) -> Command {
    let mut command = workspace::command("rustup", &[&["run", "nightly", "cargo"], arguments].concat());
    if sanitizer.builds_std {
        command.arg("-Zbuild-std");
    }
    command
        .env("RUSTFLAGS", sanitizer.flags)
        .env("RUSTDOCFLAGS", sanitizer.flags)
        .env("CARGO_TARGET_DIR", target(sanitizer))
        // `cargo xtask` runs under the stable toolchain and sets it in the environment.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

//! `cargo xtask ci`: runs the steps in order and reports the time of each. The first failure ends the run.

use std::time::Instant;

use crate::options::Options;
use crate::{clients, diff, fuzz, oracle, tidy, workspace};

/// The result of a step that did not fail.
enum StepOutcome {
    Passed,
    Skipped(&'static str),
}

struct CiStep {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<StepOutcome, String>,
}

/// The steps. To add a step, add a line with its name, its purpose and its function.
#[rustfmt::skip]
const STEPS: &[CiStep] = &[
    CiStep { name: "fmt",            about: "source is formatted",                              run: format },
    CiStep { name: "clippy",         about: "no lint reports a problem",                        run: clippy },
    CiStep { name: "tidy",           about: "the project rules hold",                           run: tidy },
    CiStep { name: "deny",           about: "licences and sources of dependencies are allowed", run: deny },
    CiStep { name: "test",           about: "unit and integration tests",                       run: test },
    CiStep { name: "loom",           about: "weft-sync under every interleaving",               run: loom },
    CiStep { name: "asan",           about: "weft-table under the address sanitizer",           run: address_sanitizer },
    CiStep { name: "fuzz",           about: "each fuzz target runs for 30 s",                   run: fuzz_targets },
    CiStep { name: "release",        about: "release build",                                    run: release },
    CiStep { name: "oracle",         about: "installs Valkey 9.1.2 for the comparison",         run: oracle },
    CiStep { name: "diff-selfcheck", about: "the differential suite detects differences",       run: diff_self_check },
    CiStep { name: "diff",           about: "same replies as Valkey",                           run: differential },
    CiStep { name: "stress",         about: "invariants hold under many workers",                 run: stress },
    CiStep { name: "sim",            about: "servers and clients under a seeded scheduler",     run: simulation },
    CiStep { name: "clients",        about: "real client libraries work",                       run: clients },
];

/// Runs all steps, or those named by `--only`. `--list` prints them.
///
/// # Errors
/// Fails if a step fails or a name is unknown.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["only"], &["list"])?;
    if options.is_given("list") {
        for step in STEPS {
            println!("{:15} {}", step.name, step.about);
        }
        return Ok(());
    }
    let chosen = select_steps(&options.list("only"))?;
    run_steps(&chosen)
}

fn select_steps(names: &[&str]) -> Result<Vec<&'static CiStep>, String> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == *name) {
            return Err(format!("unknown step '{name}'; --list prints the steps"));
        }
    }
    Ok(STEPS
        .iter()
        .filter(|step| names.is_empty() || names.contains(&step.name))
        .collect())
}

fn run_steps(steps: &[&CiStep]) -> Result<(), String> {
    let start = Instant::now();
    let (mut passed, mut skipped) = (0, 0);
    for (index, step) in steps.iter().enumerate() {
        println!("\n=== [{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        let step_start = Instant::now();
        let outcome = (step.run)();
        let seconds = step_start.elapsed().as_secs_f64();
        match outcome {
            Ok(StepOutcome::Passed) => {
                passed += 1;
                println!("=== {} passed in {seconds:.1} s", step.name);
            }
            Ok(StepOutcome::Skipped(why)) => {
                skipped += 1;
                println!("=== {} skipped: {why}", step.name);
            }
            Err(message) => {
                println!("=== {} FAILED after {seconds:.1} s: {message}", step.name);
                println!("{passed} passed, 1 failed, {skipped} skipped");
                return Err(format!("step {} failed", step.name));
            }
        }
    }
    let total = start.elapsed().as_secs_f64();
    println!("\n{passed} passed, 0 failed, {skipped} skipped in {total:.0} s");
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<StepOutcome, String> {
    workspace::run(&mut workspace::command("cargo", arguments))?;
    Ok(StepOutcome::Passed)
}

fn format() -> Result<StepOutcome, String> {
    cargo(&["fmt", "--all", "--check"])
}

fn clippy() -> Result<StepOutcome, String> {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn stress() -> Result<StepOutcome, String> {
    crate::stress::main(&[]).map(|()| StepOutcome::Passed)
}

fn simulation() -> Result<StepOutcome, String> {
    crate::sim::main(&[]).map(|()| StepOutcome::Passed)
}

fn tidy() -> Result<StepOutcome, String> {
    tidy::main(&[]).map(|()| StepOutcome::Passed)
}

/// The version of cargo-deny that is installed below `target/tools` if there is none.
const CARGO_DENY: &str = "0.20.2";

fn deny() -> Result<StepOutcome, String> {
    let local = workspace::root().join("target/tools/bin/cargo-deny");
    let is_installed = local.exists() || workspace::succeeds("cargo", &["deny", "--version"]);
    if !is_installed {
        let arguments = [
            "install",
            "cargo-deny",
            "--version",
            CARGO_DENY,
            "--locked",
            "--root",
            "target/tools",
        ];
        if workspace::run(&mut workspace::command("cargo", &arguments)).is_err() {
            return Ok(StepOutcome::Skipped("cargo-deny cannot be installed"));
        }
    }
    let deny = |arguments: &[&str]| {
        if local.exists() {
            workspace::command(&local, arguments)
        } else {
            workspace::command("cargo", &[&["deny"], arguments].concat())
        }
    };
    workspace::run(&mut deny(&["check", "bans", "licenses", "sources"]))?;
    // The advisories are a repository of their own, which a machine without access to it cannot fetch.
    if workspace::run(&mut deny(&["fetch", "db"])).is_ok() {
        workspace::run(&mut deny(&["check", "--disable-fetch", "advisories"]))?;
    } else {
        println!("advisories are not checked: their database cannot be fetched");
    }
    Ok(StepOutcome::Passed)
}

fn test() -> Result<StepOutcome, String> {
    cargo(&["test", "--workspace"])
}

fn loom() -> Result<StepOutcome, String> {
    let mut command = workspace::command("cargo", &["test", "-p", "weft-sync", "--release", "--lib"]);
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", "target/loom")
        // Link-time optimisation costs minutes here and saves only seconds.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    workspace::run(&mut command)?;
    Ok(StepOutcome::Passed)
}

fn address_sanitizer() -> Result<StepOutcome, String> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    if !workspace::succeeds("rustup", &["run", "nightly", "rustc", "-V"]) {
        return Ok(StepOutcome::Skipped("no nightly toolchain"));
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(StepOutcome::Skipped("only on x86-64 Linux"));
    }
    let arguments = [
        "run",
        "nightly",
        "cargo",
        "test",
        "-p",
        "weft-table",
        "--target",
        TARGET,
    ];
    let mut command = workspace::command("rustup", &arguments);
    command
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("RUSTDOCFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", "target/asan")
        // `cargo xtask` runs under the stable toolchain and sets it in the environment.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    workspace::run(&mut command)?;
    Ok(StepOutcome::Passed)
}

fn fuzz_targets() -> Result<StepOutcome, String> {
    Ok(match fuzz::run_all()? {
        fuzz::FuzzOutcome::Passed => StepOutcome::Passed,
        fuzz::FuzzOutcome::Skipped(why) => StepOutcome::Skipped(why),
    })
}

fn release() -> Result<StepOutcome, String> {
    cargo(&["build", "--workspace", "--exclude", "xtask", "--release"])
}

fn oracle() -> Result<StepOutcome, String> {
    let oracle = oracle::ensure_installed()?;
    println!("{}", oracle.server.display());
    Ok(StepOutcome::Passed)
}

fn diff_self_check() -> Result<StepOutcome, String> {
    diff::main(&["--self-check".to_string()]).map(|()| StepOutcome::Passed)
}

fn differential() -> Result<StepOutcome, String> {
    // A fixed seed generates the same sequences each time, so the result depends only on the change.
    diff::main(&["--seed".to_string(), "1".to_string()]).map(|()| StepOutcome::Passed)
}

fn clients() -> Result<StepOutcome, String> {
    clients::main(&[]).map(|()| StepOutcome::Passed)
}

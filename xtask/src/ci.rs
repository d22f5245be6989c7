//! `cargo xtask ci`: runs the steps in order and reports the time of each. The first failure ends the run. Some steps
//! run beside the step before them: because one of both mostly waits, or in the time that the other leaves idle.
//!
//! Each step runs in a process of its own (`cargo xtask ci --step NAME`), which is killed with everything that it
//! started when its time limit has passed; see [`step_process`].

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::step_process::{self, StepEnd};
use crate::{book, clients, diff, fuzz, oracle, packaging, power_loss, sanitize, test_report, tidy, workspace};

#[cfg(test)]
mod tests;

/// The result of a step that did not fail.
enum StepOutcome {
    Passed,
    /// The step passed, but left out these parts. Each is a name and a reason.
    PassedExcept(Vec<String>),
    Skipped(&'static str),
}

struct CiStep {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<StepOutcome, String>,
    limit_minutes: u64,
    /// `true` if the step runs tests, whose output is shown only if they fail.
    is_cargo_test: bool,
    /// `true` if the step runs at the same time as the one before it.
    is_beside_previous: bool,
    /// `true` if the step has the lowest priority.
    is_nice: bool,
    /// The minutes that the step needs, if it is left out where it would end after [`OPTIONAL_STEPS_END`].
    needed_minutes: Option<u64>,
}

/// The time after the start at which all optional steps must have ended, as far as can be known when they begin.
const OPTIONAL_STEPS_END: Duration = Duration::from_secs(42 * 60);
/// The time after the start at which an optional step that has not ended is stopped.
const OPTIONAL_STEPS_STOP: Duration = Duration::from_secs(44 * 60);

/// The time limit of a step that begins at a certain time.
#[derive(Debug, PartialEq, Eq)]
struct StepLimit {
    duration: Duration,
    /// `true` if the step is optional, and is stopped at [`OPTIONAL_STEPS_STOP`]. That is no failure.
    is_stop: bool,
}

impl CiStep {
    const fn new(name: &'static str, about: &'static str, run: fn() -> Result<StepOutcome, String>) -> Self {
        Self {
            name,
            about,
            run,
            limit_minutes: 10,
            is_cargo_test: false,
            is_beside_previous: false,
            is_nice: false,
            needed_minutes: None,
        }
    }

    const fn minutes(self, limit_minutes: u64) -> Self {
        Self { limit_minutes, ..self }
    }

    /// Makes the step optional: it runs where there is time for so many minutes.
    const fn if_time_for(self, needed_minutes: u64) -> Self {
        Self {
            needed_minutes: Some(needed_minutes),
            ..self
        }
    }

    /// Returns `true` if the step is optional and would end too late if it began after `elapsed`.
    fn is_too_late(&self, elapsed: Duration) -> bool {
        let end = |minutes| elapsed + Duration::from_secs(60 * minutes);
        self.needed_minutes
            .is_some_and(|minutes| end(minutes) > OPTIONAL_STEPS_END)
    }

    /// Returns the time limit of the step if it begins after `elapsed`.
    fn limit(&self, elapsed: Duration) -> StepLimit {
        let own = Duration::from_secs(60 * self.limit_minutes);
        let left = OPTIONAL_STEPS_STOP.saturating_sub(elapsed);
        let is_stop = self.needed_minutes.is_some() && left < own;
        StepLimit {
            duration: if is_stop { left } else { own },
            is_stop,
        }
    }

    /// Returns what the end of the step's process means. `skipped` is what the step has recorded as left out.
    fn judge(&self, end: StepEnd, limit: &StepLimit, skipped: Vec<String>) -> StepResult {
        match end {
            StepEnd::Passed => Ok(skipped),
            StepEnd::Failed(status) => Err(status),
            StepEnd::TimedOut if limit.is_stop => Ok(vec![self.no_time("there was no time to finish")]),
            StepEnd::TimedOut => Err(format!("its time limit of {} minutes has passed", self.limit_minutes)),
        }
    }

    /// Returns the line in the list of what was skipped.
    fn no_time(&self, why: &str) -> String {
        format!("{}: {why}; run `cargo xtask ci --only {}`", self.name, self.name)
    }

    const fn beside_previous(self) -> Self {
        Self {
            is_beside_previous: true,
            ..self
        }
    }

    /// Makes the step run beside the one before it, in the processor time that this leaves.
    const fn in_idle_time(self) -> Self {
        Self {
            is_nice: true,
            ..self.beside_previous()
        }
    }

    const fn cargo_test(self) -> Self {
        Self {
            is_cargo_test: true,
            ..self
        }
    }
}

/// The steps. To add a step, add a line with its name, its purpose and its function. The time limit is 10 minutes
/// unless the line says otherwise; a limit is several times what the step takes on 2 cores.
#[rustfmt::skip]
const STEPS: &[CiStep] = &[
    CiStep::new("tools",          "the programs that the steps need are installed",     tools),
    CiStep::new("oracle",         "installs Valkey 9.1.2 and tools of Redis",           oracle),
    CiStep::new("fmt",            "source is formatted",                                format),
    CiStep::new("clippy",         "no lint reports a problem",                          clippy).minutes(25),
    CiStep::new("tidy",           "the project rules hold",                             tidy),
    CiStep::new("test",           "unit and integration tests",                         test).minutes(35).cargo_test(),
    CiStep::new("asan",           "weft-table under the address sanitizer",             address_sanitizer).minutes(45).cargo_test().in_idle_time(),
    CiStep::new("deny",           "licences and sources of dependencies are allowed",   deny).minutes(45).in_idle_time(),
    CiStep::new("test-valkey",    "integration tests together with Valkey",             test_valkey).minutes(20).cargo_test(),
    CiStep::new("release",        "release build",                                      release).minutes(25),
    CiStep::new("diff-selfcheck", "the differential suite detects differences",         diff_self_check).minutes(25).beside_previous(),
    CiStep::new("diff",           "same replies as Valkey",                             differential).minutes(25).beside_previous(),
    CiStep::new("loom",           "weft-sync under every interleaving",                 loom).minutes(35).cargo_test().in_idle_time(),
    CiStep::new("sim-build",      "the simulation is built, and its threads and clocks work", simulation_build).minutes(35).in_idle_time(),
    CiStep::new("stress",         "invariants hold under many workers",                 stress),
    CiStep::new("failover",       "failovers lose nothing that was acknowledged",       failover),
    CiStep::new("power-loss",     "power losses and kills lose no acknowledged write",  power_loss),
    CiStep::new("disk-errors",    "disk errors have the same effects as in Valkey",     disk_errors).beside_previous(),
    CiStep::new("clients",        "real client libraries work",                         clients).minutes(15),
    CiStep::new("packaging",      "scripts, units and files of the packages work",      packaging).beside_previous(),
    CiStep::new("book",           "the examples of the book do what it says",           book).minutes(15).beside_previous(),
    CiStep::new("sim",            "servers and clients under a seeded scheduler",       simulation).minutes(20).in_idle_time(),
    CiStep::new("sanitizers",     "the stress run under the address sanitizer",         sanitizers).minutes(25).if_time_for(11),
    CiStep::new("fuzz",           "what peers, clients and files send does no harm",    fuzz).minutes(20).if_time_for(9),
    CiStep::new("data-races",     "the stress run under the thread sanitizer",          data_races).minutes(30).if_time_for(11),
];

/// Runs all steps, or those named by `--only`. `--list` prints them.
///
/// # Errors
/// Fails if a step fails or a name is unknown.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["only", "step"], &["list"])?;
    if options.is_given("list") {
        for step in STEPS {
            println!("{:15} {}", step.name, step.about);
        }
        return Ok(());
    }
    if let Some(name) = options.value("step") {
        return run_in_this_process(find_step(name)?);
    }
    let chosen = select_steps(&options.list("only"))?;
    run_steps(&chosen)
}

fn find_step(name: &str) -> Result<&'static CiStep, String> {
    let found = STEPS.iter().find(|step| step.name == name);
    found.ok_or_else(|| format!("unknown step '{name}'; --list prints the steps"))
}

fn select_steps(names: &[&str]) -> Result<Vec<&'static CiStep>, String> {
    for name in names {
        find_step(name)?;
    }
    Ok(STEPS
        .iter()
        .filter(|step| names.is_empty() || names.contains(&step.name))
        .collect())
}

/// Runs a step in this process, which CI has started for it.
fn run_in_this_process(step: &CiStep) -> Result<(), String> {
    step_process::end_with_parent();
    let outcome = (step.run)();
    step_process::record_processor_time(step.name)?;
    let skipped = match outcome? {
        StepOutcome::Passed => Vec::new(),
        StepOutcome::PassedExcept(parts) => parts,
        StepOutcome::Skipped(why) => vec![format!("{}: {why}", step.name)],
    };
    step_process::record_skipped(step.name, &skipped)
}

/// Returns the steps in groups that run at the same time. A step whose predecessor was not chosen runs alone.
fn batches<'a, 's>(steps: &'a [&'s CiStep]) -> impl Iterator<Item = &'a [&'s CiStep]> {
    let follows = |step: &CiStep, next: &CiStep| {
        let mut neighbours = STEPS.windows(2);
        neighbours.any(|pair| pair[0].name == step.name && pair[1].name == next.name)
    };
    steps.chunk_by(move |step, next| next.is_beside_previous && follows(step, next))
}

fn run_steps(steps: &[&CiStep]) -> Result<(), String> {
    let start = Instant::now();
    let mut passed = 0;
    let mut skipped = Vec::new();
    let mut number = 0;
    for batch in batches(steps) {
        for step in batch {
            number += 1;
            println!("\n=== [{number}/{}] {}: {}", steps.len(), step.name, step.about);
        }
        if let [step] = batch
            && steps.len() > 1
            && step.is_too_late(start.elapsed())
        {
            println!("=== {} left out: it might end too late", step.name);
            skipped.push(step.no_time("there was no time"));
            continue;
        }
        let mut failed = Vec::new();
        for (step, outcome, seconds) in run_batch(batch, start.elapsed()) {
            match outcome {
                Ok(parts) => {
                    let is_skipped = parts.iter().any(|part| part.starts_with(&format!("{}: ", step.name)));
                    let verdict = if is_skipped { "skipped" } else { "passed" };
                    let processor = step_process::recorded_processor_time(step.name).unwrap_or(0.0);
                    println!(
                        "=== {} {verdict} in {seconds:.1} s, {processor:.0} s of processor time",
                        step.name
                    );
                    passed += usize::from(!is_skipped);
                    skipped.extend(parts);
                }
                Err(message) => {
                    println!("=== {} FAILED after {seconds:.1} s: {message}", step.name);
                    failed.push(step.name);
                }
            }
        }
        if !failed.is_empty() {
            report_end(start, passed, failed.len(), &skipped);
            return Err(format!("step {} failed", failed.join(", ")));
        }
    }
    report_end(start, passed, 0, &skipped);
    Ok(())
}

/// What a step has left out, or the reason of its failure.
type StepResult = Result<Vec<String>, String>;

/// Runs steps at the same time, which begin after `elapsed`. Returns the result and the duration in seconds of each.
/// The output of a step that is not alone is shown when all have ended.
fn run_batch<'s>(batch: &[&'s CiStep], elapsed: Duration) -> Vec<(&'s CiStep, StepResult, f64)> {
    let is_alone = batch.len() == 1;
    let timed = |step: &'s CiStep| {
        let start = Instant::now();
        let result = run_step(step, step.is_cargo_test || !is_alone, &step.limit(elapsed));
        (step, result, start.elapsed().as_secs_f64())
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = batch.iter().map(|step| scope.spawn(|| timed(step))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    assert_eq!(results.len(), batch.len(), "no thread that waits for a step panics");
    for (step, ..) in results.iter().filter(|(step, ..)| !is_alone && !step.is_cargo_test) {
        let output = fs::read(step_process::log_path(step.name)).unwrap_or_default();
        println!("--- {}\n{}", step.name, String::from_utf8_lossy(&output));
    }
    results
}

/// Runs a step in its own process. With `captures`, its output goes to a file. Returns what it has left out.
fn run_step(step: &CiStep, captures: bool, limit: &StepLimit) -> StepResult {
    let program = std::env::current_exe().map_err(|error| format!("the path of xtask: {error}"))?;
    let mut command = match step.is_nice && workspace::succeeds("nice", &["true"]) {
        true => {
            let mut command = workspace::command("nice", &["-n", "19"]);
            command.arg(program).args(["ci", "--step", step.name]);
            command
        }
        false => workspace::command(program, &["ci", "--step", step.name]),
    };
    if !was_server_built_incrementally(&workspace::root().join("target")) {
        command.env("CARGO_INCREMENTAL", "0");
    }
    let end = step_process::run(step.name, &mut command, captures, limit.duration)?;
    let outcome = step.judge(end, limit, step_process::recorded_skipped(step.name));
    if !step.is_cargo_test {
        return outcome;
    }
    let path = step_process::log_path(step.name);
    let output = fs::read(&path).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    match outcome {
        Ok(skipped) if skipped.is_empty() => report_tests(&output),
        Ok(skipped) => Ok(skipped),
        Err(why) => {
            println!("{}", test_report::explain_failure(&output));
            Err(format!("{why}; the whole output is in {}", path.display()))
        }
    }
}

/// Returns `true` if a developer has built the server in this target folder, so that a step may continue from there.
/// Otherwise each step builds everything once, and without what incremental compilation needs that takes less time.
fn was_server_built_incrementally(target: &Path) -> bool {
    let entries = fs::read_dir(target.join("debug/incremental"));
    let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("weft_server-"))
}

/// Prints what a run of tests did. Returns the ignored tests that no other run includes.
fn report_tests(output: &str) -> Result<Vec<String>, String> {
    let report = test_report::parse(output);
    if report.passed == 0 {
        return Err("no test ran".to_string());
    }
    println!("{} tests passed", report.passed);
    let (elsewhere, skipped): (Vec<String>, Vec<String>) = report
        .ignored
        .into_iter()
        .partition(|test| RUN_ELSEWHERE.iter().any(|reason| test.ends_with(reason)));
    if !elsewhere.is_empty() {
        println!(
            "run by the step test-valkey or by other tests:\n  {}",
            elsewhere.join("\n  ")
        );
    }
    Ok(skipped)
}

/// The reasons of ignored tests that run nevertheless: in the step `test-valkey`, or in a process that a test starts.
const RUN_ELSEWHERE: &[&str] = &[
    "needs Valkey: set WEFT_ORACLE",
    "another test runs it in a process of its own",
];

fn report_end(start: Instant, passed: usize, failed: usize, skipped: &[String]) {
    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    if !skipped.is_empty() {
        println!("skipped:\n  {}", skipped.join("\n  "));
    }
    println!("{passed} passed, {failed} failed, {} skipped", skipped.len());
}

/// The programs without which steps cannot run, and the package of Debian that has each.
const REQUIRED_PROGRAMS: &[(&str, &[&str], &str)] = &[
    ("cc", &["--version"], "gcc"),
    ("git", &["--version"], "git"),
    ("make", &["--version"], "make"),
    ("python3", &["-c", "import ensurepip, venv"], "python3-venv"),
    ("localedef", &["--version"], "libc-bin"),
];

fn tools() -> Result<StepOutcome, String> {
    let missing: Vec<String> = REQUIRED_PROGRAMS
        .iter()
        .filter(|(program, arguments, _)| !workspace::succeeds(program, arguments))
        .map(|(program, arguments, package)| format!("{program} {} (package {package})", arguments.join(" ")))
        .collect();
    if missing.is_empty() {
        Ok(StepOutcome::Passed)
    } else {
        Err(format!("these do not run: {}", missing.join(", ")))
    }
}

fn cargo(arguments: &[&str]) -> Result<StepOutcome, String> {
    workspace::run(&mut workspace::command("cargo", arguments))?;
    Ok(StepOutcome::Passed)
}

fn format() -> Result<StepOutcome, String> {
    cargo(&["fmt", "--all", "--check"])
}

fn clippy() -> Result<StepOutcome, String> {
    let simulation = ["-p", "weft-sim", "--features", "simulated"];
    for packages in [&["--workspace"][..], &simulation] {
        let lint = ["--all-targets", "--", "-D", "warnings"];
        cargo(&[&["clippy"], packages, &lint].concat())?;
    }
    Ok(StepOutcome::Passed)
}

fn stress() -> Result<StepOutcome, String> {
    crate::stress::main(&[]).map(|()| StepOutcome::Passed)
}

fn simulation_build() -> Result<StepOutcome, String> {
    cargo(&["test", "--quiet", "-p", "weft-os", "--features", "simulated", "--lib"])?;
    cargo(&["test", "--quiet", "-p", "weft-sim", "--features", "simulated"])?;
    crate::sim::build_here().map(|_| StepOutcome::Passed)
}

fn simulation() -> Result<StepOutcome, String> {
    let mut words = vec!["--seconds".to_owned(), "180".to_owned()];
    if let Some(seed) = seed_of_sources() {
        words.extend(["--from".to_owned(), seed.to_string()]);
    }
    crate::sim::main(&words).map(|()| StepOutcome::Passed)
}

/// Returns a number that differs for every change of the sources, so that each change is tried with new seeds, and with
/// the same ones wherever it is tried. `None` without a repository.
fn seed_of_sources() -> Option<u64> {
    let mut command = workspace::command("git", &["rev-parse", "HEAD^{tree}"]);
    let output = command.output().ok().filter(|output| output.status.success())?;
    let digest = String::from_utf8(output.stdout).ok()?;
    u64::from_str_radix(digest.get(..12)?, 16).ok()
}

fn failover() -> Result<StepOutcome, String> {
    let left_out = crate::failover::run_all(&[])?;
    let mixed = ["--mixed", "--io-threads", "4", "--seconds", "10"].map(str::to_owned);
    crate::failover::main(&mixed)?;
    Ok(StepOutcome::PassedExcept(left_out))
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
            // It runs for a second; optimizing it takes minutes.
            "--debug",
            "--root",
            "target/tools",
        ];
        let mut install = workspace::command("cargo", &arguments);
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        if workspace::run(&mut install).is_err() {
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
    if workspace::run(&mut deny(&["fetch", "db"])).is_err() {
        let part = "advisories of dependencies: their database cannot be fetched";
        return Ok(StepOutcome::PassedExcept(vec![part.to_string()]));
    }
    workspace::run(&mut deny(&["check", "--disable-fetch", "advisories"]))?;
    Ok(StepOutcome::Passed)
}

/// Returns `cargo test` with `arguments`, without the variables that would make it test something else.
fn cargo_test(arguments: &[&str]) -> std::process::Command {
    let mut command = workspace::command("cargo", &[&["test"], arguments].concat());
    for name in ["WEFT_SERVER", "WEFT_ORACLE", "WEFT_SEED", "WEFT_WRITE_DOCUMENTS"] {
        command.env_remove(name);
    }
    command
}

/// Builds the tests, lets the file system write what the build has left, and runs them. Tests wait most of the time,
/// so there are more of them at a time than cores, unless `RUST_TEST_THREADS` says otherwise. Without the `sync`, an
/// fsync of a test waits for the files of the build.
fn build_and_run_tests(arguments: &[&str], of_tests: &[&str]) -> Result<StepOutcome, String> {
    let oracle = oracle::ensure_installed()?;
    workspace::run(&mut cargo_test(&[arguments, &["--no-run"]].concat()))?;
    nix::unistd::sync();
    let mut command = cargo_test(&[arguments, &["--"], of_tests].concat());
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("RUST_TEST_THREADS", (2 * cores).to_string());
    }
    workspace::run(command.env("WEFT_ORACLE", oracle.server))?;
    Ok(StepOutcome::Passed)
}

fn test() -> Result<StepOutcome, String> {
    build_and_run_tests(&["--workspace"], &[])
}

fn test_valkey() -> Result<StepOutcome, String> {
    // Another choice of packages would have other features of dependencies, and compile the server again.
    build_and_run_tests(&["--workspace", "--test", "integration"], &["--ignored"])
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
    sanitize::test_table().map(outcome_of)
}

fn sanitizers() -> Result<StepOutcome, String> {
    sanitize::stress_server().map(outcome_of)
}

fn data_races() -> Result<StepOutcome, String> {
    sanitize::find_data_races().map(outcome_of)
}

/// The outcome of a step that passed, or was skipped for a reason.
fn outcome_of(skipped: Option<&'static str>) -> StepOutcome {
    skipped.map_or(StepOutcome::Passed, StepOutcome::Skipped)
}

fn release() -> Result<StepOutcome, String> {
    // Link-time optimization takes minutes per program; the steps below run only this one.
    cargo(&["build", "--release", "-p", "weft-server"])
}

fn oracle() -> Result<StepOutcome, String> {
    let oracle = oracle::ensure_installed()?;
    println!("{}", oracle.server.display());
    // The steps that use them run at the same time, and report themselves what they leave out.
    if !clients::unpack_redis_tools() {
        println!("the tools of Redis are not to be had");
    }
    Ok(StepOutcome::Passed)
}

fn diff_self_check() -> Result<StepOutcome, String> {
    diff::main(&["--self-check".to_string()]).map(|()| StepOutcome::Passed)
}

fn differential() -> Result<StepOutcome, String> {
    // A fixed seed generates the same sequences each time, so the result depends only on the change.
    // The server is the one that the tests have built, while the release build runs beside this step.
    let server = workspace::root().join("target/debug/weft-server");
    let words = ["--seed", "1", "--weft", &server.to_string_lossy()].map(str::to_string);
    diff::run_all(&words).map(StepOutcome::PassedExcept)
}

fn power_loss() -> Result<StepOutcome, String> {
    power_loss::main(&["--self-check".to_string()])?;
    power_loss::main(&["--losses".to_string(), "250".to_string()])?;
    power_loss::main(&["--kills".to_string(), "10".to_string()]).map(|()| StepOutcome::Passed)
}

fn disk_errors() -> Result<StepOutcome, String> {
    let words = ["--errors", "--stride", "6"].map(str::to_string);
    power_loss::main(&words).map(|()| StepOutcome::Passed)
}

fn fuzz() -> Result<StepOutcome, String> {
    if let Some(reason) = fuzz::why_impossible() {
        return Ok(StepOutcome::Skipped(reason));
    }
    // The seed is fixed, so that the mutations depend only on the change.
    fuzz::main(&["--seed".to_string(), "1".to_string()]).map(|()| StepOutcome::Passed)
}

fn clients() -> Result<StepOutcome, String> {
    clients::run_all(&[]).map(StepOutcome::PassedExcept)
}

fn packaging() -> Result<StepOutcome, String> {
    // Its manual page is compared with it.
    cargo(&["build", "--quiet", "--package", "weft-top"])?;
    packaging::run_all(&[]).map(StepOutcome::PassedExcept)
}

fn book() -> Result<StepOutcome, String> {
    // The step that runs beside this one may not have built it yet.
    cargo(&["build", "--quiet", "--package", "weft-top"])?;
    book::run_all(&[]).map(StepOutcome::PassedExcept)
}

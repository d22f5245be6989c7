//! Runs the simulation once per seed, each in a process and a directory of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::workspace;

/// The time after which a run counts as hanging: a thread waits in a way that the scheduler does not know.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of loopback ports of a run: two servers, each with a port for the cluster bus.
const PORTS_PER_RUN: u16 = 4;
/// The loopback ports of runs. Those of a run follow one another, and all have five digits: the length of a
/// number in a message may change the order of a run.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The number of seeds from which on the share of searches that gave up says something.
const MIN_SEEDS_FOR_SHARE: u64 = 100;
/// The share of searches for an order that may give up, in percent. Usual are 5 to 10 (docs/TESTING.md).
const MAX_PERCENT_GIVEN_UP: u64 = 25;

/// Seeds to be tried.
pub struct SeedRuns {
    /// The program.
    pub program: PathBuf,
    /// The first seed; each next one is larger by one.
    pub first: u64,
    /// The number of processes at a time.
    pub jobs: usize,
    /// The time after which no further seed begins.
    pub limit: TimeLimit,
    /// Variables of the runs' environment, beside those of this process.
    pub environment: Vec<(String, String)>,
}

/// A limit of many runs.
#[derive(Clone, Copy)]
pub enum TimeLimit {
    /// On the clock.
    Elapsed(Duration),
    /// Of the processors, summed over the runs. It does not depend on what else the machine does.
    Processor(Duration),
}

/// A seed that failed.
pub struct Failure {
    /// The seed.
    pub seed: u64,
    directory: PathBuf,
    text: String,
}

/// The result of many seeds.
pub struct SeedResults {
    /// The number of seeds that passed.
    pub passed: u64,
    /// The first seed that failed.
    pub failure: Option<Failure>,
    operations: u64,
    steps: u64,
    gave_up: u64,
    elapsed: Duration,
    processor_time: Duration,
}

#[derive(Default)]
struct Totals {
    operations: u64,
    steps: u64,
    gave_up: u64,
    passed: u64,
    failure: Option<Failure>,
    /// The digest of the steps of the last run.
    trace: String,
}

impl Failure {
    /// Describes the failure, and how to see it again.
    pub fn describe(&self) -> String {
        format!(
            "seed {} failed; its files are in {}; `cargo xtask sim --seed {}` runs it again\n{}",
            self.seed,
            self.directory.display(),
            self.seed,
            self.text
        )
    }
}

impl SeedResults {
    /// One line of figures.
    pub fn summary(&self) -> String {
        let failed = u64::from(self.failure.is_some());
        format!(
            "{} seeds passed, {failed} failed in {:.1} s: {} operations, {} million steps, {} searches for an order gave up",
            self.passed,
            self.elapsed.as_secs_f64(),
            self.operations,
            self.steps / 1_000_000,
            self.gave_up
        )
    }

    /// Returns an error text if so many searches for an order gave up that the runs have checked too little.
    pub fn check_given_up(&self) -> Result<(), String> {
        let percent = self.gave_up * 100 / self.passed.max(1);
        if self.passed < MIN_SEEDS_FOR_SHARE || percent <= MAX_PERCENT_GIVEN_UP {
            return Ok(());
        }
        Err(format!(
            "{} of {} searches for an order gave up: more than {MAX_PERCENT_GIVEN_UP} percent",
            self.gave_up, self.passed
        ))
    }

    /// The processor time and the number of seeds until the failure.
    pub fn effort(&self) -> (Duration, u64) {
        (self.processor_time, self.passed + 1)
    }
}

impl SeedRuns {
    /// Tries seeds until the time is over or one fails.
    ///
    /// # Errors
    /// If a run cannot be started.
    pub fn run(&self) -> Result<SeedResults, String> {
        let (start, processor_start) = (Instant::now(), processor_time_of_children());
        let processor_time = || processor_time_of_children().saturating_sub(processor_start);
        let is_over = || match self.limit {
            TimeLimit::Elapsed(limit) => start.elapsed() >= limit,
            TimeLimit::Processor(limit) => processor_time() >= limit,
        };
        let next = AtomicU64::new(self.first);
        let has_failed = AtomicBool::new(false);
        let totals = Mutex::new(Totals::default());
        thread::scope(|scope| {
            let spawn = |job| {
                let (next, has_failed, totals, is_over) = (&next, &has_failed, &totals, &is_over);
                scope.spawn(move || {
                    while !is_over() && !has_failed.load(Ordering::SeqCst) {
                        let seed = next.fetch_add(1, Ordering::SeqCst);
                        let outcome = run_seed(&self.program, seed, job, &self.environment)?;
                        if outcome.failure.is_some() {
                            has_failed.store(true, Ordering::SeqCst);
                        }
                        totals.lock().map_err(|error| error.to_string())?.add(outcome);
                    }
                    Ok::<(), String>(())
                })
            };
            let workers: Vec<_> = (0..self.jobs).map(spawn).collect();
            for worker in workers {
                worker.join().map_err(|_| "a thread panicked".to_owned())??;
            }
            Ok::<(), String>(())
        })?;
        let totals = totals.into_inner().map_err(|error| error.to_string())?;
        Ok(SeedResults {
            passed: totals.passed,
            failure: totals.failure,
            operations: totals.operations,
            steps: totals.steps,
            gave_up: totals.gave_up,
            elapsed: start.elapsed(),
            processor_time: processor_time(),
        })
    }
}

/// The processor time of the processes that have ended and that this one has waited for.
fn processor_time_of_children() -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    // See proc_pid_stat(5). The name of the program, in parentheses, may contain blanks.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields
        .skip(13)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * (1000 / TICKS_PER_SECOND))
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.operations += other.operations;
        self.steps += other.steps;
        self.gave_up += other.gave_up;
        self.passed += other.passed;
        if self.failure.is_none() {
            self.failure = other.failure;
        }
    }
}

/// Returns `true` if a run of the seed passes in this environment.
///
/// # Errors
/// If it cannot be started.
pub fn passes(program: &Path, seed: u64, environment: &[(String, String)]) -> Result<bool, String> {
    Ok(run_seed(program, seed, 0, environment)?.failure.is_none())
}

/// The maximum number of runs of a seed of which two must be the same. The connections of replicas and cluster nodes
/// are those of the kernel, which delivers late on a busy machine: some runs take another course because of that.
const RUNS_UNTIL_REPEATED: usize = 4;

/// Runs each of these seeds until two runs are the same.
///
/// # Errors
/// If a run fails, or all runs differ: such a seed could not be used to look into a failure.
pub fn check_repeatability(program: &Path, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let mut traces: Vec<String> = Vec::new();
        while traces.len() < RUNS_UNTIL_REPEATED {
            let outcome = run_seed(program, seed, 0, &[])?;
            if let Some(failure) = outcome.failure {
                return Err(failure.describe());
            }
            let trace = outcome.trace;
            if !trace.is_empty() && traces.contains(&trace) {
                break;
            }
            traces.push(trace);
        }
        if traces.len() == RUNS_UNTIL_REPEATED {
            return Err(format!(
                "seed {seed} does not repeat a run: the steps have the digests {traces:?}"
            ));
        }
    }
    Ok(())
}

/// Runs one seed and prints its figures.
///
/// # Errors
/// If it fails.
pub fn run_one(program: &Path, seed: u64) -> Result<(), String> {
    let outcome = run_seed(program, seed, 0, &[])?;
    match outcome.failure {
        Some(failure) => Err(failure.describe()),
        None => {
            println!(
                "seed {seed} passed: {} operations, {} steps",
                outcome.operations, outcome.steps
            );
            Ok(())
        }
    }
}

/// Returns a seed that was most likely never tried.
pub fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64 * 1000
}

fn run_seed(program: &Path, seed: u64, job: usize, environment: &[(String, String)]) -> Result<Totals, String> {
    let directory = work_directory(job);
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(failed)?;
    let output = directory.join("output");
    let file = File::create(&output).map_err(failed)?;
    let errors = file.try_clone().map_err(failed)?;
    let mut child = command(program, job)
        .args([seed.to_string(), free_ports(job)?.to_string()])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let has_passed = wait(&mut child).map_err(failed)?;
    let text = String::from_utf8_lossy(&fs::read(&output).map_err(failed)?).into_owned();
    let mut totals = Totals {
        steps: number_before(&text, " steps"),
        operations: number_before(&text, " operations"),
        gave_up: u64::from(text.contains("gave up")),
        trace: trace_in(&text),
        ..Totals::default()
    };
    if has_passed {
        totals.passed = 1;
        let _ = fs::remove_dir_all(&directory);
    } else {
        let kept = std::env::temp_dir().join(format!("weft-sim-failed-{seed}"));
        let _ = fs::remove_dir_all(&kept);
        copy_files(&directory, &kept).map_err(failed)?;
        totals.failure = Some(Failure {
            seed,
            directory: kept,
            text,
        });
    }
    Ok(totals)
}

/// Returns the first of the ports of a run, none of which is in use. Other simulations on this machine begin their
/// search elsewhere.
fn free_ports(job: usize) -> Result<u16, String> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let groups = (PORTS.end - PORTS.start) / PORTS_PER_RUN;
    let first = (std::process::id() as usize * 16 + job) % usize::from(groups);
    (0..groups)
        .map(|offset| PORTS.start + PORTS_PER_RUN * ((first as u16 + offset) % groups))
        .find(|first| (*first..first + PORTS_PER_RUN).all(is_free))
        .ok_or_else(|| format!("no {PORTS_PER_RUN} free ports in {PORTS:?}"))
}

/// Returns the digest of its steps that a run prints.
fn trace_in(text: &str) -> String {
    let after = text.split(", trace ").nth(1).unwrap_or_default();
    after.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// A directory in memory where there is one: the simulation decides about durability, not the disk.
fn work_directory(job: usize) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    base.join(format!("weft-sim-{}-{job}", std::process::id()))
}

/// A process on one processor switches threads several times faster.
fn command(program: &Path, job: usize) -> Command {
    let processor = (job % std::thread::available_parallelism().map_or(1, usize::from)).to_string();
    if workspace::succeeds("taskset", &["-c", &processor, "true"]) {
        let mut command = Command::new("taskset");
        command.args(["-c", &processor]).arg(program);
        return command;
    }
    Command::new(program)
}

/// Waits for the end of a run. Returns `true` if it has passed; a run that hangs has failed.
fn wait(child: &mut Child) -> std::io::Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > RUN_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The number in front of the first occurrence of `word`; 0 if there is none.
fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else {
        return 0;
    };
    let digits = text[..end].rsplit(|character: char| !character.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

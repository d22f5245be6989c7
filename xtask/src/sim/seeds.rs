//! Runs the simulation once per seed, each in a process and a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::workspace;

/// The time after which a run counts as hanging: a thread waits in a way that the scheduler does not know.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// The environments of the runs that must repeat themselves although their servers are connected in all ways: by the
/// cluster bus and slot migrations, and as primary and replica, with one channel and with two.
const CONNECTED_RUNS: [(&str, &str); 3] = [
    ("WEFT_SIM_CLUSTER", "1"),
    ("WEFT_SIM_WITH", "failovers"),
    ("WEFT_SIM_WITH", "dual-channel"),
];

/// The number of seeds from which on the share of searches that gave up says something.
const MIN_SEEDS_FOR_SHARE: u64 = 300;
/// The share of searches for an order that may give up, in percent (docs/TESTING.md).
const MAX_PERCENT_GIVEN_UP: u64 = 1;

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
    /// The seeds whose search for an order gave up.
    gave_up: Vec<u64>,
    elapsed: Duration,
    processor_time: Duration,
}

#[derive(Default)]
struct Totals {
    operations: u64,
    steps: u64,
    gave_up: Vec<u64>,
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
        let gave_up = match &*self.gave_up {
            [] => "no search for an order gave up".to_owned(),
            seeds => format!(
                "{} searches for an order gave up: those of the seeds {seeds:?}",
                seeds.len()
            ),
        };
        format!(
            "{} seeds passed, {failed} failed in {:.1} s: {} operations, {} million steps, {gave_up}",
            self.passed,
            self.elapsed.as_secs_f64(),
            self.operations,
            self.steps / 1_000_000,
        )
    }

    /// Returns an error text if so many searches for an order gave up that the runs have checked too little.
    pub fn check_given_up(&self) -> Result<(), String> {
        let are_few = self.gave_up.len() as u64 * 100 <= self.passed * MAX_PERCENT_GIVEN_UP;
        if self.passed < MIN_SEEDS_FOR_SHARE || are_few {
            return Ok(());
        }
        Err(format!(
            "{} of {} searches for an order gave up: more than {MAX_PERCENT_GIVEN_UP} percent",
            self.gave_up.len(),
            self.passed
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
        self.gave_up.extend(other.gave_up);
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

/// Runs each of these seeds twice, and the first one twice more with servers that are connected to one another.
///
/// # Errors
/// If a run fails, or two runs of a seed differ: such a seed could not be used to look into a failure.
pub fn check_repeatability(program: &Path, seeds: std::ops::Range<u64>) -> Result<(), String> {
    let first = seeds.start;
    for seed in seeds {
        check_repeated_run(program, seed, &[])?;
    }
    for (name, value) in CONNECTED_RUNS {
        let environment = [(name.to_owned(), value.to_owned())];
        check_repeated_run(program, first, &environment).map_err(|text| format!("with {name}={value}: {text}"))?;
    }
    Ok(())
}

/// Runs a seed twice.
fn check_repeated_run(program: &Path, seed: u64, environment: &[(String, String)]) -> Result<(), String> {
    let run = || {
        let outcome = run_seed(program, seed, 0, environment)?;
        match outcome.failure {
            Some(failure) => Err(failure.describe()),
            None => Ok(outcome.trace),
        }
    };
    let (first, second) = (run()?, run()?);
    if first == second && !first.is_empty() {
        return Ok(());
    }
    Err(format!(
        "seed {seed} does not repeat its run: the decisions of the scheduler have the digests '{first}' and \
         '{second}', so something in it does not depend on the seed alone; run `{} {seed}` twice, each time in an \
         empty directory and with WEFT_SIM_TRACE=FILE: the first line in which the two files differ shows the thread",
        program.display()
    ))
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
        .arg(seed.to_string())
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
        gave_up: text.contains("gave up").then_some(seed).into_iter().collect(),
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
    // Names of one length: servers count the memory for paths.
    base.join(format!("weft-sim-{:07}-{job:03}", std::process::id()))
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

//! `compare`: fresh servers, filled alike, loaded in turn.
//!
//! Both servers keep running with their data. A load runs on one server, then on the other, then on the first again. A
//! disturbance of the machine that lasts a minute thus affects both. Ratios are taken within a round and their median
//! is reported, so a slow phase that covers a whole round cancels out.
//!
//! Whatever ends the comparison, a signal or a failure, the servers are stopped, and the files have the rows that were
//! finished.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::comparison::{ComparisonRunner, server_recipe};
use crate::control::ControlConnection;
use crate::environment::RunEnvironment;
use crate::error::{Error, ErrorContext, Result};
use crate::interruption::Interruption;
use crate::process::CpuSample;
use crate::progress::{self, Progress};
use crate::report::{IdleRow, Report};
use crate::scripts;
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{IdleMeasurement, LoadSet};

#[cfg(test)]
mod tests;

/// The fields of INFO that identify a version and a build.
const VERSION_FIELDS: &[&str] = &[
    "server_name",
    "weft_version",
    "valkey_version",
    "redis_git_sha1",
    "redis_git_dirty",
    "redis_build_id",
    "mem_allocator",
];

/// The number of keys of each dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSize {
    /// That of the sets.
    AsInSets,
    /// The same number for all datasets.
    Keys(u64),
    /// That of the sets, in the proportion of `keys` to `full`.
    Scaled {
        /// The number of keys of a dataset that has `full` keys in the sets.
        keys: u64,
        /// The number of keys that becomes `keys`.
        full: u64,
    },
}

impl DataSize {
    /// Returns the number of keys of a dataset that has `in_set` keys in the sets; at least one.
    pub fn keys(self, in_set: u64) -> u64 {
        match self {
            DataSize::AsInSets => in_set,
            DataSize::Keys(keys) => keys,
            DataSize::Scaled { keys, full } => {
                let scaled = u128::from(in_set) * u128::from(keys) / u128::from(full.max(1));
                u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
            }
        }
    }
}

/// The options of `compare`, and of the measurements of `report`.
#[derive(Debug)]
pub struct CompareOptions {
    /// The path of Weft's binary.
    pub weft: PathBuf,
    /// The path of Valkey's binary, if it takes part.
    pub valkey: Option<PathBuf>,
    /// The library for Valkey's LD_PRELOAD.
    pub preload: Option<PathBuf>,
    /// The path of a Valkey binary with TLS, for comparisons with TLS.
    pub valkey_tls: Option<PathBuf>,
    /// `true` if a side is added that runs Valkey with huge pages.
    pub valkey_huge_pages: bool,
    /// Additional arguments of Weft.
    pub weft_args: Vec<String>,
    /// Additional arguments of Valkey.
    pub valkey_args: Vec<String>,
    /// The sets to run.
    pub sets: Vec<&'static LoadSet>,
    /// The number of rounds, overriding that of the sets.
    pub rounds: Option<usize>,
    /// The length of the window, overriding that of the sets.
    pub window: Option<Duration>,
    /// The length of the load before each window, overriding that of the sets.
    pub warmup: Option<Duration>,
    /// The number of keys of each dataset.
    pub data_size: DataSize,
    /// The time between two samples of resident memory, until it has settled.
    pub settle_interval: Duration,
    /// The numbers of workers of comparisons whose sides differ by them.
    pub workers: Vec<usize>,
    /// The number of connections of the client.
    pub connections: usize,
    /// The cores of the servers, for comparisons that pin.
    pub server_cores: Vec<usize>,
    /// The cores of the client, for comparisons that pin; one thread each.
    pub client_cores: Vec<usize>,
    /// The number of threads of the client, for comparisons that do not pin.
    pub client_threads: usize,
    /// The directory for the results.
    pub out_dir: PathBuf,
    /// The command line of this program, for the report.
    pub command_line: String,
    /// The request to end the run before its time.
    pub interruption: Interruption,
}

impl CompareOptions {
    /// Checks that the files exist that the options name.
    ///
    /// # Errors
    /// Fails if one of them does not exist.
    pub fn check_files(&self) -> Result<()> {
        let files = [
            Some(&self.weft),
            self.valkey.as_ref(),
            self.preload.as_ref(),
            self.valkey_tls.as_ref(),
        ];
        for file in files {
            if let Some(path) = file.filter(|path| !path.is_file()) {
                return Err(Error::Usage(format!("file {} does not exist", path.display())));
            }
        }
        Ok(())
    }

    /// Creates a report without results for this machine.
    pub fn new_report(&self) -> Report {
        Report::new(
            RunEnvironment::current(),
            self.command_line.clone(),
            settings_json(self),
        )
    }

    /// Formats the CPUs on which servers and client run in comparisons that pin.
    pub fn pinning_text(&self) -> String {
        let list = |cores: &[usize]| match cores.is_empty() {
            true => "any CPU".to_string(),
            false => {
                let numbers: Vec<String> = cores.iter().map(usize::to_string).collect();
                format!("CPU {}", numbers.join(", "))
            }
        };
        format!(
            "servers on {}, client on {}",
            list(&self.server_cores),
            list(&self.client_cores)
        )
    }
}

/// Runs all sets. After each set, and when the run ends early, it writes the tables of the results so far.
///
/// # Errors
/// Fails if a binary is missing, a server fails, a reply is wrong, the results cannot be written, or the run is
/// interrupted.
pub fn compare(options: &CompareOptions) -> Result<()> {
    options.check_files()?;
    let mut report = options.new_report();
    let progress = Progress::lines();
    let outcome = options.sets.iter().try_for_each(|set| {
        run_set(options, set, &progress, &mut report)?;
        let (markdown, json) = (report.markdown(), report.json());
        write_files(&options.out_dir, &files_name(options), &markdown, &json)
    });
    let outcome = options.interruption.explain(outcome);
    report.early_end = early_end(&outcome);
    if !report.has_rows() {
        return outcome;
    }
    let (markdown, json) = (report.markdown(), report.json());
    finish(&options.out_dir, &files_name(options), &markdown, &json, outcome)
}

/// Returns the reason for the early end of a run with this outcome.
pub fn early_end(outcome: &Result<()>) -> Option<String> {
    outcome.as_ref().err().map(Error::to_string)
}

/// Writes the files of a run that has ended with `outcome`, and prints the Markdown.
///
/// # Errors
/// Returns the error of the run, or else that of writing.
pub fn finish(folder: &Path, name: &str, markdown: &str, json: &Value, outcome: Result<()>) -> Result<()> {
    let written = write_files(folder, name, markdown, json);
    progress::print_result(markdown);
    first_error(outcome, written)
}

/// Returns the error of a run, or else that of writing its results. An error of writing that is not returned is shown.
///
/// # Errors
/// Fails if one of the two is an error.
pub fn first_error(outcome: Result<()>, written: Result<()>) -> Result<()> {
    if let (Err(_), Err(error)) = (&outcome, &written) {
        progress::log_line(format_args!("weft-bench: {error}"));
    }
    outcome.and(written)
}

fn run_set(options: &CompareOptions, set: &LoadSet, progress: &Progress, report: &mut Report) -> Result<()> {
    for comparison in set.comparisons {
        ComparisonRunner::new(options, set, comparison, progress)?.run(report)?;
    }
    for idle in set.idle {
        report.idle.push(measure_idle(options, idle, progress)?);
    }
    Ok(())
}

/// Returns the parameters of the loads, for the report.
fn settings_json(options: &CompareOptions) -> Value {
    let set = |set: &&LoadSet| {
        json!({
            "name": set.name,
            "rounds": options.rounds.unwrap_or(set.rounds),
            "warmup_seconds": options.warmup.map_or(set.warmup, |warmup| warmup.as_secs_f64()),
            "seconds": options.window.map_or(set.seconds, |window| window.as_secs_f64()),
        })
    };
    json!({
        "sets": options.sets.iter().map(set).collect::<Vec<Value>>(),
        "connections": options.connections,
        "server_cores": options.server_cores,
        "client_cores": options.client_cores,
        "weft_args": options.weft_args,
        "valkey_args": options.valkey_args,
        "valkey_preload": options.preload,
        "valkey_tls": options.valkey_tls,
        "valkey_huge_pages": options.valkey_huge_pages,
    })
}

/// Returns the name of the files with the results.
fn files_name(options: &CompareOptions) -> String {
    let names: Vec<&str> = options.sets.iter().map(|set| set.name).collect();
    format!("compare-{}", names.join("+"))
}

/// Writes results to `NAME.md` and `NAME.json` in a folder, which is created if it does not exist.
///
/// # Errors
/// Fails if the folder or a file cannot be written.
pub fn write_files(folder: &Path, name: &str, markdown: &str, json: &Value) -> Result<()> {
    fs::create_dir_all(folder).context(format!("creating {}", folder.display()))?;
    let base = folder.join(name);
    let json = format!("{json:#}\n");
    for (extension, text) in [("md", markdown), ("json", json.as_str())] {
        let path = base.with_extension(extension);
        fs::write(&path, text).context(format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn measure_idle(options: &CompareOptions, idle: &IdleMeasurement, progress: &Progress) -> Result<IdleRow> {
    progress.log(format_args!("idle, {}: {} s", idle.side.label, idle.seconds));
    let recipe = server_recipe(options, &idle.side, false);
    let recipe = recipe.ok_or_else(|| Error::Usage(format!("{} has no binary", idle.side.label)))?;
    let server = BenchServer::start(&recipe)?;
    let wait = |seconds: f64| {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        options.interruption.sleep_until(end)
    };
    wait(1.0)?;
    let before = CpuSample::read(server.pid())?;
    wait(idle.seconds)?;
    let cpu_ns = CpuSample::read(server.pid())?.nanoseconds_since(&before);
    let label = idle.side.label.to_string();
    Ok(IdleRow {
        label,
        seconds: idle.seconds,
        cpu_ms: cpu_ns as f64 / 1e6,
    })
}

impl Report {
    /// Records the version and the build of a side, as INFO and the digest of its binary give them.
    ///
    /// # Errors
    /// Fails if INFO fails or the binary cannot be read.
    pub fn record_version(
        &mut self,
        label: &str,
        recipe: &ServerParameters,
        control: &mut ControlConnection,
    ) -> Result<()> {
        let mut parts = Vec::new();
        for field in VERSION_FIELDS {
            parts.extend(control.info_field(field)?.map(|value| format!("{field} {value}")));
        }
        let program = &recipe.program;
        let bytes = fs::read(program).context(format!("reading {}", program.display()))?;
        parts.push(format!("SHA-1 of {}: {}", program.display(), scripts::sha1_hex(&bytes)));
        let preload = recipe.preload.as_deref();
        parts.extend(preload.map(|library| format!("LD_PRELOAD {}", library.display())));
        let environment = recipe.environment.iter();
        parts.extend(environment.map(|(name, value)| format!("{name}={value}")));
        let version = (label.to_string(), parts.join(", "));
        if !self.versions.contains(&version) {
            self.versions.push(version);
        }
        Ok(())
    }
}

//! `compare`: fresh servers, filled alike, loaded in turn.
//!
//! Both servers keep running with their data. A load runs on one server, then on the other, then on the first again. A
//! disturbance of the machine that lasts a minute thus affects both. Ratios are taken within a round and their median
//! is reported, so a slow phase that covers a whole round cancels out.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::comparison::{ComparisonRunner, server_recipe};
use crate::control::ControlConnection;
use crate::error::{Error, ErrorContext, Result};
use crate::process::{self, CpuSample};
use crate::report::{IdleRow, Report};
use crate::scripts;
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{IdleMeasurement, LoadSet};

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

/// The options of `compare`.
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
    /// The number of keys, overriding that of the sets.
    pub keys: Option<u64>,
    /// The number of connections of the client.
    pub connections: usize,
    /// The cores of the servers, for comparisons that pin.
    pub server_cores: Vec<usize>,
    /// The cores of the client, for comparisons that pin; one thread each.
    pub client_cores: Vec<usize>,
    /// The directory for the results.
    pub out_dir: PathBuf,
    /// The command line of this program, for the report.
    pub command_line: String,
}

/// Runs all sets. After each set, it writes the tables of the results so far.
///
/// # Errors
/// Fails if a binary is missing, a server fails, a reply is wrong, or the results cannot be written.
pub fn compare(options: &CompareOptions) -> Result<()> {
    let files = [
        Some(&options.weft),
        options.valkey.as_ref(),
        options.preload.as_ref(),
        options.valkey_tls.as_ref(),
    ];
    for file in files {
        if let Some(path) = file.filter(|path| !path.is_file()) {
            return Err(Error::Usage(format!("file {} does not exist", path.display())));
        }
    }
    let mut report = Report::new(
        process::processor_name(),
        process::kernel_release(),
        options.command_line.clone(),
        settings_json(options),
    );
    for set in &options.sets {
        for comparison in set.comparisons {
            let section = ComparisonRunner::new(options, set, comparison)?.run(&mut report)?;
            report.sections.push(section);
        }
        for idle in set.idle {
            report.idle.push(measure_idle(options, idle)?);
        }
        write_results(options, &report)?;
    }
    print!("{}", report.markdown());
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

fn write_results(options: &CompareOptions, report: &Report) -> Result<()> {
    let names: Vec<&str> = options.sets.iter().map(|set| set.name).collect();
    let folder = &options.out_dir;
    fs::create_dir_all(folder).context(format!("creating {}", folder.display()))?;
    let base = folder.join(format!("compare-{}", names.join("+")));
    let files = [("md", report.markdown()), ("json", format!("{:#}\n", report.json()))];
    for (extension, text) in files {
        let path = base.with_extension(extension);
        fs::write(&path, text).context(format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn measure_idle(options: &CompareOptions, idle: &IdleMeasurement) -> Result<IdleRow> {
    log_progress(format_args!("idle, {}: {} s", idle.side.label, idle.seconds));
    let recipe = server_recipe(options, &idle.side, false);
    let recipe = recipe.ok_or_else(|| Error::Usage(format!("{} has no binary", idle.side.label)))?;
    let server = BenchServer::start(&recipe)?;
    thread::sleep(Duration::from_secs(1));
    let before = CpuSample::read(server.pid())?;
    thread::sleep(Duration::from_secs_f64(idle.seconds));
    let cpu_ns = CpuSample::read(server.pid())?.nanoseconds_since(&before);
    let label = idle.side.label.to_string();
    Ok(IdleRow {
        label,
        seconds: idle.seconds,
        cpu_ms: cpu_ns as f64 / 1e6,
    })
}

/// Writes a progress message to standard error. A write error is ignored: it must not end the run, which would leave
/// servers running.
pub fn log_progress(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
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

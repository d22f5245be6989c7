//! `compare`: fresh servers, filled alike, loaded in turn.
//!
//! Both servers keep running with their data. A load runs on one server, then on the other, then on the first again. A
//! disturbance of the machine that lasts a minute thus affects both. Ratios are taken within a round and their median
//! is reported, so a slow phase that covers a whole round cancels out.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::background_load;
use crate::content::ValuePool;
use crate::control::ControlConnection;
use crate::draw::KeyOrder;
use crate::error::{Error, ErrorContext, Result};
use crate::load::{FILL_STRINGS, LoadParameters, Workload};
use crate::process::{self, CpuSample};
use crate::report::{IdleRow, LoadRow, MemoryRow, Report, Section};
use crate::run::{self, Measurement, RunParameters};
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{Comparison, ComparisonSide, Dataset, IdleMeasurement, LoadCase, LoadSet, Program};
use crate::template::STREAM_ENTRIES;

/// The full value is compared in every reply whose number is a multiple of this.
const VERIFY_EVERY: u64 = 16;

/// Resident memory counts as settled when it changes by less than this share between two samples.
const SETTLED_SHARE: f64 = 0.001;

/// The time between two samples of resident memory.
const SETTLE_INTERVAL: Duration = Duration::from_millis(2500);

/// The maximum number of samples of resident memory. After that, the last sample is used.
const MAX_SETTLE_SAMPLES: usize = 6;

/// The options of `compare`.
#[derive(Debug)]
pub struct CompareOptions {
    /// The path of Weft's binary.
    pub weft: PathBuf,
    /// The path of Valkey's binary, if it takes part.
    pub valkey: Option<PathBuf>,
    /// The library for Valkey's LD_PRELOAD.
    pub preload: Option<PathBuf>,
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
}

/// The parameters for filling a keyspace.
#[derive(Debug)]
pub struct FillParameters<'a> {
    /// The command that creates one key.
    pub command: &'a str,
    /// The number of keys.
    pub keys: u64,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// The expiry of each key, in seconds.
    pub ttl_s: Option<u64>,
    /// The number of connections.
    pub connections: usize,
    /// The number of outstanding requests per connection.
    pub pipeline: u64,
    /// The core of the client; only the first is used.
    pub cores: Vec<usize>,
}

/// Sends the command of `filling` once for each key. Returns the time it took.
///
/// # Errors
/// Fails if the command does not name exactly one key, lacks `{expire}` for an expiry, or gets an error reply.
pub fn fill(address: SocketAddr, filling: &FillParameters<'_>) -> Result<Duration> {
    let subject = LoadParameters {
        order: KeyOrder::Sequential,
        value_size: filling.value_size,
        expire_s: filling.ttl_s,
        verify_every: 1,
    };
    if filling.ttl_s.is_some() && !filling.command.contains("{expire}") {
        return Err(Error::Usage("an expiry needs {expire} in the command".into()));
    }
    let workload = Workload::from_command(filling.command, "any", &subject)?;
    if workload.keys_per_request() != 1 {
        return Err(Error::Usage("a fill command must name one {key} or {id}".into()));
    }
    let shape = RunParameters {
        address,
        connections: filling.connections,
        threads: 1,
        pipeline: filling.pipeline,
        rate: None,
        warmup: Duration::ZERO,
        window: Duration::ZERO,
        drain: Duration::ZERO,
        seed: 0,
        protocol: 2,
        cores: filling.cores.clone(),
        server_pid: None,
    };
    run::send_each_once(&shape, &workload, filling.keys)
}

/// Runs all sets. After each set, it writes the tables of the results so far.
///
/// # Errors
/// Fails if a binary is missing, a server fails, a reply is wrong, or the results cannot be written.
pub fn compare(options: &CompareOptions) -> Result<()> {
    for file in [Some(&options.weft), options.valkey.as_ref(), options.preload.as_ref()] {
        if let Some(path) = file.filter(|path| !path.is_file()) {
            return Err(Error::Usage(format!("file {} does not exist", path.display())));
        }
    }
    let mut report = Report::new(
        process::processor_name(),
        process::kernel_release(),
        settings_json(options),
    );
    for set in &options.sets {
        for comparison in set.comparisons {
            let section = ComparisonRunner {
                options,
                set,
                comparison,
            }
            .run(&mut report)?;
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

/// Returns the parameters for starting the server of a side; `None` if its binary does not take part.
fn server_recipe(options: &CompareOptions, side: &ComparisonSide, pinned: bool) -> Option<ServerParameters> {
    let (program, further, preload) = match side.program {
        Program::Weft => (options.weft.clone(), &options.weft_args, None),
        Program::Valkey => (options.valkey.clone()?, &options.valkey_args, options.preload.clone()),
    };
    let mut arguments: Vec<String> = side.arguments.split_whitespace().map(str::to_string).collect();
    arguments.extend(further.iter().cloned());
    let cores = if pinned {
        options.server_cores.clone()
    } else {
        Vec::new()
    };
    Some(ServerParameters {
        program,
        arguments,
        preload,
        cores,
    })
}

/// Creates the stream of the load `group-read`, and a group for each connection.
fn fill_stream(control: &mut ControlConnection, value_size: usize, connections: usize) -> Result<()> {
    let values = ValuePool::new(value_size);
    for entry in 0..STREAM_ENTRIES {
        let value = String::from_utf8_lossy(values.item(entry, 0)).into_owned();
        let id = format!("{}-1", entry + 1);
        control.call(&["XADD", "stream", &id, "field:000000", &value])?;
    }
    for connection in 0..connections {
        let group = format!("group:{connection:012}");
        control.call(&["XGROUP", "CREATE", "stream", &group, "0"])?;
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

/// A side that takes part, with its server.
struct ComparedSide {
    side: &'static ComparisonSide,
    /// The index of its server.
    server: usize,
}

/// One comparison in progress.
struct ComparisonRunner<'a> {
    options: &'a CompareOptions,
    set: &'a LoadSet,
    comparison: &'static Comparison,
}

impl ComparisonRunner<'_> {
    fn run(&self, report: &mut Report) -> Result<Section> {
        let taking_part =
            |side: &&'static ComparisonSide| server_recipe(self.options, side, self.comparison.is_pinned).is_some();
        let sides: Vec<&'static ComparisonSide> = self.comparison.sides.iter().filter(taking_part).collect();
        let mut section = Section {
            title: format!("{}, {} connections", self.comparison.title, self.options.connections),
            labels: sides.iter().map(|side| side.label.to_string()).collect(),
            pinned: self.comparison.is_pinned,
            loads: Vec::new(),
            memory: Vec::new(),
        };
        for dataset in self.comparison.datasets {
            self.run_dataset(dataset, &sides, &mut section, report)?;
        }
        Ok(section)
    }

    /// Starts and fills fresh servers, and runs the dataset's loads on them.
    fn run_dataset(
        &self,
        dataset: &Dataset,
        sides: &[&'static ComparisonSide],
        section: &mut Section,
        report: &mut Report,
    ) -> Result<()> {
        let mut servers = Vec::new();
        let mut contestants = Vec::new();
        let mut bytes_per_key = Vec::new();
        let keys = self.options.keys.unwrap_or(dataset.keys);
        for side in sides {
            if servers.is_empty() || !self.comparison.shares_server {
                let recipe = server_recipe(self.options, side, self.comparison.is_pinned);
                let Some(recipe) = recipe else { continue };
                let server = BenchServer::start(&recipe)?;
                report.record_version(side.label, recipe.preload.as_deref(), &mut server.control()?)?;
                bytes_per_key.push(self.fill(dataset, keys, side, &server)?);
                servers.push(server);
            }
            contestants.push(ComparedSide {
                side,
                server: servers.len() - 1,
            });
        }
        let measures_memory = !dataset.item_name.is_empty() || dataset.fills == [FILL_STRINGS];
        section.memory.extend(measures_memory.then_some(MemoryRow {
            what: dataset.item_name,
            value_size: dataset.value_size,
            ttl: dataset.ttl_s.is_some(),
            keys,
            bytes_per_key,
        }));
        for case in dataset.cases {
            section
                .loads
                .push(self.run_case(dataset, case, keys, &contestants, &servers)?);
        }
        Ok(())
    }

    /// Fills one server. Returns the growth of its resident memory per request; each request creates a key or an
    /// element.
    fn fill(&self, dataset: &Dataset, keys: u64, side: &ComparisonSide, server: &BenchServer) -> Result<f64> {
        let empty = settled_rss_bytes(server.pid())?;
        let (mut requests, mut expected) = (0, 0);
        if dataset.has_stream {
            fill_stream(&mut server.control()?, dataset.value_size, self.options.connections)?;
            expected += 1;
        }
        for command in dataset.fills {
            let filling = FillParameters {
                command,
                keys,
                value_size: dataset.value_size,
                ttl_s: dataset.ttl_s,
                connections: 8,
                pipeline: 64,
                cores: self.client_cores().first().copied().into_iter().collect(),
            };
            let time = fill(server.address, &filling)?;
            let names_many = command.split_whitespace().nth(1).is_some_and(|key| key.contains('{'));
            expected += if names_many { keys } else { 1 };
            requests += keys;
            let count = server.control()?.key_count()?;
            log_progress(format_args!(
                "{}: {command}: {keys} times in {:.1} s",
                side.label,
                time.as_secs_f64()
            ));
            if count != expected {
                let text = format!("{}: DBSIZE is {count} and not {expected}", side.label);
                return Err(Error::Server(text));
            }
        }
        let full = settled_rss_bytes(server.pid())?;
        Ok(full.saturating_sub(empty) as f64 / requests.max(1) as f64)
    }

    /// Runs one load on all sides in turn, in every round.
    fn run_case(
        &self,
        dataset: &Dataset,
        case: &LoadCase,
        keys: u64,
        contestants: &[ComparedSide],
        servers: &[BenchServer],
    ) -> Result<LoadRow> {
        let subject = LoadParameters {
            order: KeyOrder::Uniform { keys },
            value_size: dataset.value_size,
            expire_s: dataset.ttl_s,
            verify_every: VERIFY_EVERY,
        };
        let workload = Workload::from_name(case.load, &subject)?;
        let mut notes = Vec::new();
        let mut sides: Vec<Vec<Measurement>> = vec![Vec::new(); contestants.len()];
        for round in 0..self.options.rounds.unwrap_or(self.set.rounds) {
            for (contestant, measured) in contestants.iter().zip(&mut sides) {
                let server = &servers[contestant.server];
                let mut control = server.control()?;
                if !contestant.side.before_load.is_empty() {
                    control.call_line(contestant.side.before_load)?;
                }
                let shape = RunParameters {
                    rate: case.rate,
                    ..self.shape(server, case.pipeline, round as u64)
                };
                let measure = || run::measure(&shape, &workload);
                let (measurement, done) = background_load::run_with_background_load(
                    case.background_load,
                    server,
                    &self.client_cores(),
                    measure,
                )?;
                if !done.is_empty() {
                    notes.push(format!("{}: {done}", contestant.side.label));
                }
                log_measurement(contestant.side, case, dataset.value_size, &measurement);
                measured.push(measurement);
            }
        }
        Ok(LoadRow {
            load: case.load.to_string() + &case.background_load.note(),
            notes,
            value_size: dataset.value_size,
            pipeline: case.pipeline,
            sides,
        })
    }

    fn shape(&self, server: &BenchServer, pipeline: u64, round: u64) -> RunParameters {
        let cores = self.client_cores();
        RunParameters {
            address: server.address,
            connections: self.options.connections,
            threads: cores.len().max(1),
            pipeline,
            rate: None,
            warmup: self.options.warmup.unwrap_or(Duration::from_secs_f64(self.set.warmup)),
            window: self.options.window.unwrap_or(Duration::from_secs_f64(self.set.seconds)),
            drain: Duration::from_secs(20),
            seed: round + 1,
            protocol: 2,
            cores,
            server_pid: Some(server.pid()),
        }
    }

    fn client_cores(&self) -> Vec<usize> {
        if self.comparison.is_pinned {
            self.options.client_cores.clone()
        } else {
            Vec::new()
        }
    }
}

/// Writes a progress message to standard error. A write error is ignored: it must not end the run, which would leave
/// servers running.
fn log_progress(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn log_measurement(side: &ComparisonSide, case: &LoadCase, value_size: usize, measurement: &Measurement) {
    log_progress(format_args!(
        "{}: {} {value_size} B P{}: {:.0} req/s, server {:.2} µs, client {:.2} µs, p99.9 {:.0} µs",
        side.label,
        case.load,
        case.pipeline,
        measurement.requests_per_s,
        measurement.server_cpu_us.unwrap_or(f64::NAN),
        measurement.client_cpu_us,
        measurement.p999_us,
    ));
}

/// Returns the resident memory of a server in bytes, once background work (rehashing, purging) has ended.
fn settled_rss_bytes(pid: u32) -> Result<u64> {
    let mut last = process::rss_bytes(pid)?;
    for _ in 0..MAX_SETTLE_SAMPLES {
        thread::sleep(SETTLE_INTERVAL);
        let now = process::rss_bytes(pid)?;
        let change = now.abs_diff(last) as f64;
        last = now;
        if change <= last as f64 * SETTLED_SHARE {
            break;
        }
    }
    Ok(last)
}

impl Report {
    /// Records the version of a side.
    fn record_version(&mut self, label: &str, preload: Option<&Path>, control: &mut ControlConnection) -> Result<()> {
        if self.versions.iter().any(|(known, _)| known == label) {
            return Ok(());
        }
        let mut parts = Vec::new();
        for field in ["server_name", "weft_version", "valkey_version", "mem_allocator"] {
            parts.extend(control.info_field(field)?.map(|value| format!("{field} {value}")));
        }
        parts.extend(preload.map(|library| format!("LD_PRELOAD {}", library.display())));
        self.versions.push((label.to_string(), parts.join(", ")));
        Ok(())
    }
}

//! Runs one comparison: starts and fills the servers of its sides, and loads them in turn.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::background_load;
use crate::compare::CompareOptions;
use crate::draw::KeyOrder;
use crate::error::{Error, Result};
use crate::fill::{self, FillParameters};
use crate::load::{LoadParameters, Workload};
use crate::machine_memory;
use crate::progress::Progress;
use crate::replica::BenchReplica;
use crate::report::{LoadRow, MemoryRow, Report, Section, WorkerPoint};
use crate::run::{self, Measurement, NEW_KEYS_PER_CONNECTION, RunParameters};
use crate::scripts;
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{Comparison, ComparisonSide, Dataset, LoadCase, LoadSet, Program, VALKEY_HUGE_PAGES};
use crate::tls::TlsIdentity;

/// The full value is compared in every reply whose number is a multiple of this.
const VERIFY_EVERY: u64 = 16;

/// The text in the log of a server that was built without TLS.
const NO_TLS_MESSAGES: [&str; 2] = ["Failed finding TLS support", "Missing implement of connection type tls"];

/// Returns the parameters for starting the server of a side; `None` if its binary does not take part.
pub fn server_recipe(options: &CompareOptions, side: &ComparisonSide, pinned: bool) -> Option<ServerParameters> {
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
        environment: side.environment,
        tls: None,
        cores,
    })
}

/// Returns the parameters for starting the server of a side on its cores, with this `maxmemory` in bytes (0 is none)
/// and this `maxmemory-policy`; `None` if its binary does not take part.
pub fn limited_server_recipe(
    options: &CompareOptions,
    side: &ComparisonSide,
    max_memory: u64,
    policy: &str,
) -> Option<ServerParameters> {
    let mut recipe = server_recipe(options, side, true)?;
    let limit = max_memory.to_string();
    recipe
        .arguments
        .extend(["--maxmemory", &limit, "--maxmemory-policy", policy].map(str::to_string));
    Some(recipe)
}

/// A dataset with the servers that were filled with it.
struct FilledDataset<'d> {
    dataset: &'d Dataset,
    /// The number of keys.
    keys: u64,
    sides: Vec<ComparedSide>,
    servers: Vec<ComparedServer>,
}

/// A measurement of a load on one side, and remarks about it.
type RemarkedMeasurement = (Measurement, Vec<String>);

/// A side that takes part, with its server.
struct ComparedSide {
    side: &'static ComparisonSide,
    /// The index of its server.
    server: usize,
}

/// A filled server and its replica.
struct ComparedServer {
    server: BenchServer,
    replica: Option<BenchReplica>,
}

/// One comparison in progress.
pub struct ComparisonRunner<'a> {
    options: &'a CompareOptions,
    set: &'a LoadSet,
    comparison: &'static Comparison,
    progress: &'a Progress,
    tls: Option<(Arc<TlsIdentity>, Arc<ClientConfig>)>,
    /// The number of the first key that no load has created.
    next_new_key: Cell<u64>,
}

impl<'a> ComparisonRunner<'a> {
    /// Prepares a comparison. One with TLS gets its certificate.
    ///
    /// # Errors
    /// Fails if the certificate cannot be made.
    pub fn new(
        options: &'a CompareOptions,
        set: &'a LoadSet,
        comparison: &'static Comparison,
        progress: &'a Progress,
    ) -> Result<ComparisonRunner<'a>> {
        let mut tls = None;
        if comparison.uses_tls {
            let identity = TlsIdentity::create()?;
            let client = identity.client_config()?;
            tls = Some((Arc::new(identity), client));
        }
        Ok(ComparisonRunner {
            options,
            set,
            comparison,
            progress,
            tls,
            next_new_key: Cell::new(0),
        })
    }

    /// The number of measurements of the comparison.
    pub fn measurements(&self) -> u64 {
        let cases: usize = self.comparison.datasets.iter().map(|dataset| dataset.cases.len()).sum();
        (cases * self.rounds() * self.sides().len()) as u64
    }

    /// Runs the comparison. It adds a section to `report` at once, and each row when its load has run, so that the
    /// report has all finished rows if the comparison fails.
    ///
    /// # Errors
    /// Fails if a server fails, a reply is wrong, or the run is interrupted.
    pub fn run(&self, report: &mut Report) -> Result<()> {
        let (section, sides) = self.begin_section()?;
        report.sections.push(section);
        let mut datasets = self.comparison.datasets.iter();
        datasets.try_for_each(|dataset| self.run_dataset(dataset, &sides, report))
    }

    /// The sides that take part, unless their server turns out to be built without TLS.
    fn sides(&self) -> Vec<&'static ComparisonSide> {
        let mut sides: Vec<&'static ComparisonSide> = self.comparison.sides.iter().collect();
        if self.options.valkey_huge_pages && self.comparison.may_add_huge_pages {
            sides.push(&VALKEY_HUGE_PAGES);
        }
        let has_workers = |side: &ComparisonSide| side.workers == 0 || self.options.workers.contains(&side.workers);
        sides.retain(|&side| has_workers(side) && self.recipe(side).is_some());
        sides
    }

    /// Creates the section of the report, without rows. Returns it with the sides that take part.
    fn begin_section(&self) -> Result<(Section, Vec<&'static ComparisonSide>)> {
        let mut remarks: Vec<String> = self.comparison.remark.iter().map(|remark| remark.to_string()).collect();
        remarks.extend(
            self.comparison
                .prepares_memory
                .then(|| machine_memory::REMARK.to_string()),
        );
        let mut taking_part = Vec::new();
        for side in self.sides() {
            let Some(recipe) = self.recipe(side) else { continue };
            if self.can_start(&recipe)? {
                let mut command = recipe.command_text();
                if !side.before_load.is_empty() {
                    command.push_str(&format!("`, then `{}", side.before_load));
                }
                taking_part.push((side, command));
            } else {
                remarks.push(format!(
                    "{} is left out: {} was built without TLS",
                    side.label,
                    recipe.program.display()
                ));
            }
        }
        let point = |(side, _): &(&'static ComparisonSide, String)| WorkerPoint {
            server: side.program.name(),
            workers: side.workers,
        };
        let worker_points = taking_part.iter().map(point).filter(|point| point.workers > 0);
        let section = Section {
            title: format!("{}, {} connections", self.comparison.title, self.connections()),
            labels: taking_part.iter().map(|(side, _)| side.label.to_string()).collect(),
            commands: taking_part.iter().map(|(_, command)| command.clone()).collect(),
            remarks,
            pinned: self.comparison.is_pinned,
            loads: Vec::new(),
            memory: Vec::new(),
            worker_points: worker_points.collect(),
        };
        Ok((section, taking_part.into_iter().map(|(side, _)| side).collect()))
    }

    fn rounds(&self) -> usize {
        self.options.rounds.unwrap_or(self.set.rounds)
    }

    fn connections(&self) -> usize {
        self.comparison.connections.unwrap_or(self.options.connections)
    }

    fn recipe(&self, side: &ComparisonSide) -> Option<ServerParameters> {
        let mut recipe = server_recipe(self.options, side, self.comparison.is_pinned)?;
        recipe.tls = self.tls.as_ref().map(|(identity, _)| Arc::clone(identity));
        let tls_build: Option<&PathBuf> = self.options.valkey_tls.as_ref();
        if let (Some(build), Program::Valkey, true) = (tls_build, side.program, self.comparison.uses_tls) {
            recipe.program.clone_from(build);
        }
        Some(recipe)
    }

    /// Returns `true` unless the comparison needs TLS and the server was built without it.
    fn can_start(&self, recipe: &ServerParameters) -> Result<bool> {
        if !self.comparison.uses_tls {
            return Ok(true);
        }
        match BenchServer::start(recipe) {
            Ok(_) => Ok(true),
            Err(Error::Server(text)) if NO_TLS_MESSAGES.iter().any(|message| text.contains(message)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts and fills fresh servers, and runs the dataset's loads on them.
    fn run_dataset(&self, dataset: &Dataset, sides: &[&'static ComparisonSide], report: &mut Report) -> Result<()> {
        let filled = self.start_servers(dataset, sides, report)?;
        dataset
            .cases
            .iter()
            .try_for_each(|case| self.run_case(&filled, case, report))
    }

    /// Starts and fills the servers of a dataset, and records the memory that they need.
    fn start_servers<'d>(
        &self,
        dataset: &'d Dataset,
        sides: &[&'static ComparisonSide],
        report: &mut Report,
    ) -> Result<FilledDataset<'d>> {
        let keys = self.options.data_size.keys(dataset.keys);
        self.next_new_key.set(keys);
        let mut filled = FilledDataset {
            dataset,
            keys,
            sides: Vec::new(),
            servers: Vec::new(),
        };
        let mut bytes_per_key = Vec::new();
        for side in sides {
            if filled.servers.is_empty() || !self.comparison.shares_server {
                let Some(recipe) = self.recipe(side) else { continue };
                self.progress.show_activity(format!("{}: start and fill", side.label));
                let server = BenchServer::start(&recipe)?;
                report.record_version(side.label, &recipe, &mut server.control()?)?;
                bytes_per_key.push(self.fill(dataset, keys, side, &server)?);
                let replica = self.start_replica(&recipe, &server)?;
                filled.servers.push(ComparedServer { server, replica });
            }
            filled.sides.push(ComparedSide {
                side,
                server: filled.servers.len() - 1,
            });
        }
        last_section(report)
            .memory
            .extend(dataset.reports_memory.then_some(MemoryRow {
                what: dataset.item_name,
                value_size: dataset.value_size,
                ttl: dataset.ttl_s.is_some(),
                keys,
                bytes_per_key,
            }));
        Ok(filled)
    }

    /// Starts a replica on the client's cores, if the comparison has replicas. It has the parameters of its primary.
    fn start_replica(&self, recipe: &ServerParameters, primary: &BenchServer) -> Result<Option<BenchReplica>> {
        if !self.comparison.has_replicas {
            return Ok(None);
        }
        let recipe = ServerParameters {
            cores: self.client_cores(),
            ..recipe.clone()
        };
        BenchReplica::start(&recipe, primary, &self.options.interruption).map(Some)
    }

    /// Fills one server. Returns the growth of its resident memory per request if the dataset reports it, otherwise 0;
    /// each request creates a key or an element.
    fn fill(&self, dataset: &Dataset, keys: u64, side: &ComparisonSide, server: &BenchServer) -> Result<f64> {
        if dataset.fills.is_empty() && !dataset.has_stream {
            return Ok(0.0);
        }
        let (interval, interruption) = (self.options.settle_interval, &self.options.interruption);
        let mut empty = 0;
        if dataset.reports_memory {
            empty = fill::settled_rss_bytes(server.pid(), interval, interruption)?;
        }
        let (mut requests, mut expected) = (0, 0);
        if dataset.has_stream {
            fill::fill_stream(&mut server.control()?, dataset.value_size, self.connections())?;
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
                interruption: interruption.clone(),
            };
            let time = fill::fill(server.address, &filling)?;
            let names_many = command.split_whitespace().nth(1).is_some_and(|key| key.contains('{'));
            expected += if names_many { keys } else { 1 };
            requests += keys;
            let count = server.control()?.key_count()?;
            self.progress.log(format_args!(
                "{}: {command}: {keys} times in {:.1} s",
                side.label,
                time.as_secs_f64()
            ));
            if count != expected {
                let text = format!("{}: DBSIZE is {count} and not {expected}", side.label);
                return Err(Error::Server(text));
            }
        }
        let full = fill::settled_rss_bytes(server.pid(), interval, interruption)?;
        if !dataset.reports_memory {
            return Ok(0.0);
        }
        Ok(full.saturating_sub(empty) as f64 / requests.max(1) as f64)
    }

    /// Runs one load in every round, and adds its row to the report. If a round fails, the row has the rounds before
    /// it.
    fn run_case(&self, filled: &FilledDataset<'_>, case: &LoadCase, report: &mut Report) -> Result<()> {
        let dataset = filled.dataset;
        let subject = LoadParameters {
            order: KeyOrder::Uniform { keys: filled.keys },
            value_size: dataset.value_size,
            expire_s: dataset.ttl_s,
            verify_every: VERIFY_EVERY,
        };
        let workload = Workload::from_name(case.load, &subject)?;
        let mut row = LoadRow {
            load: case.load.to_string() + &case.background_load.note(),
            notes: Vec::new(),
            value_size: dataset.value_size,
            pipeline: case.pipeline,
            sides: vec![Vec::new(); filled.sides.len()],
        };
        let rounds = self.rounds();
        let outcome: Result<()> = (0..rounds).try_for_each(|round| {
            let measured = self.run_round(filled, case, &workload, round as u64)?;
            for ((measurement, notes), side) in measured.into_iter().zip(&mut row.sides) {
                side.push(measurement);
                row.notes.extend(notes);
            }
            Ok(())
        });
        let finished = row.sides.first().map_or(0, Vec::len);
        if finished < rounds {
            row.notes.push(format!("{finished} of {rounds} rounds were finished"));
        }
        if finished > 0 {
            last_section(report).loads.push(row);
        }
        outcome
    }

    /// Runs one load on all sides in turn.
    fn run_round(
        &self,
        filled: &FilledDataset<'_>,
        case: &LoadCase,
        workload: &Workload,
        round: u64,
    ) -> Result<Vec<RemarkedMeasurement>> {
        let dataset = filled.dataset;
        let run_on = |compared: &ComparedSide| -> Result<RemarkedMeasurement> {
            let (side, server) = (compared.side, &filled.servers[compared.server]);
            self.progress
                .show_activity(format!("{}: {} P{}", side.label, case.load, case.pipeline));
            let (measurement, done) = self.run_load(dataset, case, workload, side, server, round)?;
            // The signal may have reached the server before this program, and slowed it down.
            self.options.interruption.check()?;
            self.log_measurement(side, case, dataset.value_size, &measurement);
            self.progress.count_measurement();
            let remarks = done.into_iter().map(|done| format!("{}: {done}", side.label));
            Ok((measurement, remarks.collect()))
        };
        filled.sides.iter().map(run_on).collect()
    }

    /// Runs one load on one side once. Returns the measurement and remarks about it.
    fn run_load(
        &self,
        dataset: &Dataset,
        case: &LoadCase,
        workload: &Workload,
        side: &ComparisonSide,
        compared: &ComparedServer,
        round: u64,
    ) -> Result<(Measurement, Vec<String>)> {
        let server = &compared.server;
        let mut control = server.control()?;
        if !side.before_load.is_empty() {
            control.call_line(side.before_load)?;
        }
        if workload.uses_scripts() {
            scripts::load_all(&mut control)?;
        }
        if self.comparison.prepares_memory {
            machine_memory::prepare_free_memory();
        }
        let keys_before = control.key_count()?;
        let measure = |subscribers| {
            let shape = RunParameters {
                rate: case.rate,
                subscribers,
                ..self.shape(server, case.pipeline, round)
            };
            run::measure(&shape, workload)
        };
        let (measurement, done) = background_load::run_with_background_load(
            case.background_load,
            server,
            &self.client_cores(),
            dataset.value_size,
            measure,
        )?;
        let mut remarks: Vec<String> = Some(done).filter(|done| !done.is_empty()).into_iter().collect();
        if workload.has_new_keys() {
            let created = control.key_count()? - keys_before;
            self.next_new_key
                .set(self.next_new_key.get() + self.connections() as u64 * NEW_KEYS_PER_CONNECTION);
            if workload.creates_key_per_request() && created != measurement.all_replies {
                let text = format!("{created} keys were created by {} requests", measurement.all_replies);
                return Err(Error::WrongReply(text));
            }
            remarks.push(format!("{keys_before} keys, then {created} more"));
        }
        if let Some(replica) = &compared.replica {
            let time = replica.wait_until_caught_up(server, &self.options.interruption)?;
            remarks.push(format!("the replica caught up in {:.2} s", time.as_secs_f64()));
        }
        Ok((measurement, remarks))
    }

    fn shape(&self, server: &BenchServer, pipeline: u64, round: u64) -> RunParameters {
        let cores = self.client_cores();
        let threads = if self.comparison.is_pinned {
            cores.len()
        } else {
            self.options.client_threads
        };
        RunParameters {
            address: server.tls_address.unwrap_or(server.address),
            connections: self.connections(),
            threads: threads.max(1),
            pipeline,
            rate: None,
            warmup: self.options.warmup.unwrap_or(Duration::from_secs_f64(self.set.warmup)),
            window: self.options.window.unwrap_or(Duration::from_secs_f64(self.set.seconds)),
            drain: Duration::from_secs(20),
            seed: round + 1,
            first_new_key: self.next_new_key.get(),
            subscribers: None,
            protocol: 2,
            tls: self.tls.as_ref().map(|(_, client)| Arc::clone(client)),
            cores,
            server_pid: Some(server.pid()),
            interruption: self.options.interruption.clone(),
        }
    }

    fn client_cores(&self) -> Vec<usize> {
        if self.comparison.is_pinned {
            self.options.client_cores.clone()
        } else {
            Vec::new()
        }
    }

    fn log_measurement(&self, side: &ComparisonSide, case: &LoadCase, value_size: usize, measurement: &Measurement) {
        self.progress.log(format_args!(
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
}

/// The section of the comparison that runs, which has added it.
fn last_section(report: &mut Report) -> &mut Section {
    report.sections.last_mut().expect("a running comparison has a section")
}

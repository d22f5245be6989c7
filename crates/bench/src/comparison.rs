//! Runs one comparison: starts and fills the servers of its sides, and loads them in turn.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use crate::background_load;
use crate::compare::{CompareOptions, log_progress};
use crate::draw::KeyOrder;
use crate::error::{Error, Result};
use crate::fill::{self, FillParameters};
use crate::load::{LoadParameters, Workload};
use crate::machine_memory;
use crate::replica::BenchReplica;
use crate::report::{LoadRow, MemoryRow, Report, Section};
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
            tls,
            next_new_key: Cell::new(0),
        })
    }

    /// Runs the comparison.
    ///
    /// # Errors
    /// Fails if a server fails or a reply is wrong.
    pub fn run(&self, report: &mut Report) -> Result<Section> {
        let mut sides: Vec<&'static ComparisonSide> = self.comparison.sides.iter().collect();
        if self.options.valkey_huge_pages && self.comparison.may_add_huge_pages {
            sides.push(&VALKEY_HUGE_PAGES);
        }
        let mut remarks: Vec<String> = self.comparison.remark.iter().map(|remark| remark.to_string()).collect();
        remarks.extend(
            self.comparison
                .prepares_memory
                .then(|| machine_memory::REMARK.to_string()),
        );
        let mut taking_part = Vec::new();
        for side in sides {
            match self.recipe(side) {
                Some(recipe) if self.can_start(&recipe)? => {
                    let mut command = recipe.command_text();
                    if !side.before_load.is_empty() {
                        command.push_str(&format!("`, then `{}", side.before_load));
                    }
                    taking_part.push((side, command));
                }
                Some(recipe) => remarks.push(format!(
                    "{} is left out: {} was built without TLS",
                    side.label,
                    recipe.program.display()
                )),
                None => {}
            }
        }
        let connections = self.connections();
        let mut section = Section {
            title: format!("{}, {connections} connections", self.comparison.title),
            labels: taking_part.iter().map(|(side, _)| side.label.to_string()).collect(),
            commands: taking_part.iter().map(|(_, command)| command.clone()).collect(),
            remarks,
            pinned: self.comparison.is_pinned,
            loads: Vec::new(),
            memory: Vec::new(),
        };
        let sides: Vec<&'static ComparisonSide> = taking_part.into_iter().map(|(side, _)| side).collect();
        for dataset in self.comparison.datasets {
            self.run_dataset(dataset, &sides, &mut section, report)?;
        }
        Ok(section)
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
        self.next_new_key.set(keys);
        for side in sides {
            if servers.is_empty() || !self.comparison.shares_server {
                let Some(recipe) = self.recipe(side) else { continue };
                let server = BenchServer::start(&recipe)?;
                report.record_version(side.label, &recipe, &mut server.control()?)?;
                bytes_per_key.push(self.fill(dataset, keys, side, &server)?);
                let replica = self.start_replica(&recipe, &server)?;
                servers.push(ComparedServer { server, replica });
            }
            contestants.push(ComparedSide {
                side,
                server: servers.len() - 1,
            });
        }
        section.memory.extend(dataset.reports_memory.then_some(MemoryRow {
            what: dataset.item_name,
            value_size: dataset.value_size,
            ttl: dataset.ttl_s.is_some(),
            keys,
            bytes_per_key,
        }));
        for case in dataset.cases {
            let row = self.run_case(dataset, case, keys, &contestants, &servers)?;
            section.loads.push(row);
        }
        Ok(())
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
        BenchReplica::start(&recipe, primary).map(Some)
    }

    /// Fills one server. Returns the growth of its resident memory per request; each request creates a key or an
    /// element.
    fn fill(&self, dataset: &Dataset, keys: u64, side: &ComparisonSide, server: &BenchServer) -> Result<f64> {
        if dataset.fills.is_empty() && !dataset.has_stream {
            return Ok(0.0);
        }
        let empty = fill::settled_rss_bytes(server.pid())?;
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
            };
            let time = fill::fill(server.address, &filling)?;
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
        let full = fill::settled_rss_bytes(server.pid())?;
        Ok(full.saturating_sub(empty) as f64 / requests.max(1) as f64)
    }

    /// Runs one load on all sides in turn, in every round.
    fn run_case(
        &self,
        dataset: &Dataset,
        case: &LoadCase,
        keys: u64,
        contestants: &[ComparedSide],
        servers: &[ComparedServer],
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
                let (measurement, done) =
                    self.run_load(dataset, case, &workload, contestant.side, server, round as u64)?;
                notes.extend(
                    done.into_iter()
                        .map(|done| format!("{}: {done}", contestant.side.label)),
                );
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
            let time = replica.wait_until_caught_up(server)?;
            remarks.push(format!("the replica caught up in {:.2} s", time.as_secs_f64()));
        }
        Ok((measurement, remarks))
    }

    fn shape(&self, server: &BenchServer, pipeline: u64, round: u64) -> RunParameters {
        let cores = self.client_cores();
        RunParameters {
            address: server.tls_address.unwrap_or(server.address),
            connections: self.connections(),
            threads: cores.len().max(1),
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

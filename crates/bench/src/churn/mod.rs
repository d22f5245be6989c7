//! `churn`: how much memory servers take while their data change all the time, and how fast they give it back.
//!
//! Each server in turn:
//!
//! ```text
//! churn      clients write values of random sizes and types, delete keys, and let them expire, at maxmemory;
//!            resident and used memory are sampled each second, and all keys are flushed now and then
//! shrink     every value is rewritten with a tenth of its bytes; memory is sampled until it has settled
//! churn      until the server is full again
//! shrink     nine of ten keys are deleted; memory is sampled again
//! ```
//!
//! A server that wants to follow its data must find free pages although the values that are left lie between the freed
//! ones (fragmentation), and return them to the system.
//!
//! Whatever ends the run, a signal or a failure, the table has what was observed until then.

mod client;
mod memory;
mod results;
mod values;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client_threads::run_client_threads;
use crate::compare::{self, CompareOptions};
use crate::comparison::limited_server_recipe;
use crate::content::ValuePool;
use crate::control::ControlConnection;
use crate::error::{Error, Result};
use crate::interruption::Interruption;
use crate::machine_memory;
use crate::process;
use crate::progress::log_line;
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{ComparisonSide, Program, side};
use client::{ChurnClient, Shrinking, change_until_stopped};
use memory::{LoadSamples, MemorySample, ShrinkSamples};
use results::{ChurnReport, ChurnRow};

#[cfg(test)]
mod tests;

/// The time between two samples during the churn.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two samples after the data have shrunk.
const SETTLE_INTERVAL: Duration = Duration::from_millis(250);

/// The time between two lines about the progress of the churn.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

/// A server is full again at this share of `maxmemory`.
const FULL_SHARE: f64 = 0.95;

/// The time limit for filling a server again, which takes as long as the network needs for `maxmemory`.
const REFILL_LIMIT: Duration = Duration::from_secs(600);

/// The ways in which the data shrink, in this order.
const SHRINKINGS: [Shrinking; 2] = [Shrinking::Rewriting, Shrinking::Deleting];

/// `maxmemory-policy` of the servers.
const POLICY: &str = "allkeys-lru";

/// The environment of a Valkey with a preloaded jemalloc. Valkey switches on the thread that returns free pages of its
/// own jemalloc (`jemalloc-bg-thread`), but cannot do so for a preloaded one, which would keep them instead.
const PRELOADED_JEMALLOC: &[(&str, &str)] = &[("MALLOC_CONF", "background_thread:true")];

/// The servers, with their names on the command line. A build of Valkey without its own jemalloc refuses
/// `activedefrag`.
const SIDES: &[(&str, ComparisonSide)] = &[
    ("weft", side("Weft", Program::Weft, "--io-threads 1")),
    (
        "weft-activedefrag",
        ComparisonSide {
            before_load: "CONFIG SET activedefrag yes",
            ..side("Weft, activedefrag", Program::Weft, "--io-threads 1")
        },
    ),
    ("valkey", side("Valkey", Program::Valkey, "--io-threads 1")),
    (
        "activedefrag",
        ComparisonSide {
            before_load: "CONFIG SET activedefrag yes",
            ..side("Valkey, activedefrag", Program::Valkey, "--io-threads 1")
        },
    ),
];

/// The name of the files with the results.
const FILES: &str = "churn";

/// The options of `churn`.
#[derive(Debug)]
pub struct ChurnOptions {
    /// The servers and their client. The sets and the lengths of windows are not used.
    pub compare: CompareOptions,
    /// The names of the servers that take part; none for all.
    pub servers: Vec<String>,
    /// `maxmemory` of the servers, in bytes.
    pub max_memory: u64,
    /// The length of the churn.
    pub duration: Duration,
    /// The time between two FLUSHDB; `None` for none.
    pub flush_interval: Option<Duration>,
    /// The length of the observation after the data have shrunk.
    pub settle: Duration,
    /// The size of the key space; `None` for about twice as many keys as fit.
    pub keys: Option<u64>,
    /// The number of outstanding requests per connection.
    pub pipeline: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl ChurnOptions {
    /// Checks the names of the servers.
    ///
    /// # Errors
    /// Fails if one is unknown.
    pub fn check(&self) -> Result<()> {
        match self
            .servers
            .iter()
            .find(|name| SIDES.iter().all(|(known, _)| known != name))
        {
            None => Ok(()),
            Some(unknown) => {
                let known: Vec<&str> = SIDES.iter().map(|(name, _)| *name).collect();
                Err(Error::Usage(format!(
                    "--servers: {unknown} is none of {}",
                    known.join(", ")
                )))
            }
        }
    }

    fn keys(&self) -> u64 {
        let fit = self.max_memory as f64 / values::mean_bytes();
        self.keys
            .unwrap_or((2.0 * fit) as u64)
            .max(self.compare.connections as u64)
    }
}

/// Runs the churn on each server, prints the table, and writes the files. They are written after each server, and when
/// the run ends early.
///
/// # Errors
/// Fails if a binary or memory is missing, a server fails, a reply is wrong, the results cannot be written, or the run
/// is interrupted.
pub fn run(options: &ChurnOptions) -> Result<()> {
    options.compare.check_files()?;
    check_available(options.max_memory, machine_memory::available_bytes())?;
    let mut report = ChurnReport::new(options);
    let outcome = run_sides(options, &mut report);
    let outcome = options.compare.interruption.explain(outcome);
    report.end(compare::early_end(&outcome));
    if !report.has_results() {
        return outcome;
    }
    let folder = &options.compare.out_dir;
    compare::finish(folder, FILES, &report.markdown(), &report.json(), outcome)
}

fn run_sides(options: &ChurnOptions, report: &mut ChurnReport) -> Result<()> {
    let takes_part = |name: &str| options.servers.is_empty() || options.servers.iter().any(|given| given == name);
    let with_recipe = |side| Some((side, recipe(options, side)?));
    let sides = SIDES.iter().filter(|(name, _)| takes_part(name));
    let sides: Vec<(&ComparisonSide, ServerParameters)> = sides.filter_map(|(_, side)| with_recipe(side)).collect();
    let each_s = options.duration.as_secs_f64() + SHRINKINGS.len() as f64 * options.settle.as_secs_f64();
    log_line(format_args!(
        "{} servers, one after the other, each for {:.0} min and the time to fill it",
        sides.len(),
        each_s / 60.0
    ));
    for (side, recipe) in &sides {
        run_side(options, side, recipe, report)?;
        compare::write_files(&options.compare.out_dir, FILES, &report.markdown(), &report.json())?;
    }
    Ok(())
}

/// Checks that a server may take twice its `maxmemory`.
fn check_available(max_memory: u64, available: Option<u64>) -> Result<()> {
    match available {
        Some(available) if max_memory.saturating_mul(2) > available => Err(Error::Usage(format!(
            "a server may take twice the {} MB of --maxmemory, and {} MB are available",
            max_memory / 1_000_000,
            available / 1_000_000
        ))),
        _ => Ok(()),
    }
}

/// Returns the parameters for starting the server of a side; `None` if its binary does not take part.
fn recipe(options: &ChurnOptions, side: &ComparisonSide) -> Option<ServerParameters> {
    let mut recipe = limited_server_recipe(&options.compare, side, options.max_memory, POLICY)?;
    if recipe.preload.is_some() {
        recipe.environment = PRELOADED_JEMALLOC;
    }
    Some(recipe)
}

fn run_side(
    options: &ChurnOptions,
    side: &ComparisonSide,
    recipe: &ServerParameters,
    report: &mut ChurnReport,
) -> Result<()> {
    let server = BenchServer::start(recipe)?;
    let mut control = server.control()?;
    let mut command = recipe.command_text();
    if !side.before_load.is_empty() {
        command.push_str(&format!("`, then `{}", side.before_load));
        match control.call_line(side.before_load) {
            Ok(_) => {}
            // Other errors are those of a server that has ended or does not answer.
            Err(Error::Server(reply)) if reply.contains(": -") => {
                log_line(format_args!("{} is left out: {reply}", side.label));
                report.leave_out(side.label, reply);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    report.record_version(side.label, recipe, &mut control)?;
    let clients = ChurnClients::connect(options, server.address)?;
    let row = report.begin_row(side.label, command);
    let mut observed = ObservedServer {
        options,
        label: side.label,
        pid: server.pid(),
        control,
        clients,
    };
    let outcome = observed.churn(&mut row.load);
    row.counts = observed.clients.counts();
    outcome?;
    SHRINKINGS
        .into_iter()
        .try_for_each(|how| observed.fill_and_shrink(how, row))
}

/// A server with its clients, and the connection over which it is observed.
struct ObservedServer<'o> {
    options: &'o ChurnOptions,
    label: &'static str,
    pid: u32,
    control: ControlConnection,
    clients: ChurnClients,
}

impl ObservedServer<'_> {
    /// Runs the churn, and samples the memory meanwhile. After a failure, `load` has the samples before it.
    fn churn(&mut self, load: &mut LoadSamples) -> Result<()> {
        let (options, label, pid, control) = (self.options, self.label, self.pid, &mut self.control);
        let interruption = &options.compare.interruption;
        log_line(format_args!("{label}: {} s of churn", options.duration.as_secs_f64()));
        self.clients.change_while(options.pipeline, |stop| {
            let interval = SAMPLE_INTERVAL.min(options.duration / 10);
            let begin = Instant::now();
            let mut next = begin + interval;
            let mut next_flush = options.flush_interval.map(|interval| begin + interval);
            let mut next_line = begin + PROGRESS_INTERVAL;
            while next <= begin + options.duration && !stop.load(Ordering::Relaxed) {
                interruption.sleep_until(next)?;
                let sample = MemorySample::read(pid, control, begin)?;
                load.samples.push(sample);
                if next_line <= next {
                    let (progress, whole_s) = (sample.text(options.max_memory), options.duration.as_secs_f64());
                    log_line(format_args!(
                        "{label}: {:.0} of {whole_s:.0} s, {progress}",
                        sample.seconds
                    ));
                    next_line += PROGRESS_INTERVAL;
                }
                // Not at the end: a server may free flushed values later, and would seem to be full.
                if next_flush.is_some_and(|due| due <= next) && next < begin + options.duration {
                    control.call(&["FLUSHDB"])?;
                    load.flushes += 1;
                    next_flush = next_flush.zip(options.flush_interval).map(|(due, after)| due + after);
                }
                next += interval;
            }
            // A client that fails ends the load, too.
            load.is_complete = !stop.load(Ordering::Relaxed);
            Ok(())
        })
    }

    /// Lets the clients fill the server again and shrink their data. Samples the memory afterwards. After a failure,
    /// `row` has the samples before it.
    fn fill_and_shrink(&mut self, how: Shrinking, row: &mut ChurnRow) -> Result<()> {
        let (options, label, pid) = (self.options, self.label, self.pid);
        let interruption = &options.compare.interruption;
        let is_full = self.fill()?;
        let before = MemorySample::read(pid, &mut self.control, Instant::now())?;
        if !is_full {
            row.remarks.push(format!(
                "{}: the server was not full before, but held {} MB after {} s",
                how.name(),
                before.used / 1_000_000,
                REFILL_LIMIT.as_secs()
            ));
        }
        let shrink_begin = Instant::now();
        self.clients.shrink(how, interruption)?;
        let shrink_time = shrink_begin.elapsed();
        log_line(format_args!(
            "{label}: {} in {:.1} s",
            how.name(),
            shrink_time.as_secs_f64()
        ));
        let begin = Instant::now();
        let first = MemorySample::read(pid, &mut self.control, begin)?;
        let shrink = row.begin_shrink(ShrinkSamples {
            how,
            shrink_time,
            before,
            after: vec![first],
            is_complete: false,
        });
        while begin.elapsed() < options.settle {
            let next = Instant::now() + SETTLE_INTERVAL.min(options.settle);
            interruption.sleep_until(next.min(begin + options.settle))?;
            shrink.after.push(MemorySample::read(pid, &mut self.control, begin)?);
        }
        shrink.is_complete = true;
        let last = shrink
            .last()
            .map_or(String::new(), |last| last.text(options.max_memory));
        log_line(format_args!(
            "{label}: {:.0} s later, {last}",
            options.settle.as_secs_f64()
        ));
        Ok(())
    }

    /// Lets the clients fill the server. Returns `false` if it is not full after [`REFILL_LIMIT`].
    fn fill(&mut self) -> Result<bool> {
        let (options, pid, control) = (self.options, self.pid, &mut self.control);
        let full = (options.max_memory as f64 * FULL_SHARE) as u64;
        let begin = Instant::now();
        self.clients.change_while(options.pipeline, |stop| {
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < REFILL_LIMIT {
                if MemorySample::read(pid, control, begin)?.used >= full {
                    return Ok(true);
                }
                let next = Instant::now() + SETTLE_INTERVAL;
                options.compare.interruption.sleep_until(next)?;
            }
            Ok(false)
        })
    }
}

/// The clients of a server, in groups of one thread each.
struct ChurnClients {
    threads: Vec<Vec<ChurnClient>>,
    cores: Vec<usize>,
    values: ValuePool,
}

impl ChurnClients {
    /// Connects the clients, with a thread for each core of the client.
    fn connect(options: &ChurnOptions, address: SocketAddr) -> Result<ChurnClients> {
        process::raise_open_file_limit();
        let cores = options.compare.client_cores.clone();
        let mut threads: Vec<Vec<ChurnClient>> = Vec::new();
        threads.resize_with(cores.len().max(1), Vec::new);
        let (clients, keys) = (options.compare.connections as u64, options.keys());
        for number in 0..clients {
            let client = ChurnClient::connect(address, number, clients, keys, options.seed)?;
            let thread = number as usize % threads.len();
            threads[thread].push(client);
        }
        threads.retain(|clients| !clients.is_empty());
        Ok(ChurnClients {
            threads,
            cores,
            values: values::content(),
        })
    }

    /// Returns the sums of all clients.
    fn counts(&self) -> client::ClientCounts {
        let mut sum = client::ClientCounts::default();
        for client in self.threads.iter().flatten() {
            sum.requests += client.counts.requests;
            sum.refused += client.counts.refused;
        }
        sum
    }

    /// Changes keys until `watch` has ended.
    fn change_while<T>(&mut self, batch: usize, watch: impl FnOnce(&AtomicBool) -> Result<T>) -> Result<T> {
        self.run(
            |clients, values, stop| change_until_stopped(clients, batch, values, stop),
            watch,
        )
    }

    /// Makes the data a tenth of what they are.
    fn shrink(&mut self, how: Shrinking, interruption: &Interruption) -> Result<()> {
        let shrink = |clients: &mut [ChurnClient], values: &ValuePool, _: &AtomicBool| {
            let mut clients = clients.iter_mut();
            clients.try_for_each(|client| client.shrink(how, values, interruption))
        };
        self.run(shrink, |_| Ok(()))
    }

    /// Runs `work` on each thread with its clients, and `watch` on the calling one. The stop flag is set when `watch`
    /// has ended, or when a thread has failed.
    fn run<T>(
        &mut self,
        work: impl Fn(&mut [ChurnClient], &ValuePool, &AtomicBool) -> Result<()> + Sync,
        watch: impl FnOnce(&AtomicBool) -> Result<T>,
    ) -> Result<T> {
        let (values, stop) = (&self.values, &AtomicBool::new(false));
        let (watched, _) = run_client_threads(
            &self.cores,
            &mut self.threads,
            |clients: &mut Vec<ChurnClient>| work(clients.as_mut_slice(), values, stop),
            || stop.store(true, Ordering::Relaxed),
            || watch(stop),
        )?;
        Ok(watched)
    }
}

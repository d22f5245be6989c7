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

mod client;
mod memory;
mod results;
mod values;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::compare::{self, CompareOptions};
use crate::comparison::server_recipe;
use crate::content::ValuePool;
use crate::control::ControlConnection;
use crate::error::{Error, ErrorContext, Result};
use crate::flags::{Flag, flag};
use crate::interruption::Interruption;
use crate::machine_memory;
use crate::process;
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{ComparisonSide, Program, side};
use client::{ChurnClient, Shrinking, change_until_stopped};
use memory::{LoadSamples, MemorySample, ShrinkSamples};
use results::{ChurnReport, ChurnRow};

#[cfg(test)]
mod tests;

/// The flags besides those about the servers and their client.
pub const FLAGS: &[Flag] = &[
    flag("--maxmemory", "BYTES", "1gb", "maxmemory of the servers"),
    flag("--seconds", "S", "3600", "length of the churn on each server"),
    flag(
        "--flush-every",
        "S",
        "600",
        "seconds between two FLUSHDB during the churn; 0 for none",
    ),
    flag(
        "--settle",
        "S",
        "60",
        "seconds of observation after all keys have shrunk",
    ),
    flag("--keys", "N", "", "size of the key space [about twice as many as fit]"),
    flag(
        "--pipeline",
        "N",
        "8",
        "outstanding requests per connection; one of them reads",
    ),
    flag("--seed", "N", "1", "seed of all random choices"),
    flag(
        "--out-dir",
        "FOLDER",
        "results",
        "folder for the Markdown and JSON files",
    ),
];

/// The time between two samples during the churn.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two samples after the data have shrunk.
const SETTLE_INTERVAL: Duration = Duration::from_millis(250);

/// A server is full again at this share of `maxmemory`.
const FULL_SHARE: f64 = 0.95;

/// The time limit for filling a server again, which takes as long as the network needs for `maxmemory`.
const REFILL_LIMIT: Duration = Duration::from_secs(600);

/// The ways in which the data shrink, in this order.
const SHRINKINGS: [Shrinking; 2] = [Shrinking::Rewriting, Shrinking::Deleting];

/// The servers. A build of Valkey without its own jemalloc refuses `activedefrag`.
const SIDES: [ComparisonSide; 3] = [
    side("Weft", Program::Weft, "--io-threads 1"),
    side("Valkey", Program::Valkey, "--io-threads 1"),
    ComparisonSide {
        before_load: "CONFIG SET activedefrag yes",
        ..side("Valkey, activedefrag", Program::Valkey, "--io-threads 1")
    },
];

/// The options of `churn`.
#[derive(Debug)]
pub struct ChurnOptions {
    /// The servers and their client. The sets and the lengths of windows are not used.
    pub compare: CompareOptions,
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
    fn keys(&self) -> u64 {
        let fit = self.max_memory as f64 / values::mean_bytes();
        self.keys
            .unwrap_or((2.0 * fit) as u64)
            .max(self.compare.connections as u64)
    }
}

/// Runs the churn on each server, prints the table, and writes the files. They are written after each server.
///
/// # Errors
/// Fails if a binary or memory is missing, a server fails, a reply is wrong, the results cannot be written, or the run
/// is interrupted.
pub fn run(options: &ChurnOptions) -> Result<()> {
    options.compare.check_files()?;
    check_available(options.max_memory, machine_memory::available_bytes())?;
    let mut report = ChurnReport::new(options);
    for side in &SIDES {
        let Some(recipe) = recipe(options, side) else { continue };
        let outcome = run_side(options, side, &recipe, &mut report);
        options.compare.interruption.explain(outcome)?;
        let folder = &options.compare.out_dir;
        compare::write_files(folder, "churn", &report.markdown(), &report.json())?;
    }
    print!("{}", report.markdown());
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
    let mut recipe = server_recipe(&options.compare, side, true)?;
    let limit = options.max_memory.to_string();
    recipe
        .arguments
        .extend(["--maxmemory", &limit, "--maxmemory-policy", "allkeys-lru"].map(str::to_string));
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
            Err(Error::Server(reply)) => {
                eprintln!("{} is left out: {reply}", side.label);
                report.leave_out(side.label, reply);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    report.record_version(side.label, recipe, &mut control)?;
    let mut observed = ObservedServer {
        options,
        label: side.label,
        pid: server.pid(),
        control,
        clients: ChurnClients::connect(options, &server)?,
    };
    let load = observed.churn()?;
    let counts = observed.clients.counts();
    let mut row = ChurnRow::new(side.label, command, load, counts);
    for how in SHRINKINGS {
        row.shrinks.push(observed.fill_and_shrink(how)?);
    }
    report.rows.push(row);
    Ok(())
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
    /// Runs the churn, and samples the memory meanwhile.
    fn churn(&mut self) -> Result<LoadSamples> {
        let (options, label, pid, control) = (self.options, self.label, self.pid, &mut self.control);
        let interruption = &options.compare.interruption;
        eprintln!("{label}: {} s of churn", options.duration.as_secs_f64());
        self.clients.change_while(options.pipeline, |stop| {
            let interval = SAMPLE_INTERVAL.min(options.duration / 10);
            let begin = Instant::now();
            let mut next = begin + interval;
            let mut next_flush = options.flush_interval.map(|interval| begin + interval);
            let mut load = LoadSamples::default();
            while next <= begin + options.duration && !stop.load(Ordering::Relaxed) {
                interruption.sleep_until(next)?;
                load.samples.push(MemorySample::read(pid, control, begin)?);
                if next_flush.is_some_and(|due| due <= next) {
                    control.call(&["FLUSHDB"])?;
                    load.flushes += 1;
                    next_flush = next_flush.zip(options.flush_interval).map(|(due, after)| due + after);
                }
                next += interval;
            }
            Ok(load)
        })
    }

    /// Lets the clients fill the server again and shrink their data. Samples the memory afterwards.
    fn fill_and_shrink(&mut self, how: Shrinking) -> Result<ShrinkSamples> {
        let (options, label, pid, control) = (self.options, self.label, self.pid, &mut self.control);
        let interruption = &options.compare.interruption;
        let full = (options.max_memory as f64 * FULL_SHARE) as u64;
        let begin = Instant::now();
        self.clients.change_while(options.pipeline, |stop| {
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < REFILL_LIMIT {
                if MemorySample::read(pid, control, begin)?.used >= full {
                    break;
                }
                interruption.sleep_until(Instant::now() + SETTLE_INTERVAL)?;
            }
            Ok(())
        })?;
        let before = MemorySample::read(pid, control, begin)?;
        let shrink_begin = Instant::now();
        self.clients.shrink(how, interruption)?;
        let shrink_time = shrink_begin.elapsed();
        eprintln!("{label}: {} in {:.1} s", how.name(), shrink_time.as_secs_f64());
        let begin = Instant::now();
        let mut after = vec![MemorySample::read(pid, control, begin)?];
        while begin.elapsed() < options.settle {
            let next = Instant::now() + SETTLE_INTERVAL.min(options.settle);
            interruption.sleep_until(next.min(begin + options.settle))?;
            after.push(MemorySample::read(pid, control, begin)?);
        }
        Ok(ShrinkSamples {
            how,
            shrink_time,
            before,
            after,
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
    fn connect(options: &ChurnOptions, server: &BenchServer) -> Result<ChurnClients> {
        process::raise_open_file_limit();
        let cores = options.compare.client_cores.clone();
        let mut threads: Vec<Vec<ChurnClient>> = Vec::new();
        threads.resize_with(cores.len().max(1), Vec::new);
        let (clients, keys) = (options.compare.connections as u64, options.keys());
        for number in 0..clients {
            let client = ChurnClient::connect(server.address, number, clients, keys, options.seed)?;
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
        let (values, cores, work) = (&self.values, &self.cores, &work);
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let mut handles = Vec::new();
            for (number, clients) in self.threads.iter_mut().enumerate() {
                let core = cores.get(number).copied();
                let body = move || {
                    let outcome = core
                        .map_or(Ok(()), |core| process::pin_this_thread(&[core]))
                        .and_then(|()| work(clients.as_mut_slice(), values, stop));
                    if outcome.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    outcome
                };
                let spawned = thread::Builder::new()
                    .name(format!("client-{number}"))
                    .spawn_scoped(scope, body)
                    .inspect_err(|_| stop.store(true, Ordering::Relaxed));
                handles.push(spawned.context("starting a client thread")?);
            }
            let watched = watch(stop);
            stop.store(true, Ordering::Relaxed);
            let mut outcome = Ok(());
            for handle in handles {
                outcome = outcome.and(handle.join().expect("a client thread does not panic"));
            }
            match watched {
                Err(Error::Interrupted) => Err(Error::Interrupted),
                watched => outcome.and(watched),
            }
        })
    }
}

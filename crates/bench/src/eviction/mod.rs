//! `eviction`: how well servers choose the keys that they evict, and how long writes take meanwhile.
//!
//! Clients read keys whose popularity follows Zipf's law, and write those that are missing. There are ten times as many
//! keys as fit. The hit rate shows if the server keeps the popular ones. Weft needs fewer bytes per key than Valkey, so
//! there are two comparisons:
//!
//! ```text
//! equal keys     each server has the maxmemory with which it holds the same number of keys, found by trying:
//!                the hit rates compare the choice of keys
//! equal memory   Weft has the maxmemory of Valkey: the hit rates also compare the memory per key
//! ```
//!
//! The best possible hit rate is that of a cache that always holds the most popular keys.
//!
//! Then new keys are written at a fixed rate, each of which must evict one, and the latencies are measured from the
//! time at which each write was due.
//!
//! Whatever ends the run, a signal or a failure, the tables have the rounds that were finished.

mod cache_clients;
mod results;

use std::time::{Duration, Instant};

use crate::compare::{self, CompareOptions};
use crate::comparison::limited_server_recipe;
use crate::content::ValuePool;
use crate::control::ControlConnection;
use crate::draw::{KeyOrder, Zipf};
use crate::error::{Error, Result};
use crate::fill::{self, FillParameters};
use crate::load::{FILL_STRINGS, LoadParameters, Workload};
use crate::progress::log_line;
use crate::report::LoadRow;
use crate::run::{self, Measurement, RunParameters};
use crate::server::{BenchServer, ServerParameters};
use crate::sets::{ComparisonSide, Program, side};
use cache_clients::{CacheLoad, CachePhase, SharedPhase, run_clients};
use results::{EvictionReport, HitMeasurement, HitSide};

#[cfg(test)]
mod tests;

/// The number of keys for each key that fits.
const KEYS_PER_FITTING_KEY: u64 = 10;

/// The policies that evict keys.
const POLICIES: [&str; 7] = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

/// The expiry of keys that may be evicted because they have one, in seconds.
const VOLATILE_EXPIRE_S: u64 = 1_000_000;

/// The number of connections that write new keys before the latencies are measured.
const FILL_CONNECTIONS: usize = 8;

/// The largest number of limits that are tried until the right number of keys fits.
const MOST_TRIALS: usize = 10;

/// The right number of keys fits if it differs by at most one part in this number.
const FIT_TOLERANCE: u64 = 200;

/// The time between two samples of a server's statistics.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of samples whose mean is the number of keys that fit.
const LOOKS: u64 = 5;

/// The time limit until a server begins to evict.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(300);

/// The servers.
const SIDES: &[ComparisonSide] = &[
    side("Weft", Program::Weft, "--io-threads 1"),
    side("Valkey", Program::Valkey, "--io-threads 1"),
];

/// The label of Weft with the memory of Valkey.
const EQUAL_MEMORY_LABEL: &str = "Weft, Valkey's maxmemory";

/// The name of the files with the results.
const FILES: &str = "eviction";

/// The options of `eviction`.
#[derive(Debug)]
pub struct EvictionOptions {
    /// The servers and their client. The sets, the rounds and the lengths of windows are not used.
    pub compare: CompareOptions,
    /// The policies.
    pub policies: Vec<String>,
    /// The exponents of Zipf's law.
    pub exponents: Vec<f64>,
    /// The number of keys that fit.
    pub fit: u64,
    /// The size of each value in bytes.
    pub value_size: usize,
    /// `maxmemory-samples` of the servers.
    pub samples: u32,
    /// The number of reads per second.
    pub rate: f64,
    /// The number of keys that are read together, and of outstanding writes per connection.
    pub pipeline: usize,
    /// The length of the load between the first eviction and the measurement.
    pub warmup: Duration,
    /// The length of each measurement.
    pub window: Duration,
    /// The number of writes per second, for the latencies.
    pub write_rate: f64,
    /// The number of interleaved rounds.
    pub rounds: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl EvictionOptions {
    /// Checks that the policies evict keys and that the exponents are those of a distribution.
    ///
    /// # Errors
    /// Fails if a policy or an exponent is not one of these.
    pub fn check(&self) -> Result<()> {
        if let Some(unknown) = self.policies.iter().find(|policy| !POLICIES.contains(&policy.as_str())) {
            let text = format!("--policies: {unknown:?} is none of {}", POLICIES.join(", "));
            return Err(Error::Usage(text));
        }
        let is_exponent = |exponent: &f64| (0.01..20.0).contains(exponent);
        if self.policies.is_empty() || self.exponents.is_empty() || !self.exponents.iter().all(is_exponent) {
            return Err(Error::Usage(
                "--policies and --exponents need values, and exponents must be above 0 and below 20".into(),
            ));
        }
        Ok(())
    }

    fn keys(&self) -> u64 {
        self.fit * KEYS_PER_FITTING_KEY
    }

    /// Returns the minutes that the measurements of a policy take, without those for finding limits and filling
    /// servers.
    fn minutes_per_policy(&self) -> f64 {
        let sides = if self.compare.valkey.is_some() {
            SIDES.len() as f64
        } else {
            1.0
        };
        // The hit rates have one side more: Weft with the memory of Valkey.
        let hits_s = self.exponents.len() as f64 * (2.0 * sides - 1.0) * (self.warmup + self.window).as_secs_f64();
        let latencies_s = sides * self.window.as_secs_f64();
        self.rounds as f64 * (hits_s + latencies_s) / 60.0
    }
}

/// Measures all policies, prints the tables, and writes the files. They are written after each row, and when the run
/// ends early.
///
/// # Errors
/// Fails if a binary is missing, a server fails, a reply is wrong, the results cannot be written, or the run is
/// interrupted.
pub fn run(options: &EvictionOptions) -> Result<()> {
    options.compare.check_files()?;
    let mut report = EvictionReport::new(options);
    let outcome = measure_policies(options, &mut report);
    let outcome = options.compare.interruption.explain(outcome);
    report.end(compare::early_end(&outcome));
    if !report.has_results() {
        return outcome;
    }
    let folder = &options.compare.out_dir;
    compare::finish(folder, FILES, &report.markdown(), &report.json(), outcome)
}

fn measure_policies(options: &EvictionOptions, report: &mut EvictionReport) -> Result<()> {
    log_line(format_args!(
        "{} policies, each for {:.0} min and the time to find the limits and to fill the servers",
        options.policies.len(),
        options.minutes_per_policy()
    ));
    options.policies.iter().try_for_each(|policy| {
        let runner = PolicyRunner {
            options,
            policy,
            values: ValuePool::new(options.value_size),
            expire_s: policy.starts_with("volatile-").then_some(VOLATILE_EXPIRE_S),
        };
        runner.run(report)
    })
}

/// A server with the limit under which it is measured.
#[derive(Debug, Clone, Copy)]
struct LimitedSide {
    label: &'static str,
    side: &'static ComparisonSide,
    max_memory: u64,
}

/// The measurements of one policy.
struct PolicyRunner<'o> {
    options: &'o EvictionOptions,
    policy: &'o str,
    values: ValuePool,
    /// The expiry of keys, in seconds.
    expire_s: Option<u64>,
}

impl PolicyRunner<'_> {
    fn run(&self, report: &mut EvictionReport) -> Result<()> {
        let equal_keys = self.limits(report)?;
        let mut sides = equal_keys.clone();
        if let [weft, valkey] = equal_keys[..] {
            sides.push(LimitedSide {
                label: EQUAL_MEMORY_LABEL,
                max_memory: valkey.max_memory,
                ..weft
            });
        }
        for exponent in &self.options.exponents {
            self.measure_exponent(*exponent, &sides, report)?;
            self.write_files(report)?;
        }
        self.measure_latencies(&equal_keys, report)?;
        self.write_files(report)
    }

    fn write_files(&self, report: &EvictionReport) -> Result<()> {
        compare::write_files(&self.options.compare.out_dir, FILES, &report.markdown(), &report.json())
    }

    /// Returns the parameters for starting a server with a limit of this many bytes; 0 is none.
    fn recipe(&self, side: &ComparisonSide, max_memory: u64) -> Option<ServerParameters> {
        let mut recipe = limited_server_recipe(&self.options.compare, side, max_memory, self.policy)?;
        let samples = self.options.samples.to_string();
        recipe.arguments.extend(["--maxmemory-samples".to_string(), samples]);
        Some(recipe)
    }

    fn start(&self, side: &LimitedSide) -> Result<BenchServer> {
        let recipe = self.recipe(side.side, side.max_memory);
        BenchServer::start(&recipe.ok_or_else(|| Error::Usage(format!("{} has no binary", side.label)))?)
    }

    /// Finds the limit of each server with which the right number of keys fits.
    fn limits(&self, report: &mut EvictionReport) -> Result<Vec<LimitedSide>> {
        let mut limits = Vec::new();
        for side in SIDES {
            let Some(recipe) = self.recipe(side, 0) else { continue };
            let server = BenchServer::start(&recipe)?;
            let mut control = server.control()?;
            report.tables.record_version(side.label, &recipe, &mut control)?;
            let (max_memory, keys) = self.find_limit(side.label, &server, &mut control)?;
            if !self.is_right_number(keys) {
                report.remarks.push(format!(
                    "{}, {}: {keys} keys fit and not {} after {MOST_TRIALS} trials",
                    side.label, self.policy, self.options.fit
                ));
            }
            limits.push(LimitedSide {
                label: side.label,
                side,
                max_memory,
            });
        }
        Ok(limits)
    }

    fn is_right_number(&self, keys: u64) -> bool {
        keys.abs_diff(self.options.fit) <= self.options.fit / FIT_TOLERANCE
    }

    /// Finds the limit with which the right number of keys fits. It begins with the memory of as many keys, and then
    /// follows the number of keys that the server holds while it evicts. Returns also the number of keys that fit.
    fn find_limit(&self, label: &str, server: &BenchServer, control: &mut ControlConnection) -> Result<(u64, u64)> {
        let fit = self.options.fit;
        let [empty] = control.info_numbers(["used_memory"])?;
        self.fill(server, fit)?;
        let [full] = control.info_numbers(["used_memory"])?;
        let bytes_per_key = full.saturating_sub(empty) as f64 / fit as f64;
        let zipf = Zipf::new(self.options.keys(), self.options.exponents[0]);
        let load = self.cache_load(server, &zipf, 0);
        let (found, _) = run_clients(&load, |phase| {
            let (mut limit, mut keys) = (full, 0);
            for trial in 1..=MOST_TRIALS {
                control.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()])?;
                keys = self.keys_under_eviction(control, phase)?;
                log_line(format_args!(
                    "{label}, {}: {keys} keys fit into {limit} bytes",
                    self.policy
                ));
                if self.is_right_number(keys) || trial == MOST_TRIALS {
                    break;
                }
                limit = next_limit(limit, bytes_per_key, fit, keys);
            }
            Ok((limit, keys))
        })?;
        Ok(found)
    }

    /// Returns the mean number of keys once the server has evicted half of the keys that it holds.
    fn keys_under_eviction(&self, control: &mut ControlConnection, phase: &SharedPhase) -> Result<u64> {
        self.wait_for_evictions(control, phase, self.options.fit / 2 + 1)?;
        let mut sum = 0;
        for _ in 0..LOOKS {
            sum += control.key_count()?;
            self.sleep(LOOK_INTERVAL)?;
        }
        Ok(sum / LOOKS)
    }

    /// Waits until the server has evicted some more keys.
    fn wait_for_evictions(&self, control: &mut ControlConnection, phase: &SharedPhase, more: u64) -> Result<()> {
        let begin = Instant::now();
        let [before] = control.info_numbers(["evicted_keys"])?;
        loop {
            let [evicted] = control.info_numbers(["evicted_keys"])?;
            if evicted >= before + more {
                return Ok(());
            }
            if phase.current() == CachePhase::Stop {
                return Err(Error::Server("the clients have ended".into()));
            }
            if begin.elapsed() > EVICTION_TIMEOUT {
                return Err(Error::Server(format!(
                    "{} keys were evicted in {} s and not {more}",
                    evicted - before,
                    EVICTION_TIMEOUT.as_secs()
                )));
            }
            self.sleep(LOOK_INTERVAL)?;
        }
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        self.options.compare.interruption.sleep_until(Instant::now() + time)
    }

    /// Writes the keys `0..keys`.
    fn fill(&self, server: &BenchServer, keys: u64) -> Result<()> {
        let filling = FillParameters {
            command: FILL_STRINGS,
            keys,
            value_size: self.options.value_size,
            ttl_s: self.expire_s,
            connections: FILL_CONNECTIONS,
            pipeline: 64,
            cores: self.options.compare.client_cores.first().copied().into_iter().collect(),
            interruption: self.options.compare.interruption.clone(),
        };
        fill::fill(server.address, &filling).map(drop)
    }

    fn cache_load<'a>(&'a self, server: &BenchServer, zipf: &'a Zipf, round: usize) -> CacheLoad<'a> {
        CacheLoad {
            address: server.address,
            zipf,
            values: &self.values,
            expire_s: self.expire_s,
            connections: self.options.compare.connections,
            batch: self.options.pipeline,
            rate: self.options.rate,
            cores: &self.options.compare.client_cores,
            seed: self.options.seed + round as u64,
            interruption: &self.options.compare.interruption,
        }
    }

    /// Measures the hit rates with one exponent in every round, and adds them to the report.
    fn measure_exponent(&self, exponent: f64, sides: &[LimitedSide], report: &mut EvictionReport) -> Result<()> {
        let zipf = Zipf::new(self.options.keys(), exponent);
        let best = best_hit_rate(self.options.fit, self.options.keys(), exponent);
        let row = report.begin_hits(self.policy, exponent, best);
        for side in sides {
            let command = self
                .recipe(side.side, side.max_memory)
                .map(|recipe| recipe.command_text());
            row.sides.push(HitSide {
                label: side.label,
                command: command.unwrap_or_default(),
                max_memory: side.max_memory,
                rounds: Vec::new(),
            });
        }
        for round in 0..self.options.rounds {
            for (side, results) in sides.iter().zip(&mut row.sides) {
                let measured = self.measure_hits(side, &zipf, round)?;
                log_line(format_args!(
                    "round {} of {}: {}, {}, s = {exponent}: hit rate {:.4} with {:.0} keys",
                    round + 1,
                    self.options.rounds,
                    side.label,
                    self.policy,
                    measured.hit_rate.unwrap_or(f64::NAN),
                    measured.keys
                ));
                results.rounds.push(measured);
            }
        }
        Ok(())
    }

    /// Measures the hit rate of a fresh server.
    fn measure_hits(&self, side: &LimitedSide, zipf: &Zipf, round: usize) -> Result<HitMeasurement> {
        let server = self.start(side)?;
        let mut control = server.control()?;
        let load = self.cache_load(&server, zipf, round);
        let (observed, counts) = run_clients(&load, |phase| {
            self.wait_for_evictions(&mut control, phase, 1)?;
            phase.begin(CachePhase::WarmUp);
            self.sleep(self.options.warmup)?;
            phase.begin(CachePhase::Measure);
            let begin = Instant::now();
            let [before] = control.info_numbers(["evicted_keys"])?;
            let (mut sum, mut looks) = (0.0, 0.0);
            while begin.elapsed() < self.options.window && phase.current() != CachePhase::Stop {
                sum += control.key_count()? as f64;
                looks += 1.0;
                self.sleep(LOOK_INTERVAL.min(self.options.window))?;
            }
            let seconds = begin.elapsed().as_secs_f64();
            let [after] = control.info_numbers(["evicted_keys"])?;
            Ok((sum / looks, (after - before) as f64 / seconds, seconds))
        })?;
        let (keys, evicted_per_s, seconds) = observed;
        Ok(HitMeasurement {
            hit_rate: counts.hit_rate(),
            reads_per_s: counts.reads as f64 / seconds,
            keys,
            evicted_per_s,
            refused: counts.refused,
        })
    }

    /// Measures the latencies of writes that evict keys, in every round, and adds them to the report.
    fn measure_latencies(&self, sides: &[LimitedSide], report: &mut EvictionReport) -> Result<()> {
        let recipes = sides.iter().filter_map(|side| self.recipe(side.side, side.max_memory));
        let commands = recipes.map(|recipe| recipe.command_text()).collect();
        let labels = sides.iter().map(|side| side.label.to_string()).collect();
        let row = LoadRow {
            load: format!("set-new, {}", self.policy),
            value_size: self.options.value_size,
            pipeline: self.options.pipeline as u64,
            notes: Vec::new(),
            sides: vec![Vec::new(); sides.len()],
        };
        let row = report.begin_latencies(self.policy, labels, commands, row);
        for round in 0..self.options.rounds {
            for (side, results) in sides.iter().zip(&mut row.sides) {
                let (measured, evicted_per_write) = self.measure_writes(side, round)?;
                log_line(format_args!(
                    "round {} of {}: {}, {}: p99 {:.0} µs, p99.9 {:.0} µs",
                    round + 1,
                    self.options.rounds,
                    side.label,
                    self.policy,
                    measured.p99_us,
                    measured.p999_us
                ));
                row.notes
                    .push(format!("{}: {evicted_per_write:.2} keys evicted per write", side.label));
                results.push(measured);
            }
        }
        Ok(())
    }

    /// Measures writes of new keys on a fresh server that is full. Returns also the number of keys that were evicted
    /// per write.
    fn measure_writes(&self, side: &LimitedSide, round: usize) -> Result<(Measurement, f64)> {
        let server = self.start(side)?;
        let mut control = server.control()?;
        let filled = self.options.fit + self.options.fit / 10;
        self.fill(&server, filled)?;
        let subject = LoadParameters {
            order: KeyOrder::Uniform { keys: filled },
            value_size: self.options.value_size,
            expire_s: self.expire_s,
            verify_every: 1,
        };
        let workload = Workload::from_command("SET {new-key} {value} {expire}", "ok", &subject)?;
        let cores = self.options.compare.client_cores.clone();
        let shape = RunParameters {
            address: server.address,
            connections: self.options.compare.connections,
            threads: cores.len().max(1),
            pipeline: self.options.pipeline as u64,
            rate: Some(self.options.write_rate),
            // A second of load is enough for a server that is full already.
            warmup: self.options.warmup.min(Duration::from_secs(1)),
            window: self.options.window,
            drain: Duration::from_secs(20),
            seed: self.options.seed + round as u64,
            first_new_key: filled,
            subscribers: None,
            protocol: 2,
            tls: None,
            cores,
            server_pid: Some(server.pid()),
            interruption: self.options.compare.interruption.clone(),
        };
        let [before] = control.info_numbers(["evicted_keys"])?;
        let measured = run::measure(&shape, &workload)?;
        // Lets a server end evictions that it has begun.
        self.sleep(LOOK_INTERVAL)?;
        let [after] = control.info_numbers(["evicted_keys"])?;
        let evicted = (after - before) as f64 / measured.all_replies.max(1) as f64;
        Ok((measured, evicted))
    }
}

/// Returns the next limit to try, after `keys` instead of `fit` keys were there with the limit of this many bytes.
fn next_limit(limit: u64, bytes_per_key: f64, fit: u64, keys: u64) -> u64 {
    let missing = fit as f64 - keys as f64;
    let next = limit as f64 + missing * bytes_per_key;
    // At most a quarter at a time: the memory per key depends on the sizes of tables.
    next.clamp(limit as f64 * 0.75, limit as f64 * 1.25) as u64
}

/// Returns the hit rate of a cache that holds the `fit` most popular of `keys` keys.
fn best_hit_rate(fit: u64, keys: u64, exponent: f64) -> f64 {
    let weights = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-exponent)).sum::<f64>();
    weights(fit) / weights(keys)
}

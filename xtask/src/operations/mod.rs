//! `cargo xtask operations`: a week of planned work on a cluster in an hour, while clients write and read.
//!
//! Three primaries with a replica each, with TLS between all nodes and with clients, and with append-only files. At the
//! same time:
//!
//! ```text
//! writers      those of `cargo xtask failover`: they count what was acknowledged, let WAIT confirm some of it, and
//!              read
//! maintenance  BGSAVE, BGREWRITEAOF, rotation of logs, new certificates, CONFIG REWRITE: a thread for each
//!              (`maintenance.rs`)
//! operator     planned failovers, and restarts of all nodes in turn: of replicas, of primaries that have handed over,
//!              and of primaries that have not (`operator.rs`)
//! loggers      numbered lines in the logs (`log_lines.rs`)
//! ```
//!
//! The minutes of the week are scaled to the length of the run. It consists of rounds of up to a minute. After each
//! one:
//!
//! ```text
//! kept       no acknowledged write is lost, and none comes twice (`failover/history`)
//! equal      offsets and DEBUG DIGEST of primaries and replicas are equal
//! errors     clients saw no error that Valkey does not send during such work, CLUSTERDOWN for a bounded time only,
//!            and no connection ended or failed except those to a node that was restarted
//! logs       every line is whole, and every acknowledged one is in the log once and in order, across all rotations
//! files      every dump and rewrite has ended within a bound (`saves.rs`), and the last of them, and the last write to
//!            the append-only file, have succeeded
//! settings   a restarted node has the parameters that CONFIG REWRITE has written, and new connections get the
//!            certificate that was loaded last
//! ```
//!
//! At the end each kind of work must have happened, and each node must have been restarted.

mod log_lines;
mod maintenance;
mod operator;
mod saves;
mod schedule;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::failover::cluster;
use crate::failover::group::Group;
use crate::failover::history::Guarantee;
use crate::failover::scenario::{RoundPlan, RoundProgress, Tally, run_planned};
use crate::failover::session::StopOnDrop;
use crate::failover::writers::PLANNED_KINDS;
use crate::options::Options;
use crate::workspace;
use maintenance::{MAINTENANCE_TASKS, ScheduledTask};
use operator::{FAILOVER, Operator, PRIMARY_RESTART, REPLICA_RESTART};
use site::Site;

#[cfg(test)]
mod tests;

/// The shortest run: a restart of all nodes takes most of a minute.
const LEAST_SECONDS: u64 = 60;
/// The longest round. The record of a round is kept in memory.
const LONGEST_ROUND: Duration = Duration::from_secs(60);
/// The number of rounds of a short run.
const ROUNDS: u32 = 3;
/// The time that a run may take longer until everything has happened.
const EXTRA_TIME: Duration = Duration::from_secs(240);
/// The time for which writers may see CLUSTERDOWN.
const CLUSTERDOWN_BOUND: Duration = Duration::from_secs(20);
/// The number of threads that write lines to the logs.
const LOGGERS: usize = 2;
/// The number of replicas whose confirmation counts.
const REPLICAS: usize = 1;
/// The errors that Valkey sends to clients while nodes are restarted and replaced as planned. EXECABORT follows one of
/// the others in a transaction.
const ALLOWED_ERRORS: &[&str] = &["MOVED ", "ASK ", "CLUSTERDOWN ", "TRYAGAIN ", "LOADING ", "EXECABORT "];
/// The fields of INFO that must be `ok` after a round.
const STATUS_FIELDS: [&str; 3] = [
    "rdb_last_bgsave_status",
    "aof_last_bgrewrite_status",
    "aof_last_write_status",
];

/// The week: what it consists of, and what has happened.
struct Week {
    site: Site,
    operator: Operator,
    maintenance: Vec<ScheduledTask>,
    tally: Tally,
    log_lines: u64,
    rounds: u64,
}

/// Runs the week: `--server PATH`, `--seconds S`, `--io-threads N`, `--seed N`.
///
/// # Errors
/// Fails if a check does, or if something has not happened.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["server", "seconds", "io-threads", "seed"], &[])?;
    let server = options
        .value("server")
        .map_or_else(|| workspace::root().join("target/release/weft-server"), PathBuf::from);
    let seconds = options.number("seconds", 3600)?;
    if seconds < LEAST_SECONDS {
        return Err(format!("--seconds: a week needs at least {LEAST_SECONDS} seconds"));
    }
    let io_threads = options.number("io-threads", 2)?;
    let seed = options.number("seed", fastrand::u64(..))?;
    println!("seed {seed}");
    run(&server, Duration::from_secs(seconds), io_threads, Rng::with_seed(seed))
}

fn run(server: &Path, length: Duration, io_threads: u32, mut rng: Rng) -> Result<(), String> {
    let (mut group, site) = site::start(server, io_threads)?;
    let now = Instant::now();
    let maintenance = MAINTENANCE_TASKS
        .iter()
        .map(|task| ScheduledTask::new(task, length, now));
    let mut week = Week {
        site,
        operator: Operator::new(length, now),
        maintenance: maintenance.collect(),
        tally: Tally::default(),
        log_lines: 0,
        rounds: 0,
    };
    let deadline = now + length;
    let round = (length / ROUNDS).min(LONGEST_ROUND);
    while Instant::now() < deadline || (!week.missing().is_empty() && Instant::now() < deadline + EXTRA_TIME) {
        if let Err(why) = week.run_round(&mut group, round, &mut rng) {
            print!("{}", week.report());
            return Err(format!("round {}: {why}\n{}", week.rounds, keep_logs(&week.site)));
        }
    }
    print!("{}", week.report());
    match week.missing() {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("this has not happened: {}", missing.join(", "))),
    }
}

impl Week {
    /// Runs a round of this length, and the checks after it.
    fn run_round(&mut self, group: &mut Group, length: Duration, rng: &mut Rng) -> Result<(), String> {
        self.rounds += 1;
        let plan = RoundPlan {
            number: self.rounds,
            guarantee: Guarantee::Acknowledged,
            replicas: REPLICAS,
            has_pauses: true,
            kinds: PLANNED_KINDS,
            allowed_errors: ALLOWED_ERRORS,
            plants_faults: self.rounds == 1,
            heal: cluster::heal,
        };
        let until = Instant::now() + length;
        let (site, operator, maintenance) = (&self.site, &mut self.operator, &mut self.maintenance);
        let tally = run_planned(&plan, group, rng, &mut |group, progress, rng| {
            work(site, operator, maintenance, group, progress, until, rng)
        })?;
        self.tally.add(&tally);
        check_errors(&tally, &self.site.router.failures())?;
        check_files(group)?;
        for (number, node) in self.site.nodes.iter().enumerate() {
            let lines = node.log().check(&node.directory);
            self.log_lines += lines.map_err(|why| format!("node {number}: {why}"))?;
        }
        println!(
            "round {}: {} acknowledged writes, {} failovers, longest time without service {} ms",
            self.rounds, tally.acknowledged, tally.failovers, tally.longest_outage_ms
        );
        Ok(())
    }

    /// Returns the kinds of work that have not happened.
    fn missing(&self) -> Vec<&'static str> {
        let mut missing: Vec<&'static str> = actions().filter(|name| self.site.count(name).done == 0).collect();
        if !self.operator.has_restarted_all() {
            missing.push("a restart of each node");
        }
        missing
    }

    fn report(&self) -> String {
        let counts: Vec<(&str, site::ActionCount)> = actions().map(|name| (name, self.site.count(name))).collect();
        report(&counts, &self.tally, self.rounds, self.log_lines)
    }
}

/// The names of everything that must happen.
fn actions() -> impl Iterator<Item = &'static str> {
    let maintenance = MAINTENANCE_TASKS.iter().map(|task| task.name);
    maintenance.chain([FAILOVER, REPLICA_RESTART, PRIMARY_RESTART])
}

/// Runs the operator, and meanwhile the maintenance tasks and the loggers. Returns the number of failovers.
fn work(
    site: &Site,
    operator: &mut Operator,
    maintenance: &mut [ScheduledTask],
    group: &mut Group,
    progress: &RoundProgress<'_>,
    until: Instant,
    rng: &mut Rng,
) -> Result<u64, String> {
    let stop = &AtomicBool::new(false);
    let run = progress.run;
    // A failure ends the writers, and then the operator.
    let note = move |outcome: Result<(), String>| {
        if let Err(story) = outcome {
            run.fail(story);
        }
    };
    thread::scope(|scope| {
        for task in maintenance {
            scope.spawn(move || note(task.repeat(site, stop)));
        }
        for logger in 0..LOGGERS {
            let rng = rng.fork();
            scope.spawn(move || note(log_lines::send_lines(site, logger, stop, rng)));
        }
        let _stop = StopOnDrop(stop);
        operator.work(group, site, progress, until, rng)
    })
}

/// Checks what clients have seen: the bound of CLUSTERDOWN, and the connections that failed.
fn check_errors(tally: &Tally, failures: &[String]) -> Result<(), String> {
    if Duration::from_millis(tally.longest_down_ms) > CLUSTERDOWN_BOUND {
        return Err(format!(
            "a writer was not served for {} ms after CLUSTERDOWN; at most {} s are allowed",
            tally.longest_down_ms,
            CLUSTERDOWN_BOUND.as_secs()
        ));
    }
    match failures {
        [] => Ok(()),
        failures => Err(format!(
            "connections failed although their node was not restarted: {}",
            failures.join("; ")
        )),
    }
}

/// Checks that all dumps and rewrites of each node have ended, and that the last of them and the last write have
/// succeeded.
fn check_files(group: &Group) -> Result<(), String> {
    saves::wait_until_ended(group)?;
    for node in 0..group.servers.len() {
        let info = group.call(node, "INFO persistence")?.text();
        for field in STATUS_FIELDS {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            if line != Some("ok") {
                return Err(format!("node {node}: {field} is {line:?}"));
            }
        }
    }
    Ok(())
}

/// Formats what has happened.
fn report(counts: &[(&str, site::ActionCount)], tally: &Tally, rounds: u64, log_lines: u64) -> String {
    let mut text = format!("{:24}{:>8}{:>11}\n", "work", "done", "postponed");
    for (name, count) in counts {
        text.push_str(&format!("{name:24}{:>8}{:>11}\n", count.done, count.postponed));
    }
    text.push_str(&format!("errors seen by writers: {}\n", errors_text(&tally.errors)));
    text.push_str(&format!(
        "longest reply {} ms, longest time without service {} ms, longest time to the end of CLUSTERDOWN {} ms\n",
        tally.longest_reply_ms, tally.longest_outage_ms, tally.longest_down_ms
    ));
    text.push_str(&format!(
        "{rounds} rounds, {} acknowledged writes, {} of them confirmed by WAIT, {} without a reply, 0 lost; \
         {log_lines} lines of logs, 0 lost or torn\n",
        tally.acknowledged, tally.confirmed, tally.unknown
    ));
    text
}

fn errors_text(errors: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<String> = errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    match kinds.is_empty() {
        true => "none".to_owned(),
        false => kinds.join(", "),
    }
}

/// Copies the logs of all nodes below `target`, and says where they are.
fn keep_logs(site: &Site) -> String {
    let folder = workspace::root().join("target/operations");
    let mut copied = Ok(());
    for (number, node) in site.nodes.iter().enumerate() {
        let target = folder.join(format!("node-{number}"));
        copied = copied.and_then(|()| copy_logs(&node.directory, &target));
    }
    match copied {
        Ok(()) => format!("the nodes' logs are in {}", folder.display()),
        Err(error) => format!("the nodes' logs cannot be kept: {error}"),
    }
}

/// Copies the files of a directory whose names begin like that of the log.
fn copy_logs(directory: &Path, target: &Path) -> std::io::Result<()> {
    fs::create_dir_all(target)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(log_lines::LOG_FILE) {
            fs::copy(entry.path(), target.join(entry.file_name()))?;
        }
    }
    Ok(())
}

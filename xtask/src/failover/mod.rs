//! `cargo xtask failover`: failovers of real servers while clients write, and checks of what was acknowledged.
//!
//! Three groups of servers run at the same time: a primary with two replicas, the same with a Sentinel, and a cluster
//! of three primaries with a replica each. With `--mixed` there is one group instead, a cluster of Weft and Valkey
//! nodes between which slots migrate. A *round* lets writers run, causes one or more failovers of one kind, stops the
//! writers, and checks:
//!
//! ```text
//! kept        a planned failover loses nothing that was acknowledged, any other one nothing that WAIT confirmed
//! once        no element of a list is delivered twice, or comes back after its delivery
//! whole       the two keys of a transaction or of a script have the same version
//! refused     what a server refused has no effect
//! equal       offsets and DEBUG DIGEST of primary and replicas are equal after the round
//! answered    no request to a running server waits longer than `REPLY_BOUND`
//! going on    every writer is served again within `PROGRESS_BOUND` after the failover
//! happened    every scenario has had at least one failover
//! ```
//!
//! WAIT confirms a write if it reports the promoted replica: with the best offset, or all replicas. After each round
//! the record is changed by planted faults, each of which the checker must report (`planted.rs`).

pub(crate) mod cluster;
pub(crate) mod group;
pub(crate) mod history;
mod mixed;
mod planted;
mod replication;
pub(crate) mod router;
pub(crate) mod scenario;
mod sentinel;
pub(crate) mod session;
pub(crate) mod writers;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::options::Options;
use crate::{oracle, workspace};
use group::Group;
use scenario::{FailoverScenario, Tally, run_round};

/// The numbers of I/O threads with which the servers run, one after the other.
const IO_THREADS: [u32; 2] = [4, 1];

/// Starts a group whose servers have these arguments.
type StartGroup<'a> = Box<dyn Fn(&[String]) -> Result<Group, String> + Sync + 'a>;

/// A group of servers and the failovers that it can have.
struct GroupPlan<'a> {
    name: &'static str,
    scenarios: Vec<&'a FailoverScenario>,
    start: StartGroup<'a>,
    heal: fn(&mut Group) -> Result<(), String>,
}

/// The state that all groups of a run share.
struct FailoverRun {
    deadline: Instant,
    has_failed: AtomicBool,
    tallies: Mutex<BTreeMap<&'static str, Tally>>,
}

/// Runs the failovers: `--server PATH`, `--seconds S` (for each number of I/O threads), `--io-threads N`, `--seed N`,
/// `--only SCENARIO,SCENARIO`, `--mixed`.
///
/// # Errors
/// Fails if a check does, or if a scenario had no failover.
pub fn main(words: &[String]) -> Result<(), String> {
    run_all(words).map(|_| ())
}

/// Runs the failovers. Returns the scenarios that no number of I/O threads had, each with the reason.
///
/// # Errors
/// Fails like [`main`].
pub fn run_all(words: &[String]) -> Result<Vec<String>, String> {
    let options = Options::parse(words, &["server", "seconds", "io-threads", "seed", "only"], &["mixed"])?;
    let server = options
        .value("server")
        .map_or_else(|| workspace::root().join("target/release/weft-server"), PathBuf::from);
    let seconds = options.number("seconds", 20)?;
    let io_threads = match options.number("io-threads", 0)? {
        0 => IO_THREADS.to_vec(),
        threads => vec![threads],
    };
    let seed = options.number("seed", fastrand::u64(..))?;
    println!("seed {seed}");
    let mut total = BTreeMap::new();
    let only = options.list("only");
    let valkey = match options.is_given("mixed") {
        true => Some(oracle::ensure_installed()?.server),
        false => None,
    };
    let sentinels = sentinel::programs();
    for (index, threads) in io_threads.into_iter().enumerate() {
        let run = FailoverRun {
            deadline: Instant::now() + Duration::from_secs(seconds),
            has_failed: AtomicBool::new(false),
            tallies: Mutex::new(BTreeMap::new()),
        };
        let sentinel = (!sentinels.is_empty()).then(|| &sentinels[index % sentinels.len()]);
        let plans = match &valkey {
            Some(valkey) => vec![mixed_plan(&server, valkey, &only)?],
            None => plans(&server, sentinel, &only)?,
        };
        let result = run_groups(&run, &plans, threads, seed);
        let tallies = run.tallies.into_inner().map_err(|error| error.to_string())?;
        print_tallies(&format!("{threads} I/O threads"), &tallies);
        result?;
        for (name, tally) in &tallies {
            total.entry(*name).or_insert_with(Tally::default).add(tally);
        }
    }
    check_planted(&total)?;
    if options.is_given("mixed") {
        return Ok(Vec::new());
    }
    let left_out = left_out(!sentinels.is_empty(), &only, |name| total.contains_key(name));
    for scenario in &left_out {
        println!("skipped: {scenario}");
    }
    Ok(left_out)
}

/// Returns the chosen scenarios with Sentinel that did not run, each with the reason.
fn left_out(has_sentinel: bool, only: &[&str], has_run: impl Fn(&str) -> bool) -> Vec<String> {
    let why = match has_sentinel {
        false => "no Sentinel is installed",
        true => "no Sentinel that had a turn can do it",
    };
    sentinel_scenarios()
        .map(|scenario| scenario.name)
        .filter(|name| only.is_empty() || only.contains(name))
        .filter(|name| !has_run(name))
        .map(|name| format!("failover scenario {name}: {why}"))
        .collect()
}

/// Returns the scenarios that need a Sentinel.
fn sentinel_scenarios() -> impl Iterator<Item = &'static FailoverScenario> {
    sentinel::SCENARIOS.iter().chain([&sentinel::COORDINATED])
}

/// Returns the groups that have one of the scenarios `only`, or all.
fn plans<'a>(
    server: &'a Path,
    sentinel: Option<&'a sentinel::SentinelProgram>,
    only: &[&str],
) -> Result<Vec<GroupPlan<'a>>, String> {
    let mut plans = vec![
        GroupPlan {
            name: "replication",
            scenarios: replication::SCENARIOS.iter().collect(),
            start: Box::new(move |arguments| replication::start(server, arguments)),
            heal: replication::heal,
        },
        GroupPlan {
            name: "cluster",
            scenarios: cluster::SCENARIOS.iter().collect(),
            start: Box::new(move |arguments| cluster::start(server, arguments)),
            heal: cluster::heal,
        },
    ];
    let is_known = |name: &&str| {
        let without_sentinel = plans.iter().flat_map(|plan| &plan.scenarios);
        let names = without_sentinel.map(|scenario| scenario.name);
        let mut all = names.chain(sentinel_scenarios().map(|scenario| scenario.name));
        all.any(|known| known == *name)
    };
    if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
        return Err(format!("unknown scenario '{unknown}'"));
    }
    let is_possible = |scenario: &FailoverScenario| {
        sentinel.is_some_and(|program| program.is_coordinating || scenario.name != sentinel::COORDINATED.name)
    };
    let possible = sentinel_scenarios().filter(|scenario| is_possible(scenario)).collect();
    if let Some(program) = sentinel {
        plans.push(GroupPlan {
            name: "sentinel",
            scenarios: possible,
            start: Box::new(move |arguments| sentinel::start(server, arguments, program)),
            heal: sentinel::heal,
        });
    }
    for plan in &mut plans {
        plan.scenarios
            .retain(|scenario| only.is_empty() || only.contains(&scenario.name));
    }
    plans.retain(|plan| !plan.scenarios.is_empty());
    Ok(plans)
}

/// Returns the cluster of both kinds of nodes.
fn mixed_plan<'a>(server: &'a Path, valkey: &'a Path, only: &[&str]) -> Result<GroupPlan<'a>, String> {
    if let Some(unknown) = only
        .iter()
        .find(|name| !mixed::SCENARIOS.iter().any(|one| one.name == **name))
    {
        return Err(format!("unknown scenario '{unknown}'"));
    }
    Ok(GroupPlan {
        name: "mixed",
        scenarios: mixed::SCENARIOS
            .iter()
            .filter(|scenario| only.is_empty() || only.contains(&scenario.name))
            .collect(),
        start: Box::new(move |arguments| mixed::start(server, valkey, arguments)),
        heal: mixed::heal,
    })
}

/// Runs the groups at the same time.
fn run_groups(run: &FailoverRun, plans: &[GroupPlan<'_>], io_threads: u32, seed: u64) -> Result<(), String> {
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .enumerate()
            .map(|(index, plan)| {
                let rng = Rng::with_seed(seed ^ (u64::from(io_threads) << 32) ^ index as u64);
                scope.spawn(move || {
                    let result = run_group(run, plan, io_threads, rng);
                    if result.is_err() {
                        run.has_failed.store(true, Ordering::Relaxed);
                    }
                    result.map_err(|why| format!("{}, {io_threads} I/O threads: {why}", plan.name))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a group's thread panicked".to_owned()))
            })
            .collect()
    });
    let failures: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

/// The arguments of the servers. What is not under test is chosen at random.
fn server_arguments(io_threads: u32, rng: &mut Rng) -> Vec<String> {
    let yes_or_no = |rng: &mut Rng| if rng.bool() { "yes" } else { "no" };
    let threads = io_threads.to_string();
    let options = [
        ["--io-threads", &threads],
        ["--io-threads-always-active", "yes"],
        ["--repl-diskless-sync-delay", "0"],
        ["--repl-backlog-size", "16mb"],
        ["--repl-ping-replica-period", "1"],
        ["--dual-channel-replication-enabled", yes_or_no(rng)],
        ["--repl-diskless-sync", yes_or_no(rng)],
        ["--appendonly", yes_or_no(rng)],
    ];
    options.as_flattened().iter().map(|word| (*word).to_owned()).collect()
}

/// Runs the scenarios of a group in turn until the time is over, each at least once.
fn run_group(run: &FailoverRun, plan: &GroupPlan<'_>, io_threads: u32, mut rng: Rng) -> Result<(), String> {
    let arguments = server_arguments(io_threads, &mut rng);
    let mut group = (plan.start)(&arguments)?;
    let mut number = 0;
    loop {
        for scenario in &plan.scenarios {
            if run.has_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if number >= plan.scenarios.len() as u64 && Instant::now() > run.deadline {
                print_counts(&group);
                return Ok(());
            }
            number += 1;
            let tally = run_round(scenario, &mut group, plan.heal, number, &mut rng).map_err(|why| {
                format!(
                    "{} ({}, round {number}): {why}\n{}",
                    scenario.name,
                    scenario.about,
                    keep_logs(plan.name, &group)
                )
            })?;
            if tally.failovers == 0 {
                return Err(format!("{}: no failover has happened", scenario.name));
            }
            let mut tallies = run.tallies.lock().map_err(|error| error.to_string())?;
            tallies.entry(scenario.name).or_default().add(&tally);
        }
    }
}

/// Copies the servers' logs below `target`, and says where they are.
fn keep_logs(name: &str, group: &Group) -> String {
    let folder = workspace::root().join("target/failover").join(name);
    let copied = std::fs::create_dir_all(&folder)
        .map_err(|error| error.to_string())
        .and_then(|()| {
            for (node, server) in group.servers.iter().enumerate() {
                server.copy_log(&folder.join(format!("node-{node}.log")))?;
            }
            match &group.sentinel {
                Some(sentinel) => sentinel.copy_log(&folder.join("sentinel.log")),
                None => Ok(()),
            }
        });
    match copied {
        Ok(()) => format!("the servers' logs are in {}", folder.display()),
        Err(why) => format!("the servers' logs cannot be kept: {why}"),
    }
}

/// Prints what the scenarios of a group have counted.
fn print_counts(group: &Group) {
    for (what, count) in &group.counts {
        println!("  {what}: {count}");
    }
}

fn print_tallies(title: &str, tallies: &BTreeMap<&'static str, Tally>) {
    println!("{title}");
    println!(
        "  {:26}{:>7}{:>11}{:>14}{:>11}{:>9}{:>18}",
        "scenario", "rounds", "failovers", "acknowledged", "confirmed", "unknown", "longest reply"
    );
    for (name, tally) in tallies {
        println!(
            "  {name:26}{:>7}{:>11}{:>14}{:>11}{:>9}{:>15} ms",
            tally.rounds, tally.failovers, tally.acknowledged, tally.confirmed, tally.unknown, tally.longest_reply_ms
        );
    }
}

/// Checks that every planted fault was reported at least once in the rounds.
fn check_planted(total: &BTreeMap<&'static str, Tally>) -> Result<(), String> {
    let mut sum = Tally::default();
    for tally in total.values() {
        sum.add(tally);
    }
    let planted: u64 = sum.planted.values().sum();
    println!(
        "{} failovers, {} acknowledged writes, {} of them confirmed, 0 lost; {planted} of {planted} planted faults reported",
        sum.failovers, sum.acknowledged, sum.confirmed
    );
    match planted::FAULTS.iter().find(|(name, _)| !sum.planted.contains_key(name)) {
        Some((name, _)) => Err(format!("no round could show that the checker sees this fault: {name}")),
        None => Ok(()),
    }
}

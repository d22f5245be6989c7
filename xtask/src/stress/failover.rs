//! The part about coordinated failovers: two servers change roles, beside a replica of one of them. No write that was
//! answered is lost, and at the end all three have the same data.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::arguments;
use super::client::{CallError, StressClient, StressReply};
use super::driver::Part;
use super::replication::{await_info, await_same_digests, is_error_of_role};
use super::run::StressRun;
use super::scenarios::{Scenario, no_op};
use crate::server_process::ServerProcess;

/// The number of threads that write, each to keys of its own.
const WRITERS: usize = 24;
/// The number of threads that wait for elements.
const WAITERS: usize = 12;

/// The last answered value of each writer's counter.
static ANSWERED: [AtomicU64; WRITERS] = [const { AtomicU64::new(0) }; WRITERS];

#[rustfmt::skip]
const FAILOVER_SCENARIOS: &[Scenario] = &[
    Scenario { name: "failovers", threads: 1,       prepare: no_op, work: failovers, check: no_op, kinds: &[] },
    Scenario { name: "writers",   threads: WRITERS, prepare: forget, work: writers, check: check_counters, kinds: &[] },
    Scenario { name: "waiters",   threads: WAITERS, prepare: no_op, work: waiters, check: no_op, kinds: &[] },
];

/// Runs the part.
pub fn run(binary: &Path, duration: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    let one = ServerProcess::start(binary, &arguments(8, 2, &[]))?;
    let port = one.address.port().to_string();
    let following = arguments(8, 2, &["--replicaof", "127.0.0.1", &port]);
    let other = ServerProcess::start(binary, &following)?;
    let third = ServerProcess::start(binary, &following)?;
    for replica in [&other, &third] {
        await_info(replica.address, "replication", "master_link_status:up")?;
    }
    let addresses = [one.address, other.address, third.address];
    let mut part = Part::new("failover".to_owned(), seed, duration);
    part.add_scenarios(FAILOVER_SCENARIOS, &addresses[..2]);
    let mut servers = [one, other, third];
    part.run(&mut servers)?;
    let digest = await_same_digests(&addresses)?;
    println!(
        "failover: three servers agree ({digest}), {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn is_primary(client: &mut StressClient) -> Result<bool, CallError> {
    Ok(client.call("INFO replication")?.text().contains("role:master"))
}

/// Makes the replica the primary, again and again.
fn failovers(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut clients = [run.connect_to(0)?, run.connect_to(1)?];
    while run.is_running() {
        std::thread::sleep(Duration::from_millis(rng.u64(50..400)));
        let primary = usize::from(!is_primary(&mut clients[0])?);
        let replica = 1 - primary;
        let target = run.addresses[replica].port();
        let command = format!("FAILOVER TO 127.0.0.1 {target} TIMEOUT 3000");
        match clients[primary].call(&command)? {
            StressReply::Simple(_) => {}
            // Refused while the replica is not connected, or because the roles have changed.
            StressReply::Error(error) if error.starts_with("ERR FAILOVER ") || is_error_of_role(&error) => continue,
            other => return Err(format!("{command} was answered by {other:?}")),
        }
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            let info = clients[primary].call("INFO replication")?.text();
            if info.contains("role:slave") && info.contains("master_link_status:up") {
                run.succeed();
                break;
            }
            if info.contains("role:master") && info.contains("master_failover_state:no-failover") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

fn forget(_: &StressRun) -> Result<(), String> {
    for counter in &ANSWERED {
        counter.store(0, Ordering::SeqCst);
    }
    Ok(())
}

/// Increments a counter on the server that accepts it. No connection of this scenario is closed, so every increment is
/// either answered or refused.
fn writers(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut clients = [run.connect_to(0)?, run.connect_to(1)?];
    let mut place = 0;
    let mut value = 0u64;
    while run.is_running() {
        let command = match rng.u8(..4) {
            0 => format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 written:{thread}"),
            _ => format!("INCR written:{thread}"),
        };
        let reply = clients[place].call(&command)?;
        let number = match &reply {
            StressReply::Array(items) => items.first().cloned().unwrap_or(StressReply::Bulk(None)),
            other => other.clone(),
        };
        match number {
            StressReply::Integer(number) if number as u64 == value + 1 => {
                value += 1;
                ANSWERED[thread].store(value, Ordering::SeqCst);
                run.count_commands(1);
                run.succeed();
            }
            StressReply::Error(error) if is_error_of_role(&error) => {
                place = 1 - place;
                std::thread::sleep(Duration::from_millis(rng.u64(1..10)));
            }
            other => return Err(format!("{command} was answered by {other:?} after {value}")),
        }
        if rng.u8(..16) == 0 {
            let command = format!("RPUSH awaited:{} x", rng.usize(..4));
            match clients[place].call(&command)? {
                StressReply::Integer(_) => {}
                StressReply::Error(error) if is_error_of_role(&error) => {}
                other => return Err(format!("{command} was answered by {other:?}")),
            }
        }
    }
    Ok(())
}

/// Waits for elements on both servers. A client that waits is disconnected when its server becomes a replica.
fn waiters(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        let mut client = run.connect_to(thread % 2)?;
        while run.is_running() {
            match client.call(&format!("BLPOP awaited:{} 0.3", rng.usize(..4))) {
                // No element within the time limit is an empty array.
                Ok(StressReply::Array(items)) if !items.is_empty() => run.succeed(),
                Ok(StressReply::Error(error)) if !is_error_of_role(&error) => {
                    return Err(format!("BLPOP was answered by {error}"));
                }
                Ok(StressReply::Error(_)) => std::thread::sleep(Duration::from_millis(20)),
                Ok(_) => {}
                Err(CallError::Closed) => break,
                Err(other) => return Err(other.into()),
            }
        }
    }
    Ok(())
}

/// Checks that the primary has every write that was answered, and no other one.
fn check_counters(run: &StressRun) -> Result<(), String> {
    let mut clients = [run.connect_to(0)?, run.connect_to(1)?];
    let primary = usize::from(!is_primary(&mut clients[0])?);
    for (thread, answered) in ANSWERED.iter().enumerate() {
        let value = clients[primary].call(&format!("GET written:{thread}"))?.text();
        let answered = answered.load(Ordering::SeqCst);
        if value.parse().unwrap_or(0) != answered {
            return Err(format!(
                "counter {thread} is {value} after {answered} answered increments"
            ));
        }
    }
    Ok(())
}

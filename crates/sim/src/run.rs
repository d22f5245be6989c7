//! One run: servers, clients, disturbances, and the checks at the end.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;
use weft_server::simulation::start_server;

use crate::checker::{self, Verdict};
use crate::client::{Client, ClientEnd};
use crate::entropy;
use crate::history::ConnectionHistory;
use crate::operation::{KEYS_PER_TYPE, Operation, VOLATILE_KEYS};
use crate::reply::SeenReply;
use crate::scenario::{Disturbance, RunPlan};
use crate::subscriber::Subscriber;

const PRIMARY: &str = "primary.sock";
const REPLICA: &str = "replica.sock";
/// The number of steps after which a run counts as endless.
const MAX_STEPS: u64 = 400_000_000;
/// The time in which no thread can run while a request that does not block is unanswered, in nanoseconds. The server
/// retries some work after a pause; every longer wait is a wake-up that came too late.
const MAX_IDLE_WAIT_NS: u64 = 10_000_000;
const REPLICA_PATIENCE: usize = 2000;

/// Runs one seed in the current directory, which must be empty. Usage: `weft-sim SEED PORT`.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(seed)), Some(Ok(port))) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: weft-sim SEED PORT");
        return ExitCode::FAILURE;
    };
    entropy::seed(seed);
    scheduler::start(seed, MAX_STEPS);
    let mut random = Rng::with_seed(seed ^ 0x5bd1_e995);
    let scenario = RunPlan::draw(&mut random);
    let outcome = run(&scenario, &mut random, port as u16);
    let figures = scheduler::figures();
    println!(
        "seed {seed}: {} steps, {} switches, {} ms simulated, trace {:016x}, {scenario:?}",
        figures.steps,
        figures.switches,
        figures.now_ns / 1_000_000,
        figures.trace
    );
    match outcome {
        Ok(text) => {
            println!("passed: {text}");
            // The servers' threads still wait; the process ends with them.
            std::process::exit(0)
        }
        Err(reason) => {
            println!("FAILED: {reason}");
            scheduler::print_threads();
            std::process::exit(1)
        }
    }
}

fn run(scenario: &RunPlan, random: &mut Rng, port: u16) -> Result<String, String> {
    start_server("primary", scenario.primary_arguments(port));
    drop(connect(PRIMARY, 1)?);
    if scenario.has_replica {
        start_server("replica", scenario.replica_arguments(port, port + 1));
    }
    let subscriber = match scenario.has_subscriber {
        true => Some(Subscriber::start(connect(PRIMARY, random.u64(..))?)?),
        false => None,
    };
    let mut clients = Vec::new();
    for index in 0..scenario.clients {
        let (seed, pipelines) = (random.u64(..), scenario.pipelines);
        let run = move || run_client(seed, index as u64, pipelines);
        clients.push(spawn(&format!("client-{index}"), run));
    }
    let disturbances = scenario.disturbances.clone();
    let seed = random.u64(..);
    let disturber = spawn("disturber", move || disturb(seed, &disturbances));
    let mut histories = Vec::new();
    let mut longest = (0, String::new());
    for client in clients.into_iter().chain([disturber]) {
        let (history, idle_wait) = client.join().map_err(|_| "a client panicked".to_owned())??;
        if idle_wait.0 > longest.0 {
            longest = idle_wait;
        }
        histories.push(history);
    }
    let mut admin = connect(PRIMARY, 1)?;
    if let Some(subscriber) = subscriber {
        subscriber.finish(&mut admin, &histories)?;
    }
    wait_until_alone(scenario, &mut admin)?;
    read_everything(&mut admin)?;
    check_copies(scenario, &mut admin)?;
    histories.push(admin.into_history());
    if !scenario.disturbances.contains(&Disturbance::Pause) && longest.0 > MAX_IDLE_WAIT_NS {
        return Err(format!(
            "{} was not answered in {} us without any work",
            longest.1,
            longest.0 / 1000
        ));
    }
    let count: usize = histories.iter().map(|history| history.events.len()).sum();
    match checker::check(&histories, scenario.disturbances.contains(&Disturbance::Reload)) {
        Verdict::Serializable => Ok(format!("{count} operations, longest idle wait {} us", longest.0 / 1000)),
        Verdict::TooLong => Ok(format!("{count} operations, the search for an order gave up")),
        Verdict::NotSerializable(text) => {
            // The whole history, for finding the reason.
            let lines: Vec<String> = histories
                .iter()
                .enumerate()
                .flat_map(|(connection, history)| history.events.iter().map(move |event| (connection, event)))
                .map(|(connection, event)| format!("{connection} {event:?}\n"))
                .collect();
            let _ = std::fs::write("history", lines.concat());
            Err(text)
        }
    }
}

type ClientResult = Result<(ConnectionHistory, (u64, String)), String>;

fn spawn(name: &str, run: impl FnOnce() -> ClientResult + Send + 'static) -> thread::JoinHandle<ClientResult> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .expect("the operating system can create a thread")
}

fn connect(path: &str, seed: u64) -> Result<Client, String> {
    Client::connect(Path::new(path), seed)
}

/// Sends pipelines of random operations, and ends in one of several ways.
fn run_client(seed: u64, index: u64, pipelines: usize) -> ClientResult {
    let mut random = Rng::with_seed(seed);
    let mut published = 0;
    let mut client = connect(PRIMARY, random.u64(..))?;
    for _ in 0..pipelines {
        let operations = draw_pipeline(&mut random, index, &mut published);
        match client.run(operations) {
            Ok(()) => {}
            Err(ClientEnd::Closed) => return finish(client),
            Err(ClientEnd::Failed(reason)) => return Err(reason),
        }
        if random.u32(..3) == 0 {
            thread::sleep(Duration::from_micros(random.u64(..2000)));
        }
    }
    let last = draw_pipeline(&mut random, index, &mut published);
    match random.u32(..3) {
        0 => match client.run_and_half_close(last) {
            Ok(()) | Err(ClientEnd::Closed) => {}
            // Its connection may have been killed by the disturber; then the end of the stream comes early.
            Err(ClientEnd::Failed(reason)) if KILLS.load(std::sync::atomic::Ordering::SeqCst) == 0 => {
                return Err(reason);
            }
            Err(ClientEnd::Failed(_)) => {}
        },
        1 => {
            let idle = std::mem::take(&mut client.longest_idle_wait);
            return Ok((client.run_and_close(last), idle));
        }
        _ => {}
    }
    finish(client)
}

/// The number of times that the disturber has caused connections to be closed.
static KILLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn finish(mut client: Client) -> ClientResult {
    let idle = std::mem::take(&mut client.longest_idle_wait);
    Ok((client.into_history(), idle))
}

/// Draws the operations of a pipeline. The client numbers the messages that it publishes.
fn draw_pipeline(random: &mut Rng, client: u64, published: &mut u64) -> Vec<Operation> {
    let length = if random.bool() { 1 } else { random.usize(1..8) };
    let mut draw = || match random.u32(..20) {
        0 => {
            *published += 1;
            Operation::Publish {
                client,
                number: *published,
            }
        }
        _ => Operation::draw(random),
    };
    (0..length).map(|_| draw()).collect()
}

fn disturb(seed: u64, disturbances: &[Disturbance]) -> ClientResult {
    let mut random = Rng::with_seed(seed);
    let mut client = connect(PRIMARY, random.u64(..))?;
    let failed = |end: ClientEnd| format!("the disturbing client: {end:?}");
    for disturbance in disturbances {
        thread::sleep(Duration::from_micros(random.u64(..3000)));
        let requests: Vec<Operation> = match disturbance {
            Disturbance::Pause => {
                client.run(vec![Operation::Pause]).map_err(failed)?;
                client.run(vec![Operation::GetAll]).map_err(failed)?;
                thread::sleep(Duration::from_micros(random.u64(..5000)));
                client.run(vec![Operation::GetAll]).map_err(failed)?;
                vec![Operation::Unpause]
            }
            Disturbance::Save => vec![Operation::Ignored(vec!["BGSAVE"])],
            Disturbance::Rewrite => vec![Operation::Ignored(vec!["BGREWRITEAOF"])],
            Disturbance::KillClients => {
                KILLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                vec![Operation::Ignored(vec![
                    "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes",
                ])]
            }
            Disturbance::Configure => vec![Operation::Ignored(vec!["CONFIG", "SET", "maxclients", "500"])],
            Disturbance::KillScript => vec![Operation::Ignored(vec!["SCRIPT", "KILL"])],
            Disturbance::LoadFunctions => vec![Operation::Ignored(vec![
                "FUNCTION",
                "LOAD",
                "REPLACE",
                "#!lua name=l\nredis.register_function('f', function() return 1 end)",
            ])],
            Disturbance::Reload => vec![Operation::Ignored(vec!["DEBUG", "RELOAD"])],
            Disturbance::Demote => {
                // The clients that are blocked are disconnected.
                KILLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                client.run(vec![Operation::Demote]).map_err(failed)?;
                client.run(vec![Operation::GetAll]).map_err(failed)?;
                thread::sleep(Duration::from_micros(random.u64(..3000)));
                client.run(vec![Operation::GetAll]).map_err(failed)?;
                vec![Operation::Promote]
            }
        };
        client.run(requests).map_err(failed)?;
    }
    finish(client)
}

/// Waits until the requests of closed connections have ended. Their clients must be gone then.
fn wait_until_alone(scenario: &RunPlan, admin: &mut Client) -> Result<(), String> {
    let expected = 1 + usize::from(scenario.has_replica);
    let mut last = SeenReply::Null;
    for _ in 0..200 {
        last = admin
            .ask(&["CLIENT", "LIST"])
            .map_err(|end| format!("CLIENT LIST: {end:?}"))?;
        let count = |text: &[u8]| text.iter().filter(|&&byte| byte == b'\n').count();
        let is_alone = matches!(&last, SeenReply::Bulk(text) if count(text) == expected);
        // A command that was sent before its connection was closed may still run on another thread.
        if is_alone && has_no_jobs(admin)? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(format!(
        "clients that closed their connections are still there: {last:?}"
    ))
}

fn has_no_jobs(admin: &mut Client) -> Result<bool, String> {
    let info = admin.ask(&["INFO", "weft"]).map_err(|end| format!("INFO: {end:?}"))?;
    let field = b"weft_unfinished_jobs:0\r\n";
    Ok(matches!(&info, SeenReply::Bulk(text) if text.windows(field.len()).any(|part| part == field)))
}

/// Reads all data, as the last operations of the history.
fn read_everything(admin: &mut Client) -> Result<(), String> {
    let mut operations = vec![Operation::GetAll];
    operations.extend((0..KEYS_PER_TYPE).map(Operation::Range));
    operations.extend((0..KEYS_PER_TYPE).map(Operation::Count));
    // The digests of copies are compared later, when other keys may have expired.
    operations.extend((0..VOLATILE_KEYS).map(Operation::DeleteVolatile));
    admin.run(operations).map_err(|end| format!("the last reads: {end:?}"))
}

/// The data must be the same after it was loaded from the append-only file and from a dump, and on the replica.
fn check_copies(scenario: &RunPlan, admin: &mut Client) -> Result<(), String> {
    let failed = |end: ClientEnd| format!("checking copies: {end:?}");
    let before = admin.ask(&["DEBUG", "DIGEST"]).map_err(failed)?;
    if scenario.has_replica {
        check_replica(admin, &before)?;
    }
    let mut ways: Vec<&[&'static str]> = vec![&["DEBUG", "RELOAD"]];
    if scenario.appendfsync.is_some() {
        ways.push(&["DEBUG", "LOADAOF"]);
    }
    for way in ways {
        let loaded = (0..200)
            .find_map(|_| match admin.ask(way) {
                Ok(reply) if reply == SeenReply::ok() => Some(Ok(())),
                // Another snapshot may be under way.
                Ok(_) => {
                    thread::sleep(Duration::from_millis(20));
                    None
                }
                Err(end) => Some(Err(failed(end))),
            })
            .unwrap_or_else(|| Err(format!("{way:?} is refused for long")));
        loaded?;
        let after = admin.ask(&["DEBUG", "DIGEST"]).map_err(failed)?;
        if after != before {
            return Err(format!("after {way:?} the digest is {after:?} instead of {before:?}"));
        }
    }
    Ok(())
}

fn check_replica(admin: &mut Client, expected: &SeenReply) -> Result<(), String> {
    let mut replica = connect(REPLICA, 2)?;
    let mut last = SeenReply::Null;
    for _ in 0..REPLICA_PATIENCE {
        last = replica
            .ask(&["DEBUG", "DIGEST"])
            .map_err(|end| format!("the replica: {end:?}"))?;
        if last == *expected {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let state = admin.ask(&["INFO", "replication"]);
    Err(format!(
        "the replica's digest is {last:?} instead of {expected:?}; {state:?}"
    ))
}

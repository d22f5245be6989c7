//! One run: servers, clients, disturbances, and the checks at the end.

use std::process::ExitCode;
use std::time::Duration;

use fastrand::Rng;
use weft_os::scheduler;
use weft_os::thread;
use weft_server::simulation::{executions, share_slots, start_server};

use crate::blocked_receiver;
use crate::checker::{self, Verdict};
use crate::client::{Client, ClientEnd, connect, spawn};
use crate::cluster;
use crate::disturber;
use crate::dump_observer;
use crate::endless;
use crate::entropy;
use crate::failovers;
use crate::history::ConnectionHistory;
use crate::late_reader;
use crate::lateness::{self, IdleWait};
use crate::meeting::{self, Attendance};
use crate::mix::OperationSource;
use crate::model::Circumstances;
use crate::nodes::end_connection;
use crate::operation::{KEYS_PER_TYPE, Operation, VOLATILE_KEYS};
use crate::power_loss;
use crate::reply::SeenReply;
use crate::scenario::{Disturbance, RunPlan};
use crate::shutdown;
use crate::subscriber::Subscriber;
use crate::tracker::Tracker;
use crate::turns;

const PRIMARY: &str = "primary.sock";
const REPLICA: &str = "replica.sock";
/// The first of the ports of the servers. They are no ports of the machine: connections between the servers are Unix
/// sockets of the process.
const FIRST_PORT: u16 = 20_000;
/// The number of steps after which a run counts as endless.
const MAX_STEPS: u64 = 400_000_000;
/// The time in which no thread can run while a request that does not block is unanswered, in nanoseconds. The server
/// retries some work after a pause; every longer wait is a wake-up that came too late.
const MAX_IDLE_WAIT_NS: u64 = 10_000_000;
const REPLICA_PATIENCE: usize = 2000;

/// Runs one seed in the current directory, which must be empty. Usage: `weft-sim SEED`.
pub fn main() -> ExitCode {
    let seed = std::env::args().nth(1).and_then(|word| word.parse::<u64>().ok());
    let Some(seed) = seed else {
        eprintln!("usage: weft-sim SEED");
        return ExitCode::FAILURE;
    };
    entropy::seed(seed);
    scheduler::start(seed, MAX_STEPS);
    let mut random = Rng::with_seed(seed ^ 0x5bd1_e995);
    // What was added later is drawn from other numbers, so that the seeds keep their operations.
    let mut further = Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
    let scenario = RunPlan::draw(&mut random, &mut further);
    let outcome = run(&scenario, &mut random, &mut further, FIRST_PORT);
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

fn run(scenario: &RunPlan, random: &mut Rng, further: &mut Rng, port: u16) -> Result<String, String> {
    if !scenario.slot_moves.is_empty() {
        return cluster::run(scenario, random, port);
    }
    if !scenario.failovers.is_empty() {
        return failovers::run(scenario, random, port);
    }
    if scenario.shares_slots {
        share_slots();
    }
    let server = start_server("primary", scenario.primary_arguments(port));
    let client_bytes = client_memory(&mut connect(PRIMARY, 1)?)?;
    if scenario.has_replica {
        start_server("replica", scenario.replica_arguments(port, port + 1));
    }
    let subscriber = match scenario.has_subscriber {
        true => Some(Subscriber::start(connect(PRIMARY, random.u64(..))?)?),
        false => None,
    };
    let clients = start_clients(scenario, random);
    if scenario.disturbances.is_empty() {
        meeting::end_rounds();
    }
    let (seed, plan) = (random.u64(..), scenario.clone());
    let disturber = spawn("disturber", move || Ok(vec![run_disturber(seed, &plan)?]));
    let seed = random.u64(..);
    let tracker = match scenario.has_tracker {
        true => Some(spawn("tracker", move || run_tracker(seed))),
        false => None,
    };
    let further_clients = start_further_clients(scenario, further);
    let lost_disks = power_loss::start_client(scenario, further);
    let dumps = dump_observer::start_client(scenario, further);
    let mut histories = join_clients(clients.into_iter().chain([disturber]).chain(further_clients))?;
    let lost_disks = power_loss::end_client(lost_disks)?;
    let (observed, loaded) = dump_observer::end_client(dumps)?.load(scenario)?;
    histories.extend(observed);
    let mut admin = connect(PRIMARY, 1)?;
    if let Some(subscriber) = subscriber {
        subscriber.finish(&mut admin, &histories)?;
    }
    let tracker = match tracker {
        Some(thread) => thread.join().map_err(|_| "the tracker panicked".to_owned())??,
        None => None,
    };
    // It may have been killed since its last request.
    let tracker = tracker.and_then(Tracker::if_connected);
    wait_until_alone(tracker.is_some(), scenario.has_replica, client_bytes, &mut admin)?;
    if let Some(tracker) = tracker {
        tracker.finish()?;
    }
    read_everything(&mut admin)?;
    check_copies(scenario, &mut admin)?;
    let evicted = if scenario.evicts { evicted_keys(&mut admin)? } else { 0 };
    histories.push(admin.into_history());
    let longest = lateness::find_longest_wait(&histories);
    longest.check(MAX_IDLE_WAIT_NS)?;
    if let Some(late) = lateness::find_late_reply(&histories) {
        return Err(late);
    }
    let circumstances = Circumstances {
        may_reload: scenario.disturbances.contains(&Disturbance::Reload),
        may_evict: scenario.evicts,
        ..Circumstances::default()
    };
    let mut text = judge(&histories, circumstances, &longest)?;
    text.push_str(&format!(", {loaded}"));
    if scenario.evicts {
        text.push_str(&format!(", {evicted} keys evicted"));
    }
    if scenario.shuts_down {
        let ending = shutdown::end_server(server, further, scenario)?;
        text.push_str(&format!("; {ending}"));
    }
    let may_lack_numbers = scenario.evicts || histories.iter().any(ConnectionHistory::has_flushed);
    power_loss::check_disks(&lost_disks, scenario, may_lack_numbers).map(|restored| format!("{text}; {restored}"))
}

/// Starts the clients that send the operations of the mix.
fn start_clients(plan: &RunPlan, random: &mut Rng) -> Vec<ClientThread> {
    let mut threads = Vec::new();
    for index in 0..plan.clients {
        let (seed, plan) = (random.u64(..), plan.clone());
        threads.push(spawn(&format!("client-{index}"), move || {
            run_client(seed, index, &plan)
        }));
    }
    threads
}

/// Starts the clients of which a run has one each, if it has them.
fn start_further_clients(plan: &RunPlan, random: &mut Rng) -> Vec<ClientThread> {
    let mut threads = Vec::new();
    if plan.has_endless_scripts {
        let (seed, plan) = (random.u64(..), plan.clone());
        threads.push(spawn("endless", move || endless::run_scripts(seed, &plan)));
    }
    if plan.has_late_reader {
        let seed = random.u64(..);
        threads.push(spawn("late-reader", move || {
            late_reader::read_late(seed).map(|()| Vec::new())
        }));
    }
    if plan.has_blocked_receiver {
        let seed = random.u64(..);
        let limits = blocked_receiver::OrderLimits {
            may_move: plan.moves_connections,
            may_be_put_off: plan.disturbances.contains(&Disturbance::Pause) || plan.shuts_down,
        };
        threads.push(spawn("blocked-receiver", move || {
            blocked_receiver::receive_while_blocked(seed, limits).map(|()| Vec::new())
        }));
    }
    if plan.has_turns {
        let (seed, plan) = (random.u64(..), plan.clone());
        threads.push(spawn("turns", move || {
            turns::take_turns(seed, &plan).map(|()| Vec::new())
        }));
    }
    threads
}

/// Checks that there is an order that explains the replies. Returns the figures of the run.
pub fn judge(
    histories: &[ConnectionHistory],
    circumstances: Circumstances,
    longest: &IdleWait,
) -> Result<String, String> {
    let count: usize = histories.iter().map(|history| history.events.len()).sum();
    match checker::check(histories, circumstances, &executions()) {
        Verdict::Serializable => Ok(format!(
            "{count} operations, longest idle wait {} us",
            longest.nanoseconds / 1000
        )),
        Verdict::TooLong => {
            write_history(histories);
            Ok(format!("{count} operations, the search for an order gave up"))
        }
        Verdict::NotSerializable(text) => {
            write_history(histories);
            Err(text)
        }
    }
}

/// Writes the whole history to a file, for finding the reason of a verdict.
fn write_history(histories: &[ConnectionHistory]) {
    let lines: Vec<String> = histories
        .iter()
        .enumerate()
        .flat_map(|(connection, history)| history.events.iter().map(move |event| (connection, event)))
        .map(|(connection, event)| format!("{connection} {event:?}\n"))
        .collect();
    let _ = std::fs::write("history", lines.concat());
}

fn run_disturber(seed: u64, scenario: &RunPlan) -> ConnectionResult {
    let mut random = Rng::with_seed(seed);
    let mut client = connect(PRIMARY, random.u64(..))?;
    let ended = disturber::disturb(&mut client, &mut random, scenario);
    meeting::end_rounds();
    ended.map_err(|end| format!("the disturbing client: {end:?}"))?;
    Ok(client.into_history())
}

/// Runs a client with a cache. Returns `None` if its connection was killed.
fn run_tracker(seed: u64) -> Result<Option<Tracker>, String> {
    let mut random = Rng::with_seed(seed);
    let client = connect(PRIMARY, random.u64(..))?;
    let run = || {
        let mut tracker = Tracker::new(client)?;
        let count = random.usize(..60);
        tracker.read_keys(&mut random, count)?;
        Ok(tracker)
    };
    match run() {
        Ok(tracker) => Ok(Some(tracker)),
        Err(ClientEnd::Closed) if disturber::has_closed_connections() => Ok(None),
        Err(end) => Err(format!("the tracking client: {end:?}")),
    }
}

/// Waits for clients. Returns what each of their connections has seen.
pub fn join_clients(clients: impl IntoIterator<Item = ClientThread>) -> Result<Vec<ConnectionHistory>, String> {
    let mut histories = Vec::new();
    for client in clients {
        histories.extend(client.join().map_err(|_| "a client panicked".to_owned())??);
    }
    Ok(histories)
}

/// The thread of a client. Its result is what each of its connections has seen.
pub type ClientThread = thread::JoinHandle<Result<Vec<ConnectionHistory>, String>>;

/// What a connection has seen, or why the run has failed.
pub type ConnectionResult = Result<ConnectionHistory, String>;

/// Runs a client with one connection after the other.
fn run_client(seed: u64, index: usize, scenario: &RunPlan) -> Result<Vec<ConnectionHistory>, String> {
    let mut random = Rng::with_seed(seed);
    let (connections, pipelines) = match scenario.first_leave_early && index < 2 {
        true => (1, 0),
        false => (scenario.connections_per_client, scenario.pipelines),
    };
    (0..connections)
        .map(|connection| {
            // Messages of different connections have no order, so each is a publisher of its own.
            let publisher = (index * scenario.connections_per_client + connection) as u64;
            let mix = scenario
                .first_mix
                .as_ref()
                .filter(|_| index < 2)
                .unwrap_or(&scenario.mix);
            let source = OperationSource::new(mix.clone(), publisher).with_module(scenario.has_module);
            run_connection(random.fork(), source, pipelines, scenario)
        })
        .collect()
}

/// Sends pipelines of random operations and a last one, and ends in one of several ways.
fn run_connection(
    mut random: Rng,
    mut source: OperationSource,
    pipelines: usize,
    scenario: &RunPlan,
) -> ConnectionResult {
    let mut client = connect(PRIMARY, random.u64(..))?;
    client.sends_pieces = scenario.sends_pieces;
    let mut meetings = Attendance::default();
    for _ in 0..pipelines {
        if scenario.is_slow {
            thread::sleep(Duration::from_micros(random.u64(..800)));
        }
        if scenario.has_meetings {
            meetings.wait_for_next();
        }
        let operations = source.draw_pipeline(&mut random);
        match client.run(operations) {
            Ok(()) => {}
            Err(ClientEnd::Closed) if disturber::has_closed_connections() => return Ok(client.into_history()),
            Err(ClientEnd::Closed) => return Err("the server closed a connection without a reason".to_owned()),
            Err(ClientEnd::Failed(reason)) => return Err(reason),
        }
        if random.u32(..3) == 0 {
            thread::sleep(Duration::from_micros(random.u64(..2000)));
        }
    }
    let last = source.draw_pipeline(&mut random);
    if scenario.evicts {
        // The model must see all replies.
        client.run(last).map_err(|end| format!("the last requests: {end:?}"))?;
        return Ok(client.into_history());
    }
    end_connection(client, last, &mut random)
}

/// Returns the number of keys that were evicted.
fn evicted_keys(admin: &mut Client) -> Result<u64, String> {
    let info = admin.ask(&["INFO", "stats"]).map_err(|end| format!("INFO: {end:?}"))?;
    let SeenReply::Bulk(text) = &info else {
        return Err(format!("INFO was answered by {info:?}"));
    };
    let text = String::from_utf8_lossy(text);
    let count = text.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| "INFO has no evicted_keys".to_owned())
}

/// Returns the memory that the server counts for its clients, in bytes.
pub fn client_memory(admin: &mut Client) -> Result<u64, String> {
    let stats = admin
        .ask(&["MEMORY", "STATS"])
        .map_err(|end| format!("MEMORY STATS: {end:?}"))?;
    let SeenReply::Array(fields) = &stats else {
        return Err(format!("MEMORY STATS was answered by {stats:?}"));
    };
    let name = SeenReply::bulk(Some(b"clients.normal"));
    let value = fields
        .iter()
        .position(|field| *field == name)
        .and_then(|at| fields.get(at + 1));
    match value {
        Some(SeenReply::Integer(bytes)) => Ok(*bytes as u64),
        other => Err(format!("clients.normal is {other:?}")),
    }
}

/// Waits until the requests of closed connections have ended. Their clients must be gone then, and all that the server
/// counts for them. `client_bytes` is the memory that it counts for one client; a replica counts as one.
pub fn wait_until_alone(
    has_tracker: bool,
    has_replica: bool,
    client_bytes: u64,
    admin: &mut Client,
) -> Result<(), String> {
    let expected = 1 + usize::from(has_tracker);
    let counted = (expected + usize::from(has_replica)) as u64 * client_bytes;
    let mut last = (SeenReply::Null, None);
    for _ in 0..200 {
        let list = admin
            // Without the replica, which may connect again just now.
            .ask(&["CLIENT", "LIST", "TYPE", "normal"])
            .map_err(|end| format!("CLIENT LIST: {end:?}"))?;
        let count = |text: &[u8]| text.iter().filter(|&&byte| byte == b'\n').count();
        let is_alone = matches!(&list, SeenReply::Bulk(text) if count(text) == expected);
        // A command that was sent before its connection was closed may still run on another thread.
        last = (list, find_traces(admin, has_tracker, counted)?);
        if is_alone && last.1.is_none() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let (clients, trace) = last;
    Err(format!(
        "clients that closed their connections are still there: {clients:?}, {trace:?}"
    ))
}

/// Returns a figure that the server should not count any more, if there is one.
fn find_traces(admin: &mut Client, has_tracker: bool, client_bytes: u64) -> Result<Option<String>, String> {
    const FIGURES: [&str; 7] = [
        "blocked_clients",
        "pubsub_clients",
        "watching_clients",
        "total_watched_keys",
        "total_blocking_keys",
        "total_blocking_keys_on_nokey",
        "weft_unfinished_jobs",
    ];
    let info = admin
        .ask(&["INFO", "everything"])
        .map_err(|end| format!("INFO: {end:?}"))?;
    let SeenReply::Bulk(text) = &info else {
        return Err(format!("INFO was answered by {info:?}"));
    };
    let text = String::from_utf8_lossy(text);
    let figures = FIGURES.iter().map(|name| format!("{name}:0"));
    let tracking = format!("tracking_clients:{}", u8::from(has_tracker));
    for figure in figures.chain([tracking]) {
        if !text.lines().any(|line| line == figure) {
            return Ok(Some(format!("not {figure}")));
        }
    }
    let bytes = client_memory(admin)?;
    Ok((bytes != client_bytes).then(|| format!("clients.normal is {bytes} instead of {client_bytes}")))
}

/// Reads all data, as the last operations of the history.
pub fn read_everything(admin: &mut Client) -> Result<(), String> {
    let mut operations = vec![Operation::GetAll];
    operations.extend((0..KEYS_PER_TYPE).map(Operation::Range));
    operations.extend((0..KEYS_PER_TYPE).map(Operation::Count));
    // The digests of copies are compared later, when other keys may have expired.
    operations.extend((0..VOLATILE_KEYS).map(Operation::DeleteVolatile));
    admin.run(operations).map_err(|end| format!("the last reads: {end:?}"))
}

/// The data must be the same after it was loaded from the append-only file and from a dump, and on the replica.
pub fn check_copies(scenario: &RunPlan, admin: &mut Client) -> Result<(), String> {
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

/// Waits until the replica has the same data, and as many keys: those that the server deletes because they have expired
/// are deleted there, too.
fn check_replica(admin: &mut Client, expected: &SeenReply) -> Result<(), String> {
    let mut replica = connect(REPLICA, 2)?;
    let mut last = (SeenReply::Null, SeenReply::Null, SeenReply::Null);
    for _ in 0..REPLICA_PATIENCE {
        let mut ask = |request: &[&'static str]| replica.ask(request).map_err(|end| format!("the replica: {end:?}"));
        let (digest, keys) = (ask(&["DEBUG", "DIGEST"])?, ask(&["DBSIZE"])?);
        let own_keys = admin.ask(&["DBSIZE"]).map_err(|end| format!("DBSIZE: {end:?}"))?;
        if digest == *expected && keys == own_keys {
            return Ok(());
        }
        last = (digest, keys, own_keys);
        thread::sleep(Duration::from_millis(10));
    }
    let state = admin.ask(&["INFO", "replication"]);
    Err(format!(
        "the replica's digest and number of keys and the primary's are {last:?} instead of {expected:?}; {state:?}"
    ))
}

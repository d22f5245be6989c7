//! A client that disturbs the others: it pauses them, kills them, saves, reloads, and changes the role of the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use weft_os::thread;

use crate::client::{Client, ClientEnd, connect};
use crate::meeting;
use crate::operation::{KEYS_PER_TYPE, Operation};
use crate::reply::SeenReply;
use crate::scenario::{Disturbance, RunPlan};

/// The number of times that connections may have been closed by a disturbance.
static CLOSINGS: AtomicU64 = AtomicU64::new(0);

/// Returns `true` once a disturbance may have closed the connections of others.
pub fn has_closed_connections() -> bool {
    CLOSINGS.load(Ordering::SeqCst) > 0
}

/// Causes disturbances, one after the other, at random times.
///
/// # Errors
/// If the connection ends.
pub fn disturb(client: &mut Client, random: &mut Rng, scenario: &RunPlan) -> Result<(), ClientEnd> {
    // Where disturbances are many, they follow each other quickly.
    let longest_us = if scenario.is_slow { 500 } else { 3000 };
    for disturbance in &scenario.disturbances {
        thread::sleep(Duration::from_micros(random.u64(..longest_us)));
        if scenario.has_meetings {
            meeting::begin_round();
            // What the others have begun meanwhile is under way.
            if random.bool() {
                thread::sleep(Duration::from_micros(random.u64(..400)));
            }
        }
        let requests: Vec<Operation> = match disturbance {
            Disturbance::Pause => {
                pause(client, random, longest_us)?;
                vec![Operation::Unpause]
            }
            Disturbance::Save => vec![Operation::Ignored(vec!["BGSAVE"])],
            Disturbance::Rewrite => {
                rewrite_twice(client)?;
                vec![]
            }
            Disturbance::KillClients => {
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![Operation::KillOthers])?;
                read_repeatedly(client, random)?;
                vec![]
            }
            Disturbance::KillInTransaction => {
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![Operation::Transaction(vec![
                    Operation::SetGet(0, random.u32(..)),
                    Operation::KillOthers,
                    Operation::GetAll,
                ])])?;
                read_repeatedly(client, random)?;
                vec![]
            }
            Disturbance::Configure => vec![configure()],
            Disturbance::KillScript => {
                for _ in 0..random.usize(..30) {
                    client.run(vec![Operation::Ignored(vec!["SCRIPT", "KILL"])])?;
                }
                vec![]
            }
            Disturbance::LoadFunctions => vec![Operation::Ignored(vec![
                "FUNCTION",
                "LOAD",
                "REPLACE",
                "#!lua name=l\nredis.register_function('f', function() return 1 end)",
            ])],
            Disturbance::Reload => vec![Operation::Ignored(vec!["DEBUG", "RELOAD"])],
            Disturbance::Demote => {
                // The clients that are blocked are disconnected.
                CLOSINGS.fetch_add(1, Ordering::SeqCst);
                client.run(vec![alone_or_with_reads(random, Operation::Demote)])?;
                read_repeatedly(client, random)?;
                thread::sleep(Duration::from_micros(random.u64(..longest_us)));
                client.run(vec![Operation::GetAll])?;
                vec![Operation::Promote]
            }
            Disturbance::Evict => {
                evict(client, random, longest_us)?;
                vec![]
            }
            Disturbance::StopMoves => {
                let set_interval =
                    |interval| Operation::Ignored(vec!["CONFIG", "SET", "connection-move-interval", interval]);
                client.run(vec![set_interval("0")])?;
                thread::sleep(Duration::from_micros(random.u64(..longest_us)));
                let goes_on = scenario.moves_connections && random.bool();
                vec![set_interval(if goes_on { "1" } else { "0" })]
            }
        };
        client.run(requests)?;
    }
    Ok(())
}

/// Pauses writes, and looks for changes meanwhile. A command that writes nothing is not held back, even if it needs a
/// background thread and commands that the pause holds back have left their workers.
fn pause(client: &mut Client, random: &mut Rng, longest_us: u64) -> Result<(), ClientEnd> {
    client.run(vec![alone_or_with_reads(random, Operation::Pause)])?;
    read_lists_repeatedly(client, random)?;
    read_repeatedly(client, random)?;
    client.run(vec![configure()])?;
    thread::sleep(Duration::from_micros(random.u64(..2 * longest_us)));
    client.run(vec![Operation::GetAll])?;
    client.run(vec![Operation::Range(0), Operation::Range(1)])
}

/// A command that runs on a background thread and changes no data.
fn configure() -> Operation {
    Operation::Ignored(vec!["CONFIG", "SET", "maxclients", "500"])
}

/// Asks for two rewrites at once, on two connections: at most one of them may begin.
fn rewrite_twice(client: &mut Client) -> Result<(), ClientEnd> {
    let mut other = connect("primary.sock", 1).map_err(ClientEnd::Failed)?;
    other.request("BGREWRITEAOF")?;
    client.run(vec![Operation::Ignored(vec!["BGREWRITEAOF"])])?;
    other.receive_message()?;
    drop(other.run_and_close(Vec::new()));
    Ok(())
}

/// Lets keys be evicted for a while: those of all clients, and some that need more memory.
fn evict(client: &mut Client, random: &mut Rng, longest_us: u64) -> Result<(), ClientEnd> {
    const LARGE_BYTES: usize = 30_000;
    const LARGE_KEYS: usize = 6;
    let large = "x".repeat(LARGE_BYTES);
    for number in 0..LARGE_KEYS {
        client.ask_text(&format!("SET evicted:{number} {large}"))?;
    }
    let SeenReply::Bulk(info) = client.ask_text("INFO memory")? else {
        return Err(ClientEnd::Failed("INFO memory without a text".to_owned()));
    };
    let info = String::from_utf8_lossy(&info);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    let Some(used) = used.and_then(|used| used.parse::<usize>().ok()) else {
        return Err(ClientEnd::Failed("INFO memory without used_memory".to_owned()));
    };
    let policy = ["allkeys-random", "allkeys-lru"][random.usize(..2)];
    client.ask_text(&format!("CONFIG SET maxmemory-policy {policy}"))?;
    let limit = used + LARGE_BYTES - random.usize(..LARGE_KEYS * LARGE_BYTES);
    client.ask_text(&format!("CONFIG SET maxmemory {limit}"))?;
    read_repeatedly(client, random)?;
    thread::sleep(Duration::from_micros(random.u64(..8 * longest_us)));
    client.ask_text("CONFIG SET maxmemory 0")?;
    Ok(())
}

/// Returns the operation, or a transaction that reads a part of the data and then performs it: whatever is read
/// afterwards and differs was changed meanwhile. A read of more would wait for more.
fn alone_or_with_reads(random: &mut Rng, operation: Operation) -> Operation {
    if random.bool() {
        return operation;
    }
    let key = random.usize(..KEYS_PER_TYPE.min(2));
    let reads = match random.u32(..4) {
        0 => vec![Operation::Range(key)],
        1 => vec![Operation::GetAll],
        _ => vec![Operation::GetAll, Operation::Range(key), Operation::Count(key)],
    };
    // The longer it lasts, the more others begin meanwhile.
    let count = reads.len() * random.usize(1..6);
    let mut operations: Vec<Operation> = reads.into_iter().cycle().take(count).collect();
    // SCAN makes the transaction wait until it is alone at the gate, as others do.
    if random.bool() {
        operations.push(Operation::Ignored(vec!["SCAN", "0"]));
    }
    operations.push(operation);
    Operation::Transaction(operations)
}

/// Reads lists a few times, each with a request of its own, so that a list whose slot a script holds does not delay the
/// reading of another one.
fn read_lists_repeatedly(client: &mut Client, random: &mut Rng) -> Result<(), ClientEnd> {
    for _ in 0..random.usize(1..5) {
        client.run(vec![Operation::Range(random.usize(..KEYS_PER_TYPE.min(2)))])?;
    }
    Ok(())
}

/// Reads the data a few times, at once: whatever changes between two of these reads was changed meanwhile.
fn read_repeatedly(client: &mut Client, random: &mut Rng) -> Result<(), ClientEnd> {
    for _ in 0..random.usize(1..6) {
        let key = random.usize(..KEYS_PER_TYPE);
        client.run(vec![Operation::GetAll, Operation::Range(key), Operation::Count(key)])?;
    }
    Ok(())
}

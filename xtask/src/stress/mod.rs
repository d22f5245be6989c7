//! `cargo xtask stress`: many workers, hundreds of connections, and invariants that must hold meanwhile.
//!
//! All workers are active, and they hand each other random connections all the time (`connection-move-interval`). Each
//! scenario has its own keys, so that its invariant can be checked while all other scenarios run:
//!
//! ```text
//! groups    MSET and DEL of whole groups    MGET sees a group completely or not at all
//! claims    MSETNX of whole groups          one winner, whose value is in every key
//! tokens    RENAMENX, COPY+DEL, MOVE        as many tokens at the end as at the start, none twice
//! counters  INCR, DECRBY, transfers         the sum equals the sum of the additions
//! stayers   SCAN and KEYS during churn      every key that existed throughout is returned
//! expiring  EXPIRE, PEXPIRE, GETEX          no key is seen after its expiry
//! flushed   FLUSHDB of a database           DBSIZE is 0 right after, seen from the same connection
//! moves     LMOVE, BLMOVE between lists     every element is in exactly one list at the end
//! transfers EXEC moves between accounts     EXEC readers see the sum unchanged
//! watched   GET, MULTI, SET, EXEC of one counter    every EXEC that ran counts once
//! registers GET, SET, MSET, EVAL, ...       the observations of all clients have one order
//! unions    SUNIONSTORE during moves        every union is of one moment, and no pair is separated
//! queues    pushes and BLPOP, BLMPOP, ...   every element reaches exactly one consumer
//! streams   XADD, XREADGROUP, XREAD         every entry reaches one consumer, and every follower
//! talkers   PUBLISH and SUBSCRIBE           no message is missing, repeated, out of order or stale
//! copies    CLIENT TRACKING during SET      a copy is invalidated after its key has changed
//! waiters   BLPOP that times out, is killed or unblocked     no state of the waiting clients is left
//! cut       pipelines cut at any byte, half-closed, reset    what was sent before a half-close is answered
//! unread    clients that never read, or late    what a late reader reads is complete, the others are forgotten
//! scripts   short, long and endless ones, SCRIPT KILL        atomic; endless ones end
//! exclusive FLUSHDB, CONFIG SET, SAVE, BGSAVE, FUNCTION LOAD, BGREWRITEAOF    each gets its turn beside scripts
//! pauses    CLIENT PAUSE ALL and WRITE      nothing that is held back takes effect during the pause
//! pushes    messages to blocked clients     they arrive during the wait
//! hostile   CLIENT KILL, CONFIG SET, partial frames, disconnects    the server keeps running and replies
//! ```
//!
//! Parts of a run: `workers` (64 and 8 of them), `replication` (all scenarios on a primary with an append-only file and
//! a replica), `failover` and `cluster` (`replication.rs`, `failover.rs`, `cluster.rs`). In the cluster slots move, key
//! by key and as a whole, also beside `cut`, `unread`, `scripts`, `exclusive` and `pauses`, whose clients follow their
//! keys. A scenario that achieves nothing fails, and so does one that has no achievement of a kind that it names
//! ([`Scenario::kinds`]), and a request that is not answered in time (`watchdog.rs`).
//!
//! [`Scenario::kinds`]: scenarios::Scenario::kinds

pub(crate) mod client;
mod cluster;
mod connections;
mod driver;
mod failover;
mod listeners;
mod pauses;
mod pushes;
mod queues;
mod registers;
mod replication;
mod run;
mod scenarios;
mod scripts;
mod slot_moves;
mod tags;
mod transactions;
mod unions;
pub(crate) mod watchdog;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::server_process::ServerProcess;
use driver::Part;
use scenarios::SCENARIOS;

/// The number of databases of the servers.
const DATABASES: &str = "32";

/// The parts of a run and the share of the time that each one gets.
#[rustfmt::skip]
const PARTS: [(&str, f64); 4] = [("workers", 1.0), ("replication", 0.7), ("failover", 0.5), ("cluster", 0.6)];

/// The parameters that all parts of a run have in common.
struct StressOptions {
    server: PathBuf,
    seconds: f64,
    workers: Vec<u32>,
    seed: u64,
}

/// Runs the stress test: `--server PATH`, `--seconds S`, `--workers N`, `--seed N`, `--only PART,PART`.
///
/// # Errors
/// Fails if an invariant does not hold, or if the server ends or hangs.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["server", "seconds", "workers", "seed", "only"], &[])?;
    let server = options.value("server").map_or_else(
        || crate::workspace::root().join("target/release/weft-server"),
        PathBuf::from,
    );
    let stress = StressOptions {
        server,
        seconds: options.number("seconds", 24.0)?,
        workers: match options.number("workers", 0)? {
            0 => vec![64, 8],
            workers => vec![workers],
        },
        seed: options.number("seed", fastrand::u64(..))?,
    };
    let only = options.list("only");
    if let Some(unknown) = only.iter().find(|name| !PARTS.iter().any(|(part, _)| part == *name)) {
        return Err(format!("unknown part '{unknown}'"));
    }
    println!("seed {}", stress.seed);
    println!(
        "a request may be unanswered for {} s, unless it is a blocking command or incomplete",
        watchdog::bound().as_secs()
    );
    for (name, share) in PARTS {
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let duration = Duration::from_secs_f64(stress.seconds * share);
        match name {
            "workers" => stress
                .workers
                .iter()
                .try_for_each(|workers| run_workers(&stress.server, *workers, duration, stress.seed))?,
            "replication" => replication::run(&stress.server, duration, stress.seed)?,
            "failover" => failover::run(&stress.server, duration, stress.seed)?,
            _ => cluster::run(&stress.server, duration, stress.seed)?,
        }
    }
    Ok(())
}

/// Returns the arguments of a server whose workers are all active, and hand each other connections at this interval.
fn arguments(workers: u32, move_interval_ms: u32, others: &[&str]) -> Vec<String> {
    let (workers, interval) = (workers.to_string(), move_interval_ms.to_string());
    let own = [
        "--io-threads",
        &workers,
        "--io-threads-always-active",
        "yes",
        "--connection-move-interval",
        &interval,
        // An overdue script would make the server answer BUSY, which no scenario expects.
        "--busy-reply-threshold",
        "0",
        "--repl-diskless-sync-delay",
        "0",
    ];
    own.iter().chain(others).map(|word| (*word).to_owned()).collect()
}

fn run_workers(binary: &Path, workers: u32, duration: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    // With many workers, moves as often as with few would take most of the processor time.
    let interval_ms = if workers > 16 { 20 } else { 2 };
    let server = ServerProcess::start(binary, &arguments(workers, interval_ms, &["--databases", DATABASES]))?;
    let mut part = Part::new(format!("{workers} workers"), seed, duration);
    part.add_scenarios(SCENARIOS, &[server.address]);
    let mut servers = [server];
    part.run(&mut servers)?;
    println!("{workers} workers: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

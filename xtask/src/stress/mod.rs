//! `cargo xtask stress`: many workers, hundreds of connections, and invariants that must hold meanwhile.
//!
//! Each scenario has its own keys, so that its invariant can be checked while all other scenarios run:
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
//! hostile   CLIENT KILL, CONFIG SET, partial frames, disconnects    the server keeps running and replies
//! ```

mod client;
mod listeners;
mod queues;
mod registers;
mod run;
mod scenarios;
mod transactions;
mod unions;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::server_process::ServerProcess;
use run::StressRun;
use scenarios::SCENARIOS;

/// Runs the stress test: `--server PATH`, `--seconds S`, `--workers N`, `--seed N`.
///
/// # Errors
/// Fails if an invariant does not hold, or if the server ends or hangs.
pub fn main(words: &[String]) -> Result<(), String> {
    let options = Options::parse(words, &["server", "seconds", "workers", "seed"], &[])?;
    let server = options.value("server").map_or_else(
        || crate::workspace::root().join("target/release/weft-server"),
        PathBuf::from,
    );
    let seconds = options.number("seconds", 45)?;
    let workers: Vec<u32> = match options.number("workers", 0)? {
        0 => vec![64, 8],
        workers => vec![workers],
    };
    let seed = options.number("seed", fastrand::u64(..))?;
    println!("seed {seed}");
    for workers in workers {
        run(&server, workers, Duration::from_secs(seconds), seed)?;
    }
    Ok(())
}

fn run(binary: &Path, workers: u32, duration: Duration, seed: u64) -> Result<(), String> {
    let arguments = ["--io-threads".to_owned(), workers.to_string()];
    let mut server = ServerProcess::start(binary, &arguments)?;
    let run = Arc::new(StressRun {
        address: server.address,
        stop: AtomicBool::new(false),
        commands: AtomicU64::new(0),
        failures: Mutex::new(Vec::new()),
        seed,
        begin: Instant::now(),
    });
    let mut threads = Vec::new();
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        (scenario.prepare)(&run)?;
        for thread in 0..scenario.threads {
            let run = run.clone();
            threads.push(
                std::thread::Builder::new()
                    .name(format!("{}-{thread}", scenario.name))
                    .stack_size(256 * 1024)
                    .spawn(move || {
                        let rng = fastrand::Rng::with_seed(run.seed ^ ((index as u64) << 32) ^ thread as u64);
                        if let Err(story) = (scenario.work)(&run, thread, rng) {
                            run.fail(format!("{}: {story}", scenario.name));
                        }
                    })
                    .map_err(|error| error.to_string())?,
            );
        }
    }
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline && run.is_running() {
        std::thread::sleep(Duration::from_millis(50));
    }
    run.stop.store(true, Ordering::Relaxed);
    let connections = threads.len();
    for thread in threads {
        if thread.join().is_err() {
            run.fail("the thread of a scenario panicked".to_owned());
        }
    }
    if let Some(ended) = server.exit_status() {
        run.fail(format!("the server ended: {ended}\n{}", server.log_tail()));
    }
    for scenario in SCENARIOS {
        if let Err(story) = (scenario.check)(&run) {
            run.fail(format!("{} at the end: {story}", scenario.name));
        }
    }
    let failures = run.failures.lock().map_err(|error| error.to_string())?;
    let commands = run.commands.load(Ordering::Relaxed);
    println!(
        "{workers} workers, {connections} connections, {commands} commands in {} s",
        duration.as_secs()
    );
    match failures.as_slice() {
        [] => Ok(()),
        stories => Err(format!("{}\nserver log:\n{}", stories.join("\n"), server.log_tail())),
    }
}

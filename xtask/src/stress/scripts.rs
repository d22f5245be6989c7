//! Scenarios about scripts of all lengths, and about commands that need the server for themselves meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::StressReply;
use super::connections::KILLED;
use super::run::{ReconnectingClient, StressRun};
use super::tags;
use crate::save_refusals::is_already_saving;

/// The number of threads of `scripts`.
pub const SCRIPT_THREADS: usize = 8;
/// The keys that the scripts read and write.
const KEYS: usize = 6;
/// The longest pause between two endless scripts.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// The time within which a dump or a rewrite must end. One fsync may take most of a minute.
const SAVE_BOUND: Duration = Duration::from_secs(120);
/// The database that the thread of `exclusive` flushes.
const FLUSHED_DB: usize = 30;

/// The kinds of achievements of `scripts`.
pub const SCRIPT_KINDS: &[&str] = &[KILL_ACCEPTED, ENDLESS_KILLED, COMPARED];
const KILL_ACCEPTED: &str = "SCRIPT KILL accepted";
const ENDLESS_KILLED: &str = "endless script killed";
const COMPARED: &str = "counters compared";

/// `true` while a script runs that ends only if it is killed.
static IS_ENDLESS_SCRIPT_RUNNING: AtomicBool = AtomicBool::new(false);

/// The commands of `exclusive`; each has a thread of its own, and must succeed in every run.
pub const EXCLUSIVE: [&str; 6] = [
    "FLUSHDB",
    "CONFIG SET",
    "SAVE",
    "BGSAVE",
    "FUNCTION LOAD",
    "BGREWRITEAOF",
];
/// The number of threads of `exclusive`.
pub const EXCLUSIVE_THREADS: usize = EXCLUSIVE.len();

/// Runs scripts that are short, long or endless, read or write, and name their keys or not. The first thread kills the
/// scripts that do not end.
pub fn scripts(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    let mut round = 0u64;
    while run.is_running() {
        round += 1;
        match thread {
            0 => kill_script(run, &mut client, &mut rng)?,
            1 => {
                IS_ENDLESS_SCRIPT_RUNNING.store(true, Ordering::SeqCst);
                // The thread that kills scripts may have ended before it could see this one.
                let ended = match run.is_running() {
                    true => run_endless_script(run, &mut client, &mut rng),
                    false => Ok(()),
                };
                IS_ENDLESS_SCRIPT_RUNNING.store(false, Ordering::SeqCst);
                ended?;
            }
            _ => run_script(run, &mut client, (thread, round), &mut rng)?,
        }
    }
    while thread == 0 && IS_ENDLESS_SCRIPT_RUNNING.load(Ordering::SeqCst) {
        kill_script(run, &mut client, &mut rng)?;
    }
    Ok(())
}

fn kill_script(run: &StressRun, client: &mut ReconnectingClient<'_>, rng: &mut Rng) -> Result<(), String> {
    std::thread::sleep(Duration::from_millis(rng.u64(20..120)));
    for server in 0..run.servers() {
        match client.call_at(server, "SCRIPT KILL")? {
            Some(StressReply::Simple(_)) => run.succeed_in(KILL_ACCEPTED),
            Some(StressReply::Error(error)) if !error.starts_with("NOTBUSY") && !error.starts_with("UNKILLABLE") => {
                return Err(format!("SCRIPT KILL was answered by {error}"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn eval(script: &str, keys: &[&str]) -> Vec<String> {
    let mut words = vec!["EVAL".to_owned(), script.to_owned(), keys.len().to_string()];
    words.extend(keys.iter().map(|key| (*key).to_owned()));
    words
}

fn run_endless_script(run: &StressRun, client: &mut ReconnectingClient<'_>, rng: &mut Rng) -> Result<(), String> {
    let key = run.key(0, &format!("script:{}", rng.usize(..KEYS)));
    let script = [
        "while true do end",
        "while true do redis.call('GET', KEYS[1]) end",
        "while true do pcall(redis.call, 'GET', KEYS[1]) end",
    ][rng.usize(..3)];
    let started = Instant::now();
    match client.call_words(eval(script, &[key.as_str()]))? {
        Some(StressReply::Error(error)) if error.contains(KILLED) => run.succeed_in(ENDLESS_KILLED),
        None => {}
        Some(other) => return Err(format!("an endless script was answered by {other:?}")),
    }
    // On a slow machine SCRIPT KILL comes late. Exclusive commands wait for that, and then get their time.
    std::thread::sleep((started.elapsed() * 2).min(MAX_PAUSE) + Duration::from_millis(rng.u64(..50)));
    Ok(())
}

/// Returns `true` for the errors of a script in a cluster that accesses a key of another node, or a slot that is moving
/// there as a whole.
fn is_elsewhere(run: &StressRun, error: &str) -> bool {
    let texts = ["access a non local key", "slot that is moving"];
    run.is_cluster && texts.iter().any(|text| error.contains(text))
}

/// Runs a script that ends by itself: it adds one to two counters, or reads them. They are always equal. Two threads
/// share the counters of a tag in a cluster. Where the keys of the tag move one by one, a script declares all of them;
/// one that declares none runs on the node that has the slot, or without effect elsewhere.
fn run_script(
    run: &StressRun,
    client: &mut ReconnectingClient<'_>,
    (thread, round): (usize, u64),
    rng: &mut Rng,
) -> Result<(), String> {
    let tag = thread / 2;
    let key = run.key(tag, &format!("script:{}", rng.usize(..KEYS)));
    let twin = format!("{key}:twin");
    let iterations = [10, 1000, 100_000, 3_000_000][rng.usize(..4)];
    let must_declare = run.is_cluster && tags::moves_by_key(tag);
    let (name, declared) = match must_declare || rng.bool() {
        true if run.is_cluster => ("KEYS[1]".to_owned(), vec![key.as_str(), twin.as_str()]),
        true => ("KEYS[1]".to_owned(), vec![key.as_str()]),
        false => (format!("'{key}'"), Vec::new()),
    };
    // Some scripts are new to the server.
    let mark = if rng.u8(..4) == 0 {
        format!(" -- {thread}:{round}")
    } else {
        String::new()
    };
    let pause = format!("for i = 1, {iterations} do end");
    let script = match rng.u8(..3) {
        0 => format!(
            "{pause} local a = redis.call('INCR', {name}) {pause} local b = redis.call('INCR', {name} .. ':twin') \
             return a - b{mark}"
        ),
        1 => format!(
            "local a = redis.call('GET', {name}) {pause} local b = redis.call('GET', {name} .. ':twin') \
             return (a or 0) - (b or 0){mark}"
        ),
        _ => format!(
            "{pause} local t = redis.call('MGET', {name}, {name} .. ':twin') return (t[1] or 0) - (t[2] or 0){mark}"
        ),
    };
    match client.call_words(eval(&script, &declared))? {
        Some(StressReply::Integer(0)) => run.succeed_in(COMPARED),
        Some(StressReply::Error(error)) if error.contains(KILLED) => {}
        // A request that declares the key is redirected to the node that has it now.
        Some(StressReply::Error(error)) if declared.is_empty() && is_elsewhere(run, &error) => {
            client.execute(&format!("EXISTS {key}"))?;
        }
        None => {}
        Some(other) => return Err(format!("{script}: two equal counters differ: {other:?}")),
    }
    Ok(())
}

/// Runs commands that need the server for themselves, or read all of it, beside the scripts; in a cluster each on a
/// random node.
pub fn exclusive(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, FLUSHED_DB)?;
    while run.is_running() {
        let server = rng.usize(..run.servers());
        client.go_to(server);
        let reply = match EXCLUSIVE[thread] {
            "FLUSHDB" => {
                for key in 0..rng.usize(1..50) {
                    client.execute(&format!("SET flushed:{key} x"))?;
                }
                // The keys are on all nodes of a cluster, where their slots do not move.
                client.call_at(server, "FLUSHDB")?
            }
            "CONFIG SET" => {
                let entries = rng.u8(64..200);
                let change = format!("CONFIG SET list-max-listpack-size {entries} slowlog-max-len {entries}");
                client.call(&change)?
            }
            "FUNCTION LOAD" => {
                let library = format!(
                    "#!lua name=stress\nredis.register_function('stress', function() return {} end)",
                    rng.u32(..)
                );
                let words = ["FUNCTION", "LOAD", "REPLACE", &library].map(str::to_owned);
                client.call_words(words.to_vec())?
            }
            command => client.call(command)?,
        };
        let mut pause_ms = match thread {
            // Each one ends the migrations of whole slots that are under way on its node.
            0 if run.is_cluster => 500..1500,
            0 | 1 => 5..40,
            _ => 100..400,
        };
        match reply {
            // Another thread may be saving, or rewriting the append-only file. Then this one tries again soon.
            Some(StressReply::Error(error)) if is_already_saving(EXCLUSIVE[thread], &error) => pause_ms = 10..50,
            Some(StressReply::Error(error)) => {
                return Err(format!("{} was answered by {error}", EXCLUSIVE[thread]));
            }
            None => {}
            Some(_) => run.succeed_in(EXCLUSIVE[thread]),
        }
        std::thread::sleep(Duration::from_millis(rng.u64(pause_ms)));
    }
    Ok(())
}

/// Checks that what BGSAVE and BGREWRITEAOF began in the background has succeeded.
pub fn check_exclusive(run: &StressRun) -> Result<(), String> {
    (0..run.servers()).try_for_each(|server| check_persistence(run, server))
}

fn check_persistence(run: &StressRun, server: usize) -> Result<(), String> {
    let mut client = run.connect_to(server)?;
    let deadline = Instant::now() + SAVE_BOUND;
    loop {
        let info = client.call("INFO persistence")?.text();
        let has = |line: &str| info.lines().any(|other| other == line);
        let is_busy = [
            "rdb_bgsave_in_progress:1",
            "aof_rewrite_in_progress:1",
            "aof_rewrite_scheduled:1",
        ];
        if is_busy.iter().any(|line| has(line)) {
            if Instant::now() > deadline {
                let seconds = SAVE_BOUND.as_secs();
                return Err(format!(
                    "what runs in the background has not ended within {seconds} s:\n{info}"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let succeeded = ["rdb_last_bgsave_status:ok", "aof_last_bgrewrite_status:ok"];
        return match succeeded.iter().find(|line| !has(line)) {
            None => Ok(()),
            Some(missing) => Err(format!("INFO lacks {missing}:\n{info}")),
        };
    }
}

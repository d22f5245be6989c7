//! The scenarios, each with the invariant that it checks.

use std::collections::HashSet;
use std::time::Duration;

use fastrand::Rng;

use super::client::{CallError, StressClient, StressReply};
use super::run::{ReconnectingClient, StressRun};
use super::{connections, listeners, pauses, pushes, queues, registers, scripts, transactions, unions};

/// One scenario.
pub struct Scenario {
    /// The name of the scenario and of its threads.
    pub name: &'static str,
    /// The number of threads, each with one connection.
    pub threads: usize,
    /// Runs once, before all threads start.
    pub prepare: fn(&StressRun) -> Result<(), String>,
    /// Runs on each thread until the run ends.
    pub work: fn(&StressRun, usize, Rng) -> Result<(), String>,
    /// Runs once, after all threads have ended.
    pub check: fn(&StressRun) -> Result<(), String>,
    /// The kinds of achievements that are counted separately. A run in which one of them does not occur fails.
    pub kinds: &'static [&'static str],
}

/// All scenarios; they run at the same time.
#[rustfmt::skip]
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "groups",   threads: 40, prepare: no_op,          work: groups,   check: no_op, kinds: &[] },
    Scenario { name: "claims",   threads: 30, prepare: no_op,          work: claims,   check: no_op, kinds: &[] },
    Scenario { name: "tokens",   threads: 40, prepare: prepare_tokens,   work: tokens,   check: check_tokens, kinds: &[] },
    Scenario { name: "counters", threads: 40, prepare: prepare_counters, work: counters, check: check_counters, kinds: &[] },
    Scenario { name: "stayers",  threads: 12, prepare: prepare_permanent_keys,  work: permanent_keys,  check: no_op, kinds: &[] },
    Scenario { name: "churn",    threads: 20, prepare: no_op,          work: churn,    check: no_op, kinds: &[] },
    Scenario { name: "expiring", threads: 20, prepare: no_op,          work: expiring_keys, check: no_op, kinds: &[] },
    Scenario { name: "flushed",  threads: 2,  prepare: no_op,          work: flushed_databases,  check: no_op, kinds: &[] },
    Scenario { name: "moves",    threads: 24, prepare: queues::prepare_moves, work: queues::moves, check: queues::check_moves, kinds: &[] },
    Scenario { name: "queues",   threads: 32, prepare: no_op,          work: queues::queues, check: queues::check_queues, kinds: &[] },
    Scenario { name: "streams",  threads: queues::STREAM_THREADS, prepare: queues::prepare_streams, work: queues::streams, check: queues::check_streams, kinds: &[] },
    Scenario { name: "waiters",  threads: 12, prepare: no_op,          work: queues::waiting_clients, check: queues::check_no_waiting_clients, kinds: &[] },
    Scenario { name: "transfers", threads: 24, prepare: transactions::prepare_transfers, work: transactions::transfer_accounts, check: transactions::check_transfers, kinds: &[] },
    Scenario { name: "watched",  threads: 16, prepare: no_op,          work: transactions::watched_counters, check: transactions::check_watched_counters, kinds: &[] },
    Scenario { name: "talkers",  threads: listeners::PUBLISHER_THREADS, prepare: no_op, work: listeners::publish_and_subscribe, check: listeners::check_subscriptions_ended, kinds: &[] },
    Scenario { name: "copies",   threads: 16, prepare: no_op,          work: listeners::cached_copies, check: no_op, kinds: &[] },
    Scenario { name: "registers", threads: registers::THREADS, prepare: registers::prepare, work: registers::registers, check: registers::check, kinds: &[] },
    Scenario { name: "unions",   threads: 12, prepare: unions::prepare, work: unions::unions, check: unions::check_members, kinds: &[] },
    Scenario { name: "cut",      threads: 10, prepare: no_op,          work: connections::cut_pipelines, check: no_op, kinds: connections::CUT_KINDS },
    Scenario { name: "unread",   threads: 4,  prepare: connections::prepare_large_value, work: connections::never_reads, check: no_op, kinds: connections::UNREAD_KINDS },
    Scenario { name: "scripts",  threads: scripts::SCRIPT_THREADS, prepare: no_op, work: scripts::scripts, check: no_op, kinds: scripts::SCRIPT_KINDS },
    Scenario { name: "exclusive", threads: scripts::EXCLUSIVE_THREADS, prepare: no_op, work: scripts::exclusive, check: scripts::check_exclusive, kinds: &scripts::EXCLUSIVE },
    Scenario { name: "pauses",   threads: pauses::THREADS, prepare: pauses::forget, work: pauses::pauses, check: no_op, kinds: pauses::KINDS },
    Scenario { name: "pushes",   threads: 8,  prepare: no_op,          work: pushes::pushes_to_blocked_clients, check: no_op, kinds: &[] },
    Scenario { name: "hostile",  threads: 8,  prepare: no_op,          work: hostile_clients,  check: no_op, kinds: &[] },
];

/// The error of a command that renames a key that does not exist.
const NO_SUCH_KEY: &str = "ERR no such key";

const GROUPS: usize = 20;
const GROUP_KEYS: usize = 8;
const TOKENS: usize = 200;
const TOKEN_KEYS: usize = 600;
const COUNTERS: usize = 50;
const PERMANENT_KEYS: usize = 3000;
/// The commands of `churn` that are sent together.
const CHURN_PIPELINE: usize = 50;
/// The database of the scenarios `stayers` and `churn`, so that SCAN and KEYS return no keys of other scenarios.
const SCAN_DB: usize = 1;
const FLUSH_DB: usize = 2;
const SECOND_TOKEN_DB: usize = 3;

pub fn no_op(_: &StressRun) -> Result<(), String> {
    Ok(())
}

fn keys_of_group(prefix: &str, group: usize) -> Vec<String> {
    (0..GROUP_KEYS).map(|key| format!("{prefix}:{group}:{key}")).collect()
}

/// Checks that every key of a group holds the same value, or that none exists.
fn check_all_or_none(reply: &StressReply, what: &str) -> Result<(), String> {
    let values: HashSet<Option<String>> = reply
        .items()
        .iter()
        .map(|item| match item {
            StressReply::Bulk(None) => None,
            other => Some(other.text()),
        })
        .collect();
    if values.len() > 1 || reply.items().len() != GROUP_KEYS {
        return Err(format!("{what} was partly visible: {values:?}"));
    }
    Ok(())
}

fn groups(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    let mut round = 0u64;
    while run.is_running() {
        let keys = keys_of_group("group", rng.usize(..GROUPS));
        round += 1;
        match rng.u8(..10) {
            0..4 => {
                let pairs: Vec<String> = keys.iter().map(|key| format!("{key} {thread}-{round}")).collect();
                client.execute(&format!("MSET {}", pairs.join(" ")))?;
            }
            4 => {
                client.execute(&format!("DEL {}", keys.join(" ")))?;
            }
            5 => {
                client.execute(&format!("UNLINK {}", keys.join(" ")))?;
            }
            6 => {
                let exists = client.execute(&format!("EXISTS {}", keys.join(" ")))?;
                if let Some(StressReply::Integer(count)) = exists
                    && count != 0
                    && count != GROUP_KEYS as i64
                {
                    return Err(format!("EXISTS saw {count} keys of a group"));
                }
            }
            _ => {
                if let Some(reply) = client.call(&format!("MGET {}", keys.join(" ")))? {
                    check_all_or_none(&reply, "an MSET")?;
                    run.succeed();
                }
            }
        }
    }
    Ok(())
}

fn claims(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    // A DEL whose reply is lost must not be repeated: it would delete the claim of the next winner.
    let mut deleting = run.connect_lasting()?;
    let mut round = 0u64;
    while run.is_running() {
        let keys = keys_of_group("claim", rng.usize(..GROUPS));
        round += 1;
        let mine = format!("{thread}-{round}");
        let pairs: Vec<String> = keys.iter().map(|key| format!("{key} {mine}")).collect();
        let won = client.execute(&format!("MSETNX {}", pairs.join(" ")))?;
        let Some(reply) = client.call(&format!("MGET {}", keys.join(" ")))? else {
            continue;
        };
        check_all_or_none(&reply, "an MSETNX")?;
        // Without a reply to MSETNX, the keys show who won.
        let has_won_unheard = won.is_none() && reply.items().iter().all(|item| item.text() == mine);
        if won == Some(StressReply::Integer(1)) || has_won_unheard {
            // Only the winner deletes its claim, so no other client can have changed it meanwhile.
            if reply.items().iter().any(|item| item.text() != mine) {
                return Err(format!("a claim that was won holds {reply:?}"));
            }
            run.succeed();
            deleting.execute(&format!("DEL {}", keys.join(" ")))?;
        }
    }
    Ok(())
}

fn prepare_tokens(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    for token in 0..TOKENS {
        client.execute(&format!("SET place:{token} token-{token}"))?;
    }
    Ok(())
}

fn tokens(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let from = rng.usize(..TOKEN_KEYS);
        let to = rng.usize(..TOKEN_KEYS);
        match rng.u8(..8) {
            0 => {
                client.execute(&format!("MOVE place:{from} {SECOND_TOKEN_DB}"))?;
            }
            1 => {
                // Moves a token of any thread back from the other database.
                let mut other = ReconnectingClient::new(run, SECOND_TOKEN_DB)?;
                other.execute(&format!("MOVE place:{from} 0"))?;
            }
            2 => {
                client.execute(&format!("COPY place:{from} copied:{to} REPLACE"))?;
            }
            _ => {
                let command = format!("RENAMENX place:{from} place:{to}");
                match client.call(&command)? {
                    Some(StressReply::Integer(1)) => run.succeed(),
                    Some(StressReply::Error(error)) if error != NO_SUCH_KEY => {
                        return Err(format!("{command} was answered by {error}"));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

fn check_tokens(run: &StressRun) -> Result<(), String> {
    let mut seen = HashSet::new();
    for db in [0, SECOND_TOKEN_DB] {
        let mut client = run.connect()?;
        client.execute(&format!("SELECT {db}"))?;
        let places: Vec<String> = (0..TOKEN_KEYS).map(|place| format!("place:{place}")).collect();
        let reply = client.call(&format!("MGET {}", places.join(" ")))?;
        for item in reply.items().iter().filter(|item| **item != StressReply::Bulk(None)) {
            if !seen.insert(item.text()) {
                return Err(format!("{} is in two places", item.text()));
            }
        }
    }
    match seen.len() {
        TOKENS => Ok(()),
        left => Err(format!("{left} of {TOKENS} tokens are left")),
    }
}

fn prepare_counters(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    for counter in 0..COUNTERS {
        client.execute(&format!("SET counter:{counter} 0"))?;
    }
    Ok(())
}

/// Transfers amounts: each transfer subtracts from one counter and adds to another, in one pipeline. The scenario
/// `hostile` does not kill this connection because of its name. The sum therefore stays zero.
fn counters(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    while run.is_running() {
        let commands: Vec<Vec<String>> = (0..16)
            .flat_map(|_| {
                let amount = rng.u32(1..1000);
                let (from, to) = (rng.usize(..COUNTERS), rng.usize(..COUNTERS));
                [
                    format!("DECRBY counter:{from} {amount}"),
                    format!("INCRBY counter:{to} {amount}"),
                ]
            })
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .collect();
        let replies = client.pipeline(&commands)?;
        run.count_commands(commands.len() as u64);
        if let Some(wrong) = replies.iter().find(|reply| !matches!(reply, StressReply::Integer(_))) {
            return Err(format!("a transfer was answered by {wrong:?}"));
        }
        run.succeed();
        // Without a pause these pipelines would take most of the processor time.
        std::thread::sleep(Duration::from_micros(rng.u64(..8000)));
    }
    Ok(())
}

fn check_counters(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    let mut sum = 0i64;
    for counter in 0..COUNTERS {
        let text = client.call(&format!("GET counter:{counter}"))?.text();
        sum += text
            .parse::<i64>()
            .map_err(|_| format!("counter:{counter} holds {text:?}"))?;
    }
    if sum == 0 {
        Ok(())
    } else {
        Err(format!("transfers changed the sum by {sum}"))
    }
}

fn prepare_permanent_keys(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    client.execute(&format!("SELECT {SCAN_DB}"))?;
    for stayer in 0..PERMANENT_KEYS {
        client.execute(&format!("SET stay:{stayer} {stayer}"))?;
    }
    Ok(())
}

fn permanent_keys(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, SCAN_DB)?;
    while run.is_running() {
        let found = if thread.is_multiple_of(4) {
            client.call("KEYS stay:*")?.map(|reply| names(reply.items()))
        } else {
            scan_all(&mut client, rng.usize(1..200))?
        };
        // A connection closed during the iteration ends it without a result.
        let Some(found) = found else { continue };
        let missing = (0..PERMANENT_KEYS).find(|stayer| !found.contains(&format!("stay:{stayer}")));
        if let Some(stayer) = missing {
            return Err(format!(
                "stay:{stayer} was there all the time and was not returned ({} were)",
                found.len()
            ));
        }
        run.succeed();
    }
    Ok(())
}

fn names(items: &[StressReply]) -> HashSet<String> {
    items.iter().map(StressReply::text).collect()
}

fn scan_all(client: &mut ReconnectingClient<'_>, count: usize) -> Result<Option<HashSet<String>>, String> {
    let mut found = HashSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let Some(reply) = client.call(&format!("SCAN {cursor} COUNT {count}"))? else {
            return Ok(None);
        };
        let [next, keys] = reply.items() else {
            return Err(format!("SCAN was answered by {reply:?}"));
        };
        found.extend(names(keys.items()));
        cursor = next.text();
        if cursor == "0" || !client.run.is_running() {
            return Ok((cursor == "0").then_some(found));
        }
    }
}

fn is_error(reply: &StressReply) -> bool {
    matches!(reply, StressReply::Error(_))
}

/// Grows and shrinks the tables that hold the keys of `stayers`.
fn churn(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    client.execute(&format!("SELECT {SCAN_DB}"))?;
    while run.is_running() {
        let keys: Vec<String> = (0..rng.usize(100..3000))
            .map(|key| format!("churn:{thread}:{key}"))
            .collect();
        for grow in [true, false] {
            for part in keys.chunks(CHURN_PIPELINE) {
                let command = |key: &String| match grow {
                    true => ["SET", key, "x"].map(str::to_owned).to_vec(),
                    false => ["DEL", key].map(str::to_owned).to_vec(),
                };
                let commands: Vec<Vec<String>> = part.iter().map(command).collect();
                let replies = client.pipeline(&commands)?;
                run.count_commands(commands.len() as u64);
                if let Some(StressReply::Error(error)) = replies.iter().find(|reply| is_error(reply)) {
                    return Err(format!("a pipeline of SET or DEL was answered by {error}"));
                }
                if !run.is_running() {
                    return Ok(());
                }
            }
            run.succeed();
        }
    }
    Ok(())
}

fn expiring_keys(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let key = format!("expiring:{thread}");
        let ms = rng.u64(1..60);
        let set = match rng.u8(..3) {
            0 => client.execute(&format!("SET {key} x PX {ms}"))?,
            1 => client.execute(&format!("PSETEX {key} {ms} x"))?,
            _ => {
                client.execute(&format!("SET {key} x"))?;
                client.execute(&format!("PEXPIRE {key} {ms}"))?
            }
        };
        if set.is_none() {
            continue;
        }
        std::thread::sleep(Duration::from_millis(ms + 2));
        if let Some(reply) = client.call(&format!("GET {key}"))?
            && reply != StressReply::Bulk(None)
        {
            return Err(format!("{key} exists after its {ms} ms"));
        }
        run.succeed();
    }
    Ok(())
}

fn flushed_databases(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let db = FLUSH_DB + 10 + thread;
    let mut client = ReconnectingClient::new(run, db)?;
    while run.is_running() {
        for key in 0..rng.usize(1..100) {
            client.execute(&format!("SET flushed:{key} x"))?;
        }
        let how = ["FLUSHDB", "FLUSHDB ASYNC", "FLUSHDB SYNC"][rng.usize(..3)];
        if client.execute(how)?.is_none() {
            continue;
        }
        if let Some(size) = client.call("DBSIZE")?
            && size != StressReply::Integer(0)
        {
            return Err(format!("{how} left {size:?} keys"));
        }
        run.succeed();
        std::thread::sleep(Duration::from_millis(rng.u64(1..50)));
    }
    Ok(())
}

fn hostile_clients(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        let mut client = run.connect()?;
        let done = match rng.u8(..7) {
            0 => kill_random_client(&mut client, &mut rng),
            1 => client
                .execute(&format!("CONFIG SET prefetch-batch-max-size {}", rng.u8(..40)))
                .map(|_| ()),
            2 => client.execute(&format!("CONFIG SET hz {}", rng.u8(1..100))).map(|_| ()),
            3 => client.send_raw(b"*3\r\n$3\r\nSET\r\n$5\r\nhalf"),
            4 => send_malformed_request(&mut client),
            5 => client.execute("INFO everything").map(|_| ()),
            _ => client.execute("SWAPDB 8 9").map(|_| ()),
        };
        match done {
            Ok(()) => run.succeed(),
            // Another thread has killed this client.
            Err(CallError::Closed) => {}
            Err(other) => return Err(other.into()),
        }
        std::thread::sleep(Duration::from_millis(rng.u64(1..20)));
    }
    Ok(())
}

/// Sends what is no request. The server must close the connection, or the watchdog reports it.
fn send_malformed_request(client: &mut StressClient) -> Result<(), CallError> {
    client.send_watched("malformed: *1 $99999999999", b"*-5\r\n$\r\n*1\r\n$99999999999\r\n")?;
    client.read_to_end().map(drop)
}

fn kill_random_client(client: &mut StressClient, rng: &mut Rng) -> Result<(), CallError> {
    let list = client.execute("CLIENT LIST")?.text();
    let candidates: Vec<&str> = list
        .lines()
        .filter(|line| !line.contains("name=lasting"))
        .filter_map(|line| line.strip_prefix("id=")?.split(' ').next())
        .collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let victim = candidates[rng.usize(..candidates.len())];
    // The client may have got its name in the meantime.
    client
        .execute(&format!("CLIENT KILL ID {victim} NOT-NAME lasting"))
        .map(|_| ())
}

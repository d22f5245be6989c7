//! Scenarios about lists and streams for which clients wait.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::{StressClient, StressReply};
use super::run::{ReconnectingClient, StressRun};
use super::watchdog::lock;

/// The number of lists between which elements are moved.
const MOVE_LISTS: usize = 24;
/// The number of elements that are moved.
const MOVED_ELEMENTS: usize = 60;
/// The number of lists that producers fill and consumers empty.
const QUEUES: usize = 12;
/// The number of producers among the threads of `queues`.
const PRODUCERS: usize = 8;
/// The number of bitmaps that record which elements were taken.
const TAKEN_BITMAPS: u64 = 32;
/// The number of streams, each with a group.
const STREAMS: usize = 4;
/// The number of threads of `streams`.
pub const STREAM_THREADS: usize = 24;
/// The number of elements in a list above which a producer pauses, so that lists are empty most of the time.
const MAX_QUEUE_LENGTH: i64 = 50;

pub fn prepare_moves(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    for element in 0..MOVED_ELEMENTS {
        client.execute(&format!("RPUSH moved:{} element-{element}", element % MOVE_LISTS))?;
    }
    Ok(())
}

/// Moves elements with every command that can. A connection may be closed during a command: the move then happens
/// completely or not at all.
pub fn moves(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let (from, to) = (rng.usize(..MOVE_LISTS), rng.usize(..MOVE_LISTS));
        let side = |rng: &mut Rng| if rng.bool() { "LEFT" } else { "RIGHT" };
        let (take, put) = (side(&mut rng), side(&mut rng));
        let timeout = ["0.001", "0.02", "0.3"][rng.usize(..3)];
        let command = match rng.u8(..8) {
            0 => format!("RPOPLPUSH moved:{from} moved:{to}"),
            1 => format!("LMOVE moved:{from} moved:{to} {take} {put}"),
            2 => format!("RENAMENX moved:{from} moved:{to}"),
            3 => format!("BRPOPLPUSH moved:{from} moved:{to} {timeout}"),
            _ => format!("BLMOVE moved:{from} moved:{to} {take} {put} {timeout}"),
        };
        match client.call(&command)? {
            Some(StressReply::Error(error)) if !error.starts_with("ERR no such key") => {
                return Err(format!("{command} was answered by {error}"));
            }
            Some(StressReply::Bulk(Some(_))) => run.succeed(),
            _ => {}
        }
    }
    Ok(())
}

pub fn check_moves(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    let mut seen = HashSet::new();
    for place in 0..MOVE_LISTS {
        for element in client.call(&format!("LRANGE moved:{place} 0 -1"))?.items() {
            if !seen.insert(element.text()) {
                return Err(format!("{} is in two places", element.text()));
            }
        }
    }
    match seen.len() {
        MOVED_ELEMENTS => Ok(()),
        left => Err(format!("{left} of {MOVED_ELEMENTS} elements are left")),
    }
}

/// Runs the scenario: some threads produce and the rest consume. Their connections are not killed, so every element
/// that is taken is recorded.
pub fn queues(run: &StressRun, thread: usize, rng: Rng) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    if thread < PRODUCERS {
        produce(run, thread as u64, &mut client, rng)
    } else {
        consume(run, &mut client, rng)
    }
}

fn produce(run: &StressRun, thread: u64, client: &mut StressClient, mut rng: Rng) -> Result<(), String> {
    let mut element = thread;
    while run.is_running() {
        let queue = rng.usize(..QUEUES);
        let elements: Vec<String> = (0..rng.u64(1..4))
            .map(|_| {
                element += PRODUCERS as u64;
                element.to_string()
            })
            .collect();
        let (way, count) = (["LPUSH", "RPUSH"][rng.usize(..2)], elements.len());
        // Counted first, because a consumer may be faster than this connection's next command.
        client.execute(&format!("INCRBY queue:pushed {count}"))?;
        let length = client.call(&format!("{way} queue:{queue} {}", elements.join(" ")))?;
        run.count_commands(2);
        let StressReply::Integer(length) = length else {
            return Err(format!("{way} was answered by {length:?}"));
        };
        if length > MAX_QUEUE_LENGTH {
            std::thread::sleep(Duration::from_millis(rng.u64(1..5)));
        }
    }
    Ok(())
}

fn consume(run: &StressRun, client: &mut StressClient, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        let (one, other) = (rng.usize(..QUEUES), rng.usize(..QUEUES));
        let timeout = ["0.001", "0.02", "0.3"][rng.usize(..3)];
        let side = ["LEFT", "RIGHT"][rng.usize(..2)];
        let command = match rng.u8(..6) {
            0 => format!("LPOP queue:{one}"),
            1 => format!("BRPOP queue:{one} {timeout}"),
            2 => format!("BLMPOP {timeout} 2 queue:{one} queue:{other} {side} COUNT 3"),
            3 => format!("BLMOVE queue:{one} queue:{other} {side} RIGHT {timeout}"),
            _ => format!("BLPOP queue:{one} queue:{other} {timeout}"),
        };
        let reply = client.execute(&command)?;
        run.count_commands(1);
        if command.starts_with("BLMOVE") {
            continue;
        }
        for element in numbers(&reply) {
            let bit = client.call(&format!(
                "SETBIT taken:{} {} 1",
                element % TAKEN_BITMAPS,
                element / TAKEN_BITMAPS
            ))?;
            if bit != StressReply::Integer(0) {
                return Err(format!("element {element} was taken twice ({command}: {bit:?})"));
            }
            run.succeed();
        }
    }
    Ok(())
}

/// Returns the numbers in a reply, at any depth.
fn numbers(reply: &StressReply) -> Vec<u64> {
    match reply {
        StressReply::Array(items) => items.iter().flat_map(numbers).collect(),
        other => other.text().parse().into_iter().collect(),
    }
}

pub fn check_queues(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    let mut number = |command: String| -> Result<u64, String> {
        let reply = client.call(&command)?.text();
        reply
            .parse()
            .map_err(|_| format!("{command} was answered by {reply:?}"))
    };
    let pushed = number("GET queue:pushed".to_owned())?;
    let mut found = 0;
    for bitmap in 0..TAKEN_BITMAPS {
        found += number(format!("BITCOUNT taken:{bitmap}"))?;
    }
    let taken = found;
    for queue in 0..QUEUES {
        found += number(format!("LLEN queue:{queue}"))?;
    }
    if found == pushed {
        Ok(())
    } else {
        Err(format!(
            "of {pushed} elements {taken} were taken and {} are left",
            found - taken
        ))
    }
}

pub fn prepare_streams(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    for stream in 0..STREAMS {
        client.execute(&format!("XGROUP CREATE stream:{stream} group $ MKSTREAM"))?;
    }
    Ok(())
}

/// Runs the scenario: some threads add entries, some consume them as one group, and some follow a stream from one entry
/// to the next.
pub fn streams(run: &StressRun, thread: usize, rng: Rng) -> Result<(), String> {
    let mut client = run.connect_lasting()?;
    match thread % 4 {
        0 => add_entries(run, thread as u64, &mut client, rng),
        1 => follow(run, &mut client, rng),
        _ => consume_entries(run, thread, &mut client, rng),
    }
}

fn add_entries(run: &StressRun, thread: u64, client: &mut StressClient, mut rng: Rng) -> Result<(), String> {
    let mut number = thread;
    while run.is_running() {
        let stream = rng.usize(..STREAMS);
        let reply = client.call(&format!("XADD stream:{stream} * number {number}"))?;
        if !matches!(reply, StressReply::Bulk(Some(_))) {
            return Err(format!("XADD was answered by {reply:?}"));
        }
        number += STREAM_THREADS as u64;
        run.count_commands(1);
        std::thread::sleep(Duration::from_micros(rng.u64(..2000)));
    }
    Ok(())
}

/// Returns the id and the number of each entry of the first stream in a reply of XREAD or XREADGROUP.
fn entries(reply: &StressReply) -> Vec<(String, u64)> {
    let entries = reply.items().first().and_then(|stream| stream.items().get(1));
    let entry = |entry: &StressReply| {
        let [id, fields] = entry.items() else { return None };
        Some((id.text(), fields.items().get(1)?.text().parse().ok()?))
    };
    entries
        .map_or(&[][..], StressReply::items)
        .iter()
        .filter_map(entry)
        .collect()
}

fn consume_entries(run: &StressRun, thread: usize, client: &mut StressClient, mut rng: Rng) -> Result<(), String> {
    while run.is_running() {
        let stream = rng.usize(..STREAMS);
        let (count, timeout_ms) = (rng.u8(1..4), rng.u16(1..300));
        let reply = client.call(&format!(
            "XREADGROUP GROUP group consumer-{thread} COUNT {count} BLOCK {timeout_ms} STREAMS stream:{stream} >"
        ))?;
        if let StressReply::Error(error) = &reply {
            return Err(format!("XREADGROUP was answered by {error}"));
        }
        run.count_commands(1);
        for (id, number) in entries(&reply) {
            let bit = client.call(&format!("SETBIT delivered:{stream} {number} 1"))?;
            if bit != StressReply::Integer(0) {
                return Err(format!("entry {number} was delivered twice ({bit:?})"));
            }
            run.succeed();
            client.execute(&format!("XACK stream:{stream} group {id}"))?;
        }
    }
    Ok(())
}

/// Follows a stream and checks that it received every entry between the last entry received and the next ones.
fn follow(run: &StressRun, client: &mut StressClient, mut rng: Rng) -> Result<(), String> {
    let stream = rng.usize(..STREAMS);
    let mut last = "0-0".to_owned();
    while run.is_running() {
        let timeout_ms = rng.u16(1..300);
        let reply = client.execute(&format!(
            "XREAD COUNT 10 BLOCK {timeout_ms} STREAMS stream:{stream} {last}"
        ))?;
        run.count_commands(1);
        let seen: Vec<String> = entries(&reply).into_iter().map(|(id, _)| id).collect();
        let Some(next) = seen.last() else { continue };
        let range = client.call(&format!("XRANGE stream:{stream} ({last} {next}"))?;
        let there: Vec<String> = range
            .items()
            .iter()
            .filter_map(|entry| Some(entry.items().first()?.text()))
            .collect();
        if there != seen {
            return Err(format!("a follower saw {seen:?} of {there:?}"));
        }
        last.clone_from(next);
    }
    Ok(())
}

pub fn check_streams(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    for stream in 0..STREAMS {
        let added = client.call(&format!("XLEN stream:{stream}"))?;
        let delivered = client.call(&format!("BITCOUNT delivered:{stream}"))?;
        let rest = client.call(&format!("XREADGROUP GROUP group last STREAMS stream:{stream} >"))?;
        let (StressReply::Integer(added @ 1..), StressReply::Integer(delivered)) = (&added, &delivered) else {
            return Err(format!("stream:{stream}: {added:?}, {delivered:?}"));
        };
        let left = entries(&rest).len() as i64;
        if delivered + left != *added {
            return Err(format!(
                "of {added} entries of stream:{stream} {delivered} were delivered and {left} are left"
            ));
        }
    }
    Ok(())
}

/// Waits for elements in ways that other threads end: by timeout, by unblocking, by killing and by a push.
pub fn waiting_clients(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let (one, other) = (rng.usize(..QUEUES), rng.usize(..QUEUES));
        let command = match rng.u8(..8) {
            0 => format!("LPUSH awaited:{one} x"),
            1 => {
                let id = client.execute("CLIENT ID")?;
                let id = id.map_or(0, |id| id.text().parse().unwrap_or(0));
                let error = if rng.bool() { " ERROR" } else { "" };
                format!("CLIENT UNBLOCK {}{error}", share_and_choose(run, id, &mut rng))
            }
            _ => format!(
                "BLPOP awaited:{one} awaited:{other} {}",
                ["0.001", "0.05", "1"][rng.usize(..3)]
            ),
        };
        match client.call(&command)? {
            // No element within the time limit is an empty array.
            Some(StressReply::Array(items)) if !items.is_empty() => run.succeed(),
            Some(StressReply::Error(error)) if !error.starts_with("UNBLOCKED ") => {
                return Err(format!("{command} was answered by {error}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Adds the id of a client to those that the scenario unblocks, and returns a random one of them.
fn share_and_choose(run: &StressRun, id: u64, rng: &mut Rng) -> u64 {
    const KEPT: usize = 32;
    let mut ids = lock(&run.unblockable);
    if !ids.contains(&id) {
        if ids.len() < KEPT {
            ids.push(id);
        } else {
            // It belongs to a connection that may have ended.
            ids[rng.usize(..KEPT)] = id;
        }
    }
    ids[rng.usize(..ids.len())]
}

/// Checks that no state of the waiting clients is left.
pub fn check_no_waiting_clients(run: &StressRun) -> Result<(), String> {
    let mut client = run.connect()?;
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        let info = client.call("INFO clients")?.text();
        let left: Vec<&str> = info
            .lines()
            .filter(|line| line.contains("block") || line.contains("timeout_table"))
            .filter(|line| !line.ends_with(":0"))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > patience {
            return Err(format!("state of waiting clients is left: {left:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

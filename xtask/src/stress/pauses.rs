//! The scenario of CLIENT PAUSE: what a pause holds back takes no effect before its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

use super::client::{StressClient, StressReply};
use super::connections::KILLED;
use super::run::{CallOutcome, ReconnectingClient, StressRun, is_redirection};
use super::tags::{self, TAGS};

/// The number of threads; the first one pauses the clients.
pub const THREADS: usize = 12;
/// The number of threads in a cluster, of which one node is paused at a time.
pub const CLUSTER_THREADS: usize = 24;
/// The largest number of servers that are paused by turns.
const MAX_SERVERS: usize = 3;

/// The kinds of achievements: what a pause has held back until its end, and what was observed meanwhile.
pub const KINDS: &[&str] = &[READ_HELD, WRITE_HELD_BY_ALL, WRITE_HELD_BY_WRITE, SAME_DIGEST];
const READ_HELD: &str = "read held by ALL";
const WRITE_HELD_BY_ALL: &str = "write held by ALL";
const WRITE_HELD_BY_WRITE: &str = "write held by WRITE";
const SAME_DIGEST: &str = "same digest during WRITE";

/// What a pause of all commands must show.
const SHOWN_BY_ALL: &[&str] = &[READ_HELD, WRITE_HELD_BY_ALL];
/// What a pause of writes must show.
const SHOWN_BY_WRITE: &[&str] = &[WRITE_HELD_BY_WRITE, SAME_DIGEST];

/// The number of achievements of each kind that a pause must have; otherwise the next one is longer.
const ENOUGH: u64 = 3;
/// The same for the pause of one node of a cluster, which has few of the keys.
const ENOUGH_OF_NODE: u64 = 1;

/// The longest pause, in milliseconds.
const LONGEST_MAX_MS: u64 = 5400;

/// For each server, the earliest end of the pause that has certainly begun, in nanoseconds after the start of the run.
/// The pause holds all commands if the number is odd.
static ENDS: [AtomicU64; MAX_SERVERS] = [const { AtomicU64::new(0) }; MAX_SERVERS];

fn now(run: &StressRun) -> u64 {
    run.begin().elapsed().as_nanos() as u64
}

/// Pauses the clients, or sends requests that a pause holds back. In a cluster the keys move meanwhile: what a node
/// holds back may be redirected at any time, and only its execution counts.
pub fn pauses(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    if thread == 0 {
        return pause_clients(run, &mut rng);
    }
    let mut client = ReconnectingClient::lasting(run)?;
    let key = run.key(thread, &format!("paused:{thread}"));
    while run.is_running() {
        let end = ENDS[client.next_server()].load(Ordering::SeqCst);
        // A pause holds the requests that are under way when it begins. These threads have none, and send one then.
        if thread % 2 == 1 && now(run) >= end {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let is_read = rng.bool();
        let begin = now(run);
        let command = match is_read {
            true => format!("GET {key}"),
            false => [
                format!("INCR {key}"),
                format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 {key}"),
                format!("PUBLISH {key} x"),
            ][rng.usize(..3)]
            .clone(),
        };
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        match client.attempt(&words)? {
            // The scenario `scripts` kills scripts of all clients.
            CallOutcome::Answered(StressReply::Error(error)) if !error.contains(KILLED) => {
                return Err(format!("{command} was answered by {error}"));
            }
            CallOutcome::Answered(_) => check_held(run, &command, is_read, (begin, end))?,
            CallOutcome::Closed | CallOutcome::Redirected => {}
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..3000)));
    }
    Ok(())
}

/// Checks that a command that was sent at `begin` has not been executed before the `end` of a pause that holds it.
fn check_held(run: &StressRun, command: &str, is_read: bool, (begin, end): (u64, u64)) -> Result<(), String> {
    run.count_commands(1);
    let is_held = begin < end && (!is_read || end % 2 == 1);
    if is_held && now(run) < end {
        return Err(format!(
            "{command} was executed {} µs before the end of a pause",
            (end - now(run)) / 1000
        ));
    }
    if is_held {
        run.succeed_in(match (is_read, end % 2 == 1) {
            (true, _) => READ_HELD,
            (false, true) => WRITE_HELD_BY_ALL,
            (false, false) => WRITE_HELD_BY_WRITE,
        });
    }
    Ok(())
}

/// The connections by which a server is paused and observed.
struct PausedServer {
    client: StressClient,
    observer: StressClient,
    /// A key that this server has, and no other scenario uses. Its slot does not move.
    clock: String,
}

impl PausedServer {
    fn connect(run: &StressRun, server: usize) -> Result<PausedServer, String> {
        let (mut client, observer) = (run.connect_lasting_to(server)?, run.connect_lasting_to(server)?);
        for number in 0..1000 {
            let clock = format!("pauses:clock:{number}");
            match client.call(&format!("EXISTS {clock}"))? {
                StressReply::Integer(_) => {
                    return Ok(PausedServer {
                        client,
                        observer,
                        clock,
                    });
                }
                StressReply::Error(error) if run.is_cluster && is_redirection(&error) => {}
                other => return Err(format!("EXISTS {clock} was answered by {other:?}")),
            }
        }
        Err("the server has no slot".to_owned())
    }
}

/// Pauses all commands and writes by turns, in a cluster on random nodes.
fn pause_clients(run: &StressRun, rng: &mut Rng) -> Result<(), String> {
    let mut servers = (0..run.servers())
        .map(|server| PausedServer::connect(run, server))
        .collect::<Result<Vec<_>, _>>()?;
    let mut lengths = [
        PauseLength::new(SHOWN_BY_WRITE, 600),
        PauseLength::new(SHOWN_BY_ALL, 600),
    ];
    let digest_command = match run.is_cluster {
        true => digest_command_in_cluster(),
        false => digest_command(),
    };
    let mut is_for_all = rng.bool();
    while run.is_running() {
        is_for_all = !is_for_all;
        let pause_ms = lengths[usize::from(is_for_all)].choose(run, rng);
        let mode = if is_for_all { "ALL" } else { "WRITE" };
        let command = format!("CLIENT PAUSE {pause_ms} {mode}");
        let server = rng.usize(..servers.len());
        let paused = &mut servers[server];
        let end = if rng.u8(..3) == 0 {
            pause_by_command(run, &mut paused.client, &command, pause_ms)?
        } else {
            pause_in_transaction(run, paused, &command, pause_ms)?
        };
        ENDS[server].store(end & !1 | u64::from(is_for_all), Ordering::SeqCst);
        if !is_for_all {
            check_nothing_changes(run, &mut paused.observer, &digest_command, end)?;
        }
        let left = end.saturating_sub(now(run));
        std::thread::sleep(Duration::from_nanos(left) + Duration::from_millis(rng.u64(200..600)));
    }
    Ok(())
}

/// The length of the pauses of one mode. It grows until a pause shows everything for which it is there: on a busy
/// machine a request may take seconds.
struct PauseLength {
    max_ms: u64,
    shortest_max_ms: u64,
    /// What a pause must show.
    kinds: &'static [&'static str],
    /// The number of achievements of each kind before the last pause.
    achieved: Vec<u64>,
}

impl PauseLength {
    fn new(kinds: &'static [&'static str], shortest_max_ms: u64) -> PauseLength {
        PauseLength {
            max_ms: shortest_max_ms,
            shortest_max_ms,
            kinds,
            achieved: Vec::new(),
        }
    }

    /// Returns the length of the next pause in milliseconds.
    fn choose(&mut self, run: &StressRun, rng: &mut Rng) -> u64 {
        let achieved: Vec<u64> = self.kinds.iter().map(|kind| run.achieved(kind)).collect();
        let mut pairs = achieved.iter().zip(&self.achieved);
        let enough = if run.is_cluster { ENOUGH_OF_NODE } else { ENOUGH };
        let has_shown_all = pairs.all(|(now, before)| *now >= before + enough);
        self.max_ms = match has_shown_all {
            true => (self.max_ms / 2).max(self.shortest_max_ms),
            false => (self.max_ms * 3).min(LONGEST_MAX_MS),
        };
        self.achieved = achieved;
        rng.u64(self.max_ms / 2..self.max_ms)
    }
}

/// Sends CLIENT PAUSE. Returns the earliest end of the pause: it begins after the command was sent.
fn pause_by_command(run: &StressRun, client: &mut StressClient, command: &str, pause_ms: u64) -> Result<u64, String> {
    let sent = now(run);
    match client.call(command)? {
        StressReply::Simple(_) => Ok(sent + pause_ms * 1_000_000),
        other => Err(format!("CLIENT PAUSE was answered by {other:?}")),
    }
}

/// Sends CLIENT PAUSE in a transaction that also shows the server's time. Returns the end of the pause. It is known
/// exactly, however long the transaction waits before it runs.
fn pause_in_transaction(
    run: &StressRun,
    paused: &mut PausedServer,
    command: &str,
    pause_ms: u64,
) -> Result<u64, String> {
    const CLOCK_MS: u64 = 3_600_000;
    let clock = &paused.clock;
    let set = format!("SET {clock} x PX {CLOCK_MS}");
    let (read, delete) = (format!("PEXPIRETIME {clock}"), format!("DEL {clock}"));
    let lines = ["MULTI", &set, &read, &delete, command, "EXEC"];
    let commands = lines.map(|line| line.split(' ').map(str::to_owned).collect());
    let replies = paused.client.pipeline(&commands)?;
    let results = replies.last().map_or(&[][..], StressReply::items);
    let [_, StressReply::Integer(expiry), _, StressReply::Simple(_)] = results else {
        return Err(format!("a transaction with CLIENT PAUSE was answered by {replies:?}"));
    };
    let now = now(run);
    let wall_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64;
    let end_ms = (*expiry as u64).saturating_sub(CLOCK_MS) + pause_ms;
    Ok(now + (end_ms * 1_000_000).saturating_sub(wall_ns))
}

/// Returns the command that reads the digests of keys of other scenarios, which write them in all ways. None of these
/// keys expires: expired keys are not in a digest.
fn digest_command() -> String {
    let kinds: [(&str, usize); 10] = [
        ("counter", 50),
        ("account", 40),
        ("register", 6),
        ("watched", 3),
        ("script", 6),
        ("moved", 24),
        ("queue", 12),
        ("place", 600),
        ("united", 12),
        ("stream", 4),
    ];
    let names = kinds
        .iter()
        .flat_map(|(kind, count)| (0..*count).map(move |number| format!("{kind}:{number}")));
    let groups = (0..20).flat_map(|group| (0..8).map(move |key| format!("group:{group}:{key}")));
    let unions = (0..3).flat_map(|group| (0..2).map(move |set| format!("union:{group}:{set}")));
    let twins = (0..6).map(|key| format!("script:{key}:twin"));
    let all: Vec<String> = names.chain(groups).chain(unions).chain(twins).collect();
    format!("DEBUG DIGEST-VALUE {}", all.join(" "))
}

/// Returns the command that reads the digests of keys of other scenarios in a cluster. They may be on any node. Their
/// slots move only by MIGRATE, whose writes a pause holds back at both ends. The stream of a slot that moves as a whole
/// does not wait for the end of a pause.
fn digest_command_in_cluster() -> String {
    let mut names = ["left", "right", "counter", "list"].map(str::to_owned).to_vec();
    names.extend((0..6).flat_map(|key| [format!("script:{key}"), format!("script:{key}:twin")]));
    names.extend((0..CLUSTER_THREADS).map(|thread| format!("paused:{thread}")));
    let moved_by_key = (0..TAGS).filter(|tag| !tags::moves_as_whole(*tag)).map(tags::tag);
    let keys: Vec<String> = moved_by_key
        .flat_map(|tag| names.iter().map(move |name| format!("{tag}{name}")))
        .collect();
    format!("DEBUG DIGEST-VALUE {}", keys.join(" "))
}

/// Checks that the digests that a command returns stay the same until a time.
fn check_nothing_changes(run: &StressRun, client: &mut StressClient, command: &str, end: u64) -> Result<(), String> {
    let mut first: Option<StressReply> = None;
    while now(run) < end {
        let digests = client.call(command)?;
        if now(run) >= end {
            return Ok(());
        }
        let Some(first) = &first else {
            first = Some(digests);
            continue;
        };
        let pairs = first.items().iter().zip(digests.items()).enumerate();
        let changed: Vec<&str> = pairs
            .filter(|(_, (before, after))| before != after)
            .filter_map(|(index, _)| command.split(' ').nth(index + 2))
            .collect();
        if digests.items().is_empty() || !changed.is_empty() {
            return Err(format!("{changed:?} changed while writes were paused"));
        }
        run.succeed_in(SAME_DIGEST);
    }
    Ok(())
}

/// Forgets the pauses of this run.
pub fn forget(_: &StressRun) -> Result<(), String> {
    for end in &ENDS {
        end.store(0, Ordering::SeqCst);
    }
    Ok(())
}

//! The watchdog: no request may stay unanswered for longer than a bound, unless it is a blocking command.
//!
//! Every connection of a run registers what it waits for. The watchdog looks at all of them several times a second. If
//! one has waited for too long, it prints the request, INFO, CLIENT LIST and the stacks of the server's threads, and
//! fails the run.
//!
//! A client that reads late is watched from its request on, and a malformed request until the server has closed the
//! connection. Only the incomplete requests of the scenario `hostile` are not watched: no reply is due to them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::client::StressClient;

/// The bound on a machine with at least this number of cores. With fewer cores it is longer in proportion.
const BOUND: Duration = Duration::from_secs(15);
const CORES_OF_BOUND: usize = 4;
/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// The time limit of each command that the report sends.
const REPORT_PATIENCE: Duration = Duration::from_secs(5);
/// The bytes of a request that the report shows.
const SHOWN_BYTES: usize = 300;
/// The calls of each thread that the report shows.
const SHOWN_CALLS: &str = "12";

/// Shorter waits are not recorded.
const NOTABLE_WAIT: Duration = Duration::from_millis(50);
/// The number of commands in the list of the longest waits.
const SHOWN_WAITS: usize = 12;

/// Commands whose reply may wait for other clients.
const BLOCKING_COMMANDS: [&str; 12] = [
    "BLPOP",
    "BRPOP",
    "BLMOVE",
    "BRPOPLPUSH",
    "BLMPOP",
    "BZPOPMIN",
    "BZPOPMAX",
    "BZMPOP",
    "XREAD",
    "XREADGROUP",
    "WAIT",
    "WAITAOF",
];

/// Returns the time after which an unanswered request is a failure.
pub fn bound() -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    BOUND * CORES_OF_BOUND.div_ceil(cores.min(CORES_OF_BOUND)) as u32
}

type PendingSlot = Mutex<Option<(Instant, String)>>;
/// The longest wait for each command so far.
type LongestWaits = Mutex<HashMap<String, Duration>>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The request that one connection waits for.
pub struct PendingRequest {
    slot: Arc<PendingSlot>,
    longest: Arc<LongestWaits>,
}

impl PendingRequest {
    /// The connection sends these commands. Blocking commands are not watched.
    pub fn begin(&self, commands: &[Vec<String>]) {
        let name = |words: &Vec<String>| words.first().map_or(String::new(), |word| word.to_uppercase());
        let waits = commands
            .iter()
            .any(|words| BLOCKING_COMMANDS.contains(&name(words).as_str()));
        let text = || {
            let mut text = String::new();
            for word in commands.iter().flatten() {
                text += word;
                text.push(' ');
                if text.len() > SHOWN_BYTES {
                    break;
                }
            }
            text.chars().take(SHOWN_BYTES).collect()
        };
        *lock(&self.slot) = (!waits).then(|| (Instant::now(), text()));
    }

    /// Returns `true` if the connection waits for something in time.
    pub fn is_watched(&self) -> bool {
        lock(&self.slot).is_some()
    }

    /// The replies are complete.
    pub fn end(&self) {
        let Some((since, text)) = lock(&self.slot).take() else {
            return;
        };
        let waited = since.elapsed();
        if waited < NOTABLE_WAIT {
            return;
        }
        let name = text.split(' ').next().unwrap_or_default().to_uppercase();
        let mut longest = lock(&self.longest);
        let before = longest.entry(name).or_default();
        *before = waited.max(*before);
    }
}

/// The requests that all connections wait for.
#[derive(Default)]
pub struct RequestRegistry {
    slots: Mutex<Vec<Weak<PendingSlot>>>,
    longest: Arc<LongestWaits>,
}

impl RequestRegistry {
    /// Adds a connection.
    pub fn register(&self) -> PendingRequest {
        let slot = Arc::new(PendingSlot::default());
        lock(&self.slots).push(Arc::downgrade(&slot));
        PendingRequest {
            slot,
            longest: self.longest.clone(),
        }
    }

    /// Describes the commands with the longest waits.
    pub fn longest_waits(&self) -> String {
        let mut waits: Vec<(Duration, String)> = lock(&self.longest)
            .iter()
            .map(|(name, waited)| (*waited, name.clone()))
            .collect();
        waits.sort_unstable_by(|one, other| other.cmp(one));
        let shown = waits.iter().take(SHOWN_WAITS);
        let shown: Vec<String> = shown
            .map(|(waited, name)| format!("{name} {:.1} s", waited.as_secs_f64()))
            .collect();
        shown.join(", ")
    }

    /// Returns a request that has waited for longer than `bound`, and how long it has.
    fn overdue(&self, bound: Duration) -> Option<(Duration, String)> {
        let mut slots = lock(&self.slots);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.iter().filter_map(Weak::upgrade).find_map(|slot| {
            let pending = lock(&slot);
            let (since, text) = pending.as_ref()?;
            let waited = since.elapsed();
            (waited > bound).then(|| (waited, text.clone()))
        })
    }
}

/// A server that the report is about.
#[derive(Clone)]
pub struct WatchedServer {
    /// Its address.
    pub address: SocketAddr,
    /// Its process id.
    pub pid: u32,
}

/// Watches until `is_done`. Returns the story of the first request that waits for too long.
pub fn watch(registry: &RequestRegistry, servers: &[WatchedServer], is_done: &AtomicBool) -> Option<String> {
    let bound = bound();
    while !is_done.load(Ordering::Relaxed) {
        thread::sleep(PERIOD);
        if let Some((waited, text)) = registry.overdue(bound) {
            let story = format!(
                "a request is not answered for {:.1} s (at most {:.0} s are allowed): {text}",
                waited.as_secs_f64(),
                bound.as_secs_f64()
            );
            println!("{story}");
            for server in servers {
                report(server);
            }
            return Some(story);
        }
    }
    None
}

/// Prints the state of a server, as far as it can be found out.
fn report(server: &WatchedServer) {
    println!("--- state of the server at {}", server.address);
    let registry = RequestRegistry::default();
    for command in ["INFO everything", "CLIENT LIST"] {
        let reply = StressClient::connect(server.address, REPORT_PATIENCE, &registry)
            .and_then(|mut client| client.call(command).map_err(String::from));
        match reply {
            Ok(reply) => println!("--- {command}\n{}", reply.text()),
            Err(why) => println!("--- {command}: {why}"),
        }
    }
    let stacks = Command::new("gdb")
        .args(["-p", &server.pid.to_string(), "-batch", "-ex"])
        .arg(format!("thread apply all bt {SHOWN_CALLS}"))
        .output();
    match stacks {
        Ok(output) => println!("--- stacks\n{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => println!("--- stacks: gdb cannot be run: {error}"),
    }
}

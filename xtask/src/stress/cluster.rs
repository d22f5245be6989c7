//! The part about a cluster: slots move between three nodes, key by key and as a whole, while clients that follow
//! redirections use their keys. During most of the time, scenarios of the other parts do what they can to a node.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::client::{StressClient, StressReply};
use super::driver::Part;
use super::replication::{PATIENCE, connect};
use super::run::{ReconnectingClient, StressRun};
use super::scenarios::{Scenario, no_op};
use super::slot_moves::{self, expect_ok};
use super::tags::{TAGS, tag};
use super::{DATABASES, arguments, connections, pauses, scripts};
use crate::server_process::ServerProcess;

const NODES: usize = 3;
const SLOTS: usize = 16_384;
/// The number of threads that use the keys.
const THREADS: usize = 36;
/// The finished migrations of whole slots that a node lists.
const LISTED_MIGRATIONS: &str = "20";

/// The answered increments of the counter of each tag.
static INCREMENTS: [AtomicU64; TAGS] = [const { AtomicU64::new(0) }; TAGS];

#[rustfmt::skip]
const CLUSTER_SCENARIOS: &[Scenario] = &[
    Scenario { name: "moving slots", threads: 1, prepare: no_op, work: slot_moves::move_slots, check: slot_moves::check_slots, kinds: slot_moves::KINDS },
    Scenario { name: "clients", threads: THREADS, prepare: prepare_keys, work: use_keys, check: check_counters, kinds: &[] },
];

/// Scenarios of the other parts. In a cluster each thread has keys of one tag, which it follows.
#[rustfmt::skip]
const DISTURBANCES: &[Scenario] = &[
    Scenario { name: "cut",       threads: 10, prepare: no_op, work: connections::cut_pipelines, check: no_op, kinds: connections::CUT_KINDS },
    Scenario { name: "unread",    threads: 4,  prepare: connections::prepare_large_value, work: connections::never_reads, check: no_op, kinds: connections::UNREAD_KINDS },
    Scenario { name: "scripts",   threads: scripts::SCRIPT_THREADS, prepare: no_op, work: scripts::scripts, check: no_op, kinds: scripts::SCRIPT_KINDS },
    Scenario { name: "exclusive", threads: scripts::EXCLUSIVE_THREADS, prepare: no_op, work: scripts::exclusive, check: scripts::check_exclusive, kinds: &scripts::EXCLUSIVE },
    Scenario { name: "pauses",    threads: pauses::CLUSTER_THREADS, prepare: pauses::forget, work: pauses::pauses, check: no_op, kinds: pauses::KINDS },
];

/// Runs the part: a third of the time without disturbances, and the rest with them.
pub fn run(binary: &Path, duration: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    let node = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "60000",
        "--cluster-databases",
        DATABASES,
        "--cluster-slot-migration-log-max-len",
        LISTED_MIGRATIONS,
    ];
    let mut servers = Vec::new();
    for _ in 0..NODES {
        servers.push(ServerProcess::start(binary, &arguments(4, 2, &node))?);
    }
    form_cluster(&servers)?;
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut undisturbed = Part::new("cluster".to_owned(), seed, duration / 3);
    undisturbed.add_cluster_scenarios(CLUSTER_SCENARIOS, &addresses);
    undisturbed.run(&mut servers)?;
    let mut disturbed = Part::new("cluster, disturbed".to_owned(), seed, duration * 2 / 3);
    disturbed.add_cluster_scenarios(CLUSTER_SCENARIOS, &addresses);
    disturbed.add_cluster_scenarios(DISTURBANCES, &addresses);
    disturbed.run(&mut servers)?;
    println!("cluster: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Makes the servers a cluster and distributes the slots.
fn form_cluster(servers: &[ServerProcess]) -> Result<(), String> {
    for (index, server) in servers.iter().enumerate() {
        let mut client = connect(server.address)?;
        let (first, end) = (SLOTS * index / NODES, SLOTS * (index + 1) / NODES);
        expect_ok(client.call(&format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1)))?;
        if index > 0 {
            let bus = bus_port(&mut connect(servers[0].address)?)?;
            let port = servers[0].address.port();
            expect_ok(client.call(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}")))?;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    for server in servers {
        let mut client = connect(server.address)?;
        loop {
            let info = client.call("CLUSTER INFO")?.text();
            if info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{NODES}")) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("the nodes form no cluster:\n{info}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Returns the port of a node's cluster bus.
fn bus_port(client: &mut StressClient) -> Result<String, String> {
    let nodes = client.call("CLUSTER NODES")?.text();
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let bus = own.split_once('@').and_then(|(_, rest)| rest.split([',', ' ']).next());
    bus.map(str::to_owned).ok_or_else(|| format!("no bus port in {nodes}"))
}

/// A client that uses the keys of all tags.
struct ClusterClient<'a> {
    client: ReconnectingClient<'a>,
    /// The node that had the slot of each tag last.
    owners: [usize; TAGS],
}

impl<'a> ClusterClient<'a> {
    fn new(run: &'a StressRun) -> Result<Self, String> {
        Ok(ClusterClient {
            client: ReconnectingClient::new(run, 0)?,
            owners: [0; TAGS],
        })
    }

    /// Sends a command on keys of a tag to the node that has them, and returns its reply.
    fn call(&mut self, number: usize, command: &str) -> Result<StressReply, String> {
        self.client.go_to(self.owners[number]);
        let reply = self.client.call(command)?;
        self.owners[number] = self.client.server();
        match reply.ok_or_else(|| format!("{command}: the server closed the connection"))? {
            // The scenario `scripts` kills scripts of all clients.
            StressReply::Error(error) if !error.contains(connections::KILLED) => {
                Err(format!("{command} was answered by {error}"))
            }
            reply => Ok(reply),
        }
    }
}

/// Writes something to move, and forgets the increments of the part before.
fn prepare_keys(run: &StressRun) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    for (number, increments) in INCREMENTS.iter().enumerate() {
        let tag = tag(number);
        client.call(number, &format!("MSET {tag}left 0 {tag}right 0 {tag}counter 0"))?;
        for key in 0..20 {
            client.call(number, &format!("RPUSH {tag}filler:{key} a b c"))?;
        }
        increments.store(0, Ordering::SeqCst);
    }
    Ok(())
}

/// Uses the keys of all tags: counters, pairs that are always equal, and lists for which clients wait.
fn use_keys(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    let mut round = 0u64;
    while run.is_running() {
        round += 1;
        let number = rng.usize(..TAGS);
        let tag = tag(number);
        let pair = format!("{tag}left {tag}right");
        match rng.u8(..10) {
            0..4 => {
                let command = match rng.bool() {
                    true => format!("INCR {tag}counter"),
                    false => format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 {tag}counter"),
                };
                if matches!(client.call(number, &command)?, StressReply::Error(_)) {
                    continue;
                }
                INCREMENTS[number].fetch_add(1, Ordering::SeqCst);
            }
            4 | 5 => {
                let value = format!("{thread}:{round}");
                client.call(number, &format!("MSET {tag}left {value} {tag}right {value}"))?;
            }
            6 => {
                client.call(number, &format!("RPUSH {tag}list {round}"))?;
            }
            7 => {
                client.call(number, &format!("BLPOP {tag}list 0.2"))?;
            }
            _ => {
                let reply = client.call(number, &format!("MGET {pair}"))?;
                match reply.items() {
                    [left, right] if left == right && *left != StressReply::Bulk(None) => {}
                    other => return Err(format!("MGET {pair} was answered by {other:?}")),
                }
            }
        }
        run.succeed();
    }
    Ok(())
}

/// Checks that every answered increment counts once.
fn check_counters(run: &StressRun) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    for (number, increments) in INCREMENTS.iter().enumerate() {
        let value = client.call(number, &format!("GET {}counter", tag(number)))?.text();
        let answered = increments.load(Ordering::SeqCst);
        if value.parse().unwrap_or(0) != answered {
            return Err(format!(
                "the counter of {} is {value} after {answered} answered increments",
                tag(number)
            ));
        }
    }
    Ok(())
}

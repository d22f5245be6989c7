//! The part about a cluster: slots move between three nodes while clients that follow redirections use their keys.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::arguments;
use super::client::{CallError, StressClient, StressReply};
use super::driver::Part;
use super::replication::{PATIENCE, connect};
use super::run::StressRun;
use super::scenarios::Scenario;
use crate::server_process::ServerProcess;

const NODES: usize = 3;
const SLOTS: usize = 16_384;
/// The hash tags of all keys. The slots of these tags move.
const TAGS: usize = 24;
/// The number of threads that use the keys.
const THREADS: usize = 36;
/// The number of keys that each MIGRATE moves.
const KEYS_PER_MIGRATE: usize = 5;
/// Redirections that a client follows for one command.
const MAX_REDIRECTIONS: usize = 400;

/// The answered increments of the counter of each tag.
static INCREMENTS: [AtomicU64; TAGS] = [const { AtomicU64::new(0) }; TAGS];

#[rustfmt::skip]
const CLUSTER_SCENARIOS: &[Scenario] = &[
    Scenario { name: "moving slots", threads: 1, prepare: forget, work: move_slots, check: check_slots, kinds: &[] },
    Scenario { name: "clients", threads: THREADS, prepare: prepare_pairs, work: use_keys, check: check_counters, kinds: &[] },
];

/// Runs the part.
pub fn run(binary: &Path, duration: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    let node = ["--cluster-enabled", "yes", "--cluster-node-timeout", "60000"];
    let mut servers = Vec::new();
    for _ in 0..NODES {
        servers.push(ServerProcess::start(binary, &arguments(4, 2, &node))?);
    }
    form_cluster(&servers)?;
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut part = Part::new("cluster".to_owned(), seed, duration);
    part.add_scenarios(CLUSTER_SCENARIOS, &addresses);
    part.run(&mut servers)?;
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

fn expect_ok(reply: Result<StressReply, CallError>) -> Result<(), String> {
    match reply? {
        StressReply::Simple(_) => Ok(()),
        other => Err(format!("a command on the cluster was answered by {other:?}")),
    }
}

/// Returns the port of a node's cluster bus.
fn bus_port(client: &mut StressClient) -> Result<String, String> {
    let nodes = client.call("CLUSTER NODES")?.text();
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let bus = own.split_once('@').and_then(|(_, rest)| rest.split([',', ' ']).next());
    bus.map(str::to_owned).ok_or_else(|| format!("no bus port in {nodes}"))
}

/// A client that follows redirections.
struct ClusterClient<'a> {
    run: &'a StressRun,
    nodes: Vec<StressClient>,
    /// The node that had the slot of each tag last.
    owners: [usize; TAGS],
}

impl<'a> ClusterClient<'a> {
    fn new(run: &'a StressRun) -> Result<Self, String> {
        let nodes = (0..NODES).map(|node| run.connect_to(node)).collect::<Result<_, _>>()?;
        Ok(ClusterClient {
            run,
            nodes,
            owners: [0; TAGS],
        })
    }

    /// Returns the node of the address at the end of a redirection.
    fn redirected_node(&self, error: &str) -> Result<usize, String> {
        let port = error.rsplit(':').next().and_then(|port| port.trim().parse().ok());
        let node = self
            .run
            .addresses
            .iter()
            .position(|address| Some(address.port()) == port);
        node.ok_or_else(|| format!("{error} leads nowhere"))
    }

    /// Sends a command on keys of a tag to the node that has them, and returns its reply.
    fn call(&mut self, tag: usize, command: &str) -> Result<StressReply, String> {
        self.run.count_commands(1);
        let mut node = self.owners[tag];
        let mut is_asking = false;
        for _ in 0..MAX_REDIRECTIONS {
            if std::mem::take(&mut is_asking) {
                expect_ok(self.nodes[node].call("ASKING"))?;
            }
            let error = match self.nodes[node].call(command)? {
                StressReply::Error(error) => error,
                reply => return Ok(reply),
            };
            if error.starts_with("MOVED ") {
                node = self.redirected_node(&error)?;
                self.owners[tag] = node;
            } else if error.starts_with("ASK ") {
                node = self.redirected_node(&error)?;
                is_asking = true;
            } else if error.starts_with("TRYAGAIN") {
                // Some keys of the command have moved and others have not.
                node = self.owners[tag];
                std::thread::sleep(Duration::from_millis(2));
            } else {
                return Err(format!("{command} was answered by {error}"));
            }
        }
        Err(format!("{command} was redirected {MAX_REDIRECTIONS} times"))
    }
}

fn forget(_: &StressRun) -> Result<(), String> {
    for counter in &INCREMENTS {
        counter.store(0, Ordering::SeqCst);
    }
    Ok(())
}

fn prepare_pairs(run: &StressRun) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    for tag in 0..TAGS {
        client.call(tag, &format!("MSET {{{tag}}}left 0 {{{tag}}}right 0"))?;
        // Something to move.
        for key in 0..20 {
            client.call(tag, &format!("RPUSH {{{tag}}}filler:{key} a b c"))?;
        }
    }
    Ok(())
}

/// Uses the keys of all tags: counters, pairs that are always equal, and lists for which clients wait.
fn use_keys(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    let mut round = 0u64;
    while run.is_running() {
        round += 1;
        let tag = rng.usize(..TAGS);
        let pair = format!("{{{tag}}}left {{{tag}}}right");
        match rng.u8(..10) {
            0..4 => {
                let command = match rng.bool() {
                    true => format!("INCR {{{tag}}}counter"),
                    false => format!("EVAL return{{redis.call('incr',KEYS[1])}} 1 {{{tag}}}counter"),
                };
                client.call(tag, &command)?;
                INCREMENTS[tag].fetch_add(1, Ordering::SeqCst);
            }
            4 | 5 => {
                client.call(
                    tag,
                    &format!("MSET {{{tag}}}left {thread}:{round} {{{tag}}}right {thread}:{round}"),
                )?;
            }
            6 => {
                client.call(tag, &format!("RPUSH {{{tag}}}list {round}"))?;
            }
            7 => {
                client.call(tag, &format!("BLPOP {{{tag}}}list 0.2"))?;
            }
            _ => {
                let reply = client.call(tag, &format!("MGET {pair}"))?;
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

/// Moves the slots of random tags to random other nodes, with all of their keys.
fn move_slots(run: &StressRun, _: usize, mut rng: Rng) -> Result<(), String> {
    let mut nodes: Vec<StressClient> = (0..NODES).map(|node| run.connect_to(node)).collect::<Result<_, _>>()?;
    let mut ids = Vec::new();
    for node in &mut nodes {
        ids.push(node.call("CLUSTER MYID")?.text());
    }
    while run.is_running() {
        let tag = rng.usize(..TAGS);
        let slot = nodes[0].call(&format!("CLUSTER KEYSLOT {{{tag}}}"))?.text();
        let Some(from) = owner(&mut nodes, tag)? else {
            return Err(format!("no node has slot {slot}"));
        };
        let to = (from + rng.usize(1..NODES)) % NODES;
        expect_ok(nodes[to].call(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[from])))?;
        expect_ok(nodes[from].call(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[to])))?;
        migrate_keys(run, &mut nodes[from], &slot, to)?;
        for node in [to, from, NODES - to - from] {
            expect_ok(nodes[node].call(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[to])))?;
        }
        run.succeed();
        std::thread::sleep(Duration::from_millis(rng.u64(..20)));
    }
    Ok(())
}

/// Returns the node that has the slot of a tag.
fn owner(nodes: &mut [StressClient], tag: usize) -> Result<Option<usize>, String> {
    for (index, node) in nodes.iter_mut().enumerate() {
        match node.call(&format!("EXISTS {{{tag}}}left"))? {
            StressReply::Error(error) if error.starts_with("MOVED ") => {}
            StressReply::Integer(_) => return Ok(Some(index)),
            other => return Err(format!("EXISTS was answered by {other:?}")),
        }
    }
    Ok(None)
}

fn migrate_keys(run: &StressRun, from: &mut StressClient, slot: &str, to: usize) -> Result<(), String> {
    let port = run.addresses[to].port();
    loop {
        let keys = from.call(&format!("CLUSTER GETKEYSINSLOT {slot} {KEYS_PER_MIGRATE}"))?;
        let names: Vec<String> = keys.items().iter().map(StressReply::text).collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut words = ["MIGRATE", "127.0.0.1", &port.to_string(), "", "0", "5000", "KEYS"]
            .map(str::to_owned)
            .to_vec();
        words.extend(names);
        let reply = from.call_words(words)?;
        if !matches!(reply, StressReply::Simple(_)) {
            return Err(format!("MIGRATE was answered by {reply:?}"));
        }
    }
}

/// Checks that no node has keys of a slot of another node.
fn check_slots(run: &StressRun) -> Result<(), String> {
    let mut nodes: Vec<StressClient> = (0..NODES).map(|node| run.connect_to(node)).collect::<Result<_, _>>()?;
    for tag in 0..TAGS {
        let slot = nodes[0].call(&format!("CLUSTER KEYSLOT {{{tag}}}"))?.text();
        let owner = owner(&mut nodes, tag)?;
        for (index, node) in nodes.iter_mut().enumerate() {
            let count = node.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}"))?;
            if (count != StressReply::Integer(0)) != (owner == Some(index)) {
                return Err(format!(
                    "node {index} has {count:?} keys of slot {slot}, whose node is {owner:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that every answered increment counts once.
fn check_counters(run: &StressRun) -> Result<(), String> {
    let mut client = ClusterClient::new(run)?;
    for (tag, counter) in INCREMENTS.iter().enumerate() {
        let value = client.call(tag, &format!("GET {{{tag}}}counter"))?.text();
        let answered = counter.load(Ordering::SeqCst);
        if value.parse().unwrap_or(0) != answered {
            return Err(format!(
                "the counter of tag {tag} is {value} after {answered} answered increments"
            ));
        }
    }
    Ok(())
}

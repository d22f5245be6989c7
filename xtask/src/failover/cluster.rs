//! Failovers in a cluster of three primaries with a replica each, and the migration of slots.

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::group::{Group, NodeRole, SETTLE_BOUND};
use super::history::Guarantee;
use super::scenario::FailoverScenario;
use crate::stress::client::StressReply;

/// The number of primaries, each with one replica.
pub const PRIMARIES: usize = 3;
const SLOTS: usize = 16384;
/// The node timeout of planned failovers. On a busy machine a node may be silent for seconds.
const LONG_NODE_TIMEOUT_MS: u32 = 20_000;
/// The node timeout while a primary is killed or stopped.
const SHORT_NODE_TIMEOUT_MS: u32 = 1000;

/// The failovers and migrations of a cluster.
pub const SCENARIOS: &[FailoverScenario] = &[
    FailoverScenario {
        name: "cluster-failover",
        about: "CLUSTER FAILOVER",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| manual(group, rng, "CLUSTER FAILOVER"),
    },
    FailoverScenario {
        name: "cluster-force",
        about: "CLUSTER FAILOVER FORCE",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| manual(group, rng, "CLUSTER FAILOVER FORCE"),
    },
    FailoverScenario {
        name: "cluster-takeover",
        about: "CLUSTER FAILOVER TAKEOVER",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| manual(group, rng, "CLUSTER FAILOVER TAKEOVER"),
    },
    FailoverScenario {
        name: "cluster-migrate",
        about: "CLUSTER SETSLOT and MIGRATE",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| migrate(group, rng, false),
    },
    FailoverScenario {
        name: "cluster-migrate-failover",
        about: "CLUSTER FAILOVER of a primary whose slot is being migrated",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| migrate(group, rng, true),
    },
    FailoverScenario {
        name: "cluster-kill",
        about: "kill -9 of a primary",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| disturb(group, rng, true),
    },
    FailoverScenario {
        name: "cluster-stop",
        about: "SIGSTOP of a primary",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| disturb(group, rng, false),
    },
];

/// Starts the nodes and forms the cluster.
pub fn start(binary: &Path, arguments: &[String]) -> Result<Group, String> {
    let mut group = form(&[binary; 2 * PRIMARIES], arguments)?;
    heal(&mut group)?;
    choose_tags(&mut group)?;
    Ok(group)
}

/// Returns the first and the last slot that a primary has at first.
fn first_range(primary: usize, primaries: usize) -> [usize; 2] {
    [SLOTS * primary / primaries, SLOTS * (primary + 1) / primaries - 1]
}

/// Starts nodes of these programs and forms a cluster. The nodes of the second half are the replicas of those of the
/// first half.
///
/// # Errors
/// Fails if a node does not start, or refuses a command.
pub fn form(binaries: &[&Path], arguments: &[String]) -> Result<Group, String> {
    let mut all = arguments.to_vec();
    for (name, value) in node_parameters() {
        all.extend([format!("--{name}"), value]);
    }
    let group = Group::start(binaries, binaries.len() / 2, &all, true)?;
    join(&group)?;
    Ok(group)
}

/// Returns the parameters that every node of a cluster has.
pub fn node_parameters() -> [(&'static str, String); 5] {
    [
        ("cluster-enabled", "yes".to_owned()),
        ("cluster-node-timeout", LONG_NODE_TIMEOUT_MS.to_string()),
        ("cluster-require-full-coverage", "no".to_owned()),
        ("cluster-allow-replica-migration", "no".to_owned()),
        ("cluster-manual-failover-timeout", "20000".to_owned()),
    ]
}

/// Forms a cluster of nodes that do not know each other. The nodes of the second half become the replicas of those of
/// the first half.
///
/// # Errors
/// Fails if a node refuses a command.
pub fn join(group: &Group) -> Result<(), String> {
    let primaries = group.primaries;
    for node in 0..primaries {
        let [first, last] = first_range(node, primaries);
        group.expect_ok(node, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        group.expect_ok(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", node + 1))?;
    }
    for node in 1..group.servers.len() {
        let bus_port = group.call(node, "CONFIG GET cluster-port")?;
        let bus_port = bus_port.items().get(1).map(StressReply::text).unwrap_or_default();
        let port = group.address(node).port();
        group.expect_ok(0, &format!("CLUSTER MEET 127.0.0.1 {port} {bus_port}"))?;
    }
    let count = group.servers.len();
    group.wait_until("all nodes know each other", |group| {
        for node in 0..count {
            let nodes = group.call(node, "CLUSTER NODES")?.text();
            if nodes.lines().filter(|line| line.contains(" connected")).count() != count {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    for primary in 0..primaries {
        let id = group.call(primary, "CLUSTER MYID")?.text();
        group.expect_ok(primary + primaries, &format!("CLUSTER REPLICATE {id}"))?;
    }
    Ok(())
}

/// Chooses a tag in the slots of each primary.
///
/// # Errors
/// Fails if a node does not reply.
pub fn choose_tags(group: &mut Group) -> Result<(), String> {
    for shard in 0..PRIMARIES {
        let [first, last] = first_range(shard, PRIMARIES);
        let mut found = None;
        for number in 0..100 {
            let tag = format!("{{{number}}}");
            let slot = group.key_slot(&tag)?;
            if (first..=last).contains(&usize::from(slot)) {
                found = Some((tag, slot));
                break;
            }
        }
        group.tags.push(found.ok_or("no tag is in the slots of a primary")?);
    }
    Ok(())
}

/// Makes the node timeout long again, and waits until the cluster is whole.
pub fn heal(group: &mut Group) -> Result<(), String> {
    set_long_node_timeout(group)?;
    wait_until_whole(group)
}

/// Waits until every primary has one replica, and all nodes agree about slots and roles.
pub fn wait_until_whole(group: &Group) -> Result<(), String> {
    let count = group.servers.len();
    group.wait_until("the cluster is whole", |group| {
        let shards = group.shards()?;
        if shards.len() != group.primaries || shards.values().any(|replicas| replicas.len() != 1) {
            return Err(format!("{shards:?}"));
        }
        let mut slots = Vec::new();
        for node in 0..count {
            let nodes = group.call(node, "CLUSTER NODES")?.text();
            if nodes.contains("fail")
                || nodes.contains("handshake")
                || nodes.matches("master").count() != group.primaries
            {
                return Err(nodes);
            }
            slots.push(slot_owners(&group.call(node, "CLUSTER SLOTS")?));
        }
        match slots.iter().all(|one| *one == slots[0]) {
            true => Ok(true),
            false => Err(format!("{slots:?}")),
        }
    })
}

/// Returns the ranges of slots with their primaries' ports.
fn slot_owners(reply: &StressReply) -> Vec<String> {
    let mut owners: Vec<String> = reply
        .items()
        .iter()
        .map(|range| {
            let text = |index: usize| range.items().get(index).map(StressReply::text).unwrap_or_default();
            let primary = range
                .items()
                .get(2)
                .and_then(|node| node.items().get(1))
                .map(StressReply::text);
            format!("{}-{} {primary:?}", text(0), text(1))
        })
        .collect();
    owners.sort();
    owners
}

/// Sets the node timeout of planned failovers.
pub fn set_long_node_timeout(group: &Group) -> Result<(), String> {
    set_node_timeout(group, LONG_NODE_TIMEOUT_MS)
}

/// Sets the node timeout of failovers after a death.
pub fn set_short_node_timeout(group: &Group) -> Result<(), String> {
    set_node_timeout(group, SHORT_NODE_TIMEOUT_MS)
}

fn set_node_timeout(group: &Group, milliseconds: u32) -> Result<(), String> {
    for node in 0..group.servers.len() {
        group.expect_ok(node, &format!("CONFIG SET cluster-node-timeout {milliseconds}"))?;
    }
    Ok(())
}

/// Returns a random primary and its replica.
///
/// # Errors
/// Fails if a primary gets no replica.
pub fn choose_shard(group: &Group, rng: &mut Rng) -> Result<(usize, usize), String> {
    let mut found = Vec::new();
    group.wait_until("every primary has a replica", |group| {
        let shards = group.shards()?;
        found = shards
            .into_iter()
            .filter_map(|(primary, replicas)| Some((primary, *replicas.first()?)))
            .collect();
        Ok(found.len() == group.primaries)
    })?;
    Ok(found[rng.usize(..found.len())])
}

/// Waits until all nodes see `promoted` as the primary of a shard, and the old one as its replica.
pub fn wait_for_promotion(group: &Group, promoted: usize) -> Result<(), String> {
    let id = group.call(promoted, "CLUSTER MYID")?.text();
    group.wait_until("all nodes know the promoted one", |group| {
        for node in 0..group.servers.len() {
            let nodes = group.call(node, "CLUSTER NODES")?.text();
            let line = nodes.lines().find(|line| line.starts_with(&id)).unwrap_or_default();
            if !line.contains("master") || nodes.matches("master").count() != group.primaries {
                return Err(nodes);
            }
        }
        Ok(true)
    })
}

fn manual(group: &mut Group, rng: &mut Rng, command: &str) -> Result<u64, String> {
    let (_, replica) = choose_shard(group, rng)?;
    promote(group, replica, command)?;
    Ok(1)
}

/// Sends a command to a replica that promotes it.
pub fn promote(group: &Group, replica: usize, command: &str) -> Result<(), String> {
    let mut deadline = Instant::now();
    group.wait_until(command, |group| {
        if group.role(replica)? == NodeRole::Primary {
            return Ok(true);
        }
        // The election of a manual failover may fail, for instance because other nodes were too busy to vote.
        if Instant::now() >= deadline {
            group.expect_ok(replica, command)?;
            deadline = Instant::now() + SETTLE_BOUND / 2;
        }
        Ok(false)
    })?;
    wait_for_promotion(group, replica)
}

/// Kills or stops a primary, and lets it go on when its replica has been elected.
fn disturb(group: &mut Group, rng: &mut Rng, is_killed: bool) -> Result<u64, String> {
    heal(group)?;
    let (primary, replica) = choose_shard(group, rng)?;
    set_short_node_timeout(group)?;
    if is_killed {
        group.kill(primary)?;
    } else {
        group.suspend(primary)?;
    }
    let result = group.wait_until("the replica is elected", |group| {
        Ok(group.role(replica)? == NodeRole::Primary)
    });
    std::thread::sleep(Duration::from_millis(rng.u64(0..600)));
    if is_killed {
        group.restart(primary)?;
    } else {
        group.resume(primary)?;
    }
    result?;
    wait_for_promotion(group, replica)?;
    Ok(1)
}

/// Returns the primary that has keys of a slot, and another primary.
fn ends_of_migration(group: &Group, rng: &mut Rng, slot: u16) -> Result<(usize, usize), String> {
    let mut primaries: Vec<usize> = group.shards()?.into_keys().collect();
    rng.shuffle(&mut primaries);
    let (mut source, mut target) = (None, None);
    for node in primaries {
        let command = format!("CLUSTER COUNTKEYSINSLOT {slot}");
        match group.call(node, &command)? {
            StressReply::Integer(0) => target = Some(node),
            StressReply::Integer(_) => source = Some(node),
            other => return Err(format!("node {node}: {command} was answered by {other:?}")),
        }
    }
    source
        .zip(target)
        .ok_or_else(|| format!("no primary has keys in slot {slot}"))
}

/// Moves the slot of one of the tags, with the writers' keys, to another primary. In the middle of it, one of the two
/// primaries may be replaced by its replica, which goes on.
fn migrate(group: &mut Group, rng: &mut Rng, is_interrupted: bool) -> Result<u64, String> {
    heal(group)?;
    let slot = group.tags[rng.usize(..group.tags.len())].1;
    let (mut source, mut target) = ends_of_migration(group, rng, slot)?;
    let id = |node: usize| Ok::<_, String>(group.call(node, "CLUSTER MYID")?.text());
    let (source_id, target_id) = (id(source)?, id(target)?);
    group.expect_ok(target, &format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))?;
    group.expect_ok(source, &format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))?;
    let mut interruption = is_interrupted.then(|| rng.u8(..4));
    let deadline = Instant::now() + SETTLE_BOUND;
    while move_keys(group, rng, slot, source, target)? {
        if interruption == Some(0) {
            let end = if rng.bool() { &mut source } else { &mut target };
            *end = replace_by_replica(group, *end)?;
        }
        interruption = interruption.and_then(|left| left.checked_sub(1));
        if Instant::now() > deadline {
            return Err(format!("slot {slot} does not get empty"));
        }
        std::thread::sleep(Duration::from_millis(rng.u64(0..20)));
    }
    let target_id = group.call(target, "CLUSTER MYID")?.text();
    group.expect_ok(target, &format!("CLUSTER SETSLOT {slot} NODE {target_id}"))?;
    group.expect_ok(source, &format!("CLUSTER SETSLOT {slot} NODE {target_id}"))?;
    Ok(1)
}

/// Moves a few keys of a slot. Returns `false` if there were none.
fn move_keys(group: &Group, rng: &mut Rng, slot: u16, source: usize, target: usize) -> Result<bool, String> {
    let count = rng.u8(1..6);
    let request = format!("CLUSTER GETKEYSINSLOT {slot} {count}");
    // Another reply must not pass for an empty slot.
    let keys: Vec<String> = match group.call(source, &request)? {
        StressReply::Array(keys) => keys.iter().map(StressReply::text).collect(),
        other => return Err(format!("node {source}: {request} was answered by {other:?}")),
    };
    let port = group.address(target).port().to_string();
    let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "20000", "KEYS"];
    command.extend(keys.iter().map(String::as_str));
    if !keys.is_empty() {
        match group.call_words(source, &command)? {
            StressReply::Simple(text) if text == "OK" || text == "NOKEY" => {}
            other => return Err(format!("{command:?} was answered by {other:?}")),
        }
    }
    Ok(!keys.is_empty())
}

/// Lets the replica of a primary take its place, and returns the replica.
fn replace_by_replica(group: &Group, primary: usize) -> Result<usize, String> {
    let shards = group.shards()?;
    let replica = shards.get(&primary).and_then(|replicas| replicas.first().copied());
    let replica = replica.ok_or_else(|| format!("node {primary} has no replica: {shards:?}"))?;
    promote(group, replica, "CLUSTER FAILOVER")?;
    Ok(replica)
}

//! Failovers of a primary with two replicas, by commands to the servers themselves.

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;

use super::group::{Group, NodeRole};
use super::history::Guarantee;
use super::scenario::FailoverScenario;
use crate::stress::client::StressReply;

/// The failovers that need no Sentinel and no cluster.
pub const SCENARIOS: &[FailoverScenario] = &[
    FailoverScenario {
        name: "failover",
        about: "FAILOVER to any replica",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| fail_over(group, rng, false),
    },
    FailoverScenario {
        name: "failover-to",
        about: "FAILOVER TO one replica",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: fail_over_to,
    },
    FailoverScenario {
        name: "failover-force",
        about: "FAILOVER TO a replica that is stopped, with FORCE",
        guarantee: Guarantee::Confirmed,
        replicas: 2,
        fail_over: force,
    },
    FailoverScenario {
        name: "replicaof-paused",
        about: "REPLICAOF while writes are paused",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| switch(group, rng, true),
    },
    FailoverScenario {
        name: "replicaof-flip",
        about: "FAILOVER right after a demotion and a promotion in one transaction",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: flip,
    },
    FailoverScenario {
        name: "replicaof",
        about: "REPLICAOF while writers go on",
        guarantee: Guarantee::Confirmed,
        replicas: 2,
        fail_over: |group, rng| switch(group, rng, false),
    },
    FailoverScenario {
        name: "shutdown",
        about: "SIGTERM, then REPLICAOF NO ONE on the replica with the best offset",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| end_and_promote(group, rng, false),
    },
    FailoverScenario {
        name: "kill-best",
        about: "kill -9, then REPLICAOF NO ONE on the replica with the best offset",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| end_and_promote(group, rng, true),
    },
];

/// Starts a primary and two replicas.
pub fn start(binary: &Path, arguments: &[String]) -> Result<Group, String> {
    let mut group = Group::start(&[binary; 3], 1, arguments, false)?;
    group.tags = ["{a}", "{b}"].map(|tag| (tag.to_owned(), 0)).into();
    heal(&mut group)?;
    Ok(group)
}

/// Lets every node follow the primary directly. If there are several primaries, the first one stays.
pub fn heal(group: &mut Group) -> Result<(), String> {
    let primary = primary_of(group)?;
    for node in (0..group.servers.len()).filter(|node| *node != primary) {
        follow(group, node, primary)?;
    }
    group.wait_until("two replicas follow one primary", |group| {
        Ok(group.shards()?.get(&primary).map(Vec::len) == Some(2))
    })
}

fn primary_of(group: &Group) -> Result<usize, String> {
    for node in 0..group.servers.len() {
        if group.role(node)? == NodeRole::Primary {
            return Ok(node);
        }
    }
    Err(format!("there is no primary: {}", group.describe()))
}

/// Returns the primary, and its replicas in random order. Waits until both replicas are connected.
fn nodes_of(group: &Group, rng: &mut Rng) -> Result<(usize, Vec<usize>), String> {
    let mut found = None;
    group.wait_until("two replicas are connected to a primary", |group| {
        let shards = group.shards()?;
        found = shards.into_iter().find(|(_, replicas)| replicas.len() == 2);
        Ok(found.is_some())
    })?;
    let (primary, mut replicas) = found.ok_or("no primary")?;
    rng.shuffle(&mut replicas);
    Ok((primary, replicas))
}

/// Lets a node follow another one. A node that loads a dump refuses the command meanwhile.
fn follow(group: &Group, node: usize, primary: usize) -> Result<(), String> {
    let command = format!("REPLICAOF 127.0.0.1 {}", group.address(primary).port());
    group.wait_until(&format!("node {node} accepts {command}"), |group| {
        let reply = group.call(node, &command)?.text();
        if reply.starts_with("OK") { Ok(true) } else { Err(reply) }
    })
}

/// Returns `true` if a node follows another one directly, and is connected to it.
fn follows(group: &Group, node: usize, primary: usize) -> Result<bool, String> {
    let wanted = NodeRole::Replica {
        of: group.address(primary),
        is_connected: true,
    };
    Ok(group.role(node)? == wanted)
}

/// Sends a FAILOVER command. After a promotion the primary refuses it until its replicas have learnt the new
/// replication ID and are connected again.
fn begin_failover(group: &Group, primary: usize, command: &str) -> Result<(), String> {
    group.wait_until(&format!("node {primary} accepts {command}"), |group| {
        let reply = group.call(primary, command)?;
        match &reply {
            StressReply::Simple(text) if text == "OK" => Ok(true),
            _ => Err(format!("{reply:?}")),
        }
    })
}

/// Returns the primary and a replica that follows it directly.
fn choose_target(group: &Group, rng: &mut Rng) -> Result<(usize, usize), String> {
    let (primary, replicas) = nodes_of(group, rng)?;
    let mut target = None;
    group.wait_until("a replica follows the primary directly", |group| {
        for replica in &replicas {
            if follows(group, *replica, primary)? {
                target = Some(*replica);
            }
        }
        Ok(target.is_some())
    })?;
    target
        .map(|target| (primary, target))
        .ok_or_else(|| "no replica".to_owned())
}

/// Fails over to a named replica, sometimes after a failover that was called off.
fn fail_over_to(group: &mut Group, rng: &mut Rng) -> Result<u64, String> {
    if rng.u8(..3) == 0 {
        abort(group, rng)?;
    }
    fail_over(group, rng, true)
}

fn fail_over(group: &mut Group, rng: &mut Rng, names_target: bool) -> Result<u64, String> {
    let (primary, target) = choose_target(group, rng)?;
    let port = group.address(target).port();
    let command = match (names_target, rng.bool()) {
        (true, true) => format!("FAILOVER TO 127.0.0.1 {port} TIMEOUT 30000"),
        (true, false) => format!("FAILOVER TO 127.0.0.1 {port}"),
        (false, true) => "FAILOVER TIMEOUT 30000".to_owned(),
        (false, false) => "FAILOVER".to_owned(),
    };
    begin_failover(group, primary, &command)?;
    group.wait_until(&command, |group| {
        let has_changed = matches!(group.role(primary)?, NodeRole::Replica { is_connected: true, .. });
        Ok(has_changed && group.shards()?.len() == 1)
    })?;
    let promoted = primary_of(group)?;
    if names_target && promoted != target {
        return Err(format!("{command} promoted node {promoted} instead of {target}"));
    }
    // The other replica follows the old primary, which is a replica now. It stays there, or comes over.
    let other = (0..3).find(|node| ![primary, promoted].contains(node)).unwrap_or(0);
    if rng.bool() {
        follow(group, other, promoted)?;
    }
    Ok(1)
}

/// Begins a failover to a replica that is stopped, and calls it off.
fn abort(group: &Group, rng: &mut Rng) -> Result<(), String> {
    let (primary, target) = choose_target(group, rng)?;
    group.suspend(target)?;
    // Something to wait for must be acknowledged after the replica has stopped.
    std::thread::sleep(Duration::from_millis(50));
    let port = group.address(target).port();
    let result = group.expect_ok(primary, &format!("FAILOVER TO 127.0.0.1 {port}"));
    std::thread::sleep(Duration::from_millis(rng.u64(0..300)));
    let aborted = group.call(primary, "FAILOVER ABORT");
    group.resume(target)?;
    result?;
    match aborted? {
        StressReply::Simple(text) if text == "OK" => {}
        other => return Err(format!("FAILOVER ABORT was answered by {other:?}")),
    }
    group.wait_until("the replica follows on", |group| {
        Ok(group.role(primary)? == NodeRole::Primary && follows(group, target, primary)?)
    })
}

fn force(group: &mut Group, rng: &mut Rng) -> Result<u64, String> {
    heal(group)?;
    let (primary, replicas) = nodes_of(group, rng)?;
    let (target, other) = (replicas[0], replicas[1]);
    group.suspend(target)?;
    std::thread::sleep(Duration::from_millis(rng.u64(1..200)));
    let port = group.address(target).port();
    let command = format!("FAILOVER TO 127.0.0.1 {port} FORCE TIMEOUT {}", rng.u16(1..400));
    let result = group.expect_ok(primary, &command);
    std::thread::sleep(Duration::from_millis(rng.u64(1..800)));
    group.resume(target)?;
    result?;
    group.wait_until(&command, |group| {
        Ok(group.role(target)? == NodeRole::Primary && follows(group, primary, target)?)
    })?;
    follow(group, other, target)?;
    Ok(1)
}

/// Makes the primary a replica and a primary again before it can do anything as a replica, and then fails over.
fn flip(group: &mut Group, rng: &mut Rng) -> Result<u64, String> {
    let (primary, _) = nodes_of(group, rng)?;
    // The log thread is asleep when both changes come, and sees the first one after the second.
    group.expect_ok(primary, "CLIENT PAUSE 60000 WRITE")?;
    std::thread::sleep(Duration::from_millis(rng.u64(0..150)));
    let flip = ["MULTI", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "EXEC"];
    let reply = group.call_together(primary, &flip)?;
    match reply.items() {
        [StressReply::Simple(_), StressReply::Simple(_)] => {}
        _ => return Err(format!("{flip:?} was answered by {reply:?}")),
    }
    group.expect_ok(primary, "CLIENT UNPAUSE")?;
    fail_over(group, rng, true)?;
    // A server that takes itself for the source of the stream adds a ping to it every second.
    std::thread::sleep(Duration::from_millis(1200));
    Ok(1)
}

/// Promotes a replica with REPLICAOF. With `is_paused`, writes are paused first, and the replica has all of them.
fn switch(group: &mut Group, rng: &mut Rng, is_paused: bool) -> Result<u64, String> {
    let (primary, replicas) = nodes_of(group, rng)?;
    let (target, other) = (replicas[0], replicas[1]);
    if is_paused {
        group.expect_ok(primary, "CLIENT PAUSE 60000 WRITE")?;
        let offset = group.offset(primary)?;
        group.wait_until("the replica has what was acknowledged", |group| {
            Ok(group.offset(target)? >= offset)
        })?;
    }
    group.expect_ok(target, "REPLICAOF NO ONE")?;
    if !is_paused {
        std::thread::sleep(Duration::from_millis(rng.u64(0..50)));
    }
    follow(group, primary, target)?;
    follow(group, other, target)?;
    if is_paused {
        group.expect_ok(primary, "CLIENT UNPAUSE")?;
    }
    group.wait_until("the old primary follows the new one", |group| {
        follows(group, primary, target)
    })?;
    Ok(1)
}

/// Ends the primary and promotes the replica with the best offset. A primary that is not killed waits for its replicas
/// before it ends.
fn end_and_promote(group: &mut Group, rng: &mut Rng, is_killed: bool) -> Result<u64, String> {
    heal(group)?;
    let (primary, replicas) = nodes_of(group, rng)?;
    match is_killed {
        true => group.kill(primary)?,
        false => group.shut_down(primary)?,
    }
    // A replica applies what it has received before it sees the end of the connection. Only then is its offset final.
    group.wait_until("the replicas have lost the primary", |group| {
        for replica in &replicas {
            if group.info(*replica, "master_link_status")? != "down" {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    let (mut best, mut other) = (replicas[0], replicas[1]);
    if group.offset(other)? > group.offset(best)? {
        std::mem::swap(&mut best, &mut other);
    }
    group.expect_ok(best, "REPLICAOF NO ONE")?;
    follow(group, other, best)?;
    std::thread::sleep(Duration::from_millis(rng.u64(0..300)));
    group.restart(primary)?;
    follow(group, primary, best)?;
    group.wait_until("the replica follows the promoted one", |group| {
        follows(group, other, best)
    })?;
    Ok(1)
}

//! Atomic slot migration in a cluster of Weft and Valkey nodes: ranges of slots move in random directions while clients
//! write, and the nodes at both ends fail over, are killed, or come back meanwhile.
//!
//! Every second shard has a replica of the other kind. Besides the rules of all rounds, each key is on one primary
//! only, no migration is left over, and keys that no client writes have their values.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::cluster::{
    form, promote, set_long_node_timeout, set_short_node_timeout, wait_for_promotion, wait_until_whole,
};
use super::group::{Group, NodeRole};
use super::history::Guarantee;
use super::scenario::FailoverScenario;
use super::session::words;
use crate::stress::client::StressReply;

/// The number of primaries. The first half of them are Weft nodes at first.
const PRIMARIES: usize = 6;
/// The tags of the writers' keys.
const TAGS: usize = 3;
/// The keys that are written once, and then only moved.
const STILL_KEYS: usize = 6000;
/// The number of fields of every large hash. One still key in `LARGE_EVERY` is such a hash.
const LARGE_FIELDS: usize = 1500;
const LARGE_EVERY: usize = 500;
/// The number of still keys that a round reads.
const READ_KEYS: usize = 200;
/// The states in which a migration has ended.
const END_STATES: [&str; 3] = ["success", "failed", "cancelled"];

/// The migrations of a mixed cluster.
pub const SCENARIOS: &[FailoverScenario] = &[
    FailoverScenario {
        name: "mixed-move",
        about: "CLUSTER MIGRATESLOTS",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| move_slots(group, rng, Interruption::None),
    },
    FailoverScenario {
        name: "mixed-move-failover",
        about: "CLUSTER FAILOVER at one end of a slot migration",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| move_slots(group, rng, Interruption::Failover),
    },
    FailoverScenario {
        name: "mixed-move-restart",
        about: "kill -9 and restart of a node at one end of a slot migration, without an election",
        guarantee: Guarantee::Acknowledged,
        replicas: 1,
        fail_over: |group, rng| move_slots(group, rng, Interruption::Restart),
    },
    FailoverScenario {
        name: "mixed-move-kill",
        about: "kill -9 of a primary at one end of a slot migration, and election of its replica",
        guarantee: Guarantee::Confirmed,
        replicas: 1,
        fail_over: |group, rng| move_slots(group, rng, Interruption::Kill),
    },
];

/// The time within which a Valkey that ends itself has written its report.
const REPORT_BOUND: Duration = Duration::from_secs(3);

/// What happens to one end of a migration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interruption {
    None,
    Failover,
    Restart,
    Kill,
}

/// A migration of slots between primaries.
struct SlotMove {
    ranges: Vec<[u16; 2]>,
    source: usize,
    target: usize,
}

/// Starts the nodes, forms the cluster and writes the still keys.
pub fn start(weft: &Path, valkey: &Path, arguments: &[String]) -> Result<Group, String> {
    let is_weft = |node: usize| match node < PRIMARIES {
        true => node < PRIMARIES / 2,
        false => (node - PRIMARIES < PRIMARIES / 2) != node.is_multiple_of(2),
    };
    let binaries: Vec<&Path> = (0..2 * PRIMARIES)
        .map(|node| if is_weft(node) { weft } else { valkey })
        .collect();
    let mut all = arguments.to_vec();
    // A killed node that comes back must still have what it acknowledged.
    all.extend(words(&["--appendonly", "yes", "--appendfsync", "always"]));
    let mut group = form(&binaries, &all)?;
    wait_until_whole(&group)?;
    for number in 0..TAGS {
        let tag = format!("{{{number}}}");
        let slot = group.key_slot(&tag)?;
        group.tags.push((tag, slot));
    }
    write_still_keys(&group)?;
    heal(&mut group)?;
    Ok(group)
}

fn kind(group: &Group, node: usize) -> &'static str {
    if group.servers[node].is_program("valkey-server") {
        "Valkey"
    } else {
        "Weft"
    }
}

fn still_key(number: usize) -> String {
    format!("still:{number}")
}

fn is_large(number: usize) -> bool {
    number.is_multiple_of(LARGE_EVERY)
}

fn still_value(number: usize) -> String {
    format!("{number}:").repeat(20 + number % 30)
}

/// Writes the still keys, each to the owner of its slot.
fn write_still_keys(group: &Group) -> Result<(), String> {
    let owners = Owners::read(group)?;
    let numbers: Vec<usize> = (0..STILL_KEYS).collect();
    let slots = slots_of(group, &numbers)?;
    let mut commands: BTreeMap<usize, Vec<Vec<String>>> = BTreeMap::new();
    for (number, slot) in numbers.into_iter().zip(slots) {
        let key = still_key(number);
        let command = match is_large(number) {
            false => words(&["SET", &key, &still_value(number)]),
            true => {
                let fields = (0..LARGE_FIELDS).flat_map(|field| [format!("field-{field}"), still_value(field)]);
                words(&["HSET", &key]).into_iter().chain(fields).collect()
            }
        };
        commands.entry(owners.of(slot)?).or_default().push(command);
    }
    for (node, commands) in commands {
        let errors = group.pipeline_all(node, &commands)?;
        if let Some(StressReply::Error(error)) = errors.iter().find(|reply| matches!(reply, StressReply::Error(_))) {
            return Err(format!("node {node}: {error}"));
        }
    }
    Ok(())
}

/// Returns the slots of still keys.
fn slots_of(group: &Group, numbers: &[usize]) -> Result<Vec<u16>, String> {
    let ask = |number: &usize| words(&["CLUSTER", "KEYSLOT", &still_key(*number)]);
    let replies = group.pipeline_all(0, &numbers.iter().map(ask).collect::<Vec<_>>())?;
    let slot = |reply: &StressReply| reply.text().parse().map_err(|_| format!("no slot: {reply:?}"));
    replies.iter().map(slot).collect()
}

/// The primaries and their ranges of slots, as node 0 knows them.
struct Owners {
    ranges: Vec<([u16; 2], usize)>,
}

impl Owners {
    fn read(group: &Group) -> Result<Self, String> {
        let reply = group.call(0, "CLUSTER SLOTS")?;
        let range = |range: &StressReply| {
            let [first, last, primary, ..] = range.items() else {
                return Err(format!("CLUSTER SLOTS was answered by {reply:?}"));
            };
            let number = |item: &StressReply| item.text().parse::<u16>().map_err(|error| error.to_string());
            let [host, port, ..] = primary.items() else {
                return Err(format!("CLUSTER SLOTS was answered by {reply:?}"));
            };
            let address = format!("{}:{}", host.text(), port.text());
            let address = address.parse().map_err(|_| format!("no address: {address}"))?;
            Ok(([number(first)?, number(last)?], group.node_at(address)?))
        };
        Ok(Self {
            ranges: reply.items().iter().map(range).collect::<Result<_, _>>()?,
        })
    }

    fn of(&self, slot: u16) -> Result<usize, String> {
        let found = self
            .ranges
            .iter()
            .find(|([first, last], _)| (*first..=*last).contains(&slot));
        found
            .map(|(_, node)| *node)
            .ok_or_else(|| format!("slot {slot} has no owner"))
    }
}

/// Chooses up to three moves from different primaries.
fn choose_moves(group: &Group, rng: &mut Rng, owners: &Owners) -> Result<Vec<SlotMove>, String> {
    let mut moves: Vec<SlotMove> = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let chosen = choose_move(group, rng, owners)?;
        if moves.iter().all(|other| other.source != chosen.source) {
            moves.push(chosen);
        }
    }
    Ok(moves)
}

/// Chooses ranges of slots of one primary, often with the slot of a tag, and another primary.
fn choose_move(group: &Group, rng: &mut Rng, owners: &Owners) -> Result<SlotMove, String> {
    let tag_slot = rng.u8(..4) != 0;
    let (_, slot) = group.tags[rng.usize(..group.tags.len())];
    let slot = if tag_slot { slot } else { rng.u16(..16384) };
    let source = owners.of(slot)?;
    let mut ranges = Vec::new();
    let of_source = owners.ranges.iter().filter(|(_, node)| *node == source);
    for ([first, last], _) in of_source {
        if (*first..=*last).contains(&slot) {
            let before = rng.u16(..=(slot - first).min(400));
            let after = rng.u16(..=(last - slot).min(400));
            ranges.push([slot - before, slot + after]);
        } else if ranges.len() < 4 && rng.u8(..3) == 0 {
            let begin = rng.u16(*first..=*last);
            ranges.push([begin, rng.u16(begin..=(*last).min(begin + 200))]);
        }
    }
    let others: Vec<usize> = (0..group.servers.len())
        .filter(|node| *node != source && owners.ranges.iter().any(|(_, owner)| owner == node))
        .collect();
    let target = *rng.choice(&others).ok_or("there is only one primary")?;
    Ok(SlotMove { ranges, source, target })
}

/// Moves slots, interrupts that if it is said so, and waits until all nodes agree about the end. Returns the number of
/// migrations.
fn move_slots(group: &mut Group, rng: &mut Rng, interruption: Interruption) -> Result<u64, String> {
    heal(group)?;
    let owners = Owners::read(group)?;
    let moves = choose_moves(group, rng, &owners)?;
    let replicas = group.shards()?;
    let replica_of = |node: usize| replicas.get(&node).and_then(|replicas| replicas.first().copied());
    if interruption == Interruption::Kill {
        // What the target has just taken over is not on its replica yet, so neither end is killed at that moment.
        prevent_pauses(group, &moves, true)?;
        set_short_node_timeout(group)?;
    }
    for moved in &moves {
        begin(group, moved)?;
    }
    std::thread::sleep(Duration::from_millis(rng.u64(0..200)));
    let end = if rng.bool() { moves[0].source } else { moves[0].target };
    let replica = replica_of(end).ok_or_else(|| format!("node {end} has no replica: {replicas:?}"))?;
    match interruption {
        Interruption::None => heal_despite_crashes(group)?,
        Interruption::Failover => {
            let fail_over = |group: &mut Group| {
                promote(group, replica, "CLUSTER FAILOVER")?;
                heal(group)
            };
            if has_valkey_crashed(group, fail_over)? {
                heal(group)?;
            }
        }
        Interruption::Restart => {
            let node = if rng.u8(..4) == 0 { replica } else { end };
            restart(group, rng, node)?;
            heal_despite_crashes(group)?;
        }
        Interruption::Kill => {
            kill(group, rng, end, replica)?;
            prevent_pauses(group, &moves, false)?;
            heal_despite_crashes(group)?;
        }
    }
    for moved in &moves {
        count_end(group, moved, interruption)?;
    }
    Ok(moves.len() as u64)
}

/// Waits as [`heal`] does. A Valkey that ends itself meanwhile is started again.
fn heal_despite_crashes(group: &mut Group) -> Result<(), String> {
    match has_valkey_crashed(group, heal)? {
        true => heal(group),
        false => Ok(()),
    }
}

/// Does a step that waits. If a Valkey has ended itself meanwhile, it is started again, and `true` is returned,
/// whatever the step has come to. A primary of Valkey may fail an assertion in `propagateNow` when it hands over to its
/// replica (Valkey's issue 1921), or when an import fails while it pauses writes for the end of an export.
fn has_valkey_crashed(group: &mut Group, step: impl FnOnce(&mut Group) -> Result<(), String>) -> Result<bool, String> {
    let result = step(group);
    let mut ended = group.ended_nodes();
    let deadline = Instant::now() + REPORT_BOUND;
    // One that closes its connections may still be writing its report.
    while result.is_err() && ended.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        ended = group.ended_nodes();
    }
    if ended.is_empty() || ended.iter().any(|node| kind(group, *node) == "Weft") {
        return result.map(|()| false);
    }
    for node in ended {
        let lines = group.servers[node].crash_lines().join("; ");
        group.router.set_unavailable(group.address(node));
        group.restart(node)?;
        let what = format!("Valkeys that have ended themselves ({lines})");
        *group.counts.entry(what).or_default() += 1;
    }
    Ok(true)
}

/// Keeps sources from pausing writes, without which no migration ends, or lets them do so again.
fn prevent_pauses(group: &Group, moves: &[SlotMove], is_prevented: bool) -> Result<(), String> {
    for moved in moves {
        let command = format!("DEBUG SLOTMIGRATION PREVENT-PAUSE {}", u8::from(is_prevented));
        group.expect_ok(moved.source, &command)?;
    }
    Ok(())
}

fn begin(group: &Group, moved: &SlotMove) -> Result<(), String> {
    let id = group.call(moved.target, "CLUSTER MYID")?.text();
    let mut command = words(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"]);
    command.extend(moved.ranges.as_flattened().iter().map(u16::to_string));
    command.extend(words(&["NODE", &id]));
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    match group.call_words(moved.source, &command)? {
        StressReply::Simple(text) if text == "OK" => Ok(()),
        other => Err(format!("node {}: {command:?} was answered by {other:?}", moved.source)),
    }
}

/// Kills a node, and starts it again before another one can take its place.
fn restart(group: &mut Group, rng: &mut Rng, node: usize) -> Result<(), String> {
    group.kill(node)?;
    std::thread::sleep(Duration::from_millis(rng.u64(0..600)));
    group.restart(node)
}

/// Kills a primary, and starts it again when its replica has been elected.
fn kill(group: &mut Group, rng: &mut Rng, primary: usize, replica: usize) -> Result<(), String> {
    group.kill(primary)?;
    let result = group.wait_until("the replica is elected", |group| {
        Ok(group.role(replica)? == NodeRole::Primary)
    });
    std::thread::sleep(Duration::from_millis(rng.u64(0..600)));
    group.restart(primary)?;
    result?;
    wait_for_promotion(group, replica)
}

/// Counts a migration as done or not done. Its slots must have one owner, at one of its ends.
fn count_end(group: &mut Group, moved: &SlotMove, interruption: Interruption) -> Result<(), String> {
    let owners = Owners::read(group)?;
    let shard = |node: usize| node % PRIMARIES;
    let mut found: Vec<usize> = Vec::new();
    for [first, last] in &moved.ranges {
        for slot in *first..=*last {
            found.push(shard(owners.of(slot)?));
        }
    }
    found.dedup();
    let direction = format!("{} to {}", kind(group, moved.source), kind(group, moved.target));
    let end = match found.as_slice() {
        [one] if *one == shard(moved.target) => "moved",
        [one] if *one == shard(moved.source) => "not moved",
        _ => return Err(format!("{:?} belong to the shards {found:?}", moved.ranges)),
    };
    if end == "not moved" && interruption == Interruption::None && direction == "Weft to Weft" {
        let jobs = group.call(moved.source, "CLUSTER GETSLOTMIGRATIONS")?;
        return Err(format!("{:?} were not moved: {jobs:?}", moved.ranges));
    }
    *group.counts.entry(format!("{direction}, {end}")).or_default() += 1;
    Ok(())
}

/// Waits until every migration has ended, the cluster is whole, and each key is on one primary. Checks some of the
/// still keys.
pub fn heal(group: &mut Group) -> Result<(), String> {
    set_long_node_timeout(group)?;
    group.wait_until("every slot migration has ended", |group| {
        for node in 0..group.servers.len() {
            let reply = group.call(node, "CLUSTER GETSLOTMIGRATIONS")?;
            let StressReply::Array(jobs) = &reply else {
                return Err(format!("node {node}: {reply:?}"));
            };
            if let Some(job) = jobs.iter().find(|job| !has_ended(job)) {
                return Err(format!("node {node}: {job:?}"));
            }
        }
        Ok(true)
    })?;
    wait_until_whole(group)?;
    group.wait_until("each key is on its primary only", |group| {
        check_places(group).map(|()| true)
    })?;
    check_still_keys(group)
}

fn has_ended(job: &StressReply) -> bool {
    let is_state = |pair: &[StressReply]| pair[0].text() == "state" && END_STATES.contains(&&*pair[1].text());
    job.items().as_chunks::<2>().0.iter().any(|pair| is_state(pair))
}

/// Checks that no key is on two primaries, that every still key is on one, and that nothing is hidden.
fn check_places(group: &Group) -> Result<(), String> {
    let owners = Owners::read(group)?;
    let mut places: HashMap<String, usize> = HashMap::new();
    for node in group.shards()?.into_keys() {
        for key in group.call(node, "KEYS *")?.items() {
            if let Some(other) = places.insert(key.text(), node) {
                return Err(format!("{} is on the nodes {other} and {node}", key.text()));
            }
        }
    }
    if let Some(missing) = (0..STILL_KEYS).map(still_key).find(|key| !places.contains_key(key)) {
        return Err(format!("{missing} is lost"));
    }
    for node in 0..group.servers.len() {
        for (tag, slot) in &group.tags {
            let count = group.call(node, &format!("CLUSTER COUNTKEYSINSLOT {slot}"))?;
            if count != StressReply::Integer(0) && owners.of(*slot)? % PRIMARIES != node % PRIMARIES {
                return Err(format!("node {node} has {count:?} keys with {tag}"));
            }
        }
    }
    Ok(())
}

fn check_still_keys(group: &Group) -> Result<(), String> {
    let owners = Owners::read(group)?;
    let numbers: Vec<usize> = (0..READ_KEYS).map(|_| fastrand::usize(..STILL_KEYS)).collect();
    let mut by_owner: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, slot) in numbers.iter().zip(slots_of(group, &numbers)?) {
        by_owner.entry(owners.of(slot)?).or_default().push(*number);
    }
    for (node, numbers) in by_owner {
        let read = |number: &usize| match is_large(*number) {
            true => words(&["HLEN", &still_key(*number)]),
            false => words(&["GET", &still_key(*number)]),
        };
        let replies = group.pipeline_all(node, &numbers.iter().map(read).collect::<Vec<_>>())?;
        for (number, reply) in numbers.iter().zip(replies) {
            let expected = match is_large(*number) {
                true => LARGE_FIELDS.to_string(),
                false => still_value(*number),
            };
            if reply.text() != expected {
                return Err(format!("node {node}: {} is {reply:?}", still_key(*number)));
            }
        }
    }
    Ok(())
}

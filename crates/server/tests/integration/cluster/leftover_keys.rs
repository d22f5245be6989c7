//! Tests slots that come back to a node while it still deletes the keys that were left in them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, fail_over_to, weft_with};
use super::migration::job;
use super::wait_until;
use crate::harness::client::Client;
use crate::harness::server::Server;

/// The number of slots whose keys are deleted before those of the slot that comes back.
const SLOTS_BEFORE: usize = 25;
/// The numbers of keys per slot with which the test is tried until the deletion lasts long enough.
const KEYS_PER_SLOT: [usize; 3] = [20_000, 80_000, 320_000];

/// A slot of the first node, and a hash tag of it.
struct TaggedSlot {
    slot: String,
    tag: String,
}

/// Returns slots of the first node in ascending order. Keys are deleted in this order.
fn find_slots(node: &mut Node) -> Vec<TaggedSlot> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut number = 0;
    while found.len() <= SLOTS_BEFORE {
        let tag = format!("{{t{number}}}");
        number += 1;
        let slot: usize = node.call(&["CLUSTER", "KEYSLOT", &tag]).parse().expect("a number");
        if slot <= 5460 && found.iter().all(|(other, _)| *other != slot) {
            found.push((slot, tag));
        }
    }
    found.sort();
    let tagged = |(slot, tag): (usize, String)| TaggedSlot {
        slot: slot.to_string(),
        tag,
    };
    found.into_iter().map(tagged).collect()
}

fn set_slot(node: &mut Node, slot: &str, change: &str, id: &str) {
    assert_eq!(node.call(&["CLUSTER", "SETSLOT", slot, change, id]), "OK");
}

/// Moves slots from the first to the second node, which knows nothing of their keys. The first node hears of all of
/// them at once. `meanwhile` runs before that.
fn take_slots(nodes: &mut [Node], before: &[TaggedSlot], last: &TaggedSlot, meanwhile: impl FnOnce(&mut Node)) {
    let [first, second] = [nodes[0].id.clone(), nodes[1].id.clone()];
    nodes[0].server().signal(Signal::SIGSTOP);
    for (change, id) in [("IMPORTING", &first), ("NODE", &second)] {
        for TaggedSlot { slot, .. } in before.iter().chain([last]) {
            set_slot(&mut nodes[1], slot, change, id);
        }
    }
    meanwhile(&mut nodes[1]);
    nodes[0].server().signal(Signal::SIGCONT);
}

fn ask(client: &mut Client, words: &[&str]) -> String {
    assert_eq!(client.call(&["ASKING"]), "OK");
    client.call(words)
}

fn wait_until_deleted(node: &mut Node, slots: &[TaggedSlot]) {
    for TaggedSlot { slot, .. } in slots {
        wait_until("the keys are deleted", || {
            node.call(&["CLUSTER", "COUNTKEYSINSLOT", slot]) == "0"
        });
    }
}

/// Runs `story` with growing numbers of keys until it returns `true`: keys were still being deleted. It gets the nodes,
/// the slots that have keys to delete, and the slot whose keys are deleted last.
fn while_keys_are_deleted(replicas: usize, mut story: impl FnMut(&mut [Node], &[TaggedSlot], &TaggedSlot) -> bool) {
    let was_in_time = KEYS_PER_SLOT.into_iter().any(|keys| {
        let arguments = ["--appendonly", "yes", "--appendfsync", "no", "--save", ""];
        let mut nodes = weft_with(3 + replicas, &arguments);
        let slots = find_slots(&mut nodes[0]);
        let (last, before) = slots.split_last().expect("there are slots");
        for TaggedSlot { tag, .. } in before {
            assert_eq!(nodes[0].call(&["DEBUG", "POPULATE", &keys.to_string(), tag]), "OK");
        }
        assert_eq!(nodes[0].call(&["SET", &format!("{}old", last.tag), "value"]), "OK");
        story(&mut nodes, before, last)
    });
    assert!(was_in_time, "the keys were deleted too fast");
}

fn keys_left(node: &mut Node) -> usize {
    node.call(&["DBSIZE"]).parse().expect("a number")
}

/// Makes a slot come back with SETSLOT as soon as the node knows that it has lost it.
fn set_slot_when_lost(node: &mut Node, lost: &TaggedSlot, change: &str, id: &str) {
    let moved = format!("MOVED {} ", lost.slot);
    wait_until("the slot is lost", || {
        node.call(&["GET", &lost.tag]).starts_with(&moved)
    });
    set_slot(node, &lost.slot, change, id);
}

#[test]
fn keys_that_are_imported_into_a_lost_slot_stay() {
    while_keys_are_deleted(0, |nodes, before, last| {
        let second = nodes[1].id.clone();
        take_slots(nodes, before, last, |_| ());
        set_slot_when_lost(&mut nodes[0], last, "IMPORTING", &second);
        let mut client = Client::connect(nodes[0].port);
        let [old, new] = ["old", "new"].map(|name| format!("{}{name}", last.tag));
        assert_eq!(ask(&mut client, &["SET", &new, "value"]), "OK");
        assert_eq!(ask(&mut client, &["EXISTS", &old]), "0", "the keys of before are gone");
        let was_in_time = keys_left(&mut nodes[0]) > 1;
        wait_until_deleted(&mut nodes[0], before);
        assert_eq!(ask(&mut client, &["GET", &new]), "value");
        assert_eq!(keys_left(&mut nodes[0]), 1);
        was_in_time
    });
}

#[test]
fn a_promoted_replica_keeps_the_keys_that_its_primary_imported_into_a_lost_slot() {
    while_keys_are_deleted(1, |nodes, before, last| {
        let second = nodes[1].id.clone();
        take_slots(nodes, before, last, |_| ());
        set_slot_when_lost(&mut nodes[0], last, "IMPORTING", &second);
        let mut client = Client::connect(nodes[0].port);
        let new = format!("{}new", last.tag);
        assert_eq!(ask(&mut client, &["SET", &new, "value"]), "OK");
        let was_in_time = keys_left(&mut nodes[0]) > 1;
        assert_eq!(client.call(&["WAIT", "1", "60000"]), "1");
        assert_eq!(nodes[3].call(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
        wait_until("the replica is a primary", || nodes[3].is_primary());
        wait_until_deleted(&mut nodes[3], before);
        let mut client = Client::connect(nodes[3].port);
        assert_eq!(ask(&mut client, &["GET", &new]), "value");
        assert_eq!(keys_left(&mut nodes[3]), 1);
        was_in_time
    });
}

#[test]
fn a_slot_that_is_assigned_again_is_empty_and_keeps_what_is_written() {
    while_keys_are_deleted(0, |nodes, before, last| {
        let first = nodes[0].id.clone();
        // The second node does not claim the slot any more.
        let give_back = |node: &mut Node| set_slot(node, &last.slot, "NODE", &first);
        take_slots(nodes, before, last, give_back);
        set_slot_when_lost(&mut nodes[0], last, "NODE", &first);
        let [old, new] = ["old", "new"].map(|name| format!("{}{name}", last.tag));
        assert_eq!(nodes[0].call(&["EXISTS", &old]), "0", "the keys of before are gone");
        assert_eq!(nodes[0].call(&["SET", &new, "value"]), "OK");
        let was_in_time = keys_left(&mut nodes[0]) > 1;
        wait_until_deleted(&mut nodes[0], before);
        assert_eq!(nodes[0].call(&["GET", &new]), "value");
        assert_eq!(keys_left(&mut nodes[0]), 1);
        was_in_time
    });
}

#[test]
fn a_slot_that_comes_back_as_a_whole_keeps_its_keys() {
    while_keys_are_deleted(0, |nodes, before, last| {
        let first = nodes[0].id.clone();
        let [old, moved] = ["old", "moved"].map(|name| format!("{}{name}", last.tag));
        take_slots(nodes, before, last, |node| {
            assert_eq!(node.call(&["SET", &moved, "value"]), "OK");
        });
        let migrate = [
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            &last.slot,
            &last.slot,
            "NODE",
            &first,
        ];
        // The first node may not have heard yet that it has lost the slot, and refuses it.
        wait_until("the slot comes back", || {
            assert_eq!(nodes[1].call(&migrate), "OK");
            wait_until("the job ends", || {
                ["success", "failed"].contains(&&*job(&mut nodes[1], "state"))
            });
            job(&mut nodes[1], "state") == "success"
        });
        let was_in_time = keys_left(&mut nodes[0]) > 1;
        wait_until_deleted(&mut nodes[0], before);
        wait_until("the first node has the slot", || {
            nodes[0].call(&["GET", &moved]) == "value"
        });
        assert_eq!(nodes[0].call(&["EXISTS", &old]), "0");
        was_in_time
    });
}

/// As tools send this to every node. The slot can get no keys here.
#[test]
fn a_slot_that_is_assigned_to_its_new_owner_is_emptied_in_its_turn() {
    while_keys_are_deleted(0, |nodes, before, last| {
        let second = nodes[1].id.clone();
        take_slots(nodes, before, last, |_| ());
        set_slot_when_lost(&mut nodes[0], last, "NODE", &second);
        let count = ["CLUSTER", "COUNTKEYSINSLOT", &last.slot];
        let left = nodes[0].call(&count);
        let was_in_time = keys_left(&mut nodes[0]) > 1;
        wait_until_deleted(&mut nodes[0], before);
        wait_until("the keys are deleted", || nodes[0].call(&count) == "0");
        assert!(!was_in_time || left == "1", "it waits for the others");
        was_in_time
    });
}

/// Reads until a request to restore a key has begun.
fn read_restore(link: &mut BufReader<TcpStream>) {
    let mut line = Vec::new();
    while !line.starts_with(b"RESTORE") {
        line.clear();
        link.read_until(b'\n', &mut line).expect("receives");
    }
}

/// Sends a key with MIGRATE from the node with this port to a target that does not answer yet. Returns the client that
/// waits and the target's end of the connection.
pub(super) fn begin_migrate(port: u16, key: &str) -> (Client, BufReader<TcpStream>) {
    let target = TcpListener::bind("127.0.0.1:0").expect("binds");
    let target_port = target.local_addr().expect("is bound").port().to_string();
    let mut sender = Client::connect(port);
    sender.send(&["MIGRATE", "127.0.0.1", &target_port, key, "0", "60000"]);
    let mut link = BufReader::new(target.accept().expect("accepts").0);
    read_restore(&mut link);
    (sender, link)
}

/// Answers the requests of [`begin_migrate`], and asserts that MIGRATE succeeds and sends nothing more.
pub(super) fn end_migrate(sender: &mut Client, mut link: BufReader<TcpStream>) {
    link.get_mut().write_all(b"+OK\r\n+OK\r\n").expect("sends");
    // A request to delete the key would be answered, and the answer of MIGRATE come after it.
    link.get_mut().write_all(b"+OK\r\n:1\r\n").expect("sends");
    assert_eq!(sender.answer(), "OK");
    let mut sent = Vec::new();
    link.get_mut()
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("sets a timeout");
    // It ends with the timeout.
    let _ = link.read_to_end(&mut sent);
    let sent = String::from_utf8_lossy(&sent);
    assert!(!sent.contains("DEL"), "{sent}");
}

/// Loses a slot whose key MIGRATE has sent to a target that answers late. The new owner may have changed the key by
/// then, so nothing more is sent. `meanwhile` gets the nodes and the slot before the answer, when the key is deleted
/// here.
fn lose_slot_during_migrate(meanwhile: impl FnOnce(&mut [Node], &str)) {
    let mut nodes = weft_with(3, &[]);
    let slots = find_slots(&mut nodes[0]);
    let (last, _) = slots.split_last().expect("there are slots");
    let key = format!("{}key", last.tag);
    let [first, second] = [nodes[0].id.clone(), nodes[1].id.clone()];
    assert_eq!(nodes[0].call(&["SET", &key, "value"]), "OK");
    set_slot(&mut nodes[0], &last.slot, "MIGRATING", &second);
    let (mut sender, link) = begin_migrate(nodes[0].port, &key);
    set_slot(&mut nodes[1], &last.slot, "IMPORTING", &first);
    set_slot(&mut nodes[1], &last.slot, "NODE", &second);
    wait_until("the key is deleted here", || {
        nodes[0].call(&["CLUSTER", "COUNTKEYSINSLOT", &last.slot]) == "0"
    });
    meanwhile(&mut nodes, &last.slot);
    end_migrate(&mut sender, link);
}

#[test]
fn the_end_of_migrate_leaves_the_key_of_a_lost_slot_to_the_new_owner() {
    lose_slot_during_migrate(|_, _| ());
}

#[test]
fn the_end_of_migrate_leaves_the_key_of_a_slot_that_is_imported_back_to_its_owner() {
    lose_slot_during_migrate(|nodes, slot| {
        let second = nodes[1].id.clone();
        set_slot(&mut nodes[0], slot, "IMPORTING", &second);
    });
}

/// The target may be the owner of the slot. Then clients use the key there as soon as the target has it.
#[test]
fn the_end_of_migrate_leaves_the_key_of_an_imported_slot_on_the_target() {
    let mut nodes = weft_with(3, &[]);
    let slots = find_slots(&mut nodes[0]);
    let (last, _) = slots.split_last().expect("there are slots");
    let (key, first) = (format!("{}key", last.tag), nodes[0].id.clone());
    set_slot(&mut nodes[1], &last.slot, "IMPORTING", &first);
    let mut client = Client::connect(nodes[1].port);
    assert_eq!(ask(&mut client, &["SET", &key, "value"]), "OK");
    let (mut sender, link) = begin_migrate(nodes[1].port, &key);
    assert_eq!(client.call(&["FLUSHALL"]), "OK");
    end_migrate(&mut sender, link);
}

/// The target may have executed the request before its connection broke, and its clients may have changed the key.
#[test]
fn migrate_does_not_repeat_a_request_for_a_slot_that_was_lost_meanwhile() {
    let mut nodes = weft_with(3, &[]);
    let slots = find_slots(&mut nodes[0]);
    let (last, _) = slots.split_last().expect("there are slots");
    let [one, two] = ["one", "two"].map(|name| format!("{}{name}", last.tag));
    for key in [&one, &two] {
        assert_eq!(nodes[0].call(&["SET", key, "value"]), "OK");
    }
    let target = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = target.local_addr().expect("is bound").port().to_string();
    let mut sender = Client::connect(nodes[0].port);
    sender.send(&["MIGRATE", "127.0.0.1", &port, &one, "0", "60000"]);
    let mut link = BufReader::new(target.accept().expect("accepts").0);
    read_restore(&mut link);
    link.get_mut().write_all(b"+OK\r\n+OK\r\n").expect("sends");
    assert_eq!(sender.answer(), "OK");
    // This one uses the same connection.
    sender.send(&["MIGRATE", "127.0.0.1", &port, &two, "0", "60000", "REPLACE"]);
    read_restore(&mut link);
    let [first, second] = [nodes[0].id.clone(), nodes[1].id.clone()];
    set_slot(&mut nodes[1], &last.slot, "IMPORTING", &first);
    set_slot(&mut nodes[1], &last.slot, "NODE", &second);
    let moved = format!("MOVED {} ", last.slot);
    wait_until("the slot is lost", || nodes[0].call(&["GET", &two]).starts_with(&moved));
    drop(link);
    let answer = sender.answer();
    assert!(answer.starts_with("IOERR "), "{answer}");
    target.set_nonblocking(true).expect("sets an option");
    assert!(target.accept().is_err(), "nothing is sent again");
}

/// Keys of slots of other nodes are deleted at the start, unless their slot had no claimant: they may be the only ones.
#[test]
fn keys_of_a_slot_without_claimant_outlast_a_restart() {
    for (lists, left) in [("", "0"), (" unclaimedSlots 3300 keptSlots 3300", "1")] {
        let mut server = Server::start_node(&["--appendonly", "yes", "--appendfsync", "always"]);
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        wait_until("the cluster is up", || client.call(&["SET", KEY, "value"]) == "OK");
        server.kill();
        let file = server.directory.join("nodes.conf");
        let text = std::fs::read_to_string(&file).expect("reads the file");
        let text = text.replace(" 0-16383", " 0-3299 3301-16383");
        let text = text.replace("lastVoteEpoch 0", &format!("lastVoteEpoch 0{lists}"));
        let owner = format!("{} 127.0.0.1:1@2 master - 0 0 1 connected 3300", "f".repeat(40));
        std::fs::write(&file, format!("{owner}\n{text}")).expect("writes the file");
        server.start_again();
        let mut client = Client::connect(server.port);
        let count = ["CLUSTER", "COUNTKEYSINSLOT", "3300"];
        wait_until("the data is loaded", || client.call(&count) == left);
    }
}

/// The keys that have come already may be the only ones, whoever owns the slot according to the file.
#[test]
fn keys_of_a_slot_that_is_being_imported_outlast_a_restart() {
    let (source, other) = ("f".repeat(40), "e".repeat(40));
    for slots in ["", " 3300"] {
        let mut server = Server::start_node(&["--appendonly", "yes", "--appendfsync", "always"]);
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        wait_until("the cluster is up", || client.call(&["SET", KEY, "value"]) == "OK");
        server.kill();
        let file = server.directory.join("nodes.conf");
        let text = std::fs::read_to_string(&file).expect("reads the file");
        let own = format!(" 0-3299 3301-16383 [3300-<-{source}]");
        let text = text.replace(" 0-16383", &own);
        let others = format!(
            "{source} 127.0.0.1:1@2 master - 0 0 1 connected\n\
             {other} 127.0.0.1:3@4 master - 0 0 1 connected{slots}\n"
        );
        std::fs::write(&file, format!("{others}{text}")).expect("writes the file");
        server.start_again();
        let mut client = Client::connect(server.port);
        let count = ["CLUSTER", "COUNTKEYSINSLOT", "3300"];
        wait_until("the data is loaded", || client.call(&count) == "1");
        let nodes = client.call(&["CLUSTER", "NODES"]);
        let mine = nodes.lines().find(|line| line.contains("myself"));
        assert!(mine.is_some_and(|line| line.ends_with(&own)), "{nodes}");
    }
}

/// A replica that takes over would not know of the deletion, and could not follow the old primary's stream any more.
#[test]
fn keys_of_a_lost_slot_stay_until_a_hand_over_has_ended() {
    /// The number of the type of messages that requests votes.
    const VOTE_REQUEST: &str = "5";
    let mut nodes = weft_with(4, &["--cluster-manual-failover-timeout", "60000"]);
    let slots = find_slots(&mut nodes[0]);
    let (last, _) = slots.split_last().expect("there are slots");
    assert_eq!(nodes[0].call(&["SET", &format!("{}old", last.tag), "value"]), "OK");
    let set_filter = |nodes: &mut [Node], filter: &str| {
        for node in nodes {
            assert_eq!(node.call(&["DEBUG", "DROP-CLUSTER-PACKET-FILTER", filter]), "OK");
        }
    };
    // The replica gets one vote, that of its primary.
    set_filter(&mut nodes[1..3], VOTE_REQUEST);
    assert_eq!(nodes[3].call(&["CLUSTER", "FAILOVER"]), "OK");
    nodes[0].client.wait_for_info("paused_reason", "failover_in_progress");
    let [first, second] = [nodes[0].id.clone(), nodes[1].id.clone()];
    set_slot(&mut nodes[1], &last.slot, "IMPORTING", &first);
    set_slot(&mut nodes[1], &last.slot, "NODE", &second);
    let moved = format!("MOVED {} ", last.slot);
    let count = ["CLUSTER", "COUNTKEYSINSLOT", &last.slot];
    wait_until("the slot is lost", || {
        nodes[0].call(&["GET", &last.tag]).starts_with(&moved)
    });
    thread::sleep(Duration::from_millis(500));
    assert_eq!(nodes[0].client.info("paused_reason"), "failover_in_progress");
    assert_eq!(nodes[0].call(&count), "1", "it waits");
    set_filter(&mut nodes[1..3], "-1");
    fail_over_to(&mut nodes[3]);
    for node in [0, 3] {
        wait_until("the keys are deleted", || nodes[node].call(&count) == "0");
    }
}

//! Tests the slots of a shard: their statistics, and how replicas learn of migrating slots.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, fail_over_to, weft, weft_with};
use super::{LONG_NODE_TIMEOUT_MS, SHORT_NODE_TIMEOUT_MS, is_up, set_node_timeout, wait_until};
use crate::harness::client::Client;
use crate::harness::server::Server;

/// The slot of [`KEY`].
const SLOT: &str = "3300";

/// Returns the statistics of the slot of [`KEY`] on one line.
fn figures(client: &mut Client) -> String {
    client.call(&["CLUSTER", "SLOT-STATS", "SLOTSRANGE", SLOT, SLOT])
}

/// Returns one figure by its name.
fn figure(client: &mut Client, name: &str) -> u64 {
    let all = figures(client).replace(['(', ')'], " ");
    let words: Vec<&str> = all.split_whitespace().collect();
    let at = words.iter().position(|word| *word == name).expect("is told");
    words[at + 1].parse().expect("a number")
}

/// Returns the bytes received and sent.
fn bytes(node: &mut Node) -> (u64, u64) {
    let client = &mut node.client;
    (figure(client, "network-bytes-in"), figure(client, "network-bytes-out"))
}

fn set_slot_stats(nodes: &mut [Node], on: &str) {
    for node in nodes {
        assert_eq!(node.call(&["CONFIG", "SET", "cluster-slot-stats-enabled", on]), "OK");
    }
}

fn reset(nodes: &mut [Node]) {
    for node in nodes {
        assert_eq!(node.call(&["CONFIG", "RESETSTAT"]), "OK");
    }
}

#[test]
fn resetstat_resets_the_statistics_of_the_bus() {
    const MESSAGES: u64 = 50;
    let mut nodes = weft(4);
    let figure_of = |node: &mut Node, name: &str| -> u64 {
        let info = node.call(&["CLUSTER", "INFO"]);
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).expect("a number")
    };
    let figures = ["cluster_stats_messages_sent", "cluster_stats_messages_received"];
    for name in figures {
        wait_until(name, || figure_of(&mut nodes[0], name) > MESSAGES);
    }
    reset(&mut nodes);
    for name in figures {
        let messages = figure_of(&mut nodes[0], name);
        assert!(messages < MESSAGES, "{name}: {messages}");
    }
}

#[test]
fn slot_statistics_cover_a_primary_and_its_replica() {
    let mut nodes = weft(4);
    assert!(!figures(&mut nodes[0].client).contains("cpu-usec"));
    set_slot_stats(&mut nodes, "yes");
    let settled = |nodes: &mut [Node], calls: &str| {
        wait_until("the replica repeats it", || {
            nodes[3].call(&["INFO", "commandstats"]).contains(calls)
        });
    };
    // *3 $3 set $3 {b} $5 value
    assert_eq!(nodes[0].call(&["set", KEY, "value"]), "OK");
    assert_eq!(bytes(&mut nodes[0]), (33, 5 + 33), "the replica gets the command too");
    settled(&mut nodes, "cmdstat_set:calls=1,");
    assert_eq!(bytes(&mut nodes[3]), (33, 0), "primaries are told nothing");
    assert_eq!(figure(&mut nodes[3].client, "key-count"), 1);
    reset(&mut nodes);
    assert_eq!(bytes(&mut nodes[0]), (0, 0));

    assert_eq!(nodes[0].call(&["MULTI"]), "OK");
    assert_eq!(nodes[0].call(&["set", KEY, "value"]), "QUEUED");
    assert_eq!(nodes[0].call(&["incr", "{b}1"]), "QUEUED");
    assert_eq!(nodes[0].call(&["exec"]), "(OK 1)");
    let incr = 24;
    // `*2` and OK, then both, then both once more.
    let replies = 9 + 13 + 13;
    let transaction = 15 + 33 + incr + 14;
    assert_eq!(bytes(&mut nodes[0]), (transaction, replies + transaction));
    settled(&mut nodes, "cmdstat_exec:calls=1,");
    assert_eq!(bytes(&mut nodes[3]), (transaction, 0));
    reset(&mut nodes);

    let replica = &mut nodes[3];
    assert_eq!(replica.call(&["READONLY"]), "OK");
    assert_eq!(replica.call(&["get", KEY]), "value");
    assert_eq!(bytes(replica), (22, 11), "clients of a replica cost it something");
    let mut listener = Client::connect(replica.port);
    assert_eq!(listener.call(&["ssubscribe", KEY]), "(ssubscribe {b} 1)");
    assert_eq!(bytes(replica), (22 + 30, 11 + 34));
    assert_eq!(nodes[0].call(&["spublish", KEY, "hello"]), "0");
    assert_eq!(listener.answer(), "(smessage {b} hello)");
    assert_eq!(bytes(&mut nodes[3]), (22 + 30, 11 + 34 + 38));
    assert_eq!(bytes(&mut nodes[0]), (38, 4));

    fail_over_to(&mut nodes[3]);
    assert_eq!(bytes(&mut nodes[3]), (0, 0), "a slot with another owner begins anew");
}

#[test]
fn slot_statistics_of_all_threads_add_up() {
    let server = Server::start_node(&["--io-threads", "4", "--cluster-slot-stats-enabled", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    wait_until("the cluster is up", || is_up(&mut client));
    let port = server.port;
    let writers: Vec<_> = (0..6)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for _ in 0..500 {
                    assert_eq!(client.call(&["set", KEY, "value"]), "OK");
                    assert_eq!(client.call(&["get", KEY]), "value");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().expect("ends well");
    }
    assert_eq!(figure(&mut client, "network-bytes-in"), 3000 * (33 + 22));
    assert_eq!(figure(&mut client, "network-bytes-out"), 3000 * (5 + 11));
    let stats = client.call(&["INFO", "commandstats"]);
    let time_of = |name: &str| -> u64 {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        let text = line.and_then(|line| line.split("usec=").nth(1)).expect("is told");
        text.split(',').next().expect("a word").parse().expect("a number")
    };
    let cost = figure(&mut client, "cpu-usec");
    assert_eq!(cost, time_of("set") + time_of("get"), "it is the commands' time");
    assert!(cost > 0);
}

#[test]
fn replicas_know_migrating_slots() {
    let mut nodes = weft(4);
    let (source, target) = (nodes[0].id.clone(), nodes[1].id.clone());
    assert_eq!(nodes[0].call(&["SET", "{b}2", "2"]), "OK");
    assert_eq!(
        nodes[0].call(&[
            "CLUSTER",
            "SETSLOT",
            SLOT,
            "MIGRATING",
            &target,
            "TIMEOUT",
            LONG_NODE_TIMEOUT_MS
        ]),
        "OK"
    );
    assert_eq!(nodes[1].call(&["CLUSTER", "SETSLOT", SLOT, "IMPORTING", &source]), "OK");
    let open = format!("[{SLOT}->-{target}]");
    assert_eq!(nodes[3].sees(&open), 1, "the replica was told first");
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", ports[0]);
    let ask = format!("ASK {SLOT} 127.0.0.1:{}", ports[1]);
    let unstable = "TRYAGAIN Multiple keys request during rehashing of slot";

    let replica = &mut nodes[3];
    assert_eq!(replica.call(&["GET", "{b}1"]), moved);
    assert_eq!(replica.call(&["READONLY"]), "OK");
    assert_eq!(replica.call(&["GET", "{b}1"]), ask);
    assert_eq!(replica.call(&["GET", "{b}2"]), "2");
    assert_eq!(replica.call(&["MGET", "{b}1", "{b}2"]), unstable);
    assert_eq!(replica.call(&["SET", "{b}2", "3"]), moved, "a replica takes no writes");
    assert_eq!(replica.call(&["READWRITE"]), "OK");

    // A replica that starts a full sync learns of the slot with the data.
    assert_eq!(replica.call(&["CLUSTER", "RESET"]), "OK");
    assert_eq!(replica.sees(&open), 0);
    let bus_port = nodes[0].bus_port.clone();
    let port = ports[0].to_string();
    let replica = &mut nodes[3];
    assert_eq!(replica.call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]), "OK");
    wait_until("it knows the others", || replica.sees(" connected") == 4);
    assert_eq!(replica.call(&["CLUSTER", "REPLICATE", &source]), "OK");
    wait_until("it knows of the slot", || replica.sees(&open) == 1);

    // So it continues the migration after taking over, and the target learns the new source.
    wait_until("it follows", || replica.follows(ports[0]));
    let id = replica.id.clone();
    fail_over_to(replica);
    assert_eq!(replica.call(&["GET", "{b}1"]), ask);
    wait_until("the target learns where the slot comes from", || {
        nodes[1].sees(&format!("[{SLOT}-<-{id}]")) == 1
    });
}

#[test]
fn commands_of_a_migrating_slot_see_the_keys_of_their_own_database() {
    let mut nodes = weft_with(3, &["--cluster-databases", "4"]);
    let (source, target) = (nodes[0].id.clone(), nodes[1].id.clone());
    for (db, key) in [("0", "{b}1"), ("0", "{b}2"), ("1", "{b}3")] {
        assert_eq!(nodes[0].call(&["SELECT", db]), "OK");
        assert_eq!(nodes[0].call(&["SET", key, "value"]), "OK");
    }
    assert_eq!(nodes[1].call(&["CLUSTER", "SETSLOT", SLOT, "IMPORTING", &source]), "OK");
    assert_eq!(nodes[0].call(&["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &target]), "OK");
    let unstable = "TRYAGAIN Multiple keys request during rehashing of slot";
    let mut exec = |requests: &[&[&str]]| {
        assert_eq!(nodes[0].call(&["SELECT", "0"]), "OK");
        assert_eq!(nodes[0].call(&["MULTI"]), "OK");
        for request in requests {
            assert_eq!(nodes[0].call(request), "QUEUED");
        }
        nodes[0].call(&["EXEC"])
    };
    let (first, third): (&[&str], &[&str]) = (&["EXISTS", "{b}1"], &["EXISTS", "{b}3"]);
    assert_eq!(exec(&[first, &["SELECT", "1"], third]), "(1 OK 1)");
    assert_eq!(exec(&[&["SELECT", "99"], first]), "(ERR DB index is out of range 1)");
    assert_eq!(exec(&[first, third]), unstable, "the key is in another database");
    assert_eq!(exec(&[first, &["SELECT", "2"], third]), unstable);
    assert_eq!(
        nodes[0].call(&["GET", "{b}1"]),
        "value",
        "the database is selected by a transaction that runs"
    );

    for request in [
        &["MOVE", "{b}1", "2"][..],
        &["COPY", "{b}1", "{b}1", "DB", "2"],
        &["COPY", "{b}1", "{b}2", "REPLACE", "DB", "2"],
        &["COPY", "{b}1", "{b}9"],
    ] {
        assert_eq!(nodes[0].call(request), unstable, "{request:?}");
    }
    assert_eq!(nodes[0].call(&["COPY", "{b}1", "{b}2", "DB", "0", "REPLACE"]), "1");
    let script = "return redis.call('MOVE', KEYS[1], 2)";
    let refused = nodes[0].call(&["EVAL", script, "1", "{b}1"]);
    assert!(refused.contains("Attempted to access a non local key"), "{refused}");
    assert_eq!(nodes[1].call(&["MOVE", "{b}1", "2"]), unstable);
    assert_eq!(nodes[0].call(&["MULTI"]), "OK");
    assert_eq!(nodes[0].call(&["MOVE", "{b}1", "2"]), unstable);
    assert!(nodes[0].call(&["EXEC"]).starts_with("EXECABORT"));
}

#[test]
fn a_primary_without_slots_replicates_the_new_owner() {
    let mut nodes = weft(4);
    let target = nodes[1].id.clone();
    let port = nodes[1].port;
    for node in &mut nodes[..2] {
        for slot in ["5459", "5460"] {
            assert_eq!(
                node.call(&[
                    "CLUSTER",
                    "SETSLOT",
                    slot,
                    "NODE",
                    &target,
                    "TIMEOUT",
                    LONG_NODE_TIMEOUT_MS
                ]),
                "OK"
            );
        }
    }
    assert!(nodes[0].is_primary(), "there are slots left");
    // All but the last; the other nodes need not know.
    let rest: Vec<String> = (1..5459).map(|slot| slot.to_string()).collect();
    for slots in rest.chunks(1000) {
        let mut words = vec!["CLUSTER", "DELSLOTS"];
        words.extend(slots.iter().map(String::as_str));
        assert_eq!(nodes[0].call(&words), "OK");
    }
    // The replica learns of it first, and may have left before it could acknowledge.
    let reply = nodes[0].call(&["CLUSTER", "SETSLOT", "0", "NODE", &target]);
    assert!(reply == "OK" || reply.starts_with("NOREPLICAS"), "{reply}");
    wait_until("the replica follows the new owner", || nodes[3].follows(port));
    if reply != "OK" {
        assert_eq!(
            nodes[0].call(&[
                "CLUSTER",
                "SETSLOT",
                "0",
                "NODE",
                &target,
                "TIMEOUT",
                LONG_NODE_TIMEOUT_MS
            ]),
            "OK"
        );
    }
    wait_until("so does the old one", || nodes[0].follows(port));
    assert_eq!(nodes[0].sees("myself,slave"), 1);
}

#[test]
fn setslot_waiting_for_replicas_blocks_no_other_client() {
    let mut nodes = weft(4);
    let target = nodes[1].id.clone();
    nodes[3].server().signal(Signal::SIGSTOP);
    let mut movers: Vec<Client> = (0..4).map(|_| Client::connect(nodes[0].port)).collect();
    let mut is_served_meanwhile = |timeout_ms: u64| {
        let start = Instant::now();
        for (slot, mover) in movers.iter_mut().enumerate() {
            let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &target, "TIMEOUT"];
            mover.send(&[&words[..], &[&timeout_ms.to_string()]].concat());
        }
        wait_until("they wait", || {
            let clients = nodes[0].call(&["CLIENT", "LIST"]);
            clients.matches("cmd=cluster|setslot").count() == 4
        });
        // This command needs a background thread.
        assert_eq!(nodes[0].call(&["CONFIG", "SET", "maxmemory-samples", "7"]), "OK");
        let all_wait = movers.iter().all(is_unanswered);
        for mover in &mut movers {
            assert_eq!(mover.answer(), "NOREPLICAS Not enough good replicas to write.");
        }
        assert!(start.elapsed() >= Duration::from_millis(timeout_ms));
        all_wait
    };
    // On a busy machine their timeout may expire before the other command runs.
    let rounds = 1 + [1500, 6000, 24_000]
        .into_iter()
        .position(&mut is_served_meanwhile)
        .expect("somebody else is served before they are");
    assert_eq!(nodes[0].sees("->-"), 0, "nothing has changed");
    let figures = nodes[0].call(&["INFO", "commandstats"]);
    let (calls, failed) = (format!("calls={},", 4 * rounds), format!("failed_calls={}", 4 * rounds));
    assert!(
        figures
            .lines()
            .any(|line| line.starts_with(&format!("cmdstat_cluster|setslot:{calls}")) && line.contains(&failed)),
        "{figures}"
    );
    nodes[3].server().signal(Signal::SIGCONT);
    assert_eq!(
        nodes[0].call(&[
            "CLUSTER",
            "SETSLOT",
            "0",
            "MIGRATING",
            &target,
            "TIMEOUT",
            LONG_NODE_TIMEOUT_MS
        ]),
        "OK"
    );
    assert_eq!(nodes[3].sees(&format!("[0->-{target}]")), 1);
}

/// The replicas execute the command before their primary does.
#[test]
fn setslot_takes_effect_after_its_client_is_killed_or_loses_its_permission() {
    let mut nodes = weft(5);
    let target = nodes[1].id.clone();
    wait_until("the replicas are online", || {
        nodes[0].call(&["INFO", "replication"]).matches("state=online").count() == 2
    });
    let take_away: [(&str, &[&str]); 2] = [
        ("0", &["CLIENT", "KILL", "USER", "mover"]),
        ("1", &["ACL", "SETUSER", "mover", "-@all"]),
    ];
    for (slot, taking) in take_away {
        assert_eq!(
            nodes[0].call(&["ACL", "SETUSER", "mover", "on", "nopass", "+@all"]),
            "OK"
        );
        let mut mover = Client::connect(nodes[0].port);
        assert_eq!(mover.call(&["AUTH", "mover", "any"]), "OK");
        nodes[3].server().signal(Signal::SIGSTOP);
        // Nodes do not tell each other which slots are migrating.
        let words = ["CLUSTER", "SETSLOT", slot, "MIGRATING", &target, "TIMEOUT"];
        mover.send(&[&words[..], &[LONG_NODE_TIMEOUT_MS]].concat());
        let open = format!("[{slot}->-{target}]");
        wait_until("one replica has executed it", || nodes[4].sees(&open) == 1);
        assert!(is_unanswered(&mover));
        assert_ne!(nodes[0].call(taking), "0");
        nodes[3].server().signal(Signal::SIGCONT);
        for node in [0, 3] {
            wait_until("the node has executed it", || nodes[node].sees(&open) == 1);
        }
    }
}

/// The replicas have executed the command, so this node must not refuse it because of a migration that begins later.
#[test]
fn no_migration_of_whole_slots_begins_between_setslot_and_its_effect() {
    let mut nodes = weft(5);
    let target = nodes[1].id.clone();
    wait_until("the replicas are online", || {
        nodes[0].call(&["INFO", "replication"]).matches("state=online").count() == 2
    });
    nodes[3].server().signal(Signal::SIGSTOP);
    let mut mover = Client::connect(nodes[0].port);
    let words = ["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &target, "TIMEOUT"];
    mover.send(&[&words[..], &[LONG_NODE_TIMEOUT_MS]].concat());
    let open = format!("[{SLOT}->-{target}]");
    wait_until("one replica has executed it", || nodes[4].sees(&open) == 1);
    let refused = "ERR A CLUSTER SETSLOT has not taken effect yet on this node.";
    let export = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "1", "1", "NODE", &target];
    assert_eq!(nodes[0].call(&export), refused);
    let name = "0".repeat(40);
    let import = ["CLUSTER", "SYNCSLOTS", "ESTABLISH", "SOURCE", &target, "NAME", &name];
    assert_eq!(
        nodes[0].call(&[&import[..], &["SLOTSRANGE", "6000", "6000"]].concat()),
        refused
    );
    assert!(is_unanswered(&mover));
    nodes[3].server().signal(Signal::SIGCONT);
    assert_eq!(mover.answer(), "OK");
    for node in [0, 3] {
        wait_until("the node has executed it", || nodes[node].sees(&open) == 1);
    }
    let stable = ["CLUSTER", "SETSLOT", SLOT, "STABLE", "TIMEOUT", LONG_NODE_TIMEOUT_MS];
    assert_eq!(nodes[0].call(&stable), "OK");
    assert_eq!(nodes[0].call(&export), "OK");
}

/// One replica does not acknowledge the command, which would wait for ever.
#[test]
fn setslot_without_a_timeout_ends_when_its_client_has_gone() {
    let mut nodes = weft(5);
    let target = nodes[1].id.clone();
    wait_until("the replicas are online", || {
        nodes[0].call(&["INFO", "replication"]).matches("state=online").count() == 2
    });
    nodes[3].server().signal(Signal::SIGSTOP);
    let mut mover = Client::connect(nodes[0].port);
    mover.send(&["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &target, "TIMEOUT", "0"]);
    let open = format!("[{SLOT}->-{target}]");
    wait_until("one replica has executed it", || nodes[4].sees(&open) == 1);
    let export = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "1", "1", "NODE", &target];
    let refused = "ERR A CLUSTER SETSLOT has not taken effect yet on this node.";
    assert_eq!(nodes[0].call(&export), refused);
    assert!(is_unanswered(&mover));
    drop(mover);
    wait_until("slots may move as a whole", || {
        let answer = nodes[0].call(&export);
        assert!(answer == "OK" || answer == refused, "{answer}");
        answer == "OK"
    });
    assert_eq!(nodes[0].sees(&open), 0, "it has not taken effect");
    nodes[3].server().signal(Signal::SIGCONT);
}

/// Returns `true` if no reply has arrived.
fn is_unanswered(client: &Client) -> bool {
    let stream = client.0.get_ref();
    stream.set_nonblocking(true).expect("sets an option");
    let seen = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("sets an option");
    seen.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_sleeping_node_is_marked_as_failing() {
    let mut nodes = weft(3);
    let sleeping = nodes[2].id.clone();
    let is_marked = |node: &mut Node| {
        let lines = node.call(&["CLUSTER", "NODES"]);
        lines
            .lines()
            .any(|line| line.starts_with(&sleeping) && line.contains("master,fail "))
    };
    let mut sleeper = Client::connect(nodes[2].port);
    nodes[..2]
        .iter_mut()
        .for_each(|node| set_node_timeout(&mut node.client, SHORT_NODE_TIMEOUT_MS));
    // A busy machine may need longer to notice the failure.
    let is_noticed = |seconds: &str| {
        sleeper.send(&["DEBUG", "SLEEP", seconds]);
        let noticed = nodes[..2].iter_mut().all(|node| {
            while is_unanswered(&sleeper) && !is_marked(node) {
                thread::sleep(Duration::from_millis(20));
            }
            is_marked(node)
        });
        assert_eq!(sleeper.answer(), "OK");
        noticed
    };
    assert!(["6", "20", "60"].into_iter().any(is_noticed), "it is marked as failing");
    for node in &mut nodes[..2] {
        wait_until("it is back", || !is_marked(node));
    }
}

/// Returns the next cursor and the keys of a call of CLUSTERSCAN.
fn cluster_scan(client: &mut Client, words: &[&str]) -> (String, Vec<String>) {
    let reply = client.call(&[&["CLUSTERSCAN"], words].concat());
    let mut parts = reply.trim_matches(['(', ')']).split([' ', '(']);
    let cursor = parts.next().expect("a cursor").to_owned();
    (cursor, parts.filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

/// Scans all slots with these options, and returns the keys in their order.
fn scan_all(client: &mut Client, options: &[&str]) -> Vec<String> {
    let mut cursor = "0".to_owned();
    let mut all = Vec::new();
    loop {
        let (next, keys) = cluster_scan(client, &[&[cursor.as_str()], options].concat());
        all.extend(keys);
        if next == "0" {
            all.sort();
            return all;
        }
        cursor = next;
    }
}

#[test]
fn a_scan_of_the_cluster_finds_all_keys_with_every_count() {
    let server = Server::start_node(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    wait_until("the cluster is up", || is_up(&mut client));
    let mut expected: Vec<String> = (0..3000).map(|number| format!("key:{number}")).collect();
    expected.extend((0..200).map(|number| format!("{{x}}:{number}")));
    for key in &expected {
        assert_eq!(client.call(&["SET", key, "value"]), "OK");
    }
    expected.sort();
    // A large count runs on a background thread.
    for count in ["7", "1000", "5000"] {
        assert!(scan_all(&mut client, &["COUNT", count]) == expected, "COUNT {count}");
    }
    let of_slot: Vec<String> = expected.iter().filter(|key| key.starts_with("{x}")).cloned().collect();
    assert_eq!(scan_all(&mut client, &["MATCH", "{x}*", "COUNT", "20"]), of_slot);
    // A position counts only with the fingerprint of this node.
    let (cursor, first) = cluster_scan(&mut client, &["0-{x}-0", "COUNT", "20", "SLOT", "16287"]);
    let (_, second) = cluster_scan(&mut client, &[&cursor, "COUNT", "20", "SLOT", "16287"]);
    assert!(first.iter().all(|key| !second.contains(key)));
    let (fingerprint, position) = cursor.split_once('-').expect("a fingerprint");
    assert_eq!(fingerprint.len(), 6);
    for other in ["0", "000000"] {
        let cursor = format!("{other}-{position}");
        let (_, again) = cluster_scan(&mut client, &[&cursor, "COUNT", "20", "SLOT", "16287"]);
        assert_eq!(again, first, "it starts at the first key of the slot");
    }
}

/// Puts a directory in the place of the file with the cluster state. Returns the file's path and content.
fn make_state_unwritable(server: &Server) -> (PathBuf, Vec<u8>) {
    let file = server.directory.join("nodes.conf");
    let state = std::fs::read(&file).expect("the file exists");
    std::fs::remove_file(&file).expect("removes the file");
    std::fs::create_dir(&file).expect("makes a directory in its place");
    (file, state)
}

#[test]
fn a_node_that_must_store_its_state_and_cannot_ends_with_status_1() {
    for workers in ["2", "8"] {
        let mut server = Server::start_node(&[
            "--io-threads",
            workers,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]);
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        wait_until("the cluster is up", || client.call(&["SET", "key", "1"]) == "OK");
        let (file, state) = make_state_unwritable(&server);
        client.send(&["CLUSTER", "BUMPEPOCH"]);
        assert_eq!(server.wait_for_exit(), Some(1));
        std::fs::remove_dir(&file).expect("removes the directory");
        std::fs::write(&file, state).expect("restores the file");
        server.start_again();
        let mut client = Client::connect(server.port);
        wait_until("the data is there", || client.call(&["GET", "key"]) == "1");
    }
}

#[test]
fn a_node_that_cannot_store_its_state_says_so_and_continues() {
    let log = std::env::temp_dir().join(format!("weft-unsaved-{}.log", std::process::id()));
    let logfile = log.display().to_string();
    let server = Server::start_node(&["--cluster-config-save-behavior", "best-effort", "--logfile", &logfile]);
    let mut client = Client::connect(server.port);
    make_state_unwritable(&server);
    for slot in ["1", "2", "3"] {
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTS", slot]), "OK");
    }
    let count = |text: &str| {
        let lines = std::fs::read_to_string(&log).expect("reads the log");
        lines.matches(text).count()
    };
    wait_until("each attempt is logged", || {
        count("Could not rename tmp cluster config file: Is a directory") >= 3
    });
    assert_eq!(count("even though writing the cluster config file to disk failed"), 1);
    assert_eq!(client.call(&["PING"]), "PONG");
    std::fs::remove_file(&log).expect("removes the log");
}

#[test]
fn a_node_in_handshake_is_in_no_shard() {
    let server = Server::start_node(&[]);
    let mut client = Client::connect(server.port);
    let id = client.call(&["CLUSTER", "MYID"]);
    // No node listens there.
    assert_eq!(client.call(&["CLUSTER", "MEET", "127.0.0.1", "1", "2"]), "OK");
    let nodes = client.call(&["CLUSTER", "NODES"]);
    assert!(nodes.contains(" handshake "), "{nodes}");
    let shards = client.call(&["CLUSTER", "SHARDS"]);
    assert!(shards.contains(&id), "{shards}");
    assert_eq!(shards.matches("endpoint").count(), 1, "{shards}");
}

/// A key that a script finds missing in a slot that is migrating may be on the other node.
#[test]
fn scripts_see_only_keys_that_are_here_while_a_slot_migrates() {
    let mut nodes = weft(3);
    let (source, target) = (nodes[0].id.clone(), nodes[1].id.clone());
    assert_eq!(nodes[0].call(&["SET", "{b}1", "1"]), "OK");
    assert_eq!(nodes[0].call(&["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &target]), "OK");
    assert_eq!(nodes[1].call(&["CLUSTER", "SETSLOT", SLOT, "IMPORTING", &source]), "OK");
    let is_refused = |reply: String| reply.contains("Attempted to access a non local key");
    let increment = "return redis.call('INCR', ARGV[1])";
    assert_eq!(nodes[0].call(&["EVAL", increment, "1", "{b}1", "{b}1"]), "2");
    for keys in [&["1", "{b}1"][..], &["0"]] {
        let request = [&["EVAL", increment], keys, &["{b}2"]].concat();
        assert!(is_refused(nodes[0].call(&request)), "{request:?}");
        let read = [&["EVAL", "return redis.call('GET', ARGV[1])"], keys, &["{b}2"]].concat();
        assert!(is_refused(nodes[0].call(&read)), "{read:?}");
    }
    let several = "return redis.call('MGET', '{b}1', '{b}2')";
    assert!(is_refused(nodes[0].call(&["EVAL", several, "1", "{b}1"])));
    // The other node has what is new.
    assert_eq!(nodes[1].call(&["ASKING"]), "OK");
    assert_eq!(nodes[1].call(&["EVAL", increment, "1", "{b}2", "{b}2"]), "1");
    assert_eq!(nodes[1].call(&["ASKING"]), "OK");
    assert!(is_refused(nodes[1].call(&["EVAL", several, "1", "{b}2"])));
    // A transaction is checked as a whole, and its scripts one by one.
    assert_eq!(nodes[0].call(&["MULTI"]), "OK");
    assert_eq!(nodes[0].call(&["EVAL", increment, "0", "{b}1"]), "QUEUED");
    assert_eq!(nodes[0].call(&["EVAL", increment, "0", "{b}2"]), "QUEUED");
    let replies = nodes[0].call(&["EXEC"]);
    assert!(replies.starts_with("(3 ") && is_refused(replies.clone()), "{replies}");
}

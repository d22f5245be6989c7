//! Tests changes of the cluster that are learned while a script runs on its own thread. The change itself waits for the
//! end of the script, but what this node may no longer serve is refused at once.

use std::io::Read;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, weft_with};
use super::leftover_keys::{begin_migrate, end_migrate};
use super::{
    Client, LONG_NODE_TIMEOUT_MS, SHORT_NODE_TIMEOUT_MS, SLOT, Server, cluster_with, id_of, is_up, set_node_timeout,
    wait_until,
};

/// Starts an endless script on a node. Its key is in another slot than `{x}`.
fn run_endless_script(node: &Server) -> Client {
    let mut client = Client::connect(node.port);
    node.run_script(&mut client, &["EVAL", "while true do end", "1", "foo"]);
    client
}

/// Starts a cluster whose workers are all active.
fn start(threads: &str) -> (Vec<Server>, Vec<Client>) {
    cluster_with(&["--io-threads", threads, "--io-threads-always-active", "yes"])
}

#[test]
fn a_lost_slot_is_refused_while_a_script_runs() {
    for threads in ["2", "8"] {
        let (nodes, mut clients) = start(threads);
        let (source, target) = (id_of(&mut clients[2]), id_of(&mut clients[0]));
        let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[0].port);
        for key in ["{x}", "foo"] {
            assert_eq!(clients[2].call(&["SET", key, "1"]), "OK");
        }
        let mut script = run_endless_script(&nodes[2]);
        // The new owner claims the slot with a greater epoch.
        for how in [["IMPORTING", &source], ["NODE", &target]] {
            let request = [&["CLUSTER", "SETSLOT", SLOT], &how[..]].concat();
            assert_eq!(clients[0].call(&request), "OK");
        }
        wait_until("writes are refused", || clients[2].call(&["SET", "{x}", "2"]) == moved);
        assert_eq!(clients[2].call(&["GET", "{x}"]), moved);
        assert!(is_up(&mut clients[2]));
        assert!(script.is_waiting(), "the script runs");
        assert_eq!(clients[2].call(&["DBSIZE"]), "2", "keys are deleted after the script");
        assert_eq!(clients[2].call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        wait_until("the keys of the slot are deleted", || {
            clients[2].call(&["DBSIZE"]) == "1"
        });
        assert_eq!(clients[2].call(&["GET", "foo"]), "1");
        assert_eq!(clients[0].call(&["SET", "{x}", "3"]), "OK");
    }
}

#[test]
fn a_cluster_that_goes_down_refuses_writes_while_a_script_runs() {
    let (mut nodes, mut clients) = start("2");
    set_node_timeout(&mut clients[2], SHORT_NODE_TIMEOUT_MS);
    let mut script = run_endless_script(&nodes[2]);
    nodes[..2].iter_mut().for_each(Server::kill);
    wait_until("writes are refused", || {
        clients[2].call(&["SET", "{x}", "1"]) == "CLUSTERDOWN The cluster is down"
    });
    assert!(script.is_waiting(), "the script runs");
    assert_eq!(clients[2].call(&["SCRIPT", "KILL"]), "OK");
    script.answer();
}

/// Clients write the key on its new owner, while the view that was published last still shows the slot here.
#[test]
fn the_end_of_migrate_leaves_the_key_of_a_slot_that_is_lost_while_a_script_runs() {
    for threads in ["2", "8"] {
        let (nodes, mut clients) = start(threads);
        let (source, target) = (id_of(&mut clients[2]), id_of(&mut clients[0]));
        let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[0].port);
        assert_eq!(clients[2].call(&["SET", "{x}", "1"]), "OK");
        let (mut sender, link) = begin_migrate(nodes[2].port, "{x}");
        // It does not wait for the key.
        assert_eq!(clients[2].call(&["FLUSHALL"]), "OK");
        let mut script = run_endless_script(&nodes[2]);
        for how in [["IMPORTING", &source], ["NODE", &target]] {
            let request = [&["CLUSTER", "SETSLOT", SLOT], &how[..]].concat();
            assert_eq!(clients[0].call(&request), "OK");
        }
        wait_until("the slot is lost", || clients[2].call(&["GET", "{x}"]) == moved);
        assert!(script.is_waiting(), "the script runs");
        end_migrate(&mut sender, link);
        assert_eq!(clients[2].call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
    }
}

/// The keys that this node had before the loss are deleted after the script, so the slot returns after that.
#[test]
fn a_lost_slot_that_returns_while_a_script_runs_is_served_with_its_newest_keys() {
    for threads in ["2", "8"] {
        let (nodes, mut clients) = start(threads);
        let (source, target) = (id_of(&mut clients[2]), id_of(&mut clients[0]));
        let moved = |node: usize| format!("MOVED {SLOT} 127.0.0.1:{}", nodes[node].port);
        for key in ["{x}", "{x}old", "foo"] {
            assert_eq!(clients[2].call(&["SET", key, "1"]), "OK");
        }
        let mut script = run_endless_script(&nodes[2]);
        for how in [["IMPORTING", &source], ["NODE", &target]] {
            let request = [&["CLUSTER", "SETSLOT", SLOT], &how[..]].concat();
            assert_eq!(clients[0].call(&request), "OK");
        }
        wait_until("the slot is lost", || clients[2].call(&["GET", "{x}"]) == moved(0));
        assert_eq!(clients[0].call(&["SET", "{x}", "2"]), "OK");
        let back = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", &source];
        assert_eq!(clients[0].call(&back), "OK");
        // Meanwhile another thread learns more views, of slots that this node never had.
        let mut others = Client::connect(nodes[1].port);
        for (slot, node) in [("1", 1), ("2", 1), ("3", 1)] {
            let id = id_of(&mut clients[node]);
            assert_eq!(others.call(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &target]), "OK");
            assert_eq!(others.call(&["CLUSTER", "SETSLOT", slot, "NODE", &id]), "OK");
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            assert_eq!(clients[2].call(&["GET", "{x}"]), moved(0), "its keys are old");
            assert_eq!(clients[0].call(&["INCR", "{x}"]).parse::<u64>().map(|_| ()), Ok(()));
        }
        let newest = clients[0].call(&["GET", "{x}"]);
        assert!(script.is_waiting(), "the script runs");
        assert_eq!(clients[2].call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        wait_until("the slot is back", || clients[2].call(&["GET", "{x}"]) == newest);
        assert_eq!(clients[2].call(&["GET", "{x}old"]), "-", "it was deleted with the slot");
        assert_eq!(clients[2].call(&["SET", "{x}", "3"]), "OK");
        assert_eq!(clients[2].call(&["GET", "foo"]), "1");
        wait_until("the other node knows", || clients[0].call(&["GET", "{x}"]) == moved(2));
    }
}

/// The script keeps the old primary from following the new one, so its data lacks what the new one acknowledged.
#[test]
fn an_old_primary_that_runs_a_script_is_not_elected_with_old_data() {
    for threads in ["2", "8"] {
        let mut nodes = weft_with(
            4,
            &[
                "--io-threads",
                threads,
                "--io-threads-always-active",
                "yes",
                "--busy-reply-threshold",
                "600000",
            ],
        );
        assert_eq!(nodes[0].call(&["SET", KEY, "old"]), "OK");
        let mut script = Client::connect(nodes[0].port);
        let words = ["EVAL", "while true do end", "1", "{b}script"];
        nodes[0].server().run_script(&mut script, &words);
        assert_eq!(nodes[3].call(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
        let moved = format!("MOVED 3300 127.0.0.1:{}", nodes[3].port);
        wait_until("the slots are lost", || nodes[0].call(&["GET", KEY]) == moved);
        wait_until("the new primary serves", || nodes[3].call(&["SET", KEY, "new"]) == "OK");
        for node in &mut nodes[..3] {
            set_node_timeout(&mut node.client, SHORT_NODE_TIMEOUT_MS);
        }
        nodes[3].server().kill();
        wait_until("it is marked as failing", || nodes[0].sees("master,fail ") == 1);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            assert_ne!(nodes[0].call(&["GET", KEY]), "old", "an acknowledged value is lost");
        }
        for node in &mut nodes[..3] {
            set_node_timeout(&mut node.client, LONG_NODE_TIMEOUT_MS);
        }
        assert!(script.is_waiting(), "the script runs");
        assert_eq!(nodes[0].call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        wait_until("it follows the new primary", || !nodes[0].is_primary());
    }
}

/// Waits until the node has ended, and checks that its replica has taken over with all
/// acknowledged values and nothing of the script.
fn assert_handed_over(nodes: &mut [Node], mut ending: Client, acknowledged: &str) {
    let mut rest = Vec::new();
    let _ = ending.0.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    wait_until("the replica takes over", || nodes[3].is_primary());
    wait_until("it serves", || nodes[3].call(&["GET", KEY]) == acknowledged);
    assert_eq!(nodes[3].call(&["EXISTS", "{b}half"]), "0", "the script did not end");
    assert_eq!(nodes[3].call(&["SET", KEY, "after"]), "OK");
}

/// The node hands over although no command may interrupt the script, one that has written included.
#[test]
fn a_shutdown_with_failover_stops_scripts_and_loses_nothing() {
    for (threads, script, by_signal) in [
        ("2", "while true do end", false),
        ("8", "redis.call('SET', KEYS[1], '1') while true do end", false),
        ("8", "while true do end", true),
        ("2", "redis.call('SET', KEYS[1], '1') while true do end", true),
    ] {
        let mut nodes = weft_with(
            4,
            &[
                "--io-threads",
                threads,
                "--io-threads-always-active",
                "yes",
                "--busy-reply-threshold",
                "20",
                "--shutdown-timeout",
                "1",
                "--shutdown-on-sigterm",
                "nosave failover",
            ],
        );
        for value in 0..100 {
            assert_eq!(nodes[0].call(&["SET", KEY, &value.to_string()]), "OK");
        }
        let mut runner = Client::connect(nodes[0].port);
        let words = ["EVAL", script, "1", "{b}half"];
        nodes[0].server().run_script(&mut runner, &words);
        wait_until("the script is overdue", || {
            nodes[0].call(&["GET", KEY]).starts_with("BUSY")
        });
        let mut ending = Client::connect(nodes[0].port);
        for words in [&["SHUTDOWN", "FAILOVER"][..], &["SHUTDOWN", "SAVE", "FAILOVER"]] {
            let refused = ending.call(words);
            assert!(
                refused.starts_with("BUSY"),
                "a save would wait for the script: {refused}"
            );
        }
        match by_signal {
            true => nodes[0].server().signal(Signal::SIGTERM),
            false => ending.send(&["SHUTDOWN", "NOSAVE", "FAILOVER"]),
        }
        assert_handed_over(&mut nodes, ending, "99");
    }
}

/// No time is left for a script to end, nor for a replica to report its offset.
#[test]
fn a_shutdown_that_must_not_wait_hands_over_beside_a_running_script() {
    for (threads, script) in [
        ("2", "redis.call('SET', KEYS[1], '1') while true do end"),
        ("8", "while true do end"),
    ] {
        let arguments = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let mut nodes = weft_with(4, &arguments);
        assert_eq!(nodes[0].call(&["SET", KEY, "99"]), "OK");
        assert_eq!(nodes[0].call(&["WAIT", "1", "0"]), "1");
        let mut runner = Client::connect(nodes[0].port);
        nodes[0]
            .server()
            .run_script(&mut runner, &["EVAL", script, "1", "{b}half"]);
        let mut ending = Client::connect(nodes[0].port);
        ending.send(&["SHUTDOWN", "NOSAVE", "NOW", "FAILOVER"]);
        assert_handed_over(&mut nodes, ending, "99");
    }
}

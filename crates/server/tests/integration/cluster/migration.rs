//! Tests slots that move to another node as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, weft_with};
use super::wait_until;
use crate::harness::client::Client;

/// The slot of [`KEY`].
const SLOT: &str = "3300";
/// A slot of the first node next to it.
const OTHER_SLOT: &str = "3301";

/// Returns a field of the newest job of a node; empty if it has no job.
fn job(node: &mut Node, field: &str) -> String {
    let jobs = node.call(&["CLUSTER", "GETSLOTMIGRATIONS"]);
    let newest = jobs.trim_start_matches('(').split(')').next().unwrap_or_default();
    let after = newest.split(&format!("{field} ")).nth(1).unwrap_or_default();
    let next_field = match field {
        "state" => " message ",
        "message" => " cow_size ",
        _ => " ",
    };
    after.split(next_field).next().unwrap_or_default().to_owned()
}

fn migrate(nodes: &mut [Node], from: usize, to: usize) {
    let target = nodes[to].id.clone();
    let request = [
        "CLUSTER",
        "MIGRATESLOTS",
        "SLOTSRANGE",
        SLOT,
        OTHER_SLOT,
        "NODE",
        &target,
    ];
    assert_eq!(nodes[from].call(&request), "OK");
}

fn wait_for_state(node: &mut Node, state: &str) {
    wait_until(&format!("the job is {state}"), || job(node, "state") == state);
}

/// Moves the slots, and waits until both nodes know their new owner.
fn move_slots(nodes: &mut [Node], from: usize, to: usize) {
    migrate(nodes, from, to);
    for node in [from, to] {
        wait_for_state(&mut nodes[node], "success");
    }
}

fn set_debug(nodes: &mut [Node], what: &str, on: &str) {
    for node in nodes {
        assert_eq!(node.call(&["DEBUG", "SLOTMIGRATION", what, on]), "OK");
    }
}

fn count_keys(node: &mut Node) -> String {
    node.call(&["CLUSTER", "COUNTKEYSINSLOT", SLOT])
}

/// A client that counts the writes which were acknowledged.
fn start_writer(ports: Vec<u16>, name: String, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    thread::spawn(move || {
        let mut clients: Vec<Client> = ports.iter().map(|port| Client::connect(*port)).collect();
        let (mut at, mut acknowledged) = (0, 0);
        let (counter, list) = (format!("{KEY}{name}:counter"), format!("{KEY}{name}:list"));
        while !stop.load(Ordering::Relaxed) {
            let number = (acknowledged + 1).to_string();
            let reply = match acknowledged % 2 {
                0 => clients[at].call(&["EVAL", "return redis.call('incr', KEYS[1])", "1", &counter]),
                _ => clients[at].call(&["RPUSH", &list, &number]),
            };
            match reply.strip_prefix("MOVED ") {
                Some(moved) => {
                    let port: u16 = moved
                        .rsplit(':')
                        .next()
                        .and_then(|port| port.parse().ok())
                        .expect("a port");
                    at = ports.iter().position(|known| *known == port).expect("a node");
                }
                None => {
                    reply.parse::<u64>().expect("a number");
                    acknowledged += 1;
                }
            }
        }
        acknowledged
    })
}

fn writers_lose_nothing(workers: &str) {
    let arguments = ["--io-threads", workers, "--io-threads-always-active", "yes"];
    let mut nodes = weft_with(3, &arguments);
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let names: Vec<String> = (0..4).map(|number| format!("w{number}")).collect();
    let writers: Vec<JoinHandle<u64>> = names
        .iter()
        .map(|name| start_writer(ports.clone(), name.clone(), stop.clone()))
        .collect();
    for round in 0..4 {
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        move_slots(&mut nodes, from, to);
        wait_until("the old owner has no key", || count_keys(&mut nodes[from]) == "0");
    }
    stop.store(true, Ordering::Relaxed);
    for (writer, name) in writers.into_iter().zip(names) {
        let acknowledged = writer.join().expect("a writer ends");
        assert!(acknowledged > 0, "{name} has written");
        let counter = nodes[0].call(&["GET", &format!("{KEY}{name}:counter")]);
        let list = nodes[0].call(&["LLEN", &format!("{KEY}{name}:list")]);
        let written: u64 = [counter, list].iter().filter_map(|text| text.parse::<u64>().ok()).sum();
        assert_eq!(written, acknowledged, "the writes of {name}");
    }
    assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
}

#[test]
fn two_workers_lose_no_write_while_slots_move() {
    writers_lose_nothing("2");
}

#[test]
fn eight_workers_lose_no_write_while_slots_move() {
    writers_lose_nothing("8");
}

#[test]
fn imported_keys_are_hidden_until_the_slot_is_owned() {
    let mut nodes = weft_with(3, &["--cluster-databases", "16"]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    for index in 0..50 {
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{index}"), "value"]), "OK");
    }
    assert_eq!(
        nodes[0].call(&["SET", &format!("{KEY}short"), "value", "PX", "200"]),
        "OK"
    );
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    assert_eq!(nodes[0].call(&["HSET", &format!("{KEY}hash"), "field", "value"]), "1");
    let target = &mut nodes[1];
    wait_until("the stream has arrived", || {
        count_keys(target).parse::<u64>().is_ok_and(|keys| keys >= 51)
    });
    assert_eq!(target.call(&["DBSIZE"]), "0");
    assert_eq!(target.call(&["KEYS", "*"]), "()");
    assert_eq!(target.call(&["KEYS", &format!("{KEY}*")]), "()");
    assert_eq!(target.call(&["SCAN", "0", "COUNT", "1000"]), "(0 ())");
    assert_eq!(target.call(&["RANDOMKEY"]), "-");
    assert!(!target.call(&["INFO", "keyspace"]).contains("db0"));
    assert!(target.call(&["GET", KEY]).starts_with("MOVED"));
    let setslot = target.call(&["CLUSTER", "SETSLOT", "1", "STABLE"]);
    assert_eq!(setslot, "ERR Slot import in progress.");
    wait_until("the source deletes the expired key", || count_keys(target) == "51");
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    wait_for_state(&mut nodes[1], "success");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "51");
    wait_until("the source has no key", || nodes[0].call(&["DBSIZE"]) == "0");
}

#[test]
fn a_failed_migration_leaves_nothing_behind() {
    let mut nodes = weft_with(3, &[]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    type Failure = fn(&mut [Node]) -> (&'static str, &'static str);
    let failures: [Failure; 3] = [
        |nodes| {
            assert_eq!(nodes[0].call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]), "OK");
            ("cancelled", "Connection lost to source")
        },
        |nodes| {
            assert_eq!(nodes[1].call(&["FLUSHALL"]), "OK");
            ("failed", "Data was flushed")
        },
        |nodes| {
            let clients = nodes[1].call(&["CLIENT", "LIST", "FLAGS", "i"]);
            let id = clients
                .trim_start_matches("id=")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned();
            assert_eq!(nodes[1].call(&["CLIENT", "KILL", "ID", &id]), "1");
            ("failed", "Connection lost to source")
        },
    ];
    for index in 0..100 {
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{index}"), "value"]), "OK");
    }
    for fail in failures {
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "100");
        let (state, message) = fail(&mut nodes);
        wait_for_state(&mut nodes[0], state);
        wait_for_state(&mut nodes[1], "failed");
        assert!(job(&mut nodes[1], "message").starts_with(message), "{message}");
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
        assert_eq!(count_keys(&mut nodes[0]), "100");
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}0"), "value"]), "OK");
    }
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    move_slots(&mut nodes, 0, 1);
    assert_eq!(count_keys(&mut nodes[1]), "100");
}

#[test]
fn a_node_that_stops_or_dies_ends_the_migration() {
    let mut nodes = weft_with(3, &["--repl-timeout", "2"]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    for index in 0..100 {
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{index}"), "value"]), "OK");
    }
    // The target stops.
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    nodes[1].server().signal(Signal::SIGSTOP);
    wait_for_state(&mut nodes[0], "failed");
    assert!(job(&mut nodes[0], "message").starts_with("Timed out"));
    nodes[1].server().signal(Signal::SIGCONT);
    wait_for_state(&mut nodes[1], "failed");
    wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
    // The source stops.
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    nodes[0].server().signal(Signal::SIGSTOP);
    wait_for_state(&mut nodes[1], "failed");
    nodes[0].server().signal(Signal::SIGCONT);
    wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
    wait_for_state(&mut nodes[0], "failed");
    // The target dies.
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    nodes[1].server().kill();
    wait_for_state(&mut nodes[0], "failed");
    assert!(job(&mut nodes[0], "message").starts_with("Connection lost to target"));
    assert_eq!(count_keys(&mut nodes[0]), "100");
    assert_eq!(nodes[0].call(&["SET", &format!("{KEY}0"), "value"]), "OK");
}

#[test]
fn only_writes_to_the_leaving_slots_are_paused() {
    let mut nodes = weft_with(3, &[]);
    set_debug(&mut nodes, "PREVENT-FAILOVER", "1");
    let port = nodes[0].port;
    let mut blocked = Client::connect(port);
    blocked.send(&["BLPOP", &format!("{KEY}list"), "0"]);
    let mut transaction = Client::connect(port);
    assert_eq!(transaction.call(&["MULTI"]), "OK");
    assert_eq!(transaction.call(&["INCR", KEY]), "QUEUED");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    let held = [
        vec!["SET".to_owned(), KEY.to_owned(), "value".to_owned()],
        vec!["EVAL".to_owned(), "return 1".to_owned(), "0".to_owned()],
        vec![
            "EVAL".to_owned(),
            "return redis.call('incr', KEYS[1])".to_owned(),
            "1".to_owned(),
            KEY.to_owned(),
        ],
    ];
    let mut waiting: Vec<Client> = held
        .iter()
        .map(|words| {
            let mut client = Client::connect(port);
            client.send(words);
            client
        })
        .collect();
    transaction.send(&["EXEC"]);
    // Another slot of the same node, and reads of this one.
    assert_eq!(
        nodes[0].call(&["SET", "{a}free", "value"]).split(' ').next(),
        Some("MOVED")
    );
    assert_eq!(nodes[0].call(&["SET", "foo{bar}", "value"]), "OK");
    assert_eq!(nodes[0].call(&["GET", KEY]), "-");
    assert_eq!(nodes[0].client.info("paused_reason"), "slot_migration_in_progress");
    thread::sleep(Duration::from_millis(100));
    assert!(waiting.iter().chain([&transaction, &blocked]).all(Client::is_waiting));
    set_debug(&mut nodes, "PREVENT-FAILOVER", "0");
    wait_for_state(&mut nodes[0], "success");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[1].port);
    assert_eq!(waiting[0].answer(), moved);
    assert_eq!(waiting[1].answer(), "1");
    assert_eq!(waiting[2].answer(), moved);
    assert!(transaction.answer().contains(&moved));
    assert_eq!(blocked.answer(), moved);
    assert_eq!(nodes[0].client.info("paused_reason"), "none");
}

#[test]
fn replicas_hide_the_keys_of_an_import_too() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    move_slots(&mut nodes, 0, 1);
    set_debug(&mut nodes[..3], "PREVENT-PAUSE", "1");
    for index in 0..50 {
        assert_eq!(nodes[1].call(&["SET", &format!("{KEY}{index}"), "value"]), "OK");
    }
    migrate(&mut nodes, 1, 0);
    wait_for_state(&mut nodes[1], "waiting-to-pause");
    wait_until("the replica has the keys", || count_keys(&mut nodes[3]) == "50");
    assert_eq!(nodes[3].call(&["DBSIZE"]), "0");
    wait_for_state(&mut nodes[3], "occurring-on-primary");
    assert_eq!(nodes[1].call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]), "OK");
    wait_until("the replica has no key", || count_keys(&mut nodes[3]) == "0");
    wait_for_state(&mut nodes[3], "failed");
    set_debug(&mut nodes[..3], "PREVENT-PAUSE", "0");
    move_slots(&mut nodes, 1, 0);
    wait_for_state(&mut nodes[3], "success");
    wait_until("the replica shows the keys", || nodes[3].call(&["DBSIZE"]) == "50");
}

//! Tests slots that move to another node as a whole.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, fail_over_to, weft_with};
use super::wait_until;
use crate::harness::client::Client;

/// The slot of [`KEY`].
const SLOT: &str = "3300";
/// A slot of the first node next to it.
const OTHER_SLOT: &str = "3301";

/// Returns a field of the newest job of a node; empty if it has no job.
pub fn job(node: &mut Node, field: &str) -> String {
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

pub fn migrate(nodes: &mut [Node], from: usize, to: usize) {
    migrate_range(nodes, from, to, [SLOT, OTHER_SLOT]);
}

fn migrate_range(nodes: &mut [Node], from: usize, to: usize, [first, last]: [&str; 2]) {
    let target = nodes[to].id.clone();
    let request = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", &target];
    assert_eq!(nodes[from].call(&request), "OK");
}

pub fn wait_for_state(node: &mut Node, state: &str) {
    wait_until(&format!("the job is {state}"), || {
        let current = job(node, "state");
        assert!(
            current == state || current != "failed",
            "the job has failed: {}",
            job(node, "message")
        );
        current == state
    });
}

/// Moves the slots, and waits until both nodes know their new owner.
pub fn move_slots(nodes: &mut [Node], from: usize, to: usize) {
    migrate(nodes, from, to);
    for node in [from, to] {
        wait_for_state(&mut nodes[node], "success");
    }
}

pub fn set_debug(nodes: &mut [Node], what: &str, on: &str) {
    for node in nodes {
        assert_eq!(node.call(&["DEBUG", "SLOTMIGRATION", what, on]), "OK");
    }
}

pub fn count_keys(node: &mut Node) -> String {
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
    assert!(
        target
            .call(&["CLUSTERSCAN", &format!("0-{KEY}-0")])
            .starts_with("MOVED")
    );
    assert_eq!(target.call(&["RANDOMKEY"]), "-");
    assert!(!target.call(&["INFO", "keyspace"]).contains("db0"));
    assert!(target.call(&["GET", KEY]).starts_with("MOVED"));
    let setslot = target.call(&["CLUSTER", "SETSLOT", "1", "STABLE"]);
    assert_eq!(setslot, "ERR Slot import in progress.");
    wait_until("the source deletes the expired key", || {
        count_keys(&mut nodes[0]) == "51"
    });
    wait_until("that is sent", || count_keys(&mut nodes[1]) == "51");
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    wait_for_state(&mut nodes[1], "success");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "51");
    wait_until("the source has no key", || nodes[0].call(&["DBSIZE"]) == "0");
}

/// The count leaves out the keys of an imported slot, into which the stream of the import writes all the time.
fn transactions_count_keys_during_an_import(workers: &str) {
    let arguments = ["--io-threads", workers, "--io-threads-always-active", "yes"];
    let mut nodes = weft_with(3, &arguments);
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    set_keys(&mut nodes[0], 50);
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<JoinHandle<u64>> = (0..2)
        .map(|number| start_writer(ports.clone(), format!("w{number}"), stop.clone()))
        .collect();
    for _ in 0..1000 {
        assert_eq!(nodes[1].client.transact(&[&["DBSIZE"], &["DBSIZE"]]), "(0 0)");
        assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.join().expect("a writer ends") > 0);
    }
}

#[test]
fn transactions_count_keys_during_an_import_with_two_workers() {
    transactions_count_keys_during_an_import("2");
}

#[test]
fn transactions_count_keys_during_an_import_with_eight_workers() {
    transactions_count_keys_during_an_import("8");
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
    // This one would delete the keys of the slots, and end the migration.
    let mut flush = Client::connect(port);
    assert_eq!(flush.call(&["MULTI"]), "OK");
    assert_eq!(flush.call(&["FLUSHALL"]), "QUEUED");
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
    flush.send(&["EXEC"]);
    let in_script = nodes[0].call(&["EVAL", "return redis.call('flushall')", "1", "foo{bar}"]);
    assert!(in_script.contains("slot that is moving"), "{in_script}");
    // Another slot of the same node, and reads of this one.
    assert_eq!(
        nodes[0].call(&["SET", "{a}free", "value"]).split(' ').next(),
        Some("MOVED")
    );
    assert_eq!(nodes[0].call(&["SET", "foo{bar}", "value"]), "OK");
    assert_eq!(nodes[0].call(&["GET", KEY]), "-");
    assert_eq!(nodes[0].client.info("paused_reason"), "slot_migration_in_progress");
    thread::sleep(Duration::from_millis(100));
    let all_waiting = waiting.iter().chain([&transaction, &blocked, &flush]);
    assert!({ all_waiting }.all(Client::is_waiting));
    set_debug(&mut nodes, "PREVENT-FAILOVER", "0");
    wait_for_state(&mut nodes[0], "success");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[1].port);
    assert_eq!(waiting[0].answer(), moved);
    assert_eq!(waiting[1].answer(), "1");
    assert_eq!(waiting[2].answer(), moved);
    assert!(transaction.answer().contains(&moved));
    assert_eq!(blocked.answer(), moved);
    assert_eq!(flush.answer(), "(OK)");
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

/// A script that runs for the seconds in its first argument, with a key of a slot that stays.
const LONG_SCRIPT: &str = "local from = redis.call('time')[1] \
    while redis.call('time')[1] - from < tonumber(ARGV[1]) do end \
    return 'done'";
/// A key of the second node.
const KEY_OF_SECOND: &str = "{c}";

/// Runs a script on a node for some seconds. It keeps the node from publishing a new view of the cluster.
fn start_long_script(node: &mut Node, key: &str, seconds: &str) -> Client {
    let mut client = Client::connect(node.port);
    node.server()
        .run_script(&mut client, &["EVAL", LONG_SCRIPT, "1", key, seconds]);
    assert!(client.is_waiting(), "the script runs");
    client
}

pub fn set_keys(node: &mut Node, count: usize) {
    for index in 0..count {
        assert_eq!(node.call(&["SET", &format!("{KEY}{index}"), "value"]), "OK");
    }
}

#[test]
fn a_script_of_the_source_delays_the_end_of_the_pause() {
    let mut nodes = weft_with(3, &["--cluster-manual-failover-timeout", "2000"]);
    set_keys(&mut nodes[0], 10);
    set_debug(&mut nodes, "PREVENT-FAILOVER", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    let mut script = start_long_script(&mut nodes[0], "foo{bar}", "9");
    let mut writer = Client::connect(nodes[0].port);
    writer.send(&["SET", KEY, "written"]);
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "0");
    wait_for_state(&mut nodes[1], "success");
    // The pause lasts for four seconds.
    assert_eq!(script.answer(), "done");
    assert_eq!(writer.answer(), format!("MOVED {SLOT} 127.0.0.1:{}", nodes[1].port));
    wait_for_state(&mut nodes[0], "success");
    assert_eq!(count_keys(&mut nodes[1]), "10");
}

#[test]
fn a_script_of_the_target_makes_a_late_takeover_fail() {
    let mut nodes = weft_with(3, &["--cluster-manual-failover-timeout", "500"]);
    set_keys(&mut nodes[0], 10);
    let mut script = start_long_script(&mut nodes[1], KEY_OF_SECOND, "6");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failed");
    assert_eq!(nodes[0].call(&["SET", KEY, "written"]), "OK");
    assert_eq!(script.answer(), "done");
    wait_for_state(&mut nodes[1], "failed");
    let message = job(&mut nodes[1], "message");
    assert_eq!(message, "Timed out before the slots could be taken over");
    wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
    assert_eq!(nodes[0].call(&["GET", KEY]), "written");
    assert_eq!(count_keys(&mut nodes[0]), "11");
    move_slots(&mut nodes, 0, 1);
    assert_eq!(nodes[1].call(&["GET", KEY]), "written");
}

#[test]
fn slots_that_return_while_a_script_runs_keep_their_keys() {
    let mut nodes = weft_with(3, &[]);
    set_keys(&mut nodes[0], 50);
    move_slots(&mut nodes, 0, 1);
    set_debug(&mut nodes, "PREVENT-FAILOVER", "1");
    migrate(&mut nodes, 1, 0);
    wait_for_state(&mut nodes[1], "failover-granted");
    let mut script = start_long_script(&mut nodes[1], KEY_OF_SECOND, "4");
    set_debug(&mut nodes, "PREVENT-FAILOVER", "0");
    wait_for_state(&mut nodes[0], "success");
    wait_until("the former owner knows", || nodes[1].sees("connected 5461-10922") == 1);
    // Commands of the second node still use a view in which it owns the slots. The migration goes on for longer.
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    migrate(&mut nodes, 0, 1);
    assert_eq!(script.answer(), "done");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[0].port);
    wait_until("commands use the new view", || nodes[1].call(&["GET", KEY]) == moved);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    // The keys of the former ownership are deleted meanwhile.
    thread::sleep(Duration::from_millis(300));
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    wait_for_state(&mut nodes[0], "success");
    wait_for_state(&mut nodes[1], "success");
    assert_eq!(count_keys(&mut nodes[1]), "50");
    wait_until("the other node has no key", || nodes[0].call(&["DBSIZE"]) == "0");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "50");
}

/// Returns the number of jobs whose state begins like this.
fn count_jobs(node: &mut Node, state: &str) -> usize {
    let jobs = node.call(&["CLUSTER", "GETSLOTMIGRATIONS"]);
    jobs.matches(&format!(" state {state}")).count()
}

#[test]
fn a_node_gives_slots_away_while_it_gets_others() {
    /// A key of the third node, and its slot.
    const THIRD: [&str; 2] = ["{x}", "16287"];
    let mut nodes = weft_with(3, &[]);
    for _ in 0..3 {
        set_keys(&mut nodes[0], 10);
        assert_eq!(nodes[2].call(&["SET", THIRD[0], "value"]), "OK");
        set_debug(&mut nodes, "PREVENT-FAILOVER", "1");
        migrate(&mut nodes, 0, 1);
        migrate_range(&mut nodes, 2, 0, [THIRD[1], THIRD[1]]);
        // The first node has a job of each migration.
        for (node, jobs) in [(0, 2), (1, 1), (2, 1)] {
            wait_until("the takeovers are permitted", || {
                count_jobs(&mut nodes[node], "failover-granted") == jobs
            });
        }
        set_debug(&mut nodes[..2], "PREVENT-FAILOVER", "0");
        for node in &mut nodes {
            wait_until("the migrations succeed", || {
                count_jobs(node, "success") == count_jobs(node, "")
            });
        }
        assert_eq!(count_keys(&mut nodes[1]), "10");
        assert_eq!(nodes[1].call(&["SET", &format!("{KEY}0"), "written"]), "OK");
        // The nodes exchange messages for a while.
        thread::sleep(Duration::from_secs(2));
        assert_eq!(nodes[1].call(&["GET", &format!("{KEY}0")]), "written");
        assert_eq!(nodes[0].call(&["GET", THIRD[0]]), "value");
        set_debug(&mut nodes, "PREVENT-FAILOVER", "0");
        move_slots(&mut nodes, 1, 0);
        migrate_range(&mut nodes, 0, 2, [THIRD[1], THIRD[1]]);
        wait_for_state(&mut nodes[0], "success");
        wait_for_state(&mut nodes[2], "success");
    }
}

#[test]
fn a_cancelled_export_holds_writes_until_its_target_cannot_take_over() {
    const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(2);
    let mut nodes = weft_with(3, &["--cluster-manual-failover-timeout", "500"]);
    set_debug(&mut nodes, "PREVENT-FAILOVER", "1");
    migrate(&mut nodes, 0, 1);
    let mut not_granted = Instant::now();
    wait_until("the takeover is permitted", || {
        let asked = Instant::now();
        let is_granted = job(&mut nodes[0], "state") == "failover-granted";
        if !is_granted {
            not_granted = asked;
        }
        is_granted
    });
    assert_eq!(nodes[0].call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]), "OK");
    let mut writer = Client::connect(nodes[0].port);
    writer.send(&["SET", KEY, "written"]);
    wait_for_state(&mut nodes[0], "cancelled");
    thread::sleep(Duration::from_millis(200));
    let is_held = writer.is_waiting();
    let may_be_over = not_granted.elapsed() >= TAKEOVER_TIMEOUT;
    assert!(is_held || may_be_over, "the target may have taken over");
    // The next migration waits, too.
    set_debug(&mut nodes, "PREVENT-FAILOVER", "0");
    move_slots(&mut nodes, 0, 1);
    let answer = writer.answer();
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[1].port);
    assert!(answer == "OK" || answer == moved, "{answer}");
    let expected = if answer == "OK" { "written" } else { "-" };
    assert_eq!(nodes[1].call(&["GET", KEY]), expected);
}

#[test]
fn an_import_without_memory_fails_with_every_policy() {
    for policy in ["noeviction", "allkeys-lru"] {
        let mut nodes = weft_with(3, &["--maxmemory-policy", policy]);
        let used: u64 = nodes[1].client.info("used_memory").parse().expect("a number");
        let limit = (used + 3_000_000).to_string();
        assert_eq!(nodes[1].call(&["CONFIG", "SET", "maxmemory", &limit]), "OK");
        set_debug(&mut nodes, "PREVENT-PAUSE", "1");
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        let (value, mut keys) = ("v".repeat(100_000), 0);
        // Used memory is measured now and then, so the limit takes effect with a delay.
        wait_until("the import fails", || {
            assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{keys}"), &value]), "OK");
            keys += 1;
            thread::sleep(Duration::from_millis(10));
            job(&mut nodes[1], "state") == "failed"
        });
        assert!(job(&mut nodes[1], "message").starts_with("Ran out of memory (OOM"));
        wait_for_state(&mut nodes[0], "failed");
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
        assert_eq!(nodes[1].call(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
        set_debug(&mut nodes, "PREVENT-PAUSE", "0");
        move_slots(&mut nodes, 0, 1);
        assert_eq!(count_keys(&mut nodes[1]), keys.to_string());
    }
}

#[test]
fn an_import_without_enough_replicas_fails() {
    let mut nodes = weft_with(3, &[]);
    set_keys(&mut nodes[0], 10);
    assert_eq!(nodes[1].call(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    migrate(&mut nodes, 0, 1);
    for node in [0, 1] {
        wait_for_state(&mut nodes[node], "failed");
    }
    let message = job(&mut nodes[1], "message");
    assert!(message.starts_with("Failed to process command"), "{message}");
    assert_eq!(count_keys(&mut nodes[1]), "0");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    assert_eq!(nodes[1].call(&["CONFIG", "SET", "min-replicas-to-write", "0"]), "OK");
    move_slots(&mut nodes, 0, 1);
    assert_eq!(count_keys(&mut nodes[1]), "10");
}

#[test]
fn a_failover_of_the_target_ends_an_import_with_unexecuted_commands() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    move_slots(&mut nodes, 0, 1);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    migrate(&mut nodes, 1, 0);
    wait_for_state(&mut nodes[1], "waiting-to-pause");
    assert_eq!(nodes[0].call(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    set_keys(&mut nodes[1], 500);
    thread::sleep(Duration::from_millis(200));
    fail_over_to(&mut nodes[3]);
    wait_until("the target has become a replica", || !nodes[0].is_primary());
    assert_eq!(nodes[0].call(&["CLIENT", "UNPAUSE"]), "OK");
    for node in [1, 3, 0] {
        wait_for_state(&mut nodes[node], "failed");
    }
    wait_until("no key is left", || count_keys(&mut nodes[3]) == "0");
    assert_eq!(count_keys(&mut nodes[1]), "500");
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    move_slots(&mut nodes, 1, 3);
    assert_eq!(count_keys(&mut nodes[3]), "500");
}

#[test]
fn an_import_continues_after_a_pause_with_much_input() {
    let mut nodes = weft_with(3, &[]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    assert_eq!(nodes[1].call(&["CLIENT", "PAUSE", "3000", "WRITE"]), "OK");
    let value = "v".repeat(20 << 20);
    assert_eq!(nodes[0].call(&["SET", KEY, "value"]), "OK");
    for index in 0..2 {
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{index}"), &value]), "OK");
    }
    wait_until("the stream has arrived", || count_keys(&mut nodes[1]) == "3");
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    wait_for_state(&mut nodes[1], "success");
    wait_for_state(&mut nodes[0], "success");
    assert_eq!(nodes[1].call(&["STRLEN", &format!("{KEY}1")]), (20 << 20).to_string());
}

#[test]
fn data_that_is_loaded_again_ends_each_import_once() {
    let mut nodes = weft_with(3, &["--appendonly", "yes"]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    set_keys(&mut nodes[0], 50);
    let jobs_of = |node: &mut Node| node.call(&["CLUSTER", "GETSLOTMIGRATIONS"]).matches("(name ").count();
    // The first import is flushed.
    for (number, reload) in [["FLUSHALL", "SYNC"], ["DEBUG", "LOADAOF"], ["DEBUG", "RELOAD"]]
        .iter()
        .enumerate()
    {
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "50");
        assert_eq!(nodes[1].call(reload), "OK");
        wait_for_state(&mut nodes[0], "failed");
        wait_until("all imports have failed", || {
            let jobs = nodes[1].call(&["CLUSTER", "GETSLOTMIGRATIONS"]);
            jobs.matches("state failed").count() == jobs.matches("(name ").count()
        });
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
        assert!(jobs_of(&mut nodes[1]) <= 2 * (number + 1), "{reload:?}");
        assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    }
    // A process that ends with an import.
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "50");
    nodes[1].server().kill();
    wait_for_state(&mut nodes[0], "failed");
    nodes[1].server().start_again();
    nodes[1].client = Client::connect(nodes[1].port);
    wait_for_state(&mut nodes[1], "failed");
    assert_eq!(job(&mut nodes[1], "message"), "Process restarted");
    wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    wait_until("the cluster is up", || {
        nodes[1].call(&["SET", KEY_OF_SECOND, "value"]) == "OK"
    });
    move_slots(&mut nodes, 0, 1);
    assert_eq!(count_keys(&mut nodes[1]), "50");
}

#[test]
fn a_node_that_gives_its_last_slot_away_has_succeeded() {
    let mut nodes = weft_with(3, &[]);
    set_keys(&mut nodes[0], 10);
    migrate_range(&mut nodes, 0, 1, ["0", "5460"]);
    wait_for_state(&mut nodes[1], "success");
    let port = nodes[1].port;
    wait_until("the empty node follows the target", || nodes[0].follows(port));
    wait_for_state(&mut nodes[0], "success");
    assert_eq!(count_keys(&mut nodes[1]), "10");
}

#[test]
fn flushing_a_slot_ends_its_migration() {
    let mut nodes = weft_with(3, &["--notify-keyspace-events", "KEA"]);
    let mut events = Client::connect(nodes[0].port);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    for flushed in [1, 0] {
        set_keys(&mut nodes[0], 50);
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "50");
        assert_eq!(nodes[flushed].call(&["CLUSTER", "FLUSHSLOT", SLOT]), "OK");
        for node in &mut nodes[..2] {
            wait_for_state(node, "failed");
        }
        assert_eq!(job(&mut nodes[flushed], "message"), "Data was flushed");
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
    }
    assert_eq!(count_keys(&mut nodes[0]), "0");
    // Keys that leave are not deleted as clients see it.
    set_keys(&mut nodes[0], 50);
    let pattern = "__keyevent@0__:del";
    assert_eq!(events.call(&["SUBSCRIBE", pattern]), format!("(subscribe {pattern} 1)"));
    set_debug(&mut nodes, "PREVENT-PAUSE", "0");
    move_slots(&mut nodes, 0, 1);
    wait_until("the source has no key", || count_keys(&mut nodes[0]) == "0");
    assert_eq!(nodes[0].call(&["SET", "foo{bar}", "value"]), "OK");
    assert_eq!(nodes[0].call(&["DEL", "foo{bar}"]), "1");
    assert_eq!(events.answer(), format!("(message {pattern} foo{{bar}})"));
}

#[test]
fn a_source_that_is_disconnected_may_begin_again_at_once() {
    let mut nodes = weft_with(3, &[]);
    let source = nodes[0].id.clone();
    let port = nodes[1].port;
    // The keys of many slots are looked for, so that the end of the import takes a while.
    for round in 0..10 {
        let name = format!("{round:040}");
        let mut client = Client::connect(port);
        let establish = [
            "CLUSTER",
            "SYNCSLOTS",
            "ESTABLISH",
            "SOURCE",
            &source,
            "NAME",
            &name,
            "SLOTSRANGE",
            "0",
            "5000",
        ];
        assert_eq!(client.call(&establish), "OK", "round {round}");
        // This message is not expected now.
        client.send(&["CLUSTER", "SYNCSLOTS", "PAUSED"]);
        let mut rest = Vec::new();
        // The other side may also reset the connection.
        let _ = client.0.read_to_end(&mut rest);
    }
    assert_eq!(count_jobs(&mut nodes[1], "failed"), 10);
}

#[test]
fn slots_change_hands_only_when_the_append_only_file_has_their_keys() {
    for fsync in ["always", "everysec"] {
        let mut nodes = weft_with(3, &["--appendonly", "yes", "--appendfsync", fsync]);
        set_keys(&mut nodes[0], 10);
        set_debug(&mut nodes, "PREVENT-PAUSE", "1");
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "10");
        // Each write to the file takes so long from now on.
        assert_eq!(nodes[1].call(&["DEBUG", "AOF-FLUSH-SLEEP", "4000000"]), "OK");
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}last"), "value"]), "OK");
        wait_until("the last write has arrived", || count_keys(&mut nodes[1]) == "11");
        set_debug(&mut nodes[..1], "PREVENT-PAUSE", "0");
        wait_for_state(&mut nodes[0], "failover-paused");
        thread::sleep(Duration::from_millis(500));
        nodes[1].server().kill();
        let state = job(&mut nodes[0], "state");
        assert!(state == "failover-paused" || state == "failed", "{fsync}: {state}");
        wait_for_state(&mut nodes[0], "failed");
        assert_eq!(nodes[0].call(&["GET", &format!("{KEY}last")]), "value");
        nodes[1].server().start_again();
        nodes[1].client = Client::connect(nodes[1].port);
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
        wait_until("the cluster is up", || {
            nodes[1].call(&["SET", KEY_OF_SECOND, "value"]) == "OK"
        });
        // A file that is merely slow only delays the end.
        assert_eq!(nodes[1].call(&["DEBUG", "AOF-FLUSH-SLEEP", "300000"]), "OK");
        move_slots(&mut nodes, 0, 1);
        assert_eq!(count_keys(&mut nodes[1]), "11");
        nodes[1].server().kill();
        nodes[1].server().start_again();
        nodes[1].client = Client::connect(nodes[1].port);
        wait_until("the keys are loaded", || count_keys(&mut nodes[1]) == "11");
    }
}

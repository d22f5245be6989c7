//! Tests migrations whose other side does not behave as a node does: too early, too slow, or with endless requests.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failover::{KEY, Node, weft_with};
use super::migration::{count_keys, job, migrate, move_slots, set_debug, set_keys, wait_for_state};
use super::wait_until;
use crate::harness::client::Client;

const UNEXPECTED: &str = "Unexpected state machine transition";
const TIMED_OUT: &str = "Timed out after too long with no interaction";

/// A program in the place of the second node, as far as clients and the sources of migrations see it.
struct FalseTarget {
    listener: TcpListener,
}

impl FalseTarget {
    fn start(nodes: &mut [Node]) -> FalseTarget {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let port = listener.local_addr().expect("has an address").port().to_string();
        assert_eq!(nodes[1].call(&["CONFIG", "SET", "cluster-announce-port", &port]), "OK");
        wait_until("the source knows the port", || nodes[0].sees(&format!(":{port}@")) == 1);
        FalseTarget { listener }
    }

    /// Begins a migration, and accepts it.
    fn accept(&self, nodes: &mut [Node]) -> Client {
        migrate(nodes, 0, 1);
        let (stream, _) = self.listener.accept().expect("is connected");
        let mut source = Client(std::io::BufReader::new(stream));
        let request = source.answer();
        assert!(request.starts_with("(CLUSTER SYNCSLOTS ESTABLISH"), "{request}");
        source.0.get_mut().write_all(b"+OK\r\n").expect("is sent");
        source
    }
}

fn send(source: &mut Client, message: &str) {
    source.send(&["CLUSTER", "SYNCSLOTS", message]);
}

/// Reads until the snapshot is complete.
fn read_snapshot(source: &mut Client) {
    while source.answer() != "(CLUSTER SYNCSLOTS SNAPSHOT-EOF)" {}
}

/// Gives the first node so many keys that no socket takes them all at once.
fn set_large_keys(nodes: &mut [Node]) {
    let value = "v".repeat(1 << 20);
    for index in 0..40 {
        assert_eq!(nodes[0].call(&["SET", &format!("{KEY}{index}"), &value]), "OK");
    }
}

fn wait_for_snapshots(node: &mut Node) {
    node.client.wait_for_info("rdb_bgsave_in_progress", "0");
    wait_until("a dump begins", || {
        node.call(&["BGSAVE"]) == "Background saving started"
    });
    node.client.wait_for_info("rdb_bgsave_in_progress", "0");
}

#[test]
fn a_target_may_request_the_pause_only_after_the_snapshot() {
    let mut nodes = weft_with(3, &[]);
    set_large_keys(&mut nodes);
    let target = FalseTarget::start(&mut nodes);
    let mut source = target.accept(&mut nodes);
    wait_for_state(&mut nodes[0], "snapshotting");
    send(&mut source, "REQUEST-PAUSE");
    wait_for_state(&mut nodes[0], "failed");
    assert_eq!(job(&mut nodes[0], "message"), UNEXPECTED);
    wait_for_snapshots(&mut nodes[0]);
    assert_eq!(nodes[0].call(&["SET", &format!("{KEY}0"), "value"]), "OK");
    // A message right after the end of the snapshot is in time.
    for _ in 0..10 {
        let mut source = target.accept(&mut nodes);
        read_snapshot(&mut source);
        send(&mut source, "REQUEST-PAUSE");
        while source.answer() != "(CLUSTER SYNCSLOTS PAUSED)" {}
        assert_eq!(nodes[0].call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]), "OK");
        wait_for_state(&mut nodes[0], "cancelled");
    }
}

#[test]
fn a_target_that_takes_no_snapshot_does_not_keep_others_from_theirs() {
    let mut nodes = weft_with(3, &["--repl-timeout", "2"]);
    set_large_keys(&mut nodes);
    let target = FalseTarget::start(&mut nodes);
    let mut source = target.accept(&mut nodes);
    wait_for_state(&mut nodes[0], "snapshotting");
    wait_until("the job ends", || {
        // The connection may be closed meanwhile.
        let _ = source.try_send(&["CLUSTER", "SYNCSLOTS", "ACK"]);
        thread::sleep(Duration::from_millis(100));
        job(&mut nodes[0], "state") == "failed"
    });
    assert_eq!(job(&mut nodes[0], "message"), TIMED_OUT);
    wait_for_snapshots(&mut nodes[0]);
    // A target that is merely slow is no such one.
    let mut source = target.accept(&mut nodes);
    let start = Instant::now();
    while source.answer() != "(CLUSTER SYNCSLOTS SNAPSHOT-EOF)" {
        thread::sleep(Duration::from_millis(100));
        send(&mut source, "ACK");
    }
    assert!(start.elapsed() > Duration::from_secs(3));
    wait_for_state(&mut nodes[0], "replicating");
}

/// Reads some megabytes per second from a source, until that ends or the test does.
fn read_slowly(mut source: Client, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 40_000];
        while !stop.load(Ordering::Relaxed) {
            if matches!(source.0.get_mut().read(&mut buffer), Ok(0) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    })
}

/// Writes up to twenty megabytes per second for some seconds. Returns the number of writes, and the longest time of
/// one.
fn write_quickly(port: u16, time: Duration) -> (u64, Duration) {
    let mut client = Client::connect(port);
    let value = "v".repeat(20_000);
    let start = Instant::now();
    let (mut count, mut longest) = (0, Duration::ZERO);
    while start.elapsed() < time {
        let sent = Instant::now();
        assert_eq!(client.call(&["SET", &format!("{KEY}written"), &value]), "OK");
        longest = longest.max(sent.elapsed());
        count += 1;
        thread::sleep(Duration::from_millis(1));
    }
    (count, longest)
}

/// Sends requests that write nothing, a hundred per second. Returns their number, and the longest time of one: a slow
/// machine delays these, too.
fn ping_meanwhile(port: u16, time: Duration) -> (u64, Duration) {
    let mut client = Client::connect(port);
    let start = Instant::now();
    let (mut count, mut longest) = (0, Duration::ZERO);
    while start.elapsed() < time {
        let sent = Instant::now();
        assert_eq!(client.call(&["PING"]), "PONG");
        longest = longest.max(sent.elapsed());
        count += 1;
        thread::sleep(Duration::from_millis(10));
    }
    (count, longest)
}

/// Starts nodes whose first one has such limits and a migration that waits to pause the writes.
fn waiting_to_pause(limits: &str) -> (Vec<Node>, Client) {
    let mut nodes = weft_with(3, &[]);
    set_keys(&mut nodes[0], 10);
    let request = ["CONFIG", "SET", "client-output-buffer-limit", limits];
    assert_eq!(nodes[0].call(&request), "OK");
    set_debug(&mut nodes[..1], "PREVENT-PAUSE", "1");
    let target = FalseTarget::start(&mut nodes);
    let mut source = target.accept(&mut nodes);
    read_snapshot(&mut source);
    send(&mut source, "REQUEST-PAUSE");
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    (nodes, source)
}

fn slow_target_keeps_its_migration(limits: &str) {
    let (mut nodes, source) = waiting_to_pause(limits);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = read_slowly(source, stop.clone());
    let (port, time) = (nodes[0].port, Duration::from_secs(10));
    let pings = thread::spawn(move || ping_meanwhile(port, time));
    let (count, longest) = write_quickly(port, time);
    let (pings, longest_ping) = pings.join().expect("ends");
    assert_eq!(
        job(&mut nodes[0], "state"),
        "waiting-to-pause",
        "{limits}: {count} writes"
    );
    assert!(
        count > 500_u64.min(pings * 6 / 10),
        "{limits}: {count} writes, {pings} pings"
    );
    assert!(
        longest < Duration::from_secs(1) + 2 * longest_ping,
        "{limits}: a write took {longest:?}, a ping {longest_ping:?}"
    );
    stop.store(true, Ordering::Relaxed);
    reader.join().expect("ends");
}

#[test]
fn writers_are_slowed_while_a_large_backlog_is_sent() {
    slow_target_keeps_its_migration("replica 20mb 0 0");
}

#[test]
fn writers_are_slowed_before_the_soft_limit_ends_a_migration() {
    slow_target_keeps_its_migration("replica 0 20mb 2");
}

#[test]
fn what_a_target_does_not_take_is_counted_and_limited() {
    let (mut nodes, _source) = waiting_to_pause("replica 64mb 0 0");
    let unsent = |node: &mut Node| {
        let bytes = node.client.info("mem_cluster_slot_export");
        bytes.parse::<u64>().expect("a number")
    };
    assert_eq!(unsent(&mut nodes[0]), 0);
    let value = "v".repeat(8 << 20);
    assert_eq!(nodes[0].call(&["SET", KEY, &value]), "OK");
    wait_until("much is unsent", || unsent(&mut nodes[0]) > 4 << 20);
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 0 0"];
    assert_eq!(nodes[0].call(&limit), "OK");
    wait_for_state(&mut nodes[0], "failed");
    let message = job(&mut nodes[0], "message");
    assert!(message.starts_with("Connection lost to target"), "{message}");
    nodes[0]
        .client
        .wait_for_info("client_output_buffer_limit_disconnections", "1");
    assert_eq!(unsent(&mut nodes[0]), 0);
    assert_eq!(nodes[0].call(&["STRLEN", KEY]), value.len().to_string());
}

#[test]
fn writes_are_paused_once_little_enough_is_unsent() {
    const LIMIT: &str = "slot-migration-max-failover-repl-bytes";
    let mut nodes = weft_with(3, &[]);
    let target = FalseTarget::start(&mut nodes);
    let value = "v".repeat(8 << 20);
    for limit in ["-1", "64mb"] {
        assert_eq!(nodes[0].call(&["CONFIG", "SET", LIMIT, "0"]), "OK");
        let mut source = target.accept(&mut nodes);
        read_snapshot(&mut source);
        assert_eq!(nodes[0].call(&["SET", KEY, &value]), "OK");
        wait_until("the write is to be sent", || {
            let unsent = job(&mut nodes[0], "remaining_repl_size");
            unsent.parse::<u64>().expect("a number") > 4 << 20
        });
        send(&mut source, "REQUEST-PAUSE");
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        assert_eq!(nodes[0].call(&["CONFIG", "SET", LIMIT, limit]), "OK");
        wait_for_state(&mut nodes[0], "failover-paused");
        assert_eq!(nodes[0].call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]), "OK");
        wait_for_state(&mut nodes[0], "cancelled");
    }
}

/// Keeps some megabytes unsent: the source gets as much to send as is read from it. So the target makes progress, but
/// never has everything.
fn keep_behind(port: u16, mut source: Client, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut client = Client::connect(port);
        let value = "v".repeat(20_000);
        let mut buffer = vec![0; value.len()];
        let mut writes = 0;
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(client.call(&["SET", &format!("{KEY}written"), &value]), "OK");
            writes += 1;
            if writes > 250 {
                source.0.read_exact(&mut buffer).expect("is received");
            }
        }
    })
}

#[test]
fn scripts_run_side_by_side_while_writers_are_to_be_slowed() {
    const SHORT: [&str; 4] = ["EVAL", "for i = 1, 20000000 do end return 'done'", "1", "{f}"];
    let (mut nodes, source) = waiting_to_pause("replica 1gb 0 0");
    let stop = Arc::new(AtomicBool::new(false));
    let port = nodes[0].port;
    // No script becomes overdue: other scripts may start then in any case.
    let threshold = ["CONFIG", "SET", "busy-reply-threshold", "600000"];
    assert_eq!(nodes[0].call(&threshold), "OK");
    let start = Instant::now();
    assert_eq!(nodes[0].call(&SHORT), "done");
    let alone = start.elapsed();
    let writer = keep_behind(port, source, stop.clone());
    // The brake is in use.
    thread::sleep(Duration::from_secs(2));
    // As long as the first script runs, no hold can begin. The keys of both do not leave.
    let mut endless = Client::connect(port);
    nodes[0]
        .server()
        .run_script(&mut endless, &["EVAL", "while true do end", "1", "{bar}"]);
    let start = Instant::now();
    for _ in 0..8 {
        let mut short = Client::connect(port);
        short.send(&SHORT);
        wait_until("another script ends", || !short.is_waiting());
        assert_eq!(short.answer(), "done");
    }
    // If each waited for a moment in which no hold is due, they would take minutes.
    let took = start.elapsed();
    let limit = Duration::from_secs(30).max(24 * alone);
    assert!(took < limit, "{took:?}, and {alone:?} for one script alone");
    assert!(endless.is_waiting());
    assert_eq!(nodes[0].call(&["SCRIPT", "KILL"]), "OK");
    assert!(endless.answer().contains("Script killed by user"));
    assert_eq!(job(&mut nodes[0], "state"), "waiting-to-pause");
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("ends");
}

/// Begins an import of one slot as its source.
fn establish(nodes: &mut [Node], name: &str) -> Client {
    establish_range(nodes, name, ["3300", "3300"])
}

fn establish_range(nodes: &mut [Node], name: &str, range: [&str; 2]) -> Client {
    establish_over(Client::connect(nodes[1].port), nodes, name, range)
}

/// Begins an import over a connection to the second node.
fn establish_over(mut client: Client, nodes: &[Node], name: &str, [first, last]: [&str; 2]) -> Client {
    let establish = [
        "CLUSTER",
        "SYNCSLOTS",
        "ESTABLISH",
        "SOURCE",
        &nodes[0].id,
        "NAME",
        name,
        "SLOTSRANGE",
        first,
        last,
    ];
    assert_eq!(client.call(&establish), "OK");
    send(&mut client, "ACK");
    client
}

#[test]
fn a_source_cannot_announce_values_without_end() {
    let mut nodes = weft_with(3, &[]);
    for (round, length) in ["536870913", "3000000000", "9223372036854775807"].iter().enumerate() {
        let mut client = establish(&mut nodes, &format!("{round:040}"));
        let request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{KEY}\r\n${length}\r\n", KEY.len());
        client.0.get_mut().write_all(request.as_bytes()).expect("is sent");
        wait_for_state(&mut nodes[1], "failed");
        let message = job(&mut nodes[1], "message");
        assert!(message.starts_with("Failed to process command"), "{length}: {message}");
        let mut rest = Vec::new();
        // The other side may also reset the connection.
        let _ = client.0.read_to_end(&mut rest);
    }
    // A value that this node would not take from its clients is imported.
    let value = "v".repeat(3 << 20);
    assert_eq!(nodes[0].call(&["SET", KEY, &value]), "OK");
    assert_eq!(nodes[1].call(&["CONFIG", "SET", "proto-max-bulk-len", "1mb"]), "OK");
    assert_eq!(
        nodes[1].call(&["CONFIG", "SET", "client-query-buffer-limit", "1mb"]),
        "OK"
    );
    move_slots(&mut nodes, 0, 1);
    assert_eq!(nodes[1].call(&["STRLEN", KEY]), value.len().to_string());
}

#[test]
fn a_source_may_send_only_writes_that_wait_for_nothing() {
    let mut nodes = weft_with(3, &[]);
    // A server that accepts connections and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = silent.local_addr().expect("has an address").port().to_string();
    let migrate = ["MIGRATE", "127.0.0.1", &port, KEY, "0", "600000"];
    let requests: [&[&str]; 3] = [&migrate, &["WATCH", KEY], &["GET", KEY]];
    for (round, request) in requests.into_iter().enumerate() {
        let mut source = establish(&mut nodes, &format!("{round:040}"));
        source.send(&["SET", KEY, "value"]);
        source.send(request);
        wait_for_state(&mut nodes[1], "failed");
        let message = job(&mut nodes[1], "message");
        assert!(
            message.starts_with("Failed to process command"),
            "{request:?}: {message}"
        );
        assert_eq!(nodes[1].client.info("total_watched_keys"), "0", "{request:?}");
        assert_eq!(count_keys(&mut nodes[1]), "0", "{request:?}");
    }
}

#[test]
fn messages_of_the_other_side_end_a_migration() {
    let mut nodes = weft_with(3, &[]);
    for (round, message) in ["REQUEST-PAUSE", "REQUEST-FAILOVER"].iter().enumerate() {
        let mut source = establish(&mut nodes, &format!("{round:040}"));
        send(&mut source, message);
        wait_for_state(&mut nodes[1], "failed");
        assert_eq!(job(&mut nodes[1], "message"), UNEXPECTED, "{message}");
    }
    let target = FalseTarget::start(&mut nodes);
    for (message, reason) in [
        ("SNAPSHOT-EOF", UNEXPECTED),
        ("PAUSED", UNEXPECTED),
        ("FAILOVER-GRANTED", UNEXPECTED),
        ("OTHER", "Unknown SYNCSLOTS subcommand used"),
    ] {
        let mut source = target.accept(&mut nodes);
        send(&mut source, message);
        wait_for_state(&mut nodes[0], "failed");
        assert_eq!(job(&mut nodes[0], "message"), reason, "{message}");
    }
}

#[test]
fn an_import_is_replayed_after_its_slots_have_come_to_several_nodes() {
    let mut nodes = weft_with(3, &["--appendonly", "yes", "--logfile", "log"]);
    let source = establish_range(&mut nodes, &"0".repeat(40), ["3300", "3301"]);
    drop(source);
    wait_for_state(&mut nodes[1], "failed");
    let [first, third] = [0, 2].map(|index: usize| nodes[index].id.clone());
    for (change, id) in [("IMPORTING", &first), ("NODE", &third)] {
        assert_eq!(nodes[2].call(&["CLUSTER", "SETSLOT", "3301", change, id]), "OK");
    }
    wait_until("the new owner is known", || {
        let lines = nodes[1].call(&["CLUSTER", "NODES"]);
        lines
            .lines()
            .any(|line| line.starts_with(&third) && line.contains(" 3301"))
    });
    nodes[1].server().kill();
    nodes[1].server().start_again();
    nodes[1].client = Client::connect(nodes[1].port);
    wait_for_state(&mut nodes[1], "failed");
    let log = std::fs::read_to_string(nodes[1].server().directory.join("log")).expect("is there");
    assert!(!log.contains("CRITICAL"), "{log}");
}

#[test]
fn messages_of_a_source_need_the_permission_of_its_user_when_they_arrive() {
    let mut nodes = weft_with(3, &["--logfile", "log"]);
    let user = ["ACL", "SETUSER", "joe", "on", "nopass", "~*", "alldbs", "+@all"];
    assert_eq!(nodes[1].call(&user), "OK");
    for (round, denied) in ["-cluster|syncslots", "-@all"].iter().enumerate() {
        assert_eq!(nodes[1].call(&["ACL", "SETUSER", "joe", "+@all"]), "OK");
        let mut source = Client::connect(nodes[1].port);
        assert_eq!(source.call(&["AUTH", "joe", "any"]), "OK");
        let mut source = establish_over(source, &nodes, &format!("{round:040}"), ["3300", "3300"]);
        wait_for_state(&mut nodes[1], "receiving-snapshot");
        assert_eq!(nodes[1].call(&["ACL", "SETUSER", "joe", denied]), "OK");
        send(&mut source, "SNAPSHOT-EOF");
        wait_for_state(&mut nodes[1], "failed");
        let message = job(&mut nodes[1], "message");
        assert!(message.starts_with("Failed to process command"), "{message}");
        let denials = nodes[1].call(&["ACL", "LOG"]);
        assert!(
            denials.contains("cluster|syncslots") && denials.contains("joe"),
            "{denials}"
        );
    }
    let log = std::fs::read_to_string(nodes[1].server().directory.join("log")).expect("is there");
    let expected = "NOPERM User joe has no permissions to run the 'cluster|syncslots' command' after processing the \
                    command 'cluster|syncslots'";
    assert_eq!(log.matches(expected).count(), 2, "{log}");
}

#[test]
fn a_pause_of_writes_holds_back_the_messages_of_a_source() {
    let mut nodes = weft_with(3, &[]);
    let mut source = establish(&mut nodes, &"0".repeat(40));
    wait_for_state(&mut nodes[1], "receiving-snapshot");
    assert_eq!(nodes[1].call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "OK");
    send(&mut source, "SNAPSHOT-EOF");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(job(&mut nodes[1], "state"), "receiving-snapshot");
    assert_eq!(nodes[1].call(&["CLIENT", "UNPAUSE"]), "OK");
    wait_for_state(&mut nodes[1], "waiting-for-paused");
}

/// The times have a resolution of a second.
const NEXT_SECOND: Duration = Duration::from_millis(1100);

#[test]
fn an_export_shows_the_time_of_the_last_acknowledgement() {
    let mut nodes = weft_with(3, &[]);
    let target = FalseTarget::start(&mut nodes);
    migrate(&mut nodes, 0, 1);
    let (stream, _) = target.listener.accept().expect("is connected");
    let mut source = Client(std::io::BufReader::new(stream));
    source.answer();
    let created = job(&mut nodes[0], "create_time");
    thread::sleep(NEXT_SECOND);
    // The reply to ESTABLISH is no acknowledgement, and neither are capabilities.
    source.0.get_mut().write_all(b"+OK\r\n").expect("is sent");
    source.send(&["CLUSTER", "SYNCSLOTS", "CAPA", "new"]);
    read_snapshot(&mut source);
    wait_for_state(&mut nodes[0], "replicating");
    assert_eq!(job(&mut nodes[0], "last_ack_time"), created);
    // Later versions may add words.
    source.send(&["CLUSTER", "SYNCSLOTS", "ACK", "more"]);
    wait_until("the acknowledgement is there", || {
        job(&mut nodes[0], "last_ack_time") > created
    });
    assert_eq!(job(&mut nodes[0], "state"), "replicating");
}

#[test]
fn an_import_shows_the_time_of_the_last_acknowledgement() {
    let mut nodes = weft_with(3, &[]);
    let mut source = establish(&mut nodes, &"0".repeat(40));
    wait_for_state(&mut nodes[1], "receiving-snapshot");
    let acknowledged = job(&mut nodes[1], "last_ack_time");
    thread::sleep(NEXT_SECOND);
    source.send(&["SET", KEY, "value"]);
    wait_until("the key has arrived", || count_keys(&mut nodes[1]) == "1");
    assert_eq!(job(&mut nodes[1], "last_ack_time"), acknowledged, "a command is none");
    send(&mut source, "ACK");
    wait_until("the acknowledgement is there", || {
        job(&mut nodes[1], "last_ack_time") > acknowledged
    });
}

/// A source of a later version may send its capabilities first, and reads the reply to ESTABLISH after that.
#[test]
fn capabilities_have_no_reply() {
    let mut nodes = weft_with(3, &[]);
    let capabilities = ["CLUSTER", "SYNCSLOTS", "CAPA", "one", "two"];
    let mut source = Client::connect(nodes[1].port);
    source.send(&capabilities);
    assert_eq!(source.call(&["PING"]), "PONG");
    source.send(&capabilities);
    let mut source = establish_over(source, &nodes, &"0".repeat(40), ["3300", "3300"]);
    wait_for_state(&mut nodes[1], "receiving-snapshot");
    source.send(&capabilities);
    send(&mut source, "SNAPSHOT-EOF");
    let mut message = source.answer();
    while message == "(CLUSTER SYNCSLOTS ACK)" {
        message = source.answer();
    }
    assert_eq!(message, "(CLUSTER SYNCSLOTS REQUEST-PAUSE)");
    // A transaction replies to each of its commands.
    let mut client = Client::connect(nodes[1].port);
    assert_eq!(client.call(&["MULTI"]), "OK");
    assert_eq!(client.call(&capabilities), "QUEUED");
    assert_eq!(client.call(&["EXEC"]), "(OK)");
}

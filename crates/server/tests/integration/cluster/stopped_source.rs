//! Tests the source of a slot migration that does not hear of the takeover in time, in particular because its process
//! is stopped in the hand-over.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::failover::{KEY, Node, weft_with};
use super::migration::{job, migrate, set_debug, set_keys, wait_for_state};
use crate::harness::client::Client;
use crate::harness::wait_until;

/// The number of clients that write during the hand-over.
const WRITERS: usize = 8;
/// The time for which the source is stopped. Its target may take the slots over for two seconds.
const STOPPED: Duration = Duration::from_secs(3);
/// The number of the type of messages that announces a new owner.
const PONG: &str = "1";
/// The attempts to disturb a hand-over within that time.
const ATTEMPTS: usize = 5;

/// Returns the key that a client writes.
fn written_key(number: usize) -> String {
    format!("{KEY}written{number}")
}

/// Sends a write of each client. The source holds them back.
fn start_writes(source: &Node) -> Vec<Client> {
    let write = |number: usize| {
        let mut client = Client::connect(source.port);
        client.send(&["SET", &written_key(number), "value"]);
        client
    };
    let writers = (0..WRITERS).map(write).collect();
    thread::sleep(Duration::from_millis(200));
    writers
}

/// Stops the source right after it has permitted the takeover. Returns clients whose writes are held back; `None` if
/// the machine was so slow that the time of the target was over.
fn stop_in_hand_over(nodes: &mut [Node]) -> Option<Vec<Client>> {
    set_debug(nodes, "PREVENT-FAILOVER", "1");
    migrate(nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    let writers = start_writes(&nodes[0]);
    nodes[0].server().signal(Signal::SIGSTOP);
    if writers.iter().all(Client::is_waiting) {
        return Some(writers);
    }
    nodes[0].server().signal(Signal::SIGCONT);
    end_late_migration(nodes, writers);
    None
}

/// Returns `true` if the newest job of a node has ended.
fn has_ended(node: &mut Node) -> bool {
    ["failed", "success"].contains(&job(node, "state").as_str())
}

/// Waits for the end of a migration whose target is too late, and deletes what the clients have written on its source.
fn end_late_migration(nodes: &mut [Node], writers: Vec<Client>) {
    set_debug(nodes, "PREVENT-FAILOVER", "0");
    for mut writer in writers {
        writer.answer();
    }
    for node in &mut nodes[..2] {
        wait_until("the migration ends", || has_ended(node));
    }
    for number in 0..WRITERS {
        assert_eq!(nodes[0].call(&["DEL", &written_key(number)]), "1");
    }
}

/// The bus reads the announcement of the new owner behind much else, long after the time of the takeover is over.
#[test]
fn a_source_that_was_stopped_in_the_hand_over_accepts_no_write_that_would_be_lost() {
    let mut nodes = weft_with(3, &["--cluster-manual-failover-timeout", "500"]);
    set_keys(&mut nodes[0], 10);
    let mut writers = (0..ATTEMPTS)
        .find_map(|_| stop_in_hand_over(&mut nodes))
        .expect("the source is stopped in time");
    let stopped_at = Instant::now();
    let message = "x".repeat(100_000);
    for _ in 0..300 {
        nodes[1].call(&["PUBLISH", "channel", &message]);
    }
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "0");
    wait_for_state(&mut nodes[1], "success");
    thread::sleep(STOPPED.saturating_sub(stopped_at.elapsed()));
    nodes[0].server().signal(Signal::SIGCONT);
    let answers: Vec<String> = writers.iter_mut().map(Client::answer).collect();
    let acknowledged = answers.iter().filter(|answer| *answer == "OK").count();
    assert_eq!(acknowledged, 0, "the new owner does not have these writes: {answers:?}");
    assert!(answers.iter().all(|answer| answer.starts_with("MOVED ")), "{answers:?}");
    wait_for_state(&mut nodes[0], "success");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "10");
}

/// Sets the type of the messages that a node does not read; -1 for none.
fn set_filter(node: &mut Node, kind: &str) {
    assert_eq!(node.call(&["DEBUG", "DROP-CLUSTER-PACKET-FILTER", kind]), "OK");
}

/// Lets the target take over, and the source miss its announcement. Returns clients whose writes are held back; `None`
/// if the machine was so slow that the time of the target was over.
fn miss_announcement(nodes: &mut [Node]) -> Option<Vec<Client>> {
    set_debug(nodes, "PREVENT-FAILOVER", "1");
    migrate(nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    let writers = start_writes(&nodes[0]);
    set_filter(&mut nodes[0], PONG);
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "0");
    wait_until("the target takes over or is too late", || has_ended(&mut nodes[1]));
    if job(&mut nodes[1], "state") == "success" {
        return Some(writers);
    }
    set_filter(&mut nodes[0], "-1");
    end_late_migration(nodes, writers);
    None
}

/// Nodes that do not ping random others name their slots only when they are asked, or after half a minute.
#[test]
fn a_source_that_missed_the_announcement_asks_before_it_accepts_writes() {
    let mut nodes = weft_with(3, &["--cluster-manual-failover-timeout", "500"]);
    set_keys(&mut nodes[0], 10);
    for node in &mut nodes {
        assert_eq!(node.call(&["DEBUG", "DISABLE-CLUSTER-RANDOM-PING", "1"]), "OK");
    }
    let mut writers = (0..ATTEMPTS)
        .find_map(|_| miss_announcement(&mut nodes))
        .expect("the target takes over in time");
    thread::sleep(Duration::from_millis(300));
    set_filter(&mut nodes[0], "-1");
    let answers: Vec<String> = writers.iter_mut().map(Client::answer).collect();
    assert!(answers.iter().all(|answer| answer.starts_with("MOVED ")), "{answers:?}");
    wait_for_state(&mut nodes[0], "success");
    assert_eq!(nodes[1].call(&["DBSIZE"]), "10");
}

//! Tests which migrations of whole slots are refused, and those that fail before anything is sent.

use super::failover::{KEY, Node, weft_with};
use super::migration::{count_keys, job, migrate, move_slots, set_debug, set_keys, wait_for_state};
use super::wait_until;
use crate::harness::client::Client;
use crate::harness::port::free_port;

/// The slot of [`KEY`].
const SLOT: &str = "3300";
const NOT_PRIMARY: &str = "ERR Slot migration can only be used on primary nodes.";

fn migrate_slots(node: &mut Node, words: &[&str]) -> String {
    node.call(&[&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"], words].concat())
}

fn set_slot(node: &mut Node, words: &[&str]) -> String {
    node.call(&[&["CLUSTER", "SETSLOT", "1"], words].concat())
}

/// Requests an import of slots as the node `source`, on a connection of its own.
fn establish(node: &mut Node, source: &str, slots: [&str; 2]) -> (String, Client) {
    let mut client = Client::connect(node.port);
    let name = "a".repeat(40);
    let head = [
        "CLUSTER",
        "SYNCSLOTS",
        "ESTABLISH",
        "SOURCE",
        source,
        "NAME",
        &name,
        "SLOTSRANGE",
    ];
    let reply = client.call(&[&head[..], &slots].concat());
    (reply, client)
}

#[test]
fn migrations_that_cannot_succeed_are_refused() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    let ids: Vec<String> = nodes.iter().map(|node| node.id.clone()).collect();
    let [first, second, third] = [0, 1, 2].map(|index: usize| ids[index].as_str());
    let unknown = "f".repeat(40);
    let unknown_name = format!("ERR Unknown node name: {unknown}");
    let cases: [(&[&str], &str); 7] = [
        (&["0", "0", "NODE", first], "ERR Target node can not be this node."),
        (&["0", "0", "NODE", &unknown], &unknown_name),
        (&["0", "0", "NODE", "short"], "ERR Invalid node name: short"),
        (
            &["6000", "6000", "NODE", second],
            "ERR Slots are not served by this node.",
        ),
        (
            &["0", "6000", "NODE", second],
            "ERR Requested slots span multiple shards",
        ),
        (
            &["0", "1", "1", "2", "NODE", second],
            "ERR Slot range 1-2 overlaps with previous range 0-1.",
        ),
        (
            &["0", "0", "NODE", second, "SLOTSRANGE", "0", "0", "NODE", third],
            "ERR Slot ranges in migrations overlap",
        ),
    ];
    for (words, error) in cases {
        assert_eq!(migrate_slots(&mut nodes[0], words), error, "{words:?}");
    }
    let good = ["0", "0", "NODE", second];
    assert_eq!(migrate_slots(&mut nodes[3], &good), NOT_PRIMARY);
    assert_eq!(nodes[0].call(&["CLUSTER", "GETSLOTMIGRATIONS"]), "()");
    // Slots that move key by key exclude those that move as a whole, and the other way round.
    assert_eq!(set_slot(&mut nodes[0], &["MIGRATING", second]), "OK");
    let migrating = "ERR Slots are being manually migrated";
    assert_eq!(migrate_slots(&mut nodes[0], &good), migrating);
    assert_eq!(set_slot(&mut nodes[0], &["STABLE"]), "OK");
    assert_eq!(set_slot(&mut nodes[1], &["IMPORTING", first]), "OK");
    let importing = "ERR Slots are being manually imported";
    assert_eq!(
        migrate_slots(&mut nodes[1], &["6000", "6000", "NODE", first]),
        importing
    );
    assert_eq!(establish(&mut nodes[1], first, ["0", "0"]).0, importing);
    assert_eq!(set_slot(&mut nodes[1], &["STABLE"]), "OK");
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "waiting-to-pause");
    let again = ["0", SLOT, "NODE", third];
    let already = format!("ERR I am already migrating slot {SLOT}.");
    assert_eq!(migrate_slots(&mut nodes[0], &again), already);
    let exporting = "ERR Slot export in progress.";
    assert_eq!(set_slot(&mut nodes[0], &["MIGRATING", second]), exporting);
    let importing = "ERR Slot import in progress.";
    assert_eq!(set_slot(&mut nodes[1], &["IMPORTING", first]), importing);
}

#[test]
fn imports_that_cannot_succeed_are_refused() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    let ids: Vec<String> = nodes.iter().map(|node| node.id.clone()).collect();
    let [first, second, third] = [0, 1, 2].map(|index: usize| ids[index].as_str());
    let unknown = "f".repeat(40);
    for (source, slots, error) in [
        (
            unknown.as_str(),
            ["0", "0"],
            "ERR Target node does not know the source node",
        ),
        (second, ["0", "0"], "ERR Source node is target node itself"),
        (
            third,
            ["0", "0"],
            "ERR Target node does not agree about current slot ownership",
        ),
        (first, ["0", "6000"], "ERR Requested slots span multiple shards"),
        (
            first,
            ["2", "1"],
            "ERR Start slot number 2 is greater than end slot number 1.",
        ),
    ] {
        assert_eq!(establish(&mut nodes[1], source, slots).0, error);
    }
    assert_eq!(establish(&mut nodes[3], first, ["0", "0"]).0, NOT_PRIMARY);
    assert_eq!(nodes[1].call(&["CLUSTER", "GETSLOTMIGRATIONS"]), "()");
    let (reply, source) = establish(&mut nodes[1], first, ["0", "5"]);
    assert_eq!(reply, "OK");
    let twice = "ERR Slot is already being imported on the target by a different migration";
    assert_eq!(establish(&mut nodes[1], first, ["5", "6"]).0, twice);
    // Once the import has ended, another one may begin.
    drop(source);
    wait_for_state(&mut nodes[1], "failed");
    assert_eq!(establish(&mut nodes[1], first, ["5", "6"]).0, "OK");
}

#[test]
fn a_migration_fails_with_the_answer_of_its_target() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    set_keys(&mut nodes[0], 10);
    let fails = |nodes: &mut [Node], from: usize, to: usize, message: &str| {
        migrate(nodes, from, to);
        wait_for_state(&mut nodes[from], "failed");
        assert_eq!(job(&mut nodes[from], "message"), message);
        assert_eq!(count_keys(&mut nodes[from]), "10");
    };
    let refused = "Received error during handshake to target: -";
    fails(&mut nodes, 0, 3, &format!("{refused}{NOT_PRIMARY}"));
    assert_eq!(nodes[1].call(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    fails(&mut nodes, 0, 1, &format!("{refused}NOAUTH Authentication required."));
    assert_eq!(nodes[0].call(&["CONFIG", "SET", "primaryauth", "wrong"]), "OK");
    let wrong = "Failed to AUTH to target node: -WRONGPASS invalid username-password pair or user is disabled.";
    fails(&mut nodes, 0, 1, wrong);
    assert_eq!(nodes[0].call(&["CONFIG", "SET", "primaryauth", "secret"]), "OK");
    move_slots(&mut nodes, 0, 1);
    assert_eq!(count_keys(&mut nodes[1]), "10");
    // No server listens at the port that the third node announces.
    let port = free_port().to_string();
    assert_eq!(nodes[2].call(&["CONFIG", "SET", "cluster-announce-port", &port]), "OK");
    wait_until("the source knows the port", || nodes[1].sees(&format!(":{port}@")) == 1);
    fails(&mut nodes, 1, 2, "Unable to connect to target node: Connection refused");
    assert_eq!(nodes[1].call(&["GET", &format!("{KEY}0")]), "value");
}

//! Tests slots that migrate while a replica of their target starts again, or while data of their source is flushed.

use super::failover::{KEY, Node, weft_with};
use super::migration::{count_keys, job, migrate, move_slots, set_debug, set_keys, wait_for_state};
use super::wait_until;
use crate::harness::client::Client;

fn start_again(node: &mut Node) {
    node.server().kill();
    node.server().start_again();
    node.client = Client::connect(node.port);
}

/// The replica has the unfinished import from its own file, or from the dump of its primary.
#[test]
fn a_replica_that_starts_again_hides_the_keys_of_an_import() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &[]);
    move_slots(&mut nodes, 0, 1);
    set_keys(&mut nodes[1], 10);
    for has_file in [false, true] {
        set_debug(&mut nodes[..3], "PREVENT-PAUSE", "1");
        migrate(&mut nodes, 1, 0);
        wait_for_state(&mut nodes[1], "waiting-to-pause");
        wait_until("the replica has the keys", || count_keys(&mut nodes[3]) == "10");
        if has_file {
            assert_eq!(nodes[3].call(&["SAVE"]), "OK");
        }
        start_again(&mut nodes[3]);
        let port = nodes[0].port;
        wait_until("the replica is connected", || nodes[3].follows(port));
        wait_until("the replica has the keys again", || count_keys(&mut nodes[3]) == "10");
        assert_eq!(nodes[3].call(&["DBSIZE"]), "0", "{has_file}");
        wait_for_state(&mut nodes[3], "occurring-on-primary");
        set_debug(&mut nodes[..3], "PREVENT-PAUSE", "0");
        for node in &mut nodes[..2] {
            wait_for_state(node, "success");
        }
        wait_until("the replica shows the keys", || nodes[3].call(&["DBSIZE"]) == "10");
        move_slots(&mut nodes, 0, 1);
        wait_until("the replica has no key", || nodes[3].call(&["DBSIZE"]) == "0");
    }
    assert_eq!(count_keys(&mut nodes[1]), "10");
}

#[test]
fn flushing_any_database_of_the_source_ends_its_exports() {
    let mut nodes = weft_with(3, &["--cluster-databases", "4"]);
    set_debug(&mut nodes, "PREVENT-PAUSE", "1");
    for (flush, left) in [("FLUSHDB", "10"), ("FLUSHALL", "0")] {
        set_keys(&mut nodes[0], 10);
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        wait_until("the keys have arrived", || count_keys(&mut nodes[1]) == "10");
        assert_eq!(nodes[0].call(&["SELECT", "2"]), "OK");
        assert_eq!(nodes[0].call(&[flush]), "OK");
        assert_eq!(nodes[0].call(&["SELECT", "0"]), "OK");
        for node in &mut nodes[..2] {
            wait_for_state(node, "failed");
        }
        assert_eq!(job(&mut nodes[0], "message"), "Data was flushed", "{flush}");
        let message = job(&mut nodes[1], "message");
        assert!(message.starts_with("Connection lost to source"), "{flush}: {message}");
        wait_until("no key is left", || count_keys(&mut nodes[1]) == "0");
        assert_eq!(count_keys(&mut nodes[0]), left, "{flush}");
    }
}

#[test]
fn writes_to_slots_that_leave_evict_no_keys() {
    for workers in ["2", "8"] {
        let active = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let mut nodes = weft_with(3, &[&active[..], &["--maxmemory-policy", "allkeys-random"]].concat());
        set_debug(&mut nodes, "PREVENT-PAUSE", "1");
        migrate(&mut nodes, 0, 1);
        wait_for_state(&mut nodes[0], "waiting-to-pause");
        let source = &mut nodes[0];
        let listed = source.call(&["CLIENT", "LIST", "FLAGS", "E"]);
        assert!(
            listed.contains(" flags=E "),
            "the connection is listed at once: {listed}"
        );
        let used: u64 = source.client.info("used_memory").parse().expect("a number");
        let limit = (used + 3_000_000).to_string();
        assert_eq!(source.call(&["CONFIG", "SET", "maxmemory", &limit]), "OK");
        // 30 MB are sent, of which 100 KB stay.
        let value = "v".repeat(1000);
        for _ in 0..300 {
            for key in 0..100 {
                source.client.send(&["SET", &format!("{KEY}{key}"), &value]);
            }
            for _ in 0..100 {
                assert_eq!(source.client.answer(), "OK");
            }
        }
        assert_eq!(source.client.info("evicted_keys"), "0", "{workers} workers");
        assert_eq!(job(source, "state"), "waiting-to-pause");
    }
}

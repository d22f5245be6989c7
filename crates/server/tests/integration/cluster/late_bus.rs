//! Tests a primary whose cluster bus waits for the disk for longer than the node timeout, while its workers could go
//! on.

use std::fs::File;
use std::io::Read;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::failover::{KEY, Node, weft_with};
use super::{LONG_NODE_TIMEOUT_MS, SHORT_NODE_TIMEOUT_MS, set_node_timeout, wait_until};

/// Waits until the bus of a node has sent further messages.
fn wait_for_messages(node: &mut Node) {
    let sent = |node: &mut Node| {
        let info = node.call(&["CLUSTER", "INFO"]);
        let is_wanted = |line: &&str| line.starts_with("cluster_stats_messages_sent:");
        info.lines().find(is_wanted).expect("has the statistics").to_owned()
    };
    let before = sent(node);
    wait_until("messages are sent", || sent(node) != before);
}

/// The other nodes elect the replica, and the old primary hears of it only when its disk answers.
#[test]
fn a_primary_whose_bus_waits_for_the_disk_accepts_no_write_that_would_be_lost() {
    for workers in ["2", "8"] {
        let mut nodes = weft_with(
            4,
            &[
                "--io-threads",
                workers,
                "--io-threads-always-active",
                "yes",
                "--cluster-config-save-behavior",
                "best-effort",
            ],
        );
        assert_eq!(nodes[0].call(&["SET", KEY, "1"]), "OK");
        assert_eq!(nodes[0].call(&["WAIT", "1", "60000"]), "1");
        for node in &mut nodes {
            set_node_timeout(&mut node.client, SHORT_NODE_TIMEOUT_MS);
        }
        // The file has the new settings, and the bus has noticed them.
        assert_eq!(nodes[0].call(&["CLUSTER", "SAVECONFIG"]), "OK");
        wait_for_messages(&mut nodes[0]);
        wait_for_messages(&mut nodes[0]);
        // Opening a named pipe for writing waits for a reader, as a disk may be waited for.
        let process = nodes[0].client.info("process_id");
        let file = nodes[0].server().directory.join(format!("nodes.conf.tmp-{process}"));
        mkfifo(&file, Mode::S_IRUSR | Mode::S_IWUSR).expect("makes a named pipe");
        // The primary stores the epoch of another node.
        assert!(nodes[1].call(&["CLUSTER", "BUMPEPOCH"]).starts_with("BUMPED "));
        wait_until("the replica takes over", || nodes[3].is_primary());
        assert_eq!(nodes[0].call(&["SET", KEY, "2"]), "CLUSTERDOWN The cluster is down");
        for node in &mut nodes[1..] {
            set_node_timeout(&mut node.client, LONG_NODE_TIMEOUT_MS);
        }
        let mut text = String::new();
        let mut pipe = File::open(&file).expect("the primary waits for a reader");
        pipe.read_to_string(&mut text).expect("reads the state");
        assert!(text.contains(" myself,master "), "{text}");
        let port = nodes[3].port;
        wait_until("the old primary follows", || nodes[0].follows(port));
        let moved = format!("MOVED 3300 127.0.0.1:{port}");
        wait_until("it redirects", || nodes[0].call(&["GET", KEY]) == moved);
        wait_until("the new primary serves", || nodes[3].call(&["GET", KEY]) == "1");
    }
}

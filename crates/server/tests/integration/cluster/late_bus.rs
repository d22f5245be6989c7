//! Tests a primary whose cluster bus waits for the disk for longer than the node timeout, while its workers could go
//! on, and the replies to what they write.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::failover::{KEY, Node, weft_with};
use super::leftover_keys::begin_migrate;
use super::{Client, LONG_NODE_TIMEOUT_MS, SHORT_NODE_TIMEOUT_MS, set_node_timeout, wait_until};

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

/// Starts three primaries and a replica of the first one, whose buses may be silent for a short time only.
fn start(workers: &str) -> Vec<Node> {
    let mut nodes = weft_with(
        4,
        &[
            "--io-threads",
            workers,
            "--io-threads-always-active",
            "yes",
            "--cluster-config-save-behavior",
            "best-effort",
            "--busy-reply-threshold",
            "600000",
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
    nodes
}

/// Makes the bus of the first node wait for the disk. Returns the named pipe that takes the place of its file.
fn block_bus(nodes: &mut [Node]) -> PathBuf {
    // Opening a named pipe for writing waits for a reader, as a disk may be waited for.
    let process = nodes[0].client.info("process_id");
    let file = nodes[0].server().directory.join(format!("nodes.conf.tmp-{process}"));
    mkfifo(&file, Mode::S_IRUSR | Mode::S_IWUSR).expect("makes a named pipe");
    // The primary stores the epoch of another node.
    assert!(nodes[1].call(&["CLUSTER", "BUMPEPOCH"]).starts_with("BUMPED "));
    file
}

/// Lets the bus go on that waits for this pipe. Returns what it stores.
fn unblock_bus(file: &Path) -> String {
    let mut text = String::new();
    let mut pipe = File::open(file).expect("the primary waits for a reader");
    pipe.read_to_string(&mut text).expect("reads the state");
    text
}

/// The other nodes elect the replica, and the old primary hears of it only when its disk answers.
#[test]
fn a_primary_whose_bus_waits_for_the_disk_accepts_no_write_that_would_be_lost() {
    for workers in ["2", "8"] {
        let mut nodes = start(workers);
        let file = block_bus(&mut nodes);
        wait_until("the replica takes over", || nodes[3].is_primary());
        assert_eq!(nodes[0].call(&["SET", KEY, "2"]), "CLUSTERDOWN The cluster is down");
        for node in &mut nodes[1..] {
            set_node_timeout(&mut node.client, LONG_NODE_TIMEOUT_MS);
        }
        let text = unblock_bus(&file);
        assert!(text.contains(" myself,master "), "{text}");
        let port = nodes[3].port;
        wait_until("the old primary follows", || nodes[0].follows(port));
        let moved = format!("MOVED 3300 127.0.0.1:{port}");
        wait_until("it redirects", || nodes[0].call(&["GET", KEY]) == moved);
        wait_until("the new primary serves", || nodes[3].call(&["GET", KEY]) == "1");
    }
}

/// Starts a script of a further client that writes [`KEY`] and ends once [`end_script`] is called.
fn start_script(nodes: &mut [Node]) -> Client {
    const SCRIPT: &str = "redis.call('SET', KEYS[1], '2')
        while redis.call('PUBSUB', 'NUMSUB', 'end')[2] == 0 do end
        return 'written'";
    let mut writer = Client::connect(nodes[0].port);
    let words = ["EVAL", SCRIPT, "1", KEY];
    nodes[0].server().run_script(&mut writer, &words);
    writer
}

fn end_script(nodes: &mut [Node]) {
    let mut subscriber = Client::connect(nodes[0].port);
    assert_eq!(subscriber.call(&["SUBSCRIBE", "end"]), "(subscribe end 1)");
    wait_until("the script ends", || {
        nodes[0].call(&["SCRIPT", "KILL"]).starts_with("NOTBUSY")
    });
}

/// The script was admitted before the bus was late, and its write is logged after the failover.
#[test]
fn a_write_that_ends_after_a_failover_gets_no_reply() {
    for workers in ["2", "8"] {
        let mut nodes = start(workers);
        let mut writer = start_script(&mut nodes);
        let file = block_bus(&mut nodes);
        wait_until("the replica takes over", || nodes[3].is_primary());
        end_script(&mut nodes);
        assert!(writer.is_waiting(), "the reply is withheld");
        // Another client, which has written before, gets its replies.
        assert_eq!(nodes[0].call(&["SET", KEY, "3"]), "CLUSTERDOWN The cluster is down");
        assert!(writer.is_waiting(), "the reply is withheld");
        for node in &mut nodes[1..] {
            set_node_timeout(&mut node.client, LONG_NODE_TIMEOUT_MS);
        }
        unblock_bus(&file);
        let port = nodes[3].port;
        wait_until("the old primary follows", || nodes[0].follows(port));
        let mut reply = String::new();
        writer.0.read_to_string(&mut reply).expect("the connection is closed");
        assert_eq!(reply, "");
        wait_until("the new primary serves", || nodes[3].call(&["GET", KEY]) == "1");
    }
}

/// No node takes over, so the write is not lost.
#[test]
fn a_withheld_reply_is_sent_when_the_node_is_up_again() {
    for workers in ["2", "8"] {
        let mut nodes = start(workers);
        let no_failover = ["CONFIG", "SET", "cluster-replica-no-failover", "yes"];
        assert_eq!(nodes[3].call(&no_failover), "OK");
        let mut writer = start_script(&mut nodes);
        let file = block_bus(&mut nodes);
        wait_until("the bus is late", || {
            nodes[0].call(&["SET", KEY, "3"]) == "CLUSTERDOWN The cluster is down"
        });
        end_script(&mut nodes);
        assert!(writer.is_waiting(), "the reply is withheld");
        unblock_bus(&file);
        assert_eq!(writer.answer(), "written");
        wait_until("the node serves", || nodes[0].call(&["GET", KEY]) == "2");
    }
}

/// Background threads load a library, and delete a key after MIGRATE has sent it.
#[test]
fn the_replies_to_writes_of_background_threads_are_withheld_while_the_bus_is_late() {
    const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() end)";
    for workers in ["2", "8"] {
        let mut nodes = start(workers);
        let no_failover = ["CONFIG", "SET", "cluster-replica-no-failover", "yes"];
        assert_eq!(nodes[3].call(&no_failover), "OK");
        let (mut sender, mut target) = begin_migrate(nodes[0].port, KEY);
        let file = block_bus(&mut nodes);
        wait_until("the bus is late", || {
            nodes[0].call(&["GET", "{b}other"]) == "CLUSTERDOWN The cluster is down"
        });
        target.get_mut().write_all(b"+OK\r\n+OK\r\n").expect("sends");
        let mut loader = Client::connect(nodes[0].port);
        loader.send(&["FUNCTION", "LOAD", LIBRARY]);
        wait_until("the library is loaded", || {
            nodes[0].call(&["FUNCTION", "LIST"]).contains("lib")
        });
        wait_until("the key is deleted", || nodes[0].call(&["DBSIZE"]) == "0");
        // Every worker has read its mail before it answers INFO.
        nodes[0].client.wait_for_info("weft_unfinished_jobs", "0");
        nodes[0].client.info("weft_unfinished_jobs");
        assert!(sender.is_waiting(), "the reply to MIGRATE is withheld");
        assert!(loader.is_waiting(), "the reply to FUNCTION LOAD is withheld");
        unblock_bus(&file);
        assert_eq!(sender.answer(), "OK");
        assert_eq!(loader.answer(), "lib");
    }
}

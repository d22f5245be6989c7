//! Tests failover in a cluster: the new primary and its data, also where some nodes are real Valkeys.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{LONG_NODE_TIMEOUT_MS, SHORT_NODE_TIMEOUT_MS, id_of, is_up, set_node_timeout, wait_until};
use crate::harness::client::Client;
use crate::harness::port::free_port;
use crate::harness::server::Server;
use crate::harness::valkey::Valkey;

/// A key of the first of two primaries.
pub const KEY: &str = "{b}";

enum Process {
    Weft(Server),
    Valkey(Valkey),
}

/// A node that is Weft or Valkey, and a client of it.
pub struct Node {
    process: Process,
    pub port: u16,
    pub bus_port: String,
    pub client: Client,
    pub id: String,
}

impl Node {
    pub fn weft() -> Node {
        Node::weft_with(&[])
    }

    fn weft_with(arguments: &[&str]) -> Node {
        let common = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "local"];
        let server = Server::start_node(&[&common, arguments].concat());
        let (port, bus_port) = (server.port, server.bus_port.clone());
        Node::new(Process::Weft(server), port, bus_port)
    }

    fn valkey() -> Node {
        let bus_port = free_port().to_string();
        let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
        let valkey = Valkey::start(&[&arguments[..], &["--cluster-node-timeout", LONG_NODE_TIMEOUT_MS]].concat());
        let port = valkey.port;
        Node::new(Process::Valkey(valkey), port, bus_port)
    }

    fn new(process: Process, port: u16, bus_port: String) -> Node {
        let mut client = Client::connect(port);
        let id = id_of(&mut client);
        Node {
            process,
            port,
            bus_port,
            client,
            id,
        }
    }

    pub fn call(&mut self, words: &[&str]) -> String {
        self.client.call(words)
    }

    /// Returns the server process of a Weft node.
    pub fn server(&mut self) -> &mut Server {
        match &mut self.process {
            Process::Weft(server) => server,
            Process::Valkey(_) => unreachable!("only Weft is started again, or stopped"),
        }
    }

    fn kill(&mut self) {
        match &mut self.process {
            Process::Weft(server) => server.kill(),
            Process::Valkey(valkey) => valkey.kill(),
        }
    }

    pub fn is_primary(&mut self) -> bool {
        self.call(&["ROLE"]).starts_with("(master")
    }

    pub fn follows(&mut self, port: u16) -> bool {
        let role = self.call(&["ROLE"]);
        role.starts_with(&format!("(slave 127.0.0.1 {port} connected"))
    }

    pub fn sees(&mut self, what: &str) -> usize {
        let nodes = self.call(&["CLUSTER", "NODES"]);
        nodes.lines().filter(|line| line.contains(what)).count()
    }
}

/// Forms a cluster. The first three nodes are primaries, the first of which has the slot of [`KEY`]; the other nodes
/// are its replicas.
fn form_cluster(mut nodes: Vec<Node>) -> Vec<Node> {
    let count = nodes.len();
    let ranges = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
    for (number, (node, (first, last))) in nodes.iter_mut().zip(ranges).enumerate() {
        assert_eq!(node.call(&["CLUSTER", "ADDSLOTSRANGE", first, last]), "OK");
        node.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
    }
    for index in 1..count {
        let (port, bus_port) = (nodes[index].port.to_string(), nodes[index].bus_port.clone());
        assert_eq!(nodes[0].call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]), "OK");
    }
    for node in &mut nodes {
        wait_until("everybody knows everybody", || node.sees(" connected") == count);
    }
    let (primary, port) = (nodes[0].id.clone(), nodes[0].port);
    for node in &mut nodes[3..] {
        assert_eq!(node.call(&["CLUSTER", "REPLICATE", &primary]), "OK");
        wait_until("it follows", || node.follows(port));
    }
    for node in &mut nodes {
        wait_until("the cluster is up", || is_up(&mut node.client));
        wait_until("replicas are known", || {
            node.sees("slave ") == count - 3 && node.sees("handshake") == 0
        });
    }
    nodes
}

pub fn weft(count: usize) -> Vec<Node> {
    weft_with(count, &[])
}

/// Does the same as [`weft`] with further arguments of all nodes.
pub fn weft_with(count: usize, arguments: &[&str]) -> Vec<Node> {
    form_cluster((0..count).map(|_| Node::weft_with(arguments)).collect())
}

/// Makes a replica take over with CLUSTER FAILOVER. The server gives up after five seconds, which may be too short on a
/// busy machine, so the command is repeated.
pub fn fail_over_to(replica: &mut Node) {
    let mut asked = Instant::now();
    assert_eq!(replica.call(&["CLUSTER", "FAILOVER"]), "OK");
    wait_until("the replica takes over", || {
        if asked.elapsed() > Duration::from_secs(10) {
            asked = Instant::now();
            replica.call(&["CLUSTER", "FAILOVER"]);
        }
        replica.is_primary()
    });
}

/// Hands the role over to a replica of `nodes[0]`, then kills that replica, and checks the failover.
fn fails_over_and_back(nodes: &mut [Node]) {
    assert_eq!(nodes[0].call(&["SET", KEY, "1"]), "OK");
    fail_over_to(&mut nodes[3]);
    let port = nodes[3].port;
    for index in [0, 4] {
        wait_until("the others follow it", || nodes[index].follows(port));
    }
    let moved = format!("MOVED 3300 127.0.0.1:{port}");
    for index in [0, 1, 2, 4] {
        wait_until("all know it", || nodes[index].call(&["GET", KEY]) == moved);
    }
    assert_eq!(nodes[3].call(&["GET", KEY]), "1");
    assert_eq!(nodes[3].call(&["SET", KEY, "2"]), "OK");
    assert_eq!(nodes[3].call(&["WAIT", "2", "60000"]), "2");

    for survivor in [0, 1, 2, 4] {
        set_node_timeout(&mut nodes[survivor].client, SHORT_NODE_TIMEOUT_MS);
    }
    nodes[3].kill();
    wait_until("another takes over", || nodes[0].is_primary() || nodes[4].is_primary());
    // From now on no node fails, however long it may be silent on a busy machine.
    for survivor in [0, 1, 2, 4] {
        set_node_timeout(&mut nodes[survivor].client, LONG_NODE_TIMEOUT_MS);
    }
    let (new, old) = if nodes[0].is_primary() { (0, 4) } else { (4, 0) };
    let port = nodes[new].port;
    wait_until("the other one follows it", || nodes[old].follows(port));
    wait_until("the cluster is up", || is_up(&mut nodes[new].client));
    assert_eq!(nodes[new].call(&["GET", KEY]), "2", "nothing is lost");
    for index in [1, 2] {
        wait_until("the others go on", || is_up(&mut nodes[index].client));
    }
}

#[test]
fn a_replica_takes_over_by_manual_failover_and_by_election() {
    fails_over_and_back(&mut weft(5));
}

#[test]
fn a_replica_redirects_and_reads() {
    let mut nodes = weft(4);
    assert_eq!(nodes[0].call(&["SET", KEY, "1"]), "OK");
    assert_eq!(nodes[0].call(&["WAIT", "1", "60000"]), "1");
    let moved = format!("MOVED 3300 127.0.0.1:{}", nodes[0].port);
    let (primary, replica) = (nodes[0].id.clone(), nodes[3].id.clone());
    let node = &mut nodes[3];
    assert_eq!(node.call(&["GET", KEY]), moved);
    assert_eq!(node.call(&["READONLY"]), "OK");
    assert_eq!(node.call(&["GET", KEY]), "1");
    assert_eq!(node.call(&["SET", KEY, "2"]), moved, "a replica takes no writes");
    assert_eq!(node.call(&["MULTI"]), "OK");
    assert_eq!(node.call(&["GET", KEY]), "QUEUED");
    assert_eq!(node.call(&["EXEC"]), "(1)");
    assert_eq!(node.call(&["READWRITE"]), "OK");
    assert_eq!(node.call(&["GET", KEY]), moved);
    assert_eq!(
        node.call(&["CLUSTER", "REPLICATE", &replica]),
        "ERR Can't replicate myself"
    );
    let others = nodes[1].call(&["CLUSTER", "REPLICATE", &replica]);
    assert_eq!(others, "ERR I can only replicate a master, not a replica.");
    let shard = nodes[0].call(&["CLUSTER", "MYSHARDID"]);
    wait_until("both are one shard", || {
        nodes[3].call(&["CLUSTER", "MYSHARDID"]) == shard
    });
    assert!(nodes[1].call(&["CLUSTER", "REPLICAS", &primary]).contains(&replica));

    assert_eq!(nodes[3].call(&["CLUSTER", "REPLICATE", "NO", "ONE"]), "OK");
    assert!(nodes[3].is_primary());
    assert_eq!(nodes[3].call(&["DBSIZE"]), "0");
    assert_ne!(nodes[3].call(&["CLUSTER", "MYSHARDID"]), shard);
}

/// A client increments a counter continuously; replicas take over with CLUSTER FAILOVER, and no acknowledged value may
/// be lost.
#[test]
fn a_coordinated_failover_loses_nothing() {
    let mut nodes = weft(5);
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let ends = Arc::new(AtomicBool::new(false));
    let counter = {
        let (ends, mut port) = (ends.clone(), ports[0]);
        thread::spawn(move || {
            let mut clients: Vec<(u16, Client)> = ports.iter().map(|port| (*port, Client::connect(*port))).collect();
            let mut told = 0u64;
            while !ends.load(Ordering::Relaxed) {
                let (_, client) = clients
                    .iter_mut()
                    .find(|(known, _)| *known == port)
                    .expect("a known node");
                let answer = client.call(&["INCR", KEY]);
                if let Ok(number) = answer.parse::<u64>() {
                    assert_eq!(number, told + 1, "what was told is there");
                    told = number;
                } else if answer.starts_with("MOVED") {
                    port = answer
                        .rsplit(':')
                        .next()
                        .and_then(|port| port.parse().ok())
                        .expect("a port");
                } else {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            told
        })
    };
    for round in 0..6 {
        let to = [3, 4, 0][round % 3];
        let now = [0, 3, 4][round % 3];
        let port = nodes[now].port;
        wait_until("it follows", || nodes[to].follows(port));
        fail_over_to(&mut nodes[to]);
    }
    ends.store(true, Ordering::Relaxed);
    let told = counter.join().expect("nothing was lost");
    assert!(told > 0);
    assert_eq!(nodes[0].call(&["GET", KEY]), told.to_string());
}

#[test]
fn an_old_primary_comes_back_as_a_replica() {
    let mut nodes = weft(4);
    assert_eq!(nodes[0].call(&["SET", KEY, "1"]), "OK");
    assert_eq!(nodes[0].call(&["WAIT", "1", "60000"]), "1");
    nodes[1..]
        .iter_mut()
        .for_each(|node| set_node_timeout(&mut node.client, SHORT_NODE_TIMEOUT_MS));
    nodes[0].kill();
    wait_until("the replica takes over", || nodes[3].is_primary());
    nodes[1..]
        .iter_mut()
        .for_each(|node| set_node_timeout(&mut node.client, LONG_NODE_TIMEOUT_MS));
    wait_until("the cluster is up", || is_up(&mut nodes[3].client));
    assert_eq!(nodes[3].call(&["SET", KEY, "2"]), "OK");
    nodes[0].server().start_again();
    let port = nodes[3].port;
    nodes[0].client = Client::connect(nodes[0].port);
    wait_until("it follows", || nodes[0].follows(port));
    assert_eq!(nodes[0].call(&["READONLY"]), "OK");
    wait_until("it has what it missed", || nodes[0].call(&["GET", KEY]) == "2");
    nodes[0].kill();
    nodes[0].server().start_again();
    nodes[0].client = Client::connect(nodes[0].port);
    assert!(!nodes[0].is_primary(), "the file says what it is");
    wait_until("it follows again", || nodes[0].follows(port));
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn in_mixed_clusters_weft_and_valkey_take_over_from_each_other() {
    // The last two nodes are the replicas of the first.
    for kinds in ["vvwwv", "wvvvw"] {
        let start = |kind| if kind == 'w' { Node::weft() } else { Node::valkey() };
        let nodes: Vec<Node> = kinds.chars().map(start).collect();
        fails_over_and_back(&mut form_cluster(nodes));
    }
}

#[test]
fn a_safe_shutdown_is_refused_by_a_primary_with_slots() {
    let server = Server::start_node(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    wait_until("the cluster is up", || is_up(&mut client));
    for words in [&["SHUTDOWN", "SAFE"][..], &["SHUTDOWN", "NOSAVE", "SAFE"]] {
        assert_eq!(client.call(words), "ERR Errors trying to SHUTDOWN. Check logs.");
    }
    assert_eq!(client.call(&["SET", "key", "value"]), "OK", "writes go on");
    client.send(&["SHUTDOWN", "NOSAVE", "SAFE", "FORCE"]);
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert!(rest.is_empty(), "the server ends without a reply");
}

/// Shuts down a primary, whose replica takes over. Returns what the primary has logged.
fn shut_down_with_failover() -> String {
    let mut nodes = weft_with(4, &["--logfile", "log"]);
    assert_eq!(nodes[0].call(&["SET", KEY, "1"]), "OK");
    nodes[0].client.send(&["SHUTDOWN", "NOSAVE", "FAILOVER"]);
    assert_eq!(nodes[0].server().wait_for_exit(), Some(0));
    wait_until("the replica takes over", || nodes[3].is_primary());
    wait_until("it serves the slot", || nodes[3].call(&["GET", KEY]) == "1");
    std::fs::read_to_string(nodes[0].server().directory.join("log")).expect("there is a log")
}

#[test]
fn a_primary_that_shuts_down_knows_that_its_replica_takes_over() {
    // On a busy machine, the primary may end before it hears from the replica.
    let mut logs = (0..3).map(|_| shut_down_with_failover());
    let is_known = logs.any(|log| {
        assert!(log.contains("Perform auto failover to replica"), "{log}");
        !log.contains("acknowledged the failover")
    });
    assert!(is_known);
}

#[test]
fn a_shutdown_with_failover_is_refused_outside_of_a_cluster() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let refused = "ERR SHUTDOWN FAILOVER is only supported in cluster mode.";
    for words in [
        &["SHUTDOWN", "FAILOVER"][..],
        &["SHUTDOWN", "NOSAVE", "NOW", "FAILOVER"],
    ] {
        assert_eq!(client.call(words), refused);
    }
    for words in [
        &["SHUTDOWN", "ABORT", "FAILOVER"][..],
        &["SHUTDOWN", "SAVE", "NOSAVE", "FAILOVER"],
    ] {
        assert_eq!(client.call(words), "ERR syntax error");
    }
    assert_eq!(client.call(&["PING"]), "PONG");
}

#[test]
fn blocked_clients_of_an_old_primary_are_redirected_unless_they_read() {
    let mut nodes = weft(4);
    let blocked = |node: &mut Node, count: &str| {
        let field = format!("blocked_clients:{count}\r");
        wait_until("clients wait", || node.call(&["INFO", "clients"]).contains(&field));
    };
    let mut writer = Client::connect(nodes[0].port);
    writer.send(&["BLPOP", KEY, "0"]);
    let mut reader = Client::connect(nodes[0].port);
    assert_eq!(reader.call(&["READONLY"]), "OK");
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", KEY, "$"]);
    let mut on_replica = Client::connect(nodes[3].port);
    assert_eq!(on_replica.call(&["READONLY"]), "OK");
    on_replica.send(&["XREAD", "BLOCK", "0", "STREAMS", KEY, "$"]);
    blocked(&mut nodes[0], "2");
    blocked(&mut nodes[3], "1");
    fail_over_to(&mut nodes[3]);
    assert_eq!(writer.answer(), format!("MOVED 3300 127.0.0.1:{}", nodes[3].port));
    assert_eq!(writer.call(&["PING"]), "PONG", "it stays connected");
    blocked(&mut nodes[0], "1");
    blocked(&mut nodes[3], "1");
    assert_eq!(nodes[3].call(&["XADD", KEY, "1-1", "field", "value"]), "1-1");
    let expected = format!("(({KEY} ((1-1 (field value)))))");
    assert_eq!(on_replica.answer(), expected);
    assert_eq!(reader.answer(), expected, "the old primary serves it as a replica");
}

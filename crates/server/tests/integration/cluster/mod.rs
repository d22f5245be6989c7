//! Tests nodes that form a cluster, slots that change owners, and keys that migrate.

mod ending;
mod failover;
mod late_bus;
mod leftover_keys;
mod migration;
mod migration_data;
mod migration_elections;
mod migration_peers;
mod migration_requests;
mod modules;
mod observing;
mod scripts;
mod slots;
mod stopped_source;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

/// The slot of `{x}`.
const SLOT: &str = "16287";

fn is_up(client: &mut Client) -> bool {
    client.call(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

/// The node timeouts, in milliseconds: long in general, short where a test kills a node.
const LONG_NODE_TIMEOUT_MS: &str = "60000";
const SHORT_NODE_TIMEOUT_MS: &str = "2000";

fn set_node_timeout(client: &mut Client, timeout_ms: &str) {
    assert_eq!(
        client.call(&["CONFIG", "SET", "cluster-node-timeout", timeout_ms]),
        "OK"
    );
}

/// Starts a cluster of three nodes; the last one has the slot of `{x}`.
fn cluster() -> (Vec<Server>, Vec<Client>) {
    cluster_with(&[])
}

/// Does the same as [`cluster`] with further arguments of all nodes.
fn cluster_with(arguments: &[&str]) -> (Vec<Server>, Vec<Client>) {
    let nodes: Vec<Server> = (0..3).map(|_| Server::start_node(arguments)).collect();
    let mut clients: Vec<Client> = nodes.iter().map(|node| Client::connect(node.port)).collect();
    for (client, (first, last)) in clients
        .iter_mut()
        .zip([("0", "5460"), ("5461", "10922"), ("10923", "16383")])
    {
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", first, last]), "OK");
    }
    for node in &nodes[1..] {
        let port = node.port.to_string();
        assert_eq!(
            clients[0].call(&["CLUSTER", "MEET", "127.0.0.1", &port, &node.bus_port]),
            "OK"
        );
    }
    for client in &mut clients {
        wait_until("the cluster is up", || is_up(client));
        wait_until("everybody knows everybody", || {
            client
                .call(&["CLUSTER", "NODES"])
                .lines()
                .filter(|line| line.contains(" connected "))
                .count()
                == 3
        });
    }
    (nodes, clients)
}

fn id_of(client: &mut Client) -> String {
    client.call(&["CLUSTER", "MYID"])
}

#[test]
fn nodes_form_a_cluster_and_detect_a_failed_node() {
    let (mut nodes, mut clients) = cluster();
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[2].port);
    assert_eq!(clients[0].call(&["SET", "{x}", "1"]), moved);
    assert_eq!(clients[2].call(&["SET", "{x}", "1"]), "OK");
    let mut listener = Client::connect(nodes[1].port);
    assert_eq!(listener.call(&["SUBSCRIBE", "news"]), "(subscribe news 1)");
    clients[0].call(&["PUBLISH", "news", "hello"]);
    assert_eq!(listener.answer(), "(message news hello)");
    let gone = id_of(&mut clients[2]);
    clients[..2]
        .iter_mut()
        .for_each(|client| set_node_timeout(client, SHORT_NODE_TIMEOUT_MS));
    nodes[2].kill();
    for client in &mut clients[..2] {
        wait_until("it is marked as failing", || {
            let lines = client.call(&["CLUSTER", "NODES"]);
            lines
                .lines()
                .any(|line| line.starts_with(&gone) && line.contains("master,fail "))
        });
        wait_until("the cluster is down", || !is_up(client));
        assert_eq!(client.call(&["GET", "{x}"]), "CLUSTERDOWN The cluster is down");
    }
}

/// As in Valkey, `maxclients` limits clients and connections of the bus together, and each other node has two.
#[test]
fn connections_of_the_bus_count_towards_the_limit_of_clients() {
    let nodes = [Server::start_node(&[]), Server::start_node(&[])];
    let mut admin = Client::connect(nodes[0].port);
    let port = nodes[1].port.to_string();
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &nodes[1].bus_port];
    assert_eq!(admin.call(&meet), "OK");
    admin.wait_for_info("cluster_connections", "2");
    admin.wait_for_info("connected_clients", "1");
    assert_eq!(admin.call(&["CONFIG", "SET", "maxclients", "4"]), "OK");
    let mut second = Client::connect(nodes[0].port);
    assert_eq!(second.call(&["PING"]), "PONG");
    let refused = "ERR max number of clients + cluster connections reached";
    assert_eq!(Client::connect(nodes[0].port).answer(), refused);
    assert_eq!(admin.call(&["CONFIG", "SET", "maxclients", "5"]), "OK");
    assert_eq!(Client::connect(nodes[0].port).call(&["PING"]), "PONG");
}

#[test]
fn both_links_of_a_node_are_listed_together() {
    let (_nodes, mut clients) = cluster();
    let both_ways = |client: &mut Client| {
        let links = client.call(&["CLUSTER", "LINKS"]);
        let words: Vec<&str> = links.split([' ', '(', ')']).collect();
        let behind = |name: &str| -> Vec<String> {
            let pairs = words.windows(2).filter(|pair| pair[0] == name);
            pairs.map(|pair| pair[1].to_owned()).collect()
        };
        let (directions, nodes) = (behind("direction"), behind("node"));
        directions == ["to", "from", "to", "from"] && nodes[0] == nodes[1] && nodes[2] == nodes[3]
    };
    for client in &mut clients {
        wait_until("there are two links to each", || both_ways(client));
    }
}

#[test]
fn a_slot_moves_key_by_key() {
    let (nodes, mut clients) = cluster();
    let (source, target) = (id_of(&mut clients[2]), id_of(&mut clients[0]));
    let port = nodes[0].port.to_string();
    let ask = format!("ASK {SLOT} 127.0.0.1:{port}");
    let (mut here, mut there) = (Client::connect(nodes[2].port), Client::connect(nodes[0].port));
    for name in ["{x}1", "{x}2"] {
        assert_eq!(here.call(&["SET", name, name]), "OK");
    }
    let mut waiting = Client::connect(nodes[2].port);
    waiting.send(&["BLPOP", "{x}list", "0"]);
    here.wait_for_info("blocked_clients", "1");
    let mut listening = Client::connect(nodes[2].port);
    assert_eq!(
        listening.call(&["SSUBSCRIBE", "{x}channel"]),
        "(ssubscribe {x}channel 1)"
    );

    // A slot cannot move to the node that has it.
    for (node, how, id) in [(&mut there, "IMPORTING", &target), (&mut here, "MIGRATING", &source)] {
        let reply = node.call(&["CLUSTER", "SETSLOT", SLOT, how, id]);
        assert_eq!(reply, "ERR Target node is myself", "{how}");
    }
    assert_eq!(there.call(&["CLUSTER", "SETSLOT", SLOT, "IMPORTING", &source]), "OK");
    assert_eq!(here.call(&["CLUSTER", "SETSLOT", SLOT, "MIGRATING", &target]), "OK");
    assert_eq!(here.call(&["MIGRATE", "127.0.0.1", &port, "{x}1", "0", "60000"]), "OK");

    assert_eq!(here.call(&["GET", "{x}1"]), ask, "it is gone");
    assert_eq!(here.call(&["GET", "{x}2"]), "{x}2", "it is still here");
    let unstable = "TRYAGAIN Multiple keys request during rehashing of slot";
    assert_eq!(here.call(&["MGET", "{x}1", "{x}2"]), unstable);
    assert_eq!(
        here.call(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "{x}1"]),
        ask
    );
    assert_eq!(here.call(&["MULTI"]), "OK");
    assert_eq!(here.call(&["GET", "{x}1"]), "QUEUED", "EXEC looks for the keys");
    assert_eq!(here.call(&["EXEC"]), ask);
    assert_eq!(here.call(&["MULTI"]), "OK");
    assert_eq!(here.call(&["GET", "{x}1"]), "QUEUED");
    assert_eq!(here.call(&["GET", "{x}2"]), "QUEUED");
    assert_eq!(here.call(&["EXEC"]), unstable);
    assert_eq!(here.call(&["EXEC"]), "ERR EXEC without MULTI");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[2].port);
    assert_eq!(there.call(&["GET", "{x}1"]), moved);
    assert_eq!(there.call(&["ASKING"]), "OK");
    assert_eq!(there.call(&["GET", "{x}1"]), "{x}1");
    assert_eq!(there.call(&["GET", "{x}1"]), moved, "asking was for one command");
    assert_asking_outlasts_a_pause(&mut there, &moved);
    assert_asking_ends_with_its_request(&mut there, &moved);
    assert_eq!(there.call(&["ASKING"]), "OK");
    assert_eq!(there.call(&["MGET", "{x}1", "{x}2"]), unstable);
    let refused = here.call(&["CLUSTER", "SETSLOT", SLOT, "NODE", &target]);
    assert!(refused.contains("while I still hold keys"), "{refused}");

    assert_eq!(
        here.call(&["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS", "{x}1", "{x}2"]),
        "OK"
    );
    assert_eq!(there.call(&["CLUSTER", "SETSLOT", SLOT, "NODE", &target]), "OK");
    assert_eq!(here.call(&["CLUSTER", "SETSLOT", SLOT, "NODE", &target]), "OK");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{port}");
    assert_eq!(waiting.answer(), moved, "who waits is sent after the slot");
    assert_eq!(listening.answer(), "(sunsubscribe {x}channel 0)");
    for client in &mut clients[1..] {
        wait_until("everybody knows the new owner", || {
            client.call(&["GET", "{x}2"]) == moved
        });
    }
    assert_eq!(there.call(&["MGET", "{x}1", "{x}2"]), "({x}1 {x}2)");
    assert_eq!(here.call(&["DBSIZE"]), "0");
}

/// A command that a pause puts off is still the one that ASKING is for.
fn assert_asking_outlasts_a_pause(node: &mut Client, moved: &str) {
    let address = node.0.get_ref().peer_addr().expect("is connected");
    let mut admin = Client::connect(address.port());
    assert_eq!(admin.call(&["CLIENT", "PAUSE", "100000", "WRITE"]), "OK");
    assert_eq!(node.call(&["ASKING"]), "OK");
    node.send(&["SET", "{x}1", "{x}1"]);
    // Long enough that the command is put off before the pause ends.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
    assert_eq!(node.answer(), "OK");
    assert_eq!(node.call(&["GET", "{x}1"]), moved);
}

/// ASKING is for the next request, whatever becomes of it, or for the transaction that it begins, until that ends.
fn assert_asking_ends_with_its_request(node: &mut Client, moved: &str) {
    const GET: &[&str] = &["GET", "{x}1"];
    let sequences: [(&[&[&str]], &str); 9] = [
        (&[&["ASKING"], &["NOSUCH"]], moved),
        (&[&["ASKING"], &["GET"]], moved),
        (&[&["ASKING"], &["CONFIG", "NOSUCH"]], moved),
        (&[&["ASKING"], &["MULTI", "too", "many"]], moved),
        (&[&["ASKING"], &["PING"]], moved),
        (&[&["ASKING"], &["ASKING"]], "{x}1"),
        (&[&["ASKING"], &["MULTI"], &["EXEC", "too many"], &["DISCARD"]], moved),
        (&[&["ASKING"], &["MULTI"], GET, &["DISCARD", "too many"]], "QUEUED"),
        (&[&["DISCARD"], &["MULTI"], &["ASKING"], &["EXEC"]], moved),
    ];
    for (requests, expected) in sequences {
        for words in requests {
            node.call(words);
        }
        assert_eq!(node.call(GET), expected, "after {requests:?}");
    }
}

#[test]
fn keys_move_with_their_times_and_options() {
    let (from, to) = (Server::start(&[]), Server::start(&[]));
    let (mut here, mut there) = (Client::connect(from.port), Client::connect(to.port));
    let port = to.port.to_string();
    let migrate = |here: &mut Client, rest: &[&str]| {
        let words = [&["MIGRATE", "127.0.0.1", &port], rest].concat();
        here.call(&words)
    };
    assert_eq!(there.call(&["CONFIG", "SET", "requirepass", "secret"]), "OK");
    here.call(&["SET", "a", "1", "EX", "1000"]);
    here.call(&["RPUSH", "b", "x", "y"]);
    let refused = migrate(&mut here, &["a", "0", "60000"]);
    assert_eq!(
        refused,
        "ERR Target instance replied with error: NOAUTH Authentication required."
    );
    assert_eq!(migrate(&mut here, &["a", "3", "60000", "COPY", "AUTH", "secret"]), "OK");
    assert_eq!(here.call(&["EXISTS", "a"]), "1");
    there.call(&["SELECT", "3"]);
    assert_eq!(there.call(&["GET", "a"]), "1");
    let left: u64 = there.call(&["TTL", "a"]).parse().expect("a number");
    assert!((900..=1000).contains(&left));
    let busy = migrate(
        &mut here,
        &["", "3", "60000", "AUTH2", "default", "secret", "KEYS", "a", "b", "none"],
    );
    assert_eq!(
        busy,
        "ERR Target instance replied with error: BUSYKEY Target key name already exists."
    );
    assert_eq!(here.call(&["EXISTS", "a", "b"]), "1", "what went over is gone here");
    assert_eq!(
        migrate(&mut here, &["a", "3", "60000", "REPLACE", "AUTH", "secret"]),
        "OK"
    );
    assert_eq!(there.call(&["LRANGE", "b", "0", "-1"]), "(x y)");
    assert_eq!(here.call(&["DBSIZE"]), "0");
    assert_eq!(migrate(&mut here, &["a", "0", "10", "AUTH", "secret"]), "NOKEY");
}

#[test]
fn a_migrating_key_can_be_read_and_not_changed() {
    let server = Server::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("is bound").port().to_string();
    let (go, wait) = mpsc::channel::<()>();
    let target = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accepts");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        // Until the request has arrived and the test has done its checks.
        while !line.starts_with("RESTORE") {
            line.clear();
            reader.read_line(&mut line).expect("receives");
        }
        wait.recv_timeout(PATIENCE).expect("the test goes on");
        reader.get_mut().write_all(b"+OK\r\n+OK\r\n").expect("sends");
        thread::sleep(Duration::from_millis(200));
    });
    let (mut mover, mut reader, mut writer) = (
        Client::connect(server.port),
        Client::connect(server.port),
        Client::connect(server.port),
    );
    reader.call(&["SET", "k", "1"]);
    mover.send(&["MIGRATE", "127.0.0.1", &port, "k", "0", "60000"]);
    wait_until("it is under way", || {
        reader.call(&["CLIENT", "LIST"]).contains("cmd=migrate")
    });
    thread::sleep(Duration::from_millis(100));
    writer.send(&["APPEND", "k", "2"]);
    assert_eq!(reader.call(&["GET", "k"]), "1");
    thread::sleep(Duration::from_millis(100));
    assert_eq!(reader.call(&["GET", "k"]), "1", "nobody changes it on its way");
    go.send(()).expect("the target waits");
    assert_eq!(mover.answer(), "OK");
    assert_eq!(writer.answer(), "1", "it came after the move");
    assert_eq!(reader.call(&["GET", "k"]), "2");
    target.join().expect("ends well");
}

#[test]
fn a_key_that_changed_while_migrating_is_sent_again() {
    let server = Server::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("is bound").port().to_string();
    let (told, tell) = mpsc::channel::<()>();
    let (go, wait) = mpsc::channel::<()>();
    let target = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("accepts");
        let mut reader = BufReader::new(stream);
        let mut restores: Vec<Vec<String>> = Vec::new();
        for round in 0..2 {
            let mut words = Vec::new();
            // The words of the command, each after its length.
            while !words.iter().any(|word: &String| word == "REPLACE") && (round == 1 || words.len() < 12) {
                let mut line = Vec::new();
                reader.read_until(b'\n', &mut line).expect("receives");
                words.push(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            restores.push(words);
            if round == 0 {
                told.send(()).expect("the test waits");
                wait.recv_timeout(PATIENCE).expect("the test goes on");
                reader.get_mut().write_all(b"+OK\r\n").expect("sends");
            }
            reader.get_mut().write_all(b"+OK\r\n").expect("sends");
        }
        thread::sleep(Duration::from_millis(200));
        restores
    });
    let (mut mover, mut other) = (Client::connect(server.port), Client::connect(server.port));
    other.call(&["SET", "k", "1"]);
    mover.send(&["MIGRATE", "127.0.0.1", &port, "k", "0", "60000"]);
    tell.recv_timeout(PATIENCE).expect("the target was reached");
    // A script that has written cannot wait for a key that it has not declared.
    let change = "redis.call('SET', 'other', '1') return redis.call('SET', 'k', '2')";
    assert_eq!(other.call(&["EVAL", change, "0"]), "OK");
    go.send(()).expect("the target waits");
    assert_eq!(mover.answer(), "OK");
    let restores = target.join().expect("ends well");
    assert!(
        restores[1].iter().any(|word| word == "REPLACE"),
        "the second time over the first"
    );
    assert_eq!(other.call(&["EXISTS", "k"]), "0");
}

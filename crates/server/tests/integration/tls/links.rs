//! Tests TLS between servers: replicas, cluster nodes, MIGRATE.

use std::io::{BufRead, BufReader, Read, Write};

use super::{Authority, ClientTlsOptions, Secure, TlsServer, dial, random_bytes, start_tls_server, wait_until};
use crate::harness::client::Client;
use crate::harness::port::free_port;
use crate::harness::server::Server;

const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

/// Two replicas: one gets the RDB over its socket, one from a file.
#[test]
fn replicas_follow_over_tls() {
    let secured = start_tls_server(&[&AT_ONCE[..], &["--tls-auth-clients", "yes"]].concat());
    let mut primary = secured.plain();
    let large = random_bytes(10_000_000);
    primary.send(&[&b"SET"[..], b"large", &large[..]]);
    assert_eq!(primary.answer(), "OK");
    for number in 0..2000 {
        assert_eq!(primary.call(&["SET", &format!("key{number}"), "value"]), "OK");
    }
    let port = secured.port.to_string();
    for diskless in ["yes", "no"] {
        assert_eq!(primary.call(&["CONFIG", "SET", "repl-diskless-sync", diskless]), "OK");
        let own = secured.authority.arguments("replica");
        let (own, own_port) = (words(&own), free_port().to_string());
        let following = [
            "--tls-replication",
            "yes",
            "--tls-port",
            &own_port,
            "--replicaof",
            "127.0.0.1",
            &port,
        ];
        let replica = Server::start(&[&own[..], &following[..]].concat());
        let mut client = Client::connect(replica.port);
        wait_until("it follows", || {
            client.call(&["INFO", "replication"]).contains("master_link_status:up")
        });
        wait_until("the keys", || client.call(&["DBSIZE"]) == primary.call(&["DBSIZE"]));
        let told = primary.call(&["INFO", "replication"]);
        assert!(
            told.contains(&format!("ip=127.0.0.1,port={own_port},state=online")),
            "{told}"
        );
        assert_eq!(primary.call(&["SET", "diskless", diskless]), "OK");
        primary.send(&[&b"APPEND"[..], b"large", &large[..]]);
        assert!(primary.answer().parse::<usize>().is_ok());
        assert_eq!(primary.call(&["WAIT", "1", "60000"]), "1");
        assert_eq!(client.call(&["GET", "diskless"]), diskless);
        let digest = ["DEBUG", "DIGEST-VALUE", "large"];
        assert_eq!(client.call(&digest), primary.call(&digest));
        // A broken link is established again and continues at the same offset.
        assert_eq!(primary.call(&["CLIENT", "KILL", "TYPE", "replica"]), "1");
        assert_eq!(primary.call(&["SET", "again", diskless]), "OK");
        wait_until("it is there again", || client.call(&["GET", "again"]) == diskless);
    }
    let stats = primary.call(&["INFO", "stats"]);
    assert!(
        stats.contains("sync_full:2") && stats.contains("sync_partial_ok:2"),
        "{stats}"
    );
}

/// Connects a replica that receives a dump, and does not read the stream.
fn connect_replica(secured: &TlsServer) -> Secure {
    let mut replica = secured.connect();
    replica.0.get_mut().write_all(b"SYNC\r\n").expect("sends");
    let mut line = String::new();
    // Newlines keep the connection alive until the dump begins.
    while line.trim_end().is_empty() {
        line.clear();
        replica.0.read_line(&mut line).expect("receives");
    }
    let length = line.trim_end().strip_prefix('$').expect("a dump");
    let length: usize = length.parse().expect("a length");
    replica.0.read_exact(&mut vec![0; length]).expect("receives");
    replica
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    bytes.into_bytes()
}

/// What is on its way to replicas is kept for them, encrypted or not, and evicting keys would only add to it.
#[test]
fn what_replicas_have_not_read_over_tls_evicts_no_keys() {
    const REPLICAS: u64 = 4;
    const WRITES: usize = 160;
    const VALUE_BYTES: usize = 100_000;
    for workers in ["2", "8"] {
        let own = [
            "--io-threads",
            workers,
            "--repl-backlog-size",
            "1mb",
            "--repl-ping-replica-period",
            "3600",
        ];
        let secured = start_tls_server(&[&AT_ONCE[..], &own].concat());
        let mut plain = secured.plain();
        let small = "v".repeat(1000);
        for number in 0..100 {
            assert_eq!(plain.call(&["SET", &format!("key:{number}"), &small]), "OK");
        }
        let mut replicas: Vec<Secure> = (0..REPLICAS).map(|_| connect_replica(&secured)).collect();
        wait_until("the replicas get the stream", || {
            plain.call(&["INFO", "replication"]).matches("state=online").count() == REPLICAS as usize
        });
        let number = |text: &str, field: &str| -> u64 {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            value.expect("the field").trim().parse().expect("a number")
        };
        let limit = number(&plain.call(&["INFO", "memory"]), "used_memory") + (8 << 20);
        assert_eq!(plain.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]), "OK");
        assert_eq!(plain.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
        let large = "v".repeat(VALUE_BYTES);
        for _ in 0..WRITES {
            assert_eq!(plain.call(&["SET", "large", &large]), "OK");
        }
        assert_eq!(plain.call(&["SET", "last", "1"]), "OK");
        // Besides the backlog, at least the end of one write is on its way to each of them.
        wait_until("what is on its way does not count", || {
            let info = plain.call(&["INFO", "memory"]);
            let buffers = number(&info, "mem_total_replication_buffers");
            let beyond_backlog = buffers - number(&info, "mem_replication_backlog");
            let on_the_way = number(&info, "mem_not_counted_for_evict").saturating_sub(beyond_backlog);
            beyond_backlog > 4 << 20 && on_the_way >= REPLICAS * VALUE_BYTES as u64
        });
        assert_eq!(plain.info("evicted_keys"), "0", "{workers} workers");
        assert_eq!(plain.call(&["DBSIZE"]), "102");
        // The stream is complete, and has no deletions.
        let write = request(&["SET", "large", &large]);
        let (first, last) = (request(&["SELECT", "0"]), request(&["SET", "last", "1"]));
        let expected = [first, write.repeat(WRITES), last].concat();
        let mut received = vec![0; expected.len()];
        let replica = &mut replicas[0];
        replica.0.read_exact(&mut received).expect("receives");
        assert!(received == expected, "the stream has other bytes");
    }
}

#[test]
fn a_replica_refuses_an_untrusted_primary() {
    let secured = start_tls_server(&AT_ONCE);
    let strangers = Authority::new();
    let own = strangers.arguments("replica");
    let port = secured.port.to_string();
    let following = ["--tls-replication", "yes", "--replicaof", "127.0.0.1", &port];
    let replica = Server::start(&[&words(&own)[..], &following[..]].concat());
    let mut client = Client::connect(replica.port);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(
        client
            .call(&["INFO", "replication"])
            .contains("master_link_status:down")
    );
    assert!(secured.plain().call(&["INFO", "stats"]).contains("sync_full:0"));
    // With the right authority the link is established.
    let authority = secured.authority.file("ca.crt");
    assert_eq!(client.call(&["CONFIG", "SET", "tls-ca-cert-file", &authority]), "OK");
    wait_until("it follows", || {
        client.call(&["INFO", "replication"]).contains("master_link_status:up")
    });
}

/// Three nodes whose cluster bus uses TLS.
#[test]
fn cluster_nodes_communicate_over_tls() {
    let authority = Authority::new();
    let own = authority.arguments("node");
    let ports: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
    let nodes: Vec<Server> = ports
        .iter()
        .map(|port| {
            let more = ["--tls-cluster", "yes", "--tls-replication", "yes", "--tls-port", port];
            Server::start_node(&[&words(&own)[..], &more[..], &["--tls-auth-clients", "no"], &AT_ONCE].concat())
        })
        .collect();
    let mut plain: Vec<Client> = nodes.iter().map(|node| Client::connect(node.port)).collect();
    for (client, (first, last)) in plain.iter_mut().zip([("0", "8191"), ("8192", "16383")]) {
        assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", first, last]), "OK");
    }
    for (node, port) in nodes.iter().zip(&ports).skip(1) {
        assert_eq!(
            plain[0].call(&["CLUSTER", "MEET", "127.0.0.1", port, &node.bus_port]),
            "OK"
        );
    }
    for client in &mut plain {
        wait_until("the cluster is up", || {
            client.call(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                && client.call(&["CLUSTER", "INFO"]).contains("cluster_known_nodes:3")
        });
    }
    // Redirections name the port of the client's own kind: TLS or plain.
    let number: u16 = ports[0].parse().expect("a port");
    let mut secure: Secure = Client(BufReader::new(dial(
        number,
        authority.client(ClientTlsOptions::default()),
    )));
    let slot_of_x = "{x}";
    assert_eq!(
        secure.call(&["GET", slot_of_x]),
        format!("MOVED 16287 127.0.0.1:{}", ports[1])
    );
    assert_eq!(
        plain[0].call(&["GET", slot_of_x]),
        format!("MOVED 16287 127.0.0.1:{}", nodes[1].port)
    );
    for (node, port) in nodes.iter().zip(&ports) {
        assert!(
            secure
                .call(&["CLUSTER", "NODES"])
                .contains(&format!("127.0.0.1:{port}@{}", node.bus_port))
        );
        assert!(
            plain[2]
                .call(&["CLUSTER", "NODES"])
                .contains(&format!("127.0.0.1:{}@{}", node.port, node.bus_port))
        );
    }
    // A key migrates.
    let id = plain[0].call(&["CLUSTER", "MYID"]);
    let other = plain[1].call(&["CLUSTER", "MYID"]);
    assert_eq!(plain[1].call(&["SET", slot_of_x, "value"]), "OK");
    assert_eq!(
        plain[0].call(&["CLUSTER", "SETSLOT", "16287", "IMPORTING", &other]),
        "OK"
    );
    assert_eq!(plain[1].call(&["CLUSTER", "SETSLOT", "16287", "MIGRATING", &id]), "OK");
    assert_eq!(
        plain[1].call(&["MIGRATE", "127.0.0.1", &ports[0], slot_of_x, "0", "100000"]),
        "OK"
    );
    assert_eq!(plain[0].call(&["CLUSTER", "SETSLOT", "16287", "NODE", &id]), "OK");
    assert_eq!(plain[1].call(&["CLUSTER", "SETSLOT", "16287", "NODE", &id]), "OK");
    assert_eq!(secure.call(&["GET", slot_of_x]), "value");
    // The third node replicates the first one, over TLS too.
    assert_eq!(plain[2].call(&["CLUSTER", "REPLICATE", &id]), "OK");
    wait_until("it follows", || {
        plain[2]
            .call(&["INFO", "replication"])
            .contains("master_link_status:up")
    });
    let info = plain[2].call(&["INFO", "replication"]);
    assert!(info.contains(&format!("master_port:{}", ports[0])), "{info}");
    // A server whose certificate the nodes do not trust does not become a node.
    let strangers = Authority::new();
    let own = strangers.arguments("stranger");
    let port = free_port().to_string();
    let more = ["--tls-cluster", "yes", "--tls-port", &port];
    let stranger = Server::start_node(&[&words(&own)[..], &more[..]].concat());
    let mut client = Client::connect(stranger.port);
    assert_eq!(
        client.call(&["CLUSTER", "MEET", "127.0.0.1", &ports[0], &nodes[0].bus_port]),
        "OK"
    );
    std::thread::sleep(std::time::Duration::from_millis(1000));
    assert!(plain[0].call(&["CLUSTER", "INFO"]).contains("cluster_known_nodes:3"));
    // Published messages reach subscribers on other nodes.
    secure.send(&["SUBSCRIBE", "news"]);
    assert_eq!(secure.answer(), "(subscribe news 1)");
    assert_eq!(plain[1].call(&["PUBLISH", "news", "hello"]), "0");
    assert_eq!(secure.answer(), "(message news hello)");
}

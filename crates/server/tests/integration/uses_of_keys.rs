//! Tests how commands use keys: what counts as a lookup, and what servers do with keys and fields that have expired
//! while another server decides about their expiry. The differential suite compares more commands with Valkey.

use super::harness::client::Client;
use super::harness::server::Server;
use super::harness::wait_until;

/// Sends each command, and compares the reply with the text after the arrow.
fn check(client: &mut Client, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(client.call(&words), *expected, "{line}");
    }
}

/// Starts a server that follows no reachable primary, and lets clients write.
fn start_writable_replica() -> Server {
    Server::start(&[
        "--replicaof",
        "127.0.0.1 1",
        "--replica-read-only",
        "no",
        "--io-threads",
        "4",
    ])
}

#[test]
fn a_writable_replica_keeps_what_gets_an_expiry_in_the_past() {
    let server = start_writable_replica();
    let mut client = Client::connect(server.port);
    check(
        &mut client,
        &[
            ("SET a 1", "OK"),
            ("PEXPIREAT a 1000", "1"),
            ("GET a", "-"),
            ("DEL a", "1"),
            ("SET a 1 PXAT 1000", "OK"),
            ("DEL a", "1"),
            ("HSET h f 1 g 2", "2"),
            ("HPEXPIREAT h 1000 FIELDS 1 f", "(1)"),
            ("HGETEX h PXAT 1000 FIELDS 1 g", "(2)"),
            ("HLEN h", "2"),
            ("HGETALL h", "()"),
            ("HSET h f 3", "0"),
            ("HGETALL h", "(f 3)"),
            ("HSETEX h PXAT 1000 FIELDS 1 f 4", "1"),
            ("HSETEX h KEEPTTL FIELDS 1 f 5", "1"),
            ("HGET h f", "-"),
            ("HLEN h", "2"),
        ],
    );
    assert_eq!(client.info("expired_fields"), "0");
    // What its own clients let expire, it deletes by itself, a little later.
    check(&mut client, &[("SET k 1 PXAT 1000", "OK")]);
    client.wait_for_info("expired_keys", "1");
}

#[test]
fn a_replica_keeps_what_its_primary_has_let_expire() {
    let primary = Server::start(&["--io-threads", "4", "--enable-debug-command", "yes"]);
    let mut source = Client::connect(primary.port);
    check(&mut source, &[("DEBUG SET-ACTIVE-EXPIRE 0", "OK")]);
    let of = format!("127.0.0.1 {}", primary.port);
    let server = Server::start(&["--replicaof", &of, "--replica-read-only", "no", "--io-threads", "4"]);
    let mut client = Client::connect(server.port);
    client.wait_for_info("master_link_status", "up");
    check(
        &mut source,
        &[("SET a 1 PX 50", "OK"), ("SET b 1 PX 50", "OK"), ("SET end 1", "OK")],
    );
    wait_until("the last key arrives", || client.call(&["GET", "end"]) == "1");
    wait_until("the keys expire", || client.call(&["EXISTS", "a", "b"]) == "0");
    check(&mut client, &[("DBSIZE", "3"), ("UNLINK a", "1"), ("DBSIZE", "2")]);
    // The primary deletes the other one when it is read there.
    check(&mut source, &[("GET b", "-")]);
    wait_until("the deletion arrives", || client.call(&["DBSIZE"]) == "1");
}

#[test]
fn the_source_of_an_import_sees_fields_that_have_expired() {
    let server = Server::start(&["--import-mode", "yes", "--io-threads", "4"]);
    let (mut source, mut other) = (Client::connect(server.port), Client::connect(server.port));
    check(
        &mut source,
        &[
            ("CLIENT IMPORT-SOURCE ON", "OK"),
            ("HSET h f 1 g 2", "2"),
            ("HPEXPIREAT h 1000 FIELDS 1 f", "(1)"),
            ("HGET h f", "1"),
            ("HPEXPIRETIME h FIELDS 1 f", "(1000)"),
        ],
    );
    check(
        &mut other,
        &[("HGET h f", "-"), ("HGETALL h", "(g 2)"), ("HSETNX h f 3", "1")],
    );
    check(
        &mut source,
        &[("HGET h f", "3"), ("HSETNX h f 4", "0"), ("HDEL h f", "1")],
    );
    assert_eq!(other.info("expired_fields"), "0");
}

#[test]
fn a_command_uses_a_key_once() {
    let policy = ["--maxmemory-policy", "allkeys-lfu", "--lfu-log-factor", "0"];
    let server = Server::start(&[&policy[..], &["--io-threads", "4"]].concat());
    let mut client = Client::connect(server.port);
    // The frequency after each command; a new key has 5.
    let uses = [
        ("SET a 1", 5),
        ("SET a 2 NX", 6),
        ("LPUSH a x", 7),
        ("GETSET a 1", 9),
        ("GETEX a EX 1000", 10),
        ("PERSIST a", 11),
        ("RPUSH l a b c d", 5),
        ("LINSERT l BEFORE z y", 6),
        ("LMOVE l l LEFT RIGHT", 8),
        ("LMOVE l l2 LEFT RIGHT", 9),
        ("SADD s a b c", 5),
        ("SREM s a b", 6),
        ("HSET h f v", 5),
        ("HSETEX h FXX FIELDS 1 f v", 6),
        ("XADD x 1-1 f v", 5),
        ("XACK x g 1-1", 6),
        ("PFADD p a", 5),
        ("PFCOUNT p", 6),
    ];
    for (line, frequency) in uses {
        let words: Vec<&str> = line.split_whitespace().collect();
        client.call(&words);
        let key = words[1];
        assert_eq!(client.call(&["OBJECT", "FREQ", key]), frequency.to_string(), "{line}");
    }
}

#[test]
fn lookups_are_counted() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut client = Client::connect(server.port);
    check(
        &mut client,
        &[
            ("XADD x 1-1 f v", "1-1"),
            ("XGROUP CREATE x g 0", "OK"),
            ("SADD s a b", "2"),
            ("HSET h f v", "1"),
        ],
    );
    let cases = [
        ("XACK x g 1-1", 1, 0),
        ("XCLAIM nokey g c 0 1-1", 0, 1),
        ("XAUTOCLAIM x g c bad 0", 1, 0),
        ("XREADGROUP GROUP g c STREAMS x >", 2, 0),
        ("XINFO STREAM x", 1, 0),
        ("HGETEX s FIELDS 1 f", 1, 0),
        ("HGETEX h EX bad FIELDS 1 f", 1, 0),
        ("LCS h s", 2, 0),
        ("MIGRATE 127.0.0.1 1 nokey 0 10", 0, 1),
        ("MEMORY USAGE s", 0, 0),
        ("MEMORY USAGE nokey", 0, 0),
        ("PFDEBUG ENCODING nokey", 0, 0),
        ("SPOP s 5", 1, 0),
    ];
    for (line, hits, misses) in cases {
        client.call(&["CONFIG", "RESETSTAT"]);
        let words: Vec<&str> = line.split_whitespace().collect();
        client.call(&words);
        let counted = (client.info("keyspace_hits"), client.info("keyspace_misses"));
        assert_eq!(counted, (hits.to_string(), misses.to_string()), "{line}");
    }
}

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

/// A script that gets `now`, the current time in milliseconds.
fn script_with_time(rest: &str) -> String {
    let time = "local time = redis.call('TIME')
        local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)) ";
    format!("{time}{rest}")
}

/// The time in a script may be later by a millisecond than the time at which its commands expire keys. So it is
/// repeated until they are the same.
#[test]
fn an_expiry_in_the_current_millisecond_is_in_the_past() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut client = Client::connect(server.port);
    for writes in [
        "redis.call('SET', 'k', '1', 'PXAT', now)",
        "redis.call('SET', 'k', '1') redis.call('SET', 'k', '2', 'GET', 'PXAT', now)",
        "redis.call('SET', 'k', '1') redis.call('GETEX', 'k', 'PXAT', now)",
        "redis.call('SET', 'k', '1') redis.call('PEXPIREAT', 'k', now)",
        "redis.call('HSETEX', 'k', 'PXAT', now, 'FIELDS', '1', 'f', 'v')",
        "redis.call('HSET', 'k', 'f', 'v') redis.call('HGETEX', 'k', 'PXAT', now, 'FIELDS', '1', 'f')",
    ] {
        let script = script_with_time(&format!(
            "redis.call('DEL', 'k') {writes} return redis.call('EXISTS', 'k')"
        ));
        let is_deleted = (0..200).any(|_| client.call(&["EVAL", &script, "1", "k"]) == "0");
        assert!(is_deleted, "{writes}");
    }
}

/// A field is still there in the millisecond in which it expires, but a write replaces it as if it were not.
#[test]
fn a_field_in_its_last_millisecond_is_overwritten_as_expired() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut client = Client::connect(server.port);
    let script = script_with_time(
        "if now < ARGV[1] then return 'early' end
        if now > ARGV[1] then return 'late' end
        local before = redis.call('HGET', 'h', 'f')
        return {before, redis.call('HSET', 'h', 'f', '2'), redis.call('HTTL', 'h', 'FIELDS', 1, 'f')}",
    );
    let later = script_with_time("return string.format('%.0f', now + 3)");
    let is_replaced = (0..200).any(|_| {
        client.call(&["DEL", "h"]);
        client.call(&["HSET", "h", "f", "1"]);
        let at_ms = client.call(&["EVAL", &later, "0"]);
        client.call(&["HPEXPIREAT", "h", &at_ms, "FIELDS", "1", "f"]);
        let mut reply = "early".to_owned();
        while reply == "early" {
            reply = client.call(&["EVAL", &script, "1", "h", &at_ms]);
        }
        reply == "(1 1 (-1))"
    });
    assert!(is_replaced);
}

/// The result of a command that has left its worker is stored later.
#[test]
fn an_empty_result_from_the_background_deletes_a_destination_that_has_expired() {
    let server = Server::start(&["--import-mode", "yes", "--io-threads", "4"]);
    let mut client = Client::connect(server.port);
    for (key, first) in [("a", 0), ("b", 20_000)] {
        for start in (first..first + 20_000).step_by(1000) {
            let members: Vec<String> = (start..start + 1000).map(|number| format!("m{number}")).collect();
            let mut words = vec!["SADD", key];
            words.extend(members.iter().map(String::as_str));
            client.call(&words);
        }
    }
    check(&mut client, &[("SET d 1 PXAT 1000", "OK"), ("DBSIZE", "3")]);
    let before: u64 = client.info("weft_background_commands").parse().expect("a number");
    check(&mut client, &[("SINTERSTORE d a b", "0"), ("DBSIZE", "2")]);
    let after: u64 = client.info("weft_background_commands").parse().expect("a number");
    assert!(after > before, "the command ran in the background");
    check(
        &mut client,
        &[("SET d 1 PXAT 1000", "OK"), ("SUNIONSTORE d a b", "40000")],
    );
    assert_eq!(client.info("expired_keys"), "1");
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

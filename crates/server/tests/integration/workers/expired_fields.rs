//! Tests commands that access expired hash fields that were not deleted yet: replicas and a reloaded append-only file
//! must have the same fields, with the same expiry times.

use std::thread;
use std::time::{Duration, Instant};

use super::expired_keys::{WORKERS, await_replica, call, pair, words};
use super::{Client, PATIENCE, Server};

/// Commands for a hash `src`, whose field `f` has expired, whose field `g` has no expiry time and whose field `t` has
/// time left. Commands are separated by `;`.
const FORMS: &[&str] = &[
    "HSETEX src KEEPTTL FIELDS 1 f 9",
    "HSETEX src KEEPTTL FIELDS 4 f 9 g 8 t 7 new 6",
    "HSETEX src KEEPTTL FIELDS 2 f 9 f 10",
    "HSETEX src FNX KEEPTTL FIELDS 2 f 9 new 8",
    "HSETEX src FXX KEEPTTL FIELDS 2 t 9 g 8",
    "HSETEX src FXX KEEPTTL FIELDS 2 t 9 f 8",
    "HSETEX src FNX FIELDS 1 f 9",
    "HSETEX src EX 5000 FIELDS 2 f 9 g 8",
    "HSETEX src EXAT 1 FIELDS 2 f 9 g 8",
    "HSET src f 9",
    "HMSET src f 9 t 8",
    "HSETNX src f 9",
    "HSETNX src new 9;HINCRBY src f 4",
    "HINCRBY src f 4",
    "HINCRBY src t 4",
    "HINCRBYFLOAT src f 4",
    "HINCRBYFLOAT src t 4",
    "HINCRBYFLOAT src g 4",
    "HEXPIRE src 5000 FIELDS 2 f g",
    "HEXPIRE src 5000 FIELDS 3 f g t",
    "HEXPIRE src 1000 GT FIELDS 3 f g t",
    "HEXPIRE src 5000 NX FIELDS 3 f g t",
    "HPEXPIREAT src 1 FIELDS 2 f g",
    "HPERSIST src FIELDS 2 f t",
    "HGETEX src PERSIST FIELDS 3 f g t",
    "HGETEX src EX 5000 FIELDS 3 f g t",
    "HGETEX src EXAT 1 FIELDS 3 f g t",
    "HDEL src f g",
    "HDEL src f g t;HSET src z 1",
    "HDEL src g t;HSET src z 1",
    "HGETDEL src FIELDS 2 f g",
    "HGETDEL src FIELDS 3 f g t;HSET src z 1",
    "COPY src dst",
    "COPY src dst;HINCRBY dst f 4",
    "COPY src dst;HSETEX dst KEEPTTL FIELDS 1 f 9",
    "COPY src dst;HEXPIRE dst 5000 FIELDS 2 f g",
    "SET dst x;COPY src dst REPLACE",
    "SET dst x;RENAME src dst;HINCRBY dst f 4",
    "RENAMENX src dst;HDEL dst g",
    "HDEL src g t;COPY src dst",
    "HDEL src g t;COPY src dst;COPY src oth",
    "HDEL src g t;SET dst x;COPY src dst REPLACE",
    "HDEL src g t;SET dst x;RENAME src dst",
    "HDEL src g t;SET dst x;RENAMENX src dst",
    "HDEL src g t;COPY src dst;HSET dst z 1",
    "HDEL src g t;HSETEX src KEEPTTL FIELDS 1 f 9",
    "HDEL src g t;HSETEX src FXX FIELDS 1 f 9",
    "HDEL src g t;PERSIST src",
    "HDEL src g t;HINCRBY src f 4",
    "COPY src dst;DEL src;RENAME dst src;HINCRBY src f 1",
];

/// Returns the visible contents of the hashes of a form.
fn seen(client: &mut Client, tag: &str) -> String {
    let mut all = String::new();
    for name in ["src", "dst", "oth"] {
        let key = format!("{name}{tag}");
        let mut fields = Vec::new();
        for field in ["f", "g", "t", "z", "new"] {
            let value = client.call(&["HGET", &key, field]);
            let expires = client.call(&["HPEXPIRETIME", &key, "FIELDS", "1", field]);
            fields.push(format!("{field}={value}@{expires}"));
        }
        let kind = client.call(&["TYPE", &key]);
        let expires = client.call(&["PEXPIRETIME", &key]);
        let len = client.call(&["HLEN", &key]);
        all += &format!("{name}: {kind} of {len} until {expires} {}; ", fields.join(" "));
    }
    all
}

/// Waits until `client` sees the expected contents. Returns the contents that it sees instead if the wait times out.
fn await_seen(client: &mut Client, tag: &str, expected: &str) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let now = seen(client, tag);
        if now == expected {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(now);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn fields_that_have_expired_end_in_the_same_way_everywhere() {
    for workers in WORKERS {
        let (primary, replica) = pair(workers);
        let (mut client, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
        let tags: Vec<String> = (0..FORMS.len()).map(|number| format!("-{number}")).collect();
        for tag in &tags {
            for command in [
                "HSET src f 1 g 2 t 3",
                "HEXPIRE src 10000 FIELDS 1 t",
                "PEXPIRE src 100000000",
                "HPEXPIRE src 1 FIELDS 1 f",
            ] {
                call(&mut client, &words(command, tag));
            }
        }
        thread::sleep(Duration::from_millis(5));
        for (form, tag) in FORMS.iter().zip(&tags) {
            for command in form.split(';') {
                call(&mut client, &words(command, tag));
            }
        }
        await_replica(&mut client, &mut other);
        let live: Vec<String> = tags.iter().map(|tag| seen(&mut client, tag)).collect();
        let mut differing = Vec::new();
        for ((form, tag), live) in FORMS.iter().zip(&tags).zip(&live) {
            let copied = seen(&mut other, tag);
            if copied != *live {
                differing.push(format!("{form}\n   primary {live}\n   replica {copied}"));
            }
        }
        assert!(
            differing.is_empty(),
            "{} differ: {}",
            differing.len(),
            differing.join("\n")
        );
        assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
        for ((form, tag), live) in FORMS.iter().zip(&tags).zip(&live) {
            assert_eq!(seen(&mut client, tag), *live, "after a reload: {form}");
        }
        // The remaining expired fields are deleted, and nothing else.
        assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]), "OK");
        for (form, tag) in FORMS.iter().zip(&tags) {
            let start = Instant::now();
            let has_expired = |client: &mut Client| {
                let hash = format!("src{tag}");
                let len: usize = client.call(&["HLEN", &hash]).parse().unwrap_or(0);
                len > client.call(&["HKEYS", &hash]).split_whitespace().count()
            };
            while has_expired(&mut client) {
                assert!(start.elapsed() < PATIENCE, "{form}: the field stays");
                thread::sleep(Duration::from_millis(5));
            }
            let live = seen(&mut client, tag);
            assert_eq!(await_seen(&mut other, tag, &live), Ok(()), "in the end: {form}");
        }
    }
}

#[test]
fn a_primary_that_starts_again_has_the_expired_fields_that_its_replicas_have() {
    let save = [
        "--io-threads",
        "2",
        "--io-threads-always-active",
        "yes",
        "--enable-debug-command",
        "yes",
    ];
    let mut primary = Server::start(&save);
    let follows = format!("127.0.0.1 {}", primary.port);
    let replica = Server::start(&["--replicaof", &follows]);
    let (mut client, mut other) = (Client::connect(primary.port), Client::connect(replica.port));
    assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "OK");
    await_replica(&mut client, &mut other);
    assert_eq!(client.call(&["HSET", "src", "f", "1", "g", "2"]), "2");
    assert_eq!(client.call(&["HPEXPIRE", "src", "1", "FIELDS", "1", "f"]), "(1)");
    thread::sleep(Duration::from_millis(5));
    await_replica(&mut client, &mut other);
    client.send(&["SHUTDOWN", "SAVE"]);
    primary.start_again_with(&save);
    let mut client = Client::connect(primary.port);
    await_replica(&mut client, &mut other);
    assert_eq!(client.call(&["HINCRBY", "src", "f", "4"]), "4");
    await_replica(&mut client, &mut other);
    assert_eq!(seen(&mut other, ""), seen(&mut client, ""));
}

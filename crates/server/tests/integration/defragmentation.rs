//! Tests of active defragmentation: memory follows the keys that are left, no value is lost or changed, and parameters
//! switch it on and off.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Parameters with which defragmentation starts whatever the fragmentation is, and takes all of a CPU.
const EAGER: [&str; 10] = [
    "active-defrag-ignore-bytes",
    "1",
    "active-defrag-threshold-lower",
    "0",
    "active-defrag-threshold-upper",
    "1",
    "active-defrag-cycle-min",
    "99",
    "active-defrag-cycle-max",
    "99",
];

/// Starts a server with this number of active workers.
fn start(workers: &str) -> Server {
    Server::start(&[
        "--io-threads",
        workers,
        "--io-threads-always-active",
        "yes",
        "--enable-debug-command",
        "yes",
    ])
}

fn set_parameters(client: &mut Client, pairs: &[&str]) {
    assert_eq!(client.call(&[&["CONFIG", "SET"], pairs].concat()), "OK");
}

fn number(client: &mut Client, field: &str) -> u64 {
    client.info(field).parse().expect("a number")
}

/// Sends requests without waiting for the reply to each.
fn call_all(client: &mut Client, requests: impl Iterator<Item = Vec<String>>) {
    let mut sent = 0;
    let receive = |client: &mut Client, replies: usize| {
        for _ in 0..replies {
            let reply = client.answer();
            assert!(!reply.starts_with("ERR"), "{reply}");
        }
    };
    for request in requests {
        client.send(&request);
        sent += 1;
        if sent == 500 {
            receive(client, sent);
            sent = 0;
        }
    }
    receive(client, sent);
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Fills the server with strings of several sizes and small collections, and deletes nine of ten.
fn fill_and_delete(client: &mut Client) {
    const KEYS: usize = 30_000;
    let requests = (0..KEYS).map(|number| {
        let key = format!("key:{number}");
        let value = "v".repeat(20 + number * 7 % 900);
        match number % 4 {
            0 => words(&["RPUSH", &key, &value, "a", "b"]),
            1 => words(&["HSET", &key, "field", &value]),
            2 => words(&["SET", &key, &value, "EX", "10000"]),
            _ => words(&["SET", &key, &value]),
        }
    });
    call_all(client, requests);
    let deleted = (0..KEYS).filter(|number| number % 10 > 0);
    call_all(client, deleted.map(|number| words(&["DEL", &format!("key:{number}")])));
}

#[test]
fn memory_follows_the_keys_that_are_left() {
    for workers in ["2", "8"] {
        let server = start(workers);
        let mut client = Client::connect(server.port);
        fill_and_delete(&mut client);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        let before = number(&mut client, "allocator_frag_bytes");
        assert!(before > 2 << 20, "{before} bytes of fragmentation");
        assert_eq!(client.info("active_defrag_running"), "0");
        assert_eq!(client.info("active_defrag_hits"), "0");
        set_parameters(&mut client, &EAGER);
        set_parameters(&mut client, &["activedefrag", "yes"]);
        wait_until("the fragmentation falls", || {
            number(&mut client, "allocator_frag_bytes") < before / 3
        });
        assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
        assert!(number(&mut client, "active_defrag_hits") > 1000);
        assert!(number(&mut client, "active_defrag_misses") > 0);
        assert!(number(&mut client, "active_defrag_key_hits") > 500);
        assert!(number(&mut client, "total_active_defrag_time") > 0);
        set_parameters(&mut client, &["activedefrag", "no"]);
        client.wait_for_info("active_defrag_running", "0");
        client.wait_for_info("current_active_defrag_time", "0");
        assert_eq!(client.call(&["CONFIG", "RESETSTAT"]), "OK");
        assert_eq!(client.info("active_defrag_hits"), "0");
        assert_eq!(client.info("total_active_defrag_time"), "0");
    }
}

#[test]
fn little_fragmentation_is_ignored() {
    let server = start("2");
    let mut client = Client::connect(server.port);
    set_parameters(&mut client, &["activedefrag", "yes"]);
    fill_and_delete(&mut client);
    assert!(number(&mut client, "allocator_frag_bytes") > 2 << 20);
    // Less than active-defrag-ignore-bytes.
    assert_eq!(client.info("total_active_defrag_time"), "0");
    set_parameters(&mut client, &["active-defrag-ignore-bytes", "1mb"]);
    wait_until("it starts", || number(&mut client, "active_defrag_hits") > 0);
}

/// The value that a writer gives to a key in a round.
fn value_of(key: u32, round: u32) -> String {
    format!("{key}:{round}:").repeat(1 + (key + round) as usize * 11 % 120)
}

/// Changes keys of its own in all ways, and checks each value before its next change.
fn change_keys(port: u16, writer: u32, rounds: u32) {
    let mut client = Client::connect(port);
    let mut stored = HashMap::new();
    let script = "redis.call('SET', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[1])";
    for round in 0..rounds {
        let key = round * 7919 % 150;
        let (name, list) = (format!("w{writer}:{key}"), format!("l{writer}:{key}"));
        if let Some(value) = stored.get(&key) {
            assert_eq!(&client.call(&["GET", &name]), value);
            assert_eq!(&client.call(&["LINDEX", &list, "-1"]), value);
        }
        let value = value_of(key, round);
        match round % 5 {
            0 => drop(client.call(&["SET", &name, &value])),
            1 => drop(client.transact(&[&["SET", &name, &value], &["EXPIRE", &name, "10000"]])),
            2 => assert_eq!(client.call(&["EVAL", script, "1", &name, &value]), value),
            3 => {
                client.call(&["DEL", &name, &list]);
                client.call(&["SET", &name, &value, "PX", "10000000"]);
            }
            _ => {
                client.call(&["SET", &name, ""]);
                client.call(&["APPEND", &name, &value]);
            }
        }
        client.call(&["RPUSH", &list, &value]);
        client.call(&["ZADD", &format!("z{writer}"), &round.to_string(), &value]);
        client.call(&["XADD", &format!("x{writer}"), "MAXLEN", "~", "100", "*", "f", &value]);
        client.call(&["HSET", &format!("h{writer}"), &key.to_string(), &value]);
        client.call(&["SADD", &format!("s{writer}"), &value]);
        stored.insert(key, value);
    }
    for (key, value) in stored {
        assert_eq!(client.call(&["GET", &format!("w{writer}:{key}")]), value);
        assert_eq!(client.call(&["HGET", &format!("h{writer}"), &key.to_string()]), value);
        assert_eq!(client.call(&["SISMEMBER", &format!("s{writer}"), &value]), "1");
        assert_ne!(client.call(&["ZSCORE", &format!("z{writer}"), &value]), "-");
    }
}

#[test]
fn clients_find_what_they_have_written_while_it_is_moved() {
    for workers in ["2", "8"] {
        let server = start(workers);
        let mut client = Client::connect(server.port);
        set_parameters(&mut client, &EAGER);
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| scope.spawn(move || change_keys(server.port, writer, 300)))
                .collect();
            // Data come and go in another database, and all data are saved.
            let other = scope.spawn(|| {
                let mut client = Client::connect(server.port);
                client.call(&["SELECT", "1"]);
                while !has_ended.load(Ordering::Relaxed) {
                    let requests = (0..2000).map(|number| {
                        let value = "x".repeat(number % 700);
                        words(&["SET", &format!("other:{number}"), &value])
                    });
                    call_all(&mut client, requests);
                    client.call(&["BGSAVE"]);
                    let deleted = (0..2000).filter(|number| number % 8 > 0);
                    call_all(
                        &mut client,
                        deleted.map(|number| words(&["UNLINK", &format!("other:{number}")])),
                    );
                    client.call(&["SWAPDB", "1", "2"]);
                    client.call(&["FLUSHDB"]);
                }
            });
            while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
                set_parameters(&mut client, &["activedefrag", "yes"]);
                let moved = number(&mut client, "active_defrag_misses");
                wait_until("it runs", || number(&mut client, "active_defrag_misses") > moved);
                set_parameters(&mut client, &["activedefrag", "no"]);
            }
            has_ended.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.join().expect("a writer ends well");
            }
            other.join().expect("it ends well");
        });
        assert!(number(&mut client, "active_defrag_hits") > 0);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
        assert_eq!(client.call(&["DEBUG", "DIGEST"]), digest);
    }
}

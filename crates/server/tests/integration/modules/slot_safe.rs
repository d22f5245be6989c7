//! Slot-safe commands: in parallel on all workers, under the leases of their keys.

use std::thread;

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;

#[test]
fn counters_lose_no_addition() {
    const CLIENTS: u64 = 8;
    const ROUNDS: u64 = 2000;
    for workers in [1, 4] {
        let server = start(workers, "counter");
        let port = server.port;
        let clients = (0..CLIENTS).map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for round in 0..ROUNDS {
                    client.send(&["counter.add", "all", "1", "1000000"]);
                    client.send(&["counter.add", &format!("own:{number}"), "2", "1000000"]);
                    client.send(&[
                        "counter.move",
                        &format!("own:{number}"),
                        &format!("own:{}", round % CLIENTS),
                        "1",
                    ]);
                    client.send(&["INCR", "all"]);
                    client.send(&["counter.get", "all"]);
                    (0..5).for_each(|_| assert!(!client.answer().starts_with("ERR")));
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .for_each(|client| client.join().expect("no reply is an error"));
        let mut client = Client::connect(port);
        assert_eq!(client.call(&["counter.get", "all"]), (CLIENTS * ROUNDS * 2).to_string());
        let own = (0..CLIENTS).map(|number| client.call(&["counter.get", &format!("own:{number}")]));
        let sum: u64 = own.map(|text| text.parse::<u64>().expect("a number")).sum();
        assert_eq!(sum, CLIENTS * ROUNDS * 2);
        let largest: u64 = client.call(&["counter.largest"]).parse().expect("a number");
        assert!(
            (CLIENTS * ROUNDS..=CLIENTS * ROUNDS * 2).contains(&largest),
            "{largest}"
        );
    }
}

#[test]
fn the_example_checks_its_arguments_and_limits() {
    let server = start(2, "counter");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["counter.add", "c", "5", "10"]), "5");
    assert_eq!(client.call(&["counter.add", "c", "6", "10"]), "-");
    assert_eq!(client.call(&["counter.add", "c", "5", "10"]), "10");
    assert_eq!(client.call(&["counter.move", "c", "d", "4"]), "OK");
    assert_eq!(client.call(&["counter.move", "c", "d", "7"]), "-");
    assert_eq!(client.call(&["counter.move", "c", "c", "6"]), "OK");
    assert_eq!(client.call(&["MGET", "c", "d"]), "(6 4)");
    assert_eq!(client.call(&["counter.get", "none"]), "0");
    assert_eq!(
        client.call(&["counter.add", "c", "-1", "10"]),
        "ERR the amount is not an integer from 0"
    );
    assert_eq!(
        client.call(&["counter.add", "c"]),
        "ERR wrong number of arguments for 'counter.add' command"
    );
    client.call(&["LPUSH", "list", "x"]);
    assert!(client.call(&["counter.get", "list"]).starts_with("WRONGTYPE"));
    client.call(&["SET", "text", "x"]);
    assert_eq!(client.call(&["counter.get", "text"]), "ERR the value is not an integer");
    // Transactions and scripts use it as well.
    assert_eq!(
        client.transact(&[&["counter.add", "c", "1", "10"], &["GET", "c"]]),
        "(7 7)"
    );
    let script = "return {redis.call('counter.add', KEYS[1], 1, 10), redis.call('counter.get', KEYS[1])}";
    assert_eq!(client.call(&["EVAL", script, "1", "c"]), "(8 8)");
}

#[test]
fn counters_are_logged_and_replicated() {
    let mut server = start_with(4, &[&["counter"]], &["--appendonly", "yes"]);
    let path = super::module("counter");
    let port = server.port.to_string();
    let replica = Server::start(&["--loadmodule", &path, "--replicaof", "127.0.0.1", &port]);
    let mut client = Client::connect(server.port);
    let mut reader = Client::connect(replica.port);
    reader.wait_for_info("master_link_status", "up");
    for number in 0..100 {
        client.call(&["counter.add", &format!("c{}", number % 10), "1", "1000"]);
    }
    assert_eq!(client.call(&["WAIT", "1", "0"]), "1");
    assert_eq!(reader.call(&["counter.get", "c7"]), "10");
    server.kill();
    server.start_again();
    let mut client = Client::connect(server.port);
    client.wait_for_info("loading", "0");
    assert_eq!(client.call(&["counter.get", "c7"]), "10");
}

#[test]
fn a_key_that_is_not_declared_is_an_error() {
    for workers in [1, 4] {
        let server = start(workers, "concurrency");
        let mut client = Client::connect(server.port);
        // Both names are in one slot, or in two.
        for (key, other) in [("a", "b"), ("{a}1", "c")] {
            assert_eq!(client.call(&["concurrency.open", key, other]), "0", "{key} {other}");
            assert_eq!(client.call(&["EXISTS", other]), "0");
        }
        assert_eq!(client.call(&["concurrency.call", "a", "SET", "a", "v"]), "OK");
        assert_eq!(client.call(&["GET", "a"]), "v");
        let refused = client.call(&["concurrency.call", "a", "SET", "b", "v"]);
        assert!(refused.contains("not declared"), "{refused}");
        assert_eq!(client.call(&["EXISTS", "b"]), "0");
    }
}

/// Sends these commands of the module, each with a key of its own client. Returns the number of jobs that the server
/// has accepted.
fn add_jobs(port: u16, commands: &'static [&'static str]) -> u64 {
    let clients: Vec<_> = (0..8)
        .map(|number| {
            thread::spawn(move || {
                let (mut client, key) = (Client::connect(port), format!("k{number}"));
                let rounds = commands.iter().cycle().take(100 * commands.len());
                let replies = rounds.map(|command| client.call(&[*command, &key]));
                replies.map(|reply| reply.parse::<u64>().expect("0 or 1")).sum::<u64>()
            })
        })
        .collect();
    clients
        .into_iter()
        .map(|client| client.join().expect("a client ends"))
        .sum()
}

#[test]
fn post_notification_jobs_are_refused_under_leases() {
    for workers in [1, 4] {
        let server = start(workers, "concurrency");
        let mut client = Client::connect(server.port);
        assert_eq!(add_jobs(server.port, &["concurrency.job", "concurrency.job-serial"]), 0);
        assert_eq!(add_jobs(server.port, &["concurrency.job-home"]), 800);
        assert_eq!(client.call(&["GET", "jobs"]), "800");
        // A slot-safe command runs at home if it is in one batch with a command at home. Then its job runs there, too.
        let all = &["concurrency.job", "concurrency.job-home", "concurrency.job-serial"];
        let added = add_jobs(server.port, all);
        assert!(added >= 800, "{added}");
        assert_eq!(client.call(&["GET", "jobs"]), (800 + added).to_string());
        // No module has subscribed to events. The jobs of a transaction and of a script run at their ends nevertheless.
        assert_eq!(client.transact(&[&["concurrency.job-home", "k"]]), "(1)");
        assert_eq!(client.call(&["GET", "jobs"]), (801 + added).to_string());
        let script = "return redis.call('concurrency.job-home', KEYS[1])";
        assert_eq!(client.call(&["EVAL", script, "1", "k"]), "1");
        assert_eq!(client.call(&["GET", "jobs"]), (802 + added).to_string());
    }
}

#[test]
fn commands_on_two_slots_run_at_the_same_time() {
    let server = start(4, "concurrency");
    let port = server.port;
    let most_at_once = |command: &'static str| -> u64 {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                thread::spawn(move || {
                    let mut client = Client::connect(port);
                    let replies = (0..10).map(|_| client.call(&[command, &format!("k{number}")]));
                    replies
                        .map(|reply| reply.parse::<u64>().expect("a number"))
                        .max()
                        .unwrap_or(0)
                })
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("a client ends"))
            .max()
            .unwrap_or(0)
    };
    assert!(most_at_once("concurrency.meet") >= 2);
    assert_eq!(most_at_once("concurrency.meet-home"), 1);
}

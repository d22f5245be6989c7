//! Commands that run on the home worker: alone, in transactions and scripts, with other workers, with threads.

use std::thread;
use std::time::{Duration, Instant};

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// The flag of `GetContextFlags` for a primary, a replica, and a client that cannot be blocked.
const PRIMARY: i64 = 1 << 2;
const REPLICA: i64 = 1 << 3;
const MULTI: i64 = 1 << 1;
const SCRIPT: i64 = 1;

#[test]
fn every_client_reaches_the_home_thread() {
    for workers in [1, 2, 4] {
        let server = start(workers, "home");
        let port = server.port;
        let clients = (0..8).map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for round in 0..50 {
                    for _ in 0..8 {
                        client.send(&["home.add", "shared"]);
                        client.send(&["SET", &format!("k{number}"), &round.to_string()]);
                        client.send(&["home.check"]);
                        client.send(&["GET", &format!("k{number}")]);
                    }
                    for _ in 0..8 {
                        client.answer();
                        assert_eq!(client.answer(), "OK");
                        assert_eq!(client.answer(), "OK");
                        assert_eq!(client.answer(), round.to_string());
                    }
                }
            })
        });
        clients
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|client| client.join().expect("a client succeeds"));
        let mut client = Client::connect(port);
        assert_eq!(client.call(&["GET", "shared"]), "3200", "{workers} workers");
    }
}

#[test]
fn transactions_and_scripts_call_modules() {
    for workers in [1, 4] {
        let server = start(workers, "home");
        for _ in 0..4 {
            let mut client = Client::connect(server.port);
            client.call(&["DEL", "k"]);
            let reply = client.transact(&[&["SET", "k", "5"], &["home.add", "k"], &["home.check"], &["GET", "k"]]);
            assert_eq!(reply, "(OK 6 OK 6)");
            let script = "redis.call('set', KEYS[1], 1); redis.call('home.add', KEYS[1]); \
                          return {redis.call('home.check'), redis.call('get', KEYS[1])}";
            assert_eq!(client.call(&["EVAL", script, "1", "k"]), "(OK 2)");
            let hidden =
                "redis.call('set', KEYS[1], 1); local name = 'ho' .. 'me.add'; return redis.call(name, KEYS[1])";
            let first = client.call(&["EVAL", hidden, "1", "k"]);
            assert!(
                first == "2" || first.contains("in the first run of a script"),
                "{first}"
            );
            assert_eq!(
                client.call(&["EVAL", hidden, "1", "k"]),
                "2",
                "the second run begins at home"
            );
            client.call(&["MULTI"]);
            client.call(&["EVAL", script, "1", "k"]);
            client.call(&["home.add", "k"]);
            assert_eq!(client.call(&["EXEC"]), "((OK 2) 3)");
        }
    }
}

#[test]
fn scripts_do_not_wait_for_module_commands_that_have_run() {
    let server = start(2, "home");
    let port = server.port;
    let mut modules: [Client; 4] = std::array::from_fn(|_| Client::connect(port));
    // They use modules, so all of them are on the home worker.
    modules
        .iter_mut()
        .for_each(|client| assert_eq!(client.call(&["home.check"]), "OK"));
    let mut scripts = Client::connect(port);
    // It takes several milliseconds, so the server runs it on a thread of its own.
    let busy = ["EVAL", "for i = 1, 3000000 do end return 'done'", "0"];
    for _ in 0..30 {
        scripts.send(&busy);
        // They wait for the script, announced, and run in one section when it has ended.
        for client in &mut modules {
            thread::sleep(Duration::from_millis(1));
            client.send(&["home.check"]);
        }
        assert_eq!(scripts.answer(), "done");
        modules.iter_mut().for_each(|client| assert_eq!(client.answer(), "OK"));
        // An announcement that stays is late at the next attempt, and so holds the next script up for twice as long.
        let start = Instant::now();
        assert_eq!(scripts.call(&busy), "done");
        let taken = start.elapsed();
        assert!(taken < Duration::from_millis(1500), "{taken:?}");
    }
}

#[test]
fn the_context_tells_the_state() {
    let server = start(2, "home");
    let mut client = Client::connect(server.port);
    let flags = |reply: String| reply.trim_matches(['(', ')']).parse::<i64>().expect("a number");
    let plain = flags(client.call(&["home.flags"]));
    assert_eq!(plain & (PRIMARY | REPLICA | MULTI | SCRIPT), PRIMARY);
    assert_eq!(flags(client.transact(&[&["home.flags"]])) & (MULTI | SCRIPT), MULTI);
    let script = "return redis.call('home.flags')";
    assert_eq!(flags(client.call(&["EVAL", script, "0"])) & (MULTI | SCRIPT), SCRIPT);
}

#[test]
fn a_selected_database_stays() {
    let server = start(2, "home");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["home.select", "3"]), "3");
    client.call(&["SET", "k", "v"]);
    client.call(&["SELECT", "0"]);
    assert_eq!(client.call(&["EXISTS", "k"]), "0");
    assert_eq!(client.call(&["home.select", "99"]), "ERR no such db");
}

#[test]
fn threads_of_a_module_take_turns_with_clients() {
    for workers in [1, 4] {
        let server = start(workers, "home");
        let port = server.port;
        let mut client = Client::connect(port);
        for _ in 0..4 {
            assert_eq!(client.call(&["home.threads", "k", "100"]), "OK");
        }
        let others: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(move || {
                    let mut client = Client::connect(port);
                    (0..300).for_each(|_| {
                        client.call(&["home.add", "k"]);
                        client.call(&["INCR", "other"]);
                    });
                })
            })
            .collect();
        others
            .into_iter()
            .for_each(|other| other.join().expect("a client succeeds"));
        wait_until("the threads have ended", || client.call(&["GET", "k"]) == "2000");
        assert_eq!(
            client.call(&["home.trylock"]),
            "1",
            "the module runs, which has the lock"
        );
    }
}

#[test]
fn replicas_and_files_get_what_modules_write() {
    for workers in ["1", "2"] {
        let mut primary = start_with(2, &[&["home"]], &["--appendonly", "yes"]);
        let replica = start_with(
            workers.parse().expect("a number"),
            &[&["home"]],
            &["--replicaof", &format!("127.0.0.1 {}", primary.port)],
        );
        let (mut client, mut on_replica) = (Client::connect(primary.port), Client::connect(replica.port));
        client.wait_for_info("connected_slaves", "1");
        client.call(&["home.add", "a"]);
        client.call(&["home.addtwice", "b"]);
        client.call(&["home.verbatim", "c"]);
        client.transact(&[&["home.verbatim", "c"], &["home.add", "a"]]);
        client.call(&["EVAL", "redis.call('home.verbatim', KEYS[1]); return 1", "1", "c"]);
        client.call(&["SET", "end", "1"]);
        wait_until("the replica has everything", || on_replica.call(&["GET", "end"]) == "1");
        assert_eq!(on_replica.call(&["MGET", "a", "b", "c"]), "(2 2 3)");
        assert!(on_replica.call(&["home.add", "a"]).starts_with("READONLY"));
        drop(client);
        primary.kill();
        primary.start_again();
        let mut client = Client::connect(primary.port);
        client.wait_for_info("loading", "0");
        assert_eq!(client.call(&["MGET", "a", "b", "c"]), "(2 2 3)");
    }
}

#[test]
fn slot_safe_commands_run_on_all_workers() {
    let server: Server = start(4, "home");
    let port = server.port;
    let clients: Vec<_> = (0..8)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for round in 0..400 {
                    let key = format!("k{}", (number + round) % 16);
                    // The key that is not declared is in another slot.
                    assert_eq!(client.call(&["home.slotsafe", &key, "undeclared"]), "0");
                }
            })
        })
        .collect();
    clients
        .into_iter()
        .for_each(|client| client.join().expect("a client succeeds"));
    let mut client = Client::connect(port);
    let sum: i64 = (0..16)
        .map(|number| {
            client
                .call(&["GET", &format!("k{number}")])
                .parse::<i64>()
                .expect("a number")
        })
        .sum();
    assert_eq!(sum, 3200);
}

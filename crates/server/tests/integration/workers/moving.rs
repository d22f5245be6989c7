//! Tests connections that move between workers while they are in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Makes connections move between workers repeatedly while `story` runs.
fn while_connections_move(server: &Server, story: impl FnOnce()) {
    while_connections_move_every(Duration::from_millis(3), server, story);
}

/// Makes connections move between workers, with this pause between two changes of direction, while `story` runs.
fn while_connections_move_every(pause: Duration, server: &Server, story: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut mover = Client::connect(server.port);
            while !stop.load(Ordering::Relaxed) {
                for active in ["yes", "no"] {
                    let answer = mover.call(&["CONFIG", "SET", "io-threads-always-active", active]);
                    assert_eq!(answer, "OK");
                    thread::sleep(pause);
                }
            }
        });
        let guard = StopOnDrop(&stop);
        story();
        drop(guard);
    });
}

/// Stops the moves, also if the story fails.
pub(super) struct StopOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn queries_about_clients_miss_no_moving_client() {
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "no"]);
        let mut idle: Vec<Client> = (0..400).map(|_| Client::connect(server.port)).collect();
        for client in &mut idle {
            assert_eq!(client.call(&["CLIENT", "SETNAME", "idle"]), "OK");
        }
        let mut admin = Client::connect(server.port);
        while_connections_move(&server, || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(3) {
                let list = admin.call(&["CLIENT", "LIST"]);
                assert_eq!(list.matches("name=idle").count(), 400);
                admin.send(&["MULTI"]);
                admin.send(&["CLIENT", "LIST"]);
                admin.send(&["EXEC"]);
                admin.answer();
                admin.answer();
                assert_eq!(admin.answer().matches("name=idle").count(), 400, "in a transaction");
            }
        });
        assert!(admin.call(&["INFO", "everything"]).contains("weft_tunings:"));
    }
}

/// The message about the change reaches the workers. A connection on its way is with none of them.
#[test]
fn clients_that_wait_while_they_move_learn_of_a_change_of_the_role() {
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads]);
        let mut admin = Client::connect(server.port);
        while_connections_move_every(Duration::from_millis(1), &server, || {
            for round in (0..16).cycle().take(100) {
                let mut waiting: Vec<Client> = (0..400).map(|_| Client::connect(server.port)).collect();
                for client in &mut waiting {
                    client.send(&["BLPOP", "key", "0"]);
                }
                admin.wait_for_info("blocked_clients", "400");
                thread::sleep(Duration::from_micros(700 * round));
                assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
                for client in &mut waiting {
                    assert!(client.answer().starts_with("UNBLOCKED "));
                }
                assert_eq!(admin.call(&["REPLICAOF", "NO", "ONE"]), "OK");
            }
        });
    }
}

/// Clients that redirect their invalidations, and clients that get them, all of which move.
#[test]
fn redirected_invalidations_follow_a_client_that_moves() {
    const PAIRS: usize = 250;
    for threads in ["2", "4", "8"] {
        let server = Server::start(&["--io-threads", threads]);
        let mut pairs: Vec<(Client, Client)> = Vec::new();
        for _ in 0..PAIRS {
            let (mut tracking, mut informed) = (Client::connect(server.port), Client::connect(server.port));
            informed.send(&["HELLO", "3"]);
            skip_hello(&mut informed);
            let id = informed.call(&["CLIENT", "ID"]);
            assert_eq!(tracking.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
            pairs.push((tracking, informed));
        }
        let mut writer = Client::connect(server.port);
        let names: Vec<String> = (0..PAIRS).map(|number| format!("key:{number}")).collect();
        let mut words = vec!["MSET"];
        words.extend(names.iter().flat_map(|name| [name.as_str(), "value"]));
        while_connections_move_every(Duration::ZERO, &server, || {
            for _ in 0..250 {
                for ((tracking, _), name) in pairs.iter_mut().zip(&names) {
                    tracking.send(&["GET", name]);
                }
                pairs.iter_mut().for_each(|(tracking, _)| drop(tracking.answer()));
                assert_eq!(writer.call(&words), "OK");
                for ((_, informed), name) in pairs.iter_mut().zip(&names) {
                    assert_eq!(informed.answer(), "2", "a push of two elements");
                    assert_eq!(informed.answer(), "invalidate");
                    assert_eq!(informed.answer(), format!("({name})"));
                }
            }
        });
    }
}

/// Reads the reply to HELLO: seven pairs, the last of which has a list with a map of four pairs.
fn skip_hello(client: &mut Client) {
    assert_eq!(client.answer(), "7", "pairs");
    let words: Vec<String> = (0..14 + 8).map(|_| client.answer()).collect();
    assert_eq!(words.last().map(String::as_str), Some("()"), "{words:?}");
}

#[test]
fn output_that_waits_for_the_disk_is_sent_after_a_move() {
    let directory = std::env::temp_dir().join(format!("weft-moving-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    for threads in ["2", "8"] {
        let _ = std::fs::remove_dir_all(directory.join("appendonlydir"));
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "no",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--dir",
            directory.to_str().expect("text"),
        ]);
        while_connections_move(&server, || {
            thread::scope(|scope| {
                for number in 0..6 {
                    let server = &server;
                    scope.spawn(move || {
                        let mut client = Client::connect(server.port);
                        let key = format!("key{number}");
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_secs(3) {
                            client.send(&["CLIENT", "REPLY", "OFF"]);
                            // For a while, one of its writes is always on its way to the disk.
                            for _ in 0..40 {
                                client.send(&["SET", &key, "1"]);
                                thread::sleep(Duration::from_micros(200));
                            }
                            client.send(&["CLIENT", "REPLY", "ON"]);
                            assert_eq!(client.answer(), "OK");
                            assert_eq!(client.call(&["INCR", &key]), "2");
                            assert!(start.elapsed() < PATIENCE);
                        }
                    });
                }
            });
        });
    }
    let _ = std::fs::remove_dir_all(directory);
}

/// A client of RESP3 that blocks behind another client's commands in one batch gets its push messages at once.
#[test]
fn a_client_that_blocks_gets_pushes_meanwhile() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut writer = Client::connect(server.port);
        for round in 0..50 {
            let mut client = Client::connect(server.port);
            client.send(&["HELLO", "3"]);
            let mut line = String::new();
            while !line.starts_with("*0") {
                line.clear();
                std::io::BufRead::read_line(&mut client.0, &mut line).expect("receives");
            }
            assert_eq!(client.call(&["CLIENT", "TRACKING", "ON"]), "OK");
            client.send(&["SUBSCRIBE", "channel"]);
            for expected in [">3", "$9", "subscribe", "$7", "channel", ":1"] {
                line.clear();
                std::io::BufRead::read_line(&mut client.0, &mut line).expect("receives");
                assert_eq!(line.trim_end(), expected);
            }
            client.send(&["GET", "watched"]);
            line.clear();
            std::io::BufRead::read_line(&mut client.0, &mut line).expect("receives");
            if line.starts_with('$') {
                line.clear();
                std::io::BufRead::read_line(&mut client.0, &mut line).expect("receives");
            }
            // About half of the time, both requests reach the worker together.
            client.send(&["BLPOP", "never", "0"]);
            writer.send(&["SET", "watched", "1"]);
            writer.send(&["PUBLISH", "channel", "message"]);
            writer.answer();
            writer.answer();
            let wanted = [
                ">2",
                "$10",
                "invalidate",
                "*1",
                "$7",
                "watched",
                ">3",
                "$7",
                "message",
                "$7",
                "channel",
                "$7",
                "message",
            ];
            for expected in wanted {
                line.clear();
                let read = std::io::BufRead::read_line(&mut client.0, &mut line);
                assert!(read.is_ok(), "round {round}: {expected} is withheld");
                assert_eq!(line.trim_end(), expected, "round {round}");
            }
        }
    }
}

//! Tests connections that move between workers at random all the time.

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, MOVES, Server};
use crate::harness::wait_until;

/// Runs `story` with one, two and eight active workers that hand each other random connections.
fn with_moves(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&[&["--io-threads", threads], &MOVES[..], arguments].concat());
        story(&server);
        let moved = Client::connect(server.port).info("weft_moved_connections");
        assert_eq!(
            moved == "0",
            threads == "1",
            "{threads} workers moved {moved} connections"
        );
    }
}

#[test]
fn pipelines_are_answered_in_order_while_their_connections_move() {
    with_moves(&[], |server| {
        thread::scope(|scope| {
            for number in 0..16 {
                scope.spawn(move || {
                    let mut client = Client::connect(server.port);
                    let key = format!("counter:{number}");
                    let start = Instant::now();
                    let mut count = 0;
                    while start.elapsed() < Duration::from_secs(2) {
                        for _ in 0..50 {
                            client.send(&["INCR", &key]);
                        }
                        for _ in 0..50 {
                            count += 1;
                            assert_eq!(client.answer(), count.to_string());
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn blocked_clients_are_served_and_time_out_while_they_move() {
    with_moves(&[], |server| {
        let mut pusher = Client::connect(server.port);
        for round in 0..40 {
            let mut waiting: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
            for client in &mut waiting {
                client.send(&["BLPOP", "list", "60"]);
            }
            let mut impatient = Client::connect(server.port);
            impatient.send(&["BLPOP", "other", "0.02"]);
            assert_eq!(impatient.answer(), "-", "round {round}");
            pusher.wait_for_info("blocked_clients", "16");
            for element in 0..16 {
                pusher.send(&["RPUSH", "list", &element.to_string()]);
            }
            let mut elements: Vec<String> = waiting.iter_mut().map(Client::answer).collect();
            elements.sort();
            let mut expected: Vec<String> = (0..16).map(|element| format!("(list {element})")).collect();
            expected.sort();
            assert_eq!(elements, expected, "round {round}");
            (0..16).for_each(|_| drop(pusher.answer()));
        }
    });
}

/// The time above the soft limit is measured by the worker that has the connection.
#[test]
fn a_client_that_never_reads_reaches_the_soft_limit_while_it_moves() {
    with_moves(&[], |server| {
        let mut admin = Client::connect(server.port);
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 0 100000 1"];
        assert_eq!(admin.call(&limit), "OK");
        admin.call(&["SETRANGE", "large", "8000000", "x"]);
        let mut greedy = Client::connect(server.port);
        assert_eq!(greedy.call(&["CLIENT", "SETNAME", "greedy"]), "OK");
        for _ in 0..4 {
            greedy.send(&["GET", "large"]);
        }
        wait_until("the client is closed", || {
            !admin.call(&["CLIENT", "LIST"]).contains("name=greedy")
        });
        assert_eq!(admin.info("client_output_buffer_limit_disconnections"), "1");
    });
}

/// Reads the next lines of a client of RESP3 until one of them is `last`.
fn read_until(client: &mut Client, last: &str) {
    let mut line = String::new();
    while line.trim_end() != last {
        line.clear();
        let read = std::io::BufRead::read_line(&mut client.0, &mut line);
        assert!(read.is_ok_and(|bytes| bytes > 0), "{last} does not arrive");
    }
}

/// Both the client that reads keys and the one that is told of their changes move.
#[test]
fn redirected_invalidations_reach_a_client_that_moves() {
    with_moves(&[], |server| {
        let mut told: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        let mut readers: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        let mut writer = Client::connect(server.port);
        for (told, reader) in told.iter_mut().zip(&mut readers) {
            let id = told.call(&["CLIENT", "ID"]);
            told.send(&["HELLO", "3"]);
            told.send(&["ECHO", "ready"]);
            read_until(told, "ready");
            assert_eq!(reader.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
        }
        let start = Instant::now();
        let mut round = 0;
        while start.elapsed() < Duration::from_secs(3) {
            round += 1;
            for reader in &mut readers {
                reader.call(&["GET", "watched"]);
            }
            assert_eq!(writer.call(&["SET", "watched", &round.to_string()]), "OK");
            for told in &mut told {
                read_until(told, "watched");
            }
        }
    });
}

/// Runs `story` beside clients that keep all workers busy, so that messages wait in mailboxes.
fn while_workers_are_busy(server: &Server, story: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..12 {
            let stop = &stop;
            scope.spawn(move || {
                let mut client = Client::connect(server.port);
                let key = format!("busy:{number}");
                while !stop.load(Ordering::Relaxed) {
                    (0..200).for_each(|_| client.send(&["INCR", &key]));
                    (0..200).for_each(|_| drop(client.answer()));
                }
            });
        }
        let guard = StopOnDrop(&stop);
        story();
        drop(guard);
    });
}

/// A connection may leave a worker and return to it, in whose mailbox it is then behind a message for it.
#[test]
fn invalidations_reach_a_client_that_leaves_and_returns() {
    with_moves(&[], |server| {
        let run = |number: usize| {
            let mut reader = Client::connect(server.port);
            let mut writer = Client::connect(server.port);
            let key = format!("tracked:{number}");
            reader.send(&["HELLO", "3"]);
            reader.send(&["CLIENT", "TRACKING", "ON"]);
            reader.send(&["ECHO", "ready"]);
            read_until(&mut reader, "ready");
            let start = Instant::now();
            let mut round = 0;
            while start.elapsed() < Duration::from_secs(6) {
                round += 1;
                let value = format!("value-{round}");
                assert_eq!(writer.call(&["SET", &key, &value]), "OK");
                reader.send(&["GET", &key]);
                read_until(&mut reader, &value);
                assert_eq!(writer.call(&["SET", &key, "next"]), "OK");
                read_until(&mut reader, &key);
            }
        };
        while_workers_are_busy(server, || {
            thread::scope(|scope| {
                (0..24).for_each(|number| drop(scope.spawn(move || run(number))));
            });
        });
    });
}

/// Transactions mail to the workers what they do to other clients.
#[test]
fn transactions_unblock_and_kill_clients_that_leave_and_return() {
    with_moves(&[], |server| {
        while_workers_are_busy(server, || {
            let mut admin = Client::connect(server.port);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(6) {
                let mut waiting: Vec<Client> = (0..24).map(|_| Client::connect(server.port)).collect();
                let ids: Vec<String> = waiting
                    .iter_mut()
                    .map(|client| client.call(&["CLIENT", "ID"]))
                    .collect();
                for client in &mut waiting {
                    client.send(&["BLPOP", "list", "0"]);
                }
                admin.wait_for_info("blocked_clients", "24");
                let unblock: Vec<[&str; 3]> = ids.iter().map(|id| ["CLIENT", "UNBLOCK", id]).collect();
                let unblock: Vec<&[&str]> = unblock.iter().map(|words| &words[..]).collect();
                assert_eq!(admin.transact(&unblock).matches('1').count(), 24);
                for client in &mut waiting {
                    assert_eq!(client.answer(), "-");
                }
                let kill: Vec<[&str; 4]> = ids.iter().map(|id| ["CLIENT", "KILL", "ID", id]).collect();
                let kill: Vec<&[&str]> = kill.iter().map(|words| &words[..]).collect();
                assert_eq!(admin.transact(&kill).matches('1').count(), 24);
                for client in &mut waiting {
                    assert_eq!(client.0.read(&mut [0]).expect("ends"), 0);
                }
            }
        });
    });
}

/// The message that a pause has ended reaches a worker while the next one holds back its clients already.
#[test]
fn clients_that_are_paused_again_and_again_are_answered() {
    with_moves(&[], |server| {
        let mut admin = Client::connect(server.port);
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..16)
                .map(|number| {
                    scope.spawn(move || {
                        let mut client = Client::connect(server.port);
                        let key = format!("paused:{number}");
                        let mut count = 0;
                        while !stop.load(Ordering::Relaxed) {
                            (0..3).for_each(|_| client.send(&["INCR", &key]));
                            client.send(&["GET", &key]);
                            for _ in 0..3 {
                                count += 1;
                                assert_eq!(client.answer(), count.to_string());
                            }
                            assert_eq!(client.answer(), count.to_string());
                        }
                    })
                })
                .collect();
            let guard = StopOnDrop(stop);
            let start = Instant::now();
            let mut round = 0;
            while start.elapsed() < Duration::from_millis(800) {
                round += 1;
                // Without UNPAUSE it would not end during the test.
                assert_eq!(admin.call(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "OK");
                if round % 3 == 0 {
                    thread::sleep(Duration::from_micros(200));
                }
                assert_eq!(admin.call(&["CLIENT", "UNPAUSE"]), "OK");
            }
            drop(guard);
            // Each has its last replies.
            writers
                .into_iter()
                .for_each(|writer| writer.join().expect("is answered"));
        });
        assert_eq!(admin.info("paused_reason"), "none");
    });
}

#[test]
fn a_demotion_ends_the_waits_of_connections_on_their_way() {
    with_moves(&[], |server| {
        let mut admin = Client::connect(server.port);
        for round in 0..20 {
            let mut waiting: Vec<Client> = (0..100).map(|_| Client::connect(server.port)).collect();
            for client in &mut waiting {
                client.send(&["BLPOP", "list", "0"]);
            }
            admin.wait_for_info("blocked_clients", "100");
            // No server listens at this port.
            assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
            for client in &mut waiting {
                let answer = client.answer();
                assert!(answer.starts_with("UNBLOCKED"), "round {round}: {answer}");
                assert_eq!(client.0.read(&mut [0]).expect("ends"), 0, "round {round}");
            }
            assert_eq!(admin.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        }
    });
}

#[test]
fn a_slot_that_leaves_ends_the_waits_of_connections_on_their_way() {
    for threads in ["1", "2", "8"] {
        let server = Server::start_node(&[&["--io-threads", threads], &MOVES[..]].concat());
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        let slot = admin.call(&["CLUSTER", "KEYSLOT", "list"]);
        let is_up = |admin: &mut Client| admin.call(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        for round in 0..10 {
            wait_until("the cluster is up", || is_up(&mut admin));
            let mut waiting: Vec<Client> = (0..100).map(|_| Client::connect(server.port)).collect();
            for client in &mut waiting {
                client.send(&["BLPOP", "list", "0"]);
            }
            admin.wait_for_info("blocked_clients", "100");
            assert_eq!(admin.call(&["CLUSTER", "DELSLOTS", &slot]), "OK");
            for client in &mut waiting {
                let answer = client.answer();
                assert!(answer.starts_with("CLUSTERDOWN"), "round {round}: {answer}");
            }
            assert_eq!(admin.call(&["CLUSTER", "ADDSLOTS", &slot]), "OK");
        }
    }
}

/// The worker withholds the replies until the disk has the writes. The connection leaves it for the thread that serves
/// replicas, while others move between the workers.
#[test]
fn replies_before_a_synchronisation_arrive_under_load() {
    const REQUESTS: usize = 40;
    let arguments = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--repl-diskless-sync-delay",
        "0",
    ];
    with_moves(&arguments, |server| {
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let mut writer = Client::connect(server.port);
                    let key = format!("load:{number}");
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        (0..REQUESTS).for_each(|_| writer.send(&["INCR", &key]));
                        for _ in 0..REQUESTS {
                            count += 1;
                            assert_eq!(writer.answer(), count.to_string());
                        }
                    }
                });
            }
            let guard = StopOnDrop(stop);
            let replicas: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn(move || {
                        for round in 0..3 {
                            let mut replica = Client::connect(server.port);
                            let key = format!("replica:{number}:{round}");
                            (0..REQUESTS).for_each(|_| replica.send(&["INCR", &key]));
                            replica.send(&["PSYNC", "?", "-1"]);
                            for count in 1..=REQUESTS {
                                assert_eq!(replica.answer(), count.to_string());
                            }
                            let mut line = String::new();
                            while line.trim_end().is_empty() {
                                line.clear();
                                replica.0.read_line(&mut line).expect("receives");
                            }
                            assert!(line.starts_with("+FULLRESYNC "), "{line}");
                        }
                    })
                })
                .collect();
            replicas.into_iter().for_each(|replica| replica.join().expect("ends"));
            drop(guard);
        });
    });
}

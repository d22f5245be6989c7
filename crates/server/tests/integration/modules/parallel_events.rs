//! Slot-safe subscriptions to keyspace events: functions that run on the thread that causes the event.

use std::io::BufRead;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::start_with;
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

const CLIENTS: usize = 8;
const ROUNDS: usize = 300;
/// The changes of a round: INCR, two in a transaction, one in a script, and three by a list.
const CHANGES_PER_ROUND: usize = 7;

/// Returns the counts of the module: changes, their sum by keys, misses, expired keys, events at home, threads, errors.
fn counts(client: &mut Client) -> Vec<usize> {
    let reply = client.call(&["parallel.counts"]);
    let words = reply.trim_matches(['(', ')']).split(' ');
    words.map(|word| word.parse().expect("a number")).collect()
}

fn run_rounds(port: u16, number: usize) {
    let mut client = Client::connect(port);
    for round in 0..ROUNDS {
        let (own, shared) = (format!("k:{number}"), format!("k:{}", 32 + round % 8));
        let list = format!("k:{}", 48 + (number + round) % 8);
        client.send(&["INCR", &shared]);
        client.send(&["GET", "missing"]);
        client.send(&["MULTI"]);
        client.send(&["INCR", &own]);
        client.send(&["INCR", &shared]);
        client.send(&["EXEC"]);
        client.send(&["EVAL", "return server.call('incr', KEYS[1])", "1", &shared]);
        client.send(&["RPUSH", &list, "a", "b"]);
        client.send(&["LPOP", &list]);
        client.send(&["MGET", "missing", "missing:too", &own]);
        client.send(&["RPOP", &list]);
        for _ in 0..11 {
            let answer = client.answer();
            assert!(!answer.contains("ERR"), "{answer}");
        }
    }
}

#[test]
fn each_event_comes_once_on_the_thread_that_causes_it() {
    for workers in [1, 4, 8] {
        for argument in ["", "home"] {
            let words = ["parallel_events", argument];
            let words = &words[..if argument.is_empty() { 1 } else { 2 }];
            let server = start_with(workers, &[words], &[]);
            let port = server.port;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| thread::spawn(move || run_rounds(port, number)))
                .collect();
            clients
                .into_iter()
                .for_each(|client| client.join().expect("no reply is an error"));
            let mut client = Client::connect(port);
            // Lists that become empty cause one more event each, so the number is not that of the rounds alone.
            let counts = counts(&mut client);
            let [changes, sum, misses, expired, at_home, threads, errors] = counts[..] else {
                panic!("{counts:?}")
            };
            assert_eq!(changes, sum, "no event of a key came at the same time as another");
            assert!(changes >= CLIENTS * ROUNDS * CHANGES_PER_ROUND, "{changes}");
            assert_eq!((misses, expired, errors), (CLIENTS * ROUNDS * 3, 0, 0));
            match argument.is_empty() {
                true => {
                    assert_eq!(at_home, 0);
                    assert!(
                        workers == 1 || threads > 1,
                        "the functions run on several workers: {threads}"
                    );
                }
                // All writes run at home then. The functions of both subscriptions get their events.
                false => assert_eq!(at_home, CLIENTS * ROUNDS * 4),
            }
        }
    }
}

#[test]
fn events_without_a_command_come_too() {
    for workers in [1, 4, 8] {
        let server = start_with(workers, &[&["parallel_events"]], &["--enable-module-command", "yes"]);
        let mut client = Client::connect(server.port);
        for key in 0..64 {
            client.call(&["SET", &format!("k:{key}"), "v", "PX", "20"]);
        }
        // An event of the write, one of the time to live, and one of its end.
        wait_until("all keys expire", || counts(&mut client)[3] == 64);
        assert_eq!(counts(&mut client)[..2], [192, 192]);
        assert_eq!(client.call(&["parallel.notify"]), "OK");
        assert_eq!(counts(&mut client)[0], 193);
        assert_eq!(client.call(&["MODULE", "UNLOAD", "parallel_events"]), "OK");
        assert_eq!(client.call(&["SET", "k:1", "v"]), "OK");
    }
}

/// A script that restarts, because a key is in use, causes its events once.
#[test]
fn scripts_that_restart_cause_their_events_once() {
    let server = start_with(8, &[&["parallel_events"]], &[]);
    let port = server.port;
    let clients: Vec<_> = (0..8)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                // Keys that it does not declare, in different orders.
                let script =
                    "for i = 0, 7 do local n = (i * ARGV[1] + ARGV[2]) % 8; server.call('incr', 'k:' .. n) end";
                for round in 0..100 {
                    let step = ["1", "3", "5", "7"][(number + round) % 4];
                    assert_eq!(client.call(&["EVAL", script, "0", step, &number.to_string()]), "-");
                }
            })
        })
        .collect();
    clients
        .into_iter()
        .for_each(|client| client.join().expect("no reply is an error"));
    let mut client = Client::connect(port);
    assert_eq!(counts(&mut client)[..2], [8 * 100 * 8, 8 * 100 * 8]);
}

/// Sends increments to the server that is the primary, and leaves its connections in several ways.
fn write_to_primary(ports: [u16; 2], number: usize, stop: &AtomicBool) {
    let mut at = 0;
    for round in number.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut client = Client::connect(ports[at]);
        let key = format!("k:{}", round % 64);
        let has_sent = (0..20).all(|_| client.try_send(&["INCR", &key]).is_ok());
        let stream = client.0.get_ref();
        match round % 3 {
            // The replies are not read.
            0 => continue,
            1 => drop(stream.shutdown(Shutdown::Write)),
            _ => {}
        }
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("sets a timeout");
        let mut line = String::new();
        for _ in 0..20 {
            line.clear();
            if !has_sent || client.0.read_line(&mut line).is_err() || !line.starts_with(':') {
                break;
            }
        }
        if line.starts_with("-READONLY") {
            at = 1 - at;
        }
    }
}

#[test]
fn failovers_and_lost_clients_disturb_no_function() {
    for workers in [2, 8] {
        let port_of = |server: &Server| server.port.to_string();
        let options = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];
        let first = start_with(workers, &[&["parallel_events"]], &options);
        let follow = ["--replicaof", &format!("127.0.0.1 {}", port_of(&first))];
        let second = start_with(workers, &[&["parallel_events"]], &[&options[..], &follow].concat());
        let servers = [&first, &second];
        let mut admins = servers.map(|server| Client::connect(server.port));
        wait_until("the replica is online", || admins[1].info("master_link_status") == "up");
        let stop = AtomicBool::new(false);
        let ports = servers.map(|server| server.port);
        thread::scope(|scope| {
            for number in 0..6 {
                let stop = &stop;
                scope.spawn(move || write_to_primary(ports, number, stop));
            }
            for round in 0..4 {
                let (old, new) = (round % 2, 1 - round % 2);
                for admin in &mut admins {
                    thread::sleep(Duration::from_millis(50));
                    assert!(admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).parse::<u32>().is_ok());
                }
                assert_eq!(admins[old].call(&["FAILOVER"]), "OK");
                wait_until("the replica is the primary", || {
                    admins[new].info("role") == "master" && admins[old].info("master_link_status") == "up"
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        let digest = |admin: &mut Client| admin.call(&["DEBUG", "DIGEST"]);
        wait_until("both have the same data", || {
            digest(&mut admins[0]) == digest(&mut admins[1])
        });
        for admin in &mut admins {
            let counts = counts(admin);
            assert_eq!(
                counts[0], counts[1],
                "no event of a key came at the same time as another"
            );
            assert!(counts[0] > 0 && counts[6] == 0, "{counts:?}");
        }
    }
}

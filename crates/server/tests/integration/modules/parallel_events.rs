//! Slot-safe subscriptions to keyspace events: functions that run on the thread that causes the event.

use std::thread;

use super::start_with;
use crate::harness::client::Client;
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

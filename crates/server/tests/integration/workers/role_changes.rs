//! Tests changes of the role, and coordinated failovers, beside scripts and beside libraries whose code takes long.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Client, Server};
use crate::harness::wait_until;

const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
const TIMED_OUT: &str = "ERR Error registering functions: ERR FUNCTION LOAD timeout";
/// A script that writes, and ends once [`Pair::end_writer`] is called.
const WRITER: &str = "redis.call('SET', KEYS[1], '1')
    while redis.call('PUBSUB', 'NUMSUB', 'end')[2] == 0 do end
    redis.call('SET', KEYS[2], '2')
    return 'written'";
/// The number of clients that load a library at the same time.
const LOADERS: usize = 8;

/// A primary and its replica, and a client of each. No script counts as busy, however long it takes.
struct Pair {
    servers: [Server; 2],
    clients: [Client; 2],
}

impl Pair {
    /// Starts the two servers with this number of active workers. The first one is the primary.
    fn start(workers: &str) -> Pair {
        let arguments = [
            "--io-threads",
            workers,
            "--busy-reply-threshold",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let servers = [Server::start(&arguments), Server::start(&arguments)];
        let clients = [Client::connect(servers[0].port), Client::connect(servers[1].port)];
        let mut pair = Pair { servers, clients };
        let port = pair.servers[0].port.to_string();
        assert_eq!(pair.clients[1].call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        pair.await_replica_of(0);
        pair
    }

    fn connect(&self, server: usize) -> Client {
        Client::connect(self.servers[server].port)
    }

    /// Waits until the other server follows the stream of this primary.
    fn await_replica_of(&mut self, primary: usize) {
        self.clients[1 - primary].wait_for_info("master_link_status", "up");
        let client = &mut self.clients[primary];
        wait_until("the replica is online", || {
            client.call(&["INFO", "replication"]).contains("state=online")
        });
    }

    /// Waits until this server has handed over to the other one, and follows it.
    fn await_handover(&mut self, from: usize) {
        self.clients[1 - from].wait_for_info("role", "master");
        self.clients[from].wait_for_info("role", "slave");
        self.clients[from].wait_for_info("master_failover_state", "no-failover");
        self.await_replica_of(1 - from);
    }

    /// Starts the script on the primary. It has written and does not end.
    fn start_writer(&self) -> Client {
        let mut writer = self.connect(0);
        self.servers[0].run_script(&mut writer, &["EVAL", WRITER, "2", "first", "second"]);
        assert!(writer.is_waiting(), "the script runs");
        writer
    }

    /// Lets the script end. Returns its reply.
    fn end_writer(&self, writer: &mut Client) -> String {
        let mut subscriber = self.connect(0);
        assert_eq!(subscriber.call(&["SUBSCRIBE", "end"]), "(subscribe end 1)");
        writer.answer()
    }

    /// Checks the values of these keys on both servers.
    fn assert_values(&mut self, keys: &[&str], expected: &str) {
        let words = [&["MGET"][..], keys].concat();
        for client in &mut self.clients {
            wait_until("the server has the values", || client.call(&words) == expected);
        }
    }
}

fn with_pairs(story: impl Fn(&mut Pair)) {
    for workers in ["2", "8"] {
        story(&mut Pair::start(workers));
    }
}

// ---- libraries ------------------------------------------------------------------------------------------------------
/// The code of a library that takes some ten milliseconds.
fn slow_library(name: &str) -> String {
    format!("#!lua name={name}\nfor i = 1, 2000000 do end\nredis.register_function('of_{name}', function() end)")
}

/// Connects clients that load libraries at the same time. Returns them with the names of the libraries.
fn start_loading(server: &Server, prefix: &str) -> Vec<(Client, String)> {
    let load = |number: usize| {
        let name = format!("{prefix}_{number}");
        let mut loader = Client::connect(server.port);
        loader.send(&["FUNCTION", "LOAD", &slow_library(&name)]);
        (loader, name)
    };
    (0..LOADERS).map(load).collect()
}

/// Returns those libraries that a server has.
fn known_libraries(client: &mut Client, loading: &[(Client, String)]) -> BTreeSet<String> {
    let list = client.call(&["FUNCTION", "LIST"]);
    let names = loading.iter().map(|(_, name)| name.clone());
    names
        .filter(|name| list.contains(&format!("library_name {name} ")))
        .collect()
}

/// Reads the replies of the clients. Returns the libraries that are acknowledged, and the number of those that were
/// refused because of the role.
fn acknowledged_libraries(loading: &mut [(Client, String)]) -> (BTreeSet<String>, usize) {
    let (mut acknowledged, mut refused) = (BTreeSet::new(), 0);
    for (loader, name) in loading {
        let answer = loader.answer();
        if answer == *name {
            acknowledged.insert(answer);
        } else if answer == READ_ONLY {
            refused += 1;
        } else {
            // On a busy machine the code may take half a second, which is too long.
            assert_eq!(answer, TIMED_OUT, "{name}");
        }
    }
    (acknowledged, refused)
}

/// Waits until more or less of the code of the libraries has run.
fn wait_between(round: u64) {
    thread::sleep(Duration::from_millis(round % 4 * 15));
}

#[test]
fn no_library_appears_once_this_server_is_a_replica() {
    for workers in ["2", "8"] {
        let server = Server::start(&["--io-threads", workers]);
        let mut admin = Client::connect(server.port);
        let mut refused = 0;
        // The code of all libraries may have run before the change. Then there are more rounds.
        for round in 0..40 {
            if round >= 4 && refused > 0 {
                break;
            }
            let mut loading = start_loading(&server, "lib");
            wait_between(round);
            // No server listens there.
            assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
            let known = known_libraries(&mut admin, &loading);
            let (acknowledged, refused_now) = acknowledged_libraries(&mut loading);
            assert_eq!(acknowledged, known, "round {round}");
            admin.wait_for_info("weft_unfinished_jobs", "0");
            assert_eq!(known_libraries(&mut admin, &loading), known, "round {round}");
            refused += refused_now;
            assert_eq!(admin.call(&["REPLICAOF", "NO", "ONE"]), "OK");
            assert_eq!(admin.call(&["FUNCTION", "FLUSH"]), "OK");
        }
        assert!(refused > 0, "every library was faster than the change of the role");
    }
}

#[test]
fn a_failover_loses_no_library_that_was_acknowledged() {
    with_pairs(|pair| {
        for round in 0..3 {
            let (primary, replica) = (round % 2, 1 - round % 2);
            let mut loading = start_loading(&pair.servers[primary], &format!("lib{round}"));
            wait_between(round as u64 + 1);
            assert_eq!(pair.clients[primary].call(&["FAILOVER"]), "OK");
            let (acknowledged, _) = acknowledged_libraries(&mut loading);
            pair.await_handover(primary);
            for server in [replica, primary] {
                let client = &mut pair.clients[server];
                wait_until("the server has what was acknowledged, and nothing else", || {
                    known_libraries(client, &loading) == acknowledged
                });
            }
        }
    });
}

// ---- scripts --------------------------------------------------------------------------------------------------------
/// Neither SCRIPT KILL nor the failover ends the script, and the next primary has all that it has written.
#[test]
fn a_failover_waits_for_a_script_that_has_written() {
    with_pairs(|pair| {
        let mut writer = pair.start_writer();
        let mut failing = pair.connect(0);
        failing.send(&["FAILOVER"]);
        let client = &mut pair.clients[0];
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(10));
            let reply = client.call(&["SCRIPT", "KILL"]);
            assert!(reply.starts_with("UNKILLABLE "), "{reply}");
            // Other clients do not wait.
            assert_eq!(client.call(&["SET", "other", "3"]), "OK");
        }
        assert_eq!(client.info("role"), "master");
        assert!(failing.is_waiting() && writer.is_waiting());
        assert_eq!(pair.end_writer(&mut writer), "written");
        assert_eq!(failing.answer(), "OK");
        pair.await_handover(0);
        pair.assert_values(&["first", "second", "other"], "(1 2 3)");
        assert_eq!(pair.clients[0].call(&["SET", "other", "4"]), READ_ONLY);
    });
}

#[test]
fn a_change_of_the_role_waits_for_a_script_that_has_written() {
    with_pairs(|pair| {
        let mut writer = pair.start_writer();
        let mut admin = pair.connect(0);
        // No server listens there.
        admin.send(&["REPLICAOF", "127.0.0.1", "1"]);
        thread::sleep(Duration::from_millis(30));
        let reply = pair.clients[0].call(&["SCRIPT", "KILL"]);
        assert!(reply.starts_with("UNKILLABLE "), "{reply}");
        assert!(admin.is_waiting() && writer.is_waiting());
        assert_eq!(pair.end_writer(&mut writer), "written");
        assert_eq!(admin.answer(), "OK");
        let client = &mut pair.clients[0];
        assert_eq!(client.call(&["MGET", "first", "second"]), "(1 2)");
        assert_eq!(client.call(&["SET", "first", "3"]), READ_ONLY);
        assert!(client.call(&["SCRIPT", "KILL"]).starts_with("NOTBUSY "));
    });
}

/// One script cannot be stopped. Another one, which can be undone, is killed while the failover waits for both.
#[test]
fn a_script_that_is_killed_before_a_failover_leaves_nothing() {
    with_pairs(|pair| {
        let mut writer = pair.start_writer();
        let (mut second, mut failing) = (pair.connect(0), pair.connect(0));
        let body = "redis.call('RPUSH', KEYS[1], 'a') redis.call('SET', KEYS[2], '1') while true do end";
        second.send(&["EVAL", body, "2", "list", "new"]);
        let client = &mut pair.clients[0];
        thread::sleep(Duration::from_millis(100));
        failing.send(&["FAILOVER"]);
        thread::sleep(Duration::from_millis(20));
        assert!(failing.is_waiting() && second.is_waiting());
        // On a busy machine the script has not begun again. Then it does so after the failover.
        let is_killed = (0..100).any(|_| {
            let is_killed = client.call(&["SCRIPT", "KILL"]) == "OK";
            thread::sleep(Duration::from_millis(if is_killed { 0 } else { 10 }));
            is_killed
        });
        assert_eq!(pair.end_writer(&mut writer), "written");
        assert_eq!(failing.answer(), "OK");
        let (answer, expected) = match is_killed {
            true => (second.answer(), "Script killed by user"),
            false => (second.answer(), "READONLY"),
        };
        assert!(answer.contains(expected), "{answer}");
        pair.await_handover(0);
        pair.assert_values(&["first", "second", "new"], "(1 2 -)");
        assert_eq!(pair.clients[1].call(&["EXISTS", "list"]), "0");
    });
}

/// The script may have begun before the failover, or during it, as those may that write nothing.
#[test]
fn a_failover_goes_on_once_the_script_that_it_waits_for_is_killed() {
    for is_first in [true, false] {
        with_pairs(|pair| {
            let (mut script, mut failing) = (pair.connect(0), pair.connect(0));
            if is_first {
                pair.servers[0].run_script(&mut script, &["EVAL", "while true do end", "0"]);
                failing.send(&["FAILOVER"]);
            } else {
                // The replica does not acknowledge the write before the script runs.
                pair.servers[1].signal(Signal::SIGSTOP);
                assert_eq!(pair.clients[0].call(&["SET", "key", "1"]), "OK");
                assert_eq!(failing.call(&["FAILOVER"]), "OK");
                pair.servers[0].run_script(&mut script, &["EVAL_RO", "while true do end", "0"]);
                pair.servers[1].signal(Signal::SIGCONT);
            }
            thread::sleep(Duration::from_millis(50));
            assert!(script.is_waiting(), "the script runs");
            assert_eq!(pair.clients[0].info("role"), "master");
            assert_eq!(pair.clients[0].call(&["SCRIPT", "KILL"]), "OK");
            let answer = script.answer();
            assert!(answer.contains("Script killed by user"), "{answer}");
            if is_first {
                assert_eq!(failing.answer(), "OK");
            }
            pair.await_handover(0);
            let increment = ["EVAL", "return redis.call('INCR', KEYS[1])", "1", "count"];
            assert_eq!(pair.clients[1].call(&increment), "1");
            pair.assert_values(&["count"], "(1)");
        });
    }
}

/// The time of the failover is over while the script runs. It is aborted once the script has ended, and writes go on.
#[test]
fn a_failover_that_times_out_beside_a_script_is_aborted() {
    with_pairs(|pair| {
        pair.servers[1].signal(Signal::SIGSTOP);
        let (mut script, mut held) = (pair.connect(0), pair.connect(0));
        let client = &mut pair.clients[0];
        assert_eq!(client.call(&["SET", "key", "1"]), "OK");
        assert_eq!(client.call(&["FAILOVER", "TIMEOUT", "100"]), "OK");
        pair.servers[0].run_script(&mut script, &["EVAL_RO", "while true do end", "0"]);
        if client.info("master_failover_state") == "waiting-for-sync" {
            held.send(&["SET", "key", "2"]);
            thread::sleep(Duration::from_millis(200));
            assert_eq!(client.info("master_failover_state"), "waiting-for-sync");
            assert!(held.is_waiting(), "writes are paused");
        } else {
            // On a busy machine the time was over before the script began.
            held.send(&["SET", "key", "2"]);
        }
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        assert!(script.answer().contains("Script killed by user"));
        client.wait_for_info("master_failover_state", "no-failover");
        assert_eq!(held.answer(), "OK");
        assert_eq!(client.info("role"), "master");
        pair.servers[1].signal(Signal::SIGCONT);
        pair.assert_values(&["key"], "(2)");
    });
}

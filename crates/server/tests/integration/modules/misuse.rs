//! Modules that break the rules, and modules that depend on the thread that calls them.

use std::thread;
use std::time::Duration;

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::wait_until;

/// Runs a command that must end the server, whose log must then have this text.
fn assert_ends(module: &str, command: &str, text: &str) {
    let mut server = start_with(2, &[&[module]], &["--logfile", "log"]);
    let mut client = Client::connect(server.port);
    client.send(&[command]);
    server.wait_for_exit();
    let log = std::fs::read_to_string(server.directory.join("log")).expect("there is a log");
    assert!(log.contains(text), "{text} is not in the log: {log}");
}

#[test]
fn a_module_that_frees_a_string_twice_is_named() {
    assert_ends("misuse", "misuse.double-free", "misuse");
}

#[test]
fn a_module_that_unlocks_what_it_has_not_locked_is_named() {
    assert_ends("misuse", "misuse.unlock", "misuse");
}

#[test]
fn a_module_that_replies_with_a_negative_length_is_named() {
    assert_ends("misuse", "misuse.negative-length", "misuse");
}

#[test]
fn a_module_that_crashes_is_named() {
    assert_ends("misuse", "misuse.crash", "misuse");
}

#[test]
fn a_failed_assertion_of_a_module_ends_the_server() {
    assert_ends("server_functions", "serverfunctions.assert", "always fails");
}

/// Returns the log of a server that a command has ended. The module gets these arguments.
fn log_of_crash(arguments: &[&str], command: &str) -> String {
    let mut server = start_with(2, &[&[&["misuse"], arguments].concat()], &["--logfile", "log"]);
    let mut client = Client::connect(server.port);
    assert!(client.call(&["INFO", "misuse_state"]).contains("misuse_is_for_crash:0"));
    client.send(&[command]);
    server.wait_for_exit();
    std::fs::read_to_string(server.directory.join("log")).expect("there is a log")
}

#[test]
fn modules_add_to_the_report_of_a_crash() {
    let count = |log: &str, text: &str| log.lines().filter(|line| line.contains(text)).count();
    let assertion = log_of_crash(&[], "misuse.assertion");
    assert!(assertion.contains("=== ASSERTION FAILED ==="), "{assertion}");
    assert!(assertion.contains("misuse.c:"), "{assertion}");
    let fault = log_of_crash(&[], "misuse.crash");
    assert_eq!(count(&fault, "Crashed running the instruction at"), 1, "{fault}");
    for log in [&assertion, &fault] {
        assert!(log.contains("misuse_is_for_crash:1"), "{log}");
        assert_eq!(count(log, "Crashed in the code of module: misuse"), 1, "{log}");
    }
    // A module that crashes again, in each way after each way.
    for command in ["misuse.assertion", "misuse.crash"] {
        for (way, line) in [
            ("assertion", "=== RECURSIVE ASSERTION FAILED ==="),
            (
                "fault",
                "Crashed running signal handler. Providing reduced version of recursive crash report",
            ),
        ] {
            let log = log_of_crash(&[way], command);
            assert_eq!(count(&log, line), 1, "{command} {way}: {log}");
            for line in [
                "BUG REPORT START",
                "BUG REPORT END. Make sure to include from START to END.",
            ] {
                assert_eq!(count(&log, line), 1, "{command} {way}: {log}");
            }
            assert_eq!(count(&log, "Crashed in the code of module: misuse"), 2, "{log}");
        }
    }
}

#[test]
fn a_client_without_a_reply_is_served_on() {
    let server = start(2, "misuse");
    let mut client = Client::connect(server.port);
    client.send(&["misuse.no-reply"]);
    client.send(&["PING"]);
    assert_eq!(client.answer(), "PONG");
}

/// Returns how often something has run, which the module has checked for its thread each time.
fn count(client: &mut Client, name: &str) -> u64 {
    let counts = client.call(&["affinity.counts"]);
    let mut pairs = counts.split(' ').filter_map(|pair| pair.split_once('='));
    let number = pairs.find_map(|(found, number)| (found == name).then_some(number));
    number.expect("the module counts it").parse().expect("a number")
}

#[test]
fn all_code_of_a_module_runs_on_one_thread() {
    for workers in [1, 4] {
        let arguments = ["--enable-debug-command", "yes", "--appendonly", "yes", "--hz", "100"];
        let server = start_with(workers, &[&["affinity"]], &arguments);
        let port = server.port;
        Client::connect(port).wait_for_info("loading", "0");
        let clients: Vec<_> = (0..8)
            .map(|number| {
                thread::spawn(move || {
                    let mut client = Client::connect(port);
                    for round in 0..200 {
                        let key = format!("m{}", (number * 7 + round) % 50);
                        assert_eq!(client.call(&["affinity.set", &key, &round.to_string()]), "OK");
                        client.call(&["SET", &format!("s{number}"), "v", "PX", "1"]);
                        client.call(&["affinity.get", &key]);
                        client.call(&["DEL", &format!("s{}", (number + 1) % 8), &format!("m{round}")]);
                        client.call(&["UNLINK", &format!("m{}", round + 1)]);
                        client.call(&["EVAL", "return redis.call('affinity.get', KEYS[1])", "1", &key]);
                        client.transact(&[
                            &["affinity.set", &key, "1"],
                            &["SET", "t", "v"],
                            &["affinity.get", &key],
                        ]);
                    }
                })
            })
            .collect();
        clients
            .into_iter()
            .for_each(|client| client.join().expect("the server has not ended"));
        let mut client = Client::connect(port);
        assert_eq!(client.call(&["affinity.set", "last", "7"]), "OK");
        assert_eq!(
            client.call(&["BGREWRITEAOF"]),
            "Background append only file rewriting started"
        );
        client.wait_for_info("aof_rewrite_in_progress", "0");
        assert_eq!(client.call(&["SAVE"]), "OK");
        assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
        assert_eq!(client.call(&["affinity.get", "last"]), "7");
        assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
        assert_eq!(client.call(&["affinity.get", "last"]), "7");
        for name in ["commands", "timers", "events", "loads", "types", "jobs"] {
            wait_until(&format!("{name} have run"), || {
                thread::sleep(Duration::from_millis(10));
                count(&mut client, name) > 0
            });
        }
    }
}

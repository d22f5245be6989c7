//! Tests changes of the configuration that meet commands in exclusive mode and transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Client, Server};

/// The number of times that the append-only file is switched on or off.
const SWITCHES: usize = 40;

/// Switches the append-only file on and off while `others`, each on a connection of its own, are repeated. All commands
/// must end.
fn switch_while(others: &[&[&[&str]]]) {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for other in others {
                let is_over = &is_over;
                let mut client = Client::connect(server.port);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        for command in *other {
                            client.call(command);
                        }
                    }
                });
            }
            let mut admin = Client::connect(server.port);
            for switch in 0..SWITCHES {
                let value = ["yes", "no"][switch % 2];
                // A panic of this thread would leave the others without an end.
                admin.send(&["CONFIG", "SET", "appendonly", value]);
                if admin.answer() != "OK" {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        assert_eq!(admin.call(&["CONFIG", "GET", "hz"]), "(hz 10)");
    }
}

/// The thread that switches the file holds the right to change the configuration, and waits for exclusive mode. The
/// transaction is within the gate, and wants that right.
#[test]
fn a_transaction_that_sets_a_parameter_and_a_switch_of_the_append_only_file_both_end() {
    let transaction: &[&[&str]] = &[&["MULTI"], &["CONFIG", "SET", "hz", "10"], &["EXEC"]];
    let exclusive: &[&[&str]] = &[&["MULTI"], &["KEYS", "*"], &["CONFIG", "SET", "hz", "10"], &["EXEC"]];
    let reporting: &[&[&str]] = &[
        &["MULTI"],
        &["CLIENT", "LIST"],
        &["CONFIG", "SET", "hz", "10"],
        &["CONFIG", "REWRITE"],
        &["EXEC"],
    ];
    switch_while(&[transaction, exclusive, reporting]);
}

/// The role changes in exclusive mode, and the configuration contains it.
#[test]
fn a_change_of_the_role_and_a_switch_of_the_append_only_file_both_end() {
    switch_while(&[&[&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]]]);
}

/// A transaction leaves it to a background thread to switch the file off, which takes a while.
#[test]
fn the_append_only_file_is_on_when_the_last_change_has_switched_it_on() {
    for threads in ["1", "2", "8"] {
        let arguments = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&arguments[..], &["--appendonly", "yes", "--appendfsync", "always"]].concat());
        let mut client = Client::connect(server.port);
        for round in 0..60 {
            let replies = client.transact(&[&["SET", "key", "value"], &["CONFIG", "SET", "appendonly", "no"]]);
            assert_eq!(replies, "(OK OK)");
            thread::sleep(Duration::from_micros(200 * (round % 20)));
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
            client.wait_for_info("aof_enabled", "1");
            client.wait_for_info("aof_rewrite_in_progress", "0");
            client.wait_for_info("aof_rewrite_scheduled", "0");
            assert_eq!(client.info("aof_enabled"), "1", "round {round}");
        }
    }
}

/// The parameters that a transaction sets are set when it has ended, and a refused command changes nothing.
#[test]
fn a_transaction_sets_parameters_like_single_commands() {
    let server = Server::start(&["--io-threads", "2", "--io-threads-always-active", "yes"]);
    let mut client = Client::connect(server.port);
    let replies = client.transact(&[
        &["CONFIG", "SET", "hz", "20"],
        &["CONFIG", "SET", "hz", "none"],
        &["CONFIG", "GET", "hz"],
    ]);
    assert!(replies.starts_with("(OK ERR CONFIG SET failed"), "{replies}");
    assert!(replies.ends_with(" (hz 20))"), "{replies}");
}

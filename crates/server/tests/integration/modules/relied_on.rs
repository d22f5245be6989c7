//! Data that modules rely on: while a command gives way to clients, while a thread holds the lock, and while data are
//! loaded. Timers that are due meanwhile.

use std::thread;
use std::time::Duration;

use super::start_with;
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

const MODULE: &[&[&str]] = &[&["relied_on"]];

/// Starts a server in which modules may give way to clients soon.
fn start(workers: u8) -> (Server, Client) {
    let server = start_with(workers, MODULE, &["--busy-reply-threshold", "20"]);
    let client = Client::connect(server.port);
    (server, client)
}

/// Returns one of the numbers that the module counts.
fn state(client: &mut Client, index: usize) -> u64 {
    let numbers = client.call(&["relied.state"]);
    let numbers = numbers.trim_matches(['(', ')']).split(' ');
    numbers
        .into_iter()
        .nth(index)
        .map_or(0, |number| number.parse().expect("a number"))
}

/// The index of the timers that have fired, of the locks while data were loaded, and of the threads that have ended.
const FIRED: usize = 0;
const GRANTS_WHILE_LOADING: usize = 1;
const ENDED_THREADS: usize = 2;

/// The command sees the same value before and after; what was to change it does so later.
fn assert_unchanged(client: &mut Client, key: &str) {
    assert_eq!(client.call(&["relied.hold", key, "400"]), "(5 5)", "{key}");
    wait_until("the key is gone", || client.call(&["EXISTS", key]) == "0");
}

#[test]
fn nothing_changes_under_a_command_that_gives_way() {
    for workers in [1, 2, 8] {
        let (_server, mut client) = start(workers);
        // A thread that locks.
        client.call(&["SET", "locked", "value"]);
        assert_eq!(client.call(&["relied.delete", "locked", "150"]), "OK");
        assert_unchanged(&mut client, "locked");
        // Expiry.
        client.call(&["SET", "expiring", "value", "PX", "150"]);
        assert_unchanged(&mut client, "expiring");
    }
}

#[test]
fn the_stream_of_a_primary_changes_nothing_under_a_command_that_gives_way() {
    for workers in [2, 8] {
        let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let mut writer = Client::connect(primary.port);
        let (_server, mut client) = start(workers);
        client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        client.wait_for_info("master_link_status", "up");
        for change in [&["DEL", "k"][..], &["SET", "k", "longer", "PX", "1"], &["FLUSHALL"]] {
            writer.call(&["SET", "k", "value"]);
            wait_until("the replica has the key", || {
                client.call(&["relied.length", "k"]) == "5"
            });
            client.send(&["relied.hold", "k", "400"]);
            thread::sleep(Duration::from_millis(150));
            writer.call(change);
            assert_eq!(client.answer(), "(5 5)", "{change:?}");
            wait_until("the replica goes on", || client.call(&["EXISTS", "k"]) == "0");
        }
    }
}

#[test]
fn a_thread_with_the_lock_may_call_commands_of_modules() {
    for workers in [1, 2, 8] {
        let (server, mut client) = start(workers);
        let port = server.port;
        let writers: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(move || {
                    let mut client = Client::connect(port);
                    (0..2000).for_each(|_| drop(client.call(&["INCR", "counter"])));
                })
            })
            .collect();
        assert_eq!(client.call(&["relied.count", "counter", "300"]), "OK");
        writers
            .into_iter()
            .for_each(|writer| writer.join().expect("a writer succeeds"));
        wait_until("the thread has ended", || state(&mut client, ENDED_THREADS) == 1);
        assert_eq!(client.call(&["GET", "counter"]), "8300", "{workers} workers");
    }
}

#[test]
fn clients_are_served_while_a_thread_with_the_lock_gives_way() {
    for workers in [1, 2, 8] {
        let (_server, mut client) = start(workers);
        assert_eq!(client.call(&["relied.yield", "unused", "1000"]), "OK");
        wait_until("the thread gives way", || {
            client.call(&["GET", "k"]) == "BUSY A thread is busy"
        });
        // Commands that are allowed meanwhile run at home, too.
        (0..50).for_each(|_| assert_eq!(state(&mut client, ENDED_THREADS), 0));
        wait_until("the thread has ended", || state(&mut client, ENDED_THREADS) == 1);
        assert_eq!(client.call(&["GET", "k"]), "-");
    }
}

/// A filter lets all commands run at home in exclusive mode, also those that are declared for other workers.
#[test]
fn clients_are_served_while_a_slot_safe_command_gives_way_at_home() {
    for workers in [1, 2, 8] {
        let modules: [&[&str]; 2] = [&["relied_on"], &["hooks"]];
        let settings = [
            "--busy-reply-threshold",
            "20",
            "--module-concurrency",
            "relied slot-safe",
        ];
        let server = start_with(workers, &modules, &settings);
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        assert_eq!(client.call(&["hooks.filter", "0"]), "OK");
        assert_eq!(client.call(&["SET", "k", "value"]), "OK");
        client.send(&["relied.hold", "k", "2000"]);
        wait_until("the command gives way", || {
            // A request that comes together with the command is one of its batch, and is answered after it.
            thread::sleep(Duration::from_millis(100));
            other.call(&["GET", "k"]).starts_with("BUSY ")
        });
        assert_eq!(client.answer(), "(5 5)", "{workers} workers");
        assert_eq!(other.call(&["GET", "k"]), "value");
    }
}

#[test]
fn threads_do_not_get_the_lock_while_a_replica_loads() {
    let primary = Server::start(&["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"]);
    let mut writer = Client::connect(primary.port);
    assert_eq!(writer.call(&["DEBUG", "POPULATE", "300000"]), "OK");
    for workers in [2, 8] {
        let arguments = ["--repl-diskless-load", "flush-before-load"];
        let server = start_with(workers, MODULE, &arguments);
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["relied.lock", "unused", "1500"]), "OK");
        client.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        client.wait_for_info("master_link_status", "up");
        wait_until("the thread has ended", || state(&mut client, ENDED_THREADS) == 1);
        assert_eq!(state(&mut client, GRANTS_WHILE_LOADING), 0, "{workers} workers");
        assert_eq!(client.call(&["DBSIZE"]), "300000");
    }
}

/// Timers wait for the end of a script, and do not pile up meanwhile.
#[test]
fn timers_that_are_due_during_a_script_take_no_memory() {
    for workers in [1, 2, 8] {
        let (server, mut client) = start(workers);
        assert_eq!(client.call(&["relied.timer", "1"]), "OK");
        wait_until("the timer fires", || state(&mut client, FIRED) > 3);
        let mut other = Client::connect(server.port);
        let used = |client: &mut Client| client.info("used_memory").parse::<i64>().expect("a number");
        let before = used(&mut client);
        other.send(&["EVAL", "while true do end", "0"]);
        wait_until("the script is overdue", || {
            client.call(&["GET", "k"]).starts_with("BUSY ")
        });
        thread::sleep(Duration::from_millis(1000));
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        assert!(other.answer().contains("Script killed by user"));
        let grown = used(&mut client) - before;
        assert!(grown < 8 << 20, "{workers} workers: {grown} bytes");
        let fired = state(&mut client, FIRED);
        wait_until("the timer goes on", || state(&mut client, FIRED) > fired);
    }
}

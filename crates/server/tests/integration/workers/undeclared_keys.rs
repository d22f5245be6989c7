//! Tests commands that access keys which are in no plan, while other threads hold or change these keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::expired_keys::{assert_all_same, await_replica, pair};
use super::moving::StopOnDrop;
use super::{Client, Server};
use crate::harness::wait_until;

/// The number of elements of the sorted list. SORT leaves its worker because of them.
const ELEMENTS: usize = 3000;
/// The number of keys to which the patterns of SORT refer.
const WEIGHTS: usize = 8;
/// The number of times that the list is sorted.
const ROUNDS: usize = 100;

/// A change of a key that SORT has read is logged after SORT, which is repeated with the values before it.
#[test]
fn a_stored_sort_is_logged_before_later_changes_of_the_keys_that_it_has_read() {
    for workers in ["2", "8"] {
        let (primary, replica) = pair(workers);
        let mut client = Client::connect(primary.port);
        let elements: Vec<String> = (0..ELEMENTS).map(|number| (number % WEIGHTS).to_string()).collect();
        let words = ["RPUSH", "numbers"]
            .into_iter()
            .chain(elements.iter().map(String::as_str));
        assert_eq!(client.call(&words.collect::<Vec<_>>()), ELEMENTS.to_string());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                let (stop, mut writer) = (&stop, Client::connect(primary.port));
                scope.spawn(move || {
                    let mut number = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for weight in 0..WEIGHTS {
                            number += 1;
                            writer.send(&["SET", &format!("weight:{weight}"), &number.to_string()]);
                        }
                        (0..WEIGHTS).for_each(|_| assert_eq!(writer.answer(), "OK"));
                    }
                });
            }
            let guard = StopOnDrop(&stop);
            for round in 0..ROUNDS {
                let result = format!("result:{round}");
                let words = ["SORT", "numbers", "BY", "nosort", "GET", "weight:*", "STORE", &result];
                assert_eq!(client.call(&words), ELEMENTS.to_string());
            }
            drop(guard);
        });
        await_replica(&mut client, &mut Client::connect(replica.port));
        assert_all_same(&primary, &replica);
    }
}

/// Starts a server with one key, whose slot an endless script holds.
fn with_held_key(workers: &str, options: &[&str]) -> (Server, Client) {
    let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
    let server = Server::start(&[&threads[..], options].concat());
    let mut script = Client::connect(server.port);
    assert_eq!(script.call(&["SET", "key", "value"]), "OK");
    server.run_script(&mut script, &["EVAL", "while true do end", "1", "key"]);
    (server, script)
}

#[test]
fn randomkey_waits_for_a_held_slot_if_no_other_slot_has_a_key() {
    for workers in ["2", "8"] {
        let (server, mut script) = with_held_key(workers, &["--busy-reply-threshold", "600000"]);
        let (mut client, mut admin) = (Client::connect(server.port), Client::connect(server.port));
        let before = admin.info("weft_deferrals");
        client.send(&["RANDOMKEY"]);
        wait_until("the command is put off, or answered", || {
            admin.info("weft_deferrals") != before || !client.is_waiting()
        });
        assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
        assert_eq!(client.answer(), "key", "{workers} workers");
        script.answer();
    }
}

/// The options of a server on which a script is soon overdue, and only clients that need its slots get an error.
const SOON_OVERDUE: [&str; 4] = ["--busy-reply-threshold", "20", "--busy-reply-scope", "affected"];

#[test]
fn randomkey_does_not_wait_for_an_overdue_script() {
    for workers in ["2", "8"] {
        let (server, mut script) = with_held_key(workers, &SOON_OVERDUE);
        let mut client = Client::connect(server.port);
        let reply = client.call(&["RANDOMKEY"]);
        assert!(reply.starts_with("BUSY"), "{workers} workers: {reply}");
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        assert_eq!(client.call(&["RANDOMKEY"]), "key");
    }
}

/// Continues SCAN until it has to visit the slot of an overdue script.
fn scan_to_held_slot(client: &mut Client) {
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.call(&["SCAN", &cursor, "COUNT", "1"]);
        if reply.starts_with("BUSY ") {
            return;
        }
        let words = reply.trim_start_matches('(').split(' ').next();
        cursor = words.expect("a cursor").to_owned();
        assert_ne!(cursor, "0", "the slot was passed over");
    }
}

/// The plan of none of these commands names the slot that the script holds. Some leave their worker, and some need the
/// end of all scripts.
#[test]
fn commands_without_declared_keys_do_not_wait_for_an_overdue_script() {
    let commands: [&[&str]; 20] = [
        &["KEYS", "*"],
        &["SORT", "short", "BY", "k*y"],
        &["SORT", "short", "BY", "nosort", "GET", "k*y"],
        &["SORT_RO", "short", "BY", "nosort", "GET", "k*y"],
        &["SORT", "short", "BY", "nosort", "GET", "k*y", "STORE", "sorted"],
        &["SORT", "long", "BY", "nosort", "GET", "k*y"],
        &["SORT", "long", "BY", "nosort", "GET", "k*y", "STORE", "sorted"],
        &["DEBUG", "OBJECT", "key"],
        &["DEBUG", "DIGEST-VALUE", "key"],
        &["DEBUG", "DIGEST"],
        &["DEBUG", "HTSTATS", "0"],
        &["DEBUG", "RELOAD"],
        &["MEMORY", "STATS"],
        &["SAVE"],
        &["BGSAVE"],
        &["BGREWRITEAOF"],
        &["CONFIG", "SET", "appendonly", "yes"],
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["SWAPDB", "0", "1"],
    ];
    for workers in ["2", "8"] {
        let further = ["--enable-debug-command", "yes", "--hash-seed", "weft"];
        let (server, mut script) = with_held_key(workers, &[&SOON_OVERDUE[..], &further].concat());
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["RPUSH", "short", "e"]), "1");
        let elements = [&["RPUSH", "long"][..], &["e"; ELEMENTS]].concat();
        assert_eq!(client.call(&elements), ELEMENTS.to_string());
        scan_to_held_slot(&mut client);
        for command in commands {
            let reply = client.call(command);
            assert!(reply.starts_with("BUSY "), "{workers} workers, {command:?}: {reply}");
        }
        assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
        script.answer();
        assert_eq!(client.info("rdb_saves"), "0", "no save has begun");
        assert_eq!(client.call(&["CONFIG", "GET", "appendonly"]), "(appendonly no)");
        let found = client.call(&["SORT", "short", "BY", "nosort", "GET", "k*y"]);
        assert_eq!(found, "(value)");
    }
}

#[test]
fn commands_on_slots_do_not_wait_for_an_overdue_script() {
    let server = Server::start_node(&SOON_OVERDUE);
    let (mut client, mut script) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(client.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
    wait_until("the node serves", || client.call(&["SET", "key", "value"]) == "OK");
    let slot = client.call(&["CLUSTER", "KEYSLOT", "key"]);
    server.run_script(&mut script, &["EVAL", "while true do end", "1", "key"]);
    let commands: [&[&str]; 8] = [
        &["CLUSTER", "COUNTKEYSINSLOT", &slot],
        &["CLUSTER", "GETKEYSINSLOT", &slot, "10"],
        &["CLUSTER", "SLOT-STATS", "SLOTSRANGE", "0", "16383"],
        &["SCAN", "0", "MATCH", "{key}*"],
        &["KEYS", "{key}*"],
        &["CLUSTER", "DELSLOTS", "0"],
        &["CLUSTER", "SETSLOT", "0", "STABLE"],
        &["CLUSTER", "BUMPEPOCH"],
    ];
    for command in commands {
        let reply = client.call(command);
        assert!(reply.starts_with("BUSY "), "{command:?}: {reply}");
    }
    assert_eq!(client.call(&["SCRIPT", "KILL"]), "OK");
    script.answer();
    assert_eq!(client.call(&["CLUSTER", "COUNTKEYSINSLOT", &slot]), "1");
    assert_eq!(client.call(&["CLUSTER", "SETSLOT", "0", "STABLE"]), "OK");
}

/// The script becomes overdue while a command waits for its end.
#[test]
fn commands_that_wait_for_a_script_are_answered_once_it_is_overdue() {
    let overdue_later = ["--busy-reply-threshold", "200", "--busy-reply-scope", "affected"];
    for (appendonly, other) in [("no", "yes"), ("yes", "no")] {
        let options = ["--io-threads", "2", "--appendonly", appendonly];
        let server = Server::start(&[&overdue_later[..], &options].concat());
        let (mut admin, mut script) = (Client::connect(server.port), Client::connect(server.port));
        let commands: [&[&str]; 3] = [
            &["BGREWRITEAOF"],
            &["CONFIG", "SET", "appendonly", other],
            &["EVAL", "return 1", "0"],
        ];
        for command in commands {
            let mut client = Client::connect(server.port);
            assert_eq!(client.call(&["SCRIPT", "DEBUG", "SYNC"]), "OK");
            server.run_script(&mut script, &["EVAL", "while true do end", "0"]);
            let mut reply = client.call(command);
            if reply == "(<endsession>)" {
                reply = client.answer();
            }
            assert!(reply.starts_with("BUSY "), "{command:?}: {reply}");
            assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
            script.answer();
        }
        let state = format!("(appendonly {appendonly})");
        assert_eq!(admin.call(&["CONFIG", "GET", "appendonly"]), state);
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", other]), "OK");
        let is_enabled = if other == "yes" { "1" } else { "0" };
        assert_eq!(admin.info("aof_enabled"), is_enabled);
    }
}

/// A command of a transaction cannot run again later, so it must not need a slot that another thread holds.
#[test]
fn commands_that_read_slot_by_slot_have_all_slots_in_a_transaction() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let exclusive_commands = |client: &mut Client| -> u64 {
        let count = client.info("weft_exclusive_commands");
        count.parse().expect("a number")
    };
    let commands: [&[&str]; 4] = [&["DBSIZE"], &["RANDOMKEY"], &["SCAN", "0"], &["KEYS", "*"]];
    for command in commands {
        let before = exclusive_commands(&mut client);
        client.transact(&[command]);
        assert!(exclusive_commands(&mut client) > before, "{command:?}");
    }
}

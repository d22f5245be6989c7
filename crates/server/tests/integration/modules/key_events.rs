//! Keyspace events that modules get within the unit of the command that has caused them.

use std::fs;
use std::thread;
use std::time::Duration;

use super::{module, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// The arguments with which a server writes an append-only file that shows the units.
pub const LOGGED: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--enable-debug-command",
    "yes",
];

/// Returns the commands in the append-only file from the last `FLUSHALL` on, with a space between words and a bar
/// between commands.
pub fn logged(server: &Server) -> String {
    let directory = server.directory.join("appendonlydir");
    let mut text = String::new();
    for entry in fs::read_dir(directory).expect("reads the directory") {
        let path = entry.expect("reads an entry").path();
        if path.to_string_lossy().contains(".incr.") {
            text = String::from_utf8_lossy(&fs::read(path).expect("reads the file")).into_owned();
        }
    }
    let mut commands: Vec<String> = Vec::new();
    let mut lines = text.split("\r\n");
    while let Some(line) = lines.next() {
        if let Some(count) = line.strip_prefix('*') {
            let count: usize = count.parse().expect("a number of words");
            let words: Vec<&str> = (0..count)
                .map(|_| {
                    lines.next();
                    lines.next().unwrap_or_default()
                })
                .collect();
            commands.push(words.join(" "));
        }
    }
    let start = commands.iter().rposition(|command| command == "FLUSHALL");
    let since = commands.into_iter().skip(start.map_or(0, |start| start + 1));
    let shown: Vec<String> = since.filter(|command| !command.starts_with("SELECT")).collect();
    shown.join("|")
}

#[test]
fn writes_of_events_are_a_part_of_the_unit() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"]], &LOGGED);
        for _ in 0..3 {
            let mut client = Client::connect(server.port);
            client.call(&["FLUSHALL"]);
            client.call(&["SET", "count:k", "v"]);
            assert_eq!(client.call(&["GET", "count:k:seen"]), "1");
            assert_eq!(logged(&server), "MULTI|INCR count:k:seen|SET count:k v|EXEC");
            client.call(&["FLUSHALL"]);
            client.call(&["SET", "job:k", "v"]);
            let unit = "MULTI|SET job:k v|INCR job:k:jobs|INCR jobs|EXEC";
            assert_eq!(logged(&server), unit, "jobs come at the end");
            client.call(&["FLUSHALL"]);
            client.call(&["SET", "add:k", "v"]);
            assert_eq!(logged(&server), "MULTI|INCR add:k:added|SET add:k v|EXEC");
            client.call(&["FLUSHALL"]);
            let replies = client.transact(&[&["SET", "job:a", "1"], &["SET", "count:b", "2"]]);
            assert_eq!(replies, "(OK OK)");
            let unit = "MULTI|SET job:a 1|INCR count:b:seen|SET count:b 2|INCR job:a:jobs|INCR jobs|EXEC";
            assert_eq!(logged(&server), unit, "jobs come at the end of the transaction");
            client.call(&["FLUSHALL"]);
            let script = "server.call('set', 'job:a', 1); return server.call('set', 'count:b', 2)";
            assert_eq!(client.call(&["EVAL", script, "0"]), "OK");
            let unit = "MULTI|set job:a 1|INCR count:b:seen|set count:b 2|INCR job:a:jobs|INCR jobs|EXEC";
            assert_eq!(logged(&server), unit, "and of the script");
        }
    }
}

#[test]
fn jobs_wait_for_the_end_of_a_unit_in_which_a_type_is_called() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"], &["types"]], &LOGGED);
        let mut client = Client::connect(server.port);
        client.call(&["TYPES.SET", "typed", "1"]);
        client.call(&["DEL", "copied"]);
        let before = logged(&server).len();
        let replies = client.transact(&[&["SET", "job:a", "1"], &["COPY", "typed", "copied"]]);
        assert_eq!(replies, "(OK 1)");
        let unit = "|MULTI|SET job:a 1|COPY typed copied|INCR job:a:jobs|INCR jobs|EXEC";
        assert_eq!(logged(&server)[before..], *unit);
    }
}

/// Waits until the file ends with this unit, which no client waits for.
fn wait_for_unit(server: &Server, unit: &str) {
    wait_until(unit, || logged(server).ends_with(unit));
}

#[test]
fn deletions_of_expired_and_evicted_keys_are_units_with_their_events() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"]], &LOGGED);
        let mut client = Client::connect(server.port);
        client.call(&["SET", "count:k", "v", "PX", "20"]);
        wait_for_unit(&server, "MULTI|INCR count:k:seen|UNLINK count:k|EXEC");
        client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        client.call(&["SET", "job:lazy", "v", "PX", "1"]);
        thread::sleep(Duration::from_millis(5));
        assert_eq!(client.call(&["GET", "job:lazy"]), "-");
        wait_for_unit(&server, "MULTI|UNLINK job:lazy|INCR job:lazy:jobs|INCR jobs|EXEC");
        client.call(&["SET", "count:lazy", "v", "PX", "1"]);
        thread::sleep(Duration::from_millis(5));
        assert_eq!(
            client.call(&["EVAL_RO", "return server.call('exists', KEYS[1])", "1", "count:lazy"]),
            "0"
        );
        wait_for_unit(&server, "MULTI|INCR count:lazy:seen|UNLINK count:lazy|EXEC");
        client.call(&["SET", "count:e", "v", "EX", "1000"]);
        client.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", "1"]);
        wait_for_unit(&server, "MULTI|INCR count:e:seen|UNLINK count:e|EXEC");
        assert_eq!(
            client.call(&["SET", "k", "v"]),
            "OOM command not allowed when used memory > 'maxmemory'."
        );
        client.call(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(client.call(&["SET", "k", "v"]), "OK");
    }
}

#[test]
fn served_clients_cause_events_of_their_own_units() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"]], &LOGGED);
        let (mut waiting, mut client) = (Client::connect(server.port), Client::connect(server.port));
        waiting.send(&["BLPOP", "count:l", "0"]);
        client.wait_for_info("blocked_clients", "1");
        client.call(&["FLUSHALL"]);
        assert_eq!(client.call(&["RPUSH", "count:l", "a"]), "1");
        assert_eq!(waiting.answer(), "(count:l a)");
        // An event of the push, and two of the pop, which deletes the list.
        assert_eq!(client.call(&["GET", "count:l:seen"]), "3");
        let units = "MULTI|INCR count:l:seen|RPUSH count:l a|EXEC|\
                     MULTI|INCR count:l:seen|INCR count:l:seen|LPOP count:l|EXEC";
        assert_eq!(logged(&server), units);
        waiting.send(&["BLMOVE", "count:l", "count:m", "LEFT", "LEFT", "0"]);
        client.wait_for_info("blocked_clients", "1");
        client.transact(&[&["RPUSH", "count:l", "a"], &["RPUSH", "count:l", "b"]]);
        assert_eq!(waiting.answer(), "a");
        assert_eq!(client.call(&["LRANGE", "count:m", "0", "-1"]), "(a)");
        assert_eq!(client.call(&["GET", "count:m:seen"]), "1");
    }
}

#[test]
fn a_client_finds_the_events_of_its_command_handled() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"]], &[]);
        let port = server.port;
        let clients = (0..6).map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                let (key, seen) = (format!("count:{number}"), format!("count:{number}:seen"));
                for round in 1..=200 {
                    match round % 3 {
                        0 => client.send(&["SET", &key, "v"]),
                        1 => client.send(&["EVAL", "return server.call('set', KEYS[1], 'v')", "1", &key]),
                        _ => client.send(&["SETEX", "count:shared", "100", "v"]),
                    }
                    client.send(&["GET", &seen]);
                    client.answer();
                    let own = round - (round + 1) / 3;
                    assert_eq!(client.answer(), own.to_string(), "round {round}");
                }
            })
        });
        clients
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|client| client.join().expect("a client succeeds"));
        let mut client = Client::connect(port);
        // Each SETEX has two events.
        assert_eq!(client.call(&["GET", "count:shared:seen"]), (6 * 67 * 2).to_string());
    }
}

#[test]
fn contexts_show_transactions_and_scripts() {
    let server = start_with(4, &[&["key_events"]], &[]);
    let mut client = Client::connect(server.port);
    client.call(&["SET", "flags:a", "v"]);
    client.transact(&[&["SET", "flags:b", "v"]]);
    client.call(&["EVAL", "return server.call('set', KEYS[1], 'v')", "1", "flags:c"]);
    let shown = [
        "flags:a:multi",
        "flags:a:lua",
        "flags:b:multi",
        "flags:b:lua",
        "flags:c:multi",
        "flags:c:lua",
    ];
    let mut request = vec!["MGET"];
    request.extend(shown);
    assert_eq!(client.call(&request), "(- - 1 - - 1)");
}

#[test]
fn events_of_a_function_reach_it_if_the_module_asks_for_that() {
    for (module, count) in [(&["key_events", "nested"][..], "3"), (&["key_events"], "2")] {
        let server = start_with(2, &[module], &[]);
        let mut client = Client::connect(server.port);
        client.call(&["SET", "again:again:k", "v"]);
        assert_eq!(client.call(&["EXISTS", "again:again:k", "again:k", "k"]), count);
    }
}

#[test]
fn modules_block_clients_whose_commands_cause_events() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events"]], &[]);
        let mut client = Client::connect(server.port);
        for words in [
            &["SET", "block:k", "v"][..],
            &["GET", "block:k"],
            &["RENAME", "block:k", "block:l"],
            &["PING"],
        ] {
            client.send(words);
        }
        let replies: Vec<String> = (0..4).map(|_| client.answer()).collect();
        assert_eq!(replies, ["OK", "v", "OK", "PONG"], "the replies come in order");
        let figures = client.info("cmdstat_set");
        assert!(figures.starts_with("calls=1,"), "{figures}");
        // The second event of RENAME finds its client blocked.
        assert_eq!(client.call(&["key_events.counts"]).split(' ').nth(1), Some("1"));
        assert_eq!(
            client.transact(&[&["SET", "block:k", "w"], &["GET", "block:k"]]),
            "(OK w)"
        );
        let mut held = Client::connect(server.port);
        let id = held.call(&["CLIENT", "ID"]);
        held.send(&["SET", "hold:k", "v"]);
        client.wait_for_info("blocked_clients", "1");
        assert_eq!(client.call(&["GET", "hold:k"]), "v", "the command has run");
        assert_eq!(client.call(&["CLIENT", "UNBLOCK", &id]), "0", "it has no timeout");
        assert_eq!(client.call(&["CLIENT", "KILL", "ID", &id]), "1");
        wait_until("the module hears of it", || {
            client.call(&["key_events.counts"]).ends_with(" 1)")
        });
        let mut gone = Client::connect(server.port);
        gone.send(&["SET", "hold:k", "v"]);
        client.wait_for_info("blocked_clients", "1");
        drop(gone);
        wait_until("the module hears of it", || {
            client.call(&["key_events.counts"]).ends_with(" 2)")
        });
        assert_eq!(client.info("blocked_clients"), "0");
    }
}

#[test]
fn a_thread_with_the_lock_gets_the_events_of_its_calls() {
    let server = start_with(4, &[&["key_events"]], &LOGGED);
    let mut client = Client::connect(server.port);
    client.call(&["FLUSHALL"]);
    assert_eq!(client.call(&["key_events.thread"]), "OK");
    let unit = "MULTI|INCR count:thread:seen|SET count:thread 1|SET job:thread 1|INCR job:thread:jobs|INCR jobs|EXEC";
    assert_eq!(logged(&server), unit);
}

#[test]
fn readers_that_miss_a_key_cause_an_event() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["key_events", "misses"]], &[]);
        for _ in 0..3 {
            let mut client = Client::connect(server.port);
            client.call(&["DEL", "count:k", "count:k:seen"]);
            assert_eq!(client.call(&["GET", "count:k"]), "-");
            assert_eq!(
                client.transact(&[&["GET", "count:k"], &["GET", "count:k:seen"]]),
                "(- 2)"
            );
            let script = "server.call('get', KEYS[1]); return server.call('get', KEYS[2])";
            let reply = client.call(&["EVAL_RO", script, "2", "count:k", "count:k:seen"]);
            assert_eq!(reply, "3");
        }
    }
}

#[test]
fn modules_subscribe_and_leave_while_commands_run() {
    let server = start_with(4, &[], &["--enable-module-command", "yes"]);
    let path = module("key_events");
    let port = server.port;
    let clients: Vec<_> = (0..4)
        .map(|number| {
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for round in 0..400 {
                    let key = format!("count:{number}");
                    let shared = format!("job:{}", round % 7);
                    for _ in 0..5 {
                        client.send(&["SET", &key, "v", "PX", "5"]);
                        client.send(&["GET", &key]);
                        client.send(&["RPUSH", &shared, "v"]);
                        client.send(&["BLPOP", &shared, "0"]);
                        client.send(&["MULTI"]);
                        client.send(&["INCR", "n"]);
                        client.send(&["EXEC"]);
                    }
                    for _ in 0..5 * 7 {
                        assert!(!client.answer().starts_with("ERR"));
                    }
                }
            })
        })
        .collect();
    let mut client = Client::connect(port);
    while clients.iter().any(|client| !client.is_finished()) {
        assert_eq!(client.call(&["MODULE", "LOAD", &path]), "OK");
        client.call(&["SET", "count:own", "v"]);
        assert_eq!(client.call(&["MODULE", "UNLOAD", "key_events"]), "OK");
    }
    for client in clients {
        client.join().expect("a client succeeds");
    }
    assert_eq!(client.call(&["GET", "n"]), (4 * 400 * 5).to_string());
}

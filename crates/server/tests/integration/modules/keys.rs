//! Keys and values that modules change.

use std::thread::sleep;
use std::time::Duration;

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::wait_until;

#[test]
fn a_string_that_is_written_by_a_pointer_is_seen_by_commands() {
    let server = start(1, "keys");
    let mut client = Client::connect(server.port);
    client.call(&["SET", "k", "hello", "PX", "100000"]);
    assert_eq!(client.call(&["keys.overwrite", "k", "0", "J"]), "Jello");
    assert_eq!(client.call(&["GET", "k"]), "Jello");
    assert_eq!(client.call(&["keys.overwrite", "k", "5", "!!"]), "Jello!!");
    assert_eq!(client.call(&["keys.overwrite", "new", "1", "x"]), "\0x");
    assert_eq!(client.call(&["STRLEN", "new"]), "2");
    assert_ne!(client.call(&["PTTL", "k"]), "-1");
    client.call(&["SET", "number", "100"]);
    assert_eq!(client.call(&["keys.overwrite", "number", "0", "2"]), "200");
    assert_eq!(client.call(&["INCR", "number"]), "201");
    client.call(&["RPUSH", "list", "x"]);
    assert!(
        client
            .call(&["keys.overwrite", "list", "0", "x"])
            .starts_with("WRONGTYPE")
    );
}

/// A string that a module sets is a new entry, with or without clients that hear of events.
#[test]
fn a_string_that_is_set_replaces_the_whole_entry() {
    let settings = ["--maxmemory-policy", "allkeys-lfu", "--lfu-log-factor", "0"];
    let server = start_with(1, &[&["keys"]], &settings);
    let (mut client, mut listener) = (Client::connect(server.port), Client::connect(server.port));
    listener.call(&["PSUBSCRIBE", "__keyspace@0__:*"]);
    let long = "x".repeat(500);
    for events in ["", "Kn"] {
        assert_eq!(client.call(&["CONFIG", "SET", "notify-keyspace-events", events]), "OK");
        for (number, (before, after)) in [("SET", "text"), ("SET", "123"), ("SET", &long), ("RPUSH", "text")]
            .into_iter()
            .enumerate()
        {
            let key = format!("k{number}");
            client.call(&["DEL", &key]);
            client.call(&[before, &key, "before"]);
            client.call(&["PEXPIRE", &key, "100000"]);
            for _ in 0..20 {
                client.call(&["TYPE", &key]);
                client.call(&["GET", &key]);
            }
            assert_eq!(client.call(&["keys.replace", &key, after]), "OK");
            assert_eq!(client.call(&["OBJECT", "FREQ", &key]), "5", "{key} with {events:?}");
            assert_eq!(client.call(&["PTTL", &key]), "-1");
            assert_eq!(client.call(&["GET", &key]), after);
            if !events.is_empty() {
                let news = format!("(pmessage __keyspace@0__:* __keyspace@0__:{key} new)");
                assert_eq!([listener.answer(), listener.answer()], [&*news, &*news]);
            }
        }
        let counts = client.call(&["INFO", "keyspace"]);
        assert!(counts.contains("keys=4,expires=0"), "{counts}");
    }
}

#[test]
fn members_are_removed_while_a_range_is_walked() {
    let server = start(1, "keys");
    let mut client = Client::connect(server.port);
    for (members, order) in [(10, "FORWARD"), (10, "REV"), (1000, "FORWARD"), (1000, "REV")] {
        let pairs: Vec<String> = (0..members)
            .flat_map(|number| [(number / 3).to_string(), format!("m{number:04}")])
            .collect();
        let mut words = vec!["ZADD", "z"];
        words.extend(pairs.iter().map(String::as_str));
        assert_eq!(client.call(&words), members.to_string());
        let mut expected: Vec<&str> = words[3..].iter().step_by(2).copied().collect();
        if order == "REV" {
            expected.reverse();
        }
        let reply = client.call(&["keys.scores", "z", "-inf", "inf", order, "REMOVE"]);
        assert_eq!(reply, format!("({})", expected.join(" ")), "{members} {order}");
        assert_eq!(client.call(&["EXISTS", "z"]), "0");
    }
}

#[test]
fn a_pushed_element_serves_a_blocked_client_and_fails_a_transaction() {
    for workers in [1, 4] {
        let server = start(workers, "keys");
        let mut client = Client::connect(server.port);
        let mut blocked = Client::connect(server.port);
        blocked.send(&["BLPOP", "k", "0"]);
        client.wait_for_info("blocked_clients", "1");
        let mut watcher = Client::connect(server.port);
        watcher.call(&["WATCH", "other"]);
        watcher.call(&["MULTI"]);
        watcher.call(&["PING"]);
        assert_eq!(client.call(&["keys.push", "k", "x", "y"]), "2");
        assert_eq!(blocked.answer(), "(k x)");
        assert_eq!(client.call(&["LRANGE", "k", "0", "-1"]), "(y)");
        assert_eq!(client.call(&["keys.push", "other", "x"]), "1");
        assert_eq!(watcher.call(&["EXEC"]), "-");
    }
}

#[test]
fn a_key_that_has_expired_is_opened_as_a_missing_one() {
    let server = start_with(4, &[&["keys"]], &["--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), "OK");
    client.call(&["SET", "k", "v", "PX", "1"]);
    sleep(Duration::from_millis(10));
    assert_eq!(client.call(&["keys.push", "k", "x"]), "1");
    assert_eq!(client.call(&["TYPE", "k"]), "list");
    assert_eq!(client.call(&["keys.expiry", "k"]), "(-1 -1)");
    assert_eq!(client.info("expired_keys"), "1");
    // A key that a module gives an expiry in the past is deleted by the next command.
    assert_eq!(client.call(&["keys.expiry", "k", "AT", "1000"]), "(0 1000)");
    assert_eq!(client.call(&["EXISTS", "k"]), "0");
}

#[test]
fn keys_are_counted_and_deleted_in_all_databases() {
    let server = start(4, "keys");
    let mut client = Client::connect(server.port);
    for db in ["0", "3"] {
        client.call(&["SELECT", db]);
        for number in 0..500 {
            client.call(&["SET", &format!("k{number}"), "v"]);
        }
        assert_eq!(client.call(&["keys.count"]), "(500 500 500)");
    }
    assert_eq!(client.call(&["keys.reset"]), "OK");
    for db in ["0", "3"] {
        client.call(&["SELECT", db]);
        assert_eq!(client.call(&["DBSIZE"]), "0");
        assert_eq!(client.call(&["keys.count"]), "(0 0 0)");
    }
}

#[test]
fn fields_are_read_as_commands_read_them() {
    let server = start(1, "keys");
    let mut client = Client::connect(server.port);
    client.call(&["HSET", "h", "f", "v", "g", "7"]);
    assert_eq!(client.call(&["keys.hget", "h", "f"]), "(v 1)");
    assert_eq!(client.call(&["keys.hget", "h", "g"]), "(7 1)");
    assert_eq!(client.call(&["keys.hget", "h", "missing"]), "(- 0)");
    client.call(&["HPEXPIRE", "h", "1", "FIELDS", "1", "f"]);
    wait_until("the field expires", || client.call(&["keys.hget", "h", "f"]) == "(- 0)");
    client.call(&["SET", "s", "v"]);
    assert!(client.call(&["keys.hget", "s", "f"]).starts_with("WRONGTYPE"));
}

#[test]
fn what_a_module_writes_while_a_snapshot_is_taken_is_not_in_it() {
    let arguments = [
        "--save",
        "",
        "--rdb-key-save-delay",
        "200",
        "--enable-debug-command",
        "yes",
    ];
    let server = start_with(1, &[&["keys"]], &arguments);
    let mut client = Client::connect(server.port);
    for number in 0..2000 {
        client.call(&["SET", &format!("k{number}"), "old"]);
    }
    assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
    for number in 0..2000 {
        client.call(&["keys.overwrite", &format!("k{number}"), "0", "new"]);
    }
    client.wait_for_info("rdb_bgsave_in_progress", "0");
    assert_eq!(client.call(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    let values: std::collections::BTreeSet<String> = (0..2000)
        .map(|number| client.call(&["GET", &format!("k{number}")]))
        .collect();
    assert_eq!(values.into_iter().collect::<Vec<String>>(), ["old"]);
}

//! Tests the reports about the most used and the biggest keys, with two and eight active workers.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{Client, Server};
use crate::harness::wait_until;

/// The fields of a key in a report, by name.
type KeyFields<'r> = HashMap<&'r str, &'r str>;

/// Returns the keys of a reply, which has a list for each of them that begins with `database`.
fn keys(reply: &str) -> Vec<KeyFields<'_>> {
    let parts = reply.split("(database ").skip(1);
    let fields = parts.map(|part| part.split(')').next().unwrap_or_default());
    fields
        .map(|text| {
            let words: Vec<&str> = std::iter::once("database").chain(text.split(' ')).collect();
            words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
        })
        .collect()
}

/// Returns the value behind a name in the part of a reply that has no lists.
fn field<'r>(reply: &'r str, name: &str) -> &'r str {
    let mut words = reply.trim_start_matches('(').split(' ');
    words
        .by_ref()
        .find(|word| *word == name)
        .expect("the reply has the field");
    words.next().expect("the field has a value")
}

/// Runs `story` with two and eight active workers, and a log in the file `log`.
fn with_workers(story: impl Fn(&Server)) {
    for threads in ["2", "8"] {
        let workers = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let log = ["--logfile", "log", "--loglevel", "debug"];
        story(&Server::start(&[workers, log].concat()));
    }
}

const CLIENTS: usize = 6;
const ROUNDS: usize = 50;

/// Uses one key often, in commands of every kind, and many keys once.
fn use_keys(port: u16, number: usize) {
    let mut client = Client::connect(port);
    for round in 0..ROUNDS {
        client.call(&["GET", "hot:key"]);
        client.call(&["MGET", "hot:key", &format!("cold:{number}:{round}")]);
        client.transact(&[&["INCR", "counter"], &["GET", "hot:key"]]);
        client.call(&["EVAL", "return redis.call('get', KEYS[1])", "1", "hot:key"]);
    }
    assert_eq!(client.call(&["SELECT", "2"]), "OK");
    for _ in 0..ROUNDS {
        client.call(&["SET", "hot:key", "value"]);
    }
}

#[test]
fn the_most_used_keys_of_all_workers_are_counted() {
    with_workers(|server| {
        let mut client = Client::connect(server.port);
        use_keys(server.port, 0);
        let off = client.call(&["WEFT", "HOTKEYS", "GET"]);
        assert_eq!((field(&off, "state"), field(&off, "samples")), ("off", "0"));
        assert_eq!(client.call(&["WEFT", "HOTKEYS", "START", "SAMPLE", "1"]), "OK");
        let port = server.port;
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || use_keys(port, number));
            }
        });
        let reply = client.call(&["WEFT", "HOTKEYS", "GET", "COUNT", "3"]);
        assert_eq!(field(&reply, "state"), "on");
        let uses = CLIENTS * ROUNDS;
        assert_eq!(field(&reply, "samples"), (7 * uses).to_string());
        let reported = keys(&reply);
        let seen: Vec<[&str; 4]> = reported
            .iter()
            .map(|key| [key["database"], key["key"], key["uses"], key["write-share"]])
            .collect();
        let (four, one) = ((4 * uses).to_string(), uses.to_string());
        let expected = [
            ["0", "hot:key", &four, "0"],
            ["0", "counter", &one, "1"],
            ["2", "hot:key", &one, "1"],
        ];
        assert_eq!(seen, expected, "{reply}");
        assert!(reported.iter().all(|key| key["error"] == "0"), "{reply}");
        let time_share: f64 = reported
            .iter()
            .map(|key| key["time-share"].parse::<f64>().expect("a number"))
            .sum();
        assert!(time_share > 0.0 && time_share <= 1.001, "{reply}");
        let log = fs::read_to_string(server.directory.join("log")).expect("the log");
        assert!(!log.contains("hot:key"), "{log}");
    });
}

#[test]
fn sampling_finds_the_hot_key_while_reports_are_made() {
    with_workers(|server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["WEFT", "HOTKEYS", "START", "SAMPLE", "8"]), "OK");
        let port = server.port;
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || use_keys(port, number));
            }
            for _ in 0..50 {
                client.call(&["WEFT", "HOTKEYS", "GET"]);
            }
        });
        let reply = client.call(&["WEFT", "HOTKEYS", "GET"]);
        let reported = keys(&reply);
        assert_eq!(
            (reported[0]["database"], reported[0]["key"]),
            ("0", "hot:key"),
            "{reply}"
        );
        let uses: usize = reported[0]["uses"].parse().expect("a number");
        let exact = 4 * CLIENTS * ROUNDS;
        // More than six standard deviations; a report may drop samples.
        assert!(uses > exact / 3 && uses < 2 * exact, "{uses} of {exact}");
    });
}

#[test]
fn sampling_is_started_once_and_ends_when_it_is_stopped_or_its_time_is_over() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["WEFT", "HOTKEYS", "START"]), "OK");
    let refused = "ERR Keys are being sampled already";
    assert_eq!(client.call(&["WEFT", "HOTKEYS", "START"]), refused);
    assert_eq!(client.call(&["WEFT", "HOTKEYS", "STOP"]), "OK");
    let brief = ["WEFT", "HOTKEYS", "START", "DURATION", "1", "SAMPLE", "1"];
    assert_eq!(client.call(&brief), "OK");
    client.call(&["GET", "key"]);
    wait_until("the time is over", || {
        field(&client.call(&["WEFT", "HOTKEYS", "GET"]), "state") == "off"
    });
    client.call(&["GET", "key"]);
    let reply = client.call(&["WEFT", "HOTKEYS", "GET"]);
    assert_eq!((field(&reply, "samples"), field(&reply, "duration-ms")), ("1", "1000"));
    assert_eq!(client.call(&["WEFT", "HOTKEYS", "RESET"]), "OK");
    assert_eq!(field(&client.call(&["WEFT", "HOTKEYS", "GET"]), "samples"), "0");
    for (words, error) in [
        ("WEFT", "ERR wrong number of arguments for 'weft' command"),
        (
            "WEFT HOTKEYS",
            "ERR wrong number of arguments for 'weft|hotkeys' command",
        ),
        (
            "WEFT HOTKEYS START SAMPLE 0",
            "ERR value is not an integer or out of range",
        ),
        ("WEFT HOTKEYS START SAMPLE", "ERR syntax error"),
        (
            "WEFT HOTKEYS STOP now",
            "ERR unknown operation or wrong number of arguments for 'STOP'. Try WEFT HELP.",
        ),
        (
            "WEFT BIGKEYS GET all",
            "ERR unknown operation or wrong number of arguments for 'GET'. Try WEFT HELP.",
        ),
        (
            "WEFT BIGKEYS START EFFORT 51",
            "ERR value is not an integer or out of range",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(client.call(&words), error);
    }
}

#[test]
fn a_client_stops_only_what_it_has_started() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    for (report, refused) in [
        ("HOTKEYS", "ERR No keys are being sampled under this id"),
        ("BIGKEYS", "ERR No scan is in progress under this id"),
    ] {
        let stop = ["WEFT", report, "STOP", "ID", "7"];
        assert_eq!(client.call(&stop), refused);
        assert_eq!(client.call(&["WEFT", report, "START", "ID", "7"]), "OK");
        assert_eq!(field(&client.call(&["WEFT", report, "GET"]), "id"), "7");
        // Another client.
        assert_eq!(client.call(&["WEFT", report, "STOP"]), "OK");
        assert_eq!(client.call(&["WEFT", report, "START"]), "OK");
        assert_eq!(client.call(&stop), refused);
        assert_eq!(field(&client.call(&["WEFT", report, "GET"]), "id"), "0");
        for (option, error) in [
            (["ID", "0"], "ERR value is not an integer or out of range"),
            (["NAME", "1"], "ERR syntax error"),
        ] {
            let words = [&["WEFT", report, "STOP"][..], &option].concat();
            assert_eq!(client.call(&words), error);
        }
    }
    assert_eq!(field(&client.call(&["WEFT", "HOTKEYS", "GET"]), "state"), "on");
}

/// The reports show names of keys, so users need permission as for other commands of administrators.
#[test]
fn reports_need_the_permission_of_an_administrator() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let rules = ["ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all", "-@admin"];
    assert_eq!(client.call(&rules), "OK");
    let rules = ["ACL", "SETUSER", "watcher", "on", "nopass", "+weft|hotkeys"];
    assert_eq!(client.call(&rules), "OK");
    let mut user = Client::connect(server.port);
    let get = |report| ["WEFT", report, "GET"];
    assert_eq!(user.call(&["AUTH", "reader", "x"]), "OK");
    for report in ["HOTKEYS", "BIGKEYS"] {
        let denied = user.call(&get(report));
        assert!(denied.starts_with("NOPERM"), "{denied}");
    }
    assert_eq!(user.call(&["AUTH", "watcher", "x"]), "OK");
    assert!(user.call(&get("HOTKEYS")).starts_with("(state off"));
    let denied = user.call(&get("BIGKEYS"));
    assert!(denied.starts_with("NOPERM"), "{denied}");
    // The reports show keys of all databases.
    let rules = ["ACL", "SETUSER", "watcher", "db=0", "+weft"];
    assert_eq!(client.call(&rules), "OK");
    for report in ["HOTKEYS", "BIGKEYS"] {
        let denied = user.call(&get(report));
        assert!(denied.starts_with("NOPERM"), "{denied}");
    }
    assert_eq!(client.call(&["ACL", "SETUSER", "watcher", "alldbs"]), "OK");
    assert!(user.call(&get("BIGKEYS")).starts_with("(state none"));
}

/// Creates keys of all types; each client has one that is bigger than all others of its type.
fn create_keys(port: u16, number: usize) {
    let mut client = Client::connect(port);
    let database = ["0", "5"][number % 2];
    assert_eq!(client.call(&["SELECT", database]), "OK");
    for small in 0..300 {
        client.call(&["SET", &format!("string:{number}:{small}"), "value"]);
        client.call(&["RPUSH", &format!("list:{number}:{small}"), "a", "b"]);
    }
    // Sizes of allocations may be powers of two.
    let count = 500 * 3_usize.pow(number as u32);
    let words: Vec<String> = (0..count).map(|index| format!("element:{index}")).collect();
    let add = |name: &str| {
        let command = [name.to_owned(), format!("big:{}:{number}", name.to_lowercase())];
        command
            .into_iter()
            .chain(words.iter().cloned())
            .collect::<Vec<String>>()
    };
    for name in ["RPUSH", "SADD"] {
        client.send(&add(name));
        client.answer();
    }
    client.call(&["SET", &format!("big:set:{number}"), &"v".repeat(count * 10)]);
    client.call(&["XADD", &format!("stream:{number}"), "*", "field", "value"]);
}

#[test]
fn a_scan_finds_the_biggest_keys_of_all_databases_beside_writers() {
    with_workers(|server| {
        let port = server.port;
        let mut client = Client::connect(port);
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || create_keys(port, number));
            }
        });
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..4 {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut client = Client::connect(port);
                    let mut round = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        client.call(&["INCR", &format!("counter:{number}:{}", round % 100)]);
                        round += 1;
                    }
                });
            }
            let start = ["WEFT", "BIGKEYS", "START", "COUNT", "2", "EFFORT", "50"];
            assert_eq!(client.call(&start), "OK");
            wait_until("the scan is complete", || {
                field(&client.call(&["WEFT", "BIGKEYS", "GET"]), "state") == "complete"
            });
            is_over.store(true, Ordering::Relaxed);
        });
        let reply = client.call(&["WEFT", "BIGKEYS", "GET"]);
        let reported = keys(&reply);
        let find = |name: &str| {
            let key = reported.iter().find(|key| key["key"] == name);
            key.unwrap_or_else(|| panic!("{name} is missing: {reply}"))
        };
        for (name, database, elements) in [
            ("big:rpush:3", "5", "13500"),
            ("big:rpush:2", "0", "4500"),
            ("big:sadd:3", "5", "13500"),
            ("big:sadd:2", "0", "4500"),
            ("big:set:3", "5", "135000"),
            ("big:set:2", "0", "45000"),
        ] {
            let key = find(name);
            assert_eq!((key["database"], key["elements"]), (database, elements), "{reply}");
            assert_eq!(client.call(&["SELECT", database]), "OK");
            assert_eq!(client.call(&["MEMORY", "USAGE", name]), key["bytes"], "{name}");
        }
        // Two of each of four types: there is no hash and no sorted set.
        assert_eq!(reported.len(), 8, "{reply}");
        assert_eq!(field(&reply, "skipped-slots"), "0");
        let visited: usize = field(&reply, "keys").parse().expect("a number");
        assert!((4 * 604..=4 * 704).contains(&visited), "{visited}");
        let log = fs::read_to_string(server.directory.join("log")).expect("the log");
        assert!(!log.contains("big:"), "{log}");
    });
}

#[test]
fn a_scan_is_stopped_and_begins_again() {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "POPULATE", "200000"]), "OK");
    let start = ["WEFT", "BIGKEYS", "START", "EFFORT", "1"];
    assert_eq!(client.call(&start), "OK");
    let refused = "ERR A scan for big keys is in progress already";
    assert_eq!(client.call(&start), refused);
    assert_eq!(client.call(&["WEFT", "BIGKEYS", "STOP"]), "OK");
    assert_eq!(field(&client.call(&["WEFT", "BIGKEYS", "GET"]), "state"), "stopped");
    assert_eq!(client.call(&["WEFT", "BIGKEYS", "START", "EFFORT", "50"]), "OK");
    wait_until("the scan is complete", || {
        field(&client.call(&["WEFT", "BIGKEYS", "GET"]), "state") == "complete"
    });
    assert_eq!(field(&client.call(&["WEFT", "BIGKEYS", "GET"]), "keys"), "200000");
    assert_eq!(client.call(&["WEFT", "BIGKEYS", "RESET"]), "OK");
    let empty = client.call(&["WEFT", "BIGKEYS", "GET"]);
    assert_eq!((field(&empty, "state"), field(&empty, "keys")), ("none", "0"));
}

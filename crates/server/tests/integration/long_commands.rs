//! End-to-end tests of commands that run outside their worker. There is one worker, so a command that blocks it blocks
//! all clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::client::Client as TextClient;
use crate::harness::connection::open;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

fn start(io_threads: &str) -> Server {
    Server::start(&["--io-threads", io_threads])
}

fn connect(server: &Server) -> Client {
    Client(open(server.port))
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).expect("sends");
    }

    /// Returns the next reply: its elements if it is an array, each as its text or bytes.
    fn answer(&mut self) -> Vec<Vec<u8>> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("receives");
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" => (0..rest.parse().expect("a length"))
                .flat_map(|_| self.answer())
                .collect(),
            "$" if rest == "-1" => vec![b"(nil)".to_vec()],
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("receives");
                bytes.truncate(bytes.len() - 2);
                vec![bytes]
            }
            _ => vec![line.trim_end().as_bytes().to_vec()],
        }
    }

    fn call(&mut self, words: &[&[u8]]) -> Vec<Vec<u8>> {
        self.send(words);
        self.answer()
    }

    /// Sets all `keys` to `value` with one command.
    fn set_all(&mut self, keys: &[Vec<u8>], value: &[u8]) {
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(keys.iter().flat_map(|key| [key.as_slice(), value]));
        assert_eq!(self.call(&words), [b"+OK"]);
    }
}

fn with_keys<'a>(command: &'a [u8], keys: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    let mut words = vec![command];
    words.extend(keys.iter().map(Vec::as_slice));
    words
}

/// Returns more keys than a worker handles itself.
fn many_keys() -> Vec<Vec<u8>> {
    (0..6000).map(|index| format!("key:{index}").into_bytes()).collect()
}

#[test]
fn commands_with_many_keys_reply_as_short_ones() {
    let server = start("2");
    let mut client = connect(&server);
    let keys = many_keys();
    client.set_all(&keys, b"value");
    let large = vec![b'x'; 100_000];
    assert_eq!(client.call(&[b"SET", &keys[17], &large]), [b"+OK"]);
    assert_eq!(client.call(&[b"DEL", &keys[18]]), [b":1"]);
    let values = client.call(&with_keys(b"MGET", &keys));
    assert_eq!(values.len(), keys.len());
    assert_eq!(values[16], b"value");
    assert!(values[17] == large);
    assert_eq!(values[18], b"(nil)");
    assert_eq!(client.call(&with_keys(b"EXISTS", &keys)), [b":5999"]);
    assert_eq!(client.call(&with_keys(b"TOUCH", &keys)), [b":5999"]);
    assert_eq!(client.call(&with_keys(b"UNLINK", &keys)), [b":5999"]);
    assert_eq!(client.call(&[b"DBSIZE"]), [b":0"]);
}

#[test]
fn replies_keep_the_order_of_the_requests_around_a_long_one() {
    let server = start("2");
    let mut client = connect(&server);
    client.call(&[b"SETBIT", b"bits", b"80000000", b"1"]);
    for round in 0..20 {
        client.send(&[b"SET", b"number", b"1"]);
        client.send(&[b"BITCOUNT", b"bits"]);
        client.send(&[b"INCR", b"number"]);
        client.send(&[b"BITPOS", b"bits", b"1"]);
        client.send(&[b"BITOP", b"NOT", b"inverse", b"bits"]);
        client.send(&[b"GET", b"number"]);
        for wanted in ["+OK", ":1", ":2", ":80000000", ":10000001", "2"] {
            assert_eq!(client.answer(), [wanted.as_bytes()], "round {round}");
        }
    }
    // A partially received request keeps its place behind a waiting one.
    client.send(&[b"SET", b"number", b"41"]);
    assert_eq!(client.answer(), [b"+OK"]);
    let long: &[u8] = b"*2\r\n$8\r\nBITCOUNT\r\n$4\r\nbits\r\n";
    let behind: &[u8] = b"*2\r\n$4\r\nINCR\r\n$6\r\nnumber\r\n*3\r\n$6\r\nAPPEND\r\n$6\r\nnum";
    client.0.get_mut().write_all(&[long, behind].concat()).expect("sends");
    assert_eq!(client.answer(), [b":1"]);
    assert_eq!(client.answer(), [b":42"]);
    client.0.get_mut().write_all(b"ber\r\n$1\r\n0\r\n").expect("sends");
    assert_eq!(client.answer(), [b":3"]);
    // Errors are also returned from the background.
    let keys = many_keys();
    let mut words = with_keys(b"MSET", &keys);
    words.truncate(5800);
    let wanted: &[u8] = b"-ERR wrong number of arguments for 'mset' command";
    assert_eq!(client.call(&words), [wanted]);
}

#[test]
fn a_worker_serves_other_clients_while_a_long_command_runs() {
    let server = start("1");
    let (mut long, mut short) = (connect(&server), connect(&server));
    long.call(&[b"SETBIT", b"bits", b"800000000", b"1"]);
    short.call(&[b"SET", b"key", b"value"]);
    let rounds = 40;
    let mut served_beside_them = || {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert_eq!(long.call(&[b"BITCOUNT", b"bits"]), [b":1"]);
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut served = 0;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(short.call(&[b"GET", b"key"]), [b"value"]);
                served += 1;
            }
            served
        })
    };
    // If the commands alternated, there would be about one for each, whatever the processor does besides. A busy
    // machine may run this test too rarely.
    let mut most_served = 0;
    for _ in 0..20 {
        most_served = most_served.max(served_beside_them());
        if most_served > 4 * rounds {
            return;
        }
    }
    panic!("{most_served} short commands beside {rounds} long ones");
}

/// RESTORE-ASKING, which MIGRATE sends to a node that imports a slot, belongs to a group of commands whose keys no
/// snapshot may replace. It leaves its worker nevertheless.
#[test]
fn large_values_are_restored_outside_their_worker() {
    let server = start("1");
    let mut client = connect(&server);
    let members: Vec<Vec<u8>> = (0..20_000)
        .map(|number| format!("member-{number}").into_bytes())
        .collect();
    client.call(&with_keys(b"SADD", &[&[b"source".to_vec()][..], &members].concat()));
    let payload = client.call(&[b"DUMP", b"source"]).remove(0);
    for (command, key) in [(&b"RESTORE"[..], &b"restored"[..]), (b"RESTORE-ASKING", b"migrated")] {
        assert_eq!(client.call(&[command, key, b"0", &payload]), [b"+OK"]);
        assert_eq!(client.call(&[b"SCARD", key]), [b":20000"]);
        assert!(client.call(&[command, key, b"0", &payload])[0].starts_with(b"-BUSYKEY"));
    }
}

/// The payload is short, but what it is decompressed to takes long.
#[test]
fn compressed_values_are_restored_outside_their_worker() {
    let server = start("2");
    let mut client = connect(&server);
    let value = vec![b'x'; 1000];
    let elements = vec![value.clone(); 2000];
    client.call(&with_keys(b"RPUSH", &[&[b"list".to_vec()][..], &elements].concat()));
    client.call(&[b"SET", b"string", &vec![b'x'; 2_000_000]]);
    for (key, length, expected) in [
        (&b"list"[..], &b"LLEN"[..], &b":2000"[..]),
        (b"string", b"STRLEN", b":2000000"),
    ] {
        let payload = client.call(&[b"DUMP", key]).remove(0);
        assert!(payload.len() < 100_000, "{} bytes", payload.len());
        assert_eq!(client.call(&[b"RESTORE", key, b"0", &payload, b"REPLACE"]), [b"+OK"]);
        assert_eq!(client.call(&[length, key]), [expected]);
        assert!(client.call(&[b"RESTORE", key, b"0", &payload])[0].starts_with(b"-BUSYKEY"));
    }
    assert_eq!(client.call(&[b"LINDEX", b"list", b"-1"]), [value]);
}

/// For a client that brings data in import mode nothing expires by itself, but its relative times count from now.
#[test]
fn a_large_value_is_restored_with_a_relative_expiry_in_import_mode() {
    let server = start("4");
    let (mut source, mut other) = (connect(&server), connect(&server));
    let members: Vec<Vec<u8>> = (0..20_000).map(|number| format!("m{number}").into_bytes()).collect();
    other.call(&with_keys(b"SADD", &[&[b"old".to_vec()][..], &members].concat()));
    let payload = other.call(&[b"DUMP", b"old"]).remove(0);
    assert_eq!(other.call(&[b"CONFIG", b"SET", b"import-mode", b"yes"]), [b"+OK"]);
    assert_eq!(source.call(&[b"CLIENT", b"IMPORT-SOURCE", b"ON"]), [b"+OK"]);
    assert_eq!(source.call(&[b"RESTORE", b"new", b"3600000", &payload]), [b"+OK"]);
    assert_eq!(source.call(&[b"SUNIONSTORE", b"union", b"old", b"new"]), [b":20000"]);
    assert_eq!(other.call(&[b"SCARD", b"new"]), [b":20000"]);
    let left_ms = other.call(&[b"PTTL", b"new"]).remove(0);
    let left_ms: i64 = String::from_utf8_lossy(&left_ms[1..]).parse().expect("a number");
    assert!((1..=3_600_000).contains(&left_ms), "{left_ms} ms are left");
    // A new key has not been idle, other than one from the beginning of time.
    let idle_s = other.call(&[b"OBJECT", b"IDLETIME", b"union"]).remove(0);
    assert!(idle_s.len() < 6, "idle for {} s", String::from_utf8_lossy(&idle_s));
}

/// A value is restored in two steps: the command is computed, and then stored. If the append-only file is switched on
/// in between, it has the time at which the value expires, and not the time that it has left.
#[test]
fn a_value_that_is_restored_while_the_file_is_switched_on_expires_at_the_same_time_after_a_reload() {
    const CLIENTS: usize = 3;
    const KEYS_EACH: usize = 12;
    for workers in ["2", "8"] {
        let threads = ["--io-threads", workers, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&threads[..], &["--enable-debug-command", "yes"]].concat());
        let mut client = connect(&server);
        let mut admin = TextClient::connect(server.port);
        let members: Vec<Vec<u8>> = (0..20_000).map(|number| format!("m{number}").into_bytes()).collect();
        client.call(&with_keys(b"SADD", &[&[b"source".to_vec()][..], &members].concat()));
        let payload = client.call(&[b"DUMP", b"source"]).remove(0);
        let keys: Vec<String> = (0..CLIENTS * KEYS_EACH).map(|number| format!("key:{number}")).collect();
        let expiry_times = |admin: &mut TextClient| -> Vec<String> {
            keys.iter().map(|key| admin.call(&["PEXPIRETIME", key])).collect()
        };
        for round in 0..4 {
            let before = admin.info("weft_background_commands");
            thread::scope(|scope| {
                for keys in keys.chunks(KEYS_EACH) {
                    let (payload, mut client) = (&payload, connect(&server));
                    scope.spawn(move || {
                        for key in keys {
                            let reply = client.call(&[b"RESTORE", key.as_bytes(), b"10000000", payload, b"REPLACE"]);
                            assert_eq!(reply, [b"+OK"]);
                        }
                    });
                }
                wait_until("a command has left its worker", || {
                    admin.info("weft_background_commands") != before
                });
                assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
            });
            admin.wait_for_info("aof_rewrite_in_progress", "0");
            let live = expiry_times(&mut admin);
            assert_eq!(admin.call(&["DEBUG", "LOADAOF"]), "OK");
            assert_eq!(expiry_times(&mut admin), live, "round {round}, {workers} workers");
            assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        }
    }
}

#[test]
fn long_writes_of_the_same_keys_are_all_or_nothing() {
    let server = start("2");
    let keys = many_keys();
    connect(&server).set_all(&keys, b"first");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (keys, done, mut client) = (&keys, &done, connect(&server));
            scope.spawn(move || {
                for round in 0..40 {
                    client.set_all(keys, format!("{writer}-{round}").as_bytes());
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let mut client = connect(&server);
        while !done.load(Ordering::Relaxed) {
            let values = client.call(&with_keys(b"MGET", &keys));
            assert_eq!(values.len(), keys.len());
            assert!(
                values.iter().all(|value| *value == values[0]),
                "a write was seen half done"
            );
        }
    });
}

#[test]
fn long_algebra_sees_all_sets_at_one_moment() {
    const MEMBERS: usize = 20_000;
    let server = start("2");
    let member = |number: usize| format!("member:{number}").into_bytes();
    let members: Vec<Vec<u8>> = (0..MEMBERS).map(member).collect();
    let mut filler = connect(&server);
    for part in members.chunks(1000) {
        let mut words: Vec<&[u8]> = vec![b"SADD", b"one"];
        words.extend(part.iter().map(Vec::as_slice));
        assert_eq!(filler.call(&words), [format!(":{}", part.len()).as_bytes()]);
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (done, members, mut mover) = (&done, &members, connect(&server));
        scope.spawn(move || {
            let mut moves = 0;
            while !done.load(Ordering::Relaxed) {
                let (from, to): (&[u8], &[u8]) = if (moves / MEMBERS).is_multiple_of(2) {
                    (b"one", b"two")
                } else {
                    (b"two", b"one")
                };
                assert_eq!(mover.call(&[b"SMOVE", from, to, &members[moves % MEMBERS]]), [b":1"]);
                moves += 1;
            }
            assert!(moves > 0, "something moved meanwhile");
        });
        let mut client = connect(&server);
        for _ in 0..20 {
            assert_eq!(client.call(&[b"SUNION", b"one", b"two"]).len(), MEMBERS);
            assert_eq!(client.call(&[b"SINTERCARD", b"2", b"one", b"two"]), [b":0"]);
            assert_eq!(
                client.call(&[b"SUNIONSTORE", b"all", b"two", b"one"]),
                [format!(":{MEMBERS}").as_bytes()]
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_sort_sees_the_weights_of_one_moment() {
    const ELEMENTS: usize = 1500;
    let server = start("2");
    let numbers: Vec<Vec<u8>> = (0..ELEMENTS).map(|number| number.to_string().into_bytes()).collect();
    let set_weights = |client: &mut Client, weight: &dyn Fn(usize) -> usize| {
        let pairs: Vec<Vec<u8>> = (0..ELEMENTS)
            .flat_map(|number| {
                [
                    format!("w_{number}").into_bytes(),
                    weight(number).to_string().into_bytes(),
                ]
            })
            .collect();
        assert_eq!(client.call(&with_keys(b"MSET", &pairs)), [b"+OK"]);
    };
    let mut client = connect(&server);
    let mut words: Vec<&[u8]> = vec![b"RPUSH", b"numbers"];
    words.extend(numbers.iter().map(Vec::as_slice));
    assert_eq!(client.call(&words), [format!(":{ELEMENTS}").as_bytes()]);
    set_weights(&mut client, &|number| number);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = connect(&server);
            while !done.load(Ordering::Relaxed) {
                set_weights(&mut writer, &|number| ELEMENTS - number);
                set_weights(&mut writer, &|number| number);
            }
        });
        let mut seen = [0, 0];
        for _ in 0..60 {
            let mut sorted = client.call(&[b"SORT", b"numbers", b"BY", b"w_*"]);
            if sorted[0] != numbers[0] {
                sorted.reverse();
                seen[1] += 1;
            } else {
                seen[0] += 1;
            }
            assert!(sorted == numbers, "weights of two moments were mixed");
            let stored = client.call(&[b"SORT", b"numbers", b"BY", b"w_*", b"GET", b"w_*", b"STORE", b"weights"]);
            assert_eq!(stored, [format!(":{ELEMENTS}").as_bytes()]);
            let weights = client.call(&[b"LRANGE", b"weights", b"0", b"-1"]);
            let is_sorted = weights.is_sorted_by_key(|weight| String::from_utf8_lossy(weight).parse::<usize>().ok());
            assert!(is_sorted, "what was sorted by and what was shown are of two moments");
        }
        done.store(true, Ordering::Relaxed);
        println!("ascending and descending: {seen:?}");
    });
}

/// Returns the number of objects freed in the background since the last call.
fn freed_in_background(client: &mut Client) -> u64 {
    let figure = |info: &str, name: &str| -> u64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("the figure is there");
        line.parse().expect("a number")
    };
    let start = Instant::now();
    loop {
        let info = client.call(&[b"INFO", b"memory"]).concat();
        let info = String::from_utf8_lossy(&info).into_owned();
        if figure(&info, "lazyfree_pending_objects:") == 0 {
            assert_eq!(client.call(&[b"CONFIG", b"RESETSTAT"]), [b"+OK"]);
            return figure(&info, "lazyfreed_objects:");
        }
        assert!(start.elapsed() < PATIENCE, "some objects are never freed");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_removing_command_decides_where_a_large_collection_is_freed() {
    type Removal = fn(&mut Client);
    let server = start("1");
    let mut client = connect(&server);
    let members: Vec<Vec<u8>> = (0..65).map(|number| vec![b'm'; 100 + number]).collect();
    let delete: Removal = |client| drop(client.call(&[b"DEL", b"set"]));
    let unlink: Removal = |client| drop(client.call(&[b"UNLINK", b"set"]));
    let overwrite: Removal = |client| drop(client.call(&[b"SET", b"set", b"string"]));
    let expire: Removal = |client| {
        client.call(&[b"PEXPIRE", b"set", b"1"]);
        while client.call(&[b"DBSIZE"]) != [b":0"] {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let empty: Removal = |client| drop(client.call(&[b"FLUSHALL", b"ASYNC"]));
    let cases: &[(&str, Removal, &str, usize, u64)] = &[
        ("DEL", delete, "lazyfree-lazy-user-del yes", 65, 1),
        ("DEL", delete, "lazyfree-lazy-user-del no", 65, 0),
        ("DEL of few", delete, "lazyfree-lazy-user-del yes", 64, 0),
        ("UNLINK", unlink, "lazyfree-lazy-user-del no", 65, 1),
        ("UNLINK of few", unlink, "lazyfree-lazy-user-del no", 64, 0),
        ("SET", overwrite, "lazyfree-lazy-server-del yes", 65, 1),
        ("SET", overwrite, "lazyfree-lazy-server-del no", 65, 0),
        ("expiry", expire, "lazyfree-lazy-expire yes", 65, 1),
        ("expiry", expire, "lazyfree-lazy-expire no", 65, 0),
        ("FLUSHALL ASYNC", empty, "lazyfree-lazy-user-flush no", 65, 1),
    ];
    for (what, remove, setting, count, freed) in cases {
        let (parameter, value) = setting.split_once(' ').expect("two words");
        client.call(&[b"CONFIG", b"SET", parameter.as_bytes(), value.as_bytes()]);
        client.call(&[b"DEL", b"set"]);
        freed_in_background(&mut client);
        let mut words: Vec<&[u8]> = vec![b"SADD", b"set"];
        words.extend(members[..*count].iter().map(Vec::as_slice));
        assert_eq!(client.call(&words), [format!(":{count}").as_bytes()]);
        remove(&mut client);
        assert_eq!(
            freed_in_background(&mut client),
            *freed,
            "{what} of {count} members with {setting}"
        );
    }
}

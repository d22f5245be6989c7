//! Tests that memory stays within its limits: keys are evicted for `maxmemory`, clients for `maxmemory-clients`.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::sys::signal::Signal;

use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
use crate::harness::wait_until;

/// Returns a number of a section of INFO.
fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.call(&["INFO", section]);
    let prefix = format!("{name}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.expect("the figure").trim().parse().expect("a number")
}

fn used(client: &mut Client) -> u64 {
    figure(client, "memory", "used_memory")
}

/// Sets the limit to `bytes` above the used memory, and returns it.
fn limit(client: &mut Client, bytes: u64, policy: &str) -> u64 {
    let limit = used(client) + bytes;
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory-policy", policy]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
    limit
}

/// Returns the number of keys that a SCAN over all keys finds.
fn keys(client: &mut Client) -> u64 {
    let (mut cursor, mut count) = ("0".to_owned(), 0);
    loop {
        client.send(&["SCAN", &cursor, "COUNT", "1000"]);
        let answer = client.answer();
        let (next, names) = answer
            .trim_start_matches('(')
            .split_once(' ')
            .expect("a cursor and names");
        count += names
            .split_whitespace()
            .filter(|name| *name != "()" && *name != "())")
            .count() as u64;
        cursor = next.to_owned();
        if cursor == "0" {
            return count;
        }
    }
}

/// Ends eviction, and returns the number of keys and the number of evicted keys. A worker that is still above the limit
/// goes on evicting after its last client has its answer, so both are read again until neither changes.
fn counts_after_eviction(client: &mut Client) -> (u64, u64) {
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    let mut counts = (u64::MAX, 0);
    wait_until("no worker evicts", || {
        let former = counts;
        let size = client.call(&["DBSIZE"]).parse().expect("a number");
        counts = (size, figure(client, "stats", "evicted_keys"));
        counts == former
    });
    counts
}

/// CONFIG SET runs on threads of its own. A small server must not evict keys for what these allocate.
#[test]
fn the_first_changes_of_the_configuration_take_little_memory() {
    let server = Server::start(&["--maxmemory", "100mb"]);
    let mut client = Client::connect(server.port);
    client.call(&["GET", "key"]);
    let before = used(&mut client);
    for samples in 4..20 {
        let samples = samples.to_string();
        assert_eq!(client.call(&["CONFIG", "SET", "maxmemory-samples", &samples]), "OK");
    }
    let growth = used(&mut client).saturating_sub(before);
    assert!(growth < 30_000, "{growth} bytes");
}

#[test]
fn many_writers_stay_within_the_limit_and_lose_nothing_that_was_not_evicted() {
    const WRITERS: usize = 8;
    const KEYS: usize = 3000;
    const DEPTH: usize = 20;
    let server = Server::start(&["--io-threads", "8"]);
    let mut client = Client::connect(server.port);
    let limit = limit(&mut client, 24 << 20, "allkeys-lru");
    let done = AtomicBool::new(false);
    let highest = AtomicU64::new(0);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let port = server.port;
                scope.spawn(move || {
                    let mut client = Client::connect(port);
                    let value = "v".repeat(4000);
                    for first in (0..KEYS).step_by(DEPTH) {
                        for number in first..first + DEPTH {
                            client.send(&["SET", &format!("key:{writer}:{number}"), &value]);
                        }
                        (0..DEPTH).for_each(|_| assert_eq!(client.answer(), "OK"));
                    }
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let mut client = Client::connect(server.port);
            while !done.load(Ordering::Relaxed) {
                highest.fetch_max(used(&mut client), Ordering::Relaxed);
            }
        });
        for writer in writers {
            writer.join().expect("a writer");
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("the watcher");
    });
    // The buffers of clients vary, and each worker may be about to store a value that it has received.
    let highest = highest.load(Ordering::Relaxed);
    assert!(highest < limit + (4 << 20), "{highest} of {limit}");
    let (size, evicted) = counts_after_eviction(&mut client);
    assert_eq!(size + evicted, (WRITERS * KEYS) as u64);
    assert_eq!(keys(&mut client), size);
    // A key of 4000 bytes takes at most 5120, and there is no other data: no more keys were evicted than necessary.
    assert!(size * 5600 > 20 << 20, "{size} keys are left");
}

#[test]
fn entries_that_share_a_slab_run_are_counted_one_by_one() {
    const KEYS: u64 = 100_000;
    const CELL: u64 = 88;
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let empty = used(&mut client);
    let value = "v".repeat(64);
    let many = |client: &mut Client, command: &[&str], tail: &[&str], numbers: &mut dyn Iterator<Item = u64>| {
        let numbers: Vec<u64> = numbers.collect();
        for numbers in numbers.chunks(100) {
            for number in numbers {
                let name = format!("key:{number:012}");
                client.send(&[command, &[name.as_str()], tail].concat());
            }
            numbers.iter().for_each(|_| drop(client.answer()));
        }
    };
    many(&mut client, &["SET"], &[&value], &mut (0..KEYS));
    assert_eq!(client.call(&["MEMORY", "USAGE", "key:000000000000"]), CELL.to_string());
    let full = used(&mut client);
    assert!((full - empty) / KEYS < CELL + 20, "{} a key", (full - empty) / KEYS);
    // Every other key is deleted: all slab runs stay, half empty.
    many(&mut client, &["DEL"], &[], &mut (0..KEYS).step_by(2));
    let half = used(&mut client);
    assert!(full - half >= KEYS / 2 * CELL, "{} of {full}", full - half);
    let text = client.call(&["MEMORY", "MALLOC-STATS"]);
    assert!(text.contains("Slab of entries"), "{text}");
    // The number of keys to evict follows from the memory of the keys, and no more are evicted.
    let excess = 15_000;
    let limit = half - excess * CELL;
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    client.call(&["CONFIG", "SET", "maxmemory-eviction-tenacity", "100"]);
    client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    wait_until("there is room", || used(&mut client) <= limit + 4096);
    let evicted = figure(&mut client, "stats", "evicted_keys");
    assert!(
        (excess * 7 / 10..=excess * 11 / 10).contains(&evicted),
        "{evicted} keys"
    );
    // New entries use the free cells of the same size class and of other classes.
    let longer = "w".repeat(80);
    many(&mut client, &["SET"], &[&value], &mut (KEYS..2 * KEYS));
    many(&mut client, &["SET"], &[&longer], &mut (2 * KEYS..3 * KEYS));
    assert!(
        used(&mut client) <= limit + (256 << 10),
        "{} of {limit}",
        used(&mut client)
    );
    let size: u64 = client.call(&["DBSIZE"]).parse().expect("a number");
    assert!(size * (104 + 30) > limit - empty, "{size} keys in {}", limit - empty);
    client.call(&["CONFIG", "SET", "maxmemory", "0"]);
    many(&mut client, &["DEL"], &[], &mut (0..3 * KEYS));
    wait_until("all is given back", || used(&mut client) < empty + (2 << 20));
}

#[test]
fn memory_freed_in_the_background_counts_as_free_at_once() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let mut words = vec!["SADD", "template"];
    let members: Vec<String> = (0..5000)
        .map(|member| format!("member:{member}:{}", "x".repeat(50)))
        .collect();
    words.extend(members.iter().map(String::as_str));
    client.call(&words);
    for copy in 0..40 {
        client.call(&["COPY", "template", &format!("copy:{copy}")]);
    }
    client.call(&["DEL", "template"]);
    let size: u64 = client.call(&["MEMORY", "USAGE", "copy:0"]).parse().expect("a number");
    let limit = used(&mut client) - 10 * size;
    client.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    client.call(&["CONFIG", "SET", "maxmemory-eviction-tenacity", "100"]);
    client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    wait_until("there is room", || used(&mut client) < limit + size / 2);
    let evicted = figure(&mut client, "stats", "evicted_keys");
    assert!((8..=13).contains(&evicted), "{evicted} of {size} bytes each");
}

#[test]
fn without_eviction_commands_that_need_memory_are_refused() {
    const REFUSED: &str = "OOM command not allowed when used memory > 'maxmemory'.";
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["SET", "key", "value"]), "OK");
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    assert_eq!(client.call(&["SET", "key", "other"]), REFUSED);
    assert_eq!(client.call(&["GET", "key"]), "value");
    assert_eq!(client.call(&["MULTI"]), "OK");
    assert_eq!(client.call(&["SET", "key", "other"]), REFUSED);
    let aborted = "EXECABORT Transaction discarded because of previous errors.";
    assert_eq!(client.call(&["EXEC"]), aborted);
    assert_eq!(client.call(&["DEL", "key"]), "1");
    assert_eq!(figure(&mut client, "stats", "evicted_keys"), 0);
    assert!(figure(&mut client, "stats", "current_eviction_exceeded_time") < 60_000);
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    assert_eq!(client.call(&["SET", "key", "other"]), "OK");
}

#[test]
fn volatile_policies_evict_no_other_keys_and_then_refuse_writes() {
    for policy in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        let server = Server::start(&[]);
        let mut client = Client::connect(server.port);
        // Far more than what threads allocate at first use, which must not take the place of all keys.
        let value = "v".repeat(10_000);
        for number in 0..100 {
            client.call(&["SET", &format!("stays:{number}"), &value]);
            client.call(&["SET", &format!("goes:{number}"), &value, "EX", "1000"]);
        }
        let limit = used(&mut client) - 500_000;
        client.call(&["CONFIG", "SET", "maxmemory-policy", policy]);
        client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
        // Keys with an expiry time are evicted for new ones.
        for number in 100..200 {
            let reply = client.call(&["SET", &format!("goes:{number}"), &value, "EX", "1000"]);
            assert_eq!(reply, "OK", "{policy}");
        }
        assert!(figure(&mut client, "stats", "evicted_keys") > 100);
        for number in 0..100 {
            assert_eq!(client.call(&["EXISTS", &format!("stays:{number}")]), "1", "{policy}");
        }
        client.call(&["CONFIG", "SET", "maxmemory", "1"]);
        wait_until("they are gone", || client.call(&["DBSIZE"]) == "100");
        assert!(client.call(&["SET", "key", "value"]).starts_with("OOM "), "{policy}");
    }
}

/// Makes the server evict a key of which a client has a copy. Returns what the client receives from then on, line by
/// line, until it has both the invalidation and the reply to a PING.
fn lines_after_an_eviction(workers: &str) -> Vec<String> {
    let server = Server::start(&["--io-threads", workers, "--notify-keyspace-events", "Ee"]);
    let mut listener = Client::connect(server.port);
    listener.call(&["SUBSCRIBE", "__keyevent@0__:evicted"]);
    let mut client = Client::connect(server.port);
    client.call(&["SET", "key", "value"]);
    client.send(&["HELLO", "3"]);
    client.send(&["PING"]);
    let next_line = |client: &mut Client| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut client.0, &mut line).expect("receives");
        line.trim_end().to_owned()
    };
    while next_line(&mut client) != "+PONG" {}
    assert_eq!(client.call(&["CLIENT", "TRACKING", "ON"]), "OK");
    assert_eq!(client.call(&["GET", "key"]), "value");
    client.send(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1"]);
    client.send(&["PING"]);
    let mut lines = Vec::new();
    while ![">2", "+PONG"]
        .iter()
        .all(|line| lines.iter().any(|known| known == line))
    {
        lines.push(next_line(&mut client));
    }
    assert_eq!(listener.answer(), "(message __keyevent@0__:evicted key)");
    lines
}

#[test]
fn an_eviction_is_an_event_and_invalidates_copies_before_the_next_reply() {
    let lines = lines_after_an_eviction("1");
    let position = |line: &str| lines.iter().position(|known| known == line);
    assert!(
        position(">2") < position("+PONG"),
        "no invalidation before the reply: {lines:?}"
    );
    // Any of several workers may evict the key, and then its invalidation comes at any time.
    lines_after_an_eviction("4");
}

#[test]
fn the_largest_clients_are_evicted_when_all_exceed_the_limit() {
    let server = Server::start(&["--io-threads", "4"]);
    let mut control = Client::connect(server.port);
    control.call(&["CLIENT", "NO-EVICT", "ON"]);
    let sizes = [200_000, 200_000, 3_000_000, 200_000];
    let mut clients: Vec<Client> = sizes.iter().map(|_| Client::connect(server.port)).collect();
    for (number, (client, size)) in clients.iter_mut().zip(sizes).enumerate() {
        client.call(&["CLIENT", "SETNAME", &format!("client-{number}")]);
        // A request that is never completed.
        let part = format!("*2\r\n$3\r\nGET\r\n${}\r\n{}", size + 1, "x".repeat(size));
        client.0.get_mut().write_all(part.as_bytes()).expect("sends");
    }
    wait_until("all has arrived", || {
        let list = control.call(&["CLIENT", "LIST"]);
        sizes
            .iter()
            .all(|size| list.contains(&format!("qbuf={size} ")) || list.contains(&format!("qbuf={}", size + 21)))
            || figure(&mut control, "memory", "mem_clients_normal") > sizes.iter().sum::<usize>() as u64
    });
    assert_eq!(control.call(&["CONFIG", "SET", "maxmemory-clients", "2mb"]), "OK");
    wait_until("one is gone", || figure(&mut control, "stats", "evicted_clients") > 0);
    let list = control.call(&["CLIENT", "LIST"]);
    assert!(!list.contains("name=client-2 "), "the largest is still there");
    for number in [0, 1, 3] {
        assert!(list.contains(&format!("name=client-{number} ")), "{number} is gone");
    }
    assert_eq!(figure(&mut control, "stats", "evicted_clients"), 1);
}

#[test]
fn a_client_that_only_sends_is_read_as_fast_as_it_is_served() {
    const REQUESTS: usize = 150_000;
    let server = Server::start(&[]);
    let stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut sender, mut receiver) = (stream.try_clone().expect("a handle"), stream);
    let sent = thread::spawn(move || {
        let request = format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n{}\r\n", "v".repeat(64));
        let many = request.repeat(1000);
        for _ in 0..REQUESTS / 1000 {
            sender.write_all(many.as_bytes()).expect("sends");
        }
    });
    let done = std::sync::Arc::new(AtomicBool::new(false));
    let received = {
        let done = done.clone();
        thread::spawn(move || {
            let mut replies = vec![0; REQUESTS * 5];
            std::io::Read::read_exact(&mut receiver, &mut replies).expect("all replies");
            done.store(true, Ordering::Relaxed);
            replies
        })
    };
    // Unread requests wait in the socket. They used to be kept in memory, where all of them were moved at each turn.
    let mut client = Client::connect(server.port);
    let mut largest = 0;
    while !done.load(Ordering::Relaxed) {
        let all = client.call(&["CLIENT", "LIST"]);
        let sizes = all.split_whitespace().filter_map(|word| word.strip_prefix("qbuf="));
        largest = sizes
            .filter_map(|size| size.parse::<usize>().ok())
            .fold(largest, usize::max);
    }
    sent.join().expect("sends all");
    assert_eq!(received.join().expect("gets all"), b"+OK\r\n".repeat(REQUESTS));
    assert!(largest < 1 << 20, "{largest} bytes of requests in memory");
}

/// As in Valkey, what is parsed of an incomplete request counts as arguments, and only the rest as input.
#[test]
fn client_list_tells_parsed_arguments_from_waiting_input() {
    let server = Server::start(&[]);
    let mut control = Client::connect(server.port);
    for size in [100, 10_000, 3_000_000] {
        let mut client = Client::connect(server.port);
        client.call(&["CLIENT", "SETNAME", "sender"]);
        let part = format!("*3\r\n$3\r\nSET\r\n$4\r\nname\r\n${}\r\n{}", size + 1, "x".repeat(size));
        client.0.get_mut().write_all(part.as_bytes()).expect("sends");
        wait_until("all has arrived", || {
            let list = control.call(&["CLIENT", "LIST"]);
            let line = list.lines().find(|line| line.contains("name=sender"));
            line.is_some_and(|line| line.contains(&format!("qbuf={size} ")) && line.contains("argv-mem=7 "))
        });
    }
}

/// A client that leaves the beginning of a request keeps the whole buffer.
#[test]
fn the_free_space_of_input_buffers_counts_as_memory_of_their_clients() {
    const CLIENTS: usize = 40;
    for threads in ["2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let mut control = Client::connect(server.port);
        control.call(&["CLIENT", "NO-EVICT", "ON"]);
        let connect = || {
            let mut client = Client::connect(server.port);
            client.0.get_mut().write_all(b"*2\r\n$3\r\nGET\r\n").expect("sends");
            client
        };
        let clients: Vec<Client> = (0..CLIENTS).map(|_| connect()).collect();
        wait_until("all have begun a request", || {
            let list = control.call(&["CLIENT", "LIST"]);
            let begun: Vec<&str> = list.lines().filter(|line| line.contains(" argv-mem=3 ")).collect();
            for line in &begun {
                let field = |name: &str| -> usize {
                    let value = line.split(' ').find_map(|word| word.strip_prefix(name));
                    value.expect("the field").parse().expect("a number")
                };
                assert!(field("tot-mem=") >= field("qbuf=") + field("qbuf-free="), "{line}");
            }
            begun.len() == CLIENTS
        });
        // Without their buffers, all of them together are far below the limit.
        assert_eq!(control.call(&["CONFIG", "SET", "maxmemory-clients", "1mb"]), "OK");
        wait_until("most of them are gone", || {
            figure(&mut control, "stats", "evicted_clients") > CLIENTS as u64 / 2
        });
        drop(clients);
        control.wait_for_info("connected_clients", "1");
        let evicted = figure(&mut control, "stats", "evicted_clients");
        // While there is a limit, they are counted when they begin their requests.
        let _later: Vec<Client> = (0..CLIENTS).map(|_| connect()).collect();
        wait_until("later ones are evicted too", || {
            figure(&mut control, "stats", "evicted_clients") > evicted
        });
    }
}

/// The messages about evicted keys are larger than the keys if many clients have cached them. They must not evict the
/// next ones.
#[test]
fn messages_about_evicted_keys_evict_no_others() {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--latency-tracking", "no"]);
        let mut control = Client::connect(server.port);
        control.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        let mut clients: Vec<Client> = (0..10).map(|_| Client::connect(server.port)).collect();
        for client in &mut clients {
            client.send(&["HELLO", "3"]);
            client.send(&["CLIENT", "TRACKING", "ON"]);
            client.send(&["ECHO", "ready"]);
            while client.answer() != "ready" {}
        }
        for number in 0..300 {
            let key = format!("{number}{}", "x".repeat(1000));
            control.call(&["SET", &key, "x"]);
            for client in &mut clients {
                assert_eq!(client.call(&["GET", &key]), "x");
            }
        }
        thread::sleep(std::time::Duration::from_millis(200));
        let limit = used(&mut control) - 40_000;
        assert_eq!(control.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
        wait_until("keys are evicted", || figure(&mut control, "stats", "evicted_keys") > 0);
        thread::sleep(std::time::Duration::from_millis(300));
        // 40 keys take that much memory. Each worker needs some for itself when it evicts the first time.
        let evicted = figure(&mut control, "stats", "evicted_keys");
        assert!(
            (10..=150).contains(&evicted),
            "{evicted} of 300 keys with {threads} workers"
        );
    }
}

/// A limit of the command line works like one that CONFIG SET sets: the workers know from the start what they free.
#[test]
fn a_limit_of_the_start_evicts_no_more_than_necessary() {
    const LIMIT: u64 = 24 << 20;
    const DEPTH: usize = 20;
    for workers in ["1", "2", "8"] {
        let server = Server::start(&[
            "--maxmemory",
            &LIMIT.to_string(),
            "--maxmemory-policy",
            "allkeys-lru",
            "--io-threads",
            workers,
        ]);
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        let mut control = Client::connect(server.port);
        let value = "v".repeat(2000);
        let mut lowest = u64::MAX;
        for round in 0..150 {
            for (client, number) in clients.iter_mut().zip(0..) {
                for at in 0..DEPTH {
                    client.send(&["SET", &format!("key:{number}:{round}:{at}"), &value]);
                }
            }
            for client in &mut clients {
                (0..DEPTH).for_each(|_| assert_eq!(client.answer(), "OK"));
            }
            if figure(&mut control, "stats", "evicted_keys") > 0 {
                lowest = lowest.min(used(&mut control));
            }
        }
        assert!(
            lowest > LIMIT / 10 * 8 && lowest != u64::MAX,
            "{workers} workers: {lowest} of {LIMIT}"
        );
    }
}

/// A thread that is no worker does not evict keys again for what it has just evicted.
#[test]
fn script_threads_evict_no_more_than_necessary() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut client = Client::connect(server.port);
    for number in 0..10_000 {
        client.send(&["SET", &format!("key:{number}"), &"v".repeat(1000)]);
    }
    (0..10_000).for_each(|_| assert_eq!(client.answer(), "OK"));
    let limit = used(&mut client);
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
    let value = "v".repeat(60_000);
    let script = "for i = 1, 1000000 do end return redis.call('SET', KEYS[1], ARGV[1])";
    let mut lowest = u64::MAX;
    for number in 0..80 {
        assert_eq!(
            client.call(&["EVAL", script, "1", &format!("big:{number}"), &value]),
            "OK"
        );
        lowest = lowest.min(used(&mut client));
    }
    assert!(figure(&mut client, "stats", "evicted_keys") > 0);
    assert!(lowest > limit / 10 * 8, "{lowest} of {limit}");
}

/// Script threads evict, too, before a script that they run.
#[test]
fn a_script_thread_evicts_keys_that_clients_track() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut control = Client::connect(server.port);
    let mut tracker = Client::connect(server.port);
    tracker.send(&["HELLO", "3"]);
    tracker.send(&["CLIENT", "TRACKING", "ON", "BCAST"]);
    for number in 0..300 {
        control.call(&["SET", &format!("{number}{}", "x".repeat(1000)), "x"]);
    }
    let limit = used(&mut control) - 40_000;
    control.send(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    for _ in 0..20 {
        control.send(&["EVAL", "for i = 1, 2000000 do end return 1", "1", "key"]);
    }
    assert_eq!(control.answer(), "OK");
    for _ in 0..20 {
        assert_eq!(control.answer(), "1");
    }
    assert!(figure(&mut control, "stats", "evicted_keys") > 0);
}

#[test]
fn empty_tables_of_databases_above_the_first_are_freed() {
    let server = Server::start(&["--databases", "16"]);
    let mut client = Client::connect(server.port);
    let before = used(&mut client);
    assert_eq!(client.call(&["SELECT", "15"]), "OK");
    let freed = |way: &str, client: &mut Client| {
        wait_until(&format!("the memory is free after {way}"), || {
            used(client) < before + (2 << 20)
        });
    };
    let names: Vec<String> = (0..100_000).map(|number| format!("key:{number}")).collect();
    let fill = |client: &mut Client| {
        for names in names.chunks(1000) {
            let pairs = names.iter().flat_map(|name| [name.as_str(), "value"]);
            let words: Vec<&str> = ["MSET"].into_iter().chain(pairs).collect();
            assert_eq!(client.call(&words), "OK");
        }
    };
    fill(&mut client);
    assert!(used(&mut client) > before + (8 << 20), "every slot has 15 tables");
    assert_eq!(client.call(&["FLUSHDB", "SYNC"]), "OK");
    freed("FLUSHDB", &mut client);
    fill(&mut client);
    // The second time no key is there.
    for _ in 0..2 {
        for names in names.chunks(1000) {
            let words: Vec<&str> = ["DEL"].into_iter().chain(names.iter().map(String::as_str)).collect();
            client.call(&words);
        }
        assert_eq!(client.call(&["DBSIZE"]), "0");
        freed("DEL", &mut client);
    }
}

/// The stream that a stopped replica has not read is kept for it, and evicting keys would only lengthen it.
#[test]
fn what_a_replica_has_not_read_evicts_no_keys() {
    let server = Server::start(&["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "1mb"]);
    let mut client = Client::connect(server.port);
    let small = "v".repeat(1000);
    for number in 0..100 {
        assert_eq!(client.call(&["SET", &format!("key:{number}"), &small]), "OK");
    }
    let of = format!("127.0.0.1 {}", server.port);
    let replica = Server::start(&["--replicaof", &of]);
    let mut reader = Client::connect(replica.port);
    reader.wait_for_info("master_link_status", "up");
    wait_until("the replica has the keys", || reader.call(&["DBSIZE"]) == "100");
    replica.signal(Signal::SIGSTOP);
    limit(&mut client, 12 << 20, "allkeys-lru");
    let large = "v".repeat(1 << 20);
    for _ in 0..40 {
        assert_eq!(client.call(&["SET", "large", &large]), "OK");
    }
    let uncounted = figure(&mut client, "memory", "mem_not_counted_for_evict");
    assert!(uncounted > 20 << 20, "{uncounted} bytes");
    assert_eq!(figure(&mut client, "stats", "evicted_keys"), 0);
    assert_eq!(client.call(&["DBSIZE"]), "101");
    replica.signal(Signal::SIGCONT);
    wait_until("the replica has everything", || reader.call(&["DBSIZE"]) == "101");
}

/// The writes after a flush have the memory of what it has freed.
#[test]
fn no_keys_are_evicted_for_what_a_flush_has_freed() {
    const KEYS: usize = 50;
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    limit(&mut client, 8 << 20, "allkeys-lru");
    let value = "v".repeat(100_000);
    for round in 0..12 {
        for number in 0..KEYS {
            assert_eq!(client.call(&["SET", &format!("key:{number}"), &value]), "OK");
        }
        assert_eq!(figure(&mut client, "stats", "evicted_keys"), 0, "in round {round}");
        let flush = ["FLUSHDB", "FLUSHALL"][round % 2];
        assert_eq!(client.call(&[flush, "SYNC"]), "OK");
    }
}

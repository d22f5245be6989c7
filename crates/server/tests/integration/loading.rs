//! Loading of data files on several threads: the outcome must be that of one thread.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::append_only::server::{Client, Server, TestDirectory, weft};
use crate::harness::port::free_port;
use crate::harness::wait_until;

/// Numbers of workers, and so of threads that load; the first one loads without further threads.
const WORKERS: [&str; 3] = ["1", "2", "8"];

const DUMP: [&str; 2] = ["--appendonly", "no"];

fn start(place: &TestDirectory, workers: &str, arguments: &[&str]) -> Server {
    let arguments = [&["--io-threads", workers], arguments].concat();
    Server::start(&weft(), place, &arguments)
}

/// Describes all data: the digest, and the number of keys of each database.
fn describe(client: &mut Client) -> String {
    let digest = client.call(&["DEBUG", "DIGEST"]);
    let keyspace = client.call(&["INFO", "keyspace"]);
    let sizes: Vec<_> = keyspace
        .lines()
        .filter_map(|line| Some(line.split_once(",avg_ttl")?.0))
        .collect();
    format!("{digest} {sizes:?}")
}

/// Sends commands together and waits for their replies.
fn call_all(client: &mut Client, commands: &[Vec<String>]) {
    for commands in commands.chunks(200) {
        commands.iter().for_each(|command| client.send(command));
        commands.iter().for_each(|_| drop(client.answer()));
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Commands that make a few thousand keys of all types in three databases.
fn all_types() -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let filler = "x".repeat(100);
    for db in [0, 3, 9] {
        commands.push(words(&format!("SELECT {db}")));
        for number in 0..1500 {
            commands.push(words(&format!("SET string:{number} {filler}:{number}")));
            commands.push(words(&format!("SET number:{number} {number}")));
            commands.push(words(&format!("SET later:{number} value EX {}", 10_000 + number)));
            commands.push(words(&format!("RPUSH list:{} {number} {filler}", number % 50)));
            commands.push(words(&format!("HSET hash:{} field:{number} {filler}", number % 40)));
            commands.push(words(&format!("SADD set:{} member:{number}", number % 30)));
            commands.push(words(&format!("ZADD sorted:{} {number} member:{number}", number % 20)));
            commands.push(words(&format!(
                "XADD stream:{} {}-1 field {filler}",
                number % 10,
                number + 1
            )));
        }
        commands.push(words("HSET volatile kept 1 gone 2"));
        commands.push(words("HPEXPIREAT volatile 4000000000000 FIELDS 1 kept"));
    }
    commands
}

#[test]
fn a_dump_is_loaded_alike_on_any_number_of_workers() {
    let place = TestDirectory::new();
    let server = start(&place, "1", &DUMP);
    let mut client = server.client();
    call_all(&mut client, &all_types());
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    let expired: Vec<_> = (0..500)
        .map(|number| words(&format!("SET gone:{number} value PX 1")))
        .collect();
    call_all(&mut client, &expired);
    client.call(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=kept\nserver.register_function('f', function() return 1 end)",
    ]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(client.call(&["SAVE"]), "OK");
    server.kill();
    let dump = fs::read(place.0.join("dump.rdb")).expect("is a dump");
    let mut wanted = None;
    for workers in WORKERS {
        // DEBUG RELOAD has replaced it.
        fs::write(place.0.join("dump.rdb"), &dump).expect("writes");
        let server = start(&place, workers, &DUMP);
        let mut client = server.client();
        let counts = ["rdb_last_load_keys_loaded", "rdb_last_load_keys_expired"].map(|field| client.info(field));
        assert_eq!(counts[1], "500", "{workers} workers");
        let found = (describe(&mut client), counts);
        assert_eq!(client.call(&["FCALL", "f", "0"]), "1");
        assert_eq!(&found, wanted.get_or_insert_with(|| found.clone()), "{workers} workers");
        // As a command, and without flushing: keys of the file replace those in memory.
        assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
        assert_eq!(describe(&mut client), found.0, "{workers} workers");
        assert_eq!(client.call(&["DEBUG", "RELOAD", "MERGE", "NOFLUSH", "NOSAVE"]), "OK");
        assert_eq!(describe(&mut client), found.0, "{workers} workers");
    }
}

#[test]
fn a_damaged_dump_is_refused_with_the_same_words() {
    let place = TestDirectory::new();
    let server = start(&place, "1", &DUMP);
    call_all(&mut server.client(), &all_types());
    assert_eq!(server.client().call(&["SAVE"]), "OK");
    server.kill();
    let path = place.0.join("dump.rdb");
    let whole = fs::read(&path).expect("is a dump");
    let mut damaged = whole.clone();
    // Neither a length nor a value anywhere: a type that does not exist is found soon.
    damaged[whole.len() / 2..whole.len() / 2 + 2000].fill(0xf0);
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 1;
    for (name, content) in [
        ("cut", &whole[..whole.len() * 2 / 3]),
        ("damaged", &damaged),
        ("flipped", &flipped),
    ] {
        fs::write(&path, content).expect("writes");
        let complaints = WORKERS.map(|workers| {
            let _ = fs::remove_file(place.0.join("log"));
            let arguments = [&DUMP[..], &["--io-threads", workers]].concat();
            let status = Server::spawn(&weft(), &place, &arguments).wait_for_end();
            assert_eq!(status.code(), Some(1), "{name}, {workers} workers");
            let log = place.log();
            let lines = log.lines().filter(|line| line.contains(" # "));
            let texts: Vec<_> = lines
                .map(|line| line.split_once(" # ").map(|(_, text)| text.to_owned()))
                .collect();
            texts
        });
        assert!(complaints[0].len() >= 2, "{name}: {complaints:?}");
        assert_eq!(complaints[1], complaints[0], "{name}");
        assert_eq!(complaints[2], complaints[0], "{name}");
    }
}

/// Writes an append-only file that consists of these commands.
fn write_log(place: &TestDirectory, content: &str) {
    fs::create_dir_all(place.0.join("appendonlydir")).expect("creates a directory");
    fs::write(
        place.part("appendonly.aof.manifest"),
        "file appendonly.aof.1.incr.aof seq 1 type i\n",
    )
    .expect("writes");
    fs::write(place.part("appendonly.aof.1.incr.aof"), content).expect("writes");
}

fn append(log: &mut String, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let _ = write!(log, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(log, "${}\r\n{word}\r\n", word.len());
    }
}

/// A log in which the order of commands on a key matters, with commands on several slots between them.
fn ordered_log(seed: u64, commands: usize) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut log = String::new();
    append(&mut log, "SELECT 0");
    for number in 0..commands {
        let (one, other) = (random.u32(..60), random.u32(..60));
        let line = match random.u32(..1000) {
            0..300 => format!("APPEND text:{one} {number},"),
            300..500 => format!("INCRBY number:{one} {number}"),
            500..640 => format!("RPUSH list:{one} {number}"),
            640..700 => format!("LPOP list:{one}"),
            700..740 => format!("RPOPLPUSH list:{one} list:{other}"),
            740..820 => format!("HSET hash:{one} field:{} {number}", random.u32(..9)),
            820..880 => format!("ZADD sorted:{one} {number} member:{}", random.u32(..9)),
            880..900 => format!("ZUNIONSTORE sorted:{one} 2 sorted:{one} sorted:{other}"),
            900..920 => format!("DEL text:{one} number:{other}"),
            920..935 => format!("RENAME list:{one} list:{one}"),
            935..950 => format!("COPY text:{one} text:{} REPLACE", (one + 1 + other % 59) % 60),
            950..960 => format!("SELECT {}", random.u32(..3)),
            960..961 => "FLUSHDB".to_owned(),
            961..963 => "SWAPDB 0 1".to_owned(),
            963..968 => format!("SETRANGE text:{one} {} x", random.u32(..20)),
            968..974 => {
                let script = format!("return(redis.call('append',KEYS[1],'s{number},'))");
                format!("EVAL {script} 1 text:{one}")
            }
            974..980 => format!(
                "EVAL redis.call('incr',KEYS[1])redis.call('rpush',KEYS[2],'{number}') 2 number:{one} list:{other}"
            ),
            980..985 => format!("GETEX text:{one} PXAT 4000000000000"),
            _ => {
                append(&mut log, "MULTI");
                append(&mut log, &format!("APPEND text:{one} m{number},"));
                append(&mut log, &format!("LMOVE list:{one} list:{other} LEFT RIGHT"));
                if random.bool() {
                    append(&mut log, &format!("SELECT {}", random.u32(..3)));
                }
                append(&mut log, &format!("INCR number:{other}"));
                "EXEC".to_owned()
            }
        };
        if line.starts_with("RENAME") {
            append(&mut log, &format!("RPUSH list:{one} {number}"));
        }
        append(&mut log, &line);
        if random.u32(..5000) == 0 {
            let _ = write!(log, "#TS:{number}\r\n");
        }
    }
    log
}

#[test]
fn commands_of_a_log_take_effect_in_its_order_on_any_number_of_workers() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let place = TestDirectory::new();
    let mut wanted = None;
    for workers in WORKERS {
        write_log(&place, &ordered_log(seed, 60_000));
        let server = start(&place, workers, &[]);
        let mut client = server.client();
        let found = describe(&mut client);
        assert_eq!(&found, wanted.get_or_insert_with(|| found.clone()), "{workers} workers");
        assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
        assert_eq!(describe(&mut client), found, "{workers} workers");
        assert!(!place.log().contains("CRITICAL"), "{}", place.log());
        server.kill();
    }
}

/// The lines about the load in the log, without times, and the data.
fn load_and_describe(place: &TestDirectory, workers: &str, log: &str) -> (Vec<String>, String) {
    let _ = fs::remove_file(place.0.join("log"));
    write_log(place, log);
    let server = start(place, workers, &[]);
    let described = describe(&mut server.client());
    server.kill();
    let lines = place.log();
    let complaints = lines.lines().filter_map(|line| Some(line.split_once(" # ")?.1));
    let mut complaints: Vec<String> = complaints.map(str::to_owned).collect();
    // The complaints about different keys may come in any order.
    complaints.sort();
    (complaints, described)
}

#[test]
fn faults_of_a_log_have_the_same_outcome_on_any_number_of_workers() {
    let place = TestDirectory::new();
    let whole = ordered_log(7, 20_000);
    let mut with_errors = String::new();
    append(&mut with_errors, "SELECT 0");
    for number in 0..20_000 {
        append(&mut with_errors, &format!("APPEND key:{} {number}", number % 100));
        if number % 1000 == 999 {
            append(&mut with_errors, &format!("RPUSH key:{} {number}", number % 97));
        }
    }
    let mut unfinished = whole.clone();
    append(&mut unfinished, "MULTI");
    append(&mut unfinished, "APPEND text:1 never");
    let cases = [
        ("errors", with_errors),
        ("cut off", whole[..whole.len() - 3].to_owned()),
        ("a transaction without an end", unfinished.clone()),
        (
            "a transaction that is cut off",
            unfinished[..unfinished.len() - 2].to_owned(),
        ),
        ("zeros", format!("{whole}\0\0\0\0\0\0")),
    ];
    for (name, log) in cases {
        let wanted = load_and_describe(&place, WORKERS[0], &log);
        assert!(!wanted.0.is_empty(), "{name}");
        for workers in &WORKERS[1..] {
            assert_eq!(
                load_and_describe(&place, workers, &log),
                wanted,
                "{name}, {workers} workers"
            );
        }
    }
}

#[test]
fn clients_are_answered_and_the_server_stops_while_it_loads() {
    let place = TestDirectory::new();
    let server = start(&place, "1", &DUMP);
    call_all(&mut server.client(), &all_types());
    assert_eq!(server.client().call(&["SAVE"]), "OK");
    server.kill();
    let mut log = String::new();
    (0..20_000).for_each(|number| append(&mut log, &format!("SET key:{number} value")));
    write_log(&place, &log);
    let slow = [
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    for arguments in [&DUMP[..], &["--appendonly", "yes"]] {
        let arguments = [&slow[..], arguments, &["--io-threads", "8"]].concat();
        let server = Server::spawn(&weft(), &place, &arguments);
        let connects = || std::net::TcpStream::connect(("127.0.0.1", server.port)).is_ok();
        wait_until("the server listens", connects);
        let mut client = server.client();
        let loading = "LOADING Valkey is loading the dataset in memory";
        assert_eq!(client.call(&["GET", "key:1"]), loading);
        assert_eq!(client.info("loading"), "1");
        wait_until("some bytes are loaded", || client.info("loading_loaded_bytes") != "0");
        assert!(client.call(&["CLIENT", "LIST"]).contains("cmd=client|list"));
        assert_eq!(client.call(&["CLIENT", "SETNAME", "waits"]), "OK");
        assert_eq!(client.call(&["DBSIZE"]), loading);
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(server.wait_for_end().code(), Some(0), "{arguments:?}");
    }
}

/// The load would last for minutes. Neither the configured options of the shutdown nor the mode of the server matter.
#[test]
fn a_signal_ends_a_server_while_it_loads() {
    let place = TestDirectory::new();
    let server = start(&place, "1", &DUMP);
    assert_eq!(server.client().call(&["DEBUG", "POPULATE", "3000"]), "OK");
    assert_eq!(server.client().call(&["SAVE"]), "OK");
    server.kill();
    let dump = fs::read(place.0.join("dump.rdb")).expect("is a dump");
    let mut log = String::new();
    (0..3000).for_each(|number| append(&mut log, &format!("SET key:{number} value")));
    write_log(&place, &log);
    let options = ["--key-load-delay", "100000", "--shutdown-on-sigterm", "save"];
    let bus_port = free_port().to_string();
    let node = ["--cluster-enabled", "yes", "--cluster-port", &bus_port];
    for mode in [&[][..], &node[..]] {
        for log_is_loaded in ["no", "yes"] {
            let _ = fs::remove_file(place.0.join("log"));
            let arguments = [&options[..], mode, &["--appendonly", log_is_loaded, "--pidfile", "pid"]].concat();
            let server = Server::spawn(&weft(), &place, &arguments);
            // The server handles signals before it logs this, and loads afterwards.
            wait_until("the load begins", || place.log().contains("Allocator options: "));
            assert!(place.0.join("pid").exists());
            kill(Pid::from_raw(server.child.id() as i32), Signal::SIGTERM).expect("sends a signal");
            assert_eq!(server.wait_for_end().code(), Some(0), "{arguments:?}");
            let text = place.log();
            for line in [
                "# Received shutdown signal during loading, scheduling shutdown.",
                "* User requested shutdown...",
                "bye bye...",
            ] {
                assert!(text.contains(line), "{arguments:?}: no {line:?} in\n{text}");
            }
            assert!(!text.contains("oaded from") && !text.contains("Saving"), "{text}");
            assert!(!place.0.join("pid").exists());
            assert!(fs::read(place.0.join("dump.rdb")).expect("is a dump") == dump);
        }
    }
}

#[test]
fn a_replica_that_loads_on_many_threads_gets_all_writes() {
    let (first, second) = (TestDirectory::new(), TestDirectory::new());
    let primary = start(&first, "2", &["--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    let mut writer = primary.client();
    call_all(&mut writer, &all_types());
    for (load, workers) in [
        ("disabled", "8"),
        ("swapdb", "8"),
        ("flush-before-load", "2"),
        ("swapdb", "1"),
    ] {
        let arguments = ["--appendonly", "no", "--repl-diskless-load", load];
        let replica = start(&second, workers, &arguments);
        let mut client = replica.client();
        let port = primary.port.to_string();
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        let mut number = 0;
        wait_until("the replica follows", || {
            number += 1;
            let writes: Vec<_> = (0..50)
                .map(|key| words(&format!("APPEND written:{key} {number},")))
                .collect();
            call_all(&mut writer, &writes);
            client.info("master_link_status") == "up"
        });
        assert_eq!(writer.call(&["WAIT", "1", "0"]), "1");
        assert_eq!(
            describe(&mut client),
            describe(&mut writer),
            "{load}, {workers} workers"
        );
        replica.kill();
    }
}

#[test]
fn what_expired_while_no_server_ran_is_deleted_at_once() {
    for preamble in ["yes", "no"] {
        let place = TestDirectory::new();
        // Regular tasks run once a second.
        let arguments = [
            "--hz",
            "1",
            "--aof-use-rdb-preamble",
            preamble,
            "--appendfsync",
            "always",
        ];
        let server = start(&place, "2", &arguments);
        let mut client = server.client();
        client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        client.call(&["HSET", "h", "a", "1", "b", "2", "c", "3"]);
        assert_eq!(client.call(&["HPEXPIRE", "h", "1", "FIELDS", "2", "a", "b"]), "(1 1)");
        client.call(&["SET", "k", "v", "PX", "1"]);
        server.kill();
        let server = start(&place, "2", &arguments);
        let mut client = server.client();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(client.call(&["HLEN", "h"]), "1", "with a preamble: {preamble}");
        assert_eq!(client.call(&["DBSIZE"]), "1", "with a preamble: {preamble}");
    }
}

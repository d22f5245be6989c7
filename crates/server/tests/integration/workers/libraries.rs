//! Tests libraries of functions that transactions load and call, whose code may take long.

use std::thread;
use std::time::Duration;

use super::{Client, Server};
use crate::harness::wait_until;

/// The code of a library that is stopped after half a second.
const ENDLESS: &str = "#!lua name=endless\nwhile true do end";
/// The number of such libraries: together they take much longer than the test.
const MANY: usize = 100;

/// Runs `story` with one, two and eight active workers.
fn with_workers(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["1", "2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        story(&Server::start(&[&own[..], arguments].concat()));
    }
}

#[test]
fn the_code_of_libraries_in_a_transaction_stops_nobody() {
    with_workers(&[], |server| {
        let mut loader = Client::connect(server.port);
        // At least one client of each worker.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
        assert_eq!(loader.call(&["MULTI"]), "OK");
        for _ in 0..MANY {
            assert_eq!(loader.call(&["FUNCTION", "LOAD", ENDLESS]), "QUEUED");
        }
        loader.send(&["EXEC"]);
        for client in &mut clients {
            assert_eq!(client.call(&["SET", "key", "value"]), "OK");
            // It needs the whole keyspace.
            assert_eq!(client.call(&["SWAPDB", "1", "2"]), "OK");
        }
        assert!(loader.is_waiting(), "the code takes {} seconds", MANY / 2);
    });
}

#[test]
fn libraries_in_a_transaction_are_loaded_in_the_order_of_the_commands() {
    let library =
        |value: &str| format!("#!lua name=one\nredis.register_function('one', function() return '{value}' end)");
    let (first, second) = (library("first"), library("second"));
    let commands: [(&[&str], &str); 11] = [
        (&["FUNCTION", "LOAD", &first], "one"),
        (&["FCALL", "one", "0"], "first"),
        (&["FUNCTION", "LOAD", &second], "ERR Library 'one' already exists"),
        (
            &["FUNCTION", "LOAD", "OPTION", &first],
            "ERR Unknown option given: OPTION",
        ),
        (&["FUNCTION", "LOAD", "REPLACE", &second], "one"),
        (&["FCALL", "one", "0"], "second"),
        (
            &["FUNCTION", "LOAD", ENDLESS],
            "ERR Error registering functions: ERR FUNCTION LOAD timeout",
        ),
        (
            &["FUNCTION", "RESTORE", "payload"],
            "ERR DUMP payload version or checksum are wrong",
        ),
        (&["FUNCTION", "LOAD", "code"], "ERR Missing library metadata"),
        (&["FUNCTION", "DELETE", "one"], "OK"),
        (&["FCALL", "one", "0"], "ERR Function not found"),
    ];
    let words = commands.map(|(words, _)| words);
    let replies = commands.map(|(_, reply)| reply).join(" ");
    with_workers(&[], |server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.transact(&words), format!("({replies})"));
    });
}

/// A script that holds a worker, or exclusive mode, is killed soon. The code of the library takes longer.
#[test]
fn a_transaction_calls_the_functions_of_slow_libraries_that_it_loads() {
    let slow = "#!lua name=slow\nfor i = 1, 1e7 do end\nredis.register_function('f', function() return 1 end)";
    let quick = "#!lua name=quick\nredis.register_function('g', function() return 2 end)";
    let changing: [(&[&[&str]], &str); 3] = [
        (
            &[
                &["FUNCTION", "LOAD", slow],
                &["SET", "key", "value"],
                &["FCALL", "F", "0"],
                &["FUNCTION", "DELETE", "slow"],
                &["FCALL_RO", "f", "0"],
            ],
            "(slow OK 1 OK ERR Function not found)",
        ),
        (
            &[
                &["FUNCTION", "LOAD", quick],
                &["FUNCTION", "LOAD", slow],
                &["FCALL", "g", "0"],
                &["FCALL", "f", "0"],
                &["GET", "key"],
            ],
            "(quick slow 2 1 value)",
        ),
        // The slow library is loaded already.
        (&[&["FUNCTION", "DELETE", "quick"], &["FCALL", "f", "0"]], "(OK 1)"),
    ];
    let arguments = ["--busy-reply-threshold", "20", "--busy-reply-scope", "affected"];
    with_workers(&arguments, |server| {
        let mut client = Client::connect(server.port);
        for (commands, replies) in changing {
            assert_eq!(client.transact(commands), replies);
        }
        assert_eq!(client.call(&["WATCH", "key"]), "OK");
        assert_eq!(client.call(&["SET", "key", "another"]), "OK");
        let refused: [&[&str]; 2] = [&["FUNCTION", "LOAD", "REPLACE", slow], &["FCALL", "f", "0"]];
        assert_eq!(client.transact(&refused), "-", "the watched key has changed");
    });
}

/// Its code, run again within the transaction, would be killed soon: it would hold exclusive mode.
#[test]
fn a_transaction_calls_the_functions_of_slow_libraries_that_it_loads_after_a_flush() {
    let old = "#!lua name=old\nredis.register_function('g', function() return 2 end)";
    let replies = "(2 OK slow 1 ERR Function not found OK slow 1)";
    let arguments = ["--busy-reply-threshold", "20", "--busy-reply-scope", "affected"];
    with_workers(&arguments, |server| {
        let mut client = Client::connect(server.port);
        // On a busy machine the code may take half a second, which is too long. Then it gets shorter.
        let mut rounds = [10_000_000, 5_000_000, 2_000_000, 1_000_000].into_iter();
        let is_loaded = rounds.any(|rounds: u32| {
            let register = "redis.register_function('f', function() return 1 end)";
            let slow = format!("#!lua name=slow\nfor i = 1, {rounds} do end\n{register}");
            let commands: [&[&str]; 8] = [
                &["FCALL", "g", "0"],
                &["FUNCTION", "FLUSH"],
                &["FUNCTION", "LOAD", &slow],
                &["FCALL", "f", "0"],
                &["FCALL", "g", "0"],
                &["FUNCTION", "FLUSH", "ASYNC"],
                &["FUNCTION", "LOAD", &slow],
                &["FCALL", "f", "0"],
            ];
            assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", old]), "old");
            let answer = client.transact(&commands);
            let is_too_slow = answer.contains("ERR FUNCTION LOAD timeout");
            assert!(is_too_slow || answer == replies, "{answer}");
            !is_too_slow
        });
        assert!(is_loaded, "the code always takes too long");
        assert_eq!(client.call(&["FCALL", "f", "0"]), "1");
        assert_eq!(client.call(&["FCALL", "g", "0"]), "ERR Function not found");
    });
}

/// Returns the code of a library that takes a quarter of a second, half of the time that it may take.
fn slow_code(client: &mut Client) -> String {
    let measure = "local start = os.clock() for i = 1, 1e6 do end return tostring(os.clock() - start)";
    let seconds = client.call(&["EVAL", measure, "0"]).parse::<f64>().expect("a number");
    let rounds = 0.25e6 / seconds.max(1e-4);
    format!("#!lua name=once\nfor i = 1, {rounds} do end\nredis.register_function('f', function() return 1 end)")
}

#[test]
fn a_transaction_that_calls_a_slow_library_stops_nobody_and_can_be_killed() {
    let killed = "EXECABORT Transaction discarded because of: Script killed by user with FUNCTION KILL. script: on \
                  @user_function:";
    with_workers(&[], |server| {
        let (mut caller, mut admin) = (Client::connect(server.port), Client::connect(server.port));
        // At least one client of each worker.
        let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.port)).collect();
        // On a busy machine the first run may take too long, and the second one may have ended before it is killed.
        let is_killed = (0..40).any(|_| {
            admin.call(&["DEL", "key"]);
            let library = slow_code(&mut admin);
            for words in [
                &["MULTI"][..],
                &["FUNCTION", "LOAD", &library],
                &["SET", "key", "value"],
                &["FCALL", "f", "0"],
                &["EXEC"],
            ] {
                caller.send(words);
            }
            for reply in ["OK", "QUEUED", "QUEUED", "QUEUED"] {
                assert_eq!(caller.answer(), reply);
            }
            wait_until("the code runs again", || {
                admin.call(&["FUNCTION", "STATS"]).contains("name once") || !caller.is_waiting()
            });
            for client in &mut clients {
                assert_eq!(client.call(&["SET", "other", "value"]), "OK");
                // It needs the whole keyspace.
                assert_eq!(client.call(&["SWAPDB", "1", "2"]), "OK");
            }
            admin.call(&["FUNCTION", "KILL"]);
            let answer = caller.answer();
            let is_killed = answer.starts_with(killed);
            let has_ended = answer == "(once OK 1)";
            if has_ended {
                assert_eq!(admin.call(&["FUNCTION", "DELETE", "once"]), "OK");
            }
            assert!(
                is_killed || has_ended || answer.contains("FUNCTION LOAD timeout"),
                "{answer}"
            );
            is_killed
        });
        assert!(is_killed, "FUNCTION KILL does not end the transaction");
        assert_eq!(
            admin.call(&["EXISTS", "key"]),
            "0",
            "nothing of the transaction has happened"
        );
        assert_eq!(admin.call(&["FUNCTION", "LIST"]), "()");
        assert_eq!(
            caller.transact(&[&["SET", "key", "value"]]),
            "(OK)",
            "the transaction has ended"
        );
    });
}

/// Returns the time of a command in INFO, in microseconds.
fn time_us(client: &mut Client, command: &str) -> u64 {
    let figures = client.info(&format!("cmdstat_{command}"));
    let time = figures.split(',').find_map(|figure| figure.strip_prefix("usec="));
    time.expect("has the time").parse().expect("a number")
}

#[test]
fn the_time_of_the_code_is_that_of_the_commands() {
    const MIN_TIME_US: u64 = 450_000;
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let replies = client.transact(&[&["FUNCTION", "LOAD", ENDLESS], &["PING"]]);
    assert!(replies.contains("FUNCTION LOAD timeout"), "{replies}");
    for command in ["function|load", "exec"] {
        let time_us = time_us(&mut client, command);
        assert!(time_us >= MIN_TIME_US, "{command}: {time_us} us");
    }
    let time_us = time_us(&mut client, "ping");
    assert!(time_us < MIN_TIME_US, "PING: {time_us} us");
}

/// A short payload may have long libraries. Even its checksum is computed on another thread.
#[test]
fn a_payload_of_libraries_is_decoded_beside_the_workers() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let count = |client: &mut Client| client.info("weft_background_commands").parse::<u64>();
    let before = count(&mut client).expect("a number");
    let refused = client.call(&["FUNCTION", "RESTORE", "payload"]);
    assert_eq!(refused, "ERR DUMP payload version or checksum are wrong");
    assert!(count(&mut client).expect("a number") > before);
}

/// Each of very many libraries is short enough. There are only a few threads for long commands.
#[test]
fn a_payload_of_many_libraries_stops_no_other_long_command_and_ends_with_its_client() {
    let code = |number| {
        let functions = format!("redis.register_function('f{number}', function() end)");
        format!("#!lua name=l{number}\nfor i = 1, 3e6 do end\n{functions}").into_bytes()
    };
    let codes: Vec<Vec<u8>> = (0..5000).map(code).collect();
    let payload = weft_rdb::functions::dump(&codes, false);
    let restore: [&[u8]; 3] = [b"FUNCTION", b"RESTORE", &payload];
    let server = Server::start(&[]);
    let mut other = Client::connect(server.port);
    let mut restoring: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
    let mut ids = Vec::new();
    for (number, client) in restoring.iter_mut().enumerate() {
        ids.push(client.call(&["CLIENT", "ID"]));
        if number % 2 == 0 {
            client.send(&restore);
        } else {
            assert_eq!(client.call(&["MULTI"]), "OK");
            client.send(&restore);
            assert_eq!(client.answer(), "QUEUED");
            client.send(&["EXEC"]);
        }
    }
    let refused = other.call(&["FUNCTION", "RESTORE", "payload"]);
    assert_eq!(refused, "ERR DUMP payload version or checksum are wrong");
    assert!(restoring.iter().all(Client::is_waiting));
    for id in &ids {
        assert_eq!(other.call(&["CLIENT", "KILL", "ID", id]), "1");
    }
    assert_eq!(other.call(&["FUNCTION", "LIST"]), "()");
}

#[test]
fn client_kill_does_not_wait_for_the_code_of_a_library() {
    let server = Server::start(&[]);
    let mut admin = Client::connect(server.port);
    // On a busy machine the code may not have begun, or have ended, when its client is killed.
    let is_running = (0..8).any(|_| {
        let mut loader = Client::connect(server.port);
        let id = loader.call(&["CLIENT", "ID"]);
        loader.send(&["FUNCTION", "LOAD", ENDLESS]);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), "1");
        let is_running = admin.info("weft_unfinished_jobs") != "0";
        admin.wait_for_info("weft_unfinished_jobs", "0");
        is_running
    });
    assert!(is_running, "the reply waits for the end of the code");
}

#[test]
fn the_code_of_libraries_on_its_way_to_other_threads_is_memory_of_its_client() {
    const LOADS: usize = 8;
    let server = Server::start(&[]);
    let (mut loader, mut other) = (Client::connect(server.port), Client::connect(server.port));
    let id = loader.call(&["CLIENT", "ID"]);
    let mut memory = || {
        let line = other.call(&["CLIENT", "LIST", "ID", &id]);
        let figure = line.split(' ').find_map(|figure| figure.strip_prefix("multi-mem="));
        figure.expect("has it").parse::<usize>().expect("a number")
    };
    let code = format!("{ENDLESS}\n-- {}", "x".repeat(100_000));
    assert_eq!(loader.call(&["MULTI"]), "OK");
    for _ in 0..LOADS {
        assert_eq!(loader.call(&["FUNCTION", "LOAD", &code]), "QUEUED");
    }
    let before = memory();
    loader.send(&["EXEC"]);
    wait_until("the copies count", || memory() >= before + 2 * LOADS * code.len());
    assert!(loader.is_waiting());
}

//! Tests scripts concurrently with other work: waiting, waking of workers, and fairness.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, Server, is_waiting, lengthen_until};
use crate::harness::wait_until;

/// Runs `story` with one, two and eight active workers. Unless the arguments say otherwise, no script counts as busy,
/// however long it takes.
fn with_workers(arguments: &[&str], story: impl Fn(&Server)) {
    for threads in ["1", "2", "8"] {
        let own = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let never_busy = ["--busy-reply-threshold", "0"];
        story(&Server::start(&[&own, &never_busy[..], arguments].concat()));
    }
}

/// Client A reads `x`, runs for long and queries all workers. Client B, on a worker, has written and needs `x`.
#[test]
fn a_script_that_queries_workers_and_one_that_waits_on_a_worker_both_end() {
    let asks = [
        "return #redis.call('INFO')",
        "return #redis.call('CLIENT', 'LIST')",
        "return redis.call('DBSIZE')",
        "return #redis.call('SCAN', '0')",
        "return #redis.call('KEYS', '*')",
    ];
    let second: [&[&[&str]]; 5] = [
        &[&[
            "EVAL",
            "redis.call('SET', 'y', '1') return redis.call('SET', 'x', '1')",
            "0",
        ]],
        &[&[
            "EVAL",
            "redis.call('SET', 'y', '1') return redis.call('DBSIZE')",
            "1",
            "y",
        ]],
        &[&[
            "EVAL",
            "redis.call('SET', 'y', '1') return redis.call('FLUSHALL')",
            "1",
            "y",
        ]],
        &[
            &["MULTI"],
            &["SET", "z", "1"],
            &[
                "EVAL",
                "redis.call('SET', 'y', '1') return redis.call('SET', 'x', '1')",
                "0",
            ],
            &["EXEC"],
        ],
        &[&["FCALL", "both", "0"]],
    ];
    with_workers(&["--enable-debug-command", "yes"], |server| {
        let mut admin = Client::connect(server.port);
        admin.call(&["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "1"]);
        admin.call(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=both\nredis.register_function('both', function() redis.call('SET', 'y', '1') \
             return redis.call('SET', 'x', '1') end)",
        ]);
        for ask in asks {
            for requests in second {
                let (mut first, mut other) = (Client::connect(server.port), Client::connect(server.port));
                let mut pinging = Client::connect(server.port);
                lengthen_until("the first script has always ended already", |rounds| {
                    // Each of these scripts is new to the server, so there is no prediction from earlier runs.
                    let now = Instant::now();
                    let body = format!("redis.call('GET', 'x') for i = 1, {rounds} do end {ask} -- {now:?}");
                    server.run_script(&mut first, &["EVAL_RO", &body, "0"]);
                    for request in requests {
                        other.send(request);
                    }
                    let is_in_time = is_waiting(&mut first);
                    for _ in requests {
                        let answer = other.answer();
                        assert!(!answer.starts_with("ERR"), "{ask}, {requests:?}: {answer}");
                        assert_eq!(pinging.call(&["PING"]), "PONG");
                    }
                    let answer = first.answer();
                    assert!(!answer.starts_with("ERR"), "{ask}, {requests:?}: {answer}");
                    is_in_time
                });
            }
        }
    });
}

/// Client B has written on a worker when it needs a key that a long reader holds. The reader is restarted, and no other
/// client waits for it.
#[test]
fn a_worker_does_not_wait_for_a_long_script() {
    with_workers(&[], |server| {
        for round in 0..5 {
            let (mut reader, mut writer) = (Client::connect(server.port), Client::connect(server.port));
            let mut others: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
            lengthen_until("the reader was faster than a PING", |rounds| {
                let body = format!("redis.call('GET', 'x') for i = 1, 4 * {rounds} do end return {round}");
                server.run_script(&mut reader, &["EVAL_RO", &body, "0"]);
                writer.send(&[
                    "EVAL",
                    "redis.call('SET', 'y', '1') return redis.call('SET', 'x', '1')",
                    "0",
                ]);
                for other in &mut others {
                    assert_eq!(other.call(&["PING"]), "PONG");
                }
                let is_longer = is_waiting(&mut reader);
                assert_eq!(reader.answer(), round.to_string());
                assert_eq!(writer.answer(), "OK");
                is_longer
            });
        }
    });
}

#[test]
fn a_script_wakes_the_workers_to_which_it_sends_messages() {
    with_workers(&[], |server| {
        let mut subscribers: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
        for subscriber in &mut subscribers {
            subscriber.send(&["SUBSCRIBE", "channel"]);
            assert_eq!(subscriber.answer(), "(subscribe channel 1)");
        }
        let mut admin = Client::connect(server.port);
        let mut runner = Client::connect(server.port);
        // The script has written, and runs until the end of the process.
        let body = "for i = 1, 5e7 do end redis.call('PUBLISH', 'channel', 'message') while true do end";
        server.run_script(&mut runner, &["EVAL", body, "0"]);
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.answer(), "(message channel message)");
        }
        for _ in 0..16 {
            assert_eq!(Client::connect(server.port).call(&["PING"]), "PONG");
        }
        assert!(admin.call(&["SCRIPT", "KILL"]).starts_with("UNKILLABLE"));
    });
}

#[test]
fn exclusive_commands_get_a_turn_between_scripts() {
    let directory = std::env::temp_dir().join(format!("weft-turns-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    with_workers(&["--dir", directory.to_str().expect("text")], |server| {
        let stop = AtomicBool::new(false);
        let mut admin = Client::connect(server.port);
        let runs: Vec<AtomicU32> = (0..24).map(|_| AtomicU32::new(0)).collect();
        thread::scope(|scope| {
            let runners: Vec<_> = runs
                .iter()
                .enumerate()
                .map(|(number, runs)| {
                    let stop = &stop;
                    let mut runner = Client::connect(server.port);
                    scope.spawn(move || {
                        let body = format!("for i = 1, 2e6 do end return {number}");
                        while !stop.load(Ordering::Relaxed) {
                            assert_eq!(runner.call(&["EVAL", &body, "0"]), number.to_string());
                            runs.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let guard = StopOnDrop(&stop);
            let all_run_again = |runs: &[AtomicU32]| {
                let before: Vec<u32> = runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
                wait_until("scripts get their turn, too", || {
                    let mut pairs = runs.iter().zip(&before);
                    pairs.all(|(runs, before)| runs.load(Ordering::Relaxed) > *before)
                });
            };
            all_run_again(&runs);
            let commands: [&[&str]; 4] = [&["FLUSHALL"], &["SAVE"], &["FLUSHDB"], &["SWAPDB", "0", "1"]];
            for round in 0..3 {
                for words in commands {
                    assert_eq!(admin.call(words), "OK", "round {round}, {words:?}");
                }
            }
            all_run_again(&runs);
            drop(guard);
            runners
                .into_iter()
                .for_each(|runner| runner.join().expect("the client gets its replies"));
        });
    });
    let _ = std::fs::remove_dir_all(directory);
}

/// Commands that are forbidden in scripts can be permitted for tests. They affect the interpreter that runs them.
#[test]
fn a_script_may_flush_and_load_scripts_where_that_is_allowed() {
    with_workers(&["--enable-debug-command", "yes"], |server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "1"]), "OK");
        let library = "'#!lua name=l\\nredis.register_function(\"f\", function() return 7 end)'";
        let scripts = [
            ("redis.call('SCRIPT', 'FLUSH') return 1".to_owned(), "1"),
            ("redis.call('SCRIPT', 'FLUSH', 'SYNC') return 2".to_owned(), "2"),
            ("redis.call('SCRIPT', 'FLUSH', 'ASYNC') return 3".to_owned(), "3"),
            (
                "return redis.call('SCRIPT', 'LOAD', 'return 5')".to_owned(),
                "4ca238f611c9d0ae4e9a75a5dbac22aedc379801",
            ),
            (
                format!("return redis.call('FUNCTION', 'LOAD', 'REPLACE', {library})"),
                "l",
            ),
            ("redis.call('FUNCTION', 'FLUSH', 'SYNC') return 4".to_owned(), "4"),
            ("return redis.call('SCRIPT', 'EXISTS', 'x')[1]".to_owned(), "0"),
        ];
        for (script, answer) in &scripts {
            for _ in 0..3 {
                assert_eq!(client.call(&["EVAL", script, "0"]), *answer, "{script}");
                assert_eq!(client.call(&["EVAL", "return 'next'", "0"]), "next");
            }
        }
        let flushes = "#!lua name=m\nredis.register_function('m', function() redis.call('FUNCTION', 'FLUSH', 'SYNC') \
                       redis.call('SCRIPT', 'FLUSH', 'SYNC') return 8 end)";
        for _ in 0..3 {
            assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", flushes]), "m");
            assert_eq!(client.call(&["FCALL", "m", "0"]), "8");
        }
        assert_eq!(client.call(&["PING"]), "PONG");
    });
}

/// ACL LOAD waits for a script that does not end, and no client waits for ACL LOAD.
#[test]
fn loading_the_users_stops_nobody_while_a_script_runs() {
    let directory = std::env::temp_dir().join(format!("weft-users-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("makes a directory");
    let file = directory.join("users.acl");
    std::fs::write(&file, "user default on nopass ~* &* +@all\n").expect("writes the users");
    let arguments = ["--aclfile", file.to_str().expect("text")];
    with_workers(&arguments, |server| {
        let mut runner = Client::connect(server.port);
        let mut loader = Client::connect(server.port);
        let mut admin = Client::connect(server.port);
        server.run_script(&mut runner, &["EVAL", "while true do end", "0"]);
        loader.send(&["ACL", "LOAD"]);
        thread::sleep(Duration::from_millis(50));
        for _ in 0..8 {
            assert_eq!(Client::connect(server.port).call(&["PING"]), "PONG");
        }
        assert!(is_waiting(&mut loader), "the users changed while a script ran");
        assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
        assert!(runner.answer().contains("killed by user"));
        assert_eq!(loader.answer(), "OK");
    });
    let _ = std::fs::remove_dir_all(directory);
}

/// Runs a script several times, so that it proves to be short and runs on its worker from then on.
fn run_briefly(client: &mut Client, script: &str) {
    for _ in 0..20 {
        assert_eq!(client.call(&["EVAL", script, "1", "key", "1"]), "1");
    }
}

/// The script leaves its worker although it has written, since that can be undone. What cannot be undone does not
/// happen on the only worker.
#[test]
fn a_script_that_was_short_leaves_its_worker_if_it_does_not_end() {
    const SCRIPT: &str = "redis.call('INCR', KEYS[1]) for i = 1, tonumber(ARGV[1]) do end return 1";
    for (threads, script) in [("1", SCRIPT), ("2", SCRIPT), ("8", SCRIPT), ("1", LASTING_SCRIPT)] {
        let options = ["--io-threads-always-active", "yes", "--busy-reply-threshold", "300"];
        let mut server = Server::start(&[&["--io-threads", threads], &options[..]].concat());
        let mut clients: Vec<Client> = (0..32).map(|_| Client::connect(server.port)).collect();
        let mut runner = Client::connect(server.port);
        run_briefly(&mut runner, script);
        runner.send(&["EVAL", script, "1", "key", "1e15"]);
        wait_until("the script is busy", || {
            clients[0].call(&["GET", "key"]).starts_with("BUSY")
        });
        for client in &mut clients {
            assert!(client.call(&["PING"]).starts_with("BUSY"));
        }
        assert!(clients[1].call(&["SCRIPT", "KILL"]).starts_with("UNKILLABLE"));
        clients[2].send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(server.wait_for_exit(), Some(0));
    }
}

/// The worker's turn does not end. Clients that connect later are served by another worker, which becomes active.
#[test]
fn new_clients_are_not_placed_on_a_worker_whose_script_does_not_end() {
    let options = ["--io-threads-always-active", "no", "--busy-reply-threshold", "300"];
    let mut server = Server::start(&[&["--io-threads", "2"], &options[..]].concat());
    let mut runner = Client::connect(server.port);
    run_briefly(&mut runner, LASTING_SCRIPT);
    assert_eq!(Client::connect(server.port).info("weft_workers_active"), "1");
    runner.send(&["EVAL", LASTING_SCRIPT, "1", "key", "1e15"]);
    wait_until("a new client is served", || {
        let mut probe = Client::connect(server.port);
        probe.send(&["PING"]);
        thread::sleep(Duration::from_millis(200));
        !is_waiting(&mut probe)
    });
    let mut late: Vec<Client> = (0..8).map(|_| Client::connect(server.port)).collect();
    for client in &mut late {
        assert!(client.call(&["PING"]).starts_with("BUSY"));
    }
    assert!(late[1].call(&["SCRIPT", "KILL"]).starts_with("UNKILLABLE"));
    late[2].send(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(server.wait_for_exit(), Some(0));
}

/// The code executes few instructions of Lua, so that its hook hardly ever checks the run.
#[test]
fn a_script_of_slow_commands_is_busy_and_can_be_killed() {
    const SCRIPT: &str = "while true do redis.call('SINTERCARD', 3, KEYS[1], KEYS[1], KEYS[1]) \
                          if ARGV[1] == '1' then return 1 end end";
    for threads in ["1", "2", "8"] {
        let options = ["--io-threads-always-active", "yes", "--busy-reply-threshold", "300"];
        let server = Server::start(&[&["--io-threads", threads], &options[..]].concat());
        let mut clients: Vec<Client> = (0..32).map(|_| Client::connect(server.port)).collect();
        let mut runner = Client::connect(server.port);
        runner.call(&["SADD", "key", "a"]);
        run_briefly(&mut runner, SCRIPT);
        let members: Vec<String> = (0..100_000).map(|member| format!("member:{member}")).collect();
        let words = ["SADD", "key"].into_iter().chain(members.iter().map(String::as_str));
        runner.call(&words.collect::<Vec<_>>());
        let began = Instant::now();
        assert_eq!(clients[0].call(&["SINTERCARD", "3", "key", "key", "key"]), "100001");
        let one_command = began.elapsed();
        runner.send(&["EVAL", SCRIPT, "1", "key", "0"]);
        let began = Instant::now();
        wait_until("the script is busy", || clients[0].call(&["PING"]).starts_with("BUSY"));
        // With the hook alone it would be busy after 1000 commands of some milliseconds.
        let limit = Duration::from_secs(3).max(100 * one_command);
        assert!(began.elapsed() < limit, "{:?}, {one_command:?}", began.elapsed());
        for client in &mut clients {
            assert!(client.call(&["PING"]).starts_with("BUSY"));
        }
        assert_eq!(clients[1].call(&["SCRIPT", "KILL"]), "OK");
        assert!(runner.answer().contains("killed by user"));
        assert_eq!(clients[2].call(&["PING"]), "PONG");
    }
}

/// A change of a large value cannot be undone.
const LASTING_SCRIPT: &str =
    "redis.call('SETRANGE', KEYS[1], 100000, 'x') for i = 1, tonumber(ARGV[1]) do end return 1";

/// After two short runs the script runs on a worker, which it cannot leave once it has written.
#[test]
fn a_long_script_on_a_worker_does_not_stop_the_other_workers() {
    for threads in ["2", "8"] {
        let options = [
            "--io-threads-always-active",
            "yes",
            "--busy-reply-threshold",
            "600000",
            "--save",
            "",
        ];
        let mut server = Server::start(&[&["--io-threads", threads], &options[..]].concat());
        let mut clients: Vec<Client> = (0..32).map(|_| Client::connect(server.port)).collect();
        let mut runner = Client::connect(server.port);
        run_briefly(&mut runner, LASTING_SCRIPT);
        let ticks = server.thread_ticks("weft-worker");
        runner.send(&["EVAL", LASTING_SCRIPT, "1", "key", "1e15"]);
        // Nothing else takes the workers so much time.
        wait_until("the script runs", || server.thread_ticks("weft-worker") >= ticks + 10);
        clients.iter_mut().for_each(|client| client.send(&["PING"]));
        wait_until("other workers serve their clients", || {
            clients.iter().filter(|client| !client.is_waiting()).count() >= 3
        });
        clients.retain_mut(|client| !is_waiting(client));
        clients
            .iter_mut()
            .for_each(|client| assert_eq!(client.answer(), "PONG"));
        // It waits for the end of the script, and the others do not.
        clients[0].send(&["FLUSHALL"]);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(clients[1].call(&["SET", "other", "value"]), "OK");
        assert!(is_waiting(&mut clients[0]));
        clients[2].send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(server.wait_for_exit(), Some(0));
    }
}

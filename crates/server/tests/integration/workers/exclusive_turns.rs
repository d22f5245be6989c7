//! Tests the order in which commands that need exclusive mode have their turns beside long scripts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, PATIENCE, Server};

/// The number of clients that run scripts, as many as there are script threads.
const SCRIPT_CLIENTS: usize = 8;
/// The number of clients that send exclusive commands.
const EXCLUSIVE_CLIENTS: usize = 24;
/// The number of scripts that must have ended before the test ends, so that there were many turns.
const MIN_SCRIPTS: usize = 600;
/// The number of scripts that may end while one exclusive command waits. Those that run at its arrival end, each script
/// client has up to two more turns, and one that was late may have begun before the others noticed.
const MAX_OVERTAKING_SCRIPTS: usize = 5 * SCRIPT_CLIENTS;
/// The limit of each half of the test on a slow machine.
const MAX_TIME: Duration = PATIENCE;

const EXCLUSIVE_COMMANDS: [&[&[&str]]; 4] = [
    &[&["SWAPDB", "2", "3"]],
    &[&["FLUSHDB"]],
    &[&["MULTI"], &["SWAPDB", "4", "5"], &["EXEC"]],
    &[&["FUNCTION", "FLUSH"]],
];

/// A script that runs for some milliseconds.
const SCRIPT: &[&str] = &[
    "EVAL",
    "for i = 1, 1000000 do end return redis.call('INCR', KEYS[1])",
    "1",
    "x",
];

/// Starts a server with so many active workers, in which no script counts as overdue.
fn start_server(io_threads: &str) -> Server {
    Server::start(&[
        "--io-threads",
        io_threads,
        "--io-threads-always-active",
        "yes",
        "--busy-reply-threshold",
        "0",
    ])
}

/// Sends scripts, one after the other, and counts them.
fn run_scripts(port: u16, script: &[&str], is_over: &AtomicBool, ended: &AtomicUsize) {
    let mut client = Client::connect(port);
    while !is_over.load(Ordering::Relaxed) {
        let reply = client.call(script);
        assert!(reply.parse::<u64>().is_ok(), "{reply}");
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends exclusive commands. Returns by how much `count` has grown at most while one of them waited, and their number.
fn overtaken(port: u16, commands: &[&[&str]], is_over: &AtomicBool, count: &AtomicUsize) -> (usize, usize) {
    let mut client = Client::connect(port);
    client.call(&["SELECT", "9"]);
    let (mut most, mut rounds) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let (last, first) = commands.split_last().expect("there is a command");
        for command in first {
            client.call(command);
        }
        let before = count.load(Ordering::Relaxed);
        let reply = client.call(last);
        assert!(reply.contains("OK"), "{reply}");
        most = most.max(count.load(Ordering::Relaxed) - before);
        rounds += 1;
        thread::sleep(Duration::from_millis(5));
    }
    (most, rounds)
}

#[test]
fn no_exclusive_command_is_overtaken_by_many_scripts() {
    for threads in ["2", "8"] {
        let server = start_server(threads);
        let (is_over, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
        let waits = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let _stop = StopOnDrop(&is_over);
            for _ in 0..SCRIPT_CLIENTS {
                scope.spawn(|| run_scripts(server.port, SCRIPT, &is_over, &ended));
            }
            for client in 0..EXCLUSIVE_CLIENTS {
                let (is_over, ended, waits) = (&is_over, &ended, &waits);
                let commands = EXCLUSIVE_COMMANDS[client % EXCLUSIVE_COMMANDS.len()];
                let port = server.port;
                scope.spawn(move || {
                    let (most, rounds) = overtaken(port, commands, is_over, ended);
                    waits.lock().expect("no thread panics").push((most, rounds, commands));
                });
            }
            let start = Instant::now();
            while ended.load(Ordering::Relaxed) < MIN_SCRIPTS && start.elapsed() < MAX_TIME {
                thread::sleep(Duration::from_millis(20));
            }
            assert!(ended.load(Ordering::Relaxed) >= MIN_SCRIPTS, "few scripts have ended");
        });
        for (most, rounds, commands) in waits.into_inner().expect("no thread panics") {
            println!("{threads} workers: {rounds} rounds of {commands:?}, overtaken by up to {most} scripts");
            assert!(rounds > 2, "{commands:?} ran {rounds} times");
            assert!(
                most <= MAX_OVERTAKING_SCRIPTS,
                "{commands:?} was overtaken by {most} scripts"
            );
        }
    }
}

/// The number of clients that pause the others at the same time.
const PAUSING_CLIENTS: usize = 8;
/// The number of times that they do so.
const PAUSES: usize = 20;
/// The number of exclusive commands that run at least, for each pause and each client that sends them. Where they come
/// first, it is about 1. It is less if the test's threads, or the workers, do not run for a while.
const MIN_ROUNDS_PER_PAUSE: f64 = 0.5;

/// A script that runs for longer than the clients are not paused, also while they are.
const READING_SCRIPT: &[&str] = &["EVAL_RO", "for i = 1, 10000000 do end return 1", "0"];

/// The commands with which a client pauses the others, and their replies.
type PausingCommands = &'static [(&'static [&'static str], &'static str)];

const PAUSE_COMMANDS: [PausingCommands; 2] = [
    &[(&["CLIENT", "PAUSE", "50", "WRITE"], "OK")],
    &[
        (&["MULTI"], "OK"),
        (&["CLIENT", "PAUSE", "50", "WRITE"], "QUEUED"),
        (&["EXEC"], "(OK)"),
    ],
];

/// Pauses the others again and again, a moment after the end of the pause before. Counts the times.
fn pause_clients(port: u16, commands: PausingCommands, pauses: &AtomicUsize) {
    let mut clients: Vec<Client> = (0..PAUSING_CLIENTS).map(|_| Client::connect(port)).collect();
    for _ in 0..PAUSES {
        thread::sleep(Duration::from_millis(10));
        for client in &mut clients {
            for (command, _) in commands {
                client.send(command);
            }
        }
        for client in &mut clients {
            for (command, reply) in commands {
                assert_eq!(client.answer(), *reply, "{command:?}");
            }
        }
        pauses.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn no_exclusive_command_waits_for_many_pauses() {
    for threads in ["2", "8"] {
        for commands in PAUSE_COMMANDS {
            let rounds_per_pause = rounds_between_pauses(threads, commands);
            assert!(
                rounds_per_pause >= MIN_ROUNDS_PER_PAUSE,
                "{threads} workers, {commands:?}: {rounds_per_pause} rounds per pause"
            );
        }
    }
}

/// Pauses clients that send exclusive commands beside scripts. Returns how many of each the clients sent per pause.
fn rounds_between_pauses(threads: &str, commands: PausingCommands) -> f64 {
    let server = start_server(threads);
    let (is_over, pauses, ended) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let mut all_rounds = 0;
    thread::scope(|scope| {
        let _stop = StopOnDrop(&is_over);
        for _ in 0..SCRIPT_CLIENTS {
            scope.spawn(|| run_scripts(server.port, READING_SCRIPT, &is_over, &ended));
        }
        let writers: Vec<_> = EXCLUSIVE_COMMANDS
            .iter()
            .map(|commands| scope.spawn(|| overtaken(server.port, commands, &is_over, &pauses)))
            .collect();
        pause_clients(server.port, commands, &pauses);
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            let (most, rounds) = writer.join().expect("no thread panics");
            println!("{threads} workers: {rounds} rounds, overtaken by up to {most} pauses");
            all_rounds += rounds;
        }
    });
    assert!(ended.load(Ordering::Relaxed) > PAUSES, "few scripts have ended");
    all_rounds as f64 / (PAUSES * EXCLUSIVE_COMMANDS.len()) as f64
}

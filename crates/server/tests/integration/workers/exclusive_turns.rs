//! Tests the order in which commands that need exclusive mode have their turns beside long scripts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::moving::StopOnDrop;
use super::{Client, Server};

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
const MAX_TIME: Duration = Duration::from_secs(60);

const EXCLUSIVE_COMMANDS: [&[&[&str]]; 4] = [
    &[&["SWAPDB", "2", "3"]],
    &[&["FLUSHDB"]],
    &[&["MULTI"], &["SWAPDB", "4", "5"], &["EXEC"]],
    &[&["FUNCTION", "FLUSH"]],
];

/// Sends scripts that run for some milliseconds, one after the other, and counts them.
fn run_scripts(port: u16, is_over: &AtomicBool, ended: &AtomicUsize) {
    let mut client = Client::connect(port);
    while !is_over.load(Ordering::Relaxed) {
        let reply = client.call(&[
            "EVAL",
            "for i = 1, 1000000 do end return redis.call('INCR', KEYS[1])",
            "1",
            "x",
        ]);
        assert!(reply.parse::<u64>().is_ok(), "{reply}");
        ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends exclusive commands, and records how many scripts have ended at most while one of them waited.
fn overtaken(port: u16, commands: &[&[&str]], is_over: &AtomicBool, ended: &AtomicUsize) -> (usize, usize) {
    let mut client = Client::connect(port);
    client.call(&["SELECT", "9"]);
    let (mut most, mut rounds) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let (last, first) = commands.split_last().expect("there is a command");
        for command in first {
            client.call(command);
        }
        let before = ended.load(Ordering::Relaxed);
        let reply = client.call(last);
        assert!(reply.contains("OK"), "{reply}");
        most = most.max(ended.load(Ordering::Relaxed) - before);
        rounds += 1;
        thread::sleep(Duration::from_millis(5));
    }
    (most, rounds)
}

#[test]
fn no_exclusive_command_is_overtaken_by_many_scripts() {
    for threads in ["2", "8"] {
        let server = Server::start(&[
            "--io-threads",
            threads,
            "--io-threads-always-active",
            "yes",
            "--busy-reply-threshold",
            "0",
        ]);
        let (is_over, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
        let waits = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let _stop = StopOnDrop(&is_over);
            for _ in 0..SCRIPT_CLIENTS {
                scope.spawn(|| run_scripts(server.port, &is_over, &ended));
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

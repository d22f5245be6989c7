//! Tests what the watchdog reports about workers and other threads that keep clients waiting.

use std::fs;

use super::{Client, Server};
use crate::harness::wait_until;

/// The threshold, in milliseconds.
const THRESHOLD: &str = "200";
/// The name of a key, which is in no line of the log.
const KEY: &str = "name-of-a-key";

fn start(arguments: &[&str]) -> Server {
    let common = [
        "--stall-report-threshold",
        THRESHOLD,
        "--latency-monitor-threshold",
        "1",
        "--enable-debug-command",
        "yes",
        "--logfile",
        "log",
        "--loglevel",
        "debug",
    ];
    Server::start(&[&common, arguments].concat())
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.directory.join("log")).expect("the log")
}

/// Returns `true` if a line of the log has all of these parts.
fn has_line(server: &Server, parts: &[&str]) -> bool {
    let text = log(server);
    text.lines().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// Waits for a line of the log with all of these parts.
fn await_line(server: &Server, parts: &[&str]) {
    wait_until(&format!("a line with {parts:?}"), || has_line(server, parts));
}

#[test]
fn the_command_and_the_client_that_hold_exclusive_mode_are_reported() {
    let server = start(&[]);
    let mut sleeper = Client::connect(server.port);
    let id = format!("client id={}", sleeper.call(&["CLIENT", "ID"]));
    let mut other = Client::connect(server.port);
    let parts = ["has had exclusive mode for", "it runs 'debug' of ", &id];
    // On a busy machine, the watchdog may be too late for the first one.
    wait_until("the sleep is reported", || {
        sleeper.send(&["DEBUG", "SLEEP", "0.5"]);
        other.send(&["GET", KEY]);
        assert_eq!((sleeper.answer(), other.answer()), ("OK".to_owned(), "-".to_owned()));
        has_line(&server, &parts)
    });
    await_line(&server, &["Worker ", "is no longer stalled"]);
    let text = log(&server);
    assert!(
        !text.contains("has been in one turn"),
        "the other worker waits for the first: {text}"
    );
    assert!(!text.contains(KEY));
    let latest = other.call(&["LATENCY", "LATEST"]);
    assert!(latest.contains("(watchdog-exclusive "), "{latest}");
    let history = other.call(&["LATENCY", "HISTORY", "watchdog-exclusive"]);
    assert!(history.starts_with("(("), "{history}");
}

#[test]
fn a_script_that_keeps_its_leases_is_reported_with_its_thread() {
    let server = start(&["--busy-reply-threshold", "100"]);
    let mut client = Client::connect(server.port);
    let id = format!("client id={}", client.call(&["CLIENT", "ID"]));
    let endless = "redis.call('get', KEYS[1]) while true do end";
    client.send(&["EVAL", endless, "1", KEY]);
    await_line(
        &server,
        &[
            "Thread weft-script-",
            "may have held leases for",
            "it runs 'eval' of ",
            &id,
        ],
    );
    let mut other = Client::connect(server.port);
    wait_until("the script is killed", || other.call(&["SCRIPT", "KILL"]) == "OK");
    let reply = client.answer();
    assert!(reply.starts_with("ERR "), "{reply}");
    await_line(&server, &["Thread weft-script-", "is no longer stalled"]);
    assert!(!log(&server).contains(KEY));
    let latest = other.call(&["LATENCY", "LATEST"]);
    assert!(latest.contains("(watchdog-lease "), "{latest}");
}

#[test]
fn a_threshold_of_zero_reports_nothing_and_the_period_of_the_watchdog_replaces_it() {
    let server = start(&[]);
    let mut client = Client::connect(server.port);
    let set = |client: &mut Client, name: &str, value: &str| {
        assert_eq!(client.call(&["CONFIG", "SET", name, value]), "OK");
    };
    set(&mut client, "stall-report-threshold", "0");
    let mut other = Client::connect(server.port);
    assert_eq!(other.call(&["DEBUG", "SLEEP", "0.6"]), "OK");
    assert!(!has_line(&server, &["has had exclusive mode"]));
    set(&mut client, "watchdog-period", "100");
    wait_until("it is reported", || {
        assert_eq!(other.call(&["DEBUG", "SLEEP", "0.2"]), "OK");
        has_line(&server, &["has had exclusive mode"])
    });
}

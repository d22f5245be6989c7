//! Tests the output of the process: formats and levels of the log, crash reports, and a log file that is moved.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;

use super::{Server, TestDirectory, assert_in_order, ping, wait_until};
use crate::harness::port::free_port;

#[test]
fn the_startup_logo_shows_process_and_port() {
    let place = TestDirectory::new();
    let server = place.start(&["--always-show-logo", "yes"]);
    let expected = [format!("Port: {}", server.port), format!("PID: {}", server.child.id())];
    assert_in_order(&place.read("log"), &[&expected[0], &expected[1], "Server initialized"]);
    server.stop();
}

#[test]
fn every_log_format_can_be_parsed() {
    let cases = [
        ("legacy", "legacy"),
        ("legacy", "iso8601"),
        ("legacy", "milliseconds"),
        ("logfmt", "iso8601"),
        ("json", "milliseconds"),
    ];
    for (format, timestamps) in cases {
        let place = TestDirectory::new();
        let server = place.start(&["--log-format", format, "--log-timestamp-format", timestamps]);
        let process = server.child.id().to_string();
        server.stop();
        let log = place.read("log");
        assert!(log.lines().count() > 8, "{log}");
        for line in log.lines() {
            let (head, time, message) = parse(format, line).unwrap_or_else(|| panic!("{format}: {line}"));
            assert_eq!(head, process, "{line}");
            assert!(is_time(timestamps, time), "{timestamps}: {time:?} in {line}");
            assert!(!message.is_empty(), "{line}");
        }
    }
}

/// Returns the process id, the time and the message of a line.
fn parse<'line>(format: &str, line: &'line str) -> Option<(&'line str, &'line str, &'line str)> {
    match format {
        "legacy" => {
            let (process, rest) = line.split_once(":M ")?;
            let sign = [" * ", " # ", " - ", " . "]
                .iter()
                .filter_map(|sign| rest.find(sign))
                .min()?;
            Some((process, &rest[..sign], &rest[sign + 3..]))
        }
        "logfmt" => {
            let (process, rest) = line.strip_prefix("pid=")?.split_once(" role=primary timestamp=\"")?;
            let (time, rest) = rest.split_once("\" level=")?;
            let (level, message) = rest.split_once(" message=\"")?;
            is_level(level).then_some((process, time, message.strip_suffix('"')?))
        }
        _ => {
            let (process, rest) = line
                .strip_prefix("{\"pid\":")?
                .split_once(",\"role\":\"primary\",\"timestamp\":\"")?;
            let (time, rest) = rest.split_once("\",\"level\":\"")?;
            let (level, message) = rest.split_once("\",\"message\":\"")?;
            is_level(level).then_some((process, time, message.strip_suffix("\"}")?))
        }
    }
}

fn is_level(word: &str) -> bool {
    ["debug", "info", "notice", "warning"].contains(&word)
}

/// Returns `true` if `time` has the form of a timestamp.
fn is_time(timestamps: &str, time: &str) -> bool {
    let shape: String = time
        .chars()
        .map(|character| match character {
            '0'..='9' => '9',
            'A'..='Z' | 'a'..='z' if timestamps == "legacy" => 'a',
            other => other,
        })
        .collect();
    match timestamps {
        "legacy" => shape == "99 aaa 9999 99:99:99.999",
        "iso8601" => ["9999-99-99T99:99:99.999+99:99", "9999-99-99T99:99:99.999-99:99"].contains(&shape.as_str()),
        _ => shape == "9999999999999",
    }
}

#[test]
fn levels_below_the_threshold_are_left_out() {
    let place = TestDirectory::new();
    let port = free_port();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--loglevel", "warning"])),
        port,
    };
    wait_until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop();
    let log = place.read("log");
    assert!(
        log.lines().count() > 0 && log.lines().all(|line| line.contains(" # ")),
        "{log}"
    );

    let place = TestDirectory::new();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--loglevel", "nothing"])),
        port,
    };
    wait_until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    server.stop();
    assert_eq!(place.read("log"), "");

    let place = TestDirectory::new();
    let server = place.start(&["--loglevel", "debug"]);
    wait_until("a report", || {
        place.read("log").contains(" . Total: 0 clients connected")
    });
    server.stop();
}

#[test]
fn requests_that_violate_the_protocol_are_logged_without_user_data() {
    for (hides, expected) in [("no", "name=visible age="), ("yes", "name=*redacted* age=")] {
        let place = TestDirectory::new();
        let server = place.start(&["--loglevel", "verbose", "--hide-user-data-from-log", hides]);
        let mut client = server.connect();
        let name = "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$7\r\nvisible\r\n";
        client.write_all(name.as_bytes()).expect("sends");
        client.write_all(b"*2\r\n$3\r\nGET\r\n$blabla\r\n").expect("sends");
        let mut replies = String::new();
        client.read_to_string(&mut replies).expect("is closed");
        assert_eq!(replies, "+OK\r\n-ERR Protocol error: invalid bulk length\r\n");
        server.stop();
        let log = place.read("log");
        let line = log
            .lines()
            .find(|line| line.contains("Protocol error (invalid bulk length) from client: id="));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(expected), "{line}");
        let sample = if hides == "yes" {
            "*redacted*"
        } else {
            "'*2..$3..GET..$blabla..'"
        };
        assert!(line.ends_with(&format!("Query buffer: {sample}")), "{line}");
    }
}

#[test]
fn a_moved_log_file_is_created_again() {
    let place = TestDirectory::new();
    let port = free_port();
    let server = Server {
        child: place.spawn(&mut place.command(port, &["--logfile", "server.log"])),
        port,
    };
    wait_until("the server", || {
        place.read("server.log").contains("Ready to accept connections")
    });
    fs::rename(place.file("server.log"), place.file("old.log")).expect("moves");
    server.stop();
    assert!(place.read("server.log").contains("bye bye..."));
    assert!(!place.read("old.log").contains("bye bye..."));
}

#[test]
fn a_crash_leaves_a_report_unless_it_is_switched_off() {
    let place = TestDirectory::new();
    let server = place.start(&[]);
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().signal(), Some(11));
    assert_in_order(
        &place.read("log"),
        &[
            "WEFT BUG REPORT START",
            "Weft crashed by signal: 11",
            "weft_version:",
            "STACK TRACE",
            "WEFT BUG REPORT END",
        ],
    );

    let place = TestDirectory::new();
    let server = place.start(&["--crash-log-enabled", "no"]);
    server.signal(Signal::SIGSEGV);
    assert_eq!(server.wait().signal(), Some(11));
    assert!(!place.read("log").contains("REPORT"));
}

#[test]
fn an_alarm_makes_the_threads_log_their_backtraces() {
    let place = TestDirectory::new();
    let server = place.start(&[]);
    server.signal(Signal::SIGALRM);
    wait_until("the report", || {
        let log = place.read("log");
        ["'weft-worker-0': ", "'weft-worker-1': "]
            .iter()
            .all(|name| log.contains(name))
    });
    assert_in_order(&place.read("log"), &["# Received SIGALRM", "# Thread "]);
    ping(&mut server.connect());
    server.stop();
}

//! Tests the propagated form of each command, with a table that holds for Valkey as well.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::server::{Client, PATIENCE, Server, TestDirectory, weft};
use crate::harness::valkey::valkey_program;

const CASES: &str = include_str!("cases.txt");
/// The time for which nothing may be logged where nothing is expected.
const QUIET: Duration = Duration::from_millis(20);

#[test]
fn commands_are_propagated_in_their_repeatable_form() {
    check(&weft());
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn valkey_propagates_the_same() {
    check(&valkey_program());
}

fn check(program: &Path) {
    let place = TestDirectory::new();
    let always = ["--appendfsync", "always", "--aof-use-rdb-preamble", "no"];
    let server = Server::start(program, &place, &always);
    let mut client = server.client();
    let mut waiting = Vec::new();
    let mut log = Log { place: &place, read: 0 };
    let mut lines = CASES.lines().filter(|line| !line.starts_with('#')).peekable();
    let mut group = "";
    while let Some(line) = lines.next() {
        let (kind, rest) = line.split_once(' ').expect("a kind and more");
        let mut expected = Vec::new();
        while let Some(logged) = lines.next_if(|line| line.starts_with("< ")) {
            expected.push(logged[2..].to_owned());
        }
        match kind {
            "=" => {
                group = rest;
                waiting.clear();
                for words in [
                    &["SELECT", "0"][..],
                    &["FLUSHALL"],
                    &["FUNCTION", "FLUSH"],
                    &["SET", "start", "1"],
                ] {
                    client.call(words);
                }
                client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
                log.skip();
                continue;
            }
            "2>" => {
                let clients = |client: &mut Client| client.info("blocked_clients").parse::<usize>().expect("a number");
                let before = clients(&mut client);
                let mut other = server.client();
                other.send(&words(rest));
                let start = Instant::now();
                while clients(&mut client) == before {
                    assert!(start.elapsed() < PATIENCE, "{group}: {line}: it does not wait");
                    sleep(Duration::from_millis(1));
                    if log.has_more() {
                        break;
                    }
                }
                waiting.push(other);
            }
            ">" => {
                client.send(&words(rest));
                client.answer();
            }
            _ => panic!("what is {line}?"),
        }
        let logged = log.next(expected.len());
        assert_eq!(logged, expected, "{group}: {line}");
    }
}

#[test]
fn keys_that_a_walk_finds_expired_are_deleted_one_by_one() {
    check_walks(&weft());
}

#[test]
#[ignore = "needs Valkey: set WEFT_ORACLE"]
fn valkey_deletes_keys_that_a_walk_finds_expired_one_by_one() {
    check_walks(&valkey_program());
}

/// Checks the deletions by commands that visit keys which their client has not named, and by one whose client has.
fn check_walks(program: &Path) {
    let place = TestDirectory::new();
    let server = Server::start(
        program,
        &place,
        &["--appendfsync", "always", "--aof-use-rdb-preamble", "no"],
    );
    let mut client = server.client();
    let mut log = Log { place: &place, read: 0 };
    client.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    for (command, is_transaction) in [("SCAN 0", false), ("RANDOMKEY", false), ("MGET x y", true)] {
        client.call(&["MSET", "x", "v", "y", "v"]);
        client.call(&["PEXPIRE", "x", "1"]);
        client.call(&["PEXPIRE", "y", "1"]);
        sleep(Duration::from_millis(10));
        log.skip();
        client.send(&words(command));
        client.answer();
        let mut logged = log.next(if is_transaction { 4 } else { 2 });
        let deletions = if is_transaction { 1..3 } else { 0..2 };
        // The order of keys in a walk is not specified.
        logged[deletions].sort();
        let expected: &[&str] = match is_transaction {
            true => &["MULTI", "UNLINK x", "UNLINK y", "EXEC"],
            false => &["UNLINK x", "UNLINK y"],
        };
        assert_eq!(logged, expected, "{command}");
    }
}

/// One command for all members that SPOP has removed could be too large to be loaded.
#[test]
fn large_members_are_removed_by_several_commands() {
    let place = TestDirectory::new();
    let server = Server::start(&weft(), &place, &["--appendfsync", "always"]);
    let mut client = server.client();
    for digit in 0..5 {
        client.call(&["SADD", "set", &digit.to_string().repeat(700_000)]);
    }
    let mut log = Log { place: &place, read: 0 };
    log.skip();
    client.send(&["SPOP", "set", "4"]);
    client.answer();
    let logged = log.next(1);
    let removals: Vec<&String> = logged.iter().filter(|command| command.starts_with("SREM ")).collect();
    assert_eq!(removals.len(), 2, "two members exceed the limit");
    let members: usize = removals.iter().map(|command| command.split(' ').count() - 2).sum();
    assert_eq!(members, 4);
}

/// The growing increment.
struct Log<'p> {
    place: &'p TestDirectory,
    read: usize,
}

impl Log<'_> {
    fn bytes(&self) -> Vec<u8> {
        fs::read(self.place.increment()).expect("it is there")
    }

    fn has_more(&self) -> bool {
        self.bytes().len() > self.read
    }

    fn skip(&mut self) {
        self.read = self.bytes().len();
    }

    /// Returns the commands since the last call. Waits for at least `at_least` commands; with 0, it waits only briefly.
    fn next(&mut self, at_least: usize) -> Vec<String> {
        let start = Instant::now();
        loop {
            let bytes = self.bytes();
            let commands = commands(&bytes[self.read..]);
            let patience = if at_least > 0 { PATIENCE } else { QUIET / 10 };
            if commands.len() >= at_least.max(1) || start.elapsed() > patience {
                self.read = bytes.len();
                return commands;
            }
            sleep(Duration::from_millis(1));
        }
    }
}

/// Formats the commands in a part of the file as the table shows them.
fn commands(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    let line = |bytes: &mut &[u8]| {
        let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line");
        let text = String::from_utf8_lossy(&bytes[1..end]).into_owned();
        *bytes = &bytes[end + 2..];
        text.parse::<usize>().expect("a number")
    };
    while !bytes.is_empty() {
        let count = line(&mut bytes);
        let words: Vec<String> = (0..count)
            .map(|_| {
                let length = line(&mut bytes);
                let word = shown(&bytes[..length]);
                bytes = &bytes[length + 2..];
                word
            })
            .collect();
        all.push(words.join(" "));
    }
    all
}

/// Formats a word as the table shows it.
fn shown(word: &[u8]) -> String {
    let text = String::from_utf8_lossy(word);
    let is_time = |text: &str| {
        text.len() == 13
            && text.starts_with(['1'])
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && &text[1..2] > "6"
    };
    if is_time(&text) {
        return "<ms>".to_owned();
    }
    if text.split_once('-').is_some_and(|(time, _)| is_time(time)) {
        return "<ms>-n".to_owned();
    }
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if !word.is_empty() && word.iter().all(plain) {
        return text.into_owned();
    }
    let mut quoted = "\"".to_owned();
    for byte in word {
        quoted += &match byte {
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b'"' | b'\\' => format!("\\{}", *byte as char),
            0x20..=0x7e => (*byte as char).to_string(),
            _ => format!("\\x{byte:02x}"),
        };
    }
    quoted + "\""
}

/// Splits a line of the table into words.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.bytes().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b' ' => {}
            b'"' => {
                let mut word = Vec::new();
                while let Some(byte) = rest.next().filter(|byte| *byte != b'"') {
                    if byte != b'\\' {
                        word.push(byte);
                        continue;
                    }
                    match rest.next().expect("something behind a backslash") {
                        b'n' => word.push(b'\n'),
                        b'r' => word.push(b'\r'),
                        b'x' => {
                            let digit = |byte: Option<u8>| (byte.expect("a digit") as char).to_digit(16).expect("hex");
                            let (high, low) = (digit(rest.next()), digit(rest.next()));
                            word.push((high * 16 + low) as u8);
                        }
                        other => word.push(other),
                    }
                }
                words.push(word);
            }
            first => {
                let mut word = vec![first];
                while let Some(byte) = rest.next_if(|byte| *byte != b' ') {
                    word.push(byte);
                }
                words.push(word);
            }
        }
    }
    words
}

//! Strings, dictionaries, memory and clocks of modules.

use super::{start, start_with};
use crate::harness::client::Client;

#[test]
fn strings_are_converted_and_held() {
    let server = start(4, "strings");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["strings.numbers"]), "OK");
    for text in [
        "short",
        "a text that is longer than what a string holds without an allocation of its own",
        "",
    ] {
        assert_eq!(client.call(&["strings.holders", text]), format!("{text}\0more"));
    }
    assert_eq!(client.call(&["strings.keep", "first"]), "-");
    assert_eq!(client.call(&["strings.keep", "second"]), "first");
    assert_eq!(client.call(&["strings.keep", ""]), "second");
}

#[test]
fn dictionaries_are_ordered() {
    let server = start(4, "dicts");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["dicts.changes"]), "OK");
    assert_eq!(client.call(&["dicts.positions"]), "OK");
    let words = ["b", "", "bc", "d", "B"];
    for (operator, key, direction, expected) in [
        ("^", "", "next", "( B b bc d)"),
        ("^", "", "prev", "()"),
        ("$", "", "next", "(d)"),
        ("$", "", "prev", "(d bc b B )"),
        ("==", "bc", "next", "(bc d)"),
        ("==", "bb", "next", "()"),
        (">", "b", "next", "(bc d)"),
        (">=", "bb", "prev", "(bc b B )"),
        ("<", "b", "next", "(B b bc d)"),
        ("<=", "b", "prev", "(b B )"),
        ("<", "", "next", "()"),
    ] {
        let request = [&["dicts.walk", operator, key, direction], &words[..]].concat();
        assert_eq!(client.call(&request), expected, "{operator} {key} {direction}");
    }
}

#[test]
fn memory_is_that_of_the_process() {
    let server = start_with(2, &[&["memory"]], &["--latency-monitor-threshold", "4"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["memory.allocate"]), "0", "there is no limit");
    assert_eq!(client.call(&["CONFIG", "SET", "maxmemory", "1gb"]), "OK");
    let ratio: f64 = client.call(&["memory.allocate"]).parse().expect("a number");
    assert!(ratio > 0.0 && ratio < 1.0, "{ratio}");
}

#[test]
fn clocks_and_random_bytes_are_those_of_the_system() {
    let server = start_with(2, &[&["memory"]], &["--latency-monitor-threshold", "4"]);
    let mut client = Client::connect(server.port);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let before = before.expect("the clock is right").as_millis() as u64;
    let milliseconds: u64 = client.call(&["memory.clocks"]).parse().expect("a number");
    assert!((before..before + 60_000).contains(&milliseconds));
    let latest = client.call(&["LATENCY", "LATEST"]);
    assert!(latest.contains("(memory-event ") && latest.contains(" 5 5"), "{latest}");
}

//! Tests of the filters: the clients that they accept, and the arguments that they reject.

use weft_base::{DbIndex, ThreadIndex};
use weft_resp::{ArgRange, ParseOutcome, Parser, RequestLimits};

use super::*;
use crate::net::client::ClientFlags;

/// Parses the filter of `CLIENT LIST <words>`.
fn parse(words: &[&[u8]], skip_caller: bool) -> Result<ClientFilter, String> {
    let mut request = format!("*{}\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n", words.len() + 2).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    let mut ranges: Vec<ArgRange> = Vec::new();
    let limits = RequestLimits {
        max_bulk_len: 1 << 20,
        is_authenticated: true,
    };
    let parsed = Parser::default().parse(&request, &mut ranges, &limits);
    assert!(matches!(parsed, ParseOutcome::Request { .. }), "{parsed:?}");
    let scene = FilterContext {
        databases: 16,
        is_user: &|name| name == b"default",
    };
    ClientFilter::parse(Args::new(&request, &ranges), scene, skip_caller)
        .map_err(|error| String::from_utf8_lossy(&error.0).into_owned())
}

fn words(text: &str) -> Vec<&[u8]> {
    text.split(' ').map(str::as_bytes).collect()
}

/// Returns three clients, of which the first is the caller, 100.9 s after it connected.
fn clients() -> [Client; 3] {
    let mut caller = Client::new(ClientId::new(1), 1_000_900, ThreadIndex::new(0));
    caller.address = "127.0.0.1:50001".into();
    caller.local_address = "127.0.0.1:6379".into();
    caller.last_interaction_ms = 1_101_800;
    let mut named = Client::new(ClientId::new(2), 1_050_000, ThreadIndex::new(1));
    named.address = "[::1]:50002".into();
    named.local_address = "[::1]:6379".into();
    named.name = b"worker".to_vec();
    named.lib_name = b"lib".to_vec();
    named.lib_version = b"1.0".to_vec();
    named.db = DbIndex::new(3);
    named
        .flags
        .set(ClientFlags::NO_TOUCH.union(ClientFlags::NO_EVICT), true);
    let mut local = Client::new(ClientId::new(7), 1_101_000, ThreadIndex::new(0));
    local.address = "[/run/weft.sock:0]:0".into();
    local.local_address = "[/run/weft.sock:0]:0".into();
    local
        .flags
        .set(ClientFlags::UNIX_SOCKET.union(ClientFlags::CAPA_REDIRECT), true);
    [caller, named, local]
}

const NOW_MS: u64 = 1_101_800;

fn matching_clients(text: &str) -> Vec<u64> {
    let filter = parse(&words(text), false).unwrap_or_else(|error| panic!("{text}: {error}"));
    clients()
        .iter()
        .filter(|client| filter.matches(client, ClientId::new(1), NOW_MS))
        .map(|client| client.id.get())
        .collect()
}

#[test]
fn a_filter_matches_the_clients_that_it_describes() {
    let cases: &[(&str, &[u64])] = &[
        ("ID 1 7 9", &[1, 7]),
        ("ID 1 ID 7", &[1, 7]),
        ("id 2 NOT-ID 2", &[]),
        ("NOT-ID 1 2", &[7]),
        ("SKIPME yes", &[2, 7]),
        ("SKIPME YES SKIPME no", &[1, 2, 7]),
        ("MAXAGE 51", &[1, 2]),
        ("MAXAGE 101", &[1]),
        ("MAXAGE 102", &[]),
        ("IDLE 1", &[2]),
        ("IDLE 52", &[]),
        ("ADDR 127.0.0.1:50001", &[1]),
        ("NOT-ADDR 127.0.0.1:50001", &[2, 7]),
        ("LADDR [::1]:6379", &[2]),
        ("NOT-LADDR [::1]:6379", &[1, 7]),
        ("IP ::1", &[2]),
        ("IP 127.0.0.1", &[1]),
        ("NOT-IP 127.0.0.1", &[2, 7]),
        ("ADDR [/run/weft.sock:0]:0", &[7]),
        ("LADDR [/run/weft.sock:0]:0", &[7]),
        ("IP /run/weft.sock", &[]),
        ("IP /run/weft.sock:0", &[]),
        ("NAME worker", &[2]),
        ("NAME WORKER", &[]),
        ("NOT-NAME worker", &[1, 7]),
        ("NAME a NAME worker", &[2]),
        ("LIB-NAME lib LIB-VER 1.0", &[2]),
        ("NOT-LIB-NAME lib", &[1, 7]),
        ("NOT-LIB-VER 2", &[1, 2, 7]),
        ("DB 3", &[2]),
        ("NOT-DB 3", &[1, 7]),
        ("USER default", &[1, 2, 7]),
        ("NOT-USER default", &[]),
        ("TYPE normal", &[1, 2, 7]),
        ("TYPE master", &[]),
        ("NOT-TYPE pubsub", &[1, 2, 7]),
        ("NOT-TYPE NORMAL", &[]),
        ("FLAGS N", &[1]),
        ("FLAGS Te", &[2]),
        ("FLAGS TU", &[]),
        ("NOT-FLAGS T", &[1, 7]),
        ("NOT-FLAGS TU", &[1, 2, 7]),
        ("CAPA r", &[7]),
        ("NOT-CAPA r", &[1, 2]),
        ("DB 0 NOT-FLAGS U NOT-NAME worker", &[1]),
    ];
    for (text, expected) in cases {
        assert_eq!(matching_clients(text), *expected, "{text}");
    }
}

#[test]
fn a_missing_name_is_equal_to_no_name() {
    for (option, expected) in [("NAME", 0), ("NOT-NAME", 3), ("LIB-VER", 0), ("NOT-LIB-VER", 3)] {
        let filter = parse(&[option.as_bytes(), b""], false).expect("an empty value is a value");
        let count = clients()
            .iter()
            .filter(|client| filter.matches(client, ClientId::new(1), NOW_MS))
            .count();
        assert_eq!(count, expected, "{option}");
    }
}

#[test]
fn only_kill_skips_the_caller_by_default() {
    let filter = parse(&words("TYPE normal"), true).expect("a filter");
    let passing: Vec<bool> = clients()
        .iter()
        .map(|client| filter.matches(client, ClientId::new(1), NOW_MS))
        .collect();
    assert_eq!(passing, [false, true, true]);
}

#[test]
fn invalid_filters_are_refused_with_the_errors_of_valkey() {
    let cases = [
        ("ID", "ERR syntax error"),
        ("ID x", "ERR syntax error"),
        ("ID 1 x", "ERR syntax error"),
        ("ID 0", "ERR client-id should be greater than 0"),
        ("NOT-ID -3", "ERR client-id should be greater than 0"),
        ("NAME", "ERR syntax error"),
        ("WHAT ever", "ERR syntax error"),
        ("NOT-SKIPME yes", "ERR syntax error"),
        ("SKIPME maybe", "ERR syntax error"),
        ("TYPE x", "ERR Unknown client type 'x'"),
        ("NOT-USER x", "ERR No such user 'x'"),
        ("MAXAGE x", "ERR maxage is not an integer or out of range"),
        ("MAXAGE 0", "ERR maxage should be greater than 0"),
        ("IDLE -1", "ERR idle should be greater than 0"),
        ("DB 16", "ERR DB number should be between 0 and 15"),
        ("NOT-DB x", "ERR NOT-DB is not an integer or out of range"),
        ("FLAGS NQ", "ERR Unknown flags found in the provided filter: NQ"),
        ("NOT-FLAGS q", "ERR Unknown flags found in the NOT-FLAGS filter: q"),
        ("CAPA R", "ERR Unknown capa found in the provided filter: R"),
        ("NOT-CAPA x", "ERR Unknown capa found in the NOT-CAPA filter: x"),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(&words(text), false), Err(expected.to_owned()), "{text}");
    }
}

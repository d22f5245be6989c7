//! Tests replicas of older versions: they get the newest RDB version that they can read.

use std::io::{ErrorKind, Read};

use super::Server;
use super::serving::{AT_ONCE, Replica};
use crate::harness::client::Client;

/// Connects a replica that sends these commands and then requests a full sync.
fn asking(server: &Server, said: &[&[&str]]) -> Replica {
    let mut replica = Replica::connect(server.port);
    for words in said {
        replica.send(words);
        assert_eq!(replica.line(), "+OK");
    }
    replica.send(&["PSYNC", "?", "-1"]);
    replica
}

fn dump_of(server: &Server, said: &[&[&str]]) -> Vec<u8> {
    let mut replica = asking(server, said);
    assert!(replica.line().starts_with("+FULLRESYNC "));
    replica.take_dump()
}

const SUPPORTS_EOF: &[&str] = &["REPLCONF", "capa", "eof", "capa", "psync2"];
const IS_OLD: &[&str] = &["REPLCONF", "version", "8.255.255"];
const IS_NEW: &[&str] = &["REPLCONF", "version", "9.0.0"];

#[test]
fn older_replicas_get_dumps_that_they_can_read() {
    let server = Server::start(&AT_ONCE);
    let mut client = Client::connect(server.port);
    client.call(&["HSET", "hash", "field", "value"]);
    client.call(&["EXPIRE", "hash", "100000"]);
    let magic = |said: &[&[&str]]| String::from_utf8_lossy(&dump_of(&server, said)[..9]).into_owned();
    assert_eq!(magic(&[SUPPORTS_EOF, IS_OLD]), "REDIS0011");
    assert_eq!(magic(&[SUPPORTS_EOF, IS_NEW]), "VALKEY080");
    assert_eq!(magic(&[SUPPORTS_EOF]), "REDIS0011", "it has not said how old it is");
    assert_eq!(magic(&[IS_OLD]), "VALKEY080", "a file is of the newest version");
}

#[test]
fn older_replicas_get_functions_only_with_an_offset() {
    let server = Server::start(&AT_ONCE);
    let filter: &[&str] = &["REPLCONF", "rdb-filter-only", "functions"];
    for (version, magic) in [(IS_OLD, &b"REDIS0011"[..]), (IS_NEW, b"VALKEY080")] {
        let dump = dump_of(&server, &[SUPPORTS_EOF, version, filter]);
        assert!(dump.starts_with(magic));
        for note in ["repl-stream-db", "repl-id", "repl-offset"] {
            assert!(dump.windows(note.len()).any(|bytes| bytes == note.as_bytes()), "{note}");
        }
    }
}

#[test]
fn older_replicas_are_disconnected_on_unknown_values() {
    let server = Server::start(&AT_ONCE);
    let mut client = Client::connect(server.port);
    client.call(&["HSET", "hash", "field", "value", "other", "value"]);
    assert_eq!(
        client.call(&["HEXPIRE", "hash", "100000", "FIELDS", "1", "field"]),
        "(1)"
    );
    // More than one chunk, so that some bytes are already sent.
    client.call(&["DEBUG", "POPULATE", "20000", "key", "100"]);
    let mut replica = asking(&server, &[SUPPORTS_EOF, IS_OLD]);
    let mut sent = Vec::new();
    match replica.0.read_to_end(&mut sent) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    let text = String::from_utf8_lossy(&sent);
    let mark = text.split_once("$EOF:").map(|(_, behind)| behind[..40].to_owned());
    assert!(mark.is_none_or(|mark| !text.ends_with(&mark)), "it got a whole dump");
    assert_eq!(client.call(&["HTTL", "hash", "FIELDS", "1", "other"]), "(-1)");
    assert!(dump_of(&server, &[SUPPORTS_EOF, IS_NEW]).starts_with(b"VALKEY080"));
}

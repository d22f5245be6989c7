//! Tests of values that are too large for one command.

use super::super::dump_payload::parse_value;
use super::super::limits::EncodingLimits;
use super::super::strings::RdbReader;
use super::*;

/// Types of values in an RDB file.
const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const HASH: u8 = 4;

/// Returns the commands for a value with an expiry, of which each has at most so many bytes of elements.
fn commands(kind: u8, body: &[u8], max_bytes: usize) -> String {
    let mut reader = RdbReader::new(body);
    let value = parse_value(kind, &mut reader, &EncodingLimits::default()).expect("a value");
    let mut out = Vec::new();
    write_key_in_pieces(b"k", &value, 5, max_bytes, &mut out);
    String::from_utf8(out).expect("text")
}

/// Returns these commands in RESP.
fn written(lines: &[&str]) -> String {
    let mut out = Vec::new();
    for line in lines.iter().chain(&["PEXPIREAT k 5"]) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        write_command(words.into_iter(), &mut out);
    }
    String::from_utf8(out).expect("text")
}

#[test]
fn a_large_string_is_appended_in_pieces() {
    for (max_bytes, lines) in [
        (3, &["SET k abc", "APPEND k def", "APPEND k g"][..]),
        (6, &["SET k abcdef", "APPEND k g"]),
        (7, &["SET k abcdefg"]),
        (BYTES_PER_COMMAND, &["SET k abcdefg"]),
    ] {
        assert_eq!(
            commands(STRING, b"\x07abcdefg", max_bytes),
            written(lines),
            "{max_bytes}"
        );
    }
    assert_eq!(commands(STRING, b"\x00", 3), written(&["SET k "]));
}

#[test]
fn a_command_ends_before_its_elements_become_too_large() {
    let list = b"\x04\x01a\x02bb\x0acccccccccc\x01d";
    for (max_bytes, lines) in [
        (1, &["RPUSH k a", "RPUSH k bb", "RPUSH k cccccccccc", "RPUSH k d"][..]),
        (20, &["RPUSH k a bb", "RPUSH k cccccccccc d"]),
        (BYTES_PER_COMMAND, &["RPUSH k a bb cccccccccc d"]),
    ] {
        assert_eq!(commands(LIST, list, max_bytes), written(lines), "{max_bytes}");
    }
    let set = commands(SET, b"\x02\x03aaa\x03bbb", 1);
    assert_eq!(set.matches("SADD").count(), 2, "{set}");
    let hash = commands(HASH, b"\x02\x02f1\x02v1\x02f2\x02v2", 1);
    assert_eq!(hash.matches("*4\r\n$5\r\nHMSET").count(), 2, "{hash}");
}

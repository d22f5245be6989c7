//! Tests of the escaping of text from the server.

use super::printable;

#[test]
fn printable_text_stays() {
    assert_eq!(printable("user:1 größe 日本".as_bytes(), 100), "user:1 größe 日本");
}

#[test]
fn escape_sequences_are_shown_escaped() {
    assert_eq!(printable(b"\x1b[2J\x07", 100), "\\u{1b}[2J\\u{7}");
    assert_eq!(printable("\u{9b}2J".as_bytes(), 100), "\\u{9b}2J");
    assert_eq!(printable("a\u{202e}b".as_bytes(), 100), "a\\u{202e}b");
    assert_eq!(printable(b"a\r\n\tb\\", 100), "a\\r\\n\\tb\\\\");
}

#[test]
fn invalid_utf8_is_shown_as_bytes() {
    assert_eq!(printable(b"a\xff\xc3", 100), "a\\xff\\xc3");
}

#[test]
fn long_text_is_cut() {
    assert_eq!(printable(&[b'a'; 1000], 5), "aaaaa…");
    assert!(printable(&[0xff; 1000], 5).chars().count() <= 9);
}

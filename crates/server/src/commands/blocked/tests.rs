//! Tests that timeouts are parsed as in Valkey.

use super::{parse_deadline_ms, parse_end_ms};

const NOW_MS: u64 = 1_700_000_000_000;

#[test]
fn timeouts_in_seconds_are_rounded_up_to_milliseconds() {
    let cases: [(&[u8], Option<u64>); 9] = [
        (b"0", None),
        (b"-0.0001", None),
        (b"0.0001", Some(1)),
        (b"0.1", Some(100)),
        (b"1.0001", Some(1001)),
        (b"1", Some(1000)),
        (b"+2", Some(2000)),
        (b"1e3", Some(1_000_000)),
        (b"0x10", Some(16000)),
    ];
    for (text, wait_ms) in cases {
        let expected = Ok(wait_ms.map(|wait_ms| NOW_MS + wait_ms));
        assert_eq!(parse_deadline_ms(text, NOW_MS), expected, "{}", text.escape_ascii());
    }
}

#[test]
fn invalid_timeouts_have_distinct_errors() {
    let cases: [(&[u8], &str); 10] = [
        (b"", "ERR timeout is not a float or out of range"),
        (b"x", "ERR timeout is not a float or out of range"),
        (b" 1", "ERR timeout is not a float or out of range"),
        (b"nan", "ERR timeout is not a float or out of range"),
        (b"-1", "ERR timeout is negative"),
        (b"-inf", "ERR timeout is negative"),
        (b"-1e300", "ERR timeout is negative"),
        (b"inf", "ERR timeout is out of range"),
        (b"1e300", "ERR timeout is out of range"),
        (b"9223372036854775", "ERR timeout is out of range"),
    ];
    for (text, error) in cases {
        let refused = parse_deadline_ms(text, NOW_MS).map_err(|error| String::from_utf8_lossy(&error.0).into_owned());
        assert_eq!(refused, Err(error.to_owned()), "{}", text.escape_ascii());
    }
    assert!(parse_end_ms(-1, NOW_MS).is_err() && parse_end_ms(i64::MAX, NOW_MS).is_err());
    assert_eq!(parse_end_ms(5, NOW_MS), Ok(Some(NOW_MS + 5)));
}

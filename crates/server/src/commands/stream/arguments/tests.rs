//! Tests of the forms of IDs that Valkey accepts and rejects.

use super::*;

#[test]
fn ids_are_read_as_valkey_reads_them() {
    let max = u64::MAX;
    let good: &[(&[u8], u64, u64)] = &[
        (b"5", 5, 7),
        (b"5-3", 5, 3),
        (b"0-0", 0, 0),
        (b"18446744073709551615-18446744073709551615", max, max),
        (b" 5-3", 5, 3),
        (b"+5-\t3", 5, 3),
        (b"007-03", 7, 3),
        // A negative number is subtracted from 2^64, unless it is a plain decimal.
        (b"5--03", 5, max - 2),
        (b"5-3\0rest", 5, 3),
        (b"5\0-3", 5, 7),
    ];
    for (word, ms, seq) in good {
        assert_eq!(parse_exact_id(word, 7), Ok(StreamId::new(*ms, *seq)), "{word:?}");
    }
    let bad: &[&[u8]] = &[
        b"",
        b"-",
        b"+",
        b"-5",
        b"5-",
        b"5-x",
        b"x-5",
        b"5-3-1",
        b"5--3",
        b"5 ",
        b"5- ",
        b"5-*",
        b"*",
        b"$",
        b">",
        b"18446744073709551616",
        b"1.5",
        &[b'0'; 128],
    ];
    for word in bad {
        assert_eq!(parse_exact_id(word, 7), Err(INVALID_ID), "{word:?}");
    }
    assert_eq!(parse_exact_id(&[b'0'; 127], 7), Ok(StreamId::new(0, 7)));
}

#[test]
fn the_stream_completes_a_partial_id() {
    let id = StreamId::new(5, 0);
    assert_eq!(parse_partial_id(b"5-*"), Ok(PartialStreamId { id, is_open: true }));
    assert_eq!(parse_partial_id(b"5-0"), Ok(PartialStreamId { id, is_open: false }));
    assert_eq!(parse_partial_id(b"5-**"), Err(INVALID_ID));
}

#[test]
fn ranges_may_exclude_their_ends() {
    let (min, max) = (StreamId::MIN, StreamId::MAX);
    assert_eq!(parse_range_start(b"-"), Ok(min));
    assert_eq!(parse_range_end(b"+"), Ok(max));
    assert_eq!(parse_range_start(b"5"), Ok(StreamId::new(5, 0)));
    assert_eq!(parse_range_end(b"5"), Ok(StreamId::new(5, u64::MAX)));
    assert_eq!(parse_range_start(b"(5"), Ok(StreamId::new(5, 1)));
    assert_eq!(parse_range_end(b"(5"), Ok(StreamId::new(5, u64::MAX - 1)));
    assert_eq!(parse_range_end(b"(5-0"), Ok(StreamId::new(4, u64::MAX)));
    assert_eq!(parse_range_start(b"(4-18446744073709551615"), Ok(StreamId::new(5, 0)));
    assert!(parse_range_start(b"(18446744073709551615-18446744073709551615").is_err());
    assert!(parse_range_end(b"(0-0").is_err());
    for word in [&b"("[..], b"(-", b"(+", b"((5"] {
        assert_eq!(parse_range_start(word), Err(INVALID_ID));
        assert_eq!(parse_range_end(word), Err(INVALID_ID));
    }
}

#[test]
fn ids_are_written_in_full() {
    let mut text = [0; 41];
    assert_eq!(format_id(StreamId::new(0, 0), &mut text), b"0-0");
    assert_eq!(
        format_id(StreamId::MAX, &mut text),
        b"18446744073709551615-18446744073709551615"
    );
}

//! Tests of the forms of IDs that Valkey accepts and rejects, and of estimated times.

use weft_values::stream::BlockLimits;

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

#[test]
fn deleted_entries_that_a_range_walks_over_cost_time() {
    let mut stream = Stream::new();
    let limits = BlockLimits {
        bytes: 4096,
        entries: 100,
    };
    for ms in 1..=50_000 {
        let pairs = [(&b"field"[..], &b"value"[..])];
        let added = stream.append(StreamId::new(ms, 0), pairs.into_iter(), limits);
        added.expect("the IDs ascend");
    }
    let cost_ns = |stream: &Stream, is_reverse| range_cost_ns(stream, StreamId::MIN, StreamId::MAX, 500, is_reverse);
    for is_reverse in [false, true] {
        let cost_ns = cost_ns(&stream, is_reverse);
        assert!((1000..50_000).contains(&cost_ns), "{cost_ns} ns");
    }
    for ms in (1..=50_000).filter(|ms| ms % 100 != 0) {
        assert!(stream.delete(StreamId::new(ms, 0)));
    }
    for is_reverse in [false, true] {
        let cost_ns = cost_ns(&stream, is_reverse);
        assert!(cost_ns > 300_000, "{cost_ns} ns");
    }
    let last = stream.last_id();
    assert_eq!(
        range_cost_ns(
            &stream,
            last.next().expect("not the largest"),
            StreamId::MAX,
            500,
            false
        ),
        0
    );
}

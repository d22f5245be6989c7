//! Tests of claimed sizes: of compressed values of each type, and of damaged payloads.

use super::*;
use crate::strings::{write_length, write_string};

const LONG_BYTES: usize = 100_000;
const NO_LIMIT: usize = usize::MAX;

/// Returns a payload of this type with this number of items (none for types that do not count them). `before` precedes
/// the strings of each item and `after` follows them; each string is long and compressed.
fn payload(kind: u8, items: Option<usize>, before: &[u8], strings: usize, after: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    if let Some(items) = items {
        write_length(&mut out, items);
    }
    for _ in 0..items.unwrap_or(1) {
        out.extend(before);
        for _ in 0..strings {
            write_string(&mut out, &[b'x'; LONG_BYTES], true);
        }
        out.extend(after);
    }
    out
}

#[test]
fn compressed_strings_count_with_their_uncompressed_lengths() {
    let score = 1.5_f64.to_le_bytes();
    for (kind, counted, before, strings, after) in [
        (super::super::TYPE_STRING, false, &b""[..], 1, &b""[..]),
        (lists::TYPE_LIST, true, b"", 1, b""),
        (lists::TYPE_ZIPLIST, false, b"", 1, b""),
        (lists::TYPE_QUICKLIST, true, b"", 1, b""),
        (lists::TYPE_QUICKLIST_2, true, b"\x02", 1, b""),
        (hashes::TYPE_HASH, true, b"", 2, b""),
        (hashes::TYPE_EXPIRING, true, b"", 2, &score),
        (hashes::TYPE_LISTPACK, false, b"", 1, b""),
        (sets::TYPE_SET, true, b"", 1, b""),
        (sets::TYPE_INTSET, false, b"", 1, b""),
        (sorted_sets::TYPE_DECIMAL, true, b"", 1, b"\x031.5"),
        (sorted_sets::TYPE_DECIMAL, true, b"", 1, b"\xfe"),
        (sorted_sets::TYPE_BINARY, true, b"", 1, &score),
        (streams::TYPE_THIRD, true, b"", 2, b""),
    ] {
        let items = counted.then_some(3);
        let payload = payload(kind, items, before, strings, after);
        let actual = items.unwrap_or(1) * strings * LONG_BYTES;
        assert!(payload.len() * 50 < actual, "type {kind} is compressed");
        let claimed = claimed_bytes(&payload, NO_LIMIT);
        assert!((actual..actual + 200).contains(&claimed), "type {kind}: {claimed}");
        let limited = claimed_bytes(&payload, LONG_BYTES / 2);
        assert!(limited > LONG_BYTES / 2, "type {kind}: {limited}");
    }
}

#[test]
fn plain_strings_and_what_follows_them_count_about_once() {
    let mut set = vec![sets::TYPE_SET];
    write_length(&mut set, 100);
    (0..100).for_each(|member: u32| write_string(&mut set, format!("member {member}").as_bytes(), true));
    set.extend([0; 1000]);
    let claimed = claimed_bytes(&set, NO_LIMIT);
    let strings = 100 * STRING_OVERHEAD_BYTES;
    assert!(
        (set.len()..=set.len() + strings).contains(&claimed),
        "{claimed} of {}",
        set.len()
    );
}

/// However many strings there are, no more of them are visited than the limit allows.
#[test]
fn a_limit_bounds_the_number_of_strings_that_are_visited() {
    let mut list = vec![lists::TYPE_LIST];
    write_length(&mut list, 1000);
    list.resize(list.len() + 1000, 0);
    let mut visited = 0;
    let mut reader = RdbReader::new(&list);
    let walked = visit_strings(&mut reader, |_| {
        visited += 1;
        true
    });
    assert_eq!((walked, visited), (Some(()), 1000));
    assert_eq!(claimed_bytes(&list, list.len() / 2), list.len(), "no string is visited");
    let limit = list.len() + 10;
    assert!(claimed_bytes(&list, limit) > limit);
}

#[test]
fn damaged_payloads_count_as_they_are() {
    let cases: [&[u8]; 7] = [
        b"",
        b"\xff",
        b"\x07abc",
        b"\x00\xff",
        b"\x00\xc3\x05",
        b"\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x02\x7f\xff\x01a",
    ];
    for damaged in cases {
        let claimed = claimed_bytes(damaged, NO_LIMIT);
        assert!(
            claimed <= damaged.len() + STRING_OVERHEAD_BYTES,
            "{damaged:?}: {claimed}"
        );
    }
    let endless = b"\x00\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00";
    assert_eq!(claimed_bytes(endless, NO_LIMIT), usize::MAX);
}

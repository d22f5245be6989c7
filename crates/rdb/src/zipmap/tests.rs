//! Tests of valid and damaged zipmaps.

use super::*;

/// A field and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// A field of the smallest length that takes the long form.
const LONG: &[u8] = &[b'x'; 254];

fn pairs(bytes: &[u8]) -> Option<Vec<Pair<'_>>> {
    let map = Zipmap::validate(bytes)?;
    let pairs: Vec<_> = map.iter().collect();
    assert_eq!(pairs.len(), map.len());
    Some(pairs)
}

#[test]
fn fields_values_and_unused_bytes() {
    let cases: &[(&[u8], &[Pair<'_>])] = &[
        (b"\x01\x03foo\x03\x00bar\xff", &[(b"foo", b"bar")]),
        (b"\x01\x00\x00\x00\xff", &[(b"", b"")]),
        (b"\x02\x01a\x01\x02b..\x01c\x01\x00d\xff", &[(b"a", b"b"), (b"c", b"d")]),
        (b"\xfe\x01a\x02\x00bc\xff", &[(b"a", b"bc")]),
        (
            &[b"\x01\xfe\xfe\0\0\0", LONG, b"\x02\x00bc\xff"].concat(),
            &[(LONG, b"bc")],
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(pairs(bytes).as_deref(), Some(*expected), "{bytes:?}");
    }
}

#[test]
fn damaged_zipmaps_are_refused() {
    let cases: &[(&str, &[u8])] = &[
        ("nothing", b""),
        ("only an end", b"\xff"),
        ("no fields", b"\x00\xff"),
        ("another number of fields", b"\x02\x03foo\x03\x00bar\xff"),
        ("no end", b"\x01\x03foo\x03\x00bar"),
        ("another end", b"\x01\x03foo\x03\x00bar\xfe"),
        ("an end in between", b"\x01\x03foo\x03\x00bar\xff\x00\xff"),
        ("a field without value", b"\x01\x03foo\xff"),
        ("a field that is too long", b"\x01\x0afoo\x03\x00bar\xff"),
        ("a value that is too long", b"\x01\x03foo\x05\x00bar\xff"),
        ("unused bytes that are too many", b"\x01\x03foo\x03\x01bar\xff"),
        ("half a length", b"\x01\xfe\x00\x00\xff"),
        (
            "a long form of a short field",
            b"\x01\xfe\x03\x00\x00\x00foo\x03\x00bar\xff",
        ),
        (
            "a long form of a short value",
            b"\x01\x03foo\xfe\x03\x00\x00\x00\x00bar\xff",
        ),
        ("a long form of no value", b"\x01\x03foo\xfe\x00\x00\x00\x00\x00\xff"),
    ];
    for (what, bytes) in cases {
        assert_eq!(pairs(bytes), None, "{what}");
    }
}

#[test]
fn mutated_zipmaps_do_not_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fields = b"\x03\x03foo\x03\x02bar..\x01a\xfe\xfe\x00\x00\x00\x00";
    let sound = [&fields[..], LONG, b"\x00\x00\x00\xff"].concat();
    assert!(pairs(&sound).is_some());
    for _ in 0..20_000 {
        let mut bytes = sound.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        // A zipmap that passes the check is read to its end.
        let _ = pairs(&bytes);
    }
}

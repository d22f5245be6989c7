//! Tests of payloads against those of Valkey, and damaged ones.

use super::*;

use weft_table::Blob;

/// Values, and their payloads as Valkey 9.1.2 creates them.
const DUMPS: &[(&[u8], &[u8])] = &[
    (b"1", b"\x00\xc0\x01P\x00\xe9R.'OSv\x08"),
    (b"128", b"\x00\xc1\x80\x00P\x00$Pz$\x8e\x9d,\x91"),
    (b"32768", b"\x00\xc2\x00\x80\x00\x00P\x00\x8a\xf2\xe7|K\xef\xce\xe4"),
    (b"2147483648", b"\x00\n2147483648P\x00(\x9b\xe02\xd2O\x11\x1a"),
    (b"abc", b"\x00\x03abcP\x00\x16\x86\xf9\xac\xdf \xc5\x16"),
    (
        b"aaaaaaaaaaaaaaaaaaaaa",
        b"\x00\xc3\x06\x15\x01aa\xe0\n\x00P\x002&z\xf9\x99\x13X\x9c",
    ),
];

/// Loads a payload under the default limits.
fn load_by_default(payload: &[u8]) -> Option<RestoredValue<'_>> {
    parse_payload(payload, &EncodingLimits::default())
}

/// The string of a payload.
fn string_in(payload: &[u8]) -> Option<ParsedString<'_>> {
    load_by_default(payload).map(|restored| match restored {
        RestoredValue::String(string) => string,
        other => panic!("not a string: {other:?}"),
    })
}

fn with_footer(body: &[u8], version: u16) -> Vec<u8> {
    let mut payload = body.to_vec();
    append_footer(&mut payload, version);
    payload
}

#[test]
fn payloads_are_those_of_valkey() {
    for (string, payload) in DUMPS {
        assert_eq!(dump(ValueRef::Bytes(string), true), *payload, "{string:?}");
        assert_eq!(
            dump(ValueRef::Blob(&Blob::from_slice(string)), true),
            *payload,
            "{string:?}"
        );
        let number: Option<i64> = std::str::from_utf8(string).ok().and_then(|text| text.parse().ok());
        if let Some(number) = number {
            assert_eq!(dump(ValueRef::Int(number), true), *payload, "{number}");
        }
        assert!(is_valid(payload, false));
        assert!(load_by_default(payload).is_some());
    }
}

#[test]
fn foreign_versions_need_the_relaxed_check() {
    let cases = [
        (0, false, false),
        (1, true, true),
        (11, true, true),
        (12, false, true),
        (79, false, true),
        (80, true, true),
        (81, false, true),
        (u16::MAX, false, true),
    ];
    for (version, strict, relaxed) in cases {
        let payload = with_footer(b"\x00\x05hello", version);
        assert_eq!(is_valid(&payload, false), strict, "version {version}");
        assert_eq!(is_valid(&payload, true), relaxed, "version {version}, relaxed");
    }
}

#[test]
fn a_changed_or_truncated_payload_is_not_valid() {
    let payload = with_footer(b"\x00\x05hello", VERSION);
    for at in 0..payload.len() {
        assert!(!is_valid(&payload[..at], true), "cut at {at}");
        for bit in 0..8 {
            let mut changed = payload.clone();
            changed[at] ^= 1 << bit;
            assert!(!is_valid(&changed, true), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn a_value_may_continue_into_the_footer() {
    assert_eq!(
        string_in(&with_footer(b"\x00\x05hell", VERSION)),
        Some(ParsedString::Bytes(b"hellP"))
    );
    assert_eq!(
        string_in(&with_footer(b"\x00\x05hello and more", VERSION)),
        Some(ParsedString::Bytes(b"hello"))
    );
    for body in [&b""[..], b"\x07\x05hello", b"\xff", b"\x00\x80\x7f\xff\xff\xff"] {
        assert_eq!(string_in(&with_footer(body, VERSION)), None, "{body:?}");
    }
}

#[test]
fn mutated_payloads_with_a_good_checksum_never_panic() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let limits = EncodingLimits::default();
    let mut loaded = 0;
    for _ in 0..50_000 {
        let (_, payload) = DUMPS[random.usize(..DUMPS.len())];
        let mut body = payload[..payload.len() - FOOTER_BYTES].to_vec();
        for _ in 0..random.usize(1..4) {
            match random.u8(..3) {
                0 if !body.is_empty() => {
                    let at = random.usize(..body.len());
                    body[at] = random.u8(..);
                }
                1 => body.insert(random.usize(..=body.len()), random.u8(..)),
                _ => body.truncate(random.usize(..=body.len())),
            }
        }
        let payload = with_footer(&body, VERSION);
        assert!(is_valid(&payload, false), "seed {seed}: {body:?}");
        loaded += u32::from(parse_payload(&payload, &limits).is_some());
    }
    assert!(loaded > 1000, "seed {seed}: hardly anything was accepted");
}

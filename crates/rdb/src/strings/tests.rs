//! Tests of strings and lengths in the encoding of RDB files, and of damaged ones.

use super::*;

fn write_to_vec(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_string(&mut out, bytes, true);
    out
}

#[test]
fn strings_take_their_shortest_form() {
    let cases: &[(&[u8], &[u8])] = &[
        (b"", b"\x00"),
        (b"abc", b"\x03abc"),
        (b"1", b"\xc0\x01"),
        (b"-128", b"\xc0\x80"),
        (b"128", b"\xc1\x80\x00"),
        (b"-129", b"\xc1\x7f\xff"),
        (b"32768", b"\xc2\x00\x80\x00\x00"),
        (b"2147483647", b"\xc2\xff\xff\xff\x7f"),
        (b"2147483648", b"\x0a2147483648"),
        (b"007", b"\x03007"),
        (b"aaaaaaaaaaaaaaaaaaaa", b"\x14aaaaaaaaaaaaaaaaaaaa"),
        (b"aaaaaaaaaaaaaaaaaaaaa", b"\xc3\x06\x15\x01aa\xe0\x0a\x00"),
    ];
    for (string, bytes) in cases {
        assert_eq!(write_to_vec(string), *bytes, "{string:?}");
    }
    let mut plain = Vec::new();
    write_string(&mut plain, &[b'a'; 100], false);
    assert_eq!(plain[..3], *b"\x40\x64a");
}

#[test]
fn every_string_is_read_back() {
    for length in [0usize, 1, 63, 64, 100, 16383, 16384, 70_000] {
        let string: Vec<u8> = (0..length).map(|index| (index * index % 251) as u8).collect();
        for compress in [false, true] {
            let mut out = Vec::new();
            write_string(&mut out, &string, compress);
            out.extend_from_slice(b"rest");
            let mut reader = RdbReader::new(&out);
            let read = match reader.string() {
                Some(ParsedString::Bytes(bytes)) => bytes.to_vec(),
                Some(ParsedString::Decompressed(bytes)) => bytes,
                other => panic!("{length} bytes were read as {other:?}"),
            };
            assert_eq!(read, string);
            assert_eq!(reader.bytes(4), Some(&b"rest"[..]));
        }
    }
    for number in [0, -1, 127, 128, -32768, 40_000, -5_000_000, i64::MAX, i64::MIN] {
        let mut out = Vec::new();
        write_integer(&mut out, number);
        let digits = number.to_string();
        let read = RdbReader::new(&out).string();
        assert!(
            read == Some(ParsedString::Int(number)) || read == Some(ParsedString::Bytes(digits.as_bytes())),
            "{number} was read as {read:?}"
        );
    }
}

#[test]
fn lengths_have_four_widths() {
    let cases: &[(&[u8], Option<usize>)] = &[
        (b"\x3f", Some(63)),
        (b"\x40\x05", Some(5)),
        (b"\x7f\xff", Some(16383)),
        (b"\x80\x00\x01\x00\x00", Some(65536)),
        (b"\x81\x00\x00\x00\x01\x00\x00\x00\x00", Some(1 << 32)),
        (b"\xc5", Some(5)),
        (b"\x82\x00\x00\x00\x05", None),
        (b"\x40", None),
        (b"\x80\x00\x00", None),
        (b"", None),
    ];
    for (bytes, length) in cases {
        assert_eq!(RdbReader::new(bytes).length(), *length, "{bytes:?}");
    }
    let mut out = Vec::new();
    write_length(&mut out, 1 << 33);
    assert_eq!(RdbReader::new(&out).length(), Some(1 << 33));
}

#[test]
fn invalid_strings_are_refused() {
    let cases: &[&[u8]] = &[
        b"",
        b"\x05hell",
        b"\xc0",
        b"\xc1\x00",
        b"\xc2\x00\x00\x00",
        b"\xc4\x00",
        b"\xff",
        b"\x82\x00\x00\x00\x00",
        b"\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xc3\x03\x03\x01ab",
        b"\xc3\xff\x00",
        b"\xc3\x05",
    ];
    for bytes in cases {
        assert_eq!(RdbReader::new(bytes).string(), None, "{bytes:?}");
    }
}

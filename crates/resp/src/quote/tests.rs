//! Tests of splitting lines, with results recorded from Valkey, and of quoting as its inverse.

use super::*;

/// Decodes a text in which `%HH` stands for a byte and `-` for the empty text.
fn decode(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

#[test]
fn lines_split_as_in_valkey() {
    let mut count = 0;
    for case in include_str!("data/lines.txt").lines() {
        let mut fields = case.split(' ');
        let line = decode(fields.next().unwrap());
        let fields: Vec<&str> = fields.collect();
        let expected = (fields != ["!"]).then(|| {
            fields
                .iter()
                .map(|field| decode(field.strip_prefix('=').unwrap()))
                .collect::<Vec<_>>()
        });
        assert_eq!(split_arguments(&line), expected, "{}", line.escape_ascii());
        count += 1;
    }
    assert!(count > 1000);
}

#[test]
fn plain_lines_split_the_same_in_place() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let line: Vec<u8> = (0..random.usize(0..12))
            .map(|_| *random.choice(b"ab \t\r\n\x0b\x0c\\\"\xff\0").unwrap())
            .collect();
        let mut pieces = Vec::new();
        let plain = split_plain_arguments(&line, |start, len| pieces.push(line[start..][..len].to_vec()));
        if plain == PlainSplit::Yes {
            assert_eq!(split_arguments(&line), Some(pieces), "{}", line.escape_ascii());
        } else {
            assert!(pieces.is_empty());
        }
    }
}

#[test]
fn quoted_bytes_are_printable() {
    let cases: [(&[u8], &str); 6] = [
        (b"", r#""""#),
        (b"abc", r#""abc""#),
        (b"a b", r#""a b""#),
        (b"\\ \" '", r#""\\ \" '""#),
        (b"\n\r\t\x07\x08", r#""\n\r\t\a\b""#),
        (b"\0\x0b\x1f\x7f\x80\xff", r#""\x00\x0b\x1f\x7f\x80\xff""#),
    ];
    for (bytes, expected) in cases {
        let mut out = b"> ".to_vec();
        append_quoted(&mut out, bytes);
        assert_eq!(String::from_utf8(out).unwrap(), format!("> {expected}"));
    }
}

#[test]
fn quoted_bytes_survive_the_round_trip() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..5000 {
        let args: Vec<Vec<u8>> = (0..random.usize(0..4))
            .map(|_| (0..random.usize(0..20)).map(|_| random.u8(..)).collect())
            .collect();
        let mut line = Vec::new();
        for arg in &args {
            append_quoted(&mut line, arg);
            line.push(b' ');
        }
        assert_eq!(split_arguments(&line), Some(args));
    }
}

#[test]
fn only_plain_words_need_no_quotes() {
    for plain in ["abc", "a'b", "127.0.0.1:6379", "~!@#"] {
        assert!(!needs_quotes(plain.as_bytes()), "{plain}");
    }
    for other in ["a b", "a\"b", "a\\b", "a\tb", "\u{e9}", "\0", "\x7f", "\n"] {
        assert!(needs_quotes(other.as_bytes()), "{other:?}");
    }
}

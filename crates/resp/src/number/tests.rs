//! Tests of parsing and printing numbers, with results recorded from Valkey.

use super::*;

#[test]
fn integers_parse_only_in_the_form_they_are_printed() {
    let valid = [
        "0",
        "1",
        "-1",
        "10",
        "9223372036854775807",
        "-9223372036854775808",
        "1000000000000000000",
    ];
    for text in valid {
        assert_eq!(parse_i64(text.as_bytes()), Some(text.parse().unwrap()), "{text}");
    }
    let invalid = [
        "",
        "-",
        "+",
        "+1",
        "-0",
        "00",
        "01",
        "-01",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "a",
        "1a",
        "0x1",
        "1\0",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "99999999999999999999",
        "100000000000000000000",
    ];
    for text in invalid {
        assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn random_integers_survive_the_round_trip() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let number = random.i64(..) >> random.u32(0..64);
        let mut buffer = [0; 20];
        let text = format_i64(number, &mut buffer);
        assert_eq!(text, number.to_string());
        assert_eq!(parse_i64(text.as_bytes()), Some(number));
        let mut out = b"x".to_vec();
        append_i64(number, &mut out);
        assert_eq!(out, format!("x{number}").as_bytes());
    }
}

#[test]
fn unsigned_integers_parse_like_strtoull() {
    let cases = [
        ("0", Some(0)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("-1", None),
        ("-0", Some(0)),
        ("-01", Some(u64::MAX)),
        ("01", Some(1)),
        ("+7", Some(7)),
        (" 7", Some(7)),
        (" -7", Some(7u64.wrapping_neg())),
        ("7 ", None),
        ("7\0x", Some(7)),
        ("-7\0", None),
        ("", None),
        ("-", None),
        ("x", None),
        ("\0", None),
        (" \0 ", None),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_u64(text.as_bytes()), expected, "{text:?}");
    }
}

/// Text, expected result of `parse_f64`, expected result of `parse_score_bound`.
const DOUBLES: &[(&str, Option<f64>, Option<f64>)] = &[
    ("1", Some(1.0), Some(1.0)),
    ("+1", Some(1.0), Some(1.0)),
    ("-1", Some(-1.0), Some(-1.0)),
    (".5", Some(0.5), Some(0.5)),
    ("5.", Some(5.0), Some(5.0)),
    ("-.5", Some(-0.5), Some(-0.5)),
    ("1E+5", Some(1e5), Some(1e5)),
    ("00", Some(0.0), Some(0.0)),
    ("-0.0", Some(0.0), Some(0.0)),
    ("1e0000000000005", Some(1e5), Some(1e5)),
    ("0e99999999999999999999", Some(0.0), Some(0.0)),
    ("inf", Some(f64::INFINITY), Some(f64::INFINITY)),
    ("-INF", Some(f64::NEG_INFINITY), Some(f64::NEG_INFINITY)),
    ("+Infinity", Some(f64::INFINITY), Some(f64::INFINITY)),
    ("5e-324", Some(5e-324), Some(5e-324)),
    ("1e400", None, Some(f64::INFINITY)),
    ("-1e400", None, Some(f64::NEG_INFINITY)),
    ("1.7976931348623159e308", None, Some(f64::INFINITY)),
    ("1e99999999999999999999", None, Some(f64::INFINITY)),
    ("2e-324", None, Some(0.0)),
    ("-1e-400", None, Some(0.0)),
    ("1e-99999999999999999999", None, Some(0.0)),
    ("", None, Some(0.0)),
    ("\0", None, Some(0.0)),
    ("1\0", None, Some(1.0)),
    ("1\x002", None, Some(1.0)),
    ("1e", None, None),
    ("1e+", None, None),
    ("infinit", None, None),
    ("infx", None, None),
    ("nan", None, None),
    ("-NaN", None, None),
    ("nan(1)", None, None),
    ("0x10", None, None),
    ("0x1p3", None, None),
    (".", None, None),
    ("+", None, None),
    ("-", None, None),
    ("e5", None, None),
    ("+-1", None, None),
    ("1_0", None, None),
    ("1d5", None, None),
    ("1f", None, None),
    ("1.2.3", None, None),
    (" 1", None, None),
    ("1 ", None, None),
    ("\t1", None, None),
    ("1\n", None, None),
    ("\u{e9}", None, None),
];

#[test]
fn scores_and_range_ends_parse() {
    for &(text, score, bound) in DOUBLES {
        assert_eq!(parse_f64(text.as_bytes()), score, "{text:?}");
        assert_eq!(parse_score_bound(text.as_bytes()), bound, "{text:?}");
    }
    assert_eq!(parse_f64(b"\xff1"), None);
}

#[test]
fn doubles_print_as_in_valkey() {
    let mut count = 0;
    for line in include_str!("data/doubles.txt").lines() {
        let (bits, expected) = line.split_once(' ').unwrap();
        let number = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        let mut text = Vec::new();
        format_f64(number, &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), expected, "{bits}");
        assert_eq!(parse_f64(expected.as_bytes()), Some(number), "{expected}");
        count += 1;
    }
    assert!(count > 2000);
}

#[test]
fn special_doubles_print_as_words() {
    let cases = [
        (0.0, "0"),
        (-0.0, "-0"),
        (f64::NAN, "nan"),
        (-f64::NAN, "nan"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ];
    for (number, expected) in cases {
        let mut text = Vec::new();
        format_f64(number, &mut text);
        assert_eq!(text, expected.as_bytes());
    }
}

#[test]
fn random_doubles_read_back_as_themselves() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = Vec::new();
    for _ in 0..200_000 {
        let number = f64::from_bits(random.u64(..));
        if number.is_nan() {
            continue;
        }
        text.clear();
        format_f64(number, &mut text);
        assert!(text.len() <= F64_TEXT_MAX_LEN);
        assert_eq!(parse_f64(&text), Some(number), "{number:e}");
    }
}

#[test]
fn fixed_point_numbers_are_rounded() {
    let cases = [
        (0.0, 4, "0.0000"),
        (1.0, 4, "1.0000"),
        (166274.15156960, 4, "166274.1516"),
        (0.775, 4, "0.7750"),
        (-0.00005, 3, "0.000"),
        (-1.25, 1, "-1.2"),
        (1.35, 2, "1.35"),
        (0.05, 1, "0.0"),
        (0.15, 1, "0.2"),
        (-0.0005, 4, "-0.0005"),
        (12.0, 17, "12.00000000000000000"),
    ];
    for (number, digits, expected) in cases {
        let mut text = Vec::new();
        format_fixed(number, digits, &mut text);
        assert_eq!(String::from_utf8(text).unwrap(), expected, "{number}");
    }
}

#[test]
fn memory_amounts_accept_units() {
    let cases = [
        ("", Some(0)),
        ("0", Some(0)),
        ("010", Some(10)),
        ("1b", Some(1)),
        ("1K", Some(1000)),
        ("1kb", Some(1024)),
        ("1KB", Some(1024)),
        ("3m", Some(3_000_000)),
        ("3mB", Some(3 << 20)),
        ("2g", Some(2_000_000_000)),
        ("1Gb", Some(1 << 30)),
        ("mb", Some(0)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("99999999999999999999999", None),
        ("20000000000gb", Some(3_028_092_406_290_448_384)),
        ("1t", None),
        ("1tb", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1 mb", None),
        ("1.5gb", None),
        ("0x10", None),
        ("1gbx", None),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_memory(text.as_bytes()), expected, "{text:?}");
    }
}

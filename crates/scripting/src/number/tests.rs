//! Compares formatting and parsing of numbers with C.

use super::{format_general, parse_prefix};

#[test]
fn general_format_matches_c() {
    for (number, digits, text) in [
        (0.0, 14, "0"),
        (-0.0, 14, "-0"),
        (1.0, 14, "1"),
        (0.1, 14, "0.1"),
        (100.0, 14, "100"),
        (1e14, 14, "1e+14"),
        (99_999_999_999_999.0, 14, "99999999999999"),
        (1e15, 14, "1e+15"),
        (1e20, 14, "1e+20"),
        (0.0001, 14, "0.0001"),
        (0.00001, 14, "1e-05"),
        (1.0 / 3.0, 14, "0.33333333333333"),
        (1.0 / 3.0, 3, "0.333"),
        (12345.678, 3, "1.23e+04"),
        (1e100, 14, "1e+100"),
        (f64::INFINITY, 14, "inf"),
        (f64::NEG_INFINITY, 14, "-inf"),
    ] {
        let mut out = Vec::new();
        format_general(number, digits, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), text, "{number} with {digits} digits");
    }
}

#[test]
fn a_number_ends_where_strtod_ends_it() {
    for (text, number, len) in [
        ("1", 1.0, 1),
        ("-1.5e3x", -1500.0, 6),
        ("0x10", 16.0, 4),
        ("0x1p3", 8.0, 5),
        ("0x1.8", 1.5, 5),
        ("0x", 0.0, 1),
        ("1e", 1.0, 1),
        ("1e+", 1.0, 1),
        ("1.", 1.0, 2),
        (".5", 0.5, 2),
        ("infinity", f64::INFINITY, 8),
        ("-inf,", f64::NEG_INFINITY, 4),
        ("007", 7.0, 3),
    ] {
        assert_eq!(parse_prefix(text.as_bytes()), Some((number, len)), "{text}");
    }
    for text in ["", "-", ".", "e5", "x"] {
        assert_eq!(parse_prefix(text.as_bytes()), None, "{text}");
    }
}

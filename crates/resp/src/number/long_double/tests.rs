//! Tests of sums recorded from INCRBYFLOAT, and of the limits of the format.

use super::*;

/// Replaces the escape sequences for white space in the recorded texts.
fn unescape(text: &str) -> String {
    if text == "\\e" {
        return String::new();
    }
    text.replace("\\s", " ")
        .replace("\\t", "\t")
        .replace("\\n", "\n")
        .replace("\\v", "\u{b}")
}

fn format(number: LongDouble) -> String {
    let mut text = Vec::new();
    number.append_human_readable(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the reply of INCRBYFLOAT, with `!float` and `!range` standing for its errors.
fn sum(value: &str, increment: &str) -> String {
    let (Some(value), Some(increment)) = (
        LongDouble::parse(value.as_bytes()),
        LongDouble::parse(increment.as_bytes()),
    ) else {
        return "!float".to_owned();
    };
    let sum = value.add(increment);
    if sum.is_nan() || sum.is_infinite() {
        return "!range".to_owned();
    }
    format(sum)
}

#[test]
fn sums_equal_those_of_valkey() {
    let mut count = 0;
    for line in include_str!("../data/sums.txt").lines() {
        let mut fields = line.split(' ');
        let mut field = || unescape(fields.next().unwrap());
        let (value, increment, expected) = (field(), field(), field());
        assert_eq!(sum(&value, &increment), expected, "{value} + {increment}");
        count += 1;
    }
    assert!(count > 3000);
}

#[test]
fn special_numbers_print_as_words() {
    let infinity = LongDouble::parse(b"inf").unwrap();
    let minus_infinity = LongDouble::parse(b"-inf").unwrap();
    assert_eq!(format(infinity), "inf");
    assert_eq!(format(minus_infinity), "-inf");
    assert_eq!(format(infinity.add(minus_infinity)), "nan");
    assert_eq!(format(LongDouble::from_f64(-0.0)), "0");
    assert_eq!(format(LongDouble::from_f64(-1e-18)), "0");
}

#[test]
fn long_texts_are_refused() {
    let text = vec![b'1'; TEXT_MAX_LEN];
    assert!(LongDouble::parse(&text).is_none());
    let zeros = vec![b'0'; TEXT_MAX_LEN - 1];
    assert!(LongDouble::parse(&zeros).is_some());
    // The largest number is about 1.19e4932.
    assert!(LongDouble::parse(&text[..4933]).is_some());
    assert!(LongDouble::parse(&text[..4934]).is_none());
}

#[test]
fn doubles_and_integers_convert_exactly() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..20_000 {
        let double = f64::from_bits(random.u64(..));
        if !double.is_nan() {
            assert_eq!(LongDouble::from_f64(double).to_f64(), double);
        }
        let integer = random.i64(..) >> random.u32(0..64);
        assert_eq!(format(LongDouble::from_i64(integer)), integer.to_string());
        assert_eq!(LongDouble::from_i64(integer).ceil_to_i64(), Some(integer));
    }
}

#[test]
fn numbers_round_up_to_integers_within_range() {
    let cases = [
        ("0.1", Some(1)),
        ("-0.1", Some(0)),
        ("1", Some(1)),
        ("1.0000000000000001", Some(2)),
        ("9223372036854775807", Some(i64::MAX)),
        ("9223372036854775808", None),
        ("-9223372036854775808", Some(i64::MIN)),
        ("-9223372036854775809", None),
        ("1e300", None),
        ("inf", None),
    ];
    for (text, expected) in cases {
        assert_eq!(
            LongDouble::parse(text.as_bytes()).unwrap().ceil_to_i64(),
            expected,
            "{text}"
        );
    }
    let seconds = LongDouble::parse(b"0.0015").unwrap();
    assert_eq!(seconds.multiply(LongDouble::from_i64(1000)).ceil_to_i64(), Some(2));
    assert!(LongDouble::parse(b"-1e300").unwrap().is_negative());
}

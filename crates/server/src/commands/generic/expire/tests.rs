//! Tests of the options and conditions of EXPIRE.

use super::*;

fn conditions(options: &str) -> Result<ExpiryConditions, CommandError> {
    ExpiryConditions::parse(options.split_whitespace().map(str::as_bytes))
}

#[test]
fn options_are_parsed_in_any_case_and_repeated() {
    for options in ["", "nx", "XX xx", "gt GT", "Lt xX", "XX GT"] {
        assert!(conditions(options).is_ok(), "{options}");
    }
    let cases = [
        (
            "NX XX",
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        (
            "LT GT NX",
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        ("GT LT", "ERR GT and LT options at the same time are not compatible"),
        ("NX XX oops", "ERR Unsupported option oops"),
    ];
    for (options, text) in cases {
        let error = conditions(options).expect_err(options);
        assert_eq!(error.0, text.as_bytes(), "{options}");
    }
}

#[test]
fn conditions_compare_the_new_expiry_with_the_current_one() {
    let cases = [
        ("", None, 10, true),
        ("", Some(5), 10, true),
        ("NX", None, 10, true),
        ("NX", Some(5), 10, false),
        ("XX", None, 10, false),
        ("XX", Some(5), 10, true),
        ("GT", None, 10, false),
        ("GT", Some(10), 10, false),
        ("GT", Some(9), 10, true),
        ("LT", None, 10, true),
        ("LT", Some(10), 10, false),
        ("LT", Some(11), 10, true),
        ("LT", Some(11), -10, true),
        ("XX LT", None, 10, false),
        ("XX GT", Some(9), 10, true),
    ];
    for (options, current, new, allowed) in cases {
        let conditions = conditions(options).expect("they fit together");
        assert_eq!(conditions.allow(current, new), allowed, "{options} {current:?} {new}");
    }
}

#[test]
fn seconds_are_rounded() {
    for (ms, seconds) in [
        (0, 0),
        (499, 0),
        (500, 1),
        (1499, 1),
        (1500, 2),
        (i64::MAX, i64::MAX / 1000 + 1),
    ] {
        assert_eq!(round_to_seconds(ms), seconds, "{ms}");
    }
}

//! Tests of the flag parser.

use super::*;

const TABLE: &[&[Flag]] = &[
    &[flag("--keys", "N", "100", "keys"), flag("--quiet", "", "", "no output")],
    &[
        flag("--rate", "R", "", "requests per second"),
        flag("--cores", "LIST", "", "cores"),
    ],
];

fn parse(line: &str) -> Result<GivenFlags> {
    let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    GivenFlags::parse(TABLE, &words)
}

#[test]
fn values_are_parsed_in_both_forms_and_from_defaults() {
    let given = parse("--rate 2.5 --cores=0,3 --quiet").expect("valid");
    assert_eq!(given.number::<u64>("--keys", 1).expect("a default"), 100);
    assert_eq!(given.parse_value::<f64>("--rate").expect("a number"), Some(2.5));
    assert_eq!(given.numbers("--cores").expect("numbers"), [0, 3]);
    assert_eq!(given.list::<f64>("--cores").expect("numbers"), [0.0, 3.0]);
    assert!(given.is_given("--quiet") && !given.is_given("--keys"));
    assert_eq!(
        parse("").expect("valid").parse_value::<f64>("--rate").expect("none"),
        None
    );
}

#[test]
fn numbers_of_bytes_have_units() {
    for (text, bytes) in [
        ("0", Some(0)),
        ("17", Some(17)),
        ("3b", Some(3)),
        ("2k", Some(2000)),
        ("2KB", Some(2048)),
        ("5m", Some(5_000_000)),
        ("64mb", Some(64 << 20)),
        ("1g", Some(1_000_000_000)),
        ("1gb", Some(1 << 30)),
        ("", None),
        ("gb", None),
        ("1.5gb", None),
        ("1tb", None),
        ("-1", None),
        ("18446744073709551615kb", None),
    ] {
        assert_eq!(parse_bytes(text), bytes, "{text:?}");
    }
    let given = parse("--keys 4kb").expect("valid");
    assert_eq!(given.bytes("--keys", 4096).expect("enough"), 4096);
    assert!(given.bytes("--keys", 4097).is_err());
    assert!(parse("").expect("valid").bytes("--rate", 0).is_err());
}

#[test]
fn invalid_command_lines_are_refused() {
    for line in ["--nothing", "--keys", "--quiet=1", "--keys 1 --keys 2", "stray"] {
        assert!(parse(line).is_err(), "{line} was accepted");
    }
    assert!(
        parse("--keys many")
            .expect("any text")
            .number::<u64>("--keys", 1)
            .is_err()
    );
    assert!(parse("--keys 0").expect("any text").number::<u64>("--keys", 1).is_err());
    assert!(
        parse("--rate NaN")
            .expect("any text")
            .number::<f64>("--rate", 0.0)
            .is_err()
    );
    assert!(parse("--cores 1,x").expect("any text").numbers("--cores").is_err());
}

#[test]
fn help_names_every_flag_and_default() {
    let text = help_text(TABLE);
    for flag in TABLE.iter().copied().flatten() {
        assert!(text.contains(flag.name) && text.contains(flag.help) && text.contains(flag.default));
    }
}

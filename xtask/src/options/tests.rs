//! Tests of the command line parser.

use super::Options;

fn parse(line: &str) -> Result<Options, String> {
    let words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
    Options::parse(&words, &["seed", "only"], &["list"])
}

#[test]
fn values_flags_lists_and_defaults_are_parsed() {
    let options = parse("--seed 17 --list --only a,b,").unwrap();
    assert_eq!(options.number("seed", 1u64), Ok(17));
    assert_eq!(options.number("seconds", 5u64), Ok(5));
    assert!(options.is_given("list"));
    assert_eq!(options.list("only"), ["a", "b"]);
    assert!(parse("").unwrap().list("only").is_empty());
}

#[test]
fn unknown_arguments_are_refused() {
    for line in ["--nonsense", "word", "--seed"] {
        assert!(parse(line).is_err(), "{line} was accepted");
    }
    assert!(parse("--seed x").unwrap().number::<u64>("seed", 0).is_err());
}

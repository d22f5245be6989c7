//! Tests of reading the output of `cargo test`.

use super::*;

const OUTPUT: &str = "   Compiling weft v0.1.0
     Running unittests src/lib.rs (target/debug/deps/a)

running 3 tests
test one ... ok
test two ... ignored
test three ... ignored, needs Valkey: set WEFT_ORACLE

test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/x.rs (target/debug/deps/b)

running 2 tests
test four ... ok
test five ... FAILED
test six has been running for over 60 seconds

failures:
    five: assertion failed

test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

#[test]
fn passed_tests_are_counted_and_ignored_ones_named() {
    let ignored = ["two", "three, needs Valkey: set WEFT_ORACLE"].map(String::from);
    let expected = TestReport {
        passed: 13,
        ignored: ignored.to_vec(),
    };
    assert_eq!(parse(OUTPUT), expected);
    assert_eq!(parse("error: could not compile"), TestReport::default());
}

#[test]
fn a_failure_is_explained_without_what_went_well() {
    let expected = "test five ... FAILED
test six has been running for over 60 seconds
failures:
    five: assertion failed
test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s";
    assert_eq!(explain_failure(OUTPUT), expected);
    let many = "line\n".repeat(1000) + "last\n";
    let shown = explain_failure(&many);
    assert_eq!(
        (shown.lines().count(), shown.lines().last()),
        (MAX_SHOWN_LINES, Some("last"))
    );
}

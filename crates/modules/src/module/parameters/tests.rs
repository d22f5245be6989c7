//! Tests of the forms of values.

use super::kind::{Notation, print_choices, read_choices};
use super::{ParameterFlags, queue_setting};

fn choices() -> Vec<(Vec<u8>, i32)> {
    [("none", 0), ("five", 5), ("one", 1), ("two", 2), ("four", 4)]
        .map(|(name, number)| (name.as_bytes().to_vec(), number))
        .to_vec()
}

#[test]
fn words_are_combined_and_printed_in_the_order_of_the_module() {
    let read = |is_set, text: &str| read_choices(&choices(), is_set, text.as_bytes());
    let print = |number| String::from_utf8(print_choices(&choices(), true, number)).expect("text");
    assert_eq!(read(true, "ONE two"), Ok(3));
    assert_eq!(print(3), "one two");
    assert_eq!(print(7), "five two");
    assert_eq!(print(8), "unknown");
    assert_eq!(print_choices(&choices(), false, 3), b"unknown");
    let refusal = b"argument(s) must be one of the following: none, five, one, two, four".to_vec();
    assert_eq!(read(false, "one two"), Err(refusal.clone()));
    assert_eq!(read(true, ""), Err(refusal.clone()));
    assert_eq!(read(true, "one  two"), Err(refusal));
}

#[test]
fn numbers_have_the_notation_of_their_flags() {
    let read = |notation: Notation, text: &str| notation.read(ParameterFlags::empty(), text.as_bytes()).ok();
    assert_eq!(read(Notation::Plain, "-5"), Some(-5));
    assert_eq!(read(Notation::Plain, "1mb"), None);
    assert_eq!(read(Notation::Memory, "1mb"), Some(1 << 20));
    assert_eq!(read(Notation::Memory, "-5"), None);
    assert_eq!(read(Notation::Unsigned, "-5"), None);
    assert_eq!(read(Notation::Unsigned, "18446744073709551615"), Some(-1));
    assert_eq!(Notation::Unsigned.print(-1), b"18446744073709551615");
}

#[test]
fn later_settings_replace_earlier_ones() {
    let mut settings = Vec::new();
    queue_setting(&mut settings, b"m.a", b"1");
    queue_setting(&mut settings, b"m.b", b"2");
    queue_setting(&mut settings, b"M.a", b"3");
    assert_eq!(
        settings,
        [(b"m.b".to_vec(), b"2".to_vec()), (b"M.a".to_vec(), b"3".to_vec())]
    );
}

//! Tests of the accounting of an output's length and marks.

use super::*;

fn shared(bytes: &[u8]) -> SharedBytes {
    Box::new(bytes.to_vec())
}

fn flat(output: &Output) -> Vec<u8> {
    let mut flat = Vec::new();
    let mut from = 0;
    for (position, value) in &output.shared {
        flat.extend_from_slice(&output.bytes[from..*position]);
        flat.extend_from_slice(value.as_ref().as_ref());
        from = *position;
    }
    flat.extend_from_slice(&output.bytes[from..]);
    flat
}

#[test]
fn truncating_removes_exactly_the_output_after_the_mark() {
    let mut output = Output::new();
    output.bytes.extend_from_slice(b"ab");
    let before_value = output.mark();
    output.push_shared(shared(b"CD"));
    let after_value = output.mark();
    output.push_shared(shared(b"E"));
    output.bytes.extend_from_slice(b"fg");
    assert_eq!((flat(&output), output.len()), (b"abCDEfg".to_vec(), 7));
    output.truncate(after_value);
    assert_eq!((flat(&output), output.len()), (b"abCD".to_vec(), 4));
    output.truncate(before_value);
    assert_eq!((flat(&output), output.len()), (b"ab".to_vec(), 2));
    output.clear();
    assert!(output.is_empty() && output.bytes.capacity() > 0);
}

#[test]
fn an_appended_output_keeps_its_values_in_place() {
    let (mut first, mut second) = (Output::new(), Output::new());
    first.bytes.extend_from_slice(b"ab");
    first.push_shared(shared(b"C"));
    second.push_shared(shared(b"D"));
    second.bytes.extend_from_slice(b"e");
    second.push_shared(shared(b"F"));
    first.append(&mut second);
    assert_eq!((flat(&first), first.len()), (b"abCDeF".to_vec(), 6));
    assert_eq!((second.is_empty(), second.len()), (true, 0));
}

#[test]
fn an_output_that_is_split_off_keeps_its_values_in_place() {
    let mut output = Output::new();
    output.bytes.extend_from_slice(b"ab");
    output.push_shared(shared(b"C"));
    let mark = output.mark();
    output.bytes.extend_from_slice(b"d");
    output.push_shared(shared(b"EF"));
    output.bytes.extend_from_slice(b"g");
    let end = output.split_off(mark);
    assert_eq!((flat(&output), output.len()), (b"abC".to_vec(), 3));
    assert_eq!((flat(&end), end.len()), (b"dEFg".to_vec(), 4));
    assert!(output.split_off(output.mark()).is_empty());
}

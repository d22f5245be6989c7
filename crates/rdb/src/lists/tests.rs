//! Tests of writing and reading lists, of old encodings, and of damaged ones.

use std::ops::ControlFlow;

use weft_table::ValueRef;
use weft_values::list::Direction;
use weft_values::list::packed::PackedList;

use super::*;
use crate::dump_payload::dump;

fn elements(restored: &RestoredValue<'_>) -> Vec<Vec<u8>> {
    let list = match restored {
        RestoredValue::Packed(bytes) => ListRef::Packed(PackedList::new(bytes)),
        RestoredValue::Object(Value::List(list)) => ListRef::Large(list),
        other => panic!("not a list: {other:?}"),
    };
    let mut elements = Vec::new();
    list.visit(0, Direction::Forward, |element| {
        elements.push(element.to_vec());
        ControlFlow::Continue(())
    });
    elements
}

fn load(payload: &[u8]) -> Option<RestoredValue<'_>> {
    let mut reader = RdbReader::new(payload);
    let kind = reader.byte()?;
    read(kind, &mut reader, &EncodingLimits::default())
}

fn dumped(restored: &RestoredValue<'_>) -> Vec<u8> {
    match restored {
        RestoredValue::Packed(bytes) => dump(ValueRef::Packed(bytes), true),
        RestoredValue::Object(value) => dump(ValueRef::Object(value), true),
        RestoredValue::String(_) => panic!("not a list"),
    }
}

#[test]
fn a_small_list_is_dumped_as_valkey_does() {
    let expected = b"\x12\x01\x02\x0c\x0c\x00\x00\x00\x02\x00\x81a\x02\x05\x01\xff";
    let restored = load(expected).unwrap();
    assert_eq!(elements(&restored), [b"a".to_vec(), b"5".to_vec()]);
    assert!(matches!(restored, RestoredValue::Packed(_)));
    assert!(dumped(&restored).starts_with(expected));
}

#[test]
fn old_encodings_are_read() {
    let ziplist = b"\x10\x00\x00\x00\x0d\x00\x00\x00\x02\x00\x00\x01a\x03\xf6\xff";
    let in_string = |kind: u8, before: &[u8]| {
        let mut payload = vec![kind];
        payload.extend_from_slice(before);
        payload.push(ziplist.len() as u8);
        payload.extend_from_slice(ziplist);
        payload
    };
    let cases = [
        (b"\x01\x02\x01a\xc0\x05".to_vec(), true),
        (in_string(TYPE_ZIPLIST, b""), false),
        (in_string(TYPE_QUICKLIST, b"\x01"), true),
    ];
    for (payload, packed) in cases {
        let restored = load(&payload).unwrap_or_else(|| panic!("{payload:?}"));
        assert_eq!(elements(&restored), [b"a".to_vec(), b"5".to_vec()]);
        assert_eq!(matches!(restored, RestoredValue::Packed(_)), packed, "{payload:?}");
    }
}

#[test]
fn lists_of_many_nodes_are_read_back() {
    for (fill, depth) in [(-2, 0), (3, 1), (-1, 2)] {
        let mut list = List::quicklist(fill, depth);
        for number in 0..300 {
            let element = match number % 50 {
                0 => vec![b'l'; 10_000],
                _ => format!("element {number}").into_bytes(),
            };
            list.push(ListEnd::Tail, &element);
        }
        let value = Value::List(list);
        let payload = dump(ValueRef::Object(&value), true);
        let restored = load(&payload).unwrap();
        let before = RestoredValue::Object(value);
        assert_eq!(elements(&restored), elements(&before), "fill {fill}, depth {depth}");
    }
}

#[test]
fn empty_and_damaged_lists_are_refused() {
    let cases: &[&[u8]] = &[
        b"\x01\x00",
        b"\x12\x00",
        b"\x12\x01\x03\x01a",
        b"\x12\x01\x01\x00",
        b"\x12\x01\x02\x07\x07\x00\x00\x00\x00\x00\xff",
        b"\x12\x01\x02\xc0\x05",
        b"\x12\x01\x02\x08\x08\x00\x00\x00\x01\x00\x85\xff",
    ];
    for payload in cases {
        assert!(load(payload).is_none(), "{payload:?}");
    }
}

#[test]
fn damaged_lists_are_refused_or_read() {
    let mut list = List::quicklist(3, 1);
    for number in 0..20 {
        list.push(
            ListEnd::Tail,
            format!("element {number} {}", "x".repeat(number)).as_bytes(),
        );
    }
    let whole = dump(ValueRef::Object(&Value::List(list)), true);
    for place in 1..whole.len() {
        for value in [0, 1, 2, 0x3f, 0x40, 0x80, 0x81, 0xc0, 0xc3, 0xff] {
            let mut broken = whole.clone();
            broken[place] = value;
            if let Some(restored) = load(&broken) {
                assert!(!elements(&restored).is_empty());
            }
            load(&whole[..place]);
        }
    }
}

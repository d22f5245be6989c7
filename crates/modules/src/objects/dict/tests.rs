//! Tests of dictionaries and their iterators.

use std::ffi::c_void;

use super::{Dict, DictIterator, Direction, SeekOperator};
use crate::objects::automatic::AutomaticObject;

fn value(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// Creates a dictionary in which each key has its length as its value.
fn dict(keys: &[&str]) -> *mut Dict {
    let dict = Dict::create();
    for key in keys {
        // SAFETY: the dictionary was created above.
        unsafe { &mut *dict }.add(key.as_bytes(), value(key.len()));
    }
    dict
}

/// Returns the keys that an iterator visits.
fn walk(dict: *mut Dict, operator: &str, key: &str, direction: Direction) -> Vec<String> {
    let iterator = DictIterator::create(dict);
    let mut keys = Vec::new();
    // SAFETY: the iterator was created above, and the dictionary is freed later.
    unsafe {
        (*iterator).seek(
            SeekOperator::parse(operator.as_bytes()).expect("an operator"),
            key.as_bytes(),
        );
        while let Some((key, number)) = (*iterator).step(direction) {
            assert_eq!(number, value(key.len()));
            keys.push(String::from_utf8(key.to_vec()).expect("keys are text"));
        }
        assert!((*iterator).step(Direction::Next).is_none(), "the end is final");
        assert!((*iterator).step(Direction::Previous).is_none(), "the end is final");
        drop(Box::from_raw(iterator));
    }
    keys
}

#[test]
fn operators_find_the_first_key() {
    let dict = dict(&["b", "", "bc", "d"]);
    for (operator, key, direction, expected) in [
        ("^", "", Direction::Next, "|b|bc|d"),
        ("^", "", Direction::Previous, ""),
        ("$", "", Direction::Next, "d"),
        ("$", "ignored", Direction::Previous, "d|bc|b|"),
        ("==", "bc", Direction::Next, "bc|d"),
        ("=", "bc", Direction::Previous, "bc|b|"),
        (">", "b", Direction::Next, "bc|d"),
        (">=", "b", Direction::Next, "b|bc|d"),
        (">=", "bb", Direction::Next, "bc|d"),
        ("<", "b", Direction::Next, "|b|bc|d"),
        ("<", "b", Direction::Previous, ""),
        ("<=", "c", Direction::Previous, "bc|b|"),
    ] {
        let keys = walk(dict, operator, key, direction);
        assert_eq!(keys.join("|"), expected, "{operator} {key} {direction:?}");
        assert!(!keys.is_empty(), "{operator} {key} {direction:?}");
    }
    for (operator, key) in [("==", "c"), (">", "d"), (">=", "e"), ("<", "")] {
        assert!(
            walk(dict, operator, key, Direction::Next).is_empty(),
            "{operator} {key}"
        );
    }
    assert_eq!(SeekOperator::parse(b"!"), None);
    assert_eq!(SeekOperator::parse(b""), None);
    // SAFETY: the dictionary is not used any more.
    unsafe { Dict::free(dict) };
}

#[test]
fn keys_are_added_replaced_and_removed() {
    let mut dict = Dict::default();
    assert!(dict.is_empty());
    assert!(dict.add(b"a", value(1)));
    assert!(!dict.add(b"a", value(2)));
    assert_eq!(dict.value(b"a"), Some(value(1)));
    assert!(!dict.replace(b"a", value(2)));
    assert!(dict.replace(b"b", value(0)));
    assert_eq!(dict.value(b"a"), Some(value(2)));
    assert_eq!(dict.value(b"b"), Some(value(0)));
    assert_eq!(dict.len(), 2);
    assert_eq!(dict.remove(b"a"), Some(value(2)));
    assert_eq!(dict.remove(b"a"), None);
    assert_eq!(dict.len(), 1);
}

#[test]
fn iterators_survive_changes() {
    let dict = dict(&["a", "b", "c", "d"]);
    let iterator = DictIterator::create(dict);
    // SAFETY: both were created above, and are freed at the end.
    unsafe {
        (*iterator).seek(SeekOperator::First, b"");
        assert_eq!((*iterator).step(Direction::Next).map(|(key, _)| key), Some(&b"a"[..]));
        (*dict).remove(b"a");
        (*dict).remove(b"b");
        (*dict).add(b"aa", value(2));
        assert_eq!((*iterator).step(Direction::Next).map(|(key, _)| key), Some(&b"aa"[..]));
        assert_eq!((*iterator).step(Direction::Next).map(|(key, _)| key), Some(&b"c"[..]));
        assert!((*iterator).compares(SeekOperator::Equal, b"c"));
        assert!((*iterator).compares(SeekOperator::Greater, b"bzz"));
        assert!((*iterator).compares(SeekOperator::LessOrEqual, b"c"));
        assert!(!(*iterator).compares(SeekOperator::Less, b"c"));
        assert!(!(*iterator).compares(SeekOperator::First, b"c"));
        assert_eq!(
            (*iterator).step(Direction::Previous).map(|(key, _)| key),
            Some(&b"aa"[..])
        );
        assert!((*iterator).step(Direction::Previous).is_none());
        assert!(
            !(*iterator).compares(SeekOperator::Equal, b"aa"),
            "the iterator is at its end"
        );
        (*iterator).seek(SeekOperator::Last, b"");
        assert_eq!(
            (*iterator).step(Direction::Previous).map(|(key, _)| key),
            Some(&b"d"[..])
        );
        drop(Box::from_raw(iterator));
        Dict::free(dict);
    }
}

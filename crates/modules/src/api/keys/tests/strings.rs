//! Tests of the functions on strings.

use std::ffi::{c_char, c_int};

use super::*;

type StringSet = unsafe extern "C" fn(*mut ModuleKey, *mut ModuleString) -> c_int;
type StringDma = unsafe extern "C" fn(*mut ModuleKey, *mut usize, c_int) -> *mut c_char;
type StringTruncate = unsafe extern "C" fn(*mut ModuleKey, usize) -> c_int;

/// Returns the pointer to a key's string, with its length.
fn direct(key: *mut ModuleKey, mode: c_int) -> (*mut c_char, usize) {
    let mut length = usize::MAX;
    // SAFETY: the key is open, and the pointer leads to a number.
    let pointer = unsafe { function!("StringDMA" as StringDma)(key, &raw mut length, mode) };
    (pointer, length)
}

fn read((pointer, length): (*mut c_char, usize)) -> Vec<u8> {
    // SAFETY: the function has returned this pointer with this length.
    unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) }.to_vec()
}

#[test]
fn a_string_is_set_in_place_of_anything() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"list", FakeValue::List([b"x".to_vec()].into()));
    as_module(&mut session, |module| {
        let value = Text::new("value");
        let set = function!("StringSet" as StringSet);
        // SAFETY: the keys are open, and the value is a string.
        unsafe {
            module.with_key("list", READ, |key| assert_eq!(set(key, value.0), api::ERR));
            module.with_key("list", WRITE, |key| {
                assert_eq!(set(key, value.0), OK);
                assert_eq!(module.kind(key), 1);
                assert_eq!(read(direct(key, READ)), b"value");
            });
        }
    });
    assert_eq!(session.keyspace.keys[&b"list"[..]].value, string("value"));
}

#[test]
fn writes_by_pointer_are_stored_when_the_key_is_closed() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        module.with_key("k", READ | WRITE, |key| {
            let (pointer, length) = direct(key, WRITE);
            assert_eq!(length, 5);
            // SAFETY: the string has five bytes, and a zero byte behind them.
            unsafe {
                pointer.write(b'V' as c_char);
                assert_eq!(pointer.add(5).read(), 0);
            }
        });
    });
    assert_eq!(session.keyspace.keys[&b"k"[..]].value, string("Value"));
}

#[test]
fn writes_by_pointer_are_seen_by_other_functions() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        let writer = module.open("k", READ | WRITE);
        let (pointer, _) = direct(writer, WRITE);
        // SAFETY: the string has five bytes.
        unsafe { pointer.write(b'V' as c_char) };
        module.with_key("k", READ, |reader| assert_eq!(read(direct(reader, READ)), b"Value"));
        // SAFETY: the pointer stays valid.
        unsafe { pointer.add(1).write(b'A' as c_char) };
        assert_eq!(read(direct(writer, READ)), b"VAlue");
        module.close(writer);
    });
    assert_eq!(session.keyspace.keys[&b"k"[..]].value, string("VAlue"));
}

#[test]
fn a_value_that_was_set_meanwhile_is_not_overwritten_by_what_was_read() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        let writer = module.open("k", READ | WRITE);
        let _ = direct(writer, WRITE);
        let value = Text::new("other");
        module.with_key("k", WRITE, |key| {
            // SAFETY: the key is open, and the value is a string.
            unsafe { function!("StringSet" as StringSet)(key, value.0) };
        });
        module.close(writer);
    });
    assert_eq!(session.keyspace.keys[&b"k"[..]].value, string("other"));
}

#[test]
fn strings_are_cut_and_extended() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    session.keyspace.set(b"list", FakeValue::List([b"x".to_vec()].into()));
    as_module(&mut session, |module| {
        let truncate = function!("StringTruncate" as StringTruncate);
        // SAFETY: the keys are open.
        unsafe {
            module.with_key("k", READ | WRITE, |key| {
                assert_eq!(truncate(key, 2), OK);
                assert_eq!(read(direct(key, READ)), b"va");
                assert_eq!(truncate(key, 4), OK);
                assert_eq!(read(direct(key, READ)), b"va\0\0");
                assert_eq!(truncate(key, (512 << 20) + 1), api::ERR);
            });
            module.with_key("missing", READ | WRITE, |key| {
                assert_eq!(truncate(key, 0), OK);
                assert_eq!((module.kind(key), direct(key, READ).1), (0, 0));
                assert_eq!(truncate(key, 1), OK);
                assert_eq!(module.kind(key), 1);
            });
            module.with_key("list", WRITE, |key| {
                assert_eq!(truncate(key, 1), api::ERR);
                assert!(direct(key, READ).0.is_null());
            });
        }
    });
    assert_eq!(session.keyspace.keys[&b"missing"[..]].value, string("\0"));
}

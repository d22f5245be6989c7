//! Tests of walks over databases and values.

use std::ffi::{c_int, c_void};

use super::*;

type Scan = unsafe extern "C" fn(*mut Context, *mut c_void, ScanFunction, *mut c_void) -> c_int;
type ScanKey = unsafe extern "C" fn(*mut ModuleKey, *mut c_void, ElementFunction, *mut c_void) -> c_int;
type ScanFunction = unsafe extern "C" fn(*mut Context, *mut ModuleString, *mut ModuleKey, *mut c_void);
type ElementFunction = unsafe extern "C" fn(*mut ModuleKey, *mut ModuleString, *mut ModuleString, *mut c_void);
type Create = unsafe extern "C" fn() -> *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void);

fn text(string: *mut ModuleString) -> String {
    // SAFETY: the string belongs to the function that calls this one.
    String::from_utf8_lossy(unsafe { ModuleString::bytes_of(string) }).into_owned()
}

/// Adds the name and the type of a key to a list, and deletes the key `b`.
unsafe extern "C" fn note_key(context: *mut Context, name: *mut ModuleString, key: *mut ModuleKey, found: *mut c_void) {
    // SAFETY: the test passes such a list, and the function of the API a context and an open key.
    unsafe {
        let kind = function!("KeyType" as KeyFunction)(key);
        (*found.cast::<Vec<(String, c_int)>>()).push((text(name), kind));
        let b = Text::new("b");
        let writer = function!("OpenKey" as OpenKey)(context, b.0, WRITE);
        function!("DeleteKey" as KeyFunction)(writer);
        function!("CloseKey" as CloseKey)(writer);
    }
}

unsafe extern "C" fn note_element(
    _key: *mut ModuleKey,
    name: *mut ModuleString,
    value: *mut ModuleString,
    found: *mut c_void,
) {
    let value = (!value.is_null()).then(|| text(value));
    // SAFETY: the test passes such a list.
    unsafe { (*found.cast::<Vec<(String, Option<String>)>>()).push((text(name), value)) };
}

#[test]
fn a_walk_shows_the_keys_that_still_exist() {
    let mut session = FakeSession::default();
    for name in ["a", "b", "c"] {
        session.keyspace.set(name.as_bytes(), string("value"));
    }
    let mut found: Vec<(String, c_int)> = Vec::new();
    as_module(&mut session, |module| {
        let (scan, context) = (function!("Scan" as Scan), module.context.as_pointer());
        // SAFETY: the arguments are a context, a cursor, and a function with its data.
        unsafe {
            let cursor = function!("ScanCursorCreate" as Create)();
            while scan(context, cursor, note_key, (&raw mut found).cast()) == 1 {}
            assert_eq!(errno(), 0);
            assert_eq!(scan(context, cursor, note_key, (&raw mut found).cast()), 0);
            assert_eq!(errno(), libc::ENOENT);
            function!("ScanCursorRestart" as Destroy)(cursor);
            assert_eq!(scan(context, cursor, note_key, (&raw mut found).cast()), 1);
            function!("ScanCursorDestroy" as Destroy)(cursor);
        }
    });
    assert_eq!(found, [("a".to_owned(), 1), ("c".to_owned(), 1), ("a".to_owned(), 1)]);
}

#[test]
fn a_walk_shows_the_elements_of_hashes_and_sets() {
    let mut session = FakeSession::default();
    let hash = FakeValue::Hash([(b"f".to_vec(), b"v".to_vec())].into());
    session.keyspace.set(b"hash", hash);
    let set = FakeValue::Set([b"m".to_vec(), b"n".to_vec()].into());
    session.keyspace.set(b"set", set);
    session.keyspace.set(b"string", string("value"));
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    as_module(&mut session, |module| {
        let scan = function!("ScanKey" as ScanKey);
        for name in ["hash", "set"] {
            module.with_key(name, READ, |key| {
                // SAFETY: the arguments are an open key, a cursor, and a function with its data.
                unsafe {
                    let cursor = function!("ScanCursorCreate" as Create)();
                    while scan(key, cursor, note_element, (&raw mut found).cast()) == 1 {}
                    assert_eq!(scan(key, cursor, note_element, (&raw mut found).cast()), 0);
                    assert_eq!(errno(), libc::ENOENT);
                    function!("ScanCursorDestroy" as Destroy)(cursor);
                }
            });
        }
        module.with_key("string", READ, |key| {
            // SAFETY: as above.
            unsafe {
                let cursor = function!("ScanCursorCreate" as Create)();
                assert_eq!(scan(key, cursor, note_element, (&raw mut found).cast()), 0);
                assert_eq!(errno(), libc::EINVAL);
                function!("ScanCursorDestroy" as Destroy)(cursor);
            }
        });
    });
    let shown: Vec<(&str, Option<&str>)> = found
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    assert_eq!(shown, [("f", Some("v")), ("m", None), ("n", None)]);
}

#[test]
fn databases_are_counted_and_emptied() {
    let mut session = FakeSession::default();
    session.keyspace.set(b"k", string("value"));
    as_module(&mut session, |module| {
        let context = module.context.as_pointer();
        let size = function!("DbSize" as unsafe extern "C" fn(*mut Context) -> u64);
        let random = function!("RandomKey" as unsafe extern "C" fn(*mut Context) -> *mut ModuleString);
        let reset = function!("ResetDataset" as unsafe extern "C" fn(c_int, c_int));
        // SAFETY: the context is one.
        unsafe {
            assert_eq!(size(context), 1);
            assert_eq!(take(random(context)).as_deref(), Some("k"));
            reset(0, 0);
            assert_eq!(size(context), 0);
            assert_eq!(take(random(context)), None);
        }
    });
}

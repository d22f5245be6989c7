//! Tests of the functions of strings.

use super::conversions::{StreamIdStruct, string_to_double, string_to_long_long, string_to_stream_id};
use super::*;
use crate::module::Module;
use crate::objects::context::Caller;

fn string(text: &str) -> *mut ModuleString {
    ModuleString::create(text.as_bytes())
}

/// Returns the text of a string, and frees it.
fn text(string: *mut ModuleString) -> String {
    // SAFETY: the tests pass strings that live, and that they do not use afterwards.
    unsafe {
        let text = String::from_utf8(ModuleString::bytes_of(string).to_vec()).expect("the tests use UTF-8");
        free_string(std::ptr::null_mut(), string);
        text
    }
}

#[test]
fn numbers_become_strings_and_back() {
    let nobody = std::ptr::null_mut();
    // SAFETY: all pointers are null or those of living objects.
    unsafe {
        assert_eq!(
            text(create_string_from_long_long(nobody, i64::MIN)),
            i64::MIN.to_string()
        );
        assert_eq!(
            text(create_string_from_unsigned_long_long(nobody, u64::MAX)),
            u64::MAX.to_string()
        );
        assert_eq!(text(create_string_from_double(nobody, 0.1)), "0.1");
        let id = StreamIdStruct { ms: 5, seq: 7 };
        assert_eq!(text(create_string_from_stream_id(nobody, &id)), "5-7");

        let (mut integer, mut double, mut parsed) = (0, 0.0, id);
        assert_eq!(string_to_long_long(string("-12"), &mut integer), OK);
        assert_eq!(integer, -12);
        assert_eq!(string_to_long_long(string(" 12"), &mut integer), ERR);
        assert_eq!(string_to_double(string("1.5"), &mut double), OK);
        assert_eq!(double, 1.5);
        assert_eq!(string_to_double(string("nan"), &mut double), ERR);
        for (written, expected) in [
            ("-", Some((0, 0))),
            ("+", Some((u64::MAX, u64::MAX))),
            ("12", Some((12, 0))),
            ("12-3", Some((12, 3))),
            ("12-*", None),
            ("x", None),
            ("12-", None),
        ] {
            let is_ok = string_to_stream_id(string(written), &mut parsed) == OK;
            assert_eq!(is_ok.then_some((parsed.ms, parsed.seq)), expected, "{written}");
        }
    }
}

#[test]
fn automatic_memory_frees_what_is_not_retained() {
    let module = Module::new("test.so".to_owned());
    let context = Context::new(module, Caller::none());
    context.automatic.enable();
    let pointer = context.as_pointer();
    // SAFETY: the context lives, and the strings until they are freed.
    unsafe {
        let retained = create_string(pointer, c"retained".as_ptr(), 8);
        retain_string(pointer, retained);
        let held = hold_string(pointer, retained);
        assert_eq!(held, retained);
        assert_eq!(string_append_buffer(pointer, retained, c"!".as_ptr(), 1), ERR);
        let freed = create_string_from_string(pointer, retained);
        free_string(pointer, freed);
        context.free_all();
        assert_eq!(string_append_buffer(pointer, retained, c"!".as_ptr(), 1), OK);
        assert_eq!(text(retained), "retained!");
    }
}

#[test]
fn a_missing_string_has_a_text() {
    let mut len = 0;
    // SAFETY: null is allowed.
    let pointer = unsafe { string_ptr_len(std::ptr::null(), &mut len) };
    // SAFETY: the text ends with a zero byte.
    let text = unsafe { std::ffi::CStr::from_ptr(pointer) };
    assert_eq!(text.to_bytes().len(), len);
    assert!(text.to_bytes().starts_with(b"(NULL"));
}

#[test]
fn strings_compare_by_their_bytes() {
    // SAFETY: the strings live.
    unsafe {
        assert_eq!(string_compare(string("a"), string("b")), -1);
        assert_eq!(string_compare(string("a"), string("a")), 0);
        assert_eq!(string_compare(string("ab"), string("a")), 1);
    }
}

//! Tests of the strings of modules.

use super::ModuleString;

#[test]
fn strings_end_with_a_zero_byte() {
    for len in [0, 1, 46, 47, 48, 49, 1000] {
        let text = vec![b'x'; len];
        let string = ModuleString::create(&text);
        // SAFETY: the string was created above, and is released at the end.
        unsafe {
            let bytes = ModuleString::bytes_of(string);
            assert_eq!(bytes, text);
            assert_eq!(*bytes.as_ptr().add(len), 0);
            ModuleString::trim(string);
            assert_eq!(ModuleString::bytes_of(string), text);
            assert!(ModuleString::memory(string) > len);
            ModuleString::release(string);
        }
    }
    // SAFETY: null is allowed.
    assert!(unsafe { ModuleString::bytes_of(std::ptr::null()) }.is_empty());
}

#[test]
fn only_the_single_holder_appends() {
    let string = ModuleString::create(b"a");
    // SAFETY: the string was created above, and is released at the end.
    unsafe {
        assert!(ModuleString::append(string, b"b"));
        ModuleString::retain(string);
        assert!(!ModuleString::append(string, b"c"));
        ModuleString::release(string);
        assert!(ModuleString::append(string, &[b'd'; 100]));
        let bytes = ModuleString::bytes_of(string);
        assert_eq!(bytes, [b"ab".as_slice(), &[b'd'; 100]].concat());
        assert_eq!(*bytes.as_ptr().add(bytes.len()), 0);
        ModuleString::release(string);
    }
}

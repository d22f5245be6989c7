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

#[test]
fn the_words_of_a_command_are_used_again_unless_the_module_holds_them() {
    let words = [b"set".as_slice(), b"key", &[b'v'; 64], b"", &[b'w'; 1000]];
    // SAFETY: strings are used until they are released.
    unsafe {
        let kept = ModuleString::create_again(b"kept");
        ModuleString::retain(kept);
        ModuleString::release_spare(kept);
        for round in 0..3 {
            let strings = words.map(ModuleString::create_again);
            assert!(!strings.contains(&kept), "round {round}");
            for (string, word) in strings.iter().zip(words) {
                assert_eq!(ModuleString::bytes_of(*string), word);
                assert_eq!(*ModuleString::bytes_of(*string).as_ptr().add(word.len()), 0);
                // The words of the next round are without this.
                assert!(ModuleString::append(*string, b"appended"));
            }
            for string in strings {
                ModuleString::release_spare(string);
            }
        }
        assert_eq!(ModuleString::bytes_of(kept), b"kept");
        ModuleString::release(kept);
    }
}

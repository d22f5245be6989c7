//! Tests of the locales that every system has. The tests of the process make a locale of their own.

use std::ffi::CString;

use super::Collation;

fn key(collation: &Collation, text: &str) -> Vec<u8> {
    let mut key = b"before".to_vec();
    collation.append_sort_key(&CString::new(text).expect("no zero byte"), &mut key);
    key.split_off(6)
}

fn sorted(collation: &Collation, words: &[&'static str]) -> Vec<&'static str> {
    let mut words = words.to_vec();
    words.sort_by_key(|word| key(collation, word));
    words
}

#[test]
fn the_c_locale_compares_bytes() {
    let collation = Collation::for_locale(b"C").expect("every system has it");
    assert_eq!(
        sorted(&collation, &["b", "a", "B", "", "ab", "A"]),
        ["", "A", "B", "a", "ab", "b"]
    );
    let long = "x".repeat(10_000);
    assert!(key(&collation, &long).len() >= long.len());
}

#[test]
fn unknown_names_are_refused() {
    assert!(Collation::for_locale(b"no_SUCH.locale").is_none());
    assert!(Collation::for_locale(b"C\0").is_none());
}

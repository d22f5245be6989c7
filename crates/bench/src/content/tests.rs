//! Tests of key numbers and values.

use super::*;

#[test]
fn digits_are_padded_with_zeros() {
    let cases: [(u64, &[u8; 12]); 5] = [
        (0, b"000000000000"),
        (7, b"000000000007"),
        (1_234_567, b"000001234567"),
        (99_999_999, b"000099999999"),
        (999_999_999_999, b"999999999999"),
    ];
    for (number, text) in cases {
        assert_eq!(&digits::<ID_DIGITS>(number), text);
    }
    assert_eq!(&digits::<6>(49), b"000049");
}

#[test]
fn keys_have_the_names_of_templates() {
    assert_eq!(&key_name(0), b"key:000000000000");
    assert_eq!(&key_name(1_234_567), b"key:000001234567");
}

#[test]
fn a_value_depends_on_its_key_only() {
    for size in [0, 1, 8, 64, 512, 4096, 100_000] {
        let values = ValuePool::new(size);
        let again = ValuePool::new(size);
        for id in [0, 1, 2, 1_000_000, u64::MAX] {
            assert_eq!(values.value(id).len(), size);
            assert_eq!(values.value(id), again.value(id));
        }
    }
}

#[test]
fn a_longer_value_of_a_key_starts_with_a_shorter_one() {
    let values = ValuePool::new(64);
    for id in [0, 1, u64::MAX] {
        assert_eq!(values.prefix(id, 64), values.value(id));
        assert!(values.prefix(id, LONGEST_PREFIX).starts_with(values.prefix(id, 16)));
    }
}

#[test]
fn values_of_different_keys_differ() {
    let values = ValuePool::new(64);
    let mut all: Vec<&[u8]> = (0..1000).map(|id| values.value(id)).collect();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 950, "only {} of 1000 values are distinct", all.len());
}

#[test]
fn no_value_is_a_valid_integer() {
    let values = ValuePool::new(8);
    assert!((0..20_000).all(|id| !values.value(id).iter().any(u8::is_ascii_digit)));
}

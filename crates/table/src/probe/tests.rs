//! A published hint leads to the line that a lookup reads first, and a stale one is harmless.

use std::sync::atomic::Ordering::Relaxed;

use super::{Head, Hint, IS_DIRECTORY, PrefetchTarget};
use crate::{NewValue, Table, ValueRef};

fn insert(table: &mut Table<()>, number: u64) {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    drop(table.insert(hash, &number.to_be_bytes(), NewValue::Int(0), None, 0));
}

#[test]
fn a_hint_follows_the_arrays() {
    let mut table = Table::new();
    let hint = Hint::new();
    table.publish(&hint);
    assert!(hint.array.load(Relaxed).is_null());
    for number in 0..100_000 {
        insert(&mut table, number);
        table.publish(&hint);
        let (array, extent) = match table.directory() {
            None => (table.root.buckets().addr(), table.root.bucket_count() as u16),
            Some(directory) => (
                directory.segments.as_ptr().addr(),
                IS_DIRECTORY | u16::from(directory.depth),
            ),
        };
        assert_eq!(hint.array.load(Relaxed).addr(), array);
        assert_eq!(hint.extent.load(Relaxed), extent);
    }
    assert!(table.is_large());
}

#[test]
fn prefetching_changes_nothing_and_accepts_any_table() {
    let mut table = Table::new();
    let stale = table.prefetch_hint();
    (0..10_000).for_each(|number| insert(&mut table, number));
    let full = table.prefetch_hint();
    drop(table.take());
    for hash in (0..1000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
        for hint in [&stale, &full] {
            hint.prefetch_bucket(hash);
        }
        table.prefetch_large_bucket(hash);
        table.entry_place(hash, Head::Short).prefetch();
        table.value_place(hash).prefetch();
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn values_are_found_by_the_hash_of_their_key() {
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut table: Table<Vec<u8>> = Table::new();
    drop(table.insert(hash(1), b"string", NewValue::Bytes(b"value"), None, 0));
    drop(table.insert(hash(2), b"packed", NewValue::Packed(b"packed"), None, 0));
    drop(table.insert(hash(3), b"object", NewValue::Object(b"contents".to_vec()), None, 0));
    let bytes_near = |number| match table.value_near(hash(number))? {
        ValueRef::Bytes(bytes) | ValueRef::Packed(bytes) => Some(bytes),
        ValueRef::Object(object) => Some(object.as_slice()),
        ValueRef::Int(_) | ValueRef::Blob(_) => None,
    };
    let expected: [Option<&[u8]>; 4] = [Some(b"value"), Some(b"packed"), Some(b"contents"), None];
    for (number, expected) in (1..).zip(expected) {
        assert_eq!(bytes_near(number), expected, "{number}");
        let place = PrefetchTarget::behind(expected.map(|bytes| (bytes.as_ptr(), bytes.len())));
        assert_eq!(!place.is_nowhere(), expected.is_some(), "{number}");
    }
}

#[test]
fn a_target_contains_every_line_of_its_bytes() {
    let at = |address: usize| std::ptr::without_provenance::<u8>(address);
    for (start, len, most, first, lines) in [
        (128, 0, 9, 0, 0),
        (128, 1, 9, 128, 1),
        (128, 64, 9, 128, 1),
        (191, 1, 9, 128, 1),
        (191, 2, 9, 128, 2),
        (130, 512, 16, 128, 9),
        (128, 512, 16, 128, 8),
        (130, 4096, 16, 128, 16),
    ] {
        let place = PrefetchTarget::of_bytes(at(start), len, most);
        assert_eq!((place.first.addr(), place.lines), (first, lines), "{len} at {start}");
        let line = place.first_line();
        assert_eq!(
            (line.first.addr(), line.lines),
            (first, lines.min(1)),
            "{len} at {start}"
        );
    }
}

#[test]
fn a_wide_head_contains_small_values_but_not_large_ones() {
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut table: Table<Vec<u8>> = Table::new();
    // Between the bytes that a head certainly has and those that it cannot have, the result depends on where the lines
    // begin.
    for (number, len, surely, never) in [
        (1, 8, Some(Head::Short), None),
        (2, 64, Some(Head::Wide), None),
        (3, 100, None, Some(Head::Short)),
        (4, 200, None, Some(Head::Wide)),
        (5, 5000, None, Some(Head::Wide)),
    ] {
        drop(table.insert(hash(number), b"key", NewValue::Bytes(&vec![b'v'; len]), None, 0));
        let value = table.value_place(hash(number));
        let is_within = |head| value.is_within(table.entry_place(hash(number), head));
        assert!(surely.is_none_or(is_within), "{len} bytes, {surely:?}");
        assert!(!never.is_some_and(is_within), "{len} bytes, {never:?}");
    }
    drop(table.insert(hash(6), b"object", NewValue::Object(Vec::new()), None, 0));
    assert!(
        !table
            .value_place(hash(6))
            .is_within(table.entry_place(hash(6), Head::Wide))
    );
    assert!(
        table
            .value_place(hash(7))
            .is_within(table.entry_place(hash(6), Head::Short)),
        "nothing is missing"
    );
}

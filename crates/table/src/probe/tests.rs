//! A published hint leads to the line that a lookup reads first, and a stale one does no harm.

use std::sync::atomic::Ordering::Relaxed;

use super::{Hint, IS_DIRECTORY};
use crate::{NewValue, Table};

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
fn prefetching_changes_nothing_and_needs_nothing() {
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
        table.prefetch_entry(hash);
        table.prefetch_value(hash);
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn only_objects_tell_what_is_behind_them() {
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut table: Table<Vec<u8>> = Table::new();
    drop(table.insert(hash(1), b"string", NewValue::Bytes(b"value"), None, 0));
    drop(table.insert(hash(2), b"packed", NewValue::Packed(b"packed"), None, 0));
    drop(table.insert(hash(3), b"object", NewValue::Object(b"contents".to_vec()), None, 0));
    for (number, is_object) in [(1, false), (2, false), (3, true), (4, false)] {
        let mut asked = false;
        table.prefetch_behind(hash(number), |object| {
            assert_eq!(object, b"contents");
            asked = true;
            Some(object)
        });
        assert_eq!(asked, is_object, "{number}");
    }
}

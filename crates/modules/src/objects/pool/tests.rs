//! Tests of the pool of a context.

use super::Pool;

#[test]
fn allocations_are_aligned_and_apart() {
    let pool = Pool::default();
    assert!(pool.allocate(0).is_null());
    let mut ranges = Vec::new();
    for bytes in [1, 2, 3, 8, 1, 5, 9, 8192, 1, 8191, 3, 100_000, 7].repeat(20) {
        let start = pool.allocate(bytes).addr();
        let alignment = bytes.next_power_of_two().min(8);
        assert_eq!(start % alignment, 0, "{bytes} bytes");
        ranges.push((start, start + bytes));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    pool.free_all();
    assert!(!pool.allocate(16).is_null());
}

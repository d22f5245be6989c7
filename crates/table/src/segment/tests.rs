//! Bucket counts, and the order of a segment.

use super::{Segment, buckets_for, max_entries, next_bucket_count};
use crate::bucket::{PLACEMENTS, Placement};
use crate::size_class::size_class;

#[test]
fn bucket_counts_fill_size_classes() {
    let counts: Vec<usize> = std::iter::successors(Some(1), |&count| Some(next_bucket_count(count)))
        .take(20)
        .collect();
    let expected = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64];
    assert_eq!(counts, expected);
    for count in counts {
        assert_eq!(size_class(count * 64), count * 64);
        assert!(max_entries(count) <= 7 * count);
        assert_eq!(buckets_for(max_entries(count)), count);
        assert_eq!(buckets_for(max_entries(count) + 1), next_bucket_count(count));
    }
    assert_eq!(buckets_for(0), 0);
}

#[test]
fn homes_are_monotone_and_their_first_placements_exact() {
    for (depth, len) in [(0, 1), (0, 100), (0, 183), (3, 300), (16, 420), (21, 420)] {
        let mut segment = Segment::with_capacity(depth, len);
        let end = PLACEMENTS >> depth;
        for home in 0..segment.bucket_count() {
            let first = segment.first_placement_of(home);
            if first < end {
                assert!(segment.home(Placement::new(first)) >= home);
            }
            if first > 0 {
                assert!(segment.home(Placement::new(first - 1)) < home.max(1));
            }
        }
        assert_eq!(segment.first_placement_of(segment.bucket_count()), end);
        segment.free_arrays();
    }
}

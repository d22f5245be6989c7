//! Tests of the time limit that follows from `maxmemory-eviction-tenacity`.

use super::*;

#[test]
fn the_time_limit_matches_valkey() {
    let us = |tenacity| eviction_time_limit(tenacity).as_micros();
    assert_eq!([0, 1, 10].map(us), [0, 50, 500]);
    assert_eq!(us(11), 575);
    assert!((100_000_000..200_000_000).contains(&us(99)), "about two minutes");
    assert_eq!(eviction_time_limit(100), Duration::MAX);
}

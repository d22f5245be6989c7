//! Tests of the latest time at which an expired key was found.

use super::SeenExpiry;

#[test]
fn the_latest_time_does_not_go_back() {
    let seen = SeenExpiry::default();
    assert_eq!(seen.latest_ms(), 0);
    for (now_ms, latest_ms) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
        seen.note(now_ms);
        assert_eq!(seen.latest_ms(), latest_ms, "after {now_ms}");
    }
}

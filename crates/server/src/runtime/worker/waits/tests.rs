//! Tests the ends of waits.

use weft_base::LogSequence;

use super::*;

#[test]
fn a_wait_without_a_timeout_has_no_end() {
    let wait_for_log = |deadline_ms| ClientWait::Log {
        park_id: ParkId::NONE,
        wait: LogWait {
            sequence: LogSequence::NONE,
            needs_replicas: false,
            deadline_ms,
        },
    };
    let wait_for_time = |at_ms| ClientWait::Time {
        at_ms,
        park_id: ParkId::NONE,
        reply: Vec::new(),
    };
    assert_eq!(wait_for_log(u64::MAX).end_ms(), None);
    assert_eq!(wait_for_log(1000).end_ms(), Some(1000));
    assert_eq!(wait_for_time(u64::MAX).end_ms(), None);
    assert_eq!(wait_for_time(1000).end_ms(), Some(1000));
}

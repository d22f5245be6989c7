//! Tests that timers end in order and not early, and can be removed.

use super::TimerQueue;
use weft_base::ParkId;

#[test]
fn due_values_are_popped_in_order_and_not_early() {
    let mut timers = TimerQueue::default();
    timers.add(20, ParkId::new(1), "c");
    timers.add(10, ParkId::new(3), "b");
    timers.add(10, ParkId::new(2), "a");
    assert_eq!(timers.next_due_ms(), Some(11));
    assert_eq!(timers.pop_due(10), None);
    assert_eq!(timers.pop_due(11), Some("a"));
    assert_eq!(timers.pop_due(11), Some("b"));
    assert_eq!(timers.pop_due(11), None);
    assert_eq!(timers.next_due_ms(), Some(21));
    assert_eq!(timers.pop_due(500), Some("c"));
    assert_eq!((timers.next_due_ms(), timers.is_empty()), (None, true));
}

#[test]
fn a_removed_timer_does_not_fire() {
    let mut timers = TimerQueue::default();
    timers.add(10, ParkId::new(1), 'a');
    timers.add(10, ParkId::new(2), 'b');
    assert_eq!(timers.remove(10, ParkId::new(1)), Some('a'));
    assert_eq!(timers.remove(10, ParkId::new(1)), None);
    assert_eq!(timers.pop_due(u64::MAX), Some('b'));
    timers.add(u64::MAX, ParkId::new(3), 'c');
    assert_eq!(timers.pop_due(u64::MAX), None);
}

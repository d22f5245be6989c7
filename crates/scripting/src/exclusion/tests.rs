//! Tests the order of turns.

use super::{ExclusionQueue, MAX_OVERTAKING_US, Requester, RetryInterval, SHORT_NOTICE_US, TICK_NOTICE_US};

const A: Requester = Requester::Client(1);
const B: Requester = Requester::Client(2);
const C: Requester = Requester::Thread(1);

fn queue_of(waiting: &[Requester]) -> ExclusionQueue {
    let mut queue = ExclusionQueue::default();
    for requester in waiting {
        queue.note_failure(*requester, RetryInterval::Short, 0);
    }
    queue
}

#[test]
fn a_turn_ends_once_everything_that_waited_at_its_start_has_succeeded() {
    let mut queue = queue_of(&[A, B]);
    queue.begin_section(Some(A));
    queue.note_failure(C, RetryInterval::Short, 10);
    assert!(!queue.end_section(20), "B waits");
    queue.begin_section(Some(B));
    assert!(queue.end_section(30), "C came later");
    assert_eq!(queue.announced_until_us(), 10 + SHORT_NOTICE_US);
    queue.begin_section(Some(C));
    assert!(queue.end_section(40));
    assert_eq!((queue.len(), queue.announced_until_us()), (0, 0));
}

#[test]
fn a_turn_does_not_wait_for_a_member_that_has_given_up() {
    let mut queue = queue_of(&[A, B]);
    queue.begin_section(Some(A));
    assert!(!queue.end_section(SHORT_NOTICE_US - 1));
    queue.begin_section(None);
    assert!(queue.end_section(SHORT_NOTICE_US));
    assert_eq!(queue.len(), 1, "it may only be late");
    queue.begin_section(None);
    assert!(queue.end_section(600_000));
    assert_eq!(queue.len(), 0);
}

#[test]
fn a_requester_that_is_late_announces_itself_for_longer() {
    let mut queue = queue_of(&[A]);
    queue.note_failure(A, RetryInterval::Short, 20_000);
    assert_eq!(queue.announced_until_us(), 60_000);
    queue.note_failure(A, RetryInterval::Short, 21_000);
    assert_eq!(queue.announced_until_us(), 60_000, "an earlier announcement stays");
    queue.note_failure(A, RetryInterval::Short, 400_000);
    assert_eq!(queue.announced_until_us(), 500_000);
}

#[test]
fn members_are_overtaken_for_a_limited_time() {
    let mut queue = queue_of(&[A, B]);
    let later = MAX_OVERTAKING_US + 1;
    queue.note_failure(B, RetryInterval::Short, later);
    assert!(!queue.must_yield(Some(C), later), "scripts run: nobody has a turn");
    queue.begin_section(Some(A));
    assert!(!queue.must_yield(Some(C), MAX_OVERTAKING_US));
    assert!(queue.must_yield(Some(C), later) && queue.must_yield(None, later));
    assert!(queue.must_yield(Some(A), later), "it has had its section");
    assert!(!queue.must_yield(Some(B), later));
    queue.begin_section(Some(B));
    assert!(queue.end_section(later) && !queue.must_yield(Some(C), later));
}

#[test]
fn what_tries_at_ticks_keeps_scripts_from_starting_but_no_other_requester() {
    let mut queue = ExclusionQueue::default();
    queue.note_failure(Requester::ClusterBus, RetryInterval::Tick, 0);
    queue.begin_section(Some(A));
    assert!(!queue.end_section(100_000) && !queue.must_yield(Some(A), 100_000));
    assert_eq!(queue.announced_until_us(), TICK_NOTICE_US);
    queue.begin_section(Some(Requester::ClusterBus));
    assert!(queue.end_section(100_001));
}

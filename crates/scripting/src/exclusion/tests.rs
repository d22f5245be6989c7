//! Tests the order of turns.

use super::{
    ExclusionQueue, MAX_NOTICE_US, MAX_OVERTAKING_US, MAX_SILENCE_US, MAX_TICK_WAIT_US, Requester, RetryInterval,
    SHORT_NOTICE_US, TICK_NOTICE_US,
};

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
    queue.begin_section(A, 5);
    queue.note_failure(C, RetryInterval::Short, 10);
    assert!(!queue.end_section(20), "B waits");
    queue.begin_section(B, 25);
    assert!(queue.end_section(30), "C came later");
    assert_eq!(queue.announced_until_us(), 10 + SHORT_NOTICE_US);
    queue.begin_section(C, 35);
    assert!(queue.end_section(40));
    assert_eq!((queue.len(), queue.announced_until_us()), (0, 0));
}

#[test]
fn a_turn_of_one_does_not_affect_the_next_one() {
    let mut queue = queue_of(&[A]);
    queue.begin_section(A, 1);
    // Nothing waits, so its end is not reported.
    for requester in [A, B, C] {
        queue.note_failure(requester, RetryInterval::Short, 100);
    }
    queue.begin_section(B, 110);
    assert!(!queue.end_section(120), "A and C waited as well");
}

#[test]
fn a_turn_does_not_wait_for_a_member_that_has_given_up() {
    let mut queue = queue_of(&[A, B]);
    queue.begin_section(A, 1);
    assert!(!queue.end_section(SHORT_NOTICE_US - 1));
    assert!(queue.end_section(SHORT_NOTICE_US));
    assert_eq!(queue.len(), 1, "it may only be late");
    queue.begin_section(C, SHORT_NOTICE_US);
    assert!(
        queue.end_section(SHORT_NOTICE_US),
        "the next turn does not wait for it either"
    );
    queue.note_failure(A, RetryInterval::Short, 2 * MAX_SILENCE_US);
    assert_eq!(queue.len(), 1, "it is forgotten");
    let mut queue = queue_of(&[A, B]);
    queue.begin_section(A, 1);
    queue.withdraw(B);
    assert!(queue.end_section(2));
    assert_eq!(queue.announced_until_us(), 0);
}

#[test]
fn a_requester_that_is_late_announces_itself_for_longer() {
    let mut queue = queue_of(&[A]);
    queue.note_failure(A, RetryInterval::Short, 20_000);
    assert_eq!(queue.announced_until_us(), 60_000);
    queue.note_failure(A, RetryInterval::Short, 21_000);
    assert_eq!(queue.announced_until_us(), 60_000, "an earlier announcement stays");
    queue.note_failure(A, RetryInterval::Short, 400_000);
    assert_eq!(queue.announced_until_us(), 400_000 + MAX_NOTICE_US);
}

#[test]
fn members_are_overtaken_for_a_limited_time() {
    let mut queue = queue_of(&[A, B]);
    let later = MAX_OVERTAKING_US + 1;
    queue.note_failure(B, RetryInterval::Short, later);
    assert!(!queue.must_yield(C, later), "nobody has a turn");
    queue.begin_section(A, 1);
    assert!(!queue.must_yield(C, MAX_OVERTAKING_US));
    assert!(queue.must_yield(C, later));
    assert!(queue.must_yield(A, later), "it has had its section");
    assert!(!queue.must_yield(B, later));
    queue.begin_section(B, later);
    assert!(queue.end_section(later) && !queue.must_yield(C, later));
}

#[test]
fn a_requester_that_tries_at_ticks_delays_scripts_but_extends_no_turn() {
    let mut queue = ExclusionQueue::default();
    queue.note_failure(Requester::ClusterBus, RetryInterval::Tick, 0);
    queue.begin_section(A, 1);
    assert!(queue.end_section(2) && !queue.must_yield(A, 100_000));
    assert_eq!(queue.announced_until_us(), TICK_NOTICE_US);
    queue.note_failure(Requester::ClusterBus, RetryInterval::Short, 100_000);
    queue.begin_section(A, 100_001);
    assert!(!queue.end_section(100_002), "it tries again soon");
    queue.begin_section(Requester::ClusterBus, 100_003);
    assert!(queue.end_section(100_004));
    assert_eq!(queue.announced_until_us(), 0);
}

#[test]
fn a_requester_that_tries_at_ticks_becomes_a_member_after_a_while() {
    let mut queue = ExclusionQueue::default();
    for tick in 0..=MAX_TICK_WAIT_US / 100_000 + 1 {
        let now_us = tick * 100_000;
        queue.note_failure(Requester::ClusterBus, RetryInterval::Tick, now_us);
        queue.begin_section(A, now_us + 1);
        assert_eq!(queue.end_section(now_us + 2), now_us < MAX_TICK_WAIT_US, "{now_us}");
    }
}

#[test]
fn a_turn_lasts_no_longer_than_its_members_announce() {
    let mut queue = queue_of(&[A]);
    queue.note_failure(A, RetryInterval::Short, 50_000);
    queue.note_failure(B, RetryInterval::Short, 50_000);
    queue.begin_section(C, 50_001);
    queue.begin_section(A, 50_002);
    assert!(
        !queue.end_section(50_000 + SHORT_NOTICE_US - 1),
        "A has announced itself for longer, but is done"
    );
    assert!(queue.end_section(50_000 + SHORT_NOTICE_US));
}

#[test]
fn the_number_of_members_is_kept() {
    let mut queue = queue_of(&[A, B, C]);
    queue.begin_section(A, 1);
    assert_eq!(queue.turn.members, 2);
    queue.note_failure(A, RetryInterval::Short, 2 * MAX_SILENCE_US);
    assert_eq!(
        (queue.turn.members, queue.len()),
        (0, 1),
        "silent members leave the turn"
    );
    queue.begin_section(A, 2 * MAX_SILENCE_US);
    assert_eq!((queue.turn.members, queue.len()), (0, 0));
}

//! Tests the order of turns.

use super::{
    AttemptKind, ExclusionQueue, MAX_HOLD_UP_US, MAX_LAST_WAIT_US, MAX_NOTICE_US, MAX_OVERTAKING_US, MAX_SILENCE_US,
    MAX_TICK_WAIT_US, MAX_TURN_US, Requester, SHORT_NOTICE_US, TICK_NOTICE_US,
};

const A: Requester = Requester::Client(1);
const B: Requester = Requester::Client(2);
const C: Requester = Requester::Thread(1);

fn queue_of(waiting: &[Requester]) -> ExclusionQueue {
    let mut queue = ExclusionQueue::default();
    for requester in waiting {
        queue.note_failure(*requester, AttemptKind::Usual, 0);
    }
    queue
}

#[test]
fn a_turn_ends_once_everything_that_waited_at_its_start_has_succeeded() {
    let mut queue = queue_of(&[A, B]);
    queue.begin_section(A, 5);
    queue.note_failure(C, AttemptKind::Usual, 10);
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
        queue.note_failure(requester, AttemptKind::Usual, 100);
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
    queue.note_failure(A, AttemptKind::Usual, 2 * MAX_SILENCE_US);
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
    queue.note_failure(A, AttemptKind::Usual, 20_000);
    assert_eq!(queue.announced_until_us(), 60_000);
    queue.note_failure(A, AttemptKind::Usual, 21_000);
    assert_eq!(queue.announced_until_us(), 60_000, "an earlier announcement stays");
    queue.note_failure(A, AttemptKind::Usual, 400_000);
    assert_eq!(queue.announced_until_us(), 400_000 + 2 * 379_000);
    queue.note_failure(A, AttemptKind::Usual, MAX_SILENCE_US);
    assert_eq!(queue.announced_until_us(), MAX_SILENCE_US + MAX_NOTICE_US);
}

#[test]
fn a_requester_that_tries_once_in_a_second_finds_no_script_at_its_third_attempt() {
    const SECOND_US: u64 = 1_000_000;
    let mut queue = queue_of(&[A]);
    // Others that try often, and succeed, neither remove it nor shorten its announcement.
    let try_often = |queue: &mut ExclusionQueue, second: u64| {
        for now_us in (1..10).map(|tenth| second * SECOND_US + tenth * SECOND_US / 10) {
            queue.note_failure(B, AttemptKind::Usual, now_us);
            if queue.must_yield(B, AttemptKind::Usual, now_us + 1) {
                continue;
            }
            queue.begin_section(B, now_us + 1);
            queue.end_section(now_us + 2);
        }
    };
    try_often(&mut queue, 0);
    queue.note_failure(A, AttemptKind::Usual, SECOND_US);
    try_often(&mut queue, 1);
    assert!(
        queue.announced_until_us() > 2 * SECOND_US,
        "no script starts before the next attempt"
    );
}

#[test]
fn members_are_overtaken_for_a_limited_time() {
    let mut queue = queue_of(&[A, B]);
    let later = MAX_OVERTAKING_US + 1;
    queue.note_failure(B, AttemptKind::Usual, later);
    assert!(!queue.must_yield(C, AttemptKind::Usual, later), "nobody has a turn");
    queue.begin_section(A, 1);
    assert!(!queue.must_yield(C, AttemptKind::Usual, MAX_OVERTAKING_US));
    assert!(queue.must_yield(C, AttemptKind::Usual, later));
    assert!(queue.must_yield(A, AttemptKind::Usual, later), "it has had its section");
    assert!(!queue.must_yield(B, AttemptKind::Usual, later));
    queue.begin_section(B, later);
    assert!(queue.end_section(later) && !queue.must_yield(C, AttemptKind::Usual, later));
}

#[test]
fn a_pause_comes_after_the_others_of_its_turn() {
    const PAUSES: [Requester; 2] = [Requester::Client(8), Requester::Client(9)];
    let must_yield =
        |queue: &ExclusionQueue, now_us| PAUSES.map(|pause| queue.must_yield(pause, AttemptKind::Last, now_us));
    let mut queue = ExclusionQueue::default();
    assert_eq!(must_yield(&queue, 0), [false; 2], "nothing waits");
    queue.note_failure(A, AttemptKind::Usual, 0);
    assert_eq!(must_yield(&queue, 0), [true; 2], "there is no turn yet");
    queue.note_failure(PAUSES[0], AttemptKind::Last, 0);
    queue.note_failure(PAUSES[1], AttemptKind::Last, 0);
    queue.note_failure(B, AttemptKind::Usual, 0);
    queue.begin_section(A, 1);
    queue.note_failure(C, AttemptKind::Usual, 2);
    assert!(!queue.end_section(2));
    assert_eq!(must_yield(&queue, 2), [true; 2], "B is a member");
    queue.begin_section(B, 3);
    assert!(!queue.end_section(3), "the pauses are members too");
    assert_eq!(
        must_yield(&queue, 3),
        [false; 2],
        "C came later, and they do not wait for each other"
    );
    queue.begin_section(PAUSES[0], 4);
    queue.begin_section(PAUSES[1], 5);
    assert!(queue.end_section(5));
}

#[test]
fn a_pause_does_not_wait_for_what_has_given_up() {
    let pause = Requester::Client(9);
    let mut queue = queue_of(&[A, B]);
    queue.withdraw(B);
    assert!(queue.must_yield(pause, AttemptKind::Last, SHORT_NOTICE_US - 1));
    assert!(!queue.must_yield(pause, AttemptKind::Last, SHORT_NOTICE_US));
    let mut queue = ExclusionQueue::default();
    queue.note_failure(Requester::ClusterBus, AttemptKind::Tick, 0);
    assert!(!queue.must_yield(pause, AttemptKind::Last, 1), "it is in no hurry");
}

#[test]
fn a_pause_yields_for_a_limited_time() {
    let pause = Requester::Client(9);
    let mut queue = ExclusionQueue::default();
    for now_us in (0..MAX_LAST_WAIT_US).step_by(10_000) {
        queue.note_failure(A, AttemptKind::Usual, now_us);
        assert!(queue.must_yield(pause, AttemptKind::Last, now_us), "{now_us}");
        queue.note_failure(pause, AttemptKind::Last, now_us);
    }
    queue.note_failure(A, AttemptKind::Usual, MAX_LAST_WAIT_US);
    assert!(!queue.must_yield(pause, AttemptKind::Last, MAX_LAST_WAIT_US));
}

#[test]
fn a_requester_that_tries_at_ticks_delays_scripts_but_extends_no_turn() {
    let mut queue = ExclusionQueue::default();
    queue.note_failure(Requester::ClusterBus, AttemptKind::Tick, 0);
    queue.begin_section(A, 1);
    assert!(queue.end_section(2) && !queue.must_yield(A, AttemptKind::Usual, 100_000));
    assert_eq!(queue.announced_until_us(), TICK_NOTICE_US);
    queue.note_failure(Requester::ClusterBus, AttemptKind::Usual, 100_000);
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
        queue.note_failure(Requester::ClusterBus, AttemptKind::Tick, now_us);
        queue.begin_section(A, now_us + 1);
        assert_eq!(queue.end_section(now_us + 2), now_us < MAX_TICK_WAIT_US, "{now_us}");
    }
}

#[test]
fn a_turn_lasts_no_longer_than_its_members_announce() {
    let mut queue = queue_of(&[A]);
    queue.note_failure(A, AttemptKind::Usual, 50_000);
    queue.note_failure(B, AttemptKind::Usual, 50_000);
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
    queue.note_failure(A, AttemptKind::Usual, 2 * MAX_SILENCE_US);
    assert_eq!(
        (queue.turn.members, queue.len()),
        (0, 1),
        "silent members leave the turn"
    );
    queue.begin_section(A, 2 * MAX_SILENCE_US);
    assert_eq!((queue.turn.members, queue.len()), (0, 0));
}

#[test]
fn a_member_that_is_late_holds_up_scripts_for_longer_than_other_requesters() {
    const SECOND_US: u64 = 1_000_000;
    let mut queue = queue_of(&[A, B]);
    queue.note_failure(A, AttemptKind::Usual, SECOND_US);
    queue.note_failure(B, AttemptKind::Usual, SECOND_US);
    queue.begin_section(B, SECOND_US + 1);
    let must_yield = |queue: &ExclusionQueue, now_us| queue.must_yield(C, AttemptKind::Usual, now_us);
    assert!(must_yield(&queue, SECOND_US + 400_000), "A has waited for a second");
    assert!(!must_yield(&queue, SECOND_US + 600_000));
    assert!(
        !queue.end_section(SECOND_US + 600_000),
        "scripts wait until the end of its notice"
    );
    assert!(queue.announced_until_us() >= 3 * SECOND_US);
    // Whatever happens, nobody is held up for longer than MAX_HOLD_UP_US after the latest attempt.
    queue.note_failure(A, AttemptKind::Usual, 9 * SECOND_US);
    assert!(must_yield(&queue, 9 * SECOND_US + MAX_HOLD_UP_US - 1));
    assert!(!must_yield(&queue, 9 * SECOND_US + MAX_HOLD_UP_US));
    queue.withdraw(A);
    assert!(!must_yield(&queue, 9 * SECOND_US + 1));
}

#[test]
fn scripts_have_a_turn_although_a_member_is_late_again_and_again() {
    const SECOND_US: u64 = 1_000_000;
    let mut queue = queue_of(&[A, B]);
    for second in 1..3 {
        queue.note_failure(A, AttemptKind::Usual, second * SECOND_US);
    }
    queue.note_failure(B, AttemptKind::Usual, 2 * SECOND_US);
    queue.begin_section(B, 2 * SECOND_US);
    let mut turns = 0;
    for tenth in 21..130 {
        let now_us = tenth * SECOND_US / 10;
        if tenth % 20 == 0 {
            queue.note_failure(A, AttemptKind::Usual, now_us);
        }
        queue.begin_section(C, now_us);
        turns += usize::from(queue.end_section(now_us));
    }
    assert_eq!(
        turns,
        (11 * SECOND_US / MAX_TURN_US) as usize,
        "one about every five seconds"
    );
    assert_eq!(queue.len(), 1, "A keeps its place");
}

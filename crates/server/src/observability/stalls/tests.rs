//! Tests of the detection of stalls, in simulated time.

use super::*;

const MS: u64 = 1_000_000;
const THRESHOLD_NS: u64 = 1000 * MS;
const STEP_NS: u64 = 250 * MS;

/// Threads that a test lets run: two workers and two other threads.
struct Threads {
    seen: ThreadObservations,
    detector: StallDetector,
    counts: StallCounts,
}

impl Threads {
    fn new() -> Threads {
        let out = SeatObservation {
            is_inside: false,
            passages: 0,
        };
        let mut threads = Threads {
            seen: ThreadObservations {
                now_ns: MS,
                workers: vec![WorkerObservation::default(); 2],
                seats: vec![out; 4],
                closing: None,
            },
            detector: StallDetector::default(),
            counts: StallCounts::default(),
        };
        assert_eq!(threads.pass(STEP_NS), []);
        threads
    }

    fn begin_turn(&mut self, worker: usize) {
        self.seen.workers[worker].turn_started_ns = self.seen.now_ns;
    }

    fn end_turn(&mut self, worker: usize) {
        let worker = &mut self.seen.workers[worker];
        worker.finished_turns_ns += self.seen.now_ns - worker.turn_started_ns;
        worker.turn_started_ns = 0;
    }

    fn enter(&mut self, seat: usize) {
        let seat = &mut self.seen.seats[seat];
        (seat.is_inside, seat.passages) = (true, seat.passages + 1);
    }

    fn leave(&mut self, seat: usize) {
        self.seen.seats[seat].is_inside = false;
    }

    fn close(&mut self, seat: usize, closing: u64) {
        self.seen.closing = Some(ClosingObservation { seat, closing });
    }

    /// Lets this time pass, and looks at the end.
    fn pass(&mut self, nanoseconds: u64) -> Vec<StallReport> {
        self.seen.now_ns += nanoseconds;
        self.detector.observe(&self.seen, THRESHOLD_NS, &self.counts)
    }

    /// Lets this number of steps pass. Returns the kind, the thread, the age in milliseconds and the phase of each
    /// report.
    fn pass_steps(&mut self, steps: u64) -> Vec<(StallKind, usize, u64, StallPhase)> {
        let reports = (0..steps).flat_map(|_| self.pass(STEP_NS));
        reports
            .map(|report| (report.kind, report.thread, report.age_ns / MS, report.phase))
            .collect()
    }
}

#[test]
fn a_long_turn_is_reported_at_the_threshold_and_whenever_its_age_has_doubled() {
    let mut threads = Threads::new();
    threads.begin_turn(1);
    let turn = |age, phase| (StallKind::Turn, 1, age, phase);
    assert_eq!(threads.pass_steps(3), []);
    assert_eq!(threads.counts.begun(StallKind::Turn), 0);
    let expected = [
        turn(1000, StallPhase::Begun),
        turn(2000, StallPhase::Continues),
        turn(4000, StallPhase::Continues),
    ];
    assert_eq!(threads.pass_steps(28), expected);
    assert_eq!(threads.counts.current(StallKind::Turn), 1);
    threads.end_turn(1);
    threads.begin_turn(1);
    assert_eq!(threads.pass_steps(3), [turn(7750, StallPhase::Ended)]);
    let counts = &threads.counts;
    assert_eq!((counts.begun(StallKind::Turn), counts.current(StallKind::Turn)), (1, 0));
}

#[test]
fn many_short_turns_passages_and_closings_are_no_stall() {
    let mut threads = Threads::new();
    for closing in 0..100 {
        threads.begin_turn(0);
        threads.enter(0);
        threads.enter(3);
        assert_eq!(threads.pass_steps(1), []);
        threads.leave(0);
        threads.leave(3);
        threads.close(1, closing);
        assert_eq!(threads.pass_steps(1), []);
        threads.end_turn(0);
        threads.seen.closing = None;
        threads.seen.workers[1].unread_messages = 1;
        assert_eq!(threads.pass_steps(1), []);
        threads.seen.workers[1].finished_turns_ns += 1;
    }
}

#[test]
fn leases_of_another_thread_are_a_stall_and_workers_that_wait_for_exclusive_mode_are_none() {
    let mut threads = Threads::new();
    threads.enter(2);
    assert_eq!(threads.pass_steps(2), []);
    // Worker 0 wants exclusive mode, and worker 1 to enter.
    threads.begin_turn(0);
    threads.begin_turn(1);
    threads.close(0, 9);
    assert_eq!(threads.pass_steps(2), []);
    let reports = threads.pass(STEP_NS);
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].kind, reports[0].thread), (StallKind::Lease, 2));
    assert!(reports[0].keeps_closer_waiting);
    assert_eq!(threads.pass_steps(3), []);
    // Now worker 0 has exclusive mode, and keeps it. The time for which it has waited does not count.
    threads.leave(2);
    assert_eq!(threads.pass_steps(1), [(StallKind::Lease, 2, 1750, StallPhase::Ended)]);
    assert_eq!(
        threads.pass_steps(3),
        [(StallKind::Exclusive, 0, 1000, StallPhase::Begun)],
        "the turns of both workers are consequences"
    );
    assert_eq!(threads.pass_steps(3), [], "nor are they reported later");
    threads.seen.closing = None;
    threads.enter(1);
    threads.end_turn(0);
    let reports = threads.pass_steps(1);
    assert!(
        reports.contains(&(StallKind::Exclusive, 0, 1750, StallPhase::Ended)),
        "{reports:?}"
    );
}

#[test]
fn exclusive_mode_that_was_awaited_for_long_and_is_short_is_no_stall() {
    let mut threads = Threads::new();
    threads.enter(2);
    threads.close(0, 4);
    threads.begin_turn(0);
    let lease = |age, phase| (StallKind::Lease, 2, age, phase);
    let expected = [lease(1000, StallPhase::Begun), lease(2000, StallPhase::Continues)];
    assert_eq!(threads.pass_steps(12), expected);
    threads.leave(2);
    assert_eq!(threads.pass_steps(2), [lease(2750, StallPhase::Ended)]);
    threads.seen.closing = None;
    threads.end_turn(0);
    assert_eq!(threads.pass_steps(1), []);
    assert_eq!(threads.counts.begun(StallKind::Exclusive), 0);
}

#[test]
fn a_worker_that_is_inside_keeps_a_closer_waiting() {
    let mut threads = Threads::new();
    threads.begin_turn(1);
    threads.enter(1);
    threads.close(3, 1);
    let reports: Vec<StallReport> = (0..4).flat_map(|_| threads.pass(STEP_NS)).collect();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].kind, reports[0].thread), (StallKind::Turn, 1));
    assert!(reports[0].keeps_closer_waiting);
}

#[test]
fn a_worker_that_sleeps_beside_its_mail_is_reported() {
    let mut threads = Threads::new();
    threads.seen.workers[0].unread_messages = 2;
    let message = |age, phase| (StallKind::Message, 0, age, phase);
    assert_eq!(threads.pass_steps(4), []);
    assert_eq!(threads.pass_steps(1), [message(1000, StallPhase::Begun)]);
    threads.seen.workers[0].unread_messages = 0;
    assert_eq!(threads.pass_steps(1), [message(1000, StallPhase::Ended)]);
}

#[test]
fn time_in_which_the_process_stood_still_does_not_count() {
    let mut threads = Threads::new();
    threads.begin_turn(0);
    threads.enter(2);
    assert_eq!(threads.pass_steps(2), []);
    assert_eq!(threads.pass(60_000 * MS), [], "a signal has stopped the process");
    assert_eq!(threads.pass_steps(3), []);
    assert_eq!(threads.pass_steps(1).len(), 2, "both go on for another threshold");
    assert_eq!(threads.pass(60_000 * MS), [], "what was reported has not ended");
    assert_eq!(threads.counts.current(StallKind::Turn), 1);
}

#[test]
fn nothing_is_present_after_the_watchdog_was_switched_off() {
    let mut threads = Threads::new();
    threads.begin_turn(0);
    assert_eq!(threads.pass_steps(4).len(), 1);
    threads.detector.clear(&threads.counts);
    assert_eq!(threads.counts.current(StallKind::Turn), 0);
    assert_eq!(threads.counts.begun(StallKind::Turn), 1);
}

#[test]
fn lines_are_limited_per_period_and_the_others_are_counted() {
    let mut limit = LineLimit::default();
    let now_ns = 5 * LineLimit::PERIOD_NS;
    let permitted = (0..25).filter(|_| limit.permits(now_ns)).count();
    assert_eq!(permitted, LineLimit::MAX_LINES as usize);
    assert_eq!(limit.take_suppressed(now_ns), None, "a line about them is a line, too");
    let later_ns = now_ns + LineLimit::PERIOD_NS;
    assert_eq!(limit.take_suppressed(later_ns), Some(15));
    assert_eq!(limit.take_suppressed(later_ns), None);
    assert!(limit.permits(later_ns));
}

#[test]
fn names_of_events_and_labels_are_distinct() {
    for (index, kind) in StallKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, index);
        assert_eq!(kind.event(), format!("watchdog-{}", kind.label()));
    }
}

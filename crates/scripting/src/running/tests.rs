//! Tests which runs can be killed, and the mutual exclusion of runs and exclusive sections.

use std::sync::Arc;
use std::time::Duration;

use super::starts::{DELAYED_RUNS_TURN, LONG_DELAYED_RUNS_TURN};
use super::{KillError, Ordering, RunParameters, RunRegistry, ScriptRun, StopReason};
use crate::exclusion::{AttemptKind, Requester};

const CLIENT: Requester = Requester::Client(1);

fn run(is_function: bool) -> Arc<ScriptRun> {
    Arc::new(ScriptRun::new(RunParameters {
        name: b"f",
        is_function,
        command: Vec::new(),
        leaves_after: None,
        overdue_after: Some(std::time::Duration::ZERO),
        started: None,
    }))
}

#[test]
fn a_run_in_the_memory_of_an_earlier_one_is_as_a_new_one() {
    let running = RunRegistry::default();
    let earlier = Arc::new(ScriptRun::new(RunParameters {
        name: b"earlier",
        is_function: true,
        command: vec![b"fcall".to_vec()],
        leaves_after: Some(std::time::Duration::ZERO),
        overdue_after: Some(std::time::Duration::ZERO),
        started: None,
    }));
    earlier.note_held_slots([1, 2].into_iter());
    earlier.end_when_overdue();
    running.list(&earlier);
    assert!(running.check_run(&earlier, true, || Some(("source".to_owned(), 3))));
    running.unlist(&earlier);
    assert!(earlier.is_overdue() && earlier.time_when_overdue().is_some() && earlier.stopped_at().is_some());
    let memory = Arc::as_ptr(&earlier);

    let parameters = RunParameters {
        name: b"later",
        ..RunParameters::default()
    };
    let later = ScriptRun::start(Some(earlier), parameters, Some([7].into_iter()));
    assert_eq!(Arc::as_ptr(&later), memory);
    assert_eq!((later.name.as_slice(), later.is_function), (&b"later"[..], false));
    assert_eq!((later.command.len(), later.stop_reason()), (0, None));
    assert!(!later.has_written() && !later.is_overdue() && !later.may_move_to_script_thread());
    assert!(later.time_when_overdue().is_none() && later.stopped_at().is_none());
    assert!(later.is_holding(7) && !later.is_holding(1) && !later.is_holding(2));
    assert!(!running.check_run(&later, false, || None), "it is never overdue");
    assert!(later.try_note_write());

    let refers = later.clone();
    let other = ScriptRun::start(Some(later), RunParameters::default(), None::<std::iter::Empty<u16>>);
    assert!(
        !Arc::ptr_eq(&other, &refers),
        "something else still refers to that memory"
    );
    assert!(refers.has_written() && !other.has_written() && other.is_holding(7));
}

#[test]
fn only_a_run_of_the_right_kind_that_has_not_written_is_killed() {
    let running = RunRegistry::default();
    assert_eq!(running.kill(false), Err(KillError::NotRunning));
    let function = run(true);
    running.list(&function);
    assert_eq!(running.kill(false), Err(KillError::OtherKind));
    assert!(function.try_note_write());
    assert_eq!(running.kill(true), Err(KillError::HasWritten));
    let script = run(false);
    running.list(&script);
    assert_eq!(running.kill(false), Ok(()));
    assert_eq!(script.stop_reason(), Some(StopReason::Killed));
    assert_eq!(function.stop_reason(), None);
}

#[test]
fn a_kill_replaces_a_reason_for_which_the_script_would_start_again() {
    let running = RunRegistry::default();
    for reason in [StopReason::Contended, StopReason::TooLong] {
        let stopped = run(true);
        running.list(&stopped);
        assert!(stopped.stop(reason));
        assert_eq!(running.kill(true), Ok(()));
        assert_eq!(stopped.stop_reason(), Some(StopReason::Killed));
        assert!(!stopped.stop(reason), "a kill is not replaced");
        assert_eq!(running.kill(true), Ok(()), "it is still listed");
        assert_eq!(stopped.settle_stop_reason(), Some(StopReason::Killed));
        running.unlist(&stopped);

        let restarting = run(true);
        running.list(&restarting);
        assert!(restarting.stop(reason));
        assert_eq!(restarting.settle_stop_reason(), Some(reason));
        assert_eq!(running.kill(true), Err(KillError::NotRunning), "the kill would be lost");
        assert_eq!(restarting.stop_reason(), Some(reason));
        assert!(!restarting.try_note_write());
        running.unlist(&restarting);
    }
    let ended = run(true);
    assert_eq!(ended.settle_stop_reason(), None);
    assert!(ended.try_note_write() && ended.has_written());
    assert_eq!(ended.settle_stop_reason(), None);
}

#[test]
fn the_other_kind_is_reported_only_if_no_run_of_the_requested_kind_is_listed() {
    let running = RunRegistry::default();
    let (function, script) = (run(true), run(false));
    running.list(&function);
    running.list(&script);
    // It cannot be killed any more, but a function runs all the same.
    assert!(function.stop(StopReason::TooLong) && function.settle_stop_reason().is_some());
    assert_eq!(running.kill(true), Err(KillError::NotRunning));
    assert!(script.try_note_write());
    assert_eq!(running.kill(false), Err(KillError::HasWritten));
    running.unlist(&function);
    assert_eq!(running.kill(true), Err(KillError::HasWritten), "as in Valkey");
    let other_script = run(false);
    running.list(&other_script);
    assert_eq!(running.kill(true), Err(KillError::OtherKind));
    assert_eq!(running.kill(false), Ok(()));
    assert_eq!(other_script.stop_reason(), Some(StopReason::Killed));
    assert_eq!(script.stop_reason(), None);
}

#[test]
fn an_overdue_run_is_listed_and_found_by_its_slots() {
    let running = RunRegistry::default();
    let script = run(false);
    script.note_held_slots([3, 5].into_iter());
    assert!(running.overdue_holder(None).is_none());
    assert_eq!(script.time_when_overdue(), None);
    assert!(
        !running.check_run(&script, false, || None),
        "overdue is no reason to stop"
    );
    assert!(running.has_overdue());
    assert!(script.time_when_overdue().is_some());
    assert!(running.overdue_holder(Some(5)).is_some());
    assert!(running.overdue_holder(Some(4)).is_none());
    script.stop(StopReason::Killed);
    assert!(running.check_run(&script, true, || Some(("@x".to_owned(), 7))));
    assert_eq!(script.stopped_at(), Some(("@x".to_owned(), 7)));
    running.unlist(&script);
    assert!(!running.has_overdue());
}

#[test]
fn exclusive_sections_and_runs_exclude_each_other() {
    let running = RunRegistry::default();
    assert!(running.try_begin_on_script_thread());
    assert!(running.try_begin_on_script_thread());
    assert!(!running.try_exclude_runs(CLIENT));
    running.end_on_script_thread();
    running.end_on_script_thread();
    assert!(running.try_exclude_runs(CLIENT));
    assert!(!running.try_begin_on_script_thread());
    running.end_exclusion();
    assert!(running.try_begin_on_script_thread());
}

#[test]
fn short_commands_share_an_exclusion_until_a_run_is_delayed() {
    let others = [2, 3, 4].map(Requester::Client);
    let running = RunRegistry::default();
    assert!(running.try_share_exclusion(CLIENT) && running.try_share_exclusion(others[0]));
    assert!(!running.try_exclude_runs(others[1]), "it shares with nobody");
    running.change_queue(|queue, _| queue.withdraw(others[1]));
    running.end_shared_exclusion();
    assert!(!running.try_begin_on_script_thread(), "one of them goes on");
    assert!(!running.try_share_exclusion(others[2]), "a run is delayed");
    running.change_queue(|queue, _| queue.withdraw(others[2]));
    running.end_shared_exclusion();
    assert!(running.try_begin_on_script_thread(), "its turn");
    assert!(!running.try_share_exclusion(CLIENT) && !running.try_share_exclusion(others[0]));
    for requester in [CLIENT, others[0]] {
        // However long the test is stopped.
        running.change_queue(|queue, _| queue.note_failure(requester, AttemptKind::Usual, u64::MAX / 2));
    }
    running.end_on_script_thread();
    running.delayed_runs_since_us.store(0, Ordering::Relaxed);
    assert!(running.try_share_exclusion(CLIENT) && !running.try_begin_on_script_thread());
    assert!(
        running.try_share_exclusion(others[0]),
        "a member of the turn before the run"
    );
    running.end_shared_exclusion();
    running.end_shared_exclusion();
    assert!(running.try_begin_on_script_thread());
    running.end_on_script_thread();
    running.delayed_runs_since_us.store(0, Ordering::Relaxed);
    assert!(running.try_exclude_runs(CLIENT));
    assert!(!running.try_share_exclusion(others[0]), "the holder shares with nobody");
    running.end_exclusion();
}

#[test]
fn the_announcement_of_the_cluster_bus_outlasts_other_exclusive_sections() {
    let running = RunRegistry::default();
    assert!(running.try_begin_on_script_thread());
    assert!(!running.try_exclude_runs_per_tick(Requester::ClusterBus));
    // However long the test is stopped.
    running.change_queue(|queue, _| queue.note_failure(Requester::ClusterBus, AttemptKind::Tick, u64::MAX / 2));
    running.end_on_script_thread();
    assert!(running.try_exclude_runs(CLIENT));
    running.end_exclusion();
    assert!(running.is_exclusion_announced());
    assert!(running.try_exclude_runs_per_tick(Requester::ClusterBus));
    running.end_exclusion();
    assert!(!running.is_exclusion_announced());
}

#[test]
fn runs_start_once_everything_that_waited_has_had_exclusive_use() {
    let others = [2, 3].map(Requester::Client);
    let running = RunRegistry::default();
    // A turn of one first, which must not affect the next one.
    assert!(running.try_begin_on_script_thread() && !running.try_exclude_runs(CLIENT));
    running.end_on_script_thread();
    assert!(running.try_exclude_runs(CLIENT));
    running.end_exclusion();
    assert!(running.try_begin_on_script_thread());
    for requester in others {
        assert!(!running.try_exclude_runs(requester));
        // However long the test is stopped.
        running.change_queue(|queue, _| queue.note_failure(requester, AttemptKind::Usual, u64::MAX / 2));
    }
    running.end_on_script_thread();
    assert!(running.try_exclude_runs(others[0]));
    running.end_exclusion();
    assert!(!running.try_begin_on_script_thread(), "another requester waits");
    assert!(running.try_exclude_runs(others[1]) && !running.try_begin_on_script_thread());
    running.end_exclusion();
    assert!(running.try_begin_on_script_thread());
}

/// On a busy machine it takes the thread of a delayed run longer to try again.
#[test]
fn the_turn_of_runs_waits_for_delayed_runs_for_a_while() {
    let running = RunRegistry::default();
    let mut delayed = running.start_on_script_thread();
    let age_turn = |age: Duration| {
        let since_us = running.now_us() - age.as_micros() as u64;
        running.delayed_runs_since_us.store(since_us, Ordering::Relaxed);
    };
    while running.now_us() < 2 * LONG_DELAYED_RUNS_TURN.as_micros() as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(running.try_exclude_runs(CLIENT) && !delayed.try_begin());
    running.end_exclusion();
    age_turn(2 * DELAYED_RUNS_TURN);
    assert!(!running.try_exclude_runs(CLIENT), "the run has not had its chance");
    assert!(running.is_exclusion_announced() && delayed.try_begin());
    running.end_on_script_thread();
    age_turn(2 * DELAYED_RUNS_TURN);
    assert!(running.try_exclude_runs(CLIENT), "it has begun");
    assert!(!delayed.try_begin());
    running.end_exclusion();
    age_turn(2 * DELAYED_RUNS_TURN);
    assert!(!running.try_exclude_runs(CLIENT));
    drop(delayed);
    assert!(running.try_exclude_runs(CLIENT), "it will not begin");
    let mut late = running.start_on_script_thread();
    assert!(!late.try_begin());
    running.end_exclusion();
    age_turn(LONG_DELAYED_RUNS_TURN);
    assert!(running.try_exclude_runs(CLIENT), "nobody waits for it for longer");
    running.end_exclusion();
}

#[test]
fn a_run_that_comes_after_the_turn_of_runs_waits_for_the_next_one() {
    let running = RunRegistry::default();
    while running.now_us() < 2 * LONG_DELAYED_RUNS_TURN.as_micros() as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut first = running.start_on_script_thread();
    assert!(running.try_exclude_runs(CLIENT) && !first.try_begin());
    running.end_exclusion();
    assert!(first.try_begin() && !running.try_exclude_runs(CLIENT));
    // However long the test is stopped.
    running.change_queue(|queue, _| queue.note_failure(CLIENT, AttemptKind::Usual, u64::MAX / 2));
    let since_us = running.now_us() - 2 * DELAYED_RUNS_TURN.as_micros() as u64;
    running.delayed_runs_since_us.store(since_us, Ordering::Relaxed);
    let mut later = running.start_on_script_thread();
    assert!(!later.try_begin() && !later.try_begin(), "it has the next turn");
    running.end_on_script_thread();
    assert!(
        running.try_exclude_runs(CLIENT),
        "its delay keeps nobody from exclusive mode"
    );
    assert!(!later.try_begin());
    running.end_exclusion();
    assert!(later.try_begin());
    running.end_on_script_thread();
}

#[test]
fn a_failed_attempt_without_an_announcement_lets_runs_start() {
    let running = RunRegistry::default();
    assert!(running.try_begin_on_script_thread());
    assert!(!running.try_exclude_runs_unannounced(CLIENT) && !running.is_exclusion_announced());
    assert!(running.try_begin_on_script_thread(), "another run starts");
    running.end_on_script_thread();
    running.end_on_script_thread();
    assert!(running.try_exclude_runs_unannounced(CLIENT));
    assert!(!running.try_begin_on_script_thread() && !running.try_exclude_runs_unannounced(CLIENT));
    running.end_exclusion();
    assert!(running.try_begin_on_script_thread(), "runs have their turn");
}

#[test]
fn a_client_does_not_wait_for_the_end_of_an_overdue_run() {
    let running = RunRegistry::default();
    assert!(running.try_begin_on_script_thread());
    let overdue = run(false);
    running.list(&overdue);
    running.update_run(&overdue, true);
    let refused = running.exclude_runs_for_client();
    assert!(refused.is_err_and(|run| Arc::ptr_eq(&run, &overdue)));
    assert!(!running.is_exclusion_announced(), "the client does not try again");
    running.end_run(&overdue, true);
    running.end_on_script_thread();
    assert!(running.exclude_runs_for_client().is_ok());
    assert!(!running.try_begin_on_script_thread());
    running.end_exclusion();
}

#[test]
fn a_run_that_is_killed_does_not_begin_to_write() {
    let killed = run(false);
    assert!(killed.stop(StopReason::Killed));
    assert!(!killed.try_note_write());
    let writing = run(false);
    assert!(writing.try_note_write() && writing.try_note_write());
    assert!(!writing.stop(StopReason::Killed));
    assert_eq!(writing.stop_reason(), None);
    assert!(writing.stop(StopReason::Shutdown) && writing.has_written());
    assert_eq!(writing.stop_reason(), Some(StopReason::Shutdown));
}

#[test]
fn a_run_uses_the_memory_of_an_ended_one_unless_that_is_in_use() {
    let parameters = |name| RunParameters {
        name,
        overdue_after: Some(std::time::Duration::from_secs(1)),
        ..RunParameters::default()
    };
    let first = ScriptRun::start(None, parameters(b"first"), Some([2, 3].into_iter()));
    assert!(first.is_holding(2) && first.is_holding(3) && !first.is_holding(7));
    first.note_held_slot(7);
    first.note_all_slots_held();
    assert!(first.try_note_write() && first.stop(StopReason::Shutdown));
    let address = Arc::as_ptr(&first);
    let second = ScriptRun::start(Some(first), parameters(b"second"), Some([3].into_iter()));
    assert_eq!(Arc::as_ptr(&second), address);
    assert_eq!(second.name, b"second");
    assert!(!second.has_written() && second.stop_reason().is_none());
    assert!(second.is_holding(3) && !second.is_holding(2) && !second.is_holding(7));
    let other_reference = second.clone();
    let all_slots: Option<std::iter::Empty<u16>> = None;
    let third = ScriptRun::start(Some(second), parameters(b"third"), all_slots);
    assert_ne!(Arc::as_ptr(&third), Arc::as_ptr(&other_reference));
    assert!(third.is_holding(2) && third.is_holding(7) && !other_reference.is_holding(2));
    other_reference.stop(StopReason::Killed);
    assert!(
        third.stop_reason().is_none(),
        "a kill of an ended run stops no later one"
    );
}

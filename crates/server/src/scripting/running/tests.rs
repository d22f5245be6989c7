//! Tests which runs can be killed, and the mutual exclusion of runs and exclusive sections.

use std::sync::Arc;

use super::{Beginning, CannotKill, Run, Running, Stop};

fn run(is_function: bool) -> Arc<Run> {
    Arc::new(Run::new(Beginning {
        name: b"f".to_vec(),
        is_function,
        command: Vec::new(),
        leaves_after: None,
        overdue_after: Some(std::time::Duration::ZERO),
    }))
}

#[test]
fn only_a_run_of_the_right_kind_that_has_not_written_is_killed() {
    let running = Running::default();
    assert_eq!(running.kill(false), Err(CannotKill::NoneRuns));
    let function = run(true);
    running.list(&function);
    assert_eq!(running.kill(false), Err(CannotKill::OtherKind));
    assert!(function.try_note_write());
    assert_eq!(running.kill(true), Err(CannotKill::Wrote));
    let script = run(false);
    running.list(&script);
    assert_eq!(running.kill(false), Ok(()));
    assert_eq!(script.stopped(), Some(Stop::Killed));
    assert_eq!(function.stopped(), None);
}

#[test]
fn an_overdue_run_is_listed_and_known_by_what_it_holds() {
    let running = Running::default();
    let script = run(false);
    script.holds([3, 5].into_iter());
    assert!(running.overdue_holder(None).is_none());
    assert!(
        !running.look_at(&script, false, || None),
        "overdue is no reason to stop"
    );
    assert!(running.any_overdue());
    assert!(running.overdue_holder(Some(5)).is_some());
    assert!(running.overdue_holder(Some(4)).is_none());
    script.stop(Stop::Killed);
    assert!(running.look_at(&script, true, || Some(("@x".to_owned(), 7))));
    assert_eq!(script.place(), Some(("@x".to_owned(), 7)));
    running.unlist(&script);
    assert!(!running.any_overdue());
}

#[test]
fn who_is_alone_and_who_runs_exclude_each_other() {
    let running = Running::default();
    assert!(running.try_begin_on_own_thread());
    assert!(running.try_begin_on_own_thread());
    assert!(!running.try_keep_out());
    running.end_on_own_thread();
    running.end_on_own_thread();
    assert!(running.try_keep_out());
    assert!(!running.try_begin_on_own_thread());
    running.let_in();
    assert!(running.try_begin_on_own_thread());
}

#[test]
fn a_run_that_is_killed_does_not_begin_to_write() {
    let killed = run(false);
    assert!(killed.stop(Stop::Killed));
    assert!(!killed.try_note_write());
    let writing = run(false);
    assert!(writing.try_note_write() && writing.try_note_write());
    assert!(!writing.stop(Stop::Killed));
    assert_eq!(writing.stopped(), None);
    assert!(writing.stop(Stop::Shutdown) && writing.wrote());
    assert_eq!(writing.stopped(), Some(Stop::Shutdown));
}

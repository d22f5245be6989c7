//! Tests of the end of the rewrite with which the file is switched on.

use std::time::Duration;

use super::*;
use weft_scripting::RunParameters;

/// A server that has just installed its first base, and logs to the increment behind it.
fn server_with_first_base() -> Arc<Server> {
    let server = crate::start::create_idle_server(Config::defaults());
    let status = &server.persistence.aof;
    status.set_state(AofState::WritingBase);
    status.begin_base();
    server.keyspace.hooks.set(Hooks::LOG_FILE, true);
    status.finish_base();
    server
}

/// Makes a change in exclusive mode while the end of the rewrite waits for a script. Returns `true` if the file is
/// complete then.
fn finish_with_change(server: &Arc<Server>, change: fn(&Server)) -> bool {
    let running = &server.scripting.running;
    assert!(running.try_begin_on_script_thread());
    std::thread::scope(|scope| {
        let end = scope.spawn(|| finish_switching_on(server));
        // No second script starts once the thread waits.
        while running.try_begin_on_script_thread() {
            running.end_on_script_thread();
            std::thread::sleep(Duration::from_millis(1));
        }
        {
            let mut seat = server.keyspace.slots.join().expect("a seat");
            let _all = seat.exclusive();
            change(server);
        }
        running.end_on_script_thread();
        end.join().expect("it ends")
    })
}

fn stop_logging(server: &Server) {
    server.keyspace.hooks.set(Hooks::LOG_FILE, false);
}

#[test]
fn the_file_is_complete_behind_its_first_base() {
    let server = server_with_first_base();
    let status = &server.persistence.aof;
    assert!(!status.is_complete());
    assert!(finish_with_change(&server, |_| {}));
    assert!(status.is_complete() && !status.is_rewrite_scheduled.load(Ordering::Relaxed));
}

/// A change, the state of the file after it, and if another rewrite is scheduled then.
type OutdatedBase = (&'static str, fn(&Server), AofState, bool);

#[test]
fn an_outdated_base_does_not_complete_the_file() {
    let changes: [OutdatedBase; 5] = [
        (
            "the file is being switched off",
            |server| {
                stop_logging(server);
                server.persistence.aof.is_switching_off.store(true, Ordering::Relaxed);
            },
            AofState::WritingBase,
            false,
        ),
        (
            "it has been switched off",
            |server| {
                stop_logging(server);
                server.persistence.aof.set_state(AofState::Off);
            },
            AofState::Off,
            false,
        ),
        (
            "it has been switched off and on again",
            |server| {
                stop_logging(server);
                server.persistence.aof.set_state(AofState::Off);
                server.persistence.aof.set_state(AofState::WritingBase);
            },
            AofState::WritingBase,
            true,
        ),
        (
            "a full synchronization has replaced the data",
            |server| {
                assert!(server.persistence.aof.mark_data_replaced());
                stop_logging(server);
            },
            AofState::WritingBase,
            true,
        ),
        (
            "the replaced data is logged, but has no base yet",
            |server| assert!(server.persistence.aof.mark_data_replaced()),
            AofState::WritingBase,
            true,
        ),
    ];
    for (name, change, state, is_rewrite_scheduled) in changes {
        let server = server_with_first_base();
        let status = &server.persistence.aof;
        assert!(!finish_with_change(&server, change), "{name}");
        assert_eq!(status.state(), state, "{name}");
        let is_scheduled = status.is_rewrite_scheduled.load(Ordering::Relaxed);
        assert_eq!(is_scheduled, is_rewrite_scheduled, "{name}");
        assert_eq!(status.replies_wait_for(), None, "{name}");
    }
}

/// It would keep a background thread, and all other snapshots, waiting for a script that may never end.
#[test]
fn the_cron_starts_no_snapshot_while_a_script_is_overdue() {
    let server = crate::start::create_idle_server(Config::defaults());
    let (running, persistence) = (&server.scripting.running, &server.persistence);
    persistence.aof.is_rewrite_scheduled.store(true, Ordering::Relaxed);
    persistence.dumps.is_scheduled.store(true, Ordering::Relaxed);
    let start_due = || {
        start_due_rewrite(&server);
        crate::persistence::save::start_due_save(&server);
        let requests = [&persistence.aof.is_rewrite_requested, &persistence.dumps.is_requested];
        requests.map(|request| request.load(Ordering::Relaxed))
    };
    let run = Arc::new(ScriptRun::new(RunParameters {
        overdue_after: Some(Duration::ZERO),
        ..RunParameters::default()
    }));
    running.list(&run);
    running.update_run(&run, true);
    assert_eq!(start_due(), [false, false]);
    running.end_run(&run, true);
    assert_eq!(start_due(), [true, true]);
}

/// As in Valkey: after three failures the next attempt waits for a minute, then for two, up to an hour.
#[test]
fn rewrites_that_fail_again_and_again_are_delayed() {
    let server = crate::start::create_idle_server(Config::defaults());
    let status = &server.persistence.aof;
    for failures in 0..MAX_FAILURES {
        status.failures.store(failures, Ordering::Relaxed);
        assert!(!is_limited(&server), "{failures} failures");
    }
    status.failures.store(MAX_FAILURES, Ordering::Relaxed);
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert!(is_limited(&server));
        assert_eq!(status.retry_delay_s.load(Ordering::Relaxed), minutes * 60);
        assert!(is_limited(&server), "until that time");
        status.retry_after_s.store(1, Ordering::Relaxed);
        assert!(!is_limited(&server), "one attempt");
    }
    status.failures.store(0, Ordering::Relaxed);
    assert!(!is_limited(&server));
    assert_eq!(status.retry_delay_s.load(Ordering::Relaxed), 0);
}

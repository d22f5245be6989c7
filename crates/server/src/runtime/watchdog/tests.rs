//! Tests of what the watchdog reports about the threads of a server.

use super::*;
use crate::keyspace::hash::KeyHasher;
use crate::start::create_idle_server_with_workers;
use weft_base::ClientId;
use weft_config::{Config, SetPermissions};

/// The time limit for a step; it only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// Creates a server with two workers and these parameters, none of whose threads runs.
fn server(parameters: &[(&str, &str)]) -> Arc<Server> {
    let server = create_idle_server_with_workers(Config::defaults(), 2);
    let permissions = SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    for (name, value) in parameters {
        let pair = [(name.as_bytes(), value.as_bytes())];
        let set = server.config.set(&pair, permissions, &mut |_| Ok(()));
        assert!(set.is_ok(), "{name} {value}: {set:?}");
    }
    server
}

fn command_id(name: &str) -> u16 {
    registry().command(name.as_bytes()).expect("the command exists").id
}

/// Makes observations until the condition is true.
fn look_until(watchdog: &mut Watchdog, server: &Server, condition: impl Fn() -> bool) {
    let start = server.lifecycle.started.elapsed();
    while !condition() {
        assert!(server.lifecycle.started.elapsed() - start < PATIENCE);
        let pause = watchdog.look(server);
        weft_os::thread::sleep(pause);
    }
}

#[test]
fn the_period_of_the_watchdog_replaces_the_threshold_unless_it_is_zero() {
    let cases: [(&[(&str, &str)], u64); 7] = [
        (&[], 1000),
        (&[("stall-report-threshold", "70")], 70),
        (&[("stall-report-threshold", "0")], 0),
        (&[("stall-report-threshold", "1")], MIN_THRESHOLD_MS),
        (&[("watchdog-period", "5")], MIN_THRESHOLD_MS),
        (&[("stall-report-threshold", "70"), ("watchdog-period", "300")], 300),
        (&[("stall-report-threshold", "0"), ("watchdog-period", "300")], 300),
    ];
    for (parameters, expected_ms) in cases {
        let expected = Duration::from_millis(expected_ms);
        assert_eq!(threshold(&server(parameters)), expected, "{parameters:?}");
    }
}

#[test]
fn leases_of_a_thread_are_reported_with_its_command_and_client_and_without_arguments() {
    let server = server(&[("stall-report-threshold", "200"), ("latency-monitor-threshold", "1")]);
    let mut seats: Vec<_> = (0..3).filter_map(|_| server.keyspace.slots.join()).collect();
    let mut seat = seats.pop().expect("the seats of the workers come first");
    let thread_index = ThreadIndex::new(seat.index());
    server.stats.activities.set_name(thread_index, "weft-bg-0".to_owned());
    server
        .stats
        .activities
        .begin(thread_index, command_id("sort"), ClientId::new(17));
    let mut watchdog = Watchdog::default();
    let pass = seat.enter();
    let slot = KeyHasher::slot(server.keyspace.hasher.hash(b"key"));
    let lease = pass.try_write(slot).expect("nobody else is here");
    let stalls = &server.stats.stalls;
    look_until(&mut watchdog, &server, || stalls.current(StallKind::Lease) == 1);
    assert_eq!(stalls.begun(StallKind::Lease), 1);
    let report = StallReport {
        kind: StallKind::Lease,
        thread: thread_index.get(),
        age_ns: 55_999_999,
        phase: StallPhase::Begun,
        keeps_closer_waiting: true,
    };
    let expected = "Thread weft-bg-0 may have held leases for 55 ms: it runs 'sort' of client id=17. \
                    Another thread waits for exclusive mode, and all clients with it";
    assert_eq!(
        watchdog.describe(&server, &report, &running_commands(&server)),
        expected
    );
    drop(lease);
    drop(pass);
    look_until(&mut watchdog, &server, || stalls.current(StallKind::Lease) == 0);
    let (_, series) = server
        .stats
        .history
        .latency
        .series(b"watchdog-lease")
        .expect("an event");
    assert!(series.count >= 2 && series.max_ms >= 200, "{series:?}");
}

#[test]
fn the_holder_of_exclusive_mode_is_reported_and_the_workers_that_wait_are_not() {
    let server = server(&[("stall-report-threshold", "200")]);
    let mut seat = server.keyspace.slots.join().expect("a seat is free");
    let all = seat.exclusive();
    let now_ns = || server.lifecycle.started.elapsed().as_nanos() as u64;
    for worker in &server.workers {
        worker.turn_started_ns.store(now_ns().max(1), Ordering::Relaxed);
    }
    let mut watchdog = Watchdog::default();
    let stalls = &server.stats.stalls;
    look_until(&mut watchdog, &server, || stalls.current(StallKind::Exclusive) == 1);
    assert_eq!(
        (stalls.begun(StallKind::Exclusive), stalls.begun(StallKind::Turn)),
        (1, 0)
    );
    assert_eq!(server.stats.history.latency.all(), [], "the latency monitor is off");
    drop(all);
    // Now nothing explains why they go on.
    look_until(&mut watchdog, &server, || stalls.begun(StallKind::Turn) == 2);
    assert_eq!(stalls.current(StallKind::Exclusive), 0);
}

#[test]
fn the_shortest_threshold_is_reported() {
    let server = server(&[("stall-report-threshold", "1")]);
    let mut seat = server.keyspace.slots.join().expect("a seat is free");
    let all = seat.exclusive();
    let mut watchdog = Watchdog::default();
    let stalls = &server.stats.stalls;
    look_until(&mut watchdog, &server, || stalls.begun(StallKind::Exclusive) == 1);
    drop(all);
}

#[test]
fn commands_of_a_stream_and_threads_without_a_name_are_described() {
    let server = server(&[]);
    let thread = server.keyspace.slots.seats() - 1;
    let report = |kind| StallReport {
        kind,
        thread,
        age_ns: 2_000_000_000,
        phase: StallPhase::Continues,
        keeps_closer_waiting: false,
    };
    let describe = |report: &StallReport| {
        let commands = running_commands(&server);
        let watchdog = Watchdog {
            commands: commands.clone(),
            ..Watchdog::default()
        };
        watchdog.describe(&server, report, &commands)
    };
    let expected =
        format!("Thread {thread} has had exclusive mode for 2000 ms, and all clients wait: it runs no command");
    assert_eq!(describe(&report(StallKind::Exclusive)), expected);
    let replaying = ClientId::new(u64::MAX);
    let activities = &server.stats.activities;
    activities.begin(ThreadIndex::new(thread), command_id("set"), replaying);
    let description = describe(&report(StallKind::Lease));
    assert!(
        description.ends_with("it runs 'set' of a stream or a file"),
        "{description}"
    );
    let of_worker = StallReport {
        thread: 1,
        ..report(StallKind::Message)
    };
    let expected = "Worker 1 has slept for 2000 ms with unread messages";
    assert_eq!(describe(&of_worker), expected);
}

/// A turn that a report is about may have ended, and a turn has many commands: the next command is not to blame.
#[test]
fn the_command_that_follows_a_stall_is_not_blamed_for_it() {
    let server = server(&[("stall-report-threshold", "60000")]);
    let activities = &server.stats.activities;
    let worker = ThreadIndex::new(1);
    let report = StallReport {
        kind: StallKind::Turn,
        thread: worker.get(),
        age_ns: 1_000_000_000,
        phase: StallPhase::Begun,
        keeps_closer_waiting: false,
    };
    let stalled = "Worker 1 has been in one turn for 1000 ms, and its other clients wait";
    let mut watchdog = Watchdog::default();
    activities.begin(worker, command_id("sort"), ClientId::new(17));
    watchdog.look(&server);
    let describe = |watchdog: &Watchdog| watchdog.describe(&server, &report, &running_commands(&server));
    assert_eq!(
        describe(&watchdog),
        format!("{stalled}: it runs 'sort' of client id=17")
    );
    let ended = format!("{stalled}: it ran 'sort' of client id=17 until a moment ago");
    activities.begin(worker, command_id("get"), ClientId::new(18));
    assert_eq!(describe(&watchdog), ended);
    activities.end(worker);
    assert_eq!(describe(&watchdog), ended);
    // A thread that ran nothing, too, is not to be confused with its next command.
    watchdog.look(&server);
    activities.begin(worker, command_id("get"), ClientId::new(18));
    let ended = format!("{stalled}: it ran no command until a moment ago");
    assert_eq!(describe(&watchdog), ended);
}

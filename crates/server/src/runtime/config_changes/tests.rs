//! Tests of parameter changes on a running server.

use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use weft_reactor::Reactor;

use super::ConfigSetError;
use crate::keyspace::effects::Hooks;
use crate::net::listeners::Listeners;
use crate::observability::log::{self, Level};
use crate::persistence::aof::OverdueScript;
use crate::persistence::aof_files::AofState;
use crate::persistence::snapshot_state::SnapshotPurpose;
use crate::state::{CoordinatorCommand, Server};
use weft_config::{Config, SetError, SetPermissions, id};
use weft_os::atomic::Ordering;
use weft_scripting::{RunParameters, ScriptRun};

const PERMISSIONS: SetPermissions = SetPermissions {
    may_set_protected: false,
    is_loading: false,
};

fn server() -> (Arc<Server>, mpsc::Receiver<CoordinatorCommand>) {
    crate::commands::install_registry(crate::commands::full_registry());
    let (orders_in, orders_out) = mpsc::channel();
    let (jobs_in, _) = crate::runtime::background::create_queue();
    let (scripts_in, _) = crate::runtime::background::create_queue();
    let server = crate::start::create_server(
        Config::defaults(),
        1,
        jobs_in,
        scripts_in,
        orders_in,
        std::sync::mpsc::channel().0,
    )
    .expect("a server");
    (server, orders_out)
}

/// Runs CONFIG SET and applies the change.
fn set(server: &Arc<Server>, pairs: &[(&str, &str)]) -> Result<(), String> {
    let pairs: Vec<(&[u8], &[u8])> = pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    match super::set(server, &pairs, PERMISSIONS, true) {
        Ok(_) => Ok(()),
        Err(ConfigSetError::Refused(SetError::Refused(reason))) => Err(String::from_utf8(reason).unwrap()),
        Err(other) => panic!("nothing is loading, and no script runs: {other:?}"),
    }
}

/// Begins a script that is overdue.
fn begin_overdue_script(server: &Server) -> Arc<ScriptRun> {
    let running = &server.scripting.running;
    assert!(running.try_begin_on_script_thread());
    let run = Arc::new(ScriptRun::new(RunParameters {
        overdue_after: Some(Duration::ZERO),
        ..RunParameters::default()
    }));
    running.list(&run);
    running.update_run(&run, true);
    run
}

/// The change would wait for the script, which may never end.
#[test]
fn the_append_only_file_is_not_switched_while_a_script_is_overdue() {
    let (server, _orders) = server();
    let (running, status) = (&server.scripting.running, &server.persistence.aof);
    let run = begin_overdue_script(&server);
    let busy = Err(ConfigSetError::ScriptBusy(OverdueScript { is_function: false }));
    let switch = |value: &[u8]| super::set(&server, &[(b"appendonly", value)], PERMISSIONS, true);

    assert_eq!(switch(b"yes"), busy);
    assert!(!server.config.boolean(id::APPENDONLY) && status.state() == AofState::Off);

    let switched_on: &[(&[u8], &[u8])] = &[(b"appendonly", b"yes")];
    let changed = server.config.set(switched_on, PERMISSIONS, &mut |_| Ok(()));
    assert!(changed.is_ok());
    status.set_state(AofState::On);
    assert_eq!(switch(b"no"), busy);
    assert!(server.config.boolean(id::APPENDONLY) && status.state() == AofState::On);

    running.end_run(&run, true);
    running.end_on_script_thread();
    assert_eq!(switch(b"no").map(|changed| changed.len()), Ok(1));
    assert_eq!(status.state(), AofState::Off);
}

/// The client of BGREWRITEAOF has been told that the rewrite was started.
#[test]
fn a_rewrite_is_due_again_if_the_file_is_not_switched_on_after_all() {
    let (server, _orders) = server();
    let (snapshot, status) = (&server.persistence.snapshot, &server.persistence.aof);
    for was_cancelled in [false, true] {
        assert_eq!(snapshot.claim(SnapshotPurpose::AofBase, 0), Ok(()));
        if was_cancelled {
            snapshot.cancel(&[SnapshotPurpose::AofBase]);
        }
        let run = std::thread::scope(|scope| {
            let switched = scope.spawn(|| super::set(&server, &[(b"appendonly", b"yes")], PERMISSIONS, true));
            while status.state() == AofState::Off || !snapshot.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let run = begin_overdue_script(&server);
            let busy = Err(ConfigSetError::ScriptBusy(OverdueScript { is_function: false }));
            assert_eq!(switched.join().expect("it ends"), busy);
            run
        });
        assert!(!server.config.boolean(id::APPENDONLY) && status.state() == AofState::Off);
        let is_due = status.is_rewrite_scheduled.swap(false, Ordering::Relaxed);
        assert_eq!(is_due, !was_cancelled, "only one that ends because of this");
        server.scripting.running.end_run(&run, true);
        server.scripting.running.end_on_script_thread();
        snapshot.release();
    }
}

/// OK would not be true: the file would stay on.
#[test]
fn the_append_only_file_is_not_switched_off_without_a_free_thread_index() {
    let (server, _orders) = server();
    let status = &server.persistence.aof;
    let switched_on: &[(&[u8], &[u8])] = &[(b"appendonly", b"yes")];
    let changed = server.config.set(switched_on, PERMISSIONS, &mut |_| Ok(()));
    assert!(changed.is_ok());
    status.set_state(AofState::On);
    let seats: Vec<_> = std::iter::from_fn(|| server.keyspace.slots.join()).collect();
    assert_eq!(
        set(&server, &[("appendonly", "no")]),
        Err("CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn off AOF. Check server logs."
            .to_owned())
    );
    assert!(server.config.boolean(id::APPENDONLY) && status.state() == AofState::On);
    drop(seats);
    assert_eq!(set(&server, &[("appendonly", "no")]), Ok(()));
    assert_eq!(status.state(), AofState::Off);
}

/// A thread that gives its index back in time is waited for.
#[test]
fn switching_off_waits_for_a_free_thread_index() {
    let (server, _orders) = server();
    let status = &server.persistence.aof;
    let switched_on: &[(&[u8], &[u8])] = &[(b"appendonly", b"yes")];
    assert!(server.config.set(switched_on, PERMISSIONS, &mut |_| Ok(())).is_ok());
    status.set_state(AofState::On);
    let mut seats: Vec<_> = std::iter::from_fn(|| server.keyspace.slots.join()).collect();
    std::thread::scope(|scope| {
        let switched = scope.spawn(|| set(&server, &[("appendonly", "no")]));
        drop(seats.pop());
        assert_eq!(switched.join().expect("it ends"), Ok(()));
    });
    assert_eq!(status.state(), AofState::Off);
}

/// A scheduled rewrite, which the cron starts while the file is being switched on, may reach its moment before the
/// attempt fails. The log feeds the file then, so it is on.
#[test]
fn the_file_is_on_if_the_log_feeds_it_when_switching_on_would_fail() {
    for is_fed in [false, true] {
        let (server, _orders) = server();
        let (snapshot, status) = (&server.persistence.snapshot, &server.persistence.aof);
        assert_eq!(snapshot.claim(SnapshotPurpose::AofBase, 0), Ok(()));
        let run = std::thread::scope(|scope| {
            let switched = scope.spawn(|| super::set(&server, &[(b"appendonly", b"yes")], PERMISSIONS, true));
            while status.state() == AofState::Off || !snapshot.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The moment of the rewrite.
            server.keyspace.hooks.set(Hooks::LOG_FILE, is_fed);
            let run = begin_overdue_script(&server);
            let switched = switched.join().expect("it ends");
            assert_eq!(switched.is_ok(), is_fed, "{switched:?}");
            run
        });
        assert_eq!(server.config.boolean(id::APPENDONLY), is_fed);
        let expected = if is_fed { AofState::WritingBase } else { AofState::Off };
        assert_eq!(status.state(), expected);
        let is_due = status.is_rewrite_scheduled.load(Ordering::Relaxed);
        assert_eq!(is_due, !is_fed, "the rewrite that feeds the file is not repeated");
        server.scripting.running.end_run(&run, true);
        server.scripting.running.end_on_script_thread();
        snapshot.release();
    }
}

#[test]
fn the_log_level_changes_at_once() {
    let (server, _orders) = server();
    assert_eq!(set(&server, &[("loglevel", "debug")]), Ok(()));
    assert!(log::is_enabled(Level::Debug));
    assert_eq!(set(&server, &[("loglevel", "nothing")]), Ok(()));
    assert!(!log::is_enabled(Level::Warning));
    assert_eq!(set(&server, &[("loglevel", "notice")]), Ok(()));
    assert!(log::is_enabled(Level::Notice) && !log::is_enabled(Level::Verbose));
}

/// The text was recorded from Valkey 9.1.2; the number depends on this machine.
#[test]
fn more_clients_than_open_files_are_refused() {
    let (server, _orders) = server();
    let reason = set(&server, &[("maxclients", "4294967295")]).expect_err("no kernel allows so many files");
    let expected = "CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to \
                    handle the specified number of clients, try with ";
    assert!(reason.starts_with(expected), "{reason}");
    assert_eq!(server.config.integer(id::MAXCLIENTS), 10_000, "the old value is back");
    let number: u64 = reason[expected.len()..].parse().expect("a number");
    assert_eq!(set(&server, &[("maxclients", &number.to_string())]), Ok(()));
}

#[test]
fn a_port_in_use_is_refused_and_the_old_one_is_restored() {
    let (server, orders) = server();
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        (listener.local_addr().expect("is bound").port(), listener)
    };
    let (old, reserved) = free();
    drop(reserved);
    let (taken, _holder) = free();
    let shared = server.clone();
    let coordinator = std::thread::spawn(move || {
        let mut reactor = Reactor::new().expect("a reactor");
        let mut listeners = Listeners::default();
        for order in orders {
            let CoordinatorCommand::Listen(answer) = order else {
                panic!("no parameter of the metrics endpoint changes");
            };
            let listens = listeners.listen_tcp(&shared.config, &mut reactor).is_ok();
            let is_last = shared.config.integer(id::PORT) == 0;
            answer.send(listens).expect("somebody waits");
            if is_last {
                return;
            }
        }
    });

    let (old, taken) = (old.to_string(), taken.to_string());
    assert_eq!(set(&server, &[("bind", "127.0.0.1"), ("port", &old)]), Ok(()));
    let related = "CONFIG SET failed (possibly related to argument";
    assert_eq!(
        set(&server, &[("port", &taken)]),
        Err(format!(
            "{related} 'port') - Unable to listen on this port. Check server logs."
        ))
    );
    assert!(std::net::TcpStream::connect(format!("127.0.0.1:{old}")).is_ok());
    assert_eq!(
        set(&server, &[("bind", "192.0.2.7")]),
        Err(format!("{related} 'bind') - Failed to bind to specified addresses."))
    );
    assert!(std::net::TcpStream::connect(format!("127.0.0.1:{old}")).is_ok());
    assert_eq!(set(&server, &[("port", "0")]), Ok(()));
    coordinator.join().expect("ends");
    let reason = set(&server, &[("port", &old)]).expect_err("nobody listens to orders any more");
    assert!(reason.contains("Unable to listen"), "{reason}");
}

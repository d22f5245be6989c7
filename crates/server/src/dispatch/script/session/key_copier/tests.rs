//! Tests of copies while users change, on a server none of whose threads runs.

use weft_config::Config;
use weft_resp::ArgRange;
use weft_scripting::RunParameters;

use super::super::create_scratch_server;
use super::*;
use crate::start::create_idle_server;

const REQUEST: &[u8] = b"getab";
const RANGES: [ArgRange; 3] = [
    ArgRange { start: 0, len: 3 },
    ArgRange { start: 3, len: 1 },
    ArgRange { start: 4, len: 1 },
];

fn set_user(server: &Server, rules: &[&str]) {
    assert!(server.acl.set_user(b"joe", rules, &server.config).is_ok());
}

#[test]
fn keys_are_copied_for_a_command_that_the_present_users_admit() {
    let server = create_idle_server(Config::defaults());
    set_user(&server, &["on", "nopass", "+@all", "~*"]);
    let mut login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let kill_mark = Arc::new(KillMark::default());
    let mut copier = KeyCopier::new(server.clone(), kill_mark.clone());
    let scratch = create_scratch_server(&server);
    let mut seat = scratch.keyspace.slots.join().expect("a seat");
    let mut all = seat.exclusive();
    let args = Args::new(REQUEST, &RANGES);
    let key = |argument: usize| {
        let hash = server.keyspace.hasher.hash(args.argument(argument));
        [PlannedKey::from_argument(argument, hash, false)]
    };

    assert!(copier.begin_command(&mut login));
    set_user(&server, &["-get"]);
    assert!(
        !copier.copy_keys(&key(1), args, &scratch, &mut all),
        "users have changed"
    );
    assert!(copier.begin_command(&mut login));
    assert!(!login.is_unrestricted(server.acl.version()), "the present rules apply");
    assert!(copier.copy_keys(&key(1), args, &scratch, &mut all));

    set_user(&server, &["+get"]);
    assert!(copier.begin_command(&mut login));
    kill_mark.kill();
    assert!(
        !copier.copy_keys(&key(2), args, &scratch, &mut all),
        "the client is killed"
    );
    assert!(!copier.begin_command(&mut login));
}

#[test]
fn keys_that_an_overdue_script_holds_are_not_waited_for() {
    let server = create_idle_server(Config::defaults());
    set_user(&server, &["on", "nopass", "+@all", "~*"]);
    let mut login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let mut copier = KeyCopier::new(server.clone(), Arc::default());
    let scratch = create_scratch_server(&server);
    let mut seat = scratch.keyspace.slots.join().expect("a seat");
    let mut all = seat.exclusive();
    let args = Args::new(REQUEST, &RANGES);
    let key = PlannedKey::from_argument(1, server.keyspace.hasher.hash(args.argument(1)), false);
    let mut script_seat = server.keyspace.slots.join().expect("a seat");
    let pass = script_seat.enter();
    let lease = pass.try_write(key.slot.index()).expect("the slot is free");
    let run = Arc::new(ScriptRun::new(RunParameters {
        overdue_after: Some(Duration::ZERO),
        ..RunParameters::default()
    }));
    run.note_held_slot(key.slot.get());
    let running = &server.scripting.running;
    running.list(&run);
    running.update_run(&run, true);

    assert!(copier.begin_command(&mut login));
    assert!(!copier.copy_keys(&[key], args, &scratch, &mut all));
    let overdue = copier.take_overdue_run().expect("that is the reason");
    assert!(Arc::ptr_eq(&overdue, &run) && copier.take_overdue_run().is_none());
    drop(lease);
    drop(pass);
    running.end_run(&run, true);
    assert!(copier.copy_keys(&[key], args, &scratch, &mut all));
}

#[test]
fn a_session_of_a_deleted_user_runs_no_command() {
    let server = create_idle_server(Config::defaults());
    set_user(&server, &["on", "nopass", "+@all"]);
    let mut login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let mut copier = KeyCopier::new(server.clone(), Arc::default());
    assert!(copier.begin_command(&mut login));
    server.acl.delete_users([&b"joe"[..]].into_iter());
    assert!(!copier.begin_command(&mut login));
}

//! Tests of copies while users change, on a server none of whose threads runs.

use weft_config::Config;
use weft_resp::ArgRange;

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
fn a_session_of_a_deleted_user_runs_no_command() {
    let server = create_idle_server(Config::defaults());
    set_user(&server, &["on", "nopass", "+@all"]);
    let mut login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    let mut copier = KeyCopier::new(server.clone(), Arc::default());
    assert!(copier.begin_command(&mut login));
    server.acl.delete_users([&b"joe"[..]].into_iter());
    assert!(!copier.begin_command(&mut login));
}

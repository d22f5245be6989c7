//! Tests of the databases of queued commands, on a server none of whose threads runs.

use std::sync::Arc;

use weft_base::{ClientId, ThreadIndex};
use weft_command_table::registry::Lookup;
use weft_config::Config;
use weft_resp::ArgRange;

use super::*;
use crate::commands::registry;
use crate::dispatch::admit::{Admission, admit};
use crate::dispatch::plan::plan_write_keys;
use crate::dispatch::thread::ThreadState;
use crate::dispatch::transaction;
use crate::start::create_idle_server;

fn set_user(server: &Server, rules: &str) {
    let rules: Vec<&str> = rules.split(' ').collect();
    let changed = server.acl.set_user(b"joe", &rules, &server.config);
    assert!(changed.is_ok(), "{rules:?}");
}

/// Creates a server with a user who may do everything, and a client of that user.
fn server_with_client() -> (Arc<Server>, Client) {
    let server = create_idle_server(Config::defaults());
    set_user(&server, "on nopass ~* &* +@all");
    let mut client = Client::new(ClientId::new(1), 0, ThreadIndex::FIRST);
    client.login = server.acl.log_in(b"joe", b"").expect("no password is needed");
    (server, client)
}

/// Queues commands in a new transaction of a client.
fn queue(server: &Server, client: &mut Client, lines: &[&str]) {
    let databases = permission::database_count(server);
    let mut transaction = Transaction::new(client.db);
    for line in lines {
        let (mut request, mut ranges, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for word in line.split(' ') {
            ranges.push(ArgRange {
                start: request.len() as u32,
                len: word.len() as u32,
            });
            request.extend_from_slice(word.as_bytes());
        }
        let args = Args::new(&request, &ranges);
        let Lookup::Found(command) = registry().lookup(&args) else {
            panic!("{line} is no command");
        };
        plan_write_keys(&server.keyspace, command, &args, &mut keys);
        transaction.push(command.id as usize, &request, &ranges, &keys);
        let selected = selected_database(command, args, databases);
        note_queued_command(&mut transaction, command, selected.is_some(), databases);
        transaction.db = selected.unwrap_or(transaction.db);
    }
    client.transaction = Some(Box::new(transaction));
}

/// Admits EXEC. Returns the databases of the queued commands by the present permissions.
fn databases(server: &Arc<Server>, client: &mut Client) -> Vec<usize> {
    let args = || Args::new(b"exec", &[ArgRange { start: 0, len: 4 }]);
    let Lookup::Found(exec) = registry().lookup(&args()) else {
        panic!("EXEC exists");
    };
    let mut thread = ThreadState::new(server.clone(), ThreadIndex::FIRST);
    thread.begin_passage();
    let admission = admit(&mut thread, client, exec, args, &[]);
    assert!(matches!(admission, Admission::Run));
    let transaction = client.transaction.as_ref().expect("commands are queued");
    transaction.commands.iter().map(|queued| queued.db.get()).collect()
}

#[test]
fn a_command_after_a_denied_select_runs_in_the_database_before() {
    let (server, mut client) = server_with_client();
    let lines = [
        "get a",
        "select 1",
        "get a",
        "select 99",
        "get a",
        "select 2",
        "get a",
        "select 0",
        "get a",
    ];
    queue(&server, &mut client, &lines);
    let cases = [
        ("alldbs", [0, 0, 1, 1, 1, 1, 2, 2, 0]),
        ("db=0,2", [0, 0, 0, 0, 0, 0, 2, 2, 0]),
        ("db=0,1", [0, 0, 1, 1, 1, 1, 1, 1, 0]),
        ("db=1,2", [0, 0, 1, 1, 1, 1, 2, 2, 2]),
        ("-select", [0; 9]),
        // The user gets its permissions back before EXEC runs.
        ("alldbs +@all", [0, 0, 1, 1, 1, 1, 2, 2, 0]),
    ];
    for (rules, expected) in cases {
        set_user(&server, rules);
        assert_eq!(databases(&server, &mut client), expected, "{rules}");
    }
}

/// EXEC may be admitted very often before its slots are free.
#[test]
fn the_databases_are_determined_again_only_after_a_change() {
    let (server, mut client) = server_with_client();
    queue(&server, &mut client, &["select 1", "set k v"]);
    assert_eq!(databases(&server, &mut client), [0, 1]);
    let mark = |client: &mut Client| {
        let transaction = client.transaction.as_mut().expect("commands are queued");
        transaction.commands[1].db = DbIndex::new(2);
    };
    mark(&mut client);
    assert_eq!(databases(&server, &mut client), [0, 2], "nothing has changed");
    client.db = DbIndex::new(3);
    assert_eq!(databases(&server, &mut client), [3, 1], "the client has moved");
    mark(&mut client);
    assert_eq!(databases(&server, &mut client), [3, 2]);
    client.db = DbIndex::FIRST;
    set_user(&server, "db=0");
    assert_eq!(databases(&server, &mut client), [0, 0], "the users have changed");
    mark(&mut client);
    assert_eq!(databases(&server, &mut client), [0, 2]);
    let transaction = client.transaction.as_mut().expect("commands are queued");
    transaction.push(0, b"x", &[], &[]);
    assert!(transaction.databases_as_of.is_none(), "there is another command");
}

#[test]
fn exec_waits_for_the_keys_that_its_commands_will_write() {
    let (server, mut client) = server_with_client();
    queue(&server, &mut client, &["select 1", "set a 1"]);
    let Lookup::Found(exec) = registry().lookup(&[b"exec"][..]) else {
        panic!("EXEC exists");
    };
    let slot = client.transaction.as_ref().expect("commands are queued").keys[0].slot;
    let keyspace = &server.keyspace;
    for (rules, database) in [("alldbs", 1), ("db=0", 0), ("alldbs", 1)] {
        set_user(&server, rules);
        databases(&server, &mut client);
        for frozen in [0, 1] {
            let key = (slot, (DbIndex::new(frozen), Box::from(&b"a"[..])));
            let pin = keyspace.pinned.freeze(&keyspace.slots, vec![key]).expect("it is free");
            let awaited = transaction::awaited_thaw(&server, &client, exec);
            assert_eq!(
                awaited.is_some(),
                frozen == database,
                "{rules}, frozen in database {frozen}"
            );
            drop(pin);
        }
    }
}

#[test]
fn a_select_after_a_change_of_permissions_makes_the_databases_uncertain() {
    let (server, mut client) = server_with_client();
    let cases: [(&[&str], bool); 6] = [
        (&["select 1", "set a 1"], false),
        (&["select 1", "auth joe x", "set a 1"], false),
        (&["auth joe x", "select 99", "set a 1"], false),
        (&["auth joe x", "select 1", "set a 1"], true),
        (&["hello 3 auth joe x", "get a", "select 1"], true),
        (&["acl setuser joe db=0", "select 1"], true),
    ];
    for (lines, expected) in cases {
        queue(&server, &mut client, lines);
        let transaction = client.transaction.as_ref().expect("commands are queued");
        assert_eq!(transaction.has_uncertain_databases, expected, "{lines:?}");
    }
}

#[test]
fn exec_waits_for_every_frozen_key_if_its_databases_are_uncertain() {
    let (server, mut client) = server_with_client();
    queue(&server, &mut client, &["auth joe x", "select 1", "set a 1"]);
    let Lookup::Found(exec) = registry().lookup(&[b"exec"][..]) else {
        panic!("EXEC exists");
    };
    let slot = client.transaction.as_ref().expect("commands are queued").keys[0].slot;
    let key = (slot, (DbIndex::new(2), Box::from(&b"a"[..])));
    let keyspace = &server.keyspace;
    let _pin = keyspace.pinned.freeze(&keyspace.slots, vec![key]).expect("it is free");
    for may_write in [false, true] {
        client.transaction.as_mut().expect("commands are queued").may_write = may_write;
        let awaited = transaction::awaited_thaw(&server, &client, exec);
        assert_eq!(awaited.is_some(), may_write);
    }
}

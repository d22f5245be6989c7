//! Events of the server, command filters, and clients that modules know by their ids. The module aborts if one of its
//! functions runs on another thread than the one that has loaded it.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::{raw_call, start, start_with};
use crate::harness::client::Client;
use crate::harness::played_primary::{DUMP, EMPTY, ID, accept};
use crate::harness::wait_until;

/// The numbers of kinds of events.
const FLUSH: &str = "2";
const LOADING: &str = "3";
const CLIENT_CHANGE: &str = "4";
const SWAP: &str = "11";
const CONFIG: &str = "16";
const KEY: &str = "17";
const AUTHENTICATION: &str = "18";
const COMMAND_ENDS: [&str; 4] = ["20", "21", "22", "23"];

/// Returns the events that the module has got since the last call.
fn log(client: &mut Client) -> String {
    let shown = client.call(&["hooks.log"]);
    let events = shown.strip_prefix('(').and_then(|shown| shown.strip_suffix(')'));
    events.unwrap_or(&shown).trim_end().to_owned()
}

fn subscribe(client: &mut Client, kinds: &[&str]) {
    for kind in kinds {
        assert_eq!(client.call(&["hooks.subscribe", kind]), "0");
    }
}

#[test]
fn sub_events_and_versions_are_those_of_the_header() {
    let server = start(1, "hooks");
    let mut client = Client::connect(server.port);
    for (kind, sub, is_known) in [
        ("1", "5", "1"),
        ("1", "6", "0"),
        ("5", "0", "0"),
        ("19", "0", "0"),
        ("23", "4", "1"),
        ("24", "0", "0"),
    ] {
        assert_eq!(client.call(&["hooks.supported", kind, sub]), is_known, "{kind} {sub}");
    }
    assert_eq!(client.call(&["hooks.subscribe", "24"]), "1", "there is no such kind");
    assert_eq!(client.call(&["hooks.subscribe", "12"]), "0", "a retired kind");
    assert_eq!(client.call(&["hooks.subscribe", FLUSH, "2"]), "1", "a newer version");
    assert_eq!(client.call(&["hooks.subscribe", FLUSH, "0"]), "0", "nothing to end");
}

#[test]
fn databases_are_shown_before_and_after_they_are_emptied() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        subscribe(&mut client, &[FLUSH, SWAP, CONFIG, AUTHENTICATION]);
        other.call(&["SET", "a", "1"]);
        other.call(&["SELECT", "1"]);
        other.call(&["SET", "b", "1"]);
        other.call(&["FLUSHDB"]);
        other.call(&["MULTI"]);
        other.call(&["FLUSHALL", "ASYNC"]);
        other.call(&["SWAPDB", "0", "3"]);
        other.call(&["EXEC"]);
        other.call(&["CONFIG", "SET", "maxmemory", "0", "hz", "10"]);
        other.call(&["AUTH", "default", "x"]);
        other.call(&["AUTH", "nobody", "x"]);
        let expected = "flush 0 db 1 keys 1 flush 1 db 1 keys 0 flush 0 db -1 keys 1 flush 1 db -1 keys 0 swap 0 3 \
                        config 2 maxmemory authentication default 0 authentication nobody 1";
        assert_eq!(log(&mut client), expected);
    }
}

/// Sends the first half of a dump to a replica, and leaves it.
fn fail_load(listener: &TcpListener) {
    let mut link = accept(listener);
    let announced = format!("+FULLRESYNC {ID} 0\r\n${}\r\n", DUMP.len());
    link.write_all(announced.as_bytes()).expect("sends");
    link.write_all(&DUMP[..DUMP.len() / 2]).expect("sends");
    thread::sleep(Duration::from_millis(50));
}

#[test]
fn each_failed_load_has_ended_before_the_next_one_starts() {
    for workers in [1, 4] {
        let arguments = ["--repl-diskless-load", "flush-before-load"];
        let server = start_with(workers, &[&["hooks"]], &arguments);
        let mut client = Client::connect(server.port);
        subscribe(&mut client, &[LOADING]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("is bound").port().to_string();
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        for _ in 0..3 {
            fail_load(&listener);
        }
        let mut link = accept(&listener);
        let announced = format!("+FULLRESYNC {ID} 0\r\n${}\r\n", EMPTY.len());
        link.write_all(announced.as_bytes()).expect("sends");
        link.write_all(EMPTY).expect("sends");
        client.wait_for_info("master_link_status", "up");
        // Its start, and its failure or its end.
        let (failed, ended) = ("event 3 2 event 3 4 ", "event 3 2 event 3 3");
        assert_eq!(log(&mut client), failed.repeat(3) + ended);
    }
}

#[test]
fn keys_are_there_while_modules_look_at_their_removal() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        subscribe(&mut client, &[KEY]);
        let mut removed = |commands: &[&[&str]]| {
            for words in commands {
                other.call(words);
            }
            log(&mut client)
        };
        let line = |sub: u32, name: &str, length: usize, expires: u32| {
            format!("key {sub} {name} length {length} opened {length} exists 1 expires {expires}")
        };
        assert_eq!(
            removed(&[&["SET", "k", "old"], &["SET", "k", "new"]]),
            line(3, "k", 3, 0)
        );
        assert_eq!(removed(&[&["SET", "k", "newer", "KEEPTTL"]]), line(3, "k", 3, 0));
        assert_eq!(
            removed(&[&["SET", "k", "x", "EX", "100"], &["GETDEL", "k"]]),
            format!("{} {}", line(3, "k", 5, 0), line(0, "k", 1, 1))
        );
        assert_eq!(removed(&[&["RPUSH", "l", "1"], &["LPOP", "l"]]), line(0, "l", 0, 0));
        assert_eq!(removed(&[&["RPUSH", "l", "1", "2"], &["DEL", "l"]]), line(0, "l", 2, 0));
        assert_eq!(
            removed(&[&["SADD", "s", "1", "2"], &["SREM", "s", "1", "2"]]),
            line(0, "s", 0, 0)
        );
        assert_eq!(
            removed(&[&["SET", "n", "5"], &["INCR", "n"], &["APPEND", "n", "1"]]),
            ""
        );
        assert_eq!(
            removed(&[&["SET", "a", "1"], &["SET", "b", "22"], &["RENAME", "a", "b"]]),
            format!("{} {}", line(0, "b", 2, 0), line(0, "a", 1, 0))
        );
        assert_eq!(
            removed(&[&["MULTI"], &["SET", "m", "1"], &["DEL", "m"], &["EXEC"]]),
            line(0, "m", 1, 0)
        );
        let script = "redis.call('set', 'e', '123'); redis.call('del', 'e')";
        assert_eq!(removed(&[&["EVAL", script, "0"]]), line(0, "e", 3, 0));
        assert_eq!(
            removed(&[&["SET", "x", "1"], &["EXPIRE", "x", "-1"]]),
            line(1, "x", 1, 0)
        );
        other.call(&["SET", "soon", "1234", "PX", "1"]);
        wait_until("the key expires", || other.call(&["DBSIZE"]) == "2");
        wait_until("the module has seen it", || log(&mut client) == line(1, "soon", 4, 1));
        // The command sees what it has done, not what was shown to the module.
        assert_eq!(other.call(&["EXISTS", "soon", "x", "e"]), "0");
        assert_eq!(client.call(&["hooks.subscribe", KEY, "0"]), "0");
        other.call(&["DEL", "n"]);
        assert_eq!(log(&mut client), "");
    }
}

#[test]
fn modules_hear_how_commands_end() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
        subscribe(&mut client, &COMMAND_ENDS);
        let mut heard = |commands: &[&[&str]]| {
            for words in commands {
                other.call(words);
            }
            log(&mut client)
        };
        assert_eq!(
            heard(&[&["SET", "k", "v"]]),
            "command 20 0 set k words 3 module 0 changes 1:"
        );
        assert_eq!(
            heard(&[&["LPUSH", "k", "1"]]),
            "command 21 0 lpush k words 3 module 0 changes 0:"
        );
        let rejected = heard(&[&["SET"]]);
        assert!(
            rejected.starts_with("command 22 0 set words 1 module 0 changes 0: wrong number"),
            "{rejected}"
        );
        let unknown = heard(&[&["NOSUCH", "x"]]);
        assert!(
            unknown.starts_with("command 22 0 (unknown) x words 2 module 0 changes 0: unknown"),
            "{unknown}"
        );
        let transaction = heard(&[&["MULTI"], &["INCR", "j"], &["EXEC"]]);
        let expected = "command 20 0 multi words 1 module 0 changes 0:  command 20 0 incr j words 2 module 0 changes 1:  \
                        command 20 0 exec words 1 module 0 changes 1:";
        assert_eq!(transaction, expected);
        let called = heard(&[&["hooks.call", "INCR", "j"]]);
        assert_eq!(called, "command 20 0 incr j words 2 module 1 changes 1:");
        let script = "return redis.call('incr', 'j')";
        let of_script = heard(&[&["EVAL", script, "0"]]);
        assert!(
            of_script.starts_with("command 20 0 incr j words 2 module 0 changes 1:"),
            "{of_script}"
        );
        heard(&[
            &["ACL", "SETUSER", "u", "on", "nopass", "+get", "~a*"],
            &["AUTH", "u", "x"],
        ]);
        assert_eq!(
            heard(&[&["GET", "b"]]),
            "command 23 2 get b words 2 module 0 changes 0: b"
        );
        assert_eq!(
            heard(&[&["SET", "a", "1"]]),
            "command 23 1 set a words 3 module 0 changes 0:"
        );
    }
}

#[test]
fn filters_change_commands_of_clients_modules_and_scripts() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let (mut admin, mut client) = (Client::connect(server.port), Client::connect(server.port));
        assert_eq!(admin.call(&["hooks.filter", "0"]), "OK");
        assert!(
            admin
                .call(&["INFO", "modules"])
                .contains("name=hooks,ver=1,api=1,filters=1")
        );
        assert_eq!(client.call(&["SET", "@swap", "@drop", "v"]), "OK");
        assert_eq!(client.call(&["GIT", "swapped"]), "v", "the filter makes it a command");
        assert_eq!(client.call(&["RPUSH", "l", "@twice"]), "2");
        assert_eq!(admin.call(&["hooks.call", "RPUSH", "l", "@swap"]), "3");
        let script = "return redis.call('rpush', 'l', '@twice', '@drop')";
        assert_eq!(client.call(&["EVAL", script, "0"]), "5");
        assert_eq!(
            client.call(&["LRANGE", "l", "0", "-1"]),
            "(once once swapped once once)"
        );
        client.call(&["MULTI"]);
        assert_eq!(client.call(&["GIT", "swapped"]), "QUEUED");
        assert_eq!(client.call(&["EXEC"]), "(v)");
        // A subscribed client's connection cannot move.
        let mut subscriber = Client::connect(server.port);
        raw_call(&mut subscriber, &["HELLO", "3"]);
        raw_call(&mut subscriber, &["SUBSCRIBE", "c"]);
        assert_eq!(raw_call(&mut subscriber, &["GET", "@swap"]), "$1 v");
        // Each request of a pipeline is filtered once, in its turn.
        for words in [
            &["SET", "@swap", "@drop", "5"][..],
            &["GET", "swapped"],
            &["GET", "@swap"],
        ] {
            client.send(words);
        }
        assert_eq!([client.answer(), client.answer(), client.answer()], ["OK", "5", "5"]);
        admin.call(&["hooks.own", "6"]);
        assert_eq!(client.call(&["GET", "swapped"]), "6");
        client.call(&["SET", "swapped", "5"]);
        assert_eq!(admin.call(&["hooks.unfilter"]), "0");
        assert_eq!(admin.call(&["hooks.unfilter"]), "1");
        assert!(client.call(&["GIT", "swapped"]).starts_with("ERR unknown command"));
        assert_eq!(admin.call(&["hooks.filter", "1"]), "OK");
        admin.call(&["hooks.own", "7"]);
        assert_eq!(
            client.call(&["GET", "swapped"]),
            "5",
            "the module's own calls are not filtered"
        );
    }
}

#[test]
fn a_filter_ends_with_its_module() {
    let server = start_with(2, &[&["hooks"]], &["--enable-module-command", "yes"]);
    let mut client = Client::connect(server.port);
    client.call(&["hooks.filter", "0"]);
    subscribe(&mut client, &COMMAND_ENDS);
    assert_eq!(client.call(&["MODULE", "UNLOAD", "hooks"]), "OK");
    assert_eq!(client.call(&["SET", "@swap", "1"]), "OK");
    assert_eq!(client.call(&["GET", "@swap"]), "1");
}

#[test]
fn clients_are_known_by_their_ids() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let (mut admin, mut client) = (Client::connect(server.port), Client::connect(server.port));
        let (own, id) = (admin.call(&["CLIENT", "ID"]), client.call(&["CLIENT", "ID"]));
        let mut known = |id: &str| admin.call(&["hooks.client", id]);
        assert_eq!(known(&own), "db 0 name - user default multi 0 blocked 0 tracking 0");
        client.call(&["CLIENT", "SETNAME", "someone"]);
        client.call(&["SELECT", "2"]);
        assert_eq!(
            known(&id),
            "db 2 name someone user default multi 0 blocked 0 tracking 0"
        );
        client.call(&["MULTI"]);
        assert_eq!(
            known(&id),
            "db 2 name someone user default multi 1 blocked 0 tracking 0"
        );
        client.call(&["DISCARD"]);
        client.send(&["BLPOP", "nothing", "0"]);
        wait_until("the client is blocked", || known(&id).contains("blocked 1"));
        assert_eq!(admin.call(&["hooks.rename", &id, "other"]), "0");
        assert_eq!(admin.call(&["hooks.rename", &id, "a b"]), "22");
        assert_eq!(admin.call(&["hooks.rename", "99999", "x"]), "2");
        admin.call(&["SELECT", "2"]);
        admin.call(&["RPUSH", "nothing", "1"]);
        assert_eq!(client.answer(), "(nothing 1)");
        assert_eq!(client.call(&["CLIENT", "GETNAME"]), "other");
        let mut known = |id: &str| admin.call(&["hooks.client", id]);
        assert_eq!(known(&id), "db 2 name other user default multi 0 blocked 0 tracking 0");
        drop(client);
        wait_until("the client is gone", || known(&id) == "-");
    }
}

#[test]
fn modules_see_clients_come_and_go() {
    for workers in [1, 4] {
        let server = start(workers, "hooks");
        let mut admin = Client::connect(server.port);
        // The end of a connection of the start would be an event, too.
        wait_until("no other client is left", || admin.info("connected_clients") == "1");
        subscribe(&mut admin, &[CLIENT_CHANGE]);
        let mut client = Client::connect(server.port);
        client.call(&["PING"]);
        assert_eq!(log(&mut admin), "client 0 127.0.0.1");
        // One that is killed while it is blocked.
        client.send(&["BLPOP", "nothing", "0"]);
        admin.call(&["CLIENT", "KILL", "SKIPME", "yes"]);
        wait_until("the module is told", || log(&mut admin) == "client 1 127.0.0.1");
    }
}

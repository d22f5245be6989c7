//! Commands that modules call, and what is propagated of them.

use super::{start, start_with};
use crate::harness::client::Client;
use crate::harness::wait_until;

#[test]
fn arguments_are_passed_in_every_form() {
    let server = start(2, "calls");
    let mut client = Client::connect(server.port);
    assert_eq!(
        client.call(&["calls.formats", "list"]),
        "(text -12 buffer calls.formats list)"
    );
}

#[test]
fn a_call_that_is_refused_sets_the_error_number() {
    let server = start(1, "calls");
    let mut client = Client::connect(server.port);
    let mut run = |words: &[&str]| client.call(&[&["calls.run"], words].concat());
    assert_eq!(run(&["", "nonsense"]), "ERRNO ENOENT");
    assert_eq!(
        run(&["E", "nonsense", "a"]),
        "ERR unknown command 'nonsense', with args beginning with: 'a'"
    );
    assert_eq!(run(&["", "get"]), "ERRNO EINVAL");
    assert_eq!(run(&["E", "get"]), "ERR wrong number of arguments for 'get' command");
    assert_eq!(run(&["S", "shutdown"]), "ERRNO ESPIPE");
    assert_eq!(
        run(&["SE", "shutdown"]),
        "ERR command 'shutdown' is not allowed on script mode"
    );
    assert_eq!(run(&["W", "set", "k", "v"]), "ERRNO ENOSPC");
    assert_eq!(
        run(&["WE", "set", "k", "v"]),
        "ERR Write command 'set' was called while write is not allowed."
    );
    assert_eq!(run(&["D", "set", "k", "v"]), "nothing");
    assert_eq!(run(&["", "get", "k"]), "-");
    assert_eq!(run(&["", "set", "k", "v"]), "OK");
    assert_eq!(
        run(&["", "lpush", "k", "v"]),
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    );
    assert_eq!(
        run(&["", "subscribe", "c"]),
        "ERR SUBSCRIBE isn't allowed for a DENY BLOCKING client"
    );
}

#[test]
fn a_call_runs_as_the_user_if_the_module_asks() {
    let server = start(2, "calls");
    let mut client = Client::connect(server.port);
    client.call(&["ACL", "SETUSER", "reader", "on", "nopass", "~a*", "+@all", "-set"]);
    assert_eq!(client.call(&["AUTH", "reader", ""]), "OK");
    assert_eq!(client.call(&["calls.run", "", "set", "k", "v"]), "OK");
    assert_eq!(client.call(&["calls.run", "C", "set", "k", "v"]), "ERRNO EACCES");
    assert_eq!(
        client.call(&["calls.run", "CE", "set", "k", "v"]),
        "NOPERM User reader has no permissions to run the 'set' command"
    );
    assert_eq!(
        client.call(&["calls.run", "CE", "get", "k"]),
        "NOPERM No permissions to access a key"
    );
    assert_eq!(client.call(&["calls.run", "CE", "get", "a"]), "-");
    let log = Client::connect(server.port).call(&["ACL", "LOG", "1"]);
    assert!(log.contains("context module object k username reader"), "{log}");
}

/// The login above all users is used for one call after the other. None of them must leave another one behind.
#[test]
fn a_call_that_logs_in_or_changes_users_leaves_the_next_one_as_it_was() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["calls"]], &[]);
        let mut admin = Client::connect(server.port);
        admin.call(&["ACL", "SETUSER", "bob", "on", ">pw", "+calls.run", "~b*"]);
        admin.call(&["ACL", "SETUSER", "eve", "on", ">pw", "+calls.run", "+get", "~e*"]);
        let mut bob = Client::connect(server.port);
        assert_eq!(bob.call(&["AUTH", "bob", "pw"]), "OK");
        let mut run = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            bob.call(&[&["calls.run"], &words[..]].concat())
        };
        for login in [
            "E auth eve pw",
            "E auth eve wrong",
            "E hello 2 auth eve pw",
            "E acl setuser default off",
        ] {
            let reply = run(login);
            assert_eq!(
                reply.starts_with("WRONGPASS"),
                login.ends_with("wrong"),
                "{login}: {reply}"
            );
            assert_eq!(run("E set x 1"), "OK", "above all users after {login}");
            assert_eq!(run("E acl whoami"), "-", "{login}");
            assert_eq!(
                run("EC acl whoami"),
                "NOPERM User bob has no permissions to run the 'acl|whoami' command"
            );
            let denied = "NOPERM User bob has no permissions to run the 'get' command";
            assert_eq!(run("EC get ex"), denied, "{login}");
        }
        // The next call as the user has the rules that a call has just given it, also one that was refused before.
        assert_eq!(run("E acl setuser bob +set ~x"), "OK");
        assert_eq!(run("EC set x 2"), "OK");
        assert_eq!(run("E acl setuser bob -set"), "OK");
        assert_eq!(
            run("EC set x 3"),
            "NOPERM User bob has no permissions to run the 'set' command"
        );
        assert_eq!(run("E acl deluser eve"), "1");
        assert_eq!(run("E get x"), "2");
        // A call for no user is refused for that reason, also if its format is wrong.
        let text = "ERR cannot run as user, no user directly attached to context or context's client";
        assert_eq!(run("E calls.run EC get x"), text);
        assert_eq!(run("E calls.run ECz get x"), text);
        assert_eq!(run("E calls.run Cz get x"), "ERRNO EOPNOTSUPP");
        assert_eq!(run("E calls.run Ez get x"), "ERRNO EBADF");
    }
}

#[test]
fn replies_have_the_types_that_the_module_asks_for() {
    let server = start(1, "calls");
    let mut client = Client::connect(server.port);
    client.call(&["HSET", "h", "f", "v"]);
    let mut types = |words: &[&str]| client.call(&[&["calls.type"], words].concat());
    assert_eq!(types(&["", "hgetall", "h"]), "(3 2)");
    assert_eq!(types(&["3", "hgetall", "h"]), "(5 1)");
    assert_eq!(types(&["0", "hgetall", "h"]), "(3 2)");
    assert_eq!(types(&["", "ping"]), "(0 4)");
    assert_eq!(types(&["X", "ping"]), "(13 0)");
    assert_eq!(types(&["", "get", "k"]), "(4 0)");
    assert_eq!(types(&["X", "blpop", "k", "0"]), "(14 0)");
    assert_eq!(
        client.call(&["calls.run", "3", "hgetall", "h"]),
        "ERR the reply is in RESP3"
    );
}

#[test]
fn calls_are_propagated_as_the_module_says() {
    let primary = start(2, "calls");
    let replica = start(1, "calls");
    let port = primary.port.to_string();
    let mut reader = Client::connect(replica.port);
    reader.call(&["REPLICAOF", "127.0.0.1", &port]);
    wait_until("the replica is connected", || {
        reader.call(&["INFO", "replication"]).contains("master_link_status:up")
    });
    let mut client = Client::connect(primary.port);
    assert_eq!(
        client.call(&["calls.formats", "list"]),
        "(text -12 buffer calls.formats list)"
    );
    assert_eq!(client.call(&["calls.replicate", "string"]), "OK");
    assert_eq!(client.call(&["calls.mixed", "mixed"]), "OK");
    assert_eq!(client.call(&["WAIT", "1", "0"]), "1");
    assert_eq!(
        reader.call(&["LRANGE", "list", "0", "-1"]),
        "(text -12 buffer calls.formats list)"
    );
    assert_eq!(reader.call(&["GET", "string"]), "both");
    assert_eq!(reader.call(&["EXISTS", "file", "unheard"]), "0");
    assert_eq!(reader.call(&["LRANGE", "mixed", "0", "-1"]), "(shown)");
    assert_eq!(client.call(&["LRANGE", "mixed", "0", "-1"]), "(shown silent)");
    assert_eq!(client.call(&["EXISTS", "string", "unheard"]), "1");
}

#[test]
fn scripts_and_transactions_reach_calls() {
    for workers in [1, 4] {
        let server = start(workers, "calls");
        let mut client = Client::connect(server.port);
        let script = "return redis.call('incrby', KEYS[1], ARGV[1])";
        assert_eq!(client.call(&["calls.run", "!", "eval", script, "1", "k", "5"]), "5");
        let nested = "return redis.call('calls.run', '!', 'incr', KEYS[1])";
        assert_eq!(client.call(&["calls.run", "!", "eval", nested, "1", "k"]), "6");
        assert_eq!(client.call(&["calls.run", "!", "calls.run", "!", "incr", "k"]), "7");
        let reply = client.transact(&[
            &["calls.run", "!", "incr", "k"],
            &["calls.run", "", "flushall"],
            &["dbsize"],
        ]);
        assert_eq!(reply, "(8 OK 0)");
    }
}

#[test]
fn a_blocked_call_replies_later() {
    for workers in [1, 4] {
        let server = start(workers, "calls");
        let mut client = Client::connect(server.port);
        let mut other = Client::connect(server.port);
        assert_eq!(client.call(&["calls.await", "r", "!", "blpop", "l", "0"]), "blocked");
        assert_eq!(other.call(&["RPUSH", "l", "a", "b"]), "2");
        // The reply to RPUSH is withheld until the module has its own.
        assert_eq!(other.call(&["GET", "r"]), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
        assert_eq!(other.call(&["LRANGE", "l", "0", "-1"]), "(b)");
        assert_eq!(client.call(&["calls.await", "r", "!", "blpop", "l", "0"]), "(l b)");

        assert_eq!(
            client.call(&["calls.await", "first", "!", "bzpopmin", "z", "0"]),
            "blocked"
        );
        assert_eq!(
            client.call(&["calls.await", "second", "", "bzpopmin", "z", "0"]),
            "blocked"
        );
        assert_eq!(other.call(&["ZADD", "z", "1", "x", "2", "y"]), "2");
        assert_eq!(other.call(&["EXISTS", "first", "second", "z"]), "2");

        assert_eq!(
            client.call(&["calls.await", "late", "!", "blpop", "l", "0.05"]),
            "blocked"
        );
        wait_until("the call times out", || other.call(&["GET", "late"]) == "*-1\r\n");
        assert_eq!(client.call(&["calls.await", "w", "", "wait", "1", "50"]), "blocked");
        wait_until("the wait times out", || other.call(&["GET", "w"]) == ":0\r\n");
    }
}

#[test]
fn a_blocked_call_can_be_aborted() {
    let server = start(2, "calls");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["calls.await", "r", "!", "blpop", "l", "0"]), "blocked");
    assert_eq!(client.call(&["calls.abort"]), "1");
    assert_eq!(client.call(&["calls.abort"]), "0");
    assert_eq!(client.call(&["RPUSH", "l", "a"]), "1");
    assert_eq!(client.call(&["LLEN", "l"]), "1");
    assert_eq!(client.call(&["calls.await", "r", "!", "blpop", "k", "0"]), "blocked");
    assert_eq!(client.call(&["RPUSH", "k", "a"]), "1");
    assert_eq!(client.call(&["GET", "r"]), "*2\r\n$1\r\nk\r\n$1\r\na\r\n");
    assert_eq!(client.call(&["calls.abort"]), "0");
}

//! Scripting engines of modules: scripts, functions, their end, and the end of the engine.

use std::thread;
use std::time::Duration;

use super::{module, start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

fn connect(server: &Server) -> Client {
    Client::connect(server.port)
}

const LIBRARY: &str = "#!tiny name=lib\nsay rw say hello\nshow ro show\nset rw call SET $ 1\nroset ro call SET $ 1\n\
                       wait rw wait\n";

#[test]
fn scripts_and_functions_run_in_the_engine() {
    for workers in [1, 4] {
        let server = start(workers, "engine");
        let mut client = connect(&server);
        assert_eq!(client.call(&["EVAL", "#!tiny\nshow", "1", "k", "a"]), "(1 1 k a)");
        assert_eq!(client.call(&["EVAL", "#!Tiny flags=no-writes\ncall GET k", "0"]), "-");
        let digest = client.call(&["SCRIPT", "LOAD", "#!tiny\nsay loaded"]);
        assert_eq!(client.call(&["EVALSHA", &digest, "0"]), "loaded");
        assert_eq!(client.call(&["SCRIPT", "EXISTS", &digest]), "(1)");
        assert_eq!(client.call(&["SCRIPT", "SHOW", &digest]), "#!tiny\nsay loaded");
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
        assert_eq!(client.call(&["FCALL", "say", "0"]), "hello");
        assert_eq!(client.call(&["FCALL_RO", "show", "0", "x"]), "(0 1 x)");
        assert_eq!(client.call(&["FCALL", "set", "1", "key"]), "OK");
        assert_eq!(client.call(&["GET", "key"]), "1");
        let in_transaction: &[&[&str]] = &[&["SET", "a", "2"], &["FCALL", "set", "1", "a"], &["GET", "a"]];
        assert_eq!(client.transact(in_transaction), "(OK OK 1)");
        let list = client.call(&["FUNCTION", "LIST"]);
        assert!(list.contains("library_name lib engine tiny"), "{list}");
        assert!(
            list.contains("(name show description described flags (no-writes))"),
            "{list}"
        );
        let stats = client.call(&["FUNCTION", "STATS"]);
        assert!(stats.contains("tiny (libraries_count 1 functions_count 5)"), "{stats}");
        let info = client.call(&["INFO", "scriptingengines"]);
        assert!(info.contains("engines_count:2"), "{info}");
        assert!(
            info.contains("engine_1:name=tiny,module=engine,abi_version=4,used_memory=800,memory_overhead=7"),
            "{info}"
        );
        // Other scripts are as before.
        assert_eq!(client.call(&["EVAL", "return redis.call('GET', 'key')", "0"]), "1");
    }
}

#[test]
fn scripts_are_refused_with_reasons() {
    let server = start(4, "engine");
    let mut client = connect(&server);
    let mut call = |words: &[&str]| client.call(words);
    assert_eq!(
        call(&["EVAL", "#!other\nsay x", "0"]),
        "ERR Could not find scripting engine 'other'"
    );
    assert_eq!(call(&["EVAL", "#!tiny\nwrong", "0"]), "ERR it is wrong");
    assert_eq!(
        call(&["EVAL", "#!tiny\nsay x", "1"]),
        "ERR Number of keys can't be greater than number of args"
    );
    assert_eq!(
        call(&["EVAL", "#!tiny\nsay a\nsay b", "0"]),
        "ERR The engine has not compiled exactly one function"
    );
    assert_eq!(
        call(&["EVAL_RO", "#!tiny\nsay x", "0"]),
        "ERR Can not execute a script with write flag using *_ro command."
    );
    let denied = "ERR Write commands are not allowed from read-only scripts.";
    assert_eq!(call(&["EVAL", "#!tiny flags=no-writes\ncall SET k v", "0"]), denied);
    assert_eq!(call(&["FUNCTION", "LOAD", "#!tiny name=lib\nwrong"]), "ERR it is wrong");
    assert_eq!(
        call(&["FUNCTION", "LOAD", "#!tiny name=lib\n"]),
        "ERR No functions registered"
    );
    assert_eq!(
        call(&["FUNCTION", "LOAD", "#!other name=lib\n"]),
        "ERR Engine 'other' not found"
    );
    assert_eq!(call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
    assert_eq!(call(&["FUNCTION", "LOAD", LIBRARY]), "ERR Library 'lib' already exists");
    assert_eq!(call(&["FCALL", "roset", "1", "k"]), denied);
    assert_eq!(call(&["FCALL", "nosuch", "0"]), "ERR Function not found");
    assert_eq!(
        call(&["EVAL", "#!tiny\ncall ACL WHOAMI", "0"]),
        "ERR command 'acl|whoami' is not allowed on script mode"
    );
    assert_eq!(
        call(&["ACL", "SETUSER", "reader", "on", "nopass", "+@all", "-set", "~*"]),
        "OK"
    );
    assert_eq!(call(&["AUTH", "reader", "x"]), "OK");
    let reply = call(&["FCALL", "set", "1", "k"]);
    assert!(reply.starts_with("NOPERM User reader has no permissions"), "{reply}");
}

#[test]
fn a_script_can_be_killed() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["engine"]], &["--busy-reply-threshold", "10"]);
        let (mut client, mut other) = (connect(&server), connect(&server));
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
        client.send(&["FCALL", "wait", "0"]);
        let busy = "BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
        wait_until("the script is overdue", || other.call(&["PING"]) == busy);
        assert!(
            other
                .call(&["FUNCTION", "STATS"])
                .contains("name wait command (FCALL wait 0)")
        );
        assert_eq!(other.call(&["SCRIPT", "KILL"]), busy);
        assert_eq!(other.call(&["FUNCTION", "KILL"]), "OK");
        assert_eq!(client.answer(), "ERR killed");
        assert_eq!(other.call(&["PING"]), "PONG");
        // The client that has sent a script goes away: the script can still be killed.
        let mut leaving = connect(&server);
        leaving.send(&["EVAL", "#!tiny\nwait", "0"]);
        let busy = busy.replace("FUNCTION", "SCRIPT");
        wait_until("the script is overdue", || other.call(&["PING"]) == busy);
        drop(leaving);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(other.call(&["SCRIPT", "KILL"]), "OK");
        wait_until("the script has ended", || other.call(&["PING"]) == "PONG");
    }
}

#[test]
fn code_is_freed_when_nothing_needs_it() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["engine"]], &["--enable-module-command", "yes"]);
        let mut client = connect(&server);
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
        assert_eq!(client.call(&["EVAL", "#!tiny\nsay x", "0"]), "x");
        assert_eq!(client.call(&["engine.counts"]), "(6 0 0)");
        assert_eq!(
            client.call(&["FUNCTION", "LOAD", "REPLACE", "#!tiny name=lib\nf rw say x"]),
            "lib"
        );
        wait_until("the old library is freed", || {
            client.call(&["engine.counts"]) == "(2 0 0)"
        });
        let dump = ["FUNCTION", "FLUSH", "ASYNC"];
        assert_eq!(client.call(&dump), "OK");
        wait_until("the library is freed", || client.call(&["engine.counts"]) == "(1 1 1)");
        assert_eq!(client.call(&["SCRIPT", "FLUSH", "SYNC"]), "OK");
        wait_until("the script is freed", || client.call(&["engine.counts"]) == "(0 2 1)");
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
        let digest = client.call(&["SCRIPT", "LOAD", "#!tiny\nsay loaded"]);
        assert_eq!(client.call(&["MODULE", "UNLOAD", "engine"]), "OK");
        assert_eq!(client.call(&["FUNCTION", "LIST"]), "()");
        assert_eq!(client.call(&["SCRIPT", "EXISTS", &digest]), "(0)");
        assert_eq!(
            client.call(&["EVAL", "#!tiny\nsay x", "0"]),
            "ERR Could not find scripting engine 'tiny'"
        );
        assert_eq!(client.call(&["MODULE", "LOAD", &module("engine")]), "OK");
        assert_eq!(client.call(&["EVAL", "#!tiny\nsay x", "0"]), "x");
    }
}

#[test]
fn libraries_are_in_files_and_in_streams() {
    let mut primary = start_with(
        4,
        &[&["engine"]],
        &["--appendonly", "yes", "--enable-debug-command", "yes"],
    );
    let replica = start(4, "engine");
    let mut client = connect(&primary);
    assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]), "lib");
    let mut on_replica = connect(&replica);
    let port = primary.port.to_string();
    assert_eq!(on_replica.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    wait_until("the replica has the library", || {
        on_replica.call(&["FCALL_RO", "show", "0"]) == "(0 0)"
    });
    // The effects of the script are propagated, and a library that comes in the stream is compiled.
    assert_eq!(client.call(&["FCALL", "set", "1", "key"]), "OK");
    assert_eq!(
        client.call(&["FUNCTION", "LOAD", "#!tiny name=more\nmore ro say more"]),
        "more"
    );
    wait_until("the replica has the second library", || {
        on_replica.call(&["FCALL_RO", "more", "0"]) == "more"
    });
    assert_eq!(on_replica.call(&["GET", "key"]), "1");
    drop(client);
    primary.kill();
    primary.start_again();
    let mut client = connect(&primary);
    wait_until("the file is loaded", || client.call(&["FCALL", "say", "0"]) == "hello");
    assert_eq!(client.call(&["GET", "key"]), "1");
    assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
    assert_eq!(client.call(&["FCALL", "say", "0"]), "hello");
}

#[test]
fn a_script_is_debugged() {
    for workers in [1, 4] {
        let server = start(workers, "engine");
        let mut client = connect(&server);
        let no_engine = "ERR No scripting engine found with name 'other' to enable debug";
        assert_eq!(client.call(&["SCRIPT", "DEBUG", "SYNC", "other"]), no_engine);
        assert_eq!(client.call(&["SCRIPT", "DEBUG", "SYNC", "tiny"]), "OK");
        assert_eq!(
            client.call(&["EVAL", "#!tiny\ncall INCR $", "1", "k"]),
            "(at call INCR $)"
        );
        assert_eq!(client.call(&["echo", "a"]), "(echo a <reply> [1,\"a\"])");
        let unknown = "(<error> Unknown debugger command or wrong number of arguments.)";
        assert_eq!(client.call(&["ec"]), unknown);
        assert_eq!(client.call(&["nosuch"]), unknown);
        assert_eq!(client.call(&["maxlen"]), "(Current maxlen is 256)");
        let help = client.call(&["h"]);
        assert!(help.starts_with("(tiny debugger help: [h]elp"), "{help}");
        assert!(help.contains("[ec]ho <first> [second]"), "{help}");
        assert_eq!(client.call(&["g"]), "(<endsession>)");
        assert_eq!(client.answer(), "1");
        let mut other = connect(&server);
        assert_eq!(other.call(&["GET", "k"]), "1");
        // The user goes away: the session ends, and clients go on.
        let mut leaving = connect(&server);
        assert_eq!(leaving.call(&["SCRIPT", "DEBUG", "SYNC", "TINY"]), "OK");
        assert_eq!(
            leaving.call(&["EVAL", "#!tiny\ncall INCR $", "1", "k"]),
            "(at call INCR $)"
        );
        drop(leaving);
        assert_eq!(other.call(&["INCR", "k"]), "2");
        let mut copies = connect(&server);
        assert_eq!(copies.call(&["SCRIPT", "DEBUG", "YES", "tiny"]), "OK");
        let refused = "ERR Scripts of this engine can only be debugged with SCRIPT DEBUG SYNC";
        assert_eq!(copies.call(&["EVAL", "#!tiny\nsay x", "0"]), refused);
    }
}

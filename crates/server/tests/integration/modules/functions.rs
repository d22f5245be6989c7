//! Functions of the API that no test module of Valkey calls.

use super::{raw_call, start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

#[test]
fn keys_have_expiries_ranges_fields_and_databases() {
    for workers in [1, 4] {
        let server = start(workers, "key_functions");
        let mut client = Client::connect(server.port);
        let until = client.call(&["keyfunctions.expiry", "text"]);
        assert_eq!(client.call(&["PEXPIRETIME", "text"]), until);
        assert_eq!(client.call(&["keyfunctions.hash", "hash"]), "OK");
        assert_eq!(client.call(&["HGETALL", "hash"]), "(b a)");

        client.call(&["ZADD", "z", "1", "a", "2", "b", "2", "c", "3", "d"]);
        for (min, max, end, exclusive, expected) in [
            ("1", "2", "first", "0", "(a 1 b 2 c 2)"),
            ("1", "2", "last", "0", "(c 2 b 2 a 1)"),
            ("1", "3", "first", "1", "(b 2 c 2)"),
            ("1", "3", "last", "1", "(c 2 b 2)"),
            ("4", "5", "first", "0", "()"),
            ("-inf", "inf", "last", "0", "(d 3 c 2 b 2 a 1)"),
        ] {
            let reply = client.call(&["keyfunctions.range", "z", min, max, end, exclusive]);
            assert_eq!(reply, expected, "{min} {max} {end} {exclusive}");
        }

        assert_eq!(client.call(&["keyfunctions.database", "text"]), "0");
        assert_eq!(client.call(&["SELECT", "5"]), "OK");
        assert_eq!(client.call(&["keyfunctions.database", "text"]), "5");
        for number in 0..100 {
            client.call(&["SET", &format!("k{number}"), "v"]);
        }
        assert_eq!(client.call(&["keyfunctions.scan"]), "100");
    }
}

#[test]
fn fields_that_a_module_provides_are_noted_until_they_change() {
    for workers in [1, 4] {
        let server = start(workers, "key_functions");
        let mut client = Client::connect(server.port);
        let is_provided = |client: &mut Client| client.call(&["keyfunctions.provided", "h", "f"]);
        let provide = ["keyfunctions.provide", "h", "f", "bytes of the module"];
        assert_eq!(client.call(&provide), "1", "there is no hash");
        assert_eq!(client.call(&["HSET", "h", "f", "1", "g", "2"]), "2");
        assert_eq!(is_provided(&mut client), "0");
        for change in [
            &["HSET", "h", "f", "3"][..],
            &["HINCRBY", "h", "n", "1"],
            &["HDEL", "h", "f"],
            &["RENAME", "h", "i"],
        ] {
            client.call(&["DEL", "h"]);
            client.call(&["HSET", "h", "f", "1", "g", "2"]);
            client.call(&["HPEXPIRE", "h", "100000", "FIELDS", "1", "f"]);
            assert_eq!(client.call(&provide), "0");
            assert_eq!(client.call(&["HGET", "h", "f"]), "bytes of the module");
            assert_ne!(
                client.call(&["HPTTL", "h", "FIELDS", "1", "f"]),
                "(-1)",
                "the expiry stays"
            );
            assert_eq!(is_provided(&mut client), "1");
            client.call(change);
            let expected = if change[2] == "n" { "1" } else { "0" };
            let expected = if change[0] == "RENAME" { "1" } else { expected };
            let key = if change[0] == "RENAME" { "i" } else { "h" };
            assert_eq!(
                client.call(&["keyfunctions.provided", key, "f"]),
                expected,
                "{change:?}"
            );
        }
    }
}

#[test]
fn a_signal_of_a_change_fails_transactions_that_watch_the_key() {
    let server = start(4, "key_functions");
    let (mut watcher, mut client) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(watcher.call(&["WATCH", "k"]), "OK");
    assert_eq!(watcher.call(&["MULTI"]), "OK");
    assert_eq!(watcher.call(&["PING"]), "QUEUED");
    assert_eq!(client.call(&["keyfunctions.touch", "k"]), "OK");
    assert_eq!(watcher.call(&["EXEC"]), "-");
}

/// Numbers that are stored exactly, and their texts.
const NUMBERS: [&str; 5] = ["0.1", "-0.5", "inf", "1e-300", "12345678901"];

fn assert_numbers(client: &mut Client) {
    for number in NUMBERS {
        assert_eq!(client.call(&["typefunctions.get", &format!("n{number}")]), number);
    }
}

/// The digest that Valkey 9.1.2 computes for the number 0.1 of this type.
const DIGEST_IN_VALKEY: &str = "(1a695be28d10b94beb25a8685b44e8a5e4fa2eed)";

#[test]
fn numbers_of_a_data_type_survive_dumps_logs_and_copies() {
    let dump = ["--enable-debug-command", "yes"];
    let mut server = start_with(4, &[&["type_functions"]], &dump);
    let mut client = Client::connect(server.port);
    for number in NUMBERS {
        assert_eq!(client.call(&["typefunctions.serialize", number]), "OK");
        assert_eq!(client.call(&["typefunctions.set", &format!("n{number}"), number]), "OK");
    }
    assert_numbers(&mut client);
    assert_eq!(
        client.call(&["COPY", "n0.1", "copy"]).split(' ').next(),
        Some("ERR"),
        "the type has no copy function"
    );
    assert_eq!(client.call(&["TYPE", "n0.1"]), "numbertyp");
    assert_eq!(
        client.call(&["DEBUG", "DIGEST-VALUE", "n0.1"]),
        DIGEST_IN_VALKEY,
        "digests of two servers can be compared"
    );
    assert!(client.call(&["DEBUG", "DIGEST-VALUE", "n0.1"]) != client.call(&["DEBUG", "DIGEST-VALUE", "n-0.5"]));
    let payload = {
        client.send(&["DUMP", "n0.1"]);
        let mut reply = Vec::new();
        super::read_reply(&mut client, &mut reply);
        let start = reply.iter().position(|byte| *byte == b'\n').expect("a bulk string") + 1;
        reply[start..reply.len() - 2].to_vec()
    };
    client.send(&[b"RESTORE".as_slice(), b"restored", b"0", &payload]);
    assert_eq!(client.answer(), "OK");
    assert_eq!(client.call(&["typefunctions.get", "restored"]), "0.1");

    let before = client.call(&["DEBUG", "DIGEST"]);
    assert_eq!(client.call(&["DEBUG", "RELOAD"]), "OK");
    assert_numbers(&mut client);
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), before);
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
    client.wait_for_info("aof_rewrite_in_progress", "0");
    assert_eq!(client.call(&["typefunctions.set", "n0.1", "0.1"]), "OK");
    assert_eq!(client.call(&["DEBUG", "LOADAOF"]), "OK");
    assert_numbers(&mut client);
    assert_eq!(client.call(&["DEBUG", "DIGEST"]), before);
    server.kill();
}

#[test]
fn clients_commands_and_information_are_known() {
    let server = start_with(4, &[&["server_functions"]], &["--notify-keyspace-events", "K$"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["serverfunctions.names"]), "(0 9)");
    assert_eq!(
        client.call(&["serverfunctions.keys", "MSET", "a", "1", "b", "2"]),
        "(1 3)"
    );
    assert_eq!(client.call(&["serverfunctions.keys", "PING"]), "-");
    assert_eq!(client.call(&["serverfunctions.keys", "NOTHING"]), "-");
    assert_eq!(
        client.call(&["serverfunctions.proto", "ECHO", "text"]),
        "$4\r\ntext\r\n"
    );
    assert_eq!(raw_call(&mut client, &["serverfunctions.proto", "NOTHING", "x"]), "$-1");
    let information = client.call(&["INFO", "serverfunctions"]);
    let expected = "# serverfunctions_part\r\nserverfunctions_field:text\r\n\
                    serverfunctions_group:first=text,second=7\r\n";
    assert!(information.contains(expected), "{information}");

    let mut other = Client::connect(server.port);
    let id = other.call(&["CLIENT", "ID"]);
    assert_eq!(client.call(&["serverfunctions.disconnect", &id]), "0");
    wait_until("the client is disconnected", || {
        !client.call(&["CLIENT", "LIST"]).contains(&format!("id={id} "))
    });
    assert_eq!(client.call(&["serverfunctions.disconnect", &id]), "1");
}

#[test]
fn a_module_learns_that_a_blocked_client_is_gone() {
    let server = start(4, "server_functions");
    let mut client = Client::connect(server.port);
    let mut waiter = Client::connect(server.port);
    waiter.send(&["serverfunctions.block"]);
    client.wait_for_info("blocked_clients", "1");
    assert_eq!(client.call(&["serverfunctions.unblock"]), "0");
    assert_eq!(waiter.answer(), "unblocked");
    waiter.send(&["serverfunctions.block"]);
    client.wait_for_info("blocked_clients", "1");
    drop(waiter);
    client.wait_for_info("blocked_clients", "0");
    client.call(&["serverfunctions.unblock"]);
    wait_until("the data of the client is freed", || {
        client.call(&["serverfunctions.unblock"]) == "1"
    });
}

#[test]
fn a_child_ends_with_its_code() {
    let server = start(2, "server_functions");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["serverfunctions.child"]), "-1");
    assert_eq!(client.call(&["serverfunctions.fork"]), "1");
    wait_until("the module hears of the end", || {
        client.call(&["serverfunctions.child"]) == "7"
    });
}

#[test]
fn a_node_knows_its_cluster() {
    let path = super::module("cluster_functions");
    let server = Server::start_node(&["--loadmodule", &path]);
    let mut client = Client::connect(server.port);
    let id = client.call(&["CLUSTER", "MYID"]);
    assert_eq!(client.call(&["clusterfunctions.self"]), id);
    assert_eq!(client.call(&["clusterfunctions.size"]), "1");
    let nodes = client.call(&["clusterfunctions.nodes"]);
    // It is this node, and a primary.
    assert!(nodes.starts_with(&format!("(({id} ")), "{nodes}");
    assert!(nodes.ends_with(&format!(" {} 3 1))", server.port)), "{nodes}");
    assert_eq!(client.call(&["SET", "k", "v"]), "CLUSTERDOWN Hash slot not served");
    assert_eq!(client.call(&["clusterfunctions.flags", "4"]), "OK");
    assert_eq!(
        client.call(&["SET", "k", "v"]),
        "OK",
        "a module has switched redirections off"
    );
    assert_eq!(client.call(&["clusterfunctions.send"]), "0", "there are no other nodes");

    let alone = super::start(1, "cluster_functions");
    let mut client = Client::connect(alone.port);
    for command in ["self", "nodes"] {
        assert_eq!(client.call(&[&format!("clusterfunctions.{command}")]), "-");
    }
    assert_eq!(client.call(&["clusterfunctions.size"]), "0");
    assert_eq!(client.call(&["clusterfunctions.send"]), "1", "there is no cluster");
}

#[test]
fn modules_share_functions() {
    let server = start_with(2, &[&["sharing_user"]], &["--enable-module-command", "yes"]);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["user.twice", "21"]), "-");
    assert_eq!(client.call(&["MODULE", "LOAD", &super::module("sharing_owner")]), "OK");
    assert_eq!(client.call(&["user.twice", "21"]), "42");
    let refused = client.call(&["MODULE", "UNLOAD", "owner"]);
    assert!(refused.contains("exports APIs used by other modules"), "{refused}");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "user"]), "OK");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "owner"]), "OK");
}

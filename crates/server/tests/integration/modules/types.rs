//! Data types of modules: files, replicas, copies and memory. The module ends the process if one of its functions runs
//! on another thread than the others.

use std::thread;

use super::{module, read_reply, start, start_with};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Returns a field of the counts of what the module's functions have done.
fn count(client: &mut Client, name: &str) -> String {
    let counts = client.call(&["types.counts"]);
    let field = counts
        .split(' ')
        .find_map(|field| field.strip_prefix(&format!("{name}=")));
    field.expect("the module counts it").to_owned()
}

fn set(client: &mut Client, key: &str, number: u64) {
    assert_eq!(client.call(&["types.set", key, &number.to_string()]), "OK");
}

/// Returns the payload of a key.
fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    client.send(&["DUMP", key]);
    let mut reply = Vec::new();
    read_reply(client, &mut reply);
    let start = reply.iter().position(|byte| *byte == b'\n').expect("a bulk string") + 1;
    reply[start..reply.len() - 2].to_vec()
}

const DEBUG: [&str; 2] = ["--enable-debug-command", "yes"];

#[test]
fn a_value_behaves_as_a_key_of_its_type() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["types"]], &DEBUG);
        let mut client = Client::connect(server.port);
        set(&mut client, "k", 7);
        assert_eq!(client.call(&["TYPE", "k"]), "types-cnt");
        assert_eq!(client.call(&["OBJECT", "ENCODING", "k"]), "raw");
        assert_eq!(
            client.call(&["GET", "k"]),
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        );
        assert_eq!(client.call(&["SCAN", "0", "TYPE", "Types-CNT"]), "(0 (k))");
        assert_eq!(client.call(&["types.swap", "k", "8"]), "7");
        assert_eq!(client.call(&["types.get", "k"]), "8");
        assert_eq!(client.call(&["types.swap", "missing", "8"]), "ERR not replaced");
        assert_eq!(client.call(&["types.text", "5"]), "7");
        let usage: i64 = client.call(&["MEMORY", "USAGE", "k"]).parse().expect("a number");
        assert!(usage > 100_005 && usage < 100_500, "{usage}");
        let sampled: i64 = client
            .call(&["MEMORY", "USAGE", "k", "SAMPLES", "50"])
            .parse()
            .expect("a number");
        assert_eq!(sampled - usage, 45);
        client.call(&["SET", "s", "v"]);
        let digest = client.call(&["DEBUG", "DIGEST-VALUE", "k", "s"]);
        set(&mut client, "k", 9);
        assert_ne!(client.call(&["DEBUG", "DIGEST-VALUE", "k", "s"]), digest);
        set(&mut client, "k", 8);
        assert_eq!(client.call(&["DEBUG", "DIGEST-VALUE", "k", "s"]), digest);
    }
}

#[test]
fn a_module_copies_and_restores_its_values() {
    let server = start(4, "types");
    let mut client = Client::connect(server.port);
    set(&mut client, "k", 7);
    assert_eq!(client.call(&["PEXPIRE", "k", "1000000"]), "1");
    assert_eq!(client.call(&["COPY", "k", "copy", "DB", "3"]), "1");
    assert_eq!(client.call(&["COPY", "k", "refused"]), "ERR module key failed to copy");
    assert_eq!(
        client.call(&["COPY", "k", "k"]),
        "ERR source and destination objects are the same"
    );
    assert_eq!(client.call(&["types.incr", "k"]), "8");
    assert_eq!(client.call(&["SELECT", "3"]), "OK");
    assert_eq!(
        client.call(&["types.get", "copy"]),
        "10",
        "the module has added the database"
    );
    assert_ne!(client.call(&["PTTL", "copy"]), "-1");
    assert_eq!(client.call(&["SELECT", "0"]), "OK");
    let payload = dump(&mut client, "k");
    client.send(&[b"RESTORE".as_slice(), b"r", b"0", &payload]);
    assert_eq!(client.answer(), "OK");
    assert_eq!(client.call(&["types.get", "r"]), "8");
    client.send(&[b"RESTORE".as_slice(), b"r", b"0", &payload]);
    assert_eq!(client.answer(), "BUSYKEY Target key name already exists.");
    // Transactions and scripts may call modules as well.
    let script = "redis.call('types.incr', 'k'); return redis.call('RESTORE', 'x', 0, redis.call('DUMP', 'k'))";
    assert_eq!(client.call(&["EVAL", script, "2", "k", "x"]), "OK");
    assert_eq!(client.call(&["types.get", "x"]), "9");
    let replies = client.transact(&[
        &["COPY", "x", "y"],
        &["types.incr", "x", "y"],
        &["MEMORY", "USAGE", "nothing"],
    ]);
    assert_eq!(replies, "(1 20 -)");
    // A payload of an unknown type.
    let other = Server::start(&[]);
    let mut client = Client::connect(other.port);
    client.send(&[b"RESTORE".as_slice(), b"r", b"0", &payload]);
    assert_eq!(client.answer(), "ERR Bad data format");
}

#[test]
fn removed_values_are_reported_and_freed_on_the_thread_of_the_module() {
    let server = start(4, "types");
    let mut client = Client::connect(server.port);
    let ways: [&[&str]; 7] = [
        &["DEL", "k"],
        &["UNLINK", "k"],
        &["SET", "k", "v"],
        &["PEXPIRE", "k", "-1"],
        &["RENAME", "k", "other"],
        &["types.set", "k", "2"],
        &["GETDEL", "text"],
    ];
    for (index, way) in ways.iter().enumerate() {
        set(&mut client, "k", 1);
        client.call(&["SET", "text", "t"]);
        let before: u64 = count(&mut client, "unlinked").parse().expect("a number");
        client.call(way);
        let expected = before + u64::from(index != 6);
        assert_eq!(count(&mut client, "unlinked"), expected.to_string(), "{way:?}");
    }
    client.call(&["FLUSHALL"]);
    wait_until("all values are freed", || {
        // Seven were set, and one more by the module.
        count(&mut client, "freed") == "8"
    });
    // A value that takes long is freed by another thread.
    let lazy: u64 = client.info("lazyfreed_objects").parse().expect("a number");
    assert_eq!(client.call(&["types.set", "slow", "1", "1000"]), "OK");
    assert_eq!(client.call(&["UNLINK", "slow"]), "1");
    client.wait_for_info("lazyfreed_objects", &(lazy + 1).to_string());
    assert_eq!(count(&mut client, "freed"), "9");
}

#[test]
fn values_and_other_data_survive_restarts() {
    for appends in ["no", "yes"] {
        for preamble in ["no", "yes"] {
            let arguments = ["--appendonly", appends, "--aof-use-rdb-preamble", preamble];
            let mut server = start_with(4, &[&["types"]], &arguments);
            let mut client = Client::connect(server.port);
            client.wait_for_info("loading", "0");
            for number in 0..200 {
                set(&mut client, &format!("k{number}"), number);
                client.call(&["SET", &format!("s{number}"), "text"]);
            }
            client.call(&["PEXPIREAT", "k7", "9000000000000"]);
            assert_eq!(client.call(&["types.aux", "first", "last"]), "OK");
            match appends {
                "no" => assert_eq!(client.call(&["SAVE"]), "OK"),
                _ => {
                    client.call(&["BGREWRITEAOF"]);
                    client.wait_for_info("aof_rewrite_in_progress", "0");
                    client.wait_for_info("aof_last_bgrewrite_status", "ok");
                    assert_eq!(client.call(&["types.incr", "k1", "k2"]), "5");
                }
            }
            let added = u64::from(appends == "yes");
            server.kill();
            server.start_again();
            let mut client = Client::connect(server.port);
            client.wait_for_info("loading", "0");
            for number in 0..200 {
                let expected = number + if matches!(number, 1 | 2) { added } else { 0 };
                assert_eq!(client.call(&["types.get", &format!("k{number}")]), expected.to_string());
            }
            assert_eq!(client.call(&["PEXPIRETIME", "k7"]), "9000000000000");
            assert_eq!(client.call(&["DBSIZE"]), "400");
            if appends == "no" || preamble == "yes" {
                let counts = client.call(&["types.counts"]);
                assert!(counts.ends_with("before=first after=last"), "{counts}");
            }
        }
    }
}

#[test]
fn a_dump_shows_all_values_at_one_moment() {
    let mut server = start_with(4, &[&["types"]], &DEBUG);
    let mut client = Client::connect(server.port);
    // All counters are incremented together, so they are equal at each moment.
    let keys: Vec<String> = (0..50).map(|number| format!("c{number}")).collect();
    for key in &keys {
        set(&mut client, key, 0);
    }
    for number in 0..2000 {
        client.call(&["SET", &format!("s{number}"), "text"]);
    }
    let port = server.port;
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let mut words = vec!["types.incr".to_owned()];
            words.extend(keys.clone());
            thread::spawn(move || {
                let mut client = Client::connect(port);
                for _ in 0..300 {
                    client.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
                }
            })
        })
        .collect();
    let mut saves = 0;
    while writers.iter().any(|writer| !writer.is_finished()) {
        if client.call(&["BGSAVE"]) == "Background saving started" {
            saves += 1;
        }
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        client.wait_for_info("rdb_last_bgsave_status", "ok");
        if saves == 2 {
            break;
        }
    }
    assert!(saves > 0, "a dump is written");
    writers
        .into_iter()
        .for_each(|writer| writer.join().expect("the writer has not failed"));
    let last = client.call(&["types.get", "c0"]);
    server.kill();
    server.start_again();
    let mut client = Client::connect(server.port);
    client.wait_for_info("loading", "0");
    let numbers: Vec<String> = keys.iter().map(|key| client.call(&["types.get", key])).collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
    assert_eq!(last, "900");
}

#[test]
fn a_replica_gets_the_values() {
    for diskless in ["no", "yes"] {
        let primary = start_with(
            4,
            &[&["types"]],
            &["--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", "0"],
        );
        let mut client = Client::connect(primary.port);
        for number in 0..100 {
            set(&mut client, &format!("k{number}"), number);
        }
        assert_eq!(client.call(&["types.aux", "first", "last"]), "OK");
        let load = match diskless {
            "yes" => "swapdb",
            _ => "disabled",
        };
        let replica = start_with(4, &[&["types"]], &["--repl-diskless-load", load]);
        let mut reader = Client::connect(replica.port);
        let port = primary.port.to_string();
        assert_eq!(reader.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        reader.wait_for_info("master_link_status", "up");
        assert_eq!(reader.call(&["types.get", "k99"]), "99");
        assert!(reader.call(&["types.counts"]).ends_with("before=first after=last"));
        // Commands of the module and of the server arrive in the stream.
        assert_eq!(client.call(&["types.incr", "k1", "k99"]), "102");
        assert_eq!(client.call(&["COPY", "k99", "copied"]), "1");
        let payload = dump(&mut client, "k1");
        client.send(&[b"RESTORE".as_slice(), b"restored", b"0", &payload]);
        assert_eq!(client.answer(), "OK");
        assert_eq!(client.call(&["UNLINK", "k5"]), "1");
        assert_eq!(client.call(&["WAIT", "1", "5000"]), "1");
        assert_eq!(reader.call(&["types.get", "k99"]), "100");
        assert_eq!(reader.call(&["types.get", "copied"]), "100");
        assert_eq!(reader.call(&["types.get", "restored"]), "2");
        assert_eq!(count(&mut reader, "unlinked"), "1");
        assert_eq!(reader.call(&["DBSIZE"]), client.call(&["DBSIZE"]));
    }
}

#[test]
fn a_key_moves_to_another_server() {
    let (source, target) = (start(4, "types"), start(2, "types"));
    let mut client = Client::connect(source.port);
    set(&mut client, "k", 7);
    let port = target.port.to_string();
    assert_eq!(client.call(&["MIGRATE", "127.0.0.1", &port, "k", "0", "5000"]), "OK");
    assert_eq!(client.call(&["EXISTS", "k"]), "0");
    assert_eq!(Client::connect(target.port).call(&["types.get", "k"]), "7");
}

#[test]
fn a_file_with_values_of_an_unknown_type_is_refused() {
    let mut server = start(2, "types");
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["SAVE"]), "OK");
    server.kill();
    // Without data of the module the file loads without it.
    server.start_again_with(&[]);
    let mut client = Client::connect(server.port);
    assert!(!client.call(&["MODULE", "LIST"]).contains("types"));
    server.kill();
    server.start_again_with(&["--loadmodule", &module("types")]);
    let mut client = Client::connect(server.port);
    set(&mut client, "k", 7);
    assert_eq!(client.call(&["SAVE"]), "OK");
    let file = std::fs::read(server.directory.join("dump.rdb")).expect("there is a dump");
    server.kill();
    let other = Server::start(&["--enable-debug-command", "yes"]);
    std::fs::write(other.directory.join("dump.rdb"), file).expect("writes");
    let mut client = Client::connect(other.port);
    assert_eq!(
        client.call(&["DEBUG", "RELOAD", "NOSAVE"]),
        "ERR Error trying to load the RDB dump, check server logs."
    );
}

#[test]
fn a_module_with_types_is_not_unloaded() {
    let server = start_with(2, &[&["types"]], &["--enable-module-command", "yes"]);
    let mut client = Client::connect(server.port);
    let reply = client.call(&["MODULE", "UNLOAD", "types"]);
    assert!(reply.contains("data types"), "{reply}");
}

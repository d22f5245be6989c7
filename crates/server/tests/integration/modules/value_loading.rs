//! Loads of data with values of modules: from where a replica loads them, and what clients learn meanwhile.

use std::thread;
use std::time::Duration;

use super::start_with;
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

const LOADING: &str = "LOADING Valkey is loading the dataset in memory";

fn set(client: &mut Client, key: &str, number: u64) {
    assert_eq!(client.call(&["types.set", key, &number.to_string()]), "OK");
}

/// Sends a request that loads data for at least half a second, and checks what other clients get meanwhile.
fn assert_clients_learn_of_load(port: u16, request: &[&str]) {
    let mut loader = Client::connect(port);
    // Connections of all workers, some of which have used a module.
    let mut others: Vec<Client> = (0..8).map(|_| Client::connect(port)).collect();
    for client in &mut others[..2] {
        assert!(client.call(&["types.counts"]).starts_with("freed="));
    }
    loader.send(request);
    loader.send(&["types.get", "k"]);
    wait_until("clients are refused", || others[0].call(&["GET", "text"]) == LOADING);
    for client in &mut others {
        assert_eq!(client.call(&["GET", "text"]), LOADING);
        assert_eq!(client.call(&["types.get", "k"]), LOADING);
    }
    assert_eq!(others[7].info("loading"), "1");
    assert_eq!(loader.answer(), "OK");
    assert_eq!(loader.answer(), "7", "the request behind it runs afterwards");
    for client in &mut others {
        assert_eq!(client.call(&["GET", "text"]), "v");
    }
    assert_eq!(others[7].info("loading"), "0");
}

#[test]
fn clients_learn_that_data_are_loaded() {
    for workers in [1, 4] {
        let server = start_with(workers, &[&["types"]], &["--enable-debug-command", "yes"]);
        let mut client = Client::connect(server.port);
        set(&mut client, "k", 7);
        assert_eq!(client.call(&["SET", "text", "v"]), "OK");
        assert_eq!(client.call(&["types.file", "save", "file.rdb"]), "OK");
        assert_eq!(client.call(&["types.slow", "1500"]), "OK");
        assert_clients_learn_of_load(server.port, &["DEBUG", "RELOAD"]);
        assert_clients_learn_of_load(server.port, &["types.file", "load", "file.rdb"]);
        // Saves and transactions of others, and clients that go meanwhile, wait or are refused.
        let port = server.port;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let others: Vec<_> = ["BGSAVE", "SAVE", "FLUSHALL", "types.counts"]
            .into_iter()
            .map(|word| {
                let stop = stop.clone();
                thread::spawn(move || {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut client = Client::connect(port);
                        client.send(&[word]);
                        thread::sleep(Duration::from_millis(30));
                    }
                })
            })
            .collect();
        assert_eq!(client.call(&["types.slow", "300"]), "OK");
        for _ in 0..3 {
            client.call(&["types.set", "k", "7"]);
            let reply = client.call(&["types.file", "load", "file.rdb"]);
            assert_eq!(reply, "OK");
            client.call(&["DEBUG", "RELOAD"]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        others
            .into_iter()
            .for_each(|other| other.join().expect("a client ends"));
        assert_eq!(client.call(&["PING"]), "PONG");
    }
}

/// Returns the lines of the log of a replica that has synchronized with `primary`.
fn log_of_replica(primary: &Server, module_arguments: &[&str], load: &str) -> String {
    let arguments = ["--repl-diskless-load", load, "--logfile", "log"];
    let replica = start_with(2, &[&[&["types"], module_arguments].concat()], &arguments);
    let mut reader = Client::connect(replica.port);
    let port = primary.port.to_string();
    assert_eq!(reader.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    reader.wait_for_info("master_link_status", "up");
    assert_eq!(reader.call(&["types.get", "k"]), "7");
    std::fs::read_to_string(replica.directory.join("log")).expect("there is a log")
}

#[test]
fn the_options_of_modules_decide_where_a_dump_is_loaded_from() {
    let primary = start_with(2, &[&["types"]], &["--repl-diskless-sync-delay", "0"]);
    let mut client = Client::connect(primary.port);
    set(&mut client, "k", 7);
    let unsafe_reads = "Skipping diskless-load because there are modules that don't handle read errors.";
    let not_aware = "Skipping diskless-load because there are modules that are not aware of async replication.";
    for (options, load, reason) in [
        (&["none"][..], "swapdb", Some(unsafe_reads)),
        (&["none"], "flush-before-load", Some(unsafe_reads)),
        (&["none"], "on-empty-db", Some(unsafe_reads)),
        (&["none"], "disabled", None),
        (&["io-errors"], "swapdb", Some(not_aware)),
        (&["io-errors"], "flush-before-load", None),
        (&["io-errors", "async-load"], "swapdb", None),
    ] {
        let log = log_of_replica(&primary, options, load);
        let found = [unsafe_reads, not_aware].into_iter().find(|line| log.contains(line));
        assert_eq!(found, reason, "{options:?} {load}");
        let medium = if reason.is_some() || load == "disabled" {
            "to disk"
        } else {
            "to parser"
        };
        assert!(log.contains(medium), "{options:?} {load}");
    }
}

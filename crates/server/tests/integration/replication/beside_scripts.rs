//! Tests of a primary on which a script runs for long: only the replica that needs a dump waits for it.

use std::thread;
use std::time::Duration;

use super::serving::{AT_ONCE, Replica};
use super::{UP, await_info, is_closed};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Runs until it is killed.
const ENDLESS: [&str; 3] = ["EVAL", "while true do end", "0"];
const ENDLESS_READ: [&str; 3] = ["EVAL_RO", "while true do end", "0"];
/// Runs on a script thread, too, and ends soon.
const SHORT: [&str; 3] = ["EVAL", "for i = 1, 1000000 do end return 'done'", "0"];

/// A primary with four active workers on which no script counts as overdue, and a replica that is in sync.
struct Pair {
    primary: Server,
    replica: Server,
    client: Client,
    /// The client that runs the endless script.
    script: Client,
}

impl Pair {
    fn start() -> Pair {
        let primary = Server::start(&[&AT_ONCE[..], &["--busy-reply-threshold", "0"]].concat());
        let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
        await_info(&mut Client::connect(replica.port), UP);
        let (client, script) = (Client::connect(primary.port), Client::connect(primary.port));
        let mut pair = Pair {
            primary,
            replica,
            client,
            script,
        };
        pair.await_replicas("online", 1);
        pair
    }

    fn run_script(&mut self, words: &[&str]) {
        self.primary.run_script(&mut self.script, words);
        assert!(self.script.is_waiting(), "the script runs");
    }

    fn kill_script(&mut self) {
        assert!(self.script.is_waiting(), "the script still runs");
        assert_eq!(self.client.call(&["SCRIPT", "KILL"]), "OK");
        let answer = self.script.answer();
        assert!(answer.contains("Script killed by user"), "{answer}");
    }

    /// Waits until this many replicas are in this state.
    fn await_replicas(&mut self, state: &str, count: usize) {
        let state = format!("state={state},");
        wait_until(&format!("{count} replicas have {state}"), || {
            self.client.call(&["INFO", "replication"]).matches(&state).count() == count
        });
    }

    /// Writes again and again, for longer than the thread that serves replicas takes until it begins a dump. Each write
    /// must reach the replica soon.
    fn expect_stream(&mut self) {
        for round in 0..30 {
            assert_eq!(self.client.call(&["SET", "key", &round.to_string()]), "OK");
            assert_eq!(self.client.call(&["WAIT", "1", "20000"]), "1", "round {round}");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(Client::connect(self.replica.port).call(&["GET", "key"]), "29");
    }
}

/// Lets a replica request a dump that begins while the script runs.
fn request_dump(pair: &mut Pair, is_psync: bool) -> Replica {
    let mut replica = Replica::connect(pair.primary.port);
    if is_psync {
        // PSYNC itself does not run beside the script, but the dump may be due much later.
        pair.client.call(&["CONFIG", "SET", "repl-diskless-sync-delay", "3600"]);
        replica.handshake();
        replica.send(&["PSYNC", "?", "-1"]);
        pair.await_replicas("wait_bgsave", 1);
        pair.run_script(&ENDLESS);
        let answer = pair.client.call(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        assert_eq!(answer, "OK");
    } else {
        pair.run_script(&ENDLESS);
        replica.send(&["SYNC"]);
        pair.await_replicas("wait_bgsave", 1);
    }
    replica
}

#[test]
fn other_replicas_get_the_stream_while_a_dump_waits_for_a_script() {
    for is_psync in [false, true] {
        let mut pair = Pair::start();
        let mut second = request_dump(&mut pair, is_psync);
        pair.expect_stream();
        assert!(second.is_waiting(), "no dump begins while a script runs");
        assert_eq!(pair.client.info("rdb_bgsave_in_progress"), "0");
        pair.kill_script();
        if is_psync {
            assert!(second.line().starts_with("+FULLRESYNC "));
        }
        let dump = second.take_dump();
        assert!(dump.windows(3).any(|bytes| bytes == b"key"));
        pair.await_replicas("online", 2);
        if is_psync {
            // The stream begins with the first acknowledgement after the dump.
            second.send(&["REPLCONF", "ACK", "0"]);
        }
        assert_eq!(pair.client.call(&["SET", "after", "it"]), "OK");
        while second.command() != "SET after it" {}
    }
}

#[test]
fn many_replicas_get_their_dumps_beside_scripts_that_follow_each_other() {
    let pair = Pair::start();
    let replicas: Vec<Server> = thread::scope(|scope| {
        let port = pair.primary.port;
        let scripts: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let mut client = Client::connect(port);
                    (0..100).for_each(|_| assert_eq!(client.call(&SHORT), "done"));
                })
            })
            .collect();
        let follow = format!("127.0.0.1 {port}");
        let replicas = (0..3).map(|_| Server::start(&["--replicaof", &follow])).collect();
        scripts
            .into_iter()
            .for_each(|script| script.join().expect("every script ends"));
        replicas
    });
    for replica in &replicas {
        await_info(&mut Client::connect(replica.port), UP);
    }
}

#[test]
fn a_dump_that_waits_for_a_script_is_given_up_with_its_replica() {
    for is_psync in [false, true] {
        let mut pair = Pair::start();
        let second = request_dump(&mut pair, is_psync);
        pair.expect_stream();
        drop(second);
        pair.client.wait_for_info("connected_slaves", "1");
        // Nothing that waits for exclusive use of the keyspace keeps other scripts from starting.
        let mut other = Client::connect(pair.primary.port);
        assert_eq!(other.call(&SHORT), "done");
        pair.expect_stream();
        pair.kill_script();
        assert_eq!(pair.client.call(&["BGSAVE"]), "Background saving started");
        pair.client.wait_for_info("rdb_bgsave_in_progress", "0");
        assert_eq!(pair.client.info("rdb_last_bgsave_status"), "ok");
        let mut third = Replica::connect(pair.primary.port);
        third.send(&["SYNC"]);
        assert!(third.take_dump().windows(3).any(|bytes| bytes == b"key"));
    }
}

#[test]
fn a_server_shuts_down_while_a_dump_waits_for_a_script() {
    for words in [&["SHUTDOWN", "NOSAVE", "NOW"][..], &["SHUTDOWN", "SAVE", "NOW"]] {
        let mut pair = Pair::start();
        let mut second = request_dump(&mut pair, false);
        pair.client.send(words);
        if words[1] == "SAVE" {
            // The final save waits for the script, too.
            let mut other = Client::connect(pair.primary.port);
            thread::sleep(Duration::from_millis(50));
            assert_eq!(other.call(&["SCRIPT", "KILL"]), "OK");
        }
        assert_eq!(pair.primary.wait_for_exit(), Some(0));
        let files = std::fs::read_dir(&pair.primary.directory).expect("lists the files");
        let names: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
        assert!(
            names.iter().all(|name| !name.to_string_lossy().starts_with("temp-")),
            "{names:?}"
        );
        assert_eq!(names.iter().any(|name| name == "dump.rdb"), words[1] == "SAVE");
        // It ends with or without a dump.
        assert!(is_closed(&mut second.0));
    }
}

#[test]
fn a_replica_is_disconnected_while_a_failover_waits_for_a_script() {
    let mut pair = Pair::start();
    let mut lagging = Replica::connect(pair.primary.port);
    lagging.handshake();
    lagging.send(&["PSYNC", "?", "-1"]);
    assert!(lagging.line().starts_with("+FULLRESYNC "));
    lagging.take_dump();
    pair.await_replicas("online", 2);
    assert_eq!(pair.client.call(&["SET", "key", "not acknowledged"]), "OK");
    let request = ["FAILOVER", "TO", "10.1.2.3", "1234", "TIMEOUT", "1000000"];
    assert_eq!(pair.client.call(&request), "OK");
    pair.run_script(&ENDLESS_READ);
    // Now the replica has everything, and the failover would proceed.
    lagging.send(&["REPLCONF", "ACK", "1000000"]);
    wait_until("the acknowledgement has arrived", || {
        pair.client.call(&["INFO", "replication"]).contains("offset=1000000,")
    });
    thread::sleep(Duration::from_millis(50));
    assert_eq!(pair.client.info("master_failover_state"), "waiting-for-sync");
    pair.client.call(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert!(is_closed(&mut lagging.0));
    pair.kill_script();
    assert_eq!(pair.client.call(&["FAILOVER", "ABORT"]), "OK");
    pair.await_replicas("online", 1);
    pair.expect_stream();
}

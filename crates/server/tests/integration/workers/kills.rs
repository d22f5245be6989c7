//! Tests clients that a transaction kills: nothing that they have sent, and no wait of theirs, has an effect after
//! EXEC.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::expired_keys::WORKERS;
use super::{Client, Server};

/// The number of kills per number of workers. Some happen to be carried out in time.
const ROUNDS: usize = 100;

fn start(workers: &str) -> Server {
    Server::start(&["--io-threads", workers, "--io-threads-always-active", "yes"])
}

/// Runs a transaction that kills a client and then runs the other commands. Returns the reply of EXEC.
fn kill_in_transaction(admin: &mut Client, victim: &str, commands: &[&[&str]]) -> String {
    assert_eq!(admin.call(&["MULTI"]), "OK");
    assert_eq!(admin.call(&["CLIENT", "KILL", "ID", victim]), "QUEUED");
    for command in commands {
        assert_eq!(admin.call(command), "QUEUED");
    }
    admin.call(&["EXEC"])
}

#[test]
fn a_client_that_a_transaction_kills_gets_no_element() {
    for workers in WORKERS {
        let server = start(workers);
        let mut admin = Client::connect(server.port);
        for round in 0..ROUNDS {
            let mut victim = Client::connect(server.port);
            let id = victim.call(&["CLIENT", "ID"]);
            victim.send(&["BLPOP", "list", "0"]);
            admin.wait_for_info("blocked_clients", "1");
            let inside = round % 2 == 0;
            let push: &[&str] = &["RPUSH", "list", "element"];
            match inside {
                true => assert_eq!(kill_in_transaction(&mut admin, &id, &[push]), "(1 1)"),
                false => {
                    assert_eq!(kill_in_transaction(&mut admin, &id, &[]), "(1)");
                    assert_eq!(admin.call(push), "1");
                }
            }
            let left = admin.call(&["LPOP", "list"]);
            assert_eq!(
                left, "element",
                "round {round}, {workers} workers, pushed in EXEC: {inside}"
            );
            admin.wait_for_info("blocked_clients", "0");
        }
    }
}

#[test]
fn no_request_of_a_client_that_a_transaction_kills_runs_later() {
    for workers in WORKERS {
        let server = start(workers);
        let mut admin = Client::connect(server.port);
        for round in 0..ROUNDS {
            let mut victim = Client::connect(server.port);
            let id = victim.call(&["CLIENT", "ID"]);
            admin.call(&["SET", "counter", "0"]);
            let is_killed = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Writing fails once the connection is closed.
                    let mut stream = victim.0.get_ref();
                    let requests = b"INCR counter\r\n".repeat(50);
                    let mut is_open = true;
                    while is_open && !is_killed.load(Ordering::Relaxed) {
                        is_open = stream.write_all(&requests).is_ok();
                    }
                });
                while admin.call(&["GET", "counter"]) == "0" {}
                let reply = kill_in_transaction(&mut admin, &id, &[&["GET", "counter"]]);
                let counted = reply.trim_start_matches("(1 ").trim_end_matches(')').to_owned();
                let later: Vec<String> = (0..20).map(|_| admin.call(&["GET", "counter"])).collect();
                is_killed.store(true, Ordering::Relaxed);
                assert!(
                    later.iter().all(|count| *count == counted),
                    "round {round}, {workers} workers: {counted} in EXEC, then {later:?}"
                );
            });
        }
    }
}

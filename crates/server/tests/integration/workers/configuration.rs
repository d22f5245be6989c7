//! Tests changes of the configuration that meet commands in exclusive mode and transactions.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Client, PATIENCE, Server};
use crate::harness::wait_until;

/// The number of times that the append-only file is switched on or off.
const SWITCHES: usize = 40;

/// Switches the append-only file on and off while `others`, each on a connection of its own, are repeated. All commands
/// must end.
fn switch_while(others: &[&[&[&str]]]) {
    for threads in ["1", "2", "8"] {
        let server = Server::start(&["--io-threads", threads, "--io-threads-always-active", "yes"]);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for other in others {
                let is_over = &is_over;
                let mut client = Client::connect(server.port);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        for command in *other {
                            client.call(command);
                        }
                    }
                });
            }
            let mut admin = Client::connect(server.port);
            for switch in 0..SWITCHES {
                let value = ["yes", "no"][switch % 2];
                // A panic of this thread would leave the others without an end.
                admin.send(&["CONFIG", "SET", "appendonly", value]);
                if admin.answer() != "OK" {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        assert_eq!(admin.call(&["CONFIG", "GET", "hz"]), "(hz 10)");
    }
}

/// The thread that switches the file holds the right to change the configuration, and waits for exclusive mode. The
/// transaction is within the gate, and wants that right.
#[test]
fn a_transaction_that_sets_a_parameter_and_a_switch_of_the_append_only_file_both_end() {
    let transaction: &[&[&str]] = &[&["MULTI"], &["CONFIG", "SET", "hz", "10"], &["EXEC"]];
    let exclusive: &[&[&str]] = &[&["MULTI"], &["KEYS", "*"], &["CONFIG", "SET", "hz", "10"], &["EXEC"]];
    let reporting: &[&[&str]] = &[
        &["MULTI"],
        &["CLIENT", "LIST"],
        &["CONFIG", "SET", "hz", "10"],
        &["CONFIG", "REWRITE"],
        &["EXEC"],
    ];
    switch_while(&[transaction, exclusive, reporting]);
}

/// The role changes in exclusive mode, and the configuration contains it.
#[test]
fn a_change_of_the_role_and_a_switch_of_the_append_only_file_both_end() {
    switch_while(&[&[&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]]]);
}

/// DEBUG RESTART is within the gate, and wants the right to change the configuration in order to rewrite its file.
#[test]
fn a_restart_and_a_switch_of_the_append_only_file_both_end() {
    for threads in ["1", "4"] {
        let name = format!("weft-server-test-{}-{threads}.conf", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "appendonly yes\n").expect("writes the file");
        let workers = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let others = ["--enable-debug-command", "yes", "--busy-reply-threshold", "0"];
        let server = Server::start_from(file.to_str(), &[workers, others].concat());
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
        let [admin, script, switch, restart] = clients.as_mut_slice() else {
            unreachable!("there are four");
        };
        server.run_script(script, &["EVAL", "while true do end", "0"]);
        switch.send(&["CONFIG", "SET", "appendonly", "no"]);
        wait_until("the switch waits for the script", || {
            admin.call(&["CONFIG", "GET", "appendonly"]) == "(appendonly no)"
        });
        let deferrals = admin.info("weft_deferrals");
        restart.send(&["DEBUG", "RESTART"]);
        wait_until("the restart waits for the switch", || {
            admin.info("weft_deferrals") != deferrals
        });
        assert_eq!(admin.call(&["SCRIPT", "KILL"]), "OK");
        let mut reply = Vec::new();
        // The connection ends with the process, perhaps by a reset.
        let _ = restart.0.read_to_end(&mut reply);
        assert_eq!(String::from_utf8_lossy(&reply), "");
        wait_until("the server serves clients again", || serves_clients(server.port));
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["CONFIG", "GET", "appendonly"]), "(appendonly no)");
        std::fs::remove_file(&file).expect("removes the file");
    }
}

/// Returns `true` if the server at this port answers. It may be starting.
fn serves_clients(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    stream.set_read_timeout(Some(PATIENCE)).expect("sets a timeout");
    let mut reply = [0; 7];
    let answered = stream
        .write_all(b"PING\r\n")
        .and_then(|()| stream.read_exact(&mut reply));
    answered.is_ok() && reply == *b"+PONG\r\n"
}

/// A transaction leaves it to a background thread to switch the file off, which takes a while.
#[test]
fn the_append_only_file_is_on_when_the_last_change_has_switched_it_on() {
    for threads in ["1", "2", "8"] {
        let arguments = ["--io-threads", threads, "--io-threads-always-active", "yes"];
        let server = Server::start(&[&arguments[..], &["--appendonly", "yes", "--appendfsync", "always"]].concat());
        let mut client = Client::connect(server.port);
        for round in 0..60 {
            let replies = client.transact(&[&["SET", "key", "value"], &["CONFIG", "SET", "appendonly", "no"]]);
            assert_eq!(replies, "(OK OK)");
            thread::sleep(Duration::from_micros(200 * (round % 20)));
            assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
            client.wait_for_info("aof_enabled", "1");
            client.wait_for_info("aof_rewrite_in_progress", "0");
            client.wait_for_info("aof_rewrite_scheduled", "0");
            assert_eq!(client.info("aof_enabled"), "1", "round {round}");
        }
    }
}

/// The parameters that a transaction sets are set when it has ended, and a refused command changes nothing.
#[test]
fn a_transaction_sets_parameters_like_single_commands() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.port);
    let replies = client.transact(&[
        &["CONFIG", "SET", "hz", "20"],
        &["CONFIG", "SET", "hz", "none"],
        &["CONFIG", "GET", "hz"],
    ]);
    assert!(replies.starts_with("(OK ERR CONFIG SET failed"), "{replies}");
    assert!(replies.ends_with(" (hz 20))"), "{replies}");
}

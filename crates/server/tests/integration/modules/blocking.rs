//! Clients that modules block, timers, watched descriptors, and authentication by modules.

use std::io::BufRead;
use std::net::Shutdown;
use std::thread::sleep;
use std::time::Duration;

use super::start_with;
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Waits until the callbacks were called this often: replies, timeouts, disconnections, frees, frees after the client
/// has gone, timers, events.
fn wait_for_counts(client: &mut Client, counts: &str) {
    wait_until(counts, || client.call(&["blocking.counts"]) == counts);
}

/// Starts a server with this many workers, on which modules can be unloaded.
fn start(workers: u8) -> Server {
    start_with(workers, &[&["blocking"]], &["--enable-module-command", "yes"])
}

fn client_id(client: &mut Client) -> String {
    client.call(&["CLIENT", "ID"])
}

/// Sends a request that blocks, and waits until its client is blocked.
fn block(server: &Server, client: &mut Client, words: &[&str]) {
    client.send(words);
    Client::connect(server.port).wait_for_info("blocked_clients", "1");
}

#[test]
fn thread_of_a_module_unblocks_a_client() {
    let server = start(3);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients {
        client.send(&["blocking.thread"]);
        client.send(&["PING"]);
    }
    for client in &mut clients {
        assert_eq!(client.answer(), "(blocking.thread 42)");
        assert_eq!(client.answer(), "PONG", "the client continues");
    }
    let client = &mut clients[0];
    assert_eq!(client.call(&["GET", "blocking:count"]), "6");
    wait_for_counts(client, "(6 0 0 6 0 0 0)");
    assert_eq!(client.info("blocked_clients"), "0");
    let figures = client.info("cmdstat_blocking.thread");
    assert!(figures.starts_with("calls=6,"), "{figures}");
    let time = figures
        .split("usec_per_call=")
        .nth(1)
        .and_then(|rest| rest.split('.').next());
    let time: u64 = time.and_then(|time| time.parse().ok()).expect("a time");
    assert!(time >= 20_000, "the measured time counts: {figures}");
}

#[test]
fn client_is_not_blocked_in_a_transaction_or_a_script() {
    let server = start(2);
    let mut client = Client::connect(server.port);
    let reply = client.transact(&[&["blocking.thread"], &["SET", "k", "v"]]);
    assert_eq!(reply, "(ERR Blocking module command called from transaction OK)");
    let reply = client.call(&["EVAL", "return redis.pcall('blocking.hold', '0')['err']", "0"]);
    assert!(
        reply.contains("Blocking module command called from Lua script"),
        "{reply}"
    );
    assert_eq!(
        client.call(&["blocking.release"]),
        "0",
        "the module has a client for which nobody waits"
    );
    wait_for_counts(&mut client, "(0 0 0 1 1 0 0)");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "blocking"]), "OK");
}

#[test]
fn wait_ends_by_time_and_by_client_unblock() {
    let server = start(3);
    let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
    assert_eq!(client.call(&["blocking.hold", "10"]), "late");
    assert_eq!(
        other.call(&["blocking.release"]),
        "0",
        "only now does the module give it up"
    );
    wait_for_counts(&mut other, "(0 1 0 1 1 0 0)");
    let id = client_id(&mut client);
    block(&server, &mut client, &["blocking.hold", "0"]);
    assert_eq!(other.call(&["CLIENT", "UNBLOCK", &id, "TIMEOUT"]), "1");
    assert_eq!(client.answer(), "late");
    assert_eq!(other.call(&["blocking.release"]), "0");
    block(&server, &mut client, &["blocking.hold", "0"]);
    assert_eq!(other.call(&["CLIENT", "UNBLOCK", &id, "ERROR"]), "1");
    assert_eq!(client.answer(), "UNBLOCKED client unblocked via CLIENT UNBLOCK");
    wait_for_counts(&mut other, "(0 2 1 2 2 0 0)");
    block(&server, &mut client, &["blocking.hold", "0", "NOTIMEOUT"]);
    // The module has kept the pointer to the words.
    assert_eq!(other.call(&["blocking.words"]), "(blocking.hold 0)");
    assert_eq!(
        other.call(&["CLIENT", "UNBLOCK", &id]),
        "0",
        "the module could not reply"
    );
    assert_eq!(
        other.call(&["MODULE", "UNLOAD", "blocking"]),
        "ERR Error unloading module: the module has blocked clients. Please wait for them to be unblocked and try again"
    );
    assert_eq!(other.call(&["blocking.release"]), "0");
    assert_eq!(client.answer(), "(blocking.hold 9)");
    assert_eq!(other.call(&["MODULE", "UNLOAD", "blocking"]), "OK");
}

#[test]
fn client_that_goes_is_noted() {
    let server = start(3);
    let mut other = Client::connect(server.port);
    let mut client = Client::connect(server.port);
    block(&server, &mut client, &["blocking.hold", "0"]);
    drop(client);
    wait_for_counts(&mut other, "(0 0 1 0 0 0 0)");
    let mut client = Client::connect(server.port);
    let id = client_id(&mut client);
    block(&server, &mut client, &["blocking.pop", "0", "a", "b"]);
    assert_eq!(other.call(&["CLIENT", "KILL", "ID", &id]), "1");
    wait_for_counts(&mut other, "(0 0 1 1 1 0 0)");
    other.wait_for_info("blocked_clients", "0");
    assert_eq!(other.info("total_blocking_keys"), "0");
    assert_eq!(other.call(&["MODULE", "UNLOAD", "blocking"]), "OK");
}

/// Clients wait on all workers. While the home worker is busy, their waits end by time or by a thread of the module,
/// and the clients go.
#[test]
fn clients_that_go_when_their_wait_ends_are_freed() {
    for workers in [2, 8] {
        for reason in ["keys", "module", "thread"] {
            let server = start(workers);
            let mut other = Client::connect(server.port);
            for _ in 0..3 {
                let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(server.port)).collect();
                for (number, client) in clients.iter_mut().enumerate() {
                    client.send(&["blocking.expire", &format!("k{number}"), "100", reason]);
                }
                sleep(Duration::from_millis(40));
                other.send(&["blocking.busy", "400"]);
                sleep(Duration::from_millis(200));
                drop(clients);
                assert_eq!(other.answer(), "OK");
            }
            // Each client, the end of its wait and its free callback are counted once.
            wait_until("all clients are freed", || {
                let counts = other.call(&["blocking.ends"]);
                let counts: Vec<&str> = counts.trim_matches(['(', ')']).split(' ').collect();
                counts[0] != "0" && counts.iter().all(|count| *count == counts[0])
            });
            other.wait_for_info("blocked_clients", "0");
            assert_eq!(other.info("total_blocking_keys"), "0");
            wait_until("the unload", || other.call(&["MODULE", "UNLOAD", "blocking"]) == "OK");
        }
    }
}

#[test]
fn keys_serve_clients_in_their_order() {
    let server = start(3);
    let mut other = Client::connect(server.port);
    let (mut first, mut second) = (Client::connect(server.port), Client::connect(server.port));
    block(&server, &mut first, &["blocking.pop", "0", "a", "list"]);
    second.send(&["blocking.pop", "0", "list"]);
    other.wait_for_info("blocked_clients", "2");
    assert_eq!(other.call(&["SET", "other", "v"]), "OK");
    assert_eq!(other.call(&["RPUSH", "list", "1", "2", "3", "4"]), "4");
    assert_eq!(first.answer(), "(1 2)");
    assert_eq!(second.answer(), "(3 4)");
    assert_eq!(other.call(&["EXISTS", "list"]), "0");
    assert_eq!(other.info("total_blocking_keys"), "0");
    // A change of a key that exists does not reach the module, until that asks for it.
    assert_eq!(other.call(&["RPUSH", "list", "5", "6"]), "2");
    block(&server, &mut first, &["blocking.pop", "0", "list"]);
    assert_eq!(other.call(&["RPUSH", "list", "7"]), "3");
    wait_for_counts(&mut other, "(2 0 0 2 0 0 0)");
    assert_eq!(other.call(&["blocking.signal", "list"]), "OK");
    assert_eq!(first.answer(), "(5 6)");
    assert_eq!(first.call(&["blocking.pop", "10", "none"]), "late");
    wait_for_counts(&mut other, "(3 1 0 4 1 0 0)");
}

#[test]
fn deletion_of_a_key_reaches_clients_that_wait_for_it() {
    let server = start(2);
    let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
    for change in [&["SET", "k", "v"], &["EXPIRE", "k", "-1"], &["SET", "k", "v"]] {
        block(&server, &mut client, &["blocking.change", "k"]);
        other.call(change);
        assert_eq!(client.answer(), "k", "after {change:?}");
    }
    block(&server, &mut client, &["blocking.change", "k"]);
    other.call(&["FLUSHALL"]);
    assert_eq!(client.answer(), "k");
}

#[test]
fn role_change_ends_waits() {
    let server = start(2);
    let (mut client, mut other) = (Client::connect(server.port), Client::connect(server.port));
    block(&server, &mut client, &["blocking.hold", "0"]);
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(
        client.answer(),
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
    );
    wait_for_counts(&mut other, "(0 0 1 0 0 0 0)");
}

#[test]
fn timers_run_at_home() {
    let server = start(3);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["blocking.timer", "20"]), "OK");
    wait_until("the timer", || client.call(&["GET", "blocking:timers"]) == "1");
    assert_eq!(client.call(&["blocking.stop"]), "1", "it has been called");
    assert_eq!(client.call(&["blocking.timer", "100000"]), "OK");
    assert_eq!(
        client.call(&["MODULE", "UNLOAD", "blocking"]),
        "ERR Error unloading module: the module holds timer that is not fired. Please stop the timer or wait until it fires."
    );
    assert_eq!(client.call(&["blocking.stop"]), "0");
    wait_for_counts(&mut client, "(0 0 0 0 0 1 0)");
    assert_eq!(client.call(&["MODULE", "UNLOAD", "blocking"]), "OK");
}

#[test]
fn descriptors_are_watched_at_home() {
    let server = start(2);
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["blocking.watch"]), "OK");
    wait_for_counts(&mut client, "(0 0 0 0 0 0 100)");
    assert_eq!(client.call(&["blocking.write", "ab"]), "OK");
    wait_for_counts(&mut client, "(0 0 0 0 0 0 102)");
    assert_eq!(client.call(&["blocking.write", "cx"]), "OK");
    wait_for_counts(&mut client, "(0 0 0 0 0 0 104)");
    assert_eq!(client.call(&["blocking.write", "d"]), "OK");
    std::thread::sleep(std::time::Duration::from_millis(20));
    wait_for_counts(&mut client, "(0 0 0 0 0 0 104)");
}

#[test]
fn modules_authenticate_clients() {
    let server = start(3);
    let mut client = Client::connect(server.port);
    client.call(&["ACL", "SETUSER", "u", "on", ">secret", "+@all", "~*"]);
    assert_eq!(client.call(&["blocking.authenticate"]), "OK");
    let failure = "WRONGPASS invalid username-password pair or user is disabled.";
    for (password, reply) in [
        ("now", "OK"),
        ("never", "ERR not today"),
        ("later", "OK"),
        ("skip", failure),
        ("secret", "OK"),
        ("wrong", failure),
    ] {
        let mut client = Client::connect(server.port);
        client.send(&["AUTH", "u", password]);
        client.send(&["ACL", "WHOAMI"]);
        assert_eq!(client.answer(), reply, "password {password}");
        assert_eq!(client.answer(), if reply == "OK" { "u" } else { "default" });
        let mut client = Client::connect(server.port);
        let hello = client.call(&["HELLO", "2", "AUTH", "u", password, "SETNAME", "n"]);
        match reply {
            "OK" => assert!(
                hello.contains("proto 2") && client.call(&["ACL", "WHOAMI"]) == "u",
                "{hello}"
            ),
            _ => assert_eq!(hello, reply),
        }
    }
    let reply = client.transact(&[&["AUTH", "u", "now"], &["ACL", "WHOAMI"]]);
    assert_eq!(reply, "(OK u)");
    let reply = client.transact(&[&["AUTH", "u", "later"], &["ACL", "WHOAMI"]]);
    assert_eq!(reply, "(ERR Blocking module command called from transaction u)");
    let mut waiting = Client::connect(server.port);
    waiting.send(&["AUTH", "u", "later"]);
    drop(waiting);
    assert_eq!(
        Client::connect(server.port).call(&["HELLO", "9", "AUTH", "u", "now"]),
        "NOPROTO unsupported protocol version"
    );
    wait_until("the unload", || client.call(&["MODULE", "UNLOAD", "blocking"]) == "OK");
    assert_eq!(Client::connect(server.port).call(&["AUTH", "u", "now"]), failure);
}

#[test]
fn half_closed_connection_ends_its_wait() {
    for workers in [1, 8] {
        let server = start(workers);
        let mut other = Client::connect(server.port);
        let mut client = Client::connect(server.port);
        block(&server, &mut client, &["blocking.hold", "0"]);
        client
            .0
            .get_ref()
            .shutdown(Shutdown::Write)
            .expect("closes one direction");
        wait_for_counts(&mut other, "(0 0 1 0 0 0 0)");
        let mut client = Client::connect(server.port);
        block(&server, &mut client, &["blocking.pop", "0", "list"]);
        client
            .0
            .get_ref()
            .shutdown(Shutdown::Write)
            .expect("closes one direction");
        wait_for_counts(&mut other, "(0 0 1 1 1 0 0)");
        // Nothing is taken for a client that has gone.
        assert_eq!(other.call(&["RPUSH", "list", "1", "2"]), "2");
        assert_eq!(other.call(&["LLEN", "list"]), "2");
        assert_eq!(other.info("total_blocking_keys"), "0");
        // One whose thread ends later.
        let mut client = Client::connect(server.port);
        client.send(&["blocking.thread"]);
        client
            .0
            .get_ref()
            .shutdown(Shutdown::Write)
            .expect("closes one direction");
        wait_until("the thread has ended", || other.call(&["GET", "blocking:count"]) == "1");
        wait_until("the unload", || other.call(&["MODULE", "UNLOAD", "blocking"]) == "OK");
    }
}

#[test]
fn role_change_redirects_clients_that_wait_for_keys() {
    let server = start(3);
    let mut other = Client::connect(server.port);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(server.port)).collect();
    for client in &mut clients[2..] {
        assert_eq!(client.call(&["CLIENT", "CAPA", "redirect"]), "OK");
    }
    let requests: [&[&str]; 2] = [&["blocking.pop", "0", "list"], &["blocking.hold", "0"]];
    for (number, request) in [(0, 0), (2, 0), (3, 1)] {
        clients[number].send(requests[request]);
    }
    other.wait_for_info("blocked_clients", "3");
    assert_eq!(other.call(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_eq!(
        clients[0].answer(),
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
    );
    assert_eq!(clients[2].answer(), "REDIRECT 127.0.0.1:1");
    // It does not wait for a key, so the module ends its wait.
    assert_eq!(other.call(&["blocking.release"]), "0");
    assert_eq!(clients[3].answer(), "(blocking.hold 9)");
    assert_eq!(other.info("total_blocking_keys"), "0");
    let mut closed = String::new();
    assert_eq!(
        clients[0].0.read_line(&mut closed).expect("ends"),
        0,
        "it is disconnected"
    );
}

#[test]
fn pause_holds_back_the_end_of_an_authentication() {
    let server = start(2);
    let mut other = Client::connect(server.port);
    other.call(&["ACL", "SETUSER", "u", "on", ">secret", "+@all", "~*"]);
    assert_eq!(other.call(&["blocking.authenticate"]), "OK");
    let mut client = Client::connect(server.port);
    client.send(&["AUTH", "u", "later"]);
    assert_eq!(other.call(&["CLIENT", "PAUSE", "1500", "ALL"]), "OK");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(client.is_waiting(), "no reply during the pause");
    assert_eq!(client.answer(), "OK");
    assert_eq!(client.call(&["ACL", "WHOAMI"]), "u");
}

//! Tests that clients which cache keys learn that all data is replaced, at the latest before the reply to a request
//! that they send once they or another client have seen the new data.

use super::order::{lines_until, resp3_clients};
use super::{Client, Server, is_waiting};
use crate::harness::wait_until;

const OLD: &str = "old value";
/// The name of each client. It is the last line of the reply to CLIENT GETNAME, which is executed during a load, too.
const NAME: &str = "caching-client";

/// Clients that have read a key and keep a copy of its value.
struct CachingClients {
    clients: Vec<Client>,
    /// Set for each client that has read the old value and got no invalidation since.
    has_copy: Vec<bool>,
    /// Set for each of these that has read another value.
    has_seen_change: Vec<bool>,
}

impl CachingClients {
    fn new(server: &Server) -> CachingClients {
        let mut clients = resp3_clients(server);
        for client in &mut clients {
            client.send(&["CLIENT", "TRACKING", "ON"]);
            client.send(&["CLIENT", "SETNAME", NAME]);
            client.send(&["CLIENT", "GETNAME"]);
            lines_until(client, NAME);
        }
        CachingClients {
            has_copy: vec![false; clients.len()],
            has_seen_change: vec![false; clients.len()],
            clients,
        }
    }

    /// Reads the key. All clients must read the old value.
    fn read_old_value(&mut self) {
        self.clients.iter_mut().for_each(|client| client.send(&["GET", "key"]));
        for (client, has_copy) in self.clients.iter_mut().zip(&mut self.has_copy) {
            lines_until(client, OLD);
            *has_copy = true;
        }
    }

    /// Reads the key. A client that has seen another value must get its invalidation before the reply.
    fn read_any_value(&mut self, what: &str) {
        for client in &mut self.clients {
            client.send(&["GET", "key"]);
            client.send(&["CLIENT", "GETNAME"]);
        }
        let states = self.has_copy.iter_mut().zip(&mut self.has_seen_change);
        for (client, (has_copy, has_seen_change)) in self.clients.iter_mut().zip(states) {
            let lines = lines_until(client, NAME);
            if *has_seen_change {
                assert_eq!(lines[..3], [">2", "$10", "invalidate"], "{what}: {lines:?}");
            }
            *has_copy &= !lines.iter().any(|line| line == "invalidate");
            *has_seen_change = *has_copy && lines.iter().any(|line| line == "_" || line == "new value");
        }
    }

    /// Reads the key. All clients must have got their invalidations, since another client has seen the new data.
    fn expect_invalidations(&mut self, what: &str) {
        self.read_any_value(what);
        assert!(!self.has_copy.contains(&true), "{what}: {:?}", self.has_copy);
    }

    /// Reads the key until the reply to a request of `admin` has arrived.
    fn read_until_reply(&mut self, admin: &mut Client, what: &str) {
        while is_waiting(admin) {
            self.read_any_value(what);
        }
        assert_eq!(admin.answer(), "OK", "{what}");
        self.expect_invalidations(what);
    }
}

fn start(threads: &str, options: &[&str]) -> Server {
    let always = [
        "--io-threads",
        threads,
        "--io-threads-always-active",
        "yes",
        "--enable-debug-command",
        "yes",
    ];
    Server::start(&[&always[..], options].concat())
}

#[test]
fn copies_are_invalid_before_reloaded_data_is_read() {
    for threads in ["1", "2", "8"] {
        let server = start(threads, &[]);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["SET", "key", "new value"]), "OK");
        assert_eq!(admin.call(&["SAVE"]), "OK");
        let mut caching = CachingClients::new(&server);
        for round in 0..100 {
            assert_eq!(admin.call(&["SET", "key", OLD]), "OK");
            caching.read_old_value();
            admin.send(&["DEBUG", "RELOAD", "NOSAVE"]);
            caching.read_until_reply(&mut admin, &format!("round {round}, {threads} workers"));
        }
    }
}

#[test]
fn copies_are_invalid_even_if_the_dump_cannot_be_loaded() {
    let server = start("2", &[]);
    let mut admin = Client::connect(server.port);
    let mut caching = CachingClients::new(&server);
    assert_eq!(admin.call(&["SET", "key", OLD]), "OK");
    caching.read_old_value();
    let directory = admin.call(&["CONFIG", "GET", "dir"]);
    let directory = directory.trim_matches(['(', ')']).trim_start_matches("dir ");
    std::fs::write(format!("{directory}/dump.rdb"), "no dump").expect("writes");
    assert!(admin.call(&["DEBUG", "RELOAD", "NOSAVE"]).starts_with("ERR "));
    caching.expect_invalidations("after the failure");
}

#[test]
fn copies_of_keys_that_are_not_in_the_append_only_file_are_invalid_after_it_is_loaded() {
    for threads in ["1", "2", "8"] {
        let server = start(threads, &["--appendonly", "yes"]);
        let mut admin = Client::connect(server.port);
        assert_eq!(admin.call(&["SET", "other", "value"]), "OK");
        assert_eq!(admin.call(&["CONFIG", "SET", "appendonly", "no"]), "OK");
        let mut caching = CachingClients::new(&server);
        for round in 0..20 {
            assert_eq!(admin.call(&["SET", "key", OLD]), "OK");
            caching.read_old_value();
            admin.send(&["DEBUG", "LOADAOF"]);
            caching.read_until_reply(&mut admin, &format!("round {round}, {threads} workers"));
            assert_eq!(admin.call(&["GET", "key"]), "-");
        }
    }
}

#[test]
fn copies_are_invalid_before_a_replica_has_the_data_of_its_primary() {
    let options = ["--repl-diskless-sync-delay", "0"];
    let primary = start("1", &options);
    let mut writer = Client::connect(primary.port);
    assert_eq!(writer.call(&["SET", "key", "new value"]), "OK");
    for threads in ["1", "2", "8"] {
        let replica = start(threads, &options);
        let mut admin = Client::connect(replica.port);
        let mut caching = CachingClients::new(&replica);
        for round in 0..5 {
            let what = format!("round {round}, {threads} workers");
            assert_eq!(admin.call(&["SET", "key", OLD]), "OK");
            caching.read_old_value();
            assert_eq!(admin.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]), "OK");
            while !admin.call(&["INFO", "replication"]).contains("master_link_status:up") {
                caching.read_any_value(&what);
            }
            caching.expect_invalidations(&what);
            assert_eq!(admin.call(&["REPLICAOF", "NO", "ONE"]), "OK");
        }
    }
}

/// A long read replies what its snapshot holds, and the client caches that. It must learn of a change that happens
/// before the reply.
#[test]
fn a_change_while_a_read_waits_for_a_thread_invalidates_what_it_read() {
    for threads in ["2", "8"] {
        let server = start(threads, &[]);
        let mut admin = Client::connect(server.port);
        let elements: Vec<String> = (0..50_000).map(|number| format!("element:{number}")).collect();
        let push = |client: &mut Client, key: &str, times: usize| {
            let words: Vec<&str> = ["RPUSH", key]
                .into_iter()
                .chain(elements.iter().map(String::as_str))
                .collect();
            (0..times).for_each(|_| drop(client.call(&words)));
        };
        let in_background = |client: &mut Client| -> usize {
            let commands = client.info("weft_background_commands");
            commands.parse().expect("a number")
        };
        push(&mut admin, "sorted", 12);
        let mut informed = Client::connect(server.port);
        let id = informed.call(&["CLIENT", "ID"]);
        informed.call(&["SUBSCRIBE", "__redis__:invalidate"]);
        let mut reader = Client::connect(server.port);
        assert_eq!(reader.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
        for _ in 0..3 {
            push(&mut admin, "list", 1);
            let before = in_background(&mut admin);
            // They occupy the threads that run reads.
            let mut busy = [0; 4].map(|_| Client::connect(server.port));
            for client in &mut busy {
                client.send(&["SORT", "sorted", "ALPHA", "LIMIT", "0", "1"]);
            }
            wait_until("the threads are occupied", || in_background(&mut admin) >= before + 4);
            reader.send(&["LRANGE", "list", "0", "-1"]);
            wait_until("the read has its snapshot", || in_background(&mut admin) >= before + 5);
            assert_eq!(admin.call(&["DEL", "list"]), "1");
            assert!(reader.answer().contains("element:49999"), "{threads} workers");
            assert_eq!(
                informed.answer(),
                "(message __redis__:invalidate (list))",
                "{threads} workers"
            );
            busy.iter_mut().for_each(|client| drop(client.answer()));
        }
    }
}

/// The table of tracked keys may exceed its limit by little, however many keys a turn reads.
#[test]
fn the_limit_of_tracked_keys_holds_while_clients_read_many_names() {
    const LIMIT: usize = 1000;
    let server = start("2", &["--tracking-table-max-keys", &LIMIT.to_string()]);
    let mut admin = Client::connect(server.port);
    let mut informed = Client::connect(server.port);
    let id = informed.call(&["CLIENT", "ID"]);
    let mut reader = Client::connect(server.port);
    assert_eq!(reader.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
    for round in 0..20 {
        for part in 0..5 {
            let names: Vec<String> = (0..2000).map(|number| format!("{round}:{part}:{number}")).collect();
            let words: Vec<&str> = ["MGET"].into_iter().chain(names.iter().map(String::as_str)).collect();
            reader.send(&words);
        }
        (0..5).for_each(|_| drop(reader.answer()));
        let count: usize = admin.info("tracking_total_keys").parse().expect("a number");
        assert!(count <= LIMIT + 2000, "round {round}: {count} keys");
    }
}

//! End-to-end tests of full synchronisations through a dump file, which each replica receives at its own pace.

use std::path::{Path, PathBuf};

use super::serving::{AT_ONCE, Replica};
use super::{DUMP, FIRST_ID, Primary};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Dumps for replicas go through a file, which is removed. A replica may take as long as it likes.
const THROUGH_FILE: [&str; 8] = [
    "--repl-diskless-sync",
    "no",
    "--rdb-del-sync-files",
    "yes",
    "--rdbcompression",
    "no",
    "--repl-timeout",
    "100000",
];

/// Starts a server whose dump has more bytes than the buffers of a socket hold.
fn start(workers: &str) -> (Server, Client) {
    let server = Server::start(&[&AT_ONCE[..], &THROUGH_FILE, &["--io-threads", workers]].concat());
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "POPULATE", "400", "key", "100000"]), "OK");
    (server, client)
}

fn request_dump(server: &Server) -> Replica {
    let mut replica = Replica::connect(server.port);
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    replica
}

fn receive_dump(replica: &mut Replica) {
    assert!(replica.line().starts_with("+FULLRESYNC "));
    assert!(replica.take_dump().starts_with(b"VALKEY"));
}

#[test]
fn a_replica_that_does_not_read_holds_up_neither_other_replicas_nor_snapshots() {
    for workers in ["2", "8"] {
        let (server, mut client) = start(workers);
        // Two replicas wait until another snapshot has ended, and get the same dump.
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]);
        assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
        let (mut stopped, mut reading) = (request_dump(&server), request_dump(&server));
        client.wait_for_info("connected_slaves", "2");
        client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
        receive_dump(&mut reading);
        assert_eq!(client.call(&["SET", "later", "1"]), "OK");
        assert_eq!(reading.command(), "SELECT 0");
        assert_eq!(reading.command(), "SET later 1");
        receive_dump(&mut request_dump(&server));
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        let dump = server.directory.join("dump.rdb");
        assert!(!dump.exists(), "only replicas needed the file");
        assert_eq!(client.call(&["BGSAVE"]), "Background saving started");
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        let replicas = client.call(&["INFO", "replication"]);
        assert!(replicas.contains("state=send_bulk"), "the file is still being sent");
        receive_dump(&mut stopped);
        assert_eq!(stopped.command(), "SELECT 0");
        assert_eq!(stopped.command(), "SET later 1");
        assert!(dump.exists(), "it was not written for a replica");
    }
}

#[test]
fn a_replica_that_accepts_no_more_of_a_dump_file_is_disconnected_after_the_timeout() {
    let (server, mut client) = start("2");
    let _stopped = request_dump(&server);
    wait_until("the file is being sent", || {
        client.info("connected_slaves") == "1" && client.info("slave0").contains("state=send_bulk")
    });
    assert_eq!(client.call(&["CONFIG", "SET", "repl-timeout", "1"]), "OK");
    client.wait_for_info("connected_slaves", "0");
    client.wait_for_info("rdb_bgsave_in_progress", "0");
}

/// Returns the names in a directory, in order.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("lists").flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Waits until a temporary file is being written in the server's directory, and changes to another directory.
fn leave_directory(server: &Server, client: &mut Client) -> PathBuf {
    let other = server.directory.join("other");
    std::fs::create_dir(&other).expect("creates");
    wait_until("the file is being written", || {
        names_in(&server.directory).iter().any(|name| name.starts_with("temp-"))
    });
    let path = other.to_string_lossy();
    assert_eq!(client.call(&["CONFIG", "SET", "dir", &path]), "OK");
    other
}

/// CONFIG SET dir changes the directory of the process. Files of a full synchronisation stay where they are.
#[test]
fn a_dump_file_for_a_replica_stays_in_the_directory_in_which_it_began() {
    let through_file = ["--repl-diskless-sync", "no", "--enable-protected-configs", "yes"];
    let server = Server::start(&[&AT_ONCE[..], &through_file].concat());
    let mut client = Client::connect(server.port);
    assert_eq!(client.call(&["DEBUG", "POPULATE", "100"]), "OK");
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]);
    let mut replica = request_dump(&server);
    let other = leave_directory(&server, &mut client);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    receive_dump(&mut replica);
    assert_eq!(names_in(&server.directory), ["dump.rdb", "other"]);
    assert_eq!(names_in(&other), Vec::<String>::new());
}

#[test]
fn a_received_dump_file_stays_in_the_directory_in_which_it_began() {
    let primary = Primary::new();
    let replica = Server::start(&["--repl-diskless-load", "disabled", "--enable-protected-configs", "yes"]);
    let mut client = Client::connect(replica.port);
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
    let (mut link, _) = primary.accept();
    let (begin, rest) = DUMP.split_at(20);
    link.send(format!("+FULLRESYNC {FIRST_ID} 0\r\n${}\r\n", DUMP.len()).as_bytes());
    link.send(begin);
    let other = leave_directory(&replica, &mut client);
    link.send(rest);
    link.await_acknowledged(0);
    assert_eq!(names_in(&replica.directory), ["dump.rdb", "other"]);
    assert_eq!(std::fs::read(replica.directory.join("dump.rdb")).expect("reads"), DUMP);
    assert_eq!(names_in(&other), Vec::<String>::new());
}

/// The file is the only copy of the replica's data if the replica ends before it has loaded another dump.
#[test]
fn a_dump_that_cannot_be_loaded_does_not_replace_the_dump_file() {
    let primary = Primary::new();
    let replica = Server::start(&["--repl-diskless-load", "disabled"]);
    let mut client = Client::connect(replica.port);
    assert_eq!(client.call(&["SET", "old", "1"]), "OK");
    assert_eq!(client.call(&["SAVE"]), "OK");
    let path = replica.directory.join("dump.rdb");
    let own = std::fs::read(&path).expect("reads");
    assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
    let (mut link, _) = primary.accept();
    // No version of the format has this number.
    link.send_full_sync(b"VALKEY999 and more bytes");
    // The replica connects again after the failure.
    let (mut next, _) = primary.accept();
    assert_eq!(std::fs::read(&path).expect("reads"), own);
    next.send_full_sync(DUMP);
    next.await_acknowledged(0);
    assert_eq!(std::fs::read(&path).expect("reads"), DUMP);
    let names = std::fs::read_dir(&replica.directory).expect("lists").flatten();
    let is_temporary = |name: String| name.starts_with("temp-");
    assert!(
        !names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .any(is_temporary)
    );
}

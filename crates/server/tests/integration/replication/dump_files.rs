//! End-to-end tests of full synchronisations through a dump file, which each replica receives at its own pace.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::serving::{AT_ONCE, Replica};
use super::{DUMP, FIRST_ID, Primary, is_closed};
use crate::harness::client::Client;
use crate::harness::server::{PATIENCE, Server};
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

/// A dump for replicas that goes through the dump file is a background save, also if it fails.
#[test]
fn a_dump_file_for_replicas_counts_as_a_background_save() {
    for workers in ["2", "8"] {
        let own = ["--save", "3600 1000000", "--io-threads", workers];
        let server = Server::start(&[&AT_ONCE[..], &THROUGH_FILE, &own].concat());
        let mut client = Client::connect(server.port);
        assert_eq!(client.call(&["SET", "key", "first"]), "OK");
        let dump = server.directory.join("dump.rdb");
        // No file can replace it.
        std::fs::create_dir_all(dump.join("in-the-way")).expect("makes a directory");
        let mut replicas = [request_dump(&server), request_dump(&server)];
        for replica in &mut replicas {
            assert!(replica.line().starts_with("+FULLRESYNC "));
            assert!(is_closed(&mut replica.0), "there is no dump for it");
        }
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        assert_eq!(client.info("rdb_last_bgsave_status"), "err");
        assert_eq!(client.info("rdb_changes_since_last_save"), "1");
        assert_ne!(client.info("rdb_saves"), "0");
        assert_ne!(client.info("rdb_last_bgsave_time_sec"), "-1");
        assert_eq!(names_in(&server.directory), ["dump.rdb"], "no file is left over");
        for words in [&["SET", "key", "second"][..], &["PING"]] {
            assert!(client.call(words).starts_with("MISCONF "), "{words:?}");
        }
        std::fs::remove_dir_all(&dump).expect("removes");
        receive_dump(&mut request_dump(&server));
        client.wait_for_info("rdb_last_bgsave_status", "ok");
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        assert_eq!(client.info("rdb_changes_since_last_save"), "0");
        assert_eq!(client.call(&["SET", "key", "second"]), "OK");
        assert_eq!(client.info("rdb_changes_since_last_save"), "1");
        assert!(dump.exists(), "it is loaded at the next start");
    }
}

/// A replica does not give its data up for a dump that could not become its file.
#[test]
fn a_replica_keeps_its_data_until_the_dump_file_can_be_replaced() {
    for workers in ["2", "8"] {
        let own = ["--io-threads", workers, "--repl-diskless-sync", "no"];
        let primary = Server::start(&[&AT_ONCE[..], &own].concat());
        assert_eq!(Client::connect(primary.port).call(&["SET", "of-primary", "1"]), "OK");
        let replica = Server::start(&["--io-threads", workers, "--logfile", "log"]);
        let mut client = Client::connect(replica.port);
        assert_eq!(client.call(&["SET", "of-replica", "1"]), "OK");
        let dump = replica.directory.join("dump.rdb");
        std::fs::create_dir(&dump).expect("makes a directory");
        let port = primary.port.to_string();
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        let failure = "Failed trying to rename the temp DB into dump.rdb in PRIMARY <-> REPLICA synchronization: \
                       Is a directory";
        wait_until("the replica has tried twice", || {
            let log = std::fs::read_to_string(replica.directory.join("log")).expect("there is a log");
            log.matches(failure).count() >= 2
        });
        assert_eq!(client.call(&["KEYS", "*"]), "(of-replica)");
        // There is one during an attempt.
        wait_until("no file is left over", || {
            names_in(&replica.directory) == ["dump.rdb", "log"]
        });
        std::fs::remove_dir(&dump).expect("removes");
        wait_until("the replica is in sync", || {
            client.call(&["KEYS", "*"]) == "(of-primary)"
        });
        wait_until("the dump has its name", || dump.is_file());
    }
}

/// A dump that is sent to sockets is no background save. A file whose replicas have gone is not needed.
#[test]
fn dumps_without_a_file_do_not_count_as_background_saves() {
    for is_file in [false, true] {
        let diskless = if is_file { "no" } else { "yes" };
        let own = ["--repl-diskless-sync", diskless, "--logfile", "log"];
        let server = Server::start(&[&AT_ONCE[..], &own].concat());
        let mut client = Client::connect(server.port);
        for key in ["a", "b", "c"] {
            assert_eq!(client.call(&["SET", key, "value"]), "OK");
        }
        if is_file {
            client.call(&["CONFIG", "SET", "rdb-key-save-delay", "10000000"]);
            let replica = request_dump(&server);
            client.wait_for_info("rdb_bgsave_in_progress", "1");
            drop(replica);
            client.wait_for_info("connected_slaves", "0");
            client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
            wait_until("the log says why the dump ends", || {
                let log = std::fs::read_to_string(server.directory.join("log")).expect("there is a log");
                log.contains("Background saving, persistence disabled, last replica dropped, killing fork child.")
            });
        } else {
            receive_dump(&mut request_dump(&server));
        }
        client.wait_for_info("rdb_bgsave_in_progress", "0");
        assert_eq!(client.info("rdb_last_bgsave_status"), "ok", "{diskless}");
        assert_eq!(client.info("rdb_changes_since_last_save"), "3", "{diskless}");
        assert_eq!(names_in(&server.directory), ["log"], "{diskless}");
    }
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

/// The replica keeps its data and its dump file, and requests the dump again.
#[test]
fn a_dump_that_does_not_fit_on_the_disk_of_a_replica_is_requested_again() {
    for workers in ["2", "8"] {
        let primary = Primary::new();
        let replica = Server::start(&["--repl-diskless-load", "disabled", "--io-threads", workers]);
        let mut client = Client::connect(replica.port);
        assert_eq!(client.call(&["SET", "old", "1"]), "OK");
        assert_eq!(client.call(&["SAVE"]), "OK");
        let own = std::fs::read(replica.directory.join("dump.rdb")).expect("reads");
        // The file is named after the time. Whatever its name is, it goes to a device that is always full.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        let process = client.info("process_id");
        let seconds = now..now + 2 * PATIENCE.as_secs();
        let links: Vec<PathBuf> = seconds
            .map(|second| replica.directory.join(format!("temp-{second}.{process}.rdb")))
            .collect();
        for link in &links {
            std::os::unix::fs::symlink("/dev/full", link).expect("makes a link");
        }
        assert_eq!(client.call(&["REPLICAOF", "127.0.0.1", &primary.port()]), "OK");
        let (mut link, _) = primary.accept();
        link.send_full_sync(DUMP);
        let (mut next, _) = primary.accept();
        assert_eq!(client.info("master_link_status"), "down");
        assert_eq!(client.call(&["GET", "old"]), "1");
        let kept = std::fs::read(replica.directory.join("dump.rdb")).expect("reads");
        assert_eq!(kept, own);
        let left: Vec<&PathBuf> = links.iter().filter(|link| link.is_symlink()).collect();
        assert_eq!(left.len() + 1, links.len(), "the file that was begun is removed");
        for link in left {
            std::fs::remove_file(link).expect("removes");
        }
        next.send_full_sync(DUMP);
        next.await_acknowledged(0);
        assert_eq!(client.call(&["EXISTS", "old"]), "0");
        assert_eq!(names_in(&replica.directory), ["dump.rdb"]);
    }
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

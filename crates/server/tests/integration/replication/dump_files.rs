//! End-to-end tests of full synchronisations through a dump file, which each replica receives at its own pace.

use super::serving::{AT_ONCE, Replica};
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

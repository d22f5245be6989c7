//! Tests of replicas whose users are deleted.

use std::io::{ErrorKind, Read};

use super::serving::{AT_ONCE, Replica};
use crate::harness::client::Client;
use crate::harness::server::Server;
use crate::harness::wait_until;

/// Connects a replica that logs in as the user `joe` and requests everything.
fn connect_as_joe(server: &Server) -> Replica {
    let mut replica = Replica::connect(server.port);
    replica.send(&["AUTH", "joe", "x"]);
    assert_eq!(replica.line(), "+OK");
    replica.handshake();
    replica.send(&["PSYNC", "?", "-1"]);
    replica
}

fn await_replicas(client: &mut Client, state: &str, count: usize) {
    let state = format!("state={state},");
    wait_until(&format!("{count} replicas have {state}"), || {
        client.call(&["INFO", "replication"]).matches(&state).count() == count
    });
}

/// Returns everything that a replica receives until its connection is closed.
fn rest(mut replica: Replica) -> String {
    let mut rest = Vec::new();
    if let Err(error) = replica.0.read_to_end(&mut rest) {
        let is_timeout = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!is_timeout, "the connection stays open");
    }
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn replicas_of_a_deleted_user_are_disconnected() {
    let file = std::env::temp_dir().join(format!("weft-replica-users-{}.acl", std::process::id()));
    std::fs::write(&file, "user default on nopass ~* &* +@all\n").expect("writes the file");
    let path = file.display().to_string();
    for workers in ["1", "4"] {
        let options = [&AT_ONCE[..], &["--io-threads", workers, "--aclfile", &path]].concat();
        let server = Server::start(&options);
        let mut admin = Client::connect(server.port);
        for change in ["DELUSER", "EXEC", "LOAD"] {
            let created = admin.call(&["ACL", "SETUSER", "joe", "on", "nopass", "+@all"]);
            assert_eq!(created, "OK");
            let mut online = connect_as_joe(&server);
            assert!(online.line().starts_with("+FULLRESYNC "));
            online.take_dump();
            await_replicas(&mut admin, "online", 1);
            online.send(&["REPLCONF", "ACK", "0"]);
            assert_eq!(admin.call(&["SET", "public", change]), "OK");
            let write = format!("SET public {change}");
            while online.command() != write {}
            admin.call(&["CONFIG", "SET", "repl-diskless-sync-delay", "3600"]);
            let waiting = connect_as_joe(&server);
            await_replicas(&mut admin, "wait_bgsave", 1);
            let answer = match change {
                "DELUSER" => admin.call(&["ACL", "DELUSER", "joe"]),
                "EXEC" => admin.transact(&[&["ACL", "DELUSER", "joe"]]),
                _ => admin.call(&["ACL", "LOAD"]),
            };
            assert!(["1", "(1)", "OK"].contains(&answer.as_str()), "{change}: {answer}");
            assert_eq!(admin.call(&["SET", "secret", "1"]), "OK");
            assert!(!rest(online).contains("secret"), "{change}");
            assert_eq!(rest(waiting).trim_end_matches('\n'), "", "{change}");
            admin.wait_for_info("connected_slaves", "0");
            admin.call(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
            admin.call(&["DEL", "secret"]);
        }
    }
    std::fs::remove_file(&file).expect("removes the file");
}

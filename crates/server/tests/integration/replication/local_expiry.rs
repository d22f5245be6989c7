//! Tests for how long a writable replica remembers the keys that its clients gave an expiry.

use super::await_info;
use super::lasting::{follow, until};
use crate::harness::client::Client;
use crate::harness::server::Server;

const OPTIONS: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];

#[test]
fn a_writable_replica_remembers_its_expiring_keys_until_the_first_cycle_as_a_primary() {
    let server = Server::start(&OPTIONS);
    let follower = Server::start(&[&OPTIONS[..], &["--replica-read-only", "no"]].concat());
    let mut replica = Client::connect(follower.port);
    let active_expire = |on| ["DEBUG", "SET-ACTIVE-EXPIRE", on];
    assert_eq!(replica.call(&active_expire("0")), "OK");
    follow(&mut replica, server.port);
    let set_keys = |replica: &mut Client| {
        for key in ["a", "b"] {
            assert_eq!(replica.call(&["SET", key, "1", "EX", "1000"]), "OK");
        }
        assert_eq!(replica.info("slave_expires_tracked_keys"), "2");
    };
    set_keys(&mut replica);
    assert_eq!(replica.call(&["FLUSHALL"]), "OK");
    assert_eq!(replica.info("slave_expires_tracked_keys"), "0");
    set_keys(&mut replica);
    assert_eq!(replica.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(replica.info("slave_expires_tracked_keys"), "2");
    assert_eq!(replica.call(&active_expire("1")), "OK");
    await_info(&mut replica, "slave_expires_tracked_keys:0");
    assert_eq!(replica.call(&["DBSIZE"]), "2");
    for key in ["a", "b"] {
        assert_eq!(replica.call(&["PEXPIRE", key, "1"]), "1");
    }
    until("the keys go", || replica.call(&["DBSIZE"]) == "0");
    // Those of an earlier time as a replica are not remembered either.
    assert_eq!(replica.call(&active_expire("0")), "OK");
    follow(&mut replica, server.port);
    set_keys(&mut replica);
    assert_eq!(replica.call(&["REPLICAOF", "NO", "ONE"]), "OK");
    follow(&mut replica, server.port);
    assert_eq!(replica.info("slave_expires_tracked_keys"), "0");
}

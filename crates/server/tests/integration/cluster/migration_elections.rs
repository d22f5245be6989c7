//! Tests migrations during which a replica of one side may take over.

use super::failover::{Node, weft_with};
use super::migration::{job, migrate, set_debug, set_keys, wait_for_state};
use super::observing::log_of;
use super::wait_until;

/// The number of the type of messages that grants a vote.
const VOTE: &str = "6";
/// The reason of a migration that had to wait for too long.
const TIMED_OUT: &str = "Timed out before the slots could be taken over";

/// Forms a cluster of three primaries, and a replica of the one with this index.
fn with_replica_of(primary: usize) -> Vec<Node> {
    let mut nodes = weft_with(4, &["--logfile", "log"]);
    let (id, port) = (nodes[primary].id.clone(), nodes[primary].port);
    let replica = nodes[3].id.clone();
    assert_eq!(nodes[3].call(&["CLUSTER", "REPLICATE", &id]), "OK");
    wait_until("it follows", || nodes[3].follows(port));
    for node in &mut nodes {
        wait_until("everybody knows whom it follows", || {
            let replicas = node.call(&["CLUSTER", "REPLICAS", &id]);
            replicas.contains(&replica)
        });
    }
    nodes
}

/// The primary knows nothing of the failover: a source of Valkey that hands over to its replica grants slots
/// nevertheless, and FORCE does not ask. The votes do not arrive, so that the election stays undecided.
fn waits_for_a_replica_of(primary: usize) {
    let mut nodes = with_replica_of(primary);
    set_keys(&mut nodes[0], 10);
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    assert_eq!(nodes[3].call(&["DEBUG", "DROP-CLUSTER-PACKET-FILTER", VOTE]), "OK");
    assert_eq!(nodes[3].call(&["CLUSTER", "FAILOVER", "FORCE"]), "OK");
    wait_until("the target hears of the election", || {
        log_of(&mut nodes[1]).contains("Failover auth ")
    });
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "0");
    wait_until("the migration ends", || {
        ["failed", "success"].contains(&job(&mut nodes[1], "state").as_str())
    });
    assert_eq!(job(&mut nodes[1], "message"), TIMED_OUT);
    assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    assert_eq!(nodes[0].call(&["DBSIZE"]), "10", "the source has its slots still");
}

#[test]
fn slots_are_not_taken_over_while_a_replica_may_win_those_of_their_source() {
    waits_for_a_replica_of(0);
}

#[test]
fn slots_are_not_taken_over_while_a_replica_may_win_those_of_the_target() {
    waits_for_a_replica_of(1);
}

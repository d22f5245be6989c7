//! Tests migrations whose source may be replaced by a replica at that time.

use super::failover::{Node, weft};
use super::migration::{job, migrate, set_debug, set_keys, wait_for_state};
use super::wait_until;

/// The number of the type of messages that grants a vote.
const VOTE: &str = "6";
/// The reason of a migration that had to wait for too long.
const TIMED_OUT: &str = "Timed out before the slots could be taken over";

/// Returns the newest epoch that a node knows.
fn epoch(node: &mut Node) -> u64 {
    let info = node.call(&["CLUSTER", "INFO"]);
    let after = info.split("cluster_current_epoch:").nth(1).expect("is a field");
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("is a number")
}

/// Here the source knows nothing of the failover, just as a source of Valkey that hands over to its replica grants
/// slots nevertheless. The votes do not arrive, so that the election stays undecided.
#[test]
fn slots_are_not_taken_over_while_a_replica_may_win_those_of_their_source() {
    let mut nodes = weft(4);
    set_keys(&mut nodes[0], 10);
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "1");
    migrate(&mut nodes, 0, 1);
    wait_for_state(&mut nodes[0], "failover-granted");
    let before = epoch(&mut nodes[1]);
    assert_eq!(nodes[3].call(&["DEBUG", "DROP-CLUSTER-PACKET-FILTER", VOTE]), "OK");
    assert_eq!(nodes[3].call(&["CLUSTER", "FAILOVER", "FORCE"]), "OK");
    wait_until("the target hears of the election", || epoch(&mut nodes[1]) > before);
    set_debug(&mut nodes[1..2], "PREVENT-FAILOVER", "0");
    wait_until("the migration ends", || {
        ["failed", "success"].contains(&job(&mut nodes[1], "state").as_str())
    });
    assert_eq!(job(&mut nodes[1], "message"), TIMED_OUT);
    assert_eq!(nodes[1].call(&["DBSIZE"]), "0");
    assert_eq!(nodes[0].call(&["DBSIZE"]), "10", "the source has its slots still");
}

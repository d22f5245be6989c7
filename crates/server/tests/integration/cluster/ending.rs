//! Tests primaries of a cluster that end while slots move.

use nix::sys::signal::Signal;

use super::failover::{KEY, weft_with};
use super::wait_until;

/// The slot of [`KEY`].
const SLOT: &str = "3300";

/// Another primary takes the slot over while this one waits for its replica.
#[test]
fn a_primary_that_loses_a_slot_while_it_shuts_down_ends_normally() {
    // The fourth node follows the first.
    let mut nodes = weft_with(4, &["--shutdown-timeout", "100"]);
    assert_eq!(nodes[0].call(&["SET", KEY, "0"]), "OK");
    assert_eq!(nodes[0].call(&["WAIT", "1", "0"]), "1");
    nodes[3].server().signal(Signal::SIGSTOP);
    assert_eq!(nodes[0].call(&["INCR", KEY]), "1");
    nodes[0].server().signal(Signal::SIGTERM);
    wait_until("the shutdown waits for the replica", || {
        nodes[0].call(&["INFO", "server"]).contains("shutdown_in_milliseconds:")
    });
    let second = nodes[1].id.clone();
    nodes[1].call(&["CLUSTER", "BUMPEPOCH"]);
    assert_eq!(nodes[1].call(&["CLUSTER", "SETSLOT", SLOT, "NODE", &second]), "OK");
    let moved = format!("MOVED {SLOT} 127.0.0.1:{}", nodes[1].port);
    wait_until("the first node knows the new owner", || {
        nodes[0].call(&["GET", KEY]) == moved
    });
    nodes[3].server().signal(Signal::SIGCONT);
    assert_eq!(nodes[0].server().wait_for_exit(), Some(0));
    assert_eq!(nodes[1].call(&["GET", KEY]), "-", "SETSLOT moves no keys");
}

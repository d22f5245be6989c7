//! The number of nodes that Valkey's radix tree would have for the blocks of a stream, which XINFO STREAM reports.
//!
//! In Valkey, the first IDs of blocks are keys of 16 bytes. There is one node for the end of every key, one for every
//! branch (a depth at which keys differ), and one for every sequence of bytes between branches that keys share. The
//! byte by which a key leaves a branch belongs to the branch.
//!
//! ```text
//!   keys  abcd  abce  axyz        bytes "a"  ->  branch (b x)  ->  bytes "c"   ->  branch (d e)  ->  2 ends
//!                                                              ->  bytes "yz"  ->  end
//! ```

use super::StreamId;

const KEY_BYTES: u32 = 16;

/// Returns the number of nodes for these keys, which must be ascending.
pub fn node_count(keys: impl Iterator<Item = StreamId>) -> u64 {
    // The depths of the branches on the path to the previous key, in ascending order.
    let mut open: Vec<u32> = Vec::new();
    let mut before: Option<StreamId> = None;
    let mut nodes = 0;
    for key in keys {
        nodes += 1;
        if let Some(before) = before {
            let parting = common_bytes(before, key);
            close_branches(&mut open, KEY_BYTES, parting, &mut nodes);
        }
        before = Some(key);
    }
    match before {
        None => 1,
        Some(_) => {
            close_all_branches(&mut open, &mut nodes);
            nodes
        }
    }
}

/// Closes the branches below `parting` on the path to the last key, and ensures that there is a branch at that depth.
fn close_branches(open: &mut Vec<u32>, mut child: u32, branch_depth: u32, nodes: &mut u64) {
    while let Some(&deepest) = open.last() {
        if deepest < branch_depth {
            break;
        }
        *nodes += nodes_between(deepest, child);
        if deepest == branch_depth {
            return;
        }
        child = deepest;
        open.pop();
    }
    *nodes += 1 + nodes_between(branch_depth, child);
    open.push(branch_depth);
}

fn close_all_branches(open: &mut Vec<u32>, nodes: &mut u64) {
    let mut child = KEY_BYTES;
    while let Some(deepest) = open.pop() {
        *nodes += nodes_between(deepest, child);
        child = deepest;
    }
    *nodes += u64::from(child > 0);
}

/// Returns 1 if there is a node between the branch at depth `parent` and the next node at depth `child`, and 0
/// otherwise.
fn nodes_between(parent: u32, child: u32) -> u64 {
    u64::from(child > parent + 1)
}

fn common_bytes(one: StreamId, other: StreamId) -> u32 {
    let difference = u128::from_be_bytes(one.to_bytes()) ^ u128::from_be_bytes(other.to_bytes());
    difference.leading_zeros() / 8
}

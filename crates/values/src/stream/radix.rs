//! How many nodes Valkey's radix tree would have for a stream's blocks: XINFO STREAM tells that number.
//!
//! There, the first IDs of blocks are keys of 16 bytes. Nodes are: one for every key's end, one for every place where keys
//! part, and one for every stretch of bytes between such places that keys have in common. The byte by which a key leaves
//! a parting place belongs to that place.
//!
//! ```text
//!   keys  abcd  abce  axyz        a stretch "a"  ->  parting (b x)  ->  stretch "c"   ->  parting (d e)  ->  2 ends
//!                                                                   ->  stretch "yz"  ->  end
//! ```

use super::StreamId;

const KEY_BYTES: u32 = 16;

/// The number of nodes for these keys, which ascend.
pub fn node_count(keys: impl Iterator<Item = StreamId>) -> u64 {
    // Depths of the parting places on the way to the key before, ascending.
    let mut open: Vec<u32> = Vec::new();
    let mut before: Option<StreamId> = None;
    let mut nodes = 0;
    for key in keys {
        nodes += 1;
        if let Some(before) = before {
            let parting = common_bytes(before, key);
            close(&mut open, KEY_BYTES, parting, &mut nodes);
        }
        before = Some(key);
    }
    match before {
        None => 1,
        Some(_) => {
            close_all(&mut open, &mut nodes);
            nodes
        }
    }
}

/// Leaves what lies below `parting` on the way to the last key, and makes sure that keys part there.
fn close(open: &mut Vec<u32>, mut child: u32, parting: u32, nodes: &mut u64) {
    while let Some(&deepest) = open.last() {
        if deepest < parting {
            break;
        }
        *nodes += stretch(deepest, child);
        if deepest == parting {
            return;
        }
        child = deepest;
        open.pop();
    }
    *nodes += 1 + stretch(parting, child);
    open.push(parting);
}

fn close_all(open: &mut Vec<u32>, nodes: &mut u64) {
    let mut child = KEY_BYTES;
    while let Some(deepest) = open.pop() {
        *nodes += stretch(deepest, child);
        child = deepest;
    }
    *nodes += u64::from(child > 0);
}

/// Whether there is a node between the parting place at depth `parent` and what is at depth `child`.
fn stretch(parent: u32, child: u32) -> u64 {
    u64::from(child > parent + 1)
}

fn common_bytes(one: StreamId, other: StreamId) -> u32 {
    let difference = u128::from_be_bytes(one.to_bytes()) ^ u128::from_be_bytes(other.to_bytes());
    difference.leading_zeros() / 8
}

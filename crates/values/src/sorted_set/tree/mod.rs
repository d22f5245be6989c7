//! The tree of a large sorted set: a B+tree whose nodes store the number of members below each child.
//!
//! ```text
//!                      +-------------------------------+
//!        node          | children   [  9 |  4 |   7 ]  |   up to 64 children
//!                      | counts     [ 90 | 70 | 128 ]  |   members below each
//!                      | scores     [  1 |  5 |   5 ]  |   the first score below each
//!                      +-----|----------|--------|-----+
//!        leaves, chained  [leaf 9] <-> [leaf 4] <-> [leaf 7]
//!                             ^           ^            ^
//!        index            hash of a member > number of its leaf
//! ```
//!
//! 1. A search by order descends the tree. It compares scores in the nodes; where scores are equal, it compares the
//!    first member of the child's first leaf. The counts to the left of the path add up to the rank.
//! 2. A search by member goes through the index to the leaf. If the rank is needed, it ascends through the parent
//!    numbers.
//! 3. The first score of a child is always exact: an operation that changes the first member of a leaf corrects the
//!    nodes above, as far as this member is the first one below them.
//! 4. A leaf or node that is too large is split in two. One that is less than a quarter full is merged with a neighbour
//!    under the same parent, if the result is at most three quarters full. No leaf is ever empty.
//! 5. If less than half of the numbers of leaves or nodes are used, the last ones are moved to free numbers, so that a
//!    set that has shrunk gives its memory back.

mod balance;
#[cfg(test)]
mod check;
mod node;

use std::ops::Range;

use super::arena::Arena;
use super::index::Index;
use super::leaf::{Leaf, MAX_MEMBERS};
use super::member_hash::{MemberHash, member_hash};
use crate::relocation::{PartCursor, PartMover};
use node::TreeNode;

/// The number that stands for no leaf or node.
pub(super) const NO_NODE: u32 = u32::MAX;
/// The maximum number of children of a node.
const MAX_CHILDREN: usize = 64;
/// The number of leaves and of nodes that the removal of a member may move. One would keep pace with removals of leaves
/// only while half of the leaves are used.
const MAX_MOVES: usize = 2;

/// A position in the order of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// The number of the leaf.
    pub(super) leaf: u32,
    /// The slot in the leaf, or the number of its members if the position is at its end.
    pub(super) slot: usize,
}

/// The tree and the index of its members.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    leaves: Arena<Leaf>,
    nodes: Arena<TreeNode>,
    index: Index,
    root: u32,
    /// The number of nodes on the path from the root to a leaf; 0 if the root is a leaf.
    height: u32,
    first_leaf: u32,
    len: usize,
    /// The number of bytes that leaves and nodes allocate in addition to themselves.
    owned_bytes: usize,
}

impl Tree {
    /// Creates a tree of one leaf.
    pub(super) fn from_leaf(mut leaf: Leaf) -> Self {
        (leaf.parent, leaf.previous, leaf.next) = (NO_NODE, NO_NODE, NO_NODE);
        let mut index = Index::with_capacity(leaf.len());
        for slot in 0..leaf.len() {
            index.insert(member_hash(leaf.member(slot)).prefix(), 0);
        }
        let (len, behind) = (leaf.len(), leaf.allocated_bytes());
        let mut leaves = Arena::new();
        let root = leaves.add(leaf);
        let mut tree = Self {
            leaves,
            nodes: Arena::new(),
            index,
            root,
            height: 0,
            first_leaf: root,
            len,
            owned_bytes: behind,
        };
        tree.split_if_too_large(root, 0);
        tree
    }

    /// Creates a tree of leaves that are in order.
    pub(super) fn from_leaves(leaves: impl ExactSizeIterator<Item = Leaf>, members: usize) -> Self {
        let mut tree = Self {
            leaves: Arena::new(),
            nodes: Arena::new(),
            index: Index::with_capacity(members),
            root: NO_NODE,
            height: 0,
            first_leaf: 0,
            len: members,
            owned_bytes: 0,
        };
        let mut level: Vec<(u32, u32, f64)> = Vec::with_capacity(leaves.len());
        let count = leaves.len() as u32;
        for mut leaf in leaves {
            let number = level.len() as u32;
            leaf.parent = NO_NODE;
            leaf.previous = number.wrapping_sub(1);
            leaf.next = if number + 1 < count { number + 1 } else { NO_NODE };
            for slot in 0..leaf.len() {
                tree.index.insert(member_hash(leaf.member(slot)).prefix(), number);
            }
            tree.owned_bytes += leaf.allocated_bytes();
            level.push((number, leaf.len() as u32, leaf.score(0)));
            let added = tree.leaves.add(leaf);
            debug_assert_eq!(added, number);
        }
        while level.len() > 1 {
            level = tree.build_level_above(&level);
            tree.height += 1;
        }
        tree.root = level.first().map_or(NO_NODE, |(number, ..)| *number);
        tree
    }

    /// Creates the nodes above a level of leaves or nodes, evenly filled.
    fn build_level_above(&mut self, level: &[(u32, u32, f64)]) -> Vec<(u32, u32, f64)> {
        let nodes = level.len().div_ceil(MAX_CHILDREN * 3 / 4);
        let share = level.len().div_ceil(nodes);
        let mut above = Vec::with_capacity(nodes);
        for part in level.chunks(share) {
            let mut node = TreeNode {
                parent: NO_NODE,
                height: self.height,
                ..TreeNode::default()
            };
            let children: Vec<u32> = part.iter().map(|(number, ..)| *number).collect();
            let counts: Vec<u32> = part.iter().map(|(_, count, _)| *count).collect();
            let scores: Vec<f64> = part.iter().map(|(.., score)| *score).collect();
            node.append(&children, &counts, &scores);
            self.owned_bytes += node.allocated_bytes();
            let members = node.members() as u32;
            let number = self.nodes.add(node);
            for child in children {
                self.set_parent(self.height, child, number);
            }
            above.push((number, members, scores[0]));
        }
        above
    }

    /// The number of members.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of leaves.
    pub(super) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the only leaf.
    pub(super) fn into_leaf(mut self) -> Leaf {
        self.leaves.remove(self.first_leaf)
    }

    /// Returns the leaf with this number.
    #[inline]
    pub(super) fn leaf(&self, number: u32) -> &Leaf {
        self.leaves.at(number)
    }

    /// The number of bytes allocated in addition to the tree itself.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.owned_bytes + self.leaves.allocated_bytes() + self.nodes.allocated_bytes() + self.index.allocated_bytes()
    }

    /// Moves the leaves, which are the parts of kind 0, the nodes, of kind 1, and the index.
    pub(super) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        let next = self.leaves.move_parts(0, from, mover, Leaf::move_parts);
        let next = next.or_else(|| self.nodes.move_parts(1, from, mover, TreeNode::move_parts));
        next.or_else(|| self.index.move_parts(2, from, mover))
    }

    /// Returns the position of a member.
    #[inline]
    pub(super) fn find(&self, hash: MemberHash, member: &[u8]) -> Option<TreePosition> {
        self.index.leaves(hash.prefix()).find_map(|number| {
            let slot = self.leaves.at(number).find(hash.tag(), member)?;
            Some(TreePosition { leaf: number, slot })
        })
    }

    /// Returns the address and length of the memory that a search for a member reads first.
    pub(super) fn index_memory(&self, hash: MemberHash) -> (*const u8, usize) {
        self.index.search_memory(hash.prefix())
    }

    /// Returns the first leaf that the index returns for a hash.
    pub(super) fn candidate_leaf(&self, hash: MemberHash) -> Option<&Leaf> {
        self.index
            .leaves(hash.prefix())
            .next()
            .map(|number| self.leaves.at(number))
    }

    /// Returns the number of members before a position.
    pub(super) fn rank_of(&self, place: TreePosition) -> usize {
        let mut rank = place.slot;
        let (mut child, mut parent) = (place.leaf, self.leaves.at(place.leaf).parent);
        while parent != NO_NODE {
            let node = self.nodes.at(parent);
            rank += node.members_before(node.position_of(child));
            (child, parent) = (parent, node.parent);
        }
        rank
    }

    /// Returns the position of a rank, or the end if the rank is too large.
    pub(super) fn position_of_rank(&self, rank: usize) -> TreePosition {
        let mut rest = rank.min(self.len);
        let mut number = self.root;
        for _ in 0..self.height {
            let node = self.nodes.at(number);
            let last = node.children.len() - 1;
            let mut position = 0;
            while position < last && rest >= node.counts[position] as usize {
                rest -= node.counts[position] as usize;
                position += 1;
            }
            number = node.children[position];
        }
        TreePosition {
            leaf: number,
            slot: rest,
        }
    }

    /// Returns the first member below a node or leaf.
    fn first_below(&self, mut number: u32, height: u32) -> &[u8] {
        for _ in 0..height {
            number = self.nodes.at(number).children[0];
        }
        self.leaves.at(number).member(0)
    }

    /// Returns the position of the first member for which `precedes(score, member)` returns `false`, and its rank. It
    /// must return `true` for all members before.
    pub(super) fn partition<'t, P>(&'t self, mut precedes: P) -> (TreePosition, usize)
    where
        P: FnMut(f64, &mut dyn FnMut() -> &'t [u8]) -> bool,
    {
        let (mut number, mut rank) = (self.root, 0);
        for height in (0..self.height).rev() {
            let node = self.nodes.at(number);
            let (mut low, mut high) = (0, node.children.len());
            while low < high {
                let middle = (low + high) / 2;
                let child = node.children[middle];
                if precedes(node.scores[middle], &mut || self.first_below(child, height)) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            let position = low.saturating_sub(1);
            rank += node.members_before(position);
            number = node.children[position];
        }
        let slot = self.leaves.at(number).partition(precedes);
        (TreePosition { leaf: number, slot }, rank + slot)
    }

    /// Inserts a member at a position.
    pub(super) fn insert(&mut self, place: TreePosition, hash: MemberHash, score: f64, member: &[u8]) {
        self.index.insert(hash.prefix(), place.leaf);
        self.change_leaf(place.leaf, |leaf| leaf.insert(place.slot, score, member, hash.tag()));
        self.len += 1;
        self.add_to_counts(place.leaf, 1);
        if place.slot == 0 {
            self.update_first_score(place.leaf);
        }
        self.split_if_too_large(place.leaf, place.slot);
    }

    /// Removes the member at a position.
    pub(super) fn remove(&mut self, place: TreePosition, hash: MemberHash) {
        self.index.remove(hash.prefix(), place.leaf);
        self.change_leaf(place.leaf, |leaf| leaf.remove(place.slot));
        self.finish_removal(place.leaf, 1, place.slot == 0);
        self.compact(MAX_MOVES);
    }

    /// Changes the score of the member at a position if the member certainly stays in the same leaf. Returns `true` if
    /// it did.
    pub(super) fn move_within_leaf(&mut self, place: TreePosition, score: f64) -> bool {
        let leaf = self.leaves.at_mut(place.leaf);
        let Some(to) = slot_within(leaf, place.slot, score) else {
            return false;
        };
        leaf.move_slot(place.slot, to, score);
        if to == 0 || place.slot == 0 {
            self.update_first_score(place.leaf);
        }
        true
    }

    /// Removes the members in a range of ranks.
    pub(super) fn remove_ranks(&mut self, ranks: Range<usize>) {
        let mut rest = ranks.len();
        while rest > 0 {
            let place = self.position_of_rank(ranks.start);
            let leaf = self.leaves.at(place.leaf);
            let end = leaf.len().min(place.slot + rest);
            for slot in place.slot..end {
                let hash = member_hash(leaf.member(slot));
                self.index.remove(hash.prefix(), place.leaf);
            }
            let count = end - place.slot;
            self.change_leaf(place.leaf, |leaf| leaf.remove_range(place.slot..end));
            self.finish_removal(place.leaf, count, place.slot == 0);
            rest -= count;
        }
        // At most twice as many leaves are moved as were removed.
        self.compact(usize::MAX);
    }

    fn change_leaf(&mut self, number: u32, change: impl FnOnce(&mut Leaf)) {
        let leaf = self.leaves.at_mut(number);
        let before = leaf.allocated_bytes();
        change(leaf);
        self.owned_bytes = self.owned_bytes + leaf.allocated_bytes() - before;
    }

    fn change_node<R>(&mut self, number: u32, change: impl FnOnce(&mut TreeNode) -> R) -> R {
        let node = self.nodes.at_mut(number);
        let before = node.allocated_bytes();
        let result = change(node);
        self.owned_bytes = self.owned_bytes + node.allocated_bytes() - before;
        result
    }

    /// Updates the nodes above and balances the leaf after `count` members were removed from it.
    fn finish_removal(&mut self, number: u32, count: usize, first: bool) {
        self.len -= count;
        self.add_to_counts(number, -(count as i64));
        let leaf = self.leaves.at(number);
        if leaf.len() == 0 {
            if self.height > 0 {
                self.remove_leaf(number);
            }
            return;
        }
        if first {
            self.update_first_score(number);
        }
        if self.leaves.at(number).len() < MAX_MEMBERS / 4 {
            self.merge_leaf(number);
        }
    }

    fn add_to_counts(&mut self, leaf: u32, change: i64) {
        let (mut child, mut parent) = (leaf, self.leaves.at(leaf).parent);
        while parent != NO_NODE {
            let node = self.nodes.at_mut(parent);
            let position = node.position_of(child);
            let count = u32::try_from(i64::from(node.counts[position]) + change);
            node.counts[position] = count.expect("a sorted set has fewer than 2^32 members");
            (child, parent) = (parent, node.parent);
        }
    }

    /// Restores rule 3 after the first member of a leaf changed.
    fn update_first_score(&mut self, leaf: u32) {
        let first = self.leaves.at(leaf);
        self.update_first_scores_above(leaf, first.parent, first.score(0));
    }

    /// Restores rule 3 for all nodes above a child whose first score is `score`.
    pub(super) fn update_first_scores_above(&mut self, mut child: u32, mut parent: u32, score: f64) {
        while parent != NO_NODE {
            let node = self.nodes.at_mut(parent);
            let position = node.position_of(child);
            node.scores[position] = score;
            if position > 0 {
                return;
            }
            (child, parent) = (parent, node.parent);
        }
    }

    /// Iterates over the entries of the index from a hash on, as pairs of hash and leaf number.
    pub(super) fn index_entries_from(&self, hash: u32) -> impl Iterator<Item = (u32, u32)> {
        self.index.entries_from(hash)
    }
}

/// Returns the slot of a member after a change of its score, if it certainly stays in the same leaf. This is the case
/// if some member of the leaf stays before it and some member stays after it, or if there is no leaf on the side where
/// none does.
fn slot_within(leaf: &Leaf, slot: usize, score: f64) -> Option<usize> {
    let to = slot_after_change(leaf, slot, score);
    let last = leaf.len() - 1;
    let enters_at_start = to == 0 && leaf.previous != NO_NODE;
    let enters_at_end = to == last && leaf.next != NO_NODE;
    (!(enters_at_start || enters_at_end)).then_some(to)
}

/// Returns the slot of a member in a leaf after a change of its score.
pub(super) fn slot_after_change(leaf: &Leaf, slot: usize, score: f64) -> usize {
    let member = leaf.member(slot);
    let to = leaf.partition(|other_score, other| {
        if other_score == score {
            other() < member
        } else {
            other_score < score
        }
    });
    // The member itself is still at its old slot, with its old score.
    to - usize::from(to > slot)
}

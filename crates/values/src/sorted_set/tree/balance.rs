//! Balancing of the tree (rule 4): large leaves and nodes are split, small ones are merged, empty ones are removed.

use super::node::TreeNode;
use super::{MAX_CHILDREN, NO_NODE, Tree};
use crate::sorted_set::leaf::{Leaf, MAX_BYTES, MAX_MEMBERS};
use crate::sorted_set::member_hash::member_hash;

/// The result of splitting a child that was too large: the new child to its right.
struct SplitChild {
    left: u32,
    right: u32,
    right_count: u32,
    right_score: f64,
    parent: u32,
}

impl Tree {
    pub(super) fn set_parent(&mut self, height: u32, child: u32, parent: u32) {
        if height == 0 {
            self.leaves.at_mut(child).parent = parent;
        } else {
            self.nodes.at_mut(child).parent = parent;
        }
    }

    /// Splits a leaf that is too large. `inserted` is the slot of its newest member.
    pub(super) fn split_if_too_large(&mut self, number: u32, inserted: usize) {
        // If members are long, one split may not be enough.
        let mut inserted = inserted;
        while self.leaves.at(number).is_too_large() {
            let at = self.leaves.at(number).split_slot(inserted);
            let right = self.split_leaf(number, at);
            if self.leaves.at(right).is_too_large() {
                self.split_if_too_large(right, 0);
            }
            inserted = 0;
        }
    }

    fn split_leaf(&mut self, number: u32, at: usize) -> u32 {
        let before = self.leaves.at(number).allocated_bytes();
        let left = self.leaves.at_mut(number);
        let mut right = left.split_off(at);
        let left_bytes = left.allocated_bytes();
        self.owned_bytes = self.owned_bytes + left_bytes + right.allocated_bytes() - before;
        right.previous = number;
        let (parent, next) = (right.parent, right.next);
        let (count, score) = (right.len() as u32, right.score(0));
        let hashes: Vec<u32> = (0..right.len())
            .map(|slot| member_hash(right.member(slot)).prefix())
            .collect();
        let new = self.leaves.add(right);
        self.leaves.at_mut(number).next = new;
        if next != NO_NODE {
            self.leaves.at_mut(next).previous = new;
        }
        for hash in hashes {
            self.index.relocate(hash, number, new);
        }
        self.insert_child(
            0,
            SplitChild {
                left: number,
                right: new,
                right_count: count,
                right_score: score,
                parent,
            },
        );
        new
    }

    /// Inserts the right half of a split leaf (height 0) or node after the left half.
    fn insert_child(&mut self, height: u32, split: SplitChild) {
        if split.parent == NO_NODE {
            self.add_root(height, &split);
            return;
        }
        let SplitChild {
            left,
            right,
            right_count,
            right_score,
            parent,
        } = split;
        let children = self.change_node(parent, |node| {
            let position = node.position_of(left);
            node.counts[position] -= right_count;
            node.insert(position + 1, right, right_count, right_score);
            node.children.len()
        });
        self.set_parent(height, right, parent);
        if children > MAX_CHILDREN {
            self.split_node(parent);
        }
    }

    fn add_root(&mut self, height: u32, split: &SplitChild) {
        let (left_count, left_score) = if height == 0 {
            let leaf = self.leaves.at(split.left);
            (leaf.len(), leaf.score(0))
        } else {
            let node = self.nodes.at(split.left);
            (node.members(), node.scores[0])
        };
        let mut root = TreeNode {
            parent: NO_NODE,
            height,
            ..TreeNode::default()
        };
        root.append(
            &[split.left, split.right],
            &[left_count as u32, split.right_count],
            &[left_score, split.right_score],
        );
        self.owned_bytes += root.allocated_bytes();
        let number = self.nodes.add(root);
        self.set_parent(height, split.left, number);
        self.set_parent(height, split.right, number);
        self.root = number;
        self.height = height + 1;
    }

    fn split_node(&mut self, number: u32) {
        let right = self.change_node(number, |node| node.split_off(node.children.len() / 2));
        self.owned_bytes += right.allocated_bytes();
        let (parent, height) = (right.parent, right.height);
        let (count, score) = (right.members() as u32, right.scores[0]);
        let children = right.children.clone();
        let new = self.nodes.add(right);
        for child in children {
            self.set_parent(height, child, new);
        }
        self.insert_child(
            height + 1,
            SplitChild {
                left: number,
                right: new,
                right_count: count,
                right_score: score,
                parent,
            },
        );
    }

    /// Removes an empty leaf from the tree.
    pub(super) fn remove_leaf(&mut self, number: u32) {
        let leaf = self.leaves.remove(number);
        self.owned_bytes -= leaf.allocated_bytes();
        self.unlink(&leaf);
        self.remove_child(leaf.parent, number);
    }

    fn unlink(&mut self, leaf: &Leaf) {
        match leaf.previous {
            NO_NODE => self.first_leaf = leaf.next,
            previous => self.leaves.at_mut(previous).next = leaf.next,
        }
        if leaf.next != NO_NODE {
            self.leaves.at_mut(leaf.next).previous = leaf.previous;
        }
    }

    /// Removes the entry of a child, which no longer exists, from its node.
    fn remove_child(&mut self, number: u32, child: u32) {
        let (position, left) = self.change_node(number, |node| {
            let position = node.position_of(child);
            node.remove(position);
            (position, node.children.len())
        });
        if left == 0 {
            let node = self.nodes.remove(number);
            self.owned_bytes -= node.allocated_bytes();
            self.remove_child(node.parent, number);
            return;
        }
        if position == 0 {
            let node = self.nodes.at(number);
            self.update_first_scores_above(number, node.parent, node.scores[0]);
        }
        if number == self.root {
            self.shrink_root();
        } else if left < MAX_CHILDREN / 4 {
            self.merge_node(number);
        }
    }

    /// Replaces a root that has only one child by this child.
    fn shrink_root(&mut self) {
        while self.height > 0 && self.nodes.at(self.root).children.len() == 1 {
            let root = self.nodes.remove(self.root);
            self.owned_bytes -= root.allocated_bytes();
            self.root = root.children[0];
            self.height -= 1;
            self.set_parent(self.height, self.root, NO_NODE);
        }
    }

    /// Returns the pairs (left, right) of a child and a neighbour under the same parent: its left neighbour and itself,
    /// then itself and its right neighbour.
    fn neighbour_pairs(&self, parent: u32, child: u32) -> impl Iterator<Item = (u32, u32)> {
        let node = self.nodes.at(parent);
        let position = node.position_of(child);
        let left = position.checked_sub(1).map(|before| (node.children[before], child));
        let right = node.children.get(position + 1).map(|after| (child, *after));
        left.into_iter().chain(right)
    }

    pub(super) fn merge_leaf(&mut self, number: u32) {
        let parent = self.leaves.at(number).parent;
        if parent == NO_NODE {
            return;
        }
        let fits = |(left, right): &(u32, u32)| {
            let (left, right) = (self.leaves.at(*left), self.leaves.at(*right));
            left.len() + right.len() <= MAX_MEMBERS * 3 / 4
                && left.record_bytes() + right.record_bytes() <= MAX_BYTES * 3 / 4
        };
        let Some((left, right)) = self.neighbour_pairs(parent, number).find(fits) else {
            return;
        };
        let gone = self.leaves.remove(right);
        self.owned_bytes -= gone.allocated_bytes();
        self.unlink(&gone);
        for slot in 0..gone.len() {
            let hash = member_hash(gone.member(slot)).prefix();
            self.index.relocate(hash, right, left);
        }
        self.change_leaf(left, |leaf| leaf.append(&gone));
        self.merge_counts(parent, left, right);
        self.remove_child(parent, right);
    }

    fn merge_counts(&mut self, parent: u32, left: u32, right: u32) {
        let node = self.nodes.at_mut(parent);
        let (to, from) = (node.position_of(left), node.position_of(right));
        node.counts[to] += node.counts[from];
        node.counts[from] = 0;
    }

    fn merge_node(&mut self, number: u32) {
        let parent = self.nodes.at(number).parent;
        let fits = |(left, right): &(u32, u32)| {
            self.nodes.at(*left).children.len() + self.nodes.at(*right).children.len() <= MAX_CHILDREN * 3 / 4
        };
        let Some((left, right)) = self.neighbour_pairs(parent, number).find(fits) else {
            return;
        };
        let gone = self.nodes.remove(right);
        self.owned_bytes -= gone.allocated_bytes();
        for child in &gone.children {
            self.set_parent(gone.height, *child, left);
        }
        self.change_node(left, |node| node.append(&gone.children, &gone.counts, &gone.scores));
        self.merge_counts(parent, left, right);
        self.remove_child(parent, right);
    }

    /// Frees memory of leaves and nodes that were removed (rule 5). Moves at most `most` leaves and as many nodes.
    #[inline]
    pub(super) fn compact(&mut self, most: usize) {
        if self.leaves.is_sparse() || self.nodes.is_sparse() {
            self.move_last_ones(most);
        }
    }

    #[cold]
    fn move_last_ones(&mut self, most: usize) {
        for _ in 0..most {
            let Some((from, to)) = self.leaves.move_last() else {
                break;
            };
            self.relink_leaf(from, to);
        }
        for _ in 0..most {
            let Some((from, to)) = self.nodes.move_last() else {
                break;
            };
            self.relink_node(from, to);
        }
    }

    /// Replaces the number of a leaf that was moved wherever it is stored.
    fn relink_leaf(&mut self, from: u32, to: u32) {
        let leaf = self.leaves.at(to);
        let (parent, previous, next) = (leaf.parent, leaf.previous, leaf.next);
        for slot in 0..leaf.len() {
            self.index.relocate(member_hash(leaf.member(slot)).prefix(), from, to);
        }
        match previous {
            NO_NODE => self.first_leaf = to,
            previous => self.leaves.at_mut(previous).next = to,
        }
        if next != NO_NODE {
            self.leaves.at_mut(next).previous = to;
        }
        self.replace_child(parent, from, to);
    }

    /// Replaces the number of a node that was moved wherever it is stored.
    fn relink_node(&mut self, from: u32, to: u32) {
        let node = self.nodes.at(to);
        let (parent, height) = (node.parent, node.height);
        for position in 0..self.nodes.at(to).children.len() {
            let child = self.nodes.at(to).children[position];
            self.set_parent(height, child, to);
        }
        self.replace_child(parent, from, to);
    }

    fn replace_child(&mut self, parent: u32, from: u32, to: u32) {
        if parent == NO_NODE {
            self.root = to;
            return;
        }
        let node = self.nodes.at_mut(parent);
        let position = node.position_of(from);
        node.children[position] = to;
    }
}

//! The tree of a large sorted set: a B+tree whose nodes know how many members are below each child.
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
//! 1. A search by order goes down. It compares scores in the nodes; where scores are equal, it looks at the first member
//!    of the child's first leaf. Counts passed on the left add up to the rank.
//! 2. A search by member goes through the index to the leaf, and climbs by the parents' numbers if the rank is wanted.
//! 3. The first score of a child is exact, always: what changes the first member of a leaf corrects the nodes above it,
//!    as far as it is the first below them.
//! 4. A leaf or node that is too large is split in two; one with less than a quarter is merged with a neighbour under the
//!    same parent, if the two are then no more than three quarters full. No leaf is ever empty.

use std::ops::Range;

use super::arena::Arena;
use super::index::Index;
use super::leaf::{Leaf, MAX_BYTES, MAX_MEMBERS};
use super::member_hash::{MemberHash, member_hash};
use super::room::{allocated, make_room};

/// The number of no leaf or node.
pub(super) const NONE: u32 = u32::MAX;
/// The most children of a node.
const MAX_CHILDREN: usize = 64;

/// A node above leaves or other nodes.
#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<u32>,
    counts: Vec<u32>,
    scores: Vec<f64>,
    parent: u32,
    /// Nodes below it on the way to a leaf.
    height: u32,
}

impl Node {
    fn insert(&mut self, position: usize, child: u32, count: u32, score: f64) {
        make_room(&mut self.children, 1);
        make_room(&mut self.counts, 1);
        make_room(&mut self.scores, 1);
        self.children.insert(position, child);
        self.counts.insert(position, count);
        self.scores.insert(position, score);
    }

    fn remove(&mut self, position: usize) {
        self.children.remove(position);
        self.counts.remove(position);
        self.scores.remove(position);
    }

    fn position_of(&self, child: u32) -> usize {
        let found = self.children.iter().position(|other| *other == child);
        found.expect("a node below another is one of its children")
    }

    fn members(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }

    fn members_before(&self, position: usize) -> usize {
        self.counts[..position].iter().map(|count| *count as usize).sum()
    }

    fn split_off(&mut self, position: usize) -> Self {
        let mut upper = Self {
            parent: self.parent,
            height: self.height,
            ..Self::default()
        };
        upper.append(
            &self.children[position..],
            &self.counts[position..],
            &self.scores[position..],
        );
        self.children.truncate(position);
        self.counts.truncate(position);
        self.scores.truncate(position);
        upper
    }

    fn append(&mut self, children: &[u32], counts: &[u32], scores: &[f64]) {
        make_room(&mut self.children, children.len());
        make_room(&mut self.counts, children.len());
        make_room(&mut self.scores, children.len());
        self.children.extend_from_slice(children);
        self.counts.extend_from_slice(counts);
        self.scores.extend_from_slice(scores);
    }

    fn allocated_bytes(&self) -> usize {
        allocated(&self.children) + allocated(&self.counts) + allocated(&self.scores)
    }
}

/// A place in the order of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The leaf.
    pub(super) leaf: u32,
    /// The slot in it; one behind the last if the place is at its end.
    pub(super) slot: usize,
}

/// A child that is too large was split: what stands to its right now.
struct Split {
    left: u32,
    right: u32,
    right_count: u32,
    right_score: f64,
    parent: u32,
}

/// The tree and the index of its members.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    leaves: Arena<Leaf>,
    nodes: Arena<Node>,
    index: Index,
    root: u32,
    /// Nodes on the way from the root to a leaf; 0 if the root is a leaf.
    height: u32,
    first_leaf: u32,
    len: usize,
    /// Bytes behind leaves and nodes.
    behind: usize,
}

impl Tree {
    /// A tree of one leaf.
    pub(super) fn of_leaf(mut leaf: Leaf) -> Self {
        (leaf.parent, leaf.previous, leaf.next) = (NONE, NONE, NONE);
        let mut index = Index::with_room(leaf.len());
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
            behind,
        };
        tree.split_if_too_large(root, 0);
        tree
    }

    /// A tree of leaves that are in order.
    pub(super) fn of_leaves(leaves: impl ExactSizeIterator<Item = Leaf>, members: usize) -> Self {
        let mut tree = Self {
            leaves: Arena::new(),
            nodes: Arena::new(),
            index: Index::with_room(members),
            root: NONE,
            height: 0,
            first_leaf: 0,
            len: members,
            behind: 0,
        };
        let mut level: Vec<(u32, u32, f64)> = Vec::with_capacity(leaves.len());
        let count = leaves.len() as u32;
        for mut leaf in leaves {
            let number = level.len() as u32;
            leaf.parent = NONE;
            leaf.previous = number.wrapping_sub(1);
            leaf.next = if number + 1 < count { number + 1 } else { NONE };
            for slot in 0..leaf.len() {
                tree.index.insert(member_hash(leaf.member(slot)).prefix(), number);
            }
            tree.behind += leaf.allocated_bytes();
            level.push((number, leaf.len() as u32, leaf.score(0)));
            let added = tree.leaves.add(leaf);
            debug_assert_eq!(added, number);
        }
        while level.len() > 1 {
            level = tree.level_above(&level);
            tree.height += 1;
        }
        tree.root = level.first().map_or(NONE, |(number, ..)| *number);
        tree
    }

    /// Nodes above a level of leaves or nodes, evenly filled.
    fn level_above(&mut self, level: &[(u32, u32, f64)]) -> Vec<(u32, u32, f64)> {
        let nodes = level.len().div_ceil(MAX_CHILDREN * 3 / 4);
        let share = level.len().div_ceil(nodes);
        let mut above = Vec::with_capacity(nodes);
        for part in level.chunks(share) {
            let mut node = Node {
                parent: NONE,
                height: self.height,
                ..Node::default()
            };
            let children: Vec<u32> = part.iter().map(|(number, ..)| *number).collect();
            let counts: Vec<u32> = part.iter().map(|(_, count, _)| *count).collect();
            let scores: Vec<f64> = part.iter().map(|(.., score)| *score).collect();
            node.append(&children, &counts, &scores);
            self.behind += node.allocated_bytes();
            let members = node.members() as u32;
            let number = self.nodes.add(node);
            for child in children {
                self.set_parent(self.height, child, number);
            }
            above.push((number, members, scores[0]));
        }
        above
    }

    /// How many members there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many leaves there are.
    pub(super) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// The only leaf.
    pub(super) fn into_leaf(mut self) -> Leaf {
        self.leaves.take(self.first_leaf)
    }

    /// A leaf.
    #[inline]
    pub(super) fn leaf(&self, number: u32) -> &Leaf {
        self.leaves.at(number)
    }

    /// Bytes that the tree takes from the allocator behind itself.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.behind + self.leaves.allocated_bytes() + self.nodes.allocated_bytes() + self.index.allocated_bytes()
    }

    /// Where a member is.
    #[inline]
    pub(super) fn find(&self, hash: MemberHash, member: &[u8]) -> Option<Place> {
        self.index.leaves(hash.prefix()).find_map(|number| {
            let slot = self.leaves.at(number).find(hash.tag(), member)?;
            Some(Place { leaf: number, slot })
        })
    }

    /// Members before a place.
    pub(super) fn rank_of(&self, place: Place) -> usize {
        let mut rank = place.slot;
        let (mut child, mut parent) = (place.leaf, self.leaves.at(place.leaf).parent);
        while parent != NONE {
            let node = self.nodes.at(parent);
            rank += node.members_before(node.position_of(child));
            (child, parent) = (parent, node.parent);
        }
        rank
    }

    /// The place of a rank; the end for one too large.
    pub(super) fn place_of_rank(&self, rank: usize) -> Place {
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
        Place {
            leaf: number,
            slot: rest,
        }
    }

    /// The first member below a node or leaf.
    fn first_below(&self, mut number: u32, height: u32) -> &[u8] {
        for _ in 0..height {
            number = self.nodes.at(number).children[0];
        }
        self.leaves.at(number).member(0)
    }

    /// The place of the first member for which `precedes(score, member)` does not hold, and its rank. It must hold for
    /// all members before that one.
    pub(super) fn partition<'t, P>(&'t self, mut precedes: P) -> (Place, usize)
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
        (Place { leaf: number, slot }, rank + slot)
    }

    /// Puts a member in at its place.
    pub(super) fn insert(&mut self, place: Place, hash: MemberHash, score: f64, member: &[u8]) {
        self.index.insert(hash.prefix(), place.leaf);
        self.change_leaf(place.leaf, |leaf| leaf.insert(place.slot, score, member, hash.tag()));
        self.len += 1;
        self.add_to_counts(place.leaf, 1);
        if place.slot == 0 {
            self.correct_first(place.leaf);
        }
        self.split_if_too_large(place.leaf, place.slot);
    }

    /// Takes the member at a place out.
    pub(super) fn remove(&mut self, place: Place, hash: MemberHash) {
        self.index.remove(hash.prefix(), place.leaf);
        self.change_leaf(place.leaf, |leaf| leaf.remove(place.slot));
        self.removed(place.leaf, 1, place.slot == 0);
    }

    /// Changes the score of the member at a place if it stays within its leaf, neither first nor last.
    pub(super) fn move_within_leaf(&mut self, place: Place, score: f64) -> bool {
        let leaf = self.leaves.at_mut(place.leaf);
        let Some(to) = slot_within(leaf, place.slot, score) else {
            return false;
        };
        leaf.move_slot(place.slot, to, score);
        if to == 0 || place.slot == 0 {
            self.correct_first(place.leaf);
        }
        true
    }

    /// Takes the members of a range of ranks out.
    pub(super) fn remove_ranks(&mut self, ranks: Range<usize>) {
        let mut rest = ranks.len();
        while rest > 0 {
            let place = self.place_of_rank(ranks.start);
            let leaf = self.leaves.at(place.leaf);
            let end = leaf.len().min(place.slot + rest);
            for slot in place.slot..end {
                let hash = member_hash(leaf.member(slot));
                self.index.remove(hash.prefix(), place.leaf);
            }
            let count = end - place.slot;
            self.change_leaf(place.leaf, |leaf| leaf.remove_range(place.slot..end));
            self.removed(place.leaf, count, place.slot == 0);
            rest -= count;
        }
    }

    fn change_leaf(&mut self, number: u32, change: impl FnOnce(&mut Leaf)) {
        let leaf = self.leaves.at_mut(number);
        let before = leaf.allocated_bytes();
        change(leaf);
        self.behind = self.behind + leaf.allocated_bytes() - before;
    }

    fn change_node<R>(&mut self, number: u32, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = self.nodes.at_mut(number);
        let before = node.allocated_bytes();
        let result = change(node);
        self.behind = self.behind + node.allocated_bytes() - before;
        result
    }

    /// Settles what the removal of `count` members from a leaf means for the nodes above and for the leaf.
    fn removed(&mut self, number: u32, count: usize, first: bool) {
        self.len -= count;
        self.add_to_counts(number, -(count as i64));
        let leaf = self.leaves.at(number);
        if leaf.len() == 0 {
            if self.height > 0 {
                self.drop_leaf(number);
            }
            return;
        }
        if first {
            self.correct_first(number);
        }
        if self.leaves.at(number).len() < MAX_MEMBERS / 4 {
            self.merge_leaf(number);
        }
    }

    fn add_to_counts(&mut self, leaf: u32, change: i64) {
        let (mut child, mut parent) = (leaf, self.leaves.at(leaf).parent);
        while parent != NONE {
            let node = self.nodes.at_mut(parent);
            let position = node.position_of(child);
            let count = u32::try_from(i64::from(node.counts[position]) + change);
            node.counts[position] = count.expect("a sorted set has fewer than 2^32 members");
            (child, parent) = (parent, node.parent);
        }
    }

    /// Rule 3, after the first member of a leaf changed.
    fn correct_first(&mut self, leaf: u32) {
        let score = self.leaves.at(leaf).score(0);
        let (mut child, mut parent) = (leaf, self.leaves.at(leaf).parent);
        while parent != NONE {
            let node = self.nodes.at_mut(parent);
            let position = node.position_of(child);
            node.scores[position] = score;
            if position > 0 {
                return;
            }
            (child, parent) = (parent, node.parent);
        }
    }

    fn set_parent(&mut self, height: u32, child: u32, parent: u32) {
        if height == 0 {
            self.leaves.at_mut(child).parent = parent;
        } else {
            self.nodes.at_mut(child).parent = parent;
        }
    }

    /// Splits a leaf that is too large; `inserted` is the slot of its newest member.
    fn split_if_too_large(&mut self, number: u32, inserted: usize) {
        // Where members are long, one split may not do.
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
        self.behind = self.behind + left_bytes + right.allocated_bytes() - before;
        right.previous = number;
        let (parent, next) = (right.parent, right.next);
        let (count, score) = (right.len() as u32, right.score(0));
        let hashes: Vec<u32> = (0..right.len())
            .map(|slot| member_hash(right.member(slot)).prefix())
            .collect();
        let new = self.leaves.add(right);
        self.leaves.at_mut(number).next = new;
        if next != NONE {
            self.leaves.at_mut(next).previous = new;
        }
        for hash in hashes {
            self.index.relocate(hash, number, new);
        }
        self.insert_child(
            0,
            Split {
                left: number,
                right: new,
                right_count: count,
                right_score: score,
                parent,
            },
        );
        new
    }

    /// Puts the right half of a split leaf (height 0) or node beside the left one.
    fn insert_child(&mut self, height: u32, split: Split) {
        if split.parent == NONE {
            self.add_root(height, &split);
            return;
        }
        let Split {
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

    fn add_root(&mut self, height: u32, split: &Split) {
        let (left_count, left_score) = if height == 0 {
            let leaf = self.leaves.at(split.left);
            (leaf.len(), leaf.score(0))
        } else {
            let node = self.nodes.at(split.left);
            (node.members(), node.scores[0])
        };
        let mut root = Node {
            parent: NONE,
            height,
            ..Node::default()
        };
        root.append(
            &[split.left, split.right],
            &[left_count as u32, split.right_count],
            &[left_score, split.right_score],
        );
        self.behind += root.allocated_bytes();
        let number = self.nodes.add(root);
        self.set_parent(height, split.left, number);
        self.set_parent(height, split.right, number);
        self.root = number;
        self.height = height + 1;
    }

    fn split_node(&mut self, number: u32) {
        let right = self.change_node(number, |node| node.split_off(node.children.len() / 2));
        self.behind += right.allocated_bytes();
        let (parent, height) = (right.parent, right.height);
        let (count, score) = (right.members() as u32, right.scores[0]);
        let children = right.children.clone();
        let new = self.nodes.add(right);
        for child in children {
            self.set_parent(height, child, new);
        }
        self.insert_child(
            height + 1,
            Split {
                left: number,
                right: new,
                right_count: count,
                right_score: score,
                parent,
            },
        );
    }

    /// Takes an empty leaf out of the tree.
    fn drop_leaf(&mut self, number: u32) {
        let leaf = self.leaves.take(number);
        self.behind -= leaf.allocated_bytes();
        self.unchain(&leaf);
        self.drop_child(leaf.parent, number);
    }

    fn unchain(&mut self, leaf: &Leaf) {
        match leaf.previous {
            NONE => self.first_leaf = leaf.next,
            previous => self.leaves.at_mut(previous).next = leaf.next,
        }
        if leaf.next != NONE {
            self.leaves.at_mut(leaf.next).previous = leaf.previous;
        }
    }

    /// Takes a child, which is gone already, out of its node.
    fn drop_child(&mut self, number: u32, child: u32) {
        let (position, left) = self.change_node(number, |node| {
            let position = node.position_of(child);
            node.remove(position);
            (position, node.children.len())
        });
        if left == 0 {
            let node = self.nodes.take(number);
            self.behind -= node.allocated_bytes();
            self.drop_child(node.parent, number);
            return;
        }
        if position == 0 {
            self.correct_node(number);
        }
        if number == self.root {
            self.lower_root();
        } else if left < MAX_CHILDREN / 4 {
            self.merge_node(number);
        }
    }

    /// Rule 3, after the first child of a node changed.
    fn correct_node(&mut self, number: u32) {
        let node = self.nodes.at(number);
        let score = node.scores[0];
        let (mut child, mut parent) = (number, node.parent);
        while parent != NONE {
            let node = self.nodes.at_mut(parent);
            let position = node.position_of(child);
            node.scores[position] = score;
            if position > 0 {
                return;
            }
            (child, parent) = (parent, node.parent);
        }
    }

    /// A root with one child gives way to it.
    fn lower_root(&mut self) {
        while self.height > 0 && self.nodes.at(self.root).children.len() == 1 {
            let root = self.nodes.take(self.root);
            self.behind -= root.allocated_bytes();
            self.root = root.children[0];
            self.height -= 1;
            self.set_parent(self.height, self.root, NONE);
        }
    }

    /// The neighbours of a child under the same parent, as (left, right): its left one and itself, or itself and its right.
    fn pairs(&self, parent: u32, child: u32) -> impl Iterator<Item = (u32, u32)> {
        let node = self.nodes.at(parent);
        let position = node.position_of(child);
        let left = position.checked_sub(1).map(|before| (node.children[before], child));
        let right = node.children.get(position + 1).map(|after| (child, *after));
        left.into_iter().chain(right)
    }

    fn merge_leaf(&mut self, number: u32) {
        let parent = self.leaves.at(number).parent;
        if parent == NONE {
            return;
        }
        let fits = |(left, right): &(u32, u32)| {
            let (left, right) = (self.leaves.at(*left), self.leaves.at(*right));
            left.len() + right.len() <= MAX_MEMBERS * 3 / 4
                && left.record_bytes() + right.record_bytes() <= MAX_BYTES * 3 / 4
        };
        let Some((left, right)) = self.pairs(parent, number).find(fits) else {
            return;
        };
        let gone = self.leaves.take(right);
        self.behind -= gone.allocated_bytes();
        self.unchain(&gone);
        for slot in 0..gone.len() {
            let hash = member_hash(gone.member(slot)).prefix();
            self.index.relocate(hash, right, left);
        }
        self.change_leaf(left, |leaf| leaf.append(&gone));
        self.hand_over_count(parent, left, right);
        self.drop_child(parent, right);
    }

    fn hand_over_count(&mut self, parent: u32, left: u32, right: u32) {
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
        let Some((left, right)) = self.pairs(parent, number).find(fits) else {
            return;
        };
        let gone = self.nodes.take(right);
        self.behind -= gone.allocated_bytes();
        for child in &gone.children {
            self.set_parent(gone.height, *child, left);
        }
        self.change_node(left, |node| node.append(&gone.children, &gone.counts, &gone.scores));
        self.hand_over_count(parent, left, right);
        self.drop_child(parent, right);
    }

    /// Entries of the index from a hash on, as hash and leaf.
    pub(super) fn index_entries_from(&self, hash: u32) -> impl Iterator<Item = (u32, u32)> {
        self.index.entries_from(hash)
    }
}

/// The slot of a member after its score changed, if it is sure to be in the same leaf: where some member of the leaf
/// stays before it and some behind it, or where it does not move at all.
fn slot_within(leaf: &Leaf, slot: usize, score: f64) -> Option<usize> {
    let to = slot_after_change(leaf, slot, score);
    let last = leaf.len() - 1;
    let enters_at_start = to == 0 && leaf.previous != NONE;
    let enters_at_end = to == last && leaf.next != NONE;
    (!(enters_at_start || enters_at_end)).then_some(to)
}

/// The slot of a member in a leaf after its score changed.
pub(super) fn slot_after_change(leaf: &Leaf, slot: usize, score: f64) -> usize {
    let member = leaf.member(slot);
    let to = leaf.partition(|other_score, other| {
        if other_score == score {
            other() < member
        } else {
            other_score < score
        }
    });
    // The member itself still stands where it was, with its old score.
    to - usize::from(to > slot)
}

#[cfg(test)]
impl Tree {
    /// Checks every rule.
    pub(super) fn check(&self) {
        let mut leaves = Vec::new();
        let (members, _) = self.check_below(self.root, self.height, NONE, &mut leaves);
        assert_eq!(members, self.len);
        let mut chained = Vec::new();
        let (mut number, mut previous) = (self.first_leaf, NONE);
        let mut behind = 0;
        while number != NONE {
            let leaf = self.leaves.at(number);
            assert_eq!(leaf.previous, previous);
            behind += leaf.allocated_bytes();
            for slot in 0..leaf.len() {
                let hash = member_hash(leaf.member(slot));
                assert_eq!(self.find(hash, leaf.member(slot)), Some(Place { leaf: number, slot }));
            }
            chained.push(number);
            (previous, number) = (number, leaf.next);
        }
        assert_eq!(chained, leaves);
        assert_eq!(self.leaves.len(), leaves.len());
        assert_eq!(self.index.entries_from(0).count(), self.len);
        let nodes: usize = (0..).map_while(|number| self.node_bytes(number)).sum();
        assert_eq!(behind + nodes, self.behind);
    }

    fn node_bytes(&self, number: u32) -> Option<usize> {
        // Free places have empty nodes.
        self.nodes.checked_at(number).map(Node::allocated_bytes)
    }

    fn check_below(&self, number: u32, height: u32, parent: u32, leaves: &mut Vec<u32>) -> (usize, f64) {
        if height == 0 {
            let leaf = self.leaves.at(number);
            assert_eq!(leaf.parent, parent);
            assert!(leaf.len() > 0 || self.len == 0);
            assert!(!leaf.is_too_large());
            leaves.push(number);
            return (leaf.len(), leaf.score(0));
        }
        let node = self.nodes.at(number);
        assert_eq!((node.parent, node.height), (parent, height - 1));
        assert!(node.children.len() <= MAX_CHILDREN);
        let mut sum = 0;
        for (position, child) in node.children.iter().enumerate() {
            let (members, score) = self.check_below(*child, height - 1, number, leaves);
            assert_eq!(members, node.counts[position] as usize);
            assert_eq!(score, node.scores[position]);
            sum += members;
        }
        (sum, node.scores[0])
    }
}

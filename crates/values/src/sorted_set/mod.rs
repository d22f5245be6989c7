//! Sorted sets: members ordered by score, and by their bytes where scores are equal.
//!
//! There are three forms for different sizes. [`packed`] bytes are stored in the table entry. A [`SortedSet`] of up to
//! 128 members is one [leaf]. A larger one is a [tree] of leaves with an [index] that finds the leaf of a member. Every
//! search by rank, score or member returns ranks, and every range is then iterated leaf by leaf, where each leaf is
//! contiguous.

mod arena;
mod draft;
mod gathering;
mod index;
mod leaf;
mod member_hash;
pub mod packed;
mod range;
mod room;
mod tree;
mod view;

pub use draft::{DetachedSortedSet, SortedSetLimits, UpsertOutcome};
pub use gathering::MemberBuilder;
pub use range::{LexEnd, LexRange, ScoreRange};
pub use view::{SortedSetIter, SortedSetView};

use std::ops::Range;

use crate::listpack::DECIMAL_MAX_BYTES;
use crate::relocation::{PartCursor, PartMover};
use leaf::{Leaf, MAX_BYTES, MAX_MEMBERS, ScoreOrder};
use member_hash::{MemberHash, member_hash, tag_of};
use packed::PackedSortedSet;
use tree::{NO_NODE, Tree, TreePosition, slot_after_change};

/// The maximum length of a member in bytes. Leaves store the size of their contents in 32 bits.
pub const MAX_MEMBER_BYTES: usize = 1 << 30;
/// The number of members per leaf when a tree is built from sorted members.
const BULK_LEAF_MEMBERS: usize = MAX_MEMBERS * 3 / 4;

/// The encoding that Valkey would report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortedSetEncoding {
    /// A small set that is nevertheless too large to be packed in Weft.
    Listpack,
    /// Any other set.
    Skiplist,
}

#[derive(Clone, Debug)]
enum Body {
    Leaf(Box<Leaf>),
    Tree(Box<Tree>),
}

/// A sorted set that is not packed.
#[derive(Clone, Debug)]
pub struct SortedSet {
    body: Body,
    encoding: SortedSetEncoding,
}

impl SortedSet {
    /// Creates an empty sorted set.
    pub fn new(encoding: SortedSetEncoding) -> Self {
        Self::from_leaf(Leaf::with_capacity(0, 0), encoding)
    }

    fn from_leaf(mut leaf: Leaf, encoding: SortedSetEncoding) -> Self {
        (leaf.parent, leaf.previous, leaf.next) = (NO_NODE, NO_NODE, NO_NODE);
        Self {
            body: Body::Leaf(Box::new(leaf)),
            encoding,
        }
    }

    /// Creates a sorted set with the members of a packed one.
    pub fn from_packed(packed: PackedSortedSet<'_>, encoding: SortedSetEncoding) -> Self {
        let mut set = Self::new(encoding);
        let mut scratch = [0; DECIMAL_MAX_BYTES];
        for (member, score) in packed.iter_ranks(0..packed.len(), false) {
            set.insert(member.text(&mut scratch), score);
        }
        set
    }

    /// Creates a sorted set from distinct members that are sorted by score and then by their bytes.
    pub fn from_sorted(members: &[(&[u8], f64)], encoding: SortedSetEncoding) -> Self {
        debug_assert!(members.is_sorted_by(|a, b| { a.1.cmp_score(b.1).then_with(|| a.0.cmp(b.0)).is_lt() }));
        let mut leaves = Vec::with_capacity(members.len() / BULK_LEAF_MEMBERS + 1);
        let mut rest = members;
        let most = if members.len() <= MAX_MEMBERS {
            MAX_MEMBERS
        } else {
            BULK_LEAF_MEMBERS
        };
        while !rest.is_empty() {
            let mut bytes = 0;
            let fitting = rest.iter().take(most).take_while(|(member, _)| {
                bytes += member.len() + 5;
                bytes <= MAX_BYTES
            });
            let (part, behind) = rest.split_at(fitting.count().max(1));
            leaves.push(leaf_of(part, encoding));
            rest = behind;
        }
        if leaves.len() <= 1 {
            return Self::from_leaf(leaves.pop().unwrap_or_default(), encoding);
        }
        let tree = Tree::from_leaves(leaves.into_iter(), members.len());
        Self {
            body: Body::Tree(Box::new(tree)),
            encoding,
        }
    }

    /// The encoding that Valkey would report.
    pub fn encoding(&self) -> SortedSetEncoding {
        self.encoding
    }

    /// The name of the encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        match self.encoding {
            SortedSetEncoding::Listpack => "listpack",
            SortedSetEncoding::Skiplist => "skiplist",
        }
    }

    /// Prepares for a set of `members` members, or for the addition of as many, where the longest has `longest_bytes`
    /// bytes. If the limits of a listpack do not admit these, the set no longer reports the listpack encoding.
    #[inline]
    pub fn prepare_for_members(&mut self, members: usize, longest_bytes: usize, limits: SortedSetLimits) {
        if self.encoding == SortedSetEncoding::Listpack && !limits.admits(members, longest_bytes) {
            self.encoding = SortedSetEncoding::Skiplist;
        }
    }

    /// Moves the leaf, or the tree; see [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        match &mut self.body {
            Body::Leaf(leaf) => {
                mover.boxed(leaf);
                leaf.move_parts(mover);
                None
            }
            Body::Tree(tree) => {
                if from == PartCursor::default() {
                    mover.boxed(tree);
                }
                tree.move_parts(from, mover)
            }
        }
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => size_of::<Leaf>() + leaf.allocated_bytes(),
            Body::Tree(tree) => size_of::<Tree>() + tree.allocated_bytes(),
        }
    }

    /// The number of members.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.len(),
            Body::Tree(tree) => tree.len(),
        }
    }

    /// Returns `true` if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn find(&self, hash: MemberHash, member: &[u8]) -> Option<TreePosition> {
        match &self.body {
            Body::Leaf(leaf) => leaf
                .find(hash.tag(), member)
                .map(|slot| TreePosition { leaf: NO_NODE, slot }),
            Body::Tree(tree) => tree.find(hash, member),
        }
    }

    #[inline]
    fn leaf_at(&self, place: TreePosition) -> &Leaf {
        match &self.body {
            Body::Leaf(leaf) => leaf,
            Body::Tree(tree) => tree.leaf(place.leaf),
        }
    }

    /// Returns the score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        let place = self.find(member_hash(member), member)?;
        Some(self.leaf_at(place).score(place.slot))
    }

    /// Returns the rank of a member and its score.
    #[inline]
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        let place = self.find(member_hash(member), member)?;
        let rank = match &self.body {
            Body::Leaf(_) => place.slot,
            Body::Tree(tree) => tree.rank_of(place),
        };
        Some((rank, self.leaf_at(place).score(place.slot)))
    }

    /// Returns the address and length of the memory that a search for a member with this hash reads first, apart from
    /// the set itself. The caller prefetches it together with that of other searches.
    pub fn index_memory(&self, hash: u64) -> (*const u8, usize) {
        match &self.body {
            Body::Leaf(leaf) => (std::ptr::from_ref(&**leaf).cast(), size_of::<Leaf>()),
            Body::Tree(tree) => tree.index_memory(member_hash::of_hash(hash)),
        }
    }

    /// Returns the memory that a search reads next. It should be called once the memory of [`Self::index_memory`] is in
    /// the cache.
    pub fn leaf_memory(&self, hash: u64) -> Option<&[u8]> {
        let leaf = match &self.body {
            Body::Leaf(leaf) => Some(&**leaf),
            Body::Tree(tree) => tree.candidate_leaf(member_hash::of_hash(hash)),
        };
        leaf.map(Leaf::tags)
    }

    /// Returns the position of the first member for which `precedes(score, member)` returns `false`, and its rank.
    #[inline]
    fn partition<'s, P>(&'s self, precedes: P) -> (TreePosition, usize)
    where
        P: FnMut(f64, &mut dyn FnMut() -> &'s [u8]) -> bool,
    {
        match &self.body {
            Body::Leaf(leaf) => {
                let slot = leaf.partition(precedes);
                (TreePosition { leaf: NO_NODE, slot }, slot)
            }
            Body::Tree(tree) => tree.partition(precedes),
        }
    }

    /// Returns the ranks of the members whose scores are in a range.
    pub fn ranks_of_scores(&self, range: &ScoreRange) -> Range<usize> {
        let (_, start) = self.partition(|score, _| range.is_before_start(score));
        let (_, end) = self.partition(|score, _| range.is_before_end(score));
        start..end.max(start)
    }

    /// Returns the ranks of the members in a range. The result is only meaningful if all members have the same score.
    pub fn ranks_of_lex(&self, range: &LexRange<'_>) -> Range<usize> {
        let (_, start) = self.partition(|_, member| range.is_before_start(member()));
        let (_, end) = self.partition(|_, member| range.is_before_end(member()));
        start..end.max(start)
    }

    /// Iterates over the members in a range of ranks with their scores, in ascending order or, with `reverse`, in
    /// descending order.
    pub fn iter_ranks(&self, ranks: Range<usize>, reverse: bool) -> LargeSortedSetIter<'_> {
        let ranks = ranks.start.min(self.len())..ranks.end.min(self.len());
        let first = if reverse {
            ranks.end.saturating_sub(1)
        } else {
            ranks.start
        };
        let (tree, leaf, slot) = match &self.body {
            Body::Leaf(leaf) => (None, &**leaf, first),
            Body::Tree(tree) => {
                let place = tree.position_of_rank(first);
                (Some(&**tree), tree.leaf(place.leaf), place.slot)
            }
        };
        LargeSortedSetIter {
            tree,
            leaf,
            slot,
            left: ranks.len(),
            reverse,
        }
    }

    /// Adds a member that is not present yet.
    pub fn insert(&mut self, member: &[u8], score: f64) {
        self.insert_hashed(member_hash(member), member, score);
    }

    fn insert_hashed(&mut self, hash: MemberHash, member: &[u8], score: f64) {
        let (place, _) = self.partition(|other_score, other| {
            let order = other_score.cmp_score(score);
            order.then_with(|| other().cmp(member)).is_lt()
        });
        match &mut self.body {
            Body::Tree(tree) => tree.insert(place, hash, score, member),
            Body::Leaf(leaf) => {
                leaf.insert(place.slot, score, member, hash.tag());
                if leaf.is_too_large() {
                    self.body = Body::Tree(Box::new(Tree::from_leaf(std::mem::take(leaf))));
                }
            }
        }
    }

    /// Adds a member or changes its score. `decide` receives the current score if the member is present, and returns
    /// the new score, or `None` to change nothing.
    pub fn upsert(
        &mut self,
        member: &[u8],
        limits: SortedSetLimits,
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> UpsertOutcome {
        let hash = member_hash(member);
        let found = self.find(hash, member);
        let before = found.map(|place| self.leaf_at(place).score(place.slot));
        let Some(mut score) = decide(before) else {
            return UpsertOutcome::Unchanged;
        };
        if self.encoding == SortedSetEncoding::Listpack {
            // A listpack does not distinguish -0 from 0.
            score += 0.0;
        }
        match found {
            None => {
                self.prepare_for_members(self.len() + 1, member.len(), limits);
                self.insert_hashed(hash, member, score);
                UpsertOutcome::Added
            }
            Some(_) if before == Some(score) => UpsertOutcome::Unchanged,
            Some(place) => {
                self.change_score(place, hash, member, score);
                UpsertOutcome::Changed
            }
        }
    }

    fn change_score(&mut self, place: TreePosition, hash: MemberHash, member: &[u8], score: f64) {
        match &mut self.body {
            Body::Leaf(leaf) => {
                let to = slot_after_change(leaf, place.slot, score);
                leaf.move_slot(place.slot, to, score);
            }
            Body::Tree(tree) => {
                if !tree.move_within_leaf(place, score) {
                    self.remove_at(place, hash);
                    self.insert_hashed(hash, member, score);
                }
            }
        }
    }

    fn remove_at(&mut self, place: TreePosition, hash: MemberHash) {
        match &mut self.body {
            Body::Leaf(leaf) => leaf.remove(place.slot),
            Body::Tree(tree) => {
                tree.remove(place, hash);
                self.collapse_single_leaf_tree();
            }
        }
    }

    /// Converts a tree of a single leaf to a leaf.
    fn collapse_single_leaf_tree(&mut self) {
        if let Body::Tree(tree) = &mut self.body
            && tree.leaf_count() == 1
        {
            let tree = std::mem::replace(&mut **tree, Tree::from_leaf(Leaf::default()));
            *self = Self::from_leaf(tree.into_leaf(), self.encoding);
        }
    }

    /// Removes a member. Returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let hash = member_hash(member);
        let place = self.find(hash, member)?;
        let score = self.leaf_at(place).score(place.slot);
        self.remove_at(place, hash);
        Some(score)
    }

    /// Removes the members in a range of ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        match &mut self.body {
            Body::Leaf(leaf) => leaf.remove_range(ranks),
            Body::Tree(tree) => {
                tree.remove_ranks(ranks);
                self.collapse_single_leaf_tree();
            }
        }
    }

    /// Calls `visit` for members from a cursor on (0 at first), for `count` of them or somewhat more. Returns the next
    /// cursor, which is 0 at the end.
    ///
    /// Members are shown in the order of their hashes, which growth does not change. So a member that is present from
    /// the first call to the last is shown. A set with the listpack encoding is shown in one call.
    pub fn scan<'s>(&'s self, cursor: u64, count: usize, mut visit: impl FnMut(&'s [u8], f64)) -> u64 {
        if self.encoding == SortedSetEncoding::Listpack {
            self.iter_ranks(0..self.len(), false)
                .for_each(|(member, score)| visit(member, score));
            return 0;
        }
        let Ok(from) = u32::try_from(cursor) else {
            return 0;
        };
        let tree = match &self.body {
            Body::Leaf(leaf) => return leaf.scan(from, count, visit),
            Body::Tree(tree) => tree,
        };
        let mut shown = 0;
        let mut last = None;
        for (hash, number) in tree.index_entries_from(from) {
            if last == Some((hash, number)) {
                // Two members of the same leaf with the same hash were shown together.
                continue;
            }
            if shown >= count && last.is_some_and(|(before, _)| before != hash) {
                return u64::from(hash);
            }
            let leaf = tree.leaf(number);
            for slot in leaf.slots_of_tag(tag_of(hash)) {
                if member_hash(leaf.member(slot)).prefix() == hash {
                    visit(leaf.member(slot), leaf.score(slot));
                    shown += 1;
                }
            }
            last = Some((hash, number));
        }
        0
    }
}

fn leaf_of(members: &[(&[u8], f64)], encoding: SortedSetEncoding) -> Leaf {
    let bytes = members.iter().map(|(member, _)| leaf::record_bytes(member)).sum();
    let mut leaf = Leaf::with_capacity(members.len(), bytes);
    for (slot, (member, score)) in members.iter().enumerate() {
        let score = if encoding == SortedSetEncoding::Listpack {
            *score + 0.0
        } else {
            *score
        };
        leaf.insert(slot, score, member, member_hash(member).tag());
    }
    leaf
}

/// An iterator over members of a [`SortedSet`] and their scores, in order.
#[derive(Clone, Debug)]
pub struct LargeSortedSetIter<'a> {
    tree: Option<&'a Tree>,
    leaf: &'a Leaf,
    slot: usize,
    left: usize,
    reverse: bool,
}

impl<'a> Iterator for LargeSortedSetIter<'a> {
    type Item = (&'a [u8], f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (leaf, slot) = (self.leaf, self.slot);
        let found = (leaf.member(slot), leaf.score(slot));
        if self.left > 0 {
            if !self.reverse && slot + 1 < leaf.len() {
                self.slot += 1;
            } else if self.reverse && slot > 0 {
                self.slot -= 1;
            } else {
                self.change_leaf();
            }
        }
        Some(found)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl LargeSortedSetIter<'_> {
    fn change_leaf(&mut self) {
        let Some(tree) = self.tree else { return };
        if self.reverse {
            self.leaf = tree.leaf(self.leaf.previous);
            self.slot = self.leaf.len() - 1;
        } else {
            self.leaf = tree.leaf(self.leaf.next);
            self.slot = 0;
        }
    }
}

#[cfg(test)]
mod tests;

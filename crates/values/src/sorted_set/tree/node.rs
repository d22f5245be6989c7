//! A node of the tree: its children, and the count and first score of each.

use crate::relocation::PartMover;
use crate::sorted_set::room::{allocated_bytes, reserve};

/// A node above leaves or other nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct TreeNode {
    pub(super) children: Vec<u32>,
    pub(super) counts: Vec<u32>,
    pub(super) scores: Vec<f64>,
    pub(super) parent: u32,
    /// The number of nodes below this one on the path to a leaf.
    pub(super) height: u32,
}

impl TreeNode {
    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.vec(&mut self.children);
        mover.vec(&mut self.counts);
        mover.vec(&mut self.scores);
    }

    pub(super) fn insert(&mut self, position: usize, child: u32, count: u32, score: f64) {
        reserve(&mut self.children, 1);
        reserve(&mut self.counts, 1);
        reserve(&mut self.scores, 1);
        self.children.insert(position, child);
        self.counts.insert(position, count);
        self.scores.insert(position, score);
    }

    pub(super) fn remove(&mut self, position: usize) {
        self.children.remove(position);
        self.counts.remove(position);
        self.scores.remove(position);
    }

    pub(super) fn position_of(&self, child: u32) -> usize {
        let found = self.children.iter().position(|other| *other == child);
        found.expect("a node below another is one of its children")
    }

    pub(super) fn members(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }

    pub(super) fn members_before(&self, position: usize) -> usize {
        self.counts[..position].iter().map(|count| *count as usize).sum()
    }

    pub(super) fn split_off(&mut self, position: usize) -> Self {
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

    pub(super) fn append(&mut self, children: &[u32], counts: &[u32], scores: &[f64]) {
        reserve(&mut self.children, children.len());
        reserve(&mut self.counts, children.len());
        reserve(&mut self.scores, children.len());
        self.children.extend_from_slice(children);
        self.counts.extend_from_slice(counts);
        self.scores.extend_from_slice(scores);
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        allocated_bytes(&self.children) + allocated_bytes(&self.counts) + allocated_bytes(&self.scores)
    }
}

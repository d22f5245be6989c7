//! A check of a whole tree against every rule, for tests.

use super::node::TreeNode;
use super::{MAX_CHILDREN, NO_NODE, Tree, TreePosition};
use crate::sorted_set::member_hash::member_hash;

impl Tree {
    /// Asserts that every rule holds.
    pub(in crate::sorted_set) fn check(&self) {
        let mut leaves = Vec::new();
        let (members, _) = self.check_below(self.root, self.height, NO_NODE, &mut leaves);
        assert_eq!(members, self.len);
        let mut chained = Vec::new();
        let (mut number, mut previous) = (self.first_leaf, NO_NODE);
        let mut behind = 0;
        while number != NO_NODE {
            let leaf = self.leaves.at(number);
            assert_eq!(leaf.previous, previous);
            behind += leaf.allocated_bytes();
            for slot in 0..leaf.len() {
                let hash = member_hash(leaf.member(slot));
                assert_eq!(
                    self.find(hash, leaf.member(slot)),
                    Some(TreePosition { leaf: number, slot })
                );
            }
            chained.push(number);
            (previous, number) = (number, leaf.next);
        }
        assert_eq!(chained, leaves);
        assert_eq!(self.leaves.len(), leaves.len());
        assert_eq!(self.index.entries_from(0).count(), self.len);
        let nodes: usize = (0..).map_while(|number| self.node_bytes(number)).sum();
        assert_eq!(behind + nodes, self.owned_bytes);
    }

    fn node_bytes(&self, number: u32) -> Option<usize> {
        // Free numbers have empty nodes.
        self.nodes.checked_at(number).map(TreeNode::allocated_bytes)
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

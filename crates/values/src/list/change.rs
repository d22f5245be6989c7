//! Modifications of lists: the placement of elements, and the splitting and merging of nodes.

use std::ops::ControlFlow;

use super::List;
use super::node::{Node, NodeKind};
use super::position::Direction;
use super::position::ElementAction;
use super::position::ListEnd;
use crate::listpack::Element;

impl List {
    /// Inserts a node before node `at`.
    pub(super) fn insert_node(&mut self, at: usize, node: Node) {
        self.count += node.len();
        self.node_bytes += node.allocated_bytes();
        if self.nodes.is_empty() {
            self.nodes.reserve_exact(1);
        }
        self.nodes.insert(at, node);
    }

    /// Removes node `at` and returns it.
    fn remove_node(&mut self, at: usize) -> Option<Node> {
        let node = self.nodes.remove(at)?;
        self.count -= node.len();
        self.node_bytes -= node.allocated_bytes();
        Some(node)
    }

    /// Changes node `at`. If it loses all its elements, the caller must remove it.
    #[inline]
    fn update_node<R>(&mut self, at: usize, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self.nodes[at];
        self.count -= node.len();
        self.node_bytes -= node.allocated_bytes();
        let result = change(node);
        self.count += node.len();
        self.node_bytes += node.allocated_bytes();
        result
    }

    /// Decompresses and changes node `at`.
    fn update_decompressed_node<R>(&mut self, at: usize, change: impl FnOnce(&mut Node) -> R) -> R {
        self.update_node(at, |node| {
            node.decompress();
            change(node)
        })
    }

    /// Restores rule 2 after node `at` changed or nodes were inserted or removed.
    fn restore_compression(&mut self, at: usize) {
        let depth = usize::from(self.depth);
        if depth == 0 {
            return;
        }
        let count = self.nodes.len();
        for end in 0..depth.min(count) {
            self.update_node(end, Node::decompress);
            self.update_node(count - 1 - end, Node::decompress);
        }
        if count <= 2 * depth {
            return;
        }
        let inner = depth..count - depth;
        // An operation inserts at most two nodes, so at most two nodes at either end are deeper than before.
        for node in [
            at,
            inner.start,
            inner.start + 1,
            inner.end - 1,
            inner.end.wrapping_sub(2),
        ] {
            if inner.contains(&node) {
                self.update_node(node, Node::compress);
            }
        }
    }

    /// Returns `true` if an element of `element_bytes` bytes may be added to the run of node `at`.
    fn has_space_for(&self, at: Option<usize>, element_bytes: usize) -> bool {
        let Some(node) = at.and_then(|at| self.nodes.get(at)) else {
            return false;
        };
        let limits = self.limits();
        node.container() == NodeKind::Packed
            && !limits.needs_plain_node(element_bytes)
            && !limits.is_exceeded_with(node.limit_bytes(), node.len(), element_bytes)
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, end: ListEnd, element: &[u8]) {
        let last = self.nodes.len().checked_sub(1);
        let at = match end {
            ListEnd::Head => last.and(Some(0)),
            ListEnd::Tail => last,
        };
        if let Some(at) = at
            && (!self.is_quicklist || self.has_space_for(Some(at), element.len()))
        {
            self.update_node(at, |node| node.push(end, Element::of(element)));
            return;
        }
        let node = if self.is_quicklist && self.limits().needs_plain_node(element.len()) {
            Node::plain(element)
        } else {
            let mut node = Node::from_element(element);
            let neighbour = at.filter(|_| self.nodes.len() > 1).map(|at| &self.nodes[at]);
            // A long list keeps growing, so the node will become as large as the nodes before it, unless that is one
            // large element.
            let neighbour_bytes = neighbour.map(Node::limit_bytes);
            if let Some(bytes) = neighbour_bytes.filter(|bytes| !self.limits().needs_plain_node(*bytes)) {
                node.reserve(bytes, end);
            }
            node
        };
        let place = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => self.nodes.len(),
        };
        self.insert_node(place, node);
        // The node that was at this end is one node deeper now.
        let former = match end {
            ListEnd::Head => 1,
            ListEnd::Tail => place.saturating_sub(1),
        };
        if self.nodes.len() > 2 {
            self.update_node(former, Node::shrink_to_fit);
        }
        self.restore_compression(former);
    }

    /// Appends a node whose elements are already a run.
    pub fn append_run(&mut self, run: &[u8], count: usize) {
        let at = self.nodes.len();
        self.insert_node(at, Node::from_run(run, count));
        self.restore_compression(at.saturating_sub(1));
    }

    /// Appends a node of one plain element.
    pub fn append_plain(&mut self, element: &[u8]) {
        let at = self.nodes.len();
        self.insert_node(at, Node::plain(element));
        self.restore_compression(at.saturating_sub(1));
    }

    /// Replaces element `index`. Returns `false` if there is no such element.
    pub fn replace(&mut self, index: usize, element: &[u8]) -> bool {
        let Some((at, offset)) = self.locate(index) else {
            return false;
        };
        let alone = self.is_quicklist && self.limits().needs_plain_node(element.len());
        match (self.nodes[at].container(), alone) {
            (NodeKind::Packed, false) => {
                self.update_decompressed_node(at, |node| {
                    let start = node.run().offset_of(offset, node.len()).unwrap_or_default();
                    let end = node.run().end_of(start);
                    node.splice(start..end, 1, Some(Element::of(element)));
                    node.shrink();
                });
                self.restore_compression(at);
            }
            (NodeKind::Plain, true) => {
                self.update_decompressed_node(at, |node| node.replace_plain(element));
                self.restore_compression(at);
            }
            (NodeKind::Plain, false) => {
                self.insert_next_to(at, 0, true, element);
                self.remove_node(at);
                self.restore_compression(at);
            }
            (NodeKind::Packed, true) => self.replace_by_plain(at, offset, element),
        }
        true
    }

    /// Replaces an element in a run by a plain element.
    fn replace_by_plain(&mut self, at: usize, offset: usize, element: &[u8]) {
        if offset + 1 < self.nodes[at].len() {
            let rest = self.update_decompressed_node(at, |node| node.split_off(offset + 1));
            self.insert_node(at + 1, rest);
        }
        self.insert_node(at + 1, Node::plain(element));
        if self.nodes[at].len() == 1 {
            self.remove_node(at);
            self.restore_compression_around(at);
        } else {
            self.update_decompressed_node(at, |node| node.remove_range(node.len() - 1, 1, false));
            self.merge_around(at + 1);
        }
    }

    /// Inserts an element before or after element `index`. Returns `false` if there is no such element.
    pub fn insert(&mut self, index: usize, after: bool, element: &[u8]) -> bool {
        let Some((at, offset)) = self.locate(index) else {
            return false;
        };
        if self.is_quicklist {
            self.insert_next_to(at, offset, after, element);
        } else {
            self.insert_into(at, offset + usize::from(after), element);
        }
        true
    }

    /// Inserts an element before element `offset` of a run.
    fn insert_into(&mut self, at: usize, offset: usize, element: &[u8]) {
        self.update_decompressed_node(at, |node| {
            let end = node.run().bytes().len();
            let place = node.run().offset_of(offset, node.len()).unwrap_or(end);
            node.splice(place..place, 0, Some(Element::of(element)));
        });
        self.restore_compression(at);
    }

    /// Inserts an element before or after element `offset` of node `at`, into the node that Valkey would select.
    fn insert_next_to(&mut self, at: usize, offset: usize, after: bool, element: &[u8]) {
        let length = self.nodes[at].len();
        let at_border = if after { offset + 1 == length } else { offset == 0 };
        let neighbour = if after { Some(at + 1) } else { at.checked_sub(1) };
        // The index of a new node on the requested side.
        let place = at + usize::from(after);
        if self.limits().needs_plain_node(element.len()) {
            if self.nodes[at].container() == NodeKind::Packed && !at_border {
                let rest = self.update_decompressed_node(at, |node| node.split_off(offset + usize::from(after)));
                self.insert_node(at + 1, rest);
                self.insert_node(at + 1, Node::plain(element));
            } else {
                self.insert_node(place, Node::plain(element));
            }
            self.restore_compression_around(at + 1);
        } else if self.has_space_for(Some(at), element.len()) {
            self.insert_into(at, offset + usize::from(after), element);
        } else if at_border && self.has_space_for(neighbour, element.len()) {
            let (beside, end) = if after {
                (at + 1, ListEnd::Head)
            } else {
                (at - 1, ListEnd::Tail)
            };
            self.update_decompressed_node(beside, |node| node.push(end, Element::of(element)));
            self.restore_compression(beside);
        } else if at_border {
            self.insert_node(place, Node::from_element(element));
            self.restore_compression_around(place);
        } else {
            self.split_and_insert(at, offset + usize::from(after), after, element);
        }
    }

    /// Splits a full node before element `offset`, and adds an element to the half for which Valkey creates a new node.
    fn split_and_insert(&mut self, at: usize, offset: usize, after: bool, element: &[u8]) {
        let rest = self.update_decompressed_node(at, |node| node.split_off(offset));
        self.insert_node(at + 1, rest);
        let (half, end) = if after {
            (at + 1, ListEnd::Head)
        } else {
            (at, ListEnd::Tail)
        };
        self.update_node(half, |node| node.push(end, Element::of(element)));
        // Merging starts from the half that remains in the original node.
        self.merge_around(if after { at } else { at + 1 });
    }

    fn restore_compression_around(&mut self, at: usize) {
        self.restore_compression(at);
        self.restore_compression(at + 1);
        self.restore_compression(at.wrapping_sub(1));
    }

    /// Merges node `center` and the two nodes on either side of it as far as the limits allow.
    fn merge_around(&mut self, center: usize) {
        let mut center = center;
        if center >= 2 && self.merge(center - 2) {
            center -= 1;
        }
        self.merge(center + 1);
        if center >= 1 && self.merge(center - 1) {
            center -= 1;
        }
        self.merge(center);
        self.restore_compression_around(center);
    }

    /// Merges node `at` and the next one, if the limits allow it. Returns `true` if it did.
    fn merge(&mut self, at: usize) -> bool {
        let (Some(node), Some(next)) = (self.nodes.get(at), self.nodes.get(at + 1)) else {
            return false;
        };
        let runs = node.container() == NodeKind::Packed && next.container() == NodeKind::Packed;
        let bytes = node.limit_bytes() + next.limit_bytes() - crate::listpack::listpack_bytes(0);
        if !runs || self.limits().is_exceeded(bytes, node.len() + next.len()) {
            return false;
        }
        if let Some(mut next) = self.remove_node(at + 1) {
            next.decompress();
            self.update_decompressed_node(at, |node| node.append(&next));
        }
        true
    }

    /// Removes up to `count` elements from element `start` on.
    pub fn remove_range(&mut self, start: usize, count: usize) {
        let Some((first, offset)) = self.locate(start) else {
            return;
        };
        let mut left = count.min(self.count - start);
        let mut whole = first;
        // A node at the end of a long list will soon be emptied or filled again.
        let is_long = self.nodes.len() > 2;
        if offset > 0 {
            let part = left.min(self.nodes[first].len() - offset);
            let keeps_room = is_long && first + 1 == self.nodes.len();
            self.update_decompressed_node(first, |node| node.remove_range(offset, part, keeps_room));
            left -= part;
            whole += 1;
        }
        let mut end = whole;
        while let Some(node) = self.nodes.get(end).filter(|node| left > 0 && node.len() <= left) {
            left -= node.len();
            self.count -= node.len();
            self.node_bytes -= node.allocated_bytes();
            end += 1;
        }
        self.nodes.drain(whole..end);
        if left > 0 {
            let keeps_room = is_long && whole == 0;
            self.update_decompressed_node(whole, |node| node.remove_range(0, left, keeps_room));
        }
        self.shrink_nodes();
        self.restore_compression_around(whole);
    }

    /// Removes the elements that `remove` selects, in the given direction. Returns the number of removed elements.
    pub fn remove_if(&mut self, direction: Direction, mut remove: impl FnMut(Element<'_>) -> ElementAction) -> usize {
        let mut removed = 0;
        let nodes = self.nodes.len();
        let mut emptied = false;
        for step in 0..nodes {
            let at = match direction {
                Direction::Forward => step,
                Direction::Backward => nodes - 1 - step,
            };
            let mut flow = ControlFlow::Continue(());
            removed += self.update_decompressed_node(at, |node| {
                node.remove_if(direction, &mut |element| {
                    let picked = remove(element);
                    if picked == ElementAction::RemoveAndStop {
                        flow = ControlFlow::Break(());
                    }
                    picked
                })
            });
            emptied |= self.nodes[at].len() == 0;
            // This includes nodes that were not compressible before: without the removed elements they may be.
            let depth = usize::from(self.depth);
            if depth > 0 && at >= depth && at + depth < nodes {
                self.update_node(at, Node::compress);
            }
            if flow.is_break() {
                break;
            }
        }
        if emptied {
            self.drop_empty_nodes();
        }
        removed
    }

    fn drop_empty_nodes(&mut self) {
        let mut bytes = 0;
        self.nodes.retain(|node| {
            let keep = node.len() > 0;
            bytes += if keep { 0 } else { node.allocated_bytes() };
            keep
        });
        self.node_bytes -= bytes;
        self.shrink_nodes();
        self.restore_compression(0);
    }

    /// Shrinks the ring buffer of nodes after many of them were removed.
    fn shrink_nodes(&mut self) {
        if self.nodes.capacity() > 4 * self.nodes.len() + 4 {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
    }
}

//! Lists: sequences of elements that are cheap to change at both ends.
//!
//! A list that Valkey calls a listpack is one run of elements. It is packed into its table entry ([`packed`]) unless
//! the run is too long for that. A list that Valkey calls a quicklist is a sequence of nodes:
//!
//! ```text
//!   List
//!   +-----------------------------------------------+
//!   | node 0 | node 1 | node 2 | node 3 |           |     ring buffer
//!   +---|---------|--------|--------|---------------+
//!       v         v        v        v
//!   [ run   ] [ element] [LZF] [    run]                  run: elements with free space around them
//!                                                         element: a large one, alone ("plain")
//!                                                         LZF: either of these, compressed
//! ```
//!
//! The boundaries between nodes are visible to clients: DUMP writes node by node, and a list becomes a listpack again
//! only when it has shrunk to one node. So nodes are filled, split and merged exactly as in Valkey. The memory layout
//! of a node is Weft's own: its free space allows both ends to grow without moving elements. The node headers are
//! contiguous, so a search by index reads 32 bytes for every 8 KiB of elements.
//!
//! Rules:
//! 1. No node is empty. `count` is the sum of the nodes' counts, and `node_bytes` the sum of their allocations.
//! 2. With a compress depth of n, the n nodes at either end are not compressed. The other nodes are compressed if that
//!    makes them smaller. A depth of 0 disables compression.
//! 3. A list that reports `listpack` has one node, which is a run of any length.

mod change;
mod either;
mod gap;
mod limits;
mod node;
pub mod packed;
mod position;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::listpack::{Element, ElementRun};
use crate::relocation::{PartCursor, PartMover, relocate_parts};

pub use either::{ListMut, ListRef};
pub use limits::{ListLimits, set_plain_threshold};
pub use node::NodeKind;
use node::{Node, NodeContent};
pub use position::{Direction, ElementAction, ListEnd};

/// The range to which a list clamps `list-max-listpack-size` when it stores it.
const MAX_FILL: i64 = i16::MAX as i64;
const MIN_FILL: i64 = -5;

/// A list that is not packed into its table entry.
#[derive(Clone, Debug)]
pub struct List {
    nodes: VecDeque<Node>,
    count: usize,
    node_bytes: usize,
    /// `list-max-listpack-size` and `list-compress-depth` as they were when the list became a quicklist.
    fill: i16,
    depth: u16,
    is_quicklist: bool,
}

/// A new list in the form in which it will be stored.
#[derive(Debug)]
pub enum NewList {
    /// The bytes of a packed list, for a table entry.
    Packed(Vec<u8>),
    /// A list that is stored as a value of its own.
    Large(List),
}

/// A node in the form in which it is written to a file.
#[derive(Debug)]
pub struct StoredNode<'a> {
    /// The type of the node.
    pub container: NodeKind,
    /// The LZF data of a node that is compressed in memory, and its uncompressed length in bytes.
    pub compressed: Option<(&'a [u8], usize)>,
    /// The whole listpack or the element. Empty if the node is compressed.
    pub whole: Cow<'a, [u8]>,
}

/// Statistics of the nodes of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListStatistics {
    /// The number of nodes.
    pub nodes: usize,
    /// The total size of the nodes in bytes before compression, as in files.
    pub bytes: usize,
    /// The `list-max-listpack-size` of the list.
    pub fill: i16,
    /// The `list-compress-depth` of the list.
    pub depth: u16,
}

impl List {
    /// Creates an empty quicklist with these settings (`list-max-listpack-size`, `list-compress-depth`).
    pub fn quicklist(fill: i64, depth: i64) -> Self {
        let mut list = List {
            nodes: VecDeque::new(),
            count: 0,
            node_bytes: 0,
            fill: 0,
            depth: 0,
            is_quicklist: false,
        };
        list.convert_to_quicklist(fill, depth);
        list
    }

    /// Creates a list of `count` elements that reports `listpack`.
    pub fn listpack(run: &[u8], count: usize) -> Self {
        let mut list = Self::quicklist(-1, 0);
        list.is_quicklist = false;
        if count > 0 {
            list.insert_node(0, Node::from_run(run, count));
        }
        list
    }

    /// Makes the list report `quicklist` from now on, with these settings.
    pub fn convert_to_quicklist(&mut self, fill: i64, depth: i64) {
        self.fill = fill.clamp(MIN_FILL, MAX_FILL) as i16;
        self.depth = depth.clamp(0, i64::from(u16::MAX)) as u16;
        self.is_quicklist = true;
    }

    /// Makes the list report `listpack` from now on.
    pub fn convert_to_listpack(&mut self) {
        debug_assert!(self.single_run().is_some());
        self.is_quicklist = false;
    }

    /// Returns `true` if the list reports `quicklist`.
    pub fn is_quicklist(&self) -> bool {
        self.is_quicklist
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The name of the encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        if self.is_quicklist { "quicklist" } else { "listpack" }
    }

    /// The number of bytes allocated in addition to the value itself.
    pub fn allocated_bytes(&self) -> usize {
        self.node_bytes + self.nodes.capacity() * size_of::<Node>()
    }

    /// Moves the nodes; see [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        if from == PartCursor::default() {
            mover.deque(&mut self.nodes);
        }
        relocate_parts(&mut self.nodes, 0, from, mover, Node::move_parts)
    }

    /// Iterates over the nodes in the form in which they are written to a file.
    pub fn stored_nodes(&self) -> impl ExactSizeIterator<Item = StoredNode<'_>> {
        self.nodes.iter().map(|node| {
            let compressed = node.compressed();
            StoredNode {
                container: node.container(),
                compressed,
                whole: if compressed.is_some() {
                    Cow::Borrowed(&[][..])
                } else {
                    node.stored_bytes()
                },
            }
        })
    }

    /// Returns statistics of the nodes.
    pub fn statistics(&self) -> ListStatistics {
        ListStatistics {
            nodes: self.nodes.len(),
            bytes: self.nodes.iter().map(Node::limit_bytes).sum(),
            fill: self.fill,
            depth: self.depth,
        }
    }

    /// Returns the run of the list if its elements are in a single uncompressed run.
    pub fn single_run(&self) -> Option<ElementRun<'_>> {
        match &self.nodes {
            nodes if nodes.len() == 1 && nodes[0].container() == NodeKind::Packed && !nodes[0].is_compressed() => {
                Some(nodes[0].run())
            }
            _ => None,
        }
    }

    /// Returns `true` if Valkey would convert this quicklist to a listpack. `shrinking` has the meaning it has in
    /// `Limits::allows_listpack`.
    pub fn fits_listpack(&self, limits: ListLimits, shrinking: bool) -> bool {
        self.nodes.len() == 1
            && self.nodes[0].container() == NodeKind::Packed
            && limits.allows_listpack(self.nodes[0].limit_bytes(), self.count, shrinking)
    }

    /// Selects the form of a list that a decoder built node by node.
    pub fn into_new_list(mut self, limits: ListLimits) -> NewList {
        if self.fits_listpack(limits, false) && self.single_run().is_some() {
            self.convert_to_listpack();
        }
        match self.single_run() {
            Some(run) if !self.is_quicklist && run.bytes().len() <= packed::MAX_RUN_BYTES => {
                let mut bytes = Vec::new();
                let plan = packed::PackedListPlan::of_run(run, self.count);
                plan.build(&mut bytes, plan.min_bytes());
                NewList::Packed(bytes)
            }
            _ => NewList::Large(self),
        }
    }

    /// Returns the address and length of the memory that a change at one end reads first, apart from the list itself.
    /// The caller prefetches it together with that of other lists.
    pub fn node_memory(&self, end: ListEnd) -> Option<(*const u8, usize)> {
        let node = self.end_node(end)?;
        Some((std::ptr::from_ref(node).cast(), size_of::<Node>()))
    }

    /// Returns the memory that a change at one end reads and writes next: the last elements at that end, and free
    /// space. It should be called once the memory of [`Self::node_memory`] is in the cache.
    pub fn end_memory(&self, end: ListEnd) -> Option<&[u8]> {
        self.end_node(end).map(|node| node.end_memory(end))
    }

    fn end_node(&self, end: ListEnd) -> Option<&Node> {
        match end {
            ListEnd::Head => self.nodes.front(),
            ListEnd::Tail => self.nodes.back(),
        }
    }

    /// The limits of the nodes of this list.
    fn limits(&self) -> ListLimits {
        ListLimits::new(i64::from(self.fill))
    }

    /// Returns the node of element `index`, and the number of elements of the node before it.
    fn locate(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.count {
            return None;
        }
        if index < self.count / 2 {
            let mut rest = index;
            for (at, node) in self.nodes.iter().enumerate() {
                if rest < node.len() {
                    return Some((at, rest));
                }
                rest -= node.len();
            }
        } else {
            let mut before = self.count;
            for (at, node) in self.nodes.iter().enumerate().rev() {
                before -= node.len();
                if before <= index {
                    return Some((at, index - before));
                }
            }
        }
        None
    }

    /// Calls `view` with element `index` and returns its result, or `None` if the index is out of range.
    pub fn with_element<R>(&self, index: usize, view: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let (at, offset) = self.locate(index)?;
        let node = self.nodes.get(at)?;
        match node.content(&mut Vec::new()) {
            NodeContent::Plain(element) => Some(view(Element::Bytes(element))),
            NodeContent::Run(run) => run.get(offset, node.len()).map(|(_, element)| view(element)),
        }
    }

    /// Calls `view` for the elements from element `start` on, until it returns `Break`.
    pub fn visit(&self, start: usize, direction: Direction, mut view: impl FnMut(Element<'_>) -> ControlFlow<()>) {
        let Some((mut at, mut offset)) = self.locate(start) else {
            return;
        };
        let mut scratch = Vec::new();
        while let Some(node) = self.nodes.get(at) {
            let offset_now = offset.min(node.len() - 1);
            let flow = match node.content(&mut scratch) {
                NodeContent::Plain(element) => view(Element::Bytes(element)),
                NodeContent::Run(run) => {
                    let first = run.offset_of(offset_now, node.len()).unwrap_or_default();
                    visit_run(run, first, direction, &mut view)
                }
            };
            if flow.is_break() {
                return;
            }
            (at, offset) = match direction {
                Direction::Forward => (at + 1, 0),
                Direction::Backward => (at.wrapping_sub(1), usize::MAX),
            };
        }
    }
}

/// Calls `view` for the elements of a run from the one at `offset` on, until it returns `Break`.
#[inline]
fn visit_run(
    run: ElementRun<'_>,
    offset: usize,
    direction: Direction,
    mut view: impl FnMut(Element<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    match direction {
        Direction::Forward => run
            .range(offset..run.bytes().len())
            .try_for_each(|(_, element)| view(element)),
        Direction::Backward => run
            .range(0..run.end_of(offset))
            .rev()
            .try_for_each(|(_, element)| view(element)),
    }
}

#[cfg(test)]
mod tests;

//! Lists: elements in order, cheap at both ends.
//!
//! A list that Valkey calls a listpack is one run of elements, and lives packed in its table entry ([`packed`]) unless
//! the run is too long for that. One that Valkey calls a quicklist is a row of nodes:
//!
//! ```text
//!   List
//!   +-----------------------------------------------+
//!   | node 0 | node 1 | node 2 | node 3 |           |     ring buffer
//!   +---|---------|--------|--------|---------------+
//!       v         v        v        v
//!   [ run   ] [ element] [LZF] [    run]                  run: elements with free room around them
//!                                                         element: a large one, alone ("plain")
//!                                                         LZF: either, compressed
//! ```
//!
//! Where one node ends and the next begins can be seen from outside: DUMP writes node by node, and a list is called a
//! listpack again only when it has shrunk to one node. So nodes are filled, split and merged exactly as Valkey does it.
//! How a node lies in memory is our own: its free room lets both ends grow without moving elements, and the nodes'
//! descriptions stand side by side, so that an index is found by running over 32 bytes for every 8 KiB of elements.
//!
//! Rules:
//! 1. No node is empty; `count` is the sum of the nodes' counts, `node_bytes` that of their allocations.
//! 2. With a compress depth of n, the n nodes at either end are not compressed; the others are, if they get smaller.
//!    A depth of 0 compresses none.
//! 3. A list that reports `listpack` has one node, a run, of any length.

mod change;
mod either;
mod gap;
mod limits;
mod node;
pub mod packed;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::listpack::{Element, Run};

pub use either::{ListMut, ListRef};
pub use gap::End;
pub use limits::{Limits, set_alone_from};
pub use node::Container;
use node::{Content, Node};

/// The largest `list-max-listpack-size` and `list-compress-depth` that a list remembers.
const LARGEST_FILL: i64 = i16::MAX as i64;
const SMALLEST_FILL: i64 = -5;

/// In which order elements are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Backward,
}

/// A list that is not packed into its table entry.
#[derive(Clone, Debug)]
pub struct List {
    nodes: VecDeque<Node>,
    count: usize,
    node_bytes: usize,
    /// `list-max-listpack-size` and `list-compress-depth` as they were when the list became a quicklist.
    fill: i16,
    depth: u16,
    quicklist: bool,
}

/// A list on its way into the keyspace.
#[derive(Debug)]
pub enum Form {
    /// Packed, as bytes of an entry.
    Packed(Vec<u8>),
    /// An object.
    Large(List),
}

/// A node as it goes into a file.
#[derive(Debug)]
pub struct StoredNode<'a> {
    /// What it holds.
    pub container: Container,
    /// The LZF form that it has in memory, and the length of what that stands for.
    pub compressed: Option<(&'a [u8], usize)>,
    /// The whole listpack or the element; empty if the node is compressed.
    pub whole: Cow<'a, [u8]>,
}

/// What can be told of a list's nodes.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// How many there are.
    pub nodes: usize,
    /// Bytes of what they hold, before compression, as files have it.
    pub bytes: usize,
    /// The `list-max-listpack-size` that they follow.
    pub fill: i16,
    /// The `list-compress-depth` that they follow.
    pub depth: u16,
}

impl List {
    /// An empty quicklist under these settings (`list-max-listpack-size`, `list-compress-depth`).
    pub fn quicklist(fill: i64, depth: i64) -> Self {
        let mut list = List {
            nodes: VecDeque::new(),
            count: 0,
            node_bytes: 0,
            fill: 0,
            depth: 0,
            quicklist: false,
        };
        list.become_quicklist(fill, depth);
        list
    }

    /// A list that reports `listpack`, of `count` elements.
    pub fn listpack(run: &[u8], count: usize) -> Self {
        let mut list = Self::quicklist(-1, 0);
        list.quicklist = false;
        list.put(0, Node::of_run(run, count));
        list
    }

    /// From now on the list reports `quicklist`.
    pub fn become_quicklist(&mut self, fill: i64, depth: i64) {
        self.fill = fill.clamp(SMALLEST_FILL, LARGEST_FILL) as i16;
        self.depth = depth.clamp(0, i64::from(u16::MAX)) as u16;
        self.quicklist = true;
    }

    /// From now on the list reports `listpack`.
    pub fn become_listpack(&mut self) {
        debug_assert!(self.single_run().is_some());
        self.quicklist = false;
    }

    /// Whether the list reports `quicklist`.
    pub fn is_quicklist(&self) -> bool {
        self.quicklist
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The encoding that Valkey would report.
    pub fn encoding_name(&self) -> &'static str {
        if self.quicklist { "quicklist" } else { "listpack" }
    }

    /// Bytes allocated behind the value itself.
    pub fn allocated_bytes(&self) -> usize {
        self.node_bytes + self.nodes.capacity() * size_of::<Node>()
    }

    /// The nodes as they go into a file.
    pub fn stored_nodes(&self) -> impl ExactSizeIterator<Item = StoredNode<'_>> {
        self.nodes.iter().map(|node| {
            let compressed = node.compressed();
            StoredNode {
                container: node.container(),
                compressed,
                whole: if compressed.is_some() {
                    Cow::Borrowed(&[][..])
                } else {
                    node.whole()
                },
            }
        })
    }

    /// The nodes in figures.
    pub fn figures(&self) -> Figures {
        Figures {
            nodes: self.nodes.len(),
            bytes: self.nodes.iter().map(Node::limit_bytes).sum(),
            fill: self.fill,
            depth: self.depth,
        }
    }

    /// The elements, if they are one run.
    pub fn single_run(&self) -> Option<Run<'_>> {
        match &self.nodes {
            nodes if nodes.len() == 1 && nodes[0].container() == Container::Packed && !nodes[0].is_compressed() => {
                Some(nodes[0].run())
            }
            _ => None,
        }
    }

    /// Whether Valkey would call this quicklist a listpack from now on.
    pub fn fits_listpack(&self, limits: Limits, shrinking: bool) -> bool {
        self.nodes.len() == 1
            && self.nodes[0].container() == Container::Packed
            && limits.allow_listpack(self.nodes[0].limit_bytes(), self.count, shrinking)
    }

    /// Chooses the form of a list that a decoder made, node by node.
    pub fn into_form(mut self, limits: Limits) -> Form {
        if self.fits_listpack(limits, false) && self.single_run().is_some() {
            self.become_listpack();
        }
        match self.single_run() {
            Some(run) if !self.quicklist && run.bytes().len() <= packed::LARGEST_RUN_BYTES => {
                let mut bytes = Vec::new();
                let plan = packed::Plan::of_run(run, self.count);
                plan.build(&mut bytes, plan.min_bytes());
                Form::Packed(bytes)
            }
            _ => Form::Large(self),
        }
    }

    /// The memory that a change at one end reads first, behind the list itself: an address and a length. To be fetched in
    /// advance, together with that of other lists.
    pub fn node_place(&self, end: End) -> Option<(*const u8, usize)> {
        let node = self.end_node(end)?;
        Some((std::ptr::from_ref(node).cast(), size_of::<Node>()))
    }

    /// The memory that it reads and writes next, once the first is near: the last elements at that end, and free room.
    pub fn end_place(&self, end: End) -> Option<&[u8]> {
        self.end_node(end).map(|node| node.end_place(end))
    }

    fn end_node(&self, end: End) -> Option<&Node> {
        match end {
            End::Head => self.nodes.front(),
            End::Tail => self.nodes.back(),
        }
    }

    /// The limits of this list's nodes.
    fn limits(&self) -> Limits {
        Limits::new(i64::from(self.fill))
    }

    /// The node of element `index`, and how many elements of the node are before it.
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

    /// Runs `view` on element `index`.
    pub fn with<R>(&self, index: usize, view: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let (at, offset) = self.locate(index)?;
        let node = self.nodes.get(at)?;
        match node.content(&mut Vec::new()) {
            Content::Plain(element) => Some(view(Element::Bytes(element))),
            Content::Run(run) => run.get(offset, node.len()).map(|(_, element)| view(element)),
        }
    }

    /// Shows elements to `view`, from element `start` on, until it breaks.
    pub fn visit(&self, start: usize, direction: Direction, mut view: impl FnMut(Element<'_>) -> ControlFlow<()>) {
        let Some((mut at, mut offset)) = self.locate(start) else {
            return;
        };
        let mut scratch = Vec::new();
        while let Some(node) = self.nodes.get(at) {
            let offset_now = offset.min(node.len() - 1);
            let flow = match node.content(&mut scratch) {
                Content::Plain(element) => view(Element::Bytes(element)),
                Content::Run(run) => {
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

/// Shows elements of a run to `view`, from the one at `offset` on, until it breaks.
#[inline]
fn visit_run(
    run: Run<'_>,
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

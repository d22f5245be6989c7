//! A node of a list: a run of elements with free space around it, or one large element. Either can be compressed.

use std::borrow::Cow;
use std::ops::Range;

use super::gap::{self, Span};
use super::packed::range_of;
use super::position::Direction;
use super::position::ElementAction;
use super::position::ListEnd;
use crate::listpack::{self, Element, ElementRun};
use crate::lzf;
use crate::relocation::PartMover;
use crate::size_class::size_class;

/// The minimum size of a node to be compressed, in bytes.
const COMPRESSED_MIN_BYTES: usize = 48;
/// The minimum number of bytes that compression must save.
const MIN_SAVED_BYTES: usize = 8;
/// The ratio of buffer size to run size above which a buffer shrinks.
const MAX_SLACK_FACTOR: usize = 2;
/// The divisor of the required size that gives the additional space when a buffer grows.
const GROWTH_DIVISOR: usize = 2;
/// The size in bytes up to which buffers do not shrink.
const SHRINKING_MIN_BYTES: usize = 256;

/// The number of bytes at an end to prefetch before a change: an element or two.
const END_PREFETCH_BYTES: usize = 128;

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// One large element, stored as it is.
    Plain,
    /// A run of elements.
    Packed,
}

/// A node. If it is compressed, `bytes` is the LZF data of the whole listpack or of the element, and `end` is the
/// uncompressed length.
#[derive(Clone, Debug)]
pub(super) struct Node {
    bytes: Box<[u8]>,
    start: u32,
    end: u32,
    count: u32,
    container: NodeKind,
    is_compressed: bool,
}

const _: () = assert!(size_of::<Node>() <= 32);

fn to_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a run is smaller than 4 GiB")
}

/// The uncompressed contents of a node.
pub(super) enum NodeContent<'a> {
    Plain(&'a [u8]),
    Run(ElementRun<'a>),
}

impl Node {
    /// Creates a node whose elements are already a run.
    pub(super) fn from_run(run: &[u8], count: usize) -> Self {
        let mut node = Node {
            bytes: Box::default(),
            start: 0,
            end: 0,
            count: to_u32(count),
            container: NodeKind::Packed,
            is_compressed: false,
        };
        node.move_to_new_buffer(run, run.len(), ListEnd::Tail);
        node
    }

    /// Creates a node with a run of one element.
    pub(super) fn from_element(element: &[u8]) -> Self {
        let mut run = Vec::new();
        listpack::push(&mut run, element);
        Self::from_run(&run, 1)
    }

    /// Creates a node of one large element.
    pub(super) fn plain(element: &[u8]) -> Self {
        Node {
            bytes: element.into(),
            start: 0,
            end: 0,
            count: 1,
            container: NodeKind::Plain,
            is_compressed: false,
        }
    }

    /// Moves `run` to a new buffer with capacity for `length` bytes.
    fn move_to_new_buffer(&mut self, run: &[u8], length: usize, free_at: ListEnd) {
        let mut bytes = vec![0; size_class(length.max(1))].into_boxed_slice();
        let start = match free_at {
            ListEnd::Head => bytes.len() - run.len(),
            ListEnd::Tail => 0,
        };
        bytes[start..start + run.len()].copy_from_slice(run);
        self.bytes = bytes;
        self.start = to_u32(start);
        self.end = to_u32(start + run.len());
    }

    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    pub(super) fn container(&self) -> NodeKind {
        self.container
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.is_compressed
    }

    /// The number of bytes that the node allocates.
    pub(super) fn allocated_bytes(&self) -> usize {
        if self.bytes.is_empty() {
            0
        } else {
            size_class(self.bytes.len())
        }
    }

    /// The size in bytes that the limits refer to: that of the whole listpack, or of the element, before compression.
    pub(super) fn limit_bytes(&self) -> usize {
        match (self.is_compressed, self.container) {
            (true, _) => self.end as usize,
            (false, NodeKind::Plain) => self.bytes.len(),
            (false, NodeKind::Packed) => listpack::listpack_bytes(self.span().bytes()),
        }
    }

    /// Returns the LZF data of a compressed node and its uncompressed length.
    pub(super) fn compressed(&self) -> Option<(&[u8], usize)> {
        self.is_compressed.then(|| (&self.bytes[..], self.end as usize))
    }

    fn span(&self) -> Span {
        Span {
            start: self.start as usize,
            end: self.end as usize,
        }
    }

    fn set_span(&mut self, span: Span) {
        self.start = to_u32(span.start);
        self.end = to_u32(span.end);
    }

    /// Returns the run of a node that is neither plain nor compressed.
    #[inline]
    pub(super) fn run(&self) -> ElementRun<'_> {
        debug_assert!(self.container == NodeKind::Packed && !self.is_compressed);
        ElementRun::new(&self.bytes[self.start as usize..self.end as usize])
    }

    /// Returns the contents of the node. A compressed node is decompressed into `scratch`.
    #[inline]
    pub(super) fn content<'a>(&'a self, scratch: &'a mut Vec<u8>) -> NodeContent<'a> {
        if self.is_compressed {
            *scratch = self.decompressed_bytes();
            return match self.container {
                NodeKind::Plain => NodeContent::Plain(scratch),
                NodeKind::Packed => NodeContent::Run(listpack::run_of_listpack(scratch)),
            };
        }
        match self.container {
            NodeKind::Plain => NodeContent::Plain(&self.bytes),
            NodeKind::Packed => NodeContent::Run(self.run()),
        }
    }

    /// Returns the whole listpack or the element, as stored in files.
    pub(super) fn stored_bytes(&self) -> Cow<'_, [u8]> {
        match (self.is_compressed, self.container) {
            (true, _) => Cow::Owned(self.decompressed_bytes()),
            (false, NodeKind::Plain) => Cow::Borrowed(&self.bytes),
            (false, NodeKind::Packed) => {
                let mut whole = Vec::with_capacity(self.limit_bytes());
                listpack::write_listpack(&mut whole, self.run().bytes(), self.len());
                Cow::Owned(whole)
            }
        }
    }

    fn decompressed_bytes(&self) -> Vec<u8> {
        lzf::decompress(&self.bytes, self.end as usize).expect("what was compressed here is whole")
    }

    pub(super) fn compress(&mut self) {
        let bytes = self.limit_bytes();
        if self.is_compressed || bytes < COMPRESSED_MIN_BYTES || u32::try_from(bytes).is_err() {
            return;
        }
        let Some(packed) = lzf::compress(&self.stored_bytes(), bytes) else {
            return;
        };
        if packed.len() + MIN_SAVED_BYTES >= bytes {
            return;
        }
        self.bytes = packed.into_boxed_slice();
        self.start = 0;
        self.end = to_u32(bytes);
        self.is_compressed = true;
    }

    pub(super) fn decompress(&mut self) {
        if !self.is_compressed {
            return;
        }
        let whole = self.decompressed_bytes();
        self.is_compressed = false;
        match self.container {
            NodeKind::Plain => self.bytes = whole.into_boxed_slice(),
            NodeKind::Packed => {
                let run = listpack::run_of_listpack(&whole).bytes();
                self.move_to_new_buffer(run, run.len(), ListEnd::Tail);
            }
        }
    }

    /// Replaces a range of the run that contains `removed` elements by `element`, if there is one.
    #[inline]
    pub(super) fn splice(&mut self, range: Range<usize>, removed: usize, element: Option<Element<'_>>) {
        let bytes = element.map_or(0, Element::run_bytes);
        let after = self.span().bytes() - range.len() + bytes;
        if after > self.bytes.len() {
            let free_at = if range.start == 0 { ListEnd::Head } else { ListEnd::Tail };
            self.move_to(after + after / GROWTH_DIVISOR, free_at);
        }
        let before = self.span();
        let span = gap::splice(&mut self.bytes, 0, before, range, element);
        self.set_span(span);
        self.count = self.count - removed as u32 + u32::from(element.is_some());
    }

    fn move_to(&mut self, length: usize, free_at: ListEnd) {
        let old = std::mem::take(&mut self.bytes);
        let span = self.span();
        self.move_to_new_buffer(&old[span.start..span.end], length, free_at);
    }

    /// Frees all unused space, because the node is no longer at an end of its list.
    pub(super) fn shrink_to_fit(&mut self) {
        if self.container == NodeKind::Packed && !self.is_compressed {
            let used = self.span().bytes();
            if size_class(used.max(1)) < self.bytes.len() {
                self.move_to(used, ListEnd::Tail);
            }
        }
    }

    /// Frees unused space if it is most of the buffer.
    pub(super) fn shrink(&mut self) {
        let used = self.span().bytes();
        if used > 0 && self.bytes.len() > SHRINKING_MIN_BYTES && self.bytes.len() > used * MAX_SLACK_FACTOR {
            self.move_to(used + used / GROWTH_DIVISOR, ListEnd::Tail);
        }
    }

    #[inline]
    pub(super) fn push(&mut self, end: ListEnd, element: Element<'_>) {
        let at = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => self.span().bytes(),
        };
        self.splice(at..at, 0, Some(element));
    }

    /// Removes `count` elements from element `start` on. Unless `keeps_space` is set, unused space is freed if it is
    /// most of the buffer.
    pub(super) fn remove_range(&mut self, start: usize, count: usize, keeps_space: bool) {
        let range = range_of(self.run(), self.len(), start, count);
        self.splice(range, count, None);
        if !keeps_space {
            self.shrink();
        }
    }

    /// Ensures that the buffer has space for a run of `length` bytes. New space is free at the end `free_at`.
    pub(super) fn reserve(&mut self, length: usize, free_at: ListEnd) {
        if length > self.bytes.len() {
            self.move_to(length, free_at);
        }
    }

    /// Returns the memory that a change at one end reads and writes.
    pub(super) fn end_memory(&self, end: ListEnd) -> &[u8] {
        let at = match (self.container, end) {
            (NodeKind::Packed, ListEnd::Head) if !self.is_compressed => self.start as usize,
            (NodeKind::Packed, ListEnd::Tail) if !self.is_compressed => self.end as usize,
            _ => 0,
        };
        let (before, after) = match end {
            ListEnd::Head => (END_PREFETCH_BYTES, END_PREFETCH_BYTES / 2),
            ListEnd::Tail => (END_PREFETCH_BYTES, 0),
        };
        let bytes = &self.bytes;
        &bytes[at.saturating_sub(before).min(bytes.len())..(at + after).min(bytes.len())]
    }

    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        mover.boxed_slice(&mut self.bytes);
    }

    /// Replaces a plain element by another one.
    pub(super) fn replace_plain(&mut self, element: &[u8]) {
        self.bytes = element.into();
    }

    /// Removes the elements that `remove` selects. Returns the number of removed elements.
    pub(super) fn remove_if(
        &mut self,
        direction: Direction,
        remove: &mut impl FnMut(Element<'_>) -> ElementAction,
    ) -> usize {
        if self.container == NodeKind::Plain {
            let removed = remove(Element::Bytes(&self.bytes)) != ElementAction::Keep;
            self.count -= u32::from(removed);
            return usize::from(removed);
        }
        let span = self.span();
        let (length, removed) = gap::remove_if(&mut self.bytes[span.start..span.end], direction, remove);
        self.count -= removed as u32;
        self.end = self.start + to_u32(length);
        self.shrink();
        removed
    }

    /// Moves the elements from element `at` on to a new node.
    pub(super) fn split_off(&mut self, at: usize) -> Node {
        let run = self.run();
        let offset = run.offset_of(at, self.len()).unwrap_or(run.bytes().len());
        let after = Node::from_run(&run.bytes()[offset..], self.len() - at);
        let before = Node::from_run(&run.bytes()[..offset], at);
        *self = before;
        after
    }

    /// Appends the elements of the node that follows this one.
    pub(super) fn append(&mut self, next: &Node) {
        let mut run = Vec::with_capacity(self.span().bytes() + next.span().bytes());
        run.extend_from_slice(self.run().bytes());
        run.extend_from_slice(next.run().bytes());
        *self = Node::from_run(&run, self.len() + next.len());
    }
}

//! A node of a list: a run of elements with free space around it, or one large element. Either can be compressed.

use std::borrow::Cow;
use std::ops::Range;

use super::gap::{self, Span};
use super::packed::{ElementAction, range_of};
use super::{Direction, End};
use crate::listpack::{self, Element, Run};
use crate::lzf;
use crate::size_class::size_class;

/// The minimum size of a node to be compressed, in bytes.
const COMPRESSED_MIN_BYTES: usize = 48;
/// The minimum number of bytes that compression must save.
const WORTHWHILE_BYTES: usize = 8;
/// The ratio of buffer size to run size above which a buffer shrinks.
const SLACK_FACTOR: usize = 2;
/// The divisor of the required size that gives the additional space when a buffer grows.
const GROWTH_DIVISOR: usize = 2;
/// The size in bytes up to which buffers do not shrink.
const SHRINKING_MIN_BYTES: usize = 256;

/// The number of bytes at an end to prefetch before a change: an element or two.
const END_PLACE_BYTES: usize = 128;

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
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
    container: Container,
    compressed: bool,
}

const _: () = assert!(size_of::<Node>() <= 32);

fn to_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a run is smaller than 4 GiB")
}

/// The uncompressed contents of a node.
pub(super) enum Content<'a> {
    Plain(&'a [u8]),
    Run(Run<'a>),
}

impl Node {
    /// Creates a node whose elements are already a run.
    pub(super) fn of_run(run: &[u8], count: usize) -> Self {
        let mut node = Node {
            bytes: Box::default(),
            start: 0,
            end: 0,
            count: to_u32(count),
            container: Container::Packed,
            compressed: false,
        };
        node.place(run, run.len(), End::Tail);
        node
    }

    /// Creates a node with a run of one element.
    pub(super) fn of_element(element: &[u8]) -> Self {
        let mut run = Vec::new();
        listpack::push(&mut run, element);
        Self::of_run(&run, 1)
    }

    /// Creates a node of one large element.
    pub(super) fn plain(element: &[u8]) -> Self {
        Node {
            bytes: element.into(),
            start: 0,
            end: 0,
            count: 1,
            container: Container::Plain,
            compressed: false,
        }
    }

    /// Moves `run` to a new buffer with capacity for `length` bytes.
    fn place(&mut self, run: &[u8], length: usize, free_at: End) {
        let mut bytes = vec![0; size_class(length.max(1))].into_boxed_slice();
        let start = match free_at {
            End::Head => bytes.len() - run.len(),
            End::Tail => 0,
        };
        bytes[start..start + run.len()].copy_from_slice(run);
        self.bytes = bytes;
        self.start = to_u32(start);
        self.end = to_u32(start + run.len());
    }

    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    pub(super) fn container(&self) -> Container {
        self.container
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed
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
        match (self.compressed, self.container) {
            (true, _) => self.end as usize,
            (false, Container::Plain) => self.bytes.len(),
            (false, Container::Packed) => listpack::whole_bytes(self.span().bytes()),
        }
    }

    /// Returns the LZF data of a compressed node and its uncompressed length.
    pub(super) fn compressed(&self) -> Option<(&[u8], usize)> {
        self.compressed.then(|| (&self.bytes[..], self.end as usize))
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
    pub(super) fn run(&self) -> Run<'_> {
        debug_assert!(self.container == Container::Packed && !self.compressed);
        Run::new(&self.bytes[self.start as usize..self.end as usize])
    }

    /// Returns the contents of the node. A compressed node is decompressed into `scratch`.
    #[inline]
    pub(super) fn content<'a>(&'a self, scratch: &'a mut Vec<u8>) -> Content<'a> {
        if self.compressed {
            *scratch = self.unpacked();
            return match self.container {
                Container::Plain => Content::Plain(scratch),
                Container::Packed => Content::Run(listpack::run_of_whole(scratch)),
            };
        }
        match self.container {
            Container::Plain => Content::Plain(&self.bytes),
            Container::Packed => Content::Run(self.run()),
        }
    }

    /// Returns the whole listpack or the element, as stored in files.
    pub(super) fn whole(&self) -> Cow<'_, [u8]> {
        match (self.compressed, self.container) {
            (true, _) => Cow::Owned(self.unpacked()),
            (false, Container::Plain) => Cow::Borrowed(&self.bytes),
            (false, Container::Packed) => {
                let mut whole = Vec::with_capacity(self.limit_bytes());
                listpack::write_whole(&mut whole, self.run().bytes(), self.len());
                Cow::Owned(whole)
            }
        }
    }

    fn unpacked(&self) -> Vec<u8> {
        lzf::decompress(&self.bytes, self.end as usize).expect("what was compressed here is whole")
    }

    pub(super) fn compress(&mut self) {
        let bytes = self.limit_bytes();
        if self.compressed || bytes < COMPRESSED_MIN_BYTES || u32::try_from(bytes).is_err() {
            return;
        }
        let Some(packed) = lzf::compress(&self.whole(), bytes) else {
            return;
        };
        if packed.len() + WORTHWHILE_BYTES >= bytes {
            return;
        }
        self.bytes = packed.into_boxed_slice();
        self.start = 0;
        self.end = to_u32(bytes);
        self.compressed = true;
    }

    pub(super) fn decompress(&mut self) {
        if !self.compressed {
            return;
        }
        let whole = self.unpacked();
        self.compressed = false;
        match self.container {
            Container::Plain => self.bytes = whole.into_boxed_slice(),
            Container::Packed => {
                let run = listpack::run_of_whole(&whole).bytes();
                self.place(run, run.len(), End::Tail);
            }
        }
    }

    /// Replaces a range of the run that contains `removed` elements by `element`, if there is one.
    #[inline]
    pub(super) fn splice(&mut self, range: Range<usize>, removed: usize, element: Option<Element<'_>>) {
        let bytes = element.map_or(0, Element::run_bytes);
        let after = self.span().bytes() - range.len() + bytes;
        if after > self.bytes.len() {
            let free_at = if range.start == 0 { End::Head } else { End::Tail };
            self.move_to(after + after / GROWTH_DIVISOR, free_at);
        }
        let before = self.span();
        let span = gap::splice(&mut self.bytes, 0, before, range, element);
        self.set_span(span);
        self.count = self.count - removed as u32 + u32::from(element.is_some());
    }

    fn move_to(&mut self, length: usize, free_at: End) {
        let old = std::mem::take(&mut self.bytes);
        let span = self.span();
        self.place(&old[span.start..span.end], length, free_at);
    }

    /// Frees all unused space, because the node is no longer at an end of its list.
    pub(super) fn trim(&mut self) {
        if self.container == Container::Packed && !self.compressed {
            let used = self.span().bytes();
            if size_class(used.max(1)) < self.bytes.len() {
                self.move_to(used, End::Tail);
            }
        }
    }

    /// Frees unused space if it is most of the buffer.
    pub(super) fn shrink(&mut self) {
        let used = self.span().bytes();
        if used > 0 && self.bytes.len() > SHRINKING_MIN_BYTES && self.bytes.len() > used * SLACK_FACTOR {
            self.move_to(used + used / GROWTH_DIVISOR, End::Tail);
        }
    }

    #[inline]
    pub(super) fn push(&mut self, end: End, element: Element<'_>) {
        let at = match end {
            End::Head => 0,
            End::Tail => self.span().bytes(),
        };
        self.splice(at..at, 0, Some(element));
    }

    /// Removes `count` elements from element `start` on. Unless `keeps_room` is set, unused space is freed if it is
    /// most of the buffer.
    pub(super) fn remove_range(&mut self, start: usize, count: usize, keeps_room: bool) {
        let range = range_of(self.run(), self.len(), start, count);
        self.splice(range, count, None);
        if !keeps_room {
            self.shrink();
        }
    }

    /// Ensures that the buffer has space for a run of `length` bytes. New space is free at the end `free_at`.
    pub(super) fn make_room(&mut self, length: usize, free_at: End) {
        if length > self.bytes.len() {
            self.move_to(length, free_at);
        }
    }

    /// Returns the memory that a change at one end reads and writes.
    pub(super) fn end_place(&self, end: End) -> &[u8] {
        let at = match (self.container, end) {
            (Container::Packed, End::Head) if !self.compressed => self.start as usize,
            (Container::Packed, End::Tail) if !self.compressed => self.end as usize,
            _ => 0,
        };
        let (before, after) = match end {
            End::Head => (END_PLACE_BYTES, END_PLACE_BYTES / 2),
            End::Tail => (END_PLACE_BYTES, 0),
        };
        let bytes = &self.bytes;
        &bytes[at.saturating_sub(before).min(bytes.len())..(at + after).min(bytes.len())]
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
        if self.container == Container::Plain {
            let removed = remove(Element::Bytes(&self.bytes)) != ElementAction::No;
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
        let after = Node::of_run(&run.bytes()[offset..], self.len() - at);
        let before = Node::of_run(&run.bytes()[..offset], at);
        *self = before;
        after
    }

    /// Appends the elements of the node that follows this one.
    pub(super) fn append(&mut self, next: &Node) {
        let mut run = Vec::with_capacity(self.span().bytes() + next.span().bytes());
        run.extend_from_slice(self.run().bytes());
        run.extend_from_slice(next.run().bytes());
        *self = Node::of_run(&run, self.len() + next.len());
    }
}

//! A list packed into its table entry: a run with free room around it.
//!
//! ```text
//!   0      1        3        5        7
//!   +------+--------+--------+--------+------+---------------+------+
//!   | kind | count  | start  | end    | free | run           | free |
//!   +------+--------+--------+--------+------+---------------+------+
//!          (16 bits each, little-endian)     start           end
//! ```
//!
//! Free room costs nothing where the allocator rounds a size up anyway. It lets both ends grow, and the middle change,
//! without another allocation: the entry's bytes keep their length.

use std::ops::Range;

use super::gap::{self, Span};
use super::{Direction, End};
use crate::listpack::{Element, Run};
use crate::packed::PackedKind;

/// Bytes before run and free room.
pub const HEADER_BYTES: usize = 7;
/// A packed list with a longer run becomes a [`List`](super::List), bytes.
pub const LARGEST_RUN_BYTES: usize = 8 << 10;

const _: () = assert!(LARGEST_RUN_BYTES * 3 / 2 < u16::MAX as usize);

fn field(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn set_field(bytes: &mut [u8], at: usize, number: usize) {
    let number = u16::try_from(number).expect("a packed list is small");
    bytes[at..at + 2].copy_from_slice(&number.to_le_bytes());
}

fn span(bytes: &[u8]) -> Span {
    Span {
        start: field(bytes, 3),
        end: field(bytes, 5),
    }
}

/// A packed list for reading.
#[derive(Clone, Copy, Debug)]
pub struct PackedList<'a> {
    bytes: &'a [u8],
}

impl<'a> PackedList<'a> {
    /// The list in a table entry.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        debug_assert_eq!(PackedKind::of(bytes), PackedKind::List);
        Self { bytes }
    }

    /// Number of elements.
    #[inline]
    pub fn len(self) -> usize {
        field(self.bytes, 1)
    }

    /// Whether there is no element; a key never holds such a list.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The elements.
    #[inline]
    pub fn run(self) -> Run<'a> {
        let span = span(self.bytes);
        Run::new(&self.bytes[span.start..span.end])
    }

    /// Bytes that the elements may still grow by.
    #[inline]
    pub fn free_bytes(self) -> usize {
        self.bytes.len() - HEADER_BYTES - self.run().bytes().len()
    }
}

/// Makes a packed list in `out`, of `length` bytes in all, with its free room at one end.
pub fn build(out: &mut Vec<u8>, run: &[u8], count: usize, length: usize, free_at: End) {
    let free = length - HEADER_BYTES - run.len();
    let start = match free_at {
        End::Head => HEADER_BYTES + free,
        End::Tail => HEADER_BYTES,
    };
    out.clear();
    out.resize(length, 0);
    out[0] = PackedKind::List as u8;
    set_field(out, 1, count);
    set_field(out, 3, start);
    set_field(out, 5, start + run.len());
    out[start..start + run.len()].copy_from_slice(run);
}

/// A packed list to be changed where it is.
#[derive(Debug)]
pub struct PackedListMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> PackedListMut<'a> {
    /// The list in a table entry.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        debug_assert_eq!(PackedKind::of(bytes), PackedKind::List);
        Self { bytes }
    }

    /// The same list for reading.
    #[inline]
    pub fn as_ref(&self) -> PackedList<'_> {
        PackedList { bytes: self.bytes }
    }

    /// Puts `element`, if there is one, in the place of a range of the run that holds `removed` elements. The caller
    /// made sure of the room.
    #[inline]
    pub fn splice(&mut self, range: Range<usize>, removed: usize, element: Option<Element<'_>>) {
        let count = field(self.bytes, 1) - removed + usize::from(element.is_some());
        let after = gap::splice(self.bytes, HEADER_BYTES, span(self.bytes), range, element);
        set_field(self.bytes, 1, count);
        set_field(self.bytes, 3, after.start);
        set_field(self.bytes, 5, after.end);
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, end: End, element: Element<'_>) {
        let at = match end {
            End::Head => 0,
            End::Tail => span(self.bytes).bytes(),
        };
        self.splice(at..at, 0, Some(element));
    }

    /// Removes `count` elements from element `start` on; there are so many.
    pub fn remove_range(&mut self, start: usize, count: usize) {
        let list = self.as_ref();
        let range = range_of(list.run(), list.len(), start, count);
        self.splice(range, count, None);
    }

    /// Removes elements that `remove` picks, in one direction, and tells how many; `remove` also says when to stop.
    pub fn remove_if(&mut self, direction: Direction, mut remove: impl FnMut(Element<'_>) -> Picked) -> usize {
        let span = span(self.bytes);
        let (length, removed) = gap::remove_if(&mut self.bytes[span.start..span.end], direction, &mut remove);
        let count = field(self.bytes, 1) - removed;
        set_field(self.bytes, 1, count);
        set_field(self.bytes, 5, span.start + length);
        removed
    }
}

/// What to do with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    /// It stays.
    No,
    /// It goes.
    Yes,
    /// It goes, and the rest stays.
    Last,
}

/// Where `count` elements from element `start` on lie in a run of `total` elements.
pub(super) fn range_of(run: Run<'_>, total: usize, start: usize, count: usize) -> Range<usize> {
    let length = run.bytes().len();
    let first = run.offset_of(start, total).unwrap_or(length);
    let last = if start + count >= total {
        length
    } else if count <= total - start - count {
        (0..count).fold(first, |offset, _| run.end_of(offset))
    } else {
        run.offset_of(start + count, total).unwrap_or(length)
    };
    first..last
}

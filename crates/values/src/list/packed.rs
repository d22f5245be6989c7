//! A list packed into its table entry: a run with free space around it, and marks.
//!
//! ```text
//!   0      1       3       5     7       8       9
//!   +------+-------+-------+-----+-------+-------+--------------+------+---------------+------+
//!   | kind | count | start | end | marks | valid | offsets      | free | run           | free |
//!   +------+-------+-------+-----+-------+-------+--------------+------+---------------+------+
//!          (16 bits each, little-endian)         2 bytes a mark        start           end
//! ```
//!
//! Free space costs nothing where the allocator rounds a size up anyway. It allows both ends to grow, and the middle to
//! change, without another allocation: the bytes of the entry keep their length.
//!
//! A mark is the position of every eighth element, so that an index is found in a few steps instead of a scan of memory
//! that is not in the cache. Marks only use free space. They are created when a list is built or grows at its tail.
//! Offset number i is that of element 8 (i + 1), counted from `start`; the first `valid` ones are valid. A change
//! invalidates the marks after it, and a change at the head invalidates all of them: recomputing all would be too
//! expensive, and clients that work at the head rarely access elements by index. The next build creates the marks
//! again.

use std::ops::Range;

use super::gap::{self, Span};
use super::position::Direction;
use super::position::ElementAction;
use super::position::ListEnd;
use crate::listpack::{Element, ElementRun};
use crate::packed::PackedKind;

/// The number of bytes before marks, run and free space.
pub const HEADER_BYTES: usize = 9;
/// The maximum length of a run in bytes. A packed list with a longer run becomes a [`List`](super::List).
pub const MAX_RUN_BYTES: usize = 8 << 10;

/// The number of elements from one mark to the next.
const MARK_INTERVAL: usize = 8;
const MARK_BYTES: usize = 2;
const MARKS_MAX: usize = u8::MAX as usize;

const _: () = assert!(MAX_RUN_BYTES * 3 / 2 < u16::MAX as usize);

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

/// Returns the start of the part that contains free space and run.
fn floor(bytes: &[u8]) -> usize {
    HEADER_BYTES + usize::from(bytes[7]) * MARK_BYTES
}

/// A packed list for reading.
#[derive(Clone, Copy, Debug)]
pub struct PackedList<'a> {
    bytes: &'a [u8],
}

impl<'a> PackedList<'a> {
    /// Creates a view of the list in a table entry.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        debug_assert_eq!(PackedKind::of(bytes), PackedKind::List);
        Self { bytes }
    }

    /// The number of elements.
    #[inline]
    pub fn len(self) -> usize {
        field(self.bytes, 1)
    }

    /// Returns `true` if there are no elements. A key never contains such a list.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the run of the elements.
    #[inline]
    pub fn run(self) -> ElementRun<'a> {
        let span = span(self.bytes);
        ElementRun::new(&self.bytes[span.start..span.end])
    }

    /// The number of bytes by which the run can grow.
    #[inline]
    pub fn free_bytes(self) -> usize {
        self.bytes.len() - floor(self.bytes) - self.run().bytes().len()
    }

    /// The number of valid marks.
    fn marks(self) -> usize {
        usize::from(self.bytes[8])
    }

    /// Returns the offset in the run of the element that is `strides` strides after the first: 0 or a mark.
    fn mark(self, strides: usize) -> usize {
        match strides {
            0 => 0,
            _ => field(self.bytes, HEADER_BYTES + (strides - 1) * MARK_BYTES),
        }
    }

    /// Returns the offset of element `index`, found from the nearest mark or end, or `None` if the index is out of
    /// range.
    #[inline]
    pub fn offset_of(self, index: usize) -> Option<usize> {
        let (run, count) = (self.run(), self.len());
        if index >= count {
            return None;
        }
        let before = (index / MARK_INTERVAL).min(self.marks());
        let (behind, behind_offset) = if before < self.marks() {
            ((before + 1) * MARK_INTERVAL, self.mark(before + 1))
        } else {
            (count, run.bytes().len())
        };
        let first = before * MARK_INTERVAL;
        if index - first <= behind - index {
            (first..index).try_fold(self.mark(before), |offset, _| Some(run.step(offset)?.1))
        } else {
            (index..behind).try_fold(behind_offset, |offset, _| run.previous_offset(offset))
        }
    }

    /// Returns the range of the run that contains `count` elements from element `start` on.
    pub(super) fn range_of(self, start: usize, count: usize) -> Range<usize> {
        let length = self.run().bytes().len();
        let first = self.offset_of(start).unwrap_or(length);
        let last = match count {
            1 => self.run().end_of(first),
            _ => self.offset_of(start + count).unwrap_or(length),
        };
        first..last
    }
}

/// The input for building a packed list.
#[derive(Clone, Copy, Debug)]
pub struct PackedListPlan<'a> {
    /// The elements.
    pub run: ElementRun<'a>,
    /// The number of elements.
    pub count: usize,
    /// The number of elements that will be added.
    pub added_elements: usize,
    /// The number of bytes that the added elements take.
    pub added_bytes: usize,
    /// The end at which they will be added.
    pub free_end: ListEnd,
}

impl<'a> PackedListPlan<'a> {
    /// Creates the plan of a list to which nothing will be added.
    pub fn of_run(run: ElementRun<'a>, count: usize) -> Self {
        PackedListPlan {
            run,
            count,
            added_elements: 0,
            added_bytes: 0,
            free_end: ListEnd::Tail,
        }
    }

    /// The minimum size of the packed list in bytes.
    pub fn min_bytes(&self) -> usize {
        HEADER_BYTES + self.run.bytes().len() + self.added_bytes
    }

    /// Returns the number of marks to reserve in a list of `length` bytes.
    fn marks(&self, length: usize) -> usize {
        let (count, used) = (self.count + self.added_elements, self.min_bytes());
        // The number of elements when the space is used up, if their average size does not change.
        let expected = count * length / used;
        let spare = (length - used) / MARK_BYTES;
        (expected / MARK_INTERVAL).min(spare).min(MARKS_MAX)
    }

    /// Builds the packed list in `out`, with a total length of `length` bytes.
    pub fn build(&self, out: &mut Vec<u8>, length: usize) {
        let run = self.run.bytes();
        out.clear();
        out.resize(length, 0);
        out[0] = PackedKind::List as u8;
        out[7] = self.marks(length) as u8;
        let start = match self.free_end {
            ListEnd::Head => length - run.len(),
            ListEnd::Tail => floor(out),
        };
        set_field(out, 1, self.count);
        set_field(out, 3, start);
        set_field(out, 5, start + run.len());
        out[start..start + run.len()].copy_from_slice(run);
        PackedListMut::new(out).extend_marks();
    }
}

/// A packed list for modification in place.
#[derive(Debug)]
pub struct PackedListMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> PackedListMut<'a> {
    /// Creates a view of the list in a table entry.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        debug_assert_eq!(PackedKind::of(bytes), PackedKind::List);
        Self { bytes }
    }

    /// Returns the list for reading.
    #[inline]
    pub fn as_ref(&self) -> PackedList<'_> {
        PackedList { bytes: self.bytes }
    }

    /// Replaces a range of the run that contains `removed` elements by `element`, if there is one. The caller must
    /// ensure that there is enough space.
    #[inline]
    pub fn splice(&mut self, range: Range<usize>, removed: usize, element: Option<Element<'_>>) {
        let (before, count) = (span(self.bytes), field(self.bytes, 1));
        let after = gap::splice(self.bytes, floor(self.bytes), before, range.clone(), element);
        set_field(self.bytes, 1, count - removed + usize::from(element.is_some()));
        set_field(self.bytes, 3, after.start);
        set_field(self.bytes, 5, after.end);
        if range.start == before.bytes() {
            self.add_mark_for_tail(count, range.start);
        } else if removed == 1 && element.is_some() {
            self.shift_marks(range.start, after.bytes(), before.bytes());
        } else {
            self.truncate_marks(range.start);
            if range.start > 0 && range.end < before.bytes() {
                self.extend_marks();
            }
        }
    }

    fn set_marks(&mut self, valid: usize) {
        self.bytes[8] = valid as u8;
    }

    fn add_mark(&mut self, offset: usize) {
        let valid = self.as_ref().marks();
        set_field(self.bytes, HEADER_BYTES + valid * MARK_BYTES, offset);
        self.set_marks(valid + 1);
    }

    /// Adds a mark for an element that was added at the tail, if the element is at a mark's position and all marks
    /// before are valid.
    #[inline]
    fn add_mark_for_tail(&mut self, index: usize, offset: usize) {
        let valid = self.as_ref().marks();
        if index == (valid + 1) * MARK_INTERVAL && valid < usize::from(self.bytes[7]) {
            self.add_mark(offset);
        }
    }

    /// Adds marks after the last valid one.
    fn extend_marks(&mut self) {
        loop {
            let list = self.as_ref();
            let (valid, run) = (list.marks(), list.run());
            if valid == usize::from(self.bytes[7]) || (valid + 1) * MARK_INTERVAL >= list.len() {
                return;
            }
            let offset = (0..MARK_INTERVAL).fold(list.mark(valid), |offset, _| run.end_of(offset));
            self.add_mark(offset);
        }
    }

    /// Returns the number of marks at or before an offset.
    fn marks_up_to(&self, offset: usize) -> usize {
        let list = self.as_ref();
        (1..=list.marks())
            .rev()
            .find(|&strides| list.mark(strides) <= offset)
            .unwrap_or(0)
    }

    /// Invalidates the marks after an offset.
    fn truncate_marks(&mut self, offset: usize) {
        self.set_marks(self.marks_up_to(offset));
    }

    /// Moves the marks after an offset at which one element replaced another.
    fn shift_marks(&mut self, offset: usize, after_bytes: usize, before_bytes: usize) {
        if after_bytes == before_bytes {
            return;
        }
        for strides in self.marks_up_to(offset) + 1..=self.as_ref().marks() {
            let moved = self.as_ref().mark(strides) + after_bytes - before_bytes;
            set_field(self.bytes, HEADER_BYTES + (strides - 1) * MARK_BYTES, moved);
        }
    }

    /// Adds an element at one end.
    #[inline]
    pub fn push(&mut self, end: ListEnd, element: Element<'_>) {
        let at = match end {
            ListEnd::Head => 0,
            ListEnd::Tail => span(self.bytes).bytes(),
        };
        self.splice(at..at, 0, Some(element));
    }

    /// Removes `count` elements from element `start` on, all of which must exist.
    pub fn remove_range(&mut self, start: usize, count: usize) {
        let range = self.as_ref().range_of(start, count);
        self.splice(range, count, None);
    }

    /// Removes the elements that `remove` selects, in the given direction. Returns the number of removed elements.
    /// `remove` also decides when to stop.
    pub fn remove_if(&mut self, direction: Direction, mut remove: impl FnMut(Element<'_>) -> ElementAction) -> usize {
        let span = span(self.bytes);
        let (length, removed) = gap::remove_if(&mut self.bytes[span.start..span.end], direction, &mut remove);
        let count = field(self.bytes, 1) - removed;
        set_field(self.bytes, 1, count);
        set_field(self.bytes, 5, span.start + length);
        if removed > 0 {
            self.set_marks(0);
            self.extend_marks();
        }
        removed
    }
}

/// Returns the range that contains `count` elements from element `start` on in a run of `total` elements.
pub(super) fn range_of(run: ElementRun<'_>, total: usize, start: usize, count: usize) -> Range<usize> {
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

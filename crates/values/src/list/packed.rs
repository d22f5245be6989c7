//! A list packed into its table entry: a run with free room around it, and marks.
//!
//! ```text
//!   0      1       3       5     7       8       9
//!   +------+-------+-------+-----+-------+-------+--------------+------+---------------+------+
//!   | kind | count | start | end | marks | valid | offsets      | free | run           | free |
//!   +------+-------+-------+-----+-------+-------+--------------+------+---------------+------+
//!          (16 bits each, little-endian)         2 bytes a mark        start           end
//! ```
//!
//! Free room costs nothing where the allocator rounds a size up anyway. It lets both ends grow, and the middle change,
//! without another allocation: the entry's bytes keep their length.
//!
//! A mark tells where every eighth element is, so that an index is found in a few steps instead of a walk through cold
//! memory. Marks live on free room alone, and are made when a list is built or grows at its tail. Offset number i is
//! that of element 8 (i + 1), counted from `start`; the first `valid` ones hold. A change makes those behind it invalid,
//! and one at the head all of them: they would all have to be counted anew, and who works at the head seldom asks for
//! an index. The next building makes them again.

use std::ops::Range;

use super::gap::{self, Span};
use super::{Direction, End};
use crate::listpack::{Element, Run};
use crate::packed::PackedKind;

/// Bytes before marks, run and free room.
pub const HEADER_BYTES: usize = 9;
/// A packed list with a longer run becomes a [`List`](super::List), bytes.
pub const LARGEST_RUN_BYTES: usize = 8 << 10;

/// Elements from one mark to the next.
const STRIDE: usize = 8;
const MARK_BYTES: usize = 2;
const MARKS_MAX: usize = u8::MAX as usize;

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

/// Where free room and run begin.
fn floor(bytes: &[u8]) -> usize {
    HEADER_BYTES + usize::from(bytes[7]) * MARK_BYTES
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
        self.bytes.len() - floor(self.bytes) - self.run().bytes().len()
    }

    /// How many marks hold.
    fn marks(self) -> usize {
        usize::from(self.bytes[8])
    }

    /// The element of a number of strides from the first, as an offset in the run; a mark, or the start.
    fn mark(self, strides: usize) -> usize {
        match strides {
            0 => 0,
            _ => field(self.bytes, HEADER_BYTES + (strides - 1) * MARK_BYTES),
        }
    }

    /// The offset of element `index`, walked to from the nearest mark or end. `None` if there are not so many.
    #[inline]
    pub fn offset_of(self, index: usize) -> Option<usize> {
        let (run, count) = (self.run(), self.len());
        if index >= count {
            return None;
        }
        let before = (index / STRIDE).min(self.marks());
        let (behind, behind_offset) = if before < self.marks() {
            ((before + 1) * STRIDE, self.mark(before + 1))
        } else {
            (count, run.bytes().len())
        };
        let first = before * STRIDE;
        if index - first <= behind - index {
            (first..index).try_fold(self.mark(before), |offset, _| Some(run.step(offset)?.1))
        } else {
            (index..behind).try_fold(behind_offset, |offset, _| run.before(offset))
        }
    }

    /// Where `count` elements from element `start` on lie in the run.
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

/// What a packed list is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The elements.
    pub run: Run<'a>,
    /// How many they are.
    pub count: usize,
    /// How many more are about to come.
    pub more: usize,
    /// Bytes that those take.
    pub more_bytes: usize,
    /// At which end.
    pub free_at: End,
}

impl<'a> Plan<'a> {
    /// A list that nothing is about to be added to.
    pub fn of_run(run: Run<'a>, count: usize) -> Self {
        Plan {
            run,
            count,
            more: 0,
            more_bytes: 0,
            free_at: End::Tail,
        }
    }

    /// Bytes that the packed list needs at least.
    pub fn min_bytes(&self) -> usize {
        HEADER_BYTES + self.run.bytes().len() + self.more_bytes
    }

    /// How many marks to make room for, in a list of `length` bytes.
    fn marks(&self, length: usize) -> usize {
        let (count, used) = (self.count + self.more, self.min_bytes());
        // As many elements as there will be when the room is used up, if they stay as large as they are.
        let expected = count * length / used;
        let spare = (length - used) / MARK_BYTES;
        (expected / STRIDE).min(spare).min(MARKS_MAX)
    }

    /// Makes the packed list in `out`, of `length` bytes in all.
    pub fn build(&self, out: &mut Vec<u8>, length: usize) {
        let run = self.run.bytes();
        out.clear();
        out.resize(length, 0);
        out[0] = PackedKind::List as u8;
        out[7] = self.marks(length) as u8;
        let start = match self.free_at {
            End::Head => length - run.len(),
            End::Tail => floor(out),
        };
        set_field(out, 1, self.count);
        set_field(out, 3, start);
        set_field(out, 5, start + run.len());
        out[start..start + run.len()].copy_from_slice(run);
        PackedListMut::new(out).mark_on();
    }
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
        let (before, count) = (span(self.bytes), field(self.bytes, 1));
        let after = gap::splice(self.bytes, floor(self.bytes), before, range.clone(), element);
        set_field(self.bytes, 1, count - removed + usize::from(element.is_some()));
        set_field(self.bytes, 3, after.start);
        set_field(self.bytes, 5, after.end);
        if range.start == before.bytes() {
            self.mark_last(count, range.start);
        } else if removed == 1 && element.is_some() {
            self.move_marks(range.start, after.bytes(), before.bytes());
        } else {
            self.keep_marks(range.start);
            if range.start > 0 && range.end < before.bytes() {
                self.mark_on();
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

    /// Marks an element that was added at the tail, if it is one to be marked and all before it are.
    #[inline]
    fn mark_last(&mut self, index: usize, offset: usize) {
        let valid = self.as_ref().marks();
        if index == (valid + 1) * STRIDE && valid < usize::from(self.bytes[7]) {
            self.add_mark(offset);
        }
    }

    /// Marks what follows the last mark.
    fn mark_on(&mut self) {
        loop {
            let list = self.as_ref();
            let (valid, run) = (list.marks(), list.run());
            if valid == usize::from(self.bytes[7]) || (valid + 1) * STRIDE >= list.len() {
                return;
            }
            let offset = (0..STRIDE).fold(list.mark(valid), |offset, _| run.end_of(offset));
            self.add_mark(offset);
        }
    }

    /// How many marks are not behind an offset.
    fn marks_up_to(&self, offset: usize) -> usize {
        let list = self.as_ref();
        (1..=list.marks())
            .rev()
            .find(|&strides| list.mark(strides) <= offset)
            .unwrap_or(0)
    }

    /// Forgets the marks behind an offset.
    fn keep_marks(&mut self, offset: usize) {
        self.set_marks(self.marks_up_to(offset));
    }

    /// Moves the marks behind an offset, where one element took another's place.
    fn move_marks(&mut self, offset: usize, after_bytes: usize, before_bytes: usize) {
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
    pub fn push(&mut self, end: End, element: Element<'_>) {
        let at = match end {
            End::Head => 0,
            End::Tail => span(self.bytes).bytes(),
        };
        self.splice(at..at, 0, Some(element));
    }

    /// Removes `count` elements from element `start` on; there are so many.
    pub fn remove_range(&mut self, start: usize, count: usize) {
        let range = self.as_ref().range_of(start, count);
        self.splice(range, count, None);
    }

    /// Removes elements that `remove` picks, in one direction, and tells how many; `remove` also says when to stop.
    pub fn remove_if(&mut self, direction: Direction, mut remove: impl FnMut(Element<'_>) -> ElementAction) -> usize {
        let span = span(self.bytes);
        let (length, removed) = gap::remove_if(&mut self.bytes[span.start..span.end], direction, &mut remove);
        let count = field(self.bytes, 1) - removed;
        set_field(self.bytes, 1, count);
        set_field(self.bytes, 5, span.start + length);
        if removed > 0 {
            self.set_marks(0);
            self.mark_on();
        }
        removed
    }
}

/// What to do with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementAction {
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

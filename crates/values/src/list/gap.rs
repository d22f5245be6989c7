//! A run inside a larger buffer with free space on both sides, so that both ends grow and shrink without moving the
//! rest.
//!
//! ```text
//!   floor     start                    end          length
//!   +---------+------------------------+------------+
//!   | free    | run                    | free       |
//!   +---------+------------------------+------------+
//! ```

use std::ops::Range;

use super::position::Direction;
use super::position::ElementAction;
use super::position::ListEnd;
use crate::listpack::{self, Element, ElementRun};

/// The position of the run in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Span {
    pub(super) fn bytes(self) -> usize {
        self.end - self.start
    }
}

/// Replaces `range` of the run by `element`, if there is one. The shorter side is moved if there is space next to it.
/// The total free space must be sufficient. Returns the new position of the run.
pub(super) fn splice(
    buffer: &mut [u8],
    floor: usize,
    span: Span,
    range: Range<usize>,
    element: Option<Element<'_>>,
) -> Span {
    let bytes = element.map_or(0, Element::run_bytes);
    let (span, at) = make_hole(buffer, floor, span, range, bytes);
    if let Some(element) = element {
        listpack::write_element(&mut buffer[at..at + bytes], element);
    }
    span
}

/// Replaces `range` of the run by a hole of `bytes` bytes. Returns the positions of the run and of the hole.
fn make_hole(buffer: &mut [u8], floor: usize, span: Span, range: Range<usize>, bytes: usize) -> (Span, usize) {
    if range.len() == bytes {
        return (span, span.start + range.start);
    }
    let (head, tail) = (range.start, span.bytes() - range.end);
    let (before, after) = (span.start - floor, buffer.len() - span.end);
    let room = range.len();
    assert!(
        before + room + after >= bytes,
        "the run has room for what is put into it"
    );
    let side = if head < tail { ListEnd::Head } else { ListEnd::Tail };
    let fits = |side| match side {
        ListEnd::Head => before + room >= bytes,
        ListEnd::Tail => after + room >= bytes,
    };
    let other = if side == ListEnd::Head {
        ListEnd::Tail
    } else {
        ListEnd::Head
    };
    // In the middle, either side may move. At an end, all free space goes to the side on which the run grows.
    let moved = if fits(side) {
        shifted(span, side, room, bytes)
    } else if head.min(tail) > 0 && fits(other) {
        shifted(span, other, room, bytes)
    } else {
        let total = span.bytes() - room + bytes;
        match side {
            ListEnd::Head => Span {
                start: buffer.len() - total,
                end: buffer.len(),
            },
            ListEnd::Tail => Span {
                start: floor,
                end: floor + total,
            },
        }
    };
    let (old_head, old_tail) = (span.start..span.start + head, span.end - tail..span.end);
    // The part that moves towards the other one is copied last, so that it does not overwrite the other one.
    if moved.start < span.start {
        buffer.copy_within(old_head, moved.start);
        buffer.copy_within(old_tail, moved.end - tail);
    } else {
        buffer.copy_within(old_tail, moved.end - tail);
        buffer.copy_within(old_head, moved.start);
    }
    (moved, moved.start + head)
}

/// Returns the span after the part on one side of a hole moved, so that the size of the hole changes from `room` to
/// `bytes`.
fn shifted(span: Span, side: ListEnd, room: usize, bytes: usize) -> Span {
    match side {
        ListEnd::Head => Span {
            start: span.start + room - bytes,
            ..span
        },
        ListEnd::Tail => Span {
            end: span.end - room + bytes,
            ..span
        },
    }
}

/// Removes the elements of a run that `remove` selects, and closes the gaps towards the start of the run. Returns the
/// new length of the run and the number of removed elements.
pub(super) fn remove_if(
    run: &mut [u8],
    direction: Direction,
    remove: &mut impl FnMut(Element<'_>) -> ElementAction,
) -> (usize, usize) {
    // The ranges of the selected elements, in the order of the iteration.
    let mut gone: Vec<Range<usize>> = Vec::new();
    let all = ElementRun::new(run);
    let mut walk = all.iter();
    loop {
        let next = match direction {
            Direction::Forward => walk.next(),
            Direction::Backward => walk.next_back(),
        };
        let Some((offset, element)) = next else { break };
        let picked = remove(element);
        if picked != ElementAction::Keep {
            gone.push(offset..all.end_of(offset));
        }
        if picked == ElementAction::RemoveAndStop {
            break;
        }
    }
    if direction == Direction::Backward {
        gone.reverse();
    }
    let Some(mut write) = gone.first().map(|first| first.start) else {
        return (run.len(), 0);
    };
    for (index, range) in gone.iter().enumerate() {
        let kept = range.end..gone.get(index + 1).map_or(run.len(), |next| next.start);
        let length = kept.len();
        run.copy_within(kept, write);
        write += length;
    }
    (write, gone.len())
}

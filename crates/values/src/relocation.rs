//! Relocation of the parts of a value: active defragmentation moves them out of sparse slabs of the allocator.
//!
//! A value of many parts is moved in steps. Between two steps it may change in any way: a [`PartCursor`] is a position
//! in the order of the parts, and parts that change their position meanwhile may be passed over, or be seen twice.
//!
//! The nodes of B-trees stay where they are: pending entries of streams, the tree of a stream's blocks, and the expiry
//! times of fields.

use std::collections::VecDeque;

/// Moves allocations, if it finds that worthwhile.
pub trait PartMover {
    /// Returns `true` if the work of a step is done.
    fn is_exhausted(&self) -> bool;

    /// Moves the elements of a vector, which keeps its capacity.
    fn vec<T>(&mut self, vec: &mut Vec<T>);

    /// Moves the elements of a ring buffer, which keeps its capacity.
    fn deque<T>(&mut self, deque: &mut VecDeque<T>);

    /// Moves the elements of a boxed slice.
    fn boxed_slice<T>(&mut self, slice: &mut Box<[T]>);

    /// Moves a boxed value.
    fn boxed<T>(&mut self, value: &mut Box<T>);
}

/// A position among the parts of a value. The default is the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartCursor {
    /// The kind of parts; their order depends on the type of the value.
    pub(crate) kind: u8,
    /// The position among the parts of this kind.
    pub(crate) at: u128,
}

impl PartCursor {
    /// Returns the position of the first part of a kind.
    pub(crate) const fn of_kind(kind: u8) -> Self {
        PartCursor { kind, at: 0 }
    }

    /// Returns the position among the parts of a kind: 0 if the cursor is before them, `None` if it is after them.
    pub(crate) fn within(self, kind: u8) -> Option<u128> {
        match self.kind.cmp(&kind) {
            std::cmp::Ordering::Less => Some(0),
            std::cmp::Ordering::Equal => Some(self.at),
            std::cmp::Ordering::Greater => None,
        }
    }
}

/// Calls `relocate` for the parts of one kind from the cursor on, at least for one, until the step is done. Returns the
/// cursor of the next part, or `None` if these are all parts of the kind.
pub(crate) fn relocate_parts<'p, P: 'p, M: PartMover>(
    parts: impl IntoIterator<Item = &'p mut P>,
    kind: u8,
    from: PartCursor,
    mover: &mut M,
    mut relocate: impl FnMut(&mut P, &mut M),
) -> Option<PartCursor> {
    let first = usize::try_from(from.within(kind)?).unwrap_or(usize::MAX);
    for (at, part) in parts.into_iter().enumerate().skip(first) {
        relocate(part, mover);
        if mover.is_exhausted() {
            return Some(PartCursor {
                kind,
                at: at as u128 + 1,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests;

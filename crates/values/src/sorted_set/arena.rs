//! An arena of numbered values for the parts of a tree. Numbers of removed values are reused.

use std::collections::BTreeSet;

use super::room::{allocated_bytes, shrink_if_sparse};
use crate::relocation::{PartCursor, PartMover, relocate_parts};

/// The number of values in a chunk. Growth never moves more values than this.
const CHUNK: usize = 64;
/// The number of values up to which an arena keeps the memory of removed ones.
const MIN_SPARSE_VALUES: usize = CHUNK;
/// The approximate memory of a free number in bytes.
const FREE_NUMBER_BYTES: usize = 8;

/// Values whose numbers do not change.
#[derive(Clone, Debug)]
pub(super) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    /// The numbers of removed values. The lowest is used first, so that the memory at the end can be freed.
    free: BTreeSet<u32>,
    used: u32,
}

impl<T: Default> Arena<T> {
    /// Creates an arena without values.
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: BTreeSet::new(),
            used: 0,
        }
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.used as usize - self.free.len()
    }

    /// Adds a value and returns its number.
    pub(super) fn add(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop_first() {
            *self.at_mut(number) = value;
            return number;
        }
        let number = self.used;
        if (number as usize).is_multiple_of(CHUNK) {
            // The first chunk starts small, because the tree may be small.
            let room = if number == 0 { 4 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(value);
        }
        self.used += 1;
        number
    }

    /// Removes a value and returns it.
    pub(super) fn remove(&mut self, number: u32) -> T {
        self.free.insert(number);
        std::mem::take(self.at_mut(number))
    }

    /// Returns `true` if less than half of the memory is used, and it is worth to free some.
    pub(super) fn is_sparse(&self) -> bool {
        self.used as usize > MIN_SPARSE_VALUES && self.free.len() > self.used as usize / 2
    }

    /// Frees memory at the end of a sparse arena: places without a value, or else the place of the last value, which is
    /// moved to a free number. Returns the old and the new number of that value; `None` if no value was moved because
    /// the arena is not sparse any more.
    pub(super) fn move_last(&mut self) -> Option<(u32, u32)> {
        while self.is_sparse() {
            let last = self.used - 1;
            if self.free.remove(&last) {
                self.drop_last();
                continue;
            }
            let to = self.free.pop_first()?;
            *self.at_mut(to) = std::mem::take(self.at_mut(last));
            self.drop_last();
            return Some((last, to));
        }
        None
    }

    fn drop_last(&mut self) {
        self.used -= 1;
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.pop();
        }
        if (self.used as usize).is_multiple_of(CHUNK) {
            self.chunks.pop();
            shrink_if_sparse(&mut self.chunks);
        }
    }

    /// Returns the value with this number.
    #[inline]
    pub(super) fn at(&self, number: u32) -> &T {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Returns the value with this number for modification.
    #[inline]
    pub(super) fn at_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Moves the chunks of values, which are the parts of this kind, and calls `relocate` for each value in them.
    pub(super) fn move_parts<M: PartMover>(
        &mut self,
        kind: u8,
        from: PartCursor,
        mover: &mut M,
        relocate: impl Fn(&mut T, &mut M),
    ) -> Option<PartCursor> {
        if from <= PartCursor::of_kind(kind) {
            mover.vec(&mut self.chunks);
        }
        relocate_parts(&mut self.chunks, kind, from, mover, |chunk, mover| {
            mover.vec(chunk);
            chunk.iter_mut().for_each(|value| relocate(value, mover));
        })
    }

    /// The number of bytes that the arena allocates, excluding allocations of its values.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        let first = self.chunks.first().map_or(0, allocated_bytes);
        let full = self.chunks.len().saturating_sub(1) * CHUNK * size_of::<T>();
        first + full + allocated_bytes(&self.chunks) + self.free.len() * FREE_NUMBER_BYTES
    }
}

#[cfg(test)]
impl<T: Default> Arena<T> {
    /// Returns the value with this number, including free ones, or `None` beyond the last number.
    pub(super) fn checked_at(&self, number: u32) -> Option<&T> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }
}

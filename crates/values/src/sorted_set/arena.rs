//! An arena of numbered values for the parts of a tree. Numbers of removed values are reused.

use super::room::allocated_bytes;

/// The number of values in a chunk. Growth never moves more values than this.
const CHUNK: usize = 64;

/// Values whose numbers do not change.
#[derive(Clone, Debug)]
pub(super) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    used: u32,
}

impl<T: Default> Arena<T> {
    /// Creates an arena without values.
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.used as usize - self.free.len()
    }

    /// Adds a value and returns its number.
    pub(super) fn add(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
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
        self.free.push(number);
        std::mem::take(self.at_mut(number))
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

    /// The number of bytes that the arena allocates, excluding allocations of its values.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        let first = self.chunks.first().map_or(0, allocated_bytes);
        let full = self.chunks.len().saturating_sub(1) * CHUNK * size_of::<T>();
        first + full + allocated_bytes(&self.chunks) + allocated_bytes(&self.free)
    }
}

#[cfg(test)]
impl<T: Default> Arena<T> {
    /// Returns the value with this number, including free ones, or `None` beyond the last number.
    pub(super) fn checked_at(&self, number: u32) -> Option<&T> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }
}

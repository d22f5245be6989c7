//! Numbered places for the parts of a tree, given out again when they are free.

use super::room::allocated;

/// Places of one chunk: what must be moved at once when the arena grows.
const CHUNK: usize = 64;

/// Values at numbers that stay.
#[derive(Clone, Debug)]
pub(super) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    used: u32,
}

impl<T: Default> Arena<T> {
    /// An arena without values.
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        self.used as usize - self.free.len()
    }

    /// Puts a value in and returns its number.
    pub(super) fn add(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            *self.at_mut(number) = value;
            return number;
        }
        let number = self.used;
        if (number as usize).is_multiple_of(CHUNK) {
            // The first chunk grows with a small tree.
            let room = if number == 0 { 4 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(value);
        }
        self.used += 1;
        number
    }

    /// Takes a value out.
    pub(super) fn take(&mut self, number: u32) -> T {
        self.free.push(number);
        std::mem::take(self.at_mut(number))
    }

    /// The value at a number.
    #[inline]
    pub(super) fn at(&self, number: u32) -> &T {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// The value at a number, to be changed.
    #[inline]
    pub(super) fn at_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Bytes that the arena takes from the allocator; not those behind its values.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        let first = self.chunks.first().map_or(0, allocated);
        let full = self.chunks.len().saturating_sub(1) * CHUNK * size_of::<T>();
        first + full + allocated(&self.chunks) + allocated(&self.free)
    }
}

#[cfg(test)]
impl<T: Default> Arena<T> {
    /// The value at a number, free places included; `None` behind the last.
    pub(super) fn checked_at(&self, number: u32) -> Option<&T> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }
}

//! A sorted sequence in chunks: an insertion moves the items of one chunk only, and few items take little memory.

use std::cmp::Ordering;

use crate::relocation::{PartCursor, PartMover, relocate_parts};

/// The maximum number of items of a chunk. A full chunk is split in two.
const CHUNK_ITEMS: usize = if cfg!(test) { 8 } else { 512 };

/// A sorted sequence. The caller knows the order of its items.
#[derive(Clone, Debug)]
pub(super) struct SortedChunks<T> {
    /// No chunk is empty.
    chunks: Vec<Vec<T>>,
    len: usize,
}

/// The position of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkPosition {
    chunk: usize,
    item: usize,
}

impl<T> Default for SortedChunks<T> {
    fn default() -> Self {
        SortedChunks {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T> SortedChunks<T> {
    /// Returns the position of the item for which `compare` returns `Equal`, or else the position at which such an item
    /// is to be inserted. `compare` returns how an item compares to the one that is searched.
    pub fn find(&self, compare: impl Fn(&T) -> Ordering) -> Result<ChunkPosition, ChunkPosition> {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|first| compare(first) != Ordering::Greater));
        let chunk = after.saturating_sub(1);
        let found = self
            .chunks
            .get(chunk)
            .map_or(Err(0), |items| items.binary_search_by(compare));
        found
            .map(|item| ChunkPosition { chunk, item })
            .map_err(|item| ChunkPosition { chunk, item })
    }

    /// Returns the position of the first item for which `is_before` returns `false`. `is_before` returns `true` for the
    /// items of a leading part of the sequence, and `false` for all others.
    pub fn first_after(&self, is_before: impl Fn(&T) -> bool) -> Option<ChunkPosition> {
        let chunk = self
            .chunks
            .partition_point(|chunk| chunk.last().is_some_and(&is_before));
        let item = self.chunks.get(chunk)?.partition_point(is_before);
        Some(ChunkPosition { chunk, item })
    }

    /// Returns the position of the last item for which `is_before` returns `true`; see [`Self::first_after`].
    pub fn last_before(&self, is_before: impl Fn(&T) -> bool) -> Option<ChunkPosition> {
        let chunk = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(&is_before))
            .checked_sub(1)?;
        let item = self.chunks[chunk].partition_point(is_before).checked_sub(1)?;
        Some(ChunkPosition { chunk, item })
    }

    /// Iterates over the items from one position to another, both inclusive. Without items in between there are none.
    pub fn between(&self, first: ChunkPosition, last: ChunkPosition) -> impl DoubleEndedIterator<Item = &T> {
        let chunks = self.chunks.get(first.chunk..=last.chunk).unwrap_or_default();
        chunks.iter().enumerate().flat_map(move |(number, items)| {
            let start = if number == 0 { first.item } else { 0 };
            let end = if first.chunk + number == last.chunk {
                last.item + 1
            } else {
                items.len()
            };
            items.get(start..end).unwrap_or_default()
        })
    }

    /// Returns the last item for modification that keeps the order.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.chunks.last_mut()?.last_mut()
    }

    /// Appends an item that belongs after all others.
    pub fn push(&mut self, item: T) {
        let chunk = self.chunks.len().saturating_sub(1);
        let end = self.chunks.last().map_or(0, Vec::len);
        self.insert(ChunkPosition { chunk, item: end }, item);
    }

    /// Returns the item at a position that [`Self::find`] has found.
    pub fn item(&self, at: ChunkPosition) -> &T {
        &self.chunks[at.chunk][at.item]
    }

    /// Returns the item at a position that [`Self::find`] has found, for modification that keeps the order.
    pub fn item_mut(&mut self, at: ChunkPosition) -> &mut T {
        &mut self.chunks[at.chunk][at.item]
    }

    /// Inserts an item at the position that [`Self::find`] has returned for it. Returns the item's position.
    pub fn insert(&mut self, mut at: ChunkPosition, item: T) -> ChunkPosition {
        self.len += 1;
        let is_last = at.chunk + 1 == self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(at.chunk) else {
            self.chunks.push(vec![item]);
            return at;
        };
        if chunk.len() >= CHUNK_ITEMS {
            // Items are mostly added in their order, as when a stream is loaded: then full chunks stay full. In front
            // of another chunk that would make a chunk of each item, if those that follow are in descending order.
            let split_at = if is_last && at.item == chunk.len() {
                at.item
            } else {
                chunk.len() / 2
            };
            let rest = chunk.split_off(split_at);
            self.chunks.insert(at.chunk + 1, rest);
            if at.item >= split_at {
                at = ChunkPosition {
                    chunk: at.chunk + 1,
                    item: at.item - split_at,
                };
            }
        }
        self.chunks[at.chunk].insert(at.item, item);
        at
    }

    /// Removes the item at a position that [`Self::find`] has found.
    pub fn remove(&mut self, at: ChunkPosition) -> T {
        self.len -= 1;
        let chunk = &mut self.chunks[at.chunk];
        let item = chunk.remove(at.item);
        match chunk.len() {
            0 => drop(self.chunks.remove(at.chunk)),
            len if len < chunk.capacity() / 4 => chunk.shrink_to(2 * len),
            _ => {}
        }
        item
    }

    /// Moves the chunks and calls `relocate` for the items, which are the parts of this kind.
    pub fn move_parts<M: PartMover>(
        &mut self,
        kind: u8,
        from: PartCursor,
        mover: &mut M,
        relocate: impl FnMut(&mut T, &mut M),
    ) -> Option<PartCursor> {
        if from <= PartCursor::of_kind(kind) {
            mover.vec(&mut self.chunks);
            // A chunk has hundreds of items, so there are few.
            self.chunks.iter_mut().for_each(|chunk| mover.vec(chunk));
        }
        relocate_parts(self.chunks.iter_mut().flatten(), kind, from, mover, relocate)
    }

    /// Iterates over the items in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        Items {
            items: self.chunks.iter().flatten(),
            len: self.len,
        }
    }
}

struct Items<I> {
    items: I,
    /// The number of items that are left.
    len: usize,
}

impl<I: Iterator> Iterator for Items<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let next = self.items.next()?;
        self.len -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl<I: Iterator> ExactSizeIterator for Items<I> {}

#[cfg(test)]
mod tests;

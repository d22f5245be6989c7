//! The layout for many records: an arena of chunks and an index in hash order.

use super::chunks::Chunks;
use super::encoding::{Record, RecordHeader, RecordShape};
use super::hash::hash_of;
use super::id::{CHUNK_BYTES, RecordId};
use super::index::Index;
use super::small::{MAX_RECORDS, SmallRecords};
use crate::relocation::{PartCursor, PartMover};

#[derive(Debug)]
pub(super) struct LargeRecords {
    shape: RecordShape,
    len: usize,
    pub(super) chunks: Chunks,
    index: Index,
}

impl Clone for LargeRecords {
    fn clone(&self) -> Self {
        let mut clone = LargeRecords {
            shape: self.shape,
            len: self.len,
            chunks: self.chunks.clone(),
            index: self.index.clone(),
        };
        // A clone has no spare capacity.
        clone.chunks.count_allocated();
        clone.index.count_allocated();
        clone
    }
}

impl LargeRecords {
    pub(super) fn with_capacity(shape: RecordShape, records: usize) -> Self {
        LargeRecords {
            shape,
            len: 0,
            chunks: Chunks::from_chunks(shape, std::iter::empty()),
            index: Index::with_capacity(records),
        }
    }

    /// Creates a large collection from the records of a small one. They keep their ids.
    pub(super) fn from_small(small: &SmallRecords) -> Self {
        let mut index = Index::with_capacity(small.len());
        let unmoved = |_| 0;
        small.for_each(&mut |id, record| index.insert(hash_of(record.key), id, unmoved));
        LargeRecords {
            shape: small.shape(),
            len: small.len(),
            chunks: Chunks::from_chunks(small.shape(), small.chunks()),
            index,
        }
    }

    pub(super) fn shape(&self) -> RecordShape {
        self.shape
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        size_of::<Self>() + self.chunks.allocated_bytes() + self.index.allocated_bytes()
    }

    /// Moves the chunks, then the index.
    pub(super) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        let next = self.chunks.move_parts(from, mover);
        next.or_else(|| self.index.move_parts(from, mover))
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Record<'_>) -> bool) -> Option<RecordId> {
        self.index.find(hash, |id| is_it(self.chunks.record(id)))
    }

    /// Returns the memory near the position at which [`Self::find`] reads first.
    pub(super) fn index_memory(&self, hash: u64) -> &[u8] {
        self.index.search_memory(hash)
    }

    /// Returns the bytes from the first record on that [`Self::find`] reads.
    pub(super) fn record_memory(&self, hash: u64) -> Option<&[u8]> {
        let id = self.index.find(hash, |_| true)?;
        self.chunks.bytes(id.chunk())?.get(id.offset()..)
    }

    pub(super) fn insert(&mut self, hash: u64, record: &Record<'_>, header: &RecordHeader) -> RecordId {
        let id = self.chunks.append(record, header);
        let chunks = &self.chunks;
        let hash_of_id = |number| hash_of(chunks.record(RecordId::from_number(number)).key);
        self.index.insert(hash, id, hash_of_id);
        self.len += 1;
        id
    }

    /// Stores the new version of a record at another position.
    pub(super) fn relocate(
        &mut self,
        hash: u64,
        old: RecordId,
        record: &Record<'_>,
        header: &RecordHeader,
        moved: &mut impl FnMut(RecordId, RecordId, Record<'_>),
    ) -> RecordId {
        let id = self.chunks.append(record, header);
        self.index.replace_id(hash, old, id);
        let sparse = self.chunks.free_record(old);
        if !sparse {
            return id;
        }
        // The new record may be in the chunk that is evacuated now.
        let mut current = id;
        self.evacuate(old.chunk(), &mut |from, to, record| {
            if from == id {
                current = to;
            } else {
                moved(from, to, record);
            }
        });
        current
    }

    pub(super) fn remove(&mut self, hash: u64, id: RecordId, moved: &mut impl FnMut(RecordId, RecordId, Record<'_>)) {
        self.index.remove(hash, id);
        self.len -= 1;
        if self.chunks.free_record(id) {
            self.evacuate(id.chunk(), moved);
        }
    }

    pub(super) fn evacuate(&mut self, chunk: usize, moved: &mut impl FnMut(RecordId, RecordId, Record<'_>)) {
        let index = &mut self.index;
        self.chunks.evacuate(chunk, |old, new, record| {
            index.replace_id(hash_of(record.key), old, new);
            moved(old, new, record);
        });
    }

    /// Returns `true` if so few records remain that the small layout should be used.
    pub(super) fn fits_small(&self) -> bool {
        self.len <= MAX_RECORDS / 2 && self.chunks.live_bytes() <= CHUNK_BYTES / 2
    }

    pub(super) fn scan(&self, from: u64, at_least: usize, visit: &mut dyn FnMut(RecordId, Record<'_>)) -> Option<u64> {
        self.index
            .scan(from, at_least, &mut |id| visit(id, self.chunks.record(id)))
    }

    pub(super) fn random(&self, below: &mut impl FnMut(usize) -> usize) -> Option<RecordId> {
        self.index.random(below)
    }
}

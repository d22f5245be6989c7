//! The arena of a large collection: chunks of 32 KiB, filled one after the other. A large record has a chunk of its
//! own.
//!
//! The size of a chunk is bounded, so no operation copies much. A removed record leaves a hole. Once holes make up more
//! than a quarter of a chunk, its records move to the chunk that is being filled, and the chunk is freed.

use super::encoding::{Record, RecordHeader, RecordParts, RecordShape, next_record, write_hole};
use super::id::{CHUNK_BYTES, RecordId};
use crate::relocation::{PartCursor, PartMover, relocate_parts};
use crate::size_class::{reserve_size_class, size_class};

/// The size of the arena in bytes up to which chunks grow with their contents. In a larger arena, chunks are allocated
/// with their full size.
const FULL_SIZE_CHUNKS_FROM_BYTES: usize = 8 * CHUNK_BYTES;
/// The maximum size in bytes of a record that shares a chunk with other records.
const MAX_SHARED_CHUNK_RECORD_BYTES: usize = 4096;
/// The value of `filling` if no chunk is being filled.
const NO_CHUNK: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    hole_bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Chunks {
    shape: RecordShape,
    /// The chunk to which new records are appended.
    filling: u32,
    chunks: Vec<Chunk>,
    /// The numbers of unused chunks.
    free: Vec<u32>,
    /// The sum of the capacities of all chunks, in bytes.
    allocated: usize,
    /// The total size of all records in bytes.
    live: usize,
}

impl Chunks {
    /// Creates an arena that begins with these chunks. New records are appended to the last of them.
    pub(super) fn from_chunks<'a>(shape: RecordShape, chunks: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut arena = Chunks {
            shape,
            filling: NO_CHUNK,
            chunks: Vec::new(),
            free: Vec::new(),
            allocated: 0,
            live: 0,
        };
        for bytes in chunks {
            let live = live_bytes_in(shape, bytes);
            arena.filling = arena.open_chunk(if bytes.is_empty() { 0 } else { size_class(bytes.len()) });
            let chunk = &mut arena.chunks[arena.filling as usize];
            chunk.bytes.extend_from_slice(bytes);
            chunk.hole_bytes = bytes.len() - live;
            arena.live += live;
        }
        arena
    }

    pub(super) fn live_bytes(&self) -> usize {
        self.live
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.allocated + self.chunks.len() * (size_of::<Chunk>() + size_of::<u32>())
    }

    /// Moves the chunks, which are the parts of kind 0.
    pub(super) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        if from == PartCursor::default() {
            mover.vec(&mut self.chunks);
            mover.vec(&mut self.free);
        }
        relocate_parts(&mut self.chunks, 0, from, mover, |chunk, mover| {
            mover.vec(&mut chunk.bytes)
        })
    }

    /// Recomputes the sum of the capacities after the chunks were cloned.
    pub(super) fn count_allocated(&mut self) {
        self.allocated = self.chunks.iter().map(|chunk| chunk.bytes.capacity()).sum();
    }

    #[inline]
    pub(super) fn record(&self, id: RecordId) -> Record<'_> {
        let bytes = &self.chunks[id.chunk()].bytes;
        RecordParts::of(self.shape, bytes, id.offset()).record(bytes)
    }

    /// Returns the bytes of the record's chunk, and the positions of the record's parts in them.
    #[inline]
    pub(super) fn locate_mut(&mut self, id: RecordId) -> (&mut [u8], RecordParts) {
        let bytes = &mut self.chunks[id.chunk()].bytes;
        let parts = RecordParts::of(self.shape, bytes, id.offset());
        (bytes, parts)
    }

    /// Accounts for a hole of `bytes` bytes that a record left behind it by shrinking.
    pub(super) fn account_for_hole(&mut self, id: RecordId, bytes: usize) {
        self.chunks[id.chunk()].hole_bytes += bytes;
        self.live -= bytes;
    }

    pub(super) fn append(&mut self, record: &Record<'_>, header: &RecordHeader) -> RecordId {
        let (number, offset) = self.reserve(header.total_bytes(record));
        header.append(record, &mut self.chunks[number].bytes);
        RecordId::new(number, offset)
    }

    /// Returns the number of a chunk with capacity for `bytes` bytes, and its current length. The bytes are counted as
    /// live from now on.
    fn reserve(&mut self, bytes: usize) -> (usize, usize) {
        self.live += bytes;
        if bytes > MAX_SHARED_CHUNK_RECORD_BYTES {
            let number = self.open_chunk(size_class(bytes));
            return (number as usize, 0);
        }
        let fits = self
            .chunks
            .get(self.filling as usize)
            .is_some_and(|chunk| chunk.bytes.len() + bytes <= CHUNK_BYTES);
        if !fits {
            let whole = self.allocated >= FULL_SIZE_CHUNKS_FROM_BYTES;
            self.filling = self.open_chunk(if whole { CHUNK_BYTES } else { size_class(bytes) });
        }
        let number = self.filling as usize;
        let chunk = &mut self.chunks[number].bytes;
        let before = chunk.capacity();
        reserve_size_class(chunk, bytes);
        self.allocated += chunk.capacity() - before;
        (number, chunk.len())
    }

    fn open_chunk(&mut self, capacity: usize) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            u32::try_from(self.chunks.len() - 1).expect("as many chunks as an id can name")
        });
        let bytes = Vec::with_capacity(capacity);
        self.allocated += bytes.capacity();
        self.chunks[number as usize] = Chunk { bytes, hole_bytes: 0 };
        number
    }

    /// Empties a chunk and returns its bytes.
    fn take_chunk(&mut self, number: usize) -> Vec<u8> {
        if self.filling as usize == number {
            self.filling = NO_CHUNK;
        }
        let chunk = std::mem::take(&mut self.chunks[number]);
        self.allocated -= chunk.bytes.capacity();
        chunk.bytes
    }

    /// Turns a record into a hole. Returns `true` if holes now take so much of its chunk that the chunk should be
    /// evacuated.
    pub(super) fn free_record(&mut self, id: RecordId) -> bool {
        let chunk = &mut self.chunks[id.chunk()];
        let end = RecordParts::of(self.shape, &chunk.bytes, id.offset()).end;
        let bytes = end - id.offset();
        write_hole(&mut chunk.bytes[id.offset()..end]);
        chunk.hole_bytes += bytes;
        self.live -= bytes;
        self.is_sparse(id.chunk())
    }

    /// Returns `true` if holes take so much of a chunk that it should be evacuated.
    pub(super) fn is_sparse(&self, number: usize) -> bool {
        let chunk = &self.chunks[number];
        chunk.hole_bytes > chunk.bytes.len() / 4
    }

    /// Moves the records of a chunk to the chunk that is being filled.
    pub(super) fn evacuate(&mut self, number: usize, mut moved: impl FnMut(RecordId, RecordId, Record<'_>)) {
        let bytes = self.take_chunk(number);
        let mut at = 0;
        while let Some(start) = next_record(&bytes, at) {
            let parts = RecordParts::of(self.shape, &bytes, start);
            let encoded = &bytes[start..parts.end];
            self.live -= encoded.len();
            let (target, offset) = self.reserve(encoded.len());
            self.chunks[target].bytes.extend_from_slice(encoded);
            moved(
                RecordId::new(number, start),
                RecordId::new(target, offset),
                parts.record(&bytes),
            );
            at = parts.end;
        }
        // The number is reused only now, because otherwise an id could refer both to a record that has moved and to one
        // that has not.
        self.free.push(number as u32);
    }

    /// Returns the bytes of chunk `number`, or `None` if there is no such chunk.
    #[inline]
    pub(super) fn bytes(&self, number: usize) -> Option<&[u8]> {
        self.chunks.get(number).map(|chunk| &chunk.bytes[..])
    }
}

/// Returns the total size of the records in a chunk, in bytes.
fn live_bytes_in(shape: RecordShape, bytes: &[u8]) -> usize {
    let (mut at, mut live) = (0, 0);
    while let Some(start) = next_record(bytes, at) {
        at = RecordParts::of(shape, bytes, start).end;
        live += at - start;
    }
    live
}

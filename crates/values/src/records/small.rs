//! The layout for few records: a short arena, and a tag and an offset for each record, searched linearly.
//!
//! ```text
//!   full chunks, 4 KiB each, oldest first       tail, grows by size classes
//!   | next | record | record | hole | record | ---> | record | record |
//!
//!   index: | len, shape, hole bytes | tag tag tag . . | offset offset offset . . |
//! ```
//!
//! A contiguous arena would grow through size classes that are a quarter apart. With chunks, only the tail has unused
//! capacity. As long as the tail is the only chunk, no pointer needs to be followed to reach it.
//!
//! An offset has 16 bits: the number of the chunk, and the position of the record in it.

use super::encoding::{Record, RecordHeader, RecordParts, RecordShape, next_record, write_hole};
use super::hash::hash_of;
use super::id::RecordId;
use crate::relocation::PartMover;
use crate::scan_page::visit_page;
use crate::size_class::{reserve_size_class, shrink_to_size_class, size_class};

/// The maximum number of records, which are searched linearly.
pub(super) const MAX_RECORDS: usize = 128;
/// The maximum number of record bytes in a chunk, which is also the maximum size of a record.
const CHUNK_BYTES: usize = 4086;
/// The maximum number of chunks, including the tail.
const MAX_CHUNKS: usize = 8;
/// The number of bits of an offset that hold the position within the chunk. The number of the chunk is in the bits
/// above.
const OFFSET_BITS: u32 = 12;

/// The size of length, shape and hole count at the start of the index, in bytes.
const HEADER_BYTES: usize = 4;
/// The size of a tag and an offset in bytes.
const ENTRY_BYTES: usize = 3;
/// The number of records for which an empty index has capacity.
const FIRST_RECORDS: usize = 4;

#[derive(Clone, Debug)]
struct SmallRecordsFull {
    next: Option<Box<SmallRecordsFull>>,
    used: u16,
    bytes: [u8; CHUNK_BYTES],
}

// A full chunk is exactly one size class, and an offset can address every byte of it.
const _: () = assert!(size_of::<SmallRecordsFull>() == 4096 && CHUNK_BYTES <= 1 << OFFSET_BITS);
const _: () = assert!(MAX_CHUNKS << OFFSET_BITS <= 1 << 16);

#[derive(Debug)]
pub(super) struct SmallRecords {
    first: Option<Box<SmallRecordsFull>>,
    tail: Vec<u8>,
    index: Box<[u8]>,
}

impl Clone for SmallRecords {
    fn clone(&self) -> Self {
        // The allocation has this size in any case, and counts with it.
        let mut tail = Vec::new();
        reserve_size_class(&mut tail, self.tail.len());
        tail.extend_from_slice(&self.tail);
        SmallRecords {
            first: self.first.clone(),
            tail,
            index: self.index.clone(),
        }
    }
}

impl SmallRecords {
    pub(super) fn new(shape: RecordShape) -> Self {
        SmallRecords::with_capacity(shape, 0, 0)
    }

    pub(super) fn with_capacity(shape: RecordShape, records: usize, bytes: usize) -> Self {
        let mut small = SmallRecords {
            first: None,
            tail: Vec::new(),
            index: Box::new([0; HEADER_BYTES]),
        };
        small.index[1] = shape as u8;
        small.resize_index(records.clamp(FIRST_RECORDS, MAX_RECORDS));
        if bytes > 0 {
            reserve_size_class(&mut small.tail, bytes.min(CHUNK_BYTES));
        }
        small
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.index[0])
    }

    fn set_len(&mut self, len: usize) {
        self.index[0] = len as u8;
    }

    #[inline]
    pub(super) fn shape(&self) -> RecordShape {
        match self.index[1] {
            0 => RecordShape::Members,
            1 => RecordShape::Scores,
            _ => RecordShape::Fields,
        }
    }

    fn hole_bytes(&self) -> usize {
        usize::from(u16::from_le_bytes([self.index[2], self.index[3]]))
    }

    pub(super) fn account_for_hole(&mut self, bytes: usize) {
        let holes = (self.hole_bytes() + bytes) as u16;
        self.index[2..HEADER_BYTES].copy_from_slice(&holes.to_le_bytes());
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.full_chunks() * size_of::<SmallRecordsFull>() + self.tail.capacity() + self.index.len()
    }

    /// Moves the chunks and the index. There are few.
    pub(super) fn move_parts<M: PartMover>(&mut self, mover: &mut M) {
        let mut full = &mut self.first;
        while let Some(chunk) = full {
            mover.boxed(chunk);
            full = &mut chunk.next;
        }
        mover.vec(&mut self.tail);
        mover.boxed_slice(&mut self.index);
    }

    /// The total size of the records in bytes.
    pub(super) fn live_bytes(&self) -> usize {
        self.used_bytes() - self.hole_bytes()
    }

    fn used_bytes(&self) -> usize {
        self.chunks().map(<[u8]>::len).sum()
    }

    fn full_chunks(&self) -> usize {
        let mut count = 0;
        let mut full = &self.first;
        while let Some(chunk) = full {
            count += 1;
            full = &chunk.next;
        }
        count
    }

    /// Iterates over the chunks, oldest first.
    #[inline]
    pub(super) fn chunks(&self) -> SmallChunks<'_> {
        SmallChunks {
            next: self.first.as_deref(),
            tail: Some(&self.tail),
        }
    }

    #[inline]
    fn chunk(&self, mut number: usize) -> &[u8] {
        let mut full = &self.first;
        while let Some(chunk) = full {
            if number == 0 {
                return &chunk.bytes[..usize::from(chunk.used)];
            }
            number -= 1;
            full = &chunk.next;
        }
        &self.tail
    }

    #[inline]
    fn chunk_mut(&mut self, mut number: usize) -> &mut [u8] {
        let mut full = &mut self.first;
        while let Some(chunk) = full {
            if number == 0 {
                return &mut chunk.bytes[..usize::from(chunk.used)];
            }
            number -= 1;
            full = &mut chunk.next;
        }
        &mut self.tail
    }

    /// Returns the chunk of a record, and the positions of the record's parts in it.
    #[inline]
    pub(super) fn locate_mut(&mut self, id: RecordId) -> (&mut [u8], RecordParts) {
        let shape = self.shape();
        let chunk = self.chunk_mut(id.chunk());
        let parts = RecordParts::of(shape, chunk, id.offset());
        (chunk, parts)
    }

    #[inline]
    pub(super) fn record(&self, id: RecordId) -> Record<'_> {
        let chunk = self.chunk(id.chunk());
        RecordParts::of(self.shape(), chunk, id.offset()).record(chunk)
    }

    fn capacity(&self) -> usize {
        (self.index.len() - HEADER_BYTES) / ENTRY_BYTES
    }

    fn resize_index(&mut self, records: usize) {
        let bytes = size_class(HEADER_BYTES + records * ENTRY_BYTES);
        let mut index = vec![0; bytes].into_boxed_slice();
        let (before, after) = (self.capacity(), (bytes - HEADER_BYTES) / ENTRY_BYTES);
        let len = self.len();
        let tags = HEADER_BYTES + len;
        index[..tags].copy_from_slice(&self.index[..tags]);
        let (before, after) = (HEADER_BYTES + before, HEADER_BYTES + after);
        index[after..after + 2 * len].copy_from_slice(&self.index[before..before + 2 * len]);
        self.index = index;
    }

    /// Returns the id of the record of an entry.
    #[inline]
    pub(super) fn id(&self, entry: usize) -> RecordId {
        let at = HEADER_BYTES + self.capacity() + 2 * entry;
        let offset = usize::from(u16::from_le_bytes([self.index[at], self.index[at + 1]]));
        RecordId::new(offset >> OFFSET_BITS, offset % (1 << OFFSET_BITS))
    }

    #[inline]
    fn set_id(&mut self, entry: usize, id: RecordId) {
        debug_assert!(id.chunk() < MAX_CHUNKS && id.offset() < CHUNK_BYTES, "an offset fits");
        let at = HEADER_BYTES + self.capacity() + 2 * entry;
        let offset = (id.chunk() << OFFSET_BITS | id.offset()) as u16;
        self.index[at..at + 2].copy_from_slice(&offset.to_le_bytes());
    }

    /// Finds the record whose hash may be `hash` and for which `is_it` returns `true`.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Record<'_>) -> bool) -> Option<RecordId> {
        let tag = hash as u8;
        let tags = &self.index[HEADER_BYTES..HEADER_BYTES + self.len()];
        let mut check = |entry| {
            let id = self.id(entry);
            is_it(self.record(id)).then_some(id)
        };
        let mut words = tags.chunks_exact(8);
        let mut start = 0;
        for word in &mut words {
            let mut matches = matches_of(word, tag);
            while matches != 0 {
                let entry = start + (matches.trailing_zeros() / 8) as usize;
                matches &= matches - 1;
                if tags[entry] == tag
                    && let Some(id) = check(entry)
                {
                    return Some(id);
                }
            }
            start += 8;
        }
        let rest = words.remainder().iter().enumerate();
        rest.filter(|(_, other)| **other == tag)
            .find_map(|(entry, _)| check(start + entry))
    }

    /// Returns the first chunk for `piece` 0, and the tail that follows it for `piece` 1.
    pub(super) fn iteration_memory(&self, piece: usize) -> Option<&[u8]> {
        match (&self.first, piece) {
            (Some(full), 0) => Some(&full.bytes),
            (None, 0) | (Some(_), 1) => Some(&self.tail),
            _ => None,
        }
    }

    /// Returns the tags and offsets, which a search reads first.
    pub(super) fn index_memory(&self) -> &[u8] {
        &self.index
    }

    /// Returns the bytes from the first record whose tag matches this hash, which a search reads next.
    pub(super) fn record_memory(&self, hash: u64) -> Option<&[u8]> {
        let tags = &self.index[HEADER_BYTES..HEADER_BYTES + self.len()];
        let id = self.id(tags.iter().position(|tag| *tag == hash as u8)?);
        self.chunk(id.chunk()).get(id.offset()..)
    }

    /// Returns `true` if there is room for one more record of `bytes` bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.len() < MAX_RECORDS && self.has_bytes(bytes)
    }

    /// Returns `true` if the arena has room for `bytes` more bytes.
    pub(super) fn has_bytes(&self, bytes: usize) -> bool {
        bytes <= CHUNK_BYTES && (self.tail.len() + bytes <= CHUNK_BYTES || self.full_chunks() + 1 < MAX_CHUNKS)
    }

    pub(super) fn insert(&mut self, hash: u64, record: &Record<'_>, header: &RecordHeader) -> RecordId {
        self.reserve(header.total_bytes(record));
        let offset = self.tail.len();
        header.append(record, &mut self.tail);
        let id = RecordId::new(self.full_chunks(), offset);
        self.add_entry(hash as u8, id);
        id
    }

    fn add_entry(&mut self, tag: u8, id: RecordId) {
        if self.len() == self.capacity() {
            self.resize_index(self.len() + 1);
        }
        let entry = self.len();
        self.set_len(entry + 1);
        self.index[HEADER_BYTES + entry] = tag;
        self.set_id(entry, id);
    }

    /// Reserves `bytes` bytes at the end of the tail, or of a new tail if they do not fit.
    fn reserve(&mut self, bytes: usize) {
        if self.tail.len() + bytes > CHUNK_BYTES {
            let tail = std::mem::take(&mut self.tail);
            let mut full = Box::new(SmallRecordsFull {
                next: None,
                used: tail.len() as u16,
                bytes: [0; CHUNK_BYTES],
            });
            full.bytes[..tail.len()].copy_from_slice(&tail);
            let mut end = &mut self.first;
            while let Some(chunk) = end {
                end = &mut chunk.next;
            }
            *end = Some(full);
        }
        reserve_size_class(&mut self.tail, bytes);
    }

    fn entry_of(&self, hash: u64, id: RecordId) -> usize {
        (0..self.len())
            .find(|&entry| self.index[HEADER_BYTES + entry] == hash as u8 && self.id(entry) == id)
            .expect("every record is in the index")
    }

    /// Stores the new version of a record at the end of the arena.
    pub(super) fn relocate(
        &mut self,
        hash: u64,
        old: RecordId,
        record: &Record<'_>,
        header: &RecordHeader,
    ) -> RecordId {
        let entry = self.entry_of(hash, old);
        self.free_record(old);
        self.reserve(header.total_bytes(record));
        let id = RecordId::new(self.full_chunks(), self.tail.len());
        header.append(record, &mut self.tail);
        self.set_id(entry, id);
        id
    }

    pub(super) fn remove(&mut self, hash: u64, id: RecordId) {
        let entry = self.entry_of(hash, id);
        let last = self.len() - 1;
        self.index[HEADER_BYTES + entry] = self.index[HEADER_BYTES + last];
        self.set_id(entry, self.id(last));
        self.set_len(last);
        self.free_record(id);
    }

    /// Turns a record into a hole, or truncates the arena if it is the last record.
    fn free_record(&mut self, id: RecordId) {
        let in_tail = id.chunk() == self.full_chunks();
        let (chunk, parts) = self.locate_mut(id);
        if in_tail && parts.end == chunk.len() {
            self.tail.truncate(id.offset());
        } else {
            let place = &mut chunk[id.offset()..parts.end];
            let bytes = place.len();
            write_hole(place);
            self.account_for_hole(bytes);
        }
    }

    /// Returns `true` if holes and unused capacity justify a compaction.
    pub(super) fn is_sparse(&self) -> bool {
        self.hole_bytes() * 4 > self.used_bytes()
            || self.tail.capacity() > 64 && self.tail.len() * 2 < self.tail.capacity()
    }

    /// Compacts the arena: removes all holes.
    pub(super) fn compact(&mut self, moved: &mut impl FnMut(RecordId, RecordId, Record<'_>)) {
        let mut entries = [0u8; MAX_RECORDS];
        let entries = &mut entries[..self.len()];
        entries.iter_mut().zip(0..).for_each(|(entry, number)| *entry = number);
        entries.sort_unstable_by_key(|entry| self.id(usize::from(*entry)));
        let mut compacted = SmallRecords::with_capacity(self.shape(), self.len(), 0);
        for entry in entries {
            let entry = usize::from(*entry);
            let old = self.id(entry);
            let chunk = self.chunk(old.chunk());
            let parts = RecordParts::of(self.shape(), chunk, old.offset());
            let bytes = &chunk[old.offset()..parts.end];
            compacted.reserve(bytes.len());
            let new = RecordId::new(compacted.full_chunks(), compacted.tail.len());
            compacted.tail.extend_from_slice(bytes);
            compacted.add_entry(self.index[HEADER_BYTES + entry], new);
            if old != new {
                moved(old, new, parts.record(chunk));
            }
        }
        shrink_to_size_class(&mut compacted.tail);
        *self = compacted;
    }

    /// Visits all records in memory order.
    pub(super) fn for_each(&self, visit: &mut dyn FnMut(RecordId, Record<'_>)) {
        for (number, chunk) in self.chunks().enumerate() {
            let mut at = 0;
            while let Some(offset) = next_record(chunk, at) {
                let parts = RecordParts::of(self.shape(), chunk, offset);
                visit(RecordId::new(number, offset), parts.record(chunk));
                at = parts.end;
            }
        }
    }

    /// Visits the records whose positions are `from` or greater, as [`visit_page`] does. `position_of` returns the
    /// position of a hash.
    pub(super) fn scan(
        &self,
        from: u64,
        at_least: usize,
        position_of: impl Fn(u64) -> u64,
        visit: &mut dyn FnMut(RecordId, Record<'_>),
    ) -> Option<u64> {
        if from == 0 && self.len() <= at_least {
            self.for_each(visit);
            return None;
        }
        let mut left = [(0, RecordId::new(0, 0)); MAX_RECORDS];
        let mut len = 0;
        self.for_each(&mut |id, record| {
            let position = position_of(hash_of(record.key));
            if position >= from {
                left[len] = (position, id);
                len += 1;
            }
        });
        visit_page(&mut left[..len], at_least, |id| visit(id, self.record(id)))
    }
}

/// An iterator over the chunks of a small collection, oldest first.
#[derive(Clone, Debug)]
pub(super) struct SmallChunks<'a> {
    next: Option<&'a SmallRecordsFull>,
    tail: Option<&'a [u8]>,
}

impl<'a> Iterator for SmallChunks<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let Some(full) = self.next else {
            return self.tail.take();
        };
        self.next = full.next.as_deref();
        Some(&full.bytes[..usize::from(full.used)])
    }
}

/// Returns a word in which the top bit of each byte is set if that byte of `word` equals `tag`. Bytes above the lowest
/// matching byte may be false positives.
#[inline]
fn matches_of(word: &[u8], tag: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(word);
    let differences = u64::from_le_bytes(bytes) ^ (ONES * u64::from(tag));
    differences.wrapping_sub(ONES) & !differences & (ONES << 7)
}

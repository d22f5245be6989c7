//! Few records: one arena, and a tag and an offset for each record, looked through from end to end.
//!
//! ```text
//!   arena: | record | record | hole | record |
//!   index: | tag tag tag . . | offset offset offset . . |        one byte and two bytes each
//! ```

use super::encoding::{Header, Parts, Record, Shape, dig, next_record};
use super::{CHUNK_BYTES, Id, hash_of};
use crate::size_class::{reserve_class, shrink_to_class, size_class};

/// The most records that are looked through.
pub(super) const MAX_RECORDS: usize = 128;
/// A record of more bytes than this gets a chunk of its own.
pub(super) const MAX_RECORD_BYTES: usize = 4096;

/// Bytes of a tag and an offset.
const ENTRY_BYTES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Small {
    pub(super) arena: Vec<u8>,
    index: Box<[u8]>,
    pub(super) hole_bytes: u32,
    len: u8,
    pub(super) shape: Shape,
}

impl Small {
    pub(super) fn new(shape: Shape) -> Self {
        Small {
            arena: Vec::new(),
            index: Box::default(),
            hole_bytes: 0,
            len: 0,
            shape,
        }
    }

    pub(super) fn with_capacity(shape: Shape, records: usize, bytes: usize) -> Self {
        let mut small = Small::new(shape);
        small.resize_index(records.min(MAX_RECORDS));
        reserve_class(&mut small.arena, bytes.min(CHUNK_BYTES));
        small
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.arena.capacity() + self.index.len()
    }

    fn capacity(&self) -> usize {
        self.index.len() / ENTRY_BYTES
    }

    fn resize_index(&mut self, records: usize) {
        let bytes = if records == 0 {
            0
        } else {
            size_class(records * ENTRY_BYTES)
        };
        let mut index = vec![0; bytes].into_boxed_slice();
        let (before, after) = (self.capacity(), bytes / ENTRY_BYTES);
        let len = self.len();
        index[..len].copy_from_slice(&self.index[..len]);
        index[after..after + 2 * len].copy_from_slice(&self.index[before..before + 2 * len]);
        self.index = index;
    }

    #[inline]
    pub(super) fn offset(&self, entry: usize) -> usize {
        let at = self.capacity() + 2 * entry;
        usize::from(u16::from_le_bytes([self.index[at], self.index[at + 1]]))
    }

    #[inline]
    fn set_offset(&mut self, entry: usize, offset: usize) {
        debug_assert!(offset < CHUNK_BYTES, "an offset within the arena");
        let at = self.capacity() + 2 * entry;
        self.index[at..at + 2].copy_from_slice(&(offset as u16).to_le_bytes());
    }

    /// The entry and the record that has this hash and for which `is_it` holds.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Record<'_>) -> bool) -> Option<Id> {
        let tag = hash as u8;
        let tags = &self.index[..self.len()];
        let mut words = tags.chunks_exact(8);
        let mut start = 0;
        for word in &mut words {
            let mut matches = matches_of(word, tag);
            while matches != 0 {
                let entry = start + (matches.trailing_zeros() / 8) as usize;
                matches &= matches - 1;
                if tags[entry] == tag && is_it(self.record(self.offset(entry))) {
                    return Some(Id::new(0, self.offset(entry)));
                }
            }
            start += 8;
        }
        for (entry, other) in words.remainder().iter().enumerate() {
            if *other == tag && is_it(self.record(self.offset(start + entry))) {
                return Some(Id::new(0, self.offset(start + entry)));
            }
        }
        None
    }

    #[inline]
    pub(super) fn record(&self, offset: usize) -> Record<'_> {
        Parts::of(self.shape, &self.arena, offset).record(&self.arena)
    }

    /// Tags and offsets: what a search reads first.
    pub(super) fn index_place(&self) -> &[u8] {
        &self.index
    }

    /// The start of the first record whose tag is that of this hash: what a search reads next.
    pub(super) fn record_place(&self, hash: u64) -> Option<&[u8]> {
        let entry = self.index[..self.len()].iter().position(|tag| *tag == hash as u8)?;
        self.arena.get(self.offset(entry)..)
    }

    /// Whether one more record of so many bytes has room.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.len() < MAX_RECORDS && bytes <= MAX_RECORD_BYTES && self.has_bytes(bytes)
    }

    /// Whether so many bytes more have room in the arena.
    pub(super) fn has_bytes(&self, bytes: usize) -> bool {
        self.arena.len() + bytes <= CHUNK_BYTES
    }

    pub(super) fn insert(&mut self, hash: u64, record: &Record<'_>, header: &Header) -> Id {
        if self.len() == self.capacity() {
            self.resize_index(self.len() + 1);
        }
        let entry = self.len();
        self.len += 1;
        self.index[entry] = hash as u8;
        let offset = self.append(record, header);
        self.set_offset(entry, offset);
        Id::new(0, offset)
    }

    fn append(&mut self, record: &Record<'_>, header: &Header) -> usize {
        let offset = self.arena.len();
        reserve_class(&mut self.arena, header.total_bytes(record));
        header.append(record, &mut self.arena);
        offset
    }

    fn entry_of(&self, hash: u64, offset: usize) -> usize {
        (0..self.len())
            .find(|&entry| self.index[entry] == hash as u8 && self.offset(entry) == offset)
            .expect("every record is in the index")
    }

    /// Stores the record anew, behind the others.
    pub(super) fn relocate(&mut self, hash: u64, old: usize, record: &Record<'_>, header: &Header) -> Id {
        let entry = self.entry_of(hash, old);
        self.bury(old);
        let offset = self.append(record, header);
        self.set_offset(entry, offset);
        Id::new(0, offset)
    }

    pub(super) fn remove(&mut self, hash: u64, offset: usize) {
        let entry = self.entry_of(hash, offset);
        let last = self.len() - 1;
        self.index[entry] = self.index[last];
        self.set_offset(entry, self.offset(last));
        self.len -= 1;
        self.bury(offset);
    }

    /// Makes a hole of a record, or the end of the arena if it was the last.
    fn bury(&mut self, offset: usize) {
        let end = Parts::of(self.shape, &self.arena, offset).end;
        if end == self.arena.len() {
            self.arena.truncate(offset);
        } else {
            dig(&mut self.arena[offset..end]);
            self.hole_bytes += (end - offset) as u32;
        }
    }

    /// Whether holes and unused capacity are worth a compaction.
    pub(super) fn is_sparse(&self) -> bool {
        self.hole_bytes as usize * 4 > self.arena.len()
            || self.arena.capacity() > 64 && self.arena.len() * 2 < self.arena.capacity()
    }

    /// Closes all holes.
    pub(super) fn compact(&mut self, moved: &mut impl FnMut(Id, Id, Record<'_>)) {
        let mut entries = [0u8; MAX_RECORDS];
        let entries = &mut entries[..usize::from(self.len)];
        entries.iter_mut().zip(0..).for_each(|(entry, number)| *entry = number);
        entries.sort_unstable_by_key(|entry| self.offset(usize::from(*entry)));
        let mut end = 0;
        for entry in entries {
            let entry = usize::from(*entry);
            let old = self.offset(entry);
            let length = Parts::of(self.shape, &self.arena, old).end - old;
            if old != end {
                self.arena.copy_within(old..old + length, end);
                self.set_offset(entry, end);
                moved(Id::new(0, old), Id::new(0, end), self.record(end));
            }
            end += length;
        }
        self.arena.truncate(end);
        self.hole_bytes = 0;
        shrink_to_class(&mut self.arena);
        if self.capacity() > 2 * self.len() + 8 {
            self.resize_index(self.len());
        }
    }

    /// Visits the records whose hash is `from` or greater.
    pub(super) fn scan(&self, from: u64, visit: &mut dyn FnMut(Id, Record<'_>)) {
        let mut at = 0;
        while let Some(offset) = next_record(&self.arena, at) {
            let parts = Parts::of(self.shape, &self.arena, offset);
            let record = parts.record(&self.arena);
            if from == 0 || hash_of(record.key) >= from {
                visit(Id::new(0, offset), record);
            }
            at = parts.end;
        }
    }
}

/// The bytes of `word` that equal `tag`, as the top bits of the bytes of the result; bytes above the
/// first such byte may be shown wrongly.
#[inline]
fn matches_of(word: &[u8], tag: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(word);
    let differences = u64::from_le_bytes(bytes) ^ (ONES * u64::from(tag));
    differences.wrapping_sub(ONES) & !differences & (ONES << 7)
}

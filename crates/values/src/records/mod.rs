//! Records of bytes, stored consecutively, and found by hash through a compact index.
//!
//! The members of large sets, the fields of large hashes and the members of large sorted sets are such records. There
//! are two layouts, and the interface hides which one is in use:
//!
//! ```text
//!   up to 128 records in 32 KiB (`small.rs`)             more (`large.rs`)
//!
//!   chunks of 4 KiB: | record | record | record |        chunks of 32 KiB (`chunks.rs`):
//!   index: | tag tag tag | offset offset offset |          | record | record | ... |   | record | ... |
//!           searched linearly                            index in hash order (`index.rs`, `leaf.rs`):
//!                                                          root -> region -> leaf of (tag, id)
//! ```
//!
//! - Iterating over all records reads memory sequentially: it neither reads the index nor follows pointers per record.
//! - A record takes its own bytes, 1 or 2 bytes of lengths (`encoding.rs`), and 3 bytes of index in a small collection
//!   or about 6 bytes in a collection of a million records.
//! - The time of every operation is bounded, regardless of the number of records: chunks and leaves are small, and
//!   directories are split.
//! - A [`RecordId`] is valid until [`Records`] reports that the record has moved. A change or removal may close holes
//!   or empty a chunk. Every function that may do this takes a callback, which it calls for each record that moved.
//! - A cursor of [`Records::scan`] is the leading part of a hash, and records are visited in hash order. So a scan
//!   visits every record that is present throughout, whatever changes happen in between.
//!
//! Hashes are keyed by secrets of the process, so clients cannot choose keys that collide.

mod chunks;
mod encoding;
mod hash;
mod id;
mod index;
mod large;
mod leaf;
mod small;

pub use encoding::{Record, RecordShape};
pub use hash::{hash_of, set_hash_secrets};
pub use id::RecordId;

use chunks::Chunks;
use encoding::{RecordHeader, RecordParts, next_record, write_hole};
use id::CHUNK_BYTES;
use large::LargeRecords;
use small::{SmallChunks, SmallRecords};

use crate::relocation::{PartCursor, PartMover};

/// The number of leading bits of a hash that form a cursor. It is limited so that cursors are numbers of moderate
/// length.
const CURSOR_BITS: u32 = 48;

/// The number of bytes at the start of a record that a prefetch loads.
const RECORD_PREFETCH_BYTES: usize = 64;

/// A collection of records; see the module documentation.
#[derive(Clone, Debug)]
pub struct Records(Layout);

#[derive(Clone, Debug)]
enum Layout {
    Small(SmallRecords),
    Large(Box<LargeRecords>),
}

// Records are part of a value, which has 64 bytes.
const _: () = assert!(size_of::<Records>() <= 48);

impl Records {
    /// Creates an empty collection.
    pub fn new(shape: RecordShape) -> Self {
        Records(Layout::Small(SmallRecords::new(shape)))
    }

    /// Creates an empty collection with capacity for `records` records of `bytes` bytes in total.
    pub fn with_capacity(shape: RecordShape, records: usize, bytes: usize) -> Self {
        let arena_bytes = bytes.saturating_add(records.saturating_mul(2));
        if records <= small::MAX_RECORDS && arena_bytes <= CHUNK_BYTES {
            Records(Layout::Small(SmallRecords::with_capacity(shape, records, arena_bytes)))
        } else {
            Records(Layout::Large(Box::new(LargeRecords::with_capacity(shape, records))))
        }
    }

    /// The shape of the records.
    pub fn shape(&self) -> RecordShape {
        match &self.0 {
            Layout::Small(small) => small.shape(),
            Layout::Large(large) => large.shape(),
        }
    }

    /// The number of records.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Layout::Small(small) => small.len(),
            Layout::Large(large) => large.len(),
        }
    }

    /// Returns `true` if there are no records.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of bytes allocated in addition to the collection itself.
    pub fn allocated_bytes(&self) -> usize {
        match &self.0 {
            Layout::Small(small) => small.allocated_bytes(),
            Layout::Large(large) => large.allocated_bytes(),
        }
    }

    /// The number of bytes of the records, without index and holes.
    pub fn stored_bytes(&self) -> usize {
        match &self.0 {
            Layout::Small(small) => small.live_bytes(),
            Layout::Large(large) => large.chunks.live_bytes(),
        }
    }

    /// Moves the memory of the records and of their index. No id changes. See
    /// [`Value::move_parts`](crate::Value::move_parts).
    pub(crate) fn move_parts<M: PartMover>(&mut self, from: PartCursor, mover: &mut M) -> Option<PartCursor> {
        match &mut self.0 {
            Layout::Small(small) => {
                small.move_parts(mover);
                None
            }
            Layout::Large(large) => {
                if from == PartCursor::default() {
                    mover.boxed(large);
                }
                large.move_parts(from, mover)
            }
        }
    }

    /// Finds the record with this key, whose hash is `hash`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<RecordId> {
        self.find_where(hash, |record| record.key == key)
    }

    /// Finds a record for which `matches` returns `true`, among the records whose keys may have this hash.
    #[inline]
    pub fn find_where(&self, hash: u64, matches: impl FnMut(Record<'_>) -> bool) -> Option<RecordId> {
        match &self.0 {
            Layout::Small(small) => small.find(hash, matches),
            Layout::Large(large) => large.find(hash, matches),
        }
    }

    /// Returns the memory that a search for a key with this hash reads first, apart from the collection itself. The
    /// caller prefetches it together with that of other searches.
    pub fn index_memory(&self, hash: u64) -> Option<&[u8]> {
        match &self.0 {
            Layout::Small(small) => Some(small.index_memory()),
            Layout::Large(large) => Some(large.index_memory(hash)),
        }
    }

    /// Returns the memory that an iteration over all records reads first, in at most two pieces: `piece` 0 and 1. It is
    /// only available for the small layout. The call reads no memory apart from the collection itself.
    pub fn iteration_memory(&self, piece: usize) -> Option<&[u8]> {
        match &self.0 {
            Layout::Small(small) => small.iteration_memory(piece),
            Layout::Large(_) => None,
        }
    }

    /// Returns the memory that a search reads next, the start of a record. It should be called once the memory of
    /// [`Self::index_memory`] is in the cache.
    pub fn record_memory(&self, hash: u64) -> Option<&[u8]> {
        let place = match &self.0 {
            Layout::Small(small) => small.record_memory(hash),
            Layout::Large(large) => large.record_memory(hash),
        }?;
        Some(&place[..place.len().min(RECORD_PREFETCH_BYTES)])
    }

    /// Returns the record with this id, which must be valid.
    #[inline]
    pub fn record(&self, id: RecordId) -> Record<'_> {
        match &self.0 {
            Layout::Small(small) => small.record(id),
            Layout::Large(large) => large.chunks.record(id),
        }
    }

    /// Returns the value of a record for modification in place.
    pub fn value_mut(&mut self, id: RecordId) -> &mut [u8] {
        let (bytes, parts) = self.locate_mut(id);
        &mut bytes[parts.value_at..parts.end]
    }

    fn locate_mut(&mut self, id: RecordId) -> (&mut [u8], RecordParts) {
        match &mut self.0 {
            Layout::Small(small) => small.locate_mut(id),
            Layout::Large(large) => large.chunks.locate_mut(id),
        }
    }

    /// Adds a record whose key is not present yet. `hash` is the hash of the key. No other record moves.
    pub fn insert(&mut self, hash: u64, record: &Record<'_>) -> RecordId {
        debug_assert!(self.find(hash, record.key).is_none(), "a key is there once");
        let header = RecordHeader::of(self.shape(), record);
        if let Layout::Small(small) = &mut self.0 {
            if small.has_room(header.total_bytes(record)) {
                return small.insert(hash, record, &header);
            }
            self.convert_to_large();
        }
        match &mut self.0 {
            Layout::Small(small) => small.insert(hash, record, &header),
            Layout::Large(large) => large.insert(hash, record, &header),
        }
    }

    #[cold]
    fn convert_to_large(&mut self) {
        if let Layout::Small(small) = &mut self.0 {
            self.0 = Layout::Large(Box::new(LargeRecords::from_small(small)));
        }
    }

    /// Replaces a record by another one with the same key, whose hash is `hash`. Returns the id of the new record,
    /// which may differ. `moved` is called with the old and the new id of each other record that moved.
    pub fn replace(
        &mut self,
        hash: u64,
        id: RecordId,
        record: &Record<'_>,
        mut moved: impl FnMut(RecordId, RecordId, Record<'_>),
    ) -> RecordId {
        let header = RecordHeader::of(self.shape(), record);
        let total = header.total_bytes(record);
        let (bytes, parts) = self.locate_mut(id);
        let before = parts.end - id.offset();
        if total > before {
            return self.relocate(hash, id, record, &header, &mut moved);
        }
        let place = &mut bytes[id.offset()..parts.end];
        header.write(record, place);
        if total < before {
            write_hole(&mut place[total..]);
            return self.account_for_hole(hash, id, record.key, before - total, &mut moved);
        }
        id
    }

    /// Accounts for the hole that a record left by shrinking. Returns the id of the record after a possible compaction.
    fn account_for_hole(
        &mut self,
        hash: u64,
        id: RecordId,
        key: &[u8],
        bytes: usize,
        moved: &mut impl FnMut(RecordId, RecordId, Record<'_>),
    ) -> RecordId {
        let mut current = id;
        let mut watch = |from, to, record: Record<'_>| {
            if record.key == key {
                current = to;
            } else {
                moved(from, to, record);
            }
        };
        match &mut self.0 {
            Layout::Small(small) => {
                small.account_for_hole(bytes);
                if small.is_sparse() {
                    small.compact(&mut watch);
                }
            }
            Layout::Large(large) => {
                large.chunks.account_for_hole(id, bytes);
                if large.chunks.is_sparse(id.chunk()) {
                    large.evacuate(id.chunk(), &mut watch);
                }
            }
        }
        debug_assert_eq!(self.find(hash, key), Some(current));
        current
    }

    fn relocate(
        &mut self,
        hash: u64,
        id: RecordId,
        record: &Record<'_>,
        header: &RecordHeader,
        moved: &mut impl FnMut(RecordId, RecordId, Record<'_>),
    ) -> RecordId {
        let total = header.total_bytes(record);
        if let Layout::Small(small) = &mut self.0
            && !small.has_bytes(total)
        {
            self.convert_to_large();
        }
        match &mut self.0 {
            Layout::Small(small) => {
                let mut current = small.relocate(hash, id, record, header);
                if small.is_sparse() {
                    let new = current;
                    small.compact(&mut |from, to, record| {
                        if from == new {
                            current = to;
                        } else {
                            moved(from, to, record);
                        }
                    });
                }
                current
            }
            Layout::Large(large) => large.relocate(hash, id, record, header, moved),
        }
    }

    /// Sets or removes the expiry of a record of [`RecordShape::Fields`]. The result and `moved` are those of
    /// [`Records::replace`].
    ///
    /// # Panics
    ///
    /// Panics if the records have another shape.
    pub fn set_expiry(
        &mut self,
        hash: u64,
        id: RecordId,
        expire_at_ms: Option<u64>,
        moved: impl FnMut(RecordId, RecordId, Record<'_>),
    ) -> RecordId {
        assert!(self.shape() == RecordShape::Fields, "only fields expire");
        let record = self.record(id);
        if record.expire_at_ms == expire_at_ms {
            return id;
        }
        let (key, value) = (record.key.to_vec(), record.value.to_vec());
        let record = Record {
            key: &key,
            value: &value,
            expire_at_ms,
        };
        self.replace(hash, id, &record, moved)
    }

    /// Removes a record whose key has the hash `hash`. `moved` is called with the old and the new id of each record
    /// that moved.
    pub fn remove(&mut self, hash: u64, id: RecordId, mut moved: impl FnMut(RecordId, RecordId, Record<'_>)) {
        match &mut self.0 {
            Layout::Small(small) => {
                small.remove(hash, id);
                if small.is_sparse() {
                    small.compact(&mut moved);
                }
            }
            Layout::Large(large) => {
                large.remove(hash, id, &mut moved);
                if large.fits_small() {
                    self.convert_to_small(&mut moved);
                }
            }
        }
    }

    /// Converts a collection of few records to the small layout. All records move.
    #[cold]
    fn convert_to_small(&mut self, moved: &mut impl FnMut(RecordId, RecordId, Record<'_>)) {
        let bytes = self
            .iter()
            .map(|(_, record)| record.key.len() + record.value.len() + 26);
        let mut fewer = SmallRecords::with_capacity(self.shape(), self.len(), bytes.sum());
        for (_, record) in self.iter() {
            let header = RecordHeader::of(self.shape(), &record);
            if !fewer.has_room(header.total_bytes(&record)) {
                return;
            }
            fewer.insert(hash_of(record.key), &record, &header);
        }
        let before = std::mem::replace(&mut self.0, Layout::Small(fewer));
        let before = Records(before);
        for ((old, record), (new, _)) in before.iter().zip(self.iter()) {
            moved(old, new, record);
        }
    }

    /// Frees the spare capacity of a small collection after it was filled.
    pub fn shrink(&mut self, mut moved: impl FnMut(RecordId, RecordId, Record<'_>)) {
        if let Layout::Small(small) = &mut self.0 {
            small.compact(&mut moved);
        }
    }

    /// Iterates over all records in memory order.
    #[inline]
    pub fn iter(&self) -> RecordIter<'_> {
        let (shape, chunks) = match &self.0 {
            Layout::Small(small) => (small.shape(), AllChunks::Small(small.chunks())),
            Layout::Large(large) => (large.shape(), AllChunks::Large(&large.chunks)),
        };
        let mut iter = RecordIter {
            shape,
            bytes: &[],
            at: 0,
            chunk: 0,
            chunks,
        };
        iter.bytes = iter.chunks.chunk(0).unwrap_or_default();
        iter
    }

    /// Calls `visit` for all records in memory order.
    #[inline]
    pub fn for_each<'a>(&'a self, mut visit: impl FnMut(Record<'a>)) {
        let iter = self.iter();
        let (shape, mut chunks, mut number) = (iter.shape, iter.chunks, 0);
        let mut bytes = iter.bytes;
        loop {
            let mut at = 0;
            while let Some(start) = next_record(bytes, at) {
                let parts = RecordParts::of(shape, bytes, start);
                at = parts.end;
                visit(parts.record(bytes));
            }
            number += 1;
            match chunks.chunk(number) {
                Some(next) => bytes = next,
                None => return,
            }
        }
    }

    /// Selects a random record, each with the same probability. `below` returns a random number below its argument.
    pub fn random_record(&self, mut below: impl FnMut(usize) -> usize) -> Option<RecordId> {
        match &self.0 {
            Layout::Small(small) if small.len() == 0 => None,
            Layout::Small(small) => Some(small.id(below(small.len()))),
            Layout::Large(large) => large.random(&mut below),
        }
    }

    /// Visits records from a cursor on (0 at first), at least `at_least` of them if available. Returns the cursor for
    /// the next call, which is 0 at the end. A record that is present from the first call to the last is visited,
    /// whatever changes happen in between.
    pub fn scan(&self, cursor: u64, at_least: usize, visit: &mut dyn FnMut(RecordId, Record<'_>)) -> u64 {
        let shift = u64::BITS - CURSOR_BITS;
        if cursor >> CURSOR_BITS != 0 {
            // The cursor is beyond all hashes.
            return 0;
        }
        match &self.0 {
            Layout::Small(small) => small.scan(cursor, at_least, |hash| hash >> shift, visit).unwrap_or(0),
            Layout::Large(large) => large
                .scan(cursor << shift, at_least, visit)
                .map_or(0, |next| next >> shift),
        }
    }
}

/// An iterator over the records of a collection in memory order.
#[derive(Clone)]
pub struct RecordIter<'a> {
    shape: RecordShape,
    bytes: &'a [u8],
    at: usize,
    chunk: usize,
    chunks: AllChunks<'a>,
}

/// The chunks of either layout.
#[derive(Clone)]
enum AllChunks<'a> {
    Small(SmallChunks<'a>),
    Large(&'a Chunks),
}

impl<'a> AllChunks<'a> {
    /// Returns chunk `number`. Chunks must be requested in ascending order without gaps.
    fn chunk(&mut self, number: usize) -> Option<&'a [u8]> {
        match self {
            AllChunks::Small(chunks) => chunks.next(),
            AllChunks::Large(chunks) => chunks.bytes(number),
        }
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = (RecordId, Record<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(at) = next_record(self.bytes, self.at) {
                let parts = RecordParts::of(self.shape, self.bytes, at);
                self.at = parts.end;
                return Some((RecordId::new(self.chunk, at), parts.record(self.bytes)));
            }
            self.bytes = self.chunks.chunk(self.chunk + 1)?;
            self.chunk += 1;
            self.at = 0;
        }
    }
}

#[cfg(test)]
mod tests;

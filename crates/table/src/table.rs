//! The table: one segment in place, or a directory of segments once it is large.
//!
//! ```text
//!   small (the usual case)       large (a hash tag with very many keys)
//!
//!   root ----> buckets           root: totals only
//!                                directory: [ s0 | s0 | s1 | s2 ]     by the first bits of the
//!                                             |         |    |        placement; a segment of a
//!                                           buckets  buckets buckets  smaller depth is repeated
//! ```
//!
//! The directory holds the segments themselves, so a lookup in a large table costs one more cache miss, not two. A
//! segment of a smaller depth is repeated. Only its first copy, at its *index*, is kept up to date; the others agree
//! with it in what lookups need: buckets, their count, and the depth.
//!
//! A segment that outgrows 64 buckets is split, two halves that have become small are merged, and the directory doubles
//! and halves as depths require (extendible hashing). Each such step moves at most a few hundred words, except doubling
//! and halving, which copies the directory. A segment grows past 64 buckets only if splitting would need a directory
//! far larger than the table. With a keyed hash that does not happen, but it must not fail.

use std::marker::PhantomData;
use std::ops::Range;

use crate::bucket::{PLACEMENT_BITS, PLACEMENTS, Placement, SLOTS};
use crate::bytes_equal::bytes_equal;
use crate::entry::{Entry, EntryRef};
use crate::entry_mut::EntryMut;
use crate::garbage::{Garbage, Removed};
use crate::segment::{OldArrays, SPLIT_BUCKETS, Segment, SegmentSlot, next_bucket_count};
use crate::size_class::size_class;
use crate::sweep::Sweep;
use crate::value::NewValue;

/// The number of entries at or below which two halves together are merged: little more than half of what makes a
/// segment split.
const MERGE_ENTRIES: u32 = 256;
/// The maximum number of segments that one step of `relocate` moves.
const SEGMENTS_TO_RELOCATE: usize = 16;
/// The depth that the directory may reach in any case; it may be deeper while there are this many entries for each of
/// its places.
const FREE_DEPTH: u8 = 4;
const ENTRIES_PER_PLACE: u64 = 16;
/// Six placement bits are left to find the bucket in a segment.
const MAX_DEPTH: u8 = (PLACEMENT_BITS - 6) as u8;

/// The keys of one slot in one database. Shared holders only read, and set clocks.
pub struct Table<V> {
    /// The only segment; if there is a directory, the totals, with the directory in place of the buckets (rule 7). So a
    /// table is half a cache line, and a slot's word, hint and table fit in one.
    pub(crate) root: Segment,
    values: PhantomData<Box<V>>,
}

const _: () = assert!(size_of::<Table<u64>>() == 32);

// SAFETY: rules 1, 4 and 8: the table owns its arrays and entries, so its values decide; other threads may hold handles
// of them.
unsafe impl<V: Send + Sync> Send for Table<V> {}
// SAFETY: rule 3: through a shared reference only atomics change, and values are only shared.
unsafe impl<V: Send + Sync> Sync for Table<V> {}

pub(crate) struct Directory {
    pub(crate) segments: Vec<Segment>,
    pub(crate) depth: u8,
    /// The number of segments that have the directory's depth.
    segments_at_full_depth: u32,
    pub(crate) sweep: Sweep,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Table<V> {
    /// Returns an empty table, which owns no memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            root: Segment::new(0),
            values: PhantomData,
        }
    }

    /// Returns the number of keys.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.root.len as usize
    }

    /// Returns `true` if there are no keys.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.len == 0
    }

    /// Returns the number of keys that have an expiry.
    #[inline]
    #[must_use]
    pub fn with_expiry(&self) -> usize {
        self.root.with_expiry as usize
    }

    /// Looks up `key`; `hash` is its keyed hash, of which the bits 23..50 are used.
    #[inline]
    #[must_use]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_, V>> {
        let placement = Placement::of_hash(hash);
        let segment = self.segment_of(placement);
        let spot = segment.find(placement, |entry| bytes_equal(entry.key(), key))?;
        // SAFETY: rule 1: the table is borrowed as long as the entry.
        Some(unsafe { EntryRef::new(segment.entry(spot)) })
    }

    /// Looks up `key` for changing.
    #[inline]
    #[must_use]
    pub fn find_mut(&mut self, hash: u64, key: &[u8]) -> Option<EntryMut<'_, V>> {
        let (index, spot) = self.locate(hash, key)?;
        Some(EntryMut::new(self, index, spot))
    }

    /// Stores a key with its value. If the key exists, its value, expiry and clock are replaced, and the memory that
    /// this frees is returned.
    pub fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: NewValue<'_, V>,
        expire_at_ms: Option<u64>,
        clock: u32,
    ) -> Garbage<V> {
        if let Some(mut found) = self.find_mut(hash, key) {
            return found.replace(value, expire_at_ms, clock);
        }
        let entry = Entry::create(key, value, expire_at_ms, clock);
        self.insert_entry(hash, entry);
        Garbage::default()
    }

    /// Stores a key that the table lacks, with its value, like [`insert`](Self::insert) but without the search for the
    /// key.
    pub fn insert_new(&mut self, hash: u64, key: &[u8], value: NewValue<'_, V>, expire_at_ms: Option<u64>, clock: u32) {
        debug_assert!(self.find(hash, key).is_none(), "a new key is absent");
        let entry = Entry::create(key, value, expire_at_ms, clock);
        self.insert_entry(hash, entry);
    }

    /// Allocates the arrays of a table that has none for `keys` keys, or for as many as one segment holds. So they need
    /// not grow in steps while these keys are inserted.
    pub fn reserve(&mut self, keys: usize) {
        if self.root.bucket_count() == 0 && !self.has_directory() {
            self.root.reserve(keys);
        }
    }

    /// Removes a key with its value.
    pub fn remove(&mut self, hash: u64, key: &[u8]) -> Option<Removed<V>> {
        let (index, spot) = self.locate(hash, key)?;
        Some(self.remove_at(index, spot))
    }

    /// Stores a removed entry under another (or the same) key, with its value, expiry and clock; external values are
    /// not copied. If the key exists, it is replaced and returned.
    pub fn insert_removed(&mut self, hash: u64, key: &[u8], removed: Removed<V>) -> Garbage<V> {
        let mut entry = removed.into_entry();
        if !entry.overwrite_key(key) {
            let (rebuilt, class) = entry.rebuild(key, entry.expire_at_ms());
            // SAFETY: rules 1 and 2: the entry was owned, and its value was moved.
            unsafe { drop(Garbage::<V>::empty_allocation(entry, class)) };
            entry = rebuilt;
        }
        let replaced = self.remove(hash, key);
        self.insert_entry(hash, entry);
        replaced.map_or_else(Garbage::default, Garbage::from)
    }

    /// Moves all keys into a new table and leaves this one empty. Dropping the result frees them, on any thread.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Returns the size of the table's arrays in bytes, without the entries.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let segments: usize = self.segments().map(Segment::array_bytes).sum();
        let directory = self.directory().map_or(0, |directory| {
            size_class(size_of::<Directory>()) + size_class(directory.segments.capacity() * size_of::<Segment>())
        });
        segments + directory
    }

    /// Moves the arrays of some segments to newly allocated memory, starting at cursor `from` (0 at first). Returns the
    /// cursor for the next call, or `None` at the end. The old arrays are appended to `old`.
    ///
    /// As tables grow from one size class to the next, they leave holes in the allocator's slabs. Moving the tables of
    /// all slots occasionally lets the allocator fill some slabs and return the others, if the old arrays of a few
    /// hundred tables are dropped together: freed one by one, each would be reused for the next allocation.
    pub fn relocate(&mut self, from: u32, old: &mut Vec<OldArrays>) -> Option<u32> {
        let mut cursor = from;
        for _ in 0..SEGMENTS_TO_RELOCATE {
            if cursor >= PLACEMENTS {
                return None;
            }
            let index = self.segment_index(Placement::new(cursor));
            old.push(self.segment_mut(index).relocate());
            self.update_copies(index);
            cursor = self.placement_range(index).end;
        }
        (cursor < PLACEMENTS).then_some(cursor)
    }

    /// Stores an entry whose key is absent.
    fn insert_entry(&mut self, hash: u64, entry: Entry) {
        let placement = Placement::of_hash(hash);
        let expire_at_ms = entry.expire_at_ms();
        let index = self.ensure_room(placement);
        let spot = self.segment_mut(index).place(placement, entry.into_raw());
        if self.has_directory() {
            self.root.len += 1;
        }
        self.root.with_expiry += u32::from(expire_at_ms.is_some());
        self.note_expiry(index, spot, expire_at_ms);
    }

    pub(crate) fn remove_at(&mut self, index: usize, spot: SegmentSlot) -> Removed<V> {
        let removed = self.remove_without_shrinking(index, spot);
        self.shrink(index);
        removed
    }

    /// Removes an entry without shrinking the table.
    pub(crate) fn remove_without_shrinking(&mut self, index: usize, spot: SegmentSlot) -> Removed<V> {
        let entry = self.segment_mut(index).remove(spot);
        if self.has_directory() {
            self.root.len -= 1;
        }
        if entry.expire_at_ms().is_some() {
            self.forget_expiry();
        }
        // SAFETY: rule 1: the segment has given up the entry.
        unsafe { Removed::new(entry) }
    }

    /// Records that one entry fewer has an expiry.
    pub(crate) fn forget_expiry(&mut self) {
        self.root.with_expiry -= 1;
        if self.root.with_expiry == 0 && !self.root.has_values_due() && !self.has_directory() {
            self.root.free_bounds();
        }
    }

    #[inline]
    fn locate(&self, hash: u64, key: &[u8]) -> Option<(usize, SegmentSlot)> {
        let placement = Placement::of_hash(hash);
        let segment = self.segment_of(placement);
        let spot = segment.find(placement, |entry| bytes_equal(entry.key(), key))?;
        Some((self.segment_index(placement), spot))
    }

    /// Returns the segment of a placement, perhaps one of its copies: for lookups only.
    #[inline]
    pub(crate) fn segment_of(&self, placement: Placement) -> &Segment {
        match self.directory() {
            None => &self.root,
            Some(directory) => &directory.segments[placement.directory_index(directory.depth)],
        }
    }

    /// Returns the index of a placement's segment: its first place in the directory.
    #[inline]
    pub(crate) fn segment_index(&self, placement: Placement) -> usize {
        match self.directory() {
            None => 0,
            Some(directory) => {
                let place = placement.directory_index(directory.depth);
                let repetitions = 1 << (directory.depth - directory.segments[place].depth);
                place & !(repetitions - 1)
            }
        }
    }

    #[inline]
    pub(crate) fn segment(&self, index: usize) -> &Segment {
        match self.directory() {
            None => &self.root,
            Some(directory) => &directory.segments[index],
        }
    }

    #[inline]
    pub(crate) fn segment_mut(&mut self, index: usize) -> &mut Segment {
        if self.has_directory() {
            // SAFETY: rule 7.
            return unsafe { &mut self.root.directory_mut::<Directory>().segments[index] };
        }
        &mut self.root
    }

    /// Returns the range of placements of a segment.
    pub(crate) fn placement_range(&self, index: usize) -> Range<u32> {
        match self.directory() {
            None => 0..PLACEMENTS,
            Some(directory) => {
                let start = (index as u32) << (PLACEMENT_BITS - u32::from(directory.depth));
                let depth = directory.segments[index].depth;
                start..start + (PLACEMENTS >> depth)
            }
        }
    }

    /// Iterates over all segments, each once, in hash order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        let mut index = 0;
        std::iter::from_fn(move || match self.directory() {
            None => (std::mem::replace(&mut index, 1) == 0).then_some(&self.root),
            Some(directory) => {
                let segment = directory.segments.get(index)?;
                index += 1 << (directory.depth - segment.depth);
                Some(segment)
            }
        })
    }

    /// Ensures that an entry can be placed, and returns its segment's index.
    fn ensure_room(&mut self, placement: Placement) -> usize {
        loop {
            let index = self.segment_index(placement);
            let segment = self.segment(index);
            if segment.has_room() {
                return index;
            }
            if next_bucket_count(segment.bucket_count()) <= SPLIT_BUCKETS || !self.may_split(index) {
                assert!(segment.can_grow(), "27 bits of all keys' hashes agree");
                self.segment_mut(index).grow();
                self.update_copies(index);
                return index;
            }
            self.split(index);
        }
    }

    fn may_split(&self, index: usize) -> bool {
        let Some(directory) = self.directory() else {
            return true;
        };
        let depth = directory.segments[index].depth;
        let crowded = u64::from(self.root.len) >> directory.depth >= ENTRIES_PER_PLACE;
        depth < directory.depth || depth < FREE_DEPTH || depth < MAX_DEPTH && crowded
    }

    fn split(&mut self, index: usize) {
        self.create_directory();
        let Some(directory) = self.directory_mut() else {
            return;
        };
        let mut index = index;
        if directory.segments[index].depth == directory.depth {
            directory.double();
            index *= 2;
        }
        let [lower, upper] = directory.segments[index].split();
        let middle = index + (1 << (directory.depth - lower.depth));
        if lower.depth == directory.depth {
            directory.segments_at_full_depth += 2;
        }
        directory.put(index, lower);
        directory.put(middle, upper);
    }

    /// Frees memory after a removal: fewer buckets, merged segments, a smaller directory.
    pub(crate) fn shrink(&mut self, index: usize) {
        if !self.segment_mut(index).shrink() {
            return;
        }
        let Some(directory) = self.directory_mut() else {
            return;
        };
        directory.update_copies(index);
        directory.merge_with_sibling(index);
        if directory.depth == 0
            && let Some(directory) = self.take_directory()
        {
            let only = directory.segments[0];
            debug_assert_eq!(only.len, self.root.len);
            let (with_expiry, values_due) = (self.root.with_expiry, self.root.has_values_due());
            self.root = only;
            self.root.with_expiry = with_expiry;
            self.root.set_values_due(values_due);
            if with_expiry == 0 && !values_due {
                self.root.free_bounds();
            }
        }
    }

    /// Moves the only segment into a directory, if there is none yet.
    fn create_directory(&mut self) {
        if self.has_directory() {
            return;
        }
        let mut only = self.root;
        only.with_expiry = 0;
        only.set_values_due(false);
        let totals = &mut self.root;
        let (len, next_due, with_expiry) = (totals.len, totals.next_due, totals.with_expiry);
        let values_due = totals.has_values_due();
        *totals = Segment::new(0);
        (totals.len, totals.next_due, totals.with_expiry) = (len, next_due, with_expiry);
        totals.set_values_due(values_due);
        totals.set_directory(Box::into_raw(Box::new(Directory {
            segments: vec![only],
            depth: 0,
            segments_at_full_depth: 1,
            sweep: Sweep::new(),
        })));
    }

    /// Returns `true` if the keys are in a directory of segments.
    #[inline]
    pub(crate) fn has_directory(&self) -> bool {
        self.root.holds_directory()
    }

    /// Returns the directory, if there is one.
    #[inline]
    pub(crate) fn directory(&self) -> Option<&Directory> {
        // SAFETY: rule 7.
        self.has_directory()
            .then(|| unsafe { self.root.directory::<Directory>() })
    }

    /// Returns the directory for changing, if there is one.
    #[inline]
    pub(crate) fn directory_mut(&mut self) -> Option<&mut Directory> {
        // SAFETY: rule 7.
        self.has_directory()
            .then(|| unsafe { self.root.directory_mut::<Directory>() })
    }

    /// Takes the directory out; the caller sets a new root.
    fn take_directory(&mut self) -> Option<Box<Directory>> {
        let raw = self.root.unset_directory()?;
        // SAFETY: rule 7: it came from a box, and the root no longer refers to it.
        Some(unsafe { Box::from_raw(raw) })
    }

    pub(crate) fn update_copies(&mut self, index: usize) {
        if let Some(directory) = self.directory_mut() {
            directory.update_copies(index);
        }
    }
}

impl Directory {
    /// Stores a segment in all its places.
    fn put(&mut self, index: usize, segment: Segment) {
        let repetitions = 1 << (self.depth - segment.depth);
        self.segments[index..index + repetitions].fill(segment);
    }

    /// Copies a segment from its index to its other places.
    fn update_copies(&mut self, index: usize) {
        self.put(index, self.segments[index]);
    }

    fn double(&mut self) {
        let mut segments = Vec::with_capacity(self.segments.len() * 2);
        segments.extend(self.segments.iter().flat_map(|&segment| [segment, segment]));
        self.segments = segments;
        self.depth += 1;
        self.segments_at_full_depth = 0;
    }

    /// Merges the segment at `index` with its other half, and the result with its own, as long as both are small.
    fn merge_with_sibling(&mut self, index: usize) {
        let mut index = index;
        loop {
            let segment = self.segments[index];
            if segment.depth == 0 {
                break;
            }
            let other_at = index ^ 1 << (self.depth - segment.depth);
            let other = self.segments[other_at];
            if other.depth != segment.depth || segment.len + other.len > MERGE_ENTRIES {
                break;
            }
            let (lower, upper) = if index < other_at {
                (segment, other)
            } else {
                (other, segment)
            };
            index = index.min(other_at);
            self.put(index, Segment::merge(lower, upper));
            if segment.depth == self.depth {
                self.segments_at_full_depth -= 2;
                index = self.halve(index);
            }
        }
    }

    /// Shrinks the directory to the depth of its deepest segment; returns the new position of `index`.
    fn halve(&mut self, index: usize) -> usize {
        let mut index = index;
        while self.segments_at_full_depth == 0 {
            self.segments = self.segments.iter().copied().step_by(2).collect();
            self.depth -= 1;
            index /= 2;
            let segments_at_full_depth = self.segments.iter().filter(|segment| segment.depth == self.depth);
            self.segments_at_full_depth = segments_at_full_depth.count() as u32;
        }
        index
    }
}

impl<V> Drop for Table<V> {
    fn drop(&mut self) {
        match self.take_directory() {
            None => self.root.free_all::<V>(),
            Some(mut directory) => {
                let mut index = 0;
                while index < directory.segments.len() {
                    let repetitions = 1 << (directory.depth - directory.segments[index].depth);
                    directory.segments[index].free_all::<V>();
                    index += repetitions;
                }
            }
        }
    }
}

impl<V> std::fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len())
            .field("with_expiry", &self.with_expiry())
            .field("load", &self.load())
            .finish()
    }
}

impl<V> Table<V> {
    /// Returns the fraction of slots that are used.
    #[must_use]
    pub fn load(&self) -> f64 {
        let buckets: usize = self.segments().map(Segment::bucket_count).sum();
        self.len() as f64 / (buckets * SLOTS).max(1) as f64
    }
}

//! A segment: an open-addressed table of buckets over one range of placements.
//!
//! An entry's home is `placement * buckets >> 27`: fastrange instead of a mask. So the number of buckets is arbitrary,
//! and the home is monotone in the placement: the array is in hash order up to overflow. Growing by an eighth is then
//! one streaming pass over two arrays, and the load stays high: between 31/32 and about 5/6 as a table grows.
//!
//! A full home passes its entries on to the next bucket (wrapping around), and every bucket counts the entries that
//! passed it. So a lookup continues only while the count is not zero, and a removal leaves no tombstone.
//!
//! The optional second array has one expiry bound per bucket; see `expiry.rs`.
//!
//! Segments neither own entries nor free their arrays when dropped: they are plain values that the table copies (rule
//! 4).

use std::alloc::Layout;
use std::ptr;

use crate::arrays;
use crate::bucket::{Bucket, PLACEMENT_BITS, Placement, SLOTS};
use crate::entry::Entry;
use crate::expiry_unit::NEVER;
use crate::size_class::size_class;

/// The number of buckets above which a segment is split in two, if it can be.
pub(crate) const SPLIT_BUCKETS: usize = 64;
/// The maximum number of buckets of a segment that cannot be split.
pub(crate) const MAX_BUCKETS: usize = 57_344;

/// The position of an entry in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSlot {
    pub(crate) bucket: usize,
    pub(crate) slot: usize,
}

/// An open-addressed table; see the module. A copy is an alias: only one of them may be changed.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    buckets: *mut Bucket,
    bounds: *mut u32,
    /// The number of entries.
    pub(crate) len: u32,
    /// A lower bound of all bounds, in expiry units.
    pub(crate) next_due: u32,
    /// The number of entries with an expiry, of the whole table; maintained in its root only.
    pub(crate) with_expiry: u32,
    bucket_count: u16,
    /// The number of leading placement bits that all entries share.
    pub(crate) depth: u8,
    /// A combination of [`DIRECTORY`] and [`VALUES_DUE`].
    flags: u8,
}

/// This is a table's root, and `buckets` is its directory (rule 7).
const DIRECTORY: u8 = 1;
/// Bounds may come from values with parts that are due; maintained in a table's root only.
const VALUES_DUE: u8 = 2;

/// Returns the next larger number of buckets whose bytes fill a size class.
pub(crate) fn next_bucket_count(buckets: usize) -> usize {
    const BUCKET_BYTES: usize = size_of::<Bucket>();
    if buckets < 8 {
        buckets + 1
    } else {
        size_class(buckets * BUCKET_BYTES + 1) / BUCKET_BYTES
    }
}

/// Returns the maximum number of entries in this many buckets; one more makes the segment grow.
pub(crate) fn max_entries(buckets: usize) -> usize {
    if buckets <= 1 {
        SLOTS * buckets
    } else {
        SLOTS * buckets * 31 / 32
    }
}

/// Returns the smallest number of buckets for `len` entries.
fn buckets_for(len: usize) -> usize {
    let mut buckets = usize::from(len > 0);
    while max_entries(buckets) < len {
        buckets = next_bucket_count(buckets);
    }
    buckets
}

impl Segment {
    pub(crate) const fn new(depth: u8) -> Self {
        Self {
            buckets: ptr::null_mut(),
            bounds: ptr::null_mut(),
            len: 0,
            next_due: NEVER,
            with_expiry: 0,
            bucket_count: 0,
            depth,
            flags: 0,
        }
    }

    #[inline]
    pub(crate) fn holds_directory(&self) -> bool {
        self.flags & DIRECTORY != 0
    }

    /// Makes this segment the root of a directory: it has no buckets of its own.
    pub(crate) fn set_directory<D>(&mut self, directory: *mut D) {
        debug_assert!(self.buckets.is_null() && self.bounds.is_null());
        self.buckets = directory.cast();
        self.flags |= DIRECTORY;
    }

    /// Returns the directory that `set_directory` stored, and forgets it.
    pub(crate) fn unset_directory<D>(&mut self) -> Option<*mut D> {
        if !self.holds_directory() {
            return None;
        }
        let directory = self.buckets.cast();
        self.buckets = ptr::null_mut();
        self.flags &= !DIRECTORY;
        Some(directory)
    }

    /// Returns `true` if bounds may come from values with parts that are due.
    #[inline]
    pub(crate) fn has_values_due(&self) -> bool {
        self.flags & VALUES_DUE != 0
    }

    pub(crate) fn set_values_due(&mut self, due: bool) {
        self.flags = if due {
            self.flags | VALUES_DUE
        } else {
            self.flags & !VALUES_DUE
        };
    }

    /// # Safety
    /// The segment holds a directory of this type.
    #[inline]
    pub(crate) unsafe fn directory<D>(&self) -> &D {
        // SAFETY: rule 7, guaranteed by the caller.
        unsafe { &*self.buckets.cast::<D>() }
    }

    /// # Safety
    /// The segment holds a directory of this type.
    #[inline]
    pub(crate) unsafe fn directory_mut<D>(&mut self) -> &mut D {
        // SAFETY: rule 7, guaranteed by the caller.
        unsafe { &mut *self.buckets.cast::<D>() }
    }

    #[inline]
    pub(crate) fn bucket_count(&self) -> usize {
        usize::from(self.bucket_count)
    }

    #[inline]
    pub(crate) fn buckets(&self) -> *const Bucket {
        self.buckets
    }

    #[inline]
    pub(crate) fn bucket(&self, index: usize) -> &Bucket {
        debug_assert!(index < self.bucket_count());
        // SAFETY: rule 4: indices are below the count.
        unsafe { &*self.buckets.add(index) }
    }

    #[inline]
    fn bucket_mut(&mut self, index: usize) -> &mut Bucket {
        debug_assert!(index < self.bucket_count());
        // SAFETY: rule 4: indices are below the count, and `self` is the alias that may be changed.
        unsafe { &mut *self.buckets.add(index) }
    }

    #[inline]
    pub(crate) fn entry(&self, spot: SegmentSlot) -> Entry {
        let raw = self.bucket(spot.bucket).entry(spot.slot);
        debug_assert!(!raw.is_null());
        // SAFETY: rule 1: a word that is not null is a live entry of this table.
        unsafe { Entry::from_raw(raw) }
    }

    /// Returns the entry in a slot, if the slot is used.
    #[inline]
    pub(crate) fn entry_at(&self, bucket: usize, slot: usize) -> Option<Entry> {
        let raw = self.bucket(bucket).entry(slot);
        // SAFETY: rule 1: a word that is not null is a live entry of this table.
        (!raw.is_null()).then(|| unsafe { Entry::from_raw(raw) })
    }

    #[inline]
    pub(crate) fn home(&self, placement: Placement) -> usize {
        placement.home(self.depth, self.bucket_count())
    }

    #[inline]
    pub(crate) fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.bucket_count() {
            0
        } else {
            bucket + 1
        }
    }

    /// Returns the position of the first entry whose stored hash bits match `placement` and that `accept` accepts.
    #[inline]
    pub(crate) fn find(&self, placement: Placement, mut accept: impl FnMut(Entry) -> bool) -> Option<SegmentSlot> {
        if self.bucket_count == 0 {
            return None;
        }
        let mut index = self.home(placement);
        for _ in 0..self.bucket_count {
            let bucket = self.bucket(index);
            for slot in bucket.tag_matches(placement) {
                let spot = SegmentSlot { bucket: index, slot };
                if bucket.agrees(slot, placement) && accept(self.entry(spot)) {
                    return Some(spot);
                }
            }
            if !bucket.is_overflowed() {
                return None;
            }
            index = self.after(index);
        }
        None
    }

    /// Returns `true` if one more entry fits without more buckets.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (self.len as usize) < max_entries(self.bucket_count())
    }

    /// Stores an entry, for which there is room.
    pub(crate) fn place(&mut self, placement: Placement, entry: *mut u8) -> SegmentSlot {
        assert!(
            (self.len as usize) < SLOTS * self.bucket_count(),
            "a full segment is grown first"
        );
        let mut index = self.home(placement);
        loop {
            let bucket = self.bucket_mut(index);
            if let Some(slot) = bucket.free_slot() {
                bucket.set(slot, entry, placement);
                self.len += 1;
                return SegmentSlot { bucket: index, slot };
            }
            bucket.pass();
            index = self.after(index);
        }
    }

    /// Replaces the entry at `spot` by another one with the same key hash.
    #[inline]
    pub(crate) fn replace(&mut self, spot: SegmentSlot, entry: Entry) {
        let bucket = self.bucket_mut(spot.bucket);
        let placement = bucket.placement(spot.slot);
        bucket.set(spot.slot, entry.into_raw(), placement);
    }

    /// Removes an entry, which the caller owns from then on.
    pub(crate) fn remove(&mut self, spot: SegmentSlot) -> Entry {
        let entry = self.entry(spot);
        let mut index = self.home(self.bucket(spot.bucket).placement(spot.slot));
        while index != spot.bucket {
            self.bucket_mut(index).unpass();
            index = self.after(index);
        }
        self.bucket_mut(spot.bucket).clear(spot.slot);
        self.len -= 1;
        entry
    }

    /// Returns an empty segment with room for `len` entries.
    fn with_capacity(depth: u8, len: usize) -> Self {
        let mut segment = Self::new(depth);
        segment.allocate(buckets_for(len));
        segment
    }

    /// Allocates buckets for `len` entries, but no more than a segment has before it is split. There are none yet.
    pub(crate) fn reserve(&mut self, len: usize) {
        self.allocate(buckets_for(len.min(SLOTS * SPLIT_BUCKETS)).min(SPLIT_BUCKETS));
    }

    fn allocate(&mut self, buckets: usize) {
        assert!(self.buckets.is_null() && buckets <= MAX_BUCKETS);
        if buckets == 0 {
            return;
        }
        let layout = bucket_layout(buckets);
        // SAFETY: the layout is not empty; all zeros are empty buckets.
        self.buckets = unsafe { arrays::allocate(layout) }.cast();
        self.bucket_count = buckets as u16;
    }

    /// Copies the entries of `other` that `belongs` accepts, with their buckets' expiry bounds.
    fn absorb(&mut self, other: &Self, belongs: impl Fn(Placement) -> bool) {
        for index in 0..other.bucket_count() {
            let bucket = other.bucket(index);
            let bound = other.bound(index);
            for slot in 0..SLOTS {
                let entry = bucket.entry(slot);
                if entry.is_null() || !belongs(bucket.placement(slot)) {
                    continue;
                }
                let spot = self.place(bucket.placement(slot), entry);
                if bound != NEVER {
                    self.lower_bound(spot.bucket, bound);
                }
            }
        }
    }

    /// Moves all entries into `buckets` buckets and returns the old arrays.
    fn resize(&mut self, buckets: usize) -> OldArrays {
        let mut new = Self::new(self.depth);
        new.with_expiry = self.with_expiry;
        new.flags = self.flags;
        new.allocate(buckets);
        new.absorb(self, |_| true);
        OldArrays(std::mem::replace(self, new))
    }

    /// Moves all entries into the next larger number of buckets, if there is one.
    pub(crate) fn grow(&mut self) {
        drop(self.resize(next_bucket_count(self.bucket_count())));
    }

    /// Moves all entries into new arrays of the same size.
    pub(crate) fn relocate(&mut self) -> OldArrays {
        self.resize(self.bucket_count())
    }

    /// Moves all entries into fewer buckets if far too many are free. An eighth of the room stays free, so that a table
    /// that varies by a few keys does not move each time.
    pub(crate) fn shrink(&mut self) -> bool {
        let len = self.len as usize;
        if len * 8 >= SLOTS * self.bucket_count() * 5 {
            return false;
        }
        let wanted = if len == 0 { 0 } else { buckets_for(len + len / 8 + 1) };
        let fewer = wanted < self.bucket_count();
        if fewer {
            drop(self.resize(wanted));
        }
        fewer
    }

    /// Divides the entries by the first placement bit that they do not share; the lower half comes first.
    pub(crate) fn split(mut self) -> [Self; 2] {
        let mut upper = 0;
        for index in 0..self.bucket_count() {
            let bucket = self.bucket(index);
            upper += (0..SLOTS)
                .filter(|&slot| !bucket.entry(slot).is_null())
                .filter(|&slot| bucket.placement(slot).is_upper_half(self.depth))
                .count();
        }
        let lower = self.len as usize - upper;
        let depth = self.depth + 1;
        let halves = [(lower, false), (upper, true)].map(|(len, side)| {
            let mut half = Self::with_capacity(depth, len);
            half.absorb(&self, |placement| placement.is_upper_half(self.depth) == side);
            half
        });
        self.free_arrays();
        halves
    }

    /// Merges the two halves of a range into one segment.
    pub(crate) fn merge(mut lower: Self, mut upper: Self) -> Self {
        let len = (lower.len + upper.len) as usize;
        let mut whole = Self::with_capacity(lower.depth - 1, if len == 0 { 0 } else { len + len / 8 });
        whole.absorb(&lower, |_| true);
        whole.absorb(&upper, |_| true);
        lower.free_arrays();
        upper.free_arrays();
        whole
    }

    /// Returns `true` if the segment can have more buckets without a split.
    pub(crate) fn can_grow(&self) -> bool {
        next_bucket_count(self.bucket_count()) <= MAX_BUCKETS
    }

    /// Returns the expiry bound of a bucket, or [`NEVER`] without one.
    #[inline]
    pub(crate) fn bound(&self, bucket: usize) -> u32 {
        self.bounds().get(bucket).copied().unwrap_or(NEVER)
    }

    /// Returns the expiry bounds of all buckets; empty if no entry ever had an expiry.
    #[inline]
    pub(crate) fn bounds(&self) -> &[u32] {
        if self.bounds.is_null() {
            return &[];
        }
        // SAFETY: rule 4: there is one bound per bucket.
        unsafe { std::slice::from_raw_parts(self.bounds, self.bucket_count()) }
    }

    #[inline]
    pub(crate) fn bounds_mut(&mut self) -> &mut [u32] {
        if self.bounds.is_null() {
            return &mut [];
        }
        // SAFETY: rule 4: there is one bound per bucket, and `self` is the alias that may be changed.
        unsafe { std::slice::from_raw_parts_mut(self.bounds, self.bucket_count()) }
    }

    /// Records that an entry of `bucket` expires at `due` or later.
    pub(crate) fn lower_bound(&mut self, bucket: usize, due: u32) {
        if self.bounds.is_null() {
            self.allocate_bounds();
        }
        let bound = &mut self.bounds_mut()[bucket];
        *bound = due.min(*bound);
        self.next_due = due.min(self.next_due);
    }

    fn allocate_bounds(&mut self) {
        let layout = bounds_layout(self.bucket_count());
        // SAFETY: a segment with an entry has buckets, so the layout is not empty; every byte is
        // written before the array is used.
        unsafe {
            let bounds = arrays::allocate(layout);
            bounds.write_bytes(u8::MAX, layout.size());
            self.bounds = bounds.cast();
        }
    }

    /// Drops all expiry bounds, because no entry has an expiry.
    pub(crate) fn free_bounds(&mut self) {
        if !self.bounds.is_null() {
            // SAFETY: rule 4: allocated with this layout, and not used again.
            unsafe { arrays::free(self.bounds.cast(), bounds_layout(self.bucket_count())) };
            self.bounds = ptr::null_mut();
        }
        self.next_due = NEVER;
    }

    /// Frees the arrays, but no entry.
    pub(crate) fn free_arrays(&mut self) {
        self.free_bounds();
        if !self.buckets.is_null() {
            // SAFETY: rule 4: allocated with this layout, and not used again.
            unsafe { arrays::free(self.buckets.cast(), bucket_layout(self.bucket_count())) };
            self.buckets = ptr::null_mut();
            self.bucket_count = 0;
        }
    }

    /// Frees every entry with its value, and the arrays.
    pub(crate) fn free_all<V>(&mut self) {
        for index in 0..self.bucket_count() {
            for slot in 0..SLOTS {
                if let Some(entry) = self.entry_at(index, slot) {
                    // SAFETY: rule 1: the table owns its entries, and the arrays are freed next.
                    unsafe { entry.free::<V>() };
                }
            }
        }
        self.free_arrays();
        self.len = 0;
    }

    /// Returns the size of the arrays in bytes.
    pub(crate) fn array_bytes(&self) -> usize {
        let bounds = if self.bounds.is_null() {
            0
        } else {
            bounds_layout(self.bucket_count()).size()
        };
        self.bucket_count() * size_of::<Bucket>() + bounds
    }

    /// Returns the smallest placement whose home is at least `home`, counted from the segment's start.
    pub(crate) fn first_placement_of(&self, home: usize) -> u32 {
        let placement_range = (self.bucket_count() as u64) << self.depth;
        (((home as u64) << PLACEMENT_BITS).div_ceil(placement_range)) as u32
    }
}

/// The arrays that a segment left behind; dropping this frees them.
#[must_use = "drop the arrays of many tables together"]
pub struct OldArrays(Segment);

// SAFETY: rule 4: this is the only copy that frees these arrays, and no other copy reads them.
unsafe impl Send for OldArrays {}

impl std::fmt::Debug for OldArrays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.array_bytes();
        f.debug_struct("OldArrays").field("bytes", &bytes).finish()
    }
}

impl Drop for OldArrays {
    fn drop(&mut self) {
        self.0.free_arrays();
    }
}

fn bucket_layout(buckets: usize) -> Layout {
    Layout::array::<Bucket>(buckets).expect("bucket counts are small")
}

fn bounds_layout(buckets: usize) -> Layout {
    Layout::from_size_align(size_class(buckets * size_of::<u32>()), align_of::<u32>()).expect("bucket counts are small")
}

#[cfg(test)]
mod tests;

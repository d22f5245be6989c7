//! Lookups in stages, so that many of them wait for memory at the same time.
//!
//! A lookup reads, one after the other: the table, a bucket, an entry, perhaps an external value. A batch runs each
//! stage for all its keys before the next stage, and every stage only prefetches:
//!
//! ```text
//!   stage                          lease    loads                  prefetches
//!   Hint::prefetch_bucket          none     the hint (atomics)     bucket, or directory line
//!   Table::prefetch_large_bucket   shared   directory line         bucket (large tables only)
//!   Table::entry_place             shared   bucket                 entry
//!   Table::value_place             shared   entry's header         rest of the entry or the value
//!   Table::value_near              shared   entry's header         (the caller) what the object points to, or a part
//!                                                                  of the string
//!   Table::find ...                shared   all of it, warm
//! ```
//!
//! The later stages compute a [`PrefetchTarget`] under the lease, and [`PrefetchTarget::prefetch`] fetches it without a
//! lease. This does not only shorten the lease: a prefetch retires when its address is translated, so page walks
//! overlap only within the processor's instruction window. The window holds many prefetches if nothing is between them,
//! and few if each comes with a lookup.
//!
//! A [`Hint`] may be stale or half stale: another thread may move the table's arrays meanwhile. Its reader computes an
//! address from it and prefetches that; a prefetch of any address is harmless, and nothing is loaded from the address
//! (rule 6).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering::Relaxed};

use crate::bucket::{Bucket, PLACEMENT_BITS, Placement};
use crate::entry::Entry;
use crate::expiry_unit::NEVER;
use crate::expiry_unit::start_of_ms;
use crate::expiry_unit::unit_of;
use crate::prefetch::prefetch_line;
use crate::segment::{MAX_BUCKETS, Segment};
use crate::table::Table;
use crate::value::ValueRef;

const LINE_BYTES: usize = 64;
/// The maximum number of lines prefetched of a value. The rest of longer values is left to the hardware's prefetcher,
/// which detects the copy.
const VALUE_LINES: usize = 16;
/// The maximum number of lines prefetched of memory behind an object. It is larger because such memory is seldom
/// page-aligned, and the hardware's prefetcher restarts at a page boundary.
const OBJECT_MEMORY_LINES: usize = 64;

/// The part of an entry that is prefetched before its header was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// 32 bytes, which hold the header and a short key; they may lie across two lines.
    #[default]
    Short,
    /// 88 bytes, which also hold a small value. An entry of this size lies across three lines one time in four.
    Wide,
}

impl Head {
    #[inline]
    fn of(self, entry: Entry) -> PrefetchTarget {
        match self {
            Head::Short => PrefetchTarget::of_bytes(entry.into_raw(), 32, 2),
            Head::Wide => PrefetchTarget::of_bytes(entry.into_raw(), 88, 3),
        }
    }
}

/// Memory that a lookup will read: an address and a number of lines. The memory may be freed before it is prefetched,
/// which is harmless (rule 6).
#[derive(Clone, Copy, Debug)]
pub struct PrefetchTarget {
    first: *const u8,
    lines: u32,
}

impl PrefetchTarget {
    /// No memory.
    pub const NOWHERE: PrefetchTarget = PrefetchTarget {
        first: ptr::null(),
        lines: 0,
    };

    /// Returns the lines of `len` bytes, but at most `most_lines`.
    #[inline]
    fn of_bytes(start: *const u8, len: usize, most_lines: usize) -> Self {
        if len == 0 {
            return Self::NOWHERE;
        }
        let first = start.map_addr(|address| address & !(LINE_BYTES - 1));
        let lines = (start.addr() + len - first.addr()).div_ceil(LINE_BYTES);
        Self {
            first,
            lines: lines.min(most_lines) as u32,
        }
    }

    /// Returns the memory behind an object, given by address and length.
    #[inline]
    #[must_use]
    pub fn behind(bytes: Option<(*const u8, usize)>) -> Self {
        bytes.map_or(Self::NOWHERE, |(start, len)| {
            Self::of_bytes(start, len, OBJECT_MEMORY_LINES)
        })
    }

    /// Returns the first line of this memory.
    #[inline]
    #[must_use]
    pub fn first_line(self) -> Self {
        Self {
            lines: self.lines.min(1),
            ..self
        }
    }

    /// Returns `true` if `other` contains all of this memory.
    #[inline]
    #[must_use]
    pub fn is_within(self, other: PrefetchTarget) -> bool {
        let end = |place: PrefetchTarget| place.first.addr() + place.lines as usize * LINE_BYTES;
        self.is_nowhere() || (self.first >= other.first && end(self) <= end(other))
    }

    /// Returns `true` if there is no memory to prefetch.
    #[inline]
    #[must_use]
    pub fn is_nowhere(self) -> bool {
        self.lines == 0
    }

    /// Prefetches the memory. Needs no lease.
    #[inline]
    pub fn prefetch(self) {
        for line in 0..self.lines as usize {
            prefetch_line(self.first.wrapping_add(line * LINE_BYTES));
        }
    }
}

/// The position of a table's first array: published by the table's writers, read by any thread.
#[derive(Debug)]
pub struct Hint {
    array: AtomicPtr<u8>,
    /// No key expires before this unit of time; maintained by the hint's owner.
    due: AtomicU32,
    /// The number of buckets, or [`IS_DIRECTORY`] and the depth.
    extent: AtomicU16,
    /// Sixteen bits for the hint's owner, in space that would otherwise be padding.
    pub marks: AtomicU16,
}

/// A flag above every number of buckets.
const IS_DIRECTORY: u16 = 0xf000;
const _: () = assert!(MAX_BUCKETS < IS_DIRECTORY as usize);
const _: () = assert!(size_of::<Hint>() == 16);

impl Default for Hint {
    fn default() -> Self {
        Self::new()
    }
}

impl Hint {
    /// Returns the hint of an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            array: AtomicPtr::new(ptr::null_mut()),
            due: AtomicU32::new(NEVER),
            extent: AtomicU16::new(0),
            marks: AtomicU16::new(0),
        }
    }

    /// Returns a time, in milliseconds since the Unix epoch, before which no key expires, as it was last set.
    #[inline]
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        match self.due.load(Relaxed) {
            NEVER => None,
            unit => Some(start_of_ms(unit)),
        }
    }

    /// Records that some key expires at `expire_at_ms`. For the holder of an exclusive lease.
    #[inline]
    pub fn lower_due(&self, expire_at_ms: u64) {
        let unit = unit_of(expire_at_ms);
        if unit < self.due.load(Relaxed) {
            self.due.store(unit, Relaxed);
        }
    }

    /// Sets the time before which no key expires, or `None` for never. For the holder of an exclusive lease.
    pub fn set_due(&self, due_ms: Option<u64>) {
        self.due.store(due_ms.map_or(NEVER, unit_of), Relaxed);
    }

    /// Prefetches the line that a lookup of `hash` reads first. Needs no lease.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        let array = self.array.load(Relaxed);
        let extent = self.extent.load(Relaxed);
        let placement = Placement::of_hash(hash);
        if extent < IS_DIRECTORY {
            let home = placement.home(0, extent as usize);
            let bucket = array.cast::<Bucket>().wrapping_add(home);
            prefetch_line(bucket);
            prefetch_line(bucket.wrapping_add(1));
        } else {
            let place = placement.directory_index((extent & 31) as u8 % PLACEMENT_BITS as u8);
            prefetch_line(array.cast::<Segment>().wrapping_add(place));
        }
    }

    fn store(&self, array: *const u8, extent: u16) {
        if self.array.load(Relaxed).cast_const() != array {
            self.array.store(array.cast_mut(), Relaxed);
        }
        if self.extent.load(Relaxed) != extent {
            self.extent.store(extent, Relaxed);
        }
    }
}

impl<V> Table<V> {
    /// Returns a hint that stays correct until the table's arrays move.
    #[must_use]
    pub fn prefetch_hint(&self) -> Hint {
        let hint = Hint::new();
        self.publish(&hint);
        hint
    }

    /// Updates the hint, storing only what changed. For the holder of an exclusive lease, after insertions and
    /// removals.
    #[inline]
    pub fn publish(&self, hint: &Hint) {
        match self.directory() {
            None => hint.store(self.root.buckets().cast(), self.root.bucket_count() as u16),
            Some(directory) => hint.store(
                directory.segments.as_ptr().cast(),
                IS_DIRECTORY | u16::from(directory.depth),
            ),
        }
    }

    /// Returns `true` if lookups go through a directory, so that `prefetch_large_bucket` is worth a stage.
    #[inline]
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.has_directory()
    }

    /// Prefetches the bucket of a table whose directory line is warm.
    #[inline]
    pub fn prefetch_large_bucket(&self, hash: u64) {
        let placement = Placement::of_hash(hash);
        let segment = self.segment_of(placement);
        let home = placement.home(segment.depth, segment.bucket_count());
        prefetch_line(segment.buckets().wrapping_add(home));
    }

    /// Reads the bucket's tags, which should be warm, and returns the position of the entry's first bytes.
    #[inline]
    #[must_use]
    pub fn entry_place(&self, hash: u64, head: Head) -> PrefetchTarget {
        self.candidate(hash)
            .map_or(PrefetchTarget::NOWHERE, |entry| head.of(entry))
    }

    /// Reads the entry's header, which should be warm, and returns the position of its value.
    #[inline]
    #[must_use]
    pub fn value_place(&self, hash: u64) -> PrefetchTarget {
        let Some(entry) = self.candidate(hash) else {
            return PrefetchTarget::NOWHERE;
        };
        if let Some((bytes, len)) = entry.string() {
            PrefetchTarget::of_bytes(bytes, len, VALUE_LINES)
        } else if let Some(blob) = entry.blob() {
            // SAFETY: rules 1 and 5: the table is borrowed; the value part is a blob's pointer.
            PrefetchTarget::of_bytes(unsafe { *blob.cast::<*const u8>() }, 1, 1)
        } else if let Some(object) = entry.object::<V>() {
            PrefetchTarget::of_bytes(object.as_ptr().cast(), size_of::<V>(), 2)
        } else {
            PrefetchTarget::NOWHERE
        }
    }

    /// Reads the entry's header, which should be warm, and returns what is likely to be the key's value. Its memory is
    /// not read.
    #[inline]
    #[must_use]
    pub fn value_near(&self, hash: u64) -> Option<ValueRef<'_, V>> {
        // The table is borrowed, so the value lives and is not changed.
        self.candidate(hash).map(Entry::value)
    }

    /// Returns the first entry whose stored hash bits match: almost always the right one, if the key exists.
    #[inline]
    fn candidate(&self, hash: u64) -> Option<Entry> {
        let placement = Placement::of_hash(hash);
        let segment = self.segment_of(placement);
        let spot = segment.find(placement, |_| true)?;
        Some(segment.entry(spot))
    }
}

#[cfg(test)]
mod tests;

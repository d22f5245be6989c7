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
//!   Table::place_behind            shared   entry, object          what the object points to
//!   Table::find ...                shared   all of it, warm
//! ```
//!
//! The later stages find out a [`Place`] under the lease, and [`Place::prefetch`] asks for it without one. That is not
//! only to hold the lease shorter: a prefetch retires when its address is translated, so page walks overlap only as far
//! as the processor looks ahead. It sees many prefetches ahead if nothing is between them, and few if each comes with a
//! lookup.
//!
//! A [`Hint`] may be stale or half stale: another thread may move the table's arrays meanwhile. Its reader computes an
//! address from it and prefetches that; a prefetch of any address is harmless, and nothing is loaded from there (rule
//! 6).

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

const LINE_BYTES: usize = 64;
/// Longer values are left to the hardware's prefetcher, which follows a copy soon enough.
const VALUE_LINES: usize = 16;
/// What lies behind an object is seldom aligned to pages, so that prefetcher would start anew in the middle of it.
const BEHIND_LINES: usize = 64;

/// How much of an entry is worth asking for before anything is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// 32 bytes, which have the header and a short key; they may lie across two lines.
    #[default]
    Short,
    /// 88 bytes, which have a small value too. Entries of so many bytes lie across three lines one time in four.
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

/// Memory that a lookup will read: an address and a number of lines. It may be gone by the time it is asked for, which
/// does no harm (rule 6).
#[derive(Clone, Copy, Debug)]
pub struct PrefetchTarget {
    first: *const u8,
    lines: u32,
}

impl PrefetchTarget {
    /// Nothing to be read.
    pub const NOWHERE: PrefetchTarget = PrefetchTarget {
        first: ptr::null(),
        lines: 0,
    };

    /// The lines of so many bytes, but not too many.
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

    /// Memory that lies behind an object: an address and a length.
    #[inline]
    #[must_use]
    pub fn behind(bytes: Option<(*const u8, usize)>) -> Self {
        bytes.map_or(Self::NOWHERE, |(start, len)| Self::of_bytes(start, len, BEHIND_LINES))
    }

    /// Whether all of it belongs to `other` too.
    #[inline]
    #[must_use]
    pub fn is_within(self, other: PrefetchTarget) -> bool {
        let end = |place: PrefetchTarget| place.first.addr() + place.lines as usize * LINE_BYTES;
        self.is_nowhere() || (self.first >= other.first && end(self) <= end(other))
    }

    /// Whether there is nothing to be read.
    #[inline]
    #[must_use]
    pub fn is_nowhere(self) -> bool {
        self.lines == 0
    }

    /// Asks for it. Needs no lease.
    #[inline]
    pub fn prefetch(self) {
        for line in 0..self.lines as usize {
            prefetch_line(self.first.wrapping_add(line * LINE_BYTES));
        }
    }
}

/// Where a table's first array lies: published by the table's writers, read by anybody.
#[derive(Debug)]
pub struct Hint {
    array: AtomicPtr<u8>,
    /// No key expires before this unit of time; kept by whoever owns the hint.
    due: AtomicU32,
    /// The number of buckets, or [`IS_DIRECTORY`] and the depth.
    extent: AtomicU16,
    /// Sixteen bits that the hint's owner may use as it likes: the place would be empty otherwise.
    pub marks: AtomicU16,
}

/// Above every number of buckets.
const IS_DIRECTORY: u16 = 0xf000;
const _: () = assert!(MAX_BUCKETS < IS_DIRECTORY as usize);
const _: () = assert!(size_of::<Hint>() == 16);

impl Default for Hint {
    fn default() -> Self {
        Self::new()
    }
}

impl Hint {
    /// The hint of an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            array: AtomicPtr::new(ptr::null_mut()),
            due: AtomicU32::new(NEVER),
            extent: AtomicU16::new(0),
            marks: AtomicU16::new(0),
        }
    }

    /// A time, in ms since the Unix epoch, before which no key expires, as it was last set.
    #[inline]
    #[must_use]
    pub fn due_ms(&self) -> Option<u64> {
        match self.due.load(Relaxed) {
            NEVER => None,
            unit => Some(start_of_ms(unit)),
        }
    }

    /// Notes that some key expires at `expire_at_ms`. For the holder of an exclusive lease.
    #[inline]
    pub fn lower_due(&self, expire_at_ms: u64) {
        let unit = unit_of(expire_at_ms);
        if unit < self.due.load(Relaxed) {
            self.due.store(unit, Relaxed);
        }
    }

    /// Sets the time before which no key expires; `None` for never. For the holder of an exclusive lease.
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
    /// A hint that is right until the table's arrays move.
    #[must_use]
    pub fn prefetch_hint(&self) -> Hint {
        let hint = Hint::new();
        self.publish(&hint);
        hint
    }

    /// Brings the hint up to date; stores only what changed. For the holder of an exclusive lease,
    /// after insertions and removals.
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

    /// Whether lookups go through a directory, so that `prefetch_large_bucket` is worth a stage.
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

    /// Reads the bucket's tags, which should be warm: where the entry's head is.
    #[inline]
    #[must_use]
    pub fn entry_place(&self, hash: u64, head: Head) -> PrefetchTarget {
        self.candidate(hash)
            .map_or(PrefetchTarget::NOWHERE, |entry| head.of(entry))
    }

    /// Reads the entry's header, which should be warm: where its value is.
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

    /// Reads the entry's header, which should be warm: the object that is likely to be the key's value.
    #[inline]
    #[must_use]
    pub fn object_near(&self, hash: u64) -> Option<&V> {
        let object = self.candidate(hash).and_then(Entry::object::<V>)?;
        // SAFETY: rules 1 and 5: the table is borrowed, so the object stays and nobody changes it.
        Some(unsafe { object.as_ref() })
    }

    /// The first entry whose stored hash bits agree: nearly always the one, if there is one.
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

//! Lookups in stages, so that many of them wait for memory at the same time.
//!
//! A lookup reads, one after the other: the table, a bucket, an entry, perhaps an external value.
//! A batch runs each stage for all its keys before the next stage, and every stage only prefetches:
//!
//! ```text
//!   stage                          lease    loads                  prefetches
//!   Hint::prefetch_bucket          none     the hint (atomics)     bucket, or directory line
//!   Table::prefetch_large_bucket   shared   directory line         bucket (large tables only)
//!   Table::prefetch_entry          shared   bucket                 entry
//!   Table::prefetch_value          shared   entry's header         rest of the entry or the value
//!   Table::find ...                shared   all of it, warm
//! ```
//!
//! A [`Hint`] may be stale or half stale: another thread may move the table's arrays meanwhile. Its
//! reader computes an address from it and prefetches that; a prefetch of any address is harmless,
//! and nothing is loaded from there (rule 6).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering::Relaxed};

use crate::bucket::{Bucket, Placement};
use crate::entry::Entry;
use crate::expiry::{NEVER, start_of_ms, unit_of};
use crate::segment::{MAX_BUCKETS, Segment};
use crate::table::Table;

const LINE_BYTES: usize = 64;
/// Longer values are left to the hardware's prefetcher, which follows a copy soon enough.
const VALUE_LINES: usize = 16;
/// What lies behind an object is seldom aligned to pages, so that prefetcher would start anew in the middle of it.
const BEHIND_LINES: usize = 64;
/// An entry with a short key has it in its first 32 bytes; those may lie across two lines.
const ENTRY_HEAD_BYTES: usize = 32;

/// Brings a line nearer. Any address will do.
#[inline]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rule 6: a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: rule 6: a prefetch never faults.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Prefetches the lines of so many bytes, but not too many.
fn prefetch_bytes(start: *const u8, len: usize, most_lines: usize) {
    if len == 0 {
        return;
    }
    let first = start.map_addr(|address| address & !(LINE_BYTES - 1));
    let lines = (start.addr() + len - first.addr()).div_ceil(LINE_BYTES);
    for line in 0..lines.min(most_lines) {
        prefetch_line(first.wrapping_add(line * LINE_BYTES));
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
            prefetch_line(array.cast::<Bucket>().wrapping_add(home));
        } else {
            let place = placement.directory_index((extent & 31) as u8 % 28);
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

    /// Reads the bucket's tags, which should be warm, and prefetches the entry.
    #[inline]
    pub fn prefetch_entry(&self, hash: u64) {
        if let Some(entry) = self.candidate(hash) {
            let start = entry.into_raw();
            prefetch_line(start);
            let last = start.wrapping_add(ENTRY_HEAD_BYTES - 1);
            if (start.addr() ^ last.addr()) >= LINE_BYTES {
                prefetch_line(last);
            }
        }
    }

    /// Reads the entry's header, which should be warm, and prefetches its value.
    #[inline]
    pub fn prefetch_value(&self, hash: u64) {
        let Some(entry) = self.candidate(hash) else {
            return;
        };
        if let Some((bytes, len)) = entry.string() {
            prefetch_bytes(bytes, len, VALUE_LINES);
        } else if let Some(blob) = entry.blob() {
            // SAFETY: rules 1 and 5: the table is borrowed; the value part is a blob's pointer.
            prefetch_line(unsafe { *blob.cast::<*const u8>() });
        } else if let Some(object) = entry.object::<V>() {
            prefetch_bytes(object.as_ptr().cast(), size_of::<V>(), 2);
        }
    }

    /// Reads the entry's header and its object, which should be warm, and prefetches the memory behind the object that
    /// `place` points out.
    #[inline]
    pub fn prefetch_behind(&self, hash: u64, place: impl FnOnce(&V) -> Option<&[u8]>) {
        let Some(object) = self.candidate(hash).and_then(Entry::object::<V>) else {
            return;
        };
        // SAFETY: rules 1 and 5: the table is borrowed, so the object stays and nobody changes it.
        if let Some(bytes) = place(unsafe { object.as_ref() }) {
            prefetch_bytes(bytes.as_ptr(), bytes.len(), BEHIND_LINES);
        }
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

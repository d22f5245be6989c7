//! The walk over the entries of a table that moves them, and what they own.

use std::ptr::{self, NonNull};

use super::Mover;
use crate::bucket::{PLACEMENTS, Placement, SLOTS};
#[cfg(feature = "jemalloc-memory")]
use crate::cells;
use crate::entry::{Entry, allocate_class, free_exact, free_relocated, new_exact, write_exact, write_object};
use crate::segment::SegmentSlot;
use crate::shape::Kind;
use crate::size_class::size_class;
use crate::table::Table;
use crate::value::{Blob, Shared};

/// Moves the parts of an object: it gets the key and the object.
pub type RelocateObject<'a, V> = &'a mut dyn FnMut(&[u8], &mut V, &mut Mover);

impl<V> Table<V> {
    /// Moves entries and their values, bucket by bucket from cursor `from` on (0 at first), until the mover's step is
    /// done. Returns the cursor for the next call, or `None` at the end. `relocate_object` moves what an object owns.
    /// It is not called for an object of which another handle exists; such an object stays.
    ///
    /// A cursor stays valid whatever happens to the table between two calls. Entries may be passed over then.
    ///
    /// The arrays of the table may move, too, so the caller publishes its hint afterwards.
    pub fn relocate_entries(
        &mut self,
        from: u32,
        mover: &mut Mover,
        relocate_object: RelocateObject<'_, V>,
    ) -> Option<u32> {
        let mut cursor = from;
        while cursor < PLACEMENTS {
            let index = self.segment_index(Placement::new(cursor));
            let range = self.placement_range(index);
            if cursor == range.start {
                self.relocate_arrays(index, mover);
            }
            let segment = self.segment(index);
            let buckets = segment.bucket_count();
            let first = match segment.len {
                0 => buckets,
                _ => segment.home(Placement::new(cursor)),
            };
            for bucket in first..buckets {
                if bucket + 1 < buckets {
                    self.prefetch_entries_of(index, bucket + 1);
                }
                self.relocate_bucket(index, bucket, mover, relocate_object);
                if mover.is_exhausted() {
                    cursor = range.start + self.segment(index).first_placement_of(bucket + 1);
                    return (cursor < PLACEMENTS).then_some(cursor);
                }
            }
            cursor = range.end;
        }
        None
    }

    /// Moves the arrays of a segment if they lie in sparse slabs.
    fn relocate_arrays(&mut self, index: usize, mover: &mut Mover) {
        let segment = self.segment(index);
        let (buckets, bounds) = (segment.buckets().cast::<u8>(), segment.bounds());
        if segment.bucket_count() == 0 {
            return;
        }
        let should_move = mover.should_move_array(buckets)
            || !bounds.is_empty() && mover.should_move_array(bounds.as_ptr().cast::<u8>());
        if should_move {
            let bytes = segment.array_bytes();
            drop(self.segment_mut(index).relocate());
            self.update_copies(index);
            mover.note_moved(bytes);
        }
    }

    fn relocate_bucket(
        &mut self,
        index: usize,
        bucket: usize,
        mover: &mut Mover,
        relocate_object: RelocateObject<'_, V>,
    ) {
        for slot in 0..SLOTS {
            let Some(entry) = self.segment(index).entry_at(bucket, slot) else {
                continue;
            };
            let moved_before = mover.moved();
            relocate_value(entry, mover, relocate_object);
            self.relocate_entry(index, SegmentSlot { bucket, slot }, entry, mover);
            mover.note_entry(moved_before);
        }
    }

    /// Moves the allocation of the entry at a position.
    fn relocate_entry(&mut self, index: usize, spot: SegmentSlot, entry: Entry, mover: &mut Mover) {
        let class = entry.shape().class();
        // SAFETY: rules 1 and 2: the table is borrowed exclusively and owns the entry.
        let Some(target) = (unsafe { allocate_target(entry, class, mover) }) else {
            return;
        };
        // SAFETY: rules 1, 2 and 13: the new allocation has the same class; the bucket gets its address, and the old
        // allocation is given up without what it contained.
        unsafe {
            let moved = entry.copy_to(target);
            self.segment_mut(index).replace(spot, moved);
            free_relocated(entry.into_raw(), class);
        }
        mover.note_moved(class);
    }
}

/// Returns a new allocation to which an entry should be moved, if it should be moved. `class` is its size class.
///
/// # Safety
/// Rules 1 and 2: the caller owns the entry, and its allocation has this class.
unsafe fn allocate_target(entry: Entry, class: usize, mover: &mut Mover) -> Option<NonNull<u8>> {
    #[cfg(feature = "jemalloc-memory")]
    if let Some(cell_class) = cells::CellClass::of_size_class(class) {
        // SAFETY: rules 2 and 10: entries of this class are cells; the caller owns this one.
        let allocate_if_sparse = || unsafe { cells::allocate_to_relocate(entry.into_raw(), cell_class) };
        return mover.cell_target(allocate_if_sparse, || cells::allocate(cell_class));
    }
    mover.should_move(entry.into_raw()).then(|| allocate_class(class))
}

/// Moves what the value of an entry owns outside the entry. The caller has exclusive access to the entry.
fn relocate_value<V>(entry: Entry, mover: &mut Mover, relocate_object: RelocateObject<'_, V>) {
    match entry.kind() {
        Kind::Exact => relocate_exact(entry, mover),
        Kind::Blob => relocate_blob(entry, mover),
        Kind::Object => relocate_shared_object(entry, mover, relocate_object),
        _ => {}
    }
}

fn relocate_exact(entry: Entry, mover: &mut Mover) {
    let Some((bytes, len)) = entry.string() else {
        return;
    };
    if mover.should_move(bytes) {
        // SAFETY: rules 1, 5 and 13: the string is owned by the entry, to which the caller has exclusive access; its
        // pointer is replaced before the old allocation is freed.
        unsafe {
            let moved = new_exact(std::slice::from_raw_parts(bytes, len));
            write_exact(entry.value_part(), moved, len);
            free_exact(bytes, len);
        }
        mover.note_moved(size_class(len));
    }
}

fn relocate_blob(entry: Entry, mover: &mut Mover) {
    if let Some(place) = entry.blob() {
        // SAFETY: rules 1 and 5: the value part is a blob, to which the caller has exclusive access. It is read and
        // written back; nothing between the two panics.
        unsafe {
            let blob: Blob = ptr::read(place);
            ptr::write(place, blob.relocated(mover));
        }
    }
}

fn relocate_shared_object<V>(entry: Entry, mover: &mut Mover, relocate_object: RelocateObject<'_, V>) {
    let Some(mut object) = entry.object::<V>() else {
        return;
    };
    // SAFETY: rules 1, 5 and 8: the entry owns a reference, and the caller has exclusive access to the entry. Only if
    // no other handle exists, the object is changed, and its reference taken out and replaced.
    unsafe {
        if !Shared::is_unique_raw(object) {
            return;
        }
        relocate_object(entry.key(), object.as_mut(), mover);
        let shared = Shared::from_raw(object);
        write_object(entry.value_part(), shared.relocated(mover));
    }
}

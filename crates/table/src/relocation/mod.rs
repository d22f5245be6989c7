//! Relocation: moving allocations out of sparse slabs, so that these become empty. It is the mechanism of active
//! defragmentation.
//!
//! The allocator takes small allocations from *slabs*, and entries come from runs of cells (`cells/`), which are slabs,
//! too. After most keys were deleted, each slab holds a few of those that are left, and no slab is free. New
//! allocations come from the first slab that has room. So an allocation that is made again, copied and freed leaves a
//! sparse slab and fills a hole in another one.
//!
//! ```text
//!   before   | a . . b | . c . . | d . . . | . . e . |        after   | a d e b | . c . . | . . . . | . . . . |
//! ```
//!
//! - A [`Mover`] decides about one allocation after the other, and moves it. It looks at the slab in which the
//!   allocation lies (`utilization.rs`). Slabs with an average number of free places or more are emptied; full ones,
//!   and the one from which the allocator takes the next allocation, are not.
//! - An allocation stays in its arena: the holes are there. The thread's cache is switched off, because it would return
//!   any free place instead of the first one.
//! - [`Table::relocate_entries`](crate::Table::relocate_entries) walks over the entries of a table (`walk.rs`).
//!
//! The caller has exclusive access to what it moves. Values that are shared stay where they are, because their other
//! owners have the address.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr;
#[cfg(feature = "jemalloc-memory")]
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "jemalloc-memory")]
mod utilization;
mod walk;

/// The cost of looking at an allocation, in units of work: most looks are a miss of the processor's caches.
const LOOK_UNITS: u32 = 1;
/// The cost of moving an allocation, apart from copying.
const MOVE_UNITS: u32 = 3;
/// The number of bytes that are copied for one unit of work.
const BYTES_PER_UNIT: usize = 1024;

/// The number of allocations that a [`Mover`] has moved and has left where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// The number of allocations that were moved.
    pub moved: u64,
    /// The number of allocations that were looked at and stay.
    pub kept: u64,
    /// The bytes of the allocations that were moved.
    pub moved_bytes: u64,
    /// The number of entries of which something was moved.
    pub moved_entries: u64,
    /// The number of entries of which all stays.
    pub kept_entries: u64,
}

/// The allocations that a [`Mover`] moves.
enum Selection {
    /// Those in sparse slabs.
    #[cfg(feature = "jemalloc-memory")]
    InSparseSlabs(utilization::Inspector),
    /// All.
    Everything,
}

/// Moves allocations, for the thread that has created it.
pub struct Mover {
    selection: Selection,
    counts: MoveCounts,
    /// The units of work that are left in this step.
    left: u32,
    /// It changes settings of its thread.
    not_send: PhantomData<*const ()>,
}

impl Mover {
    /// Creates a mover of allocations in sparse slabs. While it exists, its thread allocates without a cache. Returns
    /// `None` if the program's allocator is not jemalloc, or if that lacks what is needed.
    #[must_use]
    pub fn for_this_thread() -> Option<Self> {
        #[cfg(feature = "jemalloc-memory")]
        return utilization::Inspector::for_this_thread()
            .map(|inspector| Self::with_selection(Selection::InSparseSlabs(inspector)));
        #[cfg(not(feature = "jemalloc-memory"))]
        None
    }

    /// Creates a mover that moves every allocation, wherever it lies: for tests.
    #[must_use]
    pub fn of_everything() -> Self {
        Self::with_selection(Selection::Everything)
    }

    fn with_selection(selection: Selection) -> Self {
        Mover {
            selection,
            counts: MoveCounts::default(),
            left: 0,
            not_send: PhantomData,
        }
    }

    /// Begins a step of this many units of work. A unit takes about a quarter of a microsecond.
    pub fn begin_step(&mut self, units: u32) {
        self.left = units;
    }

    /// Returns `true` if the work of the step is done. Going on is possible and makes the step longer.
    #[inline]
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    /// Returns the numbers since they were taken last.
    pub fn take_counts(&mut self) -> MoveCounts {
        std::mem::take(&mut self.counts)
    }

    /// Moves the elements of a vector, which keeps its capacity.
    pub fn vec<T>(&mut self, vec: &mut Vec<T>) {
        if size_of::<T>() > 0 && vec.capacity() > 0 && self.should_move(vec.as_ptr().cast()) {
            let mut moved = Vec::with_capacity(vec.capacity());
            moved.append(vec);
            *vec = moved;
            self.note_moved(vec.capacity() * size_of::<T>());
        }
    }

    /// Moves the elements of a ring buffer, which keeps its capacity.
    pub fn deque<T>(&mut self, deque: &mut VecDeque<T>) {
        let first = deque.as_slices().0.as_ptr();
        if size_of::<T>() > 0 && deque.capacity() > 0 && self.should_move(first.cast()) {
            let mut moved = VecDeque::with_capacity(deque.capacity());
            moved.append(deque);
            *deque = moved;
            self.note_moved(deque.capacity() * size_of::<T>());
        }
    }

    /// Moves the elements of a boxed slice.
    pub fn boxed_slice<T>(&mut self, slice: &mut Box<[T]>) {
        if size_of_val::<[T]>(slice) > 0 && self.should_move(slice.as_ptr().cast()) {
            let mut elements = std::mem::take(slice).into_vec();
            let mut moved = Vec::with_capacity(elements.len());
            moved.append(&mut elements);
            *slice = moved.into_boxed_slice();
            self.note_moved(size_of_val::<[T]>(slice));
        }
    }

    /// Moves a boxed value.
    pub fn boxed<T>(&mut self, value: &mut Box<T>) {
        if size_of::<T>() == 0 || !self.should_move(ptr::from_ref::<T>(value).cast()) {
            return;
        }
        let mut moved = Box::<T>::new_uninit();
        // SAFETY: rule 13: the value is owned and borrowed exclusively; its bytes are copied to a new box, and the old
        // box is freed without its value. Nothing here panics.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref::<T>(value), moved.as_mut_ptr(), 1);
            let old = std::mem::replace(value, moved.assume_init());
            drop(Box::from_raw(Box::into_raw(old).cast::<std::mem::MaybeUninit<T>>()));
        }
        self.note_moved(size_of::<T>());
    }

    /// Moves a reference-counted value if this is its only reference; returns the reference.
    pub(crate) fn shared<T>(&mut self, shared: Arc<T>) -> Arc<T> {
        if Arc::strong_count(&shared) > 1 || !self.should_move(Arc::as_ptr(&shared).cast()) {
            return shared;
        }
        match Arc::try_unwrap(shared) {
            Ok(value) => {
                self.note_moved(size_of::<[usize; 2]>() + size_of::<T>());
                Arc::new(value)
            }
            Err(shared) => shared,
        }
    }

    /// Returns `true` if the allocation at this address should be moved. The thread then allocates in its arena.
    ///
    /// The address is not read from; it may lie inside the allocation.
    pub(crate) fn should_move(&mut self, memory: *const u8) -> bool {
        self.select(memory, true)
    }

    /// Does the same for an array of a table. Arrays have an arena of their own, from which they are allocated anyway.
    /// When a thread leaves an arena that no other thread uses, the allocator returns all its free pages, which takes
    /// long. So the thread does not enter it.
    pub(crate) fn should_move_array(&mut self, memory: *const u8) -> bool {
        self.select(memory, false)
    }

    #[cfg_attr(
        not(feature = "jemalloc-memory"),
        expect(unused_variables, reason = "there are no arenas")
    )]
    fn select(&mut self, memory: *const u8, enters_arena: bool) -> bool {
        self.left = self.left.saturating_sub(LOOK_UNITS);
        let is_selected = match &mut self.selection {
            #[cfg(feature = "jemalloc-memory")]
            Selection::InSparseSlabs(inspector) => {
                inspector.is_in_sparse_slab(memory) && (!enters_arena || inspector.enter_arena_of(memory))
            }
            Selection::Everything => !memory.is_null(),
        };
        self.counts.kept += u64::from(!is_selected);
        is_selected
    }

    /// Records that the walk has visited an entry. `moved` is the number of moved allocations before that.
    pub(crate) fn note_entry(&mut self, moved: u64) {
        let is_moved = self.counts.moved > moved;
        self.counts.moved_entries += u64::from(is_moved);
        self.counts.kept_entries += u64::from(!is_moved);
    }

    /// Returns the number of allocations that were moved since the counts were taken.
    pub(crate) fn moved(&self) -> u64 {
        self.counts.moved
    }

    /// Records that `bytes` bytes were moved.
    pub(crate) fn note_moved(&mut self, bytes: usize) {
        self.counts.moved += 1;
        self.counts.moved_bytes += bytes as u64;
        let units = u32::try_from(bytes / BYTES_PER_UNIT).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(units.saturating_add(MOVE_UNITS));
    }

    /// Returns a free cell to which the contents of a cell should be moved, if it should be moved: what
    /// `allocate_if_sparse` returns, or `allocate` for a mover of everything.
    #[cfg(feature = "jemalloc-memory")]
    pub(crate) fn cell_target(
        &mut self,
        allocate_if_sparse: impl FnOnce() -> Option<NonNull<u8>>,
        allocate: impl FnOnce() -> NonNull<u8>,
    ) -> Option<NonNull<u8>> {
        self.left = self.left.saturating_sub(LOOK_UNITS);
        let target = match self.selection {
            Selection::InSparseSlabs(_) => allocate_if_sparse(),
            Selection::Everything => Some(allocate()),
        };
        self.counts.kept += u64::from(target.is_none());
        target
    }
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover")
            .field("counts", &self.counts)
            .field("left", &self.left)
            .finish()
    }
}

#[cfg(test)]
mod tests;

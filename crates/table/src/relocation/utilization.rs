//! The utilization of the allocator's slabs, by which a mover decides, and the thread's settings for moving.

use std::ffi::{CStr, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use tikv_jemalloc_sys::{mallctl, mallctlbymib, mallctlnametomib};

use crate::sparse::is_sparse;

/// What the allocator says about the slab of an allocation (`experimental.utilization.query` in its source).
#[repr(C)]
#[derive(Clone, Copy)]
struct SlabUtilization {
    /// The address of the slab from which the next allocation of this size comes; null if there is none with room, or
    /// if the allocation is not in a slab.
    current_slab: *const u8,
    free_places: usize,
    places: usize,
    /// The size of the slab in bytes.
    slab_bytes: usize,
    /// The number of free places in all slabs for this size of the arena.
    all_free_places: usize,
    all_places: usize,
}

/// A name of the allocator, in the form in which it is looked up fast.
struct Control<const LEVELS: usize>([usize; LEVELS]);

impl<const LEVELS: usize> Control<LEVELS> {
    fn of_name(name: &CStr) -> Option<Self> {
        let (mut levels, mut length) = ([0; LEVELS], LEVELS);
        // SAFETY: rule 9: the allocator writes at most `length` numbers, for which there is room.
        let result = unsafe { mallctlnametomib(name.as_ptr(), levels.as_mut_ptr(), &raw mut length) };
        (result == 0 && length == LEVELS).then_some(Control(levels))
    }

    /// Passes `input` to the control and returns what it answers.
    ///
    /// # Safety
    /// Rule 9: the control reads an `I` and writes an `O` of plain numbers and addresses that nothing is loaded from.
    unsafe fn exchange<I, O>(&self, input: I) -> Option<O> {
        let mut input = input;
        let (mut output, mut bytes) = (MaybeUninit::<O>::zeroed(), size_of::<O>());
        // SAFETY: rule 9, by the caller; zeros are valid values of `O`.
        unsafe {
            let result = mallctlbymib(
                self.0.as_ptr(),
                LEVELS,
                output.as_mut_ptr().cast::<c_void>(),
                &raw mut bytes,
                ptr::from_mut(&mut input).cast::<c_void>(),
                size_of::<I>(),
            );
            (result == 0 && bytes == size_of::<O>()).then(|| output.assume_init())
        }
    }
}

/// Inspects slabs, and makes its thread allocate in their arenas without a cache.
pub(super) struct Inspector {
    query: Control<3>,
    arena_lookup: Control<2>,
    thread_arena: Control<2>,
    /// The arena from which the thread allocates now.
    arena: c_uint,
    /// The arena from which it allocated before.
    former_arena: c_uint,
}

impl Inspector {
    /// Returns `None` if the program has another allocator, or if the allocator lacks a control that is needed.
    pub(super) fn for_this_thread() -> Option<Self> {
        let thread_arena = Control::of_name(c"thread.arena")?;
        let inspector = Inspector {
            query: Control::of_name(c"experimental.utilization.query")?,
            arena_lookup: Control::of_name(c"arenas.lookup")?,
            arena: current_arena()?,
            former_arena: current_arena()?,
            thread_arena,
        };
        // An address of another allocator may only be looked up in this way.
        let probe = Box::new(0_u64);
        let is_allocator = inspector.arena_of(ptr::from_ref(&*probe).cast()).is_some();
        (is_allocator && use_thread_cache(false)).then_some(inspector)
    }

    /// Returns the arena of an allocation.
    fn arena_of(&self, memory: *const u8) -> Option<c_uint> {
        // SAFETY: rule 9: the control takes an address, looks it up without reading there, and writes a number.
        unsafe { self.arena_lookup.exchange(memory) }
    }

    /// Returns `true` if the allocation at an address lies in a slab that should be emptied. The address is one of this
    /// allocator.
    pub(super) fn is_in_sparse_slab(&self, memory: *const u8) -> bool {
        // SAFETY: rule 9: the control takes an address, looks it up without reading there, and writes the structure.
        let slab: Option<SlabUtilization> = unsafe { self.query.exchange(memory) };
        slab.is_some_and(|slab| {
            let (free, places) = (slab.free_places as u64, slab.places as u64);
            let (all_free, all_places) = (slab.all_free_places as u64, slab.all_places as u64);
            let is_current = memory.addr().wrapping_sub(slab.current_slab.addr()) < slab.slab_bytes;
            free > 0
                && !is_current
                && !slab.current_slab.is_null()
                && is_sparse(
                    places.saturating_sub(free),
                    places,
                    all_places.saturating_sub(all_free),
                    all_places,
                )
        })
    }

    /// Makes the thread allocate in the arena of an allocation. Returns `false` if that is not possible.
    pub(super) fn enter_arena_of(&mut self, memory: *const u8) -> bool {
        self.arena_of(memory)
            .is_some_and(|arena| arena == self.arena || self.enter_arena(arena))
    }

    fn enter_arena(&mut self, arena: c_uint) -> bool {
        // SAFETY: rule 9: the control takes the number of an arena that exists, and writes the number of the former.
        let former: Option<c_uint> = unsafe { self.thread_arena.exchange(arena) };
        if former.is_some() {
            self.arena = arena;
        }
        former.is_some()
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        self.enter_arena(self.former_arena);
        use_thread_cache(true);
    }
}

/// Returns the number of the arena from which the thread allocates.
fn current_arena() -> Option<c_uint> {
    let number = crate::allocator::number(b"thread.arena", None).ok()?;
    c_uint::try_from(number).ok()
}

/// Switches the cache of this thread on or off. Returns `true` if that was possible.
fn use_thread_cache(is_used: bool) -> bool {
    let mut is_used = is_used;
    // SAFETY: rule 9: the control takes a boolean.
    let result = unsafe {
        mallctl(
            c"thread.tcache.enabled".as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::from_mut(&mut is_used).cast::<c_void>(),
            size_of::<bool>(),
        )
    };
    result == 0
}

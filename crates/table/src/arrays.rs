//! Memory for the arrays of tables, in an arena of the allocator that holds nothing else.
//!
//! All tables grow at about the same time, because their keys are spread evenly, and each leaves an old array behind.
//! Among the entries these would be small holes all over the heap, a tenth of it. Returning them would break up nearly
//! every huge page of the entries, and then every lookup would need longer page walks. In a separate arena the holes
//! are together, next to arrays that can be moved, and the entries keep their huge pages.
//!
//! Without the feature `jemalloc-memory` the arrays come from the global allocator, like all other memory.

use std::alloc::Layout;

#[cfg(feature = "jemalloc-memory")]
use arena::{allocate_zeroed_in_arena as allocate_zeroed, free_in_arena as release};
#[cfg(not(feature = "jemalloc-memory"))]
use std::alloc::{alloc_zeroed as allocate_zeroed, dealloc as release};

/// Returns the number of the arena that has the arrays of all tables, or `None` if there is no such arena: no table has
/// had an array yet, or the allocator could not create the arena.
#[must_use]
pub fn arena() -> Option<u32> {
    #[cfg(feature = "jemalloc-memory")]
    return arena::created();
    #[cfg(not(feature = "jemalloc-memory"))]
    None
}

/// Allocates zeroed memory for an array. Aborts the process if there is none.
///
/// # Safety
/// The layout is not empty, and its alignment is at most 64.
#[inline]
pub(crate) unsafe fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: guaranteed by the caller.
    let array = unsafe { allocate_zeroed(layout) };
    if array.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    array
}

/// Frees an array.
///
/// # Safety
/// [`allocate`] returned it for this layout, and it is not used again.
#[inline]
pub(crate) unsafe fn free(array: *mut u8, layout: Layout) {
    // SAFETY: guaranteed by the caller.
    unsafe { release(array, layout) };
}

#[cfg(feature = "jemalloc-memory")]
mod arena {
    use std::alloc::Layout;
    use std::ffi::{c_int, c_uint};
    use std::sync::OnceLock;

    use tikv_jemalloc_sys::{MALLOCX_ALIGN, MALLOCX_ARENA, MALLOCX_TCACHE_NONE, MALLOCX_ZERO, mallocx, sdallocx};

    use crate::allocator::create_arena;

    /// The arena's number; `None` if the allocator could not create it.
    static ARENA: OnceLock<Option<c_uint>> = OnceLock::new();

    /// Returns the arena's number, or `None` if it was not needed yet or the allocator could not create it.
    pub fn created() -> Option<c_uint> {
        ARENA.get().copied().flatten()
    }

    /// Returns the arena's number, or `None` if the allocator could not create it.
    fn number() -> Option<c_uint> {
        *ARENA.get_or_init(|| create_arena().ok())
    }

    /// Returns the flags that select the arena and bypass the thread's cache, which would mix it with other arenas.
    fn arena_flags() -> c_int {
        // Without its own arena an array may lie anywhere.
        number().map_or(0, |arena| MALLOCX_ARENA(arena as usize)) | MALLOCX_TCACHE_NONE
    }

    /// # Safety
    /// As for `std::alloc::alloc_zeroed`.
    pub(super) unsafe fn allocate_zeroed_in_arena(layout: Layout) -> *mut u8 {
        let flags = arena_flags() | MALLOCX_ZERO | MALLOCX_ALIGN(layout.align());
        // SAFETY: the size is not zero, by the caller; the alignment is a power of two.
        unsafe { mallocx(layout.size(), flags).cast() }
    }

    /// # Safety
    /// As for `std::alloc::dealloc`, for memory that came from the function above.
    pub(super) unsafe fn free_in_arena(array: *mut u8, layout: Layout) {
        let flags = MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(layout.align());
        // SAFETY: allocated with this size and alignment, by the caller.
        unsafe { sdallocx(array.cast(), layout.size(), flags) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_zeroed_and_aligned() {
        for size in [64, 128, 1856, 4096, 1 << 20] {
            let layout = Layout::from_size_align(size, 64).expect("a layout");
            // SAFETY: not empty; used within its size, and freed once.
            unsafe {
                let array = allocate(layout);
                assert_eq!(array.addr() % 64, 0);
                assert!((0..size).all(|at| *array.add(at) == 0), "{size}");
                array.write_bytes(0xff, size);
                free(array, layout);
            }
        }
    }
}

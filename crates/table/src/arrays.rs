//! Memory for the arrays of tables, in an arena of the allocator that is theirs alone.
//!
//! All tables grow at about the same time, for their keys are spread evenly, and each leaves an array behind. Among the
//! entries those would be small holes all over the heap, a tenth of it; to give them back takes nearly every huge page
//! of the entries apart, and then every lookup walks longer through the page tables. In an arena of their own the holes
//! are together, next to arrays that can be moved, and the entries keep their huge pages.
//!
//! Without the feature `jemalloc` the arrays come from the global allocator, as everything else.

use std::alloc::Layout;

#[cfg(feature = "jemalloc")]
use arena::{allocate_zeroed_in_arena as allocate_zeroed, free_in_arena as release};
#[cfg(not(feature = "jemalloc"))]
use std::alloc::{alloc_zeroed as allocate_zeroed, dealloc as release};

/// The number of the arena that has the arrays of all tables; `None` if they come from everywhere.
#[must_use]
pub fn arena() -> Option<u32> {
    #[cfg(feature = "jemalloc")]
    return arena::number();
    #[cfg(not(feature = "jemalloc"))]
    None
}

/// Zeroed memory for an array; ends the process if there is none.
///
/// # Safety
/// The layout is not empty, and aligned to 64 at most.
#[inline]
pub(crate) unsafe fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: the caller's.
    let array = unsafe { allocate_zeroed(layout) };
    if array.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    array
}

/// Gives an array back.
///
/// # Safety
/// [`allocate`] gave it for this layout, and it is not used again.
#[inline]
pub(crate) unsafe fn free(array: *mut u8, layout: Layout) {
    // SAFETY: the caller's.
    unsafe { release(array, layout) };
}

#[cfg(feature = "jemalloc")]
mod arena {
    use std::alloc::Layout;
    use std::ffi::{c_int, c_uint};
    use std::ptr;
    use std::sync::OnceLock;

    use tikv_jemalloc_sys::{
        MALLOCX_ALIGN, MALLOCX_ARENA, MALLOCX_TCACHE_NONE, MALLOCX_ZERO, mallctl, mallocx, sdallocx,
    };

    /// The number of the arena; `None` if the allocator has none for us.
    pub fn number() -> Option<c_uint> {
        static ARENA: OnceLock<Option<c_uint>> = OnceLock::new();
        *ARENA.get_or_init(create)
    }

    /// Which arena, and past the thread's cache, which would mix it with others.
    fn place() -> c_int {
        // Without an arena of its own an array may lie anywhere.
        number().map_or(0, |arena| MALLOCX_ARENA(arena as usize)) | MALLOCX_TCACHE_NONE
    }

    fn create() -> Option<c_uint> {
        let mut arena: c_uint = 0;
        let mut bytes = size_of::<c_uint>();
        // SAFETY: the control's documentation: it writes one `unsigned`, for which there is room.
        let result = unsafe {
            mallctl(
                c"arenas.create".as_ptr(),
                ptr::from_mut(&mut arena).cast(),
                &raw mut bytes,
                ptr::null_mut(),
                0,
            )
        };
        (result == 0).then_some(arena)
    }

    /// # Safety
    /// As for `std::alloc::alloc_zeroed`.
    pub(super) unsafe fn allocate_zeroed_in_arena(layout: Layout) -> *mut u8 {
        let flags = place() | MALLOCX_ZERO | MALLOCX_ALIGN(layout.align());
        // SAFETY: the size is not zero, by the caller; the alignment is a power of two.
        unsafe { mallocx(layout.size(), flags).cast() }
    }

    /// # Safety
    /// As for `std::alloc::dealloc`, of what came from the function above.
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

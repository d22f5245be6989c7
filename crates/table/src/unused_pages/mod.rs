//! Pages that the allocator has and does not use, and their return to the operating system.
//!
//! When jemalloc returns free pages, it keeps their addresses (it *retains* them) to use them again. It assumes that
//! they take no memory until then. With huge pages that is wrong: once all 2 MiB of a huge page were returned, the
//! first access to any of its addresses makes the whole huge page resident, although most of it may be retained
//! addresses. The kernel's `khugepaged` has the same effect, because it replaces small pages by a huge one that also
//! covers the missing ones. The allocator does not count such pages, and never returns them again (measured: 20
//! minutes of changes to keys of all sizes left a quarter of the heap in them).
//!
//! So this module records which pages are retained: extent hooks of the allocator, by which it maps, uses and returns
//! address space, set a bit for each page in a map (`hooks.rs`, `page_map.rs`). [`return_to_system`] returns those that
//! are resident.
//!
//! jemalloc has a name for pages that it may not use yet: they are *not committed*. It asks a hook to commit them
//! before it uses them, and another one to decommit them when it returns them. For Linux its own hooks refuse both, and
//! all pages count as committed. The hooks of this module accept both. They keep the promises that jemalloc relies on:
//!
//! 1. Fresh addresses are not committed if the allocator did not ask for that, which it does for all but the part that
//!    it uses first. They are zeroed.
//! 2. Decommitted pages are zeroed. The hook returns them with `MADV_DONTNEED`, as jemalloc does itself. A page that
//!    becomes resident with its huge page is zeroed, too, and stays so, because nothing writes to it.
//! 3. Addresses are mapped in the same way before and after they are committed: to commit pages only clears their bits.
//!
//! A page of the map can be in two states, and only the owner of its addresses changes them:
//!
//! | bit | addresses belong to | the page is |
//! |---|---|---|
//! | clear | an extent in use, a free extent that was not returned, or not to the allocator | left alone |
//! | set | a retained extent | zeroed; returned by [`return_to_system`] if it is resident |
//!
//! The bits of a huge page's addresses have a lock. [`return_to_system`] holds it from its look at the bits until the
//! pages are returned, so that the allocator does not begin to use a page meanwhile. The hooks run while the allocator
//! holds locks of its own, so they must not allocate memory, and the map has its memory from the system.
//!
//! Addresses that an arena retained before [`track`] was called have no bits. They get them when they have been used
//! and returned again.
//!
//! Nothing is recorded, and the allocator's own hooks stay, if the machine's pages do not have 4 KiB, if the system
//! does not overcommit memory (then the allocator makes retained addresses inaccessible, and they cannot be resident),
//! or if the option `retain` is off.
//!
//! Without the feature `jemalloc-memory` there are no hooks.

#[cfg(feature = "jemalloc-memory")]
mod hooks;
#[cfg(any(feature = "jemalloc-memory", test))]
mod page_map;

/// Records the unused pages of an arena from now on. Returns `false` if that is impossible, or if there is no such
/// arena. Further calls for the same arena change nothing.
pub fn track(arena: u32) -> bool {
    #[cfg(feature = "jemalloc-memory")]
    return hooks::install(arena);
    #[cfg(not(feature = "jemalloc-memory"))]
    {
        let _ = arena;
        false
    }
}

/// Returns the resident pages among the unused ones to the operating system, in all arenas that are tracked. Returns
/// the bytes of these pages. Where the system does not say which pages are resident, these are all unused pages.
///
/// The call takes a few microseconds for each 2 MiB that have unused pages, and up to a hundred where pages are
/// returned.
pub fn return_to_system() -> u64 {
    #[cfg(feature = "jemalloc-memory")]
    return hooks::return_resident_pages();
    #[cfg(not(feature = "jemalloc-memory"))]
    0
}

/// Returns the bytes of unused pages, resident or not. The call reads the map, 64 bytes for each 2 MiB.
#[must_use]
pub fn unused_bytes() -> u64 {
    #[cfg(feature = "jemalloc-memory")]
    return hooks::unused_bytes();
    #[cfg(not(feature = "jemalloc-memory"))]
    0
}

#[cfg(all(test, feature = "jemalloc-memory"))]
mod hook_tests;
#[cfg(test)]
mod tests;

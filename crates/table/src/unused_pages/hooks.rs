//! The extent hooks that record unused pages, and the system calls about such pages.
//!
//! The hooks must not panic: they run while the allocator holds locks. They use no memory of the allocator, and wait
//! only for the locks of the page map, whose holders wait for nothing.
//!
//! A fork copies the locks in the state that they have. If another thread holds one, the child's first allocation could
//! wait for ever. So the locks are released in the child. The state of the page map is valid at any time.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::ptr;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use tikv_jemalloc_sys::{extent_hooks_t, mallctl};

use super::page_map::{CHUNK_BYTES, CHUNK_PAGES, ChunkPages, ChunkWords, PAGE_BYTES, PageMap};

/// The number of bits of the addresses that a process has on this machine.
const ADDRESS_BITS: u32 = if cfg!(target_arch = "x86_64") { 47 } else { 48 };
/// The number of chunks at these addresses.
const CHUNKS: usize = (1 << ADDRESS_BITS) / CHUNK_BYTES;

/// The hooks and the map of the process; `None` if pages cannot be tracked.
static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();

/// The hooks, and what they use.
struct Tracker {
    /// The hooks of the arenas that are tracked.
    hooks: extent_hooks_t,
    /// The allocator's own hooks. They do not use their first argument, so they may be called with the hooks above.
    default: &'static extent_hooks_t,
    pages: PageMap,
}

fn tracker() -> Option<&'static Tracker> {
    TRACKER.get()?.as_ref()
}

/// Installs the hooks in an arena. Returns `false` if that is impossible, or if there is no such arena.
pub(super) fn install(arena: u32) -> bool {
    let Some(tracker) = TRACKER.get_or_init(Tracker::create) else {
        return false;
    };
    let control = |setting: &str| CString::new(format!("arena.{arena}.{setting}")).ok();
    // The allocator would create an arena that does not exist to set its hooks.
    let exists = control("dirty_decay_ms").is_some_and(|name| read::<isize>(&name).is_some());
    let Some(name) = control("extent_hooks").filter(|_| exists) else {
        return false;
    };
    let mut hooks = ptr::from_ref(&tracker.hooks).cast_mut();
    // SAFETY: rule 12: the control takes a pointer to hooks, which are valid for ever and not written to.
    let result = unsafe {
        mallctl(
            name.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::from_mut(&mut hooks).cast(),
            size_of_val(&hooks),
        )
    };
    result == 0
}

/// Returns the bytes of unused pages.
pub(super) fn unused_bytes() -> u64 {
    let mut pages = 0;
    if let Some(tracker) = tracker() {
        tracker.pages.visit(|_, unused| pages += unused.count());
    }
    (pages * PAGE_BYTES) as u64
}

/// Returns the resident pages among the unused ones to the system. Returns their bytes.
pub(super) fn return_resident_pages() -> u64 {
    let mut pages = 0;
    if let Some(tracker) = tracker() {
        tracker
            .pages
            .visit(|address, unused| pages += tracker.return_pages_of_chunk(address, unused));
    }
    (pages * PAGE_BYTES) as u64
}

impl Tracker {
    /// Creates the hooks. Returns `None` if the allocator, its options or the system do not suit them; see the module
    /// above.
    fn create() -> Option<Tracker> {
        // SAFETY: the call has no preconditions.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if page_bytes != PAGE_BYTES as i64 || read::<u8>(c"opt.retain")? == 0 {
            return None;
        }
        let default: *mut extent_hooks_t = ptr::with_exposed_provenance_mut(read::<usize>(c"arena.0.extent_hooks")?);
        // SAFETY: rule 12: the allocator's own hooks are a constant of it.
        let default: &'static extent_hooks_t = unsafe { default.as_ref() }?;
        if default.alloc.is_none() || default.purge_forced.is_none() || !overcommits(default)? {
            return None;
        }
        let pages = map_pages()?;
        // SAFETY: the function is one of the process, and may be called in the child after a fork: it only writes to
        // atomics.
        if unsafe { pthread_atfork(None, None, Some(release_locks_in_child)) } != 0 {
            return None;
        }
        let hooks = extent_hooks_t {
            alloc: Some(map_extent),
            // With the option `retain`, the allocator's own function refuses, too. It asks first whether there is one.
            dalloc: None,
            destroy: Some(unmap_extent),
            commit: Some(commit_pages),
            decommit: Some(decommit_pages),
            purge_lazy: default.purge_lazy,
            purge_forced: default.purge_forced,
            split: default.split,
            merge: default.merge,
        };
        Some(Tracker { hooks, default, pages })
    }

    /// Returns the resident pages among the unused ones of a chunk, of which the map's lock is held, to the system.
    /// Returns their number.
    fn return_pages_of_chunk(&self, chunk: usize, unused: &ChunkPages) -> usize {
        let (Some(first), Some(last)) = (unused.runs().next(), unused.runs().last()) else {
            return 0;
        };
        let is_resident = resident_pages(chunk, first.start, last.end);
        let mut returned = 0;
        for run in unused.runs() {
            let resident = is_resident[run.clone()].iter().filter(|page| **page & 1 == 1).count();
            // SAFETY: rule 12: the pages are unused, and cannot be committed meanwhile, because the lock is held.
            if resident > 0 && unsafe { self.purge(chunk + run.start * PAGE_BYTES, run.len() * PAGE_BYTES) } {
                returned += resident;
            }
        }
        returned
    }

    /// Returns a range of pages to the system. They are zeroed when they are accessed again. Returns `false` if the
    /// system refuses; then the pages may be in any state.
    ///
    /// # Safety
    /// Mapped pages of the allocator, of which the contents are not needed.
    unsafe fn purge(&self, address: usize, bytes: usize) -> bool {
        let Some(purge) = self.default.purge_forced else {
            return false;
        };
        let hooks = ptr::from_ref(&self.hooks).cast_mut();
        let address = ptr::with_exposed_provenance_mut(address);
        // The function fails, too, if the system does not zero pages, as some emulators.
        // SAFETY: guaranteed by the caller. The last argument is not used.
        let fails = unsafe { purge(hooks, address, bytes, 0, bytes, 0) };
        !fails
    }
}

/// Returns a byte for each page of a chunk, of which bit 0 is set if the page is resident. Only the pages from position
/// `first` to `end` are asked for. If the system does not answer, all count as resident.
fn resident_pages(chunk: usize, first: usize, end: usize) -> [u8; CHUNK_PAGES] {
    let mut resident = [0; CHUNK_PAGES];
    let address = ptr::without_provenance_mut(chunk + first * PAGE_BYTES);
    // SAFETY: the call writes a byte for each page, for which there is room. It reads no page.
    let result = unsafe { libc::mincore(address, (end - first) * PAGE_BYTES, resident[first..].as_mut_ptr()) };
    if result != 0 {
        // There are other addresses in between that are not mapped, or the call is not permitted.
        resident.fill(1);
    }
    resident
}

/// Returns `true` if the allocator lets the system overcommit memory, `None` if that cannot be found out.
fn overcommits(default: &extent_hooks_t) -> Option<bool> {
    let commit = default.commit?;
    let page = map_memory(PAGE_BYTES)?;
    // The function refuses if the system overcommits. Otherwise it maps the page anew.
    // SAFETY: the page was mapped for this purpose. The first and the last argument are not used.
    let refuses = unsafe {
        let refuses = commit(ptr::null_mut(), page, PAGE_BYTES, 0, PAGE_BYTES, 0);
        libc::munmap(page, PAGE_BYTES);
        refuses
    };
    Some(refuses)
}

/// Reserves addresses for the map of all pages. They take memory only when they are written to.
fn map_pages() -> Option<PageMap> {
    let words_bytes = CHUNKS * size_of::<ChunkWords>();
    let bytes = words_bytes + CHUNKS / 8;
    let memory = map_memory(bytes)?;
    // SAFETY: the memory was just mapped. It is never unmapped, zeroes are valid atomics, and the lengths are those of
    // the two parts. What the calls advise is not necessary.
    unsafe {
        libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE);
        libc::madvise(memory, bytes, libc::MADV_DONTDUMP);
        let chunks = slice::from_raw_parts(memory.cast::<ChunkWords>(), CHUNKS);
        let known = memory.byte_add(words_bytes).cast::<AtomicU64>();
        let known = slice::from_raw_parts(known, CHUNKS / u64::BITS as usize);
        Some(PageMap::new(chunks, known))
    }
}

/// Returns fresh memory of the system, for which nothing is reserved until it is written to.
fn map_memory(bytes: usize) -> Option<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the system chooses addresses that are not in use.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Reads a number under a name of the allocator; `None` if there is none of that size.
fn read<T: Copy + Default>(name: &CStr) -> Option<T> {
    let (mut value, mut bytes) = (T::default(), size_of::<T>());
    // SAFETY: rule 9: the value has the size that is stated, and is a number, for which any bits are valid.
    let result = unsafe {
        mallctl(
            name.as_ptr(),
            ptr::from_mut(&mut value).cast(),
            &raw mut bytes,
            ptr::null_mut(),
            0,
        )
    };
    (result == 0).then_some(value)
}

unsafe extern "C" {
    /// The function of POSIX, which the crate `libc` lacks on Linux.
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

unsafe extern "C" fn release_locks_in_child() {
    if let Some(tracker) = tracker() {
        tracker.pages.release_locks();
    }
}

/// The hook that maps addresses. The allocator does not need all of them at once if it does not ask to commit them.
unsafe extern "C" fn map_extent(
    hooks: *mut extent_hooks_t,
    at: *mut c_void,
    bytes: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    arena: c_uint,
) -> *mut c_void {
    let Some((tracker, map)) = tracker().and_then(|tracker| Some((tracker, tracker.default.alloc?))) else {
        return ptr::null_mut();
    };
    let mut is_committed = true;
    // SAFETY: rule 12: `zero` and `commit` are variables of the allocator. The rest is for its own function.
    unsafe {
        let must_commit = *commit;
        let memory = map(hooks, at, bytes, alignment, zero, &raw mut is_committed, arena);
        if memory.is_null() {
            return memory;
        }
        // Memory that is not zeroed is not fresh, and may be resident.
        *commit = must_commit || !*zero;
        match *commit {
            true => tracker.pages.remove(memory.expose_provenance(), bytes),
            false => tracker.pages.insert(memory.expose_provenance(), bytes),
        }
        memory
    }
}

/// The hook that unmaps addresses when an arena is destroyed.
unsafe extern "C" fn unmap_extent(
    hooks: *mut extent_hooks_t,
    extent: *mut c_void,
    bytes: usize,
    is_committed: bool,
    arena: c_uint,
) {
    let Some(tracker) = tracker() else {
        return;
    };
    // Before other memory can be mapped there.
    tracker.pages.remove(extent.addr(), bytes);
    if let Some(unmap) = tracker.default.destroy {
        // SAFETY: the allocator has called this function with the same arguments.
        unsafe { unmap(hooks, extent, bytes, is_committed, arena) };
    }
}

/// The hook that the allocator calls before it uses pages. Returns `false`: it never fails.
unsafe extern "C" fn commit_pages(
    _: *mut extent_hooks_t,
    extent: *mut c_void,
    _: usize,
    offset: usize,
    bytes: usize,
    _: c_uint,
) -> bool {
    if let Some(tracker) = tracker() {
        tracker.pages.remove(extent.addr().wrapping_add(offset), bytes);
    }
    false
}

/// The hook that returns pages which the allocator no longer uses. Returns `true` if it fails; the allocator then tries
/// other ways.
unsafe extern "C" fn decommit_pages(
    _: *mut extent_hooks_t,
    extent: *mut c_void,
    _: usize,
    offset: usize,
    bytes: usize,
    _: c_uint,
) -> bool {
    let Some(tracker) = tracker() else {
        return true;
    };
    let address = extent.expose_provenance().wrapping_add(offset);
    // No lock is held during the call: the pages belong to this call until their bits are set.
    // SAFETY: rule 12: the allocator no longer needs what the pages contain.
    let is_returned = unsafe { tracker.purge(address, bytes) };
    if is_returned {
        tracker.pages.insert(address, bytes);
    }
    !is_returned
}

/// Returns `true` if the page at an address is recorded as unused.
#[cfg(test)]
pub(super) fn is_unused(address: usize) -> bool {
    let mut is_unused = false;
    if let Some(tracker) = tracker() {
        tracker.pages.visit(|chunk, unused| {
            let page = address.wrapping_sub(chunk) / PAGE_BYTES;
            is_unused |= unused.runs().any(|run| run.contains(&page));
        });
    }
    is_unused
}

/// Returns the address and the size of the map of unused pages.
#[cfg(test)]
pub(super) fn map_memory_range() -> Option<(usize, usize)> {
    Some(tracker()?.pages.memory())
}

/// Calls `act` while the lock of the page at an address is held.
#[cfg(test)]
pub(super) fn with_lock<R>(address: usize, act: impl FnOnce() -> R) -> Option<R> {
    let tracker = tracker()?;
    let _held = tracker.pages.hold_chunk(address);
    Some(act())
}

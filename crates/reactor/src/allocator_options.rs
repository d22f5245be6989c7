//! Options of the allocator, which jemalloc reads from a symbol of the program before `main`.
//!
//! Huge pages: a lookup touches a bucket, an entry and a value at unrelated addresses. With small pages, each of the
//! three accesses also walks the page tables, and in a virtual machine two sets of them. The server does not fork, so
//! huge pages cause no bursts of copy-on-write.
//!
//! The allocator's own structures get huge pages only once they are large. This saves a few MB in a small server.
//!
//! Decay is off: returning pages one by one splits huge pages. The server itself returns free pages when it is
//! worthwhile.
//!
//! Slabs of the most common sizes have several pages, which costs less metadata per allocation.
//!
//! One arena is for all threads at first. By default each new thread would get another one, and the first allocation of
//! an arena takes a huge page: a server whose threads wait for work would have 16 MB and more in pages that are nearly
//! empty. A thread that has work takes an arena of its own (`observability::memory` of the server).
//!
//! Large allocations begin at a page boundary. By default they get an additional page, so that they can begin anywhere
//! in it. That page would be an eighth of the 32 KiB chunks of which large collections consist.

use std::ffi::{CStr, c_char};

const OPTIONS: &CStr = c"narenas:1,thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:0,cache_oblivious:false,slab_sizes:32-32:4|48-48:6|64-64:8|96-96:12|512-512:16|1024-1024:16|2048-2048:16|4096-4096:64";

/// The symbol from which jemalloc reads its options.
// SAFETY: rule 5: the symbol is jemalloc's, which expects this type, and no other item exports it.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &c_char = unsafe { &*OPTIONS.as_ptr() };

/// Returns the options that were linked in. Calling it also ensures that the linker keeps the symbol.
pub fn allocator_options() -> &'static str {
    std::hint::black_box(MALLOC_CONF);
    OPTIONS.to_str().unwrap_or_default()
}

//! Options of the allocator, which it reads from a symbol of the program before `main`.
//!
//! Huge pages: a lookup touches a bucket, an entry and a value that lie anywhere in memory, and with
//! small pages each of the three also walks the page tables, in a virtual machine two sets of them.
//! Nothing forks here, so huge pages bring no copy storms.
//!
//! The allocator's own structures get huge pages only once they are large: a few MB less for a small server.
//!
//! Decay is off: pages given back one by one take huge pages apart. The server gives free pages back
//! when it is worth it.
//!
//! Slabs of the commonest sizes have several pages, which costs less metadata per allocation.
//!
//! Large allocations begin at a page. By default they get a page more, to begin anywhere in it; that is an eighth of the
//! 32 KiB chunks that large collections consist of.

use std::ffi::{CStr, c_char};

const OPTIONS: &CStr = c"thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:0,cache_oblivious:false,slab_sizes:32-32:4|48-48:6|64-64:8|96-96:12|512-512:16|1024-1024:16|2048-2048:16|4096-4096:64";

/// Where jemalloc looks for its options.
// SAFETY: rule 5: the symbol is jemalloc's, which expects this type, and nothing else exports it.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: &c_char = unsafe { &*OPTIONS.as_ptr() };

/// The options that were linked in. Calling it also makes sure that they are.
pub fn allocator_options() -> &'static str {
    std::hint::black_box(MALLOC_CONF);
    OPTIONS.to_str().unwrap_or_default()
}

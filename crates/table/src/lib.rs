//! The hash table of one slot and database: buckets, entries, expiry index, interleaved probes.
//!
//! Weft divides its keys among 16384 slots, and a [`Table`] holds those of one slot in one database: typically a
//! hundred or two, but empty tables and tables of ten million keys must work as well. Memory and cache misses decide
//! its design:
//!
//! ```text
//!   Table (40 bytes)      bucket (64 bytes)             entry (one allocation)
//!   +----------+          +---------------------+       +-----+--------+-----+-------+
//!   | buckets -+--------> | 7 x (19 bits | ptr)-+-----> | clk | expiry | key | value |--> external
//!   | bounds  -+--> u32   | 7 tags, overflow    |       +-----+--------+-----+-------+    value
//!   +----------+   each   +---------------------+
//! ```
//!
//! - A lookup reads one bucket and one entry (`bucket.rs`, `entry.rs`). Prefetching in stages lets a batch of lookups
//!   wait for memory together (`probe.rs`).
//! - A bucket stores 27 hash bits per entry, all the bits that place it, so growing reads no entries. The number of
//!   buckets is arbitrary, so the load stays above four fifths (`segment.rs`).
//! - Large tables are a directory of segments, so no step takes long (`table.rs`).
//! - Key, expiry and small values share one allocation; medium strings take exactly their size class (`entry.rs`,
//!   `size_class.rs`, `cells/`); large and growing ones are shared blobs (`value/blob.rs`).
//! - Objects are shared too: a handle is a snapshot that needs no copy (`value/shared.rs`).
//! - Keys that are due are found without reading the others (`expiry.rs`).
//! - Entries and values can be moved out of sparse slabs of the allocator (`relocation/`).
//! - The table is in hash order, so a scan cursor stays valid across all resizes (`scan.rs`).
//!
//! The caller holds a lease of the slot: `&mut Table` for writers, `&Table` for readers, which change only atomics.
//! Memory that a write frees is returned ([`Garbage`], [`Removed`]) to be dropped after the lease (`garbage.rs`).
//!
//! # Rules for unsafe code
//!
//! 1. **Ownership.** A non-null word in a bucket of a table is an entry that this table owns and no other word refers
//!    to. A shared borrow of the table may read its entries, an exclusive one may change them. Entries outside tables
//!    are owned by a `Removed`, an `EmptyAllocation`, or the function that is about to place or free them.
//! 2. **Layout.** The header of an entry describes all its parts, and its allocation has the size class of their sum,
//!    aligned to 8. It is a cell if there are cells of that class. Code that changes the header keeps the class, or
//!    moves the entry. Every byte up to that sum is initialised.
//! 3. **Atomics.** The first word of an entry that other threads can see is accessed only as an atomic. Nothing else of
//!    an entry changes under a shared borrow.
//! 4. **Arrays.** A segment has `bucket_count` buckets, and as many bounds or none; the pointers are null if there are
//!    none. Of several copies of a segment only one is used to change or free them.
//! 5. **External values.** An entry of kind exact, blob or object owns what its value part points to; of an object, one
//!    reference. Code that takes that out overwrites the value part, or frees the entry as an empty allocation.
//! 6. **Prefetches.** A prefetch instruction may be given any address. Addresses that may be stale are computed with
//!    wrapping arithmetic and never loaded from.
//! 7. **Directory.** The root segment of a table is flagged if and only if its `buckets` pointer is a boxed `Directory`
//!    that the table owns. Only the table's own methods access it.
//!
//! 8. **Shared objects.** An object lies behind a reference count (an `Arc` without weak references), and the value
//!    part is the result of `Arc::into_raw`. Handles come from a borrowed entry or from other handles. An object is
//!    changed only by the exclusive borrower of its table, after the count was found to be one: then no other handle
//!    exists, and none can be created. Otherwise the entry gets a copy first. So what a handle shows never changes, and
//!    the last handle frees the object.
//! 9. **The allocator's names.** What is read or written under a name has the stated size, and a writable name holds a
//!    number that the allocator checks, never an address, except that of rule 12.
//! 10. **Cells.** A run belongs to the slab pool of its class, which alone reads and writes its head and bitmap, under
//!     its mutex. A cell whose bit is clear is owned by an entry, by a magazine, or by the function that is about to
//!     pass it on; its run lives as long. Only the owner of a cell accesses it or returns it, and with the class with
//!     which it was allocated.
//! 11. **Magazines.** A thread's magazines are used by that thread only. Other threads only read their fill levels,
//!     under the mutex of the registry, from which the thread removes them before it frees them.
//!
//! 12. **Unused pages.** The extent hooks are a static structure. The allocator calls each with pages of one extent,
//!     which it does not access, and passes to no other hook, until the hook returns. The bit of a page is set only
//!     while the allocator needs neither the page nor what it contains. It is cleared under the lock of its chunk, so a
//!     thread that holds the lock may return the page to the system.
//! 13. **Relocation.** An allocation is moved by code that has exclusive access to its owner: the bytes are copied, the
//!     owner gets the new address, and the old allocation is freed without what it contained. No other pointer into it
//!     exists, except those of rule 6. A shared object or blob is moved only if its count is one.
//!
//! Pointers keep their provenance: where bits are packed into one, `map_addr` inserts and removes them.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a word of a bucket holds a 45-bit address and 19 bits of hash");

#[cfg(feature = "jemalloc")]
pub mod allocator;
pub mod arrays;
mod bucket;
mod bytes_equal;
#[cfg(any(feature = "jemalloc-memory", test))]
pub mod cells;
mod entry;
mod entry_mut;
mod expiry;
mod expiry_unit;
mod garbage;
mod prefetch;
mod probe;
pub mod relocation;
mod scan;
mod segment;
mod shape;
mod size_class;
#[cfg(any(feature = "jemalloc-memory", test))]
mod sparse;
mod sweep;
mod table;
pub mod unused_pages;
mod value;

pub use entry::EntryRef;
pub use entry_mut::EntryMut;
pub use expiry::ValueDue;
pub use garbage::{Garbage, Removed};
pub use probe::{Head, Hint, PrefetchTarget};
pub use scan::scan_position;
pub use segment::OldArrays;
pub use shape::packed_room;
pub use size_class::size_class;
pub use table::Table;
pub use value::{Blob, NewValue, OwnedValue, PACKED_MAX_BYTES, Shared, ValueRef};

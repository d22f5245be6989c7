//! A slab allocator for entries whose size lies between two size classes of the general allocator.
//!
//! The allocator's classes are 16 bytes apart up to 128 and 32 up to 256, so an entry of 86 bytes would take 96. This
//! module gives it a *cell* of 88: there are cells of all multiples of 8 that are not classes of the allocator. Sizes
//! that are such a class come from the allocator.
//!
//! ```text
//!   thread                  slab pool of a class         runs: 64 KiB each, at multiples of that
//!   +------------------+    +--------------------+      +------+------+------+-- ... --+------+
//!   | magazine of 24   |    | mutex              |  +-> | head | cell | cell |         | cell |
//!   | magazine of 40   |<-->| runs with free     |--+   | bits |      |      |         |      |
//!   | ...              |    |   cells, by number |  |   +------+------+------+-- ... --+------+
//!   +------------------+    +--------------------+  +-> | head | ...
//! ```
//!
//! - A *magazine* is a thread's small stack of free cells of one class. Allocating pops a cell and freeing pushes one,
//!   without touching other memory. An empty magazine is half filled from the pool; of a full one, the older half is
//!   returned to the pool. So the mutex is taken once in dozens of operations. A magazine holds at most 4 KiB of cells.
//! - A *slab pool* keeps the runs of a class that have free cells. It hands out cells of the run with the lowest
//!   number, so that runs with higher numbers become empty when fewer cells are needed. Empty runs are returned to the
//!   allocator, except one.
//! - A *run* is what the allocator sees. A bitmap at its start marks the free cells, and a cell's run is found by its
//!   address: neither allocating nor freeing cells in the pool touches the cells themselves.
//!
//! Cells may be freed by any thread. A thread that exits returns the cells of its magazines, and so does one that is
//! asked to ([`return_free_cells`]), because a cell in a magazine keeps its run.
//!
//! # Memory accounting
//!
//! To the allocator, a run is in use as a whole. So that cells count individually, each thread keeps two sums: the
//! bytes of cells that it allocated less those it freed, and the same for runs. The allocator's figures of a thread,
//! plus the first sum and less the second, are what the thread has really allocated ([`balance`]). The memory in use in
//! total is the allocator's figure less [`unused_bytes`], which asks pools and magazines.

use std::alloc::Layout;
use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::size_class::{MAX_CELL_BYTES, size_class};
use run::RUN_BYTES;
use slab_pool::SlabPool;

mod run;
mod slab_pool;

/// The number of classes of cells: of 32 multiples of 8, 13 are classes of the allocator.
const CLASSES: usize = 19;
/// The maximum number of cells in a magazine.
const MAGAZINE_CELLS: usize = 64;
/// The maximum number of bytes of a magazine's cells.
const MAGAZINE_BYTES: usize = 4096;

/// A class of cells, as an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellClass(u8);

/// The size of a cell of each class, in bytes.
const BYTES: [usize; CLASSES] = {
    let mut bytes = [0; CLASSES];
    let (mut size, mut index) = (8, 0);
    while size <= MAX_CELL_BYTES {
        if size_class(size) != size {
            bytes[index] = size;
            index += 1;
        }
        size += 8;
    }
    assert!(index == CLASSES);
    bytes
};

const NO_CELL: u8 = u8::MAX;

/// The class of each cell size, by the size divided by 8.
const CLASS_BY_EIGHTH: [u8; MAX_CELL_BYTES / 8 + 1] = {
    let mut classes = [NO_CELL; MAX_CELL_BYTES / 8 + 1];
    let mut index = 0;
    while index < CLASSES {
        classes[BYTES[index] / 8] = index as u8;
        index += 1;
    }
    classes
};

/// The capacity of a magazine of each class, in cells; even.
const CAPACITIES: [u32; CLASSES] = {
    let mut capacities = [0; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        let cells = MAGAZINE_BYTES / BYTES[index];
        capacities[index] = if cells > MAGAZINE_CELLS {
            MAGAZINE_CELLS as u32
        } else {
            (cells & !1) as u32
        };
        index += 1;
    }
    capacities
};

#[rustfmt::skip]
static SLAB_POOLS: [SlabPool; CLASSES] = [
    slab_pool(0), slab_pool(1), slab_pool(2), slab_pool(3), slab_pool(4), slab_pool(5), slab_pool(6), slab_pool(7), slab_pool(8), slab_pool(9),
    slab_pool(10), slab_pool(11), slab_pool(12), slab_pool(13), slab_pool(14), slab_pool(15), slab_pool(16), slab_pool(17), slab_pool(18),
];

const fn slab_pool(index: usize) -> SlabPool {
    SlabPool::new(BYTES[index])
}

impl CellClass {
    /// Returns the class of cells for an entry of size class `size_class`, or `None` if the allocator has that size.
    #[inline]
    pub(crate) fn of_size_class(size_class: usize) -> Option<Self> {
        match CLASS_BY_EIGHTH.get(size_class / 8) {
            Some(&index) if index != NO_CELL => Some(Self(index)),
            _ => None,
        }
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
    fn bytes(self) -> usize {
        BYTES[self.index()]
    }

    #[inline]
    fn capacity(self) -> u32 {
        CAPACITIES[self.index()]
    }

    fn slab_pool(self) -> &'static SlabPool {
        &SLAB_POOLS[self.index()]
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
}

/// The free cells of one class that one thread holds.
struct Magazine {
    /// Written by the owner only, read by all threads.
    len: AtomicU32,
    /// Accessed by the owner only.
    cells: UnsafeCell<[*mut u8; MAGAZINE_CELLS]>,
}

/// The magazines of one thread.
struct Magazines([Magazine; CLASSES]);

/// The slab allocator's state of one thread.
struct ThreadSlabs {
    /// The thread's magazines; null before the first allocation and after thread exit.
    magazines: Cell<*const Magazines>,
    /// The bytes of the cells that the thread allocated, less those that it freed.
    cells: Cell<isize>,
    /// The same for runs.
    runs: Cell<isize>,
}

thread_local! {
    static LOCAL: ThreadSlabs = const {
        ThreadSlabs {
            magazines: Cell::new(ptr::null()),
            cells: Cell::new(0),
            runs: Cell::new(0),
        }
    };
    /// Separate from `LOCAL`, which has no destructor and so stays accessible during thread exit.
    static THREAD_EXIT: ReturnOnThreadExit = const { ReturnOnThreadExit };
}

/// Returns the cells of the thread's magazines when dropped.
struct ReturnOnThreadExit;

/// The magazines of all threads.
static REGISTRY: Mutex<Vec<RegisteredThread>> = Mutex::new(Vec::new());

struct RegisteredThread(NonNull<Magazines>);

// SAFETY: rule 11: threads other than the owner only read the atomics, and only while they hold the mutex of the
// registry.
unsafe impl Send for RegisteredThread {}

/// Allocates a cell. Aborts the process if there is no memory.
#[inline]
pub(crate) fn allocate(class: CellClass) -> NonNull<u8> {
    LOCAL.with(|local| {
        local.cells.set(local.cells.get() + class.bytes() as isize);
        // SAFETY: rule 11: this is the owner, and its magazines live until it clears the pointer.
        if let Some(magazines) = unsafe { local.magazines.get().as_ref() } {
            let magazine = &magazines.0[class.index()];
            let len = magazine.len.load(Relaxed);
            if len > 0 {
                magazine.len.store(len - 1, Relaxed);
                // SAFETY: rule 11: only the owner uses the cells, of which `len` are valid; none is null.
                return unsafe { NonNull::new_unchecked((*magazine.cells.get())[len as usize - 1]) };
            }
        }
        refill(local, class)
    })
}

/// Frees a cell.
///
/// # Safety
/// Rule 10: [`allocate`] returned it for this class, and it is not used again.
#[inline]
pub(crate) unsafe fn free(cell: *mut u8, class: CellClass) {
    LOCAL.with(|local| {
        local.cells.set(local.cells.get() - class.bytes() as isize);
        // SAFETY: rule 11: this is the owner, and its magazines live until it clears the pointer.
        if let Some(magazines) = unsafe { local.magazines.get().as_ref() } {
            let magazine = &magazines.0[class.index()];
            let len = magazine.len.load(Relaxed);
            if len < class.capacity() {
                // SAFETY: rule 11: only the owner uses the cells, and there is room.
                unsafe { (*magazine.cells.get())[len as usize] = cell };
                magazine.len.store(len + 1, Relaxed);
                return;
            }
        }
        // SAFETY: rule 10, by the caller.
        unsafe { free_slowly(local, cell, class) };
    });
}

/// Allocates a cell to which the contents of another one should be moved, so that the run of that one becomes empty.
/// Returns `None` if the contents should stay.
///
/// # Safety
/// Rule 10: the caller owns the cell, which is of this class.
#[cfg(feature = "jemalloc-memory")]
pub(crate) unsafe fn allocate_to_relocate(cell: *mut u8, class: CellClass) -> Option<NonNull<u8>> {
    // SAFETY: rule 10, by the caller.
    let target = NonNull::new(unsafe { class.slab_pool().take_for_relocation(cell) }?);
    LOCAL.with(|local| local.cells.set(local.cells.get() + class.bytes() as isize));
    target
}

/// Frees a cell without keeping it in the thread's magazine.
///
/// # Safety
/// As for [`free`].
#[cfg(feature = "jemalloc-memory")]
pub(crate) unsafe fn free_to_pool(cell: *mut u8, class: CellClass) {
    LOCAL.with(|local| {
        local.cells.set(local.cells.get() - class.bytes() as isize);
        // SAFETY: rule 10, by the caller.
        local.count_runs(-unsafe { class.slab_pool().put(&[cell]) });
    });
}

/// Returns the free cells of this thread's magazines to the pools. A free cell in a magazine keeps its run alive, and
/// after many cells were freed, each cell of a full magazine may keep another run.
pub fn return_free_cells() {
    LOCAL.with(|local| {
        // SAFETY: rule 11: this is the owner, and its magazines live until it clears the pointer.
        let Some(magazines) = (unsafe { local.magazines.get().as_ref() }) else {
            return;
        };
        for class in CellClass::all() {
            let magazine = &magazines.0[class.index()];
            let len = magazine.len.load(Relaxed) as usize;
            magazine.len.store(0, Relaxed);
            if len > 0 {
                // SAFETY: rule 10: cells in a magazine are free and have no other owner; rule 11: only the owner uses
                // the cells.
                local.count_runs(-unsafe { class.slab_pool().put(&(&*magazine.cells.get())[..len]) });
            }
        }
    });
}

/// Fills half of the magazine, and pops a cell from it.
#[cold]
fn refill(local: &ThreadSlabs, class: CellClass) -> NonNull<u8> {
    let mut single = [ptr::null_mut()];
    let cell = match magazine_of(local, class) {
        None => {
            local.count_runs(class.slab_pool().take(&mut single));
            single[0]
        }
        Some(magazine) => {
            let half = class.capacity() as usize / 2;
            // SAFETY: rule 11: only the owner uses the cells.
            let cells = &mut unsafe { &mut *magazine.cells.get() }[..half];
            local.count_runs(class.slab_pool().take(cells));
            // The magazine pops its last cell first, so addresses ascend.
            cells.reverse();
            magazine.len.store(half as u32 - 1, Relaxed);
            cells[half - 1]
        }
    };
    NonNull::new(cell).expect("a slab pool returns cells")
}

/// Frees a cell after returning half of a full magazine to the pool.
///
/// # Safety
/// As for [`free`].
#[cold]
unsafe fn free_slowly(local: &ThreadSlabs, cell: *mut u8, class: CellClass) {
    let Some(magazine) = magazine_of(local, class) else {
        // SAFETY: rule 10, by the caller.
        local.count_runs(-unsafe { class.slab_pool().put(&[cell]) });
        return;
    };
    let mut len = magazine.len.load(Relaxed) as usize;
    // SAFETY: rule 11: only the owner uses the cells.
    let cells = unsafe { &mut *magazine.cells.get() };
    if len == class.capacity() as usize {
        let half = len / 2;
        // The older half is returned, because the younger half is in the processor's caches.
        // SAFETY: rule 10: cells in a magazine are free and have no other owner.
        local.count_runs(-unsafe { class.slab_pool().put(&cells[..half]) });
        cells.copy_within(half..len, 0);
        len -= half;
    }
    cells[len] = cell;
    magazine.len.store(len as u32 + 1, Relaxed);
}

/// Returns the thread's magazine, or `None` if the thread is exiting.
fn magazine_of(local: &ThreadSlabs, class: CellClass) -> Option<&Magazine> {
    if local.magazines.get().is_null() {
        // A thread with magazines returns their cells at its exit; after that point it gets no magazines.
        THREAD_EXIT.try_with(|_| ()).ok()?;
        let magazines = NonNull::from(Box::leak(Magazines::new()));
        registry().push(RegisteredThread(magazines));
        local.magazines.set(magazines.as_ptr());
    }
    // SAFETY: rule 11: this is the owner, and its magazines live until it clears the pointer.
    let magazines = unsafe { local.magazines.get().as_ref() };
    magazines.map(|magazines| &magazines.0[class.index()])
}

fn registry() -> std::sync::MutexGuard<'static, Vec<RegisteredThread>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Magazines {
    fn new() -> Box<Self> {
        // SAFETY: the layout is not empty; zeros are empty magazines.
        unsafe {
            let layout = Layout::new::<Self>();
            let magazines = std::alloc::alloc_zeroed(layout).cast::<Self>();
            if magazines.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            Box::from_raw(magazines)
        }
    }
}

impl ThreadSlabs {
    /// Records that the thread took `runs` runs from the allocator, or returned them if negative.
    fn count_runs(&self, runs: isize) {
        self.runs.set(self.runs.get() + runs * RUN_BYTES as isize);
    }
}

impl Drop for ReturnOnThreadExit {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            let Some(magazines) = NonNull::new(local.magazines.replace(ptr::null()).cast_mut()) else {
                return;
            };
            registry().retain(|registered| registered.0 != magazines);
            // SAFETY: rule 11: they are no longer in the registry, and they came from a box.
            let mut magazines = unsafe { Box::from_raw(magazines.as_ptr()) };
            for class in CellClass::all() {
                let magazine = &mut magazines.0[class.index()];
                let len = *magazine.len.get_mut() as usize;
                // SAFETY: rule 10: cells in a magazine are free and have no other owner.
                local.count_runs(-unsafe { class.slab_pool().put(&magazine.cells.get_mut()[..len]) });
            }
        });
    }
}

/// Returns the correction of the allocator's figures of this thread that makes cells count instead of runs. Costs two
/// loads.
#[inline]
#[must_use]
pub fn balance() -> i64 {
    LOCAL.with(|local| (local.cells.get() - local.runs.get()) as i64)
}

/// Returns the bytes of the cells that this thread has allocated, less those of the cells that it freed.
#[must_use]
pub fn taken_bytes() -> i64 {
    LOCAL.with(|local| local.cells.get() as i64)
}

/// Returns the bytes of runs that belong to no allocated cell: only the allocator counts them as in use. Exact while no
/// thread allocates or frees cells.
#[must_use]
pub fn unused_bytes() -> u64 {
    figures().iter().map(|class| class.run_bytes - class.used_bytes).sum()
}

/// The memory of one class of cells, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The size of one cell.
    pub cell_bytes: u64,
    /// The total size of the runs.
    pub run_bytes: u64,
    /// The total size of the cells in use.
    pub used_bytes: u64,
    /// The total size of the free cells in magazines.
    pub kept_bytes: u64,
}

/// Returns the figures of all classes.
#[must_use]
pub fn figures() -> Vec<Figures> {
    let mut in_magazines = [0u64; CLASSES];
    for registered in registry().iter() {
        // SAFETY: rule 11: magazines live while they are in the registry, whose mutex is held.
        let magazines = unsafe { registered.0.as_ref() };
        for (count, magazine) in in_magazines.iter_mut().zip(&magazines.0) {
            *count += u64::from(magazine.len.load(Relaxed));
        }
    }
    CellClass::all()
        .map(|class| {
            let cell_bytes = class.bytes() as u64;
            let (runs, cells_out) = class.slab_pool().figures();
            let run_bytes = runs * RUN_BYTES as u64;
            let kept_bytes = (in_magazines[class.index()] * cell_bytes).min(run_bytes);
            Figures {
                cell_bytes,
                run_bytes,
                used_bytes: (cells_out * cell_bytes).saturating_sub(kept_bytes).min(run_bytes),
                kept_bytes,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;

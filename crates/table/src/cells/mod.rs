//! Memory for entries whose size lies between two size classes of the allocator.
//!
//! The allocator's classes are 16 bytes apart up to 128 and 32 up to 256, so an entry of 86 bytes would take 96. Here
//! it takes a *cell* of 88: there are cells of all multiples of 8 that are no class of the allocator. What is one comes
//! from the allocator as before.
//!
//! ```text
//!   thread                  depot of a class             runs: 64 KiB each, at multiples of that
//!   +------------------+    +--------------------+      +------+------+------+-- ... --+------+
//!   | magazine of 24   |    | mutex              |  +-> | head | cell | cell |         | cell |
//!   | magazine of 40   |<-->| runs with free     |--+   | bits |      |      |         |      |
//!   | ...              |    |   cells, by number |  |   +------+------+------+-- ... --+------+
//!   +------------------+    +--------------------+  +-> | head | ...
//! ```
//!
//! - A *magazine* is a small stack of free cells. Allocating and freeing take a cell from it or put one on it, and
//!   touch nothing else. An empty one is half filled from the depot, of a full one the older half goes there: so the
//!   mutex is taken once in dozens of operations. Magazines hold at most 4 KiB of cells each.
//! - A *depot* knows the runs of a class that have free cells. It gives out cells of the run that came first, so that
//!   later ones become empty when there is less. An empty run goes back to the allocator, but for one.
//! - A *run* is what the allocator sees. Which cells are free is in a bitmap at its start, and a cell's run is found by
//!   its address: neither taking cells nor giving them back touches the cells.
//!
//! Cells are freed by any thread. A thread that ends gives its magazines back.
//!
//! # What is in use
//!
//! For the allocator a run is in use as a whole. So that cells count as what they are, each thread keeps two sums: of
//! cells that it took less those it freed, and the same of runs. The allocator's figures of a thread, plus the first
//! and less the second, are what the thread really has taken ([`balance`]). What is in use in all is the allocator's
//! figure less
//! [`unused_bytes`], which asks depots and magazines.

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

/// Classes of cells: of 32 multiples of 8, 13 are classes of the allocator.
const CLASSES: usize = 19;
/// The most cells of a magazine.
const MAGAZINE_CELLS: usize = 64;
/// The most bytes of a magazine's cells.
const MAGAZINE_BYTES: usize = 4096;

/// Which class of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(u8);

/// The bytes of a cell of each class.
const BYTES: [usize; CLASSES] = {
    let mut bytes = [0; CLASSES];
    let (mut class, mut number) = (8, 0);
    while class <= MAX_CELL_BYTES {
        if size_class(class) != class {
            bytes[number] = class;
            number += 1;
        }
        class += 8;
    }
    assert!(number == CLASSES);
    bytes
};

const NO_CELL: u8 = u8::MAX;

/// The number of each class, by its eighth.
const NUMBERS: [u8; MAX_CELL_BYTES / 8 + 1] = {
    let mut numbers = [NO_CELL; MAX_CELL_BYTES / 8 + 1];
    let mut number = 0;
    while number < CLASSES {
        numbers[BYTES[number] / 8] = number as u8;
        number += 1;
    }
    numbers
};

/// How many cells a magazine of each class holds; even.
const CAPACITIES: [u32; CLASSES] = {
    let mut capacities = [0; CLASSES];
    let mut number = 0;
    while number < CLASSES {
        let cells = MAGAZINE_BYTES / BYTES[number];
        capacities[number] = if cells > MAGAZINE_CELLS {
            MAGAZINE_CELLS as u32
        } else {
            (cells & !1) as u32
        };
        number += 1;
    }
    capacities
};

#[rustfmt::skip]
static DEPOTS: [SlabPool; CLASSES] = [
    slab_pool(0), slab_pool(1), slab_pool(2), slab_pool(3), slab_pool(4), slab_pool(5), slab_pool(6), slab_pool(7), slab_pool(8), slab_pool(9),
    slab_pool(10), slab_pool(11), slab_pool(12), slab_pool(13), slab_pool(14), slab_pool(15), slab_pool(16), slab_pool(17), slab_pool(18),
];

const fn slab_pool(number: usize) -> SlabPool {
    SlabPool::new(BYTES[number])
}

impl Number {
    /// The class of cells for an entry of this class; `None` if the allocator has one.
    #[inline]
    pub(crate) fn of_class(class: usize) -> Option<Self> {
        match NUMBERS.get(class / 8) {
            Some(&number) if number != NO_CELL => Some(Self(number)),
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
        &DEPOTS[self.index()]
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }
}

/// Free cells of one class that one thread has.
struct Magazine {
    /// Written by the owner alone, read by all.
    len: AtomicU32,
    /// The owner's alone.
    cells: UnsafeCell<[*mut u8; MAGAZINE_CELLS]>,
}

/// Those of one thread.
struct Magazines([Magazine; CLASSES]);

/// What a thread has.
struct ThreadSlabs {
    /// Its magazines; null before it needs them, and when it ends.
    magazines: Cell<*const Magazines>,
    /// Bytes of the cells that it took, less those that it gave back.
    cells: Cell<isize>,
    /// The same of runs.
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
    /// Apart from the above, which can be used without a look whether it is there still.
    static AT_THE_END: ReturnAtThreadEnd = const { ReturnAtThreadEnd };
}

/// Gives the thread's magazines back.
struct ReturnAtThreadEnd;

/// The magazines of all threads.
static EVERYBODYS: Mutex<Vec<RegisteredThread>> = Mutex::new(Vec::new());

struct RegisteredThread(NonNull<Magazines>);

// SAFETY: rule 11: others than the owner only read the atomics, and only while they hold the mutex of the register.
unsafe impl Send for RegisteredThread {}

/// A cell. Ends the process if there is no memory.
#[inline]
pub(crate) fn allocate(number: Number) -> NonNull<u8> {
    LOCAL.with(|local| {
        local.cells.set(local.cells.get() + number.bytes() as isize);
        // SAFETY: rule 11: this is the owner, and its magazines live until it forgets them.
        if let Some(magazines) = unsafe { local.magazines.get().as_ref() } {
            let magazine = &magazines.0[number.index()];
            let len = magazine.len.load(Relaxed);
            if len > 0 {
                magazine.len.store(len - 1, Relaxed);
                // SAFETY: rule 11: the owner alone uses the cells, of which so many are there; none is null.
                return unsafe { NonNull::new_unchecked((*magazine.cells.get())[len as usize - 1]) };
            }
        }
        refill(local, number)
    })
}

/// Gives a cell back.
///
/// # Safety
/// Rule 10: [`allocate`] gave it for this class, and it is not used again.
#[inline]
pub(crate) unsafe fn free(cell: *mut u8, number: Number) {
    LOCAL.with(|local| {
        local.cells.set(local.cells.get() - number.bytes() as isize);
        // SAFETY: rule 11: this is the owner, and its magazines live until it forgets them.
        if let Some(magazines) = unsafe { local.magazines.get().as_ref() } {
            let magazine = &magazines.0[number.index()];
            let len = magazine.len.load(Relaxed);
            if len < number.capacity() {
                // SAFETY: rule 11: the owner alone uses the cells, and there is room.
                unsafe { (*magazine.cells.get())[len as usize] = cell };
                magazine.len.store(len + 1, Relaxed);
                return;
            }
        }
        // SAFETY: rule 10, by the caller.
        unsafe { make_room(local, cell, number) };
    });
}

/// Fills half of the magazine, and takes a cell of it.
#[cold]
fn refill(local: &ThreadSlabs, number: Number) -> NonNull<u8> {
    let mut single = [ptr::null_mut()];
    let cell = match magazine_of(local, number) {
        None => {
            local.note_runs(number.slab_pool().take(&mut single));
            single[0]
        }
        Some(magazine) => {
            let half = number.capacity() as usize / 2;
            // SAFETY: rule 11: the owner alone uses the cells.
            let cells = &mut unsafe { &mut *magazine.cells.get() }[..half];
            local.note_runs(number.slab_pool().take(cells));
            // The last is taken first: addresses ascend.
            cells.reverse();
            magazine.len.store(half as u32 - 1, Relaxed);
            cells[half - 1]
        }
    };
    NonNull::new(cell).expect("a depot gives cells")
}

/// Puts a cell into a full magazine, of which half goes to the depot.
///
/// # Safety
/// As for [`free`].
#[cold]
unsafe fn make_room(local: &ThreadSlabs, cell: *mut u8, number: Number) {
    let Some(magazine) = magazine_of(local, number) else {
        // SAFETY: rule 10, by the caller.
        local.note_runs(-unsafe { number.slab_pool().put(&[cell]) });
        return;
    };
    let mut len = magazine.len.load(Relaxed) as usize;
    // SAFETY: rule 11: the owner alone uses the cells.
    let cells = unsafe { &mut *magazine.cells.get() };
    if len == number.capacity() as usize {
        let half = len / 2;
        // The older half, for the others are in the processor's caches.
        // SAFETY: rule 10: what is in a magazine is free and nobody else's.
        local.note_runs(-unsafe { number.slab_pool().put(&cells[..half]) });
        cells.copy_within(half..len, 0);
        len -= half;
    }
    cells[len] = cell;
    magazine.len.store(len as u32 + 1, Relaxed);
}

/// The thread's magazine, unless the thread is about to end.
fn magazine_of(local: &ThreadSlabs, number: Number) -> Option<&Magazine> {
    if local.magazines.get().is_null() {
        // Whoever has magazines gives them back at the end; who is past that gets none.
        AT_THE_END.try_with(|_| ()).ok()?;
        let magazines = NonNull::from(Box::leak(Magazines::new()));
        everybodys().push(RegisteredThread(magazines));
        local.magazines.set(magazines.as_ptr());
    }
    // SAFETY: rule 11: this is the owner, and its magazines live until it forgets them.
    let magazines = unsafe { local.magazines.get().as_ref() };
    magazines.map(|magazines| &magazines.0[number.index()])
}

fn everybodys() -> std::sync::MutexGuard<'static, Vec<RegisteredThread>> {
    EVERYBODYS.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Notes that the thread took so many runs from the allocator, or gave them back.
    fn note_runs(&self, runs: isize) {
        self.runs.set(self.runs.get() + runs * RUN_BYTES as isize);
    }
}

impl Drop for ReturnAtThreadEnd {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            let Some(magazines) = NonNull::new(local.magazines.replace(ptr::null()).cast_mut()) else {
                return;
            };
            everybodys().retain(|registered| registered.0 != magazines);
            // SAFETY: rule 11: nobody else knows them any more, and they came from a box.
            let mut magazines = unsafe { Box::from_raw(magazines.as_ptr()) };
            for number in Number::all() {
                let magazine = &mut magazines.0[number.index()];
                let len = *magazine.len.get_mut() as usize;
                // SAFETY: rule 10: what is in a magazine is free and nobody else's.
                local.note_runs(-unsafe { number.slab_pool().put(&magazine.cells.get_mut()[..len]) });
            }
        });
    }
}

/// What has to be added to the allocator's figures of this thread so that cells count instead of runs. Two loads.
#[inline]
#[must_use]
pub fn balance() -> i64 {
    LOCAL.with(|local| (local.cells.get() - local.runs.get()) as i64)
}

/// Bytes of the cells that this thread has taken, less those of the cells that it gave back.
#[must_use]
pub fn taken_bytes() -> i64 {
    LOCAL.with(|local| local.cells.get() as i64)
}

/// Bytes of runs that are in no cell that is in use: they are in use for the allocator only. Exact while nobody takes
/// or gives back cells.
#[must_use]
pub fn unused_bytes() -> u64 {
    figures().iter().map(|class| class.run_bytes - class.used_bytes).sum()
}

/// Figures of a class of cells, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Of one cell.
    pub cell_bytes: u64,
    /// Of all runs.
    pub run_bytes: u64,
    /// Of the cells in use.
    pub used_bytes: u64,
    /// Of the cells that threads keep for their next entry.
    pub kept_bytes: u64,
}

/// The figures of all classes.
#[must_use]
pub fn figures() -> Vec<Figures> {
    let mut kept = [0u64; CLASSES];
    for registered in everybodys().iter() {
        // SAFETY: rule 11: they live while they are in the register, whose mutex is held.
        let magazines = unsafe { registered.0.as_ref() };
        for (kept, magazine) in kept.iter_mut().zip(&magazines.0) {
            *kept += u64::from(magazine.len.load(Relaxed));
        }
    }
    Number::all()
        .map(|number| {
            let cell_bytes = number.bytes() as u64;
            let (runs, given) = number.slab_pool().figures();
            let run_bytes = runs * RUN_BYTES as u64;
            let kept_bytes = (kept[number.index()] * cell_bytes).min(run_bytes);
            Figures {
                cell_bytes,
                run_bytes,
                used_bytes: (given * cell_bytes).saturating_sub(kept_bytes).min(run_bytes),
                kept_bytes,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;

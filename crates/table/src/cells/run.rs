//! A run: cells of one class behind a head that says which of them are free.
//!
//! ```text
//!   0                16                    first
//!   +----------------+-- ... --------------+--------+--------+-- ... --+--------+-----+
//!   | class, free,   | a bit for each cell | cell 0 | cell 1 |         | cell n | ... |
//!   | number, from   | that is free        |        |        |         |        |     |
//!   +----------------+-- ... --------------+--------+--------+-- ... --+--------+-----+
//! ```
//!
//! All of this is under the mutex of the depot that has the run (rule 10).

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

#[cfg(not(feature = "jemalloc"))]
use std::alloc::{alloc as acquire, dealloc as release};
#[cfg(feature = "jemalloc")]
use whole::{acquire, release};

use crate::prefetch::prefetch_line;

/// The size of a run, and its alignment.
pub(super) const RUN_BYTES: usize = 64 << 10;

const LAYOUT: Layout = match Layout::from_size_align(RUN_BYTES, RUN_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The start of a run; the bitmap follows.
#[repr(C)]
struct Head {
    /// The bytes of a cell.
    class: u16,
    /// Cells that are free.
    free: u16,
    /// No word of the bitmap before this one has a bit.
    from: u16,
    /// The depot's name for the run.
    number: u32,
}

const HEAD_BYTES: usize = 16;
const _: () = assert!(size_of::<Head>() <= HEAD_BYTES);
const WORD_BITS: usize = u64::BITS as usize;

/// Where the cells of a class lie in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The bytes of a cell.
    class: usize,
    /// How many there are.
    pub(super) cells: usize,
    /// Where the first is.
    first: usize,
    /// Multiplying by this and dropping 32 bits divides by the class, as long as there are fewer than 2^16 bytes.
    reciprocal: u64,
}

impl Plan {
    pub(super) const fn new(class: usize) -> Self {
        let mut cells = (RUN_BYTES - HEAD_BYTES) / class;
        while first_cell(cells) + cells * class > RUN_BYTES {
            cells -= 1;
        }
        Plan {
            class,
            cells,
            first: first_cell(cells),
            reciprocal: (1 << 32) / class as u64 + 1,
        }
    }

    fn index_of(&self, cell: *mut u8) -> usize {
        let offset = (cell.addr() & (RUN_BYTES - 1)).wrapping_sub(self.first);
        let index = ((offset as u64).wrapping_mul(self.reciprocal) >> 32) as usize;
        assert!(
            index < self.cells && index * self.class == offset,
            "no cell begins there"
        );
        index
    }
}

/// Where the cells begin if there are so many.
const fn first_cell(cells: usize) -> usize {
    HEAD_BYTES + cells.div_ceil(WORD_BITS) * size_of::<u64>()
}

/// A run. Whoever uses one answers for rule 10: it lives, and the depot's mutex is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabRun(NonNull<u8>);

// SAFETY: rule 10: a run is used under the mutex of its depot, by whatever thread.
unsafe impl Send for SlabRun {}

impl SlabRun {
    /// A new one with all cells free; ends the process if there is no memory.
    pub(super) fn create(plan: &Plan, number: u32) -> Self {
        // SAFETY: the layout is not empty.
        let Some(run) = NonNull::new(unsafe { acquire(LAYOUT) }) else {
            handle_alloc_error(LAYOUT)
        };
        let run = Self(run);
        // SAFETY: rule 10: the run is new, large enough for the head, and nobody else knows it.
        unsafe {
            run.0.cast::<Head>().write(Head {
                class: plan.class as u16,
                free: plan.cells as u16,
                from: 0,
                number,
            });
            for word in 0..plan.cells.div_ceil(WORD_BITS) {
                let cells = (plan.cells - word * WORD_BITS).min(WORD_BITS);
                run.word(word).write(u64::MAX >> (WORD_BITS - cells));
            }
        }
        run
    }

    /// # Safety
    /// Rule 10: nobody uses the run or a cell of it again.
    pub(super) unsafe fn destroy(self) {
        // SAFETY: allocated with this layout; the caller's promise.
        unsafe { release(self.0.as_ptr(), LAYOUT) };
    }

    /// The run that has this cell.
    ///
    /// # Safety
    /// Rule 10: it is a cell of a run that lives.
    #[inline]
    pub(super) unsafe fn of_cell(cell: *mut u8) -> Self {
        // SAFETY: rule 10: runs are not at address zero.
        Self(unsafe { NonNull::new_unchecked(cell.map_addr(|address| address & !(RUN_BYTES - 1))) })
    }

    fn head(&mut self) -> &mut Head {
        // SAFETY: rule 10: the head is initialised, and the holder of the mutex is the only one who uses it.
        unsafe { self.0.cast::<Head>().as_mut() }
    }

    fn word(self, index: usize) -> *mut u64 {
        self.0
            .as_ptr()
            .wrapping_add(HEAD_BYTES)
            .cast::<u64>()
            .wrapping_add(index)
    }

    /// The depot's name for it.
    pub(super) fn number(mut self) -> u32 {
        self.head().number
    }

    /// How many cells are free.
    pub(super) fn free(mut self) -> usize {
        usize::from(self.head().free)
    }

    /// Takes free cells into `cells`, as many as there are and fit; returns how many. Addresses ascend.
    pub(super) fn take(mut self, plan: &Plan, cells: &mut [*mut u8]) -> usize {
        let (wanted, mut taken) = (cells.len().min(self.free()), 0);
        let mut index = usize::from(self.head().from);
        while taken < wanted {
            let word = self.word(index);
            // SAFETY: rule 10: as some cell is free, there is a word with a bit at `from` or behind.
            let mut bits = unsafe { word.read() };
            while bits != 0 && taken < wanted {
                let cell = index * WORD_BITS + bits.trailing_zeros() as usize;
                cells[taken] = self.0.as_ptr().wrapping_add(plan.first + cell * plan.class);
                taken += 1;
                bits &= bits - 1;
            }
            // SAFETY: as above.
            unsafe { word.write(bits) };
            index += usize::from(bits == 0);
        }
        let head = self.head();
        head.from = index as u16;
        head.free -= taken as u16;
        taken
    }

    /// Marks a cell as free; returns how many are free now.
    pub(super) fn put(mut self, plan: &Plan, cell: *mut u8) -> usize {
        let (index, bit) = place(plan, cell);
        let word = self.word(index);
        // SAFETY: rule 10: every cell has a bit.
        let bits = unsafe { word.read() };
        assert!(bits & bit == 0, "a cell is freed once");
        // SAFETY: as above.
        unsafe { word.write(bits | bit) };
        let head = self.head();
        assert!(usize::from(head.class) == plan.class, "a cell has the class of its run");
        head.from = head.from.min(index as u16);
        head.free += 1;
        usize::from(head.free)
    }

    /// Asks for the memory that `put` will need.
    #[inline]
    pub(super) fn prefetch(self, plan: &Plan, cell: *mut u8) {
        prefetch_line(self.0.as_ptr());
        prefetch_line(self.word(place(plan, cell).0));
    }
}

/// The word of the bitmap that has a cell's bit, and the bit.
#[inline]
fn place(plan: &Plan, cell: *mut u8) -> (usize, u64) {
    let index = plan.index_of(cell);
    (index / WORD_BITS, 1 << (index % WORD_BITS))
}

/// Whole runs from the allocator: past the threads' caches, which would keep them.
#[cfg(feature = "jemalloc")]
mod whole {
    use std::alloc::Layout;

    use tikv_jemalloc_sys::{MALLOCX_ALIGN, MALLOCX_TCACHE_NONE, mallocx, sdallocx};

    /// # Safety
    /// As for `std::alloc::alloc`.
    pub(super) unsafe fn acquire(layout: Layout) -> *mut u8 {
        let flags = MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(layout.align());
        // SAFETY: the size is not zero, by the caller; the alignment is a power of two.
        unsafe { mallocx(layout.size(), flags).cast() }
    }

    /// # Safety
    /// As for `std::alloc::dealloc`, of what came from the function above.
    pub(super) unsafe fn release(run: *mut u8, layout: Layout) {
        let flags = MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(layout.align());
        // SAFETY: allocated with this size and alignment, by the caller.
        unsafe { sdallocx(run.cast(), layout.size(), flags) };
    }
}

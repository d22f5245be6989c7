//! A run: cells of one class after a head that marks the free ones.
//!
//! ```text
//!   0                16                    first
//!   +----------------+-- ... --------------+--------+--------+-- ... --+--------+-----+
//!   | class, free,   | one bit per cell    | cell 0 | cell 1 |         | cell n | ... |
//!   | word, number   | set if it is free   |        |        |         |        |     |
//!   +----------------+-- ... --------------+--------+--------+-- ... --+--------+-----+
//! ```
//!
//! All of this is accessed under the mutex of the pool that has the run (rule 10).

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

#[cfg(not(feature = "jemalloc-memory"))]
use std::alloc::{alloc as acquire, dealloc as release};
#[cfg(feature = "jemalloc-memory")]
use whole_runs::{acquire, release};

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
    /// The size of a cell in bytes.
    class: u16,
    /// The number of free cells.
    free: u16,
    /// No word of the bitmap before this one has a bit set.
    first_word: u16,
    /// The run's number in its pool.
    number: u32,
}

const HEAD_BYTES: usize = 16;
const _: () = assert!(size_of::<Head>() <= HEAD_BYTES);
const WORD_BITS: usize = u64::BITS as usize;

/// The position of the cells of a class in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunLayout {
    /// The size of a cell in bytes.
    class: usize,
    /// The number of cells.
    pub(super) cells: usize,
    /// The offset of the first cell.
    first: usize,
    /// Multiplying by this and shifting right by 32 bits divides by the class, as long as the dividend is below 2^16.
    reciprocal: u64,
}

impl RunLayout {
    pub(super) const fn new(class: usize) -> Self {
        let mut cells = (RUN_BYTES - HEAD_BYTES) / class;
        while first_cell(cells) + cells * class > RUN_BYTES {
            cells -= 1;
        }
        RunLayout {
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
            "no cell begins at this address"
        );
        index
    }
}

/// Returns the offset of the first cell in a run of `cells` cells.
const fn first_cell(cells: usize) -> usize {
    HEAD_BYTES + cells.div_ceil(WORD_BITS) * size_of::<u64>()
}

/// A handle of a run. Its user is responsible for rule 10: the run lives, and the pool's mutex is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabRun(NonNull<u8>);

// SAFETY: rule 10: a run is used under the mutex of its pool, by any thread.
unsafe impl Send for SlabRun {}

impl SlabRun {
    /// Allocates a run whose cells are all free. Aborts the process if there is no memory.
    pub(super) fn create(layout: &RunLayout, number: u32) -> Self {
        // SAFETY: the layout is not empty.
        let Some(run) = NonNull::new(unsafe { acquire(LAYOUT) }) else {
            handle_alloc_error(LAYOUT)
        };
        let run = Self(run);
        // SAFETY: rule 10: the run is new, large enough for the head, and not shared yet.
        unsafe {
            run.0.cast::<Head>().write(Head {
                class: layout.class as u16,
                free: layout.cells as u16,
                first_word: 0,
                number,
            });
            for word in 0..layout.cells.div_ceil(WORD_BITS) {
                let cells = (layout.cells - word * WORD_BITS).min(WORD_BITS);
                run.word(word).write(u64::MAX >> (WORD_BITS - cells));
            }
        }
        run
    }

    /// # Safety
    /// Rule 10: neither the run nor a cell of it is used again.
    pub(super) unsafe fn destroy(self) {
        // SAFETY: allocated with this layout; the caller's guarantee.
        unsafe { release(self.0.as_ptr(), LAYOUT) };
    }

    /// Returns the run that contains this cell.
    ///
    /// # Safety
    /// Rule 10: it is a cell of a run that lives.
    #[inline]
    pub(super) unsafe fn of_cell(cell: *mut u8) -> Self {
        // SAFETY: rule 10: runs are not at address zero.
        Self(unsafe { NonNull::new_unchecked(cell.map_addr(|address| address & !(RUN_BYTES - 1))) })
    }

    fn head(&mut self) -> &mut Head {
        // SAFETY: rule 10: the head is initialised, and only the holder of the mutex uses it.
        unsafe { self.0.cast::<Head>().as_mut() }
    }

    fn word(self, index: usize) -> *mut u64 {
        self.0
            .as_ptr()
            .wrapping_add(HEAD_BYTES)
            .cast::<u64>()
            .wrapping_add(index)
    }

    /// Returns the run's number in its pool.
    pub(super) fn number(mut self) -> u32 {
        self.head().number
    }

    /// Returns the number of free cells.
    pub(super) fn free(mut self) -> usize {
        usize::from(self.head().free)
    }

    /// Takes as many free cells as there are and fit into `cells`; returns their number. Addresses ascend.
    pub(super) fn take(mut self, layout: &RunLayout, cells: &mut [*mut u8]) -> usize {
        let (wanted, mut taken) = (cells.len().min(self.free()), 0);
        let mut index = usize::from(self.head().first_word);
        while taken < wanted {
            let word = self.word(index);
            // SAFETY: rule 10: a cell is free, so a word at or after `first_word` has a bit set.
            let mut bits = unsafe { word.read() };
            while bits != 0 && taken < wanted {
                let cell = index * WORD_BITS + bits.trailing_zeros() as usize;
                cells[taken] = self.0.as_ptr().wrapping_add(layout.first + cell * layout.class);
                taken += 1;
                bits &= bits - 1;
            }
            // SAFETY: as above.
            unsafe { word.write(bits) };
            index += usize::from(bits == 0);
        }
        let head = self.head();
        head.first_word = index as u16;
        head.free -= taken as u16;
        taken
    }

    /// Marks a cell as free; returns the new number of free cells.
    pub(super) fn put(mut self, layout: &RunLayout, cell: *mut u8) -> usize {
        let (index, bit) = bitmap_position(layout, cell);
        let word = self.word(index);
        // SAFETY: rule 10: every cell has a bit.
        let bits = unsafe { word.read() };
        assert!(bits & bit == 0, "the cell was freed twice");
        // SAFETY: as above.
        unsafe { word.write(bits | bit) };
        let head = self.head();
        assert!(
            usize::from(head.class) == layout.class,
            "the cell's class differs from its run's"
        );
        head.first_word = head.first_word.min(index as u16);
        head.free += 1;
        usize::from(head.free)
    }

    /// Prefetches the memory that `put` will need.
    #[inline]
    pub(super) fn prefetch(self, layout: &RunLayout, cell: *mut u8) {
        prefetch_line(self.0.as_ptr());
        prefetch_line(self.word(bitmap_position(layout, cell).0));
    }
}

/// Returns the word of the bitmap that has a cell's bit, and the bit.
#[inline]
fn bitmap_position(layout: &RunLayout, cell: *mut u8) -> (usize, u64) {
    let index = layout.index_of(cell);
    (index / WORD_BITS, 1 << (index % WORD_BITS))
}

/// Allocation of whole runs. It bypasses the threads' caches, which would retain them.
#[cfg(feature = "jemalloc-memory")]
mod whole_runs {
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
    /// As for `std::alloc::dealloc`, for memory that came from the function above.
    pub(super) unsafe fn release(run: *mut u8, layout: Layout) {
        let flags = MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(layout.align());
        // SAFETY: allocated with this size and alignment, by the caller.
        unsafe { sdallocx(run.cast(), layout.size(), flags) };
    }
}

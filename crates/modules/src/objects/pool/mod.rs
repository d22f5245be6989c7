//! Memory for the time of a call into a module (`PoolAlloc`).

use std::cell::RefCell;
use std::ffi::c_void;

/// The word size, to which larger allocations are aligned.
const WORD: usize = size_of::<usize>();
/// The number of words of a block. A larger allocation gets a block of its own.
const BLOCK_WORDS: usize = 1024;

/// The blocks of a context, which are freed with it.
#[derive(Default)]
pub struct Pool {
    blocks: RefCell<Vec<Block>>,
}

struct Block {
    words: Box<[usize]>,
    /// The number of bytes that are in use.
    used: usize,
}

impl Block {
    fn bytes(&self) -> usize {
        self.words.len() * WORD
    }
}

impl Pool {
    /// Returns memory of `bytes` bytes, which lives as long as the pool; null if `bytes` is 0. The memory is aligned to
    /// the next power of two, at most to a word.
    pub fn allocate(&self, bytes: usize) -> *mut c_void {
        if bytes == 0 {
            return std::ptr::null_mut();
        }
        let alignment = bytes.next_power_of_two().min(WORD);
        let mut blocks = self.blocks.borrow_mut();
        let fits = blocks
            .last()
            .is_some_and(|block| block.bytes() - block.used.next_multiple_of(alignment).min(block.bytes()) >= bytes);
        if !fits {
            let words = bytes.div_ceil(WORD).max(BLOCK_WORDS);
            blocks.push(Block {
                words: vec![0; words].into_boxed_slice(),
                used: 0,
            });
        }
        let Some(block) = blocks.last_mut() else {
            return std::ptr::null_mut();
        };
        let start = block.used.next_multiple_of(alignment);
        block.used = start + bytes;
        block.words.as_mut_ptr().cast::<u8>().wrapping_add(start).cast()
    }

    /// Frees all memory of the pool.
    pub fn free_all(&self) {
        self.blocks.take();
    }
}

#[cfg(test)]
mod tests;

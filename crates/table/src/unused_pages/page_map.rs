//! A bit for each page of the address space: set if the allocator has the page and does not use it.
//!
//! The bits of a chunk, 2 MiB of addresses, are 64 bytes at an offset that the chunk's address determines. So there is
//! nothing to search and nothing to fill up: the map has room for all addresses, and takes memory only for those near
//! which there were unused pages, 4 KiB for 128 MiB of addresses. Addresses beyond the map are ignored: their pages
//! count as used.
//!
//! A change of bits is one store for each 64 pages. So the map is valid even if a thread is stopped in the middle of a
//! change, as in the child after a fork.

use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// The size of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// The number of pages in a chunk.
pub(super) const CHUNK_PAGES: usize = 512;
/// The size of a chunk: that of a huge page, and aligned like one.
pub(super) const CHUNK_BYTES: usize = PAGE_BYTES * CHUNK_PAGES;
const WORD_BITS: usize = u64::BITS as usize;
const WORDS: usize = CHUNK_PAGES / WORD_BITS;

/// The number of locks. Neighbouring chunks have different ones.
const LOCKS: usize = 64;
/// The number of attempts to take a lock before the thread yields its processor.
const SPINS: u32 = 100;

/// The bits of a chunk in the map.
pub(super) type ChunkWords = [AtomicU64; WORDS];

/// The map of unused pages.
pub(super) struct PageMap {
    /// The bits of each chunk.
    chunks: &'static [ChunkWords],
    /// A bit for each chunk: set if the chunk has, or had, unused pages.
    known: &'static [AtomicU64],
    /// The first word of `known` that is not zero.
    first_known: AtomicUsize,
    /// The last word of `known` that is not zero.
    last_known: AtomicUsize,
    locks: [Lock; LOCKS],
}

impl PageMap {
    /// Creates a map of the chunks that have words in `chunks`, beginning at address 0. All words are zero, and `known`
    /// has a bit for each chunk.
    pub(super) const fn new(chunks: &'static [ChunkWords], known: &'static [AtomicU64]) -> Self {
        PageMap {
            chunks,
            known,
            first_known: AtomicUsize::new(usize::MAX),
            last_known: AtomicUsize::new(0),
            locks: [const { Lock::new() }; LOCKS],
        }
    }

    /// Records that the pages of a range of addresses are unused. Both numbers are multiples of the page size.
    pub(super) fn insert(&self, address: usize, bytes: usize) {
        self.change(address, bytes, |chunk, words, pages| {
            self.record_chunk(chunk);
            for (word, mask) in words.iter().zip(masks(pages)) {
                word.store(word.load(Relaxed) | mask, Relaxed);
            }
        });
    }

    /// Records that the pages of a range of addresses are used, or do not belong to the allocator. Both numbers are
    /// multiples of the page size.
    pub(super) fn remove(&self, address: usize, bytes: usize) {
        self.change(address, bytes, |_, words, pages| {
            for (word, mask) in words.iter().zip(masks(pages)) {
                let bits = word.load(Relaxed);
                // Memory of the map that was never written to takes no page.
                if bits & mask != 0 {
                    word.store(bits & !mask, Relaxed);
                }
            }
        });
    }

    /// Calls `visit` for each chunk that has unused pages, with its address and its pages. Until it returns, none of
    /// these pages can be removed. It must not allocate memory.
    pub(super) fn visit(&self, mut visit: impl FnMut(usize, &ChunkPages)) {
        let words = self.first_known.load(Relaxed)..=self.last_known.load(Relaxed);
        for index in words {
            let mut chunks = self.known.get(index).map_or(0, |word| word.load(Relaxed));
            while chunks != 0 {
                let chunk = index * WORD_BITS + chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                let Some(words) = self.chunks.get(chunk) else {
                    return;
                };
                let _held = self.lock(chunk).hold();
                let pages = ChunkPages::read(words);
                if pages.count() > 0 {
                    visit(chunk * CHUNK_BYTES, &pages);
                }
            }
        }
    }

    /// Releases all locks. In the child after a fork, the threads that held them do not exist.
    #[cfg(feature = "jemalloc-memory")]
    pub(super) fn release_locks(&self) {
        self.locks.iter().for_each(Lock::release);
    }

    /// Calls `change` for each chunk of a range of addresses, with its number, its words, and the range's pages in it.
    fn change(&self, address: usize, bytes: usize, mut change: impl FnMut(usize, &ChunkWords, Range<usize>)) {
        let mut page = address / PAGE_BYTES;
        let end = page + bytes / PAGE_BYTES;
        while page < end {
            let (chunk, first) = (page / CHUNK_PAGES, page % CHUNK_PAGES);
            let last = CHUNK_PAGES.min(first + (end - page));
            let Some(words) = self.chunks.get(chunk) else {
                return;
            };
            let _held = self.lock(chunk).hold();
            change(chunk, words, first..last);
            page += last - first;
        }
    }

    /// Makes [`PageMap::visit`] visit a chunk.
    fn record_chunk(&self, chunk: usize) {
        let (index, bit) = (chunk / WORD_BITS, 1 << (chunk % WORD_BITS));
        let Some(word) = self.known.get(index) else {
            return;
        };
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
            self.first_known.fetch_min(index, Relaxed);
            self.last_known.fetch_max(index, Relaxed);
        }
    }

    fn lock(&self, chunk: usize) -> &Lock {
        &self.locks[chunk % LOCKS]
    }

    /// Returns the address and the size of the words of all chunks.
    #[cfg(all(test, feature = "jemalloc-memory"))]
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.chunks.as_ptr().addr(), size_of_val(self.chunks))
    }

    /// Holds the lock of the chunk at an address.
    #[cfg(all(test, feature = "jemalloc-memory"))]
    pub(super) fn hold_chunk(&self, address: usize) -> Held<'_> {
        self.lock(address / CHUNK_BYTES).hold()
    }
}

/// Returns, for each word of a chunk, the bits of a range of pages.
fn masks(pages: Range<usize>) -> impl Iterator<Item = u64> {
    (0..WORDS).map(move |word| {
        let bit = |page: usize| page.saturating_sub(word * WORD_BITS).min(WORD_BITS);
        below(bit(pages.end)) & !below(bit(pages.start))
    })
}

/// Returns the bits below bit `end`.
fn below(end: usize) -> u64 {
    match end < WORD_BITS {
        true => (1 << end) - 1,
        false => u64::MAX,
    }
}

/// The unused pages of a chunk at one time.
pub(super) struct ChunkPages([u64; WORDS]);

impl ChunkPages {
    fn read(words: &ChunkWords) -> Self {
        ChunkPages(std::array::from_fn(|index| words[index].load(Relaxed)))
    }

    /// Returns the number of unused pages.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the ranges of contiguous unused pages, in ascending order, as positions in the chunk.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = self.find(next, true)?;
            next = self.find(start, false).unwrap_or(CHUNK_PAGES);
            Some(start..next)
        })
    }

    /// Returns the first page from position `from` on that is unused, or that is not.
    fn find(&self, from: usize, is_unused: bool) -> Option<usize> {
        let mut above = u64::MAX << (from % WORD_BITS);
        for index in from / WORD_BITS..WORDS {
            let bits = match is_unused {
                true => self.0[index] & above,
                false => !self.0[index] & above,
            };
            if bits != 0 {
                return Some(index * WORD_BITS + bits.trailing_zeros() as usize);
            }
            above = u64::MAX;
        }
        None
    }
}

/// A lock for a few instructions or one system call. Unlike a mutex of the standard library, another thread can release
/// it, which the child of a fork needs. Each has a cache line of its own.
#[repr(align(64))]
struct Lock(AtomicBool);

impl Lock {
    const fn new() -> Self {
        Lock(AtomicBool::new(false))
    }

    fn hold(&self) -> Held<'_> {
        let mut spins = 0;
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                spins += 1;
                match spins % SPINS {
                    0 => std::thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
        Held(self)
    }

    fn release(&self) {
        self.0.store(false, Release);
    }
}

/// Releases a lock when it is dropped.
pub(super) struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

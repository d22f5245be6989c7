//! Pages of an arena whose hooks record them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tikv_jemalloc_sys::{MALLOCX_ALIGN, MALLOCX_ARENA, MALLOCX_TCACHE_NONE, MALLOCX_ZERO, dallocx, mallocx, rallocx};

use super::hooks::{is_unused, map_memory_range, with_lock};
use super::{return_to_system, track, unused_bytes};
use crate::allocator;

const PAGE: usize = 4096;
const BLOCK: usize = 64 << 10;

/// Held by each test: what one of them returns to the system is among what another one counts.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An arena that keeps its free pages until it is purged.
#[derive(Clone, Copy)]
struct Arena(u32);

/// The address and the size of a block of an arena.
type Block = (usize, usize);

impl Arena {
    fn create() -> Arena {
        let arena = allocator::create_arena().expect("there is memory");
        let decay = format!("arena.{arena}.dirty_decay_ms");
        allocator::number(decay.as_bytes(), Some(-1)).expect("it can be written");
        Arena(arena)
    }

    /// Returns the flags of calls. Blocks begin at a page; by default, large ones begin anywhere in an additional page.
    fn flags(self) -> c_int {
        MALLOCX_ARENA(self.0 as usize) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(PAGE)
    }

    fn allocate(self, bytes: usize) -> Block {
        // SAFETY: the size is not zero.
        let block = unsafe { mallocx(bytes, self.flags()) };
        assert!(!block.is_null());
        (block.expose_provenance(), bytes)
    }

    fn allocate_zeroed(self, bytes: usize) -> Block {
        // SAFETY: the size is not zero.
        let block = unsafe { mallocx(bytes, self.flags() | MALLOCX_ZERO) };
        assert!(!block.is_null());
        (block.expose_provenance(), bytes)
    }

    fn resize(self, block: Block, bytes: usize) -> Block {
        // SAFETY: the block is allocated, and not used at its old address again.
        let block = unsafe { rallocx(ptr::with_exposed_provenance_mut(block.0), bytes, self.flags()) };
        assert!(!block.is_null());
        (block.expose_provenance(), bytes)
    }

    fn free(self, block: Block) {
        // SAFETY: the block is allocated, and not used again.
        unsafe { dallocx(ptr::with_exposed_provenance_mut(block.0), self.flags()) };
    }

    /// Returns the free pages of the arena to the system.
    fn purge(self) {
        let name = format!("arena.{}.purge", self.0);
        allocator::command(name.as_bytes()).expect("it can be purged");
    }
}

/// Fills a block with a pattern that its address and `seed` determine.
fn fill(block: Block, seed: u64) {
    let words = ptr::with_exposed_provenance_mut::<u64>(block.0);
    for index in 0..block.1 / 8 {
        // SAFETY: within the block, which is aligned to 16.
        unsafe { words.add(index).write(seed ^ index as u64) };
    }
}

/// Returns `true` if the first bytes of a block are those that [`fill`] wrote.
fn is_filled(block: Block, bytes: usize, seed: u64) -> bool {
    let words = ptr::with_exposed_provenance::<u64>(block.0);
    // SAFETY: within the block, which is aligned to 16.
    (0..bytes / 8).all(|index| unsafe { words.add(index).read() } == seed ^ index as u64)
}

fn is_zeroed(block: Block) -> bool {
    let words = ptr::with_exposed_provenance::<u64>(block.0);
    // SAFETY: within the block, which is aligned to 16.
    (0..block.1 / 8).all(|index| unsafe { words.add(index).read() } == 0)
}

/// Returns the number of resident pages of a range of addresses.
fn resident_pages(block: Block) -> usize {
    let mut pages = vec![0u8; block.1.div_ceil(PAGE)];
    // SAFETY: the call writes a byte for each page.
    let result = unsafe { libc::mincore(ptr::without_provenance_mut(block.0), block.1, pages.as_mut_ptr()) };
    assert_eq!(result, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Makes the pages of a range resident without changing them, as the fault of a huge page does that covers them.
fn make_resident(range: Block) {
    // SAFETY: the call changes no contents.
    let result = unsafe { libc::madvise(ptr::without_provenance_mut(range.0), range.1, libc::MADV_POPULATE_WRITE) };
    if result != 0 {
        // An old system. The pages are zeroed, and stay so.
        for page in (range.0..range.0 + range.1).step_by(PAGE) {
            // SAFETY: the page is mapped, and the allocator does not use it.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(page).write_volatile(0) };
        }
    }
    assert_eq!(resident_pages(range), range.1 / PAGE);
}

/// Allocates blocks, fills them, frees all but each 16th, and purges the arena. Returns the blocks that are left, and
/// those that were freed.
fn scatter(arena: Arena, blocks: usize) -> (Vec<Block>, Vec<Block>) {
    let blocks: Vec<Block> = (0..blocks).map(|_| arena.allocate(BLOCK)).collect();
    for block in &blocks {
        fill(*block, block.0 as u64);
    }
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(index, _)| index % 16 == 3);
    let without_index = |blocks: Vec<(usize, Block)>| blocks.into_iter().map(|(_, block)| block).collect::<Vec<_>>();
    let (kept, freed) = (without_index(kept), without_index(freed));
    freed.iter().for_each(|block| arena.free(*block));
    arena.purge();
    (kept, freed)
}

#[test]
fn resident_pages_of_retained_addresses_are_returned() {
    let _alone = alone();
    let arena = Arena::create();
    let (kept, freed) = scatter(arena, 512);
    for (address, _) in &freed {
        assert!(is_unused(*address) && is_unused(address + BLOCK - PAGE));
    }
    for (address, _) in &kept {
        assert!(!is_unused(*address) && !is_unused(address + BLOCK - PAGE));
    }
    let freed_bytes = freed.len() * BLOCK;
    assert!(unused_bytes() >= freed_bytes as u64);
    let resident = || freed.iter().map(|block| resident_pages(*block)).sum::<usize>();
    assert_eq!(resident(), 0, "they were purged");
    freed.iter().for_each(|block| make_resident(*block));
    assert!(return_to_system() >= freed_bytes as u64);
    assert_eq!(resident(), 0, "they were returned");
    for block in &kept {
        assert_eq!(resident_pages(*block), BLOCK / PAGE);
        assert!(is_filled(*block, BLOCK, block.0 as u64));
    }
    assert!(return_to_system() < freed_bytes as u64, "none is returned twice");
    kept.into_iter().for_each(|block| arena.free(block));
}

/// The first access to a block makes a whole huge page resident, of which the block is a small part.
#[test]
fn the_rest_of_a_huge_page_is_returned() {
    const HUGE: usize = 2 << 20;
    let _alone = alone();
    let arena = Arena::create();
    let large = arena.allocate(3 * HUGE);
    let huge_page = (large.0.next_multiple_of(HUGE), HUGE);
    let unused_resident_pages = || {
        let pages = (huge_page.0..huge_page.0 + HUGE).step_by(PAGE);
        let is_unused_and_resident = |page: &usize| is_unused(*page) && resident_pages((*page, PAGE)) == 1;
        pages.filter(is_unused_and_resident).count()
    };
    // SAFETY: the call changes no contents.
    let advised = unsafe { libc::madvise(ptr::without_provenance_mut(huge_page.0), HUGE, libc::MADV_HUGEPAGE) };
    arena.free(large);
    arena.purge();
    assert_eq!(resident_pages(huge_page), 0);
    // The blocks fill the addresses from the lowest one on.
    let mut before = Vec::new();
    let block = loop {
        let block = arena.allocate(BLOCK);
        if block.0 >= huge_page.0 {
            break block;
        }
        before.push(block);
    };
    assert!(block.0 < huge_page.0 + HUGE, "its addresses are used again");
    fill(block, 2);
    if resident_pages(huge_page) == HUGE / PAGE {
        assert!(unused_resident_pages() > 400);
    } else {
        println!("The system has no huge page ({advised}).");
    }
    return_to_system();
    assert_eq!(unused_resident_pages(), 0);
    assert!(resident_pages(huge_page) < 100);
    assert!(is_filled(block, BLOCK, 2));
    before.into_iter().for_each(|block| arena.free(block));
    arena.free(block);
}

#[test]
fn zeroed_memory_is_zeroed_when_addresses_are_used_again() {
    let _alone = alone();
    let arena = Arena::create();
    for round in 0..8 {
        let (kept, freed) = scatter(arena, 256);
        if round % 2 == 1 {
            freed.iter().step_by(2).for_each(|block| make_resident(*block));
        }
        if round % 4 > 1 {
            return_to_system();
        }
        let sizes = [BLOCK, 3 * PAGE, 9 * BLOCK, 5 << 10];
        let blocks: Vec<Block> = (0..64)
            .map(|index| arena.allocate_zeroed(sizes[index % sizes.len()]))
            .collect();
        let overlap = |a: &Block, b: &Block| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        assert!(
            blocks
                .iter()
                .any(|block| freed.iter().any(|freed| overlap(block, freed)))
        );
        for block in &blocks {
            assert!(is_zeroed(*block), "round {round}");
            assert!(!is_unused(block.0));
        }
        for block in &kept {
            assert!(is_filled(*block, BLOCK, block.0 as u64));
        }
        kept.into_iter().chain(blocks).for_each(|block| arena.free(block));
    }
}

#[test]
fn contents_are_intact_while_threads_purge_and_return() {
    let _alone = alone();
    let arenas = [Arena::create(), Arena::create()];
    let is_over = AtomicBool::new(false);
    let worker = |number: u64| {
        let mut random = fastrand::Rng::with_seed(number);
        let mut blocks: HashMap<u64, (Arena, Block)> = HashMap::new();
        let mut seed = number << 32;
        while !is_over.load(Ordering::Relaxed) {
            seed += 1;
            let bytes = 8 * random.usize(512..40_000);
            let arena = arenas[random.usize(..2)];
            match random.u8(..4) {
                0 => {
                    let block = arena.allocate_zeroed(bytes);
                    assert!(is_zeroed(block));
                    fill(block, seed);
                    blocks.insert(seed, (arena, block));
                }
                1 if blocks.len() < 64 => {
                    let block = arena.allocate(bytes);
                    fill(block, seed);
                    blocks.insert(seed, (arena, block));
                }
                2 if !blocks.is_empty() => {
                    let key = *blocks.keys().nth(random.usize(..blocks.len())).expect("it exists");
                    let (arena, block) = blocks.remove(&key).expect("it exists");
                    let resized = arena.resize(block, bytes);
                    assert!(is_filled(resized, bytes.min(block.1), key));
                    fill(resized, seed);
                    blocks.insert(seed, (arena, resized));
                }
                _ => {
                    let some = blocks.keys().next().copied();
                    if let Some((arena, block)) = some.and_then(|key| blocks.remove(&key)) {
                        assert!(is_filled(block, block.1, some.unwrap_or_default()));
                        arena.free(block);
                    }
                }
            }
        }
        for (seed, (arena, block)) in blocks {
            assert!(is_filled(block, block.1, seed));
            arena.free(block);
        }
    };
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || worker(number));
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                arenas.iter().for_each(|arena| arena.purge());
                return_to_system();
                returned.store(true, Ordering::Relaxed);
            }
        });
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(returned.into_inner());
}

#[test]
fn an_arena_that_is_destroyed_leaves_no_unused_pages() {
    let _alone = alone();
    let arena = Arena::create();
    let (kept, freed) = scatter(arena, 64);
    assert!(is_unused(freed[9].0));
    let name = std::ffi::CString::new(format!("arena.{}.destroy", arena.0)).expect("a name");
    // SAFETY: the blocks of the arena are not used again.
    let result =
        unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0) };
    assert_eq!(result, 0);
    assert!(!is_unused(freed[9].0) && !is_unused(kept[1].0));
    return_to_system();
}

#[test]
fn addresses_that_the_allocator_did_not_use_yet_are_unused() {
    let _alone = alone();
    let arena = Arena::create();
    let block = arena.allocate(BLOCK);
    // The allocator maps at least 2 MiB at once.
    let after = block.0 + (1 << 20);
    assert!(!is_unused(block.0) && is_unused(after));
    arena.free(block);
    let large = arena.allocate(64 << 20);
    assert!(!is_unused(large.0) && !is_unused(large.0 + (63 << 20)));
    arena.free(large);
    assert!(!is_unused(large.0), "the allocator keeps the pages");
    arena.purge();
    assert!(is_unused(large.0));
}

#[test]
fn the_map_takes_little_memory() {
    let _alone = alone();
    let arena = Arena::create();
    let map = map_memory_range().expect("pages are tracked");
    let pages = || resident_pages(map);
    let before = pages();
    let block = arena.allocate(1 << 30);
    arena.free(block);
    arena.purge();
    // 64 bytes for each 2 MiB of the block, and of what the allocator maps around it.
    let most = ((2 << 30) / (2 << 20) * 64) / PAGE + 2;
    assert!(pages() <= before + most, "{before} and {}", pages());
    assert!(before <= 64, "{before} pages for the small arenas of the tests");
}

#[test]
fn arenas_that_do_not_exist_are_not_created() {
    let _alone = alone();
    assert!(track(0) && track(0));
    assert!(!track(4000));
    let arena = Arena::create();
    assert!(track(arena.0));
    assert!(!track(arena.0 + 1));
}

/// A lock that another thread of the parent holds is free in the child.
#[test]
fn a_child_can_allocate_after_a_fork() {
    let _alone = alone();
    let arena = Arena::create();
    let (_, freed) = scatter(arena, 64);
    let at = freed[9].0;
    let child = with_lock(at, || {
        // SAFETY: the child only calls the allocator, which supports a fork, and the system.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                fill(arena.allocate(BLOCK), 5);
                return_to_system();
                libc::_exit(7);
            }
            child
        }
    });
    let child = child.expect("pages are tracked");
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the status is a variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
    assert!(is_unused(at));
}

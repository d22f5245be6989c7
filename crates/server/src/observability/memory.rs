//! The allocator's statistics, and the return of free pages to the operating system. Memory use is always taken from
//! the allocator, never estimated by the server.
//!
//! All arenas are tracked by `weft_table::unused_pages`, which records the pages that the allocator has returned. They
//! may become resident again with a huge page, and are returned again with the free pages.
//!
//! The allocator does not see the slab of small entries (`weft_table::cells`): it counts the slab's runs as in use as a
//! whole. Here the bytes that are in use within the runs are counted.

use std::cell::OnceCell;
use std::io::Write as _;
use weft_os::sync::{Mutex, OnceLock};

use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access, AsName, epoch, stats};
#[cfg(feature = "jemalloc")]
use weft_table::cells;
use weft_table::{allocator, unused_pages};

#[cfg(not(feature = "jemalloc"))]
use super::no_slab as cells;
use super::{fragmentation, log};

/// Returns the bytes in use by the program, exact to the byte if no thread allocates meanwhile. The free memory in
/// thread caches is excluded; the allocator's own count includes it.
pub fn used() -> Option<u64> {
    epoch::advance().ok()?;
    Some(allocated()?.saturating_sub(cached()))
}

/// Returns the allocated bytes at the last epoch, including the free memory in thread caches.
fn allocated() -> Option<u64> {
    let allocated = stats::allocated::read().ok()? as u64;
    Some(allocated.saturating_sub(cells::unused_bytes()))
}

/// Returns the bytes in the thread caches at the last epoch.
fn cached() -> u64 {
    // The index under which the allocator sums up all arenas.
    let bytes: Result<usize, _> = b"stats.arenas.4096.tcache_bytes\0"[..].name().read();
    bytes.unwrap_or(0) as u64
}

thread_local! {
    static TOTALS: Option<(ThreadLocal<u64>, ThreadLocal<u64>)> =
        Some((thread::allocatedp::read().ok()?, thread::deallocatedp::read().ok()?));
}

/// Returns the bytes that this thread has allocated, less those that it has freed. A thread may free what another one
/// has allocated, so the result may be negative. The call costs a few loads.
#[inline]
pub fn thread_balance() -> i64 {
    let allocator = TOTALS.with(|totals| match totals {
        Some((taken, given)) => taken.get().wrapping_sub(given.get()) as i64,
        None => 0,
    });
    allocator + cells::balance()
}

/// Statistics of the allocator, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorFigures {
    /// The allocated bytes, including the free memory in thread caches.
    pub allocated: u64,
    /// The allocated bytes, without the free memory in thread caches.
    pub used: u64,
    /// The bytes of free places in slabs, see [`fragmentation::fragmented_bytes`].
    pub fragmented: u64,
    /// The bytes of pages that hold allocated bytes.
    pub active: u64,
    /// The bytes that the allocator uses itself.
    pub metadata: u64,
    /// The bytes that are mapped and resident: active, metadata, and free pages that are kept.
    pub resident: u64,
    /// The bytes of address space that were returned to the operating system but stay mapped, to be used again.
    pub retained: u64,
    /// The figures of the arena that holds the arrays of the tables.
    pub arrays: ArenaFigures,
    /// The figures of the arena of long commands.
    pub long_commands: ArenaFigures,
}

impl AllocatorFigures {
    /// Returns the fragmentation in relation to the allocated bytes, in percent.
    pub fn fragmented_percent(&self) -> f64 {
        self.fragmented as f64 * 100.0 / self.allocated.max(1) as f64
    }

    /// Returns the allocated bytes and the fragmentation as a multiple of the allocated bytes.
    pub fn fragmentation_ratio(&self) -> f64 {
        1.0 + self.fragmented as f64 / self.allocated.max(1) as f64
    }
}

/// Statistics of one arena, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// The bytes of pages in use.
    pub active: u64,
    /// The bytes of free pages that are kept.
    pub free: u64,
}

/// The decay time of free pages in the arena of long commands, in milliseconds.
const LONG_COMMAND_DECAY_MS: isize = 60_000;

/// The index of the arena of long commands; unset before the first one, `None` if the allocator cannot create it.
static LONG_COMMAND_ARENA: OnceLock<Option<u32>> = OnceLock::new();

/// The allocator refuses a request.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// It refuses a control.
    #[error(transparent)]
    Control(#[from] tikv_jemalloc_ctl::Error),
    /// It cannot create an arena.
    #[error("no arena can be created: {0}")]
    NoArena(#[from] std::io::Error),
}

/// Makes the allocator record the unused pages of the arena that all threads share at first. It is called once, when
/// the process begins.
pub fn track_common_arena() {
    unused_pages::track(0);
}

/// Makes this thread allocate from an arena that only the callers of this function share.
///
/// The arena is for threads that allocate hundreds of megabytes, free them, and soon allocate them again. In the other
/// arenas, free pages stay until there are too many, and then all are returned. In this arena the allocator returns
/// pages gradually, once they were unused for a while. A page that is allocated again may be expensive: if the host of
/// a virtual machine reclaims pages that its guest does not use, each huge page stops a processor for milliseconds
/// (measured: 5 to 10).
///
/// # Errors
/// The allocator's reason. The thread then allocates from the common arenas.
pub fn use_long_command_arena() -> Result<(), AllocatorError> {
    let create = || -> Result<u32, AllocatorError> {
        let arena = allocator::create_arena()?;
        let name = |setting: &str| format!("arena.{arena}.{setting}\0");
        name("dirty_decay_ms").as_bytes().name().write(LONG_COMMAND_DECAY_MS)?;
        // Otherwise the allocator would return contiguous free pages of 8 MB and more at once.
        name("oversize_threshold").as_bytes().name().write(usize::MAX)?;
        Ok(arena)
    };
    let mut reason = None;
    let arena = *LONG_COMMAND_ARENA.get_or_init(|| create().map_err(|error| reason = Some(error)).ok());
    match (arena, reason) {
        (Some(arena), _) => Ok(b"thread.arena\0"[..].name().write(arena)?),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(()),
    }
}

/// The bytes that a worker has allocated before it takes an arena of its own. A client that looks at an idle server
/// does not need one.
const OWN_ARENA_BYTES: u64 = 1 << 20;
/// The maximum number of arenas of single threads for each CPU, as in the allocator's default.
const ARENAS_PER_CPU: usize = 4;

/// The arenas of single threads.
static THREAD_ARENAS: ArenaPool = ArenaPool::new();

thread_local! {
    /// The position of this thread's arena in [`THREAD_ARENAS`]. The thread leaves the arena when it ends.
    static OWN_ARENA: OnceCell<Option<ArenaPlace>> = const { OnceCell::new() };
}

/// Makes this thread allocate from an arena that other threads use only if there are many threads. It is for threads
/// that allocate while others do, which would delay each other at a common arena. Later calls do nothing.
pub fn use_own_arena() {
    // In a simulation only one thread runs at a time.
    if cfg!(feature = "simulated") {
        return;
    }
    OWN_ARENA.with(|place| {
        place.get_or_init(|| {
            let create = || allocator::create_arena().map_err(AllocatorError::from);
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            let taken = THREAD_ARENAS
                .take(ARENAS_PER_CPU * cpus, create)
                .and_then(|(place, arena)| {
                    b"thread.arena\0"[..].name().write(arena)?;
                    Ok(place)
                });
            taken
                .inspect_err(|error| log::warning!("a thread shares the memory of others: {error}"))
                .ok()
        });
    });
}

/// Calls [`use_own_arena`] if this thread has allocated a megabyte since it began. Returns `true` if so. The call costs
/// a few loads.
#[inline]
pub fn use_own_arena_if_busy() -> bool {
    let allocated = TOTALS.with(|totals| totals.as_ref().map_or(0, |(taken, _)| taken.get()));
    let is_busy = allocated >= OWN_ARENA_BYTES;
    if is_busy {
        use_own_arena();
    }
    is_busy
}

/// Arenas, each with the number of its threads. They stay: what their threads have allocated outlives the threads.
struct ArenaPool {
    arenas: Mutex<Vec<(u32, usize)>>,
}

/// The place of a thread at an arena of a pool.
struct ArenaPlace {
    pool: &'static ArenaPool,
    index: usize,
}

impl ArenaPool {
    const fn new() -> ArenaPool {
        ArenaPool {
            arenas: Mutex::new(Vec::new()),
        }
    }

    /// Returns a place at an arena without threads, or at a new one, or, if there are `most`, at the one with the
    /// fewest threads. Also returns the number of the arena.
    fn take<E>(&'static self, most: usize, create: impl FnOnce() -> Result<u32, E>) -> Result<(ArenaPlace, u32), E> {
        let mut arenas = self.arenas.lock();
        let least_used = (0..arenas.len()).min_by_key(|index| arenas[*index].1);
        let index = match least_used {
            Some(index) if arenas[index].1 == 0 || arenas.len() >= most => index,
            _ => {
                arenas.push((create()?, 0));
                arenas.len() - 1
            }
        };
        arenas[index].1 += 1;
        Ok((ArenaPlace { pool: self, index }, arenas[index].0))
    }
}

impl Drop for ArenaPlace {
    fn drop(&mut self) {
        self.pool.arenas.lock()[self.index].1 -= 1;
    }
}

/// Returns the free memory that the allocator and the slab keep for this thread. A free allocation in a thread's cache
/// keeps its slab, so threads are asked to call this before their slabs are emptied.
pub fn return_thread_memory() {
    cells::return_free_cells();
    // A build without jemalloc has no such cache.
    let _ = allocator::command(b"thread.tcache.flush");
}

/// Returns the number of allocations from the arena of long commands, at the last epoch.
pub fn long_command_allocations() -> Option<u64> {
    let arena = (*LONG_COMMAND_ARENA.get()?)?;
    let count = |kind: &str| -> Option<u64> {
        let name = format!("stats.arenas.{arena}.{kind}.nmalloc\0");
        name.as_bytes().name().read().ok()
    };
    Some(count("small")? + count("large")?)
}

/// Returns all statistics.
pub fn figures() -> Option<AllocatorFigures> {
    epoch::advance().ok()?;
    let allocated = allocated()?;
    let used = allocated.saturating_sub(cached());
    if cfg!(feature = "simulated") {
        // What the allocator keeps depends on real time.
        return Some(AllocatorFigures {
            allocated: used,
            used,
            active: used,
            resident: used,
            ..AllocatorFigures::default()
        });
    }
    Some(AllocatorFigures {
        allocated,
        used,
        fragmented: fragmentation::fragmented_bytes(),
        active: stats::active::read().ok()? as u64,
        metadata: stats::metadata::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
        retained: stats::retained::read().ok()? as u64,
        arrays: weft_table::arrays::arena().and_then(arena_figures).unwrap_or_default(),
        long_commands: LONG_COMMAND_ARENA
            .get()
            .copied()
            .flatten()
            .and_then(arena_figures)
            .unwrap_or_default(),
    })
}

fn arena_figures(arena: u32) -> Option<ArenaFigures> {
    let page: usize = b"arenas.page\0"[..].name().read().ok()?;
    let bytes = |kind: &str| -> Option<u64> {
        let pages: usize = format!("stats.arenas.{arena}.{kind}\0").as_bytes().name().read().ok()?;
        Some((pages * page) as u64)
    };
    Some(ArenaFigures {
        active: bytes("pactive")?,
        free: bytes("pdirty")?,
    })
}

/// Returns all free pages to the operating system, and the resident ones among the unused pages.
///
/// # Errors
/// The allocator's reason.
pub fn purge() -> Result<(), AllocatorError> {
    purge_common_arenas()?;
    purge_long_command_arena()?;
    return_unused_pages();
    Ok(())
}

/// Returns the bytes of the pages that the allocator has returned and may use again. Most are not resident.
pub fn unused_page_bytes() -> u64 {
    unused_pages::unused_bytes()
}

/// Returns the resident ones among the unused pages to the operating system: pages that the allocator has returned, and
/// that became resident again with a huge page. Returns their bytes.
pub fn return_unused_pages() -> u64 {
    unused_pages::return_to_system()
}

/// Returns the free pages of all arenas except that of long commands.
///
/// # Errors
/// The allocator's reason.
pub fn purge_common_arenas() -> Result<(), AllocatorError> {
    let arenas = tikv_jemalloc_ctl::arenas::narenas::read()?;
    let long = LONG_COMMAND_ARENA.get().copied().flatten();
    (0..arenas)
        .filter(|arena| Some(*arena) != long)
        .try_for_each(purge_arena)
}

/// Returns the free pages of the arena of long commands.
///
/// # Errors
/// The allocator's reason.
pub fn purge_long_command_arena() -> Result<(), AllocatorError> {
    LONG_COMMAND_ARENA.get().copied().flatten().map_or(Ok(()), purge_arena)
}

/// Returns the free pages of the arena that holds the arrays of the tables.
///
/// # Errors
/// The allocator's reason.
pub fn purge_arrays() -> Result<(), AllocatorError> {
    weft_table::arrays::arena().map_or(Ok(()), purge_arena)
}

/// Held while a decay time is changed. A second thread would find the changed one, and leave it behind.
static PURGING: Mutex<()> = Mutex::new(());

fn purge_arena(arena: u32) -> Result<(), AllocatorError> {
    let _purging = PURGING.lock();
    // The allocator itself creates an arena for allocations of 8 MB and more.
    unused_pages::track(arena);
    for kind in ["dirty", "muzzy"] {
        let name = format!("arena.{arena}.{kind}_decay_ms\0");
        let name = name.as_bytes().name();
        // A decay time of zero returns the pages that are free now. Arenas that were never used refuse the change.
        let kept: Result<isize, _> = name.update(0);
        if let Ok(decay_ms) = kept {
            name.write(decay_ms)?;
        }
    }
    Ok(())
}

/// Returns a text of the allocator by its name; `None` if there is none under that name.
pub fn allocator_text(name: &[u8]) -> Option<&'static [u8]> {
    if name.contains(&0) {
        return None;
    }
    let name = [name, b"\0"].concat();
    let name = name[..].name();
    // Names of profiling settings may have no text at all.
    let may_be_missing = name.as_bytes().windows(4).any(|part| part == b"prof");
    if !name.value_type_str() || may_be_missing {
        return None;
    }
    name.read().ok()
}

/// Returns the allocator's own report, and the use of the slab's runs, which the allocator does not know.
pub fn report() -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to a vector cannot fail.
    let _ = tikv_jemalloc_ctl::stats_print::stats_print(&mut text, Default::default());
    let _ = write_slab(&mut text);
    text
}

fn write_slab(text: &mut Vec<u8>) -> std::io::Result<()> {
    writeln!(text, "\nSlab of entries, in bytes:")?;
    writeln!(
        text,
        "{:>8} {:>16} {:>16} {:>16}",
        "cell", "runs", "used", "kept by threads"
    )?;
    for class in cells::figures().iter().filter(|class| class.run_bytes > 0) {
        let (cell, runs) = (class.cell_bytes, class.run_bytes);
        writeln!(
            text,
            "{cell:>8} {runs:>16} {:>16} {:>16}",
            class.used_bytes, class.kept_bytes
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current_arena() -> u32 {
        b"thread.arena\0"[..].name().read().expect("the thread has an arena")
    }

    #[test]
    fn threads_share_an_arena_until_they_are_busy() {
        assert!(weft_reactor::allocator_options().starts_with("narenas:1,"));
        let thread = || {
            assert!(!use_own_arena_if_busy());
            let common = current_arena();
            std::hint::black_box(vec![1u8; OWN_ARENA_BYTES as usize]);
            assert!(use_own_arena_if_busy());
            let own = current_arena();
            use_own_arena();
            assert_eq!(current_arena(), own, "it keeps its arena");
            (common, own)
        };
        for _ in 0..2 {
            let (common, own) = std::thread::spawn(thread).join().expect("the thread ends well");
            assert_eq!(common, 0);
            assert_ne!(own, 0);
        }
    }

    #[test]
    fn arenas_are_used_again_and_shared_if_there_are_many_threads() {
        static POOL: ArenaPool = ArenaPool::new();
        let take = |number: u32| POOL.take(2, || Ok::<u32, ()>(number)).expect("it is created");
        let (first, arena) = take(10);
        assert_eq!(arena, 10);
        let (second, arena) = take(11);
        assert_eq!(arena, 11);
        let (third, arena) = take(12);
        assert_eq!(arena, 10, "the limit is reached");
        let (_fourth, arena) = take(13);
        assert_eq!(arena, 11, "the other one has fewer threads");
        drop((first, third));
        let (_fifth, arena) = take(14);
        assert_eq!(arena, 10, "it has no thread");
        drop(second);
        assert!(
            POOL.take(3, || Err::<u32, ()>(())).is_err(),
            "none is free, and no other can be created"
        );
    }

    #[test]
    fn purges_at_the_same_time_leave_the_decay_times() {
        let purge = || (0..100).for_each(|_| purge_common_arenas().expect("pages can be given back"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(purge);
            }
        });
        let _purging = PURGING.lock();
        let decay_ms: isize = b"arena.0.dirty_decay_ms\0"[..].name().read().expect("it is used");
        assert_eq!(decay_ms, -1);
    }

    #[cfg(feature = "jemalloc")]
    #[test]
    fn pages_of_all_arenas_are_recorded_when_they_are_returned() {
        const BLOCKS: usize = 64;
        let fill_and_free = || {
            let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![1u8; 1 << 20]).collect();
            drop(std::hint::black_box(blocks));
        };
        let thread = std::thread::spawn(move || {
            use_own_arena();
            fill_and_free();
            purge().expect("pages can be given back");
            let bytes = unused_page_bytes();
            // Other tests may use some of the addresses again.
            assert!(bytes > (BLOCKS as u64) << 19, "{bytes}");
        });
        thread.join().expect("the thread ends well");
    }

    /// Memory freed by a thread with its own arena stays there, and is returned on request.
    #[test]
    fn memory_freed_by_long_commands_stays_in_their_arena() {
        const BYTES: u64 = 64 << 20;
        let free = || figures().expect("the allocator counts").long_commands.free;
        let thread = std::thread::spawn(move || {
            use_long_command_arena().expect("an arena of its own");
            let before = figures()
                .and_then(|_| long_command_allocations())
                .expect("the arena counts");
            for _ in 0..100 {
                std::hint::black_box(vec![1u8; BYTES as usize]);
            }
            let kept = free();
            assert!(long_command_allocations().is_some_and(|requests| requests >= before + 100));
            assert!((BYTES..2 * BYTES).contains(&kept), "{kept}");
            purge_common_arenas().expect("others give back");
            assert!(free() >= BYTES);
            purge_long_command_arena().expect("it gives back");
            assert!(free() < BYTES);
        });
        thread.join().expect("the thread ends well");
    }
}

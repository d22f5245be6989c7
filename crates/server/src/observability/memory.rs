//! The allocator's own figures, and what it is told of pages that are free; memory is never counted by hand.
//!
//! What is beneath the allocator's notice are the cells of small entries (`weft_table::cells`): for it the runs they lie in
//! are in use as a whole. They count here as what they are.

use std::io::Write as _;
use std::sync::OnceLock;

use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access, AsName, epoch, stats};
use weft_table::cells;

/// Bytes that the program has, to the byte when nobody allocates meanwhile. What threads keep for their next allocation is
/// left out: the allocator's own count has it in.
pub fn used() -> Option<u64> {
    epoch::advance().ok()?;
    Some(allocated()?.saturating_sub(cached()))
}

/// Bytes that the program asked for, with what threads keep for their next allocation, at the last epoch.
fn allocated() -> Option<u64> {
    let allocated = stats::allocated::read().ok()? as u64;
    Some(allocated.saturating_sub(cells::unused_bytes()))
}

/// Bytes in the threads' caches, at the last epoch.
fn cached() -> u64 {
    // The number under which the allocator adds all arenas up.
    let bytes: Result<usize, _> = b"stats.arenas.4096.tcache_bytes\0"[..].name().read();
    bytes.unwrap_or(0) as u64
}

thread_local! {
    static TOTALS: Option<(ThreadLocal<u64>, ThreadLocal<u64>)> =
        Some((thread::allocatedp::read().ok()?, thread::deallocatedp::read().ok()?));
}

/// Bytes that this thread has taken from the allocator, less those that it gave back; it may have given back what others
/// took. A few loads.
#[inline]
pub fn balance() -> i64 {
    let allocator = TOTALS.with(|totals| match totals {
        Some((taken, given)) => taken.get().wrapping_sub(given.get()) as i64,
        None => 0,
    });
    allocator + cells::balance()
}

/// Figures of the allocator, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Asked for by the program, with what threads keep for their next allocation.
    pub allocated: u64,
    /// The same without.
    pub used: u64,
    /// In pages that hold such bytes.
    pub active: u64,
    /// The allocator's own.
    pub metadata: u64,
    /// Mapped and in memory: active, metadata, and free pages that are kept.
    pub resident: u64,
    /// Those of the arena that has the arrays of the tables.
    pub arrays: Arena,
    /// Those of the arena that long commands have.
    pub long: Arena,
}

/// Figures of one arena, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    /// In pages that are in use.
    pub active: u64,
    /// In free pages that are kept.
    pub free: u64,
}

/// How long free pages of long commands' arena stay, by and by fewer, in ms.
const LONG_DECAY_MS: isize = 60_000;

/// The arena that long commands have; `None` before the first one, and if the allocator has none for them.
static LONG: OnceLock<Option<u32>> = OnceLock::new();

/// Has this thread, and the others that say so, take what they allocate from an arena that is theirs alone.
///
/// It is for those who take hundreds of megabytes, give them back, and soon take them again. Elsewhere free pages stay
/// until there are too many of them, and then all go. Here they go as the allocator thinks right, which is when they were
/// not taken again for a while. For a page that is asked for anew may be dear: where the host of a virtual machine takes
/// back what its guest does not use, each huge page stops a processor for milliseconds (measured: 5 to 10).
///
/// # Errors
/// The allocator's reason; the thread allocates as all others then.
pub fn allocate_apart() -> Result<(), String> {
    let create = || -> Result<u32, tikv_jemalloc_ctl::Error> {
        let arena: u32 = b"arenas.create\0"[..].name().read()?;
        let name = |setting: &str| format!("arena.{arena}.{setting}\0");
        name("dirty_decay_ms").as_bytes().name().write(LONG_DECAY_MS)?;
        // Free pages of 8 MB and more in one piece would else go at once.
        name("oversize_threshold").as_bytes().name().write(usize::MAX)?;
        Ok(arena)
    };
    let mut reason = None;
    let arena = *LONG.get_or_init(|| create().map_err(|error| reason = Some(error)).ok());
    match (arena, reason) {
        (Some(arena), _) => b"thread.arena\0"[..].name().write(arena),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(()),
    }
    .map_err(|error| error.to_string())
}

/// How often something was taken from long commands' arena, at the last epoch.
pub fn long_requests() -> Option<u64> {
    let arena = (*LONG.get()?)?;
    let count = |kind: &str| -> Option<u64> {
        let name = format!("stats.arenas.{arena}.{kind}.nmalloc\0");
        name.as_bytes().name().read().ok()
    };
    Some(count("small")? + count("large")?)
}

/// All figures at once.
pub fn figures() -> Option<Figures> {
    epoch::advance().ok()?;
    let allocated = allocated()?;
    Some(Figures {
        allocated,
        used: allocated.saturating_sub(cached()),
        active: stats::active::read().ok()? as u64,
        metadata: stats::metadata::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
        arrays: weft_table::arrays::arena().and_then(of_arena).unwrap_or_default(),
        long: LONG.get().copied().flatten().and_then(of_arena).unwrap_or_default(),
    })
}

fn of_arena(arena: u32) -> Option<Arena> {
    let page: usize = b"arenas.page\0"[..].name().read().ok()?;
    let bytes = |kind: &str| -> Option<u64> {
        let pages: usize = format!("stats.arenas.{arena}.{kind}\0").as_bytes().name().read().ok()?;
        Some((pages * page) as u64)
    };
    Some(Arena {
        active: bytes("pactive")?,
        free: bytes("pdirty")?,
    })
}

/// Gives pages that the allocator keeps for later back to the operating system.
///
/// # Errors
/// The allocator's reason.
pub fn purge() -> Result<(), String> {
    purge_others()?;
    purge_long()
}

/// The same, but for long commands' arena.
///
/// # Errors
/// The allocator's reason.
pub fn purge_others() -> Result<(), String> {
    let arenas = tikv_jemalloc_ctl::arenas::narenas::read().map_err(|error| error.to_string())?;
    let long = LONG.get().copied().flatten();
    (0..arenas)
        .filter(|arena| Some(*arena) != long)
        .try_for_each(purge_arena)
}

/// The same for long commands' arena.
///
/// # Errors
/// The allocator's reason.
pub fn purge_long() -> Result<(), String> {
    LONG.get().copied().flatten().map_or(Ok(()), purge_arena)
}

/// The same for the arena that has the arrays of the tables.
///
/// # Errors
/// The allocator's reason.
pub fn purge_arrays() -> Result<(), String> {
    weft_table::arrays::arena().map_or(Ok(()), purge_arena)
}

fn purge_arena(arena: u32) -> Result<(), String> {
    for kind in ["dirty", "muzzy"] {
        let name = format!("arena.{arena}.{kind}_decay_ms\0");
        let name = name.as_bytes().name();
        // To keep pages for no time at all gives back those that are kept now. Arenas that nobody used yet refuse.
        let kept: Result<isize, _> = name.update(0);
        if let Ok(decay_ms) = kept {
            name.write(decay_ms).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// A text of the allocator's, by its name; `None` if it has none under that name.
pub fn text(name: &[u8]) -> Option<&'static [u8]> {
    if name.contains(&0) {
        return None;
    }
    let name = [name, b"\0"].concat();
    let name = name[..].name();
    // Those of profiles may have no text at all.
    let may_be_missing = name.as_bytes().windows(4).any(|part| part == b"prof");
    if !name.value_type_str() || may_be_missing {
        return None;
    }
    name.read().ok()
}

/// The allocator's own report, and what lies in the runs of cells that it knows nothing of.
pub fn report() -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to a vector cannot fail.
    let _ = tikv_jemalloc_ctl::stats_print::stats_print(&mut text, Default::default());
    let _ = write_cells(&mut text);
    text
}

fn write_cells(text: &mut Vec<u8>) -> std::io::Result<()> {
    writeln!(text, "\nCells of entries, bytes:")?;
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

    /// A thread that allocates apart is seen to, what it freed stays, and goes when that is asked for.
    #[test]
    fn what_long_commands_free_stays_in_their_arena() {
        const BYTES: u64 = 64 << 20;
        let free = || figures().expect("the allocator counts").long.free;
        let thread = std::thread::spawn(move || {
            allocate_apart().expect("an arena of its own");
            let before = figures().and_then(|_| long_requests()).expect("the arena counts");
            for _ in 0..100 {
                std::hint::black_box(vec![1u8; BYTES as usize]);
            }
            let kept = free();
            assert!(long_requests().is_some_and(|requests| requests >= before + 100));
            assert!((BYTES..2 * BYTES).contains(&kept), "{kept}");
            purge_others().expect("others give back");
            assert!(free() >= BYTES);
            purge_long().expect("it gives back");
            assert!(free() < BYTES);
        });
        thread.join().expect("the thread ends well");
    }
}

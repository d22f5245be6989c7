//! The allocator's own figures; memory is never counted by hand.
//!
//! What is beneath the allocator's notice are the cells of small entries (`weft_table::cells`): for it the runs they lie in
//! are in use as a whole. They count here as what they are.

use std::io::Write as _;

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
    pub arrays: Arrays,
}

/// Figures of the arena that has the arrays of the tables, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrays {
    /// In pages that hold arrays.
    pub active: u64,
    /// In free pages that are kept.
    pub free: u64,
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
        arrays: arrays().unwrap_or_default(),
    })
}

fn arrays() -> Option<Arrays> {
    let arena = weft_table::arrays::arena()?;
    let page: usize = b"arenas.page\0"[..].name().read().ok()?;
    let bytes = |kind: &str| -> Option<u64> {
        let pages: usize = format!("stats.arenas.{arena}.{kind}\0").as_bytes().name().read().ok()?;
        Some((pages * page) as u64)
    };
    Some(Arrays {
        active: bytes("pactive")?,
        free: bytes("pdirty")?,
    })
}

/// Gives pages that the allocator keeps for later back to the operating system.
///
/// # Errors
/// The allocator's reason.
pub fn purge() -> Result<(), String> {
    let arenas = tikv_jemalloc_ctl::arenas::narenas::read().map_err(|error| error.to_string())?;
    (0..arenas).try_for_each(purge_arena)
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
